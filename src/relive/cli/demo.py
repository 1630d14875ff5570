"""`relive demo`: actors play, a learner learns from what they did, and a picture shows how it went.

    8 actors: act epsilon-greedily         EpisodeReplayBuffer          1 learner: 3-step double Q-learning
    await writer.append(...)       ────►   SampleToInsertRatio   ────►  await buffer.sample_n_step(...)
    await writer.end(...)                  keeps both in step           better network, which the actors use

All of them are coroutines that wait for the buffer alone. No clock decides anything, and every random number comes from
the seed: the same options give the same run.
"""

import argparse
import asyncio
from collections.abc import Callable, Sequence
import contextlib
import copy
import functools
import itertools
import os
import pathlib
import time
from typing import Any, TypeAlias
import warnings

import numpy as np

import relive
from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import imports

with imports.optional_dependency("demo"):
    import gymnasium as gym
    from matplotlib import figure

Environment: TypeAlias = gym.Env[arrays_lib.Floats, Any]
Writer: TypeAlias = relive.EpisodeWriter[arrays_lib.Floats, int]

NEXT = "https://relive-rl.github.io/relive/get_started.html writes such a program"
SECONDS = "10 to 120"  # What CartPole takes, also on a busy machine.
WARM_UP, BUFFER_STEPS = 1_000, 50_000
BATCH_SIZE, SAMPLES_PER_STEP = 32, 8  # One update for four steps.
HIDDEN_WIDTHS = (128, 64)  # For wider ones OpenBLAS starts threads, which is much slower on a busy machine.
N, GAMMA = 3, 0.99
EPSILON = relive.LinearSchedule(1.0, 0.05, steps=8_000)  # The share of random actions, by steps of all actors.
LEARNING_RATE = relive.LinearSchedule(1e-3, 1e-4, steps=24_000)
LEAST_STEPS = 12_000  # Training goes on so far, so that the returns of the exploring actors rise as well.
CHECK_UPDATES = 250  # From one greedy check to the next; each check renews the target network too.
EPISODES = 20  # In a check, in a fifth of the evaluation, and in a running mean.


class QNetwork:
    """The value of each action: observations [B, O] -> relu -> relu -> values [B, A], and Adam to improve it.

    A layer is a matrix of weights (He et al. 2015), with the biases as its last row.
    """

    def __init__(self, widths: Sequence[int], rng: np.random.Generator) -> None:
        weights = [rng.uniform(-1.0, 1.0, shape) * np.sqrt(6.0 / shape[0]) for shape in itertools.pairwise(widths)]
        weights[-1] *= 0.01  # All values start near 0.
        self._layers = [np.pad(each, ((0, 1), (0, 0))) for each in weights]
        self._moments = [(np.zeros_like(layer), np.zeros_like(layer)) for layer in self._layers]
        self._updates = 0

    def values(self, observations: arrays_lib.Floats) -> arrays_lib.Floats:
        """Return the value of each action [B, A] in each of `observations` [B, O]."""
        return self._forward(observations)[-1]

    def _forward(self, observations: arrays_lib.Floats) -> list[arrays_lib.Floats]:
        """Return what goes into each layer, with a last column of ones, and last the values."""
        ones = np.ones((len(observations), 1))
        passed = [np.hstack([observations, ones])]
        for layer in self._layers[:-1]:
            passed.append(np.hstack([np.maximum(passed[-1] @ layer, 0.0), ones]))
        return [*passed, passed[-1] @ self._layers[-1]]

    def improve(
        self, observations: arrays_lib.Floats, actions: arrays_lib.Ints, targets: arrays_lib.Floats, rate: float
    ) -> None:
        """Take one step of Adam (Kingma and Ba 2015) down the mean of (values[actions] - targets)^2 / 2."""
        *inputs, values = self._forward(observations)
        rows, slope = np.arange(len(actions)), np.zeros_like(values)
        slope[rows, actions] = (values[rows, actions] - targets) / len(actions)
        self._updates += 1
        rate *= np.sqrt(1.0 - 0.999**self._updates) / (1.0 - 0.9**self._updates)
        for layer, (mean, square), given in reversed(list(zip(self._layers, self._moments, inputs, strict=True))):
            gradient = given.T @ slope
            slope = (slope @ layer.T * (given > 0.0))[:, :-1]
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient * gradient - square)
            layer -= rate * mean / (np.sqrt(square) + 1e-8)


def make_environment(name: str) -> Environment:
    """Return the environment, with actions from 0 and observations [O], scaled to [-1, 1] where they have bounds."""
    try:
        environment: Environment = gym.make(name)
    except Exception as error:  # Whatever a constructor raises, the user should read one line.
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise errors.ArgumentError(f"cannot make environment {name!r}: {reason}") from error
    actions, observations = environment.action_space, environment.observation_space
    if not (isinstance(actions, gym.spaces.Discrete) and isinstance(observations, gym.spaces.Box)):
        got = f"{observations} and {actions}"
        raise errors.ArgumentError(f"{name} must have Box observations and Discrete actions, got {got}")
    largest = np.abs(np.stack([observations.low, observations.high]).astype(np.float64)).max(axis=0).ravel()
    scale = np.where((largest > 0.0) & (largest < 1e6), largest, 1.0)  # Infinity is no bound, nor the largest float32.
    if gym.spec(name).max_episode_steps is None:
        environment = gym.wrappers.TimeLimit(environment, 10_000)
    environment = gym.wrappers.TransformAction(environment, lambda action: actions.start + action, None)
    scaled = gym.spaces.Box(-np.inf, np.inf, scale.shape, np.float64)
    return gym.wrappers.TransformObservation(environment, lambda observation: np.ravel(observation) / scale, scaled)


class Training:
    """A network that learns from actors, and says how it goes."""

    def __init__(self, options: argparse.Namespace, say: Callable[[str], None]) -> None:
        rngs = np.random.default_rng(options.seed).spawn(3 + options.actors)
        network_rng, buffer_rng, self._check_rng, *actor_rngs = rngs
        self._actors = [(make_environment(options.env), rng) for rng in actor_rngs]
        self._checked = gym.vector.SyncVectorEnv([lambda: make_environment(options.env)] * EPISODES)
        self._num_actions = gym.spaces.flatdim(self._checked.single_action_space)
        widths = (gym.spaces.flatdim(self._checked.single_observation_space), *HIDDEN_WIDTHS, self._num_actions)
        self._network = self.best_network = QNetwork(widths, network_rng)
        self.buffer = relive.EpisodeReplayBuffer[arrays_lib.Floats, int](
            max_transitions=BUFFER_STEPS,
            limiter=relive.SampleToInsertRatio(SAMPLES_PER_STEP, min_size=WARM_UP, error_buffer=4 * BATCH_SIZE),
            seed=buffer_rng,
        )
        self.threshold, self._limit, self._say = gym.spec(options.env).reward_threshold, options.steps, say
        self.steps, self._best_score = 0, -np.inf
        self.episodes: list[tuple[int, float]] = []  # When each ended, in steps of all actors, and its return.
        self.checks: list[tuple[int, float]] = []  # When each was made, and its mean return.

    async def run(self) -> None:
        """Learn until the task is solved or the steps are used up."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._learn())
            await asyncio.gather(*(self._act(f"actor-{number}", *actor) for number, actor in enumerate(self._actors)))
            self.buffer.close()  # The learner would wait for ever.

    async def _act(self, name: str, environment: Environment, rng: np.random.Generator) -> None:
        """Play episode after episode until the steps are used up or the learner has closed the buffer."""
        environment.reset(seed=int(rng.integers(2**31)))
        with contextlib.suppress(relive.ClosedError):
            while self.steps < self._limit:
                async with self.buffer.episode(name) as writer:
                    await self._play_episode(environment, rng, writer)

    async def _play_episode(self, environment: Environment, rng: np.random.Generator, writer: Writer) -> None:
        observation, _ = environment.reset()
        episode_return, terminated, truncated = 0.0, False, False
        while not (terminated or truncated) and self.steps < self._limit:
            self.steps += 1
            action = int(rng.integers(self._num_actions))
            if rng.random() >= EPSILON.value(self.steps):
                action = int(self._network.values(observation[np.newaxis]).argmax())
            next_observation, reward, terminated, truncated, _ = environment.step(action)
            await writer.append(observation, action, float(reward))
            await asyncio.sleep(0)  # The other actors take a step too.
            observation = next_observation
            episode_return += float(reward)
        await writer.end(observation, status="COMPLETED" if terminated else "TRUNCATED")
        if terminated or truncated:
            self.episodes.append((self.steps, episode_return))

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

    def _improve(
        self, samples: Sequence[relive.ReplaySample[arrays_lib.Floats, int]], target_network: QNetwork
    ) -> None:
        """Take one step of double Q-learning (van Hasselt et al. 2016): one network chooses, the other one judges.

        target = reward + next_discount * Q_target(next_observation, argmax_a Q(next_observation, a))
        """
        batch = relive.TransitionBatch.from_samples(samples)
        next_actions = self._network.values(batch.next_observation).argmax(axis=1)
        next_values = target_network.values(batch.next_observation)[np.arange(len(samples)), next_actions]
        targets = batch.reward + batch.next_discount * next_values
        self._network.improve(batch.observation, batch.action, targets, LEARNING_RATE.value(self.steps))

    def _check(self) -> bool:
        """Play without exploring, keep the best network, and return whether the task is clearly solved.

        A score is three standard errors below the mean. A good check is repeated, as it may be luck.
        """
        returns = self.play(self._network)
        if _score(returns) > self._best_score:
            returns = np.concatenate([returns, *(self.play(self._network) for _ in range(4))])
        if _score(returns) > self._best_score:
            self.best_network, self._best_score = copy.deepcopy(self._network), _score(returns)
        self.checks.append((self.steps, float(returns.mean())))
        recent = f"{np.mean([each for _, each in self.episodes[-EPISODES:]]):.1f}" if self.episodes else "none"
        with contextlib.suppress(OSError):  # The last line will meet it again, outside of all coroutines.
            self._say(f"{self.steps:7,} steps   exploring {recent:>6}   greedy {returns.mean():6.1f}")
        return self.threshold is not None and self.steps >= LEAST_STEPS and self._best_score >= self.threshold

    def play(self, network: QNetwork) -> arrays_lib.Floats:
        """Return the returns of greedy episodes, played side by side [EPISODES]."""
        observations, _ = self._checked.reset(seed=int(self._check_rng.integers(2**31)))
        returns, is_running = np.zeros(EPISODES), np.ones(EPISODES, bool)
        while is_running.any():
            actions = network.values(observations).argmax(axis=1)
            observations, rewards, terminated, truncated, _ = self._checked.step(actions)
            returns += rewards * is_running
            is_running &= ~(terminated | truncated)
        return returns


def _score(returns: arrays_lib.Floats) -> float:
    return float(returns.mean() - 3.0 * returns.std() / np.sqrt(EPISODES))


def run(options: argparse.Namespace) -> int:
    """Train, evaluate and draw; return 0, or 130 after an interrupt."""
    path = pathlib.Path(options.plot)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise errors.ArgumentError(f"--plot must be a file that can be written, got {options.plot}")
    started, was_interrupted = time.monotonic(), False
    write: Callable[[str], None] = functools.partial(print, flush=True)
    say: Callable[[str], None] = (lambda line: None) if options.quiet else write
    with warnings.catch_warnings(action="ignore"):
        training = Training(options, say)
        seconds = f"{SECONDS} seconds, " if options.env == "CartPole-v1" else ""  # Others were not measured.
        say(f"learning {options.env}: {seconds}at most {options.steps:,} steps")
        try:
            asyncio.run(training.run())
        except KeyboardInterrupt:
            was_interrupted = True
            say("stopping: what was learned so far is evaluated (Ctrl-C again to leave at once)")
        returns: list[arrays_lib.Floats] = []
        for part in range(1, 6):  # A line for each, so that no second or two pass in silence.
            returns.append(training.play(training.best_network))
            say(f"evaluated the best network in {part * EPISODES} of {5 * EPISODES} episodes")
        mean_return = np.mean(returns)
    threshold = training.threshold
    goal = "" if threshold is None else f" (goal {threshold:g})"
    verdict = "learned" if threshold is None else "solved" if mean_return >= threshold else "not solved"
    verdict = "interrupted" if was_interrupted else verdict
    took = f"{training.steps:,} steps, {time.monotonic() - started:.0f} s"
    say(f"the learning curve goes to {path}")
    write(f"{verdict} {options.env}: mean return {mean_return:.1f}{goal}, {took}")
    draw(training, f"relive demo: {options.env}, {options.actors} actors, seed {options.seed}", path)
    say(f"read next: {NEXT}")
    return 130 if was_interrupted else 0


def draw(training: Training, title: str, path: pathlib.Path) -> None:
    """Write a PNG: the returns of the exploring actors, their running mean and the greedy checks, over steps."""
    picture = figure.Figure(figsize=(9, 5), layout="constrained")
    axes = picture.add_subplot()
    ends, returns = np.array(training.episodes).reshape(-1, 2).T
    means = [np.mean(returns[max(0, end - EPISODES) : end]) for end in range(1, len(returns) + 1)]
    axes.plot(ends, returns, "C0.", alpha=0.3, label="an episode of an exploring actor")
    axes.plot(ends, means, "C0-", label=f"mean of the last {EPISODES} of them")
    axes.plot(*zip(*training.checks, strict=True), "C1o-", label="a greedy check, mean return")
    if training.threshold is not None:
        axes.axhline(training.threshold, color="gray", linestyle="--", label=f"solved from {training.threshold:g}")
    axes.set(title=title, xlabel="environment steps of all actors", ylabel="return")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False)
    picture.savefig(path, format="png", dpi=120)
