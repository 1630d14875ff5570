"""Groups of episodes that are trained on together, such as k responses to one prompt.

    gathering    some of its episodes are open or have ended; another may start
    whole        all have ended, or enough had at its timeout: it waits for the learner
    closed       it was delivered or given up; remembered while an episode of it is stored

Only episodes that ended with a transition, and not as ABORTED, count; any other makes room for another attempt.
Invariant: time is an argument, and due groups are handled before anything else, so results do not depend on how often
the clock is checked.
"""

import collections
from collections.abc import Callable, Iterable, Iterator
import copy
import itertools
from typing import Generic, Literal, Self, TypeAlias, TypeVar

import numpy as np

from relive import errors
from relive.agents import bias
from relive.common import validation
from relive.persistence import registry

T = TypeVar("T")


class PendingEpisodes(Generic[T]):
    """Items that wait for the learner, in order of arrival, or in passes of random order.

    Each call but `find` costs O(1) or O(distinct versions), except for removals from the next pass, which cost O(its
    items).

    Args:
        rng: Draws the order of passes. A pass begins when its first item is removed; what arrives from then on belongs
            to the next pass. None for one endless pass in order of arrival.
    """

    def __init__(self, rng: np.random.Generator | None = None) -> None:
        self._rng = rng
        self._pass: collections.OrderedDict[str, tuple[T, int | None]] = collections.OrderedDict()
        self._later: dict[str, tuple[T, int | None]] = {}
        self._later_order: list[str] = []
        self._versions: collections.Counter[int | None] = collections.Counter()

    def __len__(self) -> int:
        return len(self._pass) + len(self._later)

    def __contains__(self, key: str) -> bool:
        return key in self._pass or key in self._later

    def __getitem__(self, key: str) -> T:
        return (self._pass[key] if key in self._pass else self._later[key])[0]

    def __iter__(self) -> Iterator[T]:
        """Yield the items in the order in which they will be found."""
        return (self[key] for key in self.keys())

    def keys(self) -> Iterator[str]:
        """Yield their keys in that order."""
        return itertools.chain(self._pass, self._later_order)

    @property
    def num_in_pass(self) -> int:
        """Number of items in the present pass."""
        return len(self._pass)

    def append(self, key: str, item: T, version: int | None) -> None:
        """Append an item under a unique key."""
        assert key not in self
        self._versions[version] += 1
        if self._rng is None:
            self._pass[key] = item, version
            return
        # The inside-out form of the Fisher-Yates shuffle, so that every order of the next pass is equally likely.
        self._later[key] = item, version
        place = int(self._rng.integers(len(self._later)))
        self._later_order.append(key)
        self._later_order[place], self._later_order[-1] = key, self._later_order[place]

    def prepend(self, key: str, item: T, version: int | None) -> None:
        """Put an item under a unique key before all others."""
        assert key not in self
        self._versions[version] += 1
        self._pass[key] = item, version
        self._pass.move_to_end(key, last=False)

    def pop(self, key: str) -> T:
        """Remove and return the item with that key."""
        if not self._pass:
            self._pass.update((each, self._later[each]) for each in self._later_order)
            self._later, self._later_order = {}, []
        if key in self._pass:
            item, version = self._pass.pop(key)
        else:
            item, version = self._later.pop(key)
            self._later_order.remove(key)
        self._versions[version] -= 1
        if not self._versions[version]:
            del self._versions[version]
        return item

    def copy(self) -> Self:
        """Return a copy with the same items."""
        other = copy.copy(self)
        other._pass, other._later = self._pass.copy(), self._later.copy()
        other._later_order, other._versions = self._later_order.copy(), self._versions.copy()
        return other

    def fill(self, items: Iterable[tuple[str, T, int | None]], num_in_pass: int) -> None:
        """Fill an empty line with items in the order of `keys`, the first of them in the present pass."""
        for number, (key, item, version) in enumerate(items):
            self._versions[version] += 1
            if number < num_in_pass:
                self._pass[key] = item, version
            else:
                self._later[key] = item, version
                self._later_order.append(key)

    def num_fresh(self, least: int | None, kept: int | None = None) -> int:
        """Return how many items are fresh enough and not reserved."""
        return sum(
            count
            for version, count in self._versions.items()
            if not _is_stale(version, least) and not _is_kept(version, kept)
        )

    def find(
        self,
        count: int,
        least: int | None,
        kept: int | None = None,
        admits: Callable[[T], bool] = lambda item: True,
    ) -> tuple[list[str], list[str]]:
        """Return the keys of the first fresh items, and those of the stale items before them.

        O(items passed over).

        Args:
            count: Maximum number of items.
            least: The oldest acceptable version; items of unknown version are then stale. None if all are fresh.
            kept: The oldest version reserved for others; None if none is.
            admits: Returns whether a fresh item is taken too; called in order, and to be forgotten afterwards.
        """
        fresh: list[str] = []
        stale: list[str] = []
        for key in self.keys():
            if len(fresh) == count:
                break
            item, version = self._pass[key] if key in self._pass else self._later[key]
            if _is_stale(version, least):
                stale.append(key)
            elif not _is_kept(version, kept) and admits(item):
                fresh.append(key)
        return fresh, stale

    def check(self) -> None:
        """Recount the versions.

        Raises:
            CorruptionError: They disagree with the items.
        """
        waiting = [*self._pass.values(), *self._later.values()]
        versions = collections.Counter(version for _, version in waiting)
        if versions != self._versions:
            raise errors.CorruptionError(f"versions that wait must be {dict(versions)}, found {dict(self._versions)}")
        if sorted(self._later_order) != sorted(self._later):
            raise errors.CorruptionError("the next pass must hold each of its items once")


def _is_stale(version: int | None, least: int | None) -> bool:
    return least is not None and (version is None or version < least)


def _is_kept(version: int | None, kept: int | None) -> bool:
    return kept is not None and version is not None and version >= kept


Episode: TypeAlias = bias.EndedEpisode
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
        rng: Draws the order of the passes over whole groups; None if each is delivered once.
    """

    def __init__(self, rule: Groups, rng: np.random.Generator | None = None) -> None:
        self._rule = rule
        self._groups: dict[str, _Group] = {}
        # Ordered by the start of their first episodes, so the first is the next to fall due.
        self._gathering: collections.OrderedDict[str, _Group] = collections.OrderedDict()
        self.whole: PendingEpisodes[list[Episode]] = PendingEpisodes(rng)
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

    @property
    def gathering(self) -> list[str]:
        """The ids of the groups that are not complete."""
        return list(self._gathering)

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
        """Close a gathering or whole group, and return its waiting episodes."""
        return self._close(group_id, self._groups[group_id], "CLOSED")

    def restore(self, group_id: str, ended: list[Episode], *, first: bool) -> None:
        """Let the episodes of a closed group wait again, before all others or as if they had just become whole."""
        group = self._groups[group_id]
        group.phase, group.ended = "WHOLE", ended
        put = self.whole.prepend if first else self.whole.append
        put(group_id, ended, oldest_version(ended))

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
        other = copy.copy(self)
        other._groups = {}
        for group_id, group in self._groups.items():
            other._groups[group_id] = copied = copy.copy(group)
            copied.ended = group.ended.copy()
        other._gathering = collections.OrderedDict((group_id, other._groups[group_id]) for group_id in self._gathering)
        other.whole = self.whole.copy()
        return other

    def phases(self) -> list[tuple[str, Phase, float]]:
        """Return the id of each group, its phase, and when its first episode started, by the same clock.

        Gathering groups come first, in the order of their starts, then complete ones in the order in which they wait,
        then closed ones by name.
        """
        ids = [*self._gathering, *self.whole.keys()]
        listed = set(ids)
        ids += sorted(group_id for group_id in self._groups if group_id not in listed)
        groups = [(group_id, self._groups[group_id]) for group_id in ids]
        return [(group_id, group.phase, group.since) for group_id, group in groups]

    def resume(
        self,
        phases: Iterable[tuple[str, Phase, float]],
        episodes: Iterable[tuple[Episode, bool]],
        num_in_pass: int,
    ) -> None:
        """Fill an empty book.

        Args:
            phases: As `phases` returns them.
            episodes: The episodes of groups, ended ones in order of ending, and whether each waits.
            num_in_pass: Number of whole groups in the present pass.

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
        whole = [(each, group.ended) for each, group in self._groups.items() if group.phase == "WHOLE" and group.ended]
        self.whole.fill([(each, ended, oldest_version(ended)) for each, ended in whole], num_in_pass)
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
