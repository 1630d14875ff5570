"""Writers of episodes to a fleet: EpisodesWriter, in chunks, and TokensWriter, whole ones.

episode(agent_id) ──► OpenEpisode: append, append, ... end
"""

from collections.abc import AsyncIterator, Mapping, Sequence
import contextlib
from typing import Any

from relive.agents import tokens
from relive.common import blocks
from relive.common import copies
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.episodes import metadata as metadata_lib
from relive.fleet import chunks
from relive.fleet import holds as holds_lib
from relive.fleet import outbox as outbox_lib
from relive.fleet import tickets as tickets_lib
from relive.fleet import writer


class GroupWriter(writer.Writer):
    """Base class of writers of episodes, which may be of groups, and need tickets with an admission."""

    def __init__(self, outbox: outbox_lib.Outbox, holds: holds_lib.Holds, tickets: tickets_lib.Tickets) -> None:
        super().__init__(outbox)
        self._holds, self._tickets = holds, tickets

    async def _close(self) -> None:
        try:
            await super()._close()
        finally:
            await self._holds.close()

    def _keep(self, grant: tickets_lib.Grant | None) -> None:
        """Keep a grant until the episode that it was used for has reached a shard."""
        if grant is not None:
            grant.num_sending += 1
            self._outbox.when_settled(grant.sent)


class EpisodesWriter(GroupWriter):
    """Writes episodes to a fleet of episode buffers; returned by `ShardedReplay.episodes_writer`.

    The episodes of a group go to one shard, each as a whole once it has ended.
    """

    def __init__(
        self, outbox: outbox_lib.Outbox, chunk_steps: int, holds: holds_lib.Holds, tickets: tickets_lib.Tickets
    ) -> None:
        super().__init__(outbox, holds, tickets)
        self._chunk_steps = chunk_steps
        self._episodes: dict[int, OpenEpisode] = {}

    def episode(
        self,
        agent_id: str,
        *,
        group_id: str | None = None,
        policy_version: int | None = None,
        ticket: tickets_lib.FleetTicket | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> contextlib.AbstractAsyncContextManager["OpenEpisode"]:
        """Return an async context manager that starts an episode; the arguments are as in EpisodeReplayBuffer.episode.

        If the block is left without `end`, the episode ends as ABORTED and keeps the transitions whose next observation
        is known. With an admission, it needs a ticket from `ShardedReplay.admit`. If the episode ends as ABORTED or
        without a transition, the ticket admits another in its place.
        """
        rule = "episode needs `async with`: use that of a sync_writer for a plain `with`"
        return blocks.AsyncBlock(self._episode(agent_id, group_id, policy_version, ticket, metadata), rule)

    @contextlib.asynccontextmanager
    async def _episode(
        self,
        agent_id: str,
        group_id: str | None,
        policy_version: int | None,
        ticket: tickets_lib.FleetTicket | None,
        metadata: Mapping[str, Any] | None,
    ) -> AsyncIterator["OpenEpisode"]:
        described = episode_lib.checked_start(agent_id, group_id, policy_version)
        known = metadata_lib.copied(metadata)
        self._outbox.refuse_if_closed()
        shard = await self._holds.place(group_id)
        await self._room(shard)
        use = self._tickets.use(ticket, "episode")
        grant = None if ticket is None else ticket.grant
        del ticket  # One that nobody else refers to is lost.
        start = chunks.EpisodeChunk(next(self._numbers), 0, *described, ticket=use, metadata=known)
        episode = self._episodes[start.episode] = OpenEpisode(self, start, shard, grant)
        try:
            with self._tickets.running(grant):
                yield episode
        finally:
            episode.abort()
            del self._episodes[start.episode]
            if grant is not None:  # The next one may wait for this episode to be trained on.
                self._outbox.seal()
            self._keep(grant)

    def _seal(self) -> None:
        for episode in self._episodes.values():
            episode._send_open()

    def _end(self) -> None:
        for episode in self._episodes.values():
            episode.abort()


class OpenEpisode:
    """An open episode that is written to a fleet; created by `EpisodesWriter.episode`.

    That of a group is sent as a whole, to `shard`.
    """

    def __init__(
        self, of: EpisodesWriter, start: chunks.EpisodeChunk, shard: int | None, grant: tickets_lib.Grant | None
    ) -> None:
        self._writer, self._next, self._use, self._shard, self._grant = of, start, start.ticket, shard, grant
        name, version = start.agent_id, start.policy_version
        self._unsent: episode_lib.Episode[Any, Any] = episode_lib.Episode(
            episode_id=f"of {name}", agent_id=name, policy_version=version
        )

    async def append(self, observation: Any, action: Any, reward: float, *, policy_version: int | None = None) -> None:
        """Append one step; see EpisodeWriter.append."""
        reward = episode_lib.checked_reward(reward)
        episode_lib.check_next_step(self._unsent, policy_version)
        observation, action = copies.copied(observation), copies.copied(action)
        await self._writer._room(self._shard)
        self._unsent.append_observation_action_reward(observation, action, reward, policy_version)
        if len(self._unsent.actions) >= self._writer._chunk_steps:
            self._send_open()

    async def end(self, final_observation: Any, status: episode_lib.FinalStatus = "COMPLETED") -> None:
        """End the episode; see EpisodeWriter.end."""
        episode_lib.check_can_end(self._unsent, status)
        final_observation = copies.copied(final_observation)
        await self._writer._room(self._shard)
        episode_lib.check_can_end(self._unsent, status)
        self._unsent.status = status
        self._send((final_observation, status))

    def abort(self) -> None:
        """End the episode as ABORTED, if it is open."""
        if self._unsent.status == "IN_PROGRESS":
            self._unsent.status = "ABORTED"
            self._send("ABORTED")

    def _send_open(self) -> None:
        """Send the collected steps, unless the episode must be sent as a whole."""
        if self._unsent.actions and self._shard is None:
            self._send("OPEN")

    def _send(self, end: Any) -> None:
        unsent = self._unsent
        values = unsent.observations, unsent.actions, unsent.rewards, unsent.policy_versions
        chunk = self._next._replace(steps=tuple(zip(*values, strict=True)), end=end)
        num_steps = chunk.first + chunk.rows
        # Whether it can never be trained on.
        is_in_vain = end != "OPEN" and (chunk.is_failed or not num_steps)
        if is_in_vain and self._grant is not None and self._grant.take_back():
            chunk = chunk._replace(returned=self._use) if chunk.first else chunk._replace(ticket=None)
        unsent.policy_version = episode_lib.newest_version(unsent)
        for each in (unsent.observations, unsent.actions, unsent.rewards, unsent.version_changes):
            each.clear()
        self._next = self._next._replace(first=num_steps, policy_version=unsent.policy_version, ticket=None)
        self._writer._outbox.take(chunk, self._shard)


class TokensWriter(GroupWriter):
    """Writes episodes to a fleet of token buffers; returned by `ShardedReplay.tokens_writer`.

    It counts episodes, not steps. Those of a group go to one shard.
    """

    async def add_episode(
        self,
        steps: Sequence[tokens.TokenStep],
        *,
        agent_id: str,
        group_id: str | None = None,
        status: episode_lib.FinalStatus = "COMPLETED",
        ticket: tickets_lib.FleetTicket | None = None,
        metadata: Mapping[str, Any] | None = None,
        **extras: Any,
    ) -> None:
        """Add a whole episode; the arguments are as in TokenReplayBuffer.add_episode.

        With an admission, it needs a ticket from `ShardedReplay.admit`.
        """
        joined = tokens.join(steps)
        agent_id, group_id, _ = episode_lib.checked_start(agent_id, group_id)
        validation.require_choice("status", status, episode_lib.FINAL_STATUSES)
        known = metadata_lib.copied(metadata)
        options = {"agent_id": agent_id, "group_id": group_id, "status": status, "metadata": known}
        options |= copies.copied(extras)
        self._outbox.refuse_if_closed()
        shard = await self._holds.place(group_id)
        await self._room(shard)
        use = self._tickets.use(ticket, "add_episode")
        if ticket is not None and status == "ABORTED" and ticket.grant.take_back():
            use = None
        self._outbox.take(chunks.TokenChunk(joined=joined, options=options, ticket=use), shard)
        self._keep(None if ticket is None else ticket.grant)
