"""What a write brings, checked as a whole before anything moves: the columns of the new steps, and where they go."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import struct
from typing import Any, TypeAlias, cast

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import trees
from relive.common import validation
from relive.schema import casting
from relive.schema import schema as schema_lib

Row: TypeAlias = Sequence[bytes]
"""The bytes of each block, those of its fields without gaps."""
_Encoder: TypeAlias = Callable[[Any], bytes]
_CODES = {"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"}
_CODES |= {"f4": "f", "f8": "d"}
_LARGEST_EXACT = 2**53
_REWARD = 2


class RowBytes:
    r"""Makes the bytes of rows of one schema, for the blocks of its storage.

    >>> import numpy as np
    >>> import relive
    >>> from relive.schema import encoding
    >>> schema = relive.Schema(relive.Field(2, "uint8"), relive.Field((), "int16"))
    >>> encoding.RowBytes(schema).row(np.array([1, 2], np.uint8), 3, 0.0, {})
    [b'\x01\x02', b'\x03\x00', b'\x00\x00\x00\x00\x00\x00\x00\x00']
    """

    def __init__(self, schema: schema_lib.Schema) -> None:
        self.schema = schema
        self.blocks = schema_lib.blocks_of(schema)
        """The paths of the fields of each block."""
        self.observation_blocks = tuple(paths for paths in self.blocks if paths[0] in schema.observation_paths)
        """Those of an observation: they come first."""
        encoders = [_encoder(path, field, path == "reward") for path, field in schema.fields.items()]
        # Where every part is a field and no tree, the values come in the order of the fields.
        self._are_fields = all(path.count("/") == path.startswith("extras/") for path in schema.fields)
        self._encoders = encoders[:3]
        self._types = [(field.shape, field.dtype) for field in schema.fields.values()]
        self._extras = [
            (path.removeprefix("extras/"), encode) for path, encode in zip(schema.fields, encoders, strict=True)
        ][3:]
        positions = {path: position for position, path in enumerate(schema.fields)}
        self._positions = [[positions[path] for path in paths] for paths in self.blocks]
        self._are_blocks = self._are_fields and self._positions == [[position] for position in positions.values()]

    def __reduce__(self) -> tuple[type["RowBytes"], tuple[schema_lib.Schema]]:
        # The encoders cannot be pickled, and are made anew.
        return RowBytes, (self.schema,)

    def row(self, observation: Any, action: Any, reward: Any, extras: Mapping[str, Any]) -> Row:
        """Return the bytes of each block of a row.

        Raises:
            SchemaError: A value does not fit its field, is missing, or has none.
            ArgumentError: A key is not a non-empty string without "/".
        """
        if not self._are_fields or len(extras) != len(self._extras):
            return self.joined(self.blocks, self.schema.rows(observation, action, reward, extras, ()))
        of_observation, of_action, of_reward = self._encoders
        values = [of_observation(observation), of_action(action), of_reward(reward)]
        for name, encode in self._extras:
            if name not in extras:
                return self.joined(self.blocks, self.schema.rows(observation, action, reward, extras, ()))
            values.append(encode(extras[name]))
        if self._are_blocks:
            return values
        return [b"".join([values[position] for position in positions]) for positions in self._positions]

    def observation(self, name: str, value: Any) -> Row:
        """Return the bytes of each block of an observation.

        Args:
            name: What the observation is called in an error.
            value: The observation.

        Raises:
            SchemaError: A value does not fit its field, is missing, or has none.
            ArgumentError: A key is not a non-empty string without "/".
        """
        if self._are_fields:
            shape, dtype = self._types[0]
            if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:
                return [value.tobytes()]
            return [casting.cast_exact(name, value, shape, dtype).tobytes()]
        return self.joined(self.observation_blocks, self.schema.observation_rows(name, value, ()))

    def joined(self, blocks: Sequence[Sequence[str]], rows: Mapping[str, arrays.Array]) -> Row:
        """Return the bytes of each block of the columns."""
        return [b"".join([rows[path].tobytes() for path in paths]) for paths in blocks]

    def of_round(self, count: int, observation: Any, action: Any, reward: Any, extras: Mapping[str, Any]) -> Row | None:
        """Return the bytes of each block of `count` rows, given as arrays [count, ...]; None if that fails."""
        if not self._are_blocks or len(extras) != len(self._extras):
            return None
        values = [observation, action, reward]
        for name, _ in self._extras:
            if name not in extras:
                return None
            values.append(extras[name])
        row = [self._column(position, count, value) for position, value in enumerate(values)]
        return None if None in row else cast("Row", row)

    def of_round_observation(self, count: int, observation: Any) -> Row | None:
        """Return the bytes of each block of `count` observations [count, ...]; None if that fails."""
        column = self._column(0, count, observation) if self._are_blocks else None
        return None if column is None else [column]

    def _column(self, position: int, count: int, value: Any) -> bytes | None:
        """Return the bytes of a field of `count` rows; None if they do not fit."""
        shape, dtype = self._types[position]
        if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != (count, *shape):
            try:
                value = casting.cast_exact("", value, (count, *shape), dtype, position == _REWARD)
            except errors.SchemaError:
                return None
        if position == _REWARD and not np.isfinite(value).all():
            return None
        return cast("bytes", value.tobytes())

    def columns(self, row: Row, count: int) -> dict[str, arrays.Array]:
        """Return the columns [count, ...] of so many rows; they cannot be written to."""
        columns: dict[str, arrays.Array] = {}
        for paths, values in zip(self.blocks, row, strict=True):
            fields = [(path, self.schema.fields[path].dtype, self.schema.fields[path].shape) for path in paths]
            block = np.ndarray(count, np.dtype(fields), values)
            columns |= {path: block[path] for path in paths}
        return columns


def _encoder(path: str, field: schema_lib.Field, is_reward: bool) -> _Encoder:
    """Return what makes the bytes of a value of that field, or raise SchemaError."""
    shape, dtype = field.shape, field.dtype

    def encode(value: Any) -> bytes:
        if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
            value = casting.cast_exact(path, value, shape, dtype, is_reward)
        if is_reward:
            schema_lib.Schema.finite_rewards(value)
        return cast("bytes", value.tobytes())

    code = _CODES.get(dtype.str[1:])
    if shape or code is None or not dtype.isnative:
        return encode
    pack = struct.Struct("=" + code).pack
    own, of_python = dtype.type, {"f": float, "b": bool}.get(dtype.kind, int)
    kinds = {own, of_python, *([np.float64] if is_reward else [])}

    def encode_number(value: Any) -> bytes:
        kind = type(value)
        is_exact = kind in kinds or (is_reward and kind is int and -_LARGEST_EXACT <= value <= _LARGEST_EXACT)
        # What is no finite number differs from itself by NaN.
        if is_exact and not (is_reward and value - value):
            try:
                return pack(value)
            except (struct.error, OverflowError):
                return encode(value)
        return encode(value)

    return encode_number


Columns: TypeAlias = Mapping[str, arrays.Array]
Round: TypeAlias = tuple[Row, Row]
"""The bytes of a row of every stream, and of the next observations."""
Flags: TypeAlias = bool | arrays.Bools | None
_BOOL = np.dtype(np.bool_)
_NOWHERE: arrays.Bools = np.zeros(0, np.bool_)
OneStep: TypeAlias = tuple[schema_lib.Schema, int, Row, Row | None, bool, bool]
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
    rows: RowBytes | None,
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
    """Return the step that the arguments of `add` describe; its schema is inferred where there is none.

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
        terminated = validation.flag("terminated", terminated)
    if truncated is not False and truncated is not True:
        truncated = validation.flag("truncated", truncated)
    if truncated and not terminated and next_observation is None:
        raise errors.ArgumentError("next_observation must be given with a truncated step, got None")
    if rows is None:
        rows = RowBytes(schema_lib.Schema.from_example(observation, action, reward, extras=extras))
    row = rows.row(observation, action, reward, extras)
    next_row = None if next_observation is None else rows.observation("next_observation", next_observation)
    return rows.schema, stream, row, next_row, terminated, truncated


def round_of_steps(
    rows: RowBytes | None,
    num_streams: int,
    observation: Any,
    action: Any,
    reward: Any,
    next_observation: Any,
    terminated: Any,
    truncated: Any,
    extras: Mapping[str, Any],
) -> Round | None:
    """Return a step of every stream, where it is easily had; None where not, as where something is wrong."""
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
    """Return where the episode terminates with a step of every stream, and where it ends; None for nowhere.

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
    """Return whether none of them is set."""
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
    """Return the steps that the arguments of `extend` describe; the rest is as in `one_step`."""
    if "stream" in fields[3]:
        raise errors.ArgumentError(f"extend takes streams, got stream={validation.short_repr(fields[3]['stream'])}")
    numbers = _checked_streams(num_streams, streams)
    lead = (len(numbers),)
    terminated, truncated = (
        validation.flags("terminated", terminated, *lead),
        validation.flags("truncated", truncated, *lead),
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
    """Return the episode that the arguments of `add_episode` describe; the rest is as in `one_step`."""
    stream = stream_number(num_streams, stream)
    is_terminated = validation.flag("terminated", terminated)
    observations, actions, rewards, extras = fields
    length = validation.leading_length("rewards", rewards)
    if not 1 <= length <= capacity:
        raise errors.ArgumentError(f"an episode must have 1 to capacity = {capacity} steps, got {length}")
    schema = schema or schema_lib.Schema.from_example(observations, actions, rewards, extras=extras, num_leading=1)
    rows, seen = _columns_of(schema, length, fields)
    last_rows = {path: column[-1:] for path, column in seen.items()}
    return WholeEpisode(schema, stream, rows, last_rows, is_terminated)


def consecutive_steps(
    rows: RowBytes | None,
    num_streams: int,
    capacity: int,
    stream: Any,
    fields: tuple[Any, Any, Any, Mapping[str, Any]],
    terminated: Any,
    truncated: Any,
) -> list[OneStep]:
    """Return the steps that the arguments of `add_steps` describe; the rest is as in `one_step`."""
    stream = stream_number(num_streams, stream)
    terminated, truncated = validation.flag("terminated", terminated), validation.flag("truncated", truncated)
    observations, actions, rewards, extras = fields
    length = validation.leading_length("rewards", rewards)
    if not 1 <= length <= capacity:
        raise errors.ArgumentError(f"add_steps must have 1 to capacity = {capacity} steps, got {length}")
    if rows is None:
        schema = schema_lib.Schema.from_example(observations, actions, rewards, extras=extras, num_leading=1)
        rows = RowBytes(schema)
    columns, seen = _columns_of(rows.schema, length, fields)
    steps: list[OneStep] = []
    for t in range(length):
        row = rows.joined(rows.blocks, {path: column[t] for path, column in columns.items()})
        following = rows.joined(rows.observation_blocks, {path: column[t + 1] for path, column in seen.items()})
        is_last = t == length - 1
        steps.append((rows.schema, stream, row, following, terminated and is_last, truncated and is_last))
    return steps


def _columns_of(
    schema: schema_lib.Schema, length: int, fields: tuple[Any, Any, Any, Mapping[str, Any]]
) -> tuple[Columns, Columns]:
    """Return the columns [T, ...] of T steps, and those [T + 1, ...] of all their observations."""
    observations, actions, rewards, extras = fields
    seen = schema.observation_rows("observations", observations, (length + 1,))
    before = trees.nested("observation", {path: column[:-1] for path, column in seen.items()})
    return schema.rows(before, actions, rewards, extras, (length,)), seen


def stream_number(num_streams: int, stream: Any) -> int:
    """Return the number of a stream, which may be None where there is one; raise ArgumentError if there is none."""
    if stream is None:
        if num_streams > 1:
            raise errors.ArgumentError(f"stream must be given where there are several, got none of {num_streams}")
        return 0
    number = validation.non_negative_int("stream", stream)
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
        raise errors.ArgumentError(f"streams must be distinct, got {validation.short_repr(numbers.tolist())}")
    return numbers
