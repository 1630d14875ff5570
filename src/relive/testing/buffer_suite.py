"""BufferTests: the conformance suite for column buffers."""

import abc
from collections.abc import Callable, Iterator
import dataclasses
import gc
import tracemalloc
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.buffers import column as column_lib
from relive.testing import expectations
from relive.testing import synthetic

Buffer: TypeAlias = column_lib.ColumnReplayBuffer[Any]
Fields: TypeAlias = dict[str, npt.NDArray[Any]]

_MOST_GROWTH = 12_000
"""Bytes that may come to be in use over 2,000 steps: far less than a number for each of them takes."""


class BufferTests(abc.ABC):
    """Tests that every column buffer must pass; pytest collects them from a subclass whose name begins with Test.

    The buffer may have any window, sampler and storage. The tests add self-describing steps: an observation begins with
    the numbers of its episode and step, and action, reward and an extra called checksum are derived from them, so any
    mix-up shows in the batch. These may vary between buffers:

    - The steps at which a window may start, and which of those are drawn. But a window has at most 8 steps: a whole
      episode of 8 steps must have an anchor that can be drawn.
    - Whether a draw always succeeds: the sampler may refuse as long as `can_sample` returns False.

    >>> import relive
    >>> from relive import testing
    >>> class TestMyBuffer(testing.BufferTests):
    ...     gamma = 0.9
    ...
    ...     def make(self, capacity, streams, seed):
    ...         return relive.RingReplayBuffer(capacity, n_step=5, gamma=0.9, streams=streams, seed=seed)
    """

    schema = synthetic.SCHEMA
    """What the tests' steps hold, for a buffer that is not to infer it or a storage."""

    gamma = 0.99
    """The discount factor of the buffers that `make` returns, if they draw transitions."""

    @abc.abstractmethod
    def make(self, capacity: int, streams: int, seed: int) -> Buffer:
        """Return a fresh, empty buffer, without a limiter and without max_times_sampled.

        Args:
            capacity: Maximum number of stored steps.
            streams: Number of streams.
            seed: Seed for its random generator.
        """

    # What is stored.

    def test_nothing_is_spliced(self) -> None:
        """Every row of every window is the step that it should be, and an episode left without notice is counted."""
        num_rows = 0
        for writer in self._histories(num_writes=60):
            buffer = writer.buffer
            buffer.check()
            eligible = buffer.eligible_keys()
            if len(eligible):
                writer.assert_describes(buffer.read(eligible), self.gamma)
            if buffer.can_sample(4):
                batch = buffer.sample(4)
                writer.assert_describes(batch, self.gamma)
                num_rows += len(batch)
                if buffer.has_priorities:
                    buffer.update_priorities(batch.keys, writer.rng.random(4) + 0.1)
            spliced = buffer.get_stats().spliced_episodes
            assert spliced == writer.spliced, f"{spliced} spliced episodes are counted, and there were {writer.spliced}"
        assert num_rows, "nothing was ever drawn"

    def test_len_is_the_number_of_adds_up_to_capacity(self) -> None:
        """However they were added, and whatever ended in between."""
        for writer in self._histories():
            buffer, stats = writer.buffer, writer.buffer.get_stats()
            expected = min(writer.num_steps, buffer.capacity)
            assert buffer.is_full == (expected == buffer.capacity), f"is_full is {buffer.is_full} with {expected} steps"
            counts = (len(buffer), stats.size, stats.appended, stats.evicted)
            wanted = (expected, expected, writer.num_steps, writer.num_steps - expected)
            assert counts == wanted, f"len, size, appended and evicted are {counts} instead of {wanted}"

    def test_keys_count_and_are_never_used_again(self) -> None:
        """The key of a step is how many came before it, in the buffer's whole life."""
        for streams in (1, 3):
            writer = synthetic.Writer(self._made(9, streams, 0), 1)
            for _ in range(5):
                for _ in range(15):
                    writer.write()  # Asserts it.
                writer.clear()

    def test_clear_forgets_steps_and_open_episodes(self) -> None:
        """Nothing is left to be drawn, and what comes next begins other episodes."""
        for streams in (1, 2):
            writer = synthetic.Writer(self._made(20, streams, 2), 3)
            buffer = writer.buffer
            for length in range(1, 10):
                for _ in range(length):
                    writer.write()
                    if len(eligible := buffer.eligible_keys()):
                        writer.assert_describes(buffer.read(eligible), self.gamma)
                writer.clear()
                left = (len(buffer), buffer.num_eligible, buffer.get_stats().open_episodes)
                assert left == (0, 0, 0), f"{left} steps, anchors and open episodes are left"
                expectations.assert_raises(errors.NotReadyError, buffer.sample, 1)

    def test_memory_is_flat(self) -> None:
        """Neither what `get_stats` counts nor what Python allocates grows once the buffer is full."""
        buffer = self._made(40, 1, 4)
        writer = synthetic.Writer(buffer, 5)
        writer.add_episode(20)
        episode: dict[str, Any] = writer.given
        was_tracing = tracemalloc.is_tracing()
        tracemalloc.start()
        try:
            sizes = []
            for number in range(130):
                buffer.add_episode(**episode, terminated=number % 2 == 0)
                buffer.sample(8)
                if number in (29, 129):
                    gc.collect()
                    sizes.append((buffer.get_stats().nbytes, tracemalloc.get_traced_memory()[0]))
        finally:
            if not was_tracing:
                tracemalloc.stop()
        (counted, traced), (counted_later, traced_later) = sizes
        assert counted_later == counted, f"{counted} bytes became {counted_later} over 2,000 steps"
        assert traced_later - traced < _MOST_GROWTH, f"{traced_later - traced} bytes were allocated over 2,000 steps"

    # What is drawn.

    def test_a_batch_is_of_the_size_that_was_asked_for(self) -> None:
        """Larger than what is stored, too; and it is counted."""
        for writer in self._full():
            buffer, sampled = writer.buffer, 0
            for size in (1, 2, 7, 100):
                num_drawn, num_keys = len(buffer.sample(size)), len(buffer.sample_keys(size))
                assert (num_drawn, num_keys) == (size, size), f"{num_drawn} and {num_keys} were drawn instead of {size}"
                sampled += 2 * size
            counted = buffer.get_stats().sampled
            assert counted == sampled, f"{counted} are counted as sampled, and {sampled} were"

    def test_an_empty_buffer_is_not_ready(self) -> None:
        """Drawing from it raises NotReadyError."""
        for streams in (1, 3):
            buffer = self._made(9, streams, 6)
            assert not buffer.can_sample(1), "can_sample of an empty buffer returns True"
            expectations.assert_raises(errors.NotReadyError, buffer.sample, 1)
            expectations.assert_raises(errors.NotReadyError, buffer.sample_keys, 5)
            assert buffer.get_stats().sampled == 0, "a draw from an empty buffer is counted"

    def test_eligible_keys_are_those_that_read_accepts(self) -> None:
        """And they are in order, and as many as num_eligible."""
        for writer in self._histories(num_writes=15):
            buffer = writer.buffer
            stored = range(writer.num_steps - len(buffer), writer.num_steps)
            accepted = [key for key in stored if _is_accepted(buffer.read, [key])]
            eligible = buffer.eligible_keys().tolist()
            assert eligible == accepted, f"eligible keys are {eligible}, and those that `read` accepts are {accepted}"
            assert buffer.num_eligible == len(eligible), f"num_eligible is {buffer.num_eligible} with {eligible}"

    def test_what_is_drawn_is_eligible(self) -> None:
        """What a user has set ineligible is not, until it is set eligible again."""
        for writer in self._histories():
            buffer, before = writer.buffer, writer.buffer.eligible_keys()
            barred = before[writer.rng.random(len(before)) < 0.5]
            assert buffer.set_eligible(barred, False) == len(barred), "the number of stored keys is wrong"
            eligible = buffer.eligible_keys()
            assert np.array_equal(eligible, np.setdiff1d(before, barred)), f"{eligible} of {before} without {barred}"
            buffer.check()
            if buffer.can_sample(9):
                keys = buffer.sample_keys(9)
                assert np.isin(keys, eligible).all(), f"keys {keys} were drawn, and eligible are {eligible}"
            buffer.set_eligible(barred, True)
            assert np.array_equal(buffer.eligible_keys(), before), "what is set eligible again is not eligible"

    def test_the_same_seed_and_calls_give_the_same_batches(self) -> None:
        """To the last bit of every field."""
        for writer, twin in zip(self._histories(), self._histories(), strict=True):
            if writer.buffer.can_sample(5):
                _assert_equal(_fields(twin.buffer.sample(5)), _fields(writer.buffer.sample(5)))

    def test_buffers_leave_global_randomness_alone(self) -> None:
        """Neither numpy's global generator nor Python's is drawn from."""
        with expectations.untouched_global_randomness():
            for writer in self._histories():
                if writer.buffer.can_sample(5):
                    writer.buffer.sample(5)

    # What is refused, dropped and copied.

    def test_a_refused_call_changes_nothing(self) -> None:
        """Neither a step nor a counter nor the generator."""
        for writer in self._full():
            buffer = writer.buffer
            before, fields = _state(buffer)
            for call, arguments, named in list(_invalid_calls(buffer)):
                expectations.assert_raises(ValueError, getattr(buffer, call), *arguments, **named)
                after, fields_after = _state(buffer)
                assert after == before, f"{call}{arguments or ''}{named or ''} was refused, and has changed the buffer"
                _assert_equal(fields_after, fields)
            buffer.check()

    def test_a_refused_call_leaves_an_empty_buffer_empty(self) -> None:
        """It is still the first accepted step that says what a step holds."""
        for streams in (1, 3):
            buffer = self._made(20, streams, 6)
            before = buffer.get_stats(), buffer.schema
            for call, arguments, named in _invalid_calls(buffer):
                expectations.assert_raises(ValueError, getattr(buffer, call), *arguments, **named)
                after = buffer.get_stats(), buffer.schema
                assert after == before, f"{call}{arguments or ''}{named or ''} was refused, and has changed the buffer"
            synthetic.Writer(buffer, 7).add_episode(8)

    def test_late_keys_are_dropped_and_counted(self) -> None:
        """They say nothing about the steps in their place; nor do keys that there never were."""
        for writer in self._full():
            buffer = writer.buffer
            old = np.unique(buffer.sample_keys(9))
            while writer.num_steps <= old[-1] + buffer.capacity:
                writer.add_episode(8)
            never = np.array([-1, writer.num_steps, 2**62])
            late = np.concatenate([old, never])
            eligible, counted = buffer.eligible_keys(), buffer.get_stats().stale_keys
            assert buffer.set_eligible(late, False) == 0, "a late key counts as stored"
            assert np.array_equal(buffer.eligible_keys(), eligible), "a late key has changed what is eligible"
            assert buffer.set_eligible([*late, eligible[0]], True) == 1, "one key among late ones is stored"
            stale = 2 * len(late)
            if buffer.has_priorities:
                priorities = buffer.get_priorities(eligible)
                assert buffer.update_priorities(old, np.full(len(old), 100.0)) == 0, "a late key counts as stored"
                assert np.array_equal(buffer.get_priorities(eligible), priorities), "a late priority was written"
                for key in never:
                    keys = [eligible[0], key]
                    expectations.assert_raises(ValueError, buffer.update_priorities, keys, [100.0, 100.0])
                assert np.array_equal(buffer.get_priorities(eligible), priorities), "a refused priority was written"
                stale += len(old)
            counted = buffer.get_stats().stale_keys - counted
            assert counted == stale, f"{counted} stale keys are counted, and there were {stale}"
            assert np.array_equal(buffer.eligible_keys(), eligible), "a late key has changed what is eligible"
            expectations.assert_raises(KeyError, buffer.read, old)
            buffer.check()

    def test_writing_into_what_was_answered_changes_nothing(self) -> None:
        """Arrays that are returned belong to the caller."""
        for writer in self._full():
            buffer, keys = writer.buffer, writer.buffer.eligible_keys().copy()
            before = {name: column.copy() for name, column in _fields(buffer.read(keys)).items()}
            answers: list[npt.NDArray[Any]] = [buffer.eligible_keys(), buffer.sample_keys(9)]
            answers += [*_fields(buffer.read(keys)).values(), *_fields(buffer.sample(9)).values()]
            if buffer.has_priorities:
                answers.append(buffer.get_priorities(keys))
            for column in answers:
                column[...] = 0
            _assert_equal(_fields(buffer.read(keys)), before)
            assert np.array_equal(buffer.eligible_keys(), keys), "what is eligible has changed"
            buffer.check()

    def test_writing_into_what_was_added_changes_nothing(self) -> None:
        """Arrays that were added still belong to the caller."""
        for writer in self._histories():
            for column in writer.given.values():
                column[...] = -7
            eligible = writer.buffer.eligible_keys()
            if len(eligible):
                writer.assert_describes(writer.buffer.read(eligible), self.gamma)

    def _made(self, capacity: int, streams: int, seed: int) -> Buffer:
        """Return a fresh buffer, which is what was asked for."""
        buffer = self.make(capacity, streams, seed)
        made = (buffer.capacity, buffer.streams, len(buffer))
        expected = (capacity, streams, 0)
        assert made == expected, f"make returned a buffer of capacity, streams and len {made} instead of {expected}"
        return buffer

    def _histories(self, num_writes: int = 25) -> Iterator[synthetic.Writer]:
        """Yield a writer after each of many writes."""
        for streams in (1, 3):
            writer = synthetic.Writer(self._made(20, streams, 8), 9)
            for _ in range(num_writes):
                writer.write()
                yield writer

    def _full(self) -> Iterator[synthetic.Writer]:
        """Yield writers whose buffers are full, and have something to draw."""
        for streams in (1, 2):
            writer = synthetic.Writer(self._made(20, streams, 10), 11)
            for _ in range(30):
                writer.write()
            writer.add_episode(8)
            yield writer


def _is_accepted(call: Callable[..., object], *arguments: object) -> bool:
    """Return whether `call` of `arguments` is not refused."""
    try:
        call(*arguments)
    except errors.ArgumentError:
        return False
    return True


def _fields(batch: Any) -> Fields:
    fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
    extras: Fields = fields.pop("extras")
    return fields | extras


def _state(buffer: Buffer) -> tuple[Any, Fields]:
    """Return what a call could change, the last of it as arrays."""
    keys = buffer.eligible_keys()
    return (buffer.get_stats(), str(buffer.rng.bit_generator.state), keys.tolist()), _fields(buffer.read(keys))


def _assert_equal(fields: Fields, expected: Fields) -> None:
    """Raise AssertionError unless every array is the expected one, NaN included."""
    for name, column in expected.items():
        np.testing.assert_array_equal(fields[name], column, name)


def _invalid_calls(buffer: Buffer) -> Iterator[tuple[str, tuple[Any, ...], dict[str, Any]]]:
    """Yield calls that are refused, some of them only once a step is eligible: a method, and its arguments."""
    for size in (0, -1, 1.5, "one"):
        yield "sample", (size,), {}
        yield "sample_keys", (size,), {}
    for keys in ([-1], [2**62], [0.5]):
        yield "read", (keys,), {}
    yield "set_eligible", ([0.5], False), {}
    yield "set_eligible", ([0], "no"), {}
    for priorities in ([-1.0], [np.nan], [1.0, 2.0], ["high"]):
        yield "update_priorities", ([0], priorities), {}
    wrong: dict[str, Any]
    step, two = synthetic.columns_of(1, 0), synthetic.columns_of(1, np.arange(2))
    episode: dict[str, Any] = synthetic.episode_of(1, 3) | {"terminated": True}
    for wrong in ({"stream": -1}, {"stream": buffer.streams}, {"terminated": None}, {"truncated": True}):
        yield "add", (), step | wrong
    for streams in ([0, 0], [-1, 0], [0, buffer.streams], [0]):
        yield "extend", (), two | {"streams": streams}
    for length in (0, buffer.capacity + 1):
        yield "add_episode", (), synthetic.episode_of(1, length) | {"terminated": True}
    for wrong in ({"stream": buffer.streams}, {"terminated": None}, {"observations": episode["observations"][:-1]}):
        yield "add_episode", (), episode | wrong
    if not buffer.num_eligible:
        return
    eligible, steps = buffer.eligible_keys(), synthetic.columns_of(1, np.arange(buffer.streams))
    yield "read", ([eligible[0], 2**62],), {}
    yield "update_priorities", (eligible[[0, 0]], [3.0, -1.0]), {}
    for wrong in (
        {"observation": np.zeros(2, np.int64)},
        {"observation": np.full(3, 0.5)},
        {"next_observation": np.zeros((1, 3), np.int64)},
        {"action": 0.5},
        {"reward": "much"},
        {"checksum": 2**70},
        {"colour": 1},
    ):
        yield "add", (), step | wrong
    yield "add", (), {name: value for name, value in step.items() if name != "checksum"}
    yield "extend", (), steps | {"action": np.zeros(buffer.streams + 1, np.int64)}
    yield "extend", (), steps | {"checksum": np.full(buffer.streams, 0.5)}
    yield "add_episode", (), episode | {"actions": np.zeros(2, np.int64)}
