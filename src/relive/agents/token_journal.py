"""The journal records of a token buffer, and their replay.

    ADD         a tuple: the names of the episode as in a checkpoint; what is stored of its sequences: the lengths, the
                parents and the numbers of shared tokens i64 [3, S], and the columns [N] by name; the extras of all
                their tokens [M, ...] and of the sequences [S, ...] by name; the first sequence that is not evicted
    UPDATE      a tuple: keys i64 [k], the length of each i64 [k], extras by name, and the stale keys counted so far
    CLEAR       how many sequences were evicted so far
    PRIORITIES  a tuple: keys i64 [k] and raw priorities f64 [k]; only if the buffer is told to write them

Payloads are written by a PlainCodec. Each record is written when nothing else can fail, and its change is not made if
that does. Evictions follow from the additions. The records of the learner's queue are in `queue_journal`.
"""

from collections.abc import Mapping, Sequence
import itertools
from typing import Any

import numpy as np

from relive import errors
from relive.agents import queue_journal
from relive.agents import token_checks
from relive.agents import token_entry
from relive.agents import token_state
from relive.agents import token_store
from relive.agents import tokens
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.persistence import commands
from relive.persistence import journal as journal_lib
from relive.samplers import prioritized

ADD, UPDATE, CLEAR, PRIORITIES = 1, 2, 3, 6
_is_array, _is_dict = commands.is_a(np.ndarray), commands.is_a(dict)
COMMANDS: commands.Table = {
    **queue_journal.COMMANDS,
    ADD: ("add", (commands.is_a(tuple), _is_array, _is_dict, _is_dict, _is_dict, commands.is_count)),
    UPDATE: ("update", (_is_array, _is_array, _is_dict, commands.is_count)),
    CLEAR: ("clear", (commands.is_count,)),
    PRIORITIES: ("set_priorities", (_is_array, _is_array)),
}


class TokenJournal(commands.Writer):
    """Writes the changes of a buffer to a journal; `begun` is that of the Replay, if any."""

    def __init__(
        self,
        journal: journal_lib.Journal,
        store: token_store.TokenStore,
        begun: Sequence[tuple[int, int]],
        *,
        priorities: bool,
    ) -> None:
        super().__init__(journal, begun)
        self._store, self._writes_priorities = store, priorities

    def _newest(self) -> int:
        return self._store.inserted

    def _is_gone(self, newest: int) -> bool:
        return newest <= (0 if self._store.rows is None else self._store.rows.first_kept)

    def add(self, entry: token_store.Entry) -> None:
        """Journal an episode that is being stored."""
        plain, joined = token_state.plain_names(entry.episode), entry.joined
        sizes = np.stack([joined.lengths, joined.parents, joined.shared])
        self.write(ADD, plain, sizes, joined.columns, *map(dict, entry.extras), entry.first_key)

    def update(self, keys: arrays_lib.Ints, lengths: arrays_lib.Ints, values: Mapping[str, arrays_lib.Array]) -> None:
        """Journal a call of `TokenStore.update`."""
        num_stale = len(keys) - int(self._store.are_stored(keys).sum())
        self.write(UPDATE, keys, lengths, dict(values), self._store.stale_keys + num_stale)

    def set_priorities(self, keys: arrays_lib.Keys, priorities: arrays_lib.Floats) -> None:
        """Journal new priorities, if priorities are journaled."""
        if self._writes_priorities:
            self.write(PRIORITIES, keys, priorities)

    def clear(self) -> None:
        """Journal that every episode is removed."""
        self.write(CLEAR, self._store.evicted)


class Replay(queue_journal.QueueReplay):
    """Replays the records of a journal into a TokenReplayBuffer."""

    def __init__(self, buffer: Any) -> None:
        super().__init__(buffer)
        self.begun: list[tuple[int, int]] = []
        """The first record of each segment, and the key of the first sequence that is in none before it."""

    def base(self, number: int) -> None:
        """Record that a segment begins with the record of that number."""
        self.begun.append((number, self._store.inserted))

    def apply(self, kind: int, payload: bytes) -> None:
        """Apply a record, or raise CheckpointError if it is unknown or malformed."""
        commands.replay(COMMANDS, self, kind, payload)

    def clear(self, evicted: int) -> None:
        """Remove every episode."""
        if evicted > self._store.inserted - len(self._store):
            raise errors.CheckpointError(f"counts {evicted} sequences as evicted, which cannot be")
        self._store.clear(self._buffer._draws)
        # Sequences present when the segment began were counted as evicted, but were in fact cleared.
        self._store.evicted, self._store.cleared = evicted, self._store.inserted - evicted

    def add(
        self,
        names: Any,
        sizes: arrays_lib.Array,
        columns: Any,
        token_extras: Any,
        sequence_extras: Any,
        first_key: int,
    ) -> None:
        """Store an episode."""
        checked, store, logprobs = token_state.checked_names(names), self._store, columns.get("logprobs")
        mismatches = checked["mismatches"]
        is_float = isinstance(logprobs, np.ndarray) and logprobs.dtype.type in tokens.FLOATS and logprobs.dtype.isnative
        count = len(mismatches)
        is_sound = is_float and sizes.dtype == np.int64 and sizes.shape == (3, count) and (sizes[::2].T >= (1, 0)).all()
        if not is_sound or store.find(checked["episode_id"]) is not None:
            raise errors.CheckpointError("adds an invalid episode")
        lengths, parents, shared = sizes
        token_checks.columns(columns, store.fields(logprobs.dtype)[0], sum(lengths.tolist()))
        token_checks.columns(token_extras, store.token_extras, sum(sizes[::2].ravel().tolist()))
        token_checks.columns(sequence_extras, store.sequence_extras, count)
        try:
            token_checks.tokens(columns)
            rewards = tuple(itertools.chain.from_iterable(token_entry.step_rewards(columns, lengths)))
            joined = tokens.TokenEpisode(columns, logprobs.dtype, lengths, mismatches, rewards, parents, shared)
            entry = token_entry.planned(store, checked, joined, (token_extras, sequence_extras), first_key)
            if first_key > store.inserted or not token_entry.has_room(store, entry):
                raise errors.ArgumentError("there is no room for it")
        except (errors.CorruptionError, errors.ArgumentError) as error:
            raise errors.CheckpointError(f"adds an invalid episode: {error}") from error
        store.add(entry, self._buffer._draws)

    def end(self) -> None:
        """Finish the replay: there are no more records.

        Raises:
            CheckpointError: A sequence begins like one that it cannot begin like.
        """
        try:
            token_checks.parents(self._store)
        except errors.CorruptionError as error:
            raise errors.CheckpointError(str(error)) from error
        super().end()

    def set_priorities(self, keys: arrays_lib.Array, priorities: arrays_lib.Array) -> None:
        """Set the priorities of sequences, which were all stored when they were written."""
        is_sound = keys.dtype == np.int64 and priorities.dtype == np.float64
        if not is_sound or not keys.shape == priorities.shape == (keys.size,):
            raise errors.CheckpointError("sets priorities of something that is not a sequence")
        try:
            sampler = prioritized.required(self._buffer.sampler, "a journal of priorities")
            rated = validation.non_negative_floats("priority", priorities, len(keys))
            alive = self._store.are_stored(keys)
            sampler._set_priorities(self._buffer._draws.slots(keys[alive]), rated[alive])
            sampler._note_priority(max(dict(zip(keys.tolist(), rated.tolist(), strict=True)).values(), default=0.0))
        except errors.ArgumentError as error:
            raise errors.CheckpointError(f"sets invalid priorities: {error}") from error

    def update(
        self, keys: arrays_lib.Array, lengths: arrays_lib.Array, values: dict[str, Any], stale_keys: int
    ) -> None:
        """Overwrite extras."""
        store = self._store
        is_sound = keys.dtype == lengths.dtype == np.int64 and keys.ndim == 1 and keys.shape == lengths.shape
        if not is_sound or (lengths < 0).any():
            raise errors.CheckpointError("updates something that is not a sequence")
        if not values.keys() <= {*store.token_extras, *store.sequence_extras}:
            raise errors.CheckpointError("updates something that is not an extra")
        for fields, count in ((store.token_extras, sum(lengths.tolist())), (store.sequence_extras, len(keys))):
            given = {name: column for name, column in values.items() if name in fields}
            token_checks.columns(given, {name: fields[name] for name in given}, count)
        try:
            store.update(keys, lengths, values)
        except errors.ArgumentError as error:
            raise errors.CheckpointError(f"is an invalid update: {error}") from error
        # The update counts as stale here what is only missing because it was not in the first base.
        store.stale_keys = stale_keys
