"""The journal records of a column buffer, and their replay.

    STEP       stream u32, flags u8 (1 terminated, 2 truncated, 4 the next observation is given); the row's blocks, and
               those of the next observation
    STEPS      their number k u32, flags u8 (4 as above); the streams i64 [k]; every column [k, ...] in the order of the
               schema, those of the next observations; terminated and truncated, a byte each [k]
    EPISODE    stream u32, flags u8 (1), its steps T u32; every column [T, ...]; the final observation's columns
    RUN        as EPISODE, flags u8 (1, 2): consecutive steps, which may continue the stream's open episode
    FIRST      the kind u8 of the record of the first step of a buffer that was made without a schema, or of the first
               step with further fields; the length of what follows u32, the fields as a PlainCodec writes them, and the
               payload of that record
    CLEAR      how many rows were evicted so far i64
    ELIGIBLE   a byte, 1 or 0, and the keys i64 [k]
    END        the stream u32, whose open episode is truncated
    PRIORITIES the keys i64 [k] and their raw priorities f64 [k]; only if the buffer is told to write them

All numbers are little endian; columns have the dtypes of the schema. Each record is written before its change is
applied.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import struct

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays
from relive.kernels import append
from relive.persistence import codec
from relive.persistence import dtypes
from relive.persistence import journal as journal_lib
from relive.persistence import settings
from relive.samplers import prioritized
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import steps as steps_lib

STEP, STEPS, EPISODE, FIRST, CLEAR, ELIGIBLE, END, RUN, PRIORITIES = range(1, 10)
_OF_STEPS = (STEP, STEPS, EPISODE, RUN)
_TERMINATED, _TRUNCATED, _HAS_NEXT = 1, 2, 4
_STEP = struct.Struct("<IB")
_RUN = struct.Struct("<IBI")
_FIRST = struct.Struct("<BI")


class ColumnJournal:
    """Writes the changes of a buffer to a journal, before they are applied."""

    def __init__(
        self,
        journal: journal_lib.Journal,
        store: steps_lib.StepStore,
        begun: Sequence[tuple[int, int]],
        *,
        priorities: bool = False,
    ) -> None:
        self._journal, self._store, self._writes_priorities = journal, store, priorities
        self._syncs = True
        # For each segment after the oldest: its first record, and the key of the first row not in an earlier segment.
        self._begun = list(begun)

    def begin(self, base: Callable[[], bytes]) -> None:
        """Prepare the journal; `base` returns the contents that its next segment begins with."""

        def based() -> bytes:
            payload = base()
            self._begun.append((self._journal.num_records, self._store.next_key))
            return payload

        self._journal.begin(based)

    def write(self, steps: encoding.Steps) -> None:
        """Journal steps that are about to be stored."""
        streams, next_rows = steps.streams, steps.next_rows
        if type(streams) is tuple:
            flags = steps.events[0] if next_rows is None else steps.events[0] | _HAS_NEXT
            self._write(STEP, [_STEP.pack(streams[0], flags), *steps.rows, *(next_rows or ())], steps)
            return
        count, columns = len(streams), self._columns(steps)
        if steps.is_run:
            event = int(steps.events[-1])
            head = _RUN.pack(int(streams[0]), event & (_TERMINATED | _TRUNCATED), count)
            if steps.events[0] & encoding.CUT:
                self._write(EPISODE, [_RUN.pack(int(streams[0]), event & _TERMINATED, count), *columns], steps)
            else:
                self._write(RUN, [head, *columns], steps)
            return
        head = _STEP.pack(count, 0 if next_rows is None else _HAS_NEXT)
        flags = [(np.bitwise_and(steps.events, bit) > 0).tobytes() for bit in (_TERMINATED, _TRUNCATED)]
        self._write(STEPS, [head, _little(np.asarray(streams)), *columns, *flags], steps)

    @staticmethod
    def _columns(steps: encoding.Steps) -> list[bytes]:
        """Return the bytes of every column of the steps, and of the observations after them."""
        encoder, count = steps.encoder, len(steps.streams)
        columns = encoder.columns(steps.rows, count)
        parts = [columns[path].tobytes() for path in encoder.schema.fields]
        if steps.next_rows is not None:
            count = 1 if steps.is_run else count
            columns = encoder.columns(steps.next_rows, count, encoder.observation_blocks)
            parts += [columns[path].tobytes() for path in encoder.schema.observation_paths]
        return parts

    @contextlib.contextmanager
    def syncing_later(self) -> Iterator[None]:
        """Defer syncing to `synced`, within a `with` block."""
        self._syncs = False
        try:
            yield
        finally:
            self._syncs = True

    async def synced(self) -> None:
        """Wait until everything written is on disk, if the policy requires it."""
        if self._journal.is_due:
            await self._journal.synced()

    def _append(self, kind: int, payload: bytes) -> None:
        self._journal.append(kind, payload, sync=self._syncs)

    def clear(self) -> None:
        """Journal that every row is removed."""
        self._append(CLEAR, _little(np.array([self._store.num_evicted])))

    def end_episode(self, stream: int) -> None:
        """Journal that the open episode of a stream is truncated."""
        self._append(END, stream.to_bytes(4, "little"))

    def set_eligible(self, keys: arrays.Ints, eligible: bool) -> None:
        """Journal a call of `set_eligible`."""
        self._append(ELIGIBLE, bytes([eligible]) + _little(keys))

    def set_priorities(
        self, keys: arrays.Ints, priorities: arrays.Floats, sampler: prioritized.PrioritizedSampler
    ) -> None:
        """Journal new priorities, if priorities are journaled."""
        if self._writes_priorities:
            sampler.check_priorities(priorities)
            self._append(PRIORITIES, _little(keys) + priorities.astype("<f8", copy=False).tobytes())

    def _write(self, kind: int, parts: Sequence[bytes], steps: encoding.Steps) -> None:
        """Write a record of steps; with their schema, if it is the first."""
        if self._begun:
            self._prune()
        payload = b"".join(parts)
        if steps.encoder is not self._store.encoder:
            fields = codec.PlainCodec().encode(settings.encoded(steps.encoder.schema))
            # In one record: with two, the disk could fill up after the first.
            kind, payload = FIRST, b"".join([_FIRST.pack(kind, len(fields)), fields, payload])
        self._append(kind, payload)

    def _prune(self) -> None:
        """Delete segments of which no row is left.

        It runs before the call that may fail, and the records that evicted the rows are on disk first.
        """
        oldest_key = self._store.oldest_key
        while self._begun and self._begun[0][1] <= oldest_key:
            self._journal.sync()
            self._journal.prune(self._begun[0][0])
            del self._begun[0]


class Replay:
    """Replays the records of a journal.

    Args:
        store: The steps of the buffer.
        begin: Allocates its columns, given their schema.
        append_steps: Writes steps to it.
        end_episode: Truncates the episode that is open in a stream.
        forget: Removes every row.
        bar: Sets whether slots are barred.
        set_priorities: Sets the priorities of steps with some keys.
    """

    def __init__(
        self,
        store: steps_lib.StepStore,
        begin: Callable[[schema_lib.Schema], None],
        append_steps: Callable[[encoding.Steps], int],
        end_episode: Callable[[int], None],
        forget: Callable[[], None],
        bar: Callable[[arrays.Ints, bool], None],
        set_priorities: Callable[[arrays.Ints, arrays.Floats], None],
    ) -> None:
        self._store, self._begin, self._append, self._end_episode = store, begin, append_steps, end_episode
        self._forget, self._bar, self._set_priorities = forget, bar, set_priorities
        self._has_picky_fields: bool | None = None
        self.begun: list[tuple[int, int]] = []
        """The first record of each segment, and the key of the first row that is in none before it."""

    def base(self, number: int) -> None:
        """Record that a segment begins with the record of that number."""
        self.begun.append((number, self._store.next_key))

    def apply(self, kind: int, payload: bytes) -> None:
        """Apply a record.

        Raises:
            CheckpointError: The record is unknown or malformed.
        """
        if kind == FIRST:
            self._first(payload)
        elif kind == CLEAR and len(payload) == 8:
            self._clear(int.from_bytes(payload, "little"))
        elif kind == ELIGIBLE and len(payload) % 8 == 1 and payload[0] <= 1:
            keys = np.frombuffer(payload, "<i8", offset=1).astype(np.int64)
            self._bar(np.unique(self._store.slots(keys[self._store.is_alive(keys)])), not payload[0])
        elif kind == PRIORITIES and len(payload) % 16 == 0:
            count = len(payload) // 16
            keys, priorities = np.frombuffer(payload, "<i8", count), np.frombuffer(payload, "<f8", offset=8 * count)
            try:
                self._set_priorities(keys.astype(np.int64), priorities.astype(np.float64))
            except errors.ArgumentError as error:
                raise errors.CheckpointError(f"sets invalid priorities: {error}") from error
        elif kind == END and len(payload) == 4:
            self._end(int.from_bytes(payload, "little"))
        elif kind in _OF_STEPS and self._store.encoder is not None:
            play = {STEP: self._step, STEPS: self._steps, EPISODE: self._episode, RUN: self._run}[kind]
            self._append(play(self._store.encoder, _Parts(payload)))
        else:
            raise errors.CheckpointError(f"is of kind {kind} with {len(payload)} bytes, which is not valid here")

    def end(self) -> None:
        """Finish the replay: there are no more records."""

    def _first(self, payload: bytes) -> None:
        part = _Parts(payload)
        kind, length = part.head(_FIRST)
        if (self._store.has_begun and not self._store.can_grow) or kind not in _OF_STEPS:
            raise errors.CheckpointError("sets the schema, which is already known")
        schema = schema_lib.Schema.from_description(codec.PlainCodec().decode(part.take(length)))
        try:
            self._begin(schema)
        except (errors.ArgumentError, MemoryError, ValueError) as error:
            raise errors.CheckpointError(f"has a schema whose rows do not fit in memory: {error}") from error
        self._has_picky_fields = None
        self.apply(kind, part.rest())

    def _clear(self, num_evicted: int) -> None:
        store = self._store
        if num_evicted > store.next_key - len(store):
            raise errors.CheckpointError(f"counts {num_evicted} rows as evicted, more than there were")
        self._forget()
        # Rows present when the segment began were counted as evicted, but were in fact cleared.
        store.num_view[append.CLEARED] = store.oldest_key - num_evicted

    def _end(self, stream: int) -> None:
        if stream >= self._store.streams or not self._store.is_open(stream):
            raise errors.CheckpointError(f"ends an episode of stream {stream}, where none is open")
        if not self._store.is_announced(stream):
            raise errors.CheckpointError(f"ends an episode of stream {stream}, whose last observation is not known")
        self._end_episode(stream)

    def _step(self, encoder: encoding.Encoder, part: "_Parts") -> encoding.Steps:
        stream, flags = part.head(_STEP)
        self._check(stream, flags)
        row = [part.take(size) for size in _sizes(encoder.schema, encoder.blocks)]
        next_row = None
        if flags & _HAS_NEXT:
            next_row = [part.take(size) for size in _sizes(encoder.schema, encoder.observation_blocks)]
        elif flags & _TRUNCATED and not flags & _TERMINATED:
            raise errors.CheckpointError("is of a truncated step without a next observation")
        part.end()
        if self._is_picky(encoder.schema):
            _check_values(encoder.schema, encoder.blocks, row)
            _check_values(encoder.schema, encoder.observation_blocks, next_row or [])
        return encoding.Steps(encoder, (stream,), (_event(flags),), row, next_row, False)

    def _steps(self, encoder: encoding.Encoder, part: "_Parts") -> encoding.Steps:
        schema, num_streams = encoder.schema, self._store.streams
        count, flags = part.head(_STEP)
        self._check(0, flags & ~_HAS_NEXT if count <= num_streams else 8)
        streams = np.frombuffer(part.take(8 * count), "<i8").astype(np.int64)
        if len(np.unique(streams)) != count or (streams < 0).any() or (streams >= num_streams).any():
            raise errors.CheckpointError("is of streams that do not exist")
        rows = encoder.rows_of(part.columns(schema, schema.fields, count), count)
        next_rows = None
        if flags & _HAS_NEXT:
            columns = part.columns(schema, schema.observation_paths, count)
            next_rows = encoder.rows_of(columns, count, encoder.observation_blocks)
        terminated, truncated = part.flags(count), part.flags(count)
        part.end()
        if next_rows is None and (truncated & ~terminated).any():
            raise errors.CheckpointError("is of a truncated step without a next observation")
        events = np.where(terminated, encoding.TERMINATED, truncated * encoding.TRUNCATED).astype(np.uint8)
        return encoding.Steps(encoder, streams, events, rows, next_rows, False)

    def _episode(self, encoder: encoding.Encoder, part: "_Parts") -> encoding.Steps:
        steps = self._run(encoder, part, most_flags=_TERMINATED)
        events = np.asarray(steps.events)
        events[0] |= encoding.CUT
        if not events[-1] & encoding.TERMINATED:
            events[-1] |= encoding.TRUNCATED
        return steps

    def _run(self, encoder: encoding.Encoder, part: "_Parts", most_flags: int = 3) -> encoding.Steps:
        schema = encoder.schema
        stream, flags, length = part.head(_RUN)
        self._check(stream, flags if 1 <= length <= self._store.capacity and flags <= most_flags else 8)
        rows = encoder.rows_of(part.columns(schema, schema.fields, length), length)
        columns = part.columns(schema, schema.observation_paths, 1)
        part.end()
        events = np.zeros(length, np.uint8)
        events[-1] = _event(flags)
        next_rows = encoder.rows_of(columns, 1, encoder.observation_blocks)
        return encoding.Steps(encoder, np.full(length, stream), events, rows, next_rows, True)

    def _is_picky(self, schema: schema_lib.Schema) -> bool:
        """Return whether some byte patterns are invalid for a field."""
        if self._has_picky_fields is None:
            self._has_picky_fields = not all(dtypes.takes_any_bytes(field.dtype) for field in schema.fields.values())
        return self._has_picky_fields

    def _check(self, stream: int, flags: int) -> None:
        if stream >= self._store.streams or flags > 7:
            raise errors.CheckpointError("is of a stream or of steps that do not exist")


def _event(flags: int) -> int:
    """Return the event of a step with those flags; termination takes precedence."""
    return encoding.TERMINATED if flags & _TERMINATED else flags & _TRUNCATED


class _Parts:
    """Reads a payload part by part."""

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
        """Return the columns of that many rows."""
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
        """Raise CheckpointError if anything is left."""
        if self._place != len(self._payload):
            raise errors.CheckpointError("has bytes after its last value")


def _sizes(schema: schema_lib.Schema, blocks: Sequence[Sequence[str]]) -> list[int]:
    """Return the bytes of each block of a row."""
    return [sum(schema.fields[path].nbytes for path in paths) for paths in blocks]


def _check_values(schema: schema_lib.Schema, blocks: Sequence[Sequence[str]], row: Sequence[bytes]) -> None:
    """Raise CheckpointError unless the bytes are valid values of those blocks."""
    for paths, values in zip(blocks, row, strict=False):
        fields = [(path, schema.fields[path].dtype, schema.fields[path].shape) for path in paths]
        dtypes.check_values(np.ndarray(1, np.dtype(fields), values))


def _little(numbers: arrays.Ints) -> bytes:
    """Return the bytes of integers, lowest first."""
    return numbers.astype("<i8", copy=False).tobytes()
