"""The checkpointed state of a column buffer: rows, anchors and counters."""

from relive import errors
from relive.buffers import column_stats
from relive.buffers import draws as draws_lib
from relive.persistence import state as state_lib
from relive.schema import schema as schema_lib
from relive.storage import memmap
from relive.storage import memory
from relive.storage import steps as steps_lib
from relive.storage import steps_state


def state_dict(
    store: steps_lib.StepStore, draws: draws_lib.Draws, counters: column_stats.Counters, *, has_rows: bool = True
) -> state_lib.State:
    """Return the state; without `has_rows`, as if everything stored had just been evicted."""
    rows = store.rows_state() if has_rows else store.rows_state().without_rows()
    of_store, of_draws = store.state(rows), draws.state(store.slots(rows.keys))
    arrays = of_store.pop("arrays") | of_draws.pop("arrays")
    return {"counters": counters.values(), **of_store, **of_draws, "arrays": arrays}


def in_place(state: state_lib.State, store: steps_lib.StepStore) -> state_lib.State:
    """Return a state without its rows, which stay in a memory map that is flushed.

    Raises:
        ArgumentError: The storage is not a memory map.
    """
    storage = store.storage if store.has_begun else None
    if not isinstance(storage, memmap.MemmapStorage):
        raise errors.ArgumentError("copy_rows must be True unless the storage is a MemmapStorage, got False")
    storage.flush()
    arrays = {name: array for name, array in state["arrays"].items() if not name.startswith("rows/")}
    return {**state, "rows_in": {"id": storage.id, "generation": storage.generation}, "arrays": arrays}


def restore(
    given: state_lib.StateReader,
    schema: schema_lib.Schema | None,
    store: steps_lib.StepStore,
    draws: draws_lib.Draws,
    counters: column_stats.Counters,
) -> None:
    """Restore a state in the empty parts of a buffer; its rows are written by `store.settle`.

    Args:
        given: The state.
        schema: The fields of its rows; None if there are no rows.
        store: The rows, over the storage that they are for; one in memory is made if it has another schema or none.
        draws: The anchors.
        counters: The counters.

    Raises:
        CheckpointError: The state is impossible with these settings, or its rows are in another map.
    """
    if schema is not None and not (store.has_begun and store.schema == schema):
        try:
            store.begin(memory.ColumnStorage(schema, store.capacity))
        except (MemoryError, ValueError) as error:
            raise errors.CheckpointError(f"schema cannot be that of {store.capacity} rows: {error}") from error
    has_rows = not given.has("rows_in")
    if not has_rows:
        _check_map(given.part("rows_in"), store.storage if store.has_begun else None)
    kept = steps_state.StepsState.of(given, schema, store.capacity, store.streams, has_rows=has_rows)
    store.restore(kept)
    draws.restore(given)
    counters.restore(given.part("counters"), kept.rows.next_key)


def _check_map(given: state_lib.StateReader, storage: memory.Storage | None) -> None:
    """Raise CheckpointError unless the storage is the memory map that holds the rows of the checkpoint."""
    if not isinstance(storage, memmap.MemmapStorage):
        raise errors.CheckpointError("the rows are in a memory map: load with storage=MemmapStorage(...)")
    if given.text("id") != storage.id:
        raise errors.CheckpointError(f"storage must be the memory map {given.text('id')}, got {storage.id}")
    if storage.is_dirty or given.integer("generation") != storage.generation:
        raise errors.CheckpointError(
            "the memory map was written to after the checkpoint was saved: recover the buffer from a journal, or "
            "load a checkpoint with copied rows"
        )
