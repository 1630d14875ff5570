"""Batches as arrays of JAX, which jitted functions take as they are: both kinds are registered as pytrees.

batch = as_jax(buffer.sample(256))
priorities = jax.jit(update)(parameters, batch)
buffer.update_priorities(batch.keys, priorities)
"""

import dataclasses
from typing import Any, TypeAlias, overload

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import imports
from relive.windows import batches

with imports.optional_dependency("jax"):
    import jax
    from jax import dtypes
    from jax import tree_util

Device: TypeAlias = Any
"""A jax.Device, or what `jax.device_put` takes beside."""


@overload
def as_jax(
    batch: batches.TransitionBatch, *, device: "Device | None" = None
) -> "batches.TransitionBatch[jax.Array]": ...


@overload
def as_jax(batch: batches.SequenceBatch, *, device: "Device | None" = None) -> "batches.SequenceBatch[jax.Array]": ...


def as_jax(batch: Any, *, device: "Device | None" = None) -> Any:
    """Return a batch as arrays of JAX, by DLPack: on the CPU without a copy, where JAX can do without.

    Unless `jax_enable_x64` is set, JAX has 32 bits: float64 is rounded to float32, and integers of 64 bits become those
    of 32, where all of them fit. What is finite stays so.

    A batch is a pytree of all its arrays but the keys: names of 64 bits, which JAX would cut to 32. Where a function of
    JAX has made it, as within `jax.jit`, the keys are None; take them from the batch that went in.

    Args:
        batch: What a buffer has drawn. It must not be written to any more: arrays of JAX never change.
        device: Where to; None for the default.

    Raises:
        ArgumentTypeError: It is no batch.
        ArgumentError: A field is of a dtype that JAX does not have, such as text; or it has a number that does not fit
            in 32 bits.

    >>> import relive
    >>> from relive.integrations import jax as relive_jax
    >>> buffer = relive.RingReplayBuffer(10, seed=0)
    >>> keys = buffer.add_episode([0.0, 1.0, 2.0], [0, 1], [0.0, 1.0], terminated=True)
    >>> relive_jax.as_jax(buffer.sample(4)).reward.shape
    (4,)
    """
    batches.require_arrays(batch)
    return batches.converted(batch, lambda path, array: jax.device_put(_array(path, array), device))


def _array(path: str, array: arrays.Array) -> "jax.Array":
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > 16 or (array.dtype.kind == "f" and array.itemsize > 8):
        raise errors.ArgumentError(f"{path} must be of a dtype that JAX has, got {array.dtype}")
    dtype = np.dtype(dtypes.canonicalize_dtype(array.dtype.newbyteorder("=")))
    if dtype.itemsize < array.itemsize:
        _check_narrow(path, array, dtype)
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(array, dtype)
    return jax.numpy.from_dlpack(cast if cast.flags.writeable else cast.copy())


def _check_narrow(path: str, array: Any, dtype: "np.dtype[Any]") -> None:
    """Raise ArgumentError if an integer does not fit a dtype, or a number that is finite would not stay so."""
    limits: Any = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    parts = (array.real, array.imag) if dtype.kind == "c" else (array,)
    for part in parts:
        if not ((part >= limits.min) & (part <= limits.max) | ~np.isfinite(part)).all():
            rule = f"must fit the {8 * dtype.itemsize} bits of {dtype}"
            raise errors.ArgumentError(f"{path} {rule}: set jax_enable_x64 for more")


def _register(kind: Any) -> None:
    """Make a pytree of one kind of batch."""
    names = [field.name for field in dataclasses.fields(kind) if field.name != "keys"]

    def flatten(batch: Any) -> tuple[list[tuple[Any, Any]], None]:
        return [(tree_util.GetAttrKey(name), getattr(batch, name)) for name in names], None

    def unflatten(_: None, parts: Any) -> Any:
        return kind(keys=None, **dict(zip(names, parts, strict=True)))

    tree_util.register_pytree_with_keys(kind, flatten, unflatten)


_register(batches.TransitionBatch)
_register(batches.SequenceBatch)
