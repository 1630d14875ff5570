"""EpisodeAdapter: the adapter of an episode buffer."""

from collections.abc import Iterable, Mapping
import functools
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
        super().__init__(buffer, buffer.sample_n_step_nowait)
        self._buffer = buffer

    def describe(self) -> adapter.Description:
        """Describe the episode buffer."""
        kind, has_groups = type(self._buffer).__name__, self._buffer.groups is not None
        return adapter.Description(kind=kind, writer="episodes_writer", has_groups=has_groups)

    def _weight(self, options: Mapping[str, Any]) -> adapter.SamplingWeight:
        validation.positive_int("n", options["n"])
        validation.discount("gamma", options["gamma"])
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

    def _begin(self, chunk: chunks.EpisodeChunk) -> str:
        start = functools.partial(
            self._buffer.start_episode_nowait, chunk.agent_id, policy_version=chunk.policy_version
        )
        return adapter.in_group(start, chunk.group_id, chunk.is_failed)

    def _write(self, episode_id: str, chunk: chunks.EpisodeChunk) -> None:
        append = self._buffer.append_observation_action_reward_nowait
        for observation, action, reward, version in chunk.steps:
            append(episode_id, observation, action, reward, policy_version=version)
        if not isinstance(chunk.end, str):
            self._buffer.end_episode_nowait(episode_id, *chunk.end)

    def _finish(self, episode_id: str) -> bool:
        return self._buffer.abort_episode_nowait(episode_id)

    def _handles(self) -> Iterable[str]:
        return list(self._buffer.get_stats().open_ages)


def _weighed(counts: Mapping[int, int], learner: int, lags: versions.Lags) -> tuple[float, int]:
    """Return the sum of decay ** (lag - the least lag) over the transitions that may be drawn, and the least lag.

    Relative to the least lag, as in the buffer, so that the weights cannot all round to 0.
    """
    known = [(max(learner - version, 0), count) for version, count in counts.items()]
    known = [(lag, count) for lag, count in known if lags.max_lag is None or lag <= lags.max_lag]
    least = min([lag for lag, _ in known], default=0)
    return float(sum([count * lags.decay ** (lag - least) for lag, count in known])), least
