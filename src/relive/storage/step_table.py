"""StepTable: which episode each row of a ring is of, what follows it, and from which rows a window may be read.

Keys of rows are never reused; the row of a key is in the slot `key % capacity`, where new rows overwrite the oldest.
There are no values here: the table is the flat arrays of `kernels.append`, and what follows from them.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.kernels import append
from relive.kernels import choice
from relive.kernels import windows
from relive.schema import encoding
from relive.storage import memory
from relive.storage import steps_state

_FIRST_ROOM = 16
_FEWEST_CHANGES = 1024
_MOST_EPISODES = 1 << (63 - append.EPISODE)


class Rule(NamedTuple):
    """What a window needs of the rows; by default, one complete row."""

    older: int = 0
    """The rows before an anchor that must be stored, up to the first of its episode."""
    lag: int = 0
    """The complete rows that must follow an anchor."""
    stride: int = 1
    """Anchors are the steps of an episode that are multiples of it."""
    pad: int = 0
    """1 if step 0 of an episode needs no rows after it, else 0."""

    @property
    def rows_per_anchor(self) -> int:
        """How many rows there are for each anchor in the long run, at least: of the best lengths of episodes."""
        return 1 if self.pad or self.lag <= 0 else min(self.lag + 1, self.stride)

    def most_anchors(self, rows: int) -> int:
        """Return how many anchors there can be at once in `rows` rows, at most; that many hold a window."""
        if self.pad or self.lag <= 0:
            return rows
        # The rows after the last anchor hold the rest of its window.
        return max(rows - self.lag - 1, 0) // self.rows_per_anchor + 1


ONE_ROW = Rule()
"""What a window of one row and the observation after it needs."""


class StepTable(arrays_lib.Derived):
    """The rows of `streams` streams in a ring of `capacity`, without their values.

    Args:
        capacity: Maximum number of stored steps.
        streams: Number of streams.
        rule: What the window needs of the rows.
        is_tracking: Whether rows that became or ceased to be eligible are noted.

    Attributes:
        flags .. num: The arrays of `kernels.append`, which says what is in them.
        rows: All of them, in its order.
        views: Memoryviews of them.
        num_view: That of `num`: counters, indexed by the names in `kernels.append`.
    """

    _DERIVED: ClassVar[tuple[str, ...]] = ("rows", "views", "num_view")

    def __init__(self, capacity: int, streams: int, *, rule: Rule = ONE_ROW, is_tracking: bool = False) -> None:
        if capacity > append.MOST_ROWS:
            raise errors.ArgumentError(f"capacity must be at most {append.MOST_ROWS}, got {capacity}")
        self.capacity, self.streams, self.kernels = capacity, streams, choice.chosen()
        self.num: arrays_lib.Ints = np.zeros(append.PAD + 1, np.int64)
        self.num[[append.OLDER, append.LAG, append.STRIDE, append.PAD]] = rule
        self.num[append.FREE] = _FIRST_ROOM
        self.flags: npt.NDArray[np.uint8] = np.zeros(capacity, np.uint8)
        self.following: npt.NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.places: arrays_lib.Ints = np.zeros(capacity, np.int64)
        self.back: npt.NDArray[np.int32] = np.zeros(capacity if rule.older > 0 else 0, np.int32)
        width = rule.lag + 2 if rule.lag > 0 else 0
        with memory.room_for("length", width, 8 * streams):
            self.recent: arrays_lib.Ints = np.zeros((streams, width), np.int64)
        self.changed: arrays_lib.Ints = np.zeros(max(_FEWEST_CHANGES, capacity // 8) if is_tracking else 0, np.int64)
        self.current: arrays_lib.Ints = np.zeros(streams, np.int64)
        self.last: arrays_lib.Ints = np.full(streams, append.NONE)
        self.knows: arrays_lib.Ints = np.zeros(streams, np.int64)
        self.episodes: arrays_lib.Ints = np.zeros((append.OLDEST + 1, _FIRST_ROOM), np.int64)
        self.free: arrays_lib.Ints = np.arange(_FIRST_ROOM)[::-1].copy()
        self._derive()

    def _derive(self) -> None:
        of_rows = self.flags, self.following, self.places, self.back
        of_streams = self.recent, self.current, self.last, self.knows
        self.rows: append.Rows = *of_rows, *of_streams, self.episodes, self.free, self.changed, self.num
        self.views = append.views_of(self.rows)
        self.num_view = self.num.data

    @property
    def rule(self) -> Rule:
        """What the window needs of the rows."""
        return Rule(*self.num[[append.OLDER, append.LAG, append.STRIDE, append.PAD]].tolist())

    def __len__(self) -> int:
        """Return the number of stored rows."""
        return self.num_view[append.ROWS]

    @property
    def next_key(self) -> int:
        """The key of the next row."""
        return self.num_view[append.NEXT_KEY]

    @property
    def oldest_key(self) -> int:
        """The key of the oldest stored row; next_key if there is none."""
        return self.num_view[append.NEXT_KEY] - self.num_view[append.ROWS]

    @property
    def num_evicted(self) -> int:
        """How many rows made room for newer ones so far; those that `clear` removed do not count."""
        return self.oldest_key - self.num_view[append.CLEARED]

    def keys(self, slots: arrays_lib.Ints) -> arrays_lib.Keys:
        """Return the keys of the stored rows in `slots`."""
        return append.keys_of(self.num, slots, self.capacity)

    def slots(self, keys: arrays_lib.Ints) -> arrays_lib.Slots:
        """Return the slots of the stored rows with `keys`."""
        return keys % self.capacity

    def lookup(self, keys: arrays_lib.Ints) -> tuple[arrays_lib.Slots, slice | arrays_lib.Bools]:
        """Return the slots of those of `keys` [k] whose rows are stored, and which of the keys they are of."""
        next_key, alive = self.num_view[append.NEXT_KEY], slice(None)
        oldest = next_key - self.num_view[append.ROWS]
        if keys.size and (keys.item(keys.argmin()) < oldest or keys.item(keys.argmax()) >= next_key):
            are_alive = (keys >= oldest) & (keys < next_key)
            return self.slots(keys[are_alive]), are_alive
        return self.slots(keys), alive

    def alive_slots(self) -> arrays_lib.Ints:
        """Return the slots of all rows, oldest first."""
        return append.slots_from(self.oldest_key, len(self), self.capacity)

    def episodes_in(self, streams: Any) -> arrays_lib.Ints:
        """Return the number of the newest episode of each of several streams [k]."""
        return self.current if streams is encoding.all_streams(self.streams) else self.current.take(streams)

    @property
    def _of_rows(self) -> tuple[arrays_lib.Array, ...]:
        """The arrays with an entry per row."""
        of_rows = self.flags, self.following, self.places, self.back
        return of_rows if len(self.back) else of_rows[:3]

    # Changes.

    def cut(self, stream: int) -> None:
        """Truncate the open episode of a stream."""
        append.close(self.views, stream)

    def room_with(self, count: int) -> int:
        """Return for how many episodes there is room once there is room for `count` more than there are."""
        room, missing = len(self.free), count - self.num_view[append.FREE]
        more = max(room, missing) if missing > 0 else 0
        if room + more > _MOST_EPISODES:
            raise errors.ArgumentError(f"episodes must be at most {_MOST_EPISODES} at once, got more")
        return room + more

    def make_room(self, count: int) -> None:
        """Make room for `count` more episodes, if there is less."""
        room, wanted = len(self.free), self.room_with(count)
        if wanted == room:
            return
        free = np.concatenate([np.arange(room, wanted)[::-1], self.free])
        more = np.zeros((append.OLDEST + 1, wanted - room), np.int64)
        self.free, self.episodes = free, np.concatenate([self.episodes, more], axis=1)
        self.num_view[append.FREE] += wanted - room
        self._derive()

    def keep(self, streams: Any, key: int, count: int) -> Callable[[], None]:
        """Return a function that takes back what is done to some rows and to the episodes of some streams.

        Args:
            streams: The streams [k].
            key: The key of the first row; rows of older ones may be evicted, too.
            count: The number of rows, at most the capacity.
        """
        rows = append.run_from(key, count, self.capacity)
        of_rows = [(array, array[rows].copy()) for array in self._of_rows]
        links, some = of_rows[1][1], slice(None) if len(streams) == self.streams else np.asarray(streams)
        if count and links.item(links.argmin()) < 0:
            # Episodes whose newest row is among them may leave, also in other streams.
            some, ends = slice(None), of_rows[2][1][links < 0] >> append.EPISODE
            episodes = np.concatenate([self.current, ends])
        else:
            episodes = self.current[some]
        arrays_of_streams = self.current, self.last, self.knows, self.recent
        of_streams = [(array, array[some].copy()) for array in arrays_of_streams]
        of_episodes, num = self.episodes.take(episodes, axis=1), self.num.copy()

        def restore() -> None:
            for where, kept in ((rows, of_rows), (some, of_streams)):
                for array, values in kept:
                    array[where] = values
            self.episodes[:, episodes], self.num[:] = of_episodes, num
            self.work_out()
            # Which of them have changed is not known any more.
            self.num_view[append.CHANGED] = len(self.changed) + 1 if len(self.changed) else 0

        return restore

    def work_out(self) -> None:
        """Work out anew what follows from places, links and episodes: flags of rows, the oldest ones, free numbers."""
        run = append.run_from(self.oldest_key, len(self), self.capacity)
        self.following[self.last[self.last >= 0]] = -1
        places, links = self.places[run], self.following[run]
        episodes, steps = places >> append.EPISODE, places & append.STEP
        first = steps_state.starts_of(episodes)
        is_used = np.zeros(len(self.free), np.bool_)
        is_used[episodes[first]] = is_used[self.current[self.last != append.NONE]] = True
        (unused,) = np.logical_not(is_used).nonzero()
        self.free[: len(unused)] = unused[::-1]
        self.num_view[append.FREE] = len(unused)
        if self.num_view[append.OLDER]:
            self.episodes[append.OLDEST] = -1
            self.episodes[append.OLDEST][episodes[first][::-1]] = (self.oldest_key + first[::-1]) % self.capacity
        complete = self.complete_steps(np.arange(len(self.free))).take(episodes)
        is_complete = (links >= 0) | (steps < complete)
        flags = self.flags[run] & np.uint8(~(append.COMPLETE | append.READABLE) & 0xFF)
        flags |= is_complete * np.uint8(append.COMPLETE)
        flags |= self._are_readable(steps, episodes, complete) * np.uint8(append.READABLE)
        flags[(flags & append.READABLE) == 0] &= np.uint8(~append.FRESH & 0xFF)
        self.flags[run] = flags

    def clear(self) -> None:
        """Remove every row and every open episode. Keys are not reused."""
        slots, free = self.alive_slots(), np.arange(len(self.free))
        eligible = slots[np.frombuffer(append.are_eligible(self.flags.take(slots)), np.bool_)]
        # From here on, nothing needs memory.
        append.count_ineligible(self.changed, self.num, eligible)
        self.flags.fill(0)
        self.last.fill(append.NONE)
        self.knows.fill(0)
        self.episodes[append.OLDEST].fill(-1)
        self.episodes[append.KNOWN].fill(0)
        self.free[:] = free[::-1]
        num = self.num_view
        num[append.CLEARED] += len(slots)
        num[append.ROWS], num[append.FREE] = 0, len(self.free)

    def set_num_evicted(self, num_evicted: int) -> None:
        """Count that many of the rows that are gone as evicted, and the others as removed by `clear`."""
        self.num_view[append.CLEARED] = self.oldest_key - num_evicted

    # Reading.

    def is_open(self, streams: Any) -> Any:
        """Return whether an episode is open in a stream, or in each of several [k]."""
        return self.last[streams] != append.NONE

    def episodes_of(self, slots: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the numbers of the episodes of the rows in `slots`."""
        return self.places.take(slots) >> append.EPISODE

    def steps_of(self, slots: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return how many steps of its episode came before each of the rows in `slots`."""
        return self.places.take(slots) & append.STEP

    def oldest_rows(self, episodes: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the slot of the oldest stored row of each of those episodes [k]; O(streams) if streams keep step."""
        keys = self.episodes[append.FIRST_KEY].take(episodes)
        (cut,) = (keys < self.oldest_key).nonzero()
        count, missing = self.streams, len(cut) > 0
        while missing:  # The first rows of all have gone, so the ones that follow are among the oldest.
            found, places = np.unique(self.episodes_of(self.alive_slots()[:count]), return_index=True)
            at = np.searchsorted(found, episodes[cut]).clip(max=len(found) - 1)
            missing = bool((found[at] != episodes[cut]).any())
            keys[cut] = self.oldest_key + places[at]
            count *= 8
        return self.slots(keys)

    def lengths_of(self, episodes: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return how many steps each of those episodes has so far."""
        lengths: arrays_lib.Ints = self.episodes[append.LENGTH][episodes]
        newest = self.last[self.episodes[append.STREAM][episodes]]
        is_going = (self.episodes[append.END][episodes] == append.OPEN) & (newest >= 0)
        lengths[is_going] = (self.places[newest[is_going]] & append.STEP) + 1
        return lengths

    def complete_steps(self, episodes: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return how many complete steps each of those episodes has so far, evicted ones included."""
        has_terminated = self.episodes[append.END][episodes] == append.TERMINATED
        complete: arrays_lib.Ints = self.lengths_of(episodes) - ~(self.is_known(episodes) | has_terminated)
        return complete

    def is_left_out(self, slots: arrays_lib.Array) -> arrays_lib.Bools:
        """Return whether the episode of each of the rows in `slots` [k] was truncated before it.

        That is so where it ended and the observation after its newest step was never given.
        """
        is_waiting = (self.flags.take(slots) & append.COMPLETE) == 0
        return np.asarray(is_waiting & (self.episodes[append.END].take(self.episodes_of(slots)) != append.OPEN))

    def is_known(self, episodes: arrays_lib.Ints) -> arrays_lib.Bools:
        """Return whether the observation after the newest step of each of those episodes is known."""
        is_open = self.episodes[append.END][episodes] == append.OPEN
        of_streams = self.knows[self.episodes[append.STREAM][episodes]]
        return np.asarray(np.where(is_open, of_streams, self.episodes[append.KNOWN][episodes]) > 0)

    def is_readable(self, slots: arrays_lib.Ints) -> arrays_lib.Bools:
        """Return whether a window may start at each of the rows in `slots` [k], worked out anew."""
        episodes = self.episodes_of(slots)
        complete = self.complete_steps(np.arange(len(self.free))).take(episodes)
        return self._are_readable(self.steps_of(slots), episodes, complete)

    def _are_readable(
        self, of_rows: arrays_lib.Ints, episodes: arrays_lib.Ints, complete: arrays_lib.Ints
    ) -> arrays_lib.Bools:
        """Return the same for rows that are those steps of those episodes, which have so many complete ones [k]."""
        older, lag, stride, pad = self.rule
        readable = of_rows + lag < complete
        if stride > 1:
            readable &= of_rows % stride == 0
        if older:
            oldest = self.steps_of(self.episodes[append.OLDEST]).take(episodes)
            readable &= of_rows - oldest >= np.minimum(of_rows, older)
        if pad:
            readable |= (of_rows == 0) & (complete > 0)
        return np.asarray(readable)

    def follow(self, slots: arrays_lib.Ints, most: int) -> windows.Run:
        """Return up to `most` consecutive complete rows, starting at each of `slots` [B]."""
        run: windows.Run = self.kernels.follow(self.rows, slots, most)
        return run

    def look_back(self, slots: arrays_lib.Ints, steps: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the frame stack of each of `slots` [B], which are those steps, as rows [older + 1, B]."""
        rows: arrays_lib.Ints = self.kernels.look_back(self.back, steps, slots, self.num_view[append.OLDER] + 1)
        return rows

    # As a whole.

    def rows_state(self) -> steps_state.StepsState:
        """Return the rows and their episodes. O(rows + episodes)."""
        slots = self.alive_slots()
        of_rows = self.episodes_of(slots)
        is_used = np.zeros(len(self.free), np.bool_)
        is_used[of_rows] = is_used[self.current[self.last != append.NONE]] = True
        (used,) = is_used.nonzero()
        first_key = self.episodes[append.FIRST_KEY]
        used = used[np.argsort(first_key[used], kind="stable")]
        positions = np.zeros(len(self.free), np.int64)
        positions[used] = np.arange(len(used))
        return steps_state.StepsState(
            next_key=self.next_key,
            num_evicted=self.num_evicted,
            episode=positions[of_rows],
            stream=self.episodes[append.STREAM][used],
            length=self.lengths_of(used),
            first_key=first_key[used],
            end=self.episodes[append.END][used].astype(np.uint8),
            has_tail=self.is_known(used),
            numbers=used,
        )

    def restore(self, kept: steps_state.StepsState) -> None:
        """Restore rows and their episodes 0 .. E - 1 in an empty table."""
        count, num = len(kept.stream), self.num_view
        self.make_room(count)
        num[append.NEXT_KEY], num[append.ROWS] = kept.next_key, len(kept)
        num[append.CLEARED] = kept.next_key - len(kept) - kept.num_evicted
        slots, run = self.alive_slots(), append.run_from(self.oldest_key, len(kept), self.capacity)
        self.places[run] = kept.episode << append.EPISODE | kept.steps
        rows, of_rows = slots[kept.order], kept.episode[kept.order]
        first = steps_state.starts_of(of_rows)
        last = np.append(first[1:], len(rows))[: len(first)] - 1
        episodes = of_rows[first]
        links = np.append(rows[1:], -1)[: len(rows)]
        links[last] = -1
        self.following[run if type(kept.order) is slice else rows] = links
        if len(self.back):
            before = np.append(-1, rows[:-1])[: len(rows)]
            before[first] = -1
            self.back[rows] = before
        self.flags[rows[last]] = (kept.end == append.TERMINATED)[episodes] * np.uint8(append.TERMINAL)
        newest = np.full(count, append.GONE)
        newest[episodes] = rows[last]
        values = (kept.stream, kept.first_key, kept.length, kept.end, kept.has_tail)
        for array, value in zip(self.episodes, values, strict=False):
            array[:count] = value
        (is_open,) = (kept.end == append.OPEN).nonzero()
        streams = kept.stream[is_open]
        self.current[kept.stream] = np.arange(count)  # The newest of each: they are in the order of time.
        self.last[streams] = newest[is_open]
        self.knows[streams] = kept.has_tail[is_open]
        width = self.recent.shape[1]
        if width:
            is_recent = kept.is_open[kept.episode] & (kept.steps >= kept.length[kept.episode] - width)
            of_recent, steps = kept.episode[is_recent], kept.steps[is_recent]
            self.recent[kept.stream[of_recent], steps % width] = kept.keys[is_recent]
        self.work_out()

    def _twin(self) -> "StepTable":
        """Return an empty table of the same settings."""
        return StepTable(self.capacity, self.streams, rule=self.rule, is_tracking=len(self.changed) > 0)

    def check(self) -> None:
        """Verify all invariants by recounting the rows of every episode.

        Raises:
            CorruptionError: Rows, streams and episodes are inconsistent.
        """
        slots, count = self.alive_slots(), len(self)
        if not 0 <= count <= self.capacity:
            raise errors.CorruptionError(f"{count} rows are alive in {self.capacity} slots")
        kept, twin, flags = self.rows_state(), self._twin(), append.COMPLETE | append.TERMINAL
        twin.restore(kept)
        of_rows = {
            "step": self.steps_of(slots) == twin.steps_of(slots),
            "link": self.following[slots] == twin.following[slots],
            "state": self.flags[slots] & flags == twin.flags[slots] & flags,
        }
        for name, is_right in of_rows.items():
            for slot in slots[~is_right]:
                raise errors.CorruptionError(f"the {name} of the row of key {self.keys(slot)} is not what it must be")
        oldest, (streams,) = self.episodes[append.OLDEST][kept.numbers], (self.last != append.NONE).nonzero()
        is_wrong = {
            "the numbers of episodes that are free are not those that nobody has": not np.array_equal(
                np.sort(self.free[: self.num_view[append.FREE]]), np.setdiff1d(np.arange(len(self.free)), kept.numbers)
            ),
            "a slot without a row has flags": np.delete(self.flags, slots).any(),
            "the oldest row of an episode is not what it must be": len(self.back) > 0
            and not np.array_equal(oldest, twin.episodes[append.OLDEST][: len(oldest)]),
            "the newest keys of a stream are not those of its episode": (
                (twin.recent > 0) & (twin.recent != self.recent)
            ).any(),
            "an episode is open in another stream than it says, or has another newest row": not (
                np.array_equal(self.episodes[append.STREAM][self.current[streams]], streams)
                and np.array_equal(self.last, twin.last)
            ),
        }
        for fault, is_found in is_wrong.items():
            if is_found:
                raise errors.CorruptionError(fault)
