"""JointWriter: writes joint steps to a fleet, in chunks, with the methods of a joint buffer."""

from collections.abc import Mapping
from typing import Any

from relive.common import copies
from relive.common import validation
from relive.fleet import chunks
from relive.fleet import writer
from relive.joint import rows as joint_rows


class JointWriter(writer.StreamWriter):
    """Writes steps to a fleet of joint buffers; returned by `ShardedReplay.joint_writer`.

    Steps are collected, and need streams of the shard's buffer, as those of a ColumnWriter.
    """

    async def add(
        self,
        observations: Mapping[str, Any],
        actions: Mapping[str, Any],
        rewards: Mapping[str, Any],
        next_observations: Mapping[str, Any],
        *,
        terminations: Mapping[str, Any] | None = None,
        truncations: Mapping[str, Any] | None = None,
        stream: int = 0,
        **extras: Mapping[str, Any],
    ) -> None:
        """Add one joint step; waits while too many batches are in flight. The arguments are as in JointReplayBuffer.

        Raises:
            ArgumentError: An argument is invalid.
            ReplayError: A buffer refused steps sent earlier; raised once.
            ClosedError: The writer is closed.
        """
        stream = validation.non_negative_int("stream", stream)
        given = joint_rows.Given(observations, actions, rewards, next_observations, terminations, truncations, extras)
        given.check(actions)
        step = {name: copies.copied(value) for name, value in given._asdict().items() if name != "extras"}
        step |= {name: copies.copied(value) for name, value in extras.items()}
        ends = [(terminations or {}).get(agent) or (truncations or {}).get(agent) for agent in actions]
        await self._room()
        run = self._run(stream)
        run.steps.append(step)
        if all(ends):
            self._send(stream, "TERMINATED")
        elif len(run.steps) >= self._chunk_steps:
            self._send(stream, "OPEN")

    def _chunk(self, run: writer.Run, end: chunks.End) -> chunks.JointChunk:
        return chunks.JointChunk(episode=run.episode, first=run.first, steps=tuple(run.steps), end=end)
