"""MemmapStorage: the columns of a buffer in files, larger than memory, and there again when they are opened.

    write, write_rows ─> arrays over mapped files ── the kernel, when it likes; flush, now ──> disk

    clean, generation g ── first write ──> dirty ── flush ──> clean, generation g + 1
                                             └── killed ──> dirty when it is opened again

A clean map of generation g holds the rows that it held when that generation was flushed, all of them and no others.
What is not in the columns, such as which row follows which, is the buffer's: a checkpoint keeps it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import itertools
import os
import pathlib
from typing import Any, Generic, Literal, NoReturn, Self, TypeVar
import weakref

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import duplicates
from relive.common import validation
from relive.persistence import files
from relive.schema import schema as schema_lib
from relive.storage import map_folder
from relive.storage import memory

T = TypeVar("T")


class MemmapStorage(memory.ColumnStorage):
    """A storage whose rows are in files under a directory, otherwise a ColumnStorage, and as fast.

    The files are sparse: a row takes room on the disk once it is written. If there is none left then, the kernel kills
    the process (SIGBUS), since there is no call that could fail: `reserve=True` takes all room when the files are made.

    One at a time may write. Who has written calls `close`, or says that nothing is missing so far with `flush`; after
    neither, `was_dirty` is True when the files are opened again. It can be neither copied nor pickled. A forked process
    can read the rows, which are those of its parent, and not write: closing it there closes nothing for the parent.

    Args:
        path: The directory. If it is new or empty, and `schema` and `capacity` are given, the files are made there.
        schema: What a row holds; None for what the files hold, else it must be that.
        capacity: How many slots there are; None as above.
        mode: "r+" to read and write; "r" to look at what is there, also while somebody writes: then rows may be torn.
        reserve: Whether to take all room on the disk at once.

    Raises:
        CheckpointError: The files are missing, damaged, foreign or of a newer version, there is no room, or somebody
            else has opened them to write.
        ArgumentError: The files hold another schema or capacity, or an argument breaks its rule.

    >>> import tempfile
    >>> import relive
    >>> from relive.storage import memmap
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = folder.name + "/rows"
    >>> schema = relive.Schema(relive.Field((84, 84), "uint8"), relive.Field((), int))
    >>> with memmap.MemmapStorage(path, schema, 1_000_000) as rows:
    ...     buffer = relive.RingReplayBuffer(1_000_000, storage=rows)
    ...     key = buffer.add([[7] * 84] * 84, 0, reward=1.0)
    >>> with memmap.MemmapStorage(path) as rows:
    ...     rows.read(0)["reward"].item(), rows.nbytes, rows.generation, rows.was_dirty
    (1.0, 7072000000, 1, False)
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: schema_lib.Schema | None = None,
        capacity: int | None = None,
        *,
        mode: Literal["r+", "r"] = "r+",
        reserve: bool = False,
    ) -> None:
        """Make the files, or open those there are, of which no row is read then. O(1)."""
        self._path = pathlib.Path(files.absolute("path", path))
        if schema is not None:
            schema_lib.require("schema", schema)
        if capacity is not None:
            capacity = validation.positive_int("capacity", capacity)
        validation.require_choice("mode", mode, ("r+", "r"))
        reserve = validation.boolean("reserve", reserve)
        is_writable = mode == "r+"
        if reserve and not is_writable:
            raise errors.ArgumentError("reserve must be False with mode='r', got True")
        if reserve and not hasattr(os, "posix_fallocate"):
            raise errors.ArgumentError("reserve must be False on this system, which cannot reserve, got True")
        new = None
        if is_writable and schema is not None and capacity is not None:
            new = map_folder.new(schema, capacity)
        self._folder = folder = map_folder.MapFolder(
            str(self._path), is_writable=is_writable, may_create=new is not None
        )
        # No method of the storage: that would keep it alive.
        self._closer = weakref.finalize(self, folder.close)
        try:
            if new is not None and not folder.holds(map_folder.MANIFEST):
                folder.make(new, reserve=reserve)
            self._open(schema, capacity, reserve)
        except BaseException:
            self._closer()
            raise
        if not is_writable:
            self._refuse_writes("with mode='r': open it with mode='r+'")
        elif not self._is_dirty:
            self._await_write()
        _OPEN.add(self)

    def _open(self, schema: schema_lib.Schema | None, capacity: int | None, reserve: bool) -> None:
        """Map the files there are."""
        folder = self._folder
        there = folder.description()
        if schema is not None and schema != there.schema:
            raise errors.ArgumentError(f"schema must be that of {self._path}, {there.schema}, got {schema}")
        if capacity is not None and capacity != there.capacity:
            raise errors.ArgumentError(f"capacity must be that of {self._path}, {there.capacity}, got {capacity}")
        self._id = there.id
        self._generation, self._was_dirty = folder.generation(there.id)
        self._is_dirty = self._was_dirty
        numbers = itertools.count()

        def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> arrays.Array:
            return folder.mapped(next(numbers), shape, dtype, reserve=reserve)

        try:
            super().__init__(there.schema, there.capacity, allocate=allocate)
        except ValueError as error:
            raise errors.CheckpointError(f"{folder.file('')} cannot be mapped: {error}") from error

    # What it is.

    @property
    def path(self) -> pathlib.Path:
        """The directory, from the root on."""
        return self._path

    @property
    def id(self) -> str:
        """What no other memory map is called: 32 random digits."""
        return self._id

    @property
    def generation(self) -> int:
        """How many times rows were written and then flushed."""
        return self._generation

    @property
    def is_dirty(self) -> bool:
        """Whether rows may have been written since that generation was flushed."""
        return self._is_dirty

    @property
    def was_dirty(self) -> bool:
        """What `is_dirty` was when the files were opened: True if who wrote to them was killed."""
        return self._was_dirty

    # Writing: `write` and `write_rows` are those of ColumnStorage, which go to whatever stands for the arrays.

    def _await_write(self) -> None:
        """Let the next write, and no other, go through `_begin_write`."""
        begin = weakref.WeakMethod(self._begin_write)
        self._arrays_to_write = self._columns, self._bytes
        self._columns, self._bytes = _First(self._columns, begin), _First(self._bytes, begin)

    def _begin_write(self) -> None:
        """Set on the disk that rows are written, before one is."""
        self._folder.mark_dirty()
        self._is_dirty = True
        self._columns, self._bytes = self._arrays_to_write

    def _refuse_writes(self, why: str) -> None:
        rule = f"rows must not be written to {self._path} {why}"
        self._columns = self._bytes = _Refusal(errors.ArgumentError, rule)

    def _begin_in_a_fork(self) -> None:
        """Only read: what is written here would be in the rows of the parent, who alone says when they are clean."""
        if self._closer.alive and self._folder.is_writable:
            self._folder.is_writable = False
            self._refuse_writes("by a fork of the process that opened it: write there, or to another directory")

    def flush(self) -> None:
        """Return when every row is on the disk, as a new generation; at once if none was written.

        Raises:
            CheckpointError: The disk is full or broken; the map stays dirty.
        """
        if self._is_dirty and self._folder.is_writable:
            self._folder.mark_clean(self._id, self._generation + 1)
            self._generation += 1
            self._is_dirty = False
            self._await_write()

    def close(self) -> None:
        """Flush, and let others write to the files; rows are neither read nor written any more.

        A second time it does nothing.

        Raises:
            CheckpointError: As in `flush`; the storage stays open.
        """
        self.flush()
        if self._closer.alive:
            refusal = _Refusal(errors.ClosedError, f"{self._path} was closed: open it again")
            self._arrays = []
            self._columns = self._bytes = self._sources = refusal
            self._arrays_to_write = refusal, refusal
            self._closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> NoReturn:
        raise errors.ArgumentTypeError(
            f"a memory map cannot be copied or pickled: open {self._path} where it is needed"
        )


class _First(Generic[T]):
    """What is to be written to, for one that wants to hear of it first."""

    def __init__(self, parts: Iterable[T], begin: "weakref.WeakMethod[Callable[[], None]]") -> None:
        self._parts = parts
        self._begin = begin

    def __iter__(self) -> Iterator[T]:
        begin = self._begin()
        assert begin is not None
        begin()
        return iter(self._parts)


class _Refusal(Mapping[Any, Any]):
    """What is to be written to or read, where that is an error."""

    def __init__(self, kind: type[errors.ReplayError], message: str) -> None:
        self._kind = kind
        self._message = message

    def _refuse(self, *_: object) -> NoReturn:
        raise self._kind(self._message)

    __getitem__ = __iter__ = __len__ = _refuse


_OPEN: "weakref.WeakSet[MemmapStorage]" = weakref.WeakSet()
_begin_in_a_fork = duplicates.tell_forks(_OPEN, MemmapStorage._begin_in_a_fork)
