"""The worked examples run in their short form, and their parts do what their texts say."""

import asyncio
from collections.abc import Iterator
import gc
import importlib.util
import math
import pathlib
import re
import types
from typing import Any

import numpy as np
import pytest

pytest.importorskip("minari")
pytest.importorskip("torch")

import torch

import relive
from relive.integrations import torch as relive_torch


def load_example(name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", pathlib.Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


r2d2, her, agents, offline = (load_example(name) for name in ("r2d2", "her", "agents", "offline"))

FIGURE = r"\d+\.\d+"
LAST_LINES = {
    r2d2: f"mean return: {FIGURE} with memory, {FIGURE} without",
    her: f"success rate at 6 bits: {FIGURE} with hindsight, {FIGURE} without",
    agents: f"right answers: {FIGURE} at first, {FIGURE} in the end; 16 conversations aborted",
    offline: f"mean return: clone {FIGURE}, controller {FIGURE}, recorded {FIGURE}, random {FIGURE}",
}

TINY = {
    r2d2: ["--steps", "1600"],
    her: ["--steps", "300", "--bits", "6"],
    agents: ["--steps", "600"],
    offline: ["--short"],
}
"""As few steps as learn something and look at it."""


@pytest.fixture(autouse=True)
def _what_others_may_rely_on(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Iterator[None]:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def constant_network(values: list[float], num_inputs: int) -> torch.nn.Linear:
    """Return a network whose values are these for every observation."""
    network = torch.nn.Linear(num_inputs, len(values))
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.tensor(values))
    return network


# All of them.


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
@pytest.mark.parametrize(
    ("module", "size"),
    [
        *[pytest.param(module, size, id=module.__name__) for module, size in TINY.items()],
        *[pytest.param(module, ["--short"], id=f"{module.__name__}-short", marks=pytest.mark.long) for module in TINY],
    ],
)
def test_runs_of_a_seed_end_with_the_same_figures(
    module: Any, size: list[str], capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    last_lines = []
    for arguments in (["--plot", str(tmp_path / "curve.png")], []):
        module.main([*size, "--seed", "3", *arguments])
        last_lines.append(capsys.readouterr().out.splitlines()[-1])
        torch.rand(3)
    assert last_lines[0] == last_lines[1]
    assert re.fullmatch(LAST_LINES[module], last_lines[0])
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    gc.collect()  # Minari leaves it to the garbage to remove its directories, with a warning.


# R2D2.


def sequences(**fields: Any) -> relive.SequenceBatch[torch.Tensor]:
    """Return two sequences of 4 + 3 steps; the first has 2 steps beyond the burn-in and ends, the other goes on."""
    rng = np.random.default_rng(0)
    steps = r2d2.BURN_IN + 3
    terminated, mask = np.zeros((2, steps), np.bool_), np.ones((2, steps), np.bool_)
    terminated[0, -2], mask[0, -1] = True, False
    arrays: dict[str, Any] = {
        "observation": rng.random((2, steps + 1, 5), np.float32),
        "action": np.array([[0, 0, 0, 0, 2, 1, 0], [0, 0, 0, 0, 1, 1, 3]]),
        "reward": np.array([[9, 9, 9, 9, 0, 1, 0], [9, 9, 9, 9, 0, 0, 0]], np.float32),
        "terminated": terminated,
        "truncated": np.zeros((2, steps), np.bool_),
        "mask": mask,
        "is_burn_in": np.broadcast_to(np.arange(steps) < r2d2.BURN_IN, (2, steps)).copy(),
        "start_step": np.zeros(2, np.int64),
        "probabilities": np.ones(2),
        "weights": np.array([1.0, 0.5], np.float32),
        "extras": {"state": rng.random((2, steps, r2d2.STATE_WIDTH), np.float32)},
    }
    return relive_torch.as_tensors(relive.SequenceBatch(keys=np.arange(2), **(arrays | fields)))


def test_sequence_loss_is_that_of_double_q_learning_after_the_burn_in() -> None:
    """Values 0, 1, 2, 3 of the network and 0, 10, 20, 40 of the target network, whatever is observed."""
    networks = []
    for values in ([0.0, 1.0, 2.0, 3.0], [0.0, 10.0, 20.0, 40.0]):
        network = r2d2.new_network(memory=True)
        network["head"] = constant_network(values, r2d2.STATE_WIDTH)
        networks.append(network)
    loss, priorities = r2d2.sequence_loss(*networks, sequences())
    bootstrap = r2d2.GAMMA * 40.0
    errors = [[bootstrap - 2.0, 1.0 - 1.0], [bootstrap - 1.0, bootstrap - 1.0, bootstrap - 3.0]]
    means = [sum(error**2 for error in row) / len(row) for row in errors]
    assert loss.item() == pytest.approx((1.0 * means[0] + 0.5 * means[1]) / 2, rel=1e-5)
    expected = [0.9 * max(row) + 0.1 * sum(row) / len(row) for row in errors]
    assert priorities.tolist() == pytest.approx(expected, rel=1e-5)


def test_a_sequence_without_a_step_to_learn_from_has_no_loss() -> None:
    network, target_network = r2d2.new_network(memory=True), r2d2.new_network(memory=True)
    mask = np.zeros((2, r2d2.BURN_IN + 3), np.bool_)
    mask[:, 0] = True
    loss, priorities = r2d2.sequence_loss(network, target_network, sequences(mask=mask))
    assert loss.item() == 0.0
    assert priorities.tolist() == [0.0, 0.0]


def test_no_gradient_goes_back_into_the_burn_in() -> None:
    network, target_network = r2d2.new_network(memory=True), r2d2.new_network(memory=True)
    batch = sequences()
    batch.extras["state"].requires_grad_()
    batch.observation.requires_grad_()
    loss, _ = r2d2.sequence_loss(network, target_network, batch)
    loss.backward()
    assert batch.extras["state"].grad is None
    gradient = batch.observation.grad
    assert not gradient[:, : r2d2.BURN_IN].any()
    assert gradient[:, r2d2.BURN_IN].any()


@pytest.mark.parametrize("who_is_constant", [0, 1])
def test_both_networks_start_from_the_first_state_and_the_burn_in(who_is_constant: int) -> None:
    networks = [r2d2.new_network(memory=True), r2d2.new_network(memory=True)]
    networks[who_is_constant]["head"] = constant_network([0.0, 1.0, 2.0, 3.0], r2d2.STATE_WIDTH)
    batch = sequences()
    loss, _ = r2d2.sequence_loss(*networks, batch)
    for step, reaches in ((0, True), (1, False)):
        state = batch.extras["state"].numpy().copy()
        state[:, step] += 1
        changed, _ = r2d2.sequence_loss(*networks, sequences(extras={"state": state}))
        assert (changed.item() != loss.item()) == reaches
    observation = batch.observation.numpy().copy()
    observation[:, r2d2.BURN_IN - 1] += 1
    changed, _ = r2d2.sequence_loss(*networks, sequences(observation=observation))
    assert changed.item() != loss.item()


def test_each_corridor_counts_once_in_a_check() -> None:
    network = r2d2.new_network(memory=False)
    network["head"] = constant_network([0.0, 0.0, 1.0, 0.0], r2d2.STATE_WIDTH)
    signs = r2d2.Corridors(256, np.random.default_rng(0)).observation
    assert r2d2.check(network, np.random.default_rng(0)) == signs[:, 2].mean()


def test_the_door_is_on_the_sign_and_the_sign_goes_dark() -> None:
    corridors = r2d2.Corridors(500, np.random.default_rng(0))
    signs = corridors.observation[:, : r2d2.DOORS].argmax(axis=1)
    lengths = np.zeros(500, np.int64)
    for t in range(24):
        running = lengths == 0
        is_lit = corridors.observation[running, : r2d2.DOORS].any(axis=1)
        assert (is_lit == (t < r2d2.LIT_STEPS)).all()
        asks = corridors.observation[running, r2d2.DOORS] == 1
        _, rewards, terminated = corridors.step(signs)
        assert (rewards[running] == terminated[running]).all()
        assert (asks == terminated[running]).all()
        lengths[running & terminated] = t + 1
    assert set(lengths.tolist()) == set(range(8, 25))


# HER.


def test_q_loss_is_the_mean_squared_error() -> None:
    network, target_network = constant_network([1.0, 2.0, 3.0], 6), constant_network([10.0, 40.0, 20.0], 6)
    observation = {"achieved_goal": np.zeros((2, 3), np.int8), "desired_goal": np.ones((2, 3), np.int8)}
    batch = relive.TransitionBatch(
        observation=observation,
        action=np.array([0, 2]),
        reward=np.array([-1.0, 0.0], np.float32),
        next_observation=observation,
        next_discount=np.array([0.98, 0.0], np.float32),
        is_terminal=np.array([False, True]),
        steps=np.ones(2, np.int64),
        keys=np.arange(2),
        probabilities=np.ones(2),
        weights=np.ones(2),
        extras={},
    )
    loss = her.q_loss(network, target_network, relive_torch.as_tensors(batch))
    assert loss.item() == pytest.approx(((-1 + 0.98 * 40 - 1) ** 2 + (0 - 3) ** 2) / 2, rel=1e-5)


def test_a_step_is_judged_by_where_it_led() -> None:
    rewards, reached = her.judge(np.array([[0, 1], [1, 1]], np.int8), np.array([[1, 1], [1, 1]], np.int8))
    assert rewards.tolist() == [-1.0, 0.0]
    assert reached.tolist() == [False, True]


def test_episodes_end_where_the_goal_is_reached_or_after_as_many_steps_as_there_are_bits() -> None:
    buffer = relive.RingReplayBuffer(10_000, streams=her.STREAMS, seed=0)
    network = torch.nn.Linear(6, 3)
    rates = [her.play(network, 3, 0.5, np.random.default_rng(seed), buffer) for seed in range(5)]
    stats = buffer.get_stats()
    assert (stats.open_episodes, stats.spliced_episodes) == (0, 0)
    # Who begins at the goal has succeeded without a step.
    assert stats.truncated_episodes == round((len(rates) - sum(rates)) * her.STREAMS)
    batch = buffer.read(buffer.eligible_keys())
    flipped = batch.observation["achieved_goal"] != batch.next_observation["achieved_goal"]
    assert (flipped == np.eye(3, dtype=np.bool_)[batch.action]).all()
    assert (batch.is_terminal == (batch.reward == 0)).all()


# Agents.


def conversation(topic: str, *tools: str) -> Any:
    """Return a conversation about the topic after those tools were tried."""
    answer = (agents.Message("user", f"a question about a {topic}"),)
    for tool in tools:
        answer, _, _ = agents.carry_out(answer, agents.Reply(tool, 1.0, 0))
    return answer


@pytest.mark.parametrize(
    ("tools", "reward", "is_over"),
    [
        (["search"], 0.0, False),
        (["search", "answer"], 1.0, True),
        (["calendar", "search", "answer"], 1.0, True),
        (["answer"], 0.0, True),
        (["calendar", "answer"], 0.0, True),
        (["calendar"] * 7, 0.0, False),
        (["calendar"] * 8, 0.0, True),
        (["calendar"] * 6 + ["search", "answer"], 1.0, True),
    ],
)
def test_an_answer_is_right_after_the_tools_that_it_takes(tools: list[str], reward: float, is_over: bool) -> None:
    so_far = conversation("capital", *tools[:-1])
    _, *outcome = agents.carry_out(so_far, agents.Reply(tools[-1], 1.0, 0))
    assert outcome == [reward, is_over]


def test_a_reply_that_ended_well_becomes_likelier_by_its_weight() -> None:
    observation, next_observation = conversation("sum", "calculator"), conversation("sum", "calculator", "answer")

    def learned(probability: float) -> float:
        model = agents.Model(np.random.default_rng(0))
        sample = relive.ReplaySample(
            episode_id="",
            agent_id="",
            observation=observation,
            action=agents.Reply("answer", probability, 0),
            next_observation=next_observation,
            next_discount=0.0,
            is_terminal=True,
            rewards_seq=[1.0],
            discount_powers=[1.0],
            start_step=1,
            actual_n=1,
            gamma=0.95,
            window_end="TERMINATED",
        )
        model.learn([sample, sample], rate=0.8)
        assert model.version == 1
        assert model.probabilities(conversation("capital", "search")).tolist() == [0.25] * 4
        return float(model.probabilities(observation)[agents.TOOLS.index("answer")])

    def expected(probability: float) -> float:
        preference, value, now = 0.0, 0.0, 0.25  # How far the logit is above those of the three others.
        for _ in range(2):
            change = 0.8 * min(now / probability, 1.0) * (1.0 - value)
            preference += change * (1.0 - now) + change * (1.0 - now) / 3
            value += change
            now = math.exp(preference) / (math.exp(preference) + 3)
        return now

    for probability in (0.1, 0.25, 0.5, 0.9):
        assert learned(probability) == pytest.approx(expected(probability))


def test_cancelled_agents_leave_a_buffer_in_order() -> None:
    curve, buffer = asyncio.run(agents.train(1_000, seed=0))
    buffer.check()
    stats = buffer.get_stats()
    assert stats.in_progress == 0
    assert stats.aborted == stats.num_agents == agents.AGENTS
    assert 500 <= curve[0][0] < curve[-1][0] <= stats.appended


# Offline.


def test_cloning_loss_is_the_mean_of_minus_log_p() -> None:
    network = constant_network([0.0, math.log(3.0)], 4)
    batch = relive_torch.as_tensors(
        relive.TransitionBatch(
            observation=np.zeros((2, 4), np.float32),
            action=np.array([0, 1]),
            reward=np.ones(2, np.float32),
            next_observation=np.zeros((2, 4), np.float32),
            next_discount=np.ones(2, np.float32),
            is_terminal=np.zeros(2, np.bool_),
            steps=np.ones(2, np.int64),
            keys=np.arange(2),
            probabilities=np.ones(2),
            weights=np.ones(2),
            extras={},
        )
    )
    assert offline.cloning_loss(network, batch).item() == pytest.approx(-(math.log(1 / 4) + math.log(3 / 4)) / 2)


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_the_buffer_holds_what_was_recorded() -> None:
    dataset = offline.record(3, seed=0)
    buffer = offline.load(dataset)
    assert len(buffer) == buffer.capacity == buffer.num_eligible == dataset.total_steps
    batch = buffer.read(buffer.eligible_keys())
    episodes = list(dataset.iterate_episodes())
    assert np.array_equal(batch.observation, np.concatenate([episode.observations[:-1] for episode in episodes]))
    assert np.array_equal(batch.next_observation, np.concatenate([episode.observations[1:] for episode in episodes]))
    assert np.array_equal(batch.action, np.concatenate([episode.actions for episode in episodes]))
    assert np.array_equal(batch.is_terminal, np.concatenate([episode.terminations for episode in episodes]))
    del dataset, episodes
    gc.collect()
