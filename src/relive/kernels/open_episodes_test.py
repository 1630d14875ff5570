"""The open episodes against a naive twin: one object a stream, that counts every row at once."""

import copy
import dataclasses
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np

from relive.kernels import episode_table


@dataclasses.dataclass
class TwinEpisode:
    handle: int
    first_key: int
    keys: list[int] = dataclasses.field(default_factory=list)
    knows_next: bool = True


class Twin:
    """What is open in each stream."""

    def __init__(self, streams: int) -> None:
        self.open: list[TwinEpisode | None] = [None] * streams

    def add(self, stream: int, key: int, knows_next: bool) -> None:
        episode = self.open[stream]
        assert episode is not None
        episode.keys.append(key)
        episode.knows_next = knows_next


def ask(opened: episode_table.OpenEpisodes, twin: Twin, question: str) -> None:
    """Compare one answer, of the episodes that have a row."""
    there = [(stream, episode) for stream, episode in enumerate(twin.open) if episode and episode.keys]
    streams = np.array([stream for stream, _ in there], np.int64)
    if question == "length":
        assert opened.length[streams].tolist() == [len(episode.keys) for _, episode in there]
    elif question == "last_key":
        assert opened.last_key[streams].tolist() == [episode.keys[-1] for _, episode in there]
    elif question == "newest":
        for stream, episode in there:
            expected = episode.handle, len(episode.keys), episode.keys[-1], episode.knows_next
            assert opened.newest_of_one(stream) == expected
    elif question == "waiting":
        expected_keys = [episode.keys[-1] for _, episode in there if not episode.knows_next]
        assert opened.waiting(np.arange(len(twin.open))).tolist() == expected_keys
        assert opened.all_know_next() == (not expected_keys)
    elif question == "table":
        table = opened.table
        assert len(table) == sum(episode is not None for episode in twin.open)
        for stream, episode in there:
            handle = episode.handle
            assert (table.stream[handle], table.first_key[handle]) == (stream, episode.first_key)
            assert table.end[handle] == episode_table.OPEN
            assert table.length[handle] == len(episode.keys)
            assert table.complete[handle] == len(episode.keys) - (not episode.knows_next)
            assert table.has_tail[handle] == episode.knows_next
    assert opened.handle.tolist() == [-1 if episode is None else episode.handle for episode in twin.open]
    assert opened.count == sum(episode is not None for episode in twin.open)


QUESTIONS = ["length", "last_key", "newest", "waiting", "table", "none", "none"]
CHANGES = ["append", "append", "append_one", "turn", "turn", "turn", "end", "clear", "copy"]


@hypothesis.settings(max_examples=2 * hypothesis.settings().max_examples)
@hypothesis.given(st.integers(1, 4), st.lists(st.sampled_from(CHANGES), max_size=20), st.integers(0, 2**32))
def test_every_answer_equals_the_naive_one_in_whatever_order_it_is_asked(
    streams: int, changes: list[str], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    opened: Any = episode_table.OpenEpisodes(streams, episode_table.EpisodeTable())
    twin, key = Twin(streams), 0
    for change in changes:
        chosen = np.sort(rng.permutation(streams)[: rng.integers(1, streams + 1)])
        if change == "turn":
            chosen = np.arange(streams)
        keys = np.arange(key, key + len(chosen))
        knows_next = bool(change == "turn" or rng.random() < 0.5)
        if change == "append_one":
            stream = int(chosen[0])
            handle, length, _, _ = opened.newest_of_one(stream)
            if handle < 0:
                length = 0
                twin.open[stream] = TwinEpisode(opened.begin_one(stream, key), key)
            opened.append_one(stream, length + 1, key, knows_next)
            twin.add(stream, key, knows_next)
            key += 1
        elif change in ("append", "turn"):
            fresh = [stream for stream in chosen.tolist() if twin.open[stream] is None]
            opened.begin(chosen, keys)
            for stream, first_key in zip(chosen.tolist(), keys.tolist(), strict=True):
                if stream in fresh:
                    twin.open[stream] = TwinEpisode(int(opened.handle[stream]), first_key)
            if change == "turn":
                newest = [episode.keys[-1] for episode in twin.open if episode and episode.keys]
                if not all(opened.knows_next) or newest != [
                    key - streams + stream for stream, episode in enumerate(twin.open) if episode and episode.keys
                ]:
                    opened.knows_next[:] = True
                    opened.come_in_turn(key)
                opened.turn()
            else:
                opened.append(slice(None) if len(chosen) == streams else chosen, keys, knows_next)
            for stream, new in zip(chosen.tolist(), keys.tolist(), strict=True):
                twin.add(stream, new, knows_next)
            key += len(chosen)
        elif change == "end":
            chosen = np.array([stream for stream in chosen.tolist() if twin.open[stream] is not None], np.int64)
            terminated = rng.random(len(chosen)) < 0.5
            handles, last_keys = opened.end(chosen, terminated)
            for stream, handle, last_key, is_terminated in zip(chosen, handles, last_keys, terminated, strict=True):
                episode = twin.open[stream]
                assert episode is not None
                assert (handle, last_key) == (episode.handle, episode.keys[-1])
                table, length = opened.table, len(episode.keys)
                end = episode_table.TERMINATED if is_terminated else episode_table.TRUNCATED
                assert (table.end[handle], table.length[handle]) == (end, length)
                assert table.complete[handle] == length - (not episode.knows_next and not is_terminated)
                assert table.has_tail[handle] == episode.knows_next
                twin.open[stream] = None
            opened.table.release(handles)
        elif change == "copy":
            left, opened = opened, copy.deepcopy(opened)
            left.clear()
        else:
            opened.clear()
            twin = Twin(streams)
        ask(opened, twin, QUESTIONS[rng.integers(len(QUESTIONS))])
    for question in rng.permutation(QUESTIONS).tolist():
        ask(opened, twin, question)


def test_a_turn_is_counted_before_anything_is_read() -> None:
    for question in ("length", "last_key"):
        opened = episode_table.OpenEpisodes(3, episode_table.EpisodeTable())
        opened.begin(np.arange(3), np.arange(6, 9))
        opened.turn()
        opened.turn()
        assert getattr(opened, question).tolist() == {"length": [2, 2, 2], "last_key": [9, 10, 11]}[question]
