import asyncio

import numpy as np
import pytest

import relive
from relive.tools import curve
from relive.tools import demo
from relive.tools import environments
from relive.tools import q_network


def trained(seed: int, steps: int = 1200, actors: int = 3) -> demo.Training:
    made = [environments.Environment("CartPole-v1") for _ in range(actors + 1)]
    training = demo.Training(made[1:], made[0], demo.Settings(seed=seed, steps=steps))
    asyncio.run(training.run())
    return training


def test_the_same_seed_gives_the_same_run() -> None:
    first, second, other = trained(4), trained(4), trained(5)
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
    assert training.record.steps <= training.settings.steps
    assert stats.completed + stats.truncated >= len(training.record.episode_returns) > 0


def test_steps_below_the_warm_up_end_without_learning() -> None:
    training = trained(0, steps=100)
    assert training.record.steps == 100
    assert len(training.record.check_means) >= 1


def test_the_gradient_is_that_of_double_q_learning() -> None:
    rng = np.random.default_rng(0)
    network, target_network = (q_network.initial((2, 8, 3), rng) for _ in range(2))
    buffer = relive.EpisodeReplayBuffer[environments.Observation, int](seed=0)
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
        best = q_network.action_values(network, sample.next_observation[None])[0].argmax()
        value = q_network.action_values(target_network, sample.next_observation[None])[0, best]
        targets.append(sample.reward + sample.next_discount * value)
    expected = q_network.squared_loss_gradient(
        network,
        np.stack([sample.observation for sample in samples]),
        np.array([sample.action for sample in samples]),
        np.array(targets),
    )
    for found, wanted in zip(demo.double_q_gradient(network, target_network, samples), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


@pytest.mark.parametrize(("steps", "solved_at"), [(100, None), (1200, 475.0)])
def test_the_curve_is_a_png_of_some_size(tmp_path: object, steps: int, solved_at: float | None) -> None:
    path = f"{tmp_path}/curve.png"
    curve.save(trained(0, steps).record, "title", solved_at, path)
    with open(path, "rb") as file:
        content = file.read()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000
