"""TokenStore: the episodes of a token buffer, and their sequences in ragged columns; whole episodes are evicted.

    episode    e0          e1    e2                  EpisodeFacts: names, status, rewards of the steps, mismatches
    key        0     1     2     3                   one for each sequence of an episode
    values     a a a b b   c c   d d d d             tokens, log-probabilities and so on, without shared beginnings
    rows       r     r     r     r                   return, counts, parent, and the extras of sequences
    extras     a a a b b   c c c d d d d             the extras of tokens, of whole sequences

Episodes are stored when they have ended, so none is ever open. The sequence that others begin like keeps its tokens
when it is evicted, until they are. What is added is an Entry, see `token_entry`.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, ValuesView
import contextlib
import itertools
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from relive import errors
from relive.agents import facts
from relive.agents import prefixes
from relive.agents import tokens
from relive.common import arrays as arrays_lib
from relive.common import duplicates
from relive.common import validation
from relive.episodes import sums as sums_lib
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.storage import ragged

Fields: TypeAlias = Mapping[str, schema_lib.Field]
Extras: TypeAlias = tuple[Mapping[str, arrays_lib.Array], Mapping[str, arrays_lib.Array]]
"""The extras of tokens, of whole sequences [N, ...], and those of sequences [S], by name."""

FIELDS: Fields = {
    "tokens": schema_lib.Field((), np.int32),
    "loss_mask": schema_lib.Field((), np.bool_),
    "policy_versions": schema_lib.Field((), np.int64),
    "rewards": schema_lib.Field((), np.float64),
    "steps": schema_lib.Field((), np.int32),
}
"""What is stored of each token beside its log-probability."""
SEQUENCE_FIELDS: Fields = {
    "returns": schema_lib.Field((), np.float64),
    "is_exact": schema_lib.Field((), np.bool_),
    "trained": schema_lib.Field((), np.int64),
    "oldest_version": schema_lib.Field((), np.int64),
    "parents": schema_lib.Field((), np.int64),
    "shared": schema_lib.Field((), np.int64),
}
"""What is stored of each sequence: the return of its episode, whether that is exact, how many tokens are in the loss
mask, the oldest policy version of those, -1 for none, the sequence it begins like, -1 for none, and for how long."""
COUNTERS = ("episodes", "inexact_episodes", "evicted", "cleared", "sampled", "stale_keys")


class Entry(NamedTuple):
    """An episode that may be stored: all that is decided before it is, and all memory that it needs.

    Attributes:
        episode: What is known of it.
        joined: The episode, without the beginnings that it shares.
        extras: Its extras.
        first_key: The first sequence that is not evicted for it.
        rows: The columns, and the rows for them.
        token_rows: Those of the extras of tokens, if there are any.
    """

    episode: facts.EpisodeFacts
    joined: tokens.TokenEpisode
    extras: Extras
    first_key: int
    rows: tuple[ragged.RaggedColumns, ragged.NewRows]
    token_rows: tuple[ragged.RaggedColumns, ragged.NewRows] | None


class Draws(Protocol):
    """The draws of a sampler from the sequences of a store."""

    def following(
        self, store: "TokenStore", gone: arrays_lib.Keys, come: arrays_lib.Keys
    ) -> contextlib.AbstractContextManager[None]:
        """Take in which sequences left the store and which came; if that or the block raises, nothing has changed."""
        ...


class TokenStore(duplicates.CopiedWhole):
    """The episodes of one buffer, first in, first out; its arguments are those of the buffer, checked.

    Attributes:
        rows: The sequences; None before the first episode.
        extras: The extras of their tokens; None before the first episode, or if there are none.
        owners: The episode of each stored sequence, by key.
        by_id: The episodes, in the order in which they were added.
        drawn: Those of them of which a sequence was sampled.
        prefix_index: Which sequences begin like which.
        policy_version: The learner's policy version; None before the first.
        listeners: Are told what was `added`, is `evicted` or `cleared`, in this order.
        num_updates: Number of calls of `update`; not part of the state.
        sums: Sums over the episodes that are no longer stored.
    """

    def __init__(
        self,
        max_tokens: int,
        token_extras: Fields,
        sequence_extras: Fields,
        allocate: ragged.Allocate = np.zeros,
        logprobs_dtype: np.dtype[Any] | None = None,
    ) -> None:
        self.max_tokens, self.token_extras, self.sequence_extras = max_tokens, token_extras, sequence_extras
        validation.require_function("allocate", allocate)
        self.allocate, self.logprobs_dtype = allocate, logprobs_dtype
        widths = [field.nbytes for field in (*FIELDS.values(), *token_extras.values())]
        self._token_bytes = sum(widths)
        with self.room():
            if allocate is np.zeros:
                np.empty((max_tokens, max(widths)), np.uint8)
        self.rows: ragged.RaggedColumns | None = None
        self.extras: ragged.RaggedColumns | None = None
        self.owners: dict[int, facts.EpisodeFacts] = {}
        self.by_id: collections.OrderedDict[str, facts.EpisodeFacts] = collections.OrderedDict()
        self.drawn: set[facts.EpisodeFacts] = set()
        self.prefix_index = prefixes.PrefixIndex()
        self.policy_version: int | None = None
        self.listeners: list[Any] = []
        self.sums = sums_lib.Sums()
        self.num_updates = 0
        self.episodes = self.inexact_episodes = self.evicted = self.cleared = self.sampled = self.stale_keys = 0

    def room(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager in which running out of memory is an error that names max_tokens."""
        return memory.room_for("max_tokens", self.max_tokens, self._token_bytes, "tokens")

    @property
    def finished(self) -> ValuesView[facts.EpisodeFacts]:
        """The episodes, in the order in which they were added."""
        return self.by_id.values()

    def __iter__(self) -> Iterator[facts.EpisodeFacts]:
        """Yield the episodes in the order in which they were added."""
        return iter(self.by_id.values())

    def find(self, episode_id: str) -> facts.EpisodeFacts | None:
        """Return the stored episode with that id, or None."""
        return self.by_id.get(episode_id)

    def was_drawn(self, episode: facts.EpisodeFacts) -> bool:
        """Return whether a sequence of that stored episode was sampled."""
        return episode in self.drawn

    def was_trained(self, episode: facts.EpisodeFacts) -> bool:
        """Return whether that stored episode was sampled, or delivered to the learner."""
        return episode in self.drawn or any(each.is_delivered(episode) for each in self.listeners)

    def note(self, keys: arrays_lib.Ints) -> None:
        """Record that the sequences with those keys were sampled."""
        self.sampled += len(keys)
        self.drawn.update([self.owners[key] for key in keys.tolist()])

    def __len__(self) -> int:
        """Return the number of stored sequences."""
        return 0 if self.rows is None else len(self.rows)

    @property
    def inserted(self) -> int:
        """Number of sequences added so far: the key of the next one."""
        return 0 if self.rows is None else self.rows.first_key + len(self.rows)

    @property
    def num_tokens(self) -> int:
        """Number of stored tokens."""
        return 0 if self.rows is None else self.rows.num_values

    def counters(self) -> dict[str, int]:
        """Return the counters by name."""
        return {name: getattr(self, name) for name in COUNTERS}

    def fields(self, logprobs_dtype: np.dtype[Any]) -> tuple[Fields, Fields]:
        """Return the fields of a token, and those of a sequence."""
        of_tokens = {**FIELDS, "logprobs": schema_lib.Field((), logprobs_dtype)}
        return of_tokens, {**SEQUENCE_FIELDS, **self.sequence_extras}

    def add(self, entry: Entry, draws: Draws | None, record: Callable[[], None] = lambda: None) -> None:
        """Store an episode, and evict the oldest for it.

        Args:
            entry: The episode; nothing was stored since it was planned.
            draws: The draws, which learn first what comes and goes.
            record: Called when nothing else can fail. If it raises, or a sampler does, nothing has changed.
        """
        episode, parent = entry.episode, int(entry.joined.parents[0])
        (rows, new), known = entry.rows, (self.rows, self.extras)
        position = rows.position
        leaving = list(itertools.takewhile(lambda each: each.first_key < entry.first_key, self))
        count = sum(len(each.mismatches) for each in leaving)
        gone = rows.first_key + np.arange(count)
        first_kept = self.prefix_index.first_kept(rows.first_kept, rows.first_key + count, parent)
        rows.evict(count, first_kept)
        rows.enter(new)
        self.rows, self.extras = rows, entry.token_rows and entry.token_rows[0]
        try:
            with contextlib.nullcontext() if draws is None else draws.following(self, gone, episode.keys):
                record()
        except BaseException:
            rows.go_back(position)
            self.rows, self.extras = known
            raise
        # From here on, nothing can fail.
        for each in leaving:
            self._forget(each)
        self.prefix_index.drop(position[0], first_kept)
        rows.write(new)
        if entry.token_rows is not None:
            extras, of_tokens = entry.token_rows
            extras.evict(count)
            extras.enter(of_tokens)
            extras.write(of_tokens)
        self.episodes += 1
        self.inexact_episodes += not entry.joined.is_exact
        self.register(episode, parent, first_kept)
        for listener in self.listeners:
            listener.added(self, episode)

    def register(self, episode: facts.EpisodeFacts, parent: int, first_kept: int) -> None:
        """Put an episode, whose sequences are stored, into the tables."""
        self.by_id[episode.episode_id] = episode
        self.owners |= dict.fromkeys(episode.own_keys, episode)
        self.prefix_index.add(episode.own_keys, episode.group_id, parent, first_kept)

    def _forget(self, episode: facts.EpisodeFacts) -> None:
        """Take an episode that is evicted out of the tables."""
        self.sums.add(episode, was_trained=self.was_trained(episode))
        for listener in self.listeners:
            listener.evicted(self, episode)
        self.prefix_index.remove(episode.first_key, episode.group_id)
        self.evicted += len(episode.mismatches)
        del self.by_id[episode.episode_id]
        self.drawn.discard(episode)
        for key in episode.own_keys:
            del self.owners[key]

    def clear(self, draws: Draws | None, record: Callable[[], None] = lambda: None) -> None:
        """Remove every episode. Counters and the policy version are kept, and keys are not reused.

        `draws` and `record` are those of `add`.
        """
        gone = np.arange(self.inserted - len(self), self.inserted)
        with contextlib.nullcontext() if draws is None else draws.following(self, gone, gone[:0]):
            record()
        for episode in self:
            self.sums.add(episode, was_trained=self.was_trained(episode))
        for listener in self.listeners:
            listener.cleared(self)
        self.cleared += len(self.owners)
        for columns in (self.rows, self.extras):
            if columns is not None:
                columns.clear()
        self.prefix_index = prefixes.PrefixIndex()
        self.owners.clear()
        self.by_id.clear()
        self.drawn.clear()

    def are_stored(self, keys: arrays_lib.Ints) -> arrays_lib.Bools:
        """Return whether the sequence of each key is stored [k]."""
        newest = self.inserted
        return (keys >= newest - len(self)) & (keys < newest)

    def lengths(self, keys: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the number of tokens of the sequences with those keys [k].

        Raises:
            UnknownKeyError: No sequence with one of the keys is stored.
        """
        for key in keys[~self.are_stored(keys)].tolist():
            raise errors.UnknownKeyError(f"key {key} not found: its sequence was evicted, or never was")
        if self.rows is None:
            return np.zeros(0, np.int64)
        return self.rows.lengths_of(keys) + self.rows.row_values("shared", keys)

    def read(self, keys: arrays_lib.Ints) -> tuple[dict[str, arrays_lib.Array], arrays_lib.Ints]:
        """Return the columns of stored sequences [N, ...], whole and with their extras, and the length of each [k]."""
        assert self.rows is not None
        columns, offsets = self.rows.read(keys)
        lengths, shared = np.diff(offsets), self.rows.row_values("shared", keys)
        if shared.any():
            columns = prefixes.whole(columns, lengths, shared, prefixes.beginnings(self.rows, keys, shared))
        if self.extras is not None:
            columns |= self.extras.read(keys)[0]
        return columns, lengths + shared

    def prefixes(self, keys: arrays_lib.Ints, lengths: arrays_lib.Ints) -> dict[str, arrays_lib.Ints]:
        """Return the prefix_ids and prefix_lengths of a batch of stored sequences of those lengths [k]."""
        assert self.rows is not None
        parents, shared = self.rows.row_values("parents", keys), self.rows.row_values("shared", keys)
        is_own = parents < 0
        return {"prefix_ids": np.where(is_own, keys, parents), "prefix_lengths": np.where(is_own, lengths, shared)}

    def update(
        self,
        keys: arrays_lib.Ints,
        lengths: arrays_lib.Ints,
        values: Mapping[str, arrays_lib.Array],
        record: Callable[[], None] = lambda: None,
    ) -> int:
        """Overwrite extras of sequences, and return how many of the keys are stored; count the others.

        Args:
            keys: The keys [k].
            lengths: The lengths of the sequences [k].
            values: In the dtypes of their fields: of tokens [sum of lengths, ...], of sequences [k, ...].
            record: Called when nothing else can fail. If it raises, nothing has changed.

        Raises:
            ArgumentError: A stored sequence has another length. Nothing has changed.
        """
        alive, plan = self.are_stored(keys), list[Any]()
        num_alive = int(alive.sum())
        if num_alive:
            assert self.rows is not None
            kept = np.repeat(alive, lengths)
            of_tokens = {name: column[kept] for name, column in values.items() if name in self.token_extras}
            of_sequences = {name: column[alive] for name, column in values.items() if name not in of_tokens}
            stored, given = self.lengths(keys[alive]), lengths[alive]
            for place in np.flatnonzero(stored != given):
                rule = f"{stored[place]} for key {keys[alive][place]}, as stored"
                raise errors.ArgumentError(f"lengths must be {rule}, got {given[place]}")
            plan += self.rows.planned_update(keys[alive], {}, self.rows.lengths_of(keys[alive]), of_sequences)
            if self.extras is not None:
                sizes = np.repeat(stored, len(self.token_extras))
                plan += self.extras.planned_update(keys[alive], of_tokens, sizes)
        record()
        ragged.carry_out(plan)
        self.num_updates += 1
        self.stale_keys += len(keys) - num_alive
        return num_alive
