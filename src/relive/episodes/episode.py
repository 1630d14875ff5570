"""One episode: the steps from a reset to its end.

    observations  o0   o1   o2   o3      T+1, each stored once; o3 has no action
    actions          a0   a1   a2        T
    rewards          r0   r1   r2        T
    versions         v0   v1   v2        T      of the policy that chose the action; they never go down
    transitions      0    1    2         transition t is (o_t, a_t, r_t, o_t+1)

An open episode has as many observations as actions: its last step is not a transition until the next observation is
known. An aborted episode stays in that state if its final observation is not known.
"""

import bisect
import dataclasses
import operator
import re
import time
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar, get_args

from relive import errors
from relive.common import validation

Obs = TypeVar("Obs")
Act = TypeVar("Act")

FinalStatus: TypeAlias = Literal["COMPLETED", "TRUNCATED", "ABORTED"]
"""How an episode ended: the task ended (no bootstrap); it was cut off; the actor died (bootstrap in both)."""

EpisodeStatus: TypeAlias = Literal["IN_PROGRESS", "COMPLETED", "TRUNCATED", "ABORTED"]
"""Where an episode stands."""

FINAL_STATUSES: tuple[FinalStatus, ...] = get_args(FinalStatus)


_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def is_id(value: object) -> bool:
    """Return whether that is a UUID, in small hexadecimal with dashes."""
    return type(value) is str and _ID.fullmatch(value) is not None


def checked_start(
    agent_id: object, group_id: object = None, policy_version: object = None
) -> tuple[str, str | None, int | None]:
    """Return what an episode is started with; raise ArgumentError, or ArgumentTypeError, for what it cannot be."""
    agent = validation.string("agent_id", agent_id)
    group = None if group_id is None else validation.non_empty_string("group_id", group_id)
    version = None if policy_version is None else validation.non_negative_int("policy_version", policy_version)
    return agent, group, version


def checked_reward(reward: Any) -> float:
    """Return a reward as a float; it may be an array or a tensor of shape [].

    Raises:
        ArgumentTypeError: `reward` is not a real number.
        ArgumentError: It is infinite or NaN, cannot be represented as a float, or has another shape.
    """
    shape = getattr(reward, "shape", None)
    if isinstance(shape, tuple) and hasattr(reward, "item"):  # An array, a tensor or a numpy scalar.
        if shape:
            raise errors.ArgumentError(
                f"reward must be one number, got shape {tuple(shape)}: give the .item() of one element"
            )
        reward = reward.item()
    return validation.finite_number("reward", reward)


_first, _second = operator.itemgetter(0), operator.itemgetter(1)


@dataclasses.dataclass(kw_only=True, slots=True, eq=False, weakref_slot=True)
class Episode(Generic[Obs, Act]):
    """The steps of one agent, starting at a reset. Episodes compare by identity.

    Attributes:
        episode_id: Its id, a UUID.
        agent_id: The agent that acted in it.
        observations: o_0 to o_T [T+1]; [T] while the observation after the last step is unknown.
        actions: a_0 to a_{T-1} [T].
        rewards: r_0 to r_{T-1} [T].
        status: Its status.
        start_time: Start time in seconds since the epoch, for information only.
        group_id: Its group, such as all responses to one prompt; None if it has none.
        policy_version: The policy version it started with; None if unknown.
        version_changes: Changes of the policy version: pairs of the first step with a new version and the version.
        metadata: What was given when it started, such as the answer to a question.
    """

    episode_id: str
    agent_id: str
    observations: list[Obs] = dataclasses.field(default_factory=list)
    actions: list[Act] = dataclasses.field(default_factory=list)
    rewards: list[float] = dataclasses.field(default_factory=list)
    status: EpisodeStatus = "IN_PROGRESS"
    start_time: float = dataclasses.field(default_factory=time.time)
    group_id: str | None = None
    policy_version: int | None = None
    version_changes: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)

    def snapshot(self) -> Self:
        """Return a copy that shares observations and actions but does not grow. O(steps)."""
        return dataclasses.replace(
            self,
            observations=self.observations.copy(),
            actions=self.actions.copy(),
            rewards=self.rewards.copy(),
            version_changes=self.version_changes.copy(),
        )

    def __len__(self) -> int:
        """Return the number of complete transitions."""
        return max(len(self.observations) - 1, 0)

    def append_observation_action_reward(
        self, observation: Obs, action: Act, reward: float, policy_version: int | None = None
    ) -> int:
        """Append one step and return how many transitions that completed: 1, or 0 for the first step.

        Args:
            observation: o_t.
            action: a_t.
            reward: r_t.
            policy_version: The policy version that chose a_t; None for that of the previous step, or of the start.

        Raises:
            ArgumentError: The episode has ended, or the version is not an integer of at least that of the previous
                step.
        """
        if self.status != "IN_PROGRESS":  # Inlined: it runs at every step.
            check_next_step(self, None)
        if policy_version is not None:
            version = _checked_next_version(self, policy_version)
            if version != newest_version(self):
                self.version_changes.append((len(self.actions), version))
        self.observations.append(observation)
        self.actions.append(action)
        self.rewards.append(reward)
        return 1 if len(self.observations) > 1 else 0

    def append_final_observation(self, observation: Obs, status: FinalStatus = "COMPLETED") -> int:
        """End the episode and return how many transitions that completed: 1, or 0 for an episode without steps.

        Raises:
            ArgumentError: The episode has ended already, or `status` does not end one.
        """
        check_can_end(self, status)
        self.observations.append(observation)
        self.status = status
        return 1 if len(self.observations) > 1 else 0

    def abort(self) -> None:
        """End the episode as ABORTED without a final observation: its last step does not become a transition.

        Raises:
            ArgumentError: The episode has ended already.
        """
        check_can_end(self, "ABORTED")
        self.status = "ABORTED"

    @property
    def policy_versions(self) -> list[int | None]:
        """The policy version of each action [T], None if unknown. A new list, O(T)."""
        return [version for start, stop, version in version_runs(self) for _ in range(start, stop)]


def newest_version(episode: Episode[Any, Any]) -> int | None:
    """Return the version that chose the newest action, or that the episode started with if it has no steps."""
    return episode.version_changes[-1][1] if episode.version_changes else episode.policy_version


def version_runs(episode: Episode[Any, Any]) -> list[tuple[int, int, int | None]]:
    """Return the runs of steps with the same version: start, stop and version."""
    starts = [0, *(start for start, _ in episode.version_changes)]
    versions = [episode.policy_version, *(version for _, version in episode.version_changes)]
    runs = zip(starts, [*starts[1:], len(episode.actions)], versions, strict=True)
    return [(start, stop, version) for start, stop, version in runs if start < stop]


def version_of(episode: Episode[Any, Any], step: int) -> int | None:
    """Return the version that chose the action of a step. O(log of the changes)."""
    changes = episode.version_changes
    if not changes or step >= changes[-1][0]:
        return newest_version(episode)
    place = bisect.bisect_right(changes, step, key=_first)
    return changes[place - 1][1] if place else episode.policy_version


def first_step_of(episode: Episode[Any, Any], version: int) -> int:
    """Return the first step of that version, which must occur. O(log of the changes)."""
    place = bisect.bisect_left(episode.version_changes, version, key=_second)
    if place < len(episode.version_changes) and episode.version_changes[place][1] == version:
        return episode.version_changes[place][0]
    return 0


def check_next_step(episode: Episode[Any, Any], policy_version: int | None) -> None:
    """Raise an error unless a step with that version may be appended; None for that of the step before."""
    if episode.status != "IN_PROGRESS":
        raise errors.ArgumentError(f"cannot append to finished episode {episode.episode_id}: it is {episode.status}")
    if policy_version is not None:
        _checked_next_version(episode, policy_version)


def _checked_next_version(episode: Episode[Any, Any], policy_version: int) -> int:
    """Return the checked version of the next step."""
    version, before = validation.non_negative_int("policy_version", policy_version), newest_version(episode)
    if before is not None and version < before:
        whose = "the step before" if episode.actions else "the start of the episode"
        raise errors.ArgumentError(f"policy_version must be at least {before}, that of {whose}, got {version}")
    return version


def check_can_end(episode: Episode[Any, Any], status: Any) -> None:
    """Raise an error unless the episode may end now with `status`."""
    if not isinstance(status, str) or status not in FINAL_STATUSES:
        names = ", ".join(FINAL_STATUSES)
        raise errors.ArgumentError(
            f"status must be one of {names} to end an episode, got {validation.short_repr(status)}"
        )
    if episode.status != "IN_PROGRESS":
        raise errors.ArgumentError(f"episode {episode.episode_id} is already finished: it is {episode.status}")
