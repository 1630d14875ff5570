import collections

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

import relive
from relive import errors
from relive.samplers import limited


def ring(
    steps: int, most: int | None, capacity: int = 8, sampler: relive.Sampler | None = None
) -> relive.RingReplayBuffer:
    """Return a buffer with that many complete steps."""
    buffer = relive.RingReplayBuffer(capacity, max_times_sampled=most, sampler=sampler, seed=0)
    for t in range(steps):
        buffer.add(t, t, 0.0, next_observation=t + 1)
    return buffer


def limited_in(buffer: relive.RingReplayBuffer) -> limited.LimitedSampler:
    """Return the sampler around the one of a buffer."""
    assert buffer._draws.limited is not None
    return buffer._draws.limited


@hypothesis.given(
    strategies.integers(1, 4),
    strategies.lists(strategies.integers(1, 9), min_size=1, max_size=8),
    strategies.sampled_from([None, True, False]),
)
def test_no_step_is_drawn_more_often_than_it_may(most: int, sizes: list[int], stratified: bool | None) -> None:
    """P65: not even within one batch; then the step retires."""
    buffer = ring(5, most, sampler=None if stratified is None else relive.PrioritizedSampler(stratified=stratified))
    if stratified is not None:
        buffer.update_priorities(range(5), [1e-3, 1, 1, 1, 1e3])
    times: collections.Counter[int] = collections.Counter()
    for size in sizes:
        left = sum(most - times[key] for key in range(len(buffer)))
        if size > left:
            before = buffer.get_stats()
            state = buffer.rng.bit_generator.state
            with pytest.raises(errors.NotReadyError):
                buffer.sample(size)
            assert buffer.get_stats() == before
            assert buffer.rng.bit_generator.state == state
        else:
            times.update(buffer.sample(size).keys.tolist())
        assert max(times.values(), default=0) <= most
        assert buffer.eligible_keys().tolist() == [key for key in range(5) if times[key] < most]
        assert buffer.get_stats().spent == sum(times[key] == most for key in range(5))
        buffer.check()


def test_the_number_of_draws_left_is_said() -> None:
    buffer = ring(2, 3)
    assert buffer.sample(4).probabilities[0] == 1 / 2
    rule = "^sample has 2 draws left with max_times_sampled = 3, and 3 were asked for: add steps first$"
    with pytest.raises(errors.NotReadyError, match=rule):
        buffer.sample(3)
    buffer.sample(2)
    rule = "^sample has nothing to draw: every anchor was made ineligible, or drawn max_times_sampled times$"
    with pytest.raises(errors.NotReadyError, match=rule):
        buffer.sample(1)


def test_the_step_that_comes_to_a_slot_has_all_its_draws() -> None:
    buffer = ring(2, 1, capacity=2)
    assert sorted(buffer.sample(2).keys.tolist()) == [0, 1]
    buffer.add(7, 7, 0.0, next_observation=8)
    assert buffer.eligible_keys().tolist() == [2]
    assert buffer.sample(1).keys.tolist() == [2]
    assert buffer.get_stats().spent == 3
    buffer.clear()
    buffer.add(7, 7, 0.0, next_observation=8)
    assert buffer.sample(1).keys.tolist() == [3]
    buffer.check()


def test_a_retired_step_stays_retired_and_can_be_read() -> None:
    buffer = ring(2, 1)
    buffer.set_eligible([0], False)
    assert buffer.sample(1).keys.tolist() == [1]
    buffer.set_eligible([0, 1], True)
    assert buffer.eligible_keys().tolist() == [0]
    assert buffer.read([1]).observation.tolist() == [1]


def test_draws_of_zero_priority_do_not_count_as_left() -> None:
    buffer = ring(3, 2, sampler=relive.PrioritizedSampler(epsilon=0.0))
    buffer.update_priorities([0, 1], [0.0, 5.0])
    with pytest.raises(errors.NotReadyError, match="^sample has 4 draws left"):
        buffer.sample(5)
    assert collections.Counter(buffer.sample(4).keys.tolist()) == {1: 2, 2: 2}


def test_check_finds_wrong_counts_of_draws() -> None:
    buffer = ring(2, 2)
    limited_in(buffer)._times[0] = 3
    with pytest.raises(errors.CorruptionError, match="^an anchor was drawn more often than max_times_sampled = 2$"):
        buffer.check()
    limited_in(buffer)._times[0] = 2
    with pytest.raises(errors.CorruptionError, match="^the anchors that count as spent are not those that were drawn"):
        buffer.check()


@hypothesis.given(strategies.lists(strategies.integers(0, 3), min_size=1))
def test_times_before_counts_equal_ones(slots: list[int]) -> None:
    expected = [slots[:place].count(slot) for place, slot in enumerate(slots)]
    assert limited._times_before(np.array(slots)).tolist() == expected


class Own(relive.UniformSampler):
    """May draw a part of the anchors alone."""

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        return super()._draw(size, rng)


RATED = relive.PrioritizedSampler


@pytest.mark.parametrize(
    ("sampler", "may_not"),
    [
        (relive.UniformSampler(), False),
        (RATED(), False),
        (Own(), True),
        (RATED(epsilon=0.0), True),
        (RATED(epsilon=1e-300, alpha=3.0), True),
    ],
)
def test_draws_left_are_counted_only_where_it_matters(
    monkeypatch: pytest.MonkeyPatch, sampler: relive.Sampler, may_not: bool
) -> None:
    """A draw looks at all anchors if some may not be drawn, or more are asked for than there are."""
    buffer, counted = ring(5, 2, sampler=sampler), []

    def num_left(own: limited.LimitedSampler) -> int:
        counted.append(own)
        return 10

    monkeypatch.setattr(limited.LimitedSampler, "_num_left", num_left)
    assert buffer.can_sample(5)
    assert bool(counted) is may_not
    assert buffer.can_sample(6)
    assert counted


@pytest.mark.parametrize("most", [None, 2])
def test_a_draw_that_is_taken_back_leaves_no_trace(most: int | None) -> None:
    schedule = relive.LinearSchedule(0.0, 1.0, steps=4)
    buffer = ring(3, most, sampler=relive.PrioritizedSampler(beta=schedule))
    buffer.sample(2)

    def seen() -> str:
        stats, state = buffer.get_stats(), buffer.state_dict()
        return repr((stats, state, buffer.eligible_keys(), buffer.rng.bit_generator.state))

    before = seen()
    with pytest.raises(ZeroDivisionError):
        buffer._draw(4, None, lambda *drawn: 1 / 0)
    assert seen() == before
    assert state_ticks(buffer) == 1


def state_ticks(buffer: relive.RingReplayBuffer) -> int:
    """Return how many draws a schedule of beta has counted."""
    ticks: int = buffer.state_dict()["sampler"]["ticks"]
    return ticks
