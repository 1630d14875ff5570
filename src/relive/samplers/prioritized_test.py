from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive import testing
from relive.kernels import append
from relive.samplers import anchors_test

FOUR = np.arange(4)
ONE_TO_FOUR = np.array([1.0, 2.0, 3.0, 4.0])


def attached(capacity: int = 4, **settings: Any) -> relive.PrioritizedSampler:
    """Return a sampler with an anchor in each of four slots."""
    sampler = relive.PrioritizedSampler(**{"epsilon": 0.0, **settings})
    anchors = anchors_test.made(capacity)
    sampler.attach(anchors)
    sampler.added(anchors.set(append.READABLE, FOUR)[0])
    return sampler


def overwrite(sampler: relive.PrioritizedSampler, slots: Any) -> None:
    """Overwrite `slots` with new rows."""
    slots = np.asarray(slots)
    sampler.removed(sampler.anchors.set(append.BARRED, slots)[1])
    sampler.anchors.facts[slots] = append.NO_LINK
    sampler.unweigh(slots)


def weights_of(sampler: relive.PrioritizedSampler, probabilities: Any, beta: float | None = None) -> Any:
    """Return the weights of a batch of those probabilities."""
    return sampler.weights(sampler.importance(probabilities), beta)


def rated(**settings: Any) -> relive.PrioritizedSampler:
    """Return a sampler whose four anchors have the priorities 1, 2, 3, 4."""
    sampler = attached(**settings)
    sampler.set_priorities(FOUR, ONE_TO_FOUR)
    return sampler


@pytest.mark.parametrize(
    ("alpha", "beta", "probabilities", "weights"),
    [
        (1.0, 1.0, [0.1, 0.2, 0.3, 0.4], [1.0, 0.5, 1 / 3, 0.25]),
        (1.0, 0.5, [0.1, 0.2, 0.3, 0.4], [1.0, 0.707107, 0.577350, 0.5]),
        (0.6, 0.4, [0.148230, 0.224674, 0.286555, 0.340542], [1.0, 0.846745, 0.768229, 0.716978]),
        (0.0, 0.7, [0.25] * 4, [1.0] * 4),
        (0.9, 0.0, None, [1.0] * 4),
    ],
)
def test_the_analytic_table(alpha: float, beta: float, probabilities: list[float] | None, weights: list[float]) -> None:
    sampler = rated(alpha=alpha, beta=beta)
    found = sampler.probabilities(FOUR)
    if probabilities is not None:
        assert found == pytest.approx(probabilities, abs=1e-6)
    assert weights_of(sampler, found) == pytest.approx(weights, abs=1e-6)
    sampler.check()


@pytest.mark.parametrize(
    ("normalization", "weights"), [("batch", [1.0, 0.75]), ("buffer", [1 / 3, 0.25]), ("none", [5 / 6, 0.625])]
)
def test_weights_are_divided_as_asked(normalization: Any, weights: list[float]) -> None:
    sampler = rated(alpha=1.0, beta=1.0, weight_normalization=normalization)
    assert weights_of(sampler, sampler.probabilities(np.array([2, 3]))) == pytest.approx(weights)
    assert weights_of(sampler, sampler.probabilities(np.array([2, 3])), 0.0).tolist() == [1.0, 1.0]


def test_n_counts_the_eligible_anchors_and_weights_undo_the_priorities() -> None:
    sampler = rated(alpha=1.0, beta=1.0, weight_normalization="none")
    values = np.array([5.0, -3.0, 7.0, 11.0])
    probabilities = sampler.probabilities(FOUR)
    assert np.sum(probabilities * weights_of(sampler, probabilities) * values) == pytest.approx(
        values.mean(), abs=1e-15
    )
    sampler.removed(sampler.anchors.set(append.BARRED, np.array([3]))[1])
    assert weights_of(sampler, sampler.probabilities(FOUR)) == pytest.approx([2.0, 1.0, 2 / 3, 0.0])
    assert weights_of(sampler, np.zeros(2)).tolist() == [0.0, 0.0]


def test_a_batch_of_nothing_likely_has_no_weights() -> None:
    sampler = rated(weight_normalization="batch")
    assert weights_of(sampler, np.zeros(2)).tolist() == [0.0, 0.0]


def test_beta_follows_its_schedule_one_tick_a_draw() -> None:
    sampler = rated(beta=relive.LinearSchedule(0.4, 1.0, 100_000))
    assert sampler.beta == 0.4
    for _ in range(11):
        sampler.drawn()
    assert sampler.beta == pytest.approx(0.400066, abs=1e-12)
    assert rated(beta=0.3).beta == 0.3
    before = weights_of(sampler, np.array([0.1, 0.2]))
    assert before == pytest.approx([1.0, 2**-0.400066])


def test_a_new_row_gets_the_largest_raw_priority_so_far_for_any_alpha() -> None:
    for alpha in (0.0, 0.6, 1.0, 2.0):
        sampler = rated(alpha=alpha)
        sampler.set_priorities(np.array([1]), np.array([100.0]))
        sampler.set_priorities(np.array([1]), np.array([2.0]))
        overwrite(sampler, [0])
        assert sampler.probabilities(np.array([0])).tolist() == [0.0]
        sampler.added(sampler.anchors.set(append.READABLE, np.array([0]))[0])
        assert sampler.priorities(FOUR).tolist() == [100.0, 2.0, 3.0, 4.0]
        sampler.check()


def test_new_rows_start_at_1_and_lower_ratings_do_not_lower_them() -> None:
    sampler = attached(capacity=5)
    assert sampler.priorities(np.arange(5)).tolist() == [1.0] * 5
    sampler.set_priorities(FOUR, np.full(4, 0.01))
    assert sampler.priorities(np.arange(5)).tolist() == [0.01] * 4 + [1.0]


def test_the_live_maximum_forgets_what_was_overwritten() -> None:
    sampler = attached(capacity=5, new_priority="live")
    assert sampler.priorities(np.arange(5)).tolist() == [1.0] * 5
    sampler.set_priorities(FOUR, np.array([100.0, 0.5, 0.25, 0.125]))
    assert sampler.priorities(np.array([4])).tolist() == [100.0]
    overwrite(sampler, [0])
    assert sampler.priorities(np.array([4])).tolist() == [0.5]
    overwrite(sampler, FOUR[1:])
    sampler.check()
    assert sampler.priorities(np.array([4])).tolist() == [1.0]
    sampler.check()
    sampler.set_priorities(np.array([4]), np.array([0.0]))
    assert sampler.priorities(np.array([4, 0])).tolist() == [0.0, 1.0]
    sampler._weights.raw[4] = 2.0
    with pytest.raises(errors.CorruptionError, match="^the tree of raw priorities does not hold them$"):
        sampler.check()


def test_a_live_maximum_that_is_too_large_is_refused_and_changes_nothing() -> None:
    sampler = attached(alpha=0.5, new_priority="live")
    with pytest.raises(errors.ArgumentError, match="1e[+]308"):
        sampler.set_priorities(np.array([0]), np.array([1e308]))
    assert sampler.priorities(FOUR).tolist() == [1.0] * 4
    sampler.check()


def test_a_row_that_is_not_eligible_keeps_its_rating_for_when_it_is() -> None:
    sampler = rated(alpha=1.0)
    sampler.removed(sampler.anchors.set(append.BARRED, np.array([2]))[1])
    assert sampler.probabilities(FOUR) == pytest.approx([1 / 7, 2 / 7, 0.0, 4 / 7])
    sampler.set_priorities(np.array([2]), np.array([13.0]))
    assert sampler.probabilities(FOUR) == pytest.approx([1 / 7, 2 / 7, 0.0, 4 / 7])
    sampler.check()
    sampler.added(sampler.anchors.unset(append.BARRED, np.array([2]))[0])
    assert sampler.probabilities(FOUR) == pytest.approx([0.05, 0.1, 0.65, 0.2])


@pytest.mark.parametrize("first", [0.0, 0.5])
def test_another_alpha_in_mid_run_equals_a_fresh_sampler(first: float) -> None:
    sampler, fresh = rated(alpha=first), rated(alpha=0.8)
    sampler.removed(sampler.anchors.set(append.BARRED, np.array([3]))[1])
    sampler.alpha = 0.8
    sampler.added(sampler.anchors.unset(append.BARRED, np.array([3]))[0])
    assert sampler.alpha == 0.8
    assert sampler.probabilities(FOUR).tolist() == fresh.probabilities(FOUR).tolist()
    unattached = relive.PrioritizedSampler()
    unattached.alpha = 0.2
    assert unattached.alpha == 0.2


def test_the_last_of_two_ratings_of_one_row_wins() -> None:
    sampler = rated(alpha=1.0)
    sampler.set_priorities(np.array([0, 1, 0]), np.array([9.0, 2.0, 3.0]))
    assert sampler.priorities(FOUR).tolist() == [3.0, 2.0, 3.0, 4.0]
    assert sampler.probabilities(FOUR) == pytest.approx([0.25, 1 / 6, 0.25, 1 / 3])
    sampler.set_priorities(np.zeros(0, np.int64), np.zeros(0))


@pytest.mark.parametrize("stratified", [True, False])
def test_draws_follow_the_weights_and_never_find_a_zero(stratified: bool) -> None:
    sampler = rated(alpha=1.0, stratified=stratified)
    sampler.set_priorities(np.array([1]), np.array([0.0]))
    draw = sampler.draw(4_000, np.random.default_rng(2))
    testing.assert_frequencies(np.bincount(draw.slots, minlength=4).tolist(), [1 / 8, 0.0, 3 / 8, 4 / 8])
    assert draw.probabilities.tolist() == sampler.probabilities(draw.slots).tolist()
    assert sampler.drawable().tolist() == [0, 2, 3]
    if stratified:
        assert sorted(sampler.draw(8, np.random.default_rng(3)).slots.tolist()) == [0, 2, 2, 2, 3, 3, 3, 3]


def test_with_alpha_0_only_a_priority_of_0_is_never_drawn() -> None:
    sampler = rated(alpha=0.0)
    sampler.set_priorities(np.array([1]), np.array([0.0]))
    assert sampler.probabilities(FOUR) == pytest.approx([1 / 3, 0.0, 1 / 3, 1 / 3])
    with_epsilon = rated(alpha=0.5, epsilon=0.25)
    with_epsilon.set_priorities(FOUR, np.array([0.0, 0.75, 2.0, 3.75]))
    assert with_epsilon.probabilities(FOUR) == pytest.approx(np.array([0.5, 1.0, 1.5, 2.0]) / 5)


def test_nothing_but_zeros_is_not_ready() -> None:
    sampler = rated()
    sampler.set_priorities(FOUR, np.zeros(4))
    with pytest.raises(errors.NotReadyError, match="^every eligible priority weighs 0: update_priorities first$"):
        sampler.draw(1, np.random.default_rng(0))
    assert sampler.probabilities(FOUR).tolist() == [0.0] * 4


def test_a_priority_too_large_for_its_weight_is_refused_and_changes_nothing() -> None:
    sampler = rated(alpha=2.0)
    with pytest.raises(errors.ArgumentError, match="^priority of row 1 must be smaller with alpha = 2, got 1e[+]200$"):
        sampler.set_priorities(np.array([0, 1]), np.array([5.0, 1e200]))
    assert sampler.priorities(FOUR).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert sampler.probabilities(FOUR) == pytest.approx(np.array([1, 4, 9, 16]) / 30)
    sampler.set_priorities(np.array([1]), np.array([1e100]))
    with pytest.raises(errors.ArgumentError, match="^priority of row 1 must be smaller with alpha = 4, got 1e[+]100$"):
        sampler.alpha = 4.0
    assert sampler.alpha == 2.0
    sampler.check()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -0.1}, "^alpha must be at least 0, got -0.1$"),
        ({"alpha": True}, "^alpha must be a finite real number, got True$"),
        ({"beta": float("nan")}, "^beta must be a finite real number, got nan$"),
        ({"beta": -1}, "^beta must be at least 0, got -1$"),
        ({"epsilon": float("inf")}, "^epsilon must be a finite real number, got inf$"),
        ({"weight_normalization": "max"}, "^weight_normalization must be 'batch' or 'buffer' or 'none', got 'max'$"),
        ({"new_priority": "mean"}, "^new_priority must be 'running' or 'live', got 'mean'$"),
        ({"stratified": 1}, "^stratified must be True or False, got 1$"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ArgumentError, match=message):
        relive.PrioritizedSampler(**settings)


def test_a_wrong_beta_of_a_call_is_refused() -> None:
    with pytest.raises(errors.ArgumentError, match="^beta must be at least 0, got -0.5$"):
        rated().exponent(-0.5)


def test_check_finds_a_wrong_weight() -> None:
    sampler = rated()
    sampler._weights.tree.set([1], [7.0])
    with pytest.raises(
        errors.CorruptionError, match="^the sum tree does not hold the weights of the eligible anchors$"
    ):
        sampler.check()


def test_the_defaults_are_those_of_the_paper() -> None:
    sampler = attached(epsilon=1e-6)
    assert (sampler.alpha, sampler.beta) == (0.6, 0.4)
    default = relive.PrioritizedSampler()
    anchors = anchors_test.made(2)
    default.attach(anchors)
    default.added(anchors.set(append.READABLE, np.arange(2))[0])
    default.set_priorities(np.arange(2), np.array([0.0, 1.0]))
    expected = np.array([1e-6, 1.0 + 1e-6]) ** 0.6
    assert default.probabilities(np.arange(2)).tolist() == (expected / expected.sum()).tolist()
    default.set_priorities(np.arange(2), np.array([1.0, 1.0]))
    for seed in range(20):
        assert sorted(default.draw(2, np.random.default_rng(seed)).slots.tolist()) == [0, 1], "one draw in each half"


def test_without_strata_draws_are_independent() -> None:
    sampler = attached(stratified=False)
    pairs = {tuple(sampler.draw(2, np.random.default_rng(seed)).slots.tolist()) for seed in range(200)}
    assert (0, 0) in pairs


def test_small_weights_can_be_drawn_as_well() -> None:
    sampler = attached(alpha=1.0)
    sampler.set_priorities(FOUR, np.full(4, 1e-9))
    assert sampler.can_draw()
    assert len(sampler.draw(3, np.random.default_rng(0)).slots) == 3
    sampler.set_priorities(FOUR, np.zeros(4))
    assert not sampler.can_draw()


class Falling(relive.Schedule):
    """Falls below 0."""

    def value(self, tick: int) -> float:
        return 1.0 - tick


def test_a_schedule_that_gives_no_exponent_is_refused() -> None:
    sampler = rated(beta=Falling())
    assert sampler.weights(np.array([1.0, 2.0])).tolist() == [1.0, 0.5]
    sampler.drawn()
    sampler.drawn()
    with pytest.raises(errors.ArgumentError, match="^beta must be at least 0, got -1.0$"):
        sampler.weights(np.array([1.0, 2.0]))


@pytest.mark.parametrize("settings", [{}, {"new_priority": "live"}, {"alpha": 0.0}, {"epsilon": 0.25, "alpha": 2.0}])
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
    is_live = "new_priority" in settings
    for t in range(300):
        top = max(raw.values(), default=0.0) or 1.0 if is_live else largest
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
            if is_live:
                top = max((raw[key] for key in raw if key not in gone), default=0.0) or 1.0
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
            raw.setdefault(key, top)
        stored = range(buffer.appended - len(buffer), buffer.appended)
        first = max(raw.values(), default=0.0) or 1.0 if is_live else largest
        assert buffer.get_priorities(stored).tolist() == [raw.get(key, first) for key in stored]
        weights = np.zeros(capacity)
        slots = [key % capacity for key in eligible]
        sums = np.array([raw[key] + epsilon for key in eligible])
        weights[slots] = sums**alpha * (sums > 0)
        assert sampler._weights.tree.get(np.arange(capacity)).tolist() == weights.tolist()
        buffer.check()


class Heard(relive.PrioritizedSampler):
    """Records the added slots."""

    heard: list[int]

    def _added(self, slots: Any) -> None:
        super()._added(slots)
        self.heard = [*getattr(self, "heard", []), *slots.tolist()]


def test_a_sampler_made_from_this_one_is_told_by_its_own_hook_of_rows_that_are_weighed() -> None:
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


@pytest.mark.parametrize("new_priority", ["running", "live"])
@pytest.mark.parametrize("streams", [1, 9])
def test_hooks_of_its_own_take_nothing_from_the_weights(new_priority: Any, streams: int) -> None:
    own, ours = (
        relive.RingReplayBuffer(40, sampler=sampler, streams=streams, seed=0)
        for sampler in (Heard(new_priority=new_priority), relive.PrioritizedSampler(new_priority=new_priority))
    )
    for t in range(60):
        now = np.full(streams, float(t))
        for buffer in (own, ours):
            buffer.extend(now, now, now, now + 1)
            buffer.update_priorities([buffer.appended - 1 - t % 7], [t % 5])
        if t % 3 == 0:
            assert own.get_priorities([own.appended - 1]).tolist() == ours.get_priorities([own.appended - 1]).tolist()
            assert own.sample(5).probabilities.tolist() == ours.sample(5).probabilities.tolist()
        own.check()


class Wrong(relive.PrioritizedSampler):
    """Draws a slot that is not eligible."""

    def _draw(self, size: int, rng: np.random.Generator) -> Any:
        return super()._draw(size, rng).slots + 4, np.ones(size)


def test_draws_of_a_sampler_made_from_this_one_are_checked() -> None:
    sampler = Wrong()
    anchors = anchors_test.made(9)
    sampler.attach(anchors)
    sampler.added(anchors.set(append.READABLE, FOUR)[0])
    with pytest.raises(errors.SamplerError, match="^_draw must return eligible anchors"):
        sampler.draw(3, np.random.default_rng(0))


def test_an_alpha_that_a_new_row_could_not_have_is_refused() -> None:
    """All rows have lower priorities by now, but the next one gets the largest priority so far."""
    sampler = rated(alpha=1.0)
    sampler.set_priorities(np.array([1]), np.array([1e100]))
    sampler.set_priorities(np.array([1]), np.array([2.0]))
    with pytest.raises(errors.ArgumentError, match="^priority of row 0 must be smaller with alpha = 4, got 1e[+]100$"):
        sampler.alpha = 4.0
    sampler.alpha = 2.0
    overwrite(sampler, [0])
    sampler.added(sampler.anchors.set(append.READABLE, np.array([0]))[0])
    sampler.check()
    assert sampler.priorities(FOUR).tolist() == [1e100, 2.0, 3.0, 4.0]


def test_a_priority_of_minus_zero_is_one_of_zero() -> None:
    sampler = attached()
    sampler.set_priorities(np.array([1]), np.array([-0.0]))
    assert sampler.priorities(np.array([1, 2])).tolist() == [0.0, 1.0]
    sampler.added(np.array([1, 2]))
    assert sampler.priorities(np.array([1, 2])).tolist() == [0.0, 1.0]


def state_of_three(**settings: Any) -> dict[str, Any]:
    """The state of a buffer of three rows: priorities 2 and 1, and one that waits for its next observation."""
    buffer = relive.PrioritizedReplayBuffer(4, seed=0, **settings)
    keys = [buffer.add([0.0], 0, 0.0, [0.0] if t < 2 else None) for t in range(3)]
    buffer.update_priorities(keys[:1], [2.0])
    state: dict[str, Any] = buffer.state_dict()
    return state


def test_what_nobody_rated_is_kept_as_such() -> None:
    state = state_of_three()
    priorities = state["arrays"]["sampler/priorities"]
    assert priorities[:2].tolist() == [2.0, 1.0]
    assert np.isnan(priorities[2])
    assert state["sampler"] == {"ticks": 0, "running_maximum": 2.0}


@pytest.mark.parametrize(
    ("values", "priorities", "message"),
    [
        ({}, [2.0, -1.0, np.nan], "^array sampler/priorities must hold finite numbers of at least 0, and NaN$"),
        ({}, [2.0, np.inf, np.nan], "^array sampler/priorities must hold finite numbers of at least 0, and NaN$"),
        ({}, [2.0, -0.0, np.nan], "^array sampler/priorities must hold finite numbers of at least 0, and NaN$"),
        ({}, [2.5, 1.0, np.nan], "^array sampler/priorities must hold at most running_maximum = 2.0$"),
        ({}, [2.0, np.nan, 1.0], "^array sampler/priorities must hold a number for each eligible anchor$"),
        (
            {},
            [2.0, 1.0],
            "^array sampler/priorities must be of dtype float64 and shape",
        ),
        ({"running_maximum": 0.5}, [0.0, 0.0, 0.0], "^sampler/running_maximum must be a finite float of at least 1.0"),
        (
            {"running_maximum": 1e200},
            [2.0, 1.0, 1.0],
            "^sampler cannot be as it was: priority of row 3 ",
        ),
        (
            {"running_maximum": 1e200},
            [2.0, 1e190, 1.0],
            "^sampler cannot be as it was: priority of row 1 ",
        ),
        ({"ticks": -1}, [2.0, 1.0, 1.0], "^sampler/ticks must be an integer in"),
    ],
)
def test_what_no_sampler_can_be_is_refused(values: dict[str, Any], priorities: list[float], message: str) -> None:
    state = state_of_three(alpha=2.0)
    state["sampler"].update(values)
    state["arrays"]["sampler/priorities"] = np.array(priorities)
    with pytest.raises(errors.CheckpointError, match=message):
        relive.PrioritizedReplayBuffer._loaded(state, {})


@pytest.mark.parametrize("new_priority", ["running", "live"])
def test_a_restored_sampler_gives_new_rows_what_the_other_gives(new_priority: Any) -> None:
    state = state_of_three(new_priority=new_priority)
    buffer = relive.PrioritizedReplayBuffer._loaded(state, {})
    key = buffer.add([0.0], 0, 0.0, [0.0])
    assert buffer.get_priorities([key]).tolist() == [2.0]
    buffer.check()
    state["arrays"]["sampler/priorities"][:] = 0.0
    zeros = relive.PrioritizedReplayBuffer._loaded(state, {})
    key = zeros.add([0.0], 0, 0.0, [0.0])
    assert zeros.get_priorities([key]).tolist() == [2.0 if new_priority == "running" else 1.0]
    zeros.check()


class HalfBeta(relive.PrioritizedSampler):
    """Takes a beta of at most a half."""

    def weights(self, importance: Any, beta: float | None = None) -> Any:
        if beta is not None and beta > 0.5:
            raise errors.ArgumentError(f"beta must be at most 0.5, got {beta}")
        return super().weights(importance, beta)


def test_a_wrong_beta_is_refused_before_anything_is_drawn_whoever_weighs() -> None:
    wrong: tuple[tuple[relive.PrioritizedSampler, float | None, str], ...] = (
        (rated(), -1.0, "^beta must be at least 0, got -1.0$"),
        (rated(beta=relive.LinearSchedule(-1.0, 1.0, 5)), None, "^beta must be at least 0, got -1.0$"),
        (HalfBeta(), 0.6, "^beta must be at most 0.5, got 0.6$"),
        (HalfBeta(), -1.0, "^beta must be at least 0, got -1.0$"),
    )
    for sampler, beta, rule in wrong:
        with pytest.raises(errors.ArgumentError, match=rule):
            sampler.exponent(beta)
    assert rated().exponent(0.0) == 0.0
    assert HalfBeta().exponent(0.5) == 0.5
    assert rated().weights(np.zeros(0)).tolist() == []
