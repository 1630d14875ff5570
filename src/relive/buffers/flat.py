"""Many episodes in flat arrays: where they begin and end, what follows their last steps, and which rows are steps.

row                     0   1   2   3   4   5   6       steps, (row of a final observation)
terminated              .   .   x   .   .   .   .       0 1 2 | 3 4 5 6    what follows 6 is unknown: `unknown_end`
episodes                7   7   7   2   2   2   2       0 1 (2) | 3 4 5 (6)    with last_row="final_observation"
next_observations       given for each row              also ends where the next row begins with another observation
"""

import bisect
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.persistence import state
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.storage import splices
from relive.storage import steps as steps_lib
from relive.storage import whole

_DEFAULTS = {"last_row": "step", "unknown_end": "error"}
_CHOICES = {"last_row": ("step", "final_observation"), "unknown_end": ("error", "drop", "keep")}


class Flags(NamedTuple):
    """How the episodes of some rows end: the arguments of `add_episodes` of those names."""

    terminated: Any
    truncated: Any
    episodes: Any
    last_row: str
    unknown_end: str


def episodes_of(
    encoder: encoding.Encoder | None, stream: int, given: encoding.Given, flags: Flags
) -> tuple[whole.Episodes | None, int]:
    """Return the episodes of flat arrays, None if they have no step, and how many end because the next row is apart.

    Args:
        encoder: The encoder; None while there is no schema.
        stream: The stream.
        given: The observations, actions, rewards, next observations or None, and the extras [rows, ...].
        flags: How the episodes end.

    Raises:
        SchemaError: A value does not fit its field, is missing, or has none.
        ArgumentError: Another argument is invalid.
    """
    observations, actions, rewards, next_observations, extras = given
    count, has_next = validation.leading_length("rewards", rewards), next_observations is not None
    for name, choices in _CHOICES.items():
        value = getattr(flags, name)
        validation.require_choice(name, value, choices)
        if has_next and value != _DEFAULTS[name]:
            raise errors.ArgumentError(f"{name} must be left out where next_observations are given, got {value!r}")
    lasts, has_terminated = _ends(count, flags)
    is_left_out = np.full(len(lasts), flags.last_row == "final_observation")
    if not has_next and flags.last_row == "step":
        is_unknown = ~has_terminated
        if flags.unknown_end == "error" and is_unknown.any():
            rule = "unknown_end must be 'drop' or 'keep' where no observation follows an episode that did not terminate"
            row = lasts[is_unknown][0]
            raise errors.ArgumentError(f"{rule}, got {np.count_nonzero(is_unknown)} of them, the first up to row {row}")
        is_left_out = is_unknown & (flags.unknown_end == "drop")
    places: arrays_lib.Ints | None = None
    if is_left_out.any():
        is_step = np.ones(count, np.bool_)
        is_step[lasts[is_left_out]] = False
        (places,) = is_step.nonzero()
        actions, rewards, extras = (_without(part, is_step) for part in (actions, rewards, extras))
    if not count or (places is not None and not len(places)):
        return None, 0
    if encoder is None:
        options: Any = {"extras": extras, "num_leading": 1}
        encoder = encoding.Encoder(schema_lib.Schema.from_example(observations, actions, rewards, **options))
    given = observations, actions, rewards, next_observations, extras
    try:
        columns, following = encoder.flat(count, given)
    except errors.SchemaError as error:
        row = _refused_row(encoder, given, count, str(error))
        raise error if row is None else errors.SchemaError(f"{error} at row {row}") from None
    cuts = _cuts(columns, following, lasts)
    if len(cuts):
        has_terminated = np.append(has_terminated, np.zeros(len(cuts), np.bool_))
        lasts, is_left_out = np.append(lasts, cuts), np.zeros(len(lasts) + len(cuts), np.bool_)
        order = np.argsort(lasts)
        lasts, has_terminated = lasts[order], has_terminated[order]
    lengths = np.diff(lasts, prepend=-1) - is_left_out
    some, knows = lengths > 0, is_left_out | has_next
    lengths, lasts, knows = lengths[some], lasts[some], knows[some]
    ends = np.where(has_terminated[some], encoding.TERMINATED, encoding.TRUNCATED).astype(np.uint8)
    seen, paths = following or columns, encoder.observation_paths
    finals = {path: _rows_or_zeros(seen[path], lasts, knows) for path in paths}
    return whole.Episodes(encoder, stream, columns, places, lengths, ends, knows, finals), len(cuts)


def _ends(count: int, flags: Flags) -> tuple[arrays_lib.Ints, arrays_lib.Bools]:
    """Return the last row of each episode [E], and whether it terminated [E]."""
    if flags.terminated is None and flags.truncated is None and flags.episodes is None:
        raise errors.ArgumentError("terminated, truncated or episodes must be given, got none of them")
    terminated = _flags("terminated", flags.terminated, count)
    is_end = terminated | _flags("truncated", flags.truncated, count)
    is_last = is_end.copy() if flags.episodes is None else _is_last(flags.episodes, count)
    is_last[-1:] = True
    (lasts,) = is_last.nonzero()
    has_terminated = terminated.take(lasts)
    is_too_early = is_end & ~is_last
    if flags.last_row == "final_observation":
        before = lasts[np.diff(lasts, prepend=-1) > 1] - 1
        for row in before[is_end[before] & is_end[before + 1]][:1]:
            rule = "terminated or truncated must be True at the row of a final observation or at the row before it"
            raise errors.ArgumentError(f"{rule}, got both at row {row + 1}")
        is_too_early[before] = False
        has_terminated |= terminated.take(lasts - 1, mode="clip") & (np.diff(lasts, prepend=-1) > 1)
    for row in is_too_early.nonzero()[0][:1]:
        raise errors.ArgumentError(
            f"terminated and truncated must be False before the last row of an episode, got True at row {row}"
        )
    return lasts, has_terminated


def _flags(name: str, value: Any, count: int) -> arrays_lib.Bools:
    """Return flags as an array of bools [count]; None is all False."""
    try:
        return validation.flags(name, value, count)
    except errors.ArgumentError as error:
        given = validation.array_of(value)
        if given is not None and given.shape == (count,) and given.dtype.kind in "iuf":
            row = int(((given != 0) & (given != 1)).argmax())
            raise errors.ArgumentError(f"{name} must be True, False, 0 or 1, got {given[row]} at row {row}") from error
        raise


def _is_last(episodes: Any, count: int) -> arrays_lib.Bools:
    """Return whether each row is the last of its episode: the next one has another number [count]."""
    numbers = validation.array_of(episodes)
    if numbers is None or numbers.shape != (count,):
        found = validation.short_repr(episodes) if numbers is None else numbers.shape
        raise errors.ArgumentError(f"episodes must be of shape ({count},), got {found}")
    for row in (numbers != numbers).nonzero()[0][:1]:
        raise errors.ArgumentError(f"episodes must be numbers or names of episodes, got {numbers[row]} at row {row}")
    return np.append(numbers[1:] != numbers[:-1], True)[:count]


def _without(tree: Any, is_step: arrays_lib.Bools) -> Any:
    """Return what is given for each row; where a row is no step, what is given for the first step."""
    if isinstance(tree, Mapping):
        return {key: _without(child, is_step) for key, child in tree.items()}
    places = np.where(is_step, np.arange(len(is_step)), is_step.argmax())
    if isinstance(tree, list | tuple) and len(tree) == len(is_step):
        return [tree[place] for place in places.tolist()]
    array = validation.array_of(tree)
    return tree if array is None or array.shape[:1] != is_step.shape else array.take(places, axis=0)


def _refused_row(encoder: encoding.Encoder, given: encoding.Given, count: int, message: str) -> int | None:
    """Return the first row that is refused with that message; None if no rows are too, or a place is named already."""

    def refusal(start: int, stop: int) -> str:
        try:
            part: Any = [_rows(tree, slice(start, stop)) for tree in given]
            encoder.flat(stop - start, part)
        except Exception as error:
            return str(error)
        return ""

    if refusal(0, 0) == message or message.endswith("]"):
        return None
    row = bisect.bisect_left(range(count), True, key=lambda row: bool(refusal(0, row + 1)))
    return row if refusal(row, row + 1) == message else None


def _rows(tree: Any, some: slice) -> Any:
    """Return some of the rows of every leaf, of lists too."""
    if isinstance(tree, Mapping):
        return {key: _rows(child, some) for key, child in tree.items()}
    return None if tree is None else tree[some]


def _cuts(columns: steps_lib.Columns, following: steps_lib.Columns, lasts: arrays_lib.Ints) -> arrays_lib.Ints:
    """Return the rows within episodes whose next observation is not the observation of the next row."""
    is_apart = np.zeros(len(columns["reward"]), np.bool_)
    for path, column in following.items():
        for start, stop in state.chunks(len(column) - 1, column.nbytes):
            is_apart[start:stop] |= splices.differ(column[start:stop], columns[path][start + 1 : stop + 1])
    is_apart[lasts] = False
    return is_apart.nonzero()[0]


def _rows_or_zeros(column: arrays_lib.Array, rows: arrays_lib.Ints, is_known: arrays_lib.Bools) -> arrays_lib.Array:
    """Return some rows of a column, and zeros where it is not known [k, ...]."""
    found = column.take(rows, axis=0)
    if found.size:
        records = memory.records_of(found)
        records[(~is_known).nonzero()[0]] = np.zeros((), records.dtype)
    return found
