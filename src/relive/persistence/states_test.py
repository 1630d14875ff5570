"""Every kind of buffer goes on from its state as if nothing had happened, and takes no other state."""

from collections.abc import Iterator
import contextlib
import copy
import io
import itertools
import json
import os
import pathlib
import pickle
import random
import re
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import validation
from relive.persistence import archive_test
from relive.persistence import seed_blocks_test
from relive.testing import zoo

State = dict[str, Any]
plain = zoo.plain
KINDS = pytest.mark.parametrize("kind", zoo.STORED.values(), ids=zoo.STORED.keys())
OF_ANY_LENGTH = frozenset({"line"})
"""Arrays that may have another row."""


def bits_of(buffer: Any) -> Any:
    """Return the state of a buffer as something that can be compared."""
    return plain(buffer.state_dict())


def loaded(kind: zoo.Kind, state: State) -> Any:
    """Return a buffer of a state."""
    return type(kind.make()).from_state(state)


def used(kind: zoo.Kind, seed: int, count: int = 60) -> Any:
    """Return a buffer that has been in use, and was loaded where a restart changes it.

    What it has delivered may wait in it again, and its next version counts the places of an Admission anew.
    """
    buffer = zoo.worked(kind.make, seed, count)
    is_changed = redelivers(buffer) or getattr(buffer, "admission", None) is not None
    return type(buffer).from_state(buffer.state_dict()) if is_changed else buffer


def redelivers(buffer: Any) -> bool:
    """Return whether a loaded buffer delivers again what the saved one had delivered."""
    return bool(getattr(buffer, "redeliver", False))


@KINDS
@pytest.mark.parametrize("count", [0, 60, None], ids=["empty", "used", "cleared"])
def test_loaded_buffers_continue_bit_for_bit(kind: zoo.Kind, count: int | None, tmp_path: pathlib.Path) -> None:
    """P69; also a copy of the copy, which needs neither (P70). Progress reaches the total, and older ones are kept."""
    buffer, told = used(kind, 2, 40 if count is None else count), list[tuple[int, int]]()
    if count is None:
        buffer.clear()
    for _ in range(3 if count else 1):
        told.clear()
        buffer.save(tmp_path / "one", keep=2, progress=lambda done, total: told.append((done, total)))
        assert told[-1][0] == told[-1][1]
    assert (tmp_path / "one.1").exists() == bool(count)
    assert not (tmp_path / "one.2").exists()
    type(buffer).load(tmp_path / "one").save(tmp_path / "two")
    (tmp_path / "one").unlink()
    told.clear()
    again = type(buffer).load(tmp_path / "two", progress=lambda done, total: told.append((done, total)))
    assert all(done == total for done, total in told[-1:])  # With no bytes, nothing is told.
    (tmp_path / "two").unlink()
    zoo.assert_same(buffer, again, 12)


@KINDS
@pytest.mark.long
def test_loaded_buffers_continue_for_1000_batches(kind: zoo.Kind) -> None:
    for seed in range(3):
        buffer = used(kind, seed, 200)
        zoo.assert_same(buffer, loaded(kind, buffer.state_dict()), 1000)


@KINDS
def test_states_are_json_and_arrays(kind: zoo.Kind) -> None:
    state = used(kind, 1).state_dict()
    values = {name: value for name, value in state.items() if name != "arrays"}
    assert json.loads(json.dumps(values, allow_nan=False)) == values
    assert {type(array) for array in state["arrays"].values()} == {np.ndarray}
    assert not any(array.dtype.hasobject for array in state["arrays"].values())


@KINDS
def test_states_load_into_used_buffers(kind: zoo.Kind) -> None:
    """What a user holds of such a buffer is the same object afterwards."""
    buffer, other = used(kind, 4), used(kind, 5, 30)
    held = {name: getattr(other, name) for name in ("sampler", "limiter", "window", "rng") if hasattr(other, name)}
    storage = getattr(getattr(other, "_store", None), "storage", None)
    other.load_state_dict(buffer.state_dict())
    assert all(getattr(other, name) is value for name, value in held.items())
    assert storage is None or other._store.storage is storage
    zoo.assert_same(buffer, other, 8)


@KINDS
def test_states_share_nothing_with_buffers(kind: zoo.Kind) -> None:
    """P53."""
    buffer = used(kind, 1, 40)
    state = buffer.state_dict()
    before = plain(copy.deepcopy(state))
    zoo.work(buffer, random.Random(5), 20)
    assert plain(state) == before
    first, second = kind.make(), kind.make()
    first.load_state_dict(state)
    second.load_state_dict(state)
    zoo.work(first, random.Random(6), 20)
    assert plain(state) == bits_of(second) == before
    for array in state["arrays"].values():
        array[...] = np.zeros((), array.dtype)
    state.clear()
    assert bits_of(second) == before
    zoo.check(second)


GENERATORS = itertools.cycle(["MT19937", "PCG64DXSM", "Philox", "SFC64"])
DRAWING = [
    pytest.param(kind, bits, id=f"{name}-{bits}")
    for (name, kind), bits in zip(zoo.STORED.items(), GENERATORS, strict=False)
    if kind.make().state_dict()["generator"]
]
"""Each kind that draws, with one of the generators of numpy: each of those with many kinds."""


@pytest.mark.parametrize(("kind", "bits"), DRAWING)
def test_every_generator_of_numpy_continues(kind: zoo.Kind, bits: str) -> None:
    buffer = used(kind, 7, 40)
    rng = np.random.Generator(getattr(np.random, bits)(3))
    rng.integers(5, dtype=np.int32)  # Half of a drawn word is kept for the next one.
    buffer = type(buffer).from_state(buffer.state_dict(), seed=rng)
    other = loaded(kind, buffer.state_dict())
    assert type(other.rng.bit_generator).__name__ == bits
    zoo.assert_same(buffer, other, 5)
    with pytest.raises(errors.CheckpointError, match=f"^generator/bit_generator must be PCG64, .*, got {bits}$"):
        kind.make().load_state_dict(buffer.state_dict())
    other = type(buffer).from_state(buffer.state_dict(), seed=5)
    assert plain(other.rng.bit_generator.state) == plain(np.random.default_rng(5).bit_generator.state)


# Files.


class Malicious:
    """Makes a directory when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self._path,)


@pytest.mark.parametrize("name", ["ring", "tokens", "joint with priorities"])
def test_damaged_files_are_refused_and_pickles_never_run(name: str, tmp_path: pathlib.Path) -> None:
    """P73."""
    kind, marker = zoo.STORED[name], tmp_path / "executed"
    used(kind, 8).save(tmp_path / "saved")
    path, pickled = tmp_path / "saved", pickle.dumps(Malicious(str(marker)))
    members, file = archive_test.contents_of(path), io.BytesIO()
    np.save(file, np.array([Malicious(str(marker))], object), allow_pickle=True)
    for name, content in members.items():
        objects = file.getvalue() if name.endswith(".npy") else b"{}"
        for damaged in (pickled, objects, content[:-3], b"", None):
            archive_test.stored(path, {**members, name: damaged})
            with pytest.raises(errors.CheckpointError):
                type(kind.make()).load(path)
    for damaged in (pickled, file.getvalue()):
        path.write_bytes(damaged)
        with pytest.raises(errors.CheckpointError):
            type(kind.make()).load(path)
    archive_test.written(path, members)
    assert not marker.exists()
    zoo.check(type(kind.make()).load(tmp_path / "saved"))


# Damaged states.


@KINDS
def test_what_is_not_a_state_of_the_class_is_refused(kind: zoo.Kind) -> None:
    buffer = used(kind, 1, 10)
    before, name = bits_of(buffer), type(buffer).__name__
    states: list[Any] = [None, [], {}, {"arrays": {}}, {"class": 3, "arrays": {}}]
    for state in states:
        with pytest.raises(errors.CheckpointError):
            buffer.load_state_dict(state)
    message = f"^the state is of a OtherBuffer, and not of a {name}: use OtherBuffer$"
    with pytest.raises(errors.CheckpointError, match=message):
        buffer.load_state_dict(buffer.state_dict() | {"class": "OtherBuffer"})
    assert bits_of(buffer) == before


def damaged_arrays(state: State) -> Iterator[tuple[str, State]]:
    """Yield a state for each array and each way to damage it."""
    for name, array in state["arrays"].items():
        rest = {other: each for other, each in state["arrays"].items() if other != name}
        ways: dict[str, Any] = {"of another dtype": np.zeros(array.shape, "V3"), "missing": None}
        if name not in OF_ANY_LENGTH:
            ways["with a row too many"] = np.concatenate([array, np.zeros((1, *array.shape[1:]), array.dtype)])
        if len(array):
            ways["with a row too few"] = array[:-1]
        for way, damaged in ways.items():
            yield f"array {name} {way}", {**state, "arrays": rest if damaged is None else {**rest, name: damaged}}


def damaged_values(state: State) -> Iterator[tuple[str, State]]:
    """Yield a state for each JSON value that is missing or of another kind."""
    places: list[tuple[Any, ...]] = []

    def visit(part: Any, path: tuple[Any, ...]) -> None:
        for name in part:
            if (*path, name) not in (("arrays",), ("journal",)):
                places.append((*path, name))
                if isinstance(part[name], dict):
                    visit(part[name], (*path, name))

    visit(state, ())
    for path in places:
        for way, value in {"of another kind": "damaged", "negative": -1, "missing": None}.items():
            damaged: State = {**copy.deepcopy({**state, "arrays": None}), "arrays": state["arrays"]}
            part: Any = damaged
            for name in path[:-1]:
                part = part[name]
            if way == "negative" and type(part[path[-1]]) is not int:
                continue
            if way == "missing":
                del part[path[-1]]
            else:
                part[path[-1]] = value
            yield f"{'/'.join(path)} {way}", damaged


def impossible(state: State) -> Iterator[tuple[str, State]]:
    """Yield a state for each value of the right kind that contradicts the others."""
    counters, array_of = state.get("counters", {}), state["arrays"]
    changes: dict[str, State] = {}
    if "inserted" in counters and "next_key" in state:
        for more in (-1, 1):
            changes[f"inserted {more:+}"] = {"counters": {**counters, "inserted": counters["inserted"] + more}}
        changes["more splices than steps"] = {"counters": {**counters, "spliced_episodes": counters["inserted"] + 1}}
        changes["another next key"] = {"next_key": state["next_key"] + 1}
    if "num_spent" in state:
        changes["more retired than were added"] = {"num_spent": state["next_key"] + 1}
        if array_of.get("times_sampled", np.zeros(1)).any():
            changes["fewer draws than rows say"] = {"counters": {**counters, "sampled": 0}}
    if "evicted" in counters and "added" in counters:
        changes["more evicted than added"] = {"counters": {**counters, "evicted": counters["added"] + 1}}
    if state["generator"]:
        other = relive.RingReplayBuffer(1, seed=np.random.Generator(np.random.Philox(1))).state_dict()
        changes["another kind of generator"] = {"generator": other["generator"]}
    if len(priorities := array_of.get("sampler/priorities", ())):
        changes["negative priorities"] = {"arrays": {**array_of, "sampler/priorities": np.full_like(priorities, -1)}}
    for description, change in changes.items():
        yield description, {**state, **change}


@pytest.mark.parametrize("share", [3, pytest.param(1, marks=pytest.mark.long)])
@KINDS
def test_states_with_one_damaged_part_change_nothing(kind: zoo.Kind, share: int) -> None:
    """A third of the parts, other ones for the next kind; at night all."""
    buffer, state = used(kind, 1, 20), used(kind, 2, 30).state_dict()
    used(kind, 1, 20).load_state_dict(state)
    before, first = bits_of(buffer), list(zoo.STORED.values()).index(kind) % share
    every = itertools.chain(damaged_arrays(state), damaged_values(state), impossible(state))
    for name, damaged in itertools.islice(every, first, None, share):
        with noted(name), pytest.raises(errors.CheckpointError):
            buffer.load_state_dict(damaged)
    assert bits_of(buffer) == before


@contextlib.contextmanager
def noted(note: str) -> Iterator[None]:
    """Add a note to an exception that is raised."""
    try:
        yield
    except BaseException as error:
        error.add_note(note)
        raise


class RefusingSampler(relive.UniformSampler):
    """Fails when it is restored."""

    def load_state_dict(self, given: Any, slots: Any) -> None:
        raise RuntimeError("this one takes nothing back")


def test_a_sampler_that_fails_to_load_changes_nothing() -> None:
    def make(seed: int) -> relive.RingReplayBuffer:
        buffer = relive.RingReplayBuffer(20, zoo.SCHEMA, sampler=RefusingSampler(), seed=seed)
        zoo.work(buffer, random.Random(seed), 40)
        return buffer

    buffer = make(1)
    before = bits_of(buffer)
    with pytest.raises(RuntimeError, match="^this one takes nothing back$"):
        buffer.load_state_dict(make(2).state_dict())
    assert bits_of(buffer) == before
    buffer.check()


class FailingStorage(zoo.OwnStorage):
    """Fails to write while `room` is 0."""

    fails_in = 0

    def write(self, slots: Any, rows: Any) -> None:
        self.fails_in -= 1
        if not self.fails_in:
            raise OSError("no space left on device")
        super().write(slots, rows)


def test_a_storage_that_fails_to_take_the_rows_keeps_its_own() -> None:
    storage = FailingStorage(zoo.SCHEMA, 17)
    buffer = relive.RingReplayBuffer(17, storage=storage, sampler=zoo.AmongNewest(), seed=0)
    zoo.work(buffer, random.Random(1), 40)
    other = relive.RingReplayBuffer(17, zoo.SCHEMA, sampler=zoo.AmongNewest(), seed=0)
    zoo.work(other, random.Random(2), 40)
    before, storage.fails_in = zoo.state_of(buffer), 1
    with pytest.raises(OSError, match="no space left on device"):
        buffer.load_state_dict(other.state_dict())
    assert zoo.state_of(buffer) == before
    buffer.check()
    buffer.load_state_dict(other.state_dict())
    zoo.assert_same(buffer, other)


# Forged states.

VALUES: tuple[Any, ...] = (
    None, True, False, *(-1, 0, 1, 2, 3, 5, 20, 40, 2**31, 2**53, 2**62, 2**62 + 1, 2**63, 2**64, 10**15, -(2**70)),
    *(0.0, -0.0, 0.5, 1.0, 1e-320, 1e308, -1.0), *("", "x", "own", "none", "PCG64", "SFC64"),
    *([], [1], {}, {"kind": "MinSize", "n": 1}, {"kind": "MinSize"}, {"kind": "own", "class": "x"}, {"kind": 3}),
    {"kind": "LinearSchedule", "start": 0.0, "end": 1.0, "steps": 3},
    {"kind": "LinearSchedule", "start": {"kind": "MinSize", "n": 1}, "end": 1.0, "steps": 3},
)  # fmt: skip
LARGE = frozenset({"capacity", "frame_stack", "length", "max_tokens", "max_steps", "pad_to_multiple_of"})
"""Arguments for which any buffer takes memory: values in between take too much for a test."""


def forged(state: State, rng: random.Random) -> State:
    """Return a copy with a few changes."""
    state = copy.deepcopy(state)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        if rng.random() < 0.5:
            _change_values(state, rng)
        else:
            _change_arrays(state["arrays"], rng)
    return state


def _change_values(state: State, rng: random.Random) -> None:
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
    is_there = place in container if isinstance(container, dict) else place < len(container)
    if place in LARGE and is_there and type(container[place]) is int and 100 < container[place] < 2**62:
        container[place] = 8 if place == "pad_to_multiple_of" else 2**62


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
        more = array[-1:] if len(array) else np.zeros((1, *array.shape[1:]), array.dtype)
        arrays[name] = np.concatenate([array, more])
    elif action == 4 and isinstance(array, np.ndarray):
        arrays[name] = rng.choice([array[np.newaxis], np.zeros(array.shape, "V8"), array.tolist(), None])
    elif not isinstance(array, np.ndarray):
        arrays[name] = arrays[other]
    elif action == 5:
        arrays[name] = np.array(rng.sample(list(array), len(array)), array.dtype).reshape(array.shape)
    elif array.size and array.dtype.kind in "iufb":
        _change_number(array.reshape(-1), action, rng)


def _change_number(values: Any, action: int, rng: random.Random) -> None:
    at, kind = rng.randrange(len(values)), values.dtype.kind
    if kind == "b":
        values[at] = not values[at]
    elif kind == "f":
        odd = [0.0, -0.0, 1.0, -1.0, 1e300, 1e-310, np.nan, np.inf]
        values[at] = rng.choice(odd) if values.itemsize == 8 else 1.0
    elif action == 6:
        values[at] += np.array(rng.choice([1, 255])).astype(values.dtype) if kind == "u" else rng.choice([-1, 1])
    elif action == 7:
        limits = np.iinfo(values.dtype)
        values[at] = rng.choice([0, 1, 2, 5, limits.max, limits.min, limits.max // 2, limits.max // 2 + 1])
    else:
        values[:] = values[at]


def assert_usable(buffer: Any, seed: int) -> None:
    """Check that a buffer passes its audit, can be used, and is saved again."""
    zoo.check(buffer)
    settings = buffer.state_dict()["settings"]
    is_known = set(getattr(buffer, "agents", zoo.AGENTS)) == set(zoo.AGENTS)  # Forged agents can only be loaded.
    if is_known and not any(type(settings.get(name)) is int and settings[name] > 200 for name in LARGE):
        with np.errstate(all="ignore"), forged_settings():
            zoo.work(buffer, random.Random(f"used {seed}"), 15)
            zoo.drawn(buffer)
        zoo.check(buffer)
    again = type(buffer).from_state(buffer.state_dict())
    if not redelivers(buffer):
        assert bits_of(again) == bits_of(buffer)


OF_SETTINGS = re.compile("beta must |priority of row |agent '.*': |(batch_size|count) must be at most ")
"""Beginnings of messages that only a forged setting can be blamed for."""


@contextlib.contextmanager
def forged_settings() -> Iterator[None]:
    """Leave the block where the schema or a setting of a forged state does not fit what the kind is used for."""
    try:
        yield
    except errors.ArgumentError as error:
        if not (isinstance(error, errors.SchemaError) or OF_SETTINGS.match(str(error))):
            raise


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::relive.errors.MisuseWarning")  # Forged counts may be of misuse.
@pytest.mark.parametrize("seeds", seed_blocks_test.seed_blocks(10, 200, 10))
@KINDS
def test_forged_states_are_refused_or_make_working_buffers(kind: zoo.Kind, seeds: range) -> None:
    buffer, taken = used(kind, 1, 25), 0
    messages: list[str] = []
    right = buffer.state_dict()
    for seed in seeds:
        rng = random.Random(seed)
        if seed % 4 == 0:
            right = used(kind, seed % 7, rng.randrange(5, 90)).state_dict()
        state = forged(right, rng)
        with noted(f"in the forged state of seed {seed}"):
            before = bits_of(buffer)
            try:
                made = loaded(kind, copy.deepcopy(state))
            except errors.CheckpointError as error:
                messages.append(str(error))
            else:
                taken += 1
                assert_usable(made, seed)
            try:
                buffer.load_state_dict(state)
            except errors.CheckpointError:
                assert bits_of(buffer) == before
            else:
                assert_usable(buffer, seed)
                buffer = used(kind, seed, 25)
    zoo.check(buffer)
    assert messages
    assert taken > 0 or len(seeds) <= 10
    assert not any("\n" in message for message in messages)


def test_forged_limits_include_the_largest_argument() -> None:
    assert validation.LARGEST in VALUES
