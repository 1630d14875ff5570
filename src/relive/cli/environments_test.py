import gymnasium as gym
from gymnasium.envs import registration
import numpy as np
import pytest

from relive.cli import environments
from relive.cli import tasks


class Counting(gym.Env[np.ndarray, np.int64]):
    """Three actions that Gymnasium counts from 5; action 7 ends the episode, otherwise it never ends."""

    observation_space = gym.spaces.Box(0.0, 1e6, (1,), np.float32)
    action_space = gym.spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):  # type: ignore[no-untyped-def]
        super().reset(seed=seed)
        self.count = 0
        return np.array([0.0], np.float32), {}

    def step(self, action):  # type: ignore[no-untyped-def]
        assert 5 <= action <= 7
        self.count += 1
        return np.array([self.count], np.float32), 1.0, action == 7, False, {}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "registry", dict(gym.registry))
    gym.register("Counting-v0", lambda **_: Counting(), disable_env_checker=True)


class Broken(Counting):
    """Its maker forgot something."""

    def __init__(self) -> None:
        raise OSError("no\n  camera.")


def test_whatever_a_constructor_raises_is_one_line() -> None:
    gym.register("Broken-v0", lambda **_: Broken())
    with pytest.raises(ValueError, match=r"^cannot make environment 'Broken-v0': no camera$"):
        environments.Environment("Broken-v0")


def test_a_large_space_is_named_on_one_line() -> None:
    class Wide(Counting):
        observation_space = gym.spaces.Box(np.zeros((40, 40), np.float32), np.ones((40, 40), np.float32))

    gym.register("Wide-v0", lambda **_: Wide(), disable_env_checker=True)
    with pytest.raises(ValueError, match="must be a Box of one axis, got Box") as caught:
        environments.Environment("Wide-v0")
    assert "\n" not in str(caught.value)


def test_actions_are_counted_from_zero() -> None:
    environment = environments.Environment("Counting-v0")
    assert (environment.num_actions, environment.observation_width, environment.solved_at) == (3, 1, None)
    environment.reset(seed=1)
    assert environment.step(2)[2:] == (True, False)


def test_an_environment_without_a_limit_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "LONGEST_EPISODE", 50)
    environment = environments.Environment("Counting-v0")
    assert tasks.play(environment, lambda: lambda observation: 0, episodes=1).tolist() == [50.0]


def test_a_seed_repeats_the_episodes() -> None:
    first, second = (environments.Environment("CartPole-v1") for _ in range(2))
    for environment in (first, second):
        environment.reset(seed=3)
    for _ in range(3):
        assert first.reset().tolist() == second.reset().tolist()
    assert first.reset().dtype == np.float64
    first.close()
