"""Whole episodes of one stream, written in one call of numpy each: what `append` says of a run with ends in it."""

from typing import Any

import numpy as np
import numpy.typing as npt

from relive.common import arrays as arrays_lib
from relive.kernels import append


def append_episodes(
    rows: append.Rows, stream: int, lengths: arrays_lib.Ints, ends: npt.NDArray[np.uint8], knows: arrays_lib.Bools
) -> arrays_lib.Ints:
    """Add whole episodes to a stream, and return their numbers [E]; what is open there is truncated first.

    Args:
        rows: All arrays; `free` must hold a number for each episode.
        stream: The stream.
        lengths: How many rows each episode has, at least 1; at most the capacity in all [E].
        ends: TERMINATED or TRUNCATED [E].
        knows: Whether the observation after the last row of each is known [E].
    """
    flags, following, places, back, _, current, last, known, episodes, free, changed, num = rows
    counts, capacity, stops = num.data, len(flags), np.cumsum(lengths)
    count, firsts, lasts = stops.item(-1), stops - lengths, stops - 1
    key, views = counts[append.NEXT_KEY], append.views_of(rows)
    surplus = counts[append.ROWS] + count - capacity
    if surplus > 0:
        append.evict_many(rows, surplus)
    counts[append.ROWS] += count
    counts[append.NEXT_KEY] += count
    if last[stream] != append.NONE:
        append.close(views, stream)
    counts[append.FREE] -= len(lengths)
    numbers: arrays_lib.Ints = free[counts[append.FREE] :][: len(lengths)][::-1].copy()
    slots, run = append.slots_from(key, count, capacity), append.run_from(key, count, capacity)
    steps = np.arange(count)
    places[run] = np.repeat((numbers << append.EPISODE) - firsts, lengths) + steps
    links = np.append(slots[1:], -1)
    links[lasts] = -1
    following[run] = links
    if len(back):
        links = np.append(-1, slots[:-1])
        links[firsts] = -1
        back[run] = links
    has_terminated = ends == append.TERMINATED
    flags[run] = _flags(num, lengths, firsts, lengths - ~(knows | has_terminated), len(changed) > 0)
    flags[slots[lasts[has_terminated]]] |= append.TERMINAL
    eligible = slots[np.frombuffer(append.are_eligible(flags[run]), np.bool_)]
    counts[append.ELIGIBLE] += len(eligible)
    append.note_many(changed, num, eligible)
    table: Any = (stream, key + firsts, lengths, ends, knows, slots[firsts])
    for column, values in zip(episodes, table, strict=True):
        column[numbers] = values
    current[stream], last[stream], known[stream] = numbers[-1], append.NONE, 0
    return numbers


def _flags(
    num: arrays_lib.Ints, lengths: arrays_lib.Ints, firsts: arrays_lib.Ints, complete: arrays_lib.Ints, is_noted: bool
) -> npt.NDArray[np.uint8]:
    """Return the flags of the rows of whole episodes [N], but for TERMINAL; the first `complete` are complete [E]."""
    readable = append.READABLE | append.FRESH if is_noted else append.READABLE
    lag, stride, pad = num.item(append.LAG), num.item(append.STRIDE), num.item(append.PAD)
    count = int(lengths.sum())
    if not lag and stride == 1 and not pad:
        flags = np.full(count, append.COMPLETE | readable, np.uint8)
        flags[(firsts + complete)[complete < lengths]] = 0
        return flags
    steps, complete = np.arange(count) - np.repeat(firsts, lengths), np.repeat(complete, lengths)
    is_anchor = (steps + lag < complete) & (steps % stride == 0)
    if pad:
        is_anchor |= (steps == 0) & (complete > 0)
    return np.asarray((steps < complete) * np.uint8(append.COMPLETE) | is_anchor * np.uint8(readable))
