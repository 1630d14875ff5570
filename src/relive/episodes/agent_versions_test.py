"""Groups and policy versions, from start to sample and through files; and draws within a lag."""

import asyncio
import pathlib
import random
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.agents import queue_journal
from relive.common import validation
from relive.episodes import episode_journal
from relive.episodes import episode_journal_test
from relive.episodes import episode_state_test
from relive.episodes import helpers_test
from relive.persistence import commands
from relive.persistence import journal_reader
from relive.persistence import recover_test
from relive.testing import zoo

Buffer = helpers_test.Buffer
made, replaced, described = episode_state_test.made, episode_state_test.replaced, episode_state_test.described
PATIENCE = helpers_test.PATIENCE
lived = helpers_test.lived
settle = zoo.settle


# The episode.


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (4, "^policy_version must be at least 5, that of the step before, got 4$"),
        (-1, "^policy_version must be at least 0, got -1$"),
        (True, "^policy_version must be an integer of at least 0, got True$"),
        (5.0, "^policy_version must be an integer of at least 0, got 5.0$"),
        ("5", "^policy_version must be an integer of at least 0, got '5'$"),
        (2**62 + 1, r"^policy_version must be at most 2\*\*62, got 4611686018427387905$"),
    ],
)
@pytest.mark.parametrize("holds_back", [False, True])
async def test_a_version_that_cannot_be_changes_nothing(
    version: Any, message: str, holds_back: bool, tmp_path: pathlib.Path
) -> None:
    limiter = relive.SampleToInsertRatio(1.0, 1, error_buffer=2.0) if holds_back else None
    buffer = Buffer(limiter=limiter)
    episode_id = lived(buffer, [5, 5, 5], None)
    state = zoo.plain(buffer.state_dict())
    step = episode_id, 0, 0, 0.0
    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log)
        with pytest.raises(errors.ArgumentError, match=message):
            buffer.append_observation_action_reward_nowait(*step, policy_version=version)
        with pytest.raises(errors.ArgumentError, match=message):
            async with asyncio.timeout(PATIENCE):
                await buffer.append_observation_action_reward(*step, policy_version=version)
        assert log.num_records == 1
        buffer.detach()
    assert zoo.plain(buffer.state_dict()) == state
    episode = helpers_test.stored(buffer)[0]
    with pytest.raises(errors.ArgumentError, match=message):
        episode.append_observation_action_reward(0, 0, 0.0, version)
    assert zoo.plain(buffer.state_dict()) == state
    buffer.check()


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"group_id": 3}, "^group_id must be a string, got 3$"),
        ({"group_id": b"g"}, "^group_id must be a string, got b'g'$"),
        ({"group_id": ""}, "^group_id must be a string of at least 1 character, got ''$"),
        *(({"agent_id": name}, "^agent_id must be a string, got ") for name in (None, 7, b"a", ["a"])),
        ({"policy_version": -1}, "^policy_version must be at least 0, got -1$"),
        ({"policy_version": True}, "^policy_version must be an integer of at least 0, got True$"),
        ({"policy_version": 0.0}, "^policy_version must be an integer of at least 0, got 0.0$"),
    ],
)
async def test_groups_and_versions_of_a_start_are_checked(described: dict[str, Any], message: str) -> None:
    buffer, described = Buffer(), {"agent_id": "a", **described}
    with pytest.raises(errors.ArgumentError, match=message):
        buffer.start_episode_nowait(**described)
    with pytest.raises(errors.ArgumentError, match=message):
        await buffer.start_episode(**described)
    with pytest.raises(errors.ArgumentError, match=message):
        async with buffer.episode(**described):
            pass
    assert buffer.get_stats().total_episodes == 0


def test_numpy_values_are_stored_as_python_values() -> None:
    buffer = Buffer()
    version: Any = np.uint8(7)
    agent, group = np.array(["a", "g"])
    helpers_test.live(buffer, agent, [None, version], group_id=group, policy_version=np.int64(6))
    buffer.set_policy_version(np.int32(9))  # type: ignore[arg-type]
    episode = helpers_test.stored(buffer)[0]
    values = (episode.agent_id, episode.group_id, episode.policy_version, buffer.policy_version)
    assert list(map(type, values)) == [str, str, int, int]
    assert [type(version) for version in episode.policy_versions] == [int, int]


async def test_samples_name_their_group_and_first_version() -> None:
    buffer = Buffer(seed=0)
    async with buffer.episode("a", group_id="g", policy_version=1) as writer:
        await writer.append(0, 0, 0.0)
        await writer.append(1, 0, 0.0, policy_version=4)
        await writer.append(2, 0, 0.0)
        await writer.end(3)
    other = await buffer.start_episode("b")
    for t in range(2):
        await buffer.append_observation_action_reward(other, t, 0, 0.0)
    samples = await buffer.sample_n_step(100, 3, 0.9)
    assert {(s.agent_id, s.start_step, s.group_id, s.policy_version) for s in samples} == {
        ("a", 0, "g", 1),
        ("a", 1, "g", 4),
        ("a", 2, "g", 4),
        ("b", 0, None, None),
    }


@pytest.mark.parametrize(
    ("start", "changes"),
    [(3, [(0, 3)]), (3, [(0, 2)]), (None, [(0, -1)]), (0, [(1, 2), (1, 3)]), (0, [(1, 2), (2, 2)]), (0, [(3, 1)])],
)
def test_an_audit_finds_impossible_versions(start: int | None, changes: list[tuple[int, int]]) -> None:
    buffer = Buffer()
    lived(buffer, [None] * 3)
    (episode,) = helpers_test.stored(buffer)
    episode.policy_version, episode.version_changes = start, changes
    with pytest.raises(
        errors.CorruptionError, match="of 3 steps from policy version .* on has changes .*, which do no"
    ):
        buffer.check()


# The learner.


def test_the_learner_has_a_version_that_does_not_fall() -> None:
    buffer = Buffer()
    assert buffer.policy_version is None
    for version in (0, 0, 3):
        buffer.set_policy_version(version)
        assert buffer.policy_version == version
    wrong: Any
    for wrong, message in (
        (2, "^version must be at least 3, the previous one, got 2: resume_policy_version goes back$"),
        (-1, "^version must be at least 0, got -1$"),
        (True, "^version must be an integer of at least 0, got True$"),
        (None, "^version must be an integer of at least 0, got None$"),
    ):
        with pytest.raises(errors.ArgumentError, match=message):
            buffer.set_policy_version(wrong)
    buffer.clear()
    assert buffer.policy_version == buffer.get_stats().policy_version == 3


# Draws within a lag.


async def test_lags_need_a_version_of_the_learner() -> None:
    buffer = Buffer()
    lived(buffer, [1])
    lags: Any
    for lags in ({"max_lag": 0}, {"lag_decay": 0.5}):
        with pytest.raises(
            errors.ArgumentError,
            match="^max_lag and lag_decay need the learner's policy version: call set_policy_version first$",
        ):
            buffer.sample_n_step_nowait(1, 1, 0.9, **lags)
        with pytest.raises(errors.ArgumentError, match="call set_policy_version first$"):
            await buffer.sample_n_step(1, 1, 0.9, **lags)


async def test_lags_are_refused_where_a_sampler_decides() -> None:
    class First(Buffer):
        def _draw(self, batch_size: int) -> Any:
            return [(self._store.finished[0], 0)] * batch_size

    buffer = First()
    lived(buffer, [1])
    buffer.set_policy_version(1)
    message = "^max_lag and lag_decay must be left out where First._draw decides what is drawn$"
    with pytest.raises(errors.ArgumentError, match=message):
        buffer.sample_n_step_nowait(1, 1, 0.9, max_lag=0)
    with pytest.raises(errors.ArgumentError, match=message):
        await buffer.sample_n_step(1, 1, 0.9, max_lag=0)
    assert len(buffer.sample_n_step_nowait(2, 1, 0.9, lag_decay=1)) == 2


@pytest.mark.parametrize("lags", [{"max_lag": 1}, {"max_lag": 1, "lag_decay": 0.5}, {"lag_decay": 0.5}])
def test_plain_draws_within_a_lag_never_wait(lags: dict[str, Any]) -> None:
    buffer = Buffer(seed=0)
    lived(buffer, [None, None, None] if "max_lag" not in lags else [5, 5, None])
    buffer.set_policy_version(7)
    which = "with a lag of at most 1" if "max_lag" in lags else "with a policy version"
    state = buffer.rng.bit_generator.state
    with pytest.raises(
        errors.NotReadyError,
        match=f"^sample_n_step_nowait found 0 of 3 transitions {which}, at policy version 7: append steps of a new",
    ):
        buffer.sample_n_step_nowait(4, 1, 0.9, **lags)
    assert buffer.rng.bit_generator.state == state
    buffer.close()
    with pytest.raises(errors.NotReadyError, match="found 0 of 3 transitions"):
        buffer.sample_n_step_nowait(4, 1, 0.9, **lags)


async def test_a_new_version_moves_the_lag_of_a_waiting_learner() -> None:
    buffer = Buffer(seed=0)
    buffer.set_policy_version(4)
    learner = asyncio.create_task(buffer.sample_n_step(8, 1, 0.9, max_lag=1))
    await settle()
    buffer.set_policy_version(6)
    lived(buffer, [4] * 3)
    await settle()
    assert not learner.done()
    lived(buffer, [5])
    assert {s.policy_version for s in await learner} == {5}


async def test_a_learner_without_version_waits_for_the_next_one() -> None:
    buffer, fresh = Buffer(seed=0), Buffer(seed=0)
    buffer.set_policy_version(4)
    learner = asyncio.create_task(buffer.sample_n_step(8, 1, 0.9, max_lag=0))
    await settle()
    lived(fresh, [4])
    buffer.load_state_dict(fresh.state_dict())
    await settle()
    assert not learner.done()
    buffer.set_policy_version(4)
    assert len(await learner) == 8


async def actor(buffer: Buffer, behind: int, seed: int) -> None:
    """Write short episodes without end, with the version that the learner had `behind` updates ago."""
    rng = random.Random(seed)
    while True:
        async with buffer.episode("a", policy_version=max(0, (buffer.policy_version or 0) - behind)) as writer:
            for t in range(rng.randrange(1, 6)):
                await writer.append(t, 0, 0.0)
                await asyncio.sleep(0)
            await writer.end(None)


@pytest.mark.parametrize("max_lag", [0, 1, 3])
@pytest.mark.parametrize("ratio", [None, 4.0])
async def test_a_learner_with_a_lag_never_starves(max_lag: int, ratio: float | None) -> None:
    """Actors that are one and three versions late; a limiter that holds them back must not stop the one awaited."""
    limiter = None if ratio is None else relive.SampleToInsertRatio(ratio, 1, error_buffer=32.0)
    buffer = Buffer(max_transitions=200, limiter=limiter, seed=0)
    buffer.set_policy_version(0)
    actors = [asyncio.create_task(actor(buffer, behind, seed)) for seed, behind in enumerate((0, 1, 3))]
    seen = set()
    async with asyncio.timeout(PATIENCE):
        for version in range(1, 60):
            for sample in await buffer.sample_n_step(8, 1, 0.9, max_lag=max_lag):
                assert sample.policy_version is not None
                seen.add(version - 1 - sample.policy_version)
            buffer.set_policy_version(version)
    for task in actors:
        task.cancel()
    await asyncio.wait(actors)
    assert {lag for lag in seen if lag >= 0} == set(range(max_lag + 1))
    buffer.check()


async def test_held_inserts_pass_while_a_batch_waits_for_them() -> None:
    buffer = Buffer(limiter=relive.SampleToInsertRatio(1.0, 1, error_buffer=2.0), seed=0)
    episode_id = lived(buffer, [0, 0, 0], None)
    buffer.set_policy_version(1)
    step = episode_id, 0, 0, 0.0
    with pytest.raises(errors.NotReadyError, match="held back"):
        buffer.append_observation_action_reward_nowait(*step)
    writer = asyncio.create_task(buffer.append_observation_action_reward(*step, policy_version=1))
    await settle()
    assert not writer.done()
    learner = asyncio.create_task(buffer.sample_n_step(1, 1, 0.9, max_lag=0))
    await settle()
    assert (writer.done(), learner.done()) == (True, False)
    buffer.append_observation_action_reward_nowait(*step)
    with pytest.raises(errors.NotReadyError, match="held back"):  # What was waited for is there.
        buffer.append_observation_action_reward_nowait(*step)
    assert [sample.policy_version for sample in await learner] == [1]
    with pytest.raises(errors.NotReadyError, match="held back"):
        buffer.append_observation_action_reward_nowait(*step)


async def test_inserts_are_held_again_once_the_batch_is_cancelled() -> None:
    buffer = Buffer(limiter=relive.SampleToInsertRatio(1.0, 1, error_buffer=2.0), seed=0)
    episode_id = lived(buffer, [0, 0, 0], None)
    buffer.set_policy_version(1)
    first, second = (asyncio.create_task(buffer.sample_n_step(1, 1, 0.9, max_lag=lag)) for lag in (0, 0))
    await settle()
    second.cancel()
    await settle()
    buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 0.0)  # The first one still waits.
    first.cancel()
    await settle()
    with pytest.raises(errors.NotReadyError, match="held back"):
        buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 0.0)


async def test_a_batch_held_by_the_limiter_frees_no_inserts() -> None:
    buffer = Buffer(limiter=relive.SampleToInsertRatio(1.0, 3, error_buffer=4.0), seed=0)
    buffer.set_policy_version(0)
    episode_id = lived(buffer, [0] * 4, None)
    for _ in range(2):
        await buffer.sample_n_step(2, 1, 0.9, max_lag=0)
    buffer.set_policy_version(1)
    learner = asyncio.create_task(buffer.sample_n_step(5, 1, 0.9, max_lag=0))
    await settle()
    for _ in range(8):
        buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 0.0)
        await settle()
    assert not learner.done()
    buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 0.0, policy_version=1)
    buffer.end_episode_nowait(episode_id, 0)
    assert {sample.policy_version for sample in await learner} == {1}


class Switch(relive.RateLimiter):
    """Allows no insert, and allows batches while `on` is set."""

    is_on = True

    def can_insert(self, **_: int) -> bool:
        return False

    def can_sample(self, batch_size: int, **_: int) -> bool:
        return self.is_on


async def test_inserts_are_held_again_once_the_batch_is_forbidden() -> None:
    limiter = Switch()
    other = Buffer()
    episode_id = lived(other, [0, 0, 0], None)
    other.set_policy_version(1)
    buffer = relive.EpisodeReplayBuffer[int, int].from_state(other.state_dict(), limiter=limiter, seed=0)
    learner = asyncio.create_task(buffer.sample_n_step(1, 1, 0.9, max_lag=0))
    await settle()
    buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 0.0)
    limiter.is_on = False
    buffer.set_policy_version(1)
    await settle()
    with pytest.raises(errors.NotReadyError, match="held back"):
        buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 0.0)
    learner.cancel()


# Files.


def example() -> Buffer:
    buffer = Buffer(seed=0)
    lived(buffer, [None, 3, 3])
    lived(buffer, [], group_id="g\0\u65e5")
    lived(buffer, [None, 4, 6], None, group_id="g", policy_version=0)
    lived(buffer, [5], "TRUNCATED", policy_version=5)
    lived(buffer, [4, 4, 4], None)
    lived(buffer, [None] * 2)
    buffer.set_policy_version(validation.LARGEST)
    buffer.sample_n_step_nowait(3, 1, 0.9)
    return buffer


def not_rising(number: int) -> str:
    return f"^episodes cannot be: episode .* of {number} steps from policy version .*, which do not go up$"


BY_VERSION = episode_state_test.BY_VERSION


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (described(3, None, b"", "COMPLETED", [(1, 3), (2, 3)]), not_rising(3)),
        (described(3, None, b"", "COMPLETED", [(1, 3), (1, 4)]), not_rising(3)),
        (described(3, None, b"", "COMPLETED", [(2, 3), (1, 4)]), not_rising(3)),
        (described(3, None, b"", "COMPLETED", [(3, 4)]), not_rising(3)),
        (described(3, 3), not_rising(3)),
        (described(3, None, b"", "COMPLETED", [(1, 2**62 + 1)]), "^array episodes has one, which cannot be with "),
        (described(3, 2**62 + 1), "^array episodes has one, which cannot be with "),
        (replaced("growing", 2, 4, 1), BY_VERSION),
        (replaced("growing", 2, 4, 4, 4), BY_VERSION),
        (lambda state: state.update(policy_version=-1), "^policy_version must be an integer in"),
        (lambda state: state.update(policy_version=2**62 + 1), "^policy_version must be an integer in"),
        (lambda state: state.update(policy_version="3"), "^policy_version must be an integer in"),
    ],
)
def test_forged_groups_and_versions_are_refused(change: Any, message: str) -> None:
    state = example().state_dict()
    change(state)
    with pytest.raises(errors.CheckpointError, match=message):
        made(state)


def test_every_base_holds_the_version_of_the_learner(tmp_path: pathlib.Path) -> None:
    """The segment with that record is deleted."""
    buffer = Buffer(max_episodes=2)
    with recover_test.opened(tmp_path / "log", 300) as log:
        buffer.attach(log)
        buffer.set_policy_version(5)
        for _ in range(40):
            lived(buffer, [5, None])
        assert not (tmp_path / "log" / "segment-00000000000000000000.relive").exists()
    recovered: Any = relive.recover(tmp_path / "log")
    assert recovered.policy_version == 5
    assert recover_test.content(recovered) == recover_test.content(buffer)


def test_a_step_is_written_with_a_version_that_is_new(tmp_path: pathlib.Path) -> None:
    buffer = Buffer()
    with recover_test.opened(tmp_path / "log") as log:
        buffer.attach(log)
        lived(buffer, [None, None])
        lived(buffer, [None, 3, 3, None, 4], policy_version=3)
    records = [record for record in journal_reader.records(tmp_path / "log") if record.kind]
    values = [relive.PlainCodec().decode(record.payload) for record in records]
    j = episode_journal
    assert [record.kind for record in records] == [j.START, *[j.APPEND] * 2, j.END, j.START, *[j.APPEND] * 5, j.END]
    versions = [
        value[3 if record.kind == j.START else 4]
        for value, record in zip(values, records, strict=True)
        if record.kind != j.END
    ]
    assert versions == [None] * 3 + [3] + [None] * 4 + [4]


def test_a_learned_version_keeps_the_journal_from_attaching(tmp_path: pathlib.Path) -> None:
    with recover_test.opened(tmp_path / "log") as log:
        Buffer().attach(log)
    recovered: Any = relive.recover(tmp_path / "log")
    recovered.set_policy_version(0)
    with (
        recover_test.opened(tmp_path / "log") as log,
        pytest.raises(errors.ArgumentError, match="^the buffer was written to since it was recovered"),
    ):
        recovered.attach(log)


started, appended = episode_journal_test.started, episode_journal_test.appended


def learned(version: int) -> tuple[int, bytes]:
    return queue_journal.LEARN, commands.encoded(version)


FORGED: dict[str, list[tuple[int, bytes]]] = {
    "appends an invalid step: policy_version must be at least 3, that of the start of the episode, got 2": [
        started(version=3),
        appended(version=2),
    ],
    f"calls append_step, which cannot be with {2**62 + 1}": [started(version=3), appended(version=2**62 + 1)],
    "plain-1 content has no value of tag 0, at byte 0": [(queue_journal.LEARN, bytes(7))],
    "sets the learner's policy version to 3, which is not valid": [learned(4), learned(3)],
    "calls learn, which cannot be with 4611686018427387905": [learned(2**62 + 1)],
}


@pytest.mark.parametrize("rule", FORGED)
def test_forged_records_of_versions_are_refused(rule: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.CheckpointError, match=f"log: record {len(FORGED[rule])} {rule.rstrip()}$"):
        episode_journal_test.forged(tmp_path / "log", *FORGED[rule])


def test_records_with_versions_are_played_back(tmp_path: pathlib.Path) -> None:
    records = started(group="g", version=2**62), appended(version=2**62), learned(0), learned(0), learned(2**62)
    buffer = episode_journal_test.forged(tmp_path / "log", *records)
    buffer.check()
    assert (buffer.policy_version, helpers_test.stored(buffer)[0].group_id) == (2**62, "g")
    assert helpers_test.stored(buffer)[0].policy_versions == [2**62]
    gone = episode_journal_test.forged(tmp_path / "gone", appended(version=3))
    assert (gone.get_stats().appended, gone.get_stats().total_episodes) == (1, 0)
