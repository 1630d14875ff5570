"""EpisodeReplayBuffer: whole episodes of typed objects from asyncio actors, sampled as n-step transitions.

    actor coroutines                    EpisodeReplayBuffer                       learner coroutine
    await start_episode      ────►   limiter: may this happen now?   ◄────   await sample_n_step
    await append_...         ────►   gate: wait until it may
    await end_episode        ────►   EpisodeStore: what is there

Invariant: deciding and waiting are separate. The `_nowait` methods decide and act at once; the coroutines wait for
their turn, then do what the `_nowait` method does without awaiting in between. So a cancelled call has either happened
completely or not at all.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
import contextlib
import math
import os
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from relive import errors
from relive.agents import admission as admission_lib
from relive.agents import delivery
from relive.agents import groups as groups_lib
from relive.agents import queue as queue_lib
from relive.common import blocks
from relive.common import copies
from relive.common import imports
from relive.common import randomness
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.episodes import samplers
from relive.episodes import samples as samples_lib
from relive.episodes import store as store_lib
from relive.episodes import versions
from relive.episodes import writers
from relive.limits import rate_limiters
from relive.persistence import checkpointable
from relive.persistence import state as state_lib

if TYPE_CHECKING:
    from relive.agents import queue_state
    from relive.episodes import episode_journal
    from relive.episodes import episode_state
    from relive.episodes import metadata as metadata_lib
    from relive.persistence import checkpoint
    from relive.persistence import codec as codec_lib
    from relive.persistence import journal as journal_lib
else:
    checkpoint = imports.lazy_module("relive.persistence.checkpoint")
    codec_lib = imports.lazy_module("relive.persistence.codec")
    episode_journal = imports.lazy_module("relive.episodes.episode_journal")
    episode_state = imports.lazy_module("relive.episodes.episode_state")
    metadata_lib = imports.lazy_module("relive.episodes.metadata")
    queue_state = imports.lazy_module("relive.agents.queue_state")
    journal_lib = imports.lazy_module("relive.persistence.journal")

Obs = TypeVar("Obs")
Act = TypeVar("Act")


class EpisodeReplayBuffer(delivery.Delivering[episode_lib.Episode[Obs, Act]], Generic[Obs, Act]):
    """Stores the episodes of many agents and samples n-step transitions, uniformly by default.

    Observations and actions may be any objects. Arrays, built-in containers, dataclasses, objects with a method
    `clone()`, such as tensors, and objects of a class in `relive.copiers` are copied in and out. Other objects are
    stored by reference and must not be modified afterwards.

    A buffer is bound to the event loop of the first awaited call until that loop is closed. It has no locks and is not
    thread-safe.

    A subclass that notes starts and ends overrides `start_episode_nowait` and `end_episode_nowait` alone: the awaited
    calls make these. Likewise `abort_episode_nowait`, which a block makes that is left without an end.

    Args:
        max_transitions: Maximum number of stored transitions; None for no limit. Whole episodes are evicted, those that
            finished first first. An open episode is never evicted: while only open ones are left the limit may be
            exceeded, by `get_stats().overflow_transitions`.
        max_episodes: Likewise, the maximum number of stored episodes, including open ones.
        limiter: Decides when steps may be appended and batches drawn; by default sampling needs one transition.
        admission: Decides when an episode may start; each then needs a ticket from `admit`. None to admit all.
        groups: How episodes are grouped by group_id for `next_groups`; None for no groups.
        redeliver: Whether what was delivered and not acknowledged with `ack` is delivered again after a restart.
        sampler: Draws the transitions for `sample_n_step`; None to draw uniformly.
        seed: Seed or generator for sampling; the same seed and the same calls give the same draws.

    Raises:
        ArgumentError: A limit is not an integer of at least 1, the limiter asks for more than
            max_transitions, a group has more episodes than the limits or the admission allow, or the seed is invalid.

    >>> import asyncio
    >>> import relive
    >>> async def main() -> float:
    ...     buffer = relive.EpisodeReplayBuffer[str, int](max_transitions=100_000, seed=0)
    ...     async with buffer.episode("agent-0") as writer:
    ...         await writer.append("start", 1, 0.0)
    ...         await writer.append("door", 0, 1.0)
    ...         await writer.end("exit")
    ...     samples = await buffer.sample_n_step(batch_size=4, n=2, gamma=0.9)
    ...     return max(sample.reward for sample in samples)
    >>> asyncio.run(main())
    1.0
    """

    _HAS_OBJECTS = True

    def __init__(
        self,
        *,
        max_transitions: int | None = None,
        max_episodes: int | None = None,
        limiter: rate_limiters.RateLimiter | None = None,
        admission: admission_lib.Admission | None = None,
        groups: groups_lib.Groups | None = None,
        redeliver: bool = False,
        sampler: samplers.EpisodeSampler[Obs, Act] | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        if max_transitions is not None:
            max_transitions = validation.positive_int("max_transitions", max_transitions)
        if max_episodes is not None:
            max_episodes = validation.positive_int("max_episodes", max_episodes)
        if sampler is not None:
            validation.require_instance("sampler", sampler, samplers.EpisodeSampler)
        self._rng = validation.generator("seed", seed)
        self._sampler = sampler
        self._store: store_lib.EpisodeStore[Obs, Act] = store_lib.EpisodeStore(max_transitions, max_episodes)
        room = {"transitions": max_transitions, "episodes": max_episodes}
        limits = {what: most for what, most in room.items() if most is not None}
        super().__init__(
            self._store,
            rate_limiters.LimiterState(limiter, self._store, rate_limiters.Limits("max_transitions", max_transitions)),
            "sample_n_step_nowait",
            queue_lib.Rules(admission, groups, redeliver, limits).checked(),
        )

    # Writing.

    async def start_episode(
        self,
        agent_id: str,
        *,
        group_id: str | None = None,
        policy_version: int | None = None,
        ticket: admission_lib.Ticket | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Start an episode of an agent and return its id, a fresh UUID. Never waits for the limiter.

        With a journal that must be synced, it returns once the start is on disk; if that fails, or the call is
        cancelled meanwhile, the episode ends as ABORTED.

        Args:
            agent_id: The agent that acts in the episode.
            group_id: The group of the episode, such as all responses to one prompt.
            policy_version: The policy version of the episode; also of its steps, unless they specify another.
            ticket: A ticket from `admit`, which uses up one of its episodes. Required by a buffer with an Admission. If
                the episode ends as ABORTED or without a transition, the ticket, if open, admits another in its place.
            metadata: What else is known of the episode, by name: text, numbers, arrays of any shape, and lists, tuples
                and dicts of them; copied, and returned with the episode and its samples.

        Raises:
            ArgumentTypeError: agent_id or group_id is not a string, policy_version not an integer, or metadata not such
                a mapping.
            ArgumentError: group_id is empty, policy_version is below 0, the ticket is missing, used up or of another
                buffer, or the group is complete, already delivered or given up.
            ClosedError: The buffer is closed.
            CheckpointError: The journal could not be written or synced.
        """
        self._gate.bind_to_loop()
        if self._gate.should_yield():
            await self._gate.give_way()
        described: dict[str, Any] = {"group_id": group_id, "policy_version": policy_version, "metadata": metadata}
        if self._journal is None:
            return self.start_episode_nowait(agent_id, ticket=ticket, **described)
        with self._journal.delayed_syncs():
            episode_id = self.start_episode_nowait(agent_id, ticket=ticket, **described)
        try:
            await self._journal.synced()
        except BaseException as error:
            self._give_up(episode_id, error)
            raise
        return episode_id

    def start_episode_nowait(
        self,
        agent_id: str,
        *,
        group_id: str | None = None,
        policy_version: int | None = None,
        ticket: admission_lib.Ticket | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Do what `start_episode` does, with the same exceptions, as a plain call."""
        self._gate.refuse_if_closed()
        agent_id, group_id, policy_version = episode_lib.checked_start(agent_id, group_id, policy_version)
        known = None if metadata is None else metadata_lib.copied(metadata)
        ledger = self._queue.known if ticket is None else self._queue.ledger()
        if ledger is not None:
            ledger.check_start(group_id, ticket, "start_episode")
        episode = self._store.new_episode(agent_id, group_id, policy_version, known)
        if self._journal is not None:
            self._journal.start(episode)
        if ledger is not None:
            ledger.places.use(ticket, episode.episode_id)
        self._store.start(episode)
        self._gate.wake()
        return episode.episode_id

    async def append_observation_action_reward(
        self, episode_id: str, observation: Obs, action: Act, reward: float, *, policy_version: int | None = None
    ) -> None:
        """Append one step to an open episode; waits while the limiter holds inserts back. O(1).

        One call in 32 yields to other tasks first; the others return at once if they need not wait. The step is copied
        when the call begins. It becomes a transition, and can be drawn, once the next observation is known. With a
        journal that must be synced, it returns once the step is on disk; concurrent calls share one sync. If the sync
        fails, or the call is cancelled meanwhile, the step stays stored.

        Args:
            episode_id: An open episode.
            observation: o_t.
            action: a_t, chosen in o_t.
            reward: r_t; a finite real number that a float holds exactly, or an array or tensor of shape [] with one.
            policy_version: The policy version that chose a_t; None for that of the previous step, or of the start.

        Raises:
            UnknownEpisodeError: No episode with that id is stored.
            ArgumentError: The episode has ended, the reward is not a finite real number, or policy_version is not an
                integer of at least that of the previous step.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        self._gate.bind_to_loop()
        step = self._checked_step(observation, action, reward, policy_version)
        if self._gate.must_wait_to_insert(self._gate.can_insert()):
            episode_lib.check_next_step(self._store[episode_id], policy_version)
            await self._gate.wait_to_insert()
        if self._journal is None:
            self._append(episode_id, step)
            return
        with self._journal.delayed_syncs():
            self._append(episode_id, step)
        await self._journal.synced()

    def append_observation_action_reward_nowait(
        self, episode_id: str, observation: Obs, action: Act, reward: float, *, policy_version: int | None = None
    ) -> None:
        """Do what `append_observation_action_reward` does, with the same exceptions, as a plain call.

        Raises:
            NotReadyError: The limiter holds inserts back.
        """
        step = self._checked_step(observation, action, reward, policy_version)
        if not self._gate.can_insert():
            episode_lib.check_next_step(self._store[episode_id], policy_version)
            raise errors.NotReadyError(
                f"append_observation_action_reward_nowait held back by {self._limited.limiter!r}: draw samples first, "
                "or await append_observation_action_reward"
            )
        self._append(episode_id, step)

    async def end_episode(
        self, episode_id: str, final_observation: Obs, status: episode_lib.FinalStatus = "COMPLETED"
    ) -> None:
        """End an open episode with the observation after its last action. Never waits for the limiter.

        With a journal, it waits for the sync as `append_observation_action_reward` does.

        Args:
            episode_id: An open episode.
            final_observation: o_T.
            status: COMPLETED if the task ended (no bootstrap), TRUNCATED if the episode was cut off, ABORTED if the
                actor failed (bootstrap in both).

        Raises:
            UnknownEpisodeError: No episode with that id is stored.
            ArgumentError: The episode has ended already, or `status` is not one of the three.
            ClosedError: The buffer is closed.
        """
        self._gate.bind_to_loop()
        if self._journal is None:
            self.end_episode_nowait(episode_id, final_observation, status)
            return
        with self._journal.delayed_syncs():
            self.end_episode_nowait(episode_id, final_observation, status)
        await self._journal.synced()

    def end_episode_nowait(
        self, episode_id: str, final_observation: Obs, status: episode_lib.FinalStatus = "COMPLETED"
    ) -> None:
        """Do what `end_episode` does, with the same exceptions, as a plain call."""
        self._gate.refuse_if_closed()
        final_observation = copies.copied(final_observation)
        episode = self._store[episode_id]
        if self._journal is not None:
            episode_lib.check_can_end(episode, status)
            self._journal.end(episode, final_observation, status)
        self._store.end(episode, final_observation, status)
        self._ended()

    def abort_episode_nowait(self, episode_id: str) -> bool:
        """End an episode as ABORTED, without a final observation, and return whether it was open.

        Intended for a supervisor that finds an actor dead; actors themselves just leave the `episode` block. The
        episode keeps the transitions whose next observation is known. Works on a closed buffer too.

        Raises:
            ArgumentTypeError: episode_id is not a string.
        """
        episode = self._store.open.get(validation.string("episode_id", episode_id))
        if episode is None:
            return False
        if self._journal is not None:
            self._journal.abort(episode)
        self._store.abort(episode)
        self._ended()
        return True

    def episode(
        self,
        agent_id: str,
        *,
        group_id: str | None = None,
        policy_version: int | None = None,
        ticket: admission_lib.Ticket | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> contextlib.AbstractAsyncContextManager[writers.EpisodeWriter[Obs, Act]]:
        """Return an async context manager that starts an episode, as `start_episode` does, and yields its writer.

        If the block is left without `writer.end(...)`, by an exception, a cancellation or a return, the episode ends as
        ABORTED and keeps the transitions whose next observation is known.
        """
        described = {"group_id": group_id, "policy_version": policy_version, "ticket": ticket, "metadata": metadata}
        rule = "episode needs `async with`: use episode_nowait for a plain `with`"
        return blocks.AsyncBlock(self._episode(agent_id, **described), rule)

    @contextlib.asynccontextmanager
    async def _episode(self, agent_id: str, **described: Any) -> AsyncIterator[writers.EpisodeWriter[Obs, Act]]:
        episode_id = await self.start_episode(agent_id, **described)
        del described  # A ticket that nobody else refers to is lost.
        with self._aborting(episode_id):
            yield writers.EpisodeWriter(self, episode_id)

    def episode_nowait(
        self,
        agent_id: str,
        *,
        group_id: str | None = None,
        policy_version: int | None = None,
        ticket: admission_lib.Ticket | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> contextlib.AbstractContextManager[writers.PlainEpisodeWriter[Obs, Act]]:
        """Do what `episode` does as a context manager for a plain `with`; the calls of its writer are plain.

        >>> import relive
        >>> buffer = relive.EpisodeReplayBuffer[str, int]()
        >>> with buffer.episode_nowait("agent-0") as writer:
        ...     writer.append("start", 1, 0.5)
        ...     writer.end("exit")
        >>> len(buffer)
        1
        """
        described = {"group_id": group_id, "policy_version": policy_version, "ticket": ticket, "metadata": metadata}
        rule = "episode_nowait needs a plain `with`: use episode for `async with`"
        return blocks.PlainBlock(self._episode_nowait(agent_id, **described), rule)

    @contextlib.contextmanager
    def _episode_nowait(self, agent_id: str, **described: Any) -> Iterator[writers.PlainEpisodeWriter[Obs, Act]]:
        episode_id = self.start_episode_nowait(agent_id, **described)
        del described
        with self._aborting(episode_id):
            yield writers.PlainEpisodeWriter(self, episode_id)

    @contextlib.contextmanager
    def _aborting(self, episode_id: str) -> Iterator[None]:
        """Abort the episode, if it is open, when the block is left."""
        try:
            yield
        except BaseException as error:
            self._give_up(episode_id, error)
            raise
        self.abort_episode_nowait(episode_id)

    def _give_up(self, episode_id: str, error: BaseException) -> None:
        """Abort an episode, if it is open, after an error in its writer, which stays the exception raised."""
        try:
            self.abort_episode_nowait(episode_id)
        except errors.ReplayError as unwritten:
            self._store.abort(self._store[episode_id])
            self._ended()
            error.add_note(f"episode {episode_id} ended as ABORTED, but the journal has no record of it: {unwritten}")

    # Drawing.

    async def sample_n_step(
        self, batch_size: int, n: int, gamma: float, *, max_lag: int | None = None, lag_decay: float = 1.0
    ) -> list[samples_lib.ReplaySample[Obs, Act]]:
        """Return exactly batch_size n-step samples, drawn with replacement; waits until that is possible.

        Always yields to other tasks first.

        Args:
            batch_size: Number of samples.
            n: Maximum number of steps of a sample; fewer if the episode, or what is known of it, ends earlier.
            gamma: The discount factor, in (0, 1].
            max_lag: Maximum lag of the first step of a sample behind the learner's version; waits until there is such a
                step. None for any step, including those of unknown version.
            lag_decay: If below 1, a transition is drawn in proportion to lag_decay ** lag, and none of unknown version;
                an actor ahead of the learner has lag 0.

        Raises:
            ArgumentError: An argument is invalid, or the limiter could never allow such a batch; or max_lag or
                lag_decay is given before `set_policy_version` was called, or to a buffer with a custom sampler or
                `_draw`.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        self._gate.bind_to_loop()
        self._gate.refuse_if_closed()
        batch_size, n, gamma, lags = self._checked_request(batch_size, n, gamma, max_lag, lag_decay)
        if lags is None:
            await self._gate.wait_to_sample(batch_size)
        else:
            await self._gate.wait_to_sample(batch_size, lambda: self._store.has_within(lags))
        return self._sample(batch_size, n, gamma, lags)

    def sample_n_step_nowait(
        self, batch_size: int, n: int, gamma: float, *, max_lag: int | None = None, lag_decay: float = 1.0
    ) -> list[samples_lib.ReplaySample[Obs, Act]]:
        """Do what `sample_n_step` does, as a plain call. A closed buffer ignores the limiter.

        Raises:
            NotReadyError: No transition is complete or within the lag, or the limiter holds samples back.
        """
        batch_size, n, gamma, lags = self._checked_request(batch_size, n, gamma, max_lag, lag_decay)
        if not len(self._store):
            remedy = "append a step and the observation after it, or await sample_n_step"
            if self._gate.is_closed:
                remedy = "the buffer was closed without one"
            raise errors.NotReadyError(f"sample_n_step_nowait found no complete transition: {remedy}")
        if not self._gate.is_closed and not self._gate.can_sample(batch_size):
            raise errors.NotReadyError(
                f"sample_n_step_nowait held back by {self._limited.limiter!r} with {len(self._store)} transitions: "
                "append more steps, or await sample_n_step"
            )
        if lags is not None and not self._store.has_within(lags):
            raise errors.NotReadyError(
                f"sample_n_step_nowait found 0 of {len(self._store)} transitions {lags}, at policy version "
                f"{self._store.policy_version}: append steps of a newer version, or await sample_n_step"
            )
        return self._sample(batch_size, n, gamma, lags)

    def _draw(self, batch_size: int) -> list[tuple[episode_lib.Episode[Obs, Act], int]]:
        """Return batch_size draws, each an episode and the start step of a complete transition in it.

        Subclasses may override it, but an EpisodeSampler is usually simpler. It is called only if there is a complete
        transition. It may use `self._rng`, `self._store.finished` (in the order of finishing, O(1) access),
        `self._store.open` (a dict by id) and `self._store.draw(size, rng)`, and must not change them; an episode may
        have no transition. The result is validated. By default, the sampler draws, or the draw is uniform over all
        complete transitions.
        """
        if self._sampler is None:
            return self._store.draw(batch_size, self._rng)
        return self._sampler._draw(samplers.StoredEpisodes(self._store), batch_size, self._rng)

    @property
    def sampler(self) -> samplers.EpisodeSampler[Obs, Act] | None:
        """The sampler of transitions; None if they are drawn uniformly."""
        return self._sampler

    # Persistence.

    @property
    def limiter(self) -> rate_limiters.RateLimiter:
        """The rate limiter, which decides when steps may be appended and batches drawn."""
        return self._limited.limiter

    @property
    def appended(self) -> int:
        """How many steps were appended so far."""
        return self._store.inserted

    def transitions_by_version(self) -> dict[int, int]:
        """Return the number of complete transitions of each known policy version, oldest first."""
        return self._store.versions.totals()

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        codec: "codec_lib.Codec | None" = None,
        keep: int = 1,
        progress: state_lib.Progress | None = None,
    ) -> None:
        """Save the buffer as a checkpoint, one file, replacing an older checkpoint at the same path.

        The file is a zip archive, of which `np.load` shows the arrays. It is written beside `path`, synced to disk and
        renamed, so a reader finds either the old one or the new one, complete, even after a crash. Everything is
        encoded twice; memory use is a few chunks of 16 MiB.

        Args:
            path: The file: must be missing, empty, or a checkpoint. No suffix is added.
            codec: Encodes observations and actions; a PlainCodec if None.
            keep: Number of checkpoints to keep: this one at `path`, earlier ones at `path.1`, `path.2` and so on.
            progress: Called periodically with the number of bytes written so far and the total.

        Raises:
            ArgumentError: `keep` is not an integer of at least 1, or `path` is not a path.
            CheckpointError: `path` is something other than a checkpoint, another writer holds it, it could not be
                written, or something cannot be saved, such as an object that the codec does not support.
        """
        checkpoint.save(self._full_state(codec=codec_lib.checked(codec)), path, keep=keep, progress=progress)

    async def save_async(
        self,
        path: str | os.PathLike[str],
        *,
        codec: "codec_lib.Codec | None" = None,
        keep: int = 1,
        progress: state_lib.Progress | None = None,
    ) -> None:
        """Save the buffer as it is when the call begins, writing in a thread.

        The event loop keeps running: the snapshot costs O(open episodes), and a pointer for each other episode. If the
        call is cancelled, a started thread still finishes, or fails and leaves the old checkpoint. A closed buffer can
        be saved.

        Args:
            path: As in `save`.
            codec: As in `save`; it is called in the thread.
            keep: As in `save`.
            progress: Called in the thread.

        Raises:
            ArgumentError: As in `save`.
            CheckpointError: As in `save`; or an earlier call is still writing to the same path.
        """
        self._gate.bind_to_loop()
        codec = codec_lib.checked(codec)
        head, journal = self._described(self._place), self._journal
        snapshot, queue = episode_state.Snapshot(self._store), self._queue_snapshot()

        def write() -> None:
            if journal is not None:
                journal.sync()
            state = {**head, **self._state_of(snapshot, queue, codec=codec)}
            checkpoint.save(state, path, keep=keep, progress=progress)

        await asyncio.to_thread(write)

    def _state_dict(self, **options: Any) -> state_lib.State:
        return self._state_of(episode_state.Snapshot(self._store), self._queue_snapshot(), **options)

    @staticmethod
    def _state_of(snapshot: "episode_state.Snapshot", queue: "queue_state.Snapshot", **options: Any) -> state_lib.State:
        state = snapshot.state_dict(**options)
        return {**state, "arrays": {**state["arrays"], **queue.state_dict(snapshot.episodes)}}

    def _base_state(self, **options: Any) -> state_lib.State:
        state = episode_state.base_state_dict(self._store, **options)
        return {**state, "arrays": {**state["arrays"], **self._base_queue_state()}}

    def _load_state_dict(self, given: state_lib.StateReader, **options: Any) -> None:
        store: store_lib.EpisodeStore[Obs, Act] = store_lib.EpisodeStore(
            self._store.max_transitions, self._store.max_episodes
        )
        episode_state.load(given, store, **options)
        self._store = store
        self._load_queue(given)

    def attach(self, journal: "journal_lib.Journal", *, codec: "codec_lib.Codec | None" = None) -> None:
        """Write every change to a journal from now on, in the call that makes it.

        An empty journal begins with everything stored now: as one record, or, above 16 MiB, as a checkpoint in its
        directory. A journal with contents is continued: the buffer must be the one that `recover` returned. Draws are
        not written.

        Args:
            journal: An open journal that no other buffer writes to. While it is attached, a call that cannot be
                journaled raises CheckpointError and changes nothing.
            codec: Encodes observations and actions; a PlainCodec if None.

        Raises:
            ArgumentError: A journal is already attached, or this one does not match the buffer.
            CheckpointError: The journal could not be written, or the codec does not support an object.
        """
        self._attach(journal, codec=codec_lib.checked(codec))
        self._store.listeners.append(self._journal)

    def detach(self) -> None:
        """Stop writing to the journal, which stays open; does nothing if there is none."""
        if self._journal is not None:
            self._store.listeners.remove(self._journal)
        super().detach()

    def _written(self) -> tuple[int, ...]:
        stats = self._store.stats()
        counts = (stats.appended, stats.evicted_episodes, stats.evicted_transitions, stats.total_episodes)
        version = -1 if stats.policy_version is None else stats.policy_version
        ends = stats.in_progress, stats.completed, stats.truncated, stats.aborted
        return (*counts, *ends, version, self._queue.num_commands)

    def _journaled(self, journal: "journal_lib.Journal", replay: Any, **options: Any) -> "journal_lib.Bound":
        return episode_journal.EpisodeJournal(journal, self._store, replay, **options)

    def _replay(self, **options: Any) -> checkpointable.Replay:
        return episode_journal.Replay(self, **options)

    # Statistics and checks.

    def get_stats(self) -> store_lib.EpisodeBufferStats:
        """Return statistics of the buffer. O(open episodes)."""
        return self._store.stats()

    def clear(self) -> None:
        """Remove every episode, open ones included: their writers raise UnknownEpisodeError.

        The cumulative counters of `get_stats` and the random generator are not reset.
        """
        self._queue.refuse_while_asking("clear")
        if self._journal is not None:
            self._journal.clear()
        self._store.clear()
        self._gate.wake()

    def check(self) -> None:
        """Verify all invariants by recounting everything that is stored.

        Raises:
            CorruptionError: An invariant does not hold; the message says which.
        """
        self._store.check()
        self._queue.check()

    def __len__(self) -> int:
        """Return the number of complete transitions stored."""
        return len(self._store)

    def __repr__(self) -> str:
        limits = f"max_transitions={self._store.max_transitions}, max_episodes={self._store.max_episodes}"
        others = self._others_set("max_transitions", "max_episodes")
        return f"<{type(self).__name__} of {len(self)} transitions, {limits}{others}>"

    def _checked_request(
        self, batch_size: int, n: int, gamma: float, max_lag: int | None, lag_decay: float
    ) -> tuple[int, int, float, versions.Lags | None]:
        """Return the arguments of a sample call, checked; None for lags that are unrestricted."""
        if self._gate.is_closed:
            batch_size = validation.batch_size("batch_size", batch_size)
        else:
            batch_size = self._limited.checked_batch_size(batch_size)
        n, gamma = validation.positive_int("n", n), validation.discount("gamma", gamma)
        if max_lag is None and type(lag_decay) is float and lag_decay == 1:
            return batch_size, n, gamma, None
        lags = versions.asked(max_lag, lag_decay)
        if lags is not None and self._has_own_draw():
            raise errors.ArgumentError(
                "max_lag and lag_decay must be left out where "
                f"{type(self._sampler or self).__name__}._draw decides what is drawn"
            )
        versions.require_learner(lags, self._store.policy_version)
        return batch_size, n, gamma, lags

    def _has_own_draw(self) -> bool:
        """Return whether there is a sampler, or `_draw` is overridden, by a subclass or on the instance."""
        return self._sampler is not None or getattr(self._draw, "__func__", None) is not EpisodeReplayBuffer._draw

    def _checked_step(
        self, observation: Obs, action: Act, reward: float, policy_version: int | None
    ) -> tuple[Obs, Act, float, int | None]:
        """Return a checked copy of the step, since the caller may modify its arguments while the call waits."""
        if type(reward) is not float or not math.isfinite(reward):
            reward = episode_lib.checked_reward(reward)
        return copies.copied(observation), copies.copied(action), reward, policy_version

    def _append(self, episode_id: str, step: tuple[Obs, Act, float, int | None]) -> None:
        episode, journal = self._store[episode_id], self._journal
        if journal is not None:
            episode_lib.check_next_step(episode, step[3])
            journal.append(episode, *step)
        self._store.append(episode, *step)
        if journal is not None:
            journal.settle()
        self._gate.wake()

    def _ended(self) -> None:
        """Wake the callers that wait for the end of an episode."""
        self._gate.wake()
        if self._queue.known is not None:
            self._wake_ended()

    def _open_ids(self) -> Collection[str]:
        return self._store.open

    def _abandon(self, group_ids: Sequence[str]) -> None:
        super()._abandon(group_ids)  # First, since the end of an episode may evict what waits, and a replay cannot.
        for episode in list(self._store.open.values()):
            self._store.abort(episode)

    def _sample(
        self, batch_size: int, n: int, gamma: float, lags: versions.Lags | None
    ) -> list[samples_lib.ReplaySample[Obs, Act]]:
        with randomness.Unmoved(self._rng):
            if lags is not None:
                draws = self._store.draw_within(batch_size, self._rng, lags)
            elif self._has_own_draw():
                draws = self._store.checked_draws(self._draw(batch_size), batch_size)
            else:
                draws = self._draw(batch_size)
            samples = samples_lib.read(draws, n, gamma)
        self._store.note(draws)
        self._gate.wake()
        return samples
