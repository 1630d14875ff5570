"""StoredSteps: the steps of a column buffer as a whole, but for how they are written and drawn.

numbers and settings     len, num_eligible, repr, get_stats, explain
of single steps          priorities, eligibility
all of them              clear, check, checkpoints, the journal that they are written to
"""

from collections.abc import Callable, Collection, Iterable, Iterator
import contextlib
import functools
import operator
import os
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsIndex, TypeVar

import numpy as np

from relive import errors
from relive.buffers import column_stats
from relive.buffers import draws
from relive.buffers import misuse
from relive.buffers import prefetch as prefetch_lib
from relive.common import arrays as arrays_lib
from relive.common import claims
from relive.common import imports
from relive.common import notebook
from relive.common import validation
from relive.kernels import append
from relive.limits import rate_limiters
from relive.persistence import settings
from relive.persistence import state
from relive.samplers import prioritized
from relive.samplers import recorded
from relive.samplers import sampler as sampler_lib
from relive.samplers import uniform
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.storage import steps as steps_lib
from relive.storage import steps_state
from relive.windows import batches
from relive.windows import window as window_lib

if TYPE_CHECKING:
    from relive.buffers import column_journal
    from relive.buffers import origins
    from relive.persistence import checkpoint
    from relive.persistence import journal as journal_lib
    from relive.storage import memmap
else:
    checkpoint = imports.lazy_module("relive.persistence.checkpoint")
    column_journal = imports.lazy_module("relive.buffers.column_journal")
    origins = imports.lazy_module("relive.buffers.origins")
    journal_lib = imports.lazy_module("relive.persistence.journal")
    memmap = imports.lazy_module("relive.storage.memmap")

Batch = TypeVar("Batch", bound=batches.KeyedBatch[Any])

_MANY = 1_000
"""So many steps of a stream without an end are worth a word."""
_BOOKKEEPING = 16
"""About how many bytes a step takes beside its fields."""
MOST_STREAMS = 2**19
"""The most streams of a buffer: each takes memory, which a forged checkpoint could otherwise claim at no cost."""


class StoredSteps(recorded.Recorded, Generic[Batch]):
    """The steps of a ColumnReplayBuffer, whose arguments it takes; that class writes and draws them."""

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
            if storage.capacity != capacity:
                raise errors.ArgumentError(f"storage must be of capacity {capacity}, got {storage.capacity}")
            if schema not in (None, storage.schema):
                raise errors.ArgumentError(f"storage must be of the schema {schema}, got {storage.schema}")
        sampler = uniform.UniformSampler() if sampler is None else sampler
        validation.require_instance("sampler", sampler, sampler_lib.Sampler)
        self._rng = validation.generator("seed", seed)
        self._window = window
        window.check_room(schema if storage is None else storage.schema)
        step_bytes = _BOOKKEEPING if schema is None or storage is not None else _BOOKKEEPING + schema.nbytes
        self._gathers = prefetch_lib.PendingReads()
        with claims.kept_on_success(), memory.room_for("capacity", capacity, step_bytes):
            if storage is not None:
                claims.claim("storage", storage, self)
            rule: dict[str, Any] = {"rule": window.rule, "is_tracking": sampler.is_tracking}
            self._store = steps_lib.make_store(
                storage, capacity, streams, check_room=window.check_room, compared_paths=window.compared_paths, **rule
            )
            self._draws = draws.Draws(self._store, window, sampler, max_times_sampled)
            self._watch = misuse.Watch()
            most = window.rule.most_anchors(capacity)
            limits = rate_limiters.Limits(
                "capacity" if most == capacity else f"anchors in {capacity} steps",
                most,
                self._draws.max_times_sampled,
                window.rule.rows_per_anchor,
            )
            self._limited = rate_limiters.LimiterState(limiter, self._draws, limits)
            if storage is None and schema is not None:
                storage = memory.ColumnStorage(schema, capacity)
            if storage is not None:
                self._store.begin(storage)
            sampler.attach(self._draws.anchors)  # Last, since it cannot be attached again.
            claims.on_failure(sampler.detach)

    # Properties.

    @property
    def capacity(self) -> int:
        """Maximum number of stored steps."""
        return self._store.capacity

    @property
    def streams(self) -> int:
        """Number of environments or actors that write in parallel."""
        return self._store.streams

    @property
    def schema(self) -> schema_lib.Schema | None:
        """The fields of a step; None until the first step is added."""
        return self._store.schema if self._store.has_begun else None

    @property
    def window(self) -> window_lib.Window[Batch]:
        """The window, which decides which rows make one element of a batch."""
        return self._window

    @property
    def sampler(self) -> sampler_lib.Sampler:
        """The sampler, which draws the anchors."""
        return self._draws.sampler

    @property
    def limiter(self) -> rate_limiters.RateLimiter:
        """The rate limiter, which decides when steps may be added and batches drawn."""
        return self._limited.limiter

    @property
    def appended(self) -> int:
        """How many steps were added so far."""
        return self._store.next_key

    @property
    def has_priorities(self) -> bool:
        """Whether the buffer has priorities."""
        return isinstance(self.sampler, prioritized.PrioritizedSampler)

    @property
    def rng(self) -> np.random.Generator:
        """The random generator used for sampling."""
        return self._rng

    def __len__(self) -> int:
        """Return the number of stored steps."""
        return len(self._store)

    @property
    def is_full(self) -> bool:
        """Whether the buffer is full, so that the next step evicts the oldest."""
        return len(self) == self.capacity

    @property
    def num_eligible(self) -> int:
        """Number of anchors that may be drawn now."""
        return len(self._draws)

    def __repr__(self) -> str:
        size = f"{len(self)} steps, capacity={self.capacity}, streams={self.streams}"
        return f"<{type(self).__name__} of {size}{self._others_set('capacity', 'streams', 'schema')}{self._endless}>"

    @property
    def _endless(self) -> str:
        """What a `repr` says last where no end was reported in 1,000 steps of a stream: it may be an oversight."""
        count = self.appended
        is_endless = not self._watch.ends and count >= _MANY * self.streams
        return f", no end in {count:,} steps" if is_endless else ""

    @property
    def _declared(self) -> Collection[str]:
        """The names of the extras that the schema has."""
        return () if self.schema is None else self.schema.extras

    def _described_fields(self) -> list[notebook.Row]:
        return [] if self.schema is None else notebook.fields("", self.schema.fields, self.capacity)

    # Priorities and eligibility.

    def update_priorities(self, keys: Any, priorities: Any) -> int:
        """Update the priorities of steps, and return how many of them were still stored.

        Keys whose steps were overwritten are ignored and counted as stale; the steps in their place keep their
        priorities.

        Args:
            keys: Keys of the steps, such as `batch.keys` [B].
            priorities: Raw priorities, finite and at least 0 [B] or [B, 1]; for a repeated key, the last one wins.

        Raises:
            ArgumentError: A priority is invalid, the lengths differ, a key was never given out, or the buffer has no
                priorities.
        """
        return self._update_priorities(keys, priorities)

    def _update_priorities(self, keys: Any, priorities: Any, then: Callable[[], None] | None = None) -> int:
        """Do what `update_priorities` does; `then` is called when nothing but the record of a journal can fail."""
        sampler = prioritized.required(self._draws.sampler, "update_priorities")
        keys = validation.integers("keys", keys)
        priorities = validation.non_negative_floats("priority", priorities, len(keys))
        slots, alive = self._store.lookup(keys)
        num_stale = len(keys) - len(slots)
        if num_stale:
            self._require_given_out(keys)
            keys, priorities = keys[alive], priorities[alive]
        if self._journal is not None:
            self._journal.prepare()
            then = functools.partial(self._record_priorities, keys, priorities, then)
        sampler._set_priorities(slots, priorities, then)
        self._draws.stale_keys += num_stale
        return len(slots)

    def _record_priorities(
        self, keys: arrays_lib.Keys, priorities: arrays_lib.Floats, then: Callable[[], None] | None
    ) -> None:
        if then is not None:
            then()
        self._journal.set_priorities(keys, priorities)

    def _require_given_out(self, keys: arrays_lib.Keys) -> None:
        """Raise ArgumentError if one of the keys [k] is of no step that was ever added."""
        validation.require_given_out(keys, self._store.next_key, "steps")

    def get_priorities(self, keys: Any) -> arrays_lib.Floats:
        """Return the raw priorities of the steps with those keys [B].

        Raises:
            UnknownKeyError: No step of one of the keys is stored.
            ArgumentError: The buffer has no priorities.
        """
        sampler = prioritized.required(self._draws.sampler, "get_priorities")
        return sampler.priorities(self._stored_slots(keys))

    def set_eligible(self, keys: Any, eligible: bool) -> int:
        """Set whether the anchors with those keys may be drawn, and return how many of them were still stored.

        An anchor whose window cannot be read yet is not drawn in any case.

        Raises:
            ArgumentError: `keys` are not integers, or `eligible` is not True or False.
        """
        keys = validation.integers("keys", keys)
        eligible = validation.boolean("eligible", eligible)
        slots, _ = self._store.lookup(keys)
        record = None
        if self._journal is not None:
            self._journal.prepare()
            record = functools.partial(self._journal.set_eligible, keys, eligible)
        self._draws.set_barred(slots, not eligible, record)
        self._position = None
        self._draws.stale_keys += len(keys) - len(slots)
        return len(slots)

    def eligible_keys(self) -> arrays_lib.Keys:
        """Return the keys of all anchors that may be drawn now, oldest first. O(capacity)."""
        return np.sort(self._store.keys(self._draws.anchors.slots()))

    def _readable_slots(self, keys: Any) -> arrays_lib.Ints:
        """Return the slots of the steps with those keys [B]; a window can be read from each.

        Raises:
            UnknownKeyError: No step of one of the keys is stored.
            ArgumentError: No window can start at one of them.
        """
        slots = self._stored_slots(keys)
        for slot in slots[~self._draws.anchors.has(append.READABLE, slots)]:
            raise errors.ArgumentError(
                f"keys must be of steps that a window can start from, got {self._store.keys(slot)}"
            )
        return slots

    # As a whole: see Checkpointable and Journalable.

    def _known_settings(self) -> dict[str, Any]:
        return {"schema": self.schema}

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        copy_rows: bool = True,
        keep: int = 1,
        progress: state.Progress | None = None,
    ) -> None:
        """Save the buffer as a checkpoint, one file, replacing an older checkpoint at the same path.

        The file is a zip archive, of which `np.load` shows the arrays. It is written beside `path`, synced to disk and
        renamed, so a reader finds either the old one or the new one, complete, even after a crash. Memory use is
        one chunk of a column, 16 MiB.

        Args:
            path: The file: must be missing, empty, or a checkpoint. No suffix is added.
            copy_rows: Whether to copy the rows into the checkpoint. If False, which requires a MemmapStorage, they stay
                in its files and are flushed: the checkpoint is valid until the next step is written, and is loaded with
                `storage=MemmapStorage(...)`.
            keep: Number of checkpoints to keep: this one at `path`, earlier ones at `path.1`, `path.2` and so on.
            progress: Called periodically with the number of bytes written so far and the total.

        Raises:
            ArgumentError: `keep` is not an integer of at least 1, or the rows are not to be copied and the storage is
                not a memory map.
            CheckpointError: `path` is something other than a checkpoint, another writer holds it, it could not be
                written, or something cannot be saved.
        """
        copy_rows = validation.boolean("copy_rows", copy_rows)
        checkpoint.save(self._full_state(copy_rows=copy_rows), path, keep=keep, progress=progress)

    def _state_dict(self, *, copy_rows: bool = True, **options: Any) -> state.State:
        kept, storage = self._kept(self._store.rows_state()), self._storage
        if copy_rows:
            return kept
        rows_in = memmap.flushed(storage)
        elsewhere = {name: array for name, array in kept["arrays"].items() if not name.startswith("rows/")}
        return {**kept, "rows_in": rows_in, "arrays": elsewhere}

    def _base_state(self, **options: Any) -> state.State:
        return self._kept(self._store.rows_state().without_rows())

    def _kept(self, rows: steps_state.StepsState) -> state.State:
        """Return the state of the buffer with those rows."""
        store, draws = self._store.state_dict(rows), self._draws.state_dict(self._store.slots(rows.keys))
        arrays = store.pop("arrays") | draws.pop("arrays")
        return {"counters": column_stats.counts(self._draws, self._watch), **store, **draws, "arrays": arrays}

    @property
    def _storage(self) -> memory.Storage | None:
        return self._store.storage if self._store.has_begun else None

    def _twin(self) -> Self:
        twin = super()._twin()
        twin._store = self._store.empty_twin()
        if self._storage is not None:
            twin._store.begin(self._storage)
        twin._draws = self._draws.twin(twin._store)
        twin._watch = misuse.Watch()
        return twin

    def _load_state_dict(self, given: state.StateReader, **options: Any) -> None:
        store, schema, has_rows = self._store, self._saved_schema(given), not given.has("rows_in")
        if schema is not None and schema != self.schema:
            try:
                store.begin(memory.ColumnStorage(schema, store.capacity))
            except (MemoryError, ValueError) as error:
                raise errors.CheckpointError(f"schema cannot be that of {store.capacity} rows: {error}") from error
        if not has_rows:
            memmap.check_rows(self._storage, given.part("rows_in"))
        store.load_state_dict(
            steps_state.StepsState.of(given, schema, store.capacity, store.streams, has_rows=has_rows)
        )
        self._draws.load_state_dict(given)
        self._watch.load_state_dict(given.part("counters"), store.next_key)

    def _swap(self, twin: Any) -> None:
        self._gathers.finish()
        twin._store.settle()
        self._watch.forget_steps()
        vars(self._watch).update(twin._watch.counts())
        twin._watch = self._watch
        twin._draws.keep_sampler(self._draws.sampler)
        self._limited.counts = twin._draws
        super()._swap(twin)

    def _saved_schema(self, given: state.StateReader) -> schema_lib.Schema | None:
        """Return the schema of the rows in a state; raise CheckpointError if it is invalid."""
        schema: schema_lib.Schema | None = settings.load(given.part("settings"), "schema")
        return schema

    def _attach(self, journal: "journal_lib.Journal", **options: Any) -> None:
        self._require_local("attach")
        super()._attach(journal, **options)

    def _require_local(self, call: str) -> None:
        """Raise ArgumentError if the values of rows are kept elsewhere."""
        if self._store.remote is not None:
            raise self._store.remote.refused(call)

    def _written(self) -> tuple[int, ...]:
        return self._store.next_key, len(self._store), self._store.num_evicted

    def _journaled(self, journal: "journal_lib.Journal", replay: Any, **options: Any) -> "journal_lib.Bound":
        return column_journal.ColumnJournal(journal, self._store, [] if replay is None else replay.begun, **options)

    def _begin(self, schema: schema_lib.Schema) -> None:
        """Allocate the columns of a schema that was read from a journal."""
        self._window.check_room(schema)
        self._store.begin(memory.ColumnStorage(schema, self.capacity))

    # Everything else.

    def get_stats(self) -> column_stats.ColumnBufferStats:
        """Return statistics of the buffer. O(capacity), without reading rows.

        The one exception is the extra `policy_version`, read for the oldest and the newest row.
        """
        return column_stats.of(self._store, self._draws, self._watch)

    def explain(self, key: SupportsIndex, /) -> "origins.RowOrigin":
        """Return the origin of the step with that key: stream, episode, step, age, draws, priority.

        Changes nothing; the cost hardly depends on the number of stored steps.

        Raises:
            UnknownKeyError: No step of that key is stored.
            ArgumentTypeError: The key is not an integer.

        >>> import relive
        >>> buffer = relive.RingReplayBuffer(10, seed=0)
        >>> keys = buffer.add_episode(range(4), [0, 1, 0], [0.0, 0.0, 1.0], terminated=True)
        >>> print(buffer.explain(2))
        key 2: step 2 of 3, episode from key 0, stream 0, TERMINATED, slot 2, age 0, eligible, probability 0.333333
        """
        try:
            number = operator.index(key)
        except TypeError:
            raise errors.ArgumentTypeError(f"explain must be given a key, got {validation.short_repr(key)}") from None
        return origins.of(self._store, self._draws, self._stored_slots(number))

    def clear(self) -> None:
        """Remove every step and every open episode.

        Keys, the counters of `get_stats`, the largest priority so far and the random generator are not reset.
        """
        self._gathers.finish()
        if self._journal is None and self._draws.tell is None:
            self._forget()
            return
        with self._changing(range(self.streams), len(self)):
            self._forget()
            if self._journal is not None:
                self._journal.clear()

    @contextlib.contextmanager
    def _changing(self, streams: Iterable[int], count: int = 0) -> Iterator[None]:
        """Take back, if the block raises, what it does to the `count` oldest rows and to the episodes of `streams`."""
        if self._journal is not None:
            self._journal.prepare()
        restore = self._store.keep(tuple(streams), self._store.oldest_key, count)
        try:
            yield
        except BaseException:
            restore()
            raise

    def _forget(self) -> None:
        """Remove every row and every open episode, without a record."""
        self._draws.clear()
        self._watch.forget_steps()

    def check(self) -> None:
        """Verify all invariants by recounting everything that is stored.

        Raises:
            CorruptionError: An invariant does not hold; the message says which.
        """
        self._store.check()
        self._draws.check()

    def _stored_slots(self, keys: Any) -> arrays_lib.Ints:
        keys = validation.integers("keys", keys)
        slots, alive = self._store.lookup(keys)
        if isinstance(alive, np.ndarray):
            raise errors.UnknownKeyError(f"key {keys[~alive][0]} not found: its step was evicted, or never was")
        return slots
