"""JointWriter: writes joint steps to a fleet, in chunks, with the methods of a joint buffer.

Invariant: as in ColumnWriter, a cancelled call has either happened completely or not at all.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from relive.common import copies
from relive.common import validation
from relive.fleet import chunks
from relive.fleet import writer
from relive.joint import rows as joint_rows


@dataclasses.dataclass(slots=True)
class _Run:
    """Unsent steps of one stream."""

    is_start: bool = True
    steps: list[Mapping[str, Any]] = dataclasses.field(default_factory=list)

    def __len__(self) -> int:
        return len(self.steps)


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
        """Add one joint step; waits while too many batches are in flight. See JointReplayBuffer.add.

        Args:
            observations: o_t of each agent.
            actions: a_t of each agent that is present.
            rewards: r_t of each.
            next_observations: o_{t+1} of each.
            terminations: Whether the task ended for the agent.
            truncations: Whether the agent was truncated.
            stream: The writer's environment that the step comes from.
            extras: The other fields of the agents' schemas, each a mapping by agent.

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
        run = self._runs.setdefault(stream, _Run())
        run.steps.append(step)
        if all(ends):
            self._send(stream, "TERMINATED")
        elif len(run) >= self._chunk_steps:
            self._send(stream, "OPEN")

    def _send(self, stream: int, end: chunks.End) -> None:
        run = self._runs.pop(stream)
        if end == "OPEN":
            self._runs[stream] = _Run(is_start=False)
        if len(run):
            steps = tuple(run.steps)
            self._outbox.take(chunks.JointChunk(stream=stream, is_start=run.is_start, steps=steps, end=end))
        else:
            self._outbox.take(chunks.ColumnEnd(stream=stream))
