"""TokenStore: the episodes of a token buffer, and their sequences in ragged columns; whole episodes are evicted.

    episode    e0          e1    e2                  EpisodeFacts: names, status, rewards of the steps, mismatches
    key        0     1     2     3                   one for each sequence of an episode
    values     a a a b b   c c   d d d d             tokens, log-probabilities and so on, without shared beginnings
    rows       r     r     r     r                   return, counts, parent, and the extras of sequences
    extras     a a a b b   c c c d d d d             the extras of tokens, of whole sequences

Episodes are stored when they have ended, so none is ever open. The sequence that others begin like keeps its tokens
when it is evicted, until they are.
"""

import collections
from collections.abc import Callable, Iterator, Mapping, Sequence, ValuesView
import contextlib
import dataclasses
import itertools
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from relive import errors
from relive.agents import prefixes
from relive.agents import tokens
from relive.common import arrays
from relive.common import duplicates
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.episodes import metadata as metadata_lib
from relive.episodes import sums as sums_lib
from relive.schema import casting
from relive.schema import schema
from relive.storage import memory
from relive.storage import ragged
from relive.windows import returns

Fields: TypeAlias = Mapping[str, schema.Field]

FIELDS = {
    "tokens": schema.Field((), np.int32),
    "loss_mask": schema.Field((), np.bool_),
    "policy_versions": schema.Field((), np.int64),
    "rewards": schema.Field((), np.float64),
    "steps": schema.Field((), np.int32),
}
"""What is stored of each token beside its log-probability."""
SEQUENCE_FIELDS = {
    "returns": schema.Field((), np.float64),
    "is_exact": schema.Field((), np.bool_),
    "trained": schema.Field((), np.int64),
    "oldest_version": schema.Field((), np.int64),
    "parents": schema.Field((), np.int64),
    "shared": schema.Field((), np.int64),
}
"""What is stored of each sequence: the return of its episode, whether that is exact, how many tokens are in the loss
mask, the oldest policy version of those, -1 for none, the sequence it begins like, -1 for none, and for how long."""
NAMES = ("episode_id", "agent_id", "group_id", "status", "encoded_metadata", "mismatches")
"""What is known of an episode that cannot be read from its tokens."""
COUNTERS = ("episodes", "inexact_episodes", "evicted", "cleared", "sampled", "stale_keys")
MOST_EXTRAS = 2**62
"""So many extras of tokens may be stored: these columns grow."""
_FARTHEST = 4
"""A beginning is shared while that part of max_tokens at most was stored since: they may have to leave together."""
_AT_ONCE = 2**18
"""That many tokens are recounted at once, or those of one sequence if it has more."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EpisodeFacts:
    """What is known of an episode of a TokenReplayBuffer beside its tokens; compared by identity.

    Attributes:
        episode_id: Its id, a UUID.
        agent_id: The agent that acted in it.
        group_id: Its group, such as all responses to one prompt; None for none.
        status: How it ended.
        policy_version: The oldest policy version of its tokens in the loss mask; None if there are none.
        num_tokens: Number of its tokens, in all its sequences.
        first_key: The key of its first sequence.
        rewards: The reward of each step.
        mismatches: Why each of its sequences does not continue the previous one; None for the first.
        key_step: The step from the key of one of its sequences to the next.
        encoded_metadata: Its metadata, as bytes.
    """

    episode_id: str
    agent_id: str
    group_id: str | None
    status: episode_lib.FinalStatus
    policy_version: int | None
    num_tokens: int
    first_key: int
    rewards: tuple[float, ...] = dataclasses.field(repr=False)
    mismatches: tuple[tokens.TokenMismatch | None, ...] = dataclasses.field(repr=False)
    key_step: int = dataclasses.field(default=1, repr=False)
    encoded_metadata: bytes = dataclasses.field(default=b"", repr=False)

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata that it was added with: a new dict."""
        return metadata_lib.decoded(self.encoded_metadata)

    @property
    def version_changes(self) -> tuple[tuple[int, int], ...]:
        """Empty: the version of each token is stored with it."""
        return ()

    @property
    def names(self) -> dict[str, Any]:
        """The part of it that cannot be read from its tokens."""
        return {name: getattr(self, name) for name in NAMES}

    @property
    def keys(self) -> arrays.Keys:
        """The keys of its sequences: one if it is exact, else more."""
        return self.first_key + np.arange(len(self.mismatches)) * self.key_step

    @property
    def own_keys(self) -> range:
        """Them, which needs no memory."""
        return range(self.first_key, self.first_key + len(self.mismatches) * self.key_step, self.key_step)

    @property
    def num_steps(self) -> int:
        """Number of its steps."""
        return len(self.rewards)

    @property
    def total_reward(self) -> float:
        """The sum of its rewards."""
        return returns.total(self.rewards)

    def __len__(self) -> int:
        """Return the number of its steps."""
        return len(self.rewards)


class Entry(NamedTuple):
    """An episode that may be stored: all that is decided before it is, and all memory that it needs.

    Attributes:
        joined: The episode, without the beginnings that it shares.
        token_extras: The extras of its tokens, of whole sequences [N, ...].
        sequence_extras: Those of its sequences [S].
        first_key: The first sequence that is not evicted for it.
        keys: The keys of its sequences [S].
        facts: What EpisodeFacts has of it beside its names.
        rows: The columns, and the rows for them.
        extras: Those of the extras of tokens, if there are any.
    """

    joined: tokens.TokenEpisode
    token_extras: Mapping[str, arrays.Array]
    sequence_extras: Mapping[str, arrays.Array]
    first_key: int
    keys: arrays.Keys
    facts: Mapping[str, Any]
    rows: tuple[ragged.RaggedColumns, ragged.NewRows]
    extras: tuple[ragged.RaggedColumns, ragged.NewRows] | None


class Draws(Protocol):
    """The draws of a sampler from the sequences of a store."""

    def following(
        self, store: "TokenStore", gone: arrays.Keys, come: arrays.Keys
    ) -> contextlib.AbstractContextManager[None]:
        """Take in which sequences left the store and which came; if that or the block raises, nothing has changed."""
        ...


class TokenStore(duplicates.CopiedWhole):
    """The episodes of one buffer, first in, first out; its arguments are those of the buffer, checked.

    Attributes:
        rows: The sequences; None before the first episode.
        extras: The extras of their tokens; None before the first episode, or if there are none.
        owners: The episode of each stored sequence, by key.
        policy_version: The learner's policy version; None before the first.
        listeners: Notified in this order; see Listener.
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
        with self._room():
            if allocate is np.zeros:
                np.empty((max_tokens, max(widths)), np.uint8)
        self.rows: ragged.RaggedColumns | None = None
        self.extras: ragged.RaggedColumns | None = None
        self.owners: dict[int, EpisodeFacts] = {}
        self.policy_version: int | None = None
        self.listeners: list[Any] = []
        self.sums = sums_lib.Sums()
        self.num_updates = 0
        self.episodes = self.inexact_episodes = self.evicted = self.cleared = self.sampled = self.stale_keys = 0
        self._episodes: collections.OrderedDict[str, EpisodeFacts] = collections.OrderedDict()
        self._drawn: set[EpisodeFacts] = set()
        # By group, the first sequence of an episode, which further ones may begin like; and by such a sequence, the
        # last one that does.
        self._parents: dict[str, int] = {}
        self._last_child: dict[int, int] = {}

    def _room(self) -> contextlib.AbstractContextManager[None]:
        return memory.room_for("max_tokens", self.max_tokens, self._token_bytes, "tokens")

    @property
    def finished(self) -> ValuesView[EpisodeFacts]:
        """The episodes, in the order in which they were added."""
        return self._episodes.values()

    def __iter__(self) -> Iterator[EpisodeFacts]:
        """Yield the episodes in the order in which they were added."""
        return iter(self._episodes.values())

    def find(self, episode_id: str) -> EpisodeFacts | None:
        """Return the stored episode with that id, or None."""
        return self._episodes.get(episode_id)

    def was_drawn(self, episode: EpisodeFacts) -> bool:
        """Return whether a sequence of that stored episode was sampled."""
        return episode in self._drawn

    def was_trained(self, episode: EpisodeFacts) -> bool:
        """Return whether that stored episode was sampled, or delivered to the learner."""
        return episode in self._drawn or any(each.is_delivered(episode) for each in self.listeners)

    def note(self, keys: arrays.Ints) -> None:
        """Record that the sequences with those keys were sampled."""
        self.sampled += len(keys)
        self._drawn.update([self.owners[key] for key in keys.tolist()])

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
        of_tokens = {**FIELDS, "logprobs": schema.Field((), logprobs_dtype)}
        return of_tokens, {**SEQUENCE_FIELDS, **self.sequence_extras}

    def fitted(
        self,
        joined: tokens.TokenEpisode,
        token_extras: Mapping[str, arrays.Array],
        sequence_extras: Mapping[str, arrays.Array],
        group_id: str | None,
    ) -> Entry:
        """Return an episode as it is to be stored.

        Its log-probabilities have the dtype of the others, what it shares is left out, and there is room for it.

        Args:
            joined: The episode.
            token_extras: The extras of its tokens [N, ...].
            sequence_extras: Those of its sequences [S].
            group_id: Its group, if it has one.

        Raises:
            ArgumentError: It has more than max_tokens tokens, memory does not hold them, or this process is a fork.
            SchemaError: Its log-probabilities do not fit that dtype.
            CheckpointError: There is no room on disk.
        """
        rows, given, logprobs = self.rows, joined.logprobs_dtype, joined.columns["logprobs"]
        first = self.logprobs_dtype or given or np.dtype(np.float32)
        dtype = first if rows is None else rows.dtype("logprobs")
        if given is not None and not np.can_cast(given, dtype, "safe"):
            remedy = f"cast them with .astype({dtype.name!r}), or give the buffer logprobs_dtype={given.name!r}"
            raise errors.SchemaError(f"logprobs must fit {dtype}, as in the whole buffer, got {given}: {remedy}")
        logprobs = casting.cast_exact("logprobs", logprobs, logprobs.shape, dtype, is_weak=True)
        joined = self._shortened(
            dataclasses.replace(joined, columns={**joined.columns, "logprobs": logprobs}), group_id
        )
        total = int(joined.lengths.sum())
        if total > self.max_tokens:
            rule = f"at most max_tokens = {self.max_tokens} tokens when they are joined"
            raise errors.ArgumentError(f"steps must have {rule}, got {total}")
        return self.entry(joined, token_extras, sequence_extras, self._first_key_after(joined))

    def entry(
        self,
        joined: tokens.TokenEpisode,
        token_extras: Mapping[str, arrays.Array],
        sequence_extras: Mapping[str, arrays.Array],
        first_key: int,
    ) -> Entry:
        """Return an episode as it is to be stored, with room for it.

        Args:
            joined: The episode, whose log-probabilities are in the dtype of the buffer, without what it shares.
            token_extras: The extras of its tokens, of whole sequences [N, ...].
            sequence_extras: Those of its sequences [S].
            first_key: The first sequence that is not evicted for it.

        Raises:
            ArgumentError: It does not fit, or as in `fitted`.
        """
        rows, extras, count = self.rows, self.extras, len(joined.lengths)
        sizes, first = joined.lengths + joined.shared, self.inserted
        counts = _counted(joined.columns, joined.lengths)
        own = {"returns": np.full(count, joined.total_reward), "is_exact": np.full(count, joined.is_exact), **counts}
        own |= {"parents": joined.parents, "shared": joined.shared, **sequence_extras}
        facts: dict[str, Any] = {"first_key": first, "rewards": joined.rewards, "mismatches": joined.mismatches}
        facts |= _known(sizes, counts["oldest_version"])
        of_tokens: tuple[ragged.RaggedColumns, ragged.NewRows] | None = None
        with self._room():
            if rows is None:
                fields = self.fields(joined.columns["logprobs"].dtype)
                rows = ragged.RaggedColumns(self.max_tokens, *fields, allocate=self.allocate)
                if self.token_extras:
                    options: Any = {"is_uneven": True, "allocate": self.allocate}  # Since such columns grow.
                    extras = ragged.RaggedColumns(MOST_EXTRAS, self.token_extras, **options)
            of_sequences = rows, rows.planned(joined.columns, joined.lengths, own)
            if extras is not None:
                of_tokens = extras, extras.planned(token_extras, np.repeat(sizes, len(self.token_extras)))
        keys = first + np.arange(count)
        return Entry(joined, token_extras, sequence_extras, first_key, keys, facts, of_sequences, of_tokens)

    def _shortened(self, joined: tokens.TokenEpisode, group_id: str | None) -> tokens.TokenEpisode:
        """Return an episode without what it shares."""
        rows, key = self.rows, self._parents.get(group_id) if group_id is not None else None
        if rows is None or key is None:
            return prefixes.shortened(joined, self.inserted, None, lambda count: False)
        known = rows.read([key], ("tokens",))[0]["tokens"]  # Parents share nothing themselves.
        since, total = rows.num_values_from(key), int(joined.lengths.sum())

        def may_share(count: int) -> bool:
            return since - len(known) <= self.max_tokens // _FARTHEST and since + total - count <= self.max_tokens

        return prefixes.shortened(joined, self.inserted, (key, known), may_share)

    def _first_key_after(self, joined: tokens.TokenEpisode) -> int:
        """Return the first sequence that is not evicted for an episode."""
        rows = self.rows
        if rows is None:
            return 0
        first_key, first_kept, episodes = rows.first_key, rows.first_kept, iter(self)
        while rows.num_values_from(first_kept) + int(joined.lengths.sum()) > self.max_tokens:
            first_key += len(next(episodes).mismatches)
            first_kept = self._first_kept(first_kept, first_key, int(joined.parents[0]))
        return first_key

    def has_room(self, entry: Entry) -> bool:
        """Return whether an episode fits once those before its `first_key` are evicted, which may be untrusted."""
        rows, _ = entry.rows
        first_key, parent = max(entry.first_key, rows.first_key), int(entry.joined.parents[0])
        kept = self._first_kept(rows.first_kept, first_key, parent)
        return rows.num_values_from(kept) + int(entry.joined.lengths.sum()) <= self.max_tokens

    def _first_kept(self, key: int, first_key: int, parent: int) -> int:
        """Return the first sequence from a key on that is stored, that one of those needs, or that is the parent."""
        while key < first_key and key != parent and self._last_child.get(key, key) < first_key:
            key += 1
        return key

    def add(
        self,
        names: Mapping[str, Any],
        entry: Entry,
        draws: Draws | None,
        record: Callable[[], None] = lambda: None,
    ) -> EpisodeFacts:
        """Store an episode of those names, evict the oldest for it, and return it.

        Args:
            names: The names.
            entry: The episode; nothing was stored since it was fitted.
            draws: The draws, which learn first what comes and goes.
            record: Called when nothing else can fail. If it raises, or a sampler does, nothing has changed.
        """
        joined, (rows, new), known = entry.joined, entry.rows, (self.rows, self.extras)
        parent, position = int(joined.parents[0]), rows.position
        leaving = list(itertools.takewhile(lambda each: each.first_key < entry.first_key, self))
        count = sum(len(each.mismatches) for each in leaving)
        gone = rows.first_key + np.arange(count)
        episode = EpisodeFacts(**names, **entry.facts)
        first_kept = self._first_kept(rows.first_kept, rows.first_key + count, parent)
        rows.evict(count, first_kept)
        rows.enter(new)
        self.rows, self.extras = rows, entry.extras and entry.extras[0]
        try:
            with contextlib.nullcontext() if draws is None else draws.following(self, gone, entry.keys):
                record()
        except BaseException:
            rows.go_back(position)
            self.rows, self.extras = known
            raise
        # From here on, nothing can fail.
        for each in leaving:
            self._forget(each)
        for key in range(position[0], first_kept):
            self._last_child.pop(key, None)
        rows.write(new)
        if entry.extras is not None:
            extras, of_tokens = entry.extras
            extras.evict(count)
            extras.enter(of_tokens)
            extras.write(of_tokens)
        self.episodes += 1
        self.inexact_episodes += not joined.is_exact
        self._register(episode, parent)
        for listener in self.listeners:
            listener.started(self, episode)
        for listener in self.listeners:
            listener.ended(self, episode)
        return episode

    def _register(self, episode: EpisodeFacts, parent: int) -> None:
        """Put an episode, whose sequences are stored, into the tables."""
        self._episodes[episode.episode_id] = episode
        self.owners |= dict.fromkeys(episode.own_keys, episode)
        if self.rows is not None and parent >= self.rows.first_kept:  # In a replay it may be gone.
            self._last_child[parent] = episode.first_key + len(episode.mismatches) - 1
        elif parent < 0 and episode.group_id is not None:
            self._parents[episode.group_id] = episode.first_key

    def _forget(self, episode: EpisodeFacts) -> None:
        """Take an episode that is evicted out of the tables."""
        self.sums.add(episode, was_trained=self.was_trained(episode))
        for listener in self.listeners:
            listener.evicted(self, episode)
        if episode.group_id is not None and self._parents.get(episode.group_id) == episode.first_key:
            del self._parents[episode.group_id]
        self.evicted += len(episode.mismatches)
        del self._episodes[episode.episode_id]
        self._drawn.discard(episode)
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
        self._parents.clear()
        self._last_child.clear()
        self.owners.clear()
        self._episodes.clear()
        self._drawn.clear()

    def are_stored(self, keys: arrays.Ints) -> arrays.Bools:
        """Return whether the sequence of each key is stored [k]."""
        newest = self.inserted
        return (keys >= newest - len(self)) & (keys < newest)

    def lengths(self, keys: arrays.Ints) -> arrays.Ints:
        """Return the number of tokens of the sequences with those keys [k].

        Raises:
            UnknownKeyError: No sequence with one of the keys is stored.
        """
        for key in keys[~self.are_stored(keys)].tolist():
            raise errors.UnknownKeyError(f"key {key} not found: its sequence was evicted, or never was")
        if self.rows is None:
            return np.zeros(0, np.int64)
        return self.rows.lengths_of(keys) + self.rows.row_values("shared", keys)

    def read(self, keys: arrays.Ints) -> tuple[dict[str, arrays.Array], arrays.Ints]:
        """Return the columns of stored sequences [N, ...], whole and with their extras, and the length of each [k]."""
        assert self.rows is not None
        columns, offsets = self.rows.read(keys)
        lengths, shared = np.diff(offsets), self.rows.row_values("shared", keys)
        if shared.any():
            beginnings = self._beginnings(self.rows, self.rows.row_values("parents", keys), shared)
            columns = prefixes.whole(columns, lengths, shared, beginnings)
        if self.extras is not None:
            columns |= self.extras.read(keys)[0]
        return columns, lengths + shared

    def prefixes(self, keys: arrays.Ints, lengths: arrays.Ints) -> dict[str, arrays.Ints]:
        """Return the prefix_ids and prefix_lengths of a batch of stored sequences of those lengths [k]."""
        assert self.rows is not None
        parents, shared = self.rows.row_values("parents", keys), self.rows.row_values("shared", keys)
        is_own = parents < 0
        return {
            "prefix_ids": np.where(is_own, keys, parents),
            "prefix_lengths": np.where(is_own, lengths, shared),
        }

    @staticmethod
    def _beginnings(rows: ragged.RaggedColumns, keys: arrays.Ints, counts: arrays.Ints) -> tokens.Tokens:
        """Return so many tokens at the beginning of sequences with those keys [sum of counts]."""
        owners = np.repeat(keys, counts)
        places = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        while (is_shared := places < rows.row_values("shared", owners)).any():
            owners = np.where(is_shared, rows.row_values("parents", owners), owners)
        return rows.values_at("tokens", owners, places - rows.row_values("shared", owners))

    def update(
        self,
        keys: arrays.Ints,
        lengths: arrays.Ints,
        values: Mapping[str, arrays.Array],
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

    # As a whole.

    def fill(
        self,
        rows: ragged.RaggedColumns | None,
        extras: ragged.RaggedColumns | None,
        names: Sequence[Mapping[str, Any]],
        drawn: Sequence[bool],
    ) -> None:
        """Load sequences into an empty store, with the NAMES of each episode, and whether it was sampled.

        Raises:
            CorruptionError: The episodes have other sequences.
        """
        self.rows, self.extras = rows, extras
        rewards: list[tuple[float, ...]] = []
        place, first_key, lengths, oldest, parents = 0, 0, *[np.zeros(0, np.int64)] * 3
        if rows is not None:
            first_key, oldest, parents = rows.first_key, rows.row_values("oldest_version"), rows.row_values("parents")
            lengths = rows.lengths + rows.row_values("shared")
            for keys in _parts(rows.lengths, first_key):
                columns, offsets = rows.read(keys, ("steps", "rewards"))
                rewards += step_rewards(columns, np.diff(offsets))
        if sum(len(each["mismatches"]) for each in names) != len(rewards):
            raise errors.CorruptionError(f"episodes must have the {len(rewards)} sequences that are stored")
        for of_episode, is_drawn in zip(names, drawn, strict=True):
            own = slice(place, place + len(of_episode["mismatches"]))
            facts: Any = {"first_key": first_key + place, "rewards": tuple(itertools.chain.from_iterable(rewards[own]))}
            episode = EpisodeFacts(**of_episode, **facts, **_known(lengths[own], oldest[own]))
            self._register(episode, int(parents[place]))
            self._drawn.update([episode] if is_drawn else [])
            place = own.stop
        if len(self._episodes) != len(names):
            raise errors.CorruptionError("episodes must have ids of their own")
        self.check_parents()

    def check_parents(self) -> None:
        """Raise CorruptionError if a sequence begins like one that it cannot begin like. O(sequences)."""
        rows = self.rows
        if rows is None:
            return
        kept = np.arange(rows.first_kept, rows.first_key + len(rows))
        parents, shared = rows.row_values("parents", kept), rows.row_values("shared", kept)
        is_live, is_child = kept >= rows.first_key, (parents >= rows.first_kept) & (parents < kept)
        of_parents = parents[is_child] - rows.first_kept
        sizes = rows.kept_lengths + shared
        most = np.zeros(len(kept), np.int64)
        most[is_child] = sizes[of_parents]
        is_right = np.where(is_child, (shared >= 1) & (shared <= most), (shared == 0) & (parents == -1))
        if not is_right[is_live].all():
            raise errors.CorruptionError("each sequence must begin like an earlier one, or like none")
        for episode in self:
            own = parents[episode.keys - rows.first_kept]
            others = own[(own >= 0) & (own < episode.first_key)]
            if (others != own[0]).any() or (parents[others - rows.first_kept] >= 0).any():
                raise errors.CorruptionError("an episode must begin like one other, which begins like none")
        if rows.first_kept != self._first_kept(rows.first_kept, rows.first_key, -1):
            raise errors.CorruptionError("an evicted sequence that nothing begins like must not be kept")

    def check(self) -> None:
        """Recount everything from the tokens. O(tokens).

        Raises:
            CorruptionError: An invariant does not hold; the message says which.
        """
        rows, count = self.rows, len(self.owners)
        if (
            (rows is None) != (self.inserted == 0)
            or self.inserted != self.evicted + self.cleared + count
            or not 2 * self.inexact_episodes <= self.episodes + self.inexact_episodes <= self.inserted
        ):
            raise errors.CorruptionError(f"counters must be of a buffer that holds {count} sequences")
        if rows is None:
            return
        rows.check()
        twin = TokenStore(self.max_tokens, {}, {})
        twin.fill(rows, None, [each.names for each in self], [False] * len(self._episodes))
        sizes = self.lengths(rows.first_key + np.arange(len(rows)))
        if self.extras is not None:
            self.extras.check()
            if self.extras.first_key != rows.first_key or not np.array_equal(self.extras.lengths, sizes):
                raise errors.CorruptionError("each token must have its extras")
        for keys in _parts(sizes, rows.first_key):
            columns, lengths = self.read(keys)
            check_tokens(columns)
            _check_rows(rows, _counted(columns, lengths), keys)
        last_child = {key: last for key, last in self._last_child.items() if last >= rows.first_key}
        if (self._parents, last_child) != (twin._parents, twin._last_child):
            raise errors.CorruptionError("what sequences begin like must be what is stored of them")
        if list(map(dataclasses.astuple, self)) != list(map(dataclasses.astuple, twin)):
            raise errors.CorruptionError("episodes must be what their tokens make them")
        parts = np.array([len(each.mismatches) for each in self], np.int64)
        totals = np.array([each.total_reward for each in self], np.float64)
        _check_rows(rows, {"returns": totals.repeat(parts), "is_exact": (parts == 1).repeat(parts)})
        owners = [(key, self.find(episode.episode_id)) for key, episode in twin.owners.items()]
        if list(self.owners.items()) != owners:
            raise errors.CorruptionError("each sequence must belong to an episode, in their order")
        if not self._drawn <= set(self):
            raise errors.CorruptionError("episodes that were sampled must be stored")


def _parts(lengths: arrays.Ints, first_key: int) -> Iterator[arrays.Keys]:
    """Yield the keys of sequences of those lengths [S], a few at a time."""
    ends = np.cumsum(lengths)
    first, begin = 0, 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, begin + _AT_ONCE, side="right")))
        yield first_key + np.arange(first, last)
        first, begin = last, int(ends[last - 1])


def _check_rows(
    rows: ragged.RaggedColumns, expected: Mapping[str, arrays.Array], keys: arrays.Keys | None = None
) -> None:
    """Raise CorruptionError unless the row fields have those values, for the sequences with those keys, or all."""
    for name, values in expected.items():
        if not np.array_equal(values, rows.row_values(name, keys)):
            raise errors.CorruptionError(f"{name} of sequences must be what their tokens make it")


def check_tokens(columns: Mapping[str, arrays.Array]) -> None:
    """Raise CorruptionError if a token [N] is invalid."""
    logs, versions, mask = columns["logprobs"], columns["policy_versions"], columns["loss_mask"]
    is_generated = versions >= 0
    rules = {
        "tokens must be at least 0": columns["tokens"] >= 0,
        "loss_mask must be made of the bytes 0 and 1 alone": mask.view(np.uint8) <= 1,
        "loss_mask must be False for what no policy generated": is_generated >= mask,
        "logprobs must be finite and at most 0, but for rounding": tokens.are_logprobs(logs),
        "logprobs must be 0 for what no policy generated": is_generated | (logs == 0),
        "policy_versions must be at least -1": versions >= -1,
        "rewards must be finite": np.isfinite(columns["rewards"]),
        "rewards must be 0 for what no policy generated": is_generated | (columns["rewards"] == 0),
        "steps must be at least 0": columns["steps"] >= 0,
    }
    for rule, holds in rules.items():
        if not holds.all():
            raise errors.CorruptionError(rule)


def _known(lengths: arrays.Ints, oldest: arrays.Ints) -> dict[str, Any]:
    """Return what EpisodeFacts has of the lengths and oldest versions of the sequences of an episode."""
    version = min((version for version in oldest.tolist() if version >= 0), default=None)
    return {"policy_version": version, "num_tokens": int(lengths.sum())}


def _counted(columns: Mapping[str, arrays.Array], lengths: arrays.Ints) -> dict[str, arrays.Ints]:
    """Return the two counts for sequences of those lengths [S], whose tokens are concatenated in columns [N]."""
    starts, mask = np.cumsum(lengths) - lengths, columns["loss_mask"]
    trained = np.add.reduceat(mask, starts, dtype=np.int64)
    versions = np.where(mask, columns["policy_versions"], np.iinfo(np.int64).max)
    oldest = np.minimum.reduceat(versions, starts)
    oldest[trained == 0] = -1
    return {"trained": trained, "oldest_version": oldest}


def step_rewards(columns: Mapping[str, arrays.Array], lengths: arrays.Ints) -> list[tuple[float, ...]]:
    """Return the rewards of the steps in each sequence of those lengths [S]: those of the last tokens of the steps."""
    ends = np.cumsum(lengths)
    is_last = np.append(columns["steps"][1:] != columns["steps"][:-1], True)
    is_last[ends - 1] = True
    counts = np.add.reduceat(is_last, ends - lengths, dtype=np.int64)
    parts = np.split(columns["rewards"][is_last], np.cumsum(counts)[:-1])
    return [tuple(part.tolist()) for part in parts]
