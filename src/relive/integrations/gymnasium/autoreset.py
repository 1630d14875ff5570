"""Autoreset modes of vector environments, and checks that environments follow their declared mode.

With SAME_STEP, final observations are in infos, which hold arrays over environments, and masks of where each is set:

{"speed": [3.0, 0.0], "_speed": [True, False],       of environment 0 alone
 "final_obs": [None, o_T], "_final_obs": [False, True], "final_info": {"speed": [0.0, 2.0], "_speed": ...}}
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import imports
from relive.common import trees
from relive.common import validation

with imports.optional_dependency("gymnasium"):
    from gymnasium import vector

Mode: TypeAlias = "vector.AutoresetMode"

NEXT_STEP, SAME_STEP = vector.AutoresetMode.NEXT_STEP, vector.AutoresetMode.SAME_STEP
DISABLED = vector.AutoresetMode.DISABLED


def mode_of(env: "vector.VectorEnv[Any, Any, Any]") -> Mode:
    """Return the autoreset mode in the metadata of a vector environment.

    Raises:
        ArgumentError: The metadata do not give it.
    """
    said = env.metadata.get("autoreset_mode")
    if not isinstance(said, vector.AutoresetMode):
        raise errors.ArgumentError(
            "env must declare how it resets: set env.metadata['autoreset_mode'] to a gymnasium.vector.AutoresetMode, "
            f"got {validation.short_repr(said)}"
        )
    return said


def reset_mask(mode: Mode, count: int, options: Mapping[str, Any] | None) -> arrays.Bools:
    """Return which environments are to be reset, by the options of `reset` [S].

    Raises:
        ArgumentError: There is a mask although environments reset themselves, or the mask is invalid.
    """
    if not options or "reset_mask" not in options:
        return np.ones(count, np.bool_)
    mask = options["reset_mask"]
    if mode is not DISABLED:
        raise errors.ArgumentError(f"reset_mask must not be given: env resets itself by {mode.name}")
    if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (count,)):
        raise errors.ArgumentError(f"reset_mask must be an array of {count} bools, got {validation.short_repr(mask)}")
    return mask.copy()


def check(mode: Mode, is_step: arrays.Bools, has_ended: arrays.Bools, infos: Any) -> None:
    """Check that environments follow their autoreset mode.

    Args:
        mode: The declared mode.
        is_step: Where an episode was open [S]; elsewhere NEXT_STEP resets.
        has_ended: Where an episode has ended with the step [S].
        infos: The infos of the step.

    Raises:
        ArgumentError: They behave differently.
    """
    if not isinstance(infos, Mapping):
        raise errors.ArgumentError(
            f"infos must be a mapping, got {validation.short_repr(infos)}: "
            "put the recorder inside the wrapper that changes it"
        )
    says = f"env resets by {mode.name}, but"
    went_on = ~is_step & has_ended
    if went_on.any():
        raise errors.ArgumentError(f"{says} went on in the step after an end, in environment {int(went_on.argmax())}")
    if has_ended.any():
        has_final = any(_value(infos, "final_obs", row) is not None for row in range(len(is_step)))
        if has_final is not (mode is SAME_STEP):
            gives = "a" if has_final else "no"
            raise errors.ArgumentError(
                f"{says} gives {gives} 'final_obs' with the end in environment {int(has_ended.argmax())}"
            )


def final_observation(infos: Mapping[str, Any], row: int) -> Any:
    """Return the final observation of one environment whose episode has ended.

    Raises:
        ArgumentError: It is missing.
    """
    last = _value(infos, "final_obs", row)
    if last is None:
        raise errors.ArgumentError(f"infos must hold the 'final_obs' of environment {row}, whose episode has ended")
    return last


def info_column(infos: Mapping[str, Any], extra: str, key: str, rows: arrays.Ints, is_final: arrays.Bools) -> Any:
    """Return the tree of values of a key in infos, for the steps of some environments [k, ...].

    Args:
        infos: The infos of a step.
        extra: The extra that it is stored in.
        key: The key.
        rows: The environments [k], at least one.
        is_final: Where the environment was reset after the step, so that its values are in "final_info" [S].

    Raises:
        ArgumentError: A value is missing for one of the steps.
    """
    leaves: list[dict[str, Any]] = []
    for row in rows.tolist():
        source = infos.get("final_info", {}) if is_final[row] else infos
        value = _value(source, key, row)
        if value is None:
            there = validation.short_repr(_names(source))
            raise errors.ArgumentError(
                f"infos must hold {key!r} of environment {row} for the extra {extra!r}, got {there}"
            )
        leaves.append(trees.flat(key, value))
    if any(each.keys() != leaves[0].keys() for each in leaves):
        raise errors.ArgumentError(f"infos must hold the same keys in {key!r} of every environment")
    return trees.nested(key, {path: np.stack([np.asarray(each[path]) for each in leaves]) for path in leaves[0]})


def _value(infos: Mapping[str, Any], key: str, row: int) -> Any:
    """Return the value of a key for one environment; None if missing."""
    if key not in infos or not infos.get(f"_{key}", {row: True})[row]:
        return None
    value = infos[key]
    if not isinstance(value, Mapping):
        return value[row]
    parts = {name: _value(value, name, row) for name in _names(value)}
    return {name: part for name, part in parts.items() if part is not None} or None


def _names(infos: Mapping[Any, Any]) -> list[str]:
    """Return the keys of values, without masks and values that Gymnasium could not merge."""
    return [name for name in infos if isinstance(name, str) and not name.startswith("_")]
