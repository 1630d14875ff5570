import numpy as np
import pytest

from relive.cli import adam
from relive.cli import memory_task
from relive.cli import recurrent_network
from relive.cli import sequence_training


def new_training(seed: int = 0, steps: int = 300) -> sequence_training.SequenceTraining:
    return sequence_training.SequenceTraining(
        memory_task.MemoryTask,
        sequence_training.Settings(seed=seed, steps=steps, warm_up=30, batch_size=8, check_episodes=2),
    )


def trained(seed: int, steps: int = 300) -> sequence_training.SequenceTraining:
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
    assert set(training.record.episode_returns) <= {0.0, 1.0}


def test_the_stored_state_is_that_before_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    training = new_training(steps=200)
    monkeypatch.setattr(training, "improve", lambda gradient: False)
    training.run(lambda: None)
    batch = training.buffer.read(training.buffer.eligible_keys())
    for k in range(len(batch)):
        state = batch.extras["state"][k, :1]
        if batch.start_step[k] == 0:
            assert not state.any()
        for t in range(training.settings.length):
            assert (batch.extras["state"][k, t] == state[0]).all()
            _, state = recurrent_network.advance(training.network, batch.observation[k, t][np.newaxis], state)


def test_the_gradient_is_that_of_double_q_learning_behind_the_burn_in(monkeypatch: pytest.MonkeyPatch) -> None:
    training = trained(3)
    training.target_network = recurrent_network.initial(4, 32, 4, np.random.default_rng(0))
    batch = training.buffer.sample(8)
    improved: list[adam.Arrays] = []

    def improve(gradient: adam.Arrays) -> bool:
        improved.append(gradient)
        return False

    monkeypatch.setattr(training.buffer, "sample", lambda batch_size: batch)
    monkeypatch.setattr(training, "improve", improve)
    assert not training._learn()

    weight = 1 / (8 * (10 - 2))
    expected = [np.zeros_like(part) for part in training.network]
    for k in range(8):
        states = [batch.extras["state"][k, :1]]
        values, target_values, target_state = [], [], states[0]
        for t in range(11):
            observation = batch.observation[k, t][np.newaxis]
            value, state = recurrent_network.advance(training.network, observation, states[-1])
            target_value, target_state = recurrent_network.advance(training.target_network, observation, target_state)
            states.append(state)
            values.append(value[0])
            target_values.append(target_value[0])
        targets = [
            batch.reward[k, t]
            + (0.0 if batch.terminated[k, t] else 0.99 * target_values[t + 1][values[t + 1].argmax()])
            for t in range(2, 10)
        ]
        of_this_one = recurrent_network.squared_loss_gradient(
            training.network,
            batch.observation[k : k + 1, 2:10],
            states[2],
            batch.action[k : k + 1, 2:],
            np.array([targets]),
            np.full((1, 8), weight),
        )
        for total, part in zip(expected, of_this_one, strict=True):
            total += part
    for part, wanted in zip(improved[0], expected, strict=True):
        np.testing.assert_allclose(part, wanted, rtol=1e-9, atol=1e-15)
    assert batch.terminated.any()
    assert not batch.terminated[:, -1].all()


def test_from_the_warm_up_on_there_is_an_update_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    training = new_training()
    first_update: list[int] = []
    learn = training._learn

    def spy() -> bool:
        first_update.append(training.record.steps)
        assert training.buffer.num_eligible >= 30
        return learn()

    monkeypatch.setattr(training, "_learn", spy)
    training.run(lambda: None)
    assert first_update == list(range(first_update[0], 301))
    assert 100 < first_update[0] < 200


def test_a_solved_task_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence_training.SequenceTraining, "improve", lambda self, gradient: True)
    training = trained(0)
    assert training.record.steps < 200
    assert training.buffer.get_stats().sampled == 8


def test_it_learns_to_remember() -> None:
    training = sequence_training.SequenceTraining(
        memory_task.MemoryTask, sequence_training.Settings(seed=3, steps=3_000)
    )
    training.run(lambda: None)
    assert training.evaluate(memory_task.MemoryTask()) >= memory_task.MemoryTask.solved_at
