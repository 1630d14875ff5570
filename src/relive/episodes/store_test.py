"""The store compared with a list of all events."""

import collections
import dataclasses
import random
from typing import Any, ClassVar

import numpy as np
import pytest

import relive
from relive import testing
from relive.episodes import episode as episode_lib
from relive.episodes import store as store_lib
from relive.episodes import versions as versions_lib
from relive.testing import walks


def started(store: Any, agent_id: str, policy_version: int | None = None) -> episode_lib.Episode[Any, Any]:
    """Start an episode and return it."""
    episode: episode_lib.Episode[Any, Any] = store.new_episode(agent_id, policy_version=policy_version)
    store.start(episode)
    return episode


@dataclasses.dataclass(eq=False)
class NaiveEpisode:
    """An episode as a list of full transitions, the next observation copied into each; and each step's version."""

    episode_id: str
    number: int
    agent_id: str
    newest_version: int | None
    versions: list[int | None] = dataclasses.field(default_factory=list)
    steps: int = 0
    transitions: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    status: str = "IN_PROGRESS"
    was_drawn: bool = False


class EpisodeStoreMachine(walks.Machine):
    """Starts, appends, ends, aborts, clears, sets versions; observation = (episode number, t), reward = f of both.

    Short episodes at first do not limit what is stored later (P13).
    """

    often: ClassVar = {"append": 10, "end": 9, "start": 5, "draw": 2, "learn": 2}
    least: ClassVar = {
        "a full store of transitions evicts": 50,
        "a full store of episodes evicts": 50,
        "an end evicts": 10,
        "an end at the limit of episodes, with one to evict": 10,
        "an end at the limit of transitions, with one to evict": 3,
        "an aborted episode had a step": 10,
    }

    @walks.initialize(
        max_transitions=walks.maybe(walks.integers(4, 12)), max_episodes=walks.maybe(walks.integers(1, 4))
    )
    def start_store(self, max_transitions: int | None, max_episodes: int | None) -> None:
        self.limits = (max_transitions, max_episodes)
        self.store: store_lib.EpisodeStore[tuple[int, int], int] = store_lib.EpisodeStore(*self.limits)
        self.stored: list[NaiveEpisode] = []
        self.finished: list[NaiveEpisode] = []
        self.appended = self.evicted_episodes = self.evicted_transitions = self.number = 0
        self.sampled = self.aborted_steps = self.cleared_steps = 0
        self.learner: int | None = None

    def open_episodes(self) -> list[NaiveEpisode]:
        return [episode for episode in self.stored if episode.status == "IN_PROGRESS"]

    def total(self) -> int:
        return sum(len(episode.transitions) for episode in self.stored)

    def evict(self) -> None:
        episode = self.finished.pop(0)
        self.stored.remove(episode)
        self.evicted_episodes += 1
        self.evicted_transitions += len(episode.transitions)

    def complete(self, episode: NaiveEpisode) -> None:
        if episode.steps:
            while self.limits[0] is not None and self.total() + 1 > self.limits[0] and self.finished:
                self.evict()
                self.reached["a full store of transitions evicts"] += 1
            t = episode.steps - 1
            episode.transitions.append(((episode.number, t), t, self.reward(episode, t), (episode.number, t + 1)))

    def waiting(self) -> int:
        return sum(episode.steps > 0 for episode in self.open_episodes())

    @staticmethod
    def reward(episode: NaiveEpisode, t: int) -> float:
        return episode.number * 1000.0 + t

    def stored_versions(self) -> list[int]:
        """The version of each transition whose version is known."""
        pairs = [pair for episode in self.stored for pair in zip(episode.transitions, episode.versions, strict=False)]
        return [version for _, version in pairs if version is not None]

    @walks.rule(agent_id=walks.sampled_from("ab"), version=walks.maybe(walks.integers(0, 4)))
    def start(self, agent_id: str, version: int | None) -> None:
        while self.limits[1] is not None and len(self.stored) + 1 > self.limits[1] and self.finished:
            self.evict()
            self.reached["a full store of episodes evicts"] += 1
        episode_id = started(self.store, agent_id, version).episode_id
        self.stored.append(NaiveEpisode(episode_id, self.number, agent_id, version))
        self.number += 1

    @walks.rule(
        when=lambda self: self.open_episodes(),
        choice=walks.generator,
        rises=walks.lists(walks.sampled_from([None, None, 0, 1, 3]), 1, 6),
    )
    def append(self, choice: random.Random, rises: list[int | None]) -> None:
        episode = choice.choice(self.open_episodes())
        for rise in rises:
            t = episode.steps
            version = None if rise is None else (episode.newest_version or 0) + rise
            own = self.store[episode.episode_id]
            self.store.append(own, (episode.number, t), t, self.reward(episode, t), version)
            episode.newest_version = episode.newest_version if version is None else version
            episode.versions.append(episode.newest_version)
            self.complete(episode)
            episode.steps += 1
            self.appended += 1

    @walks.rule(
        when=lambda self: self.open_episodes(),
        choice=walks.generator,
        status=walks.sampled_from(["COMPLETED", "TRUNCATED", "ABORTED", "UNKNOWN"]),
    )
    def end(self, choice: random.Random, status: Any) -> None:
        episode = choice.choice(self.open_episodes())
        if status == "UNKNOWN":
            self.store.abort(self.store[episode.episode_id])
            self.aborted_steps += episode.steps > 0
            self.reached["an aborted episode had a step"] += episode.steps > 0
        else:
            self.store.end(self.store[episode.episode_id], (episode.number, episode.steps), status)
            self.complete(episode)
        episode.status = "ABORTED" if status == "UNKNOWN" else status
        for name, found, limit in zip(
            ["transitions", "episodes"], [self.total(), len(self.stored)], self.limits, strict=True
        ):
            self.reached[f"an end at the limit of {name}, with one to evict"] += bool(self.finished) and found == limit
        while self.finished and (
            (self.limits[0] is not None and self.total() > self.limits[0])
            or (self.limits[1] is not None and len(self.stored) > self.limits[1])
        ):
            self.evict()
            self.reached["an end evicts"] += 1
        self.finished.append(episode)

    @walks.rule(when=lambda self: self.total(), size=walks.integers(1, 4), seed=walks.integers(0, 5))
    def draw(self, size: int, seed: int) -> None:
        draws = self.store.draw(size, np.random.default_rng(seed))
        self.store.note(draws)
        self.sampled += size
        drawn = {episode.episode_id for episode, _ in draws}
        for episode in self.stored:
            episode.was_drawn |= episode.episode_id in drawn

    @walks.rule(rise=walks.integers(0, 3))
    def learn(self, rise: int) -> None:
        self.learner = (self.learner or 0) + rise
        self.store.policy_version = self.learner

    @walks.rule()
    def clear(self) -> None:
        self.cleared_steps += self.total() + self.waiting()
        self.store.clear()
        self.stored.clear()
        self.finished.clear()

    @walks.rule(when=lambda self: self.stored, choice=walks.generator)
    def refuse(self, choice: random.Random) -> None:
        """A refused call changes nothing, as the invariants check."""
        episode = choice.choice(self.stored)
        with pytest.raises(ValueError, match=r"status must be|already finished"):
            self.store.end(self.store[episode.episode_id], (0, 0), "IN_PROGRESS")  # type: ignore[arg-type]
        if episode.status != "IN_PROGRESS":
            with pytest.raises(ValueError, match="cannot append to finished episode"):
                self.store.append(self.store[episode.episode_id], (0, 0), 0, 0.0, 9)
            with pytest.raises(ValueError, match="already finished"):
                self.store.abort(self.store[episode.episode_id])

    @walks.invariant(every=10)
    def the_audit_passes(self) -> None:
        self.store.check()

    @walks.invariant()
    def counters_are_sums_over_what_is_stored(self) -> None:
        stats = self.store.stats()
        statuses = [episode.status for episode in self.stored]
        assert dataclasses.replace(stats, open_ages={}) == relive.EpisodeBufferStats(
            total_episodes=len(self.stored),
            in_progress=statuses.count("IN_PROGRESS"),
            completed=statuses.count("COMPLETED"),
            truncated=statuses.count("TRUNCATED"),
            aborted=statuses.count("ABORTED"),
            total_transitions=self.total(),
            num_agents=len({episode.agent_id for episode in self.stored}),
            evicted_episodes=self.evicted_episodes,
            evicted_transitions=self.evicted_transitions,
            overflow_transitions=max(0, self.total() - (self.limits[0] or self.total())),
            open_ages={},
            waiting_steps=self.waiting(),
            policy_version=self.learner,
            max_policy_lag=max([self.learner - version for version in self.stored_versions()], default=None)
            if self.learner is not None
            else None,
            appended=self.appended,
            sampled=self.sampled,
            aborted_steps=self.aborted_steps,
            cleared_steps=self.cleared_steps,
        )
        assert stats.appended == stats.total_transitions + stats.waiting_steps + sum(stats.dropped.values())
        assert list(stats.open_ages) == [episode.episode_id for episode in self.open_episodes()]
        assert all(age >= 0 for age in stats.open_ages.values())
        assert len(self.store) == self.total()
        assert [self.store.was_drawn(each) for each in self.store] == [each.was_drawn for each in self.stored]

    @walks.invariant()
    def a_limit_is_exceeded_by_open_episodes_and_the_one_that_ended_last_alone(self) -> None:
        kept = [*self.open_episodes(), *self.finished[-1:]]
        if self.limits[0] is not None:
            assert self.total() <= max(self.limits[0], sum(len(episode.transitions) for episode in kept))
        if self.limits[1] is not None:
            assert len(self.stored) <= max(self.limits[1], len(kept))

    @walks.invariant(every=10)
    def every_transition_is_stored_as_it_was(self) -> None:
        found = []
        for naive in self.stored:
            episode = self.store[naive.episode_id]
            assert (episode.agent_id, episode.status) == (naive.agent_id, naive.status)
            found.append([
                (episode.observations[t], episode.actions[t], episode.rewards[t], episode.observations[t + 1])
                for t in range(len(episode))
            ])  # fmt: skip
        assert found == [episode.transitions for episode in self.stored]

    @walks.invariant(every=10)
    def every_step_has_its_version(self) -> None:
        for naive in self.stored:
            episode = self.store[naive.episode_id]
            versions = [episode_lib.version_of(episode, t) for t in range(naive.steps)]
            assert episode.policy_versions == versions == naive.versions
            assert episode_lib.newest_version(episode) == naive.newest_version
            for version in {version for version in naive.versions if version is not None}:
                assert episode_lib.first_step_of(episode, version) == naive.versions.index(version)

    @walks.invariant(every=10)
    def versions_are_counted_as_a_scan_counts_them(self) -> None:
        expected = sorted(collections.Counter(self.stored_versions()).items())
        assert list(self.store.versions.totals().items()) == expected

    @walks.invariant(every=10)
    def what_is_drawn_within_a_lag_is_what_a_scan_finds(self) -> None:
        for max_lag in (None, 0, 2):
            lags = versions_lib.Lags(max_lag=max_lag, decay=0.5)
            within = {
                version
                for version in self.stored_versions()
                if self.learner is not None and (max_lag is None or self.learner - version <= max_lag)
            }
            assert self.store.has_within(lags) == bool(within)
            if within:
                draws = self.store.draw_within(30, np.random.default_rng(0), lags)
                assert all(episode in self.store and 0 <= start < len(episode) for episode, start in draws)
                assert {episode_lib.version_of(episode, start) for episode, start in draws} <= within

    @walks.invariant(every=10)
    def draws_are_complete_transitions(self) -> None:
        if self.total():
            lengths = {episode.episode_id: len(episode.transitions) for episode in self.stored}
            for episode, start in self.store.draw(30, np.random.default_rng(0)):
                assert episode in self.store
                assert 0 <= start < lengths[episode.episode_id]


TestEpisodeStore = walks.tests_of(EpisodeStoreMachine)


def filled() -> store_lib.EpisodeStore[int, int]:
    """Return a store with two finished episodes, of 2 and 3 transitions, and an open one of 2."""
    store: store_lib.EpisodeStore[int, int] = store_lib.EpisodeStore(None, None)
    for steps in (2, 3, 3):
        episode = started(store, "a")
        for t in range(steps):
            store.append(episode, t, t, 0.0)
        if store.inserted < 8:
            store.end(episode, steps, "COMPLETED")
    store.check()
    return store


def test_draws_are_uniform_while_episodes_come_and_go() -> None:
    """Where a draw falls among all transitions stored at that moment, in the order of episode ids, is uniform."""
    rng = np.random.default_rng(3)
    store: store_lib.EpisodeStore[int, int] = store_lib.EpisodeStore(30, None)
    drawn, expected = [0] * 40, [0.0] * 40
    for _ in range(1500):
        episode = started(store, "a")
        for t in range(int(rng.integers(1, 9))):
            store.append(episode, t, t, 0.0)
        if rng.random() < 0.7:
            store.end(episode, 0, "COMPLETED")
        elif len(store.open) > 3:
            store.abort(next(iter(store.open.values())))
        if not 10 <= len(store) <= 40:
            continue
        episodes = sorted([*store.finished, *store.open.values()], key=lambda episode: episode.episode_id)
        ranks = [(episode, start) for episode in episodes for start in range(len(episode))]
        for draw in store.draw(10, rng):
            drawn[ranks.index(draw)] += 1
        for rank in range(len(ranks)):
            expected[rank] += 10 / len(ranks)
    assert sum(drawn) > 10_000
    testing.assert_frequencies(drawn, [count / sum(expected) for count in expected])


def break_finished_identity(store: Any) -> None:
    episode = store.finished[0]
    store.finished._items[0] = relive.Episode(
        episode_id=episode.episode_id, agent_id="a", observations=[0, 1, 2], actions=[0, 1], rewards=[0.0, 0.0]
    )


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda store: setattr(store.finished[0], "episode_id", "other"), "has the id other"),
        (
            lambda store: store.finished[0].observations.append(0),
            "is COMPLETED with 4 observations, 2 actions and 2 rewards",
        ),
        (
            lambda store: next(iter(store.open.values())).rewards.pop(),
            "is IN_PROGRESS with 3 observations, 3 actions and 2 rewards",
        ),
        (lambda store: store.open.clear(), "^open episodes must be"),
        (
            lambda store: store.open.update(
                {each: relive.Episode(episode_id=each, agent_id="a") for each in store.open}
            ),
            "episodes that are stored must be True, found False",
        ),
        (lambda store: store.started.clear(), "open episodes with a start"),
        (lambda store: store.finished.popleft(), "^finished episodes must be"),
        (lambda store: store.finished.append(store.finished[0], 2), "number of finished episodes must be 2, found 3"),
        (break_finished_identity, "episodes that are stored must be True, found False"),
        (
            lambda store: store.finished._counts.__setitem__(0, 9),
            "transitions by policy version must be ",
        ),
        (lambda store: setattr(store.finished, "total", 6), "transitions by policy version must be "),
        (lambda store: store._growing.grow(next(iter(store.open.values()))), "transitions by policy version must be "),
        (
            lambda store: setattr(store._growing, "total", 3),
            "growing counts of 1 items do not agree with their shelves",
        ),
        (
            lambda store: setattr(store._growing._shelves[1], "units", store._growing._shelves[1].units + 1),
            "growing counts of 1 items do not agree with their shelves",
        ),
        (
            lambda store: store._growing._rows.update(ghost=(store._growing._shelves[0], 0)),
            "growing counts of 2 items do not agree with their shelves",
        ),
        (
            lambda store: store.drawn.add("ghost"),
            r"drawn episodes that are not stored must be set\(\), found {'ghost'}",
        ),
        (lambda store: store.drawn.update(store.by_id), "counts 0 samples, fewer than the 3 episodes drawn"),
        (
            lambda store: setattr(store, "evicted_transitions", 1),
            "counts 8 steps as appended, fewer than the 9 that are stored, evicted or aborted",
        ),
        (lambda store: store.finished[0].rewards.__setitem__(1, float("nan")), "has reward nan at step 1"),
        (lambda store: setattr(store.finished[0], "status", "WEIRD"), "is WEIRD with 3 observations"),
        (lambda store: store._statuses.update(["COMPLETED"]), "statuses must be"),
        (lambda store: store._agents.update(["b"]), "agents must be"),
    ],
)
def test_an_audit_names_damaged_parts_of_a_store(damage: Any, message: str) -> None:
    store = filled()
    damage(store)
    with pytest.raises(relive.CorruptionError, match=message):
        store.check()


def test_a_crashing_actor_does_not_fill_the_memory() -> None:
    """Episodes without a transition do not count for max_transitions, but their number is limited."""
    store: store_lib.EpisodeStore[int, int] = store_lib.EpisodeStore(5, None)
    for _ in range(3000):
        store.append(episode := started(store, "a"), 0, 0, 0.0)
        store.abort(episode)
    assert store.stats().total_episodes == 1000
    assert store.stats().evicted_episodes == 2000
    store.check()
