"""The open episode of each stream: what changes with every step, apart from the table of all episodes.

stream           0     1     2     3
handle           7    -1     2     4        -1 where none is open
length          12     .     3    40        its steps so far
knows_next    True     .  True False        False where its newest row waits for its next observation
last_key        96     .    98    91        the key of its newest row
"""

import numpy as np

from relive.common import arrays
from relive.common import arrays as arrays_lib
from relive.kernels import episode_table


class OpenEpisodes(arrays.Derived):
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

    def __init__(self, streams: int, table: episode_table.EpisodeTable) -> None:
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
    def table(self) -> episode_table.EpisodeTable:
        """The table, brought up to date."""
        if self._is_table_behind:
            self._settle()
        return self._table

    def newest_of_one(self, stream: int) -> tuple[int, int, int, bool]:
        """Answers handle, length, key of the newest row and whether what comes next is known, of one stream."""
        if self._num_turns:
            self._catch_up()
        return (
            self.one_handle[stream],
            self._one_length[stream],
            self._one_last_key[stream],
            bool(self._one_knows_next[stream]),
        )

    def waiting(self, streams: arrays_lib.Ints) -> arrays_lib.Ints:
        """Answers the keys of the rows that wait for their next observation, among the newest of `streams` [k]."""
        return self.last_key[streams[~self.knows_next[streams]]]

    def all_know_next(self) -> bool:
        """Answers whether no row waits for its next observation."""
        return bool(self._one_knows_next[0]) if self._streams == 1 else arrays.all_set(self.knows_next)

    # Writing.

    def begin(self, streams: arrays_lib.Ints, keys: arrays_lib.Ints) -> None:
        """Begins an episode in each of `streams` [k] that has none open, with the row of that key [k]."""
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
        """Does what `begin` does for one stream, which has none open, and answers the handle."""
        assert not self._num_turns  # A turn leaves every stream open, and whoever ends an episode has caught up.
        handle = self.one_handle[stream] = self._table.claim_one(key, stream)
        self._one_length[stream] = 0
        self._one_last_key[stream] = key - self._streams
        self.count += 1
        return handle

    def turn(self) -> None:
        """Counts one row more in every stream, whose next observation is known; each row comes in turn."""
        self._num_turns += 1
        self._is_table_behind = True

    def come_in_turn(self, next_key: int) -> None:
        """Says that the next turn begins with that key, wherever the newest rows are."""
        self.last_key[:] = np.arange(next_key - self._streams, next_key)

    def append(self, chosen: slice | arrays_lib.Ints, keys: arrays_lib.Ints, knows_next: bool) -> None:
        """Counts one row more in each of the chosen streams, which have those keys [k]."""
        self.length[chosen] += 1
        self.knows_next[chosen] = knows_next
        self._last_key[chosen] = keys
        self._is_table_behind = True

    def append_one(self, stream: int, length: int, key: int, knows_next: bool) -> None:
        """Says how long the episode in a stream is now, and of its newest row."""
        self._one_length[stream] = length
        self._one_knows_next[stream] = knows_next
        self._one_last_key[stream] = key
        self._is_table_behind = True

    def end(self, streams: arrays_lib.Ints, is_terminated: arrays_lib.Bools) -> tuple[arrays_lib.Ints, arrays_lib.Ints]:
        """Ends the episodes that are open in `streams` [k]; answers their handles [k] and last keys [k]."""
        handles, lengths, last_keys = self.handle[streams], self.length[streams], self._last_key[streams]
        table, knows_next = self._table, self.knows_next[streams]
        table.end[handles] = np.where(is_terminated, episode_table.TERMINATED, episode_table.TRUNCATED)
        table.length[handles] = lengths
        table.complete[handles] = lengths - ~(knows_next | is_terminated)
        table.has_tail[handles] = knows_next
        self.handle[streams] = -1
        self.knows_next[streams] = True
        self.count -= len(streams)
        return handles, last_keys

    def end_one(self, stream: int, is_terminated: bool) -> tuple[int, int]:
        """Does what `end` does for one stream."""
        handle, length, last_key, knows_next = self.newest_of_one(stream)
        table = self._table
        table.end[handle] = episode_table.TERMINATED if is_terminated else episode_table.TRUNCATED
        table.length[handle] = length
        table.complete[handle] = length if knows_next or is_terminated else length - 1
        table.has_tail[handle] = knows_next
        self.one_handle[stream] = -1
        self._one_knows_next[stream] = True
        self.count -= 1
        return handle, last_key

    def clear(self) -> None:
        """Closes no episode: they are gone, and so are those in the table."""
        self.count = self._num_turns = 0
        self.handle[:] = -1
        self.knows_next[:] = True
        self._is_table_behind = False
        self._table.clear()

    def restore(self, streams: arrays_lib.Ints, handles: arrays_lib.Ints, last_keys: arrays_lib.Ints) -> None:
        """Takes the episodes of the table with those handles [k] for those that are open, in `streams` [k]."""
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
        """Counts the rows of the turns."""
        self._length += self._num_turns
        self._last_key += self._num_turns * self._streams
        self._num_turns = 0

    def _settle(self) -> None:
        """Brings the numbers of the open episodes in the table up to date."""
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
