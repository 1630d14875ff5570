"""N-step samples: a window of at most n steps of one episode, read at draw time.

    n = 3, from step t                          next_observation   next_discount   window_end
    o_t a_t r_t  r_t+1  r_t+2                   o_t+3              gamma^3         HORIZON
    o_t a_t r_t  r_t+1 | the task ended         o_t+2              0               TERMINATED
    o_t a_t r_t  r_t+1 | it was cut off         o_t+2              gamma^2         TRUNCATED
    o_t a_t r_t  r_t+1 | the actor died         o_t+2              gamma^2         ABORTED
    o_t a_t r_t  r_t+1 | not known yet          o_t+2              gamma^2         OPEN

In every row `target = reward + next_discount * V(next_observation)`. Only termination gives a zero discount. If several
apply in the same place, termination takes precedence over the horizon, and the horizon over a cut.
"""

from collections.abc import Sequence
import dataclasses
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from relive.common import copies
from relive.episodes import episode as episode_lib
from relive.windows import returns

Obs = TypeVar("Obs")
Act = TypeVar("Act")

WindowEnd: TypeAlias = Literal["HORIZON", "TERMINATED", "TRUNCATED", "ABORTED", "OPEN"]
"""Why a window stopped where it did."""

_CUTS: dict[episode_lib.EpisodeStatus, WindowEnd] = {
    "IN_PROGRESS": "OPEN",
    "COMPLETED": "TERMINATED",
    "TRUNCATED": "TRUNCATED",
    "ABORTED": "ABORTED",
}


@dataclasses.dataclass(kw_only=True, slots=True)
class ReplaySample(Generic[Obs, Act]):
    """An n-step transition of m = actual_n steps. It owns its arrays: modifying them does not affect the buffer.

    Attributes:
        episode_id: The episode it comes from.
        agent_id: The agent that acted in it.
        group_id: The group of the episode; None if it has none.
        policy_version: The policy version that chose a_t; None if unknown.
        observation: o_t, where t is start_step.
        action: a_t.
        next_observation: o_{t+m}.
        next_discount: The factor on the bootstrap value of next_observation: gamma^m, or 0 if the window terminated.
        is_terminal: Whether the window reached termination.
        rewards_seq: r_t to r_{t+m-1} [m].
        discount_powers: gamma^0 to gamma^{m-1} [m].
        start_step: t, counted from the reset.
        actual_n: m, from 1 to the requested n.
        gamma: The discount factor.
        window_end: Why the window stopped there.
        metadata: The metadata of the episode.
    """

    episode_id: str
    agent_id: str
    group_id: str | None = None
    policy_version: int | None = None

    observation: Obs
    action: Act
    next_observation: Obs
    next_discount: float
    is_terminal: bool

    rewards_seq: list[float]
    discount_powers: list[float]
    start_step: int
    actual_n: int
    gamma: float
    window_end: WindowEnd
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def reward(self) -> float:
        """The sum over k < m of gamma^k r_{t+k} (Sutton and Barto 2018, equation 7.1, without its bootstrap)."""
        return returns.weighted_sum(self.rewards_seq, self.discount_powers)


def read(
    draws: Sequence[tuple[episode_lib.Episode[Obs, Act], int]], n: int, gamma: float
) -> list[ReplaySample[Obs, Act]]:
    """Return the n-step sample from each of `draws`: an episode, and the start step of a complete transition in it."""
    powers = [1.0]
    copiers = copies.COPIERS
    new = ReplaySample.__new__
    samples = []
    for episode, start in draws:
        observations = episode.observations
        stop, horizon = len(observations) - 1, start + n
        window_end: WindowEnd = "HORIZON"
        if horizon < stop:
            stop = horizon
        elif horizon > stop or episode.status == "COMPLETED":
            window_end = _CUTS[episode.status]
        m = stop - start
        while len(powers) <= m:
            powers.append(gamma ** len(powers))
        is_terminal = window_end == "TERMINATED"
        observation, action, next_observation = observations[start], episode.actions[start], observations[stop]
        copy_observation = copiers[type(observation)]
        copy_action = copiers[type(action)]
        copy_next_observation = copiers[type(next_observation)]
        # Setting attributes one by one takes half the time of a call with keywords.
        sample: ReplaySample[Obs, Act] = new(ReplaySample)
        sample.episode_id = episode.episode_id
        sample.agent_id = episode.agent_id
        sample.group_id = episode.group_id
        has_changes = episode.version_changes
        sample.policy_version = episode_lib.version_of(episode, start) if has_changes else episode.policy_version
        sample.observation = observation if copy_observation is None else copy_observation(observation, {})
        sample.action = action if copy_action is None else copy_action(action, {})
        sample.next_observation = (
            next_observation if copy_next_observation is None else copy_next_observation(next_observation, {})
        )
        sample.next_discount = 0.0 if is_terminal else powers[m]
        sample.is_terminal = is_terminal
        sample.rewards_seq = episode.rewards[start:stop]
        sample.discount_powers = powers[:m]
        sample.start_step = start
        sample.actual_n = m
        sample.gamma = gamma
        sample.window_end = window_end
        sample.metadata = copies.copied(episode.metadata) if episode.metadata else {}
        samples.append(sample)
    return samples
