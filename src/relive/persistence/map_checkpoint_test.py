"""Checkpoints without rows, which stay in a memory map."""

import pathlib
from typing import Any

import numpy as np
import pytest

import relive

SCHEMA = relive.Schema(relive.Field(2, "float32"), relive.Field((), "int64"))


def fill(buffer: Any, episodes: int) -> None:
    """Add episodes of seven steps; an observation is its episode and step."""
    for number in range(episodes):
        observations = np.column_stack([np.full(8, number), np.arange(8)]).astype(np.float32)
        buffer.add_episode(observations, np.arange(7), np.ones(7), terminated=number % 2 == 0)


def saved(tmp_path: pathlib.Path, episodes: int = 30) -> Any:
    """Return a buffer over a memory map that was saved without its rows."""
    storage = relive.MemmapStorage(tmp_path / "map", SCHEMA, 100)
    buffer = relive.PrioritizedReplayBuffer(100, n_step=3, storage=storage, seed=0)
    fill(buffer, episodes)
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


def close(buffer: Any) -> None:
    """Close the memory map of a buffer."""
    buffer.history.storage.close()


@pytest.mark.parametrize("episodes", [0, 5, 30])
def test_a_buffer_goes_on_over_its_map(tmp_path: pathlib.Path, episodes: int) -> None:
    buffer = saved(tmp_path, episodes)
    assert not list((tmp_path / "checkpoint").glob("rows*"))
    expected = [buffer.sample(16) for _ in range(20)] if episodes else []
    close(buffer)
    again = loaded(tmp_path)
    again.check()
    for batch in expected:
        answer = again.sample(16)
        assert answer.keys.tolist() == batch.keys.tolist()
        assert answer.observation.tolist() == batch.observation.tolist()
        assert answer.weights.tolist() == batch.weights.tolist()
    fill(again, 20)
    again.check()
    close(again)


def test_a_map_that_was_written_to_since_is_refused(tmp_path: pathlib.Path) -> None:
    buffer = saved(tmp_path)
    fill(buffer, 1)
    close(buffer)
    with pytest.raises(
        relive.CheckpointError, match=r"^the memory map was written to after the checkpoint was saved: "
    ):
        loaded(tmp_path)


def test_another_map_or_none_is_refused(tmp_path: pathlib.Path) -> None:
    buffer = saved(tmp_path)
    with pytest.raises(relive.CheckpointError, match=r"^the rows are in a memory map: load with storage=MemmapStorage"):
        relive.PrioritizedReplayBuffer.load(tmp_path / "checkpoint")
    other = relive.MemmapStorage(tmp_path / "other", SCHEMA, 100)
    with pytest.raises(relive.CheckpointError, match=f"^storage must be the memory map .*, got {other.id}$"):
        relive.PrioritizedReplayBuffer.load(tmp_path / "checkpoint", storage=other)
    other.close()
    close(buffer)


def test_a_state_without_rows_is_for_a_new_buffer_alone(tmp_path: pathlib.Path) -> None:
    buffer = saved(tmp_path)
    state = buffer.state_dict()
    rows = {name: state["arrays"].pop(name) for name in list(state["arrays"]) if name.startswith("rows/")}
    assert rows
    state["rows_in"] = {"id": buffer.history.storage.id, "generation": buffer.history.storage.generation}
    with pytest.raises(relive.CheckpointError, match="^the rows are in a memory map"):
        buffer.load_state_dict(state)
    buffer.check()
    close(buffer)


def test_rows_in_memory_have_to_be_copied(tmp_path: pathlib.Path) -> None:
    for buffer in (relive.RingReplayBuffer(10), relive.RingReplayBuffer(10, SCHEMA)):
        with pytest.raises(
            ValueError, match="^copy_rows must be True unless the storage is a MemmapStorage, got False$"
        ):
            buffer.save(tmp_path / "checkpoint", copy_rows=False)
        assert not (tmp_path / "checkpoint").exists()


def test_a_copy_does_not_need_the_map(tmp_path: pathlib.Path) -> None:
    buffer = saved(tmp_path)
    buffer.save(tmp_path / "copy")
    fill(buffer, 3)
    close(buffer)
    again = relive.PrioritizedReplayBuffer.load(tmp_path / "copy")
    again.check()
    assert len(again) == 100
