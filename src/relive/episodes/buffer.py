"""The replay memory of asyncio actors: whole episodes of typed objects, drawn from as n-step samples.

    actor coroutines                    EpisodeReplayBuffer                       learner coroutine
    await start_episode      ────►   limiter: may this happen now?   ◄────   await sample_n_step
    await append_...         ────►   gate: wait until it may
    await end_episode        ────►   EpisodeStore: what is there

The law of this file: deciding and waiting are apart. The `_nowait` methods decide and act at once; the awaited ones
wait for their turn, then do what the `_nowait` one does, and await nothing in between. So a call that was cancelled
has either happened or left no trace.
"""

import asyncio
from collections.abc import AsyncIterator
import contextlib
import math
import os
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np

from relive import errors
from relive.agents import admission as admission_lib
from relive.agents import delivery
from relive.agents import groups as groups_lib
from relive.agents import queue as queue_lib
from relive.common import copies
from relive.common import imports
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.episodes import samplers
from relive.episodes import samples as samples_lib
from relive.episodes import store as store_lib
from relive.episodes import versions
from relive.persistence import checkpointable
from relive.persistence import state as state_lib
from relive.waiting import gate
from relive.waiting import rate_limiters

if TYPE_CHECKING:
    from relive.agents import queue_state
    from relive.episodes import episode_journal
    from relive.episodes import episode_state
    from relive.episodes import origins
    from relive.persistence import checkpoint
    from relive.persistence import codec as codec_lib
    from relive.persistence import journal as journal_lib
else:
    checkpoint = imports.lazy_module("relive.persistence.checkpoint")
    codec_lib = imports.lazy_module("relive.persistence.codec")
    episode_journal = imports.lazy_module("relive.episodes.episode_journal")
    episode_state = imports.lazy_module("relive.episodes.episode_state")
    origins = imports.lazy_module("relive.episodes.origins")
    queue_state = imports.lazy_module("relive.agents.queue_state")
    journal_lib = imports.lazy_module("relive.persistence.journal")

Obs = TypeVar("Obs")
Act = TypeVar("Act")


class EpisodeReplayBuffer(checkpointable.Journalable, delivery.Delivery[Obs, Act], Generic[Obs, Act]):
    """Stores the episodes of many agents and returns n-step samples, uniform over all complete transitions.

    Observations and actions may be any objects. Arrays, built-in containers, dataclasses, objects with a method
    `clone()`, such as tensors, and objects of a class in `relive.copiers` are copied in and out. Other objects are kept
    by reference, and must not be changed once they are stored.

    A buffer belongs to the event loop of the first awaited call until that loop is closed; then the next one takes it
    over. It has no locks: in threads, guard it yourself.

    Args:
        max_transitions: Transitions kept at most; None for no limit. The episode that finished first goes first, and
            whole. An open episode is never evicted: while only open ones are left the limit may be exceeded, and
            `get_stats().overflow_transitions` says by how much.
        max_episodes: Episodes kept at most, in the same way; open ones count too.
        limiter: Decides when a step may be appended and a batch drawn; by default a batch needs one transition.
        admission: Decides when an episode may start; each then needs a ticket of `admit`. None for always.
        groups: Which episodes of one group_id are handed out together, by `next_groups`; None if none are.
        sampler: Draws the transitions of `sample_n_step`; None for uniformly over all of them.
        seed: For the generator of the draws; the same seed and the same calls give the same draws.

    Raises:
        ArgumentError: A limit is not an integer of at least 1, the limiter asks for more than max_transitions, a group
            has more episodes than the limits or the admission have room for, or numpy makes no generator of the seed.

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
    _SETTINGS = ("max_transitions", "max_episodes", "limiter", "admission", "groups", "sampler")

    def __init__(
        self,
        *,
        max_transitions: int | None = None,
        max_episodes: int | None = None,
        limiter: rate_limiters.RateLimiter | None = None,
        admission: admission_lib.Admission | None = None,
        groups: groups_lib.Groups | None = None,
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
        self._limited = rate_limiters.LimitedBuffer(limiter, self._store, "max_transitions", max_transitions)
        self._gate = gate.Gate(self._limited, "sample_n_step_nowait")
        self._begin_handing_out(admission, groups)

    # Writing.

    async def start_episode(
        self,
        agent_id: str,
        *,
        group_id: str | None = None,
        policy_version: int | None = None,
        ticket: admission_lib.Ticket | None = None,
    ) -> str:
        """Open an episode of that agent and return its id, a fresh UUID. Never waits for the limiter.

        With a journal that is to be synced it returns when the start is on the disk; if that fails, or the call is
        cancelled meanwhile, the episode ends as ABORTED.

        Args:
            agent_id: The agent that acts in it.
            group_id: Which episodes it belongs with, such as the other returns to a prompt.
            policy_version: The version of the policy it starts with, and that of its steps unless they get another.
            ticket: One of `admit`, of which an episode is used up. A buffer with an Admission asks for it.

        Raises:
            ArgumentTypeError: agent_id or group_id is not a string, or policy_version not an integer.
            ArgumentError: group_id is empty, policy_version is below 0, the ticket is missing, used up or of another
                buffer, or the group has all its episodes, or was handed out or given up.
            ClosedError: The buffer is closed.
            CheckpointError: The journal could not be written or synced.
        """
        self._gate.bind_to_loop()
        if self._gate.should_yield():
            await asyncio.sleep(0)
        episode_id = self._start(agent_id, group_id, policy_version, ticket, sync=False)
        if self._journal is not None:
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
    ) -> str:
        """Do what `start_episode` does, and raise what it raises, as a plain call."""
        return self._start(agent_id, group_id, policy_version, ticket, sync=True)

    def _start(
        self,
        agent_id: str,
        group_id: str | None,
        policy_version: int | None,
        ticket: admission_lib.Ticket | None,
        *,
        sync: bool,
    ) -> str:
        """Open an episode; `sync` says whether the journal, if it is due, is synced within the call."""
        self._gate.refuse_if_closed()
        agent_id = validation.string("agent_id", agent_id)
        if group_id is not None:
            group_id = delivery.checked_name("group_id", group_id)
        if policy_version is not None:
            policy_version = validation.non_negative_int("policy_version", policy_version)
        self._hand_outs.check_start(group_id, ticket)
        episode = self._store.new_episode(agent_id, group_id, policy_version)
        if self._journal is not None:
            self._journal.start(episode, sync=sync)
        self._hand_outs.desk.use(ticket)
        self._store.start(episode)
        self._gate.wake()
        self._queues.started(self._due())
        return episode.episode_id

    async def append_observation_action_reward(
        self, episode_id: str, observation: Obs, action: Act, reward: float, *, policy_version: int | None = None
    ) -> None:
        """Append one step; waits while the limiter holds inserts back. O(1).

        One call in 32 lets the other tasks run first; the rest of those that need not wait go straight on. The step is
        copied when the call begins. It becomes a transition, and can be drawn, when the observation after it is known.
        With a journal that is to be synced it returns when the step is on the disk, and all who wait for that share one
        sync; if that fails, or the call is cancelled meanwhile, the step is stored nevertheless.

        Args:
            episode_id: An open episode.
            observation: o_t.
            action: a_t, chosen in o_t.
            reward: r_t, what followed; a finite real number that a float holds exactly, or an array or tensor of shape
                [] with one.
            policy_version: Which version of the policy chose a_t; None for that of the step before, or of the start.

        Raises:
            UnknownEpisodeError: No episode of that id is stored.
            ArgumentError: The episode has ended, the reward is not a finite real number, or policy_version is no
                integer of at least that of the step before.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        self._gate.bind_to_loop()
        step = self._checked_step(observation, action, reward, policy_version)
        if self._gate.must_wait_to_insert():
            self._store[episode_id].check_next_step(policy_version)
            await self._gate.wait_to_insert()
        self._append(episode_id, step, sync=False)
        if self._journal is not None:
            await self._journal.synced()

    def append_observation_action_reward_nowait(
        self, episode_id: str, observation: Obs, action: Act, reward: float, *, policy_version: int | None = None
    ) -> None:
        """Do what `append_observation_action_reward` does, and raise what it raises, as a plain call.

        Raises:
            NotReadyError: The limiter holds inserts back.
        """
        step = self._checked_step(observation, action, reward, policy_version)
        if not self._gate.can_insert():
            self._store[episode_id].check_next_step(policy_version)
            raise errors.NotReadyError(
                f"append_observation_action_reward_nowait held back by {self._limited.limiter!r}: draw samples first, "
                "or await append_observation_action_reward"
            )
        self._append(episode_id, step)

    async def end_episode(
        self, episode_id: str, final_observation: Obs, status: episode_lib.FinalStatus = "COMPLETED"
    ) -> None:
        """End an open episode with the observation after its last action. Never waits for the limiter.

        With a journal it returns as `append_observation_action_reward` does.

        Args:
            episode_id: An open episode.
            final_observation: o_T.
            status: COMPLETED if the task ended (no bootstrap), TRUNCATED if we stopped looking, ABORTED if the actor
                died (bootstrap in both).

        Raises:
            UnknownEpisodeError: No episode of that id is stored.
            ArgumentError: The episode has ended already, or `status` is none of the three.
            ClosedError: The buffer is closed.
        """
        self._gate.bind_to_loop()
        self._end(episode_id, final_observation, status, sync=False)
        if self._journal is not None:
            await self._journal.synced()

    def end_episode_nowait(
        self, episode_id: str, final_observation: Obs, status: episode_lib.FinalStatus = "COMPLETED"
    ) -> None:
        """Do what `end_episode` does, and raise what it raises, as a plain call."""
        self._end(episode_id, final_observation, status, sync=True)

    def _end(self, episode_id: str, final_observation: Obs, status: episode_lib.FinalStatus, *, sync: bool) -> None:
        """End an open episode; `sync` says whether the journal, if it is due, is synced within the call."""
        self._gate.refuse_if_closed()
        final_observation = copies.copied(final_observation)
        if self._journal is not None:
            self._store[episode_id].check_can_end(status)
            self._journal.end(episode_id, final_observation, status, sync=sync)
        self._store.end(episode_id, final_observation, status)
        self._ended()

    def abort_episode_nowait(self, episode_id: str) -> bool:
        """End an episode as ABORTED, without a final observation, and return whether it was open.

        For a supervisor that finds the actor dead; the actor itself leaves the block of `episode`. The episode keeps
        the transitions whose next observation is known. Works on a closed buffer too.
        """
        is_open = episode_id in self._store.open
        if is_open:
            self._abort(episode_id)
        return is_open

    def episode(
        self,
        agent_id: str,
        *,
        group_id: str | None = None,
        policy_version: int | None = None,
        ticket: admission_lib.Ticket | None = None,
    ) -> contextlib.AbstractAsyncContextManager["EpisodeWriter[Obs, Act]"]:
        """Open an episode, as `start_episode` does, for the length of an `async with` block, which gets its writer.

        A block that is left before `writer.end(...)`, by an exception, a cancellation or a return, ends the episode as
        ABORTED; it keeps the transitions whose next observation is known.
        """
        return self._episode(agent_id, group_id=group_id, policy_version=policy_version, ticket=ticket)

    @contextlib.asynccontextmanager
    async def _episode(self, agent_id: str, **described: Any) -> AsyncIterator["EpisodeWriter[Obs, Act]"]:
        episode_id = await self.start_episode(agent_id, **described)
        try:
            yield EpisodeWriter(self, episode_id)
        except BaseException as error:
            self._give_up(episode_id, error)
            raise
        self.abort_episode_nowait(episode_id)

    def _give_up(self, episode_id: str, error: BaseException) -> None:
        """Abort an episode, if it is open, that nobody is left to end because of an error; that is what is raised."""
        try:
            self.abort_episode_nowait(episode_id)
        except errors.ReplayError as unwritten:
            self._store.abort(episode_id)
            self._ended()
            error.add_note(f"episode {episode_id} ended as ABORTED, and the journal does not say so: {unwritten}")

    # Drawing.

    @property
    def policy_version(self) -> int | None:
        """The version of the learner's policy; None before the first `set_policy_version`."""
        return self._store.policy_version

    def set_policy_version(self, version: int) -> None:
        """Set the version of the learner's policy, from which the lag of a step is counted.

        Raises:
            ArgumentTypeError: `version` is not an integer.
            ArgumentError: It is below 0, or below the one before.
        """
        before = self._store.policy_version
        version = validation.next_version(version, before)
        if self._journal is not None:
            self._journal.learn(version)
        self._store.policy_version = version
        self._hand_outs.move_on(self._store, 0 if before is None else version - before)
        self._gate.wake()
        self._queues.wake_learner()

    async def sample_n_step(
        self, batch_size: int, n: int, gamma: float, *, max_lag: int | None = None, lag_decay: float = 1.0
    ) -> list[samples_lib.ReplaySample[Obs, Act]]:
        """Return exactly batch_size n-step samples, drawn with replacement; waits until that is possible.

        Other tasks run first, even if there is no need to wait.

        Args:
            batch_size: How many samples.
            n: How many rewards a sample sums at most; fewer where the episode, or what is known of it, ends earlier.
            gamma: The discount factor, in (0, 1].
            max_lag: By how much the learner's version may be ahead of that of the step that a sample starts at; it then
                waits until there is such a step. None for any step, also one of an unknown version.
            lag_decay: Below 1, a transition is drawn in proportion to lag_decay ** lag, and none of an unknown version;
                an actor ahead of the learner has lag 0.

        Raises:
            ArgumentError: An argument breaks its rule, or the limiter could never allow such a batch; or max_lag or
                lag_decay is given before `set_policy_version` was called, or to a buffer with a `_draw` of its own.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        self._gate.bind_to_loop()
        self._gate.refuse_if_closed()
        batch_size, n, gamma = self._checked_request(batch_size, n, gamma)
        lags = self._checked_lags(max_lag, lag_decay)
        if lags is None:
            await self._gate.wait_to_sample(batch_size)
        else:
            await self._gate.wait_to_sample(batch_size, lambda: self._store.has_within(lags))
        return self._sample(batch_size, n, gamma, lags)

    def sample_n_step_nowait(
        self, batch_size: int, n: int, gamma: float, *, max_lag: int | None = None, lag_decay: float = 1.0
    ) -> list[samples_lib.ReplaySample[Obs, Act]]:
        """Do what `sample_n_step` does, as a plain call. From a closed buffer it draws without asking the limiter.

        Raises:
            NotReadyError: No transition is complete, or of such a lag, or the limiter holds samples back.
        """
        batch_size, n, gamma = self._checked_request(batch_size, n, gamma)
        lags = self._checked_lags(max_lag, lag_decay)
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

        A subclass may override it, for a rule that belongs to the buffer; other rules are an EpisodeSampler. It is
        called only if there is a complete transition. It may use `self._rng`, `self._store.finished` (the episode that
        finished first is 0, the last one -1, each O(1)), `self._store.open` (a dict by id) and
        `self._store.draw(size, rng)`, and must not change them; an episode may have no transition. What it returns is
        checked. Here: what the sampler draws, or uniform over all complete transitions.
        """
        if self._sampler is None:
            return self._store.draw(batch_size, self._rng)
        return self._sampler._draw(samplers.StoredEpisodes(self._store), batch_size, self._rng)

    @property
    def sampler(self) -> samplers.EpisodeSampler[Obs, Act] | None:
        """What draws the transitions; None for uniformly over all of them."""
        return self._sampler

    # To outlive the process.

    @property
    def limiter(self) -> rate_limiters.RateLimiter:
        """What decides when a step may be appended and a batch drawn."""
        return self._limited.limiter

    @property
    def appended(self) -> int:
        """How many steps were appended, ever."""
        return self._store.inserted

    def transitions_by_version(self) -> dict[int, int]:
        """Return how many complete transitions there are of each known version of the policy, the oldest first."""
        return self._store.versions.totals()

    @property
    def rng(self) -> np.random.Generator:
        """The generator of the draws."""
        return self._rng

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        codec: "codec_lib.Codec | None" = None,
        keep: int = 1,
        progress: state_lib.Progress | None = None,
    ) -> None:
        """Save the buffer as a directory; it may replace an older checkpoint.

        It is built beside, synced to the disk, and renamed: a reader of `path` finds the old one or the new one,
        whole, whatever happens meanwhile. Everything is encoded twice, and takes memory for one chunk of 16 MiB.

        Args:
            path: The directory: one that is not there, is empty, or is a checkpoint.
            codec: What makes bytes of observations and actions; a PlainCodec if None.
            keep: How many checkpoints stay: this one at `path`, those before it at `path.1`, `path.2` and so on.
            progress: Called now and then with the bytes written so far and the bytes there are.

        Raises:
            ArgumentError: `path` is something else than a checkpoint, or `keep` is not an integer of at least 1.
            CheckpointError: It could not be written, somebody else is writing it, or something cannot be saved: an
                object that the codec does not know.
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
        """Save the buffer as it is when the call begins to run, as `save` does; a thread writes it meanwhile.

        The event loop goes on: to begin costs O(open episodes), and a pointer for each of the others. If the call is
        cancelled, a thread that has begun still writes all, or fails and leaves what was there. A closed buffer can be
        saved.

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
        head, attached = self._described(self._place), self._attached
        snapshot, hand_outs = self._store.snapshot(), self._hand_outs.snapshot()

        def write() -> None:
            checkpointable.sync(attached)
            state = {**head, **self._state_of(snapshot, hand_outs, codec=codec)}
            checkpoint.save(state, path, keep=keep, progress=progress)

        await asyncio.to_thread(write)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        codec: "codec_lib.Codec | None" = None,
        progress: state_lib.Progress | None = None,
        **instead: Any,
    ) -> Self:
        """Return the buffer that was saved at `path`.

        Args:
            path: The directory.
            codec: The one that it was saved with; a PlainCodec if None.
            progress: Called now and then with the bytes read so far and the bytes there are.
            instead: Arguments of the constructor in the place of the saved ones: a limiter of a class of your own is
                not in the checkpoint.

        Raises:
            CheckpointError: There is no checkpoint, it is damaged, or of another class, codec or a newer version.
        """
        codec = codec_lib.checked(codec)
        with checkpoint.opened(path, progress=progress) as state:
            return cls._loaded(state, instead, codec=codec)

    def state_dict(self, *, codec: "codec_lib.Codec | None" = None) -> state_lib.State:
        """Return what `save` would save, as one dict of JSON values, and of arrays by name under "arrays".

        Nothing in it is shared with the buffer.

        Raises:
            CheckpointError: Something cannot be saved.
        """
        return self._in_memory(self._full_state(codec=codec_lib.checked(codec)))

    def load_state_dict(self, state: state_lib.State, *, codec: "codec_lib.Codec | None" = None) -> None:
        """Make the buffer what it was when it returned that state, which is left as it is and not shared.

        The settings must be those of the state. Writers of episodes that are not in it get UnknownEpisodeError.

        Raises:
            CheckpointError: That is no state of such a buffer. Nothing has changed.
        """
        self._load_state(state, codec=codec_lib.checked(codec))

    def _setting(self, name: str) -> Any:
        if name in ("admission", "groups"):
            return getattr(self._hand_outs, name)
        return getattr(self if name in ("limiter", "sampler") else self._store, name)

    def _state(self, **options: Any) -> state_lib.State:
        return self._state_of(self._store.snapshot(), self._hand_outs, **options)

    @staticmethod
    def _state_of(
        snapshot: store_lib.Snapshot[Obs, Act], hand_outs: queue_lib.LearnerQueue, **options: Any
    ) -> state_lib.State:
        state = episode_state.state_dict(snapshot, **options)
        arrays = queue_state.state_dict(hand_outs, snapshot.episodes.values())
        return {**state, "arrays": {**state["arrays"], **arrays}}

    def _base_state(self, **options: Any) -> state_lib.State:
        state = episode_state.state_dict(store_lib.Snapshot(counts=self._store.counts()), **options)
        arrays = queue_state.base_state_dict(self._hand_outs, self._store)
        return {**state, "arrays": {**state["arrays"], **arrays}}

    def _restore(self, given: state_lib.StateReader, *, is_new: bool, **options: Any) -> None:
        store: store_lib.EpisodeStore[Obs, Act] = store_lib.EpisodeStore(
            self._store.max_transitions, self._store.max_episodes
        )
        store.fill(episode_state.load(given, **options))
        hand_outs = self._new_hand_outs(self._hand_outs.admission, self._hand_outs.groups)
        queue_state.load(given, store, hand_outs, is_same_rule=self._has_rules_of(given))
        self._store = self._limited.counts = store
        self._follow(hand_outs)
        self._gate.wake()
        self._queues.wake()

    def attach(self, journal: "journal_lib.Journal", *, codec: "codec_lib.Codec | None" = None) -> None:
        """Write to a journal from now on: each step, start, end and `clear` just before it happens.

        A new journal begins with all that is stored now: as a record, or as a checkpoint in its directory if that has
        more than 16 MiB. One that holds something goes on after it: the buffer must be what `recover` has returned.
        Draws are not written.

        Args:
            journal: An open one that no buffer writes to. While it is attached, a call that it cannot write raises
                CheckpointError, and nothing has changed.
            codec: What makes bytes of observations and actions; a PlainCodec if None.

        Raises:
            ArgumentError: A journal is attached already, or this one holds something else than the buffer.
            CheckpointError: It could not be written, or the codec does not know an object.
        """
        self._attach(journal, codec=codec_lib.checked(codec))

    def detach(self) -> None:
        """Stop writing to the journal, which stays open; does nothing if there is none."""
        if self._journal is not None:
            self._store.listeners.remove(self._journal)
        super().detach()

    def _written(self) -> tuple[int, ...]:
        stats = self._store.stats()
        counts = (stats.appended, stats.evicted_episodes, stats.evicted_transitions, stats.total_episodes)
        version = -1 if stats.policy_version is None else stats.policy_version
        return (*counts, stats.in_progress, stats.completed, stats.truncated, stats.aborted, version)

    def _journaled(self, journal: "journal_lib.Journal", replay: Any, **options: Any) -> checkpointable.Bound:
        return episode_journal.EpisodeJournal(journal, self._store, replay, **options)

    def _replay(self, **options: Any) -> checkpointable.Replay:
        written, queue = self._written(), self._hand_outs
        queue.stop_clock()
        queue.restart_times()

        def handed(delivered: list[str], dropped: list[str], reason: str) -> None:
            if not delivered and not dropped:
                queue.begin_line(self._store)
            queue.deliver(self._store, delivered)
            queue.reject(self._store, dropped, reason)

        def ended() -> None:
            queue.start_clock()
            if self._written() != written:
                # From here on each version that the learner moves on gives places.
                queue.begin_count(self._store, None if self._store.policy_version is None else 0)

        return episode_journal.Replay(self._store, handed=handed, ended=ended, **options)

    # Everything else.

    def close(self) -> None:
        """End writing and waiting: calls that wait now, or that write or wait later, raise ClosedError.

        What is stored can still be drawn with `sample_n_step_nowait`. An open episode cannot be ended any more; leaving
        its block makes it ABORTED. Closing twice is closing once.
        """
        self._gate.close()
        self._queues.wake()

    def get_stats(self) -> store_lib.EpisodeBufferStats:
        """Return what is stored, what is drawn, and what has happened so far. O(open episodes)."""
        return self._store.stats()

    def explain(self, sample: samples_lib.ReplaySample[Obs, Act]) -> "origins.SampleOrigin":
        """Return where a sample of this buffer came from, and what has become of its episode. O(episodes).

        Raises:
            ArgumentTypeError: `sample` is no ReplaySample.
        """
        validation.require_instance("sample", sample, samples_lib.ReplaySample)
        return origins.sample(self._store, sample)

    def clear(self) -> None:
        """Forget every episode, open ones too: their writers get UnknownEpisodeError.

        The counters of `get_stats` that count since the beginning go on, and the generator is not reset.
        """
        if self._journal is not None:
            self._journal.clear()
        self._store.clear()
        self._gate.wake()

    def check(self) -> None:
        """Recount everything that is stored.

        Raises:
            CorruptionError: An invariant does not hold; the message says which.
        """
        self._store.check()
        self._hand_outs.check(self._store)

    def __len__(self) -> int:
        """Return how many complete transitions are stored."""
        return len(self._store)

    def __repr__(self) -> str:
        limits = f"max_transitions={self._store.max_transitions}, max_episodes={self._store.max_episodes}"
        return f"<{type(self).__name__} of {len(self)} transitions, {limits}>"

    def _checked_request(self, batch_size: int, n: int, gamma: float) -> tuple[int, int, float]:
        """Return the arguments of a sample call, checked."""
        if self._gate.is_closed:
            batch_size = validation.positive_int("batch_size", batch_size)
        else:
            batch_size = self._limited.checked_batch_size(batch_size)
        return batch_size, validation.positive_int("n", n), validation.discount("gamma", gamma)

    def _checked_lags(self, max_lag: int | None, lag_decay: float) -> versions.Lags | None:
        """Return which lags a sample call asks for; None if it does not."""
        if max_lag is None and type(lag_decay) is float and lag_decay == 1:
            return None
        lags = versions.asked(max_lag, lag_decay)
        if lags is not None and self._has_own_draw():
            raise errors.ArgumentError(
                "max_lag and lag_decay must be left out where "
                f"{type(self._sampler or self).__name__}._draw decides what is drawn"
            )
        if lags is not None and self._store.policy_version is None:
            raise errors.ArgumentError(
                "max_lag and lag_decay ask for the learner's policy version: call set_policy_version first"
            )
        return lags

    def _has_own_draw(self) -> bool:
        """Return whether there is a sampler, or `_draw` is overridden, by a subclass or on the instance."""
        return self._sampler is not None or getattr(self._draw, "__func__", None) is not EpisodeReplayBuffer._draw

    def _checked_step(
        self, observation: Obs, action: Act, reward: float, policy_version: int | None
    ) -> tuple[Obs, Act, float, int | None]:
        """Return the step as it is now: the caller may go on to change what it gave, also while the call waits."""
        if type(reward) is not float or not math.isfinite(reward):
            reward = episode_lib.checked_reward(reward)
        return copies.copied(observation), copies.copied(action), reward, policy_version

    def _append(self, episode_id: str, step: tuple[Obs, Act, float, int | None], sync: bool = True) -> None:
        journal = self._journal
        if journal is None:
            self._store.append(episode_id, *step)
        else:
            self._store[episode_id].check_next_step(step[3])
            journal.append(episode_id, *step, sync=sync)
            self._store.append(episode_id, *step)
            journal.settle()
        self._gate.wake()

    def _abort(self, episode_id: str) -> None:
        """End an open episode whose final observation is not known."""
        if self._journal is not None:
            self._journal.abort(episode_id)
        self._store.abort(episode_id)
        self._ended()

    def _ended(self) -> None:
        """Wake those who wait for the end of an episode, which was just now."""
        self._gate.wake()
        self._queues.wake_learner()

    def _own_draws(self, batch_size: int) -> list[tuple[episode_lib.Episode[Obs, Act], int]]:
        """Return what `_draw` does, checked; if that fails, the generator has not moved."""
        state = self._rng.bit_generator.state
        try:
            return self._store.checked_draws(self._draw(batch_size), batch_size)
        except BaseException:
            self._rng.bit_generator.state = state
            raise

    def _sample(
        self, batch_size: int, n: int, gamma: float, lags: versions.Lags | None
    ) -> list[samples_lib.ReplaySample[Obs, Act]]:
        if lags is not None:
            draws = self._store.draw_within(batch_size, self._rng, lags)
        elif self._has_own_draw():
            draws = self._own_draws(batch_size)
        else:
            draws = self._draw(batch_size)
        samples = samples_lib.read(draws, n, gamma)
        self._store.note(draws)
        if self._store.policy_version is not None:
            self._store.note_versions([sample.policy_version for sample in samples[-versions.LAST :]])
        self._gate.wake()
        return samples


class EpisodeWriter(Generic[Obs, Act]):
    """Writes one episode; what `EpisodeReplayBuffer.episode` gives."""

    def __init__(self, buffer: EpisodeReplayBuffer[Obs, Act], episode_id: str) -> None:
        self._buffer = buffer
        self._episode_id = episode_id

    @property
    def episode_id(self) -> str:
        """The id of the episode, a UUID."""
        return self._episode_id

    async def append(self, observation: Obs, action: Act, reward: float, *, policy_version: int | None = None) -> None:
        """Append one step; see EpisodeReplayBuffer.append_observation_action_reward.

        Most calls do not give way to other tasks: an actor that awaits nothing else takes 32 steps a turn.
        """
        await self._buffer.append_observation_action_reward(
            self._episode_id, observation, action, reward, policy_version=policy_version
        )

    async def end(self, final_observation: Obs, status: episode_lib.FinalStatus = "COMPLETED") -> None:
        """End the episode; see EpisodeReplayBuffer.end_episode."""
        await self._buffer.end_episode(self._episode_id, final_observation, status)
