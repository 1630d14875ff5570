"""The short way of a round: a step of each of several streams, whose next observations are known.

    slots      .. | s0 s1 s2 s3 | s0 s1 s2 s3 |      a round of all streams is a slice of every array, and so is the one
    following       '------------^                   before it: nothing is gathered, and its state is kept from there

It says what `kernels.append` says of such steps, to which a test compares it. What was kept holds as long as the next
key and `last` are what they were; otherwise, and for some of the streams, it is found out anew.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from relive.common import arrays
from relive.kernels import append
from relive.schema import encoding
from relive.storage import memory


class Written(NamedTuple):
    """What was found out about steps that were written.

    Attributes:
        num_spliced: How many open episodes were truncated because the next step did not follow.
        num_ends: How many of the steps end their episodes.
        after_termination: Which steps, by place, begin with the final observation of an episode that terminated.
        after_truncation: Which of them begin with that of an episode that was truncated.
    """

    num_spliced: int
    num_ends: int
    after_termination: Sequence[int]
    after_truncation: Sequence[int]


CONTINUED = Written(0, 0, (), ())
"""Steps that go on."""
Appender: TypeAlias = Callable[[arrays.Ints, bytes, encoding.Row, encoding.Row | None], Written | None]
"""Appends steps as `encoding.Steps` describes them; returns None, without a trace, if they cannot go the short way."""
_FEWEST = 8
"""For fewer of the streams, the loop is faster."""
_GOES_ON, _END, _CUT = b"\0", b"\1", b"\2"
_MARKS = _GOES_ON + 3 * _END + 252 * _CUT
"""What each event is."""
_NO_LINK = b"\xff\xff\xff\xff"
"""The bytes of -1; among those of links, which are positive, no others have one of them as the highest."""
_NOWHERE: arrays.Ints = np.zeros(0, np.int64)
Places: TypeAlias = Any
"""Places in a round: a list of a few, or an array of more."""


def never(streams: arrays.Ints, events: bytes, rows: encoding.Row, next_rows: encoding.Row | None) -> Written | None:
    """Append nothing, where no round can go the short way."""
    return None


@functools.lru_cache(maxsize=64)
def _ended(num_ends: int) -> Written:
    """Return what was found out about steps of which some end their episodes."""
    return Written(0, num_ends, (), ()) if num_ends else CONTINUED


def _places(content: bytes, mark: bytes, size: int) -> Places:
    """Return at which of the items of some bytes, of a size each, a mark is."""
    found: list[int] = []
    place = content.find(mark)
    while place >= 0:
        place = (place + size - 1) // size  # In other byte orders, it may be found before where it begins.
        if len(found) == append.FEW:
            items, wanted = (np.frombuffer(each, f"i{size}") for each in (content, mark))
            return (items == wanted).nonzero()[0]
        found.append(place)
        place = content.find(mark, size * place + size)
    return found


def appender(
    rows: append.Rows,
    views: append.Rows,
    behind: Sequence[tuple[int, arrays.Array, memoryview, int]],
    access: memory.Access,
) -> Appender:
    """Return the function that appends such rounds; what it reads are its own variables, and not attributes.

    Args:
        rows: All arrays of `kernels.append`. Every complete row may be drawn.
        views: The memoryviews of them.
        behind: For each field of an observation its number, the observations behind the episodes as records and as
            bytes, and the size of one.
        access: Writes the rows; it cannot fail once it is prepared.
    """
    _, following, places, _, _, current, last, knows, _, _, changed, num = rows
    flags, links, places_view, _, _, current_view, last_view, knows_view, episodes, _, _, counts = views
    capacity, num_streams, room = len(flags), len(last), len(changed)
    columns, add = access.contents, np.add
    everyone, no_events = encoding.all_streams(num_streams), encoding.no_events(num_streams)
    drawable = append.COMPLETE | append.READABLE | (append.FRESH if room else 0)
    new_flags, no_links = bytes([drawable]) * num_streams, np.full(num_streams, -1, np.int32).data
    increments, num_next, num_rows = np.repeat([[num_streams], [1]], num_streams, 1), append.NEXT_KEY, append.ROWS
    num_free, num_eligible, few, terminated = append.FREE, append.ELIGIBLE, append.FEW, append.TERMINATED
    # Of the rows that a round is behind: their slots and places; where their links are, and if that is a slice, its
    # start; what was observed after them, by field; the places in the round at which no episode is open; the number of
    # the first episode, if those of the others are the ones after that, and else -1.
    state = np.zeros((2, num_streams), np.int64)
    slots, newest = state
    slots_view, newest_view = slots.data, newest.data
    announced: Any = {}
    links_before, before, first = _NOWHERE, -1, -1
    begins: Places = []
    # If they are the last round: the key after it, and `last`.
    next_key, found = -1, b""

    def find_out(streams: arrays.Ints, slot: int) -> bool:
        """Find out what is kept of the rows before a round; return False if one is not there, or not complete."""
        nonlocal state, slots, newest, slots_view, newest_view, links_before, before, announced, begins, first, next_key
        count, where = len(streams), slice(None) if streams is everyone else streams
        links_before, before, next_key = last[where].copy(), -1, -1
        (ended,) = (links_before < 0).nonzero()
        if np.count_nonzero(knows[where]) != count - len(ended) or append.GONE in links_before[ended]:
            return False
        begins = ended.tolist() if len(ended) <= few else ended
        state = np.empty((2, count), np.int64)
        slots, newest = state
        slots_view, newest_view = slots.data, newest.data
        slots[:] = np.arange(slot - num_streams, slot - num_streams + count)
        newest[:] = places.take(links_before, mode="clip")
        links_before[ended] = ended + slot  # Their own links, which are written last.
        of = current[where]
        announced = {field: records[of].tobytes() for field, records, _, _ in behind}
        first = of.item(0) if np.array_equal(of, everyone + of[0]) else -1
        return True

    def resumed(given: encoding.Row) -> list[int] | None:
        """Return which steps, by place, begin with what was observed last in their stream, though no episode is open.

        Return None if a step does not follow where one is open.
        """
        same = begins
        for field, records, _, size in behind:
            these, those = given[field], announced[field]
            if these == those:
                continue
            seen = bytearray(these)
            if type(begins) is list:
                for i in begins:
                    start, stop = i * size, i * size + size
                    if these[start:stop] != those[start:stop]:
                        seen[start:stop] = those[start:stop]
                        same = [place for place in same if place != i]
            else:
                of_rows, finals = np.frombuffer(seen, records.dtype), np.frombuffer(those, records.dtype)
                same = same[of_rows[same] == finals[same]]
                of_rows[begins] = finals[begins]
            if seen != those:
                return None
        found_same: list[int] = same if type(same) is list else same.tolist()
        return found_same

    def found_out(streams: arrays.Ints, same: list[int], num_ends: int) -> Written:
        """Return what was found out about a round in which those steps begin with what was observed last."""
        after: dict[int, list[int]] = {append.TERMINATED: [], append.TRUNCATED: []}
        for i in same:
            stream = streams.item(i)
            episode = current_view[stream]
            if episodes[append.STREAM, episode] == stream and episodes[append.KNOWN, episode]:
                after[episodes[append.END, episode]].append(i)
        return Written(0, num_ends, *after.values()) if any(after.values()) else _ended(num_ends)

    def append_next(
        streams: arrays.Ints, events: bytes, given: encoding.Row, next_rows: encoding.Row | None
    ) -> Written | None:
        nonlocal before, announced, begins, first, next_key, found
        key, alive, count, is_whole = counts[num_next], counts[num_rows], len(streams), streams is everyone
        slot = key % capacity
        stop = slot + count
        if stop > capacity or next_rows is None or not (is_whole or count >= _FEWEST):
            return None
        is_next = is_whole and key == next_key and last.tobytes() == found
        if not (is_next or find_out(streams, slot)):
            return None
        ends: Places = []
        written = CONTINUED
        if events != no_events:
            marks = events.translate(_MARKS)
            if _CUT in marks:
                return None
            ends = _places(marks, _END, 1)
            written = _ended(len(ends))
        if len(begins):
            same = resumed(given) if counts[num_free] >= len(begins) else None
            if same is None:
                return None
            if same:
                written = found_out(streams, same, len(ends))
        else:
            for field, _, _, _ in behind:
                if announced[field] != given[field]:
                    return None
        leaving: Places = []
        leave_all: Any = None
        surplus, lost, num_lost = alive + count - capacity, _NOWHERE, 0
        old = stop - surplus
        if surplus > 0:
            eligible = append.are_eligible(flags[old:stop])
            num_lost = eligible.count(1)
            if room:
                lost = np.flatnonzero(np.frombuffer(eligible, np.bool_)) + old
            leaving = _places(links[old:stop].tobytes(), _NO_LINK, 4)
            if type(leaving) is not list:
                leave_all = append.leaving(rows, leaving + old)
                if leave_all is None:
                    return None
            alive -= surplus
        next_key = -1
        add(state, increments if is_whole else increments[:, :count], state)
        if not slot:
            slots[:] = everyone[:count]
        finals: list[arrays.Array] = []
        is_run, of, links_after = first >= 0 and not len(begins), current, slots
        if not is_run:
            for field, records, _, _ in behind:  # A comprehension is a call.
                finals.append(np.frombuffer(next_rows[field], records.dtype))
        if not is_whole:
            of = np.empty(count, np.int64)
        if before < 0:
            links_after = slots.astype(np.int32)
        elif len(begins) > few:
            links_after = slots.copy()
            links_after[begins] = -1
        begin_all: Any = None
        end_all: Any = None
        if len(begins) > few:
            begin_all = append.beginning(rows, streams[begins], begins, key, newest)
        if len(ends) > few:
            newest[begins] = 0
            end_all = append.ending(rows, streams[ends], ends, slot, events, newest)
        if columns is None:
            access.prepare()
        # From here on, nothing needs memory.
        counts[num_next], counts[num_rows] = key + count, alive + count
        counts[num_eligible] += count - num_lost
        if room and num_lost:
            append.note_many(changed, num, lost)
        if leave_all is not None:
            leave_all()
        else:
            for i in leaving:
                append.leave(views, places_view[old + i])
        if columns is None:
            access.write(slot, count, given)
        else:
            for field, content, size in columns:
                content[slot * size : stop * size] = given[field]
        if before < 0:
            following[links_before] = links_after
        else:
            following[before : before + count] = links_after
        if is_whole:
            links[slot:stop], flags[slot:stop], last_view[:] = no_links, new_flags, slots_view
        else:
            links[slot:stop], flags[slot:stop], last[streams] = no_links[:count], new_flags[:count], slots
        if room:
            append.note_many(changed, num, slots)
        if begin_all is not None:
            begin_all()
        else:
            for i in begins:
                stream = streams.item(i)
                if before >= 0:
                    links[before + i] = -1
                newest_view[i], knows_view[stream] = append.begin(views, stream, key + i, slot + i), 1
        places_view[slot:stop] = newest_view
        if end_all is not None:
            end_all()
        else:
            for i in ends:
                if events[i] & terminated:
                    flags[slot + i] |= append.TERMINAL
                append.finish(views, streams.item(i), events[i])
        if is_run:
            for field, _, content, size in behind:
                content[first * size : (first + count) * size] = next_rows[field]
        else:
            first = -1
            if not is_whole:
                current.take(streams, out=of, mode="clip")  # Without a buffer, which "raise" would need.
            for (_, records, _, _), final in zip(behind, finals, strict=True):
                records[of] = final
        if is_whole:
            next_key, before, found, announced, begins = key + count, slot, last.tobytes(), next_rows, ends
        return written

    return append_next
