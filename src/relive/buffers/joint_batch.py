"""Batches of joint steps: arrays per agent, in which the same position is the same environment step.

place              0        1        2
episode, step     3, 0     3, 4     1, 7
walker            row      row      row          observation, action, reward, ...
runner            row      0        row          it was not there at step 4 of episode 3: zeros
runner's mask     True     False    True
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from relive import errors
from relive.buffers import joint_rows
from relive.common import arrays
from relive.common import statistics
from relive.persistence import state
from relive.storage import steps as steps_lib
from relive.windows import batches

_COUNTS = ("inserted", "sampled", "spliced_episodes")


@dataclasses.dataclass(kw_only=True)
class Counters:
    """Counters of a joint buffer since it was created; `len` is the number of joint steps that may be drawn now.

    Attributes:
        table: The joint steps.
        inserted: Joint steps added.
        sampled: Joint steps drawn.
        spliced_episodes: Episodes ended because the next step did not follow.
    """

    table: joint_rows.JointTable
    inserted: int = 0
    sampled: int = 0
    spliced_episodes: int = 0

    def __len__(self) -> int:
        """Return how many joint steps may be drawn now: all."""
        return len(self.table)

    def values(self) -> dict[str, int]:
        """Return the counts by name."""
        return {name: getattr(self, name) for name in _COUNTS}

    @staticmethod
    def checked(given: state.StateReader, next_key: int) -> dict[str, int]:
        """Return the counts of a state by name; raise CheckpointError if they contradict the next key."""
        # Each joint step has a key, counted from 0.
        given.integer("inserted", next_key, next_key)
        given.integer("spliced_episodes", 0, next_key)
        return {name: given.integer(name) for name in _COUNTS}

    def restore(self, counts: Mapping[str, int]) -> None:
        """Continue from those counts."""
        for name, count in counts.items():
            setattr(self, name, count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointBufferStats(statistics.Statistics):
    """Statistics of a joint buffer: its current contents, and counts since it was created.

    Joint steps that are no longer stored were evicted or cleared: `appended == size + evicted + cleared`.

    Attributes:
        size: Joint steps stored, each of which may be drawn.
        capacity: Maximum number of stored joint steps.
        agent_steps: Number of stored joint steps with each agent, by name.
        open_episodes: Environment episodes in progress.
        nbytes: Bytes of the agents' columns as their schemas count them, of the observations beside them, of their
            timelines, and of the table that joins their rows.
        appended: Joint steps added so far.
        sampled: Joint steps drawn so far.
        evicted: Joint steps overwritten so far.
        cleared: Joint steps that `clear` forgot so far.
        spliced_episodes: Episodes ended so far because an agent continued from an unexpected observation: an unreported
            reset.
    """

    size: int
    capacity: int
    agent_steps: dict[str, int]
    open_episodes: int
    nbytes: int
    appended: int
    sampled: int
    evicted: int
    cleared: int
    spliced_episodes: int


def of(
    table: joint_rows.JointTable, histories: Mapping[str, steps_lib.StepStore], counters: Counters
) -> JointBufferStats:
    """Return the statistics of a buffer with those parts. O(agents + streams)."""
    return JointBufferStats(
        size=len(table),
        capacity=table.capacity,
        agent_steps={agent: len(history) for agent, history in histories.items()},
        open_episodes=table.num_open,
        nbytes=table.nbytes + sum(history.nbytes for history in histories.values()),
        appended=counters.inserted,
        sampled=counters.sampled,
        evicted=table.num_evicted,
        cleared=table.oldest_key - table.num_evicted,
        spliced_episodes=counters.spliced_episodes,
    )


Tree: TypeAlias = batches.Tree


@dataclasses.dataclass(kw_only=True, slots=True, eq=False, repr=False)
class AgentBatch(batches.Batch[batches.A]):
    """n-step transitions of one agent. Where `mask` is False the agent was absent, and all other arrays hold zeros.

    `target = reward + next_discount * V(next_observation)` holds for each of them. Shapes are those of one agent; in
    `JointBatch.stacked` an axis of agents [A] follows that of the batch [B].

    Attributes:
        observation: o_t [B, ...].
        action: a_t [B, ...].
        reward: The sum over k < m of gamma^k r_{t+k} [B], added up as float64, in the reward's dtype.
        next_observation: o_{t+m} [B, ...]; zeros where the agent terminated there and it was not given.
        next_discount: gamma^m, or 0 if the window reached the agent's termination [B], in the reward's dtype.
        is_terminal: Whether the window reached the agent's termination [B].
        steps: m [B], from 1 to n where the agent was present; fewer than n if it ended or left earlier.
        mask: Whether the agent was present [B].
        extras: Each extra of step t [B, ...].
    """

    observation: Tree
    action: Tree
    reward: batches.A
    next_observation: Tree
    next_discount: batches.A
    is_terminal: batches.A
    steps: batches.A
    mask: batches.A
    extras: dict[str, Tree]

    if TYPE_CHECKING:

        def map(self, function: Callable[[batches.A], batches.B]) -> "AgentBatch[batches.B]": ...  # noqa: D102


@dataclasses.dataclass(kw_only=True, slots=True, eq=False, repr=False)
class JointBatch(batches.Batch[batches.A]):
    """Joint steps of environments, with the transitions of each agent.

    Attributes:
        agents: The transitions of each agent by name, [B] or [B, ...] each; the same position is the same environment
            step. Agents that were never present and have no schema are missing.
        episodes: The numbers of the episodes [B]; they count the episodes of all environments, from 0.
        start_step: How many steps of the episode came before [B].
        keys: The names of the joint steps [B]; for `read`.
        probabilities: The probability with which each was drawn [B].
        weights: Importance weights [B]; 1, as draws are uniform.
    """

    agents: dict[str, AgentBatch[batches.A]]
    episodes: batches.A
    start_step: batches.A
    keys: arrays.Keys
    probabilities: batches.A
    weights: batches.A

    if TYPE_CHECKING:

        def map(self, function: Callable[[batches.A], batches.B]) -> "JointBatch[batches.B]": ...  # noqa: D102

    def stacked(self: "JointBatch[arrays.Array]") -> AgentBatch[arrays.Array]:
        """Return the transitions of all agents stacked, [B, A] or [B, A, ...] each, in the order of `agents`.

        Raises:
            ArgumentTypeError: The batch holds arrays of a framework: stack first, then convert.
            ArgumentError: The agents' fields, shapes or dtypes differ.
        """
        self._require_numpy("stacked")
        fields = batches.array_names(AgentBatch)
        parts = list(self.agents.values())
        return AgentBatch(**{name: self._stacked(name, [getattr(part, name) for part in parts]) for name in fields})

    def _stacked(self, name: str, trees: list[Tree]) -> Tree:
        """Stack the agents' trees of arrays [B, ...] into one of arrays [B, A, ...]."""
        kinds = [_kind(tree) for tree in trees]
        for agent, kind in zip(self.agents, kinds, strict=True):
            if kind != kinds[0]:
                first = next(iter(self.agents))
                raise errors.ArgumentError(
                    f"stacked needs agents whose steps hold the same, got {name} of {kinds[0]} of agent {first!r} and "
                    f"of {kind} of agent {agent!r}"
                )
        if isinstance(trees[0], dict):
            return {key: self._stacked(f"{name}/{key}", [tree[key] for tree in trees]) for key in trees[0]}
        return np.stack(trees, axis=1)


def of_agent(read: batches.TransitionBatch, mask: arrays.Bools) -> AgentBatch:
    """Return the transitions of an agent at every position, given those where it was present, in order.

    Args:
        read: Its transitions, one for each True in `mask`.
        mask: Where it was present [B].
    """
    names = [name for name in batches.array_names(AgentBatch) if name != "mask"]
    return AgentBatch(mask=mask, **{name: _spread(getattr(read, name), mask) for name in names})


def _spread(tree: Tree, mask: arrays.Bools) -> Tree:
    """Return a tree of arrays [B, ...] with those rows where the mask is set, and zeros elsewhere."""
    if isinstance(tree, dict):
        return {key: _spread(child, mask) for key, child in tree.items()}
    if len(tree) == len(mask):
        return tree
    column: arrays.Array = np.zeros((len(mask), *tree.shape[1:]), tree.dtype)
    column[mask] = tree
    return column


def _kind(tree: Tree) -> str:
    """Describe the structure of a tree, one level deep."""
    if isinstance(tree, dict):
        return f"a mapping with {', '.join(tree) or 'nothing'}"
    return f"dtype {tree.dtype} and shape {list(tree.shape[1:])}"
