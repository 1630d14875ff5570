"""Environments of Gymnasium: schemas from their spaces, and their steps in buffers as they are made.

    o0, info = env.reset()                     nothing is stored
    o1, r0, ... = env.step(a0)                 o0, a0, r0, o1
    o2, r1, ... = env.step(a1)                 o1, a1, r1, o2

Where an episode ends in one environment of a vector environment, what comes next is as its metadata say:

    NEXT_STEP    step t ends; step t + 1 resets it, ignores the action, and is no step: it is not stored
    SAME_STEP    step t ends and resets: it returns the first observation, and the last one as infos["final_obs"]
    DISABLED     step t ends; reset(options={"reset_mask": mask}) must come before step t + 1
"""

from collections.abc import Mapping
import operator
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import copies
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.integrations import autoreset
from relive.integrations import recorded_episodes
from relive.integrations import recording
from relive.integrations import reused_arrays
from relive.integrations import spaces
from relive.integrations import vector_infos
from relive.schema import schema as schema_lib

with imports.optional_dependency("gymnasium"):
    import gymnasium
    from gymnasium import vector

Environment: TypeAlias = "gymnasium.Env[Any, Any] | vector.VectorEnv[Any, Any, Any]"


def schema_from_spaces(
    observation_space: spaces.Space,
    action_space: spaces.Space,
    *,
    frame_stack: int = 1,
    reward_dtype: Any = "float64",
    extras: Mapping[str, Any] | None = None,
) -> schema_lib.Schema:
    """Return the schema that steps of these spaces fit: one field for each Box, Discrete, MultiDiscrete, MultiBinary.

    Args:
        observation_space: Of one environment.
        action_space: The same.
        frame_stack: How many frames an observation of the space stacks along its first axis; one of them is stored.
        reward_dtype: A float dtype; Gymnasium's rewards are float64.
        extras: A Field, a tree of Fields, or a space for each extra, by name.

    Raises:
        ArgumentError: A space is, or holds, one of another kind; or its frames are not as many as `frame_stack`.

    >>> import gymnasium
    >>> from relive.integrations import gymnasium as relive_gymnasium
    >>> box, discrete = gymnasium.spaces.Box(-1, 1, (4,)), gymnasium.spaces.Discrete(2)
    >>> relive_gymnasium.schema_from_spaces(box, discrete).fields["observation"]
    Field((4,), 'float32')
    """
    frame_stack = validation.positive_int("frame_stack", frame_stack)
    return schema_lib.Schema(
        spaces.one_frame(spaces.fields_of("observation_space", observation_space), frame_stack),
        spaces.fields_of("action_space", action_space),
        reward=schema_lib.Field((), reward_dtype),
        extras={name: spaces.fields_of_extra(name, extra) for name, extra in (extras or {}).items()},
    )


def from_env(
    env: Environment,
    *,
    frame_stack: int = 1,
    reward_dtype: Any = "float64",
    extras: Mapping[str, Any] | None = None,
) -> schema_lib.Schema:
    """Return the schema of the steps of an environment, or of each of the environments of a vector environment.

    Args:
        env: The environment.
        frame_stack: As in `schema_from_spaces`.
        reward_dtype: As in `schema_from_spaces`.
        extras: As in `schema_from_spaces`.

    Raises:
        ArgumentError: As `schema_from_spaces` has it.

    >>> import gymnasium
    >>> from relive.integrations import gymnasium as relive_gymnasium
    >>> relive_gymnasium.from_env(gymnasium.make("CartPole-v1")).action
    Field((), 'int64')
    """
    if isinstance(env, vector.VectorEnv):
        observation_space, action_space = env.single_observation_space, env.single_action_space
    elif isinstance(env, gymnasium.Env):
        observation_space, action_space = env.observation_space, env.action_space
    else:
        raise errors.ArgumentTypeError(f"env must be an environment of Gymnasium, got {validation.short_repr(env)}")
    return schema_from_spaces(
        observation_space, action_space, frame_stack=frame_stack, reward_dtype=reward_dtype, extras=extras
    )


class Recorder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Records what happens in one environment into one stream of a buffer; it is used as the environment is.

    What the environment returns is handed on as it is, and neither kept nor changed. An episode that `reset` ends
    before its time is TRUNCATED in the buffer, at the observation that was reached.

    Args:
        env: The environment.
        buffer: Where its steps go. If its limiter holds them back, `step` raises before the environment is stepped; a
            ThreadSafeReplayBuffer waits.
        stream: Which of the buffer's streams is this environment's.
        frame_stack: How many frames the environment stacks along the first axis of an observation; the newest alone is
            stored, and the buffer's own `frame_stack` must be the same.
        infos: Keys of the info that `step` returns, by the extra that each of them is stored as.
        on_episode: Called with a RecordedEpisode when an episode has ended.

    Raises:
        ArgumentError: An argument breaks its rule.

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

    # Whoever makes the environment anew from its spec does not want the recorder.
    spec: Any = property(operator.attrgetter("env.spec"))

    def __init__(
        self,
        env: "gymnasium.Env[Any, Any]",
        buffer: recording.Buffer,
        *,
        stream: int = 0,
        frame_stack: int = 1,
        infos: Mapping[str, str] | None = None,
        on_episode: recorded_episodes.Listener | None = None,
    ) -> None:
        validation.require_instance("env", env, gymnasium.Env)
        super().__init__(env)
        self._infos = recording.checked_infos(infos)
        self.buffer = recording.checked_buffer(buffer, self._infos)
        self._stream = validation.non_negative_int("stream", stream)
        if self._stream >= (streams := recording.num_streams(buffer)):
            raise errors.ArgumentError(f"stream must be below {streams}, the streams of the buffer, got {stream}")
        self._frames = recording.Frames(buffer, frame_stack)
        self._given = recording.StepValues(buffer, env.action_space, self._infos, ())
        self._totals = recorded_episodes.Totals(np.array([self._stream]), on_episode)
        self._observation: Any = None
        self._is_running = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Do what the environment does; an episode that is open in the stream ends as truncated."""
        self._is_running = False
        observation, info = self.env.reset(seed=seed, options=options)
        tree = recording.kept(self.env.observation_space, observation)
        self._frames.check_first(tree)
        if self.buffer.end_episode(stream=self._stream):
            self._totals.ended(np.array([True]), None)
        self._observation, self._is_running = tree, True
        return observation, info

    def step(self, action: Any, **extras: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Do what the environment does, and store the step.

        Args:
            action: For the environment.
            extras: The other fields of the schema, such as what the policy knows of the action.

        Raises:
            NotReadyError: No episode is running, or the limiter holds inserts back; the environment was not stepped.
            ArgumentError: An extra is given that `infos` names; the same. Or the info lacks a key, or a frame is not
                stacked on those before it; the step is not stored, and `reset` must follow.
            SchemaError: The action or an extra does not fit its field; the environment was not stepped. Or what it
                returns does not; the step is not stored, and `reset` must follow.
        """
        if not self._is_running:
            raise errors.NotReadyError("step needs an episode that is running: call reset first")
        recording.require_insert(self.buffer)
        taken, extras = self._given.taken(action, extras)
        self._is_running = False
        answer = self.env.step(action)
        observation, reward, terminated, truncated, info = answer
        tree = recording.kept(self.env.observation_space, observation)
        self._frames.check_next(self._observation, tree)
        found = {extra: recording.found(info, extra, key) for extra, key in self._infos.items()}
        self.buffer.add(
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
        self._totals.add(np.array([reward], np.float64), np.array([True]))
        self._totals.ended(np.array([not self._is_running]), np.array([bool(terminated)]))
        return answer


class VectorRecorder(vector.VectorWrapper):
    """Records what happens in the environments of a vector environment; it is used as the vector environment is.

    What it returns is handed on as it is, and neither kept nor changed. An episode that `reset` ends before its time is
    TRUNCATED in the buffer, at the observation that was reached.

    Args:
        env: The vector environment. Its metadata must say its autoreset mode, and it must do what they say.
        buffer: Where its steps go, with as many streams as there are environments. If its limiter holds them back,
            `step` raises before the environments are stepped; a ThreadSafeReplayBuffer waits.
        frame_stack: How many frames each environment stacks along the first axis of its observation; the newest alone
            is stored, and the buffer's own `frame_stack` must be the same.
        infos: Keys of the infos that `step` returns, by the extra that each of them is stored as.
        on_episode: Called with a RecordedEpisode when an episode has ended.

    Raises:
        ArgumentError: The metadata say no autoreset mode, or an argument breaks its rule.

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
        on_episode: recorded_episodes.Listener | None = None,
    ) -> None:
        validation.require_instance("env", env, vector.VectorEnv)
        super().__init__(env)
        self._infos = recording.checked_infos(infos)
        self.buffer = recording.checked_buffer(buffer, self._infos)
        if (streams := recording.num_streams(buffer)) != env.num_envs:
            raise errors.ArgumentError(
                f"buffer must have a stream for each of {env.num_envs} environments, got streams={streams}"
            )
        self._mode = autoreset.mode_of(env)
        self._shows_rewards = autoreset.shows_rewards(env)
        self._frames = recording.Frames(buffer, frame_stack)
        self._given = recording.StepValues(buffer, env.single_action_space, self._infos, (env.num_envs,))
        self._reused_arrays = reused_arrays.ReusedArrays()
        self._totals = recorded_episodes.Totals(np.arange(env.num_envs), on_episode)
        self._observations: Any = None
        # In which environments an episode is running, and whether all that was stepped is stored.
        self._is_running: arrays.Bools = np.zeros(env.num_envs, np.bool_)
        self._is_whole = False

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Do what the vector environment does; episodes that are open in what is reset end as truncated.

        Raises:
            ArgumentError: A mask of what to reset is given where environments reset themselves, or is none.
        """
        is_reset = autoreset.reset_mask(self._mode, self.env.num_envs, options)
        if not self._is_whole and not is_reset.all():
            raise errors.ArgumentError("reset_mask must be True for each environment, as none is running")
        # Its annotation knows of one seed alone; environments side by side take a list too.
        seeds: Any = seed
        self._is_whole = False
        observations, infos = self.env.reset(seed=seeds, options=options)
        tree = recording.kept(self.env.single_observation_space, observations)
        if self._observations is None:
            self._observations = tree
        rows = is_reset.nonzero()[0]
        first = trees.rows(tree, rows)
        self._frames.check_first(first, num_leading=1)
        is_open = np.zeros_like(is_reset)
        for stream in rows.tolist():
            is_open[stream] = self.buffer.end_episode(stream=stream)
        trees.put(self._observations, rows, first)
        self._is_running |= is_reset
        self._is_whole = True
        self._totals.ended(is_open, None)
        return observations, infos

    def step(self, actions: Any, **extras: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Do what the vector environment does, and store the steps.

        Args:
            actions: For the environments [S, ...].
            extras: The other fields of the schema [S, ...], such as what the policy knows of the actions.

        Raises:
            NotReadyError: An environment was not reset, or the limiter holds inserts back; none was stepped.
            ArgumentError: An extra is given that `infos` names; the same. Or the environment does not do what its
                metadata say, the infos lack a key, or a frame is not stacked on those before it; the steps are not
                stored, and `reset` must follow.
            SchemaError: An action or an extra does not fit its field; none was stepped. Or what they answer does not;
                the steps are not stored, and `reset` must follow.
        """
        self._require_running()
        recording.require_insert(self.buffer)
        taken, extras = self._given.taken(actions, extras)
        self._is_whole = False
        answer = self.env.step(actions)
        observations, *numbers, infos = answer
        rewards, terminated, truncated = map(np.asarray, numbers)
        is_step = self._is_running
        has_ended = np.logical_or(terminated, truncated)
        autoreset.check(self._mode, is_step, rewards if self._shows_rewards else None, has_ended, infos)
        tree = recording.kept(self.env.single_observation_space, observations)
        self._reused_arrays.check(tree)
        following, is_final = tree, np.zeros_like(has_ended)
        if self._mode is autoreset.SAME_STEP and has_ended.any():
            following, is_final = self._with_last(tree, has_ended, infos), has_ended
        self._check_frames(following, tree, is_step, has_ended)
        if is_step.any():
            for extra, key in self._infos.items():
                extras[extra] = vector_infos.column(infos, extra, key, is_step, is_final)
            self._store(is_step, taken, rewards, following, terminated, truncated, extras)
        self._observations = tree
        # Whoever has ended is reset now by NEXT_STEP, was reset by SAME_STEP, or waits for it.
        self._is_running = np.ones_like(is_step) if self._mode is autoreset.SAME_STEP else ~has_ended
        self._is_whole = True
        self._totals.add(np.asarray(rewards, np.float64), is_step)
        self._totals.ended(has_ended, terminated)
        return answer

    def _with_last(self, tree: Any, has_ended: arrays.Bools, infos: Mapping[str, Any]) -> Any:
        """Return observations [S, ...] with those that came last where an episode has ended, and a reset followed."""
        following = copies.copied(tree)
        for row in has_ended.nonzero()[0].tolist():
            last = spaces.tree_of(self.env.single_observation_space, vector_infos.final_observation(infos, row))
            self._reused_arrays.watch(row, last, trees.rows(tree, row))
            trees.put(following, row, recording.kept(self.env.single_observation_space, last))
        return following

    def _store(
        self,
        is_step: arrays.Bools,
        actions: Any,
        rewards: Any,
        following: Any,
        terminated: Any,
        truncated: Any,
        extras: dict[str, Any],
    ) -> None:
        """Add the steps to the buffer, of some streams or of all."""
        observations, following = self._frames.newest(self._observations, 1), self._frames.newest(following, 1)
        if is_step.all():
            self.buffer.extend(
                observations, actions, rewards, following, terminated=terminated, truncated=truncated, **extras
            )
        else:
            rows = is_step.nonzero()[0]
            parts = (observations, actions, rewards, following)
            self.buffer.extend(
                *(trees.rows(part, rows) for part in parts),
                terminated=terminated[rows],
                truncated=truncated[rows],
                streams=rows,
                **trees.rows(extras, rows),
            )

    def _require_running(self) -> None:
        """Raise NotReadyError unless every environment may be stepped."""
        if not self._is_whole:
            raise errors.NotReadyError("step needs episodes that are running: call reset first")
        waiting = (~self._is_running).nonzero()[0].tolist()
        if waiting and self._mode is autoreset.DISABLED:
            raise errors.NotReadyError(
                f"step needs episodes that are running: call reset(options={{'reset_mask': ...}}) of {waiting} first"
            )

    def _check_frames(self, following: Any, tree: Any, is_step: arrays.Bools, has_ended: arrays.Bools) -> None:
        """Raise ArgumentError where frames are not stacked on those before them, or on the padding."""
        self._frames.check_next(self._observations, following, 1, where=is_step)
        begins = has_ended if self._mode is autoreset.SAME_STEP else ~is_step
        self._frames.check_first(trees.rows(tree, begins.nonzero()[0]), 1)
