"""The same steps give the same buffer, whether added by `extend` or stream by stream."""

import dataclasses
import itertools
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive

SCHEMA = relive.Schema(
    {"x": relive.Field((), "i8"), "y": relive.Field(2, "f4")},
    relive.Field((), "i8"),
    extras={"e": relive.Field((), "i4")},
)
ALONE = relive.Schema(relive.Field((), "i8"), relive.Field((65,), "u1"))

WINDOWS: list[tuple[Any, ...]] = [
    (relive.TransitionWindow, 1),
    (relive.TransitionWindow, 3),
    (relive.TransitionWindow, 2, 0.5, 2),
    (relive.TransitionWindow, 1, 0.5, 4),
    (relive.SequenceWindow, 2),
    (relive.SequenceWindow, 3, 0, 2),
    (relive.SequenceWindow, 3, 0, 2, True),
    (relive.EpisodeWindow,),
]


class Steps:
    """Random steps of every stream, whose observations are never twice the same."""

    def __init__(self, streams: int, schema: relive.Schema, rng: np.random.Generator, p_end: float) -> None:
        self.streams, self.rng, self.schema, self.p_end = streams, rng, schema, p_end
        self.counter = itertools.count(1)
        self.announced = self.fresh()

    def fresh(self) -> Any:
        return np.array([next(self.counter) for _ in range(self.streams)])

    def observation(self, numbers: Any) -> Any:
        if self.schema is ALONE:
            return numbers
        return {"x": numbers, "y": np.stack([numbers, -numbers], 1).astype(np.float32)}

    def step(self, knows_next: bool, splices: bool) -> dict[str, Any]:
        """Return the arguments of `extend` for all streams."""
        rng = self.rng
        now = self.announced
        if splices:
            now = np.where(rng.random(self.streams) < 0.3, self.fresh(), now)
        then = self.fresh()
        terminated, truncated = rng.random((2, self.streams)) < self.p_end
        truncated &= knows_next
        self.announced = np.where(terminated | truncated, self.fresh(), then)
        step = {
            "observation": self.observation(now),
            "action": now if self.schema is SCHEMA else np.tile(now[:, None], 65).astype(np.uint8),
            "reward": rng.integers(-8, 8, self.streams).astype(np.float64),
            "next_observation": self.observation(then) if knows_next else None,
            "terminated": terminated if terminated.any() or rng.random() < 0.5 else None,
            "truncated": truncated if truncated.any() or rng.random() < 0.5 else None,
        }
        return step | ({"e": now.astype(np.int32)} if self.schema is SCHEMA else {})


def of_stream(step: dict[str, Any], stream: int) -> dict[str, Any]:
    """Return the arguments of `add` for one of them."""

    def value(column: Any) -> Any:
        if isinstance(column, dict):
            return {name: each[stream] for name, each in column.items()}
        return column[stream]

    one = {name: value(column) for name, column in step.items() if column is not None}
    return one | {name: bool(one[name]) for name in ("terminated", "truncated") if name in one}


def columns_of(tree: Any) -> list[Any]:
    return [tree.dtype, tree.tolist()] if isinstance(tree, np.ndarray) else [columns_of(tree[name]) for name in tree]


def contents(buffer: Any) -> list[Any]:
    """Return all that a buffer holds and counts, apart from how many bytes that takes now.

    Uniform draws depend on the order in which anchors came: what was drawn is left out too.
    """
    stats = dataclasses.asdict(buffer.get_stats())
    del stats["nbytes"], stats["never_drawn"], stats["mean_drawn_age"]
    keys = buffer.eligible_keys()
    alive = np.arange(buffer.history.oldest_key, buffer.history.next_key)
    found: list[Any] = [stats, keys.tolist(), alive.tolist()]
    if len(keys):
        batch = buffer.read(keys)
        found += [columns_of(getattr(batch, field.name)) for field in dataclasses.fields(batch)]
    if buffer.has_priorities:
        # A step whose oldest frame goes in the same round was an anchor for a moment, if its stream was written first.
        found.append(buffer.get_priorities(keys if buffer.window.older > 0 else alive).tolist())
    return found


@hypothesis.given(
    st.sampled_from([1, 2, 3, 4, 4, 9]),
    st.integers(1, 10),
    st.sampled_from([0, 0, 0, 1, 2]),
    st.sampled_from([*WINDOWS, *WINDOWS[:4], *WINDOWS[2:4]]),
    st.sampled_from([ALONE, ALONE, SCHEMA]),
    st.sampled_from(["uniform", "priorities", "limit"]),
    st.sampled_from(["turns", "turns", "late", "splices", "single", "all"]),
    st.sampled_from([0.0, 0.02, 0.2, 0.2]),
    st.integers(0, 2**32),
)
def test_extending_is_adding_to_one_stream_after_another(
    streams: int, rounds: int, more: int, window: Any, schema: Any, kind: str, how: str, p_end: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    capacity = streams * rounds + more
    if window[0] is relive.SequenceWindow:
        capacity = max(capacity, 3)

    def made() -> Any:
        sampler = relive.PrioritizedSampler(beta=1.0) if kind == "priorities" else None
        return relive.ColumnReplayBuffer(
            capacity,
            schema,
            window=window[0](*window[1:]),
            sampler=sampler,
            streams=streams,
            max_times_sampled=2 if kind == "limit" else None,
            seed=1,
        )

    extended, added = made(), made()
    steps = Steps(streams, schema, rng, p_end)
    for t in range(2 * rounds + 8):
        choice = rng.random()
        if (t == 0 and rng.random() < 0.5) or (how in ("single", "all") and choice < 0.1):
            stream, length = int(rng.integers(streams)), int(rng.integers(1, capacity + 1))
            numbers = np.arange(length + 1) + 10**6
            alone = Steps(length + 1, schema, rng, 0.0)
            observations = alone.observation(numbers)
            extras = {"e": numbers[:-1].astype(np.int32)} if schema is SCHEMA else {}
            action = numbers[:-1] if schema is SCHEMA else np.zeros((length, 65), np.uint8)
            for buffer in (extended, added):
                buffer.add_episode(observations, action, np.ones(length), terminated=True, stream=stream, **extras)
        elif how in ("single", "all") and choice < 0.3:
            before, stream = steps.announced, int(rng.integers(streams))
            step = steps.step(bool(rng.random() < 0.7), False)
            for buffer in (extended, added):
                buffer.add(**of_stream(step, stream), stream=stream)
            # What comes now in that stream follows, or is what came already; the others wait for what they waited for.
            if rng.random() < 0.5:
                steps.announced = np.where(np.arange(streams) == stream, steps.announced, before)
            else:
                steps.announced = before
        elif choice < 0.35 and extended.num_eligible and kind != "limit":
            keys, others = extended.sample_keys(3), added.sample_keys(3)
            assert kind == "uniform" or keys.tolist() == others.tolist()
            for buffer in (extended, added):
                if buffer.has_priorities:
                    buffer.update_priorities(keys, [3.0, 0.5, 2.0])
                buffer.set_eligible(keys[:1], bool(choice < 0.32))
        else:
            knows_next = how not in ("late", "all") or rng.random() < 0.6
            splices = how in ("splices", "all") and rng.random() < 0.4
            step = steps.step(knows_next, splices)
            keys = [added.add(**of_stream(step, stream), stream=stream) for stream in range(streams)]
            assert extended.extend(**step).tolist() == keys
        if t % 2:
            assert contents(extended) == contents(added)
            extended.check()
            added.check()
    if extended.num_eligible and kind == "priorities":
        drawn, other = extended.sample(8), added.sample(8)
        assert drawn.keys.tolist() == other.keys.tolist()
        assert drawn.weights.tolist() == other.weights.tolist()


@pytest.mark.parametrize("first", ["add", "extend"])
@pytest.mark.parametrize("then", ["add", "extend"])
@pytest.mark.parametrize("last", ["add", "extend"])
@pytest.mark.parametrize("alone", [[], [1], [0, 1]])
def test_what_was_announced_is_void_for_streams_that_went_on_since(
    first: str, then: str, last: str, alone: list[int]
) -> None:
    """Each stream begins, some of them go on, and each comes with what would have followed its beginning."""
    buffer: Any = relive.RingReplayBuffer(8, ALONE, streams=2)

    def write(call: str, streams: Any, observations: list[int], following: list[int]) -> None:
        zeros = np.zeros((len(observations), 65), np.uint8)
        if call == "extend":
            buffer.extend(observations, zeros, np.zeros(len(zeros)), np.array(following), streams=streams)
        else:
            for stream, now, next_one in zip(
                [0, 1] if streams is None else streams, observations, following, strict=True
            ):
                buffer.add(now, zeros[0], 0.0, next_one, stream=stream)

    write(first, None, [1, 2], [3, 4])
    if alone:
        write(then, alone, [3 + stream for stream in alone], [5 + stream for stream in alone])
    write(last, None, [3, 4], [7, 8])
    assert buffer.get_stats().spliced_episodes == len(alone)
    write(last, None, [7, 8], [9, 9])
    assert buffer.get_stats().spliced_episodes == len(alone)
    buffer.check()
