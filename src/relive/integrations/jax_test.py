from collections.abc import Callable
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
from relive.windows import batches_test

EVERY_KIND = batches_test.EVERY_KIND
leaves, transitions, sequences = batches_test.array_leaves, batches_test.transitions, batches_test.sequences
NARROW = {np.dtype("f8"): np.dtype("f4"), np.dtype("i8"): np.dtype("i4"), np.dtype(">f2"): np.dtype("f2")}


def check_array(found: Any, array: Any, is_wide: bool = False) -> None:
    assert isinstance(found, jax.Array)
    expected = array.dtype.newbyteorder("=") if is_wide else NARROW.get(array.dtype, array.dtype)
    assert found.dtype == expected
    assert np.asarray(found).tolist() == array.astype(expected).tolist()


@EVERY_KIND
@pytest.mark.parametrize("is_wide", [False, True])
def test_every_field_is_the_array_of_its_array(draw: Callable[[], Any], is_wide: bool) -> None:
    batch = draw()
    with jax.enable_x64(is_wide):
        there = relive_jax.as_jax(batch)
    found = leaves(there)
    assert found.keys() == leaves(batch).keys()
    for path, array in leaves(batch).items():
        check_array(found[path], array, is_wide)
    for name in batches_test.NAMES:
        assert getattr(there, name, None) is getattr(batch, name, None)
    assert len(there) == 8


def test_items_rollouts_advantages_and_samples_become_arrays() -> None:
    items = relive.ItemReplayBuffer(20, "timesteps", seed=0)
    items.add({"obs": np.arange(6.0).reshape(3, 2)})
    drawn = items.sample(4)
    check_array(relive_jax.as_jax(drawn)["obs"], drawn["obs"])
    rollout = relive.RolloutBuffer(max_steps=1)
    rollout.add({"eye": [0.5]}, action=1, reward=1.0)
    check_array(relive_jax.as_jax(rollout.arrays())["observation"]["eye"], np.array([[0.5]]))
    advantages, returns = relive_jax.as_jax(rollout.advantages(gamma=0.5, lambda_=0.5))
    check_array(advantages, np.ones(1))
    check_array(returns, np.ones(1))
    buffer: relive.EpisodeReplayBuffer[Any, int] = relive.EpisodeReplayBuffer(seed=0)
    episode_id = buffer.start_episode_nowait("agent")
    buffer.append_observation_action_reward_nowait(episode_id, [1.0, 2.0], 3, 0.5)
    buffer.end_episode_nowait(episode_id, [2.0, 3.0])
    batch = relive_jax.as_jax(buffer.sample_n_step_nowait(2, 1, 0.5))
    check_array(batch.observation, np.array([[1.0, 2.0]] * 2))
    check_array(batch.reward, np.array([0.5, 0.5]))


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
def test_a_number_that_jax_would_change_is_refused(number: Any, said: str) -> None:
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


def test_a_read_only_batch_is_copied_for_jax() -> None:
    batch = transitions().sample(8)
    batch.reward.flags.writeable = False
    assert relive_jax.as_jax(batch).reward.tolist() == batch.reward.tolist()


def test_all_arrays_of_a_batch_are_put_on_the_device_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, put, devices = transitions().sample(8), jax.device_put, [*jax.devices()[:1]]
    monkeypatch.setattr(jax, "device_put", lambda parts, device: put(parts, devices.pop()))
    found = relive_jax.as_jax(batch, device=jax.devices()[0])
    assert devices == []
    assert np.asarray(found.observation["image"]).tolist() == batch.observation["image"].tolist()


def test_a_buffer_refuses_a_batch_of_jax() -> None:
    there: Any = relive_jax.as_jax(transitions().sample(8))
    with pytest.raises(
        errors.ArgumentTypeError, match="^observation/hand/angle must be what a buffer has drawn: arrays of numpy, got "
    ):
        relive_jax.as_jax(there)


@pytest.mark.parametrize("dtype", ["U3", "M8[s]", "g"])
def test_dtypes_that_jax_lacks_are_refused_by_name(dtype: str) -> None:
    schema = relive.Schema(relive.Field((), float), relive.Field((), int), extras={"odd": relive.Field((), dtype)})
    buffer = relive.RingReplayBuffer(9, schema, seed=0)
    buffer.add(0.0, 1, 0.5, 1.0, odd=np.zeros((), dtype))
    with pytest.raises(errors.ArgumentError, match="^extras/odd must be of a dtype that JAX has, got "):
        relive_jax.as_jax(buffer.sample(2))
    wrong: Any = 3
    with pytest.raises(
        errors.ArgumentTypeError, match="^batch must be what a buffer has drawn: arrays of numpy, got 3$"
    ):
        relive_jax.as_jax(wrong)


def doubled(batch: Any) -> Any:
    return tree_util.tree_map(lambda leaf: leaf + leaf, batch)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit(doubled),
    "jit of a slice": jax.jit(lambda batch: doubled(batch[:8])),
    "vmap": jax.vmap(doubled),
    "tree.map": lambda batch: jax.tree.map(lambda leaf: jnp.asarray(leaf) + jnp.asarray(leaf), batch),
    "device_put": lambda batch: doubled(jax.device_put(batch, jax.devices()[0])),
}


@EVERY_KIND
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_batches_of_jax_and_of_numpy_go_through_functions_of_jax(
    draw: Callable[[], Any], function: Callable[[Any], Any]
) -> None:
    batch = draw().map(lambda array: array.astype(array.dtype.newbyteorder("=")))
    expected = doubled(relive_jax.as_jax(batch, device=jax.devices()[0]))
    for given in (relive_jax.as_jax(batch), batch):
        there = function(given)
        assert type(there) is type(batch)
        for path, array in leaves(expected).items():
            assert leaves(there)[path].dtype == array.dtype
            assert leaves(there)[path].tolist() == array.tolist()
        for name in batches_test.NAMES:
            assert getattr(there, name, None) is None
        assert len(there) == 8


def test_the_paths_of_a_pytree_are_those_of_its_attributes() -> None:
    batch = relive_jax.as_jax(transitions().sample(8))
    paths = [tree_util.keystr(path) for path, _ in tree_util.tree_flatten_with_path(batch)[0]]
    assert ".observation['image']" in paths
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


def test_priorities_of_bfloat16_are_taken() -> None:
    buffer = relive.PrioritizedReplayBuffer(4, seed=0)
    buffer.add(0.0, 0, 1.0, 1.0)
    for priorities in (jnp.full(1, 3.0, jnp.bfloat16), np.asarray(jnp.full(1, 3.0, jnp.bfloat16))):
        assert buffer.update_priorities([0], priorities) == 1
        assert buffer.get_priorities([0]).tolist() == [3.0]
        buffer.update_priorities([0], [1.0])
    with pytest.raises(errors.SchemaError, match="^observation must be of a dtype of numpy's own, got bfloat16: cast"):
        relive.RingReplayBuffer(4).add(jnp.zeros(2, jnp.bfloat16), 0, 1.0)


def test_gradients_are_those_of_the_batch() -> None:
    batch = relive_jax.as_jax(transitions().sample(8))

    def loss(weight: Any, each: Any) -> Any:
        return ((weight * each.reward - 1.0) ** 2 * each.weights).sum()

    expected = (2 * batch.reward * (0.5 * batch.reward - 1.0) * batch.weights).sum()
    assert np.isclose(jax.grad(loss)(0.5, batch), expected)


def test_a_repr_shows_shapes_and_dtypes_while_tracing() -> None:
    batch, shown = relive_jax.as_jax(sequences().sample(8)), []
    jax.jit(lambda each: shown.append(repr(each)))(batch)
    for text in (repr(batch), *shown):
        assert "observation/hand/angle: float32[8, 4, 3], " in text
    assert " keys: int64[8], " in repr(batch)
    assert " keys: NoneType, " in shown[0]


@pytest.mark.parametrize("call", [lambda batch: batch.to("cpu"), lambda batch: batch.pin_memory()])
def test_a_batch_of_jax_refuses_calls_for_tensors(call: Any) -> None:
    with pytest.raises(
        errors.ArgumentTypeError, match=r"needs a batch of tensors, got one of \w+: as_tensors makes it$"
    ):
        call(relive_jax.as_jax(transitions().sample(8)))
