"""The observations behind the steps against a naive twin: one a stream, and one an ended episode, in dicts."""

import copy
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors
from relive.kernels import episode_table
from relive.kernels import history
from relive.kernels import timeline as timeline_lib

X, Y, IMAGE = relive.Field(2, "f4"), relive.Field((), "i8"), relive.Field((3, 3), "u1")
BLOCKS = [{"x": X, "y": Y}, {"image": IMAGE}]


def rows(numbers: list[int]) -> dict[str, Any]:
    """Return columns of rows that say which they are."""
    values = np.array(numbers, np.int64)
    x = np.stack([values, -values], 1).astype(np.float32)
    return {"x": x, "y": values, "image": (values[:, None, None] + np.arange(9).reshape(3, 3)).astype(np.uint8)}


def block_bytes(numbers: list[int]) -> list[bytes]:
    """Return the bytes of each block of those rows."""
    columns = rows(numbers)
    side_by_side = [columns["x"][k].tobytes() + columns["y"][k].tobytes() for k in range(len(numbers))]
    return [b"".join(side_by_side), columns["image"].tobytes()]


@hypothesis.given(st.integers(1, 4), st.integers(0, 2**32))
def test_what_came_last_equals_the_naive_answer(streams: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    capacity = 40
    timeline = timeline_lib.Timeline(capacity, streams)
    tails: Any = history.FinalObservations(BLOCKS, timeline)
    of_stream: dict[int, int] = {}
    of_ended: dict[int, int] = {}
    for _ in range(12):
        timeline.evict(max(len(timeline) + streams - capacity, 0))
        chosen = np.sort(rng.permutation(streams)[: rng.integers(1, streams + 1)])
        cuts = rng.random(len(chosen)) < 0.2
        for stream in chosen[cuts].tolist():
            (handle,) = timeline.open_handles(np.array([stream])).tolist()
            if handle >= 0:
                of_ended[handle] = of_stream.get(stream, 0)
        tails.keep(chosen[cuts])
        knows_next = bool(rng.random() < 0.7)
        terminated, truncated = rng.random((2, len(chosen))) < 0.2
        truncated &= knows_next
        change = timeline.append(chosen, cuts=cuts, knows_next=knows_next, terminated=terminated, truncated=truncated)
        numbers = rng.integers(1, 200, len(chosen)).tolist()
        if knows_next:
            of_stream |= dict(zip(chosen.tolist(), numbers, strict=True))
            first = int(chosen[0])
            are_side_by_side = chosen.tolist() == list(range(first, first + len(chosen)))
            if are_side_by_side and rng.random() < 0.5:
                tails.announce_one(first, block_bytes(numbers))
            else:
                tails.announce(timeline.chosen(chosen), rows(numbers))
        else:
            for stream in chosen.tolist():
                of_stream.pop(stream, None)
        for stream, handle, has_ended in zip(
            chosen.tolist(), change.handles.tolist(), (terminated | truncated).tolist(), strict=True
        ):
            if has_ended and knows_next:
                of_ended[handle] = of_stream[stream]
                if rng.random() < 0.5:
                    tails.put_open(stream, handle)
                else:
                    tails.put(np.array([handle]), rows([of_stream[stream]]))
        if rng.random() < 0.2:
            tails = copy.deepcopy(tails)
            tails._timeline = timeline
        tails.check()
        episodes = timeline.episodes
        handles = rng.permutation(episodes.handles())
        for asked in (handles, handles[episodes.end[handles] != episode_table.OPEN], handles[:0]):
            expected = []
            for handle in asked.tolist():
                is_open = episodes.end[handle] == episode_table.OPEN
                number = of_stream[int(episodes.stream[handle])] if is_open and episodes.has_tail[handle] else None
                expected.append(of_ended.get(handle) if not is_open else number)
            is_known = episodes.has_tail[asked]
            answered = tails.read(asked)
            known = rows([number or 0 for number in expected])
            for path in ("x", "y", "image"):
                assert answered[path].dtype == known[path].dtype
                assert answered[path][is_known].tolist() == known[path][is_known].tolist()
                is_ended = ~is_known & (episodes.end[asked] != episode_table.OPEN)
                assert not answered[path][is_ended].any(), "zeros"


def test_answers_are_copies() -> None:
    timeline = timeline_lib.Timeline(4, 1)
    tails = history.FinalObservations(BLOCKS, timeline)
    never = np.array([False])
    timeline.append(np.array([0]), cuts=None, knows_next=True, terminated=never, truncated=never)
    tails.announce_one(0, block_bytes([3]))
    handle = timeline.open_handles(np.array([0]))
    for _ in range(2):
        answered = tails.read(handle)
        assert answered["y"].tolist() == [3]
        answered["y"][:] = 9
    timeline.append(np.array([0]), cuts=None, knows_next=True, terminated=~never, truncated=never)
    tails.put_open(0, int(handle[0]))
    for _ in range(2):
        answered = tails.read(handle)
        assert answered["y"].tolist() == [3]
        answered["y"][:] = 9


NAN = np.float32(np.nan)
OTHER_NAN = np.array([0xFFC00001], np.uint32).view(np.float32)[0]
PAIR = np.dtype([("a", "f4"), ("b", "i2")])


@pytest.mark.parametrize(
    ("dtype", "here", "there", "is_other"),
    [
        ("f4", 1.0, 1.0, False),
        ("f4", 1.0, 2.0, True),
        ("f4", 0.0, -0.0, False),
        ("f4", NAN, NAN, False),
        ("f4", NAN, OTHER_NAN, False),
        ("f4", NAN, 0.0, True),
        ("c8", complex(0, np.nan), complex(np.nan, 1), False),
        ("c8", 1j, 2j, True),
        ("i8", 256, 1, True),
        ("U2", "a", "a", False),
        ("U2", "a", "ab", True),
        ("M8[s]", np.datetime64("NaT", "s"), np.datetime64("NaT", "s"), False),
        ("M8[s]", np.datetime64("NaT", "s"), np.datetime64(0, "s"), True),
        (PAIR, (NAN, 1), (NAN, 1), False),
        (PAIR, (0.0, 1), (-0.0, 1), False),
        (PAIR, (0.0, 1), (0.0, 2), True),
    ],
)
def test_only_another_value_differs(dtype: Any, here: Any, there: Any, is_other: bool) -> None:
    """In the middle of three streams, whatever is in the others."""
    timeline = timeline_lib.Timeline(4, 3)
    tails = history.FinalObservations([{"y": relive.Field((), "i8")}, {"x": relive.Field(2, dtype)}], timeline)
    known = {"x": np.zeros((3, 2), dtype), "y": np.arange(3)}
    known["x"][1, 1] = here
    tails.announce(slice(None), known)
    other = {"x": np.zeros((3, 2), dtype), "y": np.arange(3)}
    other["x"][1, 1] = there
    for others_differ in (False, True):
        if others_differ:
            other["x"][0, 0], other["y"][2] = np.ones((), dtype)[()], 7
        expected = [others_differ, is_other, others_differ]
        assert tails.differ(np.arange(3), other).tolist() == expected
        turned = {path: column[::-1] for path, column in other.items()}
        assert tails.differ(np.array([2, 1, 0]), turned).tolist() == expected
    assert tails.differ(np.arange(3), known).tolist() == [False] * 3
    assert tails.differ(np.array([1]), {path: column[1:2] for path, column in other.items()}).tolist() == [is_other]


def test_nothing_differs_from_no_field_and_in_no_stream() -> None:
    timeline = timeline_lib.Timeline(4, 2)
    assert history.FinalObservations([], timeline).differ(np.arange(2), {}).tolist() == [False, False]
    nowhere = np.zeros(0, np.int64)
    assert history.FinalObservations(BLOCKS, timeline).differ(nowhere, rows([])).tolist() == []
    empty = history.FinalObservations([{"x": relive.Field((0,), "f4")}], timeline)
    assert empty.differ(np.arange(2), {"x": np.zeros((2, 0), np.float32)}).tolist() == [False, False]


def test_a_tail_without_a_place_is_found() -> None:
    timeline = timeline_lib.Timeline(4, 1)
    tails = history.FinalObservations(BLOCKS, timeline)
    tails.check()
    timeline.append_episode(0, 2, is_terminated=True)
    with pytest.raises(errors.CorruptionError, match="^an episode has a final observation that is nowhere$"):
        tails.check()
    tails.put(np.array([0]), rows([1]))
    tails.check()


def test_bytes_are_those_of_the_streams_and_of_the_episodes() -> None:
    timeline = timeline_lib.Timeline(4, 2)
    tails = history.FinalObservations(BLOCKS, timeline)
    size = 2 * 4 + 8 + 9
    assert tails.nbytes == 2 * size
    timeline.append_episode(0, 2, is_terminated=True)
    tails.put(np.array([0]), rows([1]))
    assert tails.nbytes == (2 + 1) * size
