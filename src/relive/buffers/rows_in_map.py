"""Checkpoints of a column buffer without its rows, which stay in a memory map."""

from typing import Any

from relive import errors
from relive.persistence import state as state_lib
from relive.storage import memmap


def without_rows(state: state_lib.State, storage: Any) -> state_lib.State:
    """Return a state without its rows, which stay in the storage; it is flushed.

    Raises:
        ArgumentError: The storage is not a memory map.
    """
    if not isinstance(storage, memmap.MemmapStorage):
        raise errors.ArgumentError("copy_rows must be True unless the storage is a MemmapStorage, got False")
    storage.flush()
    arrays = {name: array for name, array in state["arrays"].items() if not name.startswith("rows/")}
    return {**state, "rows_in": {"id": storage.id, "generation": storage.generation}, "arrays": arrays}


def check(given: state_lib.StateReader, storage: Any) -> None:
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
