"""A small recurrent network for action values, in numpy: forward pass, loss and gradient as pure functions.

    observation_t [B, O], state_t [B, H] -> state_{t+1} [B, H] -> action values [B, A]

One gate says how much of a state is written anew; where it stays shut, the network remembers. This is the update gate
RNN of Collins, Sohl-Dickstein and Sussillo 2017, a GRU without the reset gate:

    gate, candidate = sigmoid, tanh of observation_t W + state_t U + b
    state_{t+1} = state_t + gate * (candidate - state_t)
    values = state_{t+1} V + c

Parameters are the tuple W [O, 2 H], U [H, 2 H], b [2 H], V [H, A], c [A], where the first H columns belong to the gate
and the others to the candidate. As in `q_network`, nobody changes them in place.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from relive.common import arrays

Parameters: TypeAlias = tuple[arrays.Floats, ...]

_FIRST_GATE_BIAS = -2.0
"""Gates begin with about an eighth open, so that gradients reach back over a dozen steps from the start."""


def initial(observation_width: int, state_width: int, num_actions: int, rng: np.random.Generator) -> Parameters:
    """Return random parameters.

    Weights are uniform within +-sqrt(3 / inputs), which keeps the scale of what goes through; those of the values a
    hundredth of that, so that all values start near 0. Biases are 0 but for the gates, which begin almost shut.

    Args:
        observation_width: O.
        state_width: H.
        num_actions: A.
        rng: Where the weights come from.

    Example:
        >>> import numpy as np
        >>> from relive.cli import recurrent_network
        >>> parameters = recurrent_network.initial(1, 32, 2, np.random.default_rng(0))
        >>> [part.shape for part in parameters]
        [(1, 64), (32, 64), (64,), (32, 2), (2,)]
    """
    return (
        _uniform(observation_width, 2 * state_width, rng),
        _uniform(state_width, 2 * state_width, rng),
        np.repeat([_FIRST_GATE_BIAS, 0.0], state_width),
        0.01 * _uniform(state_width, num_actions, rng),
        np.zeros(num_actions),
    )


def first_state(parameters: Parameters, batch_size: int) -> arrays.Floats:
    """Return the state [B, H] before the first observation of an episode: zeros."""
    return np.zeros((batch_size, len(parameters[1])))


def advance(
    parameters: Parameters, observation: arrays.Floats, state: arrays.Floats
) -> tuple[arrays.Floats, arrays.Floats]:
    """Return the value of every action [B, A] in `observation` [B, O], and the state [B, H] to go on with."""
    gate, candidate = _gate_and_candidate(parameters, observation, state)
    state = state + gate * (candidate - state)
    return state @ parameters[3] + parameters[4], state


def action_values(
    parameters: Parameters, observations: arrays.Floats, state: arrays.Floats
) -> tuple[arrays.Floats, arrays.Floats]:
    """Return the value of every action at every step [B, T, A], and the state [B, H] after the last one.

    Args:
        parameters: The network.
        observations: [B, T, O], T of them in a row; T may be 0.
        state: Before the first of them [B, H].

    Example:
        >>> import numpy as np
        >>> from relive.cli import recurrent_network
        >>> parameters = recurrent_network.initial(1, 32, 2, np.random.default_rng(0))
        >>> state = recurrent_network.first_state(parameters, batch_size=5)
        >>> values, state = recurrent_network.action_values(parameters, np.ones((5, 7, 1)), state)
        >>> values.shape, state.shape
        ((5, 7, 2), (5, 32))
    """
    values = np.empty((*observations.shape[:2], len(parameters[4])))
    for t in range(observations.shape[1]):
        values[:, t], state = advance(parameters, observations[:, t], state)
    return values, state


def greedy_policy(parameters: Parameters) -> Callable[[arrays.Floats], int]:
    """Return a policy for one episode that takes the action with the highest value, and remember what it saw.

    Example:
        >>> import numpy as np
        >>> from relive.cli import recurrent_network
        >>> parameters = recurrent_network.initial(1, 32, 2, np.random.default_rng(0))
        >>> act = recurrent_network.greedy_policy(parameters)
        >>> [act(observation) for observation in np.array([[0.0], [1.0], [1.0]])]
        [0, 1, 1]
    """
    state = first_state(parameters, batch_size=1)

    def act(observation: arrays.Floats) -> int:
        nonlocal state
        values, state = advance(parameters, observation[np.newaxis], state)
        return int(values[0].argmax())

    return act


def squared_loss_gradient(
    parameters: Parameters,
    observations: arrays.Floats,
    state: arrays.Floats,
    actions: arrays.Ints,
    targets: arrays.Floats,
    weights: arrays.Floats,
) -> Parameters:
    """Return the gradient of half the sum of weight * (Q - target)^2 over all steps, by backpropagation through time.

    Nothing flows back beyond `state`, which counts as given.

    Args:
        parameters: The network; the gradient has their shapes.
        observations: [B, T, O].
        state: Before the first of them [B, H].
        actions: What was done at each step [B, T].
        targets: What the value of that should be [B, T].
        weights: How much each step counts [B, T]: 0 for padding, and 1 / (B T) everywhere for the mean.
    """
    _, state_weights, _, value_weights, value_biases = parameters
    states, gates, candidates = [state], list[arrays.Floats](), list[arrays.Floats]()
    for t in range(observations.shape[1]):
        gate, candidate = _gate_and_candidate(parameters, observations[:, t], states[t])
        gates.append(gate)
        candidates.append(candidate)
        states.append(states[t] + gate * (candidate - states[t]))

    rows = np.arange(len(observations))
    gradient = tuple(np.zeros_like(part) for part in parameters)
    state_slope = np.zeros_like(state)
    for t in reversed(range(observations.shape[1])):
        gate, candidate, chosen = gates[t], candidates[t], (rows, actions[:, t])
        values = states[t + 1] @ value_weights + value_biases
        value_slope = np.zeros_like(values)
        value_slope[chosen] = weights[:, t] * (values[chosen] - targets[:, t])
        state_slope = state_slope + value_slope @ value_weights.T

        gate_slope = state_slope * (candidate - states[t]) * gate * (1.0 - gate)
        candidate_slope = state_slope * gate * (1.0 - candidate**2)
        sum_slope = np.concatenate([gate_slope, candidate_slope], axis=1)
        of_this_step = (
            observations[:, t].T @ sum_slope,
            states[t].T @ sum_slope,
            sum_slope.sum(axis=0),
            states[t + 1].T @ value_slope,
            value_slope.sum(axis=0),
        )
        gradient = tuple(later + now for later, now in zip(gradient, of_this_step, strict=True))
        state_slope = state_slope * (1.0 - gate) + sum_slope @ state_weights.T
    return gradient


def _gate_and_candidate(
    parameters: Parameters, observation: arrays.Floats, state: arrays.Floats
) -> tuple[arrays.Floats, arrays.Floats]:
    """Return how far each part of the state opens [B, H], and what would then stand there [B, H]."""
    sums = observation @ parameters[0] + state @ parameters[1] + parameters[2]
    width = state.shape[1]
    return 0.5 + 0.5 * np.tanh(0.5 * sums[:, :width]), np.tanh(sums[:, width:])


def _uniform(inputs: int, outputs: int, rng: np.random.Generator) -> arrays.Floats:
    """Return weights [inputs, outputs] that keep the variance of what goes through."""
    bound = np.sqrt(3.0 / inputs)
    return rng.uniform(-bound, bound, (inputs, outputs))
