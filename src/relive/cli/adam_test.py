import numpy as np
import pytest

from relive.cli import adam


def test_steps_are_those_of_the_algorithm_written_out() -> None:
    rng = np.random.default_rng(0)
    parameters: adam.Arrays = (rng.normal(size=(2, 3)), rng.normal(size=3))
    state = adam.initial(parameters)
    expected = [np.array(part) for part in parameters]
    m = [np.zeros_like(part) for part in parameters]
    v = [np.zeros_like(part) for part in parameters]
    for t in range(1, 6):
        gradient = tuple(rng.normal(size=part.shape) for part in parameters)
        parameters, state = adam.step(parameters, gradient, state, 0.01)
        for k, slope in enumerate(gradient):
            m[k] = 0.9 * m[k] + 0.1 * slope
            v[k] = 0.999 * v[k] + 0.001 * slope**2
            expected[k] -= 0.01 * (m[k] / (1 - 0.9**t)) / (np.sqrt(v[k] / (1 - 0.999**t)) + 1e-8)
    for part, wanted in zip(parameters, expected, strict=True):
        np.testing.assert_allclose(part, wanted, rtol=1e-12)
    assert state.count == 5


def test_it_finds_the_bottom_of_a_bowl() -> None:
    parameters: adam.Arrays = (np.array([3.0, -2.0]),)
    state = adam.initial(parameters)
    for _ in range(2000):
        parameters, state = adam.step(parameters, (2.0 * (parameters[0] - 1.0),), state, 0.01)
    assert parameters[0] == pytest.approx([1.0, 1.0], abs=1e-3)


def test_nothing_is_changed_in_place() -> None:
    parameters = (np.ones(2),)
    state = adam.initial(parameters)
    adam.step(parameters, (np.ones(2),), state, 0.1)
    assert parameters[0].tolist() == [1.0, 1.0]
    assert state.means[0].tolist() == [0.0, 0.0]
