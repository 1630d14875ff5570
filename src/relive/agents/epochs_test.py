"""Several epochs; and tasks that wait for quotas, or with a bound on what runs at once."""

import asyncio
import collections
import contextlib
import itertools
import pathlib
import random
from typing import Any
import warnings

import numpy as np
import pytest

import relive
from relive import testing
from relive.agents import groups as groups_lib
from relive.episodes import helpers_test

Buffer = helpers_test.Buffer
live = helpers_test.live
ids = helpers_test.ids


# Epochs.


@pytest.mark.parametrize("epochs", [2, 3])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_pass_delivers_every_episode_once(epochs: int, count: int) -> None:
    buffer = Buffer(epochs=epochs, seed=0)
    lived = [live(buffer, "a") for _ in range(6)]
    found = [ids(buffer.next_episodes_nowait(count)) for _ in range(6 * epochs // count)]
    order = list(itertools.chain(*found))
    for epoch in range(epochs):
        assert sorted(order[6 * epoch : 6 * epoch + 6]) == sorted(lived)
    with pytest.raises(relive.NotReadyError, match="^next_episodes_nowait found 0 of 1 episodes"):
        buffer.next_episodes_nowait(1)
    assert (buffer.get_drops(), buffer.get_training_bias().trained.episodes) == ({}, 6)
    buffer.check()


def test_calls_across_passes_return_no_episode_twice() -> None:
    buffer = Buffer(epochs=4, seed=0)
    for _ in range(5):
        live(buffer, "a")
    counts: collections.Counter[str] = collections.Counter()
    for _ in range(3):
        found = ids(buffer.next_episodes_nowait(4))
        assert len(set(found)) == 4
        counts.update(found)
    assert sorted(counts.values()) == [2, 2, 2, 3, 3]


def test_an_episode_that_ends_in_a_pass_joins_the_next() -> None:
    buffer = Buffer(epochs=2, seed=0)
    first = [live(buffer, "a") for _ in range(4)]
    found = ids(buffer.next_episodes_nowait(1))
    later = live(buffer, "a")
    found += ids(buffer.next_episodes_nowait(3))
    assert sorted(found) == sorted(first)
    assert sorted(ids(buffer.next_episodes_nowait(5))) == sorted([*first, later])
    assert ids(buffer.next_episodes_nowait(1)) == [later]


def test_an_audit_finds_a_pass_that_misses_an_item() -> None:
    buffer = Buffer(epochs=2)
    assert buffer.epochs == 2
    for _ in range(2):
        live(buffer, "a")
    buffer.next_episodes_nowait(1)
    buffer.check()
    line: Any = buffer._hand_outs.line
    line._later_order.clear()
    with pytest.raises(relive.CorruptionError, match="^the next pass must hold each of its items once$"):
        buffer.check()


def test_every_order_of_a_pass_is_equally_likely() -> None:
    counts: collections.Counter[tuple[int, ...]] = collections.Counter()
    for seed in range(1200):
        line: groups_lib.PendingEpisodes[int] = groups_lib.PendingEpisodes(np.random.default_rng(seed))
        for number in range(3):
            line.append(str(number), number, None)
        counts[tuple(line)] += 1
    orders = list(itertools.permutations(range(3)))
    testing.assert_frequencies([counts[order] for order in orders], [1 / 6] * 6)


def test_groups_are_delivered_in_every_epoch() -> None:
    buffer = Buffer(groups=relive.Groups(2), epochs=2, admission=relive.Admission(3, 2), seed=1)
    for number in range(8):
        live(buffer, "a", group_id=f"{number // 2}", ticket=buffer.admit_nowait())
    passes = [[group[0].group_id for group in buffer.next_groups_nowait(4)] for _ in range(2)]
    assert [sorted(each) for each in passes] == [["0", "1", "2", "3"]] * 2  # type: ignore[type-var]
    with pytest.raises(relive.NotReadyError, match="found 0 of 1 whole groups"):
        buffer.next_groups_nowait(1)
    with pytest.raises(relive.NotReadyError, match="with 8 episodes admitted"):
        buffer.admit_nowait()
    buffer.check()


@pytest.mark.parametrize("grouped", [False, True])
def test_delivered_episodes_are_never_dropped_later(grouped: bool) -> None:
    buffer = Buffer(groups=relive.Groups(1), epochs=2, max_episodes=2)
    buffer.set_policy_version(0)
    take: Any = buffer.next_groups_nowait if grouped else buffer.next_episodes_nowait
    names = itertools.count()

    def one() -> str:
        return live(buffer, "a", group_id=f"{next(names)}" if grouped else None, policy_version=buffer.policy_version)

    one()
    take(1)
    buffer.set_policy_version(5)
    one()
    assert len(take(1, max_lag=0)) == 1  # The first is dropped from the line.
    one()
    one()  # The second, which waits for its second delivery, is evicted.
    assert (buffer.get_drops(), buffer.get_training_bias().trained.episodes) == ({}, 2)
    buffer.check()


def test_episodes_between_two_deliveries_can_be_rejected() -> None:
    buffer = Buffer(groups=relive.Groups(2), epochs=3)
    single = live(buffer, "a")
    pair = [live(buffer, "b", group_id="g") for _ in range(2)]
    assert ids(buffer.next_episodes_nowait(1)) == [single]
    assert len(buffer.next_groups_nowait(1)) == 1
    assert buffer.reject([single, pair[0]]) == 3
    assert buffer.get_drops() == {"rejected": {"a": 1, "b": 2}}
    assert buffer.get_training_bias().trained.episodes == 0
    for call in (buffer.next_episodes_nowait, buffer.next_groups_nowait):
        with pytest.raises(relive.NotReadyError):
            call(1)
    buffer.check()


@pytest.mark.parametrize("journaled", [False, True])
@pytest.mark.parametrize("redeliver", [False, True])
def test_epochs_go_on_after_a_restart(journaled: bool, redeliver: bool, tmp_path: pathlib.Path) -> None:
    for seed in range(10):
        rng = random.Random(seed)
        buffer: Any = Buffer(groups=relive.Groups(2), epochs=3, redeliver=redeliver, seed=0)
        path = tmp_path / f"{seed}"
        journal = relive.Journal(path) if journaled else None
        if journal is not None:
            buffer.attach(journal)
        buffer.set_policy_version(0)
        for number in range(12):
            live(buffer, "a", group_id=None if number < 6 else f"{number // 2}")
        counts: collections.Counter[str] = collections.Counter()
        for _ in range(rng.randrange(8)):
            buffer.set_policy_version(buffer.policy_version + 1)
            counts.update(ids(buffer.next_episodes_nowait(rng.randrange(1, 3))))
            counts.update(group[0].group_id for group in buffer.next_groups_nowait(1))
        lost: list[str] = []
        if redeliver:
            buffer.set_policy_version(buffer.policy_version + 1)
            buffer.ack(buffer.policy_version)
            lost = [*ids(buffer.next_episodes_nowait(1)), buffer.next_groups_nowait(1)[0][0].group_id]
        if journal is not None:
            journal.close()
            buffer = relive.recover(path)
        else:
            buffer.save(path)
            buffer = Buffer.load(path)
        buffer.check()
        again: list[str] = []
        for call in (buffer.next_episodes_nowait, buffer.next_groups_nowait):
            with contextlib.suppress(relive.NotReadyError):
                while True:
                    (unit,) = call(1)
                    again.append(unit[0].group_id if isinstance(unit, list) else unit.episode_id)
        counts.update(again)
        assert sorted(counts.values()) == [3] * 9
        assert not lost or (lost[0] == again[0] and lost[1] in again)
        buffer.check()


# Waiting.


async def test_learners_that_wait_for_a_quota_are_passed() -> None:
    buffer = Buffer()
    choosy = asyncio.create_task(buffer.next_episodes(1, quotas={"a": 0}))
    await asyncio.sleep(0)
    first = live(buffer, "a")
    assert ids(await buffer.next_episodes(1)) == [first]
    second = live(buffer, "b")
    assert ids(await choosy) == [second]


async def test_max_running_limits_episodes_that_run_at_once() -> None:
    buffer = Buffer(admission=relive.Admission(9, 9, max_running=2))
    running = most = 0

    async def actor() -> None:
        nonlocal running, most
        for _ in range(5):
            with await buffer.admit() as ticket:
                async with buffer.episode("a", ticket=ticket) as writer:
                    running += 1
                    most = max(most, running)
                    await asyncio.sleep(0)
                    await writer.append(0, 0, 0.0)
                    await writer.end(1)
                    running -= 1

    async with asyncio.timeout(20):
        await asyncio.gather(*(actor() for _ in range(6)))
    assert most == 2
    assert buffer.get_stats().completed == 30


async def test_a_group_that_nobody_completes_is_named() -> None:
    buffer = Buffer(admission=relive.Admission(0, 2), groups=relive.Groups(2))
    for group_id in ("g", "h"):
        live(buffer, "a", group_id=group_id, ticket=buffer.admit_nowait())
    learner = asyncio.create_task(buffer.next_groups(1))
    actor = asyncio.create_task(buffer.admit())
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        await asyncio.sleep(0.01)
    (warning,) = found
    assert "group 'g' holds places but is not complete" in str(warning.message)
    buffer.close()
    await asyncio.gather(learner, actor, return_exceptions=True)
