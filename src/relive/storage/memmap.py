"""MemmapStorage: the columns of a buffer in memory-mapped files, which may be larger than memory and persist.

    write, write_rows ─> arrays over mapped files ── the kernel, when it likes; flush, now ──> disk

    clean, generation g ── first write ──> dirty ── flush ──> clean, generation g + 1
                                             └── killed ──> dirty when it is opened again

A clean map of generation g holds exactly the rows flushed with that generation. Everything outside the columns, such as
the order of rows, belongs to the buffer and is saved in its checkpoint.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import itertools
import math
import mmap
import os
import pathlib
import tempfile
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
    """A ColumnStorage whose rows are in memory-mapped files under a directory.

    The files are sparse: a row takes disk space once it is written. If the disk is full then, the kernel kills the
    process (SIGBUS). `reserve=True` allocates all space when the files are created.

    Only one process can write at a time. Call `flush` to make the rows durable, or `close` when done; after neither,
    `was_dirty` is True when the files are opened again. The storage cannot be copied or pickled. A forked process can
    read the parent's rows but not write; closing it there does not affect the parent.

    Args:
        path: The directory. If it is missing or empty, and `schema` and `capacity` are given, the files are created
            there.
        schema: The schema of a row; must match existing files. None to read it from the files.
        capacity: Number of slots; None as for `schema`.
        mode: "r+" to read and write; "r" to read only, even while another process writes, in which case rows may be
            torn.
        reserve: Whether to allocate all disk space at once.

    Raises:
        CheckpointError: The files are missing, damaged, foreign or of a newer version, the disk is full, or another
            process has them open for writing.
        ArgumentError: The files hold another schema or capacity, or an argument is invalid.

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
        """Create the files, or open existing ones without reading rows. O(1)."""
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
        # Not a bound method, which would keep the storage alive.
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
        """Map existing files."""
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

    # Properties.

    @property
    def path(self) -> pathlib.Path:
        """The absolute path of the directory."""
        return self._path

    @property
    def id(self) -> str:
        """The unique id of the memory map: 32 random digits."""
        return self._id

    @property
    def generation(self) -> int:
        """Number of flushes that wrote rows."""
        return self._generation

    @property
    def is_dirty(self) -> bool:
        """Whether rows may have been written since the last flush."""
        return self._is_dirty

    @property
    def was_dirty(self) -> bool:
        """The value of `is_dirty` when the files were opened: True if their writer was killed."""
        return self._was_dirty

    # Writing: `write` and `write_rows` are inherited from ColumnStorage, and act on whatever stands in for the arrays.

    def _await_write(self) -> None:
        """Route the next write, and only that one, through `_begin_write`."""
        begin = weakref.WeakMethod(self._begin_write)
        self._arrays_to_write = self._columns, self._bytes
        self._columns, self._bytes = _First(self._columns, begin), _First(self._bytes, begin)

    def _begin_write(self) -> None:
        """Mark the map dirty on disk before the first row is written."""
        self._folder.mark_dirty()
        self._is_dirty = True
        self._columns, self._bytes = self._arrays_to_write

    def _refuse_writes(self, why: str) -> None:
        rule = f"rows must not be written to {self._path} {why}"
        self._columns = self._bytes = _Refusal(errors.ArgumentError, rule)

    def _begin_in_a_fork(self) -> None:
        """Refuse writes: they would change the rows of the parent, which alone marks them clean."""
        if self._closer.alive and self._folder.is_writable:
            self._folder.is_writable = False
            self._refuse_writes("by a fork of the process that opened it: write there, or to another directory")

    def flush(self) -> None:
        """Write all rows to disk as a new generation; does nothing if no row was written.

        Raises:
            CheckpointError: The disk is full or broken; the map stays dirty.
        """
        if self._is_dirty and self._folder.is_writable:
            self._folder.mark_clean(self._id, self._generation + 1)
            self._generation += 1
            self._is_dirty = False
            self._await_write()

    def close(self) -> None:
        """Flush, release the lock and close the files; rows can no longer be read or written.

        Closing twice has no effect.

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


class TemporaryMaps:
    """Allocates arrays in temporary memory-mapped files, which may be larger than memory and vanish with the process.

    Pass it as `allocate` to a buffer. The files are sparse, as those of a MemmapStorage. They are shared with forks,
    which must not write to them.

    Args:
        directory: Where the files are, which have no names there; on a disk with enough room.

    Raises:
        CheckpointError: No file can be created there.

    >>> import tempfile
    >>> import relive
    >>> from relive.storage import memmap
    >>> buffer = relive.TokenReplayBuffer(10_000_000, allocate=memmap.TemporaryMaps(tempfile.gettempdir()))
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = files.absolute("directory", directory)
        self((1,), np.dtype(np.uint8))

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> arrays.Array:
        """Return an array of zeros.

        Raises:
            CheckpointError: The file cannot be created.
        """
        size = math.prod(shape) * dtype.itemsize
        try:
            with tempfile.TemporaryFile(dir=self._directory) as stream:
                stream.truncate(max(size, 1))
                return np.ndarray(shape, dtype, mmap.mmap(stream.fileno(), max(size, 1)))
        except OSError as error:
            named = files.named(self._directory)
            raise errors.CheckpointError(f"{named} cannot hold {size} bytes: {files.reason(error)}") from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._directory!r})"


class _First(Generic[T]):
    """Calls a function before the first write to the arrays."""

    def __init__(self, parts: Iterable[T], begin: "weakref.WeakMethod[Callable[[], None]]") -> None:
        self._parts = parts
        self._begin = begin

    def __iter__(self) -> Iterator[T]:
        begin = self._begin()
        assert begin is not None
        begin()
        return iter(self._parts)


class _Refusal(Mapping[Any, Any]):
    """Stands in for arrays that must not be accessed, and raises."""

    def __init__(self, kind: type[errors.ReplayError], message: str) -> None:
        self._kind = kind
        self._message = message

    def _refuse(self, *_: object) -> NoReturn:
        raise self._kind(self._message)

    __getitem__ = __iter__ = __len__ = _refuse


_OPEN: "weakref.WeakSet[MemmapStorage]" = weakref.WeakSet()
_begin_in_a_fork = duplicates.tell_forks(_OPEN, MemmapStorage._begin_in_a_fork)
