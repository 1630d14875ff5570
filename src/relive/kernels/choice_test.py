from collections.abc import Iterator
import copy
import importlib.util
import inspect
import pickle
import random
import runpy
import subprocess
import sys
import types
from typing import Any
from unittest import mock

import numpy as np
import pytest

import relive
from relive import errors
from relive.kernels import choice
from relive.kernels import draw
from relive.testing import zoo

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


def chosen_by(name: str) -> str:
    """Return the name of the kernels that an import chooses with that value in the environment."""
    with mock.patch.dict("os.environ", {choice.VARIABLE: name}):
        found: str = runpy.run_path(choice.__file__)["chosen"]().name
    return found


def test_kernels_are_those_of_numpy_unless_others_are_asked_for() -> None:
    assert run(SHOW) == "numpy False"
    assert chosen_by("") == chosen_by("numpy") == "numpy"


@needs_numba
def test_the_environment_asks_for_those_of_numba() -> None:
    assert run(SHOW, RELIVE_KERNELS="numba") == "numba True"


def test_a_wrong_name_is_refused_and_changes_nothing() -> None:
    for name in ("cuda", "Numpy", "", None):
        with pytest.raises(errors.ArgumentError, match=f"^kernels must be 'numpy' or 'numba', got {name!r}$"):
            relive.use_kernels(name)  # type: ignore[arg-type]
    assert choice.chosen().name == "numpy"


def test_a_wrong_name_in_the_environment_fails_the_import() -> None:
    with pytest.raises(errors.ArgumentError, match="^RELIVE_KERNELS must be 'numpy' or 'numba', got 'cuda'$"):
        chosen_by("cuda")


def test_where_numba_is_missing_the_error_says_how_to_install_it() -> None:
    message = 'numba is not installed: it comes with the extra "numba" of relive'
    missing = "import sys; sys.modules['numba'] = None; "
    assert run(missing + SHOW, RELIVE_KERNELS="numba") == f"relive.errors.MissingExtraError: {message}"
    asks = "import relive\ntry:\n    relive.use_kernels('numba')\nexcept ImportError as error:\n    print(error)\n"
    assert run(f"{missing}\n{asks}{SHOW}").splitlines() == [message, "numpy True"]  # None stands for it.


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
@pytest.mark.parametrize("is_cached", [False, True])
def test_it_says_that_numba_compiles_where_nothing_is_cached(is_cached: bool, caplog: pytest.LogCaptureFixture) -> None:
    from relive.kernels import compiled

    stats = types.SimpleNamespace(cache_hits={"one": 1} if is_cached else {})
    stand_in: Any = mock.Mock(side_effect=compiled.settle, stats=stats)  # What comes after it needs what it writes.
    with mock.patch.object(compiled, "settle", stand_in):
        compiled.compile_all()
    assert [record.message.split(":")[0] for record in caplog.records] == (
        [] if is_cached else ["numba compiles the kernels of relive"]
    )


@needs_numba
def test_a_name_stands_for_a_module_of_kernels_compiled_once() -> None:
    from relive.kernels import compiled

    with mock.patch.object(compiled, "compile_all", wraps=compiled.compile_all) as compile_all:
        choice.named.cache_clear()
        for name, module in (("numba", compiled), ("numpy", draw), ("numba", compiled)):
            relive.use_kernels(name)
            assert choice.chosen() is choice.named(name)
            assert (choice.named(name).name, choice.named(name).find) == (name, module.find)
    assert compile_all.call_count == 1


@needs_numba
def test_both_modules_have_the_same_kernels() -> None:
    """With the same arguments."""
    of_numpy, of_numba = choice.named("numpy"), choice.named("numba")
    pairs = zip(vars(of_numpy).values(), vars(of_numba).values(), strict=True)
    for ours, theirs in [pair for pair in pairs if callable(pair[0])]:
        assert [*inspect.signature(ours).parameters] == [*inspect.signature(theirs).parameters]


@needs_numba
@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
@pytest.mark.parametrize("make", [relive.RingReplayBuffer, relive.PrioritizedReplayBuffer])
@pytest.mark.parametrize(("name", "other"), [("numpy", "numba"), ("numba", "numpy")])
def test_buffers_keep_kernels_and_copies_have_those_chosen_then(name: str, other: str, make: Any, again: Any) -> None:
    relive.use_kernels(name)
    buffer = make(20, streams=20, seed=0)
    relive.use_kernels(other)
    copied = again(buffer)
    relive.use_kernels(name)
    for each, kernels in ((buffer, name), (copied, other), (again(copied), name)):
        steps = np.arange(20.0)  # So many episodes need more room.
        each.extend(steps, steps, steps, steps + 1)
        parts = [vars(part) for part in (each._store, each.sampler, getattr(each.sampler, "_tree", each))]
        in_use = [value for part in parts for value in part.values() if isinstance(value, choice.Kernels)]
        assert in_use == [choice.named(kernels)] * 2


BLOCKED = """
import pickle, random, sys
sys.modules["numba"] = None
import relive
from relive.kernels import choice
from relive.kernels import draw
from relive.testing import zoo
assert choice.chosen().name == "numpy"
answers = {}
for name, buffer in pickle.load(sys.stdin.buffer).items():
    if name != "tree":
        answers[name] = zoo.work(buffer, random.Random(1), 20), zoo.drawn(buffer), buffer
tree = pickle.loads(pickle.dumps(buffer))
tree.set([1], 0.3)
answers["tree"] = [], tree.total, tree
sys.stdout.buffer.write(pickle.dumps(answers))
"""


@needs_numba
def test_buffers_go_on_where_there_is_no_numba_and_come_back() -> None:
    """With the same answers, to the last bit."""
    relive.use_kernels("numba")
    made = {name: zoo.worked(zoo.KINDS[name].make) for name in (zoo.COLUMNS | zoo.JOINT | zoo.TOKENS)}
    tree = relive.SumTree(9)
    tree.set(range(9), np.arange(9) / 7)
    command, sent = [sys.executable, "-c", BLOCKED], pickle.dumps({**made, "tree": tree})
    path = {"PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run(command, input=sent, env=path, stdout=subprocess.PIPE, check=True)
    back = pickle.loads(done.stdout)
    tree.set([1], 0.3)
    assert (back["tree"][1], back["tree"][2]._kernels.name) == (tree.total, "numba")
    for name, buffer in made.items():
        worked, drawn, other = back[name]
        assert worked == zoo.work(buffer, random.Random(1), 20)
        assert drawn == zoo.drawn(buffer)
        zoo.assert_same(buffer, other, 4)


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
