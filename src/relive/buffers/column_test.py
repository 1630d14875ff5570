"""Tests of the buffer's arguments, counters and audit; column_grid_test compares what it returns."""

from collections.abc import Callable
import copy
import pickle
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors


def ring(steps: int = 0, **settings: Any) -> relive.RingReplayBuffer:
    """Return a buffer of capacity 8 with that many complete steps in stream 0."""
    buffer = relive.RingReplayBuffer(8, **{"seed": 0, **settings})
    for t in range(steps):
        buffer.add(float(t), t, 0.0, next_observation=t + 1.0, stream=0)
    return buffer


def contents(buffer: relive.RingReplayBuffer) -> Any:
    """Return everything that a refused call must not change."""
    keys = buffer.eligible_keys()
    batch = buffer.read(keys) if len(keys) else None
    fields = (
        None if batch is None else [batch.observation.tolist(), batch.next_observation.tolist(), batch.reward.tolist()]
    )
    return buffer.get_stats(), keys.tolist(), fields, buffer.rng.bit_generator.state, buffer.schema


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 0}, "^capacity must be at least 1, got 0$"),
        ({"n_step": 10**30}, r"^n_step must be at most 2\*\*62, got 1000000"),
        ({"capacity": 1.5}, "^capacity must be an integer of at least 1, got 1.5$"),
        ({"streams": 0}, "^streams must be at least 1, got 0$"),
        ({"streams": 9}, "^streams must be at most capacity = 8, got 9$"),
        ({"capacity": 2**20, "streams": 2**20}, "^streams must be at most 524288, got 1048576$"),
        ({"schema": {"observation": 3}}, "^schema must be an instance of Schema, got "),
        ({"sampler": "uniform"}, "^sampler must be an instance of Sampler, got 'uniform'$"),
        ({"limiter": 3}, "^limiter must be a RateLimiter, got 3$"),
        ({"limiter": relive.MinSize(9)}, r"^limiter must ask for at most capacity = 8 transitions, got MinSize\(9\)$"),
        ({"seed": -1}, "^seed must be at least 0, got -1$"),
        ({"n_step": 0}, "^n_step must be at least 1, got 0$"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ArgumentError, match=message):
        relive.RingReplayBuffer(**{"capacity": 8, **settings})


def test_a_storage_must_fit() -> None:
    schema = relive.Schema(relive.Field((), float), relive.Field((), int))
    storage = relive.ColumnStorage(schema, 8)
    assert relive.RingReplayBuffer(8, storage=storage).schema == schema
    assert relive.RingReplayBuffer(8, schema, storage=storage).schema == schema
    wrong: Any
    for wrong in (np.zeros(3), relive.ColumnStorage):
        with pytest.raises(errors.ArgumentError, match="^storage must have capacity, schema, read and write, got "):
            relive.RingReplayBuffer(8, storage=wrong)
    with pytest.raises(errors.ArgumentError, match="^storage must be of capacity 9, got 8$"):
        relive.RingReplayBuffer(9, storage=storage)
    other = relive.Schema(relive.Field((), int), relive.Field((), int))
    with pytest.raises(errors.ArgumentError, match=r"^storage must be of the schema Schema\(.*\), got Schema\("):
        relive.RingReplayBuffer(8, other, storage=storage)


def test_a_length_above_the_capacity_and_two_samplers_are_refused() -> None:
    with pytest.raises(errors.ArgumentError, match="^length must be at most capacity = 8, got 9$"):
        relive.SequenceReplayBuffer(8, length=9)
    with pytest.raises(errors.ArgumentError, match="^sampler must be left out with prioritized=True, got <"):
        relive.SequenceReplayBuffer(8, length=2, prioritized=True, sampler=relive.UniformSampler())
    with pytest.raises(errors.ArgumentError, match="^alpha must be at least 0, got -1$"):
        relive.SequenceReplayBuffer(8, length=2, alpha=-1)
    with pytest.raises(errors.ArgumentError, match="^prioritized must be True or False, got 1$"):
        relive.SequenceReplayBuffer(8, length=2, prioritized=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"truncated": True}, "^next_observation must be given with a truncated step, got None$"),
        ({"terminated": 2}, "^terminated must be True, False, 0 or 1, got 2$"),
        ({"truncated": "no"}, "^truncated must be True, False, 0 or 1, got 'no'$"),
        ({"stream": 2}, "^stream must be below streams = 2, got 2$"),
        ({"stream": -1}, "^stream must be at least 0, got -1$"),
        ({"observation": [1.0, 2.0]}, r"^observation must be of shape \(\), got \(2,\)$"),
        ({"next_observation": [1.0, 2.0]}, r"^next_observation must be of shape \(\), got \(2,\)$"),
        ({"action": 0.5}, "^action must fit int64, got 0.5: cast it yourself, or declare the field float64$"),
        ({"logp": 0.5}, "^unknown extra 'logp'"),
        ({"done": True}, "^unknown extra 'done': say terminated or truncated$"),
    ],
)
def test_a_refused_step_has_changed_nothing(change: dict[str, Any], message: str) -> None:
    buffer = ring(10, streams=2)
    before = contents(buffer)
    with pytest.raises(errors.ArgumentError, match=message):
        buffer.add(**{"observation": 10.0, "action": 1, "reward": 0.0, "stream": 0, **change})
    assert contents(buffer) == before
    empty = ring(streams=2)
    if "observation" not in change and "action" not in change and "logp" not in change:
        with pytest.raises(errors.ArgumentError):
            empty.add(**{"observation": 10.0, "action": 1, "reward": 0.0, "stream": 0, **change})
        assert empty.schema is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"truncated": [True, False]}, "^next_observation must be given with a truncated step, got None$"),
        ({"terminated": [True]}, r"^terminated must be of shape \(2,\), got \(1,\)$"),
        ({"terminated": True}, r"^terminated must be of shape \(2,\), got \(\)$"),
        ({"truncated": [2, 0]}, r"^truncated must be True, False, 0 or 1, got \[2, 0\]$"),
        ({"streams": [0, 0]}, r"^streams must be distinct, got \[0, 0\]$"),
        ({"streams": [0, 2]}, "^streams must be 0 to 1, got 2$"),
        ({"streams": [0.0, 1.0]}, r"^streams must be integers, got \[0.0, 1.0\]$"),
        ({"stream": 1}, "^extend takes streams, got stream=1$"),
        ({"streams": [1]}, "^extend must have a step of each of 1 streams, got 2 rewards$"),
        ({"reward": [0.0]}, "^extend must have a step of each of 2 streams, got 1 rewards$"),
        ({"reward": 0.0}, "^reward must be a sequence, got 0.0$"),
        ({"observation": [0.0]}, r"^observation must be of shape \(2,\), got \(1,\)$"),
    ],
)
def test_a_refused_extend_has_changed_nothing(change: dict[str, Any], message: str) -> None:
    buffer = ring(10, streams=2)
    before = contents(buffer)
    with pytest.raises(errors.ArgumentError, match=message):
        buffer.extend(**{"observation": [1.0, 2.0], "action": [1, 1], "reward": [0.0, 0.0], **change})
    assert contents(buffer) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": []}, "^an episode must have 1 to capacity = 8 steps, got 0$"),
        ({"rewards": np.zeros(9)}, "^an episode must have 1 to capacity = 8 steps, got 9$"),
        ({"rewards": 3.0}, "^rewards must be a sequence, got 3.0$"),
        ({"rewards": [0.0, 0.0, 0.0]}, r"^observations must be of shape \(4,\), got \(3,\)$"),
        ({"observations": [0.0, 1.0]}, r"^observations must be of shape \(3,\), got \(2,\)$"),
        ({"actions": [0]}, r"^action must be of shape \(2,\), got \(1,\)$"),
        (
            {"terminated": None},
            "^terminated or truncated must be True, and not both, got terminated=None and truncated=",
        ),
        ({"terminated": 2}, "^terminated must be True, False, 0 or 1, got 2$"),
        ({"stream": 1}, "^stream must be below streams = 1, got 1$"),
    ],
)
def test_a_refused_episode_has_changed_nothing(change: dict[str, Any], message: str) -> None:
    buffer = ring(10)
    before = contents(buffer)
    episode = {"observations": [0.0, 1.0, 2.0], "actions": [0, 1], "rewards": [0.0, 0.0], "terminated": True}
    with pytest.raises(errors.ArgumentError, match=message):
        buffer.add_episode(**{**episode, **change})
    assert contents(buffer) == before


def test_a_step_that_does_not_follow_closes_the_episode_and_is_counted() -> None:
    buffer = ring(3)
    buffer.add(50.0, 0, 0.0, next_observation=51.0)
    assert buffer.get_stats().spliced_episodes == 1
    assert buffer.get_stats().truncated_episodes == 1
    batch = buffer.read([2, 3], n_step=2)
    assert batch.next_observation.tolist() == [3.0, 51.0]
    assert batch.steps.tolist() == [1, 1]
    assert not batch.is_terminal.any()


def test_nan_follows_nan_and_zero_follows_minus_zero() -> None:
    signed = relive.RingReplayBuffer(8)
    signed.add(0.0, 0, 0.0, next_observation=-np.float64(np.nan))
    signed.add(np.nan, 0, 0.0, next_observation=1.0)
    assert signed.get_stats().spliced_episodes == 0
    buffer = relive.RingReplayBuffer(8)
    buffer.add([np.nan, 0.0], 0, 0.0, next_observation=[np.nan, -0.0])
    buffer.add([np.nan, 0.0], 0, 0.0, next_observation=[1.0, 0.0])
    assert buffer.get_stats().spliced_episodes == 0
    assert buffer.read([0], n_step=2).steps.tolist() == [2]


def test_the_limiter_is_asked() -> None:
    limiter = relive.SampleToInsertRatio(ratio=1.0, min_size=2, error_buffer=2.0)
    buffer = ring(limiter=limiter)
    for t in range(2):
        with pytest.raises(errors.NotReadyError, match="^sample"):
            buffer.sample(1)
        buffer.add(float(t), 0, 0.0, next_observation=t + 1.0)
    buffer.sample(2)
    with pytest.raises(errors.NotReadyError, match=r"^sample held back by SampleToInsertRatio\(.*\): add steps first$"):
        buffer.sample(1)
    with pytest.raises(errors.ArgumentError, match="^batch_size must be at most 3 with SampleToInsertRatio"):
        buffer.sample(4)
    for t in range(2, 6):
        buffer.add(float(t), 0, 0.0, next_observation=t + 1.0)
    before = contents(buffer)
    with pytest.raises(errors.NotReadyError, match=r"^add held back by SampleToInsertRatio\(.*\): draw samples first$"):
        buffer.add(6.0, 0, 0.0, next_observation=7.0)
    with pytest.raises(errors.NotReadyError, match="^extend held back by"):
        buffer.extend([6.0], [0], [0.0])
    with pytest.raises(errors.NotReadyError, match="^add_episode held back by"):
        buffer.add_episode([6.0, 7.0], [0], [0.0], terminated=True)
    assert contents(buffer) == before
    assert buffer.limiter is limiter


EPISODE = np.zeros(4), np.zeros(3, int), np.zeros(3)


@pytest.mark.parametrize("shell", [lambda buffer: buffer, relive.ThreadSafeReplayBuffer])
@pytest.mark.parametrize(
    ("flags", "terminated"),
    [
        ({"terminated": True}, 1),
        ({"terminated": False}, 0),
        ({"truncated": True}, 0),
        ({"terminated": False, "truncated": True}, 0),
        ({"terminated": 1, "truncated": np.False_}, 1),
        ({"terminated": None, "truncated": 1}, 0),
    ],
)
def test_an_episode_says_how_it_ended(shell: Any, flags: dict[str, Any], terminated: int) -> None:
    buffer = shell(relive.RingReplayBuffer(9))
    buffer.add_episode(*EPISODE, **flags)
    stats = buffer.get_stats()
    assert (stats.terminated_episodes, stats.truncated_episodes) == (terminated, 1 - terminated)


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"terminated": True, "truncated": True},
        {"terminated": False, "truncated": False},
        {"truncated": False},
        {"terminated": None, "truncated": None},
    ],
)
def test_an_episode_without_one_end_is_refused(flags: dict[str, Any]) -> None:
    buffer = relive.RingReplayBuffer(9)
    rule = "^terminated or truncated must be True, and not both, got terminated=.* and truncated="
    with pytest.raises(errors.ArgumentError, match=rule):
        buffer.add_episode(*EPISODE, **flags)
    with pytest.raises(errors.ArgumentTypeError, match="^truncated must be True, False, 0 or 1, got 'yes'$"):
        buffer.add_episode(*EPISODE, truncated="yes")
    assert len(buffer) == 0


def test_priorities_by_key() -> None:
    buffer = relive.PrioritizedReplayBuffer(4, alpha=1.0, epsilon=0.0, seed=0)
    buffer.add_episode([0, 1, 2, 3], [0] * 3, [0.0] * 3, terminated=True)
    assert buffer.update_priorities([0, 1, 2], [[1.0], [2.0], [5.0]]) == 3
    assert buffer.get_priorities([2, 0]).tolist() == [5.0, 1.0]
    buffer.add_episode([0, 1, 2, 3], [0] * 3, [0.0] * 3, terminated=True)
    assert buffer.update_priorities([0, 1, 2], [9.0, 9.0, 3.0]) == 1
    assert buffer.get_stats().stale_keys == 2
    assert buffer.get_priorities([2, 3, 4, 5]).tolist() == [3.0, 5.0, 5.0, 5.0]
    assert buffer.update_priorities(np.zeros(0, np.int64), []) == 0
    assert buffer.has_priorities


@pytest.mark.parametrize(
    ("keys", "priorities", "message"),
    [
        ([0, 1], [1.0], r"^priority must be of shape \(2,\), got \(1,\)$"),
        ([0, 1], [1.0, -2.0], "^priority of row 1 must be a finite number of at least 0, got -2.0$"),
        ([0, 99], [np.nan, 1.0], "^priority of row 0 must be a finite number of at least 0, got nan$"),
        ([0], [np.inf], "^priority of row 0 must be a finite number of at least 0, got inf$"),
        ([0], ["a"], r"^priority must be a real number in every row, got \['a'\]$"),
        ([0.5], [1.0], r"^keys must be integers, got \[0.5\]$"),
    ],
)
def test_refused_priorities_have_changed_nothing(keys: Any, priorities: Any, message: str) -> None:
    buffer = relive.PrioritizedReplayBuffer(4)
    buffer.add_episode([0, 1, 2, 3], [0] * 3, [0.0] * 3, terminated=True)
    with pytest.raises(errors.ArgumentError, match=message):
        buffer.update_priorities(keys, priorities)
    assert buffer.get_priorities([0, 1, 2]).tolist() == [1.0, 1.0, 1.0]
    assert buffer.get_stats().stale_keys == 0


def test_the_losing_priority_of_a_key_given_twice_is_no_maximum() -> None:
    buffer = relive.PrioritizedReplayBuffer(4)
    buffer.add(0, 0, 0.0, next_observation=1)
    buffer.update_priorities([0, 0], [100.0, 2.0])
    buffer.add(1, 0, 0.0, next_observation=2)
    assert buffer.get_priorities([0, 1]).tolist() == [2.0, 2.0]


def test_priorities_can_be_checked_before_they_are_given() -> None:
    buffer = relive.PrioritizedReplayBuffer(4, alpha=2.0)
    buffer.check_priorities([1.0, 2.0])
    with pytest.raises(errors.ArgumentError, match="^priority of row 1 must be smaller with alpha = 2, got 1e[+]300$"):
        buffer.check_priorities([1.0, 1e300])
    with pytest.raises(errors.ArgumentError, match="^check_priorities needs a PrioritizedSampler, got UniformSampler$"):
        ring().check_priorities([1.0])


def test_a_buffer_without_priorities_says_so() -> None:
    buffer = ring(2)
    assert not buffer.has_priorities
    calls: list[Callable[[], object]] = [
        lambda: buffer.update_priorities([0], [1.0]),
        lambda: buffer.get_priorities([0]),
    ]
    for call in calls:
        with pytest.raises(errors.ArgumentError, match="_priorities needs a PrioritizedSampler, got UniformSampler$"):
            call()
    calls = [lambda: buffer.sample(1, beta=0.4), lambda: buffer.read([0], beta=0.4)]
    for call in calls:
        state = buffer.rng.bit_generator.state
        with pytest.raises(errors.ArgumentError, match="^beta must be left out without priorities, got 0.4$"):
            call()
        assert buffer.rng.bit_generator.state == state
    assert buffer.get_stats().sampled == 0


def test_keys_that_are_gone_or_not_yet_readable_cannot_be_read() -> None:
    buffer = ring(10)
    buffer.add(10.0, 0, 0.0)
    for key in (0, 11, -1):
        with pytest.raises(errors.UnknownKeyError, match=f"^key {key} not found: its step was evicted, or never was$"):
            buffer.read([5, key])
    with pytest.raises(errors.ArgumentError, match="^keys must be of steps that a window can start from, got 10$"):
        buffer.read([5, 10])
    with pytest.raises(errors.UnknownKeyError):
        relive.PrioritizedReplayBuffer(4).get_priorities([0])
    with pytest.raises(errors.NotReadyError, match="^read has no schema yet: add a step first$"):
        relive.RingReplayBuffer(4).read([])
    episodes = relive.ColumnReplayBuffer(4, window=relive.EpisodeWindow())
    episodes.add(0, 0, 0.0)
    assert len(episodes.read([])) == 0
    assert buffer.read([]).reward.shape == (0,)


def test_set_eligible_takes_anchors_out_and_lets_them_in() -> None:
    buffer = ring(4)
    assert buffer.set_eligible([1, 2, 2, 77], False) == 3
    assert buffer.get_stats().stale_keys == 1
    assert buffer.eligible_keys().tolist() == [0, 3]
    assert set(buffer.sample(64).keys.tolist()) == {0, 3}
    assert buffer.read([1]).observation.tolist() == [1.0], "it can still be read"
    assert buffer.set_eligible(2, True) == 1
    assert buffer.eligible_keys().tolist() == [0, 2, 3]
    buffer.check()
    with pytest.raises(errors.ArgumentTypeError, match="^eligible must be True or False, got 'yes'$"):
        buffer.set_eligible([0], "yes")  # type: ignore[arg-type]


def test_an_anchor_that_was_barred_before_it_could_be_read_stays_out() -> None:
    buffer = relive.RingReplayBuffer(4)
    key = buffer.add(0, 0, 0.0)
    buffer.set_eligible([key], False)
    buffer.add(1, 0, 0.0, next_observation=2)
    assert buffer.eligible_keys().tolist() == [1]
    buffer.set_eligible([key], True)
    assert buffer.eligible_keys().tolist() == [0, 1]
    buffer.set_eligible([key], False)
    for t in range(2, 6):
        buffer.add(t, 0, 0.0, next_observation=t + 1)
    assert buffer.eligible_keys().tolist() == [2, 3, 4, 5], "what comes to its slot is not barred"


def test_an_episode_that_was_ended_does_not_go_on_with_an_observation_like_its_last() -> None:
    """An environment that is reset in mid-episode, whose first observation happens to be the last one."""
    for ends in (False, True):
        buffer = relive.RingReplayBuffer(8, n_step=2, gamma=0.5)
        buffer.add(0.0, 0, 1.0, 0.0)
        assert not ends or buffer.end_episode()
        buffer.add(0.0, 0, 10.0, 0.0)
        batch = buffer.read([0])
        assert (batch.reward.item(), batch.next_discount.item()) == ((1.0, 0.5) if ends else (6.0, 0.25))
        stats = buffer.get_stats()
        assert (stats.truncated_episodes, stats.open_episodes, stats.spliced_episodes) == (int(ends), 1, 0)
        buffer.check()


def test_ending_an_episode_that_is_not_open_changes_nothing() -> None:
    buffer = relive.RingReplayBuffer(8, streams=2)
    assert not buffer.end_episode(stream=0)
    buffer.extend([0, 1], [0, 0], [0.0, 0.0], [1, 2], terminated=[False, True])
    before = contents(buffer)
    assert not buffer.end_episode(stream=1)
    for stream in (2, -1):
        with pytest.raises(errors.ArgumentError, match="^stream must be "):
            buffer.end_episode(stream=stream)
    assert contents(buffer) == before
    assert buffer.end_episode(stream=0)
    assert not buffer.end_episode(stream=0)


def test_an_end_after_a_step_whose_next_observation_nobody_has_given_is_refused() -> None:
    buffer = relive.RingReplayBuffer(8)
    buffer.add(0, 0, 0.0)
    before = contents(buffer)
    message = (
        "^end_episode needs the observation after the newest step of stream 0: add that step with next_observation$"
    )
    with pytest.raises(errors.ArgumentError, match=message):
        buffer.end_episode()
    assert contents(buffer) == before


def test_an_episode_ends_whose_steps_have_all_gone() -> None:
    buffer = relive.RingReplayBuffer(3, streams=2)
    buffer.add(0, 0, 0.0, 1, stream=0)
    for t in range(5):
        buffer.add(t, 0, 0.0, t + 1, stream=1)
    assert buffer.get_stats().open_episodes == 2
    assert buffer.end_episode(stream=0)
    assert buffer.get_stats().open_episodes == 1
    buffer.check()


def test_clear_forgets_the_steps_and_not_the_counters() -> None:
    buffer = relive.PrioritizedReplayBuffer(4, streams=2, seed=0)
    buffer.extend([0, 10], [0, 0], [0.0, 0.0], [1, 11])
    buffer.update_priorities([0], [7.0])
    buffer.sample(3)
    buffer.clear()
    stats = buffer.get_stats()
    assert (len(buffer), stats.size, stats.num_eligible, stats.open_episodes) == (0, 0, 0, 0)
    assert (stats.appended, stats.sampled) == (2, 3)
    buffer.check()
    assert buffer.add(5, 0, 0.0, next_observation=6, stream=0) == 2
    assert buffer.get_stats().spliced_episodes == 0
    assert buffer.get_priorities([2]).tolist() == [7.0]
    assert buffer.eligible_keys().tolist() == [2]
    ring().clear()


def test_stats_say_what_is_there_and_what_happened() -> None:
    buffer = ring(streams=2)
    assert buffer.get_stats().nbytes == 16 * 8, "two numbers a row, and no episode"
    buffer.add(0.0, 0, 0.0, stream=1)
    for terminated in (True, False):
        buffer.add_episode([0.0, 1.0, 2.0], [0, 0], [0.0, 0.0], terminated=terminated, stream=0)
    stats = buffer.get_stats()
    assert stats == relive.ColumnBufferStats(
        size=5,
        capacity=8,
        num_eligible=4,
        open_episodes=1,
        terminated_episodes=1,
        truncated_episodes=1,
        nbytes=stats.nbytes,
        never_drawn=4,
        effective_sample_size=4.0,
        mean_drawn_age=None,
        policy_lag=None,
        max_policy_lag=None,
        appended=5,
        sampled=0,
        evicted=0,
        cleared=0,
        spliced_episodes=0,
        suspected_resets=0,
        stale_keys=0,
        spent=0,
    )
    assert stats.nbytes >= 8 * 3 * 8
    buffer.add_episode(np.zeros(8), np.zeros(7, int), np.zeros(7), terminated=False, stream=1)
    assert buffer.get_stats().evicted == 4
    assert buffer.is_full
    assert (buffer.capacity, buffer.streams, buffer.num_eligible) == (8, 2, 8)
    assert isinstance(buffer.sampler, relive.UniformSampler)
    assert repr(buffer) == "<RingReplayBuffer of 8 steps, capacity=8, streams=2>"


def test_the_same_seed_and_calls_give_the_same_batches_whatever_others_do_with_numpy() -> None:
    batches = []
    for global_seed in (1, 2):
        np.random.seed(global_seed)  # noqa: NPY002
        state = np.random.get_state()[1].tolist()  # type: ignore[index] # noqa: NPY002
        buffer = ring(20)
        batches.append([buffer.sample(8).keys.tolist(), buffer.sample_keys(8).tolist()])
        assert np.random.get_state()[1].tolist() == state  # type: ignore[index] # noqa: NPY002
    assert batches[0] == batches[1]


def test_check_finds_what_is_damaged() -> None:
    damage: list[tuple[Callable[[Any], None], str]] = [
        (lambda store: store.facts.__setitem__(6, 1), "a slot without a row has facts"),
        (lambda store: store.facts.__setitem__(1, store.facts[1] & ~1), "the anchors that count as readable are not"),
        (lambda store: store.facts.__setitem__(0, store.facts[0] | 2), "2 anchors are counted as eligible, which is"),
        (lambda store: store.facts.__setitem__(0, -1 << 32 | 9), "the link of the row of key 0 is not what it must be"),
        (lambda store: store.facts.__setitem__(1, store.facts[1] & ~8), "the state of the row of key 1 is not what it"),
        (lambda store: store.places.__setitem__(1, 7), "the step of the row of key 0 is not what it must be"),
        (lambda store: store.free.__setitem__(0, store.free[1]), "the numbers of episodes that are free are not those"),
        (lambda store: store.episodes[5].__setitem__(0, 1), "the oldest row of an episode is not what it must be"),
        (lambda store: store.last.__setitem__(1, 0), "an episode is open in another stream than it says, or has"),
        (lambda store: store.num.__setitem__(1, 9), "9 rows are alive in 8 slots"),
    ]
    for break_it, message in damage:
        buffer = ring(2, streams=2)
        buffer.check()
        break_it(buffer.history)
        with pytest.raises(errors.CorruptionError, match=f"^{message}"):
            buffer.check()


def test_a_schema_is_taken_from_the_first_step_and_enforced() -> None:
    buffer = relive.RingReplayBuffer(8)
    buffer.add(
        {"x": np.zeros(2, np.float32)},
        np.int8(1),
        1,
        logp=np.float16(0.5),
        next_observation={"x": np.zeros(2, np.float32)},
    )
    assert buffer.schema == relive.Schema(
        {"x": relive.Field(2, np.float32)},
        relive.Field((), np.int8),
        reward=relive.Field((), np.float64),
        extras={"logp": relive.Field((), np.float16)},
    )
    with pytest.raises(errors.SchemaError, match="logp"):
        buffer.add({"x": np.zeros(2, np.float32)}, np.int8(1), 1.0)
    vector = relive.RingReplayBuffer(8, streams=2)
    vector.extend(np.zeros((2, 3), np.uint8), np.zeros(2, np.int8), np.zeros(2, np.float32))
    assert vector.schema == relive.Schema(
        relive.Field(3, np.uint8), relive.Field((), np.int8), reward=relive.Field((), np.float32)
    )


@pytest.mark.filterwarnings("ignore::relive.errors.MisuseWarning")
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_copy_goes_on_by_itself(streams: int, copied: Any) -> None:
    """A copy makes its own views of arrays: shared or lost ones would return the other buffer's values."""
    schema = relive.Schema({"x": relive.Field(2, float), "y": relive.Field((), int)}, relive.Field((), int))

    def step(t: int) -> dict[str, Any]:
        values, flags = np.arange(streams) + 10 * t, np.full(streams, t % 4 == 3)
        now, then = ({"x": np.stack([v, -v], 1) * 1.0, "y": v} for v in (values, values + 10))
        names = ("observation", "action", "reward", "next_observation", "terminated", "truncated")
        columns = now, values, values * 1.0, then, flags, ~flags & (t % 7 == 6)
        return dict(zip(names, columns, strict=True))

    one = relive.PrioritizedReplayBuffer(12, schema, streams=streams, seed=1)
    for t in range(9):
        one.extend(**step(t))
    other = copied(one)
    keys = one.eligible_keys()
    assert other.read(keys).next_observation["x"].tolist() == one.read(keys).next_observation["x"].tolist()
    for t in range(9, 20):
        other.extend(**step(t))
    assert one.eligible_keys().tolist() == keys.tolist()
    for t in range(9, 20):
        one.extend(**step(t))
    one.check()
    other.check()
    first, second = one.sample(50), other.sample(50)
    assert first.keys.tolist() == second.keys.tolist()
    assert first.observation["x"].tolist() == second.observation["x"].tolist()
    assert first.next_observation["y"].tolist() == second.next_observation["y"].tolist()
    assert first.reward.tolist() == second.reward.tolist()


def test_what_a_stream_announced_before_a_round_is_void_after_it() -> None:
    buffer = ring(streams=2)
    round_of = {"action": np.zeros(2, int), "reward": np.zeros(2), "terminated": np.zeros(2, bool)}
    for stream in range(2):
        buffer.add(float(stream), 0, 0.0, 10.0 + stream, stream=stream)
    buffer.extend(np.array([10.0, 11.0]), next_observation=np.array([20.0, 21.0]), **round_of)
    buffer.add(10.0, 0, 0.0, 30.0, stream=0)
    assert buffer.get_stats().spliced_episodes == 1
