"""Flat arrays of many episodes, beside a loop of `add` whose next observations are made by hand."""

import asyncio
from collections.abc import Iterator
import itertools
import pathlib
from typing import Any, NamedTuple

import numpy as np
import pytest

import relive
from relive import errors
from relive.testing import zoo

Make = Any


class Case(NamedTuple):
    """The arguments of a call: what has an entry for each row, and what has none."""

    rows: dict[str, Any]
    options: dict[str, Any]


def naive_steps(case: Case) -> Iterator[tuple[dict[str, Any], bool]]:
    """Yield the arguments of `add` for each step, and whether its episode ends by `end_episode`."""
    rows, options = case
    count = len(rows["rewards"])
    is_end = [
        bool(rows.get("terminated", [0] * count)[i] or rows.get("truncated", [0] * count)[i]) for i in range(count)
    ]
    episode, begun = [], 0
    for i in range(count):
        episode.append(rows["episodes"][i] if "episodes" in rows else begun)
        begun += is_end[i]
    for _, group in itertools.groupby(range(count), episode.__getitem__):
        numbers = list(group)
        is_final = options.get("last_row") == "final_observation"
        terminated = any(rows.get("terminated", [0] * count)[i] for i in numbers)
        next_of = {i: rows["observations"][i + 1] for i in numbers[:-1]}
        if "next_observations" in rows:
            next_of = dict(zip(numbers, rows["next_observations"][numbers[0] :], strict=False))
        elif is_final or (not terminated and options.get("unknown_end") == "drop"):
            numbers = numbers[:-1]
        for i in numbers:
            is_last = i == numbers[-1]
            step = {name: rows[f"{name}s"][i] for name in ("observation", "action", "reward")}
            step |= {"next_observation": next_of.get(i), "x": rows["x"][i]}
            is_cut = is_last and not terminated and next_of.get(i) is None
            step |= {"terminated": is_last and terminated, "truncated": is_last and not terminated and not is_cut}
            yield step, is_cut


def random_case(rng: np.random.Generator) -> Case:
    """Return flat arrays of up to 12 rows of few observations, with ends of all kinds."""
    count = int(rng.integers(1, 13))
    rows: dict[str, Any] = {
        "observations": rng.integers(0, 3, (count, 2)).astype(np.float32),
        "actions": rng.integers(0, 4, count),
        "rewards": rng.integers(0, 3, count) / 2,
        "x": rng.integers(0, 9, count).astype(np.int16),
    }
    options = [{}, {"last_row": "final_observation"}, {"unknown_end": "drop"}, {"unknown_end": "keep"}][rng.integers(4)]
    if rng.random() < 0.3:
        options, following = {}, np.roll(rows["observations"], -1, axis=0)
        following[rng.random(count) < 0.3] = rng.integers(0, 3, 2)
        rows["next_observations"] = following
    lengths = rng.integers(1, 5, count)
    lasts = np.cumsum(lengths)[np.cumsum(lengths) < count] - 1
    is_end = np.zeros(count, np.bool_)
    is_end[lasts] = rng.random(len(lasts)) < 0.8
    is_end[-1] = rng.random() < 0.5
    if rng.random() < 0.5:
        rows["episodes"] = np.repeat(rng.permutation(len(lasts) + 1) % 5, np.diff(lasts, prepend=-1, append=count - 1))
        changes = np.append(np.diff(rows["episodes"]) != 0, True)
        is_end &= changes
        if options.get("last_row") == "final_observation":
            moves = is_end & ~np.roll(changes, 1) & (np.arange(count) > 0) & (rng.random(count) < 0.5)
            is_end = (is_end & ~moves) | np.roll(moves, -1)
    kinds = rng.integers(1, 4, count)
    rows |= {"terminated": is_end & (kinds & 1 > 0), "truncated": is_end & (kinds & 2 > 0)}
    for name in ("terminated", "truncated"):
        if not rows[name].any() and rng.random() < 0.5:
            del rows[name]
    if not {"terminated", "truncated", "episodes"} & rows.keys():
        rows["terminated"] = is_end
    if any(is_cut for _, is_cut in naive_steps(Case(rows, options))):
        options = options or {"unknown_end": "keep"}
    return Case(rows, options)


def makes(directory: pathlib.Path) -> list[Make]:
    """Return functions that make an empty buffer of each kind, given a capacity and the number of streams."""
    schema = relive.Schema(relive.Field(2, "f4"), relive.Field((), "i8"), extras={"x": relive.Field((), "i2")})

    def mapped(capacity: int, streams: int) -> relive.RingReplayBuffer:
        mapped.count += 1  # type: ignore[attr-defined]
        storage = relive.MemmapStorage(directory / f"map{mapped.count}", schema, capacity)  # type: ignore[attr-defined]
        return relive.RingReplayBuffer(capacity, storage=storage, streams=streams, seed=0)

    mapped.count = 0  # type: ignore[attr-defined]
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (relive.RingReplayBuffer, {"n_step": 3, "gamma": 0.5}),
        (relive.RingReplayBuffer, {"frame_stack": 3, "limiter": relive.MinSize(2), "max_times_sampled": 2}),
        (relive.PrioritizedReplayBuffer, {"schema": schema}),
        (relive.SequenceReplayBuffer, {"length": 2, "stride": 2, "prioritized": True}),
        (relive.SequenceReplayBuffer, {"length": 3, "burn_in": 1, "pad": True}),
    ]
    return [
        lambda capacity, streams, kind=kind, options=options: kind(capacity, streams=streams, seed=0, **options)
        for kind, options in kinds
    ] + [mapped]


def state_of(buffer: Any) -> Any:
    """Return all that is in a buffer, but for what is counted of calls of `add` alone."""
    state = buffer.state_dict()
    for name in ("suspected_resets", "continued_truncations"):
        state["counters"][name] = 0
    return zoo.plain(state)


@pytest.mark.filterwarnings("ignore::relive.errors.MisuseWarning")
@pytest.mark.parametrize(
    "block",
    [
        0,
        *(pytest.param(n, marks=pytest.mark.full) for n in range(1, 8)),
        *(pytest.param(n, marks=pytest.mark.long) for n in range(8, 40)),
    ],
)
def test_flat_arrays_are_a_loop_of_add(block: int, tmp_path: pathlib.Path) -> None:
    """In blocks of fifty data sets, each after what others left: four hundred in full, and two thousand at night."""
    rng, all_kinds = np.random.default_rng(block), makes(tmp_path)
    for number in range(50):
        make, streams = all_kinds[number % len(all_kinds)], int(rng.integers(1, 3))
        capacity = int(rng.integers(12, 40))
        flat, twin = make(capacity, streams), make(capacity, streams)
        journal = relive.Journal(tmp_path / f"log{number}", fsync="never") if rng.random() < 0.1 else None
        if journal is not None:
            flat.attach(journal)
        for _ in range(int(rng.integers(1, 5))):
            if rng.random() < 0.4:  # An episode that is open, and whose end is known or not.
                step = {"observation": np.ones(2, np.float32), "action": 1, "reward": 1.0, "x": np.int16(0)}
                step["next_observation"] = np.zeros(2, np.float32) if rng.random() < 0.5 else None
                for each in (flat, twin):
                    each.add(**step, stream=streams - 1)
            case, stream, before = random_case(rng), int(rng.integers(streams)), flat.appended
            keys = flat.add_episodes(**case.rows, **case.options, stream=stream)
            twin.end_episode(stream)
            for step, is_cut in naive_steps(case):
                twin.add(**step, stream=stream)
                assert not is_cut or twin.end_episode(stream)
            assert keys.tolist() == list(range(before, twin.appended)), case
        flat.check()
        if journal is not None:
            journal.close()
            flat.detach()
        arrays_of = zoo.plain(flat.state_dict()["arrays"])
        assert state_of(flat) == state_of(twin)
        if len(twin._store.back):
            slots = twin._store.alive_slots()
            assert flat._store.back[slots].tolist() == twin._store.back[slots].tolist()
        assert flat.eligible_keys().tolist() == twin.eligible_keys().tolist()
        if twin.can_sample(2):
            assert zoo.plain(flat.sample(2)) == zoo.plain(twin.sample(2))
        if journal is not None:
            recovered: Any = relive.recover(tmp_path / f"log{number}")
            assert zoo.plain(recovered.state_dict()["arrays"]) == arrays_of
            recovered.check()


def test_what_a_row_that_is_no_step_holds_means_nothing() -> None:
    schema = relive.Schema(
        {"x": relive.Field((), "f4")}, {"a": relive.Field((), "u1")}, extras={"n": relive.Field((), "u1")}
    )
    for as_list in (False, True):
        actions: Any = [1, 300, 2, 3, -1]
        rows: dict[str, Any] = {"rewards": [1.0, np.nan, 2.0, 3.0, np.inf], "n": [1.5, 0.5, 2, 3, 0.5]}
        rows["n"] = rows["n"] if as_list else np.array([1, 999, 2, 3, 999])
        rows["n"][0] = 1
        buffer = relive.RingReplayBuffer(9, schema)
        buffer.add_episodes(
            {"x": np.arange(5, dtype=np.float32)},
            {"a": actions if as_list else np.array(actions)},
            **rows,
            episodes=["a", "a", "b", "b", "b"],
            terminated=[0, 0, 0, 1, 0],
            last_row="final_observation",
        )
        batch = buffer.read([0, 1, 2])
        assert batch.next_observation["x"].tolist() == [1.0, 3.0, 4.0]
        assert batch.action["a"].tolist() == batch.extras["n"].tolist() == batch.reward.tolist() == [1, 2, 3]
        assert batch.is_terminal.tolist() == [False, False, True]


def test_a_step_that_is_kept_without_what_follows_is_never_drawn() -> None:
    buffer = relive.RingReplayBuffer(9, n_step=3, gamma=1.0)
    keys = buffer.add_episodes([0.0, 1.0, 5.0], [0, 0, 0], [1.0, 1.0, 1.0], episodes=[0, 0, 1], unknown_end="keep")
    batch = buffer.read([0])
    assert (batch.reward.item(), batch.steps.item(), batch.next_observation.item()) == (1.0, 1, 1.0)
    assert (keys.tolist(), len(buffer), buffer.eligible_keys().tolist()) == ([0, 1, 2], 3, [0])
    with pytest.raises(errors.ArgumentError, match="^keys must be of steps that a window can start from, got 1$"):
        buffer.read([1])


def test_arrays_of_any_layout_are_read(tmp_path: pathlib.Path) -> None:
    """Memory maps, columns of a wider array, arrays that are broadcast, and more than a chunk."""
    count = 600_000
    np.save(tmp_path / "seen.npy", np.arange(8 * count, dtype=np.float32).reshape(count, 8))
    seen = np.load(tmp_path / "seen.npy", mmap_mode="r")
    is_end = np.arange(count) % 1_000 == 999
    buffer = relive.RingReplayBuffer(count)
    rewards, actions = np.arange(2 * count)[::2].astype(float), np.broadcast_to(np.array(3), count)
    buffer.add_episodes(seen[:, ::2], actions, rewards, truncated=is_end, unknown_end="drop")
    keys = buffer.eligible_keys()
    batch = buffer.read(keys)
    (rows,) = (~is_end).nonzero()
    assert np.array_equal(batch.observation, seen[rows, ::2])
    assert np.array_equal(batch.next_observation, seen[rows + 1, ::2])
    assert np.array_equal(batch.reward, rewards[rows])
    assert not (batch.action != 3).any()


def test_no_step_is_stored_of_rows_without_one() -> None:
    buffer = relive.RingReplayBuffer(9)
    buffer.add(0.0, 0, 0.0, 1.0)
    keys = buffer.add_episodes([5.0, 6.0], [0, 0], [0.0, 0.0], episodes=[0, 1], unknown_end="drop")
    assert (keys.tolist(), len(buffer), buffer.get_stats().truncated_episodes) == ([], 1, 1)
    assert buffer.add_episodes([], [], [], terminated=[]).tolist() == []
    assert relive.RingReplayBuffer(9).add_episodes([], [], [], episodes=[]).tolist() == []


def test_the_limiter_decides_once_and_counts_every_step() -> None:
    limiter = relive.SampleToInsertRatio(ratio=1.0, min_size=1, error_buffer=2.0)
    buffer = relive.RingReplayBuffer(9, limiter=limiter, seed=0)
    rows = [0.0, 1.0, 2.0, 3.0], [0] * 4, [0.0] * 4
    buffer.add_episodes(*rows, terminated=[0, 1, 0, 1])
    with pytest.raises(relive.NotReadyError, match="^add_episodes held back by SampleToInsertRatio"):
        buffer.add_episodes(*rows, terminated=[0, 1, 0, 1])
    assert buffer.appended == len(buffer) == 4


def test_shells_pass_flat_arrays_on() -> None:
    async def awaited() -> list[int]:
        shell = relive.AsyncReplayBuffer(relive.RingReplayBuffer(9))
        return list(await shell.add_episodes([0, 1], [0, 0], [0.0, 0.0], terminated=[0, 1]))

    shell = relive.ThreadSafeReplayBuffer(relive.SequenceReplayBuffer(9, length=1))
    assert shell.add_episodes([0, 1], [0, 0], [0.0, 0.0], terminated=[0, 1]).tolist() == [0, 1]
    assert asyncio.run(awaited()) == [0, 1]
    joint: Any = relive.JointReplayBuffer(9, agents=["a"])
    with pytest.raises(errors.ArgumentError, match="^add_episodes cannot add joint steps: use add or extend$"):
        joint.add_episodes()


def test_a_value_that_does_not_fit_is_named_by_its_row() -> None:
    schema = relive.Schema({"x": relive.Field((), "u1")}, relive.Field((), "u1"))
    buffer = relive.RingReplayBuffer(9, schema)
    seen = {"x": np.array([0, 1, 2, 300])}
    with pytest.raises(errors.SchemaError, match="^observation/x must fit uint8, got 300 at row 3$"):
        buffer.add_episodes(seen, [0] * 4, [0.0] * 4, episodes=[0] * 4, unknown_end="keep")
    with pytest.raises(errors.SchemaError, match=r"^action must be of shape \(4,\), got \(2,\)$"):
        buffer.add_episodes({"x": [0] * 4}, [0] * 2, [0.0] * 4, episodes=[0] * 4, unknown_end="keep")
    with pytest.raises(errors.SchemaError, match="^observation must be a mapping with observation/x, got 3$"):
        buffer.add_episodes(3, [0] * 4, [0.0] * 4, episodes=[0] * 4, unknown_end="keep")
    assert len(buffer) == 0


def test_no_row_is_named_where_every_row_is_refused() -> None:
    buffer = relive.RingReplayBuffer(9, relive.Schema(relive.Field((), "f4"), relive.Field((), "u1")))
    flags: Any = {"episodes": [0] * 2, "unknown_end": "keep"}
    with pytest.raises(errors.SchemaError, match=r"^observation must be of dtype float32, .* the field float64$"):
        buffer.add_episodes(np.zeros(2), [0] * 2, [0.0] * 2, **flags)
    with pytest.raises(errors.SchemaError, match="^unknown extra 'x': the schema has no extras$"):
        buffer.add_episodes([0.0] * 2, [0] * 2, [0.0] * 2, x=[0] * 2, **flags)
