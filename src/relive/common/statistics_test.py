"""Statistics as flat names and numbers, for every buffer that has them."""

import dataclasses
import math
from typing import Any

import pytest

import relive
from relive.common import statistics


def ring(steps: int) -> relive.RingReplayBuffer:
    buffer = relive.RingReplayBuffer(10, seed=0)
    for t in range(steps):
        buffer.add(t, 0, 0.0, t + 1)
    return buffer


def test_fields_properties_and_mappings_are_flat_names() -> None:
    buffer = ring(5)
    stats = buffer.get_stats()
    wanted = {name: value for name, value in dataclasses.asdict(stats).items() if value is not None}
    wanted |= {"never_drawn_share": 1.0, "mean_draws": 0.0, "oldest_age": 4}
    assert stats.scalars() == wanted | {"dropped/evicted": 0, "dropped/cleared": 0}
    assert {"mean_drawn_age", "policy_lag", "max_policy_lag"}.isdisjoint(stats.scalars())
    buffer.sample(3)
    assert buffer.get_stats().scalars()["mean_drawn_age"] == buffer.get_stats().mean_drawn_age


def test_a_number_for_each_episode_is_left_out() -> None:
    buffer = relive.EpisodeReplayBuffer[int, int](seed=0)
    buffer.start_episode_nowait("a")
    numbers = buffer.get_stats().scalars()
    assert not any(name.startswith("open_ages") for name in numbers)
    assert {"oldest_open_age", "never_drawn_share", "dropped/aborted", "dropped/cleared"} <= numbers.keys()


def test_a_number_for_each_agent_is_there() -> None:
    schema, agents = relive.Schema(relive.Field((), "float32"), relive.Field((), "int64")), ["walker", "runner"]
    buffer = relive.JointReplayBuffer(10, dict.fromkeys(agents, schema), agents=agents)
    assert {"agent_steps/walker", "agent_steps/runner"} <= buffer.get_stats().scalars().keys()


def test_what_is_not_finite_is_left_out() -> None:
    @dataclasses.dataclass(frozen=True, slots=True)
    class Numbers(statistics.Statistics):
        loss: float
        by_part: dict[str, float]
        size: int

    numbers = Numbers(math.nan, {"a": math.inf, "b": -1.5}, 3)
    assert numbers.scalars() == {"by_part/b": -1.5, "size": 3}


@pytest.mark.parametrize(
    "buffer",
    [
        ring(3),
        relive.PrioritizedReplayBuffer(10),
        relive.AsyncReplayBuffer(ring(3)),
        relive.ThreadSafeReplayBuffer(ring(3)),
        relive.EpisodeReplayBuffer(),
        relive.ItemReplayBuffer(10),
        relive.TokenReplayBuffer(10),
        relive.JointReplayBuffer(10, agents=["walker"]),
    ],
    ids=lambda buffer: type(buffer).__name__,
)
def test_every_buffer_that_has_statistics_has_scalars(buffer: Any) -> None:
    numbers = buffer.get_stats().scalars()
    assert numbers["sampled"] == 0
    assert all(type(number) in (int, float) and math.isfinite(number) for number in numbers.values())
