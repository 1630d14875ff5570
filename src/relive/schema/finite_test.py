"""Schemas with `check_finite`, compared with numpy's word on everything that was given."""

import re
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors

BAD = [np.nan, np.inf, -np.inf]
FIELDS: dict[str, Any] = {
    "observation": {"arm": relive.Field(2, "f4"), "at": relive.Field((), "i8"), "eye": relive.Field((2, 2), "f2")},
    "action": relive.Field((), "f8"),
    "extras": {"name": relive.Field((), "U3"), "wave": relive.Field(1, "c8")},
}
SCHEMA, UNCHECKED = relive.Schema(**FIELDS, check_finite=True), relive.Schema(**FIELDS)
LEADS: dict[str, tuple[int, ...]] = {
    "add": (),
    "extend": (2,),
    "add_steps": (3,),
    "add_episode": (3,),
    "add_episodes": (3,),
}


def step(call: str) -> dict[str, Any]:
    """Return finite arguments of a call by path."""
    lead, is_run = LEADS[call], call in ("add_steps", "add_episode")
    seen = (lead[0] + 1,) if is_run else lead
    first, last = ("observations", None) if is_run else ("observation", "next_observation")
    given: dict[str, Any] = {"action": np.ones(lead), "reward": np.zeros(lead)}
    given |= {"name": np.full(lead, "abc"), "wave": np.ones((*lead, 1), "c8")}
    for name in (first, last) if last else (first,):
        arm, eye = np.ones((*seen, 2), "f4"), np.ones((*seen, 2, 2), "f2")
        given |= {f"{name}/arm": arm, f"{name}/at": np.ones(seen, "i8"), f"{name}/eye": eye}
    return given


def write(buffer: Any, call: str, given: dict[str, Any]) -> None:
    """Make a call with arguments by path."""
    named: dict[str, Any] = {}
    for path, value in given.items():
        name, _, key = path.partition("/")
        if key:
            named.setdefault(name, {})[key] = value
        else:
            named[name] = value
    if call.startswith("add_"):
        plural = {name: f"{name}s" for name in ("observation", "action", "reward", "next_observation")}
        named = {plural.get(name, name): value for name, value in named.items()}
        named["stream"] = 0
    if call == "add_episodes":
        named["episodes"] = np.zeros(3)
    if call == "add":
        named["stream"] = 1
    if call == "add_episode":
        named["terminated"] = True
    getattr(buffer, call)(**named)


@hypothesis.given(call=st.sampled_from(sorted(LEADS)), data=st.data())
def test_a_step_is_stored_exactly_if_numpy_finds_it_finite(call: str, data: st.DataObject) -> None:
    given = step(call)
    is_float = [path for path, value in given.items() if path != "reward" and value.dtype.kind in "fc"]
    for path in data.draw(st.lists(st.sampled_from(is_float), max_size=2)):
        flat = given[path].reshape(-1)
        flat[data.draw(st.integers(0, flat.size - 1))] = data.draw(st.sampled_from(BAD))
    if data.draw(st.booleans()):
        given["action"] = given["action"].tolist()
    buffer, unchecked = (relive.RingReplayBuffer(9, each, streams=2, seed=0) for each in (SCHEMA, UNCHECKED))
    write(unchecked, call, given)
    stored = np.prod(LEADS[call], dtype=int)
    assert len(unchecked) == stored
    wrong = [path for path in given if path not in ("name", "reward") and not np.isfinite(given[path]).all()]
    if not wrong:
        write(buffer, call, given)
        assert len(buffer) == stored
        return
    with pytest.raises(errors.SchemaError, match=r" must be finite, got .*(nan|inf)") as caught:
        write(buffer, call, given)
    said = str(caught.value)
    names = {{"wave": "extras/wave"}.get(each, each): np.asarray(given[each]) for each in wrong}
    name = said.split(" must")[0]
    assert name in names
    place = re.search(r" at \[(.*)\]$", said)
    assert not np.isfinite(names[name][tuple(map(int, place[1].split(","))) if place else ()])
    assert (len(buffer), buffer.appended) == (0, 0)
    buffer.check()


def test_the_field_and_the_place_are_named(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [
        ({"observation": [0.0, np.nan]}, "observation must be finite, got nan at [1]"),
        ({"observation": np.array([-np.inf, 0], "f4")}, "observation must be finite, got -inf at [0]"),
        ({"observation": [-np.inf, np.nan]}, "observation must be finite, got -inf at [0]"),
        ({"next_observation": [np.inf, 0.0]}, "next_observation must be finite, got inf at [0]"),
        ({"action": np.nan}, "action must be finite, got nan"),
        ({"action": np.float64("inf")}, "action must be finite, got inf"),
        ({"logp": -np.inf}, "extras/logp must be finite, got -inf"),
    ]
    for given, message in rows:
        with subtests.test(message=message):
            zeros: dict[str, Any] = {
                "observation": [0.0, 0.0], "action": 0.0, "reward": 0.0, "next_observation": [0.0, 0.0], "logp": 0.0,
            }  # fmt: skip
            fields: dict[str, Any] = {"check_finite": True, "extras": {"logp": 0.0}}
            schema = relive.Schema.from_example(np.zeros(2, "f4"), 0.0, **fields)
            buffer = relive.RingReplayBuffer(9, schema)
            with pytest.raises(errors.SchemaError, match=f"^{re.escape(message)}$"):
                buffer.add(**zeros | given)
            assert len(buffer) == 0
            buffer.add(**zeros)
            assert len(buffer) == 1


@pytest.mark.parametrize("call", LEADS)
@pytest.mark.parametrize("schema", [SCHEMA, UNCHECKED])
def test_rewards_are_checked_alike_by_every_schema(schema: relive.Schema, call: str) -> None:
    buffer = relive.RingReplayBuffer(9, schema, streams=2)
    lead = LEADS[call]
    rewards = np.append(np.zeros(lead)[:-1], np.nan) if lead else np.nan
    place = rf" at \[{lead[0] - 1}\]" if lead else ""
    with pytest.raises(errors.ArgumentError, match=f"^reward must be finite, got nan{place}$") as caught:
        write(buffer, call, step(call) | {"reward": rewards})
    assert type(caught.value) is errors.ArgumentError


def test_a_checked_schema_is_another_one_and_says_so() -> None:
    assert SCHEMA != UNCHECKED
    assert (SCHEMA.check_finite, UNCHECKED.check_finite) == (True, False)
    assert repr(SCHEMA) == f"{repr(UNCHECKED)[:-1]}, check_finite=True)"
    with pytest.raises(errors.ArgumentTypeError, match=r"^check_finite must be True or False, got 'yes'$"):
        relive.Schema(**FIELDS, check_finite="yes")  # type: ignore[arg-type]


def test_a_saved_buffer_checks_as_before(tmp_path: Any) -> None:
    buffer = relive.RingReplayBuffer(9, SCHEMA, streams=2)
    write(buffer, "extend", step("extend"))
    buffer.save(tmp_path / "buffer")
    loaded = relive.RingReplayBuffer.load(tmp_path / "buffer")
    assert loaded.schema == SCHEMA
    with pytest.raises(errors.CheckpointError, match="schema"):
        relive.RingReplayBuffer(9, UNCHECKED, streams=2).load_state_dict(buffer.state_dict())


def test_an_invalid_description_of_checks_is_refused() -> None:
    for wrong in [{"check_finite": False}, {"check_finite": 1}, {"more": 0}]:
        said = SCHEMA._description()
        assert relive.Schema._from_description(said) == SCHEMA
        with pytest.raises(errors.CheckpointError, match=r"^schema must be a list of a path, a dtype and a shape"):
            relive.Schema._from_description(said | wrong)


def test_agents_of_a_joint_buffer_are_checked() -> None:
    own = relive.Schema(relive.Field(2, "f4"), relive.Field((), "i8"), check_finite=True)
    buffer = relive.JointReplayBuffer(9, {"a": own}, agents=["a", "b"])

    def add(of_b: float, **more: Any) -> None:
        seen = {"a": np.zeros(2, "f4"), "b": np.array([0, of_b])}
        buffer.add(seen, {"a": 0, "b": 1}, {"a": 0.0, "b": 0.0}, seen | more)

    # Agent b, whose schema is inferred, is checked as the other one is.
    with pytest.raises(errors.SchemaError, match=r"^agent 'b': observation must be finite, got nan at \[1\]$"):
        add(np.nan)
    with pytest.raises(errors.SchemaError, match=r"^agent 'a': next_observation must be finite, got inf at \[0\]$"):
        add(0.0, a=np.array([np.inf, 0], "f4"))
    assert len(buffer) == 0
    add(0.0)
    again = relive.JointReplayBuffer.from_state(buffer.state_dict())
    assert again.schemas == buffer.schemas
    assert all(schema.check_finite for schema in again.schemas.values())


def test_agents_agree_on_what_is_checked() -> None:
    fields = relive.Field(2, "f4"), relive.Field((), "i8")
    schemas = {"a": relive.Schema(*fields, check_finite=True), "b": relive.Schema(*fields)}
    with pytest.raises(errors.ArgumentError, match=r"^schemas must agree in check_finite, got True and False$"):
        relive.JointReplayBuffer(9, schemas, agents=["a", "b"])


# Sizes


@pytest.mark.parametrize("capacity", [1, 7, 1000])
@pytest.mark.parametrize("schema", [SCHEMA, relive.Schema(relive.Field((84, 84), "u1"), relive.Field(0, "f4"))])
def test_bytes_for_a_capacity_are_those_allocated(schema: relive.Schema, capacity: int) -> None:
    made: list[int] = []

    def allocate(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        made.append(np.zeros(shape, dtype).nbytes)
        return np.zeros(shape, dtype)

    storage = relive.ColumnStorage(schema, capacity, allocate=allocate)
    assert schema.nbytes_for(capacity) == sum(made) == storage.nbytes
    buffer = relive.RingReplayBuffer(capacity, storage=storage)
    assert schema.nbytes_for(capacity) <= buffer.get_stats().nbytes <= schema.nbytes_for(capacity) + 130 * capacity


def test_bytes_of_priorities_count() -> None:
    """In statistics exactly, before and after the first draw; by `nbytes_for` nearly."""
    buffers = [kind(10_000, SCHEMA, seed=0) for kind in (relive.RingReplayBuffer, relive.PrioritizedReplayBuffer)]
    plain, prioritized = (buffer.get_stats().nbytes for buffer in buffers)
    assert prioritized - plain > 8 * 10_000 + 8 * (10_000 + 1_250), "priorities, weights and a level of sums"
    more = SCHEMA.nbytes_for(10_000, prioritized=True) - SCHEMA.nbytes_for(10_000)
    assert prioritized - plain == pytest.approx(more, rel=0.15)


def test_a_capacity_in_bytes_is_checked() -> None:
    with pytest.raises(errors.ArgumentError, match=r"^capacity must be at least 1, got 0$"):
        SCHEMA.nbytes_for(0)
