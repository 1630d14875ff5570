"""The Window interface: which rows make one element of a batch, and where a window may start.

    TransitionWindow   anchor, and up to n steps on        any step whose next observation is known
    SequenceWindow     anchor, and `length` steps on       steps that that many follow; with padding, fewer

A window starts at its anchor and extends forward in time within one episode. Reading changes nothing and returns fresh
arrays.
"""

import abc
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

from relive.common import arrays as arrays_lib
from relive.persistence import registry
from relive.schema import schema as schema_lib
from relive.storage import step_table
from relive.storage import steps
from relive.windows import batches

Columns: TypeAlias = dict[str, arrays_lib.Array]
ROW_BYTES = 8
"""Reading a row takes at least that much memory: that of its slot."""
Batch = TypeVar("Batch", bound=batches.KeyedBatch[Any])


class Window(registry.Configurable, abc.ABC, Generic[Batch]):
    """Decides which rows make one element of a batch."""

    compared_paths: ClassVar[tuple[str, ...]] = ()
    """The fields of the observation that show whether a step follows the one before; all if empty."""

    @property
    @abc.abstractmethod
    def rule(self) -> step_table.Rule:
        """At which rows a window may start, in the numbers of `kernels.append`."""

    @abc.abstractmethod
    def why_not_ready(self, store: steps.StepStore) -> str:
        """Return why there is no anchor yet, for an error message."""

    def check_room(self, schema: schema_lib.Schema | None) -> None:
        """Raise ArgumentError if memory does not hold a single window of such rows; None if they are not known yet.

        By default, windows are small.
        """

    @abc.abstractmethod
    def _read(
        self,
        store: steps.StepStore,
        slots: arrays_lib.Ints,
        probabilities: arrays_lib.Floats,
        weights: arrays_lib.Floats,
    ) -> Batch:
        """Return the windows that start in `slots` [B], which must be readable."""
