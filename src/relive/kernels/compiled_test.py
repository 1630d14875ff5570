"""What numba compiles and what numpy does, compared bit by bit: on arrays that random writes leave, and in buffers."""

from collections.abc import Iterator
import contextlib
import random
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive.common import arrays
from relive.kernels import append as append_lib
from relive.kernels import choice
from relive.kernels import draw
from relive.kernels import windows
from relive.testing import zoo
from relive.windows import returns

compiled = pytest.importorskip("relive.kernels.compiled")

GENERATORS = st.integers(0, 2**32).map(np.random.default_rng)
WHOLE = (append_lib.TERMINATED, append_lib.TRUNCATED)


class Rows:
    """The arrays of `kernels.append`, for random programs of writes."""

    def __init__(
        self, kernels: str, capacity: int, streams: int, older: int, *, is_rated: bool, is_tracked: bool
    ) -> None:
        self.append = choice.named(kernels).append
        room = 2 * capacity + streams
        self.capacity, self.streams, self.older = capacity, streams, older
        self.facts, self.places = np.zeros((2, capacity), np.int64)
        self.back: Any = np.zeros(capacity if older > 0 else 0, np.int32)
        self.current, self.knows = np.zeros((2, streams), np.int64)
        self.last = np.full(streams, append_lib.NONE)
        self.episodes = np.zeros((append_lib.CURSOR + 1, room), np.int64)
        self.free, self.num = np.arange(room)[::-1].copy(), np.zeros(8, np.int64)
        self.num[append_lib.FREE] = room
        self.raw, self.leaves = np.zeros((2, capacity if is_rated else 0))
        self.changed = np.zeros((4 + max(older, 0)) * capacity if is_tracked else 0, np.int64)
        self.completed = np.zeros(2 * capacity if older < 0 else 0, np.int64)

    def write(self, numbers: arrays.Ints, events: arrays.Array, announced: int) -> None:
        self.num[append_lib.CHANGED] = self.num[append_lib.COMPLETED] = 0
        self.append(
            self.facts, self.places, self.back, self.current, self.last, self.knows, self.episodes, self.free,
            self.num, numbers, events, announced, self.older, self.raw, self.leaves, self.changed, self.completed,
            1.5, 2.5,
        )  # fmt: skip

    def flag(self, flag: int, slots: arrays.Ints) -> None:
        """Set a flag of rows, as a buffer does between two writes."""
        is_eligible = (self.facts[slots] & append_lib.ELIGIBILITY) == append_lib.READABLE
        self.facts[slots] |= flag
        if flag & append_lib.ELIGIBILITY:
            self.num[append_lib.ELIGIBLE] -= np.count_nonzero(is_eligible)

    @property
    def was_changed(self) -> set[int]:
        return set(self.changed[: self.num[append_lib.CHANGED]].tolist())

    @property
    def alive(self) -> arrays.Ints:
        rows, next_key = self.num.item(append_lib.ROWS), self.num.item(append_lib.NEXT_KEY)
        return np.arange(next_key - rows, next_key) % self.capacity

    @property
    def complete(self) -> arrays.Ints:
        return self.alive[(self.facts[self.alive] & append_lib.COMPLETE) > 0]

    def bits(self) -> dict[str, object]:
        """Return everything that has a meaning but `changed`."""
        free = self.free[: self.num[append_lib.FREE]]
        used = np.setdiff1d(np.arange(len(self.free)), free)
        named = ("facts", "places", "back", "last", "knows", "raw", "leaves")
        bits: dict[str, object] = {name: getattr(self, name).tobytes() for name in named}
        bits["current"] = self.current[self.last != append_lib.NONE].tobytes()
        bits |= {"free": free.tobytes(), "episodes": [array[used].tobytes() for array in self.episodes]}
        bits["completed"] = sorted(self.completed[: self.num[append_lib.COMPLETED]].tolist())
        return bits | {"num": np.delete(self.num, append_lib.CHANGED).tolist()}


def any_write(rng: np.random.Generator, rows: Rows) -> tuple[arrays.Ints, arrays.Array, int]:
    """Return a step of each of some streams, or a run of one: their streams and events, and whether they announce."""
    announced = int(rng.integers(2))
    ends, cuts = rng.choice([0.0, 0.3, 1.0]), rng.choice([0.0, 0.3, 1.0])
    most = min(rows.streams, rows.capacity)
    if rng.random() < 0.3:
        count = int(rng.integers(1, rows.capacity + 1))
        numbers, events = np.full(count, rng.integers(rows.streams)), np.zeros(count, np.uint8)
        where: tuple[Any, Any] = (slice(count - 1, count), slice(1))
    else:
        count = most if rng.random() < 0.5 else int(rng.integers(1, most + 1))
        numbers, events = rng.permutation(rows.streams)[:count], np.zeros(count, np.uint8)
        where = rng.random(count) < ends, rng.random(count) < cuts
        ends = cuts = 1.0
    if rng.random() < ends:
        events[where[0]] = rng.choice(WHOLE, len(events[where[0]]))
    if rng.random() < cuts:
        events[where[1]] |= append_lib.CUT
    return numbers, events, announced


def programs(
    rng: np.random.Generator, capacity: int, streams: int, older: int, num_writes: int = 12
) -> Iterator[tuple[Rows, Rows]]:
    """Yield what the same writes leave, written by numpy and by numba, after each of some random ones."""
    is_rated = bool(rng.integers(2))
    is_tracked = is_rated or bool(rng.integers(2))
    both = [
        Rows(kernels, capacity, streams, older, is_rated=is_rated, is_tracked=is_tracked)
        for kernels in ("numpy", "numba")
    ]
    for _ in range(num_writes):
        write = any_write(rng, both[0])
        flag = int(rng.choice([append_lib.BARRED, append_lib.SPENT, append_lib.RATED]))
        flagged = rng.permutation(both[0].alive)[: rng.integers(3)]
        for rows in both:
            rows.flag(flag, flagged)
            rows.write(*write)
        yield both[0], both[1]


@hypothesis.given(GENERATORS, st.integers(1, 24), st.integers(1, 5), st.sampled_from([-1, 0, 1, 3]))
def test_writes_leave_the_same_bits(rng: np.random.Generator, capacity: int, streams: int, older: int) -> None:
    for of_numpy, of_numba in programs(rng, capacity, streams, older, 30):
        assert of_numba.bits() == of_numpy.bits()
        # Of rows that an eviction takes a frame from, numpy lists also those that could not be drawn before.
        more = np.array(list(of_numpy.was_changed - of_numba.was_changed), np.int64)
        assert of_numba.was_changed <= of_numpy.was_changed
        assert not len(more) or older > 0
        assert ((of_numpy.facts[more] & append_lib.ELIGIBILITY) != append_lib.READABLE).all()


def assert_same(of_numba: tuple[arrays.Array, ...], of_numpy: tuple[arrays.Array, ...]) -> None:
    for one, other in zip(of_numba, of_numpy, strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@hypothesis.given(GENERATORS, st.integers(1, 24), st.integers(1, 5), st.integers(1, 30))
def test_rows_are_followed_alike(rng: np.random.Generator, capacity: int, streams: int, most: int) -> None:
    for rows, _ in programs(rng, capacity, streams, 0):
        for slots in (rng.choice(rows.complete, rng.integers(1, 9)), rows.complete) if len(rows.complete) else ():
            of_numpy, of_numba = windows.follow(rows.facts, slots, most), compiled.follow(rows.facts, slots, most)
            assert_same(of_numba[1:], of_numpy[1:])
            is_real = np.arange(most)[:, np.newaxis] < of_numpy.span
            assert of_numba.slots[is_real].tobytes() == of_numpy.slots[is_real].tobytes()
            assert set(of_numba.slots.ravel().tolist()) <= set(rows.alive.tolist())  # So that the rest can be read.


class Elsewhere:
    """Rewards that are in no array."""

    def __init__(self, rewards: arrays.Array) -> None:
        self._rewards = rewards

    def take(self, indices: arrays.Ints, /) -> arrays.Array:
        return self._rewards[indices]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
@hypothesis.given(
    GENERATORS, st.integers(1, 24), st.integers(1, 5), st.sampled_from([1, 1, 2, 3, 5, 40]), st.floats(0.1, 1.0)
)
def test_transitions_have_the_same_bits(
    dtype: str, rng: np.random.Generator, capacity: int, streams: int, most: int, gamma: float
) -> None:
    rewards = (rng.normal(size=capacity) * 10.0 ** rng.integers(-4, 4, capacity)).astype(dtype)
    rewards[rng.random(capacity) < 0.2] = -0.0
    powers = returns.powers(gamma, most, np.dtype(np.float64))
    discounts = returns.powers(gamma, most, rewards.dtype)
    for rows, _ in programs(rng, capacity, streams, 0):
        if not len(rows.complete):
            continue
        slots = rng.choice(rows.complete, rng.integers(1, 20))
        of_numpy = windows.transitions(rows.facts, slots, most, rewards, powers, discounts)
        assert_same(compiled.transitions(rows.facts, slots, most, rewards, powers, discounts), of_numpy)
        assert_same(compiled.transitions(rows.facts, slots, most, Elsewhere(rewards), powers, discounts), of_numpy)


@pytest.mark.parametrize("kernels", choice.NAMES)
def test_a_sum_too_large_for_its_dtype_is_infinite(kernels: str) -> None:
    facts = np.array([1 << append_lib.LINK | append_lib.COMPLETE, append_lib.NO_LINK | append_lib.COMPLETE])
    rewards = np.full(2, 3e38, np.float32)
    powers, discounts = returns.powers(1.0, 2, np.dtype(np.float64)), returns.powers(1.0, 2, rewards.dtype)
    with pytest.warns(RuntimeWarning, match="overflow"):
        made = choice.named(kernels).transitions(facts, np.zeros(1, np.int64), 2, rewards, powers, discounts)
    assert made.reward.tolist() == [np.inf]


@hypothesis.given(GENERATORS, st.integers(1, 24), st.integers(1, 5), st.integers(1, 4))
def test_older_frames_are_the_same_rows(rng: np.random.Generator, capacity: int, streams: int, older: int) -> None:
    for rows, _ in programs(rng, capacity, streams, older):
        slots = rows.alive[(rows.facts[rows.alive] & append_lib.READABLE) > 0]
        steps = rows.places[slots] & append_lib.STEP
        for count in (1, older, older + 1):
            of_numpy = windows.look_back(rows.back, steps, slots, count)
            assert_same((compiled.look_back(rows.back, steps, slots, count),), (of_numpy,))


@hypothesis.given(
    GENERATORS, st.integers(1, 24), st.integers(1, 5), st.integers(0, 5), st.integers(1, 3), st.integers(0, 1)
)
def test_cursors_advance_alike(
    rng: np.random.Generator, capacity: int, streams: int, lag: int, stride: int, pad: int
) -> None:
    for both in programs(rng, capacity, streams, -1, 30):
        found = []
        for rows, kernels in zip(both, choice.NAMES, strict=True):
            count, into = rows.num.item(append_lib.COMPLETED), np.zeros(2 * capacity, np.int64)
            # The kernels may complete rows in different orders, of different episodes.
            done = rows.completed[:count]
            done[:] = done[np.argsort(rows.places[done])]
            count = choice.named(kernels).advance(
                rows.facts, rows.places, rows.episodes, rows.completed, count, lag, stride, pad, into
            )
            found.append(into[:count].tolist())
        assert found[0] == found[1]
        assert both[0].bits() == both[1].bits()


@hypothesis.given(GENERATORS, st.integers(1, 24), st.integers(1, 5), st.integers(0, 40))
def test_the_same_rows_are_drawn(rng: np.random.Generator, capacity: int, streams: int, size: int) -> None:
    for rows, _ in programs(rng, capacity, streams, 0):
        points = rng.random(size)
        points[rng.random(size) < 0.3] = rng.choice([0.0, 1 - 2**-53])
        arguments = rows.num.item(append_lib.ROWS), rows.alive.item(0)
        of_numpy, count = draw.eligible_among(rows.facts, points.copy(), *arguments)
        of_numba, num_found = compiled.eligible_among(rows.facts, points.copy(), *arguments)
        assert_same((of_numba,), (of_numpy,))
        assert count == num_found == len(of_numba)


# In buffers.


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


def test_everything_is_compiled_when_the_kernels_are_chosen() -> None:
    """For the arrays that buffers have: a call compiles nothing more."""
    choice.named("numba")
    kernels = {name: value for name, value in vars(compiled).items() if hasattr(value, "signatures")}
    before = {name: list(kernel.signatures) for name, kernel in kernels.items()}
    counts = {name: len(signatures) for name, signatures in before.items()}
    assert counts.pop("_next") <= 1  # 0 where all that call it come from the cache.
    assert counts.pop("_transitions") == 2
    assert set(counts.values()) == {1}
    with chosen("numba"):
        for make in zoo.COLUMNS.values():
            zoo.worked(make)
    assert {name: list(kernel.signatures) for name, kernel in kernels.items()} == before
