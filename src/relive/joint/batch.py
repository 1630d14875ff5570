"""Batches of joint steps: arrays per agent, in which the same position is the same environment step.

place              0        1        2
episode, step     3, 0     3, 4     1, 7
walker            row      row      row          observation, action, reward, ...
runner            row      0        row          it was not there at step 4 of episode 3: zeros
runner's mask     True     False    True
"""

from collections.abc import Callable
import dataclasses
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from relive import errors
from relive.buffers import column_stats
from relive.common import arrays as arrays_lib
from relive.windows import batches

Tree: TypeAlias = batches.Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointBufferStats(column_stats.ColumnBufferStats):
    """Statistics of a joint buffer: those of ColumnBufferStats, of joint steps, and those of its agents.

    Attributes:
        agent_steps: Number of stored joint steps in which each agent is present, by name.
    """

    agent_steps: dict[str, int]


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
class JointBatch(batches.KeyedBatch[batches.A]):
    """Joint steps of environments, with the transitions of each agent.

    Attributes:
        agents: The transitions of each agent by name, [B] or [B, ...] each; the same position is the same environment
            step. Agents that were never present and have no schema are missing.
        episodes: The numbers of the episodes [B]; they count the episodes of all environments, from 0.
        start_step: How many steps of the episode came before [B].
        keys: The keys of the joint steps [B]; for `update_priorities` and `read`.
        probabilities: The probability with which each was drawn [B].
        weights: Importance weights [B]; 1 without priorities.
    """

    agents: dict[str, AgentBatch[batches.A]]
    episodes: batches.A
    start_step: batches.A
    keys: arrays_lib.Keys
    probabilities: batches.A
    weights: batches.A

    if TYPE_CHECKING:

        def map(self, function: Callable[[batches.A], batches.B]) -> "JointBatch[batches.B]": ...  # noqa: D102

    def stacked(self: "JointBatch[arrays_lib.Array]") -> AgentBatch[arrays_lib.Array]:
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


@dataclasses.dataclass(kw_only=True, slots=True, eq=False, repr=False)
class JointSequenceBatch(batches.KeyedBatch[batches.A]):
    """Sequences of consecutive joint steps of environments, with those of each agent.

    Attributes:
        agents: The sequences of each agent by name; the same position is the same environment step. The `mask` of an
            agent is False where it is absent, too, and `truncated` is True at its last step before it is. Its
            observations are there at its steps, and after each of them.
        mask: Whether the joint step is real [B, T]; False marks padding.
        start_step: Number of steps of the episode before the sequence [B].
        keys: The keys of the first joint steps [B]; for `update_priorities` and `read`.
        probabilities: The probability with which each was drawn [B].
        weights: Importance weights [B]; 1 without priorities.
    """

    agents: dict[str, batches.SequenceBatch[batches.A]]
    mask: batches.A
    start_step: batches.A
    keys: arrays_lib.Keys
    probabilities: batches.A
    weights: batches.A

    if TYPE_CHECKING:

        def map(self, function: Callable[[batches.A], batches.B]) -> "JointSequenceBatch[batches.B]": ...  # noqa: D102


def _kind(tree: Tree) -> str:
    """Describe the structure of a tree, one level deep."""
    if isinstance(tree, dict):
        return f"a mapping with {', '.join(tree) or 'nothing'}"
    return f"dtype {tree.dtype} and shape {list(tree.shape[1:])}"
