"""What is known of each episode that still has rows, or is still open: a few numbers, in columns by handle.

A handle is a small number that an episode has while it is in the table; afterwards another one gets it.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib

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
        self.length: arrays_lib.Ints = np.zeros(0, np.int64)
        self.complete: arrays_lib.Ints = np.zeros(0, np.int64)
        self.first_key: arrays_lib.Ints = np.zeros(0, np.int64)
        self.stream: arrays_lib.Ints = np.zeros(0, np.int64)
        self.end: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)
        self.has_tail: arrays_lib.Bools = np.zeros(0, np.bool_)
        self._free: arrays_lib.Ints = np.zeros(0, np.int64)
        self._num_free = 0

    def __len__(self) -> int:
        """Return how many episodes are in the table."""
        return self.room - self._num_free

    @property
    def room(self) -> int:
        """How many handles there are; grows by doubling."""
        return len(self.length)

    def claim(self, first_keys: arrays_lib.Ints, streams: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return a handle [k] for each new episode; they are open and have no step yet."""
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
        """Return a handle for a new episode; it is open and have no step yet."""
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
        """Take an episode out."""
        self._free[self._num_free] = handle
        self._num_free += 1

    def release(self, handles: arrays_lib.Ints) -> None:
        """Take episodes out; `handles` are distinct."""
        self._free[self._num_free : self._num_free + len(handles)] = handles
        self._num_free += len(handles)

    def handles(self) -> arrays_lib.Ints:
        """Return the handles in use, in ascending order."""
        used = np.ones(self.room, np.bool_)
        used[self._free[: self._num_free]] = False
        return np.flatnonzero(used)

    def clear(self) -> None:
        """Take every episode out."""
        self._free = np.arange(self.room)[::-1].copy()
        self._num_free = self.room

    def check(self) -> None:
        """Raise CorruptionError if the free handles are not distinct, or a number of an episode cannot be."""
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
    """Return a copy of the column with that many zeros behind it."""
    return np.concatenate([column, np.zeros(more, column.dtype)])


class OpenEpisodes(arrays_lib.Derived):
    """Those of `streams` streams.

    A turn, a row of every stream, is one number more to remember. It is counted before anything of this is read.

    Args:
        streams: How many streams there are.
        table: Where episodes begin and end.

    Attributes:
        handle: [streams].
        knows_next: [streams]; True also where no episode is open.
        count: How many are open.
        one_handle: To read and write single numbers of `handle`: twice as fast as the array.
    """

    _DERIVED = ("one_handle", "_one_length", "_one_knows_next", "_one_last_key")

    def __init__(self, streams: int, table: EpisodeTable) -> None:
        self._streams = streams
        self._table = table
        self.count = 0
        self.handle: arrays_lib.Ints = np.full(streams, -1, np.int64)
        self.knows_next: arrays_lib.Bools = np.ones(streams, np.bool_)
        self._length: arrays_lib.Ints = np.zeros(streams, np.int64)
        self._last_key: arrays_lib.Ints = np.full(streams, -1, np.int64)
        self._num_turns = 0
        self._is_table_behind = False
        self._derive()

    def _derive(self) -> None:
        self.one_handle = self.handle.data
        self._one_length, self._one_knows_next = self._length.data, self.knows_next.data
        self._one_last_key = self._last_key.data

    # Reading.

    @property
    def length(self) -> arrays_lib.Ints:
        """The steps of each so far [streams]."""
        if self._num_turns:
            self._catch_up()
        return self._length

    @property
    def last_key(self) -> arrays_lib.Ints:
        """The key of the newest row of each [streams]."""
        if self._num_turns:
            self._catch_up()
        return self._last_key

    @property
    def table(self) -> EpisodeTable:
        """The table, brought up to date."""
        if self._is_table_behind:
            self._settle()
        return self._table

    def newest_of_one(self, stream: int) -> tuple[int, int, int, bool]:
        """Return handle, length, key of the newest row and whether what comes next is known, of one stream."""
        if self._num_turns:
            self._catch_up()
        return (
            self.one_handle[stream],
            self._one_length[stream],
            self._one_last_key[stream],
            bool(self._one_knows_next[stream]),
        )

    def waiting(self, streams: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the keys of the rows that wait for their next observation, among the newest of `streams` [k]."""
        return self.last_key[streams[~self.knows_next[streams]]]

    def all_know_next(self) -> bool:
        """Return whether no row waits for its next observation."""
        return bool(self._one_knows_next[0]) if self._streams == 1 else arrays_lib.all_set(self.knows_next)

    # Writing.

    def begin(self, streams: arrays_lib.Ints, keys: arrays_lib.Ints) -> None:
        """Begin an episode in each of `streams` [k] that has none open, with the row of that key [k]."""
        if self._num_turns:
            self._catch_up()
        fresh = self.handle[streams] < 0
        streams, keys = streams[fresh], keys[fresh]
        self.handle[streams] = self._table.claim(keys, streams)
        self._length[streams] = 0
        # As if there had been a row in the turn before: the next one will be counted.
        self._last_key[streams] = keys - self._streams
        self.count += len(streams)

    def begin_one(self, stream: int, key: int) -> int:
        """Do what `begin` does for one stream, which has none open, and return the handle."""
        assert not self._num_turns  # A turn leaves every stream open, and the table is up to date when an episode ends.
        handle = self.one_handle[stream] = self._table.claim_one(key, stream)
        self._one_length[stream] = 0
        self._one_last_key[stream] = key - self._streams
        self.count += 1
        return handle

    def turn(self) -> None:
        """Count one row more in every stream, whose next observation is known; each row comes in turn."""
        self._num_turns += 1
        self._is_table_behind = True

    def come_in_turn(self, next_key: int) -> None:
        """Set that the next turn begins with that key, wherever the newest rows are."""
        self.last_key[:] = np.arange(next_key - self._streams, next_key)

    def append(self, chosen: slice | arrays_lib.Ints, keys: arrays_lib.Ints, knows_next: bool) -> None:
        """Count one row more in each of the chosen streams, which have those keys [k]."""
        self.length[chosen] += 1
        self.knows_next[chosen] = knows_next
        self._last_key[chosen] = keys
        self._is_table_behind = True

    def append_one(self, stream: int, length: int, key: int, knows_next: bool) -> None:
        """Set the length and the newest row of the episode that is open in a stream."""
        self._one_length[stream] = length
        self._one_knows_next[stream] = knows_next
        self._one_last_key[stream] = key
        self._is_table_behind = True

    def end(self, streams: arrays_lib.Ints, is_terminated: arrays_lib.Bools) -> tuple[arrays_lib.Ints, arrays_lib.Ints]:
        """End the episodes that are open in `streams` [k]; return their handles [k] and last keys [k]."""
        handles, lengths, last_keys = self.handle[streams], self.length[streams], self._last_key[streams]
        table, knows_next = self._table, self.knows_next[streams]
        table.end[handles] = np.where(is_terminated, TERMINATED, TRUNCATED)
        table.length[handles] = lengths
        table.complete[handles] = lengths - ~(knows_next | is_terminated)
        table.has_tail[handles] = knows_next
        self.handle[streams] = -1
        self.knows_next[streams] = True
        self.count -= len(streams)
        return handles, last_keys

    def end_one(self, stream: int, is_terminated: bool) -> tuple[int, int]:
        """Do what `end` does for one stream."""
        handle, length, last_key, knows_next = self.newest_of_one(stream)
        table = self._table
        table.end[handle] = TERMINATED if is_terminated else TRUNCATED
        table.length[handle] = length
        table.complete[handle] = length if knows_next or is_terminated else length - 1
        table.has_tail[handle] = knows_next
        self.one_handle[stream] = -1
        self._one_knows_next[stream] = True
        self.count -= 1
        return handle, last_key

    def clear(self) -> None:
        """Close no episode: they are gone, and so are those in the table."""
        self.count = self._num_turns = 0
        self.handle[:] = -1
        self.knows_next[:] = True
        self._is_table_behind = False
        self._table.clear()

    def restore(self, streams: arrays_lib.Ints, handles: arrays_lib.Ints, last_keys: arrays_lib.Ints) -> None:
        """Take the episodes of the table with those handles [k] for those that are open, in `streams` [k]."""
        self._num_turns = 0
        self.handle[:] = -1
        self.knows_next[:] = True
        self.handle[streams] = handles
        self.knows_next[streams] = self._table.has_tail[handles]
        self._length[streams] = self._table.length[handles]
        self._last_key[streams] = last_keys
        self.count = len(streams)
        self._is_table_behind = False

    def _catch_up(self) -> None:
        """Count the rows of the turns."""
        self._length += self._num_turns
        self._last_key += self._num_turns * self._streams
        self._num_turns = 0

    def _settle(self) -> None:
        """Bring the numbers of the open episodes in the table up to date."""
        if self._streams == 1:
            handle, length, _, is_known = self.newest_of_one(0)
            if handle >= 0:
                self._table.length[handle] = length
                self._table.complete[handle] = length if is_known else length - 1
                self._table.has_tail[handle] = is_known
            self._is_table_behind = False
            return
        (streams,) = (self.handle >= 0).nonzero()
        handles, lengths, knows_next = self.handle[streams], self.length[streams], self.knows_next[streams]
        self._table.length[handles] = lengths
        self._table.complete[handles] = lengths - ~knows_next
        self._table.has_tail[handles] = knows_next
        self._is_table_behind = False
