"""SamplerTests: the conformance suite for samplers, alone and in a ring buffer."""

import abc
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.buffers import ring as ring_lib
from relive.common import arrays
from relive.kernels import append
from relive.samplers import anchors as anchors_lib
from relive.samplers import sampler as sampler_lib
from relive.schema import schema as schema_lib
from relive.storage import memory
from relive.testing import expectations

Steps: TypeAlias = Callable[[int, np.random.Generator], dict[str, Any]]

_MOST_SLOTS = 40


class SamplerTests(abc.ABC):
    """Tests that every sampler must pass; pytest collects them from a subclass whose name begins with Test.

    The tests add and remove anchors, in slots below 40, and use the sampler in small ring buffers. These may vary
    between samplers:

    - Which of the eligible anchors are drawn, and how often. The probabilities that `_draw` returns must be true, and
      must not change while the anchors do not. Draws must be independent, or spread more evenly.
    - Whether `probabilities(slots)` is known: NaN if not.
    - Whether anything can be drawn. If nothing can although there are anchors, `can_draw` must return False and `_draw`
      must raise NotReadyError. But some anchor must be drawn when it is the only one.
    - The state kept between draws: a new sampler that is given the same calls must draw the same.

    For a sampler that reads rows, override `steps` too.

    >>> import relive
    >>> from relive import testing
    >>> class TestMySampler(testing.SamplerTests):
    ...     def make(self):
    ...         return relive.UniformSampler()
    """

    @abc.abstractmethod
    def make(self) -> sampler_lib.Sampler:
        """Return a fresh, unattached sampler, which must use no randomness but `rng`."""

    def steps(self, count: int, rng: np.random.Generator) -> dict[str, Any]:
        """Return `count` steps: arguments of `extend` by name [count, ...], but for next observations and flags.

        Override it for a sampler that reads rows, with random values of what it reads.
        """
        zeros = np.zeros(count)
        return {"observation": zeros, "action": zeros, "reward": zeros}

    # Alone.

    def test_draws_are_of_the_size_that_was_asked_for(self) -> None:
        """There are as many slots and probabilities as were asked for, more than there are anchors too."""
        for anchors, rng in self._histories():
            for size in (1, 2, 7, 3 * _MOST_SLOTS):
                if anchors.can_draw():
                    slots, probabilities = anchors.sampler._draw_checked(size, rng)
                    assert slots.shape == (size,), f"{size} draws are slots of shape {slots.shape}"
                    assert probabilities.shape == (size,), f"{size} draws are probabilities of {probabilities.shape}"

    def test_draws_are_eligible_whatever_has_happened(self) -> None:
        """What was removed or overwritten is not drawn, unless it was added again."""
        for anchors, rng in self._histories():
            drawable = anchors.sampler._drawable()
            assert anchors.eligible.is_eligible(drawable).all(), f"{drawable} count as drawable, not all are eligible"
            if anchors.can_draw():
                slots = anchors.sampler._draw_checked(20, rng).slots
                assert np.isin(slots, drawable).all(), f"{slots} were drawn, and drawable are only {drawable}"

    def test_a_draw_that_cannot_be_made_is_told_of(self) -> None:
        """`can_draw` returns whether `_draw` returns, or raises NotReadyError."""
        for anchors, rng in self._histories():
            if len(anchors.eligible) and not anchors.can_draw():
                expectations.assert_raises(errors.NotReadyError, anchors.sampler._draw_checked, 1, rng)
            elif len(anchors.eligible):
                anchors.sampler._draw_checked(1, rng)

    def test_a_single_anchor_is_drawn(self) -> None:
        """Whatever happened to the others."""
        rng = np.random.default_rng(1)
        drawn = 0
        for capacity in (1, 2, 9):
            anchors = _Anchors(self.make(), capacity, self.steps)
            everywhere = np.arange(capacity)
            anchors.write(everywhere, everywhere)
            for slot in rng.permutation(capacity):
                others = everywhere[everywhere != slot]
                anchors.bar(others)
                if anchors.can_draw():
                    slots, probabilities = anchors.sampler._draw_checked(3, rng)
                    assert slots.tolist() == [slot] * 3, f"{slots} were drawn, and {slot} alone is eligible"
                    assert np.allclose(probabilities, 1.0), f"{probabilities} are the probabilities of a single anchor"
                    drawn += 1
                anchors.admit(others)
        assert drawn, "no anchor can be drawn when it is the only one"

    def test_probabilities_are_those_of_a_draw(self) -> None:
        """They lie in (0, 1], an anchor has one alone, and `probabilities` returns the same where it tells."""
        for anchors, rng in self._histories():
            everywhere = np.arange(anchors.eligible.capacity)
            told = anchors.sampler.probabilities(everywhere)
            others = told[~anchors.eligible.is_eligible(everywhere)]
            assert np.all(np.isnan(others) | (others == 0)), f"{others} are the probabilities of ineligible anchors"
            if anchors.can_draw():
                slots, probabilities = anchors.sampler._draw_checked(50, rng)
                assert np.all((probabilities > 0) & (probabilities <= 1 + 1e-9)), f"{probabilities} are not in (0, 1]"
                reported = np.full(len(everywhere), np.nan)
                reported[slots] = probabilities
                assert np.allclose(reported[slots], probabilities, 1e-9, 0), "an anchor has two probabilities"
                known = slots[~np.isnan(told[slots])]
                assert np.allclose(told[known], reported[known], 1e-9, 0), (
                    f"`probabilities` returns {told[known]} for slots {known}, and `draw` reports {reported[known]}"
                )

    def test_draws_fall_as_often_as_they_say(self) -> None:
        """The frequencies of draws from anchors that stay the same are the reported probabilities."""
        for num_changes in (0, 10, 100):
            rng = np.random.default_rng(num_changes)
            anchors = _Anchors(self.make(), _MOST_SLOTS, self.steps)
            for _ in range(num_changes):
                anchors.change(rng)
            anchors.write(np.arange(9), np.arange(9))
            anchors.admit(np.arange(9))
            counts = np.zeros(_MOST_SLOTS, np.int64)
            reported = np.zeros(_MOST_SLOTS)
            for size in [1, 2, 7, 100] * 100:
                slots, probabilities = anchors.sampler._draw_checked(size, rng)
                first = counts[slots] == 0
                reported[slots[first]] = probabilities[first]
                assert np.allclose(reported[slots], probabilities, 1e-9, 0), "a probability changes from draw to draw"
                counts += np.bincount(slots, minlength=_MOST_SLOTS)
            assert reported.sum() < 1 + 1e-6, f"the probabilities of {np.count_nonzero(counts)} anchors sum to more"
            # Slots drawn too rarely to be tested separately are tested together.
            often = reported * counts.sum() >= 10
            rest = max(1 - reported[often].sum(), 0.0)
            if rest * counts.sum() < 10:
                often[np.argmax(reported)] = False
                rest = 1 - reported[often].sum()
            expectations.assert_frequencies(
                [*counts[often].tolist(), int(counts[~often].sum())], [*reported[often].tolist(), rest]
            )

    def test_the_same_generator_state_gives_the_same_draws(self) -> None:
        """Two samplers that were given the same calls draw the same."""
        for (anchors, rng), (twins, twin_rng) in zip(self._histories(), self._histories(), strict=True):
            assert anchors.can_draw() == twins.can_draw(), "of two samplers with the same events, only one can draw"
            if anchors.can_draw():
                draw, twin = anchors.sampler._draw_checked(5, rng), twins.sampler._draw_checked(5, twin_rng)
                assert np.array_equal(draw, twin), f"{draw} was drawn, and {twin} from the same generator state"

    def test_global_randomness_is_left_alone(self) -> None:
        """Neither numpy's global generator nor Python's is drawn from."""
        with expectations.untouched_global_randomness():
            for anchors, rng in self._histories():
                if anchors.can_draw():
                    anchors.sampler._draw_checked(3, rng)

    def test_it_belongs_to_one_buffer(self) -> None:
        """A second buffer refuses it, and the first one keeps it."""
        sampler = self.make()
        ring = ring_lib.RingReplayBuffer(4, sampler=sampler, seed=0)
        expectations.assert_raises(ValueError, ring_lib.RingReplayBuffer, 9, sampler=sampler)
        rng = np.random.default_rng(1)
        for _ in range(8):
            self._add(ring, rng)
            _assert_drawn_well(ring)

    # In a ring.

    def test_a_buffer_with_it_can_be_saved(self) -> None:
        """Its settings include the arguments of its constructor; a save would raise CheckpointError otherwise."""
        ring_lib.RingReplayBuffer(4, sampler=self.make(), seed=0).state_dict()

    def test_a_ring_that_wraps_many_times_is_drawn_from(self) -> None:
        """What is drawn is stored and eligible, and can be read."""
        settings: list[dict[str, Any]] = [{}, {"n_step": 3}, {"frame_stack": 3}, {"streams": 3}]
        for setting in settings:
            rng = np.random.default_rng(2)
            ring = ring_lib.RingReplayBuffer(8, sampler=self.make(), seed=3, **setting)
            for _ in range(30):
                self._add(ring, rng)
                _assert_drawn_well(ring)

    def test_what_is_set_ineligible_in_a_ring_is_not_drawn(self) -> None:
        """Until it is set eligible again."""
        rng = np.random.default_rng(4)
        ring = ring_lib.RingReplayBuffer(8, sampler=self.make(), seed=5)
        for _ in range(100):
            self._add(ring, rng)
            ring.set_eligible(rng.integers(max(ring.get_stats().appended - 10, 0), ring.get_stats().appended, 3), False)
            _assert_drawn_well(ring)
            ring.set_eligible(np.arange(ring.get_stats().appended)[-4:], True)
            _assert_drawn_well(ring)

    def test_a_ring_that_was_cleared_is_drawn_from_anew(self) -> None:
        """Nothing of what was there before is drawn."""
        rng = np.random.default_rng(6)
        ring = ring_lib.RingReplayBuffer(8, sampler=self.make(), seed=7)
        for length in range(1, 12):
            for _ in range(length):
                self._add(ring, rng)
                _assert_drawn_well(ring)
            ring.clear()

    def test_a_row_drawn_max_times_sampled_times_is_not_drawn(self) -> None:
        """The others are drawn while `can_sample` returns True."""
        rng = np.random.default_rng(8)
        ring = ring_lib.RingReplayBuffer(8, sampler=self.make(), max_times_sampled=3, seed=9)
        for _ in range(60):
            self._add(ring, rng)
            for size in (5, 3, 1):
                while ring.can_sample(size):
                    ring.sample_keys(size)
            ring.check()

    def _add(self, ring: ring_lib.RingReplayBuffer, rng: np.random.Generator) -> None:
        """Add a step of each stream, some of which end."""
        ring.extend(**self.steps(ring.streams, rng), terminated=rng.random(ring.streams) < 0.2)

    def _histories(self) -> "Iterator[tuple[_Anchors, np.random.Generator]]":
        """Yield anchors after each of many changes, checked, and the generator to draw from them with."""
        for capacity in (1, 2, 7, _MOST_SLOTS):
            rng, draws = np.random.default_rng([10, capacity]), np.random.default_rng([11, capacity])
            anchors = _Anchors(self.make(), capacity, self.steps)
            for _ in range(40):
                anchors.change(rng)
                anchors.sampler.check()
                yield anchors, draws


class _Anchors:
    """Anchors that change as those of a buffer do, and the sampler that is notified."""

    def __init__(self, sampler: sampler_lib.Sampler, capacity: int, steps: Steps) -> None:
        self.sampler, self._steps, self._rng = sampler, steps, np.random.default_rng(capacity)
        num = np.zeros(append.PAD + 1, np.int64)
        num[append.ROWS] = num[append.NEXT_KEY] = capacity
        observation, action, reward, extras = self._parts(1)
        schema = schema_lib.Schema.from_example(observation, action, reward, extras=extras, num_leading=1)
        self._rows = memory.ColumnStorage(schema, capacity)
        changed = np.zeros(capacity if sampler._is_tracking else 0, np.int64)
        self.eligible = anchors_lib.Anchors((np.zeros(capacity, np.uint8), changed, num), self._rows.read)
        self._next_slot = 0
        self._is_used = np.zeros(capacity, np.bool_)
        sampler._attach(self.eligible)

    def _parts(self, count: int) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Return observations, actions, rewards and extras of new rows."""
        extras = dict(self._steps(count, self._rng))
        return extras.pop("observation"), extras.pop("action"), extras.pop("reward"), extras

    def can_draw(self) -> bool:
        return len(self.eligible) > 0 and self.sampler.can_draw()

    def change(self, rng: np.random.Generator) -> None:
        capacity = self.eligible.capacity
        some = rng.permutation(capacity)[: rng.integers(1, capacity + 1)]
        eligible = self.eligible
        match rng.integers(9):
            case 0 | 1 | 2 | 3:
                slots = (self._next_slot + np.arange(len(some))) % capacity
                self._next_slot = int(slots[-1] + 1) % capacity
                self.write(slots, slots[rng.random(len(slots)) < 0.7])
            case 4:
                self._set(append.READABLE, some[self._is_used[some]])
            case 5:
                self._set(append.READABLE, some, False)
            case 6:
                self.bar(some)
            case 7:
                self.admit(some)
            case _:
                self._set(append.SPENT, some[eligible.is_eligible(some)])

    def write(self, slots: arrays.Slots, readable: arrays.Slots) -> None:
        """Overwrite `slots`; those in `readable` can be read at once."""
        self._rows.write(slots, self._rows.schema._rows_of(*self._parts(len(slots)), (len(slots),)))
        old = slots[self._is_used[slots]]
        self.bar(old)
        self.eligible.flags[old] = 0
        self._is_used[slots] = True
        self._set(append.READABLE, readable)

    def bar(self, slots: arrays.Slots) -> None:
        self._set(append.BARRED, slots)

    def admit(self, slots: arrays.Slots) -> None:
        self._set(append.BARRED, slots, False)

    def _set(self, flag: int, slots: arrays.Slots, is_set: bool = True) -> None:
        """Set or clear a flag, and tell the sampler which anchors became or ceased to be eligible."""
        self.eligible.set(flag, slots, is_set)
        self.sampler._catch_up()


def _assert_drawn_well(ring: ring_lib.RingReplayBuffer) -> None:
    """Draw, if possible, and assert that the batch has eligible steps."""
    ring.check()
    if ring.can_sample(6):
        batch = ring.sample(6)
        assert np.isin(batch.keys, ring.eligible_keys()).all(), f"keys {batch.keys} were drawn, not all are eligible"
