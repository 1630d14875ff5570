"""Samplers that read rows through their anchors are saved, loaded and recovered like others."""

from collections.abc import Sequence
import copy
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive import testing
from relive.common import arrays as arrays_lib

SCHEMA = relive.Schema(relive.Field((), np.int64), relive.Field((), np.int64))
REWARDS = [1.0, 0.0, 3.0, 0.0, 2.0, 4.0]


class ByReward(relive.Sampler):
    """Draws steps in proportion to their rewards, which it reads when they become eligible."""

    def __init__(self, field: str = "reward") -> None:
        self.field = field
        self.is_stuck = False

    def _attached(self, capacity: int) -> None:
        self.tree = relive.SumTree(capacity)

    def _added(self, slots: arrays_lib.Slots) -> None:
        self.tree.set(slots, self.anchors.read(slots, [self.field])[self.field])

    def _removed(self, slots: arrays_lib.Slots) -> None:
        self.tree.set(slots, 0.0)

    def can_draw(self) -> bool:
        return self.tree.total > 0

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        slots = self.tree.sample(size, rng)
        return relive.Draw(slots, self.tree.get(slots) / self.tree.total)


def made(**settings: Any) -> relive.RingReplayBuffer:
    return relive.RingReplayBuffer(8, sampler=ByReward(), seed=0, **settings)


def fill(buffer: Any, rewards: list[float]) -> None:
    buffer.add_episode(range(len(rewards) + 1), [0] * len(rewards), rewards, terminated=True)


def filled(**settings: Any) -> relive.RingReplayBuffer:
    """Return a buffer in which the rewards of keys 4 to 11 are 5, 5, REWARDS."""
    buffer = made(**settings)
    fill(buffer, [9.0, 9.0, 9.0, 9.0, 5.0, 5.0])
    fill(buffer, REWARDS)
    return buffer


def check_draws(buffer: Any, wanted: Sequence[float] = (5.0, 5.0, *REWARDS)) -> None:
    buffer.check()
    keys = buffer.sample_keys(3000)
    counts = np.bincount(keys - keys.min(), minlength=len(wanted)).tolist()
    assert keys.min() == buffer.appended - len(wanted)
    testing.assert_frequencies(counts, (np.array(wanted) / sum(wanted)).tolist())


def test_a_sampler_draws_by_what_it_reads() -> None:
    check_draws(filled())


def test_a_loaded_sampler_reads_rows(tmp_path: pathlib.Path) -> None:
    buffer = filled()
    buffer.save(tmp_path / "saved")
    check_draws(relive.load(tmp_path / "saved"))
    loaded = relive.RingReplayBuffer.load(tmp_path / "saved")
    assert loaded.sample_keys(9).tolist() == buffer.sample_keys(9).tolist()


@pytest.mark.parametrize("earlier", [0, 5, 11])
def test_a_state_is_loaded_into_a_buffer_in_use(earlier: int) -> None:
    buffer = made()
    if earlier:
        fill(buffer, [7.0] * 6)
        fill(buffer, [8.0] * (earlier - 4))
    buffer.load_state_dict(filled().state_dict())
    check_draws(buffer)


class ByNeighbours(ByReward):
    """Reads a single row, several, none, and those of the slots beside, which may be empty."""

    def _added(self, slots: arrays_lib.Slots) -> None:
        capacity = self.anchors.capacity
        for some in (slots[:0], (slots + 1) % capacity, np.stack([slots, slots - 1]) % capacity):
            assert self.anchors.read(some, ["reward"])["reward"].shape == some.shape
        rewards = [self.anchors.read(slot, ["reward"])["reward"].item() for slot in slots.tolist()]
        self.tree.set(slots, rewards)


@pytest.mark.parametrize("is_live", [False, True])
def test_rows_of_a_state_are_read_as_those_of_a_storage(is_live: bool) -> None:
    buffer = relive.RingReplayBuffer(8, sampler=ByNeighbours(), seed=0)
    fill(buffer, [1.0, 2.0, 3.0])
    state, other = buffer.state_dict(), relive.RingReplayBuffer(8, sampler=ByNeighbours(), seed=0)
    if is_live:
        other.load_state_dict(state)
    else:
        other = relive.RingReplayBuffer.from_state(state)
    check_draws(other, [1.0, 2.0, 3.0])


def test_a_state_that_the_sampler_refuses_changes_nothing() -> None:
    """A weight must not be negative."""
    buffer, other = filled(), relive.RingReplayBuffer(8, sampler=relive.UniformSampler())
    fill(other, [1.0, -1.0])
    state = other.state_dict()
    state["settings"]["sampler"] = buffer.state_dict()["settings"]["sampler"]
    before = buffer.state_dict()
    with pytest.raises(errors.ArgumentError, match="weights must be finite and at least 0"):
        buffer.load_state_dict(state)
    after = buffer.state_dict()
    assert all(np.array_equal(array, after["arrays"][name]) for name, array in before["arrays"].items())
    check_draws(buffer)


def test_a_recovered_sampler_reads_rows(tmp_path: pathlib.Path) -> None:
    with relive.Journal(tmp_path / "journal") as journal:
        buffer = made()
        fill(buffer, [9.0, 9.0, 9.0, 9.0])
        buffer.attach(journal)
        fill(buffer, [5.0, 5.0])
        buffer.save(tmp_path / "saved")
        fill(buffer, REWARDS)
    check_draws(relive.recover(tmp_path / "journal"))
    check_draws(relive.recover(tmp_path / "journal", checkpoint=tmp_path / "saved"))


def test_rows_in_a_memory_map_are_read(tmp_path: pathlib.Path) -> None:
    with relive.MemmapStorage(tmp_path / "rows", SCHEMA, 8) as storage:
        filled(storage=storage).save(tmp_path / "saved", copy_rows=False)
    with relive.MemmapStorage(tmp_path / "rows") as storage:
        check_draws(relive.RingReplayBuffer.load(tmp_path / "saved", storage=storage))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda buffer: pickle.loads(pickle.dumps(buffer))])
def test_a_copy_reads_its_own_rows(copied: Any) -> None:
    buffer = filled()
    other = copied(buffer)
    fill(buffer, [0.0] * 7 + [1.0])
    check_draws(other)
    fill(other, REWARDS)
    check_draws(other, [2.0, 4.0, *REWARDS])


class Sees(relive.UniformSampler):
    """Records what its hooks read."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[float]]] = []

    def _see(self, hook: str, slots: arrays_lib.Slots) -> None:
        self.seen.append((hook, self.anchors.read(slots, ["reward"])["reward"].tolist()))

    def _added(self, slots: arrays_lib.Slots) -> None:
        self._see("added", slots)

    def _removed(self, slots: arrays_lib.Slots) -> None:
        self._see("removed", slots)


def test_hooks_read_the_rows_that_are_stored_by_then() -> None:
    sampler = Sees()
    buffer = relive.RingReplayBuffer(2, sampler=sampler, seed=0)
    fill(buffer, [1.0, 2.0])
    fill(buffer, [3.0])
    assert sampler.seen == [("added", [1.0, 2.0]), ("removed", [3.0]), ("added", [3.0])]


@pytest.mark.parametrize("kind", ["sequence", "joint"])
def test_other_buffers_give_their_samplers_rows(kind: str) -> None:
    buffer: Any
    if kind == "sequence":
        buffer = relive.SequenceReplayBuffer(8, length=1, sampler=ByReward(), seed=0)
        fill(buffer, REWARDS)
        check_draws(buffer, REWARDS)
    else:
        buffer = relive.JointReplayBuffer(8, agents=["a"], sampler=Sees(), seed=0)
        buffer.add({"a": 0}, {"a": 0}, {"a": 2.0}, {"a": 1})
        assert buffer.sampler.anchors.read(np.array([[0]])).keys() == buffer.schema.fields.keys()


def test_a_state_without_the_field_that_is_read_is_refused() -> None:
    buffer = relive.RingReplayBuffer(8, sampler=ByReward("extras/label"), seed=0)
    without = relive.RingReplayBuffer(8, SCHEMA, seed=0)
    fill(without, REWARDS)
    state = without.state_dict()
    state["settings"]["sampler"] = buffer.state_dict()["settings"]["sampler"]
    rule = "^fields must be among observation, action, reward, got 'extras/label'$"
    with pytest.raises(errors.ArgumentError, match=rule):
        buffer.load_state_dict(state)
    assert len(buffer) == 0


def test_rows_that_are_not_there_cannot_be_read() -> None:
    sampler = ByReward()
    buffer = relive.RingReplayBuffer(8, sampler=sampler, seed=0)
    with pytest.raises(errors.NotReadyError, match="^read found no step: add one first$"):
        sampler.anchors.read(np.array([0]))
    fill(buffer, [1.0, 2.0])
    assert sampler.anchors.read(np.array([[1, 0]]))["reward"].tolist() == [[2.0, 1.0]]
    with pytest.raises(errors.ArgumentError, match="^fields must be among observation, action, reward, got 'label'$"):
        sampler.anchors.read(np.array([0]), ["label"])
    with pytest.raises(errors.OutOfRangeError, match=r"^slots must be in \[0, 8\), got 8$"):
        sampler.anchors.read(np.array([8]))
