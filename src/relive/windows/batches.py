"""What a draw returns: arrays of the batch, which own their memory. B is the batch size, T the length of a sequence.

    buffer.sample                           TransitionBatch                   of arrays of numpy
    relive.integrations.torch.as_tensors    TransitionBatch[torch.Tensor]
    relive.integrations.jax.as_jax          TransitionBatch[jax.Array]

The keys are names for `update_priorities`, and nothing to calculate with: they are an array of numpy in all of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sized
import dataclasses
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, TypeVar

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import validation

if TYPE_CHECKING:
    # Type checkers know defaults of type variables; Python does from 3.13 on.
    A = TypeVar("A", bound=Sized, default=arrays.Array)  # pyright: ignore[reportGeneralTypeIssues]
else:
    A = TypeVar("A", bound=Sized)
B = TypeVar("B", bound=Sized)

Tree: TypeAlias = Any
"""An array, or a dict of trees: an observation or an action of a schema with names."""


class _Batch(Generic[A]):
    """What both kinds of batches can do."""

    __slots__ = ()
    weights: A

    def to(self, device: Any, *, non_blocking: bool = False) -> Self:
        """Return a batch of tensors on a device.

        Args:
            device: A torch.device, or what names one.
            non_blocking: Whether to go on before the copy has ended; it makes a difference from pinned memory alone.

        Raises:
            ArgumentTypeError: It is no batch of tensors.
        """
        self._require_tensors("to")
        moved: Self = converted(self, lambda path, tensor: tensor.to(device, non_blocking=non_blocking))
        return moved

    def pin_memory(self) -> Self:
        """Return a batch of tensors in memory that a device can copy from while the CPU goes on.

        Raises:
            ArgumentTypeError: It is no batch of tensors.
        """
        self._require_tensors("pin_memory")
        pinned: Self = converted(self, lambda path, tensor: tensor.pin_memory())
        return pinned

    def _require_tensors(self, call: str) -> None:
        """Raise ArgumentTypeError unless the arrays have such a method, as tensors of torch do."""
        if not hasattr(self.weights, call):
            held = type(self.weights).__name__
            raise errors.ArgumentTypeError(f"{call} needs a batch of tensors, got one of {held}: as_tensors makes it")

    def __len__(self) -> int:
        """Return B."""
        return len(self.weights)

    def __repr__(self) -> str:
        shown = ", ".join(f"{path}: {_shape(array)}" for path, array in leaves(self))
        return f"{type(self).__name__}({shown})"


@dataclasses.dataclass(kw_only=True, slots=True, eq=False, repr=False)
class TransitionBatch(_Batch[A]):
    """n-step transitions: `target = reward + next_discount * V(next_observation)` holds for each of them.

    Attributes:
        observation: o_t [B, ...]; with a frame stack [B, stack, ...], newest frame last.
        action: a_t [B, ...].
        reward: The sum over k < m of gamma^k r_{t+k} [B], added up as float64, in the reward's dtype.
        next_observation: o_{t+m} [B, ...], stacked as `observation`; zeros where the episode terminated there and the
            observation was not given.
        next_discount: gamma^m, or 0 if the window reached termination [B], in the reward's dtype.
        is_terminal: Whether it did [B].
        steps: m [B], at least 1 and at most n; less where the episode, or what is known of it, ends earlier.
        keys: The names of the rows o_t is in [B]; for update_priorities and read.
        probabilities: How likely each of them was to be drawn [B].
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
    keys: arrays.Keys
    probabilities: A
    weights: A
    extras: dict[str, Tree]

    def map(self, function: Callable[[A], B]) -> "TransitionBatch[B]":
        """Return the batch with `function(array)` in the place of each array, also of nested ones; the keys stay.

        >>> import numpy as np
        >>> import relive
        >>> buffer = relive.RingReplayBuffer(10, seed=0)
        >>> keys = buffer.add_episode([0.0, 1.0, 2.0], [0, 1], [0.0, 1.0], terminated=True)
        >>> buffer.sample(4).map(np.float32).reward.dtype
        dtype('float32')
        """
        mapped: TransitionBatch[B] = converted(self, lambda path, array: function(array))
        return mapped


@dataclasses.dataclass(kw_only=True, slots=True, eq=False, repr=False)
class SequenceBatch(_Batch[A]):
    """Runs of consecutive steps, each of one episode. Where `mask` is False everything else holds zeros.

    Attributes:
        observation: o_t to o_{t+T} [B, T + 1, ...]; the last one is what came after the last step.
        action: a_t to a_{t+T-1} [B, T, ...].
        reward: r_t to r_{t+T-1} [B, T].
        terminated: Whether the episode terminated with the step [B, T].
        truncated: Whether it was truncated with the step [B, T]. A sequence that stops in mid-episode has neither.
        mask: Whether the step is real; False is padding, behind the real ones, and not to be learned from [B, T].
        is_burn_in: Whether the step is real and one of the first `burn_in`, which warm up a recurrent state and are not
            for the loss [B, T].
        start_step: How many steps of the episode came before the sequence [B].
        keys: The names of the first rows [B]; for update_priorities and read.
        probabilities: How likely each of them was to be drawn [B].
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
    keys: arrays.Keys
    probabilities: A
    weights: A
    extras: dict[str, Tree]

    def map(self, function: Callable[[A], B]) -> "SequenceBatch[B]":
        """Return the batch with `function(array)` in the place of each array, also of nested ones; the keys stay."""
        mapped: SequenceBatch[B] = converted(self, lambda path, array: function(array))
        return mapped


def require_arrays(batch: object) -> None:
    """Raise ArgumentTypeError unless that is a batch of arrays of numpy."""
    if not isinstance(batch, TransitionBatch | SequenceBatch) or not isinstance(batch.weights, np.ndarray):
        raise errors.ArgumentTypeError(f"batch must be what a buffer has drawn, got {validation.short_repr(batch)}")


def converted(batch: Any, convert: Callable[[str, Any], Any]) -> Any:
    """Return the batch with `convert(path, array)` in the place of each array but the keys."""
    names = [field.name for field in dataclasses.fields(batch) if field.name != "keys"]
    return dataclasses.replace(batch, **{name: _converted(name, getattr(batch, name), convert) for name in names})


def leaves(batch: Any) -> Iterator[tuple[str, Any]]:
    """Yield every array of a batch with its path."""
    for field in dataclasses.fields(batch):
        yield from _leaves(field.name, getattr(batch, field.name))


def _converted(path: str, tree: Tree, convert: Callable[[str, Any], Any]) -> Tree:
    if isinstance(tree, Mapping):
        return {key: _converted(f"{path}/{key}", part, convert) for key, part in tree.items()}
    return convert(path, tree)


def _leaves(path: str, tree: Tree) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key, part in tree.items():
            yield from _leaves(f"{path}/{key}", part)
    else:
        yield path, tree


def _shape(array: Any) -> str:
    """Return dtype and shape, such as `float32[256, 4]`; of what is no array, as JAX may put in its place, its type."""
    if not hasattr(array, "dtype"):
        return type(array).__name__
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"
