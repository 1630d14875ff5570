"""EpisodesWriter: writes episodes to a fleet, in chunks.

episode(agent_id) ──► OpenEpisode: append, append, ... end
"""

from collections.abc import AsyncIterator
import contextlib
from typing import Any

from relive import errors
from relive.common import copies
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.fleet import chunks
from relive.fleet import holds
from relive.fleet import outbox
from relive.fleet import tickets
from relive.fleet import writer


class EpisodesWriter(writer.Writer):
    """Writes episodes to a fleet of episode buffers; returned by `ShardedReplay.episodes_writer`.

    The episodes of a group go to one shard, each as a whole once it has ended.
    """

    _holds: holds.Holds
    _tickets: tickets.Tickets

    def __init__(self, outbox: outbox.Outbox, chunk_steps: int, holds: holds.Holds, tickets: tickets.Tickets) -> None:
        super().__init__(outbox, holds, tickets)
        self._chunk_steps = chunk_steps
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
        """Return an async context manager that starts an episode; the arguments are as in EpisodeReplayBuffer.episode.

        If the block is left without `end`, the episode ends as ABORTED and keeps the transitions whose next observation
        is known. A ticket from `ShardedReplay.admit` is required with an admission. If the episode ends as ABORTED or
        without a transition, the ticket admits another in its place.

        Raises:
            ArgumentError: An argument is invalid.
            ReplayError: A buffer refused steps sent earlier; raised once.
            ClosedError: The writer is closed.
        """
        agent_id = validation.string("agent_id", agent_id)
        if group_id is not None:
            group_id = validation.non_empty_string("group_id", group_id)
        if policy_version is not None:
            policy_version = validation.non_negative_int("policy_version", policy_version)
        shard = await self._holds.place(group_id)
        await self._room(shard)
        use = self._tickets.use(ticket, "episode")
        grant = None if ticket is None else ticket.grant
        del ticket  # One that nobody else refers to is lost.
        start = chunks.EpisodeChunk(next(self._numbers), 0, agent_id, group_id, policy_version, ticket=use)
        episode = self._episodes[start.episode] = OpenEpisode(self, start, shard, grant)
        try:
            with self._tickets.running(grant):
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
        of: The writer.
        start: The first chunk, without steps.
        shard: The shard to which it is sent as a whole, for one of a group.
        grant: That of its ticket, if it has one.
    """

    def __init__(
        self, of: EpisodesWriter, start: chunks.EpisodeChunk, shard: int | None, grant: tickets.Grant | None
    ) -> None:
        self._writer, self._next, self._shard, self._grant = of, start, shard, grant
        self._use, self._version = start.ticket, start.policy_version
        self._steps: list[chunks.Step] = []
        self._is_open = True

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
        await self._writer._room(self._shard)
        self._checked_version(version)
        self._version = self._version if version is None else version
        self._steps.append((observation, action, reward, version))
        if len(self._steps) >= self._writer._chunk_steps:
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
        await self._writer._room(self._shard)
        self._check_open()
        self._send((final_observation, status))

    def abort(self) -> None:
        """End the episode as ABORTED, if it is open."""
        if self._is_open:
            self._send("ABORTED")

    def send(self) -> None:
        """Send the collected steps, unless the episode must be sent as a whole."""
        if self._steps and self._shard is None:
            self._send("OPEN")

    def _send(self, end: Any) -> None:
        chunk = self._next._replace(steps=tuple(self._steps), end=end)
        self._is_open, num_steps = end == "OPEN", chunk.first + chunk.rows
        # Whether it can never be trained on.
        is_in_vain = not self._is_open and (chunk.is_failed or not num_steps)
        if is_in_vain and self._grant is not None and self._grant.take_back():
            chunk = chunk._replace(returned=self._use) if chunk.first else chunk._replace(ticket=None)
        self._steps.clear()
        self._next = self._next._replace(first=num_steps, policy_version=self._version, ticket=None)
        self._writer._outbox.take(chunk, self._shard)

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
