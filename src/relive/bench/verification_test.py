"""Every kind of fault is found and named, and correct results are not reported."""

from collections.abc import Callable, Iterable
import dataclasses
from typing import Any

import numpy as np
import pytest

import relive
from relive.bench import tasks
from relive.bench import verification
from relive.bench import workloads
from relive.bench.peers import own
from relive.common import arrays as arrays_lib
from relive.testing import synthetic

SMALL = relive.Field((4,), "float32")
ONE = tasks.Task(capacity=500, observation=SMALL, episode_lengths=(5, 20))
FIVE = dataclasses.replace(ONE, n_step=5)
STACKED = tasks.Task(capacity=500, observation=relive.Field((4, 4), "uint8"), frame_stack=4, episode_lengths=(5, 20))
RUNS = tasks.Task(capacity=500, observation=SMALL, sequence_length=4, episode_lengths=(5, 20))

Spoil = Callable[[tasks.Answer, synthetic.Story], None]


def found(task: tasks.Task, spoil: Spoil = lambda answer, story: None) -> dict[str, float]:
    """Return the faults found in a correct batch after it was changed."""
    story = task.story(1_000)
    buffer = own._Columns(task)
    buffer.fill(story.until(700)[0])
    answer = buffer.answer(buffer.sample())
    spoil(answer, story)
    findings = verification.Findings()
    verification.check(task, story, answer, findings)
    return findings.shares()


@pytest.mark.parametrize("task", [ONE, FIVE, STACKED, RUNS])
def test_no_fault_is_found_in_correct_answers(task: tasks.Task) -> None:
    assert found(task) == {}


def task_of(name: str) -> tasks.Task:
    return workloads.WORKLOADS[name].task


def setting(name: str, change: Callable[[arrays_lib.Array], object]) -> Spoil:
    """Return what changes a column in the first 64 of 256 rows."""

    def spoil(answer: tasks.Answer, story: synthetic.Story) -> None:
        column = answer[name] = answer[name].copy()
        column[:64] = change(column[:64])

    return spoil


@pytest.mark.parametrize(
    ("task", "spoil", "part"),
    [
        (ONE, setting("observation", lambda column: column + 0.5), "observation"),
        (ONE, setting("action", lambda column: column + 1), "action"),
        (ONE, setting("reward", lambda column: column + 1), "reward"),
        (FIVE, setting("reward", lambda column: column * 0.99), "reward"),
        (ONE, setting("terminal", lambda column: ~column), "terminal flag"),
        (STACKED, setting("observation", lambda column: np.roll(column, 1, axis=-1)), "observation"),
        (RUNS, setting("reward", lambda column: column + 1), "reward"),
        (RUNS, setting("action", lambda column: column + 1), "action"),
        (RUNS, setting("terminal", lambda column: ~column), "terminal flag"),
        (RUNS, setting("observation", lambda column: column + 0.5), "observation"),
    ],
)
def test_a_fault_is_found_and_named(task: tasks.Task, spoil: Spoil, part: str) -> None:
    shares = found(task, spoil)
    assert 0.2 < shares.pop(part) <= 0.25
    assert not shares


def test_a_next_observation_of_another_episode_is_found() -> None:
    def spoil(answer: tasks.Answer, story: synthetic.Story) -> None:
        episodes, steps, _ = story.place(answer["observation"])
        answer["next_observation"] = story.frames(episodes + 1, steps + 1)

    shares = found(ONE, spoil)
    assert set(shares) == {"next observation"}
    assert shares["next observation"] > 0.9  # All but those that are terminal.


def test_a_stale_next_observation_is_blamed_not_the_reward() -> None:
    def spoil(answer: tasks.Answer, story: synthetic.Story) -> None:
        episodes, steps, _ = story.place(answer["observation"])
        answer["next_observation"] = story.frames(episodes, steps)

    assert set(found(FIVE, spoil)) == {"next observation"}


def test_a_stack_with_a_wrong_older_frame_is_found() -> None:
    def spoil(answer: tasks.Answer, story: synthetic.Story) -> None:
        answer["observation"] = answer["observation"].copy()
        answer["observation"][:, 0] = 77

    assert found(STACKED, spoil) == {"observation": 1.0}


def test_a_wrong_next_stack_is_found() -> None:
    def spoil(answer: tasks.Answer, story: synthetic.Story) -> None:
        answer["next_observation"] = answer["next_observation"].copy()
        answer["next_observation"][:, 0] = 77

    assert set(found(STACKED, spoil)) == {"next observation"}


def test_a_stack_may_repeat_its_first_frame() -> None:
    def spoil(answer: tasks.Answer, story: synthetic.Story) -> None:
        for name in ("observation", "next_observation"):
            episodes, steps, _ = story.place(answer[name][:, -1])
            times = np.maximum(steps[:, np.newaxis] + np.arange(-3, 1), 0)
            stacks = story.frames(episodes[:, np.newaxis], times)
            is_real = np.asarray(answer[name][:, -1:].any(axis=(2, 3)))[..., np.newaxis, np.newaxis]
            answer[name] = np.where(is_real, stacks, answer[name])

    assert found(STACKED, spoil) == {}


def test_a_shorter_horizon_is_valid_if_the_row_agrees_on_it() -> None:
    def spoil(answer: tasks.Answer, story: synthetic.Story) -> None:
        one = ONE.story(1_000)
        episodes, steps, _ = one.place(answer["observation"])
        answer["next_observation"] = one.frames(episodes, steps + 1)
        answer["reward"] = np.asarray((7 * episodes + 3 * steps) % 11 - 5.0)
        answer["terminal"] = one.is_terminated[episodes] & (steps + 1 == one.lengths[episodes])
        answer["discount"] = np.full(len(steps), FIVE.gamma)

    assert found(FIVE, spoil) == {}


def test_a_shorter_horizon_without_its_discount_is_wrong() -> None:
    shares = found(FIVE, lambda answer, story: dict.__delitem__(answer, "discount"))
    assert set(shares) == {"discount"}
    assert 0.05 < shares["discount"] < 0.4  # Where an episode was truncated within five steps.


def test_a_batch_of_another_size_is_found() -> None:
    def spoil(answer: tasks.Answer, story: synthetic.Story) -> None:
        for name in answer:
            answer[name] = answer[name][:-1]

    assert found(ONE, spoil) == {"batch size": 1.0}


def test_a_sequence_over_the_end_of_an_episode_is_found() -> None:
    def spoil(answer: tasks.Answer, story: synthetic.Story) -> None:
        episodes, steps, _ = story.place(answer["observation"][:, :4])
        episodes, steps = episodes.copy(), steps.copy()
        episodes[:, 2:] += 1
        steps[:, 2:] -= steps[:, 2:3]
        answer["observation"] = story.frames(episodes, steps)

    shares = found(RUNS, spoil)
    assert shares["episode crossing"] == 1.0
    assert "order of steps" not in shares


def test_steps_out_of_order_are_found() -> None:
    def spoil(answer: tasks.Answer, story: synthetic.Story) -> None:
        answer["observation"] = answer["observation"][:, 3::-1]

    assert found(RUNS, spoil)["order of steps"] == 1.0


def test_sequences_of_another_length_are_found() -> None:
    def spoil(answer: tasks.Answer, story: synthetic.Story) -> None:
        answer["reward"] = answer["reward"][:, 1:]

    assert found(RUNS, spoil) == {"sequence length": 1.0}


def test_masked_steps_are_not_verified() -> None:
    def spoil(answer: tasks.Answer, story: synthetic.Story) -> None:
        answer["observation"] = answer["observation"].copy()
        answer["observation"][:, 3:] = 0
        answer["mask"] = np.tile([True, True, True, False], (256, 1))

    assert found(RUNS, spoil) == {}


class Skewed(own._Columns):
    """relive's own prioritized buffer, whose every second draw is uniform, or whose weights are all alike."""

    def __init__(self, task: tasks.Task, fault: str) -> None:
        super().__init__(task)
        self._uniform = own._Columns(dataclasses.replace(task, prioritized=False))
        self._fault, self._draws = fault, 0

    def fill(self, episodes: Iterable[synthetic.Episode]) -> None:
        kept = list(episodes)
        super().fill(kept)
        self._uniform.fill(kept)

    def add(self, prepared: Any) -> None:
        super().add(prepared)
        self._uniform.add(prepared)

    def sample(self) -> Any:
        self._draws += 1
        return self._uniform.sample() if self._fault == "share of draws" and self._draws % 2 else super().sample()

    def update(self, sample: Any, priorities: Any) -> None:
        is_own = sample.keys < self.buffer.appended
        self.buffer.update_priorities(sample.keys[is_own], priorities[is_own])

    def answer(self, sample: Any) -> tasks.Answer:
        answer = super().answer(sample)
        if self._fault == "importance weight":
            answer["weights"] = np.ones(len(answer["weights"]))
        else:
            del answer["weights"]
        return answer


def in_a_small_ring(make: tasks.Make, name: str) -> verification.Findings:
    findings = verification.Findings()
    verification.check_small_ring(make, task_of(name), findings)
    return findings


@pytest.mark.parametrize("fault", ["share of draws", "importance weight"])
def test_a_wrong_priority_is_found(fault: str) -> None:
    assert set(in_a_small_ring(lambda task: Skewed(task, fault), "prioritized-10k").shares()) == {fault}


@pytest.mark.parametrize(
    "name",
    [
        *("prioritized-10k", "n-step"),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("loop", "sequences", "extend", "images-32")),
    ],
)
def test_no_fault_is_found_in_a_small_ring_of_relive(name: str) -> None:
    """All fields are checked; that no workload has a fault is tested in `runner_test`."""
    findings = in_a_small_ring(own._Columns, name)
    batches = 80 if name == "prioritized-10k" else 40
    assert name == "loop" or findings.rows == batches * task_of(name).batch_size
    assert findings.shares() == {}
