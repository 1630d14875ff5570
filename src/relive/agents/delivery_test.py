"""An episode buffer for asynchronous learners: what each plain call returns, and what is counted."""

import gc
import pathlib
import random
import re
from typing import Any
import weakref

import numpy as np
import pytest

import relive
from relive import errors

Buffer = relive.EpisodeReplayBuffer[Any, Any]


def live(
    buffer: Buffer, agent_id: str = "a", steps: int = 1, status: relive.FinalStatus = "COMPLETED", **described: Any
) -> str:
    """Live one episode; observation = (agent, t), reward 1."""
    episode_id = buffer.start_episode_nowait(agent_id, **described)
    for t in range(steps):
        buffer.append_observation_action_reward_nowait(episode_id, (agent_id, t), t, 1.0)
    buffer.end_episode_nowait(episode_id, (agent_id, steps), status)
    return episode_id


def ids(episodes: Any) -> list[str]:
    return [episode.episode_id for episode in episodes]


# Single episodes.


def test_each_episode_is_handed_out_once_and_the_one_that_ended_first_comes_first() -> None:
    buffer = Buffer()
    late = buffer.start_episode_nowait("a")
    lived = [live(buffer) for _ in range(3)]
    assert ids(buffer.next_episodes_nowait(2)) == lived[:2]
    buffer.append_observation_action_reward_nowait(late, 0, 0, 0.0)
    buffer.end_episode_nowait(late, 1)
    lived.append(late)
    assert ids(buffer.next_episodes_nowait(2)) == lived[2:]
    with pytest.raises(
        relive.NotReadyError, match="^next_episodes_nowait found 0 of 1 episodes: end more of them, or "
    ):
        buffer.next_episodes_nowait(1)
    assert buffer.get_stats().total_episodes == 4
    assert len(buffer.sample_n_step_nowait(5, 1, 0.9)) == 5


def test_it_is_all_or_nothing() -> None:
    buffer = Buffer()
    lived = [live(buffer), live(buffer)]
    with pytest.raises(relive.NotReadyError, match="^next_episodes_nowait found 2 of 3 episodes"):
        buffer.next_episodes_nowait(3)
    assert ids(buffer.next_episodes_nowait(2)) == lived


def test_what_is_handed_out_shares_nothing_with_the_store() -> None:
    buffer = Buffer()
    episode_id = buffer.start_episode_nowait("a", policy_version=1)
    buffer.append_observation_action_reward_nowait(episode_id, np.zeros(2), [1], 1.0, policy_version=2)
    buffer.end_episode_nowait(episode_id, np.ones(2))
    (episode,) = buffer.next_episodes_nowait(1)
    assert (episode.policy_version, episode.policy_versions, episode.status) == (1, [2], "COMPLETED")
    episode.observations[0][:] = 7
    episode.actions[0].append(2)
    episode.rewards.append(5.0)
    episode.version_changes.clear()
    buffer.check()
    (sample,) = buffer.sample_n_step_nowait(1, 1, 1.0)
    assert (sample.observation.tolist(), sample.action, sample.reward) == ([0, 0], [1], 1.0)


def test_aborted_and_empty_episodes_are_passed_over_and_counted() -> None:
    buffer = Buffer()
    live(buffer, "before", status="ABORTED")
    live(buffer, "before", steps=0)
    first = live(buffer)
    assert buffer.get_drops() == {}
    assert ids(buffer.next_episodes_nowait(1)) == [first]
    assert buffer.get_drops() == {"aborted": {"before": 1}, "empty": {"before": 1}}
    live(buffer, "after", status="ABORTED")
    live(buffer, "after", steps=0)
    assert buffer.get_drops() == {"aborted": {"before": 1, "after": 1}, "empty": {"before": 1, "after": 1}}
    second = live(buffer, status="TRUNCATED")
    assert ids(buffer.next_episodes_nowait(1)) == [second]


def test_those_that_are_too_old_are_dropped_when_a_newer_one_is_handed_out() -> None:
    buffer = Buffer()
    with pytest.raises(
        relive.ArgumentError, match="^max_lag asks for the learner's policy version: call set_policy_ver"
    ):
        buffer.next_episodes_nowait(1, max_lag=0)
    versions = [0, 1, None, 2, 1]
    lived = [live(buffer, f"agent-{version}", policy_version=version) for version in versions]
    buffer.set_policy_version(3)
    with pytest.raises(relive.NotReadyError, match="^next_episodes_nowait found 0 of 1 episodes"):
        buffer.next_episodes_nowait(1, max_lag=0)
    assert buffer.get_drops() == {}
    assert ids(buffer.next_episodes_nowait(1, max_lag=1)) == [lived[3]]
    assert buffer.get_drops() == {"stale": {"agent-0": 1, "agent-1": 1, "agent-None": 1}}
    assert ids(buffer.next_episodes_nowait(1)) == [lived[4]]


def test_the_version_of_an_episode_is_that_of_its_oldest_step() -> None:
    buffer = Buffer()
    episode_id = buffer.start_episode_nowait("a")
    buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 0.0)
    buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 0.0, policy_version=2)
    buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 0.0, policy_version=5)
    buffer.end_episode_nowait(episode_id, 0)
    buffer.set_policy_version(5)
    with pytest.raises(relive.NotReadyError):
        buffer.next_episodes_nowait(1, max_lag=2)
    assert ids(buffer.next_episodes_nowait(1, max_lag=3)) == [episode_id]


def test_evicted_episodes_are_dropped_only_once_somebody_has_asked() -> None:
    buffer = Buffer(max_episodes=2)
    lived = [live(buffer) for _ in range(4)]
    assert ids(buffer.next_episodes_nowait(1)) == lived[2:3]
    assert buffer.get_drops() == {}
    lived += [live(buffer), live(buffer, "b"), live(buffer, "c")]
    assert buffer.get_drops() == {"evicted": {"a": 2}}
    assert ids(buffer.next_episodes_nowait(2)) == lived[5:]
    live(buffer)
    assert buffer.get_drops() == {"evicted": {"a": 2}}


def test_clear_drops_what_waits() -> None:
    buffer = Buffer(groups=relive.Groups(2))
    live(buffer, "x")
    buffer.next_episodes_nowait(1)
    live(buffer, "single")
    live(buffer, "grouped", group_id="g")
    buffer.start_episode_nowait("open", group_id="g")
    buffer.clear()
    assert buffer.get_drops() == {"cleared": {"single": 1, "grouped": 1}}
    live(buffer, "grouped", group_id="g")
    live(buffer, "grouped", group_id="g")
    assert len(buffer.next_groups_nowait(1)[0]) == 2
    with pytest.raises(relive.NotReadyError):
        buffer.next_episodes_nowait(1)
    buffer.check()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda buffer: buffer.next_episodes_nowait(0), "^count must be at least 1, got 0$"),
        (lambda buffer: buffer.next_episodes_nowait(5), "^count must be at most 4 with 4 episodes, got 5$"),
        (lambda buffer: buffer.next_groups_nowait(3), "^count must be at most 2 with 4 episodes, got 3$"),
        (lambda buffer: buffer.next_episodes_nowait(1, max_lag=-1), "^max_lag must be at least 0, got -1$"),
        (
            lambda buffer: buffer.next_episodes_nowait(1, max_lag=0),
            "^max_lag asks for the learner's policy version: call set_policy_version first$",
        ),
        (
            lambda buffer: buffer.next_groups_nowait(1, max_lag=0),
            "^max_lag asks for the learner's policy version: call set_policy_version first$",
        ),
        (lambda buffer: Buffer().next_groups_nowait(1), "^next_groups_nowait needs a buffer with groups: EpisodeRep"),
        (lambda buffer: Buffer(groups=buffer), "^groups must be an instance of Groups, got <Epis"),
        (lambda buffer: Buffer(admission=buffer), "^admission must be an instance of Admission, got <Epis"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(call: Any, message: str) -> None:
    with pytest.raises(relive.ArgumentError, match=message):
        call(Buffer(max_episodes=4, groups=relive.Groups(2)))


def test_no_more_can_be_asked_for_than_there_are_transitions() -> None:
    buffer = Buffer(max_transitions=4, max_episodes=6, groups=relive.Groups(2))
    for call, message in (
        (lambda: buffer.next_episodes_nowait(5), "^count must be at most 4 with 4 transitions, got 5$"),
        (lambda: buffer.next_groups_nowait(3), "^count must be at most 2 with 4 transitions, got 3$"),
    ):
        with pytest.raises(relive.ArgumentError, match=message):
            call()
    for call in (lambda: buffer.next_episodes_nowait(4), lambda: buffer.next_groups_nowait(2)):
        with pytest.raises(relive.NotReadyError):
            call()


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"max_episodes": 4}, "max_episodes = 4"),
        ({"max_transitions": 4}, "max_transitions = 4"),
        ({"admission": relive.Admission(1, 2)}, "4 with Admission(max_lag=1, episodes_per_version=2)"),
    ],
)
def test_a_group_that_could_never_be_whole_is_refused(limits: Any, most: str, tmp_path: pathlib.Path) -> None:
    for timeout in (None, 10.0):
        with pytest.raises(
            relive.ArgumentError, match=f"^{re.escape(f'size of groups must be at most {most}, got 5')}$"
        ):
            Buffer(groups=relive.Groups(5, timeout), **limits)
    buffer = Buffer(groups=relive.Groups(4), **limits)
    for _ in range(4):
        live(buffer, group_id="g", ticket=buffer.admit_nowait())
    assert len(buffer.next_groups_nowait(1)[0]) == 4
    buffer.save(tmp_path / "saved")
    with pytest.raises(relive.CheckpointError, match=f"made of its settings: size of .* {re.escape(most)}, got 5$"):
        Buffer.load(tmp_path / "saved", groups=relive.Groups(5))


def test_a_closed_buffer_still_hands_out_what_it_has() -> None:
    buffer = Buffer(groups=relive.Groups(1))
    single, grouped = live(buffer), live(buffer, group_id="g")
    buffer.close()
    assert ids(buffer.next_episodes_nowait(1)) == [single]
    assert [ids(group) for group in buffer.next_groups_nowait(1)] == [[grouped]]
    with pytest.raises(relive.ClosedError):
        buffer.admit_nowait()


# Groups.


def test_whole_groups_are_handed_out_and_single_episodes_apart() -> None:
    buffer = Buffer(groups=relive.Groups(2))
    first = live(buffer, group_id="p")
    with pytest.raises(
        relive.NotReadyError, match="^next_groups_nowait found 0 of 1 whole groups: end more episodes, or"
    ):
        buffer.next_groups_nowait(1)
    single = live(buffer)
    second = live(buffer, group_id="p")
    assert ids(buffer.next_episodes_nowait(1)) == [single]
    assert [ids(group) for group in buffer.next_groups_nowait(1)] == [[first, second]]
    with pytest.raises(
        relive.ArgumentError, match="^no episode can start in group 'p': it was handed out or given up$"
    ):
        buffer.start_episode_nowait("a", group_id="p")
    assert buffer.get_stats().total_episodes == 3


def test_without_a_rule_a_group_is_a_name() -> None:
    buffer = Buffer()
    lived = [live(buffer, group_id="p") for _ in range(3)]
    assert ids(buffer.next_episodes_nowait(3)) == lived


def test_a_stale_group_is_dropped_as_a_whole() -> None:
    buffer = Buffer(groups=relive.Groups(2))
    for group_id, versions in (("old", (0, 3)), ("new", (3, 3))):
        for version in versions:
            live(buffer, group_id, group_id=group_id, policy_version=version)
    buffer.set_policy_version(3)
    (group,) = buffer.next_groups_nowait(1, max_lag=1)
    assert [episode.group_id for episode in group] == ["new", "new"]
    assert buffer.get_drops() == {"stale": {"old": 2}}
    live(buffer, "old2", group_id="old2", policy_version=3)
    buffer.check()


def test_time_gives_groups_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    buffer = Buffer(groups=relive.Groups(3, timeout=10.0, min_size=2))
    few = [buffer.start_episode_nowait("few", group_id="few") for _ in range(3)]
    enough = [buffer.start_episode_nowait("enough", group_id="enough") for _ in range(3)]
    for episode_id in (few[0], *enough[:2]):
        buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 0.0)
        buffer.end_episode_nowait(episode_id, 0)
    now = 10.0
    assert buffer.get_drops() == {"straggler": {"few": 1}}
    assert [ids(group) for group in buffer.next_groups_nowait(1)] == [enough[:2]]
    for episode_id in (few[1], enough[2]):
        buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 0.0)
        buffer.end_episode_nowait(episode_id, 0)
    buffer.abort_episode_nowait(few[2])
    assert buffer.get_drops() == {"aborted": {"few": 1}, "straggler": {"few": 2, "enough": 1}}
    buffer.check()


@pytest.mark.parametrize("looks", [False, True])
def test_it_does_not_matter_who_looks_at_the_clock(looks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    buffer = Buffer(max_episodes=2, groups=relive.Groups(2, timeout=10.0))
    live(buffer, group_id="g")
    live(buffer)
    now = 10.0
    if looks:
        buffer.get_drops()
    live(buffer)
    # It was evicted after its time was up.
    assert buffer.get_drops() == {"straggler": {"a": 1}}
    live(buffer, group_id="h")
    now = 20.0
    if looks:
        buffer.get_drops()
    with pytest.raises(
        relive.ArgumentError, match="^no episode can start in group 'h': it was handed out or given up$"
    ):
        live(buffer, group_id="h")


# Admission.


def test_starts_are_held_back_until_the_learner_moves_on() -> None:
    buffer = Buffer(admission=relive.Admission(max_lag=1, episodes_per_version=2))
    buffer.set_policy_version(7)
    with pytest.raises(
        relive.ArgumentError, match=r"^start_episode needs a ticket with .*: await buffer.admit\(\) first$"
    ):
        buffer.start_episode_nowait("a")
    for _ in range(4):
        live(buffer, ticket=buffer.admit_nowait())
    with pytest.raises(relive.NotReadyError, match="^admit_nowait held back by Admission.* with 4 episodes admitted"):
        buffer.admit_nowait()
    buffer.next_episodes_nowait(2)
    with pytest.raises(relive.NotReadyError):
        buffer.admit_nowait()
    buffer.set_policy_version(8)
    with buffer.admit_nowait(2) as ticket:
        live(buffer, ticket=ticket)
        assert ticket.left == 1
    live(buffer, ticket=buffer.admit_nowait())
    with pytest.raises(relive.NotReadyError):
        buffer.admit_nowait()


@pytest.mark.parametrize("reason", ["aborted", "empty", "stale", "evicted", "straggler", "cleared", "open"])
def test_who_will_not_be_trained_on_gives_the_place_back(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    buffer = Buffer(
        max_episodes=1,
        admission=relive.Admission(0, 1),
        groups=relive.Groups(1, timeout=10.0) if reason == "straggler" else None,
    )
    buffer.set_policy_version(0)
    with pytest.raises(relive.NotReadyError):
        buffer.next_episodes_nowait(1)
    ticket = buffer.admit_nowait()
    if reason == "straggler":
        episode_id = buffer.start_episode_nowait("a", group_id="g", ticket=ticket)
        now = 11.0
        buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 0.0)
        buffer.end_episode_nowait(episode_id, 0)
    elif reason == "open":
        buffer.start_episode_nowait("a", ticket=ticket)
        buffer.clear()
    else:
        status: Any = "ABORTED" if reason == "aborted" else "COMPLETED"
        live(buffer, ticket=ticket, steps=0 if reason == "empty" else 1, status=status)
        ticket.release()
    if reason in ("stale", "evicted"):
        # One place more, whose episode drops the first one.
        buffer.set_policy_version(1)
        live(buffer, ticket=buffer.admit_nowait(), policy_version=1)
        if reason == "evicted":
            assert buffer.get_drops() == {"evicted": {"a": 1}}
        else:
            buffer = Buffer(admission=relive.Admission(0, 1))
            buffer.set_policy_version(0)
            live(buffer, ticket=buffer.admit_nowait(), policy_version=0)
            buffer.set_policy_version(1)
            live(buffer, ticket=buffer.admit_nowait(), policy_version=1)
            with pytest.raises(relive.NotReadyError):
                buffer.admit_nowait()
            buffer.next_episodes_nowait(1, max_lag=0)
            assert buffer.get_drops() == {"stale": {"a": 1}}
    elif reason == "cleared":
        buffer.clear()
    assert buffer.admit_nowait().left == 1


def test_a_refused_start_leaves_the_ticket_as_it_was() -> None:
    buffer = Buffer(admission=relive.Admission(0, 2), groups=relive.Groups(1))
    ticket = buffer.admit_nowait(2)
    buffer.start_episode_nowait("a", group_id="g", ticket=ticket)
    refused: tuple[dict[str, Any], ...] = ({"group_id": "g"}, {"policy_version": -1}, {"group_id": 3})
    for arguments in refused:
        with pytest.raises(relive.ArgumentError):
            buffer.start_episode_nowait("a", ticket=ticket, **arguments)
    assert ticket.left == 1
    with pytest.raises(relive.ArgumentError, match="ticket must be of this buffer"):
        buffer.start_episode_nowait("a", ticket=Buffer().admit_nowait())


def test_the_first_version_that_is_said_is_where_the_count_begins() -> None:
    buffer = Buffer(admission=relive.Admission(1, 2))
    for _ in range(4):
        live(buffer, ticket=buffer.admit_nowait())
    # A run that goes on at version 100: those that wait are counted, and there is no burst.
    buffer.set_policy_version(100)
    with pytest.raises(relive.NotReadyError):
        buffer.admit_nowait()
    buffer.set_policy_version(101)
    buffer.admit_nowait(2)
    # One that says its first version after it was trained on a batch does not hang.
    buffer = Buffer(admission=relive.Admission(0, 2))
    for _ in range(2):
        live(buffer, ticket=buffer.admit_nowait())
    buffer.next_episodes_nowait(2)
    buffer.set_policy_version(1)
    assert buffer.admit_nowait(2).left == 2


def test_without_an_admission_the_same_code_runs() -> None:
    buffer = Buffer()
    for _ in range(100):
        live(buffer, ticket=buffer.admit_nowait())
    live(buffer)
    ticket = buffer.admit_nowait()
    live(buffer, ticket=ticket)
    with pytest.raises(relive.ArgumentError, match="^ticket must admit another episode, got one that is used up"):
        live(buffer, ticket=ticket)


# Bias.


def test_what_was_trained_on_is_what_was_drawn_or_handed_out() -> None:
    buffer = Buffer(max_episodes=3, seed=0)
    buffer.set_policy_version(1)
    for steps, version in ((1, 0), (5, 1), (3, 1)):
        live(buffer, steps=steps, policy_version=version)
    buffer.next_episodes_nowait(1, max_lag=0)
    bias = buffer.get_training_bias()
    assert (bias.produced.episodes, bias.produced.mean_length, bias.produced.mean_return) == (3, 3.0, 3.0)
    assert (bias.trained.episodes, bias.trained.mean_length, bias.trained.mean_policy_version) == (1, 5.0, 1.0)
    assert bias.difference["mean_return"] == 2.0
    for _ in range(5):
        live(buffer, steps=2, status="TRUNCATED")
    buffer.start_episode_nowait("a")
    before = buffer.get_training_bias()
    assert (before.produced.episodes, before.trained.episodes, before.trained.mean_length) == (8, 1, 5.0)
    drawn = {sample.episode_id for sample in buffer.sample_n_step_nowait(100, 1, 0.9)}
    assert len(drawn) == 2
    bias = buffer.get_training_bias()
    assert (bias.produced, bias.trained.episodes) == (before.produced, 3)
    assert bias.trained.truncated_share == 2 / 3
    buffer.clear()
    assert buffer.get_training_bias() == bias


# Audits and memory.


def damaged_turn(buffer: Buffer) -> None:
    buffer._hand_outs._handed.update(dict.fromkeys(next(iter(buffer._hand_outs.line or ())), 1))


def damaged_open(buffer: Buffer) -> None:
    buffer._hand_outs._handed[buffer._store[buffer.start_episode_nowait("a")]] = 1


def damaged_count(buffer: Buffer) -> None:
    buffer._hand_outs._handed[next(iter(buffer._store.finished))] = 0


def damaged_group(buffer: Buffer) -> None:
    episode_id = live(buffer, group_id="g", steps=2)
    buffer._hand_outs._handed[buffer._store[episode_id]] = 1
    book: Any = buffer._hand_outs.book
    book._groups["g"].ended.clear()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damaged_turn, "^an episode that waits for the learner was handed out$"),
        (
            damaged_open,
            "is IN_PROGRESS with 0 transitions: it can neither wait for the learner nor have been handed out$",
        ),
        (damaged_count, "^an episode that was handed out must have been so at least once$"),
        (damaged_group, "was handed out before its group$"),
    ],
)
def test_an_audit_finds_what_cannot_be(damage: Any, message: str) -> None:
    buffer = Buffer(groups=relive.Groups(2))
    with pytest.raises(relive.NotReadyError):
        buffer.next_episodes_nowait(1)
    live(buffer)
    live(buffer)
    buffer.check()
    damage(buffer)
    with pytest.raises(errors.CorruptionError, match=message):
        buffer.check()


def test_a_buffer_that_nobody_needs_goes_at_once() -> None:
    buffer = Buffer(admission=relive.Admission(0, 1), groups=relive.Groups(1, timeout=5.0))
    live(buffer, ticket=buffer.admit_nowait(), group_id="g")
    buffer.next_groups_nowait(1)
    gc.collect()
    gc.disable()
    try:
        reference = weakref.ref(buffer._store[next(iter(buffer._store)).episode_id])
        del buffer
        assert reference() is None
    finally:
        gc.enable()


def test_memory_is_that_of_the_stored_episodes() -> None:
    buffer = Buffer(max_episodes=10, admission=relive.Admission(1, 2), groups=relive.Groups(2, timeout=1e9, min_size=1))
    rng = random.Random(0)
    buffer.set_policy_version(0)
    for number in range(3000):
        status: Any = rng.choice(["COMPLETED", "TRUNCATED", "ABORTED"])
        group_id = rng.choice([None, f"{number // 2}"])
        try:
            live(buffer, f"{number}", status=status, group_id=group_id, ticket=buffer.admit_nowait())
        except relive.NotReadyError:
            buffer.set_policy_version(number)
        if rng.random() < 0.3:
            try:
                buffer.next_groups_nowait(1)
                buffer.next_episodes_nowait(1)
            except relive.NotReadyError:
                pass
    hand_outs = buffer._hand_outs
    assert hand_outs.book is not None
    assert hand_outs.line is not None
    assert len(hand_outs.book) <= 10
    assert len(hand_outs._handed) + len(hand_outs.line) <= 10
    assert all(len(sources) <= 1001 for sources in buffer.get_drops().values())
    buffer.check()


@pytest.mark.parametrize("redeliver", [True, False])
@pytest.mark.parametrize("is_stale", [True, False])
def test_what_was_delivered_once_and_is_passed_over_in_the_next_epoch_is_so_after_recovery(
    is_stale: bool, redeliver: bool, tmp_path: pathlib.Path
) -> None:
    buffer = Buffer(epochs=2, redeliver=redeliver, seed=0)
    with relive.Journal(tmp_path / "journal") as journal:
        buffer.attach(journal)
        for version in (0, 5):
            episode_id = buffer.start_episode_nowait("a", policy_version=version)
            buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 1.0)
            buffer.end_episode_nowait(episode_id, 1)
            buffer.set_policy_version(version)
            if not version:
                buffer.next_episodes_nowait(1)
        if is_stale:
            buffer.next_episodes_nowait(1, max_lag=1)
        else:
            with pytest.raises(relive.NotReadyError):
                buffer.next_episodes_nowait(2, accept=lambda episode: episode.policy_version == 5)
        buffer.detach()
    recovered, loaded = relive.recover(tmp_path / "journal"), Buffer(epochs=2, redeliver=redeliver, seed=0)
    loaded.load_state_dict(buffer.state_dict())
    found = []
    for each in (recovered, loaded):
        each.check()
        queue: Any = each._hand_outs
        waiting = sorted(episode.policy_version for (episode,) in queue.line)
        found.append((waiting, queue.deliveries(each._store), each.get_drops(), each.get_training_bias()))
    assert found[0] == found[1]
    assert found[0][2] == {}


def test_what_did_not_reach_the_learner_comes_first_and_only_whole() -> None:
    buffer = Buffer(groups=relive.Groups(2), epochs=2, redeliver=True, max_episodes=6, seed=0)
    buffer.set_policy_version(0)
    groups = [[live(buffer, group_id=name) for _ in range(2)] for name in "xy"]
    for _ in range(2):
        buffer.next_groups_nowait(2)
    # Of two deliveries one has failed, and nothing can be put back twice.
    buffer._put_back([groups[0], [*groups[1]]])
    assert [ids(group) for group in buffer.next_groups_nowait(2)] == groups
    for _ in range(3):
        buffer._put_back([groups[0]])
    assert buffer._hand_outs.deliveries([buffer._store[each] for each in groups[0]]) == [0, 0]
    assert ids(buffer.next_groups_nowait(1)[0]) == groups[0]
    buffer.reject([groups[1][0]], reason="ugly")
    buffer._put_back([groups[1]])
    assert buffer.get_drops() == {"ugly": {"a": 1}, "rejected": {"a": 1}}
    for _ in range(3):
        live(buffer)
    buffer._put_back([groups[0]])
    assert buffer.get_drops()["evicted"] == {"a": 1}
    buffer.check()
    with pytest.raises(relive.NotReadyError):
        buffer.next_groups_nowait(1)
