"""ColumnReplayBuffer: combines stored steps, a window, a sampler and a rate limiter.

    add, extend, add_episode(s), add_steps                    sample
       │  check, and make bytes of rows    schema.encoding       │  may it?              RateLimiter
       │  rows to their slots              Storage               │  which anchors?       Draws, Sampler
       │  what follows them, what may      kernels.append        │  which rows?          Window, kernels.windows
       ▼  be drawn                                               ▼  their bytes          Storage

Ring, prioritized and sequence buffers are this buffer with different windows and samplers.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import functools
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Never, TypeAlias, TypeVar

import numpy as np

from relive import errors
from relive.buffers import flat
from relive.buffers import prefetch as prefetch_lib
from relive.buffers import stored
from relive.common import arrays as arrays_lib
from relive.common import imports
from relive.common import validation
from relive.common import words
from relive.persistence import checkpointable
from relive.schema import encoding
from relive.storage import next_round
from relive.storage import steps as steps_lib
from relive.storage import whole
from relive.windows import batches
from relive.windows import window as window_lib

if TYPE_CHECKING:
    from relive.buffers import column_journal
else:
    column_journal = imports.lazy_module("relive.buffers.column_journal")

AnyBatch: TypeAlias = batches.KeyedBatch[Any]
Batch = TypeVar("Batch", bound=AnyBatch)
Answer = TypeVar("Answer")
Use: TypeAlias = Callable[[steps_lib.StepStore, arrays_lib.Ints, arrays_lib.Floats, arrays_lib.Floats], Answer]
"""Makes something of the slots of a draw, their probabilities and importance weights [B]."""


class ColumnReplayBuffer(stored.StoredSteps[Batch], Generic[Batch]):
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
        storage: Where the columns are stored; must have the same capacity, and belong to no other buffer that is still
            there. By default, arrays in memory.
        limiter: Decides when steps may be added and batches drawn; by default sampling needs one anchor.
        max_times_sampled: How many times an anchor may be drawn before it is retired; None for no limit.
        seed: Seed or generator for sampling; the same seed and the same calls give the same batches.

    Raises:
        ArgumentError: A setting is invalid.
    """

    _CAN_GROW: ClassVar[bool] = False
    """Whether fields may be added once rows are stored."""

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
        number = encoding.stream_number(store.streams, stream)
        if store.remote is not None:
            self._gathers.finish()
            given = observation, action, reward, next_observation, extras
            return self._insert("add", store.remote.encode_step(number, given, terminated, truncated))
        event, encoder = encoding.event(terminated, truncated), store.encoder
        if event or encoder is None:
            given = observation, action, reward, next_observation, extras
            return self._insert("add", encoding.steps(encoder, (number,), bytes([event]), given))
        row, next_row = encoder.row(observation, action, reward, next_observation, extras)
        is_alone = self._is_alone()
        if is_alone and (key := store.append_next(number, row, next_row)) >= 0:
            return key
        steps = encoding.Steps(encoder, (number,), b"\0", row, next_row, False)
        if not is_alone:
            return self._insert("add", steps)
        self._watch.look(store, steps, store.append_any(steps))
        return store.next_key - 1

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
    ) -> arrays_lib.Keys:
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
        if store.remote is not None:
            self._gathers.finish()
            given = observation, action, reward, next_observation, extras
            key = self._insert("extend", store.remote.encode_round(numbers, given, terminated, truncated))
            return np.arange(key, key + count)
        events = encoding.events(terminated, truncated, count)
        encoding.require_round(store.streams, count, reward)
        key, encoder = store.next_key, store.encoder
        keys = np.arange(key, key + count)
        if next_observation is None or encoder is None:
            given = observation, action, reward, next_observation, extras
            self._insert("extend", encoding.steps(encoder, numbers, events, given))
            return keys
        rows, next_rows = encoder.rows(count, observation, action, reward, next_observation, extras)
        is_alone = count > 1 and self._is_alone()
        written = store.append_next_round(numbers, events, rows, next_rows) if is_alone else None
        if written is next_round.CONTINUED:
            return keys
        if written is not None and not written.after_termination and not written.after_truncation:
            self._watch.record_ends(written.num_ends)
            return keys
        steps = encoding.Steps(encoder, numbers, events, rows, next_rows, False)
        if is_alone:
            self._watch.look(store, steps, store.append_any(steps) if written is None else written)
        else:
            self._insert("extend", steps)
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
    ) -> arrays_lib.Keys:
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
    ) -> arrays_lib.Keys:
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
        self._require_local("add_episodes")
        words.refuse_extras(extras, self._declared, words.FLAT_EXTRAS)
        found, num_spliced = flat.episodes_of(store.encoder, number, given, flags)
        count = 0 if found is None else len(found)
        if count > store.capacity:
            raise errors.ArgumentError(f"add_episodes must have at most capacity = {store.capacity} steps, got {count}")
        self._require_turn("add_episodes")
        keys = np.arange(store.next_key, store.next_key + count)
        if found is None:
            self.end_episode(number)
        else:
            num_closed = len(found.lengths) + int(store.is_open(number))
            self._append_episodes(found)
            self._watch.look_at_episodes(store, count, num_closed, num_spliced)
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
    ) -> arrays_lib.Keys:
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
    ) -> arrays_lib.Keys:
        """Add consecutive steps of one stream, with the given events at the first and the last; return their keys."""
        store = self._store
        number = encoding.stream_number(store.streams, stream)
        count = validation.leading_length("rewards", rewards)
        if not 1 <= count <= store.capacity:
            name = "an episode" if call == "add_episode" else call
            raise errors.ArgumentError(f"{name} must have 1 to capacity = {store.capacity} steps, got {count}")
        streams, of_each = np.full(count, number, np.int64), encoding.events_of_run(count, *events)
        given = observations, actions, rewards, None, extras
        if store.remote is not None:
            self._gathers.finish()
            steps = store.remote.encode_run(streams, of_each, given)
        else:
            steps = encoding.steps(store.encoder, streams, of_each, given, is_run=True)
        keys = np.arange(store.next_key, store.next_key + count)
        self._insert(call, steps)
        return keys

    def _is_alone(self) -> bool:
        """Whether a write is the business of the store alone, so that steps may take its short ways."""
        draws = self._draws
        is_told = self._journal is not None or draws.sampler.has_hooks or draws.limited is not None
        return not (is_told or self._limited.holds_inserts or self._gathers.ends)

    def _insert(self, call: str, steps: encoding.Steps) -> int:
        """Write steps that were already checked, unless the limiter holds them back; return the key of the first."""
        self._require_turn(call)
        key, written = self._store.next_key, self._append(steps)
        if written is not next_round.CONTINUED:
            # Last, since a warning may be raised: the steps are stored by then.
            self._watch.look(self._store, steps, written)
        return key

    def _require_turn(self, call: str) -> None:
        """Raise NotReadyError if the limiter holds inserts back."""
        if self._limited.holds_inserts and not self._limited.can_insert():
            raise errors.NotReadyError(f"{call} held back by {self._limited.limiter!r}: draw samples first")

    def _append_episodes(self, episodes: whole.Episodes) -> None:
        """Write whole episodes; or raise, and change nothing."""
        store, draws, count = self._store, self._draws, len(episodes)
        self._gathers.finish()
        whole.append_episodes(store, episodes, self._journal, draws.tell)
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
        return written

    def _replay_steps(self, steps: encoding.Steps) -> None:
        """Write steps that a journal holds; what they show was told when they were new."""
        self._watch.record(steps, self._append(steps))

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
        self._watch.record_ends(1)

    def _replay(self, **options: Any) -> checkpointable.Replay:
        self._require_local("recover")
        return column_journal.Replay(self, can_grow=self._CAN_GROW)

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

    def sample_keys(self, batch_size: int) -> arrays_lib.Keys:
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
        return self._draw(batch_size, beta, self._reader(self._window))

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
        read = self._reader(window)

        def draw() -> Callable[[], Batch]:
            """Return a function that returns the next batch; no step may be written until it returns."""
            if not prefetch:
                return functools.partial(self._draw, batch_size, beta, read)
            return self._draw(batch_size, beta, functools.partial(functools.partial, read))

        return prefetch_lib.Batches(draw, self._gathers, prefetch)

    def _read(self, window: window_lib.Window[Batch], keys: Any, beta: float | None) -> Batch:
        """Return the windows that start at those keys [B]."""
        slots = self._readable_slots(keys)
        if not self._store.has_begun:
            raise errors.NotReadyError("read has no schema yet: add a step first")
        probabilities = self.sampler.probabilities(slots)
        weights = self.sampler.importance_weights(slots, probabilities, beta)
        return self._reader(window)(self._store, slots, probabilities, weights)

    def _reader(self, window: window_lib.Window[Batch]) -> Use[Batch]:
        """Return what reads the windows of a draw."""
        remote = self._store.remote
        return window._read if remote is None else functools.partial(remote.read_window, window)

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
    def _revocable(self, keys: arrays_lib.Keys) -> Iterator[None]:
        """Take back the last draw, which was of those keys, if the block raises."""
        try:
            yield
        except BaseException:
            self._draws.take_back(self._store.slots(keys))
            raise
