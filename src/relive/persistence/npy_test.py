from collections.abc import Callable, Iterator
import io
import os
import pathlib
import re
from typing import Any, cast
import zlib

import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_np
import numpy as np
import pytest

from relive import errors
from relive.persistence import dtypes_test
from relive.persistence import npy
from relive.persistence import state


def nothing(count: int) -> None:
    pass


def write(path: pathlib.Path, column: Any) -> int:
    """Write an array to a file, and return the CRC-32 of that."""
    raw = b"".join(map(bytes, npy.parts_of(npy.member_of("a", column), column)))
    path.write_bytes(raw)
    return zlib.crc32(raw)


FILES: list[io.FileIO] = []


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while FILES:
        FILES.pop().close()


def reader_of(
    path: pathlib.Path, dtype: Any, shape: tuple[int, ...], crc32: int, report: Callable[[int], None] = nothing
) -> npy.Column:
    """Return a column of a file that is closed after the test."""
    FILES.append(io.FileIO(path))
    return npy.Column(npy.Member("a", np.dtype(dtype), shape), FILES[-1], 0, "a.npy", crc32, report)


@pytest.fixture
def path(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "a.npy"


def fill(array: Any, rng: np.random.Generator) -> None:
    """Put any values into an array."""
    if array.dtype.names is not None:
        for name in array.dtype.names:
            fill(array[name], rng)
    elif array.dtype.kind == "b":
        array[...] = rng.integers(0, 2, array.shape)
    elif array.dtype.kind == "U":
        array[...] = rng.choice(["", "a", "é日本", chr(0x10FFFF)], array.shape)
    else:
        array[...] = np.frombuffer(rng.bytes(array.nbytes), array.dtype, array.size).reshape(array.shape)


@hypothesis.given(dtypes_test.DTYPES, dtypes_test.SHAPES, st.integers(0, 9), st.integers(1, 20))
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, dtype: np.dtype[Any], shape: tuple[int, ...], seed: int, chunk: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.npy"
    array = np.zeros(shape, dtype)
    fill(array, np.random.default_rng(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "CHUNK", chunk)
        crc32 = write(path, array)
        assert path.read_bytes() == dtypes_test.saved(array)
        assert crc32 == zlib.crc32(path.read_bytes())
        loaded = np.load(path, allow_pickle=False)
        assert (loaded.dtype, loaded.shape, loaded.tobytes()) == (dtype, shape, array.tobytes())
        reader = reader_of(path, dtype, shape, crc32)
        parts = [reader.read(start, stop) for start, stop in state.chunks(shape[0], array.nbytes)]
        assert b"".join(part.tobytes() for part in parts) == array.tobytes()
        assert all(part.dtype == dtype and part.shape[1:] == shape[1:] and part.flags.owndata for part in parts)
        reader.verify()
        assert reader.read(0, shape[0]).tobytes() == array.tobytes()


@hypothesis.given(st_np.arrays(np.int16, st.tuples(st.integers(2, 5), st.integers(1, 4), st.integers(1, 3))))
def test_an_array_in_any_order_is_written_in_that_of_c(tmp_path_factory: pytest.TempPathFactory, array: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "order.npy"
    for view in (np.asfortranarray(array), array[::-1], array[:, ::2], array.T, array[:1], array.view(np.recarray)):
        write(path, view)
        assert path.read_bytes() == dtypes_test.saved(np.asarray(view).copy("C"))


def test_a_column_is_written_as_the_array_of_its_rows(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "CHUNK", 24)
    array = np.arange(20, dtype=np.float32).reshape(10, 2)
    asked = []

    def read(start: int, stop: int) -> Any:
        asked.append((start, stop))
        return array[start:stop]

    column = state.LazyArray(cast(Any, (np.int64(10), np.int64(2))), array.dtype, read)
    write(path, column)
    assert path.read_bytes() == dtypes_test.saved(array)
    assert asked == [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert [len(part) for part in npy.parts_of(npy.member_of("a", column), column)] == [128, 24, 24, 24, 8]


def test_a_column_that_answers_other_rows_is_refused(path: pathlib.Path) -> None:
    rows: list[Any] = [
        np.zeros((3, 2), np.float64), np.zeros((2, 2), np.float32), np.zeros((3, 1), np.float32), [[0, 0]] * 3, 0,
    ]  # fmt: skip
    for found in rows:
        column = state.LazyArray((3, 2), np.dtype("f4"), lambda *_, found=found: found)
        message = r"^array 'a' must return rows of dtype float32 and shape \(3, 2\), "
        with pytest.raises(errors.ArgumentError, match=message):
            write(path, column)


def test_bytes_that_are_no_value_are_neither_written_nor_read(path: pathlib.Path) -> None:
    for array in dtypes_test.BAD:
        rule = "must hold bools that are 0 or 1, and characters of Unicode$"
        with pytest.raises(errors.ArgumentError, match=f"^array 'a' {rule}"):
            write(path, array)
        raw = npy.Member("a", array.dtype, array.shape).header + array.tobytes()
        path.write_bytes(raw)
        with pytest.raises(errors.CheckpointError, match=rf"^a\.npy {rule}"):
            reader_of(path, array.dtype, array.shape, zlib.crc32(raw)).verify()


# Readers.


@pytest.fixture
def reader(path: pathlib.Path) -> npy.Column:
    return reader_of(path, "<i4", (6, 2), write(path, np.arange(12, dtype="<i4").reshape(6, 2)))


def test_rows_are_read_in_any_order(reader: npy.Column) -> None:
    rows = np.arange(12).reshape(6, 2).tolist()
    for start, stop in ((4, 6), (1, 2), (3, 3), (0, 6), (0, 2), (0, 1), (2, 3), (1, 3)):
        found = reader.read(start, stop)
        assert found.tolist() == rows[start:stop]
        assert found.shape == (stop - start, 2)
        found[:] = 7  # It is a copy.
    FILES[-1].close()
    with pytest.raises(errors.ClosedError, match=r"^a\.npy was closed: read it before$"):
        reader.read(0, 1)


def test_rows_that_are_not_there_are_an_error(reader: npy.Column) -> None:
    for start, stop in [(-1, 2), (0, 7), (3, 2), (7, 7)]:
        with pytest.raises(errors.ArgumentError, match=rf"^rows must be in \[0, 6\], got \[{start}, {stop}\)$"):
            reader.read(start, stop)


def test_each_byte_of_rows_is_reported_once(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "CHUNK", 16)
    crc32 = write(path, np.zeros((5, 2), "<i4"))
    counts: list[int] = []
    reader = reader_of(path, "<i4", (5, 2), crc32, counts.append)
    reader.read(3, 4)
    reader.verify()
    reader.verify()
    assert [count for count in counts if count] == [16, 16, 8]


def test_a_changed_byte_is_found_where_rows_are_read_in_order(path: pathlib.Path, subtests: pytest.Subtests) -> None:
    for byte in range(128, 152):
        with subtests.test(byte=byte):
            crc32 = write(path, np.arange(3))
            raw = bytearray(path.read_bytes())
            raw[byte] ^= 16
            path.write_bytes(raw)
            reader = reader_of(path, "<i8", (3,), crc32)
            reader.read(0, 1)
            reader.read(1, 2)
            message = rf"^a\.npy was changed: its CRC-32 must be {crc32}, got \d+$"
            with pytest.raises(errors.CheckpointError, match=message):
                reader.read(2, 3)
            with pytest.raises(errors.CheckpointError, match="was changed"):
                reader.read(0, 3)


def test_a_changed_byte_of_the_header_is_found_at_once(path: pathlib.Path) -> None:
    for byte in range(128):
        write(path, np.arange(3))
        raw = bytearray(path.read_bytes())
        raw[byte] ^= 1
        path.write_bytes(raw)
        message = r"^a\.npy must have the header of dtype int64 and shape \(3,\)$"
        with pytest.raises(errors.CheckpointError, match=message):
            reader_of(path, "<i8", (3,), zlib.crc32(raw))


def test_an_array_without_values_is_verified_at_once(path: pathlib.Path) -> None:
    for shape in [(0,), (0, 3), (4, 0)]:
        crc32 = write(path, np.zeros(shape))
        reader_of(path, float, shape, crc32)
        with pytest.raises(errors.CheckpointError, match="was changed"):
            reader_of(path, float, shape, crc32 + 1)


def test_a_shape_that_numpy_does_not_make_is_refused(path: pathlib.Path) -> None:
    shape = (0, 2**62, 2**62)
    path.write_bytes(npy.Member("a", np.dtype("f8"), shape).header)
    reader = reader_of(path, "f8", shape, zlib.crc32(path.read_bytes()))
    with pytest.raises(errors.CheckpointError, match=r"^a\.npy does not fit in memory: "):
        reader.read(0, 0)


def test_a_file_that_shrinks_while_it_is_read_is_refused(path: pathlib.Path) -> None:
    crc32 = write(path, np.arange(3))
    reader = reader_of(path, "<i8", (3,), crc32)
    os.truncate(path, 140)
    with pytest.raises(errors.CheckpointError, match=r"^a\.npy ends early$"):
        reader.read(0, 3)


def test_what_the_system_cannot_read_is_refused(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    crc32 = write(path, np.arange(3))
    reader = reader_of(path, "<i8", (3,), crc32)
    reader._file = io.FileIO(path, "a")
    FILES.append(reader._file)
    with pytest.raises(errors.CheckpointError, match=r"^a\.npy cannot be read: "):
        reader.read(0, 3)


# Members.


def test_a_header_that_numpy_would_not_read_is_refused(path: pathlib.Path) -> None:
    array = np.zeros(3)
    for count in range(617, 627):
        array = np.zeros(3, [(f"{number:03}", "u1") for number in range(count)])
        path.write_bytes(dtypes_test.saved(array))
        if npy.Member("a", array.dtype, (3,)).header:
            assert np.load(path).dtype == array.dtype
        else:
            with pytest.raises(ValueError, match="may not be safe to load securely"):
                np.load(path)
            with pytest.raises(errors.ArgumentError, match=r"'a' cannot be saved: its dtype .* at most 10000 char"):
                npy.member_of("a", array)
    assert not npy.Member("a", array.dtype, (3,)).header


@hypothesis.given(st.text(min_size=1), st.text(min_size=1))
def test_names_of_files_say_nothing_but_a_file(one: str, two: str) -> None:
    name = npy.file_name(one)
    assert re.fullmatch(r"[0-9A-Za-z_.%~-]+\.npy", name)
    assert len(name) <= 113
    if one != two:
        assert name.lower() != npy.file_name(two).lower()


def test_a_name_makes_a_file(subtests: pytest.Subtests) -> None:
    for name, file in [
        ("rows/reward", "rows.reward.npy"), ("a-b_c9", "a-b_c9.npy"), ("a.b", "a%2eb.npy"), ("..", "%2e%2e.npy"),
        ("a\0%", "a%00%25.npy"), ("é", "%c3%a9.npy"), ("/", "..npy"), ("a" * 100, "a" * 100 + ".npy"),
        ("a" * 101, "a" * 100 + "~9ac9e2b2.npy"), ("RGB", "RGB~b8a6b3ba.npy"),
    ]:  # fmt: skip
        with subtests.test(name=name):
            suffix = f"~{zlib.crc32(name.encode()):08x}.npy"
            assert npy.file_name(name) == (re.sub(r"~.*", "", file) + suffix if "~" in file else file)
