"""`--buffer prioritized`: one plain loop that plays a step, learns from a batch, and says how surprising it was.

    buffer.add(...)   ->   batch = buffer.sample(...)   ->   buffer.update_priorities(batch.keys, errors)

The more surprising a transition was, the sooner it is drawn again; its importance weight keeps the mean right
(Schaul et al. 2016).
"""

from collections.abc import Callable
import dataclasses

import numpy as np

import relive
from relive.cli import q_learning
from relive.cli import q_network
from relive.cli import tasks
from relive.cli import training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(training.Settings):
    """How to learn.

    Attributes:
        n: Rewards that a transition sums.
        hidden_widths: Of the network's layers.
        alpha: How much priorities matter; with 0 all transitions are drawn alike.
        first_beta: How far importance weights make up for that at the beginning; at the end it is 1, entirely.
    """

    target_updates: int = 200
    check_updates: int = 250
    n: int = 3
    hidden_widths: tuple[int, ...] = (64, 64)
    alpha: float = 0.6
    first_beta: float = 0.4


class PrioritizedTraining(training.Training[Settings, relive.PrioritizedReplayBuffer]):
    """A network that learns most from what surprised it.

    Args:
        new_task: Returns one task more.
        settings: How to learn.
    """

    def __init__(self, new_task: Callable[[], tasks.Task], settings: Settings) -> None:
        network_rng, buffer_rng, check_rng, self._rng = training.generators(settings.seed, 4)
        self._task, check_task = new_task(), new_task()
        tasks.seed(self._task, self._rng)
        tasks.seed(check_task, check_rng)
        buffer = relive.PrioritizedReplayBuffer(
            settings.buffer_steps,
            n_step=settings.n,
            gamma=settings.gamma,
            alpha=settings.alpha,
            beta=relive.LinearSchedule(settings.first_beta, 1.0, settings.steps),
            limiter=relive.MinSize(settings.warm_up),
            seed=buffer_rng,
        )
        widths = (check_task.observation_width, *settings.hidden_widths, check_task.num_actions)
        network = q_network.initial(widths, network_rng)
        super().__init__(settings, check_task, buffer, network, q_network.greedy_policy)

    def _train(self) -> None:
        """Play, and learn from a batch after every step once there is enough to draw from."""
        observation, episode_return = self._task.reset(), 0.0
        while self.take_step():
            action = self.explore(q_network.values_of_one(self.network, observation), self._rng)
            next_observation, reward, terminated, truncated = self._task.step(action)
            self.buffer.add(observation, action, reward, next_observation, terminated=terminated, truncated=truncated)
            observation = next_observation
            episode_return += reward
            if terminated or truncated:
                self.record.add_episode(episode_return)
                observation, episode_return = self._task.reset(), 0.0
            if self.buffer.can_sample(self.settings.batch_size) and self._learn():
                return

    def _learn(self) -> bool:
        """Learn from one batch, gives its errors back as priorities, and return whether the task is solved."""
        batch = self.buffer.sample(self.settings.batch_size)
        targets = q_learning.double_q_targets(
            batch.reward,
            batch.next_discount,
            q_network.action_values(self.network, batch.next_observation),
            q_network.action_values(self.target_network, batch.next_observation),
        )
        values = q_network.action_values(self.network, batch.observation)[np.arange(len(batch)), batch.action]
        self.buffer.update_priorities(batch.keys, abs(targets - values))
        weights = batch.weights / len(batch)
        return self.improve(
            q_network.squared_loss_gradient(self.network, batch.observation, batch.action, targets, weights)
        )
