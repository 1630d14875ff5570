"""Misuse that no single call shows: splices and stored resets are counted, and warned about once."""

from typing import Any
import warnings

import numpy as np
import pytest

import relive
from relive import errors
from relive.buffers import misuse


def environments(count: int, *, stores_resets: bool, ends: str = "terminated") -> Any:
    """Yield rounds of vector environments with episodes of 5 steps that reset in a separate step (NEXT_STEP)."""
    observation = np.zeros((count, 2))
    for t in range(200):
        number, step = divmod(t, 6)
        is_reset = step == 5
        following = observation + 1 if not is_reset else np.full((count, 2), 1000.0 * (number + 1))
        if not is_reset or stores_resets:
            flags = np.full(count, step == 4)
            yield {
                "observation": observation,
                "action": np.zeros(count, int),
                "reward": np.zeros(count),
                "next_observation": following,
                ends: flags,
            }
        observation = following


def caught(call: Any) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return found


@pytest.mark.parametrize("spelling", ["arrays", "lists", "streams"])
@pytest.mark.parametrize("count", [1, 3])
def test_reset_steps_are_counted_and_warned_of_once(count: int, spelling: str) -> None:
    buffer = relive.RingReplayBuffer(1000, streams=count)
    rounds = 0

    def fill() -> None:
        nonlocal rounds
        for step in environments(count, stores_resets=True):
            given = step if spelling == "arrays" else {name: value.tolist() for name, value in step.items()}
            buffer.extend(**given, streams=np.arange(count) if spelling == "streams" else None)
            rounds += 1

    (warning,) = caught(fill)
    assert warning.category is errors.MisuseWarning
    assert warning.filename == __file__
    assert "VectorRecorder" in str(warning.message)
    stats = buffer.get_stats()
    assert (stats.suspected_resets, stats.spliced_episodes) == (33 * count, 0)
    assert len(buffer) == rounds * count
    assert relive.RingReplayBuffer.from_state(buffer.state_dict()).get_stats().suspected_resets == 33 * count


@pytest.mark.parametrize(
    ("stores_resets", "ends"), [(False, "terminated"), (True, "truncated")], ids=["without resets", "truncations"]
)
def test_right_steps_are_not_warned_of(stores_resets: bool, ends: str) -> None:
    """A task that goes on after a truncation begins with the last observation."""
    buffer = relive.RingReplayBuffer(1000, streams=2)
    assert not caught(
        lambda: [buffer.extend(**step) for step in environments(2, stores_resets=stores_resets, ends=ends)]
    )
    assert buffer.get_stats().suspected_resets == 0


def test_a_bandit_is_not_warned_of_resets() -> None:
    buffer = relive.RingReplayBuffer(1000, streams=2)
    same = np.zeros((2, 1))
    step = same, np.zeros(2, int), np.zeros(2), same
    assert not caught(lambda: [buffer.extend(*step, terminated=[True, True]) for _ in range(100)])


@pytest.mark.parametrize("way", ["add", "add_steps", "add_episode"])
def test_calls_other_than_extend_do_not_warn_of_resets(way: str) -> None:
    buffer = relive.RingReplayBuffer(1000)

    def fill() -> None:
        for number in range(60):
            final, first = 10.0 * number, 10.0 * (number + 1)
            if way == "add":
                buffer.add(final, 0, 0.0, first)
                buffer.add(first, 0, 0.0, first, terminated=True)
            elif way == "add_steps":
                buffer.add_steps([final, first, first], [0, 0], [0.0, 0.0], terminated=True)
            else:
                buffer.add_episode([final, first, first], [0, 0], [0.0, 0.0], terminated=True)

    assert not caught(fill)
    assert buffer.get_stats().suspected_resets == 0


@pytest.mark.parametrize("between", ["add", "add_episode", "clear"])
def test_steps_in_between_reset_the_watch(between: str) -> None:
    """The final observation counts only for the step right after it."""
    buffer = relive.RingReplayBuffer(100)
    buffer.extend([0.0], [0], [0.0], [1.0], terminated=[True])
    if between == "add":
        buffer.add(5.0, 0, 0.0, 6.0, terminated=True)
    elif between == "add_episode":
        buffer.add_episode([5.0, 6.0], [0], [0.0], terminated=True)
    else:
        buffer.clear()
    buffer.extend([1.0], [0], [0.0], [2.0])
    assert buffer.get_stats().suspected_resets == 0


def test_a_final_observation_waits_for_its_stream() -> None:
    buffer = relive.RingReplayBuffer(100, streams=3)
    buffer.extend([0.0, 1.0, 2.0], [0] * 3, [0.0] * 3, [5.0, 6.0, 7.0], terminated=[True, False, True])
    buffer.extend([7.0], [0], [0.0], [7.0], streams=[2])
    assert buffer.get_stats().suspected_resets == 0
    buffer.extend([6.0, 5.0], [0] * 2, [0.0] * 2, [0.0, 1.0], streams=[1, 0])
    assert buffer.get_stats().suspected_resets == 1


def test_resets_are_looked_for_while_agents_come() -> None:
    buffer = relive.JointReplayBuffer(100, agents=["a", "b"], streams=2)
    zeros, ones = np.zeros(2), np.ones(2)
    for agents in ("a", "ab", "ab"):
        now, then = dict.fromkeys(agents, zeros), dict.fromkeys(agents, ones)
        buffer.extend(now, now, now, then, terminations=dict.fromkeys(agents, ones))
    assert (len(buffer), buffer.get_stats().suspected_resets) == (6, 0)
    buffer.check()


def test_nine_resets_do_not_warn() -> None:
    buffer = relive.RingReplayBuffer(1000)

    def reset(times: int) -> None:
        for _ in range(times):
            buffer.extend([0.0], [0], [0.0], [1.0], terminated=[True])
            buffer.extend([1.0], [0], [0.0], [0.0])

    assert not caught(lambda: reset(9))
    assert len(caught(lambda: reset(1))) == 1


def test_resets_of_less_than_half_of_the_ends_do_not_warn() -> None:
    buffer = relive.RingReplayBuffer(1000)

    def mixed() -> None:
        for number in range(30):
            buffer.extend([0.0], [0], [0.0], [1.0], terminated=[True])
            if number % 3 == 0:
                buffer.extend([1.0], [0], [0.0], [0.0])
                buffer.extend([0.0], [0], [0.0], [5.0], truncated=[True])

    assert not caught(mixed)
    assert buffer.get_stats().suspected_resets == 10


def test_a_final_observation_that_is_not_known_is_not_compared() -> None:
    buffer = relive.RingReplayBuffer(1000)

    def lazy() -> None:
        buffer.extend([0.0], [0], [0.0], [1.0], terminated=[True])
        for _ in range(30):
            buffer.extend([1.0], [0], [0.0], terminated=[True])
            buffer.extend([1.0], [0], [0.0])

    assert not caught(lazy)


@pytest.mark.parametrize("way", ["add", "extend", "add_steps"])
def test_shuffled_steps_are_warned_of_once(way: str) -> None:
    buffer = relive.RingReplayBuffer(1000)

    def add(numbers: range) -> None:
        for first in numbers:
            if way == "add":
                buffer.add(10 * first, 0, 0.0, 10 * first + 1)
            elif way == "extend":
                buffer.extend([10 * first], [0], [0.0], [10 * first + 1])
            else:
                buffer.add_steps([10 * first, 10 * first + 1], [0], [0.0])

    assert not caught(lambda: add(range(101)))
    (warning,) = caught(lambda: add(range(101, 400)))
    assert (warning.category, warning.filename) == (errors.MisuseWarning, __file__)
    assert str(warning.message).startswith("more than half of the last 200 steps did not begin where")
    assert buffer.get_stats().spliced_episodes == 399


@pytest.mark.parametrize(("streams", "length"), [(1, 2), (1, 3), (1, 25), (3, 3), (3, 25)])
def test_steps_that_are_stored_twice_are_warned_of_once(streams: int, length: int) -> None:
    buffer = relive.RingReplayBuffer(3000, streams=streams, n_step=3)

    def play(numbers: range, times: int = 2) -> None:
        for number in numbers:
            start = 10_000.0 * np.arange(streams) + number + number // length
            is_end = np.full(streams, number % length == length - 1)
            for _ in range(times):
                if streams == 1:
                    buffer.add(start[0], 0, 0.5, start[0] + 1, terminated=bool(is_end[0]))
                else:
                    buffer.extend(start, np.zeros(streams), np.ones(streams), start + 1, terminated=is_end)

    assert not caught(lambda: play(range(50), times=1))
    warned = caught(lambda: play(range(50, 350)))
    if length == 2:  # A step that ends an episode, stored twice, is as good as two episodes: this is just a quarter.
        assert not warned
    else:
        (warning,) = warned
        assert (warning.category, warning.filename) == (errors.MisuseWarning, __file__)
        assert str(warning.message) == (
            "more than a quarter of the last 200 steps equal the one before them: each step is stored twice, as by a "
            "recorder and by add, so leave one of them out"
        )
    assert not caught(lambda: play(range(350, 650)))


@pytest.mark.parametrize("part", range(4))
def test_spliced_steps_that_differ_in_a_part_are_no_repetition(part: int) -> None:
    buffer = relive.RingReplayBuffer(3000)

    def play() -> None:
        for number in range(400):
            step = [10.0 * number, 0, 0.0, 10.0 * number + 1]
            buffer.add_steps([step[0], step[3], step[3] + 5], [0, 0], [0.0, 0.0])
            buffer.add(step[3] + 5, 0, 0.0, step[3] + 6)
            observation, action, reward, following = np.eye(4)[part] * 2 + [step[3] + 5, 0, 0.0, step[3] + 6]
            buffer.add(observation, int(action), reward, following)

    assert not caught(play)


def test_a_step_that_is_stored_over_and_over_is_not_stored_twice() -> None:
    buffer = relive.RingReplayBuffer(3000)
    assert not caught(lambda: [buffer.add(0.0, 0, 0.0, 1.0) for _ in range(101)])
    (warning,) = caught(lambda: buffer.add(0.0, 0, 0.0, 1.0))
    assert str(warning.message).startswith("more than half of the last 200 steps")


def test_steps_that_are_gone_or_incomplete_do_not_repeat() -> None:
    alone, unknown = relive.RingReplayBuffer(1), relive.RingReplayBuffer(3000)

    def play() -> None:
        for number in range(90):
            alone.add(0.0, 0, 0.0, 1.0)
            unknown.add(10.0 * number, 0, 0.0, 10.0 * number + 1)
            unknown.add(10.0 * number, 0, 0.0)
            unknown.add(10.0 * number + 1, 0, 0.0, terminated=True)

    assert not caught(play)
    assert (alone.get_stats().spliced_episodes, unknown.get_stats().spliced_episodes) == (89, 90)


def test_half_of_the_steps_may_be_spliced() -> None:
    buffer = relive.RingReplayBuffer(2000)
    buffer.add(-1.0, 0, 0.0, terminated=True)

    def fill() -> None:
        for number in range(500):
            buffer.add_steps([10.0 * number, 10.0 * number + 1, 10.0 * number + 2], [0, 0], [0.0, 0.0])

    assert not caught(fill)


def test_as_an_error_the_warning_comes_after_the_step_is_stored() -> None:
    buffer = relive.RingReplayBuffer(1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.MisuseWarning)
        with pytest.raises(errors.MisuseWarning):
            for number in range(300):
                buffer.add(10.0 * number, 0, 0.0, 10.0 * number + 1)
    assert len(buffer) == buffer.num_eligible == 102
    buffer.check()


def test_as_an_error_the_warning_comes_after_all_steps() -> None:
    buffer = relive.RingReplayBuffer(1000)
    buffer.add(-1, 0, 0.0, terminated=True)
    buffer.add_steps(range(101), [0] * 100, np.zeros(100))
    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.MisuseWarning)
        for number in range(100):
            buffer.add(-10 * number, 0, 0.0, -10 * number - 1)
        with pytest.raises(errors.MisuseWarning):
            buffer.add_steps([5000, 5001, 5002, 5003], [0] * 3, np.zeros(3))
    assert len(buffer) == 204


def test_the_cause_of_splices_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the newest steps, and later steps must not depend on it."""
    looked, original = [], misuse._cause_of_splices

    def look(store: Any) -> str:
        looked.append(store)
        return original(store)

    monkeypatch.setattr(misuse, "_cause_of_splices", look)
    buffer = relive.RingReplayBuffer(1000)
    assert len(caught(lambda: [buffer.add(float(t), 0, 0.0, t + 0.5) for t in range(500)])) == 1
    assert len(looked) == 1
    assert buffer.get_stats().spliced_episodes == 499
