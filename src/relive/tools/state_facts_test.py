"""What a state says of its rows and episodes, against what the steps were."""

from typing import Any

import numpy as np
import pytest

import relive
from relive.persistence import state as state_lib
from relive.tools import state_facts


def test_episodes_of_columns_are_as_they_were_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_lib, "CHUNK", 64)
    rng = np.random.default_rng(0)
    buffer = relive.PrioritizedReplayBuffer(60, seed=0)
    episodes = []
    for number in range(12):
        rewards = rng.normal(size=rng.integers(3, 12))
        is_terminated = bool(number % 3)
        for t, reward in enumerate(rewards):
            is_last = t == len(rewards) - 1
            buffer.add(
                t,
                0,
                float(reward),
                t + 1,
                terminated=is_last and is_terminated,
                truncated=is_last and not is_terminated,
            )
        episodes.append(rewards)
    buffer.add(0, 0, 5.0, 1)
    facts = state_facts.of(buffer.state_dict())
    stats = buffer.get_stats()
    assert facts.sizes == {"rows": 60, "capacity": 60, "episodes": sum(facts.episodes.values())}
    assert facts.episodes == {
        "terminated": stats.terminated_episodes,
        "truncated": stats.truncated_episodes,
        "open": 1,
        "spliced": 0,
    }
    stored, rows = [], 59
    for rewards in reversed(episodes):
        stored += [rewards] if rows > 0 else []
        rows -= len(rewards)
    lengths = [len(rewards) for rewards in reversed(stored)]
    assert facts.distributions["episode_lengths"].kept.tolist() == lengths
    whole = list(reversed(stored if rows == 0 else stored[:-1]))
    assert facts.distributions["episode_returns"].kept == pytest.approx([rewards.sum() for rewards in whole])
    assert facts.distributions["rewards"].kept.tolist() == [*np.concatenate(episodes)[-59:], 5.0]
    assert facts.distributions["ages"].kept.tolist() == list(range(60))
    assert facts.counters["evicted"] == stats.evicted
    assert facts.counters["inserted"] == stats.appended


def test_means_by_age_begin_with_the_newest_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_lib, "CHUNK", 64)
    buffer = relive.PrioritizedReplayBuffer(1000, seed=0, max_times_sampled=3)
    for t in range(1000):
        buffer.add(t, 0, 0.0, t + 1)
    buffer.update_priorities(buffer.eligible_keys(), np.arange(1000.0))
    buffer.sample(100)
    facts = state_facts.of(buffer.state_dict())
    assert facts.by_age["priorities"].tolist() == [989.5 - 20 * group for group in range(50)]
    assert facts.by_age["times_sampled"].sum() * 20 == pytest.approx(100)
    assert facts.distributions["times_sampled"].count == 1000


def test_few_rows_are_not_cut_into_many_groups() -> None:
    buffer = relive.PrioritizedReplayBuffer(100, seed=0)
    for t in range(11):
        buffer.add(t, 0, 0.0)
    assert len(state_facts.of(buffer.state_dict()).by_age["priorities"]) == 2


def test_rows_without_a_priority_are_counted_apart() -> None:
    buffer = relive.SequenceReplayBuffer(100, length=5, prioritized=True, seed=0)
    for t in range(20):
        buffer.add(t, 0, 0.0, t + 1)
    spread = state_facts.of(buffer.state_dict()).distributions["priorities"]
    assert (spread.count, spread.num_not_finite) == (16, 4)


def test_an_empty_buffer_says_so() -> None:
    facts = state_facts.of(relive.RingReplayBuffer(10, seed=0).state_dict())
    assert facts.sizes == {"rows": 0, "capacity": 10, "episodes": 0}
    assert facts.distributions["episode_lengths"].count == 0
    assert "rewards" not in facts.distributions
    empty = state_facts.of(relive.EpisodeReplayBuffer(seed=0).state_dict())
    assert empty.sizes == {"transitions": 0, "max_transitions": None, "episodes": 0, "max_episodes": None}


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble"])
def test_rewards_may_be_any_float(dtype: str) -> None:
    schema = relive.Schema(relive.Field((), "int64"), relive.Field((), "int64"), reward=relive.Field((), dtype))
    buffer = relive.RingReplayBuffer(10, schema, seed=0)
    buffer.add(0, 0, 0.5, 1, terminated=True)
    assert state_facts.of(buffer.state_dict()).distributions["episode_returns"].kept.tolist() == [0.5]


def test_episodes_of_objects_are_as_they_were_written() -> None:
    buffer = relive.EpisodeReplayBuffer[Any, Any](max_transitions=100, seed=0)
    statuses: list[relive.FinalStatus | None] = ["COMPLETED", "TRUNCATED", "ABORTED", None, "COMPLETED"]
    for number, status in enumerate(statuses):
        episode_id = buffer.start_episode_nowait("a")
        for t in range(number + 1):
            buffer.append_observation_action_reward_nowait(episode_id, t, 0, 10.0**number)
        if status is not None:
            buffer.end_episode_nowait(episode_id, None, status)
    facts = state_facts.of(buffer.state_dict())
    assert facts.episodes == {"IN_PROGRESS": 1, "COMPLETED": 2, "TRUNCATED": 1, "ABORTED": 1}
    assert facts.sizes == {"transitions": len(buffer), "max_transitions": 100, "episodes": 5, "max_episodes": None}
    assert facts.distributions["episode_lengths"].kept.tolist() == [1, 2, 5]
    assert facts.distributions["episode_returns"].kept.tolist() == [1, 20, 50_000]
    assert facts.distributions["rewards"].count == 15
    assert facts.distributions["open_seconds"].count == 1


def test_infinite_rewards_make_returns_that_are_not_finite() -> None:
    buffer = relive.RingReplayBuffer(10, seed=0)
    buffer.add_episode([0, 0, 0, 0], [0, 0, 0], [0.0, 0.0, 1.0], terminated=True)
    state = buffer.state_dict()
    state["arrays"]["rows/reward"][:2] = np.inf, -np.inf
    facts = state_facts.of(state)
    assert facts.distributions["episode_returns"].num_not_finite == 1
    assert facts.distributions["rewards"].num_not_finite == 2


def test_tokens_are_in_sequences() -> None:
    tokens = relive.TokenReplayBuffer(100, seed=0)
    for reward in (1.0, 0.5):
        step = relive.TokenStep(prompt=[1, 2], response=[3], logprobs=[-0.5], policy_version=0, reward=reward)
        tokens.add_episode([step], agent_id="agent")
    facts = state_facts.of(tokens.state_dict())
    assert facts.sizes == {"tokens": 6, "max_tokens": 100, "sequences": 2}
    assert facts.counters["episodes"] == 2
    assert facts.distributions["sequence_lengths"].mean == 3.0
    assert facts.distributions["episode_returns"].mean == 0.75


def test_items_have_lengths() -> None:
    episodes = relive.ItemReplayBuffer(100, "sequences", seed=0)
    episodes.add({"x": np.arange(10), "seq_lens": [3, 7]})
    facts = state_facts.of(episodes.state_dict())
    assert facts.sizes == {"rows": 10, "capacity": 100, "items": 2}
    assert facts.distributions["item_lengths"].kept.tolist() == [3, 7]
    fragments = relive.ItemReplayBuffer(100, "fragments", seed=0)
    fragments.add({"a": [1], "b": [2, 3, 4]})
    facts = state_facts.of(fragments.state_dict())
    assert facts.sizes == {"rows": 3, "capacity": 100, "items": 1}
    state = episodes.state_dict()
    state["arrays"]["lengths"][0] = -1
    with pytest.raises(relive.CheckpointError, match="array lengths must hold integers of at least 0"):
        state_facts.of(state)


def test_another_kind_of_buffer_has_its_counters() -> None:
    facts = state_facts.of({"counters": {"added": 3, "odd": "x"}, "num_evicted": 1, "arrays": {}})
    assert facts.counters == {"added": 3, "evicted": 1}
    assert facts.sizes == {}
    assert state_facts.of({"counters": 3, "arrays": {}}).counters == {}


def forged(name: str, value: Any) -> state_lib.State:
    """Return the state of a buffer with another array of that name."""
    buffer = relive.RingReplayBuffer(10, seed=0)
    buffer.add(0, 0, 0.5, 1, terminated=True)
    state = buffer.state_dict()
    state["arrays"][name] = value
    return state


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("episode_end", np.array([3], np.uint8), "array episode_end must hold numbers of at most 2"),
        ("row_episode", np.array([1]), r"array row_episode must hold integers in \[0, 0\]"),
        ("row_episode", np.array([-1]), r"array row_episode must hold integers in \[0, 0\]"),
        ("rows/reward", np.array([b"x"]), "array rows/reward must be of dtype .* got |S1"),
        ("rows/reward", np.zeros(2), "array rows/reward must be of dtype"),
    ],
)
def test_a_forged_state_is_an_error(name: str, value: Any, message: str) -> None:
    with pytest.raises(relive.CheckpointError, match=message):
        state_facts.of(forged(name, value))


def test_episodes_come_in_the_order_in_which_they_began() -> None:
    buffer = relive.RingReplayBuffer(10, seed=0)
    for t, (reward, is_last) in enumerate([(1.0, False), (10.0, True), (100.0, True), (7.0, False), (8.0, False)]):
        buffer.add(t, 0, reward, t + 1, terminated=is_last)
    state = buffer.state_dict()
    place = np.array([2, 0, 1])  # Where each episode is to stand.
    moved = {"row_episode": place[state["arrays"]["row_episode"]]}
    for name, array in state["arrays"].items():
        if name.startswith("episode_"):
            moved[name] = array[np.argsort(place)]
    facts = state_facts.of(state | {"arrays": state["arrays"] | moved})
    assert facts.distributions["episode_lengths"].kept.tolist() == [2, 1]
    assert facts.distributions["episode_returns"].kept.tolist() == [11.0, 100.0]


def test_without_rewards_there_are_no_returns() -> None:
    state = forged("rows/action", np.zeros(1, np.int64))
    del state["arrays"]["rows/reward"]
    assert sorted(state_facts.of(state).distributions) == ["ages", "episode_lengths"]


def test_a_forged_state_of_episodes_is_an_error() -> None:
    state = relive.EpisodeReplayBuffer(seed=0).state_dict()
    arrays = state["arrays"] | {
        "episode_steps": np.array([1]),
        "episode_status": np.array([4], np.uint8),
        "episode_has_final": np.array([True]),
    }
    with pytest.raises(relive.CheckpointError, match="array episode_status must hold numbers below 4"):
        state_facts.of({**state, "arrays": arrays})
