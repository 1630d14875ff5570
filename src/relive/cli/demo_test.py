"""The demo as a user meets it: what is printed and drawn, and the exit code."""

import argparse
import asyncio
from collections.abc import Iterator
import copy
import functools
import gc
import os
import pathlib
import re
import signal
import sys
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration
import numpy as np
import pytest

from relive import cli
from relive.cli import command_line
from relive.cli import demo

PNG = b"\x89PNG\r\n\x1a\n"


class Corridor(gym.Env[np.ndarray, np.int64]):
    """Walk to the right end in four steps: action 6 goes there, 5 stays, and 7 gives up."""

    observation_space = gym.spaces.Box(0, 4, (1, 1), np.int16)
    action_space = gym.spaces.Discrete(3, start=5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        return np.full((1, 1), self.place, np.int16), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert 5 <= action <= 7
        self.place += int(action == 6)
        return np.full((1, 1), self.place, np.int16), -1.0, bool(action == 7 or self.place == 4), False, {}


class Broken(Corridor):
    def __init__(self) -> None:
        raise OSError("no\n  camera.")


class Endless(Corridor):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros((1, 1), np.int16), 1.0, False, False, {}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "registry", dict(gym.registry))
    gym.register("Corridor-v0", lambda **_: Corridor(), max_episode_steps=20)
    gym.register("Broken-v0", lambda **_: Broken())
    gym.register("Endless-v0", lambda **_: Endless(), disable_env_checker=True)


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A shell starts background jobs with interrupts ignored, and these tests may be one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learn from the hundredth step on, and check the network often."""
    monkeypatch.setattr(demo, "WARM_UP", 100)
    monkeypatch.setattr(demo, "CHECK_UPDATES", 25)


def run(env: str = "Corridor-v0", **options: Any) -> int:
    defaults = {"env": env, "seed": 0, "steps": 300, "actors": 3, "plot": "curve.png", "quiet": True}
    return demo.run(argparse.Namespace(**(defaults | options)))


def trained(seed: int = 0, steps: int = 600, env: str = "CartPole-v1") -> demo.Training:
    options = argparse.Namespace(env=env, seed=seed, steps=steps, actors=3)
    training = demo.Training(options, lambda line: None)
    asyncio.run(training.run())
    return training


@functools.cache
def learned() -> demo.Training:
    """Return the one run that several tests look at."""
    return trained(4)


@pytest.mark.usefixtures("_quick")
def test_the_demo_reports_its_duration_and_each_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("CartPole-v1", steps=500, quiet=False) == 0
    first, *checks, curve, last, following = capsys.readouterr().out.splitlines()
    *checks, _, _, _, _, evaluated = checks
    assert evaluated == "evaluated the best network in 100 of 100 episodes"
    assert following == "read next: https://relive-rl.github.io/relive/get_started.html writes such a program"
    assert first == "learning CartPole-v1: 10 to 120 seconds, at most 500 steps"
    assert checks[0].startswith("      0 steps   exploring   none   greedy ")
    assert len(checks) >= 4
    assert all(re.fullmatch(r" +\d+ steps   exploring .{6}   greedy +\d+\.\d", line) for line in checks)
    assert max(map(len, (first, *checks))) <= 60
    assert curve == "the learning curve goes to curve.png"
    assert re.fullmatch(r"not solved CartPole-v1: mean return \d+\.\d \(goal 475\), 500 steps, \d+ s", last)
    assert len(last) <= 80


def test_quiet_prints_the_last_line_alone(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    """Steps below the warm-up end without learning."""
    assert run("CartPole-v1", steps=50) == 0
    assert re.fullmatch(r"not solved CartPole-v1: .* \(goal 475\), 50 steps, \d+ s\n", capsys.readouterr().out)
    assert (tmp_path / "curve.png").read_bytes().startswith(PNG)
    training = trained(0, steps=100)
    assert training.steps == 100
    assert training.buffer.get_stats().sampled == 0
    assert [steps for steps, _ in training.checks] == [0, 100]


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize(
    ("env", "steps", "said"),
    [
        ("Corridor-v0", 600, "learned Corridor-v0: mean return -1.0, "),
        ("Short-v0", 100_000, "solved Short-v0: mean return -1.0 (goal -4), "),
    ],
)
def test_a_solved_task_ends_the_training(
    env: str, steps: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One without a threshold is learned to the end."""
    monkeypatch.setattr(demo, "LEAST_STEPS", 400)
    gym.register("Short-v0", lambda **_: Corridor(), max_episode_steps=20, reward_threshold=-4.0)
    assert run(env, steps=steps) == 0
    out = capsys.readouterr().out
    assert out.startswith(said)
    assert 400 <= int(re.findall(r"([\d,]+) steps", out)[0].replace(",", "")) < 10_000


def test_an_environment_without_a_limit_gets_one() -> None:
    environment = demo.make_environment("Endless-v0")
    environment.reset(seed=0)
    ends = [environment.step(0)[3] for _ in range(10_000)]
    assert ends.index(True) == 9_999


def test_demo_observations_are_scaled_and_actions_start_at_zero() -> None:
    environment = demo.make_environment("Corridor-v0")
    assert environment.reset(seed=0)[0].tolist() == [0.0]
    assert environment.step(1)[0].tolist() == [0.25]
    assert environment.step(2)[2] is True
    unbounded = demo.make_environment("CartPole-v1")
    np.testing.assert_allclose(
        unbounded.reset(seed=3)[0] * [4.8, 1.0, 24 * np.pi / 180, 1.0], gym.make("CartPole-v1").reset(seed=3)[0], 1e-6
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env": "CartPol-v1"}, r"cannot make environment 'CartPol-v1': .*doesn't exist.*"),
        ({"env": "no_such_module:Thing-v0"}, "cannot make environment 'no_such_module:Thing-v0': .*"),
        ({"env": "Broken-v0"}, "cannot make environment 'Broken-v0': no camera"),
        ({"env": "Pendulum-v1"}, r"Pendulum-v1 must have Box observations and Discrete actions, got .* and Box\(.*\)"),
        ({"env": "FrozenLake-v1"}, r"FrozenLake-v1 must .*, got Discrete\(16\) and Discrete\(4\)"),
        ({"plot": "nowhere/curve.png"}, "--plot must be a file that can be written, got nowhere/curve.png"),
        ({"plot": "."}, r"--plot must be a file that can be written, got \."),
    ],
)
def test_an_unsuitable_environment_is_refused_before_the_start(
    options: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        run(**options, quiet=False)
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.iterdir())


def test_a_run_survives_a_curve_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    arguments = ["demo", "--env", "Corridor-v0", "--steps", "50", "--plot", "nowhere/curve.png", "--quiet"]
    assert command_line.main(arguments) == 1
    said, error = capsys.readouterr()
    assert re.fullmatch(r"learned Corridor-v0: .* s\n", said)
    assert error == "relive demo: 'nowhere/curve.png': No such file or directory\n"


@pytest.mark.parametrize("name", ["gymnasium", "matplotlib"])
def test_a_missing_library_is_one_line_that_names_the_extra(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "relive.cli.demo")  # Import it anew.
    monkeypatch.delattr(cli, "demo")
    assert command_line.main(["demo"]) == 1
    assert capsys.readouterr() == (
        "",
        f'relive demo: {name} is not installed: it comes with the extra "demo" of relive\n',
    )


@pytest.mark.usefixtures("_quick")
def test_the_same_seed_gives_the_same_run() -> None:
    first, again, other = learned(), trained(4), trained(5, steps=150)
    assert first.episodes == again.episodes
    assert first.checks == again.checks
    assert first.episodes[: len(other.episodes)] != other.episodes
    observations = np.random.default_rng(0).normal(size=(10, 4))
    values = [training.best_network.values(observations) for training in (first, again)]
    assert (values[0] == values[1]).all()


@pytest.mark.usefixtures("_quick")
def test_the_demo_stores_the_steps_it_took() -> None:
    training = learned()
    training.buffer.check()
    stats = training.buffer.get_stats()
    assert (stats.in_progress, stats.num_agents) == (0, 3)
    assert stats.appended == training.steps == 600
    assert stats.completed == len(training.episodes) > 10
    assert stats.truncated <= 3  # those that were going on at the end
    assert stats.sampled == pytest.approx((600 - demo.WARM_UP) * demo.SAMPLES_PER_STEP, abs=5 * demo.BATCH_SIZE)
    assert 400 < sum(each for _, each in training.episodes) <= 600


def test_greedy_returns_are_those_of_single_environments() -> None:
    training = trained(0, steps=20)
    seed = int(copy.deepcopy(training._check_rng).integers(2**31))
    returns = []
    for number in range(demo.EPISODES):
        environment = demo.make_environment("CartPole-v1")
        observation, _ = environment.reset(seed=seed + number)
        total, has_ended = 0.0, False
        while not has_ended:
            action = int(training.best_network.values(observation[np.newaxis]).argmax())
            observation, reward, terminated, truncated, _ = environment.step(action)
            total, has_ended = total + float(reward), terminated or truncated
        returns.append(total)
    assert len(set(returns)) > 1
    assert training.play(training.best_network).tolist() == returns


def test_adam_first_steps_against_the_gradient() -> None:
    """The gradient by backpropagation has the signs of that by finite differences."""
    rng = np.random.default_rng(0)
    network = demo.QNetwork((3, 8, 8, 2), rng)
    assert not network.values(np.zeros((1, 3))).any()
    observations, actions, targets = rng.normal(size=(16, 3)), rng.integers(2, size=16), rng.normal(size=16)

    def loss() -> float:
        return float(((network.values(observations)[np.arange(16), actions] - targets) ** 2).mean() / 2)

    slopes = []
    for parameter in network._layers:
        for place in np.ndindex(parameter.shape):
            here, losses = parameter[place], []
            for there in (here - 1e-6, here + 1e-6):
                parameter[place] = there
                losses.append(loss())
            parameter[place] = here
            slopes.append((losses[1] - losses[0]) / 2e-6)
    before = np.concatenate([parameter.ravel() for parameter in network._layers])
    network.improve(observations, actions, targets, 1e-3)
    moves = np.concatenate([parameter.ravel() for parameter in network._layers]) - before
    is_steep = np.abs(slopes) > 1e-4
    assert is_steep.sum() > 50
    np.testing.assert_allclose(moves[is_steep], -1e-3 * np.sign(slopes)[is_steep], rtol=1e-2)


def press_ctrl_c(monkeypatch: pytest.MonkeyPatch, step: int, times: int = 1) -> None:
    """Let Ctrl-C be pressed at that step of the first actor."""
    make, made = demo.make_environment, list[object]()

    def make_one(name: str) -> demo.Environment:
        environment = make(name)
        made.append(environment)
        if len(made) > 1:
            return environment
        steps, count = environment.step, 0

        def stepped(action: Any) -> Any:
            nonlocal count
            count += 1
            if count == step:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
            return steps(action)

        monkeypatch.setattr(environment, "step", stepped)
        return environment

    monkeypatch.setattr(demo, "make_environment", make_one)


@pytest.mark.parametrize("quiet", [False, True])
def test_a_first_interrupt_ends_with_what_was_learned(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    press_ctrl_c(monkeypatch, step=10)
    assert run(quiet=quiet) == 130
    out, err = capsys.readouterr()
    lines = out.splitlines()
    said, last = (lines[:-1], lines[-1]) if quiet else (lines[:-2], lines[-2])
    assert re.fullmatch(r"interrupted Corridor-v0: mean return .*, [23]\d steps, \d+ s", last)
    if quiet:
        assert said == []
    else:
        assert said[-7] == "stopping: what was learned so far is evaluated (Ctrl-C again to leave at once)"
    assert err == ""
    assert (tmp_path / "curve.png").read_bytes().startswith(PNG)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("name", ["play", "draw"])
def test_an_interrupt_while_evaluating_or_drawing_is_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also after two of them while it learns."""
    press_ctrl_c(monkeypatch, step=10, times=2)
    owner = demo if name == "draw" else demo.Training
    original, checks = getattr(owner, name), 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal checks
        checks += 1
        if name == "draw" or checks > 5:  # Before that, `play` is a check.
            signal.raise_signal(signal.SIGINT)
        return original(*arguments)

    monkeypatch.setattr(owner, name, interrupted)
    assert command_line.main(["demo", "--env", "Corridor-v0", "--quiet"]) == 130
    gc.collect()
    said, error = capsys.readouterr()
    assert said.startswith("interrupted Corridor-v0: ") == (name == "draw")
    assert error == "\nrelive demo: interrupted\n"


def test_ignored_interrupts_stay_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    press_ctrl_c(monkeypatch, step=10)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert run() == 0
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_cartpole_is_solved(seed: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("CartPole-v1", seed=seed, steps=30_000, actors=8) == 0
    assert capsys.readouterr().out.startswith("solved CartPole-v1 ")
