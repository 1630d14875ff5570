"""What the first rows of a write say about the episodes before them.

A row is spliced where the observation after the newest row of the open episode is known and the row has another: it
begins a new episode. A row resumes where an episode has ended and the row begins with its final observation.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from relive.common import arrays as arrays_lib
from relive.kernels import append
from relive.schema import encoding
from relive.storage import finals as finals_lib
from relive.storage import step_table

Resumed: TypeAlias = tuple[Sequence[int], Sequence[int]]
NOTHING: Resumed = (), ()


def may_be_spliced(table: step_table.StepTable, finals: finals_lib.FinalObservations, steps: encoding.Steps) -> bool:
    """Return whether one of some rows, or the first of a run, differs from what was announced; -0.0 is not 0.0."""
    streams = steps.streams
    if steps.is_run or len(streams) == 1:
        is_known = table.knows.item(streams[0]) and not steps.events[0] & append.CUT
        return bool(is_known) and not finals.is_same(table.current.item(streams[0]), steps.rows)
    episodes = table.episodes_in(streams)
    for field, records in finals.records:
        these, those = records[episodes], steps.rows[field]
        if these.tobytes() != those:
            differs = these != np.frombuffer(those, records.dtype)
            if arrays_lib.any_set(differs & (table.knows.take(streams) > 0)):
                return True
    return False


def with_cuts(
    table: step_table.StepTable,
    finals: finals_lib.FinalObservations,
    steps: encoding.Steps,
    compared: Sequence[str] = (),
) -> tuple[bytes, int]:
    """Return the events of steps of which one differs, with CUT where it is spliced, and the number of those.

    Args:
        table: The episodes.
        finals: What was announced.
        steps: The steps.
        compared: The fields of the observation that show whether a step follows the one before; all if empty.
    """
    streams = np.asarray(steps.streams[:1] if steps.is_run else steps.streams)
    episodes = table.current[streams]
    (places,) = table.knows[streams].nonzero()
    columns = encoding.columns(steps.schema, steps.rows, len(steps.streams))
    differs = np.zeros(len(places), np.bool_)
    for path in compared or finals.columns:
        differs |= differ(finals.columns[path][episodes[places]], columns[path][places])
    cuts = places[differs]
    if not len(cuts):
        return steps.events, 0
    events = bytearray(steps.events)
    for place in cuts.tolist():
        events[place] |= append.CUT
    return bytes(events), len(cuts)


def resumed(table: step_table.StepTable, finals: finals_lib.FinalObservations, steps: encoding.Steps) -> Resumed:
    """Return which steps begin with the final observation of the newest episode of their stream, which has ended.

    First those of episodes that terminated, and then of those that were truncated; while a row of them is stored.
    """
    streams: Any = steps.streams
    _, _, _, _, _, current, last, _, episodes, _, _, _ = table.views
    if type(streams) is tuple:
        places = [0] if last[streams[0]] == append.NONE else []
    else:
        newest = table.last if streams is encoding.all_streams(table.streams) else table.last.take(streams)
        if newest.item(newest.argmin()) != append.NONE:
            return NOTHING
        (ended,) = (newest == append.NONE).nonzero()
        if len(ended) > append.FEW:
            return _resumed_many(table, finals, streams[ended], ended, steps.rows)
        places = ended.tolist()
    found: dict[int, list[int]] = {append.TERMINATED: [], append.TRUNCATED: []}
    for place in places:
        episode = current[streams[place]]
        is_there = episodes[append.STREAM, episode] == streams[place] and episodes[append.KNOWN, episode]
        if is_there and finals.is_same(episode, steps.rows, place):
            found[episodes[append.END, episode]].append(place)
    return (found[append.TERMINATED], found[append.TRUNCATED]) if any(found.values()) else NOTHING


def _resumed_many(
    table: step_table.StepTable,
    finals: finals_lib.FinalObservations,
    streams: arrays_lib.Ints,
    places: arrays_lib.Ints,
    given: encoding.Row,
) -> Resumed:
    """Return the same of many steps, of `streams` [k], in calls of numpy."""
    episodes = table.current.take(streams)
    facts = table.episodes.take(episodes, axis=1)
    is_there = (facts[append.STREAM] == streams) & (facts[append.KNOWN] > 0)
    for field, records in finals.records:
        rows = np.frombuffer(given[field], records.dtype)
        is_there &= records[episodes] == rows[places]
    if not arrays_lib.any_set(is_there):
        return NOTHING
    ends = facts[append.END] * is_there
    after_termination, after_truncation = (places[ends == end] for end in (append.TERMINATED, append.TRUNCATED))
    return after_termination.tolist(), after_truncation.tolist()


def differ(these: arrays_lib.Array, those: arrays_lib.Array) -> arrays_lib.Bools:
    """Return whether the rows [k, ...] differ; NaN counts as equal to NaN."""
    record = f"V{these.itemsize}"
    is_equal = np.asarray((these.view(record) == those.view(record)) | (these == those))
    if these.dtype.kind in "fc":  # NaNs may have different bytes.
        is_equal |= np.isnan(these) & np.isnan(those)
    return np.asarray(~is_equal.all(axis=tuple(range(1, these.ndim))))
