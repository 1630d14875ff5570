from collections.abc import Iterator
import copy
import importlib.util
import pickle
import runpy
import subprocess
import sys
import types
from typing import Any
from unittest import mock

import pytest

import relive
from relive import errors
from relive.kernels import choice

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="numba is not installed")


@pytest.fixture(autouse=True)
def numpy_at_first() -> Iterator[None]:
    before = choice.chosen().name
    relive.use_kernels("numpy")
    yield
    relive.use_kernels(before)


def run(code: str, **environment: str) -> str:
    """Return what a fresh interpreter printed, or the last line of its traceback."""
    path = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=path | environment, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


SHOW = "from relive.kernels import choice; import sys; print(choice.chosen().name, 'numba' in sys.modules)"


def test_kernels_are_those_of_numpy_unless_others_are_asked_for() -> None:
    assert run(SHOW) == run(SHOW, RELIVE_KERNELS="") == run(SHOW, RELIVE_KERNELS="numpy") == "numpy False"


@needs_numba
def test_the_environment_asks_for_those_of_numba() -> None:
    assert run(SHOW, RELIVE_KERNELS="numba") == "numba True"


def test_a_wrong_name_is_refused_and_changes_nothing() -> None:
    for name in ("cuda", "Numpy", "", None):
        with pytest.raises(errors.ArgumentError, match=f"^kernels must be 'numpy' or 'numba', got {name!r}$"):
            relive.use_kernels(name)  # type: ignore[arg-type]
    assert choice.chosen().name == "numpy"


def test_a_wrong_name_in_the_environment_fails_the_import() -> None:
    with (
        mock.patch.dict("os.environ", {choice.VARIABLE: "cuda"}),
        pytest.raises(errors.ArgumentError, match="^RELIVE_KERNELS must be 'numpy' or 'numba', got 'cuda'$"),
    ):
        runpy.run_path(choice.__file__)


def test_where_numba_is_missing_the_error_says_how_to_install_it() -> None:
    message = 'relive.errors.MissingExtraError: numba is not installed: it comes with the extra "numba" of relive'
    missing = "import sys; sys.modules['numba'] = None; "
    assert run(missing + "import relive; relive.use_kernels('numba')") == message
    assert run(missing + SHOW, RELIVE_KERNELS="numba") == message
    assert run(missing + SHOW) == "numpy True"  # None stands for it.


@pytest.mark.parametrize(
    ("name", "stand_in", "build"),
    [
        ("sys", types.SimpleNamespace(maxsize=2**31 - 1), "32-bit"),
        ("sysconfig", types.SimpleNamespace(get_config_var={"Py_GIL_DISABLED": 1}.get), "free-threaded"),
    ],
)
def test_builds_that_cannot_run_compiled_kernels_refuse_them(
    name: str, stand_in: types.SimpleNamespace, build: str
) -> None:
    choice.named.cache_clear()
    with (
        mock.patch.object(choice, name, stand_in),
        pytest.raises(
            errors.ArgumentError, match=f"^kernels must be 'numpy' on a {build} build of Python, got 'numba'$"
        ),
    ):
        relive.use_kernels("numba")
    assert choice.chosen().name == "numpy"


@needs_numba
def test_chosen_kernels_are_used_and_compiled_once() -> None:
    before = choice.chosen()
    relive.use_kernels("numba")
    assert (before.name, choice.chosen().name) == ("numpy", "numba")
    assert choice.chosen() is choice.named("numba")
    relive.use_kernels("numpy")
    assert choice.chosen() is before


@pytest.mark.parametrize("name", ["numpy", pytest.param("numba", marks=needs_numba)])
def test_a_copy_or_a_pickle_finds_the_same_functions(name: str) -> None:
    kernels = choice.named(name)
    assert copy.deepcopy(kernels) is copy.copy(kernels) is pickle.loads(pickle.dumps(kernels)) is kernels


@needs_numba
def test_numba_compiles_without_a_directory_for_its_cache() -> None:
    from numba.core import caching

    from relive.kernels import compiled

    def twice(number: int) -> int:
        return 2 * number

    with mock.patch.object(caching.CompileResultCacheImpl, "_locator_classes", []):
        function: Any = compiled._jit(twice)
    assert function(21) == 42
    assert function.stats.cache_path is None
