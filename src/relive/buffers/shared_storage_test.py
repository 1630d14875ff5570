"""A storage belongs to one buffer: two would overwrite each other's rows."""

from collections.abc import Callable
import functools
import gc
import importlib
import pathlib
from typing import Any
import weakref

import numpy as np
import pytest

import relive
from relive import errors
from relive.buffers import column
from relive.storage import memory
from relive.testing import zoo
from relive.windows import transitions

SCHEMA = relive.Schema(relive.Field(2, "float32"), relive.Field((), "int64"))
KINDS: dict[str, Callable[..., Any]] = {
    "ring": relive.RingReplayBuffer,
    "prioritized": relive.PrioritizedReplayBuffer,
    "sequence": lambda *args, **options: relive.SequenceReplayBuffer(*args, length=2, **options),
    "column": lambda *args, **options: column.ColumnReplayBuffer(
        *args, window=transitions.TransitionWindow(), **options
    ),
}


class Slotted(memory.ColumnStorage):
    """Can be neither hashed nor compared."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise TypeError


def storage_of(name: str, folder: pathlib.Path) -> Any:
    if name == "map":
        return relive.MemmapStorage(folder / "rows", SCHEMA, 6)
    if name == "tensors":
        pytest.importorskip("torch", reason="torch is not installed")
        return importlib.import_module("relive.integrations.torch").TensorStorage(SCHEMA, 6, "cpu")
    return {"columns": memory.ColumnStorage, "own": zoo.OwnStorage, "slotted": Slotted}[name](SCHEMA, 6)


def step(buffer: Any, name: str = "columns") -> None:
    values = np.zeros(2, np.float32), np.array(1), np.array(0.0), np.ones(2, np.float32)
    buffer.add(*map(importlib.import_module("torch").from_numpy, values) if name == "tensors" else values)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["columns", "own", "slotted", "map", "tensors"])
def test_a_storage_belongs_to_one_buffer(name: str, kind: str, tmp_path: pathlib.Path) -> None:
    storage, make, sampler = storage_of(name, tmp_path), KINDS[kind], relive.UniformSampler()
    first, rng = relive.RingReplayBuffer(6, storage=storage, seed=0), np.random.default_rng(1)
    step(first, name)
    before = rng.bit_generator.state
    rule = "^storage must belong to one buffer alone, got that of a RingReplayBuffer: make another one, or delete "
    for _ in range(2):
        with pytest.raises(errors.ArgumentError, match=rule):
            make(6, storage=storage, seed=rng, **({"sampler": sampler} if kind == "ring" else {}))
    assert not sampler.is_attached
    assert rng.bit_generator.state == before
    step(first, name)
    assert first.appended == len(first) == 2
    del first
    step(make(6, storage=storage), name)


def test_a_storage_is_free_once_its_buffer_is_collected() -> None:
    storage = memory.ColumnStorage(SCHEMA, 6)
    buffer: Any = relive.RingReplayBuffer(6, storage=storage)
    buffer.itself, gone = buffer, weakref.ref(buffer)
    gc.disable()
    try:
        del buffer
        assert gone() is not None
        relive.RingReplayBuffer(6, storage=storage)
        assert gone() is None
    finally:
        gc.enable()


def test_a_call_that_fails_leaves_its_storage_free(tmp_path: pathlib.Path) -> None:
    storage, taken = memory.ColumnStorage(SCHEMA, 6), relive.UniformSampler()
    saved = relive.RingReplayBuffer(6, SCHEMA, sampler=taken, seed=0)
    with relive.Journal(tmp_path / "log") as journal:
        saved.attach(journal)
        for _ in range(3):
            step(saved)
        saved.save(tmp_path / "saved.relive")
    state = {**saved.state_dict(), "counters": {}}
    content = (tmp_path / "saved.relive").read_bytes()
    (tmp_path / "broken.relive").write_bytes(content.replace(b"rewards", b"rewardz")[:-3] + b"xyz")
    (segment,) = (tmp_path / "log").glob("segment-*.relive")
    segment.write_bytes(segment.read_bytes()[:-5])
    calls: list[Callable[..., Any]] = [
        lambda: relive.RingReplayBuffer(6, storage=storage, sampler=taken),
        lambda: relive.RingReplayBuffer.load(tmp_path / "broken.relive", storage=storage),
        functools.partial(relive.RingReplayBuffer.from_state, state, storage=storage),
        functools.partial(relive.recover, tmp_path / "log", storage=storage),
    ]
    held, sampler = [], relive.UniformSampler()
    calls += [functools.partial(call, sampler=sampler) for call in calls[2:]]
    for call in calls:
        with pytest.raises(errors.ReplayError) as caught:
            call()
        held.append(caught)  # With the frames in which the buffer was made.
    loaded = relive.load(tmp_path / "saved.relive", storage=storage, sampler=sampler)
    assert len(loaded) == 3
    with pytest.raises(errors.CheckpointError, match="of its settings: storage must belong to one buffer alone"):
        relive.load(tmp_path / "saved.relive", storage=storage)
    loaded.load_state_dict(loaded.state_dict())
    with pytest.raises(errors.ArgumentError, match="got that of a RingReplayBuffer"):
        relive.RingReplayBuffer(6, storage=storage)


@pytest.mark.parametrize(
    "make", [lambda **options: relive.RingReplayBuffer(6, SCHEMA, **options), relive.TokenReplayBuffer]
)
def test_a_sampler_is_free_after_a_load_that_failed(make: Callable[..., Any]) -> None:
    size = {"max_tokens": 50} if make is relive.TokenReplayBuffer else {}
    sampler, other = relive.PrioritizedSampler(), relive.PrioritizedSampler()
    saved = make(**size, sampler=other)
    state, broken = saved.state_dict(), {**saved.state_dict(), "sampler": {}}
    held = []
    for _ in range(2):
        with pytest.raises(errors.CheckpointError, match="^sampler/[a-z]* is missing$") as caught:
            type(saved).from_state(broken, sampler=sampler)
        held.append(caught)
    assert type(saved).from_state(state, sampler=sampler).sampler is sampler


def test_a_recovery_by_other_rules_takes_the_sampler_given(tmp_path: pathlib.Path) -> None:
    made = relive.TokenReplayBuffer(max_tokens=50, groups=relive.Groups(2), sampler=relive.PrioritizedSampler())
    with relive.Journal(tmp_path / "log") as journal:
        made.attach(journal)
    sampler = relive.PrioritizedSampler()
    assert relive.recover(tmp_path / "log", groups=relive.Groups(3), sampler=sampler).sampler is sampler
