"""TokenStep: one response of a language model, with its prompt and log-probabilities.

    prompt               p p p p p            all that the model saw before the response [P]
    response                         a a a a    what it generated then [A]
    logprobs              l l l l    of exactly these tokens, by the policy that generated them [A]
    policy_version                 v v v v    which version of the policy that was [A]
    loss_mask                      T T T F    which of them are to be trained on [A]
    reward                               r    what followed

These cannot be reconstructed later: another tokenizer, chat template or policy gives other tokens and numbers.
"""

from collections.abc import Iterable, Sequence
import copy
import dataclasses
import itertools
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.persistence import codec
from relive.schema import casting
from relive.windows import returns

_MARK = b"\0"
_NAMES = ("prompt", "response", "logprobs", "policy_version", "loss_mask", "reward")
FIELDS = ("tokens", "loss_mask", "logprobs", "policy_versions", "rewards", "steps")
"""What there is of each token."""
Tokens: TypeAlias = npt.NDArray[np.int32]
_MOST_ROUNDED = 0.01
"""No log-probability is larger: above 0 there is only what rounding makes of 0, in the coarsest floats."""
_BOOLS = frozenset((bool, np.bool_))
FLOATS = (np.float16, np.float32, np.float64)
"""What log-probabilities may be kept as."""


@dataclasses.dataclass(frozen=True, init=False, repr=False, eq=False, slots=True)
class TokenStep:
    """One response of a language model, token by token. Values are checked and copied; the arrays are read-only.

    So are those of copies and pickles; a step that an EpisodeReplayBuffer returns has arrays of its own to write to.

    Attributes:
        prompt: All tokens that the model saw before the response, the entire context [P]; P may be 0.
        response: The tokens that it generated [A]; at least one. Includes the token that ends a turn, if it was
            generated.
        logprobs: The log-probability with which each was drawn [A], by the policy at that time, in their original
            dtype; float64 for a list, also one of scalar tensors, which a buffer casts to the dtype of its others.
        policy_version: The policy version that generated each [A].
        loss_mask: Which of them to train on [A].
        reward: The reward for the response.

    >>> import relive
    >>> step = relive.TokenStep(prompt=[1, 15, 4], response=[7, 2], logprobs=[-0.5, -0.25], policy_version=3)
    >>> step
    <TokenStep of a prompt of 3 tokens and a response of 2, reward=0.0>
    >>> step.policy_version, step.loss_mask
    (array([3, 3]), array([ True,  True]))
    """

    prompt: Tokens
    response: Tokens
    logprobs: arrays_lib.Array
    policy_version: arrays_lib.Ints
    loss_mask: arrays_lib.Bools
    reward: float
    _is_weak: bool = dataclasses.field(init=False)

    def __init__(
        self,
        *,
        prompt: npt.ArrayLike,
        response: npt.ArrayLike,
        logprobs: npt.ArrayLike,
        policy_version: npt.ArrayLike,
        loss_mask: npt.ArrayLike | None = None,
        reward: float = 0.0,
    ) -> None:
        """Create a step from array-likes, which are copied.

        Args:
            prompt: Integers in [0, 2^31) [P].
            response: Integers in [0, 2^31) [A].
            logprobs: Finite floats [A], at most 0, with a tolerance of 0.01 for rounding. For a token that was forced,
                not drawn, give 0 and exclude it from the loss mask.
            policy_version: An integer of at least 0; or one for each token [A], if the weights changed during
                generation.
            loss_mask: Flags [A], True, False, 0 or 1; None for all True.
            reward: A finite number.

        Raises:
            ArgumentTypeError: An argument has the wrong type.
            ArgumentError: An argument is invalid; the message says which, and where.
        """
        tokens = row_of_tokens("response", response)
        count = len(tokens)
        if not count:
            raise errors.ArgumentError("response must have at least 1 token, got 0")
        mask = [True] * count if loss_mask is None else loss_mask
        values = {
            "prompt": row_of_tokens("prompt", prompt),
            "response": tokens,
            "logprobs": _logprobs(logprobs, count),
            "policy_version": _versions(policy_version, count),
            "loss_mask": validation.flags("loss_mask", mask, count).copy(),
        }
        for name, array in values.items():
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        object.__setattr__(self, "reward", episode_lib.checked_reward(reward))
        # Lists, whatever numbers are in them, and integers have no dtype to keep.
        is_weak = not hasattr(logprobs, "dtype") or np.asarray(logprobs).dtype.kind in "iu"
        object.__setattr__(self, "_is_weak", is_weak)

    def __setstate__(self, state: Iterable[Any]) -> None:
        for field, value in zip(dataclasses.fields(self), state, strict=True):
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            object.__setattr__(self, field.name, value)

    def __repr__(self) -> str:
        sizes = f"a prompt of {len(self.prompt)} tokens and a response of {len(self.response)}"
        return f"<{type(self).__name__} of {sizes}, reward={self.reward}>"


def _array(value: Any) -> arrays_lib.Array | None:
    """Return `value` as a numpy array; None if that fails."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _row(name: str, value: Any, what: str, kinds: str, count: int | None) -> arrays_lib.Array:
    """Return `value` as an array [count] of one of those kinds of dtype, without a copy; of any length if None."""
    array = _array(value)
    has_mask = isinstance(value, np.ndarray) and isinstance(value, np.ma.MaskedArray)
    # numpy converts True among numbers to 1.
    has_bools = isinstance(value, list | tuple) and not _BOOLS.isdisjoint(map(type, value))
    is_wrong = array is None or array.ndim != 1 or (array.dtype.kind not in kinds and array.size)
    if array is None or is_wrong or has_mask or has_bools:
        shown, remedy = validation.short_repr(value), validation.tensor_remedy(value)
        raise errors.ArgumentTypeError(f"{name} must be a row of {what}, got {shown}{remedy}")
    if count not in (None, len(array)):
        raise errors.ArgumentError(f"{name} must be one for each of {count} tokens of the response, got {len(array)}")
    return array


def _integers(name: str, value: Any, most: int, count: int | None = None) -> arrays_lib.Array:
    array = _row(name, value, "integers", "iu", count)
    _check(name, array, (array >= 0) & (array <= most), f"integers in [0, {most}]")
    return array


def row_of_tokens(name: str, value: Any) -> Tokens:
    """Return tokens as an array [k]."""
    return _integers(name, value, np.iinfo(np.int32).max).astype(np.int32)


def are_logprobs(array: arrays_lib.Array) -> arrays_lib.Bools:
    """Return where floats [k] are valid log-probabilities of drawn tokens [k]."""
    return np.asarray(np.isfinite(array) & (array <= _MOST_ROUNDED))


def _logprobs(value: Any, count: int) -> arrays_lib.Array:
    array = _row("logprobs", value, "floats", "iuf", count)
    is_float = array.dtype.kind == "f"
    if not is_float or not hasattr(value, "dtype"):
        array = casting.cast_exact("logprobs", array, array.shape, np.dtype(np.float64), is_weak=is_float)
    if array.dtype.type not in FLOATS:
        raise errors.ArgumentTypeError(f"logprobs must be a row of floats, got {validation.short_repr(value)}")
    rule = f"finite numbers of at most 0, up to {_MOST_ROUNDED} for rounding"
    _check("logprobs", array, are_logprobs(array), rule)
    return array.astype(array.dtype.newbyteorder("="))


def _versions(value: Any, count: int) -> arrays_lib.Ints:
    single = _array(value)
    if single is not None and single.ndim == 0:
        return np.full(count, validation.non_negative_int("policy_version", value), np.int64)
    return _integers("policy_version", value, validation.LARGEST, count).astype(np.int64)


def _check(name: str, array: arrays_lib.Array, holds: arrays_lib.Bools, rule: str) -> None:
    """Raise ArgumentError unless the rule holds for every entry of an array [k]."""
    for place in np.flatnonzero(~holds):
        raise errors.ArgumentError(f"{name} must be {rule}, got {array[place]} at position {place}")


class TokenStepCodec:
    """A codec for TokenSteps and all that a PlainCodec supports; pass it to save, load, attach and recover.

    Steps are restored bit for bit, and validated. A step inside a list or dict is refused.

    >>> import relive
    >>> codec = relive.TokenStepCodec()
    >>> step = relive.TokenStep(prompt=[1, 5], response=[7], logprobs=[-0.5], policy_version=0)
    >>> codec.decode(codec.encode(step))
    <TokenStep of a prompt of 2 tokens and a response of 1, reward=0.0>
    """

    name = "token-steps-1"

    def __init__(self) -> None:
        self._plain = codec.PlainCodec()

    def encode(self, value: Any) -> bytes:
        """Return the bytes of a value.

        Raises:
            ArgumentError: It is not a TokenStep, and a PlainCodec does not support it.
        """
        if type(value) is TokenStep:
            values = {name: getattr(value, name) for name in _NAMES}
            if value._is_weak:
                values["logprobs"] = value.logprobs.tolist()
            return _MARK + self._plain.encode(tuple(values.values()))
        return self._plain.encode(value)

    def decode(self, content: bytes) -> Any:
        """Return the value of the bytes, which may be untrusted.

        Raises:
            ArgumentTypeError: `content` is not bytes.
            CheckpointError: The bytes are invalid.
        """
        if type(content) is not bytes or not content.startswith(_MARK):
            return self._plain.decode(content)
        values = self._plain.decode(content[1:])
        if type(values) is not tuple or len(values) != len(_NAMES):
            shown = validation.short_repr(values)
            raise errors.CheckpointError(f"a TokenStep must be {', '.join(_NAMES)}, got {shown}")
        try:
            return TokenStep(**dict(zip(_NAMES, values, strict=True)))
        except errors.ArgumentError as error:
            raise errors.CheckpointError(f"a TokenStep cannot be made: {error}") from error


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TokenMismatch:
    """Where a prompt first differs from the previous prompt and response.

    Attributes:
        step: The step of the prompt, from 1.
        position: The first token of that prompt that differs.
        expected: The token at that position in the previous prompt and response.
        found: The token in the prompt; None if the prompt ends before.
    """

    step: int
    position: int
    expected: int
    found: int | None


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class TokenEpisode:
    """The steps of one episode, joined: one sequence if they are exact, else more.

    Attributes:
        columns: The FIELDS by name, for the concatenated tokens of all sequences [N].
        logprobs_dtype: The widest dtype of log-probabilities that were given as arrays; None if all were lists.
        lengths: Number of tokens of each sequence in `columns` [S].
        mismatches: Why each sequence does not continue the previous one [S]; None for the first.
        rewards: The reward of each step [K].
        parents: The key of the sequence that each begins like [S]; -1 for none.
        shared: The number of tokens at its beginning that it shares with that, which are not in `columns` [S].
    """

    columns: dict[str, arrays_lib.Array]
    logprobs_dtype: np.dtype[Any] | None
    lengths: arrays_lib.Ints
    mismatches: tuple[TokenMismatch | None, ...]
    rewards: tuple[float, ...]
    parents: arrays_lib.Ints
    shared: arrays_lib.Ints

    @property
    def total_reward(self) -> float:
        """The sum of the rewards of all steps."""
        return returns.total(self.rewards)

    @property
    def is_exact(self) -> bool:
        """Whether each prompt begins with the entire previous prompt and response."""
        return len(self.mismatches) == 1


def join(steps: Sequence[TokenStep]) -> TokenEpisode:
    """Join the steps of an episode into as few sequences of tokens as possible. O(tokens of prompts and responses).

    Raises:
        ArgumentTypeError: `steps` is not a sequence, or one of them is not a TokenStep.
        ArgumentError: There is none.

    >>> import relive
    >>> from relive.agents import tokens
    >>> first = relive.TokenStep(prompt=[1, 5], response=[7], logprobs=[-0.5], policy_version=0)
    >>> second = relive.TokenStep(prompt=[1, 5, 7, 9], response=[8], logprobs=[-0.25], policy_version=0)
    >>> tokens.join([first, second]).columns["tokens"]
    array([1, 5, 7, 9, 8], dtype=int32)
    >>> changed = relive.TokenStep(prompt=[1, 6, 7, 9], response=[8], logprobs=[-0.25], policy_version=0)
    >>> joined = tokens.join([first, changed])
    >>> joined.columns["tokens"], joined.lengths
    (array([1, 5, 7, 1, 6, 7, 9, 8], dtype=int32), array([3, 5]))
    >>> joined.mismatches[1]
    TokenMismatch(step=1, position=1, expected=5, found=6)
    """
    if not isinstance(steps, Sequence):
        raise errors.ArgumentTypeError(f"steps must be a sequence of TokenSteps, got {validation.short_repr(steps)}")
    if not steps:
        raise errors.ArgumentError("steps must have at least 1 step, got 0")
    for number, step in enumerate(steps):
        validation.require_instance(f"step {number}", step, TokenStep)
    mismatches: list[TokenMismatch | None] = [None]
    pieces = [steps[0].prompt, steps[0].response]  # Of each step what is new of its prompt, and its response.
    starts = [0]
    for number, (before, step) in enumerate(itertools.pairwise(steps), 1):
        seen, mismatch = len(before.prompt) + len(before.response), _mismatch(number, before, step)
        if mismatch is not None:
            mismatches.append(mismatch)
            starts.append(len(pieces))
            seen = 0
        pieces += step.prompt[seen:], step.response
    sizes = np.array([len(piece) for piece in pieces])
    is_response, ends = np.repeat(np.tile([False, True], len(steps)), sizes), np.cumsum(sizes)
    logprobs = np.concatenate([step.logprobs for step in steps])
    columns = {
        "tokens": np.concatenate(pieces),
        "loss_mask": np.zeros(len(is_response), np.bool_),
        "logprobs": np.zeros(len(is_response), logprobs.dtype),
        "policy_versions": np.full(len(is_response), -1, np.int64),
        "rewards": np.zeros(len(is_response)),
        "steps": np.repeat(np.arange(len(steps), dtype=np.int32), np.diff(ends[1::2], prepend=0)),
    }
    columns["loss_mask"][is_response] = np.concatenate([step.loss_mask for step in steps])
    columns["logprobs"][is_response] = logprobs
    columns["policy_versions"][is_response] = np.concatenate([step.policy_version for step in steps])
    rewards = tuple(step.reward for step in steps)
    columns["rewards"][ends[1::2] - 1] = rewards
    given = [step.logprobs.dtype for step in steps if not step._is_weak]
    widest = np.result_type(*given) if given else None
    count = len(starts)
    lone = np.full(count, -1), np.zeros(count, np.int64)
    return TokenEpisode(columns, widest, np.add.reduceat(sizes, starts), tuple(mismatches), rewards, *lone)


def _mismatch(number: int, before: TokenStep, after: TokenStep) -> TokenMismatch | None:
    """Return where the prompt of a step differs from the previous prompt and response, if it does."""
    begin = 0
    for known in (before.prompt, before.response):
        given = after.prompt[begin : begin + len(known)]
        places = np.flatnonzero(known[: len(given)] != given)
        place = int(places[0]) if len(places) else len(given)
        if place < len(known):
            found = int(given[place]) if place < len(given) else None
            return TokenMismatch(step=number, position=begin + place, expected=int(known[place]), found=found)
        begin += len(known)
    return None


def steps_of(episode: episode_lib.Episode[Any, TokenStep]) -> list[TokenStep]:
    """Return the steps of an episode whose actions are TokenSteps, with the rewards of the episode.

    Observations are ignored: a TokenStep has all that its model saw.

    Raises:
        ArgumentTypeError: An action is not a TokenStep.
        ArgumentError: A step has a nonzero reward that differs from that in the episode.
    """
    steps = []
    for number, (step, reward) in enumerate(zip(episode.actions, episode.rewards, strict=True)):
        name = f"action {number} of episode {episode.episode_id}"
        validation.require_instance(name, step, TokenStep)
        if step.reward not in (0, reward):
            rule = f"the reward {reward} of its step, or 0"
            raise errors.ArgumentError(f"{name} must have {rule}, got {step.reward}")
        twin = copy.copy(step)
        object.__setattr__(twin, "reward", reward)
        steps.append(twin)
    return steps
