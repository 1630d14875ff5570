"""Paths, and directories that stay the same ones while they are open."""

import contextlib
import errno
import importlib
import os
import stat
from typing import Any

from relive import errors
from relive.common import validation

STRICT = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
"""Flags for opening a file: follow no link, wait for nobody at the other end of a pipe. A platform has some of them."""

_DIRECTORY = sum(getattr(os, name, 0) for name in ("O_DIRECTORY", "O_CLOEXEC"))
_HAS_DIRECTORIES = os.open in os.supports_dir_fd
"""Whether a directory can be opened and synced, and files opened in it."""


def absolute(name: str, path: object) -> str:
    """Answers a path as an absolute one with a last part.

    Raises:
        ArgumentTypeError: `path` is no path.
        ArgumentError: `path` is empty, holds a NUL, or is a root.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        raise errors.ArgumentTypeError(f"{name} must be a path, got {validation.shown(path)}")
    text = os.fsdecode(path)
    if not text or "\0" in text or not os.path.basename(os.path.abspath(text)):
        raise errors.ArgumentError(f"{name} must be the path of a directory in another, got {validation.shown(text)}")
    return os.path.abspath(text)


def named(path: str) -> str:
    """Answers a path for an error message, on one line."""
    return path if path.isprintable() else ascii(path)


def reason(error: OSError) -> str:
    """Answers the system's reason."""
    return error.strerror or str(error)


def module(name: str) -> Any:
    """Answers a module that some platforms have, or None."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def fsync_file(descriptor: int) -> None:
    """Returns when the file is on the disk, also where only F_FULLFSYNC says so (macOS)."""
    fcntl = module("fcntl")
    if hasattr(fcntl, "F_FULLFSYNC"):
        with contextlib.suppress(OSError):  # A file system over the network has none.
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


def write_file(descriptor: int, content: bytes) -> None:
    """Writes all of a new file, and returns when it is on the disk and closed."""
    with open(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        fsync_file(descriptor)


def fsync_directory(path: str) -> None:
    """Returns when the names in a directory are on the disk; at once where a platform or a file system cannot tell."""
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


class Directory:
    """An open directory: it stays the same one, also when another takes its name; no link is followed in it."""

    def __init__(self, path: str, *, follow: bool = False) -> None:
        """Opens a directory.

        Args:
            path: Its absolute path.
            follow: Whether the path itself may be a link.

        Raises:
            OSError: It is missing, or no directory.
        """
        self.path = path
        self._descriptor: int | None = None
        flags = os.O_RDONLY | _DIRECTORY | (0 if follow else STRICT)
        if _HAS_DIRECTORIES:
            self._descriptor = os.open(path, flags)
        elif not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)

    def __enter__(self) -> "Directory":
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def names(self) -> list[str]:
        """Answers what is in it."""
        return os.listdir(self.path if self._descriptor is None else self._descriptor)

    def has(self, name: str) -> bool:
        """Answers whether anything of that name is in it."""
        try:
            os.stat(self._place(name), dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def is_regular(self, name: str) -> bool:
        """Answers whether that is a regular file, and no link to one."""
        status = os.stat(self._place(name), dir_fd=self._descriptor, follow_symlinks=False)
        return stat.S_ISREG(status.st_mode)

    def create(self, name: str) -> int:
        """Answers the descriptor of a new file, for writing."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | STRICT
        return os.open(self._place(name), flags, 0o666, dir_fd=self._descriptor)

    def open(self, name: str) -> int:
        """Answers the descriptor of a regular file, for reading.

        Raises:
            CheckpointError: There is none, but perhaps a link, a pipe or a directory.
        """
        label = named(os.path.join(self.path, name))
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
        """Deletes a file."""
        os.unlink(self._place(name), dir_fd=self._descriptor)

    def _place(self, name: str) -> str:
        return os.path.join(self.path, name) if self._descriptor is None else name
