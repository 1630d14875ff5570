import json
import re
import sys
import tracemalloc
from typing import Any
import zlib

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from relive import errors
from relive.persistence import manifest

ENTRY = manifest.Entry("a.npy", np.dtype("<f4"), (3,), 7)


def signed(text: str | bytes) -> bytes:
    """Return a manifest with a valid checksum."""
    raw = text if isinstance(text, bytes) else text.encode()
    return raw + b',\n "crc32": %d\n}\n' % zlib.crc32(raw)


def forged(members: str | bytes, arrays: str = "{}") -> bytes:
    """Return a manifest with more members, and with arrays."""
    raw = members if isinstance(members, bytes) else members.encode()
    begin = b'{\n "format": "relive checkpoint",\n "version": 1,\n "relive": "9",\n '
    return signed(begin + raw + b' "arrays": ' + arrays.encode())


def entry(**members: str) -> str:
    parts = {"file": '"a.npy"', "dtype": '"<f4"', "shape": "[3]", "crc32": "7", "nbytes": "140", **members}
    return '{"a": {' + ", ".join(f'"{name}": {value}' for name, value in parts.items() if value) + "}}"


def test_a_manifest_says_what_it_was_told() -> None:
    values = {"n": 1, "f": -0.0, "t": [True, None, {"é": "日"}]}
    assert manifest.decoded(manifest.encoded(values, {"a": ENTRY}), "m") == (values, {"a": ENTRY})
    assert manifest.decoded(forged('"n": 3,', entry()), "m") == ({"n": 3}, {"a": ENTRY})


BEGIN = '{\n "format": "relive checkpoint",\n '
FOREIGN = "m is not the manifest of a relive checkpoint"


def test_what_is_foreign_is_no_manifest(subtests: pytest.Subtests) -> None:
    """P75: also what is of another version."""
    for raw, rule in [
        *((raw, FOREIGN) for raw in ("", "{}", "\0" * 99, "PK\3\4", '{\n "format": "other",\n "version": 1,\n')),
        *(
            (
                f'{BEGIN}"version": {number},\n of another form',
                f"m is of format version {number}, and .* 1: update relive",
            )
            for number in (2, 7, 10, 999_999_999)
        ),
        (signed(f'{BEGIN}"version": 1,\n "relive": "9"').decode(), "m: arrays must be a dict, got None"),
    ]:
        with subtests.test(rule=rule), pytest.raises(errors.CheckpointError, match=f"^{rule}$"):
            manifest.decoded(raw.encode(), "m")


def test_an_older_version_asks_for_an_older_relive(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = manifest.encoded({}, {})
    monkeypatch.setattr(manifest, "VERSION", 2)
    message = "version 1, and this relive reads 2: read it with an older relive$"
    with pytest.raises(errors.CheckpointError, match=message):
        manifest.decoded(raw, "m")


def test_any_changed_bit_and_any_cut_is_found() -> None:
    raw = manifest.encoded({"n": 1, "text": "some"}, {"a": ENTRY})
    for length in range(len(raw)):
        with pytest.raises(errors.CheckpointError, match="^m (was changed or cut|is not the manifest)"):
            manifest.decoded(raw[:length], "m")
    for bit in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(errors.CheckpointError, match="^m (was changed or cut|is not the manifest|is of format )"):
            manifest.decoded(bytes(changed), "m")
    for more in (b"\n", b" ", raw, b"\0"):
        with pytest.raises(errors.CheckpointError, match="^m was changed or cut: its CRC-32 does not match$"):
            manifest.decoded(raw + more, "m")


def test_a_forged_manifest_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ('"a": NaN,', r"state\['a'\] must be a finite number, got nan"),
        ('"a": -Infinity,', r"state\['a'\] must be a finite number, got -inf"),
        ('"a": 1e999,', r"state\['a'\] must be a finite number, got inf"),
        ('"a": 1, "a": 1,', "is not JSON: a name occurs twice"),
        ('"a": {"b": 1, "b": 2},', "is not JSON: a name occurs twice"),
        ('"version": 1,', "is not JSON: a name occurs twice"), ('"arrays": {},', "is not JSON: a name occurs twice"),
        ('"a": ' + "9" * 4301 + ",", "is not JSON: Exceeds the limit"),
        ('"a": ' + "9" * 320 + ",", r"state\['a'\] must be less than 2\*\*1024, got an integer of 1064 bits"),
        ('"a": "\\ud800",', r"state\['a'\] must be a string without lone surrogates, got '\\ud800'"),
        ('"\\udc00": 1,', "state must be a dict with strings as names"),
        (b'"a": "\xff",', "is not JSON: 'utf-8' codec can't decode byte"),
        ('"a": 01,', "is not JSON: Expecting ',' delimiter"), ('"a": "\0",', "is not JSON: Invalid control character"),
        ("", "is not JSON|array"),
        ('"a": ' + "[" * 64 + "]" * 64 + ",", "must have at most 100000 lists and dicts, 64 deep"),
        ('"a": ' + "[" * 10**6 + ",", "must have at most 100000 lists and dicts, 64 deep"),
        ('"a": [' + "{}," * 10**5 + "{}],", "must have at most 100000 lists and dicts, 64 deep"),
    ]  # fmt: skip
    for members, rule in rows:
        with subtests.test(rule=rule):
            if members == "":
                assert manifest.decoded(forged(""), "m") == ({}, {})
                return
            with pytest.raises(errors.CheckpointError, match=f"^m:? {rule}"):
                manifest.decoded(forged(members), "m")


def test_brackets_in_strings_are_no_lists() -> None:
    text = "[" * 1000 + '\\"' + "{" * 1000 + "\\\\"
    assert manifest.decoded(forged(f'"a": "{text}",'), "m")[0] == {"a": "[" * 1000 + '"' + "{" * 1000 + "\\"}
    values = {"a": "[" * 200_000 + '"\\'}
    assert manifest.decoded(manifest.encoded(values, {}), "m")[0] == values


def test_a_forged_entry_is_refused(subtests: pytest.Subtests) -> None:
    for arrays, rule in [
        ("[]", r"m: arrays must be a dict, got \[\]"), ("null", "m: arrays must be a dict, got None"),
        ('{"a": 3}', "m: array 'a': it must have crc32, dtype, file, nbytes and shape"),
        (entry(crc32=""), "m: array 'a': it must have crc32, "),
        (entry(more="1"), "m: array 'a': it must have crc32, "),
        (entry(file='"b.npy"'), r"m: array 'a': file must be a\.npy, got 'b\.npy'"),
        (entry(file='"../a.npy"'), "m: array 'a': file must be"),
        (entry(file='"/etc/passwd"'), "m: array 'a': file must be"),
        (entry(file='"a.npy\\u0000"'), "m: array 'a': file must be"), (entry(file="3"), "m: array 'a': file must be"),
        (entry(crc32="-1"), r"m: array 'a': crc32 must be an integer in \[0, 2\*\*32\), got -1"),
        (entry(crc32="4294967296"), "m: array 'a': crc32 must be"), (entry(crc32="7.0"), "m: array 'a': crc32 must be"),
        (entry(crc32="true"), "m: array 'a': crc32 must be"),
        (entry(nbytes="140.0"), r"m: array 'a': nbytes must be 140, got 140\.0"),
        (entry(nbytes="139"), "m: array 'a': nbytes must be 140, got 139"),
        (entry(dtype='"<f4", "shape": [true]', shape="", nbytes="132"), "m: array 'a': shape must hold lengths"),
        (entry(shape="[1000000000000000]"), "m: array 'a': nbytes must be 4000000000000128, got 140"),
        (entry(dtype='"|O"'), "m: array 'a': dtype must be a description"),
        (entry().replace('"a": {', '"": {').replace("a.npy", ".npy"), r"m: array '': file must be \.npy, got '\.npy'"),
    ]:  # fmt: skip
        with subtests.test(rule=rule), pytest.raises(errors.CheckpointError, match=f"^{rule}"):
            manifest.decoded(forged("", arrays), "m")


def test_what_is_no_shape_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [None, 3, "3", [], {}, [3.0], [True], ["3"], [-1], [2**63], [None], [[3]], [1] * 33]
    for shape in rows:
        with subtests.test(shape=shape), pytest.raises(errors.CheckpointError, match="^m: array 'a': shape must "):
            manifest.decoded(forged("", entry(shape=json.dumps(shape))), "m")


def test_long_shapes_and_those_of_many_axes_are_read() -> None:
    for shape, nbytes in [([2**63 - 1, 0, 3], 128), ([1] * 32, 196)]:
        raw = forged("", entry(shape=json.dumps(shape), nbytes=str(nbytes)))
        assert manifest.decoded(raw, "m")[1]["a"].shape == tuple(shape)


# A manifest of anything takes a bounded memory: 64 MiB for 2 MiB, measured on a small part of them.

PART = 32

PIECES = [
    b"[[[[[]]]]],", b"{},", b"1,", b"1e9,", b'"aa",', b'{"a":[]},', b'\\"', b'"\\"', b"\\", b"[", b'"', b'"[', b'{"a":',
    b"\xf0\x9f\x98\x80", b"\xff", b"9", b"-", b"\\u0041", b"\n",
]  # fmt: skip


def peak_of(raw: bytes) -> int:
    """Return how many bytes reading a manifest takes at once."""
    assert len(raw) <= manifest.MOST_BYTES // PART
    text = ""
    tracemalloc.start()
    try:
        manifest.decoded(raw, "m")
    except errors.CheckpointError as error:
        text = str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert "\n" not in text
    assert len(text) < 400
    return peak


def test_anything_fits_in_memory(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    for piece in PIECES:
        with subtests.test(piece=piece):
            monkeypatch.setattr(manifest, "_MOST_CONTAINERS", manifest._MOST_CONTAINERS // PART)
            raw = forged(b'"a": [' + piece * ((manifest.MOST_BYTES // PART - 200) // len(piece)) + b"1],")
            assert peak_of(raw) < (64 << 20) // PART


def test_many_names_and_many_fields_fit_in_memory() -> None:
    names = ",".join(f'"{number:x}":{number % 10}' for number in range(6_000))
    fields = ",".join(f'["{number:x}","|u1"]' for number in range(3_000))
    for raw in (forged(f'"a": {{{names}}},'), forged("", entry(dtype=f"[{fields}]"))):
        assert peak_of(raw) < (64 << 20) // PART


def test_a_long_name_is_not_copied_to_every_member() -> None:
    name = "n" * 10**6
    raw = forged(f'"{name}": [' + "[0]," * 90_000 + '"\\ud800"],')
    with pytest.raises(errors.CheckpointError, match=r"^m: state\['n{100}'\]\[90000\] must be a string without lone"):
        manifest.decoded(raw, "m")


def test_depth_is_bounded_whatever_the_recursion_limit() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    try:
        with pytest.raises(errors.CheckpointError, match="64 deep$"):
            manifest.decoded(forged('"a": ' + '[{"a":' * 10**5), "m")
    finally:
        sys.setrecursionlimit(limit)


# Names of files.


@hypothesis.given(st.text(min_size=1), st.text(min_size=1))
def test_names_of_files_say_nothing_but_a_file(one: str, two: str) -> None:
    name = manifest.file_name(one)
    assert re.fullmatch(r"[0-9A-Za-z_.%~-]+\.npy", name)
    assert len(name) <= 113
    if one != two:
        assert name.lower() != manifest.file_name(two).lower()


def test_a_name_makes_a_file(subtests: pytest.Subtests) -> None:
    for name, file in [
        ("rows/reward", "rows.reward.npy"), ("a-b_c9", "a-b_c9.npy"), ("a.b", "a%2eb.npy"), ("..", "%2e%2e.npy"),
        ("a\0%", "a%00%25.npy"), ("é", "%c3%a9.npy"), ("/", "..npy"), ("a" * 100, "a" * 100 + ".npy"),
        ("a" * 101, "a" * 100 + "~9ac9e2b2.npy"), ("RGB", "RGB~b8a6b3ba.npy"),
    ]:  # fmt: skip
        with subtests.test(name=name):
            suffix = f"~{zlib.crc32(name.encode()):08x}.npy"
            assert manifest.file_name(name) == (re.sub(r"~.*", "", file) + suffix if "~" in file else file)
