"""How environments side by side are reset when an episode ends: what they say, and whether they do it.

What comes last in an episode is then in infos, which hold arrays of all environments, and where each of them holds:

{"speed": [3.0, 0.0], "_speed": [True, False],       of environment 0 alone
 "final_obs": [None, o_T], "_final_obs": [False, True], "final_info": {"speed": [0.0, 2.0], "_speed": ...}}
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import copies
from relive.common import imports
from relive.common import trees
from relive.common import validation
from relive.integrations.gymnasium import recording

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
        has_final = any(_value(infos, "final_obs", row) is not None for row in range(len(is_step)))
        if has_final is not (mode is SAME_STEP):
            gives = "a" if has_final else "no"
            raise errors.ArgumentError(
                f"{says} gives {gives} 'final_obs' with the end in environment {int(has_ended.argmax())}"
            )


def final_observation(infos: Mapping[str, Any], row: int) -> Any:
    """Return the observation that came last in one environment, whose episode has ended.

    Raises:
        ArgumentError: There is none.
    """
    last = _value(infos, "final_obs", row)
    if last is None:
        raise errors.ArgumentError(f"infos must hold the 'final_obs' of environment {row}, whose episode has ended")
    return last


def info_column(infos: Mapping[str, Any], extra: str, key: str, rows: arrays.Ints, is_final: arrays.Bools) -> Any:
    """Return a tree of what infos hold under a key, of the steps of some environments [k, ...].

    Args:
        infos: The infos of a step.
        extra: What it is for.
        key: Where to look.
        rows: Which environments [k], at least one.
        is_final: Where the environment was reset after the step, so that what is of it is in "final_info" [S].

    Raises:
        ArgumentError: There is nothing for one of the steps.
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
    """Return what infos hold of one environment under a key; None if that is nothing."""
    if key not in infos or not infos.get(f"_{key}", {row: True})[row]:
        return None
    value = infos[key]
    if not isinstance(value, Mapping):
        return value[row]
    parts = {name: _value(value, name, row) for name in _names(value)}
    return {name: part for name, part in parts.items() if part is not None} or None


def _names(infos: Mapping[Any, Any]) -> list[str]:
    """Return the keys of values: not those of where one holds, or of what Gymnasium could not merge."""
    return [name for name in infos if isinstance(name, str) and not name.startswith("_")]


class ReusedArrays:
    """Notices environments that write every observation into one array: SAME_STEP loses the last of an episode then.

    step      the environment returns o_T in its array, and the vector environment keeps that array as "final_obs"
    reset     the environment writes o_0 into its array: "final_obs" is o_0 now
    step      it writes o_1 there, and what was "final_obs" shows it: nobody else's array would
    """

    def __init__(self) -> None:
        self._watched: dict[int, tuple[Any, Any]] = {}

    def watch(self, row: int, last: Any, first: Any) -> None:
        """Record what came last in an environment, if it looks like what its reset returned."""
        if recording.are_same(last, first):
            self._watched[row] = last, copies.copied(last)

    def check(self, observations: Any) -> None:
        """Raise ArgumentError if what came last has become what came now [S, ...], a step later."""
        watched, self._watched = self._watched, {}
        for row, (handed, was) in watched.items():
            if not recording.are_same(handed, was) and recording.are_same(handed, trees.rows(observations, row)):
                raise errors.ArgumentError(
                    f"env must not write each observation of environment {row} into one array: with SAME_STEP the last "
                    "one of an episode is lost, so let a wrapper copy it"
                )
