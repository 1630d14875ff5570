"""MemmapStorage: the columns of a buffer in memory-mapped files, which may be larger than memory and persist.

    write, write_rows ─> arrays over mapped files ── the kernel, when it likes; flush, now ──> disk

    clean, generation g ── first write ──> dirty ── flush ──> clean, generation g + 1
                                             └── killed ──> dirty when it is opened again

    storage.json    the manifest; written last, so that without it there is no memory map
    clean.json      id and generation: the files hold exactly the rows flushed with that generation
    dirty.json      the same file while rows are written: renaming works even on a full disk
    rows-0.npy      the rows of the first field, behind a header, so that numpy maps it, too; and so on

Everything outside the columns, such as the order of rows, belongs to the buffer and is saved in its checkpoint. No file
name is read from a file, and no link is followed.
"""

from collections.abc import Iterator, Mapping
import contextlib
import itertools
import math
import mmap
import os
import pathlib
import re
import tempfile
from typing import Any, NoReturn, Self, TypeAlias
import uuid
import weakref

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import duplicates
from relive.common import validation
from relive.persistence import files
from relive.persistence import manifest
from relive.persistence import npy
from relive.persistence import settings
from relive.persistence import state
from relive.schema import schema as schema_lib
from relive.storage import memory

VERSION = 2
_FORMAT = "relive memory map"
_MANIFEST, _CLEAN, _DIRTY, _NEW = "storage.json", "clean.json", "dirty.json", ".new"
_OURS = re.compile(r"(storage|clean)\.json(\.new)?|rows-\d+\.npy")
_ID = re.compile(r"[0-9a-f]{32}")


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

    Raises:
        CheckpointError: The files are missing, damaged, foreign or of a newer version, the disk is full, or another
            process has them open for writing.
        ArgumentError: The files hold another schema or capacity, or an argument is invalid.

    >>> import tempfile
    >>> import relive
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = folder.name + "/rows"
    >>> schema = relive.Schema(relive.Field((84, 84), "uint8"), relive.Field((), int))
    >>> with relive.MemmapStorage(path, schema, 1_000_000) as rows:
    ...     buffer = relive.RingReplayBuffer(1_000_000, storage=rows)
    ...     key = buffer.add([[7] * 84] * 84, 0, reward=1.0)
    >>> with relive.MemmapStorage(path) as rows:
    ...     rows.read(0)["reward"].item(), rows.nbytes, rows.generation, rows.was_dirty
    (1.0, 7072000000, 1, False)
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: schema_lib.Schema | None = None,
        capacity: int | None = None,
    ) -> None:
        """Create the files, or open existing ones without reading rows. O(1)."""
        self._path = pathlib.Path(files.absolute("path", path))
        if schema is not None:
            schema_lib.require("schema", schema)
        if capacity is not None:
            capacity = validation.positive_int("capacity", capacity)
        new = None if schema is None or capacity is None else _new(schema, capacity)
        self._open(_Folder(str(self._path), True, new), schema, capacity)

    def _open(self, folder: "_Folder", schema: schema_lib.Schema | None, capacity: int | None) -> None:
        """Map the files in a directory."""
        self._folder = folder
        self._refusal: errors.ReplayError | None = None
        # Not a bound method, which would keep the storage alive.
        self._closer = weakref.finalize(self, folder.close)
        try:
            self._map(schema, capacity)
        except BaseException:
            self._closer()
            raise
        _OPEN.add(self)

    def _map(self, schema: schema_lib.Schema | None, capacity: int | None) -> None:
        self._id, its_schema, its_capacity = self._folder.description()
        for name, given, its in (("schema", schema, its_schema), ("capacity", capacity, its_capacity)):
            if given is not None and given != its:
                raise errors.ArgumentError(f"{name} must be that of {self._path}, {its}, got {given}")
        self._generation, self._was_dirty = self._folder.generation(self._id)
        self._is_dirty = self._is_ready = self._was_dirty
        try:
            super().__init__(its_schema, its_capacity, allocate=self._folder.allocate)
        except ValueError as error:
            raise errors.CheckpointError(f"{self._folder.file('')} cannot be mapped: {error}") from error

    @property
    def path(self) -> pathlib.Path:
        """The absolute path of the directory."""
        return self._path

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
        """The value of `is_dirty` when the files were opened: True if their writer was killed, or writes now."""
        return self._was_dirty

    def _prepare(self) -> None:
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


def reader(path: str) -> MemmapStorage:
    """Return the map at an absolute path for reading alone, even while another process writes to it."""
    storage = MemmapStorage.__new__(MemmapStorage)
    storage._path = pathlib.Path(path)
    storage._open(_Folder(path, False, None), None, None)
    rule = f"rows must not be written to {path}, which is open for reading alone"
    storage._refuse_writes(errors.ArgumentError(rule))
    return storage


def flushed(storage: object) -> dict[str, Any]:
    """Return what a checkpoint says of the rows of a storage, which are flushed, instead of holding them.

    Raises:
        ArgumentError: The storage is not a memory map.
        CheckpointError: As in `flush`.
    """
    if not isinstance(storage, MemmapStorage):
        raise errors.ArgumentError("copy_rows must be True unless the storage is a MemmapStorage, got False")
    storage.flush()
    return {"id": storage._id, "generation": storage.generation}


def check_rows(storage: object, given: state.StateReader) -> None:
    """Raise CheckpointError unless a storage has the rows of which `flushed` returned that."""
    if not isinstance(storage, MemmapStorage):
        raise errors.CheckpointError("the rows are in a memory map: load with storage=MemmapStorage(...)")
    if given.text("id") != storage._id:
        raise errors.CheckpointError(f"storage must be the memory map {given.text('id')}, got {storage._id}")
    if storage.is_dirty or given.integer("generation") != storage.generation:
        raise errors.CheckpointError(
            "the memory map was written to after the checkpoint was saved: recover the buffer from a journal, or "
            "load a checkpoint with copied rows"
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
    >>> buffer = relive.TokenReplayBuffer(10_000_000, allocate=relive.TemporaryMaps(tempfile.gettempdir()))
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = files.absolute("directory", directory)
        self((1,), np.dtype(np.uint8))

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> arrays_lib.Array:
        """Return an array of zeros.

        Raises:
            CheckpointError: The file cannot be created.
        """
        size, named = math.prod(shape) * dtype.itemsize, files.named(self._directory)
        if size > memory.MOST_BYTES:
            raise errors.CheckpointError(f"{named} cannot hold {size} bytes: no process can address them")
        try:
            with tempfile.TemporaryFile(dir=self._directory) as stream:
                stream.truncate(max(size, 1))
                return np.ndarray(shape, dtype, mmap.mmap(stream.fileno(), max(size, 1)))
        except OSError as error:
            raise errors.CheckpointError(f"{named} cannot hold {size} bytes: {files.reason(error)}") from error

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._directory!r})"


_Map: TypeAlias = tuple[str, schema_lib.Schema, int]
"""The id, schema and capacity of a memory map."""


def _members(schema: schema_lib.Schema, capacity: int) -> dict[str, npy.Member]:
    """Return what the file of each field holds, by the path of the field."""
    fields = enumerate(schema.fields.items())
    return {path: npy.Member(f"rows-{number}", each.dtype, (capacity, *each.shape)) for number, (path, each) in fields}


def _manifest(identity: str, schema: schema_lib.Schema, capacity: int) -> dict[str, Any]:
    """Return the members of the manifest of a memory map: the file of each field and its bytes are its blocks."""
    blocks = [
        {"file": member.file, "fields": [path], "bytes": member.size}
        for path, member in _members(schema, capacity).items()
    ]
    head = {"format": _FORMAT, "version": VERSION, "id": identity}
    return {**head, "schema": settings.encoded(schema), "capacity": capacity, "blocks": blocks}


def _new(schema: schema_lib.Schema, capacity: int) -> _Map:
    """Return what a new memory map is to be; raise ArgumentError if files cannot hold the rows."""
    new = uuid.uuid4().hex, schema, capacity
    with memory.room_for("capacity", capacity, schema.nbytes, "rows"):
        pass
    try:
        same = _decoded("it", manifest.sealed(_manifest(*new))) == new
        memory.ColumnStorage(schema, 1)
    except (errors.CheckpointError, ValueError) as error:
        raise errors.ArgumentError(f"schema must be one that files can hold: {error}") from error
    if not same:
        raise errors.ArgumentError(f"schema must be one that files can hold, got {schema}")
    return new


def _decoded(file: str, content: bytes) -> _Map:
    """Return what a manifest describes."""
    manifest.require_version(file, content, _FORMAT, VERSION)
    with _reader(file, content) as given:
        identity = given.text("id")
        if not _ID.fullmatch(identity):
            raise given.refused("id", "32 digits of hexadecimal", identity)
        schema, capacity = settings.load(given, "schema"), given.integer("capacity", 1)
        if schema is None:
            raise given.refused("schema", "one", None)
        for member in _members(schema, capacity).values():
            member.check()
        if given.value("blocks") != _manifest(identity, schema, capacity)["blocks"]:
            raise given.refused("blocks", "those of its schema and capacity", given.value("blocks"))
    return identity, schema, capacity


@contextlib.contextmanager
def _reader(file: str, content: bytes) -> Iterator[state.StateReader]:
    """Return the members of a sealed object; the errors found in it begin with `file`."""
    given = state.StateReader(manifest.unsealed(file, content), {})
    try:
        yield given
    except (errors.CheckpointError, RecursionError) as error:
        raise errors.CheckpointError(f"{file} cannot be read: {error}") from error


def _sealed_state(identity: str, generation: int) -> bytes:
    """Return the contents of the file that records the generation of the rows."""
    return manifest.sealed({"id": identity, "generation": generation})


class _Folder:
    """The open directory of a memory map, locked while it is writable; every error is a CheckpointError."""

    def __init__(self, path: str, is_writable: bool, new: _Map | None) -> None:
        """Open the directory; never waits for a lock. If it holds no map, `new` is created in it."""
        self.path, self.is_writable = path, is_writable
        self._maps: dict[str, mmap.mmap] = {}
        self._numbers = itertools.count()
        with contextlib.ExitStack() as stack:
            with self._reported("", "opened"):
                if new is not None and not os.path.lexists(path):
                    os.makedirs(path, exist_ok=True)
                    files.fsync_directory(os.path.dirname(path))
                self._directory = stack.enter_context(files.Directory(path, follow=True))
            if is_writable:
                stack.enter_context(files.locked(os.path.realpath(path)))
            if new is not None and not self._directory.has(_MANIFEST):
                self._make(new)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Close the directory and release its lock; the arrays stay valid."""
        self._maps.clear()
        self._stack.close()

    def file(self, name: str) -> str:
        """Return the path of a file, for messages."""
        return files.named(self._place(name))

    def _make(self, new: _Map) -> None:
        """Create the state of generation 0, the rows, and last the manifest; or leave no file."""
        names = self._names()
        # A creation that was killed leaves only these.
        if names and not (_MANIFEST + _NEW in names and all(map(_OURS.fullmatch, names))):
            raise errors.CheckpointError(
                f"{self.file('')} holds {files.named(names[0])} and no {_MANIFEST}: "
                "a memory map needs a directory that is new or empty"
            )
        self._remove(names)  # In this order: the file that identifies them goes last.
        try:
            self._write(_MANIFEST + _NEW, manifest.sealed(_manifest(*new)))
            self._write(_CLEAN, _sealed_state(new[0], 0))
            for member in _members(*new[1:]).values():
                name, size = member.file, member.size
                with self._reported(name, f"made of {size} bytes"), open(self._directory.create(name), "wb") as stream:
                    stream.write(member.header)
                    stream.truncate(size)
                    stream.flush()
                    files.fsync_file(stream.fileno())
            self._rename(_MANIFEST + _NEW, _MANIFEST)
        except errors.CheckpointError:
            with contextlib.suppress(errors.CheckpointError):
                self._remove(list(filter(_OURS.fullmatch, self._names())))
            raise

    def description(self) -> _Map:
        """Return what the manifest describes."""
        return _decoded(self.file(_MANIFEST), self._read(_MANIFEST))

    def generation(self, identity: str) -> tuple[int, bool]:
        """Return the generation of the map of that id, and whether rows may have been written since."""
        # Both exist after a kill between the last two steps of `mark_clean`.
        name = _DIRTY if self._directory.has(_DIRTY) and not self._directory.has(_CLEAN) else _CLEAN
        with _reader(self.file(name), self._read(name)) as given:
            if given.text("id") != identity:
                raise given.refused("id", repr(identity), given.value("id"))
            generation = given.integer("generation")
        return generation, name == _DIRTY

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> arrays_lib.Array:
        """Map the file of the next field as an array, without reading it. O(1)."""
        member = npy.Member(f"rows-{next(self._numbers)}", dtype, shape)
        name, header = member.file, member.header
        with self._reported(name, "mapped"), open(self._open(name), "rb", buffering=0) as stream:
            found = os.fstat(stream.fileno()).st_size
            if found != member.size:
                raise errors.CheckpointError(f"{self.file(name)} must be of {member.size} bytes, got {found}")
            if stream.read(len(header)) != header:
                raise errors.CheckpointError(
                    f"{self.file(name)} must have the header of dtype {dtype} and shape {shape}"
                )
            access = mmap.ACCESS_WRITE if self.is_writable else mmap.ACCESS_READ
            rows = self._maps[name] = mmap.mmap(stream.fileno(), member.size, access=access)
            return np.ndarray(shape, dtype, rows, len(header))

    def mark_dirty(self) -> None:
        """Mark the map as dirty; durable when this returns."""
        self._rename(_CLEAN, _DIRTY)

    def mark_clean(self, identity: str, generation: int) -> None:
        """Write all rows to disk, then mark them as a clean generation."""
        for name, rows in self._maps.items():
            with self._reported(name, "written"):
                rows.flush()
        self._write(_CLEAN + _NEW, _sealed_state(identity, generation))
        try:
            self._rename(_CLEAN + _NEW, _CLEAN)
            self._remove([_DIRTY])
        except errors.CheckpointError:
            # The caller sees the error and treats the map as still dirty, without marking it again.
            with contextlib.suppress(errors.CheckpointError):
                self._rename(_CLEAN, _DIRTY)
            raise

    @contextlib.contextmanager
    def _reported(self, name: str, verb: str) -> Iterator[None]:
        """Turn an OSError into the CheckpointError that names the file."""
        try:
            yield
        except OSError as error:
            raise errors.CheckpointError(f"{self.file(name)} cannot be {verb}: {files.reason(error)}") from error

    def _place(self, name: str) -> str:
        return os.path.join(self.path, name) if name else self.path

    def _names(self) -> list[str]:
        with self._reported("", "read"):
            return sorted(self._directory.names())

    def _open(self, name: str) -> int:
        """Return the descriptor of a regular file, writable if the map is."""
        descriptor = self._directory.open(name)
        if not self.is_writable:
            return descriptor
        os.close(descriptor)
        return os.open(self._place(name), os.O_RDWR | files.STRICT)

    def _read(self, name: str) -> bytes:
        with self._reported(name, "read"), open(self._directory.open(name), "rb") as stream:
            content = stream.read(manifest.MOST_BYTES + 1)
        if len(content) > manifest.MOST_BYTES:
            raise errors.CheckpointError(f"{self.file(name)} must be of at most {manifest.MOST_BYTES} bytes")
        return content

    def _write(self, name: str, content: bytes) -> None:
        with self._reported(name, "written"):
            with contextlib.suppress(FileNotFoundError):
                self._directory.unlink(name)
            files.write_file(self._directory.create(name), content)

    def _rename(self, name: str, new: str) -> None:
        with self._reported(name, f"renamed to {new}"):
            os.replace(self._place(name), self._place(new))
            files.fsync_directory(self.path)

    def _remove(self, names: list[str]) -> None:
        for name in names:
            with self._reported(name, "removed"):
                self._directory.unlink(name)
        with self._reported("", "synced"):
            files.fsync_directory(self.path)


class _Closed(Mapping[str, arrays_lib.Array]):
    """Stands in for arrays that must not be read any more, and raises."""

    def __init__(self, error: errors.ClosedError) -> None:
        self._error = error

    def _refuse(self, *_: object) -> NoReturn:
        raise self._error

    __getitem__ = __iter__ = __len__ = _refuse


_OPEN: "weakref.WeakSet[MemmapStorage]" = weakref.WeakSet()
_begin_in_a_fork = duplicates.tell_forks(_OPEN, MemmapStorage._begin_in_a_fork)
