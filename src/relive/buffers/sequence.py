"""SequenceReplayBuffer: sequences of consecutive steps, for recurrent agents and world models."""

from typing import Any

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import validation
from relive.limits import rate_limiters
from relive.samplers import prioritized as prioritized_lib
from relive.samplers import sampler as sampler_lib
from relive.samplers import schedules
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.windows import batches
from relive.windows import sequences


class SequenceReplayBuffer(column.ColumnReplayBuffer[batches.SequenceBatch]):
    """Stores the newest `capacity` steps and samples sequences of `length` steps, each from a single episode.

    Args:
        length: Steps in a sequence, burn-in included.
        burn_in: Number of leading steps that are marked as burn-in, not for the loss.
        stride: Sequences start at every stride-th step of an episode.
        pad: Whether a sequence may extend past the end of its episode. Steps past the end are zeros and masked. If
            `stride` is at most `length`, every step whose next observation is known is in some sequence then, as long
            as its episode is stored from the start.
        prioritized: Whether to sample by priority; the priority of a sequence is that of its first step.
        sampler: Draws the first steps; must be left out with prioritized=True.
        alpha, beta, epsilon, weight_normalization, stratified: As in PrioritizedReplayBuffer; used only with
            prioritized=True, and checked either way.
        capacity, schema, streams, storage, limiter, max_times_sampled, seed: As in ColumnReplayBuffer.

    Raises:
        ArgumentError: A setting is invalid.

    >>> import numpy as np
    >>> import relive
    >>> buffer = relive.SequenceReplayBuffer(1_000, length=3, burn_in=1, seed=0)
    >>> keys = buffer.add_episode(np.arange(6.0), np.arange(5), np.ones(5), terminated=True)
    >>> batch = buffer.read([2])
    >>> batch.observation.tolist(), batch.action.tolist(), batch.terminated.tolist()
    ([[2.0, 3.0, 4.0, 5.0]], [[2, 3, 4]], [[False, False, True]])
    """

    def __init__(
        self,
        capacity: int,
        schema: schema_lib.Schema | None = None,
        *,
        length: int,
        burn_in: int = 0,
        stride: int = 1,
        pad: bool = False,
        prioritized: bool = False,
        streams: int = 1,
        storage: memory.Storage | None = None,
        limiter: rate_limiters.RateLimiter | None = None,
        sampler: sampler_lib.Sampler | None = None,
        alpha: float = 0.6,
        beta: float | schedules.Schedule = 0.4,
        epsilon: float = 1e-6,
        weight_normalization: prioritized_lib.WeightNormalization = "batch",
        stratified: bool = True,
        max_times_sampled: int | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        window = sequences.SequenceWindow(length, burn_in, stride, pad)
        if validation.positive_int("capacity", capacity) < length:
            raise errors.ArgumentError(f"length must be at most capacity = {capacity}, got {length}")
        self._prioritized = validation.boolean("prioritized", prioritized)
        self._by_priority = by_priority = prioritized_lib.PrioritizedSampler(
            alpha=alpha,
            beta=beta,
            epsilon=epsilon,
            weight_normalization=weight_normalization,
            stratified=stratified,
        )
        if self._prioritized:
            if sampler is not None:
                raise errors.ArgumentError(f"sampler must be left out with prioritized=True, got {sampler!r}")
            sampler = by_priority
        super().__init__(
            capacity,
            schema,
            window=window,
            sampler=sampler,
            streams=streams,
            storage=storage,
            limiter=limiter,
            max_times_sampled=max_times_sampled,
            seed=seed,
        )

    def _known_settings(self) -> dict[str, Any]:
        known = super()._known_settings() | self._by_priority._known_settings()
        # The sampler of `prioritized` is made from the other settings.
        return {**known, "sampler": None} if self._prioritized else known
