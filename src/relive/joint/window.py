"""JointWindow: the n-step transitions of all agents from joint steps, out of one gather of rows.

rows          t      t + 1    t + 2    t + 3        n = 3
walker        o      o        o        (o)          m = 3: bootstrap from what row t + 3 holds for it
runner        o      x                              m = 2: it terminates with its second step
jumper        o      -                              m = 1: it has left; row t + 1 holds its newest observation
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, ClassVar

import numpy as np

from relive.common import arrays as arrays_lib
from relive.common import trees
from relive.joint import batch as joint_batch
from relive.joint import rows as joint_rows
from relive.kernels import windows
from relive.storage import steps as steps_lib
from relive.windows import batches
from relive.windows import returns
from relive.windows import sequences
from relive.windows import transitions


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointWindow(transitions.TransitionWindow):
    """An n-step transition of each agent, which ends where the agent does, or before a row in which it is absent.

    Attributes:
        layout: What rows hold.
    """

    compared_paths: ClassVar[tuple[str, ...]] = (joint_rows.EPISODE,)

    layout: joint_rows.JointRows

    def _read(
        self,
        store: steps_lib.StepStore,
        slots: arrays_lib.Ints,
        probabilities: arrays_lib.Floats,
        weights: arrays_lib.Floats,
    ) -> Any:
        """Return the agents' transitions from `slots` [B]."""
        groups, most = self.layout.groups, self._horizon(store, slots)
        rows, span, last = store.follow(slots, most)
        of_rows = store.reader.read(rows, (joint_rows.FLAGS, *(group.path("reward") for group in groups)))
        flags = of_rows[joint_rows.FLAGS]
        goes_on = (flags[:-1] == joint_rows.PRESENT) & (flags[1:] & joint_rows.PRESENT > 0)
        goes_on &= (np.arange(1, most)[:, np.newaxis] < span)[..., np.newaxis]
        mask = flags[0] & joint_rows.PRESENT > 0
        steps = mask + np.logical_and.accumulate(goes_on).sum(axis=0)
        ends = np.take_along_axis(flags, np.maximum(steps - 1, 0)[np.newaxis], axis=0)[0]
        is_terminal = mask & (ends & joint_rows.TERMINATED > 0)
        columns = store.reader.read(slots, self.layout.paths)
        next_columns = store.next_observations(last, store.following.take(last))

        def trees_of(group: joint_rows.Group) -> dict[str, Any]:
            is_there, span_of_each, ended = (each[:, group.numbers] for each in (mask, steps, is_terminal))
            reward = of_rows[group.path("reward")].reshape(most, -1)
            sums = reward[0] if most == 1 else returns.discounted_sums(reward, span_of_each.reshape(-1), self.gamma)
            discounts = returns.powers(self.gamma, most, group.schema.reward.dtype)
            places, agents = ((span_of_each > 0) & (span_of_each < span[:, np.newaxis])).nonzero()
            if len(places):  # What follows these is in the window itself.
                paths = [group.paths[own] for own in group.encoder.observation_paths]
                found = store.reader.read(rows[span_of_each[places, agents], places], paths)
                for path, column in found.items():
                    next_columns[path][places, agents] = column[np.arange(len(places)), agents]
            if not arrays_lib.all_set(is_there):
                for part in (columns, next_columns):
                    sequences.clear({path: part[path] for path in group.paths.values() if path in part}, ~is_there)
            return {
                **{part: trees.nested(group.path(part), columns) for part in ("observation", "action", "extras")},
                "reward": sums.reshape(is_there.shape),
                "next_observation": trees.nested(group.path("observation"), next_columns),
                "next_discount": windows.discounts_of(span_of_each, ended | ~is_there, discounts),
                "is_terminal": ended,
                "steps": span_of_each,
                "mask": is_there,
            }

        return joint_batch.JointBatch(
            agents=_by_agent(self.layout, joint_batch.AgentBatch, 1, trees_of),
            episodes=columns[joint_rows.EPISODE],
            start_step=store.steps_of(slots),
            keys=store.keys(slots),
            probabilities=probabilities,
            weights=weights,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointSequenceWindow(sequences.SequenceWindow):
    """A window of a fixed number of consecutive joint steps.

    Attributes:
        layout: What rows hold.
    """

    compared_paths: ClassVar[tuple[str, ...]] = (joint_rows.EPISODE,)

    layout: joint_rows.JointRows

    def _read(
        self,
        store: steps_lib.StepStore,
        slots: arrays_lib.Ints,
        probabilities: arrays_lib.Floats,
        weights: arrays_lib.Floats,
    ) -> Any:
        """Return the agents' sequences from `slots` [B]."""
        joint = super()._read(store, slots, probabilities, weights)
        flags = joint.extras["flags"]
        mask, terminated = flags & joint_rows.PRESENT > 0, flags & joint_rows.TERMINATED > 0
        # Whether an agent has left after a step: it is not in the next one, which may be after the window.
        has_left = joint.truncated[..., np.newaxis] | np.zeros_like(mask)
        has_left[:, :-1] |= joint.mask[:, 1:, np.newaxis] & ~mask[:, 1:]
        _, span, last = store.follow(slots, self.length)
        links = store.following.take(last).astype(np.int64)
        (goes_on,) = (links >= 0).nonzero()
        following = store.reader.read(links[goes_on], (joint_rows.FLAGS,))[joint_rows.FLAGS]
        has_left[goes_on, span[goes_on] - 1] = following & joint_rows.PRESENT == 0
        truncated = (flags & joint_rows.TRUNCATED > 0) | (has_left & mask & ~terminated)
        is_seen = np.zeros((len(slots), self.length + 1, flags.shape[-1]), np.bool_)
        is_seen[:, :-1] |= mask
        is_seen[:, 1:] |= mask
        shared: dict[str, Any] = {
            "start_step": joint.start_step,
            "keys": joint.keys,
            "probabilities": probabilities,
            "weights": weights,
        }

        def trees_of(group: joint_rows.Group) -> dict[str, Any]:
            observation = joint.observation[group.key]
            sequences.clear(trees.flat("observation", observation), ~is_seen[..., group.numbers])
            return {
                "observation": observation,
                "action": joint.action[group.key],
                "reward": joint.extras["rewards"][group.key],
                "terminated": terminated[..., group.numbers],
                "truncated": truncated[..., group.numbers],
                "mask": mask[..., group.numbers],
                "is_burn_in": joint.is_burn_in[..., np.newaxis] & mask[..., group.numbers],
                "extras": joint.extras.get("extras", {}).get(group.key, {}),
            }

        agents = _by_agent(self.layout, functools.partial(batches.SequenceBatch, **shared), 2, trees_of)
        return joint_batch.JointSequenceBatch(agents=agents, mask=joint.mask, **shared)


def _by_agent(
    layout: joint_rows.JointRows,
    make: Callable[..., Any],
    axis: int,
    trees_of: Callable[[joint_rows.Group], dict[str, Any]],
) -> dict[str, Any]:
    """Return what `make` makes of the trees of each agent, given those of a group, with its agents along an axis."""
    agents = {}
    for group in layout.groups:
        of_group = trees_of(group)
        for number, name in enumerate(group.names):
            place = (*(slice(None),) * axis, number)
            agents[name] = make(**{part: _at(tree, place) for part, tree in of_group.items()})
    return {name: agents[name] for name in layout.agents if name in agents}


def _at(tree: Any, place: tuple[Any, ...]) -> Any:
    """Return a place of every array of a tree."""
    return {key: _at(child, place) for key, child in tree.items()} if isinstance(tree, dict) else tree[place]
