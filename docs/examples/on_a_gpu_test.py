"""The example of a simulator in tensors: its pendulums are those of Gymnasium, and time limits are no ends."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="gymnasium is not installed")
pytest.importorskip("torch", reason="torch is not installed")

import gymnasium
import on_a_gpu
import torch


def test_pendulums_move_as_those_of_gymnasium() -> None:
    env: Any = gymnasium.make("Pendulum-v1").unwrapped
    env.reset(seed=0)
    envs = on_a_gpu.Pendulums(1, "cpu", seed=0)
    env.state = np.array([envs.angle.item(), envs.speed.item()])
    for torque in np.random.default_rng(0).uniform(-2, 2, 50):
        observation, reward, *_ = env.step(np.array([torque]))
        seen, rewards, _ = envs.step(torch.tensor([[torque / 2]], dtype=torch.float32))
        assert seen[0].tolist() == pytest.approx(observation.tolist(), abs=1e-3)
        assert rewards.item() == pytest.approx(reward, abs=1e-3)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def test_it_learns_from_batches_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "NUM_ENVS": 8,
        "CAPACITY": 800,
        "BATCH_SIZE": 16,
        "WARM_UP": 2,
        "TIME_LIMIT": 5,
        "UPDATES": 2,
    }.items():
        monkeypatch.setattr(on_a_gpu, name, value)
    learned = list[Any]()
    learn = on_a_gpu.Learner.learn

    def spied(learner: on_a_gpu.Learner, batch: on_a_gpu.Batch) -> torch.Tensor:
        learned.append(batch)
        return learn(learner, batch)

    monkeypatch.setattr(on_a_gpu.Learner, "learn", spied)
    steps, returns = on_a_gpu.train(8 * 11, 0, n_step=3, device="cpu")
    assert (steps, len(returns)) == ([0, 80], 2)
    assert len(learned) == 9 * on_a_gpu.UPDATES
    assert not any(batch.is_terminal.any() for batch in learned)
    # Windows end where an episode is cut off, and after three steps elsewhere.
    assert {*torch.cat([batch.steps for batch in learned]).tolist()} == {1, 2, 3}


def test_main_takes_a_number_of_steps(capsys: pytest.CaptureFixture[str]) -> None:
    on_a_gpu.main(["--short"])
    assert "relive, 1-step, seed 0: return without exploration at the end: -" in capsys.readouterr().out
