"""ColumnReplayBuffer: combines stored steps, a window, a sampler and a rate limiter.

    add, extend, add_episode(s), add_steps                    sample
       │  check, and make bytes of rows    schema.encoding       │  may it?              RateLimiter
       │  rows to their slots              Storage               │  which anchors?       Draws, Sampler
       │  what follows them, what may      kernels.append        │  which rows?          Window, kernels.windows
       ▼  be drawn                                               ▼  their bytes          Storage

Ring, prioritized and sequence buffers are this buffer with different windows and samplers.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
import contextlib
import functools
import operator
import os
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Never, Self, SupportsIndex, TypeAlias, TypeVar

import numpy as np

from relive import errors
from relive.buffers import column_stats
from relive.buffers import draws
from relive.buffers import flat
from relive.buffers import misuse
from relive.buffers import prefetch as prefetch_lib
from relive.common import arrays
from relive.common import imports
from relive.common import notebook
from relive.common import validation
from relive.common import words
from relive.kernels import append
from relive.limits import rate_limiters
from relive.persistence import checkpointable
from relive.persistence import settings
from relive.persistence import state
from relive.samplers import prioritized
from relive.samplers import sampler as sampler_lib
from relive.samplers import uniform
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.storage import next_round
from relive.storage import step_table
from relive.storage import steps as steps_lib
from relive.storage import steps_state
from relive.storage import whole
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

AnyBatch: TypeAlias = batches.KeyedBatch[Any]
Batch = TypeVar("Batch", bound=AnyBatch)
Answer = TypeVar("Answer")
Use: TypeAlias = Callable[[steps_lib.StepStore, arrays.Ints, arrays.Floats, arrays.Floats], Answer]
"""Makes something of the slots of a draw, their probabilities and importance weights [B]."""

_MANY = 1_000
"""So many steps of a stream without an end are worth a word."""
_BOOKKEEPING = 16
"""About how many bytes a step takes beside its fields."""
MOST_STREAMS = 2**19
"""The most streams of a buffer: each takes memory, which a forged checkpoint could otherwise claim at no cost."""


class ColumnReplayBuffer(checkpointable.Journalable, Generic[Batch]):
    """A replay buffer of preallocated columns: stores steps of fixed shapes and dtypes, and samples windows of them.

    This is the general class, which takes any window. Most users want RingReplayBuffer, PrioritizedReplayBuffer or
    SequenceReplayBuffer.

    It has no locks and never waits; wrap it in an AsyncReplayBuffer or a ThreadSafeReplayBuffer to share it.

    Args:
        capacity: Maximum number of stored steps; the oldest are evicted first.
        schema: The fields of a step; None to infer them from the first step. Enforced either way.
        window: Which rows make one element of a batch.
        sampler: Draws the anchors; UniformSampler if None.
        streams: Number of environments or actors that write in parallel; at most 2^19.
        storage: Where the columns are stored; must have the same capacity. By default, arrays in memory.
        limiter: Decides when steps may be added and batches drawn; by default sampling needs one anchor.
        max_times_sampled: How many times an anchor may be drawn before it is retired; None for no limit.
        seed: Seed or generator for sampling; the same seed and the same calls give the same batches.

    Raises:
        ArgumentError: A setting is invalid.
    """

    _CAN_GROW: ClassVar[bool] = False
    """Whether fields may be added once rows are stored."""

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
        window._check_room(schema if storage is None else storage.schema)
        step_bytes = _BOOKKEEPING if schema is None or storage is not None else _BOOKKEEPING + schema.nbytes
        self._gathers = prefetch_lib.PendingReads()
        with memory.room_for("capacity", capacity, step_bytes):
            rule: dict[str, Any] = {"rule": window._rule, "is_tracking": sampler.is_tracking}
            self._store = steps_lib.StepStore(
                capacity, streams, check_room=window._check_room, compared_paths=window._compared_paths, **rule
            )
            self._draws = draws.Draws(self._store, window, sampler, max_times_sampled)
            self._watch = misuse.Watch()
            most = step_table.most_anchors(window._rule, capacity)
            self._limited = rate_limiters.LimiterState(
                limiter,
                self._draws,
                "capacity" if most == capacity else f"anchors in {capacity} steps",
                most,
                max_times_sampled=self._draws.max_times_sampled,
                steps_per_draw=step_table.rows_per_anchor(window._rule),
            )
            if storage is None and schema is not None:
                storage = memory.ColumnStorage(schema, capacity)
            if storage is not None:
                self._store.begin(storage)
            sampler.attach(self._draws.anchors)  # Last, since it cannot be attached again.

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

    # Writing.

    def add(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any = None,
        *others: Never,
        terminated: Any = False,
        truncated: Any = False,
        stream: int | None = None,
        **extras: Any,
    ) -> int:
        """Add one step and return its key.

        Args:
            observation: o_t. If it differs from the next_observation of the previous step, the open episode is closed
                as truncated and this step begins a new one: unrelated steps are never joined.
            action: a_t.
            reward: r_t.
            next_observation: o_{t+1}, if already known; otherwise the step becomes drawable once the next step is
                added. Required for a truncated step.
            others: None: the arguments below are given by name.
            terminated: Whether the task ended with this step: a bool, or 0 or 1 of any type.
            truncated: Whether the episode was truncated after it. Termination takes precedence.
            stream: The environment or actor of the step; required if there are several.
            extras: The other fields of the schema.

        Raises:
            SchemaError: A value does not fit its field, or an extra is missing or unknown.
            ArgumentError: Another argument is invalid.
            NotReadyError: The limiter holds inserts back.
        """
        if others:
            raise words.too_many("add", type(self).add, 4 + len(others))
        store = self._store
        number, event = encoding.stream_number(store.streams, stream), encoding.event(terminated, truncated)
        encoder = store.encoder
        if event or encoder is None:
            given = observation, action, reward, next_observation, extras
            return self._insert("add", encoding.steps(encoder, (number,), (event,), given))
        row, next_row = encoder.row(observation, action, reward, next_observation, extras)
        if self._is_alone and store.append_next(number, row, next_row):
            return store.next_key - 1
        return self._insert("add", encoding.Steps(encoder, (number,), (0,), row, next_row, False))

    def extend(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any = None,
        *others: Never,
        terminated: Any = None,
        truncated: Any = None,
        streams: Any = None,
        **extras: Any,
    ) -> arrays.Keys:
        """Add one step to every stream and return their keys [S]; stores what calls of `add` for each stream would.

        Args:
            observation: o_t of each stream [S, ...].
            action: a_t [S, ...].
            reward: r_t [S].
            next_observation: o_{t+1} [S, ...], or None if none of them is known yet.
            others: None: the arguments below are given by name.
            terminated: Whether the task ended with the step [S]; None for all False.
            truncated: Whether the episode was truncated after it [S]; None for all False.
            streams: The streams that have a step, as distinct numbers [S]; None for all, in order.
            extras: The other fields of the schema [S, ...].

        Raises:
            SchemaError: A value does not fit its field, or an extra is missing or unknown.
            ArgumentError: Another argument is invalid.
            NotReadyError: The limiter holds inserts back; it decides once for all steps of the call.
        """
        if others:
            raise words.too_many("extend", type(self).extend, 4 + len(others))
        if "stream" in extras:
            raise errors.ArgumentError(f"extend takes streams, got stream={validation.short_repr(extras['stream'])}")
        store = self._store
        numbers = encoding.stream_numbers(store.streams, streams)
        count = len(numbers)
        events = encoding.events(terminated, truncated, count)
        encoding.require_round(store.streams, count, reward)
        given = observation, action, reward, next_observation, extras
        steps, keys = encoding.steps(store.encoder, numbers, events, given), np.arange(count)
        keys += store.next_key
        written = store.append_next_round(steps) if self._is_alone else None
        if written is None:
            self._insert("extend", steps)
        elif written is not next_round.CONTINUED:
            self._watch.record(steps, written)
            self._watch.warn(count, False, written, store)
        return keys

    def add_episode(
        self,
        observations: Any,
        actions: Any,
        rewards: Any,
        *,
        terminated: Any = None,
        truncated: Any = None,
        stream: int | None = None,
        **extras: Any,
    ) -> arrays.Keys:
        """Add a whole episode of T steps and return their keys [T].

        Args:
            observations: o_0 to o_T [T + 1, ...].
            actions: a_0 to a_{T-1} [T, ...].
            rewards: r_0 to r_{T-1} [T].
            terminated: Whether the task ended with the last step; if not, the episode is truncated there.
            truncated: Whether the episode was truncated there. One of the two must be given, and one of them be True,
                unless `terminated` alone is False.
            stream: The environment or actor of the episode; required if there are several. An episode open there is
                closed as truncated.
            extras: The other fields of the schema [T, ...].

        Raises:
            SchemaError: A value does not fit its field, or an extra is missing or unknown.
            ArgumentError: The episode has no step or more than `capacity`, the flags do not say how it ended, or
                another argument is invalid.
            NotReadyError: The limiter holds inserts back; it decides once for all steps of the call.
        """
        if terminated is None and truncated is None:
            words.refuse_extras(extras, self._declared)
        ends = encoding.TERMINATED if validation.is_terminated(terminated, truncated) else encoding.TRUNCATED
        return self._add_run("add_episode", stream, observations, actions, rewards, (encoding.CUT, ends), extras)

    def add_episodes(
        self,
        observations: Any,
        actions: Any,
        rewards: Any,
        *,
        terminated: Any = None,
        truncated: Any = None,
        episodes: Any = None,
        next_observations: Any = None,
        last_row: Literal["step", "final_observation"] = "step",
        unknown_end: Literal["error", "drop", "keep"] = "error",
        stream: int | None = None,
        **extras: Any,
    ) -> arrays.Keys:
        """Add many episodes, one after the other in flat arrays of N rows, and return the keys of the steps.

        A row whose flag is set ends its episode, and rows after the last end are an episode that is truncated at its
        last row. The next observation of a row is the observation of the next row of its episode. All arguments are
        checked before anything is stored. Arrays may be memory maps.

        Args:
            observations: o_t of each row [N, ...].
            actions: a_t of each row [N, ...].
            rewards: r_t of each row [N].
            terminated: Whether the task ended with each row [N]; it takes precedence over `truncated`.
            truncated: Whether the episode was truncated after each row [N], as by a time limit.
            episodes: A number or name of the episode of each row [N]: equal neighbours are one episode, which is
                truncated at its last row if that has no flag. One of the three must be given.
            next_observations: o_{t+1} of each row [N, ...], if known. If one differs from the observation of the next
                row of its episode, the episode is closed as truncated there, as by `add`.
            last_row: Whether the last row of each episode is a step, or its "final_observation" alone: then its action,
                reward and extras mean nothing, and the flag is at it or, with `episodes`, at the row before it.
            unknown_end: What to do with the last step of an episode that did not terminate, if no observation follows
                it: raise an "error"; "drop" it, so that the episode is truncated before it; or "keep" it as
                `end_episode` does, stored but never drawn.
            stream: The environment or actor; required if there are several. An episode open there is ended first.
            extras: The other fields of the schema [N, ...].

        Raises:
            SchemaError: A value does not fit its field, or an extra is missing or unknown.
            ArgumentError: There are more steps than `capacity`, the flags do not say where episodes end, or another
                argument is invalid; the message names the row.
            NotReadyError: The limiter holds inserts back; it decides once for all steps of the call.

        >>> import relive
        >>> buffer = relive.RingReplayBuffer(10, seed=0)
        >>> is_end = [False, False, True, False, False]
        >>> buffer.add_episodes([0, 1, 2, 5, 6], [0, 1, 0, 1, 1], [0.0] * 5, terminated=is_end, unknown_end="drop")
        array([0, 1, 2, 3])
        >>> buffer.read([1, 2, 3]).next_observation, buffer.read([1, 2, 3]).next_discount
        (array([2, 0, 6]), array([0.99, 0.  , 0.99]))
        """
        store = self._store
        number = encoding.stream_number(store.streams, stream)
        given = observations, actions, rewards, next_observations, extras
        flags = flat.Flags(terminated, truncated, episodes, last_row, unknown_end)
        if terminated is None and truncated is None and episodes is None:
            words.refuse_extras(extras, self._declared)
        found, num_spliced = flat.episodes_of(store.encoder, number, given, flags)
        count = 0 if found is None else len(found)
        if count > store.capacity:
            raise errors.ArgumentError(f"add_episodes must have at most capacity = {store.capacity} steps, got {count}")
        self._require_turn("add_episodes")
        keys = np.arange(store.next_key, store.next_key + count)
        if found is None:
            self.end_episode(number)
        else:
            self._append_episodes(found, num_spliced)
            self._watch.warn(count, True, next_round.CONTINUED, store)
        return keys

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
        """Add T consecutive steps of one stream and return their keys [T]; equivalent to calling `add` for each step.

        They continue the episode that is open in the stream if they begin at its newest observation.

        Args:
            observations: o_t to o_{t+T} [T + 1, ...]; the last one follows the newest step.
            actions: a_t to a_{t+T-1} [T, ...].
            rewards: r_t to r_{t+T-1} [T].
            terminated: Whether the task ended with the last step.
            truncated: Whether the episode was truncated after the last step.
            stream: The environment or actor of the step; required if there are several.
            extras: The other fields of the schema [T, ...].

        Raises:
            SchemaError: A value does not fit its field, or an extra is missing or unknown.
            ArgumentError: There is no step or more than `capacity`, or another argument is invalid.
            NotReadyError: The limiter holds inserts back; it decides once for all steps of the call.
        """
        events = 0, encoding.event(terminated, truncated)
        return self._add_run("add_steps", stream, observations, actions, rewards, events, extras)

    def _add_run(
        self,
        call: str,
        stream: Any,
        observations: Any,
        actions: Any,
        rewards: Any,
        events: tuple[int, int],
        extras: Mapping[str, Any],
    ) -> arrays.Keys:
        """Add consecutive steps of one stream, with the given events at the first and the last; return their keys."""
        store = self._store
        number = encoding.stream_number(store.streams, stream)
        count = validation.leading_length("rewards", rewards)
        if not 1 <= count <= store.capacity:
            name = "an episode" if call == "add_episode" else call
            raise errors.ArgumentError(f"{name} must have 1 to capacity = {store.capacity} steps, got {count}")
        streams, of_each = np.full(count, number, np.int64), encoding.events_of_run(count, *events)
        given = observations, actions, rewards, None, extras
        steps = encoding.steps(store.encoder, streams, of_each, given, is_run=True)
        keys = np.arange(store.next_key, store.next_key + count)
        self._insert(call, steps)
        return keys

    @property
    def _is_alone(self) -> bool:
        """Whether a write is the business of the store alone, so that steps may take its short ways."""
        is_told = self._journal is not None or self._limited.holds_inserts or self._draws.follows_writes
        return not is_told and not self._gathers.ends

    def _insert(self, call: str, steps: encoding.Steps) -> int:
        """Write steps that were already checked, unless the limiter holds them back; return the key of the first."""
        self._require_turn(call)
        key, written = self._store.next_key, self._append(steps)
        if written is not next_round.CONTINUED:
            # Last, since a warning may be raised: the steps are stored by then.
            self._watch.warn(len(steps.streams), steps.is_run, written, self._store)
        return key

    def _require_turn(self, call: str) -> None:
        """Raise NotReadyError if the limiter holds inserts back."""
        if self._limited.holds_inserts and not self._limited.can_insert():
            raise errors.NotReadyError(f"{call} held back by {self._limited.limiter!r}: draw samples first")

    def _append_episodes(self, episodes: whole.Episodes, num_spliced: int) -> None:
        """Write whole episodes, some of them closed as the next row did not follow; or raise, and change nothing."""
        store, draws, count = self._store, self._draws, len(episodes)
        self._gathers.finish()
        num_ends = len(episodes.lengths) - num_spliced + store.is_open(episodes.stream)
        whole.append_episodes(store, episodes, self._journal, draws.tell)
        self._watch.spliced_episodes += num_spliced
        self._watch.ends += int(num_ends)
        draws.begin(store.next_key - count, count)

    def _append(self, steps: encoding.Steps) -> next_round.Written:
        """Write steps, and return what was found out about them; if it raises, nothing has changed."""
        store, draws = self._store, self._draws
        count = len(steps.streams)
        if not count:
            return next_round.CONTINUED
        if self._gathers.ends:
            self._gathers.finish()
        written = store.append(steps, journal=self._journal, tell=draws.tell)
        draws.begin(store.next_key - count, count)
        if written is not next_round.CONTINUED:
            self._watch.record(steps, written)
        return written

    def end_episode(self, stream: int | None = None) -> bool:
        """End the open episode of a stream as truncated, and return whether there was one.

        Call this when an environment is reset before its episode has ended. Otherwise the episode continues if the next
        step happens to begin with the next_observation of the last one.

        The episode is truncated after its newest step, or before it if what was observed after that is not known: the
        step is stored, but never drawn, and windows of earlier steps end at it with a bootstrap from its observation.

        Args:
            stream: The environment or actor; required if there are several.

        Raises:
            ArgumentError: There is no such stream.
        """
        store = self._store
        stream = encoding.stream_number(store.streams, stream)
        if not store.is_open(stream):
            return False
        with self._changing((stream,)):
            self._end_episode(stream)
        self._position = None
        return True

    def _end_episode(self, stream: int) -> None:
        self._gathers.finish()
        self._store.cut(stream)
        if self._draws.tell is not None:
            self._draws.tell()
        if self._journal is not None:
            self._journal.end_episode(stream)
        self._watch.ends += 1

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

    def can_insert(self) -> bool:
        """Return whether the limiter allows `add` and the other calls that add steps now. O(1)."""
        return self._limited.can_insert()

    # Drawing.

    def can_sample(self, batch_size: int) -> bool:
        """Return whether `sample` would succeed now, without drawing.

        O(1); O(capacity) with max_times_sampled.

        Raises:
            ArgumentError: batch_size is not an integer of at least 1, or is more than the limiter ever allows.
        """
        batch_size = self._limited.checked_batch_size(batch_size)
        return self._limited.can_sample(batch_size) and self._draws.can_draw(batch_size)

    def sample_keys(self, batch_size: int) -> arrays.Keys:
        """Draw as `sample` does and return only the keys [B]; `read` returns their windows.

        Raises:
            ArgumentError: batch_size is not an integer of at least 1.
            NotReadyError: Nothing is eligible, or the limiter holds samples back.
        """
        return self._draw(batch_size, None, lambda store, slots, probabilities, weights: store.keys(slots))

    def sample(self, batch_size: int, *, beta: float | None = None) -> Batch:
        """Return exactly batch_size windows, drawn with replacement.

        Args:
            batch_size: The batch size, B.
            beta: Exponent of the importance weights, overriding the sampler's; only with priorities.

        Raises:
            ArgumentError: An argument is invalid.
            NotReadyError: Nothing is eligible, or the limiter holds samples back.
        """
        return self._draw(batch_size, beta, self._window._read)

    def batches(self, batch_size: int, *, prefetch: int = 2, beta: float | None = None) -> prefetch_lib.Batches[Batch]:
        """Return an endless iterator of batches as from `sample`, prefetched in a thread while the learner works.

        Batch i is drawn, and counted by the limiter and by max_times_sampled, when batch i - prefetch is returned; the
        first batches are drawn with the first `next`. A batch is what `sample` would have returned at that moment: the
        same calls give the same batches, and later additions, priorities and `clear` do not affect it. A call that
        writes steps waits for batches being gathered, so let the learner work between `next` and `add`.

        If nothing can be drawn ahead, the following `next` tries again; it raises NotReadyError only once all
        prefetched batches were returned. An exception raised while gathering a batch is raised in place of that batch,
        which stays counted. `close()` discards what is prefetched, and ends the thread.

        Args:
            batch_size: Number of windows in a batch, B.
            prefetch: Number of batches drawn ahead, each of which takes memory; 0 for plain `sample` without a thread.
            beta: As in `sample`.

        Raises:
            ArgumentError: An argument is invalid.
        """
        return self._batches(self._window, batch_size, prefetch, beta)

    def read(self, keys: Any, *, beta: float | None = None) -> Batch:
        """Return the windows that start at the steps with those keys [B]; otherwise like `sample`.

        Raises:
            UnknownKeyError: No step of one of the keys is stored.
            ArgumentError: No window can start at one of them, or beta is invalid.
        """
        return self._read(self._window, keys, beta)

    def _batches(
        self, window: window_lib.Window[Batch], batch_size: int, prefetch: int, beta: float | None
    ) -> prefetch_lib.Batches[Batch]:
        batch_size = self._limited.checked_batch_size(batch_size)
        if beta is not None:
            self.sampler.check_beta(beta)

        def draw() -> Callable[[], Batch]:
            """Return a function that returns the next batch; no step may be written until it returns."""
            if not prefetch:
                return functools.partial(self._draw, batch_size, beta, window._read)
            return self._draw(batch_size, beta, functools.partial(functools.partial, window._read))

        return prefetch_lib.Batches(draw, self._gathers, prefetch)

    def _read(self, window: window_lib.Window[Batch], keys: Any, beta: float | None) -> Batch:
        """Return the windows that start at those keys [B]."""
        slots = self._readable_slots(keys)
        if not self._store.has_begun:
            raise errors.NotReadyError("read has no schema yet: add a step first")
        probabilities = self.sampler.probabilities(slots)
        weights = self.sampler.importance_weights(slots, probabilities, beta)
        return window._read(self._store, slots, probabilities, weights)

    def _draw(self, batch_size: int, beta: float | None, use: Use[Answer]) -> Answer:
        """Draw batch_size anchors, and return what `use` makes of them.

        If anything raises, nothing is counted, and the generator has not moved.
        """
        batch_size = self._limited.checked_batch_size(batch_size)
        if beta is not None:
            self.sampler.check_beta(beta)
        if self._limited.holds_samples and not self._limited.can_sample(batch_size):
            self._draws.require_any()
            raise errors.NotReadyError(f"sample held back by {self.limiter!r}: add steps first")
        bits, slots = self._rng.bit_generator, None
        state = bits.state
        try:
            slots, probabilities, weights = self._draws.draw(batch_size, self._rng, beta)
            return use(self._store, slots, probabilities, weights)
        except BaseException:
            bits.state = state
            if slots is not None:
                self._draws.take_back(slots)
            raise

    @contextlib.contextmanager
    def _revocable(self, keys: arrays.Keys) -> Iterator[None]:
        """Take back the last draw, which was of those keys, if the block raises."""
        try:
            yield
        except BaseException:
            self._draws.take_back(self._store.slots(keys))
            raise

    def eligible_keys(self) -> arrays.Keys:
        """Return the keys of all anchors that may be drawn now, oldest first. O(capacity)."""
        return np.sort(self._store.keys(self._draws.anchors.slots()))

    def _readable_slots(self, keys: Any) -> arrays.Ints:
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

    def _record_priorities(self, keys: arrays.Keys, priorities: arrays.Floats, then: Callable[[], None] | None) -> None:
        if then is not None:
            then()
        self._journal.set_priorities(keys, priorities)

    def _require_given_out(self, keys: arrays.Keys) -> None:
        """Raise ArgumentError if one of the keys [k] is of no step that was ever added."""
        validation.require_given_out(keys, self._store.next_key, "steps")

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

    def _prioritized_sampler(self, call: str) -> prioritized.PrioritizedSampler:
        return prioritized.required(self._draws.sampler, call)

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
        if not isinstance(storage, memmap.MemmapStorage):
            raise errors.ArgumentError("copy_rows must be True unless the storage is a MemmapStorage, got False")
        storage.flush()
        elsewhere = {name: array for name, array in kept["arrays"].items() if not name.startswith("rows/")}
        return {**kept, "rows_in": {"id": storage._id, "generation": storage.generation}, "arrays": elsewhere}

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
            self._check_rows_in_map(given.part("rows_in"))
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

    def _check_rows_in_map(self, given: state.StateReader) -> None:
        """Raise CheckpointError unless the storage is the memory map that holds the rows of the checkpoint."""
        storage = self._storage
        if not isinstance(storage, memmap.MemmapStorage):
            raise errors.CheckpointError("the rows are in a memory map: load with storage=MemmapStorage(...)")
        if given.text("id") != storage._id:
            raise errors.CheckpointError(f"storage must be the memory map {given.text('id')}, got {storage._id}")
        if storage.is_dirty or given.integer("generation") != storage.generation:
            raise errors.CheckpointError(
                "the memory map was written to after the checkpoint was saved: recover the buffer from a journal, or "
                "load a checkpoint with copied rows"
            )

    def attach(self, journal: "journal_lib.Journal", *, priorities: bool = False) -> None:
        """Write every change to a journal from now on, in the call that makes it, so that none is lost.

        An empty journal begins with everything stored now: as one record, or, above 16 MiB, as a checkpoint in its
        directory. A journal with contents is continued: the buffer must be the one that `recover` returned. Draws are
        not written.

        Args:
            journal: An open journal that no other buffer writes to. While it is attached, a call that cannot be
                journaled raises CheckpointError and changes nothing.
            priorities: Whether to journal `update_priorities` too, 16 bytes per priority.

        Raises:
            ArgumentError: A journal is already attached, this one does not match the buffer, or `priorities` is set and
                the buffer has none.
            CheckpointError: The journal could not be written.
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
        return column_journal.Replay(self, can_grow=self._CAN_GROW)

    def _begin(self, schema: schema_lib.Schema) -> None:
        """Allocate the columns of a schema that was read from a journal."""
        self._window._check_room(schema)
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

    def _stored_slots(self, keys: Any) -> arrays.Ints:
        keys = validation.integers("keys", keys)
        slots, alive = self._store.lookup(keys)
        if isinstance(alive, np.ndarray):
            raise errors.UnknownKeyError(f"key {keys[~alive][0]} not found: its step was evicted, or never was")
        return slots
