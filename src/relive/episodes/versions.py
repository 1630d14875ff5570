"""VersionCounts: counts transitions, all and those of each policy version, and draws among those of some versions.

    version    finished, oldest first    open          steps a0 a1 a2 are of version 6
    6          a 3  b 1                  d 2           b0 is too, b1 and b2 are of version 7
    7          b 2                       d 3  e 1      d is going on with version 7

The versions in an episode never decrease, so each version has one run of steps. Episodes are evicted in the order in
which they finished, from the left of each deque. Appending costs O(1), evicting O(1) per run; a version without stored
transitions is dropped. A draw costs O(versions it may take + size log episodes).

Steps of unknown version are among ALL alone.
"""

import bisect
from collections.abc import Iterable
import dataclasses
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.common import validation
from relive.episodes import counts as counts_lib
from relive.episodes import episode as episode_lib

Episode: TypeAlias = episode_lib.Episode[Any, Any]
Pool: TypeAlias = counts_lib.Pool[Episode]

ALL = -1
"""Stands for all transitions where others are of one version."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lags:
    """Which lags may be drawn, and how likely. The lag of a step is the learner's version minus that of the step.

    Attributes:
        max_lag: The largest lag; None for any.
        decay: A transition is drawn in proportion to decay ** lag, in (0, 1]; an actor ahead of the learner has lag 0.
    """

    max_lag: int | None
    decay: float

    def __str__(self) -> str:
        """Return which transitions may be drawn, in words."""
        return "with a policy version" if self.max_lag is None else f"with a lag of at most {self.max_lag}"


def asked(max_lag: object, lag_decay: object) -> Lags | None:
    """Return the lags described by those arguments; None if unrestricted.

    Raises:
        ArgumentTypeError: `max_lag` is not an integer, or `lag_decay` not a number.
        ArgumentError: `max_lag` is below 0, or `lag_decay` not in (0, 1].
    """
    if max_lag is not None:
        max_lag = validation.non_negative_int("max_lag", max_lag)
    decay = validation.discount("lag_decay", lag_decay)
    return None if max_lag is None and decay == 1 else Lags(max_lag=max_lag, decay=decay)


def require_learner(lags: Lags | None, learner: int | None) -> None:
    """Raise ArgumentError if there are lags, but no version of the learner to count them from."""
    if lags is not None and learner is None:
        raise errors.ArgumentError(
            "max_lag and lag_decay need the learner's policy version: call set_policy_version first"
        )


def runs(episode: Episode) -> list[tuple[int, int]]:
    """Return ALL and the versions of an episode's transitions, in order, with the number of transitions of each."""
    most = len(episode)
    found = [(ALL, most)]
    if not episode.version_changes:  # Most often.
        return [*found, (episode.policy_version, most)] if most and episode.policy_version is not None else found
    of_steps = episode_lib.version_runs(episode)
    return found + [(v, min(stop, most) - start) for start, stop, v in of_steps if v is not None and start < most]


class VersionCounts:
    """The transitions of a store, all of them and by policy version.

    >>> from relive.episodes import episode, versions
    >>> counts = versions.VersionCounts()
    >>> lived = episode.Episode(episode_id="e", agent_id="a", policy_version=6)
    >>> for version in (6, 7, 7):
    ...     if lived.append_observation_action_reward("o", "a", 1.0, version):
    ...         counts.grow(lived)
    >>> counts.totals()
    {6: 1, 7: 1}

    Attributes:
        all: The transitions of all versions, and those of unknown version.
        pools: The transitions by version; under ALL, all of them.
        known: The versions, the oldest first.
    """

    def __init__(self) -> None:
        self.all: Pool = counts_lib.Pool()
        self.pools: dict[int, Pool] = {ALL: self.all}
        self.known: list[int] = []

    def totals(self) -> dict[int, int]:
        """Return the number of transitions of each version, oldest version first."""
        return {version: self.pools[version].total for version in self.known}

    def grow(self, episode: Episode) -> None:
        """Record the version of a transition that an open episode has completed. O(log of the episode's versions)."""
        newest = len(episode) - 1
        version = episode_lib.version_of(episode, newest) if episode.version_changes else episode.policy_version
        if version is not None:
            self.pool(version).growing.grow(episode)

    def finish(self, episode: Episode) -> None:
        """Record that an episode that was open has finished."""
        for version, _ in runs(episode):
            pool = self.pools[version]
            pool.finished.append(episode, pool.growing.pop(episode))

    def evict(self) -> Episode:
        """Remove and return the episode that finished first."""
        episode = self.all.finished[0]
        for version, _ in runs(episode):
            pool = self.pools[version]
            pool.finished.popleft()
            if version != ALL and not pool.total:
                del self.pools[version]
                del self.known[bisect.bisect_left(self.known, version)]
        return episode

    def pool(self, version: int) -> Pool:
        """Return the pool of a version, creating it if needed."""
        pool = self.pools.get(version)
        if pool is None:
            pool = self.pools[version] = counts_lib.Pool()
            bisect.insort(self.known, version)
        return pool

    def draw(self, size: int, rng: np.random.Generator, learner: int, lags: Lags) -> list[tuple[Episode, int]]:
        """Return `size` independent transitions, each as its episode and step, distributed as `lags` describes.

        There must be one. Draws versions in proportion to transitions times decay ** lag, then a uniform transition of
        each.
        """
        oldest = self.known[0] if lags.max_lag is None else learner - lags.max_lag
        versions = self.known[bisect.bisect_left(self.known, oldest) :]
        totals = np.array([self.pools[version].total for version in versions])
        found = np.maximum(learner - np.array(versions), 0)
        # The newest version has the smallest lag: relative to it, the weights cannot all round to 0.
        with np.errstate(under="ignore"):
            sums = (totals * lags.decay ** (found - found[-1]).astype(np.float64)).cumsum()
        # The largest number below 1, times the sum of all, is rounded to less than that sum.
        places = sums.searchsorted(rng.random(size) * sums[-1], side="right")
        units = rng.integers(totals[places])
        drawn: dict[int, tuple[Episode, int]] = {}
        for place in np.unique(places).tolist():
            version, (own,) = versions[place], (places == place).nonzero()
            pairs = self.pools[version].draw(units[own], rng)
            for number, (episode, rank) in zip(own.tolist(), pairs, strict=True):
                drawn[number] = episode, episode_lib.first_step_of(episode, version) + rank
        return [drawn[number] for number in range(size)]

    def check(self, finished: Iterable[Episode], growing: Iterable[Episode]) -> None:
        """Recount the finished episodes, in the order of finishing, and the open ones, in any order.

        Raises:
            CorruptionError: The counts disagree with the episodes.
        """
        twin = VersionCounts()
        for episode in finished:
            for version, count in runs(episode):
                twin.pool(version).finished.append(episode, count)
        for episode in growing:
            for version, count in runs(episode):
                if count:
                    twin.pool(version).growing.put(episode, count)
        found, expected = self._contents(), twin._contents()
        if found != expected or self.known != twin.known:
            raise errors.CorruptionError(
                f"transitions by policy version must be {validation.short_repr(expected)}, "
                f"found {validation.short_repr(found)} of {validation.short_repr(self.known)}"
            )

    def _contents(self) -> dict[int, tuple[Any, ...]]:
        """Return the counts of episodes, and their totals, by version."""
        contents = {}
        for version, pool in self.pools.items():
            pool.growing.check()
            finished = [(episode.episode_id, pool.finished.count(k)) for k, episode in enumerate(pool.finished)]
            growing = {episode.episode_id: pool.growing[episode] for episode in pool.growing}
            contents[version] = finished, pool.finished.total, growing, pool.growing.total
        return contents
