"""What processes have taken of the processor, as Linux tells it in /proc."""

import os
import pathlib

_PROCESSES = pathlib.Path("/proc")
_IDLE = (3, 4)
"""Where in the first line of /proc/stat what nobody used is: idle, and waiting for a disk."""


def busy_seconds() -> float:
    """Return the seconds that all cores of this machine have been at work for anybody since it started."""
    fields = [int(field) for field in (_PROCESSES / "stat").read_text(encoding="utf-8").splitlines()[0].split()[1:9]]
    return sum(ticks for place, ticks in enumerate(fields) if place not in _IDLE) / os.sysconf("SC_CLK_TCK")


def seconds_by_process() -> dict[int, float]:
    """Return the seconds that this process, and each that came of it and is still there, has taken, by its id."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    tick = os.sysconf("SC_CLK_TCK")
    for folder in _PROCESSES.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # The name of a program, in brackets, may hold anything; after it come state, parent, ..., user, system.
            fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        number = int(folder.name)
        parents[number] = int(fields[1])
        seconds[number] = (int(fields[11]) + int(fields[12])) / tick
    own = {os.getpid()}
    while found := {number for number, parent in parents.items() if parent in own} - own:
        own |= found
    return {number: seconds[number] for number in own if number in seconds}
