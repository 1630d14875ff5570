"""Groups of episodes that are trained on together, such as k responses to one prompt.

A group is complete once `size` of its episodes have ended, or at its timeout with `min_size` of them. It is remembered
while an episode of it is stored. Only episodes that ended with a transition, and not as ABORTED, count; any other makes
room for another attempt.

Invariant: time is an argument, and due groups are handled before anything else, so results do not depend on how often
the clock is checked.
"""

import collections

from relive import errors
from relive.agents import units
from relive.common import validation
from relive.episodes import sums
from relive.persistence import registry

Episode = sums.EndedEpisode
GATHERING, COMPLETE = units.DeliveryState.GATHERING, units.DeliveryState.COMPLETE


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
    def _least_size(self) -> int:
        """Minimum number of episodes in a delivered group."""
        return self.size if self.min_size is None else self.min_size


def sizes(rule: Groups | None) -> range:
    """Return how many episodes what is delivered together may have: a group of that rule, or a single episode."""
    return range(1, 2) if rule is None else range(rule._least_size, rule.size + 1)


class GroupTracker:
    """The groups of one buffer, by id. Each call costs O(episodes of a group).

    Args:
        rule: The rule for completeness.

    Attributes:
        groups: The groups of which an episode is stored.
        gathering: Those that are not complete, ordered by the start of their first episodes: the first falls due next.
        complete: Those that wait for the learner.
    """

    def __init__(self, rule: Groups) -> None:
        self._rule = rule
        self.groups: dict[str, units.GroupUnit] = {}
        self.gathering: collections.OrderedDict[str, units.GroupUnit] = collections.OrderedDict()
        self.complete = units.Line()

    @property
    def due(self) -> float | None:
        """When the next group falls due, by the clock given to `started`; None if none will."""
        if self._rule.timeout is None or not self.gathering:
            return None
        return next(iter(self.gathering.values())).since + self._rule.timeout

    def pass_time(self, now: float) -> list[Episode]:
        """Complete or close the groups whose timeout has passed, and return the stragglers. O(1) amortised."""
        dropped: list[Episode] = []
        while (due := self.due) is not None and due <= now:
            group = next(iter(self.gathering.values()))
            if len(group.episodes) >= self._rule._least_size:
                self._complete(group)
            else:
                dropped += self.close(group, units.Event.DROPPED)
        return dropped

    def restart_times(self, now: float) -> None:
        """Restart the timeouts of gathering groups."""
        for group in self.gathering.values():
            group.since = now

    def check_start(self, group_id: str) -> None:
        """Raise ArgumentError unless another episode may start in that group."""
        group = self.groups.get(group_id)
        if group is None:
            return
        name = f"group {validation.short_repr(group_id)}"
        if group.state is not GATHERING:
            why = "is whole already" if group.state is COMPLETE else "was handed out or given up"
            raise errors.ArgumentError(f"no episode can start in {name}: it {why}")
        if group.running + len(group.episodes) >= self._rule.size:
            raise errors.ArgumentError(
                f"no episode can start in {name}: it has {self._rule.size} of {self._rule.size} that run or have ended"
            )

    def started(self, group_id: str, now: float) -> None:
        """Record that an episode has started in a group, after `check_start`."""
        group = self.groups.get(group_id)
        if group is None:
            group = units.GroupUnit(group_id, GATHERING, since=now)
            self.groups[group_id] = self.gathering[group_id] = group
        group.running += 1
        group.stored += 1

    def ended(self, group: units.GroupUnit, episode: Episode, *, counts: bool) -> str | None:
        """Record that an open episode has ended, and return why it is dropped if it counts and came too late."""
        group.running -= 1
        if not counts:
            return None
        if group.state is not GATHERING:
            return "evicted" if group.state is units.DeliveryState.EVICTED else "straggler"
        group.episodes.append(episode)
        if len(group.episodes) == self._rule.size:
            self._complete(group)
        return None

    def left(self, group: units.GroupUnit) -> None:
        """Record that an ended episode of a group is evicted."""
        group.stored -= 1
        if not group.stored:
            self.gathering.pop(group.key, None)
            del self.groups[group.key]

    def close(self, group: units.GroupUnit, event: units.Event) -> list[Episode]:
        """End the waiting of a pending group, and return its episodes; a delivered one keeps them."""
        if group.state is COMPLETE:
            self.complete.remove(group)
        else:
            del self.gathering[group.key]
        group.note(event)
        episodes = group.episodes
        if not group.is_delivered:
            group.episodes = []
        return episodes

    def _complete(self, group: units.GroupUnit) -> None:
        del self.gathering[group.key]
        group.note(units.Event.FILLED)
        self.complete.add(group)

    def check(self) -> None:
        """Raise CorruptionError if a group is inconsistent."""
        self.complete.check()
        for group_id, group in self.groups.items():
            waiting, state = len(group.episodes), group.state
            fitting = {
                GATHERING: range(self._rule.size),
                COMPLETE: sizes(self._rule),
            }
            is_sound = (
                group.stored >= group.running + waiting
                and group.stored > 0
                and (self.gathering.get(group_id) is group) == (state is GATHERING)
                and (group in self.complete) == (state is COMPLETE)
                and (group.is_delivered or waiting in fitting.get(state, (0,)))
            )
            if not is_sound:
                raise errors.CorruptionError(
                    f"group {validation.short_repr(group_id)} cannot be {state.name} with {group.stored} episodes, "
                    f"of which {group.running} run and {waiting} wait"
                )
        starts = [group.since for group in self.gathering.values()]
        if starts != sorted(starts):
            raise errors.CorruptionError("groups that gather must be in the order of their starts")
