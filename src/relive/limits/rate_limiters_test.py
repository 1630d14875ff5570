import asyncio
import functools
import math
from typing import Any

import hypothesis
from hypothesis import strategies as st
import pytest

import relive
from relive.limits import rate_limiters


def test_min_size_counts_what_can_be_drawn() -> None:
    limiter = relive.MinSize(3)
    assert not limiter.can_sample(1, size=2, inserted=100, sampled=0)
    assert limiter.can_sample(1000, size=3, inserted=3, sampled=10**9)
    assert limiter.can_insert(size=0, inserted=10**9, sampled=0)
    assert repr(limiter) == "MinSize(3)"


@pytest.mark.parametrize("n", [0, -1, 1.5, None, True])
def test_min_size_refuses_what_is_no_size(n: Any) -> None:
    with pytest.raises(ValueError, match=r"^n must be"):
        relive.MinSize(n)


def test_the_ratio_holds_both_sides_to_the_equation() -> None:
    limiter = relive.SampleToInsertRatio(2.0, min_size=10, error_buffer=8.0)
    # surplus = 2 * (inserted - 10) - sampled, kept within [-8, 8]
    assert limiter.can_insert(size=9, inserted=1000, sampled=0)
    assert not limiter.can_insert(size=10, inserted=1000, sampled=0)
    assert limiter.can_insert(size=10, inserted=13, sampled=0)
    assert not limiter.can_insert(size=10, inserted=14, sampled=0)
    assert limiter.can_insert(size=10, inserted=14, sampled=2)
    assert not limiter.can_sample(1, size=9, inserted=1000, sampled=0)
    assert limiter.can_sample(8, size=10, inserted=10, sampled=0)
    assert not limiter.can_sample(9, size=10, inserted=10, sampled=0)
    assert not limiter.can_sample(8, size=10, inserted=10, sampled=1)
    assert limiter.can_sample(1, size=10, inserted=10, sampled=7)
    assert repr(limiter) == "SampleToInsertRatio(ratio=2, min_size=10, error_buffer=8)"


@pytest.mark.parametrize(
    ("ratio", "min_size", "error_buffer", "message"),
    [
        (0.0, 1, 1.0, r"^ratio must be above 0, got 0\.0$"),
        (-1.0, 1, 1.0, r"^ratio must be above 0, got -1\.0$"),
        (math.nan, 1, 1.0, r"^ratio must be a finite real number, got nan$"),
        (1.0, 0, 1.0, r"^min_size must be at least 1, got 0$"),
        (1.0, 1, 0.5, r"^error_buffer must be at least max\(1, ratio\) = 1, or neither side could move, got 0\.5$"),
        (4.0, 1, 3.9, r"^error_buffer must be at least max\(1, ratio\) = 4, or neither side could move, got 3\.9$"),
        (0.5, 1, 0.9, r"^error_buffer must be at least max\(1, ratio\) = 1"),
        (1.0, 1, math.inf, r"^error_buffer must be a finite real number, got inf$"),
    ],
)
def test_settings_that_cannot_make_progress_are_refused(
    ratio: float, min_size: int, error_buffer: float, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        relive.SampleToInsertRatio(ratio, min_size, error_buffer)


@hypothesis.given(
    ratio=st.floats(0.01, 300),
    min_size=st.integers(1, 30),
    slack=st.floats(0, 50),
    share=st.floats(0, 1),
    choices=st.lists(st.booleans(), max_size=200),
)
def test_no_reachable_state_stops_both_sides(
    ratio: float, min_size: int, slack: float, share: float, choices: list[bool]
) -> None:
    """One episode grows, one learner draws the largest or any smaller batch; whatever the order, somebody may move."""
    limiter = relive.SampleToInsertRatio(ratio, min_size, max(1.0, ratio) + slack)
    assert limiter.max_batch_size is not None
    batch_size = max(1, math.floor(share * limiter.max_batch_size))
    inserted = sampled = 0
    for insert_first in choices:
        size = max(0, inserted - 1)
        can_insert = limiter.can_insert(size=size, inserted=inserted, sampled=sampled)
        can_sample = size > 0 and limiter.can_sample(batch_size, size=size, inserted=inserted, sampled=sampled)
        assert can_insert or can_sample
        if can_insert and (insert_first or not can_sample):
            inserted += 1
        else:
            sampled += batch_size
        if inserted > min_size + 1:
            assert abs(ratio * (inserted - min_size) - sampled) <= limiter.error_buffer + 2 * ratio + 1e-9


def test_settings_with_decimals_do_not_round_into_a_deadlock() -> None:
    """0.6 * 27 - 15 is not 1.2 in floats: rounded apart, the two sides held each other up."""
    for tenths in range(1, 100, 7):
        ratio = tenths / 10
        for batch_size in (1, 2, 3, 8, 32, 50):
            error_buffer = max(1.0, ratio, round((batch_size + ratio) / 2, 6))
            limiter = relive.SampleToInsertRatio(ratio, 1, error_buffer)
            assert limiter.max_batch_size is not None
            assert limiter.max_batch_size >= batch_size
            inserted, sampled = 2, 0
            for _ in range(400):
                if limiter.can_insert(size=10, inserted=inserted, sampled=sampled):
                    inserted += 1
                else:
                    assert limiter.can_sample(batch_size, size=10, inserted=inserted, sampled=sampled)
                    sampled += batch_size


def test_a_huge_error_buffer_is_only_huge() -> None:
    limiter = relive.SampleToInsertRatio(1.0, 1, 1e308)
    assert limiter.can_sample(10**9, size=1, inserted=1, sampled=0)


def test_the_largest_batch_is_what_both_bounds_leave_room_for() -> None:
    assert relive.SampleToInsertRatio(1.0, 1, 1.0).max_batch_size == 1
    assert relive.SampleToInsertRatio(4.0, 1, 32.0).max_batch_size == 60
    assert relive.MinSize(1).max_batch_size is None


@hypothesis.given(
    ratio=st.sampled_from([0.1, 1 / 3, 1.0, 1.5, 4.0, 7.3]),
    spare=st.floats(0.0, 10.0),
    inserted=st.integers(0, 1000),
    sampled=st.integers(0, 1000),
)
def test_a_forgiven_limiter_lets_inserts_pass_and_has_no_debt(
    ratio: float, spare: float, inserted: int, sampled: int
) -> None:
    limiter = relive.SampleToInsertRatio(ratio, min_size=10, error_buffer=max(1.0, ratio) + spare)
    forgiven = limiter.forgiven(inserted=inserted, sampled=sampled)
    assert limiter.can_insert(size=1000, inserted=inserted, sampled=forgiven)
    assert forgiven == sampled or forgiven - 1 < limiter.ratio * (inserted - 10) + 1e-9
    assert forgiven >= sampled
    assert relive.MinSize(10).forgiven(inserted=inserted, sampled=sampled) == sampled


class Alternating(relive.RateLimiter):
    """One sample after each insert."""

    def can_insert(self, *, size: int, inserted: int, sampled: int) -> bool:
        return sampled >= inserted - 2

    def can_sample(self, batch_size: int, *, size: int, inserted: int, sampled: int) -> bool:
        return sampled < inserted


def test_a_limiter_of_ones_own_is_two_methods() -> None:
    buffer = relive.EpisodeReplayBuffer[int, int](max_transitions=1, limiter=Alternating())
    episode_id = buffer.start_episode_nowait("a")
    for t in range(3):
        buffer.append_observation_action_reward_nowait(episode_id, t, t, 0.0)
    with pytest.raises(relive.NotReadyError, match="held back by .*Alternating"):
        buffer.append_observation_action_reward_nowait(episode_id, 3, 3, 0.0)
    assert len(buffer.sample_n_step_nowait(1000, 1, 0.9)) == 1000
    with pytest.raises(relive.NotReadyError, match="held back by .*Alternating"):
        buffer.sample_n_step_nowait(1, 1, 0.9)
    buffer.append_observation_action_reward_nowait(episode_id, 3, 3, 0.0)


class Eager(Alternating):
    """Allows everything, but has a least size."""

    min_size = 3

    def can_sample(self, batch_size: int, *, size: int, inserted: int, sampled: int) -> bool:
        return True


def test_the_least_size_of_a_limiter_holds_whatever_it_answers() -> None:
    buffer = relive.EpisodeReplayBuffer[int, int](limiter=Eager())
    episode_id = buffer.start_episode_nowait("a")
    for t in range(3):
        buffer._store.append(buffer._store[episode_id], t, t, 0.0)
    with pytest.raises(relive.NotReadyError, match="with 2 transitions"):
        buffer.sample_n_step_nowait(1, 1, 0.9)
    buffer.end_episode_nowait(episode_id, 3)
    assert len(buffer.sample_n_step_nowait(1, 1, 0.9)) == 1


@pytest.mark.parametrize("min_size", [0, None, 1.5])
def test_a_least_size_that_is_none_is_refused(min_size: Any) -> None:
    limiter = Eager()
    limiter.min_size = min_size
    with pytest.raises(ValueError, match=r"^limiter\.min_size must be"):
        relive.EpisodeReplayBuffer(limiter=limiter)


async def test_no_limiter_lets_anybody_draw_from_nothing() -> None:
    buffer = relive.EpisodeReplayBuffer[int, int](limiter=Alternating())
    episode_id = buffer.start_episode_nowait("a")
    buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 0.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await buffer.sample_n_step(1, 1, 0.9)


class Counts:
    """Nine transitions of nine steps, one of which was drawn."""

    inserted, sampled = 9, 1

    def __len__(self) -> int:
        return 9


def answers(state: rate_limiters.LimiterState) -> tuple[bool, bool]:
    """Return whether the limiter may hold a draw, and whether it lets one pass."""
    return state.holds_samples, state.can_sample(1)


def test_a_limiter_is_asked_where_it_may_hold_a_draw() -> None:
    """Or where the answer is decided already."""
    ratio = relive.SampleToInsertRatio(1.0, 1, 8.0)
    for limiter, may_hold in ((None, False), (relive.MinSize(1), False), (relive.MinSize(2), True), (ratio, True)):
        state = rate_limiters.LimiterState(limiter, Counts(), rate_limiters.Limits("capacity", 9))
        assert answers(state) == (may_hold, True)
        assert state.decided(False, functools.partial(answers, state)) == (True, False)
        assert state.holds_samples is may_hold
