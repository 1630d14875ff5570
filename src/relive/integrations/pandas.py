"""pandas: the stored steps as a data frame, with one row per step, for inspection."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import arrays
from relive.common import imports
from relive.integrations import step_columns

with imports.optional_dependency("arrow"):
    import pandas

_UNITS = ("s", "ms", "us", "ns")
"""The units of dates and durations that pandas has."""


def steps_frame(buffer: "column.ColumnReplayBuffer[Any]", *, fields: Iterable[str] | None = None) -> pandas.DataFrame:
    """Return a frame with a row for each stored step, episode by episode.

    Its columns are `key`, `stream`, `episode` (its first stored key), `step`, `terminated`, `truncated`, then the
    fields of the schema by path, then `has_next_observation` and the observation after the step, by the same paths with
    `next_` before them: the final observation of an episode is in the row of its last step. If it is not known,
    `has_next_observation` is False and the values are zeros.

    A scalar field becomes a column of its dtype, in native byte order; a vector becomes one column per element,
    `observation[0]` and so on. A field of two or more axes, such as an image, becomes one column of arrays. If pandas
    does not support a dtype, such as bytes or a structured one, the cells are numpy scalars.

    Args:
        buffer: The buffer to read.
        fields: Paths of the fields to take, such as "reward" or "observation/state"; None for all. Exclude images if
            you only need rewards.

    Raises:
        ArgumentError: A path is not one of the schema, or two columns would have one name.
        ArgumentTypeError: `buffer` is not a column buffer, or `fields` is not a collection.
        NotReadyError: The buffer has no schema yet.

    >>> import relive
    >>> from relive.integrations import pandas as relive_pandas
    >>> buffer = relive.RingReplayBuffer(10)
    >>> keys = buffer.add_episode([0, 1, 2], [1, 0], [0.0, 1.0], terminated=True)
    >>> frame = relive_pandas.steps_frame(buffer)
    >>> print(frame[["episode", "step", "observation", "reward", "terminated", "next_observation"]])
       episode  step  observation  reward  terminated  next_observation
    0        0     0            0     0.0       False                 1
    1        0     1            1     1.0        True                 2
    """
    schema = step_columns.known_schema("steps_frame", buffer)
    paths = step_columns.chosen(schema, fields)
    history = buffer._store
    rows = step_columns.rows_of(history)
    columns = rows.marks | history.storage.read(rows.slots, paths)
    seen = [path for path in schema._observation_paths if path in paths]
    if seen:
        columns["has_next_observation"] = ~rows.is_last | rows.has_final
    for path in seen:
        field = schema.fields[path]
        following = columns[f"next_{path}"] = np.roll(columns[path], -1, axis=0)
        following[~columns["has_next_observation"]] = np.zeros(field.shape, field.dtype)
        following[rows.has_final] = step_columns.final_observations(history, rows, path, rows.has_final)
    return _frame(columns)


def _frame(columns: dict[str, arrays.Array]) -> pandas.DataFrame:
    """Return the frame of columns [N, ...] by path."""
    spread: list[tuple[str, Any]] = []
    for name, array in columns.items():
        if array.ndim == 2:
            spread += [(f"{name}[{place}]", _series(array[:, place])) for place in range(array.shape[1])]
        else:
            spread.append((name, _series(array)))
    named = dict(spread)
    if len(named) < len(spread):
        names = [name for name, _ in spread]
        twice = next(name for name in names if names.count(name) > 1)
        raise errors.ArgumentError(f"fields must not make two columns of one name, got {twice}: leave one out")
    return pandas.DataFrame(named)


def _series(array: arrays.Array) -> Any:
    """Return what pandas makes a column of, given its values [N, ...]."""
    dtype = array.dtype
    is_plain = dtype.kind in "biufcU" or (dtype.kind in "mM" and np.datetime_data(dtype) in [(u, 1) for u in _UNITS])
    if array.ndim == 1 and is_plain:
        return array.astype(dtype.newbyteorder("="))
    cells = np.empty(len(array), object)
    for row, value in enumerate(array):
        cells[row] = value
    return pandas.Series(cells, dtype=object)
