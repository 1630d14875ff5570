"""Any mixture of the ways to write, with observations that come again and again, against the naive twin.

`column_grid_test` has observations that come once, so that a step never follows by chance. Here there are four, two of
which are equal, and a step often begins with what was announced some time ago, or of another stream.
"""

import copy
import pickle
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np

import relive
from relive.buffers import column_grid_test
from relive.buffers import column_oracle_test as oracle_lib

NUMBER = relive.Field((), np.float64)
SCHEMA = relive.Schema(NUMBER, NUMBER, extras={"extra": NUMBER})


class Mixture(column_grid_test.Writer):
    """A buffer and its twin, to which the same random steps are written, and calls that must not disturb them."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        streams = int(rng.integers(1, 5))
        capacity = int(rng.integers(streams, 5 * streams + 2))
        self.stack, self.n_step = int(rng.choice([1, 1, 2, 3])), int(rng.integers(1, 4))
        settings: dict[str, Any] = {"n_step": self.n_step, "frame_stack": self.stack, "streams": streams}
        buffer = relive.RingReplayBuffer(capacity, SCHEMA, gamma=0.5, seed=0, **settings)
        super().__init__(buffer, oracle_lib.Oracle(capacity, streams), rng)

    def fresh(self) -> Any:
        return self.rng.choice([0.0, -0.0, 1.0, 2.0])

    def clear(self) -> None:
        self.buffer.clear()
        self.oracle.clear()
        self.following = [None] * self.streams

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
        calls = [self.add, self.extend, self.add_episode, self.end_episode, self.clear, self.prefetch, self.copy]
        calls[self.rng.choice(len(calls), p=[0.4, 0.46, 0.02, 0.02, 0.02, 0.05, 0.03])]()

    # What holds after every call.

    def expected(self, key: int) -> dict[str, Any]:
        return self.oracle.transition(key, self.n_step, 0.5, self.stack)

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
