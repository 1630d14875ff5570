"""Steps as columns, one value per step, episode by episode.

key stream episode step terminated truncated | observation action reward extras/...
marks: where a step belongs                  | fields, by path: what the schema says
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.kernels import append
from relive.persistence import state
from relive.schema import schema as schema_lib
from relive.storage import steps

MARKS: dict[str, np.dtype[Any]] = {
    "key": np.dtype(np.int64),
    "stream": np.dtype(np.int64),
    "episode": np.dtype(np.int64),
    "step": np.dtype(np.int64),
    "terminated": np.dtype(np.bool_),
    "truncated": np.dtype(np.bool_),
}
"""The marks and their dtypes; an episode is called by its first key that is stored."""


class Rows(NamedTuple):
    """The stored steps of a buffer, episode by episode in the order of their first ones.

    Attributes:
        slots: Slots of the steps [N].
        episodes: Episode numbers in the store [N].
        is_last: Whether each is the last of its episode [N].
        has_final: Whether a final observation follows each [N].
        final_slots: Slots of the steps that were left out, before which the episode was truncated; -1 for none [N].
        marks: Key, stream, episode and so on, by name [N].
    """

    slots: arrays_lib.Ints
    episodes: arrays_lib.Ints
    is_last: arrays_lib.Bools
    has_final: arrays_lib.Bools
    final_slots: arrays_lib.Ints
    marks: dict[str, arrays_lib.Array]


def rows_of(history: steps.StepStore) -> Rows:
    """Return the steps of a store; about eighty bytes for each."""
    slots, final_slots = slots_by_episode(history)
    episodes, keys = history.episodes_of(slots), history.keys(slots)
    is_last = np.diff(episodes, append=-1) != 0
    lengths, ends = np.diff(np.flatnonzero(is_last), prepend=-1), history.episodes[append.END][episodes]
    marks = {
        "key": keys,
        "stream": history.episodes[append.STREAM][episodes],
        "episode": np.repeat(keys[np.roll(is_last, 1)], lengths),
        "step": history.steps_of(slots),
        "terminated": is_last & (ends == append.TERMINATED),
        "truncated": is_last & (ends == append.TRUNCATED),
    }
    has_final = is_last & (history.is_known(episodes) | (final_slots >= 0))
    return Rows(slots, episodes, is_last, has_final, final_slots, marks)


def slots_by_episode(history: steps.StepStore) -> tuple[arrays_lib.Ints, arrays_lib.Ints]:
    """Return the slots of all steps, episode by episode in the order of their first steps, but for those left out.

    And for each the slot of the step that was left out after it; -1 for none.
    """
    slots = history.alive_slots()
    _, first_rows, episodes = np.unique(history.episodes_of(slots), return_index=True, return_inverse=True)
    slots = slots[np.argsort(first_rows[episodes], kind="stable")]
    is_left_out = history.is_left_out(slots)
    later = np.append(is_left_out, False)[1:] & (np.diff(history.episodes_of(slots), append=-1) == 0)
    final_slots = np.where(later[: len(slots)], np.append(slots, -1)[1:], -1)
    return slots[~is_left_out], final_slots[~is_left_out]


def final_observations(history: steps.StepStore, rows: Rows, path: str, where: arrays_lib.Array) -> arrays_lib.Array:
    """Return a field of the final observations of episodes, in the order of their last steps.

    Args:
        history: The store.
        rows: Its rows.
        path: The path of the field.
        where: Which of the rows count, as a mask or by place; each of them has a final observation.
    """
    finals = history.final_observations(rows.episodes[where])[path]
    slots = rows.final_slots[where]
    if (slots >= 0).any():
        finals[slots >= 0] = history.read_rows(slots[slots >= 0], (path,))[path]
    return finals


def in_turn(
    call: str, history: steps.StepStore, groups: Sequence[arrays_lib.Ints], progress: state.Progress | None
) -> Iterator[arrays_lib.Ints]:
    """Yield groups of slots one by one, and report the bytes of each after it was read.

    Raises:
        ArgumentError: The steps have changed since the first group.
    """
    written = (history.next_key, len(history))
    num_read = 0
    for slots in groups:
        if (history.next_key, len(history)) != written:
            raise errors.ArgumentError(f"{call} cannot go on after the buffer was written to: call it again")
        yield slots
        num_read += len(slots)
        if progress is not None:
            progress(num_read * history.schema.nbytes, len(history) * history.schema.nbytes)


def known_schema(call: str, buffer: object) -> schema_lib.Schema:
    """Return the schema of a buffer.

    Raises:
        ArgumentTypeError: It is not a column buffer.
        NotReadyError: The buffer has no schema yet.
    """
    validation.require_instance("buffer", buffer, column.ColumnReplayBuffer)
    schema: schema_lib.Schema | None = getattr(buffer, "schema", None)
    if schema is None:
        raise errors.NotReadyError(f"{call} has no columns, as the buffer has no schema yet: add a step first")
    return schema


def chosen(schema: schema_lib.Schema, fields: Iterable[str] | None) -> list[str]:
    """Return the paths of the fields that are taken, in the order of the schema.

    Raises:
        ArgumentError: A path is not one of the schema.
        ArgumentTypeError: `fields` is not a collection.
    """
    if fields is None:
        return list(schema.fields)
    paths = paths_of(fields)
    require_known(paths, schema.fields)
    return [path for path in schema.fields if path in paths]


def paths_of(fields: Iterable[str]) -> list[str]:
    """Return `fields` as a list; raise ArgumentTypeError if it is not a collection."""
    if isinstance(fields, str) or not isinstance(fields, Iterable):
        raise errors.ArgumentTypeError(f"fields must be a collection of paths, got {validation.short_repr(fields)}")
    return list(fields)


def require_known(paths: Iterable[str], known: Iterable[str]) -> None:
    """Raise ArgumentError for the first of the paths that is not a known one."""
    known = list(known)
    for path in paths:
        if path not in known:
            raise errors.ArgumentError(f"fields must be among {', '.join(known)}, got {validation.short_repr(path)}")
