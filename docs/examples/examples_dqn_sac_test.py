"""The examples of DQN, SAC and Atari frames: their short forms run, and their losses are those on paper."""

from collections.abc import Iterator
import contextlib
import importlib.util
import io
import math
import pathlib
import re
import types
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ale_py")
pytest.importorskip("torch")

import gymnasium
import torch

import relive
from relive.integrations import torch as relive_torch

FIGURE = r"-?\d+\.\d"


def load_example(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", pathlib.Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


dqn, sac, atari = (load_example(name) for name in ("dqn", "sac", "atari_throughput"))

FIRST_LINES = {dqn: r"step \d+: no episode has ended", sac: r"step 4: no episode has ended"}
LAST_LINES = {
    dqn: rf"after STEPS steps, 20 greedy episodes return {FIGURE} on average",
    sac: rf"4 episodes were truncated, 0 terminated; after STEPS steps, 20 episodes without noise return {FIGURE} .*",
}


def printed(example: types.ModuleType, *arguments: str) -> list[str]:
    """Return the lines of a run."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        example.main(arguments)
    return output.getvalue().splitlines()


@pytest.fixture(autouse=True)
def _torch_as_others_left_it() -> Iterator[None]:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


# DQN and SAC.


@pytest.mark.parametrize(
    ("size", "steps"),
    [
        pytest.param(["--steps", "1020"], 1_020, id="tiny"),  # The first batch is drawn after 1000 steps.
        pytest.param(["--short"], 1_200, marks=pytest.mark.long, id="short"),
    ],
)
@pytest.mark.parametrize("example", LAST_LINES, ids=lambda example: example.__name__)
def test_a_run_says_how_far_it_is_and_its_seed_says_all_of_it(
    example: types.ModuleType, size: list[str], steps: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "curve.png"
    monkeypatch.setattr(example, "SECONDS_BETWEEN_LINES", 0)
    first, *_, last = lines = printed(example, *size, "--plot", str(path))
    assert re.fullmatch(FIRST_LINES[example], first)
    assert re.fullmatch(LAST_LINES[example].replace("STEPS", str(steps)), last)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert printed(example, *size) == lines
    assert printed(example, *size, "--seed", "1")[:-1] != lines[:-1]


# What the losses are tested on: an episode of four steps, read from a buffer. An observation is its number, one-hot.

ACTIONS, REWARDS, GAMMA = [0, 1, 0, 1], [1.0, 2.0, 4.0, 8.0], 0.5


def read_episode(
    buffer: relive.RingReplayBuffer, actions: Any, *, terminated: bool
) -> relive.TransitionBatch[torch.Tensor]:
    """Return the transitions from each step of the episode."""
    observations = np.eye(5, dtype=np.float32)
    keys = buffer.add_episode(observations, actions, np.array(REWARDS, np.float32), terminated=terminated)
    return relive_torch.as_tensors(buffer.read(keys))


# DQN.

VALUES = [[1.0, 0.0], [0.0, 2.0], [3.0, 1.0], [5.0, 4.0], [6.0, 7.0]]
TARGET_VALUES = [[0.0, 1.0], [9.0, 9.0], [1.0, 1.0], [2.0, 8.0], [9.0, 4.0]]
"""By observation and action. The networks disagree of what is best in the third and in the last observation."""


def table(values: list[list[float]]) -> torch.nn.Linear:
    """Return a network with these values."""
    network = torch.nn.Linear(5, 2, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.tensor(values).T)
    return network


def constant(values: list[float], num_inputs: int) -> torch.nn.Linear:
    """Return a network that says these values of everything."""
    network = torch.nn.Linear(num_inputs, len(values))
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.tensor(values))
    return network


@pytest.mark.parametrize("terminated", [True, False])
def test_errors_are_values_less_double_q_targets_over_three_steps(*, terminated: bool) -> None:
    buffer = relive.PrioritizedReplayBuffer(10, n_step=3, gamma=GAMMA)
    batch = read_episode(buffer, ACTIONS, terminated=terminated)
    expected = []
    for start in range(4):
        end = min(start + 3, 4)
        target = sum(GAMMA ** (t - start) * REWARDS[t] for t in range(start, end))
        if not (terminated and end == 4):
            best = VALUES[end].index(max(VALUES[end]))
            target += GAMMA ** (end - start) * TARGET_VALUES[end][best]
        expected.append(VALUES[start][ACTIONS[start]] - target)
    assert dqn.errors_of(table(VALUES), table(TARGET_VALUES), batch).tolist() == expected


def test_only_the_values_learn_and_not_their_targets() -> None:
    network, target_network = table(VALUES), table(TARGET_VALUES)
    batch = read_episode(relive.PrioritizedReplayBuffer(10, n_step=3, gamma=GAMMA), ACTIONS, terminated=False)
    dqn.errors_of(network, target_network, batch).sum().backward()
    assert network.weight.grad is not None
    assert network.weight.grad.T.tolist() == [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    assert target_network.weight.grad is None


def test_a_loss_is_squared_near_zero_and_straight_far_away_and_counts_by_its_weight() -> None:
    errors, weights = torch.tensor([0.5, -2.0, 3.0, 7.0]), torch.tensor([1.0, 0.5, 0.25, 0.0])
    assert dqn.loss_of(errors, weights).item() == (0.125 + 0.5 * 1.5 + 0.25 * 2.5) / 4


def test_a_target_network_follows_slowly() -> None:
    target_network, network = table([[0.0, 100.0]] * 5), table([[1000.0, 0.0]] * 5)
    dqn.follow(target_network, network)
    assert target_network.weight.T.tolist()[0] == pytest.approx([1000 * dqn.TARGET_RATE, 100 * (1 - dqn.TARGET_RATE)])
    assert network.weight.T.tolist()[0] == [1000.0, 0.0]


def test_the_greedy_action_is_the_best_by_the_values() -> None:
    assert [dqn.greedy_action(table(VALUES), observation) for observation in np.eye(5, dtype=np.float32)] == [
        0,
        1,
        0,
        0,
        1,
    ]


def test_a_cart_that_is_pushed_one_way_loses_its_pole_in_ten_steps() -> None:
    assert 8 <= dqn.greedy_return(constant([1.0, 0.0], 4), num_episodes=5, seed=0) <= 11


def test_the_loop_weighs_the_losses_gives_the_errors_back_and_lets_the_target_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches: list[Any] = []
    losses: list[tuple[Any, Any]] = []
    updates: list[tuple[Any, Any]] = []
    followed: list[Any] = []
    loss_of = dqn.loss_of

    class Spied(relive.PrioritizedReplayBuffer):
        def sample(self, *arguments: Any, **options: Any) -> Any:
            batches.append(super().sample(*arguments, **options))
            return batches[-1]

        def update_priorities(self, keys: Any, priorities: Any) -> int:
            updates.append((keys, priorities))
            return super().update_priorities(keys, priorities)

    def spied(errors: torch.Tensor, weights: torch.Tensor) -> Any:
        losses.append((errors.detach().numpy(), weights.numpy()))
        return loss_of(errors, weights)

    monkeypatch.setattr(relive, "PrioritizedReplayBuffer", Spied)
    monkeypatch.setattr(dqn, "loss_of", spied)
    monkeypatch.setattr(dqn, "follow", lambda target_network, network: followed.append((target_network, network)))
    printed(dqn, "--steps", "1020")
    assert len(batches) == len(losses) == len(updates) == len(followed) == 21
    assert batches[-1].weights.min() < 1
    assert {batch.steps.max() for batch in batches} == {3}
    for batch, (errors, weights), (keys, priorities) in zip(batches, losses, updates, strict=True):
        assert weights.tolist() == np.float32(batch.weights).tolist()
        assert keys.tolist() == batch.keys.tolist()
        assert priorities.tolist() == abs(errors).tolist()
    assert followed[0][0] is not followed[0][1]


# SAC.


def test_the_density_of_an_action_is_that_of_a_squashed_normal() -> None:
    actor = constant([0.3, -0.7, math.log(0.5), math.log(1.5)], 5)
    actions, log_densities = sac.drawn_actions(actor, torch.eye(5))
    normal = torch.distributions.Normal(torch.tensor([0.3, -0.7]), torch.tensor([0.5, 1.5]))
    squashed = torch.distributions.TransformedDistribution(normal, torch.distributions.TanhTransform())
    assert actions.shape == (5, 2)
    assert len(actions.unique()) == 10
    assert log_densities.tolist() == pytest.approx(squashed.log_prob(actions).sum(dim=1).tolist(), rel=1e-4)


@pytest.mark.parametrize("terminated", [True, False])
def test_critics_are_measured_against_the_lower_of_their_targets(*, terminated: bool) -> None:
    actions = np.array([[0.5], [-0.5], [0.25], [0.0]], np.float32)
    batch = read_episode(relive.RingReplayBuffer(10, gamma=GAMMA), actions, terminated=terminated)
    actor = constant([0.5, 0.0], 5)
    critics = [constant([3.0], 6), constant([5.0], 6)]
    target_critics = [constant([9.0], 6), constant([4.0], 6)]
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
    assert learner.best_action(observation)[0] == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize(("log_std", "falls"), [(-0.5, True), (-4.0, False)])
def test_the_temperature_falls_where_the_actor_is_random_enough(log_std: float, *, falls: bool) -> None:
    learner = sac.Learner(5, 1)
    learner.actor = constant([0.0, log_std], 5)
    batch = read_episode(relive.RingReplayBuffer(10), np.zeros((4, 1), np.float32), terminated=True)
    learner.learn(batch)
    assert (learner.log_temperature.item() < 0) is falls


def test_target_critics_follow_slowly() -> None:
    learner = sac.Learner(5, 1)
    old = [parameter.clone() for parameter in learner.target_critics.parameters()]
    learner.learn(read_episode(relive.RingReplayBuffer(10), np.zeros((4, 1), np.float32), terminated=True))
    new, fast = learner.target_critics.parameters(), learner.critics.parameters()
    for before, after, ahead in zip(old, new, fast, strict=True):
        assert not torch.equal(ahead, before)
        assert torch.allclose(after - before, sac.TARGET_RATE * (ahead - before), atol=1e-7)


def test_actors_follow_the_policy_and_a_batch_a_step_is_learned_from_once_there_are_a_thousand_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """250 steps in each of 4 environments and a reset come before the first batch, and 9 behind it."""
    calls: list[str] = []
    actions = sac.Learner.actions

    def spied(learner: Any, observations: Any) -> Any:
        calls.append("act")
        return actions(learner, observations)

    monkeypatch.setattr(sac.Learner, "actions", spied)
    monkeypatch.setattr(sac.Learner, "learn", lambda learner, batch: calls.append(f"learn from {len(batch)}"))
    printed(sac, "--steps", "1040")
    assert calls == ["act", *[f"learn from {sac.BATCH_SIZE}"] * 4] * 9


def test_actions_go_from_minus_one_to_one() -> None:
    env = sac.wrapped(gymnasium.make("Pendulum-v1"))
    assert (env.action_space.low, env.action_space.high) == (-1, 1)
    assert env.observation_space.dtype == np.float32


# Atari.


@pytest.mark.parametrize(
    ("size", "steps"),
    [
        pytest.param(["--steps", "400"], 400, id="tiny"),
        pytest.param(["--short"], 1_000, marks=pytest.mark.long, id="short"),
    ],
)
def test_a_step_takes_an_eighth_of_two_stacks_of_four_and_the_same_seed_plays_the_same_game(
    size: list[str], steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers: list[relive.RingReplayBuffer] = []

    class Spied(relive.RingReplayBuffer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            buffers.append(self)

    monkeypatch.setattr(relive, "RingReplayBuffer", Spied)
    monkeypatch.setattr(atari, "SECONDS_BETWEEN_LINES", 0)
    lines = printed(atari, *size, "--seed", "3")
    assert re.fullmatch(r"step 8: \d+ steps a second", lines[0])
    assert re.fullmatch(rf"{FIGURE} MB for {steps} steps; two stacks a transition take {FIGURE} MB", lines[-1])
    stored, stacked = (float(figure) for figure in re.findall(rf"{FIGURE}(?= MB)", lines[-1]))
    assert stacked == pytest.approx(8 * 84 * 84 * steps / 1e6, abs=0.05)
    assert 7 < stacked / stored < 8
    shares = [int(share) for share in re.findall(r"(\d+)%", "\n".join(lines))]
    assert len(shares) == 3
    assert 0 < sum(shares) <= 101
    printed(atari, "--steps", "80", "--seed", "3")
    first, again = (buffer.read(range(80)).observation for buffer in buffers)
    assert np.array_equal(first, again)
