import itertools

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

import relive
from relive import errors
from relive import testing
from relive.kernels import append
from relive.samplers import sampler_test


def test_uniform_draws_are_uniform_over_what_is_eligible() -> None:
    sampler = sampler_test.attached(relive.UniformSampler(), [1, 2, 3, 6])
    sampler_test.change(sampler, [2], False)
    sampler.check()
    slots, probabilities, _ = sampler.draw(3_000, np.random.default_rng(1))
    testing.assert_frequencies(np.bincount(slots, minlength=8).tolist(), [0, 1 / 3, 0, 1 / 3, 0, 0, 1 / 3, 0])
    assert probabilities.tolist() == [1 / 3] * 3_000
    assert sampler.probabilities(np.array([1, 2, 7])).tolist() == [1 / 3, 0.0, 0.0]
    sampler_test.change(sampler, [1, 3, 6], False)
    assert sampler.probabilities(np.array([1])).tolist() == [0.0]


def ring(steps: int, capacity: int, barred: list[int]) -> relive.RingReplayBuffer:
    """Return a ring to which that many steps were added, with some of the last `capacity` ones barred by their age."""
    buffer = relive.RingReplayBuffer(capacity, seed=0)
    for t in range(steps):
        buffer.add(t, 0, 0.0, t + 1)
    buffer.set_eligible([steps - 1 - age for age in barred], False)
    return buffer


@pytest.mark.parametrize("num_eligible", [200, 199, 100, 8, 4, 3, 1])
@pytest.mark.parametrize("steps", [200, 330])
def test_draws_are_uniform_however_few_are_eligible(num_eligible: int, steps: int) -> None:
    """Whether all rows are, or they are found by trying, or in a list; where the ring has wrapped around too."""
    order = np.random.default_rng(num_eligible).permutation(200).tolist()
    buffer = ring(steps, 200, order[num_eligible:])
    eligible = buffer.eligible_keys()
    batches = [buffer.sample_keys(size) for size in [1, 2, 7, 300, 700] * 4]
    keys, counts = np.unique(np.concatenate(batches), return_counts=True)
    assert keys.tolist() == eligible.tolist() == sorted(steps - 1 - age for age in order[:num_eligible])
    testing.assert_frequencies(counts.tolist(), [1 / num_eligible] * num_eligible)
    assert buffer.sample(3).probabilities.tolist() == [1 / num_eligible] * 3


def test_a_batch_larger_than_what_is_tried_at_once_is_full() -> None:
    keys = ring(3, 3, [1]).sample_keys(200_000)
    assert (len(keys), np.unique(keys).tolist()) == (200_000, [0, 2])


def test_draws_of_one_batch_are_independent() -> None:
    """Of three rows of which two are eligible, every pair is drawn alike."""
    buffer = ring(3, 3, [1])
    pairs = [tuple(buffer.sample_keys(2).tolist()) for _ in range(1_000)]
    counts = [pairs.count(pair) for pair in itertools.product([0, 2], repeat=2)]
    testing.assert_frequencies(counts, [1 / 4] * 4)


@hypothesis.given(
    strategies.lists(strategies.tuples(strategies.integers(0, 7), strategies.booleans()), max_size=20),
    strategies.integers(1, 40),
)
def test_draws_depend_only_on_what_is_eligible(changes: list[tuple[int, bool]], size: int) -> None:
    changed = sampler_test.attached(relive.UniformSampler(), [0, 1, 2])
    for slot, enters in changes:
        sampler_test.change(changed, [slot], enters)
    hypothesis.assume(len(changed.anchors))
    fresh = sampler_test.attached(relive.UniformSampler(), changed.anchors.slots().tolist())
    draws = [sampler.draw(size, np.random.default_rng(3)) for sampler in (changed, fresh)]
    (slots, probabilities, _), others = draws
    assert slots.tolist() == others[0].tolist()
    assert probabilities.tolist() == others[1].tolist() == [1 / len(fresh.anchors)] * size
    assert fresh.anchors.is_eligible(slots).all()


@pytest.mark.parametrize("barred", [0, 3, 150, 198])
def test_a_loaded_buffer_draws_what_the_other_draws(barred: int) -> None:
    buffer = ring(330, 200, list(range(barred)))
    buffer.sample_keys(5)
    state = buffer.state_dict()
    assert state["sampler"] == {}
    assert not any(name.startswith("sampler/") for name in state["arrays"])
    loaded = relive.RingReplayBuffer.from_state(state)
    for _ in range(3):
        assert loaded.sample_keys(9).tolist() == buffer.sample_keys(9).tolist()


def test_check_finds_an_anchor_that_nobody_counted() -> None:
    buffer = ring(4, 4, [])
    buffer._store.flags[1] |= append.BARRED
    with pytest.raises(errors.CorruptionError, match="^4 anchors are counted as eligible, which is wrong$"):
        buffer.check()
