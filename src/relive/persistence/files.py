"""Crash-safe files: syncing, atomic replacement, open directories, and locks."""

from collections.abc import Callable, Iterator
import contextlib
import errno
import importlib
import io
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


ANY = "file or a directory"
"""What a path may be of, if it may be of either."""


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


def read_into(file: BinaryIO, memory: memoryview) -> bool:
    """Fill memory from a file, and return whether it had that many bytes."""
    while memory:  # The system may read only part of it at a time.
        count = file.readinto(memory)  # type: ignore[attr-defined]
        if not count:
            return False
        memory = memory[count:]
    return True


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
def replacing(path: str, new: str | None = None, ready: Callable[[], object] = lambda: None) -> Iterator[BinaryIO]:
    """Yield a new file, which after the block is synced and renamed to `path`; it keeps the mode of an older one.

    If the block fails, nothing has changed. Several can write at once: the last one to end counts.

    Args:
        path: The file.
        new: The path of the new file until then; one that no other has if None.
        ready: Called when it is on disk, before it is renamed.
    """
    new = new or f"{path}.{secrets.token_hex(4)}.new"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | STRICT, 0o666)
    try:
        with open(descriptor, "wb") as file:
            if os.path.exists(path):
                shutil.copymode(path, new)
            yield file
            file.flush()
            fsync_file(file.fileno())
        ready()
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
    fsync_directory(os.path.dirname(path))


def copy_file(source: str, target: str) -> None:
    """Copy a file to a new one, and sync it to disk."""
    shutil.copyfile(source, target)
    with open(target, "r+b") as file:
        fsync_file(file.fileno())


@contextlib.contextmanager
def opened(path: str) -> Iterator[io.FileIO]:
    """Yield the regular file at an absolute path, which may be a link to it; raise CheckpointError if there is none."""
    label = named(path)
    try:
        descriptor = os.open(path, os.O_RDONLY | STRICT & ~getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        raise errors.CheckpointError(f"{label} does not exist") from None
    except OSError as error:
        raise errors.CheckpointError(f"{label} cannot be read: {reason(error)}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise errors.CheckpointError(f"{label} is not a regular file")
    with open(descriptor, "rb", buffering=0) as file:
        yield file


def head_of(path: str, count: int) -> bytes:
    """Return the first bytes of a file, at most `count`."""
    with open(os.open(path, os.O_RDONLY | STRICT), "rb", buffering=0) as file:
        return file.read(count)


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
            os.stat(self._place(name), dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

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


_MOST_LOCK_BYTES = 32
_LOCK_AT = 1 << 30
"""The byte that is locked where a lock keeps others from reading: one beyond the content."""


def beside(path: str, kind: str) -> str:
    """Return the path beside `path` for its "lock" or its "new" file."""
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{kind}")


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
