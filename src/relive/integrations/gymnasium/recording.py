"""The common base of the recorders: the target buffer, extras, frame stacks and infos."""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import functools
import operator
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import arrays
from relive.common import copies
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.integrations.gymnasium import spaces
from relive.persistence import checkpointable
from relive.schema import casting
from relive.schema import schema as schema_lib
from relive.waiting import rate_limiters
from relive.waiting import threads

with imports.optional_dependency("gymnasium"):
    import gymnasium

Buffer: TypeAlias = "column.ColumnReplayBuffer[Any] | threads.ThreadSafeReplayBuffer[Any]"


class Wrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A recorder of one environment. An environment recreated from its spec is not recorded."""

    spec: Any = property(operator.attrgetter("env.spec"), doc="The spec of the environment inside.")

    def __init__(self, env: "gymnasium.Env[Any, Any]") -> None:
        given: object = env
        if isinstance(given, gymnasium.vector.VectorEnv):
            raise errors.ArgumentTypeError("env must be one environment, got a vector environment: use VectorRecorder")
        require_env(env, gymnasium.Env)
        super().__init__(env)


def require_env(env: object, kind: type) -> None:
    """Raise ArgumentTypeError if `env` is not an instance of a class of environments."""
    if isinstance(env, checkpointable.Checkpointable | threads.ThreadSafeReplayBuffer):
        raise errors.ArgumentTypeError(f"env must be an environment, got {env!r}: the order is env, buffer")
    validation.require_instance("env", env, kind)


def held_back(limiter: rate_limiters.RateLimiter) -> errors.NotReadyError:
    """Return the error for a step that would have to wait, raised before the environment is stepped."""
    return errors.NotReadyError(f"step held back by {limiter!r}: draw samples first")


def needs_reset() -> errors.NotReadyError:
    """Return the error for a step without an open episode."""
    return errors.NotReadyError("step needs an episode that is running: call reset first")


def kept(space: spaces.Space, value: Any) -> Any:
    """Return a value of a space, or a batch of them, as a tree of numpy copies.

    Raises:
        SchemaError: An array cannot be converted: it is on a device, or requires a gradient.
    """
    return _kept(spaces.tree_of(space, value))


def _kept(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _kept(part) for key, part in tree.items()}
    if not is_tensor(tree):
        return copies.copied(tree)
    return casting.as_array(f"a {type(tree).__name__}", tree).copy()


def is_tensor(value: object) -> bool:
    """Return whether `value` is an array of another library than numpy."""
    return hasattr(value, "__array__") and not isinstance(value, np.ndarray | np.generic)


def holds_tensor(value: object) -> bool:
    """Return whether a value of a space is, or contains, an array of another library than numpy."""
    if isinstance(value, Mapping | tuple):
        return any(map(holds_tensor, value.values() if isinstance(value, Mapping) else value))
    return is_tensor(value)


def check_discrete(space: spaces.Space, action: object, *, takes_tensors: bool) -> None:
    """Raise SchemaError if an action of a Discrete space is of a type that the environment cannot take.

    Args:
        space: The action space.
        action: The action.
        takes_tensors: Whether the environment may take tensors, as it returns them.
    """
    if isinstance(space, gymnasium.spaces.Discrete):
        is_float = isinstance(action, float | np.floating)
        if is_float or (is_tensor(action) and not takes_tensors):
            rule = f"action must be an integer, as the environment has {space}, got {validation.short_repr(action)}"
            raise errors.SchemaError(f"{rule}: pass {'int(action)' if is_float else 'action.item()'}")


class Target:
    """The buffer that environments record into; copies and checks the actions and extras of a step.

    Args:
        buffer: A column buffer with plain calls.
        action_space: The action space of one environment.
        infos: Maps names of extras to keys of an info.
        lead: The leading axes: none, or one for the environments.

    Raises:
        ArgumentTypeError: The buffer is of another kind, or `infos` does not map strings to strings.
        ArgumentError: The buffer has no extra for one of the infos.
    """

    def __init__(
        self, buffer: Buffer, action_space: spaces.Space, infos: Mapping[str, str] | None, lead: tuple[int, ...]
    ) -> None:
        if not isinstance(buffer, column.ColumnReplayBuffer | threads.ThreadSafeReplayBuffer):
            raise errors.ArgumentTypeError(
                f"buffer must be a ColumnReplayBuffer or a ThreadSafeReplayBuffer, got {validation.short_repr(buffer)}"
            )
        self._buffer, self._space, self._lead = buffer, action_space, lead
        self.infos = checked_infos(infos)
        with _inside(buffer) as columns:
            schema, self.streams = columns.schema, columns.streams
        for extra in self.infos:
            if schema is not None and extra not in schema.extras:
                known = ", ".join(schema.extras) or "none"
                raise errors.ArgumentError(f"infos must be for extras of the schema, which are {known}, got {extra!r}")
        self._schema: schema_lib.Schema | None = None

    def given(self, action: Any, extras: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return copies of an action and of extras, as trees, in the dtypes of the schema if there is one.

        Raises:
            NotReadyError: The limiter holds inserts back; a ThreadSafeReplayBuffer waits when the step is added.
            ArgumentError: An extra is given that `infos` also provides, or a stream.
            SchemaError: A value does not fit its field, or an extra is missing or unknown.
        """
        if isinstance(self._buffer, column.ColumnReplayBuffer) and not self._buffer.can_insert():
            raise held_back(self._buffer.limiter)
        for extra in extras:
            if extra in self.infos:
                raise errors.ArgumentError(
                    f"extra {extra!r} must not be given: infos takes it from {self.infos[extra]!r}"
                )
            if extra in ("stream", "streams"):
                raise errors.ArgumentError(f"{extra} must not be given: the recorder sets it")
        action, extras = kept(self._space, action), {name: _kept(value) for name, value in extras.items()}
        schema = self._schema_of_given()
        if schema is None:
            return action, extras
        columns: dict[str, Any] = schema._columns_of("action", action, self._lead)
        columns |= schema._columns_of("extras", extras, self._lead)
        return trees.nested("action", columns), trees.nested("extras", columns)

    def write(self, insert: Callable[..., Any], *step: Any, **fields: Any) -> None:
        """Call `add` or `extend` of the buffer, which does not ask the limiter again after the step was taken."""
        call = functools.partial(insert, *step, **fields)
        if isinstance(self._buffer, column.ColumnReplayBuffer):
            self._buffer._limited.decided(True, call)
        else:
            call()

    def _schema_of_given(self) -> schema_lib.Schema | None:
        """Return the schema of actions and extras; None while the buffer has none."""
        if self._schema is None:
            with _inside(self._buffer) as columns:
                whole = columns.schema
            if whole is not None:
                unused = schema_lib.Field((), np.float64)
                extras = {name: fields for name, fields in whole.extras.items() if name not in self.infos}
                self._schema = schema_lib.Schema(unused, whole.action, reward=unused, extras=extras)
        return self._schema


def check_spaces(buffer: Buffer, observation_space: spaces.Space, action_space: spaces.Space, frame_stack: int) -> None:
    """Raise ArgumentError if the buffer has a schema, and it is that of another environment."""
    with _inside(buffer) as columns:
        schema = columns.schema
    if schema is not None:
        spaces.check_shapes("observation", observation_space, schema.observation, frame_stack)
        spaces.check_shapes("action", action_space, schema.action)


@contextlib.contextmanager
def _inside(buffer: Buffer) -> "Iterator[column.ColumnReplayBuffer[Any]]":
    """Yield the buffer, or the wrapped buffer while its lock is held."""
    if isinstance(buffer, column.ColumnReplayBuffer):
        yield buffer
    else:
        with buffer.locked() as columns:
            yield columns


def checked_infos(infos: Any) -> dict[str, str]:
    """Return the checked mapping of extras to keys of an info.

    Raises:
        ArgumentTypeError: It does not map strings to strings.
    """
    if infos is None:
        return {}
    if not isinstance(infos, Mapping) or not all(type(text) is str for pair in infos.items() for text in pair):
        raise errors.ArgumentTypeError(f"infos must be keys of the info by extra, got {validation.short_repr(infos)}")
    return dict(infos)


def found(info: Mapping[str, Any], extra: str, key: str) -> Any:
    """Return the value of a key in an info.

    Raises:
        ArgumentError: The key is missing.
    """
    if key not in info:
        raise errors.ArgumentError(
            f"info must hold {key!r} for the extra {extra!r}, got {validation.short_repr(list(info))}"
        )
    return info[key]


class Frames:
    """Extracts single frames from stacked observations.

    Args:
        buffer: The target of the frames, which stacks them again when sampling.
        frame_stack: Number of frames along the first axis of an observation; 1 if not stacked.

    Raises:
        ArgumentError: The buffer stacks another number of frames.
    """

    def __init__(self, buffer: Buffer, frame_stack: int) -> None:
        self._number = validation.positive_int("frame_stack", frame_stack)
        with _inside(buffer) as columns:
            of_buffer = getattr(columns.window, "frame_stack", None)
            self._padding = str(getattr(columns.window, "stack_padding", None))
        if self._number > 1 and of_buffer not in (None, self._number):
            raise errors.ArgumentError(f"frame_stack must be {of_buffer}, as that of the buffer, got {self._number}")

    def newest(self, tree: Any, num_leading: int = 0) -> Any:
        """Return the last frame of each stack; the stack is the first axis after the leading ones."""
        if self._number == 1:
            return tree
        if isinstance(tree, Mapping):
            return {key: self.newest(part, num_leading) for key, part in tree.items()}
        return np.moveaxis(tree, num_leading, 0)[-1]

    def check_first(self, tree: Any, num_leading: int = 0) -> None:
        """Raise ArgumentError unless each stack is padding followed by one frame, as in the buffer."""
        for stack in self._stacks(tree, num_leading):
            padding = {"zeros": np.zeros_like(stack[-1]), "first": stack[-1]}.get(self._padding)
            if padding is not None and not are_same(stack[:-1], np.broadcast_to(padding, stack[:-1].shape)):
                raise errors.ArgumentError(
                    f"observation must begin with frames that are {self._padding!r}, as the stack_padding of the buffer"
                )

    def check_next(self, before: Any, after: Any, num_leading: int = 0, where: Any = ...) -> None:
        """Raise ArgumentError unless each stack is the previous one shifted by one frame.

        Args:
            before: The previous stacks.
            after: The stacks one step later.
            num_leading: Number of leading axes.
            where: Which rows of the leading axis to check.
        """
        for old, new in zip(self._stacks(before, num_leading), self._stacks(after, num_leading), strict=True):
            if not are_same(old[1:, where], new[:-1, where]):
                raise errors.ArgumentError("observation must be the previous stack, shifted by one new frame")

    def _stacks(self, tree: Any, num_leading: int) -> list[arrays.Array]:
        """Return the stacks in a tree, frames first; empty if observations are not stacked."""
        if self._number == 1:
            return []
        stacks = [np.asarray(stack) for _, stack in sorted(trees.flat("observation", tree).items())]
        for stack in stacks:
            if stack.ndim <= num_leading or stack.shape[num_leading] != self._number:
                raise errors.ArgumentError(
                    f"observation must be a stack of {self._number} frames, got shape {stack.shape}"
                )
        return [np.moveaxis(stack, num_leading, 0) for stack in stacks]


def are_same(these: Any, those: Any) -> bool:
    """Return whether two trees of arrays hold the same values; NaNs are equal."""
    one, other = ({path: np.asarray(leaf) for path, leaf in trees.flat("", tree).items()} for tree in (these, those))
    return one.keys() == other.keys() and all(
        np.array_equal(one[path], other[path], equal_nan=one[path].dtype.kind in "fc") for path in one
    )
