"""Which row follows which: rows come, episodes begin and end, the oldest rows go. Nothing here knows what a row holds.

ring            names of rows: keys and slots
open episodes   what changes with every row, by stream
chains          rows within their episodes
timeline        all of them, and what changes them: this module
"""

from collections.abc import Sequence
import dataclasses
from typing import ClassVar, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.kernels import chains
from relive.kernels import episode_table
from relive.kernels import timeline_state

Run: TypeAlias = chains.Run
Rows: TypeAlias = chains.Rows

_NONE: arrays_lib.Ints = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What one write has changed.

    Attributes:
        slots: Where the new rows are [k], in the order of their keys.
        handles: The episode of each of them [k].
        completed: The slots of rows that can now be read with what follows them, oldest first.
        ended: The handles of the episodes that ended.
    """

    slots: arrays_lib.Ints
    handles: arrays_lib.Ints
    completed: arrays_lib.Ints
    ended: arrays_lib.Ints


class Timeline(chains.Chains):
    """The rows of `streams` streams in a ring of `capacity` slots."""

    _DERIVED: ClassVar[tuple[str, ...]] = ("_one_handle", "_one_is_last")

    def __init__(self, capacity: int, streams: int) -> None:
        # Whether a row is the last one of an ended episode, which goes with it.
        self._is_last = np.zeros(capacity, np.bool_)
        self._all_streams = np.arange(streams).tobytes()
        super().__init__(capacity, streams)

    def _derive(self) -> None:
        super()._derive()
        self._one_is_last = self._is_last.data

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept for each slot; what is kept for each episode is not counted."""
        return self._handle.nbytes + self._is_last.nbytes + (self._links.nbytes if self._links else 0)

    @property
    def num_handles(self) -> int:
        """How many handles there are; every handle is below it."""
        return self._table.room

    # The open episodes.

    def open_handles(self, streams: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the handle of the open episode of each of `streams`, -1 where there is none."""
        return self._open.handle[streams]

    def is_open(self, handles: arrays_lib.Ints) -> arrays_lib.Bools:
        """Return which of those episodes are going on."""
        return np.equal(self._table.end[handles], episode_table.OPEN)

    @property
    def num_open(self) -> int:
        """How many episodes are open."""
        return self._open.count

    def are_announced(self, streams: arrays_lib.Ints) -> arrays_lib.Bools:
        """Return where an episode is open in `streams` [k], and the observation after its newest step is known."""
        return (self._open.handle[streams] >= 0) & self._open.knows_next[streams]

    def chosen(self, streams: arrays_lib.Ints) -> Run:
        """Return what picks `streams` [k] out of an array of all: a slice, if they are all of them in order."""
        is_round = len(streams) == self.streams and streams.tobytes() == self._all_streams
        return slice(None) if is_round else streams

    # Changes.

    def evict(self, count: int) -> None:
        """Take the `count` oldest rows away, and with the last row of an ended episode the episode."""
        if self._links:
            self._links.cut_off(self.oldest_slots(count))
        if count == 1:
            slot = self.oldest_key % self.capacity
            if self._one_is_last[slot]:
                self._one_is_last[slot] = False
                self._table.release_one(self._one_handle[slot])
        else:
            run = self.run(self.oldest_key, count)
            if arrays_lib.any_set(self._is_last[run]):
                self._release_last(run)
        self._num_rows -= count
        self.num_evicted += count

    def append(
        self,
        streams: arrays_lib.Ints,
        *,
        cuts: arrays_lib.Bools | None,
        knows_next: bool,
        terminated: arrays_lib.Bools,
        truncated: arrays_lib.Bools,
    ) -> Change:
        """Add one row to each of `streams` [k], which are distinct; there must be room for them.

        Args:
            streams: Where.
            cuts: Whether the open episode there, if any, ends as truncated before the row, which begins another [k];
                None for nowhere.
            knows_next: Whether the observation after the rows is known already.
            terminated: Whether the episode terminates with the row [k].
            truncated: Whether it is truncated with it [k]; termination wins.
        """
        count, opened = len(streams), self._open
        chosen = self.chosen(streams)
        is_round = chosen is not streams
        self._keep_turns(streams, is_round)
        keys = np.arange(self.next_key, self.next_key + count)
        run, slots = self.run(self.next_key, count), self.slots(keys)
        ended = _NONE if cuts is None else self._cut(streams[cuts])
        if opened.count < self.streams:
            opened.begin(streams, keys)
        waiting = _NONE if opened.all_know_next() else opened.waiting(streams)
        waiting = waiting[self.is_alive(waiting)]
        handles = opened.handle[chosen].copy()
        if self._links:
            steps, last_keys = opened.length[chosen], opened.last_key[chosen]
            follows = (steps > 0) & (last_keys >= self.oldest_key)
            self._links.link(slots, steps, np.where(follows, self.slots(last_keys), slots))
        self._handle[run] = handles
        opened.append(chosen, keys, knows_next)
        self.next_key += count
        self._num_rows += count
        completed = keys if knows_next else keys[terminated]
        if arrays_lib.any_set(terminated) or arrays_lib.any_set(truncated):
            has_ended = terminated | truncated
            ended = np.concatenate([ended, self.end(streams[has_ended], terminated[has_ended])])
        return Change(slots, handles, self.slots(np.concatenate([waiting, completed])), ended)

    def turning_slot(self) -> int:
        """Return where the next row of stream 0 goes if `turn` may add one row to every stream; otherwise -1.

        That is where the streams are in turn, no row waits for its next observation, and the new rows have room, or
        take the place of the oldest ones, without wrapping around the ring.
        """
        streams, slot = self.streams, self.next_key % self.capacity
        if streams > 1:
            is_in_turn = self._links is not None or (self.next_key - self._phase) % streams == 0
            has_room = self._num_rows == self.capacity or self._num_rows + streams <= self.capacity
            if not (is_in_turn and has_room and slot + streams <= self.capacity):
                return -1
        return slot if self._open.all_know_next() else -1

    def turn(self, slot: int) -> None:
        """Add one row to every stream from that slot on, whose next observation is known, and evict for them.

        `slot` is what `turning_slot` has returned. It costs much the same for any number of streams: `relive bench
        --workload extend`.
        """
        streams, opened = self.streams, self._open
        is_full = self._num_rows == self.capacity
        if is_full and arrays_lib.any_set(self._one_is_last[slot : slot + streams]):
            self._release_last(slice(slot, slot + streams))
        if not opened.count and streams == 1:
            opened.begin_one(0, self.next_key)
        elif opened.count < streams:
            opened.begin(np.arange(streams), np.arange(self.next_key, self.next_key + streams))
        if self._links:
            self._keep_turns(np.arange(streams), True)
        if self._links:
            self._link_turn(self._links, slot)
        if streams == 1:
            self._one_handle[slot] = opened.one_handle[0]
        else:
            self._handle[slot : slot + streams] = opened.handle
        opened.turn()
        self.next_key += streams
        if is_full:
            self.num_evicted += streams
        else:
            self._num_rows += streams

    def append_one(
        self, stream: int, cuts: bool, knows_next: bool, terminated: bool, truncated: bool
    ) -> tuple[int, Sequence[int], Sequence[int]]:
        """Do what `append` does for one stream, in plain numbers: `relive bench --workload add`.

        Returns:
            The slot of the row, the slots of rows that are complete now, and the handles of the episodes that ended.
        """
        opened = self._open
        if self.streams > 1:
            self._keep_turn_of_one(stream)
        ended: tuple[int, ...] = ()
        if cuts and opened.one_handle[stream] >= 0:
            ended = (self.end_one(stream, False),)
        key = self.next_key
        slot = key % self.capacity
        completed: tuple[int, ...] = (slot,) if knows_next or terminated else ()
        handle, length, last_key, knew_next = opened.newest_of_one(stream)
        if handle < 0:
            handle, length = opened.begin_one(stream, key), 0
        elif not knew_next and last_key >= self.oldest_key:
            completed = (last_key % self.capacity, *completed)
        if self._links:
            before = last_key % self.capacity if length and last_key >= self.oldest_key else slot
            self._links.link_one(slot, length, before)
        self._one_handle[slot] = handle
        opened.append_one(stream, length + 1, key, knows_next)
        self.next_key = key + 1
        self._num_rows += 1
        if terminated or truncated:
            ended = (*ended, self.end_one(stream, terminated))
        return slot, completed, ended

    def append_episode(self, stream: int, length: int, *, is_terminated: bool) -> Change:
        """Add an ended episode of `length` rows to the stream; one that is open there is truncated first."""
        if self.streams > 1:
            self._link()
            self._begin_turns(self.next_key + length)
        cut = (self.end_one(stream, False),) if self._open.one_handle[stream] >= 0 else ()
        slots = self.slots(np.arange(self.next_key, self.next_key + length))
        self._handle[self.run(self.next_key, length)] = handle = self._open.begin_one(stream, self.next_key)
        if self._links:
            self._links.link(slots, np.arange(length), np.concatenate([slots[:1], slots[:-1]]))
        self.next_key += length
        self._num_rows += length
        self._open.append_one(stream, length, self.next_key - 1, True)
        ended = np.array([*cut, self.end_one(stream, is_terminated)])
        return Change(slots, np.full(length, handle), slots, ended)

    def clear(self) -> None:
        """Take every row away, and close no episode: they are gone. Keys go on."""
        self._is_last[self.run(self.oldest_key, self._num_rows)] = False
        self._num_rows = 0
        self._links = None
        self._open.clear()

    # As a whole.

    def state(self) -> timeline_state.TimelineState:
        """Return what a checkpoint keeps. O(rows + episodes)."""
        table, slots = self.episodes, self.alive_slots()
        used = table.handles()
        used = used[np.argsort(table.first_key[used])]
        places = np.zeros(table.room, np.int64)
        places[used] = np.arange(len(used))
        return timeline_state.TimelineState(
            next_key=self.next_key,
            num_evicted=self.num_evicted,
            is_linked=self._links is not None,
            phase=self._phase,
            in_turn_since=self._in_turn_since,
            unlink_at=self._unlink_at,
            episode=places[self._handle[slots]],
            stream=table.stream[used],
            length=table.length[used],
            first_key=table.first_key[used],
            end=table.end[used],
            has_tail=table.has_tail[used],
            handles=used,
        )

    def restore(self, state: timeline_state.TimelineState) -> arrays_lib.Ints:
        """Restore a state, and return the handles of its episodes [E]."""
        self.clear()
        self.next_key, self.num_evicted, self._num_rows = state.next_key, state.num_evicted, len(state)
        handles = self._table.claim(state.first_key, state.stream)
        is_open, last_keys = state.is_open, state.last_keys(self.streams)
        complete = state.length - ~(state.has_tail | (state.end == episode_table.TERMINATED))
        for name, values in (("length", state.length), ("complete", complete), ("end", state.end)):
            getattr(self._table, name)[handles] = values
        self._table.has_tail[handles] = state.has_tail
        self._handle[self.alive_slots()] = handles[state.episode]
        self._is_last[self.slots(last_keys[~is_open])] = True
        self._open.restore(state.stream[is_open], handles[is_open], last_keys[is_open])
        self._restore_turns(state)
        return handles

    # Ends of episodes.

    def _cut(self, streams: arrays_lib.Ints) -> arrays_lib.Ints:
        """Truncate the episodes that are open in those streams, and return their handles."""
        streams = streams[self._open.handle[streams] >= 0]
        return self.end(streams, np.zeros(len(streams), np.bool_))

    def cut(self, streams: arrays_lib.Ints) -> Change:
        """Truncate the episodes that are open in `streams` [k], after their newest steps."""
        return Change(_NONE, _NONE, _NONE, self._cut(streams))

    def end(self, streams: arrays_lib.Ints, is_terminated: arrays_lib.Bools) -> arrays_lib.Ints:
        """End the episodes that are open in `streams` [k], and return their handles [k].

        One whose last row is gone already goes with it.
        """
        handles, last_keys = self._open.end(streams, is_terminated)
        is_there = last_keys >= self.oldest_key
        self._is_last[self.slots(last_keys[is_there])] = True
        self._table.release(handles[~is_there])
        return handles

    def end_one(self, stream: int, is_terminated: bool) -> int:
        """Do what `end` does for one stream."""
        handle, last_key = self._open.end_one(stream, is_terminated)
        if last_key >= self.oldest_key:
            self._one_is_last[last_key % self.capacity] = True
        else:
            self._table.release_one(handle)
        return handle

    def _release_last(self, run: Run) -> None:
        """Take the episodes out of the table whose last rows are in the run, which goes."""
        self._table.release(self._handle[run][self._is_last[run]].astype(np.int64))
        self._is_last[run] = False

    # Audit.

    def check(self) -> None:
        """Recount the rows of every episode, one by one.

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
        open_handles = self._open.handle[self._open.handle >= 0]
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
