import dataclasses
import random
from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.kernels import episode_table
from relive.kernels import timeline as timeline_lib
from relive.kernels import timeline_state
from relive.persistence import state as state_lib

State = timeline_state.TimelineState


def worked(seed: int, streams: int, capacity: int = 11, count: int = 40) -> timeline_lib.Timeline:
    """A timeline in the middle of its life."""
    timeline, rng = timeline_lib.Timeline(capacity, streams), random.Random(seed)
    work(timeline, rng, count)
    return timeline


def work(timeline: timeline_lib.Timeline, rng: random.Random, count: int) -> None:
    for _ in range(count):
        action = rng.randrange(8)
        if action < 3:
            some = rng.sample(range(timeline.streams), rng.randrange(1, timeline.streams + 1))
            chosen = np.array(some if action else range(timeline.streams))
            make_room(timeline, len(chosen))
            ends = np.array([rng.random() < 0.15 for _ in chosen])
            knows_next = rng.random() < 0.7
            cuts = np.array([rng.random() < 0.1 for _ in chosen])
            none = np.zeros(len(chosen), np.bool_)
            terminated, truncated = (ends, none) if rng.random() < 0.5 else (none, ends)
            timeline.append(chosen, cuts=cuts, knows_next=knows_next, terminated=terminated, truncated=truncated)
        elif action < 5:
            slot = timeline.turning_slot()
            if slot >= 0:
                timeline.turn(slot)
        elif action == 5:
            length = rng.randrange(1, 4)
            make_room(timeline, length)
            timeline.append_episode(rng.randrange(timeline.streams), length, is_terminated=rng.random() < 0.5)
        elif action == 6:
            make_room(timeline, 1)
            timeline.append_one(rng.randrange(timeline.streams), rng.random() < 0.1, True, rng.random() < 0.1, False)
        elif rng.random() < 0.1:
            timeline.clear()


def make_room(timeline: timeline_lib.Timeline, count: int) -> None:
    timeline.evict(max(0, len(timeline) + count - timeline.capacity))


def given(state: State) -> state_lib.StateReader:
    return state_lib.StateReader(state.values(), state.arrays())


def plain(state: State) -> dict[str, Any]:
    return {**state.values(), **{name: array.tolist() for name, array in state.arrays().items()}}


@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("seed", range(12))
def test_a_restored_timeline_goes_on_as_the_other(seed: int, streams: int) -> None:
    timeline = worked(seed, streams, count=5 + 6 * seed)
    state = State.of(given(timeline.state()), timeline.capacity, streams)
    other = worked(seed + 50, streams)
    other.restore(state)
    for count in range(12):
        assert plain(other.state()) == plain(timeline.state())
        other.check()
        slots = timeline.alive_slots()
        assert other.rows(slots).steps.tolist() == timeline.rows(slots).steps.tolist()
        assert other.ahead(slots, 4).tolist() == timeline.ahead(slots, 4).tolist()
        assert other.behind(slots, 4).tolist() == timeline.behind(slots, 4).tolist()
        assert other.num_behind(slots, 2).tolist() == timeline.num_behind(slots, 2).tolist()
        work(timeline, random.Random(count), 4)
        work(other, random.Random(count), 4)


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("seed", range(12))
def test_open_episodes_go_on_without_their_rows(seed: int, streams: int) -> None:
    """What a segment of a journal begins with."""
    timeline = worked(seed, streams)
    base = timeline.state().without_rows(streams)
    assert not len(base)
    assert base.num_evicted == timeline.num_evicted + len(timeline)
    other = timeline_lib.Timeline(timeline.capacity, streams)
    other.restore(State.of(given(base), timeline.capacity, streams))
    other.check()
    before = {stream: int(length) for stream, length in zip(base.stream, base.length, strict=True)}
    for stream in range(streams):
        slot, _, _ = other.append_one(stream, False, True, False, False)
        assert other.step_of_one(slot) == before.get(stream, 0)
    for count in range(5):
        work(other, random.Random(count), 10)
        other.check()


def test_a_turn_behind_an_episode_without_rows_is_not_lost() -> None:
    """The key of its newest row is counted on from the turn before."""
    timeline = timeline_lib.Timeline(4, 1)
    for _ in range(2):
        timeline.append_one(0, False, True, False, False)
    other = timeline_lib.Timeline(4, 1)
    other.restore(timeline.state().without_rows(1))
    other.turn(other.turning_slot())
    other.end(np.array([0]), np.array([True]))
    other.check()
    assert (len(other), len(other.episodes)) == (1, 1)


@pytest.mark.parametrize("seed", range(12))
def test_an_episode_without_rows_has_a_last_key_that_is_gone(seed: int) -> None:
    timeline = worked(seed, 3, capacity=4)
    state = timeline.state()
    alive = np.bincount(state.episode, minlength=len(state.stream))
    last_keys = state.last_keys(3)
    assert (last_keys[alive == 0] < timeline.oldest_key).all()
    assert (last_keys[alive > 0] >= timeline.oldest_key).all()


def state_of(**changes: Any) -> State:
    """Two streams in turn: episode 0 has keys 2 and 4, its step 0 was evicted; 1 has 3; 2 has 5 and is open."""
    values: dict[str, Any] = {
        "next_key": 6,
        "num_evicted": 2,
        "is_linked": False,
        "phase": 0,
        "in_turn_since": 0,
        "unlink_at": 0,
        "episode": np.array([0, 1, 0, 2]),
        "stream": np.array([0, 1, 1]),
        "length": np.array([3, 1, 1]),
        "first_key": np.array([0, 3, 5]),
        "end": np.array([episode_table.TRUNCATED, episode_table.TERMINATED, episode_table.OPEN], np.uint8),
        "has_tail": np.array([True, False, True]),
    }
    return State(**values | changes)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def ends(*values: int) -> Any:
    return np.array(values, np.uint8)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"next_key": -1}, r"next_key must be an integer in \[0, "),
    ({"num_evicted": 3}, "num_evicted must be at most 2, got 3"),
    ({"is_linked": 1}, "is_linked must be true or false"),
    ({"phase": 2}, r"phase must be an integer in \[0, 1\]"),
    ({"in_turn_since": 99}, "in_turn_since must be an integer"),
    ({"unlink_at": 99}, "unlink_at must be an integer"),
    ({"episode": ints(0, 1, 0, 3)}, r"array row_episode must hold integers in \[0, 2\], got 3"),
    ({"episode": ints(*[0] * 20)}, "row_episode must have at most capacity = 10, got 20"),
    ({"stream": ints(0, 2, 1)}, r"array episode_stream must hold integers in \[0, 1\], got 2"),
    ({"length": ints(3, 1)}, r"array episode_length must be of dtype int64 and shape \(3\)"),
    ({"length": ints(3, 0, 1)}, "array episode_length must hold integers"),
    ({"length": ints(7, 1, 1)}, "array episode_length must hold integers"),
    ({"first_key": ints(-1, 3, 5)}, "array episode_first_key must hold integers"),
    ({"end": ends(3, 1, 0)}, "an end must be at most 2"),
    ({"length": ints(1, 1, 1)}, "none more rows than steps"),
    ({"episode": ints(0, 2, 0, 2), "length": ints(3, 1, 2), "first_key": ints(0, 3, 3)}, "has ended must have a row"),
    ({"end": ends(2, 0, 0)}, "two are open in one stream"),
    ({"first_key": ints(0, 4, 5)}, "must have the key of its first row"),
    ({"first_key": ints(2, 3, 5)}, "must have begun before"),
    ({"stream": ints(0, 0, 1)}, "without those of another between them"),
    ({"length": ints(3, 1, 2), "first_key": ints(0, 3, 0)}, "must be the oldest of its stream"),
    ({"end": ends(2, 0, 1)}, "one that is open must be the newest of its stream"),
    ({"phase": 1}, "rows must be in turn where they are not linked"),
    ({"is_linked": True, "phase": 1, "in_turn_since": 5}, "rows must be in turn where they are not linked"),
    (
        {"length": ints(4, 1, 1), "next_key": 6, "num_evicted": 0},
        "one that began in turn must have a step in each turn",
    ),
    ({"is_linked": True, "length": ints(4, 1, 1)}, "must have begun before|a step in each turn"),
]


def test_the_example_can_be() -> None:
    state = state_of()
    assert plain(State.of(given(state), 10, 2)) == plain(state)
    linked = state_of(is_linked=True, in_turn_since=1)
    timeline = timeline_lib.Timeline(10, 2)
    timeline.restore(State.of(given(linked), 10, 2))
    timeline.check()


@pytest.mark.parametrize(("changes", "message"), WRONG)
def test_what_no_timeline_can_be_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.CheckpointError, match=message):
        State.of(given(state_of(**changes)), 10, 2)


def test_an_episode_without_rows_is_alone_in_its_stream() -> None:
    changes = {
        "stream": ints(0, 1, 1, 1),
        "length": ints(3, 1, 1, 1),
        "first_key": ints(0, 3, 5, 1),
        "end": ends(2, 1, 2, 0),
        "has_tail": np.array([True, False, True, True]),
    }
    with pytest.raises(errors.CheckpointError, match="one that is open without a row must be alone in its stream"):
        State.of(given(state_of(**changes)), 10, 2)


def test_one_stream_is_never_linked() -> None:
    state = worked(3, 1).state()
    with pytest.raises(errors.CheckpointError, match="one stream alone is always in turn"):
        State.of(given(dataclasses.replace(state, is_linked=True)), 11, 1)


def test_of_one_stream_steps_follow_from_keys() -> None:
    """Else steps would be counted wrong as soon as they are looked up."""
    timeline = timeline_lib.Timeline(3, 1)
    for _ in range(10):
        make_room(timeline, 1)
        timeline.append_one(0, False, True, False, False)
    state = timeline.state()
    State.of(given(state), 3, 1)
    for first_key, length in ((1, 10), (0, 9), (0, 5)):
        forged = dataclasses.replace(state, first_key=ints(first_key), length=ints(length))
        with pytest.raises(errors.CheckpointError, match="the episodes cannot be as they are: "):
            State.of(given(forged), 3, 1)


def test_numbers_that_would_wrap_around_are_refused() -> None:
    """Steps times streams, in 64 bits."""
    state = state_of(next_key=2**61, num_evicted=0, phase=0, episode=ints(), stream=ints(0), length=ints(2**61))
    state = dataclasses.replace(state, first_key=ints(0), end=ends(0), has_tail=np.array([True]))
    with pytest.raises(errors.CheckpointError, match="the episodes cannot be as they are: "):
        State.of(given(state), 10, 8)
