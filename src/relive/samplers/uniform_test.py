import numpy as np
import pytest

import relive
from relive import errors
from relive import testing
from relive.kernels import eligibility
from relive.samplers import sampler_test
from relive.samplers import uniform


def test_uniform_draws_are_uniform_over_what_is_eligible() -> None:
    sampler = sampler_test.attached(uniform.UniformSampler(), [1, 2, 3, 6])
    sampler.removed(sampler.anchors.unset(eligibility.READABLE, np.array([2]))[1])
    sampler.check()
    draw = sampler.draw(3_000, np.random.default_rng(1))
    testing.assert_frequencies(np.bincount(draw.slots, minlength=8).tolist(), [0, 1 / 3, 0, 1 / 3, 0, 0, 1 / 3, 0])
    assert draw.probabilities.tolist() == [1 / 3] * 3_000
    assert sampler.probabilities(np.array([1, 2, 7])).tolist() == [1 / 3, 0.0, 0.0]
    sampler.removed(sampler.anchors.unset(eligibility.READABLE, np.array([1, 3, 6]))[1])
    assert sampler.probabilities(np.array([1])).tolist() == [0.0]


def test_check_finds_a_uniform_sampler_that_missed_something() -> None:
    sampler = sampler_test.attached(uniform.UniformSampler(), [1, 2])
    sampler.anchors.unset(eligibility.READABLE, np.array([2]))
    with pytest.raises(errors.CorruptionError, match="^the uniform sampler does not hold the eligible anchors$"):
        sampler.check()


def test_one_anchor_is_certain() -> None:
    sampler = sampler_test.attached(uniform.UniformSampler(), [5])
    assert sampler.probabilities(np.array([5, 4])).tolist() == [1.0, 0.0]
    assert sampler.draw(2, np.random.default_rng(0)).probabilities.tolist() == [1.0, 1.0]


def test_uniform_draws_are_the_same_whether_anchors_came_one_by_one_or_not() -> None:
    one, many = (sampler_test.attached(uniform.UniformSampler(), [0, 1, 2]) for _ in range(2))
    for added, removed in [(3, 0), (4, 1), (0, 3), (7, 0), (1, 7)]:
        for sampler in (one, many):
            entered = sampler.anchors.set(eligibility.READABLE, np.array([added]))[0]
            left = sampler.anchors.forget(np.array([removed]))
            if sampler is many:
                sampler.added(entered)
                sampler.removed(left)
            else:
                sampler.added_one(added)
                sampler.removed_one(removed)
            sampler.check()
        draws = [sampler.draw(50, np.random.default_rng(3)) for sampler in (one, many)]
        assert draws[0].slots.tolist() == draws[1].slots.tolist()
        assert draws[0].probabilities.tolist() == draws[1].probabilities.tolist() == [1 / 3] * 50


@pytest.mark.parametrize(
    "turns", [[(0, 4, 2), (2, 6, 2), (4, 0, 2)], [(2, 4, 2), (0, 6, 2)], [(0, 4, 1), (2, 5, 1)], [(0, 6, 1)]]
)
def test_uniform_draws_are_of_what_is_there_after_any_turn(turns: list[tuple[int, int, int]]) -> None:
    sampler = sampler_test.attached(uniform.UniformSampler(), [0, 1, 2, 3])
    there = {0, 1, 2, 3}
    for lost, slot, count in turns:
        sampler.anchors.leave(lost, count)
        sampler.anchors.enter(slot, count)
        sampler.turned(lost, slot, count)
        there = there - set(range(lost, lost + count)) | set(range(slot, slot + count))
        sampler.check()
        assert set(sampler.draw(60, np.random.default_rng(0)).slots.tolist()) == there


def test_the_order_of_a_uniform_sampler_is_that_of_eligible_anchors() -> None:
    """As it is, whatever the order of the rows."""
    buffer = relive.RingReplayBuffer(5, seed=0)
    for t in range(7):
        buffer.add([0.0], t, 0.0, [0.0])
    state = buffer.state_dict()
    assert state["sampler"] == {"is_interval": True}
    assert state["arrays"]["sampler/order"].tolist() == [2]
    buffer.set_eligible([4], False)
    state = buffer.state_dict()
    assert state["sampler"] == {"is_interval": False}
    assert sorted(state["arrays"]["sampler/order"].tolist()) == [0, 1, 2, 3]
    for is_interval, order in (
        (False, [0, 1, 2]),
        (False, [0, 1, 2, 4]),
        (False, [0, 1, 2, 2]),
        (True, [0, 1]),
        (True, [1]),
    ):
        state["sampler"]["is_interval"] = is_interval
        state["arrays"]["sampler/order"] = np.array(order)
        with pytest.raises(errors.CheckpointError, match="^array sampler/order must hold the eligible anchors$"):
            relive.RingReplayBuffer._made(state, {})
    state["arrays"]["sampler/order"] = np.array([5])
    with pytest.raises(errors.CheckpointError, match=r"^array sampler/order must hold integers in \[0, 4\], got 5$"):
        relive.RingReplayBuffer._made(state, {})
