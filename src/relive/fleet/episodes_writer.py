"""What actors write episodes to a fleet with: the verbs of a buffer of episodes, gathered into chunks.

    episode(agent_id) ──► OpenEpisode: append, append, ... end

The law of this file: an awaited call copies its step as it is now, waits for room, then takes it, and awaits nothing in
between. So a call that was cancelled has either happened or left no trace.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
import contextlib
import dataclasses
from typing import Any

from relive import errors
from relive.common import copies
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.fleet import chunks
from relive.fleet import outbox as outbox_lib
from relive.fleet import writer


class EpisodesWriter(writer.Writer):
    """Writes episodes to a fleet of buffers of episodes; what `ShardedReplay.episodes_writer` returns."""

    def __init__(self, outbox: outbox_lib.Outbox, chunk_steps: int) -> None:
        super().__init__(outbox)
        self._chunk_steps = chunk_steps
        self._count = 0
        self._episodes: dict[int, OpenEpisode] = {}

    @contextlib.asynccontextmanager
    async def episode(
        self, agent_id: str, *, group_id: str | None = None, policy_version: int | None = None
    ) -> AsyncIterator["OpenEpisode"]:
        """Open an episode for the length of an `async with` block; see EpisodeReplayBuffer.episode.

        A block that is left before `end` makes it ABORTED; it keeps the transitions whose next observation is known.

        Args:
            agent_id: Who lives it.
            group_id: Which episodes it belongs with, such as the other returns to a prompt.
            policy_version: Which version of the policy it starts with: that of its steps, if nothing else is said.

        Raises:
            ArgumentTypeError: agent_id or group_id is not a string, or policy_version not an integer.
            ArgumentError: policy_version is below 0.
            ReplayError: A buffer has refused steps that were sent before; it is raised once.
            ClosedError: The writer is closed.
        """
        agent_id = validation.string("agent_id", agent_id)
        if group_id is not None:
            group_id = validation.string("group_id", group_id)
        if policy_version is not None:
            policy_version = validation.non_negative_int("policy_version", policy_version)
        await self._room()
        start = chunks.EpisodeChunk(
            episode=self._count,
            is_start=True,
            agent_id=agent_id,
            group_id=group_id,
            policy_version=policy_version,
            steps=(),
            final=None,
        )
        self._count += 1
        episode = OpenEpisode(start, self._chunk_steps, self._room, self._outbox.take)
        self._episodes[start.episode] = episode
        try:
            yield episode
        finally:
            episode.abort()
            del self._episodes[start.episode]

    def _seal(self) -> None:
        for episode in self._episodes.values():
            episode.send()

    def _end(self) -> None:
        for episode in self._episodes.values():
            episode.abort()


class OpenEpisode:
    """One episode that is being written to a fleet; what `EpisodesWriter.episode` gives.

    Args:
        start: The chunk that it begins with, of no steps.
        chunk_steps: So many steps make a chunk.
        room: Returns when a step may be taken.
        take: Takes a chunk.
    """

    def __init__(
        self,
        start: chunks.EpisodeChunk,
        chunk_steps: int,
        room: Callable[[], Awaitable[None]],
        take: Callable[[chunks.EpisodeChunk], None],
    ) -> None:
        self._next, self._chunk_steps = start, chunk_steps
        self._room, self._take = room, take
        self._is_open = True
        self._steps: list[chunks.Step] = []
        self._version = start.policy_version

    async def append(self, observation: Any, action: Any, reward: float, *, policy_version: int | None = None) -> None:
        """Append one step; the arguments are those of EpisodeWriter.append. Waits while too much is under way.

        Raises:
            ArgumentError: The episode has ended, the reward is not a finite real number, or policy_version is no
                integer of at least that of the step before.
            ReplayError: A buffer has refused steps that were sent before; it is raised once.
            ClosedError: The writer is closed.
        """
        reward = validation.finite_number("reward", reward)
        version = self._checked_version(policy_version)
        observation, action = copies.copied(observation), copies.copied(action)
        await self._room()
        self._checked_version(version)
        self._version = self._version if version is None else version
        self._steps.append((observation, action, reward, version))
        if len(self._steps) >= self._chunk_steps:
            self.send()

    async def end(self, final_observation: Any, status: episode_lib.FinalStatus = "COMPLETED") -> None:
        """End the episode; the arguments are those of EpisodeWriter.end.

        Raises:
            ArgumentError: The episode has ended, or `status` is none of the three.
            ReplayError: A buffer has refused steps that were sent before; it is raised once.
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
        """Let go of the steps that were waiting for more."""
        if self._steps:
            self._send()

    def _send(self, **end: Any) -> None:
        chunk = dataclasses.replace(self._next, steps=tuple(self._steps), **end)
        self._steps.clear()
        self._next = dataclasses.replace(self._next, is_start=False, policy_version=self._version)
        self._take(chunk)

    def _checked_version(self, policy_version: int | None) -> int | None:
        """Return the version of a step that comes next; raise ArgumentError if none of that version may."""
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
