"""Which row follows which: keys, streams and episodes over a ring of slots. The only modulo arithmetic is here.

    key       0   1   2   3   4   5   6   7   8   9  10  11  12        counts the rows ever added
    slot      0   1   2   3   4   5   6   7   0   1   2   3   4        key % capacity, here 8
                                  └────────── alive ─────────┘         the newest `len(timeline)` keys

Rows of all streams lie in one ring in the order in which they came, so the oldest row is evicted first, whosesoever it
is. An episode is a chain of rows in one stream. With one stream the chain is arithmetic: the row after a slot is in the
next slot. With more the rows of a chain are linked.

Nothing here knows what a row holds.
"""

import dataclasses
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from relive import episode_table
from relive import errors

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What one write has changed.

    Attributes:
        slots: Where the new rows are [k], in the order of their keys.
        handles: The episode of each of them [k].
        completed: The slots of rows that can now be read with what follows them, oldest first.
        ended: The handles of the episodes that ended.
    """

    slots: Ints
    handles: Ints
    completed: Ints
    ended: Ints


class Timeline:
    """The rows of `streams` streams in a ring of `capacity` slots.

    Attributes:
        capacity: How many rows are alive at most.
        streams: How many streams there are, numbered from 0.
        next_key: The key of the row that comes next.
        num_evicted: How many rows were evicted so far.
        episodes: The episodes that have rows alive, or are open.
    """

    def __init__(self, capacity: int, streams: int) -> None:
        self.capacity = capacity
        self.streams = streams
        self.next_key = 0
        self.episodes = episode_table.EpisodeTable()
        self.num_evicted = 0
        self._num_rows = 0
        self._open = np.full(streams, -1, np.int64)
        self._last_key = np.full(streams, -1, np.int64)
        self._handle = np.zeros(capacity, np.int32 if capacity + streams < 2**31 else np.int64)
        linked = capacity if streams > 1 else 0
        self._step = np.zeros(linked, np.int64)
        self._next = np.zeros(linked, np.int64)
        self._previous = np.zeros(linked, np.int64)

    def __len__(self) -> int:
        """Answers how many rows are alive."""
        return self._num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept for each slot; what is kept for each episode is not counted."""
        return self._handle.nbytes + self._step.nbytes + self._next.nbytes + self._previous.nbytes

    @property
    def oldest_key(self) -> int:
        """The key of the oldest row that is alive; next_key if there is none."""
        return self.next_key - self._num_rows

    # Names of rows.

    def keys(self, slots: Ints) -> Ints:
        """Answers the keys of the rows in `slots`."""
        newest = self.next_key - 1
        return newest - self._around(newest - slots)

    def slots(self, keys: Ints) -> Ints:
        """Answers where the rows with `keys` are, or were."""
        return self._around(keys)

    def is_alive(self, keys: Ints) -> Bools:
        """Answers whether the rows with `keys` are still there."""
        return (keys >= self.oldest_key) & (keys < self.next_key)

    def alive_slots(self) -> Ints:
        """Answers where all rows are, oldest first."""
        return self.oldest_slots(self._num_rows)

    def oldest_slots(self, count: int) -> Ints:
        """Answers where the `count` oldest rows are, oldest first."""
        return self.slots(np.arange(self.oldest_key, self.oldest_key + count))

    def free_slots(self, count: int) -> Ints:
        """Answers where the next `count` rows go; they hold the oldest rows as long as those are not evicted."""
        return self.slots(np.arange(self.next_key, self.next_key + count))

    def open_handles(self, streams: Ints) -> Ints:
        """Answers the handle of the open episode of each of `streams`, -1 where there is none."""
        return self._open[streams]

    # Rows within their episodes.

    def handles(self, slots: Ints) -> Ints:
        """Answers the handles of the episodes of the rows in `slots`."""
        return self._handle[slots].astype(np.int64)

    def steps(self, slots: Ints, handles: Ints) -> Ints:
        """Answers how many steps of its episode came before each of the rows in `slots`; `handles` are theirs."""
        if self.streams > 1:
            return self._step[slots]
        return self.keys(slots) - self.episodes.first_key[handles]

    def later(self, slots: Ints, offsets: Ints) -> Ints:
        """Answers the rows `offsets` [B] steps after those in `slots` [B]; they must be there."""
        if self.streams == 1:
            return self._around(slots + offsets)
        # Where all streams are written side by side, a step on is `streams` keys on; elsewhere rows are linked.
        keys = self.keys(slots) + offsets * self.streams
        later = self.slots(keys)
        is_it = self.is_alive(keys) & (self._handle[later] == self._handle[slots])
        is_it &= self._step[later] == self._step[slots] + offsets
        walked, left = slots[~is_it], offsets[~is_it]
        for k in range(int(left.max(initial=0))):
            walked = np.where(left > k, self._next[walked], walked)
        later[~is_it] = walked
        return later

    def ahead(self, slots: Ints, count: int) -> Ints:
        """Answers the rows from those in `slots` [B] on, in time order [B, count].

        Where an episode has no more rows its last one is repeated.
        """
        if self.streams == 1:
            handles = self.handles(slots)
            left = self.episodes.length[handles] - 1 - self.steps(slots, handles)
            offsets = np.minimum(np.arange(count), left[:, np.newaxis])
            return self._around(slots[:, np.newaxis] + offsets)
        return self._chain(self._next, slots, count)

    def behind(self, slots: Ints, count: int) -> Ints:
        """Answers the rows up to those in `slots` [B], in time order [B, count].

        Where an episode has no earlier row that is alive the earliest one is repeated, in front.
        """
        if self.streams == 1:
            offsets = np.minimum(np.arange(count)[::-1], self._alive_before(slots)[:, np.newaxis])
            return self._around(slots[:, np.newaxis] - offsets)
        return self._chain(self._previous, slots, count)[:, ::-1]

    def num_behind(self, slots: Ints, most: int) -> Ints:
        """Answers how many earlier rows of its episode are alive for each of `slots` [B], counted up to `most`."""
        if self.streams == 1:
            return np.minimum(self._alive_before(slots), most)
        chain = self._chain(self._previous, slots, min(most, self.capacity) + 1)
        counts: Ints = np.count_nonzero(chain[:, 1:] != chain[:, :-1], axis=1)
        return counts

    def earlier(self, slots: Ints, count: int) -> Ints:
        """Answers the row `count` steps before each of `slots`, for those of them that have one alive."""
        if self.streams == 1:
            return self._around(slots[self._alive_before(slots) >= count] - count)
        for _ in range(count):
            previous = self._previous[slots]
            slots = previous[previous != slots]
        return slots

    def first(self, handles: Ints) -> Ints:
        """Answers the rows of step 0 of those episodes, for those that have it alive."""
        keys = self.episodes.first_key[handles]
        return self.slots(keys[self.is_alive(keys)])

    # Changes.

    def evict(self, count: int) -> None:
        """Takes the `count` oldest rows away, and with the last row of an ended episode the episode."""
        slots = self.oldest_slots(count)
        handles = self.handles(slots)
        episodes = self.episodes
        is_last = self.steps(slots, handles) == episodes.length[handles] - 1
        if self.streams > 1:
            following = self._next[slots]
            self._previous[following] = following
        self._num_rows -= count
        self.num_evicted += count
        episodes.release(handles[is_last & (episodes.end[handles] != episode_table.OPEN)])

    def append(self, streams: Ints, *, cuts: Bools, knows_next: Bools, terminated: Bools, truncated: Bools) -> Change:
        """Adds one row to each of `streams` [k], which are distinct; there must be room for them.

        Args:
            streams: Where.
            cuts: Whether the open episode there, if any, ends as truncated before the row, which begins another [k].
            knows_next: Whether the observation after the row is known already [k].
            terminated: Whether the episode terminates with the row [k].
            truncated: Whether it is truncated with it [k]; termination wins.
        """
        episodes = self.episodes
        count = len(streams)
        keys = np.arange(self.next_key, self.next_key + count)
        slots = self.slots(keys)
        handles = self._open[streams]
        cut = self._cut(streams[cuts])
        fresh = cuts | (handles < 0)

        going_on = handles[~fresh]
        is_waiting = episodes.complete[going_on] < episodes.length[going_on]
        waiting_keys = self._last_key[streams[~fresh][is_waiting]]

        handles[fresh] = episodes.claim(keys[fresh])
        steps = episodes.length[handles]
        is_complete = knows_next | terminated
        episodes.length[handles] = steps + 1
        episodes.complete[handles] = steps + is_complete
        episodes.has_tail[handles] = knows_next
        self._handle[slots] = handles
        if self.streams > 1:
            self._step[slots] = steps
            self._next[slots] = slots
            self._previous[slots] = slots
            follows = (steps > 0) & (self._last_key[streams] >= self.oldest_key)
            before = self.slots(self._last_key[streams[follows]])
            self._next[before] = slots[follows]
            self._previous[slots[follows]] = before
        self.next_key += count
        self._num_rows += count
        self._last_key[streams] = keys
        self._open[streams] = handles

        has_ended = terminated | truncated
        ended = handles[has_ended]
        self._open[streams[has_ended]] = -1
        ends = np.where(terminated[has_ended], episode_table.TERMINATED, episode_table.TRUNCATED)
        self._end(ended, ends, keys[has_ended])
        completed = np.concatenate([waiting_keys[self.is_alive(waiting_keys)], keys[is_complete]])
        return Change(slots, handles, self.slots(completed), np.concatenate([cut, ended]))

    def append_episode(self, stream: int, length: int, *, is_terminated: bool) -> Change:
        """Adds an ended episode of `length` rows to the stream; one that is open there is truncated first."""
        cut = self._cut(np.array([stream]))
        keys = np.arange(self.next_key, self.next_key + length)
        slots = self.slots(keys)
        handle = self.episodes.claim(keys[:1])
        self.episodes.length[handle] = length
        self.episodes.complete[handle] = length
        self.episodes.has_tail[handle] = True
        self._handle[slots] = handle
        if self.streams > 1:
            self._step[slots] = np.arange(length)
            self._next[slots] = np.concatenate([slots[1:], slots[-1:]])
            self._previous[slots] = np.concatenate([slots[:1], slots[:-1]])
        self.next_key += length
        self._num_rows += length
        self._open[stream] = -1
        end = episode_table.TERMINATED if is_terminated else episode_table.TRUNCATED
        self._end(handle, np.array([end]), keys[-1:])
        return Change(slots, np.repeat(handle, length), slots, np.concatenate([cut, handle]))

    def clear(self) -> None:
        """Takes every row away, and closes no episode: they are gone. Keys go on."""
        self._num_rows = 0
        self._open[:] = -1
        self.episodes.clear()

    def _cut(self, streams: Ints) -> Ints:
        """Truncates the episodes that are open in those streams, and answers their handles."""
        streams = streams[self._open[streams] >= 0]
        handles = self._open[streams]
        self._end(handles, np.full(len(handles), episode_table.TRUNCATED), self._last_key[streams])
        return handles

    def _end(self, handles: Ints, ends: Ints, last_keys: Ints) -> None:
        """Ends those episodes; one whose last row is gone already goes with it."""
        self.episodes.end[handles] = ends
        self.episodes.release(handles[last_keys < self.oldest_key])

    def _alive_before(self, slots: Ints) -> Ints:
        """Answers how many earlier rows of their episodes are alive, with one stream."""
        first_keys: Ints = self.episodes.first_key[self.handles(slots)]
        return self.keys(slots) - np.maximum(first_keys, self.oldest_key)

    def _around(self, places: Ints) -> Ints:
        """Answers the slots of places counted on beyond the ends of the ring."""
        return np.remainder(places, self.capacity)

    def _chain(self, links: Ints, slots: Ints, count: int) -> Ints:
        """Answers `slots` [B] and the rows that the links lead to [B, count]."""
        chain = np.empty((len(slots), count), np.int64)
        for k in range(count):
            chain[:, k] = slots
            slots = links[slots]
        return chain

    # Audit.

    def check(self) -> None:
        """Recounts the rows of every episode, one by one.

        Raises:
            CorruptionError: A chain of rows does not agree with the table of episodes.
        """
        episodes = self.episodes
        episodes.check()
        slots = self.alive_slots()
        handles = self.handles(slots)
        steps = self.steps(slots, handles)
        used = episodes.handles()
        if not 0 <= self._num_rows <= self.capacity:
            raise errors.CorruptionError(f"{self._num_rows} rows are alive in {self.capacity} slots")
        open_handles = self._open[self._open >= 0]
        if not np.array_equal(np.unique(np.concatenate([handles, open_handles])), used):
            raise errors.CorruptionError("the episodes in the table are not those that have rows or are open")
        if np.any((episodes.end[used] == episode_table.OPEN) != np.isin(used, open_handles)):
            raise errors.CorruptionError("an episode is open in its stream or in the table, and not in both")
        for handle in used.tolist():
            of_episode = slots[handles == handle]
            of_episode_steps = steps[handles == handle]
            length = int(episodes.length[handle])
            if len(of_episode) == 0:
                continue
            if not np.array_equal(of_episode_steps, np.arange(length - len(of_episode), length)):
                raise errors.CorruptionError(f"the rows of episode {handle} are not its last {len(of_episode)} steps")
            if not np.array_equal(self.ahead(of_episode[:1], len(of_episode))[0], of_episode):
                raise errors.CorruptionError(f"the rows of episode {handle} do not lead to each other")
            if not np.array_equal(self.behind(of_episode[-1:], len(of_episode))[0], of_episode):
                raise errors.CorruptionError(f"the rows of episode {handle} do not lead back to each other")
