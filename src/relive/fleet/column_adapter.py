"""ColumnAdapter: the adapter of a column buffer.

stream 0        whole episodes, of all writers
stream 1, 2 ..  one open episode each that arrives in several chunks
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from relive import errors
from relive.buffers import column as column_lib
from relive.common import trees
from relive.fleet import adapter
from relive.fleet import chunks
from relive.joint import buffer as joint_buffer
from relive.samplers import prioritized
from relive.samplers import uniform

Chunk: TypeAlias = chunks.ColumnChunk | chunks.JointChunk


class ColumnAdapter(adapter.Adapter):
    """The adapter between a shard and its column buffer.

    If more episodes are open than there are streams, the one that has waited longest for its next steps is truncated.
    """

    _aborted = "TRUNCATED"

    def __init__(self, buffer: column_lib.ColumnReplayBuffer[Any]) -> None:
        super().__init__(buffer, buffer.sample)
        self._buffer = buffer

    def describe(self) -> adapter.Description:
        """Describe the column buffer."""
        sampler, of_sampler = self._buffer.sampler, dict[str, Any]()
        is_used_up, is_stratified = self._buffer._draws.max_times_sampled is not None, False
        if isinstance(sampler, prioritized.PrioritizedSampler):
            is_stratified = sampler.settings()["stratified"]
            of_sampler = {"beta": sampler.schedule, "weight_normalization": sampler.weight_normalization}
        is_ours = type(sampler) in (uniform.UniformSampler, prioritized.PrioritizedSampler)
        return adapter.Description(
            kind=type(self._buffer).__name__,
            writer="joint_writer" if isinstance(self._buffer, joint_buffer.JointColumnBuffer) else "writer",
            has_columns=True,
            is_stratified=is_stratified,
            is_independent=is_ours and not is_stratified and not is_used_up,
            is_used_up=is_used_up,
            **of_sampler,
        )

    def set_policy_version(self, version: int) -> None:
        """Raise ArgumentError: column buffers do not draw by policy version."""
        raise errors.ArgumentError(f"set_policy_version needs buffers of episodes, got {self.describe().kind}")

    def set_ticks(self, ticks: int) -> None:
        """Set how many draws a schedule of beta has counted."""
        if isinstance(self._buffer.sampler, prioritized.PrioritizedSampler):
            self._buffer.sampler.ticks = ticks

    @property
    def size(self) -> int:
        """Number of eligible anchors."""
        return self._buffer.num_eligible

    def _weight(self, options: Mapping[str, Any]) -> adapter.SamplingWeight:
        sampler, size = self._buffer.sampler, self.size
        sampler.exponent(options.get("beta"))
        if not isinstance(sampler, prioritized.PrioritizedSampler):
            return adapter.SamplingWeight(weight=float(size), size=size)
        # To find it takes a look at every weight.
        least = sampler.least_weight if sampler.weight_normalization == "buffer" else 1.0
        return adapter.SamplingWeight(weight=sampler.total_weight, size=size, least=least, ticks=sampler.ticks)

    def _begin(self, chunk: Chunk) -> int:
        """Return the buffer's stream for an episode, in which none is open."""
        if not chunk.first and chunk.end != "OPEN":
            self._finish(0)  # A full disk may have kept one open.
            return 0
        if self._buffer.streams == 1:
            raise errors.ArgumentError(
                "make_buffer must return a buffer of at least 2 streams, got 1: one for whole episodes, and one for "
                "each that comes in several chunks"
            )
        free = {*self._handles()} - {0, *[stream for stream, _ in self._open.values()]}
        if not free:
            longest_idle = next(iter(self._open))
            free.add(self._open[longest_idle][0])
            self._end(longest_idle)
            self.cut += 1
        return min(free)

    def _write(self, stream: int, chunk: Chunk) -> None:
        if isinstance(chunk, chunks.JointChunk):
            for step in chunk.steps:
                self._buffer.add(**step, stream=stream)
            return
        try:
            self._add(stream, chunk)
        except Exception:  # One by one, those before the first wrong one are stored, or all if they were too many.
            for t in range(chunk.rows):
                self._add(stream, _step(chunk, t))

    def _add(self, stream: int, chunk: chunks.ColumnChunk) -> None:
        self._buffer.add_steps(
            chunk.observations,
            chunk.actions,
            chunk.rewards,
            terminated=chunk.end == "TERMINATED",
            truncated=chunk.end == "TRUNCATED",
            stream=stream,
            **chunk.extras,
        )

    def _finish(self, stream: int) -> bool:
        return self._buffer.end_episode(stream=stream)

    def _handles(self) -> Iterable[int]:
        return range(self._buffer.streams)


def _step(chunk: chunks.ColumnChunk, t: int) -> chunks.ColumnChunk:
    """Return a chunk of one of its steps."""
    step = slice(t, t + 1)
    return chunk._replace(
        observations=trees.rows(chunk.observations, slice(t, t + 2)),
        actions=trees.rows(chunk.actions, step),
        rewards=chunk.rewards[step],
        extras={name: trees.rows(column, step) for name, column in chunk.extras.items()},
        end=chunk.end if t == chunk.rows - 1 else "OPEN",
    )
