"""How the tests run: a short form by default, a long one with `pytest -m long`.

The short form is seeded: every run makes the same examples. The long form makes new ones, many more, and prints how to
make a failing one again. In it every property test counts as long; others carry the marker themselves.
"""

import gc
import importlib.util
import pathlib
import sys
from typing import Any

import hypothesis
import pytest

_SHARED: dict[str, Any] = {
    "deadline": None,  # what is slow on a busy machine is not wrong
    "print_blob": True,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("short", max_examples=30, derandomize=True, **_SHARED)
hypothesis.settings.register_profile("long", max_examples=1000, **_SHARED)
hypothesis.settings.load_profile("short")

# Modules that lack a library are skipped. This one imports its own late, of which doctest knows nothing.
if not (importlib.util.find_spec("minari") and importlib.util.find_spec("pyarrow")):
    collect_ignore_glob = ["relive/cli/convert*.py"]


def _is_long(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == "long")


def pytest_configure(config: pytest.Config) -> None:
    """Load the profile of the long form if it is asked for."""
    if _is_long(config):
        hypothesis.settings.load_profile("long")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every property test as long, in the long form."""
    if not _is_long(config):
        return
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.long)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Forget a module that needs what is not installed: pytest leaves it half made for those who imports it next."""
    if not report.passed:
        sys.modules.pop(".".join(pathlib.PurePath(report.nodeid).with_suffix("").parts[1:]), None)


def pytest_collection_finish() -> None:
    """Keep all that has been imported out of the collections of garbage that tests make, over and over."""
    gc.freeze()
