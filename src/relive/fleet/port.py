"""What a shard does with its buffer: a port for each family of buffers.

    chunks of writers   ──insert──►   port   ──►   buffer
    sub-batches         ◄──draw────   port   ◄──   buffer

A port knows which open episode of the buffer belongs to which writer, and ends it when the writer is gone.
"""

import abc
from collections.abc import Hashable, Mapping
import dataclasses
from typing import Any

from relive.samplers import prioritized
from relive.samplers import schedules


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Mass:
    """How much there is to draw from in a shard.

    Attributes:
        weight: In proportion to what the shard is drawn: eligible anchors, or the sum of their weights with priorities.
        size: Transitions that can be drawn, with whatever options.
        least: The smallest weight above 0 of one of them; 1 without priorities, 0 if there is none.
        ticks: How many draws the schedules of the shard know of.
        log_scale: The weight is in units of exp(log_scale): those of large lags are too small for a float.
        policy_version: Which version the learner's policy is of, as far as the shard has heard.
    """

    weight: float
    size: int
    least: float = 1.0
    ticks: int = 0
    log_scale: float = 0.0
    policy_version: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """What kind of buffer the shards of a fleet have.

    Attributes:
        kind: The name of its class.
        has_columns: Whether it is one of columns; otherwise of episodes.
        beta: The exponent of importance weights, or its schedule; None without priorities.
        weight_normalization: By what they are divided; see PrioritizedSampler.
    """

    kind: str
    has_columns: bool
    beta: float | schedules.Schedule | None = None
    weight_normalization: prioritized.WeightNormalization = "batch"


class Port(abc.ABC):
    """The one between a shard and its buffer."""

    buffer: Any
    """The buffer itself."""

    @abc.abstractmethod
    def describe(self) -> Description:
        """Return what kind of buffer it is."""

    @abc.abstractmethod
    def insert(self, writer: Hashable, chunk: Any) -> None:
        """Store a chunk of a writer. One that goes on where nothing is open begins an episode: nothing is spliced.

        What the buffer raises comes out, and the chunk's episode has ended before the step that it refused.
        """

    @abc.abstractmethod
    def abandon(self, writer: Hashable) -> int:
        """End every open episode of a writer that is gone, and return how many."""

    @abc.abstractmethod
    def abandon_all(self) -> int:
        """End every open episode, whosoever it was, and return how many."""

    @abc.abstractmethod
    def learn(self, policy_version: int) -> None:
        """Record which version the learner's policy is of; an older one than is known changes nothing."""

    @abc.abstractmethod
    def mass(self, options: Mapping[str, Any]) -> Mass:
        """Return how much there is to draw from with such options of `draw`; raise what is wrong with them."""

    @abc.abstractmethod
    def draw(self, count: int, options: Mapping[str, Any], tick: int) -> Any:
        """Return `count` samples, as the buffer's own `sample` does; `tick` counts the draws of the whole fleet."""

    @property
    def size(self) -> int:
        """How many transitions can be drawn, with whatever options."""
        return len(self.buffer)

    @property
    def rows(self) -> int:
        """How many steps are stored; of a buffer of episodes, transitions."""
        return len(self.buffer)

    @property
    def inserted(self) -> int:
        """How many steps were ever stored."""
        answer: int = self.buffer.appended
        return answer

    @property
    def sampled(self) -> int:
        """How many samples were ever drawn."""
        answer: int = self.buffer.get_stats().sampled
        return answer

    @property
    def cut(self) -> int:
        """How many open episodes were ended since the buffer has too few streams for all of them."""
        return 0
