"""`relive demo`: actors play, a learner learns from what they did, and a picture shows how it went.

    8 actors: act epsilon-greedily         EpisodeReplayBuffer          1 learner: 3-step double Q-learning
    await writer.append(...)       ────►   SampleToInsertRatio   ────►  await buffer.sample_n_step(...)
    await writer.end(...)                  keeps both in step           better network, which the actors use

All of them are coroutines that wait for the buffer alone. No clock decides anything, and every random number comes from
the seed: the same options give the same run.
"""

import argparse
import asyncio
from collections.abc import Callable, Iterator, Sequence
import contextlib
import copy
import itertools
import os
import pathlib
import sys
import time
from typing import Any, TypeAlias
import warnings

import numpy as np

import relive
from relive import errors
from relive.common import arrays
from relive.common import imports
from relive.persistence import files

with imports.optional_dependency("demo"):
    import gymnasium as gym
    from matplotlib import figure
    from rich import console as rich_console
    from rich import progress as rich_progress

Environment: TypeAlias = gym.Env[arrays.Floats, Any]
Sample: TypeAlias = relive.ReplaySample[arrays.Floats, int]

WARM_UP, BUFFER_STEPS = 1_000, 50_000
BATCH_SIZE, SAMPLES_PER_STEP = 32, 8  # One update for four steps.
HIDDEN_WIDTHS = (128, 64)
"""With wider ones, or larger batches, OpenBLAS starts threads for each small product: much slower on a busy machine."""

N, GAMMA = 3, 0.99
EPSILON = relive.LinearSchedule(1.0, 0.05, steps=8_000)
"""The share of random actions, by environment steps over all actors."""

LEARNING_RATE = relive.LinearSchedule(1e-3, 1e-4, steps=24_000)
"""By the same steps: once little is random, a network that still changes fast forgets how to recover."""

LEAST_STEPS = 12_000
"""Training goes on so far even if the task is solved before, so that the returns of the actors rise as well."""

CHECK_UPDATES = 250
"""Updates from one greedy check to the next; each check renews the target network too."""

EPISODES = 20
"""In a check at least, in the evaluation, and in a running mean."""

NO_BOUND = 1e6
"""Bounds from here on, such as infinity or the largest float32, say nothing about the observations."""


class QNetwork:
    """The value of each action: observations [B, O] -> relu -> relu -> values [B, A], and Adam to improve it.

    Args:
        widths: Of the layers, from O to A.
        rng: Draws the weights, within +-sqrt(6 / inputs), which keeps the scale of what goes through (He et al. 2015).
    """

    def __init__(self, widths: Sequence[int], rng: np.random.Generator) -> None:
        self._weights = [
            rng.uniform(-1.0, 1.0, shape) * np.sqrt(6.0 / shape[0]) for shape in itertools.pairwise(widths)
        ]
        self._weights[-1] *= 0.01  # All values start near 0.
        self._biases = [np.zeros(width) for width in widths[1:]]
        self._parameters = [*self._weights, *self._biases]
        self._means = [np.zeros_like(parameter) for parameter in self._parameters]
        self._squares = [np.zeros_like(parameter) for parameter in self._parameters]
        self._updates = 0

    def values(self, observations: arrays.Floats) -> arrays.Floats:
        """Return the value of each action [B, A] in each of `observations` [B, O]."""
        return self._layers(observations)[-1]

    def improve(
        self, observations: arrays.Floats, actions: arrays.Ints, targets: arrays.Floats, learning_rate: float
    ) -> None:
        """Take one step of Adam (Kingma and Ba 2015) down the mean of (values[actions] - targets)^2 / 2.

        Squared, not Huber's: the few steps before a fall have the largest errors, and must not be outvoted.

        Args:
            observations: [B, O].
            actions: What was done in each of them [B].
            targets: What the value of that should be [B].
            learning_rate: Adam's.
        """
        layers, rows = self._layers(observations), np.arange(len(actions))
        slope = np.zeros_like(layers[-1])
        slope[rows, actions] = (layers[-1][rows, actions] - targets) / len(actions)
        weight_slopes, bias_slopes = [], []
        for weights, inputs in zip(reversed(self._weights), reversed(layers[:-1]), strict=True):
            weight_slopes.append(inputs.T @ slope)
            bias_slopes.append(slope.sum(axis=0))
            slope = (slope @ weights.T) * (inputs > 0.0)
        self._updates += 1
        rate = learning_rate * np.sqrt(1.0 - 0.999**self._updates) / (1.0 - 0.9**self._updates)
        gradient = [*reversed(weight_slopes), *reversed(bias_slopes)]
        for parameter, mean, square, part in zip(self._parameters, self._means, self._squares, gradient, strict=True):
            mean += 0.1 * (part - mean)
            square += 0.001 * (part * part - square)
            parameter -= rate * mean / (np.sqrt(square) + 1e-8)

    def _layers(self, observations: arrays.Floats) -> list[arrays.Floats]:
        """Return what goes into each layer, and last what comes out of the network."""
        layers = [observations]
        for weights, biases in zip(self._weights[:-1], self._biases[:-1], strict=True):
            layers.append(np.maximum(layers[-1] @ weights + biases, 0.0))
        return [*layers, layers[-1] @ self._weights[-1] + self._biases[-1]]


def make_environment(name: str) -> Environment:
    """Return the environment, with actions from 0 and observations [O], scaled to [-1, 1] where they have bounds.

    Scaled, because a network learns slowly from an angle that is never above 0.2 beside a speed that may be 2.

    Raises:
        ArgumentError: There is no such environment, or the demo cannot learn it.
    """
    try:
        environment: Environment = gym.make(name)
    except Exception as error:  # Whatever a constructor raises, the user should read one line.
        reason = _on_one_line(error).rstrip(".") or type(error).__name__
        raise errors.ArgumentError(f"cannot make environment {name!r}: {reason}") from error
    actions, observations = environment.action_space, environment.observation_space
    if not isinstance(actions, gym.spaces.Discrete):
        raise errors.ArgumentError(
            f"the actions of {name} must be Discrete for Q-learning, got {_on_one_line(actions)}"
        )
    if not isinstance(observations, gym.spaces.Box):
        raise errors.ArgumentError(f"the observations of {name} must be a Box, got {_on_one_line(observations)}")
    largest = np.abs(np.stack([observations.low, observations.high]).astype(np.float64)).max(axis=0).ravel()
    scale = np.where((largest > 0.0) & (largest < NO_BOUND), largest, 1.0)
    if environment.spec is None or environment.spec.max_episode_steps is None:  # It might run in circles for ever.
        environment = gym.wrappers.TimeLimit(environment, 10_000)
    environment = gym.wrappers.TransformAction(environment, lambda action: actions.start + action, None)
    scaled = gym.spaces.Box(-np.inf, np.inf, scale.shape, np.float64)
    return gym.wrappers.TransformObservation(environment, lambda observation: np.ravel(observation) / scale, scaled)


def _on_one_line(thing: object) -> str:
    return " ".join(str(thing).split())


class Training:
    """A network that learns from actors.

    Args:
        options: env, seed, steps and actors.
        report: Called after each greedy check.

    Attributes:
        threshold: The mean return from which the environment counts as solved, if it has one.
        steps: Environment steps so far, over all actors.
        episode_ends, returns: Of the episodes that actors have played to their end.
        check_steps, check_means: Of the greedy checks.
        best_network: What did best in a check.
        was_interrupted: Whether Ctrl-C ended it.
    """

    def __init__(self, options: argparse.Namespace, report: Callable[["Training"], None]) -> None:
        rngs = np.random.default_rng(options.seed).spawn(3 + options.actors)
        network_rng, buffer_rng, self._check_rng, *actor_rngs = rngs
        self._actors = [(make_environment(options.env), rng) for rng in actor_rngs]
        self._check_environments = gym.vector.SyncVectorEnv([lambda: make_environment(options.env)] * EPISODES)
        environment = self._actors[0][0]
        self.threshold = None if environment.spec is None else environment.spec.reward_threshold
        self._num_actions = gym.spaces.flatdim(environment.action_space)
        widths = (gym.spaces.flatdim(environment.observation_space), *HIDDEN_WIDTHS, self._num_actions)
        self._network = QNetwork(widths, network_rng)
        self.buffer = relive.EpisodeReplayBuffer[arrays.Floats, int](
            max_transitions=BUFFER_STEPS,
            limiter=relive.SampleToInsertRatio(SAMPLES_PER_STEP, min_size=WARM_UP, error_buffer=4 * BATCH_SIZE),
            seed=buffer_rng,
        )
        self._limit = options.steps
        self._report = report
        self.steps = 0
        self.episode_ends, self.returns = list[int](), list[float]()
        self.check_steps, self.check_means = list[int](), list[float]()
        self.best_network, self._best_score = self._network, -np.inf
        self.was_interrupted = False

    async def run(self) -> None:
        """Learn until the task is solved, the steps are used up, or Ctrl-C is pressed."""
        try:
            async with asyncio.TaskGroup() as everybody:
                everybody.create_task(self._learn())
                async with asyncio.TaskGroup() as actors:
                    for number, (environment, rng) in enumerate(self._actors):
                        actors.create_task(self._act(f"actor-{number}", environment, rng))
                self.buffer.close()  # The learner would wait for ever.
        except asyncio.CancelledError:  # So asyncio passes on a first Ctrl-C; a second one is a KeyboardInterrupt.
            self.was_interrupted = True

    async def _act(self, name: str, environment: Environment, rng: np.random.Generator) -> None:
        """Play episode after episode until the steps are used up or the learner has closed the buffer."""
        environment.reset(seed=int(rng.integers(2**31)))
        with contextlib.suppress(relive.ClosedError):
            while self.steps < self._limit:
                await self._play_episode(name, environment, rng)

    async def _play_episode(self, name: str, environment: Environment, rng: np.random.Generator) -> None:
        observation, _ = environment.reset()
        episode_return, terminated, truncated = 0.0, False, False
        async with self.buffer.episode(name) as writer:
            while not (terminated or truncated) and self.steps < self._limit:
                self.steps += 1
                action = self._explore(observation, rng)
                next_observation, reward, terminated, truncated, _ = environment.step(action)
                await writer.append(observation, action, float(reward))
                await asyncio.sleep(0)  # The other actors take a step too.
                observation = next_observation
                episode_return += float(reward)
            await writer.end(observation, status="COMPLETED" if terminated else "TRUNCATED")
        if terminated or truncated:
            self.episode_ends.append(self.steps)
            self.returns.append(episode_return)

    def _explore(self, observation: arrays.Floats, rng: np.random.Generator) -> int:
        if rng.random() < EPSILON.value(self.steps):
            return int(rng.integers(self._num_actions))
        return int(self._network.values(observation[np.newaxis]).argmax())

    async def _learn(self) -> None:
        """Improve the network batch by batch, and close the buffer when the task is solved."""
        try:
            while not self._check():
                target_network = copy.deepcopy(self._network)
                for _ in range(CHECK_UPDATES):
                    self._improve(await self.buffer.sample_n_step(BATCH_SIZE, N, GAMMA), target_network)
            self.buffer.close()
        except relive.ClosedError:
            self._check()

    def _improve(self, samples: Sequence[Sample], target_network: QNetwork) -> None:
        """Take one step of double Q-learning (van Hasselt et al. 2016): one network chooses, the other one judges.

        target = reward + next_discount * Q_target(next_observation, argmax_a Q(next_observation, a))
        """
        observations = np.stack([sample.observation for sample in samples])
        actions = np.array([sample.action for sample in samples])
        rewards = np.array([sample.reward for sample in samples])
        next_observations = np.stack([sample.next_observation for sample in samples])
        next_discounts = np.array([sample.next_discount for sample in samples])
        next_actions = self._network.values(next_observations).argmax(axis=1)
        next_values = target_network.values(next_observations)[np.arange(len(samples)), next_actions]
        targets = rewards + next_discounts * next_values
        self._network.improve(observations, actions, targets, LEARNING_RATE.value(self.steps))

    def _check(self) -> bool:
        """Play without exploring, keep the best network, and return whether the task is clearly solved.

        Clearly: a mean three standard errors lower would still be enough. A lucky check is not enough; it only earns
        the network a longer one.
        """
        returns = self.play(self._network)
        if _pessimistic(returns) > self._best_score:
            returns = np.concatenate([returns, *(self.play(self._network) for _ in range(4))])
        if _pessimistic(returns) > self._best_score:
            self.best_network, self._best_score = copy.deepcopy(self._network), _pessimistic(returns)
        self.check_steps.append(self.steps)
        self.check_means.append(float(returns.mean()))
        self._report(self)
        return self.threshold is not None and self.steps >= LEAST_STEPS and self._best_score >= self.threshold

    def play(self, network: QNetwork) -> arrays.Floats:
        """Return the returns of greedy episodes, played side by side [EPISODES]."""
        observations, _ = self._check_environments.reset(seed=int(self._check_rng.integers(2**31)))
        returns, is_running = np.zeros(EPISODES), np.ones(EPISODES, bool)
        while is_running.any():
            actions = network.values(observations).argmax(axis=1)
            observations, rewards, terminated, truncated, _ = self._check_environments.step(actions)
            returns += rewards * is_running
            is_running &= ~(terminated | truncated)
        return returns

    def close(self) -> None:
        """Give back what the environments hold."""
        for environment, _ in self._actors:
            environment.close()
        self._check_environments.close()


def _pessimistic(returns: arrays.Floats) -> float:
    """Return what the mean of EPISODES more episodes will hardly fall below."""
    return float(returns.mean() - 3.0 * returns.std() / np.sqrt(EPISODES))


def run(options: argparse.Namespace) -> int:
    """Train, evaluate and draw; return 0, or 130 after an interrupt.

    Raises:
        ArgumentError: The environment cannot be learned, or the picture cannot be written.
    """
    files.absolute("--plot", options.plot, "file")
    path = pathlib.Path(options.plot)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise errors.ArgumentError(f"--plot must be a file that can be written, got {options.plot}")
    started = time.monotonic()
    say = (lambda line: None) if options.quiet else _write_line
    with (
        warnings.catch_warnings(action="ignore"),  # Gymnasium's would come across the bar.
        _progress(options.steps, say) as report,
        contextlib.closing(Training(options, report)) as training,
    ):
        seconds = "about 10 seconds, " if options.env == "CartPole-v1" else ""  # Elsewhere, nobody has measured it.
        say(f"learning {options.env}: {seconds}at most {options.steps:,} steps")
        asyncio.run(training.run())
        if training.was_interrupted:
            say("stopping: what was learned so far is evaluated (Ctrl-C again to leave at once)")
        mean_return = float(training.play(training.best_network).mean())
    verdict = "interrupted, " if training.was_interrupted else ""
    if training.threshold is None:
        verdict += f"learned {options.env} (it has no threshold)"
    else:
        success = "solved" if mean_return >= training.threshold else "not solved"
        verdict += f"{success} {options.env} (threshold {training.threshold:g})"
    line = (
        f"{verdict}: mean return {round(mean_return, 2)} over {EPISODES} greedy episodes of the best network, "
        f"{training.steps:,} steps, {len(training.returns):,} episodes, {time.monotonic() - started:.0f} s"
    )
    try:
        draw(training, f"relive demo: {options.env}, {options.actors} actors, seed {options.seed}", path)
    except OSError as error:
        _write_line(f"{line}, no curve")
        raise errors.ArgumentError(f"--plot could not be written to {path}: {error.strerror}") from error
    _write_line(f"{line}, curve in {path}")
    return 130 if training.was_interrupted else 0


@contextlib.contextmanager
def _progress(steps: int, say: Callable[[str], None]) -> Iterator[Callable[[Training], None]]:
    """Yield a function that says how a check went, above a bar where there is a terminal."""
    console = rich_console.Console()
    columns = (rich_progress.BarColumn(None), rich_progress.MofNCompleteColumn(), rich_progress.TimeElapsedColumn())
    is_drawn = say is _write_line and sys.stdout.isatty() and console.is_interactive
    bar = rich_progress.Progress(*columns, console=console, transient=True)
    task = bar.add_task("", total=steps)
    with bar if is_drawn else contextlib.nullcontext():  # Rich before 15 ends a disabled one with an empty line.

        def report(training: Training) -> None:
            bar.update(task, completed=training.steps)
            recent = f"{np.mean(training.returns[-EPISODES:]):.1f}" if training.returns else "none"
            with contextlib.suppress(OSError):  # The last line will meet it again, outside of all coroutines.
                say(f"{training.steps:7,} steps   exploring {recent:>6}   greedy {training.check_means[-1]:6.1f}")

        yield report


def _write_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def draw(training: Training, title: str, path: pathlib.Path) -> None:
    """Write a PNG: the returns of the exploring actors, their running mean and the greedy checks, over steps."""
    picture = figure.Figure(figsize=(9, 5), layout="constrained")
    axes = picture.add_subplot()
    ends, returns = training.episode_ends, training.returns
    means = [np.mean(returns[max(0, end - EPISODES) : end]) for end in range(1, len(returns) + 1)]
    axes.plot(ends, returns, "C0.", alpha=0.3, label="an episode of an exploring actor")
    axes.plot(ends, means, "C0-", label=f"mean of the last {EPISODES} of them")
    axes.plot(training.check_steps, training.check_means, "C1o-", label="a greedy check, mean return")
    if training.threshold is not None:
        axes.axhline(training.threshold, color="gray", linestyle="--", label=f"solved from {training.threshold:g}")
    axes.set(title=title, xlabel="environment steps of all actors", ylabel="return")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)
    picture.savefig(path, format="png", dpi=120)
