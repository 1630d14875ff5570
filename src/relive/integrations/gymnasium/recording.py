"""What the recorders share: checks before a step, copies of what is stored, and single frames of stacks."""

from collections.abc import Callable, Mapping
import functools
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import arrays as arrays_lib
from relive.common import copies
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.integrations.gymnasium import spaces
from relive.joint import buffer as joint_buffer
from relive.limits import rate_limiters
from relive.persistence import checkpointable
from relive.schema import casting
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.waiting import threads

with imports.optional_dependency("gymnasium"):
    import gymnasium
    from gymnasium import vector

FINALS = ("final_obs", "final_observation")
"""What infos may call the last observation of an episode."""
Buffer: TypeAlias = "column.ColumnReplayBuffer[Any] | threads.ThreadSafeReplayBuffer[Any]"


def require_order(env: object) -> None:
    """Raise ArgumentTypeError if `env` is a buffer."""
    if isinstance(env, checkpointable.Checkpointable | threads.ThreadSafeReplayBuffer):
        raise errors.ArgumentTypeError(f"env must be an environment, got {env!r}: the order is env, buffer")


def require_env(env: object, kind: type) -> None:
    """Raise ArgumentTypeError if `env` is not an instance of a class of environments."""
    require_order(env)
    if isinstance(env, vector.VectorEnv) and kind is not vector.VectorEnv:
        raise errors.ArgumentTypeError("env must be one environment, got a vector environment: use VectorRecorder")
    validation.require_instance("env", env, kind)


def held_back(limiter: rate_limiters.RateLimiter) -> errors.NotReadyError:
    """Return the error for a step that would have to wait, raised before the environment is stepped."""
    return errors.NotReadyError(f"step held back by {limiter!r}: draw samples first")


class Recording:
    """The buffer that steps are recorded into, and the checks that each step passes before.

    The spaces are those of one environment; `lead` are the leading axes of a step: none, or one for the environments.
    """

    def __init__(
        self,
        buffer: Buffer,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lead: tuple[int, ...],
        frame_stack: int,
        infos: Mapping[str, str] | None,
    ) -> None:
        inside: object = buffer._buffer if isinstance(buffer, threads.ThreadSafeReplayBuffer) else buffer
        if not isinstance(inside, column.ColumnReplayBuffer):
            rule = "buffer must be a ColumnReplayBuffer or a ThreadSafeReplayBuffer of one"
            raise errors.ArgumentTypeError(f"{rule}, got {validation.short_repr(buffer)}")
        if isinstance(inside, joint_buffer.JointColumnBuffer):
            rule = "buffer must be of steps of single agents"
            raise errors.ArgumentTypeError(f"{rule}, got {validation.short_repr(buffer)}: add stores joint steps")
        inside._require_local("a recorder")
        self._columns, self._may_wait = inside, inside is not buffer
        self._observation_space, self._action_space, self._lead = observation_space, action_space, lead
        self.infos, self.streams = checked_infos(infos), inside.streams
        self.frames = Frames(inside, frame_stack, len(lead))
        # What checks an action, and the extras that are not found in infos; None until there is a schema.
        self._cast_action: Callable[[Any], Any] | None = None
        if (schema := inside.schema) is not None:
            for extra in self.infos.keys() - schema.extras.keys():
                rule = f"infos must be for extras of the schema, which are {', '.join(schema.extras) or 'none'}"
                raise errors.ArgumentError(f"{rule}, got {extra!r}")
            spaces.check_shapes("observation", observation_space, schema.observation, frame_stack)
            spaces.check_shapes("action", action_space, schema.action)
        elif lead:
            # Gymnasium's batches of other spaces are tuples, and the first step would set shapes that the next breaks.
            for name, space in (("observation_space", observation_space), ("action_space", action_space)):
                spaces.fields_of(name, space)

    def __getstate__(self) -> dict[str, Any]:
        # The functions cannot be pickled, so they are made again.
        return {name: value for name, value in vars(self).items() if name != "_cast_extras"} | {"_cast_action": None}

    def observed(self, observation: Any) -> Any:
        """Return a copy of an observation, or of a batch of them, as a tree."""
        return _kept("observation", spaces.tree_of(self._observation_space, observation))

    def check_limiter(self) -> None:
        """Raise NotReadyError if a step would have to wait; a ThreadSafeReplayBuffer waits when it is added."""
        if self._is_held and not self._columns.can_insert():
            raise held_back(self._columns.limiter)

    @property
    def _is_held(self) -> bool:
        """Whether the limiter may answer that a step must wait."""
        return not self._may_wait and self._columns._limited.holds_inserts

    def given(self, action: Any, extras: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return copies of an action and of extras, as trees, in the dtypes of the schema if there is one."""
        self.check_limiter()
        action = spaces.tree_of(self._action_space, action)
        if extras:
            for extra in extras.keys() & self.infos.keys():
                rule = f"extra {extra!r} must not be given"
                raise errors.ArgumentError(f"{rule}: infos takes it from {self.infos[extra]!r}")
            for extra in extras.keys() & {"stream", "streams"}:
                raise errors.ArgumentError(f"{extra} must not be given: the recorder sets it")
        if self._cast_action is None:
            if (schema := self._columns.schema) is None:
                return _kept("action", action), _kept("extras", extras) if extras else {}
            others = {name: tree for name, tree in schema.extras.items() if name not in self.infos}
            parts, checks = (schema.observation, schema.action), schema.check_finite
            given = encoding.Encoder(schema_lib.Schema(*parts, extras=others, check_finite=checks))
            self._cast_action, self._cast_extras = (_caster(given, name, self._lead) for name in ("action", "extras"))
            self._has_extras = bool(others)
        action = self._cast_action(action)
        return action, self._cast_extras(extras) if extras or self._has_extras else {}

    def write(
        self, call: Callable[..., Any], before: Any, action: Any, reward: Any, after: Any, /, **more: Any
    ) -> None:
        """Call `add` or `extend` with single frames; the limiter, asked before the step, is not asked again."""
        step = self.frames.newest(before), action, reward, self.frames.newest(after)
        if self._is_held:
            self._columns._limited.decided(True, functools.partial(call, *step, **more))
        else:
            call(*step, **more)


def _caster(encoder: encoding.Encoder, name: str, lead: tuple[int, ...]) -> Callable[[Any], Any]:
    """Return a function that checks an argument, and returns a copy of it as a tree of arrays of its fields."""
    nest = trees.nester(name, encoder.schema.fields)
    if lead:
        return lambda value: nest(encoder.columns_of_argument(name, _kept(name, value), lead))
    copy = encoder.copier_of_argument(name)
    return lambda value: nest(copy(value))


def _kept(name: str, tree: Any) -> Any:
    """Return a copy of a tree, in which arrays of other libraries are numpy's.

    Numbers and lists stay, as they may be rounded to a field; SchemaError if they make no array.
    """
    if type(tree) is not np.ndarray and isinstance(tree, Mapping):
        return trees.nested(name, {path: _kept(path, leaf) for path, leaf in trees.flat(name, tree).items()})
    array = casting.as_array(name, tree)
    return array.copy() if hasattr(tree, "__array__") else copies.copied(tree)


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
    if not isinstance(action, int | np.integer) and isinstance(space, gymnasium.spaces.Discrete):
        is_float = isinstance(action, float | np.floating)
        if is_float or (is_tensor(action) and not takes_tensors):
            rule = f"action must be an integer, as the environment has {space}, got {validation.short_repr(action)}"
            raise errors.SchemaError(f"{rule}: pass {'int(action)' if is_float else 'action.item()'}")


def checked_infos(infos: Any) -> dict[str, str]:
    """Return the checked mapping of extras to keys of an info."""
    if infos is None:
        return {}
    if not isinstance(infos, Mapping) or not all(type(text) is str for pair in infos.items() for text in pair):
        raise errors.ArgumentTypeError(f"infos must be keys of the info by extra, got {validation.short_repr(infos)}")
    return dict(infos)


def found(info: Any, extra: str, key: str) -> Any:
    """Return the value of a key in an info; raise ArgumentError if it is missing."""
    is_mapping = isinstance(info, Mapping)
    if not is_mapping or key not in info:
        there = validation.short_repr(list(info) if is_mapping else info)
        raise errors.ArgumentError(f"info must hold {key!r} for the extra {extra!r}, got {there}")
    return info[key]


def info_column(key: str, values: list[Any]) -> Any:
    """Return what the infos of each environment hold of a key as one tree.

    Its leaves are lists of numbers, which may be rounded to a field: Gymnasium makes float64 of Python's floats.
    """
    if all(issubclass(kind, np.generic) for kind in {*map(type, values)}):
        return values
    leaves = [trees.flat(key, value) for value in values]
    if any(each.keys() != leaves[0].keys() for each in leaves):
        raise errors.ArgumentError(f"infos must hold the same keys in {key!r} of every environment")
    return trees.nested(key, {path: [np.asarray(each[path])[()] for each in leaves] for path in leaves[0]})


def final_observation(get: Callable[[str], Any]) -> tuple[str, Any]:
    """Return the name and the value of the last observation of an episode; the value is None if there is none.

    Environments that reset in the step that ends an episode put it into the info: Gymnasium as "final_obs"; gymnax, and
    Gymnasium before 1.0, as "final_observation".

    Args:
        get: Returns the value of a key in the info, or None.
    """
    for name in FINALS:
        if (value := get(name)) is not None:
            return name, value
    return FINALS[0], None


def last_of(observation: Any, info: Any) -> Any:
    """Return the last observation of an episode, given what the step that ended it returned."""
    final = final_observation(info.get)[1] if isinstance(info, Mapping) else None
    return observation if final is None else final


class Frames:
    """Single frames of stacked observations; the buffer stacks them again when sampling.

    The frames of a stack are along the first axis after the leading ones.
    """

    def __init__(self, buffer: "column.ColumnReplayBuffer[Any]", frame_stack: int, num_leading: int) -> None:
        self._number, self._axis = validation.positive_int("frame_stack", frame_stack), num_leading
        of_buffer = getattr(buffer.window, "frame_stack", None)
        if self._number > 1 and of_buffer not in (None, self._number):
            raise errors.ArgumentError(f"frame_stack must be {of_buffer}, as that of the buffer, got {self._number}")
        self._padding: Any = getattr(buffer.window, "stack_padding", None)

    def newest(self, tree: Any) -> Any:
        """Return the last frame of each stack."""
        if self._number == 1:
            return tree
        return trees.nested("observation", {path: stack[-1] for path, stack in self._stacks(tree).items()})

    def check_first(self, tree: Any, where: Any = ...) -> None:
        """Raise ArgumentError unless each stack in these rows is padding followed by one frame, as in the buffer."""
        for stack in self._stacks(tree, where).values():
            history = stack[:-1]
            padding = {"zeros": np.zeros_like(history), "first": stack[-1:]}.get(self._padding, history)
            if not np.array_equal(history, np.broadcast_to(padding, history.shape), equal_nan=True):
                rule = f"observation must begin with frames that are {self._padding!r}"
                raise errors.ArgumentError(f"{rule}, as the stack_padding of the buffer")

    def check_next(self, before: Any, after: Any, where: Any = ...) -> None:
        """Raise ArgumentError unless each stack in these rows is the one before it, shifted by one frame."""
        following = self._stacks(after, where)
        for path, stack in self._stacks(before, where).items():
            if not np.array_equal(stack[1:], following[path][:-1], equal_nan=True):
                raise errors.ArgumentError("observation must be the previous stack, shifted by one new frame")

    def _stacks(self, tree: Any, where: Any = ...) -> dict[str, arrays_lib.Array]:
        """Return rows of the stacks in a tree by path, frames first; none if observations are not stacked."""
        stacks = trees.flat("observation", tree) if self._number > 1 else {}
        for path, leaf in stacks.items():
            stack = np.asarray(leaf)
            if stack.shape[self._axis : self._axis + 1] != (self._number,):
                rule = f"observation must be a stack of {self._number} frames"
                raise errors.ArgumentError(f"{rule}, got shape {stack.shape}")
            stacks[path] = np.moveaxis(stack, self._axis, 0)[:, where]
        return stacks
