"""The rule of every write, on flat arrays: the oldest rows go, episodes are cut, rows come, episodes end.

    facts[slot]     link << 32 | flags    link: the slot of the row after it in its episode, -1 where none is stored
    places[slot]    episode << 36 | step  which episode the row is of, and how many steps of it came before
    back[slot]      the slot of the row before it, -1 for none; of length 0 where no window looks back

    flags           READABLE    a window may start here           COMPLETE    the observation after it is known
                    BARRED      a user said no                    TERMINAL    the task ended with it
                    SPENT       drawn as often as it may be       RATED       it has a raw priority

A row is eligible where, of the first three flags, READABLE alone is set. A slot without a row has the fact 0.

    last[stream]    the slot of the newest row of its open episode, GONE if that was evicted, NONE if none is open
    current[stream] the number of that episode, if one is open
    knows[stream]   whether one is open, and the observation after its newest row is known
    episodes        [7, episodes]: STREAM .. CURSOR, below, of the episode of each number; `free` lists those unused

An episode keeps its number while a row of it is alive, or while it is open. `append` is the rule as a plain loop, which
CPython runs over memoryviews and numba compiles; `append_many` says the same in calls of numpy, for many rows at once.
"""

import sys
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive.common import arrays

READABLE, BARRED, SPENT, COMPLETE, TERMINAL, RATED = 1, 2, 4, 8, 16, 1 << 8
ELIGIBILITY = READABLE | BARRED | SPENT
GONE, NONE = -1, -2
LINK = 32
"""By how many bits the link of a fact is shifted, so that numpy writes it as a number of its own: see `links_of`."""
FLAGS = (1 << LINK) - 1
"""The bits of a fact that are flags."""
NO_LINK = -1 << LINK
"""The fact of a row that nothing follows, without its flags."""
MOST_ROWS = 1 << (LINK - 1)
"""So many rows a ring has at most."""
EPISODE = 36
"""By how many bits the episode of a place is shifted: steps are below 2^36, and the numbers of episodes below 2^27."""
STEP = (1 << EPISODE) - 1
"""The bits of a place that are the step."""

STREAM, FIRST_KEY, LENGTH, END, KNOWN, OLDEST, CURSOR = range(7)
"""What is known of an episode: its stream; the key of its step 0; its steps, once it has ended or its newest row has
gone; how it ended; whether the observation after its last row is known, once it has ended; the slot of its oldest row
that is alive, -1 for none; and a row of it that a window has come to."""
OPEN, TERMINATED, TRUNCATED, CUT = 0, 1, 2, 4
"""How an episode ended, and the bits of the event of a step; CUT: what is open in the stream ends before it."""

NEXT_KEY, ROWS, FREE, ELIGIBLE, CHANGED, COMPLETED, UNWEIGHED, CLEARED = range(8)
"""Numbers of the ring: the key of the next row; rows alive; entries of `free`, of eligible rows, of `changed` and of
`completed`; whether a row became eligible whose priority is not weighed yet; rows that went otherwise than by
eviction."""

Numbers: TypeAlias = Any
"""A flat array, or a memoryview of one."""


def evict(
    facts: Numbers,
    places: Numbers,
    last: Numbers,
    episodes: Numbers,
    free: Numbers,
    num: Numbers,
    first: int,
    count: int,
    older: int,
    leaves: Numbers,
    changed: Numbers,
) -> None:
    """Take away the `count` oldest rows, from the key `first` on; the other arguments are those of `append`.

    The caller counts how many rows are left, and gives their slots other facts.
    """
    is_rated, is_tracked = len(leaves) > 0, len(changed) > 0
    for key in range(first, first + count):
        slot = key % len(facts)
        fact, place = facts[slot], places[slot]
        link = fact >> LINK
        episodes[OLDEST, place >> EPISODE] = link
        if link < 0:
            leave(last, episodes, free, num, place)
        if fact & ELIGIBILITY == READABLE:
            num[ELIGIBLE] -= 1
        if is_rated:
            leaves[slot] = 0.0
        if is_tracked:
            changed[num[CHANGED]] = slot
            num[CHANGED] += 1
        if older > 0:
            # Rows that have it in their stack of frames.
            for _ in range(older):
                if link < 0:
                    break
                fact = facts[link]
                if fact & READABLE:
                    if fact & ELIGIBILITY == READABLE:
                        num[ELIGIBLE] -= 1
                    facts[link] = fact & ~READABLE
                    if is_rated:
                        leaves[link] = 0.0
                    if is_tracked:
                        changed[num[CHANGED]] = link
                        num[CHANGED] += 1
                link = fact >> LINK


def leave(last: Numbers, episodes: Numbers, free: Numbers, num: Numbers, place: int) -> None:
    """Take in that the newest row of an episode goes, which is in that place; the arguments are those of `append`."""
    episode = place >> EPISODE
    if episodes[END, episode] == OPEN:
        episodes[LENGTH, episode] = (place & STEP) + 1
        last[episodes[STREAM, episode]] = GONE
    else:
        free[num[FREE]] = episode
        num[FREE] += 1


def close(
    places: Numbers,
    current: Numbers,
    last: Numbers,
    knows: Numbers,
    episodes: Numbers,
    free: Numbers,
    num: Numbers,
    stream: int,
) -> None:
    """Truncate the episode that is open in a stream after its newest row; the arguments are those of `append`."""
    episode, newest = current[stream], last[stream]
    episodes[END, episode], episodes[KNOWN, episode] = TRUNCATED, knows[stream]
    if newest >= 0:
        episodes[LENGTH, episode] = (places[newest] & STEP) + 1
    else:
        free[num[FREE]] = episode
        num[FREE] += 1
    last[stream] = NONE
    knows[stream] = 0


def append(
    facts: Numbers,
    places: Numbers,
    back: Numbers,
    current: Numbers,
    last: Numbers,
    knows: Numbers,
    episodes: Numbers,
    free: Numbers,
    num: Numbers,
    numbers: Numbers,
    events: Numbers,
    announced: int,
    older: int,
    raw: Numbers,
    leaves: Numbers,
    changed: Numbers,
    completed: Numbers,
    top_raw: float,
    top_weight: float,
) -> None:
    """Add a row to each of the streams `numbers` [k], one after the other; k is at most the capacity.

    Args:
        facts: As above, as the next ones.
        places: As above.
        back: As above.
        current: As above.
        last: As above.
        knows: As above.
        episodes: As above.
        free: As above; it must hold a number for each episode that begins.
        num: As above.
        numbers: The streams; distinct, or k times the same one.
        events: TERMINATED or TRUNCATED where an episode ends with the row, CUT where the one before ends [k].
        announced: 1 if the observation after each of the rows is known, else 0.
        older: How many frames before its own a row is read with; -1 where something else says what is readable.
        raw: Raw priorities by slot; of length 0 without priorities.
        leaves: Their weights; of length 0 without priorities.
        changed: Takes the slots that ceased to be eligible or became so; of length 0 where they are not tracked.
        completed: Takes the slots of rows that are complete now, with `older` of -1.
        top_raw: The raw priority of a row when it can first be drawn, if it was not rated.
        top_weight: Its weight.
    """
    capacity, count = len(facts), len(numbers)
    key, rows = num[NEXT_KEY], num[ROWS]
    surplus = rows + count - capacity
    if surplus > 0:
        evict(facts, places, last, episodes, free, num, key - rows, surplus, older, leaves, changed)
        num[ROWS] = capacity
    else:
        num[ROWS] = rows + count
    for i in range(count):
        if events[i] & CUT and last[numbers[i]] != NONE:
            close(places, current, last, knows, episodes, free, num, numbers[i])
    for i in range(count):
        stream, event = numbers[i], events[i]
        slot = key % capacity
        before = last[stream]
        if before >= 0:
            place = places[before] + 1
            fact = facts[before]
            facts[before] = slot << LINK | fact & FLAGS
            if not fact & COMPLETE:
                complete(
                    facts, places, episodes, num, before, older, raw, leaves, changed, completed, top_raw, top_weight
                )
        else:
            place = begin(current, last, episodes, free, num, stream, key, slot)
        places[slot] = place
        facts[slot] = NO_LINK | TERMINAL if event & TERMINATED else NO_LINK
        if len(back):
            back[slot] = max(before, GONE)
        if announced or event & TERMINATED:
            complete(facts, places, episodes, num, slot, older, raw, leaves, changed, completed, top_raw, top_weight)
        last[stream] = slot
        knows[stream] = announced
        if event & (TERMINATED | TRUNCATED):
            finish(last, knows, episodes, stream, place, event, announced)
        key += 1
    num[NEXT_KEY] = key


def begin(
    current: Numbers,
    last: Numbers,
    episodes: Numbers,
    free: Numbers,
    num: Numbers,
    stream: int,
    key: int,
    slot: int,
) -> int:
    """Return the place of a row that comes behind no other: the first of its episode, or all before it are gone."""
    if last[stream] == GONE:
        episode: int = current[stream]
    else:
        num[FREE] -= 1
        current[stream] = episode = free[num[FREE]]
        episodes[STREAM, episode], episodes[FIRST_KEY, episode] = stream, key
        episodes[LENGTH, episode], episodes[END, episode], episodes[CURSOR, episode] = 0, OPEN, slot
    episodes[OLDEST, episode] = slot
    place: int = episode << EPISODE | episodes[LENGTH, episode]
    return place


def finish(
    last: Numbers, knows: Numbers, episodes: Numbers, stream: int, place: int, event: int, announced: int
) -> None:
    """End the episode of a stream with its newest row, which is in that place."""
    last[stream], knows[stream] = NONE, 0
    episode = place >> EPISODE
    episodes[LENGTH, episode], episodes[KNOWN, episode] = (place & STEP) + 1, announced
    episodes[END, episode] = TERMINATED if event & TERMINATED else TRUNCATED


def complete(
    facts: Numbers,
    places: Numbers,
    episodes: Numbers,
    num: Numbers,
    slot: int,
    older: int,
    raw: Numbers,
    leaves: Numbers,
    changed: Numbers,
    completed: Numbers,
    top_raw: float,
    top_weight: float,
) -> None:
    """Take in that the observation after a row is known now; the arguments are those of `append`."""
    fact = facts[slot] | COMPLETE
    if older < 0:
        completed[num[COMPLETED]] = slot
        num[COMPLETED] += 1
    elif older == 0 or has_frames(places, episodes, slot, older):
        fact |= READABLE
        if fact & ELIGIBILITY == READABLE:
            num[ELIGIBLE] += 1
            if len(raw):
                if fact & RATED:
                    num[UNWEIGHED] = 1
                else:
                    fact |= RATED
                    raw[slot] = top_raw
                    leaves[slot] = top_weight
            if len(changed):
                changed[num[CHANGED]] = slot
                num[CHANGED] += 1
    facts[slot] = fact


def has_frames(places: Numbers, episodes: Numbers, slot: int, older: int) -> bool:
    """Return whether the `older` rows before one, or all that its episode has, are alive."""
    place = places[slot]
    step = place & STEP
    has_them: bool = step - (places[episodes[OLDEST, place >> EPISODE]] & STEP) >= min(step, older)
    return has_them


def evict_many(
    facts: arrays.Ints,
    places: arrays.Ints,
    last: arrays.Ints,
    episodes: arrays.Ints,
    free: arrays.Ints,
    num: arrays.Ints,
    first: int,
    count: int,
    older: int,
    leaves: arrays.Floats,
    changed: arrays.Ints,
) -> None:
    """Do what `evict` does, in calls of numpy."""
    counts, run = num.data, run_from(first, count, len(facts))
    evicted, in_places = facts[run], places[run]
    lost: Any = run
    if older > 0:
        links, followers = evicted >> LINK, [as_slots(run, count)]
        for _ in range(older):
            links = links[links >= 0]
            if not len(links):
                break
            followers.append(links)
            links = facts.take(links) >> LINK
        lost = np.unique(np.concatenate(followers))
    counts[ELIGIBLE] -= are_eligible(facts[lost]).count(1)
    episodes[OLDEST][in_places >> EPISODE] = evicted >> LINK  # Of an episode that is there twice the last one stays.
    if evicted.item(evicted.argmin()) < 0:
        views = last.data, episodes.data, free.data, counts
        for place in in_places[evicted < 0].tolist():
            leave(*views, place)
    if older > 0:
        facts[lost] &= ~READABLE
    if len(leaves):
        leaves[lost] = 0.0
    if len(changed):
        record(changed, num, CHANGED, as_slots(lost, count))


def append_many(
    facts: arrays.Ints,
    places: arrays.Ints,
    back: Any,
    current: arrays.Ints,
    last: arrays.Ints,
    knows: arrays.Ints,
    episodes: arrays.Ints,
    free: arrays.Ints,
    num: arrays.Ints,
    numbers: arrays.Ints,
    events: Any,
    announced: int,
    older: int,
    raw: arrays.Floats,
    leaves: arrays.Floats,
    changed: arrays.Ints,
    completed: arrays.Ints,
    top_raw: float,
    top_weight: float,
) -> None:
    """Do what `append` does, in calls of numpy but for what begins and what ends."""
    capacity, count = len(facts), len(numbers)
    counts = num.data  # To read and to write single numbers of a memoryview is several times faster.
    key, rows = counts[NEXT_KEY], counts[ROWS]
    surplus = rows + count - capacity
    if surplus > 0:
        evict_many(facts, places, last, episodes, free, num, key - rows, surplus, older, leaves, changed)
        rows = capacity - count
    counts[ROWS] = rows + count
    slots = slots_from(key, count, capacity)
    run = run_from(key, count, capacity)
    is_run = count > 1 and numbers.item(0) == numbers.item(1)
    heads: Any = numbers[:1] if is_run else numbers
    flags = events.tobytes()
    has_events = flags.count(0) < count
    if has_events and max(flags) >= CUT:
        for stream in heads[(events[: len(heads)] & CUT) > 0].tolist():
            if last[stream] != NONE:
                close(places, current, last, knows, episodes, free, num, stream)
    # Where the rows go on.
    before = last.take(heads)
    newest, known = places.take(before, mode="clip"), knows.take(heads)
    goes_on = before.item(before.argmin()) >= 0
    if not goes_on:
        views = current.data, last.data, episodes.data, free.data, counts
        (alone,) = (before < 0).nonzero()
        for i in alone.tolist():
            newest[i] = begin(*views, heads.item(i), key + i, slots.item(i)) - 1
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
    is_rated = len(raw) > 0
    fact = NO_LINK
    if announced:
        fact |= COMPLETE
        if not older:
            fact |= READABLE | RATED if is_rated else READABLE
    facts[run] = fact
    complete_rows = slots
    if not announced:
        complete_rows = slots[(events & TERMINATED) > 0] if has_events else slots[:0]
        facts[complete_rows] |= COMPLETE
    following, followed = slots, before
    if not goes_on:
        are_after = before >= 0
        following, followed = slots[are_after], before[are_after]
    links_of(facts)[followed] = following
    waiting = followed[:0]
    if (is_run and not announced) or not known.item(known.argmin()):
        waiting = followed[(facts.take(followed) & COMPLETE) == 0]
        facts[waiting] |= COMPLETE
    # What is readable now.
    if older < 0:
        record(completed, num, COMPLETED, waiting)
        record(completed, num, COMPLETED, complete_rows)
    elif announced and not older:
        counts[ELIGIBLE] += count
        if is_rated:
            raw[run], leaves[run] = top_raw, top_weight
        if len(changed):
            record(changed, num, CHANGED, slots)
        _let_in(facts, num, waiting, raw, leaves, changed, top_raw, top_weight)
    else:
        ready = np.concatenate([waiting, complete_rows])
        if older:
            ofs = places.take(ready)
            steps = ofs & STEP
            earliest = places.take(episodes[OLDEST].take(ofs >> EPISODE)) & STEP
            ready = ready[steps - earliest >= np.minimum(steps, older)]
        _let_in(facts, num, ready, raw, leaves, changed, top_raw, top_weight)
    last[heads] = slots[-1:] if is_run else slots
    knows[heads] = announced
    counts[NEXT_KEY] = key + count
    if has_events:
        ends = last.data, knows.data, episodes.data
        for i in (events & (TERMINATED | TRUNCATED)).nonzero()[0].tolist():
            finish(*ends, numbers.item(i), newest.item(i), flags[i], announced)
            if flags[i] & TERMINATED:
                facts.data[slots.item(i)] |= TERMINAL


_ARE_ELIGIBLE = bytes(flags & ELIGIBILITY == READABLE for flags in range(256))
_IS_LITTLE = sys.byteorder == "little"
_UPPER_HALF = 1 if _IS_LITTLE else 0
_BYTES = {READABLE: 0, RATED: 1} if _IS_LITTLE else {READABLE: 7, RATED: 6}
"""Where the bytes of a fact are that begin with those flags."""


def _let_in(
    facts: arrays.Ints,
    num: arrays.Ints,
    ready: arrays.Ints,
    raw: arrays.Floats,
    leaves: arrays.Floats,
    changed: arrays.Ints,
    top_raw: float,
    top_weight: float,
) -> None:
    """Make rows readable that were not."""
    if not len(ready):
        return
    found = facts[ready] | READABLE
    facts[ready] = found
    is_eligible = (found & ELIGIBILITY) == READABLE
    entered, found = ready[is_eligible], found[is_eligible]
    num[ELIGIBLE] += len(entered)
    if len(raw):
        is_new = (found & RATED) == 0
        new = entered[is_new]
        raw[new], leaves[new] = top_raw, top_weight
        facts[new] |= RATED
        if len(new) < len(entered):
            num[UNWEIGHED] = 1
    if len(changed):
        record(changed, num, CHANGED, entered)


def are_eligible(facts: arrays.Ints) -> bytes:
    """Return of each of some facts whether its row is eligible, as bytes 1 and 0."""
    return facts.view(np.uint8)[_BYTES[READABLE] :: 8].tobytes().translate(_ARE_ELIGIBLE)


def links_of(facts: arrays.Ints) -> npt.NDArray[np.int32]:
    """Return the links of some facts as a view of them."""
    return facts.view(np.int32)[_UPPER_HALF::2]


def mark_rated(facts: arrays.Ints, slots: arrays.Ints) -> None:
    """Set RATED, which has a byte of its own, of the rows in `slots`, which may repeat."""
    facts.view(np.uint8)[_BYTES[RATED] :: 8][slots] = 1


def record(into: arrays.Ints, num: arrays.Ints, place: int, slots: arrays.Ints) -> None:
    """Write `slots` behind what is in an array; num[place] says how much that is."""
    count = num.item(place)
    into[count : count + len(slots)] = slots
    num[place] = count + len(slots)


def run_from(key: int, count: int, capacity: int) -> slice | arrays.Ints:
    """Return where the rows of `count` keys are, from that key on: a slice, unless they wrap around."""
    slot = key % capacity
    return slice(slot, slot + count) if slot + count <= capacity else slots_from(key, count, capacity)


def slots_from(key: int, count: int, capacity: int) -> arrays.Ints:
    """Return the slots of the rows of `count` keys, from that key on; at most `capacity`."""
    slot = key % capacity
    slots = np.arange(slot, slot + count)
    if slot + count > capacity:
        slots[capacity - slot :] -= capacity  # A division a row would take several times as long.
    return slots


def as_slots(run: slice | arrays.Ints, count: int) -> arrays.Ints:
    """Return the slots of a run."""
    return np.arange(run.start, run.start + count) if isinstance(run, slice) else run
