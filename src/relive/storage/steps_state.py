"""The checkpointed state of the steps: the episode of each row, and a few numbers for each episode.

Slots and links are not saved, as they can be derived. Row k of N has the key next_key - N + k.
"""

from collections.abc import Collection, Mapping
import dataclasses

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.kernels import append
from relive.persistence import state
from relive.persistence import state as state_lib
from relive.schema import schema as schema_lib
from relive.storage import memory

_OF_EPISODES = ("stream", "length", "first_key", "end", "has_tail")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsState:
    """The rows of a store, oldest first [N], and its episodes [E].

    Attributes:
        next_key: The key of the next row.
        num_evicted: How many rows were evicted so far.
        episode: The number of each row's episode [N].
        stream: The stream of each episode [E].
        length: Its number of steps so far, including evicted ones [E].
        first_key: The key of its step 0 [E].
        end: How it ended: OPEN, TERMINATED or TRUNCATED [E].
        has_tail: Whether the observation after its newest step is known [E].
    """

    next_key: int
    num_evicted: int
    episode: arrays_lib.Ints
    stream: arrays_lib.Ints
    length: arrays_lib.Ints
    first_key: arrays_lib.Ints
    end: npt.NDArray[np.uint8]
    has_tail: arrays_lib.Bools

    numbers: arrays_lib.Ints = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    """The numbers that the episodes have in the store that this was taken of [E]; they are not kept."""

    def without_rows(self) -> "RowsState":
        """Return the state as if every row had been evicted: only the open episodes."""
        is_open = self.is_open
        return dataclasses.replace(
            self,
            num_evicted=self.num_evicted + len(self),
            episode=self.episode[:0],
            **{name: getattr(self, name)[is_open] for name in (*_OF_EPISODES, "numbers")},
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
        """Whether each episode is open [E]."""
        return np.equal(self.end, append.OPEN)

    @property
    def alive(self) -> arrays_lib.Ints:
        """How many rows each episode has [E]."""
        return np.bincount(self.episode, minlength=len(self.stream))

    @property
    def steps(self) -> arrays_lib.Ints:
        """How many steps of its episode came before each row [N]; the stored rows are an episode's last steps."""
        order = np.argsort(self.episode, kind="stable")
        alive = self.alive
        ranks = np.arange(len(self)) - np.repeat(np.cumsum(alive) - alive, alive)
        steps = np.empty(len(self), np.int64)
        steps[order] = ranks + np.repeat(self.length - alive, alive)
        return steps

    # As values and arrays.

    def values(self) -> dict[str, int]:
        """Return the single numbers by name."""
        return {"next_key": self.next_key, "num_evicted": self.num_evicted}

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
    def of(cls, given: state_lib.StateReader, capacity: int, streams: int) -> "RowsState":
        """Validate and return the state, for a store of that capacity and number of streams.

        Raises:
            CheckpointError: The state is invalid.
        """
        next_key, num_evicted = given.integer("next_key"), given.integer("num_evicted")
        stream = given.integers("episode_stream", None, 0, streams - 1)
        count = len(stream)
        episode = given.integers("row_episode", None, 0, count - 1)
        state = cls(
            next_key=next_key,
            num_evicted=num_evicted,
            episode=episode,
            stream=stream,
            length=given.integers("episode_length", count, 1, min(next_key, append.STEP)),
            first_key=given.integers("episode_first_key", count, 0, next_key),
            end=given.array("episode_end", np.uint8, (count,)),
            has_tail=given.booleans("episode_has_tail", count),
        )
        if len(episode) > capacity:
            raise errors.CheckpointError(f"row_episode must have at most capacity = {capacity}, got {len(episode)}")
        if num_evicted > next_key - len(episode):
            raise errors.CheckpointError(f"num_evicted must be at most {next_key - len(episode)}, got {num_evicted}")
        wrong = state._wrong()
        if wrong:
            raise errors.CheckpointError(f"the episodes cannot be as they are: {wrong}")
        return state

    def _wrong(self) -> str:
        """Return what is wrong with the episodes, in words; empty if nothing is."""
        alive, is_open, oldest_key = self.alive, self.is_open, self.next_key - len(self)
        if (self.end > append.TRUNCATED).any():
            return f"an end must be at most {append.TRUNCATED}"
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepsState:
    """The rows of a store, oldest first [N].

    Attributes:
        rows: The rows and their episodes.
        columns: Their fields by path [N, ...]; empty if they are in the storage already.
        final: The fields of the observation after the newest step, of each episode that has one [F, ...].
    """

    rows: RowsState
    columns: Mapping[str, state.ChunkedArray]
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
    ) -> "StepsState":
        """Validate and return the state, for a store of that capacity, number of streams and schema.

        Without `has_rows`, the rows are in the storage already.

        Raises:
            CheckpointError: The state is invalid.
        """
        kept = RowsState.of(given, capacity, streams)
        if schema is None:
            if kept.next_key or len(kept.stream):
                raise errors.CheckpointError("schema must be there where a row was written")
            return cls(rows=kept, columns={}, final={})
        count, with_tail = len(kept), int(kept.has_tail.sum())
        columns, final = {}, {}
        for path, field in schema.fields.items() if has_rows else ():
            columns[path] = given.column(f"rows/{path}", field.dtype, (count, *field.shape))
        for path in schema.observation_paths:
            field = schema.fields[path]
            final[path] = given.array(f"final/{path}", field.dtype, (with_tail, *field.shape))
        return cls(rows=kept, columns=columns, final=final)

    def read_rows(
        self, capacity: int, slots: arrays_lib.Slots, fields: Collection[str] | None = None
    ) -> dict[str, arrays_lib.Array]:
        """Return the rows that belong in `slots` [...] of a ring of that capacity, as `Storage.read` does."""
        oldest_key = self.rows.next_key - len(self.rows)
        places = np.minimum((slots - oldest_key) % capacity, len(self.rows) - 1)  # Other slots may hold anything.
        first, stop = (int(places.min()), int(places.max()) + 1) if places.size else (0, 0)
        rows: dict[str, arrays_lib.Array] = {}
        for path in self.columns if fields is None else fields:
            if path not in self.columns:
                raise memory.unknown_field(path, self.columns)
            rows[path] = self.columns[path].read(first, stop)[places - first]
        return rows
