"""Which anchors may be drawn now, and why not the others: one byte a slot.

    READABLE    the window that starts here is there        set and cleared by what is written and evicted
    BARRED      a user has said no                          set_eligible
    SPENT       it was drawn as often as it may be          max_times_sampled

An anchor is eligible if it is readable, not barred and not spent. The code that changes a fact is told which
anchors became eligible and which ceased to be, so that a sampler can be told.
"""

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib

READABLE, BARRED, SPENT = 1, 2, 4


class Eligibility(arrays_lib.Derived):
    """The facts about the anchors in `capacity` slots; `len` is how many are eligible."""

    _DERIVED = ("_fact",)

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._facts = np.zeros(capacity, np.uint8)
        self._num_eligible = 0
        self._derive()

    def _derive(self) -> None:
        self._fact = self._facts.data

    def __len__(self) -> int:
        """Return how many anchors are eligible."""
        return self._num_eligible

    def is_eligible(self, slots: arrays_lib.Ints) -> arrays_lib.Bools:
        """Return whether the anchors in `slots` may be drawn."""
        return np.equal(self._facts[slots], READABLE)

    def has(self, fact: int, slots: arrays_lib.Ints) -> arrays_lib.Bools:
        """Return of which of `slots` a fact holds."""
        return (self._facts[slots] & np.uint8(fact)).astype(np.bool_)

    def slots(self) -> arrays_lib.Ints:
        """Return where the eligible anchors are, in ascending order."""
        return np.flatnonzero(self.mask())

    def mask(self) -> arrays_lib.Bools:
        """Return of each slot whether its anchor is eligible [capacity]."""
        return np.equal(self._facts, READABLE)

    def set(self, fact: int, slots: arrays_lib.Ints) -> tuple[arrays_lib.Ints, arrays_lib.Ints]:
        """Set that a fact holds of `slots`, which are distinct; return what became eligible and what ceased to be."""
        return self._change(slots, self._facts[slots] | np.uint8(fact))

    def unset(self, fact: int, slots: arrays_lib.Ints) -> tuple[arrays_lib.Ints, arrays_lib.Ints]:
        """Set that a fact does not hold of `slots`, which are distinct; return as `set` does."""
        return self._change(slots, self._facts[slots] & ~np.uint8(fact))

    def forget(self, slots: arrays_lib.Ints) -> arrays_lib.Ints:
        """Forget all about `slots`, which are distinct: other rows come there. Returns what ceased to be eligible."""
        return self._change(slots, np.zeros(len(slots), np.uint8))[1]

    def restore(self, slots: arrays_lib.Ints, facts: npt.NDArray[np.uint8]) -> None:
        """Set which facts hold of `slots` [k], of which nothing is known yet."""
        self._change(slots, facts)

    # Of one anchor, in plain numbers: `relive bench --workload add`.

    def set_readable(self, slot: int) -> bool:
        """Set that the window in `slot` is there; return whether the anchor became eligible."""
        before = self._fact[slot]
        self._fact[slot] = before | READABLE
        became = before == 0
        self._num_eligible += became
        return became

    def unset_readable(self, slot: int) -> bool:
        """Set that it is not there; return whether the anchor ceased to be eligible."""
        before = self._fact[slot]
        self._fact[slot] = before & ~READABLE
        ceased = before == READABLE
        self._num_eligible -= ceased
        return ceased

    def forget_one(self, slot: int) -> bool:
        """Forget all about `slot`; return whether the anchor ceased to be eligible."""
        ceased = self._fact[slot] == READABLE
        self._fact[slot] = 0
        self._num_eligible -= ceased
        return ceased

    # Of `count` anchors side by side: `relive bench --workload extend`.

    def all_are(self, facts: int, first: int, count: int) -> bool:
        """Return whether just those facts hold of each anchor from `first` on."""
        if count == 1:
            return self._fact[first] == facts
        return self._fact[first : first + count].tobytes() == bytes((facts,)) * count

    def enter(self, first: int, count: int) -> None:
        """Make anchors eligible of which no fact holds."""
        self._facts[first : first + count] = READABLE
        self._num_eligible += count

    def leave(self, first: int, count: int) -> None:
        """Forget all about anchors that are eligible."""
        self._facts[first : first + count] = 0
        self._num_eligible -= count

    def _change(self, slots: arrays_lib.Ints, after: npt.NDArray[np.uint8]) -> tuple[arrays_lib.Ints, arrays_lib.Ints]:
        was = self._facts[slots] == READABLE
        self._facts[slots] = after
        now = after == READABLE
        entered, left = slots[now & ~was], slots[was & ~now]
        self._num_eligible += len(entered) - len(left)
        return entered, left

    def check(self) -> None:
        """Raise CorruptionError if the number of eligible anchors is not what there is."""
        if self._num_eligible != np.count_nonzero(self._facts == READABLE):
            raise errors.CorruptionError(f"{self._num_eligible} anchors are counted as eligible, which is wrong")
