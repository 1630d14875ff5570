"""How many episodes the learner was not given, by reason and by source.

    aborted      it ended as ABORTED
    cleared      `clear` forgot it while it waited
    empty        it ended without a transition
    evicted      it made room for others while it waited
    stale        the policy had moved on too far
    straggler    its group was handed out without it, or given up

A source is an agent. The first thousand are counted by name, all others together: whoever makes up an agent for each
episode does not fill the memory.
"""

from collections.abc import Mapping
import types
from typing import Literal, TypeAlias, get_args

Reason: TypeAlias = Literal["aborted", "cleared", "empty", "evicted", "stale", "straggler"]

REASONS: tuple[Reason, ...] = get_args(Reason)
MOST_SOURCES = 1000
OTHERS = "(others)"


class Drops:
    """Counts by reason and source."""

    def __init__(self) -> None:
        self._counts: dict[Reason, dict[str, int]] = {}
        self._sources: set[str] = set()

    def count(self, reason: Reason, source: str, episodes: int = 1) -> None:
        """Counts so many episodes more. O(1)."""
        if source not in self._sources and source != OTHERS:
            if len(self._sources) < MOST_SOURCES:
                self._sources.add(source)
            else:
                source = OTHERS
        by_source = self._counts.setdefault(reason, {})
        by_source[source] = by_source.get(source, 0) + episodes

    def view(self) -> Mapping[str, Mapping[str, int]]:
        """Answers the counts as they are now, in the order of the alphabet of reasons; nobody can write to them."""
        return types.MappingProxyType(
            {reason: types.MappingProxyType(dict(self._counts[reason])) for reason in REASONS if reason in self._counts}
        )
