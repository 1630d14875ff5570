"""The kernels, compiled by numba: they write the same bits as those in numpy, beside which they are documented.

It takes the extra `numba`, so nothing but `relive.kernels.choice` imports it. Numbers are added in the order in which
numpy adds them, and `fastmath` is off. Arrays are C-contiguous, of the types that `compile_all` names, and writable,
except for rewards, powers and discounts, which are read-only: for any other type a kernel would be compiled again when
it is called. So arrays of users, of custom samplers and of files are copied where they come in.

What is compiled makes no arrays: numpy makes them in half the time. A kernel that returns some is a function that makes
them, and another one, with an underscore, that fills them. No argument is a bool, or holds bools: what to do about
those numba looks up in Python, which takes ten times as long as all other arguments together.
"""

from collections.abc import Callable
import logging
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from relive.common import arrays as arrays_lib
from relive.kernels import append as append_lib
from relive.kernels import draw
from relive.kernels import windows

_LOGGER = logging.getLogger(__name__)
_SHIFT, _WIDTH = draw.SHIFT, draw.WIDTH
_INT64, _UINT8 = np.dtype(np.int64), np.dtype(np.uint8)
_REWARDS = (np.dtype(np.float32), np.dtype(np.float64))
"""The dtypes of rewards that numba can add up."""

_SETTINGS: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Levels: TypeAlias = tuple[arrays_lib.Floats, arrays_lib.Ints]
"""The nodes and the offsets of a tree."""


def _jit(function: _Function) -> _Function:
    """Return `function`, to be compiled when it is first called; its code is kept on disk where that can be."""
    compiled: Any
    try:
        compiled = numba.njit(cache=True, **_SETTINGS)(function)
    except RuntimeError:  # No directory for the cache can be written to.
        compiled = numba.njit(**_SETTINGS)(function)
    return cast("_Function", compiled)


def levels(nodes: arrays_lib.Floats, offsets: arrays_lib.Ints) -> _Levels:
    """Do what `relive.kernels.draw.levels` does."""
    return nodes, offsets


@_jit
def settle(levels: _Levels, leaves: arrays_lib.Ints, masses: arrays_lib.Floats) -> None:
    """Do what `relive.kernels.draw.settle` does."""
    nodes, offsets = levels
    top = len(offsets) - 2
    for level in range(top):
        low, high, last = offsets[level], offsets[level + 1], -1
        for i in range(len(leaves)):
            place = leaves[i] >> (_SHIFT * (level + 1))
            if place == last:
                continue
            last = place
            first = low + _WIDTH * place
            total = 0.0
            for j in range(first, first + _WIDTH):
                total += nodes[j]
            nodes[high + place] = total
    total, first = 0.0, offsets[top]
    for i in range(len(masses) - 1):
        total += nodes[first + i]
        masses[i + 1] = total


@_jit
def stratify(
    points: arrays_lib.Floats, firsts: arrays_lib.Floats, lasts: arrays_lib.Floats, scale: float, highest: float
) -> None:
    """Do what `relive.kernels.draw.stratify` does."""
    for i in range(len(points)):
        points[i] = min(min(points[i] + firsts[i], lasts[i]) * scale, highest)


def find(levels: _Levels, masses: arrays_lib.Floats, points: arrays_lib.Floats) -> arrays_lib.Ints:
    """Do what `relive.kernels.draw.find` does."""
    leaves = np.empty(len(points), _INT64)
    _find(levels, masses, points, leaves)
    return leaves


@_jit
def _find(levels: _Levels, masses: arrays_lib.Floats, points: arrays_lib.Floats, leaves: arrays_lib.Ints) -> None:
    nodes, offsets = levels
    top, base = len(masses) - 1, 1
    rise = top < 16 * len(points)
    for i in range(1, len(points)):
        rise &= points[i - 1] <= points[i]
    for i in range(len(points)):
        left = points[i]
        if rise:  # Those of strata do: on from the entry of the last one takes a third of the time of a search.
            while masses[base] <= left:
                base += 1
        else:
            base, count = 1, top
            while count > 1:  # Without branches on what it reads: those would cost more than all the rest.
                half = count >> 1
                base += half * (masses[base + half - 1] <= left)
                count -= half
            base += masses[base] <= left
        leaves[i] = base - 1
        points[i] = left - masses[base - 1]
    for level in range(len(offsets) - 3, -1, -1):  # All points a level down: their cache misses overlap.
        for i in range(len(points)):
            left, first = points[i], offsets[level] + _WIDTH * leaves[i]
            total, before, child = 0.0, 0.0, 0
            for j in range(_WIDTH):
                total += nodes[first + j]
                begun = total <= left
                before = total if begun else before
                child += begun
            if child == _WIDTH:
                child -= 1
                while nodes[first + child] == 0.0:
                    child -= 1
                before = 0.0
                for j in range(child):
                    before += nodes[first + j]
            points[i] = left - before
            leaves[i] = _WIDTH * leaves[i] + child


def draw_uniform(flags: npt.NDArray[np.uint8], num: arrays_lib.Ints, points: arrays_lib.Floats) -> arrays_lib.Ints:
    """Do what `relive.kernels.draw.draw_uniform` does."""
    slots = np.empty(len(points), _INT64)
    count = _draw_uniform(flags, num, points, slots)
    return slots if count == len(slots) else slots[:count]


@_jit
def _draw_uniform(
    flags: npt.NDArray[np.uint8], num: arrays_lib.Ints, points: arrays_lib.Floats, slots: arrays_lib.Ints
) -> int:
    capacity, alive, count = len(flags), num[append_lib.ROWS], 0
    first = (num[append_lib.NEXT_KEY] - alive) % capacity if alive < capacity else 0
    for i in range(len(points)):
        slot = first + np.int64(points[i] * alive)
        slots[i] = slot = slot - capacity if slot >= capacity else slot
        count += flags[np.uint64(slot)] & append_lib.ELIGIBILITY == append_lib.READABLE
    if count == len(points):
        return count
    # A second pass, as stores to where a cache miss says would wait for it.
    count = 0
    for i in range(len(points)):
        slots[count] = slot = slots[i]
        count += flags[np.uint64(slot)] & append_lib.ELIGIBILITY == append_lib.READABLE
    return count


def follow(rows: append_lib.Rows, slots: arrays_lib.Ints, most: int) -> windows.Run:
    """Do what `relive.kernels.windows.follow` does; what stands at `span` and beyond is the last row again."""
    chain, span, last = np.empty((most, len(slots)), _INT64), np.empty(len(slots), _INT64), np.empty(len(slots), _INT64)
    _follow(rows, slots, chain, span, last)
    return windows.Run(chain, span, last)


@_jit
def _follow(
    rows: append_lib.Rows, slots: arrays_lib.Ints, chain: arrays_lib.Ints, span: arrays_lib.Ints, last: arrays_lib.Ints
) -> None:
    flags, following, _, _, _, _, _, _, _, _, _, _ = rows
    for i in range(len(slots)):
        chain[0, i] = last[i] = slots[i]
        span[i] = 1
    for k in range(1, len(chain)):  # All windows a step on: their cache misses overlap.
        for i in range(len(slots)):
            row, is_complete = _next(flags, following, last[i])
            if is_complete & (span[i] == k):
                span[i], last[i] = k + 1, row
            chain[k, i] = last[i]


@_jit
def _next(flags: npt.NDArray[np.uint8], following: npt.NDArray[np.int32], row: Any) -> tuple[Any, Any]:
    """Return what follows a row, and whether it is complete; the row itself again if nothing does."""
    # Without branches on what it reads, and without a look at whether an index counts from the end: in half the time.
    link = np.int64(following[np.uint64(row)])
    later = link if link >= 0 else row
    return later, (link >= 0) & (flags[np.uint64(later)] & append_lib.COMPLETE != 0)


def transitions(
    rows: append_lib.Rows,
    slots: arrays_lib.Ints,
    most: int,
    rewards: windows.Rewards,
    powers: arrays_lib.Floats,
    discounts: arrays_lib.Array,
) -> windows.Transitions:
    """Do what `relive.kernels.windows.transitions` does: through it, if numba cannot add up such rewards."""
    if not isinstance(rewards, np.ndarray) or rewards.dtype not in _REWARDS:
        return windows.transitions(rows, slots, most, rewards, powers, discounts)
    count = len(slots)
    span, last, keys = np.empty(count, _INT64), np.empty(count, _INT64), np.empty(count, _INT64)
    link, is_terminal = np.empty(count, np.int32), np.empty(count, np.bool_)
    sums, discount = np.empty(count), np.empty(count, rewards.dtype)
    _transitions(
        rows, slots, most, rewards, powers, discounts, span, last, link, is_terminal.view(_UINT8), sums, discount, keys
    )
    reward = sums.astype(rewards.dtype, copy=False)  # Not compiled, so that numpy warns if one is too large.
    return span, slots if most == 1 else last, link, is_terminal, reward, discount, keys


@_jit
def _transitions(
    rows: append_lib.Rows,
    slots: arrays_lib.Ints,
    most: int,
    rewards: arrays_lib.Array,
    powers: arrays_lib.Floats,
    discounts: arrays_lib.Array,
    span: arrays_lib.Ints,
    last: arrays_lib.Ints,
    link: npt.NDArray[np.int32],
    is_terminal: npt.NDArray[np.uint8],
    sums: arrays_lib.Floats,
    discount: arrays_lib.Array,
    keys: arrays_lib.Keys,
) -> None:
    flags, following, _, _, _, _, _, _, _, _, _, num = rows
    newest = num[append_lib.NEXT_KEY] - 1
    place = newest % len(flags)
    for i in range(len(slots)):
        slot = np.uint64(slots[i])
        span[i], last[i] = 1, slots[i]
        keys[i] = slots[i] + newest - place - (len(flags) if slots[i] > place else 0)
        # One reward alone stays what it is; added to 0.0, as several are, -0.0 does not.
        sums[i] = rewards[slot] if most == 1 else 0.0 + rewards[slot] * powers[0]
    for k in range(1, most):
        for i in range(len(slots)):
            row, is_complete = _next(flags, following, last[i])
            term = rewards[np.uint64(row)] * powers[k]
            if is_complete & (span[i] == k):
                span[i], last[i] = k + 1, row
                sums[i] += term
    for i in range(len(slots)):
        newest_row = np.uint64(last[i])
        is_terminal[i] = flags[newest_row] & append_lib.TERMINAL != 0
        discount[i] = 0.0 if is_terminal[i] else discounts[span[i]]
        link[i] = following[newest_row]


def look_back(back: Any, steps: arrays_lib.Ints, slots: arrays_lib.Ints, count: int) -> arrays_lib.Ints:
    """Do what `relive.kernels.windows.look_back` does."""
    rows = np.empty((count, len(slots)), _INT64)
    _look_back(back, steps, slots, rows)
    return rows


@_jit
def _look_back(back: Any, steps: arrays_lib.Ints, slots: arrays_lib.Ints, rows: arrays_lib.Ints) -> None:
    count = len(rows)
    for i in range(len(slots)):
        rows[count - 1, i] = slots[i]
    for k in range(1, count):
        for i in range(len(slots)):
            newer = rows[count - k, i]
            rows[count - k - 1, i] = back[newer] if steps[i] >= k else newer


def compile_all() -> None:
    """Compile every kernel for the types of arguments that buffers have, by calling it once or twice."""
    nodes, masses, offsets = np.ones(_WIDTH + 1), np.zeros(2), np.array([0, _WIDTH, _WIDTH + 1], np.int64)
    leaves, points, edges = np.zeros(1, np.int64), np.zeros(1), np.arange(2.0)
    settle((nodes, offsets), leaves, masses)
    if not cast("Any", settle).stats.cache_hits:
        _LOGGER.warning("numba compiles the kernels of relive: it takes some seconds, and is kept for later processes")
    stratify(points, edges[:-1], edges[1:], 1.0, 1.0)
    find((nodes, offsets), masses, points)
    slots, num = np.zeros(1, _INT64), np.zeros(10, _INT64)
    num[append_lib.ROWS] = num[append_lib.NEXT_KEY] = 1
    flags, following, places, back = np.zeros(1, _UINT8), np.zeros(1, np.int32), slots.copy(), np.zeros(1, np.int32)
    per_stream = np.zeros((1, 3), _INT64), slots.copy(), slots.copy(), slots.copy()
    episodes = np.zeros((append_lib.OLDEST + 1, 1), _INT64)
    rows = flags, following, places, back, *per_stream, episodes, slots.copy(), slots.copy(), num
    draw_uniform(flags, num, points)
    follow(rows, slots, 1)
    for dtype in _REWARDS:
        powers, discounts = np.ones(2), np.ones(2, dtype)
        rewards = np.zeros(1, dtype)
        powers.flags.writeable = discounts.flags.writeable = rewards.flags.writeable = False
        transitions(rows, slots, 1, rewards, powers, discounts)
    look_back(back, slots, slots, 1)
