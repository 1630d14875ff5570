from typing import Any, assert_type

import numpy as np
import pytest

import relive
from relive import errors
from relive.common import arrays
from relive.windows import batches

SCHEMA = relive.Schema(
    {"image": relive.Field((4, 4), "uint8"), "hand": {"angle": relive.Field(3, "float32")}},
    relive.Field((), "int64"),
    reward=relive.Field((), "float32"),
    extras={"flag": relive.Field((), bool)},
)


def drawn(kind: str) -> Any:
    buffer: Any = relive.RingReplayBuffer(50, SCHEMA, seed=0)
    if kind == "sequences":
        buffer = relive.SequenceReplayBuffer(50, SCHEMA, length=3, seed=0)
    for t in range(9):
        observation = {"image": np.full((4, 4), t, np.uint8), "hand": {"angle": np.full(3, t, np.float32)}}
        buffer.add(observation, t, float(t), flag=t % 2 == 0)
    return buffer.sample(5)


@pytest.mark.parametrize("kind", ["transitions", "sequences"])
def test_map_calls_the_function_with_every_array_but_the_keys(kind: str) -> None:
    batch = drawn(kind)
    before = dict(batches.leaves(batch))
    mapped = batch.map(lambda array: array[:2])
    assert type(mapped) is type(batch)
    assert mapped.keys is batch.keys
    assert len(mapped) == 2
    after = dict(batches.leaves(mapped))
    assert after.keys() == before.keys()
    for path in before.keys() - {"keys"}:
        assert after[path].tolist() == before[path][:2].tolist()
    for path, array in batches.leaves(batch):
        assert array is before[path]


def test_a_repr_shows_paths_dtypes_and_shapes_and_no_values() -> None:
    assert repr(drawn("transitions")) == (
        "TransitionBatch(observation/hand/angle: float32[5, 3], observation/image: uint8[5, 4, 4], action: int64[5], "
        "reward: float32[5], next_observation/hand/angle: float32[5, 3], next_observation/image: uint8[5, 4, 4], "
        "next_discount: float32[5], is_terminal: bool[5], steps: int64[5], keys: int64[5], probabilities: float64[5], "
        "weights: float64[5], extras/flag: bool[5])"
    )
    assert repr(drawn("sequences")).startswith("SequenceBatch(observation/hand/angle: float32[5, 4, 3], ")


def test_a_repr_shows_the_type_of_what_is_no_array() -> None:
    batch = drawn("transitions").map(lambda array: None)
    assert ", reward: NoneType, " in repr(batch)


@pytest.mark.parametrize("kind", ["transitions", "sequences"])
def test_arrays_of_numpy_go_to_no_device(kind: str) -> None:
    rule = "needs a batch of tensors, got one of ndarray: as_tensors makes it$"
    with pytest.raises(errors.ArgumentTypeError, match=f"^to {rule}"):
        drawn(kind).to("cuda")
    with pytest.raises(errors.ArgumentTypeError, match=f"^pin_memory {rule}"):
        drawn(kind).pin_memory()


def test_a_batch_of_nothing_said_is_one_of_numpy() -> None:
    batch: relive.TransitionBatch = drawn("transitions")
    assert_type(batch.reward, arrays.Array)
    assert_type(batch.keys, arrays.Keys)
    assert_type(batch.map(lambda array: str(array)), relive.TransitionBatch[str])
    runs: relive.SequenceBatch = drawn("sequences")
    assert_type(runs.mask, arrays.Array)
    assert_type(runs.map(lambda array: str(array)), relive.SequenceBatch[str])
