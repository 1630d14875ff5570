"""SequenceWindow: runs of consecutive steps."""

import dataclasses

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.kernels import append
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.storage import step_table
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
        pad: Whether a window may extend past the end of its episode. Steps past the end are zeros and masked. If
            `stride` is at most `length`, every step whose next observation is known is in some window then, as long
            as its episode is stored from the start.
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
    def rule(self) -> step_table.Rule:
        """Every stride-th step, once enough steps after it are complete; with padding, step 0 needs none."""
        lag = max(self.length - self.stride, 0) if self.pad else self.length - 1
        return step_table.Rule(0, lag, self.stride, int(self.pad))

    def why_not_ready(self, store: steps.StepStore) -> str:
        """Return why there is no anchor yet, and how long the longest episode is."""
        if self.pad:
            return "no step with a known next observation is stored at the start of an episode"
        slots = store.alive_slots()
        lengths = store.complete_steps(store.episodes_of(slots)) - store.steps_of(slots)
        longest = np.max(lengths, initial=0)
        if longest >= self.length:
            return f"no sequence of {self.length} steps starts at a multiple of stride = {self.stride}"
        return f"a sequence has {self.length} steps and the longest episode is {longest}"

    def _read(
        self,
        store: steps.StepStore,
        slots: arrays_lib.Ints,
        probabilities: arrays_lib.Floats,
        weights: arrays_lib.Floats,
    ) -> batches.SequenceBatch:
        """Return the sequences from `slots` [B]."""
        count, length, reader = len(slots), self.length, store.reader
        rows, span, last = store.follow(slots, length)
        offsets = np.arange(length + 1)
        mask = offsets[:-1] < span[:, np.newaxis]
        columns = reader.read(np.ascontiguousarray(rows.T), reader.other_paths)
        links = store.following.take(last)
        places = np.arange(count)
        window_rows = np.empty((count, length + 1), np.int64)
        window_rows[:, :-1] = rows.T
        window_rows[:, -1] = 0
        window_rows[places, span] = np.maximum(links, 0)
        observations = reader.observations(window_rows)
        if span.min(initial=length) < length:
            clear(columns, ~mask)
            clear(observations, offsets > span[:, np.newaxis])
        (where,) = (links < 0).nonzero()
        if len(where):
            store.write_final(observations, (where, span[where]), last[where])
        terminated, truncated = np.zeros_like(mask), np.zeros_like(mask)
        ends = store.episodes[append.END][store.episodes_of(last[where])]
        terminated[where, span[where] - 1] = ends == append.TERMINATED
        truncated[where, span[where] - 1] = ends == append.TRUNCATED
        (goes_on,) = (links >= 0).nonzero()
        truncated[goes_on, span[goes_on] - 1] = store.is_left_out(links[goes_on])
        return batches.SequenceBatch(
            observation=reader.nest_observation(observations),
            action=reader.nest_action(columns),
            reward=columns["reward"],
            terminated=terminated,
            truncated=truncated,
            mask=mask,
            is_burn_in=mask & (offsets[:-1] < self.burn_in),
            start_step=store.steps_of(slots),
            keys=store.keys(slots),
            probabilities=probabilities,
            weights=weights,
            extras=reader.nest_extras(columns),
        )


def clear(columns: window.Columns, where: arrays_lib.Bools) -> None:
    """Write zeros where `where` [B, k] of every column [B, k, *shape]."""
    for column in columns.values():
        column[where] = np.zeros((), column.dtype)
