"""One answer of a language model: what it saw, what it said, and what its policy knew when it said it.

    prompt               p p p p p            all that the model saw before it answered [P]
    answer                         a a a a    what it generated then [A]
    log_probabilities              l l l l    of exactly these tokens, by the policy that generated them [A]
    policy_version                 v v v v    which version of the policy that was [A]
    loss_mask                      T T T F    which of them are to be trained on [A]
    reward                               r    what followed

Nobody can make these up later: another tokenizer, chat template or policy gives other tokens and numbers.
"""

import dataclasses
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays
from relive.common import validation
from relive.schema import casting

Tokens: TypeAlias = npt.NDArray[np.int32]

_MOST_ROUNDED = 0.01
"""No log-probability is larger: above 0 there is only what rounding makes of 0, in the coarsest floats."""

_BOOLS = frozenset((bool, np.bool_))
FLOATS = (np.float16, np.float32, np.float64)
"""What log-probabilities may be kept as."""


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False, slots=True)
class TokenStep:
    """One answer of a language model, token by token. All is checked and copied; the arrays cannot be written to.

    Attributes:
        prompt: All tokens that the model saw before it answered, the whole context [P]; P may be 0.
        answer: The tokens that it generated [A]; at least one. The one that ends a turn is one of them, if it was
            generated.
        log_probabilities: The logarithm of the probability with which each was drawn [A], by the policy as it was then:
            in the dtype they came in, and never changed.
        policy_version: Which version of the policy generated each [A].
        loss_mask: Which of them are to be trained on [A].
        reward: What followed the answer.

    >>> import relive
    >>> step = relive.TokenStep(prompt=[1, 15, 4], answer=[7, 2], log_probabilities=[-0.5, -0.25], policy_version=3)
    >>> step
    <TokenStep of a prompt of 3 tokens and an answer of 2, reward=0.0>
    >>> step.policy_version, step.loss_mask
    (array([3, 3]), array([ True,  True]))
    """

    prompt: Tokens
    answer: Tokens
    log_probabilities: arrays.Array
    policy_version: arrays.Ints
    loss_mask: arrays.Bools
    reward: float

    def __init__(
        self,
        *,
        prompt: npt.ArrayLike,
        answer: npt.ArrayLike,
        log_probabilities: npt.ArrayLike,
        policy_version: npt.ArrayLike,
        loss_mask: npt.ArrayLike | None = None,
        reward: float = 0.0,
    ) -> None:
        """Makes the step of array-likes, copied.

        Args:
            prompt: Integers in [0, 2^31) [P].
            answer: Integers in [0, 2^31) [A].
            log_probabilities: Finite floats [A], at most 0; up to 0.01 is taken for rounding. For a token that was not
                drawn but forced, give 0 and leave it out of the loss mask.
            policy_version: An integer of at least 0; or one for each token [A], where the weights changed on the way.
            loss_mask: Bools [A]; None for all True.
            reward: A finite number.

        Raises:
            ArgumentTypeError: Something is of another type.
            ArgumentError: Something breaks its rule; the message says what, and where.
        """
        tokens = _tokens("answer", answer)
        count = len(tokens)
        if not count:
            raise errors.ArgumentError("answer must have at least 1 token, got 0")
        values = {
            "prompt": _tokens("prompt", prompt),
            "answer": tokens,
            "log_probabilities": _log_probabilities(log_probabilities, count),
            "policy_version": _versions(policy_version, count),
            "loss_mask": np.ones(count, np.bool_) if loss_mask is None else _booleans(loss_mask, count),
        }
        for name, array in values.items():
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        object.__setattr__(self, "reward", validation.finite_number("reward", reward))

    def __repr__(self) -> str:
        sizes = f"a prompt of {len(self.prompt)} tokens and an answer of {len(self.answer)}"
        return f"<{type(self).__name__} of {sizes}, reward={self.reward}>"


def _array(value: Any) -> arrays.Array | None:
    """Answers the array that numpy makes of `value`; None if it makes none."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _row(name: str, value: Any, kind: str) -> arrays.Array:
    """Answers `value` as an array [k] that is not copied yet; `kind` says of what."""
    array = _array(value)
    has_mask = isinstance(value, np.ndarray) and isinstance(value, np.ma.MaskedArray)
    # numpy takes True for 1 where it stands among numbers.
    has_bools = isinstance(value, list | tuple) and kind != "bools" and not _BOOLS.isdisjoint(map(type, value))
    if array is None or array.ndim != 1 or has_mask or has_bools:
        raise errors.ArgumentTypeError(f"{name} must be a row of {kind}, got {validation.shown(value)}")
    return array


def _integers(name: str, value: Any, most: int) -> arrays.Array:
    array = _row(name, value, "integers")
    if array.dtype.kind not in "iu" and array.size:
        raise errors.ArgumentTypeError(f"{name} must be a row of integers, got {validation.shown(value)}")
    _check(name, array, (array >= 0) & (array <= most), f"integers in [0, {most}]")
    return array


def _tokens(name: str, value: Any) -> Tokens:
    return _integers(name, value, np.iinfo(np.int32).max).astype(np.int32)


def are_log_probabilities(array: arrays.Array) -> arrays.Bools:
    """Answers where floats [k] may be logarithms of probabilities of what was drawn [k]."""
    return np.asarray(np.isfinite(array) & (array <= _MOST_ROUNDED))


def _log_probabilities(value: Any, count: int) -> arrays.Array:
    name = "log_probabilities"
    array = _row(name, value, "floats")
    if array.dtype.kind in "iu":
        array = casting.fit(name, array, array.shape, np.dtype(np.float64))
    if array.dtype.type not in FLOATS:
        raise errors.ArgumentTypeError(f"{name} must be a row of floats, got {validation.shown(value)}")
    _check_count(name, array, count)
    rule = f"finite numbers of at most 0, up to {_MOST_ROUNDED} for rounding"
    _check(name, array, are_log_probabilities(array), rule)
    return array.astype(array.dtype.newbyteorder("="))


def _versions(value: Any, count: int) -> arrays.Ints:
    name = "policy_version"
    single = _array(value)
    if single is not None and single.ndim == 0:
        return np.full(count, validation.integer_of_at_least_zero(name, value), np.int64)
    array = _integers(name, value, validation.LARGEST)
    _check_count(name, array, count)
    return array.astype(np.int64)


def _booleans(value: Any, count: int) -> arrays.Bools:
    name = "loss_mask"
    array = _row(name, value, "bools")
    if array.dtype.kind != "b":
        raise errors.ArgumentTypeError(f"{name} must be a row of bools, got {validation.shown(value)}")
    _check_count(name, array, count)
    return array.astype(np.bool_)


def _check_count(name: str, array: arrays.Array, count: int) -> None:
    if len(array) != count:
        raise errors.ArgumentError(f"{name} must be one for each of {count} tokens of the answer, got {len(array)}")


def _check(name: str, array: arrays.Array, holds: arrays.Bools, rule: str) -> None:
    """Raises ArgumentError unless a rule holds [k] for every entry of an array [k]."""
    if not holds.all():
        place = int(np.flatnonzero(~holds)[0])
        raise errors.ArgumentError(f"{name} must be {rule}, got {array[place]} at position {place}")
