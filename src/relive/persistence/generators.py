"""The state of numpy random generators as JSON values."""

import json
from typing import Any

import numpy as np

from relive import errors
from relive.persistence import state as state_lib

_NAMES = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_KINDS: dict[str, type[np.random.BitGenerator]] = {name: getattr(np.random, name) for name in _NAMES}
_MOST = {"has_uint32": 1, "pos": 624, "buffer_pos": 4}
"""What numpy takes as it is, and would read beyond an array with: what these numbers are at most."""


def state_of(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a generator; raise CheckpointError if it is not one of numpy's own."""
    kind = type(rng.bit_generator)
    if _KINDS.get(kind.__name__) is not kind:
        raise errors.CheckpointError(
            f"a generator of the kind {kind.__name__} cannot be saved: make one of {', '.join(_KINDS)}"
        )
    plain: dict[str, Any] = _plain(rng.bit_generator.state)
    return plain


def load(given: state_lib.StateReader) -> np.random.Generator:
    """Return a generator of that state; raise CheckpointError if numpy does not take it, or makes another one of it."""
    kind = _KINDS[given.one_of("bit_generator", *_KINDS)]
    bits = kind(0)
    saved = {name: given.value(name) for name in bits.state}
    try:
        bits.state = saved
        # In JSON, True and 1.0 are not 1.
        is_same = json.dumps(_plain(bits.state), sort_keys=True) == json.dumps(saved, sort_keys=True)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise errors.CheckpointError(f"generator must have a state that numpy accepts: {error}") from error
    if not is_same or not _goes_on(bits.state):
        raise errors.CheckpointError(f"generator must have a valid state of {kind.__name__}")
    return np.random.Generator(bits)


def _goes_on(state: dict[str, Any]) -> bool:
    """Return whether numbers can be drawn with a state: some break numpy, others yield the same number forever.

    Bounded integers are drawn by rejection, which would never end.
    """
    inner: dict[str, Any] = state["state"]
    if any(not 0 <= part.get(name, 0) <= most for part in (state, inner) for name, most in _MOST.items()):
        return False
    if "pos" in inner:  # Only the highest bit of the first word of a Mersenne Twister matters.
        return bool(inner["key"][0] >> 31 or inner["key"][1:].any())
    return bool(inner.get("inc", 1) % 2)


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
