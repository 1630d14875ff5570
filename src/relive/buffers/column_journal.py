"""What a buffer of columns writes to a journal, and how that is played back.

    STEP       stream u32, flags u8 (1 terminated, 2 truncated, 4 the next observation is there); the row's blocks, and
               those of the next observation
    STEPS      their number k u32, flags u8 (4 as above); the streams i64 [k]; every column [k, ...] in the order of the
               schema, those of the next observations; terminated and truncated, a byte each [k]
    EPISODE    stream u32, flags u8 (1), its steps T u32; every column [T, ...]; the final observation's columns
    FIRST      the kind u8 of the record of the first step of a buffer that was made without a schema, the length of
               what follows u32, the fields as a PlainCodec writes them, and the payload of that record
    CLEAR      how many rows were evicted so far i64
    ELIGIBLE   a byte, 1 or 0, and the keys i64 [k]
    END        the stream u32, whose open episode is truncated

All numbers are little endian; columns are as the schema has them. Each is written before what it tells of happens.
"""

from collections.abc import Callable, Iterable, Sequence
import struct

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.buffers import writer as writer_lib
from relive.common import arrays
from relive.kernels import history as history_lib
from relive.persistence import codec
from relive.persistence import dtypes
from relive.persistence import journal as journal_lib
from relive.persistence import settings
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import memory

STEP, STEPS, EPISODE, FIRST, CLEAR, ELIGIBLE, END = range(1, 8)
_TERMINATED, _TRUNCATED, _HAS_NEXT = 1, 2, 4
_STEP = struct.Struct("<IB")
_EPISODE = struct.Struct("<IBI")
_FIRST = struct.Struct("<BI")


class ColumnJournal:
    """Writes to a journal what happens to a buffer, just before it does."""

    def __init__(
        self, journal: journal_lib.Journal, history: history_lib.StepStore, begun: Sequence[tuple[int, int]]
    ) -> None:
        self._journal, self._history = journal, history
        self._append = journal.append
        # The first record of each segment behind the oldest, and the key of the first row that is in none before it.
        self._begun = list(begun)

    def begin(self, base: Callable[[], bytes]) -> None:
        """Make the journal ready; `base` returns what its next segment begins with."""

        def based() -> bytes:
            payload = base()
            self._begun.append((self._journal.num_records, self._history.timeline.next_key))
            return payload

        self._journal.begin(based)

    def add(self, step: encoding.OneStep) -> None:
        """Write what `Writer.add` will do."""
        schema, stream, row, next_row, terminated, truncated = step
        flags = terminated | truncated << 1
        if next_row is None:
            payload = b"".join([_STEP.pack(stream, flags), *row])
        else:
            payload = b"".join([_STEP.pack(stream, flags | _HAS_NEXT), *row, *next_row])
        if self._begun or not self._history.has_begun:
            self._write(STEP, payload, schema)
        else:
            self._append(STEP, payload)

    def extend(self, steps: encoding.Steps) -> None:
        """Write what `Writer.extend` will do."""
        next_rows = steps.next_rows
        parts = [
            _STEP.pack(len(steps.streams), 0 if next_rows is None else _HAS_NEXT),
            _little(steps.streams),
            *(steps.rows[path].tobytes() for path in steps.schema.fields),
        ]
        if next_rows is not None:
            parts += [next_rows[path].tobytes() for path in steps.schema.observation_paths]
        payload = b"".join([*parts, steps.terminated.tobytes(), steps.truncated.tobytes()])
        self._write(STEPS, payload, steps.schema)

    def add_episode(self, episode: encoding.WholeEpisode) -> None:
        """Write what `Writer.add_episode` will do."""
        length = len(episode.rows["reward"])
        columns = [episode.rows[path].tobytes() for path in episode.schema.fields]
        columns += [episode.last_rows[path].tobytes() for path in episode.schema.observation_paths]
        head = _EPISODE.pack(episode.stream, int(episode.is_terminated), length)
        self._write(EPISODE, b"".join([head, *columns]), episode.schema)

    def clear(self) -> None:
        """Write that every row goes."""
        self._append(CLEAR, _little(np.array([self._history.timeline.num_evicted])))

    def end_episode(self, stream: int) -> None:
        """Write what `Writer.end_episode` will do."""
        self._append(END, stream.to_bytes(4, "little"))

    def set_eligible(self, keys: arrays.Ints, eligible: bool) -> None:
        """Write that a user says whether the anchors with those keys may be drawn."""
        self._append(ELIGIBLE, bytes([eligible]) + _little(keys))

    def _write(self, kind: int, payload: bytes, schema: schema_lib.Schema) -> None:
        """Write a record of steps; with their schema, if it is not known before."""
        self._prune()
        if not self._history.has_begun:
            memory.ColumnStorage(schema, self._history.timeline.capacity)  # What has no room is not written.
            fields = codec.PlainCodec().encode(settings.encoded(schema))
            # In one record: of two, the disk may have had room for one.
            kind, payload = FIRST, b"".join([_FIRST.pack(kind, len(fields)), fields, payload])
        self._append(kind, payload)

    def _prune(self) -> None:
        """Let go of segments that no row is left of.

        It comes before what may fail, not after what was written; and what evicted their rows is on the disk first.
        """
        oldest_key = self._history.timeline.oldest_key
        while self._begun and self._begun[0][1] <= oldest_key:
            self._journal.sync()
            self._journal.prune(self._begun[0][0])
            del self._begun[0]


class Replay:
    """Plays back what a journal holds.

    Args:
        history: The steps of the buffer.
        writer: Writes to it.
        forget: Takes every row away.
        bar: Says of slots whether they are barred.
    """

    def __init__(
        self,
        history: history_lib.StepStore,
        writer: writer_lib.Writer,
        forget: Callable[[], None],
        bar: Callable[[arrays.Ints, bool], None],
    ) -> None:
        self._history, self._writer, self._forget, self._bar = history, writer, forget, bar
        self._has_picky_fields: bool | None = None
        self.begun: list[tuple[int, int]] = []
        """The first record of each segment, and the key of the first row that is in none before it."""

    def base(self, number: int) -> None:
        """Record that a segment begins with the record of that number."""
        self.begun.append((number, self._history.timeline.next_key))

    def apply(self, kind: int, payload: bytes) -> None:
        """Do what a record tells of.

        Raises:
            CheckpointError: There is no such record.
        """
        if kind == FIRST:
            self._first(payload)
        elif kind == CLEAR and len(payload) == 8:
            self._clear(int.from_bytes(payload, "little"))
        elif kind == ELIGIBLE and len(payload) % 8 == 1 and payload[0] <= 1:
            timeline, keys = self._history.timeline, np.frombuffer(payload, "<i8", offset=1).astype(np.int64)
            self._bar(np.unique(timeline.slots(keys[timeline.is_alive(keys)])), not payload[0])
        elif kind == END and len(payload) == 4:
            self._end(int.from_bytes(payload, "little"))
        elif kind in (STEP, STEPS, EPISODE) and self._history.rows is not None:
            play = {STEP: self._step, STEPS: self._steps, EPISODE: self._episode}[kind]
            play(self._history.rows, payload)
        else:
            raise errors.CheckpointError(f"is of kind {kind} with {len(payload)} bytes, which cannot be here")

    def end(self) -> None:
        """Record that there is no more."""

    def _first(self, payload: bytes) -> None:
        part = _Parts(payload)
        kind, length = part.head(_FIRST)
        if self._history.has_begun or kind not in (STEP, STEPS, EPISODE):
            raise errors.CheckpointError("says what a step holds, and cannot be here")
        schema = schema_lib.Schema.from_description(codec.PlainCodec().decode(part.take(length)))
        try:
            columns = memory.ColumnStorage(schema, self._history.timeline.capacity)
        except (errors.ArgumentError, MemoryError, ValueError) as error:
            raise errors.CheckpointError(f"says that a step holds what does not fit in memory: {error}") from error
        self._history.begin(columns)
        self.apply(kind, part.rest())

    def _clear(self, num_evicted: int) -> None:
        timeline = self._history.timeline
        if num_evicted > timeline.next_key - len(timeline):
            raise errors.CheckpointError(f"says that {num_evicted} rows were evicted, which were not there")
        self._forget()
        # What was there when the segment began counts as evicted, and was cleared in truth.
        timeline.num_evicted = num_evicted

    def _end(self, stream: int) -> None:
        timeline = self._history.timeline
        if stream >= timeline.streams or timeline.open_handles(np.array([stream]))[0] < 0:
            raise errors.CheckpointError(f"ends an episode of stream {stream}, where none is open")
        if not timeline.are_announced(np.array([stream]))[0]:
            raise errors.CheckpointError(f"ends an episode of stream {stream}, whose last observation is not known")
        self._writer.end_episode(stream)

    def _step(self, rows: encoding.RowBytes, payload: bytes) -> None:
        part = _Parts(payload)
        stream, flags = part.head(_STEP)
        self._check(stream, flags)
        row = [part.take(size) for size in _sizes(rows.schema, rows.blocks)]
        next_row = None
        if flags & _HAS_NEXT:
            next_row = [part.take(size) for size in _sizes(rows.schema, rows.observation_blocks)]
        elif flags & _TRUNCATED and not flags & _TERMINATED:
            raise errors.CheckpointError("is of a truncated step without a next observation")
        part.end()
        if self._is_picky(rows.schema):
            _check_values(rows.schema, rows.blocks, row)
            _check_values(rows.schema, rows.observation_blocks, next_row or [])
        terminated, truncated = bool(flags & _TERMINATED), bool(flags & _TRUNCATED)
        self._writer.add((rows.schema, stream, row, next_row, terminated, truncated))

    def _steps(self, rows: encoding.RowBytes, payload: bytes) -> None:
        part, schema, num_streams = _Parts(payload), rows.schema, self._history.timeline.streams
        count, flags = part.head(_STEP)
        self._check(0, flags & ~_HAS_NEXT if count <= num_streams else 8)
        streams = np.frombuffer(part.take(8 * count), "<i8").astype(np.int64)
        if len(np.unique(streams)) != count or (streams < 0).any() or (streams >= num_streams).any():
            raise errors.CheckpointError("is of streams that there are not")
        columns = part.columns(schema, schema.fields, count)
        next_columns = part.columns(schema, schema.observation_paths, count) if flags & _HAS_NEXT else None
        terminated, truncated = part.flags(count), part.flags(count)
        part.end()
        if next_columns is None and (truncated & ~terminated).any():
            raise errors.CheckpointError("is of a truncated step without a next observation")
        self._writer.extend(encoding.Steps(schema, streams, columns, next_columns, terminated, truncated))

    def _episode(self, rows: encoding.RowBytes, payload: bytes) -> None:
        part, schema = _Parts(payload), rows.schema
        stream, flags, length = part.head(_EPISODE)
        self._check(stream, flags & ~_TERMINATED if 1 <= length <= self._history.timeline.capacity else 8)
        columns = part.columns(schema, schema.fields, length)
        last = part.columns(schema, schema.observation_paths, 1)
        part.end()
        self._writer.add_episode(encoding.WholeEpisode(schema, stream, columns, last, bool(flags & _TERMINATED)))

    def _is_picky(self, schema: schema_lib.Schema) -> bool:
        """Return whether not all bytes are values of each field."""
        if self._has_picky_fields is None:
            self._has_picky_fields = not all(dtypes.takes_any_bytes(field.dtype) for field in schema.fields.values())
        return self._has_picky_fields

    def _check(self, stream: int, flags: int) -> None:
        if stream >= self._history.timeline.streams or flags > 7:
            raise errors.CheckpointError("is of a stream or of steps that there are not")


class _Parts:
    """The parts of a payload, one after the other."""

    def __init__(self, payload: bytes) -> None:
        self._payload, self._place = payload, 0

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        start, self._place = self._place, self._place + size
        if self._place > len(self._payload):
            raise errors.CheckpointError("ends in the middle of a value")
        return self._payload[start : self._place]

    def head(self, form: struct.Struct) -> tuple[int, ...]:
        """Return the next numbers."""
        return form.unpack(self.take(form.size))

    def flags(self, count: int) -> npt.NDArray[np.bool_]:
        """Return that many bools."""
        content = self.take(count)
        if content.translate(None, b"\0\1"):
            raise errors.CheckpointError("holds a bool that is neither 0 nor 1")
        return np.frombuffer(content, np.bool_)

    def columns(self, schema: schema_lib.Schema, paths: Iterable[str], count: int) -> dict[str, arrays.Array]:
        """Return the columns of so many rows."""
        columns: dict[str, arrays.Array] = {}
        for path in paths:
            field = schema.fields[path]
            columns[path] = np.ndarray((count, *field.shape), field.dtype, self.take(count * field.nbytes))
            dtypes.check_values(columns[path])
        return columns

    def rest(self) -> bytes:
        """Return all that is left."""
        return self._payload[self._place :]

    def end(self) -> None:
        """Raise CheckpointError if there is more."""
        if self._place != len(self._payload):
            raise errors.CheckpointError("has bytes behind its last value")


def _sizes(schema: schema_lib.Schema, blocks: Sequence[Sequence[str]]) -> list[int]:
    """Return the bytes of each block of a row."""
    return [sum(schema.fields[path].nbytes for path in paths) for paths in blocks]


def _check_values(schema: schema_lib.Schema, blocks: Sequence[Sequence[str]], row: Sequence[bytes]) -> None:
    """Raise CheckpointError unless the bytes of those blocks are values."""
    for paths, values in zip(blocks, row, strict=False):
        fields = [(path, schema.fields[path].dtype, schema.fields[path].shape) for path in paths]
        dtypes.check_values(np.ndarray(1, np.dtype(fields), values))


def _little(numbers: arrays.Ints) -> bytes:
    """Return the bytes of integers, lowest first."""
    return numbers.astype("<i8", copy=False).tobytes()
