"""Chains: which row follows which within an episode, over a ring of rows.

Rows of all streams lie in one ring in the order in which they came. An episode is a chain of rows in one stream. While
the streams are written in turn, one row each, the chain is arithmetic: the row after a key is the key `streams` later.

    key            0   1   2   3   4   5   6   7        three streams
    stream         0   1   2   0   1   2   0   1
    episode        a   b   c   a   b   d   a   e        after a0, at 0, come 3 and 6

A write out of turn links the rows of the chains, until all that is alive has come in turn again. Returns are the same.
"""

from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np

from relive.common import arrays as arrays_lib
from relive.kernels import episode_table
from relive.kernels import timeline_state

Run: TypeAlias = slice | arrays_lib.Ints
"""Slots of rows with consecutive keys: a slice of the ring, or where they wrap around its end the slots."""


class Ring:
    """The names of the rows in `capacity` slots.

    Attributes:
        capacity: How many rows are alive at most.
        next_key: The key of the row that comes next.
        num_evicted: How many rows were evicted so far.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.next_key = 0
        self.num_evicted = 0
        self._num_rows = 0

    def __len__(self) -> int:
        """Return how many rows are alive."""
        return self._num_rows

    @property
    def is_full(self) -> bool:
        """Whether there is a row in every slot, and the next one takes the place of the oldest."""
        return self._num_rows == self.capacity

    @property
    def oldest_key(self) -> int:
        """The key of the oldest row that is alive; next_key if there is none."""
        return self.next_key - self._num_rows

    def keys(self, slots: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the keys of the rows in `slots`."""
        newest = self.next_key - 1
        return newest - self.around(newest - slots)

    def slots(self, keys: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return where the rows with `keys` are, or were."""
        return self.around(keys)

    def is_alive(self, keys: arrays_lib.Ints) -> arrays_lib.Bools:
        """Return whether the rows with `keys` are still there."""
        return (keys >= self.oldest_key) & (keys < self.next_key)

    def alive_slots(self) -> arrays_lib.Ints:
        """Return where all rows are, oldest first."""
        return self.oldest_slots(self._num_rows)

    def oldest_slots(self, count: int) -> arrays_lib.Ints:
        """Return where the `count` oldest rows are, oldest first."""
        return self.slots_from(self.oldest_key, count)

    def free_slots(self, count: int) -> arrays_lib.Ints:
        """Return where the next `count` rows go; they hold the oldest rows as long as those are not evicted."""
        return self.slots_from(self.next_key, count)

    def key_of_one(self, slot: int) -> int:
        """Return the key of the row in `slot`."""
        return self.next_key - 1 - (self.next_key - 1 - slot) % self.capacity

    def run(self, key: int, count: int) -> Run:
        """Return where the rows of `count` keys are, from that key on."""
        slot = key % self.capacity
        if slot + count <= self.capacity:
            return slice(slot, slot + count)
        return self.slots_from(key, count)

    def slots_from(self, key: int, count: int) -> arrays_lib.Ints:
        """Return the slots of the rows of at most `capacity` keys, from that key on."""
        slot = key % self.capacity
        slots = np.arange(slot, slot + count)
        if slot + count > self.capacity:
            slots[self.capacity - slot :] -= self.capacity  # A division a row would take several times as long.
        return slots

    def around(self, places: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the slots of places counted on beyond the ends of the ring."""
        return np.remainder(places, self.capacity)


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

    def later(self, slots: arrays_lib.Ints, offsets: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the rows `offsets` [B] steps after those in `slots` [B]; they must be there."""
        later = slots.copy()
        for k in range(int(offsets.max(initial=0))):
            later = np.where(offsets > k, self.next[later], later)
        return later

    def ahead(self, slots: arrays_lib.Ints, count: int) -> arrays_lib.Ints:
        """Return the rows from those in `slots` [B] on [B, count]; the last one is repeated."""
        return _chain(self.next, slots, count)

    def behind(self, slots: arrays_lib.Ints, count: int) -> arrays_lib.Ints:
        """Return the rows up to those in `slots` [B], in time order [B, count]; the earliest one is repeated."""
        return _chain(self.previous, slots, count)[:, ::-1]

    def num_behind(self, slots: arrays_lib.Ints, most: int) -> arrays_lib.Ints:
        """Return how many rows lie before each of `slots` [B], counted up to `most`."""
        chain = _chain(self.previous, slots, most + 1)
        counts: arrays_lib.Ints = np.count_nonzero(chain[:, 1:] != chain[:, :-1], axis=1)
        return counts

    def earlier(self, slots: arrays_lib.Ints, count: int) -> arrays_lib.Ints:
        """Return the row `count` steps before each of `slots`, for those of them that have one."""
        for _ in range(count):
            previous = self.previous[slots]
            slots = previous[previous != slots]
        return slots

    # Writing.

    def link(self, slots: arrays_lib.Ints, steps: arrays_lib.Ints, before: arrays_lib.Ints) -> None:
        """Put rows into `slots` [k], which are those `steps` [k] and follow the rows `before` [k], or themselves."""
        self.step[slots] = steps
        self.next[slots] = slots
        self.previous[slots] = before
        follows = before != slots
        self.next[before[follows]] = slots[follows]

    def link_one(self, slot: int, step: int, before: int) -> None:
        """Do what `link` does for one row, in plain numbers."""
        self.step[slot] = step
        self.next[slot] = slot
        self.previous[slot] = before
        if before != slot:
            self.next[before] = slot

    def cut_off(self, slots: arrays_lib.Ints) -> None:
        """Take out the rows in `slots` [k]; each is the earliest of its chain, or comes after one that goes too."""
        following = self.next[slots]
        self.previous[following] = following


def _chain(links: arrays_lib.Ints, slots: arrays_lib.Ints, count: int) -> arrays_lib.Ints:
    """Return `slots` [B] and the rows that the links lead to [B, count]."""
    chain = np.empty((len(slots), count), np.int64)
    for k in range(count):
        chain[:, k] = slots
        slots = links[slots]
    return chain


class Rows(NamedTuple):
    """Rows, and where they are in their episodes.

    Attributes:
        slots: Where they are [B].
        keys: Their names [B].
        handles: Their episodes [B].
        steps: How many steps of its episode came before each of them [B].
        left: How many rows its episode has from each of them on, itself among them [B].
    """

    slots: arrays_lib.Ints
    keys: arrays_lib.Ints
    handles: arrays_lib.Ints
    steps: arrays_lib.Ints
    left: arrays_lib.Ints


class Chains(Ring, arrays_lib.Derived):
    """The chains of the rows of `streams` streams in a ring of `capacity` slots.

    Attributes:
        streams: How many streams there are, numbered from 0.
    """

    _DERIVED: ClassVar[tuple[str, ...]] = ("_one_handle",)

    def __init__(self, capacity: int, streams: int) -> None:
        super().__init__(capacity)
        self.streams = streams
        self._handle = np.zeros(capacity, np.int32 if capacity + streams < 2**31 else np.int64)
        self._table = episode_table.EpisodeTable()
        self._open = episode_table.OpenEpisodes(streams, self._table)
        self._links: Links | None = None
        # The streams are in turn while this is what key - stream leaves when divided by their number.
        self._phase = 0
        # The first key from which on they have been in turn, and the one that is to be the oldest before links may go.
        self._in_turn_since = 0
        self._unlink_at = 0
        self._derive()

    def _derive(self) -> None:
        self._one_handle = self._handle.data

    @property
    def episodes(self) -> episode_table.EpisodeTable:
        """The episodes that have rows alive, or are open."""
        return self._open.table

    @property
    def are_streams_in_turn(self) -> bool:
        """Whether the row after each is the one `streams` keys on, if its episode goes on."""
        return self._links is None

    # Rows within their episodes.

    def handles(self, slots: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the handles of the episodes of the rows in `slots`."""
        return self._handle[slots].astype(np.int64)

    def steps(self, slots: arrays_lib.Ints, handles: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return how many steps of its episode came before each of the rows in `slots`; `handles` are theirs."""
        if self._links:
            return self._links.step[slots]
        return self._in_turns(self.keys(slots) - self._table.first_key[handles])

    def rows(self, slots: arrays_lib.Ints) -> Rows:
        """Return what is to be known of the rows in `slots` [B]."""
        episodes = self.episodes
        keys, handles = self.keys(slots), self.handles(slots)
        steps = self._links.step[slots] if self._links else self._in_turns(keys - episodes.first_key[handles])
        return Rows(slots, keys, handles, steps, episodes.length[handles] - steps)

    def later(self, slots: arrays_lib.Ints, offsets: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the rows `offsets` [B] steps after those in `slots` [B]; they must be there."""
        if self._links:
            return self._links.later(slots, offsets)
        return self.around(slots + (offsets if self.streams == 1 else offsets * self.streams))

    def later_of(self, rows: Rows, offsets: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the rows `offsets` [B] steps after those [B], and any rows where their episodes have none there."""
        return self.later(rows.slots, offsets if self.is_full else np.minimum(offsets, rows.left - 1))

    def ahead(self, slots: arrays_lib.Ints, count: int) -> arrays_lib.Ints:
        """Return the rows from those in `slots` [B] on, in time order [B, count].

        Where an episode has no more rows its last one is repeated.
        """
        return self.ahead_of(self.rows(slots), count)

    def ahead_of(self, rows: Rows, count: int) -> arrays_lib.Ints:
        """Return `ahead` of rows [B] that were looked up already."""
        if self._links:
            return self._links.ahead(rows.slots, count)
        # Laid out by step: to work through rows of a few numbers each is slow. Few windows reach the end of the ring.
        turns = np.arange(0, count * self.streams, self.streams)[:, np.newaxis]
        slots = rows.slots + np.minimum(turns, (rows.left - 1) * self.streams)
        if slots[-1].max(initial=0) >= self.capacity:
            slots = self.around(slots)
        return slots.T

    def run_of(self, rows: Rows, count: int) -> arrays_lib.Ints:
        """Return those rows [B] and what follows, by step [count, B]; any rows where their episodes have no more."""
        if self._links or not self.is_full:
            return self.ahead_of(rows, count).T
        slots = rows.slots + np.arange(0, count * self.streams, self.streams)[:, np.newaxis]
        # Few runs reach over the end of the ring.
        return self.around(slots) if slots[-1].max(initial=0) >= self.capacity else slots

    def behind(self, slots: arrays_lib.Ints, count: int) -> arrays_lib.Ints:
        """Return the rows up to those in `slots` [B], in time order [B, count].

        Where an episode has no earlier row that is alive the earliest one is repeated, in front.
        """
        return self.behind_of(self.rows(slots), count)

    def behind_of(self, rows: Rows, count: int) -> arrays_lib.Ints:
        """Return `behind` of rows [B] that were looked up already."""
        if self._links:
            return self._links.behind(rows.slots, count)
        alive = np.minimum(rows.steps, self._in_turns(rows.keys - self.oldest_key))
        offsets = np.minimum(np.arange(count)[::-1], alive[:, np.newaxis])
        return self.around(rows.slots[:, np.newaxis] - offsets * self.streams)

    def num_behind(self, slots: arrays_lib.Ints, most: int) -> arrays_lib.Ints:
        """Return how many earlier rows of its episode are alive for each of `slots` [B], counted up to `most`."""
        if not self._links:
            return np.minimum(self._alive_before(slots), most)
        if len(slots) * most <= self._num_rows:
            return self._links.num_behind(slots, most)
        # To count the rows of all episodes takes less than to go back from so many.
        rows = self.alive_slots()
        handles = self._handle[rows]
        order = np.argsort(handles, kind="stable")
        counts = np.bincount(handles)
        before = np.empty(self.capacity, np.int64)
        before[rows[order]] = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.minimum(before[slots], most)

    def earlier(self, slots: arrays_lib.Ints, count: int) -> arrays_lib.Ints:
        """Return the row `count` steps before each of `slots`, for those of them that have one alive."""
        if self._links:
            return self._links.earlier(slots, count)
        return self.around(slots[self._alive_before(slots) >= count] - count * self.streams)

    def first(self, handles: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the rows of step 0 of those episodes, for those that have it alive."""
        keys = self.episodes.first_key[handles]
        return self.slots(keys[self.is_alive(keys)])

    # Of one row, in plain numbers.

    def step_of_one(self, slot: int) -> int:
        """Return how many steps of its episode came before the row in `slot`."""
        if self._links:
            return int(self._links.step[slot])
        return (self.key_of_one(slot) - int(self._table.first_key[self._handle[slot]])) // self.streams

    def earlier_of_one(self, slot: int, count: int) -> int:
        """Return the row `count` steps before the one in `slot`; -1 if its episode has none that is alive."""
        if self._links:
            earlier = self._links.earlier(np.array([slot]), count)
            return int(earlier[0]) if len(earlier) else -1
        key = self.key_of_one(slot) - count * self.streams
        is_there = key >= self.oldest_key and key >= self._table.first_key[self._handle[slot]]
        return key % self.capacity if is_there else -1

    def ahead_of_one(self, slot: int, count: int) -> list[int]:
        """Return the row in `slot` and those that follow it in its episode, `count` at most."""
        if self._links:
            return list(dict.fromkeys(self._links.ahead(np.array([slot]), count)[0].tolist()))
        key, handle = self.key_of_one(slot), self._handle[slot]
        following = range(key + self.streams, min(key + count * self.streams, self.next_key), self.streams)
        rows = [slot]
        for later in following:
            if self._handle[later % self.capacity] != handle:
                break
            rows.append(later % self.capacity)
        return rows

    def are_of_one_episode(self, these: int, those: int, count: int) -> bool:
        """Return whether each of `count` rows from one slot on is of the episode of its fellow from another one on."""
        handle_of = self._one_handle
        if count == 1:
            return bool(handle_of[these] == handle_of[those])
        return handle_of[these : these + count].tobytes() == handle_of[those : those + count].tobytes()

    # Turns.

    def _keep_turns(self, streams: arrays_lib.Ints, is_round: bool) -> None:
        """Link the rows if the next ones, one of each of `streams`, come out of turn."""
        if self.streams == 1 or not len(streams):
            return
        if not self._num_rows and not self._open.count:
            self._phase = (self.next_key - int(streams[0])) % self.streams
        if is_round:
            are_in_turn = (self.next_key - self._phase) % self.streams == 0
        else:
            keys = np.arange(self.next_key, self.next_key + len(streams))
            are_in_turn = not arrays_lib.any_set((keys - streams - self._phase) % self.streams != 0)
        self._keep_links(are_in_turn, self.next_key if is_round else self.next_key + len(streams))

    def _keep_turn_of_one(self, stream: int) -> None:
        """Do what `_keep_turns` does for the next row of one stream of many, in plain numbers."""
        if not self._num_rows and not self._open.count:
            self._phase = (self.next_key - stream) % self.streams
        self._keep_links((self.next_key - stream - self._phase) % self.streams == 0, self.next_key + 1)

    def _keep_links(self, are_in_turn: bool, next_turn: int) -> None:
        """Link the rows where the next ones come out of turn; `next_turn` is the key after them."""
        if not are_in_turn:
            self._link()
            self._begin_turns(next_turn)
        elif self._links and self.oldest_key >= self._unlink_at:
            self._unlink()

    def _begin_turns(self, key: int) -> None:
        """Set that the streams are out of turn up to that key, where stream 0 may begin a turn."""
        self._phase = key % self.streams
        self._in_turn_since = self._unlink_at = key

    def _link(self) -> None:
        """Link the rows that are alive."""
        if self._links:
            return
        made = Links(self.capacity)
        slots = self.alive_slots()
        steps = self.steps(slots, self.handles(slots))
        has_before = self._alive_before(slots) > 0
        made.link(slots, steps, np.where(has_before, self.around(slots - self.streams), slots))
        self._links = made

    def _unlink(self) -> None:
        """Do without links if every episode has begun since the streams are in turn; if not, asks again a ring on."""
        if self._table.first_key[self._table.handles()].min(initial=self._in_turn_since) < self._in_turn_since:
            self._unlink_at = self.next_key
        else:
            self._links = None

    def _restore_turns(self, state: timeline_state.TimelineState) -> None:
        """Link the rows of a state, if they were linked."""
        self._phase, self._in_turn_since, self._unlink_at = state.phase, state.in_turn_since, state.unlink_at
        self._links = None
        if state.is_linked:
            self._links = Links(self.capacity)
            order = np.argsort(state.episode, kind="stable")
            slots, episodes = self.slots(state.keys[order]), state.episode[order]
            follows = np.zeros(len(order), np.bool_)
            follows[1:] = episodes[1:] == episodes[:-1]
            self._links.link(slots, state.steps[order], np.where(follows, np.roll(slots, 1), slots))

    def _link_turn(self, linked: Links, slot: int) -> None:
        """Link the rows of a turn from that slot on, for which the oldest ones go if the ring is full."""
        slots = np.arange(slot, slot + self.streams)
        oldest_key = self.oldest_key
        if self.is_full:
            linked.cut_off(slots)
            oldest_key += self.streams
        lengths, last_keys = self._open.length, self._open.last_key
        follows = (lengths > 0) & (last_keys >= oldest_key)
        linked.link(slots, lengths, np.where(follows, self.slots(last_keys), slots))
        self._open.come_in_turn(self.next_key)

    def _in_turns(self, keys: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return how many rows of one stream come on that many keys."""
        return keys if self.streams == 1 else keys // self.streams

    def _alive_before(self, slots: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return how many earlier rows of their episodes are alive, while the streams are in turn."""
        first_keys: arrays_lib.Ints = self._table.first_key[self.handles(slots)]
        return self._in_turns(self.keys(slots) - np.maximum(first_keys, self.oldest_key))
