"""The episodes of a buffer of columns, one after another, as arrays: what is written to files of other libraries.

rows in the ring    a1 b0 a2 b1 c0 b2            of three episodes in two streams; a0 was evicted
returns             a: a1 a2, start_step 1       in the order of their first stored rows
                    b: b0 b1 b2
                    c: c0
"""

from collections.abc import Iterator
import dataclasses
from typing import Any, Literal, TypeAlias

import numpy as np

from relive.buffers import column
from relive.common import arrays
from relive.common import trees
from relive.common import validation
from relive.integrations import step_columns
from relive.kernels import append
from relive.persistence import state
from relive.storage import steps

Tree: TypeAlias = Any
"""An array, or a dict of arrays and such dicts, as the schema has it."""
StoredStatus: TypeAlias = Literal["IN_PROGRESS", "COMPLETED", "TRUNCATED"]

_STATUSES: tuple[StoredStatus, ...] = ("IN_PROGRESS", "COMPLETED", "TRUNCATED")  # By the numbers of `kernels.append`.


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class StoredEpisode:
    """What is stored of an episode: its last T steps, in copies.

    Attributes:
        keys: Of the steps, ascending [T]; where streams are written side by side they have gaps.
        stream: Which environment or actor it is of.
        start_step: How many steps came before the first one here: 0 unless older ones were evicted.
        status: COMPLETED if the task ended with the last step; IN_PROGRESS if the episode is still open.
        observations: o_t [T + 1, ...]; without the final one [T, ...] where it is not known.
        actions: a_t [T, ...].
        rewards: r_t [T].
        extras: The other fields by name [T, ...].
        has_final_observation: Whether the observation after the last step is the last of `observations`. It is not
            where the step was added without it, and no other has followed.
    """

    keys: arrays.Ints
    stream: int
    start_step: int
    status: StoredStatus
    observations: Tree
    actions: Tree
    rewards: arrays.Array
    extras: dict[str, Tree]
    has_final_observation: bool

    def __len__(self) -> int:
        """Return how many of its steps are stored, T; at least one is."""
        return len(self.keys)

    @property
    def terminated(self) -> arrays.Bools:
        """Whether the task ended with each step [T]."""
        return self._flags("COMPLETED")

    @property
    def truncated(self) -> arrays.Bools:
        """Whether somebody stopped looking after each step [T]."""
        return self._flags("TRUNCATED")

    def _flags(self, status: StoredStatus) -> arrays.Bools:
        flags = np.zeros(len(self), np.bool_)
        flags[-1] = self.status == status
        return flags


def stored_episodes(
    buffer: "column.ColumnReplayBuffer[Any]", *, progress: state.Progress | None = None
) -> Iterator[StoredEpisode]:
    """Give every episode that has a step stored, in the order of the first of those; every stored step is in one.

    It takes memory for one episode, and a few numbers a step. Arrays are copies, with the dtypes of the schema.

    Args:
        buffer: Where they are.
        progress: Called after each episode with the bytes of the rows read so far, and of all of them.

    Raises:
        ArgumentTypeError: `buffer` is no buffer of columns, or `progress` cannot be called.
        ArgumentError: Steps were added or taken away since the first episode was given.

    >>> import relive
    >>> from relive.integrations import stored_episodes
    >>> buffer = relive.RingReplayBuffer(4)
    >>> keys = buffer.add_episode([0, 1, 2, 3], [0, 1, 0], [0.0, 0.0, 1.0], terminated=True)
    >>> keys = buffer.add_episode([5, 6, 7], [1, 1], [0.0, 0.0], terminated=False)
    >>> for episode in stored_episodes.stored_episodes(buffer):
    ...     print(episode.keys, episode.start_step, episode.status, episode.observations)
    [1 2] 1 COMPLETED [1 2 3]
    [3 4] 0 TRUNCATED [5 6 7]
    """
    validation.require_instance("buffer", buffer, column.ColumnReplayBuffer)
    state.check_progress(progress)
    return _episodes(buffer.history, progress)


def _episodes(history: steps.StepStore, progress: state.Progress | None) -> Iterator[StoredEpisode]:
    slots = step_columns.slots_by_episode(history)
    starts = np.flatnonzero(np.diff(history.episodes_of(slots))) + 1
    groups = np.split(slots, starts) if len(slots) else []
    for rows in step_columns.in_turn("stored_episodes", history, groups, progress):
        yield _episode(history, rows)


def _episode(history: steps.StepStore, slots: arrays.Ints) -> StoredEpisode:
    """Return the episode whose rows are in `slots` [T], in their order."""
    last = slots[-1:]
    episode = history.episodes_of(last)
    has_tail, length = bool(history.is_known(episode)[0]), int(history.lengths_of(episode)[0])
    columns = history.storage.read(slots)
    if has_tail:
        for path, column in history.behind.items():
            rows = columns[path]
            columns[path] = np.concatenate([rows, column.take(episode, axis=0)], dtype=rows.dtype)
    return StoredEpisode(
        keys=history.keys(slots),
        stream=int(history.episodes[append.STREAM][episode[0]]),
        start_step=length - len(slots),
        status=_STATUSES[history.episodes[append.END][episode[0]]],
        observations=trees.nested("observation", columns),
        actions=trees.nested("action", columns),
        rewards=columns["reward"],
        extras=dict(trees.nested("extras", columns)),
        has_final_observation=has_tail,
    )
