"""Delivery of episodes and groups to a learner: examples, refusals, audits and memory.

`handing_out_machine_test` compares all that the plain calls return and count with a naive twin.
"""

import asyncio
import gc
import pathlib
import random
import re
import sys
import types
from typing import Any
import weakref

import numpy as np
import pytest

import relive
from relive import errors
from relive.agents import units
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


def damaged_state(buffer: Buffer) -> None:
    next(iter(buffer._queue.ledger().line or ())).state = units.DeliveryState.DELIVERED


def damaged_open(buffer: Buffer) -> None:
    queue = buffer._queue.ledger()
    episode = buffer._store[buffer.start_episode_nowait("a")]
    unit = units.Unit(episode.episode_id, units.DeliveryState.DELIVERED, [episode])
    queue.singles[unit.key] = unit
    queue.delivered[unit] = None


def damaged_waiting(buffer: Any) -> None:
    buffer._queue.ledger().num_waiting += 1


def damaged_count(buffer: Buffer) -> None:
    buffer._queue.ledger().places.running += 1


def damaged_group(buffer: Buffer) -> None:
    live(buffer, group_id="g", steps=2)
    groups = buffer._queue.ledger().groups
    assert groups is not None
    groups.groups["g"].stored += 1


def damaged_twice(buffer: Buffer) -> None:
    first, second = list(buffer._queue.ledger().line or ())
    second.episodes = first.episodes


def damaged_key(buffer: Buffer) -> None:
    singles = buffer._queue.ledger().singles
    singles["x"] = singles.pop(next(iter(singles)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damaged_state, ".* is DELIVERED, but cannot have been handed out"),
        (
            damaged_open,
            ".*IN_PROGRESS with 0 transitions: it can neither wait for the learner nor have been handed out",
        ),
        (damaged_count, "0 episodes are open, but 1 are counted"),
        (damaged_waiting, "[0-9]+ episodes wait, but [0-9]+ are counted"),
        (damaged_group, "groups must have {'g': 1} episodes stored, found {'g': 2}"),
        (damaged_twice, "an episode must wait, or have been handed out, in its own unit, and once"),
        (damaged_key, "an episode must wait, or have been handed out, in its own unit, and once"),
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
    for number in range(600):
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
    queue = buffer._queue.ledger()
    assert queue.groups is not None
    assert len(queue.groups.groups) + len(queue.singles) <= 10
    assert len(units.episodes_of(queue.all_units())) <= 10
    buffer.check()


# Other than what the twin does.


def test_lost_deliveries_come_first_and_only_whole() -> None:
    buffer = Buffer(groups=relive.Groups(2), redeliver=True, max_episodes=6, seed=0)
    buffer.set_policy_version(0)
    groups = [[live(buffer, group_id=name) for _ in range(2)] for name in "xy"]
    buffer.next_groups_nowait(2)
    buffer._queue.put_back([groups[0], [*groups[1]]])
    for _ in range(3):  # Nothing can be put back twice.
        buffer._queue.put_back([groups[1]])
    assert [ids(group) for group in buffer.next_groups_nowait(2)] == groups
    buffer.reject([groups[1][0]], reason="ugly")
    buffer._queue.put_back([groups[1]])
    assert buffer.get_drops() == {"ugly": {"a": 1}, "rejected": {"a": 1}}
    for _ in range(3):
        live(buffer)
    buffer._queue.put_back([groups[0]])
    assert buffer.get_drops()["evicted"] == {"a": 1}
    buffer.check()
    with pytest.raises(relive.NotReadyError):
        buffer.next_groups_nowait(1)


@pytest.mark.parametrize("first", [0, 1])
def test_a_learner_may_train_before_it_sets_a_version(first: int) -> None:
    """What it has trained on until then makes room for the next batch."""
    buffer, trained = Buffer(admission=relive.Admission(0, 2)), list[str]()
    for version in range(first, first + 3):
        for _ in range(2):
            live(buffer, ticket=buffer.admit_nowait())
        with pytest.raises(relive.NotReadyError):
            buffer.admit_nowait()
        trained = ids(buffer.next_episodes_nowait(2))
        buffer.set_policy_version(version)
    assert buffer.reject(trained) == 2
    assert buffer.admit_nowait(2).left == 2


def test_nothing_is_acknowledged_or_given_up_without_a_queue() -> None:
    buffer = Buffer(redeliver=True)
    buffer.set_policy_version(0)
    buffer.ack(0)
    assert buffer._queue.known is None
    buffer = Buffer(admission=relive.Admission(0, 1))
    buffer.start_episode_nowait("a", ticket=buffer.admit_nowait())
    assert buffer.abort_open_episodes() == 1


@pytest.mark.parametrize("make", [Buffer, helpers_test.make_tokens], ids=["episodes", "tokens"])
def test_a_buffer_that_is_sampled_from_has_no_queue(make: Any) -> None:
    """It has no call of one to make, and its statistics need none."""
    buffer = make(**({"max_episodes": 2} if make is Buffer else {}))
    for _ in range(3):
        helpers_test.add(buffer)
    buffer.set_policy_version(1)
    buffer.abort_open_episodes()
    assert buffer._queue.known is None
    assert (buffer.get_drops(), buffer.get_training_bias().produced.episodes) == ({}, 3)
    other = type(buffer).from_state(buffer.state_dict())
    assert (other._queue.known, other.get_training_bias()) == (None, buffer.get_training_bias())
    assert len(buffer.next_episodes_nowait(2)) == 2
    assert (buffer._queue.known is None, buffer.get_training_bias().trained.episodes) == (False, 2)


def test_episodes_that_nobody_consumes_call_no_queue() -> None:
    buffer, called = Buffer(), set[str]()

    def note(frame: types.FrameType, event: str, argument: object) -> None:
        if event == "call":
            called.add(frame.f_globals["__name__"])

    sys.setprofile(note)
    try:
        helpers_test.live(buffer, group_id="g", steps=2)
    finally:
        sys.setprofile(None)
    assert "relive.episodes.store" in called
    assert not any(name.startswith("relive.agents") for name in called)
