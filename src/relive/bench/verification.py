"""Checks of results: of each row, whether there is a step, and a horizon, that it is the transition of.

That is checked of what is drawn while it is timed, and in a ring of a few hundred steps that went round twice, where no
row is far from an end or from the seam.
"""

from collections.abc import Mapping
import dataclasses

import numpy as np

from relive.bench import tasks
from relive.common import arrays as arrays_lib
from relive.schema import schema as schema_lib
from relive.testing import synthetic

_RELATIVE, _ABSOLUTE = 1e-4, 1e-3

_SIDE = 8
"""The size of an image: faults do not depend on it."""
_BATCHES, _CLASSES, _SIGMAS = 40, 4, 6.0
_SLACK = 0.01
"""What the share of a class may be off besides: some peers leave the newest step out, which is one of 500."""


@dataclasses.dataclass
class Findings:
    """How many rows were looked at, and in how many of them which part was wrong."""

    rows: int = 0
    wrong: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, rows: int, wrong: Mapping[str, arrays_lib.Bools]) -> None:
        """Count a batch of that many rows, given what is wrong in which of them [B]."""
        self.rows += rows
        for part, marks in wrong.items():
            if marks.any():
                self.wrong[part] = self.wrong.get(part, 0) + int(np.count_nonzero(marks))

    def shares(self) -> dict[str, float]:
        """Return the share of rows that each wrong part is wrong in."""
        return {part: count / self.rows for part, count in sorted(self.wrong.items())}


def check(task: tasks.Task, story: synthetic.Story, answer: tasks.Answer, findings: Findings) -> None:
    """Add to the findings what is wrong with a batch."""
    rows = len(answer["observation"])
    wrong = _sequences(task, story, answer) if task.sequence_length else _transitions(task, story, answer)
    if rows != task.batch_size:
        wrong["batch size"] = np.ones(rows or 1, bool)
    findings.add(max(rows, 1), wrong)


def _transitions(task: tasks.Task, story: synthetic.Story, answer: tasks.Answer) -> dict[str, arrays_lib.Bools]:
    """Return what is wrong in which transition [B].

    A row is right if some horizon m of 1 to n steps explains all of it. Otherwise the parts are blamed that do not fit
    the horizon that explains most of it. What is said of a next observation after termination does not matter: its
    value is multiplied by zero.
    """
    frames, following = answer["observation"], answer["next_observation"]
    newest = (slice(None), -1) if task.frame_stack > 1 else ()
    episodes, steps, is_known = story.place(frames[newest])
    next_episodes, next_steps, is_next_known = story.place(following[newest])
    terminal = answer["terminal"].astype(bool)
    left = story.lengths[episodes] - steps
    horizons = np.arange(1, task.n_step + 1)[:, np.newaxis]  # [n, 1]
    ends_here = story.is_terminated[episodes] & (left == horizons)  # [n, B]
    rewards = synthetic.rewards_of(episodes, steps + horizons - 1) * task.gamma ** (horizons - 1)  # [n, B]
    discounts = np.where(terminal, 0.0, answer.get("discount", task.gamma**task.n_step))
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
    wrong["action"] = is_known & ~_all(answer["action"] == story.actions(episodes, steps))
    wrong["observation"] = ~is_known
    if task.frame_stack > 1:
        wrong["observation"] |= ~_is_stack(story, frames, episodes, steps)
        matters = is_next_known & ~terminal & ~wrong["next observation"]
        wrong["next observation"] |= matters & ~_is_stack(story, following, next_episodes, next_steps)
    return wrong


def _is_stack(
    story: synthetic.Story, stacks: arrays_lib.Array, episodes: arrays_lib.Ints, steps: arrays_lib.Ints
) -> arrays_lib.Bools:
    """Return whether the frames [B, S, ...] are those up to the steps [B].

    Before the first frame there may be zeros, or that frame again.
    """
    times = steps[:, np.newaxis] - np.arange(stacks.shape[1])[::-1]
    zeros = story.frames(episodes[:, np.newaxis], times)
    repeated = story.frames(episodes[:, np.newaxis], np.maximum(times, 0))
    return _all(stacks == zeros) | _all(stacks == repeated)


def _sequences(task: tasks.Task, story: synthetic.Story, answer: tasks.Answer) -> dict[str, arrays_lib.Bools]:
    """Return what is wrong in which sequence [B]: whether its steps are right, and follow each other."""
    size, length = len(answer["observation"]), task.sequence_length
    if answer["reward"].shape != (size, length):
        return {"sequence length": np.ones(size, bool)}
    episodes, steps, is_known = story.place(answer["observation"][:, :length])
    mask = answer.get("mask", np.ones((size, length), bool)).astype(bool)
    real = mask & is_known
    is_same = real[:, 1:] & real[:, :-1] & (episodes[:, 1:] == episodes[:, :-1])
    rewards = synthetic.rewards_of(episodes, steps)
    is_end = story.is_terminated[episodes] & (steps == story.lengths[episodes] - 1)
    actions = (answer["action"] == story.actions(episodes, steps)).reshape((size, length, -1)).all(axis=-1)
    wrong = {
        "observation": mask & ~is_known,
        "reward": real & ~np.isclose(answer["reward"], rewards, _RELATIVE, _ABSOLUTE),
        "action": real & ~actions,
        "terminal flag": real & (answer["terminal"].astype(bool) != is_end),
        "episode crossing": np.ma.ptp(np.ma.array(episodes, mask=~real), axis=1).filled(0)[:, np.newaxis] > 0,
        "order of steps": is_same & (np.diff(steps) != 1),
    }
    return {part: np.asarray(marks.any(axis=1)) for part, marks in wrong.items()}


def _all(equal: arrays_lib.Bools) -> arrays_lib.Bools:
    return np.asarray(equal.reshape((len(equal), -1)).all(axis=1))


def check_small_ring(make: tasks.Make, task: tasks.Task, findings: Findings) -> None:
    """Add to the findings what is wrong with a peer's returns in a ring of some hundred steps that went round twice."""
    shape = tuple(min(side, _SIDE) for side in task.observation.shape)
    observation = schema_lib.Field(shape, task.observation.dtype)
    small = dataclasses.replace(task, capacity=task.least, observation=observation)
    filled = int(2.3 * small.capacity)
    buffer, story, steps = tasks.filled(make, small, filled, 2 * small.capacity)
    if task.prioritized:
        _check_priorities(buffer, small, story, filled, findings)
    for _ in range(_BATCHES):
        for _ in range(1 if task.streams > 1 else 3):
            buffer.add(next(steps))
        sample = buffer.sample()
        answer = buffer.answer(sample)
        check(small, story, answer, findings)
        if task.prioritized:
            buffer.update(sample, _priorities(story, answer))


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
    stored = _classes(episodes, numbers - ends[episodes - 1])
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
    findings.add(int(total), {"share of draws": np.repeat(is_off, drawn.astype(int))})


def _priorities(story: synthetic.Story, answer: tasks.Answer) -> arrays_lib.Floats:
    return _classes(*story.place(answer["observation"])[:2])


def _classes(episodes: arrays_lib.Ints, steps: arrays_lib.Ints) -> arrays_lib.Floats:
    return np.asarray(1 + (episodes + steps) % _CLASSES, np.float64)
