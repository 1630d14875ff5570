import numpy as np
import pytest

from relive.cli import q_network


def test_the_gradient_is_that_of_the_loss() -> None:
    rng = np.random.default_rng(0)
    parameters = q_network.initial((3, 5, 4, 2), rng)
    observations, actions = rng.normal(size=(6, 3)), rng.integers(2, size=6)
    targets, weights = rng.normal(size=6), rng.random(6)
    gradient = q_network.squared_loss_gradient(parameters, observations, actions, targets, weights)
    assert [part.shape for part in gradient] == [part.shape for part in parameters]
    step = 1e-6
    for number, part in enumerate(parameters):
        for place in np.ndindex(part.shape):
            losses = []
            for sign in (1.0, -1.0):
                moved = [np.array(each) for each in parameters]
                moved[number][place] += sign * step
                values = q_network.action_values(tuple(moved), observations)[np.arange(6), actions]
                losses.append(0.5 * (weights * (values - targets) ** 2).sum())
            assert gradient[number][place] == pytest.approx((losses[0] - losses[1]) / (2 * step), abs=1e-6)


def test_values_are_those_written_out() -> None:
    parameters = (np.array([[1.0, -1.0]]), np.array([0.5, 0.0]), np.array([[2.0], [3.0]]), np.array([1.0]))
    assert q_network.action_values(parameters, np.array([[1.0], [-2.0]])).tolist() == [[4.0], [7.0]]


def test_initial_values_are_small_and_seeded() -> None:
    first, second = (q_network.initial((4, 64, 2), np.random.default_rng(3)) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    values = q_network.action_values(first, np.random.default_rng(4).normal(size=(100, 4)))
    assert abs(values).max() < 0.1


def test_a_greedy_policy_takes_the_best_action() -> None:
    parameters = q_network.initial((3, 5, 4), np.random.default_rng(0))
    act = q_network.greedy_policy(parameters)
    for observation in np.random.default_rng(1).normal(size=(20, 3)):
        values = q_network.values_of_one(parameters, observation)
        assert values.tolist() == q_network.action_values(parameters, observation[np.newaxis])[0].tolist()
        assert act(observation) == values.argmax()
