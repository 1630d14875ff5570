from typing import Any

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

import relive
from relive import errors

SIDES = strategies.lists(strategies.floats(0.01, 100.0), min_size=1, max_size=4)


def ring(number: int, steps: int = 5, **settings: Any) -> relive.RingReplayBuffer:
    """Return a buffer whose observations all are `number`."""
    buffer = relive.RingReplayBuffer(8, seed=number, **settings)
    for t in range(steps):
        buffer.add({"x": float(number)}, t, 1.0, next_observation={"x": float(number)}, logp=float(t))
    return buffer


@hypothesis.given(SIDES, strategies.integers(1, 300))
def test_counts_are_exact_and_within_one_of_their_shares(shares: list[float], batch_size: int) -> None:
    mixture: Any = relive.MixtureSampler([ring(number, 1) for number in range(len(shares))], shares)
    counts = mixture.counts(batch_size)
    assert sum(counts) == batch_size
    for count, share in zip(counts, shares, strict=True):
        assert abs(count - batch_size * share / sum(shares)) < 1 + 1e-9
    assert mixture.counts(batch_size) == counts


def test_batches_hold_shares_in_the_order_of_the_buffers() -> None:
    mixture = relive.MixtureSampler([ring(1), ring(2), ring(3)], [0.25, 0.5, 0.25])
    assert mixture.counts(9) == [2, 5, 2]
    for _ in range(3):
        batch = mixture.sample(8)
        assert batch.observation["x"].tolist() == [1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 3.0, 3.0]
        assert mixture.sources(batch.keys).tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
        assert batch.extras["logp"].tolist() == batch.action.tolist()
        assert len(batch.weights) == len(batch.probabilities) == 8


def test_remainders_go_to_the_largest_and_ties_to_the_first() -> None:
    mixture = relive.MixtureSampler([ring(1), ring(2), ring(3)], [1, 1, 1])
    assert mixture.counts(4) == [2, 1, 1]
    assert mixture.counts(1) == [1, 0, 0]
    assert mixture.sample(1).observation["x"].tolist() == [1.0]


def test_shares_may_be_as_large_as_floats_are() -> None:
    assert relive.MixtureSampler([ring(1), ring(2)], [1e308, 1e308]).counts(4) == [2, 2]


def test_options_go_to_every_buffer() -> None:
    batch = relive.MixtureSampler([ring(1), ring(2)], [1, 1]).sample(64, n_step=2, gamma=0.5)
    assert set(batch.reward.tolist()) == {1.0, 1.5}


def test_priorities_find_their_way_back() -> None:
    first, second = ring(1, sampler=relive.PrioritizedSampler()), ring(2)
    third = ring(3, sampler=relive.PrioritizedSampler())
    mixture = relive.MixtureSampler([first, second, third], [1, 1, 1])
    batch = mixture.sample(30)
    priorities = batch.keys + 1.0
    assert mixture.update_priorities(batch.keys, priorities) == 20
    for buffer, source in ((first, 0), (third, 2)):
        keys = np.unique(batch.keys[mixture.sources(batch.keys) == source])
        assert buffer.get_priorities(keys // 3).tolist() == (keys + 1.0).tolist()
    before = first.get_priorities(range(5)).tolist()
    with pytest.raises(
        errors.ArgumentError, match="^priority of row 29 must be a finite number of at least 0, got -1.0$"
    ):
        mixture.update_priorities(batch.keys, np.where(np.arange(30) == 29, -1.0, 1.0))
    assert first.get_priorities(range(5)).tolist() == before
    with pytest.raises(errors.ArgumentError, match="never given out"):
        mixture.update_priorities([0, 3 * third.appended + 2], [9.0, 9.0])
    assert first.get_priorities(range(5)).tolist() == before


def test_a_buffer_that_is_not_ready_holds_the_batch_back() -> None:
    first, empty = ring(1), ring(2, 0)
    mixture = relive.MixtureSampler([first, empty], [0.5, 0.5])
    state = first.rng.bit_generator.state
    with pytest.raises(errors.NotReadyError, match="^sample must wait for buffer 1: it cannot return 4 rows now$"):
        mixture.sample(8)
    assert first.rng.bit_generator.state == state
    assert first.get_stats().sampled == 0
    assert mixture.sample(1).observation["x"].tolist() == [1.0], "none of the one is the second's"


def test_sequences_mix_too() -> None:
    made = []
    for number in range(2):
        buffer = relive.SequenceReplayBuffer(16, length=3, seed=number)
        buffer.add_episode(np.full(6, number), np.zeros(5, int), np.ones(5), terminated=True)
        made.append(buffer)
    batch = relive.MixtureSampler(made, [3, 1]).sample(4)
    assert batch.observation.tolist() == [[0] * 4] * 3 + [[1] * 4]


def test_buffers_that_cannot_be_mixed_are_refused() -> None:
    first, odd = ring(1), relive.RingReplayBuffer(4)
    odd.add({"x": np.float32(1)}, 0, 0.0, next_observation={"x": np.float32(1)}, logp=0.0)
    state = first.rng.bit_generator.state
    with pytest.raises(errors.ArgumentError, match=r"^buffers must be of one schema, got Schema\(.*\) and Schema\("):
        relive.MixtureSampler([first, odd], [1, 1]).sample(4)
    with pytest.raises(errors.ArgumentError, match="^beta must be left out without priorities, got 0.5$"):
        relive.MixtureSampler([ring(2, sampler=relive.PrioritizedSampler()), first], [1, 1]).sample(4, beta=0.5)
    assert first.rng.bit_generator.state == state
    with pytest.raises(
        errors.ArgumentError, match=r"^buffers must return observation/x of one shape, got \[\(\), \(2,\)\]$"
    ):
        relive.MixtureSampler([first, ring(2, frame_stack=2)], [1, 1]).sample(4)
    with pytest.raises(
        errors.ArgumentError, match="^buffers must have windows of one kind, got SequenceWindow, TransitionWindow$"
    ):
        relive.MixtureSampler([first, relive.SequenceReplayBuffer(4, length=2)], [1, 1])  # type: ignore[arg-type]


def sequences(length: int) -> relive.SequenceReplayBuffer:
    """Return a buffer of sequences of that length."""
    buffer = relive.SequenceReplayBuffer(8, length=length, seed=0)
    buffer.add_episode({"x": np.ones(7)}, range(6), np.ones(6), terminated=True, logp=np.ones(6))
    return buffer


def windowed() -> relive.ColumnReplayBuffer[Any]:
    """Return a buffer of transitions whose n_step and gamma are fixed."""
    buffer = relive.ColumnReplayBuffer(8, window=relive.TransitionWindow(), seed=0)
    buffer.add({"x": 1.0}, 0, 1.0, next_observation={"x": 1.0}, logp=0.0)
    return buffer


class Impatient(relive.RateLimiter):
    """Allows no batch."""

    def can_insert(self, *, size: int, inserted: int, sampled: int) -> bool:
        return True

    def can_sample(self, batch_size: int, *, size: int, inserted: int, sampled: int) -> bool:
        return False


def unlike() -> relive.RingReplayBuffer:
    """Return a buffer with another extra."""
    buffer = relive.RingReplayBuffer(8, seed=0)
    buffer.add({"x": 1.0}, 0, 1.0, next_observation={"x": 1.0}, cost=0.0)
    return buffer


def test_a_refused_mixture_draws_from_no_buffer(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any, dict[str, Any], type[Exception]]] = [
        (lambda: ring(2, frame_stack=2), None, {}, errors.ArgumentError),
        (unlike, None, {}, errors.ArgumentError),
        (lambda: sequences(2), lambda: sequences(3), {}, errors.ArgumentError),
        (lambda: ring(2, 0), None, {}, errors.NotReadyError),
        (lambda: ring(2, limiter=Impatient()), None, {}, errors.NotReadyError),
        (lambda: ring(2), None, {"n_step": 0}, errors.ArgumentError),
        (lambda: ring(2), None, {"gamma": 2.0}, errors.ArgumentError),
        (windowed, None, {"n_step": 2}, TypeError),
        (lambda: ring(2), None, {"no_such_option": 2}, TypeError),
        (lambda: ring(2), lambda: ring(1, sampler=relive.PrioritizedSampler()), {"beta": 1.0}, errors.ArgumentError),
    ]
    for make, other, options, refusal in cases:
        with subtests.test(f"{refusal} {options}"):
            buffers = [ring(1) if other is None else other(), make()]
            mixture = relive.MixtureSampler(buffers, [1, 1])
            before = [(buffer.rng.bit_generator.state, buffer.get_stats()) for buffer in buffers]
            with pytest.raises(refusal):
                mixture.sample(4, **options)
            assert [(buffer.rng.bit_generator.state, buffer.get_stats()) for buffer in buffers] == before


def test_a_beta_is_checked_in_buffers_without_a_share_too() -> None:
    rated = ring(1, sampler=relive.PrioritizedSampler())
    with pytest.raises(errors.ArgumentError, match="^beta must be left out without priorities, got 0.5$"):
        relive.MixtureSampler([rated, ring(2)], [1, 1]).sample(1, beta=0.5)


def test_a_refused_update_has_changed_nothing_in_any_buffer() -> None:
    first, second = ring(1, sampler=relive.PrioritizedSampler()), ring(2, sampler=relive.PrioritizedSampler(alpha=2.0))
    mixture = relive.MixtureSampler([first, second], [1, 1])
    batch = mixture.sample(4)
    with pytest.raises(errors.ArgumentError, match="^priority of row 2 must be smaller with alpha = 2, got 1e[+]300$"):
        mixture.update_priorities(batch.keys, [7.0, 7.0, 1e300, 7.0])
    assert first.get_priorities(range(5)).tolist() == second.get_priorities(range(5)).tolist() == [1.0] * 5


def test_wrong_settings_of_mixtures_are_refused() -> None:
    buffer = ring(1)
    for buffers, shares, message in [
        ([], [], "^buffers must be at least one, got none$"),
        ([buffer, buffer], [1, 1], "^buffers must be distinct, got one of them twice$"),
        ([buffer], [1, 1], "^shares must be one for each buffer, 1, got 2$"),
        ([buffer], [0.0], "^shares must be above 0, got 0$"),
        ([buffer], [float("nan")], "^share must be a finite real number, got nan$"),
        (buffer, [1], "^buffers must be an instance of Sequence, got <RingReplayBu"),
        ([buffer], 1.0, "^shares must be a sequence, got 1.0$"),
        ([3], [1.0], "^buffers must be an instance of ColumnReplayBuffer, got 3$"),
    ]:
        with pytest.raises(errors.ArgumentError, match=message):
            relive.MixtureSampler(buffers, shares)  # type: ignore[arg-type]
    with pytest.raises(errors.ArgumentError, match="^batch_size must be at least 1, got 0$"):
        relive.MixtureSampler([buffer], [1]).sample(0)


def test_a_checked_buffer_mixes_with_an_unchecked_one() -> None:
    field = relive.Field((), "float64")
    made = [
        relive.RingReplayBuffer(9, relive.Schema(field, field, check_finite=each), seed=0) for each in (True, False)
    ]
    for buffer in made:
        buffer.add(0.0, 0.0, 0.0, 1.0)
    assert len(relive.MixtureSampler(made, shares=[1, 1]).sample(8)) == 8


@pytest.mark.parametrize("most", [None, 3])
def test_a_share_that_cannot_be_drawn_takes_the_others_back(monkeypatch: pytest.MonkeyPatch, most: int | None) -> None:
    first, second = (relive.RingReplayBuffer(9, max_times_sampled=most, seed=seed) for seed in (0, 1))
    for buffer in (first, second):
        buffer.add_episode(range(6), [0] * 5, [0.0] * 5, terminated=True)
    before = repr((first.state_dict(), first.get_stats(), first.rng.bit_generator.state))
    monkeypatch.setattr(second, "sample", lambda size: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        relive.MixtureSampler([first, second], [1, 1]).sample(8)
    assert repr((first.state_dict(), first.get_stats(), first.rng.bit_generator.state)) == before
