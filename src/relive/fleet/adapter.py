"""Adapter: the interface between a shard and its buffer, one for each family of buffers.

    chunks of writers   ──insert──►   adapter   ──►   buffer
    sub-batches         ◄──draw────   adapter   ◄──   buffer

An adapter tracks which open episode of the buffer belongs to which writer, and ends it when the writer is gone.
"""

import abc
from collections.abc import Callable, Hashable, Mapping
import dataclasses
from typing import Any, NamedTuple, TypedDict, TypeVar

from relive import errors
from relive.samplers import prioritized
from relive.samplers import schedules

T = TypeVar("T")


class SamplingWeight(NamedTuple):
    """How much there is to draw from in a shard.

    Attributes:
        weight: The shard is drawn in proportion to it: eligible anchors, or with priorities the sum of their weights.
        size: Transitions that can be drawn, regardless of options.
        least: With weight_normalization="buffer", the smallest weight above 0 of one of them, or 0; otherwise 1.
        ticks: Number of draws counted by the shard's schedules.
        log_scale: The weight is in units of exp(log_scale), since weights of large lags are too small for a float.
        policy_version: The learner's policy version, as far as the shard knows.
    """

    weight: float
    size: int
    least: float = 1.0
    ticks: int = 0
    log_scale: float = 0.0
    policy_version: int | None = None


class Request(TypedDict):
    """What a client asks of a shard for some batches: a plain dict, which is sent without being pickled.

    Attributes:
        counts: Number of samples for each batch.
        options: Further arguments of the buffer's `sample`.
        ticks: Number of batches that the client's schedules have counted.
        begun: Number of batches that begin with this call.
        policy_version: The learner's policy version, if known.
    """

    counts: list[int]
    options: dict[str, Any]
    ticks: int
    begun: int
    policy_version: int | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """A description of the buffers of a fleet.

    Attributes:
        kind: The name of its class.
        writer: The name of the method of a client that returns a writer for it.
        has_columns: Whether it is a column buffer; otherwise it has episodes, which are also consumed once.
        beta: The exponent of importance weights, or its schedule; None without priorities.
        weight_normalization: What they are divided by; see PrioritizedSampler.
        is_stratified: Whether a batch is spread evenly over the weights.
        is_independent: Whether samples are drawn independently, so that any part of a draw is a draw.
        is_used_up: Whether a row that is drawn may be drawn less often from then on.
        has_groups: Whether episodes of a group are delivered together.
        padding: The pad_token_id and pad_to_multiple_of of batches of tokens.
    """

    kind: str
    writer: str
    has_columns: bool
    beta: float | schedules.Schedule | None = None
    weight_normalization: prioritized.WeightNormalization = "batch"
    is_stratified: bool = False
    is_independent: bool = False
    is_used_up: bool = False
    has_groups: bool = False
    padding: tuple[int, int] = (0, 1)


def in_group(begin: Callable[..., T], group_id: str | None, is_failed: bool) -> T:
    """Return what `begin` returns for an episode of that group.

    A failed attempt that arrives when its group is whole already does not need it, and is of none.
    """
    try:
        return begin(group_id=group_id)
    except errors.ArgumentError:
        if not is_failed:
            raise
        return begin(group_id=None)


class Adapter(abc.ABC):
    """The interface between a shard and its buffer."""

    buffer: Any
    """The buffer itself."""

    @abc.abstractmethod
    def describe(self) -> Description:
        """Describe the buffer."""

    @abc.abstractmethod
    def insert(self, writer: Hashable, chunk: Any) -> None:
        """Store a chunk of a writer. If its episode is no longer open, it begins a new one: nothing is spliced.

        Exceptions of the buffer propagate, and the chunk's episode is ended before the refused steps.
        """

    @abc.abstractmethod
    def abandon(self, writer: Hashable) -> int:
        """End every open episode of a writer that is gone, and return how many."""

    @abc.abstractmethod
    def abandon_all(self) -> int:
        """End every open episode of all writers, and return how many."""

    def set_policy_version(self, version: int) -> None:
        """Set the learner's policy version; older versions are ignored."""
        known = self.buffer.policy_version
        if known is None or known < version:
            self.buffer.set_policy_version(version)

    @abc.abstractmethod
    def check(self, options: Mapping[str, Any]) -> None:
        """Raise TypeError or ArgumentError if `draw` has no such options."""

    @abc.abstractmethod
    def weight(self, options: Mapping[str, Any]) -> SamplingWeight:
        """Return the sampling weight for those options of `draw`."""

    @abc.abstractmethod
    def draw(self, count: int, options: Mapping[str, Any]) -> Any:
        """Return `count` samples, as the buffer's own `sample` does."""

    def set_ticks(self, ticks: int) -> None:
        """Set how many draws the schedules of the buffer have counted."""

    @property
    def size(self) -> int:
        """Number of transitions that can be drawn, regardless of options."""
        return len(self.buffer)

    @property
    def rows(self) -> int:
        """Number of stored steps; transitions for an episode buffer."""
        return len(self.buffer)

    @property
    def inserted(self) -> int:
        """Number of steps ever stored."""
        appended: int = self.buffer.appended
        return appended

    def is_sent_whole(self, chunk: Any) -> bool:
        """Return whether a chunk that was stored in part will be sent again as a whole."""
        return False

    @property
    def torn(self) -> int:
        """Number of steps of open episodes that their writers will send again as a whole."""
        return 0

    @property
    def sampled(self) -> int:
        """Number of samples ever drawn."""
        sampled: int = self.buffer.get_stats().sampled
        return sampled

    @property
    def cut(self) -> int:
        """Number of open episodes ended because the buffer has too few streams."""
        return 0
