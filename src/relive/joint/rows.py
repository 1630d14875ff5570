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

from collections.abc import Callable, Mapping, Sequence
import copy
import functools
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import trees
from relive.common import validation
from relive.common import words
from relive.schema import encoding
from relive.schema import schema as schema_lib
from relive.storage import splices
from relive.storage import steps as steps_lib

TERMINATED, TRUNCATED, PRESENT = encoding.TERMINATED, encoding.TRUNCATED, 4
"""The bits of an agent's flags."""
EPISODE: str = "observation/episode"
STATUS: str = "observation/status"
FLAGS: str = "extras/flags"
_CHECKED = (EPISODE, STATUS, FLAGS)
_NO_REWARD = schema_lib.Field((), np.float32)
_PARTS = ("observation", "action", "reward", "extras")
_ENDS = TERMINATED | TRUNCATED
_WITH_PRESENT = bytes(flags | PRESENT for flags in range(256))
_NO_ENDS = bytes([0, PRESENT])


Own: TypeAlias = tuple[encoding.Steps, arrays_lib.Bools | None]
"""The steps of one agent, and where it is present [k]; None for everywhere."""


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
        """Raise ArgumentError unless they are mappings that have the agents in `actions`, which are in `numbers`.

        No other agent has a reward or an end: it would be lost.
        """
        flags = {"terminations": self.terminations, "truncations": self.truncations}
        results: dict[str, Any] = {"rewards": self.rewards}
        results |= {name: mapping for name, mapping in flags.items() if mapping is not None}
        required = {"observations": self.observations, **results}
        others = {"actions": self.actions, "next_observations": self.next_observations, **self.extras}
        for name, mapping in (required | others).items():
            if not (type(mapping) is dict or isinstance(mapping, Mapping)):
                rule = f"{name} must be a mapping by agent"
                raise errors.ArgumentTypeError(f"{rule}, got {validation.short_repr(mapping)}")
        if not self.actions:
            raise errors.ArgumentError("actions must be of at least one agent, got none")
        for agent in self.actions.keys() - numbers.keys():
            rule = f"actions must be of {', '.join(numbers)}"
            raise errors.ArgumentError(f"{rule}, got one of {validation.short_repr(agent)}")
        for name, mapping in required.items():
            for agent in self.actions.keys() - mapping.keys():
                raise errors.ArgumentError(f"{name} must have every agent in actions, got none of {agent!r}")
        for name, mapping in results.items():
            if len(mapping) > len(self.actions):
                for agent in mapping:
                    if agent not in self.actions:
                        _require_nothing(name, agent, mapping[agent])


class Group:
    """Agents whose schemas are equal.

    Attributes:
        numbers: The numbers of the agents.
        names: Their names.
        schema: Their schema.
        encoder: Encodes a step of one of them.
        key: The name of the group in paths.
        paths: The path in a row of each field of an agent.
        observation_paths: Those of the observation, which come first.
    """

    def __init__(self, numbers: Sequence[int], agents: Sequence[str], schema: schema_lib.Schema) -> None:
        self.numbers = list(numbers)
        self.names = [agents[number] for number in numbers]
        self.schema = schema
        self.encoder = encoding.Encoder(schema)
        self.key = ",".join(map(str, numbers))
        self.paths = {path: self.path(path) for path in schema.fields}
        self.observation_paths = [self.paths[path] for path in self.encoder.observation_paths]

    def path(self, own: str) -> str:
        """Return the path in a row of a field, or of a part, of an agent's step."""
        return _path(own, self.key)

    def parts(self, place: int, own: Own | None, before: Mapping[str, arrays_lib.Array]) -> Sequence[encoding.Row]:
        """Return the bytes of k rows, and of the observations after them, of the agent at a place.

        Args:
            place: The place.
            own: Its steps, if it is present, and where.
            before: What absent agents have, by path [k, A, ...].
        """
        steps, here = own or (None, None)
        if steps is not None and here is None:
            return steps.rows, steps.next_rows or ()
        absent = [before[path][:, place].tobytes() for path in self.paths.values()]
        if steps is None or here is None:
            return absent, absent
        return [[*map(functools.partial(_picked, here), rows or (), absent)] for rows in (steps.rows, steps.next_rows)]


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

    def __init__(self, agents: Any) -> None:
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

    # Schemas.

    @property
    def schemas(self) -> dict[str, schema_lib.Schema]:
        """The schema of each agent, by name, as far as known."""
        return {self.agents[number]: self._encoders[number].schema for number in sorted(self._encoders)}

    def schema_with(self, schemas: Mapping[int, schema_lib.Schema]) -> schema_lib.Schema:
        """Return the schema of a row, given the schemas of further agents by number."""
        groups, rest = list(self.groups), dict(sorted(schemas.items()))
        if len({schema.check_finite for schema in [*self.schemas.values(), *rest.values()]}) > 1:
            raise errors.ArgumentError("schemas must agree in check_finite, got True and False")
        while rest:
            schema = next(iter(rest.values()))
            groups.append(Group([number for number, one in rest.items() if one == schema], self.agents, schema))
            rest = {number: one for number, one in rest.items() if one != schema}
        return self._schema_of(groups)

    def _schema_of(self, groups: Sequence[Group]) -> schema_lib.Schema:
        of_all = schema_lib.Field(len(self.agents), np.uint8)
        fields = {EPISODE: schema_lib.Field((), np.int64), STATUS: of_all, FLAGS: of_all}
        for group in groups:
            for own, path in group.paths.items():
                field = group.schema.fields[own]
                fields[path] = schema_lib.Field((len(group.numbers), *field.shape), field.dtype)
        trees_of: list[Any] = [trees.nested(part, fields) for part in _PARTS if part != "reward"]
        checks = any(group.schema.check_finite for group in groups)
        return schema_lib.Schema(*trees_of[:2], reward=_NO_REWARD, extras=trees_of[2], check_finite=checks)

    def groups_in(self, schema: schema_lib.Schema) -> tuple[Group, ...]:
        """Return the groups of rows with that schema, which may have been read from a file.

        Raises:
            CheckpointError: It is not a schema of rows of these agents.
        """
        groups, keys = list[Group](), cast("Mapping[str, Any]", schema.action)
        try:
            for key in keys:
                parts: list[Any] = [_of_one(trees.nested(_path(part, key), schema.fields)) for part in _PARTS]
                checks = schema.check_finite
                own = schema_lib.Schema(*parts[:2], reward=parts[2], extras=parts[3], check_finite=checks)
                groups.append(Group([int(number) for number in key.split(",")], self.agents, own))
        except (AttributeError, LookupError, TypeError, ValueError):
            groups = []
        groups.sort(key=lambda group: group.numbers)
        numbers = [number for group in groups for number in group.numbers]
        is_of_agents = numbers and min(numbers) >= 0 and len({*numbers}) == len(numbers)
        if not is_of_agents or self._schema_of(groups) != schema:
            raise errors.CheckpointError(f"schema must be that of rows of {len(self.agents)} agents, got another")
        return tuple(groups)

    def update(self, encoder: encoding.Encoder | None) -> None:
        """Take over the schema of an encoder, which is the store's, or will be."""
        if self._encoder is encoder or encoder is None:
            return
        groups = self.groups_in(encoder.schema)
        of_groups = [path for group in groups for own, path in group.paths.items() if own != "reward"]
        self._encoders = {number: group.encoder for group in groups for number in group.numbers}
        self._encoder, self.groups, self.paths = encoder, groups, (EPISODE, *of_groups)

    def recording(self, steps: encoding.Steps) -> Callable[[], None]:
        """Return a function that records steps once they are stored: new agents, and new numbers of episodes."""
        numbers = memoryview(steps.rows[[*steps.schema.fields].index(EPISODE)]).cast("q")
        after = copy.copy(self)
        after.next_episode = max(self.next_episode, max(numbers, default=-1) + 1)
        after.update(steps.encoder)
        return functools.partial(vars(self).update, vars(after))

    def wrong(self) -> str:
        """Return what is wrong with the joint steps of the store; empty if nothing is. O(N A)."""
        store, rows = self._store, self._store.rows_state()
        columns, ends = store.read_rows(store.alive_slots(), _CHECKED), rows.numbers[rows.has_tail]
        number, status, flags = (columns[path] for path in _CHECKED)
        finals = store.final_observations(ends)
        numbers, final = finals[EPISODE], finals[STATUS]
        is_valid = np.isin(flags, (0, PRESENT, PRESENT | TERMINATED, PRESENT | TRUNCATED))
        if not is_valid.all() or not flags.any(axis=1).all():
            return "each must have an agent, and no flags but those there are"
        if not rows.has_tail.all():
            return "of each it must be known what came after"
        if (number != numbers[rows.episode]).any() or len(np.unique(numbers)) < len(numbers):
            return "the steps of an episode, and no others, must have its number"
        if numbers.min(initial=0) < 0 or numbers.max(initial=-1) >= self.next_episode:
            return "the numbers of episodes must be below that of the next one"
        order = np.argsort(rows.episode, kind="stable")
        follows = np.diff(rows.episode[order]) == 0
        older, newer, newest = order[:-1][follows], order[1:][follows], order[np.append(~follows, True)[: len(order)]]
        differs = (status[newer] != flags[older]).any() or (final[rows.episode[newest]] != flags[newest]).any()
        if differs or status[rows.steps == 0].any():
            return "each must have the flags of the one before"
        if (_events(final) > 0)[rows.is_open].any():
            return "an episode goes on while an agent does"
        return ""

    # Encoding.

    def steps(self, streams: encoding.Streams, given: Given, present: Any = None) -> encoding.Steps:
        """Return the steps that the arguments of `add` or `extend` describe, also of agents without a schema so far.

        Args:
            streams: The streams of the steps [k]; a tuple of one for one step, whose values have no leading axis.
            given: The other arguments.
            present: Where each agent is present [k], by name; None, or no such name, for everywhere.

        Raises:
            SchemaError: A value does not fit its field; the message names the agent.
            ArgumentError: Another argument is invalid.
        """
        declared = {name for schema in self.schemas.values() for name in schema.extras}
        words.refuse_extras(given.extras or (), declared, words.JOINT_EXTRAS)
        given.check(self.numbers)
        if present is not None and not isinstance(present, Mapping):
            rule = "present must be a mapping by agent"
            raise errors.ArgumentTypeError(f"{rule}, got {validation.short_repr(present)}")
        owns = {self.numbers[agent]: self._own(agent, streams, given, present or {}) for agent in given.actions}
        store, count, numbers = self._store, len(streams), np.asarray(streams)
        encoder, groups = store.encoder, self.groups
        unknown = {number: own.schema for number, (own, _) in owns.items() if number not in self._encoders}
        if unknown or encoder is None:
            encoder = encoding.Encoder(self.schema_with(unknown))
            groups = self.groups_in(encoder.schema)
        fields, observation_paths = encoder.schema.fields, encoder.observation_paths
        # The flags of all agents.
        of_agents = dict.fromkeys(range(len(self.agents)), bytes(count))
        for number, (own, here) in owns.items():
            events = own.events.translate(_WITH_PRESENT)
            of_agents[number] = events if here is None else _picked(here, events, bytes(count))
        flags = _side_by_side([*of_agents.values()], count)
        for stream in numbers[~_table(flags, count).any(axis=1)] if present else ():
            raise errors.ArgumentError(f"present must have an agent in each stream, got none in {stream}")
        # What is known of absent agents: the newest observations; zeros where a new episode begins, and of all else.
        is_other, of_streams, behind = store.knows.take(numbers) == 0, store.current.take(numbers), store.finals.columns
        before = {
            path: behind[path].take(of_streams, axis=0)
            if path in behind
            else np.zeros((count, *field.shape), field.dtype)
            for path, field in fields.items()
        }
        if arrays_lib.any_set(is_other):
            for column in before.values():
                column[is_other] = np.zeros((), column.dtype)
        # The agents of each group side by side. Where one goes on elsewhere than it was to, a new episode begins.
        rows, next_rows = {FLAGS: flags, "reward": before["reward"].tobytes()}, {STATUS: flags}
        for group in groups:
            parts = [group.parts(place, owns.get(number), before) for place, number in enumerate(group.numbers)]
            of_rows, of_next_rows = (zip(*part, strict=False) for part in zip(*parts, strict=True))
            for path, part in zip(group.paths.values(), of_rows, strict=True):
                rows[path] = _side_by_side(part, count)
            for path, part in zip(group.observation_paths, of_next_rows, strict=False):
                next_rows[path] = _side_by_side(part, count)
                if rows[path] != before[path].tobytes():
                    seen = np.ndarray(before[path].shape, before[path].dtype, rows[path])
                    each = (columns.reshape(-1, *columns.shape[2:]) for columns in (seen, before[path]))
                    stays = (before[STATUS] & _table(flags, count) & PRESENT > 0)[:, group.numbers]
                    is_other |= (splices.differ(*each).reshape(count, -1) & stays).any(axis=1)
        if arrays_lib.any_set(is_other):
            before[EPISODE][is_other] = self.next_episode + np.arange(np.count_nonzero(is_other))
            before[STATUS][is_other] = 0
        rows[EPISODE] = next_rows[EPISODE] = before[EPISODE].tobytes()
        rows[STATUS] = before[STATUS].tobytes()
        of_joint = _events(_table(flags, count)).tobytes() if flags.strip(_NO_ENDS) else bytes(count)
        in_order = [rows[path] for path in fields], [next_rows[path] for path in observation_paths]
        return encoding.Steps(encoder, streams, of_joint, *in_order, False)

    def _own(self, agent: str, streams: encoding.Streams, given: Given, present: Mapping[str, Any]) -> Own:
        """Return the steps of one agent, and where it is present."""
        here, is_one = None, type(streams) is tuple
        extras = {name: values[agent] for name, values in given.extras.items() if agent in values}
        observation, action, reward = given.observations[agent], given.actions[agent], given.rewards[agent]
        values = observation, action, reward, given.next_observations.get(agent), extras
        terminated = truncated = False if is_one else None
        if given.terminations is not None:
            terminated = given.terminations[agent]
        if given.truncations is not None:
            truncated = given.truncations[agent]
        try:
            if is_one:
                events = bytes([encoding.event(terminated, truncated)])
            else:
                events = encoding.events(terminated, truncated, len(streams))
                encoding.require_round(self._store.streams, len(streams), reward)
            encoder, of_rows = self._encoders.get(self.numbers[agent]), self._store.encoder
            checks = of_rows is not None and of_rows.schema.check_finite
            own = encoding.steps(encoder, streams, events, values, check_finite=checks)
            if agent in present:
                here = validation.flags("present", present[agent], len(streams))
        except errors.ArgumentError as error:
            raise type(error)(f"agent {agent!r}: {error}") from None
        if own.next_rows is None:
            goes_on = np.frombuffer(events, np.uint8) & TERMINATED == 0
            if arrays_lib.any_set(goes_on if here is None else goes_on & here):
                rule = "next_observations must have every agent in actions that has not terminated"
                raise errors.ArgumentError(f"{rule}, got none of {agent!r}")
            own = own._replace(next_rows=[bytes(len(part)) for part in own.rows])
        return own, here


def _require_nothing(name: str, agent: Any, value: Any) -> None:
    """Raise ArgumentError if an agent that is absent has a reward other than 0, or an end; None is none."""
    array = None if value is None else validation.array_of(value)
    is_number = array is not None and array.dtype.kind in "biufc"
    if value is not None and (array is None or not is_number or array.any()):
        rule = f"{name} must be {0 if name == 'rewards' else False} for an agent that is not in actions"
        raise errors.ArgumentError(f"{rule}, got {validation.short_repr(value)} of {validation.short_repr(agent)}")


def _path(own: str, key: str) -> str:
    """Return the path in a row of a field, or of a part, of the step of an agent of a group."""
    part, *rest = own.split("/")
    return "/".join([{"reward": "extras/rewards", "extras": "extras/extras"}.get(part, part), key, *rest])


def _of_one(tree: Any) -> Any:
    """Return the fields of one agent of a group, given those of the group."""
    if isinstance(tree, schema_lib.Field):
        return schema_lib.Field(tree.shape[1:], tree.dtype)
    return {key: _of_one(branch) for key, branch in tree.items()}


def _table(rows: bytes, count: int) -> arrays_lib.Array:
    """Return the bytes of each of `count` rows [count, nbytes]."""
    return np.frombuffer(rows, np.uint8).reshape(count, len(rows) // max(count, 1))


def _picked(here: arrays_lib.Bools, rows: bytes, others: bytes) -> bytes:
    """Return the bytes of rows where `here` [k] is True, and of others elsewhere."""
    return np.where(here[:, np.newaxis], _table(rows, len(here)), _table(others, len(here))).tobytes()


def _side_by_side(parts: Sequence[bytes], count: int) -> bytes:
    """Return the bytes of `count` rows that have those of the agents side by side."""
    if count == 1:
        return b"".join(parts)
    return np.concatenate([_table(part, count) for part in parts], axis=1).tobytes()


def _events(flags: arrays_lib.Array) -> npt.NDArray[np.uint8]:
    """Return how the joint episode ends with each step, given the flags of its agents [..., A]."""
    has_ended = ((flags & _ENDS > 0) == (flags & PRESENT > 0)).all(axis=-1)
    is_truncated = (flags & TRUNCATED > 0).any(axis=-1)
    return np.asarray(has_ended * np.where(is_truncated, TRUNCATED, TERMINATED), np.uint8)
