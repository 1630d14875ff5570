"""Rate limiters: decide whether an insert or a sample may happen now. They never wait and are stateless.

The buffer counts, the limiter decides from the counts:

    size        transitions that can be drawn now
    inserted    steps appended so far
    sampled     samples drawn so far

So one limiter may serve many buffers, and a checkpoint of a buffer is complete.
"""

import abc
from collections.abc import Callable
import fractions
import math
from typing import NamedTuple, Protocol, TypeVar

from relive import errors
from relive.common import validation
from relive.persistence import registry

Answer = TypeVar("Answer")


class RateLimiter(registry.Configurable, abc.ABC):
    """Decides whether inserts and samples may happen; subclass it and override two methods for a custom rule.

    Attributes:
        min_size: No batch is allowed below that many transitions; a buffer with a smaller capacity refuses the limiter.
        max_batch_size: A larger batch could wait for ever and is refused; None for no limit.
    """

    min_size: int = 1
    max_batch_size: int | None = None

    @abc.abstractmethod
    def can_insert(self, *, size: int, inserted: int, sampled: int) -> bool:
        """Return whether one more step may be inserted now."""

    @abc.abstractmethod
    def can_sample(self, batch_size: int, *, size: int, inserted: int, sampled: int) -> bool:
        """Return whether a batch may be drawn now. Called only while something can be drawn."""

    def forgiven(self, *, inserted: int, sampled: int) -> int:
        """Return how many samples to count as drawn, at least `sampled`, if the real number is unknown.

        Used after a journal was replayed, if inserts are held back: they must not wait for draws that the journal does
        not record. By default, `sampled`.
        """
        return sampled


class MinSize(RateLimiter):
    """Allows sampling once at least `n` transitions can be drawn, and always allows inserts."""

    def __init__(self, n: int) -> None:
        self.min_size = validation.positive_int("n", n)

    def __repr__(self) -> str:
        return f"MinSize({self.min_size})"

    def can_insert(self, *, size: int, inserted: int, sampled: int) -> bool:
        """Return True."""
        return True

    def can_sample(self, batch_size: int, *, size: int, inserted: int, sampled: int) -> bool:
        """Return whether size >= n."""
        return size >= self.min_size


class SampleToInsertRatio(RateLimiter):
    """Keeps the number of samples per insert close to `ratio`, within `error_buffer` samples.

    It keeps surplus = ratio * (inserted - min_size) - sampled between -error_buffer and error_buffer::

        insert   if size < min_size   or   surplus + ratio <= error_buffer
        sample   if size >= min_size  and  surplus - batch_size >= -error_buffer

    as the rate limiter of Reverb does (Cassirer et al. 2021). Whenever one side is held back the other may proceed, for
    batches of at most 2 * error_buffer - ratio samples; larger ones are refused. Inserts below min_size are always
    allowed but counted: if they leave a larger surplus, as when many episodes begin at once, the learner works it off.
    The same holds for the steps after the first of a call that adds several, such as `extend` or `add_episode`.

    Args:
        ratio: Samples per insert, above 0: how many times each step is drawn on average. A buffer whose
            `max_times_sampled` allows fewer refuses the limiter.
        min_size: Number of transitions required for sampling.
        error_buffer: How far samples and inserts may diverge, in samples: at least max(1, ratio).

    Raises:
        ArgumentError: A setting is invalid.

    >>> from relive.limits import rate_limiters
    >>> limiter = rate_limiters.SampleToInsertRatio(ratio=4.0, min_size=100, error_buffer=64.0)
    >>> limiter.can_sample(32, size=100, inserted=100, sampled=0)
    True
    >>> limiter.can_sample(32, size=100, inserted=100, sampled=64)
    False
    """

    def __init__(self, ratio: float, min_size: int, error_buffer: float) -> None:
        self.ratio = validation.finite_number("ratio", ratio)
        if self.ratio <= 0:
            raise errors.ArgumentError(f"ratio must be above 0, got {ratio}")
        self.min_size = validation.positive_int("min_size", min_size)
        self.error_buffer = validation.finite_number("error_buffer", error_buffer)
        if self.error_buffer < max(1.0, self.ratio):
            raise errors.ArgumentError(
                f"error_buffer must be at least max(1, ratio) = {max(1.0, self.ratio):g}, or neither side could move, "
                f"got {error_buffer}"
            )
        # Both sides as integers: separate rounding could hold back both sides at once.
        exact_ratio, exact_buffer = fractions.Fraction(repr(self.ratio)), fractions.Fraction(repr(self.error_buffer))
        self._sample_units = math.lcm(exact_ratio.denominator, exact_buffer.denominator)
        self._insert_units = int(exact_ratio * self._sample_units)
        self._buffer_units = int(exact_buffer * self._sample_units)
        self.max_batch_size = (2 * self._buffer_units - self._insert_units) // self._sample_units

    def __repr__(self) -> str:
        return (
            f"SampleToInsertRatio(ratio={self.ratio:g}, min_size={self.min_size}, error_buffer={self.error_buffer:g})"
        )

    def can_insert(self, *, size: int, inserted: int, sampled: int) -> bool:
        """Return whether size < min_size or surplus + ratio <= error_buffer."""
        return size < self.min_size or self._surplus(inserted + 1, sampled) <= self._buffer_units

    def can_sample(self, batch_size: int, *, size: int, inserted: int, sampled: int) -> bool:
        """Return whether size >= min_size and surplus - batch_size >= -error_buffer."""
        return size >= self.min_size and self._surplus(inserted, sampled + batch_size) >= -self._buffer_units

    def forgiven(self, *, inserted: int, sampled: int) -> int:
        """Return the fewest samples with which the surplus is not above 0."""
        return max(sampled, sampled - -self._surplus(inserted, sampled) // self._sample_units)

    def _surplus(self, inserted: int, sampled: int) -> int:
        """Return the surplus of inserts, in units of 1 / _sample_units samples."""
        return self._insert_units * (inserted - self.min_size) - self._sample_units * sampled


class Rules(Protocol):
    """Decides without waiting."""

    def can_insert(self) -> bool:
        """Return whether a step may be inserted now."""
        ...

    def can_sample(self, batch_size: int, /) -> bool:
        """Return whether a batch may be drawn now."""
        ...


class Counts(Protocol):
    """The counts that a limiter decides from."""

    sampled: int
    """Samples drawn so far."""

    @property
    def inserted(self) -> int:
        """Steps inserted so far."""
        ...

    def __len__(self) -> int:
        """Return how many transitions can be drawn now."""
        ...


class Limits(NamedTuple):
    """What there is to draw at most, in a buffer or in a fleet.

    Attributes:
        name: What `transitions` are called in errors.
        transitions: Maximum number of transitions; None for no limit.
        max_times_sampled: How many times a transition may be drawn; None for no limit.
        steps_per_draw: How many steps there are for each of those that can be drawn, at least.
    """

    name: str
    transitions: int | None
    max_times_sampled: int | None = None
    steps_per_draw: int = 1

    def check(self, limiter: RateLimiter) -> None:
        """Raise ArgumentError if a limiter asks for more transitions than can be held, or samples than can be drawn."""
        if self.transitions is not None and limiter.min_size > self.transitions:
            raise errors.ArgumentError(
                f"limiter must ask for at most {self.name} = {self.transitions} transitions, got {limiter!r}"
            )
        if self.max_times_sampled is not None and isinstance(limiter, SampleToInsertRatio):
            most, name = self.max_times_sampled / self.steps_per_draw, "max_times_sampled"
            if limiter.ratio > most:
                name = name if self.steps_per_draw == 1 else f"{name} / {self.steps_per_draw}"
                rule = f"ratio must be at most {name} = {most:g}, or inserts stop for ever"
                raise errors.ArgumentError(f"{rule}, got {limiter!r}")


class LimiterState:
    """A limiter together with the counts of its buffer.

    Args:
        limiter: The limiter; MinSize(1) if None.
        counts: The counts of the buffer; replaced if the buffer replaces them.
        limits: The limits of the buffer.

    Raises:
        ArgumentTypeError: `limiter` is not a RateLimiter.
        ArgumentError: The limiter requires more transitions than the buffer can hold, or more samples than can be
            drawn of them.
    """

    def __init__(self, limiter: RateLimiter | None, counts: Counts, limits: Limits) -> None:
        if limiter is None:
            limiter = MinSize(1)
        if not isinstance(limiter, RateLimiter):
            raise errors.ArgumentTypeError(f"limiter must be a RateLimiter, got {validation.short_repr(limiter)}")
        validation.positive_int("limiter.min_size", limiter.min_size)
        limits.check(limiter)
        self.limiter, self.limits = limiter, limits
        self.holds_inserts = type(limiter).can_insert is not MinSize.can_insert
        """Whether `can_insert` may answer False."""
        self.holds_samples = type(limiter).can_sample is not MinSize.can_sample or limiter.min_size > 1
        """Whether `can_sample` may answer False where something can be drawn."""
        self.counts = counts
        self._decision: bool | None = None

    def decided(self, decision: bool, call: Callable[[], Answer]) -> Answer:
        """Make a call of the buffer with a decision in place of the limiter, which could answer differently by now.

        With True, a caller that has asked is not refused after all. With False, the call checks its arguments, raises
        NotReadyError, and changes nothing.
        """
        before = self.holds_inserts, self.holds_samples
        self._decision, self.holds_inserts, self.holds_samples = decision, True, True
        try:
            return call()
        finally:
            self._decision, (self.holds_inserts, self.holds_samples) = None, before

    def can_insert(self) -> bool:
        """Return whether a step may be inserted now."""
        if self._decision is not None:
            return self._decision
        counts = self.counts
        return self.limiter.can_insert(size=len(counts), inserted=counts.inserted, sampled=counts.sampled)

    def can_sample(self, batch_size: int) -> bool:
        """Return whether a batch may be drawn now."""
        if self._decision is not None:
            return self._decision
        counts = self.counts
        size = len(counts)
        if size < self.limiter.min_size:
            return False
        return self.limiter.can_sample(batch_size, size=size, inserted=counts.inserted, sampled=counts.sampled)

    def forgive(self) -> None:
        """Count enough samples as drawn for inserts to proceed, when the real number is unknown."""
        counts = self.counts
        if not self.can_insert():
            counts.sampled = self.limiter.forgiven(inserted=counts.inserted, sampled=counts.sampled)

    def checked_batch_size(self, batch_size: object) -> int:
        """Return `batch_size` as an int.

        Raises:
            ArgumentError: It is not an integer of at least 1, or so large that the limiter could never allow it.
        """
        most = self.limiter.max_batch_size
        if type(batch_size) is int and 0 < batch_size <= (validation.LARGEST_BATCH if most is None else most):
            return batch_size
        size = validation.batch_size("batch_size", batch_size)
        if most is not None and size > most:
            raise errors.ArgumentError(f"batch_size must be at most {most} with {self.limiter!r}, got {size}")
        return size
