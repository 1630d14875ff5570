"""The bytes of rows, compared with structured records of the same values."""

import copy
import itertools
import pickle
import re
import types
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors
from relive.common import trees
from relive.schema import casting
from relive.schema import encoding

DTYPES = [
    "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", ">i4", ">f8", "U2", "S3", "M8[s]",
]  # fmt: skip
PLAIN = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]
SHAPES: list[tuple[int, ...]] = [(), (), (1,), (2,), (0,), (9,)]

LARGE = [-(2**63), -(2**53) - 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**400]
FLOATS = [float("nan"), float("inf"), -0.0, 0.1, 3.0, 65504.0, 65520.0, 1e300, 5e-324]
NUMBERS: st.SearchStrategy[Any] = st.one_of(
    st.booleans(), st.integers(-3, 300), st.sampled_from(LARGE), st.floats(allow_nan=False), st.sampled_from(FLOATS)
)
OTHERS = [None, "x", "long", b"ab", "7", 1j, 1 + 0.1j, [], [[]], object(), np.datetime64(3, "s"), np.str_("y")]
OTHERS += [np.array(1, object), np.array(0.5, object), np.array([1], object)]


def cast(values: Any, dtype: str) -> Any:
    """Return an array of the values cast to a dtype, without any check."""
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
def cases(draw: st.DrawFn, lead: tuple[int, ...], seen: tuple[int, ...]) -> Any:
    """Return a schema, and a value [lead..., ...] for each of its parts, of the observation [seen..., ...] twice."""

    def tree(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: tree(branch) for name, branch in part.items()}
        return relive.Field(*part)

    def values(part: Any, lead: tuple[int, ...]) -> Any:
        if not isinstance(part, dict):
            return values_near((*lead, *part[0]), part[1])
        dicts = st.fixed_dictionaries({name: values(branch, lead) for name, branch in part.items()})
        return st.one_of(dicts, dicts, dicts.map(types.MappingProxyType), dicts.map(lambda tree: tree | {"c": 1}))

    dicts = st.dictionaries(st.sampled_from(["a", "b", "a-"]), FIELDS, min_size=1)
    nested = st.dictionaries(st.sampled_from("ab"), dicts | FIELDS, min_size=1)
    parts = st.one_of(FIELDS, FIELDS, dicts, nested)
    observation, action, reward = draw(parts), draw(parts), ((), draw(st.sampled_from(["f2", "f4", "f8", ">f4"])))
    extras = draw(st.dictionaries(st.sampled_from(["logp", "a", "z"]), parts, max_size=2))
    schema = relive.Schema(
        tree(observation), tree(action), reward=tree(reward), extras={name: tree(part) for name, part in extras.items()}
    )
    numbers = st.lists(NUMBERS, min_size=sum(lead), max_size=sum(lead)) if lead else NUMBERS
    given_extras = st.fixed_dictionaries(
        {name: values(part, lead) for name, part in extras.items()}, optional=draw(st.sampled_from([{}, {}, MORE]))
    )
    return (
        schema, draw(values(observation, seen)), draw(values(action, lead)), draw(numbers | values(reward, lead)),
        draw(st.none() | values(observation, seen)), draw(given_extras),
    )  # fmt: skip


def answer(call: Any, *arguments: Any) -> Any:
    """Return the bytes of rows and of observations after them, or how they are refused."""
    try:
        rows, next_rows = call(*arguments)
        return list(rows), next_rows if next_rows is None else list(next_rows)
    except errors.ArgumentError as error:
        return type(error), str(error)


def bytes_of(encoder: encoding.Encoder, count: int | None, *step: Any) -> Any:
    """Return the bytes of one step, if there is no count, or of several."""
    values: Any = step
    return encoder.row(*values) if count is None else encoder.rows(count, *values)


def naive_bytes(schema: relive.Schema, columns: Any) -> list[bytes]:
    return [np.array(columns[path]).tobytes() for path in schema.fields if path in columns]


def naive_steps(
    schema: relive.Schema, count: int | None, observation: Any, action: Any, reward: Any, following: Any, extras: Any
) -> Any:
    """Encode one step argument by argument, and several at once."""
    if count is not None:
        encoder = encoding.Encoder(schema)
        values, fields = encoder._values_of(observation, action, reward, extras), dict(schema.fields)
        if following is not None:
            argument = encoder._arguments["next_observation"]
            values, fields = values + argument.leaves(following), {**fields, **argument.fields}
        columns = {
            name: casting.cast_exact(name, value, (count, *field.shape), field.dtype, name == "reward")
            for (name, field), value in zip(fields.items(), values, strict=True)
        }
        for name in columns if schema.check_finite else ():
            if name != "reward" and columns[name].dtype.kind in "fc":
                casting.require_finite(name, columns[name])
        encoding.require_finite(columns["reward"])
    else:
        columns_of = encoding.Encoder(schema).columns_of_argument
        columns = columns_of("observation", observation, ()) | columns_of("action", action, ())
        columns |= columns_of("reward", reward, ())
        encoding.require_finite(columns["reward"])
        columns |= columns_of("extras", extras, ())
        if following is not None:
            seen = columns_of("next_observation", following, ())
            columns |= {f"next_{path}": column for path, column in seen.items()}
    after = {path.removeprefix("next_"): column for path, column in columns.items() if path.startswith("next_")}
    return naive_bytes(schema, columns), None if following is None else naive_bytes(schema, after)


def naive_run(
    schema: relive.Schema, count: int, observations: Any, actions: Any, rewards: Any, extras: Any
) -> tuple[list[bytes], list[bytes]]:
    encoder = encoding.Encoder(schema)
    seen = encoder.columns_of_argument("observations", observations, (count + 1,))
    before = trees.nested("observation", {path: column[:-1] for path, column in seen.items()})
    rows = encoder.columns_of(before, actions, rewards, extras, (count,))
    last = {path: column[-1:] for path, column in seen.items()}
    return naive_bytes(schema, rows), naive_bytes(schema, last)


def of_step(schema: relive.Schema, observation: Any, action: Any, reward: Any, following: Any, extras: Any) -> Any:
    """Return the bytes that `add` has."""
    steps = encoding.steps(encoding.Encoder(schema), (0,), bytes(1), (observation, action, reward, following, extras))
    return steps.rows, steps.next_rows


@hypothesis.given(cases((), ()))
def test_a_step_is_encoded_or_refused_as_its_columns(case: Any) -> None:
    values: Any
    schema, *values = case
    made = answer(of_step, schema, *values)
    assert made == answer(naive_steps, schema, None, *values)
    if isinstance(made[0], list):
        encoder = encoding.Encoder(schema)
        columns = encoding.columns(encoder.schema, made[0], 1)
        assert list(columns) == list(schema.fields)
        for path, column in encoder.columns_of(values[0], values[1], values[2], values[4], ()).items():
            assert columns[path].shape == (1, *column.shape)
            assert columns[path].dtype == column.dtype
            assert columns[path].tobytes() == column.tobytes()


@hypothesis.given(st.integers(0, 3), st.data())
def test_steps_of_streams_are_encoded_or_refused_as_columns(count: int, data: st.DataObject) -> None:
    values: Any
    schema, *values = data.draw(cases((count,), (count,)))
    encoder = encoding.Encoder(schema)
    made = answer(encoder.rows, count, *values)
    assert made == answer(naive_steps, schema, count, *values)
    if isinstance(made[0], list):
        columns = encoding.columns(encoder.schema, made[0], count)
        for path, column in encoder.columns_of(values[0], values[1], values[2], values[4], (count,)).items():
            assert columns[path].dtype == column.dtype
            assert columns[path].shape == column.shape
            assert columns[path].tobytes() == column.tobytes()
            assert not columns[path].flags.writeable


@hypothesis.given(st.integers(1, 3), st.data())
def test_a_run_is_encoded_or_refused_as_its_columns(count: int, data: st.DataObject) -> None:
    schema, observations, actions, rewards, _, extras = data.draw(cases((count,), (count + 1,)))
    values = observations, actions, rewards, extras
    made = answer(encoding.Encoder(schema).run, count, *values)
    assert made == answer(naive_run, schema, count, *values)


def values_around(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """Return values that fit a field, values that almost do, and values that do not."""
    ones = [np.ones(shape, other) for other in DTYPES]
    own = np.zeros((2, *shape, 2), dtype)
    arrays = [*ones, own[0, ..., 0], own[1, ..., 1], np.zeros((*shape, 1), dtype), np.zeros((1, *shape), dtype)]
    arrays.append(np.ma.masked_array(np.zeros(shape, dtype), mask=True))
    lists = [np.full(shape, number, object).tolist() for number in (True, 1, -1, 0.5, 300, *LARGE, *FLOATS)]
    mixed = [np.resize(np.array(pair, object), shape).tolist() for pair in ([0.5, 1], [True, 2], [1, np.float64(0.1)])]
    of_arrays = [[np.zeros(shape[1:])] * shape[0]] if shape else []
    return [*OTHERS, *arrays, *(array[()] for array in arrays if array.shape == ()), *lists, *mixed, *of_arrays]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_is_encoded_or_refused_as_its_column(dtype: str) -> None:
    """As an observation, an action and an extra, of each shape, alone and of two streams."""
    plain = relive.Field((), "i1")
    shapes: list[tuple[int, ...]] = [(), (2,), (0,)]
    for shape, count in itertools.product(shapes, (None, 2)):
        field = relive.Field(shape, dtype)
        alone = relive.Schema(field, plain)
        in_dict = relive.Schema({"a": field, "b": plain}, plain)
        shared = relive.Schema(plain, field, extras={"x": field})
        encoders = {id(schema): encoding.Encoder(schema) for schema in (alone, in_dict, shared)}
        lead = () if count is None else (count,)
        one, half = np.ones(lead, np.int8), np.full(lead, 0.5)
        own = np.ones((*lead, *shape), dtype)
        for value in values_around((*lead, *shape), dtype):
            for schema, *step in (
                (alone, value, one, half, None, {}),
                (alone, own, one, half, value, {}),
                (in_dict, {"b": one, "a": value}, one, half, {"a": own, "b": one}, {}),
                (shared, one, own, half, one, {"x": value}),
                (shared, one, value, half, one, {"x": own}),
            ):
                made = answer(bytes_of, encoders[id(schema)], count, *step)
                assert made == answer(naive_steps, schema, count, *step), (shape, value)


def test_a_mapping_is_refused_as_a_value() -> None:
    for count in [None, 1]:
        field, wrong = relive.Field((), "f4"), {"a": 1.0}
        encoder = encoding.Encoder(relive.Schema(field, field, extras={"x": field}))
        one: Any = 0.0 if count is None else np.zeros(1, np.float32)
        for observation, action, reward in ((wrong, one, one), (one, wrong, one), (one, one, wrong)):
            with pytest.raises(errors.SchemaError, match="^(observation|action|reward) must be an array of numbers"):
                bytes_of(encoder, count, observation, action, reward, one, {"x": one})
        with pytest.raises(errors.SchemaError, match="^unknown extra 'x/a': the schema has extra 'x'$"):
            bytes_of(encoder, count, one, one, one, one, {"x": wrong})


@hypothesis.given(st.sampled_from(PLAIN), NUMBERS, st.sampled_from(["f2", "f4", "f8", ">f4"]), st.sampled_from(PLAIN))
def test_a_number_has_the_bytes_of_its_column(dtype: str, number: Any, reward: str, other: str) -> None:
    """Python's own, numpy's of the field's type, and numpy's of another one, as an action and as a reward."""
    schema = relive.Schema(relive.Field((), dtype), relive.Field((), "i1"), reward=relive.Field((), reward))
    hypothesis.assume(isinstance(number, float) or abs(number) < 10**300)
    for value in (number, cast(number, dtype)[()], cast(number, other)[()], cast(number, dtype), [number]):
        for observation, reward_of_step in ((value, 0.0), (np.zeros((), dtype), value)):
            values: tuple[Any, ...] = observation, 1, reward_of_step, None, {}
            assert answer(of_step, schema, *values) == answer(naive_steps, schema, None, *values)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_rewards_are_encoded_as_in_a_column_or_refused(dtype: str) -> None:
    """Large integers keep their value; what is finite must be so after the cast."""
    field, numbers = relive.Field((), "i8"), np.zeros(3, np.int64)
    schema = relive.Schema(field, field, reward=relive.Field((), dtype))
    integers = [2**53, -(2**53), 2**53 + 1, -(2**53) - 1, 2**60, 2**63, 2**64, 10**400, True]
    floats = [1e38, 3.4028235e38, 3.40282356e38, 3.5e38, 1e300, np.inf, np.nan, -np.inf, -1e39]
    for number in (*integers, *floats, *map(np.float64, floats), *map(np.array, floats)):
        step: tuple[Any, ...] = 0, 0, number, None, {}
        assert answer(of_step, schema, *step) == answer(naive_steps, schema, None, *step)
    for worst in floats:
        for rewards in (np.array([1, worst, 2]), [1.0, worst, 2.0]):
            values: tuple[Any, ...] = numbers, numbers, rewards, None, {}
            made = answer(encoding.Encoder(schema).rows, 3, *values)
            assert made == answer(naive_steps, schema, 3, *values)
            if np.isfinite(worst) and dtype == "f8":
                assert made[0][-1] == np.array(rewards).tobytes()


VECTORS = relive.Schema(relive.Field(2, "f4"), relive.Field((), "i8"), reward=relive.Field((), "f4"))
ENCODER = encoding.Encoder(VECTORS)
SEEN = np.arange(8, dtype=np.float32).reshape(4, 2)


def one_step(stream: Any = 0, num_streams: int = 1, flags: Any = (False, False), following: Any = None) -> Any:
    """Return one step of a stream."""
    streams = (encoding.stream_number(num_streams, stream),)
    given: Any = SEEN[0], 1, 1.0, following, {}
    return encoding.steps(ENCODER, streams, bytes([encoding.event(*flags)]), given)


def extended(count: int = 3, num_streams: int | None = None, **told: Any) -> Any:
    """Return steps of that many streams, out of as many by default."""
    step: dict[str, Any] = {
        "streams": None, "reward": np.ones(count), "next_observation": SEEN[1 : count + 1], "terminated": None,
        "truncated": None,
    } | told  # fmt: skip
    num_streams = count if num_streams is None else num_streams
    streams = encoding.stream_numbers(num_streams, step["streams"])
    events = encoding.events(step["terminated"], step["truncated"], len(streams))
    encoding.require_round(num_streams, len(streams), step["reward"])
    given: Any = SEEN[:count], range(count), step["reward"], step["next_observation"], {}
    return encoding.steps(ENCODER, streams, events, given)


def run_of(first: int, last: int, count: int = 3) -> Any:
    """Return consecutive steps of stream 1."""
    given: Any = SEEN[: count + 1], range(count), np.ones(count), None, {}
    events = encoding.events_of_run(count, first, last)
    return encoding.steps(ENCODER, np.full(count, 1), events, given, is_run=True)


def test_an_encoded_step_names_its_streams() -> None:
    for stream, expected in ((None, (0,)), (0, (0,)), (np.int64(0), (0,))):
        steps = one_step(stream)
        assert steps.streams == expected
        assert type(steps.streams[0]) is int
        assert (len(steps.streams), steps.is_run, steps.schema) == (1, False, VECTORS)
    assert one_step(2, 3).streams == (2,)


def test_of_two_ends_the_termination_wins() -> None:
    ways: list[Any] = [True, 1, 1.0, np.True_, np.array(True), np.array([1]), np.uint8(1)]
    for yes, no in itertools.product(ways, (False, 0, np.False_, np.array([0.0]))):
        flags = ((no, no, 0), (yes, no, encoding.TERMINATED), (no, yes, encoding.TRUNCATED), (yes, yes, 1))
        for terminated, truncated, event in flags:
            assert encoding.event(terminated, truncated) == event
    terminated, truncated = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], bool).T
    for spelled in (np.asarray, np.ndarray.tolist, lambda array: array.astype(np.float32)):
        assert encoding.events(spelled(terminated), spelled(truncated), 4) == bytes([0, 1, 2, 1])


def test_every_nonzero_byte_of_a_flag_is_true() -> None:
    """As in a bool array that is viewed from other numbers."""
    flags = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    assert encoding.events(flags, None, 4) == encoding.events(flags, flags, 4) == bytes([0, 1, 1, 1])
    assert encoding.events(None, flags, 4) == bytes([0, 2, 2, 2])
    assert encoding.events(flags[:1], flags[:1], 1) == bytes(1)


def test_an_encoded_truncation_needs_its_next_observation() -> None:
    rule = "^next_observation must be given with a truncated step, got None$"
    with pytest.raises(errors.ArgumentError, match=rule):
        one_step(flags=(False, True))
    with pytest.raises(errors.ArgumentError, match=rule):
        extended(next_observation=None, truncated=[False, True, False])
    assert extended(next_observation=None, truncated=[True] * 3, terminated=[True] * 3).next_rows is None


def test_steps_go_to_all_streams_or_the_named_ones() -> None:
    assert extended().streams.tolist() == [0, 1, 2]
    assert extended().streams is extended().streams
    named = np.array([2, 0, 3])
    for streams in (named, [2, 0, 3], (2, 0, 3), named.astype(np.uint8)):
        steps = extended(streams=streams, num_streams=4)
        assert steps.streams.tolist() == [2, 0, 3]
        assert steps.streams.dtype == np.int64
        assert not np.shares_memory(steps.streams, named)
        assert (len(steps.streams), steps.is_run) == (3, False)
    assert len(extended(0, streams=[], num_streams=4).streams) == 0


def test_invalid_steps_are_refused_with_the_reason(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ({"streams": [0, 1, 4]}, "streams must be 0 to 3, got 4"),
        ({"streams": [0, -1, 4]}, "streams must be 0 to 3, got -1"),
        ({"streams": [0, 10**12, 1]}, "streams must be 0 to 3, got 1000000000000"),
        ({"streams": [1, 2, 1]}, "streams must be distinct, got [1, 2, 1]"),
        ({"streams": [0.5]}, "streams must be integers, got [0.5]"),
        ({"streams": [0, 1]}, "extend must have a step of each of 2 streams, got 3 rewards"),
        ({"reward": 1.0}, "reward must be a sequence, got 1.0"),
        ({"terminated": [False] * 3}, "terminated must be of shape (4,), got (3,)"),
        (
            {"truncated": [False, False, 2, False]},
            "truncated must be True, False, 0 or 1, got [False, False, 2, False]",
        ),
    ]
    for told, message in rows:
        with subtests.test(message=message), pytest.raises(errors.ArgumentError, match=f"^{re.escape(message)}$"):
            extended(num_streams=4, **told)


def test_a_run_has_one_stream_and_one_next_observation() -> None:
    steps = run_of(encoding.CUT, encoding.TRUNCATED)
    assert steps.streams.tolist() == [1, 1, 1]
    assert steps.streams.dtype == np.int64
    assert steps.events == bytes([encoding.CUT, 0, encoding.TRUNCATED])
    assert run_of(encoding.CUT, encoding.TERMINATED, 1).events == bytes([encoding.CUT | encoding.TERMINATED])
    assert (len(steps.streams), steps.is_run, steps.schema) == (3, True, VECTORS)
    assert steps.rows[0] == SEEN[:3].tobytes()
    assert steps.next_rows == [SEEN[3].tobytes()]


def test_the_first_values_define_a_missing_schema() -> None:
    one: Any = SEEN[0], 1, np.float32(1), None, {}
    each: Any = SEEN[:3], [0, 1, 2], np.ones(3, "f4"), None, {}
    run: Any = SEEN, [0, 1, 2], np.ones(3, "f4"), None, {}
    streams, events = np.arange(3), bytes(3)
    made = [encoding.steps(None, (0,), bytes(1), one), encoding.steps(None, streams, events, each)]
    made.append(encoding.steps(None, streams, events, run, is_run=True))
    assert all(steps.schema == VECTORS for steps in made)


def test_an_invalid_stream_is_refused() -> None:
    for stream in [2, -1, None, "0", True]:
        with pytest.raises(errors.ArgumentError, match="^stream must be"):
            encoding.stream_number(2, stream)


ROUND = relive.Schema(
    {"pose": relive.Field(3, "f4"), "image": relive.Field((65,), "u1"), "goal": relive.Field((), "f8")},
    relive.Field((), "i2"),
    extras={"flag": relive.Field((), "?")},
)
STEP: tuple[Any, ...] = (
    {"goal": 0.5, "pose": [1.0, 2.0, 3.0], "image": np.arange(65, dtype=np.uint8)}, 7, 0.5,
    {"pose": (4.0, 5.0, 6.0), "image": np.zeros(65, np.uint8), "goal": 1.5}, {"flag": True},
)  # fmt: skip


def test_every_field_has_bytes_of_its_own() -> None:
    encoder = encoding.Encoder(ROUND)
    rows, next_rows = encoder.row(*STEP)
    assert rows[:2] == [np.float64(0.5).tobytes(), bytes(range(65))]
    assert rows[2:] == [np.array([1, 2, 3], "f4").tobytes(), np.int16(7).tobytes(), np.float64(0.5).tobytes(), b"\1"]
    assert next_rows is not None
    columns = encoding.columns(encoder.schema, next_rows, 1)
    assert [columns[path].tolist() for path in ("observation/goal", "observation/pose")] == [[1.5], [[4, 5, 6]]]
    assert list(columns) == ["observation/goal", "observation/image", "observation/pose"]


def test_another_extra_is_refused_by_name() -> None:
    observation, action, reward, following, _ = STEP
    for extras in ({"picture": 1}, {"flag": True, "picture": 1}):
        with pytest.raises(relive.SchemaError, match="^unknown extra 'picture': the schema has extra 'flag'$"):
            of_step(ROUND, observation, action, reward, following, extras)
    with pytest.raises(relive.SchemaError, match="^extra 'flag' is missing: the schema has extra 'flag'$"):
        of_step(ROUND, observation, action, reward, following, {})


def test_a_copied_encoder_encodes_identically() -> None:
    rows: list[Any] = [copy.copy, copy.deepcopy, lambda encoder: pickle.loads(pickle.dumps(encoder))]
    for copied in rows:
        encoder = encoding.Encoder(ROUND)
        assert copied(encoder).row(*STEP) == encoder.row(*STEP)


def test_flags_of_another_shape_are_refused() -> None:
    for flags in (np.zeros(3, np.bool_), [False] * 3):
        with pytest.raises(errors.ArgumentError, match=r"^terminated must be of shape \(2,\), got \(3,\)"):
            encoding.events(flags, None, 2)
