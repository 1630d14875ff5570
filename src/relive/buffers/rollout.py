"""RolloutBuffer: steps in time order for on-policy learning, with generalised advantage estimation.

    add(o_t, a_t, r_t, value=V(o_t), ...)   t = 0, 1, ..., T - 1, at most max_steps
    arrays()                                observation, action, ...: each [T, ...]
    minibatches(batch_size, ...)            the same in random order, a few rows at a time
    advantages(gamma, lambda_, V(o_T))      advantages [T] and returns [T]
    clear()                                 the next rollout goes into the same arrays

With S parallel environments a reward is [S], every other shape has a leading S, and returns are [T, S, ...].
"""

from collections.abc import Iterator
import math
from typing import TYPE_CHECKING, Any, ClassVar, Never

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.common import words
from relive.persistence import checkpointable
from relive.persistence import dtypes
from relive.persistence import state
from relive.schema import casting
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import memory

if TYPE_CHECKING:
    from relive.persistence import npy
    from relive.persistence import settings
else:
    npy = imports.lazy_module("relive.persistence.npy")
    settings = imports.lazy_module("relive.persistence.settings")


_BOOL = np.dtype(np.bool_)
_LEAST_BYTES = 2
"""The bytes of a step in the two columns that any rollout has."""


class _NoValue(float):
    """The value of a step that was added without one: a class of its own, as no other 0.0 is meant."""


_NO_VALUE = _NoValue(0.0)


class RolloutBuffer(checkpointable.Checkpointable):
    """Stores one rollout of one environment or of several parallel ones, and computes its advantages.

    The first `add` fixes shapes and dtypes, and whether rewards are numbers or arrays [S] of S environments; the arrays
    are then allocated once. Values are copied in and out.

    Args:
        max_steps: Maximum number of steps in a rollout; a step of S environments counts once.

    Raises:
        ArgumentError: max_steps is not an integer of at least 1.

    >>> import relive
    >>> rollout = relive.RolloutBuffer(max_steps=3)
    >>> for t, value in enumerate([0.5, 0.25, 1.0]):
    ...     rollout.add([float(t)], action=t, reward=1.0, value=value, terminated=t == 1)
    >>> advantages, returns = rollout.advantages(gamma=0.5, lambda_=0.5, last_value=2.0)
    >>> advantages
    array([0.8125, 0.75  , 1.    ])
    >>> returns
    array([1.3125, 1.    , 2.    ])
    >>> rollout.arrays()["terminated"]
    array([False,  True, False])
    """

    _DRAWS: ClassVar[bool] = False

    def __init__(self, max_steps: int) -> None:
        self._max_steps = validation.positive_int("max_steps", max_steps)
        memory.check_room("max_steps", self._max_steps, _LEAST_BYTES)
        self._encoder: encoding.Encoder | None = None
        self._lead: tuple[int, ...] = ()  # [] or [S], the shape of a reward
        self._has_values = False
        self._columns: dict[str, arrays_lib.Array] = {}
        self._size = 0

    @property
    def capacity(self) -> int:
        """Maximum number of steps in a rollout."""
        return self._max_steps

    @property
    def is_full(self) -> bool:
        """Whether the rollout is full."""
        return self._size == self._max_steps

    def add(
        self,
        observation: Any,
        action: Any,
        reward: Any,
        value: npt.ArrayLike = _NO_VALUE,
        *others: Never,
        terminated: npt.ArrayLike = False,
        truncated: npt.ArrayLike = False,
        next_value: npt.ArrayLike | None = None,
        **extras: Any,
    ) -> None:
        """Append one step. With S environments, a single number or bool applies to all of them.

        Args:
            observation: o_t, an array or a tree of arrays: a mapping by name.
            action: a_t, the same.
            reward: r_t, a number; or an array [S], and then all other arguments have a leading axis S.
            value: V(o_t). A rollout in which none was ever given has no values: they are 0.
            others: None: the arguments below are given by name.
            terminated: Whether the task ended with this step: nothing is bootstrapped after it.
            truncated: Whether the episode was truncated after this step: next_value is bootstrapped.
            next_value: V of the final observation after a truncated step: required there in a rollout with values,
                otherwise ignored. Termination takes precedence over truncation.
            extras: Further arrays or trees of arrays, such as the log-probability of the action; the same names at
                every step.

        Raises:
            ArgumentError: The rollout is full, or next_value is missing.
            SchemaError: A value has another shape than in the first add, or does not fit its dtype; an extra is missing
                or unknown.
        """
        if others:
            raise words.too_many("add", type(self).add, 4 + len(others))
        if self.is_full:
            raise errors.ArgumentError(
                f"add found the rollout full with max_steps = {self._max_steps} steps: learn from it and clear it first"
            )
        encoder, lead = self._encoder, self._lead
        has_values = self._has_values or value is not _NO_VALUE
        if encoder is not None:
            dtype = self._columns["value"].dtype
        else:
            lead = casting.as_array("reward", reward).shape
            if len(lead) > 1:
                raise errors.SchemaError(f"reward must be a number or of shape [environments], got shape {list(lead)}")
            known = schema_lib.Schema.from_example(observation, action, reward, extras=extras, num_leading=len(lead))
            encoder = encoding.Encoder(known)
            given = casting.as_array("value", value).dtype
            dtype = given if given.kind == "f" else np.dtype(np.float64)
        rows = encoder.columns_of(observation, action, reward, extras, lead)
        rows["value"] = _spread("value", value, lead, dtype)
        rows["terminated"] = _spread("terminated", terminated, lead, _BOOL)
        rows["truncated"] = _spread("truncated", truncated, lead, _BOOL)
        if next_value is None:
            needed = np.argwhere(rows["truncated"] & ~rows["terminated"])
            if has_values and len(needed):
                where = f" at {needed[0].tolist()}" if lead else ""
                rule = "next_value must be given with a truncated step once a value was: V of its final observation"
                raise errors.ArgumentError(f"{rule}, got None{where}")
            next_value = 0.0
        rows["next_value"] = _spread("next_value", next_value, lead, dtype)
        if self._encoder is None:
            with memory.room_for("max_steps", self._max_steps, sum(row.nbytes for row in rows.values())):
                self._columns = {path: np.zeros((self._max_steps, *row.shape), row.dtype) for path, row in rows.items()}
            self._encoder, self._lead = encoder, lead
        for path, row in rows.items():
            self._columns[path][self._size] = row
        self._size, self._has_values = self._size + 1, has_values

    def arrays(self) -> dict[str, Any]:
        """Return the steps as fresh arrays [T, ...] by name, in time order.

        Returns:
            observation, action, reward, value, terminated, truncated, next_value, and the extras by their names. Trees
            are returned as nested dicts.

        Raises:
            NotReadyError: No step was added.
        """
        return _by_name({path: column.copy() for path, column in self._steps("arrays").items()})

    def minibatches(
        self, batch_size: int, *, seed: int | np.random.Generator | None = None, **columns: Any
    ) -> Iterator[dict[str, Any]]:
        """Return an iterator over the rollout in random order, each row once: one epoch.

        A row is a step of one environment: those of S environments are flattened to [T * S], time first.

        Args:
            batch_size: Number of rows of a minibatch, B; what is left is a smaller one at the end.
            seed: Seed or generator of the order.
            columns: Further arrays with a value for each row, such as advantages and returns, by name: [T, ...], or
                [T, S, ...] of S environments.

        Returns:
            An iterator of dicts as from `arrays` [B, ...], with `columns` under their names; all are fresh copies.

        Raises:
            ArgumentError: An argument is invalid, or one of `columns` has the name of an array of the rollout.
            SchemaError: One of `columns` has another shape.
            NotReadyError: No step was added.

        >>> import relive
        >>> rollout = relive.RolloutBuffer(max_steps=5)
        >>> for t in range(5):
        ...     rollout.add([float(t)], action=t, reward=1.0)
        >>> advantages, returns = rollout.advantages(gamma=1.0, lambda_=1.0)
        >>> for batch in rollout.minibatches(2, seed=0, returns=returns):
        ...     print(batch["action"], batch["returns"])
        [2 4] [3. 1.]
        [3 0] [2. 5.]
        [1] [4.]
        """
        size, rng = validation.batch_size("batch_size", batch_size), validation.generator("seed", seed)
        arrays, lead = self._steps("minibatches"), (self._size, *self._lead)
        known = _by_name(arrays)
        for name, column in columns.items():
            if name in known:
                raise errors.ArgumentError(f"columns must not be named like an array of the rollout, got {name!r}")
            array = casting.as_array(name, column)
            if array.shape[: len(lead)] != lead:
                raise errors.SchemaError(f"{name} must be of a shape that begins with {lead}, got {array.shape}")
            arrays[f"extras/{name}"] = array
        order = rng.permutation(math.prod(lead))
        shuffled = {
            path: column.reshape(len(order), *column.shape[len(lead) :]).take(order, axis=0)
            for path, column in arrays.items()
        }
        return (
            _by_name({path: column[start : start + size] for path, column in shuffled.items()})
            for start in range(0, len(order), size)
        )

    def advantages(
        self, gamma: float, lambda_: float, last_value: npt.ArrayLike = 0.0
    ) -> tuple[arrays_lib.Array, arrays_lib.Array]:
        """Return the advantages [T] and the returns [T], or [T, S] of S environments. O(T).

        Equation 16 of Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage
        Estimation", within each episode; the returns are the advantages plus the values. Computed in float64, and
        returned in the wider dtype of reward and value.

        Args:
            gamma: The discount factor, in (0, 1].
            lambda_: The GAE parameter, in [0, 1]: 0 gives one-step errors, 1 gives discounted returns minus values.
            last_value: V of the observation after the newest step, a number or [S]; used where the episode continues.

        Raises:
            ArgumentError: `gamma` or `lambda_` lies outside its range.
            SchemaError: last_value has another shape than a reward.
            NotReadyError: No step was added.
        """
        gamma = validation.discount("gamma", gamma)
        lambda_ = validation.finite_number("lambda_", lambda_)
        if not 0 <= lambda_ <= 1:
            raise errors.ArgumentError(f"lambda_ must be in [0, 1], got {lambda_}")
        columns = self._steps("advantages")
        reward, value = columns["reward"], columns["value"]
        dtype = np.result_type(reward, value)
        # From here on everything is at least float64, as last_value is.
        last = _spread("last_value", last_value, self._lead, np.result_type(dtype, np.float64))
        next_values = np.concatenate([value[1:], last[np.newaxis]])
        next_values = np.where(columns["truncated"], columns["next_value"], next_values)
        next_values = np.where(columns["terminated"], 0, next_values)
        td_errors = reward + gamma * next_values - value
        is_end = columns["terminated"] | columns["truncated"]
        advantages, carry = np.empty_like(td_errors), np.zeros_like(td_errors[0])
        for t in reversed(range(len(td_errors))):
            carry = td_errors[t] + gamma * lambda_ * np.where(is_end[t], 0, carry)
            advantages[t] = carry
        return advantages.astype(dtype), (advantages + value).astype(dtype)

    def clear(self) -> None:
        """Remove every step; shapes and dtypes stay as they are, and whether there are values."""
        self._size = 0

    def __len__(self) -> int:
        """Return the number of steps in the rollout, T."""
        return self._size

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._size} steps, max_steps={self._max_steps}>"

    def _state_dict(self, **options: Any) -> state.State:
        return {
            "schema": settings.encoded(None if self._encoder is None else self._encoder.schema),
            "environments": self._lead[0] if self._lead else None,
            "value_dtype": dtypes.described(self._columns["value"].dtype) if self._has_values else None,
            "size": self._size,
            "arrays": {f"rows/{path}": column[: self._size] for path, column in self._columns.items()},
        }

    def _load_state_dict(self, given: state.StateReader, **options: Any) -> None:
        known: schema_lib.Schema | None = settings.load(given, "schema")
        lead = () if given.value("environments") is None else (given.integer("environments"),)
        size = given.integer("size", 0, 0 if known is None else self._max_steps)
        described = given.value("value_dtype")
        dtype = np.dtype(np.float64) if described is None else npy.dtype_of(described)
        if dtype.kind != "f" or (known is None and described is not None):
            rule = "null before the first step" if known is None else "null or one of floats"
            raise given.refused("value_dtype", rule, described)
        columns: dict[str, arrays_lib.Array] = {}
        if known is not None:
            shapes = {path: ((*lead, *field.shape), field.dtype) for path, field in known.fields.items()}
            shapes |= {"value": (lead, dtype), "terminated": (lead, _BOOL), "truncated": (lead, _BOOL)}
            shapes["next_value"] = lead, dtype
            try:
                for path, (shape, kind) in shapes.items():
                    rows = given.column(f"rows/{path}", kind, (size, *shape))
                    columns[path] = column = np.zeros((self._max_steps, *shape), kind)
                    for start, stop in state.chunks(size, column[:size].nbytes):
                        column[start:stop] = rows.read(start, stop)
            except (MemoryError, ValueError) as error:
                raise errors.CheckpointError(f"there is no memory for the steps: {error}") from error
        self._encoder = None if known is None else encoding.Encoder(known)
        self._lead, self._has_values = lead, described is not None
        self._columns, self._size = columns, size

    def _steps(self, call: str) -> dict[str, arrays_lib.Array]:
        """Return the columns by path, each [T, ...], not copied."""
        if not self._size:
            raise errors.NotReadyError(f"{call} found no step: add one first")
        return {path: column[: self._size] for path, column in self._columns.items()}


def _by_name(columns: dict[str, arrays_lib.Array]) -> dict[str, Any]:
    """Return the arrays of some steps by name, trees as nested dicts, and extras beside them."""
    answer: dict[str, Any] = {
        name: trees.nested(name, columns)
        for name in ("observation", "action", "reward", "value", "terminated", "truncated", "next_value")
    }
    extras = trees.nested("extras", columns)
    assert isinstance(extras, dict)
    return answer | extras


def _spread(name: str, value: npt.ArrayLike, lead: tuple[int, ...], dtype: np.dtype[Any]) -> arrays_lib.Array:
    """Return `value` as an array of shape `lead`; a single number applies to all environments."""
    shape = lead if casting.as_array(name, value).ndim else ()
    return np.broadcast_to(casting.cast_exact(name, value, shape, dtype), lead)
