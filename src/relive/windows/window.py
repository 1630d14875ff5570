"""The Window interface: which rows make one element of a batch, and where a window may start.

    TransitionWindow   anchor, and up to n steps on        any step whose next observation is known
    SequenceWindow     anchor, and `length` steps on       steps that that many follow; with padding, fewer
    EpisodeWindow      a whole episode                     the first step of an episode that has ended

A window starts at its anchor and extends forward in time within one episode. Reading changes nothing and returns fresh
arrays.
"""

import abc
from typing import Any, Generic, TypeAlias, TypeVar

from relive.common import arrays
from relive.common import trees
from relive.persistence import registry
from relive.schema import schema as schema_lib
from relive.storage import steps
from relive.windows import batches

Columns: TypeAlias = dict[str, arrays.Array]
ROW_BYTES = 8
"""Reading a row takes at least that much memory: that of its slot."""
Batch = TypeVar("Batch", bound=batches.KeyedBatch[Any])


class Window(registry.Configurable, abc.ABC, Generic[Batch]):
    """Decides which rows make one element of a batch."""

    @property
    def older(self) -> int:
        """Number of older frames that a row is read with; a row that has them all may start a window.

        -1 if `newly_readable` decides which rows may start a window.
        """
        return -1

    @abc.abstractmethod
    def is_readable(self, store: steps.StepStore, slots: arrays.Ints) -> arrays.Bools:
        """Return whether a window may start at each of the rows in `slots` [k]."""

    @abc.abstractmethod
    def newly_readable(self, store: steps.StepStore) -> arrays.Ints:
        """Return the distinct rows at which a window may start since the last write, and could not before.

        The store lists the rows completed and the episodes ended by the write.
        """

    @abc.abstractmethod
    def why_not_ready(self, store: steps.StepStore) -> str:
        """Return why there is no anchor yet, for an error message."""

    def check_room(self, schema: schema_lib.Schema | None) -> None:
        """Raise ArgumentError if memory does not hold a single window of such rows; None if they are not known yet.

        By default, windows are small.
        """

    @abc.abstractmethod
    def read(
        self, store: steps.StepStore, slots: arrays.Ints, probabilities: arrays.Floats, weights: arrays.Floats
    ) -> Batch:
        """Return the windows that start in `slots` [B], which must be readable."""


def nested_extras(columns: Columns) -> dict[str, Any]:
    """Return the extras among the columns, by name."""
    extras: Any = trees.nested("extras", columns)
    return dict(extras)
