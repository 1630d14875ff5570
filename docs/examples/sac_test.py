"""The example of SAC: its losses are those on paper."""

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")
pytest.importorskip("torch")

import networks_test
import sac
import torch

import relive
from relive.integrations import torch as relive_torch


@pytest.fixture(autouse=True)
def _early_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin to learn after 100 steps."""
    monkeypatch.setattr(sac, "WARM_UP", 100)


REWARDS, GAMMA = networks_test.REWARDS, networks_test.GAMMA


def test_the_density_of_an_action_is_that_of_a_squashed_normal() -> None:
    torch.manual_seed(0)
    actor = networks_test.constant([0.3, math.log(0.5)], 5)
    torques, log_densities = sac.drawn_actions(actor, torch.eye(5))
    assert torques.shape == (5, 1)
    assert len(torques.unique()) == 5
    for torque, log_density in zip(torques[:, 0].tolist(), log_densities.tolist(), strict=True):
        squashed = torque / sac.MAX_TORQUE
        raw = math.atanh(squashed)
        normal = math.exp(-((raw - 0.3) ** 2) / (2 * 0.5**2)) / (0.5 * math.sqrt(2 * math.pi))
        assert log_density == pytest.approx(math.log(normal / (1 - squashed**2)), abs=1e-3)


@pytest.mark.parametrize("terminated", [True, False])
def test_critics_are_measured_against_the_lower_of_their_targets(*, terminated: bool) -> None:
    actions = np.array([[0.5], [-0.5], [0.25], [0.0]], np.float32)
    batch = networks_test.read_episode(relive.RingReplayBuffer(10, gamma=GAMMA), actions, terminated=terminated)
    actor = networks_test.constant([0.5, 0.0], 5)
    critics = [networks_test.constant([3.0], 6), networks_test.constant([5.0], 6)]
    target_critics = [networks_test.constant([9.0], 6), networks_test.constant([4.0], 6)]
    torch.manual_seed(7)
    loss = sac.critic_loss(critics, target_critics, actor, 0.1, batch)
    torch.manual_seed(7)
    log_densities = sac.drawn_actions(actor, torch.eye(5)[1:])[1].tolist()
    discounts = [GAMMA, GAMMA, GAMMA, 0.0 if terminated else GAMMA]
    targets = [
        reward + discount * (4.0 - 0.1 * log_density)
        for reward, discount, log_density in zip(REWARDS, discounts, log_densities, strict=True)
    ]
    expected = sum((value - target) ** 2 for value in (3.0, 5.0) for target in targets) / 4
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_a_learner_finds_the_best_action() -> None:
    """One step, and a reward that is highest in the middle between 0 and 1."""
    rng = np.random.default_rng(0)
    buffer = relive.RingReplayBuffer(500, seed=0)
    observation = np.ones(1, np.float32)
    for action in rng.uniform(-1, 1, (500, 1)).astype(np.float32):
        reward = np.float32(-((action[0] - 0.5) ** 2))
        buffer.add(observation, action, reward, observation, terminated=True)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    learner = sac.Learner(1, 1)
    for _ in range(200):
        learner.learn(relive_torch.as_tensors(buffer.sample(64)))
    assert learner.actions(observation[None], explores=False)[0, 0] == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize(("log_std", "falls"), [(-0.5, True), (-4.0, False)])
def test_the_temperature_falls_where_the_actor_is_random_enough(log_std: float, *, falls: bool) -> None:
    learner = sac.Learner(5, 1)
    learner.actor = networks_test.constant([0.0, log_std], 5)
    batch = networks_test.read_episode(relive.RingReplayBuffer(10), np.zeros((4, 1), np.float32), terminated=True)
    learner.learn(batch)
    assert (learner.log_temperature.item() < 0) is falls


def test_target_critics_follow_slowly() -> None:
    learner = sac.Learner(5, 1)
    old = [parameter.clone() for parameter in learner.target_critics.parameters()]
    learner.learn(
        networks_test.read_episode(relive.RingReplayBuffer(10), np.zeros((4, 1), np.float32), terminated=True)
    )
    new, fast = learner.target_critics.parameters(), learner.critics.parameters()
    for before, after, ahead in zip(old, new, fast, strict=True):
        assert not torch.equal(ahead, before)
        assert torch.allclose(after - before, sac.TARGET_RATE * (ahead - before), atol=1e-7)


def test_best_actions_are_in_the_middle_of_those_that_explore() -> None:
    learner = sac.Learner(5, 1)
    learner.actor = networks_test.constant([0.25, -3.0], 5)
    observations = np.zeros((1_000, 5), np.float32)
    best, drawn = (learner.actions(observations, explores=explores) for explores in (False, True))
    assert best[:, 0] == pytest.approx(2 * np.tanh(0.25))
    assert len(set(drawn[:, 0])) > 900
    assert np.median(drawn) == pytest.approx(2 * np.tanh(0.25), abs=0.02)


def test_the_policy_learns_a_batch_per_step_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 35 steps in each of 4 environments, 25 come before the first batch."""
    calls: list[str] = []
    actions = sac.Learner.actions

    def spied(learner: Any, observations: Any, *, explores: bool) -> Any:
        if explores:
            calls.append("act")
        return actions(learner, observations, explores=explores)

    monkeypatch.setattr(sac, "STEPS_PER_EVALUATION", 60)
    monkeypatch.setattr(sac.Learner, "actions", spied)
    monkeypatch.setattr(sac.Learner, "learn", lambda learner, batch: calls.append(f"learn from {len(batch)}"))
    steps, _ = sac.train(140, 0, wrappers=[])
    assert calls == ["act", *[f"learn from {sac.BATCH_SIZE}"] * 4] * 10
    assert steps == [0, 60, 120]


@pytest.mark.parametrize("wrappers", [[], [sac.OneFlag]])
def test_time_limits_are_truncated_unless_ends_are_one_flag(
    wrappers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers: list[relive.RingReplayBuffer] = []

    class Spied(relive.RingReplayBuffer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            buffers.append(self)

    monkeypatch.setattr(relive, "RingReplayBuffer", Spied)
    monkeypatch.setattr(sac, "WARM_UP", 1_000)
    sac.train(800, 0, wrappers=wrappers)
    stats = buffers[0].get_stats()
    num_episodes = 28  # In each of 4 environments, 7 episodes of 25 steps and the resets between them fit in 200 steps.
    assert (stats.truncated_episodes, stats.terminated_episodes) == (
        (0, num_episodes) if wrappers else (num_episodes, 0)
    )
