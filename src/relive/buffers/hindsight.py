"""Hindsight experience replay: relabel drawn transitions with goals that their episodes achieved.

    o_0 ─ ... ─ o_t ─ o_{t+1} ─ ... ─ o_{t+m} ─ ... ─ o_K          K: the newest observation that is known
                │     └─ what these achieved says the rewards
                └─ is to achieve what o_j achieved:     future     j uniform over t + 1 .. K
                                                        final      j = K
                                                        episode    j uniform over a + 1 .. K, where o_a is the oldest

Goals are replaced in the drawn batch. The stored steps do not change.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.buffers import ring
from relive.common import arrays as arrays_lib
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

Columns: TypeAlias = dict[str, arrays_lib.Array]
Tree: TypeAlias = batches.Tree
Compute: TypeAlias = Callable[..., tuple[npt.ArrayLike, npt.ArrayLike]]
"""Takes achieved and desired goals, and the other columns if some were asked for."""
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
    fields: Iterable[str] | None = None,
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
            arrays; returns the rewards [k] and whether the task terminates [k]. With `fields`, a dict of them is the
            third argument.
        strategy: Where the new goal is taken from: after the step ("future"), the end of the episode ("final"), or
            anywhere in the stored part of the episode ("episode").
        share: The share of rows to relabel, 0 to 1.
        achieved: Key of the achieved goal in the observation, or its path "key/key".
        desired: Key or path of the desired goal: a field of the same shape and dtype.
        fields: Names of other fields that `compute` gets of each of those steps [k, ...], as they were stored:
            "action", "reward", "extras/NAME", or "observation", the one before the step; what has parts is a dict.
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
    buffer._require_local("relabel")
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
    if window.action_chunks and (shape := _action_shape(batch))[1:2] != (window.n_step,):
        rule = f"n_step must be that of the batch, whose actions are of shape {shape}"
        raise errors.ArgumentError(f"{rule}, got {window.n_step}")
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
    asked = None if fields is None else _asked(schema, fields)
    slots = buffer._readable_slots(batch.keys)
    episodes = history.episodes_of(slots)
    # The step of the newest known observation of each episode.
    known = history.lengths_of(episodes) - 1 + history.is_known(episodes)
    has_goals = history.steps_of(slots) < known
    if not open_episodes:
        has_goals &= history.episodes[append.END][episodes] != append.OPEN
    candidates = np.flatnonzero(has_goals)
    count = round(share * len(slots))
    if len(candidates) < count:
        remedy = "lower share" if open_episodes else "lower share, wait for episodes to end, or set open_episodes=True"
        raise errors.NotReadyError(f"relabel has goals for {len(candidates)} rows and needs {count}: {remedy}")
    answer = batch.map(np.array)
    answer.keys = batch.keys.copy()
    if not count:
        return answer
    # The result of compute is known only after the draws.
    with randomness.Unmoved(buffer.rng):
        places = buffer.rng.choice(candidates, count, replace=False, shuffle=False)
        slots, known = slots[places], known[places]
        goal_rows = _goal_rows(history, slots, known, strategy, buffer.rng)
        most = np.minimum(known - history.steps_of(slots), window.n_step)
        rows = history.follow(slots, int(most.max())).slots
        is_real = np.arange(len(rows)) < most[:, np.newaxis]
        goals, reached = _achieved(history, achieved_paths, goal_rows, rows.T[is_real])
        rewards, span, is_terminal = _judged(history, compute, reached, goals, asked, rows, most, is_real)
        last = rows[span - 1, np.arange(len(slots))]
        reward = returns.discounted_sums(rewards, span, window.gamma)
        discounts = returns.powers(window.gamma, len(rewards), rewards.dtype)
        discount = windows.discounts_of(span, is_terminal, discounts)
        run = span, last, history.following.take(last), is_terminal, reward, discount, batch.keys[places]
        relabelled = window._assembled(history, slots, run, batch.probabilities[places], batch.weights[places])
        steps = history.steps_of(slots)
        _write_goals(window, relabelled.observation, steps, desired_paths, goals)
        _write_goals(window, relabelled.next_observation, steps + span, desired_paths, goals)
        # The action too: a chunk of them ends with its window.
        for name in ("observation", "action", "reward", "next_observation", "next_discount", "is_terminal", "steps"):
            trees.put(getattr(answer, name), places, getattr(relabelled, name))
    return answer


# Rows and goals.


def _paths(schema: schema_lib.Schema, name: str, key: str) -> dict[str, str]:
    """Return the paths of the observation's fields at `key`, by the path in the goal: {"goal": path} for one field."""
    validation.require_instance(name, key, str)
    root = f"observation/{key}"
    of_observation = schema_lib.paths_of(schema, "observation")
    paths = [path for path in of_observation if path == root or path.startswith(f"{root}/")]
    if not paths:
        known = [path.removeprefix("observation/") for path in of_observation if path != "observation"]
        rule = f"{name} must be a key of the observation, which has {', '.join(known) or 'none'}"
        raise errors.ArgumentError(f"{rule}, got {validation.short_repr(key)}")
    return {f"goal{path[len(root) :]}": path for path in paths}


def _asked(schema: schema_lib.Schema, fields: Iterable[str]) -> dict[str, list[str]]:
    """Return the paths of the fields that are asked for, by their name."""
    asked = dict[str, list[str]]()
    for name in validation.items("fields", fields, "names of fields"):
        asked[name] = [path for path in schema.fields if path == name or path.startswith(f"{name}/")]
        if not asked[name]:
            rule = f"fields must be of the schema, which has {', '.join(schema.fields)}"
            raise errors.ArgumentError(f"{rule}, got {validation.short_repr(name)}")
    return asked


def _action_shape(batch: batches.TransitionBatch) -> tuple[int, ...]:
    """Return the shape of the action, or of its first part."""
    first: arrays_lib.Array = next(iter(trees.flat("action", batch.action).values()))
    return first.shape


def _goal_rows(
    store: steps_lib.StepStore,
    slots: arrays_lib.Ints,
    known: arrays_lib.Ints,
    strategy: Strategy,
    rng: np.random.Generator,
) -> arrays_lib.Ints:
    """Return for each of `slots` [k] the row right after which its goal was achieved, given the newest known step."""
    rows = store.oldest_rows(store.episodes_of(slots)) if strategy == "episode" else slots
    steps = store.steps_of(rows)
    goal_steps = known if strategy == "final" else rng.integers(steps + 1, known, endpoint=True)
    return _rows_after(store, rows, goal_steps - steps - 1)


def _rows_after(store: steps_lib.StepStore, rows: arrays_lib.Ints, counts: arrays_lib.Ints) -> arrays_lib.Ints:
    """Return the row that comes `counts` [k] steps after each of `rows` [k] in its episode.

    O(k) where the rows of an episode lie equally far apart, as where streams are written in turn; they are followed
    from step to step elsewhere.
    """
    links = store.following.take(rows)
    found = (rows + (links - rows) * counts) % store.capacity
    is_right = store.places.take(found) == store.places.take(rows) + counts
    (others,) = np.logical_not(is_right & (store.flags.take(found) & append.COMPLETE > 0)).nonzero()
    if len(others):
        run = store.follow(rows[others], int(counts[others].max()) + 1)
        found[others] = run.slots[counts[others], np.arange(len(others))]
    return found


def _achieved(
    store: steps_lib.StepStore, paths: Mapping[str, str], rows: arrays_lib.Ints, others: arrays_lib.Ints
) -> tuple[Columns, Columns]:
    """Return what the observations right after rows [k], and after others [j], achieved, by path in the goal."""
    both, count = np.concatenate([rows, others]), len(rows)
    links = store.following.take(both)
    (behind,) = (links < 0).nonzero()
    columns = store.reader.read(np.where(links < 0, both, links), paths.values())
    store.write_final(columns, behind, both.take(behind))
    first, second = (
        {goal_path: columns[path][part] for goal_path, path in paths.items()}
        for part in (slice(count), slice(count, None))
    )
    return first, second


# Relabeling.


def _judged(
    store: steps_lib.StepStore,
    compute: Compute,
    achieved: Columns,
    goals: Columns,
    asked: Mapping[str, list[str]] | None,
    rows: arrays_lib.Ints,
    span: arrays_lib.Ints,
    is_real: arrays_lib.Bools,
) -> tuple[arrays_lib.Array, arrays_lib.Ints, arrays_lib.Bools]:
    """Return windows of `rows` [n, k] as `compute` judges them: rewards [n, k], spans and ends [k].

    They had `span` steps [k], for which `is_real` [k, n].
    """
    wanted = {goal_path: np.repeat(column, span, axis=0) for goal_path, column in goals.items()}
    arguments: list[Any] = [trees.nested("goal", achieved), trees.nested("goal", wanted)]
    if asked is not None:
        arguments.append(
            {name: trees.nested(name, store.storage.read(rows.T[is_real], paths)) for name, paths in asked.items()}
        )
    answer: Any = compute(*arguments)
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
    return rewards.T, np.where(is_terminal, ends.argmax(axis=1) + 1, span), is_terminal


def _write_goals(
    window: transitions.TransitionWindow,
    observation: Tree,
    steps: arrays_lib.Ints,
    paths: Mapping[str, str],
    goals: Columns,
) -> None:
    """Write the goals [k, ...] into the observations of those steps [k], and into each frame that is not padding."""
    leaves = trees.flat("observation", observation)
    if window.frame_stack == 1:
        for goal_path, path in paths.items():
            leaves[path][...] = goals[goal_path]
        return
    is_frame = np.arange(window.frame_stack)[::-1] <= steps[:, np.newaxis]
    is_frame |= window.stack_padding == "first"
    for goal_path, path in paths.items():
        leaves[path][is_frame] = np.repeat(goals[goal_path], np.count_nonzero(is_frame, axis=1), axis=0)
