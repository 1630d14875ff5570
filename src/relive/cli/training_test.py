"""What all trainings share, on one that learns nothing from anything."""

import dataclasses

import numpy as np
import pytest

from relive.cli import adam
from relive.cli import tasks
from relive.cli import training

SETTINGS = training.Settings(seed=0, steps=10, learning_rate=1.0, check_updates=2, target_updates=3)


class Guess:
    """Episodes of one step; the reward is the number in the network that acts, plus noise if it is asked for."""

    name, observation_width, num_actions = "Guess", 1, 3

    def __init__(self, solved_at: float | None = None, returns: list[float] | None = None) -> None:
        self.solved_at = solved_at
        self.returns = returns or []
        self.episodes = 0
        self.seeds: list[int | None] = []

    def reset(self, seed: int | None = None) -> tasks.Observation:
        self.seeds.append(seed)
        return np.zeros(1)

    def step(self, action: int) -> tuple[tasks.Observation, float, bool, bool]:
        self.episodes += 1
        noise = self.returns.pop(0) if self.returns else 0.0
        return np.zeros(1), action + noise, True, False

    def close(self) -> None:
        pass


class Idle(training.Training[training.Settings, list[int]]):
    """Takes steps, moves the network by one against each gradient, and does nothing else."""

    def _train(self) -> None:
        while self.take_step():
            if self.improve((np.array([-1.0]),)):
                return


def begin_greedy(network: adam.Arrays) -> tasks.Policy:
    return lambda observation: int(network[0][0])


def idle(task: Guess, settings: training.Settings = SETTINGS) -> Idle:
    return Idle(settings, task, [], (np.array([0.0]),), begin_greedy)


def test_it_ends_when_the_steps_are_used_up_and_shows_each() -> None:
    found, shown = idle(Guess()), list[int]()
    found.run(lambda: shown.append(found.record.steps))
    assert shown == list(range(1, 11))
    assert found.is_over
    assert found.record.check_steps == [2, 4, 6, 8, 10, 10]


def test_it_ends_when_the_task_is_solved() -> None:
    found = idle(Guess(solved_at=3.0))
    found.run(lambda: None)
    assert found.record.check_steps == [2, 4, 4]
    assert found.check_task.solved_at == 3.0
    assert not found.is_over  # There are steps left.


def test_it_ends_when_it_is_stopped_and_checks_nothing_more() -> None:
    found = idle(Guess())
    found.run(lambda: found.stop() if found.record.steps == 3 else None)
    assert found.was_stopped
    assert found.record.steps == 3
    assert found.record.check_steps == [2]


def test_a_target_network_is_the_network_of_a_while_ago() -> None:
    found = idle(Guess())
    ages = []
    for _ in range(7):
        found.improve((np.array([-1.0]),))
        ages.append(round(float(found.target_network[0][0])))
    assert ages == [0, 0, 3, 3, 3, 6, 6]


def test_the_best_network_is_that_of_the_best_check() -> None:
    found = idle(Guess(), dataclasses.replace(SETTINGS, check_episodes=1))
    assert found.best_network is found.network
    for value in (1.0, 5.0, 2.0):
        found.network = (np.array([value]),)
        found.check()
    assert found.record.check_means == [1.0, 5.0, 2.0]
    assert found.best_network[0].tolist() == [5.0]
    assert found.evaluate(Guess()) == 5.0


def test_a_lucky_check_earns_a_longer_one_and_no_more() -> None:
    task = Guess(solved_at=1.0, returns=[1.0] * 20 + [0.0] * 100)
    found = idle(task)
    assert not found.check()
    assert task.episodes == 120
    assert found.record.check_means == [20 / 120]


def test_a_mean_that_may_be_luck_is_not_enough() -> None:
    task = Guess(solved_at=1.0, returns=[0.0, 2.1] * 60)
    assert not idle(task).check()
    assert task.episodes == 20


def test_without_a_threshold_nothing_is_solved() -> None:
    task = Guess(returns=[1e9] * 20)
    assert not idle(task).check()
    assert task.episodes == 20


def test_exploring_falls_from_the_first_share_to_the_last() -> None:
    found = idle(Guess(), dataclasses.replace(SETTINGS, first_epsilon=0.8, last_epsilon=0.2, exploring_steps=100))
    values, rng = np.array([0.0, 0.0, 1.0, 0.0]), np.random.default_rng(0)
    for steps, epsilon in ((0, 0.8), (50, 0.5), (100, 0.2), (1000, 0.2)):
        found.record.steps = steps
        actions = [found.explore(values, rng) for _ in range(4000)]
        assert set(actions) == {0, 1, 2, 3}
        assert np.mean(np.array(actions) != 2) == pytest.approx(0.75 * epsilon, abs=0.03)


def test_an_evaluation_has_a_seed_of_its_own() -> None:
    tasks_of = [Guess() for _ in range(3)]
    for task, seed in zip(tasks_of, (0, 0, 1), strict=True):
        idle(task, dataclasses.replace(SETTINGS, seed=seed)).evaluate(task)
    seeds = [task.seeds[0] for task in tasks_of]
    assert seeds[0] == seeds[1] != seeds[2]
    assert tasks_of[0].seeds[1:] == [None] * 20


def test_generators_do_not_depend_on_how_many_there_are() -> None:
    few, many = training.generators(5, 2), training.generators(5, 4)
    drawn = [rng.random() for rng in many]
    assert [rng.random() for rng in few] == drawn[:2]
    assert len(set(drawn)) == 4
