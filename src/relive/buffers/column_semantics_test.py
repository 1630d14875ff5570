"""The rows that the column buffers must return: transitions, priorities, sequences."""

import tracemalloc
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relive
from relive import testing


def add_steps(buffer: Any, times: range, *, ends: Any = (), eager: bool = False, truncated: bool = False) -> None:
    """Add a step a time: observation, action and reward are the time; `ends` are the times of the last steps."""
    for t in times:
        following = t + 1 if eager or (truncated and t in ends) else None
        buffer.add(t, t, float(t), following, terminated=t in ends and not truncated, truncated=t in ends and truncated)


def add_episodes(buffer: Any, count: int, length: int, *, terminated: bool = True, first: int = 0) -> None:
    """Add episodes whose observation is 100 * episode + time."""
    for number in range(first, first + count):
        observations = 100 * number + np.arange(length + 1)
        buffer.add_episode(observations, observations[:-1], np.ones(length), terminated=terminated)


def listed(batch: Any, *names: str) -> list[list[Any]]:
    """Return fields of a batch as lists, rounded to a few digits."""
    return [getattr(batch, name).astype(float).round(6).tolist() for name in names]


# Transitions.


@pytest.mark.parametrize("ends", [(), (2, 3, 7, 11), tuple(range(15))])
@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("eager", [False, True])
def test_capacity_counts_steps_exactly(ends: tuple[int, ...], truncated: bool, eager: bool) -> None:
    buffer = relive.RingReplayBuffer(10)
    for t in range(15):
        add_steps(buffer, range(t, t + 1), ends=ends, truncated=truncated, eager=eager)
        assert len(buffer) == min(t + 1, 10)
        assert buffer.is_full == (t >= 9)
    eligible = buffer.eligible_keys().tolist()
    assert eligible == [*range(5, 14), *([14] if eager or 14 in ends else [])]
    assert buffer.read(eligible).observation.tolist() == eligible
    with pytest.raises(KeyError, match="^'?key 4 not found"):
        buffer.read([4])
    buffer.check()


def test_what_lies_beside_the_ring_goes_with_the_last_step_that_needs_it() -> None:
    """Memory does not grow with the number of evicted episodes."""
    buffer = relive.RingReplayBuffer(10)
    sizes = []
    for _ in range(200):
        buffer.add(1, 0, 0.0, 2, truncated=True)
        sizes.append(buffer.get_stats().nbytes)
    assert max(sizes) == sizes[20] == sizes[-1]
    stats = buffer.get_stats()
    assert (stats.truncated_episodes, stats.open_episodes, stats.evicted, stats.appended) == (10, 0, 190, 200)


RUNNING_REWARDS = [3, 6, 5, 3, 15, 18, 21, 15, 8]
RUNNING_STEPS = [3, 3, 2, 1, 3, 3, 3, 2, 1]


def test_a_running_tail_is_drawable_as_soon_as_its_next_observation_is_known() -> None:
    buffer = relive.RingReplayBuffer(10, n_step=3, gamma=1.0)
    add_steps(buffer, range(10), ends=(3,))
    assert buffer.eligible_keys().tolist() == list(range(9))
    batch = buffer.read(range(9))
    assert listed(batch, "reward", "steps") == [RUNNING_REWARDS, RUNNING_STEPS]
    assert batch.is_terminal.tolist() == [False, True, True, True] + [False] * 5
    assert batch.next_discount.tolist() == [1, 0, 0, 0, 1, 1, 1, 1, 1]
    assert batch.next_observation[[0, 4, 5, 6, 7, 8]].tolist() == [3, 7, 8, 9, 9, 9]
    assert batch.next_observation[1:4].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="^keys must be of steps that a window can start from, got 9$"):
        buffer.read([9])


def test_with_next_observations_the_newest_step_is_drawable_too() -> None:
    buffer = relive.RingReplayBuffer(10, n_step=3, gamma=1.0)
    add_steps(buffer, range(10), ends=(3,), eager=True)
    batch = buffer.read(buffer.eligible_keys())
    assert listed(batch, "reward", "steps") == [[3, 6, 5, 3, 15, 18, 21, 24, 17, 9], [3, 3, 2, 1, 3, 3, 3, 3, 2, 1]]
    assert batch.next_observation.tolist() == [3, 4, 4, 4, 7, 8, 9, 10, 10, 10]


def test_rewards_are_discounted_from_the_anchor_on() -> None:
    buffer = relive.RingReplayBuffer(10, n_step=3, gamma=0.9)
    add_steps(buffer, range(10), ends=(3,))
    assert listed(buffer.read([0, 1, 2, 4]), "reward") == [[2.52, 5.23, 4.7, 13.36]]
    assert listed(buffer.read([0, 1, 2, 4]), "next_discount") == [[0.729, 0, 0, 0.729]]


def test_a_lazy_step_becomes_eligible_when_the_next_one_arrives() -> None:
    buffer = relive.RingReplayBuffer(10)
    add_steps(buffer, range(1))
    assert buffer.num_eligible == 0
    with pytest.raises(relive.NotReadyError):
        buffer.sample(1)
    add_steps(buffer, range(1, 2))
    assert buffer.eligible_keys().tolist() == [0]
    assert buffer.sample(3).next_observation.tolist() == [1, 1, 1]


def test_a_truncated_window_bootstraps_from_the_final_observation() -> None:
    buffer = relive.RingReplayBuffer(10, n_step=2, gamma=0.9)
    for t in range(3):
        buffer.add(t, t, 1.0, 3 if t == 2 else None, truncated=t == 2)
    buffer.add(7, 7, 1.0)
    batch = buffer.read([0, 1, 2])
    assert listed(batch, "steps", "reward", "next_discount") == [[2, 2, 1], [1.9, 1.9, 1], [0.81, 0.81, 0.9]]
    assert batch.next_observation.tolist() == [2, 3, 3]
    assert not batch.is_terminal.any()


def test_a_truncated_step_needs_its_next_observation() -> None:
    buffer = relive.RingReplayBuffer(10)
    with pytest.raises(ValueError, match="^next_observation must be given with a truncated step, got None$"):
        buffer.add(0, 0, 0.0, truncated=True)
    with pytest.raises(ValueError, match="next_observation must be given with a truncated step"):
        buffer.extend([0], [0], [0.0], truncated=[True])
    assert len(buffer) == 0


@pytest.mark.parametrize("given", [False, True])
def test_both_ends_at_once_is_terminated(given: bool) -> None:
    buffer = relive.RingReplayBuffer(10)
    buffer.add(0, 0, 1.0, 5 if given else None, terminated=True, truncated=True)
    batch = buffer.read([0])
    assert (batch.is_terminal.tolist(), batch.next_discount.tolist()) == ([True], [0.0])
    assert batch.next_observation.tolist() == [5 if given else 0]
    assert buffer.get_stats().terminated_episodes == 1
    assert buffer.get_stats().truncated_episodes == 0


def test_the_target_is_reward_plus_discounted_value_however_a_window_ends() -> None:
    """Against the definition: the n-step return is the sum over what is left, with a bootstrap unless it terminated."""
    buffer = relive.RingReplayBuffer(40, n_step=4, gamma=0.5)
    buffer.add_episode(np.arange(8.0), np.zeros(7), np.arange(7.0), terminated=True)
    buffer.add_episode(np.arange(8.0), np.zeros(7), np.arange(7.0), terminated=False)
    batch = buffer.read(np.arange(14))
    targets = batch.reward + batch.next_discount * (10 + batch.next_observation)
    for key, target in enumerate(targets.tolist()):
        t = key % 7
        m = min(4, 7 - t)
        bootstrap = 0.0 if key < 7 and t + m == 7 else 10.0 + t + m
        assert target == sum(0.5**k * (t + k) for k in range(m)) + 0.5**m * bootstrap


def test_an_observation_that_does_not_follow_closes_the_episode() -> None:
    buffer = relive.RingReplayBuffer(10, n_step=3, gamma=1.0)
    buffer.add(0, 0, 1.0, 1)
    buffer.add(1, 1, 1.0, 2)
    buffer.add(50, 2, 1.0, 51)
    assert buffer.get_stats().spliced_episodes == 1
    assert buffer.get_stats().truncated_episodes == 1
    batch = buffer.read([0, 1, 2])
    assert batch.next_observation.tolist() == [2, 2, 51]
    assert batch.steps.tolist() == [2, 1, 1]
    assert batch.next_discount.tolist() == [1, 1, 1]


def test_an_observation_that_follows_a_nan_is_no_splice() -> None:
    """NaN is not equal to itself, but it is the same observation."""
    buffer = relive.RingReplayBuffer(10)
    buffer.add([np.nan, 1.0], 0, 0.0, [2.0, np.nan])
    buffer.add([2.0, np.nan], 0, 0.0, [3.0, 1.0])
    assert buffer.get_stats().spliced_episodes == 0


@pytest.mark.parametrize(
    "unknown",
    [
        np.array(np.nan),
        np.array(np.nan, np.float16),
        np.array(np.nan, complex),
        np.array("NaT", "datetime64[us]"),
        np.array((np.nan, 1), [("x", float), ("n", int)]),
    ],
)
def test_a_splice_in_one_stream_is_none_in_another_whose_observation_equals_nothing(unknown: Any) -> None:
    buffer = relive.RingReplayBuffer(10, streams=2)
    now, other = np.array([unknown, np.zeros_like(unknown)]), np.array([unknown, np.ones_like(unknown)])
    buffer.extend(now, [0, 0], [0.0, 0.0], now)
    buffer.extend(other, [0, 0], [0.0, 0.0], now)
    assert buffer.get_stats().spliced_episodes == 1
    assert buffer.get_stats().open_episodes == 2
    assert buffer.read(range(4), n_step=2).steps.tolist() == [2, 1, 1, 1]


class Counting(relive.ColumnStorage):
    """A storage that knows the largest number of rows it was ever asked for."""

    most = 0

    def read(self, slots: Any, fields: Any = None) -> dict[str, npt.NDArray[Any]]:
        self.most = max(self.most, np.size(slots))
        return super().read(slots, fields)


@pytest.mark.parametrize("n_step", [5, 10, 11, 1000, 10**5])
def test_a_horizon_beyond_the_end_is_the_return_to_the_end(n_step: int) -> None:
    """However large n_step is, a window has at most as many steps as are stored, and reads few more."""
    storage = Counting(relive.Schema(relive.Field((), int), relive.Field((), int)), 10)
    buffer = relive.RingReplayBuffer(10, gamma=1.0, n_step=n_step, storage=storage)
    add_steps(buffer, range(5), ends=(4,))
    assert buffer.read(range(5)).reward.tolist() == [10, 10, 9, 7, 4]
    assert buffer.read(range(5)).steps.tolist() == [5, 4, 3, 2, 1]
    assert storage.most <= 5 * 20


def test_n_step_and_gamma_may_be_given_per_call() -> None:
    buffer = relive.RingReplayBuffer(10, n_step=1, gamma=0.5)
    add_steps(buffer, range(6))
    assert buffer.read([1], n_step=3, gamma=1.0).reward.tolist() == [6]
    assert buffer.read([1], n_step=3).reward.tolist() == [1 + 1 + 0.75]
    assert buffer.read([1]).reward.tolist() == [1]
    assert set(buffer.sample(20, n_step=5, gamma=1.0).steps.tolist()) <= {1, 2, 3, 4, 5}
    with pytest.raises(ValueError, match="n_step must be at least 1, got 0"):
        buffer.read([1], n_step=0)
    for gamma in (0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="gamma must be"):
            buffer.sample(1, gamma=gamma)


@pytest.mark.parametrize(("padding", "pad"), [("zeros", [0, 0, 0]), ("first", [1, 1, 1])])
def test_a_stack_begins_with_padding_and_ends_with_the_newest_frame(padding: Any, pad: list[int]) -> None:
    buffer = relive.RingReplayBuffer(20, frame_stack=4, stack_padding=padding)
    for t in range(1, 7):
        buffer.add(t, t, 0.0, t + 1)
    assert buffer.read(range(6)).observation.tolist() == [([*pad, *range(1, 7)])[k : k + 4] for k in range(6)]
    assert buffer.read(range(6)).next_observation.tolist() == [([*pad, *range(1, 8)])[k + 1 : k + 5] for k in range(6)]


@pytest.mark.parametrize("truncated", [False, True])
def test_a_stack_never_reaches_into_another_episode(truncated: bool) -> None:
    """Also after an episode of one step."""
    buffer = relive.RingReplayBuffer(20, frame_stack=4)
    buffer.add(11, 0, 0.0, 12, terminated=not truncated, truncated=truncated)
    buffer.add(21, 0, 0.0, 22)
    buffer.add(22, 0, 0.0, 23, terminated=not truncated, truncated=truncated)
    buffer.add(31, 0, 0.0, 32)
    batch = buffer.read(range(4))
    assert batch.observation.tolist() == [[0, 0, 0, 11], [0, 0, 0, 21], [0, 0, 21, 22], [0, 0, 0, 31]]
    assert batch.next_observation.tolist() == [[0, 0, 11, 12], [0, 0, 21, 22], [0, 21, 22, 23], [0, 0, 31, 32]]


def test_a_stack_has_the_axis_after_the_batch() -> None:
    buffer = relive.RingReplayBuffer(20, frame_stack=3)
    frames = np.arange(6 * 4 * 5).reshape(6, 4, 5).astype(np.uint8)
    buffer.add_episode(frames, np.zeros(5), np.zeros(5), terminated=False)
    batch = buffer.read([0, 3])
    assert batch.observation.shape == (2, 3, 4, 5)
    assert batch.observation.dtype == np.uint8
    assert np.array_equal(batch.observation[1], frames[1:4])
    assert np.array_equal(batch.next_observation[1], frames[2:5])


@pytest.mark.parametrize("stack", [1, 2, 4])
def test_nothing_at_the_write_cursor_mixes_the_newest_with_the_oldest(stack: int) -> None:
    """One endless episode: every window and stack is made of consecutive times."""
    buffer = relive.RingReplayBuffer(8, n_step=3, gamma=1.0, frame_stack=stack)
    for t in range(1, 40):
        buffer.add(t, t, float(t), t + 1)
        keys = buffer.eligible_keys()
        assert keys.tolist() == list(range(max(t - 8, 0) and max(t - 8, 0) + stack - 1, t))
        batch = buffer.read(keys)
        for key, observation, following, reward, m in zip(
            keys.tolist(), batch.observation, batch.next_observation, batch.reward, batch.steps, strict=True
        ):
            now, then = (observation, following) if stack > 1 else (observation[None], following[None])
            assert now.tolist() == [max(key + 1 + k, 0) for k in range(1 - stack, 1)]
            assert then.tolist() == [max(key + 1 + m + k, 0) for k in range(1 - stack, 1)]
            assert m == min(3, t - key)
            assert reward == sum(key + 1 + k for k in range(m))


def test_an_episode_longer_than_capacity_is_refused_before_anything_moves() -> None:
    buffer = relive.RingReplayBuffer(4)
    buffer.add(0, 0, 0.0, 1)
    with pytest.raises(ValueError, match="an episode must have 1 to capacity = 4 steps, got 5"):
        buffer.add_episode(np.arange(6), np.arange(5), np.zeros(5), terminated=True)
    assert (len(buffer), buffer.get_stats().open_episodes, buffer.get_stats().appended) == (1, 1, 1)
    assert buffer.add_episode(np.arange(5), np.arange(4), np.zeros(4), terminated=True).tolist() == [1, 2, 3, 4]
    assert len(buffer) == 4


def test_more_streams_than_capacity_are_refused() -> None:
    with pytest.raises(ValueError, match="streams must be at most capacity = 3, got 4"):
        relive.RingReplayBuffer(3, streams=4)


# Dtypes and schemas.

EXACT: list[tuple[npt.DTypeLike, list[Any]]] = [
    (np.float64, [1 + 2**-52, 1e300]),
    (np.int64, [2**53 + 1, -(2**63)]),
    (np.uint64, [2**64 - 1, 2**63 + 1]),
    (np.bool_, [True, False]),
    (np.uint8, [255, 0]),
    (np.float16, [65504.0, 6e-8]),
    (np.float32, [np.float32(0.1), np.float32(-np.inf)]),
    (np.complex128, [1 + 2j, 3 - 1e-300j]),
]


@pytest.mark.parametrize(("dtype", "values"), EXACT)
def test_values_come_back_in_their_own_dtype(dtype: npt.DTypeLike, values: list[Any]) -> None:
    array = np.array(values, dtype)
    buffer = relive.RingReplayBuffer(4)
    buffer.add(array, array[0], 0.0, array[::-1], extra=array)
    batch = buffer.read([0])
    for column, given in ((batch.observation, array), (batch.extras["extra"], array), (batch.action, array[0])):
        assert column.dtype == np.dtype(dtype)
        assert column[0].tobytes() == given.tobytes()
    assert batch.next_observation[0].tobytes() == array[::-1].tobytes()


SMALL = relive.Schema(
    relive.Field(2, np.float32),
    relive.Field((), np.uint8),
    extras={"count": relive.Field((), np.int64), "vector": relive.Field(3, float)},
)
GOOD: dict[str, Any] = {
    "observation": [0.0, 1.0],
    "action": 3,
    "reward": 1.0,
    "next_observation": [1.0, 2.0],
    "count": 1,
    "vector": np.zeros(3),
}
BAD = [
    ({"action": 0.9}, "action"),
    ({"action": 300}, "action"),
    ({"action": -1}, "action"),
    ({"count": float("nan")}, "count"),
    ({"count": 2**70}, "count"),
    ({"observation": [0.0, 1.0, 2.0]}, "observation"),
    ({"observation": [1e300, 0.0]}, "observation"),
    ({"next_observation": [[0.0, 1.0]]}, "next_observation"),
    ({"next_observation": ["a", "b"]}, "next_observation"),
    ({"vector": 0.0}, "vector"),
    ({"reward": [1.0]}, "reward"),
    ({"reward": "one"}, "reward"),
    ({"reward": 1j}, "reward"),
    ({"unheard": 1}, "unheard"),
    ({"count": None}, "count"),
]


@pytest.mark.parametrize(("change", "name"), BAD)
def test_what_does_not_fit_names_its_field_and_stores_nothing(change: dict[str, Any], name: str) -> None:
    buffer = relive.RingReplayBuffer(4, SMALL)
    buffer.add(**GOOD)
    step = {**GOOD, "observation": GOOD["next_observation"], **change}
    with pytest.raises(relive.SchemaError, match=name):
        buffer.add(**step)
    with pytest.raises(relive.SchemaError, match=name):
        buffer.extend(**{key: [value] for key, value in step.items()})
    buffer.check()
    stats = buffer.get_stats()
    assert (stats.size, stats.appended, stats.spliced_episodes, stats.open_episodes) == (1, 1, 0, 1)
    assert buffer.add(**{**GOOD, "observation": GOOD["next_observation"]}) == 1


def test_a_missing_extra_names_itself() -> None:
    buffer = relive.RingReplayBuffer(4, SMALL)
    without = {key: value for key, value in GOOD.items() if key != "vector"}
    with pytest.raises(relive.SchemaError, match="vector"):
        buffer.add(**without)
    assert len(buffer) == 0


def test_a_schema_is_inferred_from_the_first_step_and_enforced_from_then_on() -> None:
    buffer = relive.RingReplayBuffer(4)
    with pytest.raises(relive.SchemaError):
        buffer.add([object()], 0, 0.0)
    assert (buffer.schema, len(buffer)) == (None, 0)
    buffer.add({"image": np.zeros((2, 2), np.uint8), "state": [1.0]}, 0, 0.0, lives=3)
    assert buffer.schema is not None
    assert list(buffer.schema.fields) == ["observation/image", "observation/state", "action", "reward", "extras/lives"]
    with pytest.raises(relive.SchemaError, match="observation"):
        buffer.add({"image": np.zeros((2, 2), np.uint8)}, 0, 0.0, lives=3)
    with pytest.raises(relive.SchemaError, match="observation/image"):
        buffer.add({"image": np.full((2, 2), 0.5), "state": [1.0]}, 0, 0.0, lives=3)
    assert len(buffer) == 1


def test_nested_observations_are_dicts_outside() -> None:
    buffer = relive.RingReplayBuffer(4, frame_stack=2)
    for t in range(3):
        buffer.add({"image": np.full((2, 2), t, np.uint8), "state": [float(t)]}, {"arm": t}, 0.0)
    batch = buffer.read([0, 1])
    assert batch.observation["image"].shape == (2, 2, 2, 2)
    assert batch.next_observation["state"].tolist() == [[[0.0], [1.0]], [[1.0], [2.0]]]
    assert batch.action["arm"].tolist() == [0, 1]


def test_rewards_keep_their_dtype_unless_the_schema_says_otherwise() -> None:
    plain = relive.RingReplayBuffer(4)
    narrow = relive.RingReplayBuffer(4, relive.Schema(SMALL.observation, SMALL.action, reward=relive.Field((), "f4")))
    for buffer in (plain, narrow):
        buffer.add([0.0, 0.0], 1, 0.1, [1.0, 1.0])
    assert plain.read([0]).reward.dtype == np.float64
    assert plain.read([0]).reward.tolist() == [0.1]
    assert narrow.read([0]).reward.dtype == np.float32
    assert narrow.read([0]).reward.tolist() == [float(np.float32(0.1))]


def test_neither_what_was_added_nor_what_was_drawn_is_the_storage() -> None:
    buffer = relive.RingReplayBuffer(8, frame_stack=2)
    observation, following, extra = np.ones(3), np.full(3, 2.0), np.ones(2)
    buffer.add(observation, 0, 1.0, following, extra=extra)
    for array in (observation, following, extra):
        array[:] = -1
    first = buffer.read([0])
    for column in (first.observation, first.next_observation, first.reward, first.extras["extra"], first.keys):
        column[:] = -1
    again = buffer.read([0])
    assert again.observation.tolist() == [[[0, 0, 0], [1, 1, 1]]]
    assert again.next_observation.tolist() == [[[1, 1, 1], [2, 2, 2]]]
    assert (again.reward.tolist(), again.extras["extra"].tolist(), again.keys.tolist()) == ([1], [[1, 1]], [0])


@pytest.mark.parametrize("episodes", [60, pytest.param(4_000, marks=pytest.mark.long)])
def test_memory_is_flat_however_many_steps_come(episodes: int) -> None:
    """Episodes of 2,500 steps and, in between, single ones, into a ring of 5,000."""
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
    before, after = sizes[10], sizes[-1]
    assert buffer.get_stats().appended == 2_503 * episodes
    assert after - before < 20_000
    buffer.check()


def test_the_same_seed_and_the_same_calls_give_the_same_batches() -> None:
    batches = []
    for noise in (0, 1):
        buffer = relive.PrioritizedReplayBuffer(20, seed=5)
        drawn = []
        for t in range(30):
            buffer.add(t, t, 1.0)
            np.random.seed(noise + t)  # noqa: NPY002
            if t:
                drawn.append(buffer.sample(4).keys.tolist())
        batches.append(drawn)
    assert batches[0] == batches[1]


def test_another_seed_gives_other_batches_and_a_generator_is_a_seed() -> None:
    drawn = []
    for seed in (1, 2, np.random.default_rng(1)):
        buffer = relive.RingReplayBuffer(100, seed=seed)
        add_steps(buffer, range(100))
        drawn.append(buffer.sample_keys(50).tolist())
    assert drawn[0] == drawn[2] != drawn[1]


def test_a_clear_forgets_the_steps_and_no_key_is_used_again() -> None:
    buffer = relive.RingReplayBuffer(10, n_step=3)
    add_steps(buffer, range(7), eager=True)
    buffer.clear()
    assert (len(buffer), buffer.num_eligible, buffer.get_stats().open_episodes) == (0, 0, 0)
    assert buffer.add(7, 7, 1.0, 8) == 7
    assert buffer.read([7]).observation.tolist() == [7]
    assert buffer.get_stats().spliced_episodes == 0
    with pytest.raises(relive.UnknownKeyError, match="key 3 not found"):
        buffer.read([3])


def test_every_row_is_drawn_alike() -> None:
    buffer = relive.RingReplayBuffer(20, n_step=3, seed=3)
    add_episodes(buffer, 6, 5)
    keys = buffer.sample_keys(20_000)
    testing.assert_frequencies(np.bincount(keys - 10, minlength=20).tolist(), [1 / 20] * 20)
