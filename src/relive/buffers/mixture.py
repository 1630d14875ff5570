"""MixtureSampler: batches with fixed shares from several buffers, such as demonstrations and online experience."""

from collections.abc import Sequence
import contextlib
import dataclasses
import functools
import math
from typing import Any, Generic, TypeVar

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import arrays as arrays_lib
from relive.common import randomness
from relive.common import validation
from relive.samplers import prioritized as prioritized_lib
from relive.windows import batches

Batch = TypeVar("Batch", bound=batches.TransitionBatch | batches.SequenceBatch)


class MixtureSampler(Generic[Batch]):
    """Samples batches with fixed shares from several buffers.

    The number of rows from each buffer is the same in every batch: share times batch_size, rounded by largest
    remainder. Rows are in the order of the buffers. A mixture has its own keys: `sources` returns the buffer of each
    key, and `update_priorities` passes priorities on to the right buffer.

    Args:
        buffers: At least one; all with the same schema, and with windows that give arrays of the same shapes.
        shares: The share of each buffer, above 0; only their ratios matter.

    Raises:
        ArgumentError: There is no buffer, a buffer is repeated or keeps its rows on a device, a share is invalid, or
            the windows do not fit together.

    >>> import relive
    >>> offline, online = relive.RingReplayBuffer(100, seed=0), relive.RingReplayBuffer(100, seed=1)
    >>> for buffer, observation in ((offline, 0.0), (online, 1.0)):
    ...     keys = buffer.add_episode([observation] * 6, [0] * 5, [0.0] * 5, terminated=True)
    >>> batch = relive.MixtureSampler([offline, online], shares=[1, 3]).sample(8)
    >>> batch.observation.tolist()
    [0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """

    def __init__(self, buffers: Sequence[column.ColumnReplayBuffer[Batch]], shares: Sequence[float]) -> None:
        validation.require_instance("buffers", buffers, Sequence)
        validation.leading_length("shares", shares)
        self._buffers = list(buffers)
        if not self._buffers:
            raise errors.ArgumentError("buffers must be at least one, got none")
        for buffer in self._buffers:
            validation.require_instance("buffers", buffer, column.ColumnReplayBuffer)
            buffer._require_local("MixtureSampler")
        kinds = {type(buffer.window).__name__ for buffer in self._buffers}
        if len(kinds) > 1:
            raise errors.ArgumentError(f"buffers must have windows of one kind, got {', '.join(sorted(kinds))}")
        if len({id(buffer) for buffer in self._buffers}) < len(self._buffers):
            raise errors.ArgumentError("buffers must be distinct, got one of them twice")
        if len(shares) != len(self._buffers):
            raise errors.ArgumentError(f"shares must be one for each buffer, {len(self._buffers)}, got {len(shares)}")
        weights = [validation.finite_number("share", share) for share in shares]
        if min(weights) <= 0:
            raise errors.ArgumentError(f"shares must be above 0, got {min(weights):g}")
        # Divided by the largest first, since their sum could overflow.
        relative = [weight / max(weights) for weight in weights]
        total = math.fsum(relative)
        self._shares = [weight / total for weight in relative]

    def counts(self, batch_size: int) -> list[int]:
        """Return the number of rows of a batch from each buffer; they sum to batch_size.

        Raises:
            ArgumentError: batch_size is not an integer of at least 1.
        """
        batch_size = validation.batch_size("batch_size", batch_size)
        exact = [batch_size * share for share in self._shares]
        counts = [int(number) for number in exact]
        by_remainder = sorted(range(len(exact)), key=lambda source: counts[source] - exact[source])
        for source in by_remainder[: batch_size - sum(counts)]:
            counts[source] += 1
        return counts

    def sample(self, batch_size: int, **options: Any) -> Batch:
        """Return exactly batch_size rows; importance weights are each buffer's own.

        Nothing is drawn unless all buffers can provide their share.

        Args:
            batch_size: The batch size, B.
            options: Further arguments of the buffers' `sample`, for all of them.

        Raises:
            ArgumentError: An argument is invalid, or the buffers' rows do not fit together.
            NotReadyError: A buffer cannot provide its share.
        """
        counts = self.counts(batch_size)
        for source, (buffer, count) in enumerate(zip(self._buffers, counts, strict=True)):
            if count and not buffer.can_sample(count):
                raise errors.NotReadyError(f"sample must wait for buffer {source}: it cannot return {count} rows now")
        schema = self._buffers[0].schema
        for buffer in self._buffers:
            if schema is not None and buffer.schema is not None and buffer.schema.fields != schema.fields:
                raise errors.ArgumentError(f"buffers must be of one schema, got {schema} and {buffer.schema}")
            if options.get("beta") is not None:
                buffer.sampler.check_beta(options["beta"])
        calls = {}
        for source, count in enumerate(counts):
            if count:
                calls[source], own = options, self._buffers[source].sampler
                if options.get("beta") is None and isinstance(own, prioritized_lib.PrioritizedSampler):
                    calls[source] = options | {"beta": own.beta}  # A schedule is evaluated once.
        # Invalid arguments and mismatches show even in empty batches.
        _joined([self._buffers[source].read([], **call) for source, call in calls.items()])
        parts = []
        with contextlib.ExitStack() as stack:
            for source, call in calls.items():
                buffer = self._buffers[source]
                stack.enter_context(randomness.Unmoved(buffer.rng))
                part = buffer.sample(counts[source], **call)
                stack.enter_context(buffer._revocable(part.keys))
                part.keys = part.keys * len(self._buffers) + source
                parts.append(part)
            return _joined(parts)

    def sources(self, keys: Any) -> arrays_lib.Ints:
        """Return the index of the buffer that each key belongs to [B]."""
        return validation.integers("keys", keys) % len(self._buffers)

    def update_priorities(self, keys: Any, priorities: Any) -> int:
        """Update the priorities of the rows of a batch, and return how many were still stored.

        Rows of buffers without priorities are ignored and not counted.

        Raises:
            ArgumentError: A priority is invalid, a key was never given out, or the lengths differ. Nothing has changed.
        """
        keys = validation.integers("keys", keys)
        priorities = validation.non_negative_floats("priority", priorities, len(keys))
        sources = self.sources(keys)
        for source, buffer in enumerate(self._buffers):
            buffer._require_given_out(keys[sources == source] // len(self._buffers))
        prioritized = [(source, buffer) for source, buffer in enumerate(self._buffers) if buffer.has_priorities]
        for source, buffer in prioritized:
            sampler = prioritized_lib.required(buffer.sampler, "update_priorities")
            sampler._check_priorities(np.where(sources == source, priorities, 0.0))
        # Those with a journal last, whose record is then written before any buffer has changed.
        prioritized.sort(key=lambda each: each[1]._journal is not None)
        numbers, num_alive = keys // len(self._buffers), 0

        def update(first: int = 0) -> None:
            """Update the buffers from one on: each once all after it are updated, or none."""
            nonlocal num_alive
            if first < len(prioritized):
                source, buffer = prioritized[first]
                own, then = sources == source, functools.partial(update, first + 1)
                updated = buffer._update_priorities(numbers[own], priorities[own], then)
                num_alive += updated  # Not in one: `then` has counted others by now.

        update()
        return num_alive


def _joined(parts: list[Batch]) -> Batch:
    """Return batches of B_i rows as one of B rows."""
    fields = [field.name for field in dataclasses.fields(parts[0])]
    joined = {name: _joined_trees(name, [getattr(part, name) for part in parts]) for name in fields}
    return type(parts[0])(**joined)


def _joined_trees(name: str, trees: list[Any]) -> Any:
    """Return the trees of arrays [B_i, ...] as one [B, ...]."""
    if isinstance(trees[0], dict):
        return {key: _joined_trees(f"{name}/{key}", [tree[key] for tree in trees]) for key in trees[0]}
    shapes = [tree.shape[1:] for tree in trees]
    if any(shape != shapes[0] for shape in shapes):
        raise errors.ArgumentError(f"buffers must return {name} of one shape, got {shapes}")
    return np.concatenate(trees)
