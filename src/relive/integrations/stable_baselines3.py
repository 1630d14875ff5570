"""Stable-Baselines3: replay buffer classes that let its off-policy algorithms train from a RingReplayBuffer.

model = DQN("MlpPolicy", env, replay_buffer_class=ReplayBuffer, replay_buffer_kwargs={"n_steps": 3, "gamma": 0.99})
model.learn(10_000)
batch = model.replay_buffer.buffer.sample(32)

ReplayBuffer       replaces their ReplayBuffer, DictReplayBuffer and NStepReplayBuffer
HerReplayBuffer    replaces theirs: goals are relabelled when drawn

It converts obs, done and infos["TimeLimit.truncated"] to steps, and batches to ReplayBufferSamples; everything else is
done by RingReplayBuffer.
"""

from collections.abc import Callable, Mapping
import copy
from typing import Any, NoReturn, TypeAlias

import numpy as np

from relive import errors
from relive.buffers import hindsight
from relive.buffers import ring
from relive.common import arrays as arrays_lib
from relive.common import copies
from relive.common import duplicates
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.integrations.gymnasium import recording
from relive.schema import schema as schema_lib
from relive.windows import batches
from relive.windows import returns
from relive.windows import transitions

with imports.optional_dependency("sb3"):
    from gymnasium import spaces
    from stable_baselines3 import her
    from stable_baselines3.common import buffers
    from stable_baselines3.common import type_aliases
    from stable_baselines3.common import vec_env
    from stable_baselines3.her import goal_selection_strategy as strategies
    import torch

Space: TypeAlias = "spaces.Space[Any]"


_INFOS = "infos"
"""The extra that holds what is kept of infos."""


class ReplayBuffer(duplicates.CopiedWhole, buffers.ReplayBuffer):
    """A `replay_buffer_class` for the algorithms of Stable-Baselines3; the steps are in `buffer`.

    The algorithm passes the first six arguments; pass the others in `replay_buffer_kwargs`. As in its own buffers,
    draws are uniform, float rewards and actions are float32, and only termination, not truncation, is a "done". Each
    environment has a stream of the buffer.

    Args:
        buffer_size: Maximum number of stored steps, over all environments; the oldest are evicted first.
        optimize_memory_usage: No effect: each observation is stored once in any case.
        handle_timeout_termination: Whether ends with "TimeLimit.truncated" are truncations; if not, all ends are
            terminations.
        n_steps: Maximum number of steps in a transition; fewer at the end of an episode.
        gamma: The discount factor of the algorithm; required with `n_steps` above 1.
        frame_stack: Number of frames stacked along the first axis of an observation, such as by VecFrameStack. One
            frame per step is stored, and they are stacked again when drawn.
        stack_padding: Padding before the first frame of an episode: "zeros", or repetitions of the "first" frame.
        seed: Seed or generator for sampling. None derives one from the generator of the action space, which algorithms
            seed with their own `seed` and which is not advanced.

    Raises:
        ArgumentError: A setting is invalid.

    >>> from relive.integrations import stable_baselines3 as relive_sb3
    >>> import stable_baselines3
    >>> model = stable_baselines3.DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=relive_sb3.ReplayBuffer, seed=0)
    >>> model.learn(60).replay_buffer.buffer
    <RingReplayBuffer of 60 steps, capacity=1000000, streams=1, gamma=1.0>
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Space,
        action_space: Space,
        device: "torch.device | str" = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        *,
        n_steps: int = 1,
        gamma: float | None = None,
        frame_stack: int = 1,
        stack_padding: transitions.StackPadding = "zeros",
        seed: int | np.random.Generator | None = None,
    ) -> None:
        buffer_size = validation.positive_int("buffer_size", buffer_size)
        if buffer_size < n_envs:
            raise errors.ArgumentError(f"buffer_size must be at least n_envs = {n_envs}, got {buffer_size}")
        validation.boolean("optimize_memory_usage", optimize_memory_usage)
        self.handle_timeout_termination = validation.boolean("handle_timeout_termination", handle_timeout_termination)
        n_steps = validation.positive_int("n_steps", n_steps)
        if gamma is None and n_steps > 1:
            raise errors.ArgumentError(f"gamma must be given with n_steps = {n_steps}, and be that of the algorithm")
        frame_stack = validation.positive_int("frame_stack", frame_stack)
        # The constructor of the base class: that of ReplayBuffer would allocate arrays.
        super(buffers.ReplayBuffer, self).__init__(buffer_size, observation_space, action_space, device, n_envs)
        self.n_steps = n_steps
        self.gamma = gamma
        self._frame_stack = frame_stack
        # The last next observations, as whole stacks, to see whether an episode continues.
        self._reached: Any = None
        dtype: Any = self._maybe_cast_dtype(action_space.dtype)
        self._action, reward = schema_lib.Field(self.action_dim, dtype), schema_lib.Field((), np.float32)
        self._buffer = ring.RingReplayBuffer(
            buffer_size,
            schema_lib.Schema(
                self._fields(observation_space, self.obs_shape), self._action, reward=reward, extras=self._extras
            ),
            n_step=n_steps,
            gamma=1.0 if gamma is None else gamma,
            frame_stack=frame_stack,
            stack_padding=stack_padding,
            streams=n_envs,
            # From a copy of the generator, which is not advanced.
            seed=int(copy.deepcopy(action_space.np_random).integers(2**63)) if seed is None else seed,
        )
        self._frames = recording.Frames(self._buffer, frame_stack, 1)

    @property
    def _extras(self) -> dict[str, Any]:
        """The extras of the schema."""
        return {}

    @property
    def buffer(self) -> ring.RingReplayBuffer:
        """The underlying buffer; it may be replaced by another with the same settings, such as a loaded one."""
        return self._buffer

    @buffer.setter
    def buffer(self, buffer: ring.RingReplayBuffer) -> None:
        validation.require_instance("buffer", buffer, ring.RingReplayBuffer)
        for name in ("capacity", "streams", "schema", "window"):
            own, other = getattr(self._buffer, name), getattr(buffer, name)
            if own != other:
                raise errors.ArgumentError(f"buffer must have {name} = {own}, got {other}")
        self._buffer, self._reached = buffer, None

    def size(self) -> int:
        """Return the number of stored steps, over all environments."""
        return len(self.buffer)

    def reset(self) -> None:
        """Remove every step."""
        self.buffer.clear()

    def _pos(self) -> int:
        return self.buffer._store.next_key % self.buffer_size if self.full else self.size()

    def _not_kept(self) -> NoReturn:
        raise AttributeError("arrays of steps are not kept here: call self.buffer.read(self.buffer.eligible_keys())")

    # The base class sets both, to their current values.
    full = property(lambda self: self.buffer.is_full, lambda self, _: None, doc="Whether the next step evicts another.")
    pos = property(_pos, lambda self, _: None, doc="Where the next step goes: `size()` until it is full.")
    # The base declares arrays.
    observations: Any = property(_not_kept)
    next_observations: Any = property(_not_kept)
    actions: Any = property(_not_kept)
    rewards: Any = property(_not_kept)
    timeouts: Any = property(_not_kept)
    # A second `learn` with optimize_memory_usage=True writes an end here, which the next step shows anyway.
    dones: Any = property(lambda self: {})

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: list[dict[str, Any]]) -> None:
        """Add one step of every environment, as the algorithm passes it: `next_obs` is a final observation at an end.

        An episode continues if the step begins with the last next observation; if not, as after a reset in mid-episode,
        the open episode is truncated.

        Raises:
            SchemaError: An observation does not fit its space, or a reward is too large for a float32.
            ArgumentError: A frame stack does not continue the previous one.
        """
        if not len(reward) == len(done) == len(infos) == self.n_envs:
            rule = f"reward, done and infos must be of {self.n_envs} environments"
            raise errors.SchemaError(f"{rule}, got {len(reward)}, {len(done)} and {len(infos)}")
        observation, following = _each(self._rows, self.obs_shape, obs), _each(self._rows, self.obs_shape, next_obs)
        action = action.reshape(self.n_envs, self.action_dim).astype(self._action.dtype, copy=False)
        step = observation, action, reward, following
        kept = self._kept(infos)
        limits = [self.handle_timeout_termination and bool(info.get("TimeLimit.truncated")) for info in infos]
        if self._frame_stack > 1:
            step = self._frames.newest(observation), action, reward, self._frames.newest(following)
            cut = self._cut_streams(observation, following, np.asarray(done, np.bool_))
            encoder: Any = self._buffer._store.encoder
            if cut:  # A refused step must not end an episode.
                encoder.rows(self.n_envs, *step, {})
            for stream in cut:
                self._buffer.end_episode(stream=stream)
        if self.n_envs == 1 and not kept:  # `add` does the same as `extend`, and is faster.
            self._buffer.add(*map(_first, step), terminated=bool(done[0]) and not limits[0], truncated=limits[0])
        else:
            truncated = np.array(limits) if True in limits else None
            self._buffer.extend(*step, terminated=np.greater(done, limits), truncated=truncated, **kept)
        if self._frame_stack > 1:
            self._reached = copies.copied(following)

    def _kept(self, infos: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the extras of a step of every environment."""
        return {}

    def sample(self, batch_size: int, env: "vec_env.VecNormalize | None" = None) -> Any:
        """Return exactly batch_size transitions as their ReplayBufferSamples, or DictReplayBufferSamples.

        Rewards, dones and discounts are float32 [B, 1]. A `done` is a termination; the discounts are gamma to the power
        of the steps in each transition, or None if no gamma was given, for that of the algorithm. `env` normalizes
        observations and rewards with its current statistics.

        Raises:
            NotReadyError: Nothing is stored.
            ArgumentError: `batch_size` is not an integer of at least 1.
        """
        return self._samples(self.buffer.sample(batch_size), env)

    def _get_samples(self, batch_inds: Any, env: "vec_env.VecNormalize | None" = None) -> Any:
        """Return the transitions from the steps with those keys [B]; otherwise like `sample`."""
        return self._samples(self.buffer.read(batch_inds), env)

    def _samples(self, batch: batches.TransitionBatch, env: "vec_env.VecNormalize | None") -> Any:
        # `torch.from_numpy` does what their `to_torch` does, in a third of the time.
        as_tensor: Callable[[arrays_lib.Array], Any] = torch.from_numpy if self.device.type == "cpu" else self._moved
        observation, following, discounts = batch.observation, batch.next_observation, None
        if env is not None or self._frame_stack > 1:
            observation, following = self._as_given(observation, env), self._as_given(following, env)
        kind: Any = type_aliases.ReplayBufferSamples
        if isinstance(observation, dict):
            kind = type_aliases.DictReplayBufferSamples
        if self.gamma is not None:
            powers = returns.powers(self.gamma, self.n_steps, batch.reward.dtype)
            discounts = as_tensor(powers.take(batch.steps).reshape(-1, 1))
        return kind(
            _each(as_tensor, observation),
            as_tensor(batch.action),
            _each(as_tensor, following),
            as_tensor(batch.is_terminal.astype(np.float32).reshape(-1, 1)),
            as_tensor(self._rewards(batch, env).reshape(-1, 1)),
            discounts,
        )

    def _as_given(self, tree: Any, env: "vec_env.VecNormalize | None") -> Any:
        """Return observations as the algorithm expects them: stacked as they were given, and normalized."""
        tree = _each(lambda shape, array: array.reshape(len(array), *shape), self.obs_shape, tree)
        return self._normalize_obs(tree, env)

    def _moved(self, array: arrays_lib.Array) -> "torch.Tensor":
        return torch.from_numpy(array).to(self.device)

    def _rewards(self, batch: batches.TransitionBatch, env: "vec_env.VecNormalize | None") -> arrays_lib.Array:
        """Return the sums of normalized rewards [B]."""
        if env is None:
            return batch.reward
        history = self.buffer._store
        rows = history.follow(history.slots(batch.keys), self.n_steps).slots
        rewards = env.normalize_reward(history.storage.read(rows, ["reward"])["reward"])
        return returns.discounted_sums(rewards, batch.steps, self.buffer._window_for(None, None).gamma)

    def _fields(self, space: Any, shape: Any) -> Any:
        """Return the field or tree of fields of an observation, or of one frame of it."""
        if isinstance(space, spaces.Dict):
            return {key: self._fields(part, shape[key]) for key, part in space.spaces.items()}
        if self._frame_stack > 1:
            if not shape or shape[0] % self._frame_stack:
                rule = f"observation_space must stack {self._frame_stack} frames along its first axis"
                raise errors.ArgumentError(f"{rule}, got shape {shape}")
            shape = (shape[0] // self._frame_stack, *shape[1:])
        return schema_lib.Field(shape, space.dtype)

    def _rows(self, shape: tuple[int, ...], array: Any) -> Any:
        """Return an observation [n_envs, ...] for the buffer, with the frames of a stack on a separate axis."""
        array = np.asarray(array)
        if array.shape[:1] != (self.n_envs,):
            raise errors.SchemaError(f"observation must be of {self.n_envs} environments, got shape {array.shape}")
        if shape == (1,) and array.ndim == 1:  # A Discrete space.
            return array[:, np.newaxis]
        if self._frame_stack > 1 and array.shape[1:] == shape:
            return array.reshape(self.n_envs, self._frame_stack, -1, *shape[1:])
        return array

    def _cut_streams(self, observation: Any, following: Any, has_ended: arrays_lib.Bools) -> list[int]:
        """Return the streams whose open episodes do not continue; raise ArgumentError for inconsistent stacks."""
        is_open = self._buffer._store.is_open(np.arange(self.n_envs))
        # For a replaced buffer the last next observations are unknown.
        goes_on = is_open & (self._reached is not None and _are_same(observation, self._reached))
        self._frames.check_next(observation, following, ~has_ended)
        self._frames.check_first(observation, ~goes_on)
        streams: list[int] = (is_open & ~goes_on).nonzero()[0].tolist()
        return streams


class HerReplayBuffer(ReplayBuffer, her.HerReplayBuffer):
    """A replacement of their HerReplayBuffer: part of each batch is relabelled with goals achieved later.

    Rewards for those goals come from `compute_reward` of the first environment; `done` is unchanged. Unlike theirs, it
    also draws from open episodes and from those whose beginning was evicted. Other arguments are those of ReplayBuffer.

    Args:
        observation_space: A Dict with the keys "achieved_goal" and "desired_goal".
        env: The environment that computes rewards; None until `set_env`. Not copied or pickled.
        n_sampled_goal: Number of relabelled transitions for each one with its original goal.
        goal_selection_strategy: Where the new goal is taken from: after the step ("future"), the end of the episode
            ("final"), or anywhere in it ("episode"); a string or a GoalSelectionStrategy.
        copy_info_dict: Must be False unless `infos` says what is stored.
        infos: What `compute_reward` gets as the infos of a step: keys of the infos, each with its Field or tree of
            Fields; only these are stored. None for empty infos.

    Raises:
        ArgumentError: A setting is invalid.
    """

    def __init__(
        self,
        buffer_size: int,
        observation_space: Space,
        action_space: Space,
        env: "vec_env.VecEnv | None",
        device: "torch.device | str" = "auto",
        n_envs: int = 1,
        optimize_memory_usage: bool = False,
        handle_timeout_termination: bool = True,
        n_sampled_goal: int = 4,
        goal_selection_strategy: "strategies.GoalSelectionStrategy | str" = "future",
        copy_info_dict: bool = False,
        *,
        infos: Mapping[str, Any] | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> None:
        n_sampled_goal = validation.non_negative_int("n_sampled_goal", n_sampled_goal)
        self._strategy: Any = str(getattr(goal_selection_strategy, "name", goal_selection_strategy)).lower()
        validation.require_choice("goal_selection_strategy", self._strategy, tuple(strategies.KEY_TO_GOAL_STRATEGY))
        if validation.boolean("copy_info_dict", copy_info_dict) and not infos:
            rule = "copy_info_dict must be False without infos={key: Field}, which says what is stored of them"
            raise errors.ArgumentError(f"{rule}, got True")
        self._info_fields = {} if infos is None else infos
        for key in ("achieved_goal", "desired_goal"):
            if not isinstance(observation_space, spaces.Dict) or key not in observation_space.spaces:
                raise errors.ArgumentError(f"observation_space must be a Dict with {key!r}, got {observation_space}")
        sizes = buffer_size, observation_space, action_space, device, n_envs
        super().__init__(*sizes, optimize_memory_usage, handle_timeout_termination, seed=seed)
        self.env: Any = env
        self._share = 1 - 1 / (n_sampled_goal + 1)

    def sample(self, batch_size: int, env: "vec_env.VecNormalize | None" = None) -> Any:
        """Return exactly batch_size transitions as their DictReplayBufferSamples; see ReplayBuffer.

        Raises:
            NotReadyError: Nothing is stored, or there is no environment.
            ArgumentError: `batch_size` is not an integer of at least 1.
        """
        if self.env is None:
            raise errors.NotReadyError("sample has no environment to compute rewards: call set_env first")
        batch = self.buffer.sample(batch_size)
        share = int(self._share * batch_size) / batch_size
        settings: Any = {"strategy": self._strategy, "share": share, "open_episodes": True}
        settings["fields"] = [f"extras/{name}" for name in self._extras]
        relabelled = hindsight.relabel(self.buffer, batch, compute=self._judged, **settings)
        relabelled.is_terminal = batch.is_terminal
        return self._samples(relabelled, env)

    def truncate_last_trajectory(self) -> None:
        """Truncate all open episodes, as load_replay_buffer does by default."""
        for stream in range(self.n_envs):
            self.buffer.end_episode(stream=stream)

    @property
    def _extras(self) -> dict[str, Any]:
        return {_INFOS: self._info_fields} if self._info_fields else {}

    def _kept(self, infos: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the parts of infos that are stored."""
        return {
            name: {
                key: recording.info_column(key, [recording.found(info, name, key) for info in infos]) for key in fields
            }
            for name, fields in self._extras.items()
        }

    def _judged(
        self, achieved: arrays_lib.Array, goals: arrays_lib.Array, kept: Any
    ) -> tuple[arrays_lib.Array, arrays_lib.Bools]:
        """Return the rewards [k] of steps for other goals, with no terminations."""
        count = len(goals)
        infos: list[dict[str, Any]] = [{} for _ in range(count)]
        for key, column in kept.get(f"extras/{_INFOS}", {}).items():
            for row, info in enumerate(infos):
                info[key] = trees.rows(column, row)
        rewards = self.env.env_method("compute_reward", achieved, goals, infos, indices=[0])[0]
        return np.reshape(rewards, -1), np.zeros(count, np.bool_)

    def _rewards(self, batch: batches.TransitionBatch, env: "vec_env.VecNormalize | None") -> arrays_lib.Array:
        return np.asarray(self._normalize_reward(batch.reward, env))


def _each(answer: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to each array of an observation, and what other trees have in its place."""
    if isinstance(tree, dict):
        return {key: answer(part, *(other[key] for other in others)) for key, part in tree.items()}
    return answer(tree, *others)


def _first(tree: Any) -> Any:
    """Return the first row of each array of an observation."""
    return {key: rows[0] for key, rows in tree.items()} if isinstance(tree, dict) else tree[0]


def _are_same(these: Any, those: Any) -> arrays_lib.Bools:
    """Return whether two trees hold the same bytes in each row [k]."""
    pairs = zip(trees.flat("", these).values(), trees.flat("", those).values(), strict=True)
    same = [[this.tobytes() == that.tobytes() for this, that in zip(*pair, strict=True)] for pair in pairs]
    return np.asarray(np.all(same, axis=0))
