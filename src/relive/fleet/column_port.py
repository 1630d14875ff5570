"""ColumnPort: the port of a column buffer.

stream 0        whole episodes, of all writers
stream 1, 2 ..  one open episode each that arrives in several chunks
"""

from collections.abc import Hashable, Mapping
import inspect
from typing import Any, TypeAlias

from relive import errors
from relive.buffers import column as column_lib
from relive.common import trees
from relive.fleet import chunks
from relive.fleet import port
from relive.samplers import prioritized

Place: TypeAlias = tuple[Hashable, int]
"""A writer, and one of its own streams."""


class ColumnPort(port.Port):
    """The port between a shard and its column buffer.

    If more episodes are open than there are streams, the one that has waited longest for its next steps is truncated.
    """

    def __init__(self, buffer: column_lib.ColumnReplayBuffer[Any]) -> None:
        self.buffer = self._buffer = buffer
        self._signature = inspect.signature(buffer.sample)
        self._cut = 0
        self._forget_streams()

    def describe(self) -> port.Description:
        """Describe the column buffer."""
        kind, sampler = type(self._buffer).__name__, self._buffer.sampler
        if not isinstance(sampler, prioritized.PrioritizedSampler):
            return port.Description(kind=kind, has_columns=True)
        return port.Description(
            kind=kind,
            has_columns=True,
            beta=sampler.schedule,
            weight_normalization=sampler.weight_normalization,
        )

    def insert(self, writer: Hashable, chunk: chunks.ColumnChunk | chunks.ColumnEnd) -> None:
        """Store a chunk, or end an episode."""
        place = writer, chunk.stream
        if isinstance(chunk, chunks.ColumnEnd):
            self._end(place)
        elif chunk.is_whole:
            is_terminated = chunk.end == "TERMINATED"
            self._buffer.add_episode(
                chunk.observations, chunk.actions, chunk.rewards, terminated=is_terminated, stream=0, **chunk.extras
            )
        else:
            if chunk.is_start:
                self._end(place)
            stream = self._stream(place)
            try:
                self._add(stream, chunk)
            except BaseException:
                self._end(place)
                raise
            if chunk.end != "OPEN":
                self._release(place)

    def abandon(self, writer: Hashable) -> int:
        """Truncate the open episodes of a writer that is gone."""
        return sum([self._end(place) for place in list(self._streams) if place[0] == writer])

    def abandon_all(self) -> int:
        """Truncate every open episode."""
        self._forget_streams()
        return sum([self._buffer.end_episode(stream=stream) for stream in range(self._buffer.streams)])

    def learn(self, policy_version: int) -> None:
        """Raise ArgumentError: column buffers do not draw by policy version."""
        raise errors.ArgumentError(f"set_policy_version needs buffers of episodes, got {self.describe().kind}")

    def mass(self, options: Mapping[str, Any]) -> port.Mass:
        """Return the number of eligible anchors, or the sum of their weights."""
        self._signature.bind(1, **options)
        sampler, size = self._buffer.sampler, self.size
        sampler.exponent(options.get("beta"))
        if isinstance(sampler, prioritized.PrioritizedSampler):
            return port.Mass(weight=sampler.total_weight, size=size, least=sampler.least_weight, ticks=sampler.ticks)
        return port.Mass(weight=float(size), size=size)

    def draw(self, count: int, options: Mapping[str, Any], tick: int) -> Any:
        """Return a batch of `count` windows."""
        rows = self._buffer.sample(count, **options)
        sampler = self._buffer.sampler
        if isinstance(sampler, prioritized.PrioritizedSampler):
            # The sampler has counted its own draw; ticks of the fleet may arrive out of order, so the latest counts.
            sampler.ticks = max(sampler.ticks - 1, tick + 1)
        return rows

    @property
    def size(self) -> int:
        """Number of eligible anchors."""
        return self._buffer.num_eligible

    @property
    def cut(self) -> int:
        """Number of open episodes truncated because another one needed their stream."""
        return self._cut

    def _add(self, stream: int, chunk: chunks.ColumnChunk) -> None:
        last = chunk.rows - 1
        for t in range(chunk.rows):
            self._buffer.add(
                trees.rows(chunk.observations, t),
                trees.rows(chunk.actions, t),
                chunk.rewards[t],
                trees.rows(chunk.observations, t + 1),
                terminated=t == last and chunk.end == "TERMINATED",
                truncated=t == last and chunk.end == "TRUNCATED",
                stream=stream,
                **{name: trees.rows(column, t) for name, column in chunk.extras.items()},
            )

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
