"""What a write brings, checked as a whole before anything moves: the columns of the new steps, and where they go."""

from collections.abc import Mapping
import dataclasses
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import trees
from relive.common import validation
from relive.schema import row_bytes
from relive.schema import schema as schema_lib

Columns: TypeAlias = Mapping[str, arrays.Array]


Round: TypeAlias = tuple[row_bytes.Row, row_bytes.Row]
"""The bytes of a row of every stream, and of the next observations."""
Flags: TypeAlias = bool | arrays.Bools | None
_BOOL = np.dtype(np.bool_)
_NOWHERE: arrays.Bools = np.zeros(0, np.bool_)
OneStep: TypeAlias = tuple[schema_lib.Schema, int, row_bytes.Row, row_bytes.Row | None, bool, bool]
"""The schema, the stream, the bytes of the row and of the next observation, terminated, truncated."""


@dataclasses.dataclass(frozen=True, slots=True)
class Steps:
    """One step for each of some streams.

    Attributes:
        schema: What the steps hold.
        streams: Where they go, distinct [k].
        rows: All columns [k, ...].
        next_rows: The columns of the observations after them [k, ...]; None if they are not known yet.
        terminated: Whether the episode terminates with the step [k].
        truncated: Whether it is truncated with it [k].
    """

    schema: schema_lib.Schema
    streams: arrays.Ints
    rows: Columns
    next_rows: Columns | None
    terminated: arrays.Bools
    truncated: arrays.Bools


@dataclasses.dataclass(frozen=True, slots=True)
class WholeEpisode:
    """An episode of T steps for one stream.

    Attributes:
        schema: What the steps hold.
        stream: Where they go.
        rows: All columns [T, ...].
        last_rows: The columns of the final observation [1, ...].
        is_terminated: Whether the episode terminated; otherwise it was truncated.
    """

    schema: schema_lib.Schema
    stream: int
    rows: Columns
    last_rows: Columns
    is_terminated: bool


def one_step(
    rows: row_bytes.RowBytes | None,
    num_streams: int,
    stream: Any,
    observation: Any,
    action: Any,
    reward: Any,
    next_observation: Any,
    terminated: Any,
    truncated: Any,
    extras: Mapping[str, Any],
) -> OneStep:
    """Answers the step that the arguments of `add` describe; its schema is inferred where there is none.

    Args:
        rows: What makes the bytes of a row; None while there is no schema.
        num_streams: How many streams there are.
        stream: Where it goes.
        observation: The observation.
        action: The action.
        reward: The reward.
        next_observation: What came after it, or None.
        terminated: Whether the episode terminated with it.
        truncated: Whether it was truncated with it.
        extras: The extras.

    Raises:
        SchemaError: A value does not fit its field.
        ArgumentError: Another argument breaks its rule.
    """
    if type(stream) is not int or not 0 <= stream < num_streams:
        stream = stream_number(num_streams, stream)
    if terminated is not False and terminated is not True:
        terminated = validation.boolean("terminated", terminated)
    if truncated is not False and truncated is not True:
        truncated = validation.boolean("truncated", truncated)
    if truncated and not terminated and next_observation is None:
        raise errors.ArgumentError("next_observation must be given with a truncated step, got None")
    if rows is None:
        rows = row_bytes.RowBytes(schema_lib.Schema.from_example(observation, action, reward, extras=extras))
    row = rows.row(observation, action, reward, extras)
    next_row = None if next_observation is None else rows.observation("next_observation", next_observation)
    return rows.schema, stream, row, next_row, terminated, truncated


def round_of_steps(
    rows: row_bytes.RowBytes | None,
    num_streams: int,
    observation: Any,
    action: Any,
    reward: Any,
    next_observation: Any,
    terminated: Any,
    truncated: Any,
    extras: Mapping[str, Any],
) -> Round | None:
    """Answers a step of every stream, where it is easily had; None where not, as where something is wrong."""
    if rows is None:
        return None
    for bools in (terminated, truncated):
        is_usual = type(bools) is np.ndarray and bools.dtype is _BOOL and bools.shape == (num_streams,)
        if not is_usual and bools is not None:
            return None
    next_row = rows.of_round_observation(num_streams, next_observation)
    row = rows.of_round(num_streams, observation, action, reward, extras)
    return None if row is None or next_row is None else (row, next_row)


def ends(num_streams: int, terminated: Flags, truncated: Flags) -> tuple[arrays.Bools, arrays.Bools | None]:
    """Answers where the episode terminates with a step of every stream, and where it ends; None for nowhere.

    Args:
        num_streams: How many streams there are.
        terminated: A bool of one stream, or bools of all of them [S]; None for nowhere.
        truncated: The same.
    """
    if _are_nowhere(terminated) and _are_nowhere(truncated):
        return _NOWHERE, None
    there = np.zeros(num_streams, np.bool_)
    terminates = there if terminated is None else there | terminated
    return terminates, terminates if truncated is None else terminates | truncated


def _are_nowhere(flags: Flags) -> bool:
    """Answers whether none of them is set."""
    return flags is None or flags is False or (flags is not True and not arrays.any_set(flags))


def step_of_each(
    schema: schema_lib.Schema | None,
    num_streams: int,
    streams: Any,
    fields: tuple[Any, Any, Any, Mapping[str, Any]],
    next_observation: Any,
    terminated: Any,
    truncated: Any,
) -> Steps:
    """Answers the steps that the arguments of `extend` describe; the rest is as in `one_step`."""
    if "stream" in fields[3]:
        raise errors.ArgumentError(f"extend takes streams, got stream={validation.shown(fields[3]['stream'])}")
    numbers = _checked_streams(num_streams, streams)
    lead = (len(numbers),)
    terminated, truncated = (
        validation.booleans("terminated", terminated, *lead),
        validation.booleans("truncated", truncated, *lead),
    )
    if next_observation is None and np.any(truncated & ~terminated):
        raise errors.ArgumentError("next_observation must be given with a truncated step, got None")
    observation, action, reward, extras = fields
    count = validation.leading_length("reward", reward)
    if count != len(numbers):
        raise errors.ArgumentError(f"extend must have a step of each of {len(numbers)} streams, got {count} rewards")
    schema = schema or schema_lib.Schema.from_example(observation, action, reward, extras=extras, num_leading=1)
    rows = schema.rows(observation, action, reward, extras, lead)
    next_rows = None
    if next_observation is not None:
        next_rows = schema.observation_rows("next_observation", next_observation, lead)
    return Steps(schema, numbers, rows, next_rows, terminated, truncated)


def whole_episode(
    schema: schema_lib.Schema | None,
    num_streams: int,
    capacity: int,
    stream: Any,
    fields: tuple[Any, Any, Any, Mapping[str, Any]],
    terminated: Any,
) -> WholeEpisode:
    """Answers the episode that the arguments of `add_episode` describe; the rest is as in `one_step`."""
    stream = stream_number(num_streams, stream)
    is_terminated = validation.boolean("terminated", terminated)
    observations, actions, rewards, extras = fields
    length = validation.leading_length("rewards", rewards)
    if not 1 <= length <= capacity:
        raise errors.ArgumentError(f"an episode must have 1 to capacity = {capacity} steps, got {length}")
    schema = schema or schema_lib.Schema.from_example(observations, actions, rewards, extras=extras, num_leading=1)
    seen = schema.observation_rows("observations", observations, (length + 1,))
    before = trees.nested("observation", {path: column[:-1] for path, column in seen.items()})
    rows = schema.rows(before, actions, rewards, extras, (length,))
    last_rows = {path: column[-1:] for path, column in seen.items()}
    return WholeEpisode(schema, stream, rows, last_rows, is_terminated)


def stream_number(num_streams: int, stream: Any) -> int:
    """Answers the number of a stream; raises ArgumentError if there is none."""
    number = validation.integer_of_at_least_zero("stream", stream)
    if number >= num_streams:
        raise errors.ArgumentError(f"stream must be below streams = {num_streams}, got {number}")
    return number


def _checked_streams(num_streams: int, streams: Any) -> arrays.Ints:
    if streams is None:
        return np.arange(num_streams)
    numbers = validation.integers("streams", streams)
    for number in numbers[(numbers < 0) | (numbers >= num_streams)]:
        raise errors.ArgumentError(f"streams must be 0 to {num_streams - 1}, got {number}")
    if len(np.unique(numbers)) < len(numbers):
        raise errors.ArgumentError(f"streams must be distinct, got {validation.shown(numbers.tolist())}")
    return numbers
