"""Statistics as flat names and numbers, for every buffer that has them, and as plain values that can be sent."""

import copy
import dataclasses
import json
import math
import pathlib
import pickle
from typing import Any

import pytest

import relive
from relive.common import statistics
from relive.fleet import local_test
from relive.fleet import trouble_test
from relive.testing import zoo


def ring(steps: int) -> relive.RingReplayBuffer:
    buffer = relive.RingReplayBuffer(10, seed=0)
    for t in range(steps):
        buffer.add(t, 0, 0.0, t + 1)
    return buffer


def test_fields_properties_and_mappings_are_flat_names() -> None:
    buffer = ring(5)
    stats = buffer.get_stats()
    wanted = {name: value for name, value in dataclasses.asdict(stats).items() if value is not None}
    wanted |= {"mean_draws": 0.0, "oldest_age": 4}
    assert stats.scalars() == wanted | {"dropped/evicted": 0, "dropped/cleared": 0}
    assert "max_policy_lag" not in stats.scalars()
    buffer.sample(3)
    assert buffer.get_stats().scalars()["mean_draws"] == buffer.get_stats().mean_draws == 3 / 5


def test_a_number_for_each_episode_is_left_out() -> None:
    buffer = relive.EpisodeReplayBuffer[int, int](seed=0)
    buffer.start_episode_nowait("a")
    numbers = buffer.get_stats().scalars()
    assert not any(name.startswith("open_ages") for name in numbers)
    assert {"oldest_open_age", "dropped/aborted", "dropped/cleared"} <= numbers.keys()


def test_a_number_for_each_agent_has_a_scalar() -> None:
    schema, agents = relive.Schema(relive.Field((), "float32"), relive.Field((), "int64")), ["walker", "runner"]
    buffer = relive.JointReplayBuffer(10, dict.fromkeys(agents, schema), agents=agents)
    assert {"agent_steps/walker", "agent_steps/runner"} <= buffer.get_stats().scalars().keys()


def test_numbers_that_are_not_finite_have_no_scalar() -> None:
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
        ring(3), relive.PrioritizedReplayBuffer(10), relive.AsyncReplayBuffer(ring(3)),
        relive.ThreadSafeReplayBuffer(ring(3)), relive.EpisodeReplayBuffer(), relive.ItemReplayBuffer(10),
        relive.TokenReplayBuffer(10), relive.JointReplayBuffer(10, agents=["walker"]),
    ],
    ids=lambda buffer: type(buffer).__name__,
)  # fmt: skip
def test_every_buffer_that_has_statistics_has_scalars(buffer: Any) -> None:
    numbers = buffer.get_stats().scalars()
    assert numbers["sampled"] == 0
    assert all(type(number) in (int, float) and math.isfinite(number) for number in numbers.values())


USED = ("prioritized", "sequences", "joint", "items, episodes", "episodes in groups", "tokens with extras")


def fleet_statistics(directory: pathlib.Path) -> list[Any]:
    async def main() -> list[Any]:
        fleet = local_test.LocalFleet(trouble_test.tokens, 2, directory=directory, limiter=relive.MinSize(1))
        client = fleet.replay()
        async with client.tokens_writer() as writer:
            await writer.add_episode(trouble_test.token_steps(0, 5, 7), agent_id="a", number=0)
        return [await client.stats(), await client.get_drops(), await client.get_training_bias()]

    return local_test.run(main())


def are_plain(value: Any) -> bool:
    """Return whether that is a value which any process can read and JSON can express."""
    if isinstance(value, dict | list | tuple):
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        return type(value) in (dict, list, tuple) and all(map(are_plain, parts))
    return type(value) in (str, int, float, bool, type(None))


def test_every_statistic_can_be_pickled_copied_and_written(tmp_path: pathlib.Path) -> None:
    found = fleet_statistics(tmp_path / "fleet")
    found += [shell(ring(3)).get_stats() for shell in (relive.AsyncReplayBuffer, relive.ThreadSafeReplayBuffer)]
    for buffer in (zoo.worked(zoo.KINDS[name].make) for name in USED):
        buffer.save(tmp_path / type(buffer).__name__)
        found.append(relive.summary(tmp_path / type(buffer).__name__))
        found += [buffer.get_stats(), buffer.get_stats().scalars(), getattr(buffer.get_stats(), "dropped", None)]
        if hasattr(buffer, "get_drops"):
            found += [buffer.get_drops(), buffer.get_training_bias(), buffer.get_training_bias().difference]
    for statistic in found:
        assert pickle.loads(pickle.dumps(statistic)) == copy.deepcopy(statistic) == statistic
        plain = statistic if isinstance(statistic, dict | int | None) else dataclasses.asdict(statistic)
        assert are_plain(plain)
        json.dumps(plain, allow_nan=False)
