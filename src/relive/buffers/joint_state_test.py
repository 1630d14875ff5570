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
from relive.buffers import joint_rows
from relive.buffers import joint_test
from relive.persistence import checkpointable_test
from relive.persistence import forged_states_test
from relive.persistence import journal as journal_lib
from relive.persistence import recover as recover_lib
from relive.persistence import seed_blocks_test
from relive.samplers import prioritized
from relive.schema import schema as schema_lib
from relive.waiting import rate_limiters

Buffer: TypeAlias = joint_lib.JointReplayBuffer
State: TypeAlias = dict[str, Any]
plain = checkpointable_test.plain
AGENTS, SCHEMAS = joint_test.AGENTS, joint_test.SCHEMAS

BUFFERS: dict[str, Callable[[], Any]] = {
    "one stream": lambda: Buffer(9, agents=AGENTS, n_step=3, gamma=0.9, seed=1),
    "three streams": lambda: Buffer(
        12, SCHEMAS, agents=AGENTS, streams=3, limiter=rate_limiters.SampleToInsertRatio(3.0, 2, 50.0), seed=2
    ),
    "priorities": lambda: Buffer(
        3, SCHEMAS, agents=AGENTS, streams=2, n_step=2, sampler=prioritized.PrioritizedSampler(), seed=3
    ),
    "sequences": lambda: joint_lib.JointSequenceReplayBuffer(
        12, SCHEMAS, agents=AGENTS, length=2, pad=True, max_times_sampled=3, seed=4
    ),
}


def work(buffer: Any, rng: random.Random, count: int) -> None:
    """Do `count` things to a buffer, chosen at random."""
    for _ in range(count):
        action, stream = rng.randrange(20), rng.randrange(buffer.streams)
        if action < 14:
            world, length = now(buffer, stream)
            present = rng.choice([AGENTS, AGENTS, ["left", "right"], ["left"], ["tall"]])
            ends = [agent for agent in present if rng.random() < 0.2]
            rows = joint_test.rows_of(world, length, present, ends, present if rng.random() < 0.05 else ())
            if buffer.can_insert():
                buffer.add(**rows, stream=stream)
        elif action < 17 and buffer.can_sample(3):
            keys = buffer.sample(3).keys
            if buffer.has_priorities:
                buffer.update_priorities(keys, [rng.random() for _ in keys])
        elif action == 18:
            buffer.end_episode(stream=stream)
        elif action == 19 and rng.random() < 0.1:
            buffer.clear()


def now(buffer: Any, stream: int) -> tuple[int, int]:
    """The number of the episode that is open in a stream, and how many steps it has; or of the next one."""
    store = buffer._store
    if not store.is_open(stream):
        return 0, 0
    episode = store.current[stream : stream + 1]
    return int(store.behind[joint_rows.EPISODE][episode][0]), int(store.lengths_of(episode)[0])


def worked(make: Callable[[], Any], seed: int = 0, count: int = 40) -> Any:
    """A buffer in the middle of its life."""
    buffer = make()
    work(buffer, random.Random(seed), count)
    return buffer


def assert_same(buffer: Any, other: Any, count: int = 30) -> None:
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


def assert_usable(buffer: Any) -> None:
    """It passes its audit, goes on, and is saved again."""
    buffer.check()
    for seed in range(2):
        # What only the forged schema or limiter can be blamed for.
        with forged_states_test.suppressed(errors.ArgumentError, "agent '.*': |batch_size must be at most "):
            work(buffer, random.Random(seed), 15)
            checkpointable_test.batch_of(buffer)
        buffer.check()
    again = type(buffer)._loaded(buffer.state_dict(), {})
    assert plain(again.state_dict()) == plain(buffer.state_dict())


@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS.keys())
class TestEveryBuffer:
    @pytest.mark.parametrize(
        ("seed", "count"), [(0, 50), *(pytest.param(seed, 150, marks=pytest.mark.long) for seed in (1, 2))]
    )
    def test_the_next_batches_of_a_loaded_buffer_are_those_of_the_saved_one(
        self, make: Callable[[], Any], seed: int, count: int, tmp_path: pathlib.Path
    ) -> None:
        buffer = worked(make, seed)
        buffer.save(tmp_path / "saved")
        assert_same(buffer, type(buffer).load(tmp_path / "saved"), count)

    def test_what_was_never_added_to_is_saved_and_loaded(self, make: Callable[[], Any], tmp_path: pathlib.Path) -> None:
        buffer = make()
        buffer.save(tmp_path / "saved")
        assert_same(buffer, type(buffer).load(tmp_path / "saved"))

    def test_what_was_cleared_is_saved_and_loaded(self, make: Callable[[], Any], tmp_path: pathlib.Path) -> None:
        buffer = worked(make, 2)
        buffer.clear()
        buffer.save(tmp_path / "saved")
        assert_same(buffer, type(buffer).load(tmp_path / "saved"))

    def test_a_state_is_json_and_arrays_and_goes_into_a_used_buffer(self, make: Callable[[], Any]) -> None:
        buffer, other = worked(make, 4), worked(make, 5)
        state = buffer.state_dict()
        values = {name: value for name, value in state.items() if name != "arrays"}
        assert json.loads(json.dumps(values, allow_nan=False)) == values
        assert {type(array) for array in state["arrays"].values()} == {np.ndarray}
        other.load_state_dict(state)
        assert_same(buffer, other, 20)

    def test_a_state_and_the_buffer_share_nothing(self, make: Callable[[], Any]) -> None:
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

    @pytest.mark.parametrize("seeds", seed_blocks_test.seed_blocks(5 * forged_states_test.MUTANTS, 200, 3))
    def test_a_forged_state_is_refused_or_makes_a_buffer_that_works(
        self, make: Callable[[], Any], seeds: range
    ) -> None:
        messages: list[str] = []
        taken = 0
        for seed in seeds:
            rng = random.Random(seed)
            state = forged_states_test.forged(worked(make, seed % 5, rng.randrange(2, 40)).state_dict(), rng)
            buffer = worked(make, 11, 10)
            before = plain(buffer.state_dict())
            try:
                made = type(buffer)._loaded(copy.deepcopy(state), {})
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

    def test_whatever_is_missing_or_too_short_is_refused(self, make: Callable[[], Any]) -> None:
        buffer, state = worked(make, 6, 10), worked(make, 7).state_dict()
        before = plain(buffer.state_dict())
        for name in state.keys() - {"journal"}:
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

    def test_a_damaged_file_is_refused(self, make: Callable[[], Any], tmp_path: pathlib.Path) -> None:
        worked(make, 8).save(tmp_path / "saved")
        for name in sorted(os.listdir(tmp_path / "saved")):
            path = tmp_path / "saved" / name
            content = path.read_bytes()
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
            with pytest.raises(errors.CheckpointError):
                type(make()).load(tmp_path / "saved")
            path.write_bytes(content)
        type(make()).load(tmp_path / "saved").check()


def test_the_state_names_the_agents_and_the_schema_of_a_row() -> None:
    state = Buffer(9, SCHEMAS, agents=AGENTS, n_step=3, gamma=0.9).state_dict()
    assert list(state)[:7] == ["journal", "class", "settings", "generator", "agents", "schema", "next_episode"]
    assert state["settings"] == {
        "capacity": 9,
        "n_step": 3,
        "gamma": 0.9,
        "streams": 1,
        "limiter": {"kind": "MinSize", "n": 1},
        "sampler": {"kind": "UniformSampler"},
        "max_times_sampled": None,
    }
    assert state["agents"] == {"0": "left", "1": "right", "2": "tall"}
    fields = {path: (dtype, shape) for path, dtype, shape in state["schema"]}
    assert fields["observation/0,1"] == ("<i8", [2, 3])
    assert fields["observation/2/eye"] == ("<i8", [1, 3])
    assert fields["extras/rewards/2"] == ("<f4", [1])
    assert fields["extras/extras/2/log_probability"] == ("<f4", [1])
    assert fields["extras/flags"] == fields["observation/status"] == ("|u1", [3])
    assert {f"rows/{path}" for path in fields} <= {*state["arrays"]}


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
        with pytest.raises(errors.CheckpointError, match="^schema must be Schema.observation=Field..4,.* for agent '"):
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


def state_of() -> State:
    """Of capacity 6: an episode of three joint steps that goes on, in which left is, and right in the last two."""
    buffer = Buffer(6, SCHEMAS, agents=AGENTS, seed=0)
    for t in range(3):
        buffer.add(**joint_test.rows_of(0, t, ["left", "right"] if t else ["left"]))
    return buffer.state_dict()


JOINT = "the joint steps cannot be as they are: "


@pytest.mark.parametrize(
    ("values", "arrays", "text"),
    [
        (
            {},
            {"rows/extras/flags": [[4, 0, 0], [0, 0, 0], [4, 4, 0]]},
            JOINT + "each must have an agent, and no flags .*",
        ),
        (
            {},
            {"rows/extras/flags": [[4, 0, 0], [4, 1, 0], [4, 4, 0]]},
            JOINT + "each must have an agent, and no flags .*",
        ),
        (
            {},
            {"rows/extras/flags": [[4, 0, 0], [4, 0, 0], [4, 4, 0]]},
            JOINT + "each must have the flags of the one before",
        ),
        ({}, {"rows/observation/status": [[4, 0, 0]] * 3}, JOINT + "each must have the flags of the one before"),
        ({}, {"final/observation/status": [[4, 5, 0]]}, JOINT + "each must have the flags of the one before"),
        (
            {},
            {
                "rows/extras/flags": [[4, 0, 0], [4, 4, 0], [5, 6, 0]],
                "final/observation/status": [[5, 6, 0]],
            },
            JOINT + "an episode goes on while an agent does",
        ),
        ({}, {"rows/observation/episode": [0, 0, 1]}, JOINT + "the steps of an episode, and no others, .*"),
        ({"next_episode": 0}, {}, JOINT + "the numbers of episodes must be below that of the next one"),
        ({"next_episode": -1}, {}, r"next_episode must be an integer in \[0, .*"),
        ({"schema": None}, {}, "schema must be there where a row was written"),
        ({"schema": [["observation", "<i8", []]]}, {}, "schema cannot be made: .*"),
    ],
)
def test_an_impossible_state_is_refused_with_the_reason(values: State, arrays: dict[str, Any], text: str) -> None:
    state = state_of()
    Buffer._loaded(copy.deepcopy(state), {}).check()
    state |= values
    for name, value in arrays.items():
        array = state["arrays"][name]
        state["arrays"][name] = np.array(value, array.dtype).reshape(-1, *array.shape[1:])
    buffer = Buffer(6, SCHEMAS, agents=AGENTS)
    before = plain(buffer.state_dict())
    with pytest.raises(errors.CheckpointError, match=f"^({text})$"):
        buffer.load_state_dict(state)
    assert plain(buffer.state_dict()) == before


def test_an_episode_of_which_nobody_knows_what_came_after_is_refused() -> None:
    state = state_of()
    final = {name: array[:0] for name, array in state["arrays"].items() if name.startswith("final/")}
    state["arrays"] |= {**final, "episode_has_tail": np.array([False])}
    with pytest.raises(errors.CheckpointError, match=f"^{JOINT}of each it must be known what came after$"):
        Buffer._loaded(state, {})


def test_a_journal_cannot_take_agents_away() -> None:
    buffer, other = worked(BUFFERS["three streams"]), Buffer(9, {"tall": SCHEMAS["tall"]}, agents=AGENTS)
    assert other.schema is not None
    with pytest.raises(errors.CheckpointError, match="^has a schema without the agents that are known$"):
        buffer._begin(other.schema)
    Buffer(9, agents=AGENTS).check()


def test_two_episodes_of_one_number_are_refused() -> None:
    buffer = Buffer(6, SCHEMAS, agents=AGENTS)
    for world in range(2):
        buffer.add(**joint_test.rows_of(world, 0, ["left"], ["left"]))
    state = buffer.state_dict()
    for name in ("rows/observation/episode", "final/observation/episode"):
        state["arrays"][name][:] = 1
    with pytest.raises(errors.CheckpointError, match=f"^{JOINT}the steps of an episode, and no others, must have its"):
        Buffer._loaded(state, {})


@pytest.mark.parametrize(
    ("path", "other"),
    [
        ("observation/0,1", "observation/0,3"),
        ("observation/0,1", "observation/0,0"),
        ("observation/0,1", "observation/-1,1"),
        ("observation/0,1", "observation/x"),
        ("observation/0,1", "observation/00,1"),
        ("action/0,1", "action/0"),
        ("extras/rewards/0,1", "extras/rewards/2,0"),
        ("extras/flags", "extras/flag"),
        ("observation/status", "observation/state"),
        ("observation/episode", "observation/number"),
    ],
)
def test_a_schema_that_is_not_one_of_rows_of_the_agents_is_refused(path: str, other: str) -> None:
    state = state_of()
    state["schema"] = [[other if row[0] == path else row[0], *row[1:]] for row in state["schema"]]
    with pytest.raises(
        errors.CheckpointError, match=r"^schema must be (that of rows of 3 agents, got another|a list .*)$"
    ):
        Buffer._loaded(state, {})


@pytest.mark.parametrize(
    ("agents", "text"),
    [
        (None, "agents must be a mapping, got None"),
        ([], r"agents must be a mapping, got \[\]"),
        ({}, "a JointReplayBuffer cannot be made of its settings: agents must be .*"),
        ({"left": "left"}, "agents/0 is missing"),
        ({"0": 3}, "agents/0 must be a string, got 3"),
        ({"0": "left"}, "schema must be that of rows of 1 agents, got another"),
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


def test_an_episode_whose_steps_are_gone_goes_on_after_it_was_loaded() -> None:
    buffer = Buffer(2, SCHEMAS, agents=AGENTS, streams=2)
    buffer.add(**joint_test.rows_of(0, 0, ["left", "right"]), stream=0)
    for t in range(3):
        buffer.add(**joint_test.rows_of(1, t, ["left", "right"]), stream=1)
    loaded = Buffer._loaded(buffer.state_dict(), {})
    for each in (buffer, loaded):
        each.add(**joint_test.rows_of(0, 1, ["left", "tall"]), stream=0)
        batch = each.read([4])
        assert (batch.episodes.tolist(), batch.start_step.tolist()) == ([0], [1])
        each.check()
    assert plain(loaded.state_dict()) == plain(buffer.state_dict())


def test_flags_that_were_damaged_in_memory_are_found() -> None:
    buffer = worked(BUFFERS["one stream"])
    flags = buffer._store.storage._sources[joint_rows.FLAGS][0]
    flags[buffer._store.alive_slots()[0]] = 0
    with pytest.raises(errors.CorruptionError, match=f"^{JOINT}each must have an agent"):
        buffer.check()


# Agents that come late, and journals.


def test_rows_are_kept_when_agents_come_that_have_no_schema_yet(tmp_path: pathlib.Path) -> None:
    late, early = Buffer(5, agents=AGENTS, n_step=2, seed=0), Buffer(5, SCHEMAS, agents=AGENTS, n_step=2, seed=0)
    with journal_lib.Journal(tmp_path / "late") as journal:
        late.attach(journal)
        for t, present in enumerate((["right"], ["right"], ["right", "left"], ["right"], AGENTS, AGENTS, ["left"])):
            rows = joint_test.rows_of(0, t, present)
            rows["rewards"] |= {"tall": np.float32(0.5)}
            for buffer in (late, early):
                buffer.add(**rows)
            late.check()
            if t < 4:
                assert [*late.schemas] == (["right"] if t < 2 else ["left", "right"])
                assert {*late.read(late.eligible_keys()).agents} == {*late.schemas}
            else:
                assert plain(late.read(late.eligible_keys())) == plain(early.read(early.eligible_keys()))
    assert late.schemas == SCHEMAS
    late.detach()
    recovered = recover_lib.recover(tmp_path / "late")
    assert plain(recovered.state_dict()["arrays"]) == plain(late.state_dict()["arrays"])
    assert_same(recovered, late)
    loaded = Buffer._loaded(late.state_dict(), {})
    assert_same(loaded, Buffer._loaded(late.state_dict(), {}))
    early.load_state_dict({**late.state_dict(), "settings": early.state_dict()["settings"]})
    assert plain(early.state_dict()) == plain(late.state_dict())
    with pytest.raises(errors.CheckpointError, match="^schema must be .* for agent 'left', got None$"):
        early.load_state_dict({**_of_right(), "settings": early.state_dict()["settings"]})


def _of_right() -> State:
    buffer = Buffer(5, agents=AGENTS, n_step=2)
    buffer.add(**joint_test.rows_of(0, 0, ["right"]))
    return buffer.state_dict()


@pytest.mark.parametrize("make", BUFFERS.values(), ids=BUFFERS.keys())
@pytest.mark.parametrize("seed", range(3))
def test_a_recovered_buffer_goes_on_as_the_one_that_was_killed(
    make: Callable[[], Any], seed: int, tmp_path: pathlib.Path
) -> None:
    buffer = make()
    with journal_lib.Journal(tmp_path / "steps", segment_bytes=4096) as journal:
        buffer.attach(journal, priorities=buffer.has_priorities)
        work(buffer, random.Random(seed), 60)
        if not buffer.can_insert():
            buffer.sample(20)
        buffer.extend(**extended(buffer, seed))
    recovered = recover_lib.recover(tmp_path / "steps")
    recovered.check()
    names = {"rows/", "final/", "row_", "episode_"}
    ours, theirs = (
        {name: array for name, array in each.state_dict()["arrays"].items() if name.startswith(tuple(names))}
        for each in (buffer, recovered)
    )
    assert plain(ours) == plain(theirs)
    assert recovered.eligible_keys().tolist() == buffer.eligible_keys().tolist()
    assert recovered.state_dict()["next_episode"] == buffer.state_dict()["next_episode"]


def extended(buffer: Any, seed: int) -> dict[str, Any]:
    """The arguments of `extend` for a step of each stream, in which right is in the first stream alone."""
    count, agents = buffer.streams, ("left", "right")
    seen, numbers = np.full((count, 3), seed), np.arange(count)
    return {
        "observations": dict.fromkeys(agents, seen),
        "actions": dict.fromkeys(agents, numbers),
        "rewards": dict.fromkeys(agents, numbers),
        "next_observations": dict.fromkeys(agents, seen + 1),
        "present": {"right": numbers == 0},
    }
