"""A state with one damaged part is refused by every buffer, and changes nothing."""

from collections.abc import Callable, Iterator
import copy
import functools
import random
from typing import Any, get_args

import numpy as np
import pytest

import relive
from relive import errors
from relive.buffers import item_cuts
from relive.buffers import item_state_test
from relive.buffers import joint_state_test
from relive.common import arrays
from relive.persistence import checkpointable_test
from relive.persistence import generators
from relive.persistence import state as state_lib
from relive.samplers import uniform


def rollout(seed: int) -> relive.RolloutBuffer:
    """Return a rollout of a few steps."""
    buffer = relive.RolloutBuffer(8)
    for t in range(3 + seed):
        buffer.add({"x": float(t)}, t, 1.0, value=0.5, logp=float(seed))
    return buffer


BUFFERS: dict[str, Callable[[int], Any]] = {
    **{name: functools.partial(checkpointable_test.worked, make) for name, make in checkpointable_test.COLUMNS.items()},
    **{
        f"joint, {name}": functools.partial(joint_state_test.worked, make)
        for name, make in joint_state_test.BUFFERS.items()
    },
    **{f"items, {unit}": functools.partial(item_state_test.worked, unit) for unit in get_args(item_cuts.StorageUnit)},
    "rollout": rollout,
}


def damaged_arrays(state: state_lib.State) -> Iterator[tuple[str, state_lib.State]]:
    """Yield a state for each array and each way to damage it."""
    for name, array in state["arrays"].items():
        ways: dict[str, Any] = {
            "of another dtype": array.astype("V3") if array.dtype.names is None else np.zeros(array.shape, "V3"),
            "with one more axis": array[np.newaxis],
            "with a row too many": np.concatenate([array, np.zeros((1, *array.shape[1:]), array.dtype)]),
            "no array": array.tolist(),
        }
        for way, damaged in ways.items():
            yield f"array {name} {way}", {**state, "arrays": {**state["arrays"], name: damaged}}
        yield (
            f"without array {name}",
            {**state, "arrays": {other: each for other, each in state["arrays"].items() if other != name}},
        )


def damaged_values(state: state_lib.State) -> Iterator[tuple[str, state_lib.State]]:
    """Yield a state for each JSON value of another kind, and for each that is missing."""
    places: list[tuple[Any, ...]] = []

    def visit(part: Any, path: tuple[Any, ...]) -> None:
        for name in part:
            if (*path, name) not in (("arrays",), ("journal",)):
                places.append((*path, name))
                if isinstance(part[name], dict):
                    visit(part[name], (*path, name))

    visit(state, ())
    for path in places:
        for kind, value in {"of another kind": "damaged", "negative": -1, "missing": None}.items():
            damaged: state_lib.State = {**copy.deepcopy({**state, "arrays": None}), "arrays": state["arrays"]}
            part: dict[str, Any] = damaged
            for name in path[:-1]:
                part = part[name]
            if kind == "negative" and type(part[path[-1]]) is not int:
                continue
            if kind == "missing":
                del part[path[-1]]
            else:
                part[path[-1]] = value
            yield f"{'/'.join(path)} {kind}", damaged


def impossible(state: state_lib.State) -> Iterator[tuple[str, state_lib.State]]:
    """Yield a state for each value of the right kind that contradicts the others."""
    counters, array_of = state.get("counters", {}), state["arrays"]
    changes: dict[str, dict[str, Any]] = {}
    if "inserted" in counters:
        for more in (-1, 1):
            changes[f"inserted {more:+}"] = {"counters": {**counters, "inserted": counters["inserted"] + more}}
        changes["more splices than steps"] = {"counters": {**counters, "spliced_episodes": counters["inserted"] + 1}}
        changes["another next key"] = {"next_key": state["next_key"] + 1}
    if "num_spent" in state:
        changes["more retired than were added"] = {"num_spent": state["next_key"] + 1}
        if any(array_of.get(name, np.zeros(1)).any() for name in ("times_sampled", "drawn")):
            changes["fewer draws than rows say"] = {"counters": {**counters, "sampled": 0}}
    if "evicted" in counters:
        changes["more evicted than added"] = {"counters": {**counters, "evicted": counters["added"] + 1}}
    if state["generator"]:
        other = generators.state_of(np.random.Generator(np.random.Philox(1)))
        changes["another kind of generator"] = {"generator": other}
    for name in ("draw_key", "sampler/priorities"):
        if len(array_of.get(name, ())):
            wrong = np.full_like(array_of[name], -1)
            changes[f"wrong values of {name}"] = {"arrays": {**array_of, name: wrong}}
    for description, change in changes.items():
        yield description, {**state, **change}


@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS.keys())
@pytest.mark.parametrize("damage", [damaged_arrays, damaged_values, impossible])
def test_a_state_of_which_one_part_is_damaged_is_refused_and_changes_nothing(
    make: Callable[[int], Any], damage: Callable[[state_lib.State], Iterator[tuple[str, state_lib.State]]]
) -> None:
    buffer, state = make(1), make(2).state_dict()
    make(1).load_state_dict(state)
    before = checkpointable_test.plain(buffer.state_dict())
    for name, damaged in damage(state):
        try:
            with pytest.raises(errors.CheckpointError):
                buffer.load_state_dict(damaged)
            assert checkpointable_test.plain(buffer.state_dict()) == before
        except BaseException as error:
            error.add_note(name)
            raise


class RefusingSampler(uniform.UniformSampler):
    """Fails when it is restored."""

    def _restore(self, given: Any, slots: arrays.Slots) -> None:
        raise RuntimeError("this one takes nothing back")


def test_a_sampler_that_cannot_be_restored_leaves_the_buffer_as_it_was() -> None:
    def make(seed: int) -> relive.RingReplayBuffer:
        buffer = relive.RingReplayBuffer(20, checkpointable_test.SCHEMA, sampler=RefusingSampler(), seed=seed)
        checkpointable_test.work(buffer, random.Random(seed), 40)
        return buffer

    buffer = make(1)
    before = checkpointable_test.plain(buffer.state_dict())
    with pytest.raises(RuntimeError, match="^this one takes nothing back$"):
        buffer.load_state_dict(make(2).state_dict())
    assert checkpointable_test.plain(buffer.state_dict()) == before
    buffer.check()
