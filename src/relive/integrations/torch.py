"""Batches as tensors of PyTorch, and buffers as data sets of its DataLoader.

batch = as_tensors(buffer.sample(256))                          on the CPU, without a copy
batch = as_tensors(buffer.sample(256)).pin_memory().to("cuda", non_blocking=True)
loader = torch.utils.data.DataLoader(ReplayDataset(buffer, 256), batch_size=None, num_workers=2)
"""

from collections.abc import Iterator
import inspect
from typing import Any, Self, TypeAlias, overload

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import arrays as array_lib
from relive.common import imports
from relive.common import validation
from relive.integrations import arrays
from relive.windows import batches

with imports.optional_dependency("torch"):
    import torch
    from torch.utils import data

Device: TypeAlias = "torch.device | str | int"


class _OnDevices:
    """What both kinds of batches can do."""

    def pin_memory(self) -> Self:
        """Return the batch in memory that a device can copy from while the CPU goes on."""
        return type(self)(**arrays.converted(self, lambda path, tensor: tensor.pin_memory()))

    def to(self, device: Device, *, non_blocking: bool = False) -> Self:
        """Return the batch on a device.

        Args:
            device: Where to.
            non_blocking: Whether to go on before the copy has ended; from pinned memory alone it makes a difference.
        """
        return type(self)(**arrays.converted(self, lambda path, tensor: tensor.to(device, non_blocking=non_blocking)))


class TransitionTensors(arrays.Transitions["torch.Tensor"], _OnDevices):
    """A TransitionBatch with tensors in the place of arrays; the keys stay an array."""

    __slots__ = ()


class SequenceTensors(arrays.Sequences["torch.Tensor"], _OnDevices):
    """A SequenceBatch with tensors in the place of arrays; the keys stay an array."""

    __slots__ = ()


@overload
def as_tensors(batch: batches.TransitionBatch) -> TransitionTensors: ...


@overload
def as_tensors(batch: batches.SequenceBatch) -> SequenceTensors: ...


def as_tensors(batch: Any) -> Any:
    """Return a batch as tensors on the CPU, in the memory of its arrays: who changes one changes the other.

    An array whose dtype is not in the byte order of the machine, whose rows lie at odd places or backwards, or that is
    read-only, is copied.

    Raises:
        ArgumentTypeError: It is no batch.
        ArgumentError: A field is of a dtype that tensors do not have, such as text.

    >>> import relive
    >>> from relive.integrations import torch as relive_torch
    >>> buffer = relive.RingReplayBuffer(10, seed=0)
    >>> keys = buffer.add_episode([0.0, 1.0, 2.0], [0, 1], [0.0, 1.0], terminated=True)
    >>> relive_torch.as_tensors(buffer.sample(4)).reward.shape
    torch.Size([4])
    """
    arrays.check_batch(batch)
    kind = SequenceTensors if isinstance(batch, batches.SequenceBatch) else TransitionTensors
    return kind(**arrays.converted(batch, _tensor))


def _tensor(path: str, array: array_lib.Array) -> "torch.Tensor":
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

    Without workers it draws from the buffer itself, as `sample` does, and hears of all that is added. A worker has the
    buffer as it was when the worker was made: at the beginning of a pass, or with `persistent_workers` of the first
    one. It draws with a generator of its own, seeded from that of torch (`torch.manual_seed`, or the loader's
    `generator=`), the worker's number and, where the worker stays, that of the pass: no two workers or passes draw the
    same, and two runs do.

    Args:
        buffer: Where to draw.
        batch_size: How many in a batch, B.
        num_batches: After how many batches an iterator of the loader ends, all workers together; None for never.
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
        **options: Any,
    ) -> None:
        super().__init__()
        validation.require_instance("buffer", buffer, column.ColumnReplayBuffer)
        self._buffer = buffer
        self._batch_size = validation.positive_int("batch_size", batch_size)
        self._num_batches = None if num_batches is None else validation.positive_int("num_batches", num_batches)
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
            yield as_tensors(self._buffer.sample(self._batch_size, **self._options))
            drawn += count
