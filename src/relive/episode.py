"""One episode: the steps from a reset to its end.

    observations  o0   o1   o2   o3      T+1, each stored once; o3 has no action
    actions          a0   a1   a2        T
    rewards          r0   r1   r2        T
    transitions      0    1    2         transition t is (o_t, a_t, r_t, o_t+1)

A running episode has as many observations as actions: its last step waits for the observation after it, and is no
transition yet. An aborted episode ends in that state when nobody knows what followed.
"""

import dataclasses
import time
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args

from relive import checks
from relive import errors

Obs = TypeVar("Obs")
Act = TypeVar("Act")

FinalStatus: TypeAlias = Literal["COMPLETED", "TRUNCATED", "ABORTED"]
"""How an episode ended: the task ended (no bootstrap); we stopped looking; the actor died (bootstrap in both)."""

EpisodeStatus: TypeAlias = Literal["IN_PROGRESS", "COMPLETED", "TRUNCATED", "ABORTED"]
"""Where an episode stands."""

FINAL_STATUSES: tuple[FinalStatus, ...] = get_args(FinalStatus)


@dataclasses.dataclass(kw_only=True, slots=True, eq=False, weakref_slot=True)
class Episode(Generic[Obs, Act]):
    """The steps of one agent from a reset on. Two episodes are equal if they are the same object.

    Attributes:
        episode_id: Its name, a UUID.
        agent_id: Who lived it.
        observations: o_0 to o_T [T+1]; [T] while the last step waits for the observation after it.
        actions: a_0 to a_{T-1} [T].
        rewards: r_0 to r_{T-1} [T].
        status: Where it stands.
        start_time: Seconds since the epoch, by the wall clock; for people, nothing is ordered by it.
    """

    episode_id: str
    agent_id: str
    observations: list[Obs] = dataclasses.field(default_factory=list)
    actions: list[Act] = dataclasses.field(default_factory=list)
    rewards: list[float] = dataclasses.field(default_factory=list)
    status: EpisodeStatus = "IN_PROGRESS"
    start_time: float = dataclasses.field(default_factory=time.time)

    def __len__(self) -> int:
        """Answers how many complete transitions it has."""
        return max(len(self.observations) - 1, 0)

    def append_observation_action_reward(self, observation: Obs, action: Act, reward: float) -> int:
        """Appends one step and answers how many transitions that completed: 1, or 0 for the first step.

        Raises:
            ArgumentError: The episode has ended.
        """
        self.check_is_open()
        self.observations.append(observation)
        self.actions.append(action)
        self.rewards.append(reward)
        return 1 if len(self.observations) > 1 else 0

    def append_final_observation(self, observation: Obs, status: FinalStatus = "COMPLETED") -> int:
        """Ends the episode and answers how many transitions that completed: 1, or 0 for an episode without steps.

        Raises:
            ArgumentError: The episode has ended already, or `status` does not end one.
        """
        self.check_can_end(status)
        self.observations.append(observation)
        self.status = status
        return 1 if len(self.observations) > 1 else 0

    def abort(self) -> None:
        """Ends the episode as ABORTED without a final observation: its last step stays without a transition.

        Raises:
            ArgumentError: The episode has ended already.
        """
        self.check_can_end("ABORTED")
        self.status = "ABORTED"

    def check_is_open(self) -> None:
        """Raises an error unless the episode may go on."""
        if self.status != "IN_PROGRESS":
            raise errors.ArgumentError(f"cannot append to finished episode {self.episode_id}: it is {self.status}")

    def check_can_end(self, status: Any) -> None:
        """Raises an error unless the episode may end now with `status`."""
        if not isinstance(status, str) or status not in FINAL_STATUSES:
            names = ", ".join(FINAL_STATUSES)
            raise errors.ArgumentError(f"status must be one of {names} to end an episode, got {checks.shown(status)}")
        if self.status != "IN_PROGRESS":
            raise errors.ArgumentError(f"episode {self.episode_id} is already finished: it is {self.status}")
