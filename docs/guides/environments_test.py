"""The tables of what no recorder can see say what happens, for each library that is installed."""

import functools
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

import relive

pytest.importorskip("gymnasium", reason="gymnasium is not installed")

import gymnasium
from gymnasium import spaces
from gymnasium import vector

from relive.integrations import gymnasium as relive_gymnasium

GUIDES = pathlib.Path(__file__).parent
# The versions that the tables are of: module, name on a page, version. Older ones differ.
TESTED = {
    "ale_py": ("ale-py", "0.12.1"),
    "gymnasium": ("Gymnasium", "1.4.0"),
    "pettingzoo": ("PettingZoo", "1.27.0"),
    "supersuit": ("SuperSuit", "3.11.0"),
}
SAME_STEP, NEXT_STEP = vector.AutoresetMode.SAME_STEP, vector.AutoresetMode.NEXT_STEP


def library(name: str) -> Any:
    """Return a module, of the version on the page or a newer one."""
    version = TESTED[name][1] if name in TESTED else None
    return pytest.importorskip(name, version, reason=f"{name} {version or ''} is not installed", exc_type=ImportError)


def test_the_tables_name_the_versions() -> None:
    pages = (GUIDES / "gymnasium.md").read_text("utf-8") + (GUIDES / "multi_agent.md").read_text("utf-8")
    assert [" ".join(each) for each in TESTED.values() if f"| {' '.join(each)}" not in pages] == []


def recorded(envs: Any, actions: Any, count: int, **settings: Any) -> relive.RingReplayBuffer:
    """Return a buffer with so many steps of each environment of a vector environment."""
    schema = relive_gymnasium.from_env(envs, extras=settings.pop("extras", None), check_finite=True)
    buffer = relive.RingReplayBuffer(1000, schema, streams=envs.num_envs)
    recorder = relive_gymnasium.VectorRecorder(envs, buffer, **settings)
    recorder.reset(seed=1)
    for _ in range(count):
        recorder.step(actions)
    return buffer


# Gymnasium.


class Counting(gymnasium.Env[Any, Any]):
    """Observes its episode and its step, of two in an episode."""

    observation_space: Any = spaces.Box(0, 100, (2,), np.int64)
    action_space: Any = spaces.Discrete(2)

    def __init__(self, info: Any = 0, *, reuse: bool = False) -> None:
        self.info, self.episode, self.time, self.shown = info, -1, 0, np.zeros(2, np.int64)
        self.reuse = reuse

    def observe(self) -> Any:
        self.shown[...] = self.episode, self.time
        return self.shown if self.reuse else self.shown.copy()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode, self.time = self.episode + 1, 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.observe(), 1.0, self.time == 2, False, {"x": self.info}


def make_phys2d(mode: str) -> Any:
    library("gymnasium")
    pytest.importorskip(
        "gymnasium.envs.phys2d.cartpole", reason="gymnasium[jax] is not installed", exc_type=ImportError
    )
    return gymnasium.make_vec("phys2d/CartPole-v1", 2, vectorization_mode=mode)


@pytest.mark.filterwarnings("ignore::UserWarning:gymnasium")
def test_jax_environments_stand_still_while_others_are_reset() -> None:
    for mode, num_still in (("vector_entry_point", 1), ("sync", 0)):
        buffer = relive.RingReplayBuffer(100, streams=2)
        envs = relive_gymnasium.VectorRecorder(make_phys2d(mode), buffer)
        envs.reset(seed=1)
        ended, count = np.zeros(2, bool), 0
        while not ended[0]:
            _, _, *flags, _ = envs.step(np.array([1, count % 2]))
            ended, count = np.logical_or(*map(np.asarray, flags)), count + 1
        envs.step(np.array([1, count % 2]))
        batch = buffer.read([len(buffer) - 1])
        assert (batch.observation == batch.next_observation).all() == num_still
        assert batch.reward.tolist() == [1.0]


@pytest.mark.parametrize(("infos", "stored"), [((1, 2.5), 2.0), ((True, 2.5), 1.0), ((1.0, 2.5), 2.5)])
def test_infos_take_the_type_of_the_first_environment(infos: Any, stored: float) -> None:
    library("gymnasium")
    envs = vector.SyncVectorEnv([functools.partial(Counting, info) for info in infos])
    extras = {"x": relive.Field((), "float32")}
    assert recorded(envs, np.zeros(2, int), 1, extras=extras, infos={"x": "x"}).read([1]).extras["x"] == stored


def test_an_info_of_none_becomes_nan() -> None:
    library("gymnasium")
    envs = vector.SyncVectorEnv([functools.partial(Counting, info) for info in (1.0, None)])
    with pytest.raises(relive.errors.SchemaError, match="^extras/x must be finite, got nan at "):
        recorded(envs, np.zeros(2, int), 1, extras={"x": relive.Field((), "float32")}, infos={"x": "x"})


@pytest.mark.parametrize(("reuse", "last"), [(True, [1, 0]), (False, [0, 2])])
def test_one_array_for_all_observations_loses_the_last_one(reuse: bool, last: Any) -> None:
    envs = vector.SyncVectorEnv([functools.partial(Counting, reuse=reuse)], autoreset_mode=SAME_STEP)
    assert recorded(envs, np.zeros(1, int), 2).read([1]).next_observation.tolist() == [last]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each process takes seconds to start")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(("shared_memory", "after", "reward"), [(True, [1, 1], 1.0), (False, [2, 0], 0.0)])
def test_a_reset_after_an_end_may_be_followed_by_another_one(shared_memory: bool, after: Any, reward: float) -> None:
    library("gymnasium")
    envs = vector.AsyncVectorEnv([Counting], shared_memory=shared_memory, context="fork")
    buffer = relive.RingReplayBuffer(100, relive_gymnasium.from_env(envs))
    recorder = relive_gymnasium.VectorRecorder(envs, buffer)
    for count in (2, 1):
        recorder.reset()
        for _ in range(count):
            recorder.step(np.zeros(1, int))
    recorder.close()
    batch = buffer.read([2])
    assert batch.observation.tolist() == [[1, 0]]
    assert (batch.next_observation.tolist(), batch.reward.tolist()) == ([after], [reward])


# Vector environments of others.


def test_an_atari_environment_says_itself_how_it_resets() -> None:
    """P144: their metadata are one dict, which all others read that have none of their own."""
    atari = library("ale_py").AtariVectorEnv
    library("gymnasium")
    short = {"num_envs": 2, "max_num_frames_per_episode": 40, "noop_max": 1}
    with pytest.MonkeyPatch.context() as context:
        context.setattr(vector.VectorEnv, "metadata", {})
        envs = [atari("pong", autoreset_mode=mode, **short) for mode in (SAME_STEP, NEXT_STEP)]
        assert [each.metadata["autoreset_mode"] for each in envs] == [NEXT_STEP, NEXT_STEP]
        buffers = [recorded(each, np.zeros(2, int), 30) for each in envs]
        assert [len(buffer) for buffer in buffers] == [60, 56]
        assert [buffer.get_stats().spliced_episodes for buffer in buffers] == [0, 0]

        class Undeclared(vector.VectorEnv[Any, Any, Any]):
            num_envs, single_observation_space, single_action_space = 2, spaces.Discrete(2), spaces.Discrete(2)

        with pytest.raises(relive.errors.ArgumentError, match="^env must declare how it resets"):
            relive_gymnasium.VectorRecorder(Undeclared(), relive.RingReplayBuffer(9, streams=2))


@pytest.mark.parametrize(("mode", "num_lost"), [("NextStep", 2), ("SameStep", 0)])
def test_a_step_is_lost_after_each_life_that_ends_an_episode(mode: str, num_lost: int) -> None:
    atari = library("ale_py").AtariVectorEnv
    library("gymnasium")
    settings = {"num_envs": 1, "autoreset_mode": mode, "life_loss_info": True, "noop_max": 1}
    fire = np.ones(1, int)  # Serves the ball, and does not move.
    with pytest.MonkeyPatch.context() as context:
        context.setattr(vector.VectorEnv, "metadata", {})
        envs = atari("breakout", **settings)
        envs.reset(seed=1)
        infos = [envs.step(fire)[-1] for _ in range(60)]
        assert {int(each["lives"][0]) for each in infos} == {5, 4, 3}
        assert set(np.diff([each["episode_frame_number"][0] for each in infos])) == {4}  # Every step is one.
        assert len(recorded(atari("breakout", **settings), fire, 60)) == 60 - num_lost


@pytest.mark.filterwarnings("ignore")
def test_final_observations_of_gymnax_are_recorded() -> None:
    """P145."""
    gymnax, wrappers = library("gymnax"), library("gymnax.wrappers.gym")
    env, params = gymnax.make("CartPole-v1")
    buffer = relive.RingReplayBuffer(100)
    single = relive_gymnasium.Recorder(wrappers.GymnaxToGymWrapper(env, params, seed=0), buffer)
    single.reset()
    ended = False
    while not ended:
        observation, _, terminated, truncated, info = single.step(1)
        ended = bool(terminated or truncated)
    (final,) = buffer.read([len(buffer) - 1]).next_observation.tolist()
    assert final == info["final_observation"].tolist() != observation.tolist()
    envs = wrappers.GymnaxToVectorGymWrapper(env, 2, params, seed=0)
    with pytest.raises(relive.errors.ArgumentError, match="^env must declare how it resets"):
        recorded(envs, np.array([1, 1]), 30)
    envs.metadata = {"autoreset_mode": SAME_STEP}
    batch = recorded(envs, np.array([1, 1]), 30).read(range(60))
    assert batch.is_terminal.sum() > 2
    assert np.abs(batch.next_observation - batch.observation).max() < 0.5  # None leads to the start of another episode.


# Several agents.


def race(*ends: int) -> Any:
    """Return an environment of two agents that observe the time, terminate after these, and are truncated after 3."""
    agents = dict(zip(("walker", "runner"), ends, strict=True))

    class Race(library("pettingzoo").ParallelEnv):  # type: ignore[misc]
        possible_agents: Any = list(agents)  # noqa: RUF012
        metadata: Any = {}  # noqa: RUF012
        observation_space = staticmethod(lambda agent: spaces.Box(0, 100, (1,), np.float32))
        action_space = staticmethod(lambda agent: spaces.Discrete(2))

        def seen(self) -> Any:
            return {agent: np.full(1, self.time, np.float32) for agent in self.agents}

        def reset(self, seed: Any = None, options: Any = None) -> Any:
            self.agents, self.time = list(agents), 1
            return self.seen(), {agent: {} for agent in agents}

        def step(self, actions: Any) -> Any:
            self.time += 1
            seen, present = self.seen(), self.agents
            terminations = {agent: self.time > agents[agent] for agent in present}
            truncations = dict.fromkeys(present, self.time > 3)
            rewards = dict.fromkeys(present, 1.0)
            self.agents = [agent for agent in present if not terminations[agent] and not truncations[agent]]
            return seen, rewards, terminations, truncations, {agent: {} for agent in present}

    return Race()


def played(env: Any) -> dict[str, Any]:
    """Return what is stored of an episode of an environment, of each agent."""
    buffer = relive.JointReplayBuffer(100, agents=env.possible_agents)
    observations, _ = env.reset()
    while env.agents:
        actions = dict.fromkeys(env.agents, 0)
        following, rewards, terminations, truncations, _ = env.step(actions)
        ends = {"terminations": terminations, "truncations": truncations}
        buffer.add(observations, actions, rewards, following, **ends)
        observations = following
    batch = buffer.read(buffer.eligible_keys())
    assert set(batch.episodes.tolist()) == {0}
    return dict(batch.agents)


def test_several_episodes_in_one_are_recorded_as_one() -> None:
    agent = played(race(3, 3))["walker"]
    assert agent.next_observation[:, 0].tolist() == [2, 3, 4]
    assert agent.is_terminal.tolist() == [False, False, True]
    agent = played(library("pettingzoo").utils.wrappers.MultiEpisodeParallelEnv(race(3, 3), 2))["walker"]
    assert agent.next_observation[:, 0].tolist() == [2, 3, 1, 2, 3, 4]
    assert not agent.is_terminal.any()


def test_black_death_terminates_where_time_is_up_and_adds_a_step() -> None:
    library("pettingzoo")
    black_death = library("supersuit").black_death_v3
    agents = played(race(9, 2))
    assert agents["walker"].next_observation[:, 0].tolist() == [2, 3, 4]
    assert not agents["walker"].is_terminal.any()
    assert agents["runner"].mask.tolist() == [True, True, False]
    agents = played(black_death(race(9, 2)))
    assert agents["walker"].next_observation[:, 0].tolist() == [2, 3, 4, 0]
    assert agents["walker"].reward.tolist() == [1, 1, 1, 0]
    assert agents["walker"].is_terminal.tolist() == [False, False, False, True]
    assert agents["runner"].mask.all()
    assert agents["runner"].is_terminal.tolist() == [False, False, False, True]
