import decimal
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors
from relive.kernels import append
from relive.samplers import prioritized
from relive.samplers import sampler_test

FOUR = np.arange(4)
ONE_TO_FOUR = np.array([1.0, 2.0, 3.0, 4.0])


def attached(capacity: int = 4, **settings: Any) -> relive.PrioritizedSampler:
    """Return a sampler with an anchor in each of four slots."""
    sampler = relive.PrioritizedSampler(**{"epsilon": 0.0, **settings})
    sampler_test.attached(sampler, FOUR.tolist(), capacity)
    return sampler


def rated(**settings: Any) -> relive.PrioritizedSampler:
    """Return a sampler whose four anchors have the priorities 1, 2, 3, 4."""
    sampler = attached(**settings)
    sampler._set_priorities(FOUR, ONE_TO_FOUR)
    return sampler


@pytest.mark.parametrize("normalization", ["batch", "buffer", "none"])
def test_a_batch_of_nothing_likely_has_no_weights(normalization: Any) -> None:
    sampler = attached(weight_normalization=normalization)
    for priority in (0.0, 1.0):
        sampler._set_priorities(FOUR[2:], np.full(2, priority))
        sampler._set_priorities(FOUR[:2], np.zeros(2))
        assert sampler.importance_weights(FOUR[:2], np.zeros(2), 0.4).tolist() == [0.0, 0.0]


def test_only_rows_above_0_are_drawable_and_zeros_weigh_nothing() -> None:
    sampler = rated()
    sampler._set_priorities(FOUR[1:2], np.zeros(1))
    assert sampler.drawable().tolist() == [0, 2, 3]
    sampler._set_priorities(FOUR, np.zeros(4))
    assert sampler.probabilities(FOUR).tolist() == [0.0] * 4
    assert not sampler.can_draw()
    with pytest.raises(errors.NotReadyError, match="^every eligible priority weighs 0: update_priorities first$"):
        sampler.draw(1, np.random.default_rng(0))


def test_with_alpha_0_only_a_priority_of_0_is_never_drawn() -> None:
    sampler = rated(alpha=0.0)
    sampler._set_priorities(np.array([1]), np.array([0.0]))
    assert sampler.probabilities(FOUR) == pytest.approx([1 / 3, 0.0, 1 / 3, 1 / 3])
    with_epsilon = rated(alpha=0.5, epsilon=0.25)
    with_epsilon._set_priorities(FOUR, np.array([0.0, 0.75, 2.0, 3.75]))
    assert with_epsilon.probabilities(FOUR) == pytest.approx(np.array([0.5, 1.0, 1.5, 2.0]) / 5)


def test_check_finds_a_wrong_weight() -> None:
    sampler = rated()
    sampler._current_tree.set([1], [7.0])
    with pytest.raises(
        errors.CorruptionError, match="^the sum tree does not hold the weights of the eligible anchors$"
    ):
        sampler.check()


def test_the_defaults_are_those_of_the_paper() -> None:
    sampler = attached(epsilon=1e-6)
    assert (sampler.alpha, sampler.beta) == (0.6, 0.4)
    default = relive.PrioritizedSampler()
    sampler_test.attached(default, [0, 1], 2)
    default._set_priorities(np.arange(2), np.array([0.0, 1.0]))
    expected = np.array([1e-6, 1.0 + 1e-6]) ** 0.6
    assert default.probabilities(np.arange(2)).tolist() == (expected / expected.sum()).tolist()
    default._set_priorities(np.arange(2), np.array([1.0, 1.0]))
    for seed in range(20):
        assert sorted(default.draw(2, np.random.default_rng(seed))[0].tolist()) == [0, 1], "one draw in each half"


@pytest.mark.parametrize("settings", [{}, {"alpha": 0.0}, {"epsilon": 0.25, "alpha": 2.0}])
@pytest.mark.parametrize("streams", [1, 3, 9])
@pytest.mark.filterwarnings("ignore::relive.errors.MisuseWarning")
def test_what_a_buffer_weighs_equals_naive_dicts(streams: int, settings: dict[str, Any]) -> None:
    """Row by row and round by round; rows that are rated wait for it, and rows that go are forgotten."""
    rng = np.random.default_rng(streams)
    capacity = 3 * streams + 1
    buffer = relive.PrioritizedReplayBuffer(capacity, streams=streams, seed=0, **settings)
    sampler = buffer.sampler
    assert isinstance(sampler, relive.PrioritizedSampler)
    raw: dict[int, float] = {}
    barred: set[int] = set()
    largest, alpha, epsilon = 1.0, settings.get("alpha", 0.6), settings.get("epsilon", 1e-6)
    for t in range(300):
        change = rng.integers(6)
        before = buffer.appended
        stored = range(before - len(buffer), before)
        if change == 0 and len(buffer):
            keys, priorities = rng.choice(stored, 3), np.round(rng.random(3) * 8) / 4
            buffer.update_priorities(keys, priorities)
            raw |= dict(zip(keys.tolist(), priorities.tolist(), strict=True))
            largest = max(largest, *(raw[key] for key in keys.tolist()))
        elif change == 1 and len(buffer):
            keys, is_eligible = rng.choice(stored, 2).tolist(), bool(rng.random() < 0.6)
            buffer.set_eligible(keys, is_eligible)
            barred = barred - {*keys} if is_eligible else barred | {*keys}
        elif change == 2 and rng.random() < 0.2:
            sampler.alpha = alpha = float(rng.integers(3)) / 2
        elif change >= 3:
            zeros, following = np.zeros(streams), np.full(streams, t + 1.0) if rng.random() < 0.6 else None
            now = np.full(streams, float(t))
            count = streams if change == 3 else 1
            surplus = max(len(buffer) + count - capacity, 0)
            gone = range(before - len(buffer), before - len(buffer) + surplus)
            if change == 3:
                buffer.extend(now, zeros, zeros, following)
            else:
                stream = int(rng.integers(streams))
                buffer.add(float(t), 0.0, 0.0, None if following is None else t + 1.0, stream=stream)
            raw = {key: priority for key, priority in raw.items() if key not in gone}
            barred -= {*gone}
        eligible = buffer.eligible_keys().tolist()
        for key in eligible:
            assert key not in barred
            raw.setdefault(key, largest)
        stored = range(buffer.appended - len(buffer), buffer.appended)
        assert buffer.get_priorities(stored).tolist() == [raw.get(key, largest) for key in stored]
        weights = np.zeros(capacity)
        slots = [key % capacity for key in eligible]
        sums = np.array([raw[key] + epsilon for key in eligible])
        weights[slots] = sums**alpha * (sums > 0)
        assert sampler._current_tree.get(np.arange(capacity)).tolist() == weights.tolist()
        buffer.check()


class Heard(relive.PrioritizedSampler):
    """Records the added slots."""

    def _attached(self, capacity: int) -> None:
        self.heard: list[int] = []

    def _added(self, slots: Any) -> None:
        super()._added(slots)
        self.heard += slots.tolist()


def test_a_subclass_is_told_of_added_rows() -> None:
    sampler = Heard(epsilon=0.0)
    buffer = relive.RingReplayBuffer(4, sampler=sampler, seed=0)
    for t in range(3):
        buffer.add(t, 0, 0.0, t + 1 if t != 1 else None)
    assert sampler.heard == [0, 1, 2]
    buffer.set_eligible([0], False)
    buffer.set_eligible([0], True)
    assert sampler.heard[-1] == 0
    assert sampler.probabilities(np.arange(4)).tolist() == [1 / 3, 1 / 3, 1 / 3, 0.0]
    buffer.check()


def state_of_three(**settings: Any) -> dict[str, Any]:
    """The state of a buffer of three rows: priorities 2 and 1, and one that waits for its next observation."""
    buffer = relive.PrioritizedReplayBuffer(4, seed=0, **settings)
    keys = [buffer.add([0.0], 0, 0.0, [0.0] if t < 2 else None) for t in range(3)]
    buffer.update_priorities(keys[:1], [2.0])
    state: dict[str, Any] = buffer.state_dict()
    return state


def test_barred_rows_keep_their_priority_and_weigh_nothing() -> None:
    for waits in (False, True):  # Where each row has a priority, and where one has none.
        buffer = relive.PrioritizedReplayBuffer(4, seed=0, alpha=1.0)
        keys = [buffer.add([0.0], 0, 0.0, None if waits and t == 2 else [0.0]) for t in range(3)]
        buffer.update_priorities(keys[:2], [2.0, 3.0])
        buffer.set_eligible(keys[0], False)
        loaded = relive.PrioritizedReplayBuffer.from_state(buffer.state_dict())
        loaded.check()
        assert loaded.get_priorities(keys[:2]).tolist() == [2.0, 3.0]
        assert loaded.sampler._tree.total == buffer.sampler._tree.total > 0


def test_unrated_rows_are_saved_as_nan() -> None:
    state = state_of_three()
    priorities = state["arrays"]["sampler/priorities"]
    assert priorities[:2].tolist() == [2.0, 1.0]
    assert np.isnan(priorities[2])
    assert state["sampler"] == {"ticks": 0, "running_maximum": 2.0}


def test_impossible_states_of_priorities_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], list[float], str]] = [
        ({}, [2.0, -1.0, np.nan], "^array sampler/priorities must hold finite numbers of at least 0, and NaN$"),
        ({}, [2.0, np.inf, np.nan], "^array sampler/priorities must hold finite numbers of at least 0, and NaN$"),
        ({}, [2.0, -0.0, np.nan], "^array sampler/priorities must hold finite numbers of at least 0, and NaN$"),
        ({}, [2.5, 1.0, np.nan], "^array sampler/priorities must hold at most running_maximum = 2.0$"),
        ({}, [2.0, np.nan, 1.0], "^array sampler/priorities must hold a number for each eligible anchor$"),
        ({}, [2.0, 1.0], "^array sampler/priorities must be of dtype float64 and shape"),
        ({"running_maximum": 0.5}, [0.0, 0.0, 0.0], "^sampler/running_maximum must be a finite float of at least 1.0"),
        ({"running_maximum": 1e200}, [2.0, 1.0, 1.0], "^sampler cannot be as it was: priority of row 0 "),
        ({"running_maximum": 1e200}, [2.0, 1e190, 1.0], "^sampler cannot be as it was: priority of row 1 "),
        ({"ticks": -1}, [2.0, 1.0, 1.0], "^sampler/ticks must be an integer in"),
    ]
    for values, priorities, message in cases:
        with subtests.test(message):
            state = state_of_three(alpha=2.0)
            state["sampler"].update(values)
            state["arrays"]["sampler/priorities"] = np.array(priorities)
            with pytest.raises(errors.CheckpointError, match=message):
                relive.PrioritizedReplayBuffer.from_state(state)


def test_a_restored_sampler_gives_new_rows_what_the_other_gives() -> None:
    state = state_of_three()
    buffer = relive.PrioritizedReplayBuffer.from_state(state)
    key = buffer.add([0.0], 0, 0.0, [0.0])
    assert buffer.get_priorities([key]).tolist() == [2.0]
    buffer.check()
    state["arrays"]["sampler/priorities"][:] = 0.0
    zeros = relive.PrioritizedReplayBuffer.from_state(state)
    key = zeros.add([0.0], 0, 0.0, [0.0])
    assert zeros.get_priorities([key]).tolist() == [2.0]
    zeros.check()


def test_a_wrong_exponent_is_refused() -> None:
    wrong: tuple[tuple[relive.PrioritizedSampler, float | None, str], ...] = (
        (rated(), -1.0, "^beta must be at least 0, got -1.0$"),
        (rated(beta=relive.LinearSchedule(-1.0, 1.0, 5)), None, "^beta must be at least 0, got -1.0$"),
    )
    for sampler, beta, rule in wrong:
        with pytest.raises(errors.ArgumentError, match=rule):
            sampler.importance_weights(FOUR, np.ones(4), beta)
    assert rated().importance_weights(FOUR[:0], np.zeros(0), 0.5).tolist() == []


# Importance weights of priorities that are far apart.

EXTREME = [5e-324, 3e-310, 1e-200, 0.5, 1.0, 1.5, 1e200, 1.7e307]
NORMALIZATIONS: list[prioritized.WeightNormalization] = ["batch", "buffer", "none"]


def exact_weights(masses: list[float], keys: list[int], beta: float, normalization: str) -> list[decimal.Decimal]:
    """Return the weights (N P)^-beta of some rows, with 40 digits; infinite if far beyond float64."""
    with decimal.localcontext(decimal.Context(prec=40, traps=[])):
        of_rows = [*map(decimal.Decimal, masses)]
        units = {"batch": min(of_rows[key] for key in keys), "buffer": min(of_rows)}
        unit = units.get(normalization, sum(of_rows, start=decimal.Decimal(0)) / len(of_rows))
        return [(-decimal.Decimal(beta) * (of_rows[key] / unit).ln()).exp() for key in keys]


@hypothesis.given(
    st.lists(st.sampled_from(EXTREME), min_size=1, max_size=5),
    st.one_of(st.sampled_from([0.0, 1e-3, 0.4, 1.0, 2.5, 40.0, 1e308]), st.floats(0.0, 5.0)),
    st.sampled_from(NORMALIZATIONS),
    st.data(),
)
def test_weights_are_exact_however_far_apart_priorities_are(
    priorities: list[float], beta: float, normalization: prioritized.WeightNormalization, data: st.DataObject
) -> None:
    """With "none" a weight that float64 cannot hold is refused; the others are at most 1."""
    settings: Any = {"alpha": 1.0, "epsilon": 0.0, "weight_normalization": normalization}
    buffer = relive.PrioritizedReplayBuffer(len(priorities), seed=0, **settings)
    keys = buffer.add_episode(range(len(priorities) + 1), priorities, np.zeros(len(priorities)), terminated=True)
    buffer.update_priorities(keys, priorities)
    chosen = data.draw(st.lists(st.sampled_from(keys.tolist()), min_size=1, max_size=6))
    for of_batch in (chosen, keys.tolist()):
        expected = exact_weights(priorities, of_batch, beta, normalization)
        if max(expected) > 1.7e308:
            with pytest.raises(errors.ArgumentError, match="^beta must be smaller, or importance weights overflow, "):
                buffer.read(of_batch, beta=beta)
        else:
            weights = buffer.read(of_batch, beta=beta).weights
            assert weights.tolist() == pytest.approx([*map(float, expected)], rel=1e-12, abs=1e-323)
    drawn = [buffer.sample(3, beta=min(beta, 2.0)).weights for _ in range(2)]
    assert np.isfinite(drawn).all()
    if normalization != "none":
        assert buffer.read(keys.tolist(), beta=beta).weights.max() == 1.0
        assert max(map(np.max, drawn)) <= 1.0


@pytest.mark.parametrize(
    ("normalization", "expected"),
    [("none", [3**-0.3, 2**-0.3, 1.0]), ("batch", [3**-0.3, 2**-0.3, 1.0]), ("buffer", [1e-120, 1e-60, 1.0])],
)
def test_weights_of_draws_in_rounds_are_exact_too(normalization: str, expected: list[float]) -> None:
    """The heaviest of the rows that are left is drawn in each round, with probability 1."""
    options: Any = {"alpha": 1.0, "epsilon": 0.0, "beta": 0.3, "weight_normalization": normalization}
    buffer = relive.PrioritizedReplayBuffer(3, max_times_sampled=1, stratified=False, seed=0, **options)
    keys = buffer.add_episode(range(4), range(3), range(3), terminated=True)
    buffer.update_priorities(keys, [1e-200, 1.0, 1e200])
    batch = buffer.sample(3)
    assert batch.keys.tolist() == [2, 1, 0]
    assert batch.weights.tolist() == pytest.approx(expected, rel=1e-12)


def test_a_priority_that_overflows_with_epsilon_is_refused() -> None:
    with pytest.raises(errors.ArgumentError, match="^priority of row 0 must be smaller with alpha = 0.5, got 1.7e"):
        attached(epsilon=1e308, alpha=0.5)._set_priorities(FOUR[:1], np.array([1.7e308]))


def test_an_eligible_row_without_a_priority_is_noticed() -> None:
    buffer = relive.PrioritizedReplayBuffer(4, seed=0)
    buffer.add(0, 0, 0.0, 1)
    buffer.sample(1)
    buffer.sampler.anchors.flags[0] |= append.FRESH
    with pytest.raises(errors.CorruptionError, match="^an eligible anchor has no priority$"):
        buffer.check()


def test_a_loaded_state_is_saved_as_it_was() -> None:
    buffer = relive.PrioritizedReplayBuffer(4, seed=0)
    keys = buffer.add_episode(range(4), range(3), [0.0] * 3, terminated=True)
    buffer.update_priorities(keys, [1.0, 2.0, 3.0])
    loaded = relive.PrioritizedReplayBuffer.from_state(buffer.state_dict())
    found = loaded.state_dict()["arrays"]["sampler/priorities"].tolist()
    assert found == [1.0, 2.0, 3.0]
