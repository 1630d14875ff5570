"""Sizes that no memory holds are refused in one line, with the bytes of one and of all, before anything is stored."""

from collections.abc import Callable
import itertools
import math
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.storage import memory

SCHEMA = relive.Schema(relive.Field((), np.int64), relive.Field((), np.int64))
WIDE = relive.Schema(relive.Field(100, np.float32), relive.Field((), np.int64))


def padded(length: int, schema: relive.Schema | None = None) -> Any:
    return relive.ColumnReplayBuffer(10, schema, window=relive.SequenceWindow(length=length, pad=True), seed=0)


CONSTRUCTORS: dict[str, tuple[str, Callable[[int], Any]]] = {
    "ring": ("capacity", relive.RingReplayBuffer),
    "ring with a schema": ("capacity", lambda n: relive.RingReplayBuffer(n, SCHEMA)),
    "prioritized": ("capacity", relive.PrioritizedReplayBuffer),
    "limited": ("capacity", lambda n: relive.RingReplayBuffer(n, max_times_sampled=2)),
    "sequences": ("(capacity|length)", lambda n: relive.SequenceReplayBuffer(n, length=n)),
    "padded sequences": ("length", padded),
    "frame stack": ("frame_stack", lambda n: relive.RingReplayBuffer(10, frame_stack=n)),
    "first frames": ("frame_stack", lambda n: relive.RingReplayBuffer(10, frame_stack=n, stack_padding="first")),
    "joint": ("capacity", lambda n: relive.JointReplayBuffer(n, agents=["a"])),
    "joint sequences": ("(capacity|length)", lambda n: relive.JointSequenceReplayBuffer(n, agents=["a"], length=n)),
    "tokens": ("max_tokens", lambda n: relive.TokenReplayBuffer(n, allocate=np.zeros)),
    "padded tokens": ("pad_to_multiple_of", lambda n: relive.TokenReplayBuffer(10, pad_to_multiple_of=n)),
    "rollout": ("max_steps", relive.RolloutBuffer),
    "leaves": ("capacity", relive.SumTree),
    "storage": ("capacity", lambda n: relive.ColumnStorage(SCHEMA, n, allocate=np.zeros)),
}


def rule(name: str) -> str:
    return rf"^{name} must fit in memory, got \d+ [a-z]+ of \d+ bytes each, [\d,.]+ GiB in all$"


def test_a_size_that_no_machine_holds_is_refused(subtests: pytest.Subtests) -> None:
    for size, (name, make) in itertools.product([2**55, 2**60, 2**62], CONSTRUCTORS.values()):
        with subtests.test(name), pytest.raises(errors.ArgumentError, match=rule(name)):
            make(size)


def test_sequences_of_more_streams_than_fit_are_refused() -> None:
    """The newest keys of each stream are kept, as many as a sequence has."""
    with pytest.raises(errors.ArgumentError, match=rule("length")):
        relive.SequenceReplayBuffer(2**20, length=2**20, streams=2**19)


def test_items_that_no_machine_holds_are_refused(subtests: pytest.Subtests) -> None:
    units: list[Any] = ["timesteps", "sequences", "episodes"]
    for unit in units:
        with subtests.test(unit), pytest.raises(errors.ArgumentError, match=rule("capacity")):
            relive.ItemReplayBuffer(2**60, unit)


def test_a_limit_of_fragments_takes_no_memory() -> None:
    buffer = relive.ItemReplayBuffer(2**60, "fragments")
    buffer.add({"x": [1, 2]})
    assert len(buffer) == 2


def test_a_memory_map_that_no_machine_holds_is_refused(tmp_path: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=rule("capacity")):
        relive.MemmapStorage(tmp_path / "map", SCHEMA, 2**60)
    assert not (tmp_path / "map").exists()


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make numpy raise MemoryError for arrays above 1 GiB."""
    for name in ("empty", "zeros", "full"):
        allocate = getattr(np, name)

        def guarded(shape: Any, *arguments: Any, _allocate: Any = allocate, **named: Any) -> Any:
            if math.prod(np.atleast_1d(np.array(shape, object)).tolist()) > 2**30:
                raise MemoryError("Unable to allocate")
            return _allocate(shape, *arguments, **named)

        monkeypatch.setattr(np, name, guarded)


@pytest.mark.usefixtures("small_machine")
def test_a_size_that_this_machine_does_not_hold_is_refused(subtests: pytest.Subtests) -> None:
    for name, make in CONSTRUCTORS.values():
        with subtests.test(name), pytest.raises(errors.ArgumentError, match=rule(name)):
            make(2**31)


B = np.zeros(100)
FIRST_STEPS: dict[str, tuple[str, Callable[[], Any], Callable[[Any], Any]]] = {
    "capacity": ("capacity", lambda: relive.RingReplayBuffer(2**25), lambda b: b.add([0.0] * 100, 0, 1.0)),
    "frame stack": ("frame_stack", lambda: relive.RingReplayBuffer(9, frame_stack=2**26), lambda b: b.add(B, 0, 1.0)),
    "length": ("length", lambda: padded(2**26), lambda b: b.add(B, 0, 1.0)),
    "joint": (
        "length",
        lambda: relive.JointSequenceReplayBuffer(2**26, agents=["a"], length=2**26),
        lambda b: b.add({"a": B}, {"a": 0}, {"a": 1.0}, {"a": B}),
    ),
    "rollout": ("max_steps", lambda: relive.RolloutBuffer(2**29), lambda b: b.add(B, 0, 1.0)),
    "items": ("capacity", lambda: relive.ItemReplayBuffer(2**29), lambda b: b.add({"x": [B, B]})),
}


@pytest.mark.parametrize(("name", "make", "add"), FIRST_STEPS.values(), ids=FIRST_STEPS)
def test_a_first_step_that_memory_does_not_hold_is_refused(
    name: str, make: Callable[[], Any], add: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the constructor could not know yet, and nothing is stored."""
    buffer = make()
    monkeypatch.setattr(memory, "MOST_BYTES", 2**30)
    with pytest.raises(errors.ArgumentError, match=rule(name)):
        add(buffer)
    assert len(buffer) == 0


def test_tokens_that_memory_holds_no_longer_are_refused() -> None:
    def allocate(shape: Any, dtype: Any) -> Any:
        raise MemoryError("Unable to allocate")

    buffer = relive.TokenReplayBuffer(100, allocate=allocate, seed=0)
    step = relive.TokenStep(prompt=[1], response=[2], logprobs=[-0.5], policy_version=0)
    with pytest.raises(errors.ArgumentError, match=rule("max_tokens")):
        buffer.add_episode([step], agent_id="a")
    assert len(buffer) == 0


def test_a_known_schema_is_checked_by_the_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MOST_BYTES", 2**20)
    relive.RingReplayBuffer(10, WIDE, frame_stack=2**11)
    with pytest.raises(
        errors.ArgumentError, match="^frame_stack must fit in memory, got 4096 frames of 400 bytes each"
    ):
        relive.RingReplayBuffer(10, WIDE, frame_stack=2**12)
    with pytest.raises(errors.ArgumentError, match="^length must fit in memory, got 4096 steps of 416 bytes each"):
        padded(2**12, WIDE)
    large = relive.Schema(relive.Field(2**19, np.float32), relive.Field((), np.int64))
    for frame_stack, name in ((1, "schema"), (2, "frame_stack")):
        with pytest.raises(errors.ArgumentError, match=rule(name)):
            relive.RingReplayBuffer(10, large, frame_stack=frame_stack)
