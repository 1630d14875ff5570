"""What the state of a buffer says about its rows and episodes, read a part at a time."""

from collections.abc import Iterator
import dataclasses
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays
from relive.common import validation
from relive.kernels import append
from relive.persistence import state as state_lib
from relive.tools import distribution

Distributions: TypeAlias = dict[str, distribution.Distribution]

_MOST_GROUPS, _LEAST_ROWS = 50, 10
"""How many groups of rows there are at most, and how many rows are in each at least, if there are so many."""

_STATUSES = ("IN_PROGRESS", "COMPLETED", "TRUNCATED", "ABORTED")
_NUMBERS = {"num_evicted": "evicted", "num_spent": "spent"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """What there is in a buffer.

    Attributes:
        sizes: How much it holds, and how much it can hold at most; None for any amount.
        episodes: How many ended in which way, or did not yet.
        distributions: Of lengths and returns in the order in which the episodes began, and of what each row has.
        by_age: Means over groups of rows of about one age, the newest first [groups].
        counters: What has happened so far.
    """

    sizes: dict[str, int | None]
    episodes: dict[str, int]
    distributions: Distributions
    by_age: dict[str, arrays.Floats]
    counters: dict[str, int]


def of(state: state_lib.State) -> Facts:
    """Return what a state says; one of an unknown kind of buffer says nothing but its counters.

    Raises:
        CheckpointError: No buffer can be in such a state.
    """
    given = state_lib.StateReader(state, state["arrays"])
    counters = _counters(state)
    if given.has_array("row_episode"):
        return _of_columns(given, counters)
    if given.has_array("episode_steps"):
        return _of_episodes(given, counters)
    if given.has_array("lengths"):
        return _of_items(given, counters)
    if given.has_array("sequences/lengths"):
        return _of_tokens(given, counters)
    return Facts(sizes={}, episodes={}, distributions={}, by_age={}, counters=counters)


def _counters(state: state_lib.State) -> dict[str, int]:
    counters = state.get("counters")
    found = dict(counters) if isinstance(counters, dict) else {}
    found |= {shown: state[name] for name, shown in _NUMBERS.items() if name in state}
    return {name: value for name, value in found.items() if type(value) is int}


def _limit(given: state_lib.StateReader, name: str) -> int | None:
    """Return a setting that is a number of rows; None if it is none."""
    value = given.part("settings").value(name)
    return value if type(value) is int else None


def _parts(column: state_lib.ChunkedArray) -> Iterator[arrays.Array]:
    for start, stop in state_lib.chunks(column.shape[0], column.shape[0] * column.dtype.itemsize):
        yield column.read(start, stop)


def _spread(column: state_lib.ChunkedArray) -> distribution.Distribution:
    return distribution.of(_parts(column), column.shape[0])


# Buffers of columns.


def _of_columns(given: state_lib.StateReader, counters: dict[str, int]) -> Facts:
    end = given.array("episode_end", np.uint8, (None,))
    count = len(end)
    if (end > append.TRUNCATED).any():
        raise errors.CheckpointError(f"array episode_end must hold numbers of at most {append.TRUNCATED}")
    length = given.integers("episode_length", count, 1, validation.LARGEST)
    begin = np.argsort(given.integers("episode_first_key", count, 0, validation.LARGEST), kind="stable")
    row_episode = given.column("row_episode", np.int64, (None,))
    rows = row_episode.shape[0]
    rewards = _rewards(given, rows)
    alive, returns = _sums(row_episode, rewards, count)
    has_ended = end != append.OPEN
    ends = np.bincount(end, minlength=3).tolist()
    episodes = {
        "terminated": ends[append.TERMINATED],
        "truncated": ends[append.TRUNCATED],
        "open": ends[append.OPEN],
        "spliced": counters.get("spliced_episodes", 0),
    }
    spread: Distributions = {"episode_lengths": _of_array(length[begin][has_ended[begin]])}
    if rewards is not None:
        is_whole = has_ended & (alive == length)
        spread["episode_returns"] = _of_array(returns[begin][is_whole[begin]])
        spread["rewards"] = _spread(rewards)
    by_age: dict[str, arrays.Floats] = {}
    for name, path, dtype in (
        ("priorities", "sampler/priorities", np.float64),
        ("times_sampled", "times_sampled", np.int64),
    ):
        if given.has_array(path):
            column = given.column(path, dtype, (rows,))
            spread[name] = _spread(column)
            by_age[name] = _means_by_age(column)
    spread["ages"] = distribution.of((np.arange(*part) for part in state_lib.chunks(rows, rows * 8)), rows)
    sizes = {"rows": rows, "capacity": _limit(given, "capacity"), "episodes": count}
    return Facts(sizes=sizes, episodes=episodes, distributions=spread, by_age=by_age, counters=counters)


def _rewards(given: state_lib.StateReader, rows: int) -> state_lib.ChunkedArray | None:
    """Return the rewards of a buffer that has a schema."""
    if not given.has_array("rows/reward"):
        return None
    for dtype in (np.float64, np.float32, np.float16):
        try:
            return given.column("rows/reward", dtype, (rows,))
        except errors.CheckpointError:
            continue
    return given.column("rows/reward", np.longdouble, (rows,))


def _sums(
    row_episode: state_lib.ChunkedArray, rewards: state_lib.ChunkedArray | None, count: int
) -> tuple[npt.NDArray[np.int64], arrays.Floats]:
    """Return how many rows each episode has, and the sum of their rewards [count]."""
    alive, returns = np.zeros(count, np.int64), np.zeros(count)
    rows = row_episode.shape[0]
    for start, stop in state_lib.chunks(rows, rows * row_episode.dtype.itemsize):
        episode = row_episode.read(start, stop)
        if (episode < 0).any() or (episode >= count).any():
            raise errors.CheckpointError(f"array row_episode must hold integers in [0, {count - 1}]")
        np.add.at(alive, episode, 1)
        if rewards is not None:
            _add(returns, episode, rewards.read(start, stop))
    return alive, returns


def _add(returns: arrays.Floats, episode: npt.NDArray[np.int64], rewards: arrays.Array) -> None:
    with np.errstate(over="ignore", invalid="ignore"):  # Rewards may be infinite; the returns say so.
        np.add.at(returns, episode, rewards.astype(np.float64))


def _of_array(values: npt.NDArray[Any]) -> distribution.Distribution:
    return distribution.of([values], len(values))


def _means_by_age(column: state_lib.ChunkedArray) -> arrays.Floats:
    """Return the means of a column over groups of rows that were added one after another, the newest first."""
    rows = column.shape[0]
    groups = min(_MOST_GROUPS, -(-rows // _LEAST_ROWS))
    sums, counts = np.zeros(groups), np.zeros(groups, np.int64)
    for start, stop in state_lib.chunks(rows, rows * column.dtype.itemsize):
        values = column.read(start, stop).astype(np.float64)
        group = (rows - 1 - np.arange(start, stop)) * groups // rows
        is_finite = np.isfinite(values)
        np.add.at(sums, group[is_finite], values[is_finite])
        np.add.at(counts, group[is_finite], 1)
    means: arrays.Floats = np.full(groups, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


# The buffer of episodes.


def _of_episodes(given: state_lib.StateReader, counters: dict[str, int]) -> Facts:
    steps = given.integers("episode_steps", None, 0, validation.LARGEST)
    count = len(steps)
    status = given.array("episode_status", np.uint8, (count,))
    has_final = given.booleans("episode_has_final", count)
    if (status >= len(_STATUSES)).any():
        raise errors.CheckpointError(f"array episode_status must hold numbers below {len(_STATUSES)}")
    total = sum(steps.tolist())
    rewards = given.column("rewards", np.float64, (total,))
    ends, returns = np.cumsum(steps), np.zeros(count)
    for start, stop in state_lib.chunks(total, total * rewards.dtype.itemsize):
        episode = np.searchsorted(ends, np.arange(start, stop), side="right")
        _add(returns, episode, rewards.read(start, stop))
    has_ended = np.isin(status, (_STATUSES.index("COMPLETED"), _STATUSES.index("TRUNCATED")))
    transitions = np.where(has_final, steps, np.maximum(steps - 1, 0))
    return Facts(
        sizes={
            "transitions": int(transitions.sum()),
            "max_transitions": _limit(given, "max_transitions"),
            "episodes": count,
            "max_episodes": _limit(given, "max_episodes"),
        },
        episodes=dict(zip(_STATUSES, np.bincount(status, minlength=len(_STATUSES)).tolist(), strict=True)),
        distributions={
            "episode_lengths": _of_array(steps[has_ended]),
            "episode_returns": _of_array(returns[has_ended]),
            "rewards": _spread(rewards),
            "open_seconds": _spread(given.column("open_age", np.float64, (None,))),
        },
        by_age={},
        counters=counters,
    )


# The buffer of items.


def _of_items(given: state_lib.StateReader, counters: dict[str, int]) -> Facts:
    """Return what a buffer of items holds; what the columns of its user mean, nobody knows."""
    is_ragged = given.part("settings").value("storage_unit") == "fragments"
    lengths = given.array("lengths", np.int64, (None, None) if is_ragged else (None,))
    if is_ragged:
        lengths = lengths.max(axis=1, initial=0)
    if (lengths < 0).any():
        raise errors.CheckpointError("array lengths must hold integers of at least 0")
    sizes = {"rows": sum(lengths.tolist()), "capacity": _limit(given, "capacity"), "items": len(lengths)}
    spread = {"item_lengths": _of_array(lengths)}
    return Facts(sizes=sizes, episodes={}, distributions=spread, by_age={}, counters=counters)


# The buffer of tokens.


def _of_tokens(given: state_lib.StateReader, counters: dict[str, int]) -> Facts:
    lengths = given.integers("sequences/lengths", None, 0, validation.LARGEST)
    returns = given.array("sequences/rows/returns", np.float64, (len(lengths),))
    return Facts(
        sizes={
            "tokens": sum(lengths.tolist()),
            "max_tokens": _limit(given, "max_tokens"),
            "sequences": len(lengths),
        },
        episodes={},
        distributions={"sequence_lengths": _of_array(lengths), "episode_returns": _of_array(returns)},
        by_age={},
        counters=counters,
    )
