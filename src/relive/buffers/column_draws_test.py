"""Draws of the column buffers follow their probabilities: at the ring's seam, near ends, over sixteen powers of ten."""

import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relive
from relive import testing

Floats = npt.NDArray[np.float64]
SIZE = 3_000


def fill(buffer: Any, count: int, *, period: int = 0, first: int = 0, eager: bool = True) -> None:
    """Add steps to each stream; every `period`-th ends an episode, in turn terminated and truncated."""
    for t in range(first, first + count):
        ends = period > 0 and t % period == period - 1
        even = t // max(period, 1) % 2 == 0
        following = t + 1 if eager or ends else None
        for stream in range(buffer.streams):
            buffer.add(t, 0, 0.0, following, terminated=ends and even, truncated=ends and not even, stream=stream)


def assert_drawn(buffer: Any, probabilities: dict[int, float], batch_size: int = SIZE) -> None:
    """Assert that keys are drawn with their probabilities, and that the batch reports them; others are never drawn."""
    keys = np.array(list(probabilities))
    of_key = np.full(keys.max() + 1, np.nan)
    of_key[keys] = list(probabilities.values())
    batches = [buffer.sample(batch_size) for _ in range(-(-SIZE // batch_size))]
    drawn, told = (np.concatenate([getattr(batch, name) for batch in batches]) for name in ("keys", "probabilities"))
    assert np.allclose(told, of_key[drawn], rtol=1e-12, atol=0)
    counts = np.bincount(drawn, minlength=len(of_key))
    testing.assert_frequencies(counts[keys].tolist(), list(probabilities.values()))
    assert counts.sum() == counts[keys].sum()


def proportional(buffer: Any, alpha: float, epsilon: float) -> dict[int, float]:
    """Return the probabilities by their definition: (p + epsilon)^alpha over its sum."""
    keys = buffer.eligible_keys()
    weights = (buffer.get_priorities(keys) + epsilon) ** alpha
    return dict(zip(keys.tolist(), (weights / weights.sum()).tolist(), strict=True))


# Uniform draws: of what is eligible, which `column_grid_test` checks.

ring, sequences = relive.RingReplayBuffer, functools.partial(relive.SequenceReplayBuffer, length=3)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (ring, {"n_step": 3}),
        (ring, {"streams": 3}),
        (ring, {"frame_stack": 3}),
        (sequences, {}),
        (sequences, {"stride": 2, "pad": True}),
        (sequences, {"streams": 2}),
    ],
)
def test_what_is_eligible_is_drawn_alike(make: Any, settings: dict[str, Any]) -> None:
    for seed, period in enumerate((0, 1, 5)):
        buffer = make(19, seed=seed, **settings)
        fill(buffer, 24 + period, period=period, eager=period != 5)
        keys = buffer.eligible_keys()
        if seed and len(keys):
            buffer.set_eligible(keys[::4], False)
            keys = np.setdiff1d(keys, keys[::4])
        if len(keys):
            assert_drawn(buffer, {int(key): 1 / len(keys) for key in keys})


# Draws by priority.


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("batch_size", [1, 64, SIZE, pytest.param(500_000, marks=pytest.mark.long)])
def test_draws_by_priority_follow_the_priorities(stratified: bool, batch_size: int) -> None:
    buffer = relive.PrioritizedReplayBuffer(17, alpha=0.7, epsilon=0.05, stratified=stratified, seed=batch_size)
    fill(buffer, 40, period=6)
    buffer.update_priorities(range(23, 40), np.linspace(0.0, 4.0, 17) ** 2)
    fill(buffer, 3, first=40)
    assert_drawn(buffer, proportional(buffer, 0.7, 0.05), batch_size)


@pytest.mark.parametrize("stratified", [False, True])
def test_draws_with_tiny_priorities_beside_huge_ones(stratified: bool) -> None:
    """1e-8 beside 1e8: the huge ones share the draws, the tiny ones are drawn among themselves as they should be."""
    buffer = relive.PrioritizedReplayBuffer(40, alpha=1.0, epsilon=0.0, stratified=stratified, seed=0)
    fill(buffer, 60, period=7)
    keys = np.arange(20, 60)
    priorities = np.where(keys % 2, 1e8, 1e-8) * (1 + keys % 3)
    buffer.update_priorities(keys, priorities)
    drawn = np.bincount(buffer.sample_keys(SIZE), minlength=60)[20:]
    huge = keys % 2 == 1
    assert drawn[~huge].sum() == 0
    testing.assert_frequencies(drawn[huge].tolist(), (priorities[huge] / priorities[huge].sum()).tolist())
    buffer.set_eligible(keys[huge], False)
    assert_drawn(buffer, proportional(buffer, 1.0, 0.0), 500)


@pytest.mark.parametrize("stratified", [False, True])
def test_a_row_worth_a_millionth_is_drawn_as_often_as_that(stratified: bool) -> None:
    """Compared with a row of priority 1, a mass lost in rounding would never show."""
    buffer = relive.PrioritizedReplayBuffer(3, alpha=1.0, epsilon=0.0, stratified=stratified, seed=1)
    fill(buffer, 3)
    buffer.update_priorities([0, 1, 2], [1.0, 1e-5, 1e-5])
    counts = sum(np.bincount(buffer.sample_keys(500_000), minlength=3) for _ in range(4))
    testing.assert_frequencies(np.asarray(counts).tolist(), [1 / 1.00002, 1e-5 / 1.00002, 1e-5 / 1.00002])


def test_stratified_draws_are_independent_from_batch_to_batch() -> None:
    """The place within a stratum is drawn anew: both rows that share one stratum appear in it."""
    buffer = relive.PrioritizedReplayBuffer(4, alpha=1.0, epsilon=0.0, seed=8)
    fill(buffer, 4)
    buffer.update_priorities(range(4), [1, 2, 3, 4])
    pairs = np.zeros((4, 4), int)
    for _ in range(1500):
        low, high = np.sort(buffer.sample_keys(2))
        pairs[low, high] += 1
    # Strata [0, 5) and [5, 10): the first holds rows 0, 1 and two thirds of row 2, the second the rest.
    expected = np.outer([1 / 5, 2 / 5, 2 / 5, 0], [0, 0, 1 / 5, 4 / 5])
    rows, columns = np.nonzero(expected)
    testing.assert_frequencies(pairs[rows, columns].tolist(), expected[rows, columns].tolist())
    assert pairs[rows, columns].sum() == 1500


# Limits.


@pytest.mark.parametrize("rounds", [400, pytest.param(30_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", ["uniform", "proportional"])
def test_draws_under_a_limit_are_those_made_one_by_one(kind: str, rounds: int) -> None:
    """Each row may be drawn once: the second draw is from the other two, in proportion."""
    settings: dict[str, Any] = {"max_times_sampled": 1, "seed": 13}
    buffer: Any = relive.RingReplayBuffer(3, **settings)
    shares = np.ones(3) / 3
    if kind == "proportional":
        buffer = relive.PrioritizedReplayBuffer(3, alpha=1.0, epsilon=0.0, stratified=False, **settings)
        shares = np.array([1, 2, 5]) / 8
    counts = np.zeros((3, 3), int)
    for _ in range(rounds):
        keys = buffer.add_episode(np.arange(4), np.arange(3), np.zeros(3), terminated=True)
        if kind == "proportional":
            buffer.update_priorities(keys, [1, 2, 5])
        first, second = buffer.sample_keys(2) - keys[0]
        counts[first, second] += 1
    expected: Floats = np.array([[p * q / (1 - p) for q in shares] for p in shares])
    rows, columns = np.nonzero(~np.eye(3, dtype=bool))
    testing.assert_frequencies(counts[rows, columns].tolist(), expected[rows, columns].tolist())
    assert np.diag(counts).sum() == 0
