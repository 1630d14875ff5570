"""Checks a peer on a ring of a few hundred steps that went round twice: no row is far from an end or from the seam."""

import dataclasses

import numpy as np
import numpy.typing as npt

from relive.bench import answers
from relive.bench import catalogue
from relive.bench import tasks
from relive.bench import workload as workloads
from relive.testing import synthetic

_CAPACITY = 500
_SIDE = 8
"""Of an image: what is wrong with an answer does not depend on its size."""
_SHORT = (50, 350)
"""The lengths of episodes where the task's own do not fit."""
_BATCHES = 40
_CLASSES = 4
_SIGMAS = 6.0
_SHARE = "share of draws"
_SLACK = 0.01
"""What the share of a class may be off besides: some peers leave the newest step out, which is one of 500."""


def check(make: catalogue.Make, task: tasks.Task) -> answers.Findings:
    """Return what is wrong with a peer's returns.

    How often something is drawn is a matter of chance: it is found wrong where it is wrong twice.
    """
    findings = _checked(make, task)
    return _checked(make, task) if _SHARE in findings.shares() else findings


def _checked(make: catalogue.Make, task: tasks.Task) -> answers.Findings:
    """Return what is wrong with the returns of one buffer."""
    small = _small(task)
    capacity = small.capacity
    buffer, findings = make(small), answers.Findings()
    filled = int(2.3 * capacity)
    story = small.story(4 * capacity)
    head, rest = story.until(filled)
    feed = workloads.Feed(buffer, small, story, rest)
    if task.streams > 1:
        rows = feed.rows()
        for _ in range(filled // task.streams):
            buffer.extend(next(rows))
    else:
        buffer.fill(head)
    if task.prioritized:
        _check_priorities(buffer, small, story, filled, findings)
    steps = feed.rows() if task.streams > 1 else feed.steps()
    add = buffer.extend if task.streams > 1 else buffer.add
    for _ in range(_BATCHES):
        for _ in range(1 if task.streams > 1 else 3):
            add(next(steps))
        sample = buffer.sample()
        answer = buffer.answer(sample)
        answers.check(small, story, answer, findings)
        if task.prioritized:
            buffer.update(sample, _priorities(*_places(story, answer)))
    return findings


def _small(task: tasks.Task) -> tasks.Task:
    """Return the task with small images and a small capacity; it holds more episodes than a batch has sequences."""
    lengths = task.episode_lengths if task.episode_lengths[1] < _CAPACITY else _SHORT
    capacity = _CAPACITY
    if task.streams > 1:
        capacity = 16 * task.streams
    elif task.sequence_length:
        capacity = 2 * task.batch_size * task.episode_lengths[1]
    shape, dtype = task.observation.shape, task.observation.dtype
    if len(shape) > 1:
        shape = tuple(min(side, _SIDE) for side in shape)
    return dataclasses.replace(
        task, capacity=capacity, observation=synthetic.Kind(shape, dtype), episode_lengths=lengths
    )


def _check_priorities(
    buffer: tasks.Buffer, task: tasks.Task, story: synthetic.Story, filled: int, findings: answers.Findings
) -> None:
    """Check that draws follow the priorities, and that importance weights make up for them.

    Priorities are of four classes, which every step belongs to one of. A step is drawn in proportion to
    priority^alpha, and the weights of a batch are to each other as priority^(-alpha beta) (Schaul et al. 2016).
    """
    batches = _BATCHES * 256 // task.batch_size
    for _ in range(batches):
        sample = buffer.sample()
        buffer.update(sample, _priorities(*_places(story, buffer.answer(sample))))
    ends = np.cumsum(story.lengths)
    numbers = np.arange(filled - task.capacity, filled)
    episodes = np.searchsorted(ends, numbers, side="right")
    stored = _priorities(episodes, numbers - ends[episodes - 1])
    shares = np.bincount(stored.astype(int), weights=stored**task.alpha, minlength=_CLASSES + 1)
    shares = shares / shares.sum()
    drawn = np.zeros(_CLASSES + 1)
    for _ in range(batches):
        sample = buffer.sample()
        answer = buffer.answer(sample)
        priorities = _priorities(*_places(story, answer))
        buffer.update(sample, priorities)  # What they are already: some peers want an update after every draw.
        drawn += np.bincount(priorities.astype(int), minlength=_CLASSES + 1)
        if "weights" in answer:
            constant = answer["weights"] * priorities ** (task.alpha * task.beta)
            wrong = ~np.isclose(constant, np.median(constant), 0.01)
            findings.add(0, {"importance weight": wrong})
    total = drawn.sum()
    off = np.abs(drawn - total * shares)
    is_off = off > _SIGMAS * np.sqrt(total * shares * (1 - shares)) + _SLACK * total
    findings.add(int(total), {_SHARE: np.repeat(is_off, drawn.astype(int))})


def _places(story: synthetic.Story, answer: tasks.Answer) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return of which episodes and steps the observations of a batch are [B]."""
    episodes, steps, _ = story.place(answer["observation"])
    return episodes, steps


def _priorities(episodes: npt.NDArray[np.int64], steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    return np.asarray(1 + (episodes + steps) % _CLASSES, np.float64)
