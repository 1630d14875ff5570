"""The state of numpy random generators as JSON values."""

import math
from typing import Any

import numpy as np

from relive import errors
from relive.persistence import state as state_lib

_KINDS: dict[str, type[np.random.BitGenerator]] = {
    kind.__name__: kind
    for kind in (
        np.random.MT19937,
        np.random.PCG64,
        np.random.PCG64DXSM,
        np.random.Philox,
        np.random.SFC64,
    )
}
_MOST = {"has_uint32": 1, "uinteger": 2**32 - 1, "pos": 624, "buffer_pos": 4}
"""What the single numbers of a state are at most; numpy does not check them."""


def state_of(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a generator.

    Raises:
        CheckpointError: It is not one of numpy's own.
    """
    kind = type(rng.bit_generator)
    if _KINDS.get(kind.__name__) is not kind:
        raise errors.CheckpointError(
            f"a generator of the kind {kind.__name__} cannot be saved: make one of {', '.join(_KINDS)}"
        )
    plain: dict[str, Any] = _plain(rng.bit_generator.state)
    return plain


def load(given: state_lib.StateReader) -> np.random.Generator:
    """Return a generator of that state.

    Raises:
        CheckpointError: The state is invalid.
    """
    kind = _KINDS[given.one_of("bit_generator", *_KINDS)]
    bits = kind(0)
    state = _like("generator", _plain(bits.state), {name: given.value(name) for name in _plain(bits.state)})
    try:
        bits.state = state
    except (ValueError, TypeError, OverflowError) as error:
        raise errors.CheckpointError(f"generator must have a state that numpy accepts: {error}") from error
    if _plain(bits.state) != _plain(state) or _is_stuck(bits.state["state"]):
        raise errors.CheckpointError(f"generator must have a valid state of {kind.__name__}")
    return np.random.Generator(bits)


def _is_stuck(state: dict[str, Any]) -> bool:
    """Return whether it may be an invalid state that yields the same number forever.

    Bounded integers are drawn by rejection, which would never end.
    """
    if "inc" in state:
        return bool(state["inc"] % 2 == 0)
    if "pos" in state:
        # Only the highest bit of the first word of a Mersenne Twister matters.
        return not (state["key"][0] >> 31 or state["key"][1:].any())
    return False


def check_kind(own: np.random.Generator, other: np.random.Generator) -> None:
    """Raise CheckpointError if the two generators are of different kinds."""
    kinds = [type(rng.bit_generator).__name__ for rng in (own, other)]
    if kinds[0] != kinds[1]:
        raise errors.CheckpointError(f"generator/bit_generator must be {kinds[0]}, as in this object, got {kinds[1]}")


def _plain(value: Any) -> Any:
    """Return a part of a state without arrays."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _like(name: str, example: Any, value: Any) -> Any:
    """Return a part of a state, checked against the form of the example."""
    if isinstance(example, dict):
        if not isinstance(value, dict) or value.keys() != example.keys():
            raise errors.CheckpointError(f"{name} must be a mapping with {', '.join(example)}")
        return {part: _like(f"{name}/{part}", example[part], value[part]) for part in example}
    if isinstance(example, list):
        width = 32 if len(example) > 4 else 64
        if not isinstance(value, list) or len(value) != len(example):
            raise errors.CheckpointError(f"{name} must be a list of {len(example)} numbers")
        if not all(type(number) is int and 0 <= number < 2**width for number in value):
            raise errors.CheckpointError(f"{name} must hold integers in [0, 2**{width})")
        return np.array(value, np.uint32 if width == 32 else np.uint64)
    last = name.rpartition("/")[2]
    if type(value) is not type(example) or (type(value) is int and not 0 <= value <= _MOST.get(last, math.inf)):
        raise errors.CheckpointError(f"{name} must be a number that numpy itself could write there")
    return value
