"""Shared beginnings: a sequence whose first prompt begins like an earlier sequence stores the rest alone.

    sequence 4    p p p p p a a a     stored: p p p p p a a a    parent -1, shared 0
    sequence 5    p p p p p b b                         b b      parent  4, shared 5
    sequence 6    p p p q q c                     q q c          parent  4, shared 3

So the episodes of a group store their prompt once, and so do the parts of an episode whose template drops what it
reasoned before. Of a prompt only the tokens are stored: no policy generated them, and the rest follows from that.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import TypeAlias

import numpy as np

from relive.agents import tokens
from relive.common import arrays as arrays_lib
from relive.storage import ragged

Parent: TypeAlias = tuple[int, tokens.Tokens]
"""The key of a sequence, and all its tokens."""
SHORTEST = 64
"""A shorter beginning is not worth what it takes to remember that it is shared."""
NOTHING: Mapping[str, int] = {"policy_versions": -1}
"""What there is of a token of a prompt; of fields that are not here, 0."""


class PrefixIndex:
    """Which sequences of a store others begin like.

    Attributes:
        parents: By group, the first sequence of an episode, which further ones may begin like.
        last_children: By such a sequence, the last one that does.
    """

    def __init__(self) -> None:
        self.parents: dict[str | None, int] = {}
        self.last_children: dict[int, int] = {}

    def add(self, keys: range, group_id: str | None, parent: int, first_kept: int) -> None:
        """Enter an episode of those keys that begins like its parent, -1 for none, which may be gone in a replay."""
        if parent >= first_kept:
            self.last_children[parent] = keys[-1]
        elif parent < 0 and group_id is not None:
            self.parents[group_id] = keys[0]

    def remove(self, first_key: int, group_id: str | None) -> None:
        """Let no further sequence begin like an evicted episode."""
        if self.parents.get(group_id) == first_key:
            del self.parents[group_id]

    def drop(self, start: int, stop: int) -> None:
        """Forget what began like sequences [start, stop), of which nothing is stored any more."""
        for key in range(start, stop):
            self.last_children.pop(key, None)

    def first_kept(self, key: int, first_key: int, parent: int = -1) -> int:
        """Return the first sequence from a key on that is stored, that one of those needs, or that is the parent."""
        while key < first_key and key != parent and self.last_children.get(key, key) < first_key:
            key += 1
        return key

    def of_stored(self, first_key: int) -> tuple[dict[str | None, int], dict[int, int]]:
        """Return the parents, and the last children from a key on."""
        return self.parents, {key: last for key, last in self.last_children.items() if last >= first_key}


def shortened(
    joined: tokens.TokenEpisode, first_key: int, parent: Parent | None, may_share: Callable[[int], bool]
) -> tokens.TokenEpisode:
    """Return a joined episode without the beginnings that its sequences share; O(tokens).

    Each sequence may share that of the one before it in the episode, and the first that of `parent`.

    Args:
        joined: The episode, whole.
        first_key: The key that its first sequence gets.
        parent: A stored sequence, or None.
        may_share: Whether the first may share so many tokens with the parent.
    """
    ends = np.cumsum(joined.lengths)
    is_kept = np.ones(int(ends[-1]), np.bool_)
    parents, shared = joined.parents.copy(), joined.shared.copy()
    for number, (begin, end) in enumerate(zip((ends - joined.lengths).tolist(), ends.tolist(), strict=True)):
        own = joined.columns["tokens"][begin:end]
        if parent is not None:
            prompt = int((joined.columns["policy_versions"][begin:end] >= 0).argmax())
            count = _common(own[:prompt], parent[1])
            if count >= SHORTEST and (number or may_share(count)):
                key = parent[0]
                while key >= first_key and shared[key - first_key] >= count:
                    key = int(parents[key - first_key])
                parents[number], shared[number] = key, count
                is_kept[begin : begin + count] = False
        parent = first_key + number, own
    if not shared.any():
        return joined
    columns = {name: column[is_kept] for name, column in joined.columns.items()}
    return dataclasses.replace(joined, columns=columns, lengths=joined.lengths - shared, parents=parents, shared=shared)


def _common(one: tokens.Tokens, other: tokens.Tokens) -> int:
    """Return the number of tokens at the beginning that are the same."""
    count = min(len(one), len(other))
    differs = one[:count] != other[:count]
    return int(differs.argmax()) if differs.any() else count


def beginnings(rows: ragged.RaggedColumns, keys: arrays_lib.Ints, counts: arrays_lib.Ints) -> tokens.Tokens:
    """Return so many tokens at the beginning of sequences with those keys, which they share [sum of counts]."""
    owners = np.repeat(rows.row_values("parents", keys), counts)
    places = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    while (is_shared := places < rows.row_values("shared", owners)).any():
        owners = np.where(is_shared, rows.row_values("parents", owners), owners)
    return rows.values_at("tokens", owners, places - rows.row_values("shared", owners))


def whole(
    own: Mapping[str, arrays_lib.Array], lengths: arrays_lib.Ints, shared: arrays_lib.Ints, beginnings: tokens.Tokens
) -> dict[str, arrays_lib.Array]:
    """Return the columns of whole sequences [N], given what is stored of them.

    Args:
        own: The columns of what each has of its own [sum of lengths].
        lengths: The number of those tokens of each [S].
        shared: The number of tokens before them of each [S].
        beginnings: These tokens [sum of shared].
    """
    sizes = lengths + shared
    is_own = np.arange(int(sizes.sum())) >= np.repeat(np.cumsum(sizes) - lengths, sizes)
    columns: dict[str, arrays_lib.Array] = {}
    for name, column in own.items():
        columns[name] = np.full(len(is_own), NOTHING.get(name, 0), column.dtype)
        columns[name][is_own] = column
    columns["tokens"][~is_own] = beginnings
    if "steps" in own:  # That of the response to the prompt.
        columns["steps"][~is_own] = np.repeat(own["steps"][np.cumsum(lengths) - lengths], shared)
    return columns
