"""The directory of a memory map: its files, their validation, and the lock of the writer.

    storage.json    the manifest; written last, so that without it there is no memory map
    clean.json      id and generation: every row of that generation is on the disk
    dirty.json      the same file while rows are written: renaming works even on a full disk
    rows-0.bin      the rows of the first field, and so on

No file name is read from a file, and no link is followed.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
import math
import mmap
import os
import re
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
    """Return the name of the file of a field."""
    return f"rows-{number}.bin"


def unsealed(file: str, content: bytes) -> state.StateReader:
    """Return the members of a sealed object; raise CheckpointError, beginning with `file`, if it is invalid."""
    return state.StateReader(sealed_json.unsealed(file, content), {})


@dataclasses.dataclass(frozen=True)
class Description:
    """The manifest of a memory map."""

    id: str
    schema: schema_lib.Schema
    capacity: int

    @property
    def sizes(self) -> list[int]:
        """The bytes of the file of each field."""
        return [self.capacity * field.nbytes for field in self.schema.fields.values()]

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The file of each field, and its bytes."""
        sizes = zip(self.schema.fields, self.sizes, strict=True)
        return [
            {"file": rows_file(number), "fields": [path], "bytes": size} for number, (path, size) in enumerate(sizes)
        ]

    def encoded(self) -> bytes:
        """Return the manifest as bytes."""
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
    """Return the description of a new memory map.

    Raises:
        ArgumentError: A file cannot hold the rows.
    """
    description = Description(uuid.uuid4().hex, schema, capacity)
    with memory.room_for("capacity", capacity, schema.nbytes, "rows"):
        pass
    try:
        same = decoded("it", description.encoded()) == description
        memory.ColumnStorage(schema, 1)
    except (errors.CheckpointError, ValueError) as error:
        raise errors.ArgumentError(f"schema must be one that files can hold: {error}") from error
    if not same:
        raise errors.ArgumentError(f"schema must be one that files can hold, got {schema}")
    return description


def decoded(file: str, content: bytes) -> Description:
    """Return the description in a manifest.

    Raises:
        CheckpointError: The manifest is foreign, of a newer version, damaged or inconsistent; the message begins with
            `file`.
    """
    sealed_json.require_version(file, content, _FORMAT, VERSION)
    given = unsealed(file, content)
    try:
        identity = given.text("id")
        if not _ID.fullmatch(identity):
            raise given.refused("id", "32 digits of hexadecimal", identity)
        schema = settings.load(given, "schema")
        if schema is None:
            raise given.refused("schema", "one", None)
        description = Description(identity, schema, given.integer("capacity", 1))
        if given.value("blocks") != description.blocks:
            raise given.refused("blocks", "those of its schema and capacity", given.value("blocks"))
    except (errors.CheckpointError, RecursionError) as error:
        raise errors.CheckpointError(f"{file} cannot be read: {error}") from error
    return description


def encoded_state(identity: str, generation: int) -> bytes:
    """Return the contents of the file that records the generation of the rows."""
    return sealed_json.sealed({"id": identity, "generation": generation})


def decoded_state(file: str, content: bytes, identity: str) -> int:
    """Return the generation recorded in that file, for the memory map of that id.

    Raises:
        CheckpointError: The file is damaged, or belongs to another memory map; the message begins with `file`.
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
    """The open directory of a memory map, locked while it is writable."""

    def __init__(self, path: str, *, is_writable: bool, may_create: bool) -> None:
        """Open the directory; never waits for a lock.

        Args:
            path: Where it is.
            is_writable: Whether to lock it for writing.
            may_create: Whether to create a missing directory.

        Raises:
            CheckpointError: The directory is missing, or locked by another writer.
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
        """Close the directory and release its lock; the arrays stay valid."""
        self._maps.clear()
        self._stack.close()

    def file(self, name: str) -> str:
        """Return the path of a file, for messages."""
        return files.named(self._place(name))

    def holds(self, name: str) -> bool:
        """Return whether the directory has an entry of that name."""
        return os.path.lexists(self._place(name))

    # Creating.

    def make(self, new: Description) -> None:
        """Create all files: the state of generation 0, the rows, and last the manifest.

        Raises:
            CheckpointError: The directory is not empty, or a file cannot be created; then none is left.
        """
        self._make_empty()
        try:
            self._write(MANIFEST + _NEW, new.encoded())
            self._write(CLEAN, encoded_state(new.id, 0))
            for number, size in enumerate(new.sizes):
                name = rows_file(number)
                with self._reported(name, f"made of {size} bytes"), open(self._directory.create(name), "wb") as stream:
                    stream.truncate(size)
                    files.fsync_file(stream.fileno())
            self._rename(MANIFEST + _NEW, MANIFEST)
        except errors.CheckpointError:
            with contextlib.suppress(errors.CheckpointError):
                self._remove(list(filter(_OURS.fullmatch, self._names())))
            raise

    def _make_empty(self) -> None:
        """Remove the files of a creation that was killed; raise if anything else is there."""
        names = self._names()
        if names and not (MANIFEST + _NEW in names and all(map(_OURS.fullmatch, names))):
            raise errors.CheckpointError(
                f"{self.file('')} holds {files.named(names[0])} and no {MANIFEST}: "
                "a memory map needs a directory that is new or empty"
            )
        # In this order: the file that identifies them goes last.
        self._remove(names)

    # Opening.

    def description(self) -> Description:
        """Return what the manifest describes.

        Raises:
            CheckpointError: The manifest is missing, damaged or foreign.
        """
        return decoded(self.file(MANIFEST), self._read(MANIFEST))

    def generation(self, identity: str) -> tuple[int, bool]:
        """Return the generation of the map of that id, and whether rows may have been written since.

        Raises:
            CheckpointError: The state file is missing, damaged, or belongs to another map.
        """
        # Both exist after a kill between the last two steps of `mark_clean`.
        name = DIRTY if self.holds(DIRTY) and not self.holds(CLEAN) else CLEAN
        generation = decoded_state(self.file(name), self._read(name), identity)
        return generation, name == DIRTY

    def mapped(self, number: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Map the file of a field as an array, without reading it. O(1).

        Raises:
            CheckpointError: The file is missing, not a regular file, or of the wrong size.
        """
        name, size = rows_file(number), math.prod(shape) * dtype.itemsize
        with self._reported(name, "mapped"), open(self._open(name), "rb") as stream:
            found = os.fstat(stream.fileno()).st_size
            if found != size:
                raise errors.CheckpointError(f"{self.file(name)} must be of {size} bytes, got {found}")
            if not size:
                return np.zeros(shape, dtype)
            access = mmap.ACCESS_WRITE if self.is_writable else mmap.ACCESS_READ
            rows = self._maps[number] = mmap.mmap(stream.fileno(), size, access=access)
            return np.ndarray(shape, dtype, rows)

    # Writing.

    def mark_dirty(self) -> None:
        """Mark the map as dirty; durable when this returns."""
        self._rename(CLEAN, DIRTY)

    def mark_clean(self, identity: str, generation: int) -> None:
        """Write all rows to disk, then mark them as a clean generation."""
        for number, rows in self._maps.items():
            with self._reported(rows_file(number), "written"):
                rows.flush()
        self._write(CLEAN + _NEW, encoded_state(identity, generation))
        try:
            self._rename(CLEAN + _NEW, CLEAN)
            self._remove([DIRTY])
        except errors.CheckpointError:
            # The caller sees the error and treats the map as still dirty, without marking it again.
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
        """Return the descriptor of a regular file, writable if the map is."""
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

    def _remove(self, names: list[str]) -> None:
        for name in names:
            with self._reported(name, "removed"):
                self._directory.unlink(name)
        with self._reported("", "synced"):
            files.fsync_directory(self.path)
