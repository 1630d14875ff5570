"""Batches as tensors of PyTorch, and buffers as data sets of its DataLoader.

batch = as_tensors(buffer.sample(256))                          on the CPU
batch = as_tensors(buffer.sample(256)).pin_memory().to("cuda", non_blocking=True)
loader = torch.utils.data.DataLoader(ReplayDataset(buffer, 256), batch_size=None, num_workers=2)
"""

from collections.abc import Iterator
import inspect
from typing import Any, overload

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import arrays
from relive.common import imports
from relive.common import validation
from relive.windows import batches

with imports.optional_dependency("torch"):
    import torch
    from torch.utils import data


@overload
def as_tensors(
    batch: batches.TransitionBatch, *, float_dtype: "torch.dtype | None" = None
) -> "batches.TransitionBatch[torch.Tensor]": ...


@overload
def as_tensors(
    batch: batches.SequenceBatch, *, float_dtype: "torch.dtype | None" = None
) -> "batches.SequenceBatch[torch.Tensor]": ...


def as_tensors(batch: Any, *, float_dtype: "torch.dtype | None" = None) -> Any:
    """Return a batch as tensors on the CPU, its floats in the dtype of a network's parameters.

    What has its dtype already lies in the memory of the batch: who changes one changes the other. Copied is an array of
    floats in another dtype, one whose dtype is not in the byte order of the machine, whose rows lie at odd places or
    backwards, or that is read-only.

    Args:
        batch: What a buffer has drawn.
        float_dtype: What floats become, such as torch.float64; None for `torch.get_default_dtype()`.

    Raises:
        ArgumentTypeError: It is no batch, or float_dtype is no dtype of torch for floats.
        ArgumentError: A field is of a dtype that tensors do not have, such as text; or it has a finite number that
            would be infinite in float_dtype.

    >>> import relive
    >>> from relive.integrations import torch as relive_torch
    >>> buffer = relive.RingReplayBuffer(10, seed=0)
    >>> keys = buffer.add_episode([0.0, 1.0, 2.0], [0, 1], [0.0, 1.0], terminated=True)
    >>> relive_torch.as_tensors(buffer.sample(4)).reward.dtype
    torch.float32
    """
    batches.require_arrays(batch)
    dtype = torch.get_default_dtype() if float_dtype is None else _require_float_dtype(float_dtype)
    return batches.converted(batch, lambda path, array: _cast(path, _tensor(path, array), dtype))


def _require_float_dtype(dtype: Any) -> "torch.dtype":
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise errors.ArgumentTypeError(f"float_dtype must be a dtype of torch for floats, got {dtype!r}")
    return dtype


def _cast(path: str, tensor: "torch.Tensor", dtype: "torch.dtype") -> "torch.Tensor":
    """Return a tensor of floats in a dtype, and another as it is."""
    if not tensor.is_floating_point() or tensor.dtype == dtype:
        return tensor
    cast = tensor.to(dtype)
    if not torch.equal(cast.isfinite(), tensor.isfinite()):
        raise errors.ArgumentError(f"{path} must fit {dtype}: set float_dtype for more")
    return cast


def _tensor(path: str, array: arrays.Array) -> "torch.Tensor":
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise errors.ArgumentError(f"{path} must be of a dtype that tensors have, got {array.dtype}") from error


class ReplayDataset(data.IterableDataset[Any]):
    """Batches of tensors for a DataLoader: pass it with `batch_size=None`, since each item is a whole batch.

    Without workers it draws from the buffer itself, as `sample` does, and sees all that is added. A worker has the
    buffer as it was when the worker was made: at the beginning of a pass, or with `persistent_workers` of the first
    one. It draws with a generator of its own, seeded from that of torch (`torch.manual_seed`, or the loader's
    `generator=`), the worker's number and, where the worker stays, that of the pass: no two workers or passes draw the
    same, and two runs do.

    Args:
        buffer: Where to draw.
        batch_size: How many in a batch, B.
        num_batches: After how many batches an iterator of the loader ends, all workers together; None for never.
        float_dtype: As in `as_tensors`.
        options: What `sample` of the buffer takes besides, such as `n_step`.

    Raises:
        ArgumentError: An argument breaks its rule.
        TypeError: `sample` takes no such option.
    """

    def __init__(
        self,
        buffer: "column.ColumnReplayBuffer[Any]",
        batch_size: int,
        *,
        num_batches: int | None = None,
        float_dtype: "torch.dtype | None" = None,
        **options: Any,
    ) -> None:
        super().__init__()
        validation.require_instance("buffer", buffer, column.ColumnReplayBuffer)
        self._buffer = buffer
        self._batch_size = validation.positive_int("batch_size", batch_size)
        self._num_batches = None if num_batches is None else validation.positive_int("num_batches", num_batches)
        self._float_dtype = None if float_dtype is None else _require_float_dtype(float_dtype)
        inspect.signature(buffer.sample).bind(batch_size, **options)
        self._options = options
        self._num_passes = 0

    def __len__(self) -> int:
        """Return how many batches a pass has, of all workers together.

        Raises:
            TypeError: It has no end.
        """
        if self._num_batches is None:
            raise TypeError("a ReplayDataset without num_batches has no length")
        return self._num_batches

    def __iter__(self) -> Iterator[Any]:
        worker = data.get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        if worker is not None:
            # The seed is that of the loader's generator and the worker's number, which torch has added; it stays where
            # the worker does.
            bits = self._buffer.rng.bit_generator
            bits.state = type(bits)(np.random.SeedSequence((worker.seed, self._num_passes))).state
            self._num_passes += 1
        drawn = number
        while self._num_batches is None or drawn < self._num_batches:
            yield as_tensors(self._buffer.sample(self._batch_size, **self._options), float_dtype=self._float_dtype)
            drawn += count
