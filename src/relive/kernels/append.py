"""The rule of every write, on flat arrays: the oldest rows go, episodes are cut, rows come, episodes end.

All arrays are in one tuple, `rows`, which every function unpacks:

    flags[slot]     READABLE    a window may start here           COMPLETE    the observation after it is known
                    BARRED      a user said no                    TERMINAL    the task ended with it
                    SPENT       drawn as often as it may be       RATED       it has a raw priority
                    FRESH       it became eligible without one
    following[slot] the slot of the row after it in its episode, -1 where none is stored
    places[slot]    episode << 36 | step  which episode the row is of, and how many steps of it came before
    back[slot]      the slot of the row before it, -1 for none; of length 0 where no window looks back
    recent[stream, step % (lag + 2)]      the keys of the newest steps of its episode; of width 0 without a lag
    current[stream] the number of the open episode, if one is open
    last[stream]    the slot of the newest row of that episode, GONE if that was evicted, NONE if none is open
    knows[stream]   whether one is open, and the observation after its newest row is known
    episodes        [6, episodes]: STREAM .. OLDEST, below, of the episode of each number
    free            the numbers of episodes that are unused
    changed         slots whose eligibility has changed, since that was last asked; of length 0 where nothing asks
    num             NEXT_KEY .. PAD, below

A row is eligible where, of READABLE, BARRED and SPENT, the first alone is set. A slot without a row has the flags 0. An
episode keeps its number while a row of it is alive, or while it is open.

When a step is complete, the row `lag` steps before it becomes readable: the row itself for transitions, the first row
of what is then a whole sequence. `append` is the rule as a plain loop, which CPython runs over memoryviews;
`append_many` says the same in calls of numpy, for many rows at once.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.common import arrays as arrays_lib

READABLE, BARRED, SPENT, COMPLETE, RATED, FRESH, TERMINAL = 1, 2, 4, 8, 16, 32, 128  # One comparison tells the last.
ELIGIBILITY = READABLE | BARRED | SPENT
GONE, NONE = -1, -2
MOST_ROWS = 1 << 31
"""So many rows a ring has at most."""
EPISODE = 36
"""By how many bits the episode of a place is shifted: steps are below 2^36, and the numbers of episodes below 2^27."""
STEP = (1 << EPISODE) - 1
"""The bits of a place that are the step."""

STREAM, FIRST_KEY, LENGTH, END, KNOWN, OLDEST = range(6)
"""What is known of an episode: its stream; the key of its step 0; its steps, once it has ended or its newest row has
gone; how it ended; whether the observation after its last row is known, once it has ended and while a row of it is
alive; where windows look back, the slot of its oldest row that is alive, -1 for none."""
OPEN, TERMINATED, TRUNCATED, CUT = 0, 1, 2, 4
"""How an episode ended, and the bits of the event of a step; CUT: what is open in the stream ends before it."""
ENDS = TERMINATED | TRUNCATED
FEW = 12
"""So many beginnings or ends of a round are written one by one at most."""

NEXT_KEY, ROWS, FREE, ELIGIBLE, CHANGED, CLEARED, OLDER, LAG, STRIDE, PAD = range(10)
"""Numbers of the ring: the key of the next row; rows alive; entries of `free`, of eligible rows, of `changed` (more
than fit: any may have changed); rows that went otherwise than by eviction. And those of the window: how many frames
before its own a row is read with; how many steps must be complete after it; that anchors are every stride-th step; and
whether the first step of an episode is an anchor at once."""

Numbers: TypeAlias = Any
"""A flat array, or a memoryview of one."""
Rows: TypeAlias = Any
"""The tuple of all arrays, or of memoryviews of them."""


def views_of(rows: Rows) -> Rows:
    """Return memoryviews of the arrays, which CPython reads and writes several times faster."""
    return tuple([array.data for array in rows])


# As a loop.


def append(rows: Rows, streams: Numbers, events: bytes, announced: int) -> None:
    """Add a row to each of `streams` [k], one after the other; k is at most the capacity.

    Args:
        rows: All arrays; `free` must hold a number for each episode that begins.
        streams: Distinct, or k times the same one.
        events: For each a byte: TERMINATED or TRUNCATED if an episode ends with the row, CUT if the one before ends.
        announced: 1 if the observation after each of the rows is known, else 0.
    """
    flags, following, places, back, recent, _, last, knows, episodes, _, changed, num = rows
    capacity, count, width = len(flags), len(streams), num[LAG] + 2
    key = num[NEXT_KEY]
    surplus = num[ROWS] + count - capacity
    if surplus > 0:
        evict(rows, surplus)
    num[ROWS] += count
    num[NEXT_KEY] = key + count
    for i in range(count):
        if events[i] & CUT and last[streams[i]] != NONE:
            close(rows, streams[i])
    slot = key % capacity
    for i in range(count):
        stream, event = streams[i], events[i]
        before = last[stream]
        if before >= 0:
            place = places[before] + 1
            following[before] = slot
            if not flags[before] & COMPLETE:
                complete(flags, places, recent, episodes, changed, num, before)
        else:
            place = begin(rows, stream, key, slot)
        places[slot] = place
        following[slot] = -1
        flags[slot] = TERMINAL if event & TERMINATED else 0
        if len(back):
            back[slot] = max(before, GONE)
        if width > 2:
            recent[stream, (place & STEP) % width] = key
        if announced or event & TERMINATED:
            complete(flags, places, recent, episodes, changed, num, slot)
        last[stream] = slot
        knows[stream] = announced
        if event & ENDS:
            finish(rows, stream, event)
        key += 1
        slot += 1
        if slot == capacity:
            slot = 0


def evict(rows: Rows, count: int) -> None:
    """Take away the `count` oldest rows; the caller gives their slots other flags."""
    flags, following, places, _, _, _, _, _, episodes, _, changed, num = rows
    capacity = len(flags)
    slot = (num[NEXT_KEY] - num[ROWS]) % capacity
    for _ in range(count):
        place, link = places[slot], following[slot]
        if num[OLDER]:
            episodes[OLDEST, place >> EPISODE] = link
        if link < 0:
            leave(rows, place)
        make_unreadable(flags, changed, num, slot)
        for _ in range(num[OLDER]):  # Rows that have it in their stack of frames.
            if link < 0:
                break
            make_unreadable(flags, changed, num, link)
            link = following[link]
        slot += 1
        if slot == capacity:
            slot = 0
    num[ROWS] -= count


def make_unreadable(flags: Numbers, changed: Numbers, num: Numbers, slot: int) -> None:
    """Make a row unreadable."""
    if flags[slot] & ELIGIBILITY == READABLE:
        num[ELIGIBLE] -= 1
        note(changed, num, slot)
    flags[slot] &= ~READABLE


def note(changed: Numbers, num: Numbers, slot: int) -> None:
    """Note that the eligibility of a row has changed, if changes are tracked."""
    room = len(changed)
    if room:
        count = num[CHANGED]
        if count < room:
            changed[count] = slot
        num[CHANGED] = count + 1


def leave(rows: Rows, place: int) -> None:
    """Record that the newest row of an episode, in that place, is evicted."""
    _, _, _, _, _, _, last, _, episodes, free, _, num = rows
    episode = place >> EPISODE
    if episodes[END, episode] == OPEN:
        episodes[LENGTH, episode] = (place & STEP) + 1
        last[episodes[STREAM, episode]] = GONE
    else:
        episodes[KNOWN, episode] = 0
        free[num[FREE]] = episode
        num[FREE] += 1


def close(rows: Rows, stream: int) -> None:
    """Truncate the episode that is open in a stream after its newest row."""
    _, _, _, _, _, current, last, knows, episodes, free, _, num = rows
    episode = current[stream]
    if last[stream] >= 0:
        finish(rows, stream, TRUNCATED)
    else:  # No row of it is alive.
        free[num[FREE]] = episode
        num[FREE] += 1
        episodes[END, episode], episodes[KNOWN, episode] = TRUNCATED, 0
        last[stream], knows[stream] = NONE, 0


def begin(rows: Rows, stream: int, key: int, slot: int) -> int:
    """Return the place of a row that comes behind no other: the first of its episode, or all before it are gone."""
    _, _, _, _, _, current, last, _, episodes, free, _, num = rows
    if last[stream] == GONE:
        episode: int = current[stream]
    else:
        count = num[FREE] - 1
        num[FREE] = count
        current[stream] = episode = free[count]
        episodes[STREAM, episode], episodes[FIRST_KEY, episode] = stream, key
        episodes[LENGTH, episode], episodes[END, episode] = 0, OPEN
    if num[OLDER]:
        episodes[OLDEST, episode] = slot
    place: int = episode << EPISODE | episodes[LENGTH, episode]
    return place


def finish(rows: Rows, stream: int, event: int) -> None:
    """End the episode of a stream with its newest row."""
    _, _, places, _, _, current, last, knows, episodes, _, _, _ = rows
    episode = current[stream]
    episodes[LENGTH, episode], episodes[KNOWN, episode] = (places[last[stream]] & STEP) + 1, knows[stream]
    episodes[END, episode] = TERMINATED if event & TERMINATED else TRUNCATED
    last[stream], knows[stream] = NONE, 0


def complete(
    flags: Numbers, places: Numbers, recent: Numbers, episodes: Numbers, changed: Numbers, num: Numbers, slot: int
) -> None:
    """Mark a row as complete, and make the anchor readable that waited for it."""
    flags[slot] |= COMPLETE
    lag, step = num[LAG], places[slot] & STEP
    anchor = step - lag
    if num[PAD] and step == 0:  # It is an anchor at once, and not again when its turn comes.
        make_readable(flags, places, episodes, changed, num, slot)
    elif anchor < num[PAD] or anchor % num[STRIDE]:
        pass
    elif lag == 0:
        make_readable(flags, places, episodes, changed, num, slot)
    else:
        key = recent[episodes[STREAM, places[slot] >> EPISODE], anchor % (lag + 2)]
        if key >= num[NEXT_KEY] - num[ROWS]:
            make_readable(flags, places, episodes, changed, num, key % len(flags))


def make_readable(
    flags: Numbers, places: Numbers, episodes: Numbers, changed: Numbers, num: Numbers, slot: int
) -> None:
    """Make a row readable, if its frames are stored."""
    place = places[slot]
    step = place & STEP
    if num[OLDER] == 0 or step - (places[episodes[OLDEST, place >> EPISODE]] & STEP) >= min(step, num[OLDER]):
        flags[slot] |= READABLE
        if flags[slot] & ELIGIBILITY == READABLE:
            num[ELIGIBLE] += 1
            if len(changed) and not flags[slot] & RATED:
                flags[slot] |= FRESH
            note(changed, num, slot)


# In calls of numpy.


def append_many(rows: Rows, streams: arrays_lib.Ints, events: bytes, announced: int) -> None:
    """`append` in calls of numpy, but for what begins and what ends."""
    flags, following, places, back, recent, _, last, knows, _, _, changed, num = rows
    capacity, count = len(flags), len(streams)
    counts = num.data  # To read and to write single numbers of a memoryview is several times faster.
    key, lag = counts[NEXT_KEY], counts[LAG]
    surplus = counts[ROWS] + count - capacity
    if surplus > 0:
        evict_many(rows, surplus)
    counts[ROWS] += count
    counts[NEXT_KEY] += count
    slots, run = slots_from(key, count, capacity), run_from(key, count, capacity)
    is_run = count > 1 and streams.item(0) == streams.item(1)
    heads: Any = streams[:1] if is_run else streams
    has_events = events.count(0) < count
    bits: Any = np.frombuffer(events, np.uint8) if has_events else None
    if has_events and max(events) >= CUT:
        views = views_of(rows)
        for stream in heads[(bits[: len(heads)] & CUT) > 0].tolist():
            if last[stream] != NONE:
                close(views, stream)
    # Where the rows go on.
    before = last.take(heads)
    newest, known = places.take(before, mode="clip"), knows.take(heads)
    goes_on = before.item(before.argmin()) >= 0
    if not goes_on:
        views = views_of(rows)
        (alone,) = (before < 0).nonzero()
        for i in alone.tolist():
            newest[i] = begin(views, heads.item(i), key + i, slots.item(i)) - 1
        before[alone], known[alone] = -1, 1
    if is_run:
        newest = newest + np.arange(1, count + 1)
        before = np.concatenate([before, slots[:-1]])
    else:
        newest += 1
    places[run] = newest
    if len(back):
        back[run] = before
    # What is known of the new rows, and of those before them.
    is_at_once = lag == 0 and not counts[OLDER] and counts[STRIDE] == 1
    if announced and is_at_once:
        flags[run] = COMPLETE | READABLE | FRESH if len(changed) else COMPLETE | READABLE
    else:
        flags[run] = COMPLETE if announced else 0
    completed = slots
    if not announced:
        completed = slots[(bits & TERMINATED) > 0] if has_events else slots[:0]
        flags[completed] |= COMPLETE
    following[run] = -1
    later, earlier = slots, before
    if not goes_on:
        are_after = before >= 0
        later, earlier = slots[are_after], before[are_after]
    following[earlier] = later
    waiting = earlier[:0]
    if (is_run and not announced) or not known.item(known.argmin()):
        waiting = earlier[(flags.take(earlier) & COMPLETE) == 0]
        flags[waiting] |= COMPLETE
    # What is readable now.
    if announced and is_at_once:
        counts[ELIGIBLE] += count
        note_many(changed, num, slots)
        _make_all_readable(rows, waiting)
    elif lag == 0:
        _make_all_readable(rows, _anchors(rows, np.concatenate([waiting, completed]), None, 0))
    else:
        steps, keys, table, first = newest & STEP, np.arange(key, key + count), None, 0
        if is_run:
            # By step: the keys of the rows before these, as far as they count, and of these.
            first = max(steps.item(0) - lag - 1, 0)
            table = np.concatenate([recent[heads.item(0), np.arange(first, steps.item(0)) % (lag + 2)], keys])
            steps, keys = steps[-lag - 2 :], keys[-lag - 2 :]
        recent[heads, steps % (lag + 2)] = keys
        _make_all_readable(rows, _anchors(rows, np.concatenate([waiting, completed]), table, first))
    last[heads] = slots[-1:] if is_run else slots
    knows[heads] = announced
    if has_events:
        views = views_of(rows)
        for i in (bits & ENDS).nonzero()[0].tolist():
            if events[i] & TERMINATED:
                views[0][slots.item(i)] |= TERMINAL
            finish(views, streams.item(i), events[i])


def leaving(rows: Rows, slots: arrays_lib.Ints) -> Callable[[], None] | None:
    """Return a function that does what `leave` does for the rows in `slots` [k]; None if an episode of them is open.

    It needs no memory.
    """
    _, _, places, _, _, _, _, _, episodes, free, _, num = rows
    numbers, unknown = places.take(slots) >> EPISODE, np.zeros(len(slots), np.int64)
    how = episodes[END].take(numbers)
    if how.item(how.argmin()) == OPEN:
        return None

    def leave_all() -> None:
        rest = num.item(FREE)
        free[rest : rest + len(numbers)], episodes[KNOWN][numbers] = numbers, unknown
        num[FREE] = rest + len(numbers)

    return leave_all


def beginning(
    rows: Rows, streams: arrays_lib.Ints, begins: arrays_lib.Ints, key: int, newest: arrays_lib.Ints
) -> Callable[[], None]:
    """Return a function that does what `begin` does for each of `streams` [k], in which no episode is open.

    It needs no memory, and writes the places of their rows into `newest`, at `begins`.
    """
    _, _, _, _, _, current, _, knows, episodes, free, _, num = rows
    count = len(streams)
    numbers, known, shifts = np.empty(count, np.int64), np.ones(count, np.int64), np.full(count, EPISODE)
    table = np.zeros((OLDEST, count), np.int64)
    table[STREAM], table[FIRST_KEY] = streams, begins + key

    def begin_all() -> None:
        rest = num.item(FREE) - count
        numbers[:] = free[rest : rest + count][::-1]
        num[FREE] = rest
        episodes[:OLDEST, numbers], current[streams], knows[streams] = table, numbers, known
        np.left_shift(numbers, shifts, out=numbers)
        newest[begins] = numbers

    return begin_all


def ending(
    rows: Rows, streams: arrays_lib.Ints, ends: arrays_lib.Ints, slot: int, events: bytes, newest: arrays_lib.Ints
) -> Callable[[], None]:
    """Return a function that does what `finish` does for each of `streams` [k], whose rows are at `ends` of the round.

    It needs no memory.
    """
    flags, _, _, _, _, current, last, knows, episodes, _, _, _ = rows
    is_terminated = (np.frombuffer(events, np.uint8)[ends] & TERMINATED) > 0
    numbers, lengths, how = np.empty(len(ends), np.int64), (newest[ends] & STEP) + 1, np.where(is_terminated, 1, 2)
    none, known, unknown = np.full(len(ends), NONE), np.ones(len(ends), np.int64), np.zeros(len(ends), np.int64)
    terminal = ends[is_terminated] + slot
    marks = np.full(len(terminal), COMPLETE | READABLE | TERMINAL, np.uint8)
    if len(rows[-2]):
        marks |= np.uint8(FRESH)

    def end_all() -> None:
        current.take(streams, out=numbers, mode="clip")  # Without a buffer, which "raise" would need.
        episodes[LENGTH][numbers], episodes[END][numbers], episodes[KNOWN][numbers] = lengths, how, known
        last[streams], knows[streams], flags[terminal] = none, unknown, marks

    return end_all


def evict_many(rows: Rows, count: int) -> None:
    """`evict` in calls of numpy."""
    flags, following, places, _, _, _, _, _, episodes, _, changed, num = rows
    counts = num.data
    run = run_from(counts[NEXT_KEY] - counts[ROWS], count, len(flags))
    links, in_places = following[run], places[run]
    lost: Any = run
    if counts[OLDER]:
        followers, behind = [as_slots(run, count)], links
        for _ in range(counts[OLDER]):
            behind = behind[behind >= 0]
            if not len(behind):
                break
            followers.append(behind)
            behind = following.take(behind)
        lost = np.unique(np.concatenate(followers))
    eligible = are_eligible(flags[lost])
    counts[ELIGIBLE] -= eligible.count(1)
    if len(changed):
        note_many(changed, num, as_slots(lost, count)[np.frombuffer(eligible, np.bool_)])
    if counts[OLDER]:
        flags[lost] &= ~np.uint8(READABLE)
        episodes[OLDEST][in_places >> EPISODE] = links  # For a repeated episode, the last one wins.
    if links.item(links.argmin()) < 0:
        views = views_of(rows)
        for place in in_places[links < 0].tolist():
            leave(views, place)
    counts[ROWS] -= count


def note_many(changed: arrays_lib.Ints, num: arrays_lib.Ints, slots: arrays_lib.Ints) -> None:
    """`note` for each of `slots`."""
    if len(changed):
        count = num.item(CHANGED)
        room = changed[count : count + len(slots)]
        room[:] = slots[: len(room)]
        num[CHANGED] = count + len(slots)


def count_ineligible(changed: arrays_lib.Ints, num: arrays_lib.Ints, slots: arrays_lib.Ints) -> None:
    """Count the rows in `slots`, which ceased to be eligible."""
    num[ELIGIBLE] -= len(slots)
    note_many(changed, num, slots)


def count_eligible(
    flags: npt.NDArray[np.uint8], changed: arrays_lib.Ints, num: arrays_lib.Ints, slots: arrays_lib.Ints
) -> None:
    """Count the rows in `slots`, which became eligible."""
    num[ELIGIBLE] += len(slots)
    if len(changed):
        flags[slots[(flags.take(slots) & RATED) == 0]] |= FRESH
        note_many(changed, num, slots)


def _anchors(rows: Rows, completed: arrays_lib.Ints, table: arrays_lib.Ints | None, first: int) -> arrays_lib.Ints:
    """Return the rows from which a window can be read since rows are complete, as `complete` says, but for frames.

    Args:
        rows: All arrays.
        completed: The slots of the complete rows.
        table: If they are all of one episode, the keys of its steps from `first` on; else `recent` has them.
        first: The step of the first of those.
    """
    flags, _, places, _, recent, _, _, _, episodes, _, _, num = rows
    lag, pad = num.item(LAG), num.item(PAD)
    steps = places.take(completed) & STEP
    anchors = steps - lag
    is_one = (anchors >= pad) & (anchors % num.item(STRIDE) == 0)
    found, anchors = completed[is_one], anchors[is_one]
    if lag:
        if table is None:
            keys = recent[episodes[STREAM].take(places.take(found) >> EPISODE), anchors % (lag + 2)]
        else:
            keys = table[anchors - first]
        keys = keys[keys >= num.item(NEXT_KEY) - num.item(ROWS)]
        found = keys % len(flags)
    return np.concatenate([found, completed[steps == 0]]) if pad else found


def _make_all_readable(rows: Rows, ready: arrays_lib.Ints) -> None:
    """`make_readable` for each of the distinct rows in `ready`."""
    flags, _, places, _, _, _, _, _, episodes, _, changed, num = rows
    older = num.item(OLDER)
    if older and len(ready):
        of_rows = places.take(ready)
        steps = of_rows & STEP
        earliest = places.take(episodes[OLDEST].take(of_rows >> EPISODE)) & STEP
        ready = ready[steps - earliest >= np.minimum(steps, older)]
    if len(ready):
        found = flags.take(ready) | np.uint8(READABLE)
        flags[ready] = found
        count_eligible(flags, changed, num, ready[(found & ELIGIBILITY) == READABLE])


_ARE_ELIGIBLE = bytes(flags & ELIGIBILITY == READABLE for flags in range(256))


def are_eligible(flags: npt.NDArray[np.uint8]) -> bytes:
    """Return whether the row of each of some flags is eligible, as bytes 1 and 0."""
    return flags.tobytes().translate(_ARE_ELIGIBLE)


def run_from(key: int, count: int, capacity: int) -> slice | arrays_lib.Ints:
    """Return where the rows of `count` keys are, from that key on: a slice, unless they wrap around."""
    slot = key % capacity
    return slice(slot, slot + count) if slot + count <= capacity else slots_from(key, count, capacity)


def slices_from(key: int, count: int, capacity: int) -> list[slice]:
    """Return the same as one slice, or as two if they wrap around."""
    slot = key % capacity
    before_end = min(count, capacity - slot)
    return [slice(slot, slot + before_end), slice(0, count - before_end)]


def slots_from(key: int, count: int, capacity: int) -> arrays_lib.Ints:
    """Return the slots of the rows of `count` keys, from that key on; at most `capacity`."""
    slot = key % capacity
    slots = np.arange(slot, slot + count)
    if slot + count > capacity:
        slots[capacity - slot :] -= capacity  # A division a row would take several times as long.
    return slots


def as_slots(run: slice | arrays_lib.Ints, count: int) -> arrays_lib.Ints:
    """Return the slots of a run."""
    return np.arange(run.start, run.start + count) if isinstance(run, slice) else run


def keys_of(num: arrays_lib.Ints, slots: arrays_lib.Ints, capacity: int) -> arrays_lib.Keys:
    """Return the keys of the rows in `slots`, which are alive, of any shape."""
    # Without a division a row, which would take several times as long.
    newest = num.item(NEXT_KEY) - 1
    place = newest % capacity
    turn = newest - place
    if not turn:
        return slots.copy()
    keys: arrays_lib.Keys = slots + np.array((turn, turn - capacity)).take(slots > place)
    return keys
