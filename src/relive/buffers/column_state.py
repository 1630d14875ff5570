"""The checkpointed state of a column buffer: rows, anchors and counters."""

from collections.abc import Callable

from relive import errors
from relive.buffers import column_stats
from relive.buffers import draws as draws_lib
from relive.persistence import state as state_lib
from relive.schema import schema as schema_lib
from relive.storage import memmap
from relive.storage import memory
from relive.storage import steps as steps_lib
from relive.storage import steps_state


class ColumnState:
    """Takes and restores the state of the parts of a buffer."""

    def __init__(self, store: steps_lib.StepStore, draws: draws_lib.Draws, counters: column_stats.Counters) -> None:
        self._store, self._draws, self._counters = store, draws, counters

    def state_dict(self) -> state_lib.State:
        """Return the state."""
        return self._taken(self._store.rows_state())

    def base_state_dict(self) -> state_lib.State:
        """Return the state as if everything stored had just been evicted."""
        return self._taken(self._store.rows_state().without_rows())

    def state_dict_in_place(self) -> state_lib.State:
        """Return the state without the rows, which stay in a memory map that is flushed.

        Raises:
            ArgumentError: The storage is not a memory map.
        """
        storage = self._storage
        if not isinstance(storage, memmap.MemmapStorage):
            raise errors.ArgumentError("copy_rows must be True unless the storage is a MemmapStorage, got False")
        state = self.state_dict()
        storage.flush()
        arrays = {name: array for name, array in state["arrays"].items() if not name.startswith("rows/")}
        return {**state, "rows_in": {"id": storage.id, "generation": storage.generation}, "arrays": arrays}

    def _taken(self, rows: steps_state.RowsState) -> state_lib.State:
        store, draws = self._store.state(rows), self._draws.state(self._store.slots(rows.keys))
        arrays = store.pop("arrays") | draws.pop("arrays")
        return {"counters": self._counters.values(), **store, **draws, "arrays": arrays}

    def load_state_dict(
        self,
        given: state_lib.StateReader,
        schema: schema_lib.Schema | None,
        *,
        is_new: bool,
        clear: Callable[[], None],
    ) -> None:
        """Restore that state.

        Args:
            given: The state.
            schema: The fields of its rows; None if there are no rows.
            is_new: Whether the buffer was just created from the saved settings.
            clear: Removes every row; called once the state is validated.

        Raises:
            CheckpointError: The state is impossible with these settings, or its rows are in another map: nothing has
                changed. Or a column file is damaged.
        """
        store, storage = self._store, None
        if schema is not None and not (store.has_begun and schema == store.schema):
            try:
                storage = memory.ColumnStorage(schema, store.capacity)
            except (MemoryError, ValueError) as error:
                raise errors.CheckpointError(f"schema cannot be that of {store.capacity} rows: {error}") from error
        has_rows = not given.has("rows_in")
        if not has_rows:
            self._check_map(given.part("rows_in"), is_new)
        kept = steps_state.StepsState.of(given, schema, store.capacity, store.streams, has_rows=has_rows)
        counters = given.part("counters")
        self._counters.check_values(counters, kept.rows.next_key)
        self._draws.check_state(given, len(kept.rows))
        if not is_new:
            self._draws.rehearse(kept, given)
        clear()
        if storage is not None:
            store.begin(storage)
        store.restore(kept)
        self._draws.restore(given)
        self._counters.restore(counters)

    def _check_map(self, given: state_lib.StateReader, is_new: bool) -> None:
        """Raise CheckpointError unless the storage is the memory map that holds the rows of the checkpoint."""
        storage = self._storage
        if not is_new or not isinstance(storage, memmap.MemmapStorage):
            raise errors.CheckpointError("the rows are in a memory map: load with storage=MemmapStorage(...)")
        if given.text("id") != storage.id:
            raise errors.CheckpointError(f"storage must be the memory map {given.text('id')}, got {storage.id}")
        if storage.is_dirty or given.integer("generation") != storage.generation:
            raise errors.CheckpointError(
                "the memory map was written to after the checkpoint was saved: recover the buffer from a journal, or "
                "load a checkpoint with copied rows"
            )

    @property
    def _storage(self) -> memory.Storage | None:
        return self._store.storage if self._store.has_begun else None
