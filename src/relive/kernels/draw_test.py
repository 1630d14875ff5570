import functools
import itertools
import math
import tracemalloc
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from relive.common import arrays as arrays_lib
from relive.kernels import append
from relive.kernels import append_test
from relive.kernels import choice

needs_numba = pytest.mark.skipif("numba" not in append_test.KERNELS, reason="numba is not installed")

GENERATORS = st.integers(0, 2**32).map(np.random.default_rng)
HEIGHTS = st.integers(0, 3)
TOPS = st.sampled_from([1, 2, 7, 40])


@pytest.fixture(scope="module", params=append_test.KERNELS)
def kernels(request: pytest.FixtureRequest) -> Any:
    return choice.named(request.param)


class Tree:
    """The arrays of a sum tree with so many levels below a top of so many entries."""

    def __init__(self, kernels: Any, height: int, top: int) -> None:
        self.kernels = kernels
        sizes = [top * 8**level for level in range(height, -1, -1)]
        self.offsets = np.array([0, *itertools.accumulate(sizes)], np.int64)
        self.nodes = np.zeros(sum(sizes))
        self.leaves = self.nodes[: sizes[0]]
        self.masses = np.zeros(top + 1)
        self.levels = kernels.levels(self.nodes, self.offsets)

    def set(self, leaves: arrays_lib.Ints, weights: arrays_lib.Floats | float) -> None:
        self.leaves[leaves] = weights
        self.kernels.settle(self.levels, leaves, self.masses)

    def stratify(self, points: arrays_lib.Floats) -> arrays_lib.Floats:
        """Return the masses of points [B] in [0, 1)."""
        edges = np.arange(len(points) + 1.0)
        lasts = np.nextafter(np.nextafter(edges[1:], 0), 0)
        total = self.masses.item(-1)
        masses = points.copy()
        self.kernels.stratify(masses, edges[:-1], lasts, total / len(points), math.nextafter(total, 0))
        return masses

    def find(self, points: arrays_lib.Floats) -> arrays_lib.Ints:
        leaves: arrays_lib.Ints = self.kernels.find(self.levels, self.masses, points.copy())
        return leaves


def any_weights(rng: np.random.Generator, count: int) -> arrays_lib.Floats:
    """Return weights of one size, of all sizes or the smallest there are; often many zeros."""
    spread = rng.choice([0, 3, 300])
    weights = np.zeros(count)
    weights[:] = rng.random(count) * 10.0 ** rng.integers(-spread, spread + 1, count)
    if rng.random() < 0.2:
        weights[:] = rng.integers(0, 3, count) * 5e-324
    weights[rng.random(count) < rng.choice([0.0, 0.5, 0.95])] = 0.0
    return weights


def points_near_edges(rng: np.random.Generator, tree: Tree) -> arrays_lib.Floats:
    """Return masses below the total: random ones, the ends of leaves and of entries of the top, and beside them."""
    total = tree.masses.item(-1)
    ends = np.concatenate([tree.leaves.cumsum(), tree.masses])
    points = np.concatenate([ends, np.nextafter(ends, 0), np.nextafter(ends, math.inf), rng.random(50) * total])
    points = rng.choice(points[(points >= 0) & (points < total)], 60)
    points[:2] = 0.0, math.nextafter(total, 0)
    return points


@needs_numba
@hypothesis.given(rng=GENERATORS, height=HEIGHTS, top=TOPS)
def test_both_kernels_write_the_same_bits(rng: np.random.Generator, height: int, top: int) -> None:
    trees = [Tree(choice.named(name), height, top) for name in append_test.KERNELS]
    for count in rng.integers(1, 90, size=4).tolist():
        leaves = rng.integers(len(trees[0].leaves), size=count)
        weights = any_weights(rng, count)
        for tree in trees:
            tree.set(leaves, weights)
        first, second = trees
        assert first.nodes.tobytes() == second.nodes.tobytes()
        assert first.masses.tobytes() == second.masses.tobytes()
        if first.masses[-1] > 0:
            points = rng.random(count)
            points[rng.random(count) < 0.2] = rng.choice([0.0, 1 - 2**-53])
            strata = first.stratify(points)
            assert strata.tobytes() == second.stratify(points).tobytes()
            edges = points_near_edges(rng, first)
            for masses in (strata, edges, np.sort(edges)):
                found = first.find(masses)
                assert found.tobytes() == second.find(masses).tobytes()
                assert (first.leaves[found] > 0).all()


@hypothesis.given(rng=GENERATORS, count=st.integers(1, 20))
def test_sums_are_added_up_from_left_to_right(kernels: Any, rng: np.random.Generator, count: int) -> None:
    tree = Tree(kernels, 1, count)
    weights = any_weights(rng, 8 * count)
    tree.set(np.arange(8 * count), weights)
    sums = [functools.reduce(float.__add__, block) for block in weights.reshape(-1, 8).tolist()]
    assert tree.nodes[8 * count :].tolist() == sums
    assert tree.masses.tolist() == [0.0, *itertools.accumulate(sums)]


def test_rounding_past_the_last_child_takes_the_last_above_zero(kernels: Any) -> None:
    """The top's running sum reaches 1 + 2**-52; what is left below it in the second block is all that block has."""
    tree = Tree(kernels, 1, 2)
    tree.set(np.array([7, 9, 11]), np.array([1.0, 2.0**-54, 2.0**-53]))
    assert tree.masses.tolist() == [0.0, 1.0, 1 + 2.0**-52]
    assert tree.find(np.array([1.0, math.nextafter(1.0, 0)])).tolist() == [9, 7]
    tree.masses[1] = 0.5  # As if more had been rounded off.
    for count in (1, 200):
        assert tree.find(np.ones(count)).tolist() == [11] * count


def test_points_in_any_number_find_what_each_finds_alone(kernels: Any) -> None:
    rng = np.random.default_rng(0)
    tree = Tree(kernels, 2, 90)
    tree.set(np.arange(5760), rng.random(5760))
    points = rng.random(2050) * tree.masses.item(-1)
    alone = [tree.find(points[row : row + 1]).item() for row in range(2050)]
    for masses, leaves in ((points, alone), (np.sort(points), sorted(alone))):
        for count in (0, 1, 2, 1023, 1024, 1025, 2050):
            assert tree.find(masses[:count]).tolist() == leaves[:count]


def test_a_point_at_an_edge_finds_the_leaf_that_begins_there(kernels: Any) -> None:
    """However many points there are."""
    tree = Tree(kernels, 2, 90)
    tree.set(np.arange(5760), 1.0)
    for count in (1, 192, 193, 5760):
        assert tree.find(np.arange(float(count))).tolist() == list(range(count))


def test_all_leaves_at_once_take_little_memory(kernels: Any) -> None:
    """Not the blocks of all of them, which would be eight times as much."""
    tree = Tree(kernels, 3, 1000)
    leaves = np.random.default_rng(0).permutation(512_000)
    weights = np.random.default_rng(1).random(512_000)
    tree.set(leaves[:9], 1.0)
    tree.leaves[leaves] = weights
    tracemalloc.start()
    try:
        kernels.settle(tree.levels, leaves, tree.masses)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * leaves.nbytes
    assert tree.masses[-1] == pytest.approx(weights.sum())


def ring(rng: np.random.Generator, capacity: int, likely: float) -> tuple[arrays_lib.Array, arrays_lib.Ints, list[int]]:
    """Return the flags of rows that are eligible or not, the numbers of their ring, and their slots, oldest first."""
    alive, num = int(rng.integers(1, capacity + 1)), np.zeros(append.PAD + 1, np.int64)
    num[append.ROWS], num[append.NEXT_KEY] = alive, alive + rng.integers(2 * capacity)
    slots = (np.arange(num[append.NEXT_KEY] - alive, num[append.NEXT_KEY]) % capacity).tolist()
    every = rng.integers(128, size=alive, dtype=np.uint8)
    eligible = every & ~np.uint8(append.ELIGIBILITY) | np.uint8(append.READABLE)
    flags = np.zeros(capacity, np.uint8)
    flags[slots] = np.where(rng.random(alive) < likely, eligible, every)
    num[append.ELIGIBLE] = sum(is_eligible(flags.item(slot)) for slot in slots)
    return flags, num, slots


def is_eligible(flags: int) -> bool:
    return bool(flags & append.READABLE) and not flags & append.BARRED and not flags & append.SPENT


@hypothesis.given(rng=GENERATORS, capacity=st.integers(1, 40), likely=st.sampled_from([0.0, 0.9, 1.0]))
@hypothesis.settings(max_examples=2 * hypothesis.settings().max_examples)
def test_points_draw_the_eligible_ones_of_the_rows_they_are_in(
    rng: np.random.Generator, capacity: int, likely: float
) -> None:
    """By age, or in a full ring by slot; wherever the oldest row is, and whether all rows are eligible."""
    flags, num, slots = ring(rng, capacity, likely)
    points = rng.random(rng.integers(40))
    points[rng.random(len(points)) < 0.3] = rng.choice([0.0, 1 - 2**-53])
    rows = slots if len(slots) < capacity else list(range(capacity))
    drawn = [rows[int(point * len(rows))] for point in points.tolist()]
    expected = [slot for slot in drawn if is_eligible(flags.item(slot))]
    before = flags.tobytes(), num.tobytes()
    for name in append_test.KERNELS:
        found = choice.named(name).draw_uniform(flags, num, points.copy())
        assert (found.dtype, found.tolist()) == (np.int64, expected)
    assert (flags.tobytes(), num.tobytes()) == before
