"""StepStore: the steps of a buffer as rows in a storage, their successors, and the final observations of episodes.

Keys of rows are never reused; the row of a key is in the slot `key % capacity`, where new rows overwrite the oldest.

    storage    o0  o1  o2  | o0  o1  o2  o3 |  o0  o1         one observation a step
    behind               o3                o4          o2     one per episode: the one after its newest step

So an episode of T steps takes T + 1 observations: the next observation of a step is that of the following row, or the
one stored behind the episode. Successors and episodes of rows are kept in the flat arrays of `kernels.append`.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
import contextlib
import functools
import types
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import trees
from relive.kernels import append
from relive.kernels import choice
from relive.kernels import windows
from relive.persistence import state as state_lib
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.storage import next_round
from relive.storage import next_step
from relive.storage import steps_state

Columns: TypeAlias = dict[str, arrays_lib.Array]

_FIRST_ROOM = 16
_FEWEST_CHANGES = 1024
_FEWEST_OF_ROUND = 8
"""For fewer streams, the loop is faster than `append_round`."""
_FEW = 24
"""So many rows at most are written by the loop of CPython: `append_many` must be able to take back what it does."""
_MOST_EPISODES = 1 << (63 - append.EPISODE)
Rule: TypeAlias = tuple[int, int, int, int]
"""What a window needs of the rows: OLDER, LAG, STRIDE and PAD of `kernels.append`."""


Resumed: TypeAlias = tuple[Sequence[int], Sequence[int]]
_NOTHING: Resumed = (), ()
_T = TypeVar("_T")
Tell: TypeAlias = Callable[[], Callable[[], None]]
"""Tells a sampler what may be drawn now, and returns a function that takes back the first priorities of rows."""


def rows_per_anchor(rule: Rule) -> int:
    """Return how many rows there are for each anchor in the long run, at least: of the best lengths of episodes."""
    _, lag, stride, pad = rule
    return 1 if pad or lag <= 0 else min(lag + 1, stride)


def most_anchors(rule: Rule, rows: int) -> int:
    """Return how many anchors there can be at once in `rows` rows, at most; that many hold a window."""
    _, lag, _, pad = rule
    # The rows after the last anchor hold the rest of its window.
    return rows if pad or lag <= 0 else max(rows - lag - 1, 0) // rows_per_anchor(rule) + 1


class Journal(Protocol):
    """Receives the steps that are written to the storage."""

    def prepare(self) -> None:
        """Do what must precede a change."""

    def write(self, steps: encoding.Steps) -> None:
        """Journal steps that are stored; if it raises, they are taken back."""


def _read_row_by_row(schema: schema_lib.Schema) -> None:
    """Raise nothing: there is memory for a row."""


class StepStore(arrays_lib.Derived):
    """The steps of `streams` streams in a ring of `capacity` rows.

    Args:
        capacity: Maximum number of stored steps.
        streams: Number of streams.
        rule: What the window needs of the rows.
        is_tracking: Whether rows that became or ceased to be eligible are noted.
        check_room: Raises ArgumentError if memory does not hold what is read of rows of a schema.

    Attributes:
        rows: All arrays of `kernels.append`, in its order; the next ones are among them.
        flags, following, places, back: Arrays with an entry per row.
        current, last, knows: Arrays with an entry per stream.
        num: Counters, indexed by the names in `kernels.append`.
        episodes: An array with a column per episode, by STREAM .. OLDEST.
        behind: The observations behind the episodes, by path [episodes, ...].
        encoder: Encodes rows as bytes; None until the schema is known.
        observation_paths: The paths of the observation's fields, once the schema is known.
        other_paths: Those of the action, the reward and the extras.
        unrewarded_paths: Those of all fields but the reward.
        compared_paths: The fields of the observation that show whether a step follows the one before; all if empty.
        can_grow: Whether fields may be added once rows are stored.
    """

    _DERIVED = (
        *("all_streams", "current", "last", "knows", "_of_rows", "rows", "_views", "_current_view", "_knows_view"),
        *("num_view", "observation_paths", "other_paths", "unrewarded_paths", "_behind_records", "_behind_bytes"),
        *("_write_rows", "_append_next", "append_next", "append_next_round", "_own", "read", "rewards", "is_own"),
        *("has_extras", "reward_dtype", "nest_observation", "nest_action", "nest_extras"),
    )
    compared_paths: tuple[str, ...] = ()
    can_grow = False
    _unwritten: steps_state.StepsState | None = None
    """The state that holds the rows, if they are yet to be written to the storage."""

    def __init__(
        self,
        capacity: int,
        streams: int,
        *,
        rule: Rule = (0, 0, 1, 0),
        is_tracking: bool = False,
        check_room: Callable[[schema_lib.Schema], None] = _read_row_by_row,
    ) -> None:
        if capacity > append.MOST_ROWS:
            raise errors.ArgumentError(f"capacity must be at most {append.MOST_ROWS}, got {capacity}")
        self.capacity, self.streams, self._rule = capacity, streams, rule
        self._check_room = check_room
        self.kernels = choice.chosen()
        self.num: arrays_lib.Ints = np.zeros(append.PAD + 1, np.int64)
        self.num[[append.OLDER, append.LAG, append.STRIDE, append.PAD]] = rule
        self.num[append.FREE] = _FIRST_ROOM
        older, lag, *_ = rule
        self.flags: npt.NDArray[np.uint8] = np.zeros(capacity, np.uint8)
        self.following: npt.NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.places: arrays_lib.Ints = np.zeros(capacity, np.int64)
        self.back: npt.NDArray[np.int32] = np.zeros(capacity if older > 0 else 0, np.int32)
        width = lag + 2 if lag > 0 else 0
        with memory.room_for("length", width, 8 * streams):
            self._recent: arrays_lib.Ints = np.zeros((streams, width), np.int64)
        self._changed: arrays_lib.Ints = np.zeros(max(_FEWEST_CHANGES, capacity // 8) if is_tracking else 0, np.int64)
        self._of_streams: arrays_lib.Ints = np.zeros((3, streams), np.int64)
        self._of_streams[1].fill(append.NONE)
        self.episodes: arrays_lib.Ints = np.zeros((append.OLDEST + 1, _FIRST_ROOM), np.int64)
        self.free: arrays_lib.Ints = np.arange(_FIRST_ROOM)[::-1].copy()
        self.behind: Columns = {}
        self._storage: memory.Storage | None = None
        self.encoder: encoding.Encoder | None = None
        self._derive()

    def _derive(self) -> None:
        self.all_streams = encoding.all_streams(self.streams)
        self.current, self.last, self.knows = self._of_streams
        of_rows = self.flags, self.following, self.places, self.back
        of_streams = self._recent, self.current, self.last, self.knows
        self._of_rows = of_rows if len(self.back) else of_rows[:3]
        self.rows: append.Rows = *of_rows, *of_streams, self.episodes, self.free, self._changed, self.num
        self._views = append.views_of(self.rows)
        self._current_view, self._knows_view, self.num_view = self.current.data, self.knows.data, self.num.data
        storage, fields = self._storage, {} if self._storage is None else self._storage.schema.fields
        self.observation_paths = tuple(self.behind)
        self.other_paths = tuple(path for path in fields if path not in self.behind)
        self.unrewarded_paths = tuple(path for path in fields if path != "reward")
        # Pickle converts other byte orders to the native one.
        self.behind = {path: column.astype(fields[path].dtype, copy=False) for path, column in self.behind.items()}
        # numpy moves whole records faster than their bytes, and compares bytes faster than records.
        columns = [(field, column) for field, column in enumerate(self.behind.values()) if column.size]
        self._behind_records = [(field, memory.records_of(column)) for field, column in columns]
        self._behind_bytes = [(field, memory.bytes_of(column), column[:1].nbytes) for field, column in columns]
        self._write_rows: Any = self._write_columns
        self._append_next: next_step.Appender = next_step.never
        self.append_next: next_step.Appender = next_step.never
        """Appends a step that goes on in its stream, and returns False, without a trace, for any other; cannot fail."""
        self.append_next_round: next_round.Appender = next_round.never
        """Appends a round of all streams behind another one, and returns None, without a trace, for other steps."""
        self._own: memory.ColumnStorage | None = None
        """The storage, if rows can always be written to it once it is ready."""
        self.read: Any = None
        """Reads rows that are there, as the storage does."""
        self.rewards: Any = None
        self.is_own = False
        """Whether `read` takes -1 for any row."""
        self.has_extras = False
        if storage is None:
            return
        self.read = storage.read
        self.rewards = types.SimpleNamespace(take=lambda slots: storage.read(slots, ("reward",))["reward"])
        if isinstance(storage, memory.ColumnStorage) and _is_own(storage, "write"):
            self._write_rows = storage._write_rows
            self._own = storage if _is_own(storage, "_write_rows") else None
        if isinstance(storage, memory.ColumnStorage) and _is_own(storage, "read"):
            self.read, self.rewards, self.is_own = storage._gather, storage._rewards, True
        if not self.num_view[append.OLDER]:
            records = storage._records if type(storage) is memory.ColumnStorage else None
            self._append_next = next_step.appender(self._views, self._behind_records, records, self._write_rows)
            self.append_next = next_step.never if self._own is None else self._append_next
        if (
            type(storage) is memory.ColumnStorage
            and self._rule == (0, 0, 1, 0)
            and self.capacity >= 2 * self.streams > 2
        ):
            pairs = zip(self._behind_records, self._behind_bytes, strict=True)
            behind = [(field, records, content, size) for (field, records), (_, content, size) in pairs]
            self.append_next_round = next_round.appender(self.rows, self._views, behind, self._write_rows)
        self.reward_dtype, paths = storage.schema.reward.dtype, tuple(storage.schema.fields)
        self.has_extras = bool(storage.schema.extras)
        self.nest_observation, self.nest_action, self.nest_extras = (
            trees.nester(name, paths) for name in ("observation", "action", "extras")
        )

    def __len__(self) -> int:
        """Return the number of stored rows."""
        return self.num_view[append.ROWS]

    @property
    def next_key(self) -> int:
        """The key of the next row."""
        return self.num_view[append.NEXT_KEY]

    @property
    def oldest_key(self) -> int:
        """The key of the oldest stored row; next_key if there is none."""
        return self.num_view[append.NEXT_KEY] - self.num_view[append.ROWS]

    @property
    def num_evicted(self) -> int:
        """How many rows made room for newer ones so far; those that `clear` removed do not count."""
        return self.oldest_key - self.num_view[append.CLEARED]

    def keys(self, slots: arrays_lib.Ints) -> arrays_lib.Keys:
        """Return the keys of the stored rows in `slots`."""
        return append.keys_of(self.num, slots, self.capacity)

    def slots(self, keys: arrays_lib.Ints) -> arrays_lib.Slots:
        """Return the slots of the stored rows with `keys`."""
        return append.slots_of(self.num, keys, self.capacity)

    def is_alive(self, keys: arrays_lib.Ints) -> arrays_lib.Bools:
        """Return whether each of the rows with `keys` is still stored."""
        return (keys >= self.oldest_key) & (keys < self.next_key)

    def are_alive(self, keys: arrays_lib.Ints) -> bool:
        """Return whether all rows with `keys` are still stored."""
        next_key = self.num_view[append.NEXT_KEY]
        oldest = next_key - self.num_view[append.ROWS]
        return not len(keys) or (keys.item(keys.argmin()) >= oldest and keys.item(keys.argmax()) < next_key)

    def alive_slots(self) -> arrays_lib.Ints:
        """Return the slots of all rows, oldest first."""
        return append.slots_from(self.oldest_key, len(self), self.capacity)

    def empty_twin(self) -> "StepStore":
        """Return an empty store of the same settings, without a storage."""
        options: Any = {"is_tracking": len(self._changed) > 0, "check_room": self._check_room}
        return StepStore(self.capacity, self.streams, rule=self._rule, **options)

    def begin(self, storage: memory.Storage) -> None:
        """Set the storage; required before anything is written or read.

        If there is one already, the fields of its rows are copied, and further fields are zeros.
        """
        if self._storage is not None:
            self._copy_rows(self._storage, storage)
        encoder, behind, fields = encoding.Encoder(storage.schema), dict[str, arrays_lib.Array](), storage.schema.fields
        for path in encoder.observation_paths:
            if path in self.behind:
                behind[path] = self.behind[path]
            else:
                behind[path] = np.zeros((len(self.free), *fields[path].shape), fields[path].dtype)
        self._storage, self.encoder, self.behind = storage, encoder, behind
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
        return self._storage is not None

    @property
    def storage(self) -> memory.Storage:
        """The columns of the steps."""
        assert self._storage is not None
        return self._storage

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
        if self._storage is None:
            raise errors.NotReadyError("read found no step: add one first")
        return self._storage.read(slots, fields)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns by the schema, and of the bookkeeping of stored rows and episodes."""
        of_rows: int = sum(array.nbytes for array in (*self._of_rows, self._changed))
        of_episode = 8 * (len(self.episodes) + 1)
        of_episode += sum(self.schema.fields[path].nbytes for path in self.observation_paths)
        columns = self.schema.nbytes * self.storage.capacity if self.has_begun else 0
        return columns + of_rows + of_episode * (len(self.free) - self.num_view[append.FREE])

    # Writing: callers check arguments.

    def append(
        self,
        steps: encoding.Steps,
        *,
        journal: Journal | None = None,
        tell: Tell | None = None,
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
                if tell is None and self._own is not None:
                    is_next = self.append_next(streams[0], rows, next_rows)
                else:
                    is_next = self._append_next_or_restore(streams[0], rows, next_rows, tell)
                if is_next:
                    return next_round.CONTINUED
            elif len(streams) > 1 and not (is_run or next_rows is None or journal or tell or self._own is None):
                written = self._append_round(steps, next_rows)
                if written is not None:
                    return written
            return self._append(steps, journal, tell)
        with self.beginning(encoder, 1 if is_run else len(streams)):
            return self._append(steps, journal, tell)

    @contextlib.contextmanager
    def beginning(self, encoder: encoding.Encoder, num_episodes: int) -> Iterator[None]:
        """Make room for rows of an encoder and for more episodes; a new schema is taken back if the block raises."""
        storage = self._storage
        if encoder is not self.encoder:
            self._check_room(encoder.schema)
            storage = memory.ColumnStorage(encoder.schema, self.capacity)
        self._make_room(num_episodes)
        before = self._storage, self.encoder, self.behind
        if storage is not None and encoder is not self.encoder:
            self.begin(storage)
        try:
            yield
        except BaseException:
            if encoder is not before[1]:
                self._storage, self.encoder, self.behind = before
                self._derive()
            raise

    def _append(self, steps: encoding.Steps, journal: Journal | None, tell: Tell | None) -> next_round.Written:
        """Do what `append` does with steps of the schema that is known."""
        _, streams, events, rows, next_rows, is_run = steps
        num, count, num_spliced = self.num_view, len(streams), 0
        key, capacity = num[append.NEXT_KEY], self.capacity
        if self.is_spliced(streams[0], events, rows) if count == 1 or is_run else self._are_spliced(steps):
            events, num_spliced = self._with_cuts(steps)
        num_ends, resumed = _num_ends(events), _NOTHING if is_run else self._resumed(steps)
        heads = streams[:1] if is_run else streams
        num_heads = 1 if is_run else count
        if num[append.FREE] < num_heads:
            self._make_room(num_heads)
        episodes: Any = None if num_heads == 1 or next_rows is None else np.empty(num_heads, np.int64)
        # Rows of a storage that cannot fail are written last, when nothing else can: none is overwritten in vain.
        own = self._own
        is_last = own is not None and tell is None
        if own is not None and not own._is_ready:
            own._prepare()
        is_loop = count <= _FEW
        if is_loop and count > 1:
            streams, events = np.asarray(streams).tolist(), np.asarray(events).tolist()
        if is_loop and is_last and journal is None:
            append.append(self._views, streams, events, next_rows is not None)
        else:
            self._append_or_restore(steps, streams, events, journal, tell)
        if is_last:
            self._write_rows(key % capacity, count, rows)
        if next_rows is None:
            self._blank(heads, events[-num_heads:])
        elif num_heads == 1:
            episode = self._current_view[heads[0]]
            for field, records in self._behind_records:
                records[episode] = next_rows[field]
        else:
            self.current.take(heads, out=episodes, mode="clip")  # Without a buffer, which "raise" would need.
            for field, records in self._behind_records:
                records[episodes] = np.frombuffer(next_rows[field], records.dtype)
        return next_round.Written(num_spliced, num_ends, *resumed)

    def _blank(self, streams: Any, events: Any) -> None:
        """Store zeros behind the episodes that terminated without a known next observation."""
        for stream, event in zip(streams, events, strict=True):
            if event & append.TERMINATED:
                for _, records in self._behind_records:
                    records[self._current_view[stream]] = bytes(records.itemsize)

    def _append_round(self, steps: encoding.Steps, next_rows: encoding.Row) -> next_round.Written | None:
        """Append a row to each of several streams where that is simple; return None, without a trace, elsewhere.

        Nothing can fail once anything has changed, so that nothing is copied to be taken back.
        """
        streams, events, count = np.asarray(steps.streams), steps.events, len(steps.streams)
        written = self.append_next_round(steps)
        if written is not None:
            return written
        if count < _FEWEST_OF_ROUND or self._are_spliced(steps):
            return None
        resumed = self._resumed(steps)
        if self.num_view[append.FREE] < count:
            self._make_room(count)
        own, slot, is_whole = self._own, self.num_view[append.NEXT_KEY] % self.capacity, streams is self.all_streams
        if own is not None and not own._is_ready:
            own._prepare()
        finals = [np.frombuffer(next_rows[field], records.dtype) for field, records in self._behind_records]
        episodes = self.current if is_whole else np.empty(count, np.int64)
        num_ends = append.append_round(self.rows, self._views, streams, events, is_whole)
        if num_ends < 0:
            return None
        self._write_rows(slot, count, steps.rows)
        if not is_whole:
            self.current.take(streams, out=episodes, mode="clip")  # Without a buffer, which "raise" would need.
        for (_, records), final in zip(self._behind_records, finals, strict=True):
            records[episodes] = final
        return (
            next_round.CONTINUED if resumed is _NOTHING and not num_ends else next_round.Written(0, num_ends, *resumed)
        )

    def _append_or_restore(
        self,
        steps: encoding.Steps,
        streams: Any,
        events: Any,
        journal: Journal | None,
        tell: Tell | None,
    ) -> None:
        """Write steps, with events that have cuts, where something may fail: all is then as it was.

        The caller writes their rows if it can do that without fail, and nothing reads them here.
        """
        _, _, _, rows, next_rows, is_run = steps
        count, slot, is_last = len(streams), self.next_key % self.capacity, self._own is not None and tell is None

        def write() -> None:
            if not is_last:
                self._write_rows(slot, count, rows)
            if type(streams) is np.ndarray:
                append.append_many(self.rows, streams, events, int(next_rows is not None))
            else:
                append.append(self._views, streams, events, next_rows is not None)

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
    ) -> bool:
        """Append a step that goes on where something may fail, and return whether it did: all is then as it was."""
        flags, following, places, _, _, current, last, knows, _, _, _, num = self._views
        slot, episode, is_full = (
            num[append.NEXT_KEY] % self.capacity,
            current[stream],
            num[append.ROWS] == self.capacity,
        )
        kept = self.num.copy(), flags[slot], places[slot], following[slot], last[stream], knows[stream]
        recent, old_row = self._recent[stream].copy(), self.read(np.array([slot])) if is_full else {}
        finals = [(records, records[episode].tobytes()) for _, records in self._behind_records]
        try:
            is_next = self._append_next(stream, row, next_row)
            if is_next and tell is not None:
                tell()
        except BaseException:
            self.num[:], flags[slot], places[slot], following[slot], last[stream], knows[stream] = kept
            self._recent[stream] = recent
            self._work_out()
            for records, final in finals:
                records[episode] = final
            if old_row:
                self.storage.write(np.array([slot]), old_row)
            raise
        return is_next

    def is_spliced(self, stream: int, events: Any, rows: encoding.Row) -> bool:
        """Return whether a row does not begin with the observation behind the open episode of its stream."""
        if not self._knows_view[stream] or events[0] & append.CUT:
            return False
        episode = self._current_view[stream]
        for field, behind, size in self._behind_bytes:
            if behind[episode * size : episode * size + size].tobytes() != rows[field][:size]:
                return True
        return False

    def _are_spliced(self, steps: encoding.Steps) -> bool:
        """Return the same for one row of each of several streams: whether any does not follow."""
        is_whole = steps.streams is self.all_streams
        episodes = self.current if is_whole else self.current.take(steps.streams)
        for field, records in self._behind_records:
            these, those = records[episodes], steps.rows[field]
            if these.tobytes() != those:
                differs = these != np.frombuffer(those, records.dtype)
                if arrays_lib.any_set(differs & (self.knows.take(steps.streams) > 0)):
                    return True
        return False

    def _resumed(self, steps: encoding.Steps) -> Resumed:
        """Return which steps begin with the final observation of the newest episode of their stream, which has ended.

        First those of episodes that terminated, and then of those that were truncated; while a row of them is stored.
        """
        streams: Any = steps.streams
        _, _, _, _, _, current, last, _, episodes, _, _, _ = self._views
        if type(streams) is tuple:
            places = [0] if last[streams[0]] == append.NONE else []
        else:
            newest = self.last if streams is self.all_streams else self.last.take(streams)
            if newest.item(newest.argmin()) != append.NONE:
                return _NOTHING
            (ended,) = (newest == append.NONE).nonzero()
            if len(ended) > append.FEW:
                return self._resumed_many(streams[ended], ended, steps.rows)
            places = ended.tolist()
        found: dict[int, list[int]] = {append.TERMINATED: [], append.TRUNCATED: []}
        for place in places:
            episode = current[streams[place]]
            if episodes[append.STREAM, episode] == streams[place] and episodes[append.KNOWN, episode]:
                for field, behind, size in self._behind_bytes:
                    final = behind[episode * size : episode * size + size].tobytes()
                    if final != steps.rows[field][place * size : place * size + size]:
                        break
                else:
                    found[episodes[append.END, episode]].append(place)
        return (found[append.TERMINATED], found[append.TRUNCATED]) if any(found.values()) else _NOTHING

    def _resumed_many(self, streams: arrays_lib.Ints, places: arrays_lib.Ints, given: encoding.Row) -> Resumed:
        """Return the same of many steps, of `streams` [k], in calls of numpy."""
        episodes = self.current.take(streams)
        table = self.episodes.take(episodes, axis=1)
        is_there = (table[append.STREAM] == streams) & (table[append.KNOWN] > 0)
        for field, records in self._behind_records:
            rows = np.frombuffer(given[field], records.dtype)
            is_there &= records[episodes] == rows[places]
        if not arrays_lib.any_set(is_there):
            return _NOTHING
        ends = table[append.END] * is_there
        after_termination, after_truncation = (places[ends == end] for end in (append.TERMINATED, append.TRUNCATED))
        return after_termination.tolist(), after_truncation.tolist()

    def _with_cuts(self, steps: encoding.Steps) -> tuple[Any, int]:
        """Return the events of steps of which one does not follow, with CUT where that is so, and the number of those.

        That is where the observation after its newest step is known and differs.
        """
        streams = np.asarray(steps.streams[:1] if steps.is_run else steps.streams)
        episodes = self.current[streams]
        (places,) = self.knows[streams].nonzero()
        columns = steps.encoder.columns(steps.rows, len(steps.streams))
        differs = np.zeros(len(places), np.bool_)
        for path in self.compared_paths or self.observation_paths:
            differs |= differ(self.behind[path][episodes[places]], columns[path][places])
        cuts = places[differs]
        if not len(cuts):
            return steps.events, 0
        if type(steps.events) is tuple:
            return (steps.events[0] | append.CUT,), 1
        events = np.array(steps.events)
        events[cuts] |= append.CUT
        return events, len(cuts)

    def _write_columns(self, slot: int, count: int, rows: encoding.Row) -> None:
        """Write rows as columns, for a storage without `_write_rows`."""
        assert self.encoder is not None
        columns = self.encoder.columns(rows, count)
        self.storage.write(append.slots_from(slot, count, self.capacity), columns)

    def cut(self, stream: int) -> None:
        """Truncate the open episode of a stream."""
        append.close(self._views, stream)

    def _make_room(self, count: int) -> None:
        """Make room for `count` more episodes, if there is less."""
        room, num_free = len(self.free), self.num_view[append.FREE]
        if count <= num_free:
            return
        more = max(room, count - num_free)
        if room + more > _MOST_EPISODES:
            raise errors.ArgumentError(f"episodes must be at most {_MOST_EPISODES} at once, got more")
        free = np.concatenate([np.arange(room, room + more)[::-1], self.free])
        episodes = np.concatenate([self.episodes, np.zeros((append.OLDEST + 1, more), np.int64)], axis=1)
        behind = {
            path: np.concatenate([column, np.zeros((more, *column.shape[1:]), column.dtype)], dtype=column.dtype)
            for path, column in self.behind.items()
        }
        self.free, self.episodes, self.behind = free, episodes, behind
        self.num_view[append.FREE] = num_free + more
        self._derive()

    def keep(self, streams: Any, key: int, count: int) -> Callable[[], None]:
        """Return a function that takes back what is done to some rows and to the episodes of some streams.

        Args:
            streams: The streams [k].
            key: The key of the first row; rows of older ones may be evicted, too.
            count: The number of rows, at most the capacity.
        """
        rows = append.run_from(key, count, self.capacity)
        of_rows = [(array, rows, array[rows].copy()) for array in self._of_rows]
        links, some = of_rows[1][2], slice(None) if len(streams) == self.streams else np.asarray(streams)
        if count and links.item(links.argmin()) < 0:
            # Episodes whose newest row is among them may leave, also in other streams.
            some, ends = slice(None), of_rows[2][2][links < 0] >> append.EPISODE
            episodes = np.concatenate([self.current, ends])
        else:
            episodes = self.current[some]
        of_streams, of_episodes = self._of_streams[:, some].copy(), self.episodes.take(episodes, axis=1)
        recent, num = self._recent[some].copy(), self.num.copy()

        def restore() -> None:
            for array, where, values in of_rows:
                array[where] = values
            self._of_streams[:, some], self._recent[some], self.num[:] = of_streams, recent, num
            self.episodes[:, episodes] = of_episodes
            self._work_out()
            # Which of them have changed is not known any more.
            self.num_view[append.CHANGED] = len(self._changed) + 1 if len(self._changed) else 0

        return restore

    def _work_out(self) -> None:
        """Work out anew what follows from places, links and episodes: flags of rows, the oldest ones, free numbers."""
        run = append.run_from(self.oldest_key, len(self), self.capacity)
        self.following[self.last[self.last >= 0]] = -1
        places, links = self.places[run], self.following[run]
        episodes, steps = places >> append.EPISODE, places & append.STEP
        first = steps_state.starts_of(episodes)
        is_used = np.zeros(len(self.free), np.bool_)
        is_used[episodes[first]] = is_used[self.current[self.last != append.NONE]] = True
        (unused,) = np.logical_not(is_used).nonzero()
        self.free[: len(unused)] = unused[::-1]
        self.num_view[append.FREE] = len(unused)
        if self.num_view[append.OLDER]:
            self.episodes[append.OLDEST] = -1
            self.episodes[append.OLDEST][episodes[first][::-1]] = (self.oldest_key + first[::-1]) % self.capacity
        complete = self.complete_steps(np.arange(len(self.free))).take(episodes)
        is_complete = (links >= 0) | (steps < complete)
        flags = self.flags[run] & np.uint8(~(append.COMPLETE | append.READABLE) & 0xFF)
        flags |= is_complete * np.uint8(append.COMPLETE)
        flags |= self._are_readable(steps, episodes, complete) * np.uint8(append.READABLE)
        flags[(flags & append.READABLE) == 0] &= np.uint8(~append.FRESH & 0xFF)
        self.flags[run] = flags

    def clear(self) -> None:
        """Remove every row and every open episode. Keys are not reused."""
        slots, free = self.alive_slots(), np.arange(len(self.free))
        eligible = slots[np.frombuffer(append.are_eligible(self.flags.take(slots)), np.bool_)]
        # From here on, nothing needs memory.
        append.exit_many(self._changed, self.num, eligible)
        self.flags.fill(0)
        self.last.fill(append.NONE)
        self.knows.fill(0)
        self.episodes[append.OLDEST].fill(-1)
        self.episodes[append.KNOWN].fill(0)
        self.free[:] = free[::-1]
        num = self.num_view
        num[append.CLEARED] += len(slots)
        num[append.ROWS], num[append.FREE] = 0, len(self.free)

    # Reading.

    def is_open(self, streams: Any) -> Any:
        """Return whether an episode is open in a stream, or in each of several [k]."""
        return self.last[streams] != append.NONE

    def episodes_of(self, slots: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the numbers of the episodes of the rows in `slots`."""
        return self.places.take(slots) >> append.EPISODE

    def steps_of(self, slots: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return how many steps of its episode came before each of the rows in `slots`."""
        return self.places.take(slots) & append.STEP

    def oldest_rows(self, episodes: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the slot of the oldest stored row of each of those episodes [k]; O(streams) if streams keep step."""
        keys = self.episodes[append.FIRST_KEY].take(episodes)
        (cut,) = (keys < self.oldest_key).nonzero()
        count, missing = self.streams, len(cut) > 0
        while missing:  # The first rows of all have gone, so the ones that follow are among the oldest.
            found, places = np.unique(self.episodes_of(self.alive_slots()[:count]), return_index=True)
            at = np.searchsorted(found, episodes[cut]).clip(max=len(found) - 1)
            missing = bool((found[at] != episodes[cut]).any())
            keys[cut] = self.oldest_key + places[at]
            count *= 8
        return self.slots(keys)

    def lengths_of(self, episodes: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return how many steps each of those episodes has so far."""
        lengths: arrays_lib.Ints = self.episodes[append.LENGTH][episodes]
        newest = self.last[self.episodes[append.STREAM][episodes]]
        is_going = (self.episodes[append.END][episodes] == append.OPEN) & (newest >= 0)
        lengths[is_going] = (self.places[newest[is_going]] & append.STEP) + 1
        return lengths

    def complete_steps(self, episodes: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return how many complete steps each of those episodes has so far, evicted ones included."""
        has_terminated = self.episodes[append.END][episodes] == append.TERMINATED
        complete: arrays_lib.Ints = self.lengths_of(episodes) - ~(self.is_known(episodes) | has_terminated)
        return complete

    def is_left_out(self, slots: arrays_lib.Array) -> arrays_lib.Bools:
        """Return whether the episode of each of the rows in `slots` [k] was truncated before it.

        That is so where it ended and the observation after its newest step was never given.
        """
        is_waiting = (self.flags.take(slots) & append.COMPLETE) == 0
        return np.asarray(is_waiting & (self.episodes[append.END].take(self.episodes_of(slots)) != append.OPEN))

    def is_known(self, episodes: arrays_lib.Ints) -> arrays_lib.Bools:
        """Return whether the observation after the newest step of each of those episodes is known."""
        is_open = self.episodes[append.END][episodes] == append.OPEN
        of_streams = self.knows[self.episodes[append.STREAM][episodes]]
        return np.asarray(np.where(is_open, of_streams, self.episodes[append.KNOWN][episodes]) > 0)

    def is_readable(self, slots: arrays_lib.Ints) -> arrays_lib.Bools:
        """Return whether a window may start at each of the rows in `slots` [k], worked out anew."""
        episodes = self.episodes_of(slots)
        complete = self.complete_steps(np.arange(len(self.free))).take(episodes)
        return self._are_readable(self.steps_of(slots), episodes, complete)

    def _are_readable(
        self, of_rows: arrays_lib.Ints, episodes: arrays_lib.Ints, complete: arrays_lib.Ints
    ) -> arrays_lib.Bools:
        """Return the same for rows that are those steps of those episodes, which have so many complete ones [k]."""
        older, lag, stride, pad = self._rule
        readable = of_rows + lag < complete
        if stride > 1:
            readable &= of_rows % stride == 0
        if older:
            oldest = self.steps_of(self.episodes[append.OLDEST]).take(episodes)
            readable &= of_rows - oldest >= np.minimum(of_rows, older)
        if pad:
            readable |= (of_rows == 0) & (complete > 0)
        return np.asarray(readable)

    def follow(self, slots: arrays_lib.Ints, most: int) -> windows.Run:
        """Return up to `most` consecutive complete rows, starting at each of `slots` [B]."""
        run: windows.Run = self.kernels.follow(self.rows, slots, most)
        return run

    def look_back(self, slots: arrays_lib.Ints, steps: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the frame stack of each of `slots` [B], which are those steps, as rows [older + 1, B]."""
        rows: arrays_lib.Ints = self.kernels.look_back(self.back, steps, slots, self.num_view[append.OLDER] + 1)
        return rows

    def observations(self, slots: arrays_lib.Ints) -> Columns:
        """Return fresh copies of the observation columns of the rows in `slots`."""
        columns: Columns = self.read(slots, self.observation_paths)
        return columns

    def next_observations(self, last: arrays_lib.Ints, links: arrays_lib.Array) -> Columns:
        """Return the observations after the rows `last` [B], given their successors in the ring [B].

        Zeros where an episode terminated and none was given: it is never bootstrapped from.
        """
        slots = links if self.is_own else np.maximum(links, 0, dtype=np.int64)
        columns: Columns = self.read(slots, self.observation_paths)
        if len(links) and links.item(links.argmin()) < 0:
            (where,) = (links < 0).nonzero()
            self.put_behind(columns, where, last.take(where))
        return columns

    def put_behind(self, columns: Columns, where: Any, last: arrays_lib.Ints) -> None:
        """Write the observations behind the episodes with last rows `last` [k] into columns, at `where`."""
        episodes = self.places.take(last) >> append.EPISODE
        for path, column in self.behind.items():
            columns[path][where] = column.take(episodes, axis=0)

    # As a whole.

    def rows_state(self) -> steps_state.StepsState:
        """Return the rows and their episodes. O(rows + episodes)."""
        slots = self.alive_slots()
        of_rows = self.episodes_of(slots)
        is_used = np.zeros(len(self.free), np.bool_)
        is_used[of_rows] = is_used[self.current[self.last != append.NONE]] = True
        (used,) = is_used.nonzero()
        first_key = self.episodes[append.FIRST_KEY]
        used = used[np.argsort(first_key[used], kind="stable")]
        positions = np.zeros(len(self.free), np.int64)
        positions[used] = np.arange(len(used))
        return steps_state.StepsState(
            next_key=self.next_key,
            num_evicted=self.num_evicted,
            episode=positions[of_rows],
            stream=self.episodes[append.STREAM][used],
            length=self.lengths_of(used),
            first_key=first_key[used],
            end=self.episodes[append.END][used].astype(np.uint8),
            has_tail=self.is_known(used),
            numbers=used,
        )

    def state_dict(self, kept: steps_state.StepsState) -> state_lib.State:
        """Return the state of those rows for a checkpoint; columns are read from the storage lazily."""
        arrays: dict[str, Any] = dict(kept.arrays())
        if self._storage is not None:
            episodes = kept.numbers[kept.has_tail]
            arrays |= {f"final/{path}": column.take(episodes, axis=0) for path, column in self.behind.items()}
            for path, field in self.schema.fields.items():
                shape = (len(kept), *field.shape)
                arrays[f"rows/{path}"] = state_lib.LazyArray(shape, field.dtype, functools.partial(self._part, path))
        return {**kept.values(), "arrays": arrays}

    def _part(self, path: str, start: int, stop: int) -> arrays_lib.Array:
        """Return a field of the rows `start` to `stop`, counted from the oldest."""
        storage, key, count = self.storage, self.oldest_key + start, stop - start
        if self.is_own and isinstance(storage, memory.ColumnStorage):
            return storage._run(path, key % self.capacity, count)
        return storage.read(append.slots_from(key, count, self.capacity), (path,))[path]

    def settle(self) -> None:
        """Write the rows of a restored state to the storage.

        Raises:
            CheckpointError: A column is damaged.
        """
        kept, own = self._unwritten, self._own
        if kept is not None and own is not None:
            if not own._is_ready:
                own._prepare()
            for path, column in kept.columns.items():
                own._fill(path, self.oldest_key % self.capacity, column)
        elif kept is not None:
            slots = self.alive_slots()
            before = self.storage.read(slots)
            try:
                for start, stop in state_lib.chunks(len(kept), len(kept) * self.schema.nbytes):
                    rows = [memory.bytes_of(column.read(start, stop)) for column in kept.columns.values()]
                    self._write_rows((self.oldest_key + start) % self.capacity, stop - start, rows)
            except BaseException:
                self.storage.write(slots, before)
                raise
        self._unwritten = None

    def load_state_dict(self, kept: steps_state.StepsState) -> None:
        """Restore rows and their episodes 0 .. E - 1 in an empty store.

        Columns are read from the state until `settle`.
        """
        count, num = len(kept.stream), self.num_view
        self._make_room(count)
        num[append.NEXT_KEY], num[append.ROWS] = kept.next_key, len(kept)
        num[append.CLEARED] = kept.next_key - len(kept) - kept.num_evicted
        slots, run = self.alive_slots(), append.run_from(self.oldest_key, len(kept), self.capacity)
        self.places[run] = kept.episode << append.EPISODE | kept.steps
        rows, of_rows = slots[kept.order], kept.episode[kept.order]
        first = steps_state.starts_of(of_rows)
        last = np.append(first[1:], len(rows))[: len(first)] - 1
        episodes = of_rows[first]
        links = np.append(rows[1:], -1)[: len(rows)]
        links[last] = -1
        self.following[run if type(kept.order) is slice else rows] = links
        if len(self.back):
            before = np.append(-1, rows[:-1])[: len(rows)]
            before[first] = -1
            self.back[rows] = before
        self.flags[rows[last]] = (kept.end == append.TERMINATED)[episodes] * np.uint8(append.TERMINAL)
        newest = np.full(count, append.GONE)
        newest[episodes] = rows[last]
        values = (kept.stream, kept.first_key, kept.length, kept.end, kept.has_tail)
        for array, value in zip(self.episodes, values, strict=False):
            array[:count] = value
        (is_open,) = (kept.end == append.OPEN).nonzero()
        streams = kept.stream[is_open]
        self.current[kept.stream] = np.arange(count)  # The newest of each: they are in the order of time.
        self.last[streams] = newest[is_open]
        self.knows[streams] = kept.has_tail[is_open]
        width = self._recent.shape[1]
        if width:
            is_recent = kept.is_open[kept.episode] & (kept.steps >= kept.length[kept.episode] - width)
            of_recent, steps = kept.episode[is_recent], kept.steps[is_recent]
            self._recent[kept.stream[of_recent], steps % width] = kept.keys[is_recent]
        for path, column in kept.final.items():
            self.behind[path][np.flatnonzero(kept.has_tail)] = column
        self._work_out()
        self._unwritten = kept if kept.columns else None

    def check(self) -> None:
        """Verify all invariants by recounting the rows of every episode.

        Raises:
            CorruptionError: Rows, streams and episodes are inconsistent.
        """
        slots, count = self.alive_slots(), len(self)
        if not 0 <= count <= self.capacity:
            raise errors.CorruptionError(f"{count} rows are alive in {self.capacity} slots")
        kept, twin, flags = self.rows_state(), self.empty_twin(), append.COMPLETE | append.TERMINAL
        twin.load_state_dict(kept)
        of_rows = {
            "step": self.steps_of(slots) == twin.steps_of(slots),
            "link": self.following[slots] == twin.following[slots],
            "state": self.flags[slots] & flags == twin.flags[slots] & flags,
        }
        for name, is_right in of_rows.items():
            for slot in slots[~is_right]:
                raise errors.CorruptionError(f"the {name} of the row of key {self.keys(slot)} is not what it must be")
        oldest, (streams,) = self.episodes[append.OLDEST][kept.numbers], (self.last != append.NONE).nonzero()
        is_wrong = {
            "the numbers of episodes that are free are not those that nobody has": not np.array_equal(
                np.sort(self.free[: self.num_view[append.FREE]]), np.setdiff1d(np.arange(len(self.free)), kept.numbers)
            ),
            "a slot without a row has flags": np.delete(self.flags, slots).any(),
            "the oldest row of an episode is not what it must be": len(self.back) > 0
            and not np.array_equal(oldest, twin.episodes[append.OLDEST][: len(oldest)]),
            "the newest keys of a stream are not those of its episode": (
                (twin._recent > 0) & (twin._recent != self._recent)
            ).any(),
            "an episode is open in another stream than it says, or has another newest row": not (
                np.array_equal(self.episodes[append.STREAM][self.current[streams]], streams)
                and np.array_equal(self.last, twin.last)
            ),
        }
        for fault, is_found in is_wrong.items():
            if is_found:
                raise errors.CorruptionError(fault)


def _num_ends(events: Any) -> int:
    """Return how many of some events [k] end an episode."""
    return bytes(events).translate(_ENDS).count(1)


_ENDS = bytes(event & append.ENDS > 0 for event in range(256))


def _is_own(storage: memory.Storage, call: str) -> bool:
    """Return whether a method is that of ColumnStorage, not overridden."""
    return getattr(getattr(storage, call), "__func__", None) is getattr(memory.ColumnStorage, call)


def differ(these: arrays_lib.Array, those: arrays_lib.Array) -> arrays_lib.Bools:
    """Return whether the rows [k, ...] differ; NaN counts as equal to NaN."""
    record = f"V{these.itemsize}"
    is_equal = np.asarray((these.view(record) == those.view(record)) | (these == those))
    if these.dtype.kind in "fc":  # NaNs may have different bytes.
        is_equal |= np.isnan(these) & np.isnan(those)
    return np.asarray(~is_equal.all(axis=tuple(range(1, these.ndim))))
