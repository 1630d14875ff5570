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

from relive import checks
from relive import copies
from relive import episode as episode_lib
from relive import episode_stats
from relive import episode_store
from relive import errors
from relive import gate
from relive import later
from relive import limiters
from relive import n_step
from relive import persistence
from relive import states

if TYPE_CHECKING:
    from relive import checkpoint
    from relive import codecs
    from relive import episode_journal
    from relive import episode_state
    from relive import explain as explain_lib
    from relive import journal as journal_lib
else:
    checkpoint = later.module("relive.checkpoint")
    codecs = later.module("relive.codecs")
    episode_journal = later.module("relive.episode_journal")
    episode_state = later.module("relive.episode_state")
    explain_lib = later.module("relive.explain")
    journal_lib = later.module("relive.journal")

Obs = TypeVar("Obs")
Act = TypeVar("Act")


class EpisodeReplayBuffer(persistence.Journaled, Generic[Obs, Act]):
    """Stores the episodes of many agents and answers n-step samples, uniform over all complete transitions.

    Observations and actions may be any objects. Arrays, built-in containers and dataclasses are copied in and out;
    other objects are kept by reference and must not be changed once they are stored.

    One buffer belongs to one event loop. It has no locks: in threads, guard it yourself.

    Args:
        max_transitions: Transitions kept at most; None for no limit. The episode that finished first goes first, and
            whole. An open episode is never evicted: while only open ones are left the limit may be exceeded, and
            `get_stats().overflow_transitions` says by how much.
        max_episodes: Episodes kept at most, in the same way; open ones count too.
        limiter: Says when a step may be appended and a batch drawn; by default a batch needs one transition.
        seed: For the generator of the draws; the same seed and the same calls give the same draws.

    Raises:
        ArgumentError: A limit is not an integer of at least 1, the limiter asks for more than max_transitions, or
            numpy makes no generator of the seed.

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

    _SETTINGS = ("max_transitions", "max_episodes", "limiter")

    def __init__(
        self,
        *,
        max_transitions: int | None = None,
        max_episodes: int | None = None,
        limiter: limiters.RateLimiter | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        if max_transitions is not None:
            max_transitions = checks.integer_of_at_least_one("max_transitions", max_transitions)
        if max_episodes is not None:
            max_episodes = checks.integer_of_at_least_one("max_episodes", max_episodes)
        self._rng = checks.generator("seed", seed)
        self._store: episode_store.EpisodeStore[Obs, Act] = episode_store.EpisodeStore(max_transitions, max_episodes)
        self._limited = limiters.LimitedBuffer(limiter, self._store, "max_transitions", max_transitions)
        self._gate = gate.Gate(self._limited, "sample_n_step_nowait")

    # Writing.

    async def start_episode(self, agent_id: str) -> str:
        """Opens an episode of that agent and answers its id, a fresh UUID. Never waits for the limiter.

        Raises:
            ArgumentTypeError: agent_id is not a string.
            ClosedError: The buffer is closed.
        """
        self._gate.bind_to_loop()
        if self._gate.must_give_way():
            await asyncio.sleep(0)
        return self.start_episode_nowait(agent_id)

    def start_episode_nowait(self, agent_id: str) -> str:
        """Does what `start_episode` does, and raises what it raises, as a plain call."""
        self._gate.refuse_if_closed()
        if not isinstance(agent_id, str):
            raise errors.ArgumentTypeError(f"agent_id must be a string, got {checks.shown(agent_id)}")
        if type(agent_id) is not str:
            agent_id = "".join(agent_id)  # Of a subclass, such as numpy's, files know nothing.
        episode = self._store.new_episode(agent_id)
        if self._journal is not None:
            self._journal.start(episode)
        self._store.start(episode)
        self._settle()
        self._gate.wake()
        return episode.episode_id

    async def append_observation_action_reward(
        self, episode_id: str, observation: Obs, action: Act, reward: float
    ) -> None:
        """Appends one step; waits while the limiter holds inserts back. O(1).

        One call in 32 lets the other tasks run first; the rest of those that need not wait go straight on. The step is
        copied when the call begins. It becomes a transition, and can be drawn, when the observation after it is known.

        Args:
            episode_id: An open episode.
            observation: o_t.
            action: a_t, chosen in o_t.
            reward: r_t, what followed; a finite real number that a float holds exactly.

        Raises:
            UnknownEpisodeError: No episode of that id is stored.
            ArgumentError: The episode has ended, or the reward is not a finite real number.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        self._gate.bind_to_loop()
        step = self._checked_step(observation, action, reward)
        if self._gate.must_wait_to_insert():
            self._store[episode_id].check_is_open()
            await self._gate.insert_turn()
        self._append(episode_id, step)

    def append_observation_action_reward_nowait(
        self, episode_id: str, observation: Obs, action: Act, reward: float
    ) -> None:
        """Does what `append_observation_action_reward` does, and raises what it raises, as a plain call.

        Raises:
            NotReadyError: The limiter holds inserts back.
        """
        step = self._checked_step(observation, action, reward)
        if not self._gate.can_insert():
            self._store[episode_id].check_is_open()
            raise errors.NotReadyError(
                f"append_observation_action_reward_nowait held back by {self._limited.limiter!r}: draw samples first, "
                "or await append_observation_action_reward"
            )
        self._append(episode_id, step)

    async def end_episode(
        self, episode_id: str, final_observation: Obs, status: episode_lib.FinalStatus = "COMPLETED"
    ) -> None:
        """Ends an open episode with the observation after its last action. Never waits.

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
        self.end_episode_nowait(episode_id, final_observation, status)

    def end_episode_nowait(
        self, episode_id: str, final_observation: Obs, status: episode_lib.FinalStatus = "COMPLETED"
    ) -> None:
        """Does what `end_episode` does, and raises what it raises, as a plain call."""
        self._gate.refuse_if_closed()
        final_observation = copies.copied(final_observation)
        if self._journal is not None:
            self._store[episode_id].check_can_end(status)
            self._journal.end(episode_id, final_observation, status)
        self._store.end(episode_id, final_observation, status)
        self._settle()
        self._gate.wake()

    def episode(self, agent_id: str) -> contextlib.AbstractAsyncContextManager["EpisodeWriter[Obs, Act]"]:
        """Opens an episode for the length of an `async with` block, and gives a writer to it.

        A block that is left before `writer.end(...)`, by an exception, a cancellation or a return, ends the episode as
        ABORTED; it keeps the transitions whose next observation is known.
        """
        return self._episode(agent_id)

    @contextlib.asynccontextmanager
    async def _episode(self, agent_id: str) -> AsyncIterator["EpisodeWriter[Obs, Act]"]:
        episode_id = await self.start_episode(agent_id)
        try:
            yield EpisodeWriter(self, episode_id)
        finally:
            if episode_id in self._store.open:
                self._abort(episode_id)

    # Drawing.

    async def sample_n_step(self, batch_size: int, n: int, gamma: float) -> list[n_step.ReplaySample[Obs, Act]]:
        """Answers exactly batch_size n-step samples, drawn with replacement; waits until that is possible.

        It lets the other tasks run first, also where it need not wait.

        Args:
            batch_size: How many samples.
            n: How many rewards a sample sums at most; fewer where the episode, or what is known of it, ends earlier.
            gamma: The discount factor, in (0, 1].

        Raises:
            ArgumentError: An argument breaks its rule, or the limiter could never allow such a batch.
            ClosedError: The buffer is closed, or was closed while waiting.
        """
        self._gate.bind_to_loop()
        self._gate.refuse_if_closed()
        batch_size, n, gamma = self._checked_request(batch_size, n, gamma)
        await self._gate.sample_turn(batch_size)
        return self._sample(batch_size, n, gamma)

    def sample_n_step_nowait(self, batch_size: int, n: int, gamma: float) -> list[n_step.ReplaySample[Obs, Act]]:
        """Does what `sample_n_step` does, as a plain call. Of a closed buffer it draws without asking the limiter.

        Raises:
            NotReadyError: No transition is complete, or the limiter holds samples back.
        """
        batch_size, n, gamma = self._checked_request(batch_size, n, gamma)
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
        return self._sample(batch_size, n, gamma)

    def _draw(self, batch_size: int) -> list[tuple[episode_lib.Episode[Obs, Act], int]]:
        """Answers batch_size draws, each an episode and the start step of a complete transition in it.

        The one method that a custom sampler overrides. It is called only while a transition is complete. It may use
        `self._rng`, `self._store.finished` (the episode that finished first is 0, the last one -1, each O(1)),
        `self._store.open` (a dict by id) and `self._store.draw(size, rng)`, and must not change them; an episode may
        have no transition. What it answers is checked. Here: uniform over all complete transitions.
        """
        return self._store.draw(batch_size, self._rng)

    # To outlive the process.

    @property
    def rng(self) -> np.random.Generator:
        """The generator of the draws."""
        return self._rng

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        codec: "codecs.Codec | None" = None,
        keep: int = 1,
        progress: states.Progress | None = None,
    ) -> None:
        """Saves the buffer as a directory, or as a new one in the place of an older.

        It is built beside, synced to the disk, and renamed: whoever reads `path` finds the old one or the new one,
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
        checkpoint.save(self._whole_state(codec=codecs.checked(codec)), path, keep=keep, progress=progress)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        codec: "codecs.Codec | None" = None,
        progress: states.Progress | None = None,
        **instead: Any,
    ) -> Self:
        """Answers the buffer that was saved at `path`.

        Args:
            path: The directory.
            codec: The one that it was saved with; a PlainCodec if None.
            progress: Called now and then with the bytes read so far and the bytes there are.
            instead: Arguments of the constructor in the place of the saved ones: a limiter of a class of your own is
                not in the checkpoint.

        Raises:
            CheckpointError: There is no checkpoint, it is damaged, or of another class, codec or a newer version.
        """
        codec = codecs.checked(codec)
        with checkpoint.opened(path, progress=progress) as state:
            return cls._made(state, instead, codec=codec)

    def state_dict(self, *, codec: "codecs.Codec | None" = None) -> states.State:
        """Answers what `save` would save, as one dict of JSON values, and of arrays by name under "arrays".

        Nothing in it is shared with the buffer.

        Raises:
            CheckpointError: Something cannot be saved.
        """
        return self._state_in_memory(codec=codecs.checked(codec))

    def load_state_dict(self, state: states.State, *, codec: "codecs.Codec | None" = None) -> None:
        """Makes the buffer what it was when it answered that state, which is left as it is and not shared.

        The settings must be those of the state. Who wrote to an episode that is not in it gets UnknownEpisodeError.

        Raises:
            CheckpointError: That is no state of such a buffer. Nothing has changed.
        """
        self._put(state, codec=codecs.checked(codec))

    def _setting(self, name: str) -> Any:
        return self._limited.limiter if name == "limiter" else getattr(self._store, name)

    def _state(self, **options: Any) -> states.State:
        return episode_state.taken(self._store, **options)

    def _base_state(self, **options: Any) -> states.State:
        return episode_state.taken(self._store.without_episodes(), **options)

    def _restore(self, given: states.Given, *, is_new: bool, **options: Any) -> None:
        self._store.become(episode_state.made(given, store=self._store, **options))
        self._gate.wake()

    def attach(self, journal: "journal_lib.Journal", *, codec: "codecs.Codec | None" = None) -> None:
        """Writes to a journal from now on: each step, start, end and `clear` just before it happens.

        A new journal begins with all that is stored now. One that holds something goes on after it: the buffer must be
        what `recover` has answered. Draws are not written.

        Args:
            journal: An open one that no buffer writes to. While it is attached, a call that it cannot write raises
                CheckpointError, and nothing has changed.
            codec: What makes bytes of observations and actions; a PlainCodec if None.

        Raises:
            ArgumentError: A journal is attached already, or this one holds something else than the buffer.
            CheckpointError: It could not be written, or the codec does not know an object.
        """
        self._attach(journal, codec=codecs.checked(codec))

    def detach(self) -> None:
        """Stops writing to the journal, which stays open; does nothing if there is none."""
        super().detach()
        self._store.evicted = None

    def _written(self) -> tuple[int, ...]:
        stats = self._store.stats()
        counts = (stats.appended, stats.evicted_episodes, stats.evicted_transitions, stats.total_episodes)
        return (*counts, stats.in_progress, stats.completed, stats.truncated, stats.aborted)

    def _journaled(self, journal: "journal_lib.Journal", replay: Any, **options: Any) -> persistence.Bound:
        return episode_journal.EpisodeJournal(journal, self._store, replay, **options)

    def _replay(self, **options: Any) -> persistence.Replay:
        return episode_journal.Replay(self._store, **options)

    # Everything else.

    def close(self) -> None:
        """Ends writing and waiting: whoever waits, and whoever writes or awaits later, gets ClosedError.

        What is stored can still be drawn with `sample_n_step_nowait`. An open episode cannot be ended any more; leaving
        its block makes it ABORTED. Closing twice is closing once.
        """
        self._gate.close()

    def get_stats(self) -> episode_stats.EpisodeBufferStats:
        """Answers what is stored, what is drawn, and what has happened so far. O(open episodes)."""
        return self._store.stats()

    def explain(self, sample: n_step.ReplaySample[Obs, Act]) -> "explain_lib.SampleOrigin":
        """Answers where a sample of this buffer came from, and what has become of its episode. O(episodes).

        Raises:
            ArgumentTypeError: `sample` is no ReplaySample.
        """
        checks.instance("sample", sample, n_step.ReplaySample)
        return explain_lib.sample(self._store, sample)

    def clear(self) -> None:
        """Forgets every episode, open ones too: their writers get UnknownEpisodeError.

        The counters of `get_stats` that count since the beginning go on, and the generator is not reset.
        """
        if self._journal is not None:
            self._journal.clear()
        self._store.clear()
        self._gate.wake()

    def check(self) -> None:
        """Recounts everything that is stored.

        Raises:
            CorruptionError: An invariant does not hold; the message says which.
        """
        self._store.check()

    def __len__(self) -> int:
        """Answers how many complete transitions are stored."""
        return len(self._store)

    def __repr__(self) -> str:
        limits = f"max_transitions={self._store.max_transitions}, max_episodes={self._store.max_episodes}"
        return f"<{type(self).__name__} of {len(self)} transitions, {limits}>"

    def _checked_request(self, batch_size: int, n: int, gamma: float) -> tuple[int, int, float]:
        """Answers the arguments of a sample call, checked."""
        if self._gate.is_closed:
            batch_size = checks.integer_of_at_least_one("batch_size", batch_size)
        else:
            batch_size = self._limited.checked_batch_size(batch_size)
        return batch_size, checks.integer_of_at_least_one("n", n), checks.discount("gamma", gamma)

    def _checked_step(self, observation: Obs, action: Act, reward: float) -> tuple[Obs, Act, float]:
        """Answers the step as it is now: the caller may go on to change what it gave, also while the call waits."""
        if type(reward) is not float or not math.isfinite(reward):
            reward = checks.finite_number("reward", reward)
        return copies.copied(observation), copies.copied(action), reward

    def _append(self, episode_id: str, step: tuple[Obs, Act, float]) -> None:
        journal = self._journal
        if journal is None:
            self._store.append(episode_id, *step)
        else:
            self._store[episode_id].check_is_open()
            journal.append(episode_id, *step)
            self._store.append(episode_id, *step)
            if journal.evicted:
                journal.settle()
        self._gate.wake()

    def _abort(self, episode_id: str) -> None:
        """Ends an open episode of which nobody knows what followed its last step."""
        if self._journal is not None:
            self._journal.abort(episode_id)
        self._store.abort(episode_id)
        self._settle()
        self._gate.wake()

    def _settle(self) -> None:
        """Lets the journal hear of what was evicted."""
        if self._journal is not None:
            self._journal.settle()

    def _sample(self, batch_size: int, n: int, gamma: float) -> list[n_step.ReplaySample[Obs, Act]]:
        draws = self._draw(batch_size)
        if getattr(self._draw, "__func__", None) is not EpisodeReplayBuffer._draw:
            draws = self._store.checked_draws(draws, batch_size)
        samples = n_step.read(draws, n, gamma)
        self._store.note(draws)
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

    async def append(self, observation: Obs, action: Act, reward: float) -> None:
        """Appends one step; see EpisodeReplayBuffer.append_observation_action_reward.

        Most calls do not give way to other tasks: an actor that awaits nothing else takes 32 steps a turn.
        """
        await self._buffer.append_observation_action_reward(self._episode_id, observation, action, reward)

    async def end(self, final_observation: Obs, status: episode_lib.FinalStatus = "COMPLETED") -> None:
        """Ends the episode; see EpisodeReplayBuffer.end_episode."""
        await self._buffer.end_episode(self._episode_id, final_observation, status)
