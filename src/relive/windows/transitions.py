"""TransitionWindow: n-step transitions with optional frame stacks."""

import dataclasses
from typing import Literal, TypeAlias

import numpy as np

from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.kernels import windows
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.storage import step_table
from relive.storage import steps
from relive.windows import batches
from relive.windows import returns
from relive.windows import window

StackPadding: TypeAlias = Literal["zeros", "first"]
_FAR = 32


@dataclasses.dataclass(frozen=True)
class TransitionWindow(window.Window[batches.TransitionBatch]):
    """An n-step transition, with optional frame stacks as observations.

    Attributes:
        n_step: Maximum number of steps in a window.
        gamma: The discount factor.
        frame_stack: Number of frames in an observation. An anchor whose older frames were evicted can no longer be
            read.
        stack_padding: Padding before the first frame of an episode: "zeros", or repetitions of the "first" frame.
        action_chunks: Whether a batch has the actions of all steps of a window.
    """

    n_step: int = 1
    gamma: float = 0.99
    frame_stack: int = 1
    stack_padding: StackPadding = "zeros"
    action_chunks: bool = False

    def __post_init__(self) -> None:
        validation.positive_int("n_step", self.n_step)
        validation.discount("gamma", self.gamma)
        validation.positive_int("frame_stack", self.frame_stack)
        validation.require_choice("stack_padding", self.stack_padding, ("zeros", "first"))
        validation.boolean("action_chunks", self.action_chunks)

    def check_room(self, schema: schema_lib.Schema | None) -> None:
        """Raise ArgumentError if memory does not hold a single frame stack, or a single chunk of actions."""
        fields = [] if schema is None else [schema.fields[path] for path in schema_lib.paths_of(schema, "observation")]
        nbytes = max(window.ROW_BYTES, sum(field.nbytes for field in fields))
        name = "schema" if self.frame_stack == 1 else "frame_stack"
        memory.check_room(name, self.frame_stack, nbytes, "frames")
        if self.action_chunks:
            memory.check_room("n_step", self.n_step, _action_bytes(schema), "actions")

    @property
    def rule(self) -> step_table.Rule:
        """Any complete step whose older frames are stored."""
        return step_table.Rule(older=self.frame_stack - 1)

    def why_not_ready(self, store: steps.StepStore) -> str:
        """Return why there is no anchor yet, for an error message."""
        if self.frame_stack > 1:
            return f"no step with a known next observation and all its {self.frame_stack} frames is stored"
        return "no step with a known next observation is stored"

    def _read(
        self,
        store: steps.StepStore,
        slots: arrays_lib.Ints,
        probabilities: arrays_lib.Floats,
        weights: arrays_lib.Floats,
    ) -> batches.TransitionBatch:
        """Return the transitions from `slots` [B]."""
        reader = store.reader
        most = self.n_step if self.n_step <= _FAR else self._horizon(store, slots)
        powers = returns.powers(self.gamma, most, returns.FLOAT64)
        discounts = returns.powers(self.gamma, most, reader.reward_dtype)
        run = store.kernels.transitions(store.rows, slots, most, reader.rewards, powers, discounts)
        return self._assembled(store, slots, run, probabilities, weights)

    def _horizon(self, store: steps.StepStore, slots: arrays_lib.Ints) -> int:
        """Return how many steps to look at: at most the number stored, for large n_step."""
        left = store.lengths_of(store.episodes_of(slots)) - store.steps_of(slots)
        return min(self.n_step, int(left.max(initial=1)))

    def _assembled(
        self,
        store: steps.StepStore,
        slots: arrays_lib.Ints,
        run: windows.Transitions,
        probabilities: arrays_lib.Floats,
        weights: arrays_lib.Floats,
    ) -> batches.TransitionBatch:
        """Return the transitions from `slots` [B], given the rows of each."""
        reader = store.reader
        span, last, link, is_terminal, reward, discount, keys = run
        if self.frame_stack == 1:
            columns = reader.read(slots, reader.unrewarded_paths)
            next_columns = store.next_observations(last, link)
        else:
            of_rows = store.steps_of(slots)
            frames = store.look_back(slots, of_rows)
            columns = reader.observations(frames.T)
            self._pad(columns, of_rows)
            columns |= reader.read(slots, reader.other_paths)
            if last is not slots:
                frames = store.look_back(last, of_rows + (span - 1))
            next_columns = reader.observations(np.concatenate([frames[1:], np.maximum(link, 0)[np.newaxis]]).T)
            (behind,) = (link < 0).nonzero()
            if len(behind):
                store.write_final(next_columns, (behind, -1), last[behind])
            self._pad(next_columns, of_rows + span)
        if self.action_chunks:
            columns |= self._chunks(store, slots, span)
        return batches.TransitionBatch(
            observation=reader.nest_observation(columns),
            action=reader.nest_action(columns),
            reward=reward,
            next_observation=reader.nest_observation(next_columns),
            next_discount=discount,
            is_terminal=is_terminal,
            steps=span,
            keys=keys,
            probabilities=probabilities,
            weights=weights,
            extras=reader.nest_extras(columns) if reader.has_extras else {},
        )

    def _chunks(self, store: steps.StepStore, slots: arrays_lib.Ints, span: arrays_lib.Ints) -> window.Columns:
        """Return the actions of `span` [B] steps from `slots` [B], the last one repeated [B, n_step, ...]."""
        rows = store.follow(slots, int(span.max(initial=1))).slots
        with memory.room_for("n_step", len(slots) * self.n_step, _action_bytes(store.schema), "actions"):
            offsets = np.minimum(np.arange(self.n_step), span[:, np.newaxis] - 1)
            chunks = rows[offsets, np.arange(len(slots))[:, np.newaxis]]
            columns: window.Columns = store.reader.read(chunks, store.reader.action_paths)
        return columns

    def _pad(self, columns: window.Columns, of_rows: arrays_lib.Ints) -> None:
        """Write the padding before the first frame into the stacks of steps [B], which hold the first frame already."""
        if self.stack_padding == "first":
            return
        (early,) = (of_rows < self.frame_stack - 1).nonzero()
        if len(early):
            is_before = np.arange(self.frame_stack)[::-1] > of_rows[early, np.newaxis]
            rows, frames = is_before.nonzero()
            for column in columns.values():
                column[early[rows], frames] = np.zeros((), column.dtype)


def _action_bytes(schema: schema_lib.Schema | None) -> int:
    """Return how much memory an action of a chunk takes, at least."""
    fields = [] if schema is None else [schema.fields[path] for path in schema_lib.paths_of(schema, "action")]
    return max(window.ROW_BYTES, sum(field.nbytes for field in fields))
