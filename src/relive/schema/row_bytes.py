"""The bytes of a single row: what `add` writes, checked as a schema checks it.

    blocks       ("observation",)   ("action", "extras/logp")   ("reward",)
    row          16 bytes           8 + 4 bytes                 8 bytes

A value that is of its field's type already is a few method calls away from its bytes; what has to be cast, or refused,
goes the long way through `fitting`. Measured by `relive bench --workload add`.
"""

from collections.abc import Callable, Mapping, Sequence
import struct
from typing import Any, TypeAlias, cast

import numpy as np

from relive import errors
from relive.common import arrays
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
    >>> from relive.schema import row_bytes
    >>> schema = relive.Schema(relive.Field(2, "uint8"), relive.Field((), "int16"))
    >>> row_bytes.RowBytes(schema).row(np.array([1, 2], np.uint8), 3, 0.0, {})
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
        """Answers the bytes of each block of a row.

        Raises:
            SchemaError: A value does not fit its field, is missing, or has none.
            ArgumentError: A key is not a non-empty string without "/".
        """
        if not self._are_fields or len(extras) != len(self._extras):
            return self._joined(self.blocks, self.schema.rows(observation, action, reward, extras, ()))
        of_observation, of_action, of_reward = self._encoders
        values = [of_observation(observation), of_action(action), of_reward(reward)]
        for name, encode in self._extras:
            if name not in extras:
                return self._joined(self.blocks, self.schema.rows(observation, action, reward, extras, ()))
            values.append(encode(extras[name]))
        if self._are_blocks:
            return values
        return [b"".join([values[position] for position in positions]) for positions in self._positions]

    def observation(self, name: str, value: Any) -> Row:
        """Answers the bytes of each block of an observation.

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
            return [casting.fit(name, value, shape, dtype).tobytes()]
        return self._joined(self.observation_blocks, self.schema.observation_rows(name, value, ()))

    def _joined(self, blocks: Sequence[Sequence[str]], rows: Mapping[str, arrays.Array]) -> Row:
        """Answers the bytes of each block of the columns."""
        return [b"".join([rows[path].tobytes() for path in paths]) for paths in blocks]

    def of_round(self, count: int, observation: Any, action: Any, reward: Any, extras: Mapping[str, Any]) -> Row | None:
        """Answers the bytes of each block of `count` rows, given as arrays [count, ...]; None if that fails."""
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
        """Answers the bytes of each block of `count` observations [count, ...]; None if that fails."""
        column = self._column(0, count, observation) if self._are_blocks else None
        return None if column is None else [column]

    def _column(self, position: int, count: int, value: Any) -> bytes | None:
        """Answers the bytes of a field of `count` rows; None if they do not fit."""
        shape, dtype = self._types[position]
        if type(value) is not np.ndarray or value.dtype is not dtype or value.shape != (count, *shape):
            try:
                value = casting.fit("", value, (count, *shape), dtype, position == _REWARD)
            except errors.SchemaError:
                return None
        return cast("bytes", value.tobytes())

    def columns(self, row: Row, count: int) -> dict[str, arrays.Array]:
        """Answers the columns [count, ...] of so many rows; they cannot be written to."""
        columns: dict[str, arrays.Array] = {}
        for paths, values in zip(self.blocks, row, strict=True):
            fields = [(path, self.schema.fields[path].dtype, self.schema.fields[path].shape) for path in paths]
            block = np.ndarray(count, np.dtype(fields), values)
            columns |= {path: block[path] for path in paths}
        return columns


def _encoder(path: str, field: schema_lib.Field, is_reward: bool) -> _Encoder:
    """Answers what makes the bytes of a value of that field, or raises SchemaError."""
    shape, dtype = field.shape, field.dtype

    def encode(value: Any) -> bytes:
        if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape:
            return value.tobytes()
        return casting.fit(path, value, shape, dtype, is_reward).tobytes()

    code = _CODES.get(dtype.str[1:])
    if shape or code is None or not dtype.isnative:
        return encode
    pack = struct.Struct("=" + code).pack
    own, of_python = dtype.type, {"f": float, "b": bool}.get(dtype.kind, int)

    def encode_number(value: Any) -> bytes:
        kind = type(value)
        if kind is own:
            return pack(value)
        may_round = is_reward and (kind is np.float64 or (kind is int and -_LARGEST_EXACT <= value <= _LARGEST_EXACT))
        if kind is of_python or may_round:
            try:
                return pack(value)
            except (struct.error, OverflowError):
                return encode(value)
        return encode(value)

    return encode_number
