"""Buffers return the same on compiled kernels; the tests beside it compare each kernel with the one in numpy."""

from collections.abc import Callable, Iterator
import contextlib
import copy
import functools
import pathlib
import random
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive.common import arrays as arrays_lib
from relive.kernels import choice
from relive.storage import memmap
from relive.testing import zoo

compiled = pytest.importorskip("relive.kernels.compiled")


@contextlib.contextmanager
def chosen(kernels: str) -> Iterator[None]:
    """Make buffers run on those kernels, inside."""
    before = choice.chosen().name
    relive.use_kernels(kernels)
    try:
        yield
    finally:
        relive.use_kernels(before)


@pytest.mark.parametrize("name", zoo.COLUMNS)
@hypothesis.settings(max_examples=10)
@hypothesis.given(st.integers(0, 2**32))
def test_buffers_return_the_same_with_both_kernels(name: str, seed: int) -> None:
    made = []
    for kernels in choice.NAMES:
        with chosen(kernels):
            buffer = zoo.COLUMNS[name]()
        made.append([zoo.work(buffer, random.Random(seed), 100), zoo.drawn(buffer), zoo.state_of(buffer)])
        zoo.check(buffer)
    assert made[0] == made[1]


def signatures() -> dict[str, list[Any]]:
    """Return for which types each kernel is compiled."""
    choice.named("numba")
    kernels = {name: value for name, value in vars(compiled).items() if hasattr(value, "signatures")}
    return {name: list(kernel.signatures) for name, kernel in kernels.items()}


@pytest.fixture
def compiles_nothing() -> Iterator[None]:
    """Choose the kernels of numba for a test, and check that what it calls compiles nothing more."""
    before = signatures()
    with chosen("numba"):
        yield
    assert signatures() == before


def test_everything_is_compiled_when_the_kernels_are_chosen() -> None:
    """For two dtypes of rewards; for everything else there is one type."""
    counts = {name: len(of_types) for name, of_types in signatures().items()}
    assert counts.pop("_next") <= 1  # 0 where all that call it come from the cache.
    assert counts.pop("_transitions") == 2
    assert set(counts.values()) == {1}


@pytest.mark.parametrize("name", zoo.COLUMNS | zoo.JOINT | zoo.TOKENS)
@pytest.mark.usefixtures("compiles_nothing")
def test_no_buffer_compiles_anything(name: str, tmp_path: pathlib.Path) -> None:
    """In use, journaled, recovered, saved, loaded, copied."""
    buffer = zoo.KINDS[name].make()
    with relive.Journal(tmp_path / "journal") as journal:
        buffer.attach(journal)
        zoo.work(buffer, random.Random(0), 40)
        buffer.save(tmp_path / "saved")

        def own() -> Any:
            return {"storage": zoo.OwnStorage(buffer.schema, buffer.capacity)} if "own storage" in name else {}

        loaded = relive.load(tmp_path / "saved", **own())
    for each in (loaded, relive.recover(tmp_path / "journal", **own()), copy.deepcopy(loaded)):
        zoo.work(each, random.Random(1), 10)
        zoo.drawn(each)


def odd_arrays() -> dict[str, Callable[[Any], Any]]:
    """Return ways to make another array, or a list, of the same numbers [k]."""

    def read_only(numbers: arrays_lib.Array) -> arrays_lib.Array:
        return np.frombuffer(numbers.tobytes(), numbers.dtype)

    def unaligned(numbers: arrays_lib.Array) -> arrays_lib.Array:
        return np.frombuffer(b"0" + numbers.tobytes(), np.uint8)[1:].view(numbers.dtype)

    def others(numbers: arrays_lib.Array) -> arrays_lib.Array:
        return numbers.astype({"i": np.uint64, "f": np.float32, "b": np.uint8}[numbers.dtype.kind])

    return {
        "list": lambda numbers: numbers.tolist(),
        "read-only": read_only,
        "strided": lambda numbers: numbers.repeat(2)[::2],
        "reversed": lambda numbers: numbers[::-1].copy()[::-1],
        "unaligned": unaligned,
        "of another byte order": lambda numbers: numbers.astype(numbers.dtype.newbyteorder()),
        "of another dtype": others,
        "of a subclass": lambda numbers: numbers.view(np.recarray),
        "broadcast": lambda numbers: np.broadcast_to(numbers[:1], len(numbers)),
    }


ODD = odd_arrays()


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.usefixtures("compiles_nothing")
def test_no_array_of_a_custom_sampler_compiles_anything(odd: Any) -> None:
    class Odd(relive.Sampler):
        def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
            return relive.Draw(odd(rng.choice(self.anchors.slots(), size)), odd(np.full(size, 1 / len(self.anchors))))

    every: list[Any] = [{"n_step": 1}, {"n_step": 3}, {"frame_stack": 2}, {"max_times_sampled": 99}]
    for options in every:
        buffer = relive.RingReplayBuffer(32, sampler=Odd(), seed=0, **options)
        buffer.add_episode(np.arange(20.0), np.zeros(19), np.ones(19), terminated=True)
        assert len(buffer.sample(4).keys) == len(buffer.sample_keys(4)) == 4


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
@pytest.mark.usefixtures("compiles_nothing")
def test_no_array_of_a_user_compiles_anything(odd: Any) -> None:
    rewards, rng = np.ones(19), np.random.default_rng(0)
    sequences = functools.partial(relive.SequenceReplayBuffer, length=2, prioritized=True)
    for make in (relive.PrioritizedReplayBuffer, sequences):
        buffer: Any = make(40, streams=2, seed=0)
        for i in range(9):
            flags = np.array([i == 4, False]), np.array([False, i == 7])
            streams = np.arange(2)[::-1] if odd is ODD["broadcast"] else odd(np.arange(2)[::-1])
            step = map(odd, (np.full(2, float(i)), np.zeros(2), np.ones(2), np.full(2, i + 1.0)))
            buffer.extend(*step, terminated=odd(flags[0]), truncated=odd(flags[1]), streams=streams)
        buffer.add_episode(odd(np.arange(20.0)), odd(rewards), odd(rewards), terminated=True, stream=0)
        keys = buffer.eligible_keys()[:5]
        buffer.update_priorities(odd(keys), odd(np.arange(5.0) + 1))
        buffer.read(odd(keys)), buffer.get_priorities(odd(keys)), buffer.set_eligible(odd(keys[:2]), False)
        buffer.sample(5)
    for leaves in (20, 5000):
        tree = relive.SumTree(leaves)
        tree.set(odd(np.arange(20)), odd(np.arange(20.0) + 1))
        tree.find(odd(np.arange(3.0))), tree.get(odd(np.arange(3))), tree.stratified_sample(3, rng), tree.sample(3, rng)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4", ">f8"])
@pytest.mark.usefixtures("compiles_nothing")
def test_no_memory_map_compiles_anything(dtype: str, tmp_path: pathlib.Path) -> None:
    """Of rewards that can be written to, and of some that cannot."""
    number = relive.Field((), "f8")
    schema = relive.Schema(number, number, reward=relive.Field((), dtype))
    with relive.MemmapStorage(tmp_path / "map", schema, 32) as storage:
        buffer = relive.RingReplayBuffer(32, storage=storage, n_step=3, seed=0)
        buffer.add_episode(np.arange(10.0), np.zeros(9), np.ones(9), terminated=True)
        batch = buffer.sample(4)
        buffer.save(tmp_path / "saved", copy_rows=False)
    with memmap.reader(str(tmp_path / "map")) as storage:
        again: Any = relive.load(tmp_path / "saved", storage=storage)
        assert again.read(batch.keys).reward.tolist() == batch.reward.tolist()
