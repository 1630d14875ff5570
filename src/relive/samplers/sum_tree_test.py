import bisect
from collections.abc import Callable, Iterator
import contextlib
import copy
import dataclasses
import fractions
import importlib.util
import itertools
import math
import pickle
import random
from typing import Any, ClassVar
from unittest import mock

import hypothesis
from hypothesis import strategies as st
import numpy as np
import numpy.typing as npt
import pytest

import relive
from relive import errors
from relive import testing
from relive.kernels import choice
from relive.kernels import draw
from relive.samplers import sum_tree
from relive.testing import walks

Floats = npt.NDArray[np.float64]

# So narrow a top gives a tree of this many leaves several levels of blocks; the widest gives it none.
TOPS = st.sampled_from([1, 3, 20, 4096])
GENERATORS = st.integers(0, 2**32).map(np.random.default_rng)
EIGHTHS = walks.sampled_from([eighths / 8 for eighths in range(41)])
ANY_WEIGHT = st.floats(0, 1e300)
KERNELS = [name for name in choice.NAMES if importlib.util.find_spec(name) is not None]


@pytest.fixture(scope="module", autouse=True, params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run every test on each kind of kernels."""
    before = choice.chosen().name
    relive.use_kernels(request.param)
    yield
    relive.use_kernels(before)


@contextlib.contextmanager
def narrow(widest_top: int) -> Iterator[None]:
    with (
        mock.patch.object(sum_tree, "WIDEST_TOP", widest_top),
        mock.patch.object(sum_tree, "_MOST_UNSETTLED", 9),
        mock.patch.object(draw, "_MOST_SUMMED", 7),
        mock.patch.object(draw, "_MOST_FOUND", 30),
    ):
        yield


def tree_of(weights: Any) -> relive.SumTree:
    tree = relive.SumTree(len(weights))
    tree.set(np.arange(len(weights)), weights)
    return tree


def levels_of(tree: relive.SumTree) -> list[list[float]]:
    assert tree.total >= 0, "they are up to date once somebody asked"
    return [level.tolist() for level in draw.levels(tree._nodes, tree._offsets).entries]


class NaiveTree:
    """Weights in a list, looked at one by one."""

    def __init__(self, capacity: int) -> None:
        self.weights = [0.0] * capacity

    def find(self, masses: list[float]) -> list[int]:
        ends = list(itertools.accumulate(self.weights))
        last = max((leaf for leaf, weight in enumerate(self.weights) if weight > 0), default=-1)
        return [last if mass == ends[-1] else bisect.bisect_right(ends, mass) for mass in masses]


class Constant(np.random.Generator):
    """A generator that always draws the same number."""

    def __init__(self, number: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.number = number

    def random(self, size: Any = None, *_: Any, **__: Any) -> Any:
        return np.full(size, self.number)


def numpy_generator(rng: random.Random) -> np.random.Generator:
    return np.random.default_rng(rng.getrandbits(32))


class SumTreeMachine(walks.Machine):
    """A sum tree beside a list. Eighths are summed without rounding, so all results are equal."""

    often: ClassVar = {"set_some": 4, "set_some_to_one_weight": 2, "set_many_before_anybody_asks": 3}

    @walks.initialize(capacity=walks.integers(1, 300), widest_top=walks.sampled_from([1, 3, 20, 4096]))
    def start(self, capacity: int, widest_top: int) -> None:
        self.narrowed = contextlib.ExitStack()
        self.narrowed.enter_context(narrow(widest_top))
        self.tree = relive.SumTree(capacity)
        self.naive = NaiveTree(capacity)

    def teardown(self) -> None:
        if hasattr(self, "narrowed"):
            self.narrowed.close()

    def leaves(self, rng: np.random.Generator) -> list[int]:
        """Return some leaves; few of them in half of the cases, and often some twice."""
        most = 40 if rng.random() < 0.5 else 4
        leaves: list[int] = rng.integers(self.tree.capacity, size=rng.integers(most + 1)).tolist()
        return leaves

    @walks.rule(rng=numpy_generator)
    def set_some(self, rng: np.random.Generator) -> None:
        leaves = self.leaves(rng)
        weights = (rng.integers(41, size=len(leaves)) * rng.integers(2, size=len(leaves)) / 8).tolist()
        self.tree.set(leaves, weights)
        for leaf, weight in zip(leaves, weights, strict=True):
            self.naive.weights[leaf] = weight

    @walks.rule(rng=numpy_generator, weight=EIGHTHS)
    def set_some_to_one_weight(self, rng: np.random.Generator, weight: float) -> None:
        leaves = self.leaves(rng)
        self.tree.set(leaves, weight)
        for leaf in leaves:
            self.naive.weights[leaf] = weight

    @walks.rule(rng=numpy_generator, count=walks.integers(0, 25))
    def set_many_before_anybody_asks(self, rng: np.random.Generator, count: int) -> None:
        for _ in range(count):
            leaf, weight = int(rng.integers(self.tree.capacity)), int(rng.integers(41)) / 8
            if rng.random() < 0.5:
                self.tree.set([leaf], weight)
                self.naive.weights[leaf] = weight
            else:
                leaves = [leaf, (leaf + 1) % self.tree.capacity]
                self.tree._write(np.array(leaves), weight)
                for each in leaves:
                    self.naive.weights[each] = weight

    @walks.rule(rng=numpy_generator, wrong=walks.sampled_from([-0.125, math.nan, math.inf, 1e308]))
    def be_refused(self, rng: np.random.Generator, wrong: float) -> None:
        leaves, outside = self.leaves(rng), [-1, self.tree.capacity][rng.integers(2)]
        with pytest.raises(errors.ArgumentError):
            self.tree.set([*leaves, 0], [*[5.0] * len(leaves), wrong])
        with pytest.raises(errors.OutOfRangeError):
            self.tree.set([*leaves, outside], 5.0)
        with pytest.raises(errors.ArgumentError):
            self.tree.set([0], wrong)
        with pytest.raises(errors.OutOfRangeError):
            self.tree.set([outside], 5.0)

    @walks.rule(rng=numpy_generator, weight=EIGHTHS)
    def write_from_outside(self, rng: np.random.Generator, weight: float) -> None:
        leaves = self.leaves(rng)
        self.tree._leaves[leaves] = weight
        self.tree._settle(np.array(leaves, np.int64))
        for leaf in leaves:
            self.naive.weights[leaf] = weight

    @walks.rule(how=walks.sampled_from([copy.deepcopy, lambda tree: pickle.loads(pickle.dumps(tree))]))
    def go_on_with_a_copy(self, how: Callable[[relive.SumTree], relive.SumTree]) -> None:
        self.tree = how(self.tree)

    @walks.rule()
    def clear(self) -> None:
        self.tree.clear()
        self.naive = NaiveTree(self.tree.capacity)

    @walks.rule(when=lambda self: any(self.naive.weights))
    def ask_for_the_largest(self) -> None:
        assert self.tree.max == max(self.naive.weights)

    @walks.rule(when=lambda self: any(self.naive.weights))
    def ask_for_the_smallest(self) -> None:
        assert self.tree.min == min(weight for weight in self.naive.weights if weight > 0)

    @walks.invariant()
    def weights_and_total_are_equal(self) -> None:
        assert self.tree.get(range(self.tree.capacity)).tolist() == self.naive.weights
        assert self.tree._leaves[: self.tree.capacity].tolist() == self.naive.weights
        assert self.tree.total == sum(self.naive.weights)

    @walks.invariant(every=10)
    def every_mass_finds_the_same_leaf(self) -> None:
        if self.tree.total > 0:
            masses = np.arange(0, self.tree.total + 0.0625, 0.0625 * max(1, int(self.tree.total) // 20))
            masses = np.concatenate([masses[masses <= self.tree.total], [self.tree.total]])
            assert self.tree.find(masses).tolist() == self.naive.find(masses.tolist())

    @walks.invariant(every=10)
    def the_audit_passes(self) -> None:
        self.tree.check()


TestSumTree = walks.tests_of(SumTreeMachine)


def test_masses_find_leaves_by_half_open_intervals() -> None:
    tree = tree_of([0.5, 1.0, 0.5, 0.5])
    assert tree.total == 2.5
    assert tree.find([1.5, 1.0, 0.5, 0.49, 0.0, 2.0, 2.5]).tolist() == [2, 1, 1, 0, 0, 3, 3]


@pytest.mark.parametrize("widest_top", [1, 3, 4096])
def test_leaves_keep_their_order_at_every_capacity(widest_top: int) -> None:
    for capacity in range(1, 66):
        with narrow(widest_top):
            tree = tree_of(np.ones(capacity))
        leaves = list(range(capacity))
        assert tree.find(np.arange(capacity)).tolist() == leaves
        assert tree.find(np.arange(capacity) + 0.5).tolist() == leaves
        assert tree.find(np.nextafter(np.arange(capacity) + 1.0, 0)).tolist() == leaves
        assert tree.find([capacity]).tolist() == leaves[-1:]


def test_a_tree_of_several_levels_finds_every_leaf() -> None:
    """Capacities around a whole number of blocks, and around the widest top; no constant is changed here."""
    for capacity in [4095, 4096, 4097, 4112, 4113, 65_535, 65_536, 65_537, 70_001]:
        weights = np.arange(capacity) % 3 / 8
        tree = tree_of(weights)
        ends = weights.cumsum()
        live = np.flatnonzero(weights)
        assert tree.total == ends[-1]
        assert np.array_equal(tree.find((ends - weights)[live]), live)
        assert np.array_equal(tree.find(np.nextafter(ends, 0)[live]), live)
        tree.check()


@hypothesis.given(rng=GENERATORS, batch=st.integers(1, 60), widest_top=TOPS)
def test_old_weights_leave_no_trace(rng: np.random.Generator, batch: int, widest_top: int) -> None:
    """A tree depends on its weights, not on the order or number of the calls that set them."""
    old, new = rng.random((2, 60)) * 2.0 ** rng.integers(-60, 990, (2, 60)) * (rng.random((2, 60)) < 0.8)
    order = rng.permutation(60)
    with narrow(widest_top):
        used, fresh = tree_of(old), tree_of(new)
        for start in range(0, 60, batch):
            leaves = order[start : start + batch]
            used.set(leaves, new[leaves])
    assert levels_of(used) == levels_of(fresh)
    assert used.total == fresh.total


def test_two_hundred_thousand_sets_leave_no_trace() -> None:
    rng = np.random.default_rng(0)
    used = relive.SumTree(5000)
    for _ in range(200):
        used.set(rng.integers(5000, size=1000), 10 ** rng.uniform(-6, 6, size=1000))
    used.set(np.arange(5000), 1e-6)
    assert used.total == tree_of(np.full(5000, 1e-6)).total
    used.set(np.arange(5000), 0.0)
    assert used.total == 0.0


@hypothesis.given(
    weights=st.lists(st.one_of(st.just(0.0), ANY_WEIGHT, st.floats(0, 1e-300)), min_size=1, max_size=80).filter(any),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=30),
    widest_top=TOPS,
)
def test_a_mass_finds_a_live_leaf_where_it_lies(weights: list[float], shares: list[float], widest_top: int) -> None:
    with narrow(widest_top):
        tree = tree_of(weights)
    ends = np.cumsum(weights)
    near = np.concatenate([ends, np.nextafter(ends, 0), np.nextafter(ends, math.inf), np.array(shares) * tree.total])
    masses = np.sort(near[near <= tree.total])
    masses = np.append(masses, [np.nextafter(tree.total, 0), tree.total])
    leaves = tree.find(masses)
    assert (tree.get(leaves) > 0).all()
    assert (np.diff(leaves) >= 0).all()
    exact_ends = [fractions.Fraction(0), *itertools.accumulate(map(fractions.Fraction, weights))]
    slack = exact_ends[-1] * fractions.Fraction(1, 10**12) + fractions.Fraction(5e-324) * 100
    for mass, leaf in zip(masses.tolist(), leaves.tolist(), strict=True):
        assert exact_ends[leaf] - slack <= fractions.Fraction(mass) <= exact_ends[leaf + 1] + slack


@hypothesis.given(
    weights=st.lists(ANY_WEIGHT, min_size=40, max_size=40).filter(any), widest_top=TOPS, seed=st.integers(0, 99)
)
def test_a_mass_finds_the_same_leaf_alone_and_in_a_batch(weights: list[float], widest_top: int, seed: int) -> None:
    with narrow(widest_top):
        tree = tree_of(weights)
    masses = np.random.default_rng(seed).random(20) * tree.total
    assert tree.find(masses).tolist() == [int(tree.find([mass])[0]) for mass in masses]


def test_weights_far_apart_are_all_found() -> None:
    tree = tree_of([1e8, 1e-8, 1e8])
    assert tree.find([0.0, np.nextafter(1e8, 0), 1e8, 1e8 + 1e-7, tree.total]).tolist() == [0, 0, 1, 2, 2]


@pytest.mark.parametrize("weights", [[1, 2, 3, 4], [4, 0, 0, 1, 0, 5], [1e-8, 3e-8], [1e8, 3e8]])
@pytest.mark.parametrize("draw", [relive.SumTree.sample, relive.SumTree.stratified_sample])
@pytest.mark.parametrize(
    ("size", "count"), [(1, 500), (2, 1000), (40, 2000), pytest.param(40, 200_000, marks=pytest.mark.long)]
)
def test_draws_are_in_proportion_to_the_weights(size: int, count: int, draw: Any, weights: list[float]) -> None:
    tree = relive.SumTree(6000)
    leaves = np.arange(len(weights)) * 997
    tree.set(np.arange(6000), 1e8)
    tree.set(np.arange(6000), 0.0)
    tree.set(leaves, weights)
    rng = np.random.default_rng(2)
    drawn = np.bincount(np.concatenate([draw(tree, size, rng) for _ in range(count // size)]), minlength=6000)
    assert drawn.sum() == drawn[leaves].sum() == count
    testing.assert_frequencies(drawn[leaves].tolist(), [weight / sum(weights) for weight in weights])


def test_each_place_of_a_stratified_batch_is_a_draw_from_all() -> None:
    """The batch is shuffled: its first draw is not always from the first stratum."""
    tree, rng = tree_of(np.ones(5)), np.random.default_rng(3)
    batches = np.array([tree.stratified_sample(5, rng) for _ in range(1000)])
    for place in range(5):
        testing.assert_frequencies(np.bincount(batches[:, place], minlength=5).tolist(), [0.2] * 5)


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("size", [1, 3, 7, 256, 5000])
def test_each_stratum_is_drawn_from_once(number: float, size: int) -> None:
    """Also where the point drawn rounds to the end of its stratum, which is not in it."""
    for weight in (2.0, 2.0**-20):
        leaves = tree_of(np.full(size, weight)).stratified_sample(size, Constant(number))
        assert sorted(leaves.tolist()) == list(range(size))


@pytest.mark.parametrize("share", [0, 1, 7, 15])
def test_a_stratum_is_drawn_from_evenly(share: int) -> None:
    for size in (1, 2, 5, 300):
        leaves = tree_of(np.full(16 * size, 0.125)).stratified_sample(size, Constant(share / 16))
        assert sorted(leaves.tolist()) == [16 * stratum + share for stratum in range(size)]


def test_rounding_never_leads_to_a_weight_of_zero() -> None:
    """Blocks that end in zeros, and masses at the very end of each weight."""
    rng = np.random.default_rng(6)
    for scale in (1e-3, 1e3):
        for _ in range(40):
            weights = scale * rng.random(300) * (rng.random(300) < 0.4)
            with narrow(1):
                tree = tree_of(weights)
            ends = weights.cumsum()
            masses = np.sort(np.concatenate([np.nextafter(ends, 0), ends, np.nextafter(ends, math.inf)]))
            leaves = tree.find(masses[masses <= tree.total])
            assert (tree.get(leaves) > 0).all()
            assert (np.diff(leaves) >= 0).all()


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("draw", [relive.SumTree.sample, relive.SumTree.stratified_sample])
@pytest.mark.parametrize("weight", [0.3, 5e-324, 1e300])
@pytest.mark.parametrize("widest_top", [1, 4096])
def test_a_weight_of_zero_is_never_drawn(number: float, draw: Any, weight: float, widest_top: int) -> None:
    with narrow(widest_top):
        tree = relive.SumTree(300)
    live = [17, 40, 41, 260]
    tree.set(live, weight)
    assert set(draw(tree, 64, Constant(number)).tolist()) <= set(live)


@pytest.mark.parametrize("draw", [relive.SumTree.sample, relive.SumTree.stratified_sample])
def test_equal_generators_draw_equal_leaves(draw: Any) -> None:
    tree = tree_of(np.arange(5000))
    first, second = (draw(tree, 50, np.random.default_rng(4)) for _ in range(2))
    assert np.array_equal(first, second)
    assert first.dtype == np.int64
    assert first.shape == (50,)


def test_nothing_is_set_got_or_found_without_an_error() -> None:
    tree = tree_of([1.0, 2.0])
    tree.set([], [])
    tree.set(np.zeros(0, np.int64), 5.0)
    assert tree.get([]).dtype == np.float64
    assert tree.find([]).dtype == np.int64
    assert tree.get([]).shape == tree.find([]).shape == (0,)
    assert tree.total == 3.0


def test_numbers_of_any_kind_are_weights_and_leaves() -> None:
    tree = relive.SumTree(200)
    read_only = np.array([3.0, 4.0])
    read_only.flags.writeable = False
    tree.set((0, 1), read_only)
    tree.set(np.array([2, 3], np.uint8), np.array([0.5, 1.5], np.float16))
    tree.set(np.arange(10)[4:8:2], [True, 7])
    tree.set(np.array([199], np.uint64), np.int8(2))
    assert tree.get([0, 1, 2, 3, 4, 5, 6, 199]).tolist() == [3, 4, 0.5, 1.5, 1, 0, 7, 2]


def test_a_sum_tree_copies_arrays() -> None:
    tree, weights, leaves = relive.SumTree(3), np.ones(3), np.arange(3)
    tree.set(leaves, weights)
    weights[:] = 9
    leaves[:] = 0
    tree.get([0, 1, 2])[:] = 9
    masses = np.array([3.0])
    found = tree.find(masses)
    assert (found.tolist(), masses.tolist(), tree.total) == ([2], [3.0], 3.0)
    tree.check()


def test_an_empty_tree_has_only_a_total_of_zero() -> None:
    tree = relive.SumTree(5000)
    tree.set([3, 4], [1.0, 2.0])
    tree.set([3, 4], -0.0)
    assert str(tree.total) == "0.0"
    rng = np.random.default_rng(0)
    state = rng.bit_generator.state
    calls: dict[str, Callable[[], object]] = {
        "max": lambda: tree.max,
        "min": lambda: tree.min,
        "find": lambda: tree.find([0.0]),
        "sample": lambda: tree.sample(1, rng),
        "stratified_sample": lambda: tree.stratified_sample(1, rng),
    }
    for name, call in calls.items():
        with pytest.raises(errors.NotReadyError, match=f"^{name} found all weights zero: set a weight above 0 first$"):
            call()
    assert rng.bit_generator.state == state


def test_extremes_are_right_however_many_leaves_were_set_since() -> None:
    rng = np.random.default_rng(5)
    tree = relive.SumTree(9000)
    weights = np.zeros(9000)
    for batch in [1, 3, 561, 1, 562, 2, 563, 9000, 70, 1, 0, 8999, 1]:
        for _ in range(3):
            leaves = rng.permutation(9000)[:batch]
            weights[leaves] = rng.integers(4, size=batch) * rng.random(batch)
            tree.set(leaves, weights[leaves])
            tree.set([8999], [weights[8999]])
            if weights.any():
                assert tree.min == weights[weights > 0].min()
                tree.set([8998], [weights[8998]])
                assert tree.max == weights.max()
        tree.check()
    tree.clear()
    tree.set([77], [2.0])
    assert (tree.max, tree.min) == (2.0, 2.0)


def test_the_smallest_weight_is_found_wherever_it_is() -> None:
    tree = relive.SumTree(70_000)
    tree.set(np.arange(1, 70_000, 2), 1.0)
    for number, leaf in enumerate([69_999, 0, 65_536, 32_767, 40_000, 32_768]):
        tree.set([leaf], [2.0**-number])
        assert tree.min == 2.0**-number
    tree.set([65_535], [5e-324])
    assert tree.min == 5e-324


def test_extremes_are_kept_until_a_weight_is_set() -> None:
    """A weight changed without a call is not seen, so a draw does not look at all of them."""
    tree = tree_of(np.ones(5000))
    assert (tree.max, tree.min) == (1.0, 1.0)
    tree._leaves[8:10] = [5.0, 0.5]
    assert (tree.max, tree.min) == (1.0, 1.0)
    tree.set([10], [1.0])
    assert (tree.max, tree.min) == (5.0, 0.5)


def test_the_largest_weights_have_a_finite_total() -> None:
    for capacity in (1, 3, 4097):
        tree = relive.SumTree(capacity)
        limit = tree._heaviest
        assert limit > 1e304
        tree.set(np.arange(capacity), limit)
        assert tree.total == pytest.approx(capacity * limit)
        assert tree.total < math.inf
        tree.check()
        assert tree.stratified_sample(3, np.random.default_rng(0)).max() < capacity
        with pytest.raises(errors.ArgumentError, match="or sums could overflow, got .* in row 1$"):
            tree.set([0, 0], [limit, np.nextafter(limit, math.inf)])


@pytest.mark.parametrize(
    ("leaves", "error", "message"),
    [
        ([0, 8], errors.OutOfRangeError, r"in \[0, 8\), got 8 in row 1"),
        ([0, -1], errors.OutOfRangeError, r"in \[0, 8\), got -1 in row 1"),
        (np.array([2**64 - 1], np.uint64), errors.OutOfRangeError, r"in \[0, 8\), got 18446744073709551615 in row 0"),
        ([0, 1.0], errors.ArgumentTypeError, "integers, got float64"),
        ([True], errors.ArgumentTypeError, "integers, got bool"),
        (["a"], errors.ArgumentTypeError, "integers, got <U1"),
        ([[0], [1, 2]], errors.ArgumentTypeError, r"an array of numbers, got \[\[0\], \[1, 2\]\]"),
        (3, errors.ArgumentError, r"of shape \[k\], got shape \(\)"),
        ([[3]], errors.ArgumentError, r"of shape \[k\], got shape \(1, 1\)"),
    ],
)
def test_wrong_leaves_are_refused_as_a_whole(leaves: Any, error: type[Exception], message: str) -> None:
    tree = tree_of(np.arange(8))
    before = levels_of(tree)
    for call in (lambda: tree.set(leaves, 1.0), lambda: tree.get(leaves)):
        with pytest.raises(error, match=f"^leaves must be {message}$"):
            call()
    assert levels_of(tree) == before


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ([1], errors.ArgumentError, r"of shape \(2,\) or \(\), got \(1,\)"),
        ([[1, 1]], errors.ArgumentError, r"of shape \(2,\) or \(\), got \(1, 2\)"),
        ([0, -0.5], errors.ArgumentError, "finite and at least 0, got -0.5 for leaf 4 in row 1"),
        ([1, math.nan], errors.ArgumentError, "finite and at least 0, got nan for leaf 4 in row 1"),
        ([math.nan, -1], errors.ArgumentError, "finite and at least 0, got nan for leaf 3 in row 0"),
        ([math.inf, 1], errors.ArgumentError, "finite and at least 0, got inf for leaf 3 in row 0"),
        (-1, errors.ArgumentError, "finite and at least 0, got -1.0 for leaf 3 in row 0"),
        (
            [1, 1e308],
            errors.ArgumentError,
            r"at most 1.12356e\+307, or sums could overflow, got 1e\+308 for leaf 4 in row 1",
        ),
        ([1, np.finfo(np.longdouble).max], errors.ArgumentError, ".* for leaf 4 in row 1"),
        (["1", "2"], errors.ArgumentTypeError, r"real numbers, got \['1', '2'\]"),
        ([1, 1j], errors.ArgumentTypeError, r"real numbers, got \[1, 1j\]"),
        ([1, None], errors.ArgumentTypeError, r"real numbers, got \[1, None\]"),
        ([1, 10**400], errors.ArgumentTypeError, r"real numbers, got \[1, 10+\.\.\.0+\]"),
    ],
)
def test_wrong_weights_are_refused_as_a_whole(weights: Any, error: type[Exception], message: str) -> None:
    tree = tree_of(np.arange(8))
    before = levels_of(tree)
    with pytest.raises(error, match=f"^weights must be {message}$"):
        tree.set([3, 4], weights)
    assert levels_of(tree) == before
    assert tree.total == 28.0


@pytest.mark.parametrize(
    ("masses", "message"),
    [
        ([0.0, -0.001], r"masses must be in \[0, 2.5\], got -0.001 in row 1"),
        ([0.0, 2.5000001], r"masses must be in \[0, 2.5\], got 2.5000001 in row 1"),
        ([math.nan, 1.0], r"masses must be in \[0, 2.5\], got nan in row 0"),
        (1.0, r"masses must be of shape \[k\], got shape \(\)"),
        (["a"], r"masses must be real numbers, got \['a'\]"),
    ],
)
def test_masses_outside_the_total_are_refused(masses: Any, message: str) -> None:
    with pytest.raises(errors.ArgumentError, match=f"^{message}$"):
        tree_of([0.5, 1.0, 0.5, 0.5]).find(masses)


@pytest.mark.parametrize("draw", [relive.SumTree.sample, relive.SumTree.stratified_sample])
def test_a_size_below_one_is_refused(draw: Any) -> None:
    with pytest.raises(errors.ArgumentError, match="^size must be at least 1, got 0$"):
        draw(tree_of([1.0]), 0, np.random.default_rng(0))


def test_a_capacity_below_one_is_refused() -> None:
    with pytest.raises(errors.ArgumentError, match="^capacity must be at least 1, got 0$"):
        relive.SumTree(0)
    assert relive.SumTree(7).capacity == 7


def broken(name: str) -> relive.SumTree:
    tree = tree_of(np.ones(4100))
    assert (tree.max, tree.min) == (1.0, 1.0)
    if name == "weight":
        tree._leaves[3] = -1.0
    elif name == "padding":
        tree._leaves[4100] = 1.0
    elif name == "sum":
        draw.levels(tree._nodes, tree._offsets).entries[1][7] = 17.0
    elif name == "total":
        assert tree.total == 4100.0
        tree._total = 4099.0
    elif name == "masses":
        assert tree.total == 4100.0
        tree._masses[9] += 1.0
    elif name == "start":
        assert tree.total == 4100.0
        tree._masses[0] = 1.0
    return tree


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("weight", r"weight of leaf 3 must be in \[0, 2.19231e\+304\], found -1.0"),
        ("padding", "weights beyond leaf 4099 must be 0"),
        ("sum", "sum 7 of level 1 must be 8.0, found 17.0"),
        ("masses", "running sums of the top are not those of its entries"),
        ("total", "running sums of the top are not those of its entries"),
        ("start", "running sums of the top are not those of its entries"),
    ],
)
def test_check_of_a_sum_tree_says_what_is_wrong(name: str, message: str) -> None:
    broken("nothing").check()
    with pytest.raises(errors.CorruptionError, match=f"^{message}$"):
        broken(name).check()


def test_a_mass_below_the_edge_of_a_block_stays_in_it() -> None:
    """What is left of it within its block may by rounding be the whole of the block."""
    for scale in (1e-6, 1.0, 1e6):
        tree = relive.SumTree(1 << 16)
        weights = np.random.default_rng(5).random(1 << 16) * scale
        tree.set(np.arange(1 << 16), weights)
        assert tree.total > 0
        edges = tree._masses[1:]
        leaves = tree.find(np.nextafter(edges, 0))
        assert (leaves // ((1 << 16) // len(edges))).tolist() == list(range(len(edges)))
        assert (weights[leaves] > 0).all()


def test_sums_are_settled_when_asked_or_when_many_wait() -> None:
    """The list of pending changes is limited."""
    tree = relive.SumTree(5000)
    for leaves in np.arange(5000).reshape(5, -1):
        tree.set(leaves, 1.0)
    assert tree.total == 5000.0
    before = tree._nodes[len(tree._leaves) :].tolist()
    size = len(tree._unsettled)
    for leaf in range(size):
        tree.set([leaf], 2.0)
    assert tree._nodes[len(tree._leaves) :].tolist() == before
    tree.set([size], 2.0)
    assert tree._nodes[len(tree._leaves) :].tolist() != before
    assert len(tree._unsettled) == size
    assert tree.total == 5000.0 + size + 1


def test_a_cleared_tree_forgets_pending_changes() -> None:
    tree = relive.SumTree(5000)
    tree.set([4], 2.0)
    tree.clear()
    assert tree.total == 0.0
    tree.set([5], 1.0)
    assert (tree.total, tree.find([0.5]).tolist()) == (1.0, [5])
    tree.check()


@pytest.mark.parametrize("total", [1.0, 0.1, 1e300, 7e-310, 11 * 5e-324])
def test_strata_end_before_the_next_one_and_before_the_total(total: float) -> None:
    """Also for a generator that draws the largest number below 1, and for totals of few bits."""
    for size in (1, 2, 3, 7, 10, 300):
        found: list[Floats] = []
        tree = tree_of([total])

        def find(levels: object, masses: Floats, points: Floats, found: list[Floats] = found) -> object:
            found.append(points)
            return np.zeros(len(points), np.int64)

        tree._kernels = dataclasses.replace(tree._kernels, find=find)
        tree.stratified_sample(size, Constant(1 - 2**-53))
        (points,) = found
        assert points.max() < total
        if total > 1e-300:
            strata = [math.floor(fractions.Fraction(point) * size / fractions.Fraction(total)) for point in points]
            assert strata == list(range(size))


def test_the_kernels_chosen_are_those_of_trees_made_afterwards() -> None:
    """The fixture chose the kernels before this tree was made, and a tree keeps its kernels."""
    tree = relive.SumTree(3)
    assert tree._kernels.name == choice.chosen().name
    relive.use_kernels("numpy")
    assert relive.SumTree(3)._kernels.name == "numpy"
    name = tree._kernels.name
    relive.use_kernels(name)
    assert relive.SumTree(3)._kernels is tree._kernels


def test_blocks_are_cache_lines() -> None:
    for capacity in (1, 5000, 70_001):
        assert relive.SumTree(capacity)._leaves.ctypes.data % 64 == 0


def test_a_weight_below_zero_by_its_sign_alone_is_zero() -> None:
    tree = tree_of([-0.0] * 8)
    tree.set([1], -0.0)
    assert str(tree.total) == "0.0"
    assert not np.signbit(tree._leaves).any()


@pytest.mark.parametrize("capacity", [1, 7, 8, 9, 65, 5000])
def test_many_weights_at_once_are_those_set_one_by_one(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    one, other = sum_tree.SumTree(capacity), sum_tree.SumTree(capacity)
    for leaves in (slice(0, capacity), slice(capacity // 2, capacity), rng.permutation(capacity)[: capacity // 2 + 1]):
        weights = rng.random(len(np.arange(capacity)[leaves])) * rng.integers(0, 2)
        one.set(np.arange(capacity)[leaves], weights)
        other._fill(leaves, weights)
        assert (one.total, one._nodes.tobytes()) == (other.total, other._nodes.tobytes())
        assert one._masses.tobytes() == other._masses.tobytes()
        if one.total:
            assert (one.min, one.max) == (other.min, other.max)
