"""VersionCounts: counts transitions by policy version, and draws among those of some versions.

    version    finished, oldest first    open          steps a0 a1 a2 are of version 6
    6          a 3  b 1                  d 2           b0 is too, b1 and b2 are of version 7
    7          b 2                       d 3  e 1      d is going on with version 7

The versions in an episode never decrease, so each version has one run of steps. Episodes are evicted in the order in
which they finished, from the left of each deque. Appending costs O(1), evicting O(1) per run; a version without stored
transitions is dropped. A draw costs O(versions it may take + size log episodes).

Steps of unknown version are not included.
"""

import bisect
from collections.abc import Iterable, Iterator, Sequence
import dataclasses
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import validation
from relive.episodes import counts as counts_lib
from relive.episodes import episode as episode_lib

Episode: TypeAlias = episode_lib.Episode[Any, Any]


Obs = TypeVar("Obs")
Act = TypeVar("Act")


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


def runs(episode: episode_lib.Episode[Obs, Act]) -> list[tuple[int, int]]:
    """Return the versions of an episode's transitions, in order, with the number of transitions of each."""
    most = len(episode)
    return [
        (version, min(stop, most) - start)
        for start, stop, version in episode.version_runs()
        if version is not None and start < most
    ]


class _Pool(Generic[Obs, Act]):
    """The transitions of one version."""

    __slots__ = ("finished", "growing")

    def __init__(self) -> None:
        self.finished: counts_lib.CountedDeque[episode_lib.Episode[Obs, Act]] = counts_lib.CountedDeque()
        self.growing: counts_lib.GrowingCounts[episode_lib.Episode[Obs, Act]] = counts_lib.GrowingCounts()

    @property
    def total(self) -> int:
        """Number of transitions."""
        return self.finished.total + self.growing.total


class VersionCounts(Generic[Obs, Act]):
    """The transitions of a store, by policy version.

    >>> from relive.episodes import episode, versions
    >>> counts = versions.VersionCounts()
    >>> lived = episode.Episode(episode_id="e", agent_id="a", policy_version=6)
    >>> for version in (6, 7, 7):
    ...     if lived.append_observation_action_reward("o", "a", 1.0, version):
    ...         counts.grow(lived)
    >>> counts.totals()
    {6: 1, 7: 1}
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._pools: dict[int, _Pool[Obs, Act]] = {}
        self._versions: list[int] = []

    def totals(self) -> dict[int, int]:
        """Return the number of transitions of each version, oldest version first."""
        return {version: self._pools[version].total for version in self._versions}

    @property
    def oldest(self) -> int | None:
        """The oldest version with a stored transition."""
        return self._versions[0] if self._versions else None

    def grow(self, episode: episode_lib.Episode[Obs, Act]) -> None:
        """Record that an open episode has completed a transition. O(log of the episode's versions)."""
        version = episode.version_of(len(episode) - 1) if episode.version_changes else episode.policy_version
        if version is not None:
            self._pool(version).growing.grow(episode)

    def finish(self, episode: episode_lib.Episode[Obs, Act]) -> None:
        """Record that an episode that was open has finished."""
        for version, _ in runs(episode):
            pool = self._pools[version]
            pool.finished.append(episode, pool.growing.pop(episode))

    def evict(self, episode: episode_lib.Episode[Obs, Act]) -> None:
        """Record that the episode that finished first is evicted."""
        for version, _ in runs(episode):
            pool = self._pools[version]
            pool.finished.popleft()
            if not pool.total:
                del self._pools[version]
                del self._versions[bisect.bisect_left(self._versions, version)]

    # Drawing.

    def has(self, learner: int | None, lags: Lags) -> bool:
        """Return whether any transition may be drawn with that learner version. O(1)."""
        if learner is None or not self._versions:
            return False
        return lags.max_lag is None or learner - self._versions[-1] <= lags.max_lag

    def draw(
        self, size: int, rng: np.random.Generator, learner: int, lags: Lags
    ) -> list[tuple[episode_lib.Episode[Obs, Act], int]]:
        """Return `size` independent transitions, each as its episode and step, distributed as `lags` describes.

        There must be one. Draws versions in proportion to transitions times decay ** lag, then a uniform transition of
        each.
        """
        oldest = self._versions[0] if lags.max_lag is None else learner - lags.max_lag
        versions = self._versions[bisect.bisect_left(self._versions, oldest) :]
        totals = np.array([self._pools[version].total for version in versions])
        found = np.maximum(learner - np.array(versions), 0)
        # The newest version has the smallest lag: relative to it, the weights cannot all round to 0.
        with np.errstate(under="ignore"):
            sums = (totals * lags.decay ** (found - found[-1]).astype(np.float64)).cumsum()
        # The largest number below 1, times the sum of all, is rounded to less than that sum.
        places = sums.searchsorted(rng.random(size) * sums[-1], side="right")
        units = rng.integers(totals[places])
        drawn: dict[int, tuple[episode_lib.Episode[Obs, Act], int]] = {}
        for place in np.unique(places).tolist():
            self._draw_of(versions[place], (places == place).nonzero()[0], units, rng, drawn)
        return [drawn[place] for place in range(size)]

    def _draw_of(
        self,
        version: int,
        places: npt.NDArray[np.int64],
        units: npt.NDArray[np.int64],
        rng: np.random.Generator,
        drawn: dict[int, tuple[episode_lib.Episode[Obs, Act], int]],
    ) -> None:
        """Write the transitions of one version for those units into `drawn`."""
        pool = self._pools[version]
        is_finished = units[places] < pool.finished.total
        from_finished, from_growing = places[is_finished].tolist(), places[~is_finished].tolist()
        pairs = list(zip(*pool.finished.find(units[from_finished]), strict=True))
        if from_growing:
            pairs += pool.growing.draw(len(from_growing), rng)
        for place, (episode, rank) in zip(from_finished + from_growing, pairs, strict=True):
            drawn[place] = episode, episode.first_step_of(version) + rank

    # As a whole.

    def growing(self) -> Iterator[tuple[int, episode_lib.Episode[Obs, Act]]]:
        """Yield each version with the open episodes that have transitions of it, in draw order."""
        return ((version, episode) for version in self._versions for episode in self._pools[version].growing)

    def fill(
        self,
        finished: Iterable[episode_lib.Episode[Obs, Act]],
        growing: Iterable[tuple[int, episode_lib.Episode[Obs, Act]]],
    ) -> None:
        """Load episodes into an empty object.

        Args:
            finished: Finished episodes, in the order of finishing.
            growing: As `growing` yields them.
        """
        for episode in finished:
            for version, count in runs(episode):
                self._pool(version).finished.append(episode, count)
        counts: dict[episode_lib.Episode[Obs, Act], dict[int, int]] = {}
        for version, episode in growing:
            if episode not in counts:
                counts[episode] = dict(runs(episode))
            self._pool(version).growing.put(episode, counts[episode][version])

    def check(
        self, finished: Sequence[episode_lib.Episode[Obs, Act]], growing: Sequence[episode_lib.Episode[Obs, Act]]
    ) -> None:
        """Recount everything from the episodes of the store.

        Args:
            finished: Finished episodes, in the order of finishing.
            growing: Open episodes, in any order.

        Raises:
            CorruptionError: The counts disagree with the episodes.
        """
        expected: dict[int, tuple[list[tuple[str, int]], dict[str, int]]] = {}
        for episode in finished:
            for version, count in runs(episode):
                expected.setdefault(version, ([], {}))[0].append((episode.episode_id, count))
        for episode in growing:
            for version, count in runs(episode):
                expected.setdefault(version, ([], {}))[1][episode.episode_id] = count
        found = {}
        for version, pool in self._pools.items():
            pool.growing.check()
            of_finished = [(e.episode_id, pool.finished.count(place)) for place, e in enumerate(pool.finished)]
            found[version] = of_finished, {episode.episode_id: pool.growing[episode] for episode in pool.growing}
        if found != expected or self._versions != sorted(expected):
            raise errors.CorruptionError(
                f"transitions by policy version must be {validation.short_repr(expected)}, "
                f"found {validation.short_repr(found)} "
                f"of {validation.short_repr(self._versions)}"
            )

    def _pool(self, version: int) -> _Pool[Obs, Act]:
        """Return the pool of a version, creating it if needed."""
        pool = self._pools.get(version)
        if pool is None:
            pool = self._pools[version] = _Pool()
            bisect.insort(self._versions, version)
        return pool
