"""The machine and the versions of a run, and threads held to one."""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import importlib
import io
import os
import pathlib
import platform
import sys
from typing import NoReturn

import numpy as np

import relive
from relive.bench import room

_CPU = pathlib.Path("/proc/cpuinfo")

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
"""What holds the libraries to one thread; most of them look at it once, when they load."""

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "RL_LOGGING_LEVEL": "ERROR"}
"""What keeps the libraries on the CPU and from talking."""


def is_held_to_one_thread(environment: Mapping[str, str]) -> bool:
    """Return whether a process with that environment uses one thread."""
    return all(environment.get(name) == value for name, value in ONE_THREAD.items())


def start_anew(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by `relive` with those arguments, each library held to one thread."""
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "relive", *arguments], {**os.environ, **QUIET, **ONE_THREAD})


def hold_torch() -> None:
    """Hold torch to one thread, if it is there, as its environment variable does not in all its builds."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return
    torch.set_num_threads(1)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep what is printed in the block, by Python or by C, from being seen."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        for number, file in enumerate(kept, start=1):
            os.dup2(file, number)
            os.close(file)
        os.close(nowhere)


def facts() -> dict[str, str]:
    """Return what is to be known of the machine and the interpreter."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": room.whole_memory(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "relive": relive.__version__,
    }


def _processor() -> str:
    """Return the name of the processor, as Linux knows it or else as Python does."""
    if _CPU.exists():
        for line in _CPU.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
