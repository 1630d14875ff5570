from collections.abc import Iterator
import copy
import importlib.util
import inspect
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
    before = choice.chosen()
    relive.use_kernels("numpy")
    yield
    relive.use_kernels(before)


def run(code: str, **environment: str) -> str:
    """Return what a fresh interpreter printed, or the last line of its traceback."""
    path = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=path | environment, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


SHOW = "from relive.kernels import choice; import sys; print(choice.chosen(), 'numba' in sys.modules)"


def test_kernels_are_those_of_numpy_unless_others_are_asked_for() -> None:
    assert run(SHOW) == run(SHOW, RELIVE_KERNELS="") == run(SHOW, RELIVE_KERNELS="numpy") == "numpy False"


@needs_numba
def test_the_environment_asks_for_those_of_numba() -> None:
    assert run(SHOW, RELIVE_KERNELS="numba") == "numba True"


def test_a_wrong_name_is_refused_and_changes_nothing() -> None:
    for name in ("cuda", "Numpy", "", None):
        with pytest.raises(errors.ArgumentError, match=f"^kernels must be 'numpy' or 'numba', got {name!r}$"):
            relive.use_kernels(name)  # type: ignore[arg-type]
    assert choice.chosen() == "numpy"


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
    assert choice.chosen() == "numpy"


@needs_numba
def test_a_name_stands_for_a_module_of_kernels_compiled_once() -> None:
    from relive.kernels import compiled
    from relive.kernels import plain

    with mock.patch.object(compiled, "compile_all", wraps=compiled.compile_all) as compile_all:
        choice.named.cache_clear()
        for name, module in (("numba", compiled), ("numpy", plain), ("numba", compiled)):
            relive.use_kernels(name)
            assert choice.chosen() == choice.named(name).name == name
            assert choice.named(name) is module
    assert compile_all.call_count == 1


@needs_numba
def test_both_modules_have_the_same_kernels() -> None:
    """With the same arguments."""
    of_numpy, of_numba = choice.named("numpy"), choice.named("numba")
    names = [name for name, value in vars(of_numpy).items() if callable(value)]
    assert len(names) == 8
    for name in names:
        ours, theirs = getattr(of_numpy, name), getattr(of_numba, name)
        assert [*inspect.signature(ours).parameters] == [*inspect.signature(theirs).parameters]


@pytest.mark.parametrize("name", ["numpy", pytest.param("numba", marks=needs_numba)])
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
@pytest.mark.parametrize("make", [relive.RingReplayBuffer, relive.PrioritizedReplayBuffer])
def test_buffers_and_their_copies_keep_their_kernels(name: str, again: Any, make: Any) -> None:
    """Whatever is chosen when they are copied, or used."""
    relive.use_kernels(name)
    buffer = make(8, seed=0)
    other = next(each for each in choice.NAMES if each != name)
    with mock.patch.object(choice, "_chosen", other):
        copies = [buffer, again(buffer), again(again(buffer))]
    for each in copies:
        with mock.patch.object(choice, "named", wraps=choice.named) as named:
            each.add_episode([0, 1, 2], [0, 1], [0.0, 1.0], terminated=True)
            each.sample(4)
        assert all(call.args == (name,) for call in named.call_args_list)
        assert each._store.kernels is choice.named(name)


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
