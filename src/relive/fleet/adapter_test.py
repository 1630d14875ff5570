"""Adapters: how chunks of writers become episodes of a buffer, and how much there is to draw."""

import collections
from collections.abc import Callable, Iterator
import contextlib
import itertools
import random
from typing import Any, TypeAlias

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors
from relive.fleet import adapters
from relive.fleet import chunks
from relive.fleet import local_test

W, V = b"w" * 16, b"v" * 16
LAGS = {"n": 1, "gamma": 1.0}
INTEGER = relive.Field((), np.int64)


def batch_of(writer: bytes, number: int, *sent: Any, oldest: int = 0, stays: bool = True) -> chunks.Batch:
    return chunks.Batch(writer=writer, number=number, oldest=oldest, stays=stays, chunks=sent)


def columns(
    start: int,
    rows: int,
    end: chunks.End = "OPEN",
    *,
    is_start: bool = False,
    first: int | None = None,
    episode: int = 0,
) -> Any:
    """Return a chunk of the steps from `start` on: step 0 of an episode, step `first`, or step `start`."""
    steps = np.arange(start, start + rows + 1)
    return chunks.ColumnChunk(
        episode=episode,
        first=0 if is_start else start if first is None else first,
        observations=steps,
        actions=steps[:-1],
        rewards=np.ones(rows),
        extras={},
        end=end,
    )


def steps_of(
    start: int,
    rows: int,
    *,
    is_start: bool = False,
    first: int | None = None,
    episode: int = 0,
    final: Any = None,
    is_aborted: bool = False,
    **more: Any,
) -> chunks.EpisodeChunk:
    fields: dict[str, Any] = {"agent_id": "a", "group_id": None, "policy_version": None, **more}
    steps = fields.pop("steps", tuple((t, t, 1.0, None) for t in range(start, start + rows)))
    end: Any = final or ("ABORTED" if is_aborted else "OPEN")
    first = 0 if is_start else start if first is None else first
    return chunks.EpisodeChunk(episode=episode, first=first, steps=steps, end=end, **fields)


def end_of(first: int, episode: int = 0) -> Any:
    """Return a chunk without steps."""
    return chunks.ColumnChunk(episode, first, None, None, (), {}, "TRUNCATED")


def column_of(**settings: Any) -> tuple[adapters.ColumnAdapter, Any]:
    buffer = relive.RingReplayBuffer(100, n_step=10, gamma=1.0, seed=0, **{"streams": 3, **settings})
    return adapters.ColumnAdapter(buffer), buffer


def episode_of() -> tuple[adapters.EpisodeAdapter, Any]:
    buffer: Any = relive.EpisodeReplayBuffer(seed=0)
    return adapters.EpisodeAdapter(buffer), buffer


def windows(buffer: Any) -> list[tuple[int, int, bool]]:
    """Return from where to where each window of ten steps goes, and whether it met a termination."""
    buffer.check()
    batch = buffer.read(buffer.eligible_keys())
    return list(
        zip(batch.observation.tolist(), batch.next_observation.tolist(), batch.is_terminal.tolist(), strict=True)
    )


# Columns.


def test_chunks_of_a_stream_are_one_episode() -> None:
    adapter, buffer = column_of()
    adapter.insert(W, columns(0, 2, is_start=True))
    adapter.insert(W, columns(2, 1))
    adapter.insert(W, columns(3, 2, "TERMINATED"))
    assert windows(buffer) == [(t, 5, True) for t in range(5)]
    assert (adapter.inserted, adapter.rows, adapter.size) == (5, 5, 5)
    assert buffer.get_stats().open_episodes == 0


def test_a_complete_episode_uses_no_stream() -> None:
    adapter, buffer = column_of()
    adapter.insert(W, columns(0, 1, is_start=True))
    adapter.insert(W, columns(20, 2, "TERMINATED", is_start=True, episode=1))
    adapter.insert(W, columns(1, 1, "TRUNCATED"))
    assert [window[:2] for window in windows(buffer)] == [(0, 2), (20, 22), (21, 22), (1, 2)]


def test_what_a_full_disk_has_kept_open_ends_before_the_next() -> None:
    adapter, buffer = column_of(schema=relive.Schema(INTEGER, INTEGER))
    with full_disk(buffer, "end_episode", calls=1):
        wrong = columns(0, 3, "TERMINATED", is_start=True)._replace(actions=np.array([0.0, 2.5, 3.0]))
        with pytest.raises(OSError, match="full"):
            adapter.insert(W, wrong)
    adapter.insert(W, columns(1, 2, "TERMINATED", is_start=True, episode=1))
    assert windows(buffer) == [(0, 1, False), (1, 3, True), (2, 3, True)]
    of_episodes, buffer = episode_of()
    for start in (4, 0, 2):
        with contextlib.ExitStack() as stack:
            if start == 0:
                stack.enter_context(full_disk(buffer, "abort_episode_nowait"))
                stack.enter_context(pytest.raises(OSError, match="full"))
            of_episodes.insert(W, steps_of(start, 2))
    assert lived(buffer) == [("a", [4, 5], "IN_PROGRESS"), ("a", [0, 1], "ABORTED"), ("a", [2, 3], "ABORTED")]


@contextlib.contextmanager
def full_disk(buffer: Any, method: str, calls: int = 0) -> Iterator[None]:
    """Return a context manager in which that method fails after so many calls, which do nothing."""
    left = iter(range(calls))

    def fail(*_: Any, **__: Any) -> None:
        if next(left, None) is None:
            raise OSError("disk is full")

    setattr(buffer, method, fail)
    yield
    delattr(buffer, method)


def test_a_dead_writer_frees_its_episodes_and_streams() -> None:
    adapter, buffer = column_of()
    adapter.insert(W, columns(0, 1, is_start=True))
    adapter.insert(V, columns(20, 1, is_start=True))
    assert [adapter.abandon(W), adapter.abandon(W)] == [1, 0]
    adapter.insert(b"u" * 16, columns(40, 1, is_start=True))
    assert (buffer.get_stats().open_episodes, adapter.cut) == (2, 0)
    assert adapter.abandon_all() == 2
    adapter.insert(W, columns(60, 1, is_start=True))
    adapter.insert(V, columns(80, 1, is_start=True))
    assert adapter.cut == 0


def test_the_longest_idle_episode_is_truncated_for_its_stream() -> None:
    adapter, buffer = column_of()
    for start, episode in ((0, 0), (20, 1)):
        adapter.insert(W, columns(start, 1, is_start=True, episode=episode))
    adapter.insert(W, columns(1, 1))
    adapter.insert(W, columns(40, 1, is_start=True, episode=2))
    assert (adapter.cut, buffer.get_stats().truncated_episodes) == (1, 1)
    adapter.insert(W, columns(2, 1))
    assert (0, 3) in [window[:2] for window in windows(buffer)]
    assert (20, 21) in [window[:2] for window in windows(buffer)]


def test_a_buffer_of_one_stream_accepts_only_complete_episodes() -> None:
    adapter, _ = column_of(streams=1)
    adapter.insert(W, columns(0, 2, "TERMINATED", is_start=True))
    with pytest.raises(
        errors.ArgumentError, match="make_buffer must return a buffer of at least 2 streams, got 1: one"
    ):
        adapter.insert(W, columns(2, 2, is_start=True))
    assert adapter.inserted == 2


def test_a_refused_step_truncates_its_episode_before_it() -> None:
    adapter, buffer = column_of()
    adapter.insert(W, columns(0, 1, is_start=True))
    wrong = columns(1, 3)._replace(actions=np.array([1.0, 2.5, 3.0]))
    with pytest.raises(
        errors.SchemaError, match=r"^step 2 of episode 0 of the writer: action must fit int64, got 2\.5"
    ):
        adapter.insert(W, wrong)
    assert adapter.inserted == 2
    # It goes on with what follows the refused step, as another episode.
    adapter.insert(W, columns(2, 1))
    assert [window[:2] for window in windows(buffer)] == [(0, 2), (1, 2), (2, 3)]


def test_a_chunk_larger_than_the_buffer_is_stored_nevertheless() -> None:
    adapter, buffer = column_of()
    adapter.insert(W, columns(0, 250, is_start=True))
    adapter.insert(W, columns(250, 150, "TERMINATED"))
    assert windows(buffer)[0] == (300, 310, False)
    assert windows(buffer)[-1] == (399, 400, True)
    assert (adapter.inserted, buffer.get_stats().spliced_episodes) == (400, 0)
    adapter.insert(W, columns(400, 150, "TERMINATED", is_start=True, episode=1))
    assert windows(buffer)[0] == (450, 460, False)


# Episodes.


def lived(buffer: Any) -> list[tuple[str, list[Any], str]]:
    return [(episode.agent_id, episode.observations, episode.status) for episode in local_test.episodes_in(buffer)]


def test_the_rest_of_an_ended_episode_is_a_new_episode() -> None:
    adapter, buffer = episode_of()
    adapter.insert(W, steps_of(0, 2, is_start=True))
    assert adapter.abandon_all() == 1
    adapter.insert(W, steps_of(2, 2))
    assert adapter.abandon(W) == 1
    adapter.insert(W, steps_of(4, 0, final=(4, "COMPLETED")))
    adapter.insert(W, steps_of(4, 0, is_aborted=True))
    assert lived(buffer) == [("a", [0, 1], "ABORTED"), ("a", [2, 3], "ABORTED")]
    adapter.insert(W, steps_of(0, 0, is_start=True, episode=1, final=(4, "COMPLETED")))
    assert lived(buffer)[-1] == ("a", [4], "COMPLETED")


def test_a_refused_step_aborts_its_episode_before_it() -> None:
    adapter, buffer = episode_of()
    steps = ((0, 0, 1.0, 5), (1, 1, 1.0, 4), (2, 2, 1.0, 4))
    with pytest.raises(errors.ArgumentError, match="policy_version must be at least 5, that of the step before, got 4"):
        adapter.insert(W, steps_of(0, 0, is_start=True, steps=steps))
    assert adapter.inserted == 1
    adapter.insert(W, steps_of(2, 1, final=(3, "COMPLETED")))
    assert lived(buffer) == [("a", [0], "ABORTED"), ("a", [2, 3], "COMPLETED")]


def test_an_episode_that_cannot_begin_changes_nothing() -> None:
    adapter, buffer = episode_of()
    with pytest.raises(errors.ArgumentTypeError, match="group_id must be a string, got 3"):
        adapter.insert(W, steps_of(0, 2, is_start=True, group_id=3))
    assert lived(buffer) == []
    assert adapter.abandon(W) == 0


def test_a_write_after_a_clear_begins_an_episode() -> None:
    adapter, buffer = episode_of()
    adapter.insert(W, steps_of(0, 2, is_start=True))
    buffer.clear()
    with pytest.raises(errors.UnknownEpisodeError, match="not found"):
        adapter.insert(W, steps_of(2, 2))
    adapter.insert(W, steps_of(4, 2))
    assert lived(buffer) == [("a", [4, 5], "IN_PROGRESS")]


def test_a_failed_attempt_of_a_whole_group_is_of_none() -> None:
    buffer = relive.EpisodeReplayBuffer[Any, Any](groups=relive.Groups(2), max_episodes=9)
    adapter = adapters.adapter_of(buffer)
    for number in range(2):
        adapter.insert(W, steps_of(0, 1, episode=number, group_id="g", final=(1, "COMPLETED")))
    adapter.insert(W, steps_of(0, 1, episode=2, group_id="g", is_aborted=True))
    with pytest.raises(errors.ArgumentError, match="g"):
        adapter.insert(W, steps_of(0, 1, episode=3, group_id="g", final=(1, "COMPLETED")))
    assert [episode.group_id for episode in local_test.episodes_in(buffer)] == ["g", "g", None]


# Courses of events: chunks come late, again, or never. All observations are equal; actions and rewards say which step
# it is, so that a return of two steps says which one follows.

Pairs: TypeAlias = collections.Counter[tuple[int, int | None]]
"""How often each step is followed by which; None for the last one of a piece."""


class Twin:
    """Keeps the pieces of episodes as lists."""

    def __init__(self) -> None:
        self.pieces: list[list[int]] = []
        self.open: dict[tuple[bytes, int], tuple[list[int], int]] = {}
        self.torn, self.ended = set[tuple[bytes, int]](), set[tuple[bytes, int]]()

    def insert(self, place: tuple[bytes, int], first: int, steps: list[int], is_over: bool) -> None:
        piece, after = self.open.get(place, ([], 0))
        if (place in self.open and first < after) or place in self.ended:
            self.pieces.append(list(steps))
            return
        if place not in self.open or first > after:
            piece = []
            self.pieces.append(piece)
            if first > 0:
                self.torn.add(place)
        piece += steps
        self.open[place] = piece, first + len(steps)
        if is_over:
            del self.open[place]
            self.ended |= self.torn & {place}

    def abandon(self, writer: bytes) -> None:
        self.open = {place: piece for place, piece in self.open.items() if place[0] != writer}
        self.torn, self.ended = ({place for place in each if place[0] != writer} for each in (self.torn, self.ended))

    def pairs(self) -> Pairs:
        return pairs_of(self.pieces)


def pairs_of(pieces: list[list[int]]) -> Pairs:
    return collections.Counter([pair for steps in pieces for pair in zip(steps, [*steps[1:], None], strict=False)])


def chunk_of_columns(episode: int, first: int, steps: list[int], is_over: bool) -> Any:
    if not steps:
        return end_of(first, episode)
    said, end = np.array(steps), "TERMINATED" if is_over else "OPEN"
    return chunks.ColumnChunk(episode, first, np.zeros(len(steps) + 1), said, said, {}, end)  # type: ignore[arg-type]


def chunk_of_agents(episode: int, first: int, steps: list[int], is_over: bool) -> Any:
    same = {"observations": {"a": 0.0}, "next_observations": {"a": 0.0}}
    of_each = tuple({**same, "actions": {"a": t}, "rewards": {"a": t}} for t in steps)
    return chunks.JointChunk(episode, first, of_each, "TRUNCATED" if is_over else "OPEN")


def chunk_of_episode(episode: int, first: int, steps: list[int], is_over: bool) -> Any:
    of_each = tuple((0, t, 0.0, None) for t in steps)
    return chunks.EpisodeChunk(episode, first, "a", None, None, of_each, (0, "COMPLETED") if is_over else "OPEN")


def pairs_in(buffer: Any) -> Pairs:
    if isinstance(buffer, relive.EpisodeReplayBuffer):
        return pairs_of([episode.actions for episode in local_test.episodes_in(buffer)])
    buffer.check()
    if not len(buffer):
        return collections.Counter()
    batch = buffer.read(buffer.eligible_keys())
    part = batch.agents["a"] if hasattr(batch, "agents") else batch
    both = part.reward.astype(int)
    rows = zip(part.action.tolist(), (both - part.action).tolist(), part.steps.tolist(), strict=True)
    return collections.Counter([(now, then if steps == 2 else None) for now, then, steps in rows])


WAYS: dict[str, tuple[Callable[[], Any], Callable[..., Any]]] = {
    "columns": (lambda: relive.RingReplayBuffer(999, n_step=2, gamma=1.0, streams=99), chunk_of_columns),
    "joint": (lambda: relive.JointReplayBuffer(999, agents=["a"], n_step=2, gamma=1.0, streams=99), chunk_of_agents),
    "episodes": (lambda: relive.EpisodeReplayBuffer[Any, Any](), chunk_of_episode),
}


@pytest.mark.parametrize("kind", WAYS)
@hypothesis.given(seed=st.integers(0, 2**32), disorder=st.integers(0, 20), loss=st.sampled_from([0.0, 0.3]))
def test_late_repeated_and_lost_chunks_are_never_spliced(kind: str, seed: int, disorder: int, loss: float) -> None:
    make, chunk_of = WAYS[kind]
    buffer, rng, twin = make(), random.Random(seed), Twin()
    adapter = adapters.adapter_of(buffer)
    events: list[tuple[float, bytes, tuple[Any, ...] | None]] = []
    for writer, episode in itertools.product((W, V), range(3)):
        number, t, when = 100 * (episode + 10 * (writer == V)), 0, 4 * rng.random()
        for is_over in [*[False] * rng.randrange(4), True]:
            count = rng.randrange(0 if is_over and t else 1, 4)
            what = episode, t, list(range(number + t, number + t + count)), is_over
            times = [when + disorder * rng.random() for _ in range(1 + (disorder > 10 and rng.random() < 0.2))]
            events += [(time, writer, what) for time in times if rng.random() >= loss]
            t, when = t + count, when + 1
    if rng.random() < 0.3:
        events.append((10 * rng.random(), W, None))
    for _, writer, event in sorted(events, key=lambda each: each[0]):
        if event is None:
            adapter.abandon(writer)
            twin.abandon(writer)
        else:
            adapter.insert(writer, chunk_of(*event))
            twin.insert((writer, event[0]), *event[1:])
    assert adapter.abandon_all() == len(twin.open)
    found = pairs_in(buffer)
    assert found == twin.pairs()
    assert all(then in (None, now + 1) for now, then in found)
    assert sum(found.values()) == adapter.inserted == sum([len(event[2]) for *_, event in events if event])
    if not disorder and not loss and all(event for *_, event in events):
        assert sum([then is None for _, then in found]) == 6


# How much there is to draw.


def test_the_weight_of_columns_is_their_eligible_rows() -> None:
    adapter, buffer = column_of()
    empty = adapter.weight({})
    assert (empty.weight, empty.size) == (0.0, 0)
    adapter.insert(W, columns(0, 5, "TERMINATED", is_start=True))
    buffer.set_eligible([0, 1], False)
    weight = adapter.weight({})
    assert (weight.weight, weight.size, weight.least, weight.ticks) == (3.0, 3, 1.0, 0)
    assert (adapter.rows, adapter.size) == (5, 3)


@pytest.mark.parametrize(("normalization", "nothing", "least"), [("batch", 1.0, 1.0), ("buffer", 0.0, 0.5)])
def test_the_weight_of_priorities_is_their_sum(normalization: Any, nothing: float, least: float) -> None:
    buffer = relive.PrioritizedReplayBuffer(100, alpha=1.0, epsilon=0.0, weight_normalization=normalization, seed=0)
    adapter = adapters.ColumnAdapter(buffer)
    assert (adapter.weight({}).weight, adapter.weight({}).least) == (0.0, nothing)
    adapter.insert(W, columns(0, 4, "TERMINATED", is_start=True))
    buffer.update_priorities([0, 1, 2, 3], [0.5, 2.0, 0.0, 4.0])
    weight = adapter.weight({"beta": 1.0})
    assert (weight.weight, weight.size, weight.least, weight.ticks) == (6.5, 4, least, 0)


def test_the_ticks_of_a_buffer_are_those_of_its_fleet() -> None:
    buffer = relive.PrioritizedReplayBuffer(100, seed=0)
    adapter = adapters.ColumnAdapter(buffer)
    adapter.insert(W, columns(0, 4, "TERMINATED", is_start=True))
    for ticks in (1, 7):
        assert len(adapter.draw(3, {})) == 3
        adapter.set_ticks(ticks)
        assert adapter.weight({}).ticks == ticks
    assert adapter.sampled == 6


def test_an_adapter_ignores_older_policy_versions() -> None:
    adapter, buffer = episode_of()
    assert adapter.weight(LAGS).weight == 0.0
    for version, known in ((3, 3), (2, 3), (3, 3), (4, 4)):
        adapter.set_policy_version(version)
        assert buffer.policy_version == known
    with pytest.raises(errors.ArgumentError, match="set_policy_version needs buffers of episodes, got RingReplay"):
        column_of()[0].set_policy_version(3)


@pytest.mark.parametrize("max_lag", [None, 0, 2, 5])
@pytest.mark.parametrize("decay", [1.0, 0.5, 1e-3])
def test_the_weight_of_a_draw_by_lag_is_its_sum(max_lag: int | None, decay: float) -> None:
    adapter, _ = episode_of()
    for version, rows in ((1, 2), (4, 3), (6, 5), (9, 1)):
        chunk = steps_of(0, rows, is_start=True, episode=version, policy_version=version, final=(rows, "COMPLETED"))
        adapter.insert(W, chunk)
    adapter.insert(W, steps_of(0, 7, is_start=True, episode=99, final=(7, "COMPLETED")))
    options = {**LAGS, "max_lag": max_lag, "lag_decay": decay}
    adapter.set_policy_version(8)
    weight = adapter.weight(options)
    lags = {7: 2, 4: 3, 2: 5, 0: 1}
    expected = {lag: rows * decay**lag for lag, rows in lags.items() if max_lag is None or lag <= max_lag}
    if max_lag is None and decay == 1:
        assert weight.weight == 18
    else:
        assert weight.weight * np.exp(weight.log_scale) == pytest.approx(sum(expected.values()), rel=1e-12)
    assert weight.size == 18


def test_the_weight_of_missing_lags_is_zero_and_of_far_ones_not() -> None:
    adapter, _ = episode_of()
    adapter.insert(W, steps_of(0, 2, is_start=True, policy_version=0, final=(2, "COMPLETED")))
    assert adapter.weight({**LAGS, "max_lag": 3}).weight == 0
    adapter.set_policy_version(100_000)
    assert adapter.weight({**LAGS, "max_lag": 3}).weight == 0
    weight = adapter.weight({**LAGS, "lag_decay": 0.5})
    assert (weight.weight, weight.log_scale) == (2.0, 100_000 * np.log(0.5))


# Which buffers have one.


def test_an_adapter_describes_its_buffer() -> None:
    beta = relive.LinearSchedule(0.4, 1.0, 100)
    prioritized = relive.PrioritizedReplayBuffer(10, beta=beta, weight_normalization="buffer")
    described = adapters.adapter_of(prioritized).describe()
    assert (described.kind, described.has_columns) == ("PrioritizedReplayBuffer", True)
    assert described.beta is beta
    assert described.weight_normalization == "buffer"
    assert (described.is_stratified, described.is_independent, described.is_used_up) == (True, False, False)
    independent = relive.PrioritizedReplayBuffer(10, stratified=False, max_times_sampled=3)
    described = adapters.adapter_of(independent).describe()
    assert (described.is_stratified, described.is_independent, described.is_used_up) == (False, False, True)
    described = adapters.adapter_of(relive.PrioritizedReplayBuffer(10, stratified=False)).describe()
    assert (described.is_stratified, described.is_independent) == (False, True)
    described = adapters.adapter_of(relive.SequenceReplayBuffer(10, length=3)).describe()
    assert (described.kind, described.has_columns, described.beta) == ("SequenceReplayBuffer", True, None)
    assert (described.is_stratified, described.is_independent, described.is_used_up) == (False, True, False)
    described = adapters.adapter_of(relive.EpisodeReplayBuffer[Any, Any]()).describe()
    assert (described.kind, described.has_columns, described.beta) == ("EpisodeReplayBuffer", False, None)


class EvenSampler(relive.Sampler):
    """Draws whatever there is."""

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        slots = self.anchors.slots()
        return relive.Draw(rng.choice(slots, size), np.full(size, 1 / len(slots)))


def test_the_weight_of_a_custom_sampler_is_its_eligible_rows() -> None:
    buffer = relive.RingReplayBuffer(10, sampler=EvenSampler(), seed=0)
    adapter = adapters.adapter_of(buffer)
    adapter.insert(W, columns(0, 4, "TERMINATED", is_start=True))
    assert adapter.weight({}).weight == 4
    assert len(adapter.draw(7, {})) == 7
    assert not adapter.describe().is_independent


@pytest.mark.parametrize("limiter", [relive.MinSize(2), relive.SampleToInsertRatio(1.0, min_size=1, error_buffer=2.0)])
def test_a_buffer_with_its_own_limiter_is_refused(limiter: Any) -> None:
    text = "make_buffer must return a buffer without a limiter, which ShardedReplay.start takes, got "
    for buffer in (relive.RingReplayBuffer(10, limiter=limiter), relive.EpisodeReplayBuffer[Any, Any](limiter=limiter)):
        with pytest.raises(errors.ArgumentError, match=text):
            adapters.adapter_of(buffer)
    adapters.adapter_of(relive.RingReplayBuffer(10, limiter=relive.MinSize(1)))


def test_objects_that_are_not_buffers_have_no_adapter() -> None:
    text = "make_buffer must return a buffer of columns, episodes or tokens, got list"
    with pytest.raises(errors.ArgumentTypeError, match=text):
        adapters.adapter_of([])


def test_a_buffer_with_its_own_admission_is_refused() -> None:
    rule = relive.Admission(1, 2)
    text = "make_buffer must return a buffer without admission, which ShardedReplay.start takes, got "
    for buffer in (relive.EpisodeReplayBuffer[int, int](admission=rule), relive.TokenReplayBuffer(9, admission=rule)):
        with pytest.raises(errors.ArgumentError, match=text):
            adapters.adapter_of(buffer)
