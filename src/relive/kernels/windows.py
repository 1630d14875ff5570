"""Which rows a window has, on the flat arrays of `kernels.append`: forward by links, back by `back`."""

import functools
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from relive.common import arrays as arrays_lib
from relive.kernels import append


class Run(NamedTuple):
    """Rows that follow each other in their episodes.

    Attributes:
        slots: The rows k steps after the first ones [n, B]; what stands at `span` and beyond means nothing.
        span: How many of them are complete, from the first one on [B].
        last: The last one of those [B].
    """

    slots: arrays_lib.Ints
    span: arrays_lib.Ints
    last: arrays_lib.Ints


Transitions: TypeAlias = tuple[
    arrays_lib.Ints,
    arrays_lib.Ints,
    arrays_lib.Array,
    arrays_lib.Bools,
    arrays_lib.Array,
    arrays_lib.Array,
    arrays_lib.Keys,
]
"""The n-step transitions from some rows, but for what is observed and done, each [B]:

    span            how many steps it has                                  is_terminal  whether the task ended with it
    last            its last row                                           reward       sum over k < span of gamma^k r_k
    following       the row after that one, -1 where none is stored        discount     gamma^span, 0.0 where the task
    keys            the key of its first row                                            ended
"""


class Rewards(Protocol):
    """The rewards by slot: an array, or what reads them from elsewhere."""

    def take(self, indices: arrays_lib.Ints, /) -> arrays_lib.Array:
        """Return the rewards of the rows in some slots, of any shape."""
        ...


def follow(rows: append.Rows, slots: arrays_lib.Ints, most: int) -> Run:
    """Return up to `most` rows from each of `slots` [B] on, which are complete."""
    flags, following, *_ = rows
    count, capacity = len(slots), len(flags)
    if most == 1:
        ones = np.empty(count, np.int64)
        ones.fill(1)
        return Run(slots[np.newaxis], ones, slots)
    chain = None
    goes_on = np.empty((most, count), np.bool_)
    if count > 1:
        # Rows that follow each other are as far apart everywhere if the streams are written in turn.
        stride = (following.item(slots.item(0)) - slots.item(0)) % capacity
        if 0 < stride * most < capacity:
            chain = slots + np.arange(0, most * stride, stride)[:, np.newaxis]
            if chain[-1].item(chain[-1].argmax()) >= capacity:
                chain[chain >= capacity] -= capacity
            links = following.take(chain[:-1])
            np.equal(links, chain[1:], out=goes_on[:-1])
            if not arrays_lib.all_set(goes_on[:-1] | (links < 0)):
                chain = None
    if chain is None:
        chain = np.empty((most, count), np.int64)
        chain[0] = slots
        for k in range(1, most):
            links = following.take(chain[k - 1])
            np.greater_equal(links, 0, out=goes_on[k - 1])
            np.copyto(chain[k], chain[k - 1])
            np.copyto(chain[k], links, where=goes_on[k - 1])
    goes_on[:-1] &= (flags.take(chain[1:]) & append.COMPLETE).astype(np.bool_)
    goes_on[-1] = False
    further = goes_on.argmin(axis=0)  # The first False.
    places = further * count
    places += np.arange(count)
    return Run(chain, further + 1, chain.take(places))


def transitions(
    rows: append.Rows,
    slots: arrays_lib.Ints,
    most: int,
    rewards: Rewards,
    powers: arrays_lib.Floats,
    discounts: arrays_lib.Array,
) -> Transitions:
    """Return the transitions of up to `most` complete steps from each of `slots` [B] on.

    Args:
        rows: The arrays of `kernels.append`.
        slots: The first rows, which are complete.
        most: How many steps at most, n.
        rewards: Those of all rows, by slot.
        powers: gamma^0 to gamma^n [n + 1].
        discounts: The same, of the dtype of the rewards.
    """
    flags, following, *_, num = rows
    keys = append.keys_of(num, slots, len(flags))
    if most == 1:
        span, found = np.empty(len(slots), np.int64), flags.take(slots)
        span.fill(1)
        discount = _discounts_by_flags(discounts.item(1), discounts.dtype).take(found)
        return span, slots, following.take(slots), found >= append.TERMINAL, rewards.take(slots), discount, keys
    chain, span, last = follow(rows, slots, most)
    reward = discounted_sums(rewards.take(chain), span, powers)
    is_terminal: arrays_lib.Bools = flags.take(last) >= append.TERMINAL
    return span, last, following.take(last), is_terminal, reward, discounts_of(span, is_terminal, discounts), keys


@functools.lru_cache(maxsize=64)
def _discounts_by_flags(discount: float, dtype: np.dtype[Any]) -> arrays_lib.Array:
    """Return by the flags of a row [256] by what the value after it is multiplied: 0.0 where the task ended."""
    table = np.full(256, discount, dtype)
    table[append.TERMINAL :] = 0.0
    return table


def discounts_of(span: arrays_lib.Ints, is_terminal: arrays_lib.Bools, discounts: arrays_lib.Array) -> arrays_lib.Array:
    """Return by what the values after `span` [B] steps are multiplied: discounts[span], 0.0 where the task ended."""
    found: arrays_lib.Array = discounts.take(span)
    found[is_terminal] = 0.0
    return found


def discounted_sums(rewards: arrays_lib.Array, span: arrays_lib.Ints, powers: arrays_lib.Floats) -> arrays_lib.Array:
    """Return of each column of `rewards` [n, B] the sum over k < span of gamma^k r_k [B], in the dtype of the rewards.

    Added up as float64 from k = 0 on (Sutton and Barto 2018, equation 7.1, without its bootstrap). A sum beyond the
    dtype is infinite, and numpy warns of it.

    Args:
        rewards: What stands at `span` and beyond means nothing.
        span: How many count, in each column [B].
        powers: gamma^0 to gamma^(n - 1), and beyond.
    """
    count = len(rewards)
    # Laid out by step, numpy adds whole rows to each other: `relive bench --workload n-step`. The numbers of one column
    # alone it adds up in another order; there shall be two.
    columns = rewards if len(span) > 1 else np.broadcast_to(rewards, (count, 2 * len(span)))
    terms = np.multiply(columns, powers[:count, np.newaxis], dtype=np.float64, order="C")
    np.copyto(terms, 0.0, where=np.arange(count)[:, np.newaxis] >= span)
    terms[0] += 0.0  # Of -0.0 alone it makes 0.0, as every sum that begins with 0.0 does.
    sums: arrays_lib.Array = np.add.reduce(terms, axis=0)[: len(span)]
    return sums.astype(rewards.dtype)


def look_back(back: arrays_lib.Ints, steps: arrays_lib.Ints, slots: arrays_lib.Ints, count: int) -> arrays_lib.Ints:
    """Return the `count` rows up to each of `slots` [B], in time order [count, B]; the first of an episode is repeated.

    Args:
        back: The row before each, by slot.
        steps: How many steps of the episode came before each of `slots` [B].
        slots: Rows that have their older frames.
        count: How many.
    """
    rows = np.empty((count, len(slots)), np.int64)
    rows[-1] = slots
    for k in range(1, count):
        newer = rows[count - k]
        np.copyto(rows[count - k - 1], newer)
        has_older = steps >= k
        rows[count - k - 1][has_older] = back.take(newer[has_older])
    return rows
