"""Chunks of actions, where the twins of the grid and of the machine do not reach: long ones, trees, memory, files."""

import pathlib
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.storage import memory


def filled(kind: Any = relive.RingReplayBuffer, **settings: Any) -> Any:
    """Return a buffer with an episode of five steps that terminated, and one of two that goes on."""
    buffer = kind(100, action_chunks=True, seed=0, **settings)
    for t in range(7):
        action = {"arm": [float(t), t + 0.5], "grip": t}
        buffer.add([float(t)], action, t + 1.0, [t + 1.0], terminated=t == 4)
    return buffer


def test_a_chunk_repeats_the_last_action_of_its_window() -> None:
    buffer = filled(n_step=3)
    batch = buffer.read([0, 3, 4, 5, 6])
    assert batch.action["grip"].tolist() == [[0, 1, 2], [3, 4, 4], [4, 4, 4], [5, 6, 6], [6, 6, 6]]
    assert batch.action["arm"].tolist() == [[[t, t + 0.5] for t in row] for row in batch.action["grip"]]
    assert batch.steps.tolist() == [3, 2, 1, 2, 1]
    plain = relive.RingReplayBuffer.from_state(buffer.state_dict(), action_chunks=False).read([0, 3, 4, 5, 6], n_step=3)
    for name in ("observation", "reward", "next_observation", "next_discount", "is_terminal", "steps", "keys"):
        assert getattr(batch, name).tolist() == getattr(plain, name).tolist()
    assert plain.action["grip"].tolist() == [0, 3, 4, 5, 6]


def test_a_call_may_ask_for_chunks_of_another_length() -> None:
    buffer = filled(relive.PrioritizedReplayBuffer, n_step=2, frame_stack=2)
    for n_step in (1, 2, 5, 40):
        chunks = [[min(key + k, 4 if key < 5 else 6) for k in range(n_step)] for key in range(7)]
        assert buffer.read(range(7), n_step=n_step).action["grip"].tolist() == chunks
        drawn = buffer.sample(20, n_step=n_step)
        assert drawn.action["grip"].tolist() == [chunks[key] for key in drawn.keys]
    assert next(buffer.batches(3, n_step=4)).action["arm"].shape == (3, 4, 2)
    assert len(buffer.read([], n_step=3).action["grip"]) == 0


def test_chunks_that_memory_does_not_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = "^n_step must fit in memory, got {} actions of {} bytes each"
    with pytest.raises(errors.ArgumentError, match=rule.format(2**60, 8)):
        filled(n_step=2**60)
    buffer = filled(n_step=3)
    state = buffer.rng.bit_generator.state
    with pytest.raises(errors.ArgumentError, match=rule.format(2**61, 24)):
        buffer.sample(2, n_step=2**60)
    assert (buffer.rng.bit_generator.state, buffer.get_stats().sampled) == (state, 0)
    late = relive.RingReplayBuffer(9, n_step=2**10, action_chunks=True)
    monkeypatch.setattr(memory, "MOST_BYTES", 2**15)
    with pytest.raises(errors.ArgumentError, match=rule.format(1024, 160)):
        late.add(0.0, np.zeros(20), 1.0)
    assert len(late) == 0


def test_chunks_are_a_setting_that_is_saved(tmp_path: pathlib.Path) -> None:
    buffer = filled(relive.PrioritizedReplayBuffer, n_step=3)
    buffer.save(tmp_path / "saved")
    loaded: Any = relive.load(tmp_path / "saved")
    assert loaded.window == buffer.window
    assert loaded.sample(4).action["grip"].tolist() == buffer.sample(4).action["grip"].tolist()
    with pytest.raises(errors.ArgumentTypeError, match="^action_chunks must be True or False, got 3$"):
        relive.RingReplayBuffer(10, action_chunks=3)  # type: ignore[arg-type]
