"""The loop and the calls of numpy write the same bytes, and what they write is what lists of episodes say."""

from collections.abc import Callable
import dataclasses
from typing import Any, TypeAlias

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

from relive.common import arrays
from relive.kernels import append
from relive.samplers import anchors

MOST_ROWS = 12
Append: TypeAlias = Callable[..., None]


@dataclasses.dataclass
class Settings:
    """What a program of writes is about.

    Attributes:
        capacity: How many rows are alive at most.
        streams: How many streams there are.
        older: How many frames before its own a row is read with.
        is_rated: Whether there are priorities.
        is_tracked: Whether somebody asks what has changed.
    """

    capacity: int
    streams: int
    older: int
    is_rated: bool
    is_tracked: bool


class State:
    """The flat arrays, and how one of the functions adds rows to them."""

    def __init__(self, settings: Settings, run: Append) -> None:
        capacity, streams = settings.capacity, settings.streams
        room = 2 * capacity + streams  # As many as there may be, and those that a call wants to find free.
        self.settings, self.run = settings, run
        self.facts, self.places = np.zeros((2, capacity), np.int64)
        self.back: Any = np.zeros(capacity if settings.older > 0 else 0, np.int32)
        self.current, self.knows = np.zeros((2, streams), np.int64)
        self.last = np.full(streams, append.NONE)
        self.episodes = np.zeros((append.CURSOR + 1, room), np.int64)
        self.free = np.arange(room)[::-1].copy()
        self.num = np.zeros(8, np.int64)
        self.num[append.FREE] = room
        self.raw, self.leaves = np.zeros((2, capacity if settings.is_rated else 0))
        self.changed = np.zeros(8 * capacity if settings.is_tracked else 0, np.int64)
        self.completed = np.zeros(2 * capacity if settings.older < 0 else 0, np.int64)
        self.anchors = anchors.Anchors(self.facts, self.num, lambda slots, fields=None: {})

    def append(self, numbers: arrays.Ints, events: Any, announced: int, top: float) -> None:
        """Add rows; what is said of this write alone begins anew."""
        self.num[[append.CHANGED, append.COMPLETED]] = 0
        self.run(
            self.facts, self.places, self.back, self.current, self.last, self.knows, self.episodes, self.free,
            self.num, numbers, events, announced, self.settings.older, self.raw, self.leaves, self.changed,
            self.completed, top, top / 2,
        )  # fmt: skip

    def weigh(self) -> None:
        """Weigh the rows that became eligible and were rated before."""
        if self.num[append.UNWEIGHED]:
            self.num[append.UNWEIGHED] = 0
            eligible = self.anchors.slots()
            self.leaves[eligible] = self.raw[eligible] / 2

    def bar(self, slots: arrays.Ints, is_barred: bool) -> None:
        """Let a user say no to `slots`, or yes."""
        change = self.anchors.set if is_barred else self.anchors.unset
        entered, left = change(append.BARRED, slots)
        if len(self.raw):
            new = entered[~self.anchors.has(append.RATED, entered)]
            self.raw[new] = 0.25
            self.facts[entered] |= append.RATED
            self.leaves[entered] = self.raw[entered] / 2
            self.leaves[left] = 0.0

    def rate(self, slots: arrays.Ints, priority: float) -> None:
        """Give `slots` a priority."""
        self.facts[slots] |= append.RATED
        self.raw[slots] = priority
        self.leaves[slots] = np.where(self.anchors.is_eligible(slots), priority / 2, 0.0)

    def alive_slots(self) -> arrays.Ints:
        """Return where the rows are, oldest first."""
        next_key, rows = self.num[append.NEXT_KEY], self.num[append.ROWS]
        return np.arange(next_key - rows, next_key) % self.settings.capacity

    def used(self) -> arrays.Ints:
        """Return the numbers of the episodes that are open or have a row."""
        return np.union1d(self.places[self.alive_slots()] >> append.EPISODE, self.current[self.last != append.NONE])

    def contents(self) -> dict[str, Any]:
        """Return all that must be the same whichever function wrote it."""
        used = self.used()
        counts = self.num.copy()
        counts[[append.CHANGED, append.COMPLETED]] = 0
        contents: dict[str, Any] = {f"episodes {k}": array[used].tolist() for k, array in enumerate(self.episodes)}
        for name in ("facts", "places", "back", "last", "knows", "raw", "leaves"):
            contents[name] = getattr(self, name).tolist()
        contents["current"] = self.current[self.last != append.NONE].tolist()
        contents |= {"free": self.free[: self.num[append.FREE]].tolist(), "num": counts.tolist()}
        return contents | {"completed": {*self.completed_slots()}}

    def what_changed(self) -> set[int]:
        """Return the slots that the last write says have changed."""
        return {*self.changed[: self.num[append.CHANGED]].tolist()}

    def completed_slots(self) -> list[int]:
        """Return the rows that the last write says are complete now."""
        slots: list[int] = self.completed[: self.num[append.COMPLETED]].tolist()
        return slots


def by_views(*arguments: Any) -> None:
    """Run the loop as CPython runs it: over memoryviews, lists and bytes."""

    def view(argument: Any) -> Any:
        if isinstance(argument, tuple):
            return tuple(map(view, argument))
        return argument.data if isinstance(argument, np.ndarray) else argument

    viewed = [*map(view, arguments)]
    viewed[9:11] = viewed[9].tolist(), bytes(viewed[10])
    loop: Append = append.append
    loop(*viewed)


RUNS: tuple[Append, ...] = (by_views, append.append, append.append_many)


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
        self.episodes: list[Episode] = []
        self.open: dict[int, Episode] = {}
        self.barred: set[int] = set()
        self.raw: dict[int, float] = {}
        self.completed: set[int] = set()

    def append(self, numbers: list[int], events: list[int], announced: int, top: float) -> None:
        """Add rows."""
        before = {key for key in self.alive() if self.is_complete(key)}
        self.oldest_key = max(self.oldest_key, self.next_key + len(numbers) - self.settings.capacity)
        for stream, event in zip(numbers, events, strict=True):
            if event & append.CUT and stream in self.open:
                self.open.pop(stream).end = append.TRUNCATED
            if stream not in self.open:
                self.open[stream] = Episode(stream)
                self.episodes.append(self.open[stream])
            episode = self.open[stream]
            episode.keys.append(self.next_key)
            episode.knows = bool(announced)
            if event & (append.TERMINATED | append.TRUNCATED):
                episode.end = append.TERMINATED if event & append.TERMINATED else append.TRUNCATED
                del self.open[stream]
            self.next_key += 1
        self.completed = {key for key in self.alive() if self.is_complete(key)} - before
        self.rate_new(top)

    def rate_new(self, top: float) -> None:
        """Give what is eligible now and was never rated its first priority."""
        for key in self.alive():
            if self.settings.is_rated and self.is_eligible(key):
                self.raw.setdefault(key, top)

    def alive(self) -> range:
        return range(self.oldest_key, self.next_key)

    def of(self, key: int) -> tuple[Episode, int]:
        """Return the episode of a row, and how many of its steps came before."""
        return next((episode, episode.keys.index(key)) for episode in self.episodes if key in episode.keys)

    def next_of(self, key: int) -> int | None:
        episode, step = self.of(key)
        return episode.keys[step + 1] if step + 1 < len(episode.keys) else None

    def is_terminal(self, key: int) -> bool:
        episode, step = self.of(key)
        return episode.end == append.TERMINATED and step == len(episode.keys) - 1

    def is_complete(self, key: int) -> bool:
        return self.next_of(key) is not None or self.of(key)[0].knows or self.is_terminal(key)

    def is_readable(self, key: int) -> bool:
        episode, step = self.of(key)
        older = self.settings.older
        frames = episode.keys[max(step - older, 0) : step]
        return older >= 0 and self.is_complete(key) and all(frame in self.alive() for frame in frames)

    def is_eligible(self, key: int) -> bool:
        return self.is_readable(key) and key not in self.barred


def assert_agrees(state: State, twin: Twin) -> None:
    """Compare all that the arrays say with what the lists say."""
    capacity = state.settings.capacity
    keys = {key % capacity: key for key in twin.alive()}
    assert (state.num[append.NEXT_KEY], state.num[append.ROWS]) == (twin.next_key, len(keys))
    for slot in range(capacity):
        fact, key = int(state.facts[slot]), keys.get(slot)
        if key is None:
            assert fact == 0
            continue
        following, (episode, step) = twin.next_of(key), twin.of(key)
        number = state.places[slot] >> append.EPISODE
        assert fact >> append.LINK == (-1 if following is None else following % capacity)
        assert bool(fact & append.COMPLETE) == twin.is_complete(key)
        assert bool(fact & append.TERMINAL) == twin.is_terminal(key)
        assert bool(fact & append.READABLE) == twin.is_readable(key)
        assert bool(fact & append.BARRED) == (key in twin.barred)
        assert not fact & append.SPENT
        assert state.places[slot] & append.STEP == step
        assert state.episodes[append.STREAM][number] == episode.stream
        assert state.episodes[append.FIRST_KEY][number] == episode.keys[0]
        assert state.episodes[append.END][number] == episode.end
        assert keys[state.episodes[append.OLDEST][number].item()] == min(
            each for each in episode.keys if each in keys.values()
        )
        if episode.end != append.OPEN:
            assert state.episodes[append.LENGTH][number] == len(episode.keys)
            assert state.episodes[append.KNOWN][number] == episode.knows
        if len(state.back) and (not step or episode.keys[step - 1] in twin.alive()):
            assert state.back[slot] == (episode.keys[step - 1] % capacity if step else -1)
        if len(state.raw):
            assert bool(fact & append.RATED) == (key in twin.raw)
            assert key not in twin.raw or state.raw[slot] == twin.raw[key]
    if len(state.leaves):
        weights = {key % capacity: twin.raw[key] / 2 for key in twin.alive() if twin.is_eligible(key)}
        assert state.leaves.tolist() == [weights.get(slot, 0.0) for slot in range(capacity)]
    numbers_of = {twin.of(key)[0].keys[0]: state.places[key % capacity] >> append.EPISODE for key in twin.alive()}
    assert len({*numbers_of.values()}) == len(numbers_of)
    for stream in range(state.settings.streams):
        episode_now = twin.open.get(stream)
        if episode_now is None:
            assert (state.last[stream], state.knows[stream]) == (append.NONE, 0)
        else:
            number, newest = state.current[stream], episode_now.keys[-1]
            assert number == numbers_of.get(episode_now.keys[0], number)
            assert state.knows[stream] == episode_now.knows
            assert state.last[stream] == (newest % capacity if newest in twin.alive() else append.GONE)
            if newest not in twin.alive():
                assert state.episodes[append.LENGTH][number] == len(episode_now.keys)
    free = state.free[: state.num[append.FREE]]
    assert sorted(free.tolist()) == np.setdiff1d(np.arange(len(state.free)), state.used()).tolist()
    assert state.num[append.ELIGIBLE] == sum(map(twin.is_eligible, twin.alive()))


def assert_reported(state: State, before: dict[int, int], twin: Twin) -> None:
    """Compare what a write says has changed with what has."""
    capacity = state.settings.capacity
    after = {key % capacity: key for key in twin.alive() if twin.is_eligible(key)}
    changed = {slot for slot in range(capacity) if before.get(slot) != after.get(slot)}
    if len(state.changed):
        assert changed <= state.what_changed()
    if state.settings.older < 0:
        completed = state.completed_slots()
        assert sorted(completed) == sorted(key % capacity for key in twin.completed)
        places = [state.places[slot] for slot in completed]
        for episode in {place >> append.EPISODE for place in places}:
            steps = [place & append.STEP for place in places if place >> append.EPISODE == episode]
            assert steps == sorted(steps), "of an episode they are in time order"


@strategies.composite
def programs(draw: Any) -> tuple[Settings, int, list[str]]:
    """Return settings, a seed, and what happens one after the other."""
    capacity = draw(strategies.integers(1, MOST_ROWS))
    older = draw(strategies.sampled_from([-1, 0, 1, 3]))
    settings = Settings(
        capacity,
        draw(strategies.integers(1, min(capacity, 5))),
        older,
        older >= 0 and draw(strategies.booleans()),
        draw(strategies.booleans()),
    )
    steps = strategies.lists(
        strategies.sampled_from(["one", "one", "round", "round", "some", "run", "bar", "admit", "rate"]), max_size=25
    )
    return settings, draw(strategies.integers(0, 2**32)), draw(steps)


def rows_of(kind: str, settings: Settings, rng: np.random.Generator) -> tuple[arrays.Ints, Any, int]:
    """Return streams, events, and whether the observations after the rows are known."""
    announced = int(rng.random() < 0.6)
    if kind == "run":
        numbers = np.full(rng.integers(1, settings.capacity + 1), rng.integers(settings.streams))
    else:
        count = {"one": 1, "round": settings.streams}.get(kind, rng.integers(1, settings.streams + 1))
        numbers = np.arange(count) if kind == "round" else rng.permutation(settings.streams)[:count]
    ends = [0, 0, 0, append.TERMINATED, append.TRUNCATED if announced else append.TERMINATED]
    events = rng.choice(ends, len(numbers)).astype(np.uint8)
    cuts = np.where(rng.random(len(numbers)) < 0.2, append.CUT, 0).astype(np.uint8)
    if kind == "run":
        events[:-1], cuts[1:] = 0, 0
    return numbers.astype(np.int64), events | cuts, announced


@hypothesis.given(programs())
@hypothesis.settings(max_examples=2 * hypothesis.settings().max_examples, deadline=None)
def test_all_write_the_same_bytes_and_what_naive_lists_say(program: tuple[Settings, int, list[str]]) -> None:
    settings, seed, steps = program
    rng = np.random.default_rng(seed)
    states, twin = [State(settings, run) for run in RUNS], Twin(settings)
    for step in steps:
        if step in ("bar", "admit", "rate"):
            slots = states[0].alive_slots()
            slots = slots[rng.random(len(slots)) < 0.4]
            keys = {key for key in twin.alive() if key % settings.capacity in slots}
            priority = float(rng.integers(9))
            if step == "rate":
                if settings.is_rated:
                    twin.raw |= dict.fromkeys(keys, priority)
                    for state in states:
                        state.rate(slots, priority)
                continue
            twin.barred = twin.barred | keys if step == "bar" else twin.barred - keys
            twin.rate_new(0.25)
            for state in states:
                state.bar(slots, step == "bar")
        else:
            numbers, events, announced = rows_of(step, settings, rng)
            top = float(rng.integers(1, 9))
            before = {key % settings.capacity: key for key in twin.alive() if twin.is_eligible(key)}
            twin.append(numbers.tolist(), events.tolist(), announced, top)
            for state in states:
                state.append(numbers, events, announced, top)
                assert_reported(state, before, twin)
            contents = [state.contents() for state in states]
            assert contents[0] == contents[1] == contents[2]
            changed = [state.what_changed() for state in states]
            assert changed[0] == changed[1] <= changed[2]
            # Of rows that lose a frame, numpy also names those that could not be drawn before.
            assert settings.older > 0 or changed[1] == changed[2]
            for state in states:
                state.weigh()
        for state in states:
            assert_agrees(state, twin)


@pytest.mark.parametrize("run", RUNS)
def test_an_episode_whose_newest_row_went_goes_on_where_it_was(run: Append) -> None:
    """Stream 0 is lazy and waits, while stream 1 fills the ring of two rows."""
    state, twin = State(Settings(2, 2, 1, False, True), run), Twin(Settings(2, 2, 1, False, True))
    for stream in (0, 1, 1, 0, 0):
        before = {key % 2: key for key in twin.alive() if twin.is_eligible(key)}
        state.append(np.array([stream]), np.zeros(1, np.uint8), 0, 1.0)
        twin.append([stream], [0], 0, 1.0)
        assert_reported(state, before, twin)
        assert_agrees(state, twin)
    assert (state.places & append.STEP).tolist() == [2, 1]
    assert not state.facts[1] & append.READABLE, "the frame before it went"


@pytest.mark.parametrize("run", RUNS)
def test_a_run_as_long_as_the_ring_takes_the_place_of_all(run: Append) -> None:
    settings = Settings(5, 1, 3, True, True)
    state, twin = State(settings, run), Twin(settings)
    for count in (3, 5, 5):
        before = {key % 5: key for key in twin.alive() if twin.is_eligible(key)}
        state.append(np.zeros(count, np.int64), np.zeros(count, np.uint8), 1, 1.0)
        twin.append([0] * count, [0] * count, 1, 1.0)
        assert_reported(state, before, twin)
        assert_agrees(state, twin)
    assert state.num[append.ELIGIBLE] == 2  # Of the other three a frame went with the rows before.
