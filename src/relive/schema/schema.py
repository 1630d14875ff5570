"""Schema: the shape and dtype of every field of a row, as trees for the observation, the action and the extras.

    Schema(observation={"image": I, "state": S}, action=A, extras={"logp": L})

has the columns observation/image, observation/state, action, reward and extras/logp.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import difflib
import math
import numbers
import operator
import re
import types
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.common import words
from relive.persistence import registry
from relive.schema import casting

if TYPE_CHECKING:
    from relive.persistence import dtypes
    from relive.persistence import npy
else:
    dtypes = imports.lazy_module("relive.persistence.dtypes")
    npy = imports.lazy_module("relive.persistence.npy")

RESERVED = frozenset(
    ("observation", "action", "reward", "next_observation", "terminated", "truncated", "stream", "streams")
)
"""Names that an extra cannot have: `add` has arguments of that name."""


def _names(extras: object, kind: str) -> tuple[Any, ...]:
    """Return the names of extras; None has none."""
    if not isinstance(extras, Mapping | None):
        raise errors.ArgumentTypeError(
            f"extras must be a mapping from names to {kind}, got {validation.short_repr(extras)}"
        )
    return tuple(extras or ())


def _shape(shape: object) -> tuple[int, ...]:
    axes: tuple[Any, ...] = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    if not all(isinstance(axis, numbers.Integral) and not isinstance(axis, bool) for axis in axes):
        raise errors.ArgumentTypeError(
            f"shape must be an integer or a sequence of them, got {validation.short_repr(shape)}"
        )
    if min(axes, default=0) < 0:
        raise errors.ArgumentError(f"shape must have no negative length, got {validation.short_repr(shape)}")
    return tuple(map(operator.index, axes))


def _dtype(dtype: Any) -> np.dtype[Any]:
    """Return a dtype of fixed size that holds no Python objects."""
    rule = f"dtype must be one that numpy accepts, got {validation.short_repr(dtype)}"
    if dtype is None:
        raise errors.ArgumentTypeError(rule)
    try:
        known: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise errors.ArgumentTypeError(rule) from error
    if known.hasobject:
        raise errors.ArgumentError(f"dtype must hold no Python objects, got {known}")
    if known.subdtype is not None:
        raise errors.ArgumentError(f"dtype must have no shape of its own, got {known}")
    if _is_registered(known):
        raise errors.ArgumentError(f"dtype must be one of numpy's own, which files hold, got {known}")
    if known.itemsize == 0:
        raise errors.ArgumentError(f"dtype must have a fixed length, got {known.str}")
    return known


def _is_registered(dtype: np.dtype[Any]) -> bool:
    """Return whether another library registered a dtype, or a part of it, such as the bfloat16 of JAX."""
    parts = (dtype.base.fields or {}).values()
    return dtype.base.isbuiltin == 2 or any(_is_registered(part[0]) for part in parts)


@dataclasses.dataclass(frozen=True)
class Field:
    """The shape and dtype of one value.

    >>> import relive
    >>> relive.Field((84, 84), "uint8")
    Field((84, 84), 'uint8')
    >>> relive.Field(3, float).nbytes
    24
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __init__(self, shape: int | Sequence[int], dtype: npt.DTypeLike) -> None:
        """Create a field from a shape, or the length of a vector, and anything numpy accepts as a dtype.

        Raises:
            ArgumentTypeError: `shape` is not made of integers, or numpy has no such dtype.
            ArgumentError: `shape` is negative somewhere, or `dtype` holds Python objects or has no fixed size.
        """
        object.__setattr__(self, "shape", _shape(shape))
        object.__setattr__(self, "dtype", _dtype(dtype))

    @property
    def nbytes(self) -> int:
        """Number of bytes of one value."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __repr__(self) -> str:
        # A structured dtype is shown as the list or dict that makes it, any other as the string that does.
        return f"Field({self.shape}, {self.dtype if self.dtype.fields else repr(str(self.dtype))})"


Tree: TypeAlias = Field | Mapping[str, Any]
"""A field, or fields and trees by key."""

_REWARD = Field((), np.float64)
_PRIORITY = 18
"""About how many bytes a priority takes: the number, its weight, an eighth of each level of sums, and what changed."""
_CHECKED = {"fields", "check_finite"}
"""What the description of a schema has that checks all values."""
_DEEPEST = 64
"""So many levels the mappings of an observation have at most."""


class Schema(registry.Described):
    """The fields of a row, by path.

    >>> import relive
    >>> schema = relive.Schema({"image": relive.Field((84, 84), "uint8")}, relive.Field((), int))
    >>> list(schema.fields)
    ['observation/image', 'action', 'reward']
    >>> schema.observation
    {'image': Field((84, 84), 'uint8')}
    """

    def __init__(
        self,
        observation: Tree,
        action: Tree,
        *,
        reward: Field = _REWARD,
        extras: Mapping[str, Tree] | None = None,
        check_finite: bool = False,
    ) -> None:
        """Create a schema from a field, or a tree of fields, for each part.

        Infinite rewards and NaN are refused. With `check_finite`, so is a step with one in a field of floats or complex
        numbers, by a SchemaError that names the field and the place.

        Raises:
            ArgumentTypeError: Something in a tree is not a Field, or `check_finite` is not a bool.
            ArgumentError: A tree is empty, a key is not a non-empty string without "/", the reward is not a float of
                shape (), or an extra has the name of an argument of `add`.
        """
        self._check_finite = validation.boolean("check_finite", check_finite)
        for name in _names(extras, "Fields"):
            if name in RESERVED:
                raise errors.ArgumentError(f"an extra must not be named like an argument of add, got {name!r}")
        rewards = _group("reward", reward)
        self._fields = _group("observation", observation) | _group("action", action) | rewards
        if extras:
            self._fields |= _group("extras", extras)
        if "reward" not in rewards or reward.shape != () or reward.dtype.kind != "f":
            raise errors.ArgumentError(f"reward must be a Field of shape () and a float dtype, got {reward}")

    @classmethod
    def from_example(
        cls,
        observation: object,
        action: object,
        reward: object = 0.0,
        *,
        extras: Mapping[str, Any] | None = None,
        num_leading: int = 0,
        check_finite: bool = False,
    ) -> "Schema":
        """Return the schema inferred from the values of one row.

        Python floats become float64 and ints int64. The reward becomes float64 unless it is a float of another dtype.

        Args:
            observation: An array-like, or a tree of them.
            action: The same.
            reward: A real number.
            extras: More arrays or trees of arrays, by name.
            num_leading: Number of leading axes that are not part of the row, such as the axis of streams.
            check_finite: As for a Schema; the example itself is not checked.

        Raises:
            SchemaError: A value is not an array, such as a Python object, or has fewer axes than `num_leading`, or the
                reward is not one real number; or an extra has a name that means something else in another library, such
                as `done`.
            ArgumentError: A key in a tree or the name of an extra is not allowed.

        >>> import numpy as np
        >>> import relive
        >>> relive.Schema.from_example(np.zeros(4, np.float32), 1)
        Schema(observation=Field((4,), 'float32'), action=Field((), 'int64'), reward=Field((), 'float64'), extras={})
        """
        num_leading = validation.non_negative_int("num_leading", num_leading)
        for name in _names(extras, "values"):
            if meant := suggestion(name):
                raise errors.SchemaError(f"unknown {label(f'extras/{name}')}: say {meant}")
        reward_field = _example("reward", reward, num_leading)
        if reward_field.dtype.kind not in "biuf":
            raise errors.SchemaError(f"reward must be a real number, got {validation.short_repr(reward)}")
        if reward_field.shape != ():
            raise casting.wrong_shape("reward", (), reward_field.shape)

        def tree(root: str, value: object) -> Any:
            leaves = trees.flat(root, value)
            return trees.nested(root, {path: _example(path, leaf, num_leading) for path, leaf in leaves.items()})

        return cls(
            tree("observation", observation),
            tree("action", action),
            reward=reward_field if reward_field.dtype.kind == "f" else _REWARD,
            extras=tree("extras", extras) if extras else None,
            check_finite=check_finite,
        )

    @property
    def fields(self) -> Mapping[str, Field]:
        """Every field by path: those of the observation, of the action, the reward, those of the extras."""
        return types.MappingProxyType(self._fields)

    @property
    def observation(self) -> Tree:
        """The field of the observation, or the tree of its fields."""
        return trees.nested("observation", self._fields)

    @property
    def action(self) -> Tree:
        """The field of the action, or the tree of its fields."""
        return trees.nested("action", self._fields)

    @property
    def reward(self) -> Field:
        """The field of the reward, of shape () and a float dtype."""
        return self._fields["reward"]

    @property
    def extras(self) -> Mapping[str, Tree]:
        """The fields of the extras by name, or their trees."""
        return cast("dict[str, Tree]", trees.nested("extras", self._fields))

    @property
    def check_finite(self) -> bool:
        """Whether steps with infinite values or NaN are refused."""
        return self._check_finite

    @property
    def nbytes(self) -> int:
        """Number of bytes of one row."""
        return sum(field.nbytes for field in self._fields.values())

    def nbytes_for(self, capacity: int, *, prioritized: bool = False) -> int:
        """Return the number of bytes that the rows of a buffer of `capacity` steps take, allocated at once.

        A buffer keeps some 20 bytes a step besides, and 80 and an observation for each episode.

        Args:
            capacity: Maximum number of stored steps.
            prioritized: Whether to count priorities too, with the tree of their sums.

        Raises:
            ArgumentError: `capacity` is not an integer of at least 1, or `prioritized` is not a bool.

        >>> import relive
        >>> schema = relive.Schema(relive.Field((84, 84), "uint8"), relive.Field((), int))
        >>> f"{schema.nbytes_for(1_000_000) / 1e9:.1f} GB"
        '7.1 GB'
        """
        of_priorities = _PRIORITY if validation.boolean("prioritized", prioritized) else 0
        return validation.positive_int("capacity", capacity) * (self.nbytes + of_priorities)

    def _description(self) -> Any:
        """Return the fields as JSON values: a path, a dtype and a shape each; and beside them what is checked."""
        fields = [[path, dtypes.described(field.dtype), list(field.shape)] for path, field in self._fields.items()]
        return {"fields": fields, "check_finite": True} if self._check_finite else fields

    @classmethod
    def _from_description(cls, value: Any) -> Self:
        """Return the schema with that description, which is untrusted.

        Raises:
            CheckpointError: The description is invalid.
        """
        fields: dict[str, Field] = {}
        rule = "schema must be a list of a path, a dtype and a shape for each field"
        check_finite = isinstance(value, dict) and value.keys() == _CHECKED and value["check_finite"] is True
        if check_finite:
            value = value["fields"]
        for row in value if isinstance(value, list) else [value]:
            match row:
                case [str(path), dtype, list(shape)] if path not in fields and path.count("/") <= _DEEPEST:
                    try:
                        fields[path] = Field(shape, npy.dtype_of(dtype))
                    except (errors.ArgumentError, errors.CheckpointError) as error:
                        raise errors.CheckpointError(f"schema has an invalid field: {error}") from error
                case _:
                    raise errors.CheckpointError(f"{rule}, got {validation.short_repr(row)}")
        try:
            # Any values: the schema raises if they are invalid.
            parts: list[Any] = [trees.nested(part, fields) for part in ("observation", "action", "reward", "extras")]
            schema = cls(*parts[:2], reward=parts[2], extras=parts[3] or None, check_finite=check_finite)
        except (errors.ArgumentError, TypeError, AttributeError, RecursionError) as error:
            raise errors.CheckpointError(f"schema cannot be made: {error}") from error
        if list(schema.fields.items()) != list(fields.items()):
            raise errors.CheckpointError(
                f"{rule}, of an observation, an action, a reward and extras alone, in their order"
            )
        return schema

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return self._fields == other._fields and self._check_finite == other._check_finite

    def __repr__(self) -> str:
        parts = {"observation": self.observation, "action": self.action, "reward": self.reward, "extras": self.extras}
        checks = ", check_finite=True" if self._check_finite else ""
        return f"Schema({', '.join(f'{name}={part}' for name, part in parts.items())}{checks})"


def paths_of(schema: Schema, part: str) -> tuple[str, ...]:
    """Return the paths of the fields of a part, such as "observation", in order."""
    return tuple(path for path in schema.fields if path.split("/")[0] == part)


def require(name: str, schema: object) -> None:
    """Raise ArgumentTypeError if `schema` is not a Schema."""
    if not isinstance(schema, Schema):
        raise errors.ArgumentTypeError(
            f"{name} must be an instance of Schema, got {validation.short_repr(schema)}{_remedy(schema)}"
        )


def _remedy(given: object) -> str:
    """Return what to do if a Gymnasium environment, its id or a space was given instead of a schema."""
    is_environment = hasattr(given, "action_space") or hasattr(given, "single_action_space")
    is_environment = is_environment or (isinstance(given, str) and re.search(r"-v\d+$", given) is not None)
    if is_environment or (hasattr(given, "sample") and hasattr(given, "contains")):
        return ": relive.integrations.gymnasium.from_env makes a schema of an environment"
    return ""


def _group(name: str, tree: object) -> dict[str, Field]:
    """Return the fields of one part by path, in the order of their paths."""
    fields = trees.flat(name, tree)
    for path, field in fields.items():
        if not isinstance(field, Field):
            raise errors.ArgumentTypeError(
                f"{path} must be a Field, got {validation.short_repr(field)}{_remedy(field)}"
            )
    return dict(sorted(fields.items()))


def suggestion(name: object) -> str:
    """Return what an undeclared extra should be called: relive's word, where it is another library's or mistyped."""
    if name in words.EXTRAS or name in RESERVED:
        return " or ".join(words.EXTRAS.get(str(name), ()))
    near = difflib.get_close_matches(str(name).lower(), ("terminated", "truncated", "next_observation"), 1, 0.9)
    return next(iter(near), "")


def label(path: str) -> str:
    """Return the name of the value at a path in errors."""
    return f"extra {path.removeprefix('extras/')!r}" if path.startswith("extras/") else path


def _example(path: str, value: object, num_leading: int) -> Field:
    """Return the field that `value` [leading..., shape...] fits."""
    array = casting.as_array(path, value)
    if array.ndim < num_leading:
        raise errors.SchemaError(f"{path} must have at least {num_leading} leading axes, got shape {array.shape}")
    if _is_registered(array.dtype):
        remedy = "cast it, as with .astype('float32')"
        raise errors.SchemaError(f"{path} must be of a dtype of numpy's own, got {array.dtype}: {remedy}")
    return Field(array.shape[num_leading:], array.dtype)
