"""The synchronous core under the episode buffer: episodes, their counts, eviction, and the uniform draw.

    open        the episodes that run, by id
    finished    the others; the one that finished first is the next to be evicted
    versions    the transitions of both, for draws: all of them, and by the version of the policy

Invariant: callers check arguments, a call that raises changes nothing, and costs do not grow with the number of
episodes. Evictions happen before an insert and only among finished episodes: an open one is never evicted, and one that
has just ended stays until the next insert needs its place.
"""

import collections
from collections.abc import Iterable, Iterator
import dataclasses
import itertools
import math
import operator
import time
from typing import Any, Generic, Protocol, TypeAlias, TypeVar
import uuid

import numpy as np

from relive import errors
from relive.common import statistics
from relive.common import validation
from relive.episodes import counts as counts_lib
from relive.episodes import episode as episode_lib
from relive.episodes import sums as sums_lib
from relive.episodes import versions as versions_lib


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeBufferStats(statistics.Statistics):
    """Statistics of an episode buffer.

    Steps that are not stored as transitions, and never will be, are counted in `dropped`.

    Attributes:
        total_episodes: Episodes stored now, open ones included; the next four are its parts.
        in_progress: Open ones.
        completed: Episodes that ended as COMPLETED.
        truncated: Episodes that ended as TRUNCATED.
        aborted: Episodes that ended as ABORTED.
        total_transitions: Complete transitions stored now.
        num_agents: Number of distinct agents of the stored episodes.
        evicted_episodes: Episodes evicted so far.
        evicted_transitions: Their transitions.
        overflow_transitions: Transitions above max_transitions now, 0 without such a limit.
        open_ages: Seconds since the start of each open episode, by episode id, the oldest first.
        waiting_steps: Steps of open episodes whose next observation is not known yet: the newest of each.
        policy_version: The learner's policy version; None before the first `set_policy_version`.
        max_policy_lag: Lag of the oldest stored version behind the learner's; None if either is unknown.
        appended: Steps appended so far.
        sampled: Samples drawn so far.
        aborted_steps: Last steps of aborted episodes, whose next observation is not known, so far.
        cleared_steps: Steps that `clear` forgot so far.
    """

    total_episodes: int
    in_progress: int
    completed: int
    truncated: int
    aborted: int
    total_transitions: int
    num_agents: int
    evicted_episodes: int
    evicted_transitions: int
    overflow_transitions: int
    open_ages: dict[str, float] = dataclasses.field(repr=False)
    waiting_steps: int
    policy_version: int | None
    max_policy_lag: int | None
    appended: int
    sampled: int
    aborted_steps: int
    cleared_steps: int

    _BY_EPISODE = ("open_ages",)

    @property
    def mean_draws(self) -> float:
        """Samples per step appended: the replay ratio."""
        return self.sampled / max(self.appended, 1)

    @property
    def oldest_open_age(self) -> float:
        """Age of the oldest open episode in seconds; 0 if there is none."""
        return max(self.open_ages.values(), default=0.0)

    @property
    def dropped(self) -> dict[str, int]:
        """Number of steps that are not stored as transitions and never will be, by reason.

        `appended == total_transitions + waiting_steps + sum(dropped.values())`.
        """
        return {"evicted": self.evicted_transitions, "aborted": self.aborted_steps, "cleared": self.cleared_steps}


Obs = TypeVar("Obs")
Act = TypeVar("Act")
Draws: TypeAlias = list[tuple[episode_lib.Episode[Obs, Act], int]]
"""Transitions, each as its episode and step."""
_FINISHED_AT_LEAST = 1000
"""So many finished episodes are kept at least, however small max_transitions is."""


class Listener(Protocol):
    """Is notified when episodes of a store start, end or are evicted.

    It must not keep a reference to the store, so that buffers are freed promptly and copied completely.
    """

    def started(self, store: "EpisodeStore[Any, Any]", episode: episode_lib.Episode[Any, Any]) -> None:
        """Handle a new, open episode."""

    def ended(self, store: "EpisodeStore[Any, Any]", episode: episode_lib.Episode[Any, Any]) -> None:
        """Handle the end of an open episode."""

    def evicted(self, store: "EpisodeStore[Any, Any]", episode: episode_lib.Episode[Any, Any]) -> None:
        """Handle an eviction, while the store still knows whether the episode was sampled."""

    def cleared(self, store: "EpisodeStore[Any, Any]") -> None:
        """Handle `clear`, just before all episodes are removed."""

    def is_delivered(self, episode: episode_lib.Episode[Any, Any]) -> bool:
        """Return whether a stored episode was delivered to the learner, and not rejected."""
        ...


COUNTERS = ("inserted", "sampled", "evicted_episodes", "evicted_transitions", "aborted_steps")


class EpisodeStore(Generic[Obs, Act]):
    """Episodes by id, within limits.

    Attributes:
        policy_version: The learner's policy version; None before the first.
        listeners: Are notified in this order.
        finished: The episodes that have ended, in that order, with their transitions.
        open: The episodes that run, by id.
        started: When each of those started, by the monotonic clock.
        by_id: All of them, by id, in the order in which they started.
        drawn: The ids of those that were sampled.
        versions: The transitions.
    """

    def __init__(self, max_transitions: int | None, max_episodes: int | None) -> None:
        self.set_limits(max_transitions, max_episodes)
        self.inserted = self.sampled = self.evicted_episodes = self.evicted_transitions = self.aborted_steps = 0
        self.policy_version: int | None = None
        self.listeners: list[Listener] = []
        self.sums = sums_lib.Sums()
        self._forget_all()

    def clear(self) -> None:
        """Remove every episode, open ones included. Cumulative counts are kept."""
        for episode in self.finished:
            self.sums.add(episode, was_trained=self.was_trained(episode))
        for listener in self.listeners:
            listener.cleared(self)
        self._forget_all()

    def _forget_all(self) -> None:
        self.versions = versions_lib.VersionCounts()
        self.finished: counts_lib.CountedDeque[episode_lib.Episode[Obs, Act]] = self.versions.all.finished
        self._growing: counts_lib.GrowingCounts[episode_lib.Episode[Obs, Act]] = self.versions.all.growing
        self.open: dict[str, episode_lib.Episode[Obs, Act]] = {}
        self.started: dict[str, float] = {}
        self.drawn: set[str] = set()
        self.by_id: dict[str, episode_lib.Episode[Obs, Act]] = {}
        self._statuses: collections.Counter[episode_lib.EpisodeStatus] = collections.Counter()
        self._agents: collections.Counter[str] = collections.Counter()

    def __len__(self) -> int:
        """Return how many complete transitions are stored."""
        return self.finished.total + self._growing.total

    def __contains__(self, episode: episode_lib.Episode[Obs, Act]) -> bool:
        """Return whether this very episode is stored."""
        return self.by_id.get(episode.episode_id) is episode

    def find(self, episode_id: str) -> episode_lib.Episode[Obs, Act] | None:
        """Return the episode with that id, or None."""
        return self.by_id.get(episode_id)

    def __getitem__(self, episode_id: str) -> episode_lib.Episode[Obs, Act]:
        """Return the episode with that id.

        Raises:
            UnknownEpisodeError: No episode with that id is stored.
        """
        try:
            return self.by_id[episode_id]
        except (KeyError, TypeError):
            raise errors.UnknownEpisodeError(f"episode {validation.shown(episode_id)} not found") from None

    def new_episode(
        self,
        agent_id: str,
        group_id: str | None = None,
        policy_version: int | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> episode_lib.Episode[Obs, Act]:
        """Create an episode of that agent, without adding it to the store."""
        return episode_lib.Episode(
            episode_id=str(uuid.uuid4()),
            agent_id=agent_id,
            group_id=group_id,
            policy_version=policy_version,
            metadata=metadata or {},
        )

    def start(self, episode: episode_lib.Episode[Obs, Act]) -> None:
        """Add an open episode without steps."""
        while len(self.by_id) >= self._most_episodes and len(self.finished):
            self._evict()
        self.put(episode, time.monotonic())
        for listener in self.listeners:
            listener.started(self, episode)

    def put(self, episode: episode_lib.Episode[Obs, Act], started: float) -> None:
        """Enter an episode, but for its transitions, and where it has ended, in the order of finishing."""
        self.by_id[episode.episode_id] = episode
        self._statuses[episode.status] += 1
        self._agents[episode.agent_id] += 1
        if episode.status == "IN_PROGRESS":
            self.open[episode.episode_id] = episode
            self.started[episode.episode_id] = started

    def append(
        self,
        episode: episode_lib.Episode[Obs, Act],
        observation: Obs,
        action: Act,
        reward: float,
        policy_version: int | None = None,
    ) -> None:
        """Append a step to an open episode; see Episode.append_observation_action_reward for what it raises."""
        completed = episode.append_observation_action_reward(observation, action, reward, policy_version)
        self.inserted += 1
        if completed:
            self._count_transition(episode)

    def end(
        self, episode: episode_lib.Episode[Obs, Act], final_observation: Obs, status: episode_lib.FinalStatus
    ) -> None:
        """End an open episode; see Episode.append_final_observation for what it raises."""
        completed = episode.append_final_observation(final_observation, status)
        if completed:
            self._count_transition(episode)
        self._finish(episode)

    def abort(self, episode: episode_lib.Episode[Obs, Act]) -> None:
        """End an open episode as ABORTED, without a final observation."""
        episode.abort()
        self.aborted_steps += bool(episode.actions)
        self._finish(episode)

    def draw(self, size: int, rng: np.random.Generator) -> Draws[Obs, Act]:
        """Return `size` independent transitions, uniform among all; there must be one. O(size log episodes)."""
        return self.versions.all.draw(rng.integers(len(self), size=size), rng)

    def checked_draws(self, draws: Iterable[tuple[Any, Any]], size: int) -> Draws[Obs, Act]:
        """Validate the draws of a custom sampler, and return them with start steps as ints.

        Raises:
            SamplerError: They are not `size` complete transitions of stored episodes.
        """
        try:
            pairs = [(episode, operator.index(start)) for episode, start in itertools.islice(draws, size + 1)]
        except (TypeError, ValueError) as error:
            raise errors.SamplerError(f"_draw must return pairs of an episode and an integer start: {error}") from error
        if len(pairs) != size:
            raise errors.SamplerError(f"_draw must return batch_size = {size} draws, got {len(pairs)}")
        for episode, start in pairs:
            if not isinstance(episode, episode_lib.Episode) or episode not in self:
                raise errors.SamplerError(f"_draw must return stored episodes, got {validation.short_repr(episode)}")
            if not 0 <= start < len(episode):
                raise errors.SamplerError(
                    f"_draw must return start steps in [0, {len(episode)}) of episode {episode.episode_id}, got {start}"
                )
        return pairs

    def note(self, draws: Draws[Obs, Act]) -> None:
        """Record that those stored episodes were sampled."""
        self.sampled += len(draws)
        self.drawn.update([episode.episode_id for episode, _ in draws])

    def was_drawn(self, episode: episode_lib.Episode[Obs, Act]) -> bool:
        """Return whether that stored episode was sampled."""
        return episode.episode_id in self.drawn

    def was_trained(self, episode: episode_lib.Episode[Obs, Act]) -> bool:
        """Return whether that stored episode was sampled, or delivered to the learner."""
        return episode.episode_id in self.drawn or any(each.is_delivered(episode) for each in self.listeners)

    def has_within(self, lags: versions_lib.Lags) -> bool:
        """Return whether there is a transition within those lags. O(1)."""
        learner, known = self.policy_version, self.versions.known
        return learner is not None and bool(known) and (lags.max_lag is None or learner - known[-1] <= lags.max_lag)

    def draw_within(self, size: int, rng: np.random.Generator, lags: versions_lib.Lags) -> Draws[Obs, Act]:
        """Return `size` independent transitions within those lags; there must be one. See VersionCounts.draw."""
        assert self.policy_version is not None
        return self.versions.draw(size, rng, self.policy_version, lags)

    # As a whole.

    def __iter__(self) -> Iterator[episode_lib.Episode[Obs, Act]]:
        """Yield the episodes in the order in which they started."""
        return iter(self.by_id.values())

    def counters(self) -> dict[str, int]:
        """Return the cumulative counts by name."""
        return {name: getattr(self, name) for name in COUNTERS}

    def forget_oldest(self, episode_id: str) -> None:
        """Evict the episode that finished first, if it has that id."""
        if len(self.finished) and self.finished[0].episode_id == episode_id:
            self._evict()

    def set_limits(self, max_transitions: int | None, max_episodes: int | None) -> None:
        """Set the limits; excess episodes are evicted at the next insert."""
        self.max_transitions, self.max_episodes = max_transitions, max_episodes
        self._most_transitions = math.inf if max_transitions is None else max_transitions
        self._most_episodes = math.inf if max_episodes is None else max_episodes
        self._most_finished = max(self._most_transitions, _FINISHED_AT_LEAST)

    def stats(self) -> EpisodeBufferStats:
        """Return statistics of the store. O(open episodes)."""
        now, learner, known = time.monotonic(), self.policy_version, self.versions.known
        limit, stored = self.max_transitions, len(self)
        counters = self.counters()
        return EpisodeBufferStats(
            total_episodes=len(self.by_id),
            in_progress=self._statuses["IN_PROGRESS"],
            completed=self._statuses["COMPLETED"],
            truncated=self._statuses["TRUNCATED"],
            aborted=self._statuses["ABORTED"],
            total_transitions=stored,
            num_agents=len(self._agents),
            overflow_transitions=0 if limit is None else max(0, stored - limit),
            open_ages={episode_id: now - started for episode_id, started in self.started.items()},
            waiting_steps=self._num_waiting(),
            policy_version=learner,
            max_policy_lag=learner - known[0] if learner is not None and known else None,
            cleared_steps=max(self._num_cleared(), 0),
            appended=counters.pop("inserted"),
            **counters,
        )

    def check(self) -> None:
        """Recount everything from the episodes themselves.

        Raises:
            CorruptionError: A count or an episode is inconsistent.
        """
        for episode_id, episode in self.by_id.items():
            _check_episode(episode_id, episode)
        episodes, finished = list(self), list(self.finished)
        open_ids = [episode.episode_id for episode in episodes if episode.status == "IN_PROGRESS"]
        _check_equal("open episodes", list(self.open), open_ids)
        _check_equal("open episodes with a start", list(self.started), open_ids)
        _check_equal("finished episodes", {e.episode_id for e in finished}, self.by_id.keys() - set(open_ids))
        _check_equal("number of finished episodes", len(finished), len(episodes) - len(open_ids))
        _check_equal("episodes that are stored", all(each in self for each in (*finished, *self.open.values())), True)
        _check_equal("drawn episodes that are not stored", self.drawn - self.by_id.keys(), set())
        self.versions.check(finished, self.open.values())
        _check_equal("statuses", +self._statuses, collections.Counter(episode.status for episode in episodes))
        _check_equal("agents", dict(self._agents), dict(collections.Counter(episode.agent_id for episode in episodes)))
        self.check_counters()

    def check_counters(self) -> None:
        """Check the cumulative counts against what is stored.

        Raises:
            CorruptionError: More steps are stored or evicted than were appended, or more episodes drawn than samples.
        """
        least = self.inserted - self._num_cleared()
        if self.inserted < least:
            raise errors.CorruptionError(
                f"counts {self.inserted} steps as appended, fewer than the {least} that are stored, evicted or aborted"
            )
        if self.sampled < len(self.drawn):
            raise errors.CorruptionError(
                f"counts {self.sampled} samples, fewer than the {len(self.drawn)} episodes drawn"
            )

    def _num_waiting(self) -> int:
        """Return the number of steps of open episodes that are not transitions yet."""
        return sum(bool(episode.actions) for episode in self.open.values())

    def _num_cleared(self) -> int:
        """Return the number of steps that are neither stored nor dropped otherwise."""
        return self.inserted - len(self) - self._num_waiting() - self.evicted_transitions - self.aborted_steps

    def _finish(self, episode: episode_lib.Episode[Obs, Act]) -> None:
        """Move an episode that has just ended to the finished ones.

        Episodes that finished earlier are evicted now if open ones kept the store above a limit. Those without a
        transition, which a crashing actor can create endlessly, do not count as transitions, so the number of finished
        episodes is limited to max_transitions too.
        """
        finished, growing = self.finished, self._growing
        while len(finished) and (
            finished.total + growing.total > self._most_transitions
            or len(self.by_id) > self._most_episodes
            or len(finished) >= self._most_finished
        ):
            self._evict()
        del self.open[episode.episode_id]
        del self.started[episode.episode_id]
        self.versions.finish(episode)
        self._statuses["IN_PROGRESS"] -= 1
        self._statuses[episode.status] += 1
        for listener in self.listeners:
            listener.ended(self, episode)

    def _count_transition(self, episode: episode_lib.Episode[Obs, Act]) -> None:
        """Count a transition that an open episode has just completed, after evicting finished ones for it."""
        while self.finished.total + self._growing.total >= self._most_transitions and len(self.finished):
            self._evict()
        self._growing.grow(episode)
        if episode.policy_version is not None or episode.version_changes:
            self.versions.grow(episode)

    def _evict(self) -> None:
        """Forget the episode that finished first. O(1) amortised."""
        episode: episode_lib.Episode[Obs, Act] = self.versions.evict()
        self.sums.add(episode, was_trained=self.was_trained(episode))
        for listener in self.listeners:
            listener.evicted(self, episode)
        del self.by_id[episode.episode_id]
        self.drawn.discard(episode.episode_id)
        self._statuses[episode.status] -= 1
        self._agents[episode.agent_id] -= 1
        if not self._agents[episode.agent_id]:
            del self._agents[episode.agent_id]
        self.evicted_episodes += 1
        self.evicted_transitions += len(episode)


def _check_episode(episode_id: str, episode: episode_lib.Episode[Obs, Act]) -> None:
    """Raise CorruptionError unless the episode has the shape that its status requires."""
    if episode.episode_id != episode_id:
        raise errors.CorruptionError(f"episode stored as {episode_id} has the id {episode.episode_id}")
    steps = len(episode.actions)
    known = {"COMPLETED": {steps + 1}, "TRUNCATED": {steps + 1}, "IN_PROGRESS": {steps}, "ABORTED": {steps, steps + 1}}
    if len(episode.observations) not in known.get(episode.status, ()) or len(episode.rewards) != steps:
        raise errors.CorruptionError(
            f"episode {episode_id} is {episode.status} with {len(episode.observations)} observations, "
            f"{steps} actions and {len(episode.rewards)} rewards"
        )
    first = -1 if episode.policy_version is None else episode.policy_version
    changes = [(-1, first), *episode.version_changes, (steps, validation.LARGEST + 1)]
    if any(start >= next_start or old >= new for (start, old), (next_start, new) in itertools.pairwise(changes)):
        raise errors.CorruptionError(
            f"episode {episode_id} of {steps} steps from policy version {validation.short_repr(episode.policy_version)}"
            f" on has changes {validation.short_repr(episode.version_changes)}, which do not go up"
        )
    for t, reward in enumerate(episode.rewards):
        if type(reward) is not float or not math.isfinite(reward):
            raise errors.CorruptionError(f"episode {episode_id} has reward {validation.short_repr(reward)} at step {t}")


def _check_equal(name: str, found: object, expected: object) -> None:
    """Raise CorruptionError unless both are equal."""
    if found != expected:
        raise errors.CorruptionError(
            f"{name} must be {validation.short_repr(expected)}, found {validation.short_repr(found)}"
        )
