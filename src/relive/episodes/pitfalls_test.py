"""Bugs that other libraries shipped, as far as episodes can have them; each test names its source.

Data describe themselves: observation = (episode number, t), reward = 100 * episode number + t, so any splice shows.
"""

import gc
import math
from typing import Any
import weakref

import numpy as np
import pytest

import relive
from relive import testing
from relive.episodes import helpers_test

Buffer = helpers_test.Buffer
Sample = relive.ReplaySample[Any, Any]


def live(buffer: Buffer, number: int, steps: int, status: relive.FinalStatus | None = "COMPLETED") -> str:
    """Write an episode of self-describing steps, leave it open with status None, and return its id."""
    episode_id = buffer.start_episode_nowait("a")
    for t in range(steps):
        buffer.append_observation_action_reward_nowait(episode_id, (number, t), t, 100.0 * number + t)
    if status is not None:
        buffer.end_episode_nowait(episode_id, (number, steps), status)
    return episode_id


def assert_no_splice(samples: list[Sample]) -> None:
    for s in samples:
        number, t = s.observation
        assert t == s.action == s.start_step
        assert s.next_observation == (number, t + s.actual_n)
        assert s.rewards_seq == [100.0 * number + t + k for k in range(s.actual_n)]


def test_p3_no_step_without_its_next_observation_is_drawn() -> None:
    """lerobot PR 918, tensorforce 138: the newest row was drawn before its successor was written."""
    buffer = Buffer()
    live(buffer, 0, 4, status=None)
    samples = buffer.sample_n_step_nowait(500, 2, 0.9)
    assert {s.start_step for s in samples} == {0, 1, 2}
    assert_no_splice(samples)


def test_p4_truncated_episodes_keep_their_own_last_observation() -> None:
    """Stable-Baselines3 934, cleanrl 460: it was the reset observation of the following episode."""
    buffer = Buffer()
    live(buffer, 0, 3, "TRUNCATED")
    live(buffer, 1, 3, "TRUNCATED")
    last = [s for s in buffer.sample_n_step_nowait(500, 1, 0.9) if s.start_step == 2]
    assert {s.next_observation for s in last} == {(0, 3), (1, 3)}
    assert {s.next_discount for s in last} == {0.9}


def test_p6_the_last_start_is_drawn_as_often_as_any() -> None:
    """torchrl PR 1762 and 1774, mbrl-lib: an off-by-one left the last one out."""
    buffer = Buffer(seed=1)
    live(buffer, 0, 8)
    starts = [0] * 8
    for s in buffer.sample_n_step_nowait(8000, 3, 0.9):
        starts[s.start_step] += 1
    testing.assert_frequencies(starts, [1 / 8] * 8)


def test_p9_no_window_crosses_an_end() -> None:
    """sheeprl 118, seed_rl 13: a window longer than the rest of the episode ran on into the next one."""
    buffer = Buffer()
    for number in range(6):
        live(buffer, number, 4, ("COMPLETED", "TRUNCATED", "ABORTED")[number % 3])
    live(buffer, 6, 4, None)
    samples = buffer.sample_n_step_nowait(2000, 7, 0.9)
    assert_no_splice(samples)
    assert {s.start_step + s.actual_n for s in samples if s.observation[0] < 6} == {4}


def test_p10_nothing_to_draw_is_an_error_and_never_row_zero() -> None:
    """RTRRL 57: a silent fallback to row 0."""
    buffer = Buffer()
    live(buffer, 0, 1, None)
    live(buffer, 1, 0, "ABORTED")
    with pytest.raises(relive.NotReadyError):
        buffer.sample_n_step_nowait(1, 1, 0.9)


def test_p11_episodes_without_a_transition_take_no_probability() -> None:
    """torchrl PR 2011: short episodes got a share of the draws that was unusable."""
    buffer = Buffer(seed=2)
    ids = [live(buffer, number, steps) for number, steps in enumerate([0, 3, 0, 0, 5, 0])]
    drawn = dict.fromkeys(ids, 0)
    for s in buffer.sample_n_step_nowait(8000, 1, 0.9):
        drawn[s.episode_id] += 1
    testing.assert_frequencies(list(drawn.values()), [0, 3 / 8, 0, 0, 5 / 8, 0])


def test_p12_a_batch_is_never_quietly_shorter() -> None:
    """ares PR 19, AgileRL and lerobot draw min(batch, size)."""
    buffer = Buffer()
    live(buffer, 0, 2)
    assert len(buffer.sample_n_step_nowait(64, 3, 0.9)) == 64


def test_p13_early_short_episodes_do_not_pin_what_is_held() -> None:
    """ray 10958, torchtune 2943: capacity in steps, kept as a number of items."""
    buffer = Buffer(max_transitions=100)
    for number in range(50):
        live(buffer, number, 1)
    for number in range(50, 60):
        live(buffer, number, 20)
    assert len(buffer) == 100
    assert buffer.get_stats().total_episodes == 5


@pytest.mark.parametrize("status", ["TRUNCATED", "ABORTED"])
def test_p16_p17_a_cut_window_reports_its_own_m_and_bootstraps(status: relive.FinalStatus) -> None:
    """ray 4626, FastTD3 6, ares PR 19: the discount was gamma^n for a window of m < n, or zero for a time limit."""
    buffer = Buffer()
    live(buffer, 0, 4, status)
    for s in buffer.sample_n_step_nowait(300, 3, 0.5):
        m = min(3, 4 - s.start_step)
        assert (s.actual_n, s.next_discount, s.is_terminal) == (m, 0.5**m, False)


def test_p18_a_terminal_first_step_ends_the_window_at_once() -> None:
    """AgileRL's multi-step buffer summed past it."""
    buffer = Buffer()
    live(buffer, 3, 1)
    live(buffer, 4, 5)
    (s,) = {
        (s.reward, s.next_observation, s.is_terminal)
        for s in buffer.sample_n_step_nowait(300, 3, 0.9)
        if s.observation[0] == 3
    }
    assert s == (300.0, (3, 1), True)


def test_p19_every_start_of_a_short_episode_is_drawable() -> None:
    """cleanrl's rainbow, ray PR 2929: the last n-1 starts, and with them the rewarding step, were left out."""
    buffer = Buffer()
    live(buffer, 0, 5)
    samples = {s.start_step: s for s in buffer.sample_n_step_nowait(500, 3, 1.0)}
    assert sorted(samples) == [0, 1, 2, 3, 4]
    assert samples[4].rewards_seq == [4.0]


def test_p21_the_reward_of_the_terminal_step_counts() -> None:
    """tianshou 135."""
    buffer = Buffer()
    live(buffer, 0, 3)
    samples = {s.start_step: s for s in buffer.sample_n_step_nowait(500, 3, 1.0)}
    assert samples[0].reward == 3.0


def test_p24_the_first_step_with_a_long_horizon_crashes_nothing() -> None:
    """torchrl 3036."""
    buffer = Buffer()
    episode_id = live(buffer, 0, 1, None)
    with pytest.raises(relive.NotReadyError):
        buffer.sample_n_step_nowait(1, 5, 0.9)
    buffer.append_observation_action_reward_nowait(episode_id, (0, 1), 1, 1.0)
    assert {s.actual_n for s in buffer.sample_n_step_nowait(20, 5, 0.9)} == {1}


def test_p25_drawing_changes_nothing_stored() -> None:
    """tianshou PR 753, Stable-Baselines3: flags were written into storage for the length of a draw."""
    buffer = Buffer()
    live(buffer, 0, 5, "TRUNCATED")
    (episode,) = helpers_test.stored(buffer)
    before = (list(episode.observations), list(episode.actions), list(episode.rewards), episode.status)
    for n in (1, 3, 9):
        buffer.sample_n_step_nowait(50, n, 0.9)
    assert (episode.observations, episode.actions, episode.rewards, episode.status) == before
    buffer.check()


def test_p28_t_steps_have_t_plus_one_observations() -> None:
    """d3rlpy 98, Minari 199."""
    buffer = Buffer()
    live(buffer, 0, 5)
    (episode,) = helpers_test.stored(buffer)
    assert len(episode.observations) == 6
    assert episode.observations[-1] == (0, 5)


def test_p30_an_episode_that_nobody_ended_is_seen() -> None:
    """strands-labs robots 708: the caller forgot to end, and the environment was reset."""
    buffer = Buffer()
    forgotten = live(buffer, 0, 3, None)
    live(buffer, 1, 3)
    assert list(buffer.get_stats().open_ages) == [forgotten]


def test_p31_a_window_cut_in_mid_episode_is_not_terminal() -> None:
    """torchrl 1877: the cut of a slice was marked as an end of the episode."""
    buffer = Buffer()
    live(buffer, 0, 6)
    for s in buffer.sample_n_step_nowait(300, 2, 0.9):
        assert s.is_terminal == (s.start_step + s.actual_n == 6)
        assert s.window_end == ("TERMINATED" if s.is_terminal else "HORIZON")


def test_p35_a_long_episode_is_only_long() -> None:
    """d3rlpy 446: an internal cache overflowed at step 10,000."""
    buffer = Buffer(max_transitions=100)
    live(buffer, 0, 30_000)
    assert len(buffer) == 30_000
    assert_no_splice(buffer.sample_n_step_nowait(500, 3, 0.9))


def test_p50_counters_pass_two_to_the_31() -> None:
    """flashbax PR 58, dopamine's int32 keys: here the running sums are made to start high."""
    buffer = Buffer(max_transitions=50)
    buffer._store.finished._sums[:] = 2**31 - 5
    for number in range(20):
        live(buffer, number, 7)
        buffer.check()
        assert_no_splice(buffer.sample_n_step_nowait(20, 3, 0.9))
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


def test_p55_lengths_add_up_while_open_episodes_overflow() -> None:
    """ares PR 19: evicting episodes in progress left the counter wrong."""
    buffer = Buffer(max_transitions=4, max_episodes=2)
    open_ids = [live(buffer, number, number + 1, None) for number in range(4)]
    for number, episode_id in enumerate(open_ids):
        buffer.check()
        live(buffer, 10 + number, 3)
        buffer.end_episode_nowait(episode_id, (number, number + 1))
        buffer.check()


class Observation:
    """An observation that can be weakly referenced."""


def test_p57_what_is_evicted_is_freed() -> None:
    """ray PR 22678 and 49964."""
    buffer = Buffer(max_transitions=3)

    def live_watched() -> list[weakref.ref[Observation]]:
        episode_id = buffer.start_episode_nowait("a")
        observations = [Observation() for _ in range(3)]
        for observation in observations:
            buffer.append_observation_action_reward_nowait(episode_id, observation, 0, 0.0)
        buffer.end_episode_nowait(episode_id, Observation())
        return [weakref.ref(observation) for observation in observations]

    watched = [reference for _ in range(3) for reference in live_watched()]
    gc.collect()
    assert [reference() is None for reference in watched] == [True] * 6 + [False] * 3
    buffer.clear()
    gc.collect()
    assert all(reference() is None for reference in watched)


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


def test_p67_what_goes_with_an_action_stays_with_it() -> None:
    """miles PR 1829: the behaviour's log-probability was recomputed, or moved by one step."""
    buffer = Buffer()
    episode_id = buffer.start_episode_nowait("a")
    for t in range(6):
        buffer.append_observation_action_reward_nowait(episode_id, t, {"token": t, "log_prob": -0.1 * t}, 0.0)
    buffer.end_episode_nowait(episode_id, 6)
    for s in buffer.sample_n_step_nowait(200, 3, 0.9):
        assert s.action == {"token": s.start_step, "log_prob": -0.1 * s.start_step}


def test_p69_equal_seeds_give_the_same_thousand_batches() -> None:
    """torchrl 4030 and others, as far as it goes without files: nothing but the seed and the calls decides."""
    buffers = [Buffer(seed=9, max_transitions=60) for _ in range(2)]
    for turn in range(1000):
        batches = []
        for buffer in buffers:
            live(buffer, turn, turn % 7, None if turn % 50 == 0 else "COMPLETED")
            batches.append(
                [(s.observation, s.actual_n) for s in buffer.sample_n_step_nowait(8, 3, 0.9)] if turn else []
            )
        assert batches[0] == batches[1]


def test_a_zero_discount_comes_from_termination_alone() -> None:
    """Time-limit bias: with gamma 1 and rewards 0, truncated and terminated windows differ in the discount alone."""
    buffer = Buffer()
    for number, status in enumerate(["COMPLETED", "TRUNCATED", "ABORTED"]):
        live(buffer, number, 3, status)  # type: ignore[arg-type]
    live(buffer, 3, 3, None)
    for s in buffer.sample_n_step_nowait(500, 2, 1.0):
        assert s.next_discount == (0.0 if s.observation[0] == 0 and s.start_step >= 1 else 1.0)
        assert s.is_terminal == (s.next_discount == 0.0)
        assert math.isfinite(s.reward)
