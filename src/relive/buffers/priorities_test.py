"""Priorities by example: probabilities, weights, late updates, and bugs that other libraries shipped with them (P)."""

import gc
from typing import Any
import weakref

import numpy as np
import numpy.typing as npt
import pytest

import relive
from relive.kernels import append
from relive.testing import zoo


def make(capacity: int, **settings: Any) -> Any:
    """Return a buffer whose probabilities are the priorities over their sum."""
    return relive.PrioritizedReplayBuffer(
        capacity, **{"alpha": 1.0, "beta": 1.0, "epsilon": 0.0, "seed": 0, **settings}
    )


def fill(buffer: Any, count: int, first: int = 0) -> None:
    """Add steps of one episode, whose observations are `first` and so on."""
    for t in range(first, first + count):
        buffer.add(t, t, float(t), t + 1)


def rated(priorities: Any, **settings: Any) -> Any:
    """Return a buffer with as many steps, whose keys are 0, 1 and so on."""
    count = len(priorities)
    buffer = make(settings.pop("capacity", count), **settings)
    fill(buffer, count)
    assert buffer.update_priorities(range(count), priorities) == count
    return buffer


# Probabilities and weights.


def test_priorities_one_to_four(subtests: pytest.Subtests) -> None:
    """With 64 draws all four rows are in the batch, so its largest weight is that of the least likely row."""
    cases: list[tuple[float, float, list[float], list[float]]] = [
        (1.0, 1.0, [0.1, 0.2, 0.3, 0.4], [1, 0.5, 1 / 3, 0.25]),
        (1.0, 0.5, [0.1, 0.2, 0.3, 0.4], [1, 0.707107, 0.577350, 0.5]),
        (0.6, 0.4, [0.148230, 0.224674, 0.286555, 0.340542], [1, 0.846745, 0.768229, 0.716978]),
        (0.0, 0.4, [0.25] * 4, [1] * 4),
        (0.0, 1.0, [0.25] * 4, [1] * 4),
        (1.0, 0.0, [0.1, 0.2, 0.3, 0.4], [1] * 4),
        (0.6, 0.0, [0.148230, 0.224674, 0.286555, 0.340542], [1] * 4),
    ]
    for alpha, beta, probabilities, weights in cases:
        with subtests.test(f"alpha={alpha}, beta={beta}"):
            buffer = rated([1, 2, 3, 4], alpha=alpha, beta=beta)
            for batch in (buffer.read([0, 1, 2, 3]), buffer.sample(64)):
                assert set(batch.keys.tolist()) == {0, 1, 2, 3}
                assert batch.probabilities == pytest.approx(np.array(probabilities)[batch.keys], abs=1e-6)
                assert batch.weights == pytest.approx(np.array(weights)[batch.keys], abs=1e-6)


def test_raw_weights_with_beta_one_undo_the_priorities() -> None:
    values = np.array([3.0, -1.0, 4.0, 1.0, -5.0, 9.0])
    buffer = rated([1, 2, 3, 4, 5, 1], alpha=0.7, epsilon=0.01, weight_normalization="none")
    batch = buffer.read(range(6))
    assert np.sum(batch.probabilities * batch.weights * values) == pytest.approx(values.mean(), rel=1e-14)


def test_n_counts_the_rows_that_are_eligible() -> None:
    buffer = rated([1, 1, 1, 1], weight_normalization="none", capacity=50)
    buffer.add(4, 9, 9.0)
    assert buffer.read([0]).weights.tolist() == [1]
    buffer.set_eligible([1, 2], False)
    assert buffer.read([0]).probabilities.tolist() == [0.5]
    assert buffer.read([0]).weights.tolist() == [1]
    buffer.update_priorities([0], [3])
    assert buffer.read([0]).weights.tolist() == pytest.approx([1 / 1.5], rel=1e-15)


def test_beta_may_be_given_per_call() -> None:
    buffer = rated([1, 2, 3, 4], beta=0.0)
    assert buffer.read([0, 3], beta=1.0).weights.tolist() == pytest.approx([1, 0.25])
    assert set(buffer.sample(64, beta=1.0).weights.round(6).tolist()) == {1.0, 0.5, 0.333333, 0.25}
    assert buffer.read([0, 3]).weights.tolist() == [1, 1]


def test_beta_ticks_once_a_draw_whatever_its_size() -> None:
    """P49: linear from .4 to exactly 1 at draw K, without compounding; a read is no tick, nor is a refused draw."""
    buffer = rated([1, 3], beta=relive.LinearSchedule(0.4, 1.0, 20), weight_normalization="none")
    for tick in range(25):
        beta = 1.0 if tick >= 20 else 0.4 + 0.6 * tick / 20
        assert buffer.sampler.beta == pytest.approx(beta, rel=1e-15)
        assert buffer.read([0, 1]).weights == pytest.approx(np.array([0.5, 1.5]) ** -beta, rel=1e-12)
        for wrong in ({"batch_size": 0}, {"batch_size": 1, "n_step": 0}, {"batch_size": 1, "beta": -1.0}):
            with pytest.raises(ValueError, match="must be"):
                buffer.sample(**wrong)
        batch = buffer.sample(1 + 8 * tick)
        assert batch.weights == pytest.approx((2 * batch.probabilities) ** -beta, rel=1e-12)
    assert buffer.sampler.beta == 1.0


@pytest.mark.parametrize(("normalization", "weight"), [("none", 1 / 1.6), ("buffer", 0.25), ("batch", 1.0)])
@pytest.mark.parametrize("most", [None, 1])
def test_the_weight_of_a_row_that_retires_is_that_of_its_draw(normalization: str, weight: float, most: Any) -> None:
    """N and the smallest probability are those at the time of the draw, not those of the rows that are left."""
    settings = {"weight_normalization": normalization, "max_times_sampled": most}
    batches = (rated([1, 2, 3, 4], seed=seed, **settings).sample(1) for seed in range(40))
    batch = next(batch for batch in batches if batch.keys[0] == 3)
    assert batch.probabilities.tolist() == [0.4]
    assert batch.weights.tolist() == pytest.approx([weight], rel=1e-12)


# The priorities of new rows.


def test_a_priority_noted_elsewhere_is_the_largest_so_far() -> None:
    buffer = make(8)
    fill(buffer, 1)
    for t, noted in enumerate([7.0, 2.0], start=1):
        buffer.sampler._note_priority(noted)
        fill(buffer, 1, first=t)
    assert buffer.get_priorities(range(3)).tolist() == [1, 7, 7]
    with pytest.raises(relive.ArgumentError, match="^priority must be at least 0, got -1.0$"):
        buffer.sampler._note_priority(-1.0)
    buffer.check()


def test_a_sampler_says_its_weights_and_its_schedule() -> None:
    schedule = relive.LinearSchedule(0.5, 1.0, 10)
    sampler = rated([3, 0, 2, 4], beta=schedule).sampler
    assert (sampler._total_weight, sampler._least_weight, sampler.schedule) == (9.0, 2.0, schedule)
    assert (rated([0, 0]).sampler._least_weight, make(8, beta=0.25).sampler.schedule) == (0.0, 0.25)


# Updates.


class Tensor:
    """An object of another library with `__array__`."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.array if dtype is None else self.array.astype(dtype)


def readonly(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


def test_updates_take_anything_that_is_an_array(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any]] = [
        ([0, 1, 2], [4, 5, 6]),
        ((0, 1, 2), (4.0, 5.0, 6.0)),
        (np.arange(3, dtype=np.int32), np.array([[4.0], [5.0], [6.0]])),
        (np.arange(3, dtype=np.uint8), readonly(np.array([4.0, 5.0, 6.0]))),
        (readonly(np.arange(3)), np.array([4, 5, 6], np.float16)),
        (np.arange(6)[::2] // 2, np.array([6, 5, 4], np.int8)[::-1]),
        (Tensor(np.arange(3)), Tensor(np.array([[4], [5], [6]], np.float32))),
    ]
    for keys, priorities in cases:
        with subtests.test(str(keys)):
            buffer = rated([1, 2, 3])
            assert buffer.update_priorities(keys, priorities) == 3
            assert buffer.get_priorities([0, 1, 2]).tolist() == [4, 5, 6]
            assert buffer.update_priorities(np.asarray(keys)[:1], np.asarray(priorities)[:1]) == 1
            assert buffer.get_priorities([0]).shape == (1,)
            assert buffer.update_priorities(np.zeros(0, np.int64), []) == 0


@pytest.mark.parametrize("start", [2**31 - 2, 2**32 - 3, 2**53 - 2])
def test_counters_are_of_64_bits(start: int) -> None:
    """P50: keys go on past 2^31 without overflow."""
    buffer = make(5, n_step=3, frame_stack=2)
    buffer.add(0, 0, 0.0, 1)
    buffer.clear()
    buffer._store.num[append.NEXT_KEY] = start
    fill(buffer, 9)
    assert buffer.eligible_keys().tolist() == list(range(start + 5, start + 9))
    assert buffer.eligible_keys().dtype == np.int64
    batch = buffer.read(buffer.eligible_keys())
    assert batch.observation.tolist() == [[4, 5], [5, 6], [6, 7], [7, 8]]
    assert buffer.update_priorities(batch.keys, [1, 2, 3, 4]) == 4
    assert buffer.update_priorities(batch.keys - 2**31, [9, 9, 9, 9]) == 0
    assert buffer.get_priorities(batch.keys).tolist() == [1, 2, 3, 4]


def test_a_buffer_is_collected_with_its_columns() -> None:
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


# Draws.


def test_nothing_but_zeros_is_not_ready() -> None:
    buffer = rated([0, 0, 0])
    with pytest.raises(relive.NotReadyError, match="^every eligible priority weighs 0: update_priorities first$"):
        buffer.sample(1)
    assert buffer.get_stats().sampled == 0
    buffer.update_priorities([1], [1e-300])
    assert buffer.sample(4).keys.tolist() == [1] * 4


# Refused priorities and settings.

VALUES = "^priority of row {} must be a finite number of at least 0, got {}$"
NEVER = "^keys must be those of batches, below 3, the number of steps added so far, got -?[0-9]+, which was never"
REFUSED: list[tuple[Any, Any, str]] = [
    ([0, 1, 2], [5, -1, 5], VALUES.format(1, "-1.0")),
    ([0, 1, 2], [5, 5, float("nan")], VALUES.format(2, "nan")),
    ([0, 1, 2], [float("inf"), 5, 5], VALUES.format(0, "inf")),
    ([0, 1000], [5, -1], VALUES.format(1, "-1.0")),
    ([0, 1], [5, 1e200], r"^priority of row 1 must be smaller with alpha = 10, got 1e\+200$"),
    ([0, 1, 2], [5, 5], r"^priority must be of shape \(3,\), got \(2,\)$"),
    ([0, 1], [5, 5, 5], r"^priority must be of shape \(2,\), got \(3,\)$"),
    ([0, 1, 2], 5, "^priority must be"),
    ([0, 1, 2], [[5, 5, 5]], "^priority must be of shape"),
    ([0, 1, 2], ["a", "b", "c"], r"^priority must be a real number in every row, got \['a', 'b', 'c'\]$"),
    ([0, 1, 2], [5, 5, 1j], "^priority must be a real number in every row"),
    ([0, 1, 2], [[5, 5], [5], [5]], "^priority must be"),
    ([[0, 1], [2]], [5, 5, 5], "^keys must be"),
    ([0.5, 1, 2], [5, 5, 5], r"^keys must be integers, got \[0.5, 1, 2\]$"),
    ([True, False, True], [5, 5, 5], "^keys must be integers"),
    ([0, 1, 2**70], [5, 5, 5], "^keys must be"),
    (["0", "1", "2"], [5, 5, 5], "^keys must be integers"),
    ([1, -1], [5, 5], NEVER),
    ([1, 3], [5, 5], NEVER),
    ([1, 10**15], [5, 5], NEVER),
    (np.array([1, 2**63], np.uint64), [5, 5], NEVER),
]


def test_a_wrong_update_is_refused_and_changes_nothing(subtests: pytest.Subtests) -> None:
    for keys, priorities, message in REFUSED:
        with subtests.test(message):
            buffer = rated([1, 2, 3], alpha=10.0)
            before = zoo.state_of(buffer)
            with pytest.raises(relive.ArgumentError, match=message):
                buffer.update_priorities(keys, priorities)
            assert zoo.state_of(buffer) == before
            assert buffer.get_priorities([buffer.add(3, 9, 0.0, 10)]).tolist() == [3]
            buffer.check()


@pytest.mark.parametrize("why", ["lazy", "barred"])
def test_a_priority_too_large_for_a_waiting_row_is_refused(why: str) -> None:
    """It is refused when it is passed, not by a later call that has already changed something."""
    buffer = make(10, alpha=10.0)
    key = buffer.add(0, 0, 0.0, None if why == "lazy" else 1)
    if why == "barred":
        buffer.set_eligible([key], False)
    with pytest.raises(relive.ArgumentError, match="^priority of row 0 must be smaller"):
        buffer.update_priorities([key], [1e200])
    assert buffer.get_priorities([key]).tolist() == [1.0]
    buffer.add(1, 0, 0.0)
    buffer.set_eligible([key], True)
    buffer.check()


@pytest.mark.parametrize("stored", [1e200, 1])
def test_an_alpha_too_large_is_refused_and_changes_nothing(stored: float) -> None:
    """Too large for a row that is stored, or for what a new row would get."""
    buffer = rated([1e200, 1, 2], capacity=10)
    buffer.update_priorities([0], [stored])
    before = zoo.state_of(buffer)
    with pytest.raises(
        relive.ArgumentError, match=r"^priority of row [03] must be smaller with alpha = 10, got 1e\+200$"
    ):
        buffer.sampler.alpha = 10.0
    assert buffer.sampler.alpha == 1.0
    assert zoo.state_of(buffer) == before
    buffer.sampler.alpha = 0.5
    fill(buffer, 1, first=3)
    buffer.check()


@pytest.mark.parametrize("name", ["prioritized", "prioritized sequences"])
def test_priorities_of_minus_zero_are_saved_as_zero(name: str) -> None:
    buffer = zoo.worked(zoo.COLUMNS[name])
    keys = buffer.eligible_keys()[:2]
    buffer.update_priorities(keys, [-0.0, 1.0])
    assert not np.signbit(buffer.get_priorities(keys)).any()
    zoo.assert_same(buffer, type(buffer).from_state(buffer.state_dict()))


@pytest.mark.skipif(np.finfo(np.longdouble).max == np.finfo(np.float64).max, reason="a long double is a float64 here")
def test_a_priority_that_no_float64_holds_is_refused() -> None:
    buffer = zoo.worked(zoo.COLUMNS["prioritized"])
    keys, before = buffer.eligible_keys()[:1], zoo.state_of(buffer)
    with pytest.raises(relive.ArgumentError, match="^priority of row 0 must be a finite number of at least 0, got inf"):
        buffer.update_priorities(keys, np.full(1, np.finfo(np.longdouble).max))
    assert zoo.state_of(buffer) == before
