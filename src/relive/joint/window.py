"""JointWindow: the n-step transitions of all agents from joint steps, out of one gather of rows.

rows          t      t + 1    t + 2    t + 3        n = 3
walker        o      o        o        (o)          m = 3: bootstrap from what row t + 3 holds for it
runner        o      x                              m = 2: it terminates with its second step
jumper        o      -                              m = 1: it has left; row t + 1 holds its newest observation
"""

import dataclasses
from typing import Any

import numpy as np

from relive.common import arrays
from relive.common import trees
from relive.joint import batch as joint_batch
from relive.joint import rows as joint_rows
from relive.kernels import windows
from relive.storage import steps as steps_lib
from relive.windows import batches
from relive.windows import returns
from relive.windows import sequences
from relive.windows import transitions
from relive.windows import window


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointWindow(transitions.TransitionWindow):
    """An n-step transition of each agent, which ends where the agent does, or before a row in which it is absent.

    Attributes:
        layout: What rows hold.
    """

    layout: joint_rows.JointRows

    def read(
        self, store: steps_lib.StepStore, slots: arrays.Ints, probabilities: arrays.Floats, weights: arrays.Floats
    ) -> Any:
        """Return the agents' transitions from `slots` [B]."""
        groups, most = self.layout.groups, self._horizon(store, slots)
        rows, span, last = store.follow(slots, most)
        of_rows = store.read(rows, (joint_rows.FLAGS, *(group.path("reward") for group in groups)))
        flags = of_rows[joint_rows.FLAGS]
        mask, ends = flags[0] & joint_rows.PRESENT > 0, flags[0]
        steps = mask.astype(np.int64)
        if most > 1:
            goes_on = (flags[:-1] == joint_rows.PRESENT) & (flags[1:] & joint_rows.PRESENT > 0)
            goes_on &= (np.arange(1, most)[:, np.newaxis] < span)[..., np.newaxis]
            steps += np.logical_and.accumulate(goes_on).sum(axis=0)
            ends = np.take_along_axis(flags, np.maximum(steps - 1, 0)[np.newaxis], axis=0)[0]
        is_terminal = mask & (ends & joint_rows.TERMINATED > 0)
        columns = store.read(slots, self.layout.paths)
        next_columns = store.next_observations(last, store.following.take(last))
        self._put_early(next_columns, store, rows, span, steps)
        agents = {}
        for group in groups:
            is_there, span_of_each, ended = (each[:, group.numbers] for each in (mask, steps, is_terminal))
            reward = of_rows[group.path("reward")]
            if most == 1:
                reward = reward[0]
            else:
                powers = returns.powers(self.gamma, most, returns.FLOAT64)
                sums = windows.discounted_sums(reward.reshape(most, -1), span_of_each.reshape(-1), powers)
                reward = sums.reshape(is_there.shape)
            discounts = returns.powers(self.gamma, most, group.schema.reward.dtype)
            discount = windows.discounts_of(span_of_each, ended | ~is_there, discounts)
            if not arrays.all_set(is_there):
                for part in (columns, next_columns):
                    sequences.clear({path: part[path] for path in group.paths.values() if path in part}, ~is_there)
            trees_of = {part: trees.nested(group.path(part), columns) for part in ("observation", "action", "extras")}
            trees_of["next_observation"] = trees.nested(group.path("observation"), next_columns)
            trees_of |= {"reward": reward, "next_discount": discount, "is_terminal": ended}
            trees_of |= {"steps": span_of_each, "mask": is_there}
            parts = [_split(tree, len(group.names), 1) for tree in trees_of.values()]
            for name, *own in zip(group.names, *parts, strict=True):
                agents[name] = joint_batch.AgentBatch(**dict(zip(trees_of, own, strict=True)))
        return joint_batch.JointBatch(
            agents={name: agents[name] for name in self.layout.agents if name in agents},
            episodes=columns[joint_rows.EPISODE],
            start_step=store.steps_of(slots),
            keys=store.keys(slots),
            probabilities=probabilities,
            weights=weights,
        )

    def _put_early(
        self,
        columns: window.Columns,
        store: steps_lib.StepStore,
        rows: arrays.Ints,
        span: arrays.Ints,
        steps: arrays.Ints,
    ) -> None:
        """Write the next observations of agents whose steps [B, A] end before the span [B] of rows [n, B]."""
        is_early = (steps > 0) & (steps < span[:, np.newaxis])
        for count in np.unique(steps[is_early]).tolist():
            is_here = is_early & (steps == count)
            (places,) = is_here.any(axis=1).nonzero()
            found = store.observations(rows[count, places])
            for group in self.layout.groups:
                which, agents = is_here[places][:, group.numbers].nonzero()
                for path in group.paths.values():
                    if path in found:
                        columns[path][places[which], agents] = found[path][which, agents]


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointSequenceWindow(sequences.SequenceWindow):
    """A window of a fixed number of consecutive joint steps.

    Attributes:
        layout: What rows hold.
    """

    layout: joint_rows.JointRows

    def read(
        self, store: steps_lib.StepStore, slots: arrays.Ints, probabilities: arrays.Floats, weights: arrays.Floats
    ) -> Any:
        """Return the agents' sequences from `slots` [B]."""
        joint = super().read(store, slots, probabilities, weights)
        flags = joint.extras["flags"]
        mask = flags & joint_rows.PRESENT > 0
        terminated, truncated = flags & joint_rows.TERMINATED > 0, flags & joint_rows.TRUNCATED > 0
        has_left = joint.truncated[..., np.newaxis].repeat(flags.shape[-1], axis=-1)
        has_left[:, :-1] |= joint.mask[:, 1:, np.newaxis] & ~mask[:, 1:]
        _, span, last = store.follow(slots, self.length)
        links = store.following.take(last).astype(np.int64)
        (goes_on,) = (links >= 0).nonzero()  # After the window.
        following = store.read(links[goes_on], (joint_rows.FLAGS,))[joint_rows.FLAGS]
        has_left[goes_on, span[goes_on] - 1] = following & joint_rows.PRESENT == 0
        truncated |= has_left & mask & ~terminated
        is_seen = np.zeros((len(slots), self.length + 1, flags.shape[-1]), np.bool_)
        is_seen[:, :-1] |= mask
        is_seen[:, 1:] |= mask
        agents = {}
        for group in self.layout.groups:
            observation = joint.observation[group.key]
            columns = trees.flat("observation", observation)
            sequences.clear(columns, ~is_seen[..., group.numbers])
            trees_of = {
                "observation": observation,
                "action": joint.action[group.key],
                "reward": joint.extras["rewards"][group.key],
                "terminated": terminated[..., group.numbers],
                "truncated": truncated[..., group.numbers],
                "mask": mask[..., group.numbers],
                "is_burn_in": joint.is_burn_in[..., np.newaxis] & mask[..., group.numbers],
                "extras": joint.extras.get("extras", {}).get(group.key, {}),
            }
            parts = [_split(tree, len(group.names), 2) for tree in trees_of.values()]
            for name, *own in zip(group.names, *parts, strict=True):
                agents[name] = batches.SequenceBatch(
                    **dict(zip(trees_of, own, strict=True)),
                    start_step=joint.start_step,
                    keys=joint.keys,
                    probabilities=probabilities,
                    weights=weights,
                )
        return joint_batch.JointSequenceBatch(
            agents={name: agents[name] for name in self.layout.agents if name in agents},
            mask=joint.mask,
            start_step=joint.start_step,
            keys=joint.keys,
            probabilities=probabilities,
            weights=weights,
        )


def _split(tree: Any, count: int, axis: int) -> list[Any]:
    """Return the trees of the agents of a group, whose arrays have `count` agents along an axis."""
    if isinstance(tree, dict):
        children = [_split(child, count, axis) for child in tree.values()]
        return [{key: child[place] for key, child in zip(tree, children, strict=True)} for place in range(count)]
    before = (slice(None),) * axis
    return [tree[(*before, place)] for place in range(count)]
