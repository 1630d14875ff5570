"""The adapter of a user's storage, so that a store reads and writes its rows as those of a ColumnStorage.

A subclass of ColumnStorage that reads or writes in its own way is one of these.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from relive.common import arrays as arrays_lib
from relive.kernels import append
from relive.persistence import state
from relive.schema import encoding
from relive.storage import memory


class Foreign:
    """The rows of any storage, as `memory.Access` has them; a write may fail, and every read is a copy."""

    takes_any, can_fail = False, True
    records = None

    def __init__(self, storage: memory.Storage) -> None:
        self.storage, self.read, self.rewards = storage, storage.read, self

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.storage,)

    def prepare(self) -> None:
        """Do nothing: whether the next write fails is not known."""

    def write(self, slot: int, count: int, rows: Sequence[bytes | memoryview]) -> None:
        """Write `count` rows to the slots from one on, wrapping around at the end."""
        columns = encoding.columns(self.storage.schema, rows, count)
        self.storage.write(append.slots_from(slot, count, self.storage.capacity), columns)

    def take(self, slots: arrays_lib.Ints) -> arrays_lib.Array:
        """Return the rewards of the rows in `slots`."""
        return self.storage.read(slots, ("reward",))["reward"]

    def run(self, path: str, slot: int, count: int) -> arrays_lib.Array:
        """Return a field of `count` rows from a slot on."""
        return self.storage.read(append.slots_from(slot, count, self.storage.capacity), (path,))[path]

    def fill(self, slot: int, columns: Mapping[str, state.ChunkedArray]) -> None:
        """Write all fields of as many rows as a column has from a slot on; or none, if a write raises."""
        count, capacity = next(iter(columns.values())).shape[0], self.storage.capacity
        slots = append.slots_from(slot, count, capacity)
        before = self.storage.read(slots)
        try:
            for start, stop in state.chunks(count, count * self.storage.schema.nbytes):
                rows = [memory.bytes_of(column.read(start, stop)) for column in columns.values()]
                self.write((slot + start) % capacity, stop - start, rows)
        except BaseException:
            self.storage.write(slots, before)
            raise


Access: TypeAlias = memory.Access | Foreign


def access_to(storage: memory.Storage) -> Access:
    """Return how a store reads and writes the rows of a storage."""
    if isinstance(storage, memory.ColumnStorage) and memory.is_own(storage, "read", "write"):
        return memory.Access(storage)
    return Foreign(storage)
