"""Encoding of steps: arguments of a write are checked as a whole and turned into the bytes of rows.

    one_step            of `add`
    step_of_each        of `extend`
    consecutive_steps   of `add_steps`
    whole_episode       of `add_episode`

Each makes `Steps` from its arguments with an `Encoder`. A fast path reads the usual values: arrays, numbers or lists,
in dicts with the keys of the schema. If that fails, the schema reads them: it accepts any mapping, and names what does
not fit in its errors.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import functools
import math
import operator
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
"""For each block the bytes of its records, those of its fields without gaps: of one row, or of several in turn."""
Blocks: TypeAlias = tuple[tuple[str, ...], ...]
_PathAndField: TypeAlias = tuple[str, schema_lib.Field]
REFUSALS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""The exceptions that unusual values raise when they are read."""
CODES = {"b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q"}
CODES |= {"f4": "f", "f8": "d"}
"""How `struct` calls native dtypes."""
_LARGEST_EXACT = 2**53
_PARTS = ["observation", "action", "reward"]


class Steps(NamedTuple):
    """Steps to write: one step for each of several streams, or a run of consecutive steps of one stream.

    Attributes:
        encoder: The encoder of the rows.
        streams: The stream of each step [k]; a tuple of one for one step.
        events: TERMINATED or TRUNCATED where the episode ends with the step, and CUT [k]; a tuple of one for one step.
        rows: For each block, the concatenated bytes of its k records.
        next_rows: For each block of an observation, the bytes of the k next observations, or for a run of the last one;
            None if not known yet.
        is_run: Whether these are consecutive steps of one stream.
    """

    encoder: "Encoder"
    streams: tuple[int, ...] | arrays.Ints
    events: tuple[int, ...] | npt.NDArray[np.uint8]
    rows: Row
    next_rows: Row | None
    is_run: bool

    @property
    def schema(self) -> schema_lib.Schema:
        """The schema of the steps."""
        return self.encoder.schema

    @property
    def count(self) -> int:  # type: ignore[override]  # Shadows tuple.count, which is not used.
        """Number of steps."""
        return len(self.streams)


class Encoder:
    r"""Encodes rows of one schema as bytes, for the blocks of its storage.

    >>> import numpy as np
    >>> import relive
    >>> from relive.schema import encoding
    >>> schema = relive.Schema(relive.Field(2, "uint8"), relive.Field((), "int16"))
    >>> encoder = encoding.Encoder(schema)
    >>> rows, next_rows = encoder.row(np.array([1, 2], np.uint8), 3, 0.0, [4, 5], {})
    >>> rows, next_rows
    ([b'\x01\x02', b'\x03\x00', b'\x00\x00\x00\x00\x00\x00\x00\x00'], [b'\x04\x05'])
    >>> encoder.columns(next_rows, 1, encoder.observation_blocks)
    {'observation': array([[4, 5]], dtype=uint8)}
    """

    def __init__(self, schema: schema_lib.Schema) -> None:
        self.schema = schema
        self.blocks = schema_lib.blocks_of(schema)
        """The paths of the fields of each block."""
        self.observation_blocks = tuple(paths for paths in self.blocks if paths[0] in schema.observation_paths)
        """Those of an observation: they come first."""
        self._num_blocks = len(self.blocks)
        fields = list(schema.fields.items())
        num_seen = len(schema.observation_paths)
        seen, others = fields[:num_seen], fields[num_seen:]
        places = {path: place for place, path in enumerate(schema.fields)}
        blocks = [[places[path] for path in paths] for paths in self.blocks]
        # The fields of the observation come first; after a row they are repeated for the next observation.
        seen_blocks, other_blocks = blocks[: len(self.observation_blocks)], blocks[len(self.observation_blocks) :]
        next_blocks = _shifted(seen_blocks, len(fields))
        self._rows = _Layout(fields, blocks)
        self._rows_and_next = _Layout(fields + seen, blocks + next_blocks)
        self._observations = _Layout(seen, seen_blocks)
        self._others = _Layout(others, _shifted(other_blocks, -num_seen))
        self._dtypes = {
            paths: _record_dtype([fields[place] for place in block])
            for paths, block in zip(self.blocks, blocks, strict=True)
        }
        self._read_observation = _reader(schema.observation)
        self._read_action = _reader(schema.action)
        self._read_extras = _reader(schema.extras)
        self._has_extras = bool(schema.extras)
        self._encode_observation = _tree_encoder("observation", schema.observation, self._observations)
        self._encode_action = _tree_encoder("action", schema.action)
        self._encode_reward = _encoder("reward", schema.reward)
        self._encode_extras = _tree_encoder("extras", schema.extras)
        # If every part is a single field, each is its own block.
        self._fields = [_encoder(path, field) for path, field in fields] if list(schema.fields) == _PARTS else []

    def __reduce__(self) -> tuple[type["Encoder"], tuple[schema_lib.Schema]]:
        # The functions cannot be pickled, so they are created again.
        return Encoder, (self.schema,)

    def row(
        self, observation: Any, action: Any, reward: Any, next_observation: Any, extras: Mapping[str, Any]
    ) -> tuple[Row, Row | None]:
        """Return the bytes of the row of one step, and of the observation after it; None if that is None.

        Raises:
            SchemaError: A value does not fit its field, is missing, or has none.
            ArgumentError: A key is not a non-empty string without "/", or a reward is not finite.
        """
        try:
            if self._fields and not extras:
                encode_observation, encode_action, encode_reward = self._fields
                row = [encode_observation(observation), encode_action(action), encode_reward(reward)]
                return row, None if next_observation is None else [encode_observation(next_observation)]
            others = [*self._encode_action(action), self._encode_reward(reward)]
            if extras or self._has_extras:
                others += self._encode_extras(extras)
            if self._others.is_shared:
                others = self._others.joined(others)
            row = [*self._encode_observation(observation), *others]
            return row, None if next_observation is None else self._encode_observation(next_observation)
        except REFUSALS:
            pass
        return self._read_by_schema((), observation, action, reward, next_observation, extras)

    def rows(
        self,
        count: int,
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any,
        extras: Mapping[str, Any],
    ) -> tuple[Row, Row | None]:
        """Encode several steps as `row` does; every value has a leading axis of steps."""
        try:
            leaves = (*self._read_observation(observation), *self._read_action(action), reward)
            if extras or self._has_extras:
                leaves = (*leaves, *self._read_extras(extras))
            if next_observation is None:
                return self._rows.encoded(leaves, count), None
            leaves = (*leaves, *self._read_observation(next_observation))
            made = self._rows_and_next.encoded(leaves, count)
            return made[: self._num_blocks], made[self._num_blocks :]
        except REFUSALS:
            pass
        return self._read_by_schema((count,), observation, action, reward, next_observation, extras)

    def _read_by_schema(
        self,
        lead: tuple[int, ...],
        observation: Any,
        action: Any,
        reward: Any,
        next_observation: Any,
        extras: Mapping[str, Any],
    ) -> tuple[Row, Row | None]:
        """Encode values [lead..., ...] in any mapping, or raise an error that says what is wrong."""
        columns = self.schema.rows(observation, action, reward, extras, lead)
        following = {}
        if next_observation is not None:
            following = self.schema.observation_rows("next_observation", next_observation, lead)
        count = lead[0] if lead else 1
        rows, next_rows = (
            [column.reshape(count, *column.shape[len(lead) :]) for column in part.values()]
            for part in (columns, following)
        )
        return self._rows.encoded(rows, count), self._observations.encoded(next_rows, count) if next_rows else None

    def run(
        self, count: int, observations: Any, actions: Any, rewards: Any, extras: Mapping[str, Any]
    ) -> tuple[Row, Row]:
        """Return the bytes of the rows of T consecutive steps, and of the last of their T + 1 observations.

        Otherwise like `row`.
        """
        try:
            seen = self._observations.columns(self._read_observation(observations), count + 1)
            before = [column[:-1] for column in seen]
            leaves = (*before, *self._read_action(actions), rewards, *self._read_extras(extras))
            return self._rows.encoded(leaves, count), self._observations.encoded([column[-1:] for column in seen], 1)
        except REFUSALS:
            pass
        columns = self.schema.observation_rows("observations", observations, (count + 1,))
        tree = trees.nested("observation", {path: column[:-1] for path, column in columns.items()})
        rows = self.schema.rows(tree, actions, rewards, extras, (count,))
        last = [column[-1:] for column in columns.values()]
        return self._rows.encoded(rows.values(), count), self._observations.encoded(last, 1)

    def rows_of(self, columns: Mapping[str, arrays.Array], count: int, blocks: Blocks | None = None) -> Row:
        """Return the bytes of each block, from columns [count, ...]; the inverse of `columns`.

        Raises:
            ArgumentError: A reward is not finite.
        """
        layout = self._rows if blocks is None else self._observations
        paths = self.schema.fields if blocks is None else self.schema.observation_paths
        return layout.encoded([columns[path] for path in paths], count)

    def columns(self, rows: Row, count: int, blocks: Blocks | None = None) -> dict[str, arrays.Array]:
        """Return the read-only columns [count, ...] of `count` rows.

        Args:
            rows: The bytes of each block.
            count: How many rows.
            blocks: The blocks in `rows`: all by default, or `observation_blocks`.
        """
        columns: dict[str, arrays.Array] = {}
        for paths, content in zip(self.blocks if blocks is None else blocks, rows, strict=True):
            records = np.ndarray(count, self._dtypes[paths], content)
            columns |= {path: records[path] for path in paths}
        return columns


class _Layout:
    """Encodes the values of some fields as the bytes of blocks.

    Args:
        fields: The fields, with their paths.
        blocks: The places of the fields of each block among them.
    """

    def __init__(self, fields: Sequence[_PathAndField], blocks: Sequence[Sequence[int]]) -> None:
        self._paths = [path for path, _ in fields]
        self._shapes = functools.lru_cache(maxsize=4)(lambda count: [(count, *field.shape) for _, field in fields])
        self._dtypes = [field.dtype for _, field in fields]
        self._are_rewards = [path == "reward" for path in self._paths]
        self._reward = self._paths.index("reward") if "reward" in self._paths else None
        shared = [block for block in blocks if len(block) > 1]
        self._shared = [
            ([self._paths[place] for place in block], _record_dtype([fields[place] for place in block]), _getter(block))
            for block in shared
        ]
        self._is_one_block = len(blocks) == 1
        self.is_shared = bool(shared)
        """Whether fields lie side by side."""
        # Blocks of several fields come after the single fields.
        self._in_order = _getter(
            [len(fields) + shared.index(block) if block in shared else block[0] for block in blocks]
        )

    def joined(self, row: list[bytes]) -> list[bytes]:
        """Return the bytes of each block of one row, given those of each field."""
        if self._is_one_block:
            return [b"".join(row)]
        for _, _, get in self._shared:
            row.append(b"".join(get(row)))
        return [*self._in_order(row)]

    def encoded(self, values: Iterable[Any], count: int) -> Row:
        """Return the bytes of each block of `count` rows, of values [count, ...].

        Raises:
            SchemaError: A value does not fit its field.
            ArgumentError: A reward is not finite.
        """
        columns = self.columns(values, count)
        for paths, dtype, get in self._shared:
            records = np.empty(count, dtype)
            for path, column in zip(paths, get(columns), strict=True):
                records[path] = column
            columns.append(records)
        return [*map(np.ndarray.tobytes, self._in_order(columns) if self.is_shared else columns)]

    def columns(self, values: Iterable[Any], count: int) -> list[arrays.Array]:
        """Return such values as columns [count, ...], possibly without a copy; otherwise like `encoded`."""
        shapes = self._shapes(count)
        columns = [*map(casting.cast_exact, self._paths, values, shapes, self._dtypes, self._are_rewards)]
        if self._reward is not None:
            schema_lib.Schema.finite_rewards(columns[self._reward])
        return columns


def _record_dtype(fields: Iterable[_PathAndField]) -> np.dtype[Any]:
    """Return the dtype of the records of a block: its fields side by side, without gaps."""
    return np.dtype([(path, field.dtype, field.shape) for path, field in fields])


def _shifted(blocks: Sequence[Sequence[int]], distance: int) -> list[list[int]]:
    """Return blocks with field positions shifted by `distance`."""
    return [[place + distance for place in block] for block in blocks]


def _getter(places: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that picks the items at some places of a list, as a sequence even for one item."""
    return operator.itemgetter(*places) if len(places) > 1 else operator.itemgetter(slice(places[0], places[0] + 1))


def _reader(tree: schema_lib.Tree) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that reads the leaves of a value in the order of their paths, or raises LookupError.

    It reads dicts with exactly the keys of the tree; leaves are checked by the cast.
    """
    if isinstance(tree, schema_lib.Field):
        return lambda value: (value,)
    keys, branches = tuple(tree), [_reader(branch) for branch in tree.values()]
    count = len(keys)
    take: Callable[[Any], tuple[Any, ...]]
    take = operator.itemgetter(*keys) if count > 1 else lambda value: tuple(map(value.__getitem__, keys))

    def read(value: Any) -> tuple[Any, ...]:
        if type(value) is not dict or len(value) != count:
            raise LookupError
        return take(value)

    def read_branches(value: Any) -> tuple[Any, ...]:
        return tuple(leaf for branch, part in zip(branches, read(value), strict=True) for leaf in branch(part))

    return read if all(isinstance(branch, schema_lib.Field) for branch in tree.values()) else read_branches


def _tree_encoder(path: str, tree: schema_lib.Tree, layout: _Layout | None = None) -> Callable[[Any], list[bytes]]:
    """Return a function that encodes each leaf of a value, or each block of a layout."""
    if isinstance(tree, schema_lib.Field):
        encode = _encoder(path, tree)
        return lambda value: [encode(value)]
    read = _reader(tree)
    encoders = [_encoder(leaf, field) for leaf, field in trees.flat(path, tree).items()] if tree else []
    if layout is None or not layout.is_shared:
        return lambda value: [encode(leaf) for encode, leaf in zip(encoders, read(value), strict=True)]
    return lambda value: layout.joined([encode(leaf) for encode, leaf in zip(encoders, read(value), strict=True)])


def _encoder(path: str, field: schema_lib.Field) -> Callable[[Any], bytes]:
    """Return a function that encodes one value of that field, or raises ArgumentError.

    Python numbers and flat lists of them are packed without numpy, which is several times faster.
    """
    shape, dtype, is_reward = field.shape, field.dtype, path == "reward"

    def encode(value: Any) -> bytes:
        if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != shape:
            value = casting.cast_exact(path, value, shape, dtype, is_reward)
        if is_reward:
            schema_lib.Schema.finite_rewards(value)
        content: bytes = value.tobytes()
        return content

    code = CODES.get(dtype.str[1:])
    if len(shape) > 1 or code is None or not dtype.isnative:
        return encode
    pack = struct.Struct(f"={math.prod(shape)}{code}").pack
    of_python = {"f": float, "b": bool}.get(dtype.kind, int)
    kinds = {of_python, dtype.type, *([np.float64] if is_reward else [])}

    def encode_number(value: Any) -> bytes:
        if type(value) not in kinds:
            return encode(value)
        try:
            return pack(value)
        except (struct.error, OverflowError):
            return encode(value)

    def encode_reward(value: Any) -> bytes:
        kind = type(value)
        is_exact = kind in kinds or (kind is int and -_LARGEST_EXACT <= value <= _LARGEST_EXACT)
        if not is_exact or not math.isfinite(value):
            return encode(value)
        try:
            return pack(value)
        except OverflowError:
            return encode(value)

    def encode_list(value: Any) -> bytes:
        kind = type(value)
        if kind is np.ndarray and value.dtype is dtype and value.shape == shape:
            content: bytes = value.tobytes()
            return content
        if (kind is not list and kind is not tuple) or {*map(type, value)} != {of_python}:
            return encode(value)
        try:
            return pack(*value)
        except (struct.error, OverflowError):
            return encode(value)

    if is_reward:
        return encode_reward
    return encode_list if shape else encode_number


def one_step(
    encoder: Encoder | None,
    num_streams: int,
    stream: Any,
    observation: Any,
    action: Any,
    reward: Any,
    next_observation: Any,
    terminated: Any,
    truncated: Any,
    extras: Mapping[str, Any],
) -> Steps:
    """Return the step that the arguments of `add` describe; infers the schema if there is none.

    Args:
        encoder: The encoder; None while there is no schema.
        num_streams: Number of streams.
        stream: The stream of the step.
        observation: The observation.
        action: The action.
        reward: The reward.
        next_observation: The next observation, or None.
        terminated: Whether the episode terminated with it.
        truncated: Whether it was truncated with it.
        extras: The extras.

    Raises:
        SchemaError: A value does not fit its field.
        ArgumentError: Another argument is invalid.
    """
    if stream is None and num_streams == 1:
        stream = 0
    elif type(stream) is not int or not 0 <= stream < num_streams:
        stream = stream_number(num_streams, stream)
    event = 0 if terminated is False and truncated is False else _event(terminated, truncated)
    if next_observation is None and event == TRUNCATED:
        raise errors.ArgumentError("next_observation must be given with a truncated step, got None")
    if encoder is None:
        encoder = Encoder(schema_lib.Schema.from_example(observation, action, reward, extras=extras))
    rows, next_rows = encoder.row(observation, action, reward, next_observation, extras)
    return Steps(encoder, (stream,), (event,), rows, next_rows, False)


def step_of_each(
    encoder: Encoder | None,
    num_streams: int,
    streams: Any,
    observation: Any,
    action: Any,
    reward: Any,
    next_observation: Any,
    terminated: Any,
    truncated: Any,
    extras: Mapping[str, Any],
) -> Steps:
    """Return the steps that the arguments of `extend` describe; otherwise like `one_step`.

    Args:
        encoder: The encoder; None while there is no schema.
        num_streams: Number of streams.
        streams: The distinct streams of the steps [k]; None for all, in order.
        observation: The observations [k, ...].
        action: The actions [k, ...].
        reward: The rewards [k].
        next_observation: The next observations [k, ...], or None.
        terminated: Whether the episode terminated with the step [k]; None for all False.
        truncated: Whether it was truncated with it [k]; None for all False.
        extras: The extras [k, ...].
    """
    if "stream" in extras:
        raise errors.ArgumentError(f"extend takes streams, got stream={validation.short_repr(extras['stream'])}")
    if streams is None:
        count, numbers = num_streams, _all_streams(num_streams)
    else:
        numbers = _checked_streams(num_streams, streams)
        count = len(numbers)
    terminates = None if terminated is None else validation.flags("terminated", terminated, count)
    truncates = None if truncated is None else validation.flags("truncated", truncated, count)
    events = np.zeros(count, np.uint8)
    if truncates is not None:
        events[truncates] = TRUNCATED
    if terminates is not None:
        events[terminates] = TERMINATED
    if next_observation is None and TRUNCATED in events.tobytes():
        raise errors.ArgumentError("next_observation must be given with a truncated step, got None")
    num_rewards = validation.leading_length("reward", reward)
    if num_rewards != count:
        rule = f"extend must have a step of each of {count} streams, got {num_rewards} rewards"
        remedy = f"make the buffer with streams={num_rewards}, or add consecutive steps with add_steps"
        raise errors.ArgumentError(f"{rule}: {remedy}" if num_streams == 1 and num_rewards else rule)
    if encoder is None:
        schema = schema_lib.Schema.from_example(observation, action, reward, extras=extras, num_leading=1)
        encoder = Encoder(schema)
    rows, next_rows = encoder.rows(count, observation, action, reward, next_observation, extras)
    return Steps(encoder, numbers, events, rows, next_rows, False)


def consecutive_steps(
    encoder: Encoder | None,
    num_streams: int,
    capacity: int,
    stream: Any,
    observations: Any,
    actions: Any,
    rewards: Any,
    terminated: Any,
    truncated: Any,
    extras: Mapping[str, Any],
) -> Steps:
    """Return the steps that the arguments of `add_steps` describe; otherwise like `one_step`.

    Args:
        encoder: The encoder; None while there is no schema.
        num_streams: Number of streams.
        capacity: Maximum number of steps.
        stream: The stream of the steps.
        observations: The observations, and the one after the last step [T + 1, ...].
        actions: The actions [T, ...].
        rewards: The rewards [T].
        terminated: Whether the episode terminated with the last step.
        truncated: Whether it was truncated with it.
        extras: The extras [T, ...].
    """
    stream = stream_number(num_streams, stream)
    event = _event(terminated, truncated)
    return _run("add_steps", encoder, capacity, stream, observations, actions, rewards, 0, event, extras)


def whole_episode(
    encoder: Encoder | None,
    num_streams: int,
    capacity: int,
    stream: Any,
    observations: Any,
    actions: Any,
    rewards: Any,
    terminated: Any,
    truncated: Any,
    extras: Mapping[str, Any],
) -> Steps:
    """Return the steps that the arguments of `add_episode` describe; otherwise like `consecutive_steps`."""
    stream = stream_number(num_streams, stream)
    event = TERMINATED if validation.is_terminated(terminated, truncated) else TRUNCATED
    return _run("an episode", encoder, capacity, stream, observations, actions, rewards, CUT, event, extras)


def _run(
    name: str,
    encoder: Encoder | None,
    capacity: int,
    stream: int,
    observations: Any,
    actions: Any,
    rewards: Any,
    first_event: int,
    last_event: int,
    extras: Mapping[str, Any],
) -> Steps:
    """Return consecutive steps of one stream, with the given events at the first and the last."""
    count = validation.leading_length("rewards", rewards)
    if not 1 <= count <= capacity:
        raise errors.ArgumentError(f"{name} must have 1 to capacity = {capacity} steps, got {count}")
    if encoder is None:
        schema = schema_lib.Schema.from_example(observations, actions, rewards, extras=extras, num_leading=1)
        encoder = Encoder(schema)
    rows, next_rows = encoder.run(count, observations, actions, rewards, extras)
    events = np.zeros(count, np.uint8)
    events[-1] = last_event
    events[0] |= first_event
    return Steps(encoder, np.full(count, stream, np.int64), events, rows, next_rows, True)


def _event(terminated: Any, truncated: Any) -> int:
    """Return the event of a step with those flags; termination takes precedence."""
    if terminated is not False and terminated is not True:
        terminated = validation.flag("terminated", terminated)
    if truncated is not False and truncated is not True:
        truncated = validation.flag("truncated", truncated)
    if terminated:
        return TERMINATED
    return TRUNCATED if truncated else 0


def stream_number(num_streams: int, stream: Any) -> int:
    """Return the checked number of a stream; None is allowed if there is only one."""
    if stream is None:
        if num_streams > 1:
            raise errors.ArgumentError(f"stream must be given where there are several, got none of {num_streams}")
        return 0
    number = validation.non_negative_int("stream", stream)
    if number >= num_streams:
        raise errors.ArgumentError(f"stream must be below streams = {num_streams}, got {number}")
    return number


@functools.lru_cache(maxsize=16)
def _all_streams(num_streams: int) -> arrays.Ints:
    """Return the numbers of all streams, read-only."""
    return np.arange(num_streams, dtype=np.int64)


def _checked_streams(num_streams: int, streams: Any) -> arrays.Ints:
    """Return checked, distinct numbers of streams [k], as a copy."""
    numbers = np.array(validation.integers("streams", streams))
    listed = numbers.tolist()
    if listed and not 0 <= min(listed) <= max(listed) < num_streams:
        wrong = next(number for number in listed if not 0 <= number < num_streams)
        raise errors.ArgumentError(f"streams must be 0 to {num_streams - 1}, got {wrong}")
    if len({*listed}) < len(listed):
        raise errors.ArgumentError(f"streams must be distinct, got {validation.short_repr(listed)}")
    return numbers
