"""JointReplayBuffer and JointSequenceReplayBuffer: steps of multi-agent environments, drawn jointly.

    add, extend                                      sample
     │  make one row of all agents     JointRows        │  may it? which rows?       ColumnReplayBuffer
     │  write the row                  ColumnReplay-    │  for each agent: its run   JointWindow
     ▼                                 Buffer           ▼  from there, and a mask

They are column buffers whose rows hold a step of every agent, so all that column buffers do, they do.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, Never, NoReturn, Self, TypeVar

import numpy as np

from relive import errors
from relive.buffers import column
from relive.buffers import column_stats
from relive.buffers import ring
from relive.common import arrays as arrays_lib
from relive.common import notebook
from relive.common import validation
from relive.common import words
from relive.joint import batch as joint_batch
from relive.joint import rows as joint_rows
from relive.joint import window as joint_window
from relive.limits import rate_limiters
from relive.persistence import checkpointable
from relive.persistence import settings
from relive.persistence import state as state_lib
from relive.samplers import sampler as sampler_lib
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import next_round

Batch = TypeVar("Batch", bound=column.AnyBatch)


class JointColumnBuffer(column.ColumnReplayBuffer[Batch], Generic[Batch]):
    """A column buffer whose rows hold a step of every agent of an environment; `layout` of its window makes them."""

    _NOT_KEPT = column.ColumnReplayBuffer._NOT_KEPT | {"agents", "schema", "schemas"}
    _CAN_GROW = True

    def __init__(
        self,
        capacity: int,
        schemas: Mapping[str, schema_lib.Schema] | None,
        window: Any,
        **options: Any,
    ) -> None:
        self._rows: joint_rows.JointRows = window.layout
        rows, schemas = self._rows, {} if schemas is None else schemas
        validation.require_instance("schemas", schemas, Mapping)
        for agent, schema in schemas.items():
            if agent not in rows.numbers:
                raise errors.ArgumentError(f"schemas must be of {', '.join(rows.numbers)}, got one of {agent!r}")
            schema_lib.require(f"schema of {agent!r}", schema)
        super().__init__(capacity, None, window=window, **options)
        rows.bind(self._store)
        if schemas:
            self._begin(rows.schema_with({rows.numbers[agent]: schema for agent, schema in schemas.items()}))

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of the agents, in the order in which batches have them."""
        return self._rows.agents

    @property
    def schemas(self) -> dict[str, schema_lib.Schema]:
        """The schema of each agent, by name, as far as known."""
        return self._rows.schemas

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {len(self)} joint steps of {len(self.agents)} agents, "
            f"capacity={self.capacity}, streams={self.streams}{self._others_set('capacity', 'streams')}{self._endless}>"
        )

    def _described_fields(self) -> list[notebook.Row]:
        schemas = self.schemas.items()
        return [row for agent, one in schemas for row in notebook.fields(f"{agent}/", one.fields, self.capacity)]

    # Writing.

    def add(  # type: ignore[override]  # Everything is by agent.
        self,
        observations: Mapping[str, Any],
        actions: Mapping[str, Any],
        rewards: Mapping[str, Any],
        next_observations: Mapping[str, Any],
        *others: Never,
        terminations: Mapping[str, Any] | None = None,
        truncations: Mapping[str, Any] | None = None,
        stream: int | None = None,
        **extras: Mapping[str, Any],
    ) -> int:
        """Add one joint step, given as dicts by agent as in PettingZoo, and return its key.

        The agents in `actions` are present; entries of other agents in the other mappings are ignored, but a reward
        other than 0 or an end of one is refused, since no step holds it. An agent that was present in the previous
        step, has not ended and is absent now has left: its run is truncated after its last step, and a new run begins
        when it acts again. The episode ends once every present agent has ended, or with `end_episode`.

        Args:
            observations: o_t of each agent. If it differs from the next observation that the previous step gave for an
                agent present in both, the episode is truncated there for all agents and this step begins a new one.
            actions: a_t of each agent that is present.
            rewards: r_t of each.
            next_observations: o_{t+1} of each; agents that terminated may be omitted.
            others: None: the arguments below are given by name.
            terminations: Whether the task ended for the agent; None for all False.
            truncations: Whether the agent was truncated; None for all False. Termination takes precedence.
            stream: The environment; required if there are several.
            extras: The other fields of the agents' schemas, each a mapping by agent.

        Raises:
            SchemaError: A value does not fit its field, or an extra is missing or unknown; the message names the agent.
            ArgumentError: Another argument is invalid, or an absent agent has a reward or an end.
            NotReadyError: The limiter holds inserts back.
        """
        if others:
            raise words.too_many("add", type(self).add, 4 + len(others))
        given = joint_rows.Given(observations, actions, rewards, next_observations, terminations, truncations, extras)
        return self._insert("add", self._rows.steps((encoding.stream_number(self.streams, stream),), given))

    def extend(  # type: ignore[override]
        self,
        observations: Mapping[str, Any],
        actions: Mapping[str, Any],
        rewards: Mapping[str, Any],
        next_observations: Mapping[str, Any],
        *,
        terminations: Mapping[str, Any] | None = None,
        truncations: Mapping[str, Any] | None = None,
        present: Mapping[str, Any] | None = None,
        streams: Any = None,
        **extras: Mapping[str, Any],
    ) -> arrays_lib.Keys:
        """Add one joint step to every stream and return their keys [S]; equivalent to calling `add` for each stream.

        Arguments are those of `add`, in which each value has a leading axis of streams [S, ...]. `streams` are the
        streams that have a step, as distinct numbers [S]; None for all, in order. `present` says of each agent where it
        is present [S]; None, or no entry, for everywhere. Where it is absent, any values that fit its schema may be
        given, and are ignored; agents that are not in `actions` are absent in all streams.

        Raises:
            SchemaError: A value does not fit its field, or an extra is missing or unknown; the message names the agent.
            ArgumentError: Another argument is invalid, or an agent that is not in `actions` has a reward or an end.
            NotReadyError: The limiter holds inserts back; it decides once for all steps of the call.
        """
        given = joint_rows.Given(observations, actions, rewards, next_observations, terminations, truncations, extras)
        steps = self._rows.steps(encoding.stream_numbers(self.streams, streams), given, present)
        keys = np.arange(self.appended, self.appended + len(steps.streams))
        self._insert("extend", steps)
        return keys

    def add_steps(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise ArgumentError: joint steps are added one at a time, with `add` or `extend`."""
        raise errors.ArgumentError("add_steps cannot add joint steps: use add or extend")

    def add_episode(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise ArgumentError: joint steps are added one at a time, with `add` or `extend`."""
        raise errors.ArgumentError("add_episode cannot add joint steps: use add or extend")

    def add_episodes(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise ArgumentError: joint steps are added one at a time, with `add` or `extend`."""
        raise errors.ArgumentError("add_episodes cannot add joint steps: use add or extend")

    def _append(self, steps: encoding.Steps) -> next_round.Written:
        record = self._rows.recording(steps)
        written = super()._append(steps)
        record()
        return written

    # As a whole.

    @classmethod
    def _loaded(cls, state: state_lib.State, overrides: dict[str, Any], **options: Any) -> Self:
        return super()._loaded(state, {"agents": _saved_names(cls._given(state)), **overrides}, **options)

    def _state_dict(self, **options: Any) -> state_lib.State:
        return {**self._of_agents(), **super()._state_dict(**options)}

    def _base_state(self, **options: Any) -> state_lib.State:
        return {**self._of_agents(), **super()._base_state(**options)}

    def _of_agents(self) -> state_lib.State:
        return {
            "agents": {str(number): agent for number, agent in enumerate(self.agents)},
            "schema": settings.encoded(self.schema),
            "next_episode": self._rows.next_episode,
        }

    def _saved_schema(self, given: state_lib.StateReader) -> schema_lib.Schema | None:
        schema: schema_lib.Schema | None = settings.load(given, "schema")
        if schema is not None:
            saved = {name: group.schema for group in self._rows.groups_in(schema) for name in group.names}
            for agent, own in self.schemas.items():
                if saved.get(agent) != own:
                    raise given.refused("schema", f"{own} for agent {agent!r}", saved.get(agent))
        return schema

    def _load_state_dict(self, given: state_lib.StateReader, **options: Any) -> None:
        names = _saved_names(given)
        if names != list(self.agents):
            raise given.refused("agents", f"those of {', '.join(self.agents)}", names)
        super()._load_state_dict(given, **options)
        self._rows = joint_rows.JointRows(self.agents)
        self._rows.bind(self._store)
        self._rows.update(self._store.encoder)
        self._rows.next_episode = given.integer("next_episode")
        wrong = self._wrong()
        if wrong:
            raise errors.CheckpointError(wrong)

    def _swap(self, twin: Any) -> None:
        super()._swap(twin)
        window: Any = self._window
        self._rows = checkpointable.become(window.layout, twin._rows)

    def _begin(self, schema: schema_lib.Schema) -> None:
        known: Any = {} if self.schema is None else self.schema.fields
        self._rows.groups_in(schema)
        if not known.items() <= schema.fields.items():
            raise errors.CheckpointError("has a schema without the agents that are known")
        super()._begin(schema)
        self._rows.update(self._store.encoder)

    def get_stats(self) -> joint_batch.JointBufferStats:
        """Return statistics of the buffer. O(capacity)."""
        store = self._store
        stats = column_stats.of(store, self._draws, self._watch)
        num_steps = np.zeros(len(self.agents), np.int64)
        if len(self):
            flags = store.storage.read(store.alive_slots(), (joint_rows.FLAGS,))[joint_rows.FLAGS]
            num_steps = np.count_nonzero(flags & joint_rows.PRESENT, axis=0)
        return joint_batch.JointBufferStats(
            **vars(stats), agent_steps=dict(zip(self.agents, num_steps.tolist(), strict=True))
        )

    def check(self) -> None:
        """Verify all invariants by recounting everything that is stored.

        Raises:
            CorruptionError: An invariant does not hold; the message says which.
        """
        super().check()
        wrong = self._wrong()
        if wrong:
            raise errors.CorruptionError(wrong)

    def _wrong(self) -> str:
        """Return what is wrong with the joint steps; empty if nothing is."""
        wrong = "" if self.schema is None else self._rows.wrong()
        return wrong and f"the joint steps cannot be as they are: {wrong}"


class JointReplayBuffer(  # pyright: ignore[reportIncompatibleMethodOverride]  # Those of JointColumnBuffer count.
    JointColumnBuffer[joint_batch.JointBatch], ring.TransitionReplayBuffer[joint_batch.JointBatch]
):
    """A replay buffer for multi-agent environments: stores the newest `capacity` joint steps and samples them jointly.

    A joint step holds a step of each agent that acted in it. A position in a batch is the same joint step for every
    agent; absent agents are masked. Agents may have different schemas, leave early, join late, and return.

    It is a column buffer of joint steps: `update_priorities`, `attach`, `explain`, the wrappers for asyncio and threads
    and all else works as with a RingReplayBuffer.

    Args:
        capacity: Maximum number of stored joint steps, that is, environment steps; the oldest are evicted first.
        schemas: The schema of each agent, by name; inferred from the first step of an agent that is not named.
        agents: The names of all agents that may ever act: `possible_agents` of a PettingZoo environment.
        n_step: Maximum number of steps in a transition; fewer if the agent's run, or what is known of it, ends earlier.
        gamma: The discount factor, in (0, 1].
        streams, limiter, sampler, max_times_sampled, seed: As in ColumnReplayBuffer, of joint steps.

    Raises:
        ArgumentError: A setting is invalid.

    >>> import relive
    >>> buffer = relive.JointReplayBuffer(1_000, agents=["walker", "runner"], gamma=0.9, seed=0)
    >>> observations = {"walker": 0.0, "runner": 5.0}
    >>> for t in range(3):
    ...     actions = {agent: t for agent in observations}
    ...     next_observations = {agent: observation + 1.0 for agent, observation in observations.items()}
    ...     rewards = {agent: 1.0 if agent == "walker" else 2.0 for agent in actions}
    ...     terminations = {"walker": t == 2, "runner": t == 0}
    ...     key = buffer.add(observations, actions, rewards, next_observations, terminations=terminations)
    ...     observations = {agent: next_observations[agent] for agent in actions if not terminations[agent]}
    >>> batch = buffer.read([0, 1, 2])
    >>> batch.agents["walker"].observation.tolist(), batch.agents["walker"].mask.tolist()
    ([0.0, 1.0, 2.0], [True, True, True])
    >>> batch.agents["runner"].observation.tolist(), batch.agents["runner"].mask.tolist()
    ([5.0, 0.0, 0.0], [True, False, False])
    >>> batch.episodes.tolist(), batch.start_step.tolist()
    ([0, 0, 0], [0, 1, 2])
    """

    def __init__(
        self,
        capacity: int,
        schemas: Mapping[str, schema_lib.Schema] | None = None,
        *,
        agents: Sequence[str],
        n_step: int = 1,
        gamma: float = 0.99,
        streams: int = 1,
        limiter: rate_limiters.RateLimiter | None = None,
        sampler: sampler_lib.Sampler | None = None,
        max_times_sampled: int | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        self._transitions = joint_window.JointWindow(n_step=n_step, gamma=gamma, layout=joint_rows.JointRows(agents))
        super().__init__(
            capacity,
            schemas,
            self._transitions,
            sampler=sampler,
            streams=streams,
            limiter=limiter,
            max_times_sampled=max_times_sampled,
            seed=seed,
        )

    @property
    def n_step(self) -> int:
        """Maximum number of steps in a transition."""
        return self._transitions.n_step

    @property
    def gamma(self) -> float:
        """The discount factor."""
        return self._transitions.gamma


class JointSequenceReplayBuffer(JointColumnBuffer[joint_batch.JointSequenceBatch]):
    """Stores the newest `capacity` joint steps of multi-agent environments and samples sequences of `length` of them.

    Steps are added as to a JointReplayBuffer, and sequences are drawn as from a SequenceReplayBuffer: `length`,
    `burn_in`, `stride` and `pad` are settings of that, and all others are those of a JointReplayBuffer. A sequence is
    of one episode of the environment; the mask of an agent tells at which of its steps the agent was present.

    Raises:
        ArgumentError: A setting is invalid.

    >>> import relive
    >>> buffer = relive.JointSequenceReplayBuffer(1_000, agents=["walker", "runner"], length=3, seed=0)
    >>> for t in range(4):
    ...     now = {"walker": t, "runner": 10 * t} if t < 2 else {"walker": t}
    ...     then = {agent: value + (10 if agent == "runner" else 1) for agent, value in now.items()}
    ...     key = buffer.add(now, now, dict.fromkeys(now, 1.0), then)
    >>> runner = buffer.read([1]).agents["runner"]
    >>> runner.observation.tolist(), runner.mask.tolist(), runner.truncated.tolist()
    ([[10, 20, 0, 0]], [[True, False, False]], [[True, False, False]])
    """

    def __init__(
        self,
        capacity: int,
        schemas: Mapping[str, schema_lib.Schema] | None = None,
        *,
        agents: Sequence[str],
        length: int,
        burn_in: int = 0,
        stride: int = 1,
        pad: bool = False,
        streams: int = 1,
        limiter: rate_limiters.RateLimiter | None = None,
        sampler: sampler_lib.Sampler | None = None,
        max_times_sampled: int | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        layout = joint_rows.JointRows(agents)
        window = joint_window.JointSequenceWindow(length=length, burn_in=burn_in, stride=stride, pad=pad, layout=layout)
        if validation.positive_int("capacity", capacity) < length:
            raise errors.ArgumentError(f"length must be at most capacity = {capacity}, got {length}")
        super().__init__(
            capacity,
            schemas,
            window,
            sampler=sampler,
            streams=streams,
            limiter=limiter,
            max_times_sampled=max_times_sampled,
            seed=seed,
        )


def _saved_names(given: state_lib.StateReader) -> list[str]:
    """Return the names of the agents of a state; raise CheckpointError if there are none."""
    agents = given.part("agents")
    return [agents.text(str(number)) for number in range(len(agents.names()))]
