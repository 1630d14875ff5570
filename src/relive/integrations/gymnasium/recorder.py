"""Recorder: records the steps of one environment into a stream of a buffer.

o0, info = env.reset()                     nothing is stored
o1, r0, ... = env.step(a0)                 o0, a0, r0, o1
o2, r1, ... = env.step(a1)                 o1, a1, r1, o2
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from relive import errors
from relive.common import validation
from relive.integrations.gymnasium import recording

if TYPE_CHECKING:
    import gymnasium


class Recorder(recording.Wrapper):
    """A wrapper that records the steps of one environment into a stream of a buffer.

    The return values of the environment are passed on unchanged. If `reset` is called before an episode has ended, the
    episode is truncated in the buffer at the last observation.

    Args:
        env: The environment.
        buffer: The buffer to record into. If its limiter holds inserts back, `step` raises before the environment is
            stepped; a ThreadSafeReplayBuffer waits.
        stream: The stream of the buffer for this environment.
        frame_stack: Number of frames that the environment stacks along the first axis of an observation. Only the
            newest is stored; the buffer's `frame_stack` must be the same.
        infos: Maps names of extras to the keys of the info that are stored in them.

    Raises:
        ArgumentError: An argument is invalid.

    >>> import gymnasium
    >>> import relive
    >>> from relive.integrations import gymnasium as relive_gymnasium
    >>> env = gymnasium.make("CartPole-v1")
    >>> buffer = relive.RingReplayBuffer(1_000, relive_gymnasium.from_env(env), seed=0)
    >>> env = relive_gymnasium.Recorder(env, buffer)
    >>> observation, info = env.reset(seed=0)
    >>> ended = False
    >>> while not ended:
    ...     observation, reward, terminated, truncated, info = env.step(0)
    ...     ended = terminated or truncated
    >>> buffer.get_stats().terminated_episodes
    1
    """

    def __init__(
        self,
        env: "gymnasium.Env[Any, Any]",
        buffer: recording.Buffer,
        *,
        stream: int = 0,
        frame_stack: int = 1,
        infos: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(env)
        self._target = recording.Target(buffer, env.action_space, infos, ())
        self.buffer = buffer
        self._stream = validation.non_negative_int("stream", stream)
        if self._stream >= self._target.streams:
            raise errors.ArgumentError(
                f"stream must be below {self._target.streams}, the streams of the buffer, got {stream}"
            )
        self._frames = recording.Frames(buffer, frame_stack)
        recording.check_spaces(buffer, env.observation_space, env.action_space, frame_stack)
        self._observation: Any = None
        self._is_running = self._takes_tensors = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; an episode still open in the stream ends as truncated."""
        self._is_running = False
        observation, info = self.env.reset(seed=seed, options=options)
        tree = recording.kept(self.env.observation_space, observation)
        self._frames.check_first(tree)
        self.buffer.end_episode(stream=self._stream)
        self._observation, self._is_running = tree, True
        self._takes_tensors = recording.holds_tensor(observation)
        return observation, info

    def step(self, action: Any, **extras: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and store the step.

        Args:
            action: The action.
            extras: The other fields of the schema, such as the log-probability of the action.

        Raises:
            NotReadyError: No episode is open, or the limiter holds inserts back; the environment was not stepped.
            ArgumentError: An extra is given that `infos` also provides; the environment was not stepped. Or the info
                lacks a key, or a frame stack does not continue the previous one; the step is not stored, and `reset`
                must follow.
            SchemaError: The action or an extra does not fit its field, or an action of a Discrete space is a tensor or
                a float; the environment was not stepped. Or a returned value does not fit; the step is not stored, and
                `reset` must follow.
        """
        if not self._is_running:
            raise recording.needs_reset()
        taken, extras = self._target.given(action, extras)
        recording.check_discrete(self.env.action_space, action, takes_tensors=self._takes_tensors)
        self._is_running = False
        answer = self.env.step(action)
        observation, reward, terminated, truncated, info = answer
        tree = recording.kept(self.env.observation_space, observation)
        self._frames.check_next(self._observation, tree)
        found = {extra: recording.found(info, extra, key) for extra, key in self._target.infos.items()}
        self._target.write(
            self.buffer.add,
            self._frames.newest(self._observation),
            taken,
            reward,
            self._frames.newest(tree),
            terminated=bool(terminated),
            truncated=bool(truncated),
            stream=self._stream,
            **extras,
            **found,
        )
        self._observation = tree
        self._is_running = not (terminated or truncated)
        return answer
