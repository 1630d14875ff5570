"""The example of C51: its game can be won, and its targets are those on paper."""

import itertools
from typing import Any

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")
pytest.importorskip("torch")

import c51
from gymnasium.utils import env_checker
import networks_test
import torch

import relive
from relive.integrations import torch as relive_torch

LEFT, STAY, RIGHT = range(3)


@pytest.fixture(autouse=True)
def _early_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin to learn after 100 steps."""
    monkeypatch.setattr(c51, "WARM_UP", 100)


# The game.


def towards_the_lowest_ball(frame: Any) -> int:
    """Return the action that moves the paddle towards the ball that lands next."""
    balls, paddle = frame
    if not balls[:9].any():
        return STAY
    row = np.flatnonzero(balls[:9].any(axis=1))[-1]
    return int(np.sign(balls[row].argmax() - paddle[9].argmax())) + 1


@pytest.mark.parametrize("seed", range(20))
def test_a_player_of_the_lowest_ball_catches_all_39(seed: int) -> None:
    env = gymnasium.wrappers.TimeLimit(c51.Catch(), 200)
    frame, _ = env.reset(seed=seed)
    total, truncated = 0.0, False
    while not truncated:
        frame, reward, terminated, truncated, _ = env.step(towards_the_lowest_ball(frame))
        assert not terminated
        assert frame[0].sum(axis=1).max() <= 1  # A ball that was caught does not come back beside a new one.
        total += reward
    assert total == 39  # Balls appear in steps 1, 6, ..., 191 and later, and land 9 steps later.


def test_an_episode_of_balls_ends_with_the_first_miss() -> None:
    env = c51.Catch()
    frame, _ = env.reset(seed=3)
    assert not frame[0].any()
    frames = []
    terminated = False
    while not terminated:
        frame, reward, terminated, truncated, _ = env.step(LEFT)
        frames.append(frame[0])
        assert not truncated
        assert reward == 0
    assert len(frames) == 10
    for before, after in itertools.pairwise(frames):
        assert np.array_equal(after[1:], before[:-1])
    assert [frame[0].sum() for frame in frames] == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert frames[-1][9, 0] == 0


def test_the_paddle_stays_within_its_row() -> None:
    for action, columns in ((LEFT, [4, 3, 2, 1, 0, 0]), (RIGHT, [6, 7, 8, 9, 9, 9]), (STAY, [5] * 6)):
        env = c51.Catch()
        env.reset(seed=0)
        frames = [env.step(action)[0] for _ in range(6)]
        assert [np.argwhere(frame[1]).tolist() for frame in frames] == [[[9, column]] for column in columns]


def test_the_game_keeps_the_rules_of_gymnasium() -> None:
    env_checker.check_env(c51.Catch(), skip_render_check=True)


# Distributions.


def naively_projected(returns: list[float], probabilities: list[float]) -> list[float]:
    """Return the distribution over the support, one return after the other (algorithm 1 of Bellemare et al. 2017)."""
    width, expected = 20 / 50, [0.0] * 51
    for value, probability in zip(returns, probabilities, strict=True):
        position = min(max(value, 0), 20) / width
        low = min(int(position), 49)
        expected[low] += probability * (low + 1 - position)
        expected[low + 1] += probability * (position - low)
    return expected


def random_distributions(count: int) -> torch.Tensor:
    return torch.randn(count, 51).softmax(dim=1)


def test_a_projection_splits_probabilities_between_neighbours() -> None:
    torch.manual_seed(0)
    returns, probabilities = 30 * torch.rand(8, 51) - 5, random_distributions(8)
    projected = c51.projected(returns, probabilities)
    for row, (values, shares) in enumerate(zip(returns.tolist(), probabilities.tolist(), strict=True)):
        assert projected[row].tolist() == pytest.approx(naively_projected(values, shares), abs=1e-5)


def test_a_projection_of_the_support_changes_nothing() -> None:
    torch.manual_seed(0)
    probabilities = random_distributions(4)
    assert torch.allclose(c51.projected(c51.SUPPORT.expand(4, 51), probabilities), probabilities, atol=1e-5)


class Table(torch.nn.Module):
    """A network with a distribution for each action and each observation, which is its own number."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        logits = 3 * torch.randn(5, 3, 51, generator=torch.Generator().manual_seed(seed))
        self.logits = torch.nn.Parameter(logits)

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        return self.logits.log_softmax(dim=2)[observation.long()]

    best_actions = c51.Network.best_actions


@pytest.mark.parametrize("terminated", [True, False])
def test_divergences_are_from_double_q_targets_over_three_steps(*, terminated: bool) -> None:
    actions, rewards, gamma = [0, 2, 1, 2], np.array([1, 0, 1, 3], np.float32), 0.5
    buffer = relive.PrioritizedReplayBuffer(10, n_step=3, gamma=gamma)
    keys = buffer.add_episode(np.arange(5, dtype=np.uint8), actions, rewards, terminated=terminated)
    network, target_network = Table(1), Table(2)
    batch = relive_torch.as_tensors(buffer.read(keys))
    divergences = c51.divergences_of(network, target_network, batch)

    support = np.linspace(0, 20, 51)
    values, target_values = (table(torch.arange(5)).exp().detach().numpy() for table in (network, target_network))
    assert (values @ support).argmax(axis=1)[3:].tolist() != (target_values @ support).argmax(axis=1)[3:].tolist()
    expected = []
    for start in range(4):
        end = min(start + 3, 4)
        discount = 0 if terminated and end == 4 else gamma ** (end - start)
        total = sum(gamma ** (t - start) * rewards[t] for t in range(start, end))
        best = (values[end] @ support).argmax()
        target = np.array(naively_projected(list(total + discount * support), target_values[end, best].tolist()))
        present = target > 0
        ratios = target[present] / values[start, actions[start]][present]
        expected.append((target[present] * np.log(ratios)).sum())
    assert divergences.tolist() == pytest.approx(expected, rel=1e-3)

    divergences.sum().backward()
    assert network.logits.grad is not None
    learned = network.logits.grad.abs().sum(dim=2).nonzero().tolist()
    assert learned == [[start, action] for start, action in enumerate(actions)]
    assert target_network.logits.grad is None


def test_advantages_are_relative_to_their_mean_over_the_actions() -> None:
    network, frames = c51.Network(), torch.ones(1, 2, 10, 10)
    with torch.no_grad():
        before = network(frames)
        network.advantage.bias.add_(torch.randn(51).repeat(3))  # The same for each action, and not for each return.
        assert torch.allclose(network(frames), before, atol=1e-5)


def test_best_actions_have_the_highest_expected_returns() -> None:
    frames = torch.randint(0, 2, (16, 2, 10, 10), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    network = c51.Network()
    probabilities = network(frames).exp().detach().numpy().astype(np.float64)
    assert probabilities.shape == (16, 3, 51)
    assert probabilities.sum(axis=2) == pytest.approx(1, abs=1e-5)
    expected_returns = probabilities @ np.linspace(0, 20, 51)
    assert network.best_actions(frames).tolist() == expected_returns.argmax(axis=1).tolist()


@pytest.mark.parametrize(("name", "n_step"), list(zip(c51.REPLAYS, [3, 1], strict=True)))
def test_the_loop_returns_divergences_as_priorities(name: str, n_step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, updates = networks_test.spied_buffer(monkeypatch)
    found: list[Any] = []
    divergences_of = c51.divergences_of

    def spied(network: Any, target_network: Any, batch: Any) -> Any:
        assert network is not target_network
        found.append(divergences_of(network, target_network, batch))
        return found[-1]

    monkeypatch.setattr(c51, "divergences_of", spied)
    c51.train(140, 0, **c51.REPLAYS[name])
    assert len(batches) == len(found) == len(updates) == 20
    assert batches[-1].weights.min() < 1 if n_step == 3 else (batches[-1].weights == 1).all()
    assert {batch.steps.max() for batch in batches} == {n_step}
    for batch, divergences, (keys, priorities) in zip(batches, found, updates, strict=True):
        assert batch.observation.dtype == np.uint8
        assert keys.tolist() == batch.keys.tolist()
        assert priorities.tolist() == divergences.clamp(min=0).tolist()
