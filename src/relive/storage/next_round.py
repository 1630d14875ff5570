"""The short way of a round: a step of every stream, in order, right behind another round.

    slots      .. | s0 s1 s2 s3 | s0 s1 s2 s3 |      a round is a slice of every array, and so is the one before it:
    following       '------------^                   links, places and newest rows are written without indices

It says what `kernels.append` says of such steps, to which a test compares it. All that a round needs to know of the one
before it is kept from there, as long as `last` is what it was; otherwise it is found out anew.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from relive.common import arrays
from relive.kernels import append
from relive.schema import encoding


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
Appender: TypeAlias = Callable[[encoding.Steps], Written | None]
"""Appends steps; returns None, without a trace, if they are no such round."""
_FEW = 16
"""So many episodes begin or end with such a round at most: they are handled one by one."""
_NO_LINK = b"\xff\xff\xff\xff"
"""The bytes of -1; no others that follow each other among the bytes of links are these, as all of them are positive."""


def never(steps: encoding.Steps) -> Written | None:
    """Append nothing, where no round can go the short way."""
    return None


def appender(
    rows: append.Rows,
    views: append.Rows,
    behind: Sequence[tuple[int, arrays.Array, memoryview, int]],
    write: Callable[[int, int, encoding.Row], None],
) -> Appender:
    """Return the function that appends such rounds; what it reads are its own variables, and not attributes.

    Args:
        rows: All arrays of `kernels.append`. Every complete row may be drawn, and there is room for two rounds.
        views: The memoryviews of them.
        behind: For each field of an observation its number, the observations behind the episodes as records and as
            bytes, and the size of one.
        write: Writes rows; it cannot fail.
    """
    _, following, places, _, _, current, last, knows, _, _, changed, num = rows
    flags, links, places_view, _, _, current_view, last_view, knows_view, episodes, _, _, counts = views
    capacity, streams, room, everyone = len(flags), len(last), len(changed), encoding.all_streams(len(last))
    drawable = append.COMPLETE | append.READABLE | (append.FRESH if room else 0)
    new_flags, no_ends, no_links = bytes([drawable]) * streams, bytes(streams), np.full(streams, -1, np.int32).data
    ones, strides = np.ones(streams, np.int64), np.full(streams, streams)
    num_next, num_rows, num_free, num_eligible = append.NEXT_KEY, append.ROWS, append.FREE, append.ELIGIBLE
    # Of the round before: the key after it; its slots, and the first of them; their places; `last` after it; what was
    # observed after it; the streams whose episodes ended with it; the number of its first episode, if those of the
    # others are the ones after that, and else -1.
    slots, newest = np.zeros((2, streams), np.int64)
    slots_view, newest_view = slots.data, newest.data
    next_key, before, found, announced, ended, first = -1, 0, b"", list[bytes](), list[int](), -1

    def is_behind_a_round(key: int) -> bool:
        """Find out whether the newest rows are a round, and what is kept of one."""
        nonlocal next_key, before, found, announced, ended, first
        start, next_key = (key - streams) % capacity, -1
        if start + streams > capacity or counts[num_rows] < streams:
            return False
        for stream in (0, streams - 1):
            if episodes[append.STREAM, places_view[start + stream] >> append.EPISODE] != stream:
                return False
        np.add(everyone, start, out=slots)
        others = (last != slots).nonzero()[0].tolist()
        if len(others) > _FEW or np.count_nonzero(knows) != streams - len(others):
            return False
        for stream in others:  # Whose episodes must have ended with it.
            episode = current_view[stream]
            is_newest = places_view[start + stream] >> append.EPISODE == episode
            if not is_newest or episodes[append.END, episode] == append.OPEN or not episodes[append.KNOWN, episode]:
                return False
        announced = [records[current].tobytes() for _, records, _, _ in behind]
        first = current_view[0] if np.array_equal(current, everyone + current_view[0]) else -1
        newest[:] = places[start : start + streams]
        next_key, before, found, ended = key, start, last.tobytes(), others
        return True

    def begun(seen: list[Any], num_ends: int) -> Written:
        """Put what was announced where episodes begin, which need not go on; return what was found out."""
        after: dict[int, list[int]] = {append.TERMINATED: [], append.TRUNCATED: []}
        is_resumed = dict.fromkeys(ended, True)
        for place, (_, _, _, size) in enumerate(behind):
            given, finals = bytearray(seen[place]), announced[place]
            for i in ended:
                part, final = slice(i * size, i * size + size), finals[i * size : i * size + size]
                if given[part] != final:
                    given[part], is_resumed[i] = final, False
            seen[place] = given
        for i, is_so in is_resumed.items():
            if is_so:
                after[episodes[append.END, current_view[i]]].append(i)
        return Written(0, num_ends, after[append.TERMINATED], after[append.TRUNCATED])

    def append_next(steps: encoding.Steps) -> Written | None:
        nonlocal next_key, before, found, announced, ended, first
        _, numbers, events, given, next_rows, _ = steps
        key, alive = counts[num_next], counts[num_rows]
        slot = key % capacity
        stop = slot + streams
        if stop > capacity or next_rows is None or numbers is not everyone:
            return None
        if (key != next_key or alive < streams or last.tobytes() != found) and not is_behind_a_round(key):
            return None
        seen: list[Any] = [given[field] for field, _, _, _ in behind]
        written, ends, bits = CONTINUED, list[int](), bytes(events)
        if bits != no_ends:
            ends = np.asarray(events).nonzero()[0].tolist()
            if len(ends) > _FEW or any(bits[i] > append.ENDS for i in ends):
                return None
        if ended:
            if counts[num_free] < len(ended):
                return None
            written = begun(seen, len(ends))
        elif ends:
            written = Written(0, len(ends), (), ())
        if seen != announced:
            return None
        surplus, lost, num_lost, leaving = alive + streams - capacity, slots, 0, list[int]()
        if surplus > 0:
            old = stop - surplus
            eligible = append.are_eligible(flags[old:stop])
            num_lost = eligible.count(1)
            if room:
                lost = np.flatnonzero(np.frombuffer(eligible, np.bool_)) + old
            if _NO_LINK in links[old:stop].tobytes():
                leaving = places[old:stop][following[old:stop] < 0].tolist()
            alive -= surplus
        is_run, finals = first >= 0 and not ended, list[arrays.Array]()
        if not is_run:
            finals = [np.frombuffer(next_rows[field], records.dtype) for field, records, _, _ in behind]
        # From here on, nothing needs memory.
        next_key = -1
        counts[num_next], counts[num_rows] = key + streams, alive + streams
        counts[num_eligible] += streams - num_lost
        if room and num_lost:
            append.note_many(changed, num, lost)
        for place in leaving:
            append.leave(views, place)
        write(slot, streams, given)
        np.add(newest, ones, out=newest)
        if slot:
            np.add(slots, strides, out=slots)
        else:
            slots[:] = everyone
        following[before : before + streams] = slots
        links[slot:stop], flags[slot:stop], last_view[:] = no_links, new_flags, slots_view
        if room:
            append.note_many(changed, num, slots)
        for i in ended:
            links[before + i], knows_view[i] = -1, 1
            newest_view[i] = append.begin(views, i, key + i, slot + i)
        places_view[slot:stop] = newest_view
        for i in ends:
            if bits[i] & append.TERMINATED:
                flags[slot + i] |= append.TERMINAL
            append.finish(views, i, bits[i])
        if is_run:
            for field, _, content, size in behind:
                content[first * size : (first + streams) * size] = next_rows[field]
        else:
            first = -1
            for (_, records, _, _), final in zip(behind, finals, strict=True):
                records[current] = final
        announced = [next_rows[field] for field, _, _, _ in behind]
        next_key, before, found, ended = key + streams, slot, last.tobytes(), ends
        return written

    return append_next
