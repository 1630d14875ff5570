"""Advantages of responses relative to their group, returns of turns, and importance weights of stale tokens.

returns          1.0   0.0   0.5   0.5   2.0
group_ids        p0    p0    p1    p1    p1

mean             0.5  -0.5  -0.5  -0.5   1.0      R - mean of the group
mean_std         0.71 -0.71 -0.58 -0.58  1.15     that, divided by the sample standard deviation of the group
leave_one_out    1.0  -1.0  -0.75 -0.75  1.5      R - mean of the others in the group
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
import itertools
import math
from typing import Any, Literal, TypeAlias, get_args, overload

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.common import words
from relive.windows import returns as returns_lib

Normalization: TypeAlias = Literal["mean", "mean_std", "leave_one_out"]
Baseline: TypeAlias = Literal["episode", "turn"]


def returns_to_go(rows: Iterable[npt.ArrayLike], gamma: float) -> list[arrays_lib.Floats]:
    """Return the discounted return from each turn of each episode on: G_t = r_t + gamma * G_(t+1).

    Added up from the last turn to the first, each product and each sum rounded to float64 (Sutton and Barto 2018,
    equation 3.9).

    Args:
        rows: The rewards of the turns of each episode, finite numbers [T], such as `EpisodeFacts.rewards`. T differs
            between episodes, and may be 0.
        gamma: The discount factor between turns, in (0, 1].

    Raises:
        ArgumentTypeError: `rows` is not a list of rows of real numbers, or gamma is not a number.
        ArgumentError: A reward or a return is not finite, or gamma lies outside (0, 1].

    >>> import relive
    >>> relive.returns_to_go([[0.0, 0.0, 1.0], [1.0, 0.5]], gamma=0.5)
    [array([0.25, 0.5 , 1.  ]), array([1.25, 0.5 ])]
    """
    gamma = validation.discount("gamma", gamma)
    found = []
    for number, row in enumerate(validation.items("rows", rows, "rows")):
        rewards = _finite_row(f"row {number}", row, "T")
        sums = list(itertools.accumulate(reversed(rewards), lambda after, reward: reward + gamma * after))
        if not all(map(math.isfinite, sums)):
            raise errors.ArgumentError(f"row {number} must have sums that a float holds, got larger ones")
        found.append(np.array(sums[::-1], np.float64))
    return found


@overload
def group_advantages(
    returns: npt.ArrayLike,
    group_ids: Iterable[Hashable],
    *,
    normalize: Normalization = "mean",
    epsilon: float = 0.0,
    episode_ids: Iterable[Hashable] | None = None,
    by: Literal["episode"] = "episode",
) -> arrays_lib.Floats: ...


@overload
def group_advantages(
    returns: Iterable[npt.ArrayLike],
    group_ids: Iterable[Hashable],
    *,
    normalize: Normalization = "mean",
    epsilon: float = 0.0,
    episode_ids: Iterable[Hashable] | None = None,
    by: Literal["turn"],
) -> list[arrays_lib.Floats]: ...


def group_advantages(
    returns: Any,
    group_ids: Iterable[Hashable],
    *,
    normalize: Normalization = "mean",
    epsilon: float = 0.0,
    episode_ids: Iterable[Hashable] | None = None,
    by: Baseline = "episode",
) -> arrays_lib.Floats | list[arrays_lib.Floats]:
    """Return the advantage of each sequence, or of each of its turns, over the baseline of its group.

    Groups may have any size and order. Where a group gives no information, because it has one member or all its returns
    are equal, the advantages are exactly 0. By turn, the members of a group at turn t are those that have a turn t: one
    that is longer than all others gets 0 for the turns that only it has.

    Args:
        returns: The return of each sequence, a finite number [B]; by turn, a list of B rows, each with a number for
            each turn [T], such as `returns_to_go` gives. T may differ between rows.
        group_ids: The group of each sequence [B]; not None.
        normalize: The baseline: "mean" of the group (Dr. GRPO, Liu et al. 2025, arXiv 2503.20783), "mean_std", which
            also divides by the standard deviation of the group, that of the sample (n - 1; GRPO, Shao et al. 2024,
            arXiv 2402.03300, as TRL and verl compute it), or "leave_one_out", the mean of the other members (RLOO,
            Ahmadian et al. 2024, arXiv 2402.14740; Kool et al. 2019).
        epsilon: Added to the standard deviation, a number of at least 0; for "mean_std" alone. TRL adds 1e-4, verl
            1e-6.
        episode_ids: The episode of each sequence [B]: the sequences of one episode, which have one return, or by turn
            one row with all turns of the episode, then count as one member of the group. None if each sequence is an
            episode.
        by: "episode" for one advantage a sequence [B]; "turn" for a list of B rows [T], each turn compared with the
            same turn of the group (turn-level credit, Zeng et al. 2025, arXiv 2505.11821; GiGPO, Feng et al. 2025,
            arXiv 2505.10978, compares steps from one state instead).

    Raises:
        ArgumentTypeError: `returns` holds something other than real numbers, or an id is None or unhashable.
        ArgumentError: An argument has another length or an invalid value, or the sequences of an episode differ in
            their returns or groups.

    >>> import relive
    >>> relive.group_advantages([1.0, 0.0, 0.5, 0.5, 2.0], ["p0", "p0", "p1", "p1", "p1"])
    array([ 0.5, -0.5, -0.5, -0.5,  1. ])
    >>> relive.group_advantages([[1.0, 1.0, 2.0], [0.0, 2.0]], ["p0", "p0"], by="turn")
    [array([ 0.5, -0.5,  0. ]), array([-0.5,  0.5])]
    """
    validation.require_choice("normalize", normalize, get_args(Normalization), words.NORMALIZATIONS)
    epsilon = validation.non_negative_float("epsilon", epsilon)
    if epsilon and normalize != "mean_std":
        raise errors.ArgumentError(f"epsilon must be 0 unless normalize is 'mean_std', got {epsilon}")
    validation.require_choice("by", by, get_args(Baseline))
    if by == "turn":
        given = enumerate(validation.items("returns", returns, "rows"))
        values: list[Any] = [_finite_row(f"row {number} of returns", row, "T") for number, row in given]
    else:
        values = _finite_row("returns", returns, "B")
    groups = _ids("group_ids", group_ids, len(values))
    members = range(len(values)) if episode_ids is None else _ids("episode_ids", episode_ids, len(values))
    found: dict[Any, tuple[Any, Any]] = {}
    by_group: dict[Any, dict[Any, float]] = {}
    turns: list[tuple[Any, Any]] = []
    for member, group, value in zip(members, groups, values, strict=True):
        if found.setdefault(member, (group, value)) != (group, value):
            first, other = validation.short_repr(found[member]), validation.short_repr((group, value))
            rule = "sequences of one episode must have one group and one return"
            raise errors.ArgumentError(f"{rule}, got {first} and {other} for {validation.short_repr(member)}")
        for turn, number in enumerate(value if by == "turn" else [value]):
            by_group.setdefault((group, turn), {})[member] = number
            turns.append(((group, turn), member))
    advantages = {group: _relative(of_members, normalize, epsilon) for group, of_members in by_group.items()}
    result = np.array([advantages[group][member] for group, member in turns], np.float64)
    if not np.isfinite(result).all():
        raise errors.ArgumentError("returns must have sums and differences that a float holds, got larger ones")
    if by == "turn":
        ends = itertools.accumulate(map(len, values))
        return [result[end - len(row) : end] for row, end in zip(values, ends, strict=True)]
    return result


def truncated_importance_weights(
    logprobs: npt.ArrayLike,
    behaviour_logprobs: npt.ArrayLike,
    *,
    limit: float,
    mask: npt.ArrayLike | None = None,
) -> arrays_lib.Floats:
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


def _relative(values: Mapping[Any, float], normalize: Normalization, epsilon: float) -> dict[Any, float]:
    """Return the advantages of the members of one group."""
    count, numbers = len(values), list(values.values())
    if min(numbers) == max(numbers):  # The mean could be rounded to something else.
        return dict.fromkeys(values, 0.0)
    mean = returns_lib.total(numbers) / count
    differences = [number - mean for number in numbers]
    if normalize == "leave_one_out":
        differences = [difference * (count / (count - 1)) for difference in differences]
    if normalize == "mean_std":
        # A power of two rounds nothing, and keeps the squares from overflowing or all becoming 0.
        scale = 2.0 ** -max(math.frexp(max(map(abs, differences)))[1], -1000)
        differences = [difference * scale for difference in differences]
        deviation = math.sqrt(returns_lib.total([difference**2 for difference in differences]) / (count - 1))
        differences = [difference / (deviation + epsilon * scale) for difference in differences]
    return dict(zip(values, differences, strict=True))


def _floats(name: str, value: Any) -> arrays_lib.Floats:
    """Return real numbers as an array of floats [...]."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        array = np.zeros(1, object)
    if array.dtype.kind not in "iuf" and array.size:
        raise errors.ArgumentTypeError(f"{name} must be real numbers, got {validation.short_repr(value)}")
    return array.astype(np.float64)


def _finite_row(name: str, value: Any, length: str) -> list[float]:
    """Return finite real numbers [length] as floats."""
    row = _floats(name, value)
    if row.ndim != 1:
        raise errors.ArgumentError(f"{name} must be of shape [{length}], got {list(row.shape)}")
    for place in np.flatnonzero(~np.isfinite(row)):
        raise errors.ArgumentError(f"{name} must be finite, got {row[place]} at position {place}")
    numbers: list[float] = row.tolist()
    return numbers


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
