"""The work of the fleet's benchmark: episodes that say what they are, and what is wrong with a batch of them."""

import dataclasses
import pathlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

import relive

Array: TypeAlias = npt.NDArray[np.generic]

_EPISODES = 32
"""Different episodes a writer sends, over and over."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Whole episodes are sent by writers, batches of transitions are drawn by a learner.

    Attributes:
        shape, dtype: Of an observation; an action is an int64 and a reward a float32.
        steps: Of an episode: so many transitions, and one observation more.
        batch_size: Transitions in a batch.
        writers: Processes that send episodes.
        capacity: Steps stored at most, in all shards together.
        message_steps: Steps in a message of a writer.
        in_flight: Messages that a writer has on their way at most, to all shards together, but one to each at least.
        prefetch: Batches that are under way beside the one that the learner has in hand.
    """

    shape: tuple[int, ...] = (16,)
    dtype: str = "float32"
    steps: int = 100
    batch_size: int = 256
    writers: int = 2
    capacity: int = 200_000
    message_steps: int = 1000
    in_flight: int = 4
    prefetch: int = 2

    def episodes(self) -> dict[str, Array]:
        """Return the episodes: observations [E, T+1, *shape], actions [E, T], rewards [E, T].

        The first two numbers of an observation are its episode and its step, the others are noise; the action is the
        step, the reward is the episode plus the step.
        """
        rng = np.random.default_rng(0)
        episode, step = np.arange(_EPISODES)[:, None], np.arange(self.steps + 1)
        flat = rng.integers(0, 256, (_EPISODES, self.steps + 1, int(np.prod(self.shape)))).astype(self.dtype)
        flat[..., 0], flat[..., 1] = episode, step
        return {
            "observations": flat.reshape(_EPISODES, self.steps + 1, *self.shape),
            "actions": np.broadcast_to(step[:-1], (_EPISODES, self.steps)).astype(np.int64),
            "rewards": (episode + step[:-1]).astype(np.float32),
        }

    def sizes(self) -> dict[str, float]:
        """Return the bytes of a step in a message, of a transition in a batch, and of a step that is stored."""
        columns = self.episodes()
        buffer = relive.RingReplayBuffer(_EPISODES * self.steps, seed=0)
        for observations, actions, rewards in zip(*columns.values(), strict=True):
            buffer.add_episode(observations, actions, rewards, terminated=True)
        batch = buffer.sample(self.batch_size)
        fields = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
        return {
            "step": sum(column.nbytes for column in columns.values()) / len(buffer),
            "transition": sum(field.nbytes for field in fields if isinstance(field, np.ndarray)) / self.batch_size,
            "stored": buffer.get_stats().nbytes / len(buffer),
        }

    def save(self, path: pathlib.Path) -> None:
        """Write the episodes to a file of `np.savez`."""
        np.savez(path, allow_pickle=False, **self.episodes())


def wrong(
    observation: Array, action: Array, reward: Array, next_observation: Array, terminal: Array, steps: int
) -> int:
    """Return how many transitions of a batch are not those of one step of one episode; every array is [B, ...]."""
    rows = len(action)
    before, after = (one.reshape(rows, -1)[:, :2].astype(np.float64) for one in (observation, next_observation))
    right = (
        (before[:, 0] == after[:, 0])
        & (before[:, 1] + 1 == after[:, 1])
        & (action == before[:, 1])
        & (reward == before.sum(axis=1))
        & (terminal == (before[:, 1] == steps - 1))
    )
    return int(np.count_nonzero(~right))
