"""Column buffers by example: bugs that other libraries shipped (P), and rows that must be answered.

`column_grid_test` compares the rest with a naive twin. Storages are poisoned: a slot that was never written reads as a
number that no test writes. Observations tell where they are from: 1000 * (episode + 1) + time.
"""

import collections
from collections.abc import Callable
import dataclasses
import itertools
import tracemalloc
import types
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relive
from relive.buffers import column_grid_test
from relive.testing import zoo

INT = relive.Field((), np.int64)
SCHEMA = column_grid_test.SCHEMA
poisoned = column_grid_test.poisoned_storage


def make_ring(capacity: int, **settings: Any) -> relive.RingReplayBuffer:
    return relive.RingReplayBuffer(capacity, **{"storage": poisoned(capacity), "gamma": 1.0, "seed": 0, **settings})


def make_sequences(capacity: int, **settings: Any) -> relive.SequenceReplayBuffer:
    return relive.SequenceReplayBuffer(capacity, storage=poisoned(capacity), **{"seed": 0, **settings})


def add_episode(buffer: Any, number: int, length: int, *, end: str | None = "terminated", eager: bool = True) -> None:
    """Add the steps of an episode one by one; without an `end` it stays open."""
    for t in range(1000 * (number + 1), 1000 * (number + 1) + length):
        flags = {end: True} if end is not None and t % 1000 == length - 1 else {}
        buffer.add(t, t, t % 1000, t + 1 if eager or "truncated" in flags else None, **flags, extra=t)


# The ring's seam, the write cursor, the ends of episodes.


def test_final_observations_go_with_their_episode() -> None:
    """Memory does not grow with the number of evicted episodes."""
    buffer = make_ring(10)
    sizes = []
    for number in range(200):
        add_episode(buffer, number, 1, end="truncated")
        sizes.append(buffer.get_stats().nbytes)
    assert max(sizes) == sizes[20] == sizes[-1]
    assert sizes[1] - sizes[0] == 7 * 8 + INT.nbytes  # What is known of an episode, and its final observation.
    stats = buffer.get_stats()
    assert (stats.truncated_episodes, stats.open_episodes, stats.evicted, stats.appended) == (10, 0, 190, 200)


def test_a_read_of_no_keys_is_an_empty_batch() -> None:
    for n_step, stack in itertools.product([1, 100], [1, 3]):
        buffer = make_ring(8, n_step=n_step, frame_stack=stack)
        add_episode(buffer, 0, 5)
        batch = buffer.read([])
        assert len(batch) == 0
        assert np.shape(batch.observation)[1:] == np.shape(buffer.read([0]).observation)[1:]


# n-step returns.


@pytest.mark.parametrize(
    ("eager", "gamma", "rewards", "steps"),
    [
        (False, 1.0, [3, 6, 5, 3, 15, 18, 21, 15, 8], [3, 3, 2, 1, 3, 3, 3, 2, 1]),
        (True, 1.0, [3, 6, 5, 3, 15, 18, 21, 24, 17, 9], [3, 3, 2, 1, 3, 3, 3, 3, 2, 1]),
        (False, 0.9, [2.52, 5.23, 4.7, 3, 13.36, 16.07, 18.78, 14.2, 8], [3, 3, 2, 1, 3, 3, 3, 2, 1]),
    ],
)
def test_a_running_tail_is_drawable_with_its_true_length(
    eager: bool, gamma: float, rewards: list[float], steps: list[int]
) -> None:
    buffer = relive.RingReplayBuffer(10, n_step=3, gamma=gamma)
    for t in range(10):
        buffer.add(t, t, float(t), t + 1 if eager else None, terminated=t == 3)
    keys = list(range(9 + eager))
    assert buffer.eligible_keys().tolist() == keys
    batch = buffer.read(keys)
    assert batch.reward.round(6).tolist() == rewards
    assert batch.steps.tolist() == steps
    assert batch.is_terminal.tolist() == [1 <= key <= 3 for key in keys]
    assert batch.next_discount == pytest.approx([0 if 1 <= key <= 3 else gamma**m for key, m in enumerate(steps)])
    following = [(4 if eager else 0) if 1 <= key <= 3 else key + m for key, m in enumerate(steps)]
    assert batch.next_observation.tolist() == following


def test_a_horizon_beyond_the_end_is_the_return_to_the_end() -> None:
    """However large n_step is, a window has at most as many steps as are stored, and reads few more."""
    for n_step in (5, 10, 11, 1000, 10**5):
        storage = Locked(SCHEMA, 10)
        buffer = make_ring(10, n_step=n_step, storage=storage)
        add_episode(buffer, 0, 5)
        batch = buffer.read(range(5))
        assert batch.reward.tolist() == [10, 10, 9, 7, 4]
        assert batch.steps.tolist() == [5, 4, 3, 2, 1]
        assert storage.most <= 5 * 20
    buffer = make_ring(99, n_step=40)
    add_episode(buffer, 0, 60)
    assert buffer.read([0, 30]).steps.tolist() == [40, 30]


# Episodes.

UNKNOWN = [
    np.array(np.nan),
    np.array(np.nan, np.float16),
    np.array(np.nan, complex),
    np.array("NaT", "datetime64[us]"),
    np.array((np.nan, 1), [("x", float), ("n", int)]),
]


def test_a_nan_follows_a_nan_in_every_stream() -> None:
    """Beside a stream whose step does not follow."""
    for unknown in UNKNOWN:
        buffer = relive.RingReplayBuffer(10, streams=2)
        now, other = np.array([unknown, np.zeros_like(unknown)]), np.array([unknown, np.ones_like(unknown)])
        buffer.extend(now, [0, 0], [0.0, 0.0], now)
        buffer.extend(other, [0, 0], [0.0, 0.0], now)
        assert buffer.get_stats().spliced_episodes == 1, unknown.dtype
        assert buffer.read(range(4), n_step=2).steps.tolist() == [2, 1, 1, 1]


def test_a_nan_of_any_sign_and_a_zero_of_any_sign_follow() -> None:
    buffer = relive.RingReplayBuffer(8)
    buffer.add([np.nan, 0.0], 0, 0.0, [-np.float64(np.nan), -0.0])
    buffer.add([np.nan, 0.0], 0, 0.0, [1.0, 0.0])
    scalar = relive.RingReplayBuffer(8)
    scalar.add(0.0, 0, 0.0, -np.float64(np.nan))
    scalar.add(np.nan, 0, 0.0, 1.0)
    for each in (buffer, scalar):
        assert each.get_stats().spliced_episodes == 0
        assert each.read([0], n_step=2).steps.tolist() == [2]


@pytest.mark.parametrize("ends", [False, True])
def test_an_ended_episode_does_not_go_on(ends: bool) -> None:
    """An environment that is reset in mid-episode, whose first observation happens to be the last one."""
    buffer = relive.RingReplayBuffer(8, n_step=2, gamma=0.5)
    assert not buffer.end_episode()
    buffer.add(0.0, 0, 1.0, 0.0)
    assert not ends or buffer.end_episode()
    buffer.add(0.0, 0, 10.0, 0.0)
    batch = buffer.read([0])
    assert (batch.reward.item(), batch.next_discount.item()) == ((1.0, 0.5) if ends else (6.0, 0.25))
    stats = buffer.get_stats()
    assert (stats.truncated_episodes, stats.open_episodes, stats.spliced_episodes) == (int(ends), 1, 0)
    buffer.check()


def test_add_episode_says_how_it_ended() -> None:
    terminated: list[dict[str, Any]] = [{"terminated": True}, {"terminated": 1, "truncated": np.False_}]
    truncated: list[dict[str, Any]] = [{"terminated": False}, {"truncated": True}]
    truncated += [{"terminated": False, "truncated": True}, {"terminated": None, "truncated": 1}]
    for shell in (lambda buffer: buffer, relive.ThreadSafeReplayBuffer):
        for flags in terminated + truncated:
            buffer = shell(relive.RingReplayBuffer(9))
            buffer.add_episode(np.zeros(4), np.zeros(3, int), np.zeros(3), **flags)
            counts = buffer.get_stats().terminated_episodes, buffer.get_stats().truncated_episodes
            assert counts == (flags in terminated, flags in truncated), flags


@pytest.mark.parametrize("make", [relive.RingReplayBuffer, relive.PrioritizedReplayBuffer])
@pytest.mark.parametrize("end", ["terminated", "truncated", None])
def test_add_steps_is_add_step_by_step(make: Any, end: str | None) -> None:
    one, other = make(6, seed=0), make(6, seed=0)
    for start, length in ((0, 2), (2, 1), (3, 4)):
        t = np.arange(start, start + length)
        flags = {} if end is None else {end: start == 3}
        keys = one.add_steps(np.arange(start, start + length + 1), t, t / 2, **flags)
        for each in t.tolist():
            is_last = each == start + length - 1
            other.add(each, each, each / 2, each + 1, **{name: flag and is_last for name, flag in flags.items()})
        assert keys.tolist() == t.tolist()
    assert zoo.state_of(one) == zoo.state_of(other)
    one.add_steps([70, 71], [0], [0.0])
    assert one.get_stats().spliced_episodes == (end is None)
    one.check()


def test_no_step_of_any_stream_is_none() -> None:
    buffer = relive.RingReplayBuffer(4, streams=2, seed=0)
    buffer.extend([0.0, 1.0], [0, 0], [0.0, 0.0], [1.0, 2.0])
    keys = buffer.extend(np.zeros(0), np.zeros(0, int), np.zeros(0), np.zeros(0), streams=[])
    assert (keys.tolist(), len(buffer), buffer.appended) == ([], 2, 2)
    buffer.check()


def test_a_flag_is_0_or_1_of_any_type() -> None:
    buffer = relive.RingReplayBuffer(40, streams=2)
    flags = [1, 1.0, np.True_, np.uint8(1), np.float32(1), np.array(True), np.array([True]), np.array([[1]])]
    for flag in flags:
        key = buffer.add(0.0, 0, 0.0, next_observation=1.0, terminated=flag, truncated=0, stream=0)
        assert buffer.read([key]).is_terminal.tolist() == [True]
    pairs: list[Any] = [[0, 1], (False, True), np.array([0.0, 1.0], np.float32), np.array([0, 1], np.uint8)]
    for pair in pairs:
        keys = buffer.extend([0.0, 0.0], [0, 0], [0.0, 0.0], [1.0, 1.0], terminated=pair)
        assert buffer.read(keys).is_terminal.tolist() == [False, True]


# Dtypes and memory.

STRUCTURED = np.dtype([("x", np.float64), ("n", np.int64), ("flag", np.bool_)])
EXACT = [
    np.array([1 + 2**-52, 1e300]),
    np.array([np.nan, -0.0]),
    np.array([2**53 + 1, -(2**63)]),
    np.array([2**64 - 1, 2**63 + 1], np.uint64),
    np.array([True, False]),
    np.array([255, 0], np.uint8),
    np.array([65504.0, 6e-8], np.float16),
    np.array([0.1, -np.inf], np.float32),
    np.array([1 + 2j, 3 - 1e-300j]),
    np.array([(0.1, 2**60 + 1, True), (-np.inf, -1, False)], STRUCTURED),
    np.array(["2024-01-01", "NaT"], "datetime64[us]"),
    np.array([b"ab", b""], "S3"),
    np.array(["ä", "bcd"], "U3"),
    np.array([1, 2], ">i4"),
]


@pytest.mark.parametrize("array", EXACT, ids=lambda array: array.dtype.str)
def test_values_of_every_dtype_come_back_bit_for_bit(array: npt.NDArray[Any]) -> None:
    """P54."""
    field = relive.Field(2, array.dtype)
    declared = relive.Schema(field, relive.Field((), array.dtype), extras={"extra": field})
    for schema in (None, declared) if array.dtype.kind in "biufc" and array.dtype.isnative else (declared,):
        buffer = relive.RingReplayBuffer(2, schema)
        for _ in range(3):
            buffer.add(array, array[0], 0.0, array[::-1], extra=array)
            buffer.add(array[::-1], array[1], 0.0, array, extra=array)
        batch = buffer.read(buffer.eligible_keys())
        there_and_back = array.tobytes() + array[::-1].tobytes()
        for column in (batch.observation, batch.next_observation, batch.action, batch.extras["extra"]):
            assert column.dtype == array.dtype
        assert batch.observation.tobytes() == there_and_back
        assert batch.next_observation.tobytes() == array[::-1].tobytes() + array.tobytes()
        assert batch.action.tobytes() == array.tobytes()
        assert batch.extras["extra"].tobytes() == 2 * array.tobytes()
        assert buffer.get_stats().spliced_episodes == 0


def test_a_schema_is_inferred_from_the_first_step_and_enforced() -> None:
    buffer = relive.RingReplayBuffer(4)
    with pytest.raises(relive.SchemaError):
        buffer.add([object()], 0, 0.0)
    assert (buffer.schema, len(buffer)) == (None, 0)
    buffer.add({"image": np.zeros((2, 2), np.uint8), "state": [1.0]}, np.int8(0), 0, lives=np.float16(3))
    assert buffer.schema == relive.Schema(
        {"image": relive.Field((2, 2), np.uint8), "state": relive.Field(1, np.float64)},
        relive.Field((), np.int8),
        reward=relive.Field((), np.float64),
        extras={"lives": relive.Field((), np.float16)},
    )
    wrong: dict[str, Any] = {"observation": {"state": [1.0]}, "observation/image": {"image": np.full((2, 2), 0.5)}}
    for name, change in wrong.items():
        with pytest.raises(relive.SchemaError, match=name):
            buffer.add({"state": [1.0], **change}, np.int8(0), 0.0, lives=np.float16(3))
    assert len(buffer) == 1
    vector = relive.RingReplayBuffer(8, streams=2)
    vector.extend(np.zeros((2, 3), np.uint8), np.zeros(2, np.int8), np.zeros(2, np.float32))
    assert vector.schema == relive.Schema(
        relive.Field(3, np.uint8), relive.Field((), np.int8), reward=relive.Field((), np.float32)
    )


class Locked(relive.ColumnStorage):
    """A storage that may be locked, and knows the largest number of rows it was ever asked for."""

    is_locked = False
    most = 0

    def write(self, slots: Any, rows: Any) -> None:
        assert not self.is_locked
        super().write(slots, rows)

    def read(self, slots: Any, fields: Any = None) -> dict[str, npt.NDArray[Any]]:
        self.most = max(self.most, np.size(slots))
        return super().read(slots, fields)


def test_draws_and_updates_write_nothing_into_storage() -> None:
    """P25, P48: a draw changes nothing temporarily, neither in the columns nor in the priorities."""
    arrays: list[npt.NDArray[Any]] = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        arrays.append(np.zeros(shape, dtype))
        return arrays[-1]

    storage = Locked(SCHEMA, 9, allocate=allocate)
    buffer = relive.PrioritizedReplayBuffer(9, storage=storage, n_step=3, frame_stack=2, seed=0)
    for number in range(4):
        add_episode(buffer, number, 4)
    before = [array.copy() for array in arrays]
    priorities = buffer.get_priorities(buffer.eligible_keys()).tolist()
    storage.is_locked = True
    for array in arrays:
        array.flags.writeable = False
    for _ in range(20):
        batch = buffer.sample(16)
        batch.observation[:] = batch.reward[:] = batch.next_observation[:] = 7
        assert buffer.get_priorities(buffer.eligible_keys()).tolist() == priorities
        buffer.check()
    assert all(np.array_equal(one, other) for one, other in zip(arrays, before, strict=True))


@pytest.mark.parametrize("episodes", [60, pytest.param(4_000, marks=pytest.mark.long)])
def test_memory_is_flat_however_many_steps_come(episodes: int) -> None:
    """P57: episodes of 2,500 steps and, in between, single ones, into a ring of 5,000."""
    buffer = relive.PrioritizedReplayBuffer(5000, frame_stack=2, n_step=3)
    observations, zeros = np.arange(2501), np.zeros(2500)
    sizes = []
    tracemalloc.start()
    for number in range(episodes):
        buffer.add_episode(observations, zeros, zeros, terminated=number % 2 == 0)
        for t in range(3):
            buffer.add(t, 0.0, 0.0, t + 1, terminated=number % 3 == t)
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert buffer.get_stats().appended == 2_503 * episodes
    assert sizes[-1] - sizes[10] < 20_000
    buffer.check()


# Sequences.


def test_a_loaded_ring_of_a_single_row_goes_on() -> None:
    buffer = relive.SequenceReplayBuffer(1, length=1)
    buffer.add(1000, 0, 0.0, 1001)
    other = relive.SequenceReplayBuffer.from_state(buffer.state_dict())
    other.add(1001, 0, 0.0, 1002)
    assert other.read([1]).observation.tolist() == [[1001, 1002]]


def test_strides_count_from_the_start_of_the_episode() -> None:
    """P35: an episode longer than the ring goes on for ever, and its start was overwritten."""
    buffer = make_sequences(10, length=3, stride=4)
    for t in range(200):
        buffer.add(1000 + t, t, 0.0, 1001 + t, extra=t)
        assert buffer.eligible_keys().tolist() == [s for s in range(0, t + 1, 4) if t - 9 <= s <= t - 2]
    assert buffer.read([192]).observation.tolist() == [[1192, 1193, 1194, 1195]]
    assert buffer.read([192]).start_step.tolist() == [192]


# The buffer as a whole.


def test_another_seed_draws_otherwise_and_a_generator_is_a_seed() -> None:
    """P64."""

    def drawn(make: Any, seed: Any) -> Any:
        buffer = make(40, seed=seed)
        buffer.add_steps(range(41), range(40), np.zeros(40))
        return buffer.sample_keys(20).tolist()

    for make in (relive.RingReplayBuffer, relive.PrioritizedReplayBuffer):
        assert drawn(make, 5) == drawn(make, np.random.default_rng(5)) != drawn(make, 6)


def test_stats_say_what_is_there_and_what_happened() -> None:
    buffer = relive.RingReplayBuffer(8, streams=2)
    assert buffer.get_stats().nbytes == 13 * 8, "a number, a link and flags a row, and no episode"
    buffer.add(0.0, 0, 0.0, stream=1)
    for terminated in (True, False):
        buffer.add_episode([0.0, 1.0, 2.0], [0, 0], [0.0, 0.0], terminated=terminated, stream=0)
    stats = buffer.get_stats()
    expected = {"size": 5, "capacity": 8, "num_eligible": 4, "appended": 5, "effective_sample_size": 4.0}
    expected |= {f"{name}_episodes": 1 for name in ("open", "terminated", "truncated")}
    told = {field.name: getattr(stats, field.name) for field in dataclasses.fields(stats)}
    assert told == dict.fromkeys(told, 0) | expected | {"max_policy_lag": None, "nbytes": stats.nbytes}
    assert stats.nbytes >= 8 * 3 * 8
    buffer.add_episode(np.zeros(8), np.zeros(7, int), np.zeros(7), terminated=False, stream=1)
    assert buffer.get_stats().evicted == 4
    assert buffer.is_full
    assert (buffer.capacity, buffer.streams, buffer.num_eligible) == (8, 2, 8)
    assert isinstance(buffer.sampler, relive.UniformSampler)
    assert repr(buffer) == "<RingReplayBuffer of 8 steps, capacity=8, streams=2>"


DAMAGE: dict[str, Any] = {
    "a slot without a row has flags": lambda store: store.flags.__setitem__(6, 1),
    "the anchors that count as readable are not": lambda store: store.flags.__setitem__(1, store.flags[1] & 254),
    "2 anchors are counted as eligible, which is": lambda store: store.flags.__setitem__(0, store.flags[0] | 2),
    "the link of the row of key 0 is not what it must be": lambda store: store.following.__setitem__(0, -1),
    "the state of the row of key 1 is not what it": lambda store: store.flags.__setitem__(1, store.flags[1] & 247),
    "the step of the row of key 0 is not what it must be": lambda store: store.places.__setitem__(1, 7),
    "the numbers of episodes that are free are not those": lambda store: store.free.__setitem__(0, store.free[1]),
    "the oldest row of an episode is not what it must be": lambda store: store.episodes[5].__setitem__(0, 1),
    "an episode is open in another stream than it says, or has": lambda store: store.last.__setitem__(1, 0),
    "9 rows are alive in 8 slots": lambda store: store.num.__setitem__(1, 9),
    "the newest keys of a stream are not those of its": lambda store: store.rows[4].__setitem__((0, 1), 3),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_check_finds_what_is_damaged(message: str) -> None:
    buffer: Any = relive.RingReplayBuffer(8, streams=2)
    if "oldest row" in message:
        buffer = relive.RingReplayBuffer(8, streams=2, frame_stack=2)
    if "newest keys" in message:
        buffer = relive.SequenceReplayBuffer(8, length=3)
    buffer.add_steps(range(3), [0, 0], [0.0, 0.0], stream=0)
    buffer.check()
    DAMAGE[message](buffer._store)
    with pytest.raises(relive.CorruptionError, match=f"^{message}"):
        buffer.check()


@pytest.mark.parametrize("mapping", [collections.OrderedDict, types.MappingProxyType, collections.UserDict])
@pytest.mark.parametrize("streams", [1, 2])
def test_observations_may_be_any_mapping(mapping: Callable[[Any], Any], streams: int) -> None:
    """P96: those of another kind than a dict are read by the schema."""
    buffers = [relive.RingReplayBuffer(9, streams=streams, n_step=2, seed=0) for _ in range(2)]
    for buffer, make in zip(buffers, (dict, mapping), strict=True):
        for t in range(6):
            seen = make({"pose": np.full((streams, 2), t), "speed": np.full(streams, t / 2)})
            following = None if t % 3 == 1 else make({"pose": seen["pose"] + 1, "speed": seen["speed"] + 0.5})
            buffer.extend(seen, np.full(streams, t), np.ones(streams), following, terminated=np.full(streams, t == 4))
        one, two = (make({"pose": np.array([t, t]), "speed": t / 2}) for t in (7, 8))
        buffer.add(one, 7, 1.0, two, stream=0)
        buffer.add(two, 8, 1.0, stream=0)
    assert zoo.state_of(buffers[1]) == zoo.state_of(buffers[0])


# The end of a recording, after which nobody knows the observation.


def test_windows_end_before_a_step_that_stays_incomplete() -> None:
    buffer = relive.PrioritizedReplayBuffer(20, n_step=3, gamma=1.0, seed=0)
    buffer.add(0.0, 0, 1.0)
    buffer.add(1.0, 0, 1.0)
    assert buffer.end_episode()
    assert not buffer.end_episode()
    batch = buffer.read([0])
    assert (batch.reward.item(), batch.steps.item(), batch.next_observation.item()) == (1.0, 1, 1.0)
    assert (batch.next_discount.item(), batch.is_terminal.item()) == (1.0, False)
    assert (len(buffer), buffer.num_eligible) == (2, 1)
    assert buffer.set_eligible([1], True) == 1
    assert buffer.update_priorities([1], [50.0]) == 1
    assert buffer.get_priorities([1]).tolist() == [50.0]
    assert {*buffer.sample(50).keys.tolist()} == {0}
    with pytest.raises(relive.ArgumentError, match="^keys must be of steps that a window can start from, got 1$"):
        buffer.read([1])
    buffer.add(1.0, 0, 5.0, 2.0)
    assert buffer.read([0]).reward.item() == 1.0, "the next step begins another episode"
    assert buffer.explain(2).step == 0
    stats = buffer.get_stats()
    assert (stats.truncated_episodes, stats.open_episodes, stats.spliced_episodes) == (1, 1, 0)
    for each in (buffer, relive.PrioritizedReplayBuffer.from_state(buffer.state_dict())):
        each.check()
        assert each.eligible_keys().tolist() == [0, 2]


def test_a_lone_step_that_stays_incomplete_is_stored() -> None:
    buffer = relive.RingReplayBuffer(2, seed=0)
    buffer.add(0.0, 0, 1.0)
    assert buffer.end_episode()
    assert (len(buffer), buffer.num_eligible) == (1, 0)
    for t in range(3):
        buffer.add(float(t), 0, 1.0, t + 1.0)
        buffer.check()
    assert buffer.eligible_keys().tolist() == [2, 3]


@pytest.mark.parametrize("num_ends", [1, 12, 20, 40])
def test_rounds_in_which_many_episodes_end_equal_single_steps(num_ends: int) -> None:
    """They begin again in the next round, where they ended or elsewhere."""
    together, one_by_one = (relive.RingReplayBuffer(100, streams=40, seed=0) for _ in range(2))
    clock = np.arange(40) * 1000
    for t in range(12):
        ends = (np.arange(40) + t) % 40 < num_ends
        terminated, truncated = ends & (np.arange(40) % 2 == 0), ends & (np.arange(40) % 2 == 1)
        step = clock.copy(), np.arange(40), np.ones(40), clock + 1
        together.extend(*step, terminated=terminated, truncated=truncated)
        for i in range(40):
            flags = {"terminated": terminated[i], "truncated": truncated[i]}
            one_by_one.add(*(column[i] for column in step), **flags, stream=i)
        clock = clock + 1 + 7 * (ends & (t % 3 > 0))
    together.check()
    keys = one_by_one.eligible_keys()
    assert together.eligible_keys().tolist() == keys.tolist()
    for name in ("observation", "action", "next_observation", "is_terminal", "next_discount"):
        assert getattr(together.read(keys), name).tolist() == getattr(one_by_one.read(keys), name).tolist()
    both = [dataclasses.asdict(buffer.get_stats()) | {"nbytes": 0} for buffer in (together, one_by_one)]
    assert both[0] == both[1]
    assert both[0]["spliced_episodes"] == 0
