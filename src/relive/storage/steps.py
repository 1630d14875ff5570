"""StepStore: the steps of a buffer, as rows in a storage, the table of them, and final observations.

    storage    o0  o1  o2  | o0  o1  o2  o3 |  o0  o1         one observation a step: any Storage
    finals               o3                o4          o2     one per episode, the one after its newest step
    table      which row follows, and of which episode it is: see StepTable

So an episode of T steps takes T + 1 observations: the next observation of a step is that of the following row, or the
final one.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
import contextlib
import functools
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.kernels import append
from relive.persistence import state as state_lib
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import finals as finals_lib
from relive.storage import foreign
from relive.storage import memory
from relive.storage import next_round
from relive.storage import next_step
from relive.storage import reader as reader_lib
from relive.storage import splices
from relive.storage import step_table
from relive.storage import steps_state

Columns: TypeAlias = dict[str, arrays_lib.Array]

_ENDS = bytes(event & append.ENDS > 0 for event in range(256))
"""Whether each event ends an episode."""
_FEW = 24
"""So many rows at most are written by the loop of CPython: `append_many` must be able to take back what it does."""
_T = TypeVar("_T")
Tell: TypeAlias = Callable[[], Callable[[], None]]
"""Tells a sampler what may be drawn now, and returns a function that takes back the first priorities of rows."""


def make_store(storage: memory.Storage | None, capacity: int, streams: int, **options: Any) -> "StepStore":
    """Return an empty store for the rows of a storage: one that the storage brings, or else a StepStore."""
    store: StepStore = getattr(storage, "_make_store", StepStore)(capacity, streams, **options)
    return store


class Journal(Protocol):
    """Receives the steps that are written to the storage."""

    def prepare(self) -> None:
        """Do what must precede a change."""

    def write(self, steps: encoding.Steps) -> None:
        """Journal steps that are stored; if it raises, they are taken back."""


class Remote(Protocol):
    """Keeps the values of a store elsewhere, as on a device; in their place rows have numbers, which say where."""

    def encode_step(self, stream: int, given: encoding.Given, terminated: Any, truncated: Any) -> encoding.Steps:
        """Return the step that the arguments of `add` describe."""
        ...

    def encode_round(
        self, streams: arrays_lib.Ints, given: encoding.Given, terminated: Any, truncated: Any
    ) -> encoding.Steps:
        """Return the steps that the arguments of `extend` describe."""
        ...

    def encode_run(self, streams: arrays_lib.Ints, events: bytes, given: encoding.Given) -> encoding.Steps:
        """Return the consecutive steps of one stream that the arguments of `add_steps` describe."""
        ...

    def read_window(self, window: Any, store: "StepStore", slots: arrays_lib.Ints, *weighted: arrays_lib.Floats) -> Any:
        """Return what `window` reads of the rows in `slots` [B], as a batch of values."""
        ...

    def refused(self, call: str) -> errors.ArgumentError:
        """Return the error for a call that takes only values in numpy."""
        ...


class StepStore(step_table.StepTable):
    """The steps of `streams` streams in a ring of `capacity` rows.

    Args:
        capacity: Maximum number of stored steps.
        streams: Number of streams.
        check_room: Raises ArgumentError if memory does not hold what is read of rows of a schema; None if it is a row.
        compared_paths: The fields of the observation that show whether a step follows the one before; all if empty.
        options: Further settings of a StepTable.

    Attributes:
        finals: The observations after the newest rows of episodes.
        encoder: Encodes rows as bytes; None until the schema is known.
        access: Writes rows, and reads them, whatever storage they are in; from then on.
        reader: Reads them for windows; from then on.
        append_next: Appends a step that goes on in its stream, and returns its key; or -1, without a trace, for any
            other. Cannot fail.
        append_next_round: Appends a step of each of several streams, and returns None, without a trace, where that is
            not simple.
    """

    _DERIVED = (*step_table.StepTable._DERIVED, "append_next", "append_next_round", "_append_next")
    remote: Remote | None = None
    """What keeps the values, if they are not in the storage."""

    def __init__(
        self,
        capacity: int,
        streams: int,
        *,
        check_room: Callable[[schema_lib.Schema], None] | None = None,
        compared_paths: Sequence[str] = (),
        **options: Any,
    ) -> None:
        self._check_room, self._compared_paths = check_room, compared_paths
        self.finals = finals_lib.FinalObservations({}, 0)
        self.encoder: encoding.Encoder | None = None
        self.access = cast("foreign.Access", None)
        self.reader = cast("reader_lib.RowReader", None)
        self._unwritten: steps_state.StepsState | None = None  # Holds rows that are not in the storage yet.
        super().__init__(capacity, streams, **options)

    def _derive(self) -> None:
        super()._derive()
        self.append_next: next_step.Appender = next_step.never
        self._append_next: next_step.Appender = next_step.never
        self.append_next_round: next_round.Appender = next_round.never
        if self.encoder is None:
            return
        access, finals, older = self.access, self.finals.records, self.num_view[append.OLDER]
        if not older:
            self._append_next = next_step.appender(self.views, finals, access.records, access.write)
            self.append_next = next_step.never if access.can_fail else self._append_next
        has_rounds = self.streams > 1 and self.rule == step_table.ONE_ROW and not access.can_fail
        if has_rounds and isinstance(access, memory.Access):
            pairs = zip(finals, self.finals.contents, strict=True)
            behind = [(field, records, content, size) for (field, records), (_, content, size) in pairs]
            self.append_next_round = next_round.appender(self.rows, self.views, behind, access)

    def empty_twin(self) -> "StepStore":
        """Return an empty store of the same settings, without a storage."""
        options: Any = {"rule": self.rule, "is_tracking": len(self.changed) > 0, "check_room": self._check_room}
        return StepStore(self.capacity, self.streams, compared_paths=self._compared_paths, **options)

    def begin(self, storage: memory.Storage) -> None:
        """Set the storage; required before anything is written or read.

        If there is one already, the fields of its rows are copied, and further fields are zeros.
        """
        if self.has_begun:
            self._copy_rows(self.storage, storage)
        encoder, access = encoding.Encoder(storage.schema), foreign.access_to(storage)
        fields = {path: storage.schema.fields[path] for path in encoder.observation_paths}
        finals = self.finals.with_fields(fields, len(self.free))
        self.encoder, self.access, self.finals = encoder, access, finals
        self.reader = reader_lib.RowReader(access)
        self._derive()

    def _copy_rows(self, before: memory.Storage, storage: memory.Storage) -> None:
        fields = storage.schema.fields
        for start, stop in state_lib.chunks(len(self), len(self) * storage.schema.nbytes):
            slots = append.slots_from(self.oldest_key + start, stop - start, self.capacity)
            rows = {path: np.zeros((stop - start, *field.shape), field.dtype) for path, field in fields.items()}
            storage.write(slots, rows | before.read(slots, before.schema.fields.keys() & fields.keys()))

    @property
    def has_begun(self) -> bool:
        """Whether the schema is known."""
        return self.encoder is not None

    @property
    def storage(self) -> memory.Storage:
        """The columns of the steps."""
        assert self.has_begun
        return self.access.storage

    @property
    def schema(self) -> schema_lib.Schema:
        """The schema of the steps."""
        return self.storage.schema

    def read_rows(self, slots: arrays_lib.Slots, fields: Collection[str] | None = None, /) -> Columns:
        """Do what `read` of the storage does, with the same exceptions.

        Raises:
            NotReadyError: There is none yet.
        """
        if self._unwritten is not None:
            return self._unwritten.read_rows(self.capacity, slots, fields)
        if not self.has_begun:
            raise errors.NotReadyError("read found no step: add one first")
        return self.storage.read(slots, fields)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns by the schema, and of the bookkeeping of stored rows and episodes."""
        of_rows: int = sum(array.nbytes for array in (*self._of_rows, self.changed))
        of_episode = 8 * (len(self.episodes) + 1) + self.finals.nbytes
        columns = self.schema.nbytes * self.storage.capacity if self.has_begun else 0
        return columns + of_rows + of_episode * (len(self.free) - self.num_view[append.FREE])

    # Writing: callers check arguments.

    def append(
        self, steps: encoding.Steps, *, journal: Journal | None = None, tell: Tell | None = None
    ) -> next_round.Written:
        """Write steps, and return what was found out about them; if anything raises, all is as it was before.

        Args:
            steps: The steps.
            journal: Also receives the steps, once they are stored; may be None.
            tell: Called before that, when the rows can be read; may be None.
        """
        encoder, streams, events, rows, next_rows, is_run = steps
        if journal is not None:
            journal.prepare()
        if encoder is self.encoder:
            if len(streams) == 1 and journal is None and not events[0]:
                if tell is None and not self.access.can_fail:
                    key = self.append_next(streams[0], rows, next_rows)
                else:
                    key = self._append_next_or_restore(streams[0], rows, next_rows, tell)
                if key >= 0:
                    return next_round.CONTINUED
            elif isinstance(streams, np.ndarray) and not (is_run or journal or tell):
                written = self.append_next_round(streams, events, rows, next_rows)
                if written is not None:
                    return written
            return self.append_any(steps, journal, tell)
        with self.beginning(encoder, 1 if is_run else len(streams)):
            return self.append_any(steps, journal, tell)

    @contextlib.contextmanager
    def beginning(self, encoder: encoding.Encoder, num_episodes: int) -> Iterator[None]:
        """Make room for rows of an encoder and for more episodes; a new schema is taken back if the block raises."""
        is_new = encoder is not self.encoder
        if is_new and self._check_room is not None:
            self._check_room(encoder.schema)
        self.make_room(num_episodes)
        before = self.encoder, self.access, self.reader, self.finals
        if is_new:
            self.begin(memory.ColumnStorage(encoder.schema, self.capacity))
        try:
            yield
        except BaseException:
            if is_new:
                self.encoder, self.access, self.reader, self.finals = before
                self._derive()
            raise

    def append_any(
        self, steps: encoding.Steps, journal: Journal | None = None, tell: Tell | None = None
    ) -> next_round.Written:
        """Do what `append` does with steps of the schema that is known, which cannot go a short way."""
        _, streams, events, rows, next_rows, is_run = steps
        num, count, num_spliced = self.num_view, len(streams), 0
        key, capacity = num[append.NEXT_KEY], self.capacity
        if splices.may_be_spliced(self, self.finals, steps):
            events, num_spliced = splices.with_cuts(self, self.finals, steps, self._compared_paths)
        num_ends = events.translate(_ENDS).count(1)
        resumed = splices.NOTHING if is_run else splices.resumed(self, self.finals, steps)
        heads = streams[:1] if is_run else streams
        num_heads = 1 if is_run else count
        if num[append.FREE] < num_heads:
            self.make_room(num_heads)
        episodes: Any = None if num_heads == 1 or next_rows is None else np.empty(num_heads, np.int64)
        # Rows of a storage that cannot fail are written last, when nothing else can: none is overwritten in vain.
        access = self.access
        is_last = not access.can_fail and tell is None
        access.prepare()
        is_loop = count <= _FEW
        if is_loop and count > 1:
            streams = np.asarray(streams).tolist()
        if is_loop and is_last and journal is None:
            append.append(self.views, streams, events, next_rows is not None)
        else:
            self._append_or_restore(steps, streams, events, journal, tell)
        if is_last:
            access.write(key % capacity, count, rows)
        if next_rows is None:
            self._blank(heads, events[-num_heads:])
        elif num_heads == 1:
            episode = self.current.item(heads[0])
            for field, records in self.finals.records:
                records[episode] = next_rows[field]
        else:
            self.current.take(heads, out=episodes, mode="clip")  # Without a buffer, which "raise" would need.
            for field, records in self.finals.records:
                records[episodes] = np.frombuffer(next_rows[field], records.dtype)
        return next_round.Written(num_spliced, num_ends, *resumed)

    def _blank(self, streams: Any, events: bytes) -> None:
        """Store zeros as the final observations of the episodes that terminated without a known next observation."""
        for stream, event in zip(streams, events, strict=True):
            if event & append.TERMINATED:
                self.finals.blank(self.current.item(stream))

    def _append_or_restore(
        self, steps: encoding.Steps, streams: Any, events: bytes, journal: Journal | None, tell: Tell | None
    ) -> None:
        """Write steps, with events that have cuts, where something may fail: all is then as it was.

        The caller writes their rows if it can do that without fail, and nothing reads them here.
        """
        _, _, _, rows, next_rows, is_run = steps
        count, slot, is_last = len(streams), self.next_key % self.capacity, not self.access.can_fail and tell is None

        def write() -> None:
            if not is_last:
                self.access.write(slot, count, rows)
            if type(streams) is np.ndarray:
                append.append_many(self.rows, streams, events, int(next_rows is not None))
            else:
                append.append(self.views, streams, events, next_rows is not None)

        record = None if journal is None else functools.partial(journal.write, steps)
        self.write_or_restore(streams[:1] if is_run else streams, count, write, tell, record, has_rows=not is_last)

    def write_or_restore(
        self,
        streams: Sequence[int] | arrays_lib.Ints,
        count: int,
        write: Callable[[], _T],
        tell: Tell | None,
        record: Callable[[], None] | None,
        *,
        has_rows: bool = True,
    ) -> _T:
        """Return what `write` of the next `count` rows returns; if anything raises, all is as it was before.

        Args:
            streams: The streams of the rows.
            count: How many rows there are, at most `capacity`.
            write: Writes them.
            tell: Called then; as in `append`.
            record: Called last; journals the rows.
            has_rows: Whether `write` writes to the storage.
        """
        key, capacity = self.next_key, self.capacity
        restore = self.keep(streams, key, count)
        surplus = append.slots_from(key, count, capacity)[max(capacity - len(self), 0) :]
        before = self.storage.read(surplus) if has_rows and len(surplus) else {}
        take_back: Callable[[], None] | None = None
        try:
            written = write()
            if tell is not None:
                take_back = tell()
            if record is not None:
                record()
        except BaseException:
            if take_back is not None:
                take_back()
            restore()
            if before:
                self.storage.write(surplus, before)
            raise
        return written

    def _append_next_or_restore(
        self, stream: int, row: encoding.Row, next_row: encoding.Row | None, tell: Tell | None
    ) -> int:
        """Do what `append_next` does where something may fail: all is then as it was."""
        flags, following, places, _, _, current, last, knows, _, _, _, num = self.views
        slot, episode = num[append.NEXT_KEY] % self.capacity, current[stream]
        is_full = num[append.ROWS] == self.capacity
        kept = self.num.copy(), flags[slot], places[slot], following[slot], last[stream], knows[stream]
        recent, old_row = self.recent[stream].copy(), self.access.read(np.array([slot])) if is_full else {}
        finals = [(records, records[episode].tobytes()) for _, records in self.finals.records]
        try:
            key = self._append_next(stream, row, next_row)
            if key >= 0 and tell is not None:
                tell()
        except BaseException:
            self.num[:], flags[slot], places[slot], following[slot], last[stream], knows[stream] = kept
            self.recent[stream] = recent
            self.work_out()
            for records, final in finals:
                records[episode] = final
            if old_row:
                self.storage.write(np.array([slot]), old_row)
            raise
        return key

    def make_room(self, count: int) -> None:
        """Make room for `count` more episodes, if there is less."""
        self.finals.grow(self.room_with(count))
        super().make_room(count)

    # Reading.

    def next_observations(self, last: arrays_lib.Ints, links: arrays_lib.Array) -> Columns:
        """Return the observations after the rows `last` [B], given their successors in the ring [B].

        Zeros where an episode terminated and none was given: it is never bootstrapped from.
        """
        reader = self.reader
        slots = links if reader.takes_any else np.maximum(links, 0, dtype=np.int64)
        columns = reader.read(slots, reader.observation_paths)
        if len(links) and links.item(links.argmin()) < 0:
            (where,) = (links < 0).nonzero()
            self.write_final(columns, where, last.take(where))
        return columns

    def write_final(self, columns: Columns, where: Any, last: arrays_lib.Ints) -> None:
        """Write the final observations of the episodes of the rows `last` [k] into columns, at `where`."""
        self.finals.put(columns, where, self.episodes_of(last))

    def final_observations(self, episodes: arrays_lib.Ints) -> Columns:
        """Return the final observations of those episodes [k] by path."""
        return self.finals.take(episodes)

    # As a whole.

    def state_dict(self, kept: steps_state.StepsState) -> state_lib.State:
        """Return the state of those rows for a checkpoint; columns are read from the storage lazily."""
        arrays: dict[str, Any] = dict(kept.arrays())
        if self.has_begun:
            finals = self.final_observations(kept.numbers[kept.has_tail])
            arrays |= {f"final/{path}": column for path, column in finals.items()}
            for path, field in self.schema.fields.items():
                shape = (len(kept), *field.shape)
                arrays[f"rows/{path}"] = state_lib.LazyArray(shape, field.dtype, functools.partial(self._part, path))
        return {**kept.values(), "arrays": arrays}

    def _part(self, path: str, start: int, stop: int) -> arrays_lib.Array:
        """Return a field of the rows `start` to `stop`, counted from the oldest."""
        return self.access.run(path, (self.oldest_key + start) % self.capacity, stop - start)

    def settle(self) -> None:
        """Write the rows of a restored state to the storage.

        Raises:
            CheckpointError: A column is damaged.
        """
        if self._unwritten is not None:
            self.access.fill(self.oldest_key % self.capacity, self._unwritten.columns)
        self._unwritten = None

    def load_state_dict(self, kept: steps_state.StepsState) -> None:
        """Restore rows and their episodes in an empty store; columns are read from the state until `settle`."""
        self.restore(kept)
        for path, column in kept.final.items():
            self.finals.columns[path][np.flatnonzero(kept.has_tail)] = column
        self._unwritten = kept if kept.columns else None
