"""The anchors of a buffer: which rows a sampler may draw, and why not the others.

    READABLE    the window that starts here is stored      writes and evictions
    BARRED      excluded by the user                       set_eligible
    SPENT       drawn the maximum number of times          max_times_sampled

An anchor is eligible if it is readable, not barred and not spent. The flags are in the facts of `kernels.append`, which
sets READABLE as rows come and go; everything else that changes a flag goes through `set` and `unset`.
"""

from collections.abc import Collection
from typing import Protocol

import numpy as np

from relive import errors
from relive.common import arrays
from relive.kernels import append


class Read(Protocol):
    """Reads rows, as `Storage.read` does."""

    def __call__(self, slots: arrays.Slots, fields: Collection[str] | None = None, /) -> dict[str, arrays.Array]:
        """Return the rows in `slots` [...] as columns by path."""
        ...


class Anchors:
    """The anchors in the slots of a ring; `len` is how many are eligible.

    Args:
        facts: The flags of each row, as in `kernels.append`; shared, not copied.
        num: The numbers of the ring, shared too.
        read_rows: Reads the rows.
    """

    def __init__(self, facts: arrays.Ints, num: arrays.Ints, read_rows: Read) -> None:
        self.facts, self.num = facts, num
        self._read_rows = read_rows
        self._num_changes = 0
        self._listed: tuple[tuple[int, int], arrays.Slots] | None = None

    def __len__(self) -> int:
        """Return how many anchors are eligible."""
        return self.num.item(append.ELIGIBLE)

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return len(self.facts)

    def is_eligible(self, slots: arrays.Slots) -> arrays.Bools:
        """Return whether the anchors in `slots` may be drawn."""
        eligible: arrays.Bools = (self.facts[slots] & append.ELIGIBILITY) == append.READABLE
        return eligible

    def are_eligible(self, slots: arrays.Slots) -> bool:
        """Return whether all anchors in `slots` may be drawn."""
        return b"\0" not in append.are_eligible(self.facts.take(slots))

    def slots(self) -> arrays.Slots:
        """Return the slots of the eligible anchors, in ascending order. O(capacity)."""
        return np.flatnonzero((self.facts & append.ELIGIBILITY) == append.READABLE)

    def listed(self) -> arrays.Slots:
        """Return `slots` cached and read-only: O(1) unless something changed since the last call."""
        version = (self._num_changes, self.num.item(append.NEXT_KEY))
        if self._listed is None or self._listed[0] != version:
            self._listed = version, self.slots()
        return self._listed[1]

    def read(self, slots: arrays.Slots, fields: Collection[str] | None = None) -> dict[str, arrays.Array]:
        """Return fresh copies of the rows in `slots` [...] as columns by path, of shape slots.shape + field.shape.

        Args:
            slots: Slots of rows that are stored, eligible or not.
            fields: The paths of the fields, such as "reward" or "extras/label"; None for all.

        Raises:
            NotReadyError: No step was added yet.
            OutOfRangeError: A slot is not in [0, capacity).
            ArgumentError: The schema has no such field.
        """
        return self._read_rows(slots, fields)

    def has(self, flag: int, slots: arrays.Slots) -> arrays.Bools:
        """Return whether a flag is set for each of `slots`."""
        has_it: arrays.Bools = (self.facts[slots] & flag) > 0
        return has_it

    def set(self, flag: int, slots: arrays.Slots) -> tuple[arrays.Slots, arrays.Slots]:
        """Set a flag of `slots`, which are distinct; return what became eligible and what ceased to be."""
        return self._change(slots, self.facts[slots] | flag)

    def unset(self, flag: int, slots: arrays.Slots) -> tuple[arrays.Slots, arrays.Slots]:
        """Clear a flag of `slots`, which are distinct; return as `set` does."""
        return self._change(slots, self.facts[slots] & ~flag)

    def _change(self, slots: arrays.Slots, facts: arrays.Ints) -> tuple[arrays.Slots, arrays.Slots]:
        was = self.is_eligible(slots)
        self.facts[slots] = facts
        now = self.is_eligible(slots)
        entered, left = slots[now & ~was], slots[was & ~now]
        self.num[append.ELIGIBLE] += len(entered) - len(left)
        self._num_changes += 1
        return entered, left

    def recount(self, slots: arrays.Slots) -> None:
        """Recount the eligible anchors among all rows, in `slots`, after their flags were written directly."""
        self._num_changes += 1
        self.num[append.ELIGIBLE] = np.count_nonzero(self.is_eligible(slots))

    def check(self) -> None:
        """Raise CorruptionError if the number of eligible anchors is wrong."""
        if len(self) != len(self.slots()):
            raise errors.CorruptionError(f"{len(self)} anchors are counted as eligible, which is wrong")
