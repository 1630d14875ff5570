"""Tables and Parquet files are read back bit for bit; a damaged one is an error of one line."""

import dataclasses
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
from relive.persistence import files
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


def facts(episode: stored_episodes.StoredEpisode, *, with_keys: bool = False) -> Any:
    """Return everything about an episode that must be read back, arrays as dtype, shape and bytes."""
    arrays = {
        **trees.flat("observation", episode.observations),
        **trees.flat("action", episode.actions),
        "reward": episode.rewards,
        **(trees.flat("extras", episode.extras) if episode.extras else {}),
    }
    own = (episode.stream, episode.status, episode.has_final_observation)
    kept = (episode.keys.tolist(), episode.start_step) if with_keys else ()
    return (*own, *kept, {path: (array.dtype.str, array.shape, array.tobytes()) for path, array in arrays.items()})


def all_facts(buffer: Any) -> list[Any]:
    return [facts(episode) for episode in stored_episodes.stored_episodes(buffer)]


def small(**settings: Any) -> relive.RingReplayBuffer:
    """Return a buffer with an episode that ended, and one that goes on."""
    buffer = relive.RingReplayBuffer(20, **settings)
    buffer.add_episode(np.arange(4, dtype=np.float32), [1, 0, 2], [0.0, 0.5, 1.0], terminated=True, stream=0)
    buffer.add(np.float32(7), 3, 0.25, stream=0)
    return buffer


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
    assert arrow.describe(path).schema == SCHEMA
    assert arrow.describe(path) == arrow.Description(SCHEMA, len(buffer), streams)
    for schema in (SCHEMA, None):
        again = relive.RingReplayBuffer(200, schema, streams=streams)
        assert arrow.add_parquet(again, path) == len(buffer)
        assert all_facts(again) == all_facts(buffer)
        assert again.schema == (SCHEMA if len(buffer) else schema)
        again.check()
    assert not os.path.exists(files.beside(str(path), "new"))


def test_a_parquet_file_keeps_streams_and_episodes(path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(6, SCHEMA, streams=2)
    write_randomly(buffer, np.random.default_rng(3), 30)
    arrow.write_parquet(buffer, path)
    with arrow._opened(path) as source:
        episodes = arrow._episodes(SCHEMA, source.batches(), len(buffer))
        found = [facts(episode, with_keys=True) for episode in episodes]
    assert found == [facts(each, with_keys=True) for each in stored_episodes.stored_episodes(buffer)]
    assert any(each[4] for each in found), "no episode has lost its first steps"


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
    assert all_facts(again) == all_facts(buffer)
    with arrow._opened(path) as source:
        assert max(len(batch) for batch in source.batches()) <= size
    episodes = list(stored_episodes.stored_episodes(buffer))
    whole = [each.has_final_observation and each.status != "IN_PROGRESS" for each in episodes]
    assert set(whole) == {False, True}
    read = np.cumsum([*map(len, episodes)]) * SCHEMA.nbytes
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


def sources(buffer: Any, path: pathlib.Path) -> dict[str, Any]:
    """Return all that `add_table` takes, with the same steps."""
    arrow.write_parquet(buffer, path)
    return {
        "table": arrow.to_table(buffer),
        "reader": arrow.to_batches(buffer),
        "dataset": dataset.dataset(path),
        "table of another library": arrow.to_table(buffer).replace_schema_metadata(None),
    }


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
        for table in sources(buffer, path).values():
            again = relive.RingReplayBuffer(50, SCHEMA, streams=2)
            assert arrow.add_table(again, table) == len(buffer)
            assert all_facts(again) == all_facts(buffer)
            again.check()


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
    assert all_facts(buffer) == all_facts(small())[1:]
    buffer = relive.RingReplayBuffer(9)
    with pytest.raises(errors.ArgumentError, match="^table cannot be added: column step is not that of whole episodes"):
        arrow.add_table(buffer, table.filter(dataset.field("step") != 1))
    assert buffer.schema is None


def test_batches_without_rows_are_between_others() -> None:
    buffer = small()
    empty = pyarrow.RecordBatch.from_pylist([], arrow.to_batches(buffer).schema)
    batches = [empty, *arrow.to_batches(buffer), empty]
    assert buffer.schema is not None
    assert [facts(episode) for episode in arrow._episodes(buffer.schema, batches, 4)] == all_facts(buffer)


def test_a_cut_episode_needs_the_episode_after_it() -> None:
    """Otherwise the episode would stay open for good."""
    source = relive.RingReplayBuffer(9)
    source.add(np.float32(7), 3, 0.25)
    source.add_episode(np.zeros(3, np.float32), [1, 0], [0.0, 0.5], terminated=True)
    table, buffer = arrow.to_table(source), relive.RingReplayBuffer(9)
    message = "^table cannot be added: the episode up to key 0 must be followed by the one that cut it$"
    with pytest.raises(errors.ArgumentError, match=message):
        arrow.add_table(buffer, table.slice(0, 1))
    assert buffer.schema is None
    arrow.add_table(buffer, table)
    assert all_facts(buffer) == all_facts(source)


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
        with pytest.raises(errors.ArgumentError, match="^table cannot be added: .* .*$") as caught:
            arrow.add_table(buffer, each)
        assert "\n" not in str(caught.value)
    assert buffer.schema is None


def test_nothing_is_cast() -> None:
    table = arrow.to_table(small())
    narrow = table.set_column(7, "action", table["action"].cast(pyarrow.int32()))
    with pytest.raises(
        errors.SchemaError, match="^table cannot be added: its column action must be of int64, got int32$"
    ):
        arrow.add_table(relive.RingReplayBuffer(9), narrow)
    bare = table.replace_schema_metadata(None)
    with pytest.raises(errors.SchemaError, match="it has no metadata of relive: make the buffer with a schema"):
        arrow.add_table(relive.RingReplayBuffer(9), bare)
    with pytest.raises(errors.ArgumentTypeError, match="table must be a pyarrow Table, RecordBatchReader or Dataset, "):
        arrow.add_table(relive.RingReplayBuffer(9), table.to_pandas())


# Into buffers.


def test_a_full_buffer_loses_older_steps_to_those_of_the_file(path: pathlib.Path) -> None:
    arrow.write_parquet(small(), path)
    buffer = relive.RingReplayBuffer(4)
    buffer.add_episode(np.arange(4, dtype=np.float32), [1, 0, 2], [0.0, 0.5, 1.0], terminated=False)
    assert arrow.add_parquet(buffer, path) == 4
    assert all_facts(buffer) == all_facts(small())


def test_an_open_episode_in_the_way_is_ended(path: pathlib.Path) -> None:
    source = relive.RingReplayBuffer(20)
    source.add(np.float32(1), 3, 0.25)
    arrow.write_parquet(source, path)
    buffer = relive.RingReplayBuffer(20)
    # What was announced is what the file begins with: without an end the two would become one episode.
    buffer.add(np.float32(0), 1, 0.5, next_observation=np.float32(1))
    arrow.add_parquet(buffer, path)
    assert [episode.status for episode in stored_episodes.stored_episodes(buffer)] == ["TRUNCATED", "IN_PROGRESS"]


@dataclasses.dataclass
class Refusal:
    """A buffer that cannot take the steps of `small`."""

    buffer: Any
    error: type[Exception]
    message: str


def waiting() -> relive.RingReplayBuffer:
    buffer = relive.RingReplayBuffer(20)
    buffer.add(np.float32(0), 1, 0.5)
    return buffer


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal(
            relive.RingReplayBuffer(20, relive.Schema(relive.Field((), "f8"), relive.Field((), "i8"))),
            errors.SchemaError,
            r"buffer must have the schema of .*steps.parquet, Schema\(.*'float32'.*, got Schema\(.*'float64'",
        ),
        Refusal(
            relive.RingReplayBuffer(3),
            errors.ArgumentError,
            "buffer must have a capacity of at least 4 steps, got 3",
        ),
        Refusal(
            waiting(),
            errors.ArgumentError,
            "buffer must know the observation after the newest step of stream 0: add that step with next_observation",
        ),
        Refusal([], errors.ArgumentTypeError, r"buffer must be an instance of ColumnReplayBuffer, got \[\]"),
    ],
)
def test_an_invalid_table_is_refused_before_the_first_step(path: pathlib.Path, refusal: Refusal) -> None:
    arrow.write_parquet(small(), path)
    before = len(refusal.buffer)
    with pytest.raises(refusal.error, match=refusal.message):
        arrow.add_parquet(refusal.buffer, path)
    assert len(refusal.buffer) == before


def test_a_table_without_steps_adds_nothing(path: pathlib.Path) -> None:
    arrow.write_parquet(relive.RingReplayBuffer(9, SCHEMA, streams=2), path)
    buffer = relive.RingReplayBuffer(1)
    assert arrow.add_parquet(buffer, path) == 0
    assert buffer.schema is None


def test_a_limiter_may_hold_back_the_last_step_of_an_episode(
    path: pathlib.Path,
) -> None:
    """As the docstring says, the earlier steps are in the buffer."""
    buffer = relive.RingReplayBuffer(20)
    buffer.add_episode(np.zeros(4, np.float32), [0, 0, 0], [0.0, 0.0, 0.0], terminated=True)
    for _ in range(6):
        buffer.add(np.float32(0), 0, 0.0)
    arrow.write_parquet(buffer, path)
    again = relive.RingReplayBuffer(20, limiter=relive.SampleToInsertRatio(1.0, 1, 4.0))
    with pytest.raises(errors.NotReadyError):
        arrow.add_parquet(again, path)
    assert len(again) == 8


def test_a_table_with_streams_needs_a_buffer_with_streams(path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(20, streams=3)
    buffer.add(1.0, 0, 0.0, stream=1)
    arrow.write_parquet(buffer, path)
    with pytest.raises(errors.ArgumentError, match="buffer must have at least 2 streams, got 1"):
        arrow.add_parquet(relive.RingReplayBuffer(20), path)
    again = relive.RingReplayBuffer(20, streams=2)
    arrow.add_parquet(again, path)
    assert all_facts(again) == all_facts(buffer)


def test_progress_of_add_parquet_must_be_callable(path: pathlib.Path) -> None:
    message = "progress must be callable or None, got 3"
    with pytest.raises(errors.ArgumentTypeError, match=message):
        arrow.write_parquet(small(), path, progress=3)  # type: ignore[arg-type]
    arrow.write_parquet(small(), path)
    with pytest.raises(errors.ArgumentTypeError, match=message):
        arrow.add_parquet(relive.RingReplayBuffer(9), path, progress=3)  # type: ignore[arg-type]


# Schemas that Arrow cannot hold.


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (relive.Field((), "c8"), "extras/odd must be of bools, integers, floats .*, text or bytes, got complex64"),
        (relive.Field((), "M8[s]"), r"extras/odd must be of .*, got datetime64\[s\]"),
        (relive.Field((), "V4"), r"extras/odd must be of .*, got \|V4"),
        (relive.Field((), [("x", "f4")]), r"extras/odd must be of .*, got \[\('x', '<f4'\)\]"),
        (relive.Field((), np.longdouble), "extras/odd must be of .*, got (float128|float64|longdouble)"),
        (
            relive.Field((2**16, 2**15), "?"),
            r"extras/odd must have 1 to 2147483647 elements, got shape \(65536, 32768\)",
        ),
        (relive.Field((2, 0), "f4"), r"extras/odd must have 1 to 2147483647 elements, got shape \(2, 0\)"),
    ],
)
def test_other_dtypes_are_refused_by_name(path: pathlib.Path, field: relive.Field, message: str) -> None:
    schema = relive.Schema(relive.Field((), "f4"), relive.Field((), "i8"), extras={"odd": field})
    with pytest.raises(errors.ArgumentError, match=message):
        arrow._columns(schema, list(schema.fields), 1)


def test_a_schema_that_cannot_be_read_again_is_refused(path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add({"\ud800": 1.0}, 0, 0.0)
    message = "^schema must be one that can be read again: 'utf-8' codec can't encode character "
    with pytest.raises(errors.ArgumentError, match=message):
        arrow.write_parquet(buffer, path)
    deep: Any = 1.0
    for _ in range(65):
        deep = {"k": deep}
    buffer = relive.RingReplayBuffer(9)
    buffer.add(deep, 0, 0.0)
    with pytest.raises(errors.ArgumentError, match="^schema must be one that can be read again: "):
        arrow.write_parquet(buffer, path)
    assert os.listdir(path.parent) == []
    buffer = relive.RingReplayBuffer(9)
    buffer.add(deep["k"], 0, 0.0)
    arrow.write_parquet(buffer, path)
    assert arrow.add_parquet(relive.RingReplayBuffer(9), path) == 1


def test_text_outside_utf_8_is_refused(path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add(1.0, 0, 0.0, word="a")
    arrow.write_parquet(buffer, path)
    before = path.read_bytes()
    buffer.add(1.0, 0, 0.0, word="\ud800")
    with pytest.raises(errors.ArgumentError, match=r"extras/word must be text without lone surrogates, got '\\ud800'"):
        arrow.write_parquet(buffer, path)
    assert path.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == [".steps.parquet.lock", "steps.parquet"]


def test_a_buffer_without_a_schema_has_no_columns(path: pathlib.Path) -> None:
    with pytest.raises(errors.NotReadyError, match="write_parquet has no columns, as the buffer has no schema yet"):
        arrow.write_parquet(relive.RingReplayBuffer(9), path)
    with pytest.raises(errors.NotReadyError, match="to_batches has no columns, as the buffer has no schema yet"):
        arrow.to_table(relive.RingReplayBuffer(9))
    with pytest.raises(errors.ArgumentTypeError, match="buffer must be an instance of ColumnReplayBuffer, got 3"):
        arrow.write_parquet(3, path)  # type: ignore[arg-type]


# What is at the path.


def test_an_older_file_is_replaced(path: pathlib.Path) -> None:
    path.touch()
    arrow.write_parquet(small(), path)
    (path.parent / ".steps.parquet.new").write_bytes(path.read_bytes()[:50])
    buffer = small()
    buffer.add(np.float32(8), 3, 0.5)
    arrow.write_parquet(buffer, path)
    assert arrow.describe(path).num_steps == 5
    assert sorted(os.listdir(path.parent)) == [".steps.parquet.lock", "steps.parquet"]


def test_foreign_files_are_not_replaced(path: pathlib.Path) -> None:
    path.write_text("a letter")
    refuse_to_write(path, r"steps.parquet is not a Parquet file, or was cut: .*: name another")
    assert path.read_text() == "a letter"
    for foreign in (pyarrow.table({"x": [1]}), pyarrow.table({"x": [1]}, metadata={"y": "z"})):
        arrow_parquet.write_table(foreign, path)
        refuse_to_write(path, "is a Parquet file that relive did not write: name another path")
    path.unlink()
    path.symlink_to(path.parent / "elsewhere")
    for place in (path, path.parent):
        refuse_to_write(place, f"{place.name} is not a file: name another path")


def test_a_path_in_use_is_refused(path: pathlib.Path) -> None:
    with files.locked(path), pytest.raises(errors.CheckpointError, match="is in use by this process"):
        arrow.write_parquet(small(), path)


def test_a_disk_that_fails_leaves_the_older_file(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow.write_parquet(small(), path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("relive.persistence.files.fsync_file", full)
    refuse_to_write(path, r"steps.parquet cannot be written: No space left on device$")
    assert path.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == [".steps.parquet.lock", "steps.parquet"]


def test_the_file_and_its_name_are_on_the_disk_in_that_order(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Any] = []
    monkeypatch.setattr(
        "relive.persistence.files.fsync_file", lambda descriptor: synced.append(os.fstat(descriptor).st_size)
    )
    monkeypatch.setattr("relive.persistence.files.fsync_directory", lambda place: synced.append((place, path.exists())))
    arrow.write_parquet(small(), path)
    assert synced == [path.stat().st_size, (str(path.parent), True)]


def test_a_link_to_a_parquet_file_is_refused(path: pathlib.Path) -> None:
    arrow.write_parquet(small(), path)
    link = path.parent / "link.parquet"
    link.symlink_to(path)
    refuse_to_write(link, r"link.parquet is not a file: name another path")
    assert arrow.describe(link).num_steps == 4


def test_a_missing_directory_is_an_error_of_one_line(path: pathlib.Path) -> None:
    refuse_to_write(path.parent / "nowhere" / "x.parquet", r"x.parquet cannot be made: \S*nowhere does not exist$")
    (path.parent / "letter").touch()
    refuse_to_write(path.parent / "letter" / "x.parquet", r"x.parquet cannot be made: \S*letter is not a directory$")


@pytest.mark.parametrize("depth", ["", "a", "a/b"])
@pytest.mark.parametrize("kind", ["checkpoint", "journal", "memory map"])
def test_a_file_inside_saved_data_is_refused(tmp_path: pathlib.Path, kind: str, depth: str) -> None:
    place = tmp_path / "saved"
    if kind == "checkpoint":
        small().save(place)
    elif kind == "journal":
        with relive.Journal(place) as journal:
            buffer = relive.RingReplayBuffer(9)
            buffer.attach(journal)
            buffer.add(1.0, 0, 0.0)
            buffer.detach()
    else:
        relive.MemmapStorage(place, SCHEMA, 9).close()
    parent = place / depth
    parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "link").symlink_to(parent)
    before = sorted(os.listdir(parent))
    for each in (parent, tmp_path / "link"):
        refuse_to_write(each / "x.parquet", rf"x.parquet cannot be made: {place} is a {kind}, which holds")
    assert sorted(os.listdir(parent)) == before


def test_foreign_files_with_names_of_relive_do_no_harm(path: pathlib.Path) -> None:
    (path.parent / "manifest.json").write_text("of a web page")
    (path.parent / "storage.json").mkdir()
    (path.parent / "segment-1").touch()
    arrow.write_parquet(small(), path)
    assert arrow.describe(path).num_steps == 4


def test_an_unfinished_journal_counts_as_a_journal(path: pathlib.Path) -> None:
    (path.parent / f"segment-{0:020}.relive.new").touch()
    refuse_to_write(path, "is a journal, which holds no other files")


def test_a_new_file_does_not_overwrite_another(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(errors.ArgumentTypeError, match="overwrite must be True or False, got 'no'"):
        arrow.write_parquet(small(), path, overwrite="no")  # type: ignore[arg-type]
    arrow.write_parquet(small(), path, overwrite=False)
    before = path.read_bytes()
    with pytest.raises(errors.CheckpointError, match=rf"^{path} exists: name another path$"):
        arrow.write_parquet(small(), path, overwrite=False)
    path.unlink()
    # Somebody makes it while the new one is being written.
    monkeypatch.setattr("relive.persistence.files.fsync_file", lambda descriptor: path.write_bytes(before))
    with pytest.raises(errors.CheckpointError, match=rf"^{path} exists: name another path$"):
        arrow.write_parquet(small(streams=2), path, overwrite=False)
    monkeypatch.setattr("relive.persistence.files.fsync_file", lambda descriptor: path.write_text("a letter"))
    refuse_to_write(path, r"is not a Parquet file, or was cut: .*: name another path$")
    assert path.read_text() == "a letter"
    assert sorted(os.listdir(path.parent)) == [".steps.parquet.lock", "steps.parquet"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_replacing_file_keeps_the_mode(path: pathlib.Path, mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow.write_parquet(small(), path)
    path.chmod(mode)
    modes: list[int] = []
    monkeypatch.setattr(
        "relive.persistence.files.fsync_file", lambda descriptor: modes.append(os.fstat(descriptor).st_mode)
    )
    arrow.write_parquet(small(), path)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert stat.S_IMODE(modes[0]) & ~mode == 0


def test_a_foreign_temporary_file_is_not_deleted(path: pathlib.Path) -> None:
    new = path.parent / ".steps.parquet.new"
    message = rf"^{new} was not written by relive: move it away$"
    new.write_text("a letter")
    refuse_to_write(path, message)
    assert new.read_text() == "a letter"
    new.unlink()
    arrow.write_parquet(small(), path.parent / "other.parquet")
    new.symlink_to(path.parent / "other.parquet")
    refuse_to_write(path, message)
    new.unlink()
    new.mkdir()
    refuse_to_write(path, message)
    new.rmdir()
    new.touch()
    arrow.write_parquet(small(), path)
    assert not new.exists()


@pytest.mark.parametrize("given", ["", "a\0.parquet", "/"])
def test_a_path_must_name_a_file(given: str) -> None:
    for call in (arrow.describe, lambda path: arrow.write_parquet(small(), path)):
        with pytest.raises(errors.ArgumentError, match="^path must be the path of a file, got ") as caught:
            call(given)
        assert not isinstance(caught.value, errors.ArgumentTypeError)
        with pytest.raises(errors.ArgumentTypeError, match="^path must be a path, got 3$"):
            call(3)  # type: ignore[arg-type]


@posix_test.PIPES
def test_a_pipe_is_not_waited_for(path: pathlib.Path) -> None:
    os.mkfifo(path)
    with pytest.raises(errors.CheckpointError, match=rf"^{path} is not a regular file: name a file$"):
        arrow.describe(path)


def test_a_file_that_cannot_be_opened_is_an_error_of_one_line(path: pathlib.Path) -> None:
    path.symlink_to(path)
    with pytest.raises(errors.CheckpointError, match=rf"^{path} cannot be opened: Too many levels of symbolic links$"):
        arrow.describe(path)


# What is broken.


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
    with pytest.raises(errors.CheckpointError, match=rf"^{path.parent} is a directory: name a file$"):
        arrow.describe(path.parent)


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


def varint(number: int) -> bytes:
    """Return an integer in Thrift's encoding."""
    zigzag, groups = number << 1, []
    while zigzag > 127:
        groups.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*groups, zigzag])


@pytest.mark.parametrize("count", [0, 3, 5, 63])
def test_missing_rows_of_a_parquet_file_are_found_before_adding(path: pathlib.Path, count: int) -> None:
    arrow.write_parquet(small(), path)
    raw = path.read_bytes()
    begin = footer(raw)
    with arrow_parquet.ParquetFile(path) as file:
        group = file.metadata.row_group(0)
        size = group.total_byte_size
    # The number of rows of all groups is the only member of type i64 after a list; that of a group follows its size.
    of_all, of_group = raw.index(b"\x16\x08\x19\x1c", begin), raw.index(b"\x16" + varint(size) + b"\x16\x08", begin)
    of_group += 1 + len(varint(size))
    for places, message in (
        ([of_all], f"is damaged: it must have {count} rows, got 4"),
        ([of_group], "is damaged: " if count < 4 else ""),
        ([of_all, of_group], "is damaged: "),
    ):
        if len(places) == 2 and count < 4:
            continue  # Then it is a file of fewer rows, by all accounts.
        changed = bytearray(raw)
        for place in places:
            assert changed[place : place + 2] == b"\x16\x08"
            changed[place + 1] = 2 * count
        path.write_bytes(changed)
        buffer = relive.RingReplayBuffer(100)
        if not message:  # All rows that there are can be read.
            arrow.add_parquet(buffer, path)
            assert all_facts(buffer) == all_facts(small())
            continue
        with pytest.raises(errors.CheckpointError, match=rf"^{path} {message}"):
            arrow.add_parquet(buffer, path)
        assert buffer.schema is None


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
        ({"format": "other"}, "cannot be read: format must be relive steps, got 'other'"),
        ({"version": 2}, "cannot be read: it is of format version 2, and this relive reads 1: update relive"),
        ({"version": "1"}, "cannot be read: version must be an integer in .*, got '1'"),
        ({"streams": 0}, "cannot be read: streams must be an integer in .*, got 0"),
        ({"schema": [["x"]]}, "cannot be read: schema must be a list of a path, a dtype and a shape for each field"),
        (
            {"schema": [["observation", "<f4", [2**31]], ["action", "<i8", []], ["reward", "<f8", []]]},
            r"cannot be read: observation must have 1 to 2147483647 elements, got shape \(2147483648,\)",
        ),
        (
            {"schema": [["observation", "<f4", []], ["action", "<c8", []], ["reward", "<f8", []]]},
            "cannot be read: action must be of bools, integers, .*, got complex64",
        ),
        (
            {"schema": [["observation", "<f4", [3]], ["action", "<i8", []], ["reward", "<f8", []]]},
            r"cannot be read: its column observation must be of fixed_size_list<.*: float>\[3\], got float",
        ),
        (
            {"schema": [["observation", "<f4", []], ["action", "<i4", []], ["reward", "<f8", []]]},
            r"cannot be read: its column action must be of int32, got int64",
        ),
        (
            {"schema": [["observation/x", "<f4", []], ["action", "<i8", []], ["reward", "<f8", []]]},
            "cannot be read: its columns must be key, .*, final_observation/x, got ",
        ),
    ],
)
def test_forged_metadata_are_an_error_of_one_line(path: pathlib.Path, metadata: dict[str, Any], message: str) -> None:
    rewrite(path, lambda table: table, **metadata)
    with pytest.raises(errors.CheckpointError, match=message):
        arrow.describe(path)


def test_metadata_of_invalid_json_are_an_error_of_one_line(path: pathlib.Path) -> None:
    arrow_parquet.write_table(pyarrow.table({"x": [1]}).replace_schema_metadata({"relive": b"\xff{"}), path)
    with pytest.raises(errors.CheckpointError, match=r"steps.parquet cannot be read: .* is not JSON"):
        arrow.describe(path)


def test_lists_of_the_wrong_length_are_an_error_of_one_line(path: pathlib.Path) -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add(np.zeros(3), 0, 0.0)
    arrow.write_parquet(buffer, path)
    table = arrow_parquet.read_table(path)
    said = json.loads(table.schema.metadata[b"relive"])
    for found, wanted in (("<f8", [4]), ("<f4", [3])):
        said["schema"][0] = ["observation", found, wanted]
        arrow_parquet.write_table(table.replace_schema_metadata({"relive": json.dumps(said)}), path)
        with pytest.raises(errors.CheckpointError, match="its column observation must be of fixed.*, got fixed"):
            arrow.describe(path)


def other(name: str, values: Any, kind: Any = None) -> Any:
    """Return what puts other values into a column of a table."""

    def change(table: Any) -> Any:
        column = pyarrow.array(values, kind or table.schema.field(name).type)
        return table.set_column(table.schema.get_field_index(name), name, column)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other("step", [0, 1, 3, 0]), "column step is not that of whole episodes"),
        (other("step", [-1, 0, 1, 0]), "column step is not that of whole episodes"),
        (other("key", [0, 2, 1, 3]), "column key is not that of whole episodes"),
        (other("key", [0, 1, 1, 3]), "column key is not that of whole episodes"),
        (other("key", [0, 1, 2, 2]), "the episode from key 2 cannot have followed in its stream"),
        (other("stream", [0, 0, 1, 0]), "column stream is not that of whole episodes"),
        (other("stream", [-1, -1, -1, 0]), "column stream is not that of whole episodes"),
        (other("terminated", [False] * 4), "the episode from key 3 cannot have followed in its stream"),
        (other("terminated", [True, False, True, False]), "column terminated is not that of whole episodes"),
        (other("truncated", [False, True, False, False]), "column truncated is not that of whole episodes"),
        (other("truncated", [False, False, True, False]), "column truncated is not that of whole episodes"),
        (other("action", [1, None, 2, 3]), "column action must have a value in every row, got 1 nulls"),
        (other("reward", [0.0, np.nan, 0.0, 0.0]), "column reward must be finite"),
        (other("key", [5, 6, 7, 3]), "the episode from key 3 cannot have followed in its stream"),
        (other("final_observation", [None, 1.0, 3.0, None]), "final observations must be whole, and in the last rows"),
    ],
)
def test_forged_columns_are_an_error_of_one_line(path: pathlib.Path, change: Any, message: str) -> None:
    rewrite(path, change)
    buffer = relive.RingReplayBuffer(20)
    with pytest.raises(errors.CheckpointError, match=f"steps.parquet is damaged: {message}"):
        arrow.add_parquet(buffer, path)
    assert len(buffer) == 0


@pytest.mark.parametrize(
    ("statuses", "finals", "is_right"),
    [
        (("TRUNCATED", "COMPLETED"), (None, 1.0), True),
        (("TRUNCATED", "COMPLETED"), (None, None), False),
        (("TRUNCATED", "IN_PROGRESS"), (None, 1.0), False),
        (("TRUNCATED", "IN_PROGRESS"), (1.0, 1.0), True),
        (("COMPLETED", "IN_PROGRESS"), (None, None), True),
        (("IN_PROGRESS", "COMPLETED"), (1.0, 1.0), False),
    ],
)
def test_only_possible_episodes_follow_in_a_stream(
    path: pathlib.Path, statuses: Any, finals: Any, is_right: bool
) -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add_episode(np.zeros(2, np.float32), [0], [0.0], terminated=True)
    buffer.add_episode(np.zeros(2, np.float32), [0], [0.0], terminated=True)
    arrow.write_parquet(buffer, path)
    table = arrow_parquet.read_table(path)
    for name, values in (
        ("final_observation", finals),
        ("terminated", [status == "COMPLETED" for status in statuses]),
        ("truncated", [status == "TRUNCATED" for status in statuses]),
    ):
        table = other(name, values)(table)
    arrow_parquet.write_table(table, path)
    again = relive.RingReplayBuffer(9)
    if not is_right:
        with pytest.raises(errors.CheckpointError, match="the episode from key 1 cannot have followed in its stream"):
            arrow.add_parquet(again, path)
        return
    arrow.add_parquet(again, path)
    found = [(episode.status, episode.has_final_observation) for episode in stored_episodes.stored_episodes(again)]
    assert found == [(status, final is not None) for status, final in zip(statuses, finals, strict=True)]


def test_final_observations_are_complete(path: pathlib.Path) -> None:
    schema = relive.Schema({"a": relive.Field((), "f4"), "b": relive.Field(2, "f4")}, relive.Field((), "i8"))
    buffer = relive.RingReplayBuffer(9, schema)
    observations = {"a": np.zeros(2, np.float32), "b": np.zeros((2, 2), np.float32)}
    buffer.add_episode(observations, [0], [0.0], terminated=True)
    arrow.write_parquet(buffer, path)
    arrow_parquet.write_table(other("final_observation/a", [None])(arrow_parquet.read_table(path)), path)
    with pytest.raises(errors.CheckpointError, match="final observations must be whole"):
        arrow.add_parquet(relive.RingReplayBuffer(9), path)


# Columns.


def test_texts_that_are_too_long_are_refused() -> None:
    for dtype, texts in (("<U2", ["ab", "abc"]), ("S2", [b"ab", b"abc"])):
        with pytest.raises(errors.CheckpointError, match="column word must hold values of at most 2 characters, got 3"):
            arrow._array("word", relive.Field((), dtype), pyarrow.array(texts))


def test_nulls_in_lists_are_refused() -> None:
    column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array([1.0, None, 2.0, 3.0]), 2)
    with pytest.raises(errors.CheckpointError, match="column x must have a value in every row, got 1 nulls"):
        arrow._array("x", relive.Field(2, "f8"), column)


def test_lists_of_other_lengths_are_refused() -> None:
    with pytest.raises(errors.CheckpointError, match="column x must have lists of 2$"):
        arrow._array("x", relive.Field(2, "f8"), pyarrow.array([[1.0, 2.0], [1.0]]))
