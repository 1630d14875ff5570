"""Whether there is room for what is to be measured: in memory, and on the disk of temporary files."""

import pathlib
import shutil
import tempfile

from relive.bench import tasks

_MEMORY = pathlib.Path("/proc/meminfo")
_SLACK = 1.25
"""Times what is wanted that has to be free, so that a run leaves something to others."""


def require(*, memory: int, disk: int = 0) -> None:
    """Check that so much is free, in bytes; where the system does not say how much memory is, there is enough.

    Raises:
        CannotError: It is not.
    """
    for what, wanted, free in (("memory", memory, free_memory()), ("disk", disk, free_disk())):
        if free is not None and wanted * _SLACK > free:
            raise tasks.CannotError(f"takes {_gigabytes(wanted)} of {what}, and {_gigabytes(free)} are free")


def free_memory() -> int | None:
    """Return how many bytes of memory a process can have without another giving up its own; None if unknown."""
    return _memory("MemAvailable")


def whole_memory() -> str:
    """Return how much memory the machine has, in words."""
    whole = _memory("MemTotal")
    return "unknown" if whole is None else _gigabytes(whole)


def free_disk() -> int:
    """Return how many bytes are free where temporary files go."""
    return shutil.disk_usage(tempfile.gettempdir()).free


def _memory(name: str) -> int | None:
    """Return a line of what Linux says about memory, in bytes; None on other systems."""
    if not _MEMORY.exists():
        return None
    fields = dict(line.split(":", 1) for line in _MEMORY.read_text(encoding="utf-8").splitlines() if ":" in line)
    return int(fields[name].split()[0]) * 1024


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"
