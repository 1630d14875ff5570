"""A small multilayer perceptron for action values, in numpy: forward pass, loss and gradient as pure functions.

    observations [B, O] -> x W_1 + b_1 -> relu -> ... -> x W_L + b_L -> action values [B, A]

Parameters are a tuple of arrays that nobody changes in place: W_1, b_1, ..., W_L, b_L. So a snapshot of a network, or
a target network, is one more name for the same tuple, and costs nothing.
"""

from collections.abc import Callable, Sequence
import itertools
from typing import TypeAlias

import numpy as np

from relive.common import arrays

Parameters: TypeAlias = tuple[arrays.Floats, ...]


def initial(widths: Sequence[int], rng: np.random.Generator) -> Parameters:
    """Return random parameters for layers of those widths, from observations to actions.

    Weights are uniform within +-sqrt(6 / inputs), which keeps the scale of what goes through (He et al. 2015); those of
    the last layer a hundredth of that, so that all values start near 0. Biases are 0.
    """
    parameters: list[arrays.Floats] = []
    for inputs, outputs in itertools.pairwise(widths):
        bound = np.sqrt(6.0 / inputs)
        parameters += [rng.uniform(-bound, bound, (inputs, outputs)), np.zeros(outputs)]
    parameters[-2] = 0.01 * parameters[-2]
    return tuple(parameters)


def action_values(parameters: Parameters, observations: arrays.Floats) -> arrays.Floats:
    """Return the value of every action [B, A] in each of `observations` [B, O]."""
    return _layer_inputs(parameters, observations)[-1]


def values_of_one(parameters: Parameters, observation: arrays.Floats) -> arrays.Floats:
    """Return the value of every action [A] in one observation [O]."""
    values: arrays.Floats = action_values(parameters, observation[np.newaxis])[0]
    return values


def greedy_policy(parameters: Parameters) -> Callable[[arrays.Floats], int]:
    """Return a policy that takes the action with the highest value in an observation [O]."""
    return lambda observation: int(values_of_one(parameters, observation).argmax())


def squared_loss_gradient(
    parameters: Parameters,
    observations: arrays.Floats,
    actions: arrays.Ints,
    targets: arrays.Floats,
    weights: arrays.Floats,
) -> Parameters:
    """Return the gradient of half the sum of weight * (Q(observation, action) - target)^2, by backpropagation.

    Squared, not Huber's: the few steps before a fall have the largest errors, and must not be outvoted by the others.

    Args:
        parameters: The network; the gradient has their shapes.
        observations: [B, O].
        actions: What was done in each of them [B].
        targets: What the value of that should be [B].
        weights: How much each counts [B]: 1 / B everywhere for the mean.
    """
    inputs = _layer_inputs(parameters, observations)
    rows = np.arange(len(actions))
    slope = np.zeros_like(inputs[-1])
    slope[rows, actions] = weights * (inputs[-1][rows, actions] - targets)
    gradient: list[arrays.Floats] = []
    for layer in reversed(range(len(parameters) // 2)):
        gradient += [slope.sum(axis=0), inputs[layer].T @ slope]
        if layer:
            slope = (slope @ parameters[2 * layer].T) * (inputs[layer] > 0.0)
    return tuple(reversed(gradient))


def _layer_inputs(parameters: Parameters, observations: arrays.Floats) -> list[arrays.Floats]:
    """Return what goes into each layer, and last what comes out of the network."""
    inputs = [observations]
    for weights, biases in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        inputs.append(np.maximum(inputs[-1] @ weights + biases, 0.0))
    inputs.append(inputs[-1] @ parameters[-2] + parameters[-1])
    return inputs
