import contextlib
import json
from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.persistence import generators
from relive.persistence import state as state_lib

KINDS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")


def made(state: dict[str, Any]) -> np.random.Generator:
    return generators.load(state_lib.StateReader({"generator": state}, {}).part("generator"))


def used(kind: str) -> np.random.Generator:
    """A generator with half of a number left."""
    rng = np.random.Generator(getattr(np.random, kind)(5))
    rng.random(3)
    rng.integers(7, dtype=np.int32)
    return rng


def test_a_generator_goes_on_after_json() -> None:
    for kind in KINDS:
        rng = used(kind)
        state = generators.state_of(rng)
        other = made(json.loads(json.dumps(state, allow_nan=False)))
        assert rng.integers(7, size=99, dtype=np.int32).tolist() == other.integers(7, size=99, dtype=np.int32).tolist()
        assert rng.standard_normal(999).tolist() == other.standard_normal(999).tolist()
        assert state == generators.state_of(made(state))


def places(state: Any) -> list[tuple[Any, Any]]:
    own = list(state) if isinstance(state, dict) else list(range(len(state)))[:3]
    below = [place for name in own if isinstance(state[name], dict | list) for place in places(state[name])]
    return [(state, name) for name in own] + below


def test_a_state_with_anything_else_in_it_is_refused_or_goes_on(subtests: pytest.Subtests) -> None:
    for kind in KINDS:
        with subtests.test(kind=kind):
            for number in range(len(places(generators.state_of(used(kind))))):
                for value in (
                    None, True, -1, 3, 624, 625, 2**31, 2**32, 2**64, 2**128, 1.5, "x", [], [1], {}, {"a": 1},
                ):  # fmt: skip
                    state = generators.state_of(used(kind))
                    container, name = places(state)[number]
                    container[name] = value
                    with contextlib.suppress(errors.CheckpointError):
                        rng = made(state)
                        assert generators.state_of(rng) == state
                        rng.integers(1000, size=100)
                        rng.integers(3, size=100, dtype=np.int32)


def test_numbers_that_numpy_takes_unseen_are_refused(subtests: pytest.Subtests) -> None:
    """With them, it would read what lies behind its array."""
    for kind, name, value in [
        *(("MT19937", "pos", value) for value in (-1, 625, 2**31 - 1)),
        *(("Philox", "buffer_pos", value) for value in (-1, 5, 2**31 - 1)),
        *(("PCG64", "has_uint32", value) for value in (-1, 2)),
    ]:
        with subtests.test(value=value):
            state = generators.state_of(used(kind))
            (state["state"] if name == "pos" else state)[name] = value
            message = f"^generator must have a (valid state of {kind}$|state that numpy)"
            with pytest.raises(errors.CheckpointError, match=message):
                made(state)


def test_a_state_that_is_not_json_is_refused() -> None:
    state = generators.state_of(used("PCG64"))
    with pytest.raises(errors.CheckpointError, match="^generator must have a state that numpy accepts: Object of type"):
        made(state | {"uinteger": np.int64(7)})


def test_a_state_that_gives_one_number_for_ever_is_refused() -> None:
    """With it, drawing a number below a limit would never end."""
    twister = generators.state_of(used("MT19937"))
    twister["state"]["key"] = [2**31 - 1] + [0] * 623
    with pytest.raises(errors.CheckpointError, match="^generator must have a valid state of MT19937$"):
        made(twister)
    for first, last in ((2**31, 0), (0, 1)):
        twister["state"]["key"] = [first] + [0] * 622 + [last]
        made(twister).integers(3, size=9)
    for kind in ("PCG64", "PCG64DXSM"):
        state = generators.state_of(used(kind))
        state["state"] = {"state": 0, "inc": 0}
        with pytest.raises(errors.CheckpointError, match=f"^generator must have a valid state of {kind}$"):
            made(state)


def test_a_generator_of_another_class_is_not_saved() -> None:
    own = np.random.Generator(type("PCG64", (np.random.PCG64,), {})(0))
    message = "^a generator of the kind PCG64 cannot be saved: make one of MT19937"
    with pytest.raises(errors.CheckpointError, match=message):
        generators.state_of(own)
