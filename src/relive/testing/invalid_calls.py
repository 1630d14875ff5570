"""Calls that every buffer of columns refuses, of steps as in described_steps."""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from relive.buffers import column as column_lib
from relive.testing import synthetic

Call: TypeAlias = tuple[str, tuple[Any, ...], dict[str, Any]]
"""The name of the method, its arguments, and those by name."""
Columns: TypeAlias = dict[str, Any]


def of_any_buffer(buffer: column_lib.ColumnReplayBuffer[Any]) -> Iterator[Call]:
    """Yield calls that a buffer refuses before it has a step, too."""
    for size in (0, -1, 1.5, "one"):
        yield "sample", (size,), {}
        yield "sample_keys", (size,), {}
    for keys in ([-1], [2**62], [0.5]):
        yield "read", (keys,), {}
    yield "set_eligible", ([0.5], False), {}
    yield "set_eligible", ([0], "no"), {}
    for priorities in ([-1.0], [np.nan], [1.0, 2.0], ["high"]):
        yield "update_priorities", ([0], priorities), {}
    step = _columns(1, "observation", "action", "reward", (0, ...))
    for wrong in ({"stream": -1}, {"stream": buffer.streams}, {"terminated": None}, {"truncated": True}):
        yield "add", (), step | wrong
    steps = _columns(2, "observation", "action", "reward")
    for streams in ([0, 0], [-1, 0], [0, buffer.streams], [0]):
        yield "extend", (), steps | {"streams": streams}
    for length in (0, buffer.capacity + 1):
        yield "add_episode", (), _episode(length)
    episode = _episode(3)
    for wrong in ({"stream": buffer.streams}, {"terminated": None}, {"observations": episode["observations"][:-1]}):
        yield "add_episode", (), episode | wrong


def of_one_with_steps(buffer: column_lib.ColumnReplayBuffer[Any]) -> Iterator[Call]:
    """Yield calls that a buffer refuses once it has steps, one of them eligible."""
    keys = buffer.eligible_keys()
    yield "read", ([keys[0], 2**62],), {}
    yield "update_priorities", (keys[[0, 0]], [3.0, -1.0]), {}
    step = _columns(1, "observation", "action", "reward", (0, ...))
    wrongs: list[Columns] = [
        {"observation": np.zeros(2, np.int64)},
        {"observation": np.full(3, 0.5)},
        {"next_observation": np.zeros((1, 3), np.int64)},
        {"action": 0.5},
        {"reward": "much"},
        {"checksum": 2**70},
        {"colour": 1},
    ]
    for wrong in wrongs:
        yield "add", (), step | wrong
    yield "add", (), {name: value for name, value in step.items() if name != "checksum"}
    steps = _columns(buffer.streams, "observation", "action", "reward")
    yield "extend", (), steps | {"action": np.zeros(buffer.streams + 1, np.int64)}
    yield "extend", (), steps | {"checksum": np.full(buffer.streams, 0.5)}
    yield "add_episode", (), _episode(3) | {"actions": np.zeros(2, np.int64)}


def _columns(count: int, observation: str, action: str, reward: str, which: Any = ...) -> Columns:
    """Return the columns, by those names, of the first `count` steps of an episode, or what is there `which`."""
    steps = np.arange(count)
    columns = {
        observation: synthetic.observations_of(0, 1, steps),
        action: steps,
        reward: synthetic.rewards_of(1, steps),
        "checksum": synthetic.checksums_of(0, 1, steps),
    }
    return {name: column[which] for name, column in columns.items()}


def _episode(length: int) -> Columns:
    """Return the arguments for an episode of that many steps."""
    observations = synthetic.observations_of(0, 1, np.arange(length + 1))
    return _columns(length, "observations", "actions", "rewards") | {"observations": observations, "terminated": True}
