"""The timeline against a naive twin: a list of all rows that ever were, each with its episode as an object."""

import dataclasses
import itertools

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

from relive import errors
from relive.kernels import episode_table
from relive.kernels import timeline as timeline_lib


@dataclasses.dataclass(eq=False)
class TwinEpisode:
    keys: list[int] = dataclasses.field(default_factory=list)
    end: int = episode_table.OPEN
    knows_next: bool = False

    @property
    def complete(self) -> int:
        return len(self.keys) - (not self.knows_next and self.end != episode_table.TERMINATED)


class Twin:
    def __init__(self, capacity: int, streams: int) -> None:
        self.capacity = capacity
        self.rows: list[tuple[TwinEpisode, int]] = []
        self.oldest = 0
        self.open: list[TwinEpisode | None] = [None] * streams

    def evict(self, count: int) -> None:
        self.oldest += count

    def append(
        self, streams: list[int], cuts: list[bool], knows: list[bool], ends: list[int]
    ) -> tuple[set[int], set[TwinEpisode]]:
        """Return the keys that are complete now, and the episodes that ended."""
        completed: set[int] = set()
        ended: set[TwinEpisode] = set()
        for stream, cut, knows_next, end in zip(streams, cuts, knows, ends, strict=True):
            episode = self.open[stream]
            if episode is not None and cut:
                episode.end = episode_table.TRUNCATED
                ended.add(episode)
                episode = None
            if episode is None:
                episode = TwinEpisode()
            elif not episode.knows_next and episode.keys[-1] >= self.oldest:
                completed.add(episode.keys[-1])
            key = len(self.rows)
            episode.keys.append(key)
            self.rows.append((episode, len(episode.keys) - 1))
            episode.knows_next, episode.end = knows_next, end
            if knows_next or end == episode_table.TERMINATED:
                completed.add(key)
            self.open[stream] = episode
            if end != episode_table.OPEN:
                ended.add(episode)
                self.open[stream] = None
        return completed, ended

    def alive(self) -> list[int]:
        return list(range(self.oldest, len(self.rows)))


def assert_same(timeline: timeline_lib.Timeline, twin: Twin) -> None:
    """Compare every answer about every row that is alive."""
    timeline.check()
    keys = np.array(twin.alive(), np.int64)
    assert len(timeline) == len(keys)
    assert timeline.oldest_key == twin.oldest
    assert timeline.next_key == len(twin.rows)
    slots = timeline.alive_slots()
    assert slots.tolist() == [key % twin.capacity for key in keys.tolist()]
    assert timeline.keys(slots).tolist() == keys.tolist()
    assert timeline.slots(keys).tolist() == slots.tolist()
    around = np.arange(-2, len(twin.rows) + 3)
    assert timeline.is_alive(around).tolist() == [key in keys for key in around]
    handles = timeline.handles(slots)
    steps = timeline.steps(slots, handles)
    episodes = timeline.episodes
    alive_episodes = {id(twin.rows[key][0]) for key in keys.tolist()}
    alive_episodes |= {id(episode) for episode in twin.open if episode is not None}
    assert len(episodes) == len(alive_episodes)
    left = []
    ahead: dict[int, list[list[int]]] = {count: [] for count in range(1, 6)}
    behind: dict[int, list[list[int]]] = {count: [] for count in range(1, 6)}
    num_behind: dict[int, list[int]] = {count: [] for count in range(1, 6)}
    earlier: dict[int, list[int]] = {count: [] for count in range(1, 6)}
    later: list[tuple[int, int, int]] = []
    firsts: list[int] = []
    for slot, key, handle, step in zip(slots.tolist(), keys.tolist(), handles.tolist(), steps.tolist(), strict=True):
        episode, twin_step = twin.rows[key]
        assert step == twin_step
        assert episodes.length[handle] == len(episode.keys)
        assert episodes.complete[handle] == episode.complete
        assert episodes.end[handle] == episode.end
        assert episodes.has_tail[handle] == episode.knows_next
        assert episodes.first_key[handle] == episode.keys[0]
        before = [k for k in episode.keys[:step] if k >= twin.oldest]
        after = episode.keys[step:]
        upto = [*before, key]
        for count in range(1, 6):
            ahead[count].append([after[min(k, len(after) - 1)] % twin.capacity for k in range(count)])
            behind[count].append([upto[max(len(upto) - 1 - k, 0)] % twin.capacity for k in reversed(range(count))])
            num_behind[count].append(min(len(before), count))
            earlier_slot = before[-count] % twin.capacity if len(before) >= count else -1
            earlier[count] += [earlier_slot] if earlier_slot >= 0 else []
            assert timeline.earlier_of_one(slot, count) == earlier_slot
            assert timeline.ahead_of_one(slot, count) == [k % twin.capacity for k in after[:count]]
        assert timeline.earlier_of_one(slot, 0) == slot
        assert timeline.step_of_one(slot) == step
        later += [(slot, offset, after[offset] % twin.capacity) for offset in range(len(after))]
        left.append(len(after) - 1)
        firsts += [episode.keys[0] % twin.capacity] if episode.keys[0] >= twin.oldest else []
    for count in range(1, 6):
        assert timeline.ahead(slots, count).tolist() == ahead[count]
        assert timeline.behind(slots, count).tolist() == behind[count]
        assert timeline.num_behind(slots, count).tolist() == num_behind[count]
        assert timeline.earlier(slots, count).tolist() == earlier[count]
    assert timeline.earlier(slots, 0).tolist() == slots.tolist()
    from_slots, offsets, to_slots = np.array(later, np.int64).reshape(-1, 3).T
    assert timeline.later(from_slots, offsets).tolist() == to_slots.tolist()
    assert timeline.first(handles).tolist() == firsts
    offsets = np.array(left, np.int64) // 2
    expected = [
        twin.rows[key][0].keys[twin.rows[key][1] + offset] % twin.capacity
        for key, offset in zip(keys.tolist(), offsets.tolist(), strict=True)
    ]
    assert timeline.later(slots, offsets).tolist() == expected
    rows = timeline.rows(slots)
    assert rows.slots is slots
    assert rows.keys.tolist() == keys.tolist()
    assert rows.handles.tolist() == handles.tolist()
    assert rows.steps.tolist() == steps.tolist()
    assert rows.left.tolist() == [number + 1 for number in left]
    assert timeline.later_of(rows, offsets).tolist() == expected
    for count in range(1, 4):
        assert np.isin(timeline.later_of(rows, offsets + count), slots).all(), "some row, where there is none"
        run = timeline.run_of(rows, count)
        assert run.shape == (count, len(slots))
        assert np.isin(run, slots).all()
        is_real = np.arange(count)[:, np.newaxis] < rows.left
        assert run[is_real].tolist() == np.array(ahead[count], np.int64).reshape(-1, count).T[is_real].tolist()


def turned(timeline: timeline_lib.Timeline, twin: Twin, rng: np.random.Generator) -> bool:
    """Add a turn to both if the timeline can and chance will have it."""
    slot, streams = timeline.turning_slot(), timeline.streams
    if slot < 0 or rng.random() < 0.3:
        return False
    assert slot == len(twin.rows) % twin.capacity
    terminated, has_ended = rng.random((2, streams)) < 0.15
    has_ended |= terminated
    handles = timeline.open_handles(np.arange(streams))
    if timeline.is_full:
        twin.evict(streams)
    timeline.turn(slot)
    ended = timeline.end(np.flatnonzero(has_ended), terminated[has_ended])
    ends = np.where(terminated, episode_table.TERMINATED, has_ended * episode_table.TRUNCATED)
    twin.append(list(range(streams)), [False] * streams, [True] * streams, ends.tolist())
    assert len(ended) == has_ended.sum()
    went_on = has_ended & (handles >= 0)
    assert set(handles[went_on].tolist()) <= set(ended.tolist())
    return True


@hypothesis.given(strategies.integers(1, 9), strategies.integers(1, 3), strategies.integers(0, 2**32))
def test_every_answer_equals_the_naive_one(capacity: int, streams: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    is_in_turn = seed % 4 > 0
    capacity = max(capacity, streams)
    timeline, twin = timeline_lib.Timeline(capacity, streams), Twin(capacity, streams)
    evicted = 0
    for step in range(40 if is_in_turn else 25):
        choice = rng.random()
        if choice < 0.03:
            timeline.clear()
            twin.evict(len(twin.alive()))
            twin.open = [None] * streams
        elif choice < (0.05 if is_in_turn and step > 4 else 0.15):
            stream, length, is_terminated = (
                int(rng.integers(streams)),
                int(rng.integers(1, capacity + 1)),
                rng.random() < 0.5,
            )
            count = max(len(timeline) + length - capacity, 0)
            timeline.evict(count)
            twin.evict(count)
            evicted += count
            cut_episode = twin.open[stream]
            change = timeline.append_episode(stream, length, is_terminated=is_terminated)
            first = len(twin.rows)
            end = episode_table.TERMINATED if is_terminated else episode_table.TRUNCATED
            for t in range(length):
                is_last = t == length - 1
                twin.append([stream], [t == 0], [is_last], [end if is_last else episode_table.OPEN])
            assert change.slots.tolist() == change.completed.tolist()
            assert timeline.keys(change.slots).tolist() == list(range(first, first + length))
            assert len(change.ended) == 1 + (cut_episode is not None)
        else:
            chosen = rng.permutation(streams)[: rng.integers(1, streams + 1)]
            if is_in_turn:
                chosen = np.arange(streams)
                if turned(timeline, twin, rng):
                    if step % 2:
                        assert_same(timeline, twin)
                    continue
            count = max(len(timeline) + len(chosen) - capacity, 0)
            timeline.evict(count)
            twin.evict(count)
            evicted += count
            cuts = rng.random(len(chosen)) < 0.2
            knows = bool(rng.random() < 0.5)
            terminated, truncated = rng.random((2, len(chosen))) < 0.2
            ends = np.where(terminated, episode_table.TERMINATED, truncated * episode_table.TRUNCATED)
            slots = timeline.free_slots(len(chosen))
            completed, ended = twin.append(chosen.tolist(), cuts.tolist(), [knows] * len(chosen), ends.tolist())
            if len(chosen) == 1 and rng.random() < 0.7:
                slot, completed_slots, ended_handles = timeline.append_one(
                    int(chosen[0]), bool(cuts[0]), knows, bool(terminated[0]), bool(truncated[0])
                )
                assert [slot] == slots.tolist()
            else:
                nowhere = cuts if cuts.any() else None
                change = timeline.append(
                    chosen, cuts=nowhere, knows_next=knows, terminated=terminated, truncated=truncated
                )
                assert change.slots.tolist() == slots.tolist()
                assert timeline.handles(change.slots).tolist() == change.handles.tolist()
                completed_slots, ended_handles = change.completed.tolist(), change.ended.tolist()
            assert sorted(timeline.keys(np.array(completed_slots, np.int64)).tolist()) == sorted(completed)
            assert len(ended_handles) == len(ended)
        if step % 2:
            assert_same(timeline, twin)
        open_handles = timeline.open_handles(np.arange(streams)).tolist()
        assert [handle >= 0 for handle in open_handles] == [episode is not None for episode in twin.open]
    assert timeline.num_evicted >= evicted


def test_rows_side_by_side_are_of_one_episode_where_each_of_them_is_of_that_of_its_fellow() -> None:
    timeline = timeline_lib.Timeline(12, 3)
    for ends in ([1], [], [2], []):
        terminated = np.isin(np.arange(3), ends)
        timeline.append(np.arange(3), cuts=None, knows_next=True, terminated=terminated, truncated=terminated)
    handles = timeline.handles(np.arange(12)).tolist()
    assert len(set(handles)) == 5
    for count, these, those in itertools.product(range(1, 4), range(10), range(10)):
        is_same = handles[these : these + count] == handles[those : those + count]
        assert timeline.are_of_one_episode(these, those, count) is is_same


def test_keys_count_beyond_32_bits() -> None:
    timeline = timeline_lib.Timeline(4, 1)
    timeline.next_key = 2**31 - 2
    never = np.array([False])
    for _ in range(6):
        timeline.evict(max(len(timeline) + 1 - 4, 0))
        timeline.append(np.array([0]), cuts=never, knows_next=True, terminated=never, truncated=never)
    slots = timeline.alive_slots()
    assert timeline.keys(slots).tolist() == [2**31, 2**31 + 1, 2**31 + 2, 2**31 + 3]
    assert timeline.steps(slots, timeline.handles(slots)).tolist() == [2, 3, 4, 5]


def test_a_slot_takes_5_bytes_and_29_once_the_streams_are_out_of_turn() -> None:
    never = np.array([False, False])
    timeline = timeline_lib.Timeline(1_000, 2)
    for _ in range(3):
        timeline.append(np.arange(2), cuts=None, knows_next=True, terminated=never, truncated=never)
    timeline.append_one(0, False, True, False, False)
    assert timeline.nbytes == 5_000
    timeline.append_one(0, False, True, False, False)
    assert timeline.nbytes == 29_000
    timeline.clear()
    assert timeline.nbytes == 5_000


def test_streams_are_in_turn_whichever_of_them_begins() -> None:
    timeline = timeline_lib.Timeline(1_000, 3)
    for _ in range(2):
        for stream in (2, 0, 1, 2, 0, 1, 2):
            timeline.append_one(stream, False, True, False, False)
            assert timeline.are_streams_in_turn
        assert timeline.nbytes == 5_000
        timeline.clear()


def test_a_turn_may_be_added_where_stream_0_is_next() -> None:
    timeline = timeline_lib.Timeline(12, 3)
    assert timeline.turning_slot() == 0
    for slot, stream in enumerate((2, 0, 1, 2, 0, 1)):
        timeline.append_one(stream, False, True, False, False)
        assert timeline.turning_slot() == (slot + 1 if stream == 2 else -1)


def rounds_linked(timeline: timeline_lib.Timeline, *, most: int) -> int:
    """Add a row to every stream until there are no links, and return how often."""
    never = np.zeros(timeline.streams, np.bool_)
    for count in range(most):
        if timeline.are_streams_in_turn:
            return count
        timeline.evict(max(len(timeline) + timeline.streams - timeline.capacity, 0))
        timeline.append(np.arange(timeline.streams), cuts=None, knows_next=True, terminated=never, truncated=never)
        timeline.check()
    return most


def test_links_go_once_all_rows_that_came_out_of_turn_have_gone() -> None:
    timeline = timeline_lib.Timeline(12, 3)
    timeline.append_episode(1, 2, is_terminated=True)
    assert rounds_linked(timeline, most=50) == 4, "that is 14 rows"
    timeline.evict(1)
    timeline.append_one(1, False, True, False, False)
    assert not timeline.are_streams_in_turn
    assert rounds_linked(timeline, most=50) == 50, "there are episodes that began before"
    terminated = np.ones(3, np.bool_)
    timeline.evict(3)
    timeline.append(np.arange(3), cuts=None, knows_next=True, terminated=terminated, truncated=~terminated)
    assert rounds_linked(timeline, most=50) <= 8, "two rings"


def filled(streams: int = 2) -> timeline_lib.Timeline:
    """Return a timeline with an open episode of three rows in stream 0, and an ended one of two rows."""
    timeline = timeline_lib.Timeline(8, streams)
    timeline.append_episode(streams - 1, 2, is_terminated=True)
    for _ in range(3):
        never = np.array([False])
        timeline.append(np.array([0]), cuts=never, knows_next=True, terminated=never, truncated=never)
    timeline.check()
    return timeline


def test_an_episode_whose_rows_are_all_gone_is_released_when_it_ends_or_when_its_last_row_goes() -> None:
    timeline = filled()
    timeline.evict(2)
    assert len(timeline.episodes) == 1
    timeline.evict(3)
    assert len(timeline.episodes) == 1, "the open one stays"
    never = np.array([False])
    timeline.append(np.array([0]), cuts=~never, knows_next=True, terminated=never, truncated=never)
    assert len(timeline.episodes) == 1, "it was cut, and a new one began"
    timeline.check()


@pytest.mark.parametrize("streams", [1, 2])
def test_check_finds_what_is_wrong(streams: int) -> None:
    def broken(match: str, timeline: timeline_lib.Timeline) -> None:
        with pytest.raises(errors.CorruptionError, match=match):
            timeline.check()

    timeline = filled(streams)
    timeline._num_rows = 9
    broken("^9 rows are alive in 8 slots$", timeline)
    timeline = filled(streams)
    timeline._open.handle[0] = -1
    broken("^an episode is open in its stream or in the table, and not in both$", timeline)
    timeline = filled(streams)
    timeline.episodes.length[timeline.handles(np.array([0]))] += 1
    broken("^the rows of episode . are not its last 2 steps$", timeline)
    timeline = filled(streams)
    timeline.episodes.complete[timeline.handles(np.array([0]))] = 0
    broken("^an episode has more than one step without a next observation$", timeline)
    timeline = filled(streams)
    timeline.episodes.complete[timeline.handles(np.array([0]))] = 9
    broken("^an episode has more than one step without a next observation$", timeline)
    timeline = filled(streams)
    timeline.episodes.claim(np.array([0]), np.array([0]))
    broken("^the episodes in the table are not those that have rows or are open$", timeline)
    timeline = filled(streams)
    timeline.episodes.release(timeline.episodes._free[:1])
    broken("^a free episode handle is in the list twice$", timeline)
    if streams > 1:
        timeline = filled(streams)
        assert timeline._links is not None
        timeline._links.next[2] = 4
        broken("^the rows of episode . do not lead to each other$", timeline)
        timeline = filled(streams)
        assert timeline._links is not None
        timeline._links.previous[4] = 2
        broken("^the rows of episode . do not lead back to each other$", timeline)


def test_check_looks_beyond_an_open_episode_without_rows() -> None:
    timeline = timeline_lib.Timeline(3, 2)
    never = np.array([False])
    timeline.append(np.array([0]), cuts=never, knows_next=True, terminated=never, truncated=never)
    timeline.evict(1)
    timeline.append_episode(1, 3, is_terminated=True)
    timeline.check()
    assert timeline._links is not None
    timeline._links.next[1] = 1
    with pytest.raises(errors.CorruptionError, match="^the rows of episode 1 do not lead to each other$"):
        timeline.check()
