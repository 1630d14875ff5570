"""Expectations of the suites: that a call raises, or leaves global randomness alone."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import math
import random

import numpy as np
from numpy.random import mtrand

from relive import errors


def assert_frequencies(counts: Sequence[int], probabilities: Sequence[float]) -> None:
    """Raise AssertionError if draws that fell `counts` times [k] did not come from `probabilities` [k].

    Pearson's chi-square test; its quantile by Wilson and Hilferty (1931). Fair draws fail once in 30,000 times.

    Args:
        counts: How often each outcome was drawn.
        probabilities: How likely each outcome should be; they sum to 1. What has probability 0 must never be drawn.

    Raises:
        ArgumentError: The lengths differ, the probabilities do not sum to 1, or an outcome is expected fewer than five
            times, too few for the test.

    >>> from relive import testing
    >>> testing.assert_frequencies([249, 251, 500], [0.25, 0.25, 0.5])
    """
    if len(counts) != len(probabilities):
        raise errors.ArgumentError(f"counts must have {len(probabilities)} entries, got {len(counts)}")
    total = math.fsum(probabilities)
    if not math.isclose(total, 1.0):
        raise errors.ArgumentError(f"probabilities must sum to 1, got {total}")
    draws = sum(counts)
    likely = [(count, draws * p) for count, p in zip(counts, probabilities, strict=True) if p > 0]
    least = min(expected for _, expected in likely)
    if least < 5:
        raise errors.ArgumentError(f"counts must be of enough draws to expect each outcome 5 times, got {least:.3g}")
    never = [count for count, p in zip(counts, probabilities, strict=True) if p == 0]
    assert not any(never), f"an outcome of probability 0 was drawn {max(never)} times"
    freedom = len(likely) - 1
    statistic = math.fsum((count - expected) ** 2 / expected for count, expected in likely)
    spread = 2 / (9 * max(freedom, 1))
    limit = freedom * (1 - spread + 4 * math.sqrt(spread)) ** 3
    assert statistic <= limit, f"chi-square is {statistic:.1f}, above {limit:.1f} for {freedom} degrees of freedom"


def assert_raises(error: type[Exception], call: Callable[..., object], *arguments: object, **named: object) -> None:
    """Raise AssertionError unless `call` of `arguments` raises `error`."""
    try:
        call(*arguments, **named)
    except error:
        return
    raise AssertionError(f"{call.__name__}{arguments or ''}{named or ''} should have raised {error.__name__}")


@contextlib.contextmanager
def untouched_global_randomness() -> Iterator[None]:
    """Raise AssertionError if the body of the `with` block moves the global generator of numpy, or that of Python."""
    before = mtrand.get_bit_generator().state, random.getstate()
    yield
    np.testing.assert_equal(
        (mtrand.get_bit_generator().state, random.getstate()), before, "a global generator was drawn from"
    )
