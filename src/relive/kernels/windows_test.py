"""Which rows a window has, in all kernels, compared with lists of episodes to the last bit."""

from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from relive.common import arrays as arrays_lib
from relive.kernels import append_test
from relive.kernels import choice
from relive.kernels import windows
from relive.windows import returns
from relive.windows import transitions

COUNTS = st.integers(1, 30)
STREAMS = st.integers(1, 5)


def written(
    capacity: int, streams: int, count: int, seed: int, window: Any = append_test.STEPS
) -> tuple[append_test.State, append_test.Twin, np.random.Generator]:
    """Return what `count` writes leave: rounds of every stream in turn that seldom end, or all that there is."""
    rng = np.random.default_rng(seed)
    settings = append_test.Settings(capacity, streams, window, end=float(rng.choice([0.0, 0.02, 0.25])))
    state, twin = append_test.State(settings), append_test.Twin(settings)
    kinds = ["round"] if rng.random() < 0.5 else ["one", "round", "some", "run"]
    for _ in range(count):
        write = append_test.any_write(rng.choice(kinds), settings, rng)
        state.write(*write)
        twin.write(*write)
    return state, twin, rng


def any_of(keys: list[int], rng: np.random.Generator) -> list[int]:
    """Return some of those keys, each as often as it may be; at least one."""
    hypothesis.assume(keys)
    some: list[int] = rng.choice(keys, rng.integers(1, 9)).tolist()
    return some


def run_from(twin: append_test.Twin, key: int, most: int) -> list[int]:
    """Return the keys of up to `most` complete rows from that one on."""
    episode, step = twin.of[key]
    return [key for key in episode.keys[step : step + most] if twin.is_complete(key)]


def assert_same(found: tuple[arrays_lib.Array, ...], expected: tuple[arrays_lib.Array, ...]) -> None:
    """Compare arrays to the last bit."""
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes()), (one, other)


@hypothesis.given(st.integers(1, 40), STREAMS, st.integers(1, 12), COUNTS, append_test.SEEDS)
@hypothesis.settings(max_examples=4 * hypothesis.settings().max_examples)
def test_rows_that_follow_are_those_of_the_episode(
    capacity: int, streams: int, most: int, count: int, seed: int
) -> None:
    """However the streams are written: in turn, where rows are as far apart everywhere, or not."""
    state, twin, rng = written(capacity, streams, count, seed)
    keys = any_of(list(filter(twin.is_complete, twin.alive())), rng)
    slots, before = np.array(keys) % capacity, state.contents()
    runs = [run_from(twin, key, most) for key in keys]
    span, last = np.array([len(run) for run in runs]), np.array([twin.slot(run[-1]) for run in runs])
    for kernels in map(choice.named, append_test.KERNELS):
        found = kernels.follow(state.rows, slots, most)
        assert_same(found[1:], (span, last))
        assert (found.slots.dtype, found.slots.shape) == (np.int64, (most, len(keys)))
        for column, run in zip(found.slots.T.tolist(), runs, strict=True):
            assert column[: len(run)] == [twin.slot(key) for key in run]
            assert {*column} <= {*range(capacity)}, "what stands at `span` and beyond can be read too"
    assert state.contents() == before


class Elsewhere:
    """Rewards that are in no array."""

    def __init__(self, rewards: arrays_lib.Array) -> None:
        self._rewards = rewards

    def take(self, indices: arrays_lib.Ints, /) -> arrays_lib.Array:
        return self._rewards[indices]


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
@hypothesis.given(
    st.integers(1, 40), STREAMS, st.sampled_from([1, 1, 2, 3, 5, 40]), COUNTS, st.floats(0.1, 1), append_test.SEEDS
)
def test_transitions_equal_naive_ones(
    dtype: str, capacity: int, streams: int, most: int, count: int, gamma: float, seed: int
) -> None:
    state, twin, rng = written(capacity, streams, count, seed)
    keys = any_of(list(filter(twin.is_complete, twin.alive())), rng)
    rewards = (rng.normal(size=capacity) * 10.0 ** rng.integers(-4, 3, capacity)).astype(dtype)
    rewards[rng.random(capacity) < 0.3] = -0.0
    rewards.flags.writeable = False
    powers, discounts = (returns.powers(gamma, most, np.dtype(each)) for each in (np.float64, dtype))
    runs = [run_from(twin, key, most) for key in keys]
    followers = [twin.next_of(run[-1]) for run in runs]
    is_terminal = np.array([twin.is_terminal(run[-1]) for run in runs])
    discount = [0.0 if is_over else gamma ** len(run) for run, is_over in zip(runs, is_terminal, strict=True)]
    if most == 1:
        reward = rewards[[twin.slot(key) for key in keys]]
    else:
        reward = naive_sums([[rewards.item(twin.slot(key)) for key in run] for run in runs], gamma).astype(dtype)
    expected = (
        np.array([len(run) for run in runs]),
        np.array([twin.slot(run[-1]) for run in runs]),
        np.array([-1 if key is None else twin.slot(key) for key in followers], np.int32),
        is_terminal,
        reward,
        np.array(discount, dtype),
        np.array(keys),
    )
    for kernels in map(choice.named, append_test.KERNELS):
        for given in (rewards, Elsewhere(rewards)):
            found = kernels.transitions(state.rows, np.array(keys) % capacity, most, given, powers, discounts)
            assert_same(found, expected)


def naive_sums(rewards: list[list[float]], gamma: float) -> arrays_lib.Floats:
    """Return the discounted sum of each of several lists, added up from 0.0."""
    return np.array([returns.weighted_sum(each, returns.discount_powers(gamma, len(each))) for each in rewards])


@hypothesis.given(st.integers(1, 5), st.sampled_from([1, 2, 3, 9, 40]), st.floats(0.1, 1), append_test.SEEDS)
def test_discounted_sums_are_added_up_from_the_first_on(width: int, most: int, gamma: float, seed: int) -> None:
    """Those of one column too, whose numbers numpy by itself would add up in another order."""
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=(most, width)) * 10.0 ** rng.integers(-9, 9, (most, width))
    rewards[rng.random((most, width)) < rng.choice([0.2, 1.0])] = -0.0
    span = rng.integers(1, most + 1, width)
    rewards[np.arange(most)[:, np.newaxis] >= span] = np.nan
    before = rewards.copy()
    found = windows.discounted_sums(rewards, span, returns.powers(gamma, most, returns.FLOAT64))
    columns = [column[:count] for column, count in zip(rewards.T.tolist(), span, strict=True)]
    assert_same((found, rewards), (naive_sums(columns, gamma), before))


@pytest.mark.parametrize("kernels", append_test.KERNELS)
def test_a_sum_too_large_for_its_dtype_is_infinite(kernels: str) -> None:
    state = append_test.State(append_test.Settings(2, 1))
    state.write([0, 0], [0, 0], 1)
    rewards, zero = np.full(2, 3e38, np.float32), np.zeros(1, np.int64)
    rewards.flags.writeable = False
    powers, discounts = (returns.powers(1.0, 2, np.dtype(each)) for each in (np.float64, np.float32))
    with pytest.warns(RuntimeWarning, match="overflow"):
        found = choice.named(kernels).transitions(state.rows, zero, 2, rewards, powers, discounts)
    assert found[4].tolist() == [np.inf]


@hypothesis.given(st.integers(1, 20), STREAMS, st.integers(1, 5), COUNTS, append_test.SEEDS)
def test_rows_looked_back_to_are_those_before_in_the_episode(
    capacity: int, streams: int, older: int, count: int, seed: int
) -> None:
    """The first row of an episode stands for those before it."""
    window = transitions.TransitionWindow(frame_stack=older + 1)
    state, twin, rng = written(capacity, streams, count, seed, window)
    keys = any_of(list(filter(twin.is_readable, twin.alive())), rng)
    steps = np.array([twin.of[key][1] for key in keys])
    for count in (1, older, older + 1):
        frames = [
            [twin.slot(twin.of[key][0].keys[max(step - k, 0)]) for key, step in zip(keys, steps, strict=True)]
            for k in reversed(range(count))
        ]
        for kernels in map(choice.named, append_test.KERNELS):
            found = kernels.look_back(state.back, steps, np.array(keys) % capacity, count)
            assert_same((found,), (np.array(frames),))
