"""EpisodeAdapter: the adapter of an episode buffer."""

from collections.abc import Hashable, Mapping
import functools
import inspect
import math
from typing import Any

from relive.common import validation
from relive.episodes import buffer as buffer_lib
from relive.episodes import versions
from relive.fleet import adapter
from relive.fleet import chunks


class EpisodeAdapter(adapter.Adapter):
    """The adapter between a shard and its episode buffer."""

    def __init__(self, buffer: buffer_lib.EpisodeReplayBuffer[Any, Any]) -> None:
        self.buffer = self._buffer = buffer
        self._signature = inspect.signature(buffer.sample_n_step_nowait)
        self._episodes: dict[tuple[Hashable, int], str] = {}

    def describe(self) -> adapter.Description:
        """Describe the episode buffer."""
        has_groups = self._buffer.groups is not None
        return adapter.Description(
            kind=type(self._buffer).__name__, writer="episodes_writer", has_columns=False, has_groups=has_groups
        )

    def insert(self, writer: Hashable, chunk: chunks.EpisodeChunk) -> None:
        """Store a chunk."""
        buffer, place = self._buffer, (writer, chunk.episode)
        if place not in self._episodes:
            if not chunk.is_start and not chunk.rows:
                return  # The episode has ended already.
            start = functools.partial(buffer.start_episode_nowait, chunk.agent_id, policy_version=chunk.policy_version)
            self._episodes[place] = adapter.in_group(start, chunk.group_id, chunk.is_failed)
        episode_id = self._episodes[place]
        try:
            for observation, action, reward, version in chunk.steps:
                buffer.append_observation_action_reward_nowait(
                    episode_id, observation, action, reward, policy_version=version
                )
            if chunk.final is not None:
                buffer.end_episode_nowait(episode_id, *chunk.final)
            elif chunk.is_aborted:
                buffer.abort_episode_nowait(episode_id)
            else:
                return
        except BaseException:
            buffer.abort_episode_nowait(episode_id)
            del self._episodes[place]
            raise
        del self._episodes[place]

    def is_sent_whole(self, chunk: chunks.EpisodeChunk) -> bool:
        """Return whether it is an episode of a group."""
        return self._buffer.groups is not None and chunk.group_id is not None

    @property
    def torn(self) -> int:
        """Number of steps of open episodes of groups."""
        open_ones = self._buffer._store.open.values() if self._buffer.groups is not None else ()
        return sum([len(episode.actions) for episode in open_ones if episode.group_id is not None])

    def abandon(self, writer: Hashable) -> int:
        """Abort the open episodes of a writer that is gone."""
        aborted = 0
        for place in [place for place in self._episodes if place[0] == writer]:
            # Forgotten only if it could be aborted: the disk may be full.
            aborted += self._buffer.abort_episode_nowait(self._episodes[place])
            del self._episodes[place]
        return aborted

    def abandon_all(self) -> int:
        """Abort every open episode."""
        self._episodes.clear()
        open_ids = list(self._buffer.get_stats().open_ages)
        return sum([self._buffer.abort_episode_nowait(episode_id) for episode_id in open_ids])

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise TypeError for an option that is unknown or missing, and ArgumentError for an invalid one."""
        given = self._signature.bind(1, **options).arguments
        validation.positive_int("n", given["n"])
        validation.discount("gamma", given["gamma"])
        versions.asked(given.get("max_lag"), given.get("lag_decay", 1.0))

    def weight(self, options: Mapping[str, Any]) -> adapter.SamplingWeight:
        """Return the number of complete transitions, or the sum of their weights by lag."""
        lags = versions.asked(options.get("max_lag"), options.get("lag_decay", 1.0))
        size, learner = self.size, self._buffer.policy_version
        if lags is None:
            return adapter.SamplingWeight(weight=float(size), size=size, policy_version=learner)
        if learner is None:
            return adapter.SamplingWeight(weight=0.0, size=size)
        weight, least_lag = _weighed(self._buffer.transitions_by_version(), learner, lags)
        return adapter.SamplingWeight(
            weight=weight, size=size, log_scale=least_lag * math.log(lags.decay), policy_version=learner
        )

    def draw(self, count: int, options: Mapping[str, Any]) -> Any:
        """Return a list of `count` samples."""
        return self._buffer.sample_n_step_nowait(count, **options)


def _weighed(counts: Mapping[int, int], learner: int, lags: versions.Lags) -> tuple[float, int]:
    """Return the sum of decay ** (lag - the least lag) over the transitions that may be drawn, and the least lag.

    Relative to the least lag, as in the buffer, so that the weights cannot all round to 0.
    """
    known = [(max(learner - version, 0), count) for version, count in counts.items()]
    known = [(lag, count) for lag, count in known if lags.max_lag is None or lag <= lags.max_lag]
    least = min([lag for lag, _ in known], default=0)
    return float(sum([count * lags.decay ** (lag - least) for lag, count in known])), least
