"""The directory of a memory map: which files there are, whether they are what they were, and who may write to them.

    storage.json    what it is; made last, so that without it there is no memory map
    clean.json      id and generation: every row of that generation is on the disk
    dirty.json      the same file while rows are written: a new name needs no room on a full disk
    rows-0.bin      the rows of the first block, and so on

No name comes from a file, and no link is followed.
"""

from collections.abc import Iterator
import contextlib
import math
import mmap
import os
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.persistence import directories
from relive.persistence import files
from relive.storage import map_manifest

MANIFEST, CLEAN, DIRTY = "storage.json", "clean.json", "dirty.json"
_NEW = ".new"
_OURS = re.compile(r"(storage|clean)\.json(\.new)?|rows-\d+\.bin")
_LARGEST = 1 << 21
"""Bytes of the largest JSON file that is read."""


class MapFolder:
    """The directory of one memory map, held open, and locked while somebody may write to it."""

    def __init__(self, path: str, *, is_writable: bool, may_create: bool) -> None:
        """Opens the directory; waits for nobody.

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
                    directories.fsync_directory(os.path.dirname(path))
                self._directory = stack.enter_context(directories.Directory(path, follow=True))
            if is_writable:
                stack.enter_context(files.locked(os.path.realpath(path)))
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Closes the directory, and lets others write to it; the arrays may live on."""
        self._maps.clear()
        self._stack.close()

    def file(self, name: str) -> str:
        """Answers the path of a file, for messages."""
        return directories.named(self._place(name))

    def holds(self, name: str) -> bool:
        """Answers whether there is something of that name."""
        return os.path.lexists(self._place(name))

    # Making one.

    def make(self, new: map_manifest.Description, *, reserve: bool) -> None:
        """Makes all files: the state of generation 0, those of the rows, and last the manifest.

        Args:
            new: What the manifest says.
            reserve: Whether to give the files of the rows all their room on the disk.

        Raises:
            CheckpointError: There is something in the directory, or a file cannot be made; then none is left.
        """
        self._make_empty()
        try:
            self._write(MANIFEST + _NEW, new.encoded())
            self._write(CLEAN, map_manifest.encoded_state(new.id, 0))
            for number, size in enumerate(new.sizes):
                name = map_manifest.rows_file(number)
                with self._reported(name, f"made of {size} bytes"), open(self._directory.create(name), "wb") as stream:
                    stream.truncate(size)
                    if reserve:
                        self._reserve(name, stream.fileno(), size)
                    directories.fsync_file(stream.fileno())
            self._rename(MANIFEST + _NEW, MANIFEST)
        except errors.CheckpointError:
            with contextlib.suppress(errors.CheckpointError):
                self._remove(list(filter(_OURS.fullmatch, self._names())))
            raise

    def _make_empty(self) -> None:
        """Removes what was left by one that was killed while it made a memory map; raises if anything else is there."""
        names = self._names()
        if names and not (MANIFEST + _NEW in names and all(map(_OURS.fullmatch, names))):
            raise errors.CheckpointError(
                f"{self.file('')} holds {directories.named(names[0])} and no {MANIFEST}: "
                "a memory map needs a directory that is new or empty"
            )
        # In their order: the one that says what they are goes last.
        self._remove(names)

    # Opening one.

    def description(self) -> map_manifest.Description:
        """Answers what the manifest describes.

        Raises:
            CheckpointError: It is missing, damaged or foreign.
        """
        return map_manifest.decoded(self.file(MANIFEST), self._read(MANIFEST))

    def generation(self, identity: str) -> tuple[int, bool]:
        """Answers the generation of the map of that id, and whether rows may have been written since.

        Raises:
            CheckpointError: The file that says so is missing, damaged, or that of another map.
        """
        # Both are there if one was killed between the last two steps of `mark_clean`.
        name = DIRTY if self.holds(DIRTY) and not self.holds(CLEAN) else CLEAN
        generation = map_manifest.decoded_state(self.file(name), self._read(name), identity)
        return generation, name == DIRTY

    def mapped(self, number: int, shape: tuple[int, ...], dtype: np.dtype[Any], *, reserve: bool) -> npt.NDArray[Any]:
        """Answers a file of rows as an array; none of it is read. O(1).

        Args:
            number: Of which block.
            shape: What the array must be.
            dtype: What is in it.
            reserve: Whether to give the file all its room on the disk first; what is in it stays.

        Raises:
            CheckpointError: The file is missing, is no file, or is of another size, or there is not so much room.
        """
        name, size = map_manifest.rows_file(number), math.prod(shape) * dtype.itemsize
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
        """Says that rows are written from now on; it is on the disk when this returns."""
        self._rename(CLEAN, DIRTY)

    def mark_clean(self, identity: str, generation: int) -> None:
        """Writes all rows to the disk, and then says that they are those of a generation."""
        for number, rows in self._maps.items():
            with self._reported(map_manifest.rows_file(number), "written"):
                rows.flush()
        self._write(CLEAN + _NEW, map_manifest.encoded_state(identity, generation))
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
        """Turns an OSError into the CheckpointError that names the file."""
        try:
            yield
        except OSError as error:
            raise errors.CheckpointError(f"{self.file(name)} cannot be {verb}: {directories.reason(error)}") from error

    def _place(self, name: str) -> str:
        return os.path.join(self.path, name) if name else self.path

    def _names(self) -> list[str]:
        with self._reported("", "read"):
            return sorted(self._directory.names())

    def _open(self, name: str) -> int:
        """Answers the descriptor of a regular file, to write to if that is allowed."""
        descriptor = self._directory.open(name)
        if not self.is_writable:
            return descriptor
        os.close(descriptor)
        return os.open(self._place(name), os.O_RDWR | directories.STRICT)

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
            directories.write_file(self._directory.create(name), content)

    def _rename(self, name: str, new: str) -> None:
        with self._reported(name, f"renamed to {new}"):
            os.replace(self._place(name), self._place(new))
            directories.fsync_directory(self.path)

    def _reserve(self, name: str, descriptor: int, size: int) -> None:
        if size:
            with self._reported(name, f"given {size} bytes on the disk"):
                os.posix_fallocate(descriptor, 0, size)

    def _remove(self, names: list[str]) -> None:
        for name in names:
            with self._reported(name, "removed"):
                self._directory.unlink(name)
        with self._reported("", "synced"):
            directories.fsync_directory(self.path)
