from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from relive import errors
from relive.common import trees

KEYS = st.text(st.characters(exclude_characters="/"), min_size=1, max_size=3)
TREES = st.recursive(st.integers(), lambda children: st.dictionaries(KEYS, children, min_size=1, max_size=3))


@hypothesis.given(tree=TREES, other=TREES)
def test_a_tree_comes_back_from_among_others(tree: Any, other: Any) -> None:
    columns = trees.flat("action", other) | trees.flat("observation", tree) | trees.flat("observations", other)
    assert trees.nested("observation", columns) == tree


@hypothesis.given(tree=TREES)
def test_every_leaf_has_its_path(tree: Any) -> None:
    for path, leaf in trees.flat("root", tree).items():
        branch = {"root": tree}
        for key in path.split("/"):
            branch = branch[key]
        assert branch == leaf


def test_leaves_keep_their_order() -> None:
    assert list(trees.flat("x", {"b": {"z": 1, "y": 2}, "a": 3})) == ["x/b/z", "x/b/y", "x/a"]
    assert list(trees.flat("x", {"b": 1, "a": 2}).items()) == [("x/b", 1), ("x/a", 2)]


def test_anything_but_a_mapping_is_a_leaf() -> None:
    leaf = [{"a": 1}]
    assert trees.flat("x", leaf)["x"] is leaf
    assert trees.nested("x", {"x": leaf, "xy": [], "xy/z": []}) is leaf


def test_an_empty_set_of_columns_makes_an_empty_tree() -> None:
    assert trees.nested("extras", {"observation": 1, "extra": 2}) == {}


def test_a_tree_shares_no_mapping_with_the_caller() -> None:
    columns = {"x/a/b": 1}
    tree: Any = trees.nested("x", columns)
    tree["a"]["c"] = 2
    assert trees.nested("x", columns) == {"a": {"b": 1}}


@pytest.mark.parametrize(("key", "shown"), [(3, "3"), ("", "''"), ("a/b", "'a/b'"), (None, "None"), (b"a", "b'a'")])
def test_keys_are_checked_at_every_level(key: Any, shown: str) -> None:
    with pytest.raises(errors.ArgumentError, match=rf"^keys of x must be non-empty strings without '/', got {shown}$"):
        trees.flat("x", {key: 1})
    with pytest.raises(
        errors.ArgumentError, match=rf"^keys of x/a must be non-empty strings without '/', got {shown}$"
    ):
        trees.flat("x", {"a": {"b": 1, key: 2}})


def test_an_empty_mapping_is_refused() -> None:
    with pytest.raises(errors.ArgumentError, match=r"^x must have at least one key, got \{\}$"):
        trees.flat("x", {})
    with pytest.raises(errors.ArgumentError, match=r"^x/a must have at least one key, got \{\}$"):
        trees.flat("x", {"b": 1, "a": {}})


def test_rows_are_copies_and_can_be_put_back() -> None:
    tree: Any = {"a": np.arange(4), "b": {"c": np.arange(8).reshape(4, 2)}}
    rows: Any = trees.rows(tree, np.array([3, 1]))
    assert rows["a"].tolist() == [3, 1]
    assert rows["b"]["c"].tolist() == [[6, 7], [2, 3]]
    rows["a"][...] = 0
    assert tree["a"].tolist() == [0, 1, 2, 3]
    trees.put(tree, np.array([0, 2]), rows)
    assert tree["a"].tolist() == [0, 1, 0, 3]
    assert tree["b"]["c"].tolist() == [[6, 7], [2, 3], [2, 3], [6, 7]]
    assert trees.rows([5, 6], 1) == 6
