"""The machine of a run, the memory of this process, and threads held to one."""

from collections.abc import Iterator
import contextlib
import datetime
import gc
import importlib
import io
import os
import pathlib
import platform
import re
import subprocess
import sys

import numpy as np

import relive
from relive.common import imports

with imports.optional_dependency("bench"):
    import psutil

_CPU = pathlib.Path("/proc/cpuinfo")

ONE_THREAD = {
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "NUMBA")},
    "VECLIB_MAXIMUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
"""What holds the libraries to one thread; most of them look at it once, when they load."""

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "RL_LOGGING_LEVEL": "ERROR"}
"""Environment variables that keep the libraries on the CPU and quiet."""


def hold_libraries() -> None:
    """Start this program anew, unless each library is held to one thread already."""
    if not ONE_THREAD.items() <= os.environ.items():
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **_QUIET, **ONE_THREAD})


def hold_torch() -> None:
    """Hold torch to one thread, if it is there, as its environment variable does not in all its builds."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch").set_num_threads(1)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep what is printed in the block from being seen."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def facts() -> dict[str, str]:
    """Return what is to be known of the machine and the interpreter."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 1e9:.3g} GB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "relive": f"{relive.__version__}{_commit()}",
        "date": str(datetime.datetime.now(datetime.UTC).date()),
    }


def _commit() -> str:
    """Return the last commit of the package, of whatever repository it lies in; nothing if it lies in none."""
    log = ["git", "-C", os.path.dirname(relive.__file__), "log", "-1", "--format= at commit %h", "--", "."]
    with contextlib.suppress(OSError):
        return subprocess.run(log, capture_output=True, text=True, check=False).stdout.rstrip()
    return ""


def _processor() -> str:
    told = _CPU.read_text(encoding="utf-8") if _CPU.exists() else ""
    named = re.search(r"^model name\s*: (.+)$", told, re.MULTILINE)
    return named[1] if named else platform.processor() or platform.machine()


def resident() -> int:
    """Return how many bytes of this process are in memory, without what was freed and can be given back."""
    gc.collect()
    getattr(psutil, "heap_trim", gc.collect)()  # Not every system can.
    return int(psutil.Process().memory_info().rss)
