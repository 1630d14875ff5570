"""How steps come into a buffer of columns: room is made, they are written, and what can be drawn now is said.

    require_insert              may a step be added now?
    add, extend, add_episode    what was checked is written: room is made, rows come, anchors come and go
    end_episode                 an episode ends without another row
    turn                        a step of every stream at once, where nothing is in the way: all that most calls need

What a turn does the rest does too, several times slower.
"""

from collections.abc import Callable

import numpy as np

from relive import errors
from relive.buffers import anchors as anchors_lib
from relive.buffers import column_stats
from relive.common import arrays
from relive.kernels import history as history_lib
from relive.kernels import timeline as timeline_lib
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.waiting import prefetch
from relive.waiting import rate_limiters


class Writer:
    """Writes to one buffer; what it is given was checked before.

    Args:
        history: The steps.
        anchors: Which of them may be drawn.
        limited: Says when a step may be added.
        counters: What is counted.
        gathers: Those that read what is there; nothing is written before they have ended.
    """

    def __init__(
        self,
        history: history_lib.StepStore,
        anchors: anchors_lib.Anchors,
        limited: rate_limiters.LimitedBuffer,
        counters: column_stats.Counters,
        gathers: prefetch.PendingReads,
    ) -> None:
        self._history = history
        self._timeline = history.timeline
        self._anchors = anchors
        self._limited = limited
        self._counters = counters
        self._gathers = gathers
        self._watch = counters.watch

    def turn(
        self,
        row: encoding.Row,
        next_row: encoding.Row,
        terminated: encoding.Flags,
        truncated: encoding.Flags,
    ) -> bool:
        """Add the next step of every stream in one go, or return False and have changed nothing.

        That is where an open episode does not go on with what was announced, where a row waits for its next
        observation, where the rows wrap around the ring, and where anchors come and go by another rule than one by one.

        Args:
            row: The bytes of each block of the rows of all streams.
            next_row: Those of the observations after them.
            terminated: Whether the episodes terminate with them.
            truncated: Whether they are truncated with them.
        """
        timeline = self._timeline
        slot = self._history.turning_slot(row)
        if slot < 0:
            return False
        lost = None
        if timeline.is_full:
            lost = self._anchors.lost_in_turn(slot)
            if lost < 0:
                return False
        elif not self._anchors.turns:
            return False
        self._history.turn(slot, row, next_row)
        self._anchors.turned(slot, lost)
        if timeline.streams == 1:
            if terminated or truncated:
                self._history.end_one(0, bool(terminated))
        else:
            terminates, has_ended = encoding.ends(timeline.streams, terminated, truncated)
            if has_ended is not None:
                self._history.end(has_ended, terminates)
        self._counters.inserted += timeline.streams
        return True

    def add(self, step: encoding.OneStep) -> int:
        """Add one step, and return its key."""
        schema, stream, row, next_row, terminated, truncated = step
        history = self._history
        timeline = history.timeline
        if self._watch.finals:
            self._watch.record_other(stream)
        if timeline.streams == 1 and next_row is not None and self.turn(row, next_row, terminated, truncated):
            return timeline.next_key - 1
        self._make_room(schema, 1)
        cuts = history.is_spliced_one(stream, row)
        slot, completed, ended = history.append_one(stream, row, next_row, cuts, terminated, truncated)
        counters = self._counters
        counters.inserted += 1
        self._anchors.written_one(slot, completed, ended)
        if cuts:
            counters.spliced_episodes += 1
            self._watch.record_splices(1, counters.inserted)
        return timeline.next_key - 1

    def extend(self, steps: encoding.Steps) -> arrays.Keys:
        """Add one step of some streams, and return their keys [k]."""
        self._make_room(steps.schema, len(steps.streams))
        cuts = self._history.is_spliced(steps.streams, steps.rows)
        change = self._history.append(
            steps.streams,
            steps.rows,
            steps.next_rows,
            cuts=cuts,
            terminated=steps.terminated,
            truncated=steps.truncated,
        )
        keys = self._written(change)
        if cuts is not None:
            count = int(np.count_nonzero(cuts))
            self._counters.spliced_episodes += count
            self._watch.record_splices(count, self._counters.inserted)
        self._watch.record_round(
            steps.streams,
            _bytes_of(steps.schema, steps.rows),
            None if steps.next_rows is None else _bytes_of(steps.schema, steps.next_rows),
            steps.terminated,
            steps.terminated | steps.truncated,
        )
        return keys

    def watch_turn(
        self, row: encoding.Row, next_row: encoding.Row, terminated: encoding.Flags, truncated: encoding.Flags
    ) -> None:
        """Record a turn, given as to `turn`."""
        streams = self._timeline.streams
        terminates, has_ended = encoding.ends(streams, terminated, truncated)
        if has_ended is None:
            if not self._watch.finals:
                return
            terminates = has_ended = np.zeros(streams, np.bool_)
        self._watch.record_round(
            np.arange(streams),
            _bytes_at(row, len(next_row), streams),
            _bytes_at(next_row, len(next_row), streams),
            terminates,
            has_ended,
        )

    def add_episode(self, episode: encoding.WholeEpisode) -> arrays.Keys:
        """Add an episode, and return the keys of its steps [T]."""
        self._make_room(episode.schema, len(episode.rows["reward"]))
        change = self._history.append_episode(
            episode.stream, episode.rows, episode.last_rows, is_terminated=episode.is_terminated
        )
        self._watch.record_other(episode.stream)
        return self._written(change)

    def end_episode(self, stream: int) -> None:
        """Truncate the episode that is open in the stream."""
        self._gathers.finish()
        self._anchors.on_append(self._history.cut(stream))

    def _make_room(self, schema: schema_lib.Schema, count: int) -> None:
        """Evict the oldest rows until `count` more have room."""
        timeline = self._timeline
        if not self._history.has_begun:
            self._history.begin(memory.ColumnStorage(schema, timeline.capacity))
        surplus = len(timeline) + count - timeline.capacity
        if surplus == 1:
            self._anchors.evicting_one(timeline.oldest_key % timeline.capacity)
            timeline.evict(1)
        elif surplus > 1:
            self._anchors.on_evict(timeline.oldest_slots(surplus))
            timeline.evict(surplus)

    def _written(self, change: timeline_lib.Change) -> arrays.Keys:
        """Count the new rows, lets them be drawn, and return their keys [k]."""
        self._counters.inserted += len(change.slots)
        self._anchors.on_append(change)
        return self._timeline.keys(change.slots)

    def require_insert(self, call: str) -> None:
        """Raise NotReadyError if no step may be added now; else wait for the reads under way."""
        if self._limited.holds_inserts and not self._limited.can_insert():
            raise errors.NotReadyError(f"{call} held back by {self._limited.limiter!r}: draw samples first")
        if self._gathers.ends:
            self._gathers.finish()


def _bytes_of(schema: schema_lib.Schema, rows: encoding.Columns) -> Callable[[int], bytes]:
    """Return what gives the bytes of an observation, from columns [k, ...]."""
    return lambda place: b"".join(rows[path][place].tobytes() for path in schema.observation_paths)


def _bytes_at(row: encoding.Row, num_blocks: int, streams: int) -> Callable[[int], bytes]:
    """Return the same from the bytes of each block of the rows of all streams, those of an observation first."""

    def at(place: int) -> bytes:
        sizes = [len(block) // streams for block in row[:num_blocks]]
        return b"".join(block[place * size : (place + 1) * size] for block, size in zip(row, sizes, strict=False))

    return at
