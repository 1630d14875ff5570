"""Each test here that is a coroutine function runs in an event loop whose clock jumps: waiting takes no time."""

import inspect
from typing import Any

import pytest

from relive.fleet import local_test


def pytest_pycollect_makeitem(collector: pytest.Collector, name: str, obj: Any) -> None:
    """Put the test in the loop before pytest makes it one of a real loop."""
    if isinstance(collector, pytest.Module) and name.startswith("test_") and inspect.iscoroutinefunction(obj):
        setattr(collector.obj, name, local_test.virtual(obj))
