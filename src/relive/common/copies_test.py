import array
import collections
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest

from relive.common import copies


class Point(NamedTuple):
    x: Any
    y: Any


class Batch(list[Any]):
    pass


class Frame(np.ndarray[Any, Any]):
    pass


@dataclasses.dataclass(frozen=True)
class Message:
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    messages: list[Any]
    image: Any = None


@dataclasses.dataclass
class Counter:
    count: int


@pytest.mark.parametrize(
    "value",
    [
        [1, [2]],
        {"a": 1, "b": {"c": 2}},
        collections.OrderedDict(a=1),
        {1, 2},
        bytearray(b"x"),
        collections.deque([1, 2], maxlen=2),
        collections.defaultdict(list, a=[1]),
        collections.Counter("aab"),
        Batch([1, 2]),
        array.array("d", [1.0]),
        ([1], 2),
        Point([1], 2),
        Turn([1]),
        Counter(1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_containers_come_back_equal_and_new(value: Any) -> None:
    copy = copies.copied(value)
    assert copy == value
    assert type(copy) is type(value)
    assert copy is not value


@pytest.mark.parametrize(
    "wrap",
    [
        lambda a: a,
        lambda a: [a],
        lambda a: (1, a),
        lambda a: (1, (2, [a])),
        lambda a: {"image": a},
        lambda a: collections.OrderedDict(image=a),
        lambda a: collections.deque([a], maxlen=4),
        lambda a: Point(1, a),
        lambda a: Batch([a]),
        lambda a: collections.defaultdict(list, a=[a]),
        lambda a: Turn([], a),
        lambda a: Turn([Turn([a])]),
        lambda a: {"nested": [({"image": a},)]},
    ],
)
def test_no_array_at_any_depth_is_shared(wrap: Any) -> None:
    array = np.zeros(3)
    copy = copies.copied(wrap(array))
    array[:] = 7
    assert "7." not in str(copy)


def test_inner_lists_are_not_shared() -> None:
    history: list[list[str]] = [["hello"]]
    copy = copies.copied((history,))
    history[0].append("world")
    history.append([])
    assert copy == ([["hello"]],)


def test_a_default_dict_keeps_its_default() -> None:
    twin = copies.copied(collections.defaultdict(list, a=[1]))
    twin["b"].append(2)
    assert twin == {"a": [1], "b": [2]}


def test_a_deque_keeps_its_length_limit() -> None:
    assert copies.copied(collections.deque([1], maxlen=3)).maxlen == 3


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "u1", "?", "M8[s]", "U3", [("a", "f4"), ("b", "u1")]])
def test_arrays_keep_their_dtype_and_values(dtype: Any) -> None:
    array = np.zeros((2, 3), dtype)
    copy = copies.copied(array)
    assert copy.dtype == array.dtype
    assert copy.shape == array.shape
    assert (copy == array).all()
    assert not np.shares_memory(copy, array)


def test_a_read_only_array_comes_back_writeable() -> None:
    array = np.zeros(3)
    array.flags.writeable = False
    assert copies.copied(array).flags.writeable


def test_subclasses_of_arrays_are_copied() -> None:
    frame = np.zeros(3).view(Frame)
    copy = copies.copied(frame)
    assert type(copy) is Frame
    assert not np.shares_memory(copy, frame)


@pytest.mark.parametrize(
    "value",
    [None, 1, 0.5, "text", b"bytes", True, np.float32(1), (1, "a"), Message("hi"), object(), frozenset({1})],
)
def test_what_needs_no_copy_is_kept_itself(value: Any) -> None:
    assert copies.copied(value) is value


def test_a_dataclass_is_copied_without_running_its_initialiser() -> None:
    @dataclasses.dataclass
    class Strict:
        value: list[int]
        runs: int = 0

        def __post_init__(self) -> None:
            self.runs += 1
            self.seen = True

    original = Strict([1])
    twin = copies.copied(original)
    original.value.append(2)
    original.runs = 7
    assert (twin.value, twin.runs, twin.seen) == ([1], 1, True)


def test_a_dataclass_itself_is_no_instance() -> None:
    assert copies.copied(Message) is Message


def test_a_tuple_of_ones_own_is_kept_by_reference() -> None:
    class Pair(tuple[Any, ...]):
        __slots__ = ()

    pair = Pair([1, 2])
    assert copies.copied(pair) is pair


def test_what_is_shared_stays_shared_and_cycles_stay_cycles() -> None:
    array = np.zeros(2)
    twin = copies.copied({"x": array, "y": [array]})
    assert twin["x"] is twin["y"][0]  # type: ignore[index]

    ring: list[Any] = [1]
    ring.append(ring)
    twin_ring = copies.copied(ring)
    assert twin_ring is not ring
    assert twin_ring[1] is twin_ring

    @dataclasses.dataclass
    class Node:
        neighbours: list[Any] = dataclasses.field(default_factory=list)

    first, second = Node(), Node()
    first.neighbours.append(second)
    second.neighbours.append(first)
    twin_node = copies.copied(first)
    assert twin_node is not first
    assert twin_node.neighbours[0].neighbours[0] is twin_node

    mapping: dict[str, Any] = collections.OrderedDict()
    mapping["self"] = mapping
    assert copies.copied(mapping)["self"] is not mapping


def test_many_references_to_one_object_cost_one_copy() -> None:
    value: list[Any] = [1]
    for _ in range(60):
        value = [value, value]
    twin = copies.copied(value)
    assert twin[0] is twin[1]


def test_a_field_that_is_not_set_stays_unset() -> None:
    @dataclasses.dataclass
    class Late:
        value: list[int]
        later: int = dataclasses.field(init=False)

    twin = copies.copied(Late([1]))
    assert twin.value == [1]
    assert not hasattr(twin, "later")


def test_arrays_keep_their_order_in_memory() -> None:
    assert copies.copied(np.zeros((3, 4), order="F")).flags.f_contiguous


def test_a_dict_that_holds_itself_stays_a_cycle() -> None:
    mapping: dict[str, Any] = {}
    mapping["self"] = mapping
    twin = copies.copied(mapping)
    assert twin is not mapping
    assert twin["self"] is twin


def test_what_a_dataclass_holds_beside_its_fields_is_copied_too() -> None:
    counter = Counter(1)
    counter.history = [1]  # type: ignore[attr-defined]
    twin = copies.copied(counter)
    counter.history.append(2)  # type: ignore[attr-defined]
    assert twin.history == [1]  # type: ignore[attr-defined]
