"""What buffers draw as tensors of PyTorch, and buffers as a DataLoader.

batch = as_tensors(buffer.sample(256))                          on the CPU
batch = as_tensors(buffer.sample(256)).pin_memory().to("cuda", non_blocking=True)
loader = data_loader(buffer, 256, num_batches=1_000, num_workers=2)
"""

from collections.abc import Callable, Iterator
import inspect
import math
from typing import Any, Literal, NoReturn, Protocol, TypeAlias, TypeVar, overload

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import arrays
from relive.common import imports
from relive.common import validation
from relive.episodes import samples
from relive.windows import batches

with imports.optional_dependency("torch"):
    import torch
    from torch.utils import data
    from torch.utils.data._utils import collate

Dtype: TypeAlias = "torch.dtype | Literal['default'] | None"
"""What floats become: that dtype, `torch.get_default_dtype()`, or None for what they are."""

T_co = TypeVar("T_co", covariant=True)


class _Mapped(Protocol[T_co]):
    """A batch of arrays, of which `map` makes one of tensors."""

    def map(self, function: "Callable[[arrays.Array], torch.Tensor]", /) -> T_co: ...


@overload
def as_tensors(batch: _Mapped[T_co], *, dtype: Dtype = "default") -> T_co: ...


@overload
def as_tensors(
    batch: list[samples.ReplaySample[Any, Any]], *, dtype: Dtype = "default"
) -> "batches.TransitionBatch[torch.Tensor]": ...


@overload
def as_tensors(
    batch: tuple[arrays.Array, arrays.Array], *, dtype: Dtype = "default"
) -> "tuple[torch.Tensor, torch.Tensor]": ...


@overload
def as_tensors(batch: dict[str, arrays.Array], *, dtype: Dtype = "default") -> "dict[str, torch.Tensor]": ...


def as_tensors(batch: Any, *, dtype: Dtype = "default") -> Any:
    """Return what a buffer has drawn as tensors on the CPU, its floats in the dtype of a network's parameters.

    What has its dtype already lies in the memory of the batch: who changes one changes the other. Copied is an array of
    floats in another dtype, one whose dtype is not in the byte order of the machine, whose rows lie at odd places or
    backwards, or that is read-only. The keys stay an array of numpy.

    Args:
        batch: A batch of any kind; arrays in a dict or a tuple, as an ItemReplayBuffer or a RolloutBuffer returns them;
            or a list of ReplaySamples, which become a TransitionBatch as `TransitionBatch.from_samples` has it.
        dtype: What floats become: "default" for `torch.get_default_dtype()`, a dtype such as torch.float64, or None for
            what they are. All else keeps its dtype.

    Raises:
        ArgumentTypeError: It is nothing that a buffer draws, or `dtype` is no dtype of torch for floats.
        ArgumentError: A field is of a dtype that tensors do not have, such as text; or it has a finite number that
            would be infinite in `dtype`; or samples cannot be a batch.

    >>> import relive
    >>> from relive.integrations import torch as relive_torch
    >>> buffer = relive.RingReplayBuffer(10, seed=0)
    >>> keys = buffer.add_episode([0.0, 1.0, 2.0], [0, 1], [0.0, 1.0], terminated=True)
    >>> relive_torch.as_tensors(buffer.sample(4)).reward.dtype
    torch.float32
    """
    floats = _float_dtype(dtype)
    return batches.converted(batch, lambda path, array: _cast(path, _tensor(path, array), floats))


def _float_dtype(dtype: Any) -> "torch.dtype | None":
    if isinstance(dtype, str) and dtype == "default":
        return torch.get_default_dtype()
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        return dtype
    raise errors.ArgumentTypeError(f"dtype must be a dtype of torch for floats, 'default' or None, got {dtype!r}")


def _cast(path: str, tensor: "torch.Tensor", dtype: "torch.dtype | None") -> "torch.Tensor":
    """Return a tensor of floats in a dtype, and another as it is."""
    if dtype is None or not tensor.is_floating_point() or tensor.dtype == dtype:
        return tensor
    cast = tensor.to(dtype)
    # A finite sum says in one pass that all are.
    if not math.isfinite(cast.sum().item()) and not torch.equal(cast.isfinite(), tensor.isfinite()):
        raise errors.ArgumentError(f"{path} must fit {dtype}: set dtype for more")
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


def data_loader(
    buffer: "column.ColumnReplayBuffer[Any]",
    batch_size: int,
    *,
    num_batches: int | None = None,
    num_workers: int = 0,
    pin_memory: bool = False,
    dtype: Dtype = "default",
    **options: Any,
) -> "data.DataLoader[Any]":
    """Return a DataLoader of batches of tensors.

    Args:
        buffer: Where to draw.
        batch_size: How many in a batch, B.
        num_batches: After how many batches a pass ends; None for never.
        num_workers: How many processes draw, each from a copy of the buffer as it was when the pass began; 0 to draw
            from the buffer itself, as a buffer with priorities must.
        pin_memory: Whether batches are in memory that a GPU can copy from while the CPU goes on.
        dtype: As in `as_tensors`.
        options: What `sample` of the buffer takes besides, such as `n_step`.

    Raises:
        ArgumentError: An argument breaks its rule.
        TypeError: `sample` takes no such option.

    >>> import relive
    >>> from relive.integrations import torch as relive_torch
    >>> buffer = relive.RingReplayBuffer(10, seed=0)
    >>> keys = buffer.add_episode([0.0, 1.0, 2.0], [0, 1], [0.0, 1.0], terminated=True)
    >>> [len(batch) for batch in relive_torch.data_loader(buffer, 4, num_batches=2, n_step=2)]
    [4, 4]
    """
    dataset = ReplayDataset(buffer, batch_size, num_batches=num_batches, dtype=dtype, **options)
    workers = validation.non_negative_int("num_workers", num_workers)
    if workers and buffer.has_priorities:
        raise errors.ArgumentError(
            f"num_workers must be 0 for a buffer with priorities, which copies would not be told of, got {workers}"
        )
    return data.DataLoader(dataset, batch_size=None, num_workers=workers, pin_memory=pin_memory)


class ReplayDataset(data.IterableDataset[Any]):
    """Batches of tensors for a DataLoader with options that `data_loader` does not have.

    Pass it with `batch_size=None`, since each item is a whole batch; a loader that would join them raises
    ArgumentError.

    Without workers it draws from the buffer itself, as `sample` does, and sees all that is added. A worker has the
    buffer as it was when the worker was made: at the beginning of a pass, or with `persistent_workers` of the first
    one. It draws with a generator of its own, seeded from that of torch (`torch.manual_seed`, or the loader's
    `generator=`), the worker's number and, where the worker stays, that of the pass: no two workers or passes draw the
    same, and two runs do.

    Args:
        buffer: Where to draw.
        batch_size: How many in a batch, B.
        num_batches: After how many batches an iterator of the loader ends, all workers together; None for never.
        dtype: As in `as_tensors`.
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
        dtype: Dtype = "default",
        **options: Any,
    ) -> None:
        super().__init__()
        validation.require_instance("buffer", buffer, column.ColumnReplayBuffer)
        self._buffer = buffer
        self._batch_size = validation.positive_int("batch_size", batch_size)
        self._num_batches = None if num_batches is None else validation.positive_int("num_batches", num_batches)
        _float_dtype(dtype)
        self._dtype: Dtype = dtype
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
            yield as_tensors(self._buffer.sample(self._batch_size, **self._options), dtype=self._dtype)
            drawn += count


def _refuse_to_join(drawn: Any, *, collate_fn_map: Any = None) -> NoReturn:
    raise errors.ArgumentError("batch_size of a DataLoader must be None for a ReplayDataset: use data_loader")


collate.default_collate_fn_map[batches.Batch] = _refuse_to_join
