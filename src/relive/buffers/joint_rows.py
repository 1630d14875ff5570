"""JointTable: which rows of the agents belong to one environment step, and to which episode.

    key          4     5     6     7     8        counts the joint steps ever added; here of two environments
    episode      2     3     2     3     4
    step         1     0     2     1     0
    walker       4     5     -     6     7        the key of its row in a history of its own, -1 where it is absent
    runner       -     2     3     -     4

A joint step is evicted when its slot is needed, together with the rows of all its agents. So an agent has one row for
each joint step it is in, in the same order, and never more than `capacity`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import validation
from relive.kernels import append
from relive.schema import encoding
from relive.storage import ring
from relive.storage import steps as steps_lib

Steps: TypeAlias = dict[int, encoding.Steps]
"""A step of each agent that is there, by the number of the agent."""


def checked(
    numbers: Mapping[str, int],
    histories: Sequence[steps_lib.StepStore],
    stream: int,
    observations: Any,
    actions: Any,
    rewards: Any,
    next_observations: Any,
    terminations: Any,
    truncations: Any,
    extras: Mapping[str, Any],
) -> Steps:
    """Validate the arguments of `JointReplayBuffer.add` and return the steps they describe, changing nothing.

    Args:
        numbers: The numbers of the agents by name.
        histories: The history of each agent.
        stream: The environment.
        observations: Mappings with at least the agents in `actions`, as the next two.
        actions: The actions; their keys are the present agents.
        rewards: The rewards.
        next_observations: The next observations; agents that terminated may be omitted.
        terminations: Whether they terminated; None for all False.
        truncations: Whether they were truncated; None for all False.
        extras: A mapping for each extra; agents without that extra may be omitted.

    Raises:
        SchemaError: A value does not fit its field; the message names the agent.
        ArgumentError: An agent is unknown or missing somewhere, no agent is present, or another argument is invalid.
    """
    flags = (("terminations", terminations), ("truncations", truncations))
    required = {"observations": observations, "rewards": rewards} | {
        name: each for name, each in flags if each is not None
    }
    for name, value in {"actions": actions, "next_observations": next_observations, **required, **extras}.items():
        if not isinstance(value, Mapping):
            raise errors.ArgumentTypeError(f"{name} must be a mapping by agent, got {validation.short_repr(value)}")
    if not actions:
        raise errors.ArgumentError("actions must be of at least one agent, got none")
    for agent in actions:
        if agent not in numbers:
            raise errors.ArgumentError(
                f"actions must be of {', '.join(numbers)}, got one of {validation.short_repr(agent)}"
            )
    steps: Steps = {}
    for agent, action in actions.items():
        for name, values in required.items():
            if agent not in values:
                raise errors.ArgumentError(f"{name} must have every agent in actions, got none of {agent!r}")
        number, next_observation = numbers[agent], next_observations.get(agent)
        try:
            step = encoding.one_step(
                histories[number].encoder,
                histories[number].streams,
                stream,
                observations[agent],
                action,
                rewards[agent],
                next_observation,
                _flag(terminations, agent),
                _flag(truncations, agent),
                {name: values[agent] for name, values in extras.items() if agent in values},
            )
        except errors.ArgumentError as error:
            raise type(error)(f"agent {agent!r}: {error}") from None
        if next_observation is None and not step.events[0] & encoding.TERMINATED:
            raise errors.ArgumentError(
                f"next_observations must have every agent in actions that has not terminated, got none of {agent!r}"
            )
        steps[number] = step
    return steps


def _flag(flags: Mapping[str, Any] | None, agent: str) -> Any:
    return False if flags is None else flags[agent]


ABSENT = -1


class JointTable(ring.Ring):
    """The newest `capacity` joint steps of some agents, in `streams` parallel environments.

    Attributes:
        next_episode: The number of the next episode.
        open_episode: The number of each environment's open episode, -1 if none [streams].
        open_length: Its number of steps so far [streams].
    """

    def __init__(self, capacity: int, num_agents: int, streams: int) -> None:
        super().__init__(capacity)
        self.next_episode = 0
        self.open_episode: arrays.Ints = np.full(streams, -1, np.int64)
        self.open_length: arrays.Ints = np.zeros(streams, np.int64)
        self._episode: arrays.Ints = np.zeros(capacity, np.int64)
        self._step: arrays.Ints = np.zeros(capacity, np.int64)
        self._row_keys: arrays.Ints = np.zeros((num_agents, capacity), np.int64)

    @property
    def num_agents(self) -> int:
        """Number of agents, present or not."""
        return len(self._row_keys)

    @property
    def num_open(self) -> int:
        """Number of open episodes."""
        return int(np.count_nonzero(self.open_episode >= 0))

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept for each joint step."""
        return self._episode.nbytes + self._step.nbytes + self._row_keys.nbytes

    # Reading.

    def episodes(self, slots: arrays.Ints) -> arrays.Ints:
        """Return the numbers of the episodes of the joint steps in `slots` [B]."""
        return self._episode[slots]

    def steps(self, slots: arrays.Ints) -> arrays.Ints:
        """Return how many steps of the episode came before each of the joint steps in `slots` [B]."""
        return self._step[slots]

    def row_keys(self, agent: int, slots: arrays.Ints) -> arrays.Ints:
        """Return the keys of the agent's rows of the joint steps in `slots` [B], -1 where it is absent."""
        row_keys: arrays.Ints = self._row_keys[agent].take(slots)
        return row_keys

    def agents_of_oldest(self) -> arrays.Ints:
        """Return the numbers of the agents that are in the oldest joint step."""
        return np.flatnonzero(self._row_keys[:, self.oldest_key % self.capacity] != ABSENT)

    # Writing.

    def evict(self) -> None:
        """Evict the oldest joint step."""
        self.num_view[append.ROWS] -= 1

    def append(self, stream: int, row_keys: arrays.Ints) -> int:
        """Add a joint step to an environment, and return its key; there must be room for it.

        Args:
            stream: The environment. If no episode is open there, one begins.
            row_keys: The keys of the agents' rows, -1 where they are absent [agents].
        """
        if self.open_episode[stream] < 0:
            self.open_episode[stream], self.open_length[stream] = self.next_episode, 0
            self.next_episode += 1
        key = self.next_key
        slot = key % self.capacity
        self._episode[slot], self._step[slot] = self.open_episode[stream], self.open_length[stream]
        self._row_keys[:, slot] = row_keys
        self.open_length[stream] += 1
        self.num_view[append.NEXT_KEY] += 1
        self.num_view[append.ROWS] += 1
        return key

    def end(self, stream: int) -> None:
        """End the open episode of an environment, if any."""
        self.open_episode[stream] = -1

    def clear(self) -> None:
        """Remove all joint steps and open episodes. Episode numbers and keys are not reset."""
        self.num_view[append.CLEARED] += self.num_view[append.ROWS]
        self.num_view[append.ROWS] = 0
        self.open_episode[:] = -1

    def restore(
        self,
        *,
        next_key: int,
        num_evicted: int,
        next_episode: int,
        episode: arrays.Ints,
        step: arrays.Ints,
        row_keys: arrays.Ints,
        open_episode: arrays.Ints,
        open_length: arrays.Ints,
    ) -> None:
        """Replace the contents by joint steps, oldest first [N], rows [agents, N], and open episodes [streams]."""
        num = self.num_view
        num[append.NEXT_KEY], num[append.ROWS] = next_key, len(episode)
        num[append.CLEARED] = next_key - len(episode) - num_evicted
        self.next_episode = next_episode
        slots = self.alive_slots()
        self._episode[slots], self._step[slots], self._row_keys[:, slots] = episode, step, row_keys
        self.open_episode[:], self.open_length[:] = open_episode, open_length
