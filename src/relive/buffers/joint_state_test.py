"""Joint buffers that were saved go on as if nothing had happened, and states that were tampered with are refused."""

from collections.abc import Callable
import copy
import json
import os
import pathlib
import random
from typing import Any, TypeAlias

import numpy as np
import pytest

from relive import errors
from relive.buffers import joint as joint_lib
from relive.buffers import joint_test
from relive.kernels import append
from relive.persistence import checkpointable_test
from relive.persistence import forged_states_test
from relive.persistence import seed_blocks_test
from relive.schema import schema as schema_lib
from relive.waiting import rate_limiters

Buffer: TypeAlias = joint_lib.JointReplayBuffer
State: TypeAlias = dict[str, Any]
plain = checkpointable_test.plain
AGENTS, SCHEMAS = joint_test.AGENTS, joint_test.SCHEMAS

BUFFERS: dict[str, Callable[[], Buffer]] = {
    "one stream": lambda: Buffer(9, agents=AGENTS, n_step=3, gamma=0.9, seed=1),
    "three streams": lambda: Buffer(
        12, SCHEMAS, agents=AGENTS, streams=3, limiter=rate_limiters.SampleToInsertRatio(3.0, 2, 50.0), seed=2
    ),
    "one joint step": lambda: Buffer(1, SCHEMAS, agents=AGENTS, streams=2, n_step=2, seed=3),
}


def work(buffer: Buffer, rng: random.Random, count: int) -> None:
    """Do `count` things to a buffer, chosen at random."""
    for _ in range(count):
        action, stream = rng.randrange(20), rng.randrange(buffer.streams)
        if action < 14:
            length = int(buffer._table.open_length[stream]) * int(buffer._table.open_episode[stream] >= 0)
            world = max(int(buffer._table.open_episode[stream]), 0)
            present = rng.choice([AGENTS, AGENTS, ["left", "right"], ["left"], ["tall"]])
            ends = [agent for agent in present if rng.random() < 0.2]
            rows = joint_test.rows_of(world, length, present, ends, present if rng.random() < 0.05 else ())
            if buffer.can_insert():
                buffer.add(**rows, stream=stream)
        elif action < 17 and buffer.can_sample(3):
            buffer.sample(3)
        elif action == 18:
            buffer.end_episode(stream=stream)
        elif action == 19 and rng.random() < 0.1:
            buffer.clear()


def worked(make: Callable[[], Buffer], seed: int = 0, count: int = 40) -> Buffer:
    """A buffer in the middle of its life."""
    buffer = make()
    work(buffer, random.Random(seed), count)
    return buffer


def assert_same(buffer: Buffer, other: Buffer, count: int = 30) -> None:
    """The next `count` batches are equal, with other things between them, and so is all that is counted."""
    rngs = random.Random(count), random.Random(count)
    assert plain(buffer.state_dict()) == plain(other.state_dict())
    for _ in range(count):
        assert checkpointable_test.batch_of(buffer) == checkpointable_test.batch_of(other)
        for each, rng in zip((buffer, other), rngs, strict=True):
            work(each, rng, 1)
    assert buffer.get_stats() == other.get_stats()
    buffer.check()
    other.check()


def assert_usable(buffer: Buffer) -> None:
    """It passes its audit, goes on, and is saved again."""
    buffer.check()
    for seed in range(2):
        # What only the forged schema or limiter can be blamed for.
        with forged_states_test.suppressed(errors.ArgumentError, "agent '.*': |batch_size must be at most "):
            work(buffer, random.Random(seed), 15)
            checkpointable_test.batch_of(buffer)
        buffer.check()
    again = Buffer._loaded(buffer.state_dict(), {})
    assert plain(again.state_dict()) == plain(buffer.state_dict())


@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS.keys())
class TestEveryBuffer:
    @pytest.mark.parametrize(
        ("seed", "count"), [(0, 50), *(pytest.param(seed, 150, marks=pytest.mark.long) for seed in (1, 2))]
    )
    def test_the_next_batches_of_a_loaded_buffer_are_those_of_the_saved_one(
        self, make: Callable[[], Buffer], seed: int, count: int, tmp_path: pathlib.Path
    ) -> None:
        buffer = worked(make, seed)
        buffer.save(tmp_path / "saved")
        assert_same(buffer, Buffer.load(tmp_path / "saved"), count)

    def test_what_was_never_added_to_is_saved_and_loaded(
        self, make: Callable[[], Buffer], tmp_path: pathlib.Path
    ) -> None:
        buffer = make()
        buffer.save(tmp_path / "saved")
        assert_same(buffer, Buffer.load(tmp_path / "saved"))

    def test_what_was_cleared_is_saved_and_loaded(self, make: Callable[[], Buffer], tmp_path: pathlib.Path) -> None:
        buffer = worked(make, 2)
        buffer.clear()
        buffer.save(tmp_path / "saved")
        assert_same(buffer, Buffer.load(tmp_path / "saved"))

    def test_a_state_is_json_and_arrays_and_goes_into_a_used_buffer(self, make: Callable[[], Buffer]) -> None:
        buffer, other = worked(make, 4), worked(make, 5)
        state = buffer.state_dict()
        values = {name: value for name, value in state.items() if name != "arrays"}
        assert json.loads(json.dumps(values, allow_nan=False)) == values
        assert {type(array) for array in state["arrays"].values()} == {np.ndarray}
        other.load_state_dict(state)
        assert_same(buffer, other, 20)

    def test_a_state_and_the_buffer_share_nothing(self, make: Callable[[], Buffer]) -> None:
        buffer = worked(make, 5)
        state = buffer.state_dict()
        before = copy.deepcopy(state)
        work(buffer, random.Random(5), 20)
        assert plain(state) == plain(before)
        first, second = make(), make()
        first.load_state_dict(state)
        second.load_state_dict(state)
        work(first, random.Random(6), 20)
        assert plain(second.state_dict()) == plain(before)
        for array in state["arrays"].values():
            array[...] = np.zeros((), array.dtype)
        assert plain(second.state_dict()) == plain(before)
        second.check()

    @pytest.mark.parametrize("seeds", seed_blocks_test.seed_blocks(2 * forged_states_test.MUTANTS, 200, 3))
    def test_a_forged_state_is_refused_or_makes_a_buffer_that_works(
        self, make: Callable[[], Buffer], seeds: range
    ) -> None:
        messages: list[str] = []
        taken = 0
        for seed in seeds:
            rng = random.Random(seed)
            state = forged_states_test.forged(worked(make, seed % 5, rng.randrange(2, 40)).state_dict(), rng)
            buffer = worked(make, 11, 10)
            before = plain(buffer.state_dict())
            try:
                made = Buffer._loaded(copy.deepcopy(state), {})
            except errors.CheckpointError as error:
                messages.append(str(error))
            else:
                taken += 1
                if made.agents == AGENTS:
                    assert_usable(made)
            try:
                buffer.load_state_dict(state)
            except errors.CheckpointError:
                assert plain(buffer.state_dict()) == before
                buffer.check()
            else:
                assert_usable(buffer)
        assert 0 < taken < len(seeds)
        assert not any("\n" in message for message in messages)

    def test_whatever_is_missing_or_too_short_is_refused(self, make: Callable[[], Buffer]) -> None:
        buffer, state = worked(make, 6, 10), worked(make, 7).state_dict()
        before = plain(buffer.state_dict())
        for name in state:
            with pytest.raises(errors.CheckpointError):
                buffer.load_state_dict({kept: value for kept, value in state.items() if kept != name})
        for name, array in state["arrays"].items():
            for forged in ({}, {name: array[:-1]}, {name: array.tolist()}, {name: array.astype("V3")}):
                arrays = {kept: value for kept, value in state["arrays"].items() if kept != name} | forged
                if forged and not len(array) and type(forged[name]) is np.ndarray and forged[name].dtype == array.dtype:
                    continue
                with pytest.raises(errors.CheckpointError):
                    buffer.load_state_dict(state | {"arrays": arrays})
        assert plain(buffer.state_dict()) == before

    def test_a_damaged_file_is_refused(self, make: Callable[[], Buffer], tmp_path: pathlib.Path) -> None:
        worked(make, 8).save(tmp_path / "saved")
        for name in sorted(os.listdir(tmp_path / "saved")):
            path = tmp_path / "saved" / name
            content = path.read_bytes()
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            with pytest.raises(errors.CheckpointError):
                Buffer.load(tmp_path / "saved")
            path.write_bytes(content)
        Buffer.load(tmp_path / "saved").check()


def test_what_is_kept_has_names_of_its_own() -> None:
    state = worked(BUFFERS["one stream"]).state_dict()
    numbers = ["next_key", "num_evicted", "next_episode"]
    assert list(state) == ["class", "settings", "generator", "counters", *numbers, "agents", "arrays"]
    assert state["class"] == "JointReplayBuffer"
    assert state["settings"] == {
        "capacity": 9,
        "n_step": 3,
        "gamma": 0.9,
        "streams": 1,
        "limiter": {"kind": "MinSize", "n": 1},
    }
    assert list(state["agents"]) == ["0", "1", "2"]
    assert [agent["name"] for agent in state["agents"].values()] == [*AGENTS]
    assert state["agents"]["0"]["schema"] == [["observation", "<i8", [3]], ["action", "<i8", []], ["reward", "<f8", []]]
    joint = {name for name in state["arrays"] if not name.startswith("agents/")}
    assert joint == {"episode", "step", "open_episode", "open_length"}
    assert {"agents/2/present", "agents/2/rows/observation/eye", "agents/2/final/observation/foot"} <= {
        *state["arrays"]
    }


def test_names_of_agents_may_be_anything(tmp_path: pathlib.Path) -> None:
    names = ["../etc", "a/b", "", "Ä\n", "0" * 300]
    buffer = Buffer(9, agents=names, seed=0)
    seen = {name: [1.0] for name in names}
    buffer.add(seen, dict.fromkeys(names, 1), dict.fromkeys(names, 0.5), seen)
    buffer.save(tmp_path / "saved")
    loaded = Buffer.load(tmp_path / "saved")
    assert loaded.agents == tuple(names)
    assert plain(loaded.sample(3)) == plain(buffer.sample(3))


def test_a_buffer_of_other_agents_takes_no_state() -> None:
    state = Buffer(9, agents=["a", "b"]).state_dict()
    for agents in (["b", "a"], ["a"], ["a", "b", "c"]):
        with pytest.raises(errors.CheckpointError, match=r"^agents must be those of .*, got \['a', 'b'\]$"):
            Buffer(9, agents=agents).load_state_dict(state)


def test_a_buffer_of_another_schema_takes_no_state() -> None:
    other = schema_lib.Schema(schema_lib.Field(4, "int64"), schema_lib.Field((), "int64"))
    state = worked(BUFFERS["one stream"]).state_dict()
    for agent in ("left", "right"):
        buffer = Buffer(9, {agent: other}, agents=AGENTS, n_step=3, gamma=0.9)
        with pytest.raises(errors.CheckpointError, match="^agents/[01]/schema must be Schema.observation=Field..4,"):
            buffer.load_state_dict(state)


def test_what_is_of_a_class_of_ones_own_comes_back(tmp_path: pathlib.Path) -> None:
    buffer = Buffer(9, SCHEMAS, agents=AGENTS, limiter=checkpointable_test.OwnLimiter(2))
    buffer.save(tmp_path / "saved")
    limiter = Buffer.load(tmp_path / "saved").limiter
    assert (type(limiter), limiter.min_size) == (checkpointable_test.OwnLimiter, 2)


def test_a_generator_may_be_given() -> None:
    buffer = worked(BUFFERS["one stream"])
    loaded = Buffer._loaded(buffer.state_dict(), {"seed": 5})
    assert plain(loaded.rng.bit_generator.state) == plain(np.random.default_rng(5).bit_generator.state)


def state_of(streams: int = 1) -> State:
    """Of capacity 6, left and right in one episode of three joint steps that goes on, right in the last two.

    With two streams, there is an episode of one step of left in the other, which goes on as well.
    """
    buffer = Buffer(6, SCHEMAS, agents=AGENTS, streams=streams, seed=0)
    if streams == 2:
        buffer.add(**joint_test.rows_of(1, 0, ["left"]), stream=1)
    for t in range(3):
        buffer.add(**joint_test.rows_of(0, t, ["left", "right"] if t else ["left"]), stream=0)
    return buffer.state_dict()


JOINT = "the joint steps cannot be as they are: "


@pytest.mark.parametrize(
    ("streams", "values", "arrays", "text"),
    [
        (1, {"next_key": 2}, {}, r"array open_length must hold integers in \[0, 2\], got 3"),
        (1, {"next_key": 2}, {"open_length": [2]}, r"num_evicted must be at most -1, got 0"),
        (1, {"num_evicted": 1}, {}, r"num_evicted must be at most 0, got 1"),
        (1, {"next_episode": 0}, {}, r"array episode must hold integers in \[0, -1\], got 0"),
        (1, {}, {"episode": [0, 0, 1]}, r"array episode must hold integers in \[0, 0\], got 1"),
        (1, {}, {"step": [0, 1, 4]}, r"array step must hold integers in \[0, 3\], got 4"),
        (1, {}, {"step": [0, 2, 3]}, JOINT + "the steps of an episode must follow each other"),
        (1, {}, {"step": [1, 2, 3]}, JOINT + "an episode that goes on must be as long as its steps say"),
        (1, {}, {"open_length": [2]}, JOINT + "an episode that goes on must be as long as its steps say"),
        (1, {}, {"open_episode": [-1]}, JOINT + "a run that goes on must be in the newest step"),
        (1, {"next_episode": 2}, {"episode": [1, 0, 0]}, JOINT + "the episodes of a stream must follow each other"),
        (
            1,
            {"next_episode": 2},
            {"episode": [0, 1, 1], "step": [0, 0, 1], "open_episode": [1], "open_length": [2]},
            JOINT + "an agent must be in each step of its run",
        ),
        (
            1,
            {"next_episode": 2},
            {"open_episode": [1], "open_length": [2]},
            JOINT + "an episode that goes on must be the newest of its stream",
        ),
        (1, {}, {"agents/0/present": [False, True, True]}, JOINT + "each must have an agent"),
        (
            1,
            {},
            {"agents/1/present": [True, True, True]},
            JOINT + "an agent must have a row for each that it is in, and no other",
        ),
        (
            1,
            {},
            {"agents/1/present": [False, False, True]},
            JOINT + "an agent must have a row for each that it is in, and no other",
        ),
        (1, {}, {"agents/1/present": [True, True, False]}, JOINT + "a run that goes on must be in the newest step"),
        (1, {}, {"agents/1/present": [True, False, True]}, JOINT + "an agent must be in each step of its run"),
        (
            1,
            {},
            {"agents/0/episode_has_tail": [False], "agents/0/final/observation": np.zeros((0, 3), int)},
            JOINT + "of each row of an agent it must be known what came after",
        ),
        (
            1,
            {"next_key": 9},
            {"episode": [0] * 7, "step": range(7), **{f"agents/{agent}/present": [True] * 7 for agent in range(3)}},
            "array episode must have at most capacity = 6, got 7",
        ),
        (
            2,
            {},
            {"agents/1/episode_stream": [1], "agents/1/phase": 1},
            "the episodes cannot be as they are: .*|" + JOINT + "all agents of one must be in one stream",
        ),
        (2, {}, {"episode": [1, 1, 1, 1]}, JOINT + "an episode must be of one stream"),
        (2, {}, {"open_episode": [1, 1]}, JOINT + "an episode that goes on must be the newest of its stream"),
        (2, {}, {"open_length": [3, 2]}, JOINT + "an episode that goes on must be as long as its steps say"),
        (2, {}, {"open_episode": [0]}, r"array open_episode must be of dtype int64 and shape \(2\), got int64 and.*"),
        (2, {}, {"open_episode": [1, 2]}, r"array open_episode must hold integers in \[-1, 1\], got 2"),
    ],
)
def test_an_impossible_state_is_refused_with_the_reason(
    streams: int, values: State, arrays: dict[str, Any], text: str
) -> None:
    state = state_of(streams)
    Buffer._loaded(copy.deepcopy(state), {}).check()
    state |= values
    for name, value in arrays.items():
        if isinstance(value, int):
            state["agents"][name.split("/")[1]][name.split("/")[2]] = value
        else:
            state["arrays"][name] = np.array(value, state["arrays"][name].dtype)
    with pytest.raises(errors.CheckpointError, match=f"^({text})$"):
        Buffer(6, SCHEMAS, agents=AGENTS, streams=streams).load_state_dict(state)


@pytest.mark.parametrize(
    ("agents", "text"),
    [
        (None, "agents must be a mapping, got None"),
        ([], r"agents must be a mapping, got \[\]"),
        ({}, "a JointReplayBuffer cannot be made of its settings: agents must be .*"),
        ({"left": {"name": "left"}}, "agents/0 is missing"),
        ({"0": {"name": 3}}, "agents/0/name must be a string, got 3"),
        ({"0": {"name": "left"}}, "array agents/0/present .*|agents/0/.* is missing"),
    ],
)
def test_agents_that_cannot_be_are_refused(agents: Any, text: str) -> None:
    with pytest.raises(errors.CheckpointError, match=f"^({text})$"):
        Buffer._loaded(state_of() | {"agents": agents}, {})


def test_more_than_there_is_memory_for_is_refused() -> None:
    state = state_of()
    state["settings"] = state["settings"] | {"capacity": 2**62}
    with pytest.raises(errors.CheckpointError, match="^a JointReplayBuffer cannot be made of its settings: .*"):
        Buffer._loaded(state, {})
    state = state_of()
    state["agents"]["2"]["schema"] = [
        ["observation", "<f8", [2**58]],
        ["action", "<f8", [2**58]],
        ["reward", "<f8", []],
    ]
    state["arrays"] |= {"agents/2/rows/observation": np.zeros((0, 2**58)), "agents/2/rows/action": np.zeros((0, 2**58))}
    state["arrays"] |= {"agents/2/rows/reward": np.zeros(0), "agents/2/final/observation": np.zeros((0, 2**58))}
    with pytest.raises(errors.CheckpointError, match="^schema cannot be that of 6 rows: .*"):
        Buffer._loaded(state, {})


def test_an_episode_whose_steps_are_gone_may_go_on() -> None:
    """It is refused where it could not have been open."""
    buffer = Buffer(2, SCHEMAS, agents=AGENTS, streams=2)
    buffer.add(**joint_test.rows_of(0, 0, ["left", "right"]), stream=0)
    for t in range(3):
        buffer.add(**joint_test.rows_of(1, t, ["left", "right"]), stream=1)
    state = buffer.state_dict()
    loaded = Buffer._loaded(state, {})
    for each in (buffer, loaded):
        each.add(**joint_test.rows_of(0, 1, ["left", "tall"]), stream=0)
        batch = each.read([4])
        assert (batch.episodes.tolist(), batch.start_step.tolist()) == ([0], [1])
        each.check()
    assert plain(loaded.state_dict()) == plain(buffer.state_dict())
    state["arrays"]["open_length"] = np.array([0, 3])
    with pytest.raises(errors.CheckpointError, match="an episode that goes on must be as long as its steps say$"):
        Buffer._loaded(copy.deepcopy(state), {})
    state["arrays"]["open_length"] = np.array([1, 3])
    state["arrays"]["open_episode"] = np.array([1, 1])
    with pytest.raises(errors.CheckpointError, match="an episode that goes on must be the newest of its stream$"):
        Buffer._loaded(copy.deepcopy(state), {})
    state["arrays"]["open_episode"] = np.array([-1, 1])
    with pytest.raises(errors.CheckpointError, match="a run that goes on must be in the newest step$"):
        Buffer._loaded(state, {})


class TestCheck:
    def test_a_row_too_many_is_found(self) -> None:
        buffer = Buffer._loaded(state_of(), {})
        buffer._histories[0].evict(1)
        with pytest.raises(errors.CorruptionError, match=f"^{JOINT}an agent must have a row for each that it is in"):
            buffer.check()

    def test_rows_in_another_order_are_found(self) -> None:
        buffer = Buffer._loaded(state_of(), {})
        buffer._table._row_keys[0, :2] = [1, 0]
        with pytest.raises(errors.CorruptionError, match="^the rows of an agent are not in the order of the joint"):
            buffer.check()

    def test_a_run_that_should_have_ended_is_found(self) -> None:
        buffer = Buffer._loaded(state_of(), {})
        buffer._table.end(0)
        with pytest.raises(errors.CorruptionError, match=f"^{JOINT}a run that goes on must be in the newest step$"):
            buffer.check()

    def test_a_damaged_history_is_found(self) -> None:
        buffer = worked(BUFFERS["one stream"])
        for history in buffer._histories:
            history.facts[history.alive_slots()] ^= append.TERMINAL
        with pytest.raises(errors.CorruptionError, match="^the state of the row of key .* is not what it must be$"):
            buffer.check()
