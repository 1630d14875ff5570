import array
import collections
from collections.abc import Iterator
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import math
import pathlib
from typing import Any, NamedTuple
import uuid

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
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


class Reply(Counter, enum.Enum):
    """A member of an enum that is a dataclass too."""

    YES = ([1],)  # pyright: ignore[reportArgumentType]

    def clone(self) -> None:
        raise NotImplementedError


class Tensor:
    """The methods of a torch tensor that a copy needs."""

    def __init__(self, values: Any, *, requires_grad: bool = False) -> None:
        self._values = np.array(values, np.float64)
        self.requires_grad = requires_grad

    def __repr__(self) -> str:
        return f"Tensor({self.tolist()})"

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    def add_(self, number: float) -> None:
        self._values += number

    def detach(self) -> "Tensor":
        """Return a view without a gradient."""
        view = Tensor(0.0)
        view._values = self._values
        return view

    def clone(self) -> "Tensor":
        return Tensor(self._values, requires_grad=self.requires_grad)

    def item(self) -> Any:
        return self._values.item()

    def tolist(self) -> Any:
        return self._values.tolist()


class Board:
    """An object of a class without any copy protocol."""

    def __init__(self, moves: Any = ()) -> None:
        self.moves = list(moves)

    def copied(self) -> "Board":
        return type(self)(self.moves)


class LargeBoard(Board):
    pass


@pytest.fixture
def copiers() -> Iterator[copies.Copiers]:
    """The public registry, which is empty again after the test."""
    yield relive.copiers
    relive.copiers.clear()


@pytest.mark.parametrize(
    "value",
    [
        [1, [2]], {"a": 1, "b": {"c": 2}}, collections.OrderedDict(a=1), {1, 2}, bytearray(b"x"),
        collections.deque([1, 2], maxlen=2), collections.defaultdict(list, a=[1]), collections.Counter("aab"),
        Batch([1, 2]), array.array("d", [1.0]), ([1], 2), Point([1], 2), Turn([1]), Counter(1),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_containers_come_back_equal_and_new(value: Any) -> None:
    copy = copies.copied(value)
    assert copy == value
    assert type(copy) is type(value)
    assert copy is not value


@pytest.mark.parametrize(
    "wrap",
    [
        lambda a: a, lambda a: [a], lambda a: (1, a), lambda a: (1, (2, [a])), lambda a: {"image": a},
        lambda a: collections.OrderedDict(image=a), lambda a: collections.deque([a], maxlen=4), lambda a: Point(1, a),
        lambda a: Batch([a]), lambda a: collections.defaultdict(list, a=[a]), lambda a: Turn([], a),
        lambda a: Turn([Turn([a])]), lambda a: {"nested": [({"image": a},)]},
    ],
)  # fmt: skip
def test_no_array_at_any_depth_is_shared(wrap: Any) -> None:
    array = np.zeros(3)
    copy = copies.copied(wrap(array))
    array[:] = 7
    assert "7." not in str(copy)


def test_containers_and_arrays_keep_their_settings() -> None:
    twin = copies.copied(collections.defaultdict(list, a=[1]))
    twin["b"].append(2)
    assert twin == {"a": [1], "b": [2]}
    assert copies.copied(collections.deque([1], maxlen=3)).maxlen == 3
    array = np.zeros((3, 4), order="F")
    array.flags.writeable = False
    assert copies.copied(array).flags.f_contiguous
    assert copies.copied(array).flags.writeable
    frame = np.zeros(3).view(Frame)
    assert type(copies.copied(frame)) is Frame
    assert not np.shares_memory(copies.copied(frame), frame)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i8", "u1", "?", "M8[s]", "U3", [("a", "f4"), ("b", "u1")]])
def test_arrays_keep_their_dtype_and_values(dtype: Any) -> None:
    array = np.zeros((2, 3), dtype)
    copy = copies.copied(array)
    assert copy.dtype == array.dtype
    assert copy.shape == array.shape
    assert (copy == array).all()
    assert not np.shares_memory(copy, array)


@pytest.mark.parametrize(
    "value",
    [
        *(
            None, True, 1, 0.5, 1j, "text", b"bytes", frozenset({1}), range(3), ..., object(), Reply, Reply.YES,
            math.sin,
        ),
        *(np.float32(1), np.datetime64("2026-01-02"), np.str_("text"), np.bool_(True), np.float32),
        *(datetime.datetime(2026, 1, 2), datetime.timedelta(1), pathlib.PurePath("x"), uuid.UUID(int=1)),
        *(decimal.Decimal("0.1"), fractions.Fraction(1, 3)),
        *((), (1, "a"), ((1, 2), (3, (4, "b"))), Point(1, 2), Point((1, 2), Point("a", ()))),
        *(Message("hi"), (Message("hi"), 1), Turn((Message("hi"),), (1, 2))),  # type: ignore[arg-type]
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_immutable_values_are_not_copied(value: Any) -> None:
    assert copies.copied(value) is value
    assert copies.copied([value, {"key": value}])[0] is value
    assert copies.copied([value, [1]])[0] is value
    assert copies.copied({"key": (value, [1])})["key"][0] is value


VALUES = st.recursive(
    st.integers() | st.text() | st.binary().map(bytearray) | st.frozensets(st.integers(), max_size=1),
    lambda values: (
        st.lists(values, max_size=4)
        | st.lists(values, max_size=4).map(tuple)
        | st.lists(values, max_size=4).map(collections.deque)
        | st.builds(Point, values, values)
        | st.builds(Turn, values, values)
        | st.builds(Counter, values)
        | st.dictionaries(st.integers(), values, max_size=4)
    ),
    max_leaves=12,
)


@hypothesis.given(value=VALUES)
def test_a_copy_equals_a_deep_copy(value: Any) -> None:
    """It shares what `copy.deepcopy` shares, and frozen dataclasses that hold nothing mutable."""
    twin, deep = copies.copied(value), copy.deepcopy(value)
    assert repr(twin) == repr(deep) == repr(value)
    assert not mutable_ids(twin) & mutable_ids(value)
    assert (twin is value) == (not mutable_ids(value))


def mutable_ids(value: Any) -> set[int]:
    """Return the ids of everything in a value that can change."""
    own = {id(value)} if isinstance(value, list | dict | collections.deque | bytearray | Counter) else set()
    parts: Any = ()
    if isinstance(value, list | tuple | collections.deque):
        parts = value
    elif isinstance(value, dict):
        parts = value.values()
    elif dataclasses.is_dataclass(value):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    return own.union(*map(mutable_ids, parts))


def test_a_buffer_returns_the_immutable_values_it_was_given() -> None:
    buffer = relive.EpisodeReplayBuffer[Any, Any](seed=0)
    episode_id = buffer.start_episode_nowait("agent")
    message, answer, board = Turn((Message("hi"),)), ((1, 2), (3, 4)), [[1], (1, (2, 3))]  # type: ignore[arg-type]
    buffer.append_observation_action_reward_nowait(episode_id, message, answer, 1.0)
    buffer.end_episode_nowait(episode_id, board)
    [sample] = buffer.sample_n_step_nowait(1, 1, 0.9)
    [episode] = buffer.next_episodes_nowait(1)
    assert sample.observation is episode.observations[0] is message
    assert sample.action is episode.actions[0] is answer
    assert sample.next_observation[1] is episode.observations[1][1] is board[1]
    assert sample.next_observation[0] == episode.observations[1][0] == board[0]
    assert len({id(sample.next_observation[0]), id(episode.observations[1][0]), id(board[0])}) == 3


def test_a_scalar_of_fields_does_not_change_with_its_array() -> None:
    rows = np.zeros(2, [("x", "i4"), ("y", "f8")])
    twin = copies.copied({"row": rows[0]})["row"]
    rows["x"] = 7
    assert (type(twin), twin.dtype, twin["x"]) == (np.void, rows.dtype, 0)


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


def test_a_subclass_of_tuple_is_kept_by_reference() -> None:
    class Pair(tuple[Any, ...]):
        __slots__ = ()

    pair = Pair([1, 2])
    assert copies.copied(pair) is pair


def test_shared_references_and_cycles_are_preserved() -> None:
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

    pair: tuple[list[Any]] = ([],)
    pair[0].append(pair)
    twin_pair = copies.copied(pair)
    assert twin_pair is not pair
    assert twin_pair[0][0] is twin_pair
    [twin_pair] = copies.copied([pair])
    assert twin_pair[0][0] is twin_pair

    turn = Turn([])
    turn.messages.append(turn)
    twin_turn = copies.copied([turn])[0]
    assert twin_turn is not turn
    assert twin_turn.messages[0] is twin_turn

    for mapping in (dict[str, Any](), collections.OrderedDict[str, Any]()):
        mapping["self"] = mapping
        twin = copies.copied(mapping)
        assert twin is not mapping
        assert twin["self"] is not mapping
        assert twin["self"] is twin or type(twin) is not dict


def test_many_references_to_one_object_cost_one_copy() -> None:
    value: list[Any] = [1]
    for _ in range(60):
        value = [value, value]
    twin = copies.copied(value)
    assert twin[0] is twin[1]


def test_an_unset_field_stays_unset() -> None:
    """Attributes beside the fields are copied."""

    @dataclasses.dataclass
    class Late:
        value: list[int]
        later: int = dataclasses.field(init=False)

    late: Any = Late([1])
    late.history = [1]
    twin = copies.copied(late)
    late.history.append(2)
    assert (twin.value, twin.history) == ([1], [1])
    assert not hasattr(twin, "later")


def test_objects_with_clone_and_detach_are_cloned_and_detached() -> None:
    tensor = Tensor([1.0], requires_grad=True)
    twin = copies.copied({"image": (tensor, [tensor])})
    tensor.add_(1)
    image: Any = twin["image"]
    assert (image[0].tolist(), image[0].requires_grad) == ([1.0], False)
    assert image[0] is image[1][0]


def test_an_object_with_clone_but_no_detach_is_cloned() -> None:
    class State:
        def clone(self) -> "State":
            return State()

    state = State()
    assert type(copies.copied(state)) is State
    assert copies.copied(state) is not state
    assert copies.copied(State) is State


def test_an_attribute_named_clone_does_not_make_a_copy() -> None:
    class Settings:
        clone = True

    settings = Settings()
    assert copies.copied(settings) is settings


def test_a_dataclass_with_a_shallow_clone_is_copied_deeply() -> None:
    @dataclasses.dataclass
    class Observation:
        image: Any

        def clone(self) -> "Observation":
            return dataclasses.replace(self)

    observation = Observation(np.zeros(1))
    assert copies.copied(observation).image is not observation.image


def test_torch_tensors_are_stored_as_detached_clones() -> None:
    torch = pytest.importorskip("torch")
    weights = torch.ones(2, requires_grad=True)
    for tensor in (weights, weights * 3, torch.nn.Parameter(torch.ones(2)), torch.ones(2, dtype=torch.bfloat16)):
        twin = copies.copied([tensor])[0]
        assert torch.equal(twin, tensor)
        assert (twin.dtype, twin.requires_grad, twin.grad_fn) == (tensor.dtype, False, None)
        assert twin.data_ptr() != tensor.data_ptr()


def test_a_registered_copier_is_used_for_subclasses_too(copiers: copies.Copiers) -> None:
    boards = Board([1]), LargeBoard([2])
    assert copies.copied(boards) is boards
    copiers |= {Board: Board.copied}
    twins = copies.copied(boards)
    for board in boards:
        board.moves.append(3)
    assert [(type(twin), twin.moves) for twin in twins] == [(Board, [1]), (LargeBoard, [2])]
    copiers[LargeBoard] = lambda board: LargeBoard([0])
    assert [twin.moves for twin in copies.copied(boards)] == [[1, 3], [0]]
    del copiers[LargeBoard]
    assert [twin.moves for twin in copies.copied(boards)] == [[1, 3], [2, 3]]
    del copiers[Board]
    assert copies.copied(boards) is boards


def test_a_registered_copier_replaces_the_built_in_one(copiers: copies.Copiers) -> None:
    counter, batch, tensor = Counter(1), Batch([[1]]), Tensor([1.0])
    copiers.update({Counter: lambda each: each, list: list, Tensor: lambda each: each})
    assert copies.copied([counter, tensor])[0] is counter
    assert copies.copied(tensor) is tensor
    assert type(copies.copied(batch)) is list
    assert copies.copied(batch)[0] is batch[0]


def test_the_registry_of_copiers_is_a_mapping_with_a_repr(copiers: copies.Copiers) -> None:
    assert repr(copiers) == "<copiers of no class>"
    copiers[Board] = Board.copied
    assert (len(copiers), list(copiers), copiers[Board]) == (1, [Board], Board.copied)
    assert repr(copiers) == "<copiers of Board>"
    with pytest.raises(KeyError):
        _ = copiers[LargeBoard]
    with pytest.raises(KeyError):
        del copiers[LargeBoard]


def test_a_copier_needs_a_class_and_a_callable(copiers: copies.Copiers) -> None:
    with pytest.raises(relive.ArgumentTypeError, match=r"^a key of copiers must be a class, got 'Board'$"):
        copiers |= {"Board": len}
    with pytest.raises(relive.ArgumentTypeError, match=r"^the copier of Board must be callable, got 3$"):
        copiers[Board] = 3  # type: ignore[assignment]
    assert not copiers
