"""The suite passes for correct classes, and fails for broken ones."""

from collections.abc import Callable, Collection
import contextlib
import dataclasses
import functools
import tracemalloc
from typing import Any, TypeAlias

import numpy as np
import pytest

from relive import errors
from relive.buffers import column as column_lib
from relive.buffers import column_stats
from relive.buffers import prioritized
from relive.buffers import ring
from relive.buffers import sequence
from relive.common import arrays
from relive.common import trees
from relive.kernels import append
from relive.samplers import sampler as sampler_lib
from relive.samplers import uniform
from relive.schema import encoding
from relive.schema import schema as schemas
from relive.storage import memory as storages
from relive.storage import steps
from relive.testing import buffer_suite
from relive.windows import batches
from relive.windows import sequences
from relive.windows import transitions
from relive.windows import window as window_lib

Buffer: TypeAlias = column_lib.ColumnReplayBuffer[Any]
Make: TypeAlias = Callable[[int, int, int], Buffer]
SUITE = buffer_suite.BufferTests


@pytest.mark.long
class TestRing(buffer_suite.BufferTests):
    def make(self, capacity: int, streams: int, seed: int) -> Buffer:
        return ring.RingReplayBuffer(capacity, streams=streams, seed=seed)


@pytest.mark.long
class TestRingOfThreeSteps(buffer_suite.BufferTests):
    gamma = 0.5

    def make(self, capacity: int, streams: int, seed: int) -> Buffer:
        return ring.RingReplayBuffer(capacity, n_step=3, gamma=0.5, streams=streams, seed=seed)


@pytest.mark.long
class TestRingOfStacks(buffer_suite.BufferTests):
    def make(self, capacity: int, streams: int, seed: int) -> Buffer:
        return ring.RingReplayBuffer(capacity, frame_stack=3, streams=streams, seed=seed)


class TestRingOfStacksPaddedWithTheFirst(buffer_suite.BufferTests):
    """With steps that are declared."""

    gamma = 0.5

    def make(self, capacity: int, streams: int, seed: int) -> Buffer:
        return ring.RingReplayBuffer(
            capacity,
            self.schema,
            n_step=2,
            gamma=0.5,
            frame_stack=4,
            stack_padding="first",
            streams=streams,
            seed=seed,
        )


class TestPrioritized(buffer_suite.BufferTests):
    def make(self, capacity: int, streams: int, seed: int) -> Buffer:
        return prioritized.PrioritizedReplayBuffer(capacity, streams=streams, seed=seed)


@pytest.mark.long
class TestSequence(buffer_suite.BufferTests):
    def make(self, capacity: int, streams: int, seed: int) -> Buffer:
        return sequence.SequenceReplayBuffer(capacity, length=8, streams=streams, seed=seed)


class TestSequencePadded(buffer_suite.BufferTests):
    def make(self, capacity: int, streams: int, seed: int) -> Buffer:
        return sequence.SequenceReplayBuffer(
            capacity, length=5, stride=2, burn_in=2, pad=True, streams=streams, seed=seed
        )


class TestSequencePrioritized(buffer_suite.BufferTests):
    def make(self, capacity: int, streams: int, seed: int) -> Buffer:
        return sequence.SequenceReplayBuffer(capacity, length=3, prioritized=True, streams=streams, seed=seed)


class TestEpisodes(buffer_suite.BufferTests):
    def make(self, capacity: int, streams: int, seed: int) -> Buffer:
        return column_lib.ColumnReplayBuffer(capacity, window=sequences.EpisodeWindow(), streams=streams, seed=seed)


class ListStorage:
    """A storage that a user wrote: a list of rows, each a dict of arrays."""

    def __init__(self, schema: schemas.Schema, capacity: int) -> None:
        self.schema = schema
        self.capacity = capacity
        row = {path: np.zeros(field.shape, field.dtype) for path, field in schema.fields.items()}
        self.rows = [row] * capacity

    def write(self, slots: storages.Slots, rows: storages.Rows) -> None:
        for place, slot in np.ndenumerate(slots):
            self.rows[slot] = {path: np.array(column[(*place, ...)]) for path, column in rows.items()}

    def read(self, slots: storages.Slots, fields: Collection[str] | None = None) -> dict[str, arrays.Array]:
        columns = {}
        for path in self.schema.fields if fields is None else fields:
            field = self.schema.fields[path]
            columns[path] = np.zeros(np.shape(slots) + field.shape, field.dtype)
            for place, slot in np.ndenumerate(slots):
                columns[path][place] = self.rows[slot][path]
        return columns


class TestRingOverAnotherStorage(buffer_suite.BufferTests):
    def make(self, capacity: int, streams: int, seed: int) -> Buffer:
        storage = ListStorage(self.schema, capacity)
        return ring.RingReplayBuffer(capacity, n_step=2, storage=storage, streams=streams, seed=seed)


class Even(sampler_lib.Sampler):
    """Draws only even slots, and reports their probabilities."""

    def can_draw(self) -> bool:
        return bool(np.any(self.anchors.slots() % 2 == 0))

    def _draw(self, size: int, rng: np.random.Generator) -> sampler_lib.Draw:
        slots = np.intersect1d(self.anchors.slots(), np.arange(0, self.anchors.capacity, 2))
        if not len(slots):
            raise errors.NotReadyError("no slot is even: add steps first")
        return sampler_lib.Draw(rng.choice(slots, size), np.full(size, 1 / len(slots)))


class TestRingThatDrawsSome(buffer_suite.BufferTests):
    def make(self, capacity: int, streams: int, seed: int) -> Buffer:
        return ring.RingReplayBuffer(capacity, sampler=Even(), streams=streams, seed=seed)


# Broken ones.


class Ring(ring.RingReplayBuffer):
    """A buffer to break in one way at a time."""

    def __init__(self, capacity: int, streams: int, seed: int | None) -> None:
        super().__init__(capacity, streams=streams, seed=seed)


class Prioritized(prioritized.PrioritizedReplayBuffer):
    """Another one."""

    def __init__(self, capacity: int, streams: int, seed: int) -> None:
        super().__init__(capacity, streams=streams, seed=seed)


def with_window(window: window_lib.Window[Any]) -> Make:
    def make(capacity: int, streams: int, seed: int) -> Buffer:
        return column_lib.ColumnReplayBuffer(capacity, window=window, streams=streams, seed=seed)

    return make


def with_storage(storage: type[storages.ColumnStorage]) -> Make:
    def make(capacity: int, streams: int, seed: int) -> Buffer:
        held = storage(SUITE.schema, capacity)
        return ring.RingReplayBuffer(capacity, storage=held, streams=streams, seed=seed)

    return make


class GoesOnInTheRing(transitions.TransitionWindow):
    """Takes the row in the next slot for the next observation."""

    def read(self, store: steps.StepStore, slots: Any, probabilities: Any, weights: Any) -> batches.TransitionBatch:
        batch = super().read(store, slots, probabilities, weights)
        columns = store.observations((slots + batch.steps) % store.capacity)
        return dataclasses.replace(batch, next_observation=trees.nested("observation", columns))


class GoesOnInTheRingForASequence(sequences.SequenceWindow):
    def read(self, store: steps.StepStore, slots: Any, probabilities: Any, weights: Any) -> batches.SequenceBatch:
        batch = super().read(store, slots, probabilities, weights)
        rows = (slots[:, np.newaxis] + np.arange(self.length + 1)) % store.capacity
        batch.observation = store.observations(rows)["observation"]
        return batch


class ReadsBrokenStacks(transitions.TransitionWindow):
    """Reads stacks of which a frame was evicted."""

    def is_readable(self, store: steps.StepStore, slots: Any) -> Any:
        return (store.facts[slots] & append.COMPLETE) > 0


class KeepsBrokenStacks(column_lib.ColumnReplayBuffer[Any]):
    """Lets every complete step be drawn."""

    def __init__(self, capacity: int, streams: int, seed: int) -> None:
        super().__init__(capacity, window=ReadsBrokenStacks(frame_stack=2), streams=streams, seed=seed)

    def _append(self, steps: encoding.Steps) -> int:
        key = super()._append(steps)
        slots = self._store.alive_slots()
        self._draws.anchors.set(append.READABLE, slots[self.window.is_readable(self._store, slots)])
        return key


class IsHasty(sequences.EpisodeWindow):
    """Reads episodes of which no step is complete."""

    def is_readable(self, store: steps.StepStore, slots: Any) -> Any:
        has_ended = store.episodes[append.END][store.episodes_of(slots)] != append.OPEN
        return has_ended & (store.steps_of(slots) == 0)


class StopsEarly(transitions.TransitionWindow):
    """Returns a window of one step where there are two."""

    def read(self, store: steps.StepStore, slots: Any, probabilities: Any, weights: Any) -> batches.TransitionBatch:
        batch = super().read(store, slots, probabilities, weights)
        first = transitions.TransitionWindow(1, self.gamma).read(store, slots[:1], probabilities[:1], weights[:1])
        for name in ("reward", "next_observation", "next_discount", "is_terminal", "steps"):
            getattr(batch, name)[:1] = getattr(first, name)
        return batch


def spoiled(batch: Any, name: str) -> Any:
    """Return the batch with another value in the last row of that array."""
    column = (batch.extras[name] if name == "checksum" else getattr(batch, name)).copy()
    column[-1] = ~column[-1] if column.dtype == np.bool_ else column[-1] + 1
    if name == "checksum":
        batch.extras[name] = column
    else:
        setattr(batch, name, column)
    return batch


@dataclasses.dataclass(frozen=True)
class SpoilsTransitions(transitions.TransitionWindow):
    field: str = ""

    def read(self, store: steps.StepStore, slots: Any, probabilities: Any, weights: Any) -> batches.TransitionBatch:
        batch: batches.TransitionBatch = spoiled(super().read(store, slots, probabilities, weights), self.field)
        return batch


@dataclasses.dataclass(frozen=True)
class SpoilsSequences(sequences.SequenceWindow):
    field: str = ""

    def read(self, store: steps.StepStore, slots: Any, probabilities: Any, weights: Any) -> batches.SequenceBatch:
        batch: batches.SequenceBatch = spoiled(super().read(store, slots, probabilities, weights), self.field)
        return batch


class Rounds(transitions.TransitionWindow):
    def read(self, store: steps.StepStore, slots: Any, probabilities: Any, weights: Any) -> batches.TransitionBatch:
        batch = super().read(store, slots, probabilities, weights)
        batch.reward = batch.reward.astype(np.float32)
        return batch


class AddsAnAxis(transitions.TransitionWindow):
    def read(self, store: steps.StepStore, slots: Any, probabilities: Any, weights: Any) -> batches.TransitionBatch:
        batch = super().read(store, slots, probabilities, weights)
        batch.action = batch.action[:, np.newaxis]
        return batch


class NeverReadable(transitions.TransitionWindow):
    @property
    def older(self) -> int:
        return -1

    def is_readable(self, store: steps.StepStore, slots: Any) -> Any:
        return np.zeros(len(slots), np.bool_)


class IsSure(uniform.UniformSampler):
    """Returns invalid probabilities from `probabilities`, but not from a draw."""

    def probabilities(self, slots: arrays.Slots) -> arrays.Floats:
        return np.full(len(slots), 2.0)


class WeighsNothing(uniform.UniformSampler):
    def weights(self, importance: arrays.Floats, beta: float | None = None) -> arrays.Floats:
        return importance * np.nan


class DrawsFromNumpy(uniform.UniformSampler):
    def _draw(self, size: int, rng: np.random.Generator) -> sampler_lib.Draw:
        np.random.random()  # noqa: NPY002
        return super()._draw(size, rng)


def with_sampler(sampler: type[sampler_lib.Sampler]) -> Make:
    def make(capacity: int, streams: int, seed: int) -> Buffer:
        return ring.RingReplayBuffer(capacity, sampler=sampler(), streams=streams, seed=seed)

    return make


class TrustsEverySuccessor(Ring):
    def __init__(self, capacity: int, streams: int, seed: int | None) -> None:
        super().__init__(capacity, streams, seed)
        self._store._with_cuts = lambda steps: (steps.events, 0)  # type: ignore[method-assign]


class SpoilsSamples(Ring):
    def sample(self, batch_size: int, **options: Any) -> Any:
        return spoiled(super().sample(batch_size, **options), "action")


class CountsNoSplices(Ring):
    def get_stats(self) -> column_stats.ColumnBufferStats:
        self._counters.spliced_episodes = 0
        return super().get_stats()


class IsCorrupt(Ring):
    def check(self) -> None:
        if len(self) > 5:
            raise errors.CorruptionError("something is wrong")


class HoldsOneLess(Ring):
    def __len__(self) -> int:
        return min(super().__len__(), self.capacity - 1)


class SaysLess(HoldsOneLess):
    @property
    def is_full(self) -> bool:
        return len(self._store) == self.capacity

    def get_stats(self) -> column_stats.ColumnBufferStats:
        return dataclasses.replace(super().get_stats(), size=len(self._store))


class IsNeverFull(Ring):
    @property
    def is_full(self) -> bool:
        return False


class CountsTwice(Ring):
    def extend(self, *arguments: Any, **named: Any) -> Any:
        self._counters.inserted += 1
        return super().extend(*arguments, **named)


class IsLarger(Ring):
    def __init__(self, capacity: int, streams: int, seed: int | None) -> None:
        super().__init__(capacity + 1, streams, seed)


class AnswersSlots(Ring):
    def add(self, *arguments: Any, **named: Any) -> int:
        return super().add(*arguments, **named) % self.capacity


class CountsAnew(Ring):
    def clear(self) -> None:
        super().clear()
        self._store.num[append.NEXT_KEY] = 0


class KeepsEpisodesOpen(Ring):
    """Clears the rows alone."""

    def clear(self) -> None:
        self._store.evict(len(self))


class KeepsEpisodesOpenAndSaysNothing(sequence.SequenceReplayBuffer):
    def __init__(self, capacity: int, streams: int, seed: int) -> None:
        super().__init__(capacity, length=2, streams=streams, seed=seed)

    def clear(self) -> None:
        self._store.evict(len(self))

    def get_stats(self) -> column_stats.ColumnBufferStats:
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


class Grows(Ring):
    def get_stats(self) -> column_stats.ColumnBufferStats:
        stats = super().get_stats()
        return dataclasses.replace(stats, nbytes=stats.nbytes + stats.appended)


class AnswersWhatThereIs(Ring):
    def sample(self, batch_size: int, **options: Any) -> Any:
        return super().sample(min(batch_size, self.num_eligible), **options)


class AnswersWhatKeysThereAre(Ring):
    def sample_keys(self, batch_size: int) -> Any:
        return np.unique(super().sample_keys(batch_size))


class CountsBatches(Ring):
    def sample(self, batch_size: int, **options: Any) -> Any:
        batch = super().sample(batch_size, **options)
        self._counters.sampled += 1 - batch_size
        return batch


class AnswersNothing(Ring):
    def sample(self, batch_size: int, **options: Any) -> Any:
        return super().sample(batch_size, **options) if self.num_eligible else None


class AnswersNoKeys(Ring):
    def sample_keys(self, batch_size: int) -> Any:
        return super().sample_keys(batch_size) if self.num_eligible else np.zeros(0, np.int64)


class IsAlwaysReady(Ring):
    def can_sample(self, batch_size: int) -> bool:
        return True


class CountsBeforeItDraws(Ring):
    def sample(self, batch_size: int, **options: Any) -> Any:
        self._counters.sampled += batch_size
        batch = super().sample(batch_size, **options)
        self._counters.sampled -= batch_size
        return batch


class CallsAllEligible(Ring):
    def eligible_keys(self) -> Any:
        return np.arange(self.get_stats().appended)[-len(self) :]


class MixesUpKeys(Ring):
    def eligible_keys(self) -> Any:
        return super().eligible_keys()[::-1]


class CountsTheIneligible(Ring):
    @property
    def num_eligible(self) -> int:
        return len(self)


class IgnoresUsers(Ring):
    def set_eligible(self, keys: Any, eligible: bool) -> int:
        return len(keys)


class HidesTheIneligible(Ring):
    """Makes them ineligible, and draws them."""

    def set_eligible(self, keys: Any, eligible: bool) -> int:
        self.hidden = np.zeros(0, np.int64) if eligible else keys
        return len(keys)

    def eligible_keys(self) -> Any:
        return np.setdiff1d(super().eligible_keys(), getattr(self, "hidden", []))


class NeverForgives(Ring):
    def set_eligible(self, keys: Any, eligible: bool) -> int:
        return len(keys) if eligible else super().set_eligible(keys, False)


class MiscountsKeys(Ring):
    def set_eligible(self, keys: Any, eligible: bool) -> int:
        return min(super().set_eligible(keys, eligible), 1)


def without_a_seed(capacity: int, streams: int, seed: int) -> Buffer:
    return Ring(capacity, streams, None)


class CountsBeforeItChecks(Ring):
    def add(self, *arguments: Any, **named: Any) -> int:
        self._counters.inserted += 1
        key = super().add(*arguments, **named)
        self._counters.inserted -= 1
        return key


class DrawsBeforeItChecks(Ring):
    def read(self, keys: Any, **options: Any) -> Any:
        self._rng.random()
        return super().read(keys, **options)


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


class TakesAnything(Ring):
    def add(self, *arguments: Any, **named: Any) -> int:
        named.pop("colour", None)
        return super().add(*arguments, **named)


class BelievesTheFirst(Ring):
    """Takes the schema of a step that it refuses then."""

    def add(self, *arguments: Any, **named: Any) -> int:
        if not self._store.has_begun:
            self._store.begin(storages.ColumnStorage(SUITE.schema, self.capacity))
        return super().add(*arguments, **named)


class SeesSlots(Ring):
    """Ignores the key, and uses whatever is in its slot."""

    def set_eligible(self, keys: Any, eligible: bool) -> int:
        slots = np.unique(np.asarray(keys) % self.capacity)
        self._draws.set_barred(slots, not eligible)
        return super().set_eligible(keys, eligible)


class BelievesLateKeys(Ring):
    def set_eligible(self, keys: Any, eligible: bool) -> int:
        super().set_eligible(keys, eligible)
        return len(keys)


class CountsNoLateKeys(Ring):
    def set_eligible(self, keys: Any, eligible: bool) -> int:
        keys = np.asarray(keys)
        return super().set_eligible(keys[self._store.is_alive(keys)], eligible)


class WritesLatePriorities(Prioritized):
    def update_priorities(self, keys: Any, priorities: Any) -> int:
        slots = np.asarray(keys) % self.capacity
        super().update_priorities(self._store.keys(slots), priorities)
        return super().update_priorities(keys, priorities)


class ReadsOther(Ring):
    def read(self, keys: Any, **options: Any) -> Any:
        alive = self._store.is_alive(np.asarray(keys))
        return super().read(np.where(alive, keys, self.eligible_keys()[0]) if len(self) else keys, **options)


class Remembers(storages.ColumnStorage):
    """Caches what it has read."""

    def write(self, slots: storages.Slots, rows: storages.Rows) -> None:
        self.memory: dict[Any, dict[str, arrays.Array]] = {}
        super().write(slots, rows)

    def read(self, slots: storages.Slots, fields: Collection[str] | None = None) -> dict[str, arrays.Array]:
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
        is_alive = self._store.is_alive(kept)
        slots, storage = self._store.slots(kept[is_alive]), self._store.storage
        storage.write(slots, storage.read(slots) | {"reward": rewards[is_alive]})
        return super().read(keys, **options)


OF_TRANSITIONS = [
    "observation",
    "next_observation",
    "action",
    "reward",
    "next_discount",
    "is_terminal",
    "steps",
    "checksum",
]
OF_SEQUENCES = [
    "observation",
    "action",
    "reward",
    "terminated",
    "truncated",
    "mask",
    "is_burn_in",
    "start_step",
    "checksum",
]
METHODS = ["add", "extend", "add_episode", "sample", "sample_keys", "read", "set_eligible", "update_priorities"]
CHECKING = (
    SUITE.test_nothing_is_spliced,
    SUITE.test_what_is_drawn_is_eligible,
    SUITE.test_a_refused_call_changes_nothing,
    SUITE.test_late_keys_are_dropped_and_counted,
    SUITE.test_writing_into_what_was_answered_changes_nothing,
)
BROKEN: list[tuple[Make, Callable[..., None]]] = [
    (with_window(GoesOnInTheRing()), SUITE.test_nothing_is_spliced),
    (with_window(GoesOnInTheRingForASequence(3)), SUITE.test_nothing_is_spliced),
    (KeepsBrokenStacks, SUITE.test_nothing_is_spliced),
    (with_window(IsHasty()), SUITE.test_nothing_is_spliced),
    (with_window(StopsEarly(n_step=2)), SUITE.test_nothing_is_spliced),
    *((with_window(SpoilsTransitions(field=name)), SUITE.test_nothing_is_spliced) for name in OF_TRANSITIONS),
    *((with_window(SpoilsSequences(3, 1, field=name)), SUITE.test_nothing_is_spliced) for name in OF_SEQUENCES),
    (with_window(Rounds()), SUITE.test_nothing_is_spliced),
    (with_window(AddsAnAxis()), SUITE.test_nothing_is_spliced),
    (SpoilsSamples, SUITE.test_nothing_is_spliced),
    (with_window(transitions.TransitionWindow(gamma=0.9)), SUITE.test_nothing_is_spliced),
    (with_window(NeverReadable()), SUITE.test_nothing_is_spliced),
    (with_sampler(IsSure), SUITE.test_nothing_is_spliced),
    (with_sampler(WeighsNothing), SUITE.test_nothing_is_spliced),
    (TrustsEverySuccessor, SUITE.test_nothing_is_spliced),
    (CountsNoSplices, SUITE.test_nothing_is_spliced),
    *((IsCorrupt, test) for test in CHECKING),
    (SaysLess, SUITE.test_len_is_the_number_of_adds_up_to_capacity),
    (HoldsOneLess, SUITE.test_len_is_the_number_of_adds_up_to_capacity),
    (IsNeverFull, SUITE.test_len_is_the_number_of_adds_up_to_capacity),
    (CountsTwice, SUITE.test_len_is_the_number_of_adds_up_to_capacity),
    (IsLarger, SUITE.test_len_is_the_number_of_adds_up_to_capacity),
    (AnswersSlots, SUITE.test_keys_count_and_are_never_used_again),
    (CountsAnew, SUITE.test_keys_count_and_are_never_used_again),
    (KeepsEpisodesOpen, SUITE.test_clear_forgets_steps_and_open_episodes),
    (KeepsEpisodesOpenAndSaysNothing, SUITE.test_clear_forgets_steps_and_open_episodes),
    (AnswersNothing, SUITE.test_clear_forgets_steps_and_open_episodes),
    (KeepsAnchors, SUITE.test_clear_forgets_steps_and_open_episodes),
    (Hoards, SUITE.test_memory_is_flat),
    (Grows, SUITE.test_memory_is_flat),
    (AnswersWhatThereIs, SUITE.test_a_batch_is_of_the_size_that_was_asked_for),
    (AnswersWhatKeysThereAre, SUITE.test_a_batch_is_of_the_size_that_was_asked_for),
    (CountsBatches, SUITE.test_a_batch_is_of_the_size_that_was_asked_for),
    (AnswersNothing, SUITE.test_an_empty_buffer_is_not_ready),
    (AnswersNoKeys, SUITE.test_an_empty_buffer_is_not_ready),
    (IsAlwaysReady, SUITE.test_an_empty_buffer_is_not_ready),
    (CountsBeforeItDraws, SUITE.test_an_empty_buffer_is_not_ready),
    (CallsAllEligible, SUITE.test_eligible_keys_are_those_that_read_accepts),
    (MixesUpKeys, SUITE.test_eligible_keys_are_those_that_read_accepts),
    (CountsTheIneligible, SUITE.test_eligible_keys_are_those_that_read_accepts),
    (IgnoresUsers, SUITE.test_what_is_drawn_is_eligible),
    (HidesTheIneligible, SUITE.test_what_is_drawn_is_eligible),
    (NeverForgives, SUITE.test_what_is_drawn_is_eligible),
    (MiscountsKeys, SUITE.test_what_is_drawn_is_eligible),
    (without_a_seed, SUITE.test_the_same_seed_and_calls_give_the_same_batches),
    (with_sampler(DrawsFromNumpy), SUITE.test_global_randomness_is_left_alone),
    (CountsBeforeItChecks, SUITE.test_a_refused_call_changes_nothing),
    (DrawsBeforeItChecks, SUITE.test_a_refused_call_changes_nothing),
    (TakesWhatItCan, SUITE.test_a_refused_call_changes_nothing),
    (WritesBeforeItChecks, SUITE.test_a_refused_call_changes_nothing),
    *((that_refuses_nothing(method), SUITE.test_a_refused_call_changes_nothing) for method in METHODS),
    (TakesAnything, SUITE.test_a_refused_call_changes_nothing),
    (BelievesTheFirst, SUITE.test_a_refused_call_leaves_an_empty_buffer_empty),
    (CountsBeforeItChecks, SUITE.test_a_refused_call_leaves_an_empty_buffer_empty),
    (SeesSlots, SUITE.test_late_keys_are_dropped_and_counted),
    (BelievesLateKeys, SUITE.test_late_keys_are_dropped_and_counted),
    (CountsNoLateKeys, SUITE.test_late_keys_are_dropped_and_counted),
    (WritesLatePriorities, SUITE.test_late_keys_are_dropped_and_counted),
    (ReadsOther, SUITE.test_late_keys_are_dropped_and_counted),
    (with_storage(Remembers), SUITE.test_writing_into_what_was_answered_changes_nothing),
    (RemembersKeys, SUITE.test_writing_into_what_was_answered_changes_nothing),
    (KeepsWhatItIsGiven, SUITE.test_writing_into_what_was_added_changes_nothing),
]


@pytest.mark.parametrize(("make", "test"), BROKEN)
def test_a_buffer_that_is_broken_fails(make: Make, test: Callable[..., None]) -> None:
    class Suite(buffer_suite.BufferTests):
        def make(self, capacity: int, streams: int, seed: int) -> Buffer:
            return make(capacity, streams, seed)

    with pytest.raises((AssertionError, errors.CorruptionError)):
        test(Suite())


def test_every_test_of_buffers_can_fail() -> None:
    tested: set[Any] = {test.__name__ for _, test in BROKEN}
    assert tested == {name for name in vars(buffer_suite.BufferTests) if name.startswith("test_")}


def test_memory_is_measured_although_somebody_traces_it() -> None:
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    TestRing().test_memory_is_flat()
    assert tracemalloc.is_tracing()
    if not was_tracing:
        tracemalloc.stop()
