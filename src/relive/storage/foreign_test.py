import copy
import functools
from typing import Any

import numpy as np
import pytest

import relive
from relive.persistence import state
from relive.storage import foreign
from relive.storage import memory

SCHEMA = relive.Schema(relive.Field(2, "i2"), relive.Field((), "i8"))


class Mine:
    """A storage in a list, which may refuse to write after some rows."""

    schema, capacity, left = SCHEMA, 5, 100

    def __init__(self) -> None:
        self.rows = relive.ColumnStorage(SCHEMA, 5)

    def write(self, slots: Any, rows: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError("full")
        self.rows.write(slots, rows)

    def read(self, slots: Any, fields: Any = None) -> Any:
        return self.rows.read(slots, fields)


class Overridden(relive.ColumnStorage):
    def read(self, slots: Any, fields: Any = None) -> Any:
        return super().read(slots, fields)


def rows_of(first: int, count: int) -> dict[str, Any]:
    numbers = np.arange(first, first + count)
    return {"observation": np.stack([numbers] * 2, 1).astype("i2"), "action": numbers, "reward": numbers / 2}


def chunked(rows: dict[str, Any]) -> dict[str, state.LazyArray]:
    def part(column: Any, start: int, stop: int) -> Any:
        return column[start:stop]

    return {
        path: state.LazyArray(column.shape, column.dtype, functools.partial(part, column))
        for path, column in rows.items()
    }


def test_rows_of_any_storage_are_written_and_read_alike() -> None:
    kinds = [foreign.access_to(kind) for kind in (relive.ColumnStorage(SCHEMA, 5), Mine(), Overridden(SCHEMA, 5))]
    assert [(type(each), each.can_fail) for each in kinds] == [
        (memory.Access, False), (foreign.Foreign, True), (foreign.Foreign, True),
    ]  # fmt: skip
    for each in [*kinds, copy.deepcopy(kinds[1])]:
        each.prepare()
        each.fill(3, chunked(rows_of(0, 5)))
        each.write(4, 2, [column.tobytes() for column in rows_of(7, 2).values()])
        slots = np.array([[3, 4], [0, 1]])
        assert each.read(slots)["action"].tolist() == [[0, 7], [8, 3]]
        assert each.rewards.take(slots[0]).tolist() == [0.0, 3.5]
        assert each.run("observation", 4, 3).tolist() == [[7, 7], [8, 8], [3, 3]]


def test_a_storage_that_cannot_be_filled_has_its_rows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "chunks", lambda count, nbytes: [(0, 2), (2, 5)])
    mine = Mine()
    mine.write(np.arange(5), rows_of(10, 5))
    mine.left = 2
    with pytest.raises(OSError, match="^full$"):
        foreign.access_to(mine).fill(1, chunked(rows_of(0, 5)))
    assert mine.read(np.arange(5))["action"].tolist() == [10, 11, 12, 13, 14]
