"""Every row of the contract for episodes, and bad input."""

import asyncio
import dataclasses
import math
import re
import time
from typing import Any
import uuid

import numpy as np
import pytest

import relive
from relive import testing
from relive.common import copies_test

Buffer = relive.EpisodeReplayBuffer[list[int], int]


def add_steps(buffer: Buffer, episode_id: str, count: int, first: int = 0) -> None:
    for t in range(first, first + count):
        buffer.append_observation_action_reward_nowait(episode_id, [t], t, float(t + 1))


def add_episode(buffer: Buffer, steps: int, status: relive.FinalStatus = "COMPLETED", agent_id: str = "a") -> str:
    """Add ep(steps) and return its id."""
    episode_id = buffer.start_episode_nowait(agent_id)
    add_steps(buffer, episode_id, steps)
    buffer.end_episode_nowait(episode_id, [steps], status)
    return episode_id


def by_start(buffer: Buffer, n: int, gamma: float) -> dict[int, relive.ReplaySample[list[int], int]]:
    return {sample.start_step: sample for sample in buffer.sample_n_step_nowait(500, n, gamma)}


def stored_ids(buffer: Buffer) -> set[str]:
    return {sample.episode_id for sample in buffer.sample_n_step_nowait(500, 1, 0.9)}


# The table.


def test_an_episode_id_is_a_fresh_uuid() -> None:
    buffer = Buffer()
    ids = {buffer.start_episode_nowait("a") for _ in range(100)}
    assert len(ids) == 100
    assert all(str(uuid.UUID(episode_id)) == episode_id for episode_id in ids)


def test_a_started_episode_is_counted() -> None:
    buffer = Buffer()
    buffer.start_episode_nowait("a")
    stats = buffer.get_stats()
    assert (stats.total_episodes, stats.in_progress, stats.completed) == (1, 1, 0)


def test_a_step_becomes_a_transition_when_the_next_observation_is_known() -> None:
    buffer = Buffer()
    episode_id = buffer.start_episode_nowait("a")
    sizes = []
    for t in range(3):
        add_steps(buffer, episode_id, 1, first=t)
        sizes.append(buffer.get_stats().total_transitions)
    buffer.end_episode_nowait(episode_id, [3])
    assert [*sizes, len(buffer)] == [0, 1, 2, 3]


def test_an_unknown_episode_is_both_a_value_error_and_a_key_error() -> None:
    buffer = Buffer()
    for error in (ValueError, KeyError, relive.UnknownEpisodeError):
        with pytest.raises(error, match=r"^episode nobody not found$"):
            buffer.append_observation_action_reward_nowait("nobody", [0], 0, 0.0)
        with pytest.raises(error, match=r"^episode nobody not found$"):
            buffer.end_episode_nowait("nobody", [0])


def test_a_finished_episode_takes_nothing_more() -> None:
    buffer = Buffer()
    episode_id = add_episode(buffer, 2)
    with pytest.raises(ValueError, match=f"^cannot append to finished episode {episode_id}"):
        add_steps(buffer, episode_id, 1)
    with pytest.raises(ValueError, match=f"^episode {episode_id} is already finished"):
        buffer.end_episode_nowait(episode_id, [3])
    assert len(buffer) == 2
    buffer.check()


@pytest.mark.parametrize("status", ["IN_PROGRESS", "BOGUS"])
def test_a_status_that_ends_nothing_leaves_the_episode_open(status: Any) -> None:
    buffer = Buffer()
    episode_id = buffer.start_episode_nowait("a")
    add_steps(buffer, episode_id, 2)
    with pytest.raises(ValueError, match=f"^status must be one of COMPLETED, TRUNCATED, ABORTED .* got '{status}'$"):
        buffer.end_episode_nowait(episode_id, [2], status)
    assert buffer.get_stats().in_progress == 1
    assert len(buffer) == 1
    buffer.end_episode_nowait(episode_id, [2])
    assert len(buffer) == 2


async def test_the_final_observation_is_required_and_may_be_none() -> None:
    buffer = relive.EpisodeReplayBuffer[None, int]()
    episode_id = await buffer.start_episode("a")
    await buffer.append_observation_action_reward(episode_id, None, 0, 1.0)
    with pytest.raises(TypeError, match="final_observation"):
        await buffer.end_episode(episode_id)  # type: ignore[call-arg]
    await buffer.end_episode(episode_id, None)
    assert (await buffer.sample_n_step(1, 1, 0.9))[0].next_observation is None


async def test_the_awaited_calls_do_what_the_plain_ones_do() -> None:
    buffer = Buffer(seed=1)
    episode_id = await buffer.start_episode("a")
    for t in range(5):
        await buffer.append_observation_action_reward(episode_id, [t], t, float(t + 1))
    await buffer.end_episode(episode_id, [5], "TRUNCATED")
    plain = Buffer(seed=1)
    add_episode(plain, 5, "TRUNCATED")
    for _ in range(20):
        awaited = await buffer.sample_n_step(4, 2, 0.9)
        assert [dataclasses.replace(sample, episode_id="e") for sample in awaited] == [
            dataclasses.replace(sample, episode_id="e") for sample in plain.sample_n_step_nowait(4, 2, 0.9)
        ]


def test_every_start_of_a_completed_episode() -> None:
    buffer = Buffer(seed=0)
    add_episode(buffer, 5)
    samples = by_start(buffer, 3, 0.9)
    rows = [
        (round(s.reward, 9), s.actual_n, s.is_terminal, round(s.next_discount, 9), s.next_observation, s.window_end)
        for s in (samples[t] for t in range(5))
    ]
    assert rows == [
        (5.23, 3, False, 0.729, [3], "HORIZON"),
        (7.94, 3, False, 0.729, [4], "HORIZON"),
        (10.65, 3, True, 0.0, [5], "TERMINATED"),
        (8.5, 2, True, 0.0, [5], "TERMINATED"),
        (5.0, 1, True, 0.0, [5], "TERMINATED"),
    ]


def test_every_start_of_a_truncated_episode() -> None:
    buffer = Buffer(seed=0)
    add_episode(buffer, 5, "TRUNCATED")
    samples = [by_start(buffer, 3, 0.9)[t] for t in range(5)]
    assert [s.is_terminal for s in samples] == [False] * 5
    assert [s.next_discount for s in samples] == pytest.approx([0.729, 0.729, 0.729, 0.81, 0.9])
    assert [s.window_end for s in samples] == ["HORIZON"] * 3 + ["TRUNCATED"] * 2


def test_an_open_episode_is_drawable_where_the_next_observation_is_known() -> None:
    buffer = Buffer(seed=0)
    add_steps(buffer, buffer.start_episode_nowait("a"), 3)
    samples = by_start(buffer, 2, 0.9)
    assert set(samples) == {0, 1}
    assert (samples[0].actual_n, samples[0].reward, samples[0].next_observation) == (2, 2.8, [2])
    assert (samples[1].actual_n, samples[1].reward, samples[1].next_observation) == (1, 2.0, [2])
    assert [samples[t].next_discount for t in range(2)] == pytest.approx([0.81, 0.9])
    assert samples[1].window_end == "OPEN"


def test_a_long_episode_is_drawn_by_its_length_and_starts_are_uniform() -> None:
    buffer = Buffer(seed=5)
    add_episode(buffer, 10)
    long = add_episode(buffer, 30)
    samples = buffer.sample_n_step_nowait(4000, 3, 0.9)
    assert 0.715 <= sum(sample.episode_id == long for sample in samples) / 4000 <= 0.785
    drawn = dict.fromkeys([(False, t) for t in range(10)] + [(True, t) for t in range(30)], 0)
    for sample in samples:
        drawn[sample.episode_id == long, sample.start_step] += 1
    testing.assert_frequencies(list(drawn.values()), [1 / 40] * 40)


def test_open_and_finished_episodes_are_drawn_alike() -> None:
    buffer = Buffer(seed=6)
    drawn = {}
    for steps in [1, 4, 7]:
        finished_id = add_episode(buffer, steps)
        drawn.update(dict.fromkeys([(finished_id, t) for t in range(steps)], 0))
        episode_id = buffer.start_episode_nowait("a")
        add_steps(buffer, episode_id, steps)
        drawn.update(dict.fromkeys([(episode_id, t) for t in range(steps - 1)], 0))
    assert len(buffer) == len(drawn) == 21
    for _ in range(100):
        for sample in buffer.sample_n_step_nowait(100, 1, 0.9):
            drawn[sample.episode_id, sample.start_step] += 1
    testing.assert_frequencies(list(drawn.values()), [1 / 21] * 21)


def test_a_batch_is_in_no_order_of_age() -> None:
    """The order within a batch is random: the first draw is as old as the last, on average."""
    buffer = Buffer(seed=7)
    ages = {add_episode(buffer, 2): age for age in range(10)}
    add_steps(buffer, open_id := buffer.start_episode_nowait("a"), 3)
    ages[open_id] = 10
    first, last = [0] * 11, [0] * 11
    for _ in range(2000):
        samples = buffer.sample_n_step_nowait(8, 1, 0.9)
        first[ages[samples[0].episode_id]] += 1
        last[ages[samples[-1].episode_id]] += 1
    testing.assert_frequencies(first, [1 / 11] * 11)
    testing.assert_frequencies(last, [1 / 11] * 11)


def test_a_batch_is_as_large_as_asked_for() -> None:
    buffer = Buffer()
    add_episode(buffer, 2)
    assert len(buffer.sample_n_step_nowait(10, 1, 0.9)) == 10


def test_nothing_to_draw_raises_without_waiting() -> None:
    buffer = Buffer()
    with pytest.raises(relive.NotReadyError, match="^sample_n_step_nowait found no complete transition: append"):
        buffer.sample_n_step_nowait(1, 1, 0.9)
    add_steps(buffer, buffer.start_episode_nowait("a"), 1)
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="or await sample_n_step$"):
            buffer.sample_n_step_nowait(1, 1, 0.9)


async def test_nothing_to_draw_waits() -> None:
    buffer = Buffer()
    add_steps(buffer, episode_id := buffer.start_episode_nowait("a"), 1)
    waiter = asyncio.create_task(buffer.sample_n_step(3, 1, 0.9))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not waiter.done()
    await buffer.end_episode(episode_id, [1])
    assert [sample.start_step for sample in await waiter] == [0, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 0.9), "batch_size must be at least 1, got 0"),
        ((-3, 1, 0.9), "batch_size must be at least 1, got -3"),
        ((1.5, 1, 0.9), "batch_size must be an integer of at least 1, got 1.5"),
        ((1, 0, 0.9), "n must be at least 1, got 0"),
        ((1, -1, 0.9), "n must be at least 1, got -1"),
        ((1, 1.5, 0.9), "n must be an integer of at least 1, got 1.5"),
        ((1, 1, 0), r"gamma must be in \(0, 1\], got 0"),
        ((1, 1, 1.5), r"gamma must be in \(0, 1\], got 1.5"),
        ((1, 1, math.nan), r"gamma must be in \(0, 1\], got nan"),
        ((1, 1, "0.9"), r"gamma must be a number in \(0, 1\], got '0.9'"),
    ],
)
async def test_arguments_of_a_draw_are_checked_at_once(arguments: Any, message: str) -> None:
    """Also while there is nothing to draw: the awaited call raises instead of waiting for something impossible."""
    buffer = Buffer()
    with pytest.raises(ValueError, match=f"^{message}$"):
        buffer.sample_n_step_nowait(*arguments)
    with pytest.raises(ValueError, match=f"^{message}$"):
        await buffer.sample_n_step(*arguments)


def test_numpy_integers_are_integers() -> None:
    buffer = Buffer()
    add_episode(buffer, 3)
    (sample,) = buffer.sample_n_step_nowait(np.int64(1), np.int32(2), np.float32(0.5))  # type: ignore[arg-type]
    assert type(sample.actual_n) is type(sample.start_step) is int
    assert type(sample.next_discount) is type(sample.gamma) is float


def test_the_episode_that_finished_first_goes_first() -> None:
    buffer = Buffer(max_transitions=10)
    first, second = add_episode(buffer, 5), add_episode(buffer, 5)
    assert len(buffer) == 10
    third = add_episode(buffer, 3)
    assert len(buffer) == 8
    assert stored_ids(buffer) == {second, third}
    stats = buffer.get_stats()
    assert (stats.evicted_episodes, stats.evicted_transitions) == (1, 5)
    with pytest.raises(relive.UnknownEpisodeError):
        buffer.end_episode_nowait(first, [0])
    buffer.check()


def test_finishing_counts_for_eviction_not_starting() -> None:
    buffer = Buffer(max_transitions=6)
    early = buffer.start_episode_nowait("a")
    add_steps(buffer, early, 3)
    late = add_episode(buffer, 3)
    buffer.end_episode_nowait(early, [3])
    add_episode(buffer, 1)
    assert late not in stored_ids(buffer)
    assert early in stored_ids(buffer)


def test_a_limit_on_episodes_evicts_the_oldest_finished_one() -> None:
    buffer = Buffer(max_episodes=3)
    oldest, newer = add_episode(buffer, 2), add_episode(buffer, 2)
    opened = buffer.start_episode_nowait("a")
    fourth = buffer.start_episode_nowait("a")
    assert stored_ids(buffer) == {newer}
    with pytest.raises(relive.UnknownEpisodeError):
        add_steps(buffer, oldest, 1)
    add_steps(buffer, opened, 1)
    add_steps(buffer, fourth, 1)
    assert buffer.get_stats().total_episodes == 3
    buffer.start_episode_nowait("a")
    buffer.start_episode_nowait("a")
    assert (buffer.get_stats().total_episodes, buffer.get_stats().in_progress) == (4, 4)
    buffer.check()


def test_an_open_episode_is_never_evicted_under_its_writer() -> None:
    buffer = Buffer(max_transitions=5)
    episode_id = buffer.start_episode_nowait("a")
    add_steps(buffer, episode_id, 10)
    assert len(buffer) == 9
    assert buffer.get_stats().overflow_transitions == 4
    buffer.end_episode_nowait(episode_id, [10])
    assert len(buffer) == 10
    assert buffer.get_stats().evicted_episodes == 0
    assert buffer.get_stats().overflow_transitions == 5
    following = buffer.start_episode_nowait("a")
    add_steps(buffer, following, 1)
    assert len(buffer) == 10
    add_steps(buffer, following, 1, first=1)
    assert len(buffer) == 1
    assert stored_ids(buffer) == {following}
    stats = buffer.get_stats()
    assert (stats.evicted_episodes, stats.evicted_transitions, stats.overflow_transitions) == (1, 10, 0)


def test_a_clock_that_steps_back_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**9, 0, -1000))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    buffer = Buffer(max_transitions=6)
    ids = [add_episode(buffer, 2) for _ in range(10)]
    assert stored_ids(buffer) == set(ids[-3:])


async def test_closing_wakes_who_waits_and_refuses_who_writes() -> None:
    buffer = Buffer()
    waiters = [asyncio.create_task(buffer.sample_n_step(1, 1, 0.9)) for _ in range(3)]
    await asyncio.sleep(0)
    episode_id = await buffer.start_episode("a")
    buffer.close()
    buffer.close()
    for waiter in waiters:
        with pytest.raises(relive.ClosedError, match="^buffer is closed: only sample_n_step_nowait still works$"):
            await waiter
    for call in (
        buffer.start_episode("a"),
        buffer.append_observation_action_reward(episode_id, [0], 0, 0.0),
        buffer.end_episode(episode_id, [0]),
        buffer.sample_n_step(1, 1, 0.9),
    ):
        with pytest.raises(relive.ClosedError):
            await call
    with pytest.raises(relive.ClosedError):
        buffer.start_episode_nowait("a")
    with pytest.raises(relive.ClosedError):
        buffer.append_observation_action_reward_nowait(episode_id, [0], 0, 0.0)
    with pytest.raises(relive.ClosedError):
        buffer.end_episode_nowait(episode_id, [0])
    buffer.check()


async def test_what_a_closed_buffer_holds_stays_sampleable() -> None:
    buffer = Buffer(limiter=relive.MinSize(100))
    add_episode(buffer, 3)
    buffer.close()
    assert len(buffer.sample_n_step_nowait(5, 1, 0.9)) == 5
    with pytest.raises(relive.ClosedError):
        await buffer.sample_n_step(5, 1, 0.9)
    assert (buffer.get_stats().sampled, buffer.get_stats().completed) == (5, 1)


def test_an_empty_closed_buffer_says_that_it_is_empty() -> None:
    buffer = Buffer()
    buffer.close()
    with pytest.raises(relive.NotReadyError, match="no complete transition: the buffer was closed without one$"):
        buffer.sample_n_step_nowait(1, 1, 0.9)


# Bad input.


@pytest.mark.parametrize("episode_id", [None, 3, ["e"], {}])
def test_an_episode_id_of_any_kind_is_simply_not_found(episode_id: Any) -> None:
    buffer = Buffer()
    with pytest.raises(relive.UnknownEpisodeError, match="not found"):
        buffer.append_observation_action_reward_nowait(episode_id, [0], 0, 0.0)
    with pytest.raises(relive.UnknownEpisodeError, match="not found"):
        buffer.end_episode_nowait(episode_id, [0])


@pytest.mark.parametrize("seed", [-1, "x", 1.5])
def test_what_is_no_seed_is_refused(seed: Any) -> None:
    with pytest.raises(ValueError, match="^seed must be "):
        Buffer(seed=seed)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf, None, "1", 1j, [1.0], np.float32, np.array(np.nan)])
async def test_a_reward_that_is_not_a_finite_real_number_stores_nothing(reward: Any) -> None:
    buffer = Buffer()
    episode_id = buffer.start_episode_nowait("a")
    add_steps(buffer, episode_id, 2)
    before = dataclasses.replace(buffer.get_stats(), open_ages={})
    with pytest.raises(ValueError, match="^reward must be a finite real number, got "):
        buffer.append_observation_action_reward_nowait(episode_id, [2], 2, reward)
    with pytest.raises(ValueError, match="^reward must be a finite real number, got "):
        await buffer.append_observation_action_reward(episode_id, [2], 2, reward)
    assert dataclasses.replace(buffer.get_stats(), open_ages={}) == before
    buffer.check()


@pytest.mark.parametrize("reward", [np.ones(1), np.ones((1, 1)), np.zeros((0,)), copies_test.Tensor([1.0])])
async def test_a_reward_of_another_shape_stores_nothing_and_the_message_says_item(reward: Any) -> None:
    buffer = Buffer()
    episode_id = buffer.start_episode_nowait("a")
    shape = re.escape(str(reward.shape))
    message = rf"^reward must be one number, got shape {shape}: give the \.item\(\) of one element$"
    with pytest.raises(relive.ArgumentError, match=message):
        buffer.append_observation_action_reward_nowait(episode_id, [0], 0, reward)
    with pytest.raises(relive.ArgumentError, match=message):
        await buffer.append_observation_action_reward(episode_id, [0], 0, reward)
    assert buffer.get_stats().appended == 0


@pytest.mark.parametrize(
    "reward", [1, True, np.float32(1), np.int8(1), np.array(1.0), np.bool_(True), copies_test.Tensor(1.0)]
)
def test_any_finite_real_number_is_stored_as_a_float(reward: Any) -> None:
    buffer = Buffer()
    episode_id = buffer.start_episode_nowait("a")
    buffer.append_observation_action_reward_nowait(episode_id, [0], 0, reward)
    buffer.end_episode_nowait(episode_id, [1])
    (stored,) = buffer.sample_n_step_nowait(1, 1, 0.9)[0].rewards_seq
    assert type(stored) is float
    assert stored == 1.0


def test_wrong_arguments_are_named_before_the_limiter_is_asked() -> None:
    buffer = Buffer(limiter=relive.SampleToInsertRatio(1.0, 1, 1.0))
    finished = add_episode(buffer, 2)
    opened = buffer.start_episode_nowait("a")
    for episode_id, reward, message in [
        (opened, "bad", "reward must be"),
        ("nobody", 0.0, "episode nobody not found"),
        (finished, 0.0, "cannot append to finished episode"),
        (opened, 0.0, "held back by"),
    ]:
        with pytest.raises(ValueError, match=message):
            buffer.append_observation_action_reward_nowait(episode_id, [0], 0, reward)  # type: ignore[arg-type]


def test_a_closed_buffer_draws_batches_of_any_size() -> None:
    buffer = Buffer(limiter=relive.SampleToInsertRatio(1.0, 1, 5.0))
    add_episode(buffer, 3)
    buffer.close()
    assert len(buffer.sample_n_step_nowait(100, 1, 0.9)) == 100


@pytest.mark.parametrize("status", [np.array(["COMPLETED"]), np.array(["COMPLETED", "ABORTED"]), ["COMPLETED"], None])
def test_a_status_of_another_type_is_refused(status: Any) -> None:
    buffer = Buffer()
    episode_id = buffer.start_episode_nowait("a")
    with pytest.raises(ValueError, match="^status must be one of COMPLETED, TRUNCATED, ABORTED to end an episode"):
        buffer.end_episode_nowait(episode_id, [0], status)
    buffer.check()
    buffer.end_episode_nowait(episode_id, [0])


@pytest.mark.parametrize("name", ["max_transitions", "max_episodes"])
@pytest.mark.parametrize("limit", [0, -1, 1.5, "10", True])
def test_a_limit_that_is_none_is_refused(name: str, limit: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be .*at least 1, got "):
        Buffer(**{name: limit})


@pytest.mark.parametrize("agent_id", [None, 7, b"a", ["a"]])
async def test_an_agent_id_that_is_no_string_is_refused(agent_id: Any) -> None:
    buffer = Buffer()
    for error in (TypeError, ValueError):
        with pytest.raises(error, match="^agent_id must be a string, got "):
            await buffer.start_episode(agent_id)
    with pytest.raises(TypeError, match="^agent_id must be a string, got "):
        async with buffer.episode(agent_id):
            pass
    assert buffer.get_stats().total_episodes == 0


def test_a_limiter_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^limiter must be a RateLimiter, got 4\.0$"):
        Buffer(limiter=4.0)  # type: ignore[arg-type]


def test_a_limiter_that_asks_for_more_than_fits_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^limiter must ask for at most max_transitions = 10 transitions, got MinSize\(11\)$"
    ):
        Buffer(max_transitions=10, limiter=relive.MinSize(11))
    Buffer(max_transitions=10, limiter=relive.MinSize(10))


def test_everything_is_keyword_only() -> None:
    with pytest.raises(TypeError, match="positional"):
        Buffer(10)  # type: ignore[call-arg]


def test_two_open_event_loops_are_refused() -> None:
    buffer = Buffer()
    with asyncio.Runner() as first:
        episode_id = first.run(buffer.start_episode("a"))
        for call in (
            lambda: buffer.append_observation_action_reward(episode_id, [0], 0, 0.0),
            lambda: buffer.end_episode(episode_id, [0]),
            lambda: buffer.start_episode("a"),
            lambda: buffer.sample_n_step(1, 1, 0.9),
            lambda: buffer.admit(),
            lambda: buffer.next_episodes(1),
        ):
            with pytest.raises(
                relive.EventLoopError, match="^buffer belongs to another event loop: use one buffer in one loop"
            ):
                asyncio.run(call())
        add_episode(buffer, 3)
        assert len(first.run(buffer.sample_n_step(1, 1, 0.9))) == 1
    assert len(buffer.sample_n_step_nowait(1, 1, 0.9)) == 1


def test_the_next_event_loop_takes_a_buffer_over_once_the_first_is_closed() -> None:
    buffer = Buffer(seed=0)

    async def live(agent_id: str) -> int:
        async with buffer.episode(agent_id) as writer:
            await writer.append([0], 0, 1.0)
            await writer.end([1])
        return len(await buffer.sample_n_step(4, 1, 0.9))

    assert [asyncio.run(live(agent_id)) for agent_id in "abc"] == [4, 4, 4]
    assert buffer.get_stats().completed == 3
    buffer.check()


def test_a_refused_constructor_changes_none_of_its_arguments() -> None:
    rng, limiter = np.random.default_rng(0), relive.SampleToInsertRatio(1.0, 1, 4.0)
    admission, groups = relive.Admission(0, 2), relive.Groups(5)
    before = rng.bit_generator.state, dict(vars(limiter)), dict(vars(admission)), dict(vars(groups))
    refused: tuple[dict[str, Any], ...] = (
        {"max_transitions": 0},
        {"max_transitions": 4},
        {"max_episodes": 4},
        {"admission": admission},
        {"admission": 3},
        {"limiter": relive.MinSize(6), "max_transitions": 5},
    )
    for arguments in refused:
        with pytest.raises(relive.ArgumentError):
            Buffer(**{"seed": rng, "limiter": limiter, "groups": groups, **arguments})
    assert (rng.bit_generator.state, vars(limiter), vars(admission), vars(groups)) == before


# Everything else.


def test_the_same_seed_and_calls_give_the_same_draws_whatever_numpy_random_does() -> None:
    buffers = [Buffer(seed=11), Buffer(seed=np.random.default_rng(11))]
    for buffer in buffers:
        for steps in (3, 5):
            add_episode(buffer, steps)
        add_steps(buffer, buffer.start_episode_nowait("a"), 4)
    draws = []
    for buffer in buffers:
        np.random.seed(0)  # noqa: NPY002
        before = str(np.random.get_state())  # noqa: NPY002
        draws.append([(s.observation, s.start_step, s.actual_n) for s in buffer.sample_n_step_nowait(50, 2, 0.9)])
        assert str(np.random.get_state()) == before  # noqa: NPY002
        np.random.random()  # noqa: NPY002
    assert draws[0] == draws[1]
    other = Buffer(seed=12)
    add_episode(other, 8)
    assert [s.start_step for s in other.sample_n_step_nowait(50, 2, 0.9)] != [start for _, start, _ in draws[0]]


def test_statistics_count_what_is_stored_and_what_happened() -> None:
    buffer = Buffer(max_transitions=8)
    add_episode(buffer, 3, "COMPLETED", "a")
    add_episode(buffer, 2, "TRUNCATED", "b")
    add_episode(buffer, 1, "ABORTED", "b")
    opened = buffer.start_episode_nowait("c")
    add_steps(buffer, opened, 2)
    buffer.sample_n_step_nowait(7, 1, 0.9)
    stats = buffer.get_stats()
    assert dataclasses.replace(stats, open_ages={}) == relive.EpisodeBufferStats(
        total_episodes=4,
        in_progress=1,
        completed=1,
        truncated=1,
        aborted=1,
        total_transitions=7,
        num_agents=3,
        evicted_episodes=0,
        evicted_transitions=0,
        overflow_transitions=0,
        open_ages={},
        waiting_steps=1,
        never_drawn=stats.never_drawn,
        policy_version=None,
        policy_lag=None,
        max_policy_lag=None,
        appended=8,
        sampled=7,
        aborted_steps=0,
        cleared_steps=0,
    )
    assert set(stats.open_ages) == {opened}
    add_steps(buffer, opened, 2, first=2)
    stats = buffer.get_stats()
    assert (stats.evicted_episodes, stats.evicted_transitions, stats.num_agents) == (1, 3, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.appended = 0  # type: ignore[misc]


def test_a_stalled_actor_is_seen_by_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    buffer = Buffer()
    stalled = buffer.start_episode_nowait("a")
    now = 150.0
    fresh = buffer.start_episode_nowait("b")
    now = 160.0
    assert list(buffer.get_stats().open_ages.items()) == [(stalled, 60.0), (fresh, 10.0)]
    buffer.end_episode_nowait(stalled, [0])
    assert buffer.get_stats().open_ages == {fresh: 10.0}


def test_clearing_forgets_everything_stored_and_keeps_the_history() -> None:
    buffer = Buffer(max_transitions=4)
    add_episode(buffer, 3)
    add_episode(buffer, 3)
    opened = buffer.start_episode_nowait("a")
    add_steps(buffer, opened, 3)
    buffer.clear()
    buffer.check()
    assert len(buffer) == 0
    stats = buffer.get_stats()
    assert (stats.total_episodes, stats.in_progress, stats.num_agents, stats.open_ages) == (0, 0, 0, {})
    assert (stats.appended, stats.evicted_episodes) == (9, 2)
    with pytest.raises(relive.UnknownEpisodeError):
        add_steps(buffer, opened, 1)
    add_episode(buffer, 2)
    assert len(buffer) == 2


def test_arrays_are_copied_in_and_out() -> None:
    """TRL pull request 6821: the actor reuses its array, the learner normalises its batch in place."""
    buffer = relive.EpisodeReplayBuffer[np.ndarray, np.ndarray]()
    observation, action = np.zeros(2), np.zeros(1)
    episode_id = buffer.start_episode_nowait("a")
    buffer.append_observation_action_reward_nowait(episode_id, observation, action, 0.0)
    observation += 1
    action += 1
    buffer.end_episode_nowait(episode_id, observation)
    observation += 1
    for _ in range(2):
        (sample,) = buffer.sample_n_step_nowait(1, 1, 0.9)
        assert sample.observation.tolist() == [0, 0]
        assert sample.action.tolist() == [0]
        assert sample.next_observation.tolist() == [1, 1]
        sample.observation += 7
        sample.action += 7
        sample.next_observation += 7


@pytest.mark.parametrize("wrap", [lambda tensor: tensor, lambda tensor: {"image": [tensor]}])
def test_tensors_are_copied_in_and_out_and_stored_without_their_gradient(wrap: Any) -> None:
    buffer = Buffer()
    tensor = copies_test.Tensor([0.0], requires_grad=True)
    episode_id = buffer.start_episode_nowait("a")
    buffer.append_observation_action_reward_nowait(episode_id, wrap(tensor), 0, 0.0)
    tensor.add_(1)
    buffer.end_episode_nowait(episode_id, wrap(tensor))
    tensor.add_(1)
    for _ in range(2):
        (sample,) = buffer.sample_n_step_nowait(1, 1, 0.9)
        for value, expected in ((sample.observation, 0.0), (sample.next_observation, 1.0)):
            drawn: Any = value if isinstance(value, copies_test.Tensor) else value["image"][0]  # type: ignore[call-overload]
            assert (drawn.tolist(), drawn.requires_grad) == ([expected], False)
            drawn.add_(7)
    (episode,) = buffer.next_episodes_nowait(1)
    stored: Any = buffer._store[episode_id]
    assert "Tensor([0.0])" in repr(stored.observations[0])
    assert stored.observations[0] is not episode.observations[0]


def test_a_growing_history_is_stored_as_it_was() -> None:
    """An agent built on a language model appends to one list of messages; each step must keep its own."""
    buffer = relive.EpisodeReplayBuffer[list[str], str]()
    history = ["system"]
    episode_id = buffer.start_episode_nowait("a")
    for turn in range(3):
        buffer.append_observation_action_reward_nowait(episode_id, history, f"answer {turn}", 0.0)
        history.append(f"answer {turn}")
    buffer.end_episode_nowait(episode_id, history)
    lengths = {
        s.start_step: (len(s.observation), len(s.next_observation)) for s in buffer.sample_n_step_nowait(99, 1, 1)
    }
    assert lengths == {0: (1, 2), 1: (2, 3), 2: (3, 4)}


def test_a_copy_that_fails_stores_nothing() -> None:
    class Unfriendly(np.ndarray[Any, Any]):
        def copy(self, order: Any = "C") -> Any:
            raise MemoryError("no room")

    buffer = relive.EpisodeReplayBuffer[Any, Any]()
    episode_id = buffer.start_episode_nowait("a")
    with pytest.raises(MemoryError):
        buffer.append_observation_action_reward_nowait(episode_id, [0], np.zeros(1).view(Unfriendly), 0.0)
    with pytest.raises(MemoryError):
        buffer.end_episode_nowait(episode_id, np.zeros(1).view(Unfriendly))
    assert (buffer.get_stats().appended, buffer.get_stats().in_progress) == (0, 1)
    buffer.check()


def test_a_buffer_says_what_it_is() -> None:
    buffer = Buffer(max_transitions=7)
    add_episode(buffer, 2)
    assert repr(buffer) == "<EpisodeReplayBuffer of 2 transitions, max_transitions=7, max_episodes=None>"


def test_statistics_say_which_share_of_the_episodes_was_never_drawn_and_what_became_of_the_steps() -> None:
    buffer = Buffer(max_transitions=10, seed=0)
    empty = buffer.get_stats()
    assert (empty.never_drawn_share, empty.mean_draws, empty.oldest_open_age) == (0.0, 0.0, 0.0)
    for _ in range(4):
        add_episode(buffer, 2)
    drawn = {sample.episode_id for sample in buffer.sample_n_step_nowait(3, 1, 0.9)}
    stats = buffer.get_stats()
    assert (stats.never_drawn, stats.never_drawn_share) == (4 - len(drawn), 1 - len(drawn) / 4)
    assert stats.mean_draws == 3 / 8
    add_steps(buffer, buffer.start_episode_nowait("a"), 5)
    aborted = buffer.start_episode_nowait("a")
    add_steps(buffer, aborted, 1)
    buffer._abort(aborted)
    stats = buffer.get_stats()
    assert stats.waiting_steps == 1
    assert stats.dropped == {"evicted": 2, "aborted": 1, "cleared": 0}
    assert stats.oldest_open_age == max(stats.open_ages.values()) > 0
    buffer.clear()
    assert buffer.get_stats().dropped == {"evicted": 2, "aborted": 1, "cleared": 11}
    assert buffer.get_stats().never_drawn_share == 0.0
