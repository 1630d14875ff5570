"""The bytes of rows against those of the columns that a schema makes of the same values."""

import copy
import pickle
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors
from relive.schema import encoding
from relive.schema import schema as schema_lib

DTYPES = [
    "?",
    "i1",
    "i2",
    "i4",
    "i8",
    "u1",
    "u2",
    "u4",
    "u8",
    "f2",
    "f4",
    "f8",
    "c8",
    ">i4",
    ">f8",
    "U2",
    "S3",
    "M8[s]",
]
PLAIN = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
SHAPES: list[tuple[int, ...]] = [(), (), (1,), (2,), (0,), (9,)]

LARGE = [-(2**63), -(2**53) - 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**400]
FLOATS = [float("nan"), float("inf"), -0.0, 0.1, 3.0, 65504.0, 65520.0, 1e300, 5e-324]
NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from(LARGE),
    st.floats(allow_nan=False),
    st.sampled_from(FLOATS),
)
OTHERS = [None, "x", "long", b"ab", "7", 1j, 1 + 0.1j, [], [[]], object(), np.datetime64(3, "s"), np.str_("y")]


def cast(values: Any, dtype: str) -> Any:
    """Return an array of the values in a dtype, whatever becomes of them."""
    with np.errstate(all="ignore"):
        return np.array(values, np.float64).astype(dtype)


@st.composite
def values_near(draw: st.DrawFn, shape: tuple[int, ...], dtype: str) -> Any:
    """Return a value that fits a field, or one that does not."""
    kind = draw(st.sampled_from(["own", "own", "own", "plain", "scalar", "list", "near", "other", "strided", "shape"]))
    if kind == "other":
        return draw(st.sampled_from(OTHERS))
    if kind in ("plain", "list"):
        few = draw(st.lists(NUMBERS, min_size=1, max_size=3))
        return np.resize(np.array(few, object), shape).tolist()
    if kind == "near":
        dtype = draw(st.sampled_from(DTYPES))
    if kind == "shape":
        shape = (*shape, draw(st.integers(1, 2)))
    lead = (2, *shape) if kind == "strided" else shape
    count = int(np.prod(lead))
    if dtype in PLAIN:
        limit = {"?": 1, "i1": 127, "u1": 255, "f2": 2048}.get(dtype, 30_000)
        first = draw(st.integers(0, limit))
        array = ((first + 7 * np.arange(count)) % (limit + 1)).astype(dtype).reshape(lead)
    else:
        array = np.zeros(lead, dtype)
    if kind == "strided":
        array = array.T[..., 1].T if array.ndim > 1 else array[1]
    return array[()] if kind == "scalar" and shape == () else array


MORE: dict[Any, st.SearchStrategy[Any]] = {"more": st.just(1)}
FIELDS = st.tuples(st.sampled_from(SHAPES), st.sampled_from(DTYPES))


@st.composite
def schemas(draw: st.DrawFn) -> Any:
    """Return a schema, and what draws a value for each of its parts."""

    def tree(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: relive.Field(*field) for name, field in part.items()}
        return relive.Field(*part)

    def values(part: Any) -> Any:
        if isinstance(part, dict):
            return st.fixed_dictionaries({name: values_near(*field) for name, field in part.items()})
        return values_near(*part)

    parts = st.one_of(FIELDS, FIELDS, st.dictionaries(st.sampled_from("ab"), FIELDS, min_size=1))
    observation, action, reward = draw(parts), draw(parts), ((), draw(st.sampled_from(["f2", "f4", "f8"])))
    extras = draw(st.dictionaries(st.sampled_from(["logp", "a", "z"]), parts, max_size=2))
    schema = relive.Schema(
        tree(observation),
        tree(action),
        reward=tree(reward),
        extras={name: tree(part) for name, part in extras.items()},
    )
    row = st.tuples(
        values(observation),
        values(action),
        st.one_of(NUMBERS, values(reward)),
        st.fixed_dictionaries(
            {name: values(part) for name, part in extras.items()}, optional=draw(st.sampled_from([{}, {}, MORE]))
        ),
    )
    return schema, row, values(observation)


def answer(call: Any, *arguments: Any) -> Any:
    """Return what the call does, or how it refuses."""
    try:
        return list(call(*arguments))
    except errors.ArgumentError as error:
        return type(error), str(error)


def naive_row(schema: relive.Schema, observation: Any, action: Any, reward: Any, extras: Any) -> list[bytes]:
    rows = schema.rows(observation, action, reward, extras, ())
    return [b"".join(rows[path].tobytes() for path in paths) for paths in schema_lib.blocks_of(schema)]


def naive_observation(schema: relive.Schema, name: str, value: Any) -> list[bytes]:
    rows = schema.observation_rows(name, value, ())
    blocks = [paths for paths in schema_lib.blocks_of(schema) if paths[0] in rows]
    return [b"".join(rows[path].tobytes() for path in paths) for paths in blocks]


@hypothesis.given(schemas(), st.data())
def test_a_row_has_the_bytes_of_its_columns_and_is_refused_as_they_are(case: Any, data: st.DataObject) -> None:
    schema, rows, observations = case
    maker = encoding.RowBytes(schema)
    values = data.draw(rows)
    made = answer(maker.row, *values)
    assert made == answer(naive_row, schema, *values)
    observation = data.draw(observations)
    assert answer(maker.observation, "next", observation) == answer(naive_observation, schema, "next", observation)
    if isinstance(made, list):
        columns = maker.columns(made, 1)
        assert list(columns) == [path for paths in maker.blocks for path in paths]
        for path, column in schema.rows(*values, ()).items():
            assert columns[path].shape == (1, *column.shape)
            assert columns[path].dtype == column.dtype
            assert columns[path].tobytes() == column.tobytes()


def values_around(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """Return values that fit a field, values that almost do, and values that do not."""
    ones = [np.ones(shape, other) for other in DTYPES]
    own = np.zeros((2, *shape, 2), dtype)
    arrays = [*ones, own[0, ..., 0], own[1, ..., 1], np.zeros((*shape, 1), dtype), np.zeros((1, *shape), dtype)]
    lists = [np.full(shape, number, object).tolist() for number in (True, 1, -1, 0.5, 300, *LARGE, *FLOATS)]
    return [*OTHERS, *arrays, *(array[()] for array in arrays if array.shape == ()), *lists]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_of_any_kind_has_the_bytes_of_its_column_or_is_refused_as_it_is(dtype: str) -> None:
    """As an observation, an action and an extra, of each shape."""
    plain = relive.Field((), "i1")
    for shape in dict.fromkeys(SHAPES):
        field = relive.Field(shape, dtype)
        schemas_of_field = [relive.Schema(field, plain), relive.Schema(plain, field, extras={"x": field})]
        makers = [encoding.RowBytes(schema) for schema in schemas_of_field]
        for value in values_around(shape, dtype):
            own = np.ones(shape, dtype)
            for number, *row in (
                (0, value, 1, 0.5, {}),
                (1, 1, own, 0.5, {"x": value}),
                (1, 1, value, 0.5, {"x": own}),
            ):
                made = answer(makers[number].row, *row)
                assert made == answer(naive_row, schemas_of_field[number], *row), (shape, value)
            alone = answer(makers[0].observation, "next", value)
            assert alone == answer(naive_observation, schemas_of_field[0], "next", value), (shape, value)


def test_a_mapping_is_no_value_of_a_field() -> None:
    field, wrong = relive.Field((), "f4"), {"a": 1.0}
    maker = encoding.RowBytes(relive.Schema(field, field, extras={"x": field}))
    for values in (
        (wrong, 0, 0.0, {"x": 0}),
        (0, wrong, 0.0, {"x": 0}),
        (0, 0, wrong, {"x": 0}),
        (0, 0, 0.0, {"x": wrong}),
    ):
        with pytest.raises(
            errors.SchemaError, match="^(observation|action|reward|extras/x) must be an array of numbers"
        ):
            maker.row(*values)


@hypothesis.given(st.sampled_from(PLAIN), NUMBERS, st.sampled_from(["f2", "f4", "f8"]), st.sampled_from(PLAIN))
def test_a_number_has_the_bytes_of_its_column(dtype: str, number: Any, reward: str, other: str) -> None:
    """Python's own, numpy's of the field's type, and numpy's of another one, as an action and as a reward."""
    schema = relive.Schema(relive.Field((), dtype), relive.Field((), "i1"), reward=relive.Field((), reward))
    maker = encoding.RowBytes(schema)
    hypothesis.assume(isinstance(number, float) or abs(number) < 10**300)
    for value in (number, cast(number, dtype)[()], cast(number, other)[()], cast(number, dtype), [number]):
        for observation, reward_of_step in ((value, 0.0), (np.zeros((), dtype), value)):
            values: tuple[Any, ...] = observation, 1, reward_of_step, {}
            assert answer(maker.row, *values) == answer(naive_row, schema, *values)


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**53 + 1, -(2**53) - 1, 2**60, 2**63, 2**64, 10**400, True])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_an_integer_of_any_size_is_a_reward_as_it_is_in_a_column(number: Any, dtype: str) -> None:
    schema = relive.Schema(relive.Field((), "i8"), relive.Field((), "i8"), reward=relive.Field((), dtype))
    assert answer(encoding.RowBytes(schema).row, 0, 0, number, {}) == answer(naive_row, schema, 0, 0, number, {})


ROUND = relive.Schema(
    relive.Field(3, "f4"),
    relive.Field((), "i2"),
    reward=relive.Field((), "f4"),
    extras={"image": relive.Field((65,), "u1")},
)


@hypothesis.given(st.integers(1, 3), st.data())
def test_a_round_has_the_bytes_of_its_columns_or_is_none(count: int, data: st.DataObject) -> None:
    maker = encoding.RowBytes(ROUND)
    observation = data.draw(values_near((count, 3), "f4"))
    action = data.draw(values_near((count,), "i2"))
    reward = data.draw(values_near((count,), "f4") | st.lists(NUMBERS, min_size=count, max_size=count))
    extras = {"image": data.draw(values_near((count, 65), "u1"))}
    try:
        rows = ROUND.rows(observation, action, reward, extras, (count,))
    except errors.ArgumentError:
        assert maker.of_round(count, observation, action, reward, extras) is None
    else:
        row = maker.of_round(count, observation, action, reward, extras)
        assert row == [rows[path].tobytes() for (path,) in maker.blocks]
        assert row is not None
        columns = maker.columns(row, count)
        for path, column in rows.items():
            assert columns[path].shape == column.shape
            assert columns[path].tobytes() == column.tobytes()
            assert not columns[path].flags.writeable
    expected = answer(ROUND.observation_rows, "observation", observation, (count,))
    if isinstance(expected, list):
        column = ROUND.observation_rows("observation", observation, (count,))["observation"]
        assert maker.of_round_observation(count, observation) == [column.tobytes()]
    else:
        assert maker.of_round_observation(count, observation) is None


def test_a_round_with_an_extra_too_many_or_too_few_or_another_one_is_none() -> None:
    maker = encoding.RowBytes(ROUND)
    step = np.zeros((2, 3), np.float32), np.zeros(2, np.int16), np.zeros(2, np.float32)
    image = np.zeros((2, 65), np.uint8)
    assert maker.of_round(2, *step, {"image": image}) is not None
    for extras in ({}, {"picture": image}, {"image": image, "more": image}):
        assert maker.of_round(2, *step, extras) is None


def test_a_row_with_another_extra_is_refused_by_name() -> None:
    maker = encoding.RowBytes(ROUND)
    step = np.zeros(3, np.float32), np.int16(0), np.float32(0)
    with pytest.raises(relive.SchemaError, match="^unknown extra 'picture': the schema has extra 'image'$"):
        maker.row(*step, {"picture": np.zeros(65, np.uint8)})


def test_rounds_of_fields_that_lie_side_by_side_are_none() -> None:
    field = relive.Field((), "i8")
    for schema in (
        relive.Schema(field, field, extras={"x": field}),
        relive.Schema({"a": field}, field),
        relive.Schema(field, {"a": field}),
    ):
        maker = encoding.RowBytes(schema)
        numbers = np.zeros(2, np.int64)
        observation, action = (
            {"a": numbers} if isinstance(part, dict) else numbers for part in (schema.observation, schema.action)
        )
        assert maker.of_round(2, observation, action, np.zeros(2), dict.fromkeys(schema.extras, numbers)) is None
        assert maker.of_round_observation(2, observation) is None


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda maker: pickle.loads(pickle.dumps(maker))])
def test_a_copy_makes_the_same_bytes(copied: Any) -> None:
    maker = encoding.RowBytes(ROUND)
    values = [1.0, 2.0, 3.0], 7, 0.5, {"image": np.arange(65, dtype=np.uint8)}
    assert copied(maker).row(*values) == maker.row(*values)
