"""How the episodes that a learner was trained on differ from those that were produced.

Filters choose: who drops the stale ones and the stragglers trains on episodes that are shorter, or better, than those
that the actors have lived. The two sides are summed up here, so that the difference can be read off.

    produced    every episode that has ended
    trained     those of them that a sample came from, or that were handed out
"""

import copy
import dataclasses
from typing import Any, Self

from relive.agents import exact_sum
from relive.episodes import episode as episode_lib
from relive.windows import returns


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeTotals:
    """What some episodes are like on average; None where there is nothing to take the mean of.

    Attributes:
        episodes: How many there are.
        transitions: How many they have together.
        mean_length: Transitions an episode.
        mean_return: The sum of an episode's rewards, undiscounted, on average.
        completed_share: Which share of them ended as COMPLETED, in [0, 1].
        truncated_share: As TRUNCATED.
        aborted_share: As ABORTED.
        mean_policy_version: The oldest version of the policy in an episode, on average over those that say one.
    """

    episodes: int
    transitions: int
    mean_length: float | None
    mean_return: float | None
    completed_share: float | None
    truncated_share: float | None
    aborted_share: float | None
    mean_policy_version: float | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingBias:
    """What was produced beside what was trained on.

    Attributes:
        produced: All episodes that have ended.
        trained: Those of them that a sample came from, or that were handed out.
    """

    produced: EpisodeTotals
    trained: EpisodeTotals

    @property
    def difference(self) -> dict[str, float]:
        """The means and shares of `trained` minus those of `produced`, by name, where both are known."""
        answer = {}
        for field in dataclasses.fields(EpisodeTotals):
            produced, trained = getattr(self.produced, field.name), getattr(self.trained, field.name)
            if field.name not in ("episodes", "transitions") and produced is not None and trained is not None:
                answer[field.name] = trained - produced
        return answer


@dataclasses.dataclass(kw_only=True, slots=True)
class Tally:
    """Sums over episodes that have ended, without rounding.

    Attributes:
        episodes: How many.
        transitions: Theirs.
        completed: How many ended as COMPLETED.
        truncated: As TRUNCATED.
        aborted: As ABORTED.
        with_version: How many say a version of the policy.
        versions: The sum of the oldest of each.
        returns: The sum of the sums of rewards.
    """

    episodes: int = 0
    transitions: int = 0
    completed: int = 0
    truncated: int = 0
    aborted: int = 0
    with_version: int = 0
    versions: int = 0
    returns: exact_sum.ExactSum = dataclasses.field(default_factory=exact_sum.ExactSum)

    def add(self, episode: episode_lib.Episode[Any, Any]) -> None:
        """Adds an episode. O(steps)."""
        self.episodes += 1
        self.transitions += len(episode)
        self.completed += episode.status == "COMPLETED"
        self.truncated += episode.status == "TRUNCATED"
        self.aborted += episode.status == "ABORTED"
        version = oldest_version(episode)
        if version is not None:
            self.with_version += 1
            self.versions += version
        self.returns.add(returns.total(episode.rewards))

    def copy(self) -> Self:
        """Answers a twin that goes its own way."""
        return copy.deepcopy(self)

    def totals(self) -> EpisodeTotals:
        """Answers the means of the sums so far."""
        count = self.episodes
        return EpisodeTotals(
            episodes=count,
            transitions=self.transitions,
            mean_length=_mean(self.transitions, count),
            mean_return=_mean(self.returns.value, count),
            completed_share=_mean(self.completed, count),
            truncated_share=_mean(self.truncated, count),
            aborted_share=_mean(self.aborted, count),
            mean_policy_version=_mean(self.versions, self.with_version),
        )


def oldest_version(episode: episode_lib.Episode[Any, Any]) -> int | None:
    """Answers the oldest version of the policy that an episode says; None if it says none. They never go down. O(1)."""
    if episode.policy_version is None and episode.version_changes:
        return episode.version_changes[0][1]
    return episode.policy_version


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None
