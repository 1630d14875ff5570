"""`--buffer episode`: many actors, one buffer, one learner, and no waiting that is not written `await`.

    8 actors: act epsilon-greedily         EpisodeReplayBuffer          1 learner: 3-step double Q-learning
    await writer.append(...)       ────►   SampleToInsertRatio   ────►  await buffer.sample_n_step(...)
    await writer.end(...)                  keeps both in step           better network, read by the actors

The task that finds that training is over closes the buffer, and the rest leave on ClosedError.
"""

import asyncio
from collections.abc import Callable, Sequence
import contextlib
import dataclasses
from typing import Any, TypeAlias

import numpy as np

import relive
from relive.cli import q_learning
from relive.cli import q_network
from relive.cli import tasks
from relive.cli import training

Buffer: TypeAlias = relive.EpisodeReplayBuffer[tasks.Observation, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(training.Settings):
    """How to learn.

    Attributes:
        actors: Actor coroutines.
        samples_per_step: How often each step is drawn on average; as often as batch_size is one update a step.
        n: Rewards that a sample sums.
        hidden_widths: Of the network's layers. With wider ones, or larger batches, OpenBLAS starts threads for each
            small product of matrices, which takes ten times as long on a busy machine.
    """

    actors: int = 8
    samples_per_step: float = 64.0
    n: int = 3
    hidden_widths: tuple[int, ...] = (64, 64)


class EpisodeTraining(training.Training[Settings, Buffer]):
    """A network that learns from actors in tasks of their own.

    Args:
        new_task: Returns one task more.
        settings: How to learn.
    """

    def __init__(self, new_task: Callable[[], tasks.Task], settings: Settings) -> None:
        network_rng, buffer_rng, check_rng, *actor_rngs = training.generators(settings.seed, 3 + settings.actors)
        check_task = new_task()
        tasks.seed(check_task, check_rng)
        buffer = Buffer(
            max_transitions=settings.buffer_steps,
            limiter=relive.SampleToInsertRatio(
                ratio=settings.samples_per_step,
                min_size=settings.warm_up,
                error_buffer=4.0 * max(settings.batch_size, settings.samples_per_step),
            ),
            seed=buffer_rng,
        )
        widths = (check_task.observation_width, *settings.hidden_widths, check_task.num_actions)
        network = q_network.initial(widths, network_rng)
        super().__init__(settings, check_task, buffer, network, q_network.greedy_policy)
        self._actors = [(f"actor-{number}", new_task(), rng) for number, rng in enumerate(actor_rngs)]

    def _train(self) -> None:
        """Let actors and learner run side by side until one of them has closed the buffer."""
        asyncio.run(self._run_everybody())

    async def _run_everybody(self) -> None:
        asyncio.get_running_loop().set_exception_handler(_report_unless_interrupted)
        async with asyncio.TaskGroup() as everybody:
            everybody.create_task(self._learn())
            async with asyncio.TaskGroup() as actors:
                for name, task, rng in self._actors:
                    actors.create_task(self._act(name, task, rng))
            self.buffer.close()

    async def _act(self, name: str, task: tasks.Task, rng: np.random.Generator) -> None:
        """Play episode after episode until training is over."""
        tasks.seed(task, rng)
        with contextlib.suppress(relive.ClosedError):
            while not self.is_over:
                await self._play_episode(name, task, rng)

    async def _play_episode(self, name: str, task: tasks.Task, rng: np.random.Generator) -> None:
        """Play one episode into the buffer."""
        observation = task.reset()
        episode_return = 0.0
        async with self.buffer.episode(name) as writer:
            while self.take_step():
                action = self.explore(q_network.values_of_one(self.network, observation), rng)
                next_observation, reward, terminated, truncated = task.step(action)
                await writer.append(observation, action, reward)
                await asyncio.sleep(0)  # The other actors take a step too.
                observation = next_observation
                episode_return += reward
                if terminated or truncated:
                    await writer.end(observation, status="COMPLETED" if terminated else "TRUNCATED")
                    self.record.add_episode(episode_return)
                    return
            await writer.end(observation, status="TRUNCATED")

    async def _learn(self) -> None:
        """Improve the network batch by batch, and close the buffer when the task is clearly solved."""
        settings = self.settings
        with contextlib.suppress(relive.ClosedError):
            while True:
                samples = await self.buffer.sample_n_step(settings.batch_size, settings.n, settings.gamma)
                if self.improve(double_q_gradient(self.network, self.target_network, samples)):
                    self.buffer.close()


def double_q_gradient(
    network: q_network.Parameters,
    target_network: q_network.Parameters,
    samples: Sequence[relive.ReplaySample[tasks.Observation, int]],
) -> q_network.Parameters:
    """Return the gradient of the mean loss of double Q-learning on n-step samples [B]."""
    observations = np.stack([sample.observation for sample in samples])
    actions = np.array([sample.action for sample in samples])
    rewards = np.array([sample.reward for sample in samples])
    next_observations = np.stack([sample.next_observation for sample in samples])
    next_discounts = np.array([sample.next_discount for sample in samples])

    next_values = q_network.action_values(network, next_observations)
    target_next_values = q_network.action_values(target_network, next_observations)
    targets = q_learning.double_q_targets(rewards, next_discounts, next_values, target_next_values)
    weights = np.full(len(samples), 1.0 / len(samples))
    return q_network.squared_loss_gradient(network, observations, actions, targets, weights)


def _report_unless_interrupted(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Keep asyncio from logging a second Ctrl-C, which stops a coroutine wherever it happens to be."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)
