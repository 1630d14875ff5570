"""RingReplayBuffer: uniform replay of n-step transitions."""

import dataclasses
from typing import Any, Generic, TypeVar

import numpy as np

from relive.buffers import column
from relive.buffers import prefetch as prefetch_lib
from relive.limits import rate_limiters
from relive.samplers import sampler as sampler_lib
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.windows import batches as batches_lib
from relive.windows import transitions

Batch = TypeVar("Batch", bound=column.AnyBatch)


class TransitionReplayBuffer(column.ColumnReplayBuffer[Batch], Generic[Batch]):
    """A column buffer of n-step transitions, whose n_step and gamma may be overridden per call."""

    def sample(
        self, batch_size: int, *, n_step: int | None = None, gamma: float | None = None, beta: float | None = None
    ) -> Batch:
        """Return exactly batch_size transitions, drawn with replacement.

        Args:
            batch_size: The batch size, B.
            n_step: Overrides the buffer's setting.
            gamma: Overrides the buffer's setting.
            beta: Exponent of the importance weights, overriding the sampler's; only with priorities.

        Raises:
            ArgumentError: An argument is invalid.
            NotReadyError: No transition is eligible, or the limiter holds samples back.
        """
        window = self._window if n_step is None and gamma is None else self._window_for(n_step, gamma)
        batch: Batch = self._draw(batch_size, beta, self._reader(window))
        return batch

    def batches(
        self,
        batch_size: int,
        *,
        prefetch: int = 2,
        n_step: int | None = None,
        gamma: float | None = None,
        beta: float | None = None,
    ) -> prefetch_lib.Batches[Batch]:
        """Return an endless iterator of batches as from `sample`, prefetched in a thread while the learner works.

        See ColumnReplayBuffer.batches.

        Args:
            batch_size: Number of transitions in a batch, B.
            prefetch: Number of batches drawn ahead, each of which takes memory; 0 for plain `sample` without a thread.
            n_step: Overrides the buffer's setting.
            gamma: Overrides the buffer's setting.
            beta: Exponent of the importance weights, overriding the sampler's; only with priorities.

        Raises:
            ArgumentError: An argument is invalid.
        """
        return self._batches(self._window_for(n_step, gamma), batch_size, prefetch, beta)

    def read(
        self, keys: Any, *, n_step: int | None = None, gamma: float | None = None, beta: float | None = None
    ) -> Batch:
        """Return the transitions that start at the steps with those keys [B]; otherwise like `sample`.

        Raises:
            UnknownKeyError: No step of one of the keys is stored.
            ArgumentError: No transition can start at one of them, or another argument is invalid.
        """
        return self._read(self._window_for(n_step, gamma), keys, beta)

    def _window_for(self, n_step: int | None, gamma: float | None) -> Any:
        """Return the buffer's window, with n_step or gamma overridden if given."""
        options = {"n_step": n_step, "gamma": gamma}
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        window: Any = self._window
        return dataclasses.replace(window, **given) if given else window


class RingReplayBuffer(TransitionReplayBuffer[batches_lib.TransitionBatch]):
    """A uniform replay buffer: stores the newest `capacity` steps and samples complete n-step transitions.

    Args:
        n_step: Maximum number of steps in a transition; fewer if the episode, or what is known of it, ends earlier.
        gamma: The discount factor, in (0, 1].
        frame_stack: Number of frames stacked in an observation; each step stores one frame, and they are stacked when
            drawn.
        stack_padding: Padding before the first frame of an episode: "zeros", or repetitions of the "first" frame.
        action_chunks: Whether `batch.action` has the actions of all n_step steps of a transition, [B, n_step, ...]; the
            last real one is repeated from `batch.steps` on.
        capacity, schema, streams, storage, limiter, sampler, max_times_sampled, seed: As in ColumnReplayBuffer.

    Raises:
        ArgumentError: A setting is invalid.

    >>> import relive
    >>> buffer = relive.RingReplayBuffer(1_000, n_step=3, gamma=0.9, seed=0)
    >>> for t in range(5):
    ...     key = buffer.add([float(t)], t % 2, reward=t + 1.0, next_observation=[t + 1.0], terminated=t == 4)
    >>> batch = buffer.sample(batch_size=256)
    >>> batch.observation.shape, batch.reward.shape
    ((256, 1), (256,))
    >>> buffer.read([0, 3]).reward.round(6).tolist(), buffer.read([0, 3]).steps.tolist()
    ([5.23, 8.5], [3, 2])
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
        sampler: sampler_lib.Sampler | None = None,
        max_times_sampled: int | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self._transitions = transitions.TransitionWindow(n_step, gamma, frame_stack, stack_padding, action_chunks)
        super().__init__(
            capacity,
            schema,
            window=self._transitions,
            sampler=sampler,
            streams=streams,
            storage=storage,
            limiter=limiter,
            max_times_sampled=max_times_sampled,
            seed=seed,
        )
