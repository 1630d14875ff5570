"""Links between the rows of a chain: what a timeline needs when its streams are not written in turn.

slot        0   1   2   3   4   5
chain       a0  b0  a1  a2  b1  a3        two streams, in the order in which their rows came
next        2   4   3   5   4   5         itself where the chain ends
previous    0   1   0   2   1   3         itself where it begins, or where what came before was evicted
step        0   0   1   2   1   3
"""

import numpy as np

from relive.common import arrays


class Links:
    """Which row comes before and after each of those in `capacity` slots."""

    def __init__(self, capacity: int) -> None:
        self.step = np.zeros(capacity, np.int64)
        self.next = np.zeros(capacity, np.int64)
        self.previous = np.zeros(capacity, np.int64)

    @property
    def nbytes(self) -> int:
        """Bytes of the links."""
        return self.step.nbytes + self.next.nbytes + self.previous.nbytes

    # Reading.

    def later(self, slots: arrays.Ints, offsets: arrays.Ints) -> arrays.Ints:
        """Answers the rows `offsets` [B] steps after those in `slots` [B]; they must be there."""
        later = slots.copy()
        for k in range(int(offsets.max(initial=0))):
            later = np.where(offsets > k, self.next[later], later)
        return later

    def ahead(self, slots: arrays.Ints, count: int) -> arrays.Ints:
        """Answers the rows from those in `slots` [B] on [B, count]; the last one is repeated."""
        return _chain(self.next, slots, count)

    def behind(self, slots: arrays.Ints, count: int) -> arrays.Ints:
        """Answers the rows up to those in `slots` [B], in time order [B, count]; the earliest one is repeated."""
        return _chain(self.previous, slots, count)[:, ::-1]

    def num_behind(self, slots: arrays.Ints, most: int) -> arrays.Ints:
        """Answers how many rows lie before each of `slots` [B], counted up to `most`."""
        chain = _chain(self.previous, slots, most + 1)
        counts: arrays.Ints = np.count_nonzero(chain[:, 1:] != chain[:, :-1], axis=1)
        return counts

    def earlier(self, slots: arrays.Ints, count: int) -> arrays.Ints:
        """Answers the row `count` steps before each of `slots`, for those of them that have one."""
        for _ in range(count):
            previous = self.previous[slots]
            slots = previous[previous != slots]
        return slots

    # Writing.

    def link(self, slots: arrays.Ints, steps: arrays.Ints, before: arrays.Ints) -> None:
        """Puts rows into `slots` [k], which are those `steps` [k] and follow the rows `before` [k], or themselves."""
        self.step[slots] = steps
        self.next[slots] = slots
        self.previous[slots] = before
        follows = before != slots
        self.next[before[follows]] = slots[follows]

    def link_one(self, slot: int, step: int, before: int) -> None:
        """Does what `link` does for one row, in plain numbers."""
        self.step[slot] = step
        self.next[slot] = slot
        self.previous[slot] = before
        if before != slot:
            self.next[before] = slot

    def cut_off(self, slots: arrays.Ints) -> None:
        """Takes out the rows in `slots` [k]; each is the earliest of its chain, or comes after one that goes too."""
        following = self.next[slots]
        self.previous[following] = following


def _chain(links: arrays.Ints, slots: arrays.Ints, count: int) -> arrays.Ints:
    """Answers `slots` [B] and the rows that the links lead to [B, count]."""
    chain = np.empty((len(slots), count), np.int64)
    for k in range(count):
        chain[:, k] = slots
        slots = links[slots]
    return chain
