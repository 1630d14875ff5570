"""Writers of one episode, as `EpisodeReplayBuffer.episode` and `episode_nowait` yield them."""

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from relive.common import words
from relive.episodes import episode as episode_lib

if TYPE_CHECKING:
    from relive.episodes import buffer as buffer_lib

Obs = TypeVar("Obs")
Act = TypeVar("Act")


class _Writer(Generic[Obs, Act]):
    """Writes one episode."""

    def __init__(self, buffer: "buffer_lib.EpisodeReplayBuffer[Obs, Act]", episode_id: str) -> None:
        self._buffer = buffer
        self._episode_id = episode_id

    @property
    def episode_id(self) -> str:
        """The id of the episode, a UUID."""
        return self._episode_id

    if not TYPE_CHECKING:  # A type checker would take any attribute for one that exists.

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError that names the call meant, if `name` is another word for it."""
            raise words.missing_attribute(self, name, dir(type(self)), words.METHODS, 1)


class EpisodeWriter(_Writer[Obs, Act]):
    """Writes one episode; created by `EpisodeReplayBuffer.episode`."""

    async def append(self, observation: Obs, action: Act, reward: float, *, policy_version: int | None = None) -> None:
        """Append one step; see EpisodeReplayBuffer.append_observation_action_reward.

        Most calls do not yield to other tasks: an actor that awaits nothing else appends 32 steps at a time.
        """
        await self._buffer.append_observation_action_reward(
            self._episode_id, observation, action, reward, policy_version=policy_version
        )

    async def end(self, final_observation: Obs, status: episode_lib.FinalStatus = "COMPLETED") -> None:
        """End the episode; see EpisodeReplayBuffer.end_episode."""
        await self._buffer.end_episode(self._episode_id, final_observation, status)


class PlainEpisodeWriter(_Writer[Obs, Act]):
    """Writes one episode with plain calls; created by `EpisodeReplayBuffer.episode_nowait`."""

    def append(self, observation: Obs, action: Act, reward: float, *, policy_version: int | None = None) -> None:
        """Append one step; see EpisodeReplayBuffer.append_observation_action_reward_nowait."""
        self._buffer.append_observation_action_reward_nowait(
            self._episode_id, observation, action, reward, policy_version=policy_version
        )

    def end(self, final_observation: Obs, status: episode_lib.FinalStatus = "COMPLETED") -> None:
        """End the episode; see EpisodeReplayBuffer.end_episode_nowait."""
        self._buffer.end_episode_nowait(self._episode_id, final_observation, status)
