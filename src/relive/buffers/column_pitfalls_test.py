"""Bugs that other libraries shipped, each as a test of the column buffers: the ring's seam, ends, n-step returns.

Storages are poisoned: a slot that was never written reads as a number that no test writes. Observations tell where they
are from: they are 1000 * (episode + 1) + time.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relive
from relive import testing

POISON = -999
SCHEMA = relive.Schema(
    relive.Field((), np.int64), relive.Field((), np.int64), extras={"extra": relive.Field((), np.float64)}
)


def poisoned(capacity: int, schema: relive.Schema = SCHEMA) -> relive.ColumnStorage:
    """Return a storage whose unwritten slots hold a value that no test writes."""
    return relive.ColumnStorage(schema, capacity, allocate=lambda shape, dtype: np.full(shape, POISON, dtype))


def make_ring(capacity: int, **settings: Any) -> relive.RingReplayBuffer:
    return relive.RingReplayBuffer(capacity, storage=poisoned(capacity), **{"gamma": 1.0, "seed": 0, **settings})


def make_sequences(capacity: int, **settings: Any) -> relive.SequenceReplayBuffer:
    return relive.SequenceReplayBuffer(capacity, storage=poisoned(capacity), **{"seed": 0, **settings})


def add_episode(
    buffer: Any, number: int, length: int, *, ends: str = "terminated", eager: bool = True, start: int = 0
) -> list[int]:
    """Add the steps of an episode one by one, and return their keys; `ends` may be "open"."""
    keys = []
    base = 1000 * (number + 1)
    for t in range(start, length):
        last = t == length - 1
        cut = last and ends == "truncated"
        keys.append(
            buffer.add(
                base + t,
                base + t,
                float(t),
                base + t + 1 if eager or cut else None,
                terminated=last and ends == "terminated",
                truncated=cut,
                extra=float(base + t),
                stream=0,
            )
        )
    return keys


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


@pytest.mark.parametrize("n_step", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("stack", [1, 3])
def test_a_window_behind_the_write_cursor_stops_at_the_newest_row(n_step: int, stack: int) -> None:
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
def test_no_slot_is_read_before_it_is_written(make: Any) -> None:
    """P3, P21: the ring is not full, even one write before it is."""
    for eager in (True, False):
        buffer = make(5)
        for t in range(5):
            assert buffer.is_full is False
            add_episode(buffer, 0, t + 1, ends="open", start=t, eager=eager)
            if buffer.num_eligible:
                batch = buffer.sample(200)
                for column in (batch.observation, batch.action, batch.reward, batch.extras["extra"]):
                    assert not np.any(column == POISON)
                    assert column.min() >= 0
        assert buffer.is_full is True


def test_a_truncated_step_bootstraps_from_its_own_last_observation() -> None:
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
    starts = np.bincount(batch.start_step, minlength=5)
    testing.assert_frequencies(starts.tolist(), [1 / 5] * 5)
    marked = batch.action % 1000 == 6
    assert np.array_equal(marked.any(axis=1), batch.start_step == 4)
    assert np.array_equal(batch.terminated, marked)


def test_episodes_that_wrap_more_than_once_leave_the_newest_rows_in_order() -> None:
    """P8: longer than capacity is refused; several that wrap the ring keep cursor and size right."""
    buffer = make_ring(7)
    for number in range(9):
        length = 1 + number % 7
        base = 1000 * (number + 1)
        keys = buffer.add_episode(
            base + np.arange(length + 1),
            base + np.arange(length),
            np.zeros(length),
            terminated=True,
            extra=np.zeros(length),
        )
        assert len(buffer) == min(7, int(keys[-1]) + 1)
        expected = [1000 * (n + 1) + t for n in range(number + 1) for t in range(1 + n % 7)][-7:]
        assert buffer.read(buffer.eligible_keys()).observation.tolist() == expected
    with pytest.raises(ValueError, match="capacity = 7 steps, got 8"):
        buffer.add_episode(np.arange(9), np.arange(8), np.zeros(8), terminated=True, extra=np.zeros(8))


def test_a_sequence_never_crosses_an_end() -> None:
    """P9, P11: short episodes have no start, whatever is stored behind them; the others share the probability."""
    buffer = make_sequences(100, length=4)
    for number, length in enumerate((3, 5, 1, 4, 2)):
        add_episode(buffer, number, length, ends="truncated" if number % 2 else "terminated")
    assert buffer.eligible_keys().tolist() == [3, 4, 9]
    batch = buffer.sample(3000)
    testing.assert_frequencies(np.bincount(batch.keys, minlength=10)[[3, 4, 9]].tolist(), [1 / 3] * 3)
    assert len(batch) == 3000
    assert batch.probabilities.tolist() == pytest.approx([1 / 3] * 3000)


def test_no_eligible_start_is_an_error_and_never_row_zero() -> None:
    """P10."""
    buffers: list[Any] = [make_ring(10), make_sequences(10, length=3), make_sequences(10, length=3, prioritized=True)]
    for buffer in buffers:
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


@pytest.mark.parametrize("length", [1, 3, 10])
def test_capacity_is_in_steps_however_long_the_episodes_are(length: int) -> None:
    """P13: short episodes at first do not limit the number of stored steps."""
    buffer = make_ring(10)
    for number in range(15):
        add_episode(buffer, number, 1)
    for number in range(15, 25):
        add_episode(buffer, number, length)
        assert len(buffer) == 10
    assert buffer.get_stats().terminated_episodes == -(-10 // length)


def test_illegal_starts_are_not_moved_to_legal_ones() -> None:
    """P14: draws near the seam are uniform over the eligible steps."""
    buffer = make_sequences(20, length=4)
    for number in range(7):
        add_episode(buffer, number, 6, ends="open" if number == 6 else "truncated")
    keys = buffer.eligible_keys()
    counts = np.bincount(buffer.sample_keys(9000), minlength=42)
    testing.assert_frequencies(counts[keys].tolist(), [1 / keys.size] * keys.size)
    assert counts.sum() == counts[keys].sum()


# n-step returns.


@pytest.mark.parametrize("ends", ["terminated", "truncated", "open"])
def test_the_discount_is_that_of_the_steps_that_were_taken(ends: str) -> None:
    """P16, P17, P19: a window cut after m < n steps reports m and gamma^m; termination alone makes it 0; all starts."""
    buffer = make_ring(20, n_step=3, gamma=0.5)
    add_episode(buffer, 0, 5, ends=ends)
    batch = buffer.read(range(5))
    assert batch.steps.tolist() == [3, 3, 3, 2, 1]
    terminal = [ends == "terminated" and key >= 2 for key in range(5)]
    assert batch.is_terminal.tolist() == terminal
    assert batch.next_discount.tolist() == [0 if end else 0.5**m for end, m in zip(terminal, batch.steps, strict=True)]
    assert batch.next_observation.tolist() == [1003, 1004, 1005, 1005, 1005]
    assert batch.reward.tolist() == [1.0, 1 + 1 + 0.75, 2 + 1.5 + 1, 3 + 2, 4]


@pytest.mark.parametrize("n_step", [1, 3, 5])
def test_a_first_step_that_is_terminal_has_its_own_reward_and_next_observation(n_step: int) -> None:
    """P18: what follows in the ring belongs to another episode."""
    buffer = make_ring(20, n_step=n_step)
    buffer.add(7, 1, 5.0, 8, terminated=True, extra=0.0)
    add_episode(buffer, 1, 4)
    batch = buffer.read([0])
    assert (batch.reward.tolist(), batch.next_observation.tolist(), batch.steps.tolist()) == ([5], [8], [1])
    assert batch.is_terminal.tolist() == [True]


def test_one_terminal_step_with_a_stack_is_one_transition() -> None:
    """P20: no observation is made up from the padding."""
    buffer = make_ring(20, frame_stack=4)
    add_episode(buffer, 0, 1)
    assert (len(buffer), buffer.num_eligible) == (1, 1)
    batch = buffer.sample(50)
    assert set(batch.keys.tolist()) == {0}
    assert_whole(batch, 4)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8])
def test_the_reward_of_the_terminal_step_counts_and_nothing_behind_it(length: int) -> None:
    """P21: reads of a ring that is not full never wrap into unwritten slots."""
    buffer = make_ring(8, n_step=3)
    add_episode(buffer, 0, length, eager=False)
    batch = buffer.read(range(length))
    expected = [sum(range(t, min(t + 3, length))) for t in range(length)]
    assert batch.reward.tolist() == expected
    assert batch.is_terminal.tolist() == [t + 3 >= length for t in range(length)]


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


def test_views_of_the_same_keys_have_the_same_observation_and_action() -> None:
    """P23: 1-step and n-step returns, side by side."""
    buffer = make_ring(12)
    for number in range(6):
        add_episode(buffer, number, 1 + number)
    drawn = buffer.sample(64, n_step=3)
    single, many = buffer.read(drawn.keys, n_step=1), buffer.read(drawn.keys, n_step=3)
    for name in ("observation", "action", "keys"):
        assert np.array_equal(getattr(single, name), getattr(drawn, name))
        assert np.array_equal(getattr(many, name), getattr(drawn, name))
    assert np.array_equal(many.reward, drawn.reward)
    assert single.steps.tolist() == [1] * 64


def test_a_single_first_step_is_fine_and_drawable_later() -> None:
    """P24: with n-step returns, by `add` and by `extend`."""
    for way in ("add", "extend"):
        buffer = make_ring(10, n_step=5)
        if way == "add":
            buffer.add(1000, 1000, 0.0, extra=1000.0)
            assert buffer.num_eligible == 0
            buffer.add(1001, 1001, 1.0, extra=1001.0)
        else:
            buffer.extend([1000], [1000], [0.0], extra=[1000.0])
            assert buffer.num_eligible == 0
            buffer.extend([1001], [1001], [1.0], extra=[1001.0])
        assert_whole(buffer.sample(4))


class Spoilt(relive.Sampler):
    """Raises, or draws an ineligible slot, when told to."""

    wrong: Any = None

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        if isinstance(self.wrong, Exception):
            raise self.wrong
        slots = rng.choice(self.anchors.slots(), size) if self.wrong is None else self.wrong
        return relive.Draw(slots, np.full(size, 1 / len(self.anchors)))


def contents(buffer: Any) -> list[Any]:
    """Return everything that can be read from a buffer without drawing."""
    batch = buffer.read(buffer.eligible_keys())
    fields = [np.asarray(getattr(batch, name)).tobytes() for name in ("observation", "action", "reward", "keys")]
    return [*fields, buffer.get_stats(), repr(buffer.rng.bit_generator.state)]


@pytest.mark.parametrize(
    "wrong", [RuntimeError("broken"), np.array([3, 4]), np.array([0]), np.array([-1, 0]), [0.5, 1]]
)
def test_an_exception_in_a_draw_leaves_everything_as_it_was(wrong: Any) -> None:
    """P25: a draw never writes to the storage, not even temporarily."""
    sampler = Spoilt()
    buffer = make_ring(5, n_step=3, sampler=sampler)
    add_episode(buffer, 0, 3)
    before = contents(buffer)
    sampler.wrong = wrong
    with pytest.raises(RuntimeError):
        buffer.sample(2)
    assert contents(buffer) == before
    sampler.wrong = None
    assert len(buffer.sample(2)) == 2
    buffer.check()


class WriteOnce(relive.ColumnStorage):
    """A storage that may be locked."""

    is_locked = False

    def write(self, slots: Any, rows: Any) -> None:
        assert not self.is_locked
        super().write(slots, rows)


def test_draws_and_updates_write_nothing_into_storage() -> None:
    """P25, P48: a draw changes nothing temporarily, neither in the columns nor in the priorities."""
    arrays: list[npt.NDArray[Any]] = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        arrays.append(np.full(shape, POISON, dtype))
        return arrays[-1]

    storage = WriteOnce(SCHEMA, 9, allocate=allocate)
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
        batch.observation[:] = POISON
        batch.reward /= 7
        batch.next_observation += 1
        assert buffer.get_priorities(buffer.eligible_keys()).tolist() == priorities
        buffer.check()
    assert all(np.array_equal(one, other) for one, other in zip(arrays, before, strict=True))


class Faulty(relive.ColumnStorage):
    """A storage that may run out of space."""

    is_full = False

    def write(self, slots: Any, rows: Any) -> None:
        if self.is_full:
            raise OSError("no space left")
        super().write(slots, rows)


@pytest.mark.parametrize("streams", [1, 2])
def test_a_storage_that_fails_leaves_a_buffer_that_is_whole(streams: int) -> None:
    """P25: a step that could not be written leaves nothing behind, and the next one is stored."""
    storage = Faulty(SCHEMA, 6)
    buffer = relive.PrioritizedReplayBuffer(6, storage=storage, frame_stack=2, gamma=1.0, streams=streams)
    add_episode(buffer, 0, 8, ends="open")
    storage.is_full = True
    with pytest.raises(OSError, match="no space left"):
        add_episode(buffer, 0, 9, ends="open", start=8)
    buffer.check()
    assert_whole(buffer.read(buffer.eligible_keys()), 2)
    storage.is_full = False
    assert add_episode(buffer, 0, 9, ends="open", start=8) == [8]
    assert buffer.eligible_keys().tolist() == [4, 5, 6, 7, 8]
    assert_whole(buffer.read(buffer.eligible_keys()), 2)
    buffer.check()


@pytest.mark.parametrize("capacity", [7, 12])
@pytest.mark.parametrize("seed", range(4))
def test_many_stacked_fields_equal_a_buffer_that_copies_everything(capacity: int, seed: int) -> None:
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
            key = buffer.add(now, t, float(t), then, terminated=t == 6, truncated=False)
            copies[key] = {name: (column[t : t + 3], column[t + 1 : t + 4]) for name, column in stacks.items()}
            eligible = buffer.eligible_keys()
            assert eligible[-1] == key
            batch = buffer.read(eligible)
            for name in frames:
                assert np.array_equal(batch.observation[name], [copies[k][name][0] for k in eligible.tolist()])
                assert np.array_equal(batch.next_observation[name], [copies[k][name][1] for k in eligible.tolist()])
        if number % 9 == 8:
            buffer.clear()


def test_a_sequence_cut_in_mid_episode_is_no_end() -> None:
    """P31: `terminated` and `truncated` stay False; the mask tells which steps are real."""
    buffer = make_sequences(30, length=3)
    add_episode(buffer, 0, 8)
    add_episode(buffer, 1, 8, ends="open")
    batch = buffer.read(buffer.eligible_keys())
    assert batch.terminated.sum() == 1
    assert batch.terminated[5].tolist() == [False, False, True]
    assert not batch.truncated.any()
    assert batch.mask.all()


def test_an_episode_longer_than_the_ring_goes_on_for_ever() -> None:
    """P35: an episode added step by step may have any length."""
    buffer = make_sequences(10, length=3, stride=3)
    add_episode(buffer, 0, 999, ends="open")
    assert set((buffer.read(buffer.eligible_keys()).start_step % 3).tolist()) == {0}
    assert buffer.read([990]).observation.tolist() == [[1990, 1991, 1992, 1993]]
