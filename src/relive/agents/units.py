"""Units: what is delivered together, a single episode or a group, and the line of those that wait for the learner.

    GATHERING    a group of which some episodes are open or have ended; another may start
    COMPLETE     it waits for the learner: it is in a line
    DELIVERED    the learner has it
    CLOSED       it was dropped, or all its episodes were taken out
    EVICTED      it was dropped because one of its episodes had to make room

`TRANSITIONS` is the law. A single episode has a unit, which is COMPLETE at first, from when it waits until it is CLOSED
or EVICTED; a group has one while an episode of it is stored. Two things are not in the table: the version of a delivery
is known until that is acknowledged, also while the unit waits again; and an episode that ends too late for its group is
dropped, and changes no state.
"""

import collections
from collections.abc import Iterable, Iterator
import dataclasses
import enum
from typing import ClassVar

from relive import errors
from relive.episodes import sums


class DeliveryState(enum.IntEnum):
    """Where a unit stands."""

    GATHERING = 0
    COMPLETE = 1
    DELIVERED = 2
    CLOSED = 3
    EVICTED = 4


class Event(enum.IntEnum):
    """What happens to a unit.

    FILLED      enough episodes of the group have ended, or its time is up
    TAKEN       the learner gets it, or acknowledges what was to come again
    RETURNED    it waits again
    DROPPED     it will never be trained on
    EVICTED     likewise, because one of its episodes is evicted
    EMPTIED     the last of its episodes that were delivered was evicted, rejected or dropped
    """

    FILLED = enum.auto()
    TAKEN = enum.auto()
    RETURNED = enum.auto()
    DROPPED = enum.auto()
    EVICTED = enum.auto()
    EMPTIED = enum.auto()


TRANSITIONS = {
    (DeliveryState.GATHERING, Event.FILLED): DeliveryState.COMPLETE,
    (DeliveryState.GATHERING, Event.TAKEN): DeliveryState.DELIVERED,  # In a replay, where no time passes.
    (DeliveryState.GATHERING, Event.DROPPED): DeliveryState.CLOSED,
    (DeliveryState.GATHERING, Event.EVICTED): DeliveryState.EVICTED,
    (DeliveryState.COMPLETE, Event.TAKEN): DeliveryState.DELIVERED,
    (DeliveryState.COMPLETE, Event.DROPPED): DeliveryState.CLOSED,
    (DeliveryState.COMPLETE, Event.EVICTED): DeliveryState.EVICTED,
    (DeliveryState.DELIVERED, Event.RETURNED): DeliveryState.COMPLETE,
    (DeliveryState.DELIVERED, Event.EMPTIED): DeliveryState.CLOSED,
}
"""The state after each event that can happen in a state."""
PENDING = frozenset(state for state, event in TRANSITIONS if event is Event.TAKEN)
"""Where a unit may still be delivered."""
FINAL = frozenset(DeliveryState) - {state for state, _ in TRANSITIONS}
"""Where nothing happens to a unit any more."""


@dataclasses.dataclass(slots=True, eq=False)
class Unit:
    """A single episode.

    Attributes:
        key: The id of the episode, or of the group.
        state: Where it stands.
        episodes: Those that can be trained on, in the order in which they ended; once they were delivered, without
            those that were evicted or rejected since.
        version: The learner's policy version when the unit was delivered, -1 for none, until that is acknowledged; also
            while the unit waits again.
    """

    is_group: ClassVar[bool] = False

    key: str
    state: DeliveryState
    episodes: list[sums.EndedEpisode] = dataclasses.field(default_factory=list)
    version: int | None = None

    def note(self, event: Event) -> None:
        """Go to the next state."""
        self.state = TRANSITIONS[self.state, event]

    @property
    def is_delivered(self) -> bool:
        """Whether the learner has it."""
        return self.state is DeliveryState.DELIVERED

    @property
    def is_pending(self) -> bool:
        """Whether it may still be delivered."""
        return self.state in PENDING

    def is_older(self, least: int | None) -> bool:
        """Return whether its oldest version is known, and below `least`."""
        version = self.oldest_version
        return least is not None and version is not None and version < least

    @property
    def oldest_version(self) -> int | None:
        """The oldest policy version of its episodes; None if unknown."""
        versions = [version for version in map(sums.oldest_version, self.episodes) if version is not None]
        return min(versions, default=None)


@dataclasses.dataclass(slots=True, eq=False)
class GroupUnit(Unit):
    """A group.

    Attributes:
        since: When its first episode started, by the monotonic clock.
        running: Number of its episodes that are open.
        stored: Number of its episodes that are stored.
    """

    is_group: ClassVar[bool] = True

    since: float = 0.0
    running: int = 0
    stored: int = 0


class Line:
    """Complete units by key, in the order in which they wait. Each call but `find` costs O(1) or O(versions).

    Attributes:
        num_removed: How many units were removed so far; not part of the state.
    """

    def __init__(self) -> None:
        self.num_removed = 0
        self._units: collections.OrderedDict[str, tuple[Unit, int | None]] = collections.OrderedDict()
        self._versions: collections.Counter[int | None] = collections.Counter()

    def __len__(self) -> int:
        return len(self._units)

    def __contains__(self, unit: Unit) -> bool:
        return unit.key in self._units and self._units[unit.key][0] is unit

    def __iter__(self) -> Iterator[Unit]:
        return (unit for unit, _ in self._units.values())

    def add(self, unit: Unit, *, first: bool = False) -> None:
        """Let a complete unit wait behind all others, or before them."""
        version = unit.oldest_version
        self._units[unit.key] = unit, version
        self._versions[version] += 1
        if first:
            self._units.move_to_end(unit.key, last=False)

    def remove(self, unit: Unit) -> None:
        """Remove a unit, whose state the caller changes."""
        _, version = self._units.pop(unit.key)
        self.num_removed += 1
        self._versions[version] -= 1
        if not self._versions[version]:
            del self._versions[version]

    def num_fresh(self, least: int | None, kept: int | None = None) -> int:
        """Return how many units are fresh enough and not reserved; see `find`."""
        return sum(count for version, count in self._versions.items() if _is_fresh(version, least, kept))

    def find(self, count: int, least: int | None, kept: int | None = None) -> tuple[list[Unit], list[Unit]]:
        """Return the first fresh units, at most `count`, and the stale ones before them. O(units passed over).

        Args:
            count: Maximum number of units.
            least: The oldest acceptable version; units of unknown version are then stale. None if all are fresh.
            kept: The oldest version reserved for others; None if none is.
        """
        fresh: list[Unit] = []
        stale: list[Unit] = []
        for unit, version in self._units.values():
            if len(fresh) == count:
                break
            if _is_fresh(version, least, kept):
                fresh.append(unit)
            elif not _is_fresh(version, least):
                stale.append(unit)
        return fresh, stale

    def check(self) -> None:
        """Raise CorruptionError if the versions are miscounted, or a unit that waits is not complete."""
        versions = collections.Counter(unit.oldest_version for unit in self)
        if versions != self._versions:
            raise errors.CorruptionError(f"versions that wait must be {dict(versions)}, found {dict(self._versions)}")
        if any(unit.state is not DeliveryState.COMPLETE for unit in self):
            raise errors.CorruptionError("what waits for the learner must be complete")


def _is_fresh(version: int | None, least: int | None, kept: int | None = None) -> bool:
    is_stale = least is not None and (version is None or version < least)
    return not is_stale and (kept is None or version is None or version < kept)


def episodes_of(units: Iterable[Unit]) -> list[sums.EndedEpisode]:
    """Return the episodes of some units."""
    return [episode for unit in units for episode in unit.episodes]
