"""Environments with self-describing observations of spaces that have no columns."""

import contextlib
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

import gymnasium
from gymnasium import spaces

import relive
from relive import errors
from relive.integrations import gymnasium as relive_gymnasium
from relive.waiting import fickle_limiter_test

LENGTH = 3


class Texts(gymnasium.Env[Any, Any]):
    """Observes episode and step in one list that it reuses; ends as configured."""

    observation_space: Any = spaces.Sequence(spaces.Discrete(100))
    action_space: Any = spaces.Text(3)

    def __init__(self, end: str = "terminated") -> None:
        self.end, self.episode, self.shown = end, -1, [0, 0]
        self.steps = self.closed = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode += 1
        self.shown[:] = self.episode, 0
        if self.end == "reset":
            raise RuntimeError("no room")
        return self.shown, {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.shown[1] += 1
        has_ended = self.shown[1] == LENGTH
        if has_ended and self.end == "error":
            raise RuntimeError("no step")
        reward = "much" if has_ended and self.end == "reward" else np.float64(self.shown[1])
        return self.shown, reward, has_ended and self.end == "terminated", has_ended and self.end == "truncated", {}

    def close(self) -> None:
        self.closed += 1


def recorded(end: str = "terminated", **settings: Any) -> tuple[Any, Texts, Any]:
    """A recorder, the environment inside, and the buffer."""
    inside, buffer = Texts(end), relive.EpisodeReplayBuffer[Any, Any](seed=0, **settings)
    return relive_gymnasium.EpisodeRecorder(inside, buffer, agent_id="a"), inside, buffer


def episodes(buffer: Any) -> list[tuple[Any, ...]]:
    """What is stored, the finished first."""
    buffer.check()
    return [(each.observations, each.actions, each.rewards, each.status) for each in buffer._store]


def take(env: Any, count: int = LENGTH) -> None:
    for number in range(count):
        env.step(f"a{number}")


ALL = [[0, 0], [0, 1], [0, 2], [0, 3]], ["a0", "a1", "a2"], [1.0, 2.0, 3.0]


@pytest.mark.parametrize(("end", "status"), [("terminated", "COMPLETED"), ("truncated", "TRUNCATED")])
def test_an_episode_is_recorded_to_its_end(end: str, status: str) -> None:
    env, _, buffer = recorded(end)
    observation, _ = env.reset(seed=3)
    take(env)
    observation.append(7)
    assert episodes(buffer) == [(*ALL, status)]
    with pytest.raises(errors.NotReadyError, match="^step needs an episode that is running: call reset first$"):
        env.step("a")
    env.reset()
    assert [each[0] for each in episodes(buffer)] == [ALL[0], []]
    assert {each.agent_id for each in buffer._store} == {"a"}


@pytest.mark.parametrize("call", ["reset", "close"])
def test_an_unfinished_episode_is_truncated(call: str) -> None:
    env, inside, buffer = recorded()
    env.reset()
    take(env, 2)
    getattr(env, call)()
    assert episodes(buffer)[0] == ([[0, 0], [0, 1], [0, 2]], ["a0", "a1"], [1.0, 2.0], "TRUNCATED")
    assert (buffer.get_stats().in_progress, inside.closed) == ((1, 0) if call == "reset" else (0, 1))
    env.close()
    env.close()
    assert buffer.get_stats().in_progress == 0


@pytest.mark.parametrize(("end", "raised"), [("error", RuntimeError), ("reward", errors.ArgumentError)])
def test_a_step_that_fails_aborts_the_episode(end: str, raised: Any) -> None:
    """The steps so far stay, with the last transition."""
    env, inside, buffer = recorded(end)
    env.reset()
    with pytest.raises(raised):
        take(env)
    assert episodes(buffer) == [([[0, 0], [0, 1], [0, 2]], ["a0", "a1"], [1.0, 2.0], "ABORTED")]
    with pytest.raises(errors.NotReadyError, match="call reset first$"):
        env.step("a")
    inside.end = "terminated"
    env.reset()
    take(env)
    assert [each[3] for each in episodes(buffer)] == ["ABORTED", "COMPLETED"]


def test_a_reset_that_fails_leaves_no_episode_open() -> None:
    env, inside, buffer = recorded(admission=relive.Admission(max_lag=0, episodes_per_version=2))
    env.reset()
    inside.end = "reset"
    with pytest.raises(RuntimeError, match="no room"):
        env.reset()
    with pytest.raises(errors.NotReadyError, match="call reset first$"):
        env.step("a")
    assert buffer.get_stats().in_progress == 0
    inside.end = "terminated"
    env.reset()
    assert buffer.get_stats().in_progress == 1


def test_a_limiter_is_asked_once_before_each_step_of_an_episode() -> None:
    """One that would hold the step back a moment later."""
    env, inside, buffer = recorded("", limiter=fickle_limiter_test.Fickle([True, False, True]))
    env.reset()
    for is_held in (False, True, False):
        with pytest.raises(errors.NotReadyError, match="^step held back by") if is_held else contextlib.nullcontext():
            env.step("a")
    assert inside.steps == buffer.appended == 2
    buffer.check()


def test_a_recorder_asks_the_admission_before_a_reset() -> None:
    env, inside, buffer = recorded(admission=relive.Admission(max_lag=0, episodes_per_version=1))
    env.reset()
    env.step("a0")
    with pytest.raises(errors.NotReadyError, match="^admit_nowait held back by Admission"):
        env.reset()
    assert (inside.episode, buffer.get_stats().in_progress) == (0, 1)
    env.step("a1")
    env.step("a2")
    assert episodes(buffer) == [(*ALL, "COMPLETED")]


def test_an_episode_recorder_stores_the_action_taken() -> None:
    class Writing(Texts):
        def step(self, action: Any) -> Any:
            action.clear()
            return super().step(action)

    buffer = relive.EpisodeReplayBuffer[Any, Any]()
    env = relive_gymnasium.EpisodeRecorder(Writing(), buffer, agent_id="a")
    env.reset()
    env.step(["left"])
    assert episodes(buffer)[0][1] == [["left"]]


def test_a_recorded_step_has_its_policy_version() -> None:
    env, inside, buffer = recorded()
    env.reset()
    env.step("a0", policy_version=4)
    env.step("a1")
    with pytest.raises(errors.ArgumentError, match="^policy_version must be at least 4, that of the step before, got"):
        env.step("a2", policy_version=3)
    assert inside.steps == 2
    env.step("a2", policy_version=5)
    assert next(iter(buffer._store)).policy_versions == [4, 4, 5]


def test_a_buffer_may_be_cleared_or_closed_while_recording() -> None:
    env, inside, buffer = recorded()
    env.reset()
    env.step("a0")
    buffer.clear()
    with pytest.raises(errors.NotReadyError, match="call reset first$"):
        env.step("a1")
    env.reset()
    env.step("a0")
    buffer.close()
    for call in (env.reset, lambda: env.step("a")):
        with pytest.raises(errors.ClosedError):
            call()
    assert (inside.steps, inside.episode) == (2, 1)
    env.close()
    assert (inside.closed, buffer.get_stats().aborted) == (1, 1)


@pytest.mark.parametrize("fails", ["reset", "step", "close"])
def test_a_recorder_reports_a_failing_journal(fails: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """P80."""
    env, inside, buffer = recorded("error")
    with relive.Journal(tmp_path / "journal") as journal:
        buffer.attach(journal)
        env.reset()
        take(env, 2)

        def refuse(*records: Any, **options: Any) -> None:
            raise errors.CheckpointError("full")

        monkeypatch.setattr(journal, "_append", refuse)
        if fails == "step":
            with pytest.raises(RuntimeError, match="^no step$"):
                env.step("a2")
        else:
            with pytest.raises(errors.CheckpointError, match="full"):
                getattr(env, fails)()
        assert buffer.get_stats().aborted == 1
        assert inside.closed == (fails == "close")
        buffer.check()
        buffer.detach()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Box(-1, 1, (2,), np.float32)),
        spaces.Sequence(spaces.Discrete(3), stack=True),
        spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
        spaces.OneOf([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]),
        spaces.Dict({"text": spaces.Text(4), "pair": spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(3)))}),
    ],
    ids=lambda space: type(space).__name__,
)
def test_values_of_every_space_are_stored_as_they_were(space: Any) -> None:
    class Sampling(gymnasium.Env[Any, Any]):
        observation_space = action_space = space

        def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
            return space.sample(), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return space.sample(), 1.0, False, False, {}

    buffer = relive.EpisodeReplayBuffer[Any, Any](seed=0)
    env = relive_gymnasium.EpisodeRecorder(Sampling(), buffer, agent_id="a")
    seen, actions = [env.reset()[0]], []
    for _ in range(4):
        actions.append(space.sample())
        seen.append(env.step(actions[-1])[0])
    env.close()
    ((observations, taken, _, status),) = episodes(buffer)
    assert status == "TRUNCATED"
    np.testing.assert_equal(observations, seen)
    np.testing.assert_equal(taken, actions)
    for sample in buffer.sample_n_step_nowait(8, 2, 0.9):
        for value in (sample.observation, sample.action, sample.next_observation):
            assert space.contains(value)


def test_settings_of_an_episode_recorder_are_checked() -> None:
    buffer, wrong = relive.EpisodeReplayBuffer[Any, Any](), object()
    make: Any = relive_gymnasium.EpisodeRecorder
    with pytest.raises(errors.ArgumentTypeError, match="^env must be an instance of Env, got "):
        make(wrong, buffer, agent_id="a")
    with pytest.raises(errors.ArgumentTypeError, match="^buffer must be an instance of EpisodeReplayBuffer, got "):
        make(Texts(), relive.RingReplayBuffer(9), agent_id="a")
    with pytest.raises(errors.ArgumentTypeError, match="^agent_id must be a string, got 3$"):
        make(Texts(), buffer, agent_id=3)
