"""JointReplayBuffer: steps of multi-agent environments, drawn jointly.

    add                                              sample
     │  check every agent's step      joint_steps     │  may it?                       RateLimiter
     │  cut what does not follow       StepStore         │  which joint steps?            JointTable
     │  evict the oldest joint step   JointTable      │  for each agent: its rows,     Window
     ▼  write a row of each agent     StepStore         ▼  and zeros where it is absent  joint_batch

Each agent has its own history and schema, and its returns end where its own run ends. Invariant: a joint step is stored
with the rows of all its agents or not at all, so every stored step can be drawn.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from relive import errors
from relive.buffers import joint_batch
from relive.buffers import joint_rows
from relive.common import arrays
from relive.common import imports
from relive.common import notebook
from relive.common import validation
from relive.persistence import checkpointable
from relive.persistence import state as state_lib
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.storage import steps as steps_lib
from relive.waiting import rate_limiters
from relive.windows import transitions

if TYPE_CHECKING:
    from relive.buffers import joint_state
else:
    joint_state = imports.lazy_module("relive.buffers.joint_state")


MOST_RUNS = 2**19
"""So many agents in all streams a buffer has at most: each takes memory, which a saved one must not only claim."""


class JointReplayBuffer(checkpointable.Checkpointable):
    """A replay buffer for multi-agent environments: stores the newest `capacity` joint steps and samples them jointly.

    A joint step holds a row for each agent that acted in it. A position in a batch is the same joint step for every
    agent; absent agents are masked. Agents may have different schemas, leave early, join late, and return.

    Args:
        capacity: Maximum number of stored joint steps, that is, environment steps; the oldest are evicted first.
        schemas: The schema of each agent, by name; inferred from the first step of an agent that is not named.
        agents: The names of all agents that may ever act: `possible_agents` of a PettingZoo environment.
        n_step: Maximum number of steps in a transition; fewer if the agent's run, or what is known of it, ends earlier.
        gamma: The discount factor, in (0, 1].
        streams: Number of environments that write in parallel; at most 2^19 streams times agents.
        limiter: Decides when steps may be added and batches drawn; by default sampling needs one joint step.
        seed: Seed or generator for sampling; the same seed and the same calls give the same batches.

    Raises:
        ArgumentError: A setting is invalid.

    >>> import relive
    >>> buffer = relive.JointReplayBuffer(1_000, agents=["walker", "runner"], gamma=0.9, seed=0)
    >>> observations = {"walker": 0.0, "runner": 5.0}
    >>> for t in range(3):
    ...     actions = {agent: t for agent in observations}
    ...     next_observations = {agent: observation + 1.0 for agent, observation in observations.items()}
    ...     rewards = {"walker": 1.0, "runner": 2.0}
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

    _SETTINGS: ClassVar[tuple[str, ...]] = ("capacity", "n_step", "gamma", "streams", "limiter")

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
        seed: int | np.random.Generator | None = None,
    ) -> None:
        capacity = validation.positive_int("capacity", capacity)
        streams = validation.positive_int("streams", streams)
        self._numbers = {agent: number for number, agent in enumerate(_names(agents))}
        if streams * len(self._numbers) > MOST_RUNS:
            raise errors.ArgumentError(f"streams must be at most {MOST_RUNS // len(self._numbers)}, got {streams}")
        schemas = {} if schemas is None else schemas
        validation.require_instance("schemas", schemas, Mapping)
        for agent, schema in schemas.items():
            if agent not in self._numbers:
                raise errors.ArgumentError(f"schemas must be of {', '.join(self._numbers)}, got one of {agent!r}")
            schema_lib.require(f"schema of {agent!r}", schema)
        self._window = transitions.TransitionWindow(n_step, gamma)
        self._rng = validation.generator("seed", seed)
        self._streams = streams
        self._table = joint_rows.JointTable(capacity, len(self._numbers), streams)
        self._counters = joint_batch.Counters(table=self._table)
        self._limited = rate_limiters.LimitedBuffer(limiter, self._counters, "capacity", capacity)
        self._histories = [steps_lib.StepStore(capacity, streams) for _ in self._numbers]
        self._by_name = dict(zip(self._numbers, self._histories, strict=True))
        self._begin({self._numbers[agent]: schema for agent, schema in schemas.items()})

    # Properties.

    @property
    def capacity(self) -> int:
        """Maximum number of stored joint steps."""
        return self._table.capacity

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of the agents, in the order in which batches have them."""
        return tuple(self._numbers)

    @property
    def schemas(self) -> dict[str, schema_lib.Schema]:
        """The schema of each agent, by name, as far as known."""
        return {agent: history.schema for agent, history in self._by_name.items() if history.has_begun}

    @property
    def streams(self) -> int:
        """Number of environments that write in parallel."""
        return self._streams

    @property
    def n_step(self) -> int:
        """Maximum number of steps in a transition."""
        return self._window.n_step

    @property
    def gamma(self) -> float:
        """The discount factor."""
        return self._window.gamma

    @property
    def limiter(self) -> rate_limiters.RateLimiter:
        """The rate limiter, which decides when steps may be added and batches drawn."""
        return self._limited.limiter

    @property
    def rng(self) -> np.random.Generator:
        """The random generator used for sampling."""
        return self._rng

    def __len__(self) -> int:
        """Return the number of stored joint steps."""
        return len(self._table)

    @property
    def is_full(self) -> bool:
        """Whether the buffer is full, so that the next joint step evicts the oldest."""
        return self._table.is_full

    @property
    def num_eligible(self) -> int:
        """Number of joint steps that may be drawn now: all that are stored."""
        return len(self._table)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {len(self)} joint steps of {len(self._numbers)} agents, "
            f"capacity={self.capacity}, streams={self.streams}>"
        )

    def _described_fields(self) -> list[notebook.Row]:
        schemas = self.schemas.items()
        return [row for agent, one in schemas for row in notebook.fields(f"{agent}/", one.fields, self.capacity)]

    # Writing.

    def add(
        self,
        observations: Mapping[str, Any],
        actions: Mapping[str, Any],
        rewards: Mapping[str, Any],
        next_observations: Mapping[str, Any],
        *,
        terminations: Mapping[str, Any] | None = None,
        truncations: Mapping[str, Any] | None = None,
        stream: int | None = None,
        **extras: Mapping[str, Any],
    ) -> int:
        """Add one joint step, given as dicts by agent as in PettingZoo, and return its key.

        The agents in `actions` are present; entries of other agents in the other mappings are ignored. An agent that
        was present in the previous step, has not ended and is absent now has left: its run is truncated after its last
        step, and a new run begins when it acts again. The episode ends once every present agent has ended, or with
        `end_episode`.

        Args:
            observations: o_t of each agent. If it differs from the next observation that the previous step gave for a
                continuing agent, the episode is truncated there for all its agents and this step begins a new one.
            actions: a_t of each agent that is present.
            rewards: r_t of each.
            next_observations: o_{t+1} of each; agents that terminated may be omitted.
            terminations: Whether the task ended for the agent; None for all False.
            truncations: Whether the agent was truncated; None for all False. Termination takes precedence.
            stream: The environment; required if there are several.
            extras: The other fields of the agents' schemas, each a mapping by agent.

        Raises:
            SchemaError: A value does not fit its field, or an extra is missing or unknown; the message names the agent.
            ArgumentError: Another argument is invalid.
            NotReadyError: The limiter holds inserts back.
        """
        stream = encoding.stream_number(self._streams, stream)
        steps = joint_rows.checked(
            self._numbers,
            self._histories,
            stream,
            observations,
            actions,
            rewards,
            next_observations,
            terminations,
            truncations,
            extras,
        )
        if not self._limited.can_insert():
            raise errors.NotReadyError(f"add held back by {self._limited.limiter!r}: draw samples first")
        self._begin(
            {agent: step.encoder.schema for agent, step in steps.items() if not self._histories[agent].has_begun}
        )
        if any(self._histories[agent].is_spliced(step) for agent, step in steps.items()):
            self._end(stream)
            self._counters.spliced_episodes += 1
        return self._write(stream, steps)

    def _begin(self, schemas: Mapping[int, schema_lib.Schema]) -> None:
        """Allocate storage for agents, given their schemas by number: for all of them, or on failure for none."""
        storages = {agent: memory.ColumnStorage(schema, self.capacity) for agent, schema in schemas.items()}
        for agent, storage in storages.items():
            self._histories[agent].begin(storage)

    def _write(self, stream: int, steps: joint_rows.Steps) -> int:
        """Write a joint step that was already checked, and return its key."""
        self._cut(stream, [agent for agent in range(len(self._histories)) if agent not in steps])
        if self._table.is_full:
            for agent in self._table.agents_of_oldest():
                self._histories[agent].evict(1)
            self._table.evict()
        row_keys = np.full(len(self._histories), joint_rows.ABSENT)
        for agent, step in steps.items():
            history = self._histories[agent]
            row_keys[agent] = history.next_key
            history.append(step)
        key = self._table.append(stream, row_keys)
        self._counters.inserted += 1
        if all(step.events[0] for step in steps.values()):
            self._table.end(stream)
        return key

    def end_episode(self, stream: int | None = None) -> bool:
        """End the open episode of a stream, truncating the agents still present, and return whether there was one.

        Call this when an environment is reset before its episode has ended. Otherwise the episode continues if the
        agents happen to begin the next step with the expected observations.

        Args:
            stream: The environment; required if there are several.

        Raises:
            ArgumentError: There is no such stream.
        """
        stream = encoding.stream_number(self._streams, stream)
        if self._table.open_episode[stream] < 0:
            return False
        self._end(stream)
        return True

    def _end(self, stream: int) -> None:
        """End the open episode of a stream."""
        self._cut(stream, range(len(self._histories)))
        self._table.end(stream)

    def _cut(self, stream: int, agents: Sequence[int]) -> None:
        """Truncate the open runs of those agents in a stream; their next observations are known."""
        for agent in agents:
            history = self._histories[agent]
            if history.is_open(stream):
                history.cut(stream)

    def can_insert(self) -> bool:
        """Return whether the limiter allows `add` now. O(1)."""
        return self._limited.can_insert()

    # Drawing.

    def can_sample(self, batch_size: int) -> bool:
        """Return whether `sample` would succeed now, without drawing. O(1).

        Raises:
            ArgumentError: batch_size is not an integer of at least 1, or is more than the limiter ever allows.
        """
        batch_size = self._limited.checked_batch_size(batch_size)
        return bool(len(self)) and self._limited.can_sample(batch_size)

    def sample_keys(self, batch_size: int) -> arrays.Keys:
        """Draw as `sample` does and return only the keys [B]; `read` returns their transitions.

        Raises:
            ArgumentError: batch_size is not an integer of at least 1.
            NotReadyError: Nothing is stored, or the limiter holds samples back.
        """
        batch_size = self._limited.checked_batch_size(batch_size)
        if not len(self):
            raise errors.NotReadyError("sample found no joint step to draw: add one first")
        if not self._limited.can_sample(batch_size):
            raise errors.NotReadyError(f"sample held back by {self._limited.limiter!r}: add steps first")
        self._counters.sampled += batch_size
        # A number below 1, times the count, is below the count.
        return self._table.oldest_key + (self._rng.random(batch_size) * len(self)).astype(np.int64)

    def sample(
        self, batch_size: int, *, n_step: int | None = None, gamma: float | None = None
    ) -> joint_batch.JointBatch:
        """Return the agents' transitions from exactly batch_size joint steps, drawn uniformly with replacement.

        O(batch_size) for each agent, however many joint steps are stored.

        Args:
            batch_size: The batch size, B.
            n_step: Overrides the buffer's setting.
            gamma: Overrides the buffer's setting.

        Raises:
            ArgumentError: An argument is invalid.
            NotReadyError: Nothing is stored, or the limiter holds samples back.
        """
        window = self._window_for(n_step, gamma)
        return self._read(window, self.sample_keys(batch_size))

    def read(self, keys: Any, *, n_step: int | None = None, gamma: float | None = None) -> joint_batch.JointBatch:
        """Return the agents' transitions from the joint steps with those keys [B]; otherwise like `sample`.

        Raises:
            UnknownKeyError: No joint step of one of the keys is stored.
            ArgumentError: Another argument is invalid.
        """
        window = self._window_for(n_step, gamma)
        keys = validation.integers("keys", keys)
        for key in keys[~self._table.is_alive(keys)]:
            raise errors.UnknownKeyError(f"key {key} not found: its joint step was evicted, or never was")
        return self._read(window, keys.copy())

    def eligible_keys(self) -> arrays.Keys:
        """Return the keys of all joint steps that may be drawn now, oldest first: those that are stored."""
        return np.arange(self._table.oldest_key, self._table.next_key)

    def _window_for(self, n_step: int | None, gamma: float | None) -> transitions.TransitionWindow:
        """Return the buffer's window, with n_step or gamma overridden if given."""
        if n_step is None and gamma is None:
            return self._window
        return transitions.TransitionWindow(
            self.n_step if n_step is None else n_step, self.gamma if gamma is None else gamma
        )

    def _read(self, window: transitions.TransitionWindow, keys: arrays.Keys) -> joint_batch.JointBatch:
        """Return the agents' transitions from the joint steps with those keys [B], which must be stored."""
        table, ones = self._table, np.ones(len(keys))
        slots = table.slots(keys)
        agents = {}
        for number, (agent, history) in enumerate(self._by_name.items()):
            if history.has_begun:
                row_keys = table.row_keys(number, slots)
                mask = row_keys != joint_rows.ABSENT
                present = history.slots(row_keys[mask])
                read = window.read(history, present, ones[mask], ones[mask])
                agents[agent] = joint_batch.of_agent(read, mask)
        return joint_batch.JointBatch(
            agents=agents,
            episodes=table.episodes(slots),
            start_step=table.steps(slots),
            keys=keys,
            probabilities=ones / max(len(self), 1),
            weights=ones,
        )

    # As a whole: see Checkpointable.

    def _setting(self, name: str) -> Any:
        return getattr(self, name)

    @classmethod
    def _loaded(cls, state: state_lib.State, instead: dict[str, Any], **options: Any) -> Self:
        # `agents` is not a plain setting: the names are saved with the histories.
        return super()._loaded(state, {"agents": joint_state.names(cls._given(state)), **instead}, **options)

    def _state(self, **options: Any) -> state_lib.State:
        return {"counters": self._counters.values(), **self._kept.state_dict()}

    def _restore(self, given: state_lib.StateReader, *, is_new: bool, **options: Any) -> None:
        def counts() -> dict[str, int]:
            return self._counters.checked(given.part("counters"), given.integer("next_key"))

        self._kept.load_state_dict(given, check=counts)
        self._counters.restore(counts())

    @property
    def _kept(self) -> "joint_state.Kept":
        return joint_state.Kept(self._table, self._by_name)

    # Statistics and checks.

    def get_stats(self) -> joint_batch.JointBufferStats:
        """Return statistics of the buffer. O(agents + streams)."""
        return joint_batch.of(self._table, self._by_name, self._counters)

    def clear(self) -> None:
        """Remove every joint step and every open episode.

        Keys, episode numbers, the counters of `get_stats` and the random generator are not reset.
        """
        for history in self._histories:
            history.clear()
        self._table.clear()

    def check(self) -> None:
        """Verify all invariants by recounting everything that is stored.

        Raises:
            CorruptionError: An invariant does not hold; the message says which.
        """
        self._kept.check()


def _names(agents: Any) -> list[str]:
    """Return the names of agents, or raise ArgumentError."""
    rule = "agents must be a sequence of distinct names, at least one"
    if isinstance(agents, str) or not isinstance(agents, Sequence) or not all(isinstance(name, str) for name in agents):
        raise errors.ArgumentTypeError(f"{rule}, got {validation.short_repr(agents)}")
    if not agents or len(set(agents)) < len(agents):
        raise errors.ArgumentError(f"{rule}, got {validation.short_repr(agents)}")
    return [str(name) for name in agents]
