"""The journal records of a column buffer, and their replay; `docs/format.md` has their layouts.

    STEPS, FIRST    steps; the first of a buffer without a schema, and the first with further fields, with the schema
    CLEAR           every row is removed
    ELIGIBLE        a call of `set_eligible`
    END             the open episode of a stream is truncated
    PRIORITIES      new priorities; only if the buffer is told to write them

A record is written once its change was made; if it cannot be written, the change is taken back.
"""

from collections.abc import Iterable, Sequence
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.persistence import codec
from relive.persistence import dtypes
from relive.persistence import journal as journal_lib
from relive.persistence import settings
from relive.samplers import prioritized
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import steps as steps_lib

if TYPE_CHECKING:
    from relive.buffers import column

STEPS, FIRST, CLEAR, ELIGIBLE, END, PRIORITIES = range(1, 7)
_IS_RUN, _HAS_NEXT = 1, 2
_STEPS = struct.Struct("<IB")


class ColumnJournal(journal_lib.Bound):
    """Writes the changes of a buffer to a journal: `prepare` comes before a change, its record after it."""

    def __init__(
        self,
        journal: journal_lib.Journal,
        store: steps_lib.StepStore,
        begun: Sequence[tuple[int, int]],
        *,
        priorities: bool = False,
    ) -> None:
        super().__init__(journal, begun)
        self._store, self._writes_priorities = store, priorities
        self._schema = store.schema if store.has_begun else None

    def write(self, steps: encoding.Steps) -> None:
        """Journal steps that are stored; with their schema, if it is new."""
        self.write_record(*self._record(steps, self._schema))
        self._schema = steps.schema

    def write_all(self, episodes: Iterable[encoding.Steps]) -> None:
        """Journal the steps of several episodes that are stored, a record each, within one: all are valid, or none."""
        records, schema = [], self._schema
        for steps in episodes:
            records.append(self._record(steps, schema))
            schema = steps.schema
        self.write_together(records)
        self._schema = schema

    def _record(self, steps: encoding.Steps, schema: schema_lib.Schema | None) -> tuple[int, bytes]:
        """Return the kind and the payload of the record of some steps, after a record with that schema."""
        encoder, streams, events, rows, next_rows, is_run = steps
        streams = streams[:1] if is_run else streams
        flags = is_run * _IS_RUN | (next_rows is not None) * _HAS_NEXT
        head = _STEPS.pack(len(events), flags), np.asarray(streams, "<u4").tobytes(), events
        payload = b"".join([*head, *rows, *(next_rows or ())])
        if encoder.schema is schema:
            return STEPS, payload
        fields = codec.PlainCodec().encode(settings.encoded(encoder.schema))
        # In one record: with two, the disk could fill up after the first.
        return FIRST, len(fields).to_bytes(4, "little") + fields + payload

    def clear(self) -> None:
        """Journal that every row is removed."""
        self.write_record(CLEAR, _little(np.array([self._store.num_evicted])))

    def end_episode(self, stream: int) -> None:
        """Journal that the open episode of a stream is truncated."""
        self.write_record(END, stream.to_bytes(4, "little"))

    def set_eligible(self, keys: arrays_lib.Ints, eligible: bool) -> None:
        """Journal a call of `set_eligible`."""
        self.write_record(ELIGIBLE, bytes([eligible]) + _little(keys))

    def set_priorities(self, keys: arrays_lib.Ints, priorities: arrays_lib.Floats) -> None:
        """Journal new priorities, if priorities are journaled."""
        if self._writes_priorities:
            self.write_record(PRIORITIES, _little(keys) + priorities.astype("<f8", copy=False).tobytes())

    def _newest(self) -> int:
        return self._store.next_key

    def _is_gone(self, newest: int) -> bool:
        return newest <= self._store.oldest_key


class Replay:
    """Replays the records of a journal into a buffer.

    Args:
        buffer: The buffer.
        can_grow: Whether fields may be added once rows are stored.
    """

    def __init__(self, buffer: "column.ColumnReplayBuffer[Any]", *, can_grow: bool = False) -> None:
        self._buffer, self._store, self._can_grow = buffer, buffer._store, can_grow
        self.begun: list[tuple[int, int]] = []
        """The first record of each segment, and the key of the first row that is in none before it."""

    def base(self, number: int) -> None:
        """Record that a segment begins with the record of that number."""
        self.begun.append((number, self._store.next_key))

    def apply(self, kind: int, payload: bytes) -> None:
        """Apply a record, or raise CheckpointError if it is unknown or malformed."""
        if kind == FIRST:
            self._first(payload)
        elif kind == STEPS and self._store.encoder is not None:
            self._buffer._replay_steps(self._steps(self._store.encoder, _Parts(payload)))
        elif kind == CLEAR and len(payload) == 8:
            self._clear(int.from_bytes(payload, "little"))
        elif kind == ELIGIBLE and len(payload) % 8 == 1 and payload[0] <= 1:
            slots, _ = self._store.lookup(np.frombuffer(payload, "<i8", offset=1).astype(np.int64))
            self._buffer._draws.set_barred(slots, not payload[0])
        elif kind == PRIORITIES and len(payload) % 16 == 0:
            try:
                self._set_priorities(payload, len(payload) // 16)
            except errors.ArgumentError as error:
                raise errors.CheckpointError(f"sets invalid priorities: {error}") from error
        elif kind == END and len(payload) == 4:
            self._end(int.from_bytes(payload, "little"))
        else:
            raise errors.CheckpointError(f"is of kind {kind} with {len(payload)} bytes, which is not valid here")

    def end(self) -> None:
        """Finish the replay: there are no more records."""

    def _first(self, payload: bytes) -> None:
        if self._store.has_begun and not self._can_grow:
            raise errors.CheckpointError("sets the schema, which is already known")
        part = _Parts(payload)
        fields = part.take(int.from_bytes(part.take(4), "little"))
        try:
            self._buffer._begin(settings.schema_of(codec.PlainCodec().decode(fields)))
        except (errors.ArgumentError, MemoryError, ValueError) as error:
            raise errors.CheckpointError(f"has a schema whose rows do not fit in memory: {error}") from error
        self.apply(STEPS, part.rest())

    def _clear(self, num_evicted: int) -> None:
        store = self._store
        if num_evicted > store.next_key - len(store):
            raise errors.CheckpointError(f"counts {num_evicted} rows as evicted, more than there were")
        self._buffer._forget()
        # Rows present when the segment began were counted as evicted, but were in fact cleared.
        store.set_num_evicted(num_evicted)

    def _end(self, stream: int) -> None:
        if stream >= self._store.streams or not self._store.is_open(stream):
            raise errors.CheckpointError(f"ends an episode of stream {stream}, where none is open")
        self._buffer._end_episode(stream)

    def _set_priorities(self, payload: bytes, count: int) -> None:
        """Set priorities [count]; all their rows were stored when they were written."""
        sampler = prioritized.required(self._buffer.sampler, "a journal of priorities")
        keys = np.frombuffer(payload, "<i8", count).astype(np.int64)
        priorities = validation.non_negative_floats("priority", np.frombuffer(payload, "<f8", offset=8 * count), count)
        slots, alive = self._store.lookup(keys)
        sampler._set_priorities(slots, priorities[alive])
        sampler._note_priority(max(dict(zip(keys.tolist(), priorities.tolist(), strict=True)).values(), default=0.0))

    def _steps(self, encoder: encoding.Encoder, part: "_Parts") -> encoding.Steps:
        fields, store = encoder.schema.fields, self._store
        count, flags = _STEPS.unpack(part.take(_STEPS.size))
        is_run = bool(flags & _IS_RUN)
        if not 1 <= count <= (store.capacity if is_run else store.streams) or flags > _IS_RUN | _HAS_NEXT:
            raise errors.CheckpointError("is of steps that do not exist")
        num_streams, num_next = (1, 1) if is_run else (count, count)
        streams = np.frombuffer(part.take(4 * num_streams), "<u4").astype(np.int64)
        if len(np.unique(streams)) < num_streams or streams.max() >= store.streams:
            raise errors.CheckpointError("is of streams that do not exist")
        events = part.take(count)
        rows = [part.values(field, count) for field in fields.values()]
        next_rows = None
        if flags & _HAS_NEXT:
            next_rows = [part.values(fields[path], num_next) for path in encoder.observation_paths]
        part.end()
        cut, end = 0, max(events)
        if is_run:
            cut, end = events[0] & encoding.CUT, events[-1] & ~encoding.CUT
        if end > encoding.TRUNCATED or (is_run and events != encoding.events_of_run(count, cut, end)):
            raise errors.CheckpointError("is of episodes that cannot end as it says")
        if not is_run and next_rows is None and encoding.TRUNCATED in events:
            raise errors.CheckpointError("is of a truncated step without a next observation")
        if is_run:
            return encoding.Steps(encoder, streams.repeat(count), events, rows, next_rows, True)
        if count == 1:
            return encoding.Steps(encoder, (streams.item(),), events, rows, next_rows, False)
        return encoding.Steps(encoder, streams, events, rows, next_rows, False)


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

    def values(self, field: schema_lib.Field, count: int) -> bytes:
        """Return the bytes of that many values of a field."""
        content = self.take(count * field.nbytes)
        if not dtypes.takes_any_bytes(field.dtype):
            dtypes.check_values(np.ndarray((count, *field.shape), field.dtype, content))
        return content

    def rest(self) -> bytes:
        """Return all that is left."""
        return self._payload[self._place :]

    def end(self) -> None:
        """Raise CheckpointError if anything is left."""
        if self._place != len(self._payload):
            raise errors.CheckpointError("has bytes after its last value")


def _little(numbers: arrays_lib.Ints) -> bytes:
    """Return the bytes of integers, lowest first."""
    return numbers.astype("<i8", copy=False).tobytes()
