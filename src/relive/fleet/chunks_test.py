"""Chunks: what is left of them when some of their steps are stored already."""

from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from relive.fleet import chunks


def columns(start: int, rows: int, end: chunks.End = "OPEN", is_start: bool = True) -> chunks.ColumnChunk:
    """Return a chunk of the steps from `start` on; each says which one it is, wherever one looks."""
    steps = np.arange(start, start + rows + 1)
    return chunks.ColumnChunk(
        stream=2,
        is_start=is_start,
        observations={"t": steps, "hand": {"t": steps * 10}},
        actions=steps[:-1],
        rewards=steps[:-1].astype(float),
        extras={"t": steps[:-1], "deep": {"t": steps[:-1]}},
        end=end,
    )


def episode(start: int, rows: int, final: Any = None, versions: tuple[int | None, ...] = ()) -> chunks.EpisodeChunk:
    said = dict(enumerate(versions, start))
    steps = tuple((f"o{t}", f"a{t}", float(t), said.get(t)) for t in range(start, start + rows))
    return chunks.EpisodeChunk(
        episode=3, is_start=True, agent_id="a", group_id=None, policy_version=4, steps=steps, final=final
    )


def told(chunk: Any) -> list[Any]:
    """Return which steps are in a chunk; all of its parts must say the same."""
    if isinstance(chunk, chunks.ColumnEnd):
        return []
    if isinstance(chunk, chunks.EpisodeChunk):
        return [step[2] for step in chunk.steps]
    steps: list[Any] = chunk.rewards.tolist()
    assert chunk.observations["t"].tolist() == [*steps, (steps[-1] + 1) if steps else chunk.observations["t"][0]]
    assert (chunk.observations["hand"]["t"] == 10 * chunk.observations["t"]).all()
    assert chunk.actions.tolist() == chunk.extras["t"].tolist() == chunk.extras["deep"]["t"].tolist() == steps
    return steps


@pytest.mark.parametrize("make", [columns, episode])
@pytest.mark.parametrize("stored", [0, 1, 4])
def test_the_rest_of_a_chunk_is_its_later_steps(make: Any, stored: int) -> None:
    rest = make(10, 5).rest(stored)
    assert told(rest) == [float(t) for t in range(10 + stored, 15)]
    assert rest.rows == 5 - stored
    assert not rest.is_start


def test_the_rest_of_a_chunk_ends_as_it_did() -> None:
    assert columns(0, 3, "TERMINATED").rest(1).end == "TERMINATED"
    assert not columns(0, 3, "TERMINATED").rest(1).is_whole
    assert episode(0, 3, final=("o3", "TRUNCATED")).rest(2).final == ("o3", "TRUNCATED")


@pytest.mark.parametrize(
    ("end", "is_start", "is_whole"),
    [("OPEN", True, False), ("TERMINATED", True, True), ("TRUNCATED", True, True), ("TRUNCATED", False, False)],
)
def test_a_chunk_from_start_to_end_is_a_complete_episode(end: chunks.End, is_start: bool, is_whole: bool) -> None:
    assert columns(0, 3, end, is_start).is_whole == is_whole


def test_the_rest_of_an_episode_knows_its_previous_version() -> None:
    chunk = episode(0, 5, versions=(None, 6, None, 7, None))
    assert [chunk.version_after(count) for count in range(6)] == [4, 4, 6, 6, 7, 7]
    assert [chunk.rest(stored).policy_version for stored in range(5)] == [4, 4, 6, 6, 7]


PARTS = st.one_of(
    st.builds(columns, st.integers(0, 50), st.integers(1, 5)),
    st.just(chunks.ColumnEnd(stream=2)),
    st.builds(episode, st.integers(0, 50), st.integers(0, 5), st.sampled_from([None, ("o", "COMPLETED")])),
)


@hypothesis.given(batch=st.lists(PARTS, max_size=6), share=st.floats(0, 1))
def test_the_rest_of_a_batch_is_its_later_steps_and_all_ends(batch: list[chunks.Chunk], share: float) -> None:
    rows = sum(chunk.rows for chunk in batch)
    stored = round(share * rows)
    left = chunks.unstored(tuple(batch), stored)
    steps = [step for chunk in batch for step in told(chunk)]
    assert [step for chunk in left for step in told(chunk)] == steps[stored:]
    ends = [chunk for chunk in batch if not chunk.rows]
    assert [chunk for chunk in left if not chunk.rows] == ends
    if not stored:
        assert left == tuple(batch)
