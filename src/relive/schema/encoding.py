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

_BOOL = np.dtype(np.bool_)
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
        self.row = _row_encoder(schema)
        """Returns the bytes of the row of one step, and of the observation after it; None if that is None."""
        self.rows = _rows_encoder(schema)
        """Does the same for several steps, given their number; every value has a leading axis of steps."""

    def __reduce__(self) -> tuple[type["Encoder"], tuple[schema_lib.Schema]]:
        # The functions cannot be pickled, so they are created again.
        return Encoder, (self.schema,)

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
        columns = self.schema._rows_of(observations, actions, rewards, extras, (count,))
        if next_observations is None:
            return columns, {}
        return columns, self.schema._columns_of("next_observation", next_observations, (count,))

    def columns(self, rows: Row, count: int) -> dict[str, arrays.Array]:
        """Return the read-only columns [count, ...] of `count` rows, or of as many observations."""
        return {
            path: np.ndarray((count, *field.shape), field.dtype, content)
            for (path, field), content in zip(self.schema.fields.items(), rows, strict=False)
        }


def _row_encoder(schema: schema_lib.Schema) -> Callable[..., tuple[Row, Row | None]]:
    """Return a function that encodes the values of one step."""
    names = ("observation", "action", "reward", "next_observation", "extras")
    of_parts = {name: _part_encoder(schema, name) for name in names}
    of_observation, of_action, of_reward, of_following, of_extras = of_parts.values()
    has_extras = bool(schema.extras)

    def encode(
        observation: Any, action: Any, reward: Any, next_observation: Any, extras: Mapping[str, Any]
    ) -> tuple[Row, Row | None]:
        row = [*of_observation(observation), *of_action(action), *of_reward(reward)]
        if extras or has_extras:
            row += of_extras(extras)
        return row, None if next_observation is None else of_following(next_observation)

    if len(schema.fields) > len(names) - 2:
        return encode
    # A field for each part, as in most schemas: without the lists of their fields.
    encode_observation, encode_action, encode_reward, encode_following = (
        _encoder(name, field, schema._is_checked(name, field))
        for part in names[:-1]
        for name, field in schema._named_fields(part).items()
    )
    is_nested = any(name not in schema._named_fields(name) for name in names[:-1])

    def encode_plain(
        observation: Any, action: Any, reward: Any, next_observation: Any, extras: Mapping[str, Any]
    ) -> tuple[Row, Row | None]:
        row = encode_observation(observation), encode_action(action), encode_reward(reward)
        if extras:
            of_extras(extras)  # It raises.
        return row, None if next_observation is None else (encode_following(next_observation),)

    return encode if is_nested else encode_plain


def _rows_encoder(schema: schema_lib.Schema) -> Callable[..., tuple[Row, Row | None]]:
    """Return a function that encodes the values of several steps, given their number."""
    num_fields, rows, both = len(schema.fields), schema._rows, schema._rows_and_next
    types, reward_place, largest = [np.ndarray] * len(both.paths), rows.paths.index("reward"), schema_lib.LARGEST_FLOAT
    is_plain = both.paths == ["observation", "action", "reward", "next_observation"]
    known: tuple[int, list[tuple[int, ...]]] = -1, []

    def encode(
        count: int, observation: Any, action: Any, reward: Any, next_observation: Any, extras: Mapping[str, Any]
    ) -> tuple[Row, Row | None]:
        nonlocal known
        if is_plain and not extras:
            values = [observation, action, reward]
        else:
            values = schema._values_of(observation, action, reward, extras)
        if next_observation is None:
            columns: Sequence[arrays.Array] = [*rows.cast(values, (count,)).values()]
        else:
            values += [next_observation] if is_plain else schema._leaves("next_observation", next_observation)
            number, shapes = known
            if number != count:
                shapes = [(count, *shape) for shape in both.shapes]
                known = count, shapes
            # Columns that are arrays of their fields, as most are, need not be looked at one by one.
            is_cast = [*map(type, values)] == types and [value.shape for value in values] == shapes
            if is_cast and not both.checked and [value.dtype for value in values] == both.dtypes:
                columns = values
            else:
                columns = [*both.cast(values, (count,)).values()]
        rewards = columns[reward_place]
        if not float(np.vdot(rewards, rewards)) <= largest:
            schema_lib.require_finite(rewards)
        encoded = [column.tobytes() for column in columns]
        if next_observation is None:
            return encoded, None
        return encoded[:num_fields], encoded[num_fields:]

    return encode


def _part_encoder(schema: schema_lib.Schema, name: str) -> Callable[[Any], Row]:
    """Return a function that returns the bytes of each field of the value of an argument."""
    named = schema._named_fields(name).items()
    encoders = [_encoder(leaf, field, schema._is_checked(leaf, field)) for leaf, field in named]
    leaves = schema._leaves

    def encode(value: Any) -> Row:
        return [encode_field(leaf) for encode_field, leaf in zip(encoders, leaves(name, value), strict=True)]

    return encode


def _encoder(name: str, field: schema_lib.Field, is_checked: bool) -> Callable[[Any], bytes]:
    """Return a function that returns the bytes of one value of that field, or raises ArgumentError.

    Python numbers and flat lists of them are packed without numpy, which is several times faster, unless they are
    checked.
    """
    shape, dtype, is_reward = field.shape, field.dtype, name == "reward"
    check = schema_lib.require_finite if is_reward else functools.partial(casting.require_finite, name)
    must_check = is_reward or is_checked

    def encode(value: Any) -> bytes:
        if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
            value = casting.cast_exact(name, value, shape, dtype, is_reward)
        if must_check:
            check(value)
        encoded: bytes = value.tobytes()
        return encoded

    code = _CODES.get(dtype.str[1:])
    if len(shape) > 1 or code is None or not dtype.isnative or is_checked:
        return encode
    pack = struct.Struct(f"={math.prod(shape)}{code}").pack
    of_python = {"f": float, "b": bool}.get(dtype.kind, int)
    # Integers that a float holds exactly are packed as floats are.
    largest = casting.most_exact(dtype)
    kinds = {of_python, dtype.type, *([np.float64] if is_reward else [])}
    array_type, isfinite = np.ndarray, math.isfinite  # Variables of a function are read faster than those of modules.

    def encode_number(value: Any) -> bytes:
        kind, number = type(value), value
        if kind is array_type and value.shape == () and not value.dtype.hasobject:
            number = value[()]
            kind = type(number)
        is_usual = kind in kinds or (kind is int and -largest <= number <= largest)
        if not is_usual or (is_reward and not isfinite(number)):
            return encode(value)
        try:
            return pack(number)
        except (struct.error, OverflowError):
            return encode(value)

    def encode_list(value: Any) -> bytes:
        kind = type(value)
        if kind is array_type and value.dtype is dtype and value.shape == shape:
            encoded: bytes = value.tobytes()
            return encoded
        if kind is not list and kind is not tuple:
            return encode(value)
        found = {*map(type, value)}
        is_usual = found == {of_python} or (found == {int} and largest >= max(value) and min(value) >= -largest)
        if not is_usual:
            return encode(value)
        try:
            return pack(*value)
        except (struct.error, OverflowError):
            return encode(value)

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
    terminates, truncates = _set_flags("terminated", terminated, count), _set_flags("truncated", truncated, count)
    if terminates is None and truncates is None:
        return _no_events(count)
    made = np.zeros(count, np.uint8)
    if truncates is not None:
        made[truncates] = TRUNCATED
    if terminates is not None:
        made[terminates] = TERMINATED
    return made


def _set_flags(name: str, flags: Any, count: int) -> arrays.Bools | None:
    """Return checked flags as an array of bools [count]; None if all are False."""
    if flags is None:
        return None
    checked = flags if type(flags) is np.ndarray and flags.dtype is _BOOL else validation.flags(name, flags, count)
    if checked.shape != (count,):
        checked = validation.flags(name, flags, count)  # It raises.
    return checked if arrays.any_set(checked) else None


@functools.lru_cache(maxsize=16)
def _no_events(count: int) -> npt.NDArray[np.uint8]:
    """Return the events of `count` steps that go on: one array for all calls, not to be written to."""
    return np.zeros(count, np.uint8)


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
        return all_streams(num_streams)
    numbers = np.array(validation.integers("streams", streams))
    listed = numbers.tolist()
    if listed and not 0 <= min(listed) <= max(listed) < num_streams:
        wrong = next(number for number in listed if not 0 <= number < num_streams)
        raise errors.ArgumentError(f"streams must be 0 to {num_streams - 1}, got {wrong}")
    if len({*listed}) < len(listed):
        raise errors.ArgumentError(f"streams must be distinct, got {validation.short_repr(listed)}")
    everyone = all_streams(num_streams)
    return everyone if len(listed) == num_streams and listed == everyone.tolist() else numbers


@functools.lru_cache(maxsize=16)
def all_streams(num_streams: int) -> arrays.Ints:
    """Return the numbers of all streams: one array for all calls, not to be written to."""
    return np.arange(num_streams, dtype=np.int64)
