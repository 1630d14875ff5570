"""Marks of the tests that need what Windows does not have, forks, and the module of limits, which is None there."""

from collections.abc import Callable
import os
import pathlib
import signal
import traceback
from typing import Any

import pytest

from relive.persistence import files

resource = files.module("resource")

DIRECTORIES = pytest.mark.skipif(os.open not in os.supports_dir_fd, reason="the system opens and syncs no directories")
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no forks")
LIMITS = pytest.mark.skipif(resource is None, reason="the system has no limits of files and memory")
MEMORY = pytest.mark.skipif(not hasattr(os, "sysconf"), reason="the system does not say how much memory it has")
PIPES = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes in directories")
SIGNALS = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system has no signals")


THREADED = pytest.mark.filterwarnings("ignore::DeprecationWarning")
"""For those that fork, in which other threads may run."""
PATIENCE = 10
"""Seconds after which a fork has hung."""


MINE = "something that somebody wrote here"


def put(place: pathlib.Path, kind: str) -> None:
    """Put something at a place: a file, a directory, a pipe, or a link to a file beside it, to nowhere, to a device."""
    if kind == "file":
        place.write_text(MINE)
    elif kind == "directory":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to({"link": "victim", "dangling": "nowhere", "device": "/dev/zero"}[kind])
        place.with_name("victim").write_text(MINE)


PUT = [*("file", "directory", "link", "dangling", "device"), pytest.param("pipe", marks=PIPES)]


def failing(number: int) -> Callable[..., Any]:
    """Return a call that the system refuses, with that number."""

    def fail(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    return fail


def in_a_fork(call: Callable[[], object]) -> None:
    """Make the call in a forked process; fail if it raises there, or does not return."""
    child = os.fork()
    if not child:  # pragma: no cover
        signal.alarm(PATIENCE)
        status = 1
        try:
            call()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
