"""PyTorch: batches as tensors or TensorDicts, and buffers as a DataLoader.

batch = as_tensors(buffer.sample(256))                          on the CPU
batch = as_tensors(buffer.sample(256), device="cuda")           on a GPU
batch = as_tensors(buffer.sample(256)).pin_memory().to("cuda", non_blocking=True)
loader = data_loader(buffer, 256, num_batches=1_000, num_workers=2)
td = as_tensordict(token_buffer.sample(256), nested=True)       and back with from_tensordict(td)
"""

from collections.abc import Callable, Iterator
import dataclasses
import importlib
import inspect
import itertools
import math
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar, overload

import numpy as np

from relive import errors
from relive.agents import packing
from relive.agents import tokens
from relive.buffers import column
from relive.common import arrays as arrays_lib
from relive.common import imports
from relive.common import validation
from relive.episodes import samples
from relive.integrations import tensor_storage
from relive.windows import batches

with imports.optional_dependency("torch"):
    import torch
    from torch.utils import data

if TYPE_CHECKING:
    import tensordict

Dtype: TypeAlias = "torch.dtype | Literal['default'] | None"
"""What floats become: that dtype, `torch.get_default_dtype()`, or None for what they are."""

_EXTRAS = "extras/"
"""What the names of extras begin with in a TensorDict: verl and TransferQueue lose one TensorDict in another."""
_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_CAST_ALIKE: dict[Any, Any] = {torch.float32: (_DOUBLE, _SINGLE), torch.float64: (_SINGLE, _DOUBLE)}
"""From which dtype to which numpy casts as torch does, to the last bit: not so to and from float16."""
_LISTS = ("episode_ids", "agent_ids", "group_ids", "mismatches", "metadata")
_OF_TOKENS = (*tokens.FIELDS, "attention_mask")
_FLOATS = ("logprobs", "rewards", "probabilities", "weights", "returns")
_KINDS = {
    **dict.fromkeys(("attention_mask", "loss_mask", "is_exact"), ("bools", torch.bool)),
    "steps": ("integers, torch.int32", torch.int32),
}
"""Of fields that are neither floats nor 64-bit integers."""
Device: TypeAlias = "torch.device | str | int | None"
"""Where tensors are; None for the CPU."""

TensorStorage = tensor_storage.TensorStorage
T_co = TypeVar("T_co", covariant=True)


class _Mapped(Protocol[T_co]):
    """A batch of arrays with a method `map`."""

    def map(self, function: "Callable[[arrays_lib.Array], torch.Tensor]", /) -> T_co: ...


@overload
def as_tensors(batch: _Mapped[T_co], *, dtype: Dtype = "default", device: Device = None) -> T_co: ...


@overload
def as_tensors(
    batch: list[samples.ReplaySample[Any, Any]], *, dtype: Dtype = "default", device: Device = None
) -> "batches.TransitionBatch[torch.Tensor]": ...


@overload
def as_tensors(
    batch: tuple[arrays_lib.Array, arrays_lib.Array], *, dtype: Dtype = "default", device: Device = None
) -> "tuple[torch.Tensor, torch.Tensor]": ...


@overload
def as_tensors(
    batch: dict[str, arrays_lib.Array], *, dtype: Dtype = "default", device: Device = None
) -> "dict[str, torch.Tensor]": ...


def as_tensors(batch: Any, *, dtype: Dtype = "default", device: Device = None) -> Any:
    """Convert drawn data to tensors, with floats in torch's default dtype.

    Tensors share memory with the batch where possible, so modifying one modifies the other. Arrays are copied if they
    are floats of another dtype, not in native byte order, misaligned, reversed or read-only. Keys stay a numpy array.

    Args:
        batch: A batch of any kind; arrays in a dict or tuple, as returned by an ItemReplayBuffer or RolloutBuffer; or a
            list of ReplaySamples, which become a TransitionBatch as with `TransitionBatch.from_samples`. A batch of
            tensors, as from a buffer with a TensorStorage, is returned as it is unless `dtype` or `device` is given.
        dtype: The dtype of floats: "default" for `torch.get_default_dtype()`, a dtype such as torch.float64, or None to
            keep theirs. Everything else keeps its dtype.
        device: Where the tensors are, such as "cuda": `as_tensors(batch, device="cuda")` is
            `as_tensors(batch).to("cuda")`. None for the CPU.

    Raises:
        ArgumentTypeError: `batch` is not drawn data, `dtype` is not a torch float dtype, or `device` is not a device.
        ArgumentError: A field has a dtype that torch does not support, such as text, or a finite number that would be
            infinite in `dtype`; or the samples cannot form a batch.

    >>> import relive
    >>> from relive.integrations import torch as relive_torch
    >>> buffer = relive.RingReplayBuffer(10, seed=0)
    >>> keys = buffer.add_episode([0.0, 1.0, 2.0], [0, 1], [0.0, 1.0], terminated=True)
    >>> relive_torch.as_tensors(buffer.sample(4)).reward.dtype
    torch.float32
    """
    floats, place = _float_dtype(dtype), _device(device)
    if isinstance(getattr(batch, "reward", None), torch.Tensor):
        return batch if dtype == "default" and place is None else batch.map(lambda each: _moved(each, floats, place))
    source, target = _CAST_ALIKE.get(floats, (None, None))
    from_numpy = torch.from_numpy

    def convert(root: str, name: str, array: arrays_lib.Array) -> "torch.Tensor":
        given = array.dtype
        try:
            if given is source:
                # numpy takes a fifth of the time, and sees meanwhile whether a finite number becomes infinite.
                return from_numpy(array.astype(target))
            if (given is target or given.kind in "biu") and array.flags.writeable:
                return from_numpy(array)
        except FloatingPointError:
            raise _too_large(root + name, floats) from None
        except (TypeError, ValueError):
            pass
        return _cast(root + name, _tensor(root + name, array), floats)

    def convert_and_move(root: str, name: str, array: arrays_lib.Array) -> "torch.Tensor":
        return convert(root, name, array).to(place)

    with np.errstate(all="ignore", over="raise"):
        return batches.converted(batch, convert if place is None else convert_and_move)


def _moved(tensor: "torch.Tensor", dtype: "torch.dtype | None", device: "torch.device | None") -> "torch.Tensor":
    """Return a tensor on a device, None for where it is; floats in a dtype, unless that is None."""
    return tensor.to(device or tensor.device, dtype if dtype and tensor.is_floating_point() else tensor.dtype)


def _device(device: Any) -> "torch.device | None":
    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError) as error:
        rule = "device must be a device of torch, its name or None"
        raise errors.ArgumentTypeError(f"{rule}, got {validation.short_repr(device)}") from error


def _float_dtype(dtype: Any) -> "torch.dtype | None":
    if isinstance(dtype, str) and dtype == "default":
        return torch.get_default_dtype()
    # Floats of 8 bits are for storage: torch can neither sum nor compare them.
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point and dtype.itemsize > 1):
        return dtype
    raise errors.ArgumentTypeError(f"dtype must be a dtype of torch for floats, 'default' or None, got {dtype!r}")


def _cast(path: str, tensor: "torch.Tensor", dtype: "torch.dtype | None") -> "torch.Tensor":
    """Cast a tensor of floats to a dtype; return others unchanged."""
    if dtype is None or not tensor.is_floating_point() or tensor.dtype == dtype:
        return tensor
    cast = tensor.to(dtype)
    # One pass: if the sum is finite, all values are.
    if not math.isfinite(cast.sum().item()) and not torch.equal(cast.isfinite(), tensor.isfinite()):
        raise _too_large(path, dtype)
    return cast


def _too_large(path: str, dtype: "torch.dtype | None") -> errors.ArgumentError:
    return errors.ArgumentError(f"{path} must fit {dtype}: set dtype for more")


def _tensor(path: str, array: arrays_lib.Array) -> "torch.Tensor":
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or any(stride < 0 or stride % array.itemsize for stride in array.strides):
        array = array.copy()
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise errors.ArgumentError(f"{path} must be of a dtype that tensors have, got {array.dtype}") from error


def as_tensordict(batch: "packing.TokenBatch[arrays_lib.Array]", *, nested: bool = False) -> "tensordict.TensorDict":
    """Convert a batch of tokens to a TensorDict of the same names on the CPU, of batch size [B].

    Fields of tokens are padded [B, L, ...], or nested by `cu_seqlens`, in the jagged layout of torch; then `padding`
    has for each row the token that would pad it, and L [B, 2]. Extras are entries `extras/NAME`; names and mismatches
    are non-tensor data, one for each row. All dtypes are kept, and memory is shared as by `as_tensors`.

    Raises:
        ArgumentTypeError: `batch` is not a TokenBatch of numpy, or `nested` is neither True nor False.
        ArgumentError: A field has a dtype that torch does not support.
        MissingExtraError: tensordict is not installed.

    >>> import relive
    >>> from relive.integrations import torch as relive_torch
    >>> step = relive.TokenStep(prompt=[1, 5], response=[7], logprobs=[-0.5], policy_version=0)
    >>> episode = relive.Episode(episode_id="e", agent_id="a", actions=[step], rewards=[0.0])
    >>> batch = relive.TokenBatch.from_episodes([episode])
    >>> relive_torch.as_tensordict(batch)["tokens"]
    tensor([[1, 5, 7]])
    >>> relive_torch.from_tensordict(relive_torch.as_tensordict(batch, nested=True)).tokens
    array([[1, 5, 7]])
    """
    library = _tensordict()
    validation.require_instance("batch", batch, packing.TokenBatch)
    batch._require_numpy("as_tensordict")
    is_nested, mask = validation.boolean("nested", nested), batch.attention_mask
    offsets = torch.from_numpy(np.cumsum(np.append(0, batch.lengths)))

    def entry(path: str, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return library.NonTensorStack(*[library.NonTensorData(each) for each in value])
        if is_nested and value.ndim > 1:
            return torch.nested.nested_tensor_from_jagged(_tensor(path, value[mask]), offsets)
        return _tensor(path, value)

    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    fields |= {_EXTRAS + name: each for name, each in fields.pop("extras").items()}
    entries = {path: entry(path, value) for path, value in fields.items()}
    if is_nested:
        pad_token_id = int(batch.tokens.max(where=~mask, initial=0))
        entries["padding"] = torch.tensor([pad_token_id, mask.shape[1]]).repeat(len(batch), 1)
    return library.TensorDict(entries, [len(batch)])


def from_tensordict(td: "tensordict.TensorDictBase") -> "packing.TokenBatch[arrays_lib.Array]":
    """Convert a TensorDict from `as_tensordict`, or some of its rows, back to a batch of tokens, equal bit for bit.

    A padded one may have become jagged meanwhile, as in a queue that stores rows. Where rows have several lengths, in
    the padding of the batch are the values that a buffer pads with. Tensors on the CPU share memory with the batch if
    it was padded. Other entries of the TensorDict are ignored.

    Raises:
        ArgumentTypeError: `td` is not a TensorDict.
        ArgumentError: A field is missing, has another dtype than `as_tensordict` gives it, as after `td.half()`, or
            another shape than goes with `tokens`; the batch size is not [B]; `extras` are nested; numpy cannot read a
            tensor; or `td` is a lazy stack of rows of several lengths.
        MissingExtraError: tensordict is not installed.
    """
    library = _tensordict()
    validation.require_instance("td", td, library.TensorDictBase)
    if td.batch_dims != 1:
        raise errors.ArgumentError(f"td must have a batch size of [B], got {list(td.batch_size)}")
    held = [*td.keys()]
    widths = _widths(_entry(td, "tokens")) if "tokens" in held else []
    names = [field.name for field in dataclasses.fields(packing.TokenBatch) if field.name != "extras"]
    missing = [name for name in [*names, *["padding"] * (len({*widths}) > 1)] if name not in held]
    if missing:
        raise errors.ArgumentError(f"td must have all fields of a TokenBatch, but has no {', '.join(missing)}")
    if "extras" in held:
        raise errors.ArgumentError('td must have extras as entries extras/NAME, got extras: call td.flatten_keys("/")')
    extras = [name for name in held if name.startswith(_EXTRAS)]
    entries = {name: _entry(td, name) for name in [*names, *extras, "padding"] if name in held}
    of_rows: dict[str, Any] = {}
    for name in _LISTS:
        each = entries.pop(name)
        of_rows[name] = each.tolist() if library.is_non_tensor(each) else each
        if not (isinstance(of_rows[name], list) and len(of_rows[name]) == len(td)):
            shown = validation.short_repr(of_rows[name])
            raise errors.ArgumentError(f"{name} must be non-tensor data, one for each row, got {shown}")
    of_rows["metadata"] = tuple(of_rows["metadata"])
    # A queue may have made a dict of a dataclass.
    of_rows["mismatches"] = [
        tokens.TokenMismatch(**each) if isinstance(each, dict) else each for each in of_rows["mismatches"]
    ]
    for name, each in entries.items():
        _check_entry(name, each, widths)
    is_nested = "padding" in entries
    shape = [sum(widths)] if is_nested else [len(widths), max(widths, default=0)]
    columns: dict[str, Any] = {name: _numpy(name, each) for name, each in entries.items() if each.ndim > 1}
    of_rows |= {name: _numpy(name, each) for name, each in entries.items() if each.ndim == 1}
    padding = columns.pop("padding", np.empty(0))
    for name in columns:
        if is_nested or entries[name].is_nested:
            columns[name] = columns[name].reshape(*shape, *entries[name].shape[2:])
    of_sequences = {name.removeprefix(_EXTRAS): of_rows.pop(name) for name in extras if name in of_rows}
    of_tokens = {name.removeprefix(_EXTRAS): columns.pop(name) for name in extras if name in columns}
    if not is_nested:
        return packing.TokenBatch(**columns, **of_rows, extras=of_tokens | of_sequences)
    mask = columns.pop("attention_mask")
    del of_rows["lengths"]
    lengths = np.diff(np.cumsum(np.append(False, mask))[np.cumsum([0, *widths])])
    columns = {name: each[mask] for name, each in (columns | of_tokens).items()}
    pad_token_id, width = padding.reshape(-1, 2).max(axis=0, initial=0).tolist()
    return packing.TokenBatch.of(columns, lengths, of_sequences, (pad_token_id, max(width, 1)), **of_rows)


def _entry(td: Any, name: str) -> Any:
    """Return an entry of a TensorDict; nested tensors are jagged, without holes."""
    try:
        entry: Any = td.get(name)
    except RuntimeError as error:
        remedy = "call td.densify(layout=torch.jagged)"
        raise errors.ArgumentError(f"td must have rows that stack, got other shapes of {name}: {remedy}") from error
    if isinstance(entry, torch.Tensor) and entry.is_nested:
        if entry.layout is not torch.jagged:
            return torch.nested.as_nested_tensor([*entry.unbind()], layout=torch.jagged)
        return entry if entry.lengths() is None else entry.contiguous()  # type: ignore[attr-defined]
    return entry


def _widths(entry: Any) -> list[int]:
    """Return the number of tokens in each row of a tensor [B, L, ...], padded or jagged; nothing if it is none."""
    if not isinstance(entry, torch.Tensor) or entry.ndim < 2:
        return []
    if not entry.is_nested:
        return [entry.shape[1]] * entry.shape[0]
    offsets: torch.Tensor = entry.offsets()  # type: ignore[attr-defined]
    return offsets.diff().tolist() if len(entry.values()) == offsets[-1] else []


def _check_entry(path: str, entry: Any, widths: list[int]) -> None:
    """Raise ArgumentError if an entry has another shape than goes with rows of those widths [B], or another dtype."""
    is_extra, is_tensor = path.startswith(_EXTRAS), isinstance(entry, torch.Tensor)
    if path in _OF_TOKENS:
        rule, is_shaped = "[B, L], as tokens", is_tensor and entry.ndim == 2 and _widths(entry) == widths
    elif path == "padding":
        rule, is_shaped = "[B, 2]", _widths(entry) == [2] * len(widths)
    elif is_extra:
        rule, is_shaped = "[B] or [B, L, ...], as tokens", is_tensor and (entry.ndim == 1 or _widths(entry) == widths)
    else:
        rule, is_shaped = "[B]", is_tensor and entry.ndim == 1
    if not is_shaped:
        raise errors.ArgumentError(f"{path} must be {rule}, got {validation.short_repr(entry)}")
    kind, dtype = _KINDS.get(path, ("integers, torch.int64", torch.int64))
    if not is_extra and not (entry.is_floating_point() if path in _FLOATS else entry.dtype == dtype):
        raise errors.ArgumentError(f"{path} must be {'floats' if path in _FLOATS else kind}, got {entry.dtype}")


def _numpy(path: str, entry: "torch.Tensor") -> arrays_lib.Array:
    """Return the values of a tensor [B, ...], or of a jagged one [N, ...]."""
    try:
        return (entry.values() if entry.is_nested else entry).detach().cpu().numpy()
    except TypeError as error:
        raise errors.ArgumentError(f"{path} must be of a dtype that numpy has, got {entry.dtype}") from error
    except RuntimeError as error:
        raise errors.ArgumentError(f"{path} must be a tensor that numpy can read, got one on {entry.device}") from error


def _tensordict() -> Any:
    """Return the library, which nothing else here needs."""
    with imports.optional_dependency("tensordict"):
        return importlib.import_module("tensordict")


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
    """Return a DataLoader of batches of tensors, of a `ReplayDataset` with these arguments.

    Each of `num_workers` processes draws from a copy of the buffer made when the pass began; with 0, as priorities
    require, batches are drawn from the buffer itself. `pin_memory` puts them into pinned memory.

    Raises:
        ArgumentError: An argument is invalid.
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
        rule = "num_workers must be 0 for a buffer with priorities, whose updates workers would not see"
        raise errors.ArgumentError(f"{rule}, got {workers}")
    if workers:
        buffer._require_local("num_workers")
    return data.DataLoader(dataset, batch_size=None, num_workers=workers, pin_memory=pin_memory)


class ReplayDataset(data.IterableDataset[Any]):
    """An iterable dataset of batches of tensors, for a DataLoader with options that `data_loader` does not have.

    Pass it with `batch_size=None`, since each item is a whole batch.

    Without workers, it draws from the buffer itself and sees all additions. A worker has a copy of the buffer from when
    the worker was started: at the beginning of a pass, or of the first pass with `persistent_workers`. Its generator is
    seeded from torch's (`torch.manual_seed`, or the loader's `generator=`): draws differ between workers and passes,
    and are reproducible between runs.

    Args:
        buffer: The buffer to sample from.
        batch_size: The batch size, B.
        num_batches: Number of batches per iteration of the loader, over all workers; None for endless.
        dtype: As in `as_tensors`.
        options: Further arguments of the buffer's `sample`, such as `n_step`.

    Raises:
        ArgumentError: An argument is invalid.
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
        self._batch_size = validation.batch_size("batch_size", batch_size)
        self._num_batches = None if num_batches is None else validation.positive_int("num_batches", num_batches)
        _float_dtype(dtype)
        self._dtype: Dtype = dtype
        inspect.signature(buffer.sample).bind(batch_size, **options)
        self._options = options
        self._num_passes = 0

    def __len__(self) -> int:
        """Return the number of batches in a pass, over all workers; raise TypeError if the dataset is endless."""
        if self._num_batches is None:
            raise TypeError("a ReplayDataset without num_batches has no length")
        return self._num_batches

    def __iter__(self) -> Iterator[Any]:
        worker = data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        if worker is not None:
            # Its seed combines the loader's generator and its number, and stays the same for a persistent worker.
            bits = self._buffer.rng.bit_generator
            bits.state = type(bits)(np.random.SeedSequence((worker.seed, self._num_passes))).state
            self._num_passes += 1
        numbers = itertools.count() if self._num_batches is None else range(first, self._num_batches, step)
        for _ in numbers:
            yield as_tensors(self._buffer.sample(self._batch_size, **self._options), dtype=self._dtype)
