"""What the benchmarks share: how a buffer is filled, and how one step is taken from its data."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import relive

LENGTH = 1_000
"""Steps in an episode."""


@pytest.fixture
def schema_of() -> Callable[..., relive.Schema]:
    """Answers a schema of an observation, an action and a float32 reward."""

    def make(shape: Any, dtype: str, action: relive.Field | None = None) -> relive.Schema:
        action = relive.Field((), "int64") if action is None else action
        return relive.Schema(relive.Field(shape, dtype), action, reward=relive.Field((), "float32"))

    return make


@pytest.fixture
def filled() -> Callable[[Any], Any]:
    """Fills a buffer with episodes, once over, so that every step that comes evicts one."""

    def fill(buffer: Any) -> Any:
        rng = np.random.default_rng(0)
        fields = buffer.schema.fields
        columns = []
        for path, count in (("observation", LENGTH + 1), ("action", LENGTH), ("reward", LENGTH)):
            numbers = rng.integers(0, 256, (count, *fields[path].shape))
            columns.append(numbers.astype(fields[path].dtype))
        for _ in range(buffer.capacity // LENGTH + 1):
            buffer.add_episode(*columns, terminated=True)
        assert buffer.is_full
        return buffer

    return fill
