"""TokensWriter: writes whole episodes of tokens to a fleet, with the method of a token buffer."""

from collections.abc import Sequence
from typing import Any

from relive.agents import tokens
from relive.common import copies
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.fleet import chunks
from relive.fleet import holds
from relive.fleet import tickets
from relive.fleet import writer


class TokensWriter(writer.Writer):
    """Writes episodes to a fleet of token buffers; returned by `ShardedReplay.tokens_writer`.

    It counts episodes, not steps. Those of a group go to one shard.
    """

    _holds: holds.Holds
    _tickets: tickets.Tickets

    async def add_episode(
        self,
        steps: Sequence[tokens.TokenStep],
        *,
        agent_id: str,
        group_id: str | None = None,
        status: episode_lib.FinalStatus = "COMPLETED",
        ticket: tickets.FleetTicket | None = None,
        **extras: Any,
    ) -> None:
        """Add a whole episode; waits while too many batches are in flight.

        The arguments are as in TokenReplayBuffer.add_episode. A ticket comes from `ShardedReplay.admit`.

        Raises:
            ArgumentError: An argument is invalid.
            ReplayError: A buffer refused episodes sent earlier; raised once.
            ClosedError: The writer is closed.
        """
        joined = tokens.join(steps)
        options: dict[str, Any] = {"agent_id": validation.string("agent_id", agent_id)}
        options["group_id"] = None if group_id is None else validation.non_empty_string("group_id", group_id)
        validation.require_choice("status", status, episode_lib.FINAL_STATUSES)
        options |= {"status": status, **copies.copied(extras)}
        shard = await self._holds.place(group_id)
        await self._room(shard)
        use = self._tickets.use(ticket, "add_episode")
        if ticket is not None and status == "ABORTED" and ticket.grant.take_back():
            use = None
        self._outbox.take(chunks.TokenChunk(joined=joined, options=options, ticket=use), shard)
