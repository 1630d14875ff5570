import collections
import dataclasses
import enum
import json
import math
import random
import struct
import sys
import tracemalloc
from typing import Any, NamedTuple

import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies
import numpy as np
import pytest

import relive
from relive import errors
from relive.persistence import codec as codec_lib
from relive.persistence import seed_blocks_test

CODEC = relive.PlainCodec()


class Point(NamedTuple):
    x: float
    y: float


class Colour(enum.IntEnum):
    RED = 1


class Frame(np.ndarray[Any, Any]):
    pass


@dataclasses.dataclass
class Message:
    text: str


def are_same(first: Any, second: Any) -> bool:
    """Return whether two values are of the same types and bits all the way down, in the same order."""
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray | np.generic):
        return (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())
    if isinstance(first, float):
        return struct.pack("<d", first) == struct.pack("<d", second)
    if isinstance(first, complex):
        return are_same([first.real, first.imag], [second.real, second.imag])
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(are_same, first, second))
    if isinstance(first, dict):
        return are_same([*first.items()], [*second.items()])
    if isinstance(first, set | frozenset):
        return sorted(map(bytes_of_key, first)) == sorted(map(bytes_of_key, second))
    return bool(first == second)


def bytes_of_key(key: Any) -> bytes:
    """Return bytes that are the same for equal sets, whose order is not."""
    if isinstance(key, frozenset):
        return b"E%r" % sorted(map(bytes_of_key, key))
    if isinstance(key, tuple):
        return b"t%r" % [*map(bytes_of_key, key)]
    return CODEC.encode(key)


def has_titles(dtype: np.dtype[Any]) -> bool:
    fields = [] if dtype.fields is None else dtype.fields.values()
    return any(len(field) > 2 or has_titles(field[0].base) for field in fields)


FLOATS = st.floats() | st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", bits.to_bytes(8, "little"))[0])
TEXTS = st.text(st.characters())
EDGES = [sign * 2**bits + step for bits in (0, 7, 8, 15, 16, 31, 32, 63, 64) for sign in (1, -1) for step in (-1, 0, 1)]
NUMBERS = st.sampled_from(EDGES) | st.integers(-(2**63), 2**63 - 1) | st.integers(0, 200)
RUNS = st.lists(NUMBERS, max_size=20) | st.lists(FLOATS, max_size=20) | st.lists(NUMBERS | FLOATS | st.booleans())
DTYPES = st.one_of(
    numpy_strategies.scalar_dtypes(),
    numpy_strategies.unicode_string_dtypes(),
    numpy_strategies.byte_string_dtypes(),
    numpy_strategies.nested_dtypes(),
).filter(lambda dtype: dtype.subdtype is None and not has_titles(dtype))
ARRAYS = numpy_strategies.arrays(DTYPES, numpy_strategies.array_shapes(min_dims=0, min_side=0, max_side=3))
KEYS = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXTS | st.binary(),
    lambda keys: st.lists(keys, max_size=3).map(tuple) | st.frozensets(keys, max_size=3),
    max_leaves=4,
)
LEAVES = st.one_of(
    KEYS, st.integers(-(2**2000), 2**2000), st.builds(complex, FLOATS, FLOATS), st.binary(),
    st.sets(KEYS, max_size=3), ARRAYS,
    ARRAYS.filter(lambda array: array.size and array.dtype.kind not in "SU").map(lambda array: array.reshape(-1)[0]),
    RUNS,
    RUNS.map(tuple),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda values: (
        st.lists(values, max_size=4)
        | st.lists(values, max_size=4).map(tuple)
        | st.dictionaries(KEYS, values, max_size=4)
    ),
    max_leaves=12,
)


@hypothesis.settings(max_examples=hypothesis.settings().max_examples // 2)
@hypothesis.given(value=VALUES)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    content = CODEC.encode(value)
    assert type(content) is bytes
    assert are_same(CODEC.decode(content), value)


SAMPLES: list[Any] = [
    None, True, False, 0.0, -0.0, math.inf, -math.inf, math.nan, complex(-0.0, math.nan), "", "a" * 127, "é" * 64,
    struct.unpack("<d", bytes.fromhex("0102030405f4ff7f"))[0], "\ud800 \U0001f600\0", b"x" * 128,
    *(s * 2**bits + step for bits in (0, 7, 8, 15, 31, 63, 64, 1015, 8000, 10**5) for s in (1, -1) for step in (-1, 0)),
    b"x" * 20_000, [], (), {}, set(), frozenset(), [None] * 128, (None,) * 300, [*range(-4, 4)],
    (0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7e308, struct.unpack("<d", b"\1\2\3\4\5\6\xf0\x7f")[0]),
    [*range(7), True], [*range(7), 1.0], [*range(1, 8), 2**64], [2**15] * 200, {n: -n for n in range(300)},
    {1: "a", "1": "b", (1,): "c", None: "d", frozenset([2]): "e", b"1": "f"}, {"b": 1, "a": 2},
    {1, "1", b"1", (1, 2), None}, [[1, (2, [3])], {"x": {"y": ()}}], np.float64(1.5), np.float32(-0.0),
    np.float16(np.nan), np.longdouble(1) / 3, np.int8(-1), np.uint64(2**64 - 1), np.bool_(True), np.complex64(1 + 2j),
    np.datetime64("2026-01-02T03:04:05.678"), np.datetime64("NaT", "s"), np.timedelta64(3, "W"), np.void(b"abc"),
    np.array([(1, 2.5)], [("x", ">i4"), ("y", "<f8")])[0],
    np.array(3.0), np.zeros((0, 3), np.uint8), np.zeros((10**9, 0), np.float32),
    np.arange(6, dtype=">i2").reshape(2, 3), np.array(["é", "abc"]), np.array([b"", b"abc"]),
    np.array(["2026-01-01", "NaT"], "M8[D]"), np.array([True, False]), np.zeros(65_536, "V0"),
    np.zeros((1,) * 64, np.int8), np.zeros(2, [("pose", [("x", "<f4"), ("name", "<U3", (2,))]), ("seen", "?")]),
    np.zeros(3, np.dtype([("x", "u1"), ("y", "<f8")], align=True)),
]  # fmt: skip


def test_each_kind_of_value_comes_back_as_it_was(subtests: pytest.Subtests) -> None:
    for value in SAMPLES:
        with subtests.test(value=value):
            decoded = CODEC.decode(CODEC.encode([value, {"key": value}]))
            assert are_same(decoded, [value, {"key": value}])


def test_the_bytes_are_those_of_the_description(subtests: pytest.Subtests) -> None:
    for value, content in [
        (None, "4e"), ((True, False), "74025446"), (0, "690100"), (-1, "6901ff"), (128, "69028000"),
        (-128, "690280ff"), (1.0, "66000000000000f03f"), (1j, "630000000000000000000000000000f03f"),
        ("é\ud800", "7305c3a9eda080"), (b"a" * 300, "79ac02" + "61" * 300),
        ([None], "6c014e"), ([7] * 7, "6c07" + "690107" * 7), ([7] * 8, "726208" + "07" * 8),
        ((7,) * 7 + (-129,), "526808" + "0700" * 7 + "7fff"), ((1.0,) * 200, "5264c801" + "000000000000f03f" * 200),
        ({"a": 1}, "64017301616901" + "01"), ({5}, "6501690105"), (frozenset([5]), "4501690105"),
        (np.array([[1, 2]], ">i2"), "610d" + b'[">i2",[1,2]]'.hex() + "00010002"),
        (np.float32(1), "670a" + b'["<f4",[]]'.hex() + "0000803f"),
    ]:  # fmt: skip
        with subtests.test(content=content):
            assert CODEC.encode(value).hex() == content
            assert are_same(CODEC.decode(bytes.fromhex(content)), value)


def code_of_run(numbers: list[Any]) -> bytes | None:
    """Return the code of the narrowest numbers that hold all of these; None for what is written one by one."""
    if len(numbers) >= 8 and all(type(number) is float for number in numbers):
        return b"d"
    if len(numbers) >= 8 and all(type(number) is int for number in numbers):
        for code, bits in ((b"b", 8), (b"h", 16), (b"i", 32), (b"q", 64)):
            if all(-(2 ** (bits - 1)) <= number < 2 ** (bits - 1) for number in numbers):
                return code
    return None


@hypothesis.given(numbers=RUNS)
def test_a_run_of_numbers_comes_back_as_it_was(numbers: list[Any]) -> None:
    code = code_of_run(numbers)
    for values, run_tag, tag in ((numbers, b"r", b"l"), (tuple(numbers), b"R", b"t")):
        content = CODEC.encode(values)
        assert are_same(CODEC.decode(content), values)
        assert content.startswith(tag if code is None else run_tag + code)


def test_a_run_is_as_wide_as_its_largest_number_asks() -> None:
    """A run of any width and length is read."""
    for bits in [8, 16, 32, 64]:
        edges = [2 ** (bits - 1) - 1, -(2 ** (bits - 1))]
        for numbers in (edges * 4, [0] * 7 + edges):
            assert len(CODEC.encode(numbers)) == 3 + len(numbers) * bits // 8
            for beyond in (edges[0] + 1, edges[1] - 1):
                wider = CODEC.encode([*numbers, beyond])
                assert wider[:1] == (b"l" if bits == 64 else b"r")
                assert CODEC.decode(wider) == [*numbers, beyond]
        assert (CODEC.decode(b"rq\x01" + (5).to_bytes(8, "little")), CODEC.decode(b"Rb\x00")) == ([5], ())


def test_a_subclass_of_a_number_is_refused_among_numbers() -> None:
    for kind in [Colour, type("Token", (int,), {}), type("Score", (float,), {})]:
        for numbers in ([0] * 8, [0.0] * 8):
            with pytest.raises(errors.ArgumentTypeError, match=r"^value\[8\] must be None"):
                CODEC.encode([*numbers, kind(1)])
            with pytest.raises(errors.ArgumentTypeError, match=r"^value\[0\] must be None"):
                CODEC.encode([kind(1)] * 9)


def test_arrays_are_loaded_in_c_order() -> None:
    """They own their memory."""
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    for view in (
        np.asfortranarray(array), array[:, ::-1], array.transpose(2, 0, 1), np.broadcast_to(array[0, 0], (5, 4))
    ):  # fmt: skip
        content = CODEC.encode(view)
        decoded = CODEC.decode(content)
        assert decoded.flags.c_contiguous
        assert decoded.flags.owndata
        assert decoded.flags.writeable
        assert are_same(decoded, np.ascontiguousarray(view))
        decoded[:] = 7
        assert are_same(CODEC.decode(content), np.ascontiguousarray(view))


def test_a_structured_scalar_is_a_key_where_it_was_one() -> None:
    rows = np.array([(1, 2)], [("x", "<i4"), ("y", "<i4")])
    rows.flags.writeable = False
    assert CODEC.decode(CODEC.encode({rows[0]: "here"})) == {rows[0]: "here"}


def test_names_of_items_are_kept_once() -> None:
    decoded = CODEC.decode(CODEC.encode([{"some_name": 1}, {"some_name": 2}]))
    assert next(iter(decoded[0])) is next(iter(decoded[1]))


WAY_OUT = "give codec= an object with encode and decode$"


def test_another_type_is_named_with_its_place_and_the_way_out(subtests: pytest.Subtests) -> None:
    for value, found in [
        (Point(1, 2), r"value must be None, .*, got relive.*\.Point Point\(x=1, y=2\)"),
        ({"messages": [0, 1, 2, Message("hello")]}, r"value\['messages'\]\[3\] must .*, got .*\.Message .*hello"),
        ([(1, {2: Colour.RED})], r"value\[0\]\[1\]\[2\] must .*, got .*\.Colour <Colour.RED: 1>"),
        (collections.OrderedDict(x=1), r"value must .*, got collections.OrderedDict OrderedDict"),
        ({"x": np.zeros(2).view(Frame)}, r"value\['x'\] must .*, got .*\.Frame Frame"),
        (np.ma.masked_array([1]), r"value must .*, got numpy.ma.*MaskedArray"),
        (object(), r"value must .*, got object <object"), (range(3), r"value must .*, got range range\(0, 3\)"),
        ([1, np.array([None])], r"value\[1\] must .*, got numpy.ndarray array\(.* of dtype\('O'\)"),
        ([np.zeros(65_537, "V0")], r"value\[0\] must .*, got numpy.ndarray array\(.* of dtype\('V'\)"),
        (np.zeros(1, [("x" * 65_520, "<f4")]), r"value must .*, got numpy.ndarray"),
        ({(1, Colour.RED): 1}, r"a key of value\[1\] must .*, got .*\.Colour"),
        ({"a": 1, "b": {1, Colour.RED + 2, Point(1, 2)}}, r"an item of value\['b'\] must .*, got .*\.Point"),
        ([frozenset([Point(1, 2)])], r"an item of value\[0\] must .*, got .*\.Point"),
        ([[[1], [2]], [[3], [object]]], r"value\[1\]\[1\]\[0\] must .*, got type <class 'object'>"),
        ({"a": bytearray(b"a")}, r"value\['a'\] must .*, got bytearray bytearray\(b'a'\)"),
        ([np.str_("a")], r"value\[0\] must .*, got numpy.str_ np.str_\('a'\)"),
        (np.array([b"a"])[0], r"value must .*, got numpy.bytes_ np.bytes_\(b'a'\)"),
    ]:  # fmt: skip
        with subtests.test(found=found):
            with pytest.raises(errors.ArgumentTypeError, match=f"^{found}.*: {WAY_OUT}") as refused:
                CODEC.encode(value)
            assert "\n" not in str(refused.value)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_values_are_nested_as_deep_as_is_said() -> None:
    inner: Any = {}
    run: Any = [*range(8)]
    for _ in range(99):
        inner, run = {"x": inner}, (run,)
    for value in (nested(100), inner, run):
        assert CODEC.decode(CODEC.encode(value)) == value
    for deeper in ((run,), [nested(100)], {"x": inner}, nested(100_000)):
        with pytest.raises(errors.ArgumentError, match="^value must be nested at most 100 levels deep$"):
            CODEC.encode(deeper)
    for run in (b"rb\x01\x07", b"Rb\x01\x07"):
        assert CODEC.decode(b"l\x01" * 99 + run)
    levels = [level * count + b"N" for count in (101, 100_000) for level in (b"l\x01", b"t\x01", b"e\x01", b"d\x01N")]
    for content in (*levels, b"l\x01" * 100 + b"rb\x01\x07", b"l\x01" * 100 + b"Rb\x01\x07"):
        message = "^plain-1 content is nested more than 100 levels deep, at byte"
        with pytest.raises(errors.CheckpointError, match=message):
            CODEC.decode(content)


def test_a_value_that_holds_itself_is_refused() -> None:
    values: list[Any] = [1]
    values.append({"again": values})
    with pytest.raises(errors.ArgumentError, match=r"^value\[1\]\['again'\] must not contain itself, got \[1"):
        CODEC.encode(values)
    shared = [1]
    first, second = CODEC.decode(CODEC.encode([shared, shared]))
    assert first == second == [1]
    assert first is not second
    with pytest.raises(errors.ArgumentTypeError, match=r"^value\[2\] must be None"):
        CODEC.encode([shared, shared, object()])


def call_deeply(call: Any, room: int) -> None:
    """Call a function with that many frames left on the stack."""
    depth = 0
    frame: Any = sys._getframe()
    while frame is not None:
        frame, depth = frame.f_back, depth + 1

    def descend(left: int) -> None:
        if left:
            descend(left - 1)
        else:
            call()

    descend(sys.getrecursionlimit() - depth - room)


@pytest.mark.parametrize("room", [20, 40, 60])
def test_a_full_stack_is_said_in_words(room: int) -> None:
    value = nested(90)
    content = CODEC.encode(value)
    message = "^value is nested too deeply for the call stack: encode it from fewer nested calls"
    with pytest.raises(errors.ArgumentError, match=message):
        call_deeply(lambda: CODEC.encode(value), room)
    with pytest.raises(errors.CheckpointError, match="^plain-1 content is nested too deeply for the call stack$"):
        call_deeply(lambda: CODEC.decode(content), room)


def test_a_value_that_changes_while_it_is_written_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread removes the value that cannot be written before it is found."""
    value: list[Any] = [[1], {"x": 2}, {3}, object()]

    def encode(item: object, levels: int) -> bytes:
        value.pop()
        raise errors.ArgumentError

    monkeypatch.setitem(codec_lib._ENCODERS, object, encode)
    with pytest.raises(errors.ArgumentError, match="^value must not change while it is written$"):
        CODEC.encode(value)


ALIKE = [number * sys.hash_info.modulus for number in range(101)]


def test_keys_of_one_hash_are_few() -> None:
    values: list[Any] = [dict.fromkeys(ALIKE), set(ALIKE), frozenset(ALIKE)]
    for value in values:
        with pytest.raises(errors.ArgumentError, match=r"^value\[0\] must have at most 100 keys of the same hash$"):
            CODEC.encode([value])
    keys = CODEC.encode(ALIKE)[2:]
    items = CODEC.encode([item for key in ALIKE for item in (key, None)])[3:]
    for content in (b"e\x65" + keys, b"E\x65" + keys, b"d\x65" + items):
        with pytest.raises(errors.CheckpointError, match="content has more than 100 keys of the same hash, at byte 1"):
            CODEC.decode(content)
    few = [*ALIKE[1:], *range(1, 1000), *((x, y) for x in range(40) for y in range(-2, 3))]
    assert CODEC.decode(CODEC.encode(set(few))) == set(few)
    assert CODEC.decode(CODEC.encode(dict.fromkeys(few))) == dict.fromkeys(few)


def array_of(layout: object, items: bytes = b"") -> bytes:
    head = json.dumps(layout).encode()
    return CODEC.encode(head).replace(b"y", b"a", 1) + items


def test_content_that_nobody_wrote_is_refused(subtests: pytest.Subtests) -> None:
    for content, reason in [
        *((content, "ends in the middle of a value") for content in (b"", b"i", b"f1234567", b"c123456781234567")),
        *((content, "ends in the middle of a value") for content in (b"l\x02i\x01N", b"s\x80", b"r", b"rb")),
        (b"l\x01", "says 1, where 0 bytes are left, at byte 1"),
        (b"l\x02l\x01", "says 1, where 0 bytes are left, at byte 3"), (b"NN", "has bytes after its value, at byte 1"),
        (b"?", "has no value of tag 63, at byte 0"), (b"l\x01\xff", "has no value of tag 255, at byte 2"),
        (b"i\x00", "has an int of no bytes, at byte 1"), (b"i\x02\x00", "says 2, where 1 bytes are left, at byte 1"),
        (b"y\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "says 9223372036854775807, where 0 bytes are left, at byte 1"),
        (b"y\xff\xff\xff\xff\xff\xff\xff\xff\x80\x00", "has a size of more than nine bytes, at byte 1"),
        (b"l\x80\xa0\x94\xa5\x8d\x1dNNN", "says 1000000000000, where 3 bytes are left, at byte 1"),
        (b"Rx\x00", "has a run of numbers of code 120, at byte 1"),
        (b"rb\x02\x00", "says 2, where 1 bytes are left, at byte 2"),
        (b"Rq\x02" + b"0" * 15, "says 2, where 15 bytes are left, at byte 2"),
        (b"rd\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "says 9223372036854775807, where 0 bytes are left, at byte 2"),
        (b"rh\x01000", "has bytes after its value, at byte 5"),
        (b"d\x02NNN", "says 2, where 3 bytes are left, at byte 1"),
        (b"s\x01\xff", "has text that is not UTF-8, at byte 1"), (b"d\x02NNNN", "has a key twice, at byte 1"),
        (b"d\x02Ti\x01\x00i\x01\x01N", "has a key twice, at byte 1"), (b"e\x02NN", "has a key twice, at byte 1"),
        *((key, "a key that is not hashable, at byte 1") for key in (b"e\x01l\0", b"d\x01l\0N", b"d\x01t\x01e\0N")),
        (b"a\x01\xff", "has an array without a dtype and a shape"), (b"a\x01x", "'x' is not JSON"),
        *((array_of(head), "has an array without a dtype and a shape") for head in (["<f4"], ["<f4", 3], {"x": 1})),
        (array_of(["|O", [1]], b"12345678"), r"dtype must be a description .*, got '\|O'"),
        (array_of(["<f4", [2]], b"1234567"), "says 8, where 7 bytes are left, at byte 1"),
        (array_of(["<f4", [-1]]), r"has an array of shape \[-1\]"),
        (array_of(["<f4", [True]], b"1234"), r"has an array of shape \[True\]"),
        (array_of(["<f4", [1.0]], b"1234"), r"has an array of shape \[1.0\]"),
        (array_of(["|u1", [1] * 65], b"1"), r"has an array of shape \[1, 1, 1, 1, 1, 1, \.\.\.\]"),
        (array_of(["<f4", [2**60 + 1, 0]]), r"has an array of shape \[1152921504606846977, 0\]"),
        *((array_of([dtype, [2**32, 2**32]]), "has an array of shape .*") for dtype in ("<f4", "|V0")),
        *((array_of(head), "has an array of shape .*") for head in (["|V0", [65_537]], [[], [2**70, 0]])),
        (array_of(["|b1", [2]], b"\x01\x02"), "an array must hold bools that are 0 or 1, .*"),
        (array_of(["<U1", []], b"\xff\xff\xff\xff"), "an array must hold bools that are 0 or 1, .*"),
        (array_of(["<f4", [1]], b"1234").replace(b"a", b"g", 1), "has a scalar with axes, or of text, at byte 1"),
        (array_of(["|S4", []], b"1234").replace(b"a", b"g", 1), "has a scalar with axes, or of text, at byte 1"),
        (array_of(["<U1", []], b"1\0\0\0").replace(b"a", b"g", 1), "has a scalar with axes, or of text, at byte 1"),
        (array_of([[["x" * 65_530, "<f4"]], []], b"1234"), "has an array with a dtype that is too long, at byte 1"),
        (array_of([[[f"{n:100}", "<f4"] for n in range(20)], []]), "says 80, where 0 bytes are left, at byte 1"),
    ]:  # fmt: skip
        with subtests.test(reason=reason):
            with pytest.raises(errors.CheckpointError, match=f"{reason}$") as refused:
                CODEC.decode(content)
            assert "\n" not in str(refused.value)


def test_the_largest_array_of_nothing_is_read() -> None:
    assert CODEC.decode(array_of(["<f4", [2**60, 0]])).shape == (2**60, 0)
    assert CODEC.decode(array_of(["|V0", [256, 256]])).shape == (256, 256)
    assert CODEC.decode(array_of([[["x" * 990, "<f4"]], []], b"1234")).shape == ()


def test_only_bytes_are_read() -> None:
    rows: list[Any] = [bytearray(b"N"), memoryview(b"N"), "N", None]
    for content in rows:
        with pytest.raises(errors.ArgumentTypeError, match="^content must be bytes, got "):
            CODEC.decode(content)


RICH = CODEC.encode(
    [
        *(each for each in SAMPLES if getattr(each, "size", 1) < 100 and not (type(each) is int and abs(each) > 2**70)),
        {"messages": [{"role": "user", "tokens": np.arange(5)}, ("x", {1, 2}, frozenset("ab"))]},
    ]
)


def forged(source: random.Random) -> bytes:
    """Return arbitrary bytes, as in an untrusted file."""
    start = source.randrange(len(RICH))
    content = bytearray(RICH if source.random() < 0.5 else RICH[start : start + source.randrange(1, 200)])
    for _ in range(source.randrange(5)):
        place = source.randrange(len(content))
        match source.randrange(5):
            case 0:
                content[place] ^= 1 << source.randrange(8)
            case 1:
                del content[place + 1 :]
            case 2:
                content[place:place] = source.randbytes(source.randrange(1, 10))
            case 3:
                content[place] = source.choice(b"NTFifcsyltrRdeEag\x00\x01\x7f\x80\xff")
            case _:
                other = source.randrange(len(RICH))
                content[place : place + 20] = RICH[other : other + source.randrange(1, 40)]
    return bytes(content) if source.random() < 0.9 else source.choice(b"ltrRdeEag").to_bytes() + source.randbytes(50)


@pytest.mark.parametrize("cases", seed_blocks_test.seed_blocks(250, 10_000, 5))
def test_forged_content_is_a_value_or_refused(cases: range) -> None:
    """A decoded value can be encoded and decoded again."""
    messages: list[str] = []
    for case in cases:
        try:
            value = CODEC.decode(forged(random.Random(case)))
        except errors.CheckpointError as refused:
            messages.append(str(refused))
        else:
            assert are_same(CODEC.decode(CODEC.encode(value)), value), case
    assert not any("\n" in message for message in messages)
    assert len(cases) / 50 < len(messages) < len(cases) * 49 / 50


def test_no_part_of_a_content_is_a_content() -> None:
    for value in [
        {"x": [1, "abc", 2.5, (None, b"d")]}, [np.arange(3), np.array(["ab"])], {1: {2}}, ([*range(300)], (0.5,) * 9),
    ]:  # fmt: skip
        content = CODEC.encode(value)
        for end in range(len(content)):
            with pytest.raises(errors.CheckpointError):
                CODEC.decode(content[:end])


def test_memory_is_a_small_multiple_of_the_content(subtests: pytest.Subtests) -> None:
    """The most expensive value is an empty set: 2 bytes of content, 216 in memory and 8 in its list."""
    for unit in [
        b"N", b"l\x00", b"d\x00", b"t\x01N", b"d\x01NN", b"e\x00", b"s\x03\xe6\x97\xa5", b"f12345678",
        b"rb\x00", b"Rb\x08\x81\x81\x81\x81\x81\x81\x81\x81", array_of(["|b1", [0]]),
    ]:  # fmt: skip
        with subtests.test(unit=unit):
            count = 4_000
            content = CODEC.encode([None] * count)[:-count] + unit * count
            CODEC.decode(content)
            tracemalloc.start()
            CODEC.decode(content)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 130 * len(content) + 100_000


def test_a_claim_takes_no_memory() -> None:
    claims = [b"%c\xff\xff\xff\xff\xff\xff\xff\x7f" % tag + b"N" * 100 for tag in b"isyltdeEag"]
    claims += [b"r%c\xff\xff\xff\xff\xff\xff\xff\x7f" % code + b"N" * 100 for code in b"bhiqd"]
    claims += [array_of(["|u1", [10**12]]), array_of(["|V2147483647", [1]]), array_of([[["x", "<f8", [10**8]]], []])]
    for claim in claims:
        tracemalloc.start()
        with pytest.raises(errors.CheckpointError):
            CODEC.decode(claim)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100_000


def test_what_could_not_be_read_is_not_written() -> None:
    for value in [
        np.array([2], np.uint8).view(bool),
        np.full(1, 2, np.uint8).view([("x", "?")])[0],
        np.array([-1]).view("U2"),
    ]:
        message = r"^value\[1\] must hold bools that are 0 or 1, and characters of Unicode$"
        with pytest.raises(errors.ArgumentError, match=message):
            CODEC.encode([1, value])


def test_gaps_between_fields_come_back_empty() -> None:
    padded = np.frombuffer(b"\xff" * 32, np.dtype([("x", "u1"), ("y", "<i8")], align=True))
    assert CODEC.decode(CODEC.encode(padded)).tobytes() == (b"\xff" + b"\0" * 7 + b"\xff" * 8) * 2


class Reversed:
    name = "reversed"

    def encode(self, value: bytes) -> bytes:
        return value[::-1]

    def decode(self, content: bytes) -> bytes:
        return content[::-1]


class Nameless(Reversed):
    name = None  # type: ignore[assignment]


def test_a_codec_has_a_name_and_two_methods() -> None:
    given_codecs: list[relive.Codec] = [relive.PlainCodec(), Reversed()]
    for codec in given_codecs:
        assert codec_lib.checked(codec) is codec
    assert type(codec_lib.checked(None)) is relive.PlainCodec
    wrong_codecs: list[Any] = ["plain-1", json, Nameless()]
    for wrong in wrong_codecs:
        message = "^codec must have a name, of type str, and the methods encode"
        with pytest.raises(errors.ArgumentTypeError, match=message):
            codec_lib.checked(wrong)
