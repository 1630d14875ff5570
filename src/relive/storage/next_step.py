"""The short way of most writes: one step, without an event, that goes on where the one before it in its stream ended.

It says what `kernels.append` says of such a step, to which a test compares it: no episode begins, ends or loses its
newest row, and no window looks back.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from relive.common import arrays as arrays_lib
from relive.kernels import append
from relive.schema import encoding

Fields: TypeAlias = Sequence[tuple[int, arrays_lib.Array]]
"""The numbers of fields, and their columns as records."""
Appender: TypeAlias = Callable[[int, encoding.Row, encoding.Row | None], int]
"""Appends the row of a stream, given the observation after it; returns its key, or -1, without a trace, for another."""


def never(stream: int, row: encoding.Row, next_row: encoding.Row | None) -> int:
    """Append nothing, where no step can go the short way."""
    return -1


def appender(
    views: append.Rows, behind: Fields, records: Fields | None, write: Callable[[int, int, encoding.Row], None]
) -> Appender:
    """Return the function that appends such a step; what it reads are its own variables, and not attributes.

    Args:
        views: The memoryviews of all arrays of `kernels.append`.
        behind: The observations behind the episodes.
        records: The fields of the rows, where nothing can prevent that they are written; else None.
        write: Writes rows where `records` are None; if it raises, nothing has changed but the row.
    """
    flags, following, places, _, recent, current, last, knows, episodes, _, changed, num = views
    capacity, width, lag, room = len(flags), recent.shape[1], num[append.LAG], len(changed)
    is_plain = lag == 0 and num[append.STRIDE] == 1  # Every complete step may be drawn.
    next_key, num_rows, num_eligible, step = append.NEXT_KEY, append.ROWS, append.ELIGIBLE, append.STEP
    complete, eligibility, readable = append.COMPLETE, append.ELIGIBILITY, append.READABLE
    drawable = complete | readable | (append.FRESH if room else 0)
    # The step before, in any stream: the key after it, its stream, and what was observed after it.
    newest_key, newest_stream = -1, -1
    announced: encoding.Row = ()

    def append_next(stream: int, row: encoding.Row, next_row: encoding.Row | None) -> int:
        nonlocal newest_key, newest_stream, announced
        before = last[stream]
        if before < 0:
            return -1
        key: int = num[next_key]
        episode = current[stream]
        is_behind_newest = key == newest_key and stream == newest_stream
        if is_behind_newest:
            for field, _ in behind:
                if announced[field] != row[field]:
                    return -1
        elif knows[stream]:
            for field, record in behind:
                if record[episode].tobytes() != row[field]:
                    return -1
        slot = key % capacity
        is_full = num[num_rows] == capacity
        if is_full and following[slot] < 0:
            return -1
        if records is None:
            write(slot, 1, row)
        else:
            for field, record in records:
                record[slot] = row[field]
        if not is_full:
            num[num_rows] += 1
        elif flags[slot] & eligibility == readable:
            num[num_eligible] -= 1
            if room:
                append.note(changed, num, slot)
        num[next_key] = newest_key = key + 1
        following[before], following[slot] = slot, -1
        places[slot] = place = places[before] + 1
        last[stream] = slot
        if width:
            recent[stream, (place & step) % width] = key
        if not (is_behind_newest or flags[before] & complete):
            append.complete(flags, places, recent, episodes, changed, num, before)
        if next_row is None:
            flags[slot], knows[stream], newest_key = 0, 0, -1
            return key
        knows[stream], newest_stream, announced = 1, stream, next_row
        for field, record in behind:
            record[episode] = next_row[field]
        if is_plain:
            flags[slot] = drawable
            num[num_eligible] += 1
            if room:
                append.note(changed, num, slot)
        else:
            flags[slot] = 0
            append.complete(flags, places, recent, episodes, changed, num, slot)
        return key

    return append_next
