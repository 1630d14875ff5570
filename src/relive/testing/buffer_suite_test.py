"""The suite passes for correct classes, and fails for broken ones."""

from collections.abc import Callable, Collection
import contextlib
import dataclasses
import functools
import tracemalloc
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import trees
from relive.kernels import append
from relive.schema import encoding
from relive.storage import memory as storages
from relive.storage import memory_test
from relive.storage import splices
from relive.storage import step_table
from relive.storage import steps
from relive.testing import buffer_suite
from relive.testing import sampler_suite_test

Buffer: TypeAlias = relive.ColumnReplayBuffer[Any]
Make: TypeAlias = Callable[[int, int, int], Buffer]
SUITE = buffer_suite.BufferTests


def suite(make: Make, gamma: float = 0.99) -> buffer_suite.BufferTests:
    """Return the suite of the buffers that `make` makes."""

    class Suite(buffer_suite.BufferTests):
        def make(self, capacity: int, streams: int, seed: int) -> Buffer:
            return make(capacity, streams, seed)

    Suite.gamma = gamma
    return Suite()


def of(kind: Callable[..., Buffer], *, sampler: Any = None, storage: Any = None, **settings: Any) -> Make:
    """Return what makes buffers of a kind with those settings, and with new samplers and storages of those classes."""

    def make(capacity: int, streams: int, seed: int) -> Buffer:
        parts = {} if sampler is None else {"sampler": sampler()}
        parts |= {} if storage is None else {"storage": storage(SUITE.schema, capacity)}
        return kind(capacity, streams=streams, seed=seed, **parts, **settings)

    return make


RING = suite(of(relive.RingReplayBuffer))
WHOLE = {
    "stacks padded with the first": suite(
        of(relive.RingReplayBuffer, schema=SUITE.schema, n_step=2, gamma=0.5, frame_stack=4, stack_padding="first"), 0.5
    ),
    "prioritized": suite(of(relive.PrioritizedReplayBuffer)),
    "sequences padded": suite(of(relive.SequenceReplayBuffer, length=5, stride=2, burn_in=2, pad=True)),
    "sequences prioritized": suite(of(relive.SequenceReplayBuffer, length=3, prioritized=True)),
    "over another storage": suite(of(relive.RingReplayBuffer, n_step=2, storage=memory_test.ListStorage)),
    "draws some": suite(of(relive.RingReplayBuffer, sampler=sampler_suite_test.Even)),
}
WHOLE_LONG = {
    "ring": RING,
    "three steps": suite(of(relive.RingReplayBuffer, n_step=3, gamma=0.5), 0.5),
    "stacks": suite(of(relive.RingReplayBuffer, frame_stack=3)),
    "sequences": suite(of(relive.SequenceReplayBuffer, length=8)),
}
TESTS = [name for name in vars(SUITE) if name.startswith("test_")]


@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize(
    "tests",
    [*WHOLE.values(), *(pytest.param(each, marks=pytest.mark.long) for each in WHOLE_LONG.values())],
    ids=[*WHOLE, *WHOLE_LONG],
)
def test_a_correct_buffer_passes(tests: buffer_suite.BufferTests, test: str) -> None:
    getattr(tests, test)()


# Broken ones.


class Ring(relive.RingReplayBuffer):
    """A buffer to break in one way at a time."""

    def __init__(self, capacity: int, streams: int, seed: int | None = None) -> None:
        super().__init__(capacity, streams=streams, seed=seed)


def ring_with(**members: Any) -> Make:
    """Return a class of rings that have those members instead of their own."""
    return type("Broken", (Ring,), members)


class Prioritized(relive.PrioritizedReplayBuffer):
    def __init__(self, capacity: int, streams: int, seed: int) -> None:
        super().__init__(capacity, streams=streams, seed=seed)


def with_batches(window: Any, change: Callable[[steps.StepStore, Any, Any], Any]) -> Make:
    """Return what makes buffers whose window changes a batch, given the store, the slots and the batch."""

    def read(self: Any, store: steps.StepStore, slots: Any, probabilities: Any, weights: Any) -> Any:
        return change(store, slots, window._read(store, slots, probabilities, weights))

    broken: Any = type("Broken", (type(window),), {"_read": read})
    return of(relive.ColumnReplayBuffer, window=broken(**vars(window)))


def go_on_in_the_ring(store: steps.StepStore, slots: Any, batch: Any) -> Any:
    """Take the row in the next slot for the next observation."""
    columns = store.reader.observations((slots + batch.steps) % store.capacity)
    return dataclasses.replace(batch, next_observation=trees.nested("observation", columns))


def go_on_in_the_ring_for_a_sequence(store: steps.StepStore, slots: Any, batch: Any) -> Any:
    rows = (slots[:, np.newaxis] + np.arange(batch.mask.shape[1] + 1)) % store.capacity
    return dataclasses.replace(batch, observation=store.reader.observations(rows)["observation"])


def blank_the_first(store: steps.StepStore, slots: Any, batch: Any) -> Any:
    """Return zeros for the first observation of an episode, as if it were padding."""
    batch.observation[store.steps_of(slots) == 0] = 0
    return batch


def stop_early(store: steps.StepStore, slots: Any, batch: Any) -> Any:
    """Return a window of one step where there are two."""
    first = relive.TransitionWindow()._read(store, slots[:1], batch.probabilities[:1], batch.weights[:1])
    for name in ("reward", "next_observation", "next_discount", "is_terminal", "steps"):
        getattr(batch, name)[:1] = getattr(first, name)
    return batch


def spoils(name: str) -> Callable[[steps.StepStore, Any, Any], Any]:
    return lambda store, slots, batch: spoiled(batch, name)


def changes(change: Callable[[Any], dict[str, Any]]) -> Callable[[steps.StepStore, Any, Any], Any]:
    return lambda store, slots, batch: dataclasses.replace(batch, **change(batch))


def tells(change: Callable[[Any], dict[str, Any]]) -> Make:
    """Return a class of rings whose statistics are changed."""
    return ring_with(get_stats=lambda self: dataclasses.replace(stats := Ring.get_stats(self), **change(stats)))


def readable_by(window: Any, is_readable: Callable[[steps.StepStore, Any], Any]) -> Make:
    """Return buffers that let all those steps be drawn."""

    class Lenient(relive.ColumnReplayBuffer[Any]):
        def __init__(self, capacity: int, streams: int, seed: int | None) -> None:
            super().__init__(capacity, window=window, streams=streams, seed=seed)
            store: Any = self._store
            store.is_readable = lambda slots: is_readable(store, slots)

        def _append(self, steps: encoding.Steps) -> Any:
            written = super()._append(steps)
            slots = self._store.alive_slots()
            self._draws.anchors.set(append.READABLE, slots[self._store.is_readable(slots)])
            return written

    return Lenient


def spoiled(batch: Any, name: str) -> Any:
    """Return the batch with another value in the last row of that array."""
    column = (batch.extras[name] if name == "checksum" else getattr(batch, name)).copy()
    column[-1] = ~column[-1] if column.dtype == np.bool_ else column[-1] + 1
    if name == "checksum":
        batch.extras[name] = column
    else:
        setattr(batch, name, column)
    return batch


class NeverReadable(relive.TransitionWindow):
    @property
    def rule(self) -> step_table.Rule:
        return step_table.Rule(lag=10_000)


class IsSure(relive.UniformSampler):
    """Returns invalid probabilities from `probabilities`, but not from a draw."""

    def probabilities(self, slots: arrays_lib.Slots) -> arrays_lib.Floats:
        return np.full(len(slots), 2.0)


class DrawsFromNumpy(relive.UniformSampler):
    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        np.random.random()  # noqa: NPY002
        return super()._draw(size, rng)


class TrustsEverySuccessor(Ring):
    def add(self, *step: Any, **named: Any) -> int:
        with self.trusting():
            return super().add(*step, **named)

    def extend(self, *steps: Any, **named: Any) -> Any:
        with self.trusting():
            return super().extend(*steps, **named)

    def trusting(self) -> Any:
        return mock.patch.object(splices, "with_cuts", lambda table, finals, steps, compared: (steps.events, 0))


class IsCorrupt(Ring):
    def check(self) -> None:
        if len(self) > 5:
            raise errors.CorruptionError("something is wrong")


class CountsAnew(Ring):
    def clear(self) -> None:
        super().clear()
        self._store.num[append.NEXT_KEY] = 0


def evict_all(buffer: relive.ColumnReplayBuffer[Any]) -> None:
    """Evict every row, and leave the episodes open."""
    kept = buffer._store.rows_state().without_rows()
    relive.ColumnReplayBuffer.clear(buffer)
    buffer._store.load_state_dict(kept)


class KeepsEpisodesOpenAndSaysNothing(relive.SequenceReplayBuffer):
    def __init__(self, capacity: int, streams: int, seed: int) -> None:
        super().__init__(capacity, length=2, streams=streams, seed=seed)

    def clear(self) -> None:
        evict_all(self)

    def get_stats(self) -> relive.ColumnBufferStats:
        return dataclasses.replace(super().get_stats(), open_episodes=0)


class KeepsAnchors(Ring):
    def clear(self) -> None:
        num_eligible = self.num_eligible
        super().clear()
        self._store.num[append.ELIGIBLE] = num_eligible


class Hoards(Ring):
    def add_episode(self, *arguments: Any, **named: Any) -> Any:
        self.hoard = [*getattr(self, "hoard", []), np.array(named["rewards"])]
        return super().add_episode(*arguments, **named)


class CountsBeforeItDraws(Ring):
    def sample(self, batch_size: int, **options: Any) -> Any:
        self._draws.sampled += batch_size
        batch = super().sample(batch_size, **options)
        self._draws.sampled -= batch_size
        return batch


class HidesTheIneligible(Ring):
    """Makes them ineligible, and draws them."""

    def set_eligible(self, keys: Any, eligible: bool) -> int:
        self.hidden = np.zeros(0, np.int64) if eligible else keys
        return len(keys)

    def eligible_keys(self) -> Any:
        return np.setdiff1d(super().eligible_keys(), getattr(self, "hidden", []))


class CountsBeforeItChecks(Ring):
    def add(self, *arguments: Any, **named: Any) -> int:
        self._draws.stale_keys += 1
        key = super().add(*arguments, **named)
        self._draws.stale_keys -= 1
        return key


class TakesWhatItCan(Prioritized):
    def update_priorities(self, keys: Any, priorities: Any) -> int:
        take = super().update_priorities
        return sum(take([key], [priority]) for key, priority in zip(keys, priorities, strict=True))


class WritesBeforeItChecks(Ring):
    def add(self, *arguments: Any, **named: Any) -> int:
        if not self.num_eligible:
            return super().add(*arguments, **named)
        storage, slot = self._store.storage, self.eligible_keys()[-1:] % self.capacity
        before = storage.read(slot)
        storage.write(slot, before | {"reward": before["reward"] + 1})
        key = super().add(*arguments, **named)
        storage.write(slot, before)
        return key


def that_refuses_nothing(method: str) -> Make:
    def make(capacity: int, streams: int, seed: int) -> Buffer:
        buffer = Prioritized(capacity, streams, seed)
        call = getattr(buffer, method)

        def take(*arguments: Any, **named: Any) -> Any:
            with contextlib.suppress(errors.ArgumentError):
                return call(*arguments, **named)

        setattr(buffer, method, functools.wraps(call)(take))
        return buffer

    return make


class BelievesTheFirst(Ring):
    """Takes the schema of a step that it refuses then."""

    def add(self, *arguments: Any, **named: Any) -> int:
        if not self._store.has_begun:
            self._store.begin(relive.ColumnStorage(SUITE.schema, self.capacity))
        return super().add(*arguments, **named)


class SeesSlots(Ring):
    """Ignores the key, and uses whatever is in its slot."""

    def set_eligible(self, keys: Any, eligible: bool) -> int:
        slots = np.unique(np.asarray(keys) % self.capacity)
        self._draws.set_barred(slots, not eligible)
        return super().set_eligible(keys, eligible)


class WritesLatePriorities(Prioritized):
    def update_priorities(self, keys: Any, priorities: Any) -> int:
        slots = np.asarray(keys) % self.capacity
        super().update_priorities(self._store.keys(slots), priorities)
        return super().update_priorities(keys, priorities)


class Remembers(relive.ColumnStorage):
    """Caches what it has read."""

    def write(self, slots: storages.Slots, rows: storages.Rows) -> None:
        self.memory: dict[Any, dict[str, arrays_lib.Array]] = {}
        super().write(slots, rows)

    def read(self, slots: storages.Slots, fields: Collection[str] | None = None) -> dict[str, arrays_lib.Array]:
        asked = (np.asarray(slots).tobytes(), np.shape(slots), None if fields is None else tuple(fields))
        return dict(self.memory.setdefault(asked, super().read(slots, fields)))


class RemembersKeys(Ring):
    """Returns the same array as long as no step is added."""

    keys, known = np.zeros(0, np.int64), -1

    def eligible_keys(self) -> Any:
        if self.known != self.get_stats().appended:
            self.keys, self.known = super().eligible_keys(), self.get_stats().appended
        return self.keys


class KeepsWhatItIsGiven(Ring):
    """Keeps the rewards of the last episode, and writes them when something is read."""

    kept: tuple[Any, Any] = np.zeros(0, np.int64), np.zeros(0)

    def add_episode(self, *arguments: Any, **named: Any) -> Any:
        keys = super().add_episode(*arguments, **named)
        self.kept = keys, named["rewards"]
        return keys

    def read(self, keys: Any, **options: Any) -> Any:
        kept, rewards = self.kept
        (slots, alive), storage = self._store.lookup(kept), self._store.storage
        storage.write(slots, storage.read(slots) | {"reward": rewards[alive]})
        return super().read(keys, **options)


ANSWERS_NOTHING = ring_with(sample=lambda self, size: Ring.sample(self, size) if self.num_eligible else None)
HOLDS_ONE_LESS = ring_with(__len__=lambda self: min(len(self._store), self.capacity - 1))
OF_ROWS = ["observation", "action", "reward", "checksum"]
OF_TRANSITIONS = [*OF_ROWS, "next_observation", "next_discount", "is_terminal", "steps"]
OF_SEQUENCES = [*OF_ROWS, "terminated", "truncated", "mask", "is_burn_in", "start_step"]
METHODS = ["add", "extend", "add_episode", "sample", "sample_keys", "read", "set_eligible", "update_priorities"]
BROKEN: dict[Callable[..., None], list[Make]] = {
    SUITE.test_nothing_is_spliced: [
        with_batches(relive.TransitionWindow(), go_on_in_the_ring),
        with_batches(relive.SequenceWindow(3), go_on_in_the_ring_for_a_sequence),
        # Every complete step, whether its stack is or not; the first of an ended episode, whether a step is complete.
        readable_by(relive.TransitionWindow(frame_stack=2), lambda store, of: store.flags[of] & append.COMPLETE > 0),
        readable_by(
            relive.SequenceWindow(3, pad=True),
            lambda store, slots: (
                (store.episodes[append.END][store.episodes_of(slots)] != append.OPEN) & (store.steps_of(slots) == 0)
            ),
        ),
        with_batches(relive.TransitionWindow(2), stop_early),
        with_batches(relive.TransitionWindow(), blank_the_first),
        *(with_batches(relive.TransitionWindow(), spoils(name)) for name in OF_TRANSITIONS),
        *(with_batches(relive.SequenceWindow(3, 1), spoils(name)) for name in OF_SEQUENCES),
        with_batches(relive.TransitionWindow(), changes(lambda batch: {"reward": batch.reward.astype(np.float32)})),
        with_batches(relive.TransitionWindow(), changes(lambda batch: {"action": batch.action[:, np.newaxis]})),
        ring_with(sample=lambda self, size: spoiled(Ring.sample(self, size), "action")),
        of(relive.RingReplayBuffer, gamma=0.9),
        of(relive.ColumnReplayBuffer, window=NeverReadable()),
        of(relive.RingReplayBuffer, sampler=IsSure),
        with_batches(relive.TransitionWindow(), changes(lambda batch: {"weights": batch.weights * np.nan})),
        TrustsEverySuccessor,
        tells(lambda stats: {"spliced_episodes": 0}),
        IsCorrupt,
    ],
    SUITE.test_what_is_drawn_is_eligible: [
        IsCorrupt,
        ring_with(set_eligible=lambda self, keys, eligible: len(keys)),
        HidesTheIneligible,
        ring_with(
            set_eligible=lambda self, keys, eligible: len(keys) if eligible else Ring.set_eligible(self, keys, False)
        ),
        ring_with(set_eligible=lambda self, keys, eligible: min(Ring.set_eligible(self, keys, eligible), 1)),
    ],
    SUITE.test_a_refused_call_changes_nothing: [
        IsCorrupt,
        CountsBeforeItChecks,
        ring_with(read=lambda self, keys: self._rng.random() and Ring.read(self, keys)),
        TakesWhatItCan,
        WritesBeforeItChecks,
        *(that_refuses_nothing(method) for method in METHODS),
        ring_with(add=lambda self, *step, colour=None, **named: Ring.add(self, *step, **named)),
    ],
    SUITE.test_late_keys_are_dropped_and_counted: [
        IsCorrupt,
        SeesSlots,
        ring_with(set_eligible=lambda self, keys, eligible: max(Ring.set_eligible(self, keys, eligible), len(keys))),
        ring_with(
            set_eligible=lambda self, keys, eligible: Ring.set_eligible(
                self, [key for key in keys if len(self._store.lookup(np.array([key]))[0])], eligible
            )
        ),
        WritesLatePriorities,
        ring_with(read=lambda self, keys: Ring.read(self, np.maximum(keys, self._store.oldest_key))),
    ],
    SUITE.test_writing_into_what_was_answered_changes_nothing: [
        IsCorrupt,
        of(relive.RingReplayBuffer, storage=Remembers),
        RemembersKeys,
    ],
    SUITE.test_len_is_the_number_of_adds_up_to_capacity: [
        tells(lambda stats: {"size": stats.size + 1}),
        HOLDS_ONE_LESS,
        ring_with(is_full=property(lambda self: False)),
        tells(lambda stats: {"appended": stats.appended + 1}),
        tells(lambda stats: {"evicted": 0}),
        lambda capacity, streams, seed: Ring(capacity + 1, streams, seed),
    ],
    SUITE.test_keys_count_and_are_never_used_again: [
        ring_with(add=lambda self, *step, **named: Ring.add(self, *step, **named) % self.capacity),
        CountsAnew,
    ],
    SUITE.test_clear_forgets_steps_and_open_episodes: [
        ring_with(clear=evict_all),
        KeepsEpisodesOpenAndSaysNothing,
        ANSWERS_NOTHING,
        KeepsAnchors,
    ],
    SUITE.test_memory_is_flat: [Hoards, tells(lambda stats: {"nbytes": stats.nbytes + stats.appended})],
    SUITE.test_a_batch_is_of_the_size_that_was_asked_for: [
        ring_with(sample=lambda self, size: Ring.sample(self, min(size, self.num_eligible))),
        ring_with(sample_keys=lambda self, size: np.unique(Ring.sample_keys(self, size))),
        tells(lambda stats: {"sampled": stats.sampled - 1}),
    ],
    SUITE.test_an_empty_buffer_is_not_ready: [
        ANSWERS_NOTHING,
        ring_with(sample_keys=lambda self, size: Ring.sample_keys(self, size) if self.num_eligible else np.zeros(0)),
        ring_with(can_sample=lambda self, size: True),
        CountsBeforeItDraws,
    ],
    SUITE.test_eligible_keys_are_those_that_read_accepts: [
        ring_with(eligible_keys=lambda self: np.arange(self.get_stats().appended)[-len(self) :]),
        ring_with(eligible_keys=lambda self: Ring.eligible_keys(self)[::-1]),
        ring_with(num_eligible=property(len)),
    ],
    SUITE.test_the_same_seed_and_calls_give_the_same_batches: [
        lambda capacity, streams, _: Ring(capacity, streams, None)
    ],
    SUITE.test_buffers_leave_global_randomness_alone: [of(relive.RingReplayBuffer, sampler=DrawsFromNumpy)],
    SUITE.test_a_refused_call_leaves_an_empty_buffer_empty: [BelievesTheFirst, CountsBeforeItChecks],
    SUITE.test_writing_into_what_was_added_changes_nothing: [KeepsWhatItIsGiven],
}
"""What fails each test."""


@pytest.mark.parametrize(("make", "test"), [(each, test) for test, makers in BROKEN.items() for each in makers])
def test_a_broken_buffer_fails(make: Make, test: Callable[..., None]) -> None:
    with pytest.raises((AssertionError, errors.CorruptionError)):
        test(suite(make))


def test_every_test_of_buffers_can_fail() -> None:
    assert {test.__name__ for test in BROKEN} == set(TESTS)


def test_memory_is_measured_while_tracing_is_on() -> None:
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    RING.test_memory_is_flat()
    assert tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.stop()
