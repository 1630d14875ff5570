"""What the suites of `relive.testing` expect of a call: that it raises, or that it leaves global randomness alone."""

from collections.abc import Callable, Iterator
import contextlib
import random

import numpy as np
from numpy.random import mtrand


def assert_raises(error: type[Exception], call: Callable[..., object], *arguments: object, **named: object) -> None:
    """Raises AssertionError unless `call` of `arguments` raises `error`."""
    try:
        call(*arguments, **named)
    except error:
        return
    raise AssertionError(f"{call.__name__}{arguments or ''}{named or ''} should have raised {error.__name__}")


@contextlib.contextmanager
def untouched_global_randomness() -> Iterator[None]:
    """Raises AssertionError if the body of the `with` block moves the global generator of numpy, or that of Python."""
    before = mtrand.get_bit_generator().state, random.getstate()
    yield
    np.testing.assert_equal(
        (mtrand.get_bit_generator().state, random.getstate()), before, "a global generator was drawn from"
    )
