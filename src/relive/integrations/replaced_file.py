"""Atomic replacement of a file, and checks of where one may be written.

    .NAME.lock    locked by the writer; stays, empty
    .NAME.new     being built
    NAME          the older one or the new one, whole

Such a file is never written into the directory of a checkpoint, a journal or a memory map, which it would break.
"""

from collections.abc import Callable, Iterator
import contextlib
import os
import stat
from typing import BinaryIO

from relive import errors
from relive.common import validation
from relive.persistence import files
from relive.persistence import places

_FOLLOWING = files.STRICT & ~getattr(os, "O_NOFOLLOW", 0)
_MANIFESTS = (
    (files.MANIFEST, files.MARKER, "checkpoint"),
    ("storage.json", b'{\n "format": "relive memory map",\n', "memory map"),
)
"""The files by which a directory is known, how they begin, and what it is."""


def absolute(name: str, path: object) -> str:
    """Return the path of a file as an absolute one.

    Raises:
        ArgumentTypeError: `path` is not a path.
        ArgumentError: `path` is empty, holds a NUL, or is a root.
    """
    try:
        return files.absolute(name, path)
    except errors.ArgumentTypeError:
        raise
    except errors.ArgumentError as error:
        raise errors.ArgumentError(f"{name} must be the path of a file, got {validation.short_repr(path)}") from error


def check_parent(path: str) -> None:
    """Raise CheckpointError unless an absolute path is in an existing directory that is not itself a saved object."""
    label, parent = files.named(path), os.path.dirname(path)
    if not os.path.isdir(parent):
        is_there = os.path.lexists(parent)
        reason = "is not a directory" if is_there else "does not exist"
        raise errors.CheckpointError(f"{label} cannot be made: {files.named(parent)} {reason}")
    place, above = "", os.path.realpath(parent)
    while place != above:
        place, above = above, os.path.dirname(above)
        kind = _kind_of(place)
        if kind:
            raise errors.CheckpointError(
                f"{label} cannot be made: {files.named(place)} is a {kind}, which holds no other files"
            )


def _kind_of(place: str) -> str:
    """Return the kind of a saved directory; empty if it is another directory, or cannot be read."""
    with contextlib.suppress(OSError), files.Directory(place, follow=True) as directory:
        for name, marker, kind in _MANIFESTS:
            with contextlib.suppress(errors.CheckpointError), open(directory.open(name), "rb") as file:
                if file.read(len(marker)) == marker:
                    return kind
        if any(map(places.is_of_journal, directory.names())):
            return "journal"
    return ""


def opened(place: str) -> BinaryIO:
    """Open a regular file for reading; does not block on a pipe.

    Raises:
        CheckpointError: There is no regular file.
    """
    label = files.named(place)
    try:
        descriptor = os.open(place, os.O_RDONLY | _FOLLOWING)
    except FileNotFoundError:
        raise errors.CheckpointError(f"{label} does not exist") from None
    except OSError as error:
        raise errors.CheckpointError(f"{label} cannot be opened: {files.reason(error)}") from error
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise errors.CheckpointError(f"{label} is {kind}: name a file")
    return open(descriptor, "rb")


@contextlib.contextmanager
def replacing(place: str, magic: bytes, check: Callable[[], None]) -> Iterator[BinaryIO]:
    """Yield a new file to write, which is synced and renamed after the block; on failure, nothing has changed.

    Args:
        place: The absolute path of the file; the mode of an older file is kept.
        magic: The first bytes of such a file. Leftovers of a crash are deleted only if they are empty or begin with
            them.
        check: Raises if the file at `place` must not be replaced; called under the lock, before and after the block.

    Raises:
        CheckpointError: The file cannot be created, another writer holds the lock, or a leftover file is foreign.
        OSError: The system cannot write.
    """
    check_parent(place)
    new = files.beside(place, "new")
    with files.locked(place):
        check()
        _remove(new, magic)
        is_old = os.path.lexists(place)
        mode = stat.S_IMODE(os.stat(place).st_mode) if is_old else 0o666
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | files.STRICT, mode)
        try:
            with open(descriptor, "wb") as file:
                yield file
                file.flush()
                files.fsync_file(file.fileno())
            if is_old:
                os.chmod(new, mode)
            check()
            os.replace(new, place)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise
        files.fsync_directory(os.path.dirname(place))


def _remove(new: str, magic: bytes) -> None:
    """Delete leftovers of a crash, if any."""
    if not os.path.lexists(new):
        return
    is_ours = False
    if os.path.isfile(new) and not os.path.islink(new):
        with open(new, "rb") as file:
            is_ours = file.read(len(magic)) in (b"", magic)
    if not is_ours:
        raise errors.CheckpointError(f"{files.named(new)} was not written by relive: move it away")
    os.unlink(new)
