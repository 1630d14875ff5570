from collections.abc import Callable, Collection

import numpy as np
import pytest

import relive
from relive.common import arrays as arrays_lib
from relive.storage import memory as storages
from relive.testing import storage_suite


class Honest(relive.ColumnStorage):
    """A storage to break in one way at a time."""


class Views(Honest):
    def read(self, slots: storages.Slots, fields: Collection[str] | None = None) -> dict[str, arrays_lib.Array]:
        read = super().read(slots, fields)
        if np.shape(slots) == (self.capacity,) and np.array_equal(slots, np.arange(self.capacity)):
            return {path: dict(self._columns)[path][:] for path in read}
        return read


class ViewsOfOne(Honest):
    def read(self, slots: storages.Slots, fields: Collection[str] | None = None) -> dict[str, arrays_lib.Array]:
        read = super().read(slots, fields)
        return {path: dict(self._columns)[path][slots, ...] if np.shape(slots) == () else read[path] for path in read}


class Keeps(Honest):
    """Keeps the arrays that were written, until something else is."""

    def write(self, slots: storages.Slots, rows: storages.Rows) -> None:
        super().write(slots, rows)
        self.kept = slots, rows

    def read(self, slots: storages.Slots, fields: Collection[str] | None = None) -> dict[str, arrays_lib.Array]:
        if hasattr(self, "kept"):
            super().write(*self.kept)
        return super().read(slots, fields)


class CountsFromTheEnd(Honest):
    def _checked(self, slots: storages.Slots) -> storages.Slots:
        if not np.less(slots, self.capacity).all() or not np.greater_equal(slots, -self.capacity).all():
            raise IndexError("outside")
        return int(slots) if np.shape(slots) == () else slots


class ChecksWhenItIsLate(Honest):
    def write(self, slots: storages.Slots, rows: storages.Rows) -> None:
        inside = np.ravel(np.greater_equal(slots, 0) & np.less(slots, self.capacity))
        flat = {path: rows[path].reshape(-1, *column.shape[1:]) for path, column in self._columns.items()}
        super().write(np.ravel(slots)[inside], {path: column[inside] for path, column in flat.items()})
        self._checked(slots)


class Rounds(Honest):
    def read(self, slots: storages.Slots, fields: Collection[str] | None = None) -> dict[str, arrays_lib.Array]:
        read = super().read(slots, fields)
        for column in read.values():
            if column.dtype == np.float64:
                with np.errstate(over="ignore"):
                    column[...] = column.astype(np.float32)
        return read


class Scalars(Honest):
    def read(self, slots: storages.Slots, fields: Collection[str] | None = None) -> dict[str, arrays_lib.Array]:
        return {path: column[()] for path, column in super().read(slots, fields).items()}


class Flattens(Honest):
    def read(self, slots: storages.Slots, fields: Collection[str] | None = None) -> dict[str, arrays_lib.Array]:
        return super().read(slots if isinstance(slots, int) else np.ravel(slots), fields)


class ReadsAll(Honest):
    def read(self, slots: storages.Slots, fields: Collection[str] | None = None) -> dict[str, arrays_lib.Array]:
        super().read(slots, fields)
        return super().read(slots)


class SkipsUnknown(Honest):
    def read(self, slots: storages.Slots, fields: Collection[str] | None = None) -> dict[str, arrays_lib.Array]:
        known = None if fields is None else [path for path in fields if path in self.schema.fields]
        return super().read(slots, known)


class Merges(Honest):
    """Reads a slot that is asked for twice once."""

    def read(self, slots: storages.Slots, fields: Collection[str] | None = None) -> dict[str, arrays_lib.Array]:
        return super().read(slots if isinstance(slots, int) else np.unique(slots), fields)


class IsLarger(Honest):
    @property
    def capacity(self) -> int:
        return self._capacity + 1


class WritesOnce(Honest):
    def write(self, slots: storages.Slots, rows: storages.Rows) -> None:
        if not hasattr(self, "full"):
            super().write(slots, rows)
        self.full = np.size(slots) > 0


class Inverts(Honest):
    """Reverses its arguments in place."""

    def write(self, slots: storages.Slots, rows: storages.Rows) -> None:
        super().write(slots, rows)
        for column in rows.values():
            column[...] = column[::-1] if column.ndim else column


class ForgetsWhatIsNew(Honest):
    def read(self, slots: storages.Slots, fields: Collection[str] | None = None) -> dict[str, arrays_lib.Array]:
        if not any(column.any() for column in self._columns.values() if column.dtype.kind in "iuf"):
            raise KeyError("nothing was written")
        return super().read(slots, fields)


SUITE = storage_suite.StorageTests
BROKEN: dict[Callable[..., None], list[type[relive.ColumnStorage]]] = {
    SUITE.test_capacity_and_schema_are_those_it_was_made_of: [IsLarger],
    SUITE.test_rows_come_back_in_the_shape_of_their_slots: [Flattens],
    SUITE.test_an_int_is_a_slot: [Scalars, Merges],
    SUITE.test_random_operations_agree_with_a_dict: [Merges, WritesOnce],
    SUITE.test_no_value_is_rounded: [Rounds],
    SUITE.test_a_slot_that_was_never_written_can_be_read: [ForgetsWhatIsNew],
    SUITE.test_fields_are_those_asked_for: [ReadsAll],
    SUITE.test_an_unknown_field_is_refused: [SkipsUnknown],
    SUITE.test_a_slot_outside_is_refused_and_nothing_is_written: [CountsFromTheEnd, ChecksWhenItIsLate],
    SUITE.test_writing_into_what_was_read_changes_nothing: [Views, ViewsOfOne],
    SUITE.test_writing_into_what_was_written_changes_nothing: [Keeps],
    SUITE.test_arrays_of_any_layout_are_written_and_left_alone: [Inverts],
}
"""What fails each test."""


@pytest.mark.parametrize(("broken", "test"), [(each, test) for test, makers in BROKEN.items() for each in makers])
def test_a_broken_storage_fails(broken: type[relive.ColumnStorage], test: Callable[..., None]) -> None:
    class Suite(storage_suite.StorageTests):
        def make(self, schema: relive.Schema, capacity: int) -> relive.Storage:
            return broken(schema, capacity)

    with pytest.raises((AssertionError, ValueError, KeyError)):
        test(Suite())


def test_every_test_of_storages_can_fail() -> None:
    assert {test.__name__ for test in BROKEN} == {
        name for name in vars(storage_suite.StorageTests) if name.startswith("test_")
    }
