"""What a checkpoint keeps of a column buffer: its rows, its anchors and its counters."""

from collections.abc import Callable

from relive import errors
from relive.buffers import anchors as anchors_lib
from relive.buffers import column_stats
from relive.kernels import history as history_lib
from relive.kernels import timeline_state
from relive.persistence import settings
from relive.persistence import state as state_lib
from relive.storage import memmap
from relive.storage import memory


class ColumnState:
    """Takes and restores the state of the parts of a buffer."""

    def __init__(
        self, history: history_lib.StepStore, anchors: anchors_lib.Anchors, counters: column_stats.Counters
    ) -> None:
        self._history, self._anchors, self._counters = history, anchors, counters

    def taken(self) -> state_lib.State:
        """Return the state."""
        return self._taken(self._history.timeline.state())

    def taken_of_open_episodes(self) -> state_lib.State:
        """Return the state as it would be if all that is stored had been evicted just now."""
        timeline = self._history.timeline
        return self._taken(timeline.state().without_rows(timeline.streams))

    def taken_without_copies(self) -> state_lib.State:
        """Return the state with the rows left where they are, in a memory map, which is flushed.

        Raises:
            ArgumentError: The storage is another one.
        """
        storage = self._storage
        if not isinstance(storage, memmap.MemmapStorage):
            raise errors.ArgumentError("copy_rows must be True where the storage is no MemmapStorage, got False")
        state = self.taken()
        storage.flush()
        arrays = {name: array for name, array in state["arrays"].items() if not name.startswith("rows/")}
        return {**state, "rows_in": {"id": storage.id, "generation": storage.generation}, "arrays": arrays}

    def _taken(self, rows: timeline_state.TimelineState) -> state_lib.State:
        history = self._history.state(rows)
        anchors = self._anchors.state(self._history.timeline.slots(rows.keys))
        arrays = history.pop("arrays") | anchors.pop("arrays")
        return {"counters": self._counters.values(), **history, **anchors, "arrays": arrays}

    def restoring(self, given: state_lib.StateReader, *, is_new: bool) -> Callable[[], None]:
        """Return a function that restores that state once every row was taken away, and cannot fail.

        Args:
            given: The state.
            is_new: Whether the buffer was made for it, from its settings.

        Raises:
            CheckpointError: No buffer of those settings can be in that state, or its rows are in another map.
        """
        timeline = self._history.timeline
        schema, storage = settings.made(given.part("settings"), {"schema": None})["schema"], None
        if self._history.has_begun:
            schema = schema and self._history.schema
        elif schema is not None:
            try:
                storage = memory.ColumnStorage(schema, timeline.capacity)
            except (MemoryError, ValueError) as error:
                raise errors.CheckpointError(f"schema cannot be that of {timeline.capacity} rows: {error}") from error
        has_rows = not given.has("rows_in")
        if not has_rows:
            self._check_map(given.part("rows_in"), is_new)
        kept = timeline_state.StepStoreState.of(given, schema, timeline.capacity, timeline.streams, has_rows=has_rows)
        counters = given.part("counters")
        self._counters.check_values(counters, kept.timeline.next_key)
        self._anchors.check_state(given, len(kept.timeline))
        if not is_new:
            self._anchors.rehearse(kept.timeline, given)

        def restore() -> None:
            if storage is not None:
                self._history.begin(storage)
            self._history.restore(kept)
            self._anchors.restore(given)
            self._counters.restore(counters)

        return restore

    def _check_map(self, given: state_lib.StateReader, is_new: bool) -> None:
        """Raise CheckpointError unless the storage is the memory map whose rows those of a checkpoint are."""
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
        return self._history.storage if self._history.has_begun else None
