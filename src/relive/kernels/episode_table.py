"""What is known of each episode that still has rows, or is still open: a few numbers, in columns by handle.

A handle is a small number that an episode has while it is in the table; afterwards another one gets it.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays

OPEN, TERMINATED, TRUNCATED = 0, 1, 2
"""How an episode ended; OPEN if it did not yet."""

_FIRST_ROOM = 16


class EpisodeTable:
    """Episodes by handle.

    Attributes:
        length: Steps so far, evicted ones too [handles].
        complete: Steps whose next observation is known, or does not matter since the episode terminated [handles].
        end: OPEN, TERMINATED or TRUNCATED [handles].
        has_tail: Whether the observation after the newest step is known [handles].
        first_key: The key of step 0 [handles].
        stream: Which stream it is of [handles].
    """

    def __init__(self) -> None:
        self.length: arrays.Ints = np.zeros(0, np.int64)
        self.complete: arrays.Ints = np.zeros(0, np.int64)
        self.first_key: arrays.Ints = np.zeros(0, np.int64)
        self.stream: arrays.Ints = np.zeros(0, np.int64)
        self.end: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.has_tail: arrays.Bools = np.zeros(0, np.bool_)
        self._free: arrays.Ints = np.zeros(0, np.int64)
        self._num_free = 0

    def __len__(self) -> int:
        """Answers how many episodes are in the table."""
        return self.room - self._num_free

    @property
    def room(self) -> int:
        """How many handles there are; grows by doubling."""
        return len(self.length)

    def claim(self, first_keys: arrays.Ints, streams: arrays.Ints) -> arrays.Ints:
        """Answers a handle [k] for each new episode; they are open and have no step yet."""
        count = len(first_keys)
        while self._num_free < count:
            self._grow()
        self._num_free -= count
        handles = self._free[self._num_free : self._num_free + count][::-1].copy()
        self.length[handles] = 0
        self.complete[handles] = 0
        self.end[handles] = OPEN
        self.has_tail[handles] = False
        self.first_key[handles] = first_keys
        self.stream[handles] = streams
        return handles

    def claim_one(self, first_key: int, stream: int) -> int:
        """Answers a handle for a new episode; it is open and has no step yet."""
        if not self._num_free:
            self._grow()
        self._num_free -= 1
        handle = int(self._free[self._num_free])
        self.length[handle] = 0
        self.complete[handle] = 0
        self.end[handle] = OPEN
        self.has_tail[handle] = False
        self.first_key[handle] = first_key
        self.stream[handle] = stream
        return handle

    def release_one(self, handle: int) -> None:
        """Takes an episode out."""
        self._free[self._num_free] = handle
        self._num_free += 1

    def release(self, handles: arrays.Ints) -> None:
        """Takes episodes out; `handles` are distinct."""
        self._free[self._num_free : self._num_free + len(handles)] = handles
        self._num_free += len(handles)

    def handles(self) -> arrays.Ints:
        """Answers the handles in use, in ascending order."""
        used = np.ones(self.room, np.bool_)
        used[self._free[: self._num_free]] = False
        return np.flatnonzero(used)

    def clear(self) -> None:
        """Takes every episode out."""
        self._free = np.arange(self.room)[::-1].copy()
        self._num_free = self.room

    def check(self) -> None:
        """Raises CorruptionError if the free handles are not distinct, or a number of an episode cannot be."""
        free = self._free[: self._num_free]
        if len(np.unique(free)) != self._num_free:
            raise errors.CorruptionError("a free episode handle is in the list twice")
        used = self.handles()
        if np.any(self.complete[used] > self.length[used]) or np.any(self.complete[used] < self.length[used] - 1):
            raise errors.CorruptionError("an episode has more than one step without a next observation")

    def _grow(self) -> None:
        room = self.room
        more = max(room, _FIRST_ROOM)
        self.length, self.complete = _longer(self.length, more), _longer(self.complete, more)
        self.first_key, self.stream = _longer(self.first_key, more), _longer(self.stream, more)
        self.end, self.has_tail = _longer(self.end, more), _longer(self.has_tail, more)
        self._free = _longer(self._free, more)
        self.release(np.arange(room, room + more)[::-1])


def _longer(column: npt.NDArray[Any], more: int) -> npt.NDArray[Any]:
    """Answers a copy of the column with that many zeros behind it."""
    return np.concatenate([column, np.zeros(more, column.dtype)])
