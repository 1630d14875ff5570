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

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import trees
from relive.common import validation
from relive.kernels import append
from relive.schema import casting
from relive.schema import schema as schema_lib

_BOOL, _ARRAY = np.dtype(np.bool_), np.ndarray
TERMINATED: int = append.TERMINATED
TRUNCATED: int = append.TRUNCATED
CUT: int = append.CUT
"""Bits of an event: the episode ends with the step, or it begins a new one whatever is open."""

Row: TypeAlias = Sequence[bytes]
"""For each field its bytes: of one row, or of several in turn."""
Streams: TypeAlias = tuple[int, ...] | arrays_lib.Ints
Given: TypeAlias = tuple[Any, Any, Any, Any, Mapping[str, Any]]
"""The observation, the action, the reward, the next observation or None, and the extras."""
PART_OF = {part: part for part in ("observation", "action", "reward", "extras")}
PART_OF |= {"next_observation": "observation", "observations": "observation"}
"""The part of a row that an argument of `add` or `add_steps` is of."""
_LARGEST_FLOAT = float(np.finfo(np.float64).max)
_CODES = {"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"}
_CODES |= {"f4": "f", "f8": "d"}
"""How `struct` calls native dtypes."""


class Steps(NamedTuple):
    """Steps to write: one step for each of several streams, or a run of consecutive steps of one stream.

    Attributes:
        encoder: The encoder of the rows.
        streams: The stream of each step [k]; a tuple of one for one step.
        events: TERMINATED or TRUNCATED where the episode ends with the step, and CUT: a byte for each step.
        rows: For each field, the concatenated bytes of its k values.
        next_rows: For each field of an observation, the bytes of the k next observations, or for a run of the last one;
            None if not known yet.
        is_run: Whether these are consecutive steps of one stream.
    """

    encoder: "Encoder"
    streams: Streams
    events: bytes
    rows: Row
    next_rows: Row | None
    is_run: bool

    @property
    def schema(self) -> schema_lib.Schema:
        """The schema of the steps."""
        return self.encoder.schema


class Encoder:
    """Encodes rows of one schema as bytes, or as columns."""

    def __init__(self, schema: schema_lib.Schema) -> None:
        self.schema = schema
        self.observation_paths = schema_lib.paths_of(schema, "observation")
        """The paths of the observation's fields."""
        self._arguments = {name: _Argument.of(schema, name) for name in PART_OF}
        fields, following = schema.fields, self._arguments["next_observation"].fields
        self._rows = _Columns(schema, [*fields], fields)
        self._rows_and_next = _Columns(schema, [*fields, *following], {**fields, **following})
        self.row = _row_encoder(self)
        """Returns the bytes of the row of one step, and of the observation after it; None if that is None."""
        self.rows = _rows_encoder(self)
        """Does the same for several steps, given their number; every value has a leading axis of steps."""

    def __reduce__(self) -> tuple[type["Encoder"], tuple[schema_lib.Schema]]:
        # The functions cannot be pickled, so they are created again.
        return Encoder, (self.schema,)

    def run(
        self, count: int, observations: Any, actions: Any, rewards: Any, extras: Mapping[str, Any]
    ) -> tuple[Row, Row]:
        """Return the bytes of the rows of T consecutive steps, and of the last of their T + 1 observations."""
        seen = self.columns_of_argument("observations", observations, (count + 1,))
        before = trees.nested("observation", {path: column[:-1] for path, column in seen.items()})
        rows = self.columns_of(before, actions, rewards, extras, (count,))
        return [*map(np.ndarray.tobytes, rows.values())], [column[-1:].tobytes() for column in seen.values()]

    def flat(self, count: int, given: Given) -> tuple[dict[str, arrays_lib.Array], dict[str, arrays_lib.Array]]:
        """Return the columns of `count` rows by path [count, ...], and of the observations after them, if given.

        A column may be the caller's own array.
        """
        observations, actions, rewards, next_observations, extras = given
        columns = self.columns_of(observations, actions, rewards, extras, (count,))
        if next_observations is None:
            return columns, {}
        return columns, self.columns_of_argument("next_observation", next_observations, (count,))

    def columns_of(
        self, observation: object, action: object, reward: object, extras: Mapping[str, Any], lead: tuple[int, ...]
    ) -> dict[str, arrays_lib.Array]:
        """Return the columns of rows by path, each of shape `lead` + its field's, in its field's dtype.

        A column may be the caller's own array. Rewards may be rounded to their dtype.

        Raises:
            SchemaError: A value does not fit its field, is missing, or has none.
            ArgumentError: A key is not a non-empty string without "/", or a reward is not finite.
        """
        columns = self._rows.by_path(self._values_of(observation, action, reward, extras), lead)
        require_finite(columns["reward"])
        return columns

    def columns_of_argument(self, name: str, value: object, lead: tuple[int, ...]) -> dict[str, arrays_lib.Array]:
        """Return the columns of one argument in the same way; rewards need not be finite.

        Args:
            name: The argument of `add`; or `observations`, whose fields are those of an observation.
            value: Its value: of one field itself, or mappings with the keys of the fields.
            lead: The leading axes.
        """
        argument = self._arguments[name]
        return argument.columns.by_path(argument.leaves(value), lead)

    def copier_of_argument(self, name: str) -> Callable[[Any], dict[str, arrays_lib.Array]]:
        """Return a function that does that with one value, several times as fast; its columns are read-only copies."""
        argument = self._arguments[name]
        encode, fields = _part_encoder(self.schema, argument), [*argument.fields.values()]

        def copy(value: Any) -> dict[str, arrays_lib.Array]:
            encoded = zip(argument.columns.paths, fields, encode(value), strict=True)
            return {path: np.ndarray(field.shape, field.dtype, content) for path, field, content in encoded}

        return copy

    def leaves_of(self, name: str, value: object) -> dict[str, Any]:
        """Return the values of the fields of such an argument as they are, by their names in errors."""
        argument = self._arguments[name]
        return dict(zip(argument.fields, argument.leaves(value), strict=True))

    def _values_of(self, observation: object, action: object, reward: object, extras: Mapping[str, Any]) -> list[Any]:
        """Return the values of the fields of rows."""
        of = self._arguments
        values = [*of["observation"].leaves(observation), *of["action"].leaves(action), reward]
        if extras or len(self.schema.fields) > len(values):
            values += of["extras"].leaves(extras)
        return values


class _Columns:
    """Casts the values of some fields, at some paths, with names in errors."""

    def __init__(self, schema: schema_lib.Schema, paths: list[str], fields: Mapping[str, schema_lib.Field]) -> None:
        self.paths, self._names = paths, list(fields)
        self._shapes, self._dtypes = (
            [field.shape for field in fields.values()],
            [field.dtype for field in fields.values()],
        )
        self._checked = [i for i, (name, field) in enumerate(fields.items()) if _is_checked(schema, name, field)]
        self._newest: tuple[tuple[int, ...], list[tuple[int, ...]]] = (), self._shapes

    def cast(self, values: list[Any], lead: tuple[int, ...]) -> list[arrays_lib.Array]:
        """Return the list of a value of each field, as columns [lead..., ...]; a matching array stays."""
        before, shapes = self._newest
        if lead != before:
            _, shapes = self._newest = lead, [lead + shape for shape in self._shapes]
        dtypes, names = self._dtypes, self._names
        for i, value in enumerate(values):
            if type(value) is not _ARRAY or value.dtype is not dtypes[i] or value.shape != shapes[i]:
                values[i] = casting.cast_exact(names[i], value, shapes[i], dtypes[i], names[i] == "reward")
        for i in self._checked:
            casting.require_finite(names[i], values[i])
        return values

    def by_path(self, values: list[Any], lead: tuple[int, ...]) -> dict[str, arrays_lib.Array]:
        """Return the same by path."""
        return dict(zip(self.paths, self.cast(values, lead), strict=True))


class _Branch(NamedTuple):
    """Reads mappings: the keys they must have, and for each what reads its value, None for a field."""

    keys: Sequence[str]
    known: frozenset[str]
    branches: Sequence["_Branch | None"]
    is_flat: bool

    @classmethod
    def of(cls, tree: schema_lib.Tree) -> "_Branch | None":
        """Return what reads the values of a tree; None for a field."""
        if isinstance(tree, schema_lib.Field):
            return None
        branches = [cls.of(branch) for branch in tree.values()]
        return cls(tuple(tree), frozenset(tree), branches, not any(branches))

    def collect(self, value: Any, found: list[Any]) -> bool:
        """Append the values of the fields to `found`; return False if the keys are others."""
        keys, known, branches, is_flat = self
        if not isinstance(value, Mapping) or value.keys() != known:
            return False
        values = map(value.__getitem__, keys)
        if is_flat:
            found.extend(values)
            return True
        for branch, child in zip(branches, values, strict=True):
            if branch is None:
                found.append(child)
            elif not branch.collect(child, found):
                return False
        return True


class _Argument(NamedTuple):
    """An argument of a write: its name, its fields by their names in errors, and what reads and casts its value."""

    name: str
    fields: Mapping[str, schema_lib.Field]
    branch: _Branch | None
    columns: _Columns

    @classmethod
    def of(cls, schema: schema_lib.Schema, name: str) -> "_Argument":
        """Return the argument of that name."""
        part = PART_OF[name]
        paths = [*schema_lib.paths_of(schema, part)]
        fields = {name + path[len(part) :]: schema.fields[path] for path in paths}
        branch = _Branch.of(trees.nested(part, schema.fields))
        return cls(name, fields, branch, _Columns(schema, paths, fields))

    def leaves(self, value: object) -> list[Any]:
        """Return the values of the fields, in their order.

        Raises:
            SchemaError: A value is missing, or has no field.
            ArgumentError: A key is not a non-empty string without "/".
        """
        name, fields, branch, _ = self
        found: list[Any] = []
        if branch is None:
            return [value]
        if not branch.collect(value, found) or dict in map(type, found):
            leaves = {} if name == "extras" and not value else trees.flat(name, value)
            raise _mismatch(name, list(fields), leaves)
        return found


def _is_checked(schema: schema_lib.Schema, name: str, field: schema_lib.Field) -> bool:
    """Return whether the values of a field must be finite because of `check_finite`."""
    return schema.check_finite and name != "reward" and field.dtype.kind in "fc"


def require_finite(rewards: arrays_lib.Array) -> None:
    """Raise ArgumentError if one of the rewards [...] is infinite or NaN, or would be as float64."""
    # One pass: if the sum of squares is finite as float64, all values are.
    if not float(np.vdot(rewards, rewards)) <= _LARGEST_FLOAT:
        with np.errstate(over="ignore"):
            is_finite = np.isfinite(rewards.astype(np.float64))
        for place in np.argwhere(~is_finite).tolist():
            reward = rewards[tuple(place)]
            rule = "finite as float64" if np.isfinite(reward) else "finite"
            raise errors.ArgumentError(f"reward must be {rule}, got {reward!s}{f' at {place}' if place else ''}")


def _mismatch(name: str, expected: list[str], leaves: Mapping[str, object]) -> errors.SchemaError:
    """Return the error for leaves with unexpected paths."""
    if name in leaves:
        shown = validation.short_repr(leaves[name]) + casting.remedy_for_reset(leaves[name])
        return errors.SchemaError(f"{name} must be a mapping with {', '.join(expected)}, got {shown}")
    known = f"the schema has {', '.join(map(schema_lib.label, expected)) or 'no extras'}"
    for path in leaves:
        if path not in expected:
            meant = schema_lib.suggestion(path.removeprefix("extras/"))
            remedy = f"say {meant}" if meant else known
            return errors.SchemaError(f"unknown {schema_lib.label(path)}: {remedy}")
    missing = next(path for path in expected if path not in leaves)
    return errors.SchemaError(f"{schema_lib.label(missing)} is missing: {known}")


def columns(schema: schema_lib.Schema, rows: Sequence[bytes | memoryview], count: int) -> dict[str, arrays_lib.Array]:
    """Return the read-only columns [count, ...] of the bytes of `count` rows, or of as many observations."""
    return {
        path: np.ndarray((count, *field.shape), field.dtype, content)
        for (path, field), content in zip(schema.fields.items(), rows, strict=False)
    }


def _row_encoder(encoder: Encoder) -> Callable[..., tuple[Row, Row | None]]:
    """Return a function that encodes the values of one step."""
    schema, arguments = encoder.schema, encoder._arguments
    names = ("observation", "action", "reward", "next_observation", "extras")
    of_parts = {name: _part_encoder(schema, arguments[name]) for name in names}
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
        _encoder(name, field, _is_checked(schema, name, field))
        for part in names[:-1]
        for name, field in arguments[part].fields.items()
    )
    is_nested = any(name not in arguments[name].fields for name in names[:-1])

    def encode_plain(
        observation: Any, action: Any, reward: Any, next_observation: Any, extras: Mapping[str, Any]
    ) -> tuple[Row, Row | None]:
        row = encode_observation(observation), encode_action(action), encode_reward(reward)
        if extras:
            of_extras(extras)  # It raises.
        return row, None if next_observation is None else (encode_following(next_observation),)

    return encode if is_nested else encode_plain


def _rows_encoder(encoder: Encoder) -> Callable[..., tuple[Row, Row | None]]:
    """Return a function that encodes the values of several steps, given their number."""
    rows, both, values_of = encoder._rows, encoder._rows_and_next, encoder._values_of
    num_fields, following = len(rows.paths), encoder._arguments["next_observation"]
    tobytes, vdot, largest, reward_place = np.ndarray.tobytes, np.vdot, _LARGEST_FLOAT, rows.paths.index("reward")
    is_plain = both.paths == ["observation", "action", "reward", "next_observation"]

    def encode(
        count: int, observation: Any, action: Any, reward: Any, next_observation: Any, extras: Mapping[str, Any]
    ) -> tuple[Row, Row | None]:
        if is_plain and not extras:
            values = [observation, action, reward]
        else:
            values = values_of(observation, action, reward, extras)
        of = rows
        if next_observation is not None:
            values += [next_observation] if is_plain else following.leaves(next_observation)
            of = both
        columns = of.cast(values, (count,))
        rewards = columns[reward_place]
        if not float(vdot(rewards, rewards)) <= largest:  # Its method `dot` warns of an overflow.
            require_finite(rewards)
        encoded = [*map(tobytes, columns)]
        if next_observation is None:
            return encoded, None
        return encoded[:num_fields], encoded[num_fields:]

    return encode


def _part_encoder(schema: schema_lib.Schema, argument: _Argument) -> Callable[[Any], Row]:
    """Return a function that returns the bytes of each field of the value of an argument."""
    encoders = [_encoder(leaf, field, _is_checked(schema, leaf, field)) for leaf, field in argument.fields.items()]
    leaves = argument.leaves

    def encode(value: Any) -> Row:
        return [encode_field(leaf) for encode_field, leaf in zip(encoders, leaves(value), strict=True)]

    return encode


def _encoder(name: str, field: schema_lib.Field, is_checked: bool) -> Callable[[Any], bytes]:
    """Return a function that returns the bytes of one value of that field, or raises ArgumentError.

    Python numbers and flat lists of them are packed without numpy, which is several times faster, unless they are
    checked.
    """
    shape, dtype, is_reward = field.shape, field.dtype, name == "reward"
    check = require_finite if is_reward else functools.partial(casting.require_finite, name)
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
    events: bytes,
    given: Given,
    *,
    is_run: bool = False,
    check_finite: bool = False,
) -> Steps:
    """Return the steps that the arguments of a write describe; infers the schema if there is none.

    Args:
        encoder: The encoder; None while there is no schema.
        streams: The stream of each step [k]; a tuple of one for one step, whose values have no leading axis.
        events: The event of each step, as a byte.
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
    if next_observation is None and not is_run and TRUNCATED in events:
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


def events(terminated: Any, truncated: Any, count: int) -> bytes:
    """Return the events of steps with those flags [count]; None for all False, and termination takes precedence."""
    none = no_events(count)
    terminates, truncates = _flags("terminated", terminated, none), _flags("truncated", truncated, none)
    if truncates is none:
        return none if terminates is none else terminates.translate(_TERMINATED)
    made = truncates.translate(_TRUNCATED)
    if terminates is none:
        return made
    return np.where(np.frombuffer(terminates, np.bool_), np.uint8(TERMINATED), np.frombuffer(made, np.uint8)).tobytes()


_TERMINATED, _TRUNCATED = (bytes([0] + [event] * 255) for event in (TERMINATED, TRUNCATED))
"""The event of each byte of a flag: in a bool array viewed from other numbers, every nonzero one is True."""


def _flags(name: str, flags: Any, none: bytes) -> bytes:
    """Return the bytes of checked flags, as many as `none` has; itself if all are False."""
    if flags is None:
        return none
    if type(flags) is not _ARRAY or flags.dtype is not _BOOL or flags.shape != (len(none),):
        flags = validation.flags(name, flags, len(none))
    content: bytes = flags.tobytes()
    return none if content == none else content


@functools.lru_cache(maxsize=16)
def no_events(count: int) -> bytes:
    """Return the events of `count` steps that go on."""
    return bytes(count)


def events_of_run(count: int, first: int, last: int) -> bytes:
    """Return the events of `count` consecutive steps, given those of the first and the last."""
    if count == 1:
        return bytes([first | last])
    return bytes([first]) + bytes(count - 2) + bytes([last])


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


def stream_numbers(num_streams: int, streams: Any) -> arrays_lib.Ints:
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
def all_streams(num_streams: int) -> arrays_lib.Ints:
    """Return the numbers of all streams: one array for all calls, not to be written to."""
    return np.arange(num_streams, dtype=np.int64)
