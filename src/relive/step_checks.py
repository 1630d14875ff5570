"""What a write brings, checked as a whole before anything moves: the columns of the new steps, and where they go."""

from collections.abc import Mapping
import dataclasses
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import checks
from relive import errors
from relive import schema as schema_lib
from relive import trees

Array: TypeAlias = npt.NDArray[Any]
Columns: TypeAlias = Mapping[str, Array]
Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


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
    streams: Ints
    rows: Columns
    next_rows: Columns | None
    terminated: Bools
    truncated: Bools


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
    schema: schema_lib.Schema | None,
    num_streams: int,
    stream: Any,
    fields: tuple[Any, Any, Any, Mapping[str, Any]],
    next_observation: Any,
    terminated: Any,
    truncated: Any,
) -> Steps:
    """Answers the step that the arguments of `add` describe; its schema is inferred where there is none.

    Args:
        schema: What the step must hold.
        num_streams: How many streams there are.
        stream: Where it goes.
        fields: Observation, action, reward and extras.
        next_observation: What came after it, or None.
        terminated: Whether the episode terminated with it.
        truncated: Whether it was truncated with it.

    Raises:
        SchemaError: A value does not fit its field.
        ArgumentError: Another argument breaks its rule.
    """
    stream = _checked_stream(num_streams, stream)
    terminated = checks.boolean("terminated", terminated)
    truncated = checks.boolean("truncated", truncated)
    if truncated and not terminated and next_observation is None:
        raise errors.ArgumentError("next_observation must be given with a truncated step, got None")
    observation, action, reward, extras = fields
    schema = schema or schema_lib.Schema.from_example(observation, action, reward, extras=extras)
    rows = schema.rows(observation, action, reward, extras, ())
    next_rows = None
    if next_observation is not None:
        next_rows = _one_row(schema.observation_rows("next_observation", next_observation, ()))
    return Steps(schema, np.array([stream]), _one_row(rows), next_rows, np.array([terminated]), np.array([truncated]))


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
        raise errors.ArgumentError(f"extend takes streams, got stream={checks.shown(fields[3]['stream'])}")
    numbers = _checked_streams(num_streams, streams)
    lead = (len(numbers),)
    terminated, truncated = (
        checks.booleans("terminated", terminated, *lead),
        checks.booleans("truncated", truncated, *lead),
    )
    if next_observation is None and np.any(truncated & ~terminated):
        raise errors.ArgumentError("next_observation must be given with a truncated step, got None")
    observation, action, reward, extras = fields
    count = checks.leading_length("reward", reward)
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
    stream = _checked_stream(num_streams, stream)
    is_terminated = checks.boolean("terminated", terminated)
    observations, actions, rewards, extras = fields
    length = checks.leading_length("rewards", rewards)
    if not 1 <= length <= capacity:
        raise errors.ArgumentError(f"an episode must have 1 to capacity = {capacity} steps, got {length}")
    schema = schema or schema_lib.Schema.from_example(observations, actions, rewards, extras=extras, num_leading=1)
    seen = schema.observation_rows("observations", observations, (length + 1,))
    before = trees.nested("observation", {path: column[:-1] for path, column in seen.items()})
    rows = schema.rows(before, actions, rewards, extras, (length,))
    last_rows = {path: column[-1:] for path, column in seen.items()}
    return WholeEpisode(schema, stream, rows, last_rows, is_terminated)


def _checked_stream(num_streams: int, stream: Any) -> int:
    number = checks.integer_of_at_least_zero("stream", stream)
    if number >= num_streams:
        raise errors.ArgumentError(f"stream must be below streams = {num_streams}, got {number}")
    return number


def _checked_streams(num_streams: int, streams: Any) -> Ints:
    if streams is None:
        return np.arange(num_streams)
    numbers = checks.integers("streams", streams)
    for number in numbers[(numbers < 0) | (numbers >= num_streams)]:
        raise errors.ArgumentError(f"streams must be 0 to {num_streams - 1}, got {number}")
    if len(np.unique(numbers)) < len(numbers):
        raise errors.ArgumentError(f"streams must be distinct, got {checks.shown(numbers.tolist())}")
    return numbers


def _one_row(columns: Columns) -> Columns:
    """Answers the columns of one row [1, ...]."""
    return {path: column[np.newaxis] for path, column in columns.items()}
