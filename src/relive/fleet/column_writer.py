"""ColumnWriter: writes steps to a fleet, in chunks, with the methods of a column buffer.

Invariant: an awaited call copies its step, waits for room, then takes it without awaiting in between. So a cancelled
call has either happened completely or not at all.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import numpy as np

from relive import errors
from relive.common import trees
from relive.common import validation
from relive.fleet import chunks
from relive.fleet import writer
from relive.schema import casting

_WHOLE = -1
"""The stream of a writer's whole episodes, which need none of the shard's."""


@dataclasses.dataclass(slots=True)
class _Run:
    """Unsent steps of one stream, all with the same layout."""

    is_start: bool = True
    layout: Any = None
    observations: list[Any] = dataclasses.field(default_factory=list)
    actions: list[Any] = dataclasses.field(default_factory=list)
    rewards: list[Any] = dataclasses.field(default_factory=list)
    extras: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    next_observation: Any = None

    def __len__(self) -> int:
        return len(self.rewards)


class ColumnWriter(writer.StreamWriter):
    """Writes steps to a fleet of column buffers; returned by `ShardedReplay.writer`.

    Steps are collected until their episode ends, there are `batch_steps` of them, or `flush` is called. An open episode
    that is sent in several chunks needs a stream of the shard's buffer besides stream 0; if there are too few, the one
    that has waited longest for its next steps is truncated.
    """

    async def add(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any,
        *,
        terminated: Any = False,
        truncated: Any = False,
        stream: int = 0,
        **extras: Any,
    ) -> None:
        """Add one step; waits while too many batches are in flight. See ColumnReplayBuffer.add.

        Args:
            observation: o_t. If it differs from the previous step's next_observation, the open episode is truncated
                there.
            action: a_t.
            reward: r_t.
            next_observation: o_{t+1}; required.
            terminated: Whether the task ended with the step.
            truncated: Whether the episode was truncated after it. Termination takes precedence over truncation.
            stream: The writer's environment that the step comes from.
            extras: The other fields of the schema.

        Raises:
            ReplayError: A buffer refused steps sent earlier; raised once.
            ClosedError: The writer is closed.
        """
        stream = validation.non_negative_int("stream", stream)
        terminated = validation.flag("terminated", terminated)
        truncated = validation.flag("truncated", truncated)
        if next_observation is None:
            raise errors.ArgumentError("next_observation must be given to a writer of a fleet, got None")
        observation, next_observation = _owned("observation", observation), _owned("next_observation", next_observation)
        action, extras = _owned("action", action), _owned("extras", extras)
        reward = np.array(casting.as_array("reward", reward))
        if _layout(next_observation) != _layout(observation):
            raise errors.SchemaError(
                f"next_observation must be of the shape of observation, {_layout(observation)}, "
                f"got {_layout(next_observation)}"
            )
        layout = [_layout(tree) for tree in (observation, action, reward, extras)]
        await self._room()
        run = self._run_from(stream, observation)
        if len(run) and run.layout != layout:
            # The buffer will refuse one of the two, which must not affect the other.
            self._send(stream, "OPEN")
            run = self._runs[stream]
        run.layout = layout
        run.observations.append(observation)
        run.actions.append(action)
        run.rewards.append(reward)
        run.extras.append(extras)
        run.next_observation = next_observation
        end = _end_of(terminated, truncated)
        if end != "OPEN" or len(run) >= self._chunk_steps:
            self._send(stream, end)

    async def add_episode(
        self,
        observations: Any,
        actions: Any,
        rewards: Any,
        *,
        terminated: Any = None,
        truncated: Any = None,
        **extras: Any,
    ) -> None:
        """Add a whole episode; see ColumnReplayBuffer.add_episode.

        Args:
            observations: o_0 to o_T [T + 1, ...].
            actions: a_0 to a_{T-1} [T, ...].
            rewards: r_0 to r_{T-1} [T].
            terminated: Whether the task ended with the last step; if not, the episode is truncated there.
            truncated: Whether the episode was truncated there; one of the two must be given.
            extras: The other fields of the schema [T, ...].

        Raises:
            ReplayError: A buffer refused steps sent earlier; raised once.
            ClosedError: The writer is closed.
        """
        end: chunks.End = "TERMINATED" if validation.is_terminated(terminated, truncated) else "TRUNCATED"
        chunk = _chunk(_WHOLE, observations, actions, rewards, extras, end)
        await self._room()
        self._outbox.take(chunk)

    async def add_steps(
        self,
        observations: Any,
        actions: Any,
        rewards: Any,
        *,
        terminated: Any = False,
        truncated: Any = False,
        stream: int = 0,
        **extras: Any,
    ) -> None:
        """Add consecutive steps of one stream; like `add` for each of them, and as fast as `add_episode`.

        Args:
            observations: o_t to o_{t+T} [T + 1, ...].
            actions: a_t to a_{t+T-1} [T, ...].
            rewards: r_t to r_{t+T-1} [T].
            terminated: Whether the task ended with the last step.
            truncated: Whether the episode was truncated after it.
            stream: The writer's environment that the steps come from.
            extras: The other fields of the schema [T, ...].

        Raises:
            ReplayError: A buffer refused steps sent earlier; raised once.
            ClosedError: The writer is closed.
        """
        stream = validation.non_negative_int("stream", stream)
        end = _end_of(validation.flag("terminated", terminated), validation.flag("truncated", truncated))
        chunk = _chunk(stream, observations, actions, rewards, extras, end)
        for name, column in trees.flat("observations", chunk.observations).items():
            if column.shape[:1] != (chunk.rows + 1,):
                raise errors.SchemaError(
                    f"{name} must be {chunk.rows + 1}, one more than rewards, got an array of shape {column.shape}"
                )
        await self._room()
        run = self._run_from(stream, trees.rows(chunk.observations, 0))
        if len(run):
            self._send(stream, "OPEN")
            run = self._runs[stream]
        self._outbox.take(chunk._replace(is_start=run.is_start))
        if end == "OPEN":
            self._runs[stream] = _Run(is_start=False, next_observation=trees.rows(chunk.observations, -1))
        else:
            del self._runs[stream]

    def _run_from(self, stream: int, observation: Any) -> _Run:
        """Return the steps of a stream that the observation follows; what it does not follow is truncated."""
        run: _Run = self._runs.setdefault(stream, _Run())
        if run.next_observation is not None and not _are_equal(run.next_observation, observation):
            self._send(stream, "TRUNCATED")
            run = self._runs[stream] = _Run()
        return run

    def _send(self, stream: int, end: chunks.End) -> None:
        run = self._runs.pop(stream)
        if end == "OPEN":
            self._runs[stream] = _Run(is_start=False, next_observation=run.next_observation)
        if not len(run):
            self._outbox.take(chunks.ColumnEnd(stream=stream))
            return
        chunk = chunks.ColumnChunk(
            stream=stream,
            is_start=run.is_start,
            observations=_stacked([*run.observations, run.next_observation]),
            actions=_stacked(run.actions),
            rewards=_stacked(run.rewards),
            extras=_stacked(run.extras),
            end=end,
        )
        self._outbox.take(chunk)


def _end_of(terminated: bool, truncated: bool) -> chunks.End:
    """Return how an episode ended; termination takes precedence."""
    if terminated:
        return "TERMINATED"
    return "TRUNCATED" if truncated else "OPEN"


def _chunk(
    stream: int, observations: Any, actions: Any, rewards: Any, extras: Any, end: chunks.End
) -> chunks.ColumnChunk:
    """Return a chunk with copies of those steps, at the start of an episode."""
    rewards = np.array(casting.as_array("rewards", rewards))
    if not validation.leading_length("rewards", rewards):
        raise errors.ArgumentError("an episode must have at least 1 step, got 0")
    return chunks.ColumnChunk(
        stream=stream,
        is_start=True,
        observations=_owned("observations", observations),
        actions=_owned("actions", actions),
        rewards=rewards,
        extras=_owned("extras", extras),
        end=end,
    )


def _owned(name: str, value: Any) -> Any:
    """Return `value` with copies of all leaves as arrays."""
    if isinstance(value, Mapping):
        return {key: _owned(f"{name}/{key}", part) for key, part in value.items()}
    return np.array(casting.as_array(name, value))


def _stacked(values: list[Any]) -> Any:
    """Stack trees of arrays along a new leading axis."""
    if isinstance(values[0], dict):
        return {name: _stacked([value[name] for value in values]) for name in values[0]}
    return np.stack(values)


def _are_equal(first: Any, second: Any) -> bool:
    """Return whether two trees of arrays are equal; NaNs are equal."""
    if isinstance(first, dict) or isinstance(second, dict):
        are_dicts = isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys()
        return are_dicts and all(_are_equal(first[name], second[name]) for name in first)
    if first.shape != second.shape:
        return False
    return bool(((first == second) | ((first != first) & (second != second))).all())


def _layout(tree: Any) -> Any:
    """Return the layout that trees must share to be stacked: shapes, and dtypes of non-numbers."""
    if isinstance(tree, dict):
        return {name: _layout(child) for name, child in tree.items()}
    return tree.shape if tree.dtype.kind in "biufc" else (tree.shape, tree.dtype.str)
