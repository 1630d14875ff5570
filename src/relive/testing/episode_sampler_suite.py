"""EpisodeSamplerTests: the conformance suite for samplers of episode buffers."""

import abc
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from relive.episodes import buffer as buffer_lib
from relive.episodes import samplers
from relive.testing import expectations

_Buffer: TypeAlias = buffer_lib.EpisodeReplayBuffer[str, int]


class EpisodeSamplerTests(abc.ABC):
    """Tests that every EpisodeSampler must pass; pytest collects them from a subclass whose name begins with Test.

    The tests use the sampler in small buffers, whose episodes start, grow, end, are aborted and are evicted. Which
    transitions are drawn, and how often, may vary between samplers.

    >>> from relive import testing
    >>> class TestMySampler(testing.EpisodeSamplerTests):
    ...     def make(self):
    ...         return MySampler(temperature=2.0)
    """

    @abc.abstractmethod
    def make(self) -> samplers.EpisodeSampler[Any, Any]:
        """Return a sampler, which must use no randomness but `rng`."""

    def test_episode_draws_have_the_size_that_was_asked_for(self) -> None:
        """There are as many samples as were asked for, more than there are transitions too."""
        for buffer in self._histories():
            for size in (1, 2, 7, 100):
                samples = buffer.sample_n_step_nowait(size, 1, 0.9)
                assert len(samples) == size, f"{len(samples)} samples were drawn where {size} were asked for"
            buffer.check()

    def test_episodes_are_left_as_they_are(self) -> None:
        """A draw changes nothing that is stored."""
        for buffer in self._histories():
            before = buffer.state_dict()
            buffer.sample_n_step_nowait(20, 1, 0.9)
            after = buffer.state_dict()
            for name, array in before["arrays"].items():
                if name not in ("episode_drawn", "open_age"):
                    assert np.array_equal(array, after["arrays"][name]), f"a draw has changed {name}"

    def test_equal_generators_give_equal_episode_draws(self) -> None:
        """Two samplers that were made alike draw alike."""
        for buffer, twin in zip(self._histories(), self._histories(), strict=True):
            expected, drawn = (_places(each) for each in (buffer, twin))
            assert drawn == expected, f"{expected} were drawn, and {drawn} from the same state of the generator"

    def test_a_buffer_that_was_saved_goes_on_alike(self) -> None:
        """Settings are enough to make the sampler again: it keeps nothing else from draw to draw."""
        for buffer in self._histories():
            buffer.sample_n_step_nowait(3, 1, 0.9)
            other = _buffer(self.make())
            other.load_state_dict(buffer.state_dict())
            expected, drawn = (
                [sample.observation for sample in each.sample_n_step_nowait(20, 1, 0.9)] for each in (buffer, other)
            )
            assert drawn == expected, f"{expected} were drawn, and {drawn} after it was loaded"

    def test_episode_draws_leave_global_randomness_alone(self) -> None:
        """Neither numpy's global generator nor Python's is drawn from."""
        with expectations.untouched_global_randomness():
            for buffer in self._histories():
                buffer.sample_n_step_nowait(3, 1, 0.9)

    def _histories(self) -> Iterator[_Buffer]:
        """Yield a buffer after each of many changes after which it has a transition."""
        rng = np.random.default_rng(1)
        buffer, running = _buffer(self.make()), []
        for step in range(150):
            match rng.integers(6):
                case 0:
                    running.append(buffer.start_episode_nowait(f"agent-{step % 3}"))
                case 1 | 2 | 3 if running:
                    episode_id = running[rng.integers(len(running))]
                    buffer.append_observation_action_reward_nowait(episode_id, f"observation {step}", step, step / 8)
                case 4 if running:
                    buffer.end_episode_nowait(running.pop(rng.integers(len(running))), f"final {step}")
                case 5 if running and rng.random() < 0.3:
                    buffer.abort_episode_nowait(running.pop(rng.integers(len(running))))
            if len(buffer):
                yield buffer


def _buffer(sampler: samplers.EpisodeSampler[Any, Any]) -> _Buffer:
    return buffer_lib.EpisodeReplayBuffer(max_transitions=30, max_episodes=12, sampler=sampler, seed=2)


def _places(buffer: _Buffer) -> list[tuple[str, int]]:
    return [(sample.agent_id, sample.start_step) for sample in buffer.sample_n_step_nowait(10, 1, 0.9)]
