"""Tables and Parquet files are read back bit for bit; a damaged one is an error of one line."""

import json
import os
import pathlib
import stat
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

import pandas
import pyarrow
from pyarrow import dataset
from pyarrow import parquet as arrow_parquet

import relive
from relive import errors
from relive.common import trees
from relive.integrations import arrow
from relive.integrations import step_columns
from relive.integrations import stored_episodes
from relive.persistence import posix_test

SCHEMA = relive.Schema(
    {"image": relive.Field((2, 3), "uint8"), "hand": {"angle": relive.Field((), ">f8"), "half": relive.Field(2, "f2")}},
    {"0": relive.Field((), "int64"), "1": relive.Field(3, "bool")},
    reward=relive.Field((), "float32"),
    extras={
        "word": relive.Field((), "<U5"),
        "words": relive.Field((2,), ">U3"),
        "raw": relive.Field((), "S4"),
        "count": relive.Field((), ">u2"),
        "policy": {"version": relive.Field((), "uint64"), "is_new": relive.Field((), "bool")},
    },
)


def random_array(rng: np.random.Generator, field: relive.Field, lead: tuple[int, ...]) -> Any:
    """Return values [lead..., ...] of a field: any bits, so that every kind of NaN is among them."""
    shape = (*lead, *field.shape)
    if field.dtype.kind == "b":
        return rng.random(shape) < 0.5
    if field.dtype.kind == "U":
        return rng.choice(["", "a", "ab\0c", "žluť", "\U0001f600"], shape).astype(field.dtype)
    if field.dtype.kind == "S":
        return rng.choice([b"", b"a", b"\0b", b"\xff\xfe\0d"], shape).astype(field.dtype)
    size = int(np.prod(shape)) * field.dtype.itemsize
    return np.frombuffer(bytearray(rng.bytes(size)), field.dtype).reshape(shape)


def tree(rng: np.random.Generator, name: str, lead: tuple[int, ...]) -> Any:
    """Return random values of a part of the schema."""
    columns = {path: random_array(rng, field, lead) for path, field in SCHEMA.fields.items()}
    return trees.nested(name, columns)


def step(rng: np.random.Generator, lead: tuple[int, ...]) -> dict[str, Any]:
    """Return random arguments of `add` or `extend`."""
    return {
        "observation": tree(rng, "observation", lead),
        "action": tree(rng, "action", lead),
        "reward": rng.random(lead, np.float32),
        **tree(rng, "extras", lead),
    }


def write_randomly(buffer: Any, rng: np.random.Generator, calls: int) -> None:
    """Write steps in all ways there are."""
    for _ in range(calls):
        choice, stream = rng.random(), int(rng.integers(buffer.streams))
        ends = rng.random() < 0.3
        if choice < 0.6:
            more: dict[str, Any] = {}
            if ends or rng.random() < 0.5:
                more = {"next_observation": tree(rng, "observation", ())}
                more[str(rng.choice(["terminated", "truncated"]))] = ends
            elif rng.random() < 0.2:
                more = {"terminated": True}
            buffer.add(**step(rng, ()), **more, stream=stream)
        elif choice < 0.8:
            lead = (buffer.streams,)
            buffer.extend(**step(rng, lead), next_observation=tree(rng, "observation", lead))
        else:
            length = int(rng.integers(1, 5))
            given = step(rng, (length,))
            observations = tree(rng, "observation", (length + 1,))
            del given["observation"]
            buffer.add_episode(
                observations, given.pop("action"), given.pop("reward"), terminated=bool(ends), stream=stream, **given
            )


def facts(buffer: Any, *, as_added: bool = False) -> list[Any]:
    """Return everything about the episodes of a buffer but keys; or what they become when they are added to another."""
    found = []
    for episode in stored_episodes.stored_episodes(buffer):
        arrays = trees.flat("observation", episode.observations) | trees.flat("action", episode.actions)
        arrays |= {"reward": episode.rewards} | (trees.flat("extras", episode.extras) if episode.extras else {})
        stop, status = len(episode), episode.status
        if as_added and status != "COMPLETED":
            stop, status = stop - (not episode.has_final_observation), "TRUNCATED"
        elif as_added and not episode.has_final_observation:
            for path in trees.flat("observation", episode.observations):
                arrays[path] = np.concatenate([arrays[path], np.zeros_like(arrays[path][:1])], dtype=arrays[path].dtype)
        if stop:
            rows = {path: array[: stop + path.startswith("observation")] for path, array in arrays.items()}
            written = {path: (array.dtype.str, array.shape, array.tobytes()) for path, array in rows.items()}
            found.append((episode.stream, status, as_added or episode.has_final_observation, written))
    return found


def small(**settings: Any) -> relive.RingReplayBuffer:
    """Return a buffer with an episode that ended, and one that goes on."""
    buffer = relive.RingReplayBuffer(20, **settings)
    buffer.add_episode(np.arange(4, dtype=np.float32), [1, 0, 2], [0.0, 0.5, 1.0], terminated=True, stream=0)
    buffer.add(np.float32(7), 3, 0.25, np.float32(8), stream=0)
    return buffer


PAGE = "docs/guides/my_file.md tells how to read files of other libraries"


def refuse_to_write(path: pathlib.Path, message: str) -> None:
    with pytest.raises(errors.CheckpointError, match=message):
        arrow.write_parquet(small(), path)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "steps.parquet"


@hypothesis.settings(max_examples=hypothesis.settings().max_examples // 2)
@hypothesis.given(
    seed=st.integers(0, 2**32), streams=st.integers(1, 3), capacity=st.sampled_from([6, 200]), calls=st.integers(0, 30)
)
def test_a_parquet_round_trip_is_bitwise_equal(
    tmp_path_factory: pytest.TempPathFactory, seed: int, streams: int, capacity: int, calls: int
) -> None:
    path = tmp_path_factory.mktemp("files") / "steps.parquet"
    buffer = relive.RingReplayBuffer(capacity, SCHEMA, streams=streams)
    write_randomly(buffer, np.random.default_rng(seed), calls)
    arrow.write_parquet(buffer, path)
    num_steps = sum(map(len, stored_episodes.stored_episodes(buffer)))
    assert arrow.describe(path) == arrow.Description(SCHEMA, num_steps, streams)
    for schema in (SCHEMA, None):
        again = relive.RingReplayBuffer(200, schema, streams=streams)
        assert arrow.add_parquet(again, path) == len(again)
        assert facts(again) == facts(buffer, as_added=True)
        again.check()
    assert os.listdir(path.parent) == ["steps.parquet"]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_batches_may_split_episodes_anywhere(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(arrow, "_BATCH", (size - 1) * SCHEMA.nbytes)
    buffer = relive.RingReplayBuffer(200, SCHEMA, streams=2)
    rng = np.random.default_rng(0)
    write_randomly(buffer, rng, 40)
    for _ in range(5):
        buffer.add(**step(rng, ()), stream=0)
    told: list[tuple[int, int]] = []
    arrow.write_parquet(buffer, path, progress=lambda *numbers: told.append(numbers))
    total, ends = len(buffer) * SCHEMA.nbytes, [*range(size, len(buffer), size), len(buffer)]
    assert told == [(end * SCHEMA.nbytes, total) for end in ends]
    with arrow_parquet.ParquetFile(path) as file:
        assert file.num_row_groups == len(ends)
    assert [len(batch) for batch in arrow.to_batches(buffer)] == np.diff(ends, prepend=0).tolist()
    again = relive.RingReplayBuffer(200, SCHEMA, streams=2)
    told.clear()
    arrow.add_parquet(again, path, progress=lambda *numbers: told.append(numbers))
    assert facts(again) == facts(buffer, as_added=True) != facts(buffer)
    read = np.cumsum([len(episode) for episode in stored_episodes.stored_episodes(again)]) * SCHEMA.nbytes
    assert told == [(number, total) for number in read.tolist()]


def test_pandas_reads_a_parquet_file_as_steps(path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(20, seed=0)
    buffer.add_episode(
        np.arange(8.0).reshape(4, 2), [1, 0, 2], [0.0, 0.5, 1.0], terminated=True, logp=[-1.0, -2.0, -3.0]
    )
    buffer.add([0.0, 0.0], 1, 0.0, logp=-4.0)
    arrow.write_parquet(buffer, path)
    frame = pandas.read_parquet(path)
    assert frame.columns.tolist() == [
        *step_columns.MARKS, "observation", "action", "reward", "extras/logp", "final_observation"
    ]  # fmt: skip
    assert frame["key"].tolist() == [0, 1, 2, 3]
    assert frame["step"].tolist() == [0, 1, 2, 0]
    assert frame["episode"].tolist() == [0, 0, 0, 3]
    assert frame["terminated"].tolist() == [False, False, True, False]
    assert frame["truncated"].tolist() == [False] * 4
    assert frame["reward"].tolist() == [0.0, 0.5, 1.0, 0.0]
    assert frame["extras/logp"].tolist() == [-1.0, -2.0, -3.0, -4.0]
    assert [None if cell is None else cell.tolist() for cell in frame["final_observation"]] == [
        None,
        None,
        [6, 7],
        None,
    ]
    assert [cell.tolist() for cell in frame["observation"]] == [[0, 1], [2, 3], [4, 5], [0, 0]]


# Tables.


def sources(buffer: Any, path: pathlib.Path) -> list[Any]:
    """Return all that `add_table` takes, with the same steps."""
    arrow.write_parquet(buffer, path)
    return [arrow.to_table(buffer), arrow.to_batches(buffer), dataset.dataset(path)]


@hypothesis.settings(max_examples=hypothesis.settings().max_examples // 4)
@hypothesis.given(seed=st.integers(0, 2**32), batch=st.integers(0, 5))
def test_tables_readers_and_datasets_are_added_bitwise_equal(
    tmp_path_factory: pytest.TempPathFactory, seed: int, batch: int
) -> None:
    path = tmp_path_factory.mktemp("files") / "steps.parquet"
    buffer = relive.RingReplayBuffer(50, SCHEMA, streams=2)
    write_randomly(buffer, np.random.default_rng(seed), 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow, "_BATCH", batch * SCHEMA.nbytes)
        for table in sources(buffer, path):
            again = relive.RingReplayBuffer(50, SCHEMA, streams=2)
            assert arrow.add_table(again, table) == len(again)
            assert facts(again) == facts(buffer, as_added=True)


def test_images_are_stored_as_tensors() -> None:
    buffer = relive.RingReplayBuffer(9)
    images = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    buffer.add_episode(images, [0, 1, 2], [0.0, 0.0, 0.0], terminated=True, flags=np.ones((3, 2, 2), np.bool_))
    table = arrow.to_table(buffer)
    (chunk,) = table["observation"].chunks
    assert chunk.type == pyarrow.fixed_shape_tensor(pyarrow.uint8(), (2, 3))
    assert np.array_equal(chunk.to_numpy_ndarray(), images[:3])
    assert table["extras/flags"].type == pyarrow.list_(pyarrow.bool_(), 4)
    assert table["final_observation"].to_pylist() == [None, None, images[3].reshape(-1).tolist()]


def test_fields_of_a_table_can_be_chosen() -> None:
    buffer = relive.RingReplayBuffer(9, SCHEMA)
    write_randomly(buffer, np.random.default_rng(0), 5)
    table = arrow.to_table(buffer, fields=["reward", "observation/image"])
    names = ["observation/image", "reward", "final_observation/image"]
    assert table.column_names == [*step_columns.MARKS, *names]
    assert table.equals(arrow.to_table(buffer).select(table.column_names))
    with pytest.raises(errors.SchemaError, match="^table cannot be added: its columns must be key, .*, got "):
        arrow.add_table(relive.RingReplayBuffer(9, SCHEMA), table)


def test_a_subset_of_complete_episodes_can_be_added() -> None:
    table = arrow.to_table(small())
    buffer = relive.RingReplayBuffer(9)
    assert arrow.add_table(buffer, table.filter(dataset.field("episode") == 3)) == 1
    assert facts(buffer) == facts(small(), as_added=True)[1:]
    buffer = relive.RingReplayBuffer(9)
    assert arrow.add_table(buffer, table.filter(dataset.field("step") > 0)) == 2
    assert buffer.read(buffer.eligible_keys()).observation.tolist() == [1, 2]
    assert arrow.add_table(buffer, table.slice(0, 0)) == 0


def test_a_step_without_a_next_observation_is_left_out() -> None:
    """It cannot be drawn; one that terminated can, and its next observation is zeros in both buffers."""
    source = relive.RingReplayBuffer(9)
    source.add(np.float32(5), 3, 0.25)
    source.add_episode(np.zeros(2, np.float32), [1], [0.0], terminated=False)
    source.add(np.float32(1), 0, 0.5, np.float32(2))
    source.add(np.float32(2), 1, 0.75, terminated=True)
    for observation in (3, 4, 6):
        source.add(np.float32(observation), 1, 1.0)
    buffer = relive.RingReplayBuffer(9)
    assert arrow.add_table(buffer, arrow.to_table(source)) == 5
    old, new = (each.read(each.eligible_keys()) for each in (source, buffer))
    assert new.observation.tolist() == old.observation.tolist() == [0, 1, 2, 3, 4]
    assert new.next_observation.tolist() == old.next_observation.tolist() == [0, 2, 0, 4, 6]
    assert new.next_discount.tolist() == old.next_discount.tolist()


def test_a_reader_ends_when_the_buffer_is_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_BATCH", 0)
    buffer = small()
    reader = arrow.to_batches(buffer)
    assert reader.read_next_batch().num_rows == 1
    buffer.add(np.float32(8), 3, 0.5)
    with pytest.raises(errors.ArgumentError, match="to_batches cannot go on after the buffer was written to: call it"):
        reader.read_next_batch()


def test_an_unreadable_table_is_an_error_of_one_line(path: pathlib.Path) -> None:
    arrow.write_parquet(small(), path)
    table, buffer = dataset.dataset(path), relive.RingReplayBuffer(9)
    path.write_bytes(path.read_bytes()[:100])

    def broken() -> Any:
        yield from arrow.to_batches(small())
        raise OSError("the line\nis dead")

    schema = arrow.to_batches(small()).schema
    for each in (table, pyarrow.RecordBatchReader.from_batches(schema, broken())):
        with pytest.raises(errors.SchemaError, match="^table cannot be added: .* .*$") as caught:
            arrow.add_table(buffer, each)
        assert "\n" not in str(caught.value)
    assert buffer.schema is None


def test_nothing_is_cast() -> None:
    table = arrow.to_table(small())
    narrow = table.set_column(7, "action", table["action"].cast(pyarrow.int32()))
    for changed, rule in (
        (narrow, "its column action must be of int64, got int32"),
        (table.replace_schema_metadata(None), r"it has no metadata of relive: cast\(.*\) restores them"),
        (pyarrow.table({"x": [1]}), f"it has no metadata of relive: {PAGE}"),
    ):
        with pytest.raises(errors.SchemaError, match=f"^table cannot be added: {rule}$"):
            arrow.add_table(relive.RingReplayBuffer(9), changed)
    assert arrow.add_table(relive.RingReplayBuffer(4), narrow.cast(table.schema)) == 4
    with pytest.raises(errors.ArgumentTypeError, match="table must be a pyarrow Table, RecordBatchReader or Dataset, "):
        arrow.add_table(relive.RingReplayBuffer(9), table.to_pandas())


# Into buffers.


def test_older_episodes_make_room_and_open_ones_end(path: pathlib.Path) -> None:
    arrow.write_parquet(small(), path)
    buffer = relive.RingReplayBuffer(5)
    buffer.add_episode(np.arange(4, dtype=np.float32), [1, 0, 2], [0.0, 0.5, 1.0], terminated=False)
    # What was announced is what the file begins with: without an end the two would become one episode.
    buffer.add(np.float32(9), 1, 0.5, next_observation=np.float32(0))
    assert arrow.add_parquet(buffer, path) == 4
    assert [len(episode) for episode in stored_episodes.stored_episodes(buffer)] == [1, 3, 1]
    assert facts(buffer)[1:] == facts(small(), as_added=True)


@pytest.mark.parametrize(
    ("buffer", "error", "message"),
    [
        (
            relive.RingReplayBuffer(20, relive.Schema(relive.Field((), "f8"), relive.Field((), "i8"))),
            errors.SchemaError,
            r"^buffer must have the schema of .*steps.parquet, Schema\(.*'float32'.*, got Schema\(.*'float64'",
        ),
        (relive.RingReplayBuffer(3), errors.ArgumentError, "^buffer must have a capacity of at least 4 steps, got 3$"),
        ([], errors.ArgumentTypeError, r"^buffer must be an instance of ColumnReplayBuffer, got \[\]$"),
    ],
)
def test_a_file_is_refused_before_the_first_step(
    path: pathlib.Path, buffer: Any, error: type[Exception], message: str
) -> None:
    arrow.write_parquet(small(), path)
    with pytest.raises(error, match=message):
        arrow.add_parquet(buffer, path)
    assert len(buffer) == 0


def test_a_table_without_steps_adds_nothing(path: pathlib.Path) -> None:
    arrow.write_parquet(relive.RingReplayBuffer(9, SCHEMA, streams=2), path)
    buffer = relive.RingReplayBuffer(1)
    assert arrow.add_parquet(buffer, path) == 0
    assert buffer.schema is None


def test_a_table_with_streams_needs_a_buffer_with_streams(path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(20, streams=3)
    buffer.add(1.0, 0, 0.0, 2.0, stream=1)
    arrow.write_parquet(buffer, path)
    with pytest.raises(errors.ArgumentError, match="^stream must be .*, got 1"):
        arrow.add_parquet(relive.RingReplayBuffer(20), path)
    again = relive.RingReplayBuffer(20, streams=2)
    arrow.add_parquet(again, path)
    assert facts(again) == facts(buffer, as_added=True)


def test_progress_must_be_callable(path: pathlib.Path) -> None:
    message = "progress must be callable or None, got 3"
    with pytest.raises(errors.ArgumentTypeError, match=message):
        arrow.write_parquet(small(), path, progress=3)  # type: ignore[arg-type]
    arrow.write_parquet(small(), path)
    with pytest.raises(errors.ArgumentTypeError, match=message):
        arrow.add_parquet(relive.RingReplayBuffer(9), path, progress=3)  # type: ignore[arg-type]


# Schemas that Arrow cannot hold.


@pytest.mark.parametrize(
    ("field", "rule"),
    [
        (relive.Field((), "c8"), r"extras/odd must be of bools, .* text or bytes, got Field\(\(\), 'complex64'\)"),
        (relive.Field((), "M8[s]"), "extras/odd must be of bools, "),
        (relive.Field((), [("x", "f4")]), "extras/odd must be of bools, "),
        (relive.Field((2, 0), "f4"), "extras/odd must be of bools, "),
        pytest.param(
            relive.Field((), np.longdouble),
            "Unsupported numpy type",
            marks=pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="long double is a float64"),
        ),
    ],
)
def test_other_dtypes_are_refused_by_name(field: relive.Field, rule: str) -> None:
    schema = relive.Schema(relive.Field((), "f4"), relive.Field((), "i8"), extras={"odd": field})
    with pytest.raises(errors.ArgumentError, match=f"^schema cannot be that of a table: {rule}"):
        arrow.to_table(relive.RingReplayBuffer(9, schema))


def test_text_outside_utf_8_leaves_the_older_file(path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add({"\ud800": 1.0}, 0, 0.0)
    with pytest.raises(errors.ArgumentError, match="^schema cannot be that of a table: 'utf-8' codec can't encode "):
        arrow.write_parquet(buffer, path)
    buffer = relive.RingReplayBuffer(9)
    buffer.add(1.0, 0, 0.0, word="a")
    arrow.write_parquet(buffer, path)
    before = path.read_bytes()
    buffer.add(1.0, 0, 0.0, word="\ud800")
    with pytest.raises(UnicodeEncodeError):
        arrow.write_parquet(buffer, path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["steps.parquet"]


def test_a_buffer_without_a_schema_has_no_columns(path: pathlib.Path) -> None:
    with pytest.raises(errors.NotReadyError, match="write_parquet has no columns, as the buffer has no schema yet"):
        arrow.write_parquet(relive.RingReplayBuffer(9), path)
    with pytest.raises(errors.NotReadyError, match="to_batches has no columns, as the buffer has no schema yet"):
        arrow.to_table(relive.RingReplayBuffer(9))
    with pytest.raises(errors.ArgumentTypeError, match="buffer must be an instance of ColumnReplayBuffer, got 3"):
        arrow.write_parquet(3, path)  # type: ignore[arg-type]


# What is at the path.


def test_an_older_file_is_replaced(path: pathlib.Path) -> None:
    arrow.write_parquet(small(), path, overwrite=False)
    path.chmod(0o640)
    buffer = small()
    buffer.add(np.float32(8), 3, 0.5)
    arrow.write_parquet(buffer, path)
    assert arrow.describe(path).num_steps == 5
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    with pytest.raises(errors.CheckpointError, match=rf"^{path} exists: name another path$"):
        arrow.write_parquet(small(), path, overwrite=False)
    with pytest.raises(errors.ArgumentTypeError, match="overwrite must be True or False, got 'no'"):
        arrow.write_parquet(small(), path, overwrite="no")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("beginning", "form"), [(b"\x89HDF\r\n", "an HDF5 file"), (b"PK\x03\x04", "a zip file, such as .npz")]
)
def test_a_foreign_file_to_add_names_the_page(beginning: bytes, form: str, path: pathlib.Path) -> None:
    path.write_bytes(beginning)
    with pytest.raises(errors.CheckpointError, match=f"^{path} is {form} and not of relive: {PAGE}$"):
        arrow.add_parquet(relive.RingReplayBuffer(9), path)


def test_foreign_files_are_not_replaced(path: pathlib.Path) -> None:
    path.write_text("a letter")
    refuse_to_write(path, rf"^{path} is not a Parquet file, or was cut: .*: name another path$")
    assert path.read_text() == "a letter"
    for foreign in (pyarrow.table({"x": [1]}), pyarrow.table({"x": [1]}, metadata={"y": "z"})):
        arrow_parquet.write_table(foreign, path)
        refuse_to_write(path, rf"^{path} cannot be read: it has no metadata of relive: {PAGE}: name another path$")
    path.unlink()
    path.symlink_to(path.parent / "elsewhere")
    for place in (path, path.parent):
        refuse_to_write(place, f"{place.name} is not a file: name another path")


def test_a_disk_that_fails_leaves_the_older_file(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow.write_parquet(small(), path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("relive.persistence.files.fsync_file", full)
    refuse_to_write(path, r"steps.parquet cannot be written: No space left on device$")
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == ["steps.parquet"]
    refuse_to_write(path.parent / "nowhere" / "x.parquet", r"x.parquet cannot be written: No such file or directory$")


@pytest.mark.parametrize("given", ["", "a\0.parquet", "/"])
def test_a_path_must_name_a_file(given: str) -> None:
    for call in (arrow.describe, lambda path: arrow.write_parquet(small(), path)):
        with pytest.raises(errors.ArgumentError, match="^path must be the path of a file, got "):
            call(given)
        with pytest.raises(errors.ArgumentTypeError, match="^path must be a path, got 3$"):
            call(3)  # type: ignore[arg-type]


# What is broken.


@posix_test.PIPES
def test_a_pipe_is_not_waited_for(path: pathlib.Path) -> None:
    os.mkfifo(path)
    with pytest.raises(errors.CheckpointError, match=rf"^{path} is not a file$"):
        arrow.describe(path)


def test_a_cut_parquet_file_is_an_error_of_one_line(path: pathlib.Path) -> None:
    arrow.write_parquet(small(), path)
    raw = path.read_bytes()
    for length in (0, 3, 100, len(raw) - 1):
        path.write_bytes(raw[:length])
        with pytest.raises(
            errors.CheckpointError, match=r"^\S*steps.parquet is not a Parquet file, or was cut: .* .*$"
        ):
            arrow.describe(path)
    path.unlink()
    with pytest.raises(errors.CheckpointError, match=r"steps.parquet does not exist$"):
        arrow.describe(path)


def test_a_changed_byte_of_a_parquet_file_is_found_before_adding(path: pathlib.Path) -> None:
    arrow.write_parquet(small(), path)
    raw = bytearray(path.read_bytes())
    with arrow_parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        column = file.metadata.row_group(0).column(names.index("reward"))
    begin = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    raw[begin + column.total_compressed_size - 1] ^= 1
    path.write_bytes(raw)
    buffer = relive.RingReplayBuffer(20)
    with pytest.raises(errors.CheckpointError, match=r"^\S*steps.parquet is damaged: .* .*$"):
        arrow.add_parquet(buffer, path)
    assert len(buffer) == 0


def footer(raw: bytes) -> int:
    """Return where the footer of a file begins."""
    return len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")


@pytest.mark.parametrize("every", [19, pytest.param(1, marks=pytest.mark.long)])
def test_a_changed_bit_of_the_footer_is_an_error_of_one_line(path: pathlib.Path, every: int) -> None:
    arrow.write_parquet(small(), path)
    raw = path.read_bytes()
    begin = footer(raw)
    path.write_bytes(raw[:begin] + raw[begin:].replace(b"reward", b"re\xf7ard"))
    with pytest.raises(
        errors.CheckpointError, match=rf"^{path} is not a Parquet file, or was cut: 'utf-8' codec can't "
    ):
        arrow.describe(path)
    rng = np.random.default_rng(0)
    messages: list[str] = []
    for place in range(begin, len(raw), every):
        changed = bytearray(raw)
        changed[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(changed)
        buffer = relive.RingReplayBuffer(20)
        try:  # There is more in a footer than is read.
            arrow.add_parquet(buffer, path)
        except errors.CheckpointError as error:
            messages.append(str(error))
            assert len(buffer) == 0
    assert len(messages) > 250 // every
    assert all(message.startswith(str(path)) and "\n" not in message for message in messages)


def rewrite(path: pathlib.Path, change: Any, **metadata: Any) -> None:
    """Write the file of `small` anew, with another table or other metadata."""
    arrow.write_parquet(small(), path)
    table = arrow_parquet.read_table(path)
    said = json.loads(table.schema.metadata[b"relive"]) | metadata
    table = change(table)
    arrow_parquet.write_table(table.replace_schema_metadata({"relive": json.dumps(said)}), path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"format": "other"}, "format must be relive steps, got 'other'"),
        ({"version": 2}, "it is of format version 2, and this relive reads 1: update relive"),
        ({"version": "1"}, "version must be an integer in .*, got '1'"),
        ({"streams": 0}, "streams must be an integer in .*, got 0"),
        ({"schema": [["x"]]}, "schema must be a list of a path, a dtype and a shape for each field"),
        (
            {"schema": [["observation", "<f4", [2**31]], ["action", "<i8", []], ["reward", "<f8", []]]},
            "[Vv]alue .*too large",
        ),
        (
            {"schema": [["observation", "<f4", []], ["action", "<c8", []], ["reward", "<f8", []]]},
            "action must be of bools, integers, .*, got .*complex64",
        ),
        (
            {"schema": [["observation", "<f4", [3]], ["action", "<i8", []], ["reward", "<f8", []]]},
            r"its column observation must be of fixed_size_list<.*: float>\[3\], got float",
        ),
        (
            {"schema": [["observation/x", "<f4", []], ["action", "<i8", []], ["reward", "<f8", []]]},
            "its columns must be key, .*, final_observation/x, got ",
        ),
    ],
)
def test_forged_metadata_are_an_error_of_one_line(path: pathlib.Path, metadata: dict[str, Any], message: str) -> None:
    rewrite(path, lambda table: table, **metadata)
    with pytest.raises(errors.CheckpointError, match=rf"^{path} cannot be read: {message}"):
        arrow.describe(path)


def test_metadata_of_invalid_json_are_an_error_of_one_line(path: pathlib.Path) -> None:
    arrow_parquet.write_table(pyarrow.table({"x": [1]}).replace_schema_metadata({"relive": b"\xff{"}), path)
    with pytest.raises(errors.CheckpointError, match=r"steps.parquet cannot be read: .* is not JSON"):
        arrow.describe(path)


def other(name: str, values: Any, kind: Any = None) -> Any:
    """Return what puts other values into a column of a table."""

    def change(table: Any) -> Any:
        column = pyarrow.array(values, kind or table.schema.field(name).type)
        return table.set_column(table.schema.get_field_index(name), name, column)

    return change


ORDER = "episode {} must have its steps one after another, and end with the last"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other("step", [0, 1, 3, 0]), ORDER.format(0)),
        (other("stream", [0, 0, 1, 0]), ORDER.format(0)),
        (other("terminated", [True, False, True, False]), ORDER.format(0)),
        (other("truncated", [False, True, False, False]), ORDER.format(0)),
        (other("final_observation", [None, 1.0, 3.0, None]), ORDER.format(0)),
        (other("episode", [0, 0, 0, 0]), ORDER.format(0)),
        (other("episode", [5, 5, 5, -1]), ""),
        (other("episode", [0, 0, None, 3]), "column episode must have a value in every row, got 1 nulls"),
        (other("action", [1, None, 2, 3]), "column action must have a value in every row, got 1 nulls"),
    ],
)
def test_forged_rows_are_an_error_of_one_line(path: pathlib.Path, change: Any, message: str) -> None:
    rewrite(path, change)
    buffer = relive.RingReplayBuffer(20)
    if not message:  # The number of an episode says nothing but that it is another.
        assert arrow.add_parquet(buffer, path) == 4
        return
    with pytest.raises(errors.CheckpointError, match=f"^{path} is damaged: {message}$"):
        arrow.add_parquet(buffer, path)
    assert len(buffer) == 0
    with pytest.raises(errors.SchemaError, match=f"^table is damaged: {message}$"):
        arrow.add_table(buffer, arrow_parquet.read_table(path))


def test_values_that_a_buffer_refuses_are_refused(path: pathlib.Path) -> None:
    rewrite(path, other("reward", [0.0, 0.5, 1.0, np.nan]))
    buffer = relive.RingReplayBuffer(20)
    with pytest.raises(errors.ArgumentError, match=r"^reward must be finite, got nan at \[0\] in episode 3$"):
        arrow.add_parquet(buffer, path)
    assert len(buffer) == 3, "the episode before it is there"


def test_final_observations_are_complete(path: pathlib.Path) -> None:
    schema = relive.Schema({"a": relive.Field((), "f4"), "b": relive.Field(2, "f4")}, relive.Field((), "i8"))
    buffer = relive.RingReplayBuffer(9, schema)
    observations = {"a": np.zeros(2, np.float32), "b": np.zeros((2, 2), np.float32)}
    buffer.add_episode(observations, [0], [0.0], terminated=True)
    arrow.write_parquet(buffer, path)
    arrow_parquet.write_table(other("final_observation/b", [None])(arrow_parquet.read_table(path)), path)
    with pytest.raises(errors.CheckpointError, match="column observation/b must have lists of 2$"):
        arrow.add_parquet(relive.RingReplayBuffer(9), path)


# Columns.


HOLES = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array([1.0, None, 2.0, 3.0]), 2)


@pytest.mark.parametrize(
    ("field", "column", "rule"),
    [
        (relive.Field((), "<U2"), pyarrow.array(["ab", "abc"]), "hold values of at most 2 characters, got 3"),
        (relive.Field((), "S2"), pyarrow.array([b"ab", b"abc"]), "hold values of at most 2 characters, got 3"),
        (relive.Field(2, "f8"), HOLES, "have a value in every row, got 1 nulls"),
        (relive.Field(2, "f8"), pyarrow.array([[1.0, 2.0], [1.0]]), "have lists of 2$"),
    ],
)
def test_columns_that_do_not_fit_their_fields_are_refused(field: relive.Field, column: Any, rule: str) -> None:
    with pytest.raises(errors.CheckpointError, match=f"column x must {rule}"):
        arrow._array("x", field, column)


def test_a_table_of_unchecked_steps_fits_a_checked_buffer() -> None:
    field = relive.Field((), "float64")
    plain, checked = (
        relive.RingReplayBuffer(9, relive.Schema(field, field, check_finite=each)) for each in (False, True)
    )
    plain.add(np.nan, 0.0, 0.0, 1.0, terminated=True)
    with pytest.raises(errors.SchemaError, match=r"observations? must be finite, got nan at \[0\]"):
        arrow.add_table(checked, arrow.to_table(plain))
    plain.clear()
    plain.add(0.0, 0.0, 0.0, 1.0, terminated=True)
    assert arrow.add_table(checked, arrow.to_table(plain)) == 1
    assert repr(checked.schema).endswith(", check_finite=True)")
