"""What a buffer asks of a window: which rows make one element of a batch, and from which rows one may start.

    TransitionWindow   anchor, and up to n steps on        any step whose next observation is known
    SequenceWindow     anchor, and `length` steps on       steps that so many follow; with padding, fewer
    EpisodeWindow      a whole episode                     the first step of an episode that has ended

A window starts at its anchor and lies forward in time, in one episode. Reading changes nothing, and returns arrays of
its own.
"""

import abc
from typing import Any, Generic, TypeAlias, TypeVar

from relive.common import arrays
from relive.common import trees
from relive.persistence import registry
from relive.storage import steps
from relive.windows import batches

Columns: TypeAlias = dict[str, arrays.Array]
Batch = TypeVar("Batch", bound=batches.TransitionBatch | batches.SequenceBatch)


class Window(registry.Configurable, abc.ABC, Generic[Batch]):
    """Which rows make one element of a batch."""

    @property
    def older(self) -> int:
        """How many frames before its own a row is read with, where a row that has them all may start a window.

        -1 where `newly_readable` says from which rows a window may start.
        """
        return -1

    @abc.abstractmethod
    def is_readable(self, store: steps.StepStore, slots: arrays.Ints) -> arrays.Bools:
        """Return from which of the rows in `slots` [k] a window may start."""

    @abc.abstractmethod
    def newly_readable(self, store: steps.StepStore) -> arrays.Ints:
        """Return the rows from which a window may start since a write, and could not before, distinct.

        The store lists the rows that are complete since the write, and the episodes that ended with it.
        """

    @abc.abstractmethod
    def why_not_ready(self, store: steps.StepStore) -> str:
        """Return what is missing while there is no anchor, for an error message."""

    @abc.abstractmethod
    def read(
        self, store: steps.StepStore, slots: arrays.Ints, probabilities: arrays.Floats, weights: arrays.Floats
    ) -> Batch:
        """Return the windows that start in `slots` [B], which must be readable."""


def nested_extras(columns: Columns) -> dict[str, Any]:
    """Return the extras among the columns, by name."""
    extras: Any = trees.nested("extras", columns)
    return dict(extras)
