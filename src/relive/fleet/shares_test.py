"""Shares: draws of many shards that are one draw, to the last bit or the last but one."""

import collections
import dataclasses
import itertools
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import testing
from relive.fleet import adapter
from relive.fleet import shares

Weight = adapter.SamplingWeight


def weights_of(*weights: float) -> list[Weight]:
    return [Weight(weight=weight, size=int(weight > 0)) for weight in weights]


def test_a_shard_has_its_share_of_the_total_weight() -> None:
    assert shares.probabilities(weights_of(30, 10, 0, 40)) == [0.375, 0.125, 0.0, 0.5]


def test_shares_of_extreme_weights_sum_to_1() -> None:
    assert shares.probabilities(weights_of(1.5e308, 1.5e308)) == [0.5, 0.5]
    assert shares.probabilities(weights_of(5e-324, 5e-324)) == [0.5, 0.5]


def test_weights_in_other_units_are_compared_in_the_same() -> None:
    tiny = [Weight(weight=3.0, size=3, log_scale=-5000.0), Weight(weight=1.0, size=1, log_scale=-5000.0)]
    assert shares.probabilities(tiny) == [0.75, 0.25]
    mixed = [Weight(weight=3.0, size=3, log_scale=np.log(0.5)), Weight(weight=1.0, size=1)]
    np.testing.assert_allclose(shares.probabilities(mixed), [0.6, 0.4], rtol=1e-15)
    # Of an empty shard the units say nothing.
    empty = [Weight(weight=0.0, size=0, log_scale=0.0), Weight(weight=1.0, size=1, log_scale=-5000.0)]
    assert shares.probabilities(empty) == [0.0, 1.0]


@hypothesis.given(st.lists(st.integers(-(2**60), 2**60), max_size=30))
def test_keys_go_to_the_shard_they_came_from_in_their_order(keys: list[int]) -> None:
    places = shares.by_shard(np.array(keys, np.int64))
    expected: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        expected.setdefault(key % 512, []).append(place)
    assert {shard: found.tolist() for shard, found in places.items()} == expected


def parts_of(count: int, rows: int) -> list[shares.Part]:
    """Return parts of shards that hold one episode each; observations say which."""
    parts = []
    for shard in range(count):
        buffer = relive.RingReplayBuffer(50, seed=shard)
        told = [{"shard": shard, "t": [t, t]} for t in range(11)]
        columns = {"shard": [shard] * 11, "t": [each["t"] for each in told]}
        buffer.add_episode(columns, range(10), np.arange(10.0), terminated=True, said={"shard": [shard] * 10})
        parts.append(shares.Part(shard, 1 / count, buffer.sample(rows + shard), 0, rows + shard, rows + shard))
    return parts


def test_fields_of_a_row_stay_together_when_shuffled() -> None:
    parts = parts_of(3, 20)
    batch = shares.joined(parts, np.random.default_rng(0))
    assert len(batch) == 63
    shard = batch.observation["shard"]
    assert (batch.keys % 512 == shard).all()
    assert (batch.keys // 512 == batch.observation["t"][:, 0]).all()
    assert (batch.action == batch.observation["t"][:, 1]).all()
    assert (batch.extras["said"]["shard"] == shard).all()
    assert collections.Counter(shard.tolist()) == {0: 20, 1: 21, 2: 22}
    assert sorted(shard.tolist()) != shard.tolist()
    np.testing.assert_allclose(batch.probabilities, 1 / 30, rtol=1e-15)
    assert (batch.weights == 1).all()
    assert type(batch) is type(parts[0].rows)


def test_every_order_of_the_rows_is_equally_likely() -> None:
    counts: collections.Counter[tuple[int, ...]] = collections.Counter()
    rng = np.random.default_rng(1)
    for _ in range(600):
        counts[
            tuple(shares.joined([shares.Part(0, 0.5, [1, 2], 0, 2, 2), shares.Part(1, 0.5, [0, 3], 1, 1, 1)], rng))
        ] += 1
    assert len(counts) == 6
    testing.assert_frequencies(list(counts.values()), [1 / 6] * 6)


def test_rows_of_a_part_are_taken_with_equal_probability() -> None:
    counts: collections.Counter[tuple[int, ...]] = collections.Counter()
    rng = np.random.default_rng(1)
    for _ in range(600):
        counts[tuple(shares.joined([shares.Part(0, 1.0, [0, 1, 2, 3, 0], 1, 3, 2)], rng))] += 1
    assert len(counts) == 6
    testing.assert_frequencies(list(counts.values()), [1 / 6] * 6)
    parts = [dataclasses.replace(part, count=part.count - 3 * part.shard) for part in parts_of(3, 20)]
    batch = shares.joined(parts, rng)
    assert collections.Counter(batch.observation["shard"].tolist()) == {0: 20, 1: 18, 2: 16}
    assert (batch.keys % 512 == batch.observation["shard"]).all()
    assert (batch.keys // 512 == batch.observation["t"][:, 0]).all()


def test_the_rows_of_a_part_are_those_from_its_start() -> None:
    (whole,) = parts_of(1, 20)
    first, second = (dataclasses.replace(whole, start=start, length=5, count=5) for start in (3, 8))
    for parts in ([first], [first, second]):
        batch = shares.joined(parts, np.random.default_rng(0))
        assert sorted(batch.keys.tolist()) == sorted((512 * whole.rows.keys[3 : 3 + 5 * len(parts)]).tolist())
        assert (batch.keys == 512 * batch.observation["t"][:, 0]).all()


def test_a_single_part_is_copied_only_if_read_only() -> None:
    (part,) = parts_of(1, 5)
    part.rows.reward.flags.writeable = False
    batch = shares.joined([part], np.random.default_rng(0))
    assert np.shares_memory(batch.action, part.rows.action)
    assert batch.reward.flags.writeable
    assert (batch.reward == part.rows.reward).all()


@hypothesis.given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any),
    st.lists(st.floats(0, 1, exclude_max=True), max_size=30),
)
def test_every_point_falls_into_the_interval_of_one_shard(weights: list[int], points: list[float]) -> None:
    probabilities = shares.probabilities(weights_of(*weights))
    expected = [0] * len(weights)
    for point in points:
        ends = list(itertools.accumulate(probabilities))
        expected[min([shard for shard, end in enumerate(ends[:-1]) if point < end], default=len(weights) - 1)] += 1
    assert shares.counts(probabilities, np.array(points)).tolist() == expected


def test_a_joined_batch_shares_no_memory() -> None:
    parts = parts_of(1, 5)
    keys = parts[0].rows.keys.copy()
    frozen: Any = parts[0].rows.observation["t"]
    frozen.flags.writeable = False
    batch = shares.joined(parts, np.random.default_rng(0))
    batch.observation["t"][...] = 99
    batch.keys[...] = 99
    assert (parts[0].rows.keys == keys).all()
    samples = [np.zeros(2)]
    samples[0].flags.writeable = False
    (sample,) = shares.joined([shares.Part(0, 1.0, samples, 0, 1, 1)], np.random.default_rng(0))
    sample[...] = 1
    assert (samples[0] == 0).all()


@pytest.mark.parametrize("normalization", ["batch", "buffer", "none"])
def test_importance_weights_are_those_of_one_buffer(normalization: Any) -> None:
    likely = [Weight(weight=3.0, size=2, least=1.0), Weight(weight=7.0, size=2, least=3.0)]
    probabilities = np.array([0.2, 0.3, 0.4])
    weights = shares.importance_weights(likely, 0.5, normalization, probabilities)
    expected = {
        "batch": (probabilities / 0.2) ** -0.5,
        "buffer": (probabilities / 0.1) ** -0.5,
        "none": (4 * probabilities) ** -0.5,
    }
    np.testing.assert_allclose(weights, expected[normalization], rtol=1e-15)


@pytest.mark.parametrize(("normalization", "expected"), [("batch", [1e-100, 1.0]), ("buffer", [1e-200, 1e-100])])
def test_weights_of_shards_that_are_far_apart_are_finite(normalization: Any, expected: list[float]) -> None:
    """The least likely row of all has a probability of 1e-400."""
    likely = [Weight(weight=1e200, size=1, least=1e200), Weight(weight=1.0, size=2, least=1e-200)]
    weights = shares.importance_weights(likely, 0.5, normalization, np.array([1.0, 1e-200]))
    np.testing.assert_allclose(weights, expected, rtol=1e-12)


def test_a_shard_without_weight_counts_only_in_n() -> None:
    some = [Weight(weight=0.0, size=3, least=0.0), Weight(weight=4.0, size=2, least=1.0)]
    half = np.array([0.5])
    assert shares.importance_weights(some, 1.0, "none", half) == 1 / (5 * 0.5)
    assert shares.importance_weights(some, 1.0, "buffer", half) == 0.25 / 0.5
