"""Tests of writing: flags, streams, names, rewards, dtypes, capacity; and several steps at once."""

import pathlib
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.kernels import append
from relive.testing import zoo


def ring(capacity: int = 40) -> relive.RingReplayBuffer:
    return relive.RingReplayBuffer(capacity, seed=0)


def test_a_flag_is_0_or_1_of_any_type() -> None:
    buffer = ring()
    flags = [1, 1.0, np.True_, np.uint8(1), np.float32(1), np.array(True), np.array([True]), np.array([[1]])]
    for flag in flags:
        key = buffer.add(0.0, 0, 0.0, next_observation=1.0, terminated=flag, truncated=0)
        assert buffer.read([key]).is_terminal.tolist() == [True]
    wrongs: list[Any] = ["1", None, [], {}, 2, 0.5, np.nan, -1, np.array([True, True]), np.array([]), "no", 1j]
    for wrong in wrongs:
        with pytest.raises(errors.ArgumentError, match="^terminated must be (True, False, 0 or 1|one flag), got "):
            buffer.add(0.0, 0, 0.0, next_observation=1.0, terminated=wrong)
    assert len(buffer) == len(flags)


def test_flags_of_several_streams_are_0_or_1_of_any_type() -> None:
    buffer = relive.RingReplayBuffer(30, streams=2)
    flags: list[Any] = [[0, 1], (False, True), np.array([0.0, 1.0], np.float32), np.array([0, 1], np.uint8)]
    for number, flag in enumerate(flags):
        buffer.extend([0.0, 0.0], [0, 0], [0.0, 0.0], [1.0, 1.0], terminated=flag)
        assert buffer.read([2 * number, 2 * number + 1]).is_terminal.tolist() == [False, True]
    for wrong in ([0, 2], [True], [[0, 1]], ["0", "1"], 1, [0.0, np.nan]):
        with pytest.raises(errors.ArgumentError, match="^terminated must be "):
            buffer.extend([0.0, 0.0], [0, 0], [0.0, 0.0], [1.0, 1.0], terminated=wrong)
    assert len(buffer) == 2 * len(flags)


def test_flags_are_given_by_name_alone() -> None:
    buffer: Any = ring()
    step = (0.0, 0, 0.0, 1.0)
    for call in (buffer.add, buffer.extend, buffer.add_episode, buffer.add_steps):
        with pytest.raises(TypeError, match="positional argument"):
            call(*step, True)


@pytest.mark.parametrize("call", ["add", "add_episode", "add_steps", "end_episode"])
def test_the_stream_is_required_where_there_are_several(call: str) -> None:
    buffer = relive.RingReplayBuffer(30, streams=3)
    step: dict[str, Any] = {
        "add": {"observation": 0.0, "action": 0, "reward": 0.0, "next_observation": 1.0},
        "end_episode": {},
    }.get(call, {"observations": [0.0, 1.0], "actions": [0], "rewards": [0.0], "terminated": True})
    with pytest.raises(errors.ArgumentError, match="^stream must be given where there are several, got none of 3$"):
        getattr(buffer, call)(**step)
    getattr(buffer, call)(**step, stream=2)
    assert len(buffer) == (call != "end_episode")


@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf, np.float32("nan"), np.array(np.inf), np.float64("nan")])
def test_rewards_are_finite(reward: Any) -> None:
    buffer = ring(9)
    rule = "^reward must be finite, got (nan|-?inf)$"
    with pytest.raises(errors.ArgumentError, match=rule):
        buffer.add(0.0, 0, reward, 1.0)
    with pytest.raises(errors.ArgumentError, match=rule):
        buffer.extend([0.0], [0], np.array([reward]), [1.0])
    with pytest.raises(errors.ArgumentError, match=rule):
        buffer.add_episode([0.0, 1.0, 2.0], [0, 0], [0.0, reward], terminated=True)
    with pytest.raises(errors.ArgumentError, match=rule):
        buffer.add_steps([0.0, 1.0, 2.0], [0, 0], [0.0, reward])
    assert len(buffer) == 0
    buffer.add(0.0, 0, 1, 1.0)
    with pytest.raises(errors.ArgumentError, match=rule):
        buffer.extend(np.zeros(1), np.zeros(1, int), np.array([reward], np.float64), np.ones(1))


WORDS = {
    "say terminated": "done dones terminal terminals terminateds episode_end is_state_terminal",
    "say truncated": "truncateds timeouts",
    "say observation": "obs",
    "say next_observation": "next_obs new_obs",
    "say it with update_priorities": "priority priorities",
}


@pytest.mark.parametrize(("remedy", "word"), [(say, word) for say, words in WORDS.items() for word in words.split()])
def test_words_of_other_libraries_are_refused_with_ours(remedy: str, word: str) -> None:
    inferred, declared = (
        ring(),
        relive.RingReplayBuffer(9, relive.Schema(relive.Field((), float), relive.Field((), int))),
    )
    for buffer in (inferred, declared):
        with pytest.raises(errors.SchemaError, match=f"^unknown extra '{word}': {remedy}"):
            buffer.add(0.0, 0, 0.0, 1.0, **{word: True})
        assert len(buffer) == 0
    extras = {word: relive.Field((), bool)}
    own = relive.RingReplayBuffer(9, relive.Schema(relive.Field((), float), relive.Field((), int), extras=extras))
    own.add(0.0, 0, 0.0, 1.0, **{word: True})
    assert len(own) == 1


def test_arrays_of_float64_are_refused_by_their_dtype_where_a_field_is_float32() -> None:
    schema = relive.Schema(relive.Field(2, "float32"), relive.Field((), "float32"), reward=relive.Field((), "float32"))
    buffer = relive.RingReplayBuffer(9, schema)
    rule = r"must be of dtype float32, got float64: cast it with .astype\('float32'\), or declare the field float64$"
    for name, step in {
        "observation": (np.zeros(2), 0.0, 0.0, [0.0, 0.0]),
        "action": ([0.0, 0.0], np.float64(0.0), 0.0, [0.0, 0.0]),
        "next_observation": ([0.0, 0.0], 0.0, 0.0, np.zeros(2)),
    }.items():
        with pytest.raises(errors.SchemaError, match=f"^{name} {rule}"):
            buffer.add(*step)
        arrays = [np.array([part]) if isinstance(part, np.ndarray | np.generic) else [part] for part in step]
        with pytest.raises(errors.SchemaError, match=f"^{name} {rule}"):
            buffer.extend(*arrays)
    buffer.add([np.float64(0.1), 0.2], 0.1, np.float64(0.1), [0.1, np.float64(0.2)])
    buffer.extend([[0.1, 0.2]], [0.1], np.array([0.1]), [[0.1, 0.2]])
    assert buffer.read([0, 1]).action.tolist() == [np.float32(0.1)] * 2


@pytest.mark.parametrize("reward", [np.array([1.0]), [1.0], np.ones((1, 1))])
def test_a_reward_in_an_array_of_one_is_refused_with_the_remedy(reward: Any) -> None:
    with pytest.raises(
        errors.SchemaError, match=r"^reward must be of shape \(\), got \(1,.*\): give the .item\(\) of one"
    ):
        ring().add(0.0, 0, reward, 1.0)
    assert ring().add(0.0, 0, np.array(1.0), 1.0) == 0


def test_a_capacity_that_memory_does_not_hold_is_refused_with_its_bytes() -> None:
    schema = relive.Schema(relive.Field((84, 84), "uint8"), relive.Field((), int))
    rule = r"^capacity must fit in memory, got 10{15} steps of \d+ bytes each, [\d,.]+ GiB in all$"
    with pytest.raises(errors.ArgumentError, match=rule):
        relive.RingReplayBuffer(10**15, schema)
    with pytest.raises(errors.ArgumentError, match=rule):
        relive.RingReplayBuffer(10**15)


def test_a_capacity_that_links_cannot_count_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(append, "MOST_ROWS", 5)
    assert relive.RingReplayBuffer(5).capacity == 5
    with pytest.raises(errors.ArgumentError, match="^capacity must be at most 5, got 6$"):
        relive.RingReplayBuffer(6)


class TestSteps:
    """Consecutive steps of one stream."""

    @pytest.mark.parametrize("make", [ring, lambda: relive.PrioritizedReplayBuffer(6, seed=0)], ids=["ring", "tree"])
    @pytest.mark.parametrize("end", ["terminated", "truncated", None])
    def test_they_are_what_add_makes_of_them(self, make: Any, end: str | None) -> None:
        one, other = make(), make()
        for start, length in ((0, 2), (2, 1), (3, 4)):
            t = np.arange(start, start + length)
            flags = {} if end is None else {end: start == 3}
            keys = one.add_steps(np.arange(start, start + length + 1), t, t / 2, **flags)
            for each in t.tolist():
                is_last = each == start + length - 1
                other.add(each, each, each / 2, each + 1, **{name: flag and is_last for name, flag in flags.items()})
            assert keys.tolist() == t.tolist()
        assert zoo.plain(one.state_dict()) == zoo.plain(other.state_dict())
        assert one.get_stats().spliced_episodes == 0

    def test_other_steps_begin_another_episode(self) -> None:
        buffer = ring(9)
        buffer.add_steps([0, 1, 2], [0, 0], [0.0, 0.0])
        buffer.add_steps([7, 8], [0], [0.0])
        assert buffer.get_stats().spliced_episodes == 1
        buffer.check()

    def test_a_refused_call_changes_nothing(self) -> None:
        buffer = ring(3)
        buffer.add_steps([0, 1, 2], [0, 0], [0.0, 0.0])
        before = zoo.plain(buffer.state_dict())
        for wrong, rule in (
            (([0, 1], [0, 0], [0.0, 0.0]), "observations must be of shape"),
            (([0], [], []), "add_steps must have 1 to capacity = 3 steps, got 0"),
            ((range(5), [0] * 4, [0.0] * 4), "add_steps must have 1 to capacity = 3 steps, got 4"),
            (([2, 3], [0.5], [0.0]), "action must fit int64"),
        ):
            with pytest.raises(errors.ArgumentError, match=f"^{rule}"):
                buffer.add_steps(*wrong)
        assert zoo.plain(buffer.state_dict()) == before

    def test_they_come_back_from_a_journal(self, tmp_path: pathlib.Path) -> None:
        buffer = ring(9)
        with relive.Journal(tmp_path / "log") as log:
            buffer.attach(log)
            buffer.add_steps([0, 1, 2], [3, 4], [0.5, 1.5], truncated=True)
        assert relive.recover(tmp_path / "log").read([0, 1]).reward.tolist() == [0.5, 1.5]


def test_no_step_of_any_stream_is_none() -> None:
    buffer = relive.RingReplayBuffer(4, streams=2, seed=0)
    buffer.extend([0.0, 1.0], [0, 0], [0.0, 0.0], [1.0, 2.0])
    keys = buffer.extend(np.zeros(0), np.zeros(0, int), np.zeros(0), np.zeros(0), streams=[])
    assert (keys.tolist(), len(buffer), buffer.appended) == ([], 2, 2)
    buffer.check()
