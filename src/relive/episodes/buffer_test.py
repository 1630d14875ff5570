"""The contract of a buffer of episodes, and bad input."""

import asyncio
import contextlib
import dataclasses
import gc
import math
import re
import time
from typing import Any
import uuid
import weakref

import numpy as np
import pytest

import relive
from relive import testing
from relive.common import copies_test
from relive.episodes import helpers_test

Buffer = helpers_test.Buffer
live = helpers_test.live


def stored_ids(buffer: Buffer) -> set[str]:
    return {sample.episode_id for sample in buffer.sample_n_step_nowait(500, 1, 0.9)}


# The table.


def test_an_episode_id_is_a_fresh_uuid() -> None:
    buffer = Buffer()
    ids = {buffer.start_episode_nowait("a") for _ in range(100)}
    assert len(ids) == 100
    assert all(str(uuid.UUID(episode_id)) == episode_id for episode_id in ids)


# The plain block.


def test_a_plain_block_writes_one_episode_as_plain_calls_do() -> None:
    buffer, twin = Buffer(), Buffer()
    known: Any = {"group_id": None, "policy_version": 3, "metadata": {"prompt": 7}}
    with buffer.episode_nowait("a", **known) as writer:
        writer.append([0], 0, 1.0)
        writer.append([1], 1, 2.0, policy_version=4)
        writer.end([2], status="TRUNCATED")
    episode_id = twin.start_episode_nowait("a", **known)
    twin.append_observation_action_reward_nowait(episode_id, [0], 0, 1.0)
    twin.append_observation_action_reward_nowait(episode_id, [1], 1, 2.0, policy_version=4)
    twin.end_episode_nowait(episode_id, [2], "TRUNCATED")
    parts = ("observations", "actions", "rewards", "status", "version_changes", "policy_version", "metadata")
    (made,), (expected,) = (each.next_episodes_nowait(1) for each in (buffer, twin))
    assert [getattr(made, part) for part in parts] == [getattr(expected, part) for part in parts]
    assert stored_ids(buffer) == {writer.episode_id}


@pytest.mark.parametrize("error", [None, ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("is_ended", [False, True])
def test_a_plain_block_left_before_its_end_is_aborted(error: type[BaseException] | None, is_ended: bool) -> None:
    buffer = Buffer()
    with contextlib.suppress(*filter(None, [error])), buffer.episode_nowait("a") as writer:
        for t in range(3):
            writer.append([t], t, 1.0)
        if is_ended:
            writer.end([3])
        if error is not None:
            raise error
    stats = buffer.get_stats()
    assert (stats.completed, stats.aborted, stats.in_progress) == (int(is_ended), int(not is_ended), 0)
    assert len(buffer) == (3 if is_ended else 2)
    buffer.check()


def test_a_plain_block_is_held_back_by_the_limiter() -> None:
    limiter = relive.SampleToInsertRatio(1.0, min_size=2, error_buffer=2.0)
    buffer = relive.EpisodeReplayBuffer[int, int](limiter=limiter)
    held_back = pytest.raises(relive.NotReadyError, match=r"^append_observation_action_reward_nowait held back by .*")
    with held_back, buffer.episode_nowait("a") as writer:
        for t in range(100):
            writer.append(t, t, 1.0)
    assert buffer.get_stats().aborted == 1


def test_a_plain_block_gives_the_place_of_its_ticket_back() -> None:
    buffer = relive.EpisodeReplayBuffer[int, int](admission=relive.Admission(max_lag=0, episodes_per_version=8))
    buffer.set_policy_version(0)
    with buffer.admit_nowait() as ticket:
        with buffer.episode_nowait("a", ticket=ticket):
            assert ticket.left == 0
        assert ticket.left == 1


def test_a_plain_block_does_not_keep_its_ticket() -> None:
    """One that nobody else refers to is lost, as with `episode`, and its other places are given back."""
    buffer = relive.EpisodeReplayBuffer[int, int](admission=relive.Admission(max_lag=0, episodes_per_version=2))
    buffer.set_policy_version(0)
    tickets = [buffer.admit_nowait(2)]
    lost = weakref.ref(tickets[0])
    with buffer.episode_nowait("a", ticket=tickets.pop()):
        gc.collect()
        assert lost() is None
        assert buffer.admit_nowait(1).left == 1


def test_threads_are_told_to_use_calls_without_a_block() -> None:
    shared: Any = relive.ThreadSafeReplayBuffer(Buffer())
    for name in ("episode", "episode_nowait"):
        with pytest.raises(AttributeError, match=rf"^{name} is not for threads: use start_episode and end_episode$"):
            getattr(shared, name)("a")


def test_unknown_episodes_are_value_errors_and_key_errors() -> None:
    buffer = Buffer()
    for error in (ValueError, KeyError, relive.UnknownEpisodeError):
        with pytest.raises(error, match=r"^episode nobody not found$"):
            buffer.append_observation_action_reward_nowait("nobody", [0], 0, 0.0)
        with pytest.raises(error, match=r"^episode nobody not found$"):
            buffer.end_episode_nowait("nobody", [0])


async def test_the_final_observation_is_required_and_may_be_none() -> None:
    buffer = relive.EpisodeReplayBuffer[None, int]()
    episode_id = await buffer.start_episode("a")
    await buffer.append_observation_action_reward(episode_id, None, 0, 1.0)
    with pytest.raises(TypeError, match="final_observation"):
        await buffer.end_episode(episode_id)  # type: ignore[call-arg]
    await buffer.end_episode(episode_id, None)
    assert (await buffer.sample_n_step(1, 1, 0.9))[0].next_observation is None


def test_a_batch_is_in_no_order_of_age() -> None:
    """The order within a batch is random: the first draw is as old as the last, on average."""
    buffer = Buffer(seed=7)
    ages = {live(buffer, "a", 2): age for age in range(10)}
    open_id = live(buffer, "a", 3, None)
    ages[open_id] = 10
    first, last = [0] * 11, [0] * 11
    for _ in range(2000):
        samples = buffer.sample_n_step_nowait(8, 1, 0.9)
        first[ages[samples[0].episode_id]] += 1
        last[ages[samples[-1].episode_id]] += 1
    testing.assert_frequencies(first, [1 / 11] * 11)
    testing.assert_frequencies(last, [1 / 11] * 11)


def test_a_plain_draw_from_nothing_is_an_error() -> None:
    buffer = Buffer()
    with pytest.raises(relive.NotReadyError, match="^sample_n_step_nowait found no complete transition: append"):
        buffer.sample_n_step_nowait(1, 1, 0.9)
    live(buffer, "a", 1, None)
    for error in (ValueError, RuntimeError):
        with pytest.raises(error, match="or await sample_n_step$"):
            buffer.sample_n_step_nowait(1, 1, 0.9)


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
    live(buffer, "a", 3)
    (sample,) = buffer.sample_n_step_nowait(np.int64(1), np.int32(2), np.float32(0.5))  # type: ignore[arg-type]
    assert type(sample.actual_n) is type(sample.start_step) is int
    assert type(sample.next_discount) is type(sample.gamma) is float


def test_a_clock_that_steps_back_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**9, 0, -1000))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    buffer = Buffer(max_transitions=6)
    ids = [live(buffer, "a", 2) for _ in range(10)]
    assert stored_ids(buffer) == set(ids[-3:])


async def test_a_closed_buffer_refuses_writes() -> None:
    buffer = Buffer()
    episode_id = await buffer.start_episode("a")
    buffer.close()
    calls: list[tuple[str, Any]] = [("start_episode", ("a",)), ("end_episode", (episode_id, [0]))]
    for name, given in [*calls, ("append_observation_action_reward", (episode_id, [0], 0, 0.0))]:
        with pytest.raises(relive.ClosedError, match="^buffer is closed: only sample_n_step_nowait still works$"):
            await getattr(buffer, name)(*given)
        with pytest.raises(relive.ClosedError):
            getattr(buffer, f"{name}_nowait")(*given)
    buffer.check()


async def test_a_closed_buffer_draws_what_it_holds() -> None:
    buffer = Buffer(limiter=relive.MinSize(100))
    live(buffer, "a", 3)
    buffer.close()
    assert len(buffer.sample_n_step_nowait(105, 1, 0.9)) == 105
    with pytest.raises(relive.ClosedError):
        await buffer.sample_n_step(5, 1, 0.9)
    assert (buffer.get_stats().sampled, buffer.get_stats().completed) == (105, 1)


def test_an_empty_closed_buffer_says_that_it_is_empty() -> None:
    buffer = Buffer()
    buffer.close()
    with pytest.raises(relive.NotReadyError, match="no complete transition: the buffer was closed without one$"):
        buffer.sample_n_step_nowait(1, 1, 0.9)


# Bad input.


@pytest.mark.parametrize("episode_id", [None, 3, ["e"], {}])
def test_an_episode_id_of_another_type_is_not_found(episode_id: Any) -> None:
    buffer = Buffer()
    with pytest.raises(relive.UnknownEpisodeError, match="not found"):
        buffer.append_observation_action_reward_nowait(episode_id, [0], 0, 0.0)
    with pytest.raises(relive.UnknownEpisodeError, match="not found"):
        buffer.end_episode_nowait(episode_id, [0])


@pytest.mark.parametrize(
    "reward",
    [
        *(math.nan, math.inf, -math.inf, None, "1", 1j, [1.0], np.float32, np.array(np.nan)),
        *(np.ones(1), np.ones((1, 1)), np.zeros((0,)), copies_test.Tensor([1.0])),
    ],
)
async def test_a_reward_that_is_no_finite_number_stores_nothing(reward: Any) -> None:
    buffer = Buffer()
    episode_id = live(buffer, "a", 2, None)
    before = dataclasses.replace(buffer.get_stats(), open_ages={})
    message = "a finite real number, got "
    if isinstance(getattr(reward, "shape", None), tuple) and reward.shape:
        message = rf"one number, got shape {re.escape(str(reward.shape))}: give the \.item\(\) of one element$"
    with pytest.raises(relive.ArgumentError, match=f"^reward must be {message}"):
        buffer.append_observation_action_reward_nowait(episode_id, [2], 2, reward)
    with pytest.raises(relive.ArgumentError, match=f"^reward must be {message}"):
        await buffer.append_observation_action_reward(episode_id, [2], 2, reward)
    assert dataclasses.replace(buffer.get_stats(), open_ages={}) == before
    buffer.check()


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
    finished = live(buffer, "a", 2)
    opened = buffer.start_episode_nowait("a")
    for episode_id, reward, message in [
        (opened, "bad", "reward must be"),
        ("nobody", 0.0, "episode nobody not found"),
        (finished, 0.0, "cannot append to finished episode"),
        (opened, 0.0, "held back by"),
    ]:
        with pytest.raises(ValueError, match=message):
            buffer.append_observation_action_reward_nowait(episode_id, [0], 0, reward)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(({"seed": seed}, "seed must be ") for seed in (-1, "x", 1.5)),
        *(
            ({"max_transitions": limit}, "max_transitions must be .*at least 1, got ")
            for limit in (0, -1, 1.5, "10", True)
        ),
        *(({"max_episodes": limit}, "max_episodes must be .*at least 1, got ") for limit in (0, -1, 1.5, "10", True)),
        ({"limiter": 4.0}, r"limiter must be a RateLimiter, got 4\.0$"),
        (
            {"max_transitions": 10, "limiter": relive.MinSize(11)},
            r"limiter must ask for at most max_transitions = 10 transitions, got MinSize\(11\)$",
        ),
    ],
)
def test_settings_of_an_episode_buffer_are_checked(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(relive.ArgumentError, match=f"^{message}"):
        Buffer(**settings)
    Buffer(max_transitions=10, limiter=relive.MinSize(10))


def test_a_buffer_in_two_open_event_loops_is_refused() -> None:
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
        live(buffer, "a", 3)
        assert len(first.run(buffer.sample_n_step(1, 1, 0.9))) == 1
    assert len(buffer.sample_n_step_nowait(1, 1, 0.9)) == 1


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


def test_arrays_and_lists_are_copied_in_and_out() -> None:
    """TRL pull request 6821: the actor reuses its array, the learner normalises its batch in place."""
    buffer = relive.EpisodeReplayBuffer[Any, np.ndarray]()
    observation, history, action = np.zeros(2), ["system"], np.zeros(1)
    episode_id = buffer.start_episode_nowait("a")
    buffer.append_observation_action_reward_nowait(episode_id, (observation, history), action, 0.0)
    observation += 1
    action += 1
    history.append("answer")
    buffer.end_episode_nowait(episode_id, (observation, history))
    observation += 1
    history.append("answer")
    for _ in range(2):
        (sample,) = buffer.sample_n_step_nowait(1, 1, 0.9)
        assert (sample.observation[0].tolist(), sample.observation[1]) == ([0, 0], ["system"])
        assert sample.action.tolist() == [0]
        assert (sample.next_observation[0].tolist(), sample.next_observation[1]) == ([1, 1], ["system", "answer"])
        for part in (sample.observation, sample.next_observation):
            part[0][:] = 7
            part[1].clear()
        sample.action += 7


def test_an_episode_buffer_has_a_repr() -> None:
    buffer = Buffer(max_transitions=7)
    live(buffer, "a", 2)
    assert repr(buffer) == "<EpisodeReplayBuffer of 2 transitions, max_transitions=7, max_episodes=None>"


def test_statistics_have_means_and_dropped_steps() -> None:
    buffer = Buffer(max_transitions=10, seed=0)
    empty = buffer.get_stats()
    assert (empty.mean_draws, empty.oldest_open_age) == (0.0, 0.0)
    for _ in range(4):
        live(buffer, "a", 2)
    buffer.sample_n_step_nowait(3, 1, 0.9)
    assert buffer.get_stats().mean_draws == 3 / 8
    live(buffer, "a", 5, None)
    aborted = live(buffer, "a", 1, None)
    buffer.abort_episode_nowait(aborted)
    stats = buffer.get_stats()
    with pytest.raises(dataclasses.FrozenInstanceError):
        stats.appended = 0  # type: ignore[misc]
    assert stats.waiting_steps == 1
    assert stats.dropped == {"evicted": 2, "aborted": 1, "cleared": 0}
    assert stats.oldest_open_age == max(stats.open_ages.values()) > 0
    buffer.clear()
    assert buffer.get_stats().dropped == {"evicted": 2, "aborted": 1, "cleared": 11}
