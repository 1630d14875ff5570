"""Discounted returns."""

from collections.abc import Iterable, Sequence
import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import validation
from relive.kernels import windows

FLOAT64 = np.dtype(np.float64)


def discount_powers(gamma: float, count: int) -> list[float]:
    """Return [gamma^0, gamma^1, ..., gamma^(count - 1)]."""
    return [gamma**k for k in range(count)]


@functools.lru_cache(maxsize=64)
def powers(gamma: float, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return gamma^0 to gamma^count [count + 1], rounded to the dtype; cached, so read-only."""
    made = np.array(discount_powers(gamma, count + 1)).astype(dtype)
    made.flags.writeable = False
    return made


def weighted_sum(rewards: Iterable[float], weights: Iterable[float]) -> float:
    """Return the sum of reward times weight, added in order: the same float on every version of Python."""
    total = 0.0
    for reward, weight in zip(rewards, weights, strict=True):
        total += reward * weight
    return total


def total(rewards: Sequence[float]) -> float:
    """Return the sum of finite rewards, rounded once: the same bits on every Python, whose `sum` differs by version.

    Infinite or NaN if an intermediate sum overflows.
    """
    try:
        return math.fsum(rewards)
    except OverflowError:
        return weighted_sum(rewards, [1.0] * len(rewards))


def compute_discounted_return(rewards: Iterable[float], gamma: float) -> float:
    """Return sum over k of gamma^k r_k, the discounted return (Sutton and Barto 2018, equation 3.8).

    Args:
        rewards: r_0, r_1, ..., in time order; empty gives 0.0.
        gamma: The discount factor, in (0, 1].

    Raises:
        ArgumentError: A reward is not a finite real number, or gamma lies outside (0, 1].

    >>> import relive
    >>> round(relive.compute_discounted_return([1.0, 2.0, 3.0], gamma=0.9), 6)
    5.23
    """
    gamma = validation.discount("gamma", gamma)
    numbers = []
    for place, reward in enumerate(validation.items("rewards", rewards, "numbers")):
        try:
            numbers.append(validation.finite_number("reward", reward))
        except errors.ArgumentError as error:
            raise type(error)(f"{error} at [{place}]") from None
    return weighted_sum(numbers, discount_powers(gamma, len(numbers)))


def discounted_sums(rewards: npt.NDArray[Any], span: npt.NDArray[np.int64], gamma: float) -> npt.NDArray[Any]:
    """Return the sum over k < span of gamma^k r_k for each column of `rewards` [n, B], as [B] in their dtype.

    Added up as float64 from k = 0 on (Sutton and Barto 2018, equation 7.1, without its bootstrap).
    """
    return windows.discounted_sums(rewards, span, powers(gamma, len(rewards), FLOAT64))
