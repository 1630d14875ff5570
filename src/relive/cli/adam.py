"""Adam, the optimiser of Kingma and Ba 2015 (algorithm 1), as a pure function on tuples of arrays."""

import dataclasses
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Arrays: TypeAlias = tuple[npt.NDArray[np.float64], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamState:
    """What Adam remembers between two steps.

    Attributes:
        count: Steps taken so far.
        means: Decaying sums of the gradients, in the shapes of the parameters.
        squares: The same of their squares.
    """

    count: int
    means: Arrays
    squares: Arrays


def initial(parameters: Arrays) -> AdamState:
    """Return the state before the first step."""
    zeros = tuple(np.zeros_like(parameter) for parameter in parameters)
    return AdamState(count=0, means=zeros, squares=zeros)


def step(
    parameters: Arrays,
    gradient: Arrays,
    state: AdamState,
    learning_rate: float,
    *,
    mean_decay: float = 0.9,
    square_decay: float = 0.999,
    epsilon: float = 1e-8,
) -> tuple[Arrays, AdamState]:
    """Return the parameters after one step against `gradient`, and the state for the next one.

    With m and v the decaying means of the gradient and of its square, freed from their bias towards 0:

        parameter <- parameter - learning_rate * m / (sqrt(v) + epsilon)
    """
    count = state.count + 1
    means = tuple(
        mean_decay * mean + (1.0 - mean_decay) * slope for mean, slope in zip(state.means, gradient, strict=True)
    )
    squares = tuple(
        square_decay * square + (1.0 - square_decay) * slope**2
        for square, slope in zip(state.squares, gradient, strict=True)
    )
    mean_rate = learning_rate / (1.0 - mean_decay**count)
    square_scale = 1.0 / (1.0 - square_decay**count)
    moved = tuple(
        parameter - mean_rate * mean / (np.sqrt(square_scale * square) + epsilon)
        for parameter, mean, square in zip(parameters, means, squares, strict=True)
    )
    return moved, AdamState(count=count, means=means, squares=squares)
