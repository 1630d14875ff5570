"""RLlib: EpisodeReplayBuffer and PrioritizedEpisodeReplayBuffer. What its connectors do to a draw is not timed."""

from collections.abc import Iterable
from typing import Any
import uuid

import numpy as np
import ray.rllib.env.single_agent_episode as single_agent_episode
import ray.rllib.utils.replay_buffers.episode_replay_buffer as episode_replay_buffer
import ray.rllib.utils.replay_buffers.prioritized_episode_buffer as prioritized_episode_buffer

from relive.bench import tasks
from relive.common import arrays as arrays_lib
from relive.testing import synthetic

_MOST = 1_000_000


class _Buffer(tasks.Buffer):
    lacks = ("frame_stack", "streams")

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        if task.capacity > _MOST:
            raise tasks.CannotError(f"keeps Python objects for each step: more than {_MOST:,} of them do not fit")
        self._episode_id, self._step = "", 0
        self._buffer: Any
        if task.prioritized:
            self._buffer = prioritized_episode_buffer.PrioritizedEpisodeReplayBuffer(task.capacity, alpha=task.alpha)
        else:
            self._buffer = episode_replay_buffer.EpisodeReplayBuffer(task.capacity)

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        for episode in episodes:
            columns = map(list, (episode.frames, episode.rows.action, episode.rows.reward))
            self.add((*columns, episode.terminated, episode.truncated))

    def prepared(self, step: synthetic.Step) -> Any:
        observations = [step.observation, step.next_observation]
        return observations, [step.action], [step.reward], step.terminated, step.truncated

    def add(self, prepared: Any) -> None:
        # A part of an episode, as an environment runner gives it.
        observations, actions, rewards, terminated, truncated = prepared
        if not self._step:
            self._episode_id = uuid.uuid4().hex
        part = single_agent_episode.SingleAgentEpisode(
            id_=self._episode_id,
            observations=observations,
            actions=actions,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            t_started=self._step,
            len_lookback_buffer=0,
        )
        self._step = 0 if terminated or truncated else self._step + len(rewards)
        self._buffer.add([part])

    def sample(self) -> Any:
        task = self.task
        if task.sequence_length:
            # A row holds one observation more than it holds whole steps.
            return self._buffer.sample(batch_size_B=task.batch_size, batch_length_T=task.sequence_length + 1)
        settings = {"n_step": task.n_step, "gamma": task.gamma}
        if task.prioritized:
            return self._buffer.sample(task.batch_size, beta=task.beta, **settings)
        return self._buffer.sample(task.batch_size, sample_episodes=True, **settings)

    def update(self, sample: Any, priorities: arrays_lib.Floats) -> None:
        self._buffer.update_priorities(priorities)

    def answer(self, sample: Any) -> tasks.Answer:
        if self.task.sequence_length:
            # The reward beside an observation is the one before it; the last row of an episode has no action.
            return {
                "observation": sample["obs"][:, :-1],
                "action": sample["actions"][:, :-1],
                "reward": sample["rewards"][:, 1:],
                "terminal": sample["is_terminated"][:, 1:],
                "mask": ~sample["is_last"][:, :-1],
            }
        answer = {
            "observation": np.array([one.get_observations(0) for one in sample]),
            "action": np.array([one.get_actions(0) for one in sample]),
            "reward": np.array([one.get_rewards(0) for one in sample]),
            "next_observation": np.array([one.get_observations(-1) for one in sample]),
            "terminal": np.array([one.is_terminated for one in sample]),
        }
        if self.task.prioritized:
            answer["weights"] = np.array([one.get_extra_model_outputs("weights", 0) for one in sample])
        steps = np.array([one.get_extra_model_outputs("n_step", 0) for one in sample])
        return answer | {"discount": self.task.gamma**steps}
