"""The checkpointed state of the steps: the episode of each row, and a few numbers for each episode.

Slots and links are not saved, as they can be derived. Row k of N has the key next_key - N + k.
"""

from collections.abc import Collection, Iterator
import dataclasses
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.kernels import append
from relive.persistence import state as state_lib
from relive.schema import schema as schema_lib
from relive.storage import memory

_OF_EPISODES = ("stream", "length", "first_key", "end", "has_tail")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepsState:
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
        numbers: The numbers that the episodes have in the store that this was taken of [E]; they are not kept.
        columns: The fields of the rows by path [N, ...]; empty if they are in the storage already.
        final: The fields of the observation after the newest step, of each episode that has one [F, ...].
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
    columns: dict[str, state_lib.ChunkedArray] = dataclasses.field(default_factory=dict)
    final: dict[str, arrays_lib.Array] = dataclasses.field(default_factory=dict)

    def without_rows(self) -> "StepsState":
        """Return the state as if every row had been evicted: only the open episodes."""
        of_open: dict[str, Any] = {name: getattr(self, name)[self.is_open] for name in (*_OF_EPISODES, "numbers")}
        num_evicted = self.num_evicted + len(self)
        return dataclasses.replace(self, num_evicted=num_evicted, episode=self.episode[:0], **of_open)

    def __len__(self) -> int:
        """Return how many rows there are, N."""
        return len(self.episode)

    @functools.cached_property
    def keys(self) -> arrays_lib.Ints:
        """The keys of the rows [N]."""
        return np.arange(self.next_key - len(self), self.next_key)

    @functools.cached_property
    def is_open(self) -> arrays_lib.Bools:
        """Whether each episode is open [E]."""
        return np.equal(self.end, append.OPEN)

    @functools.cached_property
    def alive(self) -> arrays_lib.Ints:
        """How many rows each episode has [E]."""
        return np.bincount(self.episode, minlength=len(self.stream))

    @functools.cached_property
    def order(self) -> slice | arrays_lib.Ints:
        """The rows of one episode after those of another, each in the order of time [N]; a slice if they lie so."""
        if (self.episode[1:] >= self.episode[:-1]).all():
            return slice(None)
        return np.argsort(self.episode, kind="stable")

    @functools.cached_property
    def steps(self) -> arrays_lib.Ints:
        """How many steps of its episode came before each row [N]; the stored rows are an episode's last steps."""
        steps = np.empty(len(self), np.int64)
        steps[self.order] = np.arange(len(self)) + np.repeat(self.length - np.cumsum(self.alive), self.alive)
        return steps

    def values(self) -> dict[str, int]:
        """Return the single numbers by name."""
        return {"next_key": self.next_key, "num_evicted": self.num_evicted}

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the arrays by name."""
        return {"row_episode": self.episode, **{f"episode_{name}": getattr(self, name) for name in _OF_EPISODES}}

    @classmethod
    def of(
        cls,
        given: state_lib.StateReader,
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
        next_key, num_evicted = given.integer("next_key"), given.integer("num_evicted")
        stream = given.integers("episode_stream", None, 0, streams - 1)
        count = len(stream)
        kept = cls(
            next_key=next_key,
            num_evicted=num_evicted,
            episode=given.integers("row_episode", None, 0, count - 1),
            stream=stream,
            length=given.integers("episode_length", count, 1, min(next_key, append.STEP)),
            first_key=given.integers("episode_first_key", count, 0, next_key),
            end=given.array("episode_end", np.uint8, (count,)),
            has_tail=given.booleans("episode_has_tail", count),
        )
        if len(kept) > capacity:
            raise errors.CheckpointError(f"row_episode must have at most capacity = {capacity}, got {len(kept)}")
        if num_evicted > next_key - len(kept):
            raise errors.CheckpointError(f"num_evicted must be at most {next_key - len(kept)}, got {num_evicted}")
        for rule, is_broken in kept._rules():
            if is_broken.any():
                raise errors.CheckpointError(f"the episodes cannot be as they are: {rule}")
        if schema is None:
            if next_key or count:
                raise errors.CheckpointError("schema must be there where a row was written")
            return kept
        for path, field in schema.fields.items() if has_rows else ():
            kept.columns[path] = given.column(f"rows/{path}", field.dtype, (len(kept), *field.shape))
        for path in schema_lib.paths_of(schema, "observation"):
            field = schema.fields[path]
            kept.final[path] = given.array(f"final/{path}", field.dtype, (int(kept.has_tail.sum()), *field.shape))
        return kept

    def _rules(self) -> Iterator[tuple[str, arrays_lib.Bools]]:
        """Yield each rule that the episodes must obey, in words, and which of them break it."""
        alive, is_open = self.alive, self.is_open
        yield f"an end must be at most {append.TRUNCATED}", self.end > append.TRUNCATED
        is_wrong = (alive > self.length) | (~is_open & (alive == 0))
        yield "one that has ended must have a row, and none more rows than steps", is_wrong
        yield "two are open in one stream", np.bincount(self.stream[is_open]) > 1
        evicted = self.length - alive
        first_keys, starts = np.full(len(alive), self.next_key), starts_of(self.episode)
        first_keys[self.episode[starts][::-1]] = self.keys[starts][::-1]  # Of a repeated episode, the first one.
        is_wrong = (evicted == 0) & (self.first_key != first_keys)
        yield "one that has all its steps must have the key of its first row", is_wrong
        is_wrong = (evicted > 0) & (self.first_key > self.next_key - len(self) - evicted)
        yield "one whose first steps were evicted must have begun before", is_wrong
        # Its first and last row among those of all streams, one stream after the other: whole runs of rows are sorted.
        of_runs, lengths = self.episode[starts], np.diff(starts, append=len(self))
        order = np.argsort(self.stream[of_runs], kind="stable")
        episodes = of_runs[order]
        edges = np.append(0, np.cumsum(lengths[order]))
        first, last = np.zeros(len(alive), np.int64), np.full(len(alive), -1)
        first[episodes[::-1]], last[episodes] = edges[-2::-1], edges[1:] - 1  # Of a repeated one, the last that is set.
        streams = self.stream[episodes]
        begin, stop = (edges[streams.searchsorted(self.stream, side)] for side in ("left", "right"))
        has_rows = alive > 0
        is_wrong = last - first + 1 != alive
        yield "one must have its rows in a stream without those of another between them", is_wrong
        is_wrong = has_rows & (evicted > 0) & (first != begin)
        yield "one whose first steps were evicted must be the oldest of its stream", is_wrong
        yield "one that is open must be the newest of its stream", has_rows & is_open & (last + 1 != stop)
        yield "one that is open without a row must be alone in its stream", ~has_rows & (begin != stop)

    def read_rows(
        self, capacity: int, slots: arrays_lib.Slots, fields: Collection[str] | None = None
    ) -> dict[str, arrays_lib.Array]:
        """Return the rows that belong in `slots` [...] of a ring of that capacity, as `Storage.read` does."""
        oldest_key = self.next_key - len(self)
        places = np.minimum((slots - oldest_key) % capacity, len(self) - 1)  # Other slots may hold anything.
        first, stop = (int(places.min()), int(places.max()) + 1) if places.size else (0, 0)
        rows: dict[str, arrays_lib.Array] = {}
        for path in self.columns if fields is None else fields:
            if path not in self.columns:
                raise memory.unknown_field(path, self.columns)
            rows[path] = self.columns[path].read(first, stop)[places - first]
        return rows


def starts_of(values: arrays_lib.Ints) -> arrays_lib.Ints:
    """Return where in an array [N] a value stands that is not the one before it.

    >>> import numpy as np
    >>> from relive.storage import steps_state
    >>> steps_state.starts_of(np.array([5, 5, 3, 5])).tolist()
    [0, 2, 3]
    """
    is_start = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=is_start[1:])
    return is_start.nonzero()[0]
