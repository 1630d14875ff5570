import pytest

import relive
from relive import errors
from relive.samplers import limited_test


def test_a_limiter_that_was_asked_does_not_make_rows() -> None:
    """A shell has asked the limiter, and the last row was barred since."""
    buffer = limited_test.ring(1, None)
    buffer.set_eligible([0], False)
    with pytest.raises(errors.NotReadyError, match="^sample has nothing to draw: every anchor was made ineligible"):
        buffer._limited.decided(True, lambda: buffer.sample(1))


def test_a_state_that_is_loaded_says_what_may_be_drawn() -> None:
    """With few eligible rows, loaded into a buffer that has had as many rows before."""

    def with_one_eligible(key: int) -> relive.RingReplayBuffer:
        buffer = limited_test.ring(130, None, capacity=200)
        buffer.set_eligible([other for other in range(130) if other != key], False)
        assert set(buffer.sample_keys(4).tolist()) == {key}
        return buffer

    buffer = with_one_eligible(0)
    buffer.load_state_dict(with_one_eligible(5).state_dict())
    assert buffer.eligible_keys().tolist() == [5]
    assert set(buffer.sample_keys(4).tolist()) == {5}


def test_after_loading_the_limiter_counts_what_was_loaded() -> None:
    """And a sampler that is limited is the one that the buffer shows."""

    def made(steps: int) -> relive.RingReplayBuffer:
        limiter = relive.SampleToInsertRatio(1.0, 1, 4.0)
        sampler = relive.PrioritizedSampler(beta=relive.LinearSchedule(0.0, 1.0, steps=9))
        buffer = relive.RingReplayBuffer(9, limiter=limiter, sampler=sampler, max_times_sampled=3, seed=0)
        for t in range(steps):
            buffer.add(t, t, 0.0, next_observation=t + 1)
        return buffer

    full, buffer = made(5), made(1)
    sampler = buffer.sampler
    buffer.load_state_dict(full.state_dict())
    assert not buffer.can_insert()
    assert buffer.sample_keys(3).tolist() == full.sample_keys(3).tolist()
    assert buffer.can_insert()
    assert buffer.sampler is sampler
    assert buffer.state_dict()["sampler"] == full.state_dict()["sampler"]
    buffer.check()
