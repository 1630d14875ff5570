"""TrainingBias: how the episodes that a learner trained on differ from those produced.

Dropping stale episodes and stragglers selects: the remaining ones may be shorter or better than average.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import fractions
import math
from typing import Any, Protocol, Self

from relive.episodes import episode as episode_lib


class EndedEpisode(Protocol):
    """What the queue of a learner reads of an Episode, or of the EpisodeFacts of a token buffer."""

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


REASONS = ("aborted", "cleared", "empty", "evicted", "rejected", "resumed", "stale", "straggler")
"""Those of the buffer itself; `reject` may say others."""
MOST_REASONS = 100
MOST_SOURCES = 1000
OTHERS = "(others)"


class Drops:
    """Counts by reason and source; the first of each are named, and the rest counted together."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}
        self._reasons, self._sources = {*REASONS, OTHERS}, {OTHERS}

    def count(self, reason: str, source: str, episodes: int = 1) -> None:
        """Count episodes. O(1)."""
        by_source = self._counts.setdefault(_named(reason, self._reasons, MOST_REASONS + len(REASONS)), {})
        source = _named(source, self._sources, MOST_SOURCES)
        by_source[source] = by_source.get(source, 0) + episodes

    def view(self) -> dict[str, dict[str, int]]:
        """Return a copy of the counts, with the reasons in alphabetical order."""
        return {reason: dict(by_source) for reason, by_source in sorted(self._counts.items())}


def _named(name: str, known: set[str], most: int) -> str:
    """Return the name if it is among the first `most` names; else OTHERS."""
    if name not in known:
        if len(known) > most:
            return OTHERS
        known.add(name)
    return name


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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrainingBias:
    """Statistics of produced episodes and of those trained on.

    Attributes:
        produced: All episodes that have ended.
        trained: Those that were sampled, or delivered and not rejected.
    """

    produced: EpisodeTotals
    trained: EpisodeTotals

    @property
    def difference(self) -> dict[str, float]:
        """The means and shares of `trained` minus those of `produced`, by name, if both are known."""
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
        queue: The queue of the learner, if there is one.
    """

    def __init__(self) -> None:
        self.produced, self.trained = Tally(), Tally()
        self.queue: Any = None

    def add(self, episode: EndedEpisode, *, was_drawn: bool) -> None:
        """Add an ended episode, while it is still stored. O(steps)."""
        self.produced.add(episode)
        if was_drawn or (self.queue is not None and self.queue.is_delivered(episode)):
            self.trained.add(episode)

    def with_stored(self, store: Any) -> Self:
        """Return the sums over all ended episodes, stored or not. O(stored steps)."""
        sums = type(self)()
        sums.produced, sums.trained = dataclasses.replace(self.produced), dataclasses.replace(self.trained)
        sums.queue = self.queue
        for episode in store.finished:
            sums.add(episode, was_drawn=store.was_drawn(episode))
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
