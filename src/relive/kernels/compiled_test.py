"""Buffers return the same on compiled kernels; the tests beside it compare each kernel with the one in numpy."""

from collections.abc import Iterator
import contextlib
import random

import hypothesis
from hypothesis import strategies as st
import pytest

import relive
from relive.kernels import choice
from relive.testing import zoo

compiled = pytest.importorskip("relive.kernels.compiled")


@contextlib.contextmanager
def chosen(kernels: str) -> Iterator[None]:
    """Make buffers run on those kernels, inside."""
    before = choice.chosen()
    relive.use_kernels(kernels)
    try:
        yield
    finally:
        relive.use_kernels(before)


@pytest.mark.parametrize("name", zoo.COLUMNS)
@hypothesis.settings(max_examples=10)
@hypothesis.given(st.integers(0, 2**32))
def test_buffers_return_the_same_with_both_kernels(name: str, seed: int) -> None:
    made = []
    for kernels in choice.NAMES:
        with chosen(kernels):
            buffer = zoo.COLUMNS[name]()
        made.append([zoo.work(buffer, random.Random(seed), 100), zoo.drawn(buffer), zoo.state_of(buffer)])
        zoo.check(buffer)
    assert made[0] == made[1]


def test_everything_is_compiled_when_the_kernels_are_chosen() -> None:
    """For the arrays that buffers have: a call compiles nothing more."""
    choice.named("numba")
    kernels = {name: value for name, value in vars(compiled).items() if hasattr(value, "signatures")}
    before = {name: list(kernel.signatures) for name, kernel in kernels.items()}
    counts = {name: len(signatures) for name, signatures in before.items()}
    assert counts.pop("_next") <= 1  # 0 where all that call it come from the cache.
    assert counts.pop("_transitions") == 2
    assert set(counts.values()) == {1}
    with chosen("numba"):
        for make in zoo.COLUMNS.values():
            zoo.worked(make)
    assert {name: list(kernel.signatures) for name, kernel in kernels.items()} == before
