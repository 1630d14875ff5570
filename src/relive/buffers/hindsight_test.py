"""Every relabelled transition equals that of a naive twin with whole episodes in lists, given the goal that it got.

P32, P33: the goal is compared with what the next observation achieves, and decides rewards and ends.
"""

import itertools
from typing import Any, Never
from unittest import mock

import numpy as np
import pytest

import relive
from relive import testing
from relive.buffers import column_grid_test
from relive.buffers import column_oracle_test as oracle_lib
from relive.testing import expectations
from relive.testing import zoo
from relive.windows import batches

WANTED = 1000
PLACES = 4


def goal_of(name: int) -> list[int]:
    """Return the achieved goal of an observation: a place that others share, and the observation's number."""
    return [name % PLACES, name] if name else [0, 0]


def tree_of(name: int) -> dict[str, Any]:
    """Return the observation of that number; every part of it depends on the number."""
    return {"desired_goal": [WANTED, name] if name else [0, 0], "name": name, "achieved_goal": goal_of(name)}


def judge(achieved: list[int], goal: list[int], action: int, extra: int, name: int) -> tuple[float, bool]:
    """Return a reward that no other pair has, and whether the place is reached by an action that reaches goals."""
    return 256.0 * achieved[1] + goal[1] + action - 2 * extra + 4 * name, achieved[0] == goal[0] and action % 3 > 0


def compute(achieved: Any, goals: Any, fields: Any) -> tuple[Any, Any]:
    """Do what `judge` does for all of them."""
    action, name = fields["action"], fields["observation"]["name"]
    rewards = 256.0 * achieved[:, 1] + goals[:, 1] + action - 2 * fields["extras/extra"] + 4 * name
    return rewards, (achieved[:, 0] == goals[:, 0]) & (action % 3 > 0)


def reached(achieved: Any, goals: Any) -> tuple[Any, Any]:
    """Return 0 where the goal is reached and -1 elsewhere, for goals that are numbers."""
    return np.where(achieved == goals, 0.0, -1.0), achieved == goals


INT, PAIR = relive.Field((), np.int64), relive.Field(2, np.int64)
SCHEMA = relive.Schema({"achieved_goal": PAIR, "desired_goal": PAIR, "name": INT}, INT, extras={"extra": INT})


class WithGoals(relive.RingReplayBuffer):
    """A ring to which the numbers of observations are added."""

    def add(
        self, observation: Any, action: Any, reward: Any, next_observation: Any = None, *others: Never, **more: Any
    ) -> int:
        following = None if next_observation is None else tree_of(next_observation)
        return super().add(tree_of(observation), action, reward, following, *others, **more)


def newest_known(episode: oracle_lib.OracleEpisode) -> int:
    """Return the step of the newest known observation."""
    return len(episode.actions) - (episode.tail is None)


def allowed_goals(oracle: oracle_lib.Oracle, key: int, strategy: str) -> list[list[int]]:
    """Return the goals that a row may get."""
    _, episode, step = oracle.rows[key]
    last = newest_known(episode)
    first = {
        "future": step + 1,
        "final": last,
        "episode": min(t for t in range(len(episode.keys)) if oracle.is_alive(episode.keys[t])) + 1,
    }[strategy]
    return [goal_of(episode.observation(t)) for t in range(first, last + 1)]


def may_be_relabelled(oracle: oracle_lib.Oracle, key: int, open_episodes: bool) -> bool:
    """Return whether a row may get another goal."""
    _, episode, step = oracle.rows[key]
    return step + 1 <= newest_known(episode) and (open_episodes or episode.end != "open")


def relabelled(
    oracle: oracle_lib.Oracle, key: int, goal: list[int], n: int, stack: int, padding: str, chunks: bool
) -> dict[str, Any]:
    """Return the fields that a row has with that goal."""
    _, episode, step = oracle.rows[key]
    reward, m, is_terminal = 0.0, 0, False
    while m < n and step + m < newest_known(episode) and not is_terminal:
        of_step = episode.actions[step + m], episode.extras[step + m], episode.observation(step + m)
        r, is_terminal = judge(goal_of(episode.observation(step + m + 1)), goal, *of_step)
        reward += 0.5**m * r
        m += 1
    return {
        "observation": with_goal(oracle.stack(episode, step, stack, padding), goal),
        "action": [episode.actions[step + min(k, m - 1)] for k in range(n)] if chunks else episode.actions[step],
        "reward": reward,
        "next_observation": with_goal(oracle.stack(episode, step + m, stack, padding), goal),
        "next_discount": 0.0 if is_terminal else 0.5**m,
        "is_terminal": is_terminal,
        "steps": m,
        "keys": key,
    }


def with_goal(frames: Any, goal: list[int]) -> dict[str, Any]:
    """Return an observation, or a stack of them, with another goal; what is padding has none."""
    if isinstance(frames, int):
        return {**tree_of(frames), "desired_goal": goal}
    trees = [with_goal(frame, goal) if frame else tree_of(0) for frame in frames]
    return {name: [tree[name] for tree in trees] for name in trees[0]}


def row_of(batch: relive.TransitionBatch, row: int) -> dict[str, Any]:
    """Return the fields of one row, as the twin has them."""
    fields: dict[str, Any] = {
        name: getattr(batch, name)[row].tolist()
        for name in ("action", "reward", "next_discount", "is_terminal", "steps", "keys")
    }
    for name in ("observation", "next_observation"):
        fields[name] = {key: column[row].tolist() for key, column in getattr(batch, name).items()}
    return fields


def goal_in(row: dict[str, Any], stack: int) -> list[int]:
    goal: list[int] = row["observation"]["desired_goal"]
    return goal[-1] if stack > 1 else goal  # type: ignore[return-value]


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("streams", [1, 2, 3])
@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_every_relabelled_transition_equals_the_naive_one(
    strategy: Any, stack: int, streams: int, is_whole: bool
) -> None:
    """In the short form, each capacity has its open episodes relabelled, or not."""
    num_relabelled = 0
    capacities = range(4, 40) if is_whole else (5, 8, 16)
    for (place, capacity), open_episodes in itertools.product(enumerate(capacities), (False, True)):
        if open_episodes != bool((place + streams) % 2) and not is_whole:
            continue
        rng = np.random.default_rng([capacity, stack, streams])
        padding = "zeros" if capacity % 2 else "first"
        storage = relive.ColumnStorage(SCHEMA, capacity, allocate=lambda shape, dtype: np.full(shape, -999, dtype))
        settings: dict[str, Any] = {"frame_stack": stack, "stack_padding": padding, "streams": streams, "seed": rng}
        chunks = (place + streams + stack) % 2 == 0
        buffer = WithGoals(capacity, gamma=0.5, storage=storage, action_chunks=chunks, **settings)
        oracle = oracle_lib.Oracle(capacity, streams)
        writer = column_grid_test.Writer(buffer, oracle, rng)
        for position in range(3 * capacity):
            writer.add()
            keys = oracle.transition_keys(stack)
            candidates = [key for key in keys if may_be_relabelled(oracle, key, open_episodes)]
            if not candidates or position % 3:
                continue
            n = 1 + position // 3 % 4
            batch = buffer.read(keys, n_step=n)
            share = len(candidates) / len(keys)
            answer = relive.relabel(
                buffer,
                batch,
                compute=compute,
                strategy=strategy,
                share=share,
                fields=("action", "extras/extra", "observation"),
                open_episodes=open_episodes,
                n_step=n,
            )
            for row, key in enumerate(keys):
                fields = row_of(answer, row)
                if key in candidates:
                    goal = goal_in(fields, stack)
                    assert goal in allowed_goals(oracle, key, strategy)
                    assert fields == relabelled(oracle, key, goal, n, stack, padding, chunks)
                    num_relabelled += 1
                else:
                    assert fields == row_of(batch, row)
    assert num_relabelled > 60


def fixed_buffer(**settings: Any) -> relive.RingReplayBuffer:
    """Return a buffer with one truncated episode of 6 steps that achieves 0 to 6, and wants 9."""
    buffer = relive.RingReplayBuffer(100, seed=0, **settings)
    places = {"achieved_goal": range(7), "desired_goal": [9] * 7}
    buffer.add_episode(places, range(6), [-1.0] * 6, terminated=False)
    return buffer


# Which goals, and how often.


@pytest.mark.parametrize(
    ("strategy", "goals"), [("future", [3, 4, 5, 6]), ("final", [6]), ("episode", [1, 2, 3, 4, 5, 6])]
)
def test_every_goal_is_as_likely_as_another(strategy: Any, goals: list[int]) -> None:
    buffer = fixed_buffer()
    batch = buffer.read([2] * 6000)
    drawn = relive.relabel(buffer, batch, compute=reached, strategy=strategy, share=1.0).observation["desired_goal"]
    counts = np.bincount(drawn, minlength=10).tolist()
    testing.assert_frequencies(counts, [(place in goals) / len(goals) for place in range(10)])


def add_step(buffer: relive.RingReplayBuffer, place: int, stream: int = 0) -> None:
    """Add a step from a place to the next one, on the way to -1."""
    here, there = ({"achieved_goal": number, "desired_goal": -1} for number in (place, place + 1))
    buffer.add(here, 0, -1.0, there, stream=stream)


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.04, 0), (0.25, 2), (0.35, 4), (0.8, 8), (1.0, 10), (1, 10)])
def test_the_share_is_exact(share: float, count: int) -> None:
    buffer = fixed_buffer()
    for _ in range(20):
        answer = relive.relabel(buffer, buffer.sample(10), compute=reached, share=share)
        assert np.count_nonzero(answer.observation["desired_goal"] != 9) == count


def test_every_row_gets_another_goal_as_often() -> None:
    buffer = fixed_buffer()
    counts = np.zeros(8, np.int64)
    batch = buffer.read([0, 1, 2, 3, 4, 5, 0, 1])
    for _ in range(150):
        counts += relive.relabel(buffer, batch, compute=reached, share=0.5).observation["desired_goal"] != 9
    testing.assert_frequencies(counts.tolist(), [1 / 8] * 8)


def test_compute_is_called_for_relabelled_rows_alone() -> None:
    buffer = fixed_buffer()

    def refuse(achieved: Any, goals: Any) -> tuple[Any, Any]:
        raise AssertionError

    batch = buffer.sample(3)
    assert relive.relabel(buffer, batch, compute=refuse, share=0.1).reward.tolist() == [-1.0] * 3
    assert len(relive.relabel(buffer, buffer.read([]), compute=refuse)) == 0


# Goals and rewards.


def test_goals_are_known_by_their_keys() -> None:
    """P33: whatever the order of the keys, and however deep they are."""
    buffer = relive.RingReplayBuffer(10, seed=0)
    wanted, got = [9, 9, 9], [0, 1, 2]
    buffer.add_episode({"b": {"z": wanted, "a": got}, "a": {"z": wanted}}, [0, 0], [0.0, 0.0], terminated=False)
    answer = relive.relabel(
        buffer, buffer.read([0]), compute=reached, strategy="final", share=1.0, achieved="b/a", desired="b/z"
    )
    assert answer.observation["b"]["z"].tolist() == [2]
    assert answer.observation["b"]["a"].tolist() == [0]
    assert answer.observation["a"]["z"].tolist() == [9]


def test_a_goal_may_be_a_dict() -> None:
    buffer = relive.RingReplayBuffer(10, seed=0)
    places, colours = np.arange(3.0), np.arange(3, dtype=np.uint8)
    seen = {"is": {"place": places, "colour": colours}, "should": {"colour": colours * 0, "place": places * 0 + 9}}
    buffer.add_episode(seen, [0, 0], [0.0, 0.0], terminated=False)

    def both(achieved: Any, goals: Any) -> tuple[Any, Any]:
        is_there = (achieved["place"] == goals["place"]) & (achieved["colour"] == goals["colour"])
        return is_there.astype(np.float32), is_there

    answer = relive.relabel(
        buffer, buffer.read([0, 1]), compute=both, strategy="final", share=1.0, achieved="is", desired="should"
    )
    for observation in (answer.observation, answer.next_observation):
        assert observation["should"]["place"].tolist() == [2.0, 2.0]
        assert observation["should"]["colour"].tolist() == [2, 2]
    assert answer.reward.tolist() == [0.0, 1.0]


def test_rewards_are_rounded_to_the_dtype_of_the_schema() -> None:
    number = relive.Field((), np.int64)
    schema = relive.Schema(
        {"achieved_goal": number, "desired_goal": number}, number, reward=relive.Field((), np.float32)
    )
    buffer = relive.RingReplayBuffer(10, schema, seed=0)
    buffer.add_episode({"achieved_goal": [0, 1], "desired_goal": [9, 9]}, [0], [0.0], terminated=False)
    answer = relive.relabel(
        buffer, buffer.read([0]), compute=lambda achieved, goals: (np.array([0.1]), goals > 5), share=1.0
    )
    assert answer.reward.dtype == np.float32
    assert answer.reward.tolist() == [np.float32(0.1)]


# Copies, keys and randomness.


def test_relabel_changes_neither_buffer_nor_batch() -> None:
    """P25, P52."""
    buffer = fixed_buffer(n_step=2, frame_stack=2)
    history = buffer._store
    stored = history.storage.read(np.arange(6))
    batch = buffer.sample(50)
    before, read = zoo.plain(batch), zoo.plain(buffer.read(batch.keys))
    answer = relive.relabel(buffer, batch, compute=reached)
    assert zoo.plain(batch) == before
    for path, column in history.storage.read(np.arange(6)).items():
        assert np.array_equal(column, stored[path])
    for _, column in batches.leaves(answer):
        column[...] = 77
    assert zoo.plain(batch) == before
    assert zoo.plain(buffer.read(batch.keys)) == read
    assert buffer.read(range(6)).observation["desired_goal"][1:].tolist() == [[9, 9]] * 5
    buffer.check()


def test_compute_may_write_into_what_it_gets() -> None:
    buffer = fixed_buffer()

    def scribble(achieved: Any, goals: Any) -> tuple[Any, Any]:
        answer = reached(achieved, goals)
        achieved[...] = goals[...] = 55
        return answer

    answer = relive.relabel(buffer, buffer.read([5]), compute=scribble, share=1.0)
    assert answer.observation["desired_goal"].tolist() == [6]
    assert answer.next_observation["achieved_goal"].tolist() == [6]


def test_relabel_keeps_keys_probabilities_and_weights() -> None:
    buffer = relive.PrioritizedReplayBuffer(100, seed=0)
    places = {"achieved_goal": range(7), "desired_goal": [9] * 7}
    keys = buffer.add_episode(places, range(6), [-1.0] * 6, terminated=False, name=range(6))
    buffer.update_priorities(keys, range(1, 7))
    batch = buffer.sample(20)
    answer = relive.relabel(buffer, batch, compute=reached)
    for name in ("keys", "probabilities", "weights", "action"):
        assert np.array_equal(getattr(answer, name), getattr(batch, name))
    assert np.array_equal(answer.extras["name"], batch.extras["name"])
    assert answer.extras["name"] is not batch.extras["name"]


def test_the_same_seed_gives_the_same_goals_whatever_numpy_does() -> None:
    """P64."""
    answers = []
    for _ in range(2):
        with expectations.untouched_global_randomness():
            buffer = fixed_buffer()
            answer = relive.relabel(buffer, buffer.sample(30), compute=reached)
            answers.append(answer.observation["desired_goal"].tolist())
    assert answers[0] == answers[1]


# What is refused.


def test_before_an_episode_has_ended_there_are_no_goals() -> None:
    """P34."""
    buffer = relive.RingReplayBuffer(10, seed=0)
    for t in range(3):
        buffer.add({"achieved_goal": t, "desired_goal": 9}, 0, -1.0)
    batch = buffer.sample(4)
    message = (
        r"^relabel has goals for 0 rows and needs 3: lower share, wait for episodes to end, or set open_episodes=True$"
    )
    with pytest.raises(relive.NotReadyError, match=message):
        relive.relabel(buffer, batch, compute=reached)
    answer = relive.relabel(buffer, batch, compute=reached, share=1.0, open_episodes=True)
    assert set(answer.observation["desired_goal"].tolist()) <= {1, 2}
    buffer.add({"achieved_goal": 3, "desired_goal": 9}, 0, -1.0, terminated=True)
    with pytest.raises(relive.NotReadyError, match=r"^relabel has goals for 0 rows and needs 1: lower share$"):
        relive.relabel(buffer, buffer.read([3]), compute=reached, open_episodes=True)
    with pytest.raises(relive.NotReadyError, match=r"^relabel has no goals: add steps first$"):
        relive.relabel(relive.RingReplayBuffer(10), batch, compute=reached)


def test_a_step_that_is_gone_is_refused() -> None:
    buffer = relive.RingReplayBuffer(3, frame_stack=2, seed=0)
    add_step(buffer, 0)
    add_step(buffer, 1)
    batch = buffer.read([0, 1])
    for t in range(2, 4):
        add_step(buffer, t)
    with pytest.raises(relive.UnknownKeyError, match=r"^key 0 not found: its step was evicted, or never was$"):
        relive.relabel(buffer, batch, compute=reached, open_episodes=True)
    batch.keys[:] = 1
    with pytest.raises(relive.ArgumentError, match=r"^keys must be of steps that a window can start from, got 1$"):
        relive.relabel(buffer, batch, compute=reached, open_episodes=True)


HAS = "must be a key of the observation, which has"


def test_goals_must_be_in_the_observation() -> None:
    plain = relive.RingReplayBuffer(10, seed=0)
    plain.add_episode([0, 1], [0], [0.0], terminated=False)
    with pytest.raises(relive.ArgumentError, match=f"^achieved {HAS} none, got 'achieved_goal'$"):
        relive.relabel(plain, plain.sample(2), compute=reached)
    unlike = relive.RingReplayBuffer(10, seed=0)
    unlike.add_episode({"achieved_goal": [0, 1], "desired_goal": [0.0, 1.0]}, [0], [0.0], terminated=False)
    message = r"^desired must be like achieved, Field\(\(\), 'int64'\), got Field\(\(\), 'float64'\)$"
    with pytest.raises(relive.ArgumentError, match=message):
        relive.relabel(unlike, unlike.sample(2), compute=reached)


def test_wrong_settings_of_relabel_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"share": 1.5}, r"^share must be at most 1, got 1.5$"),
        ({"share": -0.5}, r"^share must be at least 0, got -0.5$"),
        ({"share": float("nan")}, r"^share must be a finite real number, got nan$"),
        ({"strategy": "random"}, r"^strategy must be 'future' or 'final' or 'episode', got 'random'$"),
        ({"compute": 3}, r"^compute must be a function, got 3$"),
        ({"open_episodes": 1}, r"^open_episodes must be True or False, got 1$"),
        ({"n_step": 0}, r"^n_step must be at least 1, got 0$"),
        ({"n_step": 1}, r"^n_step must be that of the batch, at least 2, got 1$"),
        ({"fields": "action"}, r"^fields must be a list of names of fields, got 'action'$"),
        (
            {"fields": ["action", "act"]},
            r"^fields must be of the schema, which has observation/achieved_goal, .*, reward, got 'act'$",
        ),
        ({"gamma": 1.5}, r"^gamma must be in \(0, 1\], got 1.5$"),
        ({"achieved": "reached"}, f"^achieved {HAS} achieved_goal, desired_goal, got 'reached'$"),
        ({"desired": "wanted"}, f"^desired {HAS} achieved_goal, desired_goal, got 'wanted'$"),
        ({"desired": 3}, r"^desired must be an instance of str, got 3$"),
    ]
    for wrong, message in cases:
        with subtests.test(message):
            buffer = fixed_buffer(n_step=2)
            batch = buffer.read([0, 1])
            settings: dict[str, Any] = {"compute": reached, **wrong}
            with pytest.raises(relive.ArgumentError, match=message):
                relive.relabel(buffer, batch, **settings)


def test_the_chunks_of_a_batch_have_the_length_of_its_window() -> None:
    buffer = fixed_buffer(n_step=2, action_chunks=True)
    message = r"^n_step must be that of the batch, whose actions are of shape \(2, 3\), got 2$"
    with pytest.raises(relive.ArgumentError, match=message):
        relive.relabel(buffer, buffer.read([4, 5], n_step=3), compute=reached)
    relive.relabel(buffer, buffer.read([4, 5], n_step=3), compute=reached, n_step=3)


def test_only_transitions_of_a_ring_buffer_are_relabelled() -> None:
    buffer: Any = relive.SequenceReplayBuffer(10, length=1, seed=0)
    places = {"achieved_goal": [0, 1], "desired_goal": [9, 9]}
    buffer.add_episode(places, [0], [0.0], terminated=False)
    with pytest.raises(
        relive.ArgumentTypeError, match=r"^buffer must be an instance of RingReplayBuffer, got <SequenceRepl"
    ):
        relive.relabel(buffer, buffer.sample(1), compute=reached)
    with pytest.raises(
        relive.ArgumentTypeError, match=r"^batch must be an instance of TransitionBatch, got SequenceBatch"
    ):
        relive.relabel(fixed_buffer(), buffer.sample(1), compute=reached)


FINE = np.zeros(2)
NO = np.zeros(2, np.bool_)


def test_results_of_compute_are_checked(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str]] = [
        (FINE, r"^compute must return a tuple of rewards and terminated, got array\(\[0\., 0\.\]\)$"),
        ((FINE,), r"^compute must return a tuple of rewards and terminated, got \(array\(\[0\., 0\.\]\),\)$"),
        ((FINE[:1], NO), r"^rewards of compute must be of shape \(2,\), got \(1,\)$"),
        ((FINE[:, np.newaxis], NO), r"^rewards of compute must be of shape \(2,\), got \(2, 1\)$"),
        ((0.0, NO), r"^rewards of compute must be of shape \(2,\), got \(\)$"),
        ((["a", "b"], NO), r"^rewards of compute must be of dtype float64, got \['a', 'b'\]$"),
        ((FINE, NO[:1]), r"^terminated of compute must be of shape \(2,\), got \(1,\)$"),
        ((FINE, False), r"^terminated of compute must be of shape \(2,\), got \(\)$"),
        ((FINE, [0, 1]), r"^terminated of compute must be bools, got \[0, 1\]$"),
        ((FINE, None), r"^terminated of compute must be an array .*, got None"),
        ((NO, FINE), r"^terminated of compute must be bools, got array\(\[0\., 0\.\]\)$"),
    ]
    for answer, message in cases:
        with subtests.test(message):
            buffer = fixed_buffer()
            batch = buffer.read([0, 1])
            state = buffer.rng.bit_generator.state
            with pytest.raises(relive.SchemaError, match=message):
                relive.relabel(buffer, batch, compute=mock.Mock(return_value=answer), share=1.0)
            assert buffer.rng.bit_generator.state == state
