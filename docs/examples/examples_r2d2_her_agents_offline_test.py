"""The examples of R2D2, HER, LLM agents and offline data: their short forms run, and their parts are as on paper."""

import asyncio
from collections.abc import Iterator
import gc
import math
import pathlib
import re
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("minari")
pytest.importorskip("torch")

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # An example imports what lies beside it.
import agents
import her
import offline
import r2d2
import torch

import relive
from relive.integrations import torch as relive_torch


@pytest.fixture(autouse=True)
def _restored_torch() -> Iterator[None]:
    """Restore the number of threads and the random state of torch after each test."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(state)


def constant_network(values: list[float], num_inputs: int) -> torch.nn.Linear:
    """Return a network with these values for every observation."""
    network = torch.nn.Linear(num_inputs, len(values))
    with torch.no_grad():
        network.weight.zero_()
        network.bias.copy_(torch.tensor(values))
    return network


# All of them.

LAST_LINES = {
    r2d2: r"relive, without, seed 0: right doors in percent at the end: \d+\.\d",
    her: r"relive, without, seed 0: success rate in percent at the end: \d+\.\d",
    agents: r"relive, the last reply alone, seed 0: right answers in percent at the end: \d+\.\d",
    offline: r"seed 0: mean return: recorded \d+\.\d, clone \d+\.\d",
}
TINY = {
    r2d2: ["--steps", "800", "--seeds", "1"],
    her: ["--steps", "300", "--seeds", "1"],
    agents: ["--steps", "300", "--seeds", "1"],
    offline: ["--short"],
}


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
@pytest.mark.parametrize(
    ("module", "size"),
    [
        *[pytest.param(module, size, id=module.__name__) for module, size in TINY.items()],
        *[pytest.param(module, ["--short"], id=f"{module.__name__}-short", marks=pytest.mark.long) for module in TINY],
    ],
)
def test_a_run_ends_with_its_figures_and_a_picture(
    module: Any,
    size: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", "restored after the test")
    module.main([*size, "--plot", str(tmp_path / "curve.png")])
    assert re.fullmatch(LAST_LINES[module], capsys.readouterr().out.splitlines()[-1])
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    gc.collect()  # Minari leaves it to the garbage collector to remove its directories, with a warning.


@pytest.mark.parametrize(
    ("module", "case"), [(r2d2, {"memory": True}), (her, {"hindsight": True}), (agents, {"first": 0})]
)
def test_the_same_seed_gives_the_same_curve(module: Any, case: dict[str, Any]) -> None:
    first, again, other = (module.train(800, seed, **case) for seed in (0, 0, 1))
    assert first == again != other


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
        network = r2d2.Network(memory=True)
        network.head = constant_network(values, r2d2.STATE_WIDTH)
        networks.append(network)
    loss, priorities = r2d2.sequence_loss(networks[0], networks[1], sequences())
    bootstrap = r2d2.GAMMA * 40.0
    errors = [[bootstrap - 2.0, 1.0 - 1.0], [bootstrap - 1.0, bootstrap - 1.0, bootstrap - 3.0]]
    means = [sum(error**2 for error in row) / len(row) for row in errors]
    assert loss.item() == pytest.approx((1.0 * means[0] + 0.5 * means[1]) / 2, rel=1e-5)
    expected = [0.9 * max(row) + 0.1 * sum(row) / len(row) for row in errors]
    assert priorities.tolist() == pytest.approx(expected, rel=1e-5)


def test_a_sequence_without_a_step_to_learn_from_has_no_loss() -> None:
    network, target_network = r2d2.Network(memory=True), r2d2.Network(memory=True)
    mask = np.zeros((2, r2d2.BURN_IN + 3), np.bool_)
    mask[:, 0] = True
    loss, priorities = r2d2.sequence_loss(network, target_network, sequences(mask=mask))
    assert loss.item() == 0.0
    assert priorities.tolist() == [0.0, 0.0]


def test_no_gradient_goes_back_into_the_burn_in() -> None:
    network, target_network = r2d2.Network(memory=True), r2d2.Network(memory=True)
    batch = sequences()
    batch.extras["state"].requires_grad_()
    batch.observation.requires_grad_()
    loss, _ = r2d2.sequence_loss(network, target_network, batch)
    loss.backward()
    assert batch.extras["state"].grad is None
    gradient = batch.observation.grad
    assert not gradient[:, : r2d2.BURN_IN].any()
    assert gradient[:, r2d2.BURN_IN].any()


@pytest.mark.parametrize("constant", [0, 1])
def test_both_networks_start_from_the_first_state_and_the_burn_in(constant: int) -> None:
    networks = [r2d2.Network(memory=True), r2d2.Network(memory=True)]
    networks[constant].head = constant_network([0.0, 1.0, 2.0, 3.0], r2d2.STATE_WIDTH)
    batch = sequences()
    loss, _ = r2d2.sequence_loss(networks[0], networks[1], batch)
    for step, reaches in ((0, True), (1, False)):
        state = batch.extras["state"].numpy().copy()
        state[:, step] += 1
        changed, _ = r2d2.sequence_loss(networks[0], networks[1], sequences(extras={"state": state}))
        assert (changed.item() != loss.item()) == reaches
    observation = batch.observation.numpy().copy()
    observation[:, r2d2.BURN_IN - 1] += 1
    changed, _ = r2d2.sequence_loss(networks[0], networks[1], sequences(observation=observation))
    assert changed.item() != loss.item()


def test_a_network_without_memory_looks_at_the_last_observation_alone() -> None:
    network = r2d2.Network(memory=False)
    observations, state = torch.rand(2, 3, 5), torch.rand(2, r2d2.STATE_WIDTH)
    values, last = network(observations, state)
    assert last is state
    outputs, _ = network.recurrent(observations.reshape(6, 1, 5))
    assert torch.equal(values, network.head(outputs).reshape(2, 3, r2d2.DOORS))


def test_the_stored_states_are_those_of_the_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a step is that of the network after the steps before it in the episode."""
    made: dict[type[Any], Any] = {}

    def remember(kind: type[Any]) -> Any:
        def make(*arguments: Any, **options: Any) -> Any:
            instance = kind(*arguments, **options)
            return made.setdefault(kind, instance)

        return make

    networks, buffers = r2d2.Network, relive.SequenceReplayBuffer
    monkeypatch.setattr(r2d2, "Network", remember(networks))
    monkeypatch.setattr(relive, "SequenceReplayBuffer", remember(buffers))
    monkeypatch.setattr(buffers, "can_sample", lambda buffer, size: False)  # The network stays as it is.
    r2d2.train(800, seed=0, memory=True)
    batch = relive_torch.as_tensors(made[buffers].sample(200))
    states, starts = batch.extras["state"], batch.start_step == 0
    assert starts.any()
    assert not starts.all()
    assert not states[starts, 0].any()
    with torch.no_grad():
        outputs, _ = made[networks].recurrent(batch.observation[:, :-1], states[None, :, 0].contiguous())
    follows = batch.mask[:, 1:]
    assert torch.allclose(outputs[:, :-1][follows], states[:, 1:][follows], atol=1e-6)


def test_the_door_is_on_the_sign_and_the_sign_goes_dark() -> None:
    corridors = r2d2.Corridors(500, np.random.default_rng(0))
    signs = corridors.observe()[:, : r2d2.DOORS].argmax(axis=1)
    lengths = np.zeros(500, np.int64)
    for t in range(24):
        running = lengths == 0
        is_lit = corridors.observe()[running, : r2d2.DOORS].any(axis=1)
        assert (is_lit == (t < r2d2.LIT_STEPS)).all()
        asks = corridors.observe()[running, r2d2.DOORS] == 1
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


def test_episodes_end_where_the_goal_is_reached_or_after_as_many_steps_as_there_are_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(her, "BITS", 3)
    buffer = relive.RingReplayBuffer(10_000, streams=her.STREAMS, seed=0)
    network = torch.nn.Linear(6, 3)
    rates = [her.play(network, 0.5, np.random.default_rng(seed), buffer) for seed in range(5)]
    stats = buffer.get_stats()
    assert (stats.open_episodes, stats.spliced_episodes) == (0, 0)
    # An episode that starts at its goal has succeeded without a step.
    assert stats.truncated_episodes == round((len(rates) - sum(rates)) * her.STREAMS)
    batch = buffer.read(buffer.eligible_keys())
    flipped = batch.observation["achieved_goal"] != batch.next_observation["achieved_goal"]
    assert (flipped == np.eye(3, dtype=np.bool_)[batch.action]).all()
    assert (batch.is_terminal == (batch.reward == 0)).all()


# Agents.


def conversation(topic: str, *tools: str) -> Any:
    """Return a conversation about the topic after those tools were tried."""
    so_far: agents.Conversation = (agents.Message("user", f"a question about a {topic}"),)
    for tool in tools:
        so_far, _, _ = agents.carry_out(so_far, tool)
    return so_far


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
    _, *outcome = agents.carry_out(conversation("capital", *tools[:-1]), tools[-1])
    assert outcome == [reward, is_over]


def attempt(*tools: str) -> relive.Episode[Any, str]:
    """Return an attempt at a question about a sum, which is right if these are calculator and answer."""
    observations = [conversation("sum", *tools[:t]) for t in range(len(tools) + 1)]
    rewards = [0.0] * (len(tools) - 1) + [float(tools == ("calculator", "answer"))]
    return relive.Episode(
        episode_id="", agent_id="", observations=observations, actions=list(tools), rewards=rewards, status="COMPLETED"
    )


@pytest.mark.parametrize("first", [0, -1])
def test_replies_become_more_likely_by_the_advantage_of_their_attempt(first: int) -> None:
    """The logits rise by the advantage times the gradient of log p, reply by reply; those of other topics stay."""
    model = agents.Model(np.random.default_rng(0))
    model.learn([[attempt("calculator", "answer"), attempt("answer")]], first)
    logits = {0: [0.0] * 4, 1: [0.0] * 4}
    replies = [*[(0, "calculator", 0.5), (1, "answer", 0.5)][first:], (0, "answer", -0.5)]
    for state, tool, advantage in replies:
        total = sum(math.exp(logit) for logit in logits[state])
        logits[state] = [
            logit + agents.LEARNING_RATE * advantage * ((tool == name) - math.exp(logit) / total)
            for name, logit in zip(agents.TOOLS, logits[state], strict=True)
        ]
    for tools, expected in (((), logits[0]), (("calculator",), logits[1])):
        weights = np.exp(expected)
        assert model.probabilities(conversation("sum", *tools)) == pytest.approx(weights / weights.sum())
    assert model.probabilities(conversation("age")).tolist() == [0.25] * 4


def test_a_group_of_equal_returns_changes_nothing() -> None:
    model = agents.Model(np.random.default_rng(0))
    model.learn([[attempt("calculator", "answer")] * 2, [attempt("search", "answer")] * 2], first=0)
    assert model.probabilities(conversation("sum")).tolist() == [0.25] * 4


def test_cancelled_agents_leave_a_consistent_buffer_and_no_group_is_too_old() -> None:
    (at, shares), buffer = asyncio.run(agents.run(1_000, seed=0, first=0))
    buffer.check()
    stats = buffer.get_stats()
    assert stats.in_progress == 0
    assert 0 < stats.aborted <= agents.AGENTS * agents.GROUP_SIZE
    assert at == sorted(at)
    assert at[-2] < 1_000 <= at[-1] <= stats.appended
    assert all(0 <= share <= 100 for share in shares)
    assert buffer.policy_version == len(at)
    assert set(buffer.get_drops()) <= {"aborted", "empty"}


# Offline.


def test_cloning_loss_is_the_mean_of_minus_log_p() -> None:
    network = constant_network([0.0, math.log(3.0)], 4)
    batch = relive_torch.as_tensors(
        relive.TransitionBatch(
            observation=np.zeros((3, 4), np.float32),
            action=np.array([0, 1, 1]),
            reward=np.ones(3, np.float32),
            next_observation=np.zeros((3, 4), np.float32),
            next_discount=np.ones(3, np.float32),
            is_terminal=np.zeros(3, np.bool_),
            steps=np.ones(3, np.int64),
            keys=np.arange(3),
            probabilities=np.ones(3),
            weights=np.ones(3),
            extras={},
        )
    )
    assert offline.cloning_loss(network, batch).item() == pytest.approx(-(math.log(1 / 4) + 2 * math.log(3 / 4)) / 3)


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_the_buffer_holds_what_was_recorded(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
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
