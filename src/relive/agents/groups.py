"""Groups of episodes that are trained on together, such as k responses to one prompt.

    gathering    some of its episodes are open or have ended; another may start
    whole        all have ended, or enough had at its timeout: it waits for the learner
    closed       it was delivered or given up; remembered while an episode of it is stored

Only episodes that ended with a transition, and not as ABORTED, count; any other makes room for another attempt.
Invariant: time is an argument, and due groups are handled before anything else, so results do not depend on how often
the clock is checked.
"""

import collections
from collections.abc import Iterable, Iterator
import copy
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar

from relive import errors
from relive.agents import bias
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.persistence import registry

T = TypeVar("T")


class PendingEpisodes(Generic[T]):
    """Items in order of arrival. Each call but `find` costs O(1) or O(distinct versions)."""

    def __init__(self) -> None:
        self._items: collections.OrderedDict[str, tuple[T, int | None]] = collections.OrderedDict()
        self._versions: dict[int | None, int] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, key: str) -> bool:
        return key in self._items

    def __iter__(self) -> Iterator[T]:
        """Yield the items in order of arrival."""
        return (item for item, _ in self._items.values())

    def keys(self) -> Iterator[str]:
        """Yield their keys in that order."""
        return iter(self._items)

    def append(self, key: str, item: T, version: int | None) -> None:
        """Append an item under a unique key."""
        assert key not in self._items
        self._items[key] = item, version
        self._versions[version] = self._versions.get(version, 0) + 1

    def pop(self, key: str) -> T:
        """Remove and return the item with that key."""
        item, version = self._items.pop(key)
        self._versions[version] -= 1
        if not self._versions[version]:
            del self._versions[version]
        return item

    def copy(self) -> Self:
        """Return a copy with the same items."""
        other = type(self)()
        other._items, other._versions = self._items.copy(), self._versions.copy()
        return other

    def num_fresh(self, least: int | None, kept: int | None = None) -> int:
        """Return how many items are fresh enough and not reserved."""
        return sum(
            count
            for version, count in self._versions.items()
            if not _is_stale(version, least) and not _is_kept(version, kept)
        )

    def find(self, count: int, least: int | None, kept: int | None = None) -> tuple[list[str], list[str]]:
        """Return the keys of the first fresh items, and those of the stale items before them.

        O(items passed over).

        Args:
            count: Maximum number of items.
            least: The oldest acceptable version; items of unknown version are then stale. None if all are fresh.
            kept: The oldest version reserved for others; None if none is.
        """
        fresh: list[str] = []
        stale: list[str] = []
        for key, (_, version) in self._items.items():
            if len(fresh) == count:
                break
            if _is_stale(version, least):
                stale.append(key)
            elif not _is_kept(version, kept):
                fresh.append(key)
        return fresh, stale

    def __getitem__(self, key: str) -> T:
        return self._items[key][0]

    def check(self) -> None:
        """Recount the versions.

        Raises:
            CorruptionError: They disagree with the items.
        """
        versions = collections.Counter(version for _, version in self._items.values())
        if versions != self._versions:
            raise errors.CorruptionError(f"versions that wait must be {dict(versions)}, found {self._versions}")


def _is_stale(version: int | None, least: int | None) -> bool:
    return least is not None and (version is None or version < least)


def _is_kept(version: int | None, kept: int | None) -> bool:
    return kept is not None and version is not None and version >= kept


Episode: TypeAlias = episode_lib.Episode[Any, Any]
Phase: TypeAlias = Literal["GATHERING", "WHOLE", "CLOSED", "EVICTED"]
"""Where a group stands; EVICTED is closed too, because an episode of it had to make room."""
Dropped: TypeAlias = list[tuple[str, Episode]]


class Groups(registry.Configurable):
    """The size of groups of episodes, and how long to wait for the last episode.

    Args:
        size: Number of episodes in a group.
        timeout: Seconds, from the start of a group's first episode, within which all must have ended, above 0; None for
            no limit.
        min_size: Number of episodes that suffices at the timeout: the group is then delivered as it is. With fewer, it
            is given up and its ended episodes are dropped. None for `size`.

    Raises:
        ArgumentError: A number is invalid, min_size is above size, or it is given without a timeout.

    >>> from relive.agents import groups
    >>> groups.Groups(8, timeout=600, min_size=6)
    Groups(size=8, timeout=600.0, min_size=6)
    """

    def __init__(self, size: int, timeout: float | None = None, min_size: int | None = None) -> None:
        self.size = validation.positive_int("size", size)
        self.timeout = timeout
        if timeout is not None:
            self.timeout = validation.non_negative_float("timeout", timeout)
            if not self.timeout:
                raise errors.ArgumentError(
                    f"timeout must be above 0 seconds (None for no timeout), got {validation.short_repr(timeout)}"
                )
        self.min_size = min_size
        if min_size is not None:
            self.min_size = validation.positive_int("min_size", min_size)
            if self.min_size > self.size:
                raise errors.ArgumentError(f"min_size must be at most size = {self.size}, got {self.min_size}")
            if timeout is None:
                raise errors.ArgumentError(f"min_size must come with a timeout, got {self.min_size} without one")

    def __repr__(self) -> str:
        return f"Groups(size={self.size}, timeout={self.timeout}, min_size={self.min_size})"

    @property
    def least_size(self) -> int:
        """Minimum number of episodes in a delivered group."""
        return self.size if self.min_size is None else self.min_size


class _Group:
    """The state of one group."""

    __slots__ = ("ended", "phase", "running", "since", "stored")

    def __init__(self, phase: Phase, since: float) -> None:
        self.phase: Phase = phase
        self.since = since
        self.running = 0
        self.stored = 0
        self.ended: list[Episode] = []


class GroupBook:
    """The groups of one buffer, by id. Each call costs O(episodes of a group).

    Args:
        rule: The rule for completeness.
    """

    def __init__(self, rule: Groups) -> None:
        self._rule = rule
        self._groups: dict[str, _Group] = {}
        # Ordered by the start of their first episodes, so the first is the next to fall due.
        self._gathering: collections.OrderedDict[str, _Group] = collections.OrderedDict()
        self.whole: PendingEpisodes[list[Episode]] = PendingEpisodes()
        """Those that wait for the learner, each a list of its episodes, the first to end first."""

    def __len__(self) -> int:
        """Return the number of groups remembered."""
        return len(self._groups)

    @property
    def due(self) -> float | None:
        """When the next group falls due, by the clock given to `started`; None if none will."""
        if self._rule.timeout is None or not self._gathering:
            return None
        return next(iter(self._gathering.values())).since + self._rule.timeout

    def pass_time(self, now: float) -> Dropped:
        """Close the groups whose timeout has passed, and return the dropped episodes. O(1) amortised."""
        dropped: Dropped = []
        while (due := self.due) is not None and due <= now:
            group_id, group = next(iter(self._gathering.items()))
            if len(group.ended) >= self._rule.least_size:
                self._make_whole(group_id, group)
            else:
                dropped.extend(("straggler", episode) for episode in self._close(group_id, group, "CLOSED"))
        return dropped

    def restart_times(self, now: float) -> None:
        """Restart the timeouts of gathering groups."""
        for group in self._gathering.values():
            group.since = now

    def check_start(self, group_id: str) -> None:
        """Raise ArgumentError unless another episode may start in that group."""
        group = self._groups.get(group_id)
        if group is None:
            return
        name = f"group {validation.short_repr(group_id)}"
        if group.phase != "GATHERING":
            why = "is whole already" if group.phase == "WHOLE" else "was handed out or given up"
            raise errors.ArgumentError(f"no episode can start in {name}: it {why}")
        if group.running + len(group.ended) >= self._rule.size:
            raise errors.ArgumentError(
                f"no episode can start in {name}: it has {self._rule.size} of {self._rule.size} that run or have ended"
            )

    def started(self, group_id: str, now: float) -> None:
        """Record that an episode has started in a group, after `check_start`."""
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = self._gathering[group_id] = _Group("GATHERING", now)
        group.running += 1
        group.stored += 1

    def ended(self, group_id: str, episode: Episode, *, counts: bool) -> bool:
        """Record that an open episode of a group has ended, and return whether it came too late.

        Args:
            group_id: Its group.
            episode: The episode.
            counts: Whether it can be trained on.
        """
        group = self._groups[group_id]
        group.running -= 1
        if not counts:
            return False
        if group.phase != "GATHERING":
            return True
        group.ended.append(episode)
        if len(group.ended) == self._rule.size:
            self._make_whole(group_id, group)
        return False

    def reason(self, group_id: str) -> str:
        """Return why an episode that came too late for its group is dropped."""
        return "evicted" if self._groups[group_id].phase == "EVICTED" else "straggler"

    def left(self, group_id: str, episode: Episode) -> Dropped:
        """Record that an ended episode of a group was evicted, and return the dropped episodes."""
        group = self._groups[group_id]
        dropped: Dropped = [("evicted", each) for each in self.give_up(group_id, episode, "EVICTED")]
        group.stored -= 1
        if not group.stored:
            self._gathering.pop(group_id, None)
            del self._groups[group_id]
        return dropped

    def give_up(self, group_id: str, episode: Episode, phase: Phase = "CLOSED") -> list[Episode]:
        """Close the group of an episode, if the episode waits in it, and return all its waiting episodes."""
        group = self._groups[group_id]
        waits = any(each is episode for each in group.ended)
        return self._close(group_id, group, phase) if waits else []

    def take(self, group_id: str) -> list[Episode]:
        """Close a whole group, and return its episodes."""
        return self._close(group_id, self._groups[group_id], "CLOSED")

    def waiting(self) -> Iterator[Episode]:
        """Yield the ended episodes that wait for their group or for the learner."""
        for group in self._groups.values():
            yield from group.ended

    def is_closed(self, group_id: str) -> bool:
        """Return whether a group was delivered or given up."""
        return self._groups[group_id].phase in ("CLOSED", "EVICTED")

    def _make_whole(self, group_id: str, group: _Group) -> None:
        group.phase = "WHOLE"
        del self._gathering[group_id]
        self.whole.append(group_id, group.ended, oldest_version(group.ended))

    def _close(self, group_id: str, group: _Group, phase: Phase) -> list[Episode]:
        """Close a group, and return its waiting episodes."""
        ended, group.ended = group.ended, []
        if group.phase == "WHOLE":
            self.whole.pop(group_id)
        else:
            del self._gathering[group_id]
        group.phase = phase
        return ended

    # Persistence.

    def copy(self) -> Self:
        """Return a copy with the same groups."""
        other = type(self)(self._rule)
        for group_id, group in self._groups.items():
            other._groups[group_id] = copied = copy.copy(group)
            copied.ended = group.ended.copy()
        other._gathering = collections.OrderedDict((group_id, other._groups[group_id]) for group_id in self._gathering)
        other.whole = self.whole.copy()
        return other

    def phases(self) -> list[tuple[str, Phase, float]]:
        """Return the id of each group, its phase, and when its first episode started, by the same clock.

        Gathering groups come first, in the order of their starts, then complete ones in order of completion, then
        closed ones by name.
        """
        ids = [*self._gathering, *self.whole.keys()]
        listed = set(ids)
        ids += sorted(group_id for group_id in self._groups if group_id not in listed)
        groups = [(group_id, self._groups[group_id]) for group_id in ids]
        return [(group_id, group.phase, group.since) for group_id, group in groups]

    def resume(self, phases: Iterable[tuple[str, Phase, float]], episodes: Iterable[tuple[Episode, bool]]) -> None:
        """Fill an empty book.

        Args:
            phases: As `phases` returns them.
            episodes: The episodes of groups, ended ones in order of ending, and whether each waits.

        Raises:
            CorruptionError: The groups contradict the episodes.
        """
        for group_id, phase, since in phases:
            if group_id in self._groups:
                raise errors.CorruptionError(f"group {validation.short_repr(group_id)} is there twice")
            group = self._groups[group_id] = _Group(phase, since)
            if phase == "GATHERING":
                self._gathering[group_id] = group
        for episode, waits in episodes:
            group_id = str(episode.group_id)
            if group_id not in self._groups:
                raise errors.CorruptionError(f"group {validation.short_repr(group_id)} of a stored episode is missing")
            group = self._groups[group_id]
            group.stored += 1
            group.running += episode.status == "IN_PROGRESS"
            if waits:
                group.ended.append(episode)
        for group_id, group in self._groups.items():
            if group.phase == "WHOLE" and group.ended:
                self.whole.append(group_id, group.ended, oldest_version(group.ended))
        self.check()

    def check(self) -> None:
        """Raise CorruptionError if a group is inconsistent."""
        self.whole.check()
        for group_id, group in self._groups.items():
            waiting = len(group.ended)
            is_sound = (
                group.stored >= group.running + waiting
                and group.stored > 0
                and (group_id in self._gathering) == (group.phase == "GATHERING")
                and (group_id in self.whole) == (group.phase == "WHOLE")
            )
            if group.phase == "GATHERING":
                is_sound = is_sound and waiting < self._rule.size
            elif group.phase == "WHOLE":
                is_sound = is_sound and self._rule.least_size <= waiting <= self._rule.size
            else:
                is_sound = is_sound and not waiting
            if not is_sound:
                raise errors.CorruptionError(
                    f"group {validation.short_repr(group_id)} cannot be {group.phase} with {group.stored} episodes, "
                    f"of which {group.running} run and {waiting} wait"
                )
        if [group.since for group in self._gathering.values()] != sorted(
            group.since for group in self._gathering.values()
        ):
            raise errors.CorruptionError("groups that gather must be in the order of their starts")


def oldest_version(episodes: Iterable[Episode]) -> int | None:
    """Return the oldest policy version of some episodes; None if unknown."""
    versions = map(bias.oldest_version, episodes)
    return min((version for version in versions if version is not None), default=None)
