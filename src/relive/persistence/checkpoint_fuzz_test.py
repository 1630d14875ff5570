"""Hundreds and thousands of damaged and forged directories."""

from collections.abc import Callable
import json
import os
import pathlib
import pickle
import tracemalloc
from typing import Any
import zlib

import numpy as np
import pytest

from relive import errors
from relive.persistence import checkpoint
from relive.persistence import checkpoint_test
from relive.persistence import files as files_lib
from relive.persistence import manifest
from relive.persistence import manifest_test
from relive.persistence import npy
from relive.persistence import npy_header_test
from relive.persistence import posix_test
from relive.persistence import seed_blocks_test

STATE = {
    "class": "Some",
    "settings": {"gamma": 0.99, "names": ["a", "é", None], "is_on": True},
    "count": 2**70,
    "arrays": {
        "rows/reward": np.arange(40.0),
        "rows/terminated": np.arange(40) % 3 == 0,
        "rows/observation/RGB": np.arange(96, dtype=np.uint8).reshape(4, 2, 2, 6),
        "ids": np.array(["a", "bc", "日本"]),
        "block": np.zeros(5, [("a", "<f4", (2,)), ("b", [("c", "?"), ("d", "<M8[s]")])]),
        "none": np.zeros((0, 3), np.float32),
    },
}
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, 2**64, 10**15, 10**300, 0.5, 1e300, "", "a", "|O", "O", "<f8", "|b1",
    "<U1", "../x", "..", "/etc/passwd", "a\0b", "manifest.json", ".", "x" * 5000, [], {}, [0], [10**15],
    [10**15, 10**15], [-1], [True], [[]], [["a", "|O"]], [["a", "<f8"], ["a", "<f8"]], [["", "|V8"]],
    {"a": 1}, [1] * 40, [[[[[[]]]]]],
]  # fmt: skip
TEXTS = [
    b"NaN",
    b"Infinity",
    b"[" * 5000,
    b"{" * 99,
    b'"',
    b"\\",
    b"\0",
    b"\xff",
    b",",
    b":",
    b"9" * 5000,
    b"-",
    b"1e999",
]


class Touched:
    """Makes a file when it is unpickled."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def resigned(directory: pathlib.Path, members: dict[str, Any]) -> None:
    """Write a manifest whose checksum is right."""
    members.pop("crc32", None)
    text = json.dumps(members, indent=1).removesuffix("\n}")
    (directory / "manifest.json").write_bytes(manifest_test.signed(text))


def members_of(directory: pathlib.Path) -> dict[str, Any]:
    members: dict[str, Any] = json.loads((directory / "manifest.json").read_bytes())
    return members


def any_file(directory: pathlib.Path, rng: np.random.Generator) -> pathlib.Path:
    return directory / str(rng.choice(sorted(os.listdir(directory))))


def flip(directory: pathlib.Path, rng: np.random.Generator) -> None:
    file = any_file(directory, rng)
    raw = bytearray(file.read_bytes())
    first = 128 if len(raw) > 128 and rng.random() < 0.5 else 0  # Behind the header of an array, or anywhere.
    for place in rng.integers(first, len(raw), size=rng.integers(1, 4)):
        raw[place] ^= 1 << rng.integers(8)
    file.write_bytes(raw)


def resize(directory: pathlib.Path, rng: np.random.Generator) -> None:
    file = any_file(directory, rng)
    os.truncate(
        file, rng.choice([0, 1, 10, 64, 127, 128, 129, file.stat().st_size - 1, file.stat().st_size + 1, 10**9])
    )


def remove(directory: pathlib.Path, rng: np.random.Generator) -> None:
    any_file(directory, rng).unlink()


def swap(directory: pathlib.Path, rng: np.random.Generator) -> None:
    one, two = any_file(directory, rng), any_file(directory, rng)
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def replace(directory: pathlib.Path, rng: np.random.Generator) -> None:
    """Put something else in the place of a file: a link to the same bytes, a pipe, a directory, pickles."""
    file = any_file(directory, rng)
    raw = file.read_bytes()
    file.unlink()
    victim = directory.parent / "victim"
    kind = rng.integers(7)
    if kind == 0:
        victim.write_bytes(raw)
        file.symlink_to(victim)
    elif kind == 1:
        file.symlink_to("/dev/zero")
    elif kind == 2:
        file.symlink_to(file.name)
    elif kind == 3 and hasattr(os, "mkfifo"):
        os.mkfifo(file)
    elif kind == 4:
        file.mkdir()
    elif kind == 5:
        file.write_bytes(pickle.dumps(Touched(directory.parent / "touched")))
    else:
        objects: Any = np.array([Touched(directory.parent / "touched")], object)
        np.save(file.with_suffix(".tmp.npy"), objects, allow_pickle=True)
        os.rename(file.with_suffix(".tmp.npy"), file)


def forge_value(directory: pathlib.Path, rng: np.random.Generator) -> None:
    """Put a hostile value, or drop one, anywhere in the manifest."""
    members = members_of(directory)
    place: Any = members
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = keys[rng.integers(len(keys))]
        if not isinstance(place[key], dict | list) or not place[key] or rng.random() < 0.2:
            break
        place = place[key]
    if rng.random() < 0.1:
        del place[key]
    elif isinstance(place, dict) and rng.random() < 0.1:
        place[HOSTILE[rng.integers(14, 27)]] = place.pop(key)
    else:
        place[key] = HOSTILE[rng.integers(len(HOSTILE))]
    resigned(directory, members)


def forge_text(directory: pathlib.Path, rng: np.random.Generator) -> None:
    """Put text anywhere in the manifest, or leave some out."""
    raw = (directory / "manifest.json").read_bytes()
    begin = raw[: raw.rindex(b',\n "crc32"')]
    start = int(rng.integers(len(begin)))
    text = TEXTS[rng.integers(len(TEXTS))]
    (directory / "manifest.json").write_bytes(
        manifest_test.signed(begin[:start] + text + begin[start + int(rng.integers(4)) :])
    )


def forge_rows(directory: pathlib.Path, rng: np.random.Generator) -> None:
    """Change bytes of an array, and its checksum."""
    members = members_of(directory)
    entry = members["arrays"][str(rng.choice(sorted(members["arrays"])))]
    raw = bytearray((directory / entry["file"]).read_bytes())
    for place in rng.integers(len(raw) if rng.random() < 0.3 else 128, len(raw) + 1, size=3):
        raw[min(place, len(raw) - 1)] = rng.integers(256)
    (directory / entry["file"]).write_bytes(raw)
    entry["crc32"] = zlib.crc32(raw)
    resigned(directory, members)


def forge_shape(directory: pathlib.Path, rng: np.random.Generator) -> None:
    """Claim another dtype and shape, consistently, but for the rows."""
    members = members_of(directory)
    entry = members["arrays"][str(rng.choice(sorted(members["arrays"])))]
    shapes = [[10**15], [2**62, 4], [0, 2**62, 2**62], [10**15, 0], [0], [5], [40], [320], [4, 10], [1] * 32]
    dtype, shape = rng.choice(["|u1", "<f8", "|b1", "<U2", "|S320", "|V1"]), shapes[rng.integers(len(shapes))]
    old = npy.header(npy.dtype_of(entry["dtype"]), tuple(entry["shape"]))
    head = npy.header(np.dtype(dtype), tuple(shape))
    raw = head + (directory / entry["file"]).read_bytes()[len(old) :]
    (directory / entry["file"]).write_bytes(raw)
    size = npy.size_of(np.dtype(dtype), tuple(shape))
    entry.update(dtype=str(dtype), shape=shape, crc32=zlib.crc32(raw), nbytes=size)
    resigned(directory, members)


DAMAGES: list[Callable[[pathlib.Path, np.random.Generator], None]] = [flip, resize, remove, swap, replace]
FORGERIES: list[Callable[[pathlib.Path, np.random.Generator], None]] = [
    forge_value, forge_value, forge_value, forge_text, forge_text, forge_rows, forge_shape
]  # fmt: skip


def written(directory: pathlib.Path, files: dict[str, bytes]) -> None:
    """Empty a directory, of whatever it holds, and fill it."""
    for each in directory.iterdir() if directory.exists() else ():
        if each.is_dir() and not each.is_symlink():
            each.rmdir()
        else:
            each.unlink()
    directory.mkdir(exist_ok=True)
    for name, raw in files.items():
        (directory / name).write_bytes(raw)


def outcome(path: pathlib.Path) -> Any:
    """Return the state that a directory gives, or its error."""
    try:
        return checkpoint_test.loaded(path, verify=True)
    except errors.CheckpointError as error:
        return error


def said(path: pathlib.Path) -> Any:
    """Return the state in the files of a directory, without any check."""
    values, entries = manifest.decoded((path / files_lib.MANIFEST).read_bytes(), "m")
    arrays = {}
    for name, entry in entries.items():
        raw = (path / entry.file).read_bytes()
        size = len(npy.header(entry.dtype, entry.shape))
        arrays[name] = entry.dtype, entry.shape, raw[size:]
    return {**values, "arrays": arrays}


@pytest.mark.parametrize("cases", seed_blocks_test.seed_blocks(200, 2000, 3))
def test_a_hostile_directory_gives_an_error_or_what_it_says(cases: range, tmp_path: pathlib.Path) -> None:
    checkpoint.save(STATE, tmp_path / "good")
    good = {each.name: each.read_bytes() for each in (tmp_path / "good").iterdir()}
    right = checkpoint_test.whole(STATE)
    bad = tmp_path / "bad"
    loads = 0
    tracemalloc.start()
    try:
        for case in cases:
            rng = np.random.default_rng([case, 5])
            written(bad, good)
            is_forged = rng.random() < 0.6
            changes = FORGERIES if is_forged else DAMAGES
            changes[rng.integers(len(changes))](bad, rng)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            found = outcome(bad)
            assert tracemalloc.get_traced_memory()[1] - before < 64 << 20, case
            if isinstance(found, errors.CheckpointError):
                text = str(found)
                assert text.startswith(str(bad)), case
                assert "\n" not in text, case
                assert len(text) < 1000, case
            else:
                loads += 1
                assert found == (said(bad) if is_forged else right), case
            assert sorted({*os.listdir(tmp_path)} - {"victim"}) == [".good.lock", "bad", "good"], case
    finally:
        tracemalloc.stop()
    assert 0 < loads < len(cases) / 2


def test_the_fuzzer_finds_nothing_wrong_with_what_is_right(tmp_path: pathlib.Path) -> None:
    checkpoint.save(STATE, tmp_path / "good")
    resigned(tmp_path / "good", members_of(tmp_path / "good"))
    assert checkpoint_test.loaded(tmp_path / "good") == checkpoint_test.whole(STATE)


@pytest.mark.parametrize(
    "kind", ["missing", "file", "empty", "foreign", pytest.param("pipe", marks=posix_test.PIPES), "dangling"]
)
def test_what_is_no_checkpoint_says_so(tmp_path: pathlib.Path, kind: str) -> None:
    path = tmp_path / "state"
    rule = "is not a checkpoint: it has no manifest.json"
    if kind == "missing":
        rule = "does not exist"
    elif kind == "file":
        path.write_bytes(npy_header_test.saved(np.zeros(3)))
        rule = "cannot be opened: Not a directory"
    elif kind == "pipe":
        os.mkfifo(path)
        rule = "cannot be opened: Not a directory"
    elif kind == "dangling":
        path.symlink_to("nowhere")
        rule = "does not exist"
    else:
        path.mkdir()
        if kind == "foreign":
            (path / "weights.npy").write_text("")
    with pytest.raises(errors.CheckpointError, match=f"^{path} {rule}$"):
        checkpoint_test.loaded(path)


def test_a_manifest_that_is_too_long_is_not_read(tmp_path: pathlib.Path) -> None:
    checkpoint.save(STATE, tmp_path / "state")
    os.truncate(tmp_path / "state" / "manifest.json", 10**12)
    with pytest.raises(errors.CheckpointError, match=r"state/manifest\.json must have at most 2097152 bytes$"):
        checkpoint_test.loaded(tmp_path / "state")


def test_a_manifest_that_the_system_cannot_read_is_an_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(STATE, tmp_path / "state")
    place = tmp_path / "state" / "manifest.json"
    monkeypatch.setattr(files_lib.Directory, "open", lambda *_: os.open(place, os.O_WRONLY))
    with pytest.raises(errors.CheckpointError, match=r"state/manifest\.json cannot be read: "):
        checkpoint_test.loaded(tmp_path / "state")
