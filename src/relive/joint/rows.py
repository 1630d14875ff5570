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

from collections.abc import Callable, Iterable, Mapping, Sequence
import functools
import math
import operator
import struct
import sys
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays
from relive.common import trees
from relive.common import validation
from relive.schema import casting
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

    def of_agent(self, agent: str, no_flags: Any) -> tuple[Any, ...]:
        """Return the arguments of one agent, as functions of `encoding` take them."""
        return (
            self.observations[agent],
            self.actions[agent],
            self.rewards[agent],
            self.next_observations.get(agent),
            no_flags if self.terminations is None else self.terminations[agent],
            no_flags if self.truncations is None else self.truncations[agent],
            {name: values[agent] for name, values in self.extras.items() if agent in values},
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
        self.parts: dict[str, Any] = {part: getattr(schema, part) for part in _PARTS}
        # Of each field, what the values are that are encoded together.
        self._python: dict[str, set[type]] = {}
        self._pack: dict[str, Callable[..., bytes]] = {}
        self._numbers: dict[str, set[type]] = {}
        self._arrays: dict[str, list[Any]] = {}
        for path, field in schema.fields.items():
            python = {type(np.zeros((), field.dtype).item())}
            code = None if field.shape or not field.dtype.isnative else encoding.CODES.get(field.dtype.str[1:])
            self._python[path] = python if code else set()
            self._pack[path] = struct.Struct(f"={len(numbers)}{code or 'x'}").pack
            self._numbers[path] = (
                python | {field.dtype.type} | ({float, int, np.float64} if path == "reward" else set())
            )
            self._arrays[path] = [(field.dtype, field.shape)] * len(numbers)
        self.places = list(range(len(numbers)))
        self.take = _getter(self.names)

    def __reduce__(self) -> tuple[Any, ...]:
        # The functions cannot be pickled, so they are created again.
        return Group, (self.numbers, self._agents, self.schema)

    def path(self, own: str) -> str:
        """Return the path in a row of a field, or of a part, of an agent's step."""
        part, *rest = own.split("/")
        part = {"reward": "extras/rewards", "extras": "extras/extras"}.get(part, part)
        return "/".join([part, self.key, *rest])

    def encode(
        self,
        row: dict[str, bytes],
        own: str,
        tree: Any,
        values: Sequence[Any],
        there: Sequence[int],
        newest: Mapping[str, arrays.Array],
    ) -> None:
        """Put the bytes of some columns of one row into `row`, by path, if the values are as usual.

        Args:
            row: Takes them.
            own: The path of a part of an agent's step, or of a branch of it.
            tree: Its fields.
            values: What the agents that are present have there.
            there: Their places in the group.
            newest: What the other agents have, by path; otherwise zeros.

        Raises:
            TypeError: A value is unusual; or another of `encoding.REFUSALS`.
        """
        if type(tree) is dict:
            if any(type(value) is not dict or len(value) != len(tree) for value in values):
                raise TypeError
            for key, branch in tree.items():
                self.encode(row, f"{own}/{key}", branch, [value[key] for value in values], there, newest)
            return
        path, is_whole = self.paths[own], len(there) == len(self.numbers)
        types = {*map(type, values)}
        if is_whole and types == self._python[own]:
            row[path] = self._pack[own](*values)
        elif is_whole and types == {np.ndarray} and [*map(_KIND, values)] == self._arrays[own]:
            row[path] = b"".join(values)
        elif types <= self._numbers[own] if not tree.shape else types <= {np.ndarray} or types <= {list}:
            column = np.zeros((len(self.numbers), *tree.shape), tree.dtype)
            if path in newest:
                column[:] = newest[path]
            if there:
                shape = (len(there), *tree.shape)
                column[there] = casting.cast_exact(path, values, shape, tree.dtype, own == "reward")
            row[path] = column.tobytes()
        else:
            raise TypeError


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
        self._no_ends = (False,) * len(agents)
        self._take, self._all_present = _getter(self.agents), bytes([PRESENT]) * len(agents)
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
        try:
            steps = self._usual_row(stream, given)
        except (*encoding.REFUSALS, struct.error):
            steps = None
        return steps or self._joined(self._steps_of_agents(given, encoding.one_step, stream, False, None))

    def rows(self, streams: Any, given: Given, present: Any) -> encoding.Steps:
        """Return the steps that the arguments of `extend` describe; otherwise like `row`.

        Args:
            streams: The streams of the steps; None for all.
            given: The other arguments.
            present: Where each agent is present, by name; None, or no such name, for everywhere.
        """
        return self._joined(self._steps_of_agents(given, encoding.step_of_each, streams, None, present))

    def _usual_row(self, stream: int, given: Given) -> encoding.Steps | None:
        """Return what `row` does if values are as usual and the step follows; raise, or return None, if not.

        The values of a group are encoded together.
        """
        store, actions = self._store, given.actions
        if store.encoder is None or not actions:
            return None
        flags, event, ends = bytearray(self._all_present), 0, {False}
        take = self._take if len(actions) == len(self.agents) else _getter([*actions])
        if len(actions) < len(self.agents):
            flags = bytearray(len(flags))
            for agent in actions:
                flags[self.numbers[agent]] = PRESENT
        for mapping in (given.terminations, given.truncations):
            if mapping is not None and take(mapping) != self._no_ends:
                ends.update(take(mapping))
        if ends != {False}:
            if not ends <= {False, True}:
                return None
            terminations, truncations = given.terminations or {}, given.truncations or {}
            for agent in actions:
                ended = TERMINATED if terminations.get(agent) else TRUNCATED if truncations.get(agent) else 0
                flags[self.numbers[agent]] |= ended
            event = _events(np.frombuffer(flags, np.uint8)).item()
        episode, status, newest = self.next_episode.to_bytes(8, sys.byteorder), bytes(len(flags)), {}
        if store.is_announced(stream):
            place = store.current.item(stream)
            episode, status = store.behind[EPISODE][place].tobytes(), store.behind[STATUS][place].tobytes()
            if len(actions) < len(self.agents):
                newest = {path: column[place] for path, column in store.behind.items()}
        row = {EPISODE: episode, STATUS: status, FLAGS: bytes(flags), "reward": bytes(_NO_REWARD.nbytes)}
        next_row = {EPISODE: episode, STATUS: row[FLAGS]}
        num_present = 0
        for group in self.groups:
            there, names, take, parts = group.places, group.names, group.take, group.parts
            if len(actions) < len(self.agents):
                there = [place for place, name in enumerate(group.names) if name in actions]
                names = [group.names[place] for place in there]
                take = _getter(names)
            num_present += len(there)
            rewards = take(given.rewards)
            if not math.isfinite(sum(rewards)):
                return None
            group.encode(row, "observation", parts["observation"], take(given.observations), there, newest)
            group.encode(row, "action", parts["action"], take(actions), there, {})
            group.encode(row, "reward", parts["reward"], rewards, there, {})
            following = take(given.next_observations)
            group.encode(next_row, "observation", parts["observation"], following, there, newest)
            if given.extras or parts["extras"]:
                extras = [{name: one[agent] for name, one in given.extras.items() if agent in one} for agent in names]
                group.encode(row, "extras", parts["extras"], extras, there, {})
        if num_present < len(actions):
            return None
        rows = [
            row[paths[0]] if len(paths) == 1 else b"".join([row[path] for path in paths])
            for paths in store.encoder.blocks
        ]
        next_rows = [b"".join([next_row[path] for path in paths]) for paths in store.encoder.observation_blocks]
        if store.is_spliced(stream, (0,), rows):
            return None
        return encoding.Steps(store.encoder, (stream,), (event,), rows, next_rows, False)

    def _steps_of_agents(
        self, given: Given, encode: Callable[..., encoding.Steps], streams: Any, no_flags: Any, present: Any
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
                own = encode(self._encoders.get(number), self._store.streams, streams, *given.of_agent(agent, no_flags))
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
                blocks = own.encoder.observation_blocks
                after = {} if own.next_rows is None else own.encoder.columns(own.next_rows, count, blocks)
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
        rows = encoder.rows_of(columns, count)
        next_rows = encoder.rows_of(following, count, encoder.observation_blocks)
        events = _events(flags)
        if type(first.streams) is tuple:
            return encoding.Steps(encoder, first.streams, (events.item(),), rows, next_rows, False)
        return encoding.Steps(encoder, first.streams, events, rows, next_rows, False)


_KIND = operator.attrgetter("dtype", "shape")


def _getter(names: Sequence[str]) -> Callable[[Mapping[str, Any]], Sequence[Any]]:
    """Return a function that picks the values of some names from a mapping."""
    return operator.itemgetter(*names) if len(names) > 1 else functools.partial(_pick, names)


def _pick(names: Sequence[str], mapping: Mapping[str, Any]) -> list[Any]:
    return [mapping[name] for name in names]


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
