"""How environments side by side are reset when an episode ends: what they say, and whether they do it."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import imports
from relive.common import validation
from relive.integrations import vector_infos

with imports.optional_dependency("gymnasium"):
    from gymnasium import vector

Mode: TypeAlias = "vector.AutoresetMode"

NEXT_STEP, SAME_STEP = vector.AutoresetMode.NEXT_STEP, vector.AutoresetMode.SAME_STEP
DISABLED = vector.AutoresetMode.DISABLED


def mode_of(env: "vector.VectorEnv[Any, Any, Any]") -> Mode:
    """Return the autoreset mode of a vector environment, as its metadata say it.

    Raises:
        ArgumentError: They do not.
    """
    said = env.metadata.get("autoreset_mode")
    if not isinstance(said, vector.AutoresetMode):
        raise errors.ArgumentError(
            "env must say how it resets: set env.metadata['autoreset_mode'] to a gymnasium.vector.AutoresetMode, "
            f"got {validation.short_repr(said)}"
        )
    return said


def reset_mask(mode: Mode, count: int, options: Mapping[str, Any] | None) -> arrays.Bools:
    """Return which of so many environments the options of `reset` say are to be reset [S].

    Raises:
        ArgumentError: They have a mask, and environments reset themselves; or the mask is none.
    """
    if not options or "reset_mask" not in options:
        return np.ones(count, np.bool_)
    mask = options["reset_mask"]
    if mode is not DISABLED:
        raise errors.ArgumentError(f"reset_mask must not be given: env resets itself by {mode.name}")
    if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (count,)):
        raise errors.ArgumentError(f"reset_mask must be an array of {count} bools, got {validation.short_repr(mask)}")
    return mask.copy()


def shows_rewards(env: "vector.VectorEnv[Any, Any, Any]") -> bool:
    """Return whether rewards are those of the environments, so that a reset has none: no wrapper may change them."""
    while isinstance(env, vector.VectorWrapper):
        is_foreign = (
            not type(env).__module__.startswith("gymnasium.") and type(env).step is not vector.VectorWrapper.step
        )
        if is_foreign or isinstance(env, vector.VectorRewardWrapper):
            return False
        env = env.env
    return True


def check(mode: Mode, is_step: arrays.Bools, rewards: Any, has_ended: arrays.Bools, infos: Any) -> None:
    """Check that environments do what they say.

    Args:
        mode: What they say.
        is_step: Where an episode was running [S]; elsewhere NEXT_STEP resets.
        rewards: What the step returned [S], where resets have none; None where they are not to be looked at.
        has_ended: Where an episode has ended with it [S].
        infos: What the step returned.

    Raises:
        ArgumentError: They do something else.
    """
    if not isinstance(infos, Mapping):
        raise errors.ArgumentError(
            f"infos must be a mapping, got {validation.short_repr(infos)}: "
            "record below the wrapper that makes it another thing"
        )
    says = f"env says that it resets by {mode.name}, and"
    went_on = ~is_step & (has_ended if rewards is None else has_ended | (rewards != 0))
    if went_on.any():
        raise errors.ArgumentError(f"{says} went on in the step after an end, in environment {int(went_on.argmax())}")
    if has_ended.any():
        row, has_final = int(has_ended.argmax()), vector_infos.has_final_observation(infos)
        if mode is SAME_STEP and not has_final:
            raise errors.ArgumentError(f"{says} gives no 'final_obs' with the end in environment {row}")
        if mode is not SAME_STEP and has_final:
            raise errors.ArgumentError(f"{says} gives a 'final_obs' with the end in environment {row}")
