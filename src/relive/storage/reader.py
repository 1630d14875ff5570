"""RowReader: reads the rows of a store in the way its storage does it fastest, and makes trees of their columns."""

from typing import Any

from relive.common import arrays as arrays_lib
from relive.common import trees
from relive.schema import schema as schema_lib
from relive.storage import foreign


class RowReader:
    """Reads the rows of one schema; made when that is known.

    Attributes:
        read: Reads rows that are there, as the storage does.
        rewards: Has `take(slots)`, which returns rewards.
        takes_any: Whether `read` takes -1 for any row.
        observation_paths: The paths of the observation's fields.
        action_paths: Those of the action's.
        other_paths: Those of the action, the reward and the extras.
        unrewarded_paths: Those of all fields but the reward.
        reward_dtype: The dtype of rewards.
        has_extras: Whether there are extras.
        nest_observation, nest_action, nest_extras: Return the tree of a part, given columns by path.
    """

    def __init__(self, access: foreign.Access) -> None:
        schema = access.storage.schema
        paths = tuple(schema.fields)
        self._access = access
        self.read, self.rewards, self.takes_any = access.read, access.rewards, access.takes_any
        self.observation_paths = schema_lib.paths_of(schema, "observation")
        self.action_paths = schema_lib.paths_of(schema, "action")
        self.other_paths = tuple(path for path in paths if path not in self.observation_paths)
        self.unrewarded_paths = tuple(path for path in paths if path != "reward")
        self.reward_dtype, self.has_extras = schema.reward.dtype, bool(schema.extras)
        self.nest_observation, self.nest_action, self.nest_extras = (
            trees.nester(name, paths) for name in ("observation", "action", "extras")
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._access,)

    def observations(self, slots: arrays_lib.Ints) -> dict[str, arrays_lib.Array]:
        """Return fresh copies of the observation columns of the rows in `slots`."""
        return self.read(slots, self.observation_paths)
