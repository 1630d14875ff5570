"""Tests of the transitions by version; store_test compares the counts with a scan."""

import collections
import math
from typing import Any
import weakref

import numpy as np
import pytest

from relive import errors
from relive import testing
from relive.episodes import episode as episode_lib
from relive.episodes import helpers_test
from relive.episodes import versions as versions_lib

Buffer = helpers_test.Buffer
lived = helpers_test.lived


def counts_of(buffer: Buffer) -> versions_lib.VersionCounts:
    return buffer._store.versions


def example(learner: int = 7, seed: int = 0) -> Buffer:
    """Finished and open episodes; versions 3, 5, 7 and 8, and steps without a version."""
    buffer = Buffer(seed=seed)
    lived(buffer, [3, 3, 3, 5, 7])
    lived(buffer, [None] * 4)
    lived(buffer, [None, 5, 5, 7], None)  # The last step waits for the observation after it.
    lived(buffer, [5, 8, 8, 8], None)
    lived(buffer, [7] * 6, "TRUNCATED")
    buffer.set_policy_version(learner)
    return buffer


def drawn(buffer: Buffer, size: int = 6_000, **lags: Any) -> collections.Counter[tuple[str, int]]:
    return collections.Counter((s.episode_id, s.start_step) for s in buffer.sample_n_step_nowait(size, 1, 0.9, **lags))


def transitions(buffer: Buffer) -> dict[tuple[str, int], int | None]:
    """The version of every transition, by a scan."""
    return {
        (episode.episode_id, t): episode.policy_versions[t] for episode in buffer._store for t in range(len(episode))
    }


@pytest.mark.parametrize("max_lag", [0, 1, 2, 4, None])
@pytest.mark.parametrize("decay", [1.0, 0.5, 1e-3])
def test_draws_are_likely_as_their_lag_says(max_lag: int | None, decay: float) -> None:
    if max_lag is None and decay == 1:
        max_lag = 2**62
    buffer = example()
    weights = {}
    for transition, version in transitions(buffer).items():
        lag = None if version is None else max(7 - version, 0)
        is_within = lag is not None and (max_lag is None or lag <= max_lag)
        weights[transition] = decay**lag if lag is not None and is_within else 0.0
    total = math.fsum(weights.values())
    size = 3_000
    counts = drawn(buffer, size, max_lag=max_lag, lag_decay=decay)
    assert set(counts) <= {transition for transition, weight in weights.items() if weight}
    likely = {transition: weight / total for transition, weight in weights.items() if size * weight / total >= 5}
    rest = 1 - math.fsum(likely.values())
    found, expected = [counts[transition] for transition in likely], list(likely.values())
    if rest * size >= 5:
        found, expected = [*found, size - sum(found)], [*expected, rest]
    testing.assert_frequencies(found, [each / math.fsum(expected) for each in expected])


def test_lags_whose_weights_underflow_are_told_apart() -> None:
    """0.5 ** 3000 is 0 as a float."""
    buffer = Buffer(seed=0)
    old, older = lived(buffer, [1] * 4), lived(buffer, [0] * 4)
    buffer.set_policy_version(3_000)
    found = drawn(buffer, lag_decay=0.5)
    of_old = sum(count for (episode_id, _), count in found.items() if episode_id == old)
    testing.assert_frequencies([of_old, found.total() - of_old], [2 / 3, 1 / 3])
    buffer.set_policy_version(2**62)
    assert {episode_id for episode_id, _ in drawn(buffer, 100, lag_decay=0.5)} == {old, older}
    lived(buffer, [2**62] * 2)
    assert not {episode_id for episode_id, _ in drawn(buffer, 100, lag_decay=0.5)} & {old, older}


class Fixed(np.random.Generator):
    """Whose floats are all the same."""

    def __init__(self, value: float) -> None:
        super().__init__(np.random.PCG64(0))
        self._value = value

    def random(self, size: Any = None, *_: Any, **__: Any) -> Any:
        return np.full(size, self._value)


@pytest.fixture(scope="module")
def of_many_versions() -> Buffer:
    """A buffer of versions 0 to 1199; 0.5 ** 1075 is 0 as a float."""
    buffer = Buffer()
    for version in range(1_200):
        lived(buffer, [version])
    return buffer


@pytest.mark.parametrize("decay", [1.0, 0.93, 0.5, 1e-9])
def test_extreme_random_numbers_draw_versions_of_some_weight(decay: float, of_many_versions: Buffer) -> None:
    lags = versions_lib.Lags(max_lag=None, decay=decay)
    highest, lowest = (
        {episode_lib.newest_version(each) for each, _ in counts_of(of_many_versions).draw(5, Fixed(value), 1_200, lags)}
        for value in (np.nextafter(1.0, 0.0), 0.0)
    )
    assert highest == {1_199}
    assert lowest == {next(version for version in range(1_200) if decay ** (1_199 - version))}


def test_a_version_of_which_nothing_is_stored_is_forgotten() -> None:
    buffer = Buffer(max_episodes=2)
    for version in range(100):
        lived(buffer, [version, version + 1])
    assert counts_of(buffer).totals() == {98: 1, 99: 2, 100: 1}
    assert counts_of(buffer).pools.keys() == {versions_lib.ALL, 98, 99, 100}
    first = weakref.ref(buffer._store.finished[0])
    buffer.clear()
    assert (counts_of(buffer).totals(), counts_of(buffer).known, first()) == ({}, [], None)
    buffer.check()


def broken(change: Any) -> Buffer:
    buffer = example()
    change(counts_of(buffer))
    return buffer


@pytest.mark.parametrize(
    "change",
    [
        lambda counts: counts.known.reverse(),
        lambda counts: counts.known.append(9),
        lambda counts: counts.pools.pop(3),
        lambda counts: counts.pools[3].finished.popleft(),
        lambda counts: counts.pools[7].finished.append(counts.pools[7].finished.popleft(), 1),
        lambda counts: counts.pools[8].growing.grow(next(iter(counts.pools[5].growing))),
        lambda counts: counts.pool(4),
        lambda counts: setattr(counts.pools[7].finished, "total", 3),
    ],
)
def test_a_count_that_is_wrong_is_found(change: Any) -> None:
    with pytest.raises(errors.CorruptionError, match="^transitions by policy version must be .*, found .* of .*$"):
        broken(change).check()


def test_a_shelf_that_is_wrong_is_found() -> None:
    buffer = example()
    counts_of(buffer).pools[8].growing._shelves[1].units += 1
    with pytest.raises(errors.CorruptionError, match="^growing counts of 1 items do not agree with their shelves$"):
        buffer.check()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_lag": -1}, "^max_lag must be at least 0, got -1$"),
        ({"max_lag": True}, "^max_lag must be an integer of at least 0, got True$"),
        ({"max_lag": 1.0}, "^max_lag must be an integer of at least 0, got 1.0$"),
        ({"lag_decay": 0.0}, r"^lag_decay must be in \(0, 1\], got 0.0$"),
        ({"lag_decay": 1.1}, r"^lag_decay must be in \(0, 1\], got 1.1$"),
        ({"lag_decay": None}, r"^lag_decay must be a number in \(0, 1\], got None$"),
        ({"lag_decay": True}, r"^lag_decay must be a number in \(0, 1\], got True$"),
    ],
)
def test_lags_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    buffer = example()
    state = buffer.rng.bit_generator.state
    with pytest.raises(errors.ArgumentError, match=message):
        buffer.sample_n_step_nowait(1, 1, 0.9, **arguments)
    assert buffer.rng.bit_generator.state == state


def test_a_decay_of_one_and_no_bound_asks_for_nothing() -> None:
    assert versions_lib.asked(None, 1) is None
    assert versions_lib.asked(None, np.float32(1)) is None
    assert versions_lib.asked(0, 1) == versions_lib.Lags(max_lag=0, decay=1.0)
    assert versions_lib.asked(np.int8(3), 0.5) == versions_lib.Lags(max_lag=3, decay=0.5)
    one, other = example(), Buffer()
    other.load_state_dict(one.state_dict())
    batch = one.sample_n_step_nowait(50, 2, 0.9)
    assert other.sample_n_step_nowait(50, 2, 0.9, max_lag=None, lag_decay=1) == batch
