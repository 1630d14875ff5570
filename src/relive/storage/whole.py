"""Whole episodes of one stream, from columns of rows to the rows of a store: all of them, or none."""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from relive.common import arrays as arrays_lib
from relive.kernels import whole
from relive.persistence import state
from relive.schema import encoding
from relive.storage import memory
from relive.storage import steps as steps_lib


class Episodes(NamedTuple):
    """Whole episodes of one stream, one after the other.

    Attributes:
        encoder: The encoder of the rows.
        stream: The stream.
        columns: The fields by path [rows, ...], maybe of a memory map, which is read in chunks.
        places: Which of the rows are the steps [N]; None if all are.
        lengths: How many steps each episode has [E].
        ends: TERMINATED or TRUNCATED [E].
        knows: Whether the observation after the last step of each is known [E].
        finals: The fields of that observation by path, zeros where it is not known [E, ...].
    """

    encoder: encoding.Encoder
    stream: int
    columns: steps_lib.Columns
    places: arrays_lib.Ints | None
    lengths: arrays_lib.Ints
    ends: npt.NDArray[np.uint8]
    knows: arrays_lib.Bools
    finals: steps_lib.Columns

    def __len__(self) -> int:
        """Return how many steps there are, N."""
        return int(self.lengths.sum())

    def rows(self, start: int, stop: int) -> list[memoryview]:
        """Return the bytes of each field of some steps; a copy of those in between."""
        columns, places = self.columns.values(), self.places
        if places is None:
            parts = [np.ascontiguousarray(column[start:stop]) for column in columns]
        else:
            parts = [column.take(places[start:stop], axis=0) for column in columns]
        return [memory.bytes_of(part) for part in parts]

    def steps(self) -> Iterator[encoding.Steps]:
        """Yield the steps of each episode; the first one begins a new episode whatever is open."""
        first, stop = encoding.CUT, 0
        for episode, (length, end) in enumerate(zip(self.lengths.tolist(), self.ends.tolist(), strict=True)):
            start, stop = stop, stop + length
            streams, events = np.full(length, self.stream), encoding.events_of_run(length, first, end)
            finals = [column[episode : episode + 1].tobytes() for column in self.finals.values()]
            rows = [part.tobytes() for part in self.rows(start, stop)]
            yield encoding.Steps(self.encoder, streams, events, rows, finals if self.knows[episode] else None, True)
            first = 0


class Journal(steps_lib.Journal, Protocol):
    """Receives whole episodes, too."""

    def write_all(self, episodes: Iterator[encoding.Steps]) -> None:
        """Journal the steps of several episodes that are stored; all are valid, or none."""


def append_episodes(
    store: steps_lib.StepStore, episodes: Episodes, journal: Journal | None, tell: steps_lib.Tell | None
) -> None:
    """Write whole episodes, or raise, and change nothing; journal and `tell` are as in `append` of a store."""
    if journal is not None:
        journal.prepare()
    key, count, stream = store.next_key, len(episodes), episodes.stream
    finals = [memory.records_of(column) if column.size else column for column in episodes.finals.values()]

    def write() -> arrays_lib.Ints:
        for start, stop in state.chunks(count, count * store.schema.nbytes):
            store.access.write((key + start) % store.capacity, stop - start, episodes.rows(start, stop))
        return whole.append_episodes(store.rows, stream, episodes.lengths, episodes.ends, episodes.knows)

    record = None if journal is None else lambda: journal.write_all(episodes.steps())
    with store.beginning(episodes.encoder, len(episodes.lengths)):
        numbers = store.write_or_restore((stream,), count, write, tell, record)
        # Last, as numbers of episodes that were evicted are used again.
        for field, records in store.finals.records:
            records[numbers] = finals[field]
