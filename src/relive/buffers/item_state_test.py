"""Item buffers that were saved go on as if nothing had happened, whatever they keep."""

import copy
import json
import os
import pathlib
import random
from typing import Any, get_args

import numpy as np
import pytest

from relive import errors
from relive.buffers import item
from relive.buffers import item_cuts
from relive.persistence import checkpointable_test
from relive.persistence import forged_states_test
from relive.persistence import seed_blocks_test
from relive.persistence import state as state_lib

Unit = item_cuts.StorageUnit
Buffer = item.ItemReplayBuffer
UNITS: tuple[Unit, ...] = get_args(Unit)
plain = checkpointable_test.plain

POSE = np.dtype([("x", "<f4")])


def batch_of(unit: Unit, rng: random.Random, count: int) -> dict[str, Any]:
    """A batch of `count` items at most 3 rows long, with columns of many dtypes."""
    lengths = [rng.randrange(1, 4) for _ in range(count)]
    rows = len(lengths) if unit == "timesteps" else sum(lengths)
    numbers = np.array([rng.randrange(100) for _ in range(rows)], np.int64)
    batch: dict[str, Any] = {
        "image/left": np.repeat(numbers, 4).reshape(-1, 2, 2).astype(np.uint8),
        "speed": (numbers / 7).astype(">f2"),
        "name": np.array([f"row {number}" for number in numbers], "<U8"),
        "pose": np.array([(number,) for number in numbers], POSE),
        "flag": numbers % 2 == 0,
    }
    if unit == "sequences":
        batch["seq_lens"] = np.array(lengths, ">i2")
    if unit == "episodes":
        batch["eps_id"] = np.repeat(np.arange(count), lengths)
        batch["t"] = np.concatenate([np.arange(length) for length in lengths])
        batch["terminated"] = np.concatenate([np.arange(length) == length - 1 for length in lengths])
        batch["terminated"] &= batch["eps_id"] != rng.randrange(count)
    if unit == "fragments":
        batch["ragged"] = numbers[: rng.randrange(rows)]
    return batch


def work(buffer: Buffer, rng: random.Random, count: int) -> None:
    """Do `count` things to a buffer, chosen at random."""
    for _ in range(count):
        action = rng.randrange(8)
        if action < 5:
            buffer.add(batch_of(buffer.storage_unit, rng, rng.randrange(1, 4)))
        elif action < 7 and len(buffer):
            buffer.sample(3)
        elif rng.random() < 0.1:
            buffer.clear()


def worked(unit: Unit, seed: int = 0, count: int = 30) -> Buffer:
    """A buffer in the middle of its life."""
    buffer = Buffer(20, unit, seed=seed)
    work(buffer, random.Random(seed), count)
    return buffer


def drawn(buffer: Buffer) -> Any:
    """The next batch, or why there is none."""
    try:
        return plain(buffer.sample(3))
    except errors.NotReadyError as error:
        return str(error)


def assert_same(buffer: Buffer, other: Buffer, count: int = 30) -> None:
    """The next `count` batches are equal, with other things between them, and so is all that is counted."""
    rngs = random.Random(count), random.Random(count)
    assert plain(buffer.state_dict()) == plain(other.state_dict())
    assert list(buffer._rows) == list(other._rows)
    for _ in range(count):
        assert drawn(buffer) == drawn(other)
        work(buffer, rngs[0], 1)
        work(other, rngs[1], 1)
    assert buffer.get_stats() == other.get_stats()
    buffer.check()
    other.check()


@pytest.mark.parametrize("unit", UNITS)
class TestEveryUnit:
    @pytest.mark.parametrize(
        ("seed", "count"), [(0, 60), *(pytest.param(seed, 300, marks=pytest.mark.long) for seed in (1, 2))]
    )
    def test_the_next_batches_of_a_loaded_buffer_are_those_of_the_saved_one(
        self, unit: Unit, seed: int, count: int, tmp_path: pathlib.Path
    ) -> None:
        buffer = worked(unit, seed)
        buffer.save(tmp_path / "saved")
        assert_same(buffer, Buffer.load(tmp_path / "saved"), count)

    def test_columns_are_saved_a_chunk_at_a_time(
        self, unit: Unit, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where a chunk begins or ends within an item, or is smaller than one."""
        buffer = worked(unit, 3)
        expected = plain(buffer.state_dict())
        for size in (1, 16, 50):
            monkeypatch.setattr(state_lib, "CHUNK", size)
            parts = [column for column in buffer._state()["arrays"].values() if not isinstance(column, np.ndarray)]
            assert len(parts) >= 5
            for column in parts:
                for start, stop in state_lib.chunks(column.shape[0], column.shape[0] * column.dtype.itemsize):
                    assert len(column.read(start, stop)) == stop - start
            assert plain(buffer.state_dict()) == expected
            buffer.save(tmp_path / "saved")
            assert plain(Buffer.load(tmp_path / "saved").state_dict()) == expected

    def test_what_was_never_added_to_is_saved_and_loaded(self, unit: Unit, tmp_path: pathlib.Path) -> None:
        buffer = Buffer(20, unit, seed=1)
        buffer.save(tmp_path / "saved")
        assert_same(buffer, Buffer.load(tmp_path / "saved"))

    def test_what_was_cleared_still_knows_its_columns(self, unit: Unit, tmp_path: pathlib.Path) -> None:
        buffer = worked(unit, 2)
        buffer.clear()
        buffer.save(tmp_path / "saved")
        loaded = Buffer.load(tmp_path / "saved")
        with pytest.raises(errors.SchemaError, match="must be in every add"):
            loaded.add({"other": [1]})
        assert_same(buffer, loaded)

    def test_a_state_is_json_and_arrays_and_goes_into_a_used_buffer(self, unit: Unit) -> None:
        buffer, other = worked(unit, 4), worked(unit, 5)
        state = buffer.state_dict()
        values = {name: value for name, value in state.items() if name != "arrays"}
        assert json.loads(json.dumps(values, allow_nan=False)) == values
        assert {type(array) for array in state["arrays"].values()} == {np.ndarray}
        other.load_state_dict(state)
        assert_same(buffer, other, 100)

    def test_a_state_and_the_buffer_share_nothing(self, unit: Unit) -> None:
        buffer = worked(unit, 5)
        state = buffer.state_dict()
        before = copy.deepcopy(state)
        work(buffer, random.Random(5), 20)
        assert plain(state) == plain(before)
        first, second = Buffer(20, unit), Buffer(20, unit)
        first.load_state_dict(state)
        second.load_state_dict(state)
        work(first, random.Random(6), 20)
        assert plain(second.state_dict()) == plain(before)
        for array in state["arrays"].values():
            array[...] = np.zeros((), array.dtype)
        assert plain(second.state_dict()) == plain(before)
        second.check()

    @pytest.mark.parametrize("seeds", seed_blocks_test.seed_blocks(3 * forged_states_test.MUTANTS, 500, 3))
    def test_a_forged_state_is_refused_or_makes_a_buffer_that_works(self, unit: Unit, seeds: range) -> None:
        messages: list[str] = []
        taken = 0
        for seed in seeds:
            rng = random.Random(seed)
            state = forged_states_test.forged(worked(unit, seed % 5, rng.randrange(2, 30)).state_dict(), rng)
            buffer = worked(unit, 11, 10)
            before = plain(buffer.state_dict())
            try:
                made = Buffer._loaded(copy.deepcopy(state), {})
            except errors.CheckpointError as error:
                messages.append(str(error))
            else:
                taken += 1
                assert_usable(made)
            try:
                buffer.load_state_dict(state)
            except errors.CheckpointError:
                assert plain(buffer.state_dict()) == before
                buffer.check()
            else:
                assert_usable(buffer)
        assert taken
        assert messages
        assert not any("\n" in message for message in messages)

    def test_whatever_is_missing_or_too_short_is_refused(self, unit: Unit) -> None:
        buffer, state = worked(unit, 6, 10), worked(unit, 7).state_dict()
        before = plain(buffer.state_dict())
        for name in state:
            with pytest.raises(errors.CheckpointError):
                buffer.load_state_dict({kept: value for kept, value in state.items() if kept != name})
        for name, array in state["arrays"].items():
            for forged in ({}, {name: array[:-1]}, {name: array.tolist()}, {name: array.astype("V3")}):
                arrays = {kept: value for kept, value in state["arrays"].items() if kept != name} | forged
                if forged and not len(array) and type(forged[name]) is np.ndarray and forged[name].dtype == array.dtype:
                    continue
                with pytest.raises(errors.CheckpointError):
                    buffer.load_state_dict(state | {"arrays": arrays})
        assert plain(buffer.state_dict()) == before

    def test_a_damaged_file_is_refused(self, unit: Unit, tmp_path: pathlib.Path) -> None:
        worked(unit, 8).save(tmp_path / "saved")
        for name in sorted(os.listdir(tmp_path / "saved")):
            path = tmp_path / "saved" / name
            content = path.read_bytes()
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            with pytest.raises(errors.CheckpointError):
                Buffer.load(tmp_path / "saved")
            path.write_bytes(content)
        Buffer.load(tmp_path / "saved").check()

    def test_the_generator_goes_on_or_is_another(self, unit: Unit, tmp_path: pathlib.Path) -> None:
        rng = np.random.Generator(np.random.Philox(3))
        buffer = Buffer(20, unit, seed=rng)
        work(buffer, random.Random(0), 20)
        assert buffer.rng is rng
        buffer.save(tmp_path / "saved")
        loaded = Buffer.load(tmp_path / "saved")
        assert type(loaded.rng.bit_generator) is np.random.Philox
        assert_same(buffer, loaded)
        other = Buffer.load(tmp_path / "saved", seed=5)
        assert plain(other.rng.bit_generator.state) == plain(np.random.default_rng(5).bit_generator.state)
        with pytest.raises(errors.CheckpointError, match="^generator/bit_generator must be PCG64, as in this object"):
            Buffer(20, unit).load_state_dict(buffer.state_dict())


def assert_usable(buffer: Buffer) -> None:
    """It passes its audit, draws, takes what fits its columns, and is saved again."""
    buffer.check()
    drawn(buffer)
    try:
        work(buffer, random.Random(1), 5)
    except errors.SchemaError:
        pass  # The forged columns are others.
    except errors.ArgumentError:
        assert buffer.capacity < 9
    buffer.check()
    again = Buffer._loaded(buffer.state_dict(), {})
    assert plain(again.state_dict()) == plain(buffer.state_dict())


def state_with(unit: Unit, **changes: Any) -> dict[str, Any]:
    """The state of a buffer of one item of two rows, with other values."""
    buffer = Buffer(20, unit, seed=0)
    buffer.add({"c": [1.0, 2.0]} | ({"seq_lens": np.array([2], np.uint8)} if unit == "sequences" else {}))
    state = buffer.state_dict()
    state["arrays"] = state["arrays"] | changes.pop("arrays", {})
    return state | changes


def test_what_is_kept_of_columns_is_their_names_dtypes_and_shapes() -> None:
    state = worked("timesteps").state_dict()
    assert state["columns"] == [
        ["image/left", "|u1", [2, 2]],
        ["speed", ">f2", []],
        ["name", "<U8", []],
        ["pose", [["x", "<f4"]], []],
        ["flag", "|b1", []],
    ]
    assert list(state) == ["class", "settings", "generator", "counters", "columns", "arrays"]
    assert state["settings"] == {"capacity": 20, "storage_unit": "timesteps"}


@pytest.mark.parametrize(
    ("unit", "changes", "text"),
    [
        (
            "timesteps",
            {"columns": None},
            "columns must be a list of a name, a dtype and the shape of a row for each, got None",
        ),
        ("timesteps", {"columns": [["c", "<f8"]]}, "columns must be a list of .*, got \\['c', '<f8'\\]"),
        ("timesteps", {"columns": [["c", "<f8", [-1]]]}, "columns must be a list of .*"),
        ("timesteps", {"columns": [["c", "<f8", []]] * 2}, "columns must be a list of .*"),
        ("timesteps", {"columns": [["c", "|O", []]]}, "column c cannot be: dtype must be .* without objects.*"),
        ("timesteps", {"columns": [["c", "<f8", [2**62, 2**62]]]}, "column c cannot be: .*"),
        ("timesteps", {"columns": []}, "columns must be there where there is an item"),
        ("fragments", {"columns": [], "arrays": {"lengths": np.zeros((1, 0), int)}}, "lengths must be integers in .*"),
        ("fragments", {"arrays": {"lengths": np.array([[0]])}}, "lengths must be .* one above 0 in each row, got .*"),
        ("fragments", {"arrays": {"lengths": np.array([[21]])}}, "lengths must be integers in \\[0, 20\\].*"),
        ("fragments", {"arrays": {"lengths": np.array([[-1]])}}, "lengths must be integers in \\[0, 20\\].*"),
        ("fragments", {"arrays": {"lengths": np.array([[3]])}}, "array values/c must be .* shape \\(3\\), got .*"),
        ("timesteps", {"arrays": {"lengths": np.array([2])}}, "lengths must be 1 for each of the timesteps, got 2"),
        (
            "sequences",
            {
                "arrays": {"lengths": np.array([20, 1])},
                "counters": {"added": 2, "sampled": 0, "evicted": 0, "dropped": 0},
            },
            "lengths must be integers that sum to at most 20, got 21",
        ),
        ("sequences", {"columns": [["c", "<f8", []]]}, "columns cannot be cut into sequences: columns must include .*"),
        (
            "timesteps",
            {"counters": {"added": 3, "sampled": 0, "evicted": 2, "dropped": 0}},
            "counters must be of a buffer that holds 2 items",
        ),
        ("timesteps", {"counters": {"added": 3, "sampled": 0, "evicted": 0}}, "counters/dropped is missing"),
        ("timesteps", {"settings": {"capacity": 20, "storage_unit": "episodes"}}, "settings/storage_unit must be .*"),
    ],
)
def test_an_impossible_state_is_refused_with_the_reason(unit: Unit, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(errors.CheckpointError, match=f"^{text}$"):
        Buffer(20, unit).load_state_dict(state_with(unit, **changes))


def test_a_negative_length_that_another_one_makes_up_for_is_refused() -> None:
    buffer = Buffer(20, "fragments")
    for _ in range(2):
        buffer.add({"a": [1, 2], "b": [3]})
    state = buffer.state_dict()
    state["arrays"]["lengths"] = np.array([[2, -1], [2, 3]])
    with pytest.raises(errors.CheckpointError, match=r"^lengths must be integers in \[0, 20\], with one"):
        buffer.load_state_dict(state)


def test_a_length_that_seq_lens_cannot_hold_is_refused() -> None:
    buffer = Buffer(1000, "sequences")
    buffer.add({"c": np.zeros(255), "seq_lens": np.array([255], np.uint8)})
    state = buffer.state_dict()
    buffer.load_state_dict(state)
    state["arrays"] |= {"lengths": np.array([256]), "values/c": np.zeros(256)}
    with pytest.raises(
        errors.CheckpointError, match="^array lengths must hold what uint8 of .* seq_lens holds, got 256$"
    ):
        buffer.load_state_dict(state)


def test_more_than_there_is_memory_for_is_refused() -> None:
    state = state_with("timesteps")
    state["settings"] = state["settings"] | {"capacity": 2**62}
    rule = "^a ItemReplayBuffer cannot be made of its settings: capacity must fit in memory, got "
    with pytest.raises(errors.CheckpointError, match=rule):
        Buffer._loaded(state, {})
    state = state_with("timesteps", columns=[["c", "<f8", [2**58]]])
    state["arrays"] |= {"lengths": np.zeros(0, int), "values/c": np.zeros((0, 2**58))}
    with pytest.raises(errors.CheckpointError, match="^there is no memory for the rows: .*"):
        Buffer._loaded(state, {})


def test_a_dtype_that_no_file_holds_is_refused() -> None:
    overlapping = np.dtype({"names": ["a", "b"], "formats": ["<i4", "<i4"], "offsets": [0, 2]})
    buffer = Buffer(10)
    buffer.add({"c": np.zeros(2, overlapping)})
    with pytest.raises(errors.CheckpointError, match="^column c cannot be saved: column c must be of a dtype that"):
        buffer.state_dict()
