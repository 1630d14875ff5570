import copy
import importlib
import pickle
import re
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.schema import encoding
from relive.schema import schema as schema_lib

Field = relive.Field
PLAIN = relive.Schema(Field(4, np.float32), Field((), np.int64))
NESTED = relive.Schema(
    {"image": Field((2, 2), np.uint8), "arm": {"angle": Field((), np.float32), "touch": Field(2, np.bool_)}},
    {"right": Field(1, np.int8), "left": Field(1, np.int8)},
    reward=Field((), np.float32),
    extras={"logp": Field((), np.float64), "hidden": {"h": Field(3, np.float16), "c": Field(3, np.float16)}},
)
RATIONAL = importlib.import_module("numpy._core._rational_tests").rational
"""A dtype that is not numpy's own, as the bfloat16 of JAX, from numpy's own tests."""
PATHS = (
    "observation/arm/angle", "observation/arm/touch", "observation/image", "action/left", "action/right", "reward",
    "extras/hidden/c", "extras/hidden/h", "extras/logp",
)  # fmt: skip


def example(lead: tuple[int, ...] = ()) -> dict[str, Any]:
    """Return what NESTED was made for: the arguments of `rows`."""
    return {
        "observation": {
            "image": np.ones((*lead, 2, 2), np.uint8),
            "arm": {"angle": np.full(lead, 0.5, np.float32), "touch": np.ones((*lead, 2), np.bool_)},
        },
        "action": {"right": np.ones((*lead, 1), np.int8), "left": np.zeros((*lead, 1), np.int8)},
        "reward": np.full(lead, 0.25, np.float32),
        "extras": {
            "logp": np.full(lead, 0.1),
            "hidden": {"h": np.ones((*lead, 3), np.float16), "c": np.zeros((*lead, 3), np.float16)},
        },
    }


# Fields


def test_a_shape_is_a_tuple_of_ints() -> None:
    shapes: list[tuple[Any, tuple[int, ...]]] = [(3, (3,)), ((2, 0), (2, 0)), ([2, 3], (2, 3)), (range(2), (0, 1))]
    for shape, expected in [*shapes, ((), ()), (np.int64(3), (3,))]:
        field = Field(shape, np.float32)
        assert field.shape == expected
        assert [type(axis) for axis in field.shape] == [int] * len(expected)


def test_a_shape_of_something_else_is_refused() -> None:
    shapes: list[Any] = [1.0, (2, 1.0), None, True, (True,), "ab", {2: 3}, ((2,),)]
    for shape in shapes:
        with pytest.raises(errors.ArgumentTypeError, match=r"^shape must be an integer or a sequence of them, got .+$"):
            Field(shape, np.float32)
    with pytest.raises(errors.ArgumentError, match=r"^shape must have no negative length, got \(2, -1\)$"):
        Field((2, -1), np.float32)


def test_a_dtype_is_anything_that_numpy_accepts() -> None:
    dtypes: list[Any] = [float, "float64", np.float64, "f8", np.dtype(float), "d"]
    for dtype in dtypes:
        field = Field(3, dtype)
        assert field == Field((3,), np.float64)
        assert field.dtype is np.dtype(np.float64)
        assert hash(field) == hash(Field((3,), np.float64))


def test_a_dtype_unknown_to_numpy_is_refused() -> None:
    dtypes: list[Any] = [None, "no such dtype", 3, "i4,,,", ["a"], b"\xff"]
    for dtype in dtypes:
        with pytest.raises(errors.ArgumentTypeError, match=r"^dtype must be one that numpy accepts, got .+$"):
            Field((), dtype)


def test_a_dtype_has_a_fixed_size_and_no_references(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        (object, "dtype must hold no Python objects, got object"),
        ([("a", "i4"), ("b", [("c", object)])], "dtype must hold no Python objects, got [('a', '<i4'), "),
        (np.dtypes.StringDType(), "dtype must hold no Python objects, got StringDType()"),
        (RATIONAL, "dtype must be one of numpy's own, which files hold, got rational"),
        (
            [("a", "i4"), ("b", [("c", RATIONAL, 2)])],
            "dtype must be one of numpy's own, which files hold, got [('a', '",
        ),
        (str, "dtype must have a fixed length, got <U0"),
        ("S", "dtype must have a fixed length, got |S0"),
        ([], "dtype must have a fixed length, got |V0"),
        ("3f4", "dtype must have no shape of its own, got ('<f4', (3,))"),
    ]
    for dtype, message in rows:
        with subtests.test(message=message), pytest.raises(errors.ArgumentError, match="^" + re.escape(message)):
            Field((), dtype)


def test_bytes_of_a_field_are_those_of_one_value() -> None:
    assert Field((84, 84, 4), np.uint8).nbytes == 84 * 84 * 4
    assert Field((), "i4,f8").nbytes == 12
    assert Field((3, 0), np.float64).nbytes == 0
    assert Field(2, "U3").nbytes == 24


def test_fields_are_compared_and_hashed_by_value() -> None:
    field = Field(3, np.float32)
    assert field != Field(3, np.float64)
    assert field != Field((3, 1), np.float32)
    with pytest.raises(AttributeError):
        field.shape = (4,)  # type: ignore[misc]


def test_the_repr_of_a_field_recreates_it() -> None:
    dtypes: list[Any] = ["f4", ">i8", "U5", "?", "M8[ms]", "i4,f8", [("a", "u1", (2,))], "V8", "c16"]
    for dtype in dtypes:
        field = Field((2, 3), dtype)
        assert eval(repr(field), dict(vars(schema_lib))) == field


# Schemas


def test_fields_are_in_the_order_of_their_paths() -> None:
    assert tuple(NESTED.fields) == PATHS
    assert tuple(PLAIN.fields) == ("observation", "action", "reward")
    assert schema_lib.paths_of(NESTED, "observation") == PATHS[:3]
    assert schema_lib.paths_of(PLAIN, "observation") == ("observation",)


def test_parts_of_a_schema_are_returned_unchanged() -> None:
    assert NESTED.observation == {
        "image": Field((2, 2), np.uint8),
        "arm": {"angle": Field((), np.float32), "touch": Field(2, np.bool_)},
    }
    assert NESTED.action == {"right": Field(1, np.int8), "left": Field(1, np.int8)}
    assert NESTED.reward == Field((), np.float32)
    assert NESTED.extras == {
        "logp": Field((), np.float64),
        "hidden": {"h": Field(3, np.float16), "c": Field(3, np.float16)},
    }
    assert (PLAIN.observation, PLAIN.action) == (Field(4, np.float32), Field((), np.int64))
    assert (PLAIN.reward, PLAIN.extras) == (Field((), np.float64), {})
    assert NESTED.fields["observation/arm/touch"] == Field(2, np.bool_)


def test_a_schema_cannot_be_changed_from_outside() -> None:
    given: dict[str, Any] = {"a": {"b": Field(1, "f4")}}
    schema = relive.Schema(given, Field(1, "f4"), extras={"x": Field(1, "f4")})
    before = repr(schema)
    given["a"]["c"] = Field(2, "f4")
    got: Any = schema
    got.observation["a"]["c"] = Field(2, "f4")
    got.extras["y"] = Field(2, "f4")
    with pytest.raises(TypeError):
        got.fields["reward"] = Field(2, "f4")
    assert repr(schema) == before


def test_equal_schemas_are_those_with_equal_fields() -> None:
    twin = relive.Schema(
        {"arm": {"touch": Field(2, np.bool_), "angle": Field((), np.float32)}, "image": Field((2, 2), np.uint8)},
        {"left": Field(1, np.int8), "right": Field(1, np.int8)},
        reward=Field((), np.float32),
        extras={"hidden": {"c": Field(3, np.float16), "h": Field(3, np.float16)}, "logp": Field((), np.float64)},
    )
    assert twin == NESTED
    assert tuple(twin.fields) == PATHS
    assert PLAIN != NESTED
    assert relive.Schema(Field(4, np.float32), Field((), np.int32)) != PLAIN
    assert PLAIN != "a schema"


def test_a_schema_can_be_shown_copied_and_sent() -> None:
    for schema in [PLAIN, NESTED]:
        assert eval(repr(schema), dict(vars(schema_lib))) == schema
        assert copy.deepcopy(schema) == schema
        assert pickle.loads(pickle.dumps(schema)) == schema


def test_bytes_of_a_schema_are_those_of_one_row() -> None:
    assert PLAIN.nbytes == 16 + 8 + 8
    assert NESTED.nbytes == 4 + 2 + 4 + 1 + 1 + 4 + 6 + 6 + 8


def test_objects_that_are_not_fields_are_refused(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ({"observation": np.float32}, "observation must be a Field, got <class 'numpy.float32'>"),
        ({"observation": {"a": {"b": 3}}}, "observation/a/b must be a Field, got 3"),
        ({"action": None}, "action must be a Field, got None"),
        ({"reward": 1.0}, "reward must be a Field, got 1.0"),
        ({"extras": {"a": (3,)}}, "extras/a must be a Field, got (3,)"),
        ({"extras": Field(3, "f4")}, "extras must be a mapping from names to Fields, got Field((3,), 'float32')"),
    ]
    for given, message in rows:
        with subtests.test(message=message):
            fitting: dict[str, Any] = {"observation": Field(1, "f4"), "action": Field(1, "f4")}
            with pytest.raises(errors.ArgumentTypeError, match=f"^{re.escape(message)}$"):
                relive.Schema(**(fitting | given))


def test_a_reward_must_be_one_float() -> None:
    rows: list[Any] = [Field(1, np.float64), Field((), np.int64), Field((), np.complex64), {"a": Field((), np.float64)}]
    for reward in rows:
        message = f"reward must be a Field of shape () and a float dtype, got {reward}"
        with pytest.raises(errors.ArgumentError, match=f"^{re.escape(message)}$"):
            relive.Schema(Field(1, "f4"), Field(1, "f4"), reward=reward)


def test_an_example_of_a_dtype_that_files_cannot_hold_is_refused() -> None:
    rule = "^observation/x must be of a dtype of numpy's own, got rational: cast it, as with .astype.'float32'.$"
    with pytest.raises(errors.SchemaError, match=rule):
        relive.RingReplayBuffer(3).add({"x": np.zeros(2, RATIONAL)}, 0, 1.0)


def test_an_extra_named_like_an_argument_is_refused(subtests: pytest.Subtests) -> None:
    for name in ["observation", "action", "reward", "next_observation", "terminated", "truncated", "stream", "streams"]:
        with subtests.test(name=name):
            message = rf"^an extra must not be named like an argument of add, got '{name}'$"
            with pytest.raises(errors.ArgumentError, match=message):
                relive.Schema(Field(1, "f4"), Field(1, "f4"), extras={"a": Field(1, "f4"), name: Field(1, "f4")})
            with pytest.raises(errors.ArgumentError, match=message):
                relive.Schema.from_example(1, 1, extras={name: 1})


def test_an_extra_with_a_synonym_of_an_argument_is_refused() -> None:
    for name, meant in [("done", "terminated or truncated"), ("next_obs", "next_observation")]:
        with pytest.raises(errors.SchemaError, match=rf"^unknown extra '{name}': say {meant}$"):
            relive.Schema.from_example(1, 1, extras={"a": 1, name: 1})
        with pytest.raises(errors.SchemaError, match=rf"^unknown extra '{name}': say {meant}$"):
            encoding.Encoder(relive.Schema(Field((), "i8"), Field((), "i8"))).columns_of(1, 1, 1.0, {name: 1}, ())
        declared = relive.Schema(Field((), "i8"), Field((), "i8"), extras={name: Field((), "i8")})
        assert encoding.Encoder(declared).columns_of(1, 1, 1.0, {name: 1}, ())[f"extras/{name}"] == 1


def test_trees_are_checked() -> None:
    with pytest.raises(errors.ArgumentError, match="^observation must have at least one key"):
        relive.Schema({}, Field(1, "f4"))
    with pytest.raises(errors.ArgumentError, match="^keys of action must be non-empty strings without '/', got 'a/b'$"):
        relive.Schema(Field(1, "f4"), {"a/b": Field(1, "f4")})
    assert relive.Schema(Field(1, "f4"), Field(1, "f4"), extras={}).extras == {}


# Examples


def test_an_example_gives_its_own_shapes_and_dtypes() -> None:
    assert relive.Schema.from_example(**example()) == NESTED
    assert relive.Schema.from_example(np.zeros(4, np.float32), 3) == PLAIN


def test_leading_axes_are_left_out() -> None:
    for lead in [(5,), (5, 2), (0,)]:
        assert relive.Schema.from_example(**example(lead), num_leading=len(lead)) == NESTED


def test_values_have_the_dtype_that_numpy_gives_them(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        (0.5, np.float64), (1, np.int64), (True, np.bool_), (np.float16(1), np.float16), (np.uint8(1), np.uint8),
        (2**63, np.uint64), (1j, np.complex128), ("abc", "U3"), (b"ab", "S2"), (np.datetime64(1, "s"), "M8[s]"),
        (np.zeros((), "i4,f8"), "i4,f8"),
    ]  # fmt: skip
    for value, dtype in rows:
        with subtests.test(value=value):
            schema = relive.Schema.from_example(value, [value, value], extras={"x": {"y": value}})
            assert schema.observation == Field((), dtype)
            assert schema.action == Field(2, dtype)
            assert schema.extras == {"x": {"y": Field((), dtype)}}


def test_a_reward_has_its_own_float_dtype_or_float64(subtests: pytest.Subtests) -> None:
    for reward, dtype in [
        (1.5, np.float64), (1, np.float64), (True, np.float64), (np.int8(1), np.float64),
        (np.bool_(True), np.float64), (np.uint64(1), np.float64), (np.float32(1), np.float32),
        (np.array(1, np.float16), np.float16), (np.float64(1), np.float64),
    ]:  # fmt: skip
        with subtests.test(reward=reward):
            assert relive.Schema.from_example(1, 1, reward).reward == Field((), dtype)
            rewards = [reward, reward]
            assert relive.Schema.from_example([1, 1], [1, 1], np.array(rewards), num_leading=1).reward == Field(
                (), dtype
            )


def test_an_invalid_example_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ({"reward": "a"}, "reward must be a real number, got 'a'"),
        ({"reward": 1j}, "reward must be a real number, got 1j"),
        ({"reward": [1.0, 2.0]}, "reward must be of shape (), got (2,)"),
        ({"reward": None}, "reward must be an array of numbers, of text or of dates, got None: EpisodeReplayBuffer"),
        (
            {"observation": object},
            "observation must be an array of numbers, of text or of dates, got <class 'object'>: ",
        ),
        ({"observation": {"a": None}}, "observation/a must be an array of numbers, of text or of dates, got None: "),
        ({"action": [[1], [1, 2]]}, "action must be an array of numbers, of text or of dates, got [[1], [1, 2]]: "),
        ({"extras": {"a": {"b": None}}}, "extras/a/b must be an array of numbers, of text or of dates, got None: "),
        ({"num_leading": 1}, "reward must have at least 1 leading axes, got shape ()"),
        ({"num_leading": 1, "reward": [1.0]}, "observation must have at least 1 leading axes, got shape ()"),
    ]
    for given, message in rows:
        with subtests.test(message=message):
            fitting: dict[str, Any] = {"observation": 1, "action": 1}
            with pytest.raises(errors.SchemaError, match="^" + re.escape(message)):
                relive.Schema.from_example(**(fitting | given))


def test_the_number_of_leading_axes_is_checked() -> None:
    with pytest.raises(errors.ArgumentError, match="^num_leading must be at least 0, got -1$"):
        relive.Schema.from_example([1], [1], [1.0], num_leading=-1)


# Rows


def test_rows_are_all_columns_in_their_dtypes() -> None:
    for lead in [(), (3,), (0,), (3, 2)]:
        rows = encoding.Encoder(NESTED).columns_of(**example(lead), lead=lead)
        assert set(rows) == set(PATHS)
        for path, field in NESTED.fields.items():
            assert rows[path].dtype == field.dtype
            assert rows[path].shape == lead + field.shape
        assert (rows["observation/arm/touch"] == 1).all()
        assert (rows["action/right"] == 1).all()
        assert (rows["action/left"] == 0).all()
        assert (rows["extras/hidden/h"] == 1).all()
        assert (rows["extras/hidden/c"] == 0).all()
        assert (rows["extras/logp"] == 0.1).all()
        assert (rows["reward"] == 0.25).all()


def test_rows_are_cast_where_no_value_changes() -> None:
    rows = encoding.Encoder(PLAIN).columns_of([1, 2, 3, 4], 2.0, True, {}, ())
    assert {path: (row.tolist(), row.dtype.name) for path, row in rows.items()} == {
        "observation": ([1.0, 2.0, 3.0, 4.0], "float32"),
        "action": (2, "int64"),
        "reward": (1.0, "float64"),
    }


def test_a_reward_is_rounded_to_the_dtype_of_the_schema() -> None:
    schema = relive.Schema(Field((), np.float32), Field((), np.float32), reward=Field((), np.float32))
    assert encoding.Encoder(schema).columns_of(0, 0, np.float64(0.1), {}, ())["reward"] == np.float32(0.1)
    with pytest.raises(errors.SchemaError, match=r"^reward must fit float32, got 1e\+300$"):
        encoding.Encoder(schema).columns_of(0, 0, np.float64(1e300), {}, ())
    with pytest.raises(errors.SchemaError, match=r"^observation must be of dtype float32, got float64: cast it with"):
        encoding.Encoder(schema).columns_of(np.float64(0.1), 0, 0.0, {}, ())
    with pytest.raises(errors.SchemaError, match=r"^action must be of dtype float32, got float64: cast it with"):
        encoding.Encoder(schema).columns_of(0, np.float64(0.1), 0.0, {}, ())


def test_values_that_do_not_fit_a_plain_schema_are_named(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ({"observation": np.zeros(5, "f4")}, "observation must be of shape (4,), got (5,)"),
        ({"observation": np.zeros((1, 4), "f4")}, "observation must be of shape (4,), got (1, 4)"),
        (
            {"observation": {"a": np.zeros(4)}},
            "observation must be an array of numbers, of text or of dates, got {'a': ",
        ),
        ({"action": 0.5}, "action must fit int64, got 0.5"), ({"action": [1]}, "action must be of shape (), got (1,)"),
        ({"reward": "1"}, "reward must be of dtype float64, got '1'"),
        ({"reward": [1.0]}, "reward must be of shape (), got (1,)"),
        ({"extras": {"foo": 1}}, "unknown extra 'foo': the schema has no extras"),
    ]  # fmt: skip
    for given, message in rows:
        with subtests.test(message=message):
            fitting: dict[str, Any] = {
                "observation": np.zeros(4, "f4"), "action": 1, "reward": 0.5, "extras": {}, "lead": (),
            }  # fmt: skip
            with pytest.raises(errors.SchemaError, match="^" + re.escape(message)):
                encoding.Encoder(PLAIN).columns_of(**(fitting | given))


def without(tree: Any, path: str) -> Any:
    """Return the tree without what is at a path."""
    key, _, rest = path.partition("/")
    kept = {name: child for name, child in tree.items() if name != key}
    return kept | {key: without(tree[key], rest)} if rest else kept


def put(tree: Any, path: str, value: object) -> Any:
    """Return the tree with a value at a path."""
    key, _, rest = path.partition("/")
    return tree | {key: put(tree.get(key, {}), rest, value) if rest else value}


EXTRAS = "the schema has extra 'hidden/c', extra 'hidden/h', extra 'logp'"
OBSERVATIONS = "observation/arm/angle, observation/arm/touch, observation/image"


def test_values_that_do_not_fit_a_tree_are_named_by_path(subtests: pytest.Subtests) -> None:
    for arguments, message in [
        (without(example(), "extras/logp"), f"extra 'logp' is missing: {EXTRAS}"),
        (without(example(), "extras/hidden/c"), f"extra 'hidden/c' is missing: {EXTRAS}"),
        (without(example(), "extras/hidden"), f"extra 'hidden/c' is missing: {EXTRAS}"),
        (put(example(), "extras", {}), f"extra 'hidden/c' is missing: {EXTRAS}"),
        (put(example(), "extras/foo", 1), f"unknown extra 'foo': {EXTRAS}"),
        (put(example(), "extras/logp", {"a": 1}), f"unknown extra 'logp/a': {EXTRAS}"),
        (put(example(), "extras/hidden", 1), f"unknown extra 'hidden': {EXTRAS}"),
        (put(example(), "extras/hidden/c", np.zeros(2, "f2")), "extras/hidden/c must be of shape (3,), got (2,)"),
        (
            without(example(), "observation/arm/touch"),
            f"observation/arm/touch is missing: the schema has {OBSERVATIONS}",
        ),
        (without(example(), "observation/arm"), f"observation/arm/angle is missing: the schema has {OBSERVATIONS}"),
        (put(example(), "observation/imag", 1), f"unknown observation/imag: the schema has {OBSERVATIONS}"),
        (put(example(), "observation/arm", 1), f"unknown observation/arm: the schema has {OBSERVATIONS}"),
        (put(example(), "observation", np.zeros(3)), f"observation must be a mapping with {OBSERVATIONS}, got array("),
        (
            put(example(), "observation/image", np.zeros((2, 3))),
            "observation/image must be of shape (2, 2), got (2, 3)",
        ),
        (put(example(), "observation/arm/angle", "a"), "observation/arm/angle must be of dtype float32, got 'a'"),
        (without(example(), "action/left"), "action/left is missing: the schema has action/left, action/right"),
        (put(example(), "action", 3), "action must be a mapping with action/left, action/right, got 3"),
    ]:
        with subtests.test(message=message), pytest.raises(errors.SchemaError, match="^" + re.escape(message)):
            encoding.Encoder(NESTED).columns_of(**arguments, lead=())


def test_keys_of_values_are_checked() -> None:
    message = "^keys of observation/arm must be non-empty strings without '/', got 3$"
    with pytest.raises(errors.ArgumentError, match=message):
        encoding.Encoder(NESTED).columns_of(**put(example(), "observation/arm", {3: 1}), lead=())
    with pytest.raises(errors.ArgumentError, match=r"^observation/arm must have at least one key, got \{\}$"):
        encoding.Encoder(NESTED).columns_of(**put(example(), "observation/arm", {}), lead=())


def test_observation_rows_are_only_columns_of_the_observation() -> None:
    rows = encoding.Encoder(NESTED).columns_of_argument("next_observation", example((5,))["observation"], (5,))
    assert {path: row.shape for path, row in rows.items()} == {
        "observation/arm/angle": (5,),
        "observation/arm/touch": (5, 2),
        "observation/image": (5, 2, 2),
    }
    plain = encoding.Encoder(PLAIN).columns_of_argument("next_observation", [1, 2, 3, 4], ())
    assert list(plain) == ["observation"]
    assert plain["observation"].dtype == np.float32


def test_copies_of_one_value_are_its_columns() -> None:
    for schema, value in ((NESTED, example()["observation"]), (PLAIN, np.arange(4, dtype=np.float32))):
        encoder = encoding.Encoder(schema)
        columns = encoder.columns_of_argument("observation", value, ())
        copied = encoder.copier_of_argument("observation")(value)
        assert copied.keys() == columns.keys()
        for path, column in columns.items():
            assert (copied[path].dtype, copied[path].tolist()) == (column.dtype, column.tolist())
            assert not np.shares_memory(copied[path], column)


def test_an_error_names_the_argument_of_an_observation(subtests: pytest.Subtests) -> None:
    for observation, message in [
        ({"image": 1}, "next_observation/arm/angle is missing: the schema has next_observation/arm/angle, next_"),
        (put(example()["observation"], "image", 1), "next_observation/image must be of shape (2, 2), got ()"),
        (
            put(example()["observation"], "imag", 1),
            "unknown next_observation/imag: the schema has next_observation/arm",
        ),
        (1, "next_observation must be a mapping with next_observation/arm/angle, "),
        ({"arm": {"x/y": 1}}, "keys of next_observation/arm must be non-empty strings without '/', got 'x/y'"),
    ]:
        with subtests.test(message=message):
            with pytest.raises(errors.ArgumentError, match="^" + re.escape(message)):
                encoding.Encoder(NESTED).columns_of_argument("next_observation", observation, ())
            with pytest.raises(errors.SchemaError, match=r"^next_observation must be of shape \(4,\), got \(3,\)$"):
                encoding.Encoder(PLAIN).columns_of_argument("next_observation", np.zeros(3), ())


ROWS: list[Any] = [["observation", "<f4", [2]], ["action", "<i8", []], ["reward", "<f8", []]]


def test_an_invalid_description_of_a_schema_is_refused(subtests: pytest.Subtests) -> None:
    for rows, message in [
        (3, "^schema must be a list of a path, a dtype and a shape for each field, got 3$"),
        ([*ROWS, 3], "^schema must be a list of .*, got 3$"), ([*ROWS, ["x", "<f4"]], "^schema must be a list of "),
        ([*ROWS, [3, "<f4", []]], "^schema must be a list of "),
        ([*ROWS, ["extras/x", "<f4", 3]], "^schema must be a list of "),
        ([*ROWS, ROWS[0]], "^schema must be a list of "),
        ([*ROWS, ["extras" + "/x" * 65, "<f4", []]], "^schema must be a list of "),
        ([*ROWS, ["extras/x", "|O", []]], "^schema has an invalid field: "),
        ([*ROWS, ["extras/x", "<f4", [-1]]], "^schema has an invalid field: shape must have no negative length"),
        ([*ROWS, ["extras/x", "<f4", [None]]], "^schema has an invalid field: shape must be an integer"),
        ([*ROWS, ["other", "<f4", []]], "^schema must be a list of .*, of an observation, an action, a reward"),
        ([ROWS[1], ROWS[0], ROWS[2]], "^schema must be a list of .*, of an observation, an action, a reward"),
        (ROWS[:2], "^schema cannot be made: "),
        ([*ROWS[:2], ["reward", "<i8", []]], "^schema cannot be made: reward must be a Field"),
        ([*ROWS, ["extras/x", "<f4", []], ["extras/x/y", "<f4", []]], "^schema cannot be made: "),
        ([*ROWS, ["extras//y", "<f4", []]], "^schema cannot be made: "),
        ([*ROWS, ["extras/stream", "<f4", []]], "^schema cannot be made: an extra must not be named like an argument"),
    ]:  # fmt: skip
        with subtests.test(message=message), pytest.raises(errors.CheckpointError, match=message):
            relive.Schema._from_description(rows)


def test_a_description_of_64_levels_is_read_and_no_deeper_one() -> None:
    observation: Any = Field((), np.int64)
    for _ in range(64):
        observation = {"of": observation}
    schema = relive.Schema(observation, Field((), np.int64))
    assert relive.Schema._from_description(schema._description()) == schema
    deeper = relive.Schema({"of": observation}, Field((), np.int64))
    with pytest.raises(errors.CheckpointError, match="^schema must be a list of a path, a dtype and a shape"):
        relive.Schema._from_description(deeper._description())
