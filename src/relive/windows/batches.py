"""Batches: what `sample` returns. B is the batch size, T the sequence length; arrays own their memory.

    buffer.sample                           TransitionBatch                   of arrays of numpy
    relive.integrations.torch.as_tensors    TransitionBatch[torch.Tensor]
    relive.integrations.jax.as_jax          TransitionBatch[jax.Array]

Keys identify rows for `update_priorities`; they are numpy arrays in all of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
import dataclasses
import functools
import itertools
import operator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeAlias, TypeVar, overload

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import notebook
from relive.common import trees
from relive.common import validation
from relive.common import words
from relive.schema import casting

if TYPE_CHECKING:
    # Type checkers support defaults of type variables; Python does from 3.13 on.
    A = TypeVar("A", bound=Sized, default=arrays_lib.Array)  # pyright: ignore[reportGeneralTypeIssues]
else:
    A = TypeVar("A", bound=Sized)
B = TypeVar("B", bound=Sized)

_ALIGNMENT = 64
"""Where the arrays of a pinned buffer begin: at multiples of so many bytes, a line of the cache."""
Tree: TypeAlias = Any
"""An array, or a dict of trees: an observation or an action of a schema with names."""


_Convert: TypeAlias = Callable[[str, str, Any], Any]
"""Returns what takes the place of a leaf, given the beginning of its path and its name."""


class Sample(Protocol):
    """The part of `ReplaySample` that is needed here."""

    observation: Any
    action: Any
    next_observation: Any
    next_discount: float
    is_terminal: bool
    actual_n: int

    @property
    def reward(self) -> float: ...  # noqa: D102


class Batch(Generic[A]):
    """Base class of batches: dataclasses whose fields are arrays, or dicts of arrays or batches.

    Subclasses declare `map` for type checkers, since its return type cannot be expressed here.
    """

    __slots__ = ()
    _NAMES: ClassVar[tuple[str, ...]] = ()
    """The fields that name rows: no framework calculates with them."""
    _KEYS: ClassVar[tuple[str, ...]] = ()
    """The fields that are keys."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        words.name_methods(cls)

    if not TYPE_CHECKING:  # A type checker would take any attribute for one that exists.

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError that names the field meant, if `name` is another library's word for it."""
            has = {*_field_names(type(self))}
            raise words.missing_attribute(self, name, has, words.FIELDS, len(has))

    def map(self, function: Callable[[A], B]) -> "Batch[B]":
        """Return the batch with `function` applied to each array, nested ones included; the keys are kept.

        >>> import numpy as np
        >>> import relive
        >>> buffer = relive.RingReplayBuffer(10, seed=0)
        >>> keys = buffer.add_episode([0.0, 1.0, 2.0], [0, 1], [0.0, 1.0], terminated=True)
        >>> buffer.sample(4).map(np.float32).reward.dtype
        dtype('float32')
        """

        def convert(root: str, name: str, leaf: Any) -> B:
            return function(leaf)

        mapped: Batch[B] = _converted("", "", self, convert, convert)
        return mapped

    def to(self, device: Any, *, non_blocking: bool = False) -> Self:
        """Return this batch of tensors moved to a device.

        Args:
            device: A torch.device or its name.
            non_blocking: Whether to return before the copy has finished; only effective from pinned memory.

        Raises:
            ArgumentTypeError: The batch does not hold tensors.
        """
        self._require_tensors("to")
        moved: Self = self.map(operator.methodcaller("to", device, non_blocking=non_blocking))  # type: ignore[assignment]
        return moved

    def pin_memory(self) -> Self:
        """Return this batch of tensors in pinned memory, from which a device can copy asynchronously.

        The tensors share one buffer, which lives as long as any of them. A batch that is pinned already is returned.

        Raises:
            ArgumentTypeError: The batch does not hold tensors.
        """
        self._require_tensors("pin_memory")
        tensors = list[Any]()
        self.map(tensors.append)  # type: ignore[type-var]
        if all(tensor.is_pinned() for tensor in tensors):
            return self
        ends = itertools.accumulate(-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors)
        starts = [0, *ends]
        # An array of bytes that the library of the tensors makes.
        buffer = tensors[0].new_empty(0).byte().new_empty(starts[-1], pin_memory=True)
        places = iter(starts)

        def packed(tensor: Any) -> Any:
            start = next(places)
            return buffer[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)

        pinned: Self = self.map(packed)  # type: ignore[assignment]
        return pinned

    def _require_tensors(self, call: str) -> None:
        if not hasattr(self._first, call):
            held = type(self._first).__name__
            raise errors.ArgumentTypeError(f"{call} needs a batch of tensors, got one of {held}: as_tensors makes it")

    def _rename_keys(self, factor: int, offset: int) -> None:
        """Multiply all keys by a factor, and add an offset."""
        for name in self._KEYS:
            setattr(self, name, getattr(self, name) * factor + offset)

    def _require_numpy(self, call: str) -> None:
        if not isinstance(self._first, np.ndarray):
            held = type(self._first).__name__
            raise errors.ArgumentTypeError(
                f"{call} needs a batch of arrays of numpy, got one of {held}: convert what it returns"
            )

    @property
    def _first(self) -> Any:
        """One of the arrays [B, ...]."""
        return next(leaf for _, leaf in leaves(self))

    def __len__(self) -> int:
        """Return the batch size, B."""
        return len(self._first)

    @overload
    def __getitem__(self, asked: str) -> Any: ...

    @overload
    def __getitem__(self, asked: slice) -> Self: ...

    def __getitem__(self, asked: Any) -> Any:
        """Return the field of that name; or, for a slice, a batch of those rows, whose arrays are views.

        Raises:
            UnknownKeyError: There is no field of that name.
            ArgumentTypeError: It is neither a name nor a slice of integers.

        >>> import relive
        >>> buffer = relive.RingReplayBuffer(10, seed=0)
        >>> keys = buffer.add_episode([0.0, 1.0, 2.0], [0, 1], [0.0, 1.0], terminated=True)
        >>> batch = buffer.sample(32)
        >>> batch["reward"] is batch.reward, batch[0:8].reward.shape
        (True, (8,))
        """
        fields = _field_names(type(self))  # type: ignore[arg-type]
        if isinstance(asked, str):
            if asked in fields:
                return getattr(self, asked)
            found = words.meant(words.FIELDS, asked, fields)
            remedy = f"use {' or '.join(found)}" if found else f"it has {', '.join(fields)}"
            raise errors.UnknownKeyError(f"{type(self).__name__} has no field {asked!r}: {remedy}")
        ends = (asked.start, asked.stop, asked.step) if isinstance(asked, slice) else ("none",)
        if not all(end is None or hasattr(end, "__index__") for end in ends) or ends[-1] == 0:
            rule = "a batch is indexed by the name of a field or by a slice of rows, as in batch[0:8]"
            raise errors.ArgumentTypeError(f"{rule}, got {validation.short_repr(asked)}")
        rows = {name: _rows(getattr(self, name), asked) for name in fields}
        return dataclasses.replace(self, **rows)  # type: ignore[type-var]

    __iter__: ClassVar[None] = None
    """Not iterable: Python would otherwise ask for the rows 0, 1 and so on."""

    def __repr__(self) -> str:
        shown = []
        for path, leaf in leaves(self):
            described = type(leaf).__name__  # In JAX trees a leaf may be anything.
            if hasattr(leaf, "dtype"):
                described = f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"  # Such as float32[256, 4].
            shown.append(f"{path}: {described}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def _repr_html_(self) -> str:
        """Return the HTML shown in notebooks: the fields with their dtypes, shapes and bytes."""
        arrays_of = ((path, leaf) for path, leaf in leaves(self) if hasattr(leaf, "dtype"))
        rows = [(path, str(leaf.dtype), tuple(leaf.shape), int(leaf.nbytes)) for path, leaf in arrays_of]
        return notebook.table(f"<{type(self).__name__} of {len(self)}>", rows)


class KeyedBatch(Batch[A]):
    """Base class of batches whose elements are windows of a column buffer."""

    __slots__ = ()
    _NAMES = _KEYS = ("keys",)
    keys: arrays_lib.Keys


@dataclasses.dataclass(kw_only=True, slots=True, eq=False, repr=False)
class TransitionBatch(KeyedBatch[A]):
    """n-step transitions: `target = reward + next_discount * V(next_observation)` holds for each of them.

    Attributes:
        observation: o_t [B, ...]; with a frame stack [B, stack, ...], newest frame last.
        action: a_t [B, ...]; with action chunks a_t to a_{t+n-1} [B, n, ...], a_{t+m-1} repeated from place m on.
        reward: The sum over k < m of gamma^k r_{t+k} [B], added up as float64, in the reward's dtype.
        next_observation: o_{t+m} [B, ...], stacked as `observation`; zeros if the episode terminated there and the
            observation was not given.
        next_discount: gamma^m, or 0 if the window reached termination [B], in the reward's dtype.
        is_terminal: Whether the window reached termination [B].
        steps: m [B], from 1 to n; fewer than n if the episode, or what is known of it, ends earlier.
        keys: The keys of the rows of o_t [B]; for `update_priorities` and `read`.
        probabilities: The probability with which each was drawn [B].
        weights: Importance weights [B]; 1 without priorities.
        extras: Each extra of step t [B, ...].
    """

    observation: Tree
    action: Tree
    reward: A
    next_observation: Tree
    next_discount: A
    is_terminal: A
    steps: A
    keys: arrays_lib.Keys
    probabilities: A
    weights: A
    extras: dict[str, Tree]

    if TYPE_CHECKING:

        def map(self, function: Callable[[A], B]) -> "TransitionBatch[B]": ...  # noqa: D102

    @classmethod
    def from_samples(cls, samples: Sequence[Sample]) -> "TransitionBatch[arrays_lib.Array]":
        """Return the samples of an EpisodeReplayBuffer as one batch, with weights of 1.

        Samples have neither keys nor probabilities: keys are -1, and probabilities are NaN.

        Args:
            samples: Samples from `sample_n_step`; observations and actions must be numbers, arrays, or nested dicts of
                them, with the same shapes in all samples.

        Raises:
            ArgumentTypeError: An element is not a ReplaySample.
            ArgumentError: There is no sample, or samples differ in the keys of a dict.
            SchemaError: An observation or action is not an array, or samples differ in its shape.

        >>> import relive
        >>> buffer = relive.EpisodeReplayBuffer(seed=0)
        >>> episode_id = buffer.start_episode_nowait("agent")
        >>> buffer.append_observation_action_reward_nowait(episode_id, [0.0, 0.5], 1, 2.0)
        >>> buffer.end_episode_nowait(episode_id, [1.0, 1.5])
        >>> relive.TransitionBatch.from_samples(buffer.sample_n_step_nowait(2, 1, 0.9)).observation
        array([[0. , 0.5],
               [0. , 0.5]])
        """
        validation.require_instance("samples", samples, Sequence)
        if not samples:
            raise errors.ArgumentError("samples must have at least 1 sample, got 0")
        for number, each in enumerate(samples):
            if not hasattr(each, "actual_n"):
                shown = validation.short_repr(each)
                raise errors.ArgumentTypeError(f"sample {number} must be a ReplaySample, got {shown}")
        return TransitionBatch(
            observation=_stacked("observation", [each.observation for each in samples]),
            action=_stacked("action", [each.action for each in samples]),
            reward=np.array([each.reward for each in samples]),
            next_observation=_stacked("next_observation", [each.next_observation for each in samples]),
            next_discount=np.array([each.next_discount for each in samples]),
            is_terminal=np.array([each.is_terminal for each in samples]),
            steps=np.array([each.actual_n for each in samples]),
            keys=np.full(len(samples), -1),
            probabilities=np.full(len(samples), np.nan),
            weights=np.ones(len(samples)),
            extras={},
        )


@dataclasses.dataclass(kw_only=True, slots=True, eq=False, repr=False)
class SequenceBatch(KeyedBatch[A]):
    """Sequences of consecutive steps, each of a single episode. Where `mask` is False, all other arrays hold zeros.

    Attributes:
        observation: o_t to o_{t+T} [B, T + 1, ...]; the last one is what came after the last step.
        action: a_t to a_{t+T-1} [B, T, ...].
        reward: r_t to r_{t+T-1} [B, T].
        terminated: Whether the episode terminated with the step [B, T].
        truncated: Whether it was truncated with the step [B, T]. Neither flag is set if a sequence ends in mid-episode.
        mask: Whether the step is real [B, T]; False marks padding after the real steps, to be excluded from the loss.
        is_burn_in: Whether the step is real and one of the first `burn_in`, which warm up a recurrent state and are
            excluded from the loss [B, T].
        start_step: Number of steps of the episode before the sequence [B].
        keys: The keys of the first rows [B]; for `update_priorities` and `read`.
        probabilities: The probability with which each was drawn [B].
        weights: Importance weights [B]; 1 without priorities.
        extras: Each extra of each step [B, T, ...].
    """

    observation: Tree
    action: Tree
    reward: A
    terminated: A
    truncated: A
    mask: A
    is_burn_in: A
    start_step: A
    keys: arrays_lib.Keys
    probabilities: A
    weights: A
    extras: dict[str, Tree]

    if TYPE_CHECKING:

        def map(self, function: Callable[[A], B]) -> "SequenceBatch[B]": ...  # noqa: D102


def converted(drawn: Any, convert: _Convert) -> Any:
    """Return drawn data with `convert(root, name, array)` applied to each array except the keys.

    Args:
        drawn: A batch, arrays in dicts or tuples, or a list of ReplaySamples, which become a batch.
        convert: Returns the replacement of an array, whose path is `root + name`: joined where an error names it.

    Raises:
        ArgumentTypeError: It holds anything else, such as arrays of a framework.
        ArgumentError: Samples cannot be a batch.
    """

    def checked(root: str, name: str, leaf: Any) -> Any:
        if (
            root + name == "max_seqlen" and type(leaf) is int
        ):  # Kernels take this one of packed tokens as a plain number.
            return leaf
        if not isinstance(leaf, np.ndarray):
            rule = f"{root + name or 'batch'} must be what a buffer has drawn: arrays of numpy"
            raise errors.ArgumentTypeError(f"{rule}, got {validation.short_repr(leaf)}")
        return convert(root, name, leaf)

    return _converted(
        "", "", TransitionBatch.from_samples(drawn) if isinstance(drawn, list) else drawn, convert, checked
    )


@functools.cache
def array_names(kind: Any) -> list[str]:
    """Return the names of the fields of a class of batches that hold arrays."""
    return [name for name in _field_names(kind) if name not in kind._NAMES]


@functools.cache
def _field_names(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def leaves(batch: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every array of a batch with its path, the keys and the like too."""
    if isinstance(batch, Batch):
        for name in _field_names(type(batch)):  # type: ignore[arg-type]  # A class has a hash of its own.
            yield from leaves(getattr(batch, name), _joined(path, name))
    elif isinstance(batch, Mapping):
        for key, part in batch.items():
            yield from leaves(part, _joined(path, key))
    else:
        yield path, batch


def _converted(root: str, name: str, tree: Tree, convert: _Convert, of_others: _Convert) -> Any:
    """Return a tree with `convert` applied to each array of numpy, and `of_others` to every other leaf."""
    if type(tree) is np.ndarray:
        return convert(root, name, tree)
    below = f"{root}{name}/" if name else root
    if isinstance(tree, Batch):
        kind: Any = type(tree)
        parts = {each: getattr(tree, each) for each in kind._NAMES}
        for each in array_names(kind):
            part = getattr(tree, each)
            # Most fields are arrays, for which a call is saved.
            is_array = type(part) is np.ndarray
            parts[each] = convert(below, each, part) if is_array else _converted(below, each, part, convert, of_others)
        return kind(**parts)
    if isinstance(tree, (dict, Mapping)):  # Whether it is a dict is found out much faster.
        return {key: _converted(below, str(key), part, convert, of_others) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_converted(below, str(place), part, convert, of_others) for place, part in enumerate(tree))
    return of_others(root, name, tree)


def _rows(tree: Tree, rows: slice) -> Tree:
    """Return a slice of the rows of each array of a tree, or of a list; None of None, which stands for keys in JAX."""
    if isinstance(tree, Mapping):
        return {key: _rows(part, rows) for key, part in tree.items()}
    return None if tree is None else tree[rows]


def _joined(path: str, name: object) -> str:
    return f"{path}/{name}" if path else str(name)


def _stacked(name: str, values: list[Any]) -> Tree:
    """Return values of one structure as a tree of arrays [B, ...]."""
    parts = [trees.flat(name, value) for value in values]
    columns = {}
    for part in parts:
        if part.keys() != parts[0].keys():
            rule = f"{name} must have the same keys in all samples"
            raise errors.ArgumentError(f"{rule}, got {', '.join(parts[0])} and {', '.join(part)}")
    for path in parts[0]:
        rows = [casting.as_array(path, part[path]) for part in parts]
        for row in rows:
            if row.shape != rows[0].shape:
                rule = f"{path} must have one shape in all samples"
                raise errors.SchemaError(f"{rule}, got {list(rows[0].shape)} and {list(row.shape)}")
        columns[path] = np.stack(rows)
    return trees.nested(name, columns)
