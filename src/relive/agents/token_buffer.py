"""TokenReplayBuffer: token sequences of language-model agents, as the model saw and generated them.

    add_episode(steps)    join the steps, or flag the episode           tokens
                          whole episodes, the oldest is evicted first   token_store
    sample(batch_size)    draw sequences, pad them                      token_draws, packing
    next_episodes(count)  deliver each episode once, with its keys      delivery
    update(keys, ...)     write extras back

Invariant: an episode is joined and checked before anything is stored, and tokens are returned unchanged.
"""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Self
import uuid

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.agents import admission as admission_lib
from relive.agents import delivery
from relive.agents import facts
from relive.agents import groups as groups_lib
from relive.agents import packing
from relive.agents import queue as queue_lib
from relive.agents import token_checks
from relive.agents import token_draws
from relive.agents import token_entry
from relive.agents import token_extras as extras_lib
from relive.agents import token_store
from relive.agents import tokens
from relive.common import arrays as arrays_lib
from relive.common import imports
from relive.common import randomness
from relive.common import statistics
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.episodes import metadata as metadata_lib
from relive.limits import rate_limiters
from relive.persistence import checkpointable
from relive.persistence import state as state_lib
from relive.samplers import prioritized
from relive.samplers import recorded
from relive.samplers import sampler as sampler_lib
from relive.schema import schema as schema_lib
from relive.storage import ragged

if TYPE_CHECKING:
    from relive.agents import token_journal
    from relive.agents import token_state
    from relive.persistence import journal as journal_lib
else:
    token_journal = imports.lazy_module("relive.agents.token_journal")
    token_state = imports.lazy_module("relive.agents.token_state")

_EXTRAS = ("token_extras", "sequence_extras")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TokenBufferStats(statistics.Statistics):
    """Statistics of a token buffer: appended = sequences + evicted + cleared.

    Attributes:
        sequences: Sequences stored now.
        tokens: Their tokens; a beginning that sequences share counts once, and as long as one needs it.
        trained_tokens: Those of them in the loss mask.
        episodes: Episodes added so far.
        inexact_episodes: Those of them in which a prompt did not begin with the previous prompt and response.
        appended: Sequences added so far; each one after the first of an episode is due to a mismatch.
        evicted: Sequences evicted so far.
        cleared: Sequences that `clear` forgot so far.
        sampled: Sequences drawn so far; one drawn twice counts twice.
        stale_keys: Keys whose sequence was no longer stored when it was updated.
    """

    sequences: int
    tokens: int
    trained_tokens: int
    episodes: int
    inexact_episodes: int
    appended: int
    evicted: int
    cleared: int
    sampled: int
    stale_keys: int


class TokenReplayBuffer(delivery.Delivering[facts.EpisodeFacts], recorded.Recorded):
    """Stores token episodes of language-model agents, first in, first out, and samples padded batches.

    The steps of an episode are joined into one sequence if each prompt begins with the entire previous prompt and
    response. If one does not, the episode is flagged, and its parts become separate sequences: see
    `TokenBatch.mismatches`. Each token takes 25 bytes plus its log-probability and extras. Values are copied in and
    out.

    A learner either samples sequences, or consumes each episode, or each group of episodes, once: `next_episodes` and
    `next_groups` deliver EpisodeFacts, with the keys to `read`.

    Args:
        max_tokens: Maximum number of stored tokens, over all sequences; the oldest episodes are evicted first, each as
            a whole. What the prompts of a group, or of one episode, have in common at their beginning is stored once,
            from 64 tokens on, unless the first of them is far behind the newest.
        token_extras: Further values of each token, such as advantages, by name.
        sequence_extras: Further numbers of each sequence, such as a temperature, by name; of shape ().
        logprobs_dtype: The dtype of log-probabilities, float16, float32 or float64, to which lists are cast; None for
            that of the first array that is added, or float32 if a list comes first.
        pad_token_id: The token used as padding in batches.
        pad_to_multiple_of: Rows of a batch are padded to a multiple of this, which limits the number of distinct
            shapes.
        admission: Decides when an episode may start; each then needs a ticket from `admit`. None to admit all.
        groups: How episodes are grouped by group_id for `next_groups`; None for no groups.
        redeliver: Whether what was delivered and not acknowledged with `ack` is delivered again after a restart.
        sampler: Draws the sequences of `sample`, such as a PrioritizedSampler; None to draw them uniformly.
        allocate: Returns a writable array of zeros of a shape and dtype for each column of tokens, when the first
            episode is added: np.zeros for memory, or a `TemporaryMaps` for more tokens than memory holds.
        seed: Seed or generator for sampling; the same seed and the same calls give the same draws.

    Raises:
        ArgumentTypeError: An extra is not a Field.
        ArgumentError: max_tokens or pad_to_multiple_of is not an integer of at least 1, pad_token_id is not one
            of at least 0, logprobs_dtype is none of the three, a group has more episodes than the admission allows, an
            extra has the name of something else, or the sampler or the seed is invalid.

    >>> import relive
    >>> buffer = relive.TokenReplayBuffer(max_tokens=1_000, seed=0)
    >>> first = relive.TokenStep(prompt=[1, 5], response=[7, 2], logprobs=[-0.5, -0.25], policy_version=0)
    >>> second = relive.TokenStep(
    ...     prompt=[1, 5, 7, 2, 9], response=[8], logprobs=[-0.75], policy_version=0, reward=1.0
    ... )
    >>> keys = buffer.add_episode([first, second], agent_id="agent-0")
    >>> batch = buffer.sample(batch_size=2)
    >>> batch.tokens
    array([[1, 5, 7, 2, 9, 8],
           [1, 5, 7, 2, 9, 8]])
    >>> batch.loss_mask[0]
    array([False, False,  True,  True, False,  True])
    """

    _HAS_WHOLE_EPISODES = True
    _NOT_KEPT = delivery.Delivering._NOT_KEPT.union(_EXTRAS)
    _store: token_store.TokenStore

    def __init__(
        self,
        max_tokens: int,
        *,
        token_extras: Mapping[str, schema_lib.Field] | None = None,
        sequence_extras: Mapping[str, schema_lib.Field] | None = None,
        logprobs_dtype: npt.DTypeLike | None = None,
        pad_token_id: int = 0,
        pad_to_multiple_of: int = 1,
        admission: admission_lib.Admission | None = None,
        groups: groups_lib.Groups | None = None,
        redeliver: bool = False,
        sampler: sampler_lib.Sampler | None = None,
        allocate: ragged.Allocate = np.zeros,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        max_tokens = validation.positive_int("max_tokens", max_tokens)
        fields = extras_lib.checked(token_extras, sequence_extras)
        self._padding = packing.checked_padding(pad_token_id, pad_to_multiple_of)
        self._rng = validation.generator("seed", seed)
        dtype = None if logprobs_dtype is None else _checked_logprobs_dtype(logprobs_dtype)
        self._store = token_store.TokenStore(max_tokens, *fields, allocate, dtype)
        super().__init__(
            self._store,
            rate_limiters.LimiterState(None, self._store, rate_limiters.Limits("max_tokens", max_tokens)),
            "sample, read and the calls that end in _nowait",
            queue_lib.Rules(admission, groups, redeliver, {}).checked(),
        )
        self._draws: token_draws.TokenDraws | None = None
        if sampler is not None:
            validation.require_instance("sampler", sampler, sampler_lib.Sampler)
            self._draws = token_draws.TokenDraws(sampler)  # Last, since it cannot be attached again.

    @property
    def capacity(self) -> int:
        """Maximum number of stored tokens."""
        return self._store.max_tokens

    @property
    def token_extras(self) -> Mapping[str, schema_lib.Field]:
        """The further values of each token."""
        return dict(self._store.token_extras)

    @property
    def sequence_extras(self) -> Mapping[str, schema_lib.Field]:
        """The further values of each sequence."""
        return dict(self._store.sequence_extras)

    @property
    def sampler(self) -> sampler_lib.Sampler | None:
        """The sampler, which draws the sequences; None if they are drawn uniformly."""
        return None if self._draws is None else self._draws.sampler

    # Writing.

    def add_episode(
        self,
        steps: Sequence[tokens.TokenStep],
        *,
        agent_id: str,
        group_id: str | None = None,
        status: episode_lib.FinalStatus = "COMPLETED",
        ticket: admission_lib.Ticket | None = None,
        metadata: Mapping[str, Any] | None = None,
        **extras: Any,
    ) -> arrays_lib.Keys:
        """Store a whole episode, and return the keys of its sequences: one if it is exact, else more. O(its tokens).

        Args:
            steps: Its steps in time order; at least one.
            agent_id: The agent that acted in it.
            group_id: The group of the episode, such as all responses to one prompt.
            status: How it ended: COMPLETED, TRUNCATED, or ABORTED if the agent failed.
            ticket: A ticket from `admit`, which uses up one of its episodes, unless `status` is ABORTED. Required by a
                buffer with an Admission.
            metadata: What else is known of the episode, by name: text, numbers, arrays of any shape, such as images,
                and lists, tuples and dicts of them; copied, and returned with its facts and in batches.
            extras: Values of extras: for one of tokens, those of the response of each step [A, ...], in a list; for one
                of sequences, a number, for all its sequences. Prompts, and extras that are not given, get zeros.

        Raises:
            ArgumentTypeError: `steps` is not a sequence of TokenSteps, an id is not a string, or metadata is not such a
                mapping.
            ArgumentError: There is no step, the sequences have more tokens together than max_tokens, an argument is
                invalid, the group is complete, already delivered or given up, or memory does not hold max_tokens.
            SchemaError: Log-probabilities do not fit the dtype of the buffer, or an extra its field.
            ClosedError: The buffer is closed.
            CheckpointError: The journal could not be written or synced, or the disk has no room for the tokens.
        """
        self._gate.refuse_if_closed()
        return self._add_joined(
            tokens.join(steps),
            agent_id=agent_id,
            group_id=group_id,
            status=status,
            ticket=ticket,
            metadata=metadata,
            **extras,
        )

    def _add_joined(
        self,
        joined: tokens.TokenEpisode,
        *,
        agent_id: str,
        group_id: str | None,
        status: episode_lib.FinalStatus,
        ticket: admission_lib.Ticket | None = None,
        metadata: Mapping[str, Any] | None = None,
        **extras: Any,
    ) -> arrays_lib.Keys:
        """Store the joined steps of an episode; see `add_episode`."""
        agent_id, group_id, _ = episode_lib.checked_start(agent_id, group_id)
        validation.require_choice("status", status, episode_lib.FINAL_STATUSES)
        names: dict[str, Any] = {"agent_id": agent_id, "group_id": group_id, "status": status}
        names["episode_id"] = str(uuid.uuid4())
        names["encoded_metadata"] = metadata_lib.encoded(metadata)
        columns = extras_lib.of_episode(self._store, joined, extras)
        ledger = self._queue.known if ticket is None else self._queue.ledger()
        if ledger is not None:
            ledger.check_start(group_id, ticket, "add_episode")
        if self._journal is not None:
            self._journal.prepare()
        entry = token_entry.fitted(self._store, names, joined, columns)
        keys = entry.episode.keys  # Now, since that takes memory.

        def record() -> None:
            if self._journal is not None:
                self._journal.add(entry)
            if ledger is not None:
                ledger.places.use(ticket, entry.episode.episode_id)

        self._store.add(entry, self._draws, record)
        if ledger is not None:
            self._wake_ended()
        return keys

    def update(self, keys: npt.ArrayLike, **extras: Any) -> int:
        """Write extras of sequences, and return how many of the keys were stored; others are ignored and counted.

        Args:
            keys: Keys of sequences [B]; for the same key twice, the last values are kept.
            extras: Values of extras by name: for one of tokens, a row for each key, of at least as many values as the
                sequence has tokens, such as [B, L, ...] in a batch: those after them are ignored. For one of sequences,
                a number for each key [B].

        Raises:
            SchemaError: A value does not fit its field, or there is no such extra. Nothing has changed.
            CheckpointError: The journal could not be written or synced.
        """
        names, store = validation.integers("keys", keys), self._store
        lengths, values = extras_lib.of_update(store, names, extras)
        if self._journal is None:
            return store.update(names, lengths, values)
        self._journal.prepare()
        return store.update(names, lengths, values, functools.partial(self._journal.update, names, lengths, values))

    def clear(self) -> None:
        """Remove every episode. Keys, counters, the random generator and the policy version are not reset."""
        self._queue.refuse_while_asking("clear")
        if self._journal is None:
            self._store.clear(self._draws)
            return
        self._journal.prepare()
        self._store.clear(self._draws, self._journal.clear)

    # Reading.

    def can_insert(self) -> bool:
        """Return True: nothing holds `add_episode` back."""
        return True

    def can_sample(self, batch_size: int) -> bool:
        """Return whether `sample` would succeed now, without a max_lag.

        Raises:
            ArgumentError: batch_size is not an integer of at least 1.
        """
        validation.batch_size("batch_size", batch_size)
        can_draw = self._draws is None or self._draws.sampler.can_draw()
        return len(self.eligible_keys()) > 0 and can_draw

    def sample(self, batch_size: int, *, max_lag: int | None = None, beta: float | None = None) -> packing.TokenBatch:
        """Return exactly batch_size sequences, drawn with replacement: by the sampler, or uniformly without one.

        Sequences without a token to train on are never drawn. O(stored sequences + tokens drawn).

        Args:
            batch_size: The batch size.
            max_lag: Maximum number of policy versions since the oldest trainable token of a sequence was generated;
                None for any number. Sequences of a newer policy may always be drawn. The sampler draws from the others
                as if these were all.
            beta: Exponent of the importance weights, overriding the sampler's; only with priorities.

        Raises:
            ArgumentError: batch_size is not an integer of at least 1, max_lag is not one of at least 0, max_lag is
                given and no version was set, or beta is invalid.
            NotReadyError: No sequence may be drawn.
        """
        batch_size = validation.batch_size("batch_size", batch_size)
        keys, draws = self.eligible_keys(max_lag=max_lag), self._draws
        check_beta = sampler_lib.refuse_beta if draws is None else draws.sampler.check_beta
        check_beta(beta)
        if not len(keys):
            raise errors.NotReadyError(f"sample found no sequence to draw: {self._why_none()}")
        with randomness.Unmoved(self._rng):
            if draws is None:
                probabilities, weights = np.full(batch_size, 1 / len(keys)), np.ones(batch_size)
                batch = self._read(keys[self._rng.integers(len(keys), size=batch_size)], probabilities, weights)
            else:
                batch = draws.draw(keys, batch_size, self._rng, beta, self._read)
        self._store.note(batch.keys)
        return batch

    def eligible_keys(self, *, max_lag: int | None = None) -> arrays_lib.Keys:
        """Return the keys of all sequences that may be drawn, oldest first. O(stored sequences).

        Raises:
            ArgumentError: As in `sample`.
        """
        version = self._store.policy_version
        if max_lag is not None:
            max_lag = validation.non_negative_int("max_lag", max_lag)
            if version is None:
                raise errors.ArgumentError("max_lag needs the learner's policy version: call set_policy_version first")
        rows = self._store.rows
        if rows is None:
            return np.zeros(0, np.int64)
        is_eligible = rows.row_values("trained") > 0
        if max_lag is not None and version is not None:
            is_eligible &= rows.row_values("oldest_version") >= version - max_lag
        return rows.first_key + np.flatnonzero(is_eligible)

    def lengths(self, keys: npt.ArrayLike) -> arrays_lib.Ints:
        """Return the number of tokens of the sequences with those keys [B], without reading them.

        Raises:
            UnknownKeyError: No sequence with one of the keys is stored.
        """
        return self._store.lengths(validation.integers("keys", keys))

    def micro_batches(self, keys: npt.ArrayLike, *, max_tokens: int, ranks: int = 1) -> list[list[arrays_lib.Keys]]:
        """Return those keys divided into micro-batches of at most `max_tokens` tokens, without reading the sequences.

        They are divided as by `relive.micro_batches`, and every process that has the keys finds the same: it reads only
        its own, which are at its rank in the list.

        Args:
            keys: Keys of sequences [B].
            max_tokens: Maximum number of tokens of a micro-batch, not counting padding.
            ranks: Number of processes that train at the same time; each gets as many micro-batches as the others.

        Raises:
            UnknownKeyError: No sequence with one of the keys is stored.
            ArgumentError: A sequence has more than max_tokens tokens, there is no key, or an argument is invalid.
        """
        names = validation.integers("keys", keys)
        parts = packing.micro_batches(self.lengths(names), max_tokens=max_tokens, ranks=ranks)
        return [[names[places] for places in of_rank] for of_rank in parts]

    def read(self, keys: npt.ArrayLike) -> packing.TokenBatch:
        """Return the sequences with those keys [B], whether they may be drawn or not; probabilities are those of now.

        Raises:
            UnknownKeyError: No sequence with one of the keys is stored.
            ArgumentError: There is no key.
        """
        names = validation.integers("keys", keys)
        if not len(names):
            raise errors.ArgumentError("keys must have at least 1 key, got 0")
        self._store.lengths(names)
        return self._read(names, *self._shares(names))

    def _shares(self, keys: arrays_lib.Keys) -> tuple[arrays_lib.Floats, arrays_lib.Floats]:
        """Return the probabilities of stored sequences in a draw now, and their importance weights [B]."""
        if self._draws is not None:
            return self._draws.shares(keys)
        assert self._store.rows is not None
        is_eligible = self._store.rows.row_values("trained", keys) > 0
        return is_eligible / max(len(self.eligible_keys()), 1), np.ones(len(keys))

    def _read(
        self, names: arrays_lib.Keys, probabilities: arrays_lib.Floats, weights: arrays_lib.Floats
    ) -> packing.TokenBatch:
        store = self._store
        columns, lengths = store.read(names)
        assert store.rows is not None
        owners = [store.owners[key] for key in names.tolist()]
        sources = [(each, each.mismatches[key - each.first_key]) for each, key in zip(owners, names, strict=True)]
        return packing.TokenBatch.of(
            columns,
            lengths,
            {name: store.rows.row_values(name, names) for name in store.sequence_extras},
            self._padding,
            keys=names.copy(),
            **store.prefixes(names, lengths),
            probabilities=probabilities,
            weights=weights,
            returns=store.rows.row_values("returns", names),
            is_exact=store.rows.row_values("is_exact", names),
            **packing.names_of(sources, [each.metadata for each in owners]),
        )

    # Priorities.

    def update_priorities(self, keys: npt.ArrayLike, priorities: npt.ArrayLike) -> int:
        """Update the priorities of sequences, and return how many of them were still stored.

        Args:
            keys: Keys of the sequences, such as `batch.keys` [B]; those of evicted ones are ignored, and counted.
            priorities: Raw priorities, finite and at least 0 [B] or [B, 1]; for a repeated key, the last one wins.

        Raises:
            ArgumentError: A priority is invalid, the lengths differ, a key was never given out, or the buffer has no
                PrioritizedSampler.
            CheckpointError: The journal could not be written or synced.
        """
        sampler, store = prioritized.required(self.sampler, "update_priorities"), self._store
        names = validation.integers("keys", keys)
        rated = validation.non_negative_floats("priority", priorities, len(names))
        validation.require_given_out(names, store.inserted, "sequences")
        alive = store.are_stored(names)
        assert self._draws is not None
        num_alive, record = int(alive.sum()), None
        if self._journal is not None:
            self._journal.prepare()
            record = functools.partial(self._journal.set_priorities, names[alive], rated[alive])
        sampler._set_priorities(self._draws.slots(names[alive]), rated[alive], record)
        store.stale_keys += len(names) - num_alive
        return num_alive

    def get_priorities(self, keys: npt.ArrayLike) -> arrays_lib.Floats:
        """Return the raw priorities of the sequences with those keys [B].

        Raises:
            UnknownKeyError: No sequence with one of the keys is stored.
            ArgumentError: The buffer has no PrioritizedSampler.
        """
        sampler, names = prioritized.required(self.sampler, "get_priorities"), validation.integers("keys", keys)
        self._store.lengths(names)
        assert self._draws is not None
        return sampler.priorities(self._draws.slots(names))

    def _why_none(self) -> str:
        rows = self._store.rows
        if rows is None or not len(rows):
            return "add an episode first"
        is_trained = rows.row_values("trained") > 0
        if not is_trained.any():
            return f"none of {len(rows)} has a token that is to be trained on"
        newest = int(rows.row_values("oldest_version")[is_trained].max())
        lag = (self._store.policy_version or 0) - newest
        return f"the smallest lag is {lag}: add newer ones, or give a larger max_lag"

    # Statistics and checks.

    def get_stats(self) -> TokenBufferStats:
        """Return statistics of the buffer. O(stored sequences)."""
        store = self._store
        return TokenBufferStats(
            sequences=len(store),
            tokens=store.num_tokens,
            trained_tokens=0 if store.rows is None else int(store.rows.row_values("trained").sum()),
            appended=store.inserted,
            **store.counters(),
        )

    def check(self) -> None:
        """Verify all invariants by recounting everything that is held. O(tokens held).

        Raises:
            CorruptionError: An invariant does not hold; the message says which.
        """
        token_checks.store(self._store)
        self._queue.check()
        if self._draws is not None:
            self._draws.check(self._store)

    def __len__(self) -> int:
        """Return the number of stored tokens, shared ones once; `get_stats().sequences` is the number of sequences."""
        return self._store.num_tokens

    def __repr__(self) -> str:
        held = f"{len(self._store)} sequences, {len(self)} of {self.capacity} tokens"
        return f"<{type(self).__name__} of {held}{self._others_set('max_tokens')}>"

    # Persistence.

    def _known_settings(self) -> dict[str, Any]:
        dtype = self._store.logprobs_dtype
        return {"logprobs_dtype": None if dtype is None else dtype.name}

    def _encoded_settings(self) -> dict[str, Any]:
        extras = {name: token_state.described(getattr(self._store, name)) for name in _EXTRAS}
        return {**super()._encoded_settings(), **extras}

    @classmethod
    def _loaded(cls, state: state_lib.State, overrides: dict[str, Any], **options: Any) -> Self:
        saved = cls._given(state).part("settings")
        extras = {name: token_state.fields_of(saved, name) for name in _EXTRAS}
        return super()._loaded(state, {**extras, **overrides}, **options)

    def _state_dict(self, **options: Any) -> state_lib.State:
        return token_state.state_dict(self._store, self._draws, self._queue_snapshot().state_dict(self._store))

    def _base_state(self, **options: Any) -> state_lib.State:
        return token_state.state_dict(self._store, self._draws, self._base_queue_state(), is_base=True)

    def _twin(self) -> Self:
        twin = super()._twin()
        twin._draws = None if self._draws is None else self._draws.twin()
        return twin

    def _load_state_dict(self, given: state_lib.StateReader, **options: Any) -> None:
        self._store = token_state.load(given, self._store)
        self._load_queue(given)
        if self._draws is not None:
            self._draws.load(given.part("sampler"), self._store)

    def _swap(self, twin: Any) -> None:
        if self._draws is not None:
            twin._draws.sampler = checkpointable.become(self._draws.sampler, twin._draws.sampler)
        super()._swap(twin)

    def _written(self) -> tuple[int, ...]:
        store = self._store
        version = -1 if store.policy_version is None else store.policy_version
        counts = store.inserted, store.evicted, store.cleared, store.episodes, store.num_updates
        return (*counts, version, self._queue.num_commands)

    def _journaled(self, journal: "journal_lib.Journal", replay: Any, **options: Any) -> "journal_lib.Bound":
        return token_journal.TokenJournal(journal, self._store, [] if replay is None else replay.begun, **options)

    def _replay(self, **options: Any) -> checkpointable.Replay:
        return token_journal.Replay(self)


def _checked_logprobs_dtype(value: Any) -> np.dtype[Any]:
    """Return a dtype that log-probabilities may have."""
    with contextlib.suppress(TypeError, ValueError):
        dtype: np.dtype[Any] = np.dtype(value).newbyteorder("=")
        if dtype.type in tokens.FLOATS:
            return dtype
    shown = validation.short_repr(value)
    raise errors.ArgumentError(f"logprobs_dtype must be float16, float32 or float64, got {shown}")
