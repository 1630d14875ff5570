"""PrioritizedReplayBuffer: n-step transitions drawn in proportion to their priorities."""

from typing import Any, ClassVar

import numpy as np

from relive.buffers import ring
from relive.samplers import prioritized
from relive.samplers import schedules
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.waiting import rate_limiters
from relive.windows import transitions


class PrioritizedReplayBuffer(ring.RingReplayBuffer):
    """A RingReplayBuffer that draws by priority: P_i ~ (priority_i + epsilon)^alpha (Schaul et al. 2016, equation 1).

    `batch.weights` are the importance weights (N P_i)^-beta; a learner gives the priorities of a batch back with
    `update_priorities(batch.keys, ...)`. A new step has the largest raw priority so far, so that it is seen soon.

    Args:
        capacity: Steps stored at most; the oldest goes first.
        schema: What a step holds; None to take it from the first one. It is enforced either way.
        n_step: Steps in a transition at most; fewer where the episode, or what is known of it, ends earlier.
        gamma: The discount factor, in (0, 1].
        frame_stack: Frames in an observation; each step gives one, and they are stacked when drawn.
        stack_padding: What stands before the first frame of an episode: "zeros", or the "first" frame again.
        streams: How many environments or actors write side by side.
        storage: Where the columns are, of the same capacity; by default arrays in memory.
        limiter: Says when a step may be added and a batch drawn; by default a batch needs one transition.
        alpha: How much priorities matter, at least 0; 0 draws all alike.
        beta: The exponent of the importance weights, at least 0: a number, or a schedule over the draws.
        epsilon: Added to every priority, at least 0; with 0, a priority of 0 is never drawn.
        weight_normalization: By what the weights are divided: by the largest in the "batch", by the largest that any
            eligible transition would have ("buffer"), or by 1 ("none").
        stratified: One draw from each of B equal shares of the probability, shuffled, instead of B independent ones.
        new_priority: What a new step gets: the largest raw priority ever written ("running"), or of those stored
            ("live").
        max_times_sampled: How often a transition may be drawn before it retires; None for any number of times.
        seed: For the generator of the draws; the same seed and the same calls give the same batches.

    Raises:
        ArgumentError: A setting breaks its rule.

    >>> import relive
    >>> buffer = relive.PrioritizedReplayBuffer(1_000, alpha=1.0, beta=1.0, epsilon=0.0, seed=0)
    >>> keys = buffer.add_episode([[0.0], [1.0], [2.0]], [0, 1], [0.0, 1.0], terminated=True)
    >>> buffer.update_priorities(keys, [1.0, 3.0])
    2
    >>> batch = buffer.read(keys)
    >>> batch.probabilities.tolist(), batch.weights.round(4).tolist()
    ([0.25, 0.75], [1.0, 0.3333])
    """

    _SETTINGS: ClassVar[tuple[str, ...]] = (
        "capacity",
        "schema",
        "n_step",
        "gamma",
        "frame_stack",
        "stack_padding",
        "streams",
        "limiter",
        *prioritized.SETTINGS,
        "max_times_sampled",
    )

    def __init__(
        self,
        capacity: int,
        schema: schema_lib.Schema | None = None,
        *,
        n_step: int = 1,
        gamma: float = 0.99,
        frame_stack: int = 1,
        stack_padding: transitions.StackPadding = "zeros",
        streams: int = 1,
        storage: memory.Storage | None = None,
        limiter: rate_limiters.RateLimiter | None = None,
        alpha: float = 0.6,
        beta: float | schedules.Schedule = 0.4,
        epsilon: float = 1e-6,
        weight_normalization: prioritized.WeightNormalization = "batch",
        stratified: bool = True,
        new_priority: prioritized.NewPriority = "running",
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
            streams=streams,
            storage=storage,
            limiter=limiter,
            sampler=prioritized.PrioritizedSampler(
                alpha=alpha,
                beta=beta,
                epsilon=epsilon,
                weight_normalization=weight_normalization,
                stratified=stratified,
                new_priority=new_priority,
            ),
            max_times_sampled=max_times_sampled,
            seed=seed,
        )

    def _setting(self, name: str) -> Any:
        if name in prioritized.SETTINGS:
            return self._prioritized_sampler("save").settings()[name]
        return super()._setting(name)
