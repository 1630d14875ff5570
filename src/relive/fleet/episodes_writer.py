"""EpisodesWriter: writes episodes to a fleet, in chunks.

    episode(agent_id) ──► OpenEpisode: append, append, ... end

Invariant: an awaited call copies its step, waits for room, then takes it without awaiting in between. So a cancelled
call has either happened completely or not at all.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
import contextlib
import functools
import sys
from typing import Any

from relive import errors
from relive.common import copies
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.fleet import chunks
from relive.fleet import tickets
from relive.fleet import writer


class EpisodesWriter(writer.Writer):
    """Writes episodes to a fleet of episode buffers; returned by `ShardedReplay.episodes_writer`.

    The episodes of a group go to one shard, each as a whole once it has ended.
    """

    def __init__(self, outbox: Any, chunk_steps: int) -> None:
        super().__init__(outbox)
        self._chunk_steps = chunk_steps
        self._count = 0
        self._episodes: dict[int, OpenEpisode] = {}

    @contextlib.asynccontextmanager
    async def episode(
        self,
        agent_id: str,
        *,
        group_id: str | None = None,
        policy_version: int | None = None,
        ticket: tickets.FleetTicket | None = None,
    ) -> AsyncIterator["OpenEpisode"]:
        """Return an async context manager that starts an episode; see EpisodeReplayBuffer.episode.

        If the block is left without `end`, the episode ends as ABORTED and keeps the transitions whose next observation
        is known.

        Args:
            agent_id: The agent of the episode.
            group_id: The group of the episode, such as all responses to one prompt.
            policy_version: The policy version of the episode; also of its steps, unless they specify another.
            ticket: A ticket from `ShardedReplay.admit`, which uses up one of its episodes. Required with an admission.
                If the episode ends as ABORTED or without a transition, the ticket admits another in its place.

        Raises:
            ArgumentTypeError: agent_id or group_id is not a string, or policy_version not an integer.
            ArgumentError: group_id is empty, or policy_version is below 0.
            ReplayError: A buffer refused steps sent earlier; raised once.
            ClosedError: The writer is closed.
        """
        agent_id = validation.string("agent_id", agent_id)
        if group_id is not None:
            group_id = validation.non_empty_string("group_id", group_id)
        if policy_version is not None:
            policy_version = validation.non_negative_int("policy_version", policy_version)
        shard = await self._outbox.place(group_id)
        room = functools.partial(self._room, shard)
        await room()
        start = chunks.EpisodeChunk(
            episode=self._count,
            is_start=True,
            agent_id=agent_id,
            group_id=group_id,
            policy_version=policy_version,
            steps=(),
            final=None,
            ticket=self._outbox.tickets.use(ticket, "episode"),
        )
        self._count += 1
        grant = None if ticket is None else ticket.grant
        del ticket  # One that nobody else refers to is lost.
        chunk_steps = self._chunk_steps if shard is None else sys.maxsize
        episode = OpenEpisode(start, chunk_steps, room, functools.partial(self._outbox.take, shard=shard), grant)
        self._episodes[start.episode] = episode
        try:
            with self._outbox.tickets.running(grant):
                yield episode
        finally:
            episode.abort()
            del self._episodes[start.episode]
            if grant is not None:  # The next one may wait for this episode to be trained on.
                self._outbox.seal()

    def _seal(self) -> None:
        for episode in self._episodes.values():
            episode.send()

    def _end(self) -> None:
        for episode in self._episodes.values():
            episode.abort()


class OpenEpisode:
    """An open episode that is written to a fleet; created by `EpisodesWriter.episode`.

    Args:
        start: Its first chunk, without steps.
        chunk_steps: Number of steps in a chunk.
        room: Awaited until a step may be taken.
        take: Takes a chunk.
        grant: That of its ticket, if it has one.
    """

    def __init__(
        self,
        start: chunks.EpisodeChunk,
        chunk_steps: int,
        room: Callable[[], Awaitable[None]],
        take: Callable[[chunks.EpisodeChunk], None],
        grant: tickets.Grant | None = None,
    ) -> None:
        self._next, self._chunk_steps = start, chunk_steps
        self._room, self._take = room, take
        self._grant, self._use, self._num_steps = grant, start.ticket, 0
        self._is_open = True
        self._steps: list[chunks.Step] = []
        self._version = start.policy_version

    async def append(self, observation: Any, action: Any, reward: float, *, policy_version: int | None = None) -> None:
        """Append one step; waits while too many batches are in flight. See EpisodeWriter.append.

        Raises:
            ArgumentError: The episode has ended, the reward is not a finite real number, or policy_version is not an
                integer of at least that of the previous step.
            ReplayError: A buffer refused steps sent earlier; raised once.
            ClosedError: The writer is closed.
        """
        reward = episode_lib.checked_reward(reward)
        version = self._checked_version(policy_version)
        observation, action = copies.copied(observation), copies.copied(action)
        await self._room()
        self._checked_version(version)
        self._version = self._version if version is None else version
        self._steps.append((observation, action, reward, version))
        self._num_steps += 1
        if len(self._steps) >= self._chunk_steps:
            self.send()

    async def end(self, final_observation: Any, status: episode_lib.FinalStatus = "COMPLETED") -> None:
        """End the episode; see EpisodeWriter.end.

        Raises:
            ArgumentError: The episode has ended, or `status` is not one of the three.
            ReplayError: A buffer refused steps sent earlier; raised once.
            ClosedError: The writer is closed.
        """
        self._check_open()
        validation.require_choice("status", status, episode_lib.FINAL_STATUSES)
        final_observation = copies.copied(final_observation)
        await self._room()
        self._check_open()
        self._is_open = False
        self._send(final=(final_observation, status))

    def abort(self) -> None:
        """End the episode as ABORTED, if it is open."""
        if self._is_open:
            self._is_open = False
            self._send(is_aborted=True)

    def send(self) -> None:
        """Send the collected steps, unless the episode must be sent as a whole."""
        if self._steps and self._chunk_steps < sys.maxsize:
            self._send()

    def _send(self, **end: Any) -> None:
        chunk = self._next._replace(steps=tuple(self._steps), **end)
        if end and self._is_in_vain(chunk) and self._grant is not None and self._grant.take_back():
            chunk = chunk._replace(ticket=None) if chunk.is_start else chunk._replace(returned=self._use)
        self._steps.clear()
        self._next = self._next._replace(is_start=False, policy_version=self._version, ticket=None)
        self._take(chunk)

    def _is_in_vain(self, last: chunks.EpisodeChunk) -> bool:
        """Return whether the episode can never be trained on, given its last chunk."""
        return last.is_failed or not self._num_steps

    def _checked_version(self, policy_version: int | None) -> int | None:
        """Return the checked version of the next step; raise ArgumentError if it is invalid."""
        self._check_open()
        if policy_version is None:
            return None
        version = validation.non_negative_int("policy_version", policy_version)
        if self._version is not None and version < self._version:
            raise errors.ArgumentError(
                f"policy_version must be at least {self._version}, that of the step before, got {version}"
            )
        return version

    def _check_open(self) -> None:
        if not self._is_open:
            raise errors.ArgumentError(f"episode of {self._next.agent_id} is already finished")
