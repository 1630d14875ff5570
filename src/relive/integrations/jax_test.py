from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")

import jax
from jax import numpy as jnp
from jax import tree_util

import relive
from relive import errors
from relive.integrations import jax as relive_jax
from relive.windows import batches as batches_lib

SCHEMA = relive.Schema(
    {"image": relive.Field((4, 4), "uint8"), "state": relive.Field(3, "float64")},
    relive.Field((), "int64"),
    reward=relive.Field((), "float32"),
    extras={"flag": relive.Field((), bool), "half": relive.Field(2, ">f2")},
)


def fill(buffer: Any, count: int = 40) -> Any:
    rng = np.random.default_rng(0)
    for t in range(count):
        observation = {"image": rng.integers(0, 256, (4, 4), np.uint8), "state": rng.random(3)}
        buffer.add(observation, t, t / 4, terminated=t % 7 == 6, flag=t % 2 == 0, half=np.full(2, t, np.float16))
    return buffer


def transitions(**settings: Any) -> relive.PrioritizedReplayBuffer:
    buffer: relive.PrioritizedReplayBuffer = fill(relive.PrioritizedReplayBuffer(50, SCHEMA, seed=0, **settings))
    return buffer


def sequences() -> relive.SequenceReplayBuffer:
    buffer: relive.SequenceReplayBuffer = fill(relive.SequenceReplayBuffer(50, SCHEMA, length=3, pad=True, seed=0))
    return buffer


def leaves(batch: Any) -> dict[str, Any]:
    return {path: array for path, array in batches_lib.leaves(batch) if path != "keys"}


NARROW = {np.dtype("f8"): np.dtype("f4"), np.dtype("i8"): np.dtype("i4"), np.dtype(">f2"): np.dtype("f2")}


@pytest.mark.parametrize("make", [transitions, sequences])
@pytest.mark.parametrize("is_wide", [False, True])
def test_every_field_is_the_array_of_its_array(make: Any, is_wide: bool) -> None:
    batch = make().sample(16)
    with jax.enable_x64(is_wide):
        there = relive_jax.as_jax(batch)
    found = leaves(there)
    assert found.keys() == leaves(batch).keys()
    for path, array in leaves(batch).items():
        assert isinstance(found[path], jax.Array)
        expected = array.dtype.newbyteorder("=") if is_wide else NARROW.get(array.dtype, array.dtype)
        assert found[path].dtype == expected
        assert np.asarray(found[path]).tolist() == array.astype(expected).tolist()
    assert there.keys is batch.keys
    assert len(there) == 16


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (2**31, "32 bits of int32"),
        (-(2**31) - 1, "32 bits of int32"),
        (np.uint64(2**32), "32 bits of uint32"),
        (1e39, "32 bits of float32"),
        (-1e39, "32 bits of float32"),
        (1e39j, "64 bits of complex64"),
    ],
)
def test_a_number_that_jax_would_change_into_another_is_refused(number: Any, said: str) -> None:
    buffer = relive.RingReplayBuffer(9, seed=0)
    buffer.add(0.0, number, 1.0, 1.0)
    with pytest.raises(errors.ArgumentError, match=f"^action must fit the {said}: set jax_enable_x64 for more$"):
        relive_jax.as_jax(buffer.sample(2))
    with jax.enable_x64(True):
        assert relive_jax.as_jax(buffer.sample(2)).action.tolist() == [number] * 2


@pytest.mark.parametrize("number", [2**31 - 1, -(2**31), np.uint64(2**32 - 1), 3e38, np.inf, -np.inf, -0.0, 1e-50])
def test_a_number_that_fits_or_is_infinite_is_taken(number: Any) -> None:
    buffer = relive.RingReplayBuffer(9, seed=0)
    buffer.add(0.0, number, 1.0, 1.0)
    narrow = np.float32(number) if isinstance(number, float) else number
    assert relive_jax.as_jax(buffer.sample(2)).action.tolist() == [narrow] * 2


def test_a_batch_that_cannot_be_written_to_is_copied() -> None:
    batch = transitions().sample(8)
    batch.reward.flags.writeable = False
    assert relive_jax.as_jax(batch).reward.tolist() == batch.reward.tolist()


def test_a_batch_of_jax_is_none_of_a_buffer() -> None:
    there: Any = relive_jax.as_jax(transitions().sample(8))
    with pytest.raises(errors.ArgumentTypeError, match="^batch must be what a buffer has drawn, got TransitionBat"):
        relive_jax.as_jax(there)


@pytest.mark.parametrize("dtype", ["U3", "M8[s]", "g"])
def test_what_jax_cannot_hold_is_refused_by_name(dtype: str) -> None:
    schema = relive.Schema(relive.Field((), float), relive.Field((), int), extras={"odd": relive.Field((), dtype)})
    buffer = relive.RingReplayBuffer(9, schema, seed=0)
    buffer.add(0.0, 1, 0.5, 1.0, odd=np.zeros((), dtype))
    with pytest.raises(errors.ArgumentError, match="^extras/odd must be of a dtype that JAX has, got "):
        relive_jax.as_jax(buffer.sample(2))
    wrong: Any = 3
    with pytest.raises(errors.ArgumentTypeError, match="^batch must be what a buffer has drawn, got 3$"):
        relive_jax.as_jax(wrong)


@pytest.mark.parametrize("make", [transitions, sequences])
def test_a_batch_goes_through_functions_of_jax(make: Any) -> None:
    batch = relive_jax.as_jax(make().sample(8), device=jax.devices()[0])
    doubled = jax.jit(lambda each: tree_util.tree_map(lambda leaf: leaf + leaf, each))(batch)
    assert type(doubled) is type(batch)
    assert doubled.reward.tolist() == (2 * batch.reward).tolist()
    assert doubled.observation["image"].dtype == jnp.uint8
    assert doubled.keys is None
    assert len(doubled) == 8
    paths = [tree_util.keystr(path) for path, _ in tree_util.tree_flatten_with_path(batch)[0]]
    assert ".observation['state']" in paths
    assert ".keys" not in paths


def test_one_compilation_serves_all_batches() -> None:
    buffer, traced = transitions(), []

    def errors_of(batch: Any) -> Any:
        traced.append(batch)
        return jnp.abs(batch.reward - 3.0)

    compiled = jax.jit(errors_of)
    for _ in range(3):
        batch = relive_jax.as_jax(buffer.sample(8))
        assert buffer.update_priorities(batch.keys, compiled(batch)) == 8
    assert len(traced) == 1


def test_gradients_are_those_of_the_batch() -> None:
    batch = relive_jax.as_jax(transitions().sample(8))

    def loss(weight: Any, each: Any) -> Any:
        return ((weight * each.reward - 1.0) ** 2 * each.weights).sum()

    expected = (2 * batch.reward * (0.5 * batch.reward - 1.0) * batch.weights).sum()
    assert np.isclose(jax.grad(loss)(0.5, batch), expected)


def test_a_batch_of_arrays_is_a_pytree_too() -> None:
    buffer = relive.RingReplayBuffer(9, seed=0)
    buffer.add_episode([0.0, 1.0, 2.0], [0, 1], [1.0, 2.0], terminated=True)
    batch = buffer.sample(8)
    assert jax.jit(lambda each: each.reward.sum())(batch) == batch.reward.sum()


def test_a_repr_shows_shapes_and_dtypes_also_while_a_function_is_traced() -> None:
    batch, shown = relive_jax.as_jax(sequences().sample(8)), []
    jax.jit(lambda each: shown.append(repr(each)))(batch)
    for text in (repr(batch), *shown):
        assert "observation/state: float32[8, 4, 3], " in text
    assert " keys: int64[8], " in repr(batch)
    assert " keys: NoneType, " in shown[0]


@pytest.mark.parametrize("call", [lambda batch: batch.to("cpu"), lambda batch: batch.pin_memory()])
def test_what_tensors_alone_can_do_is_refused(call: Any) -> None:
    with pytest.raises(
        errors.ArgumentTypeError, match=r"needs a batch of tensors, got one of \w+: as_tensors makes it$"
    ):
        call(relive_jax.as_jax(transitions().sample(8)))
