"""Which files need a library that is not installed: modules of integrations, their tests, pages and examples.

With RELIVE_ALL_EXTRAS set, none is left out: a library that is missing fails.
"""

import functools
import importlib.util
import os
import pathlib
import re

_OPTIONAL = frozenset(
    (
        "ale_py",
        "gymnasium",
        "jax",
        "minari",
        "mujoco",
        "pandas",
        "pyarrow",
        "ray",
        "stable_baselines3",
        "tensorboard",
        "torch",
    )
)
_INTEGRATIONS = pathlib.Path(__file__).parent / "src/relive/integrations"
_EXAMPLES = pathlib.Path(__file__).parent / "docs/examples"
_IMPORT = re.compile(r"^[ >]*(?:import|from) (\w+)", re.MULTILINE)
_INTEGRATION = re.compile(r"^[ >]*from relive\.integrations import (\w+)", re.MULTILINE)


@functools.cache
def libraries_of(path: pathlib.Path) -> frozenset[str]:
    """Answers which of the optional libraries a file imports, by itself or through integrations."""
    text = path.read_text(encoding="utf-8")
    found = _OPTIONAL.intersection(_IMPORT.findall(text))
    if path.parent == _EXAMPLES and path.name.endswith("_test.py"):
        found |= frozenset().union(*map(libraries_of, set(_EXAMPLES.glob("*.py")) - set(_EXAMPLES.glob("*_test.py"))))
    for name in _INTEGRATION.findall(text):
        module = _INTEGRATIONS / f"{name}.py"
        if module != path:
            found |= libraries_of(module)
    return found


@functools.cache
def missing() -> frozenset[str]:
    """Answers which of them are not installed."""
    if os.environ.get("RELIVE_ALL_EXTRAS"):
        return frozenset()
    return frozenset(name for name in _OPTIONAL if importlib.util.find_spec(name) is None)


def pytest_ignore_collect(collection_path: pathlib.Path) -> bool | None:
    """Leaves out what needs a library that is not there."""
    if collection_path.suffix in (".md", ".py") and libraries_of(collection_path) & missing():
        return True
    return None


def pytest_report_header() -> list[str]:
    """Says so."""
    absent = ", ".join(sorted(missing()))
    return [f"left out: what needs {absent} (pip install -e '.[integrations]')"] if absent else []
