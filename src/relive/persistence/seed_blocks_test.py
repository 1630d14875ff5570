"""Which seeds the fuzzed tests take: a few in the default run, and blocks of many in the long one.

The blocks are called block0, block1, ... in the ids of the tests: `pytest -m long -k block0` runs the first of each.
"""

from collections.abc import Sequence
from typing import Any

import pytest


def seed_blocks(short: int | range, size: int, count: int) -> Sequence[Any]:
    """Return the ranges of seeds that a test is parametrized with.

    Args:
        short: The seeds of the default run, or how many, from 0 on.
        size: How many seeds a block of the long run has.
        count: How many blocks there are.
    """
    seeds = range(short) if isinstance(short, int) else short
    starts = range(0, count * size, size)
    blocks = [
        pytest.param(range(start, start + size), marks=pytest.mark.long, id=f"block{number}")
        for number, start in enumerate(starts)
    ]
    return [pytest.param(seeds, id="few"), *blocks]


def test_blocks_hold_each_seed_once() -> None:
    _, *blocks = seed_blocks(3, 10, 4)
    assert [seed for block in blocks for seed in block.values[0]] == list(range(40))
    assert [block.id for block in blocks] == ["block0", "block1", "block2", "block3"]
