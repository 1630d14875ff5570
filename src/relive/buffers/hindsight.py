"""Hindsight experience replay: relabel drawn transitions with goals that their episodes achieved.

    o_0 ─ ... ─ o_t ─ o_{t+1} ─ ... ─ o_{t+m} ─ ... ─ o_K          K: the newest observation that is known
                │     └─ what these achieved says the rewards
                └─ is to achieve what o_j achieved:     future     j uniform over t + 1 .. K
                                                        final      j = K
                                                        episode    j uniform over a + 1 .. K, where o_a is the oldest

Goals are replaced in the drawn batch. The stored steps do not change.
"""

from collections.abc import Callable, Mapping
import copy
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.buffers import ring
from relive.common import arrays
from relive.common import randomness
from relive.common import trees
from relive.common import validation
from relive.kernels import append
from relive.kernels import windows
from relive.schema import casting
from relive.schema import schema as schema_lib
from relive.storage import steps as steps_lib
from relive.windows import batches
from relive.windows import returns
from relive.windows import transitions

Columns: TypeAlias = dict[str, arrays.Array]
Tree: TypeAlias = batches.Tree
Compute: TypeAlias = Callable[[Tree, Tree], tuple[npt.ArrayLike, npt.ArrayLike]]
Strategy: TypeAlias = Literal["future", "final", "episode"]


def relabel(
    buffer: ring.RingReplayBuffer,
    batch: batches.TransitionBatch,
    *,
    compute: Compute,
    strategy: Strategy = "future",
    share: float = 0.8,
    achieved: str = "achieved_goal",
    desired: str = "desired_goal",
    open_episodes: bool = False,
    n_step: int | None = None,
    gamma: float | None = None,
) -> batches.TransitionBatch:
    """Return a copy of the batch with round(share * B) rows relabeled to goals that their own episodes achieved.

    This is hindsight experience replay (Andrychowicz et al. 2017, sections 3.3 and 4.5) at draw time. Neither the
    buffer nor `batch` changes. `buffer.rng` chooses the rows, each at most once, and the goals.

    A relabeled row is read from the buffer again. `compute` returns the reward of each step of its window, and whether
    the task terminates there; the window ends at the first such step. The recorded termination is ignored, since it may
    belong to the old goal; a termination unrelated to the goal must show in what was achieved, for `compute` to see it.

    A row can be relabeled if its episode has ended and its next observation is known, which may be missing where an
    episode terminated. A longer window stops before such a step.

    Args:
        buffer: The buffer that the batch was drawn from.
        batch: The batch as drawn [B].
        compute: Called with the achieved goals after k steps and their desired goals, both [k, ...] or dicts of such
            arrays; returns the rewards [k] and whether the task terminates [k].
        strategy: Where the new goal is taken from: after the step ("future"), the end of the episode ("final"), or
            anywhere in the stored part of the episode ("episode").
        share: The share of rows to relabel, 0 to 1.
        achieved: Key of the achieved goal in the observation, or its path "key/key".
        desired: Key or path of the desired goal: a field of the same shape and dtype.
        open_episodes: Whether to relabel rows of open episodes too, with goals achieved so far.
        n_step: The n_step that the batch was drawn with, if not the buffer's.
        gamma: The gamma that the batch was drawn with, if not the buffer's.

    Raises:
        UnknownKeyError: A step of the batch is no longer stored.
        NotReadyError: Fewer than round(share * B) rows can be relabeled.
        SchemaError: `compute` returned something other than k rewards and k bools.
        ArgumentError: Another argument is invalid.

    >>> import numpy as np
    >>> import relive
    >>> from relive.buffers import hindsight
    >>> buffer = relive.RingReplayBuffer(100, seed=0)
    >>> places = {"achieved_goal": [0, 1, 2, 3], "desired_goal": [9, 9, 9, 9]}
    >>> keys = buffer.add_episode(places, [1, 1, 1], [-1.0, -1.0, -1.0], terminated=False)
    >>> def compute(achieved, goals):
    ...     return np.where(achieved == goals, 0.0, -1.0), achieved == goals
    >>> batch = hindsight.relabel(buffer, buffer.read(keys), compute=compute, strategy="final", share=1.0)
    >>> batch.observation["desired_goal"].tolist(), batch.reward.tolist(), batch.is_terminal.tolist()
    ([3, 3, 3], [-1.0, -1.0, 0.0], [False, False, True])
    """
    validation.require_instance("buffer", buffer, ring.RingReplayBuffer)
    validation.require_instance("batch", batch, batches.TransitionBatch)
    if not callable(compute):
        raise errors.ArgumentTypeError(f"compute must be a function, got {validation.short_repr(compute)}")
    validation.require_choice("strategy", strategy, ("future", "final", "episode"))
    share = validation.non_negative_float("share", share)
    if share > 1:
        raise errors.ArgumentError(f"share must be at most 1, got {share}")
    open_episodes = validation.boolean("open_episodes", open_episodes)
    window = buffer._window_for(n_step, gamma)
    longest = batch.steps.max(initial=0)
    if window.n_step < longest:
        raise errors.ArgumentError(f"n_step must be that of the batch, at least {longest}, got {window.n_step}")
    history, schema = buffer._store, buffer.schema
    if schema is None:
        raise errors.NotReadyError("relabel has no goals: add steps first")
    achieved_paths, desired_paths = _paths(schema, "achieved", achieved), _paths(schema, "desired", desired)
    wanted, got = (
        trees.nested("goal", {goal_path: schema.fields[path] for goal_path, path in paths.items()})
        for paths in (achieved_paths, desired_paths)
    )
    if wanted != got:
        raise errors.ArgumentError(f"desired must be like achieved, {wanted}, got {got}")
    slots = buffer._readable_slots(batch.keys)
    episodes = history.episodes_of(slots)
    has_goals = history.steps_of(slots) < _known(history, episodes)
    if not open_episodes:
        has_goals &= history.episodes[append.END][episodes] != append.OPEN
    candidates = np.flatnonzero(has_goals)
    count = round(share * len(batch))
    if len(candidates) < count:
        remedy = "lower share" if open_episodes else "lower share, wait for episodes to end, or set open_episodes=True"
        raise errors.NotReadyError(f"relabel has goals for {len(candidates)} rows and needs {count}: {remedy}")
    answer = copy.deepcopy(batch)
    if not count:
        return answer
    # The result of compute is known only after the draws.
    with randomness.Unmoved(buffer.rng):
        places = buffer.rng.choice(candidates, count, replace=False, shuffle=False)
        slots = slots[places]
        goals = _achieved(history, achieved_paths, _goal_rows(history, slots, strategy, buffer.rng))
        rows, rewards, span, is_terminal = _judged(history, window.n_step, achieved_paths, slots, goals, compute)
        last = rows[span - 1, np.arange(len(slots))]
        reward = returns.discounted_sums(rewards, span, window.gamma)
        discounts = returns.powers(window.gamma, len(rewards), rewards.dtype)
        discount = windows.discounts_of(span, is_terminal, discounts)
        run = span, last, history.following.take(last), is_terminal, reward, discount, batch.keys[places]
        relabelled = window._assembled(history, slots, run, batch.probabilities[places], batch.weights[places])
        steps = history.steps_of(slots)
        _write_goals(window, relabelled.observation, steps, desired_paths, goals)
        _write_goals(window, relabelled.next_observation, steps + span, desired_paths, goals)
        for name in ("observation", "reward", "next_observation", "next_discount", "is_terminal", "steps"):
            trees.put(getattr(answer, name), places, getattr(relabelled, name))
    return answer


# Rows and goals.


def _paths(schema: schema_lib.Schema, name: str, key: str) -> dict[str, str]:
    """Return the paths of the observation's fields at `key`, by the path in the goal: {"goal": path} for one field."""
    validation.require_instance(name, key, str)
    root = f"observation/{key}"
    paths = [path for path in schema._observation_paths if path == root or path.startswith(f"{root}/")]
    if not paths:
        known = [path.removeprefix("observation/") for path in schema._observation_paths if path != "observation"]
        rule = f"{name} must be a key of the observation, which has {', '.join(known) or 'none'}"
        raise errors.ArgumentError(f"{rule}, got {validation.short_repr(key)}")
    return {f"goal{path[len(root) :]}": path for path in paths}


def _known(store: steps_lib.StepStore, episodes: arrays.Ints) -> arrays.Ints:
    """Return the step of the newest known observation of each episode."""
    return store.lengths_of(episodes) - 1 + store.is_known(episodes)


def _goal_rows(
    store: steps_lib.StepStore, slots: arrays.Ints, strategy: Strategy, rng: np.random.Generator
) -> arrays.Ints:
    """Return for each of `slots` [k] the row right after which its goal was achieved."""
    episodes = store.episodes_of(slots)
    base = store.oldest_rows(episodes) if strategy == "episode" else slots
    steps = store.steps_of(base)
    goal_steps = _known(store, episodes)
    if strategy != "final":
        goal_steps = rng.integers(steps + 1, goal_steps, endpoint=True)
    offsets = goal_steps - steps - 1
    rows: arrays.Ints = store.follow(base, int(offsets.max()) + 1).slots[offsets, np.arange(len(slots))]
    return rows


def _achieved(store: steps_lib.StepStore, paths: Mapping[str, str], rows: arrays.Ints) -> Columns:
    """Return what the observations right after those rows [k] achieved, by path in the goal."""
    links = store.following.take(rows)
    is_behind = links < 0
    columns = store.storage.read(np.where(is_behind, rows, links), paths.values())
    episodes = store.episodes_of(rows[is_behind])
    for path, column in columns.items():
        column[is_behind] = store.behind[path].take(episodes, axis=0)
    return {goal_path: columns[path] for goal_path, path in paths.items()}


# Relabeling.


def _judged(
    store: steps_lib.StepStore,
    n_step: int,
    paths: Mapping[str, str],
    slots: arrays.Ints,
    goals: Columns,
    compute: Compute,
) -> tuple[arrays.Ints, arrays.Array, arrays.Ints, arrays.Bools]:
    """Return the windows from `slots` [k] as `compute` judges them: rows and rewards [n, k], spans and ends [k]."""
    span = np.minimum(_known(store, store.episodes_of(slots)) - store.steps_of(slots), n_step)
    rows = store.follow(slots, int(span.max())).slots
    is_real = np.arange(len(rows)) < span[:, np.newaxis]
    achieved = _achieved(store, paths, rows.T[is_real])
    wanted = {goal_path: np.repeat(column, span, axis=0) for goal_path, column in goals.items()}
    answer: Any = compute(trees.nested("goal", achieved), trees.nested("goal", wanted))
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise errors.SchemaError(
            f"compute must return a tuple of rewards and terminated, got {validation.short_repr(answer)}"
        )
    terminated = casting.as_array("terminated of compute", answer[1])
    if terminated.dtype != np.bool_:
        raise errors.SchemaError(f"terminated of compute must be bools, got {validation.short_repr(answer[1])}")
    shape = (int(span.sum()),)
    rewards, ends = np.zeros(is_real.shape, store.schema.reward.dtype), np.zeros_like(is_real)
    rewards[is_real] = casting.cast_exact("rewards of compute", answer[0], shape, rewards.dtype, is_weak=True)
    ends[is_real] = casting.cast_exact("terminated of compute", terminated, shape, ends.dtype)
    is_terminal = np.asarray(ends.any(axis=1))
    return rows, rewards.T, np.where(is_terminal, ends.argmax(axis=1) + 1, span), is_terminal


def _write_goals(
    window: transitions.TransitionWindow,
    observation: Tree,
    steps: arrays.Ints,
    paths: Mapping[str, str],
    goals: Columns,
) -> None:
    """Write the goals [k, ...] into the observations of those steps [k], and into each frame that is not padding."""
    leaves = trees.flat("observation", observation)
    is_frame = np.arange(window.frame_stack)[::-1] <= steps[:, np.newaxis]
    is_frame |= window.stack_padding == "first"
    for goal_path, path in paths.items():
        frames = leaves[path] if window.frame_stack > 1 else leaves[path][:, np.newaxis]
        frames[is_frame] = np.repeat(goals[goal_path], np.count_nonzero(is_frame, axis=1), axis=0)
