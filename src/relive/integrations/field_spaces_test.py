"""Tests of spaces made of fields: what `spaces` makes of them is what they were made of."""

from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

pytest.importorskip("gymnasium")

from gymnasium import spaces

import relive
from relive import errors
from relive.integrations import field_spaces
from relive.integrations import spaces as space_trees

FIELDS = st.builds(
    relive.Field,
    st.lists(st.integers(1, 3), max_size=3),
    st.sampled_from(["bool", "uint8", "int8", "uint64", "int64", "float16", "float32", "float64", ">f4", "<i2"]),
)
KEYS = st.text("ab01", min_size=1, max_size=2)
TREES = st.recursive(FIELDS, lambda parts: st.dictionaries(KEYS, parts, min_size=1, max_size=3), max_leaves=5)


@hypothesis.given(TREES)
def test_a_space_has_the_fields_that_it_was_made_of(tree: Any) -> None:
    """There and back."""
    space = field_spaces.space_of("action", tree)
    assert space_trees.fields_of("action", space) == tree
    field_spaces.check_space("action", space, tree)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "uint64", "float32"])
def test_a_space_has_every_value_of_its_dtype(dtype: str) -> None:
    """The least and the greatest among them."""
    kind: Any = np.dtype(dtype)
    values: Any = {"b": [False, True], "f": [-np.inf, 0, np.inf]}.get(kind.kind)
    for value in values or [np.iinfo(kind).min, np.iinfo(kind).max]:
        assert field_spaces.space_of("action", relive.Field(2, dtype)).contains(np.full(2, value, dtype))


def test_a_dtype_without_a_space_is_named() -> None:
    """With its path."""
    tree = {"a": {"b": relive.Field((), "complex64")}}
    with pytest.raises(
        errors.ArgumentError, match=r"^action/a/b must be of bools, integers or floats for a space, got complex64$"
    ):
        field_spaces.space_of("action", tree)


def test_a_space_with_other_fields_is_refused() -> None:
    """One that lacks a field, or has one more, or of another shape or dtype."""
    space = spaces.Dict(x=spaces.Box(0, 1, (2,), np.float32))
    stored = relive.Field(2, "float32")
    field_spaces.check_space("action_space", space, {"x": stored})
    for tree, message in (
        (
            {"x": stored, "y": stored},
            r"^action_space must be of keys \['x', 'y'\], as what is stored, got keys \['x'\]$",
        ),
        ({"y": stored}, r"^action_space must be of keys \['y'\], as what is stored, got keys \['x'\]$"),
        (stored, r"^action_space must be of Field\(\(2,\), 'float32'\), as what is stored, got keys \['x'\]$"),
        (
            {"x": {"b": stored, "a": stored}},
            r"^action_space/x must be of keys \['a', 'b'\], as what is stored, got Field\(\(2,\), 'float32'\)$",
        ),
        ({"x": relive.Field(3, "float32")}, r"^action_space/x must be of Field\(\(3,\), .*, got Field\(\(2,\), "),
        ({"x": relive.Field(2, "float64")}, r"^action_space/x must be of Field\(\(2,\), 'float64'\), as "),
    ):
        with pytest.raises(errors.ArgumentError, match=message):
            field_spaces.check_space("action_space", space, tree)


def test_values_are_those_of_the_space() -> None:
    """Of what `tree_of` has made of them."""
    space = spaces.Tuple((spaces.Discrete(3), spaces.Dict(x=spaces.Tuple((spaces.Discrete(2),)))))
    value = (2, {"x": (1,)})
    assert field_spaces.value_of(space, space_trees.tree_of(space, value)) == value
