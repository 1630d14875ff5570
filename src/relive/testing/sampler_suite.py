"""SamplerTests: the conformance suite for samplers, in ring buffers."""

import abc
from collections.abc import Iterator
from typing import Any

import numpy as np

from relive import errors
from relive.buffers import ring as ring_lib
from relive.samplers import sampler as sampler_lib
from relive.testing import expectations

_MOST_SLOTS = 40
_SETTINGS: list[dict[str, Any]] = [
    {"capacity": 1},
    {"capacity": 2, "n_step": 3},
    {"capacity": 7, "max_times_sampled": 3},
    {"capacity": 9, "frame_stack": 3},
    {"capacity": _MOST_SLOTS, "streams": 3},
]
"""Those of the rings that the sampler is used in."""


class SamplerTests(abc.ABC):
    """Tests that every sampler must pass; pytest collects them from a subclass whose name begins with Test.

    The tests use the sampler in ring buffers of at most 40 steps, which are added, overwritten, set ineligible and
    eligible again, drawn and cleared. These may vary between samplers:

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

    def test_draws_are_of_the_size_that_was_asked_for(self) -> None:
        """There are as many slots and probabilities as were asked for, more than there are anchors too."""
        for ring, rng in self._histories():
            for size in (1, 2, 7, 3 * _MOST_SLOTS):
                if _can_draw(ring):
                    slots, probabilities, _ = ring.sampler.draw(size, rng)
                    assert slots.shape == (size,), f"{size} draws are slots of shape {slots.shape}"
                    assert probabilities.shape == (size,), f"{size} draws are probabilities of {probabilities.shape}"

    def test_draws_are_eligible_whatever_has_happened(self) -> None:
        """What was evicted, cleared or set ineligible is not drawn, unless it was set eligible again."""
        for ring, rng in self._histories():
            ring.check()
            sampler, drawable = ring.sampler, ring.sampler.drawable()
            assert sampler.anchors.is_eligible(drawable).all(), f"{drawable} count as drawable, not all are eligible"
            if _can_draw(ring):
                slots, *_ = sampler.draw(20, rng)
                assert np.isin(slots, drawable).all(), f"{slots} were drawn, and drawable are only {drawable}"

    def test_a_draw_that_cannot_be_made_is_told_of(self) -> None:
        """`can_draw` returns whether `_draw` returns, or raises NotReadyError."""
        for ring, rng in self._histories():
            if ring.num_eligible and not ring.sampler.can_draw():
                expectations.assert_raises(errors.NotReadyError, ring.sampler.draw, 1, rng)
            elif ring.num_eligible:
                ring.sampler.draw(1, rng)

    def test_a_single_anchor_is_drawn(self) -> None:
        """Whatever happened to the others."""
        rng = np.random.default_rng(1)
        drawn = 0
        for capacity in (1, 2, 9):
            ring = self._ring(capacity=capacity)
            for _ in range(capacity):
                self._add(ring, rng, 1.0)
            keys = np.arange(capacity)
            for slot in rng.permutation(capacity):
                ring.set_eligible(keys[keys != slot], False)
                ring.sampler.catch_up()
                if _can_draw(ring):
                    slots, probabilities, _ = ring.sampler.draw(3, rng)
                    assert slots.tolist() == [slot] * 3, f"{slots} were drawn, and {slot} alone is eligible"
                    assert np.allclose(probabilities, 1.0), f"{probabilities} are the probabilities of a single anchor"
                    drawn += 1
                ring.set_eligible(keys, True)
        assert drawn, "no anchor can be drawn when it is the only one"

    def test_probabilities_are_those_of_a_draw(self) -> None:
        """They lie in (0, 1], an anchor has one alone, and `probabilities` returns the same where it tells."""
        for ring, rng in self._histories():
            sampler, everywhere = ring.sampler, np.arange(ring.capacity)
            told = sampler.probabilities(everywhere)
            others = told[~sampler.anchors.is_eligible(everywhere)]
            assert np.all(np.isnan(others) | (others == 0)), f"{others} are the probabilities of ineligible anchors"
            if _can_draw(ring):
                slots, probabilities, _ = sampler.draw(50, rng)
                assert np.all((probabilities > 0) & (probabilities <= 1 + 1e-9)), f"{probabilities} are not in (0, 1]"
                reported = np.full(len(everywhere), np.nan)
                reported[slots] = probabilities
                assert np.allclose(reported[slots], probabilities, 1e-9, 0), "an anchor has two probabilities"
                known = slots[~np.isnan(told[slots])]
                assert np.allclose(told[known], reported[known], 1e-9, 0), (
                    f"`probabilities` returns {told[known]} for slots {known}, and `_draw` reports {reported[known]}"
                )

    def test_draws_fall_as_often_as_they_say(self) -> None:
        """The frequencies of draws from anchors that stay the same are the reported probabilities."""
        for num_changes in (0, 10, 100):
            rng = np.random.default_rng(num_changes)
            ring = self._ring(capacity=_MOST_SLOTS)
            for _ in range(num_changes):
                self._change(ring, rng)
            for _ in range(9):
                self._add(ring, rng, 1.0)
            ring.sampler.catch_up()
            counts = np.zeros(_MOST_SLOTS, np.int64)
            reported = np.zeros(_MOST_SLOTS)
            for size in [1, 2, 7, 100] * 100:
                slots, probabilities, _ = ring.sampler.draw(size, rng)
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
        for (ring, rng), (twin, twin_rng) in zip(self._histories(), self._histories(), strict=True):
            assert _can_draw(ring) == _can_draw(twin), "of two samplers with the same events, only one can draw"
            if _can_draw(ring):
                draw, other = ring.sampler.draw(5, rng), twin.sampler.draw(5, twin_rng)
                assert np.array_equal(draw, other), f"{draw} was drawn, and {other} from the same generator state"

    def test_global_randomness_is_left_alone(self) -> None:
        """Neither numpy's global generator nor Python's is drawn from."""
        with expectations.untouched_global_randomness():
            for ring, rng in self._histories():
                if _can_draw(ring):
                    ring.sampler.draw(3, rng)

    def test_it_belongs_to_one_buffer(self) -> None:
        """A second buffer refuses it, and the first one keeps it."""
        sampler = self.make()
        ring = ring_lib.RingReplayBuffer(4, sampler=sampler, seed=0)
        expectations.assert_raises(ValueError, ring_lib.RingReplayBuffer, 9, sampler=sampler)
        rng = np.random.default_rng(1)
        for _ in range(8):
            self._add(ring, rng)
            ring.check()
            if ring.can_sample(6):
                keys = ring.sample(6).keys
                assert np.isin(keys, ring.eligible_keys()).all(), f"keys {keys} were drawn, not all are eligible"

    def test_a_buffer_with_it_can_be_saved(self) -> None:
        """Its settings include the arguments of its constructor; a save would raise CheckpointError otherwise."""
        self._ring(capacity=4).state_dict()

    def test_a_row_drawn_max_times_sampled_times_is_not_drawn(self) -> None:
        """The others are drawn while `can_sample` returns True."""
        rng = np.random.default_rng(8)
        ring = self._ring(capacity=8, max_times_sampled=3)
        for _ in range(60):
            self._add(ring, rng)
            for size in (5, 3, 1):
                while ring.can_sample(size):
                    ring.sample_keys(size)
            ring.check()

    def _ring(self, **settings: Any) -> ring_lib.RingReplayBuffer:
        return ring_lib.RingReplayBuffer(**settings, sampler=self.make(), seed=0)

    def _add(self, ring: ring_lib.RingReplayBuffer, rng: np.random.Generator, share: float = 0.2) -> None:
        """Add a step of each stream, of which that share terminates."""
        ring.extend(**self.steps(ring.streams, rng), terminated=rng.random(ring.streams) < share)

    def _change(self, ring: ring_lib.RingReplayBuffer, rng: np.random.Generator) -> None:
        """Change which anchors there are, in any way but in time."""
        keys = ring.get_stats().appended - rng.integers(1, ring.capacity + 3, 3)
        match rng.integers(12):
            case 0 | 1 | 2:
                ring.set_eligible(keys, False)
            case 3 | 4:
                ring.set_eligible(keys, True)
            case 5 if ring.can_sample(3):
                ring.sample(3)
            case 6 if rng.random() < 0.3:
                ring.clear()
            case _:
                self._add(ring, rng)

    def _histories(self) -> Iterator[tuple[ring_lib.RingReplayBuffer, np.random.Generator]]:
        """Yield rings after each of many changes, and the generator to draw from them with."""
        for number, settings in enumerate(_SETTINGS):
            rng, draws = np.random.default_rng([10, number]), np.random.default_rng([11, number])
            ring = self._ring(**settings)
            for _ in range(60):
                self._change(ring, rng)
                ring.sampler.catch_up()
                yield ring, draws


def _can_draw(ring: ring_lib.RingReplayBuffer) -> bool:
    return ring.num_eligible > 0 and ring.sampler.can_draw()
