"""Checks of results: of each row, whether there is a step, and a horizon, that it is the transition of.

That is checked of what is drawn while it is timed, and in a ring of a few hundred steps that went round twice, where no
row is far from an end or from the seam.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import numpy as np

from relive.bench import tasks
from relive.common import arrays
from relive.schema import schema as schemas
from relive.testing import synthetic

_RELATIVE, _ABSOLUTE = 1e-4, 1e-3

_CAPACITY = 500
_SIDE = 8
"""The size of an image: faults do not depend on it."""
_SHORT = (50, 350)
"""The lengths of episodes where the task's own do not fit."""
_BATCHES = 40
_CLASSES = 4
_SIGMAS = 6.0
_SHARE = "share of draws"
_SLACK = 0.01
"""What the share of a class may be off besides: some peers leave the newest step out, which is one of 500."""


@dataclasses.dataclass
class Findings:
    """How many rows were looked at, and in how many of them which part was wrong."""

    rows: int = 0
    wrong: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, rows: int, wrong: Mapping[str, arrays.Bools]) -> None:
        """Count a batch of that many rows, given what is wrong in which of them [B]."""
        self.rows += rows
        for part, marks in wrong.items():
            if marks.any():
                self.wrong[part] = self.wrong.get(part, 0) + int(np.count_nonzero(marks))

    def shares(self) -> dict[str, float]:
        """Return the share of rows that each wrong part is wrong in."""
        return {part: count / self.rows for part, count in sorted(self.wrong.items())}


@dataclasses.dataclass
class Entrant:
    """A peer in a workload: a call that is ready to be timed, and a check of its results.

    Attributes:
        call: What is timed.
        check: Adds to the findings what is wrong with what the call returned; None where nothing could be right.
        small: What was wrong in a small ring.
        steps: Equal parts of a call, by which the time is divided.
        findings: What was wrong with what was returned while it was timed.
        failure: What ended its part.
        last: What was returned last.
    """

    call: Callable[[], Any]
    check: Callable[[Any, Findings], None] | None = None
    small: Findings = dataclasses.field(default_factory=Findings)
    steps: int = 1
    findings: Findings = dataclasses.field(default_factory=Findings)
    failure: str = ""
    last: Any = None

    def __call__(self) -> None:
        """Make the call, unless it has failed before."""
        if not self.failure:
            try:
                self.last = self.call()
            except Exception as error:  # Whatever ails one peer must not end the run of the others.
                self.failure = tasks.in_one_line(error)

    def look(self) -> None:
        """Check what was returned last."""
        if self.last is not None and self.check and not self.failure:
            self.check(self.last, self.findings)


def check(task: tasks.Task, story: synthetic.Story, answer: tasks.Answer, findings: Findings) -> None:
    """Add to the findings what is wrong with a batch."""
    rows = len(answer["observation"])
    wrong = _sequences(task, story, answer) if task.sequence_length else _transitions(task, story, answer)
    if rows != task.batch_size:
        wrong["batch size"] = np.ones(rows or 1, bool)
    findings.add(max(rows, 1), wrong)


def _transitions(task: tasks.Task, story: synthetic.Story, answer: tasks.Answer) -> dict[str, arrays.Bools]:
    """Return what is wrong in which transition [B].

    A row is right if some horizon m of 1 to n steps explains all of it. Otherwise the parts are blamed that do not fit
    the horizon that explains most of it. What is said of a next observation after termination does not matter: its
    value is multiplied by zero.
    """
    frames, following = answer["observation"], answer["next_observation"]
    stack = task.frame_stack
    newest = frames[:, -1] if stack > 1 else frames
    later = following[:, -1] if stack > 1 else following
    episodes, steps, is_known = story.place(newest)
    next_episodes, next_steps, is_next_known = story.place(later)
    terminal = answer["terminal"].astype(bool)
    left = story.lengths[episodes] - steps
    horizons = np.arange(1, task.n_step + 1)[:, np.newaxis]  # [n, 1]
    ends_here = story.is_terminated[episodes] & (left == horizons)  # [n, B]
    rewards = synthetic.rewards_of(episodes, steps + horizons - 1) * task.gamma ** (horizons - 1)  # [n, B]
    discounts = np.where(terminal, 0.0, task.gamma**task.n_step)
    if "discount" in answer:
        discounts = np.where(terminal, 0.0, answer["discount"])
    fits = {
        "reward": np.isclose(answer["reward"], np.cumsum(rewards, axis=0), _RELATIVE, _ABSOLUTE),
        "terminal flag": terminal == ends_here,
        "discount": np.isclose(discounts, np.where(ends_here, 0.0, task.gamma**horizons), _RELATIVE, _ABSOLUTE)
        | (terminal != ends_here),
        "next observation": ends_here
        | (is_next_known & (next_episodes == episodes) & (next_steps == steps + horizons)),
    }
    is_possible = horizons <= left
    explained = sum(fit.astype(int) for fit in fits.values()) * is_possible
    best = task.n_step - 1 - np.argmax(explained[::-1], axis=0)  # The longest one of those that explain most.
    wrong = {part: is_known & ~np.take_along_axis(fit, best[np.newaxis], axis=0)[0] for part, fit in fits.items()}
    wrong["action"] = is_known & ~_all(answer["action"] == story.actions(episodes, steps), len(steps))
    wrong["observation"] = ~is_known
    if stack > 1:
        wrong["observation"] |= ~_is_stack(story, frames, episodes, steps)
        matters = is_next_known & ~terminal & ~wrong["next observation"]
        wrong["next observation"] |= matters & ~_is_stack(story, following, next_episodes, next_steps)
    return wrong


def _is_stack(story: synthetic.Story, stacks: arrays.Array, episodes: arrays.Ints, steps: arrays.Ints) -> arrays.Bools:
    """Return whether the frames [B, S, ...] are those up to the steps [B].

    Before the first frame there may be zeros, or that frame again.
    """
    times = steps[:, np.newaxis] - np.arange(stacks.shape[1])[::-1]
    zeros = story.frames(episodes[:, np.newaxis], times)
    repeated = story.frames(episodes[:, np.newaxis], np.maximum(times, 0))
    size = len(stacks)
    return _all(stacks == zeros, size) | _all(stacks == repeated, size)


def _sequences(task: tasks.Task, story: synthetic.Story, answer: tasks.Answer) -> dict[str, arrays.Bools]:
    """Return what is wrong in which sequence [B]: whether its steps are right, and follow each other."""
    length = task.sequence_length
    observation = answer["observation"]
    size = len(observation)
    mask = answer.get("mask", np.ones(answer["reward"].shape, bool)).astype(bool)
    if answer["reward"].shape != (size, length):
        return {"sequence length": np.ones(size, bool)}
    episodes, steps, is_known = story.place(observation[:, :length])
    both = mask[:, 1:] & mask[:, :-1] & is_known[:, 1:] & is_known[:, :-1]
    is_same = episodes[:, 1:] == episodes[:, :-1]
    is_following = is_same & (steps[:, 1:] == steps[:, :-1] + 1)
    rewards = synthetic.rewards_of(episodes, steps)
    is_end = story.is_terminated[episodes] & (steps == story.lengths[episodes] - 1)
    actions = (answer["action"] == story.actions(episodes, steps)).reshape((size, length, -1)).all(axis=-1)
    real = mask & is_known
    wrong = {
        "observation": mask & ~is_known,
        "reward": real & ~np.isclose(answer["reward"], rewards, _RELATIVE, _ABSOLUTE),
        "action": real & ~actions,
        "terminal flag": real & (answer["terminal"].astype(bool) != is_end),
        "episode crossing": np.ma.ptp(np.ma.array(episodes, mask=~real), axis=1).filled(0)[:, np.newaxis] > 0,
        "order of steps": both & is_same & ~is_following,
    }
    return {part: np.asarray(marks.any(axis=1)) for part, marks in wrong.items()}


def _all(equal: arrays.Bools, size: int) -> arrays.Bools:
    """Return whether all of each row is True [B]."""
    return np.asarray(equal.reshape((size, -1)).all(axis=1))


def check_small_ring(make: tasks.Make, task: tasks.Task) -> Findings:
    """Return what is wrong with a peer's returns in a ring of a few hundred steps that went round twice.

    How often something is drawn is a matter of chance: it is found wrong where it is wrong twice.
    """
    findings = _checked(make, task)
    return _checked(make, task) if _SHARE in findings.shares() else findings


def _checked(make: tasks.Make, task: tasks.Task) -> Findings:
    small, findings = _small(task), Findings()
    filled = int(2.3 * small.capacity)
    buffer, story, following = tasks.filled(make, small, filled, 2 * small.capacity)
    if task.prioritized:
        _check_priorities(buffer, small, story, filled, findings)
    steps = following()
    for _ in range(_BATCHES):
        for _ in range(1 if task.streams > 1 else 3):
            buffer.add(next(steps))
        sample = buffer.sample()
        answer = buffer.answer(sample)
        check(small, story, answer, findings)
        if task.prioritized:
            buffer.update(sample, _priorities(story, answer))
    return findings


def _small(task: tasks.Task) -> tasks.Task:
    """Return the task with small images and a small capacity; it holds more episodes than a batch has sequences."""
    lengths = task.episode_lengths if task.episode_lengths[1] < _CAPACITY else _SHORT
    capacity = _CAPACITY
    if task.streams > 1:
        capacity = 16 * task.streams
    elif task.sequence_length:
        capacity = 2 * task.batch_size * task.episode_lengths[1]
    observation = task.observation
    if len(observation.shape) > 1:
        shape = tuple(min(side, _SIDE) for side in observation.shape)
        observation = schemas.Field(shape, observation.dtype)
    return dataclasses.replace(task, capacity=capacity, observation=observation, episode_lengths=lengths)


def _check_priorities(
    buffer: tasks.Buffer, task: tasks.Task, story: synthetic.Story, filled: int, findings: Findings
) -> None:
    """Check that draws follow the priorities, and that importance weights make up for them.

    Priorities are of four classes, which every step belongs to one of. A step is drawn in proportion to
    priority^alpha, and the weights of a batch are to each other as priority^(-alpha beta) (Schaul et al. 2016).
    """
    batches = _BATCHES * 256 // task.batch_size
    for _ in range(batches):
        sample = buffer.sample()
        buffer.update(sample, _priorities(story, buffer.answer(sample)))
    ends = np.cumsum(story.lengths)
    numbers = np.arange(filled - task.capacity, filled)
    episodes = np.searchsorted(ends, numbers, side="right")
    stored = _priority(episodes, numbers - ends[episodes - 1])
    shares = np.bincount(stored.astype(int), weights=stored**task.alpha, minlength=_CLASSES + 1)
    shares = shares / shares.sum()
    drawn = np.zeros(_CLASSES + 1)
    for _ in range(batches):
        sample = buffer.sample()
        answer = buffer.answer(sample)
        priorities = _priorities(story, answer)
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


def _priorities(story: synthetic.Story, answer: tasks.Answer) -> arrays.Floats:
    """Return what the steps of a batch are to be drawn by [B]."""
    episodes, steps, _ = story.place(answer["observation"])
    return _priority(episodes, steps)


def _priority(episodes: arrays.Ints, steps: arrays.Ints) -> arrays.Floats:
    return np.asarray(1 + (episodes + steps) % _CLASSES, np.float64)
