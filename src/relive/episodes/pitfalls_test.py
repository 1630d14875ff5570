"""Bugs that other libraries shipped, as far as episodes can have them; each test names its source.

Data describe themselves: observation = (episode number, t), reward = 100 * episode number + t, so any splice shows.
"""

from typing import Any

import numpy as np
import pytest

import relive
from relive import testing
from relive.episodes import helpers_test
from relive.episodes import samples_test
from relive.testing import zoo

Buffer = helpers_test.Buffer
WINDOWS = """Bugs of windows and of where they may start:

P3   the newest step was drawn before its next observation was there: lerobot PR 918, tensorforce 138
P4   the last observation was that of the following episode: Stable-Baselines3 934, cleanrl 460
P6   an off-by-one left the last start out: torchrl PR 1762 and 1774, mbrl-lib
P9   a window longer than the rest of its episode ran on into the next one: sheeprl 118, seed_rl 13
P10  with nothing to draw, row 0 was drawn: RTRRL 57
P11  episodes without a transition got a share of the draws: torchrl PR 2011
P12  a batch was min(batch, size) long: ares PR 19, AgileRL, lerobot
P16  the discount was gamma^n for a window of m < n: ray 4626, FastTD3 6, ares PR 19
P17  or zero for a time limit
P18  a window summed past a terminal step: AgileRL
P19  the last n - 1 starts were left out, and with them the rewarding step: cleanrl's rainbow, ray PR 2929
P21  the reward of the terminal step did not count: tianshou 135
P24  the first step crashed with a long horizon: torchrl 3036
P25  flags were written into storage for the length of a draw: tianshou PR 753, Stable-Baselines3
P28  T steps have T + 1 observations: d3rlpy 98, Minari 199
P30  nobody saw an episode that its caller had forgotten: strands-labs robots 708
P31  a cut in mid-episode was marked as terminal: torchrl 1877
"""


def live(buffer: Buffer, number: int, steps: int, status: relive.FinalStatus | None = "COMPLETED") -> str:
    """Write an episode of self-describing steps, leave it open with status None, and return its id."""
    episode_id = buffer.start_episode_nowait("a")
    for t in range(steps):
        buffer.append_observation_action_reward_nowait(episode_id, (number, t), t, 100.0 * number + t)
    if status is not None:
        buffer.end_episode_nowait(episode_id, (number, steps), status)
    return episode_id


def test_p3_to_p31_windows_are_those_of_their_episode_alone() -> None:
    """See WINDOWS; each possible start is drawn as often as any."""
    buffer = Buffer(seed=1)
    live(buffer, 0, 1, None)
    live(buffer, 1, 0, "ABORTED")
    with pytest.raises(relive.NotReadyError):
        buffer.sample_n_step_nowait(1, 1, 0.9)
    for number, steps in enumerate([4, 0, 1, 2, 5], 2):
        for status in ("COMPLETED", "TRUNCATED", "ABORTED", None):
            live(buffer, 10 * number + len(buffer), steps, status)
    episodes = {each.episode_id: each for each in helpers_test.stored(buffer)}
    assert all(len(each.observations) == len(each) + 1 for each in episodes.values() if len(each))
    before = zoo.plain(list(episodes.values()))
    assert list(buffer.get_stats().open_ages) == [key for key, each in episodes.items() if each.status == "IN_PROGRESS"]
    for n, gamma in ((1, 0.9), (3, 0.5), (7, 1.0)):
        counts = {(key, start): 0 for key, each in episodes.items() for start in range(len(each))}
        samples = buffer.sample_n_step_nowait(100 * len(counts), n, gamma)
        assert len(samples) == 100 * len(counts)
        for s in samples:
            counts[s.episode_id, s.start_step] += 1
            assert s == samples_test.naive_sample(episodes[s.episode_id], s.start_step, n, gamma)
            assert (s.observation[1], s.next_observation[1]) == (s.start_step, s.start_step + s.actual_n)
            assert s.observation[0] == s.next_observation[0] == s.rewards_seq[0] // 100
            assert s.next_discount == (0.0 if s.is_terminal else gamma**s.actual_n)
        testing.assert_frequencies(list(counts.values()), [1 / len(counts)] * len(counts))
    assert zoo.plain(list(episodes.values())) == before
    buffer.check()


def test_p35_a_long_episode_is_only_long() -> None:
    """d3rlpy 446: an internal cache overflowed at step 10,000."""
    buffer = Buffer(max_transitions=100)
    live(buffer, 0, 30_000)
    assert len(buffer) == 30_000
    for s in buffer.sample_n_step_nowait(500, 3, 0.9):
        assert s == samples_test.naive_sample(helpers_test.stored(buffer)[0], s.start_step, 3, 0.9)


def test_p50_counters_pass_two_to_the_31() -> None:
    """flashbax PR 58, dopamine's int32 keys: here the running sums are made to start high."""
    buffer = Buffer(max_transitions=50)
    buffer._store.finished._sums = np.full(64, 2**31 - 5)
    for number in range(20):
        live(buffer, number, 7)
        buffer.check()
        for s in buffer.sample_n_step_nowait(20, 3, 0.9):
            assert (s.start_step, s.next_observation) == (s.observation[1], (s.observation[0], s.action + s.actual_n))
    assert int(buffer._store.finished._sums.max()) > 2**31


@pytest.mark.parametrize(
    "value",
    [0.1, 2**53 + 1, True, np.float64(0.1), np.int64(2**53 + 1), np.uint8(255), np.float16(0.1), b"raw", "text", None],
    ids=repr,
)
def test_p54_observations_and_actions_come_back_exact(value: Any) -> None:
    """Stable-Baselines3 484 and others cast to float32 in silence."""
    buffer = Buffer()
    episode_id = buffer.start_episode_nowait("a")
    buffer.append_observation_action_reward_nowait(episode_id, value, value, 0.1)
    buffer.end_episode_nowait(episode_id, value)
    (s,) = buffer.sample_n_step_nowait(1, 1, 0.9)
    for found in (s.observation, s.action, s.next_observation):
        assert type(found) is type(value)
        assert found == value
    assert s.rewards_seq == [0.1]


def test_p64_numpys_global_generator_is_neither_read_nor_moved() -> None:
    """Stable-Baselines3, tianshou, cpprb, sheeprl draw from it."""
    batches = []
    for seed in (1, 2):
        np.random.seed(seed)  # noqa: NPY002
        buffer = Buffer(seed=5)
        live(buffer, 0, 50)
        batches.append([s.start_step for s in buffer.sample_n_step_nowait(50, 1, 0.9)])
        here = np.random.random()  # noqa: NPY002
        np.random.seed(seed)  # noqa: NPY002
        assert here == np.random.random()  # noqa: NPY002
    assert batches[0] == batches[1]
