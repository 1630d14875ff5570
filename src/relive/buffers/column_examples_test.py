"""Column buffers by example: a test for each bug that other libraries shipped (P), and each row that must be answered.

The grid and the machine compare the rest with a naive twin. Storages are poisoned: a slot that was never written reads
as a number that no test writes. Observations tell where they are from: 1000 * (episode + 1) + time.
"""

import collections
from collections.abc import Callable
import itertools
import tracemalloc
import types
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relive
from relive import testing
from relive.buffers import column_grid_test
from relive.testing import zoo

INT = relive.Field((), np.int64)
SCHEMA = column_grid_test.SCHEMA
poisoned = column_grid_test.poisoned_storage


def make_ring(capacity: int, **settings: Any) -> relive.RingReplayBuffer:
    return relive.RingReplayBuffer(capacity, **{"storage": poisoned(capacity), "gamma": 1.0, "seed": 0, **settings})


def make_sequences(capacity: int, **settings: Any) -> relive.SequenceReplayBuffer:
    return relive.SequenceReplayBuffer(capacity, storage=poisoned(capacity), **{"seed": 0, **settings})


def add_episode(
    buffer: Any, number: int, length: int, *, ends: str = "terminated", eager: bool = True, start: int = 0
) -> None:
    """Add the steps of an episode one by one; `ends` may be "open"."""
    base = 1000 * (number + 1)
    for t in range(start, length):
        last = t == length - 1
        cut = last and ends == "truncated"
        buffer.add(
            base + t,
            base + t,
            float(t),
            base + t + 1 if eager or cut else None,
            terminated=last and ends == "terminated",
            truncated=cut,
            extra=base + t,
        )


def assert_whole(batch: relive.TransitionBatch, stack: int = 1) -> None:
    """Assert that every frame of every transition is of one episode, in order, and none is poison."""
    now = np.asarray(batch.observation).reshape(len(batch), stack)
    then = np.asarray(batch.next_observation).reshape(len(batch), stack)
    newest = now[:, -1:]
    back = np.arange(1 - stack, 1)
    time = newest % 1000
    assert np.array_equal(now, np.where(time + back < 0, 0, newest + back))
    later = batch.steps[:, None] + back
    assert np.array_equal(then, np.where(time + later < 0, 0, newest + later))
    assert np.array_equal(batch.action, newest[:, 0])
    assert np.array_equal(batch.extras["extra"], newest[:, 0])
    sums = [sum(t + k for k in range(m)) for t, m in zip(time[:, 0].tolist(), batch.steps.tolist(), strict=True)]
    assert batch.reward.tolist() == sums


# The ring's seam, the write cursor, the ends of episodes.


@pytest.mark.parametrize("ends", [(), (2, 3, 7, 11), tuple(range(15))])
@pytest.mark.parametrize("truncated", [False, True])
@pytest.mark.parametrize("eager", [False, True])
def test_capacity_counts_steps_exactly(ends: tuple[int, ...], truncated: bool, eager: bool) -> None:
    """P13: short episodes at first do not limit the number of stored steps."""
    buffer = relive.RingReplayBuffer(10)
    for t in range(15):
        is_cut, is_last = truncated and t in ends, not truncated and t in ends
        buffer.add(t, t, float(t), t + 1 if eager or is_cut else None, terminated=is_last, truncated=is_cut)
        assert len(buffer) == min(t + 1, 10)
        assert buffer.is_full == (t >= 9)
    keys = [*range(5, 14 + (eager or 14 in ends))]
    assert buffer.eligible_keys().tolist() == keys
    assert buffer.read(keys).observation.tolist() == keys
    with pytest.raises(KeyError, match="^'?key 4 not found"):
        buffer.read([4])
    buffer.check()


def test_final_observations_go_with_their_episode() -> None:
    """Memory does not grow with the number of evicted episodes."""
    buffer = make_ring(10)
    sizes = []
    for number in range(200):
        add_episode(buffer, number, 1, ends="truncated")
        sizes.append(buffer.get_stats().nbytes)
    assert max(sizes) == sizes[20] == sizes[-1]
    assert sizes[1] - sizes[0] == 7 * 8 + INT.nbytes  # What is known of an episode, and its final observation.
    stats = buffer.get_stats()
    assert (stats.truncated_episodes, stats.open_episodes, stats.evicted, stats.appended) == (10, 0, 190, 200)


@pytest.mark.parametrize("n_step", [1, 100])
@pytest.mark.parametrize("stack", [1, 3])
def test_a_read_of_no_keys_is_an_empty_batch(n_step: int, stack: int) -> None:
    buffer = make_ring(8, n_step=n_step, frame_stack=stack)
    add_episode(buffer, 0, 5)
    batch = buffer.read([])
    assert len(batch) == 0
    assert np.shape(batch.observation)[1:] == np.shape(buffer.read([0]).observation)[1:]


@pytest.mark.parametrize("streams", [1, 12])
def test_any_number_of_episodes_is_stored(streams: int) -> None:
    buffer = make_ring(120, streams=streams)
    for number in range(120 // streams):
        firsts = 1000 * (1 + number * streams + np.arange(streams))
        if streams == 1:
            buffer.add_episode([*firsts, *firsts + 1], firsts, [0.0], terminated=True, extra=firsts)
        else:
            buffer.extend(
                firsts, firsts, np.zeros(streams), firsts + 1, terminated=np.ones(streams, bool), extra=firsts
            )
    buffer.check()
    assert_whole(buffer.read(range(120)))
    assert buffer.get_stats().terminated_episodes == 120


@pytest.mark.parametrize("n_step", [1, 2, 3, 8, 20, 100])
@pytest.mark.parametrize("stack", [1, 3])
def test_a_window_stops_at_the_newest_row(n_step: int, stack: int) -> None:
    """P1, P2: full ring; n-step never mixes the newest with the oldest, and a cut there is not an end."""
    buffer = make_ring(8, n_step=n_step, frame_stack=stack)
    for t in range(30):
        add_episode(buffer, 0, t + 1, ends="open", start=t)
        batch = buffer.read(buffer.eligible_keys())
        assert_whole(batch, stack)
        assert not batch.is_terminal.any()
        assert batch.next_discount.tolist() == [1.0] * len(batch)
        assert batch.steps.tolist() == [min(n_step, t + 1 - key) for key in batch.keys]


@pytest.mark.parametrize("stack", [2, 3, 4])
def test_a_stack_whose_frames_were_overwritten_is_not_drawn(stack: int) -> None:
    """P2: missing history is not taken from other rows; the row before the first stack is gone, so it is ineligible."""
    buffer = make_ring(6, frame_stack=stack)
    add_episode(buffer, 0, 9, ends="open")
    assert buffer.eligible_keys().tolist() == list(range(3 + stack - 1, 9))
    with pytest.raises(ValueError, match="a window can start from, got 3"):
        buffer.read([3])
    assert_whole(buffer.sample(100), stack)
    add_episode(buffer, 1, 4)
    assert_whole(buffer.read(buffer.eligible_keys()), stack)


@pytest.mark.parametrize("make", [make_ring, lambda c: make_sequences(c, length=2), lambda c: make_ring(c, n_step=4)])
@pytest.mark.parametrize("eager", [False, True])
def test_no_slot_is_read_before_it_is_written(make: Any, eager: bool) -> None:
    """P3, P21: the ring is not full, even one write before it is."""
    buffer = make(5)
    for t in range(5):
        assert buffer.is_full is False
        add_episode(buffer, 0, t + 1, ends="open", start=t, eager=eager)
        if buffer.num_eligible:
            batch = buffer.sample(200)
            for column in (batch.observation, batch.action, batch.reward, batch.extras["extra"]):
                assert column.min() >= 0
    assert buffer.is_full is True


def test_a_truncated_step_keeps_its_own_next_observation() -> None:
    """P4: it is that of its episode, not the observation after the reset."""
    buffer = make_ring(20)
    add_episode(buffer, 0, 3, ends="truncated", eager=False)
    add_episode(buffer, 1, 3, ends="truncated", eager=False)
    batch = buffer.read([2, 5])
    assert batch.next_observation.tolist() == [1003, 2003]
    assert batch.next_discount.tolist() == [1, 1]
    assert not batch.is_terminal.any()


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("stride", [1, 3])
def test_every_sequence_is_one_piece_of_one_episode(prioritized: bool, stride: int) -> None:
    """P5, P7: at capacity, the first episode wrapped round the end; with strides and many adds past capacity."""
    buffer = make_sequences(23, length=4, stride=stride, prioritized=prioritized)
    rng = np.random.default_rng(0)
    for number in range(40):
        add_episode(buffer, number, int(rng.integers(1, 12)), ends=("open", "terminated", "truncated")[number % 3])
        if buffer.num_eligible:
            batch = buffer.sample(64)
            assert np.array_equal(np.diff(batch.observation), np.ones((64, 4)))
            assert np.array_equal(batch.action, batch.observation[:, :-1])
            assert np.array_equal(batch.extras["extra"], batch.observation[:, :-1])
            assert np.array_equal(batch.start_step, batch.observation[:, 0] % 1000)
            if prioritized:
                buffer.update_priorities(batch.keys, rng.random(64))
    buffer.check()


def test_the_last_start_and_the_last_step_do_appear() -> None:
    """P6: a mark in an episode's last step shows up as often as it should."""
    buffer = make_sequences(100, length=3)
    for number in range(5):
        add_episode(buffer, number, 7)
    batch = buffer.sample(10_000)
    testing.assert_frequencies(np.bincount(batch.start_step, minlength=5).tolist(), [1 / 5] * 5)
    marked = batch.action % 1000 == 6
    assert np.array_equal(marked.any(axis=1), batch.start_step == 4)
    assert np.array_equal(batch.terminated, marked)


def test_episodes_wrap_the_ring_in_order() -> None:
    """P8: several that wrap the ring keep cursor and size right."""
    buffer = make_ring(7)
    rows: list[int] = []
    for number in range(9):
        length = 1 + number % 7
        steps = 1000 * (number + 1) + np.arange(length + 1)
        rows += steps[:-1].tolist()
        keys = buffer.add_episode(steps, steps[:-1], np.zeros(length), terminated=True, extra=range(length))
        assert len(buffer) == min(7, int(keys[-1]) + 1)
        assert buffer.read(buffer.eligible_keys()).observation.tolist() == rows[-7:]


@pytest.mark.parametrize("terminated", [False, True])
def test_short_episodes_have_no_start_and_the_others_share(terminated: bool) -> None:
    """P9, P11, P14: no sequence crosses an end, starts are not moved, and each is drawn alike."""
    buffer = make_sequences(40, length=4)
    for number, length in enumerate((10, 10, 3, 10, 1, 4, 10, 2)):
        add_episode(buffer, number, length, ends="terminated" if terminated else "truncated")
    keys = buffer.eligible_keys()
    # The first episode has gone; of the second there are its last steps.
    assert keys.tolist() == [*range(10, 17), *range(23, 30), 34, *range(38, 45)]
    batch = buffer.sample(4000)
    testing.assert_frequencies(np.bincount(batch.keys, minlength=50)[keys].tolist(), [1 / keys.size] * keys.size)
    assert np.isin(batch.keys, keys).all()
    assert batch.probabilities.tolist() == pytest.approx([1 / keys.size] * 4000)
    ends = np.isin(batch.keys, [16, 29, 34, 44])[:, np.newaxis] & (np.arange(4) == 3)
    assert np.array_equal(batch.terminated, ends & terminated)
    assert np.array_equal(batch.truncated, ends & (not terminated))


@pytest.mark.parametrize("make", [make_ring, make_sequences])
def test_no_eligible_start_is_an_error_and_never_row_zero(make: Any) -> None:
    """P10."""
    buffer = make(10) if make is make_ring else make(10, length=3, prioritized=True)
    add_episode(buffer, 0, 1, ends="open", eager=False)
    for call in (buffer.sample, buffer.sample_keys):
        with pytest.raises(relive.NotReadyError):
            call(1)
    with pytest.raises(ValueError, match="got 0"):
        buffer.read([0])
    assert buffer.get_stats().sampled == 0


def test_a_batch_is_as_large_as_was_asked() -> None:
    """P12: with replacement, from two rows too."""
    buffer = make_ring(10)
    add_episode(buffer, 0, 2)
    assert len(buffer.sample(1)) == 1
    assert len(buffer.sample(500)) == 500
    assert set(buffer.sample(500).keys.tolist()) == {0, 1}


# n-step returns.


@pytest.mark.parametrize(
    ("eager", "gamma", "rewards", "steps"),
    [
        (False, 1.0, [3, 6, 5, 3, 15, 18, 21, 15, 8], [3, 3, 2, 1, 3, 3, 3, 2, 1]),
        (True, 1.0, [3, 6, 5, 3, 15, 18, 21, 24, 17, 9], [3, 3, 2, 1, 3, 3, 3, 3, 2, 1]),
        (False, 0.9, [2.52, 5.23, 4.7, 3, 13.36, 16.07, 18.78, 14.2, 8], [3, 3, 2, 1, 3, 3, 3, 2, 1]),
    ],
)
def test_a_running_tail_is_drawable_with_its_true_length(
    eager: bool, gamma: float, rewards: list[float], steps: list[int]
) -> None:
    buffer = relive.RingReplayBuffer(10, n_step=3, gamma=gamma)
    for t in range(10):
        buffer.add(t, t, float(t), t + 1 if eager else None, terminated=t == 3)
    keys = list(range(9 + eager))
    assert buffer.eligible_keys().tolist() == keys
    batch = buffer.read(keys)
    assert batch.reward.round(6).tolist() == rewards
    assert batch.steps.tolist() == steps
    assert batch.is_terminal.tolist() == [1 <= key <= 3 for key in keys]
    assert batch.next_discount == pytest.approx([0 if 1 <= key <= 3 else gamma**m for key, m in enumerate(steps)])
    following = [(4 if eager else 0) if 1 <= key <= 3 else key + m for key, m in enumerate(steps)]
    assert batch.next_observation.tolist() == following


@pytest.mark.parametrize("ends", ["terminated", "truncated", "open"])
@pytest.mark.parametrize("length", [1, 2, 3, 5, 8])
def test_the_discount_is_that_of_the_steps_that_were_taken(ends: str, length: int) -> None:
    """P16, P17, P19, P21: cut after m < n steps, it is gamma^m; termination alone makes it 0; every start is there."""
    buffer = make_ring(8, n_step=3, gamma=0.5)
    add_episode(buffer, 0, length, ends=ends)
    batch = buffer.read(range(length))
    steps = [min(3, length - t) for t in range(length)]
    assert batch.steps.tolist() == steps
    terminal = [ends == "terminated" and t + 3 >= length for t in range(length)]
    assert batch.is_terminal.tolist() == terminal
    assert batch.next_discount.tolist() == [0 if end else 0.5**m for end, m in zip(terminal, steps, strict=True)]
    assert batch.next_observation.tolist() == [1000 + t + m for t, m in enumerate(steps)]
    assert batch.reward.tolist() == [sum(0.5**k * (t + k) for k in range(m)) for t, m in enumerate(steps)]


@pytest.mark.parametrize("n_step", [1, 3, 5])
def test_a_first_step_that_is_terminal_has_its_own_reward(n_step: int) -> None:
    """P18: what follows in the ring belongs to another episode."""
    buffer = make_ring(20, n_step=n_step)
    buffer.add(7, 1, 5.0, 8, terminated=True, extra=0)
    add_episode(buffer, 1, 4)
    batch = buffer.read([0])
    assert (batch.reward.tolist(), batch.next_observation.tolist(), batch.steps.tolist()) == ([5], [8], [1])
    assert batch.is_terminal.tolist() == [True]


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_a_stack_of_a_single_step_has_no_other_episode_in_it(ends: str) -> None:
    """P20: one step is one transition; nothing is made up from its padding, nor taken from the episode before."""
    buffer = make_ring(20, frame_stack=4)
    for number, length in enumerate((1, 2, 1)):
        add_episode(buffer, number, length, ends=ends)
        assert len(buffer) == buffer.num_eligible
    assert_whole(buffer.read(range(4)), 4)
    assert_whole(buffer.sample(50), 4)


@pytest.mark.parametrize(("padding", "first"), [("zeros", 0), ("first", 7)])
def test_a_stack_begins_with_padding_and_ends_with_the_newest(padding: Any, first: int) -> None:
    """The frames have the axis after the batch."""
    buffer = relive.RingReplayBuffer(20, frame_stack=3, stack_padding=padding)
    frames = np.arange(7, 7 + 6 * 4).reshape(6, 2, 2).astype(np.uint8)
    frames[0] = 7
    buffer.add_episode(frames, np.zeros(5), np.zeros(5), terminated=False)
    batch = buffer.read(range(5))
    padded = np.concatenate([np.full((2, 2, 2), first), frames])
    assert batch.observation.dtype == np.uint8
    assert np.array_equal(batch.observation, [padded[t : t + 3] for t in range(5)])
    assert np.array_equal(batch.next_observation, [padded[t + 1 : t + 4] for t in range(5)])


def test_an_end_in_one_stream_cuts_no_window_of_another() -> None:
    """P22."""
    buffer = make_ring(40, n_step=3, streams=3)
    bases = np.array([1000, 2000, 3000])
    for t in range(5):
        now = bases + t
        buffer.extend(now, now, np.full(3, float(t)), now + 1, terminated=[False, t == 1, False], extra=now)
    batch = buffer.read(buffer.eligible_keys())
    by_stream = batch.steps.reshape(5, 3)
    assert by_stream[:, 0].tolist() == by_stream[:, 2].tolist() == [3, 3, 3, 2, 1]
    assert by_stream[:, 1].tolist() == [2, 1, 3, 2, 1]
    assert batch.next_observation.reshape(5, 3)[:, 2].tolist() == [3003, 3004, 3005, 3005, 3005]


def test_views_of_the_same_keys_have_the_same_observation() -> None:
    """P23: 1-step and n-step returns, side by side; n_step and gamma may be given per call."""
    buffer = make_ring(12, gamma=0.5)
    for number in range(6):
        add_episode(buffer, number, 1 + number)
    drawn = buffer.sample(64, n_step=3, gamma=1.0)
    single, many = buffer.read(drawn.keys), buffer.read(drawn.keys, n_step=3, gamma=1.0)
    for name in ("observation", "action", "keys"):
        assert np.array_equal(getattr(single, name), getattr(drawn, name))
        assert np.array_equal(getattr(many, name), getattr(drawn, name))
    assert np.array_equal(many.reward, drawn.reward)
    assert single.steps.tolist() == [1] * 64
    (key,) = set(drawn.keys[drawn.observation == 6001].tolist())
    assert buffer.read([key], n_step=3).reward.tolist() == [1 + 2 / 2 + 3 / 4]


@pytest.mark.parametrize("way", ["add", "extend"])
def test_a_single_first_step_is_fine_and_drawable_later(way: str) -> None:
    """P24: with n-step returns."""
    buffer = make_ring(10, n_step=5)
    for t in (0, 1):
        assert buffer.num_eligible == 0
        step = np.array([1000 + t])
        if way == "add":
            add_episode(buffer, 0, t + 1, ends="open", eager=False, start=t)
        else:
            buffer.extend(step, step, [float(t)], extra=step)
    assert_whole(buffer.sample(4))


@pytest.mark.parametrize("n_step", [5, 10, 11, 1000, 10**5])
def test_a_horizon_beyond_the_end_is_the_return_to_the_end(n_step: int) -> None:
    """However large n_step is, a window has at most as many steps as are stored, and reads few more."""
    storage = Locked(SCHEMA, 10)
    buffer = make_ring(10, n_step=n_step, storage=storage)
    add_episode(buffer, 0, 5)
    batch = buffer.read(range(5))
    assert batch.reward.tolist() == [10, 10, 9, 7, 4]
    assert batch.steps.tolist() == [5, 4, 3, 2, 1]
    assert storage.most <= 5 * 20


# Episodes.


def test_a_step_that_does_not_follow_closes_the_episode() -> None:
    buffer = make_ring(10, n_step=3)
    add_episode(buffer, 0, 2, ends="open")
    add_episode(buffer, 1, 1, ends="open")
    stats = buffer.get_stats()
    assert (stats.spliced_episodes, stats.truncated_episodes, stats.open_episodes) == (1, 1, 1)
    batch = buffer.read([0, 1, 2])
    assert batch.next_observation.tolist() == [1002, 1002, 2001]
    assert batch.steps.tolist() == [2, 1, 1]
    assert batch.next_discount.tolist() == [1, 1, 1]


UNKNOWN = [
    np.array(np.nan),
    np.array(np.nan, np.float16),
    np.array(np.nan, complex),
    np.array("NaT", "datetime64[us]"),
    np.array((np.nan, 1), [("x", float), ("n", int)]),
]


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_a_nan_follows_a_nan_in_every_stream(unknown: Any) -> None:
    """Beside a stream whose step does not follow."""
    buffer = relive.RingReplayBuffer(10, streams=2)
    now, other = np.array([unknown, np.zeros_like(unknown)]), np.array([unknown, np.ones_like(unknown)])
    buffer.extend(now, [0, 0], [0.0, 0.0], now)
    buffer.extend(other, [0, 0], [0.0, 0.0], now)
    assert buffer.get_stats().spliced_episodes == 1
    assert buffer.get_stats().open_episodes == 2
    assert buffer.read(range(4), n_step=2).steps.tolist() == [2, 1, 1, 1]


def test_a_nan_of_any_sign_and_a_zero_of_any_sign_follow() -> None:
    buffer = relive.RingReplayBuffer(8)
    buffer.add([np.nan, 0.0], 0, 0.0, [-np.float64(np.nan), -0.0])
    buffer.add([np.nan, 0.0], 0, 0.0, [1.0, 0.0])
    scalar = relive.RingReplayBuffer(8)
    scalar.add(0.0, 0, 0.0, -np.float64(np.nan))
    scalar.add(np.nan, 0, 0.0, 1.0)
    for each in (buffer, scalar):
        assert each.get_stats().spliced_episodes == 0
        assert each.read([0], n_step=2).steps.tolist() == [2]


@pytest.mark.parametrize("ends", [False, True])
def test_an_ended_episode_does_not_go_on(ends: bool) -> None:
    """An environment that is reset in mid-episode, whose first observation happens to be the last one."""
    buffer = relive.RingReplayBuffer(8, n_step=2, gamma=0.5)
    assert not buffer.end_episode()
    buffer.add(0.0, 0, 1.0, 0.0)
    assert not ends or buffer.end_episode()
    buffer.add(0.0, 0, 10.0, 0.0)
    batch = buffer.read([0])
    assert (batch.reward.item(), batch.next_discount.item()) == ((1.0, 0.5) if ends else (6.0, 0.25))
    stats = buffer.get_stats()
    assert (stats.truncated_episodes, stats.open_episodes, stats.spliced_episodes) == (int(ends), 1, 0)
    buffer.check()


@pytest.mark.parametrize("shell", [lambda buffer: buffer, relive.ThreadSafeReplayBuffer])
@pytest.mark.parametrize(
    ("flags", "terminated"),
    [
        ({"terminated": True}, 1),
        ({"terminated": False}, 0),
        ({"truncated": True}, 0),
        ({"terminated": False, "truncated": True}, 0),
        ({"terminated": 1, "truncated": np.False_}, 1),
        ({"terminated": None, "truncated": 1}, 0),
    ],
)
def test_add_episode_says_how_it_ended(shell: Any, flags: dict[str, Any], terminated: int) -> None:
    buffer = shell(relive.RingReplayBuffer(9))
    buffer.add_episode(np.zeros(4), np.zeros(3, int), np.zeros(3), **flags)
    stats = buffer.get_stats()
    assert (stats.terminated_episodes, stats.truncated_episodes) == (terminated, 1 - terminated)


@pytest.mark.parametrize("make", [relive.RingReplayBuffer, relive.PrioritizedReplayBuffer])
@pytest.mark.parametrize("end", ["terminated", "truncated", None])
def test_add_steps_is_add_step_by_step(make: Any, end: str | None) -> None:
    one, other = make(6, seed=0), make(6, seed=0)
    for start, length in ((0, 2), (2, 1), (3, 4)):
        t = np.arange(start, start + length)
        flags = {} if end is None else {end: start == 3}
        keys = one.add_steps(np.arange(start, start + length + 1), t, t / 2, **flags)
        for each in t.tolist():
            is_last = each == start + length - 1
            other.add(each, each, each / 2, each + 1, **{name: flag and is_last for name, flag in flags.items()})
        assert keys.tolist() == t.tolist()
    assert zoo.state_of(one) == zoo.state_of(other)
    one.add_steps([70, 71], [0], [0.0])
    assert one.get_stats().spliced_episodes == (end is None)
    one.check()


@pytest.mark.parametrize(("first", "then", "last"), [*itertools.product(["add", "extend"], repeat=3)])
@pytest.mark.parametrize("alone", [[], [1], [0, 1]])
def test_an_announcement_is_void_once_its_stream_went_on(first: str, then: str, last: str, alone: list[int]) -> None:
    """Each stream begins, some of them go on, and each comes with what would have followed its beginning."""
    buffer: Any = relive.RingReplayBuffer(8, relive.Schema(INT, relive.Field(65, np.uint8)), streams=2)

    def write(call: str, streams: list[int], observations: list[int], following: list[int]) -> None:
        zeros = np.zeros((len(observations), 65), np.uint8)
        if call == "extend":
            buffer.extend(observations, zeros, np.zeros(len(zeros)), following, streams=streams)
        else:
            for stream, now, then in zip(streams, observations, following, strict=True):
                buffer.add(now, zeros[0], 0.0, then, stream=stream)

    write(first, [0, 1], [1, 2], [3, 4])
    if alone:
        write(then, alone, [3 + stream for stream in alone], [5 + stream for stream in alone])
    write(last, [0, 1], [3, 4], [7, 8])
    assert buffer.get_stats().spliced_episodes == len(alone)
    write(last, [0, 1], [7, 8], [9, 9])
    assert buffer.get_stats().spliced_episodes == len(alone)
    buffer.check()


def test_no_step_of_any_stream_is_none() -> None:
    buffer = relive.RingReplayBuffer(4, streams=2, seed=0)
    buffer.extend([0.0, 1.0], [0, 0], [0.0, 0.0], [1.0, 2.0])
    keys = buffer.extend(np.zeros(0), np.zeros(0, int), np.zeros(0), np.zeros(0), streams=[])
    assert (keys.tolist(), len(buffer), buffer.appended) == ([], 2, 2)
    buffer.check()


def test_a_flag_is_0_or_1_of_any_type() -> None:
    buffer = relive.RingReplayBuffer(40, streams=2)
    flags = [1, 1.0, np.True_, np.uint8(1), np.float32(1), np.array(True), np.array([True]), np.array([[1]])]
    for flag in flags:
        key = buffer.add(0.0, 0, 0.0, next_observation=1.0, terminated=flag, truncated=0, stream=0)
        assert buffer.read([key]).is_terminal.tolist() == [True]
    pairs: list[Any] = [[0, 1], (False, True), np.array([0.0, 1.0], np.float32), np.array([0, 1], np.uint8)]
    for pair in pairs:
        keys = buffer.extend([0.0, 0.0], [0, 0], [0.0, 0.0], [1.0, 1.0], terminated=pair)
        assert buffer.read(keys).is_terminal.tolist() == [False, True]


# Dtypes and memory.

STRUCTURED = np.dtype([("x", np.float64), ("n", np.int64), ("flag", np.bool_)])
EXACT = [
    np.array([1 + 2**-52, 1e300]),
    np.array([np.nan, -0.0]),
    np.array([2**53 + 1, -(2**63)]),
    np.array([2**64 - 1, 2**63 + 1], np.uint64),
    np.array([True, False]),
    np.array([255, 0], np.uint8),
    np.array([65504.0, 6e-8], np.float16),
    np.array([0.1, -np.inf], np.float32),
    np.array([1 + 2j, 3 - 1e-300j]),
    np.array([(0.1, 2**60 + 1, True), (-np.inf, -1, False)], STRUCTURED),
    np.array(["2024-01-01", "NaT"], "datetime64[us]"),
    np.array([b"ab", b""], "S3"),
    np.array(["ä", "bcd"], "U3"),
    np.array([1, 2], ">i4"),
]


@pytest.mark.parametrize("array", EXACT, ids=lambda array: array.dtype.str)
def test_values_of_every_dtype_come_back_bit_for_bit(array: npt.NDArray[Any]) -> None:
    """P54."""
    field = relive.Field(2, array.dtype)
    declared = relive.Schema(field, relive.Field((), array.dtype), extras={"extra": field})
    for schema in (None, declared) if array.dtype.kind in "biufc" and array.dtype.isnative else (declared,):
        buffer = relive.RingReplayBuffer(2, schema)
        for _ in range(3):
            buffer.add(array, array[0], 0.0, array[::-1], extra=array)
            buffer.add(array[::-1], array[1], 0.0, array, extra=array)
        batch = buffer.read(buffer.eligible_keys())
        there_and_back = array.tobytes() + array[::-1].tobytes()
        for column in (batch.observation, batch.next_observation, batch.action, batch.extras["extra"]):
            assert column.dtype == array.dtype
        assert batch.observation.tobytes() == there_and_back
        assert batch.next_observation.tobytes() == array[::-1].tobytes() + array.tobytes()
        assert batch.action.tobytes() == array.tobytes()
        assert batch.extras["extra"].tobytes() == 2 * array.tobytes()
        assert buffer.get_stats().spliced_episodes == 0


def test_a_schema_is_inferred_from_the_first_step_and_enforced() -> None:
    buffer = relive.RingReplayBuffer(4)
    with pytest.raises(relive.SchemaError):
        buffer.add([object()], 0, 0.0)
    assert (buffer.schema, len(buffer)) == (None, 0)
    buffer.add({"image": np.zeros((2, 2), np.uint8), "state": [1.0]}, np.int8(0), 0, lives=np.float16(3))
    assert buffer.schema == relive.Schema(
        {"image": relive.Field((2, 2), np.uint8), "state": relive.Field(1, np.float64)},
        relive.Field((), np.int8),
        reward=relive.Field((), np.float64),
        extras={"lives": relive.Field((), np.float16)},
    )
    wrong: dict[str, Any] = {"observation": {"state": [1.0]}, "observation/image": {"image": np.full((2, 2), 0.5)}}
    for name, change in wrong.items():
        with pytest.raises(relive.SchemaError, match=name):
            buffer.add({"state": [1.0], **change}, np.int8(0), 0.0, lives=np.float16(3))
    assert len(buffer) == 1
    vector = relive.RingReplayBuffer(8, streams=2)
    vector.extend(np.zeros((2, 3), np.uint8), np.zeros(2, np.int8), np.zeros(2, np.float32))
    assert vector.schema == relive.Schema(
        relive.Field(3, np.uint8), relive.Field((), np.int8), reward=relive.Field((), np.float32)
    )


def test_arrays_that_were_added_are_not_kept() -> None:
    """P52, P27: `windows_test` looks at the arrays of a batch."""
    buffer = relive.RingReplayBuffer(20, streams=2)
    step = np.zeros(1), np.array(0), np.array(0.0), np.ones(1)
    run = np.arange(1.0, 7.0).reshape(6, 1), np.arange(5), np.arange(5.0)
    round_of = np.array([[7.0], [8.0]]), np.zeros(2, int), np.zeros(2), np.array([[8.0], [9.0]])
    buffer.add(*step, extra=step[0], stream=1)
    buffer.add_episode(*run, terminated=False, stream=0, extra=run[0][1:])
    buffer.extend(*round_of, extra=round_of[0])
    before = zoo.plain(buffer.read(range(8)))
    for array in (*step, *run, *round_of):
        array[...] = -5
    assert zoo.plain(buffer.read(range(8))) == before
    buffer.extend([[8.0], [9.0]], [0, 0], [0.0, 0.0], extra=[[0.0], [0.0]])
    assert buffer.get_stats().spliced_episodes == 1  # That of stream 1, which went on at 7.


class Locked(relive.ColumnStorage):
    """A storage that may be locked, and knows the largest number of rows it was ever asked for."""

    is_locked = False
    most = 0

    def write(self, slots: Any, rows: Any) -> None:
        assert not self.is_locked
        super().write(slots, rows)

    def read(self, slots: Any, fields: Any = None) -> dict[str, npt.NDArray[Any]]:
        self.most = max(self.most, np.size(slots))
        return super().read(slots, fields)


def test_draws_and_updates_write_nothing_into_storage() -> None:
    """P25, P48: a draw changes nothing temporarily, neither in the columns nor in the priorities."""
    arrays: list[npt.NDArray[Any]] = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        arrays.append(np.full(shape, column_grid_test.POISON, dtype))
        return arrays[-1]

    storage = Locked(SCHEMA, 9, allocate=allocate)
    buffer = relive.PrioritizedReplayBuffer(9, storage=storage, n_step=3, frame_stack=2, seed=0)
    for number in range(4):
        add_episode(buffer, number, 4)
    before = [array.copy() for array in arrays]
    priorities = buffer.get_priorities(buffer.eligible_keys()).tolist()
    storage.is_locked = True
    for array in arrays:
        array.flags.writeable = False
    for _ in range(20):
        batch = buffer.sample(16)
        batch.observation[:] = column_grid_test.POISON
        batch.reward /= 7
        batch.next_observation += 1
        assert buffer.get_priorities(buffer.eligible_keys()).tolist() == priorities
        buffer.check()
    assert all(np.array_equal(one, other) for one, other in zip(arrays, before, strict=True))


def test_a_missing_next_observation_reads_as_zeros() -> None:
    """P56: an end without its next observation reads as zeros, on a re-used slot too."""
    buffer = relive.RingReplayBuffer(4, n_step=2, frame_stack=2)
    for t in range(1, 30):
        buffer.add(10 * t, t, 1.0, 10 * t + 1, truncated=True)
        buffer.add(10 * t + 5, t, 1.0, terminated=True)
        newest = buffer.read(buffer.eligible_keys()[-2:])
        assert newest.next_observation.tolist() == [[10 * t, 10 * t + 1], [10 * t + 5, 0]]


@pytest.mark.parametrize("episodes", [60, pytest.param(4_000, marks=pytest.mark.long)])
def test_memory_is_flat_however_many_steps_come(episodes: int) -> None:
    """P57: episodes of 2,500 steps and, in between, single ones, into a ring of 5,000."""
    buffer = relive.PrioritizedReplayBuffer(5000, frame_stack=2, n_step=3)
    observations, zeros = np.arange(2501), np.zeros(2500)
    sizes = []
    tracemalloc.start()
    for number in range(episodes):
        buffer.add_episode(observations, zeros, zeros, terminated=number % 2 == 0)
        for t in range(3):
            buffer.add(t, 0.0, 0.0, t + 1, terminated=number % 3 == t)
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert buffer.get_stats().appended == 2_503 * episodes
    assert sizes[-1] - sizes[10] < 20_000
    buffer.check()


@pytest.mark.parametrize("capacity", [7, 12])
@pytest.mark.parametrize("seed", range(2))
def test_stacked_fields_equal_a_buffer_that_copies_everything(capacity: int, seed: int) -> None:
    """P58: short episodes, the last item, clearing; whole transitions are kept aside as they happen."""
    rng = np.random.default_rng(seed)
    buffer = relive.RingReplayBuffer(capacity, frame_stack=3)
    copies: dict[int, Any] = {}
    for number in range(25):
        frames: dict[str, npt.NDArray[Any]] = {"a": rng.integers(255, size=(8, 2)).astype(np.uint8)}
        frames["b"] = rng.normal(size=8)
        stacks = {name: np.concatenate([np.zeros_like(column[:2]), column]) for name, column in frames.items()}
        for t in range(int(rng.integers(1, 8))):
            now, then = ({name: column[t + k] for name, column in frames.items()} for k in (0, 1))
            key = buffer.add(now, t, float(t), then, terminated=t == 6)
            copies[key] = {name: (column[t : t + 3], column[t + 1 : t + 4]) for name, column in stacks.items()}
            eligible = buffer.eligible_keys()
            assert eligible[-1] == key
            batch = buffer.read(eligible)
            for name in frames:
                assert np.array_equal(batch.observation[name], [copies[k][name][0] for k in eligible.tolist()])
                assert np.array_equal(batch.next_observation[name], [copies[k][name][1] for k in eligible.tolist()])
        if number % 9 == 8:
            buffer.clear()


def test_frames_copied_to_another_buffer_are_stacked_there() -> None:
    """P59: single frames are passed on, not stacks, and in order."""
    source, target = make_ring(30, frame_stack=3), make_ring(30, frame_stack=3)
    for number, length in enumerate((4, 2, 6)):
        add_episode(source, number, length)
    raw = source.read(source.eligible_keys())
    columns = raw.observation[:, -1], raw.action, raw.reward, raw.next_observation[:, -1]
    for *step, is_last, extra in zip(*columns, raw.is_terminal, raw.extras["extra"], strict=True):
        target.add(*step, terminated=is_last, extra=extra)
    assert zoo.plain(target.read(target.eligible_keys())) == zoo.plain(raw)


# Sequences.


def test_sequences_have_one_observation_more_than_steps() -> None:
    buffer = relive.SequenceReplayBuffer(100, length=5, burn_in=2)
    buffer.add_episode(
        np.zeros((21, 3, 2)), np.zeros((20, 4)), np.zeros(20), terminated=True, state=np.tile(np.arange(20), (7, 1)).T
    )
    for batch in (buffer.sample(6), buffer.read(range(6))):
        assert batch.observation.shape == (6, 6, 3, 2)
        assert batch.action.shape == (6, 5, 4)
        assert batch.extras["state"].shape == (6, 5, 7)
        assert batch.extras["state"][:, 0, 6].tolist() == batch.start_step.tolist() == batch.keys.tolist()
        for name in ("reward", "terminated", "truncated", "mask", "is_burn_in"):
            assert getattr(batch, name).shape == (6, 5), name
        for name in ("keys", "start_step", "probabilities", "weights"):
            assert getattr(batch, name).shape == (6,), name
        assert len(batch) == 6
        assert batch.weights.tolist() == [1] * 6
        assert batch.probabilities.tolist() == pytest.approx([1 / 16] * 6)
        assert batch.is_burn_in.tolist() == [[True, True, False, False, False]] * 6


@pytest.mark.parametrize("count", [50, 150])
@pytest.mark.parametrize("eager", [False, True])
def test_a_start_needs_its_steps_and_the_observation_after(count: int, eager: bool) -> None:
    """P31: in a ring of 100; a sequence cut in mid-episode is no end."""
    buffer = make_sequences(100, length=5)
    add_episode(buffer, 0, count, ends="open", eager=eager)
    keys = buffer.eligible_keys()
    assert keys.tolist() == list(range(max(count - 100, 0), count - 5 + eager))
    batch = buffer.read(keys)
    assert np.array_equal(batch.observation, 1000 + keys[:, None] + np.arange(6))
    assert np.array_equal(batch.action, batch.observation[:, :-1])
    assert np.array_equal(batch.reward, batch.action - 1000)
    assert np.array_equal(batch.start_step, keys)
    assert batch.mask.all()
    assert not batch.truncated.any()
    assert not batch.terminated.any()


def test_a_write_may_complete_two_rows_of_every_stream() -> None:
    buffer = make_sequences(100, length=1, streams=12)
    for t in range(2):
        now = 1000 * np.arange(1, 13) + t
        buffer.extend(now, now, np.full(12, float(t)), terminated=np.full(12, t == 1), extra=now)
    assert buffer.eligible_keys().tolist() == list(range(24))
    buffer.check()


@pytest.mark.parametrize("eager", [False, True])
def test_a_small_ring_of_short_episodes_has_these_starts(eager: bool) -> None:
    """Ring of 12, episodes of 5, 30 adds, sequences of 3: starts at times 20, 21, 22, 25, 26, 27."""
    buffer = relive.SequenceReplayBuffer(12, length=3)
    for t in range(30):
        buffer.add(t, t, float(t), t + 1 if eager else None, terminated=t % 5 == 4)
    assert buffer.eligible_keys().tolist() == [20, 21, 22, 25, 26, 27]
    batch = buffer.read([22, 25])
    assert batch.action.tolist() == [[22, 23, 24], [25, 26, 27]]
    assert batch.terminated.tolist() == [[False, False, True], [False] * 3]


@pytest.mark.parametrize("terminated", [False, True])
def test_padding_is_zeros_and_masked(terminated: bool) -> None:
    buffer = relive.SequenceReplayBuffer(100, length=8, pad=True)
    buffer.add_episode(np.arange(1, 6), np.arange(1, 5), np.arange(1.0, 5), terminated=terminated, extra=np.ones(4))
    assert buffer.eligible_keys().tolist() == [0]
    for batch in (buffer.read([0]), buffer.sample(1)):
        assert batch.mask.tolist() == [[True] * 4 + [False] * 4]
        assert batch.observation.tolist() == [[1, 2, 3, 4, 5, 0, 0, 0, 0]]
        assert batch.action.tolist() == [[1, 2, 3, 4, 0, 0, 0, 0]]
        assert batch.reward.tolist() == [[1, 2, 3, 4, 0, 0, 0, 0]]
        assert batch.extras["extra"].tolist() == [[1, 1, 1, 1, 0, 0, 0, 0]]
        assert batch.terminated.tolist() == [[k == 3 and terminated for k in range(8)]]
        assert batch.truncated.tolist() == [[k == 3 and not terminated for k in range(8)]]


def test_a_sequence_may_be_as_long_as_the_ring() -> None:
    """Without its next observation the last step is never complete, unless the episode terminates."""
    for eager in (False, True):
        buffer = make_sequences(4, length=4)
        add_episode(buffer, 0, 9, ends="open", eager=eager)
        assert buffer.eligible_keys().tolist() == [5] * eager
        buffer.add(1009, 1009, 9.0, terminated=True, extra=0)
        assert buffer.eligible_keys().tolist() == [6]


def test_a_loaded_ring_of_a_single_row_goes_on() -> None:
    buffer = relive.SequenceReplayBuffer(1, length=1)
    buffer.add(1000, 0, 0.0, 1001)
    other = relive.SequenceReplayBuffer.from_state(buffer.state_dict())
    other.add(1001, 0, 0.0, 1002)
    assert other.read([1]).observation.tolist() == [[1001, 1002]]


def test_strides_count_from_the_start_of_the_episode() -> None:
    """P35: an episode longer than the ring goes on for ever, and its start was overwritten."""
    buffer = make_sequences(10, length=3, stride=4)
    for t in range(200):
        add_episode(buffer, 0, t + 1, ends="open", start=t)
        assert buffer.eligible_keys().tolist() == [s for s in range(0, t + 1, 4) if t - 9 <= s <= t - 2]
    assert buffer.read([192]).observation.tolist() == [[1192, 1193, 1194, 1195]]
    assert buffer.read([192]).start_step.tolist() == [192]


# The buffer as a whole.


def test_equal_seeds_and_calls_give_equal_batches() -> None:
    """P64: whatever others do with numpy's global generator, which is not disturbed; a generator is a seed."""

    def drawn(noise: int, seed: Any) -> Any:
        buffers: list[Any] = [relive.RingReplayBuffer(40, seed=seed), relive.PrioritizedReplayBuffer(40, seed=seed)]
        buffers.append(relive.SequenceReplayBuffer(40, length=3, prioritized=True, stratified=False, seed=seed))
        for t in range(50):
            for buffer in buffers:
                buffer.add(t, t, 1.0, t + 1)
        np.random.seed(noise)  # noqa: NPY002
        before = str(np.random.get_state())  # noqa: NPY002
        batches = [[buffer.sample(20).keys.tolist(), buffer.sample_keys(8).tolist()] for buffer in buffers]
        assert str(np.random.get_state()) == before  # noqa: NPY002
        return batches

    assert drawn(0, 5) == drawn(1, 5)
    assert all(one != other for one, other in zip(drawn(0, 5), drawn(0, 6), strict=True))
    assert drawn(0, np.random.default_rng(5))[0] == drawn(0, 5)[0]


def test_clear_forgets_the_steps_and_not_the_counters() -> None:
    buffer = relive.PrioritizedReplayBuffer(8, n_step=3, streams=2, seed=0)
    buffer.extend([0, 10], [0, 0], [0.0, 0.0], [1, 11])
    buffer.update_priorities([0], [7.0])
    buffer.sample(3)
    buffer.clear()
    stats = buffer.get_stats()
    assert (len(buffer), stats.size, buffer.num_eligible, stats.num_eligible, stats.open_episodes) == (0, 0, 0, 0, 0)
    assert (stats.appended, stats.sampled) == (2, 3)
    buffer.check()
    assert buffer.add(5, 0, 0.0, next_observation=6, stream=0) == 2
    assert buffer.get_stats().spliced_episodes == 0
    assert buffer.get_priorities([2]).tolist() == [7.0]
    assert buffer.read(buffer.eligible_keys()).observation.tolist() == [5]
    with pytest.raises(relive.UnknownKeyError, match="key 0 not found"):
        buffer.read([0])
    relive.RingReplayBuffer(8).clear()


def test_set_eligible_takes_anchors_out_and_lets_them_in() -> None:
    buffer = make_ring(8)
    add_episode(buffer, 0, 4)
    assert buffer.set_eligible([1, 2, 2, 77], False) == 3
    assert buffer.get_stats().stale_keys == 1
    assert buffer.eligible_keys().tolist() == [0, 3]
    assert set(buffer.sample(64).keys.tolist()) == {0, 3}
    assert buffer.read([1]).observation.tolist() == [1001], "it can still be read"
    assert buffer.set_eligible(2, True) == 1
    assert buffer.eligible_keys().tolist() == [0, 2, 3]
    buffer.check()


def test_stats_say_what_is_there_and_what_happened() -> None:
    buffer = relive.RingReplayBuffer(8, streams=2)
    assert buffer.get_stats().nbytes == 13 * 8, "a number, a link and flags a row, and no episode"
    buffer.add(0.0, 0, 0.0, stream=1)
    for terminated in (True, False):
        buffer.add_episode([0.0, 1.0, 2.0], [0, 0], [0.0, 0.0], terminated=terminated, stream=0)
    stats = buffer.get_stats()
    assert stats == relive.ColumnBufferStats(
        size=5,
        capacity=8,
        num_eligible=4,
        open_episodes=1,
        terminated_episodes=1,
        truncated_episodes=1,
        nbytes=stats.nbytes,
        effective_sample_size=4.0,
        max_policy_lag=None,
        appended=5,
        sampled=0,
        evicted=0,
        cleared=0,
        spliced_episodes=0,
        suspected_resets=0,
        continued_truncations=0,
        stale_keys=0,
        spent=0,
    )
    assert stats.nbytes >= 8 * 3 * 8
    buffer.add_episode(np.zeros(8), np.zeros(7, int), np.zeros(7), terminated=False, stream=1)
    assert buffer.get_stats().evicted == 4
    assert buffer.is_full
    assert (buffer.capacity, buffer.streams, buffer.num_eligible) == (8, 2, 8)
    assert isinstance(buffer.sampler, relive.UniformSampler)
    assert repr(buffer) == "<RingReplayBuffer of 8 steps, capacity=8, streams=2>"


DAMAGE: dict[str, Any] = {
    "a slot without a row has flags": lambda store: store.flags.__setitem__(6, 1),
    "the anchors that count as readable are not": lambda store: store.flags.__setitem__(1, store.flags[1] & 254),
    "2 anchors are counted as eligible, which is": lambda store: store.flags.__setitem__(0, store.flags[0] | 2),
    "the link of the row of key 0 is not what it must be": lambda store: store.following.__setitem__(0, -1),
    "the state of the row of key 1 is not what it": lambda store: store.flags.__setitem__(1, store.flags[1] & 247),
    "the step of the row of key 0 is not what it must be": lambda store: store.places.__setitem__(1, 7),
    "the numbers of episodes that are free are not those": lambda store: store.free.__setitem__(0, store.free[1]),
    "the oldest row of an episode is not what it must be": lambda store: store.episodes[5].__setitem__(0, 1),
    "an episode is open in another stream than it says, or has": lambda store: store.last.__setitem__(1, 0),
    "9 rows are alive in 8 slots": lambda store: store.num.__setitem__(1, 9),
}


def assert_found(buffer: Any, steps: int, damage: Callable[[Any], None], message: str) -> None:
    """Assert that `check` finds what is damaged after some steps, and nothing before."""
    for t in range(steps):
        buffer.add(float(t), t, 0.0, next_observation=t + 1.0, stream=0)
    buffer.check()
    damage(buffer._store)
    with pytest.raises(relive.CorruptionError, match=f"^{message}"):
        buffer.check()


@pytest.mark.parametrize("message", DAMAGE)
def test_check_finds_what_is_damaged(message: str) -> None:
    assert_found(relive.RingReplayBuffer(8, streams=2), 2, DAMAGE[message], message)


def test_check_finds_damaged_keys_of_a_stream() -> None:
    message = "the newest keys of a stream are not those of its episode$"
    buffer = relive.SequenceReplayBuffer(8, length=3)
    assert_found(buffer, 4, lambda store: store.rows[4].__setitem__((0, 2), 3), message)


@pytest.mark.parametrize("mapping", [collections.OrderedDict, types.MappingProxyType, collections.UserDict])
@pytest.mark.parametrize("streams", [1, 2])
def test_observations_may_be_any_mapping(mapping: Callable[[Any], Any], streams: int) -> None:
    """P96: those of another kind than a dict are read by the schema."""
    buffers = [relive.RingReplayBuffer(9, streams=streams, n_step=2, seed=0) for _ in range(2)]
    for buffer, make in zip(buffers, (dict, mapping), strict=True):
        for t in range(6):
            seen = make({"pose": np.full((streams, 2), t), "speed": np.full(streams, t / 2)})
            following = None if t % 3 == 1 else make({"pose": seen["pose"] + 1, "speed": seen["speed"] + 0.5})
            buffer.extend(seen, np.full(streams, t), np.ones(streams), following, terminated=np.full(streams, t == 4))
        one, two = (make({"pose": np.array([t, t]), "speed": t / 2}) for t in (7, 8))
        buffer.add(one, 7, 1.0, two, stream=0)
        buffer.add(two, 8, 1.0, stream=0)
    assert zoo.state_of(buffers[1]) == zoo.state_of(buffers[0])


# The end of a recording, after which nobody knows the observation.


def test_windows_end_before_a_step_that_stays_incomplete() -> None:
    buffer = relive.PrioritizedReplayBuffer(20, n_step=3, gamma=1.0, seed=0)
    buffer.add(0.0, 0, 1.0)
    buffer.add(1.0, 0, 1.0)
    assert buffer.end_episode()
    assert not buffer.end_episode()
    batch = buffer.read([0])
    assert (batch.reward.item(), batch.steps.item(), batch.next_observation.item()) == (1.0, 1, 1.0)
    assert (batch.next_discount.item(), batch.is_terminal.item()) == (1.0, False)
    assert (len(buffer), buffer.num_eligible) == (2, 1)
    assert buffer.set_eligible([1], True) == 1
    assert buffer.update_priorities([1], [50.0]) == 1
    assert buffer.get_priorities([1]).tolist() == [50.0]
    assert {*buffer.sample(50).keys.tolist()} == {0}
    with pytest.raises(relive.ArgumentError, match="^keys must be of steps that a window can start from, got 1$"):
        buffer.read([1])
    buffer.add(1.0, 0, 5.0, 2.0)
    assert buffer.read([0]).reward.item() == 1.0, "the next step begins another episode"
    assert buffer.explain(2).step == 0
    stats = buffer.get_stats()
    assert (stats.truncated_episodes, stats.open_episodes, stats.spliced_episodes) == (1, 1, 0)
    for each in (buffer, relive.PrioritizedReplayBuffer.from_state(buffer.state_dict())):
        each.check()
        assert each.eligible_keys().tolist() == [0, 2]


def test_a_lone_step_that_stays_incomplete_is_stored() -> None:
    buffer = relive.RingReplayBuffer(2, seed=0)
    buffer.add(0.0, 0, 1.0)
    assert buffer.end_episode()
    assert (len(buffer), buffer.num_eligible) == (1, 0)
    for t in range(3):
        buffer.add(float(t), 0, 1.0, t + 1.0)
        buffer.check()
    assert buffer.eligible_keys().tolist() == [2, 3]


@pytest.mark.parametrize("ends", ["end_episode", "add_episode"])
@pytest.mark.parametrize("streams", [1, 2])
def test_sequences_are_truncated_before_an_incomplete_step(streams: int, ends: str) -> None:
    """Also where add_episode ends what was open in its stream."""
    buffer = relive.SequenceReplayBuffer(40, length=3, pad=True, streams=streams, seed=0)
    for t in range(5):
        for stream in range(streams):
            buffer.add(10.0 * stream + t, t, float(t), stream=stream)
    for stream in range(streams):
        if ends == "end_episode":
            assert buffer.end_episode(stream=stream)
        else:
            buffer.add_episode([90.0, 91.0], [0], [0.0], terminated=True, stream=stream)
    assert [key for key in buffer.eligible_keys().tolist() if key < 5 * streams] == [*range(2 * streams)]
    batch = buffer.read([0, streams])
    assert batch.truncated.tolist() == [[False] * 3, [False, False, True]]
    assert batch.observation.tolist() == [[0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]]
    assert batch.mask.all()
    assert not batch.terminated.any()
    buffer.check()


def test_stacks_end_before_a_step_that_stays_incomplete() -> None:
    buffer = relive.RingReplayBuffer(20, frame_stack=2, seed=0)
    for t in range(3):
        buffer.add([t], 0, 1.0)
    buffer.end_episode()
    buffer.add([9], 0, 1.0, [10])
    batch = buffer.read([1, 3])
    assert batch.next_observation[..., 0].tolist() == [[1, 2], [9, 10]]
    assert batch.observation[..., 0].tolist() == [[0, 1], [0, 9]]


async def test_shells_end_an_episode_with_an_incomplete_step() -> None:
    for shell in (relive.ThreadSafeReplayBuffer, relive.AsyncReplayBuffer):
        shared: Any = shell(relive.RingReplayBuffer(20, seed=0))
        for t in range(2):
            added = shared.add(float(t), 0, 1.0)
            await added if shell is relive.AsyncReplayBuffer else added
        assert shared.end_episode()
        assert shared.num_eligible == 1
