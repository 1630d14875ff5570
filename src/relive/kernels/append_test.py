"""Every way to write leaves the same bytes, and they are what lists of episodes say."""

from collections.abc import Sequence
import dataclasses
import importlib.util
import itertools
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from relive.common import arrays as arrays_lib
from relive.kernels import append
from relive.kernels import choice
from relive.samplers import anchors
from relive.windows import sequences
from relive.windows import transitions

KERNELS = [name for name in choice.NAMES if importlib.util.find_spec(name) is not None]
LOOP, MANY = "the loop of CPython", "numpy"
WRITERS = [LOOP, MANY]
ENDS = [append.TERMINATED, append.TRUNCATED, append.TERMINATED | append.TRUNCATED]
SEEDS = st.integers(0, 2**32)
STEPS = transitions.TransitionWindow()
"""Starts at every complete step."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a program of writes is about.

    Attributes:
        capacity: How many rows are alive at most.
        streams: How many streams there are.
        window: Where a window may start.
        num_changes: How many changes of eligibility can be noted; 0 if nobody asks.
        end: How likely an episode ends with a row, and is cut before one.
    """

    capacity: int
    streams: int
    window: Any = STEPS
    num_changes: int = 0
    end: float = 0.25


ANY_SETTINGS = st.builds(
    Settings,
    st.integers(1, 12),
    st.integers(1, 5),
    st.one_of(
        st.builds(transitions.TransitionWindow, frame_stack=st.integers(1, 4)),
        st.builds(sequences.SequenceWindow, st.integers(1, 6), stride=st.integers(1, 4), pad=st.booleans()),
    ),
    st.sampled_from([0, 2, 1000]),
    st.sampled_from([0.02, 0.25]),
)


class State:
    """All arrays of `kernels.append`, and what writes rows to them."""

    def __init__(self, settings: Settings, writer: str = LOOP) -> None:
        capacity, streams = settings.capacity, settings.streams
        rule = settings.window.rule
        room = 2 * capacity + streams  # As many as there may be, and those that a call wants to find free.
        self.settings, self.writer = settings, writer
        self.num = np.zeros(append.PAD + 1, np.int64)
        self.num[append.FREE], self.num[append.OLDER :] = room, rule
        self.flags, self.following = np.zeros(capacity, np.uint8), np.zeros(capacity, np.int32)
        self.places, self.back = np.zeros(capacity, np.int64), np.zeros(capacity if rule[0] else 0, np.int32)
        self.recent = np.full((streams, rule[1] + 2 if rule[1] > 0 else 0), -1)
        self.current, self.last, self.knows = np.zeros((3, streams), np.int64)
        self.last[:] = append.NONE
        self.episodes, self.free = np.zeros((append.OLDEST + 1, room), np.int64), np.arange(room)[::-1].copy()
        self.changed = np.zeros(settings.num_changes, np.int64)
        self.rows: append.Rows = (
            self.flags, self.following, self.places, self.back, self.recent, self.current, self.last, self.knows,
            self.episodes, self.free, self.changed, self.num,
        )  # fmt: skip

    def write(self, streams: Sequence[int], events: Sequence[int], announced: int) -> None:
        """Add a row to each of `streams`."""
        if self.writer == LOOP:
            append.append(append.views_of(self.rows), streams, bytes(events), announced)
        else:
            append.append_many(self.rows, np.array(streams, np.int64), bytes(events), announced)

    def mark(self, flag: int, keys: set[int], is_set: bool) -> None:
        """Set or clear a flag of rows, as buffers do between two writes."""
        slots = np.array(sorted(keys), np.int64) % self.settings.capacity
        anchors.Anchors(self.rows, lambda slots, fields=None: {}).set(flag, slots, is_set)

    def ask(self) -> None:
        """Take in what has changed, as a sampler does."""
        self.num[append.CHANGED] = 0
        self.flags &= np.uint8(0xFF ^ append.FRESH)

    def noted(self) -> list[int]:
        """Return what is noted as changed, as far as it fits."""
        return sorted(self.changed[: self.num[append.CHANGED]].tolist())

    def used(self) -> set[int]:
        """Return the numbers of the episodes that are not free."""
        free: list[int] = self.free[: self.num[append.FREE]].tolist()
        assert len({*free}) == len(free)
        return {*range(len(self.free))} - {*free}

    def contents(self) -> dict[str, Any]:
        """Return all that must be the same whatever wrote it: everything but the order of what is noted."""
        used = sorted(self.used())
        contents: dict[str, Any] = {"episodes": self.episodes[:, used].tolist(), "changed": self.noted()}
        if self.num[append.CHANGED] > len(self.changed):
            del contents["changed"]
        for name in ("flags", "following", "places", "back", "recent", "last", "knows", "num"):
            contents[name] = getattr(self, name).tolist()
        contents["current"] = self.current[self.last != append.NONE].tolist()
        return contents | {"free": self.free[: self.num[append.FREE]].tolist()}


@dataclasses.dataclass(eq=False)
class Episode:
    """An episode as a list of keys, those that are not alive any more too."""

    stream: int
    keys: list[int] = dataclasses.field(default_factory=list)
    end: int = append.OPEN
    knows: bool = False


class Twin:
    """The same in lists of episodes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.next_key = self.oldest_key = 0
        self.of: dict[int, tuple[Episode, int]] = {}
        self.open: dict[int, Episode] = {}
        self.with_flag: dict[int, set[int]] = {
            flag: set() for flag in (append.BARRED, append.SPENT, append.RATED, append.FRESH)
        }
        self.eligible: set[int] = set()
        self.noted: list[int] = []

    def write(self, streams: Sequence[int], events: Sequence[int], announced: int) -> None:
        """Add a row to each of `streams`."""
        self.oldest_key = max(self.oldest_key, self.next_key + len(streams) - self.settings.capacity)
        for stream, event in zip(streams, events, strict=True):
            if event & append.CUT and stream in self.open:
                self.open.pop(stream).end = append.TRUNCATED
            episode = self.open.setdefault(stream, Episode(stream))
            self.of[self.next_key] = episode, len(episode.keys)
            episode.keys.append(self.next_key)
            episode.knows = bool(announced)
            if event & (append.TERMINATED | append.TRUNCATED):
                episode.end = append.TERMINATED if event & append.TERMINATED else append.TRUNCATED
                del self.open[stream]
            self.next_key += 1
        self.settle()

    def mark(self, flag: int, keys: set[int], is_set: bool) -> None:
        """Set or clear a flag of rows."""
        self.with_flag[flag] = self.with_flag[flag] | keys if is_set else self.with_flag[flag] - keys
        self.settle()

    def settle(self) -> None:
        """Note which rows became or ceased to be eligible."""
        before, self.eligible = self.eligible, set(filter(self.is_eligible, self.alive()))
        if self.settings.num_changes:
            self.noted = sorted([*self.noted, *map(self.slot, before ^ self.eligible)])
            self.with_flag[append.FRESH] |= self.eligible - before - self.with_flag[append.RATED]

    def ask(self) -> None:
        """Take in what has changed, as a sampler does."""
        self.noted, self.with_flag[append.FRESH] = [], set()

    def slot(self, key: int) -> int:
        return key % self.settings.capacity

    def alive(self) -> range:
        return range(self.oldest_key, self.next_key)

    def next_of(self, key: int) -> int | None:
        episode, step = self.of[key]
        return episode.keys[step + 1] if step + 1 < len(episode.keys) else None

    def is_terminal(self, key: int) -> bool:
        return self.of[key][0].end == append.TERMINATED and self.next_of(key) is None

    def is_complete(self, key: int) -> bool:
        return self.next_of(key) is not None or self.of[key][0].knows or self.is_terminal(key)

    def is_readable(self, key: int) -> bool:
        """Return whether a window may start at a row, by what the classes of windows say."""
        (episode, step), window = self.of[key], self.settings.window
        complete = list(filter(self.is_complete, episode.keys))
        if isinstance(window, transitions.TransitionWindow):
            frames = episode.keys[max(step - window.frame_stack + 1, 0) : step]
            return key in complete and all(frame in self.alive() for frame in frames)
        starts = []
        for start in range(0, len(complete), window.stride):
            if window.pad or len(complete[start : start + window.length]) == window.length:
                starts.append(start)
            if complete[-1] in complete[start : start + window.length]:
                break
        return step in starts

    def is_eligible(self, key: int) -> bool:
        return self.is_readable(key) and not any(key in self.with_flag[flag] for flag in (append.BARRED, append.SPENT))

    def flags(self, key: int) -> int:
        """Return the flags of a row."""
        has = {flag: key in keys for flag, keys in self.with_flag.items()}
        has |= {append.READABLE: self.is_readable(key), append.COMPLETE: self.is_complete(key)}
        has |= {append.TERMINAL: self.is_terminal(key)}
        return sum(flag for flag, is_set in has.items() if is_set)


def assert_agrees(state: State, twin: Twin) -> None:
    """Compare all that the arrays say with what the lists say."""
    settings, num = state.settings, state.num.tolist()
    keys = {twin.slot(key): key for key in twin.alive()}
    assert (num[append.NEXT_KEY], num[append.ROWS]) == (twin.next_key, len(keys))
    assert (num[append.CLEARED], *num[append.OLDER :]) == (0, *settings.window.rule)
    assert num[append.ELIGIBLE] == len(twin.eligible)
    assert num[append.CHANGED] == len(twin.noted)
    if num[append.CHANGED] <= settings.num_changes:
        assert state.noted() == twin.noted
    assert {*state.noted()} <= {*twin.noted}
    expected = [twin.flags(keys[slot]) if slot in keys else 0 for slot in range(settings.capacity)]
    assert state.flags.tolist() == expected
    numbers = {}
    for slot, key in keys.items():
        following, (episode, step) = twin.next_of(key), twin.of[key]
        numbers[episode] = number = int(state.places[slot]) >> append.EPISODE
        assert state.places[slot] & append.STEP == step
        assert state.following[slot] == (-1 if following is None else twin.slot(following))
        if len(state.back):
            assert state.episodes[append.OLDEST, number] == twin.slot(min(set(episode.keys) & set(twin.alive())))
        if len(state.back) and (not step or episode.keys[step - 1] in twin.alive()):
            assert state.back[slot] == (twin.slot(episode.keys[step - 1]) if step else -1)
    width = state.recent.shape[1]
    for stream in range(settings.streams):
        if stream not in twin.open:
            assert (state.last[stream], state.knows[stream]) == (append.NONE, 0)
            continue
        episode, number = twin.open[stream], int(state.current[stream])
        newest = episode.keys[-1]
        assert numbers.setdefault(episode, number) == number
        assert state.knows[stream] == episode.knows
        assert state.last[stream] == (twin.slot(newest) if newest in twin.alive() else append.GONE)
        if newest not in twin.alive():
            assert state.episodes[append.LENGTH, number] == len(episode.keys)
            assert state.episodes[append.OLDEST, number] == -1 or not len(state.back)
        for step in range(max(len(episode.keys) - width, 0), len(episode.keys)) if width else ():
            assert state.recent[stream, step % width] == episode.keys[step]
    assert sorted(numbers.values()) == sorted(state.used()), "each of them has a number, and no other is used"
    for episode, number in numbers.items():
        found = state.episodes[:, number].tolist()
        assert found[: append.FIRST_KEY + 1] == [episode.stream, episode.keys[0]]
        assert found[append.END] == episode.end
        if episode.end != append.OPEN:
            assert found[append.LENGTH : append.KNOWN + 1] == [len(episode.keys), episode.end, episode.knows]


class Program:
    """The same calls for the twin and for some states, which are compared after each."""

    def __init__(self, settings: Settings, writers: Sequence[str] = WRITERS) -> None:
        self.twin, self.states = Twin(settings), [State(settings, writer) for writer in writers]

    def do(self, call: str, *arguments: Any) -> None:
        for each in (self.twin, *self.states):
            getattr(each, call)(*arguments)
        for state in self.states:
            assert_agrees(state, self.twin)
            assert state.contents() == self.states[0].contents()


def any_write(kind: str, settings: Settings, rng: np.random.Generator) -> tuple[list[int], list[int], int]:
    """Return streams, events, and whether the observations after the rows are known."""
    announced = int(rng.random() < 0.6)
    if kind == "run":
        count = 1 + int(settings.capacity * rng.random() ** 2)
        streams = np.full(count, rng.integers(settings.streams))
    else:
        most = min(settings.streams, settings.capacity)
        count = {"one": 1, "round": most}.get(kind, int(rng.integers(1, most + 1)))
        streams = np.arange(count) if kind == "round" else rng.permutation(settings.streams)[:count]
    ends = rng.choice(ENDS, count) * (rng.random(count) < settings.end)
    cuts = append.CUT * (rng.random(count) < settings.end)
    if kind == "run":
        ends[:-1] = cuts[1:] = 0
    return streams.tolist(), (ends | cuts).tolist(), announced


@hypothesis.given(
    ANY_SETTINGS,
    SEEDS,
    st.lists(
        st.sampled_from(["one", "one", "round", "round", "some", "run", "bar", "unbar", "spend", "rate", "ask"]),
        min_size=12,
        max_size=40,
    ),
)
@hypothesis.settings(max_examples=2 * hypothesis.settings().max_examples, deadline=None)
def test_all_write_the_same_bytes_and_what_naive_lists_say(settings: Settings, seed: int, calls: list[str]) -> None:
    rng, program = np.random.default_rng(seed), Program(settings)
    changes = {"bar": (append.BARRED, True), "unbar": (append.BARRED, False), "spend": (append.SPENT, True)}
    changes["rate"] = (append.RATED, True)
    for call in calls:
        if call in changes:
            flag, is_set = changes[call]
            program.do("mark", flag, {key for key in program.twin.alive() if rng.random() < 0.4}, is_set)
        elif call == "ask":
            program.do("ask")
        else:
            program.do("write", *any_write(call, settings, rng))


@pytest.mark.parametrize("writer", WRITERS)
def test_an_episode_whose_newest_row_went_goes_on_where_it_was(writer: str) -> None:
    """Stream 0 is lazy and waits, while stream 1 fills the ring of two rows."""
    program = Program(Settings(2, 2, transitions.TransitionWindow(frame_stack=2), 9), [writer])
    for stream in (0, 1, 1, 0, 0):
        program.do("write", [stream], [0], 0)
    (state,) = program.states
    assert (state.places & append.STEP).tolist() == [2, 1]
    assert not state.flags[1] & append.READABLE, "the frame before it went"


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("idle", range(12))
def test_of_three_streams_one_that_was_idle_and_is_lazy_goes_on(writer: str, idle: int) -> None:
    """In a ring of two windows of three steps; its episode may have lost the start of its next window, or all."""
    program = Program(Settings(6, 3, sequences.SequenceWindow(3), 99), [writer])
    for stream in [0, 1, 2] * 3 + [0, 1] * idle + [2] * 5 + [0, 1, 2] * 4 + [2] * 6:
        program.do("write", [stream], [0], int(stream != 2))
    assert len(program.twin.noted) > 10


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("length", range(1, 7))
def test_runs_go_on_from_a_row_that_is_complete_or_not(writer: str, length: int) -> None:
    program = Program(Settings(9, 1, sequences.SequenceWindow(length), 999), [writer])
    for announced, count in [*itertools.product((0, 1), range(1, 6)), *itertools.product(range(2), (4, 2, 3))] * 2:
        program.do("write", [0] * count, [0] * count, announced)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_run_as_long_as_the_ring_takes_the_place_of_all(writer: str) -> None:
    program = Program(Settings(5, 1, transitions.TransitionWindow(frame_stack=4), 99), [writer])
    for count in (3, 5, 5):
        program.do("write", [0] * count, [0] * count, 1)
    assert program.states[0].num[append.ELIGIBLE] == 2, "of the other three a frame went with the rows before"


def test_keys_are_those_of_a_division() -> None:
    """At every place of the ring, full or not, for slots of any shape."""
    for capacity in (1, 2, 3, 7):
        for next_key in range(3 * capacity + 1):
            for rows in range(min(capacity, next_key) + 1):
                num = np.array([next_key, rows])
                keys: arrays_lib.Keys = np.arange(next_key - rows, next_key)
                slots = keys % capacity
                for shape in ((rows,), (1, rows), (rows, 1)):
                    assert np.array_equal(append.keys_of(num, slots.reshape(shape), capacity), keys.reshape(shape))
                run = append.run_from(next_key - rows, rows, capacity)
                assert append.as_slots(run, rows).tolist() == slots.tolist()
                assert append.slots_from(next_key - rows, rows, capacity).tolist() == slots.tolist()


def test_flags_are_eligible_if_readable_is_set_alone() -> None:
    every = np.arange(256, dtype=np.uint8)
    expected = [bool(each & append.READABLE) and not each & (append.BARRED | append.SPENT) for each in range(256)]
    assert [*append.are_eligible(every)] == expected
