"""Writers of steps to a fleet, in chunks: ColumnWriter and JointWriter, with the methods of their buffers."""

import abc
from collections.abc import Mapping
import dataclasses
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import copies
from relive.common import trees
from relive.common import validation
from relive.fleet import chunks
from relive.fleet import outbox as outbox_lib
from relive.fleet import writer
from relive.joint import rows as joint_rows
from relive.schema import casting
from relive.schema import encoding

Leaves: TypeAlias = dict[str, arrays_lib.Array]
"""The arrays of trees, by path."""
_ENDS: tuple[chunks.End, ...] = ("OPEN", "TERMINATED", "TRUNCATED")
"""How an episode goes on, by the event of its newest step."""


@dataclasses.dataclass(slots=True)
class Run:
    """The open episode of a stream, and its unsent steps from index `first`; of columns, what comes after them."""

    episode: int
    first: int = 0
    steps: list[Any] = dataclasses.field(default_factory=list)
    after: Any = None
    layout: Any = None

    def rest(self) -> "Run":
        """Return the same episode once its steps are sent."""
        return Run(self.episode, self.first + len(self.steps), after=self.after)


class StreamWriter(writer.Writer):
    """Base class of writers of steps, which belong to streams; at most `chunk_steps` are in a chunk."""

    def __init__(self, outbox: outbox_lib.Outbox, chunk_steps: int) -> None:
        super().__init__(outbox)
        self._chunk_steps = chunk_steps
        self._runs: dict[int, Run] = {}

    async def end_episode(self, stream: int = 0) -> bool:
        """End the open episode of a stream as truncated, and return whether there was one."""
        stream = validation.non_negative_int("stream", stream)
        await self._room()
        is_open = stream in self._runs
        if is_open:
            self._go_on(stream, None, self._chunk(self._runs[stream], "TRUNCATED"))
        return is_open

    def _seal(self) -> None:
        waiting = {stream: run for stream, run in self._runs.items() if run.steps}
        for stream, chunk in {stream: self._chunk(run, "OPEN") for stream, run in waiting.items()}.items():
            self._go_on(stream, waiting[stream].rest(), chunk)

    def _end(self) -> None:
        for stream, chunk in {stream: self._chunk(run, "TRUNCATED") for stream, run in self._runs.items()}.items():
            self._go_on(stream, None, chunk)

    def _go_on(self, stream: int, run: Run | None, *ready: chunks.Chunk) -> None:
        """Send chunks, after which the open episode of a stream is that one, if any.

        All chunks of a call are made before any is sent, so that a call that runs out of memory has done nothing.
        """
        for chunk in ready:
            self._outbox.take(chunk)
        if run is None:
            self._runs.pop(stream, None)
        else:
            self._runs[stream] = run

    def _with_step(self, stream: int, run: Run, step: Any, end: chunks.End, *ready: chunks.Chunk) -> None:
        """Go on with a run and one more step, after those chunks; the steps are sent if it is time."""
        if end == "OPEN" and len(run.steps) + 1 < self._chunk_steps:
            run.steps.append(step)
            self._go_on(stream, run, *ready)
            return
        whole = Run(run.episode, run.first, [*run.steps, step], run.after, run.layout)
        self._go_on(stream, whole.rest() if end == "OPEN" else None, *ready, self._chunk(whole, end))

    @abc.abstractmethod
    def _chunk(self, run: Run, end: chunks.End) -> chunks.Chunk:
        """Return the unsent steps of an episode, if any, as a chunk."""


class ColumnWriter(StreamWriter):
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
        """Add one step; the arguments are as in ColumnReplayBuffer.add, but next_observation is required.

        `stream` is the writer's own number of the environment that the step comes from.
        """
        stream = validation.non_negative_int("stream", stream)
        end = _ENDS[encoding.event(terminated, truncated)]
        if next_observation is None:
            raise errors.ArgumentError("next_observation must be given to a writer of a fleet, got None")
        seen, after = _leaves("observation", observation), _leaves("observation", next_observation)
        step = seen | _leaves("action", action) | {"reward": np.array(casting.as_array("reward", reward))}
        if extras:
            step |= _leaves("extras", extras)
        required, layout = _layout(seen), _layout(step)
        if (found := _layout(after)) != required:
            shown = [trees.nested("observation", each) for each in (required, found)]
            raise errors.SchemaError(
                f"next_observation must be of the shape of observation, {shown[0]}, got {shown[1]}"
            )
        await self._room()
        run, ready = self._run_from(stream, seen)
        if run.steps and run.layout != layout:
            # The buffer will refuse one of the two, which must not affect the other.
            ready, run = [*ready, self._chunk(run, "OPEN")], run.rest()
        run = Run(run.episode, run.first, run.steps, after, layout)
        self._with_step(stream, run, step, end, *ready)

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
        """Add a whole episode; the arguments are as in ColumnReplayBuffer.add_episode."""
        end: chunks.End = "TERMINATED" if validation.is_terminated(terminated, truncated) else "TRUNCATED"
        chunk = _chunk(next(self._numbers), observations, actions, rewards, extras, end)
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
        """Add consecutive steps of one stream; the arguments are as in ColumnReplayBuffer.add_steps.

        This is like `add` for each of them, and as fast as `add_episode`.
        """
        stream = validation.non_negative_int("stream", stream)
        end = _ENDS[encoding.event(terminated, truncated)]
        chunk = _chunk(0, observations, actions, rewards, extras, end)
        seen = trees.flat("observation", chunk.observations)
        for path, column in seen.items():
            if column.shape[:1] != (chunk.rows + 1,):
                rule = f"must be {chunk.rows + 1}, one more than rewards, got an array of shape {column.shape}"
                raise errors.SchemaError(f"{path.replace('observation', 'observations', 1)} {rule}")
        await self._room()
        run, ready = self._run_from(stream, {path: column[0] for path, column in seen.items()})
        if run.steps:
            ready, run = [*ready, self._chunk(run, "OPEN")], run.rest()
        ready = [*ready, chunk._replace(episode=run.episode, first=run.first)]
        after = {path: column[-1] for path, column in seen.items()}
        goes_on = Run(run.episode, run.first + chunk.rows, after=after) if end == "OPEN" else None
        self._go_on(stream, goes_on, *ready)

    def _run_from(self, stream: int, seen: Leaves) -> tuple[Run, list[chunks.Chunk]]:
        """Return the episode of a stream that goes on with the observation, and the end of one that it does not follow.

        It may be a new one.
        """
        run = self._runs.get(stream)
        if run is None:
            return Run(next(self._numbers)), []
        if _are_equal(run.after, seen):
            return run, []
        return Run(next(self._numbers)), [self._chunk(run, "TRUNCATED")]

    def _chunk(self, run: Run, end: chunks.End) -> chunks.ColumnChunk:
        parts = {path: [step[path] for step in run.steps] for path in (run.steps[0] if run.steps else ())}
        columns = {
            path: np.stack([*part, run.after[path]] if path in run.after else part) for path, part in parts.items()
        }
        observations, actions, extras = [trees.nested(name, columns) for name in ("observation", "action", "extras")]
        rewards = columns["reward"] if run.steps else ()
        return chunks.ColumnChunk(run.episode, run.first, observations, actions, rewards, extras, end)


class JointWriter(StreamWriter):
    """Writes steps to a fleet of joint buffers; returned by `ShardedReplay.joint_writer`.

    Steps are collected, and need streams of the shard's buffer, as those of a ColumnWriter.
    """

    async def add(
        self,
        observations: Mapping[str, Any],
        actions: Mapping[str, Any],
        rewards: Mapping[str, Any],
        next_observations: Mapping[str, Any],
        *,
        terminations: Mapping[str, Any] | None = None,
        truncations: Mapping[str, Any] | None = None,
        stream: int = 0,
        **extras: Mapping[str, Any],
    ) -> None:
        """Add one joint step; the arguments are as in JointReplayBuffer.add."""
        stream = validation.non_negative_int("stream", stream)
        given = joint_rows.Given(observations, actions, rewards, next_observations, terminations, truncations, extras)
        given.check(actions)
        step = {name: copies.copied(value) for name, value in given._asdict().items() if name != "extras"}
        step |= {name: copies.copied(value) for name, value in extras.items()}
        ends = [(terminations or {}).get(agent) or (truncations or {}).get(agent) for agent in actions]
        await self._room()
        run = self._runs.get(stream) or Run(next(self._numbers))
        self._with_step(stream, run, step, "TERMINATED" if all(ends) else "OPEN")

    def _chunk(self, run: Run, end: chunks.End) -> chunks.JointChunk:
        return chunks.JointChunk(episode=run.episode, first=run.first, steps=tuple(run.steps), end=end)


def _chunk(
    episode: int, observations: Any, actions: Any, rewards: Any, extras: Any, end: chunks.End
) -> chunks.ColumnChunk:
    """Return a chunk with copies of those steps, at the start of an episode."""
    rewards = np.array(casting.as_array("rewards", rewards))
    if not validation.leading_length("rewards", rewards):
        raise errors.ArgumentError("an episode must have at least 1 step, got 0")
    seen, actions = _copied("observations", observations), _copied("actions", actions)
    return chunks.ColumnChunk(episode, 0, seen, actions, rewards, _copied("extras", extras), end)


def _copied(name: str, tree: Any) -> Any:
    """Return a tree with copies of all leaves, as arrays."""
    if isinstance(tree, Mapping):
        return {key: _copied(f"{name}/{key}", child) for key, child in tree.items()}
    return np.array(casting.as_array(name, tree))


def _leaves(name: str, tree: Any) -> Leaves:
    return trees.flat(name, _copied(name, tree))


def _are_equal(first: Leaves, second: Leaves) -> bool:
    """Return whether all leaves are equal; NaNs are equal."""
    return first.keys() == second.keys() and all(_is_equal(leaf, second[path]) for path, leaf in first.items())


def _is_equal(first: arrays_lib.Array, second: arrays_lib.Array) -> bool:
    if first.shape != second.shape:
        return False
    if first.dtype == second.dtype and first.tobytes() == second.tobytes():
        return True
    return bool(((first == second) | ((first != first) & (second != second))).all())


def _layout(leaves: Leaves) -> dict[str, Any]:
    """Return the layout that steps must share to be stacked: shapes, and dtypes of non-numbers."""
    return {
        path: leaf.shape if leaf.dtype.kind in "biufc" else (leaf.shape, leaf.dtype.str)
        for path, leaf in leaves.items()
    }
