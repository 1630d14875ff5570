"""What a checkpoint keeps of a timeline: which episode each row is of, and a few numbers of each episode.

Slots, handles and links are not kept: they follow. Row k of N has the key next_key - N + k.
"""

from collections.abc import Mapping
import dataclasses

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.kernels import episode_table
from relive.persistence import state
from relive.persistence import state as state_lib
from relive.schema import schema as schema_lib

_OF_EPISODES = ("stream", "length", "first_key", "end", "has_tail")
_NUMBERS = ("next_key", "num_evicted", "is_linked", "phase", "in_turn_since", "unlink_at")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimelineState:
    """The rows of a timeline, oldest first [N], and its episodes [E], by the number that rows have of them.

    Attributes:
        next_key: The key of the row that comes next.
        num_evicted: How many rows were evicted so far.
        is_linked: Whether rows are linked since some came out of turn. If not, key - stream leaves `phase` everywhere.
        phase: What key - stream leaves when divided by the number of streams, while they are in turn.
        in_turn_since: The first key from which on they have been in turn.
        unlink_at: The key that is to be the oldest before links may go.
        episode: The number of each row's episode [N].
        stream: Which stream an episode is of [E].
        length: Its steps so far, evicted ones too [E].
        first_key: The key of its step 0 [E].
        end: How it ended: OPEN, TERMINATED or TRUNCATED [E].
        has_tail: Whether the observation after its newest step is known [E].
    """

    next_key: int
    num_evicted: int
    is_linked: bool
    phase: int
    in_turn_since: int
    unlink_at: int
    episode: arrays_lib.Ints
    stream: arrays_lib.Ints
    length: arrays_lib.Ints
    first_key: arrays_lib.Ints
    end: npt.NDArray[np.uint8]
    has_tail: arrays_lib.Bools

    handles: arrays_lib.Ints = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """The episodes' handles in the timeline that this was taken of [E]; they are not kept."""

    def without_rows(self, streams: int) -> "TimelineState":
        """Return the same as if every row of so many streams had been evicted: the open episodes alone."""
        is_open = self.is_open
        return dataclasses.replace(
            self,
            num_evicted=self.num_evicted + len(self),
            # Without its last row, an open episode has to be linked to what comes.
            is_linked=streams > 1 and bool(is_open.any()),
            phase=self.next_key % streams,
            in_turn_since=self.next_key,
            unlink_at=self.next_key,
            episode=self.episode[:0],
            **{name: getattr(self, name)[is_open] for name in (*_OF_EPISODES, "handles")},
        )

    def __len__(self) -> int:
        """Return how many rows there are, N."""
        return len(self.episode)

    @property
    def keys(self) -> arrays_lib.Ints:
        """The keys of the rows [N]."""
        return np.arange(self.next_key - len(self), self.next_key)

    @property
    def is_open(self) -> arrays_lib.Bools:
        """Whether each episode is going on [E]."""
        return np.equal(self.end, episode_table.OPEN)

    @property
    def alive(self) -> arrays_lib.Ints:
        """How many rows each episode has [E]."""
        return np.bincount(self.episode, minlength=len(self.stream))

    @property
    def steps(self) -> arrays_lib.Ints:
        """How many steps of its episode came before each row [N]: an episode has its last steps."""
        order = np.argsort(self.episode, kind="stable")
        alive = self.alive
        ranks = np.arange(len(self)) - np.repeat(np.cumsum(alive) - alive, alive)
        steps = np.empty(len(self), np.int64)
        steps[order] = ranks + np.repeat(self.length - alive, alive)
        return steps

    def last_keys(self, streams: int) -> arrays_lib.Ints:
        """Return the key of the newest row of each episode, of so many streams [E].

        If it has none it was evicted; where the streams are in turn, it had the key of their last turn.
        """
        last = np.minimum(self._next_in_turn(streams) - streams, self.next_key - len(self) - 1)
        last[self.episode] = self.keys  # Of a number that is there more than once the last one stays.
        return last

    # As values and arrays.

    def values(self) -> dict[str, int]:
        """Return the single numbers by name."""
        return {name: getattr(self, name) for name in _NUMBERS}

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the arrays by name."""
        return {
            "row_episode": self.episode,
            "episode_stream": self.stream,
            "episode_length": self.length,
            "episode_first_key": self.first_key,
            "episode_end": self.end,
            "episode_has_tail": self.has_tail,
        }

    @classmethod
    def of(cls, given: state_lib.StateReader, capacity: int, streams: int) -> "TimelineState":
        """Return what was given, for a timeline of that capacity and so many streams.

        Raises:
            CheckpointError: No timeline can be in such a state.
        """
        next_key, num_evicted = given.integer("next_key"), given.integer("num_evicted")
        stream = given.integers("episode_stream", None, 0, streams - 1)
        count = len(stream)
        episode = given.integers("row_episode", None, 0, count - 1)
        state = cls(
            next_key=next_key,
            num_evicted=num_evicted,
            is_linked=given.boolean("is_linked"),
            phase=given.integer("phase", 0, streams - 1),
            in_turn_since=given.integer("in_turn_since", 0, next_key + capacity),
            unlink_at=given.integer("unlink_at", 0, next_key + capacity),
            episode=episode,
            stream=stream,
            length=given.integers("episode_length", count, 1, next_key),
            first_key=given.integers("episode_first_key", count, 0, next_key),
            end=given.array("episode_end", np.uint8, (count,)),
            has_tail=given.booleans("episode_has_tail", count),
        )
        if len(episode) > capacity:
            raise errors.CheckpointError(f"row_episode must have at most capacity = {capacity}, got {len(episode)}")
        if num_evicted > next_key - len(episode):
            raise errors.CheckpointError(f"num_evicted must be at most {next_key - len(episode)}, got {num_evicted}")
        wrong = state._wrong() or state._wrong_turns(streams)
        if wrong:
            raise errors.CheckpointError(f"the episodes cannot be as they are: {wrong}")
        return state

    def _wrong(self) -> str:
        """Return what is wrong with the episodes, in words; nothing if they can be."""
        alive, is_open, oldest_key = self.alive, self.is_open, self.next_key - len(self)
        if (self.end > episode_table.TRUNCATED).any():
            return f"an end must be at most {episode_table.TRUNCATED}"
        if (alive > self.length).any() or (alive[~is_open] == 0).any():
            return "one that has ended must have a row, and none more rows than steps"
        if np.bincount(self.stream[is_open], minlength=1).max() > 1:
            return "two are open in one stream"
        evicted = self.length - alive
        first_rows = np.full(len(alive), self.next_key)
        first_rows[self.episode[::-1]] = self.keys[::-1]
        is_whole = evicted == 0
        if (self.first_key[is_whole] != first_rows[is_whole]).any():
            return "one that has all its steps must have the key of its first row"
        if (self.first_key[~is_whole] > oldest_key - evicted[~is_whole]).any():
            return "one whose first steps were evicted must have begun before"
        return self._wrong_in_streams(alive, evicted)

    def _wrong_in_streams(self, alive: arrays_lib.Ints, evicted: arrays_lib.Ints) -> str:
        """Return what is wrong with how episodes follow each other in a stream."""
        of_row = self.stream[self.episode]
        order = np.argsort(of_row, kind="stable")
        streams, episodes = of_row[order], self.episode[order]
        begins = np.ones(len(order), np.bool_)
        begins[1:] = episodes[1:] != episodes[:-1]
        if begins.sum() != np.count_nonzero(alive):
            return "one must have its rows in a stream without those of another between them"
        is_first = np.ones(len(order), np.bool_)
        is_first[1:] = streams[1:] != streams[:-1]
        if (evicted[episodes[begins & ~is_first]] > 0).any():
            return "one whose first steps were evicted must be the oldest of its stream"
        is_last = np.ones(len(order), np.bool_)
        is_last[:-1] = is_first[1:]
        if (self.is_open[episodes] & ~np.isin(episodes, episodes[is_last])).any():
            return "one that is open must be the newest of its stream"
        without_rows = self.stream[alive == 0]
        if np.isin(without_rows, of_row).any():
            return "one that is open without a row must be alone in its stream"
        return ""

    def _wrong_turns(self, streams: int) -> str:
        if streams == 1 and self.is_linked:
            return "one stream alone is always in turn"
        since = self.in_turn_since if self.is_linked else 0
        keys = self.keys
        if ((keys - self.stream[self.episode]) % streams != self.phase)[keys >= since].any():
            return "rows must be in turn where they are not linked, and since they are in turn again"
        # Of episodes that began since then, everything follows from the key of step 0: links may go one day.
        follows = self.first_key >= since
        is_right = (self.first_key - self.stream) % streams == self.phase
        is_right &= ~self.is_open | ((self._next_in_turn(streams) - self.first_key) // streams == self.length)
        is_right[self.episode[(keys - self.first_key[self.episode]) // streams != self.steps]] = False
        return "" if is_right[follows].all() else "one that began in turn must have a step in each turn since"

    def _next_in_turn(self, streams: int) -> arrays_lib.Ints:
        """Return the key of the next row of each episode's stream if the streams are in turn [E]."""
        return self.next_key + (self.stream + self.phase - self.next_key) % streams


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepStoreState:
    """The rows of a history, oldest first [N].

    Attributes:
        timeline: Which of them follow which.
        rows: Their fields by path [N, ...]; none if they are in the storage already.
        final: The fields of the observation after the newest step, of each episode that has one [F, ...].
    """

    timeline: TimelineState
    rows: Mapping[str, state.ChunkedArray]
    final: Mapping[str, arrays_lib.Array]

    @classmethod
    def of(
        cls,
        given: state.StateReader,
        schema: schema_lib.Schema | None,
        capacity: int,
        streams: int,
        *,
        has_rows: bool = True,
    ) -> "StepStoreState":
        """Return what was given, for a history of that capacity and so many streams, whose rows are of that schema.

        Without `has_rows` they are in the storage already.

        Raises:
            CheckpointError: No history can be in such a state.
        """
        timeline = TimelineState.of(given, capacity, streams)
        if schema is None:
            if timeline.next_key or len(timeline.stream):
                raise errors.CheckpointError("schema must be there where a row was written")
            return cls(timeline=timeline, rows={}, final={})
        count, with_tail = len(timeline), int(timeline.has_tail.sum())
        rows, final = {}, {}
        for path, field in schema.fields.items() if has_rows else ():
            rows[path] = given.column(f"rows/{path}", field.dtype, (count, *field.shape))
        for path in schema.observation_paths:
            field = schema.fields[path]
            final[path] = given.array(f"final/{path}", field.dtype, (with_tail, *field.shape))
        return cls(timeline=timeline, rows=rows, final=final)
