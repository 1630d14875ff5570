"""ReAgent (formerly Horizon): the steps of a buffer as the pre-timeline table of its offline pipelines.

    observation [T, ...] ──> state_features   {0: float, 1: float, ...}
    action      [T]      ──> action           "2", one of possible_actions
    action      [T, ...] ──> action           {0: float, 1: float, ...}, and no possible_actions

Sources: Gauci et al., "Horizon: Facebook's Open Source Applied Reinforcement Learning Platform", 2018; the usage page
of ReAgent; and, where it is silent, ReAgent's own conversion of a replay buffer into that table.
"""

from collections.abc import Iterable
import dataclasses
import numbers
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.buffers import column
from relive.common import arrays
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.integrations import step_columns
from relive.integrations import stored_episodes
from relive.persistence import state
from relive.schema import casting
from relive.schema import schema as schema_lib

with imports.optional_dependency("arrow"):
    import pandas

Columns: TypeAlias = dict[str, list[Any]]

_FLOAT = np.dtype(np.float64)
_ULPS = 4
"""How far above 1 rounding may put a probability, in units in the last place of its dtype."""


def pre_timeline_frame(
    buffer: "column.ColumnReplayBuffer[Any]",
    *,
    action_probability: str | None = "action_probability",
    possible_actions: str | Iterable[Any] | None = None,
    final_rows: bool = False,
    ds: str = "2019-01-01",
    progress: state.Progress | None = None,
) -> pandas.DataFrame:
    """Return a data frame with a row for each stored step, as input for ReAgent's timeline operator.

    ::

        mdp_id                   the episode: its first stored key, as a text
        sequence_number          the step within the episode
        state_features           {0: float, 1: float, ...}: all numbers of the observation, field by field in the order
                                 of the schema, row by row within a field
        action                   a text ("2") where the action is one integer, bool or text; else {0: float, ...}
        reward                   a float
        action_probability       of the action taken, by the policy that took it; None for a deterministic policy
        possible_actions         texts, empty in the row of a terminated step (with `final_rows`, in that after
                                 it); the column is missing where `action` is a map
        possible_actions_mask    the same as numbers, 1 or 0 for each action there is
        metrics                  {"reward": float}
        ds                       the text that names the data set

    The timeline operator treats a transition as terminal if no action is possible in the next row, or if there is none,
    which is wrong for truncated and open episodes. With `final_rows`, each episode gets another row for its final
    observation, and the operator, with addTerminalStateRow false, restores all steps correctly. In that row action is
    "", reward is 0, there is no probability, and the possible actions are none if the episode terminated, otherwise
    all; state_features are empty if a terminated episode's final observation was not given. An open episode whose
    newest observation is not known has no such row.

    Args:
        buffer: The buffer to read.
        action_probability: The name of an extra with the probability (not its logarithm) of each action. None for a
            deterministic policy. Values above 1 by up to four units in the last place of the dtype are treated as 1.
        possible_actions: All actions, such as `range(4)`, or the name of an extra with a mask [A] for each step,
            nonzero for possible actions. Required if `action` is a text.
        final_rows: Whether to add those rows. Requires `possible_actions` to be all actions, since a mask does not
            cover final observations.
        ds: The value of that column; the default is the one that ReAgent's own tools expect.
        progress: Called after each episode with the number of bytes read so far and the total.

    Raises:
        ArgumentError: An argument or a probability is invalid, or an action was taken that is not possible.
        SchemaError: An observation or an action is not a number, or not exactly representable as a float64.
        ArgumentTypeError: `buffer` is not a column buffer.
        NotReadyError: The buffer has no schema yet.

    >>> import relive
    >>> from relive.integrations import reagent
    >>> buffer = relive.RingReplayBuffer(10)
    >>> keys = buffer.add_episode([0, 1, 2], [1, 0], [0.0, 1.0], terminated=True, mu=[0.9, 0.25])
    >>> frame = reagent.pre_timeline_frame(buffer, action_probability="mu", possible_actions=range(2))
    >>> print(frame[["mdp_id", "sequence_number", "state_features", "action", "possible_actions"]])
      mdp_id  sequence_number state_features action possible_actions
    0      0                0       {0: 0.0}      1           [0, 1]
    1      0                1       {0: 1.0}      0               []
    """
    schema = step_columns.known_schema("pre_timeline_frame", buffer)
    table = _table(schema, action_probability, possible_actions, final_rows, ds)
    columns = table.no_columns()
    for episode in stored_episodes.stored_episodes(buffer, progress=progress):
        for name, values in table.columns(episode).items():
            columns[name] += values
    # Set the dtypes explicitly, so that an empty frame has them too.
    text = pandas.Series([""]).dtype
    kinds: dict[str, Any] = dict.fromkeys(columns, object)
    kinds |= {"sequence_number": np.int64, "reward": np.float64, "mdp_id": text, "ds": text}
    kinds |= {"action_probability": np.float64} if table.probability else {}
    kinds |= {"action": text} if table.actions is not None else {}
    return pandas.DataFrame(columns).astype(kinds)


@dataclasses.dataclass(frozen=True)
class _Actions:
    """The set of actions.

    Attributes:
        names: The names of all actions [A].
        mask: The path of the field with the mask of possible actions; empty if all are always possible.
    """

    names: list[str]
    mask: str

    def masks(self, fields: dict[str, arrays.Array]) -> list[list[int]]:
        """Return 1 or 0 for each action in each of the steps of an episode [T][A]."""
        if not self.mask:
            return [[1] * len(self.names) for _ in fields["reward"]]
        masks: list[list[int]] = (fields[self.mask] != 0).astype(np.int64).tolist()
        return masks


@dataclasses.dataclass(frozen=True)
class _Table:
    """Converts episodes to columns.

    Attributes:
        probability: The path of the field with the probability of each action; empty if the policy has none.
        actions: The set of actions; None if an action is a map of numbers.
        ds: The name of the data set.
        final_rows: Whether an episode has a row for its final observation.
    """

    probability: str
    actions: _Actions | None
    ds: str
    final_rows: bool

    def no_columns(self) -> Columns:
        """Return the columns of no episode."""
        names = ["mdp_id", "sequence_number", "state_features", "action", "reward", "action_probability"]
        if self.actions is not None:
            names += ["possible_actions", "possible_actions_mask"]
        return {name: [] for name in [*names, "metrics", "ds"]}

    def columns(self, episode: stored_episodes.StoredEpisode) -> Columns:
        """Return the columns of an episode.

        Raises:
            ArgumentError: A probability is invalid, or an action was taken that is not possible.
            SchemaError: An observation or an action is not a number, or not exactly representable as a float64.
        """
        fields = _fields(episode)
        rewards = episode.rewards.astype(np.float64).tolist()
        columns: Columns = {
            "mdp_id": [str(episode.keys[0])] * len(episode),
            "sequence_number": list(range(episode.start_step, episode.start_step + len(episode))),
            "state_features": _maps("observation", fields),
            "action": _maps("action", fields) if self.actions is None else _names(fields["action"]),
            "reward": rewards,
            "action_probability": self._probabilities(episode, fields),
        }
        is_terminated = episode.status == "COMPLETED"
        if self.actions is not None:
            columns |= _possible(self.actions, episode, fields, columns["action"])
            if is_terminated and not self.final_rows:
                columns["possible_actions"][-1], columns["possible_actions_mask"][-1] = [], []
        if self.final_rows and (is_terminated or episode.has_final_observation):
            for name, value in self._final_row(episode).items():
                columns[name].append(value)
        metrics = [{"reward": reward} for reward in columns["reward"]]
        return columns | {"metrics": metrics, "ds": [self.ds] * len(metrics)}

    def _final_row(self, episode: stored_episodes.StoredEpisode) -> dict[str, Any]:
        """Return the row for the final observation of an episode that ended, or whose final observation is known."""
        features: dict[int, float] = {}
        if episode.has_final_observation:
            final = trees.rows(episode.observations, slice(-1, None))
            (features,) = _maps("observation", trees.flat("observation", final))
        names = self.actions.names if self.actions is not None and episode.status != "COMPLETED" else []
        return {
            "mdp_id": str(episode.keys[0]),
            "sequence_number": episode.start_step + len(episode),
            "state_features": features,
            "action": "",
            "reward": 0.0,
            "action_probability": None,
            "possible_actions": list(names),
            "possible_actions_mask": [1] * len(names),
        }

    def _probabilities(
        self, episode: stored_episodes.StoredEpisode, fields: dict[str, arrays.Array]
    ) -> list[float | None]:
        if not self.probability:
            return [None] * len(episode)
        probabilities = fields[self.probability].astype(np.float64)
        # The density of a continuous action may exceed 1.
        is_wrong = ~(np.isfinite(probabilities) & (probabilities >= 0))
        if self.actions is not None:
            is_wrong |= probabilities > 1 + _ULPS * np.finfo(fields[self.probability].dtype).eps
        for key, probability in zip(episode.keys[is_wrong], probabilities[is_wrong], strict=True):
            rule = "be finite and at least 0" if self.actions is None else "be in [0, 1]"
            remedy = ": give np.exp of a logarithm when you add the step" if probability < 0 else ""
            raise errors.ArgumentError(f"action_probability of key {key} must {rule}, got {probability}{remedy}")
        if self.actions is not None:
            probabilities = np.minimum(probabilities, 1.0)
        answer: list[float | None] = probabilities.tolist()
        return answer


def _table(
    schema: schema_lib.Schema, action_probability: object, possible_actions: Any, final_rows: object, ds: object
) -> _Table:
    """Return the converter for episodes of a schema.

    Raises:
        ArgumentError: An argument is invalid, or refers to an extra that the schema does not have.
    """
    if not isinstance(ds, str):
        raise errors.ArgumentTypeError(f"ds must be a text, got {validation.short_repr(ds)}")
    probability = ""
    if action_probability is not None:
        probability = f"extras/{action_probability}"
        field = schema.fields.get(probability)
        if field is None or field.shape or field.dtype.kind != "f":
            rule = "be the name of an extra that is one float, or None for a policy that is not stochastic"
            raise errors.ArgumentError(f"action_probability must {rule}, got {_found(schema, action_probability)}")
    action = schema.fields.get("action")
    is_named = action is not None and not action.shape and action.dtype.kind in "biuU"
    if not is_named and possible_actions is not None:
        rule = "be None where an action is not one integer or text"
        raise errors.ArgumentError(f"possible_actions must {rule}, got {validation.short_repr(possible_actions)}")
    actions = _actions(schema, possible_actions) if is_named else None
    final_rows = validation.boolean("final_rows", final_rows)
    if final_rows and (actions is None or actions.mask):
        rule = "be False unless possible_actions are all actions"
        raise errors.ArgumentError(f"final_rows must {rule}, got True and {validation.short_repr(possible_actions)}")
    return _Table(probability, actions, ds, final_rows)


def _found(schema: schema_lib.Schema, name: object) -> str:
    """Return the description of an extra in errors."""
    field = schema.fields.get(f"extras/{name}")
    if field is not None:
        return f"{name!r}, a {field}"
    known = [path.removeprefix("extras/") for path in schema.fields if path.startswith("extras/")]
    return f"{validation.short_repr(name)}: the schema has {', '.join(known) or 'no extras'}"


def _actions(schema: schema_lib.Schema, possible_actions: Any) -> _Actions:
    rule = "be all actions, such as range(4), or the name of an extra that is a mask of them"
    if isinstance(possible_actions, str):
        field = schema.fields.get(f"extras/{possible_actions}")
        if field is None or len(field.shape) != 1 or field.dtype.kind not in "biu":
            raise errors.ArgumentError(f"possible_actions must {rule}, got {_found(schema, possible_actions)}")
        return _Actions([str(action) for action in range(field.shape[0])], f"extras/{possible_actions}")
    if not isinstance(possible_actions, Iterable):
        raise errors.ArgumentTypeError(f"possible_actions must {rule}, got {validation.short_repr(possible_actions)}")
    actions = list(possible_actions)
    for action in actions:
        if not isinstance(action, str | numbers.Integral | np.bool_):
            raise errors.ArgumentTypeError(f"possible_actions must {rule}, got {validation.short_repr(actions)}")
    names = [_name(action) for action in actions]
    if len(set(names)) < len(names):
        raise errors.ArgumentError(f"possible_actions must be distinct, got {validation.short_repr(actions)}")
    return _Actions(names, "")


def _name(action: Any) -> str:
    """Return the name of an action that is a text, an integer or a bool."""
    return str(action) if isinstance(action, str) else str(int(action))


def _names(actions: arrays.Array) -> list[str]:
    """Return the names of actions [T]."""
    return [_name(action) for action in actions.tolist()]


def _possible(
    actions: _Actions, episode: stored_episodes.StoredEpisode, fields: dict[str, arrays.Array], taken: list[str]
) -> Columns:
    """Return which actions were possible in the steps of an episode, by name and as a mask."""
    masks = actions.masks(fields)
    names = [[name for name, flag in zip(actions.names, mask, strict=True) if flag] for mask in masks]
    for key, action, possible in zip(episode.keys, taken, names, strict=True):
        if action not in possible:
            rule = f"hold every action that was taken, such as {action!r} of key {key}"
            raise errors.ArgumentError(f"possible_actions must {rule}, got {validation.short_repr(possible)}")
    return {"possible_actions": names, "possible_actions_mask": masks}


def _maps(part: str, fields: dict[str, arrays.Array]) -> list[dict[int, float]]:
    """Return all numbers of a part of each step, by position."""
    flat = [
        casting.cast_exact(path, array, array.shape, _FLOAT).reshape(len(array), -1)
        for path, array in fields.items()
        if path == part or path.startswith(f"{part}/")
    ]
    return [dict(enumerate(row)) for row in np.concatenate(flat, axis=1).tolist()]


def _fields(episode: stored_episodes.StoredEpisode) -> dict[str, arrays.Array]:
    """Return the fields of the steps of an episode by path [T, ...], without the observation after the last one."""
    observations = trees.rows(episode.observations, slice(0, len(episode)))
    columns = trees.flat("observation", observations) | trees.flat("action", episode.actions)
    return columns | {"reward": episode.rewards} | (trees.flat("extras", episode.extras) if episode.extras else {})
