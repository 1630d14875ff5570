"""Misuse that no single call shows: splices and stored resets are counted, and warned about once."""

import itertools
import pathlib
from typing import Any
from unittest import mock
import warnings

import numpy as np
import pytest

import relive
from relive import errors
from relive.buffers import misuse


def environments(count: int, *, stores_resets: bool, ends: str = "terminated", reward: float = 1.0) -> Any:
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
                "reward": np.full(count, 0.0 if is_reset else reward),
                "next_observation": following,
                ends: flags,
            }
        observation = following


def caught(call: Any) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return found


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
@pytest.mark.parametrize("spelling", ["arrays", "lists", "streams", "add"])
@pytest.mark.parametrize("count", [1, 3])
def test_reset_steps_are_counted_and_warned_of_once(count: int, spelling: str, ends: str) -> None:
    buffer = relive.RingReplayBuffer(1000, streams=count)
    rounds = 0

    def fill() -> None:
        nonlocal rounds
        for step in environments(count, stores_resets=True, ends=ends):
            rounds += 1
            if spelling == "add":
                for stream in range(count):
                    buffer.add(**{name: value[stream] for name, value in step.items()}, stream=stream)
                continue
            given = step if spelling == "arrays" else {name: value.tolist() for name, value in step.items()}
            buffer.extend(**given, streams=np.arange(count) if spelling == "streams" else None)

    (warning,) = caught(fill)
    assert warning.category is errors.MisuseWarning
    assert warning.filename == __file__
    assert "VectorRecorder" in str(warning.message)
    stats = buffer.get_stats()
    assert (stats.suspected_resets, stats.spliced_episodes) == (33 * count, 0)
    assert stats.continued_truncations == (33 * count if ends == "truncated" else 0)
    assert len(buffer) == rounds * count
    assert relive.RingReplayBuffer.from_state(buffer.state_dict()).get_stats().suspected_resets == 33 * count


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
            buffer.extend([0.0], [0], [0.5], [1.0], terminated=[True])
            buffer.extend([1.0], [0], [0.0], [0.0])

    assert not caught(lambda: reset(9))
    assert len(caught(lambda: reset(1))) == 1


def test_resets_of_less_than_half_of_the_ends_do_not_warn() -> None:
    buffer = relive.RingReplayBuffer(1000)

    def mixed() -> None:
        for number in range(30):
            buffer.extend([0.0], [0], [0.5], [1.0], terminated=[True])
            if number % 3:
                buffer.extend([1.0], [0], [0.0], [0.0])
                buffer.extend([0.0], [0], [0.5], [5.0], truncated=[True])

    assert not caught(mixed)
    assert buffer.get_stats().suspected_resets == 20


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


# Right programs, none of which is warned of.


def loop(buffer: Any, reset: Any, step: Any, *, num_steps: int = 600, most: int = 20, **told: Any) -> None:
    """Run the usual loop: an episode ends after `most` steps, as truncated unless `step` says that it terminated."""
    rng = np.random.default_rng(0)
    observation, t = reset(rng), 0
    for _ in range(num_steps):
        following, reward, terminated = step(observation, rng)
        truncated, t = t + 1 == most and not terminated, t + 1
        buffer.add(observation, 0, reward, following, terminated=terminated, truncated=truncated)
        observation = following
        if terminated or truncated:
            observation, t = reset(rng), 0


def walk(observation: Any, rng: np.random.Generator) -> Any:
    return observation + rng.normal(size=2), float(rng.normal()), bool(rng.random() < 0.05)


def anywhere(rng: np.random.Generator) -> Any:
    return rng.normal(size=2)


def continuing(buffer: Any, *, reward: float) -> None:
    """A task that goes on after each truncation."""
    for t in range(600):
        buffer.add([t, 0.0], 0, reward * (t % 3 > 0), [t + 1, 0.0], truncated=t % 5 == 4)


def bandit(buffer: Any, *, has_context: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        context = rng.integers(3, size=2) if has_context else np.zeros(2)
        buffer.add(context, 0, 1.0, context, terminated=True)


def cleanrl(buffer: Any, *, reward: float) -> None:
    """The reset observation stands behind a terminated step, where nothing reads it."""
    rng = np.random.default_rng(0)
    observation = anywhere(rng)
    for t in range(600):
        following, terminated = observation + 1.0, t % 7 == 6
        if terminated:
            following = anywhere(rng)
        buffer.add(observation, 0, reward * (rng.random() < 0.8), following, terminated=terminated)
        observation = following


def in_random_order(buffer: Any) -> None:
    for t in np.random.default_rng(0).permutation(90):
        buffer.add([t, 0.0], 0, 1.0, [t + 1, 0.0])


def lazily(buffer: Any) -> None:
    """Without next observations, and with an end of the episode wherever the environment is reset."""
    for t in range(600):
        if t % 20 == 19:
            buffer.end_episode()
        buffer.add([t, t % 20], 0, 1.0)


def in_runs(buffer: Any, call: str, first: Any, **flags: bool) -> None:
    """Runs of two steps, the first of which has no reward."""
    for number in range(200):
        start = float(first(number))
        getattr(buffer, call)([start, start + 10, start + 10], [0, 0], [0.0, 1.0], **flags)


def without_final_observations(buffer: Any) -> None:
    buffer.extend([0.0], [0], [0.0], [1.0], terminated=[True])
    for _ in range(30):
        buffer.extend([1.0], [0], [0.0], terminated=[True])
        buffer.extend([1.0], [0], [0.0])


PROGRAMS: dict[str, Any] = {
    "runs from the last end": lambda buffer: in_runs(buffer, "add_steps", lambda n: 10 * n, terminated=True),
    "episodes from there": lambda buffer: in_runs(buffer, "add_episode", lambda n: 10 * n, terminated=True),
    "runs from anywhere, half spliced": lambda buffer: in_runs(buffer, "add_steps", lambda n: 7 * n),
    "long runs": lambda buffer: [buffer.add_steps(range(99 * n, 99 * n + 21), [0] * 20, [0.0] * 20) for n in range(30)],
    "a fifth of the steps spliced": lambda buffer: forgetful(buffer, 5),
    "episodes of one step": lambda buffer: [
        buffer.add([n, 0.0], 0, float(n % 3 == 0), [n + 1, 0.0], terminated=True) for n in range(300)
    ],
    "ends without final observations": without_final_observations,
    "episodes": lambda buffer: loop(buffer, anywhere, walk),
    "time limits alone": lambda buffer: loop(buffer, anywhere, lambda o, rng: (*walk(o, rng)[:2], False)),
    "sparse rewards": lambda buffer: loop(buffer, anywhere, lambda o, rng: (o + 1, float(rng.random() < 0.02), False)),
    "no rewards": lambda buffer: loop(buffer, anywhere, lambda o, rng: (o + 1, 0.0, False)),
    "the same start": lambda buffer: loop(buffer, lambda rng: np.zeros(2), lambda o, rng: (o + 1, 1.0, False)),
    "a constant observation": lambda buffer: loop(buffer, lambda rng: np.zeros(2), lambda o, rng: (o, 1.0, False)),
    "a continuing task": lambda buffer: continuing(buffer, reward=1.0),
    "a continuing task without rewards": lambda buffer: continuing(buffer, reward=0.0),
    "a bandit": lambda buffer: bandit(buffer, has_context=False),
    "a contextual bandit": lambda buffer: bandit(buffer, has_context=True),
    "a loop in the style of CleanRL": lambda buffer: cleanrl(buffer, reward=1.0),
    "the same without rewards": lambda buffer: cleanrl(buffer, reward=0.0),
    "transitions in random order": in_random_order,
    "steps without next observations": lazily,
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("make", [relive.RingReplayBuffer, relive.PrioritizedReplayBuffer])
def test_a_right_program_is_not_warned_of(make: Any, name: str) -> None:
    buffer = make(500, seed=0)
    assert not caught(lambda: PROGRAMS[name](buffer))
    buffer.check()


def test_steps_that_go_on_from_a_truncation_are_counted() -> None:
    buffer = relive.RingReplayBuffer(500)
    continuing(buffer, reward=1.0)
    assert buffer.get_stats().continued_truncations == 119


# Flags that were forgotten.


def forgetful(buffer: Any, length: int, count: int = 300, stream: int = 0) -> None:
    """Reset an environment every `length` steps, and do not tell the buffer."""
    for t in range(count):
        start = 100.0 * (t // length)
        buffer.add(start + t % length, 0, 1.0, start + t % length + 1, stream=stream)


@pytest.mark.parametrize("length", [6, 20])
def test_flags_that_were_forgotten_are_warned_of_once(length: int) -> None:
    buffer = relive.RingReplayBuffer(1000)
    assert not caught(lambda: forgetful(buffer, length, 10 * length))
    (warning,) = caught(lambda: forgetful(buffer, length, 10 * length))
    assert (warning.category, warning.filename) == (errors.MisuseWarning, __file__)
    assert "terminated= and truncated=" in str(warning.message)
    assert str(warning.message).startswith(f"10 of {10 * length + 1} steps did not begin")


@pytest.mark.parametrize("before", ["add_steps", "load"])
def test_steps_in_random_order_forget_no_flags_later(before: str, tmp_path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(1000, seed=0)
    buffer.add_steps(np.zeros((501, 2)), [0] * 500, [1.0] * 500)
    if before == "load":
        buffer.save(tmp_path / "saved")
        buffer = relive.RingReplayBuffer.load(tmp_path / "saved")
    in_random_order(buffer)


@pytest.mark.parametrize("end", ["terminated", "truncated", "end_episode", "add_episode", "another life"])
def test_who_reports_an_end_has_not_forgotten_the_flags(end: str) -> None:
    buffer = relive.RingReplayBuffer(1000, streams=2)
    if end == "end_episode":
        buffer.add(0.0, 0, 0.0, 1.0, stream=1)
        buffer.end_episode(stream=1)
    elif end == "add_episode":
        buffer.add_episode([0.0, 1.0], [0], [0.0], terminated=False, stream=1)
    else:
        buffer.add(0.0, 0, 0.0, 1.0, stream=1, **{"terminated" if end == "another life" else end: True})
    if end == "another life":
        buffer = relive.RingReplayBuffer.from_state(buffer.state_dict())
    assert not caught(lambda: forgetful(buffer, 20))


# Stacks of stacks.


def frames(kind: str, t: int) -> Any:
    """Return an observation of three frames, or what looks alike."""
    if kind == "first axis":
        return np.array([[s, s] for s in (t - 2, t - 1, t)], np.int16)
    if kind == "last axis":
        return frames("first axis", t).T
    if kind == "a constant":
        return np.ones((3, 2), np.int16)
    if kind == "a walking one-hot":
        return np.roll(np.eye(12, dtype=np.int16)[:, :2], -t, axis=0)
    if kind == "lag features":
        return np.array([t - 2, t - 1, t], np.int16)
    if kind == "one frame":
        return np.full((1, 2), t, np.int16)
    return np.full((3, 2), t, np.int16)


@pytest.mark.parametrize("way", ["add", "extend", "add_steps", "add_episode"])
@pytest.mark.parametrize("kind", ["first axis", "last axis"])
def test_a_stack_of_stacks_is_warned_of_once(kind: str, way: str) -> None:
    buffer = relive.RingReplayBuffer(1000, frame_stack=3, streams=2 if way == "extend" else 1)

    def play() -> None:
        for start in range(5, 40, 5):
            seen = [frames(kind, t) for t in range(start, start + 6)]
            if way == "add":
                for now, then in itertools.pairwise(seen):
                    buffer.add(now, 0, 1.0, then)
            elif way == "extend":
                for now, then in itertools.pairwise(seen):
                    buffer.extend([now, now], [0, 0], [1.0, 1.0], [then, then])
            elif way == "add_steps":
                buffer.add_steps(seen, [0] * 5, [1.0] * 5)
            else:
                buffer.add_episode(seen, [0] * 5, [1.0] * 5, terminated=True)

    (warning,) = caught(play)
    assert (warning.category, warning.filename) == (errors.MisuseWarning, __file__)
    assert "stacks of frames already" in str(warning.message)


@pytest.mark.parametrize("kind", ["a constant", "a walking one-hot", "lag features", "one frame", "frames"])
def test_a_stack_of_frames_is_not_warned_of(kind: str) -> None:
    buffer = relive.RingReplayBuffer(1000, frame_stack=3)
    assert not caught(lambda: [buffer.add(frames(kind, t), 0, 1.0, frames(kind, t + 1)) for t in range(60)])


def test_stacks_are_looked_for_until_200_observations_were_none() -> None:
    """An image with three channels may be a stack, too, and takes longer to compare than to store."""
    buffer = relive.RingReplayBuffer(1000, frame_stack=3)
    with mock.patch.object(misuse, "_are_shifted", wraps=misuse._are_shifted) as look:
        for t in range(300):
            buffer.add(np.full((20, 20, 3), t % 9), 0, 1.0, np.full((20, 20, 3), (t + 1) % 9))
    assert look.call_count == 201  # The first has none before it.


def test_an_episode_that_has_no_rows_is_not_resumed() -> None:
    """Its newest row went while it was open; then it was ended."""
    buffer = relive.RingReplayBuffer(2, streams=2, seed=0)
    buffer.add(0, 0, 1.0, 1, stream=0)
    for t in range(2):
        buffer.add(t, 0, 1.0, t + 1, stream=1)
    assert buffer.end_episode(0)
    buffer.add(1, 0, 1.0, 2, stream=0)
    assert buffer.get_stats().continued_truncations == 0
