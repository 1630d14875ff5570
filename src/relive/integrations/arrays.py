"""Batches whose arrays are those of another library: the fields of relive's own, with tensors in them.

    TransitionBatch (numpy)  ── as_tensors, as_jax ──>  Transitions[Tensor], Transitions[jax.Array]
    SequenceBatch            ──────────────────────>  Sequences[Tensor], ...

The keys stay as they are: they are names for `update_priorities`, and nothing to calculate with.
"""

from collections.abc import Callable, Mapping, Sized
import dataclasses
from typing import Any, Generic, TypeAlias, TypeVar

from relive import errors
from relive.common import arrays
from relive.common import validation
from relive.windows import batches

A = TypeVar("A", bound=Sized)
Tree: TypeAlias = Any
"""An array of that library, or a dict of trees."""


@dataclasses.dataclass(kw_only=True, slots=True, eq=False)
class Transitions(Generic[A]):
    """What a TransitionBatch holds, field by field."""

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

    def __len__(self) -> int:
        """Return B."""
        return len(self.weights)


@dataclasses.dataclass(kw_only=True, slots=True, eq=False)
class Sequences(Generic[A]):
    """What a SequenceBatch holds, field by field."""

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

    def __len__(self) -> int:
        """Return B."""
        return len(self.weights)


def check_batch(batch: object) -> None:
    """Raise ArgumentTypeError unless that is a batch of arrays of numpy."""
    if not isinstance(batch, batches.TransitionBatch | batches.SequenceBatch):
        raise errors.ArgumentTypeError(f"batch must be what a buffer has drawn, got {validation.short_repr(batch)}")


def converted(batch: Any, convert: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return the fields of a batch by name, with what `convert` makes of each array, given its path and the array."""
    names = [field.name for field in dataclasses.fields(batch)]
    return {name: _converted(name, getattr(batch, name), convert) for name in names if name != "keys"} | {
        "keys": batch.keys
    }


def _converted(path: str, tree: Any, convert: Callable[[str, Any], Any]) -> Any:
    if isinstance(tree, Mapping):
        return {key: _converted(f"{path}/{key}", part, convert) for key, part in tree.items()}
    return convert(path, tree)
