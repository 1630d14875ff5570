"""States that were tampered with: each is refused, or makes a buffer that works."""

from collections.abc import Iterator
import contextlib
import copy
import random
import re
from typing import Any

import numpy as np
import pytest

from relive import errors
from relive.common import validation
from relive.persistence import checkpointable_test
from relive.persistence import seed_blocks_test

MUTANTS = 7
"""Forged states of each buffer in the default run."""

VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    *(-1, 0, 1, 2, 3, 5, 20, 40, 2**31, 2**53, 2**62, 2**62 + 1, 2**63, 2**64, 10**15, -(2**70)),
    *(0.0, -0.0, 0.5, 1.0, 1e-320, 1e308, -1.0),
    *("", "x", "own", "live", "none", "PCG64", "SFC64"),
    *([], [1], {}, {"kind": "MinSize", "n": 1}, {"kind": "MinSize"}, {"kind": "own", "class": "x"}, {"kind": 3}),
    {"kind": "LinearSchedule", "start": 0.0, "end": 1.0, "steps": 3},
    {"kind": "LinearSchedule", "start": {"kind": "MinSize", "n": 1}, "end": 1.0, "steps": 3},
)
LARGE = frozenset({"capacity", "frame_stack", "length"})
"""Arguments for which any buffer takes memory: values in between take too much for a test."""


def forged(state: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A copy with a few changes."""
    state = copy.deepcopy(state)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if rng.random() < 0.5:
            _change_values(state, rng)
        else:
            _change_arrays(state["arrays"], rng)
    return state


def _change_values(state: dict[str, Any], rng: random.Random) -> None:
    places: list[tuple[Any, Any]] = []

    def visit(container: Any) -> None:
        for place in list(container) if isinstance(container, dict) else range(len(container)):
            if container is state and place == "arrays":
                continue
            places.append((container, place))
            if isinstance(container[place], dict | list):
                visit(container[place])

    visit(state)
    container, place = rng.choice(places)
    value = container[place]
    action = rng.randrange(6)
    if action == 0:
        del container[place]
    elif action == 1 and type(value) is int:
        container[place] = value + rng.choice([-1, 1, 2])
    elif action == 2:
        other, there = rng.choice(places)
        container[place] = copy.deepcopy(other[there]) if there in other or isinstance(other, list) else None
    elif action == 3 and type(value) is bool:
        container[place] = not value
    else:
        container[place] = rng.choice(VALUES)
    if place in LARGE and type(container.get(place)) is int and 100 < container[place] < 2**62:
        container[place] = 2**62


def _change_arrays(arrays: dict[str, Any], rng: random.Random) -> None:
    name, other = rng.choice(list(arrays)), rng.choice(list(arrays))
    array = arrays[name]
    action = rng.randrange(9)
    if action == 0:
        del arrays[name]
    elif action == 1:
        arrays[name], arrays[other] = arrays[other], array
    elif action == 2 and array is not None:
        arrays[name] = array[: rng.randrange(len(array) + 1)]
    elif action == 3 and isinstance(array, np.ndarray) and array.ndim:
        arrays[name] = np.concatenate(
            [array, array[-1:] if len(array) else np.zeros((1, *array.shape[1:]), array.dtype)]
        )
    elif action == 4 and isinstance(array, np.ndarray):
        arrays[name] = rng.choice([array[np.newaxis], array.astype("V8"), array.astype("S2"), array.tolist(), None])
    elif not isinstance(array, np.ndarray):
        arrays[name] = arrays[other]
    elif action == 5:
        arrays[name] = np.array(rng.sample(list(array), len(array)), array.dtype).reshape(array.shape)
    elif array.size and array.dtype.kind in "iufb":
        values = array.reshape(-1)
        at, kind = rng.randrange(len(values)), array.dtype.kind
        if kind == "b":
            values[at] = not values[at]
        elif kind == "f":
            values[at] = (
                rng.choice([0.0, -0.0, 1.0, -1.0, 1e300, 1e-310, np.nan, np.inf]) if array.itemsize == 8 else 1.0
            )
        elif action == 6:
            values[at] += np.array(rng.choice([1, 255])).astype(array.dtype) if kind == "u" else rng.choice([-1, 1])
        elif action == 7:
            limits = np.iinfo(array.dtype)
            values[at] = rng.choice([0, 1, 2, 5, limits.max, limits.min, limits.max // 2, limits.max // 2 + 1])
        else:
            values[:] = values[at]


@contextlib.contextmanager
def noted(note: str) -> Iterator[None]:
    """Add a note to an exception that is raised."""
    try:
        yield
    except BaseException as error:
        error.add_note(note)
        raise


@contextlib.contextmanager
def suppressed(error: type[Exception], pattern: str) -> Iterator[None]:
    """Ignore an error whose message begins like that."""
    try:
        yield
    except error as raised:
        if not re.match(pattern, str(raised)):
            raise


def assert_usable(buffer: Any, rng: random.Random) -> None:
    """Check that a buffer passes its audit and can be used."""
    buffer.check()
    settings = buffer.state_dict()["settings"]
    if any(type(settings.get(name)) is int and settings[name] > 100 for name in LARGE):
        return
    # Errors that only the caller's own settings cause.
    with np.errstate(all="ignore"), suppressed(errors.ArgumentError, "beta must |priority of row "):
        for seed in range(2):
            with suppressed(errors.ArgumentError, "beta must |priority of row "):
                checkpointable_test.work(buffer, random.Random(rng.random() + seed), 15)
        checkpointable_test.batch_of(buffer)
    buffer.check()
    again = type(buffer)._loaded(buffer.state_dict(), {}, **checkpointable_test.options(buffer))
    assert checkpointable_test.plain(again.state_dict()) == checkpointable_test.plain(buffer.state_dict())


def is_made(buffer: Any, state: dict[str, Any], seed: int) -> bool:
    """Return whether another buffer of the class is made of a forged state, which then works."""
    try:
        made = type(buffer)._loaded(copy.deepcopy(state), {}, **checkpointable_test.options(buffer))
    except errors.CheckpointError:
        return False
    assert_usable(made, random.Random(seed))
    return True


def is_loaded(buffer: Any, state: dict[str, Any], seed: int) -> bool:
    """Return whether a buffer takes a forged state, and then works; one that refuses it has not changed."""
    before = checkpointable_test.plain(buffer.state_dict())
    try:
        buffer.load_state_dict(state)
    except errors.CheckpointError:
        assert checkpointable_test.plain(buffer.state_dict()) == before
        return False
    assert_usable(buffer, random.Random(seed))
    return True


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize("seeds", seed_blocks_test.seed_blocks(2 * MUTANTS, 50, 10))
@pytest.mark.parametrize("name", checkpointable_test.BUFFERS)
def test_a_forged_state_is_refused_or_makes_a_buffer_that_works(name: str, seeds: range) -> None:
    make, taken = checkpointable_test.BUFFERS[name], 0
    buffer = checkpointable_test.worked(make, 1, 25)
    right = buffer.state_dict()
    for seed in seeds:
        rng = random.Random(f"{name} {seed}")
        if seed % 4 == 0:
            right = checkpointable_test.worked(make, seed % 7, rng.randrange(5, 90)).state_dict()
        state = forged(right, rng)
        with noted(f"in the forged state of seed {seed}"):
            taken += is_made(buffer, state, seed)
            if is_loaded(buffer, state, seed):
                buffer = checkpointable_test.worked(make, seed, 25)
    buffer.check()
    checkpointable_test.batch_of(buffer)
    assert 0 < taken < len(seeds) or len(seeds) < 20


def test_limits_are_as_large_as_the_checks_of_arguments_have_them() -> None:
    assert validation.LARGEST in VALUES
