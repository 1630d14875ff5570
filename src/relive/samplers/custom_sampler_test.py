"""Custom samplers: three common ones, and the errors for an invalid one."""

import asyncio
import functools
from typing import Any, TypeVar

import numpy as np
import pytest

import relive
from relive import testing

Obs = TypeVar("Obs")
Act = TypeVar("Act")


class UniformOverEpisodes(relive.EpisodeReplayBuffer[Obs, Act]):
    """Draws every episode equally often, long or short."""

    def _draw(self, batch_size: int) -> list[tuple[relive.Episode[Obs, Act], int]]:
        episodes = [e for e in [*self._store.finished, *self._store.open.values()] if len(e)]
        chosen = [episodes[i] for i in self._rng.integers(len(episodes), size=batch_size)]
        return [(episode, int(self._rng.integers(len(episode)))) for episode in chosen]


class ByReturn(relive.EpisodeReplayBuffer[Obs, Act]):
    """Draws finished episodes in proportion to their return, which must not be negative."""

    def _draw(self, batch_size: int) -> list[tuple[relive.Episode[Obs, Act], int]]:
        episodes = list(self._store.finished)
        returns = np.array([sum(episode.rewards) for episode in episodes])
        chosen = self._rng.choice(len(episodes), size=batch_size, p=returns / returns.sum())
        return [(episodes[i], int(self._rng.integers(len(episodes[i])))) for i in chosen]


def fill(buffer: relive.EpisodeReplayBuffer[Any, Any], lengths: list[int]) -> list[str]:
    """Add episodes of these lengths with a reward of 1 a step, and return their ids."""
    ids = []
    for length in lengths:
        ids.append(buffer.start_episode_nowait("a"))
        for t in range(length):
            buffer.append_observation_action_reward_nowait(ids[-1], t, t, 1.0)
        buffer.end_episode_nowait(ids[-1], length)
    return ids


@pytest.mark.parametrize(
    ("sampler", "probabilities"),
    [(UniformOverEpisodes, [1 / 4, 1 / 4, 1 / 4, 1 / 4]), (ByReturn, [1 / 18, 2 / 18, 5 / 18, 10 / 18])],
)
def test_a_sampler_is_one_method(
    sampler: type[relive.EpisodeReplayBuffer[Any, Any]], probabilities: list[float]
) -> None:
    buffer = sampler(seed=1)
    ids = fill(buffer, [1, 2, 5, 10])
    drawn = dict.fromkeys(ids, 0)
    starts = [0] * 10
    for sample in buffer.sample_n_step_nowait(8000, 3, 0.9):
        drawn[sample.episode_id] += 1
        if sample.episode_id == ids[-1]:
            starts[sample.start_step] += 1
    testing.assert_frequencies(list(drawn.values()), probabilities)
    testing.assert_frequencies(starts, [1 / 10] * 10)
    assert buffer.get_stats().sampled == 8000


async def test_a_sampler_serves_the_awaited_call_too() -> None:
    buffer = UniformOverEpisodes[int, int]()
    waiter = asyncio.create_task(buffer.sample_n_step(4, 1, 0.9))
    await asyncio.sleep(0)
    fill(buffer, [0, 3])
    assert len(await waiter) == 4


class Scripted(relive.EpisodeReplayBuffer[int, int]):
    """Draws what the test says."""

    draws: list[tuple[Any, Any]]

    def _draw(self, batch_size: int) -> list[tuple[relive.Episode[int, int], int]]:
        return self.draws


def scripted() -> tuple[Scripted, relive.Episode[int, int]]:
    buffer = Scripted()
    fill(buffer, [3])
    return buffer, buffer._store.finished[0]


def test_a_start_outside_the_episode_is_refused() -> None:
    buffer, episode = scripted()
    for start in (-1, 3):
        buffer.draws = [(episode, 0), (episode, start)]
        rule = rf"^_draw must return start steps in \[0, 3\) of episode .*, got {start}$"
        with pytest.raises(relive.SamplerError, match=rule):
            buffer.sample_n_step_nowait(2, 1, 0.9)
    assert buffer.get_stats().sampled == 0


def test_an_episode_that_is_not_stored_is_refused() -> None:
    buffer, episode = scripted()
    buffer.draws = [(episode, 0)]
    buffer.clear()
    fill(buffer, [3])
    with pytest.raises(relive.SamplerError, match=r"^_draw must return stored episodes, got <?.*Episode"):
        buffer.sample_n_step_nowait(1, 1, 0.9)


def test_a_batch_of_another_size_is_refused() -> None:
    buffer, episode = scripted()
    for count in (0, 1, 3):
        buffer.draws = [(episode, 0)] * count
        with pytest.raises(relive.SamplerError, match=rf"^_draw must return batch_size = 2 draws, got {count}$"):
            buffer.sample_n_step_nowait(2, 1, 0.9)


def test_starts_from_numpy_come_back_as_int() -> None:
    buffer, episode = scripted()
    buffer.draws = [(episode, np.int64(1))]
    (sample,) = buffer.sample_n_step_nowait(1, 1, 0.9)
    assert type(sample.start_step) is int


def test_a_sampler_that_errs_is_seen_and_stops_nobody() -> None:
    buffer = Scripted()
    fill(buffer, [3])
    with pytest.raises(AttributeError, match="draws"):
        buffer.sample_n_step_nowait(1, 1, 0.9)
    buffer.draws = [(buffer._store.finished[0], 0)]
    assert len(buffer.sample_n_step_nowait(1, 1, 0.9)) == 1


def test_results_that_are_no_draws_are_refused() -> None:
    buffer, episode = scripted()
    wrong: list[Any] = [None, [None], [("episode", 0)], [1, 2], ["ab"], [(episode, 1.0)]]
    for buffer.draws in wrong:
        with pytest.raises(relive.SamplerError, match=r"^_draw must return"):
            buffer.sample_n_step_nowait(1, 1, 0.9)


def test_arrays_of_a_sampler_may_change_before_a_batch_is_read() -> None:
    class Same(relive.Sampler):
        drawn = np.array([3, 3])

        def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
            return relive.Draw(self.drawn, np.full(size, 0.25))

    buffer = relive.RingReplayBuffer(8, sampler=Same(), seed=0)
    buffer.add_episode(range(5), range(4), range(4), terminated=True)
    postponed: Any = functools.partial(functools.partial, buffer.window._read)
    read = buffer._draw(2, None, postponed)
    Same.drawn[:] = 0
    assert read().keys.tolist() == [3, 3]
