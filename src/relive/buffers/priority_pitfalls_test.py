"""Bugs that other libraries shipped with priorities, sum trees, storage and dtypes, each as a test of the buffers."""

import gc
from typing import Any
import weakref

import numpy as np
import numpy.typing as npt
import pytest

import relive
from relive.kernels import append


def make(capacity: int, **settings: Any) -> relive.PrioritizedReplayBuffer:
    """Return a buffer whose probabilities are the priorities over their sum."""
    return relive.PrioritizedReplayBuffer(capacity, **{"alpha": 1.0, "epsilon": 0.0, "seed": 0, **settings})


def fill(buffer: Any, count: int, first: int = 0) -> None:
    """Add steps of one episode, whose observations are `first` and so on."""
    for t in range(first, first + count):
        buffer.add(t, t, float(t), t + 1)


class Masses(np.random.Generator):
    """A generator with given uniform numbers; otherwise like numpy's."""

    value = 0.0

    def random(self, *args: Any, **kwargs: Any) -> Any:
        size = args[0] if args else kwargs.get("size")
        return self.value if size is None else np.full(size, self.value)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return low + (high - np.asarray(low)) * self.random(size)


def masses(value: float) -> Masses:
    generator = Masses(np.random.PCG64(0))
    generator.value = value
    return generator


# Priorities and the sum tree.


@pytest.mark.parametrize("capacity", range(1, 66))
def test_prefix_order_is_the_order_of_the_slots_for_every_capacity(capacity: int) -> None:
    """P36: with equal priorities and one draw a stratum each row is drawn once, whatever the capacity."""
    buffer = make(capacity, seed=masses(0.5))
    fill(buffer, capacity)
    assert np.sort(buffer.sample_keys(capacity)).tolist() == list(range(capacity))
    tree = relive.SumTree(capacity)
    tree.set(range(capacity), np.ones(capacity))
    assert tree.find(np.arange(capacity) + 0.5).tolist() == list(range(capacity))


@pytest.mark.parametrize("capacity", [1, 2, 3, 5, 15, 16, 17, 33, 65])
@pytest.mark.parametrize("value", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("stratified", [True, False])
def test_a_mass_at_either_end_is_a_live_row(capacity: int, value: float, stratified: bool) -> None:
    """P37: also in a ring that holds fewer rows than it may, with a total that is not a round number."""
    for count in {1, capacity // 2, capacity} - {0}:
        buffer = make(capacity, seed=masses(value), stratified=stratified)
        fill(buffer, count)
        buffer.update_priorities(range(count), np.linspace(0.1, 0.7, count))
        for size in (1, 3, 7, 1000):
            keys = buffer.sample(size).keys
            assert keys.min() >= 0
            assert keys.max() < count
        edge = 0 if value == 0.0 else count - 1
        assert buffer.sample(1).keys.tolist() == [edge]


def test_a_tree_finds_the_last_live_leaf_one_ulp_below_the_total_and_at_it() -> None:
    """P37."""
    rng = np.random.default_rng(0)
    for capacity in range(1, 66):
        weights = rng.random(capacity) * (rng.random(capacity) < 0.6)
        weights[rng.integers(capacity)] = 1 / 3
        tree = relive.SumTree(capacity)
        tree.set(range(capacity), weights)
        last = int(np.flatnonzero(weights)[-1])
        assert tree.find([tree.total, np.nextafter(tree.total, 0)]).tolist() == [last, last]
        assert tree.find([0.0]).tolist() == [int(np.flatnonzero(weights)[0])]


def test_a_mass_on_a_boundary_belongs_to_the_row_behind_it() -> None:
    """P38: half-open intervals; whole priorities, drawn at the lower edge of each stratum, give exact counts."""
    buffer = make(4, seed=masses(0.0))
    fill(buffer, 4)
    buffer.update_priorities(range(4), [1, 2, 3, 4])
    assert np.bincount(buffer.sample_keys(10)).tolist() == [1, 2, 3, 4]
    assert np.bincount(buffer.sample_keys(100)).tolist() == [10, 20, 30, 40]


def test_priorities_over_sixteen_powers_of_ten_leave_no_drift() -> None:
    """P39: probabilities after many updates are those of a buffer that saw the last ones alone, to the last bit."""
    rng = np.random.default_rng(0)
    used, fresh = make(64), make(64)
    fill(used, 64)
    fill(fresh, 64)
    for _ in range(2000):
        used.update_priorities(rng.integers(64, size=64), 10.0 ** rng.uniform(-8, 8, 64))
    last = 10.0 ** rng.uniform(-8, 8, 64)
    used.update_priorities(range(64), last)
    fresh.update_priorities(range(64), last)
    probabilities = used.read(range(64)).probabilities
    assert probabilities.tolist() == fresh.read(range(64)).probabilities.tolist()
    assert probabilities == pytest.approx(last / last.sum(), rel=1e-12)
    used.update_priorities(range(64), np.full(64, 2.0**-26))
    assert used.read(range(64)).probabilities.tolist() == [1 / 64] * 64


def test_late_updates_leave_the_new_rows_alone() -> None:
    """P40: draw, overwrite those rows, update; then again with a second batch under way."""
    buffer = make(4)
    fill(buffer, 4)
    buffer.update_priorities(range(4), [5, 5, 5, 2])
    first, second = buffer.sample(32), buffer.sample(32)
    fill(buffer, 3, first=4)
    assert buffer.get_priorities([4, 5, 6]).tolist() == [5, 5, 5]
    alive = int((first.keys >= 3).sum())
    assert buffer.update_priorities(first.keys, np.full(32, 99.0)) == alive
    assert buffer.get_stats().stale_keys == 32 - alive
    buffer.update_priorities(second.keys, np.full(32, 77.0))
    assert buffer.get_priorities([4, 5, 6]).tolist() == [5, 5, 5]
    assert buffer.get_priorities([3]).tolist() == [77 if 3 in second.keys else 99 if 3 in first.keys else 2]


def test_alpha_is_applied_once() -> None:
    """P41: a row that joins at the maximum ties with the row that is the maximum."""
    buffer = make(10, alpha=0.6, epsilon=0.01)
    fill(buffer, 3)
    buffer.update_priorities(range(3), [9, 4, 1])
    fill(buffer, 1, first=3)
    probabilities = buffer.read(range(4)).probabilities
    assert probabilities[0] == probabilities[3]
    weights = (np.array([9, 4, 1, 9]) + 0.01) ** 0.6
    assert probabilities == pytest.approx(weights / weights.sum(), rel=1e-14)
    for _ in range(3):
        buffer.update_priorities(range(4), buffer.get_priorities(range(4)))
    assert buffer.read(range(4)).probabilities.tolist() == probabilities.tolist()


def test_a_new_row_has_the_maximum_and_not_one() -> None:
    """P42."""
    buffer = make(10)
    fill(buffer, 3)
    buffer.update_priorities(range(3), [50, 50, 50])
    fill(buffer, 1, first=3)
    assert buffer.read(range(4)).probabilities.tolist() == [0.25] * 4


def test_the_maximum_of_the_living_drops_when_an_outlier_goes() -> None:
    """P43: evicted, rated anew, or cleared."""
    buffer = make(4, new_priority="live")
    fill(buffer, 4)
    buffer.update_priorities(range(4), [1e9, 1, 2, 3])
    fill(buffer, 1, first=4)
    assert buffer.get_priorities([4]).tolist() == [3]
    buffer.update_priorities([3, 4], [0.5, 0.5])
    fill(buffer, 1, first=5)
    assert buffer.get_priorities([5]).tolist() == [2]
    buffer.update_priorities([2, 3, 4, 5], [0, 0, 0, 0])
    fill(buffer, 1, first=6)
    assert buffer.get_priorities([6]).tolist() == [1]  # a new row is seen, whatever the others are worth
    buffer.clear()
    assert buffer.get_priorities([buffer.add(0, 0, 0.0, 1)]).tolist() == [1]
    with_memory = make(4)
    fill(with_memory, 4)
    with_memory.update_priorities([0], [1e9])
    fill(with_memory, 4, first=4)
    assert with_memory.get_priorities([7]).tolist() == [1e9]


def test_weights_are_over_that_of_the_smallest_priority() -> None:
    """P44: reported elsewhere as a bug by mistake; this test keeps it from being changed."""
    buffer = make(4, beta=0.7, weight_normalization="buffer")
    fill(buffer, 4)
    buffer.update_priorities(range(4), [4, 1, 2, 8])
    expected = (np.array([4, 1, 2, 8.0]) / 1.0) ** -0.7
    assert buffer.read(range(4)).weights == pytest.approx(expected, rel=1e-14)
    assert buffer.read(range(4)).weights.max() == 1


@pytest.mark.parametrize("path", [[1.0], [0.0, 0.5], [0.5, 0.0, 1.5, 0.6], [2.0, 0.0]])
def test_another_alpha_gives_the_probabilities_of_a_fresh_tree(path: list[float]) -> None:
    """P45: raw priorities are kept, so a change of alpha loses nothing, not even alpha = 0."""
    priorities = [0.5, 3.0, 100.0, 1e-3, 0.0]
    used, fresh = make(6, alpha=0.6, epsilon=1e-3), make(6, alpha=path[-1], epsilon=1e-3)
    for buffer in (used, fresh):
        fill(buffer, 5)
        buffer.update_priorities(range(5), priorities)
    for alpha in path:
        used.sampler.alpha = alpha  # type: ignore[attr-defined]
    assert used.get_priorities(range(5)).tolist() == priorities
    for buffer in (used, fresh):
        fill(buffer, 1, first=5)
    assert used.read(range(6)).probabilities.tolist() == fresh.read(range(6)).probabilities.tolist()
    used.check()


def test_streams_near_the_end_of_the_ring() -> None:
    """P46: steps of several streams over the seam; a batch of one keeps its axis."""
    buffer = make(7, streams=3)
    for t in range(10):
        keys = buffer.extend(np.full(3, t), np.zeros(3, int), np.zeros(3), np.full(3, t + 1))
        buffer.update_priorities(keys, [1.0, 0.0, 3.0])
        assert buffer.get_priorities(buffer.eligible_keys()).min() >= 0
        assert buffer.read(buffer.eligible_keys()).probabilities.sum() == pytest.approx(1, rel=1e-15)
        buffer.check()
    one = buffer.sample(1)
    for name in ("observation", "action", "reward", "next_discount", "is_terminal", "keys", "weights", "probabilities"):
        assert getattr(one, name).shape == (1,), name
    assert make(3, streams=1).extend([0], [0], [0.0], [1]).shape == (1,)


def test_when_a_row_goes_its_priority_goes_alone() -> None:
    """P47: evicted or barred."""
    buffer = make(4)
    fill(buffer, 4)
    buffer.update_priorities(range(4), [1, 2, 3, 4])
    buffer.set_eligible([1], False)
    assert buffer.get_priorities(range(4)).tolist() == [1, 2, 3, 4]
    assert buffer.read([0, 2, 3]).probabilities.tolist() == [1 / 8, 3 / 8, 4 / 8]
    buffer.add(4, 4, 4.0)
    assert buffer.get_priorities([1, 2, 3]).tolist() == [2, 3, 4]
    assert buffer.read([2, 3]).probabilities.tolist() == [3 / 7, 4 / 7]
    fill(buffer, 1, first=5)
    assert buffer.get_priorities([2, 3, 4, 5]).tolist() == [3, 4, 4, 4]


def test_beta_anneals_linearly_over_draws() -> None:
    """P49: from .4 to exactly 1 at draw K, without compounding."""
    buffer = make(2, beta=relive.LinearSchedule(0.4, 1.0, 20), weight_normalization="none")
    fill(buffer, 2)
    buffer.update_priorities([0, 1], [1, 3])
    for tick in range(25):
        beta = 1.0 if tick >= 20 else 0.4 + 0.6 * tick / 20
        batch = buffer.sample(8)
        assert batch.weights == pytest.approx((2 * batch.probabilities) ** -beta, rel=1e-12)


@pytest.mark.parametrize("start", [2**31 - 2, 2**32 - 3, 2**53 - 2])
def test_counters_are_of_64_bits(start: int) -> None:
    """P50: keys go on past 2^31 without overflow."""
    buffer = make(5, n_step=3, frame_stack=2)
    buffer.add(0, 0, 0.0, 1)
    buffer.clear()
    assert buffer.history is not None
    buffer.history.num[append.NEXT_KEY] = start
    fill(buffer, 9)
    assert buffer.eligible_keys().tolist() == list(range(start + 5, start + 9))
    assert buffer.eligible_keys().dtype == np.int64
    batch = buffer.read(buffer.eligible_keys())
    assert batch.observation.tolist() == [[4, 5], [5, 6], [6, 7], [7, 8]]
    assert buffer.update_priorities(batch.keys, [1, 2, 3, 4]) == 4
    assert buffer.update_priorities(batch.keys - 2**31, [9, 9, 9, 9]) == 0
    assert buffer.get_priorities(batch.keys).tolist() == [1, 2, 3, 4]


def test_the_same_key_twice_leaves_a_consistent_tree() -> None:
    """P51: the last one wins."""
    buffer = make(20)
    fill(buffer, 20)
    rng = np.random.default_rng(0)
    for _ in range(50):
        keys, priorities = rng.integers(20, size=64), rng.random(64)
        buffer.update_priorities(keys, priorities)
        expected = dict(zip(keys.tolist(), priorities.tolist(), strict=True))
        assert buffer.get_priorities(list(expected)).tolist() == list(expected.values())
        buffer.check()


# Storage, aliasing, dtypes, memory.


@pytest.mark.parametrize("kind", ["transitions", "sequences"])
def test_a_batch_owns_its_memory(kind: str) -> None:
    """P52: a learner pads, normalises and zeroes in place; two batches share nothing either."""
    is_transitions = kind == "transitions"
    buffer: Any = (
        relive.RingReplayBuffer(9, frame_stack=2) if is_transitions else relive.SequenceReplayBuffer(9, length=3)
    )
    for t in range(14):
        buffer.add({"a": [t, t]}, [t, t], float(t), {"a": [t + 1, t + 1]}, extra=[float(t)])
    keys = buffer.eligible_keys()
    first, second = buffer.read(keys), buffer.read(keys)
    columns = [(batch.observation["a"], batch.action, batch.reward, batch.extras["extra"]) for batch in (first, second)]
    for one, other in zip(*columns, strict=True):
        assert one.flags.writeable
        assert not np.shares_memory(one, other)
        kept = other.copy()
        one *= -1
        assert np.array_equal(other, kept)
    assert np.array_equal(buffer.read(keys).observation["a"], second.observation["a"])


def test_an_episode_that_was_given_as_an_array_is_not_kept() -> None:
    """P52: neither are the arrays of `extend`."""
    buffer = relive.RingReplayBuffer(20, streams=2)
    observations, actions, rewards = np.arange(6.0).reshape(6, 1), np.arange(5), np.arange(5.0)
    buffer.add_episode(observations, actions, rewards, terminated=False, stream=0)
    now, then = np.array([[7.0], [8.0]]), np.array([[8.0], [9.0]])
    buffer.extend(now, np.zeros(2, int), np.zeros(2), then)
    before = buffer.read(range(7))
    for array in (observations, actions, rewards, now, then):
        array[:] = -5
    after = buffer.read(range(7))
    for name in ("observation", "next_observation", "action", "reward"):
        assert np.array_equal(getattr(before, name), getattr(after, name))
    buffer.extend([[8.0], [9.0]], np.zeros(2, int), np.zeros(2), then)
    assert buffer.get_stats().spliced_episodes == 0


STRUCTURED = np.dtype([("x", np.float64), ("n", np.int64), ("flag", np.bool_)])


@pytest.mark.parametrize(
    "array",
    [
        np.array([(0.1, 2**60 + 1, True), (-np.inf, -1, False)], STRUCTURED),
        np.array(["2024-01-01", "NaT"], "datetime64[us]"),
        np.array([b"ab", b""], "S3"),
        np.array(["ä", "bcd"], "U3"),
        np.array([np.nan, -0.0]),
        np.array([1, 2], ">i4"),
    ],
)
def test_unusual_dtypes_come_back_bit_for_bit(array: npt.NDArray[Any]) -> None:
    """P54: structured ones, times, text of a fixed size, NaN and minus zero, the other byte order."""
    buffer = relive.RingReplayBuffer(2, relive.Schema(relive.Field(2, array.dtype), relive.Field((), array.dtype)))
    for _ in range(3):
        buffer.add(array, array[0], 0.0, array[::-1])
        buffer.add(array[::-1], array[1], 0.0, array)
    batch = buffer.read(buffer.eligible_keys())
    assert batch.observation.dtype == array.dtype
    assert batch.observation.tobytes() == array.tobytes() + array[::-1].tobytes()
    assert batch.action.tobytes() == array.tobytes()
    assert buffer.get_stats().spliced_episodes == 0


def test_a_value_that_was_not_given_is_never_that_of_the_row_before() -> None:
    """P56: an end without its next observation reads as zeros, on a re-used slot too; extras are required."""
    buffer = relive.RingReplayBuffer(4, n_step=2, frame_stack=2)
    for t in range(1, 30):
        buffer.add(10 * t, t, 1.0, 10 * t + 1, truncated=True, extra=t)
        buffer.add(10 * t + 5, t, 1.0, terminated=True, extra=t)
        newest = buffer.read(buffer.eligible_keys()[-2:])
        assert newest.next_observation.tolist() == [[10 * t, 10 * t + 1], [10 * t + 5, 0]]
    with pytest.raises(relive.SchemaError, match="extra"):
        buffer.add(1, 1, 1.0)


def test_a_buffer_that_nobody_holds_is_collected_with_its_columns() -> None:
    """P57."""
    arrays: list[weakref.ref[Any]] = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        array = np.zeros(shape, dtype)
        arrays.append(weakref.ref(array))
        return array

    schema = relive.Schema(relive.Field((), np.int64), relive.Field((), np.int64))
    buffer = make(50, storage=relive.ColumnStorage(schema, 50, allocate=allocate))
    fill(buffer, 80)
    batch = buffer.sample(10)
    del buffer
    gc.collect()
    assert len(batch) == 10
    assert all(array() is None for array in arrays)


def test_frames_copied_to_another_buffer_are_stacked_there() -> None:
    """P59: single frames are passed on, not stacks, and in order."""
    source = relive.RingReplayBuffer(30, frame_stack=3)
    for length in (4, 2, 6):
        source.add_episode(100 * length + np.arange(length + 1), np.arange(length), np.ones(length), terminated=True)
    target = relive.RingReplayBuffer(30, frame_stack=3)
    raw = source.read(source.eligible_keys())
    for k in range(len(raw)):
        last = bool(raw.is_terminal[k])
        target.add(raw.observation[k, -1], raw.action[k], raw.reward[k], raw.next_observation[k, -1], terminated=last)
    copied = target.read(target.eligible_keys())
    for name in ("observation", "next_observation", "action", "reward", "is_terminal", "steps"):
        assert np.array_equal(getattr(copied, name), getattr(raw, name)), name


def test_draws_neither_hear_nor_disturb_the_global_generator() -> None:
    """P64."""
    drawn = []
    for noise in range(3):
        buffers: list[Any] = [make(40, seed=3), relive.RingReplayBuffer(40, seed=3)]
        buffers.append(relive.SequenceReplayBuffer(40, length=3, seed=3, prioritized=True, stratified=False))
        for buffer in buffers:
            fill(buffer, 50)
        np.random.seed(noise)  # noqa: NPY002
        before = str(np.random.get_state())  # noqa: NPY002
        drawn.append([buffer.sample(20).keys.tolist() for buffer in buffers])
        assert str(np.random.get_state()) == before  # noqa: NPY002
    assert drawn[0] == drawn[1] == drawn[2]


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("kind", ["ring", "stratified", "proportional"])
def test_a_row_is_never_drawn_more_often_than_it_may_be(most: int, kind: str) -> None:
    """P65: not even within one batch; then the row retires, and a batch larger than what is left is refused."""
    settings: dict[str, Any] = {"max_times_sampled": most, "seed": 0}
    buffer: Any = relive.RingReplayBuffer(6, **settings)
    if kind != "ring":
        buffer = make(6, stratified=kind == "stratified", **settings)
    fill(buffer, 6)
    if kind != "ring":
        buffer.update_priorities(range(6), [1e-3, 1, 1, 1, 1, 1e3])
    counts = np.zeros(6, int)
    while counts.sum() + 4 <= 6 * most:
        counts += np.bincount(buffer.sample_keys(4), minlength=6)
        assert counts.max() <= most
        assert buffer.eligible_keys().tolist() == np.flatnonzero(counts < most).tolist()
        assert buffer.get_stats().spent == (counts == most).sum()
        buffer.check()
    left = 6 * most - int(counts.sum())
    with pytest.raises(relive.NotReadyError):
        buffer.sample(left + 1)
    if left:
        counts += np.bincount(buffer.sample_keys(left), minlength=6)
    assert counts.tolist() == [most] * 6
    assert buffer.num_eligible == 0
    fill(buffer, 1, first=6)
    assert buffer.sample_keys(1).tolist() == [6]
    buffer.set_eligible(range(1, 6), True)
    assert buffer.num_eligible == (most > 1)


def test_a_full_ring_never_holds_more_than_its_capacity() -> None:
    """P55, P65: sizes and counters agree after any order of calls."""
    rng = np.random.default_rng(0)
    buffer = relive.RingReplayBuffer(10, streams=3)
    for _ in range(300):
        way = rng.integers(10)
        if way < 5:
            ends = rng.random(3) < 0.2
            buffer.extend(
                rng.integers(9, size=3), np.zeros(3, int), np.zeros(3), rng.integers(9, size=3), terminated=ends
            )
        elif way < 9:
            length, stream = int(rng.integers(1, 11)), int(way) % 3
            buffer.add_episode(
                np.arange(length + 1), np.zeros(length, int), np.zeros(length), terminated=False, stream=stream
            )
        else:
            buffer.clear()
        stats = buffer.get_stats()
        assert stats.size == len(buffer) == min(stats.size, 10)
        assert stats.num_eligible == buffer.num_eligible == buffer.eligible_keys().size == stats.size
        assert stats.open_episodes <= 3
    buffer.check()
