import numpy as np
import pytest

from relive.cli import recurrent_network


def some_network(rng: np.random.Generator) -> recurrent_network.Parameters:
    """Return a network for 3 observations, 4 parts of a state and 2 actions, far from its initial values."""
    return tuple(rng.normal(size=shape) for shape in ((3, 8), (4, 8), (8,), (4, 2), (2,)))


@pytest.mark.parametrize("length", [1, 6])
def test_the_gradient_is_that_of_the_loss(length: int) -> None:
    rng = np.random.default_rng(0)
    parameters = some_network(rng)
    observations, state = rng.normal(size=(5, length, 3)), rng.normal(size=(5, 4))
    actions, targets, weights = rng.integers(2, size=(5, length)), rng.normal(size=(5, length)), rng.random((5, length))

    def loss(moved: recurrent_network.Parameters) -> float:
        values, _ = recurrent_network.action_values(moved, observations, state)
        chosen = np.take_along_axis(values, actions[..., np.newaxis], axis=2)[..., 0]
        return 0.5 * float((weights * (chosen - targets) ** 2).sum())

    gradient = recurrent_network.squared_loss_gradient(parameters, observations, state, actions, targets, weights)
    assert [part.shape for part in gradient] == [part.shape for part in parameters]
    step = 1e-6
    for number, part in enumerate(parameters):
        for place in np.ndindex(part.shape):
            losses = []
            for sign in (1.0, -1.0):
                moved = tuple(each.copy() for each in parameters)
                moved[number][place] += sign * step
                losses.append(loss(moved))
            assert gradient[number][place] == pytest.approx((losses[0] - losses[1]) / (2 * step), abs=1e-7)


def test_step_by_step_is_the_same_as_the_whole_sequence() -> None:
    rng = np.random.default_rng(1)
    parameters = some_network(rng)
    observations, state = rng.normal(size=(5, 7, 3)), rng.normal(size=(5, 4))
    values, last_state = recurrent_network.action_values(parameters, observations, state)
    assert values.shape == (5, 7, 2)
    for t in range(7):
        one, state = recurrent_network.advance(parameters, observations[:, t], state)
        assert (one == values[:, t]).all()
    assert (state == last_state).all()


def test_two_halves_are_the_same_as_the_whole_sequence() -> None:
    rng = np.random.default_rng(2)
    parameters = some_network(rng)
    observations = rng.normal(size=(5, 7, 3))
    first = recurrent_network.first_state(parameters, 5)
    whole, last_state = recurrent_network.action_values(parameters, observations, first)
    for cut in range(8):
        head, state = recurrent_network.action_values(parameters, observations[:, :cut], first)
        tail, state = recurrent_network.action_values(parameters, observations[:, cut:], state)
        assert (np.concatenate([head, tail], axis=1) == whole).all()
        assert (state == last_state).all()


def test_values_are_those_written_out() -> None:
    rng = np.random.default_rng(3)
    parameters = some_network(rng)
    inputs, recurrence, biases, outputs, offsets = parameters
    observation, state = rng.normal(size=3), rng.normal(size=4)
    values, next_state = recurrent_network.advance(parameters, observation[np.newaxis], state[np.newaxis])
    expected = np.zeros(4)
    for k in range(4):
        gate = 1.0 / (1.0 + np.exp(-(observation @ inputs[:, k] + state @ recurrence[:, k] + biases[k])))
        candidate = np.tanh(observation @ inputs[:, 4 + k] + state @ recurrence[:, 4 + k] + biases[4 + k])
        expected[k] = (1.0 - gate) * state[k] + gate * candidate
    np.testing.assert_allclose(next_state[0], expected, rtol=1e-12)
    np.testing.assert_allclose(values[0], expected @ outputs + offsets, rtol=1e-12)


def test_extreme_inputs_do_not_overflow() -> None:
    parameters = some_network(np.random.default_rng(4))
    observations = np.array([[[1e6, -1e6, 1e6]] * 3, [[-1e6, 1e6, 0.0]] * 3])
    values, state = recurrent_network.action_values(
        parameters, observations, recurrent_network.first_state(parameters, 2)
    )
    assert np.isfinite(values).all()
    assert (abs(state) <= 1.0).all()


def test_a_step_without_weight_leaves_no_trace() -> None:
    rng = np.random.default_rng(5)
    parameters = some_network(rng)
    observations, state = rng.normal(size=(2, 6, 3)), rng.normal(size=(2, 4))
    actions, targets = rng.integers(2, size=(2, 6)), rng.normal(size=(2, 6))
    weights = np.repeat([[1.0, 1.0, 1.0, 1.0, 0.0, 0.0]], 2, axis=0)
    whole = recurrent_network.squared_loss_gradient(parameters, observations, state, actions, targets, weights)
    short = recurrent_network.squared_loss_gradient(
        parameters, observations[:, :4], state, actions[:, :4], targets[:, :4], weights[:, :4]
    )
    for found, wanted in zip(whole, short, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_nothing_is_changed_in_place() -> None:
    rng = np.random.default_rng(6)
    parameters = some_network(rng)
    observations, state = rng.normal(size=(2, 6, 3)), rng.normal(size=(2, 4))
    given = [*parameters, observations, state]
    before = [array.copy() for array in given]
    recurrent_network.action_values(parameters, observations, state)
    recurrent_network.squared_loss_gradient(
        parameters, observations, state, np.ones((2, 6), np.int64), np.ones((2, 6)), np.ones((2, 6))
    )
    assert all((now == then).all() for now, then in zip(given, before, strict=True))


def test_initial_values_are_small_and_seeded() -> None:
    first, second = (recurrent_network.initial(3, 32, 2, np.random.default_rng(3)) for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    state = recurrent_network.first_state(first, 100)
    assert state.shape == (100, 32)
    assert not state.any()
    values, _ = recurrent_network.action_values(first, np.random.default_rng(4).normal(size=(100, 12, 3)), state)
    assert 0.0 < abs(values).max() < 0.1


def test_at_first_gates_are_almost_shut_and_weights_keep_the_scale() -> None:
    inputs, recurrence, biases, _, _ = recurrent_network.initial(3, 32, 2, np.random.default_rng(3))
    assert biases.tolist() == [-2.0] * 32 + [0.0] * 32
    assert 0.9 < abs(inputs).max() <= 1.0
    assert 0.9 * np.sqrt(3 / 32) < abs(recurrence).max() <= np.sqrt(3 / 32)


def test_a_greedy_policy_remembers_its_own_episode_alone() -> None:
    rng = np.random.default_rng(7)
    parameters = some_network(rng)
    observations = rng.normal(size=(2, 30, 3))
    values, _ = recurrent_network.action_values(parameters, observations, recurrent_network.first_state(parameters, 2))
    first, second = (recurrent_network.greedy_policy(parameters) for _ in range(2))
    taken = [[first(one), second(other)] for one, other in zip(*observations, strict=True)]
    assert taken == values.argmax(axis=2).T.tolist()
