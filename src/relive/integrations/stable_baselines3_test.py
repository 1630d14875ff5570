from collections.abc import Callable, Iterator
import copy
import functools
import pathlib
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium
from gymnasium import spaces
import stable_baselines3
from stable_baselines3 import her
from stable_baselines3.common import buffers
from stable_baselines3.common import envs
from stable_baselines3.common import vec_env
import torch

import relive
from relive import errors
from relive import testing
from relive.buffers import call_counts_test
from relive.common import trees
from relive.integrations import stable_baselines3 as relive_sb3

DISCRETE = spaces.Discrete(3)
BOX = spaces.Box(-1, 1, (2,), np.float32)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Described(gymnasium.Env[Any, Any]):
    """Observes its environment, episode and step; the reward encodes the same."""

    def __init__(
        self, number: int = 0, *, ends: str = "mixed", action_space: Any = DISCRETE, kind: str = "vector"
    ) -> None:
        self.number, self.ends, self.kind = number, ends, kind
        self.action_space = action_space
        self.observation_space: Any = spaces.Box(0, 1_000, (3,), np.float32)
        if kind == "dict":
            parts = {"t": spaces.Box(0, 1_000, (1,), np.float32), "who": spaces.MultiDiscrete([10, 10_000])}
            self.observation_space = spaces.Dict({**parts, "which": spaces.Discrete(10)})
        if kind == "image":
            self.observation_space = spaces.Box(0, 255, (36, 36, 1), np.uint8)
        if kind == "discrete":
            self.observation_space = spaces.Discrete(100)
        self.episode, self.t = -1, 0

    def look(self) -> Any:
        if self.kind == "dict":
            who = np.array([self.number, self.episode], np.int64)
            return {"t": np.array([self.t], np.float32), "who": who, "which": self.number}
        if self.kind == "image":
            image = np.full((36, 36, 1), self.t + 1, np.uint8)
            image[0], image[1] = self.number, self.episode
            return image
        if self.kind == "discrete":
            return self.t
        return np.array([self.number, self.episode, self.t], np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self.look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        is_over = self.t == 3 + (self.episode + self.number) % 3
        is_truncated = self.ends == "truncated" or (self.ends == "mixed" and self.episode % 2 == 0)
        return self.look(), float(self.t), is_over and not is_truncated, is_over and is_truncated, {}


def described(count: int = 1, **options: Any) -> vec_env.DummyVecEnv:
    def maker(number: int) -> Callable[[], Described]:
        return lambda: Described(number, **options)

    return vec_env.DummyVecEnv([maker(number) for number in range(count)])


class Both(relive_sb3.ReplayBuffer):
    """Passes every step to a buffer of Stable-Baselines3 too."""

    twin: Any

    def add(self, *step: Any) -> None:
        super().add(*step)
        self.twin.add(*step)


def with_twin(space: Any, action_space: Any, capacity: int, n_envs: int, **settings: Any) -> Both:
    kind: Any = buffers.DictReplayBuffer if isinstance(space, spaces.Dict) else buffers.ReplayBuffer
    if "n_steps" in settings:
        kind = buffers.NStepReplayBuffer
    made = Both(capacity, space, action_space, "cpu", n_envs, seed=0, **settings)
    made.twin = kind(capacity, space, action_space, "cpu", n_envs, **settings)
    return made


def rows(samples: Any) -> list[tuple[bytes, ...]]:
    """Return each transition as the bytes of its parts, sorted; shapes and dtypes first."""
    leaves: list[Any] = []
    for part in samples:
        leaves += [part[key] for key in sorted(part)] if isinstance(part, dict) else [part]
    described_as = "".join(f"{leaf.shape[1:]}{leaf.dtype}" for leaf in leaves if leaf is not None).encode()
    arrays = [leaf.numpy() for leaf in leaves if leaf is not None]
    return sorted((described_as, *(array[row].tobytes() for array in arrays)) for row in range(len(arrays[0])))


def all_of(buffer: Any, env: Any = None) -> list[tuple[bytes, ...]]:
    return rows(buffer._get_samples(buffer.buffer.eligible_keys(), env))


def all_of_theirs(buffer: Any, env: Any = None) -> list[tuple[bytes, ...]]:
    found = []
    with pytest.MonkeyPatch.context() as patch:
        for number in range(buffer.n_envs):
            patch.setattr(np.random, "randint", lambda *_, size, **__: np.full(size, number))  # noqa: B023
            found += rows(buffer._get_samples(np.arange(buffer.size()), env))
    return sorted(found)


def model_of(algorithm: Any, env: Any, policy: str = "MlpPolicy", **settings: Any) -> Any:
    keywords = {"learning_starts": 20, "buffer_size": 400, "batch_size": 16, "seed": 0, "device": "cpu"} | settings
    keywords = {"policy_kwargs": {"net_arch": [8]}, "train_freq": 1, "gradient_steps": 1} | keywords
    return algorithm(policy, env, replay_buffer_class=relive_sb3.ReplayBuffer, **keywords)


# The same transitions as theirs.


@st.composite
def steps(draw: st.DrawFn, n_envs: int) -> list[Any]:
    """Steps as an algorithm passes them: - goes on, t terminates, x truncates, u reports a truncation and goes on."""
    state = [[number, 0, 0] for number in range(n_envs)]
    found = []
    for how in draw(st.lists(st.lists(st.sampled_from("---txu"), min_size=n_envs, max_size=n_envs), max_size=30)):
        obs = np.array(state, np.float32)
        for place in state:
            place[2] += 1
        next_obs = np.array(state, np.float32)
        for place, end in zip(state, how, strict=True):
            if end in "tx":
                place[1:] = place[1] + 1, 0
        reward = next_obs[:, 2] * 2 + next_obs[:, 0]
        done = np.array([end in "tx" for end in how])
        infos = [{"TimeLimit.truncated": True} if end in "xu" else {} for end in how]
        found.append((obs, next_obs, obs[:, 1:].astype(np.int64) % 3, reward, done, infos))
    return found


@hypothesis.given(
    data=st.data(),
    n_envs=st.sampled_from([1, 3]),
    num_rows=st.integers(1, 12),
    n_steps=st.integers(1, 4),
    heeds_limits=st.booleans(),
)
def test_steps_are_stored_as_by_stable_baselines3(
    data: Any, n_envs: int, num_rows: int, n_steps: int, heeds_limits: bool
) -> None:
    space, action_space = spaces.Box(-1, 1_000, (3,), np.float32), spaces.MultiDiscrete([3, 3])
    settings: dict[str, Any] = {"n_steps": n_steps, "gamma": 0.5} if n_steps > 1 else {}
    settings["handle_timeout_termination"] = heeds_limits
    both = with_twin(space, action_space, num_rows * n_envs, n_envs, **settings)
    for step in data.draw(steps(n_envs)):
        both.add(*step)
    if both.twin.size():
        assert all_of(both) == all_of_theirs(both.twin)
    assert (both.pos, both.full) == (both.twin.pos * n_envs, both.twin.full)
    assert both.size() == both.twin.size() * n_envs
    assert both.buffer.get_stats().spliced_episodes == 0
    both.buffer.check()


@pytest.mark.parametrize("n_envs", [4, pytest.param(1, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("algorithm", "env_id"), [(stable_baselines3.DQN, "CartPole-v1"), (stable_baselines3.SAC, "Pendulum-v1")]
)
def test_an_algorithm_trains_from_the_same_transitions(algorithm: Any, env_id: str, n_envs: int) -> None:
    env = vec_env.DummyVecEnv([lambda: gymnasium.make(env_id)] * n_envs)
    model = model_of(algorithm, env, buffer_size=300, train_freq=4, learning_starts=400)
    model.replay_buffer = with_twin(env.observation_space, env.action_space, 300, n_envs)
    before = [parameter.clone() for parameter in model.policy.parameters()]
    model.learn(480)
    assert all_of(model.replay_buffer) == all_of_theirs(model.replay_buffer.twin)
    assert any((old != new).any() for old, new in zip(before, model.policy.parameters(), strict=True))
    stats = model.replay_buffer.buffer.get_stats()
    assert (stats.appended, stats.size, stats.spliced_episodes) == (480, 300, 0)
    assert stats.sampled > 0


@pytest.mark.parametrize("kind", ["vector", "dict", "discrete", "image"])
@pytest.mark.parametrize("n_envs", [1, 4])
def test_observations_of_every_kind_are_stored_as_in_sb3(kind: str, n_envs: int) -> None:
    policy = {"dict": "MultiInputPolicy", "image": "CnnPolicy"}.get(kind, "MlpPolicy")
    keywords = {"policy_kwargs": {"features_extractor_kwargs": {"features_dim": 4}}} if kind == "image" else {}
    model = model_of(stable_baselines3.DQN, described(n_envs, kind=kind), policy, **keywords)
    model.replay_buffer = with_twin(model.observation_space, model.action_space, 400, n_envs)
    model.learn(40)
    assert all_of(model.replay_buffer) == all_of_theirs(model.replay_buffer.twin)
    assert model.replay_buffer.buffer.get_stats().spliced_episodes == 0
    assert type(model.replay_buffer.sample(1)) is type(model.replay_buffer.twin.sample(1))


@pytest.mark.parametrize("n_steps", [1, 3])
def test_batches_are_normalized_as_in_sb3(n_steps: int) -> None:
    env = vec_env.VecNormalize(described(2), clip_reward=1.5)
    settings: dict[str, Any] = {"n_steps": n_steps, "gamma": 0.5} if n_steps > 1 else {}
    model = model_of(stable_baselines3.DQN, env, learning_starts=10)
    model.replay_buffer = with_twin(env.observation_space, env.action_space, 100, 2, **settings)
    model.learn(80)
    # A deviation of 2: rewards are halved, and those above 3 are cut.
    env.ret_rms.var = np.float64(4 - env.epsilon)
    twin = model.replay_buffer.twin
    assert all_of(model.replay_buffer, env) == all_of_theirs(twin, env)
    assert all_of(model.replay_buffer, env) != all_of(model.replay_buffer)
    assert all_of(model.replay_buffer) == all_of_theirs(twin)


def test_actions_of_float64_become_float32_as_in_sb3() -> None:
    both = with_twin(spaces.Box(0, 1_000, (3,), np.float64), spaces.Box(-1, 1, (2,), np.float64), 10, 1)
    obs = np.full((1, 3), 0.1)
    both.add(obs, obs + 0.1, np.array([[0.1, 0.2]]), np.array([0.1]), np.array([False]), [{}])
    assert all_of(both) == all_of_theirs(both.twin)
    assert both.sample(3).actions.dtype == torch.float32


# What an environment says, through an algorithm.


def test_discounts_without_a_gamma_are_those_of_the_algorithm() -> None:
    model = model_of(stable_baselines3.DQN, described()).learn(30)
    assert model.replay_buffer.sample(4).discounts is None
    model = model_of(stable_baselines3.DQN, described(), replay_buffer_kwargs={"gamma": 0.5}).learn(30)
    assert (model.replay_buffer.sample(4).discounts == 0.5).all()


@pytest.mark.skipif(
    tuple(map(int, stable_baselines3.__version__.split(".")[:3])) < (2, 9, 2), reason="SB3 does not warn before 2.9.2"
)
def test_n_steps_of_an_algorithm_are_warned_about() -> None:
    with pytest.warns(UserWarning, match="`n_steps=3` is ignored") as warned:
        model_of(stable_baselines3.DQN, described(), n_steps=3)
    assert 'replay_buffer_kwargs={"n_steps": 3, "gamma": 0.99}' in str(warned[0].message)


@pytest.mark.parametrize(
    ("algorithm", "action_space"),
    [(stable_baselines3.DQN, DISCRETE), (stable_baselines3.SAC, BOX), (stable_baselines3.TD3, BOX)],
)
def test_algorithms_train_on_several_steps(algorithm: Any, action_space: Any) -> None:
    settings = {"n_steps": 3, "gamma": 0.99, "handle_timeout_termination": True}
    env = described(2, action_space=action_space)
    model = model_of(algorithm, env, replay_buffer_kwargs=settings, optimize_memory_usage=True).learn(60)
    assert model.replay_buffer.sample(50).discounts.min() == np.float32(0.99) ** 3
    assert model.replay_buffer.buffer.get_stats().sampled > 0


def test_an_episode_cut_by_a_reset_is_truncated_and_counted() -> None:
    model = model_of(stable_baselines3.DQN, described()).learn(22)
    model.learn(22, reset_num_timesteps=False)
    assert model.replay_buffer.buffer.get_stats().spliced_episodes == 0
    model.learn(22)
    buffer = model.replay_buffer.buffer
    assert (buffer.get_stats().spliced_episodes, len(buffer)) == (1, 66)
    batch = buffer.read(buffer.eligible_keys(), n_step=5)
    np.testing.assert_array_equal(batch.observation[:, 1], batch.next_observation[:, 1])


# Frames.


def stacked(count: int, **options: Any) -> Any:
    return vec_env.VecTransposeImage(vec_env.VecFrameStack(described(count, kind="image", **options), 3))


@pytest.mark.parametrize("n_envs", [1, 2])
def test_stacks_are_made_of_single_frames_again(n_envs: int) -> None:
    env = stacked(n_envs)
    both = with_twin(env.observation_space, env.action_space, 200, n_envs)
    frames = relive_sb3.ReplayBuffer(200, env.observation_space, env.action_space, "cpu", n_envs, frame_stack=3)
    play(env, 40, both, frames)
    assert all_of(frames) == all_of(both) == all_of_theirs(both.twin)
    assert frames.buffer.schema is not None
    assert frames.buffer.schema.fields["observation"].shape == (1, 36, 36)
    assert frames.sample(4).observations.shape == (4, 3, 36, 36)


def play(env: Any, count: int, *replay_buffers: Any) -> Any:
    """Steps environments as an algorithm does, and returns where they are."""
    obs = env.reset()
    for _ in range(count):
        next_obs, reward, done, infos = env.step(np.zeros(env.num_envs, np.int64))
        reached = copy.deepcopy(next_obs)
        for row in done.nonzero()[0]:
            trees.put(reached, row, infos[row]["terminal_observation"])
        for replay_buffer in replay_buffers:
            replay_buffer.add(obs, reached, np.zeros(env.num_envs, np.int64), reward, done, infos)
        trees.put(reached, ..., 77 if isinstance(reached, np.ndarray) else dict.fromkeys(reached, 77))
        obs = next_obs
    return obs


def test_a_reset_in_an_episode_begins_a_new_stack() -> None:
    env = stacked(2)
    both = with_twin(env.observation_space, env.action_space, 200, 2)
    frames = relive_sb3.ReplayBuffer(200, env.observation_space, env.action_space, "cpu", 2, frame_stack=3)
    for count in (1, 2, 4, 2):
        play(env, count, both, frames)
    assert all_of(frames) == all_of(both)
    assert frames.buffer.get_stats().spliced_episodes == 0


def test_an_algorithm_trains_from_single_frames() -> None:
    keywords = {"policy_kwargs": {"features_extractor_kwargs": {"features_dim": 4}}}
    env = vec_env.VecFrameStack(described(2, kind="image"), 3)
    settings = {"frame_stack": 3, "n_steps": 2, "gamma": 0.9}
    model = model_of(stable_baselines3.DQN, env, "CnnPolicy", replay_buffer_kwargs=settings, **keywords).learn(40)
    assert model.replay_buffer.buffer.get_stats().sampled > 0
    assert model.replay_buffer.size() == 40


def test_normalized_stacks_may_be_inexact_at_an_end() -> None:
    env = vec_env.VecNormalize(vec_env.VecFrameStack(described(2), 3))
    model = model_of(stable_baselines3.DQN, env, replay_buffer_kwargs={"frame_stack": 3}).learn(60)
    stats = model.replay_buffer.buffer.get_stats()
    assert (stats.size, stats.spliced_episodes, stats.terminated_episodes > 2) == (60, 0, True)


def test_a_buffer_of_stacks_that_was_loaded_goes_on(tmp_path: pathlib.Path) -> None:
    env = stacked(2)
    made = [
        relive_sb3.ReplayBuffer(50, env.observation_space, env.action_space, "cpu", 2, frame_stack=3) for _ in range(2)
    ]
    play(env, 4, made[0])
    made[0].buffer.save(tmp_path / "buffer")
    made[1].buffer = relive.RingReplayBuffer.load(tmp_path / "buffer")
    play(env, 4, *made)
    assert all_of(made[0]) == all_of(made[1])
    assert made[1].buffer.get_stats().spliced_episodes == 0


def test_an_episode_does_not_go_on_in_another_buffer() -> None:
    env = stacked(1)
    made = [relive_sb3.ReplayBuffer(50, env.observation_space, env.action_space, "cpu", frame_stack=3) for _ in "ab"]
    play(env, 1, made[0])
    obs = play(env, 2, made[1])
    made[1].buffer = made[0].buffer
    with pytest.raises(errors.ArgumentError, match="observation must begin with frames that are 'zeros'"):
        made[1].add(obs, np.roll(obs, -1, 1), np.zeros(1, np.int64), np.ones(1), np.array([False]), [{}])
    play(env, 2, made[1])
    assert made[1].size() == 3


def test_vectors_and_dicts_of_stacks_may_be_stacked_too() -> None:
    space = spaces.Dict({"near": spaces.Box(0, 9, (2,), np.float32), "far": spaces.Box(0, 9, (4,), np.float32)})
    frames: Any = relive_sb3.ReplayBuffer(9, space, DISCRETE, "cpu", frame_stack=2)

    def look(near: list[float], far: list[float]) -> dict[str, Any]:
        # Every second of the numbers in memory.
        return {"near": np.array([near], np.float32), "far": np.repeat(np.array([far], np.float32), 2, axis=1)[:, ::2]}

    def add(obs: Any, next_obs: Any) -> None:
        frames.add(obs, next_obs, np.zeros(1, np.int64), np.ones(1), np.array([False]), [{}])

    looks = [look([0, 1], [0, 0, 1, 2]), look([1, 2], [1, 2, 3, 4]), look([2, 3], [3, 4, 5, 6])]
    add(*looks[:2])
    add(*looks[1:])
    samples = frames._get_samples([0, 1])
    assert samples.observations["far"].tolist() == [[0, 0, 1, 2], [1, 2, 3, 4]]
    assert samples.next_observations["near"].tolist() == [[1, 2], [2, 3]]
    assert frames.buffer.get_stats().open_episodes == 1
    with pytest.raises(errors.ArgumentError, match="observation must begin with frames that are 'zeros'"):
        add(look([2, 3], [9, 9, 5, 6]), look([3, 4], [5, 6, 7, 8]))
    with pytest.raises(errors.ArgumentError, match="observation must begin with frames that are 'zeros'"):
        add(look([9, 3], [3, 4, 5, 6]), look([3, 4], [5, 6, 7, 8]))


def test_an_episode_goes_on_over_a_frame_of_nan() -> None:
    frames: Any = relive_sb3.ReplayBuffer(9, spaces.Box(0, 9, (2,), np.float32), DISCRETE, "cpu", frame_stack=2)
    numbers = np.array([[0, 1, np.nan, 3, 4]], np.float32)
    for t in range(3):
        pair = numbers[:, t : t + 2], numbers[:, t + 1 : t + 3]
        frames.add(*pair, np.zeros(1, np.int64), np.ones(1), np.array([False]), [{}])
    stats = frames.buffer.get_stats()
    assert (stats.size, stats.open_episodes, stats.truncated_episodes) == (3, 1, 0)


def test_observations_that_are_not_stacks_are_refused() -> None:
    frames = relive_sb3.ReplayBuffer(9, spaces.Box(0, 9, (2,), np.float32), DISCRETE, "cpu", frame_stack=2)

    def add(obs: Any, next_obs: Any, done: bool = False) -> None:
        pair = (np.array([obs], np.float32), np.array([next_obs], np.float32))
        frames.add(*pair, np.zeros(1, np.int64), np.ones(1), np.array([done]), [{}])

    with pytest.raises(errors.ArgumentError, match="observation must be the previous stack, shifted by one new frame"):
        add([0, 1], [2, 3])
    with pytest.raises(errors.ArgumentError, match="observation must begin with frames that are 'zeros'"):
        add([1, 1], [1, 2])
    with pytest.raises(errors.ArgumentError, match=r"observation must be a stack of 2 frames, got shape \(1, 3\)"):
        add([0, 0, 1], [0, 1, 2])
    assert frames.size() == 0
    add([0, 1], [1, 2])
    with pytest.raises(errors.ArgumentError, match="observation must begin with frames that are 'zeros'"):
        add([1, 3], [3, 4])
    add([1, 2], [2, 3])
    assert (frames.size(), frames.buffer.get_stats().truncated_episodes) == (2, 0)
    with pytest.raises(errors.ArgumentError, match="reward must be finite"):
        pair = np.array([[[0, 5]], [[5, 6]]], np.float32)
        frames.add(pair[0], pair[1], np.zeros(1, np.int64), np.array([np.nan]), np.array([False]), [{}])
    assert frames.buffer.get_stats().open_episodes == 1
    add([2, 3], [3, 3], done=True)
    with pytest.raises(errors.ArgumentError, match="observation must begin with frames that are 'zeros'"):
        add([3, 3], [3, 4])
    first = relive_sb3.ReplayBuffer(9, spaces.Box(0, 9, (4,)), DISCRETE, "cpu", frame_stack=4, stack_padding="first")
    frames = first
    with pytest.raises(errors.ArgumentError, match="observation must begin with frames that are 'first'"):
        add([1, 1, 1, 2], [1, 1, 2, 3])
    add([1, 1, 1, 1], [1, 1, 1, 2])
    assert first.sample(1).observations.tolist() == [[1, 1, 1, 1]]


# Draws.


def filled(count: int = 20, n_envs: int = 1, **settings: Any) -> Any:
    buffer = relive_sb3.ReplayBuffer(count, spaces.Box(0, 99, (3,)), DISCRETE, "cpu", n_envs, **settings)
    play(described(n_envs), count // n_envs, buffer)
    return buffer


def test_draws_are_uniform_over_the_steps_of_all_environments() -> None:
    buffer = filled(20, 4, seed=0)
    places: dict[tuple[Any, ...], int] = {}
    for place in map(tuple, buffer.sample(20_000).observations.tolist()):
        places[place] = places.get(place, 0) + 1
    assert len(places) == 20
    testing.assert_frequencies([*places.values()], [1 / 20] * 20)


def test_batches_are_on_the_device_of_the_algorithm() -> None:
    buffer = relive_sb3.ReplayBuffer(9, BOX, BOX, "meta")
    step = np.zeros((1, 2), np.float32)
    buffer.add(step, step, step, np.zeros(1), np.array([False]), [{}])
    assert {part.device.type for part in buffer.sample(4) if part is not None} == {"meta"}


@pytest.mark.parametrize("n_steps", [1, 3])
def test_a_batch_costs_little_more_than_that_of_the_buffer(n_steps: int) -> None:
    buffer = relive_sb3.ReplayBuffer(9, BOX, BOX, "cpu", n_steps=n_steps, gamma=0.9)
    step = np.zeros((1, 2), np.float32)
    for _ in range(20):
        buffer.add(step, step, step, np.zeros(1), np.array([False]), [{}])
    own, theirs = (call_counts_test.count(functools.partial(each.sample, 4)) for each in (buffer, buffer.buffer))
    assert own <= theirs + 50


def test_samples_may_be_written_to() -> None:
    buffer = filled(seed=0)
    before = all_of(buffer)
    samples = buffer.sample(64)
    for part in samples[:5]:
        part[...] = 77
    assert all_of(buffer) == before


def test_the_seed_of_the_algorithm_is_that_of_the_draws() -> None:
    runs = [model_of(stable_baselines3.DQN, "CartPole-v1", seed=seed).learn(100) for seed in (0, 0, 1)]
    weights = [torch.cat([part.flatten() for part in run.policy.parameters()]) for run in runs]
    assert torch.equal(weights[0], weights[1])
    draws = [filled(seed=run.replay_buffer.buffer.rng).sample(64).observations for run in runs]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_a_custom_seed_is_used() -> None:
    keywords: dict[str, Any] = {"replay_buffer_kwargs": {"seed": 5}}
    models = [model_of(stable_baselines3.DQN, described(), seed=seed, **keywords) for seed in (0, 1)]
    draws = [model.learn(30).replay_buffer.sample(64).observations for model in models]
    assert torch.equal(*draws)


def test_the_global_generator_of_numpy_is_not_used() -> None:
    draws = []
    for seed in (3, 4):
        np.random.seed(seed)  # noqa: NPY002
        buffer = filled(seed=0)
        before: Any = np.random.get_state(legacy=False)  # noqa: NPY002
        draws.append(buffer.sample(64).observations)
        np.testing.assert_equal(np.random.get_state(legacy=False), before)  # noqa: NPY002
    assert torch.equal(*draws)


def test_the_generator_of_the_action_space_is_not_advanced() -> None:
    draws = []
    for seed in (3, 3, 4):
        space = spaces.Discrete(3, seed=seed)
        before = space.np_random.bit_generator.state
        buffer: Any = relive_sb3.ReplayBuffer(20, spaces.Box(0, 99, (3,)), space, "cpu")
        play(described(), 20, buffer)
        draws.append(buffer.sample(64).observations)
        assert space.np_random.bit_generator.state == before
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


# As a whole.


def test_capacity_counts_the_steps_of_all_environments_exactly() -> None:
    buffer = relive_sb3.ReplayBuffer(10, spaces.Box(0, 99, (3,)), DISCRETE, "cpu", 4)
    sizes = []
    for count in (1, 1, 1):
        play(described(4), count, buffer)
        sizes.append((buffer.size(), buffer.pos, buffer.full))
    assert sizes == [(4, 4, False), (8, 8, False), (10, 2, True)]
    buffer.reset()
    assert (buffer.size(), buffer.pos, buffer.full) == (0, 0, False)
    with pytest.raises(errors.NotReadyError, match="sample has nothing to draw: no step is stored"):
        buffer.sample(1)
    obs = np.zeros((4, 3), np.float32)
    buffer.buffer.extend(obs, np.zeros((4, 1), np.int64), np.ones(4, np.float32), obs)
    assert (buffer.size(), buffer.pos, buffer.full) == (4, 4, False)


def test_a_reset_of_the_buffer_clears_its_stacks() -> None:
    env = stacked(1)
    frames = relive_sb3.ReplayBuffer(50, env.observation_space, env.action_space, "cpu", frame_stack=3)
    play(env, 2, frames)
    frames.reset()
    play(env, 2, frames)
    assert frames.size() == 2


def test_several_steps_may_be_added_in_one_call() -> None:
    env, one, other = described(2), filled(20, 2), filled(20, 2)
    obs = env.reset()
    action, reward, done = np.zeros(2, np.int64), np.ones(2), np.zeros(2, np.bool_)
    step: tuple[Any, ...] = (obs, obs + 1, action, reward, done, [{}, {}])
    one.add(*step)
    other.extend(*([part] for part in step))
    assert all_of(one) == all_of(other)


@pytest.mark.parametrize("way", ["pickle", "checkpoint"])
def test_a_saved_buffer_of_sb3_goes_on_identically(way: str, tmp_path: pathlib.Path) -> None:
    model = model_of(stable_baselines3.DQN, described(2)).learn(50)
    other = model_of(stable_baselines3.DQN, described(2), seed=1)
    if way == "pickle":
        model.save_replay_buffer(tmp_path / "buffer.pkl")
        other.load_replay_buffer(tmp_path / "buffer.pkl")
    else:
        model.replay_buffer.buffer.save(tmp_path / "buffer")
        other.replay_buffer.buffer = relive.RingReplayBuffer.load(tmp_path / "buffer")
    assert (other.replay_buffer.pos, other.replay_buffer.full) == (50, False)
    assert len({str([rows(each.replay_buffer.sample(8)) for _ in range(5)]) for each in (model, other)}) == 1
    other.learn(50)
    assert other.replay_buffer.size() == 100


def test_a_saved_algorithm_makes_the_same_buffer(tmp_path: pathlib.Path) -> None:
    settings = {"n_steps": 2, "gamma": 0.5}
    model = model_of(stable_baselines3.DQN, described(2), replay_buffer_kwargs=settings).learn(30)
    model.save(tmp_path / "model.zip")
    other: Any = stable_baselines3.DQN.load(tmp_path / "model.zip", described(2), device="cpu")
    assert isinstance(other.replay_buffer, relive_sb3.ReplayBuffer)
    assert other.replay_buffer.buffer.window == model.replay_buffer.buffer.window
    assert other.learn(30).replay_buffer.size() == 30


def test_invalid_arguments_of_an_sb3_buffer_are_refused() -> None:
    space = spaces.Box(0, 99, (3,))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"buffer_size": 0}, "buffer_size must be at least 1, got 0"),
        ({"buffer_size": 3, "n_envs": 4}, "buffer_size must be at least n_envs = 4, got 3"),
        ({"optimize_memory_usage": 2}, "optimize_memory_usage must be True or False, got 2"),
        ({"handle_timeout_termination": None}, "handle_timeout_termination must be True or False, got None"),
        ({"n_steps": 0}, "n_steps must be at least 1, got 0"),
        ({"n_steps": 2}, "gamma must be given with n_steps = 2"),
        ({"gamma": 1.5}, r"gamma must be in \(0, 1\], got 1.5"),
        ({"frame_stack": 0}, "frame_stack must be at least 1, got 0"),
        ({"frame_stack": 2}, r"observation_space must stack 2 frames along its first axis, got shape \(3,\)"),
        (
            {"frame_stack": 2, "observation_space": spaces.Box(0, 9, ())},
            r"observation_space must stack 2 frames along its first axis, got shape \(\)",
        ),
        ({"stack_padding": "no"}, "stack_padding must be 'zeros' or 'first', got 'no'"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
    ]
    for settings, message in cases:
        keywords: dict[str, Any] = {"buffer_size": 9, "observation_space": space, "action_space": DISCRETE} | settings
        with pytest.raises(errors.ArgumentError, match=message):
            relive_sb3.ReplayBuffer(**keywords)


@pytest.mark.parametrize("name", ["observations", "next_observations", "actions", "rewards", "timeouts"])
def test_arrays_of_sb3_are_missing_with_a_remedy(name: str) -> None:
    with pytest.raises(AttributeError, match=r"call self.buffer.read\(self.buffer.eligible_keys\(\)\)"):
        getattr(filled(), name)


def test_a_buffer_with_other_settings_is_refused() -> None:
    buffer = filled()
    before = buffer.buffer
    assert before.schema is not None
    for other, message in [
        (relive.RingReplayBuffer(21, before.schema), "buffer must have capacity = 20, got 21"),
        (relive.RingReplayBuffer(20, before.schema, streams=2), "buffer must have streams = 1, got 2"),
        (relive.RingReplayBuffer(20), r"buffer must have schema = Schema\(.*, got None"),
        (relive.RingReplayBuffer(20, before.schema, n_step=2), r"buffer must have window = .*n_step=2"),
        (buffer, "buffer must be an instance of RingReplayBuffer"),
    ]:
        with pytest.raises(errors.ArgumentError, match=message):
            buffer.buffer = other
    assert buffer.buffer is before


def test_observations_outside_their_space_are_refused() -> None:
    buffer = filled()
    before = all_of(buffer)
    for obs, message in [
        (np.full((1, 3), 0.1), "observation must be of dtype float32, got float64: cast it with"),
        (np.zeros((1, 4), np.float32), r"observation must be of shape \(3,\), got \(4,\)"),
        (np.zeros((2, 3), np.float32), r"observation must be of 1 environments, got shape \(2, 3\)"),
        (np.zeros(3, np.float32), r"observation must be of 1 environments, got shape \(3,\)"),
    ]:
        with pytest.raises(errors.SchemaError, match=message):
            buffer.add(obs, obs, np.zeros(1, np.int64), np.ones(1), np.array([False]), [{}])
    assert all_of(buffer) == before


@pytest.mark.parametrize("n_envs", [1, 2])
def test_a_step_of_another_number_of_environments_is_refused(n_envs: int) -> None:
    buffer = filled(20, n_envs)
    before = all_of(buffer)
    obs, action = np.zeros((n_envs, 3), np.float32), np.zeros(n_envs, np.int64)
    fine: dict[str, Any] = {"reward": np.ones(n_envs), "done": np.zeros(n_envs, np.bool_), "infos": [{}] * n_envs}
    wrong: dict[str, Any] = {"reward": np.ones(n_envs + 1), "done": np.zeros(0, np.bool_), "infos": [{}] * (n_envs + 1)}
    message = f"reward, done and infos must be of {n_envs} environments, got "
    for name, value in wrong.items():
        with pytest.raises(errors.SchemaError, match=message):
            buffer.add(obs, obs, action, **(fine | {name: value}))
    assert all_of(buffer) == before


# Hindsight.


class Goals(Described):
    """Observes its place and its goal; the reward is the distance, and the goal is never reached."""

    def __init__(self, number: int = 0, *, kind: str = "vector") -> None:
        super().__init__(number)
        place = spaces.Discrete(1_000) if kind == "discrete" else spaces.Box(0, 1_000, (3,), np.float32)
        self.kind = kind
        self.observation_space = spaces.Dict({"achieved_goal": place, "desired_goal": place, "observation": place})

    def look(self) -> Any:
        here = np.array([self.number, self.episode, self.t], np.float32)
        goal = np.full(3, 900, np.float32)
        if self.kind == "discrete":
            return {"achieved_goal": self.t, "desired_goal": 900, "observation": self.t}
        return {"achieved_goal": here, "desired_goal": goal, "observation": here}

    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> Any:
        assert len(infos) == len(achieved)
        return 10 - np.abs(achieved - desired).sum(axis=-1)


def goals(count: int = 1, **options: Any) -> vec_env.DummyVecEnv:
    return vec_env.DummyVecEnv([lambda number=number: Goals(number, **options) for number in range(count)])


def with_hindsight(env: Any, **settings: Any) -> tuple[Any, Any]:
    """Return a buffer of relive and one of Stable-Baselines3, with whole episodes of every environment."""
    arguments = (200, env.observation_space, DISCRETE, env, "cpu", env.num_envs)
    made: tuple[Any, Any] = (
        relive_sb3.HerReplayBuffer(*arguments, seed=0, **settings),
        her.HerReplayBuffer(*arguments, **settings),
    )
    # Three episodes have 3 + 4 + 5 steps, in whichever order.
    play(env, 12, *made)
    return made


@pytest.fixture
def seeded() -> None:
    np.random.seed(0)  # noqa: NPY002


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("strategy", ["future", "FINAL", her.GoalSelectionStrategy.EPISODE])
@pytest.mark.parametrize("kind", ["vector", "discrete"])
@pytest.mark.parametrize("is_normalized", [False, True])
def test_hindsight_draws_the_transitions_of_sb3(strategy: Any, kind: str, is_normalized: bool) -> None:
    env = goals(2, kind=kind)
    ours, theirs = with_hindsight(env, n_sampled_goal=1, goal_selection_strategy=strategy)
    normalize: Any = None
    if is_normalized:
        normalize = vec_env.VecNormalize(env, norm_obs=kind == "vector")
        normalize.ret_rms.var = np.float64(4)
    assert {*rows(ours.sample(6_000, normalize))} == {*rows(theirs.sample(6_000, normalize))}


class Costly(Goals):
    """Its reward depends on what a step took, by its infos."""

    def step(self, action: Any) -> Any:
        *others, info = super().step(action)
        energy = 0.1 * self.number + self.t
        return *others, {**info, "energy": energy, "joint": {"angle": np.array([energy, 2.0])}, "text": "left out"}

    def compute_reward(self, achieved: Any, desired: Any, infos: Any) -> Any:
        energies = [np.float32(info["energy"]) + np.float32(info["joint"]["angle"][1]) for info in infos]
        return super().compute_reward(achieved, desired, infos) - np.array(energies, np.float32)


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("n_envs", [1, 2])
def test_compute_reward_gets_the_infos_that_are_stored(n_envs: int) -> None:
    env = vec_env.DummyVecEnv([lambda number=number: Costly(number) for number in range(n_envs)])
    arguments = (200, env.observation_space, DISCRETE, env, "cpu", n_envs)
    fields = {"energy": relive.Field((), "float32"), "joint": {"angle": relive.Field((2,), "float64")}}
    ours = relive_sb3.HerReplayBuffer(*arguments, n_sampled_goal=1, copy_info_dict=True, infos=fields, seed=0)
    theirs = her.HerReplayBuffer(*arguments, n_sampled_goal=1, copy_info_dict=True)
    play(env, 12, ours, theirs)
    assert {*rows(ours.sample(6_000))} == {*rows(theirs.sample(6_000))}
    env.env_method("reset")
    bare = vec_env.DummyVecEnv([lambda number=number: Goals(number) for number in range(n_envs)])
    before = ours.size()
    with pytest.raises(errors.ArgumentError, match="info must hold 'energy' for the extra 'infos', got"):
        play(bare, 1, ours)
    assert ours.size() == before


@pytest.mark.parametrize(("n_sampled_goal", "batch_size", "count"), [(0, 9, 0), (1, 9, 4), (4, 256, 204)])
def test_as_many_transitions_get_new_goals_as_in_sb3(n_sampled_goal: int, batch_size: int, count: int) -> None:
    ours, theirs = with_hindsight(goals(), n_sampled_goal=n_sampled_goal)
    for replay_buffer in (ours, theirs):
        samples = replay_buffer.sample(batch_size)
        assert (samples.observations["desired_goal"] != 900).all(dim=1).sum() == count
        torch.testing.assert_close(
            *(part["desired_goal"] for part in (samples.observations, samples.next_observations))
        )


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        (stable_baselines3.DQN, {}),
        (stable_baselines3.DQN, {"discrete_obs_space": True}),
        (stable_baselines3.SAC, {"continuous": True}),
        pytest.param(stable_baselines3.DDPG, {"continuous": True}, marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("n_envs", [1, 2])
def test_an_algorithm_trains_in_hindsight(algorithm: Any, settings: Any, n_envs: int) -> None:
    env = vec_env.DummyVecEnv([lambda: envs.BitFlippingEnv(4, **settings)] * n_envs)
    keywords: dict[str, Any] = {"n_sampled_goal": 4, "goal_selection_strategy": "future", "copy_info_dict": False}
    model = algorithm(
        "MultiInputPolicy",
        env,
        replay_buffer_class=relive_sb3.HerReplayBuffer,
        replay_buffer_kwargs=keywords,
        buffer_size=200,
        learning_starts=20,
        batch_size=16,
        policy_kwargs={"net_arch": [8]},
        seed=0,
        device="cpu",
    ).learn(240)
    stats = model.replay_buffer.buffer.get_stats()
    assert (stats.size, stats.spliced_episodes, stats.sampled > 0) == (200, 0, True)
    assert (model.replay_buffer.sample(500).rewards == 0).any()
    model.replay_buffer.buffer.check()


def test_hindsight_is_saved_and_loaded_by_an_algorithm(tmp_path: pathlib.Path) -> None:
    settings: dict[str, Any] = {"replay_buffer_class": relive_sb3.HerReplayBuffer, "seed": 0, "device": "cpu"}
    model = stable_baselines3.DQN("MultiInputPolicy", goals(), **settings).learn(20)
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    other: Any = stable_baselines3.DQN("MultiInputPolicy", goals(), **settings)
    other.load_replay_buffer(tmp_path / "buffer.pkl", truncate_last_traj=False)
    kept: Any = model.replay_buffer
    assert other.replay_buffer.buffer.get_stats().open_episodes == kept.buffer.get_stats().open_episodes == 1
    assert rows(other.replay_buffer.sample(20)) == rows(kept.sample(20))
    other.load_replay_buffer(tmp_path / "buffer.pkl")
    assert other.replay_buffer.buffer.get_stats().open_episodes == 0
    assert other.learn(20).replay_buffer.size() == 40


def test_hindsight_needs_an_environment() -> None:
    env = goals()
    buffer: Any = relive_sb3.HerReplayBuffer(20, env.observation_space, DISCRETE, None, "cpu")
    play(env, 5, buffer)
    with pytest.raises(errors.NotReadyError, match="sample has no environment to compute rewards: call set_env first"):
        buffer.sample(4)
    assert buffer.buffer.get_stats().sampled == 0
    buffer.set_env(env)
    assert len(buffer.sample(4).rewards) == 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n_sampled_goal": -1}, "n_sampled_goal must be at least 0, got -1"),
        (
            {"goal_selection_strategy": "random"},
            "goal_selection_strategy must be 'future' or 'final' or 'episode', got",
        ),
        (
            {"copy_info_dict": True},
            r"copy_info_dict must be False without infos=\{key: Field\}, which says what is stored of them, got True",
        ),
        ({"observation_space": BOX}, r"observation_space must be a Dict with 'achieved_goal', got Box"),
        (
            {"observation_space": spaces.Dict({"achieved_goal": BOX})},
            "observation_space must be a Dict with 'desired_goal'",
        ),
        ({"buffer_size": 0}, "buffer_size must be at least 1, got 0"),
    ],
)
def test_invalid_arguments_of_hindsight_are_refused(wrong: dict[str, Any], message: str) -> None:
    env = goals()
    fine: dict[str, Any] = {
        "buffer_size": 9,
        "observation_space": env.observation_space,
        "action_space": DISCRETE,
        "env": env,
    }
    with pytest.raises(errors.ArgumentError, match=message):
        relive_sb3.HerReplayBuffer(**(fine | wrong))
