"""What the state of a joint buffer is, states that none can be in, and agents that come late."""

import copy
import pathlib
import random
from typing import Any, TypeAlias

import numpy as np
import pytest

import relive
from relive import errors
from relive.joint import buffer_test
from relive.joint import rows as joint_rows
from relive.testing import zoo

Buffer: TypeAlias = relive.JointReplayBuffer
State: TypeAlias = dict[str, Any]
plain = zoo.plain
AGENTS, SCHEMAS = zoo.AGENTS, zoo.SCHEMAS
ONE, THREE = zoo.KINDS["joint"], zoo.KINDS["joint of 3 streams"]


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


def test_batches_go_on_with_agents_that_a_state_brings() -> None:
    other = zoo.worked(ONE.make)
    buffer = ONE.make()
    window, batches = buffer.window, buffer.batches(3, prefetch=0)
    buffer.load_state_dict(other.state_dict())
    assert buffer.window is window
    for _ in range(3):
        assert plain(next(batches)) == plain(other.sample(3))
        assert zoo.work(buffer, random.Random(7), 5) == zoo.work(other, random.Random(7), 5)


def test_a_buffer_of_other_agents_takes_no_state() -> None:
    state = Buffer(9, agents=["a", "b"]).state_dict()
    for agents in (["b", "a"], ["a"], ["a", "b", "c"]):
        with pytest.raises(errors.CheckpointError, match=r"^agents must be those of .*, got \['a', 'b'\]$"):
            Buffer(9, agents=agents).load_state_dict(state)


def test_a_buffer_of_another_schema_takes_no_state() -> None:
    other = relive.Schema(relive.Field(4, "int64"), relive.Field((), "int64"))
    state = zoo.worked(ONE.make).state_dict()
    for agent in ("left", "right"):
        buffer = Buffer(9, {agent: other}, agents=AGENTS, n_step=3, gamma=0.9)
        with pytest.raises(errors.CheckpointError, match="^schema must be Schema.observation=Field..4,.* for agent '"):
            buffer.load_state_dict(state)


def state_of() -> State:
    """Of capacity 6: an episode of three joint steps that goes on, in which left is, and right in the last two."""
    buffer = Buffer(6, SCHEMAS, agents=AGENTS, seed=0)
    for t in range(3):
        buffer.add(**buffer_test.rows_of(0, t, ["left", "right"] if t else ["left"]))
    return buffer.state_dict()


JOINT = "the joint steps cannot be as they are: "


def test_impossible_states_of_joint_buffers_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[State, dict[str, Any], str]] = [
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
            {"rows/extras/flags": [[4, 0, 0], [4, 4, 0], [5, 6, 0]], "final/observation/status": [[5, 6, 0]]},
            JOINT + "an episode goes on while an agent does",
        ),
        ({}, {"rows/observation/episode": [0, 0, 1]}, JOINT + "the steps of an episode, and no others, .*"),
        ({"next_episode": 0}, {}, JOINT + "the numbers of episodes must be below that of the next one"),
        ({"next_episode": -1}, {}, r"next_episode must be an integer in \[0, .*"),
        ({"schema": None}, {}, "schema must be there where a row was written"),
        ({"schema": [["observation", "<i8", []]]}, {}, "schema cannot be made: .*"),
    ]
    for values, arrays, text in cases:
        with subtests.test(text):
            state = state_of()
            Buffer.from_state(copy.deepcopy(state)).check()
            state |= values
            for name, value in arrays.items():
                array = state["arrays"][name]
                state["arrays"][name] = np.array(value, array.dtype).reshape(-1, *array.shape[1:])
            buffer = Buffer(6, SCHEMAS, agents=AGENTS)
            before = plain(buffer.state_dict())
            with pytest.raises(errors.CheckpointError, match=f"^({text})$"):
                buffer.load_state_dict(state)
            assert plain(buffer.state_dict()) == before


def test_an_episode_without_what_came_after_is_refused() -> None:
    state = state_of()
    final = {name: array[:0] for name, array in state["arrays"].items() if name.startswith("final/")}
    state["arrays"] |= {**final, "episode_has_tail": np.array([False])}
    with pytest.raises(errors.CheckpointError, match=f"^{JOINT}of each it must be known what came after$"):
        Buffer.from_state(state)


def test_a_journal_cannot_take_agents_away() -> None:
    buffer, other = zoo.worked(THREE.make), Buffer(9, {"tall": SCHEMAS["tall"]}, agents=AGENTS)
    assert other.schema is not None
    with pytest.raises(errors.CheckpointError, match="^has a schema without the agents that are known$"):
        buffer._begin(other.schema)
    Buffer(9, agents=AGENTS).check()


def test_two_episodes_of_one_number_are_refused() -> None:
    buffer = Buffer(6, SCHEMAS, agents=AGENTS)
    for world in range(2):
        buffer.add(**buffer_test.rows_of(world, 0, ["left"], ["left"]))
    state = buffer.state_dict()
    for name in ("rows/observation/episode", "final/observation/episode"):
        state["arrays"][name][:] = 1
    with pytest.raises(errors.CheckpointError, match=f"^{JOINT}the steps of an episode, and no others, must have its"):
        Buffer.from_state(state)


def test_a_schema_of_other_rows_than_those_of_agents_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
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
    ]
    for path, other in cases:
        with subtests.test(other):
            state = state_of()
            state["schema"] = [[other if row[0] == path else row[0], *row[1:]] for row in state["schema"]]
            with pytest.raises(
                errors.CheckpointError, match=r"^schema must be (that of rows of 3 agents, got another|a list .*)$"
            ):
                Buffer.from_state(state)


def test_agents_that_cannot_be_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, str]] = [
        (None, "agents must be a mapping, got None"),
        ([], r"agents must be a mapping, got \[\]"),
        ({}, "a JointReplayBuffer cannot be made of its settings: agents must be .*"),
        ({"left": "left"}, "agents/0 is missing"),
        ({"0": 3}, "agents/0 must be a string, got 3"),
        ({"0": "left"}, "schema must be that of rows of 1 agents, got another"),
    ]
    for agents, text in cases:
        with subtests.test(text), pytest.raises(errors.CheckpointError, match=f"^({text})$"):
            Buffer.from_state(state_of() | {"agents": agents})


def test_joint_states_beyond_memory_are_refused() -> None:
    state = state_of()
    state["settings"] = state["settings"] | {"capacity": 2**62}
    with pytest.raises(errors.CheckpointError, match="^a JointReplayBuffer cannot be made of its settings: .*"):
        Buffer.from_state(state)


def test_a_loaded_episode_goes_on_without_its_steps() -> None:
    buffer = Buffer(2, SCHEMAS, agents=AGENTS, streams=2)
    buffer.add(**buffer_test.rows_of(0, 0, ["left", "right"]), stream=0)
    for t in range(3):
        buffer.add(**buffer_test.rows_of(1, t, ["left", "right"]), stream=1)
    loaded = Buffer.from_state(buffer.state_dict())
    for each in (buffer, loaded):
        each.add(**buffer_test.rows_of(0, 1, ["left", "tall"]), stream=0)
        batch = each.read([4])
        assert (batch.episodes.tolist(), batch.start_step.tolist()) == ([0], [1])
        each.check()
    assert plain(loaded.state_dict()) == plain(buffer.state_dict())


def test_flags_that_were_damaged_in_memory_are_found() -> None:
    buffer = zoo.worked(ONE.make)
    flags = buffer._store.storage._columns[joint_rows.FLAGS]
    flags[buffer._store.alive_slots()[0]] = 0
    with pytest.raises(errors.CorruptionError, match=f"^{JOINT}each must have an agent"):
        buffer.check()


# Agents that come late, and journals.


def test_rows_are_kept_when_agents_come_that_have_no_schema_yet(tmp_path: pathlib.Path) -> None:
    late, early = Buffer(5, agents=AGENTS, n_step=2, seed=0), Buffer(5, SCHEMAS, agents=AGENTS, n_step=2, seed=0)
    with relive.Journal(tmp_path / "late") as journal:
        late.attach(journal)
        for t, present in enumerate((["right"], ["right"], ["right", "left"], ["right"], AGENTS, AGENTS, ["left"])):
            rows = buffer_test.rows_of(0, t, present)
            if "tall" in present:
                rows["rewards"]["tall"] = np.float32(0.5)
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
    recovered = relive.recover(tmp_path / "late")
    assert plain(recovered.state_dict()["arrays"]) == plain(late.state_dict()["arrays"])
    zoo.assert_same(recovered, late)
    early.load_state_dict({**late.state_dict(), "settings": early.state_dict()["settings"]})
    assert plain(early.state_dict()) == plain(late.state_dict())
    with pytest.raises(errors.CheckpointError, match="^schema must be .* for agent 'left', got None$"):
        early.load_state_dict({**_of_right(), "settings": early.state_dict()["settings"]})


def _of_right() -> State:
    buffer = Buffer(5, agents=AGENTS, n_step=2)
    buffer.add(**buffer_test.rows_of(0, 0, ["right"]))
    return buffer.state_dict()
