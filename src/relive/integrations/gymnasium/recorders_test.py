"""Environments with self-describing observations, so that any mix-up of a recorder shows."""

from collections.abc import Callable
import functools
import re
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

import gymnasium
from gymnasium import spaces
from gymnasium import vector
from gymnasium.wrappers import vector as vector_wrappers

import relive
from relive import errors
from relive.buffers import call_counts_test
from relive.integrations import gymnasium as relive_gymnasium
from relive.integrations.gymnasium import spaces as space_trees
from relive.waiting import fickle_limiter_test

BOX = spaces.Box(-(2**31), 2**31 - 1, (3,), np.int64)


def length_of(number: int, episode: int) -> int:
    """How many steps an episode of an environment has."""
    return 1 + (3 * number + 2 * episode) % 5


def terminates(number: int, episode: int) -> bool:
    """Whether it terminates; it is truncated otherwise."""
    return (number + episode) % 3 != 0


def reward_of(episode: int, step: int) -> float:
    """Never 0."""
    return float(10 * episode + step + 1)


class Scripted(gymnasium.Env[Any, Any]):
    """Observes its number, its episode and its step."""

    observation_space: Any = BOX
    action_space: Any = spaces.Discrete(7)

    def __init__(self, number: int = 0, *, reuse: bool = False) -> None:
        self.number, self.episode, self.time = number, -1, 0
        self.shown = np.zeros(3, np.int64) if reuse else None

    def observe(self) -> Any:
        observation = np.array([self.number, self.episode, self.time])
        if self.shown is None:
            return observation
        self.shown[...] = observation
        return self.shown

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return self.observe(), {"speed": -1.0}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = reward_of(self.episode, self.time)
        self.time += 1
        has_ended = self.time == length_of(self.number, self.episode)
        is_terminal = has_ended and terminates(self.number, self.episode)
        info = {"speed": float(100 * self.episode + self.time), "nested": {"word": 1}}
        return self.observe(), reward, is_terminal, has_ended and not is_terminal, info


SCHEMA = relive_gymnasium.schema_from_spaces(
    BOX, spaces.Discrete(7), extras={"speed": relive.Field((), float), "chosen": relive.Field((), int)}
)


def ring(streams: int = 1, **settings: Any) -> relive.RingReplayBuffer:
    return relive.RingReplayBuffer(500, **{"schema": SCHEMA, "streams": streams, "seed": 0, **settings})


def recorded(env: Any = None) -> tuple[relive_gymnasium.Recorder, relive.RingReplayBuffer]:
    """Return a recorder of an environment, and its buffer."""
    buffer = ring()
    return relive_gymnasium.Recorder(env or Scripted(), buffer, infos={"speed": "speed"}), buffer


def scripted_inside(env: Any) -> Scripted:
    inside: Scripted = env.unwrapped
    return inside


def check_all(buffer: Any) -> list[tuple[int, int, int]]:
    """Check every transition against its self-describing observation; return the observations in order."""
    buffer.check()
    batch = buffer.read(buffer.eligible_keys())
    steps = [tuple(row) for row in batch.observation.tolist()]
    for place, (number, episode, step) in enumerate(steps):
        is_last = step + 1 == length_of(number, episode)
        assert batch.next_observation[place].tolist() == [number, episode, step + 1]
        assert batch.reward[place] == reward_of(episode, step)
        assert batch.is_terminal[place] == (is_last and terminates(number, episode))
        assert batch.extras["speed"][place] == 100 * episode + step + 1
        assert batch.extras["chosen"][place] == batch.action[place] + 1
    assert len(set(steps)) == len(steps)
    return steps


# One environment.


@pytest.mark.parametrize("reuse", [False, True], ids=["fresh arrays", "one array"])
def test_steps_of_one_environment_are_recorded_unspliced(reuse: bool) -> None:
    env, buffer = recorded(Scripted(reuse=reuse))
    for _ in range(6):
        observation, _ = env.reset()
        ended = False
        while not ended:
            action = int(observation.sum() % 7)
            observation, _, terminated, truncated, _ = env.step(action, chosen=action + 1)
            ended = terminated or truncated
    assert check_all(buffer) == [(0, episode, step) for episode in range(6) for step in range(length_of(0, episode))]
    stats = buffer.get_stats()
    ends = [terminates(0, episode) for episode in range(6)]
    assert (stats.terminated_episodes, stats.truncated_episodes) == (sum(ends), 6 - sum(ends))
    assert stats.spliced_episodes == stats.open_episodes == 0


def test_a_reset_in_mid_episode_truncates_it() -> None:
    env, buffer = recorded()
    env.reset()
    env.reset()
    env.step(0, chosen=1)
    env.reset()
    stats = buffer.get_stats()
    assert (stats.truncated_episodes, stats.open_episodes, stats.spliced_episodes) == (1, 0, 0)
    check_all(buffer)


class Constant(gymnasium.Env[Any, Any]):
    """Every observation is like every other."""

    observation_space: Any = spaces.Discrete(1)
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return 0, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return 0, 1.0, False, False, {}


def test_a_reset_is_noticed_if_all_observations_are_equal() -> None:
    buffer = relive.RingReplayBuffer(9, n_step=5, gamma=1.0)
    env = relive_gymnasium.Recorder(Constant(), buffer)
    for _ in range(2):
        env.reset()
        for _ in range(3):
            env.step(0)
    assert buffer.read(range(6)).reward.tolist() == [3, 2, 1, 3, 2, 1]


def test_arrays_returned_to_the_actor_are_not_stored() -> None:
    """P27."""
    env, buffer = recorded()
    observation, _ = env.reset()
    observation[...] = -1
    action = np.array(3)
    observation, *_ = env.step(action, chosen=4)
    action[...] = 0
    observation[...] = -1
    assert check_all(buffer) == [(0, 0, 0)]
    assert buffer.read([0]).action.tolist() == [3]


class Greedy(Constant):
    """Keeps the action that it was given, and writes to it."""

    action_space: Any = spaces.Box(-1, 1, (2,), np.float64)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        action[...] = 7
        return super().step(action)


def test_a_recorder_stores_the_action_of_the_policy() -> None:
    buffer = relive.RingReplayBuffer(9, streams=2)
    single = relive.RingReplayBuffer(9)
    env = relive_gymnasium.Recorder(Greedy(), single)
    env.reset()
    env.step(np.array([0.5, 0.25]))
    assert single.read([0]).action.tolist() == [[0.5, 0.25]]

    class Overwritten(vector.SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            answer = super().step(actions.copy())
            actions[...] = 7
            return answer

    envs = relive_gymnasium.VectorRecorder(Overwritten([Greedy, Greedy]), buffer)
    envs.reset()
    envs.step(np.array([[0.5, 0.25], [0.0, 1.0]]))
    assert buffer.read([0, 1]).action.tolist() == [[0.5, 0.25], [0.0, 1.0]]


def test_a_step_before_a_reset_or_after_an_end_is_refused() -> None:
    env, buffer = recorded()
    message = "^step needs an episode that is running: call reset first$"
    with pytest.raises(errors.NotReadyError, match=message):
        env.step(0, chosen=1)
    env.reset()
    env.step(0, chosen=1)
    assert length_of(0, 0) == 1
    with pytest.raises(errors.NotReadyError, match=message):
        env.step(0, chosen=1)
    assert len(buffer) == 1


class Spoiled(Scripted):
    """Rewards a text in its second step."""

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        is_second = (self.episode, self.time) == (1, 1)
        return observation, "much" if is_second else reward, terminated, truncated, info


def test_a_step_that_cannot_be_stored_requires_a_reset() -> None:
    env, buffer = recorded(Spoiled())
    env.reset()
    env.reset()
    with pytest.raises(errors.SchemaError, match="^reward must be "):
        env.step(0, chosen=1)
    with pytest.raises(errors.NotReadyError):
        env.step(0, chosen=1)
    env.reset()
    env.step(0, chosen=1)
    assert check_all(buffer) == [(0, 2, 0)]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "^extra 'chosen' is missing: the schema has extra 'chosen'$"),
        ({"chosen": 1, "other": 2}, "^unknown extra 'other': the schema has extra 'chosen'$"),
        ({"chosen": 0.5}, "^extras/chosen must fit int64, got 0.5"),
        ({"chosen": 1, "action": 2.5}, "^action must fit int64, got 2.5"),
        ({"chosen": 1, "stream": 0}, "^stream must not be given: the recorder sets it$"),
        ({"chosen": 1, "streams": [0]}, "^streams must not be given: the recorder sets it$"),
    ],
)
def test_arguments_are_checked_before_the_environment_steps(given: Any, said: str) -> None:
    env, buffer = recorded(Scripted(2))
    env.reset()
    env.step(0, chosen=1)
    with pytest.raises((errors.SchemaError, errors.ArgumentError), match=said):
        env.step(**{"action": 0, **given})
    assert scripted_inside(env).time == 1
    env.step(0, chosen=1)
    assert check_all(buffer) == [(2, 0, 0), (2, 0, 1)]


def test_an_extra_is_stored_as_it_was_given() -> None:
    class Writing(Constant):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            given[...] = 7
            return super().step(action)

    given, buffer = np.array(1), relive.RingReplayBuffer(9)
    env = relive_gymnasium.Recorder(Writing(), buffer)
    env.reset()
    env.step(0, before=given)
    assert buffer.read([0]).extras["before"].tolist() == [1]


class Tensor:
    """An array of another library: it can become one of numpy's."""

    def __init__(self, values: Any, device: str = "cpu") -> None:
        self.values, self.device = np.asarray(values), device

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if self.device != "cpu":
            raise TypeError("can't convert device type tensor to numpy.\nUse Tensor.cpu()")
        return self.values


class Tensors(Scripted):
    """Observes in one tensor, which it writes to."""

    kept = Tensor(np.zeros(3, np.int64))

    def observe(self) -> Any:
        self.kept.values[...] = super().observe()
        return self.kept


def test_arrays_of_other_libraries_are_copied() -> None:
    env, buffer = recorded(Tensors(4))
    observation: Any
    env.reset()
    action = Tensor(3)
    for _ in range(2):
        observation, *_ = env.step(action, chosen=Tensor(4))
        observation.values[...] = -1
    assert check_all(buffer) == [(4, 0, 0), (4, 0, 1)]
    with pytest.raises(errors.SchemaError, match="^action must be an array of numbers, of text or of dates, got <"):
        env.step(Tensor(3, "gpu"), chosen=4)
    assert scripted_inside(env).time == 2


@pytest.mark.parametrize(
    "nest", [lambda tensor: (tensor, 0), lambda tensor: {"a": 0, "b": tensor}], ids=["pair", "dict"]
)
def test_an_environment_of_tensors_receives_tensors(nest: Callable[[Any], Any]) -> None:
    class Nested(Constant):
        observation_space: Any = spaces.Tuple((BOX, BOX)) if nest(0) == (0, 0) else spaces.Dict({"a": BOX, "b": BOX})

        def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
            return nest(Tensor(0)), {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return nest(Tensor(0)), 1.0, False, False, {}

    buffer = relive.RingReplayBuffer(9)
    env = relive_gymnasium.Recorder(Nested(), buffer)
    env.reset()
    env.step(Tensor(1))
    assert buffer.read([0]).action.tolist() == [1]
    with pytest.raises(errors.SchemaError, match=r"got 1\.0: pass int\(action\)$"):
        env.step(1.0)


PAIR = spaces.Dict({"a": BOX, "b": spaces.Discrete(3)})


@pytest.mark.parametrize(
    ("observation", "action", "frame_stack", "said"),
    [
        (BOX, spaces.Discrete(9), 1, None),
        (spaces.Box(0, 1, (3,), np.float32), spaces.Discrete(9), 1, None),
        (spaces.Text(3), spaces.Text(3), 1, None),
        (
            BOX,
            spaces.MultiDiscrete([2, 2]),
            1,
            "action in the schema of the buffer must be of shape (2,), as in the environment, got ()",
        ),
        (
            PAIR,
            spaces.Discrete(9),
            1,
            "observation/a in the schema of the buffer must be of shape (3,), as in the environment, got none",
        ),
        (spaces.Box(0, 1, (4, 3)), spaces.Discrete(9), 4, None),
        (
            spaces.Box(0, 1, (4, 5)),
            spaces.Discrete(9),
            4,
            "observation in the schema of the buffer must be of shape (5,), as in the environment, got (3,)",
        ),
    ],
)
@pytest.mark.parametrize("is_vector", [False, True])
def test_a_recorder_compares_the_spaces_with_the_schema(
    observation: Any, action: Any, frame_stack: int, said: str | None, is_vector: bool
) -> None:
    """By their shapes: a schema may have other dtypes."""

    class Other(Constant):
        observation_space = observation
        action_space = action

    schema = relive_gymnasium.schema_from_spaces(BOX, spaces.Discrete(7))
    buffer = relive.RingReplayBuffer(9, schema, frame_stack=frame_stack)
    env: Any = vector.SyncVectorEnv([Other]) if is_vector else Other()
    make: Any = relive_gymnasium.VectorRecorder if is_vector else relive_gymnasium.Recorder
    if said is None:
        make(env, buffer, frame_stack=frame_stack)
    else:
        with pytest.raises(errors.ArgumentError, match=f"^{re.escape(said)}: from_env makes its schema$"):
            make(env, buffer, frame_stack=frame_stack)


def test_the_spec_of_an_environment_excludes_its_recorder() -> None:
    env = relive_gymnasium.Recorder(gymnasium.make("CartPole-v1"), relive.RingReplayBuffer(9))
    assert type(gymnasium.make(env.spec)) is type(gymnasium.make("CartPole-v1"))


def test_settings_of_a_recorder_are_checked() -> None:
    with pytest.raises(errors.ArgumentError, match="^stream must be below streams = 1, got 3$"):
        relive_gymnasium.Recorder(Scripted(), ring(), stream=3)
    with pytest.raises(
        errors.ArgumentError, match="^infos must be for extras of the schema, which are chosen, speed, g"
    ):
        relive_gymnasium.Recorder(Scripted(), ring(), infos={"nope": "speed"})
    with pytest.raises(
        errors.ArgumentError, match="^buffer must have a stream for each of 2 environments, got streams=1"
    ):
        relive_gymnasium.VectorRecorder(scripted(2), relive.ThreadSafeReplayBuffer(ring()))


def test_missing_infos_are_not_invented() -> None:
    env = relive_gymnasium.Recorder(Scripted(), ring(), infos={"speed": "velocity"})
    env.reset()
    with pytest.raises(
        errors.ArgumentError, match=r"^info must hold 'velocity' for the extra 'speed', got \['speed', "
    ):
        env.step(0, chosen=1)
    env = relive_gymnasium.Recorder(Scripted(), ring(), infos={"speed": "speed"})
    env.reset()
    with pytest.raises(errors.ArgumentError, match="^extra 'speed' must not be given: infos takes it from 'speed'$"):
        env.step(0, chosen=1, speed=1.0)
    assert scripted_inside(env).time == 0
    wrong: Any
    for wrong in (["speed"], {"speed": 3}, "speed"):
        with pytest.raises(errors.ArgumentTypeError, match="^infos must be keys of the info by extra, got "):
            relive_gymnasium.Recorder(Scripted(), ring(), infos=wrong)


def test_a_recorder_asks_the_limiter_once_before_each_step() -> None:
    """One that would hold the step back a moment later."""
    limiter = fickle_limiter_test.Fickle([True, False, True])
    buffer = ring(limiter=limiter)
    env = relive_gymnasium.Recorder(Scripted(1), buffer, infos={"speed": "speed"})
    env.reset()
    env.step(0, chosen=1)
    with pytest.raises(errors.NotReadyError, match="^step held back by"):
        env.step(0, chosen=1)
    assert (limiter.asked, len(buffer), scripted_inside(env).time) == (2, 1, 1)
    env.step(0, chosen=1)
    assert (limiter.asked, len(buffer), scripted_inside(env).time) == (3, 2, 2)


def test_a_recorder_refuses_a_buffer_of_tensors() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from relive.integrations import torch as relive_torch

    storage = relive_torch.TensorStorage(SCHEMA, 9)
    with pytest.raises(errors.ArgumentError, match="^a recorder needs values in numpy, got a buffer with a TensorSt"):
        relive_gymnasium.Recorder(Scripted(), relive.RingReplayBuffer(9, storage=storage))


def test_a_recorder_needs_an_environment_and_a_buffer() -> None:
    wrong: Any
    for wrong in (relive.EpisodeReplayBuffer(), relive.AsyncReplayBuffer(ring()), 3):
        with pytest.raises(errors.ArgumentTypeError, match="^buffer must be a ColumnReplayBuffer or a ThreadSafe"):
            relive_gymnasium.Recorder(Scripted(), wrong)
    joint = relive.JointReplayBuffer(9, agents=["a"])
    for wrong in (joint, relive.ThreadSafeReplayBuffer(joint)):
        with pytest.raises(errors.ArgumentTypeError, match="^buffer must be of steps of single agents, got <.*: add "):
            relive_gymnasium.Recorder(Scripted(), wrong)
    wrong = "CartPole-v1"
    with pytest.raises(errors.ArgumentTypeError, match="^env must be "):
        relive_gymnasium.Recorder(wrong, ring())
    with pytest.raises(errors.ArgumentTypeError, match="^env must be "):
        relive_gymnasium.VectorRecorder(wrong, ring())
    with pytest.raises(errors.ArgumentError, match="^stream must be at least 0, got -1$"):
        relive_gymnasium.Recorder(Scripted(), ring(), stream=-1)


def test_a_thread_safe_buffer_is_recorded_into() -> None:
    shell = relive.ThreadSafeReplayBuffer(ring(2))
    env = relive_gymnasium.Recorder(Scripted(), shell, stream=1, infos={"speed": "speed"})
    env.reset()
    env.step(0, chosen=1)
    with shell.locked() as inside:
        assert inside._store.streams == 2
        assert check_all(inside) == [(0, 0, 0)]
        assert str(inside.explain(0)).startswith("key 0: step 0 of 1, episode from key 0, stream 1")


# Environments side by side.

MODES = list(vector.AutoresetMode)
MAKERS: dict[str, Callable[..., Any]] = {"sync": vector.SyncVectorEnv}
if sys.platform == "linux":  # Elsewhere each process takes seconds to start.
    MAKERS["async"] = functools.partial(vector.AsyncVectorEnv, context="fork")


def scripted(count: int, make: Callable[..., Any] = vector.SyncVectorEnv, **settings: Any) -> Any:
    return make([functools.partial(Scripted, number) for number in range(count)], **settings)


def drive(envs: Any, count: int, given: Callable[[Any], Any] = np.asarray, mode: Any = None) -> None:
    """Take that many steps in all environments, and reset those that have ended."""
    observations, _ = envs.reset(seed=0)
    for _ in range(count):
        actions = np.asarray(observations).sum(axis=1) % 7
        observations, _, terminated, truncated, _ = envs.step(given(actions), chosen=given(actions + 1))
        ended = np.asarray(terminated) | np.asarray(truncated)
        if (mode or envs.metadata["autoreset_mode"]) is vector.AutoresetMode.DISABLED and ended.any():
            observations, _ = envs.reset(options={"reset_mask": ended})


def expected(mode: vector.AutoresetMode, number: int, count: int) -> list[tuple[int, int, int]]:
    """The steps that so many calls make in one environment."""
    steps: list[tuple[int, int, int]] = []
    episode = step = 0
    for _ in range(count):
        if step == length_of(number, episode):  # The call that resets, and is no step.
            episode, step = episode + 1, 0
            continue
        steps.append((number, episode, step))
        step += 1
        if step == length_of(number, episode) and mode is not vector.AutoresetMode.NEXT_STEP:
            episode, step = episode + 1, 0
    return steps


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_steps_of_every_autoreset_mode_are_recorded_unspliced(make: Callable[..., Any], mode: Any, count: int) -> None:
    """P26, P27."""
    buffer = ring(count)
    envs = scripted(count, make, autoreset_mode=mode)
    envs = relive_gymnasium.VectorRecorder(envs, buffer, infos={"speed": "speed"})
    drive(envs, 20)
    envs.close()
    steps = check_all(buffer)
    for number in range(count):
        assert [step for step in steps if step[0] == number] == expected(mode, number, 20)
    assert buffer.get_stats().spliced_episodes == 0


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_reused_arrays_are_copied_and_not_changed(mode: Any) -> None:
    buffer = ring(3)
    inside = scripted(3, copy=False, autoreset_mode=mode)
    plain = scripted(3, autoreset_mode=mode)
    envs = relive_gymnasium.VectorRecorder(inside, buffer, infos={"speed": "speed"})
    observations, _ = envs.reset(seed=0)
    others, _ = plain.reset(seed=0)
    for _ in range(20):
        assert observations.tolist() == others.tolist()
        actions = others.sum(axis=1) % 7
        observations, rewards, terminated, truncated, infos = envs.step(actions, chosen=actions + 1)
        others, other_rewards, *_, other_infos = plain.step(actions)
        assert rewards.tolist() == other_rewards.tolist()
        assert infos.keys() == other_infos.keys()
        ended = terminated | truncated
        if mode is vector.AutoresetMode.DISABLED and ended.any():
            observations, _ = envs.reset(options={"reset_mask": ended.copy()})
            others, _ = plain.reset(options={"reset_mask": ended.copy()})
    check_all(buffer)


def test_a_native_vector_environment_is_recorded_like_others() -> None:
    rows = []
    for mode in ("vector_entry_point", "sync"):
        envs = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode=mode)
        buffer = relive.RingReplayBuffer(1000, relive_gymnasium.from_env(envs), streams=3)
        recorder = relive_gymnasium.VectorRecorder(envs, buffer)
        recorder.reset(seed=0)
        ended, resets = np.zeros(3, bool), 0
        for t in range(60):
            resets += int(ended.sum())
            _, _, terminated, truncated, _ = recorder.step(np.array([t % 2, 0, 1]))
            ended = terminated | truncated
        buffer.check()
        assert len(buffer) == 180 - resets
        batch = buffer.read(buffer.eligible_keys())
        assert (np.abs(batch.next_observation - batch.observation).max(axis=0) < [0.1, 1, 0.2, 1.5]).all()
        rows.append(buffer.schema)
    assert rows[0] == rows[1]


def test_the_work_of_a_recorder_does_not_grow_with_environments() -> None:
    made = []
    for count in (16, 64):
        envs = gymnasium.make_vec("CartPole-v1", count)
        buffer = relive.RingReplayBuffer(1000, relive_gymnasium.from_env(envs), streams=count)
        recorder = relive_gymnasium.VectorRecorder(envs, buffer)
        recorder.reset(seed=0)
        actions = np.zeros(count, int)
        for _ in range(3):
            recorder.step(actions)
        made.append(call_counts_test.count(functools.partial(recorder.step, actions)))
    assert made[1] <= made[0] + 5 <= 230  # Rounds take two more where they wrap around, and the like.


UNDECLARED = (
    r"^env must declare how it resets: set env.metadata\['autoreset_mode'\] to a member of AutoresetMode, in a "
)


@pytest.mark.parametrize("where", ["metadata", "attribute"])
@pytest.mark.parametrize("said", [None, "NextStep", 3])
def test_an_unknown_autoreset_mode_is_not_guessed(said: Any, where: str) -> None:
    envs: Any = Batched(said, lambda time: (1.0, False, {}))
    if where == "attribute":
        envs.metadata, envs.autoreset_mode = {}, said
    with pytest.raises(errors.ArgumentError, match=f"{UNDECLARED}dict of its own, got {said!r}$"):
        relive_gymnasium.VectorRecorder(envs, relive.RingReplayBuffer(20, streams=2))


@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize("shared", [vector.VectorEnv, gymnasium.Env])
def test_a_mode_in_a_shared_dict_declares_nothing(
    monkeypatch: pytest.MonkeyPatch, shared: Any, is_wrapped: bool
) -> None:
    """P144."""
    monkeypatch.setitem(shared.metadata, "autoreset_mode", vector.AutoresetMode.NEXT_STEP)
    envs: Any = Batched(vector.AutoresetMode.SAME_STEP, lambda time: (1.0, False, {}))
    envs.metadata, outer = shared.metadata, vector.VectorWrapper(envs) if is_wrapped else envs
    with pytest.raises(errors.ArgumentError, match=f"{UNDECLARED}dict of its own, got None$"):
        relive_gymnasium.VectorRecorder(outer, relive.RingReplayBuffer(20, streams=2))
    outer.metadata = {"autoreset_mode": vector.AutoresetMode.NEXT_STEP}
    relive_gymnasium.VectorRecorder(outer, relive.RingReplayBuffer(20, streams=2))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_the_mode_of_the_environment_itself_counts(monkeypatch: pytest.MonkeyPatch, mode: Any) -> None:
    """P144: whatever another one wrote into the dict that both share."""
    for other in MODES:
        monkeypatch.setitem(vector.VectorEnv.metadata, "autoreset_mode", other)
        envs, buffer = scripted(2, autoreset_mode=mode), ring(2)
        drive(relive_gymnasium.VectorRecorder(Sharing(envs), buffer, infos={"speed": "speed"}), 20, mode=mode)
        steps = check_all(buffer)
        assert [step for step in steps if step[0] == 1] == expected(mode, 1, 20)


class Sharing(vector.VectorWrapper):
    metadata: Any = vector.VectorEnv.metadata


class Declaring(vector.VectorWrapper):
    """Declares a mode, whatever the environment inside does."""

    unwrapped: Any = property(lambda self: self)

    def __init__(self, env: Any, mode: Any) -> None:
        super().__init__(env)
        self.metadata, self.autoreset_mode = {"autoreset_mode": mode}, mode


@pytest.mark.parametrize("does", MODES, ids=lambda mode: f"does {mode.name}")
@pytest.mark.parametrize("says", MODES, ids=lambda mode: f"says {mode.name}")
def test_an_environment_that_violates_its_mode_is_refused(says: Any, does: Any) -> None:
    if says is does:
        return
    envs = Declaring(scripted(2, autoreset_mode=does), says)
    buffer = ring(2)
    recorder = relive_gymnasium.VectorRecorder(envs, buffer, infos={"speed": "speed"})
    if (says, does) == (vector.AutoresetMode.DISABLED, vector.AutoresetMode.NEXT_STEP):
        drive(recorder, 20)  # It is reset before it could reset itself.
    else:
        with pytest.raises((errors.ReplayError, AssertionError)):
            drive(recorder, 20)
    check_all(buffer)


class Batched(vector.VectorEnv[Any, Any, Any]):
    """Two environments in one, which end in every second step; `answer` computes what a step returns."""

    num_envs = 2
    single_observation_space: Any = spaces.Dict({"time": spaces.Box(0, 100, (), np.int64)})
    single_action_space: Any = spaces.Discrete(2)

    def __init__(self, mode: vector.AutoresetMode, answer: Callable[[int], tuple[Any, Any, Any]]) -> None:
        self.metadata = {"autoreset_mode": mode}
        self.answer, self.time = answer, 0

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if options:
            options.pop("reset_mask")[...] = False
        else:
            self.time = 0
        return {"time": np.zeros(2, np.int64)}, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.time += 1
        reward, terminated, infos = self.answer(self.time)
        return {"time": np.full(2, self.time)}, np.full(2, reward), np.full(2, terminated), np.zeros(2, bool), infos


def batched(mode: vector.AutoresetMode, answer: Callable[[int], tuple[Any, Any, Any]]) -> Any:
    envs = relive_gymnasium.VectorRecorder(Batched(mode, answer), relive.RingReplayBuffer(20, streams=2))
    envs.reset()
    return envs


ACTIONS = np.zeros(2, int)


def test_an_environment_that_does_not_reset_itself_is_refused() -> None:
    envs = batched(vector.AutoresetMode.NEXT_STEP, lambda time: (1.0, True, {}))
    envs.step(ACTIONS)
    message = "^env must reset by NEXT_STEP, but environment 0 goes on in the step after an end$"
    with pytest.raises(errors.ArgumentError, match=message):
        envs.step(ACTIONS)
    assert len(envs.buffer) == 2


def test_only_environments_in_the_reset_mask_begin_anew() -> None:
    envs = batched(vector.AutoresetMode.DISABLED, lambda time: (1.0, np.array([time == 2, False]), {}))
    envs.step(ACTIONS)
    envs.step(ACTIONS)
    envs.reset(options={"reset_mask": np.array([True, False])})
    envs.step(ACTIONS)
    batch = envs.buffer.read(range(6))
    assert batch.observation["time"].tolist() == [0, 0, 1, 1, 0, 2]
    assert batch.next_observation["time"].tolist() == [1, 1, 2, 2, 3, 3]
    assert envs.buffer.get_stats().open_episodes == 2


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("name", ["final_obs", "final_observation"])
def test_final_observations_may_be_arrays_of_all_environments(name: str, is_masked: bool) -> None:
    """P145: and may be there in every step."""
    infos = {name: {"time": np.array([7, 8])} | ({"_time": np.array([True, True])} if is_masked else {})}
    envs = batched(vector.AutoresetMode.SAME_STEP, lambda time: (1.0, time == 2, infos))
    for _ in range(3):
        envs.step(ACTIONS)
    batch = envs.buffer.read(range(6))
    assert batch.next_observation["time"].tolist() == [1, 1, 7, 8, 3, 3]
    assert batch.observation["time"].tolist() == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("name", ["final_obs", "final_observation"])
@pytest.mark.parametrize("mode", [vector.AutoresetMode.NEXT_STEP, vector.AutoresetMode.DISABLED])
def test_a_final_observation_where_none_should_be_is_refused(mode: Any, name: str) -> None:
    """P145."""
    envs = batched(mode, lambda time: (1.0, time == 2, {name: {"time": np.array([7, 8])}}))
    envs.step(ACTIONS)
    with pytest.raises(
        errors.ArgumentError, match=f"^env must reset by {mode.name}, but environment 0 gives a '{name}'$"
    ):
        envs.step(ACTIONS)
    assert len(envs.buffer) == 2


class Restarting(Scripted):
    """Resets itself in the step that ends an episode, and puts the last observation into the info."""

    final: Any = None

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = super().step(action)
        if not (terminated or truncated):
            return observation, reward, terminated, truncated, self.final(np.full(3, -1))
        info = self.final(observation)
        return self.reset()[0], reward, terminated, truncated, info


@pytest.mark.parametrize(
    "final",
    [
        lambda last: {"final_obs": last},
        lambda last: {"final_observation": last},
        lambda last: {"final_obs": None, "final_observation": last},
        lambda last: {"final_obs": last, "final_observation": None},
    ],
)
def test_an_environment_that_restarts_has_its_last_one_in_infos(final: Any) -> None:
    """P145: it may be there in every step."""
    episodes: relive.EpisodeReplayBuffer[Any, Any] = relive.EpisodeReplayBuffer()
    inside, buffer = Restarting(1), relive.RingReplayBuffer(50)
    inside.final = final
    env = relive_gymnasium.Recorder(relive_gymnasium.EpisodeRecorder(inside, episodes, agent_id="a"), buffer)
    for _ in range(3):
        env.reset()
        ended = False
        while not ended:
            *_, terminated, truncated, _ = env.step(0)
            ended = terminated or truncated
    batch = buffer.read(buffer.eligible_keys())
    assert batch.observation[:, 0].tolist() == [1] * len(batch.keys)
    assert (batch.next_observation - batch.observation).tolist() == [[0, 0, 1]] * len(batch.keys)
    assert [[row.tolist() for row in each.observations] for each in episodes._store] == [
        [[1, episode, step] for step in range(length_of(1, episode) + 1)] for episode in (0, 2, 4)
    ]


@pytest.mark.parametrize(
    "infos",
    [
        {"final_obs": np.array([{"time": 1}, None]), "_final_obs": np.array([True, True])},
        {"final_obs": np.array([{"time": 1}, {"time": 1}]), "_final_obs": np.array([True, False])},
    ],
)
def test_a_missing_final_observation_is_not_invented(infos: Any) -> None:
    envs = batched(vector.AutoresetMode.SAME_STEP, lambda time: (1.0, True, infos))
    message = "^env must reset by SAME_STEP, but environment 1 gives no 'final_obs'$"
    with pytest.raises(errors.ArgumentError, match=message):
        envs.step(ACTIONS)


def test_a_reset_mask_requires_autoreset_disabled() -> None:
    recorder = relive_gymnasium.VectorRecorder(scripted(2), ring(2))
    with pytest.raises(errors.ArgumentError, match="^reset_mask must not be given: env resets itself by NEXT_STEP$"):
        recorder.reset(options={"reset_mask": np.array([True, False])})
    manual = scripted(2, autoreset_mode=vector.AutoresetMode.DISABLED)
    recorder = relive_gymnasium.VectorRecorder(manual, ring(2), infos={"speed": "speed"})
    with pytest.raises(
        errors.ArgumentError, match="^reset_mask must be True for each environment, as none is running$"
    ):
        recorder.reset(options={"reset_mask": np.array([True, False])})
    recorder.reset()
    wrong: Any
    for wrong in ([True, False], np.array([1, 0]), np.array([True])):
        with pytest.raises(errors.ArgumentError, match="^reset_mask must be an array of 2 bools, got "):
            recorder.reset(options={"reset_mask": wrong})


def test_an_environment_that_needs_a_reset_is_not_stepped() -> None:
    envs = scripted(2, autoreset_mode=vector.AutoresetMode.DISABLED)
    recorder = relive_gymnasium.VectorRecorder(envs, ring(2), infos={"speed": "speed"})
    with pytest.raises(errors.NotReadyError, match="^step needs episodes that are running: call reset first$"):
        recorder.step(np.array([0, 0]), chosen=np.array([1, 1]))
    recorder.reset()
    recorder.step(np.array([0, 0]), chosen=np.array([1, 1]))
    assert (length_of(0, 0), length_of(1, 0)) == (1, 4)
    message = r"^step needs episodes that are running: call reset\(options=\{'reset_mask': ...\}\) of \[0\] first$"
    with pytest.raises(errors.NotReadyError, match=message):
        recorder.step(np.array([0, 0]), chosen=np.array([1, 1]))
    assert [env.time for env in envs.envs] == [1, 1]


def test_resetting_all_truncates_open_episodes() -> None:
    buffer = ring(3)
    recorder = relive_gymnasium.VectorRecorder(scripted(3), buffer, infos={"speed": "speed"})
    drive(recorder, 1)
    drive(recorder, 3)
    stats = buffer.get_stats()
    # One by its environment, two by the reset of all.
    assert (stats.spliced_episodes, stats.truncated_episodes) == (0, 3)
    check_all(buffer)


def test_missing_infos_of_vector_environments_are_not_invented() -> None:
    for mode in MODES:
        envs = scripted(2, autoreset_mode=mode)
        recorder = relive_gymnasium.VectorRecorder(envs, ring(2), infos={"speed": "velocity"})
        recorder.reset()
        message = r"^infos must hold 'velocity' of environment 0 for the extra 'speed', got \["
        with pytest.raises(errors.ArgumentError, match=message):
            recorder.step(np.array([0, 0]), chosen=np.array([1, 1]))
        with pytest.raises(errors.NotReadyError):
            recorder.step(np.array([0, 0]), chosen=np.array([1, 1]))


# Composed with others.


def ends_of(infos: Any, number: int) -> tuple[int, float]:
    """The reported length and return of an environment whose episode has ended."""
    said = (infos if "episode" in infos else infos["final_info"])["episode"]
    return int(said["l"][number]), float(said["r"][number])


# Inside, with DISABLED, environments take the mask out of the options before the wrapper around them looks; with
# SAME_STEP that wrapper counts every step from Gymnasium 1.4 on.
COMPOSED = [
    (where, mode)
    for where in ("outside", "inside", "in each")
    for mode in MODES
    if (where, mode.name) != ("inside", "DISABLED")
    and (
        where == "in each"
        or mode.name != "SAME_STEP"
        or tuple(map(int, gymnasium.__version__.split(".")[:2])) >= (1, 4)
    )
]


@pytest.mark.parametrize(("where", "mode"), COMPOSED, ids=str)
def test_vector_statistics_are_those_of_gymnasium(where: str, mode: Any) -> None:
    buffer = relive.RingReplayBuffer(500, relive_gymnasium.from_env(Scripted()), streams=3)
    envs: Any = scripted(3, autoreset_mode=mode)
    if where == "inside":
        envs = relive_gymnasium.VectorRecorder(vector_wrappers.RecordEpisodeStatistics(envs), buffer)
    elif where == "outside":
        envs = vector_wrappers.RecordEpisodeStatistics(relive_gymnasium.VectorRecorder(envs, buffer))
    else:
        for number, env in enumerate(envs.envs):
            envs.envs[number] = gymnasium.wrappers.RecordEpisodeStatistics(env)
        envs = relive_gymnasium.VectorRecorder(envs, buffer)
    episodes, said = [0, 0, 0], 0
    envs.reset(seed=0)
    for _ in range(30):
        _, _, terminated, truncated, infos = envs.step(np.zeros(3, int))
        ended = terminated | truncated
        for number in ended.nonzero()[0].tolist():
            length = length_of(number, episodes[number])
            total = sum(reward_of(episodes[number], step) for step in range(length))
            assert ends_of(infos, number) == (length, total)
            episodes[number] += 1
            said += 1
        if mode is vector.AutoresetMode.DISABLED and ended.any():
            mask = ended.copy()
            envs.reset(options={"reset_mask": mask})
            assert mask.tolist() == ended.tolist()
    stats = buffer.get_stats()
    assert said == stats.terminated_episodes + stats.truncated_episodes > 20
    assert stats.spliced_episodes == 0


@pytest.mark.parametrize("is_inside", [False, True])
def test_statistics_of_one_environment_are_those_of_gymnasium(is_inside: bool) -> None:
    buffer = ring(schema=None)
    env: Any = Scripted(1)
    if is_inside:
        env = relive_gymnasium.Recorder(gymnasium.wrappers.RecordEpisodeStatistics(env), buffer)
    else:
        env = gymnasium.wrappers.RecordEpisodeStatistics(relive_gymnasium.Recorder(env, buffer))
    for episode in range(4):
        _, info = env.reset()
        for step in range(length_of(1, episode)):
            *_, info = env.step(0)
            assert ("episode" in info) == (step + 1 == length_of(1, episode))
        assert info["episode"]["l"] == length_of(1, episode)
        assert info["episode"]["r"] == sum(reward_of(episode, step) for step in range(length_of(1, episode)))
    env.reset()
    stats = buffer.get_stats()
    assert stats.terminated_episodes + stats.truncated_episodes == 4


# Spaces.

NESTED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (2, 2), np.uint8),
        "hand": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary((2, 2)))),
        "keys": spaces.MultiDiscrete(np.array([[3, 4], [5, 6]])),
    }
)


class Sampling(gymnasium.Env[Any, Any]):
    """Return what its spaces have at random."""

    observation_space: Any = NESTED
    action_space: Any = spaces.Tuple((spaces.Discrete(2), BOX))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.observation_space.sample(), 1.0, self.time == 3, False, {}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_nested_observations_and_actions_are_stored(mode: Any) -> None:
    envs = vector.SyncVectorEnv([Sampling, Sampling], autoreset_mode=mode)
    buffer = relive.RingReplayBuffer(100, relive_gymnasium.from_env(envs), streams=2)
    recorder = relive_gymnasium.VectorRecorder(envs, buffer)
    observations, _ = recorder.reset()
    for t in range(3):
        before = space_trees.tree_of(NESTED, observations)
        actions = recorder.action_space.sample()
        observations, _, _, _, infos = recorder.step(actions)
        batch = buffer.read([2 * t, 2 * t + 1])
        assert batch.observation["hand"]["1"].tolist() == before["hand"]["1"].tolist()
        assert batch.action["0"].tolist() == actions[0].tolist()
        after = space_trees.tree_of(NESTED, observations)
        if t == 2 and mode is vector.AutoresetMode.SAME_STEP:
            final = [space_trees.tree_of(NESTED, each) for each in infos["final_obs"]]
            assert batch.next_observation["image"].tolist() == [each["image"].tolist() for each in final]
        else:
            assert batch.next_observation["image"].tolist() == after["image"].tolist()
    single = relive.RingReplayBuffer(100, relive_gymnasium.from_env(Sampling()))
    env = relive_gymnasium.Recorder(Sampling(), single)
    observation, _ = env.reset()
    env.step((1, np.array([1, 2, 3])))
    batch = single.read([0])
    assert batch.observation["hand"]["0"].item() == observation["hand"][0]
    assert (batch.action["0"].item(), batch.action["1"].tolist()) == (1, [[1, 2, 3]])


VARIED = spaces.Sequence(BOX, stack=True)
OTHER_SPACES = {
    "OneOf": spaces.OneOf((spaces.Discrete(3), BOX)),
    "Sequence": VARIED,
    "Text": spaces.Text(5),
    "Graph": spaces.Graph(BOX, None),
}


class Spaced(Constant):
    """Observes what is in its space; refuses to step."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        raise AssertionError


@pytest.mark.parametrize("kind", OTHER_SPACES)
@pytest.mark.parametrize("part", ["observation_space", "action_space"])
def test_batches_of_other_spaces_require_a_schema(part: str, kind: str) -> None:
    """P146: what is in them may have another shape in every step."""
    given: Any = {"observation_space": BOX, "action_space": spaces.Discrete(2), part: OTHER_SPACES[kind]}
    buffer = relive.RingReplayBuffer(9, streams=2)
    with pytest.raises(errors.ArgumentError, match=f"^{part} must be made of Box, .* spaces, got {kind}$"):
        relive_gymnasium.VectorRecorder(vector.SyncVectorEnv([lambda: Spaced(**given)] * 2), buffer)


def test_values_that_make_no_array_are_refused_before_a_step() -> None:
    """P146: with a schema, too."""
    schema = relive.Schema(relive.Field((2, 3), int), relive.Field((2,), int))
    lengths = iter([2, 3, 2, 2])

    class Growing(Spaced):
        def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
            return np.zeros((next(lengths), 3), int), {}

    envs = vector.SyncVectorEnv([lambda: Growing(VARIED, OTHER_SPACES["OneOf"])] * 2)
    recorder = relive_gymnasium.VectorRecorder(envs, relive.RingReplayBuffer(9, schema, streams=2))
    with pytest.raises(errors.SchemaError, match="^observation must be an array of numbers, of text or of dates, got "):
        recorder.reset()
    recorder.reset()
    with pytest.raises(errors.SchemaError, match="^action must be an array of numbers, of text or of dates, got "):
        recorder.step(((0, 1), (1, np.zeros(3, int))))


# Stacks of frames.


class Frames(gymnasium.Env[Any, Any]):
    """Each frame shows its step; each episode has four steps."""

    observation_space: Any = spaces.Box(0, 255, (2, 2), np.uint8)
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.time = 1
        return np.full((2, 2), self.time, np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return np.full((2, 2), self.time, np.uint8), 0.0, self.time == 5, False, {}


PADDINGS = {"zeros": "zero", "first": "reset"}


def stacked(padding: str, count: int = 3) -> Any:
    return gymnasium.wrappers.FrameStackObservation(Frames(), count, padding_type=PADDINGS[padding])


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", [None, *MODES])
def test_only_the_newest_frame_of_a_stack_is_stored(padding: Any, mode: Any) -> None:
    schema = relive_gymnasium.from_env(stacked(padding), frame_stack=3)
    assert schema.observation == relive.Field((2, 2), "uint8")
    streams = 1 if mode is None else 2
    buffer = relive.RingReplayBuffer(100, schema, frame_stack=3, stack_padding=padding, streams=streams)
    env: Any
    if mode is None:
        env = relive_gymnasium.Recorder(stacked(padding), buffer, frame_stack=3)
    else:
        envs = vector.SyncVectorEnv([functools.partial(stacked, padding)] * 2, autoreset_mode=mode)
        env = relive_gymnasium.VectorRecorder(envs, buffer, frame_stack=3)
    observation, _ = env.reset()
    for _ in range(12):
        first = buffer._store.next_key
        before = np.array(observation).reshape(-1, 3, 2, 2)
        observation, _, terminated, *_ = env.step(0 if mode is None else np.zeros(2, int))
        keys = range(first, buffer._store.next_key)
        assert buffer.read(keys).observation.tolist() == before[: len(keys)].tolist()
        if np.any(terminated) and mode in (None, vector.AutoresetMode.DISABLED):
            observation, _ = env.reset()
    buffer.check()


class Pair(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The same frame twice, by name."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space = spaces.Dict({"left": Frames.observation_space, "right": Frames.observation_space})

    def observation(self, observation: Any) -> Any:
        return {"left": observation, "right": observation + 100}


def test_stacked_frames_in_a_dict_are_stored_once() -> None:
    env: Any = gymnasium.wrappers.FrameStackObservation(Pair(Frames()), 3, padding_type="zero")
    schema = relive_gymnasium.from_env(env, frame_stack=3)
    assert schema.observation == {name: relive.Field((2, 2), "uint8") for name in ("left", "right")}
    buffer = relive.RingReplayBuffer(100, schema, frame_stack=3)
    env = relive_gymnasium.Recorder(env, buffer, frame_stack=3)
    before, _ = env.reset()
    for key in range(4):
        after, *_ = env.step(0)
        batch = buffer.read([key])
        for name in ("left", "right"):
            assert batch.observation[name][0].tolist() == before[name].tolist()
            assert batch.next_observation[name][0].tolist() == after[name].tolist()
        before = after


def test_frames_that_do_not_follow_are_refused() -> None:
    class Shuffled(gymnasium.ObservationWrapper[Any, Any, Any]):
        def observation(self, observation: Any) -> Any:
            return observation[::-1]

    def buffer(**settings: Any) -> relive.RingReplayBuffer:
        return relive.RingReplayBuffer(100, **{"frame_stack": 3, "stack_padding": "first", **settings})

    env = relive_gymnasium.Recorder(Shuffled(stacked("first")), buffer(), frame_stack=3)
    env.reset()
    with pytest.raises(
        errors.ArgumentError, match="^observation must be the previous stack, shifted by one new frame$"
    ):
        env.step(0)
    env = relive_gymnasium.Recorder(stacked("first"), buffer(stack_padding="zeros"), frame_stack=3)
    message = "^observation must begin with frames that are 'zeros', as the stack_padding of the buffer$"
    with pytest.raises(errors.ArgumentError, match=message):
        env.reset()
    with pytest.raises(errors.ArgumentError, match="^frame_stack must be 4, as that of the buffer, got 3$"):
        relive_gymnasium.Recorder(stacked("first"), buffer(frame_stack=4), frame_stack=3)
    env = relive_gymnasium.Recorder(Frames(), buffer(), frame_stack=3)
    with pytest.raises(errors.ArgumentError, match=r"^observation must be a stack of 3 frames, got shape \(2, 2\)$"):
        env.reset()
    with pytest.raises(
        errors.ArgumentError, match=r"^observation_space must stack 3 frames along its first axis, got "
    ):
        relive_gymnasium.from_env(Frames(), frame_stack=3)


# Failures, and other wrappers.


def test_rewards_are_rounded_to_the_schema() -> None:
    class Rewarding(Constant):
        reward: Any = np.float64(0.1)

        def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
            return 0, self.reward, False, False, {}

    inside = Rewarding()
    buffer = relive.RingReplayBuffer(9, relive_gymnasium.from_env(inside), n_step=1)
    env = relive_gymnasium.Recorder(inside, buffer)
    env.reset()
    env.step(0)
    assert buffer.read([0]).reward.tolist() == [np.float32(0.1)]
    inside.reward = np.float64(1e300)
    with pytest.raises(errors.SchemaError, match=r"^reward must fit float32, got 1e\+300"):
        env.step(0)
    envs = vector.SyncVectorEnv([lambda: inside])
    vector_env = relive_gymnasium.VectorRecorder(envs, relive.RingReplayBuffer(9, buffer.schema))
    vector_env.reset()
    with pytest.raises(errors.SchemaError, match=r"^reward must fit float32, got 1e\+300"):
        vector_env.step(np.array([0]))
    assert (len(buffer), len(vector_env.buffer)) == (1, 0)


def test_extras_in_lists_are_recorded_for_stepped_environments() -> None:
    extras = {"logp": relive.Field((), "float32")}
    buffer = relive.RingReplayBuffer(9, relive_gymnasium.from_env(Scripted(), extras=extras), streams=2)
    envs = relive_gymnasium.VectorRecorder(scripted(2), buffer)
    envs.reset()
    for _ in range(2):
        envs.step([0, 0], logp=[-0.1, -0.2])
    assert length_of(0, 0) == 1
    assert buffer.read(range(3)).extras["logp"].tolist() == np.array([-0.1, -0.2, -0.2], np.float32).tolist()


@pytest.mark.parametrize("chosen", [[1, 2, 3], 1, [1]])
def test_extras_are_required_for_each_environment(chosen: Any) -> None:
    buffer = ring(2)
    envs = relive_gymnasium.VectorRecorder(scripted(2), buffer, infos={"speed": "speed"})
    envs.reset()
    envs.step(ACTIONS, chosen=ACTIONS + 1)
    assert length_of(0, 0) == 1
    with pytest.raises(errors.SchemaError, match=r"^extras/chosen must be of shape \(2,\), got "):
        envs.step(ACTIONS, chosen=chosen)
    with pytest.raises(errors.ArgumentError, match="^streams must not be given"):
        envs.step(ACTIONS, chosen=ACTIONS + 1, streams=[1, 0])
    envs.step(ACTIONS, chosen=ACTIONS + 1)
    assert sorted(check_all(buffer)) == [(0, 0, 0), (1, 0, 0), (1, 0, 1)]


class Failing(Scripted):
    """Raises in its second reset, or in its third step, after it has moved."""

    def __init__(self, fails: str) -> None:
        super().__init__(4)
        self.fails = fails

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        answer = super().reset(**options)
        if self.fails == "reset" and self.episode == 1:
            self.fails = ""
            raise RuntimeError("no room")
        return answer

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        answer = super().step(action)
        if self.fails == "step" and self.time == 2:
            self.fails = ""
            raise RuntimeError("no step")
        return answer


@pytest.mark.parametrize("fails", ["reset", "step"])
@pytest.mark.parametrize("is_vector", [False, True])
def test_an_environment_that_raised_requires_a_reset(is_vector: bool, fails: str) -> None:
    buffer = ring()
    env: Any
    if is_vector:
        env = vector.SyncVectorEnv([functools.partial(Failing, fails)])
        env = relive_gymnasium.VectorRecorder(env, buffer, infos={"speed": "speed"})
        action, chosen = np.array([0]), np.array([1])
    else:
        env = relive_gymnasium.Recorder(Failing(fails), buffer, infos={"speed": "speed"})
        action, chosen = np.array(0), np.array(1)
    env.reset()
    env.step(action, chosen=chosen)
    with pytest.raises(RuntimeError, match="no "):
        env.reset() if fails == "reset" else env.step(action, chosen=chosen)
    with pytest.raises(errors.NotReadyError, match="call reset first$"):
        env.step(action, chosen=chosen)
    env.reset()
    env.step(action, chosen=chosen)
    assert [row[2] for row in check_all(buffer)] == [0, 0]
    assert buffer.get_stats().truncated_episodes == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_vector_environment_that_returns_tensors_is_recorded(mode: Any) -> None:
    class AsTensors(vector.VectorWrapper):
        def reset(self, **options: Any) -> Any:
            observations, infos = self.env.reset(**options)
            return Tensor(observations), infos

        def step(self, actions: Any) -> Any:
            *answers, infos = self.env.step(np.asarray(actions))
            return *map(Tensor, answers), infos

    buffer = ring(3)
    envs = AsTensors(scripted(3, autoreset_mode=mode))
    drive(relive_gymnasium.VectorRecorder(envs, buffer, infos={"speed": "speed"}), 20, given=Tensor)
    assert len(check_all(buffer)) > 20


def test_all_environments_may_end_at_once() -> None:
    """P26: the step that resets all environments has no info."""

    class Limited(Constant):
        time = 0

        def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
            self.time = 0
            return super().reset(**options)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.time += 1
            return 0, 1.0, False, self.time == 2, {"time": self.time}

    buffer = relive.RingReplayBuffer(50, streams=2)
    envs = relive_gymnasium.VectorRecorder(vector.SyncVectorEnv([Limited, Limited]), buffer, infos={"time": "time"})
    envs.reset()
    for _ in range(8):
        envs.step(ACTIONS)
    assert buffer.read(range(12)).extras["time"].tolist() == [1, 1, 2, 2] * 3
    assert len(buffer) == 12


class Nested(Constant):
    """Reports its position in two nested infos, or in one of them."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        infos: dict[int, Any] = {2: {"where": {"x": 1.0}}, 3: {"where": None}, 4: {"where": 5.0}}
        return 0, 1.0, False, False, infos.get(int(action), {"where": {"x": float(action), "y": -1.0}})


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        ([0, 2], "^infos must hold the same keys in 'where' of every environment$"),
        ([0, 3], r"^infos must hold 'where' of environment 1 for the extra 'where', got \[\]$"),
        ([3, 3], r"^infos must hold 'where' of environment 0 for the extra 'where', got \[\]$"),
        ([4, 4], "^unknown extra 'where': the schema has extra 'where/x', extra 'where/y'$"),
    ],
)
def test_nested_infos_are_recorded(actions: Any, said: str) -> None:
    fields = {"where": {"x": relive.Field((), float), "y": relive.Field((), float)}}
    buffer = relive.RingReplayBuffer(9, relive_gymnasium.from_env(Nested(), extras=fields), streams=2)
    envs = relive_gymnasium.VectorRecorder(vector.SyncVectorEnv([Nested, Nested]), buffer, infos={"where": "where"})
    envs.reset()
    envs.step(np.array([0, 1]))
    assert buffer.read([0, 1]).extras["where"]["x"].tolist() == [0.0, 1.0]
    with pytest.raises((errors.ArgumentError, errors.SchemaError), match=said):
        envs.step(np.array(actions))
    assert len(buffer) == 2


class Informing(Constant):
    """Has an info, and ends in every second step."""

    def __init__(self, info: Any) -> None:
        self.info, self.time = info, 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        self.time += 1
        return 0, 1.0, self.time % 2 == 0, False, self.info


def informed(infos: list[Any], mode: Any = vector.AutoresetMode.SAME_STEP, shape: Any = ()) -> Any:
    """Return a recorder of environments with those infos, whose "x" is a float32 extra."""
    schema = relive_gymnasium.from_env(Informing({}), extras={"x": relive.Field(shape, "float32")})
    buffer = relive.RingReplayBuffer(20, schema, streams=len(infos))
    makers: Any = [functools.partial(Informing, info) for info in infos]
    envs = vector.SyncVectorEnv(makers, autoreset_mode=mode)
    recorder = relive_gymnasium.VectorRecorder(envs, buffer, infos={"x": "x"})
    recorder.reset()
    return recorder


@pytest.mark.parametrize(
    ("infos", "said"),
    [
        ([{"x": None, "y": 1}, {"x": 1.5}], r"environment 0 for the extra 'x', got \['y'\]"),
        ([{"x": 1.5}, {"y": 1}], r"environment 1 for the extra 'x', got \['y'\]"),
        ([{"y": 1}, {"x": 1.5}], r"environment 0 for the extra 'x', got \['y'\]"),
        ([{"x": {}}, {"x": {"a": 1}}], r"environment 0 for the extra 'x', got \[\]"),
    ],
)
def test_the_environment_without_an_info_is_named(infos: Any, said: str) -> None:
    """P147."""
    recorder = informed(infos)
    with pytest.raises(errors.ArgumentError, match=f"^infos must hold 'x' of {said}$"):
        recorder.step(ACTIONS)
    recorder = informed(infos)
    for env in recorder.unwrapped.envs:
        env.time = 1  # The first step ends, so that the infos are those in "final_info".
    with pytest.raises(errors.ArgumentError, match=f"^infos must hold 'x' of {said} in 'final_info'$"):
        recorder.step(ACTIONS)
    assert len(recorder.buffer) == 0


def test_an_info_of_none_is_refused() -> None:
    """P147."""
    env = relive_gymnasium.Recorder(Informing(None), relive.RingReplayBuffer(9), infos={"x": "x"})
    env.reset()
    with pytest.raises(errors.ArgumentError, match="^info must hold 'x' for the extra 'x', got None$"):
        env.step(0)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_floats_of_infos_are_rounded_as_those_of_one_environment(mode: Any) -> None:
    """P147: Gymnasium makes float64 of them."""
    recorder = informed([{"x": 0.1}, {"x": 0.2}], mode)
    recorder.step(ACTIONS)
    recorder.step(ACTIONS)
    assert recorder.buffer.read(range(4)).extras["x"].tolist() == np.array([0.1, 0.2] * 2, np.float32).tolist()
    recorder = informed([{"x": 0.1}, {"x": 1e300}])
    with pytest.raises(errors.SchemaError, match=r"^extras/x must fit float32, got 1e\+300$"):
        recorder.step(ACTIONS)


def test_float64_arrays_of_infos_are_refused() -> None:
    """The environment itself made them."""
    recorder = informed([{"x": np.array([0.1])}, {"x": np.array([0.2])}], shape=(1,))
    with pytest.raises(errors.SchemaError, match="^extras/x must be of dtype float32, got float64: cast it with"):
        recorder.step(ACTIONS)


def test_infos_that_are_not_a_mapping_are_refused() -> None:
    buffer = relive.RingReplayBuffer(50, streams=2)
    envs = relive_gymnasium.VectorRecorder(vector_wrappers.DictInfoToList(scripted(2)), buffer)
    envs.reset()
    with pytest.raises(errors.ArgumentError, match=r"^infos must be a mapping, got \[.*: put the recorder inside the"):
        envs.step(ACTIONS)


def test_a_vector_environment_requires_a_vector_recorder() -> None:
    envs: Any = gymnasium.make_vec("CartPole-v1", 2)
    message = "^env must be one environment, got a vector environment: use VectorRecorder$"
    with pytest.raises(errors.ArgumentTypeError, match=message):
        relive_gymnasium.Recorder(envs, ring(schema=None))
    envs.close()
