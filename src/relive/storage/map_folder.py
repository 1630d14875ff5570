"""The directory of a memory map: which files there are, whether they are what they were, and who may write to them.

    storage.json    what it is; made last, so that without it there is no memory map
    clean.json      id and generation: every row of that generation is on the disk
    dirty.json      the same file while rows are written: a new name needs no room on a full disk
    rows-0.bin      the rows of the first block, and so on

No name comes from a file, and no link is followed.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
import math
import mmap
import os
import re
import sys
from typing import Any
import uuid

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.persistence import files
from relive.persistence import sealed_json
from relive.persistence import settings
from relive.persistence import state
from relive.schema import schema as schema_lib
from relive.storage import memory

VERSION = 1
_FORMAT = "relive memory map"
_ID = re.compile(r"[0-9a-f]{32}")


def rows_file(number: int) -> str:
    """Return the name of the file of a block."""
    return f"rows-{number}.bin"


def unsealed(file: str, content: bytes) -> state.StateReader:
    """Return the members of a sealed object; raise CheckpointError, which begins with `file`, if it is none."""
    return state.StateReader(sealed_json.unsealed(file, content), {})


@dataclasses.dataclass(frozen=True)
class Description:
    """What a memory map says of itself."""

    id: str
    schema: schema_lib.Schema
    capacity: int

    @property
    def sizes(self) -> list[int]:
        """The bytes of each block."""
        fields = self.schema.fields
        blocks = schema_lib.blocks_of(self.schema)
        return [self.capacity * sum(fields[path].nbytes for path in paths) for paths in blocks]

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The file of each block, the fields in it and its bytes."""
        blocks = zip(schema_lib.blocks_of(self.schema), self.sizes, strict=True)
        return [
            {"file": rows_file(number), "fields": list(paths), "bytes": size}
            for number, (paths, size) in enumerate(blocks)
        ]

    def encoded(self) -> bytes:
        """Return the manifest."""
        return sealed_json.sealed(
            {
                "format": _FORMAT,
                "version": VERSION,
                "id": self.id,
                "schema": settings.encoded(self.schema),
                "capacity": self.capacity,
                "blocks": self.blocks,
            }
        )


def new(schema: schema_lib.Schema, capacity: int) -> Description:
    """Return the description of a memory map to be made.

    Raises:
        ArgumentError: No file can hold it.
    """
    description = Description(uuid.uuid4().hex, schema, capacity)
    if sum(description.sizes) > sys.maxsize:
        raise errors.ArgumentError(f"capacity must be of at most {sys.maxsize} bytes in all, got {capacity} rows")
    try:
        same = decoded("it", description.encoded()) == description
        memory.ColumnStorage(schema, 1)
    except (errors.CheckpointError, ValueError) as error:
        raise errors.ArgumentError(f"schema must be one that files can hold: {error}") from error
    if not same:
        raise errors.ArgumentError(f"schema must be one that files can hold, got {schema}")
    return description


def decoded(file: str, content: bytes) -> Description:
    """Return what a manifest describes.

    Raises:
        CheckpointError: It is that of something else, of a newer version, was changed, or does not fit together; the
            message begins with `file`.
    """
    sealed_json.require_version(file, content, _FORMAT, VERSION)
    given = unsealed(file, content)
    try:
        identity = given.text("id")
        if not _ID.fullmatch(identity):
            raise given.refused("id", "32 digits of hexadecimal", identity)
        schema = settings.load(given, {"schema": None})["schema"]
        if schema is None:
            raise given.refused("schema", "one", None)
        description = Description(identity, schema, given.integer("capacity", 1))
        if given.value("blocks") != description.blocks:
            raise given.refused("blocks", "those of its schema and capacity", given.value("blocks"))
    except (errors.CheckpointError, RecursionError) as error:
        raise errors.CheckpointError(f"{file} cannot be read: {error}") from error
    return description


def encoded_state(identity: str, generation: int) -> bytes:
    """Return the file that says of which generation the rows are."""
    return sealed_json.sealed({"id": identity, "generation": generation})


def decoded_state(file: str, content: bytes, identity: str) -> int:
    """Return the generation that the file of the memory map of that id says.

    Raises:
        CheckpointError: It was changed, or is that of another memory map; the message begins with `file`.
    """
    given = unsealed(file, content)
    try:
        if given.text("id") != identity:
            raise given.refused("id", repr(identity), given.value("id"))
        return given.integer("generation")
    except errors.CheckpointError as error:
        raise errors.CheckpointError(f"{file} cannot be read: {error}") from error


MANIFEST, CLEAN, DIRTY = "storage.json", "clean.json", "dirty.json"
_NEW = ".new"
_OURS = re.compile(r"(storage|clean)\.json(\.new)?|rows-\d+\.bin")
_LARGEST = 1 << 21
"""Bytes of the largest JSON file that is read."""


class MapFolder:
    """The directory of one memory map, held open, and locked while somebody may write to it."""

    def __init__(self, path: str, *, is_writable: bool, may_create: bool) -> None:
        """Open the directory; waits for nobody.

        Args:
            path: Where it is.
            is_writable: Whether to lock it for the one that writes.
            may_create: Whether to make the directory if there is none.

        Raises:
            CheckpointError: There is none, or somebody else has locked it.
        """
        self.path = path
        self.is_writable = is_writable
        self._maps: dict[int, mmap.mmap] = {}
        with contextlib.ExitStack() as stack:
            with self._reported("", "opened"):
                if may_create and not os.path.lexists(path):
                    os.makedirs(path, exist_ok=True)
                    files.fsync_directory(os.path.dirname(path))
                self._directory = stack.enter_context(files.Directory(path, follow=True))
            if is_writable:
                stack.enter_context(files.locked(os.path.realpath(path)))
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Close the directory, and let others write to it; the arrays may live on."""
        self._maps.clear()
        self._stack.close()

    def file(self, name: str) -> str:
        """Return the path of a file, for messages."""
        return files.named(self._place(name))

    def holds(self, name: str) -> bool:
        """Return whether there is something of that name."""
        return os.path.lexists(self._place(name))

    # Making one.

    def make(self, new: Description, *, reserve: bool) -> None:
        """Make all files: the state of generation 0, those of the rows, and last the manifest.

        Args:
            new: What the manifest says.
            reserve: Whether to give the files of the rows all their room on the disk.

        Raises:
            CheckpointError: There is something in the directory, or a file cannot be made; then none is left.
        """
        self._make_empty()
        try:
            self._write(MANIFEST + _NEW, new.encoded())
            self._write(CLEAN, encoded_state(new.id, 0))
            for number, size in enumerate(new.sizes):
                name = rows_file(number)
                with self._reported(name, f"made of {size} bytes"), open(self._directory.create(name), "wb") as stream:
                    stream.truncate(size)
                    if reserve:
                        self._reserve(name, stream.fileno(), size)
                    files.fsync_file(stream.fileno())
            self._rename(MANIFEST + _NEW, MANIFEST)
        except errors.CheckpointError:
            with contextlib.suppress(errors.CheckpointError):
                self._remove(list(filter(_OURS.fullmatch, self._names())))
            raise

    def _make_empty(self) -> None:
        """Remove what was left by one that was killed while it made a memory map; raise if anything else is there."""
        names = self._names()
        if names and not (MANIFEST + _NEW in names and all(map(_OURS.fullmatch, names))):
            raise errors.CheckpointError(
                f"{self.file('')} holds {files.named(names[0])} and no {MANIFEST}: "
                "a memory map needs a directory that is new or empty"
            )
        # In their order: the one that says what they are goes last.
        self._remove(names)

    # Opening one.

    def description(self) -> Description:
        """Return what the manifest describes.

        Raises:
            CheckpointError: It is missing, damaged or foreign.
        """
        return decoded(self.file(MANIFEST), self._read(MANIFEST))

    def generation(self, identity: str) -> tuple[int, bool]:
        """Return the generation of the map of that id, and whether rows may have been written since.

        Raises:
            CheckpointError: The file that says so is missing, damaged, or that of another map.
        """
        # Both are there if one was killed between the last two steps of `mark_clean`.
        name = DIRTY if self.holds(DIRTY) and not self.holds(CLEAN) else CLEAN
        generation = decoded_state(self.file(name), self._read(name), identity)
        return generation, name == DIRTY

    def mapped(self, number: int, shape: tuple[int, ...], dtype: np.dtype[Any], *, reserve: bool) -> npt.NDArray[Any]:
        """Return a file of rows as an array; none of it is read. O(1).

        Args:
            number: Of which block.
            shape: What the array must be.
            dtype: What is in it.
            reserve: Whether to give the file all its room on the disk first; what is in it stays.

        Raises:
            CheckpointError: The file is missing, is no file, or is of another size, or there is not so much room.
        """
        name, size = rows_file(number), math.prod(shape) * dtype.itemsize
        with self._reported(name, "mapped"), open(self._open(name), "rb") as stream:
            found = os.fstat(stream.fileno()).st_size
            if found != size:
                raise errors.CheckpointError(f"{self.file(name)} must be of {size} bytes, got {found}")
            if not size:
                return np.zeros(shape, dtype)
            if reserve:
                self._reserve(name, stream.fileno(), size)
            access = mmap.ACCESS_WRITE if self.is_writable else mmap.ACCESS_READ
            rows = self._maps[number] = mmap.mmap(stream.fileno(), size, access=access)
            return np.ndarray(shape, dtype, rows)

    # Writing to one.

    def mark_dirty(self) -> None:
        """Set that rows are written from now on; it is on the disk when this returns."""
        self._rename(CLEAN, DIRTY)

    def mark_clean(self, identity: str, generation: int) -> None:
        """Write all rows to the disk, and then set that they are those of a generation."""
        for number, rows in self._maps.items():
            with self._reported(rows_file(number), "written"):
                rows.flush()
        self._write(CLEAN + _NEW, encoded_state(identity, generation))
        try:
            self._rename(CLEAN + _NEW, CLEAN)
            self._remove([DIRTY])
        except errors.CheckpointError:
            # Whoever hears of the error goes on as with a dirty one, and does not mark it again.
            with contextlib.suppress(errors.CheckpointError):
                self._rename(CLEAN, DIRTY)
            raise

    # Files.

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
        """Return the descriptor of a regular file, to write to if that is allowed."""
        descriptor = self._directory.open(name)
        if not self.is_writable:
            return descriptor
        os.close(descriptor)
        return os.open(self._place(name), os.O_RDWR | files.STRICT)

    def _read(self, name: str) -> bytes:
        with self._reported(name, "read"), open(self._directory.open(name), "rb") as stream:
            content = stream.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise errors.CheckpointError(f"{self.file(name)} must be of at most {_LARGEST} bytes")
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

    def _reserve(self, name: str, descriptor: int, size: int) -> None:
        if size:
            with self._reported(name, f"given {size} bytes on the disk"):
                os.posix_fallocate(descriptor, 0, size)

    def _remove(self, names: list[str]) -> None:
        for name in names:
            with self._reported(name, "removed"):
                self._directory.unlink(name)
        with self._reported("", "synced"):
            files.fsync_directory(self.path)
