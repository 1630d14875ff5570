"""The kernels, compiled by numba: they write the same bits as those in numpy, beside which they are documented.

It takes the extra `numba`, so nothing but `relive.kernels.choice` imports it. Numbers are added in the order in which
numpy adds them, and `fastmath` is off. Arrays are C-contiguous and writable, and of the types that `compile_all` names:
for each other one a kernel would be compiled again, when it is called.

What is compiled makes no arrays: numpy makes them in half the time. A kernel that returns some is a function that makes
them, and another one, with an underscore, that fills them. No argument is a bool, or holds bools: what to do about
those numba looks up in Python, which takes ten times as long as all other arguments together.
"""

from collections.abc import Callable
import types
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from relive.common import arrays
from relive.kernels import append as append_lib
from relive.kernels import draw
from relive.kernels import windows

_SHIFT, _WIDTH = draw.SHIFT, draw.WIDTH
_INT64, _UINT8 = np.dtype(np.int64), np.dtype(np.uint8)
_REWARDS = (np.dtype(np.float32), np.dtype(np.float64))
"""The dtypes of rewards that numba can add up."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _jit(function: _Function) -> _Function:
    """Return `function`, to be compiled when it is first called; its code is kept on disk where that can be."""
    settings: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy"}
    compiled: Any
    try:
        compiled = numba.njit(cache=True, **settings)(function)
    except RuntimeError:  # No directory for the cache can be written to.
        compiled = numba.njit(**settings)(function)
    return cast("_Function", compiled)


@_jit
def settle(nodes: arrays.Floats, offsets: arrays.Ints, leaves: arrays.Ints, masses: arrays.Floats) -> None:
    """Do what `relive.kernels.draw.settle` does."""
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
def stratify(points: arrays.Floats, firsts: arrays.Floats, lasts: arrays.Floats, scale: float, highest: float) -> None:
    """Do what `relive.kernels.draw.stratify` does."""
    for i in range(len(points)):
        points[i] = min(min(points[i] + firsts[i], lasts[i]) * scale, highest)


@_jit
def find(
    nodes: arrays.Floats, offsets: arrays.Ints, masses: arrays.Floats, points: arrays.Floats, leaves: arrays.Ints
) -> None:
    """Do what `relive.kernels.draw.find` does."""
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


def eligible_among(facts: arrays.Ints, points: arrays.Floats, rows: int, first: int) -> tuple[arrays.Ints, int]:
    """Do what `relive.kernels.draw.eligible_among` does."""
    slots = np.empty(len(points), _INT64)
    count = _eligible_among(facts, points, rows, first, slots)
    return slots[:count], count


@_jit
def _eligible_among(facts: arrays.Ints, points: arrays.Floats, rows: int, first: int, slots: arrays.Ints) -> int:
    capacity, count = len(facts), 0
    for i in range(len(points)):
        slot = first + np.int64(points[i] * rows)
        slots[i] = slot = slot - capacity if slot >= capacity else slot
        count += facts[np.uint64(slot)] & append_lib.ELIGIBILITY == append_lib.READABLE
    if count == len(points):
        return count
    # A second pass, as stores to where a cache miss says would wait for it.
    count = 0
    for i in range(len(points)):
        slots[count] = slot = slots[i]
        count += facts[np.uint64(slot)] & append_lib.ELIGIBILITY == append_lib.READABLE
    return count


def _append() -> Any:
    """Return `kernels.append.append`, compiled as it stands, with the functions that it calls.

    Compiled code calls nothing but compiled code. So the same code is given another namespace to look names up in,
    where those functions are compiled too. The cache knows it by its file, as it does all others.
    """
    names = vars(append_lib).copy()
    for name in ("has_frames", "complete", "leave", "evict", "close", "begin", "finish", "append"):
        names[name] = _jit(types.FunctionType(names[name].__code__, names))
    return names["append"]


append = _append()


def follow(facts: arrays.Ints, slots: arrays.Ints, most: int) -> windows.Run:
    """Do what `relive.kernels.windows.follow` does; what stands at `span` and beyond is the last row again."""
    count = len(slots)
    rows, span = np.empty((most, count), _INT64), np.empty(count, _INT64)
    last, fact = np.empty(count, _INT64), np.empty(count, _INT64)
    _follow(facts, slots, rows, span, last, fact)
    return windows.Run(rows, span, last, fact)


@_jit
def _follow(
    facts: arrays.Ints,
    slots: arrays.Ints,
    rows: arrays.Ints,
    span: arrays.Ints,
    last: arrays.Ints,
    fact: arrays.Ints,
) -> None:
    for i in range(len(slots)):
        rows[0, i] = last[i] = slots[i]
        span[i], fact[i] = 1, facts[slots[i]]
    for k in range(1, len(rows)):  # All windows a step on: their cache misses overlap.
        for i in range(len(slots)):
            following, found, is_complete = _next(facts, last[i], fact[i])
            if is_complete & (span[i] == k):
                span[i], last[i], fact[i] = k + 1, following, found
            rows[k, i] = last[i]


@_jit
def _next(facts: arrays.Ints, row: int, fact: int) -> tuple[int, int, bool]:
    """Return what follows a row, its fact, and whether it is complete; the row itself again if nothing does."""
    # Without branches on what it reads, and without a look at whether an index counts from the end: in half the time.
    link = fact >> append_lib.LINK
    following = link if link >= 0 else row
    found = facts[np.uint64(following)]
    return following, found, (link >= 0) & (found & append_lib.COMPLETE != 0)


def transitions(
    facts: arrays.Ints,
    slots: arrays.Ints,
    most: int,
    rewards: windows.Rewards,
    powers: arrays.Floats,
    discounts: arrays.Array,
) -> windows.Transitions:
    """Do what `relive.kernels.windows.transitions` does: through it, if numba cannot add up such rewards."""
    if not isinstance(rewards, np.ndarray) or rewards.dtype not in _REWARDS:
        return windows.transitions(facts, slots, most, rewards, powers, discounts)
    count = len(slots)
    span, last, link = np.empty(count, _INT64), np.empty(count, _INT64), np.empty(count, _INT64)
    sums, discount, is_terminal = np.empty(count), np.empty(count, rewards.dtype), np.empty(count, np.bool_)
    flags = is_terminal.view(_UINT8)
    _transitions(facts, slots, most, rewards, powers, discounts, span, last, link, flags, sums, discount)
    reward = sums.astype(rewards.dtype, copy=False)  # Not compiled, so that numpy warns if one is too large.
    return windows.Transitions(span, last, link, is_terminal, reward, discount)


@_jit
def _transitions(
    facts: arrays.Ints,
    slots: arrays.Ints,
    most: int,
    rewards: arrays.Array,
    powers: arrays.Floats,
    discounts: arrays.Array,
    span: arrays.Ints,
    last: arrays.Ints,
    link: arrays.Ints,
    is_terminal: npt.NDArray[np.uint8],
    sums: arrays.Floats,
    discount: arrays.Array,
) -> None:
    fact = link  # Until the end.
    for i in range(len(slots)):
        slot = np.uint64(slots[i])
        span[i], last[i], fact[i] = 1, slots[i], facts[slot]
        # One reward alone stays what it is; added to 0.0, as several are, -0.0 does not.
        sums[i] = rewards[slot] if most == 1 else 0.0 + rewards[slot] * powers[0]
    for k in range(1, most):
        for i in range(len(slots)):
            following, found, is_complete = _next(facts, last[i], fact[i])
            term = rewards[np.uint64(following)] * powers[k]
            if is_complete & (span[i] == k):
                span[i], last[i], fact[i] = k + 1, following, found
                sums[i] += term
    for i in range(len(slots)):
        is_terminal[i] = fact[i] & append_lib.TERMINAL != 0
        discount[i] = 0.0 if is_terminal[i] else discounts[span[i]]
        link[i] = fact[i] >> append_lib.LINK


def look_back(back: Any, steps: arrays.Ints, slots: arrays.Ints, count: int) -> arrays.Ints:
    """Do what `relive.kernels.windows.look_back` does."""
    rows = np.empty((count, len(slots)), _INT64)
    _look_back(back, steps, slots, rows)
    return rows


@_jit
def _look_back(back: Any, steps: arrays.Ints, slots: arrays.Ints, rows: arrays.Ints) -> None:
    count = len(rows)
    for i in range(len(slots)):
        rows[count - 1, i] = slots[i]
    for k in range(1, count):
        for i in range(len(slots)):
            newer = rows[count - k, i]
            rows[count - k - 1, i] = back[newer] if steps[i] >= k else newer


advance = _jit(windows.advance)


def compile_all() -> None:
    """Compile every kernel for the types of arguments that buffers have, by calling it once or twice."""
    nodes, masses, offsets = np.ones(_WIDTH + 1), np.zeros(2), np.array([0, _WIDTH, _WIDTH + 1], np.int64)
    leaves, points, edges = np.zeros(1, np.int64), np.zeros(1), np.arange(2.0)
    settle(nodes, offsets, leaves, masses)
    stratify(points, edges[:-1], edges[1:], 1.0, 1.0)
    find(nodes, offsets, masses, points, leaves)
    # One row of one stream.
    facts, places, back, ints = np.zeros(1, _INT64), np.zeros(1, _INT64), np.zeros(1, np.int32), np.zeros(9, _INT64)
    episodes = np.zeros((append_lib.CURSOR + 1, 1), _INT64)
    slots, events, floats = ints[:1].copy(), np.zeros(1, _UINT8), np.zeros(1)
    current, last, knows, free, num = slots.copy(), slots + append_lib.NONE, slots.copy(), slots.copy(), ints[:8].copy()
    num[append_lib.FREE] = 1
    append(
        facts, places, back, current, last, knows, episodes, free, num, slots, events, 1, 0, floats,
        floats.copy(), ints, ints.copy(), 1.0, 1.0,
    )  # fmt: skip
    eligible_among(facts, points, 1, 0)
    follow(facts, slots, 1)
    for dtype in _REWARDS:
        powers, discounts = np.ones(2), np.ones(2, dtype)
        powers.flags.writeable = discounts.flags.writeable = False
        transitions(facts, slots, 1, np.zeros(1, dtype), powers, discounts)
    look_back(back, slots, slots, 1)
    advance(facts, places, episodes, slots, 1, 0, 1, 0, slots.copy())
