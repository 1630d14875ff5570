"""What each workload times: calls of a buffer, in order, with prepared arguments."""

import functools
from typing import Any

import numpy as np
import pytest

import relive
from relive.bench import tasks
from relive.bench import workloads
from relive.common import arrays as arrays_lib


class Recorder(tasks.Buffer):
    """A buffer that only records its calls."""

    def __init__(self, task: tasks.Task) -> None:
        super().__init__(task)
        self.verbs: list[str] = []
        self.added: list[Any] = []
        self.drawn: list[object] = []
        self.updated: list[object] = []

    def add(self, prepared: Any) -> None:
        self.verbs.append("add")
        self.added.append(prepared)

    def sample(self) -> Any:
        self.verbs.append("sample")
        self.drawn.append(object())
        return self.drawn[-1]

    def update(self, sample: Any, priorities: arrays_lib.Floats) -> None:
        assert priorities.shape == (256,)
        self.verbs.append("update")
        self.updated.append(sample)


def recorded(
    timed: workloads.Timed, calls: int, streams: int = 1, lengths: tuple[int, int] = (3, 6)
) -> tuple[Recorder, list[object]]:
    """Return the buffer after that many timed calls, and what they returned."""
    kind = relive.Field((4,), "float32")
    task = tasks.Task(capacity=100, observation=kind, streams=streams, episode_lengths=lengths)
    buffer, _, following = tasks.filled(Recorder, task, 20, 40)
    assert isinstance(buffer, Recorder)
    buffer.verbs.clear()
    buffer.added.clear()
    call = timed(buffer, following)
    return buffer, [call() for _ in range(calls)]


@pytest.mark.parametrize(
    ("timed", "verbs"),
    [
        (workloads.drawing, "sample"),
        (functools.partial(workloads.drawing, updates=True), "sample update"),
        (workloads.adding, "add"),
        (functools.partial(workloads.drawing, adds=1), "add sample"),
        (functools.partial(workloads.drawing, adds=4, updates=True), "add add add add sample update"),
    ],
)
def test_a_timed_call_returns_its_batch(timed: workloads.Timed, verbs: str) -> None:
    buffer, answered = recorded(timed, 2)
    assert " ".join(buffer.verbs) == f"{verbs} {verbs}"
    assert answered == (buffer.drawn or [None, None])
    assert buffer.updated == (buffer.drawn if "update" in verbs else [])


def test_steps_continue_after_the_fill_and_then_start_over() -> None:
    buffer, _ = recorded(workloads.adding, 200)
    story = tasks.Task(capacity=100, observation=relive.Field((4,), "float32"), episode_lengths=(3, 6)).story(60)
    steps = [step for episode in story.until(20)[1] for step in episode.steps()]
    for step, other in zip(buffer.added, steps, strict=False):
        np.testing.assert_equal(vars(step), vars(other))
    ends = [step.terminated or step.truncated for step in buffer.added]
    for step, following, is_end in zip(buffer.added, buffer.added[1:], ends, strict=False):
        if is_end:
            assert following.observation[1] == 0  # A whole episode begins.
        else:
            np.testing.assert_equal(following.observation, step.next_observation)


def test_streams_end_their_episodes_at_different_times() -> None:
    buffer, _ = recorded(workloads.adding, 12, streams=2, lengths=(5, 5))
    first, second = np.stack([step.observation for step in buffer.added], axis=1)
    assert first[:, 1].tolist() == [0, 1, 2, 3, 4] * 2 + [0, 1]
    assert second[:, 1].tolist() == [2, 3, 4, 0, 1] * 2 + [2, 3]
    assert set(second[:, 0]) == {2}
    assert [step.truncated.any() or step.terminated.any() for step in buffer.added[:5]] == [0, 0, 1, 0, 1]
