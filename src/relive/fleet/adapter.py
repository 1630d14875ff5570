"""Adapter: the interface between a shard and its buffer, one for each family of buffers.

    chunks of writers   ──insert──►   adapter   ──►   buffer
    sub-batches         ◄──draw────   adapter   ◄──   buffer

An adapter knows which open episode of the buffer belongs to which episode of a writer, and how far it has come. Chunks
that are sent again come late, or never, so it looks at the first step of each; `PLANS` says what follows:

    its episode is not open      it begins one
    has come so far              it goes on
    has not come so far          some of it is missing: it ends, and the chunk begins another
    has come further             the chunk is late: it is an episode of its own, which ends at once
    has ended, and was torn      so is the rest of it, whatever is open

A chunk without steps that would begin an episode in the middle comes to nothing. Nothing is ever spliced.
"""

import abc
from collections.abc import Hashable, Iterable, Mapping
import contextlib
import dataclasses
import enum
import inspect
from typing import Any, Literal, NamedTuple, NotRequired, TypeAlias, TypedDict

from relive import errors
from relive.common import arrays as arrays_lib
from relive.fleet import replies
from relive.limits import rate_limiters
from relive.samplers import prioritized
from relive.samplers import schedules
from relive.windows import batches

Place: TypeAlias = tuple[Hashable, int]
"""A writer, and its number for one of its episodes: that of late chunks is _LATE."""
_LATE = -1


class Order(enum.Enum):
    """How far the open episode of a chunk has come, if there is one."""

    NOT_OPEN = enum.auto()
    SO_FAR = enum.auto()
    LESS_FAR = enum.auto()
    FURTHER = enum.auto()


class Plan(NamedTuple):
    """Whether the open episode ends before a chunk is stored, and what the chunk does then."""

    ends: bool
    then: Literal["BEGINS", "GOES_ON", "STAYS_ALONE"]


PLANS = {
    # The order, and whether the episode has ended although some of it was missing, which may still come.
    (Order.NOT_OPEN, False): Plan(False, "BEGINS"),
    (Order.SO_FAR, False): Plan(False, "GOES_ON"),
    (Order.LESS_FAR, False): Plan(True, "BEGINS"),
    (Order.FURTHER, False): Plan(False, "STAYS_ALONE"),
    (Order.NOT_OPEN, True): Plan(False, "STAYS_ALONE"),
    # A full disk has kept it open.
    (Order.SO_FAR, True): Plan(False, "STAYS_ALONE"),
    (Order.LESS_FAR, True): Plan(True, "STAYS_ALONE"),
    (Order.FURTHER, True): Plan(False, "STAYS_ALONE"),
}


class SamplingWeight(NamedTuple):
    """How much there is to draw from in a shard, of `size` transitions: it is drawn in proportion to `weight`.

    That is in units of exp(log_scale), since weights of large lags are too small for a float. With
    weight_normalization="buffer", `least` is the smallest weight above 0, or 0; otherwise it is 1.
    """

    weight: float
    size: int
    least: float = 1.0
    ticks: int = 0
    log_scale: float = 0.0
    policy: replies.Policy = replies.Policy()


class Request(TypedDict):
    """What a client asks for: a plain dict, sent without being pickled. After `ticks` batches, `begun` more begin."""

    counts: list[int]
    options: dict[str, Any]
    ticks: int
    begun: int
    policy: replies.Policy | None
    keys_only: NotRequired[bool]


@dataclasses.dataclass(slots=True)
class DrawnKeys(batches.KeyedBatch[arrays_lib.Array]):
    """A batch of a column buffer of which only the keys are gathered [B]."""

    keys: arrays_lib.Keys
    probabilities: arrays_lib.Floats
    weights: arrays_lib.Floats

    @classmethod
    def of(
        cls, store: Any, slots: arrays_lib.Ints, probabilities: arrays_lib.Floats, weights: arrays_lib.Floats
    ) -> "DrawnKeys":
        """Return the keys of what was drawn from a store."""
        return cls(store.keys(slots), probabilities, weights)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """A description of the buffers of a fleet: the name of their class, and of the client's method for writers.

    `limits` are those of each buffer. `beta` is None without priorities. Any part of a draw is a draw if samples are
    independent. `padding` is pad_token_id and pad_to_multiple_of.
    """

    kind: str
    writer: str
    limits: rate_limiters.Limits
    has_columns: bool = False
    beta: float | schedules.Schedule | None = None
    weight_normalization: prioritized.WeightNormalization = "batch"
    is_stratified: bool = False
    is_independent: bool = False
    has_groups: bool = False
    padding: tuple[int, int] = (0, 1)

    @property
    def is_used_up(self) -> bool:
        """Whether a row that is drawn may be drawn less often from then on."""
        return self.limits.max_times_sampled is not None

    def check_limiter(self, limiter: rate_limiters.RateLimiter, shards: int) -> None:
        """Raise ArgumentError if a limiter would stop a fleet of that many shards for ever."""
        name, most = self.limits.name, self.limits.transitions
        most = None if most is None else shards * most
        self.limits._replace(name=name if shards == 1 else f"{shards} times {name}", transitions=most).check(limiter)


class Adapter(abc.ABC):
    """The interface between a shard and its buffer."""

    buffer: Any

    cut = 0
    """Number of open episodes ended because the buffer has too few streams."""
    _aborted = "ABORTED"
    """How an episode ends whose writer has not ended it."""
    _method = "sample"
    """The method of the buffer that draws."""
    unit = "step"
    """What has a key."""

    def __init__(self, buffer: Any) -> None:
        self.buffer, self._sample = buffer, getattr(buffer, self._method)
        self._signature = inspect.signature(self._sample)
        # What the buffer knows each open episode by, and the index of its next step; the longest idle comes first.
        self._open: dict[Place, tuple[Any, int]] = {}
        # Of what some is missing, which may still come: what is open, and what has ended.
        self._torn: set[Place] = set()
        self._ended: set[Place] = set()

    @abc.abstractmethod
    def describe(self) -> Description:
        """Describe the buffer."""

    def insert(self, writer: Hashable, chunk: Any) -> None:
        """Store a chunk of a writer; what the buffer raises propagates, and the episode ends before that step.

        A MisuseWarning that was made an error is raised at the end, when all is stored.
        """
        place = writer, chunk.episode
        ends, then = PLANS[self._order(place, chunk.first), place in self._ended]
        if ends:
            self._end(place)
        if then != "GOES_ON" and chunk.first and not chunk.rows:
            self._ended.add(place)
            return
        if then == "STAYS_ALONE":
            place = writer, _LATE
            chunk = chunk._replace(first=0, end=self._aborted if chunk.end == "OPEN" else chunk.end)
            self._end(place)  # A full disk may have kept one open.
        if then != "GOES_ON":
            self._open[place] = self._begin(chunk), 0
            if chunk.first:
                self._torn.add(place)
        if chunk.end != "OPEN" and place in self._torn:
            self._torn.remove(place)
            self._ended.add(place)
        handle, _ = self._open.pop(place)
        self._open[place] = handle, chunk.first + chunk.rows
        is_over = True
        try:
            self._write(handle, chunk)
            is_over = chunk.end != "OPEN"
        except errors.MisuseWarning:
            is_over = chunk.end != "OPEN"
            raise
        finally:
            if is_over:
                self._end(place)

    def _order(self, place: Place, first: int) -> Order:
        """Return how far an episode has come, given the index of a step."""
        if place not in self._open:
            return Order.NOT_OPEN
        _, come = self._open[place]
        return Order.SO_FAR if come == first else Order.LESS_FAR if come < first else Order.FURTHER

    def abandon(self, writer: Hashable) -> int:
        """End every open episode of a writer that is gone, and return how many."""
        self._torn = {place for place in self._torn if place[0] != writer}
        self._ended = {place for place in self._ended if place[0] != writer}
        return sum([self._end(place) for place in list(self._open) if place[0] == writer])

    def abandon_all(self) -> int:
        """End every open episode of all writers, and return how many."""
        self._open.clear()
        return sum([self._finish(handle) for handle in self._handles()])

    def _end(self, place: Place) -> bool:
        """End an episode, and return whether it was open."""
        if place not in self._open:
            return False
        was_open = self._finish(self._open[place][0])
        del self._open[place]  # Only now: the disk may be full.
        return was_open

    def _begin(self, chunk: Any) -> Any:
        """Begin an episode for a chunk, and return what the buffer knows it by."""

    @abc.abstractmethod
    def _write(self, handle: Any, chunk: Any, /) -> None:
        """Append the steps of a chunk; if they are refused, those before the first wrong one; then raise a warning."""

    def _finish(self, handle: Any, /) -> bool:
        """End an episode as if its writer had died, and return whether it was open."""
        return False

    def _handles(self) -> Iterable[Any]:
        """Return all episodes of the buffer that may be open."""
        return ()

    def set_policy_version(self, version: int) -> None:
        """Set the learner's policy version; older versions are ignored."""
        known = self.buffer.policy_version
        if known is None or known < version:
            self.buffer.set_policy_version(version)

    def weight(self, options: Mapping[str, Any]) -> SamplingWeight:
        """Return the sampling weight for those options of `draw`; raise TypeError or ArgumentError for wrong ones."""
        return self._weight(self._signature.bind(1, **options).arguments)

    @abc.abstractmethod
    def _weight(self, options: Mapping[str, Any]) -> SamplingWeight:
        """Return the sampling weight; raise ArgumentError for an invalid option."""

    def draw(self, count: int, options: Mapping[str, Any]) -> Any:
        """Return `count` samples, as the buffer's own `sample` does."""
        return self._sample(count, **options)

    def revocable(self, rows: Any) -> contextlib.AbstractContextManager[None]:
        """Return a block that takes the last draw, which was of those rows, back if it raises; of columns alone."""
        return contextlib.nullcontext()

    def set_ticks(self, ticks: int) -> None:
        """Set how many draws a schedule of beta has counted."""
        if isinstance(self.buffer.sampler, prioritized.PrioritizedSampler):
            self.buffer.sampler._note_draws(ticks)

    def are_stored(self, keys: arrays_lib.Ints) -> arrays_lib.Bools:
        """Return whether what has each key is stored [k]; not for buffers of episodes, which have no keys."""
        stored: arrays_lib.Bools = self.buffer._store.are_stored(keys)
        return stored

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
        return int(self.buffer.appended)

    @property
    def sampled(self) -> int:
        """Number of samples ever drawn."""
        return int(self.buffer.get_stats().sampled)
