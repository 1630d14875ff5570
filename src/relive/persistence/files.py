"""What a crash leaves whole: synced files, directories replaced in one step, one writer a path.

A directory NAME is replaced by one that was built beside it. What lies beside it, and in which order it moves:

    .NAME.lock    who writes holds a lock on it; it stays, empty
    .NAME.new     being built
    NAME          the newest; where it is missing, a crash came between two renames, and NAME.1 is the newest
    NAME.1 ...    the ones before, the newest first
    .NAME.old     being deleted

    NAME.1 -> NAME.2,   NAME -> NAME.1,   .NAME.new -> NAME,   NAME.3 -> .NAME.old -> nothing

Nothing moves or is deleted that is not ours: empty, or with a manifest that begins as ours do. A NAME.1 with a lock
file of its own was saved under that name: it is no older NAME.
"""

from collections.abc import Iterator
import contextlib
import errno
import importlib
import os
import stat

from relive import errors
from relive.persistence import directories

MANIFEST = "manifest.json"
MARKER = b'{\n "format": "relive checkpoint",\n'
"""How the manifest of every checkpoint begins, whatever its version."""

_MOST_LOCK_BYTES = 32
_LOCK_AT = 1 << 30
"""Which byte is locked where a lock keeps others from reading: one that nobody reads."""


def beside(path: str, kind: str) -> str:
    """Answers the path beside `path` for its "lock", its "new" or its "old" directory."""
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{kind}")


# Replacing.


def newest(path: str) -> str:
    """Answers where the newest complete directory of that name is: at `path`, or at `path`.1 after a crash."""
    earlier = f"{path}.1"
    return earlier if not os.path.lexists(path) and os.path.lexists(earlier) else path


def new_directory(path: str) -> str:
    """Answers a new directory beside `path`, in which to build what will replace it; what a crash left is deleted.

    Raises:
        CheckpointError: Something that is not ours is at `path`, or where what moves would be; nothing has changed.
        OSError: It cannot be made.
    """
    _free_number(path)
    new = beside(path, "new")
    remove_directory(beside(path, "old"))
    remove_directory(new)
    os.mkdir(new)
    return new


def replace_directory(new: str, path: str, keep: int) -> None:
    """Gives the directory `new` the name `path`, in a step that a reader sees as one, and keeps `keep` in all.

    Whatever fails, `newest(path)` is complete. What is older and cannot be deleted, such as a directory with a file in
    it that is not ours, stays, and the next call tries again.

    Raises:
        CheckpointError: Something that is not ours is in the way; nothing has moved.
        OSError: Renaming failed; what was at `path` is there again, unless renaming it back failed too.
    """
    free = _free_number(path)
    older = [path, *(f"{path}.{number}" for number in range(1, free + 1))]
    _vacate(path)
    is_moved = os.path.lexists(path)
    if is_moved:
        for number in range(free, 0, -1):
            _vacate(older[number])
            os.rename(older[number - 1], older[number])
    try:
        os.rename(new, path)
    except OSError:
        if is_moved:
            with contextlib.suppress(OSError):
                os.rename(older[1], path)
        raise
    directories.fsync_directory(os.path.dirname(path))
    with contextlib.suppress(OSError, errors.CheckpointError):
        _delete_older(path, keep)


def remove_directory(path: str) -> None:
    """Deletes a directory and the files of a checkpoint in it, the manifest last; if it is missing, nothing.

    Raises:
        CheckpointError: Something else is in it, or it is none; nothing has been deleted.
        OSError: Deleting failed.
    """
    if not os.path.lexists(path):
        return
    strange = _strange_name(path)
    if strange is not None:
        raise errors.CheckpointError(f"{directories.named(path)} holds {strange!a}, which is not ours: move it away")
    with directories.Directory(path) as directory:
        for name in sorted(directory.names(), key=lambda name: (name == MANIFEST, name)):
            directory.unlink(name)
    os.rmdir(path)


def _strange_name(path: str) -> str | None:
    """Answers what lies in a directory and is no file of a checkpoint, or None."""
    try:
        opened = directories.Directory(path)
    except NotADirectoryError:
        raise errors.CheckpointError(f"{directories.named(path)} is not a directory: move it away") from None
    with opened as directory:
        for name in sorted(directory.names()):
            if not (name == MANIFEST or name.endswith(".npy")) or not directory.is_regular(name):
                return name
    return None


def _free_number(path: str) -> int:
    """Answers the first number from 1 on under which no older directory is kept; checks all before it, and `path`."""
    _check_ours(path)
    number = 1
    while _check_older(path, number):
        number += 1
    return number


def _check_older(path: str, number: int) -> bool:
    """Answers whether an older directory is kept under that number.

    Raises:
        CheckpointError: Something else is there.
    """
    older = f"{path}.{number}"
    is_there = _check_ours(older)
    if is_there and os.path.lexists(beside(older, "lock")):
        raise errors.CheckpointError(f"{directories.named(older)} was saved by that name: name another path")
    return is_there


def _check_ours(path: str) -> bool:
    """Answers whether a directory of ours is there; False if nothing is, or an empty one.

    Raises:
        CheckpointError: Something else is there.
    """
    if not os.path.lexists(path):
        return False
    is_link = os.path.islink(path)
    if is_link or not os.path.isdir(path):
        kind = "a link: name the directory itself" if is_link else "not a directory: name another path"
        raise errors.CheckpointError(f"{directories.named(path)} is {kind}")
    with directories.Directory(path) as directory:
        names = directory.names()
        if not names:
            return False
        with contextlib.suppress(errors.CheckpointError), open(directory.open(MANIFEST), "rb") as file:
            if file.read(len(MARKER)) == MARKER:
                return True
    label = directories.named(path)
    raise errors.CheckpointError(f"{label} is no checkpoint, it holds {min(names)!a}: name another path")


def _vacate(path: str) -> None:
    """Deletes an empty directory, if one is there."""
    with contextlib.suppress(OSError):
        os.rmdir(path)


def _delete_older(path: str, number: int) -> None:
    """Deletes `path`.number and all behind it, the oldest first, each out of sight before it loses a file."""
    last = number
    with contextlib.suppress(errors.CheckpointError):
        while _check_older(path, last):
            last += 1
    for each in [f"{path}.{behind}" for behind in range(last - 1, number - 1, -1)]:
        if _strange_name(each) is None:
            os.rename(each, beside(path, "old"))
            remove_directory(beside(path, "old"))


# Locking.


@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Holds the lock of a path, on a file beside it, which another process or another holder in this one cannot have.

    The system gives the lock back when the process ends, however it ends. The file stays: were it deleted, one process
    could hold the lock of the deleted file while another made, and locked, a new one.

    Raises:
        CheckpointError: Somebody else holds the lock, or the file system has none.
    """
    path = directories.absolute("path", path)
    label, place = directories.named(path), beside(path, "lock")
    try:
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | directories.STRICT, 0o666)
    except OSError as error:
        why = f"{directories.reason(error)}: {directories.named(place)}"
        raise errors.CheckpointError(f"{label} cannot be locked: {why}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_LOCK_BYTES:
            raise errors.CheckpointError(f"{directories.named(place)} is no lock file: move it away")
        _lock(descriptor, label)
        try:
            _note(descriptor, f"{os.getpid()}\n".encode())
            yield
        finally:
            _note(descriptor, b"")
    finally:
        os.close(descriptor)


def _lock(descriptor: int, label: str) -> None:
    """Takes the lock of an open file, or raises at once."""
    fcntl = directories.module("fcntl")
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt = importlib.import_module("msvcrt")
            os.lseek(descriptor, _LOCK_AT, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            raise errors.CheckpointError(f"{label} cannot be locked: {directories.reason(error)}") from error
        os.lseek(descriptor, 0, os.SEEK_SET)
        note = os.read(descriptor, _MOST_LOCK_BYTES).strip()
        holder = "this process" if note == str(os.getpid()).encode() else "another process"
        pid = f" (pid {int(note)})" if note.isdigit() else ""
        raise errors.CheckpointError(f"{label} is in use by {holder}{pid}: wait for it, or name another path") from None


def _note(descriptor: int, text: bytes) -> None:
    """Writes into a lock file who holds it; the lock holds also where the disk is full."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, text)
