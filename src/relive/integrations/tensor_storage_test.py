"""A buffer of tensors and the same buffer of arrays: equal in every field, dtype and key, whatever is done to both.

Tensors are on the CPU; `AS_DEVICE` goes the way of a device all the same, whose memory numpy cannot read.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
import importlib
import os
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch.utils import _python_dispatch

import relive
from relive import errors
from relive import testing
from relive.buffers import hindsight
from relive.buffers import misuse
from relive.integrations import stored_episodes
from relive.integrations import tensor_storage
from relive.integrations import torch as relive_torch
from relive.windows import batches

DTYPES = ("float32", "float64", "float16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "complex64")
VECTOR = relive.Schema(relive.Field(3, "float32"), relive.Field((), "int64"), reward=relive.Field((), "float32"))
AS_DEVICE = pytest.mark.parametrize("shared", [("cpu",), ()], ids=["shared", "as a device"])
Ints = np.ndarray[Any, np.dtype[np.int64]]


class TestTensorStorage(testing.StorageTests):
    schema = relive.Schema(
        {"image": relive.Field((2, 3), np.uint8), "arm": {"angle": relive.Field((), "f2"), "on": relive.Field(2, "?")}},
        relive.Field((), np.uint64),
        extras={"word": relive.Field(2, np.int64), "nothing": relive.Field(0, "f4")},
    )

    def make(self, schema: relive.Schema, capacity: int) -> Any:
        return relive_torch.TensorStorage(schema, capacity)


def tensors(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: tensors(child) for key, child in tree.items()}
    return torch.from_numpy(np.array(tree)) if isinstance(tree, np.ndarray | np.generic) else tree


def rows(tree: Any, places: Any) -> Any:
    return {key: rows(child, places) for key, child in tree.items()} if isinstance(tree, Mapping) else tree[places]


def put(tree: Any, places: Any, values: Any) -> None:
    for key, child in tree.items() if isinstance(tree, Mapping) else ():
        put(child, places, values[key])
    if not isinstance(tree, Mapping):
        tree[places] = values


def assert_same(plain: Any, drawn: Any) -> None:
    for (path, one), (other_path, other) in zip(
        batches.leaves(relive_torch.as_tensors(plain)), batches.leaves(drawn), strict=True
    ):
        assert (path, type(one), one.dtype, one.shape) == (other_path, type(other), other.dtype, other.shape)
        assert np.array_equal(np.asarray(one), np.asarray(other), equal_nan=np.asarray(one).dtype.kind in "fc"), path


class Program:
    """Random calls of a plain buffer and of one of tensors: the same answers, the same errors."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.streams = int(rng.choice([1, 2, 3, 8, 20]))
        self.capacity = int(rng.integers(max(self.streams, 3), 3 * max(self.streams, 20)))
        fields = [self.field() for _ in range(5)]
        self.schema = relive.Schema(
            {"a": relive.Field(2, "float32"), "b": {"c": fields[0]}}
            if rng.random() < 0.5
            else relive.Field(3, "float32"),
            {"x": fields[1], "y": fields[2]} if rng.random() < 0.2 else fields[1],
            reward=relive.Field((), str(rng.choice(["float32", "float64"]))),
            extras={"x": fields[3], "y": {"z": fields[4]}} if rng.random() < 0.5 else None,
        )
        options: dict[str, Any] = {"seed": seed, "streams": self.streams}
        if rng.random() < 0.2:
            options["max_times_sampled"] = int(rng.integers(1, 4))
        elif rng.random() < 0.2:
            options["limiter"] = relive.SampleToInsertRatio(2.0, min_size=1, error_buffer=50.0)
        self.kind: Any = relive.RingReplayBuffer
        if rng.random() < 0.3:
            self.kind, length = relive.SequenceReplayBuffer, int(rng.integers(2, min(7, self.capacity + 1)))
            options |= {"length": length, "burn_in": int(rng.integers(length)), "stride": int(rng.integers(1, 4))}
            options |= {"pad": bool(rng.random() < 0.5), "prioritized": bool(rng.random() < 0.5)}
        else:
            options |= {"n_step": int(rng.choice([1, 2, 3, 5])), "action_chunks": bool(rng.random() < 0.3)}
            if rng.random() < 0.3:
                self.kind = relive.PrioritizedReplayBuffer
            elif rng.random() < 0.5:
                options |= {"frame_stack": int(rng.integers(2, 5)), "stack_padding": rng.choice(["zeros", "first"])}
        self.plain = self.kind(self.capacity, self.schema, **options)
        self.device = self.kind(self.capacity, storage=self.storage(), **options)
        self.now = self.values(self.schema.observation, self.streams)
        self.windows = 0

    def storage(self) -> tensor_storage.TensorStorage:
        return relive_torch.TensorStorage(self.schema, self.capacity)

    def field(self) -> relive.Field:
        shape = self.rng.integers(0 if self.rng.random() < 0.05 else 1, 4, int(self.rng.integers(0, 3)))
        return relive.Field(tuple(shape.tolist()), str(self.rng.choice(DTYPES)))

    def values(self, tree: Any, count: int) -> Any:
        if isinstance(tree, Mapping):
            return {key: self.values(child, count) for key, child in tree.items()}
        shape = (count, *tree.shape)
        if tree.dtype.kind in "biu":
            return self.rng.integers(0, 2 if tree.dtype.kind == "b" else 3, shape).astype(tree.dtype)
        odd = self.rng.choice([np.nan, 0.0, np.inf], shape)
        return np.where(self.rng.random(shape) < 0.1, odd, self.rng.normal(size=shape)).astype(tree.dtype)

    def both(self, call: Callable[[Any, Callable[[Any], Any]], Any]) -> Any:
        """Return what both buffers answer, or None if both refuse with the same words."""
        answers: list[Any] = []
        for buffer, made in ((self.plain, lambda tree: tree), (self.device, tensors)):
            try:
                answers.append(call(buffer, made))
            except errors.ReplayError as error:
                answers.append(error)
        plain, device = answers
        if isinstance(plain, Exception) or isinstance(device, Exception):
            assert (type(plain), str(plain)) == (type(device), str(device))
            return None
        if isinstance(plain, batches.Batch):
            assert_same(plain, device)
        else:
            assert np.array_equal(plain, device)
        return plain

    def write(self) -> None:
        rng, schema, kind = self.rng, self.schema, self.rng.random()
        stream, is_end, is_cut = int(rng.integers(self.streams)), bool(rng.random() < 0.3), bool(rng.random() < 0.1)
        if kind < 0.65:
            some = rng.permutation(self.streams)[: rng.integers(1, self.streams + 1)] if rng.random() < 0.3 else None
            streams = np.arange(self.streams) if some is None else some
            self.extend(streams, {} if some is None else {"streams": some})
        elif kind < 0.75:
            now, then, action = (
                rows(self.values(tree, 1), 0) for tree in (schema.observation, schema.observation, schema.action)
            )
            now = rows(self.now, stream) if rng.random() < 0.9 else now
            reward, extras = rng.normal(), {name: rows(self.values(tree, 1), 0) for name, tree in schema.extras.items()}
            is_unknown = not is_cut and rng.random() < 0.1
            self.both(
                lambda buffer, made: buffer.add(
                    made(now), made(action), made(np.array(reward)) if is_cut and buffer is self.device else reward,
                    None if is_unknown else made(then), terminated=made(np.array(is_end)), truncated=is_cut,
                    stream=stream, **made(extras),
                )
            )  # fmt: skip
            put(self.now, stream, then)
        elif kind < 0.88:
            count = int(rng.integers(1, min(8, self.capacity) + 1))
            seen, actions = self.values(schema.observation, count + 1), self.values(schema.action, count)
            if rng.random() < 0.5:
                put(seen, 0, rows(self.now, stream))
            rewards, extras = rng.normal(size=count), self.values(schema.extras, count)
            call, more = ("add_episode", {}) if rng.random() < 0.5 else ("add_steps", {"truncated": is_cut})
            told: dict[str, Any] = {**more, "terminated": is_end, "stream": stream}
            self.both(
                lambda buffer, made: getattr(buffer, call)(
                    made(seen), made(actions), made(rewards), **told, **made(extras)
                )
            )
            put(self.now, stream, rows(seen, count))
        elif kind < 0.93:
            self.both(lambda buffer, made: buffer.end_episode(stream))
        elif kind < 0.98:
            keys, is_eligible = rng.integers(0, self.plain.appended + 1, 5), bool(rng.random() < 0.5)
            self.both(lambda buffer, made: buffer.set_eligible(keys, is_eligible))
        elif kind > 0.99:
            self.both(lambda buffer, made: buffer.clear() or 0)

    def extend(self, streams: Ints, options: dict[str, Any]) -> None:
        rng, schema, count = self.rng, self.schema, len(streams)
        now, then = rows(self.now, streams), self.values(schema.observation, count)
        resets = np.flatnonzero(rng.random(count) < (0.3 if rng.random() < 0.15 else 0))
        put(now, resets, self.values(schema.observation, len(resets)))
        if rng.random() < 0.1:
            put(then, 0, rows(now, 0))
        ends = {"terminated": rng.random(count) < 0.12, "truncated": rng.random(count) < 0.08}
        is_unknown = rng.random() < 0.1
        ends["truncated"] &= not is_unknown
        rewards = rng.normal(size=count).astype(schema.reward.dtype) * (rng.random() < 0.8)
        actions, extras = self.values(schema.action, count), self.values(schema.extras, count)
        self.both(
            lambda buffer, made: buffer.extend(
                made(now), made(actions), made(rewards), None if is_unknown else made(then), **made(ends), **options,
                **made(extras),
            )
        )  # fmt: skip
        (starts,) = ((ends["terminated"] | ends["truncated"]) & (rng.random(count) < 0.8)).nonzero()
        put(then, starts, self.values(schema.observation, len(starts)))
        put(self.now, streams, then)

    def draw(self) -> None:
        count = int(self.rng.integers(1, 40))
        batch = self.both(lambda buffer, made: buffer.sample(count))
        if batch is not None and self.plain.has_priorities:
            priorities = self.rng.random(count)
            self.both(lambda buffer, made: buffer.update_priorities(batch.keys, made(priorities)))

    def run(self, calls: int) -> None:
        for _ in range(calls):
            self.write()
            assert self.plain.num_eligible == self.device.num_eligible
            if self.rng.random() < 0.5:
                self.draw()
        keys = self.plain.eligible_keys()
        assert np.array_equal(keys, self.device.eligible_keys())
        if len(keys):
            self.both(lambda buffer, made: buffer.read(keys))
        self.device.check()
        plain, device = self.plain.get_stats(), self.device.get_stats()
        assert {**vars(plain), "nbytes": 0} == {**vars(device), "nbytes": 0}


def blocks(count: int, *, in_full: int) -> list[Any]:
    """Return seeds in blocks: three by day, some in full, and all at night."""
    marks: list[Any] = [(), *([pytest.mark.full] * in_full), *([pytest.mark.long] * (count // 10))]
    starts = [0, *range(3, count, 10)]
    return [
        pytest.param(range(start, min(start + 10 if start else 3, count)), marks=mark)
        for start, mark in zip(starts, marks, strict=False)
    ]


@AS_DEVICE
@pytest.mark.parametrize("seeds", blocks(1_000, in_full=3))
@pytest.mark.filterwarnings("ignore::relive.errors.MisuseWarning")
def test_random_programs_draw_what_a_plain_buffer_draws(
    seeds: range, shared: Collection[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_storage, "_SHARED", shared)
    for seed in seeds:
        program = Program(seed)
        program.run(int(program.rng.integers(10, 80)))


@AS_DEVICE
@pytest.mark.parametrize("seeds", blocks(150, in_full=1))
@pytest.mark.filterwarnings("ignore::relive.errors.MisuseWarning")
def test_checkpoints_go_both_ways(
    seeds: range, shared: Collection[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a buffer of tensors saves loads as a plain one and the other way round; both go on alike."""
    monkeypatch.setattr(tensor_storage, "_SHARED", shared)
    for seed in seeds:
        program = Program(seed)
        program.run(40)
        program.device.save(tmp_path / "device")
        program.plain.save(tmp_path / "plain")
        saved = [buffer.state_dict()["arrays"] for buffer in (program.plain, program.device)]
        for name, array in saved[0].items():
            assert array.tobytes() == saved[1][name].tobytes(), name
        program.plain = program.kind.load(tmp_path / "device")
        program.device = program.kind.load(tmp_path / "plain", storage=program.storage())
        program.run(20)
        state = program.plain.state_dict()
        program.run(5)
        program.plain.load_state_dict(state)
        program.device.load_state_dict(state)
        program.run(10)


class Copies(_python_dispatch.TorchDispatchMode):
    """Counts copies between devices, and refuses what makes the host wait for a device besides."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique_dim")
        # The staged bytes go to the device by `to`, and a packed tensor comes from there by `cpu`.
        if name == "_to_copy":
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [relive.PrioritizedReplayBuffer, relive.RingReplayBuffer])
@pytest.mark.parametrize("some", [None, [2, 0]])
def test_one_copy_a_call(kind: Any, some: list[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write copies to the host once, and a draw to the device once; counted where both are the CPU."""
    monkeypatch.setattr(tensor_storage, "_SHARED", ())
    storage = relive_torch.TensorStorage(VECTOR, 30)
    buffer = kind(30, storage=storage, streams=3, n_step=2, seed=0)
    to_host, sent, packed = 0, list[int](), tensor_storage.TensorStorage._to_host

    def counted(*given: Any) -> Any:
        nonlocal to_host
        to_host += 1
        return packed(*given)

    to_device = tensor_storage.TensorStorage._to_device

    def noted(*given: Any) -> Any:
        sent.append(1)
        return to_device(*given)

    monkeypatch.setattr(tensor_storage.TensorStorage, "_to_host", counted)
    monkeypatch.setattr(tensor_storage.TensorStorage, "_to_device", noted)
    count = 3 if some is None else len(some)
    for number in range(20):
        is_end = torch.arange(count) == number % 5
        with Copies() as copies:
            buffer.extend(
                torch.full((count, 3), float(number)),
                torch.zeros(count, dtype=torch.int64),
                torch.ones(count),
                torch.full((count, 3), number + 1.0),
                terminated=is_end,
                streams=some,
            )
        assert to_host == number + 1
        # Small ones to the device: which streams, and which of their episodes ended.
        assert len(copies.names) == len(sent) <= (some is not None) + bool(is_end.any())
        sent.clear()
        with Copies() as copies:
            buffer.sample(16)
        assert (len(copies.names), len(sent)) == (1, 1)
        sent.clear()


def ring(storage: Any = None, **options: Any) -> Any:
    storage = relive_torch.TensorStorage(VECTOR, 10) if storage is None else storage
    return relive.RingReplayBuffer(10, storage=storage, seed=0, **options)


def filled(**options: Any) -> Any:
    buffer = ring(**options)
    buffer.add_episode(torch.arange(12.0).reshape(4, 3), torch.arange(3), torch.ones(3), terminated=True)
    return buffer


NOW, ACTION = torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)


@AS_DEVICE
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((np.zeros((2, 3), np.float32), ACTION, torch.ones(2)), "observation must be a tensor on cpu, got array"),
        (
            (NOW.double(), ACTION, torch.ones(2)),
            r"observation must be of torch.float32, got torch.float64: call .to\(tor",
        ),
        (
            (NOW, ACTION.to("meta"), torch.ones(2)),
            r"action must be on cpu, got a tensor on meta: call .to\('cpu'\) first",
        ),
        ((NOW[:1], ACTION, torch.ones(2)), r"observation must be of shape \(2, 3\), got \(1, 3\)"),
        ((NOW, ACTION, torch.ones(2, 1)), r"reward must be of shape \(2,\), got \(2, 1\)"),
        ((NOW, ACTION, torch.ones(2, device="meta")), "reward must be on cpu, got a tensor on meta"),
        ((NOW, ACTION, torch.tensor([0.0, torch.nan])), r"reward must be finite, got nan at \[1\]"),
        ((NOW, ACTION, torch.tensor([0.0, 1e39], dtype=torch.float64)), r"reward must fit float32, got 1e\+39"),
        ((NOW, ACTION, torch.ones(2) * 1j), "reward must be a tensor of real numbers, got torch.complex64"),
        (
            (NOW, ACTION.to_sparse(), torch.ones(2)),
            r"action must be a dense tensor, got torch.sparse_coo: call .to_dense\(\) first",
        ),
        ((NOW, ACTION, torch.ones(2).to_sparse()), "reward must be a dense tensor, got torch.sparse_coo: call"),
        ((NOW, ACTION, torch.ones(3)), "extend must have a step of each of 2 streams, got 3 rewards"),
    ],
)
def test_a_refused_write_changes_nothing(
    given: Any, message: str, shared: Collection[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_storage, "_SHARED", shared)
    buffer = ring(streams=2)
    buffer.extend(NOW, ACTION, torch.ones(2), NOW + 1)
    before = buffer.state_dict()
    with pytest.raises(errors.ReplayError, match=f"^{message}"):
        buffer.extend(*given, NOW + 1)
    with pytest.raises(errors.ArgumentError, match="^next_observation must be given with a truncated step, got None$"):
        buffer.extend(NOW, ACTION, torch.ones(2), truncated=torch.ones(2, dtype=torch.bool))
    after = buffer.state_dict()
    arrays = [state.pop("arrays") for state in (before, after)]
    assert before == after
    assert {name: array.tobytes() for name, array in arrays[0].items()} == {
        name: array.tobytes() for name, array in arrays[1].items()
    }


@AS_DEVICE
def test_values_must_be_finite_if_the_schema_says_so(shared: Collection[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_storage, "_SHARED", shared)
    schema = relive.Schema(relive.Field(3, "float32"), relive.Field((), "int64"), check_finite=True)
    buffer = ring(relive_torch.TensorStorage(schema, 10), streams=2)
    buffer.extend(NOW, ACTION, torch.ones(2), NOW + 1)
    assert not buffer.extend(NOW[:0], ACTION[:0], torch.ones(0), NOW[:0], streams=[]).size
    after = torch.tensor([[0.0] * 3, [0.0, torch.inf, 0.0]])
    with pytest.raises(errors.SchemaError, match=r"^next_observation must be finite, got inf at \[1, 1\]$"):
        buffer.extend(NOW + 1, ACTION, torch.ones(2), after)
    with pytest.raises(errors.SchemaError, match=r"^observations must be finite, got inf at \[1, 1\]$"):
        buffer.add_steps(after, ACTION[:1], torch.ones(1), stream=0)
    with pytest.raises(errors.SchemaError, match=r"^next_observation must be finite, got inf at \[1\]$"):
        buffer.add(NOW[0], ACTION[0], torch.ones(()), after[1], stream=0)
    for reward in (torch.tensor(torch.nan), torch.nan):
        with pytest.raises(errors.ArgumentError, match="^reward must be finite, got nan$"):
            buffer.add(NOW[0], ACTION[0], reward, NOW[0], stream=0)


@AS_DEVICE
def test_both_parts_of_complex_values_must_be_finite(shared: Collection[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_storage, "_SHARED", shared)
    schema = relive.Schema(relive.Field(1, "complex64"), relive.Field((), "int64"), check_finite=True)
    buffer = ring(relive_torch.TensorStorage(schema, 10))
    with pytest.raises(errors.SchemaError, match=r"^observation must be finite, got infj at \[0\]$"):
        buffer.add(torch.tensor([complex(0, torch.inf)]), ACTION[0], 1.0)


@AS_DEVICE
def test_conjugated_and_negated_views_are_taken(shared: Collection[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_storage, "_SHARED", shared)
    schema = relive.Schema(relive.Field((), "complex64"), relive.Field((), "float32"))
    buffer = ring(relive_torch.TensorStorage(schema, 10), streams=2)
    values = torch.tensor([1 + 2j, 3j]).conj()
    for _ in range(2):
        buffer.extend(values, values.imag, values.imag, values, terminated=values.imag + 3)
    batch = buffer.read([0, 3])
    assert (batch.observation.tolist(), batch.action.tolist()) == ([1 - 2j, -3j], [-2, -3])
    assert (batch.reward.tolist(), batch.next_discount.tolist()) == ([-2, -3], [0, pytest.approx(0.99)])


@AS_DEVICE
def test_the_default_device_may_be_another(shared: Collection[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_storage, "_SHARED", shared)
    with torch.device("meta"):
        buffer = ring(streams=2)
        buffer.extend(NOW, ACTION, [1.0, 2.0], NOW, terminated=[True, False], streams=[1, 0])
        assert buffer.read([0, 1]).reward.tolist() == [1, 2]


@AS_DEVICE
def test_rewards_are_rounded_once(shared: Collection[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded to float32 first, this one would be 1."""
    monkeypatch.setattr(tensor_storage, "_SHARED", shared)
    schema = relive.Schema(VECTOR.observation, VECTOR.action, reward=relive.Field((), "float16"))
    buffer = ring(relive_torch.TensorStorage(schema, 10))
    buffer.add(NOW[0], ACTION[0], torch.tensor(1 + 2**-11 + 2**-30, dtype=torch.float64), NOW[0])
    assert buffer.read([0]).reward.tolist() == [1 + 2**-10]


def test_an_added_tensor_may_require_grad_and_change() -> None:
    buffer = ring()
    now = torch.zeros(3, requires_grad=True)
    buffer.add(now, ACTION[0], torch.tensor(1.5, requires_grad=True), NOW[0], terminated=torch.tensor([True]))
    with torch.no_grad():
        now += 1
    batch = buffer.read([0])
    assert (batch.observation.tolist(), batch.reward.tolist(), batch.observation.requires_grad) == (
        [[0] * 3],
        [1.5],
        False,
    )
    with pytest.raises(errors.SchemaError, match=r"^reward must be of shape \(\), got \(1,\): give the .item\(\)"):
        buffer.add(now, ACTION[0], torch.ones(1), NOW[0])


def test_what_takes_arrays_alone_says_so(tmp_path: pathlib.Path) -> None:
    buffer = filled()
    shown = "needs values in numpy, got a buffer with a TensorStorage(10 rows on cpu)"
    calls: dict[str, Callable[[], object]] = {
        "attach": lambda: buffer.attach(relive.Journal(tmp_path / "journal")),
        "add_episodes": lambda: buffer.add_episodes(NOW, ACTION, torch.ones(2), terminated=[False, True]),
        "relabel": lambda: hindsight.relabel(buffer, buffer.sample(2), compute=max),
        "num_workers": lambda: relive_torch.data_loader(buffer, 2, num_workers=2),
        "MixtureSampler": lambda: relive.MixtureSampler([relive.RingReplayBuffer(9), buffer], [1, 1]),
    }
    for name, call in calls.items():
        with pytest.raises(errors.ArgumentError) as caught:
            call()
        assert str(caught.value) == f"{name} {shown}"
    [batch] = relive_torch.data_loader(buffer, 2, num_batches=1)
    assert batch.reward.tolist() == [1, 1]


def test_a_fork_and_a_window_of_ones_own_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = filled()
    window = type("OwnWindow", (type(buffer.window),), {})()
    general: Any = relive.ColumnReplayBuffer(10, storage=relive_torch.TensorStorage(VECTOR, 10), window=window)
    general.add(NOW[0], ACTION[0], 0.0, NOW[0], terminated=True)
    with pytest.raises(errors.ArgumentError, match="^OwnWindow needs values in numpy, got "):
        general.sample(1)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    copied = pickle.loads(pickle.dumps(buffer))
    for call in (lambda: buffer.sample(2), lambda: buffer.add(NOW[0], ACTION[0], 0.0), buffer.state_dict):
        with pytest.raises(
            errors.ArgumentError, match="^a TensorStorage belongs to process .*, of which this is a fork:"
        ):
            call()
    assert_same(filled_plain().sample(5), copied.sample(5))


def filled_plain() -> relive.RingReplayBuffer:
    buffer = relive.RingReplayBuffer(10, VECTOR, seed=0)
    buffer.add_episode(np.arange(12.0).reshape(4, 3).astype("f4"), np.arange(3), np.ones(3), terminated=True)
    return buffer


def test_dtypes_and_devices_that_are_not_there_are_refused() -> None:
    words = relive.Schema(relive.Field((), "U3"), relive.Field((), "int64"))
    with pytest.raises(errors.ArgumentError, match="^observation must be of a dtype that tensors have, got <U3$"):
        relive_torch.TensorStorage(words, 10)
    devices: list[Any] = ["nowhere", "cuda:99", []]
    for device in devices:
        with pytest.raises(
            errors.ArgumentTypeError, match="^device must be a device of torch that is there, or its name, "
        ):
            relive_torch.TensorStorage(VECTOR, 10, device)
    large = relive.Schema(relive.Field(2**45, "uint8"), relive.Field((), "int64"))
    with pytest.raises(
        errors.ArgumentError, match="^rows must fit in the memory of cpu, got 11 of 35184372088840 bytes "
    ):
        relive_torch.TensorStorage(large, 10)
    with pytest.raises(errors.ArgumentError, match="^storage must be of the schema "):
        relive.RingReplayBuffer(10, words, storage=relive_torch.TensorStorage(VECTOR, 10))
    other = relive.RingReplayBuffer(10, relive.Schema(relive.Field(3, "float64"), relive.Field((), "int64")))
    with pytest.raises(errors.CheckpointError, match="^settings/schema must be "):
        ring().load_state_dict(other.state_dict())


def test_no_room_for_final_observations_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = relive.RingReplayBuffer(40, storage=relive_torch.TensorStorage(VECTOR, 40), seed=0)
    zeros = torch.zeros

    def no_room(shape: Any, **options: Any) -> Any:
        if shape[0] > 17:
            raise torch.OutOfMemoryError("out of memory")
        return zeros(shape, **options)

    monkeypatch.setattr(torch, "zeros", no_room)
    for _ in range(16):
        buffer.add(NOW[0], ACTION[0], 0.0, NOW[0] + 1, terminated=True)
    rule = (
        "^final observations must fit in the memory of cpu beside 40 rows, up to one for each episode, got 33 of 12 by"
    )
    with pytest.raises(errors.ArgumentError, match=rule):
        buffer.add(NOW[0], ACTION[0], 0.0, NOW[0] + 2, terminated=True)
    assert len(buffer) == 16
    buffer.check()
    assert buffer.read(np.arange(16)).next_observation.tolist() == [[1, 1, 1]] * 16


def test_places_of_episodes_that_left_are_used_again() -> None:
    buffer: Any = relive.RingReplayBuffer(10, storage=relive_torch.TensorStorage(VECTOR, 10), seed=0)
    for number in range(500):
        buffer.add(NOW[0], ACTION[0], 0.0, NOW[0] + number, terminated=True)
    assert buffer.read(buffer.eligible_keys()).next_observation[:, 0].tolist() == [*range(490, 500)]
    assert buffer._store.after["observation"].shape == (17, 3)


def test_episodes_and_statistics_are_read_through_the_host() -> None:
    schema = relive.Schema(VECTOR.observation, VECTOR.action, extras={"policy_version": relive.Field((), "int64")})
    buffer = ring(relive_torch.TensorStorage(schema, 10))
    versions = torch.tensor([4, 5, 7])
    seen = torch.arange(12.0).reshape(4, 3)
    buffer.add_episode(seen, torch.arange(3), torch.ones(3), terminated=True, policy_version=versions)
    [episode] = stored_episodes.stored_episodes(buffer)
    assert episode.observations.tolist() == seen.tolist()
    assert episode.extras["policy_version"].tolist() == [4, 5, 7]
    assert buffer.get_stats().max_policy_lag == 3
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    table: Any = importlib.import_module("relive.integrations.arrow").to_table(buffer)
    assert table["action"].to_pylist() == [0, 1, 2]


def test_floats_are_of_the_default_dtype_and_must_fit_it(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = relive.Schema(VECTOR.observation, VECTOR.action)
    plain, buffer = relive.RingReplayBuffer(10, schema, seed=0), ring(relive_torch.TensorStorage(schema, 10))
    plain.add(np.zeros(3, "f4"), 0, 0.1, np.zeros(3, "f4"))
    buffer.add(NOW[0], ACTION[0], 0.1, NOW[0])
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            one, other = relive_torch.as_tensors(plain.sample(2)), buffer.sample(2)
        finally:
            torch.set_default_dtype(torch.float32)
        assert torch.equal(other.reward, torch.as_tensor(one.reward))
        assert {other.reward.dtype, other.observation.dtype, other.weights.dtype} == {dtype}
    buffer.add(NOW[0], ACTION[0], 1e300, NOW[0])
    with pytest.raises(
        errors.ArgumentError, match="^reward must fit float32: set the default dtype of torch for more$"
    ):
        buffer.read([1])


def test_nothing_looks_for_stacks_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = list[str]()
    for kind in ("plain", "device"):
        monkeypatch.setattr(misuse.Watch, "_look_at_stacks", lambda *_, kind=kind: looks.append(kind))
        storage = relive_torch.TensorStorage(VECTOR, 10) if kind == "device" else None
        buffer = relive.RingReplayBuffer(10, VECTOR, storage=storage, frame_stack=2)
        value = NOW[0] if kind == "device" else NOW[0].numpy()
        buffer.add(value, ACTION[0] if kind == "device" else 0, 1.0, value)
    assert looks == ["plain"]


class ReadingSampler(relive.UniformSampler):
    """Reads rows as soon as they may be drawn."""

    seen: Sequence[Any] = ()

    def _added(self, slots: Ints) -> None:
        self.seen = [*self.seen, *self.anchors.read(slots, ("action",))["action"].tolist()]


class SamplerThatFails(ReadingSampler):
    """Raises once it has read the row of a certain action."""

    def _added(self, slots: Ints) -> None:
        super()._added(slots)
        if self.seen[-1] == 6:
            raise ValueError("6")


@AS_DEVICE
def test_hooks_see_new_rows_and_take_them_back(shared: Collection[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_storage, "_SHARED", shared)
    buffer = relive.RingReplayBuffer(
        4, storage=relive_torch.TensorStorage(VECTOR, 4), streams=2, sampler=SamplerThatFails(), seed=0
    )
    for number in range(0, 6, 2):
        buffer.extend(NOW + number, ACTION + number, torch.ones(2), NOW + number + 2, streams=[1, 0])
    before = buffer.state_dict()["arrays"]
    for flags in (None, [True, False]):
        with pytest.raises(ValueError, match="^6$"):
            buffer.extend(NOW + 6, ACTION + 6, torch.ones(2), NOW + 9, terminated=flags)
        after = buffer.state_dict()["arrays"]
        assert {name: array.tobytes() for name, array in before.items()} == {
            name: array.tobytes() for name, array in after.items()
        }
    sampler: Any = buffer.sampler
    assert sampler.seen == [0, 0, 2, 2, 4, 4, 6, 6, 6, 6]
    buffer.extend(NOW + 6, ACTION + 7, torch.ones(2), NOW + 9)
    assert buffer.read([4, 5, 6]).next_observation[:, 0].tolist() == [6, 6, 9]


def test_a_sampler_reads_rows_through_the_host() -> None:
    buffer = filled(sampler=ReadingSampler())
    assert buffer.sampler.seen == [0, 1, 2]
    buffer.load_state_dict(buffer.state_dict())
    assert buffer.sampler.seen[-3:] == [0, 1, 2]
    rows = buffer.sampler.anchors.read(np.arange(2))
    with pytest.raises(errors.SchemaError, match="^action is missing: rows must hold every column$"):
        relive_torch.TensorStorage(VECTOR, 10).write(np.arange(2), {"observation": rows["observation"]})


def test_prefetched_batches_are_those_of_sample() -> None:
    buffer, twin = filled(), filled()
    drawn = buffer.batches(4, prefetch=2)
    for _ in range(3):
        assert next(drawn).observation.equal(twin.sample(4).observation)
    drawn.close()


def test_a_reward_that_is_rounded_to_zero_is_no_error() -> None:
    schema = relive.Schema(relive.Field(3, "float32"), relive.Field((), "int64"))
    buffer = ring(relive_torch.TensorStorage(schema, 10), streams=2)
    buffer.extend(NOW, ACTION, torch.full((2,), 1e-300, dtype=torch.float64), NOW)
    with np.errstate(all="raise"):
        assert buffer.read([0, 1]).reward.tolist() == [0.0, 0.0]


def test_bfloat16_rewards_are_taken() -> None:
    buffer = ring(streams=2)
    buffer.extend(NOW, ACTION, torch.full((2,), 0.5, dtype=torch.bfloat16), NOW)
    assert buffer.read([0, 1]).reward.tolist() == [0.5, 0.5]
