"""The buffer of columns: it joins stored steps, a window, a sampler and a rate limiter.

    add, extend, add_episode, add_steps                       sample
       │  check, and make bytes of rows    schema.encoding       │  may it?              RateLimiter
       │  rows to their slots              Storage               │  which anchors?       Draws, Sampler
       │  what follows them, what may      kernels.append        │  which rows?          Window, kernels.windows
       ▼  be drawn                                               ▼  their bytes          Storage

Ring, prioritized and sequence buffers are this one with another window and another sampler.
"""

from collections.abc import Callable
import functools
import operator
import os
from typing import TYPE_CHECKING, Any, ClassVar, Generic, SupportsIndex, TypeAlias, TypeVar, overload

import numpy as np

from relive import errors
from relive.buffers import column_stats
from relive.buffers import draws
from relive.common import arrays
from relive.common import imports
from relive.common import notebook
from relive.common import validation
from relive.kernels import append
from relive.persistence import checkpointable
from relive.persistence import state
from relive.samplers import prioritized
from relive.samplers import sampler as sampler_lib
from relive.samplers import uniform
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.storage import steps as steps_lib
from relive.waiting import prefetch as prefetch_lib
from relive.waiting import rate_limiters
from relive.windows import batches
from relive.windows import window as window_lib

if TYPE_CHECKING:
    from relive.buffers import column_journal
    from relive.buffers import column_state
    from relive.buffers import origins
    from relive.persistence import checkpoint
    from relive.persistence import journal as journal_lib
else:
    checkpoint = imports.lazy_module("relive.persistence.checkpoint")
    column_journal = imports.lazy_module("relive.buffers.column_journal")
    column_state = imports.lazy_module("relive.buffers.column_state")
    origins = imports.lazy_module("relive.buffers.origins")
    journal_lib = imports.lazy_module("relive.persistence.journal")

AnyBatch: TypeAlias = batches.TransitionBatch | batches.SequenceBatch
Batch = TypeVar("Batch", bound=AnyBatch)

_BOOKKEEPING = 16
"""About how many bytes a step takes beside its fields."""
MOST_STREAMS = 2**19
"""So many streams a buffer has at most: each takes memory, which a saved one must not be able to only claim."""


class ColumnReplayBuffer(checkpointable.Journalable, Generic[Batch]):
    """Stores steps of fixed shapes and dtypes in preallocated columns, and returns windows of them.

    Most people want RingReplayBuffer, PrioritizedReplayBuffer or SequenceReplayBuffer; this one takes any window.

    It has no locks and awaits nothing: AsyncReplayBuffer and ThreadSafeReplayBuffer are shells around it.

    Args:
        capacity: Steps stored at most; the oldest goes first.
        schema: What a step holds; None to take it from the first one. It is enforced either way.
        window: Which rows make one element of a batch.
        sampler: Draws the anchors; UniformSampler if None.
        streams: How many environments or actors write side by side; at most 2^19.
        storage: Where the columns are, of the same capacity; by default arrays in memory.
        limiter: Says when a step may be added and a batch drawn; by default a batch needs one anchor.
        max_times_sampled: How often an anchor may be drawn before it retires; None for any number of times.
        seed: For the generator of the draws; the same seed and the same calls give the same batches.

    Raises:
        ArgumentError: A setting breaks its rule.
    """

    _SETTINGS: ClassVar[tuple[str, ...]] = (
        "capacity",
        "schema",
        "window",
        "sampler",
        "streams",
        "limiter",
        "max_times_sampled",
    )

    def __init__(
        self,
        capacity: int,
        schema: schema_lib.Schema | None = None,
        *,
        window: window_lib.Window[Batch],
        sampler: sampler_lib.Sampler | None = None,
        streams: int = 1,
        storage: memory.Storage | None = None,
        limiter: rate_limiters.RateLimiter | None = None,
        max_times_sampled: int | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        capacity = validation.positive_int("capacity", capacity)
        streams = validation.positive_int("streams", streams)
        if streams > capacity:
            raise errors.ArgumentError(f"streams must be at most capacity = {capacity}, got {streams}")
        if streams > MOST_STREAMS:
            raise errors.ArgumentError(f"streams must be at most {MOST_STREAMS}, got {streams}")
        if schema is not None:
            schema_lib.require("schema", schema)
        validation.require_instance("window", window, window_lib.Window)
        if storage is not None:
            memory.check_members(storage)
        if storage is not None and storage.capacity != capacity:
            raise errors.ArgumentError(f"storage must be of capacity {capacity}, got {storage.capacity}")
        if storage is not None and schema is not None and storage.schema != schema:
            raise errors.ArgumentError(f"storage must be of the schema {schema}, got {storage.schema}")
        if sampler is None:
            sampler = uniform.UniformSampler()
        validation.require_instance("sampler", sampler, sampler_lib.Sampler)
        self._rng = validation.generator("seed", seed)
        self._window = window
        step_bytes = _BOOKKEEPING if schema is None else _BOOKKEEPING + schema.nbytes
        with memory.room_for(capacity, step_bytes):
            self._store = steps_lib.StepStore(capacity, streams, older=window.older)
            self._draws = draws.Draws(self._store, window, sampler, max_times_sampled)
        self._counters = column_stats.Counters(anchors=self._draws.anchors)
        self._limited = rate_limiters.LimitedBuffer(limiter, self._counters, "capacity", capacity)
        self._gathers = prefetch_lib.PendingReads()
        if storage is None and schema is not None:
            storage = memory.ColumnStorage(schema, capacity)
        if storage is not None:
            self._store.begin(storage)
        with memory.room_for(capacity, step_bytes):
            self._draws.attach()

    # What it is.

    @property
    def capacity(self) -> int:
        """How many steps are stored at most."""
        return self._store.capacity

    @property
    def streams(self) -> int:
        """How many environments or actors write side by side."""
        return self._store.streams

    @property
    def schema(self) -> schema_lib.Schema | None:
        """What a step holds; None until the first one says so."""
        return self._store.schema if self._store.has_begun else None

    @property
    def window(self) -> window_lib.Window[Batch]:
        """What says which rows make one element of a batch."""
        return self._window

    @property
    def sampler(self) -> sampler_lib.Sampler:
        """What draws the anchors."""
        return self._draws.sampler

    @property
    def limiter(self) -> rate_limiters.RateLimiter:
        """What says when a step may be added and a batch drawn."""
        return self._limited.limiter

    @property
    def appended(self) -> int:
        """How many steps were added, ever."""
        return self._counters.inserted

    @property
    def has_priorities(self) -> bool:
        """Whether update_priorities and get_priorities mean anything."""
        return isinstance(self.sampler, prioritized.PrioritizedSampler)

    @property
    def history(self) -> steps_lib.StepStore:
        """The steps themselves, to read and not to change."""
        return self._store

    @property
    def rng(self) -> np.random.Generator:
        """The generator of the draws."""
        return self._rng

    def __len__(self) -> int:
        """Return how many steps are stored."""
        return len(self._store)

    @property
    def is_full(self) -> bool:
        """Whether the next step evicts another."""
        return len(self) == self.capacity

    @property
    def num_eligible(self) -> int:
        """How many anchors may be drawn now."""
        return len(self._draws)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} steps, capacity={self.capacity}, streams={self.streams}>"

    def _described_fields(self) -> list[notebook.Row]:
        return [] if self.schema is None else notebook.fields("", self.schema.fields, self.capacity)

    # Writing.

    def add(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any = None,
        *,
        terminated: Any = False,
        truncated: Any = False,
        stream: int | None = None,
        **extras: Any,
    ) -> int:
        """Add one step and return its key.

        Args:
            observation: o_t. If the step before announced another one, the episode is closed as truncated there, and
                this step begins the next one: nothing is spliced.
            action: a_t.
            reward: r_t.
            next_observation: o_{t+1}, where it is known already; without it the step can be drawn as soon as the next
                one has come. A truncated step needs it.
            terminated: Whether the task ended with the step: a bool, or 0 or 1 of any type.
            truncated: Whether we stopped looking after it. Termination wins over truncation.
            stream: Which environment or actor it is of; required where there are several.
            extras: The other fields of the schema.

        Raises:
            SchemaError: A value does not fit its field, or an extra is missing or unknown.
            ArgumentError: Another argument breaks its rule.
            NotReadyError: The limiter holds inserts back.
        """
        steps = encoding.one_step(
            self._store.encoder,
            self._store.streams,
            stream,
            observation,
            action,
            reward,
            next_observation,
            terminated,
            truncated,
            extras,
        )
        if self._limited.holds_inserts:
            self._require_insert("add")
        return self._append(steps)

    def extend(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any = None,
        *,
        terminated: Any = None,
        truncated: Any = None,
        streams: Any = None,
        **extras: Any,
    ) -> arrays.Keys:
        """Add one step of every stream and return their keys [S]; does what `add` does for one stream after another.

        Args:
            observation: o_t of each stream [S, ...].
            action: a_t [S, ...].
            reward: r_t [S].
            next_observation: o_{t+1} [S, ...], or None if none of them is known yet.
            terminated: Whether the task ended with the step [S]; None for nowhere.
            truncated: Whether we stopped looking after it [S]; None for nowhere.
            streams: Distinct numbers of the streams [S], where not all of them have a step; None for all, in order.
            extras: The other fields of the schema [S, ...].

        Raises:
            SchemaError: A value does not fit its field, or an extra is missing or unknown.
            ArgumentError: Another argument breaks its rule.
            NotReadyError: The limiter holds inserts back; it is asked once for all steps of the call.
        """
        steps = encoding.step_of_each(
            self._store.encoder,
            self._store.streams,
            streams,
            observation,
            action,
            reward,
            next_observation,
            terminated,
            truncated,
            extras,
        )
        self._require_insert("extend")
        key = self._append(steps)
        return np.arange(key, key + len(steps.streams))

    def add_episode(
        self,
        observations: Any,
        actions: Any,
        rewards: Any,
        *,
        terminated: Any,
        stream: int | None = None,
        **extras: Any,
    ) -> arrays.Keys:
        """Add a whole episode of T steps and return their keys [T].

        Args:
            observations: o_0 to o_T [T + 1, ...].
            actions: a_0 to a_{T-1} [T, ...].
            rewards: r_0 to r_{T-1} [T].
            terminated: Whether the task ended with the last step; otherwise the episode was truncated there.
            stream: Which environment or actor it is of; required where there are several. If an episode is open
                there, it is closed as truncated.
            extras: The other fields of the schema [T, ...].

        Raises:
            SchemaError: A value does not fit its field, or an extra is missing or unknown.
            ArgumentError: The episode has no step or more than `capacity`, or another argument breaks its rule.
            NotReadyError: The limiter holds inserts back; it is asked once for all steps of the call.
        """
        steps = encoding.whole_episode(
            self._store.encoder,
            self._store.streams,
            self._store.capacity,
            stream,
            observations,
            actions,
            rewards,
            terminated,
            extras,
        )
        self._require_insert("add_episode")
        key = self._append(steps)
        return np.arange(key, key + len(steps.streams))

    def add_steps(
        self,
        observations: Any,
        actions: Any,
        rewards: Any,
        *,
        terminated: Any = False,
        truncated: Any = False,
        stream: int | None = None,
        **extras: Any,
    ) -> arrays.Keys:
        """Add T consecutive steps of one stream and return their keys [T]; do what `add` does for one after another.

        They go on with the episode that is open in the stream, if they begin where it stands.

        Args:
            observations: o_t to o_{t+T} [T + 1, ...]; the last is what follows the newest step.
            actions: a_t to a_{t+T-1} [T, ...].
            rewards: r_t to r_{t+T-1} [T].
            terminated: Whether the task ended with the last step.
            truncated: Whether we stopped looking after the last step.
            stream: Which environment or actor they are of; required where there are several.
            extras: The other fields of the schema [T, ...].

        Raises:
            SchemaError: A value does not fit its field, or an extra is missing or unknown.
            ArgumentError: There is no step or more than `capacity`, or another argument breaks its rule.
            NotReadyError: The limiter holds inserts back; it is asked once for all steps of the call.
        """
        steps = encoding.consecutive_steps(
            self._store.encoder,
            self._store.streams,
            self._store.capacity,
            stream,
            observations,
            actions,
            rewards,
            terminated,
            truncated,
            extras,
        )
        self._require_insert("add_steps")
        key = self._append(steps)
        return np.arange(key, key + len(steps.streams))

    def _require_insert(self, call: str) -> None:
        """Raise NotReadyError if the limiter holds inserts back."""
        if not self._limited.can_insert():
            raise errors.NotReadyError(f"{call} held back by {self._limited.limiter!r}: draw samples first")

    def _append(self, steps: encoding.Steps) -> int:
        """Write steps of which everything was checked, and return the key of the first."""
        store, counters, draws = self._store, self._counters, self._draws
        num, streams = store.num_view, steps.streams
        key, rows, count = num[append.NEXT_KEY], num[append.ROWS], len(streams)
        if not count:
            return key
        if self._gathers.ends:
            self._gathers.finish()
        num_spliced = store.append(steps, self._journal)
        counters.inserted += count
        if num[append.UNWEIGHED]:
            self._prioritized_sampler("add").weigh_rated()
        if draws.follows_writes:
            draws.appended(key, count, max(rows + count - store.capacity, 0))
        watch = counters.watch
        if num_spliced:
            counters.spliced_episodes += num_spliced
            watch.record_splices(num_spliced, counters.inserted, store)
        if type(streams) is tuple or steps.is_run:
            if watch.finals:
                watch.record_other(streams[0])
        else:
            watch.record_round(steps)
        if not key:
            watch.record_first(store)
        return key

    def end_episode(self, stream: int | None = None) -> bool:
        """End the episode that is open in a stream as truncated after its newest step, and return whether one was.

        That is what to call when an environment is reset before its episode has ended. Without it an episode goes on if
        the next step happens to begin with the observation that was announced.

        Args:
            stream: Of which environment or actor; required where there are several.

        Raises:
            ArgumentError: There is no such stream, or its newest step was added without a next observation.
        """
        store = self._store
        stream = encoding.stream_number(store.streams, stream)
        if not store.is_open(stream):
            return False
        if not store.is_announced(stream):
            raise errors.ArgumentError(
                f"end_episode needs the observation after the newest step of stream {stream}: "
                "add that step with next_observation"
            )
        if self._journal is not None:
            self._journal.end_episode(stream)
        self._position = None
        self._end_episode(stream)
        return True

    def _end_episode(self, stream: int) -> None:
        """Truncate the episode that is open in the stream."""
        self._gathers.finish()
        self._store.cut(stream)
        if self._draws.follows_writes:
            self._draws.appended(self._store.next_key, 0, 0)

    def can_insert(self) -> bool:
        """Return whether the limiter lets `add`, `extend`, `add_steps` and `add_episode` pass now. O(1)."""
        return self._limited.can_insert()

    # Drawing.

    def can_sample(self, batch_size: int) -> bool:
        """Return whether `sample` would return such a batch now; draws nothing.

        O(1), with max_times_sampled O(capacity).

        Raises:
            ArgumentError: batch_size is not an integer of at least 1, or is more than the limiter ever allows.
        """
        batch_size = self._limited.checked_batch_size(batch_size)
        return self._limited.can_sample(batch_size) and self._draws.can_draw(batch_size)

    def sample_keys(self, batch_size: int) -> arrays.Keys:
        """Draw as `sample` does, and return the keys alone [B]; `read` returns their windows.

        Raises:
            ArgumentError: batch_size is not an integer of at least 1.
            NotReadyError: Nothing is eligible, or the limiter holds samples back.
        """
        (slots, _), _ = self._draw(batch_size, None)
        return self._store.keys(slots)

    def sample(self, batch_size: int, *, beta: float | None = None) -> Batch:
        """Return exactly batch_size windows, drawn with replacement.

        Args:
            batch_size: How many, B.
            beta: The exponent of the importance weights, instead of the sampler's own; with priorities alone.

        Raises:
            ArgumentError: An argument breaks its rule.
            NotReadyError: Nothing is eligible, or the limiter holds samples back.
        """
        return self._sample(self._window, batch_size, beta)

    def batches(self, batch_size: int, *, prefetch: int = 2, beta: float | None = None) -> prefetch_lib.Batches[Batch]:
        """Return an endless iterator of what `sample` returns, gathered ahead in a thread while the learner works.

        Batch i is drawn, and counted by the limiter and by max_times_sampled, when batch i - prefetch is handed out;
        the first ones when the first is. It is what `sample` would have returned then: the same calls give the same
        batches, and what was added, rated or cleared since is not in it. A call that writes steps waits for the gathers
        under way, so let the learner work between `next` and `add`.

        Where nothing can be drawn ahead, the next `next` tries again; it raises NotReadyError only once the batches
        that were drawn ahead have been handed out. It also raises what a gather has raised, in the place of its batch.

        Args:
            batch_size: How many windows in a batch, B.
            prefetch: How many batches are drawn ahead, each of which takes memory; 0 for plain `sample`, and no thread.
            beta: As in `sample`.

        Raises:
            ArgumentError: An argument breaks its rule.
        """
        return self._batches(self._window, batch_size, prefetch, beta)

    def read(self, keys: Any, *, beta: float | None = None) -> Batch:
        """Return the windows that start at the steps with those keys [B]; the rest is as in `sample`.

        Raises:
            UnknownKeyError: No step of one of the keys is stored.
            ArgumentError: No window can start at one of them, or beta breaks its rule.
        """
        return self._read(self._window, keys, beta)

    def _sample(self, window: window_lib.Window[Batch], batch_size: int, beta: float | None) -> Batch:
        """Draw batch_size anchors and return their windows."""
        return self._drawn(window, batch_size, beta)()

    def _batches(
        self, window: window_lib.Window[Batch], batch_size: int, prefetch: int, beta: float | None
    ) -> prefetch_lib.Batches[Batch]:
        """Return an iterator of what `_sample` returns."""
        batch_size = self._limited.checked_batch_size(batch_size)
        if beta is not None:
            self.sampler.exponent(beta)

        return prefetch_lib.Batches(lambda: self._drawn(window, batch_size, beta), self._gathers, prefetch)

    def _drawn(self, window: window_lib.Window[Batch], batch_size: int, beta: float | None) -> Callable[[], Batch]:
        """Draw batch_size anchors, and return what gathers their windows; no step may be written before it has."""
        (slots, probabilities), weights = self._draw(batch_size, beta)
        return functools.partial(window.read, self._store, slots, probabilities, weights)

    def _read(self, window: window_lib.Window[Batch], keys: Any, beta: float | None) -> Batch:
        """Return the windows that start at those keys [B]."""
        slots = self.readable_slots(keys)
        if not self._store.has_begun:
            raise errors.NotReadyError("read has nothing to answer: no step has said what a step holds")
        probabilities = self.sampler.probabilities(slots)
        exponent = self.sampler.exponent(beta)
        weights = self.sampler.weights(self.sampler.importance(probabilities), exponent)
        return window.read(self._store, slots, probabilities, weights)

    def _draw(self, batch_size: int, beta: float | None) -> tuple[sampler_lib.Draw, arrays.Floats]:
        """Draw batch_size anchors, and return them with their importance weights; if that fails, nothing is counted."""
        batch_size = self._limited.checked_batch_size(batch_size)
        exponent = None if beta is None else self.sampler.exponent(beta)
        if not self._limited.can_sample(batch_size):
            self._draws.require_any()
            raise errors.NotReadyError(f"sample held back by {self.limiter!r}: add steps first")
        self._draws.require_draw(batch_size)
        if beta is None:
            # A schedule is asked once a draw, so only when everything else allows the draw.
            exponent = self.sampler.exponent()
        drawn = self._draws.draw(batch_size, self._rng, exponent)
        self._counters.sampled += batch_size
        return drawn

    def eligible_keys(self) -> arrays.Keys:
        """Return the keys of all anchors that may be drawn now, oldest first. O(capacity)."""
        return np.sort(self._store.keys(self._draws.anchors.slots()))

    def readable_slots(self, keys: Any) -> arrays.Ints:
        """Return where the steps with those keys are [B], from each of which a window can be read.

        Raises:
            UnknownKeyError: No step of one of the keys is stored.
            ArgumentError: No window can start at one of them.
        """
        slots = self._stored_slots(keys)
        for slot in slots[~self._draws.is_readable(slots)]:
            raise errors.ArgumentError(
                f"keys must be of steps that a window can start from, got {self._store.keys(slot)}"
            )
        return slots

    # Priorities and eligibility.

    def update_priorities(self, keys: Any, priorities: Any) -> int:
        """Give steps new priorities, and return how many of them were still stored.

        A key whose step was overwritten is dropped and counted; the step in its place keeps its own priority.

        Args:
            keys: Of steps, as a batch has them [B].
            priorities: Raw ones, finite and at least 0 [B] or [B, 1]; where a key is there twice, the last one wins.

        Raises:
            ArgumentError: A priority breaks its rule, the lengths differ, or the buffer has no priorities.
        """
        sampler = self._prioritized_sampler("update_priorities")
        keys = validation.integers("keys", keys)
        priorities = validation.non_negative_floats("priority", priorities, len(keys))
        alive, priorities = self._alive_of(keys, priorities)
        if self._journal is not None:
            self._journal.set_priorities(alive, priorities, sampler)
        sampler.set_priorities(self._store.slots(alive), priorities)
        if alive is not keys:
            self._counters.stale_keys += len(keys) - len(alive)
        return len(alive)

    def check_priorities(self, priorities: Any) -> None:
        """Raise what `update_priorities` would raise for these priorities [B], and change nothing.

        Raises:
            ArgumentError: A priority breaks its rule, or the buffer has no priorities.
        """
        sampler = self._prioritized_sampler("check_priorities")
        count = validation.leading_length("priorities", priorities)
        sampler.check_priorities(validation.non_negative_floats("priority", priorities, count))

    def get_priorities(self, keys: Any) -> arrays.Floats:
        """Return the raw priorities of the steps with those keys [B].

        Raises:
            UnknownKeyError: No step of one of the keys is stored.
            ArgumentError: The buffer has no priorities.
        """
        sampler = self._prioritized_sampler("get_priorities")
        return sampler.priorities(self._stored_slots(keys))

    def set_eligible(self, keys: Any, eligible: bool) -> int:
        """Set whether the anchors with those keys may be drawn, and return how many of them were still stored.

        An anchor whose window cannot be read is not drawn, whatever is said here, until it can.

        Raises:
            ArgumentError: `keys` are not integers, or `eligible` is not True or False.
        """
        keys = validation.integers("keys", keys)
        eligible = validation.boolean("eligible", eligible)
        if self._journal is not None:
            self._journal.set_eligible(keys, eligible)
        self._position = None
        alive = self._alive_of(keys)[0]
        self._draws.set_barred(np.unique(self._store.slots(alive)), not eligible)
        if alive is not keys:
            self._counters.stale_keys += len(keys) - len(alive)
        return len(alive)

    def _prioritized_sampler(self, call: str) -> prioritized.PrioritizedSampler:
        sampler = self.sampler
        if not isinstance(sampler, prioritized.PrioritizedSampler):
            raise errors.ArgumentError(f"{call} needs a PrioritizedSampler, got {type(sampler).__name__}")
        return sampler

    def _alive_of(self, keys: arrays.Keys, *others: arrays.Array) -> tuple[arrays.Array, ...]:
        """Return the keys of steps that are still stored, and what belongs to them."""
        if self._store.are_alive(keys):
            return keys, *others
        alive = self._store.is_alive(keys)
        return keys[alive], *[array[alive] for array in others]

    # As a whole: see Checkpointable and Journalable.

    def _setting(self, name: str) -> Any:
        return self._draws.max_times_sampled if name == "max_times_sampled" else getattr(self, name)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        copy_rows: bool = True,
        keep: int = 1,
        progress: state.Progress | None = None,
    ) -> None:
        """Save the buffer as a directory, or as a new one in the place of an older.

        It is built beside, synced to the disk, and renamed: a reader of `path` finds the old one or the new one,
        whole, whatever happens meanwhile. It takes memory for one chunk of a column, 16 MiB.

        Args:
            path: The directory: one that is not there, is empty, or is a checkpoint.
            copy_rows: Whether to copy the rows out of the storage. If not, which a MemmapStorage alone can do without,
                they stay in its files and are flushed: the checkpoint is good until the next step is written, and is
                loaded with `storage=MemmapStorage(...)`.
            keep: How many checkpoints stay: this one at `path`, those before it at `path.1`, `path.2` and so on.
            progress: Called now and then with the bytes written so far and the bytes there are.

        Raises:
            ArgumentError: `path` is something else than a checkpoint, `keep` is not an integer of at least 1, or the
                storage is no memory map and its rows are not to be copied.
            CheckpointError: It could not be written, somebody else is writing it, or something cannot be saved.
        """
        copy_rows = validation.boolean("copy_rows", copy_rows)
        checkpoint.save(self._full_state(copy_rows=copy_rows), path, keep=keep, progress=progress)

    def _state(self, *, copy_rows: bool = True, **options: Any) -> state.State:
        return self._kept.state_dict() if copy_rows else self._kept.state_dict_in_place()

    def _base_state(self, **options: Any) -> state.State:
        return self._kept.base_state_dict()

    def _restore(self, given: state.StateReader, *, is_new: bool, **options: Any) -> None:
        def clear() -> None:
            self._gathers.finish()
            self._forget()

        self._kept.load_state_dict(given, is_new=is_new, clear=clear)

    @property
    def _kept(self) -> "column_state.ColumnState":
        return column_state.ColumnState(self._store, self._draws, self._counters)

    def attach(self, journal: "journal_lib.Journal", *, priorities: bool = False) -> None:
        """Write to a journal from now on: each step, end and `clear` just before it happens, so that none is lost.

        A new journal begins with all that is stored now: as a record, or as a checkpoint in its directory if that has
        more than 16 MiB. One that holds something goes on after it: the buffer must be what `recover` has returned.
        Draws are not written.

        Args:
            journal: An open one that no buffer writes to. While it is attached, a call that it cannot write raises
                CheckpointError, and nothing has changed.
            priorities: Whether `update_priorities` is written too, 16 bytes for each of them.

        Raises:
            ArgumentError: A journal is attached already, this one holds something else than the buffer, or the buffer
                has no priorities that could be written.
            CheckpointError: It could not be written.
        """
        priorities = validation.boolean("priorities", priorities)
        if priorities:
            self._prioritized_sampler("attach with priorities=True")
        self._attach(journal, priorities=priorities)

    def _written(self) -> tuple[int, ...]:
        return self._store.next_key, len(self._store), self._store.num_evicted

    def _journaled(self, journal: "journal_lib.Journal", replay: Any, **options: Any) -> checkpointable.Bound:
        return column_journal.ColumnJournal(journal, self._store, [] if replay is None else replay.begun, **options)

    def _replay(self, **options: Any) -> checkpointable.Replay:
        return column_journal.Replay(
            self._store,
            self._append,
            self._end_episode,
            self._forget,
            self._draws.set_barred,
            self._replay_priorities,
        )

    def _replay_priorities(self, keys: arrays.Keys, priorities: arrays.Floats) -> None:
        """Set priorities that a journal tells of: of rows that were all stored when they got them."""
        sampler = self._prioritized_sampler("a journal of priorities")
        priorities = validation.non_negative_floats("priority", priorities, len(keys))
        alive, of_alive = self._alive_of(keys, priorities)
        sampler.set_priorities(self._store.slots(alive), of_alive)
        sampler.note_priority(max(dict(zip(keys.tolist(), priorities.tolist(), strict=True)).values(), default=0.0))

    # Everything else.

    def get_stats(self) -> column_stats.ColumnBufferStats:
        """Return what is stored, what is drawn, and what has happened so far. O(capacity), and no row is read.

        But for the extra `policy_version`, if there is one: of the oldest and the newest row, and those drawn lately.
        """
        return column_stats.of(self._store, self._draws, self._counters)

    @overload
    def explain(self, key: SupportsIndex, /) -> "origins.RowOrigin": ...

    @overload
    def explain(self, batch: AnyBatch, /) -> "tuple[origins.RowOrigin | None, ...]": ...

    def explain(self, asked: Any, /) -> Any:
        """Return where a row came from, given its key, or where the rows of a batch came from [B].

        It changes nothing, and costs much the same for any number of steps stored.

        Args:
            asked: The key of a step; or a batch that this buffer has drawn, for the steps that its windows start from.

        Returns:
            Of a key, a RowOrigin: stream, episode, step, age, draws, priority. Of a batch a tuple of them, with None
            for what is not stored any more.

        Raises:
            UnknownKeyError: No step of that key is stored.
            ArgumentTypeError: It is neither an integer nor a batch.

        >>> import relive
        >>> buffer = relive.RingReplayBuffer(10, seed=0)
        >>> keys = buffer.add_episode(range(4), [0, 1, 0], [0.0, 0.0, 1.0], terminated=True)
        >>> print(buffer.explain(2))
        key 2: step 2 of 3, episode from key 0, stream 0, TERMINATED, slot 2, age 0, eligible, probability 0.333333
        >>> [origin.step for origin in buffer.explain(buffer.sample(4)) if origin]
        [1, 0, 0, 0]
        """
        if isinstance(asked, AnyBatch):
            return origins.rows(self._store, self._draws, asked.keys)
        try:
            key = operator.index(asked)
        except TypeError:
            raise errors.ArgumentTypeError(
                f"explain must be given a key or a batch, got {validation.short_repr(asked)}"
            ) from None
        self._stored_slots(key)
        return origins.rows(self._store, self._draws, np.array([key]))[0]

    def clear(self) -> None:
        """Forget every step and every open episode.

        Keys and the counters of `get_stats` go on, as does the largest priority so far; the generator is not reset.
        """
        self._gathers.finish()
        if self._journal is not None:
            self._journal.clear()
        self._forget()

    def _forget(self) -> None:
        """Take every row away."""
        self._draws.clear()
        self._counters.watch.clear()

    def check(self) -> None:
        """Recount everything that is stored, the long way.

        Raises:
            CorruptionError: An invariant does not hold; the message says which.
        """
        self._store.check()
        self._draws.check()

    def _stored_slots(self, keys: Any) -> arrays.Ints:
        keys = validation.integers("keys", keys)
        for key in keys[~self._store.is_alive(keys)]:
            raise errors.UnknownKeyError(f"key {key} not found: its step was evicted, or never was")
        return self._store.slots(keys)
