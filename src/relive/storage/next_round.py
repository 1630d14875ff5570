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

from relive.common import arrays as arrays_lib
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
Appender: TypeAlias = Callable[[arrays_lib.Ints, bytes, encoding.Row, encoding.Row | None], Written | None]
"""Appends steps as `encoding.Steps` describes them; returns None, without a trace, if they cannot go the short way."""
_FEWEST = 8
"""For fewer of the streams, the loop is faster."""
_GOES_ON, _END, _CUT = b"\0", b"\1", b"\2"
_MARKS = _GOES_ON + 3 * _END + 252 * _CUT
"""What each event is."""
_NO_LINK = b"\xff\xff\xff\xff"
"""The bytes of -1; among those of links, which are positive, no others have one of them as the highest."""
_NOWHERE: arrays_lib.Ints = np.zeros(0, np.int64)
Places: TypeAlias = Any
"""Places in a round: a list of a few, or an array of more."""


def never(
    streams: arrays_lib.Ints, events: bytes, rows: encoding.Row, next_rows: encoding.Row | None
) -> Written | None:
    """Append nothing, where no round can go the short way."""
    return None


@functools.lru_cache(maxsize=64)
def _ended(num_ends: int) -> Written:
    """Return what was found out about steps of which some end their episodes."""
    return Written(0, num_ends, (), ())


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


def _increments(num_streams: int) -> arrays_lib.Ints:
    """Return by what the state of a round of all streams grows from one to the next [3 S]: slots, places and links."""
    grown = np.empty(3 * num_streams, np.int64)
    grown[:num_streams], grown[num_streams : 2 * num_streams] = num_streams, 1
    halves = grown[2 * num_streams :].view(np.int32)
    halves[:num_streams], halves[num_streams:] = num_streams, 0
    return grown


def appender(
    rows: append.Rows,
    views: append.Rows,
    behind: Sequence[tuple[int, arrays_lib.Array, memoryview, int]],
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
    flags, links, places_view, _, _, current_view, last_view, knows_view, _, free, _, counts = views
    of_stream, first_keys, lengths, how_ended, is_known, _ = append.views_of(rows[8])  # Of episodes, by number.
    capacity, num_streams, room = len(flags), len(last), len(changed)
    columns, compared, add = access.contents, [field for field, _, _, _ in behind], np.add
    everyone, no_events = encoding.all_streams(num_streams), encoding.no_events(num_streams)
    drawable = append.COMPLETE | append.READABLE | (append.FRESH if room else 0)
    new_flags, no_links = bytes([drawable]) * num_streams, np.full(num_streams, -1, np.int32).data
    num_next, num_rows, num_free, num_eligible = append.NEXT_KEY, append.ROWS, append.FREE, append.ELIGIBLE
    few, terminated, truncated, terminal = append.FEW, append.TERMINATED, append.TRUNCATED, append.TERMINAL
    num_bits, is_step, none, is_open = append.EPISODE, append.STEP, append.NONE, append.OPEN
    # Of a round: its slots and places; and as integers of half the size, its slots, to which the rows before it link,
    # and the links of its own rows. All change by the same from one round to the next.
    state = slots = newest = _NOWHERE
    slots_view, newest_view, both_links = slots.data, newest.data, no_links
    increments = _NOWHERE
    # Of the rows that it is behind: where their links are, and if that is a slice, its start; what was observed after
    # them, by field; the places in the round at which no episode is open; the numbers of their episodes, and the first
    # of those if the others are the ones after it, else -1.
    links_before, before = _NOWHERE, -1
    announced: Any = {}
    begins: Places = []
    of, first = current, -1
    # Where what is observed after a round is put before it goes to the episodes: for each field as bytes and records.
    finals: list[tuple[int, memoryview, arrays_lib.Array, arrays_lib.Array]] = []
    # If the rows before are the last round: the key after it, and `last`.
    next_key, found = -1, b""

    def find_out(streams: arrays_lib.Ints, slot: int) -> bool:
        """Find out the above for a round; return False if a row before it is not there, or not complete."""
        nonlocal state, increments, slots, newest, slots_view, newest_view, both_links
        nonlocal links_before, before, announced, begins, of, first, finals, next_key
        count, is_whole, before, next_key = len(streams), streams is everyone, -1, -1
        links_before, known = (last.copy(), knows) if is_whole else (last.take(streams), knows.take(streams))
        (ended,) = (links_before < 0).nonzero()
        if np.count_nonzero(known) != count - len(ended) or (len(ended) and append.GONE in links_before[ended]):
            return False
        begins = ended.tolist() if len(ended) <= few else ended
        state = np.empty(3 * count, np.int64)
        slots, newest, halves = state[:count], state[count : 2 * count], state[2 * count :].view(np.int32)
        slots_view, newest_view, both_links = slots.data, newest.data, halves.data
        slots[:] = halves[:count] = np.arange(slot, slot + count)
        newest[:] = places.take(links_before, mode="clip") + 1
        halves[count:] = -1
        if is_whole and not len(increments):
            increments = _increments(num_streams)
        links_before[ended] = ended + slot  # Their own links, which are written last.
        of, first = current if is_whole else current.take(streams), -1
        if is_whole and np.array_equal(of, everyone + of[0]):
            first = of.item(0)
        announced, finals = {}, []
        for field, records, _, _ in behind:
            announced[field] = records[of].tobytes()
            content = bytearray(announced[field])
            finals.append((field, memoryview(content), np.frombuffer(content, records.dtype), records))
        return True

    def resumed(given: encoding.Row) -> list[int] | None:
        """Return which steps, by place, begin with what was observed last in their stream, though no episode is open.

        Return None if a step does not follow where one is open.
        """
        same = begins.copy()
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
                        if i in same:
                            same.remove(i)
            else:
                of_rows, finals = np.frombuffer(seen, records.dtype), np.frombuffer(those, records.dtype)
                same = same[of_rows[same] == finals[same]]
                of_rows[begins] = finals[begins]
            if seen != those:
                return None
        found_same: list[int] = same if type(same) is list else same.tolist()
        return found_same

    def found_out(streams: arrays_lib.Ints, same: list[int], num_ends: int) -> Written:
        """Return what was found out about a round in which those steps begin with what was observed last."""
        after: dict[int, list[int]] = {append.TERMINATED: [], append.TRUNCATED: []}
        for i in same:
            stream = streams.item(i)
            episode = current_view[stream]
            if of_stream[episode] == stream and is_known[episode]:
                after[how_ended[episode]].append(i)
        return Written(0, num_ends, *after.values()) if any(after.values()) else _ended(num_ends)

    def append_next(
        streams: arrays_lib.Ints, events: bytes, given: encoding.Row, next_rows: encoding.Row | None
    ) -> Written | None:
        nonlocal before, announced, begins, first, next_key, found
        key, alive, is_whole = counts[num_next], counts[num_rows], streams is everyone
        count = num_streams if is_whole else len(streams)
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
        num_begins, num_ends = len(begins), len(ends)
        if num_begins:
            same = resumed(given) if counts[num_free] >= num_begins else None
            if same is None:
                return None
            if same:
                written = found_out(streams, same, num_ends)
        else:
            for field in compared:
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
        if is_next:
            add(state, increments, state)
            if not slot:
                slots[:] = everyone
                state[2 * count :].view(np.int32)[:count] = everyone
        new_slots = begun = _NOWHERE
        begin_all: Any = None
        end_all: Any = None
        if before < 0:
            new_slots = slots.astype(np.int32)
        if num_begins > few:
            begun = begins + before
            begin_all = append.beginning(rows, streams[begins], begins, key, newest)
        if num_ends > few:
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
            following[links_before] = new_slots
            links[slot:stop] = no_links[:count]
        elif slot:
            links[before:stop] = both_links
        else:
            links[before:], links[:stop] = both_links[:count], no_links
        if is_whole:
            flags[slot:stop], last_view[:] = new_flags, slots_view
        else:
            flags[slot:stop], last[streams] = new_flags[:count], slots
        if room:
            append.note_many(changed, num, slots)
        if begin_all is not None:
            if before >= 0:
                following[begun] = -1
            begin_all()
        else:
            for i in begins:
                stream = streams.item(i)
                if before >= 0:
                    links[before + i] = -1
                counts[num_free] -= 1
                current_view[stream] = episode = free[counts[num_free]]
                of_stream[episode], first_keys[episode], lengths[episode] = stream, key + i, 0
                how_ended[episode], knows_view[stream] = is_open, 1
                newest_view[i] = episode << num_bits
        places_view[slot:stop] = newest_view
        if end_all is not None:
            end_all()
        else:
            for i in ends:
                stream = streams.item(i)
                episode = current_view[stream]
                how_ended[episode], is_known[episode] = truncated, 1
                if events[i] & terminated:
                    how_ended[episode] = terminated
                    flags[slot + i] |= terminal
                lengths[episode] = (newest_view[i] & is_step) + 1
                last_view[stream], knows_view[stream] = none, 0
        if first >= 0 and not num_begins:
            for field, _, content, size in behind:
                content[first * size : (first + count) * size] = next_rows[field]
        else:
            first = -1
            if not is_whole and num_begins:
                current.take(streams, out=of, mode="clip")  # Without a buffer, which "raise" would need.
            for field, content, final, records in finals:
                content[:] = next_rows[field]
                records[of] = final
        if is_whole:
            next_key, before, found, announced, begins = key + count, slot, last.tobytes(), next_rows, ends
        return written

    return append_next
