"""TensorStorage: observations, actions and extras as tensors on a device, under the rules of the CPU.

    rows    [1 + capacity, ...]      zeros, and the rows: a tensor for each field but the reward
    after   [streams + room, ...]    what is announced in each stream, then what is behind episodes that have ended

The store above it has addresses where others have values: 0 of zeros, 1 + slot of a row, then those of `after`. Steps
begin with the address of what was announced where the device says that the two are equal, and with -1 elsewhere. So
splices, links, n-step sums and priorities are those of any store, and what a window reads says what is to be gathered.

    extend   device   which observations are equal; these, rewards and flags in one copy to the host
             device   what would be lost of `after` to free places of it, what is behind ended episodes
             host     the rules, on addresses
             device   rows to their slots, what is announced
    sample   host     the window, of addresses, and all numbers of a batch in one copy to the device
             device   one gather for a field
"""

from collections.abc import Callable, Collection, Sequence
import dataclasses
import functools
import math
import os
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.kernels import append
from relive.persistence import state as state_lib
from relive.schema import casting
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import foreign
from relive.storage import memory
from relive.storage import next_round
from relive.storage import reader
from relive.storage import splices
from relive.storage import steps as steps_lib
from relive.storage import steps_state
from relive.windows import batches
from relive.windows import sequences
from relive.windows import transitions

with imports.optional_dependency("torch"):
    import torch

Tensors: TypeAlias = "dict[str, torch.Tensor]"
"""Tensors by path."""
_Pair: TypeAlias = tuple[Tensors, Tensors, arrays_lib.Ints | None]
"""Tensors to compare, and of which rows the answer counts; None for all."""

_SHARED = ("cpu",)
"""Types of devices whose memory numpy can read."""
_FIRST_ROOM = 16
_UNKNOWN = -1
"""The address of an observation that is not the one that was announced."""
_CPU = torch.device("cpu")
_ADDRESSES = {"observation": "observation", "next_observation": "observation", "action": "action", "extras": "extras"}
"""The fields of a batch that a window reads as addresses, and what is at those."""
_WINDOWS = (transitions.TransitionWindow, sequences.SequenceWindow)
_SIGNED: dict[str, np.dtype[Any]] = {"u2": np.dtype(np.int16), "u4": np.dtype(np.int32), "u8": np.dtype(np.int64)}
"""As which integers those are kept for which torch has few functions; their bits are the same."""
_CAST: dict[Any, np.dtype[Any]] = {torch.float32: np.dtype(np.float32), torch.float64: np.dtype(np.float64)}
"""To which dtypes of floats numpy casts as torch does."""


class _Rows(list[bytes]):
    """The bytes of rows of addresses, and the function that writes their values once their first key is known."""

    def __init__(self, rows: encoding.Row, write: Callable[[int], None]) -> None:
        super().__init__(rows)
        self.write = write


class TensorStorage:
    """A storage whose observations, actions and extras are tensors on a device; rewards stay in memory.

    Give it as `storage=` to a ring, prioritized or sequence buffer. Its calls then take tensors on that device, and its
    batches are tensors there: equal, in every field, to `as_tensors` of what the buffer would draw without it. A write
    copies to the host once, before anything is stored; a draw makes one copy to the device.

    Args:
        schema: The schema of a row; its dtypes must be those of tensors.
        capacity: Number of slots.
        device: A torch.device or its name. "cuda" is the current device when the storage is made.

    Raises:
        ArgumentError: A dtype is none of torch, or the device cannot hold the rows.
        ArgumentTypeError: `schema` is not a Schema, or `device` not a device.

    >>> import relive
    >>> from relive.integrations import torch as relive_torch
    >>> import torch
    >>> schema = relive.Schema(relive.Field(3, "float32"), relive.Field((), "int64"))
    >>> storage = relive_torch.TensorStorage(schema, 1_000, device="cpu")
    >>> buffer = relive.RingReplayBuffer(1_000, streams=2, storage=storage, n_step=3, seed=0)
    >>> now, next_ = torch.zeros(2, 3), torch.ones(2, 3)
    >>> keys = buffer.extend(now, torch.tensor([0, 1]), torch.ones(2), next_, terminated=torch.tensor([False, True]))
    >>> buffer.sample(256).next_observation.shape
    torch.Size([256, 3])
    """

    def __init__(self, schema: schema_lib.Schema, capacity: int, device: "torch.device | str | int" = "cpu") -> None:
        schema_lib.require("schema", schema)
        self._encoder = encoding.Encoder(schema)
        self._schema, self._capacity = schema, validation.positive_int("capacity", capacity)
        self.device = _device(device)
        self._process = os.getpid()
        kept = {path: field for path, field in schema.fields.items() if path != "reward"}
        self._kept: dict[str, np.dtype[Any]] = {
            path: _SIGNED.get(field.dtype.str[1:], field.dtype) for path, field in kept.items()
        }
        self._dtypes = {path: _torch_dtype(path, field.dtype) for path, field in kept.items()}
        self._kept_dtypes = {path: _torch_dtype(path, dtype) for path, dtype in self._kept.items()}
        self._unsigned = {path for path, field in kept.items() if field.dtype != self._kept[path]}
        addresses = schema_lib.Field(0, np.uint8)
        extras = {"row": addresses} if schema.extras else None
        places = schema_lib.Schema(schema_lib.Field((), np.int64), addresses, reward=schema.reward, extras=extras)
        self._places = memory.ColumnStorage(places, capacity)
        """What the store writes: rewards, and nothing that is read beside them."""
        self._rows = self._zeros(kept, 1 + capacity, "rows")

    def _zeros(self, paths: Collection[str], count: int, what: str, rule: str = "") -> Tensors:
        """Return tensors [count, ...] of zeros for those fields.

        Raises:
            ArgumentError: The device cannot hold them.
        """
        try:
            with torch.inference_mode(False):
                return {
                    path: torch.zeros(
                        (count, *self._schema.fields[path].shape), dtype=self._kept_dtypes[path], device=self.device
                    )
                    for path in paths
                }
        except (RuntimeError, MemoryError) as error:
            nbytes = sum(self._schema.fields[path].nbytes for path in paths)
            gigabytes = f"{count * nbytes / 2**30:,.1f} GiB in all"
            rule = (
                f"{what} must fit in the memory of {self.device}{rule}, got {count} of {nbytes} bytes each, {gigabytes}"
            )
            raise errors.ArgumentError(rule) from error

    def __repr__(self) -> str:
        return f"TensorStorage({self._capacity} rows on {self.device})"

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _process=os.getpid())

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return self._capacity

    @property
    def schema(self) -> schema_lib.Schema:
        """The schema of a row."""
        return self._schema

    @property
    def nbytes(self) -> int:
        """Number of bytes of all tensors and arrays."""
        return self._places.nbytes + sum(tensor.nbytes for tensor in self._rows.values())

    @property
    def _is_shared(self) -> bool:
        """Whether numpy can read the tensors."""
        return self.device.type in _SHARED

    def _require_own_process(self) -> None:
        """Raise ArgumentError in a forked process: it cannot use the device of its parent."""
        if os.getpid() != self._process:
            rule = f"a TensorStorage belongs to process {self._process}, of which this is a fork"
            raise errors.ArgumentError(f"{rule}: make one here, or load a checkpoint")

    def _make_store(self, capacity: int, streams: int, **options: Any) -> "TensorStore":
        """Return an empty store of steps whose values are here."""
        return TensorStore(self, capacity, streams, **options)

    def write(self, slots: memory.Slots, rows: memory.Rows) -> None:
        """Write a row of arrays into each of `slots` [...], which are distinct; `rows` holds every column.

        Raises:
            OutOfRangeError: A slot is not in [0, capacity); nothing has been written.
            ArgumentTypeError: `slots` is neither an integer nor an array of int64, or `rows` is not a mapping.
            SchemaError: A column is missing, or does not fit its field.
        """
        self._require_own_process()
        shape = np.shape(slots)
        values = memory.checked_rows(self._schema, shape, rows)
        fields = self._places.schema.fields
        blank = {path: np.zeros(shape + field.shape, field.dtype) for path, field in fields.items()}
        self._places.write(slots, {**blank, "reward": values["reward"]})
        for path in self._rows:
            self._put(self._rows, path, np.asarray(slots).reshape(-1) + 1, values[path])

    def _put(self, tensors: Tensors, path: str, index: arrays_lib.Ints, values: arrays_lib.Array) -> None:
        """Write arrays [k, ...] of a field into rows [k] of tensors."""
        kept = np.array(values, order="C").reshape(len(index), *self._schema.fields[path].shape)
        sent = torch.from_numpy(kept.view(self._kept[path])).to(self.device)
        tensors[path].index_copy_(0, torch.from_numpy(index).to(self.device), sent)

    def read(self, slots: memory.Slots, fields: Collection[str] | None = None) -> dict[str, arrays_lib.Array]:
        """Return the rows in `slots` [...] as arrays, each column of shape slots.shape + field.shape.

        Raises:
            OutOfRangeError: A slot is not in [0, capacity).
            ArgumentTypeError: `slots` is neither an integer nor an array of int64.
            ArgumentError: `fields` has a name that the schema does not have.
        """
        self._require_own_process()
        rewards, paths = self._places.read(slots, ("reward",)), self._schema.fields
        found = dict[str, arrays_lib.Array]()
        for path in paths if fields is None else fields:
            if path not in paths:
                raise memory.unknown_field(path, paths)
            found[path] = rewards[path] if path == "reward" else self._host(self._rows, path, np.asarray(slots) + 1)
        return found

    def _host(self, tensors: Tensors, path: str, index: arrays_lib.Ints) -> arrays_lib.Array:
        """Return a field of some rows [...] of tensors in memory."""
        chosen = torch.from_numpy(index.reshape(-1)).to(self.device)
        found = tensors[path].index_select(0, chosen).cpu().numpy()
        field = self._schema.fields[path]
        return found.view(field.dtype).reshape((*index.shape, *field.shape))

    def _to_device(self, parts: Sequence[arrays_lib.Array]) -> "list[torch.Tensor]":
        """Return those arrays on the device, in one copy that the host does not wait for."""
        parts = [part if part.flags.c_contiguous and part.flags.writeable else part.copy() for part in parts]
        if self._is_shared:
            return [torch.from_numpy(part) for part in parts]
        starts = np.cumsum([0, *(-(-part.nbytes // 8) * 8 for part in parts)]).tolist()
        # The default device of torch may be another.
        staged = torch.empty(starts[-1], dtype=torch.uint8, device=_CPU, pin_memory=self.device.type == "cuda")
        view = staged.numpy()
        for start, part in zip(starts, parts, strict=False):
            view[start : start + part.nbytes] = part.reshape(-1).view(np.uint8)
        sent = staged.to(self.device, non_blocking=True, copy=True)
        return [
            sent[start : start + part.nbytes].view(torch.from_numpy(part[:0]).dtype).view(part.shape)
            for start, part in zip(starts, parts, strict=False)
        ]

    def _to_host(self, parts: "Sequence[torch.Tensor]", count: int, dtype: np.dtype[Any]) -> list[arrays_lib.Array]:
        """Return tensors [count] or [1] in memory, of one dtype, in one copy."""
        packed = torch.empty((len(parts), count), dtype=_torch_dtype("reward", dtype), device=self.device)
        for row, part in zip(packed, parts, strict=True):
            row.copy_(part)
        return [*packed.cpu().numpy()]

    def _elsewhere(self, name: str, tensor: "torch.Tensor") -> errors.SchemaError:
        """Return the error for a tensor on another device."""
        rule = f"{name} must be on {self.device}, got a tensor on {tensor.device}"
        return errors.SchemaError(f"{rule}: call .to('{self.device}') first")

    def _seen(self, path: str, kept: "torch.Tensor") -> "torch.Tensor":
        """Return a tensor of a field, as it is kept, in the dtype of the schema."""
        return kept.view(self._dtypes[path]) if path in self._unsigned else kept

    def _columns(self, name: str, value: Any, lead: tuple[int, ...], *, is_one: bool = False) -> Tensors:
        """Return the tensors of an argument of `add` by path, each of shape `lead` + its field's; checked, not copied.

        Raises:
            SchemaError: One is no dense tensor on the device, has another shape or dtype, is missing, or has no field.
        """
        found = dict[str, torch.Tensor]()
        for leaf, tensor in self._encoder.leaves_of(name, value).items():
            path = encoding.PART_OF[name] + leaf[len(name) :]
            if not isinstance(tensor, torch.Tensor):
                rule = f"{leaf} must be a tensor on {self.device}"
                raise errors.SchemaError(f"{rule}, got {validation.short_repr(tensor)}")
            if tensor.device != self.device:
                raise self._elsewhere(leaf, tensor)
            _require_strided(leaf, tensor)
            if tensor.dtype != self._dtypes[path]:
                rule = f"{leaf} must be of {self._dtypes[path]}, got {tensor.dtype}"
                raise errors.SchemaError(f"{rule}: call .to({self._dtypes[path]}) first")
            shape = (() if is_one else lead) + self._schema.fields[path].shape
            if tensor.shape != shape:
                raise casting.wrong_shape(leaf, shape, tuple(tensor.shape))
            kept = tensor.detach() if tensor.requires_grad else tensor
            kept = kept.resolve_conj().resolve_neg()  # numpy cannot read such views.
            if path in self._unsigned:
                kept = kept.view(self._kept_dtypes[path])
            found[path] = kept.unsqueeze(0) if is_one else kept
        return found


def _device(device: Any) -> "torch.device":
    """Return the device that tensors there say they are on."""
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, TypeError, AssertionError) as error:
        rule = "device must be a device of torch that is there, or its name"
        raise errors.ArgumentTypeError(f"{rule}, got {validation.short_repr(device)}") from error


def _torch_dtype(path: str, dtype: np.dtype[Any]) -> "torch.dtype":
    try:
        return torch.from_numpy(np.zeros(0, dtype)).dtype
    except (TypeError, ValueError) as error:
        raise errors.ArgumentError(f"{path} must be of a dtype that tensors have, got {dtype}") from error


def _require_strided(name: str, tensor: "torch.Tensor") -> None:
    """Raise SchemaError for a sparse tensor, which would fail once the step is counted."""
    if tensor.layout != torch.strided:
        raise errors.SchemaError(f"{name} must be a dense tensor, got {tensor.layout}: call .to_dense() first")


class _Addresses(reader.RowReader):
    """Reads addresses in place of values, and rewards."""

    def __init__(self, access: foreign.Access) -> None:
        super().__init__(access)
        self.read: Any = self._read
        self.takes_any = True

    def _read(self, slots: arrays_lib.Ints, paths: Collection[str]) -> steps_lib.Columns:
        rewards = self.rewards
        return {path: rewards.take(slots) if path == "reward" else np.add(slots, 1, dtype=np.int64) for path in paths}


class TensorStore(steps_lib.StepStore):
    """The store of the steps whose values are in a TensorStorage.

    Attributes:
        tensors: The storage.
        after: What is announced in each stream, and what is behind ended episodes, by path [streams + room, ...].
    """

    _DERIVED = (*steps_lib.StepStore._DERIVED, "remote", "_everyone", "_announced_at", "_paths", "_nest")

    def __init__(self, tensors: TensorStorage, capacity: int, streams: int, **options: Any) -> None:
        self.tensors = tensors
        self.after: Tensors = {}
        self._free_places, self._num_places = np.zeros(0, np.int64), 0
        self._options = options
        super().__init__(capacity, streams, **options)

    def _derive(self) -> None:
        super()._derive()
        self.remote, self._everyone = self, encoding.all_streams(self.streams)
        self._announced_at: arrays_lib.Ints = 1 + self.capacity + self._everyone
        parts = ("observation", "action", "extras")
        self._paths = {name: [path for path in self.tensors._rows if path.split("/")[0] == name] for name in parts}
        self._nest = {name: trees.nester(name, paths) for name, paths in self._paths.items()}

    # As a store.

    @property
    def schema(self) -> schema_lib.Schema:
        """The schema of the values."""
        return self.tensors.schema

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors, and of the bookkeeping of rows and episodes."""
        of_rows: int = sum(array.nbytes for array in (*self._of_rows, self.changed, self.episodes))
        return of_rows + self.tensors.nbytes + sum(tensor.nbytes for tensor in self.after.values())

    def empty_twin(self) -> "TensorStore":
        """Return an empty store of the same settings, without a storage."""
        return TensorStore(self.tensors, self.capacity, self.streams, **self._options)

    def begin(self, storage: memory.Storage) -> None:
        """Make room for what is announced; the rows are in the storage that brought this store."""
        super().begin(self.tensors._places)
        self.reader = _Addresses(self.access)
        self.after = self.tensors._zeros(self._paths["observation"], self.streams + _FIRST_ROOM, "observations")
        self._num_places = _FIRST_ROOM
        self._free_places = 1 + self.capacity + self.streams + np.arange(_FIRST_ROOM)

    def read_rows(self, slots: arrays_lib.Slots, fields: Collection[str] | None = None, /) -> steps_lib.Columns:
        """Return the rows in `slots` [...] as arrays."""
        if self._unwritten is not None:
            return super().read_rows(slots, fields)
        return self.tensors.read(slots, fields)

    def final_observations(self, episodes: arrays_lib.Ints) -> steps_lib.Columns:
        """Return the final observations of those episodes [k] by path, as arrays."""
        index = np.maximum(self._behind.take(episodes) - (1 + self.capacity), 0)
        return {path: self.tensors._host(self.after, path, index) for path in self.after}

    def _part(self, path: str, start: int, stop: int) -> arrays_lib.Array:
        slots = append.slots_from(self.oldest_key + start, stop - start, self.capacity)
        return self.tensors.read(slots, (path,))[path]

    def load_state_dict(self, kept: steps_state.StepsState) -> None:
        """Restore rows and their episodes in an empty store; columns are read from the state until `settle`."""
        addresses = {}
        if kept.final:
            places = self._take_places(int(kept.has_tail.sum()))
            addresses = {"observation": places}
            (known,) = kept.has_tail.nonzero()
            # Of each stream the newest episode, as they are in the order of time.
            of_streams = np.full(self.streams, -1)
            of_streams[kept.stream] = np.arange(len(kept.stream))
            is_known = np.isin(of_streams, known)
            newest = np.searchsorted(known, of_streams[is_known])
            index = np.concatenate([places - (1 + self.capacity), is_known.nonzero()[0]])
            for path, column in kept.final.items():
                self.tensors._put(self.after, path, index, np.concatenate([column, column[newest]]))
        super().load_state_dict(dataclasses.replace(kept, columns={}, final=addresses))
        self._unwritten = kept if kept.columns else None

    def settle(self) -> None:
        """Write the rows of a restored state to the tensors."""
        fields, places = self.tensors._places.schema.fields, self.tensors._places
        columns = {} if self._unwritten is None else self._unwritten.columns
        for path, column in columns.items():
            for start, stop in state_lib.chunks(len(self), len(self) * self.schema.fields[path].nbytes):
                values, key = column.read(start, stop), self.oldest_key + start
                slots = append.slots_from(key, len(values), self.capacity)
                if path != "reward":
                    self.tensors._put(self.tensors._rows, path, slots + 1, values)
                    continue
                blank = {name: np.zeros((len(values), *field.shape), field.dtype) for name, field in fields.items()}
                places.write(slots, {**blank, path: values})
        self._unwritten = None

    # Writing.

    @property
    def _behind(self) -> arrays_lib.Ints:
        """The addresses of the observations behind the episodes."""
        addresses: arrays_lib.Ints = self.finals.columns["observation"]
        return addresses

    def append(
        self, steps: encoding.Steps, *, tell: steps_lib.Tell | None = None, **options: Any
    ) -> next_round.Written:
        """Write steps, and return what was found out about them; if anything raises, all is as it was before."""
        rows: Any = steps.rows
        key = self.next_key
        if tell is None:
            written = super().append(steps, **options)
            rows.write(key)
            return written
        slots = append.slots_from(key, len(steps.streams), self.capacity)
        index, everyone = self.tensors._to_device([slots + 1, self._everyone])
        changed = [(column, index) for column in self.tensors._rows.values()]
        changed += [(column, everyone) for column in self.after.values()]
        before = [column.index_select(0, places) for column, places in changed]

        def write_and_tell() -> Callable[[], None]:
            # Hooks may read the rows; one that raises takes them back.
            rows.write(key)
            return tell()

        try:
            return super().append(steps, tell=write_and_tell, **options)
        except BaseException:
            for (column, places), values in zip(changed, before, strict=True):
                column.index_copy_(0, places, values)
            raise

    def encode_step(self, stream: int, given: encoding.Given, terminated: Any, truncated: Any) -> encoding.Steps:
        """Return the step that the arguments of `add` describe."""
        observation, action, reward, following, extras = given
        flags = [
            flag.reshape(1)
            if isinstance(flag, torch.Tensor) and flag.layout == torch.strided and flag.numel() == 1
            else [validation.flag(name, flag)]
            for name, flag in (("terminated", terminated), ("truncated", truncated))
        ]
        if isinstance(reward, torch.Tensor):
            if reward.ndim:
                raise casting.wrong_shape("reward", (), tuple(reward.shape))
            reward = reward.unsqueeze(0)
        else:
            reward = casting.cast_exact("reward", reward, (), self.schema.reward.dtype, is_weak=True).reshape(1)
        numbers = np.full(1, stream, np.int64)
        return self._encoded(numbers, (observation, action, reward, following, extras), *flags, is_one=True)

    def encode_round(
        self, streams: arrays_lib.Ints, given: encoding.Given, terminated: Any, truncated: Any
    ) -> encoding.Steps:
        """Return the steps that the arguments of `extend` describe."""
        encoding.require_round(self.streams, len(streams), given[2])
        return self._encoded(streams, given, terminated, truncated)

    def _encoded(
        self, streams: arrays_lib.Ints, given: encoding.Given, terminated: Any, truncated: Any, *, is_one: bool = False
    ) -> encoding.Steps:
        """Return one step of each of several streams [k]."""
        tensors, count = self.tensors, len(streams)
        tensors._require_own_process()
        columns = functools.partial(tensors._columns, lead=(count,), is_one=is_one)
        observation, action, reward, next_observation, extras = given
        new, following = columns("observation", observation), dict[str, torch.Tensor]()
        if next_observation is not None:
            following = columns("next_observation", next_observation)
        of_rows = new | columns("action", action)
        if extras or self._paths["extras"]:
            of_rows |= columns("extras", extras)
        index = None if streams is self._everyone else tensors._to_device([streams])[0]
        pairs: list[_Pair] = [(new, self._announced(index), None)]
        # Whether a step leads elsewhere matters where it begins with the final observation of an ended episode.
        resumed = self._resumed_places(streams)
        if following and len(resumed):
            pairs.append((following, new, resumed))
        told = {"reward": reward, "terminated": terminated, "truncated": truncated}
        checked = {**of_rows, **_renamed(following)}
        if is_one:  # Errors name places in the values that were given.
            checked = {path: column[0] for path, column in checked.items()}
        told, (is_same, *is_still) = self._on_host(told, count, pairs, checked)
        if is_one:
            encoding.require_finite(told["reward"].reshape(()))
        events = encoding.events(told["terminated"], told["truncated"], count)
        ends = np.frombuffer(events, np.uint8)
        (ended,) = ends.nonzero() if following else (np.zeros(0, np.int64),)
        begin, after, place = self._placed(streams, is_same, is_same, ended, following)
        for is_there in is_still:
            stays = resumed[is_there & is_same[resumed] & (ends[resumed] == 0)]
            after = after.copy()
            after[stays] = begin[stays]
        next_places = after if following else None
        steps = encoding.steps(
            self.encoder, streams, events, self._of_addresses(count, begin, told["reward"], next_places)
        )
        place()

        def write(key: int) -> None:
            self._write_rows_of(of_rows, key, count)
            for path, column in following.items():
                if index is None:
                    self.after[path][: self.streams].copy_(column)
                else:
                    self.after[path].index_copy_(0, index, column)

        return steps._replace(rows=_Rows(steps.rows, write))

    def encode_run(self, streams: arrays_lib.Ints, events: bytes, given: encoding.Given) -> encoding.Steps:
        """Return the consecutive steps of one stream that the arguments of `add_steps` describe."""
        tensors, count, stream = self.tensors, len(streams), streams.item(0)
        tensors._require_own_process()
        observations, actions, rewards, _, extras = given
        seen = tensors._columns("observations", observations, (count + 1,))
        of_rows = {path: column[:-1] for path, column in seen.items()} | tensors._columns("action", actions, (count,))
        if extras or self._paths["extras"]:
            of_rows |= tensors._columns("extras", extras, (count,))
        announced = {path: column[stream : stream + 1] for path, column in self.after.items()}
        pairs: list[_Pair] = [({path: column[:1] for path, column in seen.items()}, announced, None)]
        named = {f"observations{path.removeprefix('observation')}": column for path, column in seen.items()}
        told, [is_same] = self._on_host({"reward": rewards}, count, pairs, named | of_rows)
        is_same, finals = is_same[:1], {path: column[-1:] for path, column in seen.items()}
        goes_on = is_same & (events[0] & encoding.CUT == 0)
        ended = np.arange(int(events[-1] > 0))
        begin, after, place = self._placed(streams[:1], is_same, goes_on, ended, finals)
        addresses = np.full(count + 1, _UNKNOWN)
        addresses[[0, -1]] = begin.item(), after.item()
        given = self._of_addresses(count, addresses, told["reward"], None)
        steps = encoding.steps(self.encoder, streams, events, given, is_run=True)
        place()

        def write(key: int) -> None:
            self._write_rows_of(of_rows, key, count)
            for path, column in finals.items():
                self.after[path][stream : stream + 1].copy_(column)

        return steps._replace(rows=_Rows(steps.rows, write))

    def _of_addresses(
        self, count: int, begin: arrays_lib.Ints, reward: Any, after: arrays_lib.Ints | None
    ) -> encoding.Given:
        """Return what is given to the encoder for `count` rows with those addresses."""
        blank = np.zeros((count, 0), np.uint8)
        return begin, blank, reward, after, {"row": blank} if self._paths["extras"] else {}

    def _resumed_places(self, streams: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return in which streams, by place, the newest episode has ended, is stored, and has a known end."""
        places: arrays_lib.Ints = (self.last.take(streams) == append.NONE).nonzero()[0]
        if len(places):
            table = self.episodes.take(self.current.take(streams[places]), axis=1)
            is_its_own = (table[append.STREAM] == streams[places]) & (table[append.END] != append.OPEN)
            places = places[is_its_own & (table[append.KNOWN] > 0)]
        return places

    def _announced(self, index: "torch.Tensor | None") -> Tensors:
        """Return what is announced in some streams, or in all."""
        if index is None:
            return {path: column[: self.streams] for path, column in self.after.items()}
        return {path: column.index_select(0, index) for path, column in self.after.items()}

    def _on_host(
        self, told: dict[str, Any], count: int, pairs: "list[_Pair]", checked: Tensors
    ) -> tuple[dict[str, Any], list[arrays_lib.Bools]]:
        """Return rewards and flags, and of each pair which rows [k] are equal; all in one copy.

        Raises:
            SchemaError: A tensor is sparse, complex, elsewhere or of another shape; a value must be finite and is not.
        """
        tensors = self.tensors
        sent = dict[str, torch.Tensor]()
        for name, value in told.items():
            if isinstance(value, torch.Tensor):
                if tuple(value.shape) != (count,):
                    raise casting.wrong_shape(name, (count,), tuple(value.shape))
                if value.device not in (tensors.device, _CPU):
                    raise tensors._elsewhere(name, value)
                _require_strided(name, value)
                if value.is_complex():
                    raise errors.SchemaError(f"{name} must be a tensor of real numbers, got {value.dtype}")
                sent[name] = value.detach()
        checked = {
            path: column
            for path, column in checked.items()
            if self.schema.check_finite and (column.is_floating_point() or column.is_complex())
        }
        if tensors._is_shared:
            are_equal = [_are_equal_on_host(*pair) for pair in pairs]
            host = {name: _numpy(value) for name, value in sent.items()}
            bad = checked
        else:
            for number, (these, those, _) in enumerate(pairs):
                sent[f"pair {number}"] = _are_equal(these, those)
            if checked:
                sent["finite"] = torch.stack([column.isfinite().all() for column in checked.values()]).all().reshape(1)
            here = [value if value.device == tensors.device else value.to(tensors.device) for value in sent.values()]
            dtype = self.schema.reward.dtype
            if "reward" in sent and sent["reward"].dtype == torch.float64:
                dtype = np.dtype(np.float64)  # They are rounded on the host, which says which does not fit.
            host = dict(zip(sent, tensors._to_host(here, count, dtype), strict=True))
            are_equal = [host.pop(f"pair {number}") != 0 for number in range(len(pairs))]
            are_equal = [
                each if pair[2] is None else each[pair[2]] for each, pair in zip(are_equal, pairs, strict=True)
            ]
            bad = {} if np.all(host.pop("finite", True)) else checked
        for path, column in bad.items():
            casting.require_finite(path, _numpy(column.cpu()))
        return told | host, are_equal

    def _placed(
        self,
        streams: arrays_lib.Ints,
        is_same: arrays_lib.Bools,
        goes_on: arrays_lib.Bools,
        ended: arrays_lib.Ints,
        finals: Tensors,
    ) -> tuple[arrays_lib.Ints, arrays_lib.Ints, Callable[[], None]]:
        """Return addresses for steps of some streams [k], and the function that brings values there.

        They are those of what the steps begin with, and of what follows them. Values are brought to places that nothing
        refers to, so a call that fails afterwards has changed nothing.

        Args:
            streams: The streams.
            is_same: Whether the step begins with what was announced.
            goes_on: Whether it then belongs to the episode that is open, if what is announced is known.
            ended: Which of the steps end their episode, with known observations behind it, by place.
            finals: These observations, and those of the other steps [k, ...].
        """
        is_whole = streams is self._everyone
        current = self.current if is_whole else self.current.take(streams)
        tags, at = self._behind.take(current), self._announced_at if is_whole else self._announced_at.take(streams)
        goes_on = goes_on & (self.knows.take(streams) > 0)
        lost = ended[:0]
        if not arrays_lib.all_set(goes_on):
            # What is announced is about to be overwritten, but is behind an episode that ends here or has ended.
            (lost,) = ((tags == at) & ~goes_on).nonzero()
            lost = lost[self.is_known(current.take(lost))]
        places = self._take_places(len(lost) + len(ended))
        tags[lost] = places[: len(lost)]
        begin, after = tags if arrays_lib.all_set(is_same) else np.where(is_same, tags, _UNKNOWN), at
        if len(ended):
            after = at.copy()
            after[ended] = places[len(lost) :]

        def place() -> None:
            if not len(places):
                return
            sources, of_ended, targets = self.tensors._to_device([streams[lost], ended, places - (1 + self.capacity)])
            for path, column in self.after.items():
                values = [column.index_select(0, sources)]
                if len(ended):
                    values.append(finals[path].index_select(0, of_ended))
                column.index_copy_(0, targets, torch.cat(values))
            self._behind[current.take(lost)] = places[: len(lost)]

        return begin, after, place

    def _take_places(self, count: int) -> arrays_lib.Ints:
        """Return the addresses of `count` places behind the streams to which nothing refers; make room if need be."""
        if count > len(self._free_places):
            base, room = 1 + self.capacity + self.streams, self._num_places
            is_used = np.ones(len(self.free), np.bool_)
            is_used[self.free[: self.num.item(append.FREE)]] = False
            used = self._behind[is_used]
            is_free = np.ones(room, np.bool_)
            is_free[used[used >= base] - base] = False
            more = max(room, count) if np.count_nonzero(is_free) < max(count, room // 4) else 0
            if more:
                rule = f" beside {self.capacity} rows, up to one for each episode"
                made = self.tensors._zeros([*self.after], self.streams + room + more, "final observations", rule)
                for path, column in self.after.items():
                    made[path][: len(column)].copy_(column)
                self.after, self._num_places = made, room + more
            self._free_places = base + np.append(is_free.nonzero()[0], np.arange(room, room + more))
        places, self._free_places = self._free_places[:count], self._free_places[count:]
        return places

    def _write_rows_of(self, of_rows: Tensors, key: int, count: int) -> None:
        """Write the values of rows from a key on."""
        start = 1 + key % self.capacity
        before_end = min(count, 1 + self.capacity - start)
        for path, values in of_rows.items():
            column = self.tensors._rows[path]
            if before_end == count:
                column[start : start + count].copy_(values)
            else:
                column[start:].copy_(values[:before_end])
                column[1 : 1 + count - before_end].copy_(values[before_end:])

    # Reading.

    def read_window(
        self, window: Any, store: steps_lib.StepStore, slots: arrays_lib.Ints, *weighted: arrays_lib.Floats
    ) -> Any:
        """Return what `window` reads of the rows in `slots` [B], as a batch of tensors."""
        if type(window) not in _WINDOWS:
            raise self.refused(type(window).__name__)
        self.tensors._require_own_process()
        batch: Any = window._read(store, slots, *weighted)
        kind: Any = type(batch)
        sent, shapes = dict[str, arrays_lib.Array](), dict[str, tuple[int, ...]]()
        dtype = torch.get_default_dtype()
        numpy_dtype: np.dtype[Any] | None = _CAST.get(dtype)
        with np.errstate(all="ignore", over="raise"):
            for name in batches.array_names(kind):
                value = getattr(batch, name)
                if name == "extras":
                    if not self._paths["extras"]:
                        continue
                    value = value["row"]
                if name not in _ADDRESSES:
                    sent[name] = _cast(name, value, numpy_dtype)
                    continue
                shapes[name], addresses = value.shape, value.reshape(-1)
                (where,) = (addresses > self.capacity).nonzero()
                if len(where):
                    sent[f"{name} where"], sent[f"{name} from"] = where, addresses[where] - (1 + self.capacity)
                    addresses[where] = 0
                sent[name] = addresses
        there = self.tensors._to_device([*sent.values()])
        made: dict[str, Any] = {name: _as(dtype, value) for name, value in zip(sent, there, strict=True)}
        for name, shape in shapes.items():
            index, where, source = made[name], made.pop(f"{name} where", None), made.pop(f"{name} from", None)
            columns = {}
            for path in self._paths[_ADDRESSES[name]]:
                found = self.tensors._rows[path].index_select(0, index)
                if where is not None:
                    found.index_copy_(0, where, self.after[path].index_select(0, source))
                if len(shape) > 1:
                    found = found.reshape(*shape, *found.shape[1:])
                columns[path] = _as(dtype, self.tensors._seen(path, found))
            made[name] = self._nest[_ADDRESSES[name]](columns)
        return kind(**{"extras": {}, **made, "keys": batch.keys})

    def refused(self, call: str) -> errors.ArgumentError:
        """Return the error for a call that takes only values in numpy."""
        return errors.ArgumentError(f"{call} needs values in numpy, got a buffer with a {self.tensors!r}")


def _are_equal(these: Tensors, those: Tensors) -> "torch.Tensor":
    """Return which rows [k] are equal; zeros of both signs are, and NaN and NaN."""
    equal: list[torch.Tensor] = []
    for path, column in these.items():
        other = those[path]
        is_equal = column == other
        if column.is_floating_point() or column.is_complex():
            is_equal |= (column != column) & (other != other)
        equal.append(is_equal.flatten(1).all(1) if is_equal.ndim > 1 else is_equal)
    return equal[0] if len(equal) == 1 else torch.stack(equal).all(0)


def _are_equal_on_host(these: Tensors, those: Tensors, where: arrays_lib.Ints | None) -> arrays_lib.Bools:
    """Do what `_are_equal` does, several times as fast: most rows are equal bit for bit; for some of them, or all."""
    is_equal = np.ones(len(next(iter(these.values()))) if where is None else len(where), np.bool_)
    for path, tensor in these.items():
        column, other = tensor.contiguous().numpy(), those[path].contiguous().numpy()
        if where is not None:
            column, other = column[where], other[where]
        nbytes = column.itemsize * math.prod(column.shape[1:])
        words = np.dtype(next(f"u{size}" for size in (8, 4, 2, 1) if nbytes % size == 0))
        differ = column.reshape(-1).view(words) != other.reshape(-1).view(words)
        (places,) = differ.nonzero()
        rows = places // max(nbytes // words.itemsize, 1)
        rows = rows[steps_state.starts_of(rows)]
        if len(rows):
            is_equal[rows[splices.differ(column[rows], other[rows])]] = False
    return is_equal


def _renamed(following: Tensors) -> Tensors:
    return {f"next_{path}": column for path, column in following.items()}


def _numpy(tensor: "torch.Tensor") -> arrays_lib.Array:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).resolve_conj().resolve_neg().numpy()


def _as(dtype: "torch.dtype", tensor: "torch.Tensor") -> "torch.Tensor":
    return tensor.to(dtype) if tensor.dtype != dtype and tensor.is_floating_point() else tensor


def _cast(name: str, array: arrays_lib.Array, dtype: np.dtype[Any] | None) -> arrays_lib.Array:
    """Return floats in a dtype, if it is one of numpy; raise ArgumentError if one becomes infinite."""
    if dtype is None or array.dtype.kind != "f" or array.dtype == dtype:
        return array
    try:
        return array.astype(dtype)
    except FloatingPointError:
        raise errors.ArgumentError(f"{name} must fit {dtype}: set the default dtype of torch for more") from None
