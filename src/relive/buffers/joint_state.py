"""The checkpointed state of a joint buffer: its joint steps, and the history of each agent.

    episode, step          of each joint step, oldest first [N]
    agents/0/present       whether the first agent is in it [N]
    agents/0/...           the agent's rows, one for each joint step it is in, as in a buffer of columns

Row keys are not saved: an agent's rows are in the order of the joint steps in which it is present.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import numpy as np

from relive import errors
from relive.buffers import joint_rows
from relive.common import arrays as arrays_lib
from relive.kernels import append
from relive.persistence import settings
from relive.persistence import state as state_lib
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.storage import steps as steps_lib
from relive.storage import steps_state

_NUMBERS = ("next_key", "num_evicted", "next_episode")
_NOWHERE = -2


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointState:
    """The joint steps, oldest first [N].

    Attributes:
        next_key: The key of the joint step that comes next.
        num_evicted: How many joint steps were evicted so far.
        next_episode: The number of the next episode.
        episode: The number of the episode of each joint step [N].
        step: How many steps of it came before [N].
        open_episode: The number of each stream's open episode, -1 if none [streams].
        open_length: Its number of steps so far [streams].
        present: Whether each agent is in each joint step [agents, N].
    """

    next_key: int
    num_evicted: int
    next_episode: int
    episode: arrays_lib.Ints
    step: arrays_lib.Ints
    open_episode: arrays_lib.Ints
    open_length: arrays_lib.Ints
    present: arrays_lib.Bools

    @classmethod
    def of_table(cls, table: joint_rows.JointTable) -> "JointState":
        """Return the state of a table."""
        slots = table.alive_slots()
        row_keys = [table.row_keys(agent, slots) for agent in range(table.num_agents)]
        return cls(
            next_key=table.next_key,
            num_evicted=table.num_evicted,
            next_episode=table.next_episode,
            episode=table.episodes(slots),
            step=table.steps(slots),
            open_episode=table.open_episode.copy(),
            open_length=np.where(table.open_episode < 0, 0, table.open_length),
            present=np.not_equal(row_keys, joint_rows.ABSENT),
        )

    @classmethod
    def of(cls, given: state_lib.StateReader, num_agents: int, capacity: int, streams: int) -> "JointState":
        """Validate and return the state for that many agents and streams.

        Raises:
            CheckpointError: The state is invalid, whatever the histories are.
        """
        numbers = {name: given.integer(name) for name in _NUMBERS}
        next_key, last_episode = numbers["next_key"], numbers["next_episode"] - 1
        episode = given.integers("episode", None, 0, last_episode)
        count = len(episode)
        state = cls(
            **numbers,
            episode=episode,
            step=given.integers("step", count, 0, next_key),
            open_episode=given.integers("open_episode", streams, -1, last_episode),
            open_length=given.integers("open_length", streams, 0, next_key),
            present=np.array(
                [given.part("agents").part(str(agent)).booleans("present", count) for agent in range(num_agents)]
            ),
        )
        if count > capacity:
            raise errors.CheckpointError(f"array episode must have at most capacity = {capacity}, got {count}")
        if numbers["num_evicted"] > next_key - count:
            raise errors.CheckpointError(
                f"num_evicted must be at most {next_key - count}, got {numbers['num_evicted']}"
            )
        return state

    def arrays(self) -> dict[str, Any]:
        """Return the arrays by name."""
        arrays = {name: getattr(self, name) for name in ("episode", "step", "open_episode", "open_length")}
        return arrays | {f"agents/{agent}/present": present for agent, present in enumerate(self.present)}

    def values(self) -> dict[str, Any]:
        """Return the single numbers by name."""
        return {name: getattr(self, name) for name in _NUMBERS}

    def row_keys(self, timelines: Sequence[steps_state.RowsState]) -> arrays_lib.Ints:
        """Return the keys of the agents' rows of each joint step, -1 where they are absent [agents, N]."""
        row_keys = np.full(self.present.shape, joint_rows.ABSENT, np.int64)
        for agent, timeline in enumerate(timelines):
            row_keys[agent, self.present[agent]] = timeline.keys
        return row_keys

    def restore(self, table: joint_rows.JointTable, timelines: Sequence[steps_state.RowsState]) -> None:
        """Restore this state into a table."""
        table.restore(
            next_key=self.next_key,
            num_evicted=self.num_evicted,
            next_episode=self.next_episode,
            episode=self.episode,
            step=self.step,
            row_keys=self.row_keys(timelines),
            open_episode=self.open_episode,
            open_length=self.open_length,
        )

    def wrong(self, timelines: Sequence[steps_state.RowsState]) -> str:
        """Return what is wrong with the joint steps, given the agents' histories; empty if nothing is. O(N)."""
        if not self.present.any(axis=0).all():
            return "each must have an agent"
        if any(len(timeline) != present.sum() for timeline, present in zip(timelines, self.present, strict=True)):
            return "an agent must have a row for each that it is in, and no other"
        stream = np.full(len(self.episode), _NOWHERE)
        for timeline, present in zip(timelines, self.present, strict=True):
            own = timeline.stream[timeline.episode]
            if ((stream[present] != own) & (stream[present] != _NOWHERE)).any():
                return "all agents of one must be in one stream"
            stream[present] = own
        return self._wrong_episodes(stream) or self._wrong_runs(stream, timelines)

    def _wrong_episodes(self, stream: arrays_lib.Ints) -> str:
        """Return what is wrong with the episodes, given the stream of each joint step [N]."""
        order = np.argsort(stream, kind="stable")
        is_same_stream = np.diff(stream[order]) == 0
        later = np.diff(self.episode[order])
        if (later[is_same_stream] < 0).any():
            return "the episodes of a stream must follow each other"
        is_same = is_same_stream & (later == 0)
        if (np.diff(self.step[order])[is_same] != 1).any():
            return "the steps of an episode must follow each other"
        firsts = np.append(order[:1], order[1:][~is_same])
        if len(np.unique(self.episode[firsts])) < len(firsts):
            return "an episode must be of one stream"
        is_open = self.open_episode >= 0
        newest = self._newest(stream)
        (started,) = (newest >= 0).nonzero()
        if (self.step[newest[started]] != self.open_length[started] - 1).any() or (self.open_length[is_open] < 1).any():
            return "an episode that goes on must be as long as its steps say"
        (other,) = (is_open & (newest < 0)).nonzero()
        numbers = np.concatenate([self.open_episode[other], self.episode[firsts]])
        if len(np.unique(numbers)) < len(numbers) or np.isin(other, stream).any():
            return "an episode that goes on must be the newest of its stream"
        return ""

    def _newest(self, stream: arrays_lib.Ints) -> arrays_lib.Ints:
        """Return the position of the newest step of each stream's open episode [streams].

        -1 if it is no longer stored, -2 if no episode is open.
        """
        newest = np.full(len(self.open_episode), -1)
        newest[stream] = np.arange(len(stream))  # For a repeated stream, the last assignment wins.
        if len(stream):
            newest[self.episode[newest] != self.open_episode] = -1
        newest[self.open_episode < 0] = _NOWHERE
        return newest

    def _wrong_runs(self, stream: arrays_lib.Ints, timelines: Sequence[steps_state.RowsState]) -> str:
        """Return what is wrong with the agents' histories, given the stream of each joint step [N]."""
        newest = self._newest(stream)
        for timeline, present in zip(timelines, self.present, strict=True):
            if not (timeline.has_tail | (timeline.end == append.TERMINATED)).all():
                return "of each row of an agent it must be known what came after"
            (places,) = present.nonzero()
            runs, begins = timeline.episode, self.step[places] - timeline.steps
            if (begins < 0).any() or not (_is_constant(runs, begins) and _is_constant(runs, self.episode[places])):
                return "an agent must be in each step of its run"
            last = np.full(len(timeline.stream), -1)
            last[runs] = places
            if (last != newest[timeline.stream])[timeline.is_open].any():
                return "a run that goes on must be in the newest step"
        return ""


def _is_constant(groups: arrays_lib.Ints, values: arrays_lib.Ints) -> bool:
    """Return whether the values [k] are the same wherever the groups [k] are."""
    of_group = np.zeros(groups.max(initial=-1) + 1, np.int64)
    of_group[groups] = values
    return bool((of_group[groups] == values).all())


class Kept:
    """Saves and restores the state of a buffer's parts.

    Args:
        table: Its joint steps.
        histories: The history of each agent, by name.
    """

    def __init__(self, table: joint_rows.JointTable, histories: Mapping[str, steps_lib.StepStore]) -> None:
        self._table, self._histories = table, histories

    def state_dict(self) -> state_lib.State:
        """Return the state."""
        joint, agents = JointState.of_table(self._table), {}
        arrays: dict[str, Any] = joint.arrays()
        for number, (name, history) in enumerate(self._histories.items()):
            schema = settings.encoded(history.schema) if history.has_begun else None
            of_history = history.state(history.rows_state())
            arrays |= {f"agents/{number}/{path}": array for path, array in of_history.pop("arrays").items()}
            agents[str(number)] = {"name": name, "schema": schema, **of_history}
        return {**joint.values(), "agents": agents, "arrays": arrays}

    def load_state_dict(self, given: state_lib.StateReader, check: Callable[[], object]) -> None:
        """Restore that state.

        Args:
            given: The state.
            check: Raises CheckpointError if the rest of the state is invalid; called before anything changes.

        Raises:
            CheckpointError: The state is impossible with these settings: nothing has changed. Or a column file is
                damaged.
        """
        capacity, streams = self._table.capacity, len(self._table.open_episode)
        if names(given) != list(self._histories):
            raise given.refused("agents", f"those of {', '.join(self._histories)}", names(given))
        joint = JointState.of(given, len(self._histories), capacity, streams)
        kept: list[steps_state.StepsState] = []
        storages: list[memory.ColumnStorage | None] = []
        for number, history in enumerate(self._histories.values()):
            part = given.part("agents").part(str(number))
            schema = settings.load(part, {"schema": None})["schema"]
            if history.has_begun and schema != history.schema:
                raise part.refused("schema", f"{history.schema}", schema)
            kept.append(steps_state.StepsState.of(part, schema, capacity, streams))
            storages.append(None if history.has_begun or schema is None else _storage(schema, capacity))
        timelines = [each.rows for each in kept]
        wrong = joint.wrong(timelines)
        if wrong:
            raise errors.CheckpointError(f"the joint steps cannot be as they are: {wrong}")
        check()
        for history, storage, each in zip(self._histories.values(), storages, kept, strict=True):
            if storage is not None:
                history.begin(storage)
            history.restore(each)
        joint.restore(self._table, timelines)

    def check(self) -> None:
        """Raise CorruptionError if the agents' histories are broken or do not fit together. O(N)."""
        for history in self._histories.values():
            history.check()
        timelines = [history.rows_state() for history in self._histories.values()]
        joint = JointState.of_table(self._table)
        wrong = joint.wrong(timelines)
        if wrong:
            raise errors.CorruptionError(f"the joint steps cannot be as they are: {wrong}")
        row_keys = [self._table.row_keys(agent, self._table.alive_slots()) for agent in range(len(timelines))]
        if not np.array_equal(row_keys, joint.row_keys(timelines)):
            raise errors.CorruptionError("the rows of an agent are not in the order of the joint steps")


def names(given: state_lib.StateReader) -> list[str]:
    """Return the names of the agents of a state.

    Raises:
        CheckpointError: There are no names or no agents.
    """
    agents = given.part("agents")
    return [agents.part(str(number)).text("name") for number in range(len(given.value("agents")))]


def _storage(schema: schema_lib.Schema, capacity: int) -> memory.ColumnStorage:
    try:
        return memory.ColumnStorage(schema, capacity)
    except (MemoryError, ValueError) as error:
        raise errors.CheckpointError(f"schema cannot be that of {capacity} rows: {error}") from error
