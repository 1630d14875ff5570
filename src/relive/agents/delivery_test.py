"""Delivery of episodes and groups to a learner: examples, refusals, audits and memory.

`handing_out_machine_test` compares all that the plain calls return and count with a naive twin.
"""

import asyncio
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
from relive.episodes import helpers_test

Buffer = helpers_test.Buffer
live = helpers_test.live
ids = helpers_test.ids


def test_delivered_episodes_share_nothing_with_the_store() -> None:
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


def test_a_closed_buffer_delivers_what_it_has_and_takes_it_back() -> None:
    buffer = Buffer(groups=relive.Groups(1))
    single, grouped = live(buffer), live(buffer, group_id="g")
    buffer.close()
    assert ids(buffer.next_episodes_nowait(1)) == [single]
    assert [ids(group) for group in buffer.next_groups_nowait(1)] == [[grouped]]
    assert buffer.reject([single]) == 1
    with pytest.raises(relive.ClosedError):
        buffer.admit_nowait()


# Refusals.

NO_VERSION = "max_lag asks for the learner's policy version: call set_policy_version first"
NO_SUCH_VERSION = "version must be at most the learner's, {}, got {}: call set_policy_version first"
REQUESTS: list[tuple[str, int, dict[str, Any], str]] = [
    ("next_episodes", 0, {}, "count must be at least 1, got 0"),
    ("next_episodes", 5, {}, "count must be at most 4 with 4 episodes, got 5"),
    ("next_groups", 3, {}, "count must be at most 2 with 4 episodes, got 3"),
    ("next_episodes", 1, {"max_lag": -1}, "max_lag must be at least 0, got -1"),
    ("next_episodes", 1, {"max_lag": 0}, NO_VERSION),
    ("next_groups", 1, {"max_lag": 0}, NO_VERSION),
    ("next_episodes", 1, {"accept": 3}, "accept must be a function, got 3"),
    ("next_groups", 1, {"accept": 3}, "accept must be a function, got 3"),
    ("next_episodes", 1, {"quotas": [1]}, "quotas must be .*Mapping, got .*"),
    ("next_episodes", 1, {"quotas": {1: 1}}, "each of quotas must be a string, got 1"),
    ("next_episodes", 1, {"quotas": {"a": -1}}, "quota of 'a' must be at least 0, got -1"),
    ("next_episodes", 1, {"quotas": {"a": 0.5}}, "quota of 'a' must be an integer .*"),
    ("admit", 3, {}, r"count must be at most 2 with Admission\(.*\), got 3"),
]


@pytest.mark.parametrize(("name", "count", "options", "message"), REQUESTS)
async def test_requests_that_cannot_be_met_are_refused(
    name: str, count: int, options: dict[str, Any], message: str
) -> None:
    """And not waited for."""
    buffer = Buffer(max_episodes=4, groups=relive.Groups(2), admission=relive.Admission(0, 2))
    with pytest.raises(relive.ArgumentError, match=f"^{message}$"):
        getattr(buffer, f"{name}_nowait")(count, **options)
    with pytest.raises(relive.ArgumentError, match=f"^{message}$"):
        async with asyncio.timeout(helpers_test.PATIENCE):
            await getattr(buffer, name)(count, **options)
    assert not helpers_test.has_line(buffer)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda buffer: Buffer().next_groups_nowait(1), "next_groups_nowait needs a buffer with groups: EpisodeRep.*"),
        (lambda buffer: Buffer(groups=buffer), "groups must be an instance of Groups, got <Epis.*"),
        (lambda buffer: Buffer(admission=buffer), "admission must be an instance of Admission, got <Epis.*"),
        (lambda buffer: buffer.reject("some id"), "episode_ids must be a list of strings, got 'some id'"),
        (lambda buffer: buffer.reject(None), "episode_ids must be a list of strings, got None"),
        (lambda buffer: buffer.reject(["lived", 3]), "each of episode_ids must be a string, got 3"),
        (lambda buffer: buffer.reject([], reason=""), "reason must be a string of at least 1 character, got ''"),
        (lambda buffer: buffer.reject([], reason=3), "reason must be a string, got 3"),
        (lambda buffer: Buffer().ack(0), "ack needs a buffer .*: give it redeliver=True"),
        (lambda buffer: Buffer(redeliver=True).ack(0), NO_SUCH_VERSION.format("none was set", 0)),
        (lambda buffer: buffer.ack(4), NO_SUCH_VERSION.format(3, 4)),
        (lambda buffer: buffer.ack(-1), "version must be at least 0, got -1"),
        (lambda buffer: buffer.ack(0.5), "version must be an integer .*"),
    ],
)
def test_wrong_calls_of_a_learner_are_refused(call: Any, message: str) -> None:
    buffer = Buffer(max_episodes=4, redeliver=True)
    buffer.set_policy_version(3)
    with pytest.raises(relive.ArgumentError, match=f"^{message}$"):
        call(buffer)
    assert buffer.get_drops() == {}


def test_a_request_says_how_much_it_found() -> None:
    buffer = Buffer(groups=relive.Groups(1))
    live(buffer)
    for call, found in (
        (buffer.next_episodes_nowait, "next_episodes_nowait found 1 of 3 episodes: end more of them, or await next_e"),
        (buffer.next_groups_nowait, "next_groups_nowait found 0 of 3 whole groups: end more episodes, or await next_g"),
    ):
        with pytest.raises(relive.NotReadyError, match=f"^{found}"):
            call(3)


def test_counts_are_limited_by_the_number_of_transitions() -> None:
    buffer = Buffer(max_transitions=4, max_episodes=6, groups=relive.Groups(2))
    for call, most in ((buffer.next_episodes_nowait, 4), (buffer.next_groups_nowait, 2)):
        with pytest.raises(relive.ArgumentError, match=f"^count must be at most {most} with 4 transitions, got "):
            call(most + 1)
        with pytest.raises(relive.NotReadyError):
            call(most)


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"max_episodes": 4}, "max_episodes = 4"),
        ({"max_transitions": 4}, "max_transitions = 4"),
        ({"admission": relive.Admission(1, 2)}, "4 with Admission(max_lag=1, episodes_per_version=2)"),
        (
            {"admission": relive.Admission(9, 9, max_running=4)},
            "4 with Admission(max_lag=9, episodes_per_version=9, max_running=4)",
        ),
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


@pytest.mark.parametrize("make", [Buffer, helpers_test.make_tokens], ids=["episodes", "tokens"])
def test_a_refused_start_leaves_the_ticket_as_it_was(make: Any) -> None:
    buffer, other = (make(admission=relive.Admission(0, 2), groups=relive.Groups(1)) for _ in range(2))
    with pytest.raises(relive.ArgumentError, match="needs a ticket"):
        helpers_test.add(buffer)
    ticket = buffer.admit_nowait(2)
    helpers_test.add(buffer, group_id="g", ticket=ticket)
    before = buffer.get_stats()
    last: dict[str, Any] = {"policy_version": -1} if make is Buffer else {"status": "?"}
    refused: tuple[dict[str, Any], ...] = ({"group_id": "g"}, {"group_id": 3}, last)
    for arguments in refused:
        with pytest.raises(relive.ArgumentError):
            helpers_test.add(buffer, ticket=ticket, **arguments)
    with pytest.raises(relive.ArgumentError, match="ticket must be of this buffer"):
        helpers_test.add(buffer, ticket=other.admit_nowait())
    assert (ticket.left, buffer.get_stats()) == (1, before)


# Audits and memory.


def damaged_turn(buffer: Buffer) -> None:
    buffer._hand_outs._handed.update(dict.fromkeys(next(iter(buffer._hand_outs.line or ())), 1))


def damaged_open(buffer: Buffer) -> None:
    buffer._hand_outs._handed[buffer._store[buffer.start_episode_nowait("a")]] = 1


def damaged_count(buffer: Buffer) -> None:
    buffer._hand_outs._handed[helpers_test.stored(buffer)[0]] = 0


def damaged_group(buffer: Buffer) -> None:
    episode_id = live(buffer, group_id="g", steps=2)
    buffer._hand_outs._handed[buffer._store[episode_id]] = 1
    book: Any = buffer._hand_outs.book
    book._groups["g"].ended.clear()


def damaged_place(buffer: Buffer) -> None:
    buffer._hand_outs._uncounted.add(buffer._store[buffer.start_episode_nowait("a")])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damaged_turn, "an episode that waits for the learner was handed out"),
        (
            damaged_open,
            ".*IN_PROGRESS with 0 transitions: it can neither wait for the learner nor have been handed out",
        ),
        (damaged_count, "an episode that was handed out must have been so at least once"),
        (damaged_group, ".* was handed out before its group"),
        (damaged_place, "an episode that runs, or is not stored, cannot be without a pl.*"),
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
    with pytest.raises(errors.CorruptionError, match=f"^{message}$"):
        buffer.check()


def test_a_buffer_that_nobody_needs_goes_at_once() -> None:
    buffer = Buffer(admission=relive.Admission(0, 1), groups=relive.Groups(1, timeout=5.0))
    live(buffer, ticket=buffer.admit_nowait(), group_id="g")
    buffer.next_groups_nowait(1)
    gc.collect()
    gc.disable()
    try:
        reference = weakref.ref(helpers_test.stored(buffer)[0])
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


# Other than what the twin does.


@pytest.mark.parametrize("redeliver", [True, False])
@pytest.mark.parametrize("is_stale", [True, False])
def test_episodes_passed_over_in_the_second_epoch_stay_so(
    is_stale: bool, redeliver: bool, tmp_path: pathlib.Path
) -> None:
    buffer = Buffer(epochs=2, redeliver=redeliver, seed=0)
    with relive.Journal(tmp_path / "journal") as journal:
        buffer.attach(journal)
        for version in (0, 5):
            live(buffer, policy_version=version)
            buffer.set_policy_version(version)
            if not version:
                buffer.next_episodes_nowait(1)
        if is_stale:
            buffer.next_episodes_nowait(1, max_lag=1)
        else:
            with pytest.raises(relive.NotReadyError):
                buffer.next_episodes_nowait(2, accept=lambda episode: episode.policy_version == 5)
        buffer.detach()
    found = []
    for each in (relive.recover(tmp_path / "journal"), Buffer.from_state(buffer.state_dict())):
        each.check()
        queue: Any = each._hand_outs
        waiting = sorted(episode.policy_version for (episode,) in queue.line)
        found.append((waiting, queue.deliveries(each._store), each.get_drops(), each.get_training_bias()))
    assert found[0] == found[1]
    assert found[0][2] == {}


def test_lost_deliveries_come_first_and_only_whole() -> None:
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
