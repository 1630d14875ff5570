from typing import Any

import numpy as np
import pytest

import relive
from relive.schema import encoding
from relive.storage import memory
from relive.storage import steps
from relive.storage import whole

SCHEMA = relive.Schema(relive.Field((), ">f2"), relive.Field((), "i8"))


def episodes(first: int, lengths: list[int], knows: list[bool], encoder: Any = None) -> whole.Episodes:
    """Return truncated episodes whose observations count on from `first`, and are followed by 9."""
    count = sum(lengths)
    columns = {
        "observation": np.arange(first, first + count).astype(">f2"),
        "action": np.arange(count),
        "reward": np.zeros(count),
    }
    ends, finals = np.full(len(lengths), encoding.TRUNCATED, np.uint8), {"observation": np.full(len(lengths), 9, ">f2")}
    return whole.Episodes(
        encoder or encoding.Encoder(SCHEMA), 0, columns, None, np.array(lengths), ends, np.array(knows), finals
    )


class FullDisk:
    """A journal without room."""

    def prepare(self) -> None:
        """Do nothing."""

    def write(self, steps: Any) -> None:
        """Raise OSError."""
        raise OSError

    def write_all(self, episodes: Any) -> None:
        """Raise OSError, once all records are made."""
        list(episodes)
        raise OSError


@pytest.mark.parametrize("has_begun", [False, True])
def test_episodes_that_are_not_journaled_are_not_there(has_begun: bool) -> None:
    store = steps.StepStore(5, 1)
    if has_begun:
        store.begin(memory.ColumnStorage(SCHEMA, 5))
        whole.append_episodes(store, episodes(0, [1, 3], [True, True], store.encoder), None, None)
    slots = store.alive_slots()
    before = store.rows_state().arrays(), store.read_rows(slots) if has_begun else {}
    finals = [each.tolist() for each in store.finals.columns.values()]
    with pytest.raises(OSError, match="^$"):
        whole.append_episodes(store, episodes(5, [2, 2], [True, False], store.encoder), FullDisk(), None)
    assert store.has_begun == has_begun
    after = store.rows_state().arrays(), store.read_rows(slots) if has_begun else {}
    for one, other in zip(before, after, strict=True):
        assert {name: array.tolist() for name, array in one.items()} == {
            name: array.tolist() for name, array in other.items()
        }
    assert [each.tolist() for each in store.finals.columns.values()] == finals
    store.check()


def test_each_episode_is_a_run_of_steps() -> None:
    first, second = episodes(3, [2, 1], [True, False]).steps()
    assert (first.events, second.events) == (bytes([encoding.CUT, 2]), bytes([2]))
    assert first.rows[0] == np.array([3, 4], ">f2").tobytes()
    assert first.next_rows == [np.array([9], ">f2").tobytes()]
    assert (second.next_rows, second.is_run, [*second.streams]) == (None, True, [0])
