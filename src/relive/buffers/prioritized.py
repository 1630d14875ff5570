"""PrioritizedReplayBuffer: n-step transitions drawn in proportion to their priorities."""

from typing import Any

import numpy as np

from relive.buffers import ring
from relive.limits import rate_limiters
from relive.samplers import prioritized
from relive.samplers import schedules
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.windows import transitions


class PrioritizedReplayBuffer(ring.RingReplayBuffer):
    """A RingReplayBuffer with proportional prioritization: P_i ~ (priority_i + epsilon)^alpha.

    See Schaul et al. 2016, equation 1. `batch.weights` are the importance weights (N P_i)^-beta. Update the priorities
    of a batch with `update_priorities(batch.keys, ...)`. A new step gets the largest raw priority so far, so that it is
    drawn soon.

    Args:
        alpha: Exponent of the priorities, at least 0; with 0, sampling is uniform over what weighs more than 0.
        beta: Exponent of the importance weights, at least 0: a number, or a schedule over the draws.
        epsilon: Added to every priority, at least 0; with 0, a priority of 0 is never drawn.
        weight_normalization: What the weights are divided by: the largest in the "batch", the largest of any eligible
            transition ("buffer"), or 1 ("none").
        stratified: Whether to draw one transition from each of B equal shares of the probability, shuffled, instead of
            B independently.
        n_step, gamma, frame_stack, stack_padding, action_chunks: As in RingReplayBuffer.
        capacity, schema, streams, storage, limiter, max_times_sampled, seed: As in ColumnReplayBuffer.

    Raises:
        ArgumentError: A setting is invalid.

    >>> import relive
    >>> buffer = relive.PrioritizedReplayBuffer(1_000, alpha=1.0, beta=1.0, epsilon=0.0, seed=0)
    >>> keys = buffer.add_episode([[0.0], [1.0], [2.0]], [0, 1], [0.0, 1.0], terminated=True)
    >>> buffer.update_priorities(keys, [1.0, 3.0])
    2
    >>> batch = buffer.read(keys)
    >>> batch.probabilities.tolist(), batch.weights.round(4).tolist()
    ([0.25, 0.75], [1.0, 0.3333])
    """

    def __init__(
        self,
        capacity: int,
        schema: schema_lib.Schema | None = None,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        frame_stack: int = 1,
        stack_padding: transitions.StackPadding = "zeros",
        action_chunks: bool = False,
        streams: int = 1,
        storage: memory.Storage | None = None,
        limiter: rate_limiters.RateLimiter | None = None,
        alpha: float = 0.6,
        beta: float | schedules.Schedule = 0.4,
        epsilon: float = 1e-6,
        weight_normalization: prioritized.WeightNormalization = "batch",
        stratified: bool = True,
        max_times_sampled: int | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        super().__init__(
            capacity,
            schema,
            n_step=n_step,
            gamma=gamma,
            frame_stack=frame_stack,
            stack_padding=stack_padding,
            action_chunks=action_chunks,
            streams=streams,
            storage=storage,
            limiter=limiter,
            sampler=prioritized.PrioritizedSampler(
                alpha=alpha,
                beta=beta,
                epsilon=epsilon,
                weight_normalization=weight_normalization,
                stratified=stratified,
            ),
            max_times_sampled=max_times_sampled,
            seed=seed,
        )

    @property
    def sampler(self) -> prioritized.PrioritizedSampler:
        """The sampler, whose `alpha` may be set at any time; `sample` takes another `beta`."""
        return prioritized.required(self._draws.sampler, "sampler")

    def _known_settings(self) -> dict[str, Any]:
        return super()._known_settings() | self.sampler._known_settings()
