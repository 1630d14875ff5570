"""What a stored step takes in memory: how much a process of its own grows while a buffer is made and filled.

    python -m relive.bench.memory PEER WORKLOAD [--quick]

returns the bytes a step. The process has used a small buffer before, so that libraries and compiled code do not count.
"""

from collections.abc import Sequence
import ctypes
import gc
import pathlib
import subprocess
import sys

from relive.bench import catalogue
from relive.bench import machine
from relive.bench import selection
from relive.bench import tasks
from relive.bench import workload as workloads

_STATUS = pathlib.Path("/proc/self/status")
_SMALL = 4_000


def bytes_a_step(peer: str, workload: str, is_quick: bool) -> float:
    """Return what a step takes in memory, as a new process finds it.

    Raises:
        CannotError: The peer has nothing for the workload, or the system does not say how large a process is.
    """
    if not _STATUS.exists():
        raise tasks.CannotError("is measured on Linux alone: this system does not say how large a process is")
    command = [sys.executable, "-W", "ignore", "-m", "relive.bench.memory", peer, workload, *["--quick"] * is_quick]
    answer = subprocess.run(command, check=False, capture_output=True, text=True)
    verdict, _, rest = (answer.stdout.strip().splitlines() or [""])[-1].partition(" ")
    if answer.returncode != 0 or verdict not in ("bytes", "cannot"):
        lines = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        raise tasks.CannotError(f"failed: {lines[-1][:160]}")
    if verdict == "cannot":
        raise tasks.CannotError(rest)
    return float(rest)


def main(arguments: Sequence[str]) -> int:
    """Print what the process finds about itself: `bytes NUMBER`, or `cannot REASON`."""
    machine.hold_torch()
    workload = selection.WORKLOADS[arguments[1]]
    if "--quick" in arguments:
        workload = workload.quick()
    try:
        print(f"bytes {_grown(catalogue.PEERS[arguments[0]], workload)}")
    except tasks.CannotError as error:
        print(f"cannot {error}")
    return 0


def _grown(peer: catalogue.Peer, workload: workloads.Workload) -> float:
    """Return by how many bytes a step this process grows."""
    make, task = peer.load(), workload.task
    story = task.story(task.capacity)
    few = min(_SMALL, task.capacity)
    small = make(tasks.with_capacity(task, few))
    small.fill(story.until(few)[0])
    del small
    before = _resident()
    buffer = make(task)
    buffer.fill(story.until(task.capacity)[0])
    grown = _resident() - before
    buffer.sample()
    return grown / task.capacity


def _resident() -> int:
    """Return how many bytes of this process are in memory, without what was freed and not given back."""
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)(0)
    fields = dict(line.split(":", 1) for line in _STATUS.read_text(encoding="utf-8").splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0]) * 1024


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
