"""JAX: batches as JAX arrays; every kind of batch is a pytree that jitted functions accept.

batch = as_jax(buffer.sample(256))
priorities = jax.jit(update)(parameters, batch)
buffer.update_priorities(batch.keys, priorities)
"""

from collections.abc import Callable
import dataclasses
from typing import Any, Protocol, TypeAlias, TypeVar, overload

import numpy as np

from relive import errors
from relive.agents import packing
from relive.common import arrays as arrays_lib
from relive.common import imports
from relive.episodes import samples
from relive.joint import batch as joint_batch
from relive.windows import batches

with imports.optional_dependency("jax"):
    import jax
    from jax import dtypes
    from jax import tree_util

Device: TypeAlias = Any
"""A jax.Device, or what `jax.device_put` takes beside."""

T_co = TypeVar("T_co", covariant=True)


class _Mapped(Protocol[T_co]):
    """A batch of numpy arrays with a method `map`."""

    def map(self, function: "Callable[[arrays_lib.Array], jax.Array]", /) -> T_co: ...


@overload
def as_jax(batch: _Mapped[T_co], *, device: "Device | None" = None) -> T_co: ...


@overload
def as_jax(
    batch: list[samples.ReplaySample[Any, Any]], *, device: "Device | None" = None
) -> "batches.TransitionBatch[jax.Array]": ...


@overload
def as_jax(
    batch: tuple[arrays_lib.Array, arrays_lib.Array], *, device: "Device | None" = None
) -> "tuple[jax.Array, jax.Array]": ...


@overload
def as_jax(batch: dict[str, arrays_lib.Array], *, device: "Device | None" = None) -> "dict[str, jax.Array]": ...


def as_jax(batch: Any, *, device: "Device | None" = None) -> Any:
    """Convert drawn data to JAX arrays, by DLPack: on the CPU without a copy where possible.

    Unless `jax_enable_x64` is set, float64 is rounded to float32, and 64-bit integers become 32-bit ones if all of them
    fit. Finite numbers stay finite.

    A batch is a pytree of all its arrays except the keys, which have 64 bits. In a batch returned by a JAX function
    the keys are None, and so are the episode ids of a TokenBatch; take them from the input batch. A batch of numpy
    arrays passed to such a function is converted by JAX itself, which truncates integers that do not fit.

    Args:
        batch: A batch of any kind; arrays in a dict or tuple, as returned by an ItemReplayBuffer or RolloutBuffer; or a
            list of ReplaySamples, which become a TransitionBatch as with `TransitionBatch.from_samples`. Do not modify
            it afterwards: JAX arrays are immutable and may share its memory.
        device: The target device; None for the default.

    Raises:
        ArgumentTypeError: `batch` is not drawn data.
        ArgumentError: A field has a dtype that JAX does not support, such as text, or a number that does not fit in 32
            bits; or the samples cannot form a batch.

    >>> import relive
    >>> from relive.integrations import jax as relive_jax
    >>> buffer = relive.RingReplayBuffer(10, seed=0)
    >>> keys = buffer.add_episode([0.0, 1.0, 2.0], [0, 1], [0.0, 1.0], terminated=True)
    >>> relive_jax.as_jax(buffer.sample(4)).reward.shape
    (4,)
    """
    parts: list[arrays_lib.Array] = []
    with np.errstate(all="ignore", over="raise"):
        batches.converted(batch, lambda root, name, array: parts.append(_array(root + name, array)))
    made = iter(jax.device_put(parts, device))  # One call for all: each takes as long as a whole draw.
    return batches.converted(batch, lambda root, name, array: next(made))


def _array(path: str, array: arrays_lib.Array) -> arrays_lib.Array:
    """Return an array of a dtype that JAX has; raise ArgumentError if there is none for its numbers."""
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > 16 or (array.dtype.kind == "f" and array.itemsize > 8):
        raise errors.ArgumentError(f"{path} must be of a dtype that JAX has, got {array.dtype}")
    dtype = np.dtype(dtypes.canonicalize_dtype(array.dtype.newbyteorder("=")))
    cast = array
    try:
        cast = np.ascontiguousarray(array, dtype)
        fits = array.dtype.kind not in "iu" or dtype.itemsize == array.itemsize or bool((cast == array).all())
    except FloatingPointError:
        fits = False
    if not fits:
        rule = f"must fit the {8 * dtype.itemsize} bits of {dtype}"
        raise errors.ArgumentError(f"{path} {rule}: set jax_enable_x64 for more")
    return cast


def _register(kind: Any) -> None:
    """Register one kind of batch as a pytree."""
    names = batches.array_names(kind)
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(kind) if field.name not in names)

    def flatten(batch: Any) -> tuple[list[tuple[Any, Any]], None]:
        return [(tree_util.GetAttrKey(name), getattr(batch, name)) for name in names], None

    def unflatten(_: None, parts: Any) -> Any:
        return kind(**nothing, **dict(zip(names, parts, strict=True)))

    tree_util.register_pytree_with_keys(kind, flatten, unflatten)


for _kind in (
    batches.TransitionBatch,
    batches.SequenceBatch,
    packing.TokenBatch,
    joint_batch.AgentBatch,
    joint_batch.JointBatch,
    joint_batch.JointSequenceBatch,
):
    _register(_kind)
