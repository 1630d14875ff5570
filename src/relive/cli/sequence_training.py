"""`--buffer sequence`: one plain loop in which a recurrent network learns from runs of steps what to remember.

    steps      t, t + 1     t + 2 to t + 9     t + 10
               burn-in      loss               its value alone, for the target of the last step
               ▲
               state [H] of the network, stored with step t

The state was stored with the step, by a network that has changed since. So the first steps of a sequence only run the
network, to bring the state up to date, and the others are learned from (R2D2, Kapturowski et al. 2019).
"""

from collections.abc import Callable
import dataclasses

import numpy as np

import relive
from relive.cli import q_learning
from relive.cli import recurrent_network
from relive.cli import tasks
from relive.cli import training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(training.Settings):
    """How to learn.

    Attributes:
        length: Steps in a sequence.
        burn_in: How many of them come before those that are learned from.
        state_width: Numbers in the state of the network.
    """

    batch_size: int = 32
    warm_up: int = 250
    buffer_steps: int = 20_000
    check_updates: int = 25
    exploring_steps: int = 5_000
    length: int = 10
    burn_in: int = 2
    state_width: int = 32


class SequenceTraining(training.Training[Settings, relive.SequenceReplayBuffer]):
    """A recurrent network that learns from sequences.

    Args:
        new_task: Returns one task more.
        settings: How to learn.
    """

    def __init__(self, new_task: Callable[[], tasks.Task], settings: Settings) -> None:
        network_rng, buffer_rng, check_rng, self._rng = training.generators(settings.seed, 4)
        self._task, check_task = new_task(), new_task()
        tasks.seed(self._task, self._rng)
        tasks.seed(check_task, check_rng)
        buffer = relive.SequenceReplayBuffer(
            settings.buffer_steps,
            length=settings.length,
            burn_in=settings.burn_in,
            limiter=relive.MinSize(settings.warm_up),
            seed=buffer_rng,
        )
        network = recurrent_network.initial(
            check_task.observation_width, settings.state_width, check_task.num_actions, network_rng
        )
        super().__init__(settings, check_task, buffer, network, recurrent_network.greedy_policy)

    def _train(self) -> None:
        """Play, and learn from a batch after every step once there is enough to draw from."""
        observation, episode_return = self._task.reset(), 0.0
        state = recurrent_network.first_state(self.network, batch_size=1)
        while self.take_step():
            values, next_state = recurrent_network.advance(self.network, observation[np.newaxis], state)
            action = self.explore(values[0], self._rng)
            next_observation, reward, terminated, truncated = self._task.step(action)
            self.buffer.add(
                observation,
                action,
                reward,
                next_observation,
                terminated=terminated,
                truncated=truncated,
                state=state[0],
            )
            observation, state = next_observation, next_state
            episode_return += reward
            if terminated or truncated:
                self.record.add_episode(episode_return)
                observation, episode_return = self._task.reset(), 0.0
                state = recurrent_network.first_state(self.network, batch_size=1)
            if self.buffer.can_sample(self.settings.batch_size) and self._learn():
                return

    def _learn(self) -> bool:
        """Learn from one batch of sequences, and return whether the task is solved."""
        settings = self.settings
        batch = self.buffer.sample(settings.batch_size)
        early, late = slice(settings.burn_in), slice(settings.burn_in, None)

        stored_state = batch.extras["state"][:, 0]
        _, state = recurrent_network.action_values(self.network, batch.observation[:, early], stored_state)
        _, target_state = recurrent_network.action_values(
            self.target_network, batch.observation[:, early], stored_state
        )

        observations = batch.observation[:, late]  # One more than there are actions.
        values, _ = recurrent_network.action_values(self.network, observations, state)
        target_values, _ = recurrent_network.action_values(self.target_network, observations, target_state)
        next_discounts = np.where(batch.terminated[:, late], 0.0, settings.gamma)
        targets = q_learning.double_q_targets(
            batch.reward[:, late], next_discounts, values[:, 1:], target_values[:, 1:]
        )
        is_for_loss = batch.mask & ~batch.is_burn_in
        weights = is_for_loss[:, late] / is_for_loss.sum()
        return self.improve(
            recurrent_network.squared_loss_gradient(
                self.network, observations[:, :-1], state, batch.action[:, late], targets, weights
            )
        )
