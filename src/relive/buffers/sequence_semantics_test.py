"""Tests of sequences, row by row: their starts, their contents, their masks."""

import itertools
from typing import Any

import numpy as np
import pytest

import relive
from relive import testing


def add_open(buffer: Any, count: int, *, eager: bool) -> None:
    """Add steps of one endless episode: observation, action and reward are the time, from 1 on."""
    for t in range(1, count + 1):
        buffer.add(t, t, float(t), t + 1 if eager else None)


def add_episodes(buffer: Any, lengths: list[int], *, terminated: bool = True) -> None:
    """Add ended episodes whose observation is 100 * (episode + 1) + time."""
    for number, length in enumerate(lengths):
        observations = 100 * (number + 1) + np.arange(length + 1)
        buffer.add_episode(observations, observations[:-1], observations[:-1], terminated=terminated)


def test_a_batch_has_one_observation_more_than_steps() -> None:
    buffer = relive.SequenceReplayBuffer(100, length=5)
    shapes = np.zeros((21, 3, 2)), np.zeros((20, 4)), np.zeros(20)
    buffer.add_episode(*shapes, terminated=True, state=np.zeros((20, 7)))
    for batch in (buffer.sample(6), buffer.read(range(6))):
        assert batch.observation.shape == (6, 6, 3, 2)
        assert batch.action.shape == (6, 5, 4)
        assert batch.extras["state"].shape == (6, 5, 7)
        for name in ("reward", "terminated", "truncated", "mask", "is_burn_in"):
            assert getattr(batch, name).shape == (6, 5), name
        for name in ("keys", "start_step", "probabilities", "weights"):
            assert getattr(batch, name).shape == (6,), name
        assert len(batch) == 6


@pytest.mark.parametrize(("eager", "eligible"), [(True, 46), (False, 45)])
def test_a_start_needs_its_steps_and_the_observation_after_them(eager: bool, eligible: int) -> None:
    buffer = relive.SequenceReplayBuffer(100, length=5)
    add_open(buffer, 50, eager=eager)
    assert buffer.num_eligible == eligible
    assert buffer.eligible_keys().tolist() == list(range(eligible))
    batch = buffer.read(range(eligible))
    assert np.array_equal(batch.observation, 1 + np.arange(eligible)[:, None] + np.arange(6))
    assert batch.mask.all()
    assert not batch.truncated.any()
    assert not batch.terminated.any()


@pytest.mark.parametrize(("eager", "eligible"), [(True, 96), (False, 95)])
def test_a_full_ring_has_contiguous_sequences_alone(eager: bool, eligible: int) -> None:
    buffer = relive.SequenceReplayBuffer(100, length=5)
    add_open(buffer, 150, eager=eager)
    keys = buffer.eligible_keys()
    assert keys.tolist() == list(range(50, 50 + eligible))
    batch = buffer.read(keys)
    assert np.array_equal(batch.observation, keys[:, None] + np.arange(6) + 1)
    assert np.array_equal(batch.action, batch.observation[:, :-1])
    assert np.array_equal(batch.reward, batch.observation[:, :-1])
    assert np.array_equal(batch.start_step, keys)


@pytest.mark.parametrize("terminated", [False, True])
@pytest.mark.parametrize("capacity", [200, 150])
def test_no_sequence_passes_an_end_and_each_is_drawn_alike(terminated: bool, capacity: int) -> None:
    """20 episodes of 10 in a ring of 200, and in one that has room for 15 of them."""
    buffer = relive.SequenceReplayBuffer(capacity, length=5, seed=1)
    add_episodes(buffer, [10] * 20, terminated=terminated)
    keys = buffer.eligible_keys()
    assert keys.size == capacity * 6 // 10
    observation = buffer.read(keys).observation
    assert np.array_equal(np.diff(observation), np.ones((keys.size, 5)))
    drawn = np.bincount(buffer.sample_keys(60 * keys.size), minlength=200)
    testing.assert_frequencies(drawn[keys].tolist(), [1 / keys.size] * keys.size)
    assert drawn.sum() == drawn[keys].sum()


def test_an_episode_as_long_as_a_sequence_has_one_start() -> None:
    buffer = relive.SequenceReplayBuffer(100, length=10)
    add_episodes(buffer, [10, 9, 10, 11])
    assert buffer.eligible_keys().tolist() == [0, 19, 29, 30]


@pytest.mark.parametrize("eager", [False, True])
def test_a_small_ring_of_short_episodes(eager: bool) -> None:
    """Ring of 12, episodes of 5, 30 adds, sequences of 3: starts at times 20, 21, 22, 25, 26, 27."""
    buffer = relive.SequenceReplayBuffer(12, length=3)
    for t in range(30):
        buffer.add(t, t, float(t), t + 1 if eager else None, terminated=t % 5 == 4)
    assert buffer.eligible_keys().tolist() == [20, 21, 22, 25, 26, 27]
    batch = buffer.read([22, 25])
    assert batch.action.tolist() == [[22, 23, 24], [25, 26, 27]]
    assert batch.terminated.tolist() == [[False, False, True], [False] * 3]


def test_episodes_too_short_say_how_long_the_longest_is() -> None:
    buffer = relive.SequenceReplayBuffer(100, length=8)
    with pytest.raises(relive.NotReadyError):
        buffer.sample(1)
    add_episodes(buffer, [2, 4, 3])
    with pytest.raises(relive.NotReadyError, match=r"\b4\b"):
        buffer.sample(1)
    assert buffer.num_eligible == 0


@pytest.mark.parametrize("terminated", [False, True])
def test_padding_is_zeros_and_masked(terminated: bool) -> None:
    buffer = relive.SequenceReplayBuffer(100, length=8, pad=True)
    buffer.add_episode(np.arange(1, 6), np.arange(1, 5), np.arange(1.0, 5), terminated=terminated, extra=np.ones(4))
    assert buffer.eligible_keys().tolist() == [0]
    for batch in (buffer.read([0]), buffer.sample(1)):
        assert batch.mask.sum(axis=1).tolist() == [4]
        assert batch.mask.tolist() == [[True] * 4 + [False] * 4]
        assert batch.observation.tolist() == [[1, 2, 3, 4, 5, 0, 0, 0, 0]]
        assert batch.action.tolist() == [[1, 2, 3, 4, 0, 0, 0, 0]]
        assert batch.reward.tolist() == [[1, 2, 3, 4, 0, 0, 0, 0]]
        assert batch.extras["extra"].tolist() == [[1, 1, 1, 1, 0, 0, 0, 0]]
        assert batch.terminated.tolist() == [[k == 3 and terminated for k in range(8)]]
        assert batch.truncated.tolist() == [[k == 3 and not terminated for k in range(8)]]


def test_with_padding_every_step_of_an_episode_is_in_a_sequence() -> None:
    for length, stride, steps in itertools.product((1, 2, 3, 5), (1, 2, 3), range(1, 9)):
        if stride > length:
            continue
        buffer = relive.SequenceReplayBuffer(20, length=length, stride=stride, pad=True)
        add_episodes(buffer, [steps])
        batch = buffer.read(buffer.eligible_keys())
        seen = batch.action[batch.mask] - 100
        assert set(seen.tolist()) == set(range(steps))
        assert all(start % stride == 0 for start in batch.start_step)
        assert len({tuple(row) for row in batch.action.tolist()}) == len(batch)


def test_a_sequence_longer_than_capacity_is_refused_naming_both() -> None:
    with pytest.raises(ValueError, match="length must be at most capacity = 4, got 5"):
        relive.SequenceReplayBuffer(4, length=5)
    buffer = relive.SequenceReplayBuffer(4, length=4)
    add_open(buffer, 9, eager=True)
    assert buffer.eligible_keys().tolist() == [5]
    assert buffer.read([5]).observation.tolist() == [[6, 7, 8, 9, 10]]


def test_a_lazy_sequence_as_long_as_the_ring_waits_for_an_end() -> None:
    """Without its next observation the last step is never complete, unless the episode terminates."""
    buffer = relive.SequenceReplayBuffer(4, length=4)
    add_open(buffer, 9, eager=False)
    assert buffer.num_eligible == 0
    buffer.add(10, 10, 10.0, terminated=True)
    assert buffer.eligible_keys().tolist() == [6]


@pytest.mark.parametrize("terminated", [False, True])
def test_an_end_is_marked_at_its_last_step_and_nowhere_else(terminated: bool) -> None:
    buffer = relive.SequenceReplayBuffer(100, length=3)
    add_episodes(buffer, [6, 6], terminated=terminated)
    batch = buffer.read(buffer.eligible_keys())
    assert batch.start_step.tolist() == [0, 1, 2, 3] * 2
    ends = np.zeros((8, 3), bool)
    ends[[3, 7], 2] = True
    assert np.array_equal(batch.terminated, ends & terminated)
    assert np.array_equal(batch.truncated, ends & (not terminated))


def test_a_splice_that_nobody_reported_is_truncated_in_the_sequence() -> None:
    buffer = relive.SequenceReplayBuffer(100, length=2)
    for observation, following in ((1, 2), (2, 3), (50, 51), (51, 52)):
        buffer.add(observation, 0, 0.0, following)
    assert buffer.eligible_keys().tolist() == [0, 2]
    batch = buffer.read([0, 2])
    assert batch.observation.tolist() == [[1, 2, 3], [50, 51, 52]]
    assert batch.truncated.tolist() == [[False, True], [False, False]]


def test_a_lazy_episode_that_is_cut_loses_the_step_nobody_saw_the_end_of() -> None:
    """`add_episode` on a stream with an open episode truncates it; its last step has no next observation."""
    buffer = relive.SequenceReplayBuffer(100, length=2)
    add_open(buffer, 4, eager=False)
    add_episodes(buffer, [2])
    assert buffer.eligible_keys().tolist() == [0, 1, 4]
    batch = buffer.read([0, 1, 4])
    assert batch.observation.tolist() == [[1, 2, 3], [2, 3, 4], [100, 101, 102]]
    assert batch.truncated.tolist() == [[False, False]] * 3


@pytest.mark.parametrize("burn_in", [0, 1, 4, 5])
def test_the_first_steps_are_marked_as_burn_in(burn_in: int) -> None:
    buffer = relive.SequenceReplayBuffer(100, length=6, burn_in=burn_in)
    add_open(buffer, 20, eager=True)
    batch = buffer.sample(3)
    assert batch.is_burn_in.tolist() == [[True] * burn_in + [False] * (6 - burn_in)] * 3
    assert batch.mask.all()


def test_padding_is_no_burn_in() -> None:
    """Where the mask is False everything else is zero."""
    buffer = relive.SequenceReplayBuffer(100, length=6, burn_in=3, pad=True)
    add_episodes(buffer, [2])
    assert buffer.read([0]).is_burn_in.tolist() == [[True, True, False, False, False, False]]


@pytest.mark.parametrize("burn_in", [-1, 1.5, 6, 7])
def test_a_burn_in_that_leaves_nothing_is_refused(burn_in: Any) -> None:
    with pytest.raises(ValueError, match="burn_in must be"):
        relive.SequenceReplayBuffer(100, length=6, burn_in=burn_in)


def test_a_stored_state_comes_with_the_first_step() -> None:
    buffer = relive.SequenceReplayBuffer(100, length=4, burn_in=2)
    for t in range(10):
        buffer.add(t, t, 0.0, t + 1, state=np.array([t, 10 * t]))
    batch = buffer.read([3, 6])
    assert batch.extras["state"][:, 0].tolist() == [[3, 30], [6, 60]]
    assert batch.extras["state"].shape == (2, 4, 2)


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 7])
def test_starts_are_multiples_of_the_stride_from_the_start_of_the_episode(stride: int) -> None:
    """Also in a ring in which the start of the episode was overwritten."""
    buffer = relive.SequenceReplayBuffer(20, length=4, stride=stride)
    add_episodes(buffer, [3, 10, 5])
    buffer.add_episode(np.arange(12), np.arange(11), np.arange(11), terminated=False)
    assert len(buffer) == 20
    starts = {9: range(10), 18 - 5: range(5), 18: range(11)}
    expected = [3 + s for s in starts[9] if s % stride == 0 and s + 4 <= 10 and 3 + s >= 9]
    expected += [13 + s for s in starts[13] if s % stride == 0 and s + 4 <= 5]
    expected += [18 + s for s in starts[18] if s % stride == 0 and s + 4 <= 11]
    assert buffer.eligible_keys().tolist() == expected
    assert set((buffer.read(expected).start_step % stride).tolist()) == {0}


def test_starts_of_an_endless_episode_stay_on_the_stride() -> None:
    buffer = relive.SequenceReplayBuffer(10, length=3, stride=4)
    for t in range(60):
        buffer.add(t, t, 0.0, t + 1)
        keys = buffer.eligible_keys().tolist()
        assert keys == [s for s in range(0, t + 1, 4) if t - 9 <= s <= t - 2]


def test_a_priority_belongs_to_the_anchor() -> None:
    buffer = relive.SequenceReplayBuffer(100, length=3, prioritized=True, alpha=1.0, epsilon=0.0, beta=1.0)
    add_episodes(buffer, [5, 4])
    assert buffer.eligible_keys().tolist() == [0, 1, 2, 5, 6]
    buffer.update_priorities([0, 1, 2, 5, 6], [1, 2, 3, 4, 10])
    batch = buffer.read([0, 1, 2, 5, 6])
    assert batch.probabilities.tolist() == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.5])
    assert batch.weights.tolist() == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 10])
    buffer.update_priorities([3, 4], [1000, 1000])
    assert buffer.read([0]).probabilities.tolist() == pytest.approx([0.05])


def test_sequences_without_priorities_have_weights_of_one_and_equal_probabilities() -> None:
    buffer = relive.SequenceReplayBuffer(100, length=3)
    add_episodes(buffer, [5])
    batch = buffer.sample(4)
    assert batch.weights.tolist() == [1] * 4
    assert batch.probabilities.tolist() == pytest.approx([1 / 3] * 4)
    with pytest.raises(ValueError, match="update_priorities"):
        buffer.update_priorities([0], [1.0])


def test_streams_do_not_mix_in_a_sequence() -> None:
    buffer = relive.SequenceReplayBuffer(30, length=3, streams=3)
    for t in range(20):
        buffer.extend(
            1000 * np.arange(1, 4) + t,
            np.full(3, t),
            np.zeros(3),
            1000 * np.arange(1, 4) + t + 1,
            terminated=[False, t == 15, False],
        )
    batch = buffer.read(buffer.eligible_keys())
    assert np.array_equal(np.diff(batch.observation), np.ones((len(batch), 3)))
    assert len(batch) == 8 + 8 + (8 - 2)
    assert np.bincount(batch.observation[:, 0] // 1000).tolist() == [0, 8, 6, 8]


@pytest.mark.parametrize(
    "wrong", [{"length": 0}, {"length": 2.0}, {"length": True}, {"stride": 0}, {"stride": -1}, {"pad": 1}]
)
def test_settings_that_break_their_rule_name_themselves(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
        relive.SequenceReplayBuffer(10, **{"length": 2, **wrong})
