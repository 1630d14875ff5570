"""The example of LLM agents: its attempts, its policy and its groups are those on paper."""

import asyncio
import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("torch")

import agents

import relive


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
def test_a_reply_is_correct_after_the_required_tools(tools: list[str], reward: float, is_over: bool) -> None:
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
def test_logits_of_replies_rise_by_their_advantage(first: int) -> None:
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


def test_cancelled_agents_leave_a_consistent_buffer() -> None:
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
