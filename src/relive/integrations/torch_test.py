import collections
from collections.abc import Callable, Iterator
import itertools
import pathlib
import sys
import types
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint import state_dict_saver
from torch.utils import data

import relive
from relive import errors
from relive.integrations import torch as relive_torch
from relive.windows import batches_test

EVERY_KIND = batches_test.EVERY_KIND
leaves, transitions = batches_test.array_leaves, batches_test.transitions


def ring(count: int = 40) -> relive.RingReplayBuffer:
    buffer: relive.RingReplayBuffer = batches_test.fill(relive.RingReplayBuffer(50, batches_test.SCHEMA, seed=0), count)
    return buffer


class OwnDataset(data.IterableDataset[Any]):
    """A dataset around `batches` that does not know of workers, unless it is seeded."""

    def __init__(self, is_seeded: bool) -> None:
        self.buffer, self.is_seeded = ring(), is_seeded

    def __iter__(self) -> Iterator[list[int]]:
        worker = data.get_worker_info()
        if worker is not None and self.is_seeded:
            self.buffer.rng.bit_generator.state = np.random.default_rng(worker.seed).bit_generator.state
        for batch in itertools.islice(self.buffer.batches(8), 3):
            yield batch.keys.tolist()


@pytest.mark.full
@pytest.mark.parametrize("is_seeded", [False, True])
def test_workers_of_an_own_dataset_repeat_batches_unless_seeded(is_seeded: bool) -> None:
    loader: data.DataLoader[Any] = data.DataLoader(OwnDataset(is_seeded), batch_size=None, num_workers=2)
    drawn = [tuple(keys) for _ in range(2) for keys in loader]
    assert (len(drawn), len(set(drawn))) == (12, 12 if is_seeded else 3)


@pytest.mark.parametrize("value", [torch.ones((), requires_grad=True), torch.ones((), dtype=torch.bfloat16)])
def test_a_tensor_is_no_setting_that_is_true_or_false(value: Any) -> None:
    with pytest.raises(relive.ArgumentTypeError, match="^pad must be True or False, got "):
        relive.SequenceReplayBuffer(9, length=2, pad=value)


def test_an_error_about_log_probabilities_names_the_calls() -> None:
    def step_of(**given: Any) -> relive.TokenStep:
        return relive.TokenStep(**{"prompt": [1], "response": [2, 3], "policy_version": 0, **given})

    logprobs = torch.tensor([-0.5, -0.25], dtype=torch.bfloat16, requires_grad=True)
    for given in (logprobs, list(logprobs)):
        with pytest.raises(errors.ArgumentTypeError, match=r": call \.detach\(\)\.float\(\) first$"):
            step_of(logprobs=given)
    step = step_of(logprobs=logprobs.detach().float(), loss_mask=torch.tensor([1, 0]))
    assert (step.logprobs.dtype.str, step.logprobs.tolist()) == ("<f4", [-0.5, -0.25])
    assert step.loss_mask.tolist() == [True, False]


def check_tensor(tensor: torch.Tensor, array: Any) -> None:
    expected = array.astype(np.float32) if array.dtype.kind == "f" else array
    assert tensor.device.type == "cpu"
    assert tensor.numpy().dtype == expected.dtype
    assert tensor.numpy().tobytes() == expected.tobytes()


@EVERY_KIND
def test_every_field_becomes_a_tensor(draw: Callable[[], Any]) -> None:
    batch = draw()
    tensors = relive_torch.as_tensors(batch)
    assert type(tensors) is type(batch)
    found = leaves(tensors)
    assert found.keys() == leaves(batch).keys()
    for path, array in leaves(batch).items():
        check_tensor(found[path], array)
    for name in batches_test.NAMES:
        assert getattr(tensors, name, None) is getattr(batch, name, None)
    assert len(tensors) == 8


def test_tensors_without_a_cast_share_memory_with_the_batch() -> None:
    batch = transitions().sample(8)
    tensors = relive_torch.as_tensors(batch)
    batch.reward[...] = 77
    assert (tensors.reward == 77).all()


@pytest.mark.parametrize("unit", ["timesteps", "fragments"])
def test_items_become_a_dict_of_tensors(unit: Any) -> None:
    buffer = relive.ItemReplayBuffer(20, unit, seed=0)
    buffer.add({"obs": np.arange(6.0).reshape(3, 2), "keys": [7, 8, 9]})
    items = buffer.sample(4)
    tensors = relive_torch.as_tensors(items)
    assert tensors.keys() == items.keys()
    for name, array in items.items():
        check_tensor(tensors[name], array)


def test_rollouts_and_their_advantages_become_tensors() -> None:
    rollout = relive.RolloutBuffer(max_steps=3)
    for t in range(3):
        rollout.add({"eye": [float(t)], "hand": t}, action=t % 2, reward=1.0, value=0.5, terminated=t == 1)
    steps = rollout.arrays()
    tensors: dict[str, Any] = relive_torch.as_tensors(steps)
    assert tensors.keys() == steps.keys()
    assert tensors["observation"].keys() == {"eye", "hand"}
    check_tensor(tensors["observation"]["eye"], steps["observation"]["eye"])
    check_tensor(tensors["terminated"], steps["terminated"])
    arrays = rollout.advantages(gamma=0.5, lambda_=0.5)
    advantages, returns = relive_torch.as_tensors(arrays)
    check_tensor(advantages, arrays[0])
    check_tensor(returns, arrays[1])


def test_samples_of_episodes_become_a_batch() -> None:
    buffer: relive.EpisodeReplayBuffer[Any, int] = relive.EpisodeReplayBuffer(seed=0)
    episode_id = buffer.start_episode_nowait("agent")
    for t in range(5):
        buffer.append_observation_action_reward_nowait(episode_id, {"x": torch.full((2,), float(t))}, t, t / 2)
    buffer.end_episode_nowait(episode_id, {"x": torch.full((2,), 5.0)})
    drawn = buffer.sample_n_step_nowait(16, 3, 0.5)
    batch = relive_torch.as_tensors(drawn)
    assert batch.observation["x"].tolist() == [[each.start_step] * 2 for each in drawn]
    assert batch.reward.tolist() == [each.reward for each in drawn]
    assert [batch.reward.dtype, batch.next_discount.dtype, batch.weights.dtype] == [torch.float32] * 3
    assert [batch.action.dtype, batch.steps.dtype, batch.is_terminal.dtype] == [torch.int64, torch.int64, torch.bool]
    assert batch.probabilities.isnan().all()
    assert (batch.keys == -1).all()


def test_samples_of_texts_are_refused_by_name() -> None:
    buffer: relive.EpisodeReplayBuffer[Any, str] = relive.EpisodeReplayBuffer(seed=0)
    episode_id = buffer.start_episode_nowait("agent")
    buffer.append_observation_action_reward_nowait(episode_id, 0.0, "left", 0.0)
    buffer.end_episode_nowait(episode_id, 1.0)
    with pytest.raises(errors.ArgumentError, match="^action must be of a dtype that tensors have, got <U4$"):
        relive_torch.as_tensors(buffer.sample_n_step_nowait(2, 1, 0.9))


def test_floats_are_cast_to_the_requested_dtype() -> None:
    batch = transitions().sample(4)
    assert batch.weights.dtype == np.float64
    for asked in (torch.float64, torch.bfloat16):
        there = relive_torch.as_tensors(batch, dtype=asked)
        assert {there.reward.dtype, there.weights.dtype, there.extras["half"].dtype} == {asked}
        assert [there.action.dtype, there.extras["flag"].dtype] == [torch.int64, torch.bool]
    as_stored = relive_torch.as_tensors(batch, dtype=None)
    assert [as_stored.reward.dtype, as_stored.weights.dtype] == [torch.float32, torch.float64]
    assert as_stored.extras["half"].dtype == torch.float16
    batch.weights[...] = 77
    assert (as_stored.weights == 77).all()
    (batch,) = data.DataLoader(
        relive_torch.ReplayDataset(transitions(), 4, num_batches=1, dtype=torch.float64), batch_size=None
    )
    assert batch.reward.dtype == torch.float64
    torch.set_default_dtype(torch.float64)
    try:
        assert relive_torch.as_tensors(transitions().sample(4)).reward.dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_finite_number_does_not_become_infinite() -> None:
    buffer = relive.RingReplayBuffer(9, seed=0)
    buffer.add(1e39, 0, 0.5, np.inf)
    with pytest.raises(errors.ArgumentError, match=r"^observation must fit torch.float32: set dtype for more$"):
        relive_torch.as_tensors(buffer.sample(2))
    there = relive_torch.as_tensors(buffer.sample(2), dtype=torch.float64)
    assert there.observation.tolist() == [1e39] * 2
    assert there.next_observation.tolist() == [np.inf] * 2


EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1e-45, 7e-46, 0.1, 1 + 2**-24, 3.4028235677973362e38]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, None])
@pytest.mark.parametrize("given", ["f2", "f4", "f8", ">f4", ">f8"])
def test_floats_are_rounded_as_torch_rounds_them(given: str, dtype: torch.dtype | None) -> None:
    with np.errstate(over="ignore"):
        stored = np.array(EDGES[: None if dtype != torch.float16 else -1]).astype(given)
    native = stored.astype(stored.dtype.newbyteorder("="))
    expected = torch.from_numpy(native.copy()).to(dtype or torch.from_numpy(native).dtype)
    for array in (stored, np.repeat(stored, 2)[::2], stored[::-1].copy()[::-1]):
        with np.errstate(all="raise"):
            found = relive_torch.as_tensors({"x": array}, dtype=dtype)["x"]
        assert (found.dtype, found.numpy().tobytes()) == (expected.dtype, expected.numpy().tobytes())


def test_the_smallest_double_that_rounds_to_infinity_is_refused() -> None:
    least = 3.4028235677973366e38
    below: Any = {"a": {"b": np.array([1.0, np.nextafter(least, 0)])}}
    there: Any = relive_torch.as_tensors(below)
    assert there["a"]["b"].tolist() == [1.0, float(np.finfo(np.float32).max)]
    below["a"]["b"][1] = -least
    with pytest.raises(errors.ArgumentError, match=r"^a/b must fit torch.float32: set dtype for more$"):
        relive_torch.as_tensors(below)


def test_a_double_that_is_too_large_for_a_half_is_refused() -> None:
    with pytest.raises(errors.ArgumentError, match=r"^x must fit torch.float16: set dtype for more$"):
        relive_torch.as_tensors({"x": np.array([1.0, 1e6])}, dtype=torch.float16)


def in_full(buffer: Any, observation: Callable[[int], Any]) -> Any:
    for t in range(60):
        buffer.add(observation(t), t % 3, float(t), terminated=t % 17 == 16)
    return buffer


CONVERTED: dict[str, Callable[[], Any]] = {
    "uniform": lambda: in_full(relive.RingReplayBuffer(50, seed=0), lambda t: np.full(4, t, np.float32)),
    "prioritized": lambda: in_full(relive.PrioritizedReplayBuffer(50, n_step=3), lambda t: np.full(4, t, np.float32)),
    "dicts": lambda: in_full(relive.RingReplayBuffer(50), lambda t: {key: [t / 3] for key in "abc"}),
    "sequences": lambda: in_full(relive.SequenceReplayBuffer(50, length=4, pad=True), lambda t: [t / 3]),
    "stacks": lambda: in_full(relive.RingReplayBuffer(50, frame_stack=4), lambda t: np.full((8, 8), t, np.uint8)),
    "tokens": batches_test.tokens,
}


@pytest.mark.parametrize("kind", CONVERTED)
def test_a_conversion_makes_few_calls_of_numpy_and_torch(kind: str) -> None:
    """A `torch.from_numpy` for each field is one; each call of numpy or torch takes as long."""
    batch, made = CONVERTED[kind]().sample(8), collections.Counter[str]()

    def count(frame: object, event: str, called: Any) -> None:
        if event == "c_call" and called.__module__ != "builtins":  # Such as `isinstance`.
            made[called.__name__] += 1

    relive_torch.as_tensors(batch)
    sys.setprofile(count)
    try:
        relive_torch.as_tensors(batch)
    finally:
        sys.setprofile(None)
    fields = len(leaves(batch))
    assert made["from_numpy"] == fields
    assert made.total() <= 2.5 * fields, made


@pytest.mark.parametrize("wrong", [torch.int64, torch.float8_e5m2, np.float32, np.dtype("f4"), "float32"])
def test_a_dtype_that_is_not_a_float_is_refused(wrong: Any) -> None:
    rule = "^dtype must be a dtype of torch for floats, 'default' or None, got "
    with pytest.raises(errors.ArgumentTypeError, match=rule):
        relive_torch.as_tensors(transitions().sample(2), dtype=wrong)
    with pytest.raises(errors.ArgumentTypeError, match=rule):
        relive_torch.ReplayDataset(transitions(), 2, dtype=wrong)


def test_a_batch_without_extras_has_none() -> None:
    buffer = relive.RingReplayBuffer(9, seed=0)
    buffer.add_episode([0.0, 1.0], [0], [1.0], terminated=True)
    assert relive_torch.as_tensors(buffer.sample(2)).extras == {}


def test_foreign_byte_order_and_unaligned_arrays_are_copied() -> None:
    schema = relive.Schema(
        relive.Field(3, ">f4"), relive.Field((), "int8"), extras={"wide": relive.Field((), "float64")}
    )
    buffer = relive.RingReplayBuffer(9, schema, seed=0)
    buffer.add([1.0, 2.0, 3.0], 5, 0.5, [2.0, 3.0, 4.0], wide=0.25)
    batch = relive_torch.as_tensors(buffer.sample(2))
    assert batch.observation.tolist() == [[1, 2, 3]] * 2
    assert batch.action.tolist() == [5, 5]
    assert batch.extras["wide"].tolist() == [0.25] * 2
    odd = np.zeros(4, [("a", "i1"), ("b", "f8")])["b"]
    assert relive_torch._tensor("odd", odd).tolist() == [0, 0, 0, 0]


def test_reversed_and_read_only_arrays_are_copied() -> None:
    batch = transitions().sample(8)
    batch.reward = batch.reward[::-1]
    there = relive_torch.as_tensors(batch)
    assert there.reward.tolist() == batch.reward.tolist()
    batch.reward = np.ones(8, np.float32)
    batch.reward.flags.writeable = False
    there = relive_torch.as_tensors(batch)
    there.reward[0] = 7.0
    assert batch.reward[0] == 1.0


def test_a_batch_of_tensors_is_returned_or_moved() -> None:
    there: Any = relive_torch.as_tensors(transitions().sample(8))
    assert relive_torch.as_tensors(there) is there
    assert relive_torch.as_tensors(there, device="meta").reward.device.type == "meta"
    wide, kept = (relive_torch.as_tensors(there, dtype=dtype) for dtype in (torch.float64, None))
    assert (wide.reward.dtype, wide.steps.dtype) == (torch.float64, there.steps.dtype)
    assert kept.reward.dtype == torch.float32
    with pytest.raises(errors.ArgumentTypeError, match="^a must be what a buffer has drawn: arrays of numpy, got tens"):
        relive_torch.as_tensors({"a": there.reward})


def test_dtypes_that_torch_lacks_are_refused_by_name() -> None:
    schema = relive.Schema(relive.Field((), float), relive.Field((), int), extras={"word": relive.Field((), "U3")})
    buffer = relive.RingReplayBuffer(9, schema, seed=0)
    buffer.add(0.0, 1, 0.5, 1.0, word="abc")
    with pytest.raises(errors.ArgumentError, match="^extras/word must be of a dtype that tensors have, got <U3$"):
        relive_torch.as_tensors(buffer.sample(2))


@pytest.mark.parametrize(
    ("wrong", "name"),
    [(3, "batch"), (None, "batch"), ({"reward": [1.0]}, "reward"), ({"a": {"b": 1.0}}, "a/b"), ((np.ones(2), 1), "1")],
)
def test_objects_that_are_not_batches_are_refused_by_name(wrong: Any, name: str) -> None:
    with pytest.raises(
        errors.ArgumentTypeError, match=f"^{name} must be what a buffer has drawn: arrays of numpy, got "
    ):
        relive_torch.as_tensors(wrong)


@EVERY_KIND
def test_a_batch_goes_to_a_device(draw: Callable[[], Any]) -> None:
    batch = relive_torch.as_tensors(draw())
    there = batch.to("meta", non_blocking=True)
    assert type(there) is type(batch)
    assert {tensor.device.type for tensor in leaves(there).values()} == {"meta"}
    for name in batches_test.NAMES:
        assert getattr(there, name, None) is getattr(batch, name, None)


@EVERY_KIND
def test_tensors_are_made_on_a_device(draw: Callable[[], Any]) -> None:
    batch = draw()
    there = relive_torch.as_tensors(batch, device="meta")
    assert repr(there) == repr(relive_torch.as_tensors(batch).to("meta"))
    assert {tensor.device.type for tensor in leaves(there).values()} == {"meta"}
    for device in (torch.device("cpu"), "cpu", None):
        here = relive_torch.as_tensors(batch, device=device)
        assert {tensor.device.type for tensor in leaves(here).values()} == {"cpu"}


def test_a_dict_of_tensors_is_made_on_a_device() -> None:
    rollout = relive.RolloutBuffer(1)
    rollout.add([0.0], 0, 1.0)
    assert relive_torch.as_tensors(rollout.arrays(), device="meta")["reward"].device.type == "meta"


@pytest.mark.parametrize("wrong", ["gpu\n", object(), 0.5, ["cpu"]])
def test_a_device_that_torch_does_not_know_is_refused(wrong: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match="^device must be a device of torch, its name or None, got "):
        relive_torch.as_tensors(ring().sample(2), device=wrong)


def test_priorities_come_back_from_tensors() -> None:
    buffer = transitions()
    batch = relive_torch.as_tensors(buffer.sample(8))
    errors_of = (batch.reward - 3).abs().double()
    assert buffer.update_priorities(batch.keys, errors_of) == 8
    assert buffer.get_priorities(batch.keys).tolist() == errors_of.tolist()


# Data sets.

# Python 3.12 and JAX, where another test has imported it, warn of a fork among threads.
FORKS = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning", "ignore:.*fork.*:RuntimeWarning")


def loader(dataset: Any, workers: int = 0, seed: int = 0) -> Any:
    generator = torch.Generator()
    generator.manual_seed(seed)
    return data.DataLoader(dataset, batch_size=None, num_workers=workers, generator=generator)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled, unavailable or uninitialized")
def test_a_distributed_checkpoint_needs_a_buffer_with_a_schema(tmp_path: pathlib.Path) -> None:
    """It fills the entries of a state, and that of an empty buffer without a schema has no arrays of rows."""
    buffer = relive.PrioritizedReplayBuffer(10, seed=0)
    buffer.add_episode(np.arange(8.0, dtype=np.float32).reshape(4, 2), [0, 1, 0], [1.0, 2.0, 3.0], terminated=True)
    state_dict_saver.save({"buffer": buffer.state_dict()}, checkpoint_id=tmp_path)

    def load_into(fresh: relive.PrioritizedReplayBuffer) -> None:
        state = {"buffer": fresh.state_dict()}
        state_dict_loader.load(state, checkpoint_id=tmp_path)
        fresh.load_state_dict(state["buffer"])

    fresh = relive.PrioritizedReplayBuffer(10, schema=buffer.schema, seed=1)
    load_into(fresh)
    assert fresh.sample(5).reward.tolist() == buffer.sample(5).reward.tolist()
    empty = relive.PrioritizedReplayBuffer(10, seed=1)
    text = (
        "^state must be all that state_dict returned, but array .* is missing: what fills .* a buffer with the schema"
    )
    with pytest.raises(errors.CheckpointError, match=text):
        load_into(empty)
    assert len(empty) == 0


def test_a_dataset_is_endless_and_draws_new_steps() -> None:
    buffer = relive.RingReplayBuffer(9, seed=0)
    buffer.add_episode([0.0, 1.0], [0], [1.0], terminated=True)
    batches = iter(loader(relive_torch.ReplayDataset(buffer, 64)))
    assert set(next(batches).keys.tolist()) == {0}
    buffer.add_episode([0.0, 1.0], [0], [1.0], terminated=True)
    assert set(next(batches).keys.tolist()) == {0, 1}


@FORKS
@pytest.mark.parametrize("stays", [False, True])
def test_passes_and_workers_differ_and_runs_are_reproducible(stays: bool) -> None:
    runs = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        dataset = relive_torch.ReplayDataset(transitions(), 8, num_batches=5)
        passes = data.DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=stays)
        runs.append([[batch.keys.tolist() for batch in passes] for _ in range(2)])
    assert runs[0] == runs[1] != runs[2]
    assert len({tuple(keys) for each in runs[0] for keys in each}) == 10


def test_a_dataset_has_a_length_if_it_is_finite() -> None:
    assert len(loader(relive_torch.ReplayDataset(transitions(), 8, num_batches=7))) == 7
    with pytest.raises(TypeError, match="without num_batches has no length"):
        len(relive_torch.ReplayDataset(transitions(), 8))


def test_a_data_loader_yields_the_batches_of_the_buffer() -> None:
    twin = transitions()
    loaded = relive_torch.data_loader(transitions(), 8, num_batches=5, dtype=torch.float64, n_step=2)
    assert len(loaded) == 5
    for batch in loaded:
        expected = twin.sample(8, n_step=2)
        assert batch.keys.tolist() == expected.keys.tolist()
        assert batch.reward.tolist() == expected.reward.tolist()
        assert batch.reward.dtype == torch.float64


def test_a_data_loader_pins_memory() -> None:
    assert relive_torch.data_loader(ring(), 8, pin_memory=True).pin_memory


@FORKS
def test_a_data_loader_has_workers() -> None:
    drawn = [batch.keys.tolist() for batch in relive_torch.data_loader(ring(), 8, num_batches=6, num_workers=2)]
    assert len(drawn) == len(set(map(tuple, drawn))) == 6


def test_workers_are_refused_for_prioritized_buffers() -> None:
    with pytest.raises(errors.ArgumentError, match="^num_workers must be 0 for a buffer with priorities, .*, got 2$"):
        relive_torch.data_loader(transitions(), 8, num_workers=2)
    with pytest.raises(errors.ArgumentError, match="^num_workers must be at least 0, got -1$"):
        relive_torch.data_loader(ring(), 8, num_workers=-1)


def test_an_option_that_sample_does_not_take_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'n_setp'"):
        relive_torch.ReplayDataset(transitions(), 8, n_setp=3)


def test_wrong_arguments_of_a_dataset_are_refused() -> None:
    wrong: Any = relive.EpisodeReplayBuffer()
    with pytest.raises(errors.ArgumentTypeError, match="^buffer must be an instance of ColumnReplayBuffer, got "):
        relive_torch.ReplayDataset(wrong, 8)
    for batch_size, num_batches in ((0, 1), (8, 0)):
        with pytest.raises(errors.ArgumentError, match="must be at least 1, got 0$"):
            relive_torch.ReplayDataset(transitions(), batch_size, num_batches=num_batches)


def test_a_worker_seeds_its_generator_by_its_number_and_its_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, as in one of a worker that stays."""
    monkeypatch.setattr(data, "get_worker_info", lambda: types.SimpleNamespace(id=1, num_workers=3, seed=11))
    dataset = relive_torch.ReplayDataset(transitions(), 8, num_batches=6)
    passes = [[batch.keys.tolist() for batch in dataset] for _ in range(2)]
    for number, drawn in enumerate(passes):
        twin = transitions()
        twin.rng.bit_generator.state = np.random.PCG64(np.random.SeedSequence((11, number))).state
        assert drawn == [twin.sample(8).keys.tolist() for _ in range(2)]


@EVERY_KIND
def test_every_tensor_is_pinned_in_one_buffer(draw: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU alone has nothing to pin for."""
    made: list[torch.Tensor] = []
    new_empty: Any = torch.Tensor.new_empty

    def new(tensor: torch.Tensor, size: Any, *, pin_memory: bool = False) -> Any:
        made.extend(pinned := [new_empty(tensor, size)] if pin_memory else [])
        return pinned[0] if pin_memory else new_empty(tensor, size)

    def is_pinned(tensor: Any) -> bool:
        return any(tensor.untyped_storage().data_ptr() == each.untyped_storage().data_ptr() for each in made)

    monkeypatch.setattr(torch.Tensor, "new_empty", new)
    monkeypatch.setattr(torch.Tensor, "is_pinned", is_pinned)
    batch = relive_torch.as_tensors(draw())
    pinned = batch.pin_memory()
    expected, found = leaves(batch), leaves(pinned)
    assert len(made) == 1
    assert all(map(is_pinned, found.values()))
    assert [each.data_ptr() % each.element_size() for each in found.values()] == [0] * len(found)
    assert found.keys() == expected.keys()
    for path, tensor in found.items():
        assert (tensor.dtype, tensor.shape) == (expected[path].dtype, expected[path].shape)
        assert tensor.numpy().tobytes() == expected[path].numpy().tobytes()
    assert pinned.pin_memory() is pinned


def test_map_leaves_the_keys_alone_and_a_repr_shows_tensors() -> None:
    batch = relive_torch.as_tensors(batches_test.sequences().sample(4)).map(lambda tensor: tensor[None])
    assert isinstance(batch, relive.SequenceBatch)
    assert batch.observation["image"].shape == (1, 4, 4, 4, 4)
    assert batch.keys.shape == (4,)
    assert "observation/image: torch.uint8[1, 4, 4, 4, 4]" in repr(batch)
    assert " keys: int64[4], " in repr(batch)


def test_a_list_of_scalar_tensors_is_a_list_of_log_probabilities() -> None:
    distribution = torch.distributions.Categorical(torch.tensor([0.25, 0.75]))
    logprobs = [distribution.log_prob(torch.tensor(token)) for token in (0, 1)]
    buffer = relive.TokenReplayBuffer(100, logprobs_dtype=np.float16)
    step = relive.TokenStep(prompt=[], response=[0, 1], logprobs=logprobs, policy_version=0)
    kept = buffer.read(buffer.add_episode([step], agent_id="a")).logprobs
    assert kept.tolist() == np.log(np.array([[0.25, 0.75]], np.float32)).astype(np.float16).tolist()
    with pytest.raises(relive.ArgumentTypeError, match=r"^logprobs must be .*: call \.detach\(\) first$"):
        relive.TokenStep(prompt=[], response=[0], logprobs=[logprobs[0].requires_grad_()], policy_version=0)


# Packed tokens.


def attended(network: Any, words: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities of words [..., T], by one layer of attention to those that are allowed."""
    embed, head = network
    x = embed(words)
    scores = (x @ x.mT / 4).masked_fill(~allowed, -torch.inf)
    logits: torch.Tensor = head(x + scores.softmax(-1) @ x).log_softmax(-1)
    return logits.roll(1, -2).gather(-1, words[..., None])[..., 0]


def loss_of(tokens: Any, found: torch.Tensor, advantages: torch.Tensor) -> torch.Tensor:
    ratio = (found - tokens["logprobs"]).exp()
    weighted: torch.Tensor = ratio * advantages * tokens["loss_mask"]
    return -weighted.sum()


@hypothesis.settings(max_examples=hypothesis.settings().max_examples // 4)
@hypothesis.given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8), ranks=st.integers(1, 3))
def test_the_loss_of_packed_tokens_is_that_of_padded_ones(lengths: list[int], ranks: int) -> None:
    rng = np.random.default_rng(len(lengths))
    torch.manual_seed(0)
    buffer = relive.TokenReplayBuffer(1_000, sequence_extras={"advantages": relive.Field((), np.float32)}, seed=0)
    for length in lengths:
        prompt, response = rng.integers(0, 20, (2, length))
        step = relive.TokenStep(
            prompt=prompt, response=response, logprobs=-rng.random(length, np.float32), policy_version=0
        )
        buffer.add_episode([step], agent_id="agent", advantages=rng.normal())
    batch = buffer.read(np.arange(len(lengths)))
    network = torch.nn.Embedding(20, 16), torch.nn.Linear(16, 20)
    padded = relive_torch.as_tensors(batch)
    causal = torch.ones(padded.tokens.shape[1], padded.tokens.shape[1], dtype=torch.bool).tril()
    found = attended(network, padded.tokens, causal)
    expected = loss_of(padded, found, padded.extras["advantages"][:, None])

    def of_packed(packed: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        assert type(packed["max_seqlen"]) is int
        row = torch.repeat_interleave(packed["cu_seqlens"].diff())
        allowed = (row[:, None] == row) & torch.ones(len(row), len(row), dtype=torch.bool).tril()
        logprobs = attended(network, packed["tokens"], allowed)
        return logprobs, loss_of(packed, logprobs, packed["advantages"])

    whole = relive_torch.as_tensors(batch.packed(repeat=["advantages"]))
    in_pack, loss = of_packed(whole)
    torch.testing.assert_close(loss, expected)
    # Of the same log-probabilities, what each token adds is the same to the last bit.
    mask = padded.attention_mask
    each = (found - padded.logprobs).exp() * padded.extras["advantages"][:, None]
    alike = (found[mask] - whole["logprobs"]).exp() * whole["advantages"]
    assert alike.tolist() == each[mask].tolist()
    most = 2 * max(lengths) + 2
    parts = batch.packed_micro_batches(max_tokens=most, ranks=ranks, repeat=["advantages"])
    divided = sum(of_packed(relive_torch.as_tensors(part))[1] for of_rank in parts for part in of_rank)
    torch.testing.assert_close(divided, expected)
    assert in_pack.shape == (2 * sum(lengths),)
