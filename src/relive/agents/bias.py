"""TrainingBias: how the episodes that a learner trained on differ from those produced.

Dropping stale episodes and stragglers selects: the remaining ones may be shorter or better than average.
"""

import dataclasses

from relive.episodes import sums

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
class TrainingBias:
    """Statistics of produced episodes and of those trained on.

    Attributes:
        produced: All episodes that have ended.
        trained: Those that were sampled, or delivered and not rejected.
    """

    produced: sums.EpisodeTotals
    trained: sums.EpisodeTotals

    @property
    def difference(self) -> dict[str, float]:
        """The means and shares of `trained` minus those of `produced`, by name, if both are known."""
        answer = {}
        for field in dataclasses.fields(sums.EpisodeTotals):
            produced, trained = getattr(self.produced, field.name), getattr(self.trained, field.name)
            if field.name not in ("episodes", "transitions") and produced is not None and trained is not None:
                answer[field.name] = trained - produced
        return answer
