"""MemmapStorage: the columns of a buffer in memory-mapped files, which may be larger than memory and persist.

    write, write_rows ─> arrays over mapped files ── the kernel, when it likes; flush, now ──> disk

    clean, generation g ── first write ──> dirty ── flush ──> clean, generation g + 1
                                             └── killed ──> dirty when it is opened again

A clean map of generation g holds exactly the rows flushed with that generation. Everything outside the columns, such as
the order of rows, belongs to the buffer and is saved in its checkpoint.
"""

from collections.abc import Mapping
import itertools
import math
import mmap
import os
import pathlib
import tempfile
from typing import Any, Literal, NoReturn, Self
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


class MemmapStorage(memory.ColumnStorage):
    """A ColumnStorage whose rows are in memory-mapped files under a directory.

    The files are sparse: a row takes disk space once it is written. If the disk is full then, the kernel kills the
    process (SIGBUS).

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
    ) -> None:
        """Create the files, or open existing ones without reading rows. O(1)."""
        self._path = pathlib.Path(files.absolute("path", path))
        self._refusal: errors.ReplayError | None = None
        if schema is not None:
            schema_lib.require("schema", schema)
        if capacity is not None:
            capacity = validation.positive_int("capacity", capacity)
        validation.require_choice("mode", mode, ("r+", "r"))
        is_writable = mode == "r+"
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
                folder.make(new)
            self._open(schema, capacity)
        except BaseException:
            self._closer()
            raise
        if not is_writable:
            rule = f"rows must not be written to {self._path} with mode='r': open it with mode='r+'"
            self._refuse_writes(errors.ArgumentError(rule))
        _OPEN.add(self)

    def _open(self, schema: schema_lib.Schema | None, capacity: int | None) -> None:
        """Map existing files."""
        folder = self._folder
        there = folder.description()
        if schema is not None and schema != there.schema:
            raise errors.ArgumentError(f"schema must be that of {self._path}, {there.schema}, got {schema}")
        if capacity is not None and capacity != there.capacity:
            raise errors.ArgumentError(f"capacity must be that of {self._path}, {there.capacity}, got {capacity}")
        self._id = there.id
        self._generation, self._was_dirty = folder.generation(there.id)
        self._is_dirty = self._is_ready = self._was_dirty
        numbers = itertools.count()

        def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> arrays.Array:
            return folder.mapped(next(numbers), shape, dtype)

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

    # Writing.

    def prepare(self) -> None:
        """Mark the map dirty on disk, before the first row is written.

        Raises:
            ArgumentError: The map is open for reading alone, or by the parent of this fork.
            ClosedError: It was closed.
            CheckpointError: The disk is full or broken.
        """
        if self._refusal is not None:
            raise self._refusal
        if not self._is_dirty:
            self._folder.mark_dirty()
        self._is_dirty = self._is_ready = True

    def _refuse_writes(self, refusal: errors.ReplayError) -> None:
        self._refusal, self._is_ready = refusal, False

    def _begin_in_a_fork(self) -> None:
        """Refuse writes: they would change the rows of the parent, which alone marks them clean."""
        if self._closer.alive and self._folder.is_writable:
            self._folder.is_writable = False
            rule = f"rows must not be written to {self._path} by a fork of the process that opened it"
            self._refuse_writes(errors.ArgumentError(f"{rule}: write there, or to another directory"))

    def flush(self) -> None:
        """Write all rows to disk as a new generation; does nothing if no row was written.

        Raises:
            CheckpointError: The disk is full or broken; the map stays dirty.
        """
        if self._is_dirty and self._folder.is_writable:
            self._folder.mark_clean(self._id, self._generation + 1)
            self._generation += 1
            self._is_dirty = self._is_ready = False

    def close(self) -> None:
        """Flush, release the lock and close the files; rows can no longer be read or written.

        Closing twice has no effect.

        Raises:
            CheckpointError: As in `flush`; the storage stays open.
        """
        self.flush()
        if self._closer.alive:
            refusal = errors.ClosedError(f"{self._path} was closed: open it again")
            self._refuse_writes(refusal)
            self._columns, self._records, self._bytes = _Closed(refusal), [], []
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


class _Closed(Mapping[str, arrays.Array]):
    """Stands in for arrays that must not be read any more, and raises."""

    def __init__(self, error: errors.ClosedError) -> None:
        self._error = error

    def _refuse(self, *_: object) -> NoReturn:
        raise self._error

    __getitem__ = __iter__ = __len__ = _refuse


_OPEN: "weakref.WeakSet[MemmapStorage]" = weakref.WeakSet()
_begin_in_a_fork = duplicates.tell_forks(_OPEN, MemmapStorage._begin_in_a_fork)
