import json
import sys
import tracemalloc
from typing import Any
import zlib

import numpy as np
import pytest

from relive import errors
from relive.persistence import manifest
from relive.persistence import npy

MEMBER = npy.Member("a", np.dtype("<f4"), (3,))


def signed(text: str | bytes) -> bytes:
    """Return a sealed object with a valid checksum."""
    raw = text if isinstance(text, bytes) else text.encode()
    return raw + b',\n "crc32": %d\n}\n' % zlib.crc32(raw)


def forged(members: str | bytes, arrays: str = "{}") -> bytes:
    """Return a manifest with more members, and with arrays."""
    raw = members if isinstance(members, bytes) else members.encode()
    begin = b'{\n "format": "relive checkpoint",\n "version": 2,\n "relive": "9",\n '
    return begin + raw + b' "arrays": ' + arrays.encode() + b"\n}\n"


def entry(**members: str) -> str:
    parts = {"file": '"a.npy"', "dtype": '"<f4"', "shape": "[3]", **members}
    return '{"a": {' + ", ".join(f'"{name}": {value}' for name, value in parts.items() if value) + "}}"


def test_a_manifest_says_what_it_was_told() -> None:
    values = {"n": 1, "f": -0.0, "t": [True, None, {"é": "日"}]}
    assert manifest.decoded(manifest.encoded(values, [MEMBER]), "m") == (values, [MEMBER])
    assert manifest.decoded(forged('"n": 3,', entry()), "m") == ({"n": 3}, [MEMBER])


BEGIN = '{\n "format": "relive checkpoint",\n '
FOREIGN = "m is not the manifest of a relive checkpoint"


def test_what_is_foreign_is_no_manifest(subtests: pytest.Subtests) -> None:
    """P75: also what is of another version."""
    for raw, rule in [
        *((raw, FOREIGN) for raw in ("", "{}", "\0" * 99, "PK\3\4", '{\n "format": "other",\n "version": 1,\n')),
        *(
            (
                f'{BEGIN}"version": {number},\n of another form',
                f"m is of format version {number}, and .* 2: update relive",
            )
            for number in (3, 7, 10, 999_999_999)
        ),
        (f'{BEGIN}"version": 2,\n "relive": "9"\n}}\n', "m: arrays must be a dict, got None"),
    ]:
        with subtests.test(rule=rule), pytest.raises(errors.CheckpointError, match=f"^{rule}$"):
            manifest.decoded(raw.encode(), "m")


def test_an_older_version_asks_for_an_older_relive() -> None:
    message = "version 1, and this relive reads 2: read it with an older relive$"
    with pytest.raises(errors.CheckpointError, match=message):
        manifest.decoded(forged("").replace(b'"version": 2', b'"version": 1'), "m")


def test_any_changed_bit_and_any_cut_of_a_sealed_object_is_found() -> None:
    raw = manifest.sealed({"n": 1, "text": "some"})
    assert raw == signed('{\n "n": 1,\n "text": "some"')
    assert manifest.unsealed("m", raw) == {"n": 1, "text": "some", "crc32": zlib.crc32(raw[: raw.rindex(b",")])}
    changes = [raw[:length] for length in range(len(raw))] + [raw + more for more in (b"\n", b" ", raw, b"\0")]
    for bit in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        changes.append(bytes(changed))
    for each in changes:
        with pytest.raises(errors.CheckpointError, match="^m was changed or cut: its CRC-32 does not match$"):
            manifest.unsealed("m", each)
    with pytest.raises(errors.CheckpointError, match=r"^m must be an object, got \[1\]$"):
        manifest._parsed("m", b"[1]")


def test_a_forged_manifest_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ('"a": NaN,', "is not JSON: it holds NaN"), ('"a": -Infinity,', "is not JSON: it holds -Infinity"),
        ('"a": 1, "a": 1,', "is not JSON: a name occurs twice"),
        ('"a": {"b": 1, "b": 2},', "is not JSON: a name occurs twice"),
        ('"version": 1,', "is not JSON: a name occurs twice"), ('"arrays": {},', "is not JSON: a name occurs twice"),
        ('"a": ' + "9" * 4301 + ",", "is not JSON: Exceeds the limit"),
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
                assert manifest.decoded(forged(""), "m") == ({}, [])
                return
            with pytest.raises(errors.CheckpointError, match=f"^m:? {rule}"):
                manifest.decoded(forged(members), "m")


def test_brackets_in_strings_are_no_lists() -> None:
    text = "[" * 1000 + '\\"' + "{" * 1000 + "\\\\"
    assert manifest.decoded(forged(f'"a": "{text}",'), "m")[0] == {"a": "[" * 1000 + '"' + "{" * 1000 + "\\"}
    values = {"a": "[" * 200_000 + '"\\'}
    assert manifest.decoded(manifest.encoded(values, []), "m")[0] == values


def test_a_forged_entry_is_refused(subtests: pytest.Subtests) -> None:
    for arrays, rule in [
        ("[]", r"m: arrays must be a dict, got \[\]"), ("null", "m: arrays must be a dict, got None"),
        ('{"a": 3}', "m: array 'a': it must have dtype, file and shape"),
        (entry(shape=""), "m: array 'a': it must have dtype"), (entry(more="1"), "m: array 'a': it must have dtype"),
        *((entry(file=f'"{file}"'), "m: array 'a': file must be the one of its name, got")
          for file in ("b.npy", "../a.npy", "/etc/passwd", "a.npy\\u0000", "manifest.json")),
        (entry(file="3"), "m: array 'a': file must be"), (entry(dtype='"|O"'), "m: array 'a': dtype must be a descr"),
        (entry(dtype='"|S0"'), "m: array 'a': dtype must have bytes"),
        (entry(dtype=json.dumps([[f"{n:03}", "|u1"] for n in range(800)])), "m: array 'a': its dtype and shape must"),
        (entry().replace('"a": {', '"": {').replace("a.npy", ".npy"), "m: array '': file must be"),
        (entry().replace('"a": {', '"\\ud800": {'), r"m: array '\\ud800': file must be"),
    ]:  # fmt: skip
        with subtests.test(rule=rule), pytest.raises(errors.CheckpointError, match=f"^{rule}"):
            manifest.decoded(forged("", arrays), "m")


def test_what_is_no_shape_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [None, 3, "3", [], {}, [3.0], [True], ["3"], [-1], [2**63], [None], [[3]], [1] * 33]
    for shape in rows:
        with subtests.test(shape=shape), pytest.raises(errors.CheckpointError, match="^m: array 'a': (shape|it) must "):
            manifest.decoded(forged("", entry(shape=json.dumps(shape))), "m")


def test_long_shapes_and_those_of_many_axes_are_read() -> None:
    for shape in ([2**63 - 1, 0, 3], [1] * 32):
        assert manifest.decoded(forged("", entry(shape=json.dumps(shape))), "m")[1][0].shape == tuple(shape)


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


def test_a_long_name_is_not_copied_to_the_message() -> None:
    with pytest.raises(
        errors.ArgumentError, match=r"^state\['n{100}'\] must hold None, bools, finite numbers"
    ) as caught:
        manifest.sealed({"n" * 10**6: [[0]] * 90_000 + ["\ud800"]})
    assert len(str(caught.value)) < 400


def test_depth_is_bounded_whatever_the_recursion_limit() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    try:
        with pytest.raises(errors.CheckpointError, match="64 deep$"):
            manifest.decoded(forged('"a": ' + '[{"a":' * 10**5), "m")
    finally:
        sys.setrecursionlimit(limit)
