"""Encoding of steps: the arguments of a write are checked as a whole and turned into the bytes of rows.

stream_number, stream_numbers     which streams
event, events                     how their episodes go on
steps                             the values: one step, one for each of several streams, or a run of one stream
"""

from collections.abc import Callable, Mapping, Sequence
import functools
import math
import struct
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays
from relive.common import trees
from relive.common import validation
from relive.kernels import append
from relive.schema import casting
from relive.schema import schema as schema_lib

TERMINATED, TRUNCATED, CUT = append.TERMINATED, append.TRUNCATED, append.CUT
"""Bits of an event: the episode ends with the step, or it begins a new one whatever is open."""

Row: TypeAlias = Sequence[bytes]
"""For each field its bytes: of one row, or of several in turn."""
Streams: TypeAlias = tuple[int, ...] | arrays.Ints
Events: TypeAlias = tuple[int, ...] | npt.NDArray[np.uint8]
Given: TypeAlias = tuple[Any, Any, Any, Any, Mapping[str, Any]]
"""The observation, the action, the reward, the next observation or None, and the extras."""
_CODES = {"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"}
_CODES |= {"f4": "f", "f8": "d"}
"""How `struct` calls native dtypes."""


class Steps(NamedTuple):
    """Steps to write: one step for each of several streams, or a run of consecutive steps of one stream.

    Attributes:
        encoder: The encoder of the rows.
        streams: The stream of each step [k]; a tuple of one for one step.
        events: TERMINATED or TRUNCATED where the episode ends with the step, and CUT [k]; a tuple of one for one step.
        rows: For each field, the concatenated bytes of its k values.
        next_rows: For each field of an observation, the bytes of the k next observations, or for a run of the last one;
            None if not known yet.
        is_run: Whether these are consecutive steps of one stream.
    """

    encoder: "Encoder"
    streams: Streams
    events: Events
    rows: Row
    next_rows: Row | None
    is_run: bool

    @property
    def schema(self) -> schema_lib.Schema:
        """The schema of the steps."""
        return self.encoder.schema


class Encoder:
    """Encodes rows of one schema as bytes."""

    def __init__(self, schema: schema_lib.Schema) -> None:
        self.schema = schema
        names = ("observation", "next_observation", "action", "reward", "extras")
        parts = [_part_encoder(schema, name) for name in names]
        self._observation, self._next_observation, self._action, self._reward, self._extras = parts
        self._has_extras, self._num_fields = bool(schema.extras), len(schema.fields)

    def __reduce__(self) -> tuple[type["Encoder"], tuple[schema_lib.Schema]]:
        # The functions cannot be pickled, so they are created again.
        return Encoder, (self.schema,)

    def row(
        self, observation: Any, action: Any, reward: Any, next_observation: Any, extras: Mapping[str, Any]
    ) -> tuple[Row, Row | None]:
        """Return the bytes of the row of one step, and of the observation after it; None if that is None."""
        row: list[bytes] = []
        self._observation(observation, row)
        self._action(action, row)
        self._reward(reward, row)
        if extras or self._has_extras:
            self._extras(extras, row)
        if next_observation is None:
            return row, None
        next_row: list[bytes] = []
        self._next_observation(next_observation, next_row)
        return row, next_row

    def rows(
        self, count: int, observation: Any, action: Any, reward: Any, next_observation: Any, extras: Mapping[str, Any]
    ) -> tuple[Row, Row | None]:
        """Encode several steps as `row` does; every value has a leading axis of steps."""
        rows = self.schema._rows_of(observation, action, reward, extras, (count,), next_observation)
        encoded = [*map(np.ndarray.tobytes, rows.values())]
        if next_observation is None:
            return encoded, None
        return encoded[: self._num_fields], encoded[self._num_fields :]

    def run(
        self, count: int, observations: Any, actions: Any, rewards: Any, extras: Mapping[str, Any]
    ) -> tuple[Row, Row]:
        """Return the bytes of the rows of T consecutive steps, and of the last of their T + 1 observations."""
        seen = self.schema._columns_of("observations", observations, (count + 1,))
        before = trees.nested("observation", {path: column[:-1] for path, column in seen.items()})
        rows = self.schema._rows_of(before, actions, rewards, extras, (count,))
        return [*map(np.ndarray.tobytes, rows.values())], [column[-1:].tobytes() for column in seen.values()]

    def flat(self, count: int, given: Given) -> tuple[dict[str, arrays.Array], dict[str, arrays.Array]]:
        """Return the columns of `count` rows by path [count, ...], and of the observations after them, if given.

        A column may be the caller's own array.
        """
        observations, actions, rewards, next_observations, extras = given
        columns = self.schema._rows_of(observations, actions, rewards, extras, (count,), next_observations)
        paths = [] if next_observations is None else self.schema._observation_paths
        following = {path: columns.pop(f"next_{path}") for path in paths}
        return columns, following

    def columns(self, rows: Row, count: int) -> dict[str, arrays.Array]:
        """Return the read-only columns [count, ...] of `count` rows, or of as many observations."""
        return {
            path: np.ndarray((count, *field.shape), field.dtype, content)
            for (path, field), content in zip(self.schema.fields.items(), rows, strict=False)
        }


def _part_encoder(schema: schema_lib.Schema, name: str) -> Callable[[Any, list[bytes]], None]:
    """Return a function that encodes the value of an argument, and appends the bytes of each of its fields."""
    named = schema._named_fields(name).items()
    encoders = {leaf: _encoder(leaf, field, schema._is_checked(leaf, field)) for leaf, field in named}
    if name in encoders:
        return encoders[name]
    leaves, of_fields = schema._leaves, tuple(encoders.values())

    def encode(value: Any, row: list[bytes]) -> None:
        for encode_field, leaf in zip(of_fields, leaves(name, value), strict=True):
            encode_field(leaf, row)

    return encode


def _encoder(name: str, field: schema_lib.Field, is_checked: bool) -> Callable[[Any, list[bytes]], None]:
    """Return a function that encodes one value of that field and appends the bytes, or raises ArgumentError.

    Python numbers and flat lists of them are packed without numpy, which is several times faster, unless they are
    checked.
    """
    shape, dtype, is_reward = field.shape, field.dtype, name == "reward"
    check = schema_lib.require_finite if is_reward else functools.partial(casting.require_finite, name)
    must_check = is_reward or is_checked

    def encode(value: Any, row: list[bytes]) -> None:
        if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
            value = casting.cast_exact(name, value, shape, dtype, is_reward)
        if must_check:
            check(value)
        row.append(value.tobytes())

    code = _CODES.get(dtype.str[1:])
    if len(shape) > 1 or code is None or not dtype.isnative or is_checked:
        return encode
    pack = struct.Struct(f"={math.prod(shape)}{code}").pack
    of_python = {"f": float, "b": bool}.get(dtype.kind, int)
    # Integers that a float holds exactly are packed as floats are.
    largest = casting.most_exact(dtype)
    kinds = {of_python, dtype.type, *([np.float64] if is_reward else [])}

    def encode_number(value: Any, row: list[bytes]) -> None:
        is_array = type(value) is np.ndarray and value.shape == () and not value.dtype.hasobject
        number = value[()] if is_array else value
        kind = type(number)
        is_usual = kind in kinds or (kind is int and -largest <= number <= largest)
        if not is_usual or (is_reward and not math.isfinite(number)):
            return encode(value, row)
        try:
            return row.append(pack(number))
        except (struct.error, OverflowError):
            return encode(value, row)

    def encode_list(value: Any, row: list[bytes]) -> None:
        kind = type(value)
        if kind is np.ndarray and value.dtype is dtype and value.shape == shape:
            return row.append(value.tobytes())
        if kind is not list and kind is not tuple:
            return encode(value, row)
        found = {*map(type, value)}
        is_usual = found == {of_python} or (found == {int} and largest >= max(value) and min(value) >= -largest)
        if not is_usual:
            return encode(value, row)
        try:
            return row.append(pack(*value))
        except (struct.error, OverflowError):
            return encode(value, row)

    return encode_list if shape else encode_number


def steps(
    encoder: Encoder | None,
    streams: Streams,
    events: Events,
    given: Given,
    *,
    is_run: bool = False,
    check_finite: bool = False,
) -> Steps:
    """Return the steps that the arguments of a write describe; infers the schema if there is none.

    Args:
        encoder: The encoder; None while there is no schema.
        streams: The stream of each step [k]; a tuple of one for one step, whose values have no leading axis.
        events: The event of each step [k]; a tuple of one for one step.
        given: The values. Those of several steps have a leading axis [k, ...]. For a run, there is one observation
            more [k + 1, ...] instead of next observations.
        is_run: Whether these are consecutive steps of one stream.
        check_finite: Whether an inferred schema has it.

    Raises:
        SchemaError: A value does not fit its field, is missing, or has none.
        ArgumentError: A truncated step has no next observation, a key is not a non-empty string without "/", or a
            reward is not finite.
    """
    observation, action, reward, next_observation, extras = given
    is_one = type(streams) is tuple
    if next_observation is None and not is_run and TRUNCATED in bytes(events):
        raise errors.ArgumentError("next_observation must be given with a truncated step, got None")
    if encoder is None:
        options: Any = {"extras": extras, "num_leading": int(not is_one), "check_finite": check_finite}
        encoder = Encoder(schema_lib.Schema.from_example(observation, action, reward, **options))
    if is_one:
        rows, next_rows = encoder.row(observation, action, reward, next_observation, extras)
    elif is_run:
        rows, next_rows = encoder.run(len(streams), observation, action, reward, extras)
    else:
        rows, next_rows = encoder.rows(len(streams), observation, action, reward, next_observation, extras)
    return Steps(encoder, streams, events, rows, next_rows, is_run)


def require_round(num_streams: int, count: int, reward: Any) -> None:
    """Raise ArgumentError unless there are `count` rewards, one for each stream of a round."""
    num_rewards = validation.leading_length("reward", reward)
    if num_rewards != count:
        rule = f"extend must have a step of each of {count} streams, got {num_rewards} rewards"
        remedy = f"make the buffer with streams={num_rewards}, or add consecutive steps with add_steps"
        raise errors.ArgumentError(f"{rule}: {remedy}" if num_streams == 1 and num_rewards else rule)


def event(terminated: Any, truncated: Any) -> int:
    """Return the event of a step with those flags; termination takes precedence."""
    if truncated is False and (terminated is False or terminated is True):
        return TERMINATED if terminated else 0
    # Both are checked before either counts.
    terminated, truncated = validation.flag("terminated", terminated), validation.flag("truncated", truncated)
    return TERMINATED if terminated else TRUNCATED if truncated else 0


def events(terminated: Any, truncated: Any, count: int) -> npt.NDArray[np.uint8]:
    """Return the events of steps with those flags [count]; None for all False, and termination takes precedence."""
    made = np.zeros(count, np.uint8)
    terminates = None if terminated is None else validation.flags("terminated", terminated, count)
    if truncated is not None:
        made[validation.flags("truncated", truncated, count)] = TRUNCATED
    if terminates is not None:
        made[terminates] = TERMINATED
    return made


def events_of_run(count: int, first: int, last: int) -> npt.NDArray[np.uint8]:
    """Return the events of `count` consecutive steps, given those of the first and the last."""
    made = np.zeros(count, np.uint8)
    made[-1] = last
    made[0] |= first
    return made


def stream_number(num_streams: int, stream: Any) -> int:
    """Return the checked number of a stream; None is allowed if there is only one."""
    if type(stream) is int and 0 <= stream < num_streams:
        return stream
    if stream is None:
        if num_streams > 1:
            raise errors.ArgumentError(f"stream must be given where there are several, got none of {num_streams}")
        return 0
    number = validation.non_negative_int("stream", stream)
    if number >= num_streams:
        raise errors.ArgumentError(f"stream must be below streams = {num_streams}, got {number}")
    return number


def stream_numbers(num_streams: int, streams: Any) -> arrays.Ints:
    """Return the checked, distinct numbers of streams [k], which may be shared, but not with the caller's array.

    None stands for all, in order.
    """
    if streams is None:
        return _all_streams(num_streams)
    numbers = np.array(validation.integers("streams", streams))
    listed = numbers.tolist()
    if listed and not 0 <= min(listed) <= max(listed) < num_streams:
        wrong = next(number for number in listed if not 0 <= number < num_streams)
        raise errors.ArgumentError(f"streams must be 0 to {num_streams - 1}, got {wrong}")
    if len({*listed}) < len(listed):
        raise errors.ArgumentError(f"streams must be distinct, got {validation.short_repr(listed)}")
    return numbers


@functools.lru_cache(maxsize=16)
def _all_streams(num_streams: int) -> arrays.Ints:
    """Return the numbers of all streams: one array for all calls, not to be written to."""
    return np.arange(num_streams, dtype=np.int64)
