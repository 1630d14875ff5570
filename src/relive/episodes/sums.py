"""Sums over episodes that have ended: of all that a buffer has had, and of those that a learner trained on."""

from collections.abc import Iterable, Sequence
import dataclasses
import fractions
import math
from typing import Any, Protocol, Self

from relive.episodes import episode as episode_lib


class EndedEpisode(Protocol):
    """What sums and the queue of a learner read of an Episode, or of the EpisodeFacts of a token buffer."""

    @property
    def episode_id(self) -> str: ...  # noqa: D102
    @property
    def agent_id(self) -> str: ...  # noqa: D102
    @property
    def group_id(self) -> str | None: ...  # noqa: D102
    @property
    def status(self) -> episode_lib.EpisodeStatus: ...  # noqa: D102
    @property
    def rewards(self) -> Sequence[float]: ...  # noqa: D102
    @property
    def policy_version(self) -> int | None: ...  # noqa: D102
    @property
    def version_changes(self) -> Sequence[tuple[int, int]]: ...  # noqa: D102

    def __len__(self) -> int:
        """Return the number of transitions."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeTotals:
    """Means over episodes; None if there are none.

    Attributes:
        episodes: Number of episodes.
        transitions: Total number of transitions.
        mean_length: Mean number of transitions per episode.
        mean_return: Mean undiscounted return.
        completed_share: Share that ended as COMPLETED, in [0, 1].
        truncated_share: Share that ended as TRUNCATED.
        aborted_share: Share that ended as ABORTED.
        mean_policy_version: Mean of the oldest policy version of each episode, where known.
    """

    episodes: int
    transitions: int
    mean_length: float | None
    mean_return: float | None
    completed_share: float | None
    truncated_share: float | None
    aborted_share: float | None
    mean_policy_version: float | None


@dataclasses.dataclass(kw_only=True, slots=True)
class Tally:
    """Sums over episodes that have ended, without rounding.

    Attributes:
        completed, truncated, aborted: Number of episodes that ended so.
        with_version: Number of episodes with a known policy version.
        versions: The sum of their oldest versions.
        returns: The sum of the sums of rewards.
    """

    episodes: int = 0
    transitions: int = 0
    completed: int = 0
    truncated: int = 0
    aborted: int = 0
    with_version: int = 0
    versions: int = 0
    returns: fractions.Fraction = fractions.Fraction()

    def add(self, episode: EndedEpisode) -> None:
        """Add an episode. O(steps)."""
        self.episodes += 1
        self.transitions += len(episode)
        self.completed += episode.status == "COMPLETED"
        self.truncated += episode.status == "TRUNCATED"
        self.aborted += episode.status == "ABORTED"
        version = oldest_version(episode)
        if version is not None:
            self.with_version += 1
            self.versions += version
        self.returns += _total(episode.rewards)

    @classmethod
    def total(cls, tallies: Iterable[Self]) -> Self:
        """Return the sums over the episodes of all of them."""
        total = cls()
        for tally in tallies:
            for field in dataclasses.fields(total):
                setattr(total, field.name, getattr(total, field.name) + getattr(tally, field.name))
        return total

    def totals(self) -> EpisodeTotals:
        """Return the means of the sums so far."""
        count = self.episodes
        return EpisodeTotals(
            episodes=count,
            transitions=self.transitions,
            mean_length=_mean(self.transitions, count),
            mean_return=_mean(_rounded(self.returns), count),
            completed_share=_mean(self.completed, count),
            truncated_share=_mean(self.truncated, count),
            aborted_share=_mean(self.aborted, count),
            mean_policy_version=_mean(self.versions, self.with_version),
        )


class Sums:
    """Sums over the ended episodes of a buffer that are no longer stored.

    Attributes:
        produced: Over all of them.
        trained: Over those that the learner trained on.
    """

    def __init__(self) -> None:
        self.produced, self.trained = Tally(), Tally()

    def add(self, episode: EndedEpisode, *, was_trained: bool) -> None:
        """Add an ended episode, and say whether the learner trained on it. O(steps)."""
        self.produced.add(episode)
        if was_trained:
            self.trained.add(episode)

    def with_stored(self, store: Any) -> Self:
        """Return the sums over all ended episodes, stored or not. O(stored steps)."""
        sums = type(self)()
        sums.produced, sums.trained = dataclasses.replace(self.produced), dataclasses.replace(self.trained)
        for episode in store.finished:
            sums.add(episode, was_trained=store.was_trained(episode))
        return sums


def oldest_version(episode: EndedEpisode) -> int | None:
    """Return the oldest known policy version of an episode; None if unknown. O(1), as versions never decrease."""
    if episode.policy_version is None and episode.version_changes:
        return episode.version_changes[0][1]
    return episode.policy_version


def _total(rewards: Sequence[float]) -> fractions.Fraction:
    """Return the sum of finite rewards, rounded once to a float; as it is if no float holds it."""
    try:
        return fractions.Fraction(math.fsum(rewards))
    except OverflowError:
        return sum(map(fractions.Fraction, rewards), fractions.Fraction())


def _rounded(total: fractions.Fraction) -> float:
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None
