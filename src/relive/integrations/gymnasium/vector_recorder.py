"""VectorRecorder: records the steps of a vector environment, each environment into its own stream.

What follows the end of an episode depends on the autoreset mode that the vector environment declares:

    NEXT_STEP    step t ends; step t + 1 resets, ignores the action, and is not stored
    SAME_STEP    step t ends and resets: it returns the first observation, and the last one as infos["final_obs"]
    DISABLED     step t ends; reset(options={"reset_mask": mask}) must come before step t + 1

Infos hold arrays over environments, and masks of where each is set:

{"speed": [3.0, 0.0], "_speed": [True, False],       of environment 0 alone
 "final_obs": [None, o_T], "_final_obs": [False, True], "final_info": {"speed": [0.0, 2.0], "_speed": ...}}
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import copies
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.integrations.gymnasium import recording

with imports.optional_dependency("gymnasium"):
    import gymnasium
    from gymnasium import vector

Infos: TypeAlias = Mapping[str, Any]
_SAME_STEP, _DISABLED = vector.AutoresetMode.SAME_STEP, vector.AutoresetMode.DISABLED


class VectorRecorder(vector.VectorWrapper):
    """A wrapper that records the steps of a vector environment, each environment into its own stream.

    The return values of the environment are passed on unchanged. If `reset` is called before an episode has ended, the
    episode is truncated in the buffer at the last observation.

    Args:
        env: The vector environment. It must declare its autoreset mode, as the attribute `autoreset_mode` or in
            metadata of its own, and behave accordingly.
        buffer: The buffer to record into, with one stream per environment. If its limiter holds inserts back, `step`
            raises before the environments are stepped; a ThreadSafeReplayBuffer waits.
        frame_stack: Number of frames that each environment stacks along the first axis of its observation. Only the
            newest is stored; the buffer's `frame_stack` must be the same.
        infos: Maps names of extras to the keys of the infos that are stored in them.

    Raises:
        ArgumentError: The environment does not declare its autoreset mode, or has spaces that no field can hold while
            the buffer has no schema, or an argument is invalid.

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
        spaces = env.single_observation_space, env.single_action_space
        self._recording = recording.Recording(buffer, *spaces, (env.num_envs,), frame_stack, infos)
        if (streams := self._recording.streams) != env.num_envs:
            rule = f"buffer must have a stream for each of {env.num_envs} environments"
            raise errors.ArgumentError(f"{rule}, got streams={streams}")
        self.buffer = buffer
        self._mode = _declared_mode(env)
        self._observations: Any = None
        # Which environments have an open episode; None if all must be reset first.
        self._is_running: arrays_lib.Bools | None = None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset the vector environment; open episodes of the environments that are reset end as truncated.

        Raises:
            ArgumentError: A reset mask is given although the environments reset themselves, or it is invalid.
        """
        is_reset = self._reset_mask(options or {})
        was_running, self._is_running = self._is_running, None
        # Its annotation allows a single seed only; vector environments accept a list too.
        seeds: Any = seed
        # Gymnasium's environments take the mask out of their options, and wrappers around this one still need it.
        observations, infos = self.env.reset(seed=seeds, options=copies.copied(options))
        first = self._recording.observed(observations)
        self._recording.frames.check_first(first, is_reset)
        for stream in is_reset.nonzero()[0].tolist():
            self.buffer.end_episode(stream=stream)
        if was_running is None:
            self._observations, self._is_running = first, is_reset
        else:
            trees.put(self._observations, is_reset, trees.rows(first, is_reset))
            self._is_running = was_running | is_reset
        return observations, infos

    def step(self, actions: Any, **extras: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the vector environment, and store the steps.

        What is given is checked before an environment is stepped; after any later error, `reset` must follow.

        Args:
            actions: The actions [S, ...].
            extras: The other fields of the schema [S, ...], such as the log-probabilities of the actions.

        Raises:
            NotReadyError: An environment was not reset, or the limiter holds inserts back.
            ArgumentError: An extra is given that `infos` also provides; or the environment does not behave as it
                declares, the infos lack a key, or a frame stack does not continue the previous one.
            SchemaError: A value does not fit its field.
        """
        is_step = self._checked_running()
        taken, extras = self._recording.given(actions, extras)
        self._is_running = None
        answer = self.env.step(actions)
        observations, *numbers, infos = answer
        rewards, terminated, truncated = map(np.asarray, numbers)
        has_ended = np.logical_or(terminated, truncated)
        finals = self._checked_finals(is_step, has_ended, infos)
        shown = after = self._recording.observed(observations)
        # Ended episodes were reset by SAME_STEP, are reset by NEXT_STEP in the next step, or wait for `reset`.
        is_first, goes_on = ~is_step, ~has_ended
        if self._mode is _SAME_STEP:
            is_first, goes_on = has_ended, is_step
            after = copies.copied(shown) if finals else shown
            for row, final in finals.items():
                trees.put(after, row, self._recording.observed(final))
        self._recording.frames.check_next(self._observations, after, is_step)
        self._recording.frames.check_first(shown, is_first)
        step = self._observations, taken, rewards, after
        flags = {"terminated": terminated, "truncated": truncated}
        streams: arrays_lib.Ints | None = None
        (running,) = is_step.nonzero()
        if len(running) < len(is_step):
            streams = running
            step, flags, extras = (
                tuple(trees.rows(part, streams) for part in step),
                trees.rows(flags, streams),
                trees.rows(extras, streams),
            )
        if len(running):
            found = {
                extra: _info_column(infos, extra, key, running, is_first)
                for extra, key in self._recording.infos.items()
            }
            self._recording.write(self.buffer.extend, *step, **flags, streams=streams, **extras, **found)
        self._observations, self._is_running = shown, goes_on
        return answer

    def _reset_mask(self, options: Mapping[str, Any]) -> arrays_lib.Bools:
        """Return which environments are to be reset [S]."""
        count = self.env.num_envs
        if "reset_mask" not in options:
            return np.ones(count, np.bool_)
        mask = options["reset_mask"]
        if self._mode is not _DISABLED:
            raise errors.ArgumentError(f"reset_mask must not be given: env resets itself by {self._mode.name}")
        if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (count,)):
            rule = f"reset_mask must be an array of {count} bools"
            raise errors.ArgumentError(f"{rule}, got {validation.short_repr(mask)}")
        if self._is_running is None and not mask.all():
            raise errors.ArgumentError("reset_mask must be True for each environment, as none is running")
        return mask.copy()

    def _checked_running(self) -> arrays_lib.Bools:
        """Return where an episode is open [S], if every environment may be stepped."""
        if self._is_running is None:
            raise errors.NotReadyError("step needs episodes that are running: call reset first")
        if self._mode is _DISABLED and not arrays_lib.all_set(self._is_running):
            waiting = (~self._is_running).nonzero()[0].tolist()
            remedy = f"call reset(options={{'reset_mask': ...}}) of {waiting} first"
            raise errors.NotReadyError(f"step needs episodes that are running: {remedy}")
        return self._is_running

    def _checked_finals(self, is_step: arrays_lib.Bools, has_ended: arrays_lib.Bools, infos: Any) -> dict[int, Any]:
        """Return the last observations that the infos give, by environment.

        Raises:
            ArgumentError: Environments do not follow their autoreset mode, as far as an end shows it.
        """
        if not isinstance(infos, Mapping):
            remedy = "put the recorder inside the wrapper that changes it"
            raise errors.ArgumentError(f"infos must be a mapping, got {validation.short_repr(infos)}: {remedy}")
        has_finals, finals = self._mode is _SAME_STEP, dict[int, Any]()
        if not has_finals and recording.FINALS[0] not in infos and recording.FINALS[1] not in infos:
            has_ended = has_ended > is_step  # Nothing is wrong with the others.
        if not arrays_lib.any_set(has_ended):
            return finals
        rows: list[int] = has_ended.nonzero()[0].tolist()
        values = [_values(infos, name, rows) for name in recording.FINALS]
        for row, *of_row in zip(rows, *values, strict=True):
            info: dict[str, Any] = dict(zip(recording.FINALS, of_row, strict=True))
            name, final = recording.final_observation(info.get)
            if not is_step[row] or (final is not None) is not has_finals:
                gives = f"gives {'no' if final is None else 'a'} {name!r}"
                why = gives if is_step[row] else "goes on in the step after an end"
                raise errors.ArgumentError(f"env must reset by {self._mode.name}, but environment {row} {why}")
            finals[row] = final
        return finals


def _declared_mode(env: "vector.VectorEnv[Any, Any, Any]") -> vector.AutoresetMode:
    """Return the autoreset mode that a vector environment declares itself; raise ArgumentError if it declares none.

    The dicts of Gymnasium's own classes are those of every environment that has none of its own. Some write their mode
    into it, as ale-py does, which is then read from all others.
    """
    mode: Any = getattr(env.unwrapped, "autoreset_mode", None)
    if mode is None and not any(env.metadata is each.metadata for each in (vector.VectorEnv, gymnasium.Env)):
        mode = env.metadata.get("autoreset_mode")
    if not isinstance(mode, vector.AutoresetMode):
        rule = "env must declare how it resets: set env.metadata['autoreset_mode'] to a member of AutoresetMode"
        raise errors.ArgumentError(f"{rule}, in a dict of its own, got {validation.short_repr(mode)}")
    return mode


def _info_column(infos: Infos, extra: str, key: str, rows: arrays_lib.Ints, is_final: arrays_lib.Bools) -> Any:
    """Return the tree of values of a key [k, ...], for the steps of environments `rows` [k].

    Where the environment was reset after the step, `is_final` [S], they are those in "final_info".
    """
    numbers: list[int] = rows.tolist()
    values, finals = _values(infos, key, numbers), dict[int, Any]()
    for place in is_final[rows].nonzero()[0].tolist():
        finals[place] = _value(infos, "final_info", numbers[place]) or {}
        values[place] = finals[place].get(key)
    for place, value in enumerate(values):
        if value is None:
            row = numbers[place]
            said = f"infos must hold {key!r} of environment {row} for the extra {extra!r}"
            there = (
                f"{list(finals[place])} in 'final_info'"
                if place in finals
                else validation.short_repr(list(_row(infos, row)))
            )
            raise errors.ArgumentError(f"{said}, got {there}")
    return recording.info_column(key, values)


def _values(infos: Infos, key: str, rows: list[int]) -> list[Any]:
    """Return the value of a key for each of some environments; None if it is missing, or there for others alone."""
    if key not in infos:
        return [None] * len(rows)
    column, mask = infos[key], infos.get(f"_{key}")
    values = [(_row(column, row) or None) if isinstance(column, Mapping) else column[row] for row in rows]
    return values if mask is None else [value if mask[row] else None for row, value in zip(rows, values, strict=True)]


def _value(infos: Infos, key: str, row: int) -> Any:
    """Return the same for one environment."""
    return _values(infos, key, [row])[0]


def _row(infos: Mapping[Any, Any], row: int) -> dict[str, Any]:
    """Return what infos hold of one environment, without masks and values that Gymnasium could not merge."""
    names = [name for name in infos if isinstance(name, str) and not name.startswith("_")]
    return {name: part for name in names if (part := _value(infos, name, row)) is not None}
