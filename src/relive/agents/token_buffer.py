"""TokenReplayBuffer: token sequences of language-model agents, as the model saw and generated them.

    add_episode(steps)    join the steps, or flag the episode     token_episode
                          values and offsets, oldest out first    ragged
    sample(batch_size)    draw sequences, pad them                token_batch

Invariant: an episode is joined and checked before anything is stored, tokens are returned unchanged, and every sequence
ever added is stored, evicted or cleared.
"""

from collections.abc import Sequence
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar
import uuid

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.agents import packing
from relive.agents import tokens
from relive.common import arrays
from relive.common import imports
from relive.common import statistics
from relive.common import validation
from relive.persistence import checkpointable
from relive.persistence import state
from relive.storage import ragged

if TYPE_CHECKING:
    from relive.agents import token_state
else:
    token_state = imports.lazy_module("relive.agents.token_state")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TokenBufferStats(statistics.Statistics):
    """Statistics of a token buffer: appended = sequences + evicted + cleared.

    Attributes:
        sequences: Sequences stored now.
        tokens: Their tokens.
        trained_tokens: Those of them in the loss mask.
        episodes: Episodes added so far.
        inexact_episodes: Those of them in which a prompt did not begin with the previous prompt and response.
        appended: Sequences added so far; each one after the first of an episode is due to a mismatch.
        evicted: Sequences evicted so far.
        cleared: Sequences that `clear` forgot so far.
        sampled: Sequences drawn so far; one drawn twice counts twice.
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


class TokenReplayBuffer(checkpointable.Checkpointable):
    """Stores token episodes of language-model agents, first in, first out, and samples padded batches.

    The steps of an episode are joined into one sequence if each prompt begins with the entire previous prompt and
    response. If one does not, the episode is flagged, and its parts become separate sequences: see
    `TokenBatch.mismatches`. Each token takes 25 bytes plus its log-probability. Values are copied in and out.

    Args:
        max_tokens: Maximum number of stored tokens, over all sequences; the oldest sequences are evicted first.
        pad_token_id: The token used as padding in batches.
        pad_to_multiple_of: Rows of a batch are padded to a multiple of this, which limits the number of distinct
            shapes.
        seed: Seed or generator for sampling; the same seed and the same calls give the same draws.

    Raises:
        ArgumentError: max_tokens or pad_to_multiple_of is not an integer of at least 1, pad_token_id is not one of at
            least 0, or the seed is invalid.

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

    _SETTINGS: ClassVar[tuple[str, ...]] = ("max_tokens", "pad_token_id", "pad_to_multiple_of")

    def __init__(
        self,
        max_tokens: int,
        *,
        pad_token_id: int = 0,
        pad_to_multiple_of: int = 1,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self._max_tokens = validation.positive_int("max_tokens", max_tokens)
        self._pad_token_id, self._pad_to_multiple_of = packing.checked_padding(pad_token_id, pad_to_multiple_of)
        self._rng = validation.generator("seed", seed)
        self._rows: ragged.RaggedColumns | None = None
        self._sources: dict[int, tokens.SequenceSource] = {}
        """Where each sequence held comes from, by key, the oldest first."""
        self._policy_version: int | None = None
        self._episodes = self._inexact_episodes = self._evicted = self._cleared = self._sampled = 0

    @property
    def capacity(self) -> int:
        """Maximum number of stored tokens."""
        return self._max_tokens

    @property
    def rng(self) -> np.random.Generator:
        """The random generator used for sampling."""
        return self._rng

    @property
    def policy_version(self) -> int | None:
        """The learner's policy version; None before the first `set_policy_version`."""
        return self._policy_version

    # Writing.

    def add_episode(
        self, steps: Sequence[tokens.TokenStep], *, agent_id: str, group_id: str | None = None
    ) -> arrays.Ints:
        """Store a whole episode, and return the keys of its sequences: one if it is exact, else more. O(its tokens).

        Args:
            steps: Its steps in time order; at least one.
            agent_id: The agent that acted in it.
            group_id: The group of the episode, such as all responses to one prompt.

        Raises:
            ArgumentTypeError: `steps` is not a sequence of TokenSteps, or an id is not a string.
            ArgumentError: There is no step, or the sequences have more tokens together than max_tokens.
            SchemaError: The log-probabilities do not fit the dtype of the first ones added.
        """
        joined = tokens.join(steps)
        agent_id = validation.string("agent_id", agent_id)
        if group_id is not None:
            group_id = validation.string("group_id", group_id)
        total = int(joined.lengths.sum())
        if total > self._max_tokens:
            raise errors.ArgumentError(
                f"steps must have at most max_tokens = {self._max_tokens} tokens when they are joined, got {total}"
            )
        rows = self._rows
        if rows is None:
            rows = packing.new(self._max_tokens, joined.columns["logprobs"].dtype)
        leaving = packing.add(rows, joined)
        self._rows = rows
        self._evicted += leaving
        self._episodes += 1
        self._inexact_episodes += not joined.is_exact
        for key in range(rows.first_key - leaving, rows.first_key):
            del self._sources[key]
        sources = packing.sources_of(joined, str(uuid.uuid4()), agent_id, group_id)
        first_key = rows.first_key + len(rows) - len(sources)
        self._sources |= dict(enumerate(sources, first_key))
        return np.arange(first_key, first_key + len(sources))

    def set_policy_version(self, version: int) -> None:
        """Set the learner's policy version, from which the lag of sequences is counted.

        Raises:
            ArgumentTypeError: `version` is not an integer.
            ArgumentError: It is below 0, or below the previous version.
        """
        self._policy_version = validation.next_version(version, self._policy_version)

    def clear(self) -> None:
        """Remove every sequence. Keys, counters, the random generator and the policy version are not reset."""
        if self._rows is not None:
            self._cleared += len(self._rows)
            self._rows.clear()
        self._sources.clear()

    # Reading.

    def sample(self, batch_size: int, *, max_lag: int | None = None) -> packing.TokenBatch:
        """Return exactly batch_size sequences, drawn uniformly with replacement.

        Sequences without a token to train on are never drawn. O(stored sequences + tokens drawn).

        Args:
            batch_size: The batch size.
            max_lag: Maximum number of policy versions since the oldest trainable token of a sequence was generated;
                None for any number. Sequences of a newer policy may always be drawn.

        Raises:
            ArgumentError: batch_size is not an integer of at least 1, max_lag is not one of at least 0, or max_lag is
                given and no version was set.
            NotReadyError: No sequence may be drawn.
        """
        batch_size = validation.positive_int("batch_size", batch_size)
        keys = self.eligible_keys(max_lag=max_lag)
        if not len(keys):
            raise errors.NotReadyError(f"sample found no sequence to draw: {self._why_none()}")
        batch = self.read(keys[self._rng.integers(len(keys), size=batch_size)])
        self._sampled += batch_size
        return batch

    def eligible_keys(self, *, max_lag: int | None = None) -> arrays.Ints:
        """Return the keys of all sequences that may be drawn, oldest first. O(stored sequences).

        Raises:
            ArgumentError: As in `sample`.
        """
        if max_lag is not None:
            max_lag = validation.non_negative_int("max_lag", max_lag)
            if self._policy_version is None:
                raise errors.ArgumentError(
                    "max_lag asks for the learner's policy version: call set_policy_version first"
                )
        rows = self._rows
        if rows is None:
            return np.zeros(0, np.int64)
        is_eligible = rows.row_values("trained") > 0
        if max_lag is not None and self._policy_version is not None:
            is_eligible &= rows.row_values("oldest_version") >= self._policy_version - max_lag
        return rows.first_key + np.flatnonzero(is_eligible)

    def read(self, keys: npt.ArrayLike) -> packing.TokenBatch:
        """Return the sequences with those keys [B], whether they may be drawn or not.

        Raises:
            UnknownKeyError: No sequence with one of the keys is stored.
            ArgumentError: There is no key.
        """
        names = validation.integers("keys", keys)
        if not len(names):
            raise errors.ArgumentError("keys must have at least 1 key, got 0")
        for key in names.tolist():
            if key not in self._sources:
                raise errors.UnknownKeyError(f"key {key} not found: its sequence was evicted, or never was")
        rows = self._rows
        assert rows is not None
        columns, offsets = rows.read(names)
        return packing.TokenBatch.of(
            columns,
            np.diff(offsets),
            keys=names.copy(),
            returns=rows.row_values("returns", names),
            is_exact=rows.row_values("is_exact", names),
            sources=[self._sources[key] for key in names.tolist()],
            pad_token_id=self._pad_token_id,
            pad_to_multiple_of=self._pad_to_multiple_of,
        )

    def _why_none(self) -> str:
        rows = self._rows
        if rows is None or not len(rows):
            return "add an episode first"
        is_trained = rows.row_values("trained") > 0
        if not is_trained.any():
            return f"none of {len(rows)} has a token that is to be trained on"
        newest = int(rows.row_values("oldest_version")[is_trained].max())
        return f"the smallest lag is {(self._policy_version or 0) - newest}: add newer ones, or give a larger max_lag"

    # Statistics and checks.

    def get_stats(self) -> TokenBufferStats:
        """Return statistics of the buffer. O(stored sequences)."""
        rows = self._rows
        return TokenBufferStats(
            sequences=len(self._sources),
            tokens=len(self),
            trained_tokens=0 if rows is None else int(rows.row_values("trained").sum()),
            **self._counters(),
        )

    def _counters(self) -> dict[str, int]:
        rows = self._rows
        return {
            "episodes": self._episodes,
            "inexact_episodes": self._inexact_episodes,
            "appended": 0 if rows is None else rows.first_key + len(rows),
            "evicted": self._evicted,
            "cleared": self._cleared,
            "sampled": self._sampled,
        }

    def check(self) -> None:
        """Verify all invariants by recounting everything that is held. O(tokens held).

        Raises:
            CorruptionError: An invariant does not hold; the message says which.
        """
        rows = self._rows
        if rows is None:
            return
        packing.check(rows)
        keys = list(range(rows.first_key, rows.first_key + len(rows)))
        if list(self._sources) != keys:
            raise errors.CorruptionError("each sequence must have a source, in their order")
        if self._evicted + self._cleared != rows.first_key:
            raise errors.CorruptionError(
                f"{self._evicted} sequences were evicted and {self._cleared} cleared, but {rows.first_key} have left"
            )

    def __len__(self) -> int:
        """Return the number of stored tokens; `get_stats().sequences` is the number of sequences."""
        return 0 if self._rows is None else self._rows.num_values

    def __repr__(self) -> str:
        held = f"{len(self._sources)} sequences, {len(self)} of {self._max_tokens} tokens"
        return f"<{type(self).__name__} of {held}>"

    def _setting(self, name: str) -> Any:
        return getattr(self, f"_{name}")

    def _state(self, **options: Any) -> state.State:
        return token_state.TokenState(
            rows=self._rows,
            sources=self._sources,
            policy_version=self._policy_version,
            counters=self._counters(),
        ).state()

    def _restore(self, given: state.StateReader, *, is_new: bool, **options: Any) -> None:
        kept = token_state.TokenState.of(given, self._max_tokens)
        self._rows, self._sources, self._policy_version = kept.rows, kept.sources, kept.policy_version
        for name in ("episodes", "inexact_episodes", "evicted", "cleared", "sampled"):
            setattr(self, f"_{name}", kept.counters[name])
