"""Tests of spaces made of fields: converting a schema to spaces and back returns the schema."""

from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

pytest.importorskip("gymnasium")

import gymnasium
from gymnasium import spaces

import relive
from relive import errors
from relive.integrations import gymnasium as relive_gymnasium
from relive.integrations.gymnasium import spaces as space_trees

FIELDS = st.builds(
    relive.Field,
    st.lists(st.integers(1, 3), max_size=3),
    st.sampled_from(["bool", "uint8", "int8", "uint64", "int64", "float16", "float32", "float64", ">f4", "<i2"]),
)
KEYS = st.text("ab01", min_size=1, max_size=2)
TREES = st.recursive(FIELDS, lambda parts: st.dictionaries(KEYS, parts, min_size=1, max_size=3), max_leaves=5)


@hypothesis.given(TREES)
def test_a_space_has_the_fields_that_it_was_made_of(tree: Any) -> None:
    space = space_trees.space_of("action", tree)
    assert space_trees.fields_of("action", space) == tree
    space_trees.check_space("action", space, tree)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "uint64", "float32"])
def test_a_space_has_every_value_of_its_dtype(dtype: str) -> None:
    kind: Any = np.dtype(dtype)
    values: Any = {"b": [False, True], "f": [-np.inf, 0, np.inf]}.get(kind.kind)
    for value in values or [np.iinfo(kind).min, np.iinfo(kind).max]:
        assert space_trees.space_of("action", relive.Field(2, dtype)).contains(np.full(2, value, dtype))


def test_a_dtype_without_a_space_is_named() -> None:
    tree = {"a": {"b": relive.Field((), "complex64")}}
    with pytest.raises(
        errors.ArgumentError, match=r"^action/a/b must be of bools, integers or floats for a space, got complex64$"
    ):
        space_trees.space_of("action", tree)


def test_a_space_with_other_fields_is_refused() -> None:
    space = spaces.Dict(x=spaces.Box(0, 1, (2,), np.float32))
    stored = relive.Field(2, "float32")
    space_trees.check_space("action_space", space, {"x": stored})
    for tree, message in (
        ({"x": stored, "y": stored}, r"^action_space/y must be of Field\(.*\), as what is stored, got none$"),
        ({"y": stored}, r"^action_space/y must be of Field\(.*\), as what is stored, got none$"),
        (stored, r"^action_space must be of Field\(\(2,\), 'float32'\), as what is stored, got none$"),
        ({"x": relive.Field(3, "float32")}, r"^action_space/x must be of Field\(\(3,\), .*, got Field\(\(2,\), "),
        ({"x": relive.Field(2, "float64")}, r"^action_space/x must be of Field\(\(2,\), 'float64'\), as "),
    ):
        with pytest.raises(errors.ArgumentError, match=message):
            space_trees.check_space("action_space", space, tree)
    wide = spaces.Dict(x=space["x"], y=space["x"])
    with pytest.raises(errors.ArgumentError, match="^action_space/y must be of no field, as what is stored, got Field"):
        space_trees.check_space("action_space", wide, {"x": stored})
    message = r"^action/y in the schema of the buffer must be left out, got \(2,\): from_env makes its schema$"
    with pytest.raises(errors.ArgumentError, match=message):
        space_trees.check_shapes("action", space, {"x": stored, "y": stored})


def test_values_are_those_of_the_space() -> None:
    space = spaces.Tuple((spaces.Discrete(3), spaces.Dict(x=spaces.Tuple((spaces.Discrete(2),)))))
    value = (2, {"x": (1,)})
    assert space_trees.value_of(space, space_trees.tree_of(space, value)) == value


BOX = spaces.Box(-(2**31), 2**31 - 1, (3,), np.int64)
NESTED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (2, 2), np.uint8),
        "hand": spaces.Tuple((spaces.Discrete(3, start=-1), spaces.MultiBinary((2, 2)))),
        "keys": spaces.MultiDiscrete(np.array([[3, 4], [5, 6]])),
    }
)
NESTED_FIELDS = {
    "hand": {"0": relive.Field((), np.int64), "1": relive.Field((2, 2), np.int8)},
    "image": relive.Field((2, 2), np.uint8),
    "keys": relive.Field((2, 2), np.int64),
}


def test_an_environment_or_its_id_has_a_schema() -> None:
    closed = []

    class Closing(gymnasium.Env[Any, Any]):
        observation_space: Any = BOX
        action_space: Any = spaces.Discrete(2)

        def close(self) -> None:
            closed.append(self)

    made: Any = Closing
    gymnasium.register("Closing-v0", made)
    expected = relive.Schema(relive.Field(3, np.int64), relive.Field((), np.int64), reward=relive.Field((), "float32"))
    try:
        assert relive_gymnasium.from_env("Closing-v0") == expected
        assert len(closed) == 1
        text: Any = spaces.Text(3)
        Closing.action_space = text
        with pytest.raises(errors.ArgumentError, match="^action_space must be made of "):
            relive_gymnasium.from_env("Closing-v0")
        assert len(closed) == 2
    finally:
        del gymnasium.registry["Closing-v0"]
    env = gymnasium.make("CartPole-v1")
    assert relive_gymnasium.from_env("CartPole-v1") == relive_gymnasium.from_env(env)
    assert relive_gymnasium.from_env(gymnasium.make_vec("CartPole-v1", 2)) == relive_gymnasium.from_env(env)
    schema = relive_gymnasium.from_env("CartPole-v1", reward_dtype="float64", extras={"logp": spaces.Discrete(2)})
    assert schema.reward == relive.Field((), np.float64)
    assert schema.extras["logp"] == relive.Field((), np.int64)


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (
            "CartPol-v1",
            "^env must be an id that Gymnasium has registered, got 'CartPol-v1': Environment `CartPol` does",
        ),
        (
            "no_such_module:X-v0",
            "^env must be an id that Gymnasium has registered, got 'no_such_module:X-v0': .*no_such_module",
        ),
        (3, "^env must be an environment of Gymnasium, or an id of one, got 3$"),
        (None, "^env must be an environment of Gymnasium, or an id of one, got None$"),
    ],
)
def test_a_schema_of_something_else_than_an_environment_fails(env: Any, said: str) -> None:
    with pytest.raises(errors.ArgumentError, match=said) as raised:
        relive_gymnasium.from_env(env)
    assert "\n" not in str(raised.value)


def test_every_kind_of_space_becomes_fields() -> None:
    schema = relive_gymnasium.schema_from_spaces(
        NESTED,
        spaces.Tuple((spaces.Box(-1, 1, (), np.float32), spaces.Discrete(2))),
        reward_dtype="float32",
        extras={"goal": spaces.MultiBinary(3), "logp": relive.Field((), "float32")},
    )
    assert schema.observation == NESTED_FIELDS
    assert schema.action == {"0": relive.Field((), "float32"), "1": relive.Field((), np.int64)}
    assert schema.reward == relive.Field((), "float32")
    assert schema.extras == {"goal": relive.Field(3, np.int8), "logp": relive.Field((), "float32")}


@pytest.mark.parametrize(
    "space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2)), spaces.Graph(BOX, None), spaces.OneOf([BOX, BOX])]
)
def test_another_space_is_refused_by_name(space: Any) -> None:
    rule = "must be made of Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple spaces"
    name = type(space).__name__
    with pytest.raises(errors.ArgumentError, match=f"^observation_space {rule}, got {name}$"):
        relive_gymnasium.schema_from_spaces(space, BOX)
    with pytest.raises(errors.ArgumentError, match=f"^action_space/a/1 {rule}, got {name}$"):
        relive_gymnasium.schema_from_spaces(BOX, spaces.Dict({"a": spaces.Tuple((BOX, space))}))
    with pytest.raises(errors.ArgumentError, match=f"^goal {rule}, got {name}$"):
        relive_gymnasium.schema_from_spaces(BOX, BOX, extras={"goal": space})
    wrong: Any = 3
    with pytest.raises(errors.ArgumentError, match=f"^action_space {rule}, got 3$"):
        relive_gymnasium.schema_from_spaces(BOX, wrong)


@pytest.mark.parametrize("env", ["CartPole-v1", gymnasium.make_vec("CartPole-v1", num_envs=2)])
def test_a_schema_of_an_environment_checks_if_asked(env: Any) -> None:
    schema = relive_gymnasium.from_env(env, check_finite=True)
    assert (schema.check_finite, schema.fields) == (True, relive_gymnasium.from_env(env).fields)
    assert not relive_gymnasium.from_env(env).check_finite


def test_a_schema_accepts_the_tree_of_a_space() -> None:
    value = NESTED.sample()
    tree = space_trees.tree_of(NESTED, value)
    assert tree["hand"]["0"] is value["hand"][0]
    assert space_trees.tree_of(NESTED, {"other": 1}) == {"other": 1}
    assert space_trees.tree_of(NESTED, 3) == 3
    assert space_trees.tree_of(NESTED["hand"], (1,)) == (1,)
