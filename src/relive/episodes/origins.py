"""SampleOrigin: where a sample came from, for debugging."""

import dataclasses
from typing import Any

from relive.episodes import episode as episode_lib
from relive.episodes import samples
from relive.episodes import store as store_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampleOrigin:
    """The origin of a sample of an EpisodeReplayBuffer, and the current state of its episode.

    Attributes:
        episode_id: Its episode.
        agent_id: The agent that acted in it.
        step: Its first step, counted from the reset.
        actual_n: Its number of steps.
        is_stored: Whether its steps are still stored.
        status: The status of the episode; None if it is no longer stored.
        start_time: When the episode started, in seconds since the epoch; None if it is no longer stored.
        episode_length: Number of transitions of the episode now; None if it is no longer stored.
        age: Number of episodes that finished after it; None if it is open or no longer stored.
        episodes_to_eviction: Number of finished episodes evicted before it; None if it is open or no longer stored.
    """

    episode_id: str
    agent_id: str
    step: int
    actual_n: int
    is_stored: bool = False
    status: episode_lib.EpisodeStatus | None = None
    start_time: float | None = None
    episode_length: int | None = None
    age: int | None = None
    episodes_to_eviction: int | None = None

    def __str__(self) -> str:
        """Return all of it as one line."""
        last = self.step + self.actual_n - 1
        steps = f"step {self.step}" if last == self.step else f"steps {self.step} to {last}"
        parts = [f"episode {self.episode_id}: {steps}", f"agent {self.agent_id}"]
        if self.status is None:
            return ", ".join([*parts, "not stored any more"])
        parts += [f"{self.status} with {self.episode_length} transitions", f"started at {self.start_time}"]
        if not self.is_stored:
            parts.append("without these steps")
        if self.age is not None:
            parts.append(f"age {self.age}, {self.episodes_to_eviction} go before it")
        return ", ".join(parts)


def sample(store: store_lib.EpisodeStore[Any, Any], drawn: samples.ReplaySample[Any, Any]) -> SampleOrigin:
    """Return the origin of a sample. O(episodes)."""
    origin = SampleOrigin(
        episode_id=drawn.episode_id, agent_id=drawn.agent_id, step=drawn.start_step, actual_n=drawn.actual_n
    )
    episode = store.find(drawn.episode_id)
    if episode is None:
        return origin
    place = next((place for place, finished in enumerate(store.finished) if finished is episode), None)
    return dataclasses.replace(
        origin,
        is_stored=drawn.start_step + drawn.actual_n <= len(episode),
        status=episode.status,
        start_time=episode.start_time,
        episode_length=len(episode),
        age=None if place is None else len(store.finished) - 1 - place,
        episodes_to_eviction=place,
    )
