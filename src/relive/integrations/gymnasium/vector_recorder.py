"""VectorRecorder: records the steps of a vector environment, each environment into its own stream.

What follows the end of an episode depends on the autoreset mode in the metadata of the vector environment:

    NEXT_STEP    step t ends; step t + 1 resets, ignores the action, and is not stored
    SAME_STEP    step t ends and resets: it returns the first observation, and the last one as infos["final_obs"]
    DISABLED     step t ends; reset(options={"reset_mask": mask}) must come before step t + 1
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import copies
from relive.common import imports
from relive.common import trees
from relive.integrations.gymnasium import autoreset
from relive.integrations.gymnasium import recording
from relive.integrations.gymnasium import spaces

with imports.optional_dependency("gymnasium"):
    from gymnasium import vector


class VectorRecorder(vector.VectorWrapper):
    """A wrapper that records the steps of a vector environment, each environment into its own stream.

    The return values of the environment are passed on unchanged. If `reset` is called before an episode has ended, the
    episode is truncated in the buffer at the last observation.

    Args:
        env: The vector environment. Its metadata must give its autoreset mode, and it must behave accordingly.
        buffer: The buffer to record into, with one stream per environment. If its limiter holds inserts back, `step`
            raises before the environments are stepped; a ThreadSafeReplayBuffer waits.
        frame_stack: Number of frames that each environment stacks along the first axis of its observation. Only the
            newest is stored; the buffer's `frame_stack` must be the same.
        infos: Maps names of extras to the keys of the infos that are stored in them.

    Raises:
        ArgumentError: The metadata do not give the autoreset mode, or an argument is invalid.

    >>> import gymnasium
    >>> import relive
    >>> from relive.integrations import gymnasium as relive_gymnasium
    >>> envs = gymnasium.make_vec("CartPole-v1", 4)
    >>> buffer = relive.RingReplayBuffer(1_000, relive_gymnasium.from_env(envs), streams=4, seed=0)
    >>> envs = relive_gymnasium.VectorRecorder(envs, buffer)
    >>> observations, infos = envs.reset(seed=0)
    >>> for _ in range(50):
    ...     observations, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
    >>> 150 < len(buffer) < 200, buffer.get_stats().spliced_episodes
    (True, 0)
    """

    def __init__(
        self,
        env: "vector.VectorEnv[Any, Any, Any]",
        buffer: recording.Buffer,
        *,
        frame_stack: int = 1,
        infos: Mapping[str, str] | None = None,
    ) -> None:
        recording.require_env(env, vector.VectorEnv)
        super().__init__(env)
        self._target = recording.Target(buffer, env.single_action_space, infos, (env.num_envs,))
        self.buffer = buffer
        if self._target.streams != env.num_envs:
            raise errors.ArgumentError(
                f"buffer must have a stream for each of {env.num_envs} environments, got streams={self._target.streams}"
            )
        self._mode = autoreset.mode_of(env)
        self._frames = recording.Frames(buffer, frame_stack)
        recording.check_spaces(buffer, env.single_observation_space, env.single_action_space, frame_stack)
        self._observations: Any = None
        # Which environments have an open episode; None if all must be reset first.
        self._is_running: arrays.Bools | None = None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the vector environment; open episodes of the environments that are reset end as truncated.

        Raises:
            ArgumentError: A reset mask is given although the environments reset themselves, or it is invalid.
        """
        is_reset = autoreset.reset_mask(self._mode, self.env.num_envs, options)
        was_running, self._is_running = self._is_running, None
        if was_running is None and not is_reset.all():
            raise errors.ArgumentError("reset_mask must be True for each environment, as none is running")
        # Its annotation allows a single seed only; vector environments accept a list too.
        seeds: Any = seed
        # Gymnasium's environments take the mask out of their options, and wrappers around this one still need it.
        observations, infos = self.env.reset(seed=seeds, options=copies.copied(options))
        tree = recording.kept(self.env.single_observation_space, observations)
        rows = is_reset.nonzero()[0]
        first = trees.rows(tree, rows)
        self._frames.check_first(first, num_leading=1)
        for stream in rows.tolist():
            self.buffer.end_episode(stream=stream)
        if was_running is None:
            self._observations = tree
        else:
            trees.put(self._observations, rows, first)
        self._is_running = is_reset if was_running is None else was_running | is_reset
        return observations, infos

    def step(self, actions: Any, **extras: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the vector environment, and store the steps.

        Args:
            actions: The actions [S, ...].
            extras: The other fields of the schema [S, ...], such as the log-probabilities of the actions.

        Raises:
            NotReadyError: An environment was not reset, or the limiter holds inserts back; none was stepped.
            ArgumentError: An extra is given that `infos` also provides; none was stepped. Or the environment does not
                behave as its metadata say, the infos lack a key, or a frame stack does not continue the previous one;
                the steps are not stored, and `reset` must follow.
            SchemaError: An action or an extra does not fit its field; none was stepped. Or a returned value does not
                fit; the steps are not stored, and `reset` must follow.
        """
        is_step = self._checked_running()
        taken, extras = self._target.given(actions, extras)
        self._is_running = None
        answer = self.env.step(actions)
        observations, *numbers, infos = answer
        rewards, terminated, truncated = map(np.asarray, numbers)
        has_ended = np.logical_or(terminated, truncated)
        autoreset.check(self._mode, is_step, has_ended, infos)
        following = tree = recording.kept(self.env.single_observation_space, observations)
        # Ended episodes were reset by SAME_STEP, are reset by NEXT_STEP in the next step, or wait for `reset`.
        is_first, goes_on = ~is_step, ~has_ended
        if self._mode is autoreset.SAME_STEP:
            is_first, goes_on = has_ended, is_step
            following = self._with_last(tree, has_ended, infos)
        self._frames.check_next(self._observations, following, 1, where=is_step)
        self._frames.check_first(trees.rows(tree, is_first), 1)
        if is_step.any():
            rows = is_step.nonzero()[0]
            found = {
                extra: autoreset.info_column(infos, extra, key, rows, is_first)
                for extra, key in self._target.infos.items()
            }
            at: Any = slice(None) if is_step.all() else rows  # A slice copies nothing.
            observations, following = (self._frames.newest(each, 1) for each in (self._observations, following))
            self._target.write(
                self.buffer.extend,
                trees.rows(observations, at),
                trees.rows(taken, at),
                rewards[at],
                trees.rows(following, at),
                terminated=terminated[at],
                truncated=truncated[at],
                streams=None if is_step.all() else rows,
                **trees.rows(extras, at),
                **found,
            )
        self._observations, self._is_running = tree, goes_on
        return answer

    def _checked_running(self) -> arrays.Bools:
        """Return where an episode is open [S]; raise NotReadyError unless every environment may be stepped."""
        is_running = self._is_running
        if is_running is None:
            raise errors.NotReadyError("step needs episodes that are running: call reset first")
        if self._mode is autoreset.DISABLED and not is_running.all():
            waiting = (~is_running).nonzero()[0].tolist()
            raise errors.NotReadyError(
                f"step needs episodes that are running: call reset(options={{'reset_mask': ...}}) of {waiting} first"
            )
        return is_running

    def _with_last(self, tree: Any, has_ended: arrays.Bools, infos: Mapping[str, Any]) -> Any:
        """Return observations [S, ...] with final observations where an episode has ended and was reset."""
        if not has_ended.any():
            return tree
        following, space = copies.copied(tree), self.env.single_observation_space
        for row in has_ended.nonzero()[0].tolist():
            last = spaces.tree_of(space, autoreset.final_observation(infos, row))
            trees.put(following, row, recording.kept(space, last))
        return following
