"""Steps as data frames of pandas.

steps_frame           one row a step, one column a number: to look at them
pre_timeline_frame    one row a transition, as the offline pipelines of ReAgent (once Horizon) take them
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import arrays
from relive.common import imports
from relive.common import validation
from relive.integrations import pre_timeline
from relive.integrations import step_columns
from relive.integrations import stored_episodes
from relive.persistence import state
from relive.schema import schema as schema_lib

with imports.optional_dependency("arrow"):
    import pandas

AnyBuffer: TypeAlias = "column.ColumnReplayBuffer[Any]"

_UNITS = ("s", "ms", "us", "ns")
"""The units of dates and durations that pandas has."""


def steps_frame(
    buffer: AnyBuffer, *, fields: Iterable[str] | None = None, progress: state.Progress | None = None
) -> pandas.DataFrame:
    """Return a frame with a row for each stored step, episode by episode.

    Its columns are `key`, `stream`, `episode` (its first key that is stored), `step`, `terminated`, `truncated`,
    `status`, then the fields of the schema by path, then `has_next_observation` and the observation after the step,
    by the same paths with `next_` before them: the final observation of an episode stands in the row of its last step.
    Where it is not known `has_next_observation` is False, and zeros stand there.

    A field without axes is a column of its dtype, in the byte order of the machine; a vector is one for each element,
    `observation[0]` and so on. A field of two or more axes, such as an image, is one column whose cells are arrays.
    Where pandas has no column of a dtype, such as bytes or a structured one, the cells are scalars of numpy.

    Args:
        buffer: Where the steps are.
        fields: Paths of the fields to take, such as "reward" or "observation/state"; None for all. Leave images out if
            you only want to look at rewards.
        progress: Called after each episode with the bytes read so far, and those of all rows.

    Raises:
        ArgumentError: A path is not one of the schema, or two columns would have one name.
        ArgumentTypeError: `buffer` is no buffer of columns, or a path is no text.
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
    paths = _chosen(schema, fields)
    seen = [path for path in schema.observation_paths if path in paths]
    count = len(buffer)
    columns: dict[str, arrays.Array] = {name: np.zeros(count, dtype) for name, dtype in step_columns.MARKS.items()}
    columns["status"] = np.zeros(count, np.int8)
    columns |= {path: np.zeros((count, *schema.fields[path].shape), schema.fields[path].dtype) for path in paths}
    if seen:
        columns["has_next_observation"] = np.zeros(count, np.bool_)
        columns |= {f"next_{path}": np.zeros_like(columns[path]) for path in seen}
    start = 0
    for episode in stored_episodes.stored_episodes(buffer, progress=progress):
        rows = slice(start, start + len(episode))
        given = step_columns.marks(episode) | step_columns.fields(episode)
        for name in [*step_columns.MARKS, *paths]:
            columns[name][rows] = given[name]
        columns["status"][rows] = step_columns.STATUSES.index(episode.status)
        if seen:
            following = step_columns.next_observations(episode)
            known = slice(start, start + len(episode) - (not episode.has_final_observation))
            columns["has_next_observation"][known] = True
            for path in seen:
                columns[f"next_{path}"][known] = following[path]
        start += len(episode)
    return _frame(columns)


def _chosen(schema: schema_lib.Schema, fields: Iterable[str] | None) -> list[str]:
    """Return the paths of the fields that are taken, in the order of the schema."""
    if fields is None:
        return list(schema.fields)
    if isinstance(fields, str) or not isinstance(fields, Iterable):
        raise errors.ArgumentTypeError(f"fields must be a collection of paths, got {validation.short_repr(fields)}")
    paths = list(fields)
    for path in paths:
        if not isinstance(path, str):
            raise errors.ArgumentTypeError(f"fields must be paths, got {validation.short_repr(path)}")
        if path not in schema.fields:
            raise errors.ArgumentError(
                f"fields must be among {', '.join(schema.fields)}, got {validation.short_repr(path)}"
            )
    return [path for path in schema.fields if path in paths]


def _frame(columns: dict[str, arrays.Array]) -> pandas.DataFrame:
    """Return the frame of columns [N, ...] by path; that of statuses holds their numbers."""
    spread: list[tuple[str, Any]] = []
    for name, array in columns.items():
        if name == "status":
            spread.append((name, pandas.Categorical.from_codes(array, step_columns.STATUSES)))
        elif array.ndim == 2:
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


def pre_timeline_frame(
    buffer: AnyBuffer,
    *,
    action_probability: str | None = "action_probability",
    possible_actions: str | Iterable[Any] | None = None,
    final_rows: bool = False,
    ds: str = "2019-01-01",
    progress: state.Progress | None = None,
) -> pandas.DataFrame:
    """Return a frame with a row for each stored step, as the timeline operator of ReAgent takes it.

        mdp_id                   the episode: its first stored key, as a text
        sequence_number          the step within the episode
        state_features           {0: float, 1: float, ...}: all numbers of the observation, field by field in the order
                                 of the schema, row by row within a field
        action                   a text ("2") where the action is one integer, bool or text; else {0: float, ...}
        reward                   a float
        action_probability       of the action taken, by the policy that took it; None for a deterministic policy
        possible_actions         texts, empty in the row of a terminated step (with `final_rows`, in that after
                                 it); the column is missing where `action` is a map
        possible_actions_mask    the same as numbers, 1 or 0 for each action there is
        metrics                  {"reward": float}
        ds                       the text that names the data set

    The timeline operator takes a transition for terminal if nothing is possible in the row after it, or if there is
    none: so that of a truncated or open episode's last row. With `final_rows` there is a row more for an episode, for
    what came after its last step, and the operator, told to leave last rows out (addTerminalStateRow false), makes of
    all steps what they were. In that row action is "", reward is 0, there is no probability, and the possible actions
    are none if the episode terminated, otherwise all; state_features are empty where a terminated episode's final
    observation was never given. An open episode whose newest observation is not known has none.

    Args:
        buffer: Where the steps are.
        action_probability: The name of an extra that holds the probability of each action: not its logarithm, which you
            would have to exponentiate before you add it. None for a deterministic policy. A sum of rounded terms can
            come out above 1: up to four units in the last place of its dtype are taken for 1.
        possible_actions: All actions there are, such as `range(4)`, or the name of an extra with a mask [A] for each
            step: action k was possible where element k is not 0. Needed where `action` is a text.
        final_rows: Whether to add those rows. They need `possible_actions` that are all actions: in a mask there is
            nothing about what came after the last step.
        ds: For the column of that name; the default is the one that ReAgent's own tools look for.
        progress: Called after each episode with the bytes read so far, and those of all rows.

    Raises:
        ArgumentError: An argument breaks its rule, a probability is none, or an action was taken that is not possible.
        SchemaError: An observation or an action is no number, or one that a float64 does not hold exactly.
        ArgumentTypeError: `buffer` is no buffer of columns.
        NotReadyError: The buffer has no schema yet.

    >>> import relive
    >>> from relive.integrations import pandas as relive_pandas
    >>> buffer = relive.RingReplayBuffer(10)
    >>> keys = buffer.add_episode([0, 1, 2], [1, 0], [0.0, 1.0], terminated=True, mu=[0.9, 0.25])
    >>> frame = relive_pandas.pre_timeline_frame(buffer, action_probability="mu", possible_actions=range(2))
    >>> print(frame[["mdp_id", "sequence_number", "state_features", "action", "possible_actions"]])
      mdp_id  sequence_number state_features action possible_actions
    0      0                0       {0: 0.0}      1           [0, 1]
    1      0                1       {0: 1.0}      0               []
    """
    schema = step_columns.known_schema("pre_timeline_frame", buffer)
    table = pre_timeline.table(schema, action_probability, possible_actions, final_rows, ds)
    columns = table.no_columns()
    for episode in stored_episodes.stored_episodes(buffer, progress=progress):
        for name, values in table.columns(episode).items():
            columns[name] += values
    # Without a row too, each column is of the dtype that rows would give it.
    text = pandas.Series([""]).dtype
    kinds: dict[str, Any] = dict.fromkeys(columns, object)
    kinds |= {"sequence_number": np.int64, "reward": np.float64, "mdp_id": text, "ds": text}
    kinds |= {"action_probability": np.float64} if table.probability else {}
    kinds |= {"action": text} if table.actions is not None else {}
    return pandas.DataFrame(columns).astype(kinds)
