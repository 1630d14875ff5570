"""`get_stats` compared with a list of everything that was added and drawn."""

import pathlib
import random
from typing import Any

import numpy as np
import pytest

import relive
from relive.common import arrays as arrays_lib
from relive.testing import zoo

pytestmark = pytest.mark.filterwarnings("ignore::relive.errors.MisuseWarning")

NUMBER = relive.Field((), "float64")
VERSION = relive.Schema(NUMBER, NUMBER, extras={"policy_version": relive.Field((), "int64")})


@pytest.mark.parametrize("make", zoo.COLUMNS.values(), ids=zoo.COLUMNS.keys())
def test_appended_rows_are_stored_evicted_or_cleared(make: zoo.Make) -> None:
    buffer, rng = make(), random.Random(1)
    stats = buffer.get_stats()
    assert (stats.mean_draws, stats.oldest_age, stats.effective_sample_size or 0.0) == (0, 0, 0)
    for _ in range(30):
        zoo.work(buffer, rng, 4)
        stats, history = buffer.get_stats(), buffer._store
        assert stats.appended == stats.size + sum(stats.dropped.values()) == history.next_key
        assert stats.oldest_age == max(history.next_key - 1 - history.oldest_key, 0)
        assert buffer.get_stats() == stats


@pytest.mark.parametrize("kind", [relive.RingReplayBuffer, relive.PrioritizedReplayBuffer])
@pytest.mark.parametrize("streams", [1, 3])
def test_draws_are_counted_as_a_list_of_them_has_it(kind: Any, streams: int) -> None:
    buffer, rng = kind(20, streams=streams, n_step=2, seed=0), random.Random(streams)
    num_drawn = 0
    for t in range(200):
        zeros = np.zeros(streams)
        buffer.extend(zeros, zeros, zeros, zeros, terminated=np.array([rng.random() < 0.1 for _ in zeros]))
        for size in rng.choices([1, 4, 300], k=rng.randrange(3) if t < 100 else 0):
            num_drawn += len(buffer.sample_keys(size))
        if rng.random() < 0.03:
            buffer.clear()
        if rng.random() < 0.3:
            stats = buffer.get_stats()
            assert (stats.sampled, stats.mean_draws) == (num_drawn, num_drawn / stats.appended)
    assert buffer.get_stats().cleared > 0


def test_a_repr_tells_that_no_episode_has_ended() -> None:
    buffer: Any = relive.RingReplayBuffer(3_000)

    def add(start: int, count: int, *, terminated: bool = False) -> str:
        buffer.add_steps(np.arange(start, start + count + 1), [0] * count, [0.0] * count, terminated=terminated)
        return repr(buffer)

    assert "no end" not in add(0, 999)
    assert add(999, 1).endswith(", no end in 1,000 steps>")
    assert add(5_000, 1_500).endswith(", no end in 2,500 steps>"), "what was spliced has no end"
    assert repr(type(buffer).from_state(buffer.state_dict())) == repr(buffer)
    assert "no end" not in add(10_000, 3_000, terminated=True)
    assert "no end" not in add(13_000, 3_000), "one has ended, whether it is stored or not"
    joint = relive.JointReplayBuffer(1_000, agents=["a"])
    for t in range(1_000):
        joint.add({"a": t}, {"a": 0}, {"a": 0.0}, {"a": t + 1})
    assert repr(joint).endswith(", no end in 1,000 steps>")


def test_each_stream_may_have_a_thousand_steps_without_an_end() -> None:
    buffer = relive.RingReplayBuffer(3_000, streams=2)
    for stream in range(2):
        assert "no end" not in repr(buffer)
        buffer.add_steps(np.arange(1_001), [0] * 1_000, [0.0] * 1_000, stream=stream)
    assert repr(buffer) == "<RingReplayBuffer of 2000 steps, capacity=3000, streams=2, no end in 2,000 steps>"
    buffer.end_episode(0)
    assert "no end" not in repr(buffer)


def test_an_end_in_a_round_of_streams_is_one() -> None:
    buffer = relive.RingReplayBuffer(3_000, streams=2)
    for t in range(1_000):
        buffer.extend([t] * 2, [0, 0], [0.0, 0.0], [t + 1] * 2, terminated=np.array([t == 999, False]))
    assert "no end" not in repr(buffer)


def filled(buffer: Any, count: int) -> Any:
    for t in range(count):
        buffer.add(t, 0, 0.0, t + 1)
    return buffer


def test_the_effective_sample_size_is_that_of_kish() -> None:
    """(sum w)^2 / sum w^2."""
    buffer = filled(relive.PrioritizedReplayBuffer(6, alpha=1.0, epsilon=0.0, seed=0), 9)
    assert buffer.get_stats().effective_sample_size == pytest.approx(6, rel=1e-15)
    buffer.update_priorities(np.arange(3, 9), [0.0, 1.0, 2.0, 3.0, 4.0, 0.0])
    assert buffer.get_stats().effective_sample_size == pytest.approx(100 / 30, rel=1e-15)
    buffer.set_eligible([6, 7], False)
    assert buffer.get_stats().effective_sample_size == pytest.approx(9 / 5, rel=1e-15)
    buffer.update_priorities(np.arange(3, 9), np.zeros(6))
    assert buffer.get_stats().effective_sample_size == 0.0
    buffer.update_priorities([3, 4], [1e300, 1e-300])
    assert buffer.get_stats().effective_sample_size == 1.0


class Silent(relive.Sampler):
    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        slots = rng.choice(self.anchors.slots(), size)
        return relive.Draw(slots, np.full(size, 1 / len(self.anchors)))


class Half(relive.UniformSampler):
    """Draws only from the first half, and reports those probabilities."""

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        slots = rng.choice(self.anchors.slots()[: len(self.anchors) // 2], size)
        return relive.Draw(slots, self.probabilities(slots))

    def probabilities(self, slots: arrays_lib.Slots) -> arrays_lib.Floats:
        half = len(self.anchors) // 2
        return np.isin(slots, self.anchors.slots()[:half]) / max(half, 1)


def test_effective_sample_size_of_a_custom_sampler() -> None:
    assert filled(relive.RingReplayBuffer(10, sampler=Silent(), seed=0), 8).get_stats().effective_sample_size is None
    assert filled(relive.RingReplayBuffer(10, sampler=Half(), seed=0), 8).get_stats().effective_sample_size == 4.0
    assert filled(relive.RingReplayBuffer(10, seed=0), 8).get_stats().effective_sample_size == 8.0


def versioned(versions: list[int], capacity: int = 10, schema: relive.Schema = VERSION) -> Any:
    buffer = relive.RingReplayBuffer(capacity, schema, seed=0)
    for t, version in enumerate(versions):
        buffer.add(t, 0.0, 0.0, t + 1, policy_version=version)
    return buffer


def test_the_policy_lag_is_newest_version_minus_the_oldest() -> None:
    buffer = versioned([0, 0, 3, 3, 5])
    assert buffer.get_stats().max_policy_lag == 5
    for _ in range(8):
        buffer.add(0, 0.0, 0.0, 1, policy_version=9)
    assert buffer.get_stats().max_policy_lag == 6
    buffer.clear()
    assert buffer.get_stats().max_policy_lag is None


@pytest.mark.parametrize("field", [relive.Field((), "float32"), relive.Field(2, "int64"), relive.Field((), bool)])
def test_only_an_integer_is_a_policy_version(field: relive.Field) -> None:
    schema = relive.Schema(NUMBER, NUMBER, extras={"policy_version": field})
    buffer = relive.RingReplayBuffer(10, schema, seed=0)
    buffer.add(0, 0.0, 0.0, 1, policy_version=np.zeros(field.shape, field.dtype))
    assert buffer.get_stats().max_policy_lag is None


@pytest.mark.parametrize(
    ("dtype", "oldest", "newest"),
    [
        ("uint8", 251, 255),
        ("int16", -7, -3),
        (">u8", 2**64 - 5, 2**64 - 1),
        ("uint64", 0, 2**64 - 1),
        ("uint64", 2**64 - 1, 0),
        ("int64", -(2**63), 2**63 - 1),
    ],
)
def test_versions_have_any_integer_dtype_and_lags_one_bit_more(dtype: str, oldest: int, newest: int) -> None:
    schema = relive.Schema(NUMBER, NUMBER, extras={"policy_version": relive.Field((), dtype)})
    buffer = relive.RingReplayBuffer(9, schema, seed=0)
    buffer.add(0, 0.0, 0.0, 1, policy_version=np.array(oldest, dtype))
    buffer.add(0, 0.0, 0.0, 1, policy_version=np.array(newest, dtype))
    assert buffer.get_stats().max_policy_lag == newest - oldest


def test_a_closed_storage_tells_no_lag_and_all_the_rest(tmp_path: pathlib.Path) -> None:
    storage = relive.MemmapStorage(tmp_path / "map", VERSION, 9)
    buffer = relive.RingReplayBuffer(9, storage=storage, seed=0)
    buffer.add(0, 0.0, 0.0, 1, policy_version=3)
    storage.close()
    stats = buffer.get_stats()
    assert (stats.max_policy_lag, stats.appended) == (None, 1)
