"""JointRows: how a step of several agents makes one row, in which agents of equal schemas are side by side.

    observation/episode       the number of the joint episode
    observation/status        the flags of each agent in the row before; zeros in the first one       [A]
    observation/0,2/...       the observations of agents 0 and 2, whose schemas are equal             [2, ...]
    action/0,2/...            their actions                                                           [2, ...]
    reward                    0.0: a row has no reward of its own
    extras/extras/0,2/...     their extras                                                            [2, ...]
    extras/flags              PRESENT of each agent, and how its run ended with the step              [A]
    extras/rewards/0,2        their rewards                                                           [2]

Where an agent is absent, its observation is the newest that is known of it, and all else is zero. Invariant: the
observation after an agent's step is what the next row of the episode holds for it, whether it is present there or not.
Where that cannot hold, the row has the number of another episode: by that, the store tells that it does not follow.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays
from relive.common import trees
from relive.common import validation
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import steps as steps_lib
from relive.storage import steps_state

TERMINATED, TRUNCATED, PRESENT = encoding.TERMINATED, encoding.TRUNCATED, 4
"""The bits of an agent's flags."""
EPISODE, STATUS, FLAGS = "observation/episode", "observation/status", "extras/flags"
CHECKED = (EPISODE, STATUS, FLAGS)
_NO_REWARD = schema_lib.Field((), np.float32)
_PARTS = ("observation", "action", "reward", "extras")
_ENDS = TERMINATED | TRUNCATED


class Given(NamedTuple):
    """The arguments of `add` or `extend`: mappings by agent, and the extras by name."""

    observations: Any
    actions: Any
    rewards: Any
    next_observations: Any
    terminations: Any
    truncations: Any
    extras: Mapping[str, Any]

    def check(self, numbers: Mapping[str, int]) -> None:
        """Raise ArgumentError unless they are mappings that have the agents in `actions`, which are in `numbers`."""
        flags = {"terminations": self.terminations, "truncations": self.truncations}
        required = {name: mapping for name, mapping in flags.items() if mapping is not None}
        required |= {"observations": self.observations, "rewards": self.rewards}
        others = {"actions": self.actions, "next_observations": self.next_observations}
        for name, mapping in {**others, **required, **self.extras}.items():
            if not isinstance(mapping, Mapping):
                rule = f"{name} must be a mapping by agent"
                raise errors.ArgumentTypeError(f"{rule}, got {validation.short_repr(mapping)}")
        if not self.actions:
            raise errors.ArgumentError("actions must be of at least one agent, got none")
        for agent in self.actions:
            if agent not in numbers:
                rule = f"actions must be of {', '.join(numbers)}"
                raise errors.ArgumentError(f"{rule}, got one of {validation.short_repr(agent)}")
            for name, mapping in required.items():
                if agent not in mapping:
                    raise errors.ArgumentError(f"{name} must have every agent in actions, got none of {agent!r}")

    def of_agent(self, agent: str, no_flags: Any) -> tuple[encoding.Given, Any, Any]:
        """Return the values of one agent as `encoding.steps` takes them, and its flags."""
        extras = {name: values[agent] for name, values in self.extras.items() if agent in values}
        values = self.observations[agent], self.actions[agent], self.rewards[agent], self.next_observations.get(agent)
        return (
            (*values, extras),
            no_flags if self.terminations is None else self.terminations[agent],
            no_flags if self.truncations is None else self.truncations[agent],
        )


class Group:
    """Agents whose schemas are equal.

    Attributes:
        numbers: The numbers of the agents.
        names: Their names.
        schema: Their schema.
        encoder: Encodes a step of one of them.
        key: The name of the group in paths.
        paths: The path in a row of each field of an agent.
    """

    def __init__(self, numbers: Sequence[int], agents: Sequence[str], schema: schema_lib.Schema) -> None:
        self.numbers = list(numbers)
        self.names = [agents[number] for number in numbers]
        self._agents = agents
        self.schema = schema
        self.encoder = encoding.Encoder(schema)
        self.key = ",".join(map(str, numbers))
        self.paths = {path: self.path(path) for path in schema.fields}

    def __reduce__(self) -> tuple[Any, ...]:
        # The functions cannot be pickled, so they are created again.
        return Group, (self.numbers, self._agents, self.schema)

    def path(self, own: str) -> str:
        """Return the path in a row of a field, or of a part, of an agent's step."""
        part, *rest = own.split("/")
        part = {"reward": "extras/rewards", "extras": "extras/extras"}.get(part, part)
        return "/".join([part, self.key, *rest])


class JointRows:
    """Encodes the steps of agents as rows of a store.

    `bind` must be called before all else.

    Args:
        agents: The names of the agents.

    Attributes:
        agents: The names of the agents.
        numbers: The numbers of the agents by name.
        groups: The agents whose schemas are known.
        paths: The paths of what a window reads of its first row.
        next_episode: The number of the next episode.
    """

    def __init__(self, agents: Sequence[str]) -> None:
        rule = "agents must be a sequence of distinct names, at least one"
        is_sequence = isinstance(agents, Sequence) and not isinstance(agents, str)
        if not is_sequence or not all(isinstance(name, str) for name in agents):
            raise errors.ArgumentTypeError(f"{rule}, got {validation.short_repr(agents)}")
        if not agents or len(set(agents)) < len(agents):
            raise errors.ArgumentError(f"{rule}, got {validation.short_repr(agents)}")
        self.agents = tuple(map(str, agents))
        self.numbers = {agent: number for number, agent in enumerate(agents)}
        self.groups: tuple[Group, ...] = ()
        self.paths: tuple[str, ...] = ()
        self.next_episode = 0
        self._encoder: encoding.Encoder | None = None
        self._encoders: dict[int, encoding.Encoder] = {}

    def bind(self, store: steps_lib.StepStore) -> None:
        """Set the store of the rows."""
        self._store = store
        store.compared_paths, store.can_grow = (EPISODE,), True

    # Schemas.

    @property
    def schemas(self) -> dict[str, schema_lib.Schema]:
        """The schema of each agent, by name, as far as known."""
        return {self.agents[number]: self._encoders[number].schema for number in sorted(self._encoders)}

    def schema_with(self, schemas: Mapping[int, schema_lib.Schema]) -> schema_lib.Schema:
        """Return the schema of a row, given the schemas of further agents by number."""
        groups, rest = list(self.groups), dict(sorted(schemas.items()))
        while rest:
            schema = next(iter(rest.values()))
            groups.append(Group([number for number, one in rest.items() if one == schema], self.agents, schema))
            rest = {number: one for number, one in rest.items() if one != schema}
        return self._schema_of(groups)

    def _schema_of(self, groups: Iterable[Group]) -> schema_lib.Schema:
        of_all = schema_lib.Field(len(self.agents), np.uint8)
        fields = {EPISODE: schema_lib.Field((), np.int64), STATUS: of_all, FLAGS: of_all}
        for group in groups:
            for own, path in group.paths.items():
                field = group.schema.fields[own]
                fields[path] = schema_lib.Field((len(group.numbers), *field.shape), field.dtype)
        trees_of: list[Any] = [trees.nested(part, fields) for part in _PARTS if part != "reward"]
        return schema_lib.Schema(trees_of[0], trees_of[1], reward=_NO_REWARD, extras=trees_of[2])

    def groups_in(self, schema: schema_lib.Schema) -> tuple[Group, ...]:
        """Return the groups of rows with that schema, which may have been read from a file.

        Raises:
            CheckpointError: It is not a schema of rows of these agents.
        """
        own_fields: dict[str, dict[str, schema_lib.Field]] = {}
        for path, field in schema.fields.items():
            part, *rest = path.removeprefix("extras/").split("/") if path.startswith("extras/") else path.split("/")
            if rest and field.shape and path not in (STATUS, FLAGS):
                own = "/".join(["reward" if part == "rewards" else part, *rest[1:]])
                own_fields.setdefault(rest[0], {})[own] = schema_lib.Field(field.shape[1:], field.dtype)
        groups = []
        try:
            for key, fields in own_fields.items():
                parts: list[Any] = [trees.nested(part, fields) for part in _PARTS]
                own_schema = schema_lib.Schema(parts[0], parts[1], reward=parts[2], extras=parts[3])
                groups.append(Group([int(number) for number in key.split(",")], self.agents, own_schema))
        except (AttributeError, LookupError, TypeError, ValueError):
            groups = []
        groups.sort(key=lambda group: group.numbers)
        numbers = [number for group in groups for number in group.numbers]
        is_of_agents = numbers and min(numbers) >= 0 and len({*numbers}) == len(numbers)
        if not is_of_agents or self._schema_of(groups) != schema:
            raise errors.CheckpointError(f"schema must be that of rows of {len(self.agents)} agents, got another")
        return tuple(groups)

    def update(self) -> None:
        """Take over the store's schema if it has changed."""
        if self._encoder is not self._store.encoder:
            self._encoder = self._store.encoder
            self.groups = self.groups_in(self._store.schema)
            self._encoders = {number: group.encoder for group in self.groups for number in group.numbers}
            of_groups = [path for group in self.groups for own, path in group.paths.items() if own != "reward"]
            self.paths = (EPISODE, *of_groups)

    def record(self, episode: int) -> None:
        """Record that there is an episode of that number."""
        if episode >= self.next_episode:
            self.next_episode = episode + 1

    # Encoding.

    def row(self, stream: int, given: Given) -> encoding.Steps:
        """Return the step that the arguments of `add` describe, which may be of agents without a schema so far.

        Raises:
            SchemaError: A value does not fit its field; the message names the agent.
            ArgumentError: Another argument is invalid.
        """
        return self._joined(self._steps_of_agents(given, (stream,), None))

    def rows(self, streams: Any, given: Given, present: Any) -> encoding.Steps:
        """Return the steps that the arguments of `extend` describe; otherwise like `row`.

        Args:
            streams: The streams of the steps; None for all.
            given: The other arguments.
            present: Where each agent is present, by name; None, or no such name, for everywhere.
        """
        numbers = encoding.stream_numbers(self._store.streams, streams)
        return self._joined(self._steps_of_agents(given, numbers, present))

    def _steps_of_agents(
        self, given: Given, streams: encoding.Streams, present: Any
    ) -> dict[int, tuple[encoding.Steps, arrays.Bools]]:
        """Return the steps of each agent by number, and where it is present [k]."""
        given.check(self.numbers)
        if present is not None and not isinstance(present, Mapping):
            rule = "present must be a mapping by agent"
            raise errors.ArgumentTypeError(f"{rule}, got {validation.short_repr(present)}")
        steps = {}
        for agent in given.actions:
            number = self.numbers[agent]
            try:
                own = self._step_of_agent(number, streams, given)
                mask = np.ones(len(own.streams), np.bool_)
                if present is not None and agent in present:
                    mask = validation.flags("present", present[agent], len(mask))
            except errors.ArgumentError as error:
                raise type(error)(f"agent {agent!r}: {error}") from None
            goes_on = np.bitwise_and(own.events, TERMINATED) == 0
            if own.next_rows is None and arrays.any_set(mask & goes_on):
                rule = "next_observations must have every agent in actions that has not terminated"
                raise errors.ArgumentError(f"{rule}, got none of {agent!r}")
            steps[number] = own, mask
        return steps

    def _step_of_agent(self, number: int, streams: encoding.Streams, given: Given) -> encoding.Steps:
        events: encoding.Events
        if type(streams) is tuple:
            values, terminated, truncated = given.of_agent(self.agents[number], False)
            events = (encoding.event(terminated, truncated),)
        else:
            values, terminated, truncated = given.of_agent(self.agents[number], None)
            events = encoding.events(terminated, truncated, len(streams))
            encoding.require_round(self._store.streams, len(streams), values[2])
        return encoding.steps(self._encoders.get(number), streams, events, values)

    def _joined(self, steps: Mapping[int, tuple[encoding.Steps, arrays.Bools]]) -> encoding.Steps:
        """Return the rows of such steps."""
        store, encoder, groups = self._store, self._store.encoder, self.groups
        unknown = {number: own.schema for number, (own, _) in steps.items() if number not in self._encoders}
        if unknown or encoder is None:
            encoder = encoding.Encoder(self.schema_with(unknown))
            groups = self.groups_in(encoder.schema)
        first, _ = next(iter(steps.values()))
        streams, count = np.asarray(first.streams), len(first.streams)
        is_known = store.is_announced(streams)
        columns = {path: np.zeros((count, *one.shape), one.dtype) for path, one in encoder.schema.fields.items()}
        for path, column in store.behind.items():
            columns[path][is_known] = column[store.current[streams[is_known]]]
        following = {path: columns[path].copy() for path in encoder.schema.observation_paths}
        flags, status, is_other = columns[FLAGS], columns[STATUS], ~is_known
        for group in groups:
            for place, number in enumerate(group.numbers):
                if number not in steps:
                    continue
                own, here = steps[number]
                was = here & ((status[:, number] & PRESENT) > 0)
                for path, values in own.encoder.columns(own.rows, count).items():
                    column = columns[group.paths[path]][:, place]
                    if path in own.schema.observation_paths and arrays.any_set(was):
                        is_other[was] |= steps_lib.differ(column[was], values[was])
                    column[here] = values[here]
                after = {} if own.next_rows is None else own.encoder.columns(own.next_rows, count)
                for path in own.schema.observation_paths:
                    column = following[group.paths[path]][:, place]
                    column[here] = after[path][here] if after else np.zeros((), column.dtype)
                flags[here, number] = PRESENT | np.asarray(own.events, np.uint8)[here]
        if count and not flags.any(axis=1).all():
            raise errors.ArgumentError(
                f"present must have an agent in each stream, got none in {streams[~flags.any(axis=1)][0]}"
            )
        columns[EPISODE][is_other] = self.next_episode + np.arange(np.count_nonzero(is_other))
        status[is_other] = 0
        following[EPISODE], following[STATUS] = columns[EPISODE], flags
        rows = [column.tobytes() for column in columns.values()]
        next_rows = [column.tobytes() for column in following.values()]
        events = _events(flags)
        if type(first.streams) is tuple:
            return encoding.Steps(encoder, first.streams, (events.item(),), rows, next_rows, False)
        return encoding.Steps(encoder, first.streams, events, rows, next_rows, False)


def _events(flags: arrays.Array) -> npt.NDArray[np.uint8]:
    """Return how the joint episode ends with each step, given the flags of its agents [..., A]."""
    has_ended = ((flags & _ENDS > 0) == (flags & PRESENT > 0)).all(axis=-1)
    is_truncated = (flags & TRUNCATED > 0).any(axis=-1)
    return np.asarray(has_ended * np.where(is_truncated, TRUNCATED, TERMINATED), np.uint8)


def wrong(
    rows: steps_state.RowsState,
    columns: Mapping[str, arrays.Array],
    final: Mapping[str, arrays.Array],
    next_episode: int,
) -> str:
    """Return what is wrong with joint steps; empty if nothing is. O(N A).

    Args:
        rows: The rows, oldest first [N], and their episodes [E].
        columns: Their columns of CHECKED.
        final: The observations after the newest step of each episode [E, ...].
        next_episode: The number of the next episode.
    """
    number, status, flags = (columns[path] for path in CHECKED)
    if not np.isin(flags, (0, PRESENT, PRESENT | TERMINATED, PRESENT | TRUNCATED)).all() or not flags.any(axis=1).all():
        return "each must have an agent, and no flags but those there are"
    if not rows.has_tail.all():
        return "of each it must be known what came after"
    numbers = final[EPISODE]
    if (number != numbers[rows.episode]).any() or len(np.unique(numbers)) < len(numbers):
        return "the steps of an episode, and no others, must have its number"
    if numbers.min(initial=0) < 0 or numbers.max(initial=-1) >= next_episode:
        return "the numbers of episodes must be below that of the next one"
    before, after = np.zeros_like(flags), final[STATUS].copy()
    order = np.argsort(rows.episode, kind="stable")
    follows = np.diff(rows.episode[order]) == 0
    before[order[1:][follows]] = flags[order[:-1][follows]]
    is_first = rows.steps == 0
    knows_before = is_first.copy()
    knows_before[order[1:][follows]] = True
    after[rows.episode] = flags  # For a repeated episode, the last assignment wins.
    if (status != before)[knows_before].any() or (final[STATUS] != after).any():
        return "each must have the flags of the one before"
    if (_events(final[STATUS]) > 0)[rows.is_open].any():
        return "an episode goes on while an agent does"
    return ""
