"""The example: many actors, one replay buffer, one learner, and no waiting that is not written `await`.

    8 actors: act epsilon-greedily         EpisodeReplayBuffer          1 learner: 3-step double Q-learning
    await writer.append(...)       ────►   SampleToInsertRatio   ────►  await buffer.sample_n_step(...)
    await writer.end(...)                  keeps both in step           better network, read by the actors

The law of this file: nothing is decided by the clock, and every random number comes from `seed`, so that the same
settings give the same run. Whoever finds that training is over closes the buffer, and the rest leave on ClosedError.
"""

import asyncio
from collections.abc import Sequence
import contextlib
import dataclasses

import numpy as np
import numpy.typing as npt

import relive
from relive.tools import adam
from relive.tools import environments
from relive.tools import learning_record
from relive.tools import q_network


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How to learn.

    Attributes:
        seed: For everything random.
        steps: Environment steps over all actors.
        batch_size: Samples in an update.
        samples_per_step: How often each step is drawn on average; as often as batch_size is one update a step.
        warm_up_steps: Transitions in the buffer before the first update.
        buffer_steps: Transitions that the buffer keeps.
        n: Rewards that a sample sums.
        gamma: The discount factor.
        hidden_widths: Of the network's layers. With wider ones, or larger batches, OpenBLAS starts threads for each
            small product of matrices, which takes ten times as long on a busy machine.
        learning_rate: Adam's.
        target_updates: Updates until the target network is renewed.
        check_updates: Updates from one check of the network to the next.
        check_episodes: Episodes in a check.
        confirming_episodes: Episodes more, where a check looks like success.
        evaluation_episodes: Episodes in the evaluation at the end.
        first_epsilon: Share of random actions at the beginning.
        last_epsilon: The same from exploring_steps on.
        exploring_steps: Steps in which it falls from one to the other.
    """

    seed: int
    steps: int
    batch_size: int = 64
    samples_per_step: float = 64.0
    warm_up_steps: int = 1_000
    buffer_steps: int = 50_000
    n: int = 3
    gamma: float = 0.99
    hidden_widths: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-3
    target_updates: int = 100
    check_updates: int = 500
    check_episodes: int = 20
    confirming_episodes: int = 100
    evaluation_episodes: int = 20
    first_epsilon: float = 1.0
    last_epsilon: float = 0.05
    exploring_steps: int = 10_000


class Training:
    """A network that learns from actors in environments of one kind.

    Args:
        actor_environments: One environment for each actor.
        check_environment: One more, to see how well the network does without exploring.
        settings: How to learn.

    Attributes:
        buffer: Between the actors and the learner.
        network: What the learner has now.
        best_network: The network that did best in a check, or `network` before the first one.
        record: What has happened so far.
    """

    def __init__(
        self,
        actor_environments: Sequence[environments.Environment],
        check_environment: environments.Environment,
        settings: Settings,
    ) -> None:
        network_seed, buffer_seed, check_seed, *actor_seeds = np.random.SeedSequence(settings.seed).spawn(
            3 + len(actor_environments)
        )
        self.settings = settings
        self.record = learning_record.LearningRecord()
        self.buffer = relive.EpisodeReplayBuffer[environments.Observation, int](
            max_transitions=settings.buffer_steps,
            limiter=relive.SampleToInsertRatio(
                ratio=settings.samples_per_step,
                min_size=settings.warm_up_steps,
                error_buffer=4.0 * max(settings.batch_size, settings.samples_per_step),
            ),
            seed=np.random.default_rng(buffer_seed),
        )
        widths = (check_environment.observation_width, *settings.hidden_widths, check_environment.num_actions)
        self.network = q_network.initial(widths, np.random.default_rng(network_seed))
        self.best_network = self.network
        self._best_score = -np.inf
        self._check_environment = check_environment
        self._check_environment.reset(_environment_seed(np.random.default_rng(check_seed)))
        self._actors = [
            (f"actor-{k}", environment, np.random.default_rng(actor_seed))
            for k, (environment, actor_seed) in enumerate(zip(actor_environments, actor_seeds, strict=True))
        ]

    async def run(self) -> None:
        """Learns until the steps are used up or the task is clearly solved."""
        async with asyncio.TaskGroup() as everybody:
            everybody.create_task(self._learn())
            async with asyncio.TaskGroup() as actors:
                for name, environment, rng in self._actors:
                    actors.create_task(self._act(name, environment, rng))
            self.buffer.close()
        self.check()

    async def _act(self, name: str, environment: environments.Environment, rng: np.random.Generator) -> None:
        """Plays episode after episode while there are steps left."""
        environment.reset(_environment_seed(rng))
        with contextlib.suppress(relive.ClosedError):
            while self.record.steps < self.settings.steps:
                await self._play_episode(name, environment, rng)

    async def _play_episode(self, name: str, environment: environments.Environment, rng: np.random.Generator) -> None:
        """Plays one episode into the buffer."""
        observation = environment.reset()
        rewards = 0.0
        async with self.buffer.episode(name) as writer:
            while self.record.steps < self.settings.steps:
                self.record.steps += 1
                action = self._explore(observation, rng)
                next_observation, reward, terminated, truncated = environment.step(action)
                await writer.append(observation, action, reward)
                await asyncio.sleep(0)  # The other actors take a step too.
                observation = next_observation
                rewards += reward
                if terminated or truncated:
                    await writer.end(observation, status="COMPLETED" if terminated else "TRUNCATED")
                    self.record.add_episode(rewards)
                    return
            await writer.end(observation, status="TRUNCATED")

    def _explore(self, observation: environments.Observation, rng: np.random.Generator) -> int:
        """Answers a random action with probability epsilon, which falls in a straight line, and else the best one."""
        settings = self.settings
        progress = min(1.0, self.record.steps / settings.exploring_steps)
        epsilon = settings.first_epsilon + progress * (settings.last_epsilon - settings.first_epsilon)
        if rng.random() < epsilon:
            return int(rng.integers(self._check_environment.num_actions))
        return environments.greedy_action(self.network, observation)

    async def _learn(self) -> None:
        """Improves the network batch by batch, and closes the buffer when the task is clearly solved."""
        settings = self.settings
        target_network = self.network
        optimiser = adam.initial(self.network)
        updates = 0
        with contextlib.suppress(relive.ClosedError):
            while True:
                samples = await self.buffer.sample_n_step(settings.batch_size, settings.n, settings.gamma)
                gradient = double_q_gradient(self.network, target_network, samples)
                self.network, optimiser = adam.step(self.network, gradient, optimiser, settings.learning_rate)
                updates += 1
                if updates % settings.target_updates == 0:
                    target_network = self.network
                if updates % settings.check_updates == 0 and self.check():
                    self.buffer.close()

    def check(self) -> bool:
        """Plays without exploring, keeps the best network, and answers whether the task is clearly solved.

        Clearly: in an evaluation, a mean three standard errors too low would still be enough. A few lucky episodes do
        not say so; they only earn the network a longer check.
        """
        settings, environment = self.settings, self._check_environment
        returns = environments.greedy_returns(environment, self.network, settings.check_episodes)
        if _is_enough(self._pessimistic(returns), environment.solved_at):
            more = environments.greedy_returns(environment, self.network, settings.confirming_episodes)
            returns = np.concatenate([returns, more])
        self.record.add_check(float(returns.mean()))
        score = self._pessimistic(returns)
        if score > self._best_score:
            self._best_score, self.best_network = score, self.network
        return _is_enough(score, environment.solved_at)

    def _pessimistic(self, returns: npt.NDArray[np.float64]) -> float:
        """Answers what the mean of `evaluation_episodes` will hardly fall below, judging by `returns`."""
        return float(returns.mean() - 3.0 * returns.std() / np.sqrt(self.settings.evaluation_episodes))


def double_q_gradient(
    network: q_network.Parameters,
    target_network: q_network.Parameters,
    samples: Sequence[relive.ReplaySample[environments.Observation, int]],
) -> q_network.Parameters:
    """Answers the gradient of the loss of double Q-learning (van Hasselt et al. 2016) on n-step samples [B].

    target = reward + next_discount * Q_target(next_observation, argmax_a Q(next_observation, a))
    """
    observations = np.stack([sample.observation for sample in samples])
    actions = np.array([sample.action for sample in samples])
    rewards = np.array([sample.reward for sample in samples])
    next_observations = np.stack([sample.next_observation for sample in samples])
    next_discounts = np.array([sample.next_discount for sample in samples])

    next_actions = q_network.action_values(network, next_observations).argmax(axis=1)
    next_values = q_network.action_values(target_network, next_observations)[np.arange(len(samples)), next_actions]
    targets = rewards + next_discounts * next_values
    return q_network.squared_loss_gradient(network, observations, actions, targets)


def _environment_seed(rng: np.random.Generator) -> int:
    """Answers a seed for an environment."""
    return int(rng.integers(2**31))


def _is_enough(score: float, solved_at: float | None) -> bool:
    """Answers whether there is a threshold and `score` reaches it."""
    return solved_at is not None and score >= solved_at
