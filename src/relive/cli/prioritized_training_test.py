import numpy as np
import pytest

from relive.cli import environments
from relive.cli import prioritized_training
from relive.cli import q_network
from relive.cli import tasks


def new_task() -> tasks.Task:
    return environments.Environment("CartPole-v1")


def new_training(seed: int = 0, steps: int = 300) -> prioritized_training.PrioritizedTraining:
    return prioritized_training.PrioritizedTraining(
        new_task, prioritized_training.Settings(seed=seed, steps=steps, warm_up=100, check_episodes=2)
    )


def trained(seed: int, steps: int = 300) -> prioritized_training.PrioritizedTraining:
    training = new_training(seed, steps)
    training.run(lambda: None)
    return training


def test_the_same_seed_gives_the_same_run() -> None:
    first, second, other = (trained(seed, steps=200) for seed in (4, 4, 5))
    assert first.buffer.get_stats().sampled > 0
    assert first.record == second.record
    for a, b in zip(first.best_network, second.best_network, strict=True):
        assert (a == b).all()
    assert first.record != other.record


def test_what_was_lived_is_what_is_stored() -> None:
    training = trained(1)
    training.buffer.check()
    stats = training.buffer.get_stats()
    assert stats.size == training.record.steps == 300
    assert stats.spliced_episodes == 0
    assert stats.terminated_episodes == len(training.record.episode_returns) > 1
    assert sum(training.record.episode_returns) == training.record.episode_ends[-1]


def test_transitions_sum_three_rewards() -> None:
    batch = trained(1).buffer.sample(64)
    assert batch.steps.max() == 3
    assert batch.reward.max() == pytest.approx(1.0 + 0.99 + 0.99**2)
    assert batch.next_discount.min() == 0.0
    assert batch.next_discount[batch.steps == 3].max() == pytest.approx(0.99**3)


def test_from_the_warm_up_on_there_is_an_update_a_step() -> None:
    training = trained(2)
    assert training.buffer.get_stats().sampled == (300 - 99) * training.settings.batch_size


def test_priorities_are_the_errors_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    training = trained(3)
    network = training.network
    training.target_network = target_network = q_network.initial((4, 64, 64, 2), np.random.default_rng(0))
    batch = training.buffer.sample(64)
    monkeypatch.setattr(training.buffer, "sample", lambda batch_size: batch)
    training._learn()
    errors = []
    for k in range(64):
        best = q_network.values_of_one(network, batch.next_observation[k]).argmax()
        next_value = q_network.values_of_one(target_network, batch.next_observation[k])[best]
        value = q_network.values_of_one(network, batch.observation[k])[batch.action[k]]
        errors.append(abs(batch.reward[k] + batch.next_discount[k] * next_value - value))
    assert training.buffer.get_priorities(batch.keys) == pytest.approx(errors, rel=1e-12)


def test_importance_weights_go_into_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    training = trained(3)
    batch = training.buffer.sample(64)
    assert batch.weights.min() < batch.weights.max() == 1.0
    improved: list[q_network.Parameters] = []

    def improve(gradient: q_network.Parameters) -> bool:
        improved.append(gradient)
        return False

    monkeypatch.setattr(training.buffer, "sample", lambda batch_size: batch)
    monkeypatch.setattr(training, "improve", improve)
    training._learn()
    batch.weights *= 2.0
    training._learn()
    batch.weights[1:] = 0.0
    training._learn()
    whole, double, one = improved
    assert all((2.0 * part == other).all() for part, other in zip(whole, double, strict=True))
    slope = one[-1][batch.action[0]]  # of the last bias: weight * (value - target) / B
    error = training.buffer.get_priorities(batch.keys[:1])[0]
    assert abs(slope) == pytest.approx(batch.weights[0] * error / 64, rel=1e-12)


def test_a_solved_task_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prioritized_training.PrioritizedTraining, "improve", lambda self, gradient: True)
    assert trained(0).record.steps == 100


def test_steps_below_the_warm_up_end_without_learning() -> None:
    training = new_training(steps=50)
    training.run(lambda: None)
    assert training.record.steps == 50
    assert training.buffer.get_stats().sampled == 0
    assert len(training.record.check_means) == 1
