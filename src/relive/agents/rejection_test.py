"""What the learner does not want: what `accept` refuses and what `reject` gives back, and that nothing hangs for it."""

import asyncio
import gc
import itertools
import pathlib
import random
import time
from typing import Any
from unittest import mock

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive.agents import bias
from relive.agents import delivery_test
from relive.fleet import local_test

Buffer = relive.EpisodeReplayBuffer[Any, Any]
live = delivery_test.live
ids = delivery_test.ids


def longer_than_one(episode: relive.Episode[Any, Any]) -> bool:
    return len(episode) > 1


def of_unlike_lengths(group: list[relive.Episode[Any, Any]]) -> bool:
    return len({len(episode) for episode in group}) > 1


# accept.


def test_the_next_ones_are_those_that_are_accepted() -> None:
    buffer = Buffer()
    lived = [live(buffer, f"{steps}", steps) for steps in (1, 2, 1, 3, 1, 4)]
    asked: list[str] = []

    def accept(episode: relive.Episode[Any, Any]) -> np.bool_:
        asked.append(episode.episode_id)
        episode.rewards.clear()
        return np.bool_(longer_than_one(episode))

    found = buffer.next_episodes_nowait(2, accept=accept)  # type: ignore[arg-type]
    assert (ids(found), asked) == ([lived[1], lived[3]], lived[:4])
    assert [len(episode.rewards) for episode in found] == [2, 3]
    assert buffer.get_drops() == {"rejected": {"1": 2}}
    trained = buffer.get_training_bias().trained
    assert (trained.episodes, trained.transitions) == (2, 5)
    assert ids(buffer.next_episodes_nowait(2)) == lived[4:]
    buffer.check()


def test_a_group_is_accepted_as_a_whole() -> None:
    buffer = Buffer(groups=relive.Groups(2), admission=relive.Admission(0, 6))
    for group_id, steps in (("alike", (2, 2)), ("unlike", (1, 2)), ("unlike too", (3, 1))):
        for length in steps:
            live(buffer, group_id, length, group_id=group_id, ticket=buffer.admit_nowait())
    groups = buffer.next_groups_nowait(2, accept=of_unlike_lengths)
    assert [group[0].group_id for group in groups] == ["unlike", "unlike too"]
    assert buffer.get_drops() == {"rejected": {"alike": 2}}
    assert buffer.admit_nowait(2).left == 2
    with pytest.raises(
        relive.ArgumentError, match="^no episode can start in group 'alike': it was handed out or given"
    ):
        buffer.start_episode_nowait("a", group_id="alike", ticket=buffer.admit_nowait(2))
    buffer.check()


def test_what_is_refused_stays_dropped_and_what_is_accepted_waits_on_when_there_are_too_few() -> None:
    buffer = Buffer()
    lived = [live(buffer, steps=steps) for steps in (2, 1, 3)]
    asked: list[str] = []

    def accept(episode: relive.Episode[Any, Any]) -> bool:
        asked.append(episode.episode_id)
        return longer_than_one(episode)

    with pytest.raises(relive.NotReadyError, match="^next_episodes_nowait found 2 of 3 episodes: end more of them, or"):
        buffer.next_episodes_nowait(3, accept=accept)
    assert (asked, buffer.get_drops()) == (lived, {"rejected": {"a": 1}})
    lived.append(live(buffer, steps=2))
    assert ids(buffer.next_episodes_nowait(3, accept=accept)) == [lived[0], lived[2], lived[3]]
    assert asked[3:] == [lived[0], lived[2], lived[3]]


def test_those_that_are_too_old_are_not_asked_about() -> None:
    buffer = Buffer()
    lived = [live(buffer, steps=steps, policy_version=version) for version, steps in ((0, 5), (3, 1), (3, 5))]
    buffer.set_policy_version(3)
    asked: list[str] = []

    def accept(episode: relive.Episode[Any, Any]) -> bool:
        asked.append(episode.episode_id)
        return longer_than_one(episode)

    assert ids(buffer.next_episodes_nowait(1, max_lag=0, accept=accept)) == [lived[2]]
    assert asked == lived[1:]
    assert buffer.get_drops() == {"rejected": {"a": 1}, "stale": {"a": 1}}


@pytest.mark.parametrize("fault", ["raises", "says 1", "says nothing"])
def test_where_accept_fails_nothing_has_changed(fault: str) -> None:
    buffer = Buffer(groups=relive.Groups(1))
    single, grouped = live(buffer), live(buffer, group_id="g")

    def accept(unit: Any) -> Any:
        if fault == "raises":
            raise ZeroDivisionError("no judge")
        return 1 if fault == "says 1" else None

    expected: Any = (ZeroDivisionError, "^no judge$")
    if fault != "raises":
        got = 1 if fault == "says 1" else None
        expected = (relive.ArgumentError, f"^what accept returns must be True or False, got {got}$")
    for call in (buffer.next_episodes_nowait, buffer.next_groups_nowait):
        with pytest.raises(expected[0], match=expected[1]):
            call(1, accept=accept)
    assert buffer.get_drops() == {}
    assert ids(buffer.next_episodes_nowait(1)) == [single]
    assert ids(buffer.next_groups_nowait(1)[0]) == [grouped]


async def test_what_accept_raises_comes_out_of_a_call_that_waits() -> None:
    buffer = Buffer()

    def accept(episode: relive.Episode[Any, Any]) -> bool:
        raise ZeroDivisionError("no judge")

    first, second = (asyncio.create_task(buffer.next_episodes(1, accept=each)) for each in (accept, None))
    await asyncio.sleep(0)
    lived = live(buffer)
    with pytest.raises(ZeroDivisionError):
        await first
    assert ids(await second) == [lived]


async def test_what_cannot_be_called_is_refused() -> None:
    buffer = Buffer(groups=relive.Groups(1))
    message = "^accept must be a function, got 3$"
    for call in (buffer.next_episodes_nowait, buffer.next_groups_nowait):
        with pytest.raises(relive.ArgumentError, match=message):
            call(1, accept=3)  # type: ignore[arg-type]
    for waiting in (buffer.next_episodes, buffer.next_groups):
        with pytest.raises(relive.ArgumentError, match=message):
            await waiting(1, accept=3)  # type: ignore[arg-type]


async def test_each_is_asked_about_once_while_the_call_waits_and_cancelled_it_takes_none() -> None:
    buffer = Buffer(admission=relive.Admission(0, 4), max_episodes=4)
    asked: list[str] = []

    def accept(episode: relive.Episode[Any, Any]) -> bool:
        asked.append(episode.episode_id)
        return longer_than_one(episode)

    learner = asyncio.create_task(buffer.next_episodes(4, accept=accept))
    lived: list[str] = []
    for steps in (2, 1, 1, 3, 1):
        lived.append(live(buffer, steps=steps, ticket=await buffer.admit()))
        for _ in range(5):
            await asyncio.sleep(0)
    assert not learner.done()
    assert asked == lived
    learner.cancel()
    await asyncio.wait([learner])
    assert buffer.get_drops() == {"evicted": {"a": 1}, "rejected": {"a": 3}}
    # One of the two that were accepted is gone since, to make room.
    assert ids(buffer.next_episodes_nowait(1)) == [lived[3]]
    buffer.check()


async def test_a_place_that_accept_gives_back_goes_to_an_actor_that_waits() -> None:
    buffer = Buffer(admission=relive.Admission(0, 2))
    buffer.set_policy_version(0)
    learner = asyncio.create_task(buffer.next_episodes(2, accept=longer_than_one))
    for steps in (1, 2, 1, 1, 1, 3):
        async with asyncio.timeout(10):
            ticket = await buffer.admit()
        live(buffer, steps=steps, ticket=ticket)
    assert [len(episode) for episode in await learner] == [2, 3]


# reject.


def test_what_was_handed_out_can_be_given_back_once() -> None:
    buffer = Buffer(admission=relive.Admission(0, 3))
    buffer.set_policy_version(0)
    lived = [live(buffer, f"{number}", ticket=buffer.admit_nowait()) for number in range(3)]
    buffer.next_episodes_nowait(3)
    assert buffer.reject([lived[0], "unknown", lived[0], lived[2]]) == 2
    assert buffer.reject(lived[:1]) == 0
    assert buffer.reject(iter(lived[1:2]), reason="too easy") == 1
    assert buffer.get_drops() == {"rejected": {"0": 1, "2": 1}, "too easy": {"1": 1}}
    assert list(buffer.get_drops()) == ["rejected", "too easy"]
    assert buffer.admit_nowait(3).left == 3
    totals = buffer.get_training_bias()
    assert (totals.produced.episodes, totals.trained.episodes) == (3, 0)
    assert buffer.get_stats().total_episodes == 3
    with pytest.raises(relive.NotReadyError):
        buffer.next_episodes_nowait(1)
    buffer.check()


def test_what_waits_can_be_rejected_before_somebody_has_asked() -> None:
    buffer = Buffer()
    bad, good, failed = live(buffer), live(buffer), live(buffer, status="ABORTED")
    running = buffer.start_episode_nowait("a")
    assert buffer.reject([bad, failed, running]) == 1
    assert ids(buffer.next_episodes_nowait(1)) == [good]
    assert buffer.get_drops() == {"aborted": {"a": 1}, "rejected": {"a": 1}}
    buffer.check()


@pytest.mark.parametrize("is_whole", [False, True])
def test_one_that_waits_takes_its_group_along(is_whole: bool) -> None:
    buffer = Buffer(groups=relive.Groups(3), admission=relive.Admission(0, 3))
    ticket = buffer.admit_nowait(3)
    ended = [live(buffer, group_id="g", ticket=ticket) for _ in range(2 + is_whole)]
    running = None if is_whole else buffer.start_episode_nowait("a", group_id="g", ticket=ticket)
    assert buffer.reject(ended[:1], reason="given up") == len(ended)
    assert buffer.get_drops() == {"given up": {"a": len(ended)}}
    buffer.check()
    if running is not None:
        assert buffer.reject([running]) == 0
        buffer.append_observation_action_reward_nowait(running, 0, 0, 1.0)
        buffer.end_episode_nowait(running, 0)
        assert buffer.get_drops()["straggler"] == {"a": 1}
    assert buffer.admit_nowait(3).left == 3
    with pytest.raises(relive.NotReadyError):
        buffer.next_groups_nowait(1)


def test_a_part_of_a_group_that_was_handed_out_can_be_given_back() -> None:
    buffer = Buffer(groups=relive.Groups(2))
    lived = [live(buffer, group_id="g") for _ in range(2)]
    buffer.next_groups_nowait(1)
    assert buffer.reject(lived[:1]) == 1
    assert buffer.get_training_bias().trained.episodes == 1
    buffer.check()
    other = Buffer(groups=relive.Groups(2))
    other.load_state_dict(buffer.state_dict())
    assert other.get_drops() == {"rejected": {"a": 1}}
    assert other.reject(lived) == 1


def test_one_that_a_sample_came_from_was_trained_on_whatever_became_of_it() -> None:
    buffer = Buffer(seed=0)
    lived = live(buffer)
    buffer.next_episodes_nowait(1)
    buffer.sample_n_step_nowait(1, 1, 0.9)
    assert buffer.reject([lived]) == 1
    assert buffer.get_training_bias().trained.episodes == 1


def test_one_that_was_evicted_is_not_there() -> None:
    buffer = Buffer(max_episodes=1)
    lived = live(buffer)
    buffer.next_episodes_nowait(1)
    live(buffer)
    assert buffer.reject([lived]) == 0
    assert buffer.get_drops() == {}


def test_a_place_that_is_not_counted_any_more_does_not_come_back() -> None:
    """Before the first version of the learner, two were trained on; then the count has begun."""
    buffer = Buffer(admission=relive.Admission(0, 2))
    lived = [live(buffer, ticket=buffer.admit_nowait()) for _ in range(2)]
    buffer.next_episodes_nowait(2)
    buffer.set_policy_version(7)
    buffer.load_state_dict(buffer.state_dict())
    live(buffer, ticket=buffer.admit_nowait())
    assert buffer.reject(lived) == 2
    with pytest.raises(relive.NotReadyError):
        buffer.admit_nowait(2)
    assert buffer.admit_nowait(1).left == 1
    buffer.check()


@pytest.mark.parametrize(
    ("episode_ids", "reason", "message"),
    [
        ("some id", "rejected", "^episode_ids must be a list of strings, got 'some id'$"),
        (None, "rejected", "^episode_ids must be a list of strings, got None$"),
        (["lived", 3], "rejected", "^each of episode_ids must be a string, got 3$"),
        (["lived"], "", "^reason must be a string of at least 1 character, got ''$"),
        (["lived"], 3, "^reason must be a string, got 3$"),
    ],
)
def test_a_wrong_rejection_is_refused_and_changes_nothing(episode_ids: Any, reason: Any, message: str) -> None:
    buffer = Buffer()
    lived = live(buffer)
    buffer.next_episodes_nowait(1)
    given = [lived if each == "lived" else each for each in episode_ids] if type(episode_ids) is list else episode_ids
    with pytest.raises(relive.ArgumentError, match=message):
        buffer.reject(given, reason=reason)
    assert (buffer.get_drops(), buffer.reject([lived])) == ({}, 1)


def test_a_closed_buffer_takes_back_what_it_has_handed_out() -> None:
    buffer = Buffer()
    lived = live(buffer)
    buffer.close()
    buffer.next_episodes_nowait(1)
    assert buffer.reject([lived]) == 1


def test_an_audit_finds_an_open_episode_without_a_place() -> None:
    buffer = Buffer()
    buffer._hand_outs._uncounted.add(buffer._store[buffer.start_episode_nowait("a")])
    with pytest.raises(relive.CorruptionError, match="^an episode that runs, or is not stored, cannot be without a pl"):
        buffer.check()


def test_the_first_hundred_reasons_are_named() -> None:
    drops = bias.Drops()
    for number in range(200):
        drops.count(f"score {number}", "a")
    drops.count("stale", "a")
    view = drops.view()
    assert len(view) == 102  # With one of the buffer's own, and one for the others.
    assert (view["score 99"], view["stale"], view["(others)"]) == ({"a": 1}, {"a": 1}, {"a": 100})


# Nothing hangs.


async def test_a_learner_that_rejects_nine_of_ten_groups_goes_on() -> None:
    """Actors and learner take turns, and each group that is rejected makes room for one other."""
    buffer = Buffer(groups=relive.Groups(4), admission=relive.Admission(0, 8))
    rng = random.Random(0)
    rejected = 0

    async def act(name: int) -> None:
        for prompt in range(10_000):
            with await buffer.admit(4) as ticket:
                for _ in range(4):
                    live(buffer, group_id=f"{name}/{prompt}", ticket=ticket)

    actors = [asyncio.create_task(act(name)) for name in range(3)]
    async with asyncio.timeout(60):
        for version in range(10):
            buffer.set_policy_version(version)
            (first,) = await buffer.next_groups(1, accept=lambda group: rng.random() < 0.1)
            assert len(first) == 4
            while True:
                (group,) = await buffer.next_groups(1)
                if rng.random() < 0.1:
                    break
                rejected += buffer.reject(ids(group))
    for task in actors:
        task.cancel()
    await asyncio.wait(actors)
    assert buffer._hand_outs.desk.admitted == 80 + len(list(buffer._hand_outs._waiting()))
    assert rejected > 100
    buffer.check()


async def run_fleet(
    seed: int, rate: float, max_lag: int, size: int, due: float | None, num_actors: int, judges_later: bool
) -> None:
    """Actors that die, and a learner that rejects at a rate: it gets its batch for each version."""
    rng = random.Random(seed)
    min_size = None if due is None else rng.choice([None, 1, size])
    buffer = Buffer(admission=relive.Admission(max_lag, 2 * size), groups=relive.Groups(size, due, min_size))
    started: list[str] = []
    kept: list[str] = []

    async def answer(group_id: str, ticket: Any, ended: list[str]) -> None:
        async with buffer.episode(
            "a", group_id=group_id, policy_version=buffer.policy_version, ticket=ticket
        ) as writer:
            started.append(writer.episode_id)
            steps = rng.choice([0, *[1, 2, 3] * 6])
            for t in range(steps):
                await writer.append(t, t, 1.0)
                await asyncio.sleep(rng.choice([0, 0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 4.0]))
            if rng.random() < 0.05:
                raise ZeroDivisionError
            await writer.end(0)
            if steps:
                ended.append(writer.episode_id)

    async def act(name: str) -> None:
        for prompt in itertools.count():
            ended: list[str] = []
            try:
                with await buffer.admit(size) as ticket:
                    answers = (answer(f"{name}/{prompt}", ticket, ended) for _ in range(size))
                    await asyncio.gather(*answers, return_exceptions=True)
            finally:
                if due is None and len(ended) < size:  # Else time gives it up.
                    buffer.reject(ended, reason="given up")

    async def kill_and_restart() -> None:
        for number in itertools.count():
            await asyncio.sleep(rng.uniform(5.0, 60.0))
            place = rng.randrange(num_actors)
            actors[place].cancel()
            actors[place] = asyncio.create_task(act(f"{place}.{number}"))

    def wants(group: Any) -> bool:
        return rng.random() >= rate

    async def learn() -> None:
        for version in range(5):
            buffer.set_policy_version(version)
            if judges_later:
                batch: list[Any] = []
                while len(batch) < 2:
                    (group,) = await buffer.next_groups(1)
                    await asyncio.sleep(rng.choice([0, 0.1]))
                    if wants(group):
                        batch.append(group)
                    else:
                        assert buffer.reject(ids(group)) == len(group)
            else:
                batch = await buffer.next_groups(2, accept=wants)
            kept.extend(each for group in batch for each in ids(group))
            add_up()

    def add_up() -> None:
        dropped = sum(sum(sources.values()) for sources in buffer.get_drops().values())
        waiting = len(list(buffer._hand_outs._waiting()))
        running = buffer.get_stats().in_progress
        assert len(started) == dropped + len(kept) + waiting + running
        assert buffer._hand_outs.desk.admitted == len(kept) + waiting + running
        assert buffer.get_training_bias().trained.episodes == len(kept)

    actors = [asyncio.create_task(act(f"{place}")) for place in range(num_actors)]
    killer = asyncio.create_task(kill_and_restart())
    async with asyncio.timeout(3_000.0):
        await learn()
    for task in (killer, *actors):
        task.cancel()
    await asyncio.wait([killer, *actors])
    gc.collect()
    add_up()
    assert buffer.get_stats().in_progress == 0
    buffer._hand_outs.desk.can_admit(1)
    assert buffer._hand_outs.desk._reserved == 0
    buffer.check()


@hypothesis.settings(deadline=None)
@hypothesis.given(
    seed=st.integers(0, 10**6),
    rate=st.sampled_from([0.0, 0.3, 0.6, 0.9]),
    max_lag=st.integers(0, 8),
    size=st.integers(1, 4),
    due=st.sampled_from([None, 5.0, 20.0]),
    num_actors=st.integers(1, 6),
    judges_later=st.booleans(),
)
def test_whatever_is_rejected_nothing_hangs_and_all_adds_up(**program: Any) -> None:
    async def by_that_clock() -> None:
        with mock.patch.object(time, "monotonic", asyncio.get_running_loop().time):
            await run_fleet(**program)

    local_test.run(by_that_clock())


def step(buffer: Buffer, **described: Any) -> str:
    """Live through an episode of one step, and return its id."""
    episode_id = buffer.start_episode_nowait("a", **described)
    buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 1.0)
    buffer.end_episode_nowait(episode_id, 1)
    return episode_id


def test_what_groups_handed_out_or_dropped_does_not_come_back_without_them(tmp_path: pathlib.Path) -> None:
    buffer = Buffer(groups=relive.Groups(2))
    ids = [step(buffer, group_id=group_id) for group_id in "gghhk"]
    buffer.next_groups_nowait(1)
    buffer.reject(ids[2:4])
    buffer.save(tmp_path / "saved")
    loaded = Buffer.load(tmp_path / "saved", groups=None)
    assert [episode.episode_id for episode in loaded.next_episodes_nowait(1)] == ids[4:]
    with pytest.raises(relive.NotReadyError):
        loaded.next_episodes_nowait(1)
    loaded.check()


@pytest.mark.parametrize("how", ["reject", "accept", "evict", "clear"])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_what_was_drawn_before_places_were_counted_gives_none_back(how: str, is_loaded: bool) -> None:
    buffer = Buffer(admission=relive.Admission(0, 2), max_episodes=4, seed=0)
    old = [step(buffer, ticket=buffer.admit_nowait()) for _ in range(2)]
    buffer.sample_n_step_nowait(64, 1, 0.9)
    buffer.set_policy_version(0)
    for _ in range(2):
        step(buffer, ticket=buffer.admit_nowait())
    if is_loaded:
        state = buffer.state_dict()
        buffer = Buffer(admission=relive.Admission(0, 2), max_episodes=4, seed=0)
        buffer.load_state_dict(state)
    buffer._hand_outs.begin_line(buffer._store)
    if how == "reject":
        assert buffer.reject(old) == 2
    elif how == "accept":
        buffer.next_episodes_nowait(2, accept=lambda episode: episode.episode_id not in old)
    elif how == "evict":
        for _ in range(2):
            buffer._store.forget_oldest(buffer._store.finished[0].episode_id)
    else:
        buffer.clear()
        ticket = buffer.admit_nowait(2)
        assert ticket.left == 2
    with pytest.raises(relive.NotReadyError):
        buffer.admit_nowait()
    buffer.check()


def test_an_id_that_counts_for_nothing_begins_no_line() -> None:
    buffer = Buffer(max_episodes=1)
    episode_id = buffer.start_episode_nowait("a")
    assert buffer.reject([episode_id, "unknown"]) == 0
    buffer.end_episode_nowait(episode_id, None)
    step(buffer)
    step(buffer)
    assert buffer.get_drops() == {}


def test_a_function_that_calls_the_buffer_breaks_nothing() -> None:
    """It must not; but the learner gets nothing that it has not seen."""
    buffer, seen = Buffer(), []

    def accept(episode: Any) -> bool:
        seen.append(episode.episode_id)
        if len(seen) == 1:
            buffer.next_episodes_nowait(1)
        elif len(seen) == 2:
            buffer.reject([episode.episode_id])
            return False
        elif len(seen) == 3:
            buffer.reject([lived[3]])
        return True

    lived = [step(buffer) for _ in range(6)]
    assert [episode.episode_id for episode in buffer.next_episodes_nowait(2, accept=accept)] == [lived[2], lived[4]]
    assert seen == [*lived[:3], lived[4]]
    buffer.check()
