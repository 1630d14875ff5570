"""Recorder and EpisodeRecorder: record the steps of one environment into a stream of a buffer, or as episodes.

                                 Recorder             EpisodeRecorder
o0, info = env.reset()           nothing is stored    start_episode_nowait
o1, r0, ... = env.step(a0)       o0, a0, r0, o1       append_observation_action_reward_nowait(o0, a0, r0)
o2, r1, True, ... = env.step(a1) o1, a1, r1, o2       the same of o1, a1, r1; end_episode_nowait(o2)
"""

from collections.abc import Mapping
import contextlib
import functools
import operator
from typing import Any

from relive import errors
from relive.common import copies
from relive.common import imports
from relive.common import validation
from relive.episodes import buffer as episode_buffer
from relive.episodes import episode as episode_lib
from relive.integrations.gymnasium import recording
from relive.schema import encoding

with imports.optional_dependency("gymnasium"):
    import gymnasium


class _Wrapper(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A recorder of one environment. An environment recreated from its spec is not recorded."""

    spec: Any = property(operator.attrgetter("env.spec"), doc="The spec of the wrapped environment.")

    def __init__(self, env: "gymnasium.Env[Any, Any]") -> None:
        recording.require_env(env, gymnasium.Env)
        super().__init__(env)


class Recorder(_Wrapper):
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
        spaces = env.observation_space, env.action_space
        self._recording = recording.Recording(buffer, *spaces, (), frame_stack, infos)
        self.buffer = buffer
        self._stream = encoding.stream_number(self._recording.streams, stream)
        # None if `reset` must come next.
        self._observation: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; an episode still open in the stream ends as truncated."""
        self._observation = None
        observation, info = self.env.reset(seed=seed, options=options)
        first = self._recording.observed(observation)
        self._recording.frames.check_first(first)
        self.buffer.end_episode(stream=self._stream)
        self._observation = first
        self._takes_tensors = recording.holds_tensor(observation)
        return observation, info

    def step(self, action: Any, **extras: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment, and store the step.

        What is given is checked before the environment is stepped; after any later error, `reset` must follow.

        Args:
            action: The action.
            extras: The other fields of the schema, such as the log-probability of the action.

        Raises:
            NotReadyError: No episode is open, or the limiter holds inserts back.
            ArgumentError: An extra is given that `infos` also provides; or the info lacks a key, or a frame stack does
                not continue the previous one.
            SchemaError: A value does not fit its field, or an action of a Discrete space is a tensor or a float.
        """
        before = self._observation
        if before is None:
            raise _needs_reset()
        taken, extras = self._recording.given(action, extras)
        recording.check_discrete(self.env.action_space, action, takes_tensors=self._takes_tensors)
        self._observation = None
        answer = self.env.step(action)
        observation, reward, terminated, truncated, info = answer
        has_ended = terminated or truncated
        after = self._recording.observed(recording.last_of(observation, info) if has_ended else observation)
        self._recording.frames.check_next(before, after)
        for extra, key in self._recording.infos.items():
            extras[extra] = recording.found(info, extra, key)
        ends = {"terminated": bool(terminated), "truncated": bool(truncated)}
        self._recording.write(self.buffer.add, before, taken, reward, after, stream=self._stream, **ends, **extras)
        if not has_ended:
            self._observation = after
        return answer


class EpisodeRecorder(_Wrapper):
    """A wrapper that records the episodes of one environment into an EpisodeReplayBuffer.

    Observations and actions may be of any space, including Text, Sequence, Graph and OneOf, and are copied as the
    buffer copies them. An episode ends as COMPLETED if the environment terminates it, as TRUNCATED if the environment
    truncates it or `reset` or `close` is called before its end, and as ABORTED if `step` raises; always with the last
    observation.

    Args:
        env: The environment.
        buffer: The buffer to record into. If its limiter holds inserts back, `step` raises before the environment is
            stepped; likewise `reset` if its admission holds starts back.
        agent_id: The agent of the episodes.

    Raises:
        ArgumentTypeError: An argument has the wrong type.

    >>> import gymnasium
    >>> import relive
    >>> from relive.integrations import gymnasium as relive_gymnasium
    >>> buffer = relive.EpisodeReplayBuffer(max_transitions=1_000, seed=0)
    >>> env = relive_gymnasium.EpisodeRecorder(gymnasium.make("CartPole-v1"), buffer, agent_id="cart")
    >>> observation, info = env.reset(seed=0)
    >>> ended = False
    >>> while not ended:
    ...     observation, reward, terminated, truncated, info = env.step(0)
    ...     ended = terminated or truncated
    >>> buffer.get_stats().completed
    1
    """

    def __init__(
        self, env: "gymnasium.Env[Any, Any]", buffer: episode_buffer.EpisodeReplayBuffer[Any, Any], *, agent_id: str
    ) -> None:
        super().__init__(env)
        validation.require_instance("buffer", buffer, episode_buffer.EpisodeReplayBuffer)
        self.buffer = buffer
        self._agent_id = validation.string("agent_id", agent_id)
        self._episode_id = ""
        self._observation: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment and start an episode; one still open ends as truncated.

        Raises:
            NotReadyError: The admission holds starts back; nothing was reset.
            ClosedError: The buffer is closed; nothing was reset.
        """
        with self.buffer.admit_nowait() as ticket:
            self._end("TRUNCATED")
            observation, info = self.env.reset(seed=seed, options=options)
            self._observation = copies.copied(observation)
            self._episode_id = self.buffer.start_episode_nowait(self._agent_id, ticket=ticket)
        return observation, info

    def step(self, action: Any, *, policy_version: int | None = None) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment and append the step. On failure the episode is ABORTED, and `reset` must follow.

        Args:
            action: The action.
            policy_version: The policy version that chose the action; None for that of the previous step.

        Raises:
            NotReadyError: No episode is open, or the limiter holds inserts back; the environment was not stepped.
            ArgumentError: policy_version is not an integer of at least that of the previous step; the environment was
                not stepped. Or the reward is not a finite number.
            ClosedError: The buffer is closed; the environment was not stepped.
        """
        if not self._is_running:
            raise _needs_reset()
        episode_lib.check_next_step(self.buffer._store[self._episode_id], policy_version)
        if not self.buffer._gate.can_insert():
            raise recording.held_back(self.buffer.limiter)
        # The environment may modify its argument, and the array that it returned before.
        step = self._episode_id, self._observation, copies.copied(action)
        append: Any = functools.partial(self.buffer.append_observation_action_reward_nowait, *step)
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
            has_ended = terminated or truncated
            following = copies.copied(recording.last_of(observation, info) if has_ended else observation)
            # The limiter has been asked before the environment was stepped.
            self.buffer._limited.decided(True, lambda: append(reward, policy_version=policy_version))
        except BaseException:
            # The first exception propagates, even if a journal cannot be written.
            with contextlib.suppress(errors.CheckpointError):
                self._end("ABORTED")
            raise
        self._observation = following
        if has_ended:
            self._end("COMPLETED" if terminated else "TRUNCATED")
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """End an open episode as truncated, or as aborted in a closed buffer, and close the environment."""
        try:
            self._end("TRUNCATED")
        finally:
            super().close()

    @property
    def _is_running(self) -> bool:
        """Whether the recorder's episode is open; it may have been cleared, or aborted by a supervisor."""
        return self._episode_id in self.buffer._store.open

    def _end(self, status: episode_lib.FinalStatus) -> None:
        """End the episode, if it is open, with the last observation."""
        if self._is_running:
            try:
                self.buffer.end_episode_nowait(self._episode_id, self._observation, status)
            except errors.ReplayError as error:
                # The buffer is closed, or its journal cannot be written: it cannot be ended later.
                self.buffer._give_up(self._episode_id, error)
                if not isinstance(error, errors.ClosedError):
                    raise


def _needs_reset() -> errors.NotReadyError:
    return errors.NotReadyError("step needs an episode that is running: call reset first")
