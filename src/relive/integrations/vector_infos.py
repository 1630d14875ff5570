"""What the infos of a vector environment hold: arrays of all environments, and beside each of them where it holds.

{"speed": [3.0, 0.0], "_speed": [True, False],       of environment 0 alone
 "final_obs": [None, o_T], "_final_obs": [False, True], "final_info": {"speed": [0.0, 2.0], "_speed": ...}}
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import validation

_FINAL_OBSERVATION = "final_obs"
_FINAL_INFO = "final_info"


def has_final_observation(infos: Mapping[str, Any]) -> bool:
    """Return whether there are observations that came last, of any environment."""
    return _FINAL_OBSERVATION in infos and bool(np.any(infos.get(f"_{_FINAL_OBSERVATION}", True)))


def final_observation(infos: Mapping[str, Any], row: int) -> Any:
    """Return the observation that came last in one environment, whose episode has ended.

    Raises:
        ArgumentError: There is none.
    """
    last = _row(infos[_FINAL_OBSERVATION], row)
    if last is None or not _holds(infos, _FINAL_OBSERVATION, row):
        raise errors.ArgumentError(f"infos must hold the 'final_obs' of environment {row}, whose episode has ended")
    return last


def column(infos: Mapping[str, Any], extra: str, key: str, is_step: arrays.Bools, is_final: arrays.Bools) -> Any:
    """Return what infos hold under a key, of the step of each environment [S, ...]; anything where there was none.

    Args:
        infos: The infos of a step.
        extra: What it is for.
        key: Where to look.
        is_step: Where there was a step [S], which is somewhere.
        is_final: Where the environment was reset after it, so that what is of the step is in "final_info" [S].

    Raises:
        ArgumentError: There is nothing for one of the steps.
    """
    finals = infos.get(_FINAL_INFO, {})
    values: dict[int, Any] = {}
    for row in is_step.nonzero()[0].tolist():
        source = finals if is_final[row] else infos
        value = _row(source[key], row) if key in source and _holds(source, key, row) else None
        if value is None:
            there = validation.short_repr(list(filter(_is_shown, source)))
            raise errors.ArgumentError(
                f"infos must hold {key!r} of environment {row} for the extra {extra!r}, got {there}"
            )
        values[row] = value
    known = next(iter(values.values()))
    return _stacked(key, [values.get(row, known) for row in range(len(is_step))])


def _stacked(name: str, values: list[Any]) -> Any:
    """Return a tree of columns of one of rows each."""
    if not any(isinstance(value, Mapping) for value in values):
        return np.stack([np.asarray(value) for value in values])
    keys = [set(value) if isinstance(value, Mapping) else set() for value in values]
    if any(each != keys[0] for each in keys):
        raise errors.ArgumentError(f"infos must hold the same keys in {name!r} of every environment")
    return {key: _stacked(f"{name}/{key}", [value[key] for value in values]) for key in sorted(keys[0])}


def _is_shown(key: Any) -> bool:
    """Return whether a key is that of a value, and not of where one holds, or of what Gymnasium could not merge."""
    return isinstance(key, str) and not key.startswith("_")


def _holds(infos: Mapping[str, Any], key: str, row: int) -> bool:
    """Return whether what is under a key holds for an environment."""
    return f"_{key}" not in infos or bool(infos[f"_{key}"][row])


def _row(value: Any, row: int) -> Any:
    """Return what is of one environment, of an array or of arrays by name."""
    if isinstance(value, Mapping):
        there = (key for key in value if _is_shown(key) and _holds(value, key, row))
        return {key: _row(value[key], row) for key in there}
    return value[row]
