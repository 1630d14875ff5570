"""Iterates over the episodes of a column buffer as arrays, for export to other libraries.

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
from relive.common import arrays as arrays_lib
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
    """The stored part of an episode: copies of its last T steps.

    Attributes:
        keys: Keys of the steps, ascending [T]; with several streams they have gaps.
        stream: The environment or actor of the episode.
        start_step: Number of earlier steps: 0 unless older ones were evicted.
        status: COMPLETED if the task ended with the last step; IN_PROGRESS if the episode is still open.
        observations: o_t [T + 1, ...]; without the final one [T, ...] if it is not known.
        actions: a_t [T, ...].
        rewards: r_t [T].
        extras: The other fields by name [T, ...].
        has_final_observation: Whether the observation after the last step is the last of `observations`. It is missing
            if the step was added without it and none has followed.
    """

    keys: arrays_lib.Ints
    stream: int
    start_step: int
    status: StoredStatus
    observations: Tree
    actions: Tree
    rewards: arrays_lib.Array
    extras: dict[str, Tree]
    has_final_observation: bool

    def __len__(self) -> int:
        """Return the number of stored steps, T; at least one."""
        return len(self.keys)

    @property
    def terminated(self) -> arrays_lib.Bools:
        """Whether the task ended with each step [T]."""
        return self._flags("COMPLETED")

    @property
    def truncated(self) -> arrays_lib.Bools:
        """Whether the episode was truncated after each step [T]."""
        return self._flags("TRUNCATED")

    def _flags(self, status: StoredStatus) -> arrays_lib.Bools:
        flags = np.zeros(len(self), np.bool_)
        flags[-1] = self.status == status
        return flags


def stored_episodes(
    buffer: "column.ColumnReplayBuffer[Any]", *, progress: state.Progress | None = None
) -> Iterator[StoredEpisode]:
    """Yield every episode with stored steps, in the order of their first stored step.

    Memory use is that of a few copies of one episode, and a few numbers per step. Arrays are copies, with the dtypes of
    the schema.

    Args:
        buffer: The buffer to read.
        progress: Called after each episode with the number of bytes read so far and the total.

    Raises:
        ArgumentTypeError: `buffer` is not a column buffer, or `progress` is not callable.
        ArgumentError: Steps were added or removed during the iteration.

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
    return _episodes(buffer._store, progress)


def _episodes(history: steps.StepStore, progress: state.Progress | None) -> Iterator[StoredEpisode]:
    slots, final_slots = step_columns.slots_by_episode(history)
    left_out = dict(zip(slots[final_slots >= 0].tolist(), final_slots[final_slots >= 0].tolist(), strict=True))
    starts = np.flatnonzero(np.diff(history.episodes_of(slots))) + 1
    groups = np.split(slots, starts) if len(slots) else []
    for rows in step_columns.in_turn("stored_episodes", history, groups, progress):
        episode = history.episodes_of(rows[:1])
        has_final, later = bool(history.is_known(episode)[0]), left_out.get(rows.item(-1))
        columns, finals = history.read_rows(rows), history.final_observations(episode)
        if later is not None:
            has_final, finals = True, history.read_rows(np.array([later]), finals)
        for path, final in finals.items() if has_final else ():
            columns[path] = np.concatenate([columns[path], final], dtype=final.dtype)
        yield StoredEpisode(
            keys=history.keys(rows),
            stream=int(history.episodes[append.STREAM][episode[0]]),
            start_step=int(history.steps_of(rows[:1])[0]),
            status=_STATUSES[history.episodes[append.END][episode[0]]],
            observations=trees.nested("observation", columns),
            actions=trees.nested("action", columns),
            rewards=columns["reward"],
            extras=dict(trees.nested("extras", columns)),
            has_final_observation=has_final,
        )
