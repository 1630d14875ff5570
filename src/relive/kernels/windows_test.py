"""Which rows a window has, and which may start one, compared with lists of episodes."""

from collections.abc import Callable
from typing import Any, TypeAlias

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

from relive.common import arrays
from relive.kernels import append
from relive.kernels import append_test
from relive.kernels import windows

Advance: TypeAlias = Callable[..., int]
SEEDS = strategies.integers(0, 2**32)


def written(
    settings: append_test.Settings, seed: int, count: int, is_regular: bool
) -> tuple[append_test.State, append_test.Twin]:
    """Return what `count` writes leave: rounds of every stream in turn that seldom end, or all that there is."""
    rng = np.random.default_rng(seed)
    state, twin = append_test.State(settings, append_test.by_views), append_test.Twin(settings)
    for _ in range(count):
        kind = "round" if is_regular else rng.choice(["one", "round", "some", "run"])
        numbers, events, announced = append_test.rows_of(kind, settings, rng)
        if is_regular and rng.random() < 0.8:
            events[:] = 0
        state.append(numbers, events, announced, 1.0)
        twin.append(numbers.tolist(), events.tolist(), announced, 1.0)
    return state, twin


def run_from(twin: append_test.Twin, key: int, most: int) -> list[int]:
    """Return the keys of up to `most` complete rows from that one on."""
    episode, step = twin.of(key)
    return [key for key in episode.keys[step : step + most] if twin.is_complete(key)]


def chosen(twin: append_test.Twin, keys: list[int], seed: int) -> tuple[list[int], arrays.Ints]:
    """Return some of those keys, each as often as it may be, and where their rows are."""
    rng = np.random.default_rng(seed)
    some: list[int] = rng.choice(keys, rng.integers(1, 9)).tolist()
    return some, np.array(some) % twin.settings.capacity


@hypothesis.given(
    strategies.integers(1, 40),
    strategies.integers(1, 5),
    strategies.integers(1, 12),
    strategies.integers(1, 30),
    strategies.booleans(),
    SEEDS,
)
def test_rows_that_follow_are_those_of_the_episode(
    capacity: int, streams: int, most: int, count: int, is_regular: bool, seed: int
) -> None:
    """However the streams are written: in turn, where rows are as far apart everywhere, or not."""
    settings = append_test.Settings(capacity, min(streams, capacity), 0, False, False)
    state, twin = written(settings, seed, count, is_regular)
    complete = list(filter(twin.is_complete, twin.alive()))
    hypothesis.assume(complete)
    keys, slots = chosen(twin, complete, seed)
    before = state.facts.copy()
    run = windows.follow(state.facts, slots, most)
    expected = [run_from(twin, key, most) for key in keys]
    assert run.slots.shape == (most, len(keys))
    assert run.span.tolist() == [len(each) for each in expected]
    assert run.last.tolist() == [each[-1] % capacity for each in expected]
    assert run.fact.tolist() == state.facts[run.last].tolist()
    for rows, each in zip(run.slots.T.tolist(), expected, strict=True):
        assert rows[: len(each)] == [key % capacity for key in each]
        assert all(0 <= slot < capacity for slot in rows)
    assert state.facts.tolist() == before.tolist()


@hypothesis.given(
    strategies.integers(2, 20),
    strategies.integers(1, 3),
    strategies.sampled_from([1, 4]),
    strategies.floats(0.01, 1),
    SEEDS,
)
def test_transitions_equal_naive_ones(capacity: int, streams: int, most: int, gamma: float, seed: int) -> None:
    settings = append_test.Settings(capacity, min(streams, capacity), 0, False, False)
    state, twin = written(settings, seed, 12, is_regular=bool(seed % 2))
    complete = list(filter(twin.is_complete, twin.alive()))
    hypothesis.assume(complete)
    keys, slots = chosen(twin, complete, seed)
    rewards = np.random.default_rng(seed).normal(size=capacity).astype(np.float32)
    powers = np.array([gamma**k for k in range(most + 1)])
    found = windows.transitions(state.facts, slots, most, rewards, powers, powers.astype(np.float32))
    for place, key in enumerate(keys):
        run = run_from(twin, key, most)
        following = twin.next_of(run[-1])
        total = 0.0
        for k, each in enumerate(run):
            total += powers[k] * float(rewards[each % capacity])
        is_terminal = twin.is_terminal(run[-1])
        assert found.span[place] == len(run)
        assert found.last[place] == run[-1] % capacity
        assert found.link[place] == (-1 if following is None else following % capacity)
        assert found.is_terminal[place] == is_terminal
        assert found.reward[place] == (np.float32(total) if most > 1 else rewards[key % capacity])
        assert found.discount[place] == (0.0 if is_terminal else np.float32(powers[len(run)]))
    assert found.reward.dtype == found.discount.dtype == np.float32


@hypothesis.given(
    strategies.integers(1, 20), strategies.integers(1, 5), strategies.integers(1, 5), strategies.integers(1, 30), SEEDS
)
def test_rows_looked_back_to_are_those_before_in_the_episode(
    capacity: int, streams: int, older: int, count: int, seed: int
) -> None:
    """The first row of an episode stands for those before it."""
    settings = append_test.Settings(capacity, min(streams, capacity), older, False, False)
    state, twin = written(settings, seed, count, is_regular=bool(seed % 2))
    readable = list(filter(twin.is_readable, twin.alive()))
    hypothesis.assume(readable)
    keys, slots = chosen(twin, readable, seed)
    frames = windows.look_back(state.back, state.places[slots] & append.STEP, slots, older + 1)
    for rows, key in zip(frames.T.tolist(), keys, strict=True):
        episode, step = twin.of(key)
        assert rows == [episode.keys[max(step - k, 0)] % capacity for k in range(older, -1, -1)]


def by_views(*arguments: Any) -> int:
    """Run the loop as CPython runs it: over memoryviews."""
    facts, places, episodes, completed, *numbers, found = arguments
    count, lag, stride, pad = numbers
    return windows.advance(facts.data, places.data, episodes.data, completed.data, count, lag, stride, pad, found.data)


ADVANCES: tuple[Advance, ...] = (by_views, windows.advance)


class Sequences:
    """From which rows sequences can be read, by how many rows of their episode are complete."""

    def __init__(self, twin: append_test.Twin, lag: int, stride: int, pad: bool) -> None:
        self.twin, self.lag, self.stride, self.pad = twin, lag, stride, pad
        self.known = self.readable()

    def readable(self) -> set[int]:
        """Return the keys of all rows, alive or not, from which a sequence could be read."""
        found = set()
        for episode in self.twin.episodes:
            complete = sum(map(self.twin.is_complete, episode.keys))
            for step, key in enumerate(episode.keys):
                enough = step + self.lag < complete or (self.pad and step == 0 < complete)
                if step % self.stride == 0 and enough:
                    found.add(key)
        return found

    def new(self) -> list[int]:
        """Return where the rows are that are alive, and that are in it since this was asked last."""
        before, self.known = self.known, self.readable()
        return sorted(key % self.twin.settings.capacity for key in self.known - before if key in self.twin.alive())


def advanced(state: append_test.State, advance: Advance, lag: int, stride: int, pad: bool) -> list[int]:
    """Return where sequences can start since the last write."""
    count = int(state.num[append.COMPLETED])
    found = np.full(count, -1)
    num_found = advance(state.facts, state.places, state.episodes, state.completed, count, lag, stride, int(pad), found)
    assert (found[num_found:] == -1).all()
    return sorted(found[:num_found].tolist())


@pytest.mark.parametrize("advance", ADVANCES)
@hypothesis.given(
    strategies.integers(1, 14),
    strategies.integers(1, 4),
    strategies.integers(0, 5),
    strategies.integers(1, 4),
    strategies.booleans(),
    SEEDS,
)
def test_sequences_can_start_where_enough_rows_are_complete(
    advance: Advance, capacity: int, streams: int, lag: int, stride: int, pad: bool, seed: int
) -> None:
    """Each row is found once, with the write that makes it so, if it is still there."""
    settings = append_test.Settings(capacity, min(streams, capacity), -1, False, False)
    state, twin = append_test.State(settings, append_test.RUNS[seed % 3]), append_test.Twin(settings)
    sequences, rng = Sequences(twin, lag, stride, pad), np.random.default_rng(seed)
    for _ in range(25):
        kind = rng.choice(["one", "one", "round", "some", "run"])
        numbers, events, announced = append_test.rows_of(kind, settings, rng)
        if rng.random() < 0.7:
            events[:] = 0
        state.append(numbers, events, announced, 1.0)
        twin.append(numbers.tolist(), events.tolist(), announced, 1.0)
        assert advanced(state, advance, lag, stride, pad) == sequences.new()


@pytest.mark.parametrize("advance", ADVANCES)
@pytest.mark.parametrize("idle", range(12))
def test_of_three_streams_one_that_was_idle_and_is_lazy_goes_on(advance: Advance, idle: int) -> None:
    """In a ring of two windows of three steps; the row that its episode had come to may be gone, or all of its rows."""
    settings = append_test.Settings(6, 3, -1, False, False)
    state, twin = append_test.State(settings, append_test.by_views), append_test.Twin(settings)
    sequences = Sequences(twin, 2, 1, pad=False)
    writes = [0, 1, 2] * 3 + [0, 1] * idle + [2] * 5 + [0, 1, 2] * 4 + [2] * 6
    num_found = 0
    for stream in writes:
        for write in (state, twin):
            numbers: Any = np.array([stream]) if write is state else [stream]
            events: Any = np.zeros(1, np.uint8) if write is state else [0]
            write.append(numbers, events, int(stream != 2), 1.0)
        found = advanced(state, advance, 2, 1, pad=False)
        assert found == sequences.new()
        num_found += len(found)
    assert num_found > 5


@pytest.mark.parametrize("advance", ADVANCES)
def test_a_cursor_whose_slot_holds_another_row_is_not_followed(advance: Advance) -> None:
    """Of another episode, of no row, or of the same episode further on."""
    settings = append_test.Settings(4, 2, -1, False, False)
    for others in ([1], [1] * 3, [1] * 4, [1] * 7, [0] * 4, [0] * 7, [1, 0] * 4):
        state, twin = append_test.State(settings, append.append), append_test.Twin(settings)
        sequences = Sequences(twin, 1, 3, pad=True)
        for stream in [0, 0, 0, *others, 0, 0, 0, 0, 0, 0]:
            state.append(np.array([stream]), np.zeros(1, np.uint8), 1, 1.0)
            twin.append([stream], [0], 1, 1.0)
            assert advanced(state, advance, 1, 3, pad=True) == sequences.new()
