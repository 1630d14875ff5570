"""Journal: an append-only log in which every change is recorded by the call that makes it.

    base/checkpoint                                          the contents before the first record, if any
    segment-...42.relive.oldest                              what came before 42 was pruned
    segment-...42.relive   base | record | record | ...      as long as they are needed: `_release`
    segment-...51.relive   base | record | record | ...
    segment-...57.relive   base | record | record |          records are appended here
    segment-...63.relive.closed                              records up to 62 were on disk when it was closed

A record is written with one system call, so a killed process loses none; when records are on disk depends on the
`fsync` policy. A segment begins with a base, and possibly records that are carried over, from which its owner can
continue without earlier segments. It is created with them atomically, so only the end of the last segment can be torn.

A call that raises has appended nothing. If that cannot be guaranteed, or a sync has failed, the journal refuses further
writes: a later sync could succeed without the lost pages.
"""

import abc
import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import dataclasses
import itertools
import os
import shutil
import threading
from typing import Any, Literal, TypeAlias
import weakref

from relive import errors
from relive.common import duplicates
from relive.common import validation
from relive.persistence import checkpoint
from relive.persistence import files
from relive.persistence import journal_reader
from relive.persistence import segment as segment_lib
from relive.persistence import state as state_lib


@dataclasses.dataclass(frozen=True)
class EveryRecords:
    """A sync policy: sync after that many records, in the call that appends the last of them."""

    count: int

    def __post_init__(self) -> None:
        validation.positive_int("count", self.count)


@dataclasses.dataclass(frozen=True)
class EverySeconds:
    """A sync policy: sync after that many seconds, in a background thread, so that no append waits for it."""

    seconds: float

    def __post_init__(self) -> None:
        if not 0 < validation.finite_number("seconds", self.seconds) <= threading.TIMEOUT_MAX:
            raise errors.ArgumentError(
                f"seconds must be above 0 and at most {threading.TIMEOUT_MAX:.0f}, "
                f"got {validation.short_repr(self.seconds)}"
            )


_MOST_TOGETHER = journal_reader.LARGEST_PAYLOAD - 2**30
"""Bytes of the records that are written together."""
_UNWRITTEN = "could not be written"
Records: TypeAlias = segment_lib.Records
Note: TypeAlias = Callable[[], bytes]
Policy: TypeAlias = Literal["always", "never"] | EveryRecords | EverySeconds


def check(fsync: object) -> None:
    """Raise ArgumentError if `fsync` is not a policy."""
    is_word = isinstance(fsync, str) and fsync in ("always", "never")
    if not is_word and not isinstance(fsync, EveryRecords | EverySeconds):
        raise errors.ArgumentError(
            f"fsync must be 'always', 'never', EveryRecords(n) or EverySeconds(t), got {validation.short_repr(fsync)}"
        )


def sync_file(descriptor: int) -> None:
    """Sync a segment to disk."""
    if hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        files.fsync_file(descriptor)


class _ClosedJournalError(errors.CheckpointError, errors.ClosedError):
    """A closed journal was written to: a CheckpointError, too, as of any call that cannot be journaled."""


_CLOSED = _ClosedJournalError, "it was closed"


class _Blocks(contextlib.AbstractContextManager[None]):
    """Counts the `with` blocks of it that run, one in another."""

    depth = 0

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


class _Pending:
    """Records that are written as one: gathered until there is a payload, which could not be written so far."""

    def __init__(self) -> None:
        self.records: list[tuple[int, bytes]] = []
        self.num_bytes = 0
        self.payload: bytes | None = None
        self.is_gone: Callable[[Any], bool] = lambda newest: False


class Journal(duplicates.NeverCopied):
    """An append-only log of the changes of a buffer, in a directory; pass it to `attach`, and load it with `recover`.

    It must be used in one thread of the process that opened it, not in a forked one, by one buffer; but any thread may
    sync or close it. While it is open, it is locked for others.

    Args:
        path: The directory. Created if missing. An existing journal is continued after its last complete record; a torn
            tail is cut off. Of its segments, the last one is read, and the headers of the others: what is damaged in
            those is found by whatever reads them, such as `recover`.
        fsync: When records are synced to disk: "always", before the call that wrote one returns; `EveryRecords(n)`;
            `EverySeconds(t)`; or "never", left to the system.
        segment_bytes: Number of bytes of records after which a new segment begins; more if its base and carried-over
            records are larger, so that they never take up more than half.

    Raises:
        CheckpointError: The directory cannot be created or read, holds foreign files or a damaged journal, or the
            journal is open elsewhere.

    >>> import tempfile
    >>> import relive
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with relive.Journal(f"{directory}/steps", fsync=relive.EveryRecords(100)) as journal:
    ...         relive.RingReplayBuffer(1_000).attach(journal)
    ...         print(journal.num_records, journal.num_synced)
    1 1
    """

    _INSTEAD = "close it, and open its directory where it is needed"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fsync: Policy = "always",
        segment_bytes: int = 64 * 2**20,
    ) -> None:
        self.path = files.absolute("path", path)
        check(fsync)
        self._fsync = fsync
        self._segment_bytes = validation.positive_int("segment_bytes", segment_bytes)
        otherwise = 1 if fsync == "always" else validation.LARGEST
        self._most_unsynced = fsync.count if isinstance(fsync, EveryRecords) else otherwise
        self._pid = os.getpid()
        self._num_records = self._num_synced = 0
        self._delayed_syncs = _Blocks()
        """A block in which no append syncs: then await `synced` when `_is_due`."""
        self._pending: _Pending | None = None
        self._largest_together = 0
        """Bytes of the largest record that stands for several."""
        self._note: Note | None = None
        self._begun: tuple[Callable[[], bytes], Callable[[], Records], Callable[[], Any]] | None = None
        # Why it cannot be written, if it cannot.
        self._refusal: tuple[type[errors.CheckpointError], str] | None = None
        # The first records of the segments; for those after the oldest, what was the newest when they began.
        self._firsts: list[int] = []
        self._newest: list[tuple[int, Any]] = []
        # The last segment.
        self._segment: segment_lib.OpenSegment | None = None
        # Held while anything is written, and while it is closed, which any thread may do.
        self._changing = threading.RLock()
        # Held during a sync, and while the file to sync changes.
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._syncer: threading.Thread | None = None
        # The sync that the callers of `synced` wait for.
        self._shared: asyncio.Future[None] | None = None
        with contextlib.ExitStack() as stack:
            with files.raising(self.path, "could not be opened"):
                self._open(stack)
            self._held = stack.pop_all()
        _OPEN.add(self)

    @property
    def num_records(self) -> int:
        """Number of records ever appended, bases included; the number of the next record."""
        return self._num_records

    @property
    def num_synced(self) -> int:
        """Number of records known to be on disk."""
        return self._num_synced

    @property
    def _is_due(self) -> bool:
        """Whether the policy requires a sync now."""
        return self._num_records - self._num_synced >= self._most_unsynced

    @property
    def _is_behind(self) -> bool:
        """Whether what `_group` has gathered could not be written, so that the owner holds more than the journal."""
        return self._pending is not None and self._pending.payload is not None

    @property
    def _has_gathered(self) -> bool:
        """Whether something was appended within `_group`."""
        return self._pending is not None and bool(self._pending.records)

    def _set_note(self, note: Note) -> None:
        """Let each segment from now on begin with a note, besides what `_begin` says."""
        self._note = note

    def _begin(
        self,
        base: Callable[[], bytes],
        carried: Callable[[], Records] = lambda: (),
        first_base: Callable[[], bytes] | None = None,
        *,
        newest: Callable[[], Any] = lambda: None,
        begun: Iterable[tuple[int, Any]] = (),
        records: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        """Prepare the journal for appending to its last segment, or to a new one if there is none.

        If CheckpointError is raised, it has not begun.

        Args:
            base: Returns a record from which the owner can continue without earlier ones; called when a segment begins.
            carried: Returns kind and payload of the records that follow it; called after `base`.
            first_base: Returns the first record of the journal; like `base` if None.
            newest: Returns what the owner stored last, for `_release`; called when a segment begins.
            begun: What it returned for the segments that are there, each with the number of its first record.
            records: What is written to the segment that is there, as one record, or within `_group`.
        """
        self._check_usable()
        if self._begun is not None:
            raise errors.ArgumentError("begin was called before: a journal has one owner")
        if self._segment is None:
            self._begin_segment(first_base or base, carried, newest)
        elif records and self._pending is not None:
            for record in records:
                self._gather(self._pending, *record)
        elif records:
            with self._changing:
                self._write(self._segment, journal_reader.TOGETHER, journal_reader.packed(b"", records))
        self._newest = [(first, mark) for first, mark in begun if first > self._firsts[0]]
        self._begun = base, carried, newest
        if isinstance(self._fsync, EverySeconds):
            arguments = (weakref.ref(self), self._closing, float(self._fsync.seconds))
            self._syncer = threading.Thread(target=_sync_now_and_then, args=arguments, daemon=True)
            self._syncer.start()

    def _append(self, kind: int, payload: bytes) -> int:
        """Write a record of a kind in [1, 255), and return its number; within `_group`, that of the record of all.

        If CheckpointError is raised, it could not be written, or synced where that is due, and is not counted.
        """
        if kind == journal_reader.BASE or kind == journal_reader.TOGETHER:
            raise errors.ArgumentError(f"kind must be in [1, 255), got {kind}")
        with self._changing:
            if self._pending is not None:
                if self._pending.payload is None:
                    return self._gather(self._pending, kind, payload)
                self._catch_up()
            return self._write(self._ready_segment(), kind, payload)

    def _append_all(self, records: Records) -> int:
        """Write records as one, and return its number: after a crash all are there, or none. Raises as `_append`."""
        with self._changing:
            if self._pending is not None and self._pending.payload is None:
                return [self._gather(self._pending, *record) for record in records][-1]
            self._catch_up()
            return self._write(self._ready_segment(), journal_reader.TOGETHER, journal_reader.packed(b"", records))

    @contextlib.contextmanager
    def _group(self, note: Note) -> Iterator[None]:
        """Write the records of a `with` block as one, with a note, at its end: after a crash all are there, or none.

        `_release` waits for the end of the block. If the record cannot be written then, the journal `_is_behind`:
        whatever appends to it next, or calls `_catch_up`, first tries to write it again. If the block raises after a
        change, nothing is written any more, since the owner holds a part.
        """
        self._catch_up()
        if self._begun is not None:
            with self._changing:
                self._ready_segment()  # Before the first change, since its base must be without them.
        together = self._pending = _Pending()
        try:
            yield
            together.payload = journal_reader.packed(note(), together.records)
            self._largest_together = max(self._largest_together, len(together.payload))
        except BaseException:
            self._pending = None
            if together.records:
                self._refuse("records that belong together were interrupted")
            raise
        self._catch_up()

    def _catch_up(self) -> None:
        """Write what `_group` has gathered, if it could not be written before."""
        with self._changing:
            together = self._pending
            if together is not None and together.payload is not None:
                self._check_usable()
                assert self._segment is not None
                self._pending = None
                try:
                    self._write(self._segment, journal_reader.TOGETHER, together.payload)
                except BaseException:
                    self._pending = together
                    raise
                with contextlib.suppress(errors.ReplayError):  # The record is written; the next one tries again.
                    self._release(together.is_gone)

    def _gather(self, together: _Pending, kind: int, payload: bytes) -> int:
        num_bytes = together.num_bytes + len(payload)
        if num_bytes > _MOST_TOGETHER:
            raise errors.ArgumentError(f"records together must have at most {_MOST_TOGETHER} bytes, got {num_bytes}")
        together.num_bytes = num_bytes
        together.records.append((kind, payload))
        return self._num_records

    def _write(self, segment: segment_lib.OpenSegment, kind: int, payload: bytes) -> int:
        number, end = self._num_records, segment.end
        record = journal_reader.framed(number, kind, payload, segment.seed)
        try:
            segment.write(record)
            self._num_records = number + 1
            if self._is_due and not self._delayed_syncs.depth:
                self.sync()
        except BaseException as error:
            # Also on an interrupt, which may come between writing and counting.
            self._take_back(segment, number, end)
            if isinstance(error, OSError):
                raise errors.CheckpointError(f"{files.named(self.path)} {_UNWRITTEN}: {files.reason(error)}") from error
            raise
        return number

    def sync(self) -> None:
        """Sync all appended records to disk.

        Raises:
            ClosedError: The journal was closed.
            CheckpointError: The disk failed, now or earlier; the journal refuses further writes.
        """
        self._catch_up()
        with self._lock:
            self._check_usable()
            self._sync()

    async def synced(self, number: int | None = None) -> None:
        """Wait until the first `number` records are on disk, or all appended so far.

        The event loop keeps running: one sync at a time runs in a thread, for all waiting callers. Cancelling one does
        not affect the others.

        Raises:
            ArgumentError: There are not that many records.
            ClosedError: The journal was closed, and did not sync them.
            CheckpointError: The disk failed, now or earlier; the journal refuses further writes.
        """
        number = self._num_records if number is None else validation.non_negative_int("number", number)
        if number > self._num_records:
            raise errors.ArgumentError(f"number must be at most {self._num_records}, that of all records, got {number}")
        loop = asyncio.get_running_loop()
        while self._num_synced < number:
            self._check_usable()
            if self._shared is None or self._shared.done() or self._shared.get_loop() is not loop:
                self._shared = loop.run_in_executor(None, self._sync_in_background)
            await asyncio.shield(self._shared)

    def _release(self, is_gone: Callable[[Any], bool]) -> None:
        """Delete the segments before the last one at whose beginning the newest is gone by now, and older things too.

        The records so far are synced first, for they tell why it is gone. What fails is done by the next call.
        """
        if self._pending is not None:  # What is gone in memory only may still be needed.
            self._pending.is_gone = is_gone
            return
        with self._changing:
            count = sum(1 for _ in itertools.takewhile(lambda begun: is_gone(begun[1]), self._newest))
            if count:
                self.sync()
                self._prune(self._newest[count - 1][0])
                del self._newest[:count]

    def _prune(self, before: int) -> int:
        """Delete the segments but the last that hold no record numbered `before` or later, and return how many.

        The new start of the journal is recorded on disk before; a segment that cannot be deleted, since a process reads
        it on Windows, is no longer part of the journal, and goes when that is next opened.
        """
        self._check_usable()
        oldest = max((first for first in self._firsts if first <= before), default=0)
        gone = [first for first in self._firsts if first < oldest]
        if not gone:
            return 0
        with files.raising(self.path, "could not be pruned"):
            segment_lib.mark(self.path, oldest, journal_reader.OLDEST)
            for first in gone:
                segment_lib.delete(self.path, first)
                self._firsts.remove(first)
            self._drop_base()
        return len(gone)

    def close(self) -> None:
        """Sync appended records, unless the policy is "never", and release the directory.

        A mark is left in it that says how many records are on disk, so that segments that are missing later are
        noticed. A write or sync under way in another thread ends first, and later ones raise ClosedError. A second call
        does nothing; in a forked process, it only releases the directory.

        Raises:
            CheckpointError: The disk failed to sync, now or before. The journal is closed in any case.
        """
        is_forked = os.getpid() != self._pid
        with contextlib.nullcontext() if is_forked else self._changing:
            try:
                if not is_forked and not self._closing.is_set():
                    with contextlib.suppress(errors.CheckpointError):
                        self._catch_up()
                    self._closing.set()
                    if self._syncer is not None:
                        self._syncer.join()
                    with self._lock:
                        try:
                            if self._fsync != "never":
                                self._sync()
                            if self._num_synced:
                                with contextlib.suppress(OSError):  # Then it is like one of a process that was killed.
                                    segment_lib.mark(self.path, self._num_synced, journal_reader.CLOSED)
                        finally:
                            self._refusal = _CLOSED
            finally:
                self._refusal = _CLOSED
                if self._segment is not None:
                    self._segment.close()
                self._held.close()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self, stack: contextlib.ExitStack) -> None:
        """Take the lock, and continue at the end of the journal, if there is one."""
        if not os.path.lexists(self.path):
            os.mkdir(self.path)
        stack.enter_context(journal_reader.locked(self.path))
        reading = journal_reader.Reading(self.path)
        for _ in reading.records(only_last=True):
            pass
        self._firsts, segment = reading.firsts, reading.segment
        for name in reading.left_over:  # The mark of having been closed is among them.
            with contextlib.suppress(PermissionError):
                os.unlink(os.path.join(self.path, name))
        if reading.oldest:
            self._drop_base()
        # Their creator may have been killed before the names were on disk.
        files.fsync_directory(os.path.dirname(self.path))
        files.fsync_directory(self.path)
        if segment is not None:
            self._segment = segment_lib.OpenSegment(segment, self._segment_bytes)
            stack.callback(self._segment.close)
            if segment.size > segment.end:
                self._segment.cut(segment.end)
            sync_file(self._segment.descriptor)
            self._num_records = self._num_synced = segment.number

    def _drop_base(self) -> None:
        """Delete the checkpoint that the journal began with; retried at the next opening if that fails."""
        shutil.rmtree(os.path.join(self.path, journal_reader.CHECKPOINT), ignore_errors=True)

    def _begin_segment(
        self, base: Callable[[], bytes], carried: Callable[[], Records], newest: Callable[[], Any]
    ) -> None:
        """Continue in a new segment; if it cannot be created, in the old one."""
        first, before = self._num_records, self._segment
        place = journal_reader.segment_path(self.path, first)
        records = itertools.chain([(journal_reader.BASE, base())], carried())
        if self._note is not None:
            records = itertools.chain(records, [(journal_reader.TOGETHER, journal_reader.packed(self._note(), ()))])
        salt = int.from_bytes(os.urandom(8), "little") if before is None else before.salt
        with self._lock:
            self._sync()
            self._refuse("making a segment was interrupted")
            try:
                with files.raising(self.path, _UNWRITTEN):
                    segment = segment_lib.create(place, first, records, salt)
                    files.fsync_directory(self.path)
                    self._segment = segment_lib.OpenSegment(segment, self._segment_bytes)
            except BaseException:
                if not os.path.lexists(place):
                    self._refusal = None
                raise
            self._firsts.append(first)
            if before is not None:
                before.close()
                self._newest.append((first, newest()))
            self._num_records = self._num_synced = segment.number
            self._refusal = None

    def _ready_segment(self) -> segment_lib.OpenSegment:
        """Return a segment to append to, a new one if the last is full."""
        segment = self._segment
        if self._refusal is not None or segment is None or segment.end >= segment.limit:
            self._check_usable()
            assert self._begun is not None
            self._begin_segment(*self._begun)
            segment = self._segment
            assert segment is not None
        return segment

    def _take_back(self, segment: segment_lib.OpenSegment, number: int, end: int) -> None:
        """Undo a record that was not completely written and counted."""
        with self._lock:
            earlier = self._refusal
            self._refuse("an append that failed left a part of its record in it")
            with contextlib.suppress(OSError):
                segment.cut(end)
                self._num_records = number
                self._num_synced = min(self._num_synced, number)
                self._refusal = earlier

    def _sync(self) -> None:
        """Sync with the lock held."""
        number = self._num_records
        if number == self._num_synced:
            return
        self._check_usable()
        with files.raising(self.path, "could not be synced"):
            try:
                assert self._segment is not None
                sync_file(self._segment.descriptor)
            except OSError as error:
                self._refuse(f"the disk failed to sync it: {files.reason(error)}")
                raise
        self._num_synced = number

    def _sync_in_background(self) -> None:
        """Sync, and leave failures for the next call to report."""
        with contextlib.suppress(errors.ReplayError), self._lock:
            self._sync()

    def _check_usable(self) -> None:
        """Raise the reason why the journal cannot be written, if any."""
        if self._refusal is not None:
            kind, why = self._refusal
            raise kind(f"{files.named(self.path)} cannot be written: {why}")

    def _refuse(self, why: str) -> None:
        self._refusal = errors.CheckpointError, f"{why}; open it again"

    def _stop_in_a_fork(self) -> None:
        process = f"it was opened by process {self._pid}, and this is its fork {os.getpid()}"
        self._refusal = errors.CheckpointError, process


class Bound(abc.ABC):
    """Writes to a journal on behalf of a buffer.

    Args:
        journal: The journal.
        begun: What `_newest` returned for each segment that is there, with the number of its first record.
    """

    def __init__(self, journal: Journal, begun: Sequence[tuple[int, Any]]) -> None:
        self._journal, self._begun = journal, begun

    def begin(
        self,
        journal_id: str,
        base: Callable[[], bytes],
        first_base: Callable[[], bytes],
        records: Sequence[tuple[int, bytes]] = (),
    ) -> None:
        """Prepare the journal, or raise and change nothing.

        Args:
            journal_id: The id of the journal.
            base: Returns the contents that its next segment begins with.
            first_base: Returns those of its first one, if there is none yet.
            records: What happened since the journal was replayed: it is written now, as one record.
        """
        self._journal_id, newest, begun = journal_id, self._newest, self._begun
        self._journal._begin(base, self._carried, first_base, newest=newest, begun=begun, records=records)

    def place(self) -> dict[str, Any]:
        """Return how far the journal goes, as part of a state."""
        self._journal._catch_up()
        return {"id": self._journal_id, "num_records": self._journal.num_records}

    def sync(self) -> None:
        """Sync the journal, if that works: otherwise a checkpoint could survive records that precede it."""
        with contextlib.suppress(errors.ReplayError):
            self._journal.sync()

    def prepare(self) -> None:
        """Do what must precede a change: a segment that begins with the next record is without it."""
        self.release()
        self._journal._ready_segment()

    def write_record(self, kind: int, payload: bytes) -> None:
        """Write a record."""
        self._journal._append(kind, payload)

    def write_together(self, records: Records) -> None:
        """Write records as one: after a crash all are there, or none."""
        self._journal._append_all(records)

    def save_base(self, state: state_lib.State) -> None:
        """Save the state that the journal is to begin with as a checkpoint, which its first record refers to."""
        path = journal_reader.checkpoint_of(self._journal.path)
        with files.raising(self._journal.path, _UNWRITTEN):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        checkpoint.save(state, path)

    def release(self) -> None:
        """Delete the segments of which all is gone."""
        self._journal._release(self._is_gone)

    def release_all(self) -> None:
        """Delete all segments but the last, since all in them is gone."""
        self._journal._release(lambda newest: True)

    def _carried(self) -> Records:
        """Return the records that follow the base of a segment."""
        return ()

    @abc.abstractmethod
    def _newest(self) -> Any:
        """Return what the buffer stored last."""

    @abc.abstractmethod
    def _is_gone(self, newest: Any) -> bool:
        """Return whether what `_newest` returned once is gone by now, and older things too."""

    def delayed_syncs(self) -> contextlib.AbstractContextManager[None]:
        """Write the records of a `with` block without syncing: then await `synced`."""
        return self._journal._delayed_syncs

    async def synced(self) -> None:
        """Wait until everything written is on disk, if the policy requires it; concurrent calls share one sync."""
        if self._journal._is_due:
            await self._journal.synced()


_OPEN: "weakref.WeakSet[Journal]" = weakref.WeakSet()
_stop_in_a_fork = duplicates.tell_forks(_OPEN, Journal._stop_in_a_fork)


def _sync_now_and_then(reference: "weakref.ref[Journal]", closing: threading.Event, seconds: float) -> None:
    """Sync a journal periodically until it is closed or garbage collected."""
    while not closing.wait(seconds):
        journal = reference()
        if journal is None:
            return
        journal._sync_in_background()
        del journal
