"""ColumnAdapter: the adapter of a column buffer.

stream 0        whole episodes, of all writers
stream 1, 2 ..  one open episode each that arrives in several chunks
"""

from collections.abc import Hashable, Mapping
import dataclasses
import inspect
from typing import Any, TypeAlias

from relive import errors
from relive.buffers import column as column_lib
from relive.common import trees
from relive.fleet import adapter
from relive.fleet import chunks
from relive.joint import buffer as joint_buffer
from relive.samplers import prioritized
from relive.samplers import uniform

Place: TypeAlias = tuple[Hashable, int]
"""A writer, and one of its own streams."""


class ColumnAdapter(adapter.Adapter):
    """The adapter between a shard and its column buffer.

    If more episodes are open than there are streams, the one that has waited longest for its next steps is truncated.
    """

    def __init__(self, buffer: column_lib.ColumnReplayBuffer[Any]) -> None:
        self.buffer = self._buffer = buffer
        self._signature = inspect.signature(buffer.sample)
        self._cut = 0
        self._forget_streams()

    def describe(self) -> adapter.Description:
        """Describe the column buffer."""
        sampler = self._buffer.sampler
        is_used_up = self._buffer._draws.max_times_sampled is not None
        described = adapter.Description(
            kind=type(self._buffer).__name__,
            writer="joint_writer" if isinstance(self._buffer, joint_buffer.JointColumnBuffer) else "writer",
            has_columns=True,
            is_independent=type(sampler) is uniform.UniformSampler and not is_used_up,
            is_used_up=is_used_up,
        )
        if not isinstance(sampler, prioritized.PrioritizedSampler):
            return described
        is_stratified = sampler.settings()["stratified"]
        return dataclasses.replace(
            described,
            beta=sampler.schedule,
            weight_normalization=sampler.weight_normalization,
            is_stratified=is_stratified,
            is_independent=type(sampler) is prioritized.PrioritizedSampler and not is_stratified and not is_used_up,
        )

    def insert(self, writer: Hashable, chunk: chunks.ColumnChunk | chunks.JointChunk | chunks.ColumnEnd) -> None:
        """Store a chunk, or end an episode."""
        place = writer, chunk.stream
        if isinstance(chunk, chunks.ColumnEnd):
            self._end(place)
        elif chunk.is_whole and isinstance(chunk, chunks.JointChunk):
            try:
                self._add(0, chunk, 0, chunk.rows)
            finally:
                self._buffer.end_episode(stream=0)
        elif chunk.is_whole:
            assert isinstance(chunk, chunks.ColumnChunk)
            is_terminated = chunk.end == "TERMINATED"
            self._buffer.add_episode(
                chunk.observations, chunk.actions, chunk.rewards, terminated=is_terminated, stream=0, **chunk.extras
            )
        else:
            if chunk.is_start:
                self._end(place)
            stream = self._stream(place)
            try:
                self._add(stream, chunk, 0, chunk.rows)
            except BaseException:
                self._end(place)
                raise
            if chunk.end != "OPEN":
                self._end(place)

    def abandon(self, writer: Hashable) -> int:
        """Truncate the open episodes of a writer that is gone."""
        return sum([self._end(place) for place in list(self._streams) if place[0] == writer])

    def abandon_all(self) -> int:
        """Truncate every open episode."""
        self._forget_streams()
        return sum([self._buffer.end_episode(stream=stream) for stream in range(self._buffer.streams)])

    def set_policy_version(self, version: int) -> None:
        """Raise ArgumentError: column buffers do not draw by policy version."""
        raise errors.ArgumentError(f"set_policy_version needs buffers of episodes, got {self.describe().kind}")

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise TypeError for an unknown option, and ArgumentError for an invalid beta."""
        self._signature.bind(1, **options)
        self._buffer.sampler.exponent(options.get("beta"))

    def weight(self, options: Mapping[str, Any]) -> adapter.SamplingWeight:
        """Return the number of eligible anchors, or the sum of their weights."""
        sampler, size = self._buffer.sampler, self.size
        if isinstance(sampler, prioritized.PrioritizedSampler):
            # To find it takes a look at every weight.
            least = sampler.least_weight if sampler.weight_normalization == "buffer" else 1.0
            return adapter.SamplingWeight(weight=sampler.total_weight, size=size, least=least, ticks=sampler.ticks)
        return adapter.SamplingWeight(weight=float(size), size=size)

    def draw(self, count: int, options: Mapping[str, Any]) -> Any:
        """Return a batch of `count` windows."""
        return self._buffer.sample(count, **options)

    def set_ticks(self, ticks: int) -> None:
        """Set how many draws a schedule of beta has counted."""
        if isinstance(self._buffer.sampler, prioritized.PrioritizedSampler):
            self._buffer.sampler.ticks = ticks

    @property
    def size(self) -> int:
        """Number of eligible anchors."""
        return self._buffer.num_eligible

    @property
    def cut(self) -> int:
        """Number of open episodes truncated because another one needed their stream."""
        return self._cut

    def _add(self, stream: int, chunk: chunks.ColumnChunk | chunks.JointChunk, start: int, stop: int) -> None:
        """Add the steps of a chunk from `start` to `stop`; if they are refused, those before the first wrong one."""
        if isinstance(chunk, chunks.JointChunk):
            for step in chunk.steps:
                self._buffer.add(**step, stream=stream)
            return
        steps, is_last = slice(start, stop), stop == chunk.rows
        try:
            self._buffer.add_steps(
                trees.rows(chunk.observations, slice(start, stop + 1)),
                trees.rows(chunk.actions, steps),
                chunk.rewards[steps],
                terminated=is_last and chunk.end == "TERMINATED",
                truncated=is_last and chunk.end == "TRUNCATED",
                stream=stream,
                **{name: trees.rows(column, steps) for name, column in chunk.extras.items()},
            )
        except Exception:
            if stop - start == 1:
                raise
            middle = (start + stop) // 2
            self._add(stream, chunk, start, middle)
            self._add(stream, chunk, middle, stop)

    def _stream(self, place: Place) -> int:
        """Return the buffer's stream for a writer's stream, and mark it as most recently used."""
        stream = self._streams.pop(place, None)
        if stream is None:
            if not self._free:
                self._make_room()
            stream = self._free.pop()
        self._streams[place] = stream
        return stream

    def _make_room(self) -> None:
        if not self._streams:
            raise errors.ArgumentError(
                f"make_buffer must return a buffer of at least 2 streams, got {self._buffer.streams}: one for whole "
                "episodes, and one for each that comes in several chunks"
            )
        self._end(next(iter(self._streams)))
        self._cut += 1

    def _end(self, place: Place) -> bool:
        """End the open episode of a writer's stream, if any."""
        if place not in self._streams:
            return False
        was_open = self._buffer.end_episode(stream=self._streams[place])
        self._release(place)
        return was_open

    def _release(self, place: Place) -> None:
        self._free.append(self._streams.pop(place))

    def _forget_streams(self) -> None:
        self._free = list(range(self._buffer.streams - 1, 0, -1))
        self._streams: dict[Place, int] = {}
