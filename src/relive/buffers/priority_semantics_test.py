"""Tests of priorities, row by row: probabilities, weights, refused values, late updates."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relive
from relive import errors
from relive import testing
from relive.testing import zoo


def rated(priorities: list[float], **settings: Any) -> relive.PrioritizedReplayBuffer:
    """Return a buffer with as many steps, whose keys are 0, 1 and so on."""
    settings = {"alpha": 1.0, "beta": 1.0, "epsilon": 0.0, "seed": 0, **settings}
    buffer = relive.PrioritizedReplayBuffer(settings.pop("capacity", len(priorities)), **settings)
    count = len(priorities)
    keys = buffer.add_episode(np.arange(count + 1), np.arange(count), np.arange(float(count)), terminated=True)
    assert buffer.update_priorities(keys, priorities) == count
    return buffer


TABLE = [
    (1.0, 1.0, [0.1, 0.2, 0.3, 0.4], [1, 0.5, 1 / 3, 0.25]),
    (1.0, 0.5, [0.1, 0.2, 0.3, 0.4], [1, 0.707107, 0.577350, 0.5]),
    (0.6, 0.4, [0.148230, 0.224674, 0.286555, 0.340542], [1, 0.846745, 0.768229, 0.716978]),
    (0.0, 0.4, [0.25] * 4, [1] * 4),
    (0.0, 1.0, [0.25] * 4, [1] * 4),
    (1.0, 0.0, [0.1, 0.2, 0.3, 0.4], [1] * 4),
    (0.6, 0.0, [0.148230, 0.224674, 0.286555, 0.340542], [1] * 4),
]


@pytest.mark.parametrize(("alpha", "beta", "probabilities", "weights"), TABLE)
def test_priorities_one_to_four(alpha: float, beta: float, probabilities: list[float], weights: list[float]) -> None:
    batch = rated([1, 2, 3, 4], alpha=alpha, beta=beta).read([0, 1, 2, 3])
    assert batch.probabilities.tolist() == pytest.approx(probabilities, abs=1e-6)
    assert batch.weights.tolist() == pytest.approx(weights, abs=1e-6)


@pytest.mark.parametrize(("alpha", "beta", "probabilities", "weights"), TABLE)
def test_a_drawn_batch_has_the_same_numbers_as_the_one_that_is_read(
    alpha: float, beta: float, probabilities: list[float], weights: list[float]
) -> None:
    """With 64 draws all four rows are in it, so its largest weight is that of the least likely row."""
    batch = rated([1, 2, 3, 4], alpha=alpha, beta=beta).sample(64)
    assert set(batch.keys.tolist()) == {0, 1, 2, 3}
    assert batch.probabilities == pytest.approx(np.array(probabilities)[batch.keys], abs=1e-6)
    assert batch.weights == pytest.approx(np.array(weights)[batch.keys], abs=1e-6)


@pytest.mark.parametrize(
    ("normalization", "weights"),
    [("batch", [1, 0.75]), ("buffer", [1 / 3, 0.25]), ("none", [1 / 1.2, 1 / 1.6])],
)
def test_weights_are_normalised_over_the_batch_or_the_buffer_or_not(normalization: str, weights: list[float]) -> None:
    batch = rated([1, 2, 3, 4], weight_normalization=normalization).read([2, 3])
    assert batch.weights.tolist() == pytest.approx(weights, rel=1e-12)


def test_the_buffer_normalisation_is_over_eligible_rows_that_can_be_drawn() -> None:
    """A row of priority 0 has no weight, and an ineligible row does not count."""
    buffer = rated([0, 1, 2, 4], weight_normalization="buffer")
    buffer.set_eligible([1], False)
    assert buffer.read([2, 3]).weights.tolist() == [1, 0.5]


def test_raw_weights_with_beta_one_undo_the_priorities_exactly() -> None:
    values = np.array([3.0, -1.0, 4.0, 1.0, -5.0, 9.0])
    buffer = rated([1, 2, 3, 4, 5, 1], alpha=0.7, epsilon=0.01, weight_normalization="none")
    batch = buffer.read(range(6))
    assert np.sum(batch.probabilities * batch.weights * values) == pytest.approx(values.mean(), rel=1e-14)


def test_n_counts_the_rows_that_are_eligible() -> None:
    buffer = rated([1, 1, 1, 1], weight_normalization="none", capacity=50)
    buffer.add(9, 9, 9.0)
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
    for beta in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="beta must be"):
            buffer.sample(1, beta=beta)
    plain = relive.RingReplayBuffer(4)
    plain.add(0, 0, 0.0, 1)
    with pytest.raises(ValueError, match="beta"):
        plain.sample(1, beta=0.5)


def test_a_linear_beta_is_linear_and_exact_at_its_end() -> None:
    beta = relive.LinearSchedule(0.4, 1.0, 100_000)
    values = [beta.value(tick) for tick in (0, 11, 50_000, 100_000, 100_001, 10**9)]
    assert values == [0.4, 0.400066, 0.7, 1.0, 1.0, 1.0]


def test_beta_ticks_once_a_draw_whatever_its_size() -> None:
    buffer = rated([1, 2, 3, 4], beta=relive.LinearSchedule(0.0, 1.0, 4))
    for number in range(6):
        assert buffer.sampler.beta == min(number / 4, 1.0)  # type: ignore[attr-defined]
        before = buffer.read([0, 1, 2, 3]).weights.tolist()
        batch = buffer.sample(1 + 40 * number)
        largest = batch.probabilities.min()
        expected = (batch.probabilities / largest) ** -min(number / 4, 1.0)
        assert batch.weights == pytest.approx(expected, rel=1e-12)
        assert before == pytest.approx((np.array([1, 2, 3, 4.0])) ** -min(number / 4, 1.0), rel=1e-12)


def test_a_draw_that_is_refused_is_no_tick() -> None:
    buffer = rated([1, 2], beta=relive.LinearSchedule(0.0, 1.0, 4))
    for wrong in ({"batch_size": 0}, {"batch_size": 1, "n_step": 0}, {"batch_size": 1, "beta": -1.0}):
        with pytest.raises(ValueError, match="must be"):
            buffer.sample(**wrong)
    buffer.set_eligible([0, 1], False)
    with pytest.raises(relive.NotReadyError):
        buffer.sample(1)
    assert buffer.sampler.beta == 0.0  # type: ignore[attr-defined]
    assert buffer.get_stats().sampled == 0


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 1.0, 2.0])
def test_a_new_row_has_the_running_maximum_of_raw_priorities(alpha: float) -> None:
    buffer = relive.PrioritizedReplayBuffer(3, alpha=alpha)
    buffer.add(0, 0, 0.0, 1)
    assert buffer.get_priorities([0]).tolist() == [1.0]
    buffer.update_priorities([0], [100])
    buffer.add(1, 0, 0.0, 2)
    assert buffer.get_priorities([1]).tolist() == [100.0]
    batch = buffer.read([0, 1])
    assert batch.probabilities[0] == batch.probabilities[1]
    buffer.update_priorities([0, 1], [0.1, 0.1])
    for t in range(2, 12):
        buffer.add(t, 0, 0.0, t + 1)
    assert buffer.get_priorities([9, 10, 11]).tolist() == [100.0] * 3


def test_the_running_maximum_is_one_at_first_and_never_falls() -> None:
    buffer = relive.PrioritizedReplayBuffer(10)
    for t in range(5):
        buffer.update_priorities([buffer.add(t, 0, 0.0, t + 1)], [0.25])
        assert buffer.get_priorities([t]).tolist() == [0.25]
    assert buffer.get_priorities([buffer.add(5, 0, 0.0)]).tolist() == [1.0]


@pytest.mark.parametrize(("new_priority", "by_extend"), [("running", [50, 50]), ("live", [4, 4])])
def test_extend_gives_the_priorities_that_adds_give_but_for_rows_that_go_in_the_same_call(
    new_priority: Any, by_extend: list[float]
) -> None:
    """The first of two new rows becomes eligible while the second of the evicted rows still is."""
    buffers = [relive.PrioritizedReplayBuffer(4, streams=2, new_priority=new_priority) for _ in range(2)]
    for buffer in buffers:
        for _ in range(2):
            buffer.extend([0, 0], [0, 0], [0.0, 0.0], [1, 1], terminated=[True, True])
        buffer.update_priorities(range(4), [2, 50, 3, 4])
    keys = buffers[0].extend([7, 8], [0, 0], [0.0, 0.0], [8, 9])
    assert keys.tolist() == [buffers[1].add(7 + k, 0, 0.0, 8 + k, stream=k) for k in range(2)]
    assert buffers[0].get_priorities(keys).tolist() == by_extend
    assert buffers[1].get_priorities(keys).tolist() == [50, 50]


def test_the_maximum_outlives_a_clear() -> None:
    buffer = rated([7.0, 2.0])
    buffer.clear()
    key = buffer.add(0, 0, 0.0, 1)
    assert buffer.get_priorities([key]).tolist() == [7.0]


class Fixed(np.random.Generator):
    """A generator whose uniform numbers are all the same; otherwise like numpy's."""

    value = 0.0

    def random(self, *args: Any, **kwargs: Any) -> Any:
        size = args[0] if args else kwargs.get("size")
        return self.value if size is None else np.full(size, self.value)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return low + (high - np.asarray(low)) * self.random(size)


@pytest.mark.parametrize("value", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("zeros", [[0], [4], [0, 4], [0, 1, 3, 4], [1, 2, 3], [0, 2, 4]])
def test_a_priority_of_zero_is_never_drawn(zeros: list[int], stratified: bool, value: float) -> None:
    generator = Fixed(np.random.PCG64(0))
    generator.value = value
    buffer = rated([0.0 if k in zeros else 0.3 for k in range(5)], stratified=stratified, seed=generator)
    for size in (1, 3, 5, 64):
        assert not set(buffer.sample(size).keys.tolist()) & set(zeros)
    assert buffer.read(zeros).probabilities.tolist() == [0] * len(zeros)


def test_nothing_but_zeros_is_not_ready() -> None:
    buffer = rated([0, 0, 0])
    with pytest.raises(relive.NotReadyError):
        buffer.sample(1)
    assert buffer.get_stats().sampled == 0
    buffer.update_priorities([1], [1e-300])
    assert buffer.sample(4).keys.tolist() == [1] * 4


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 64])
def test_stratified_is_exactly_one_draw_in_each_stratum(size: int) -> None:
    priorities = [3.0, 0.5, 0.5, 2.0, 1.0, 0.0, 1.0, 2.0]
    buffer = rated(priorities)
    edges = np.concatenate([[0.0], np.cumsum(priorities)]) / 10
    for _ in range(50):
        keys = np.sort(buffer.sample_keys(size))
        strata = np.arange(size)
        # The j-th smallest key has an interval that meets the j-th stratum [j / size, (j + 1) / size).
        assert np.all(edges[keys] < (strata + 1) / size + 1e-12)
        assert np.all(edges[keys + 1] > strata / size - 1e-12)


def test_a_stratified_batch_is_shuffled() -> None:
    """So that every part of a batch is a draw from the whole."""
    buffer = rated([1, 1, 1, 1])
    firsts = [int(buffer.sample_keys(4)[0]) for _ in range(2000)]
    testing.assert_frequencies(np.bincount(firsts, minlength=4).tolist(), [0.25] * 4)


@pytest.mark.parametrize(
    ("keys", "priorities", "message"),
    [
        ([0, 1, 2], [5, -1, 5], "^priority of row 1 must be .*, got -1.0$"),
        ([0, 1, 2], [5, 5, float("nan")], "^priority of row 2 must be .*, got nan$"),
        ([0, 1, 2], [float("inf"), 5, 5], "^priority of row 0 must be .*, got inf$"),
        ([0, 1, 2], [5, 5], "priorit"),
        ([0, 1], [5, 5, 5], "priorit"),
        ([0, 1, 2], 5, "priorit"),
        ([0, 1, 2], [[5, 5, 5]], "priorit"),
        ([0, 1, 2], ["a", "b", "c"], "priorit"),
        ([0, 1, 2], [5, 5, 1j], "priorit"),
        ([0, 1, 2], [[5, 5], [5], [5]], "priorit"),
        ([[0, 1], [2]], [5, 5, 5], "keys"),
        ([0.5, 1, 2], [5, 5, 5], "keys"),
        ([True, False, True], [5, 5, 5], "keys"),
        ([0, 1, 2**70], [5, 5, 5], "keys"),
        (["0", "1", "2"], [5, 5, 5], "keys"),
    ],
)
def test_a_wrong_update_is_refused_and_nothing_is_half_applied(keys: Any, priorities: Any, message: str) -> None:
    buffer = rated([1, 2, 3])
    before = buffer.read([0, 1, 2]).probabilities.tolist()
    with pytest.raises(ValueError, match=message):
        buffer.update_priorities(keys, priorities)
    assert buffer.get_priorities([0, 1, 2]).tolist() == [1, 2, 3]
    assert buffer.read([0, 1, 2]).probabilities.tolist() == before
    assert buffer.get_stats().stale_keys == 0
    assert buffer.get_priorities([buffer.add(9, 9, 0.0, 10)]).tolist() == [3]
    buffer.check()


def test_a_wrong_priority_of_a_dead_key_is_refused_too() -> None:
    buffer = rated([1, 2, 3])
    with pytest.raises(ValueError, match="^priority of row 1 must be"):
        buffer.update_priorities([0, 1000], [5, -1])
    assert buffer.get_stats().stale_keys == 0
    assert buffer.get_priorities([0]).tolist() == [1]


class Tensor:
    """An object of another library with `__array__`."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return self.array if dtype is None else self.array.astype(dtype)


def readonly(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("keys", "priorities"),
    [
        ([0, 1, 2], [4, 5, 6]),
        ((0, 1, 2), (4.0, 5.0, 6.0)),
        (np.arange(3, dtype=np.int32), np.array([[4.0], [5.0], [6.0]])),
        (np.arange(3, dtype=np.uint8), readonly(np.array([4.0, 5.0, 6.0]))),
        (readonly(np.arange(3)), np.array([4, 5, 6], np.float16)),
        (np.arange(6)[::2] // 2, np.array([6, 5, 4], np.int8)[::-1]),
        (Tensor(np.arange(3)), Tensor(np.array([[4], [5], [6]], np.float32))),
    ],
)
def test_updates_take_anything_that_is_an_array(keys: Any, priorities: Any) -> None:
    buffer = rated([1, 2, 3])
    assert buffer.update_priorities(keys, priorities) == 3
    assert buffer.get_priorities([0, 1, 2]).tolist() == [4, 5, 6]


def test_a_batch_of_one_may_be_of_shape_one_one() -> None:
    buffer = rated([1, 2, 3])
    assert buffer.update_priorities(np.array([1]), np.array([[9.0]])) == 1
    assert buffer.get_priorities([1]).shape == (1,)
    assert buffer.get_priorities([1]).tolist() == [9]


def test_the_last_of_two_priorities_of_a_key_wins() -> None:
    buffer = rated([1, 2, 3])
    buffer.update_priorities([1, 0, 1, 1, 0], [10, 20, 30, 5, 7])
    assert buffer.get_priorities([0, 1, 2]).tolist() == [7, 5, 3]
    assert buffer.read([0, 1, 2]).probabilities.tolist() == pytest.approx([7 / 15, 5 / 15, 3 / 15], rel=1e-15)
    buffer.check()


def test_a_late_priority_is_dropped_and_counted() -> None:
    buffer = rated([1, 2, 3])
    drawn = np.array([0, 1, 2])
    assert buffer.add(9, 9, 0.0, 10) == 3
    assert buffer.update_priorities(drawn, [50, 60, 70]) == 2
    assert buffer.get_stats().stale_keys == 1
    assert buffer.get_priorities([1, 2, 3]).tolist() == [60, 70, 3]
    with pytest.raises(relive.UnknownKeyError):
        buffer.get_priorities([0])


def test_a_late_priority_does_not_raise_the_maximum() -> None:
    """An evicted row has no priority."""
    buffer = rated([1, 2, 3])
    buffer.add(9, 9, 0.0, 10)
    buffer.update_priorities([0], [1000])
    assert buffer.get_priorities([buffer.add(10, 9, 0.0, 11)]).tolist() == [3]


def test_two_draws_before_one_update_both_land() -> None:
    buffer = rated([1, 2, 3, 4])
    first, second = buffer.sample(8), buffer.sample(8)
    assert buffer.update_priorities(second.keys, second.keys + 10.0) == 8
    assert buffer.update_priorities(first.keys, first.keys + 20.0) == 8
    expected = {k: k + 1.0 for k in range(4)}
    expected |= {int(k): k + 10.0 for k in second.keys} | {int(k): k + 20.0 for k in first.keys}
    assert buffer.get_priorities(range(4)).tolist() == list(expected.values())


@pytest.mark.parametrize("key", [-1, 3, 10**15, np.uint64(2**63)])
def test_priorities_of_keys_never_given_out_are_refused(key: Any) -> None:
    buffer = rated([1, 2, 3])
    rule = "^keys must be those of batches, below 3, the number of steps added so far, got -?[0-9]+, which was never"
    with pytest.raises(errors.ArgumentError, match=rule):
        buffer.update_priorities(np.array([1, key], np.asarray(key).dtype), [5, 5])
    assert buffer.get_stats().stale_keys == 0
    assert buffer.get_priorities([0, 1, 2]).tolist() == [1, 2, 3]
    buffer.clear()
    assert buffer.update_priorities([1], [5]) == 0
    with pytest.raises(errors.ArgumentError, match=rule):
        buffer.update_priorities([key], [5])
    assert buffer.get_stats().stale_keys == 1


def test_a_row_not_eligible_yet_keeps_the_priority_it_is_given() -> None:
    buffer = rated([1, 2, 3], capacity=10)
    key = buffer.add(9, 9, 0.0)
    assert buffer.update_priorities([key], [6]) == 1
    assert buffer.read([0, 1, 2]).probabilities.tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    buffer.add(10, 9, 0.0)
    assert buffer.read([0, 1, 2, key]).probabilities.tolist() == pytest.approx([1 / 12, 2 / 12, 3 / 12, 6 / 12])


def test_a_barred_row_comes_back_with_its_priority() -> None:
    buffer = rated([1, 2, 3])
    assert buffer.set_eligible([2], False) == 1
    assert buffer.read([0, 1]).probabilities.tolist() == pytest.approx([1 / 3, 2 / 3])
    buffer.update_priorities([2], [7])
    assert buffer.eligible_keys().tolist() == [0, 1]
    assert set(buffer.sample(50).keys.tolist()) == {0, 1}
    buffer.set_eligible([2], True)
    assert buffer.read([0, 1, 2]).probabilities.tolist() == pytest.approx([0.1, 0.2, 0.7])


def test_alpha_too_large_for_a_priority_is_an_error_and_changes_nothing() -> None:
    buffer = rated([1, 2, 3], alpha=10.0)
    with pytest.raises(ValueError, match="priorit"):
        buffer.update_priorities([0, 1], [5, 1e200])
    assert buffer.get_priorities([0, 1, 2]).tolist() == [1, 2, 3]
    buffer.check()


@pytest.mark.parametrize("why", ["lazy", "barred"])
def test_alpha_too_large_for_the_priority_of_an_ineligible_row_is_an_error_too(why: str) -> None:
    """It is refused when it is passed, not by a later call that has already changed something."""
    buffer = relive.PrioritizedReplayBuffer(10, alpha=10.0, epsilon=0.0)
    key = buffer.add(0, 0, 0.0, None if why == "lazy" else 1)
    if why == "barred":
        buffer.set_eligible([key], False)
    with pytest.raises(ValueError, match="priorit"):
        buffer.update_priorities([key], [1e200])
    assert buffer.get_priorities([key]).tolist() == [1.0]
    buffer.add(1, 0, 0.0)
    buffer.set_eligible([key], True)
    buffer.check()


def test_an_alpha_too_large_for_what_is_stored_is_refused_and_changes_nothing() -> None:
    buffer = rated([1e200, 1, 2])
    before = buffer.read([0, 1, 2]).probabilities.tolist()
    with pytest.raises(ValueError, match="must be"):
        buffer.sampler.alpha = 10.0  # type: ignore[attr-defined]
    assert buffer.sampler.alpha == 1.0  # type: ignore[attr-defined]
    assert buffer.read([0, 1, 2]).probabilities.tolist() == before
    buffer.check()


def test_an_alpha_too_large_for_what_new_rows_would_get_is_refused_too() -> None:
    """_LazyModule an innocent `add` would have to refuse the row that it has written already."""
    buffer = rated([1, 1, 1], capacity=10)
    buffer.update_priorities([0], [1e200])
    buffer.update_priorities([0], [1])
    with pytest.raises(ValueError, match="must be"):
        buffer.sampler.alpha = 10.0  # type: ignore[attr-defined]
    buffer.add(9, 9, 9.0, 10)
    buffer.check()


def test_an_epsilon_that_no_row_can_be_weighed_with_is_refused() -> None:
    with pytest.raises(ValueError, match="epsilon"):
        relive.PrioritizedReplayBuffer(10, alpha=10.0, epsilon=1e100)


@pytest.mark.parametrize(("normalization", "weight"), [("none", 1 / 1.6), ("buffer", 0.25), ("batch", 1.0)])
@pytest.mark.parametrize("most", [None, 1])
def test_the_weight_of_a_row_that_retires_is_that_of_its_draw(normalization: str, weight: float, most: Any) -> None:
    """N and the smallest probability are those at the time of the draw, not those of the rows that are left."""
    settings = {"weight_normalization": normalization, "max_times_sampled": most}
    batches = (rated([1, 2, 3, 4], seed=seed, **settings).sample(1) for seed in range(40))
    batch = next(batch for batch in batches if batch.keys[0] == 3)
    assert batch.probabilities.tolist() == [0.4]
    assert batch.weights.tolist() == pytest.approx([weight], rel=1e-12)


@pytest.mark.parametrize("normalization", ["none", "buffer", "batch"])
def test_the_weights_of_the_last_rows_that_retire_are_finite(normalization: str) -> None:
    batch = rated([1, 2, 3, 4], weight_normalization=normalization, max_times_sampled=1).sample(4)
    assert sorted(batch.keys.tolist()) == [0, 1, 2, 3]
    assert np.isfinite(batch.weights).all()
    assert batch.weights.min() > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": -0.1},
        {"alpha": float("nan")},
        {"alpha": "big"},
        {"beta": -1},
        {"beta": float("inf")},
        {"beta": "linear"},
        {"epsilon": -1e-9},
        {"epsilon": float("nan")},
        {"weight_normalization": "max"},
        {"new_priority": "mean"},
    ],
)
def test_settings_that_break_their_rule_name_themselves(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        relive.PrioritizedReplayBuffer(10, **wrong)


@pytest.mark.parametrize("make", [zoo.COLUMNS["prioritized"], zoo.COLUMNS["prioritized sequences"]])
def test_priorities_of_minus_zero_are_saved_as_zero(make: zoo.Make) -> None:
    buffer = zoo.worked(make)
    keys = buffer.eligible_keys()[:2]
    buffer.update_priorities(keys, [-0.0, 1.0])
    assert not np.signbit(buffer.get_priorities(keys)).any()
    zoo.assert_same(buffer, type(buffer).from_state(buffer.state_dict()))
