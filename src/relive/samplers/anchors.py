"""The anchors of a buffer: which rows a sampler may draw, and why not the others.

    READABLE    the window that starts here is stored      writes and evictions
    BARRED      excluded by the user                       set_eligible
    SPENT       drawn the maximum number of times          max_times_sampled

An anchor is eligible if it is readable, not barred and not spent. The flags are those of `kernels.append`, which
sets READABLE as rows come and go; everything else that changes one goes through `set`.
"""

from collections.abc import Callable, Collection

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import duplicates
from relive.kernels import append


class Anchors(duplicates.CopiedWhole):
    """The anchors in the slots of a ring; `len` is how many are eligible.

    Args:
        rows: The arrays of `kernels.append`, of which flags, `changed` and `num` are used; shared, not copied.
        read_rows: Reads rows, as `Storage.read` does.
    """

    def __init__(self, rows: append.Rows, read_rows: Callable[..., dict[str, arrays_lib.Array]]) -> None:
        self.flags: npt.NDArray[np.uint8]
        self.num: arrays_lib.Ints
        self.flags, *_, self._changed, self.num = rows
        self._read_rows = read_rows
        self._num_changes = 0
        self._listed: tuple[tuple[int, ...], arrays_lib.Slots] | None = None

    def __len__(self) -> int:
        """Return how many anchors are eligible."""
        return self.num.item(append.ELIGIBLE)

    @property
    def capacity(self) -> int:
        """Number of slots."""
        return len(self.flags)

    def is_eligible(self, slots: slice | arrays_lib.Slots) -> arrays_lib.Bools:
        """Return whether the anchors in `slots` may be drawn."""
        eligible: arrays_lib.Bools = (self.flags[slots] & append.ELIGIBILITY) == append.READABLE
        return eligible

    def slots(self) -> arrays_lib.Slots:
        """Return the slots of the eligible anchors, in ascending order. O(capacity)."""
        return np.flatnonzero((self.flags & append.ELIGIBILITY) == append.READABLE)

    def listed(self) -> arrays_lib.Slots:
        """Return `slots`, the same array until one of them changes: O(1) until then. It must not be written to."""
        # What `set` does not see: rows that come raise NEXT_KEY. Without one, those that go lower ROWS. Without either,
        # rows can only become eligible, and each counts.
        counts = self.num.item(append.NEXT_KEY), self.num.item(append.ROWS), self.num.item(append.ELIGIBLE)
        version = (self._num_changes, *counts)
        if self._listed is None or self._listed[0] != version:
            self._listed = version, self.slots()
            self._listed[1].flags.writeable = False
        return self._listed[1]

    def read(self, slots: arrays_lib.Slots, fields: Collection[str] | None = None) -> dict[str, arrays_lib.Array]:
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

    def keys(self, slots: arrays_lib.Slots) -> arrays_lib.Keys:
        """Return the keys of the rows in `slots`, which ascend in the order in which the rows were added."""
        return append.keys_of(self.num, slots, len(self.flags))

    def has(self, flag: int, slots: arrays_lib.Slots) -> arrays_lib.Bools:
        """Return whether a flag is set for each of `slots`."""
        has_it: arrays_lib.Bools = (self.flags[slots] & flag) > 0
        return has_it

    def set(self, flag: int, slots: arrays_lib.Slots, is_set: bool = True) -> None:
        """Set or clear a flag that decides on eligibility, of `slots`, which are distinct."""
        before = self.flags.take(slots)
        flags = before | np.uint8(flag) if is_set else before & ~np.uint8(flag)
        was, now = ((each & append.ELIGIBILITY) == append.READABLE for each in (before, flags))
        left, entered = slots[was & ~now], slots[now & ~was]
        if len(self._changed):
            flags[now & ~was & ((before & append.RATED) == 0)] |= append.FRESH
        # From here on, nothing needs memory.
        self.flags[slots] = flags
        self.num[append.ELIGIBLE] += len(entered) - len(left)
        for changed in (left, entered):
            append.note_many(self._changed, self.num, changed)
        self._num_changes += 1

    def changes(self) -> arrays_lib.Slots:
        """Return the slots whose eligibility may have changed since `forget_changes`."""
        count = self.num.item(append.CHANGED)
        return self._changed[:count].copy() if count <= len(self._changed) else np.arange(self.capacity)

    def forget_changes(self) -> None:
        """Take all that `changes` returns for known."""
        self.num[append.CHANGED] = 0

    def suspect_all(self) -> None:
        """Let `changes` return all slots, and list them anew: it is not known which have changed."""
        self.num[append.CHANGED] = len(self._changed) + 1
        self._num_changes += 1

    def recount(self, slots: arrays_lib.Slots) -> None:
        """Recount the eligible anchors among all rows, in `slots`, after their flags were written directly."""
        self._num_changes += 1
        self.num[append.ELIGIBLE] = np.count_nonzero(self.is_eligible(slots))

    def check(self) -> None:
        """Raise CorruptionError if the number of eligible anchors is wrong."""
        if len(self) != len(self.slots()):
            raise errors.CorruptionError(f"{len(self)} anchors are counted as eligible, which is wrong")
