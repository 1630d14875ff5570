"""Any mixture of the ways to write, with observations that come again and again, against the naive twin.

`column_machine_test` has observations that come once, so that a step never follows by chance. Here there are four, two
of which are equal, and a step often begins with what was announced some time ago, or of another stream.
"""

import copy
import pickle
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np

import relive
from relive.buffers import column_oracle_test as oracle_lib

OBSERVATIONS = [0.0, -0.0, 1.0, 2.0]
SCHEMA = relive.Schema(relive.Field((), np.float64), relive.Field((), np.int64))
Step = dict[str, Any]


class Mixture:
    """A buffer and its twin, to which the same random steps are written."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.streams = int(rng.integers(1, 5))
        self.capacity = int(rng.integers(self.streams, 5 * self.streams + 2))
        self.stack, self.n_step = int(rng.choice([1, 1, 2, 3])), int(rng.integers(1, 4))
        self.knows_next, self.ends = rng.choice([0.5, 1.0, 1.0]), rng.choice([0.02, 0.2])
        self.buffer = relive.RingReplayBuffer(
            self.capacity, SCHEMA, n_step=self.n_step, gamma=0.5, frame_stack=self.stack, streams=self.streams, seed=0
        )
        self.oracle = oracle_lib.Oracle(self.capacity, self.streams)

    def step(self, stream: int, knows_next: bool) -> Step:
        """Return a step that often, and not always, begins with what was announced."""
        rng, episode = self.rng, self.oracle.open[stream]
        observation = rng.choice(OBSERVATIONS)
        if episode is not None and episode.tail is not None and rng.random() < 0.8:
            observation = episode.tail
        terminated, truncated = rng.random(2) < self.ends
        return {
            "observation": observation,
            "action": int(rng.integers(100)),
            "reward": float(rng.integers(-4, 4)),
            "next_observation": rng.choice(OBSERVATIONS) if knows_next else None,
            "terminated": bool(terminated),
            "truncated": bool(truncated and (knows_next or terminated)),
        }

    def add(self) -> None:
        stream = int(self.rng.integers(self.streams))
        step = self.step(stream, self.rng.random() < self.knows_next)
        assert self.buffer.add(**step, stream=stream) == self.oracle.add(**step, stream=stream)

    def extend(self, streams: list[int] | None) -> None:
        """Add a step of each of those streams; None means all."""
        numbers = list(range(self.streams)) if streams is None else streams
        knows_next = self.rng.random() < self.knows_next
        steps = [self.step(stream, knows_next) for stream in numbers]
        columns: dict[str, Any] = {name: np.array([step[name] for step in steps]) for name in steps[0]}
        if not knows_next:
            columns["next_observation"] = None
        for name in ("terminated", "truncated"):
            if not columns[name].any() and self.rng.random() < 0.5:
                columns[name] = None
        keys = self.buffer.extend(**columns, streams=streams)
        for column in columns.values():
            if column is not None:
                column[...] = 1
        assert keys.tolist() == [
            self.oracle.add(**step, stream=stream) for stream, step in zip(numbers, steps, strict=True)
        ]

    def add_episode(self) -> None:
        stream, length = int(self.rng.integers(self.streams)), int(self.rng.integers(1, self.capacity + 1))
        observations = self.rng.choice(OBSERVATIONS, length + 1).tolist()
        actions, rewards = list(range(length)), [1.0] * length
        terminated = bool(self.rng.random() < 0.5)
        self.buffer.add_episode(observations, actions, rewards, terminated=terminated, stream=stream)
        self.oracle.add_episode(observations, actions, rewards, terminated, stream)

    def clear(self) -> None:
        self.buffer.clear()
        self.oracle.clear()

    def prefetch(self) -> None:
        """Draw ahead, and write while the batches wait: they hold the steps stored when they were drawn."""
        if not self.buffer.num_eligible:
            return
        batches = self.buffer.batches(3, prefetch=2)
        expected = {key: self.expected(key) for key in self.oracle.transition_keys(self.stack)}
        ahead = [next(batches)]
        self.add()
        ahead.append(next(batches))
        batches.close()
        for batch in ahead:
            oracle_lib.assert_windows(batch, [expected[key] for key in batch.keys.tolist()])

    def copy(self) -> None:
        self.buffer = copy.deepcopy(self.buffer) if self.rng.random() < 0.5 else pickle.loads(pickle.dumps(self.buffer))

    def call(self) -> None:
        """Make a random call."""
        some = self.rng.permutation(self.streams)[: self.rng.integers(1, self.streams + 1)].tolist()
        calls = [self.add, lambda: self.extend(None), lambda: self.extend(some), self.add_episode, self.clear]
        calls += [self.prefetch, self.copy]
        calls[self.rng.choice(len(calls), p=[0.4, 0.4, 0.08, 0.02, 0.02, 0.05, 0.03])]()

    # What holds after every call.

    def expected(self, key: int) -> dict[str, Any]:
        fields = self.oracle.transition(key, self.n_step, 0.5, self.stack)
        del fields["extra"]
        return fields

    def check(self) -> None:
        self.buffer.check()
        keys = self.oracle.transition_keys(self.stack)
        assert self.buffer.eligible_keys().tolist() == keys
        if keys:
            oracle_lib.assert_windows(self.buffer.read(keys), [self.expected(key) for key in keys])
        stats = self.buffer.get_stats()
        assert (stats.appended, stats.size) == (len(self.oracle.rows), len(self.oracle.alive()))
        assert stats.spliced_episodes == self.oracle.spliced
        assert stats.open_episodes == sum(episode is not None for episode in self.oracle.open)


@hypothesis.given(st.integers(0, 2**32))
def test_any_mixture_of_calls_equals_the_twin(seed: int) -> None:
    mixture = Mixture(seed)
    for _ in range(20):
        mixture.call()
        mixture.call()
        mixture.check()


def test_an_older_announcement_does_not_count() -> None:
    buffer = relive.RingReplayBuffer(20, streams=2)
    for stream in range(2):
        buffer.add(0.0, 0, 0.0, 1.0, stream=stream)
    buffer.extend(np.ones(2), np.zeros(2, int), np.zeros(2), np.full(2, 2.0))
    key = buffer.add(1.0, 0, 0.0, 3.0, stream=0)
    assert buffer.get_stats().spliced_episodes == 1
    assert buffer.read([0, 2], n_step=3).next_observation.tolist() == [2.0, 2.0]
    assert buffer.read([key]).observation.tolist() == [1.0]
