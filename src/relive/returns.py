"""Discounted returns."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from relive import checks


def discount_powers(gamma: float, count: int) -> list[float]:
    """Answers [gamma^0, gamma^1, ..., gamma^(count - 1)]."""
    return [gamma**k for k in range(count)]


def weighted_sum(rewards: Iterable[float], weights: Iterable[float]) -> float:
    """Answers the sum of reward times weight, added from the first on: the same float on every version of Python."""
    total = 0.0
    for reward, weight in zip(rewards, weights, strict=True):
        total += reward * weight
    return total


def compute_discounted_return(rewards: Iterable[float], gamma: float) -> float:
    """Answers sum over k of gamma^k r_k, the discounted return (Sutton and Barto 2018, equation 3.8).

    Args:
        rewards: r_0, r_1, ..., in time order; none gives 0.0.
        gamma: The discount factor, in (0, 1].

    Raises:
        ArgumentError: A reward is not a finite real number, or gamma lies outside (0, 1].

    >>> import relive
    >>> round(relive.compute_discounted_return([1.0, 2.0, 3.0], gamma=0.9), 6)
    5.23
    """
    gamma = checks.discount("gamma", gamma)
    numbers = [checks.finite_number("reward", reward) for reward in rewards]
    return weighted_sum(numbers, discount_powers(gamma, len(numbers)))


def discounted_sums(rewards: npt.NDArray[Any], span: npt.NDArray[np.int64], gamma: float) -> npt.NDArray[Any]:
    """Answers of each row of `rewards` [B, n] the sum over k < span of gamma^k r_k [B], in the dtype of the rewards.

    Added up as float64 from k = 0 on (Sutton and Barto 2018, equation 7.1, without its bootstrap).
    """
    total = np.zeros(len(rewards))
    for k, power in enumerate(discount_powers(gamma, rewards.shape[1])):
        total += np.where(k < span, power * rewards[:, k].astype(np.float64), 0.0)
    return total.astype(rewards.dtype, copy=False)
