"""What every demo does alike: it explores, improves a network, checks it now and then, and keeps the best one.

A training is a subclass with one method, `_train`: it plays, fills its buffer, draws batches and says how to learn from
them. The law of it: nothing is decided by the clock, and every random number comes from `seed`, so that the same
settings give the same run.
"""

import abc
from collections.abc import Callable, Sized
import dataclasses
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from relive.cli import adam
from relive.cli import learning_record
from relive.cli import tasks
from relive.common import arrays

Show: TypeAlias = Callable[[], None]
"""Shows how far a training has come; it is called at every step, and decides itself when to look."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How to learn: what every training has to know.

    Attributes:
        seed: For everything random.
        steps: Environment steps, over all actors.
        batch_size: Samples in an update.
        warm_up: Samples to choose from in the buffer before the first update.
        buffer_steps: Steps that the buffer keeps.
        gamma: The discount factor.
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
    warm_up: int = 1_000
    buffer_steps: int = 50_000
    gamma: float = 0.99
    learning_rate: float = 1e-3
    target_updates: int = 100
    check_updates: int = 500
    check_episodes: int = 20
    confirming_episodes: int = 100
    evaluation_episodes: int = 20
    first_epsilon: float = 1.0
    last_epsilon: float = 0.05
    exploring_steps: int = 10_000


AnySettings = TypeVar("AnySettings", bound=Settings)
AnyBuffer = TypeVar("AnyBuffer", bound=Sized)


class Training(abc.ABC, Generic[AnySettings, AnyBuffer]):
    """A network that learns a task from a replay buffer.

    Args:
        settings: How to learn.
        check_task: The task, to see how well the network does without exploring.
        buffer: What it learns from.
        network: What it begins with.
        begin_greedy: Returns a policy for one episode that always takes the best action, judging by such a network.

    Attributes:
        network: What has been learned so far.
        target_network: What `network` was a while ago.
        record: What has happened so far.
        was_stopped: Whether somebody wanted it to end early.
    """

    def __init__(
        self,
        settings: AnySettings,
        check_task: tasks.Task,
        buffer: AnyBuffer,
        network: adam.Arrays,
        begin_greedy: Callable[[adam.Arrays], tasks.Policy],
    ) -> None:
        self.settings = settings
        self.check_task = check_task
        self.buffer = buffer
        self.network = self.target_network = network
        self.record = learning_record.LearningRecord()
        self.was_stopped = False
        self._begin_greedy = begin_greedy
        self._optimiser = adam.initial(network)
        self._updates = 0
        self._best_network: adam.Arrays | None = None
        self._best_score = -np.inf
        self._show: Show = lambda: None

    @property
    def best_network(self) -> adam.Arrays:
        """The network that did best in a check, or `network` before the first one."""
        return self.network if self._best_network is None else self._best_network

    @property
    def is_over(self) -> bool:
        """Whether no step is left, or no more are wanted."""
        return self.was_stopped or self.record.steps >= self.settings.steps

    def run(self, show: Show) -> None:
        """Learn until the steps are used up, the task is clearly solved, or somebody calls `stop`."""
        self._show = show
        self._train()
        if not self.was_stopped:
            self.check()

    def stop(self) -> None:
        """Let `run` end before the next step; a signal handler may call it."""
        self.was_stopped = True

    @abc.abstractmethod
    def _train(self) -> None:
        """Play while `take_step` returns True, and improve the network until `improve` returns True."""

    def take_step(self) -> bool:
        """Count one more environment step, and return whether there was one to take."""
        if self.is_over:
            return False
        self.record.steps += 1
        self._show()
        return True

    def explore(self, values: arrays.Floats, rng: np.random.Generator) -> int:
        """Return a random action with probability epsilon, which falls in a straight line, and else the best one.

        Args:
            values: Of the actions [A].
            rng: What decides.
        """
        settings = self.settings
        progress = min(1.0, self.record.steps / settings.exploring_steps)
        epsilon = settings.first_epsilon + progress * (settings.last_epsilon - settings.first_epsilon)
        if rng.random() < epsilon:
            return int(rng.integers(len(values)))
        return int(values.argmax())

    def improve(self, gradient: adam.Arrays) -> bool:
        """Move the network one step against `gradient`, and return whether the task is clearly solved now.

        Every so many updates it renews the target network, or checks the network.
        """
        settings = self.settings
        self.network, self._optimiser = adam.step(self.network, gradient, self._optimiser, settings.learning_rate)
        self._updates += 1
        if self._updates % settings.target_updates == 0:
            self.target_network = self.network
        return self._updates % settings.check_updates == 0 and self.check()

    def check(self) -> bool:
        """Play without exploring, keeps the best network, and return whether the task is clearly solved.

        Clearly: in an evaluation, a mean three standard errors too low would still be enough. A few lucky episodes do
        not say so; they only earn the network a longer check.
        """
        returns = self._play(self.check_task, self.network, self.settings.check_episodes)
        if self._is_enough(self._pessimistic(returns)):
            more = self._play(self.check_task, self.network, self.settings.confirming_episodes)
            returns = np.concatenate([returns, more])
        self.record.add_check(float(returns.mean()))
        score = self._pessimistic(returns)
        if score > self._best_score:
            self._best_score, self._best_network = score, self.network
        return self._is_enough(score)

    def evaluate(self, task: tasks.Task) -> float:
        """Return the mean return of the best network over fresh episodes, from a seed that training did not use."""
        episodes = self.settings.evaluation_episodes
        task.reset(int(np.random.SeedSequence([self.settings.seed, episodes]).generate_state(1)[0] >> 1))
        return float(self._play(task, self.best_network, episodes).mean())

    def _play(self, task: tasks.Task, network: adam.Arrays, episodes: int) -> arrays.Floats:
        """Return the returns of that many greedy episodes [episodes]."""
        return tasks.play(task, lambda: self._begin_greedy(network), episodes)

    def _pessimistic(self, returns: arrays.Floats) -> float:
        """Return what the mean of `evaluation_episodes` will hardly fall below, judging by `returns`."""
        return float(returns.mean() - 3.0 * returns.std() / np.sqrt(self.settings.evaluation_episodes))

    def _is_enough(self, score: float) -> bool:
        """Return whether there is a threshold and `score` reaches it."""
        return self.check_task.solved_at is not None and score >= self.check_task.solved_at


def generators(seed: int, number: int) -> list[np.random.Generator]:
    """Return that many independent generators [number]; the first ones do not depend on how many there are."""
    return [np.random.default_rng(each) for each in np.random.SeedSequence(seed).spawn(number)]
