"""Which rows a window has, on the flat arrays of `kernels.append`: forward by links, back by `back`."""

from typing import NamedTuple, Protocol

import numpy as np

from relive.common import arrays
from relive.kernels import append


class Run(NamedTuple):
    """Rows that follow each other in their episodes.

    Attributes:
        slots: The rows k steps after the first ones [n, B]; what stands at `span` and beyond means nothing.
        span: How many of them are complete, from the first one on [B].
        last: The last one of those [B].
        fact: Its fact [B].
    """

    slots: arrays.Ints
    span: arrays.Ints
    last: arrays.Ints
    fact: arrays.Ints


def follow(facts: arrays.Ints, slots: arrays.Ints, most: int) -> Run:
    """Return up to `most` rows from each of `slots` [B] on, which are complete."""
    count = len(slots)
    if most == 1:
        ones = np.empty(count, np.int64)
        ones.fill(1)
        return Run(slots[np.newaxis], ones, slots, facts.take(slots))
    capacity = len(facts)
    rows = found = None
    goes_on = np.empty((most, count), np.bool_)
    if count > 1:
        # Rows that follow each other are as far apart everywhere if the streams are written in turn.
        stride = ((facts.item(slots.item(0)) >> append.LINK) - slots.item(0)) % capacity
        if 0 < stride * most < capacity:
            rows = slots + np.arange(0, most * stride, stride)[:, np.newaxis]
            if rows[-1].max() >= capacity:
                rows[rows >= capacity] -= capacity
            found = facts.take(rows)
            links = found[:-1] >> append.LINK
            np.equal(links, rows[1:], out=goes_on[:-1])
            if not arrays.all_set(goes_on[:-1] | (links < 0)):
                rows = None
    if rows is None or found is None:
        rows, found = _chase(facts, slots, goes_on)
    goes_on[:-1] &= (found[1:] & append.COMPLETE).astype(np.bool_)
    goes_on[-1] = False
    further = goes_on.argmin(axis=0)  # The first False.
    places = further * count
    places += np.arange(count)
    return Run(rows, further + 1, rows.take(places), found.take(places))


def _chase(facts: arrays.Ints, slots: arrays.Ints, goes_on: arrays.Bools) -> tuple[arrays.Ints, arrays.Ints]:
    """Return the rows link by link and their facts [most, B]; write to `goes_on` whether there is one to go on to."""
    most = len(goes_on)
    rows, found = np.empty((2, most, len(slots)), np.int64)
    rows[0] = slots
    facts.take(slots, out=found[0])
    for k in range(1, most):
        links = found[k - 1] >> append.LINK
        np.greater_equal(links, 0, out=goes_on[k - 1])
        np.copyto(links, rows[k - 1], where=~goes_on[k - 1])
        rows[k] = links
        facts.take(links, out=found[k])
    return rows, found


class Transitions(NamedTuple):
    """The n-step transitions from some rows, but for what is observed and done.

    Attributes:
        span: How many steps each of them has [B].
        last: The last row of each [B].
        link: The row after that one, -1 where none is stored [B].
        is_terminal: Whether the task ended with it [B].
        reward: The sum over k < span of gamma^k r_k [B].
        discount: gamma^span, 0.0 where the task ended [B].
    """

    span: arrays.Ints
    last: arrays.Ints
    link: arrays.Ints
    is_terminal: arrays.Bools
    reward: arrays.Array
    discount: arrays.Array


class Rewards(Protocol):
    """The rewards by slot: an array, or what reads them from elsewhere."""

    def take(self, indices: arrays.Ints, /) -> arrays.Array:
        """Return the rewards of the rows in some slots, of any shape."""
        ...


def transitions(
    facts: arrays.Ints,
    slots: arrays.Ints,
    most: int,
    rewards: Rewards,
    powers: arrays.Floats,
    discounts: arrays.Array,
) -> Transitions:
    """Return the transitions of up to `most` complete steps from each of `slots` [B] on.

    Args:
        facts: What is known of each row, as in `append`.
        slots: The first rows, which are complete.
        most: How many steps at most, n.
        rewards: Those of all rows, by slot.
        powers: gamma^0 to gamma^n [n + 1].
        discounts: The same, of the dtype of the rewards.
    """
    rows, span, last, fact = follow(facts, slots, most)
    reward = rewards.take(slots) if most == 1 else discounted_sums(rewards.take(rows), span, powers)
    is_terminal = (fact & append.TERMINAL).astype(np.bool_)
    return Transitions(span, last, fact >> append.LINK, is_terminal, reward, discounts_of(span, is_terminal, discounts))


def discounts_of(span: arrays.Ints, is_terminal: arrays.Bools, discounts: arrays.Array) -> arrays.Array:
    """Return by what the values after `span` [B] steps are multiplied: discounts[span], 0.0 where the task ended."""
    found: arrays.Array = discounts.take(span)
    found[is_terminal] = 0.0
    return found


def discounted_sums(rewards: arrays.Array, span: arrays.Ints, powers: arrays.Floats) -> arrays.Array:
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
    terms = columns.astype(np.float64, order="C")
    terms *= powers[:count, np.newaxis]
    np.copyto(terms, 0.0, where=np.arange(count)[:, np.newaxis] >= span)
    terms[0] += 0.0  # Of -0.0 alone it makes 0.0, as every sum that begins with 0.0 does.
    sums: arrays.Array = np.add.reduce(terms, axis=0)[: len(span)]
    return sums.astype(rewards.dtype)


def look_back(back: arrays.Ints, steps: arrays.Ints, slots: arrays.Ints, count: int) -> arrays.Ints:
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


def advance(
    facts: append.Numbers,
    places: append.Numbers,
    episodes: append.Numbers,
    completed: append.Numbers,
    count: int,
    lag: int,
    stride: int,
    pad: int,
    found: append.Numbers,
) -> int:
    """Write to `found` the rows from which sequences can be read since rows are complete; return how many there are.

    Args:
        facts: As in `append`.
        places: As in `append`.
        episodes: As in `append`; their cursors move on.
        completed: The rows that are complete now; of an episode in time order [count].
        count: How many.
        lag: How many steps after its anchor the step is with which a window can be read.
        stride: Anchors are every stride-th step of an episode.
        pad: Whether the first step of an episode is an anchor at once.
        found: Takes the anchors [count].
    """
    num_found = 0
    for i in range(count):
        slot = completed[i]
        episode, step = places[slot] >> append.EPISODE, places[slot] & append.STEP
        anchor = step - lag
        if pad and lag > 0:
            if step == 0:
                found[num_found] = slot
                num_found += 1
            if anchor == 0:
                continue  # It was let in then.
        if anchor < 0 or anchor % stride:
            continue
        at = episodes[append.CURSOR, episode]
        first = episodes[append.OLDEST, episode]
        # The row of the cursor may be gone: another is in its slot then, or none.
        reached = places[at] & append.STEP
        if places[at] >> append.EPISODE != episode or reached > anchor or reached < places[first] & append.STEP:
            at = first
        while places[at] & append.STEP < anchor:
            at = facts[at] >> append.LINK
        episodes[append.CURSOR, episode] = at
        if places[at] & append.STEP == anchor:
            found[num_found] = at
            num_found += 1
    return num_found


def advance_by_views(
    facts: arrays.Ints,
    places: arrays.Ints,
    episodes: arrays.Ints,
    completed: arrays.Ints,
    count: int,
    lag: int,
    stride: int,
    pad: int,
    found: arrays.Ints,
) -> int:
    """Do what `advance` does, given arrays: it runs over memoryviews of them, which is several times faster."""
    return advance(facts.data, places.data, episodes.data, completed.data, count, lag, stride, pad, found.data)
