"""ItemReplayBuffer: batches that are cut into items when added, and drawn as units.

    storage_unit     an item is                     cut by
    "timesteps"      one row                        the rows
    "sequences"      a run of rows                  column seq_lens
    "episodes"       a complete episode             columns eps_id, t, terminated and truncated
    "fragments"      the batch as it was added      nothing; its columns may differ in length

Each item is a row of a RaggedColumns, where those of fragments are uneven.

Invariant: a batch is checked and cut before anything is stored, so an `add` that raises changes nothing and all stored
items fit together.
"""

from collections.abc import Mapping
import dataclasses
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.buffers import item_cuts
from relive.common import arrays as arrays_lib
from relive.common import imports
from relive.common import randomness
from relive.common import statistics
from relive.common import validation
from relive.persistence import checkpointable
from relive.persistence import dtypes
from relive.persistence import state
from relive.schema import casting
from relive.storage import memory
from relive.storage import ragged

if TYPE_CHECKING:
    from relive.persistence import npy
else:
    npy = imports.lazy_module("relive.persistence.npy")

StorageUnit = item_cuts.StorageUnit


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ItemBufferStats(statistics.Statistics):
    """Statistics of an item buffer.

    Attributes:
        items: Items stored now.
        timesteps: Time steps stored now.
        bytes: Bytes of the items stored now.
        added: Items added so far.
        sampled: Items drawn so far; one drawn twice counts twice.
        evicted: Items evicted so far.
        dropped: Episodes not stored because they were not complete so far.
    """

    items: int
    timesteps: int
    bytes: int
    added: int
    sampled: int
    evicted: int
    dropped: int


class ItemReplayBuffer(checkpointable.Checkpointable):
    """Stores the items of added batches, first in, first out, and returns batches of items drawn uniformly.

    A batch is a mapping of columns: arrays with a row for each time step. Every batch must have columns of the same
    names, dtypes and row shapes as the first one. Arrays are copied in and out.

    Args:
        capacity: Maximum number of stored time steps, whatever the unit. A fragment is as long as its longest column.
        storage_unit: The storage unit, which defines what an item is. "timesteps": each row. "sequences": a run of
            rows; column seq_lens says how long each is. "episodes": consecutive rows with equal eps_id; stored only if
            complete, that is, if the first t is 0 and the last row is terminated or truncated, else dropped and
            counted. "fragments": the batch as it is; its columns may differ in length.
        allocate: Returns a writable array of zeros of a shape and dtype for each column: np.zeros for memory, or a
            `TemporaryMaps` for more than memory holds.
        seed: Seed or generator for sampling; the same seed and the same calls give the same draws.

    Raises:
        ArgumentError: capacity is not an integer of at least 1, storage_unit is unknown, or the seed is invalid.

    >>> import relive
    >>> buffer = relive.ItemReplayBuffer(10, "sequences", seed=0)
    >>> buffer.add({"c": [1, 2, 3], "seq_lens": [1, 2]})
    >>> buffer.get_stats().items
    2
    >>> buffer.sample(4)
    {'c': array([2, 3, 2, 3, 2, 3, 1]), 'seq_lens': array([2, 2, 2, 1])}
    """

    def __init__(
        self,
        capacity: int,
        storage_unit: StorageUnit = "timesteps",
        *,
        allocate: ragged.Allocate = np.zeros,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self._capacity = validation.positive_int("capacity", capacity)
        validation.require_choice("storage_unit", storage_unit, get_args(StorageUnit))
        self._unit: StorageUnit = storage_unit
        self._allocate = allocate
        self._rng = validation.generator("seed", seed)
        self._rows: dict[str, arrays_lib.Array] = {}
        """A column of no rows for each name: its dtype and the shape of a row; of the first add."""
        self._items = self._new_items(self._rows)
        self._counts = dict.fromkeys(("added", "sampled", "evicted", "dropped"), 0)

    @property
    def capacity(self) -> int:
        """Maximum number of stored time steps."""
        return self._capacity

    @property
    def storage_unit(self) -> StorageUnit:
        """The storage unit, which defines what an item is."""
        return self._unit

    @property
    def rng(self) -> np.random.Generator:
        """The random generator used for sampling."""
        return self._rng

    def add(self, columns: Mapping[str, npt.ArrayLike]) -> None:
        """Cut the batch into items and store a copy of each; the oldest items are evicted to make room.

        O(rows of the batch), however many items are held.

        Args:
            columns: Array-likes by name, [rows, ...]; all of the same length, except seq_lens [items] with the unit
                "sequences", and except fragments.

        Raises:
            SchemaError: A column is missing or unknown, is not an array, holds Python objects, differs in dtype or
                shape from that of the first add or in length from the others, or cannot be cut by.
            ArgumentError: The items have more time steps together than the capacity, or the batch has none.
            ArgumentTypeError: `columns` is not a mapping, or a name is not a string.
        """
        arrays = self._checked(columns)
        lengths, is_complete = item_cuts.cut(arrays, self._unit)
        kept = lengths[is_complete]
        if kept.sum() > self._capacity:
            raise errors.ArgumentError(
                f"columns must hold items of at most capacity = {self._capacity} time steps together, got {kept.sum()}"
            )
        items = self._items if self._rows else self._new_items(arrays)
        rows = item_cuts.stored(arrays, self._unit)
        if len(kept) < len(lengths):
            is_kept = np.repeat(is_complete, lengths)
            rows = {name: array[is_kept] for name, array in rows.items()}
        sizes = [[len(rows[name]) for name in self._rows or rows]] if self._unit == "fragments" else kept
        known = self._rows or {name: array[:0].copy() for name, array in arrays.items()}
        self._counts["evicted"] += items.extend(rows, sizes)
        self._items, self._rows = items, known
        self._counts["added"] += len(kept)
        self._counts["dropped"] += len(lengths) - len(kept)

    def can_insert(self) -> bool:
        """Return True: nothing holds `add` back."""
        return True

    def can_sample(self, num_items: int) -> bool:
        """Return whether `sample` would succeed now.

        Raises:
            ArgumentError: num_items is not an integer of at least 1.
        """
        validation.batch_size("num_items", num_items)
        return len(self) > 0

    def sample(self, num_items: int) -> dict[str, arrays_lib.Array]:
        """Return exactly num_items items, drawn uniformly over the items held, with replacement.

        O(rows drawn), however many items are held.

        Returns:
            Fresh arrays by name, in the order of the first add: the rows of the items, one after the other in the order
            of the draw, [rows drawn, ...]. With the unit "sequences", seq_lens [num_items] says how long each is.

        Raises:
            ArgumentError: num_items is not an integer of at least 1.
            NotReadyError: The buffer is empty.
        """
        num_items = validation.batch_size("num_items", num_items)
        if not len(self._items):
            raise errors.NotReadyError(f"sample found no {self._unit} to draw: add a batch first")
        with randomness.Unmoved(self._rng):
            places = self._rng.integers(len(self._items), size=num_items)
            columns, offsets = self._items.read(self._items.first_key + places)
            drawn = {
                name: columns[name] if name in columns else np.diff(offsets).astype(row.dtype)  # seq_lens is not kept.
                for name, row in self._rows.items()
            }
        self._counts["sampled"] += num_items
        return drawn

    def _state_dict(self, **options: Any) -> state.State:
        # The places of the items in the ring are not kept.
        columns = []
        for name, row in self._rows.items():
            try:
                npy.check_dtype(f"column {name}", row.dtype)
            except errors.ArgumentError as error:
                raise errors.CheckpointError(f"column {name} cannot be saved: {error}") from error
            columns.append([name, dtypes.described(row.dtype), list(row.shape[1:])])
        return {"counters": self._counts.copy(), "columns": columns, "arrays": self._items.state_dict()}

    def _load_state_dict(self, given: state.StateReader, **options: Any) -> None:
        unit, rows = self._unit, _rows_of(given.value("columns"))
        if rows:
            try:
                item_cuts.cut(rows, unit)
            except errors.SchemaError as error:
                raise errors.CheckpointError(f"columns cannot be cut into {unit}: {error}") from error
        fields = item_cuts.stored_fields(rows, unit)
        is_uneven, allocate = unit == "fragments", self._allocate
        items = ragged.RaggedColumns.from_state(given, self._capacity, fields, is_uneven=is_uneven, allocate=allocate)
        if len(items) and not rows:
            raise errors.CheckpointError("columns must be there where there is an item")
        longest = items.lengths.max(initial=0)
        if unit == "timesteps" and longest > 1:
            raise given.refused("lengths", "1 for each of the timesteps", int(longest))
        if unit == "sequences" and len(items) and longest > np.iinfo(rows["seq_lens"].dtype).max:
            raise errors.CheckpointError(
                f"array lengths must hold what {rows['seq_lens'].dtype} of column seq_lens holds, got {longest}"
            )
        counts = {name: given.part("counters").integer(name) for name in self._counts}
        if counts["added"] - counts["evicted"] < len(items):
            raise errors.CheckpointError(f"counters must be of a buffer that holds {len(items)} items")
        self._rows, self._items, self._counts = rows, items, counts

    def get_stats(self) -> ItemBufferStats:
        """Return statistics of the buffer. O(columns)."""
        return ItemBufferStats(
            items=len(self._items),
            timesteps=len(self),
            bytes=self._items.nbytes,
            **self._counts,
        )

    def clear(self) -> None:
        """Remove every item.

        The required columns, the cumulative counters of `get_stats` and the random generator are not reset.
        """
        self._items.clear()

    def check(self) -> None:
        """Verify all invariants by recounting everything that is held. O(items).

        Raises:
            CorruptionError: An invariant does not hold; the message says which.
        """
        self._items.check()
        added, evicted = self._counts["added"], self._counts["evicted"]
        if added - evicted < len(self._items):
            raise errors.CorruptionError(
                f"{added} items were added and {evicted} evicted, but {len(self._items)} are held"
            )

    def __len__(self) -> int:
        """Return the number of stored time steps; `get_stats().items` is the number of items."""
        return self._items.num_values

    def __repr__(self) -> str:
        items = f"{len(self._items)} {self._unit}"
        return f"<{type(self).__name__} of {items}, {len(self)} of {self._capacity} time steps>"

    def _new_items(self, rows: Mapping[str, arrays_lib.Array]) -> ragged.RaggedColumns:
        """Return an empty store for items of such rows."""
        fields = item_cuts.stored_fields(rows, self._unit)
        is_uneven = self._unit == "fragments"
        # The columns of fragments grow with what is added.
        capacity = 0 if is_uneven else self._capacity
        with memory.room_for("capacity", capacity, sum(field.nbytes for field in fields.values()) or 1):
            return ragged.RaggedColumns(self._capacity, fields, is_uneven=is_uneven, allocate=self._allocate)

    def _checked(self, columns: Mapping[str, npt.ArrayLike]) -> dict[str, arrays_lib.Array]:
        """Return the columns as arrays, checked against those of the first add."""
        if not isinstance(columns, Mapping):
            raise errors.ArgumentTypeError(
                f"columns must be a mapping of names to arrays, got {validation.short_repr(columns)}"
            )
        arrays = {}
        for name, values in columns.items():
            if not isinstance(name, str):
                raise errors.ArgumentTypeError(
                    f"columns must have strings for names, got {validation.short_repr(name)}"
                )
            arrays[name] = array = casting.as_array(f"column {name}", values)
            if array.ndim == 0:
                shown = validation.short_repr(values)
                raise errors.SchemaError(f"column {name} must have a row for each time step, got {shown}")
            if not array.dtype.itemsize:
                rule = f"column {name} must have values of at least one byte"
                raise errors.SchemaError(f"{rule}, got dtype {array.dtype}")
        for name in self._rows:
            if name not in arrays:
                raise errors.SchemaError(f"column {name} must be in every add, as it was in the first, got none")
        if self._rows:
            for name, array in arrays.items():
                if name not in self._rows:
                    raise errors.SchemaError(f"column {name} must be one of the first add's: {', '.join(self._rows)}")
                row = self._rows[name]
                if (array.dtype, array.shape[1:]) != (row.dtype, row.shape[1:]):
                    raise errors.SchemaError(
                        f"column {name} must have rows of {_described(row)}, as first added, got {_described(array)}"
                    )
        if not any(map(len, arrays.values())):
            raise errors.ArgumentError("columns must have at least one time step, got 0")
        return arrays


def _rows_of(value: object) -> dict[str, arrays_lib.Array]:
    """Return a column of no rows for each that `_state_dict` described; raise CheckpointError if it did not."""
    rule = "columns must be a list of a name, a dtype and the shape of a row for each"
    if not isinstance(value, list):
        raise errors.CheckpointError(f"{rule}, got {validation.short_repr(value)}")
    rows: dict[str, arrays_lib.Array] = {}
    for row in value:
        is_row = isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) and isinstance(row[2], list)
        if not is_row or row[0] in rows or not all(type(axis) is int and axis >= 0 for axis in row[2]):
            raise errors.CheckpointError(f"{rule}, got {validation.short_repr(row)}")
        try:
            rows[row[0]] = np.zeros((0, *row[2]), npy.dtype_of(row[1]))
        except (ValueError, OverflowError, MemoryError, errors.CheckpointError) as error:
            raise errors.CheckpointError(f"column {row[0]} cannot be: {error}") from error
    return rows


def _described(array: arrays_lib.Array) -> str:
    return f"dtype {array.dtype} and shape {list(array.shape[1:])}"
