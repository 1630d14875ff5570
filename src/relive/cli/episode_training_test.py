import numpy as np
import pytest

import relive
from relive.cli import environments
from relive.cli import episode_training
from relive.cli import q_network
from relive.cli import tasks


def new_task() -> tasks.Task:
    return environments.Environment("CartPole-v1")


def trained(seed: int, steps: int = 1200) -> episode_training.EpisodeTraining:
    training = episode_training.EpisodeTraining(
        new_task, episode_training.Settings(seed=seed, steps=steps, actors=3, check_episodes=2)
    )
    training.run(lambda: None)
    return training


def test_the_same_seed_gives_the_same_run() -> None:
    first, second, other = (trained(seed, steps=1050) for seed in (4, 4, 5))
    assert first.buffer.get_stats().sampled > 0
    assert first.record == second.record
    for a, b in zip(first.best_network, second.best_network, strict=True):
        assert (a == b).all()
    assert first.record != other.record


def test_what_was_lived_is_what_is_stored() -> None:
    training = trained(1)
    training.buffer.check()
    stats = training.buffer.get_stats()
    assert stats.in_progress == 0
    assert stats.num_agents == 3
    assert stats.appended == training.record.steps == 1200
    assert stats.completed == len(training.record.episode_returns) > 10
    assert stats.truncated <= 3  # those that were going on at the end
    assert 1000 < sum(training.record.episode_returns) <= 1200


def test_actors_take_turns() -> None:
    training = episode_training.EpisodeTraining(new_task, episode_training.Settings(seed=0, steps=30, actors=5))
    agents: list[int] = []
    training.run(lambda: agents.append(training.buffer.get_stats().num_agents))
    assert agents[:7] == [1, 2, 3, 4, 5, 5, 5]


def test_the_learner_asks_the_target_network(monkeypatch: pytest.MonkeyPatch) -> None:
    gradient, asked = episode_training.double_q_gradient, list[tuple[object, object]]()

    def spy(
        network: q_network.Parameters,
        target_network: q_network.Parameters,
        samples: list[relive.ReplaySample[tasks.Observation, int]],
    ) -> q_network.Parameters:
        asked.append((network, target_network))
        return gradient(network, target_network, samples)

    monkeypatch.setattr(episode_training, "double_q_gradient", spy)
    trained(0)
    first_network = asked[0][0]
    assert all(target_network is first_network for _, target_network in asked[:100])
    assert asked[100][0] is asked[100][1] is not first_network


def test_steps_below_the_warm_up_end_without_learning() -> None:
    training = trained(0, steps=100)
    assert training.record.steps == 100
    assert training.buffer.get_stats().sampled == 0
    assert len(training.record.check_means) == 1


def test_a_solved_task_ends_the_actors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_training.EpisodeTraining, "improve", lambda self, gradient: True)
    training = trained(0)
    assert training.buffer.get_stats().sampled == 64
    assert 1000 <= training.record.steps < 1100


def test_a_stop_ends_everybody() -> None:
    training = episode_training.EpisodeTraining(
        new_task, episode_training.Settings(seed=0, steps=10_000, actors=3, check_episodes=2)
    )
    training.run(lambda: training.stop() if training.record.steps == 1100 else None)
    assert training.record.steps == 1100
    assert training.buffer.get_stats().in_progress == 0


def test_the_gradient_is_that_of_double_q_learning() -> None:
    rng = np.random.default_rng(0)
    network, target_network = (q_network.initial((2, 8, 3), rng) for _ in range(2))
    buffer = relive.EpisodeReplayBuffer[tasks.Observation, int](seed=0)
    for status in ("COMPLETED", "TRUNCATED"):
        episode_id = buffer.start_episode_nowait("a")
        for _ in range(6):
            buffer.append_observation_action_reward_nowait(
                episode_id, rng.normal(size=2), int(rng.integers(3)), rng.normal()
            )
        buffer.end_episode_nowait(episode_id, rng.normal(size=2), status)
    samples = buffer.sample_n_step_nowait(16, 3, 0.9)
    targets = []
    for sample in samples:
        best = q_network.values_of_one(network, sample.next_observation).argmax()
        value = q_network.values_of_one(target_network, sample.next_observation)[best]
        targets.append(sample.reward + sample.next_discount * value)
    expected = q_network.squared_loss_gradient(
        network,
        np.stack([sample.observation for sample in samples]),
        np.array([sample.action for sample in samples]),
        np.array(targets),
        np.full(16, 1 / 16),
    )
    found = episode_training.double_q_gradient(network, target_network, samples)
    for part, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(part, wanted, rtol=1e-12)
