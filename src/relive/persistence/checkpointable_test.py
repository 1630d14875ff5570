"""Both families: a loaded buffer goes on exactly like the saved one."""

from collections.abc import Callable
import contextlib
import copy
import dataclasses
import json
import os
import pathlib
import pickle
import random
import shutil
import subprocess
import sys
from typing import Any, TypeAlias

import numpy as np
import pytest

import relive
from relive import errors
from relive.agents import admission
from relive.agents import groups
from relive.buffers import column as column_lib
from relive.common import arrays
from relive.persistence import checkpointable
from relive.persistence import codec
from relive.persistence import generators
from relive.samplers import prioritized
from relive.samplers import sampler as sampler_lib
from relive.samplers import schedules
from relive.samplers import uniform
from relive.storage import memory
from relive.waiting import rate_limiters
from relive.windows import sequences
from relive.windows import transitions

Columns: TypeAlias = column_lib.ColumnReplayBuffer[Any]
Episodes: TypeAlias = relive.EpisodeReplayBuffer[Any, Any]
Made: TypeAlias = Callable[[], Any]

SCHEMA = relive.Schema(
    {"image": relive.Field((2, 2), "uint8"), "speed": relive.Field((), ">f2")},
    relive.Field(2, "float32"),
    reward=relive.Field((), "float32"),
    extras={"big": relive.Field((), "int64"), "flag": relive.Field((), bool), "pose": relive.Field((), [("x", "<f8")])},
)

COLUMNS: dict[str, Made] = {
    "ring": lambda: relive.RingReplayBuffer(17, SCHEMA, seed=1),
    "ring of 3 streams, n_step": lambda: relive.RingReplayBuffer(20, SCHEMA, n_step=3, gamma=0.9, streams=3, seed=2),
    "ring with frame_stack": lambda: relive.RingReplayBuffer(20, SCHEMA, frame_stack=3, n_step=2, seed=3),
    "ring of 3 streams with frame_stack": lambda: relive.RingReplayBuffer(
        20, SCHEMA, frame_stack=2, stack_padding="first", streams=3, seed=4
    ),
    "ring with max_times_sampled": lambda: relive.RingReplayBuffer(20, SCHEMA, max_times_sampled=3, seed=5),
    "prioritized": lambda: relive.PrioritizedReplayBuffer(17, SCHEMA, seed=6),
    "prioritized of 3 streams, live": lambda: relive.PrioritizedReplayBuffer(
        21,
        SCHEMA,
        streams=3,
        n_step=2,
        new_priority="live",
        beta=schedules.LinearSchedule(0.4, 1.0, 100),
        weight_normalization="buffer",
        seed=7,
    ),
    "prioritized, not stratified": lambda: relive.PrioritizedReplayBuffer(
        17, SCHEMA, stratified=False, max_times_sampled=4, weight_normalization="none", epsilon=0.0, seed=8
    ),
    "sequences": lambda: relive.SequenceReplayBuffer(20, SCHEMA, length=3, seed=9),
    "sequences of 3 streams": lambda: relive.SequenceReplayBuffer(
        20, SCHEMA, length=3, burn_in=1, stride=2, pad=True, streams=3, seed=10
    ),
    "prioritized sequences": lambda: relive.SequenceReplayBuffer(
        20, SCHEMA, length=2, prioritized=True, new_priority="live", max_times_sampled=3, seed=11
    ),
    "schema inferred": lambda: relive.RingReplayBuffer(17, seed=12),
    "min_size": lambda: relive.RingReplayBuffer(17, SCHEMA, limiter=rate_limiters.MinSize(5), seed=13),
    "ratio": lambda: relive.RingReplayBuffer(
        17, SCHEMA, limiter=rate_limiters.SampleToInsertRatio(2.0, 4, error_buffer=8.0), seed=14
    ),
    "a window given": lambda: column_lib.ColumnReplayBuffer(
        17, SCHEMA, window=sequences.EpisodeWindow(), sampler=uniform.UniformSampler(), seed=15
    ),
}

EPISODES: dict[str, Made] = {
    "episodes": lambda: relive.EpisodeReplayBuffer(seed=1),
    "episodes within limits": lambda: relive.EpisodeReplayBuffer(max_transitions=20, max_episodes=6, seed=2),
    "episodes with a ratio": lambda: relive.EpisodeReplayBuffer(
        max_transitions=30, limiter=rate_limiters.SampleToInsertRatio(2.0, 4, error_buffer=8.0), seed=3
    ),
    "episodes in groups": lambda: relive.EpisodeReplayBuffer(
        max_episodes=9,
        admission=admission.Admission(2, 5),
        groups=groups.Groups(2, timeout=1000.0, min_size=1),
        seed=4,
    ),
}

BUFFERS = COLUMNS | EPISODES

MAY_BE_MISSING = frozenset({"episode_policy_version", "policy_version", "draw_lag"})
"""Arrays that a state may leave out."""


def options(buffer: object) -> dict[str, Any]:
    """The further arguments of the methods behind `load`."""
    return {"codec": codec.PlainCodec()} if isinstance(buffer, relive.EpisodeReplayBuffer) else {}


def work(buffer: Any, rng: random.Random, count: int) -> None:
    """Make `count` random calls on a buffer."""
    for t in range(count):
        with contextlib.suppress(errors.NotReadyError):
            if isinstance(buffer, relive.EpisodeReplayBuffer):
                _work_episodes(buffer, rng, t)
            else:
                _work_columns(buffer, rng, t)


def _work_columns(buffer: Columns, rng: random.Random, t: int) -> None:
    action, streams = rng.randrange(12), buffer.streams
    schema = buffer.schema or SCHEMA
    rows = _rows(schema, rng, streams + 5) if action < 8 else {}

    def tree(name: str, count: int, skipped: int = 0) -> Any:
        flat = {path: column[skipped : skipped + count] for path, column in rows.items()}
        return _nested(getattr(schema, name), name, flat)

    if action < 3:
        known = rng.random() < 0.7
        buffer.add(
            _first(tree("observation", 1)),
            _first(tree("action", 1)),
            rows["reward"][0],
            _first(tree("observation", 1, 1)) if known else None,
            terminated=rng.random() < 0.2,
            truncated=known and rng.random() < 0.1,
            stream=rng.randrange(streams),
            **_first(tree("extras", 1)),
        )
    elif action < 7:
        buffer.extend(
            tree("observation", streams),
            tree("action", streams),
            rows["reward"][:streams],
            tree("observation", streams, 2),
            terminated=np.array([rng.random() < 0.1 for _ in range(streams)]),
            truncated=np.array([rng.random() < 0.1 for _ in range(streams)]),
            **tree("extras", streams),
        )
    elif action == 7:
        length = min(rng.randrange(1, 5), buffer.capacity)
        observations, rest = tree("observation", length + 1), rows["reward"][:length]
        buffer.add_episode(
            observations,
            tree("action", length),
            rest,
            terminated=rng.random() < 0.5,
            stream=rng.randrange(streams),
            **tree("extras", length),
        )
    elif action == 8:
        buffer.sample(2)
    elif action == 9 and buffer.has_priorities and len(buffer):
        keys = rng.choices(range(buffer.history.oldest_key, buffer.history.next_key), k=3)
        buffer.update_priorities(keys, [3 * rng.random() for _ in keys])
    elif action == 10:
        newest = buffer.history.next_key
        buffer.set_eligible([max(0, newest - rng.randrange(1, 20)) for _ in range(3)], rng.random() < 0.6)
    elif action == 11 and rng.random() < 0.05:
        buffer.clear()
    elif action == 11:
        with contextlib.suppress(errors.ArgumentError):  # Of a step whose next observation nobody has given.
            buffer.end_episode(stream=rng.randrange(streams))


def _rows(schema: relive.Schema, rng: random.Random, count: int) -> dict[str, Any]:
    """Return that many rows of each field; those of numbers hold 0, 1 or 2."""
    fields = schema.fields
    numbers = np.frombuffer(rng.randbytes(count * len(fields)), np.uint8).reshape(len(fields), count) % 3
    rows = {path: np.zeros((count, *field.shape), field.dtype) for path, field in fields.items()}
    for column, values in zip(rows.values(), numbers, strict=True):
        if column.dtype.kind in "iuf":
            column.T[...] = values  # The last axis of a transposed column is that of the rows.
    return rows


def _nested(tree: Any, path: str, columns: dict[str, Any]) -> Any:
    if isinstance(tree, relive.Field):
        return columns[path]
    return {name: _nested(part, f"{path}/{name}", columns) for name, part in tree.items()}


def _first(tree: Any) -> Any:
    return {name: _first(part) for name, part in tree.items()} if isinstance(tree, dict) else tree[0]


def _work_episodes(buffer: Episodes, rng: random.Random, t: int) -> None:
    open_ids = list(buffer.get_stats().open_ages)
    action = rng.randrange(10)
    if action < 2 and rng.random() < 0.5:
        with buffer.admit_nowait() as ticket:
            buffer.start_episode_nowait(rng.choice("abc"), ticket=ticket)
    elif action < 2:
        group_id, version = rng.choice([None, *"ghijk"]), rng.choice([None, 0, 1, buffer.policy_version])
        with buffer.admit_nowait() as ticket, contextlib.suppress(errors.ArgumentError):  # The group may be full.
            buffer.start_episode_nowait(rng.choice("abc"), group_id=group_id, policy_version=version, ticket=ticket)
    elif action < 7 and open_ids:
        step = {"x": np.arange(rng.randrange(3), dtype=">i2"), "t": t}, (t, b"a"), float(t)
        episode_id = rng.choice(open_ids)
        newest = buffer._store[episode_id].newest_version
        version = rng.choice([None, None, newest, min((newest or 0) + rng.randrange(3), 2**62)])
        buffer.append_observation_action_reward_nowait(episode_id, *step, policy_version=version)
    elif action == 7 and open_ids:
        status: Any = rng.choice(["COMPLETED", "TRUNCATED", "ABORTED"])
        buffer.end_episode_nowait(rng.choice(open_ids), None, status)
    elif action == 8 and open_ids and rng.random() < 0.3:
        buffer._abort(rng.choice(open_ids))
    elif action == 8 and rng.random() < 0.3:
        buffer.set_policy_version(min((buffer.policy_version or 0) + rng.randrange(3), 2**62))
    elif action == 9 and rng.random() < 0.3:
        buffer.next_episodes_nowait(1, max_lag=None if buffer.policy_version is None else 1)
    elif action == 9 and rng.random() < 0.3 and buffer._setting("groups") is not None:
        buffer.next_groups_nowait(1)
    elif action == 9:
        buffer.sample_n_step_nowait(2, 3, 0.9, lag_decay=1.0 if buffer.policy_version is None else 0.7)


def worked(make: Made, seed: int = 0, count: int = 60) -> Any:
    """A buffer that has been in use."""
    buffer = make()
    work(buffer, random.Random(seed), count)
    return buffer


def plain(value: Any) -> Any:
    """Something that == compares to the last bit."""
    if dataclasses.is_dataclass(value):
        return plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items() if name not in ("open_ages", "open_age", "group_age")}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    return value


def batch_of(buffer: Any) -> Any:
    """The next batch, or why there is none."""
    try:
        if isinstance(buffer, relive.EpisodeReplayBuffer):
            batch = buffer.sample_n_step_nowait(3, 2, 0.9)
            if buffer.policy_version is not None:
                batch += buffer.sample_n_step_nowait(9, 2, 0.9, max_lag=buffer.policy_version, lag_decay=0.9)
            return plain(batch)
        return plain(buffer.sample(3))
    except errors.NotReadyError as error:
        return str(error)


def work_both(buffer: Any, other: Any, rngs: tuple[random.Random, random.Random]) -> None:
    """Do the same to both: no episode begins, which would have another id."""
    for each, rng in zip((buffer, other), rngs, strict=True):
        if not isinstance(each, relive.EpisodeReplayBuffer):
            work(each, rng, 2)
            continue
        for episode_id in [*each.get_stats().open_ages][:1]:
            with contextlib.suppress(errors.NotReadyError):
                each.append_observation_action_reward_nowait(episode_id, 1, 2, 3.0)


def assert_same(buffer: Any, other: Any, count: int = 30) -> None:
    """The next `count` batches are equal, with other things between them, and so is all that is counted."""
    rngs = random.Random(count), random.Random(count)
    assert plain(buffer.state_dict()) == plain(other.state_dict())
    for number in range(count):
        assert batch_of(buffer) == batch_of(other)
        if number % 7 == 3:
            work_both(buffer, other, rngs)
    assert plain(buffer.get_stats()) == plain(other.get_stats())
    buffer.check()
    other.check()


@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS.keys())
class TestEveryBuffer:
    @pytest.mark.parametrize(("seed", "count"), [(2, 30), pytest.param(1, 1000, marks=pytest.mark.long)])
    def test_the_next_batches_of_a_loaded_buffer_are_those_of_the_saved_one(
        self, make: Made, seed: int, count: int, tmp_path: pathlib.Path
    ) -> None:
        """P69; also those of a copy of the copy, which needs neither (P70)."""
        buffer = worked(make, seed, 30 + 20 * seed)
        buffer.save(tmp_path / "one")
        type(buffer).load(tmp_path / "one").save(tmp_path / "two")
        shutil.rmtree(tmp_path / "one")
        loaded = type(buffer).load(tmp_path / "two")
        shutil.rmtree(tmp_path / "two")
        assert_same(buffer, loaded, count)

    def test_what_was_never_written_to_is_saved_and_loaded(self, make: Made, tmp_path: pathlib.Path) -> None:
        buffer = make()
        buffer.save(tmp_path / "saved")
        assert_same(buffer, type(buffer).load(tmp_path / "saved"), 12)

    @pytest.mark.parametrize(("seed", "count"), [(1, 15), pytest.param(2, 100, marks=pytest.mark.long)])
    def test_a_state_is_json_and_arrays_and_goes_into_a_used_buffer(self, make: Made, seed: int, count: int) -> None:
        buffer, other = worked(make, seed), worked(make, seed + 10)
        state = buffer.state_dict()
        values = {name: value for name, value in state.items() if name != "arrays"}
        assert json.loads(json.dumps(values, allow_nan=False)) == values
        assert {type(array) for array in state["arrays"].values()} == {np.ndarray}
        assert not any(array.dtype.hasobject for array in state["arrays"].values())
        if other.state_dict()["settings"] == state["settings"]:
            other.load_state_dict(state)
        else:
            other = make()
            other.load_state_dict(state)
        assert_same(buffer, other, count)

    def test_a_state_and_the_buffer_share_nothing(self, make: Made) -> None:
        """P53."""
        buffer = worked(make, 1)
        state = buffer.state_dict()
        before = copy.deepcopy(state)
        work(buffer, random.Random(5), 30)
        assert plain(state) == plain(before)
        first, second = make(), make()
        first.load_state_dict(state)
        second.load_state_dict(state)
        work(first, random.Random(6), 30)
        assert plain(state) == plain(before)
        expected = plain(second.state_dict())
        assert expected == plain(before)
        for array in state["arrays"].values():
            array[...] = np.zeros((), array.dtype)
        state.clear()
        assert plain(second.state_dict()) == expected
        second.check()

    def test_a_pickle_in_any_file_is_not_executed(self, make: Made, tmp_path: pathlib.Path) -> None:
        """P73."""
        buffer = worked(make, 3, 20)
        marker = tmp_path / "executed"

        class Malicious:
            def __reduce__(self) -> Any:
                return os.mkdir, (str(marker),)

        objects = np.empty(1, object)
        objects[0] = Malicious()
        buffer.save(tmp_path / "saved")
        names = sorted(os.listdir(tmp_path / "saved"))
        assert "manifest.json" in names
        for name in names:
            path = tmp_path / "saved" / name
            content = path.read_bytes()
            if name.endswith(".npy"):
                np.save(path, objects, allow_pickle=True)
            else:
                path.write_bytes(pickle.dumps(Malicious()))
            with pytest.raises(errors.CheckpointError):
                type(buffer).load(tmp_path / "saved")
            path.write_bytes(content)
        assert not marker.exists()
        type(buffer).load(tmp_path / "saved").check()

    def test_another_version_is_refused(self, make: Made, tmp_path: pathlib.Path) -> None:
        """P75."""
        buffer = make()
        buffer.save(tmp_path / "saved")
        manifest = tmp_path / "saved" / "manifest.json"
        manifest.write_bytes(manifest.read_bytes().replace(b'"version": 1,', b'"version": 2,', 1))
        with pytest.raises(
            errors.CheckpointError, match="is of format version 2, and this relive reads 1: update relive"
        ):
            type(buffer).load(tmp_path / "saved")

    def test_progress_reaches_the_total_and_older_ones_are_kept(self, make: Made, tmp_path: pathlib.Path) -> None:
        buffer = worked(make, 4)
        heard: list[tuple[int, int]] = []
        for _ in range(3):
            heard.clear()
            buffer.save(tmp_path / "saved", keep=2, progress=lambda count, total: heard.append((count, total)))
            assert heard[-1][0] == heard[-1][1]
        assert sorted(name for name in os.listdir(tmp_path) if not name.startswith(".")) == ["saved", "saved.1"]
        heard.clear()
        type(buffer).load(tmp_path / "saved", progress=lambda count, total: heard.append((count, total)))
        assert heard[-1][0] == heard[-1][1]

    def test_the_state_of_another_class_is_refused(self, make: Made) -> None:
        buffer = make()
        state = buffer.state_dict() | {"class": "OtherBuffer"}
        name = type(buffer).__name__
        message = f"^the state is of a OtherBuffer, and not of a {name}: use OtherBuffer$"
        with pytest.raises(errors.CheckpointError, match=message):
            buffer.load_state_dict(state)

    def test_what_is_no_state_is_refused(self, make: Made) -> None:
        buffer = worked(make, 1, 10)
        before = plain(buffer.state_dict())
        states: list[Any] = [None, [], {}, {"arrays": {}}, {"class": 3, "arrays": {}}]
        for state in states:
            with pytest.raises(errors.CheckpointError):
                buffer.load_state_dict(state)
        assert plain(buffer.state_dict()) == before

    def test_a_damaged_state_changes_nothing(self, make: Made) -> None:
        """Whatever is missing."""
        buffer, state = worked(make, 5), worked(make, 6).state_dict()
        other = type(buffer)._loaded(buffer.state_dict(), {}, **options(buffer))
        before = plain(buffer.state_dict())
        for name in list(state):
            if name != "journal":
                with pytest.raises(errors.CheckpointError):
                    buffer.load_state_dict({kept: value for kept, value in state.items() if kept != name})
        for name, array in state["arrays"].items():
            shorter: list[Any] = [] if name in MAY_BE_MISSING else [{}, {name: array[:-1]}]
            for forged in (*shorter, {name: array.tolist()}, {name: array.astype("S3")}):
                arrays = {kept: value for kept, value in state["arrays"].items() if kept != name} | forged
                if (
                    forged
                    and not len(array)
                    and isinstance(forged[name], np.ndarray)
                    and forged[name].dtype == array.dtype
                ):
                    continue
                with pytest.raises(errors.CheckpointError):
                    buffer.load_state_dict(state | {"arrays": arrays})
        assert plain(buffer.state_dict()) == before
        assert_same(buffer, other, 5)

    def test_a_loaded_buffer_can_have_another_seed(self, make: Made) -> None:
        state = worked(make, 8).state_dict()
        loaded = type(make())._loaded(state, {"seed": 5}, **options(make()))
        assert generators.state_of(loaded.rng) == generators.state_of(np.random.default_rng(5))


@pytest.mark.parametrize("kind", ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"])
@pytest.mark.parametrize("name", ["ring", "prioritized of 3 streams, live", "sequences", "episodes in groups"])
def test_each_generator_goes_on(name: str, kind: str) -> None:
    buffer = worked(BUFFERS[name], 7)
    rng = np.random.Generator(getattr(np.random, kind)(3))
    rng.integers(5, dtype=np.int32)
    buffer._rng = rng
    state = buffer.state_dict()
    loaded = type(buffer)._loaded(state, {}, **options(buffer))
    assert type(loaded.rng.bit_generator).__name__ == kind
    assert_same(buffer, loaded, 5)
    if kind != "PCG64":
        message = f"^generator/bit_generator must be PCG64, as in this object, got {kind}$"
        with pytest.raises(errors.CheckpointError, match=message):
            BUFFERS[name]().load_state_dict(state)


def ring(**settings: Any) -> relive.RingReplayBuffer:
    buffer = relive.RingReplayBuffer(10, seed=0, **settings)
    for t in range(13):
        buffer.add([float(t)], t, 1.0, [t + 1.0], terminated=t % 5 == 4)
    return buffer


class OwnLimiter(rate_limiters.MinSize):
    pass


class OwnSchedule(schedules.Schedule):
    def value(self, tick: int) -> float:
        return 0.5


class OwnSampler(sampler_lib.Sampler):
    """Draws the anchor that became eligible last, and remembers how often it was asked."""

    num_asked = 0

    def _draw(self, size: int, rng: np.random.Generator) -> sampler_lib.Draw:
        self.num_asked += 1
        newest = self._newest[self.anchors.is_eligible(self._newest)][-1:]
        return sampler_lib.Draw(np.repeat(newest, size), np.ones(size))

    def _attached(self, capacity: int) -> None:
        self._newest = np.zeros(0, np.int64)

    def _added(self, slots: arrays.Slots) -> None:
        self._newest = np.concatenate([self._newest, slots])

    def _removed(self, slots: arrays.Slots) -> None:
        self._newest = self._newest[~np.isin(self._newest, slots)]


class CountingSampler(OwnSampler):
    def _state(self, slots: arrays.Slots) -> dict[str, Any]:
        return {"num_asked": self.num_asked, "arrays": {"newest": self._newest}}

    def _check_state(self, given: Any, rows: int) -> None:
        given.integer("num_asked")
        given.integers("newest", None, 0, self.anchors.capacity - 1)

    def _restore(self, given: Any, slots: arrays.Slots) -> None:
        self.num_asked = given.integer("num_asked")
        self._newest = given.integers("newest", None, 0, self.anchors.capacity - 1)


class OwnWindow(transitions.TransitionWindow):
    pass


class OwnBuffer(relive.RingReplayBuffer):
    """A subclass with the same arguments."""


class WarmBuffer(relive.RingReplayBuffer):
    """A subclass with an argument of its own."""

    def __init__(self, *arguments: Any, temperature: float, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.temperature = temperature

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "temperature": self.temperature}


def limited_state() -> Any:
    return ring(limiter=OwnLimiter(3)).state_dict()


class TestClassesOfOnesOwn:
    def test_its_settings_come_back(self, tmp_path: pathlib.Path) -> None:
        """Pitfall P92."""
        assert_same(ring(limiter=OwnLimiter(3)), loaded := relive.RingReplayBuffer._loaded(limited_state(), {}))
        assert type(loaded.limiter) is OwnLimiter
        relive.PrioritizedReplayBuffer(10, beta=OwnSchedule()).save(tmp_path / "saved")
        scheduled = relive.PrioritizedReplayBuffer.load(tmp_path / "saved")
        assert isinstance(scheduled.sampler, prioritized.PrioritizedSampler)
        assert scheduled.sampler.beta == 0.5

    def test_a_window_comes_back(self) -> None:
        def make() -> Columns:
            return column_lib.ColumnReplayBuffer(10, SCHEMA, window=OwnWindow(), seed=0)

        loaded = column_lib.ColumnReplayBuffer[Any]._loaded(worked(make).state_dict(), {})
        assert type(loaded.window) is OwnWindow
        assert_same(worked(make), loaded)

    def test_a_sampler_is_told_of_all_anchors(self) -> None:
        loaded = relive.RingReplayBuffer._loaded(ring(sampler=OwnSampler()).state_dict(), {})
        assert loaded.sample(2).keys.tolist() == ring(sampler=OwnSampler()).sample(2).keys.tolist() == [12, 12]

    def test_a_subclass_of_a_buffer_saves_what_it_takes(self, tmp_path: pathlib.Path) -> None:
        """Pitfall P92."""
        buffer = WarmBuffer(10, SCHEMA, temperature=0.5, seed=0)
        buffer.save(tmp_path / "saved")
        loaded = WarmBuffer.load(tmp_path / "saved")
        assert loaded.temperature == 0.5
        assert WarmBuffer.load(tmp_path / "saved", temperature=2.0).temperature == 2.0
        assert_same(buffer, loaded)
        other = WarmBuffer(10, SCHEMA, temperature=2.0, seed=0)
        with pytest.raises(
            errors.CheckpointError, match="^settings/temperature must be 2.0, as in this object, got 0.5$"
        ):
            other.load_state_dict(buffer.state_dict())

    def test_a_subclass_that_does_not_say_what_it_takes_is_not_saved(self, tmp_path: pathlib.Path) -> None:
        class Silent(relive.RingReplayBuffer):
            def __init__(self, *arguments: Any, temperature: float = 1.0, **named: Any) -> None:
                super().__init__(*arguments, **named)

        rule = "settings.. of Silent must return what its constructor takes beyond RingReplayBuffer's"
        with pytest.raises(errors.CheckpointError, match=f"^{rule}, got no temperature$"):
            Silent(10).save(tmp_path / "saved")
        assert not (tmp_path / "saved").exists()

    def test_a_subclass_that_could_not_be_made_again_is_not_saved(self) -> None:
        class Fixed(relive.RingReplayBuffer):
            def __init__(self, temperature: float) -> None:
                super().__init__(10)
                self.temperature = temperature

            def settings(self) -> dict[str, Any]:
                return {"temperature": self.temperature}

        class Short(Fixed):
            def __init__(self, seed: Any = None) -> None:
                super().__init__(1.0)

        with pytest.raises(errors.CheckpointError, match="^the constructor of Fixed must take seed to be loaded$"):
            Fixed(0.5).state_dict()
        with pytest.raises(
            errors.CheckpointError, match="^the constructor of Short must take temperature to be loaded$"
        ):
            Short().state_dict()

    def test_none_takes_the_place_of_what_was_saved(self) -> None:
        state = relive.RingReplayBuffer(10, max_times_sampled=2, limiter=relive.MinSize(5)).state_dict()
        loaded = relive.RingReplayBuffer._loaded(state, {"limiter": None})
        assert isinstance(loaded.limiter, relive.MinSize)
        assert loaded.limiter.min_size == 1

    def test_a_sampler_may_keep_a_state(self, tmp_path: pathlib.Path) -> None:
        buffer = ring(sampler=CountingSampler())
        buffer.sample(3)
        buffer.save(tmp_path / "saved")
        loaded = relive.RingReplayBuffer.load(tmp_path / "saved", sampler=CountingSampler())
        assert isinstance(loaded.sampler, CountingSampler)
        assert loaded.sampler.num_asked == 1
        other = ring(sampler=CountingSampler())
        state = buffer.state_dict()
        other.load_state_dict(state)
        assert_same(loaded, other)
        state["sampler"]["num_asked"] = -1
        before = plain(other.state_dict())
        with pytest.raises(errors.CheckpointError, match="^sampler/num_asked must be an integer in"):
            other.load_state_dict(state)
        assert plain(other.state_dict()) == before

    def test_a_subclass_of_a_buffer_loads_what_it_saved(self, tmp_path: pathlib.Path) -> None:
        buffer = worked(lambda: OwnBuffer(10, SCHEMA, seed=0))
        buffer.save(tmp_path / "saved")
        loaded = OwnBuffer.load(tmp_path / "saved")
        assert type(loaded) is OwnBuffer
        assert_same(buffer, loaded)
        with pytest.raises(errors.CheckpointError, match="^the state is of a OwnBuffer, and not of a RingReplayBuffer"):
            relive.RingReplayBuffer.load(tmp_path / "saved")

    def test_a_generator_has_to_be_one_of_numpys(self) -> None:
        class Bits(np.random.PCG64):
            pass

        buffer = relive.RingReplayBuffer(10, seed=np.random.Generator(Bits(0)))
        with pytest.raises(errors.CheckpointError, match="^a generator of the kind Bits cannot be saved"):
            buffer.state_dict()


class TestSettings:
    def test_a_state_of_other_settings_is_refused(self) -> None:
        state = ring().state_dict()
        other = relive.RingReplayBuffer(10, n_step=2)
        with pytest.raises(errors.CheckpointError, match="^settings/n_step must be 2, as in this object, got 1$"):
            other.load_state_dict(state)
        limited = relive.RingReplayBuffer(10, max_times_sampled=3).state_dict()
        with pytest.raises(
            errors.CheckpointError, match="^settings/max_times_sampled must be None, as in this object, got 3$"
        ):
            relive.RingReplayBuffer(10).load_state_dict(limited)
        state["settings"]["n_step"] = np.ones(2)
        with pytest.raises(errors.CheckpointError, match="^settings/n_step must be 2, as in this object, got array"):
            other.load_state_dict(state)

    def test_a_buffer_without_a_schema_takes_that_of_the_state_or_stays_as_it_was(self) -> None:
        state = ring().state_dict()
        other = relive.RingReplayBuffer(10, seed=5)
        damaged = state | {"arrays": state["arrays"] | {"barred": state["arrays"]["barred"][1:]}}
        with pytest.raises(errors.CheckpointError, match="^array barred must be"):
            other.load_state_dict(damaged)
        assert other.schema is None
        other.load_state_dict(state)
        assert_same(ring(), other)

    def test_what_was_written_to_does_not_forget_its_schema(self) -> None:
        buffer = ring()
        before = plain(buffer.state_dict())
        with pytest.raises(errors.CheckpointError, match="^settings/schema must be "):
            buffer.load_state_dict(relive.RingReplayBuffer(10, seed=0).state_dict())
        assert plain(buffer.state_dict()) == before

    def test_a_schema_that_no_memory_holds_is_refused(self) -> None:
        state = relive.RingReplayBuffer(10, SCHEMA, seed=0).state_dict()
        state["settings"]["schema"][0][2] = [2**60]
        for load in (
            relive.RingReplayBuffer(10, seed=5).load_state_dict,
            lambda s: relive.RingReplayBuffer._loaded(s, {}),
        ):
            with pytest.raises(errors.CheckpointError):
                load(state)

    def test_what_no_memory_holds_beside_the_rows_is_refused(self) -> None:
        """An open episode without rows has room for its final observation, and brings nothing."""
        buffer = relive.RingReplayBuffer(1, SCHEMA, streams=1, seed=0)
        work(buffer, random.Random(1), 3)
        state = buffer.state_dict()
        arrays = state["arrays"]
        for name, array in arrays.items():
            arrays[name] = array[:0]
        state.update(next_key=1, num_evicted=1)
        state["counters"].update(inserted=1, spliced_episodes=0)
        arrays.update(
            episode_stream=np.array([0]),
            episode_length=np.array([1]),
            episode_first_key=np.array([0]),
            episode_end=np.array([0], np.uint8),
            episode_has_tail=np.array([False]),
        )
        assert len(relive.RingReplayBuffer._loaded(state, {})) == 0
        for exponent in range(30, 47):
            state["settings"]["schema"][0][2] = [2**exponent]
            for name in ("rows/observation/image", "final/observation/image"):
                arrays[name] = np.zeros((0, 2**exponent), np.uint8)
            # Too much for some machines, and none of it used.
            with contextlib.suppress(errors.CheckpointError):
                relive.RingReplayBuffer._loaded(state, {})

    def test_a_state_that_finds_no_memory_is_said_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def restore(*arguments: object, **options: object) -> None:
            raise MemoryError("unable to allocate")

        state = ring().state_dict()
        monkeypatch.setattr(relive.RingReplayBuffer, "_restore", restore)
        message = "^a RingReplayBuffer of that state does not fit in memory: unable to allocate$"
        with pytest.raises(errors.CheckpointError, match=message):
            relive.RingReplayBuffer._loaded(state, {})

    def test_another_n_step_may_be_given(self) -> None:
        state = ring().state_dict()
        loaded = relive.RingReplayBuffer._loaded(state, {"n_step": 3})
        assert loaded.read([5]).steps.tolist() == ring(n_step=3).read([5]).steps.tolist() == [3]
        with pytest.raises(errors.CheckpointError, match="^a RingReplayBuffer cannot be made of its settings: n_step"):
            relive.RingReplayBuffer._loaded(state, {"n_step": 0})

    def test_a_storage_may_be_given(self) -> None:
        """It need not be the one that the buffer had."""
        state = ring().state_dict()
        own = memory.ColumnStorage(ring().history.schema, 10)
        loaded = relive.RingReplayBuffer._loaded(state, {"storage": own})
        assert loaded.history.storage is own
        assert_same(ring(), loaded)
        empty = relive.RingReplayBuffer(10, seed=0).state_dict()
        fresh = relive.RingReplayBuffer._loaded(empty, {"storage": memory.ColumnStorage(SCHEMA, 10)})
        assert (len(fresh), fresh.schema) == (0, SCHEMA)

    def test_a_column_that_is_no_array_is_no_part_of_a_state(self) -> None:
        """It could turn out to be damaged when half of it is already read."""
        buffer, state = ring(), ring().state_dict()
        state["arrays"]["rows/reward"] = buffer._full_state()["arrays"]["rows/reward"]
        with pytest.raises(errors.CheckpointError, match="^array rows/reward must be an array, got "):
            buffer.load_state_dict(state)

    def test_rows_have_a_schema(self) -> None:
        state = ring().state_dict()
        state["settings"]["schema"] = None
        with pytest.raises(errors.CheckpointError, match="^schema must be there where a row was written$"):
            relive.RingReplayBuffer._loaded(state, {})

    def test_more_streams_than_any_file_is_for_are_refused(self) -> None:
        state = ring().state_dict()
        state["settings"].update(streams=2**21, capacity=2**22)
        with pytest.raises(errors.CheckpointError, match=r"streams must be at most 524288, got 2097152$"):
            relive.RingReplayBuffer._loaded(state, {})


def test_an_interval_need_not_begin_with_the_oldest_row() -> None:
    """Anchors made ineligible and eligible again come after the others."""
    for barred, freed in (([3, 4, 5, 6], [3, 4]), ([3], [3]), ([3, 4], [3, 4])):
        buffer = ring()
        for keys, is_eligible in ((barred, False), (freed, True)):
            for key in keys:
                buffer.set_eligible([key], is_eligible)
        loaded = relive.RingReplayBuffer._loaded(buffer.state_dict(), {})
        for each in (buffer, loaded):
            each.set_eligible([8], False)
        assert_same(buffer, loaded)


def test_priorities_that_are_gone_need_not_fit_another_alpha() -> None:
    buffer = relive.PrioritizedReplayBuffer(3, alpha=0.5, new_priority="live", seed=0)
    keys = [buffer.add([0.0], 0, 0.0, [0.0]) for _ in range(3)]
    buffer.update_priorities(keys, [1e200, 1.0, 1.0])
    buffer.update_priorities(keys, [1.0, 1.0, 1.0])
    sampler = buffer.sampler
    assert isinstance(sampler, prioritized.PrioritizedSampler)
    sampler.alpha = 2.0
    assert_same(buffer, relive.PrioritizedReplayBuffer._loaded(buffer.state_dict(), {}))


class TestLimiters:
    def test_a_ratio_neither_hangs_nor_bursts(self) -> None:
        """P74: the counts of inserts and samples go on."""
        limiter = rate_limiters.SampleToInsertRatio(1.0, 5, error_buffer=4.0)
        buffer = relive.RingReplayBuffer(50, limiter=limiter, seed=0)
        for t in range(20):
            while not buffer.can_insert():
                buffer.sample(1)
            buffer.add([float(t)], t, 0.0, [t + 1.0])
        loaded = relive.RingReplayBuffer._loaded(buffer.state_dict(), {})
        for each in (buffer, loaded):
            drawn = 0
            while each.can_sample(1):
                each.sample(1)
                drawn += 1
            assert 0 < drawn <= 8
            assert each.can_insert()
        assert_same(buffer, loaded)

    def test_waiting_actors_hear_of_a_loaded_state(self) -> None:
        buffer = worked(EPISODES["episodes with a ratio"], 3)
        state = buffer.state_dict()
        other = EPISODES["episodes with a ratio"]()
        other.load_state_dict(state)
        assert batch_of(other) == batch_of(buffer)


def test_a_map_is_not_overwritten_by_a_checkpoint(tmp_path: pathlib.Path) -> None:
    """P71."""
    mapped = relive.MemmapStorage(tmp_path / "map", SCHEMA, 20)
    buffer = worked(lambda: relive.RingReplayBuffer(20, storage=mapped, seed=0))
    before = plain(buffer.state_dict())
    with pytest.raises(errors.ReplayError, match="map"):
        buffer.save(tmp_path / "map")
    assert plain(buffer.state_dict()) == before
    buffer.save(tmp_path / "saved")
    assert_same(buffer, relive.RingReplayBuffer.load(tmp_path / "saved"))


def test_batches_drawn_ahead_are_what_they_were() -> None:
    buffer = ring()
    state, expected = buffer.state_dict(), plain(ring().sample(4))
    batches = buffer.batches(4, prefetch=3)
    first = next(batches)
    buffer.load_state_dict(state)
    assert plain(first) == expected
    assert_same(ring(), buffer)
    batches.close()


class TestMemory:
    """A state cannot make the loader allocate more memory than the state itself takes."""

    @pytest.mark.parametrize("name", ["ring", "prioritized of 3 streams, live", "sequences of 3 streams"])
    @pytest.mark.parametrize(
        "settings",
        [{"capacity": 10**8}, {"capacity": 10**15}, {"capacity": 2**62}, {"streams": 2**19, "capacity": 10**8}],
    )
    def test_a_capacity_is_only_a_number(self, name: str, settings: dict[str, int]) -> None:
        state = worked(COLUMNS[name], 1).state_dict()
        state["settings"].update(settings)
        used = memory_after(lambda: relive.__dict__[state["class"]]._loaded(state, {}))
        assert used < 128 << 20

    def test_going_back_from_many_rows_takes_memory_for_them_alone(self) -> None:
        """A stack as long as the ring, of rows that are linked."""
        buffer = relive.RingReplayBuffer(30_000, SCHEMA, frame_stack=2, streams=2, seed=0)
        length = 15_000
        observations = {"image": np.zeros((length + 1, 2, 2), np.uint8), "speed": np.zeros(length + 1, ">f2")}
        extras = {
            "big": np.zeros(length, int),
            "flag": np.zeros(length, bool),
            "pose": np.zeros(length, [("x", "<f8")]),
        }
        for stream in range(2):
            actions, rewards = np.zeros((length, 2), np.float32), np.zeros(length, np.float32)
            buffer.add_episode(observations, actions, rewards, terminated=True, stream=stream, **extras)
        state = buffer.state_dict()
        state["settings"]["frame_stack"] = 2**40
        assert memory_after(lambda: relive.RingReplayBuffer._loaded(state, {})) < 64 << 20


def memory_after(call: Callable[[], object]) -> int:
    """How many bytes more of memory were in use at the most, whether or not a CheckpointError came of it.

    The least of three times: what else happens in this process comes on top.
    """
    status = pathlib.Path("/proc/self/status")
    clear = pathlib.Path("/proc/self/clear_refs")
    if not (status.exists() and clear.exists()):
        pytest.skip("the peak of memory is read from Linux")

    def read(name: str) -> int:
        (line,) = [line for line in status.read_text().splitlines() if line.startswith(f"{name}:")]
        return int(line.split()[1]) << 10

    taken = []
    for _ in range(3):
        clear.write_text("5")
        before = read("VmRSS")
        with contextlib.suppress(errors.CheckpointError):
            call()
        taken.append(read("VmHWM") - before)
    return min(taken)


OTHER_PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")

SAVES = """
import random, sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import relive
path, action = sys.argv[2], sys.argv[3]
if action == "save":
    buffer = relive.PrioritizedReplayBuffer(50, n_step=2, seed=0)
    episodes = relive.EpisodeReplayBuffer(seed=0)
    for t in range(70):
        buffer.add([float(t), 0.1], t % 3, 0.5, [t + 1.0, 0.1], terminated=t % 9 == 8)
    episode_id = episodes.start_episode_nowait("a")
    for t in range(9):
        episodes.append_observation_action_reward_nowait(episode_id, {"x": np.arange(t), "y": (2**80, "z")}, t, 0.5)
    buffer.save(path + "/columns")
    episodes.save(path + "/episodes")
buffer = relive.PrioritizedReplayBuffer.load(path + "/columns")
episodes = relive.EpisodeReplayBuffer.load(path + "/episodes")
for _ in range(200):
    batch = buffer.sample(4)
    buffer.update_priorities(batch.keys, batch.weights + 0.5)
    print(batch.keys.tolist(), batch.observation.tolist(), batch.reward.tolist(), batch.weights.tolist())
for _ in range(50):
    print([(s.episode_id, repr(s.observation), s.action, s.reward) for s in episodes.sample_n_step_nowait(3, 2, 0.9)])
"""


@pytest.mark.parametrize("other", OTHER_PYTHONS)
def test_what_one_python_saved_another_one_loads(other: str, tmp_path: pathlib.Path) -> None:
    found = shutil.which(other)
    if found is None or other == f"python3.{sys.version_info.minor}":
        pytest.skip(f"{other} is not there, or is this one")
    if subprocess.run([found, "-c", "import numpy"], capture_output=True, check=False).returncode:
        pytest.skip(f"{other} has no numpy")
    source = str(pathlib.Path(relive.__file__).parents[1])
    for saver, loader in ((sys.executable, found), (found, sys.executable)):
        outputs = []
        directory = tmp_path / str(saver == found)
        directory.mkdir()
        for python, action in ((saver, "save"), (loader, "load")):
            command = [python, "-c", SAVES, source, str(directory), action]
            outputs.append(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
        assert outputs[0] == outputs[1]
        assert outputs[0].count("\n") == 250


def test_every_buffer_says_what_it_was_given() -> None:
    """Every argument of a constructor is saved, except these."""
    for make in BUFFERS.values():
        buffer = make()
        names = set(type(buffer).__init__.__annotations__) - {"return", "storage", "seed"}
        assert names == set(type(buffer)._SETTINGS)
        assert isinstance(buffer, checkpointable.Checkpointable)


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: relive.RingReplayBuffer(9, n_step=3, gamma=0.9), ", n_step=3, gamma=0.9>"),
        (lambda: relive.RingReplayBuffer(9, n_step=1, gamma=0.99, limiter=relive.MinSize(1)), " streams=1>"),
        (
            lambda: relive.RingReplayBuffer(9, frame_stack=4, limiter=relive.MinSize(5)),
            "frame_stack=4, limiter=MinSize(5)>",
        ),
        (
            lambda: relive.RingReplayBuffer(9, sampler=relive.PrioritizedSampler(alpha=1)),
            "=<PrioritizedSampler, alpha=1.0>>",
        ),
        (lambda: relive.PrioritizedReplayBuffer(9, alpha=0.7, beta=0.5), "streams=1, alpha=0.7, beta=0.5>"),
        (lambda: relive.SequenceReplayBuffer(9, length=3, prioritized=True), "streams=1, length=3, prioritized=True>"),
        (lambda: relive.JointSequenceReplayBuffer(9, agents=["a"], length=2), "streams=1, length=2>"),
        (lambda: relive.EpisodeReplayBuffer(), "max_transitions=None, max_episodes=None>"),
        (lambda: relive.EpisodeReplayBuffer(epochs=2), "max_episodes=None, epochs=2>"),
        (lambda: relive.TokenReplayBuffer(9, pad_token_id=3), "of 9 tokens, pad_token_id=3>"),
    ],
)
def test_a_repr_shows_what_differs_from_the_defaults(make: Callable[[], Any], shown: str) -> None:
    assert repr(make()).endswith(shown)


def test_a_repr_shows_the_settings_of_subclasses_on_one_line() -> None:
    class Text:
        def __repr__(self) -> str:
            return "two\nlines"

    class Noted(relive.RingReplayBuffer):
        def __init__(self, capacity: int, *, note: object = None, **settings: Any) -> None:
            super().__init__(capacity, **settings)
            self.note = note

        def settings(self) -> dict[str, Any]:
            return {**super().settings(), "note": self.note}

    assert repr(Noted(9)) == "<Noted of 0 steps, capacity=9, streams=1>"
    assert repr(Noted(9, n_step=2, note=Text())).endswith("streams=1, n_step=2, note=two lines>")
