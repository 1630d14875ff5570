"""Advantages of responses relative to their group, and importance weights of tokens from an older policy.

returns          1.0   0.0   0.5   0.5   2.0
group_ids        p0    p0    p1    p1    p1

mean             0.5  -0.5  -0.5  -0.5   1.0      R - mean of the group
mean_std         1.0  -1.0  -0.7  -0.7   1.4      that, divided by the standard deviation of the group
leave_one_out    1.0  -1.0  -0.75 -0.75  1.5      R - mean of the others in the group
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
import math
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays
from relive.common import validation
from relive.windows import returns as returns_lib

Normalization: TypeAlias = Literal["mean", "mean_std", "leave_one_out"]


def group_advantages(
    returns: npt.ArrayLike,
    group_ids: Iterable[Hashable],
    *,
    normalize: Normalization = "mean",
    episode_ids: Iterable[Hashable] | None = None,
) -> arrays.Floats:
    """Return the advantage of each sequence over the baseline of its group [B].

    Groups may have any size and order. Where a group gives no information, because it has one member or all its returns
    are equal, the advantages are exactly 0.

    Args:
        returns: The return of each sequence, a finite number [B].
        group_ids: The group of each sequence [B]; not None.
        normalize: The baseline: "mean" of the group (Dr. GRPO, Liu et al. 2025, arXiv 2503.20783), "mean_std", which
            also divides by the standard deviation of the group, that of the population (GRPO, Shao et al. 2024, arXiv
            2402.03300), or "leave_one_out", the mean of the other members (RLOO, Ahmadian et al. 2024, arXiv
            2402.14740; Kool et al. 2019).
        episode_ids: The episode of each sequence [B]: the sequences of one episode, which have one return, then count
            as one member of the group. None if each sequence is an episode.

    Raises:
        ArgumentTypeError: `returns` holds something other than real numbers, or an id is None or unhashable.
        ArgumentError: An argument has another length or an invalid value, or the sequences of an episode differ in
            their returns or groups.

    >>> import relive
    >>> relive.group_advantages([1.0, 0.0, 0.5, 0.5, 2.0], ["p0", "p0", "p1", "p1", "p1"])
    array([ 0.5, -0.5, -0.5, -0.5,  1. ])
    """
    validation.require_choice("normalize", normalize, get_args(Normalization))
    values = _floats("returns", returns)
    if values.ndim != 1:
        raise errors.ArgumentError(f"returns must be of shape [B], got {list(values.shape)}")
    for place in np.flatnonzero(~np.isfinite(values)):
        raise errors.ArgumentError(f"returns must be finite, got {values[place]} at position {place}")
    numbers = values.tolist()
    groups = _ids("group_ids", group_ids, len(numbers))
    members = range(len(numbers)) if episode_ids is None else _ids("episode_ids", episode_ids, len(numbers))
    found: dict[Any, tuple[Any, float]] = {}
    by_group: dict[Any, dict[Any, float]] = {}
    for member, group, number in zip(members, groups, numbers, strict=True):
        if found.setdefault(member, (group, number)) != (group, number):
            given = f"{found[member]} and {(group, number)} for {validation.short_repr(member)}"
            raise errors.ArgumentError(f"sequences of one episode must have one group and one return, got {given}")
        by_group.setdefault(group, {})[member] = number
    advantages = {group: _relative(of_members, normalize) for group, of_members in by_group.items()}
    result = np.array([advantages[group][member] for group, member in zip(groups, members, strict=True)], np.float64)
    if not np.isfinite(result).all():
        raise errors.ArgumentError("returns must have sums and differences that a float holds, got larger ones")
    return result


def truncated_importance_weights(
    logprobs: npt.ArrayLike,
    behaviour_logprobs: npt.ArrayLike,
    *,
    limit: float,
    mask: npt.ArrayLike | None = None,
) -> arrays.Floats:
    """Return min(exp(logprobs - behaviour_logprobs), limit) for each token, and 0 outside of the mask.

    The weights correct a gradient for tokens that another policy generated; the limit bounds their variance (truncated
    importance sampling, Ionides 2008; as rho in V-trace, Espeholt et al. 2018, arXiv 1802.01561; between the engine
    that generates and the one that trains, Yao et al. 2025). They are constants: no gradient is to flow through them.

    Args:
        logprobs: The log-probabilities of the tokens by the policy in training, such as [B, L] or [N].
        behaviour_logprobs: Those by the policy that generated them, of the same shape, such as `TokenBatch.logprobs`.
        limit: The largest weight, above 0.
        mask: Where there is a token to train on, of the same shape; values elsewhere are ignored. None for everywhere.

    Raises:
        ArgumentTypeError: An argument has the wrong type.
        ArgumentError: The shapes differ, `limit` is not a finite number above 0, or a difference within the mask is
            NaN.

    >>> import relive
    >>> relive.truncated_importance_weights([-1.0, -0.5, -0.1], [-1.0, -3.5, -9.0], limit=2.0, mask=[True, True, False])
    array([1., 2., 0.])
    """
    limit = validation.non_negative_float("limit", limit)
    if not limit:
        raise errors.ArgumentError(f"limit must be above 0, got {limit}")
    current, behaviour = _floats("logprobs", logprobs), _floats("behaviour_logprobs", behaviour_logprobs)
    is_used = np.ones(current.shape, np.bool_) if mask is None else validation.array_of(mask)
    if is_used is None or is_used.dtype != np.bool_:
        raise errors.ArgumentTypeError(f"mask must be bools, got {validation.short_repr(mask)}")
    for name, array in (("behaviour_logprobs", behaviour), ("mask", is_used)):
        if array.shape != current.shape:
            rule = f"of the shape of logprobs, {list(current.shape)}"
            raise errors.ArgumentError(f"{name} must be {rule}, got {list(array.shape)}")
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        differences = np.where(is_used, current - behaviour, 0.0)
        for place in np.argwhere(np.isnan(differences)).tolist():
            rule = "a number where the mask is True"
            raise errors.ArgumentError(
                f"logprobs - behaviour_logprobs must be {rule}, got nan at position {tuple(place)}"
            )
        return np.where(is_used, np.minimum(np.exp(differences), limit), 0.0)


def _relative(values: Mapping[Any, float], normalize: Normalization) -> dict[Any, float]:
    """Return the advantages of the members of one group."""
    count, numbers = len(values), list(values.values())
    if min(numbers) == max(numbers):  # The mean could be rounded to something else.
        return dict.fromkeys(values, 0.0)
    mean = returns_lib.total(numbers) / count
    differences = [number - mean for number in numbers]
    factor = count / (count - 1) if normalize == "leave_one_out" else 1.0
    if normalize == "mean_std":
        largest = max(map(abs, differences))  # So that no square overflows, nor all of them become 0.
        differences = [difference / largest for difference in differences]
        factor = 1 / math.sqrt(returns_lib.total([difference**2 for difference in differences]) / count)
    return {member: difference * factor for member, difference in zip(values, differences, strict=True)}


def _floats(name: str, value: Any) -> arrays.Floats:
    """Return real numbers as an array of floats [...]."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        array = np.zeros(1, object)
    if array.dtype.kind not in "iuf" and array.size:
        raise errors.ArgumentTypeError(f"{name} must be real numbers, got {validation.short_repr(value)}")
    return array.astype(np.float64)


def _ids(name: str, values: Any, count: int) -> Sequence[Any]:
    """Return ids as a list of `count` hashable values."""
    ids = validation.items(name, values.tolist() if isinstance(values, np.ndarray) else values, "ids")
    if len(ids) != count:
        raise errors.ArgumentError(f"{name} must be one for each of {count} returns, got {len(ids)}")
    for place, each in enumerate(ids):
        if each is None or not _is_hashable(each):
            shown = validation.short_repr(each)
            raise errors.ArgumentTypeError(f"{name} must be ids, such as strings, got {shown} at position {place}")
    return ids


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:  # A tuple that holds a list has none, though it is a Hashable.
        return False
    return True
