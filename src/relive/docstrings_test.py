"""Sentences of docstrings that were false when they were run."""

import pathlib
import re
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import validation
from relive.storage import memmap
from relive.storage import ragged
from relive.testing import zoo

ROW = relive.Schema(relive.Field((), "S4"), relive.Field((), int))


def added(buffer: Any, count: int) -> Any:
    """Return the buffer with one more episode of `count` steps."""
    buffer.add_episode(np.arange(count + 1.0), [0] * count, [0.0] * count, terminated=True)
    return buffer


def test_a_value_in_an_error_is_short_however_it_is_nested() -> None:
    text = validation.short_repr([[["a" * 100] * 100] * 100] * 100)
    assert len(text) == 200
    assert text.endswith("...")


def test_an_integer_beyond_int64_is_not_said_to_be_none() -> None:
    with pytest.raises(errors.ArgumentTypeError, match=rf"^keys must be integers of int64, got \[{2**70}\]$"):
        added(relive.PrioritizedReplayBuffer(4), 2).update_priorities([2**70], [1.0])


def test_scalars_have_the_properties_of_the_classes_above() -> None:
    of_ring, of_joint = (zoo.KINDS[name].make().get_stats().scalars() for name in ("ring", "joint"))
    assert of_ring.keys() < of_joint.keys()


@pytest.mark.parametrize("text", [b"ab\0", [b"ab\0"]])
def test_text_that_numpy_would_cut_is_refused(text: Any) -> None:
    rule = "^observation must not end with a null character, which numpy drops, got "
    with pytest.raises(errors.SchemaError, match=rf"{rule}{re.escape(repr(text))}$"):
        relive.Schema.from_example(text, 0)
    if isinstance(text, bytes):
        with pytest.raises(errors.SchemaError, match=rule):
            relive.RingReplayBuffer(4, ROW).add(text, 0, 0.0)


def test_a_column_that_cannot_be_written_to_is_refused() -> None:
    def read_only(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        return np.frombuffer(bytes(shape[0] * dtype.itemsize), dtype)

    with pytest.raises(
        errors.ArgumentError, match=r"^allocate must return a writable array for a, got a read-only one$"
    ):
        ragged.RaggedColumns(4, {"a": "int64"}, allocate=read_only)


def test_a_temporary_map_that_nothing_can_hold_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.CheckpointError, match=rf"^{re.escape(str(tmp_path))} cannot hold {2**65} bytes: "):
        relive.TemporaryMaps(tmp_path)((2**62,), np.dtype("f8"))


def test_a_reader_sees_that_its_map_is_being_written(tmp_path: pathlib.Path) -> None:
    with relive.MemmapStorage(tmp_path / "rows", ROW, 4) as rows:
        rows.write(0, {"observation": np.array(b"a"), "action": np.array(0), "reward": np.array(0.0)})
        with memmap.reader(str(tmp_path / "rows")) as reader:
            assert reader.was_dirty


def test_listed_anchors_are_read_only() -> None:
    anchors = added(relive.RingReplayBuffer(4), 2).sampler.anchors
    assert not anchors.listed().flags.writeable


@pytest.mark.parametrize("stride", range(1, 6))
@pytest.mark.parametrize("count", range(1, 9))
def test_padding_covers_every_step_unless_stride_exceeds_length(stride: int, count: int) -> None:
    buffer = relive.SequenceReplayBuffer(20, length=3, stride=stride, pad=True)
    batch = added(buffer, count).read(buffer.eligible_keys())
    starts = zip(batch.start_step.tolist(), batch.mask, strict=True)
    found = {start + step for start, mask in starts for step in mask.nonzero()[0].tolist()}
    assert found == {step for step in range(count) if step % stride < 3}


def test_a_mixture_refuses_keys_that_no_buffer_gave_out() -> None:
    mixture = relive.MixtureSampler(
        [added(relive.PrioritizedReplayBuffer(4), 2), added(relive.RingReplayBuffer(4), 2)], [1, 1]
    )
    for key in (-1, 2 * 2 + 1):  # Both are of the buffer without priorities.
        with pytest.raises(errors.ArgumentError, match=r"^keys must be those of batches, below 2, "):
            mixture.update_priorities([0, key], [5.0, 1.0])
    assert mixture.update_priorities([0, 1, 3], [5.0, 1.0, 1.0]) == 1


def test_an_episode_that_others_overtake_gets_older() -> None:
    buffer = relive.EpisodeReplayBuffer[int, int](admission=relive.Admission(max_lag=1, episodes_per_version=1))

    def started(version: int) -> str:
        buffer.set_policy_version(version)
        episode_id = buffer.start_episode_nowait("a", ticket=buffer.admit_nowait(), policy_version=version)
        buffer.append_observation_action_reward_nowait(episode_id, 0, 0, 1.0)
        return episode_id

    slow = started(0)
    for version in range(4):
        buffer.end_episode_nowait(started(version), 0)
        assert buffer.next_episodes_nowait(1)[0].policy_version == version
    buffer.end_episode_nowait(slow, 0)
    buffer.end_episode_nowait(started(4), 0)
    assert buffer.next_episodes_nowait(1, max_lag=1)[0].policy_version == 4
    assert buffer.get_drops() == {"stale": {"a": 1}}  # The slow one.


def test_threads_may_share_a_rollout() -> None:
    rollout = relive.ThreadSafeReplayBuffer(relive.RolloutBuffer(1))
    rollout.add(0.0, 0, 1.0)
    assert rollout.is_full
    assert rollout.arrays()["reward"].tolist() == [1.0]


@pytest.mark.parametrize("wrapper", [relive.AsyncReplayBuffer, relive.ThreadSafeReplayBuffer])
def test_wrappers_lack_what_their_docstrings_say(wrapper: Any) -> None:
    ring = relive.RingReplayBuffer(4)
    lacking = {name for name in dir(ring) if name[0] != "_" and not hasattr(wrapper(ring), name)}
    assert lacking == {"attach", "detach", "can_insert", "can_sample", "rng", "load", "from_state"}
