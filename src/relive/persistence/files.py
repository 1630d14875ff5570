"""Crash-safe files: syncing, atomic replacement of directories, and locks.

A directory NAME is replaced by one that was built beside it. The entries beside it, and the order of renames:

    .NAME.lock    locked by the writer; stays, empty
    .NAME.new     being built
    NAME          the newest; where it is missing, a crash came between two renames, and NAME.1 is the newest
    NAME.1 ...    the ones before, the newest first
    .NAME.old     being deleted

    NAME.1 -> NAME.2,   NAME -> NAME.1,   .NAME.new -> NAME,   NAME.3 -> .NAME.old -> nothing

Only our own directories are moved or deleted: empty ones, or ones with a manifest of ours. A NAME.1 with its own lock
file was saved under that name and is not an older NAME.
"""

from collections.abc import Iterator
import contextlib
import errno
import importlib
import os
import secrets
import shutil
import stat
from typing import Any, BinaryIO

from relive import errors
from relive.common import validation

STRICT = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
"""Flags for opening a file: follow no link, do not wait for a reader of a pipe. A platform has some of them."""
_DIRECTORY = sum(getattr(os, name, 0) for name in ("O_DIRECTORY", "O_CLOEXEC"))
_HAS_DIRECTORIES = os.open in os.supports_dir_fd
"""Whether a directory can be opened and synced, and files opened in it."""


def absolute(name: str, path: Any, kind: str = "directory in another") -> str:
    """Return a path as an absolute one with a last part; raise ArgumentError if it cannot be one, or is a root."""
    text: str = path
    try:
        text = os.fsdecode(path)
        can_be_encoded = bool(os.fsencode(text))
    except TypeError:
        raise errors.ArgumentTypeError(f"{name} must be a path, got {validation.short_repr(path)}") from None
    except UnicodeError:
        can_be_encoded = False
    if not can_be_encoded or "\0" in text or not os.path.basename(os.path.abspath(text)):
        raise errors.ArgumentError(f"{name} must be the path of a {kind}, got {validation.short_repr(text)}")
    return os.path.abspath(text)


def named(path: str) -> str:
    """Return a path for an error message, on one line."""
    return path if path.isprintable() else ascii(path)


def reason(error: OSError) -> str:
    """Return the system's reason."""
    return error.strerror or str(error)


@contextlib.contextmanager
def raising(path: str, what: str) -> Iterator[None]:
    """Raise CheckpointError for an OSError in a `with` block: `what` is said of the path, then the system's reason."""
    try:
        yield
    except OSError as error:
        raise errors.CheckpointError(f"{named(path)} {what}: {reason(error)}") from error


def module(name: str) -> Any:
    """Return a module that some platforms have, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def num_bytes(path: str) -> int:
    """Return the bytes of a file, or of all files in a directory."""
    if not os.path.isdir(path):
        return os.path.getsize(path)
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # A writer of the journal may have pruned it by now.
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def fsync_file(descriptor: int) -> None:
    """Sync a file to disk, with F_FULLFSYNC where needed (macOS)."""
    fcntl = module("fcntl")
    if hasattr(fcntl, "F_FULLFSYNC"):
        with contextlib.suppress(OSError):  # Network file systems do not support it.
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def write_file(descriptor: int, content: bytes) -> None:
    """Write all of a new file, sync it to disk and close it."""
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        fsync_file(descriptor)


def fsync_directory(path: str) -> None:
    """Sync the names in a directory to disk, where the platform and file system support it."""
    if not _HAS_DIRECTORIES:
        return
    descriptor = os.open(path, os.O_RDONLY | _DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """Yield a new file, which after the block is synced and renamed to `path`; it keeps the mode of an older one.

    If the block fails, nothing has changed. Several can write at once: the last one to end counts.
    """
    new = f"{path}.{secrets.token_hex(4)}.new"
    try:
        with open(new, "xb") as file:
            if os.path.exists(path):
                shutil.copymode(path, new)
            yield file
            file.flush()
            fsync_file(file.fileno())
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
    fsync_directory(os.path.dirname(path))


class Directory:
    """An open directory: it stays the same even if its name is reused; links in it are not followed."""

    def __init__(self, path: str, *, follow: bool = False) -> None:
        """Open the directory at an absolute path, which may itself be a link if that is to be followed."""
        self.path = path
        self._descriptor: int | None = None
        flags = os.O_RDONLY | _DIRECTORY | (0 if follow else STRICT)
        if _HAS_DIRECTORIES:
            self._descriptor = os.open(path, flags)
        else:
            mode = os.stat(path, follow_symlinks=follow).st_mode
            if not stat.S_ISDIR(mode):
                number = errno.ELOOP if stat.S_ISLNK(mode) else errno.ENOTDIR
                raise OSError(number, os.strerror(number), path)

    def __enter__(self) -> "Directory":
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def names(self) -> list[str]:
        """Return what is in it."""
        return os.listdir(self.path if self._descriptor is None else self._descriptor)

    def has(self, name: str) -> bool:
        """Return whether anything of that name is in it."""
        try:
            self.mode(name)
        except FileNotFoundError:
            return False
        return True

    def mode(self, name: str) -> int:
        """Return what is of that name in it, a link as such, for functions like `stat.S_ISREG`."""
        return os.stat(self._place(name), dir_fd=self._descriptor, follow_symlinks=False).st_mode

    def create(self, name: str) -> int:
        """Return the descriptor of a new file, for writing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | STRICT
        return os.open(self._place(name), flags, 0o666, dir_fd=self._descriptor)

    def open(self, name: str) -> int:
        """Return the descriptor of a regular file, for reading; raise CheckpointError if there is none."""
        label = named(os.path.join(self.path, name))
        if not hasattr(os, "O_NOFOLLOW") and os.path.islink(self._place(name)):  # On Windows, opening follows it.
            raise errors.CheckpointError(f"{label} is a link")
        try:
            descriptor = os.open(self._place(name), os.O_RDONLY | STRICT, dir_fd=self._descriptor)
        except FileNotFoundError:
            raise errors.CheckpointError(f"{label} is missing") from None
        except OSError as error:
            rule = "is a link" if error.errno in (errno.ELOOP, errno.EMLINK) else f"cannot be opened: {reason(error)}"
            raise errors.CheckpointError(f"{label} {rule}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise errors.CheckpointError(f"{label} is not a regular file")
        return descriptor

    def unlink(self, name: str) -> None:
        """Delete a file."""
        os.unlink(self._place(name), dir_fd=self._descriptor)

    def _place(self, name: str) -> str:
        return os.path.join(self.path, name) if self._descriptor is None else name


MANIFEST = "manifest.json"
MARKER = b'{\n "format": "relive checkpoint",\n'
"""How the manifest of every checkpoint begins, whatever its version."""
_MOST_LOCK_BYTES = 32
_LOCK_AT = 1 << 30
"""The byte that is locked where a lock keeps others from reading: one beyond the content."""


def beside(path: str, kind: str) -> str:
    """Return the path beside `path` for its "lock", its "new" or its "old" directory."""
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{kind}")


# Replacing.
def newest(path: str) -> str:
    """Return where the newest complete directory of that name is: at `path`, or at `path`.1 after a crash."""
    earlier = f"{path}.1"
    return earlier if not os.path.lexists(path) and os.path.lexists(earlier) else path


def new_directory(path: str) -> str:
    """Create a directory beside `path` for building its replacement; leftovers of a crash are deleted."""
    _check_ours(path)
    list(older(path))
    new = beside(path, "new")
    remove_directory(beside(path, "old"))
    remove_directory(new)
    os.mkdir(new)
    return new


def replace_directory(new: str, path: str, keep: int) -> None:
    """Rename the directory `new` to `path`, atomically for readers, and keep `keep` directories in all.

    Whatever fails, `newest(path)` is complete. Older directories that cannot be deleted, such as those with foreign
    files, stay, and the next call tries again.
    """
    places = [path, *older(path)]
    _vacate(path)
    is_moved = os.path.lexists(path)
    if is_moved:
        places.append(f"{path}.{len(places)}")
        for source, target in zip(places[-2::-1], places[:0:-1], strict=True):
            _vacate(target)
            os.rename(source, target)
    try:
        os.rename(new, path)
    except OSError:
        if is_moved:
            with contextlib.suppress(OSError):
                os.rename(places[1], path)
        raise
    fsync_directory(os.path.dirname(path))
    too_many: list[str] = []
    with contextlib.suppress(errors.CheckpointError):
        too_many.extend(older(path, keep))  # Up to what others wrote.
    for place in reversed(too_many):
        with contextlib.suppress(OSError, errors.CheckpointError):
            check_files(place)
            os.rename(place, beside(path, "old"))  # What is at that name is complete, until it is gone.
            remove_directory(beside(path, "old"))


def remove_directory(path: str) -> None:
    """Delete a directory and the files of a checkpoint in it, the manifest last; does nothing if it is missing."""
    if not os.path.lexists(path):
        return
    check_files(path)
    with Directory(path) as directory:
        for name in sorted(directory.names(), key=lambda name: (name == MANIFEST, name)):
            directory.unlink(name)
    os.rmdir(path)


def check_files(path: str) -> None:
    """Raise CheckpointError unless a directory holds nothing but files of a checkpoint."""
    try:
        opened = Directory(path)
    except NotADirectoryError:
        raise errors.CheckpointError(f"{named(path)} is not a directory: move it away") from None
    with opened as directory:
        for name in sorted(directory.names()):
            if not (name == MANIFEST or name.endswith(".npy")) or not stat.S_ISREG(directory.mode(name)):
                raise errors.CheckpointError(f"{named(path)} holds {name!a}, which relive did not write: move it away")


def older(path: str, number: int = 1) -> Iterator[str]:
    """Yield the older directories of that name, from that number on, up to something foreign: CheckpointError."""
    while _check_ours(place := f"{path}.{number}"):
        if os.path.lexists(beside(place, "lock")):
            raise errors.CheckpointError(f"{named(place)} was saved by that name: name another path")
        yield place
        number += 1


def _check_ours(path: str) -> bool:
    """Return whether a directory of ours is there; False if it is missing or empty, CheckpointError for all else."""
    if not os.path.lexists(path):
        return False
    is_link = os.path.islink(path)
    if is_link or not os.path.isdir(path):
        kind = "a link: name the directory itself" if is_link else "not a directory: name another path"
        raise errors.CheckpointError(f"{named(path)} is {kind}")
    with Directory(path) as directory:
        names = directory.names()
        if not names:
            return False
        with contextlib.suppress(errors.CheckpointError), open(directory.open(MANIFEST), "rb") as file:
            if file.read(len(MARKER)) == MARKER:
                return True
    label = named(path)
    raise errors.CheckpointError(f"{label} is not a checkpoint, it holds {min(names)!a}: name another path")


def _vacate(path: str) -> None:
    """Delete a directory if it is empty."""
    with contextlib.suppress(OSError):
        os.rmdir(path)


# Locking.
@contextlib.contextmanager
def locked(path: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of a path, an exclusive lock on a file beside it; raise CheckpointError if it is held elsewhere.

    The file stays: if it were deleted, one process could hold its lock while another locks a new one.
    """
    path = absolute("path", path)
    label, place = named(path), beside(path, "lock")
    with raising(place, "cannot be locked"):
        try:
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT | STRICT, 0o666)
        except FileNotFoundError:
            rule = f"there is no directory {named(os.path.dirname(place))}"
            raise errors.CheckpointError(f"{label} cannot be locked: {rule}, make it first") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_LOCK_BYTES:
            raise errors.CheckpointError(f"{named(place)} is not a lock file: move it away")
        _lock(descriptor, label)
        pid = os.getpid()
        try:
            _note(descriptor, f"{pid}\n".encode())
            yield
        finally:
            if os.getpid() == pid:  # In a fork, the parent still holds the lock.
                _note(descriptor, b"")
    finally:
        os.close(descriptor)


def _lock(descriptor: int, label: str) -> None:
    fcntl = module("fcntl")
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        else:
            msvcrt = importlib.import_module("msvcrt")
            os.lseek(descriptor, _LOCK_AT, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
            raise errors.CheckpointError(f"{label} cannot be locked: {reason(error)}") from error
        os.lseek(descriptor, 0, os.SEEK_SET)
        note = os.read(descriptor, _MOST_LOCK_BYTES).strip()
        holder = "this process" if note == str(os.getpid()).encode() else "another process"
        pid = f" (pid {int(note)})" if note.isdigit() else ""
        raise errors.CheckpointError(f"{label} is in use by {holder}{pid}: wait for it, or name another path") from None


def _note(descriptor: int, text: bytes) -> None:
    """Write the holder into a lock file; the lock is valid even if the disk is full."""
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, text)
