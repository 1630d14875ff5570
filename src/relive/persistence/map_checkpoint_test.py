"""Checkpoints without rows, which stay in a memory map."""

import pathlib
import random
from typing import Any

import pytest

import relive
from relive.persistence import archive_test
from relive.testing import zoo


def saved(tmp_path: pathlib.Path, count: int = 100) -> Any:
    """Return a buffer over a memory map that was saved without its rows."""
    storage = relive.MemmapStorage(tmp_path / "map", zoo.SCHEMA, 30)
    buffer = relive.PrioritizedReplayBuffer(30, n_step=3, storage=storage, seed=0)
    zoo.work(buffer, random.Random(0), count)
    buffer.save(tmp_path / "checkpoint", copy_rows=False)
    return buffer


def loaded(tmp_path: pathlib.Path, **instead: Any) -> Any:
    """Return the buffer that was saved, over the memory map."""
    storage = relive.MemmapStorage(tmp_path / "map")
    try:
        return relive.PrioritizedReplayBuffer.load(tmp_path / "checkpoint", **{"storage": storage, **instead})
    except BaseException:
        storage.close()
        raise


@pytest.mark.parametrize("count", [0, 5, 100])
def test_a_buffer_goes_on_over_its_map(tmp_path: pathlib.Path, count: int) -> None:
    buffer = saved(tmp_path, count)
    assert not [name for name in archive_test.contents_of(tmp_path / "checkpoint") if name.startswith("rows")]
    buffer.save(tmp_path / "copy")
    close(buffer)
    again = loaded(tmp_path)
    zoo.assert_same(relive.PrioritizedReplayBuffer.load(tmp_path / "copy"), again)
    close(again)


def close(buffer: Any) -> None:
    """Close the memory map of a buffer."""
    buffer._store.storage.close()


def test_a_map_that_was_written_to_since_is_refused(tmp_path: pathlib.Path) -> None:
    buffer = saved(tmp_path)
    zoo.work(buffer, random.Random(1), 9)
    close(buffer)
    with pytest.raises(relive.CheckpointError, match="^the memory map was written to after the checkpoint was saved: "):
        loaded(tmp_path)


def test_another_map_or_none_is_refused(tmp_path: pathlib.Path) -> None:
    buffer = saved(tmp_path)
    with pytest.raises(relive.CheckpointError, match=r"^the rows are in a memory map: load with storage=MemmapStorage"):
        relive.PrioritizedReplayBuffer.load(tmp_path / "checkpoint")
    other = relive.MemmapStorage(tmp_path / "other", zoo.SCHEMA, 30)
    with pytest.raises(relive.CheckpointError, match=f"^storage must be the memory map .*, got {other._id}$"):
        relive.PrioritizedReplayBuffer.load(tmp_path / "checkpoint", storage=other)
    other.close()
    close(buffer)


def test_a_state_without_rows_is_for_its_map_alone(tmp_path: pathlib.Path) -> None:
    buffer = saved(tmp_path)
    before = buffer.state_dict()
    arrays = {name: array for name, array in before["arrays"].items() if not name.startswith("rows/")}
    rows_in = {"id": buffer._store.storage._id, "generation": buffer._store.storage.generation}
    state = {**before, "arrays": arrays, "rows_in": rows_in}
    buffer.sample(9)
    buffer.load_state_dict(state)
    assert zoo.plain(buffer.state_dict()) == zoo.plain(before)
    other = relive.PrioritizedReplayBuffer(30, zoo.SCHEMA, n_step=3, seed=0)
    with pytest.raises(relive.CheckpointError, match="^the rows are in a memory map"):
        other.load_state_dict(state)
    zoo.work(buffer, random.Random(1), 9)
    before = buffer.state_dict()
    with pytest.raises(relive.CheckpointError, match="^the memory map was written to after the checkpoint was saved: "):
        buffer.load_state_dict(state)
    assert zoo.plain(buffer.state_dict()) == zoo.plain(before)
    close(buffer)


def test_a_buffer_over_a_closed_map_takes_no_state(tmp_path: pathlib.Path) -> None:
    buffer = saved(tmp_path)
    state = buffer.state_dict()
    close(buffer)
    buffer.check()
    with pytest.raises(relive.ClosedError, match="was closed: open it again$"):
        buffer.load_state_dict(state)
    buffer.check()
    assert len(buffer) == 30


def test_rows_in_memory_have_to_be_copied(tmp_path: pathlib.Path) -> None:
    for buffer in (relive.RingReplayBuffer(10), relive.RingReplayBuffer(10, zoo.SCHEMA)):
        message = "^copy_rows must be True unless the storage is a MemmapStorage, got False$"
        with pytest.raises(ValueError, match=message):
            buffer.save(tmp_path / "checkpoint", copy_rows=False)
        assert not (tmp_path / "checkpoint").exists()
