"""EpisodeSampler: base class of custom samplers for episode buffers.

    buffer = EpisodeReplayBuffer(sampler=NewestFirst(episodes=100))

A sampler is a subclass with one method, `_draw`, which receives only public objects. It is saved and loaded by its
class name and settings, as a limiter is. It is stateless, so buffers may share one.
"""

import abc
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from relive.episodes import episode as episode_lib
from relive.episodes import store as store_lib
from relive.persistence import registry

Obs = TypeVar("Obs")
Act = TypeVar("Act")


class EpisodeSampler(registry.Configurable, abc.ABC, Generic[Obs, Act]):
    """Base class of samplers that draw transitions of stored episodes, with replacement.

    >>> import relive
    >>> class EachEpisodeAlike(relive.EpisodeSampler[str, int]):
    ...     def _draw(self, episodes, size, rng):
    ...         drawn = [episodes[place] for place in rng.integers(len(episodes), size=size)]
    ...         return [(episode, int(rng.integers(len(episode)))) for episode in drawn]
    >>> buffer = relive.EpisodeReplayBuffer[str, int](sampler=EachEpisodeAlike(), seed=0)
    >>> episode_id = buffer.start_episode_nowait("agent-0")
    >>> buffer.append_observation_action_reward_nowait(episode_id, "start", 1, 0.5)
    >>> buffer.end_episode_nowait(episode_id, "exit")
    >>> [sample.reward for sample in buffer.sample_n_step_nowait(batch_size=2, n=1, gamma=0.9)]
    [0.5, 0.5]
    """

    @abc.abstractmethod
    def _draw(
        self, episodes: Sequence[episode_lib.Episode[Obs, Act]], size: int, rng: np.random.Generator
    ) -> list[tuple[episode_lib.Episode[Obs, Act], int]]:
        """Return `size` draws, each an episode and the start step of a complete transition in it.

        The result is validated: each episode must be one of `episodes`, and its start step in [0, len(episode)).

        Args:
            episodes: The stored episodes that have a transition, at least one: first those that ended, in the order of
                ending, then the open ones. Do not modify them. Indexing is O(1) after the first access.
            size: Number of draws.
            rng: The random generator of the buffer; use no other randomness.
        """


class StoredEpisodes(Sequence[episode_lib.Episode[Obs, Act]]):
    """The episodes of a store that have a transition, as passed to `EpisodeSampler._draw`."""

    def __init__(self, store: store_lib.EpisodeStore[Obs, Act]) -> None:
        ended = store.finished
        self._ended: Any = [episode for episode in ended if len(episode)] if ended.num_empty else ended
        self._open: list[episode_lib.Episode[Obs, Act]] = list(store.versions.all.growing)

    def __len__(self) -> int:
        return len(self._ended) + len(self._open)

    def __iter__(self) -> Iterator[episode_lib.Episode[Obs, Act]]:
        yield from self._ended
        yield from self._open

    def __getitem__(self, index: Any) -> Any:
        """Return the episode at an index, or a list of those in a slice."""
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"index must be in [{-len(self)}, {len(self)}), got {index}")
        place, num_ended = index % len(self), len(self._ended)
        return self._ended[place] if place < num_ended else self._open[place - num_ended]
