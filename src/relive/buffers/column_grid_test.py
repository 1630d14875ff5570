"""Every small buffer, at every position of its cursor, equals the naive twin in every field.

What other libraries got wrong there (P1 to P14, P16 to P24, P31, P56, P58): windows, stacks and sequences over the
write cursor, the seam of the ring, an end or another stream; slots never written; the last steps of episodes.
"""

import itertools
from typing import Any

import numpy as np
import pytest

import relive
from relive.buffers import column_oracle_test as oracle_lib

SCHEMA = relive.Schema(
    relive.Field((), np.int64), relive.Field((), np.int64), extras={"extra": relive.Field((), np.int64)}
)
POISON = -999


def poisoned_storage(capacity: int) -> relive.ColumnStorage:
    """Return a storage whose unwritten slots are recognisable."""
    return relive.ColumnStorage(SCHEMA, capacity, allocate=lambda shape, dtype: np.full(shape, POISON, dtype))


class Writer:
    """Writes the same random steps to a buffer and to its twin; observations are 1, 2, 3 and so on, each once."""

    def __init__(self, buffer: Any, oracle: oracle_lib.Oracle, rng: np.random.Generator) -> None:
        self.buffer, self.oracle, self.rng = buffer, oracle, rng
        self.streams = len(oracle.open)
        self.counter = 0
        self.following: list[int | None] = [None] * self.streams

    def fresh(self) -> Any:
        self.counter += 1
        return self.counter

    def step(self, stream: int) -> dict[str, Any]:
        """Return a random next step of the stream."""
        rng = self.rng
        announced = self.following[stream]
        observation = self.fresh() if announced is None or rng.random() < 0.1 else announced
        ends = rng.random() < 0.25
        terminated = ends and rng.random() < 0.6
        truncated = ends and (not terminated or rng.random() < 0.2)
        next_observation = self.fresh() if rng.random() < 0.5 or (truncated and not terminated) else None
        self.following[stream] = None if ends else next_observation
        return {
            "observation": observation,
            "action": self.fresh(),
            "reward": float(rng.integers(-8, 8)),
            "next_observation": next_observation,
            "terminated": terminated,
            "truncated": truncated,
            "extra": self.fresh(),
        }

    def add(self) -> None:
        stream = int(self.rng.integers(self.streams))
        step = self.step(stream)
        assert self.buffer.add(**step, stream=stream) == self.oracle.add(**step, stream=stream)

    def extend(self) -> None:
        streams = self.rng.permutation(self.streams)[: self.rng.integers(1, self.streams + 1)]
        if self.rng.random() < 0.5:
            streams = np.arange(self.streams)
        steps = [self.step(int(stream)) for stream in streams]
        knows_next = all(step["next_observation"] is not None for step in steps)
        if not knows_next:
            for stream, step in zip(streams, steps, strict=True):
                step["next_observation"] = None
                step["terminated"] |= step["truncated"]
                self.following[stream] = None
        expected = [self.oracle.add(**step, stream=int(stream)) for stream, step in zip(streams, steps, strict=True)]
        columns: dict[str, Any] = {name: [step[name] for step in steps] for name in steps[0]}
        if not knows_next:
            columns["next_observation"] = None
        for name in ("terminated", "truncated"):
            if not any(columns[name]) and self.rng.random() < 0.5:
                columns[name] = None
        assert self.buffer.extend(**columns, streams=streams).tolist() == expected

    def add_episode(self) -> None:
        stream = int(self.rng.integers(self.streams))
        length = int(self.rng.integers(1, self.oracle.capacity + 1))
        observations = [self.fresh() for _ in range(length + 1)]
        actions = [self.fresh() for _ in range(length)]
        rewards = [float(self.rng.integers(-8, 8)) for _ in range(length)]
        terminated = bool(self.rng.random() < 0.5)
        first = len(self.oracle.rows)
        self.following[stream] = None
        self.oracle.add_episode(observations, actions, rewards, terminated, stream, extras=actions)
        keys = self.buffer.add_episode(
            observations, actions, rewards, terminated=terminated, stream=stream, extra=actions
        )
        assert keys.tolist() == list(range(first, first + length))

    def end_episode(self) -> None:
        stream = int(self.rng.integers(self.streams))
        self.following[stream] = None
        assert self.buffer.end_episode(stream=stream) == self.oracle.end_episode(stream)

    def write(self) -> None:
        """Do one of the four, mostly add a single step."""
        choice = self.rng.random()
        if choice < 0.75:
            self.add()
        elif choice < 0.95:
            self.extend()
        elif choice < 0.98:
            self.add_episode()
        else:
            self.end_episode()


def assert_transitions_equal(
    buffer: relive.RingReplayBuffer, oracle: oracle_lib.Oracle, n: int, stack: int, padding: str
) -> None:
    """Compare the eligible keys and everything that `read` returns."""
    keys = oracle.transition_keys(stack)
    assert buffer.eligible_keys().tolist() == keys
    assert (buffer.num_eligible, len(buffer)) == (len(keys), len(oracle.alive()))
    batch = buffer.read(keys, n_step=n) if buffer.appended else None
    chunks = buffer._transitions.action_chunks
    oracle_lib.assert_windows(batch, [oracle.transition(key, n, 0.5, stack, padding, chunks=chunks) for key in keys])


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("streams", [1, 2, 3, 9])
@pytest.mark.parametrize("stack", [1, 2, 3, 4])
def test_transitions_of_small_rings_equal_the_naive_ones(stack: int, streams: int, is_whole: bool) -> None:
    """The default run tries the larger capacities with a few of the stacks and streams only."""
    for capacity in range(max(2, streams), 49 if is_whole else 25):
        if capacity > 7 and (capacity + stack + 3 * streams) % 6 and not is_whole:
            continue
        rng = np.random.default_rng([capacity, stack, streams])
        padding = "zeros" if capacity % 2 else "first"
        buffer = relive.RingReplayBuffer(
            capacity,
            gamma=0.5,
            frame_stack=stack,
            stack_padding=padding,  # type: ignore[arg-type]
            action_chunks=(capacity + stack + streams) % 2 == 0,
            streams=streams,
            storage=poisoned_storage(capacity),
        )
        oracle = oracle_lib.Oracle(capacity, streams)
        writer = Writer(buffer, oracle, rng)
        for position in range(3 * capacity):
            writer.write()
            assert_transitions_equal(buffer, oracle, 1 + position % 4, stack, padding)
            if position % 8 == 0:
                buffer.check()
        for n in range(1, 5):
            assert_transitions_equal(buffer, oracle, n, stack, padding)
        assert buffer.get_stats().spliced_episodes == oracle.spliced


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("streams", [1, 2, 3, 9])
@pytest.mark.parametrize(("stride", "pad"), [(1, False), (1, True), (2, False), (2, True), (3, False), (3, True)])
def test_sequences_of_small_rings_equal_the_naive_ones(stride: int, pad: bool, streams: int, is_whole: bool) -> None:
    """The default run tries each length with one of three capacities."""
    capacities = range(4, 25) if is_whole else (4, 7, 12)
    for place, (capacity, length) in enumerate(itertools.product(capacities, (1, 2, 3, 4))):
        if capacity < streams or ((place // 4 + length + stride + streams + pad) % 3 and not is_whole):
            continue
        rng = np.random.default_rng([capacity, length, stride, streams])
        buffer = relive.SequenceReplayBuffer(
            capacity, length=length, stride=stride, pad=pad, streams=streams, storage=poisoned_storage(capacity)
        )
        oracle = oracle_lib.Oracle(capacity, streams)
        writer = Writer(buffer, oracle, rng)
        for position in range(4 * capacity):
            writer.write()
            keys = oracle.sequence_keys(length, stride, pad)
            assert buffer.eligible_keys().tolist() == keys
            if position % 8 == 0:
                buffer.check()
            if keys:
                oracle_lib.assert_windows(buffer.read(keys), [oracle.sequence(key, length) for key in keys])


def test_what_is_drawn_is_what_is_read() -> None:
    buffer = relive.PrioritizedReplayBuffer(16, SCHEMA, n_step=2, gamma=0.5, streams=2, seed=0)
    writer = Writer(buffer, oracle_lib.Oracle(16, 2), np.random.default_rng(0))
    for _ in range(40):
        writer.write()
        if buffer.num_eligible:
            drawn = buffer.sample(8)
            read = buffer.read(drawn.keys)
            for name in ("observation", "reward", "next_observation", "next_discount", "probabilities", "weights"):
                assert np.array_equal(getattr(drawn, name), getattr(read, name))
