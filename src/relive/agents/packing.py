"""TokenBatch: sequences of tokens as rectangles, padded on the right, with a mask.

    tokens     1 5 6 7 2 9 9 8 2        mask    T T T T T T T T T
               1 5 6 4 0 0 0 0 0                T T T T . . . . .

Padding exists only in batches, and `packed` leaves it out. `micro_batches` divides sequences by their lengths, so that
each part fits on a device.
"""

import bisect
from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.agents import tokens as tokens_lib
from relive.common import arrays as arrays_lib
from relive.common import copies
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.storage import memory
from relive.windows import batches


@dataclasses.dataclass(kw_only=True, slots=True, eq=False, repr=False)
class TokenBatch(batches.Batch[batches.A]):
    """A batch of token sequences, one per row. B is the number of rows, L the length of the longest.

    Rows are padded on the right, where `attention_mask` is False; exclude the padding from the loss. A row is an
    episode, or the part of one between two mismatches.

    Attributes:
        tokens: [B, L]; int64; `pad_token_id` in the padding.
        attention_mask: Whether there is a token [B, L].
        loss_mask: Whether the token was generated and should be trained on [B, L].
        logprobs: Log-probability of each generated token at generation time, given all tokens before it in its row, bit
            for bit as it was given; 0 elsewhere [B, L].
        policy_versions: The policy version that generated the token; -1 elsewhere [B, L].
        rewards: The reward of a response, at its last token; 0 elsewhere [B, L].
        steps: The step of the episode that the token belongs to, as part of its prompt or response; -1 for none [B, L].
        lengths: Number of tokens in the row [B].
        keys: Keys of the sequences in the buffer; -1 for none [B].
        prefix_ids: The key of the sequence that the row begins like, its own if that is none; -1 for none [B].
        prefix_lengths: For so many tokens; all of them for its own, 0 for none [B].
        probabilities: The probability with which each was drawn, or would be now; NaN if unknown [B].
        weights: Importance weights; 1 without priorities [B].
        returns: Undiscounted return of the episode, including rewards in its other rows [B].
        is_exact: Whether each prompt of the episode began with the entire previous prompt and response [B].
        episode_ids: The episode [B].
        agent_ids: The agent of the episode [B].
        group_ids: The group of the episode, such as all responses to one prompt; None for none [B].
        mismatches: Why the row does not continue the previous row of its episode; None for the first row [B].
        metadata: The metadata of the episode, a mapping for each row [B].
        extras: The extras by name: of tokens [B, L, ...], 0 in the padding, and of sequences [B].
    """

    _NAMES: ClassVar[tuple[str, ...]] = ("keys", "episode_ids", "agent_ids", "group_ids", "mismatches", "metadata")
    _KEYS: ClassVar[tuple[str, ...]] = ("keys", "prefix_ids")

    tokens: batches.A
    attention_mask: batches.A
    loss_mask: batches.A
    logprobs: batches.A
    policy_versions: batches.A
    rewards: batches.A
    steps: batches.A
    lengths: batches.A
    keys: arrays_lib.Keys
    prefix_ids: batches.A
    prefix_lengths: batches.A
    probabilities: batches.A
    weights: batches.A
    returns: batches.A
    is_exact: batches.A
    episode_ids: list[str]
    agent_ids: list[str]
    group_ids: list[str | None]
    mismatches: list[tokens_lib.TokenMismatch | None]
    metadata: tuple[dict[str, Any], ...]
    extras: dict[str, batches.A]

    if TYPE_CHECKING:

        def map(self, function: Callable[[batches.A], batches.B]) -> "TokenBatch[batches.B]": ...  # noqa: D102

    @classmethod
    def from_episodes(
        cls,
        episodes: Sequence[episode_lib.Episode[Any, tokens_lib.TokenStep]],
        *,
        pad_token_id: int = 0,
        pad_to_multiple_of: int = 1,
    ) -> "TokenBatch[arrays_lib.Array]":
        """Return a batch of the sequences of episodes whose actions are TokenSteps, in order.

        An inexact episode gives a row for each part, an episode without steps none. Rewards are taken from the
        episodes, whose observations are ignored.

        Args:
            episodes: The episodes, such as a group from an EpisodeReplayBuffer.
            pad_token_id: The token used as padding.
            pad_to_multiple_of: L is a multiple of this.

        Raises:
            ArgumentTypeError: An element is not an Episode, or an action is not a TokenStep.
            ArgumentError: No episode has a step, `pad_token_id` or `pad_to_multiple_of` is invalid, or a step has a
                reward that differs from that in its episode.

        >>> import relive
        >>> step = relive.TokenStep(prompt=[1, 5], response=[7, 2], logprobs=[-0.5, -0.25], policy_version=0)
        >>> episode = relive.Episode(episode_id="e", agent_id="a", actions=[step], rewards=[1.0])
        >>> batch = relive.TokenBatch.from_episodes([episode], pad_to_multiple_of=8)
        >>> batch.tokens
        array([[1, 5, 7, 2, 0, 0, 0, 0]])
        >>> batch.logprobs
        array([[ 0.  ,  0.  , -0.5 , -0.25,  0.  ,  0.  ,  0.  ,  0.  ]])
        """
        validation.require_instance("episodes", episodes, Sequence)
        for number, each in enumerate(episodes):
            validation.require_instance(f"episode {number}", each, episode_lib.Episode)
        padding = checked_padding(pad_token_id, pad_to_multiple_of)
        lived = [each for each in episodes if each.actions]
        if not lived:
            raise errors.ArgumentError(f"episodes must have a step in one of them, got {len(episodes)} without")
        joined = [tokens_lib.join(tokens_lib.steps_of(each)) for each in lived]
        parts = [len(each.lengths) for each in joined]
        sources = [(each, mismatch) for each, whole in zip(lived, joined, strict=True) for mismatch in whole.mismatches]
        return TokenBatch.of(
            {name: np.concatenate([each.columns[name] for each in joined]) for name in tokens_lib.FIELDS},
            np.concatenate([each.lengths for each in joined]),
            {},
            padding,
            keys=np.full(sum(parts), -1),
            prefix_ids=np.full(sum(parts), -1),
            prefix_lengths=np.zeros(sum(parts), np.int64),
            probabilities=np.full(sum(parts), np.nan),
            weights=np.ones(sum(parts)),
            returns=np.repeat([each.total_reward for each in joined], parts),
            is_exact=np.repeat([each.is_exact for each in joined], parts),
            **names_of(sources, [copies.copied(each.metadata) for each, _ in sources]),
        )

    @classmethod
    def of(
        cls,
        columns: Mapping[str, arrays_lib.Array],
        lengths: arrays_lib.Ints,
        extras: Mapping[str, arrays_lib.Array],
        padding: tuple[int, int],
        **of_rows: Any,
    ) -> "TokenBatch[arrays_lib.Array]":
        """Return a batch of sequences of those lengths [B], given the concatenated columns [N] of their tokens.

        `columns` include the extras of tokens, `extras` are those of sequences, `padding` is from `checked_padding`,
        and `of_rows` are the other fields of the batch.
        """
        pad_token_id, multiple = padding
        mask = np.arange(_width(lengths, multiple)) < lengths[:, np.newaxis]
        columns = {**columns, "tokens": columns["tokens"].astype(np.int64)}
        nothing = {"tokens": pad_token_id, "policy_versions": -1, "steps": -1}
        padded: dict[str, Any] = {name: _padded(column, mask, nothing.get(name, 0)) for name, column in columns.items()}
        of_tokens = {name: padded.pop(name) for name in columns if name not in tokens_lib.FIELDS}
        return TokenBatch(
            attention_mask=mask,
            lengths=lengths,
            **padded,
            **of_rows,
            extras=of_tokens | dict(extras),
        )

    def packed(self: "TokenBatch[arrays_lib.Array]", *, repeat: Collection[str] = ()) -> dict[str, Any]:
        """Return the rows concatenated without padding, for kernels that take variable lengths: fresh arrays by name.

        Args:
            repeat: Names of numbers of rows, such as an extra of sequences or `returns`, to be repeated for each token.

        Returns:
            tokens, loss_mask, logprobs, policy_versions, rewards, steps, the extras of tokens and what is repeated
            [N, ...]; `position_ids`, the place of each token in its row, int64 [N]; `cu_seqlens`, int32 [B + 1]: row b
            extends from cu_seqlens[b] to cu_seqlens[b + 1]; and `max_seqlen`, the longest length, an int.

        Raises:
            ArgumentTypeError: The batch holds arrays of a framework: pack first, then convert.
            ArgumentError: A row has no number of that name, or there are more tokens than cu_seqlens can count.

        >>> import relive
        >>> step = relive.TokenStep(prompt=[1, 5], response=[7], logprobs=[-0.5], policy_version=0, reward=1.0)
        >>> episode = relive.Episode(episode_id="e", agent_id="a", actions=[step], rewards=[1.0])
        >>> packed = relive.TokenBatch.from_episodes([episode, episode]).packed(repeat=["returns"])
        >>> packed["cu_seqlens"], packed["position_ids"], packed["returns"]
        (array([0, 3, 6], dtype=int32), array([0, 1, 2, 0, 1, 2]), array([1., 1., 1., 1., 1., 1.]))
        """
        self._require_numpy("packed")
        of_rows = {"lengths": self.lengths, "keys": self.keys, "returns": self.returns, "is_exact": self.is_exact}
        of_rows |= {name: each for name, each in self.extras.items() if each.ndim == 1}
        names = validation.items("repeat", repeat, "names")
        for name in names:
            validation.require_choice("repeat", name, list(of_rows))
        num_tokens, most = int(self.lengths.sum()), np.iinfo(np.int32).max
        if num_tokens > most:
            raise errors.ArgumentError(f"packed must have at most {most} tokens for cu_seqlens, got {num_tokens}")
        starts = np.cumsum(np.append(0, self.lengths))
        return self._columns() | {
            **{name: np.repeat(of_rows[name], self.lengths) for name in names},
            "position_ids": np.arange(num_tokens) - np.repeat(starts[:-1], self.lengths),
            "cu_seqlens": starts.astype(np.int32),
            "max_seqlen": int(self.lengths.max(initial=0)),
        }

    def _columns(self: "TokenBatch[arrays_lib.Array]") -> dict[str, arrays_lib.Array]:
        """Return the fields and the extras of tokens by name, without padding [N, ...]."""
        columns: dict[str, arrays_lib.Array] = {name: getattr(self, name) for name in tokens_lib.FIELDS}
        columns |= {name: each for name, each in self.extras.items() if each.ndim > 1}
        return {name: column[self.attention_mask] for name, column in columns.items()}

    def micro_batches(
        self: "TokenBatch[arrays_lib.Array]", *, max_tokens: int, ranks: int = 1, pad_to_multiple_of: int = 1
    ) -> "list[list[TokenBatch[arrays_lib.Array]]]":
        """Return, for each rank, its part of the rows, in batches of at most `max_tokens` tokens without the padding.

        They are divided as by `relive.micro_batches`, and each is as wide as its longest row.

        Args:
            max_tokens: Maximum number of tokens of a micro-batch.
            ranks: Number of processes that train at the same time; each gets as many micro-batches as the others.
            pad_to_multiple_of: L of a micro-batch is a multiple of this, or that of the whole batch.

        Raises:
            ArgumentTypeError: The batch holds arrays of a framework: divide first, then convert.
            ArgumentError: A row has more than max_tokens tokens, or an argument is invalid.
        """
        self._require_numpy("micro_batches")
        multiple = validation.positive_int("pad_to_multiple_of", pad_to_multiple_of)
        parts = micro_batches(self.lengths, max_tokens=max_tokens, ranks=ranks)
        return [[self._rows(rows, multiple) for rows in of_rank] for of_rank in parts]

    def packed_micro_batches(
        self: "TokenBatch[arrays_lib.Array]", *, max_tokens: int, ranks: int = 1, repeat: Collection[str] = ()
    ) -> list[list[dict[str, Any]]]:
        """Return, for each rank, its part of the rows, as `packed` returns them, divided as by `micro_batches`.

        Args:
            max_tokens: Maximum number of tokens of a micro-batch.
            ranks: Number of processes that train at the same time; each gets as many micro-batches as the others.
            repeat: As in `packed`.

        Raises:
            ArgumentTypeError: The batch holds arrays of a framework: divide first, then convert.
            ArgumentError: A row has more than max_tokens tokens, or an argument is invalid.
        """
        self._require_numpy("packed_micro_batches")
        names = validation.items("repeat", repeat, "names")
        parts = self.micro_batches(max_tokens=max_tokens, ranks=ranks)
        return [[part.packed(repeat=names) for part in of_rank] for of_rank in parts]

    def _rows(
        self: "TokenBatch[arrays_lib.Array]", rows: arrays_lib.Ints, multiple: int
    ) -> "TokenBatch[arrays_lib.Array]":
        """Return a batch of some of the rows, as wide as the longest of them, up to a multiple."""
        width = _width(self.lengths[rows], multiple)

        def taken(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: taken(each) for name, each in value.items()}
            if isinstance(value, list | tuple):
                return type(value)(value[row] for row in rows.tolist())
            return value[rows] if value.ndim == 1 else value[rows, :width]

        return TokenBatch(**{field.name: taken(getattr(self, field.name)) for field in dataclasses.fields(self)})


def names_of(
    sources: Sequence[tuple[Any, tokens_lib.TokenMismatch | None]], metadata: Sequence[dict[str, Any]]
) -> dict[str, Sequence[Any]]:
    """Return the names of a batch.

    Given are the episode of each row and why it does not continue the previous one, and metadata of its own.
    """
    return {
        "episode_ids": [each.episode_id for each, _ in sources],
        "agent_ids": [each.agent_id for each, _ in sources],
        "group_ids": [each.group_id for each, _ in sources],
        "mismatches": [mismatch for _, mismatch in sources],
        "metadata": tuple(metadata),
    }


def micro_batches(lengths: npt.ArrayLike, *, max_tokens: int, ranks: int = 1) -> list[list[arrays_lib.Ints]]:
    """Return, for each rank, its micro-batches: ascending indices of sequences, each index in one micro-batch.

    Depends on the lengths alone, so that every process finds the same. There are as few micro-batches as best-fit
    decreasing needs, and more only up to a multiple of `ranks`; each rank gets the same number. They are balanced: the
    largest of them is as small as that heuristic finds by bisection (MULTIFIT, Coffman, Garey and Johnson 1978), and of
    those that the ranks process at the same time, the rank with the fewest tokens so far gets the largest. A
    micro-batch is empty only if there are fewer sequences than micro-batches. O(B log B log max_tokens).

    Args:
        lengths: Number of tokens of each sequence, at least 1 [B].
        max_tokens: Maximum number of tokens of a micro-batch.
        ranks: Number of processes that train at the same time.

    Raises:
        ArgumentTypeError: `lengths` are not integers.
        ArgumentError: A sequence is empty or has more than max_tokens tokens, there is none, or an argument is invalid.

    >>> import relive
    >>> relive.micro_batches([5, 9, 2, 4, 8], max_tokens=10, ranks=2)
    [[array([1]), array([4])], [array([0, 3]), array([2])]]
    """
    sizes = validation.integers("lengths", lengths).tolist()
    max_tokens, ranks = validation.positive_int("max_tokens", max_tokens), validation.positive_int("ranks", ranks)
    if not sizes:
        raise errors.ArgumentError("lengths must have at least 1 sequence, got 0")
    for place, size in enumerate(sizes):
        if not 1 <= size <= max_tokens:
            rule = f"in [1, max_tokens = {max_tokens}]"
            raise errors.ArgumentError(f"lengths must be {rule}, got {size} for sequence {place}")
    order = sorted(range(len(sizes)), key=lambda place: -sizes[place])
    parts = _packed(sizes, order, max_tokens)
    count = -(-len(parts) // ranks) * ranks
    least, most = max(max(sizes), -(-sum(sizes) // count)), max_tokens
    while least < most:
        middle = (least + most) // 2
        found = _packed(sizes, order, middle)
        if len(found) <= count:
            parts, most = found, middle
        else:
            least = middle + 1

    def num_tokens(part: list[int]) -> int:
        return sum(sizes[place] for place in part)

    while len(parts) < count:
        divisible = [part for part in parts if len(part) > 1]
        parts.append([max(divisible, key=num_tokens).pop()] if divisible else [])
    parts.sort(key=num_tokens, reverse=True)
    by_rank: list[list[arrays_lib.Ints]] = [[] for _ in range(ranks)]
    totals = [0] * ranks
    for start in range(0, count, ranks):
        lightest_first = sorted(range(ranks), key=totals.__getitem__)
        for rank, part in zip(lightest_first, parts[start : start + ranks], strict=True):
            by_rank[rank].append(np.array(sorted(part), np.int64))
            totals[rank] += num_tokens(part)
    return by_rank


def _packed(sizes: Sequence[int], order: Sequence[int], room: int) -> list[list[int]]:
    """Return the bins of best-fit decreasing: each item, the largest first, goes where it leaves the least room."""
    bins: list[list[int]] = []
    left: list[tuple[int, int]] = []  # How much room each bin has, and which it is, in ascending order.
    for item in order:
        place = bisect.bisect_left(left, (sizes[item], -1))
        if place == len(left):
            bins.append([])
            left.append((room, len(bins) - 1))
        before, number = left.pop(place)
        bins[number].append(item)
        bisect.insort(left, (before - sizes[item], number))
    return bins


def _width(lengths: arrays_lib.Ints, multiple: int) -> int:
    """Return the longest of some lengths, rounded up to a multiple."""
    return -(-int(lengths.max(initial=0)) // multiple) * multiple


def _padded(values: arrays_lib.Array, mask: arrays_lib.Bools, padding: object) -> arrays_lib.Array:
    """Return concatenated rows [N, ...] as a rectangle [B, L, ...], padded where the mask is False."""
    rectangle: arrays_lib.Array = np.full(mask.shape + values.shape[1:], padding, values.dtype)
    rectangle[mask] = values
    return rectangle


def checked_padding(pad_token_id: object, pad_to_multiple_of: object) -> tuple[int, int]:
    """Return both as ints."""
    padding = validation.non_negative_int("pad_token_id", pad_token_id)
    multiple = validation.positive_int("pad_to_multiple_of", pad_to_multiple_of)
    memory.check_room("pad_to_multiple_of", multiple, np.dtype(np.int64).itemsize, "tokens")
    return padding, multiple
