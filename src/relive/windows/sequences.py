"""SequenceWindow: runs of consecutive steps; EpisodeWindow: whole episodes."""

import dataclasses

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import trees
from relive.common import validation
from relive.kernels import append
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.storage import steps
from relive.windows import batches
from relive.windows import window


@dataclasses.dataclass(frozen=True)
class SequenceWindow(window.Window[batches.SequenceBatch]):
    """A window of a fixed number of consecutive steps.

    Attributes:
        length: Number of steps.
        burn_in: Number of leading steps that are marked as burn-in, not for the loss.
        stride: Anchors are every stride-th step of an episode.
        pad: Whether a window may extend past the end of its episode, so that every step is in some window. Steps past
            the end are zeros and masked.
    """

    length: int
    burn_in: int = 0
    stride: int = 1
    pad: bool = False

    def __post_init__(self) -> None:
        validation.positive_int("length", self.length)
        validation.positive_int("stride", self.stride)
        validation.non_negative_int("burn_in", self.burn_in)
        validation.boolean("pad", self.pad)
        if self.burn_in >= self.length:
            raise errors.ArgumentError(f"burn_in must be below length = {self.length}, got {self.burn_in}")

    def check_room(self, schema: schema_lib.Schema | None) -> None:
        """Raise ArgumentError if memory does not hold a single sequence."""
        nbytes = window.ROW_BYTES if schema is None else max(window.ROW_BYTES, schema.nbytes)
        memory.check_room("length", self.length, nbytes)

    @property
    def _lag(self) -> int:
        """How many steps must be complete after the anchor of a window, unless the anchor is step 0."""
        return max(self.length - self.stride, 0) if self.pad else self.length - 1

    def is_readable(self, store: steps.StepStore, slots: arrays.Ints) -> arrays.Bools:
        """Return whether each step is an anchor followed by enough complete steps [k]."""
        of_rows, complete = store.steps_of(slots), _num_complete(store, store.episodes_of(slots))
        readable: arrays.Bools = of_rows + self._lag < complete
        if self.pad:
            readable |= (of_rows == 0) & (complete > 0)
        readable &= of_rows % self.stride == 0
        return readable

    def newly_readable(self, store: steps.StepStore) -> arrays.Ints:
        """Return the rows at that distance before the newly complete ones, and first steps where those count."""
        count = store.num_view[append.COMPLETED]
        store.num_view[append.COMPLETED] = 0
        found = np.empty(count, np.int64)
        return found[: store.advance(count, self._lag, self.stride, self.pad, found)]

    def why_not_ready(self, store: steps.StepStore) -> str:
        """Return why there is no anchor yet, and how long the longest episode is."""
        if self.pad:
            return "no step with a known next observation is stored at the start of an episode"
        slots = store.alive_slots()
        lengths = _num_complete(store, store.episodes_of(slots)) - store.steps_of(slots)
        longest = np.max(lengths, initial=0)
        if longest >= self.length:
            return f"no sequence of {self.length} steps starts at a multiple of stride = {self.stride}"
        return f"a sequence has {self.length} steps and the longest episode is {longest}"

    def read(
        self, store: steps.StepStore, slots: arrays.Ints, probabilities: arrays.Floats, weights: arrays.Floats
    ) -> batches.SequenceBatch:
        """Return the sequences from `slots` [B]."""
        return _read(store, slots, self.length, self.burn_in, probabilities, weights)


@dataclasses.dataclass(frozen=True)
class EpisodeWindow(window.Window[batches.SequenceBatch]):
    """A whole episode, once it has ended and while all of it is stored; padded to the longest in the batch."""

    def is_readable(self, store: steps.StepStore, slots: arrays.Ints) -> arrays.Bools:
        """Return whether each step is the first of an ended episode [k]."""
        episodes = store.episodes_of(slots)
        readable: arrays.Bools = store.episodes[append.END][episodes] != append.OPEN
        readable &= _num_complete(store, episodes) > 0
        readable &= store.steps_of(slots) == 0
        return readable

    def newly_readable(self, store: steps.StepStore) -> arrays.Ints:
        """Return the first rows of the episodes that have ended."""
        store.num_view[append.COMPLETED] = 0
        oldest = store.episodes[append.OLDEST][store.ended]
        oldest = oldest[oldest >= 0]
        return np.unique(oldest[self.is_readable(store, oldest)])

    def why_not_ready(self, store: steps.StepStore) -> str:
        """Return why there is no anchor yet."""
        return "no episode has ended of which every step is stored"

    def read(
        self, store: steps.StepStore, slots: arrays.Ints, probabilities: arrays.Floats, weights: arrays.Floats
    ) -> batches.SequenceBatch:
        """Return the episodes from `slots` [B]."""
        longest = int(_num_complete(store, store.episodes_of(slots)).max(initial=0))
        return _read(store, slots, longest, 0, probabilities, weights)


def _num_complete(store: steps.StepStore, episodes: arrays.Ints) -> arrays.Ints:
    """Return how many complete steps each of those episodes has."""
    is_complete = store.is_known(episodes) | (store.episodes[append.END][episodes] == append.TERMINATED)
    complete: arrays.Ints = store.lengths_of(episodes) - ~is_complete
    return complete


def _read(
    store: steps.StepStore,
    slots: arrays.Ints,
    length: int,
    burn_in: int,
    probabilities: arrays.Floats,
    weights: arrays.Floats,
) -> batches.SequenceBatch:
    """Return `length` steps from each of `slots` [B], padded."""
    count, starts = len(slots), store.steps_of(slots)
    rows, span, last, fact = store.follow(slots, max(length, 1))
    rows = rows[:length]
    offsets = np.arange(length + 1)
    mask = offsets[:-1] < span[:, np.newaxis]
    columns = store.read(np.ascontiguousarray(rows.T), store.other_paths)
    links = fact >> append.LINK
    places = np.arange(count)
    window_rows = np.empty((count, length + 1), np.int64)
    window_rows[:, :-1] = rows.T
    window_rows[:, -1] = 0
    window_rows[places, span] = np.maximum(links, 0)
    observations = store.observations(window_rows)
    if span.min(initial=length) < length:
        clear(columns, ~mask)
        clear(observations, offsets > span[:, np.newaxis])
    (where,) = (links < 0).nonzero()
    if len(where):
        store.put_behind(observations, (where, span[where]), last[where])
    terminated, truncated = np.zeros_like(mask), np.zeros_like(mask)
    ends = store.episodes[append.END][store.episodes_of(last[where])]
    terminated[where, span[where] - 1] = ends == append.TERMINATED
    truncated[where, span[where] - 1] = ends == append.TRUNCATED
    return batches.SequenceBatch(
        observation=trees.nested("observation", observations),
        action=trees.nested("action", columns),
        reward=columns["reward"],
        terminated=terminated,
        truncated=truncated,
        mask=mask,
        is_burn_in=mask & (offsets[:-1] < burn_in),
        start_step=starts,
        keys=store.keys(slots),
        probabilities=probabilities,
        weights=weights,
        extras=window.nested_extras(columns),
    )


def clear(columns: window.Columns, where: arrays.Bools) -> None:
    """Write zeros where `where` [B, k] of every column [B, k, *shape]."""
    for column in columns.values():
        column[where] = np.zeros((), column.dtype)
