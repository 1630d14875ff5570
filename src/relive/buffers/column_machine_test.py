"""Any order of calls, against the naive twin: the same keys, the same fields, the same priorities, nothing corrupt."""

import itertools
import random
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest

import relive
from relive.buffers import column_grid_test
from relive.buffers import column_oracle_test as oracle_lib
from relive.samplers import uniform
from relive.testing import walks

PRIORITIES = walks.sampled_from([0.0, 0.25, 0.5, 1.0, 1.0, 2.0, 3.0, 64.0])
SMALL = walks.integers(0, 3)


class Machine(walks.Machine):
    """Priorities, alpha and epsilon are such that every sum is exact: probabilities are compared with `==`.

    What other libraries got wrong: priorities of rows that start no window (P15), late ones (P40), those of new rows
    (P41, P42) and of barred ones (P47), and two of one key (P51).
    """

    often: ClassVar = {"add": 9, "extend": 4, "add_episode": 2, "end_episode": 2, "sample": 4, "update": 4}
    least: ClassVar = {
        "a draw from a list": 20,
        "full with an open episode": 100,
        "a key that left is updated": 100,
        "nothing to draw": 10,
    }

    buffer: Any

    def make(self, settings: dict[str, Any], draw: random.Random) -> Any:
        """Return a buffer with those settings, and keep its own."""
        raise NotImplementedError

    def readable(self) -> list[int]:
        """Return the keys from which a window can be read, barred ones too."""
        raise NotImplementedError

    def expected(self, key: int) -> dict[str, Any]:
        """Return the fields of a window."""
        raise NotImplementedError

    @walks.initialize(
        draw=walks.generator,
        capacity=walks.integers(3, 9),
        streams=walks.sampled_from([1, 2, 3, 3, 9]),
        alpha=walks.sampled_from([0.0, 1.0, 1.0, 2.0]),
        epsilon=walks.sampled_from([0.0, 0.25]),
        most=walks.sampled_from([None, None, 1, 3]),
        stratified=walks.BOOLEANS,
    )
    def begin(
        self,
        draw: random.Random,
        capacity: int,
        streams: int,
        alpha: float,
        epsilon: float,
        most: int | None,
        stratified: bool,
    ) -> None:
        self.capacity = capacity = max(capacity, streams)
        self.streams, self.alpha, self.epsilon, self.most = streams, alpha, epsilon, most
        self.oracle = oracle_lib.Oracle(capacity, streams)
        self.priorities: dict[int, float] = {}
        self.largest = 1.0
        self.rated: set[int] = set()
        self.draws: dict[int, int] = {}
        self.stale = self.sampled = self.evicted = self.counter = 0
        settings: dict[str, Any] = {"streams": streams, "alpha": alpha, "epsilon": epsilon, "beta": 1.0, "seed": 0}
        settings |= {"stratified": stratified, "max_times_sampled": most}
        settings["storage"] = column_grid_test.poisoned_storage(capacity)
        self.buffer = self.make(settings, draw)
        self.uniform = relive.UniformSampler()
        self.uniform.attach(self.buffer.sampler.anchors)

    # The naive model of the priorities.

    def eligible(self) -> list[int]:
        gone = {key for key, count in self.draws.items() if count == self.most}
        return [key for key in self.readable() if key not in self.oracle.barred | gone]

    def settle(self) -> None:
        """Give what became eligible without a priority the one of a new row."""
        for key in self.eligible():
            self.priorities.setdefault(key, self.largest)

    def probabilities(self) -> dict[int, float]:
        rates = {key: self.priorities[key] + self.epsilon for key in self.eligible()}
        weights = {key: rate**self.alpha if rate else 0.0 for key, rate in rates.items()}
        total = sum(weights.values())
        return {key: weight / total if total else 0.0 for key, weight in weights.items()}

    # Writing.

    def fresh(self) -> int:
        self.counter += 1
        return self.counter

    def step(self, stream: int, draw: random.Random) -> dict[str, Any]:
        """Return a next step, which may or may not continue the episode."""
        episode = self.oracle.open[stream]
        announced = episode.tail if episode is not None else None
        terminated, truncated = draw.random() < 0.25, draw.random() < 0.25
        knows_next = draw.random() < 0.5 or (truncated and not terminated)
        return {
            "observation": self.fresh() if announced is None or draw.random() < 0.25 else announced,
            "action": self.fresh(),
            "reward": float(draw.randint(-4, 4)),
            "next_observation": self.fresh() if knows_next else None,
            "terminated": terminated,
            "truncated": truncated,
            "extra": self.fresh(),
        }

    def write(self, steps: list[tuple[int, dict[str, Any]]]) -> list[int]:
        """Add the steps to the twin, one after another."""
        keys = []
        for stream, step in steps:
            self.evicted += len(self.oracle.alive()) == self.capacity
            keys.append(self.oracle.add(**step, stream=stream))
            self.settle()
        return keys

    @walks.rule(draw=walks.generator, stream=SMALL)
    def add(self, draw: random.Random, stream: int) -> None:
        stream %= self.streams
        step = self.step(stream, draw)
        assert [self.buffer.add(**step, stream=stream)] == self.write([(stream, step)])

    @walks.rule(draw=walks.generator)
    def extend(self, draw: random.Random) -> None:
        streams = draw.sample(range(self.streams), draw.randint(1, self.streams))
        steps = [self.step(stream, draw) for stream in streams]
        if any(step["next_observation"] is None for step in steps):
            for step in steps:
                step.update(next_observation=None, terminated=step["terminated"] or step["truncated"])
        columns: dict[str, Any] = {name: [step[name] for step in steps] for name in steps[0]}
        if columns["next_observation"][0] is None:
            columns["next_observation"] = None
        keys = self.buffer.extend(**columns, streams=streams)
        assert keys.tolist() == self.write(list(zip(streams, steps, strict=True)))

    @walks.rule(draw=walks.generator, stream=SMALL, length=walks.integers(1, 9), terminated=walks.BOOLEANS)
    def add_episode(self, draw: random.Random, stream: int, length: int, terminated: bool) -> None:
        stream, length = stream % self.streams, min(length, self.capacity)
        observations = [self.fresh() for _ in range(length + 1)]
        rewards = [float(t) for t in range(length)]
        first = len(self.oracle.rows)
        keys = self.buffer.add_episode(
            observations, observations[1:], rewards, terminated=terminated, stream=stream, extra=observations[:-1]
        )
        assert keys.tolist() == list(range(first, first + length))
        self.evicted += max(len(self.oracle.alive()) + length - self.capacity, 0)
        self.oracle.add_episode(observations, observations[1:], rewards, terminated, stream, observations[:-1])
        self.settle()

    @walks.rule(stream=SMALL)
    def end_episode(self, stream: int) -> None:
        stream %= self.streams
        assert self.buffer.end_episode(stream=stream) == self.oracle.end_episode(stream)
        self.settle()

    @walks.rule(stream=SMALL, wrong=walks.sampled_from(["truncated", "dtype", "extra", "long", "stream", "terminated"]))
    def refuse(self, stream: int, wrong: str) -> None:
        """A refused call changes nothing: the invariants are checked after it as after any other."""
        stream %= self.streams
        step: dict[str, Any] = {"observation": -5, "action": 0, "reward": 0.0, "next_observation": -6, "extra": 0}
        step["stream"] = self.streams if wrong == "stream" else stream
        if wrong == "truncated":
            step.update(truncated=True, next_observation=None)
        if wrong == "dtype":
            step["next_observation"] = 0.5
        if wrong == "extra":
            del step["extra"]
        if wrong == "terminated":
            step["terminated"] = "yes"
        with pytest.raises(relive.ArgumentError):
            if wrong == "long":
                zeros = np.zeros(self.capacity + 2, int)
                self.buffer.add_episode(zeros, zeros[1:], zeros[1:], terminated=True, stream=stream, extra=zeros[1:])
            else:
                self.buffer.add(**step)

    @walks.rule()
    def clear(self) -> None:
        self.buffer.clear()
        self.oracle.clear()

    # Priorities and draws.

    def some_keys(self, draw: random.Random, size: int) -> list[int]:
        """Return keys, some of them evicted and some not yet used."""
        newest = len(self.oracle.rows)
        return [newest - draw.randint(-2, self.capacity + 2) for _ in range(size)]

    @walks.rule(draw=walks.generator, priorities=walks.lists(PRIORITIES, 1, 6))
    def update(self, draw: random.Random, priorities: list[float]) -> None:
        keys = self.some_keys(draw, len(priorities))
        if not all(0 <= key < len(self.oracle.rows) for key in keys):
            with pytest.raises(relive.ArgumentError, match="never given out"):
                self.buffer.update_priorities(keys, priorities)
            keys = [key % max(len(self.oracle.rows), 1) for key in keys] if self.oracle.rows else []
            priorities = priorities[: len(keys)]
        alive = [self.oracle.is_alive(key) for key in keys]
        assert self.buffer.update_priorities(keys, priorities) == sum(alive)
        self.stale += len(keys) - sum(alive)
        self.reached["a key that left is updated"] += len(keys) - sum(alive)
        # Of a key given twice the last priority counts, for the maximum too.
        written = {key: priority for key, priority in zip(keys, priorities, strict=True) if self.oracle.is_alive(key)}
        self.priorities |= written
        self.rated |= written.keys()
        self.largest = max([self.largest, *written.values()])

    @walks.rule(draw=walks.generator, priorities=walks.lists(PRIORITIES, 1, 3))
    def refuse_update(self, draw: random.Random, priorities: list[float]) -> None:
        with pytest.raises(relive.ArgumentError, match=f"row {len(priorities)} "):
            self.buffer.update_priorities(self.some_keys(draw, len(priorities) + 1), [*priorities, -1.0])

    @walks.rule(draw=walks.generator, size=walks.integers(0, 9), eligible=walks.BOOLEANS)
    def set_eligible(self, draw: random.Random, size: int, eligible: bool) -> None:
        keys = self.some_keys(draw, size)
        alive = {key for key in keys if self.oracle.is_alive(key)}
        count = sum(key in alive for key in keys)
        assert self.buffer.set_eligible(np.array(keys, np.int64), eligible) == count
        self.stale += len(keys) - count
        self.oracle.barred = self.oracle.barred - alive if eligible else self.oracle.barred | alive
        self.settle()

    @walks.rule(size=walks.integers(1, 12))
    def sample(self, size: int) -> None:
        probabilities = {key: p for key, p in self.probabilities().items() if p > 0}
        left = [size if self.most is None else self.most - self.draws.get(key, 0) for key in probabilities]
        if sum(left) < size:
            self.reached["nothing to draw"] += 1
            with pytest.raises(relive.NotReadyError):
                self.buffer.sample(size)
            return
        batch = self.buffer.sample(size)
        keys = batch.keys.tolist()
        assert len(keys) == size
        assert set(keys) <= set(probabilities)
        if self.most is None:
            assert batch.probabilities.tolist() == [probabilities[key] for key in keys]
            raw = 1 / batch.probabilities
            assert batch.weights == pytest.approx(raw / raw.max(), rel=1e-14)
        assert batch.weights.max() == 1
        assert batch.weights.min() > 0
        self.assert_fields(batch, keys)
        for key in keys:
            self.draws[key] = self.draws.get(key, 0) + 1
        self.sampled += size

    # What holds after every call.

    def assert_fields(self, batch: Any, keys: list[int]) -> None:
        windows = [self.expected(key) for key in keys]
        assert batch.extras["extra"].tolist() == [fields.pop("extra") for fields in windows]
        for name in windows[0]:
            assert getattr(batch, name).tolist() == [fields[name] for fields in windows], name

    @walks.invariant(every=5)
    def equals_the_twin(self) -> None:
        self.buffer.check()
        eligible, readable = self.eligible(), self.readable()
        assert self.buffer.eligible_keys().tolist() == eligible
        if readable:
            batch = self.buffer.read(readable)
            self.assert_fields(batch, readable)
            probabilities = self.probabilities()
            assert batch.probabilities.tolist() == [probabilities.get(key, 0.0) for key in readable]
        alive = [key for key, _, _ in self.oracle.alive()]
        # All but rows that could be drawn in the midst of a call alone: those may be rated or not.
        sure = [key for key in alive if key in self.rated or key in eligible or key not in self.priorities]
        assert self.buffer.get_priorities(sure).tolist() == [self.priorities.get(key, self.largest) for key in sure]
        ends = [episode.end for episode in {id(e): e for _, e, _ in self.oracle.alive()}.values()]
        stats = self.buffer.get_stats()
        self.reached["full with an open episode"] += stats.size == self.capacity and stats.open_episodes > 0
        assert (stats.size, stats.num_eligible) == (len(self.buffer), self.buffer.num_eligible)
        assert (stats.size, stats.num_eligible) == (len(alive), len(eligible))
        assert stats.open_episodes == sum(episode is not None for episode in self.oracle.open)
        assert (stats.terminated_episodes, stats.truncated_episodes) == (
            ends.count("terminated"),
            ends.count("truncated"),
        )
        assert (stats.appended, stats.evicted) == (len(self.oracle.rows), self.evicted)
        assert (stats.sampled, stats.stale_keys) == (self.sampled, self.stale)
        assert stats.spliced_episodes == self.oracle.spliced
        assert stats.spent == sum(count == self.most for count in self.draws.values())

    @walks.invariant(every=5)
    def uniform_draws_equal_naive_ones(self) -> None:
        """Both ways, after each change: the first eligible ones among all rows, or any in the list of eligible rows."""
        alive = [key for key, _, _ in self.oracle.alive()]
        rows, eligible = ([key % self.capacity for key in keys] for keys in (alive, self.eligible()))
        rows = sorted(rows) if len(rows) == self.capacity else rows
        assert self.uniform.anchors.listed().tolist() == sorted(eligible)
        for sparse in (1, self.capacity) if eligible else ():
            is_listed = len(eligible) * sparse < len(rows)
            among, rng = sorted(eligible) if is_listed else rows, np.random.default_rng(self.counter)
            slots = (among[int(point * len(among))] for point in iter(rng.random, None))
            with mock.patch.object(uniform, "_SPARSE", sparse):
                drawn, shares, weights = self.uniform.draw(4, np.random.default_rng(self.counter))
            assert drawn.tolist() == list(itertools.islice((slot for slot in slots if slot in eligible), 4))
            assert (shares.tolist(), weights.tolist()) == ([1 / len(eligible)] * 4, [1.0] * 4)
            self.reached["a draw from a list"] += is_listed


class TransitionMachine(Machine):
    def make(self, settings: dict[str, Any], draw: random.Random) -> Any:
        self.n_step, self.stack = draw.randint(1, 4), draw.choice([1, 1, 2, 4])
        self.padding, self.chunks = draw.choice(["zeros", "first"]), draw.random() < 0.5
        settings["action_chunks"] = self.chunks
        settings |= {"n_step": self.n_step, "frame_stack": self.stack, "stack_padding": self.padding, "gamma": 0.5}
        return relive.PrioritizedReplayBuffer(self.capacity, **settings)

    def readable(self) -> list[int]:
        barred, self.oracle.barred = self.oracle.barred, set()
        keys = self.oracle.transition_keys(self.stack)
        self.oracle.barred = barred
        return keys

    def expected(self, key: int) -> dict[str, Any]:
        return self.oracle.transition(key, self.n_step, 0.5, self.stack, self.padding, chunks=self.chunks)


class SequenceMachine(Machine):
    def make(self, settings: dict[str, Any], draw: random.Random) -> Any:
        self.length, self.stride = draw.randint(1, 3), draw.randint(1, 3)
        self.pad = draw.random() < 0.5
        settings |= {"length": self.length, "stride": self.stride, "pad": self.pad, "prioritized": True}
        return relive.SequenceReplayBuffer(self.capacity, **settings)

    def readable(self) -> list[int]:
        barred, self.oracle.barred = self.oracle.barred, set()
        keys = self.oracle.sequence_keys(self.length, self.stride, self.pad)
        self.oracle.barred = barred
        return keys

    def expected(self, key: int) -> dict[str, Any]:
        return self.oracle.sequence(key, self.length)


TestTransitions = walks.tests_of(TransitionMachine)
TestSequences = walks.tests_of(SequenceMachine)
