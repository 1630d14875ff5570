"""What the state of a token buffer is, and states that none can be in."""

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.agents import token_buffer_test
from relive.agents import token_episode_test
from relive.agents import tokens
from relive.episodes import metadata
from relive.testing import zoo

step_of = token_episode_test.step_of
FLAG = relive.Field((), bool)


plain = zoo.plain
TOKENS = zoo.KINDS["tokens"]


def test_a_cleared_buffer_keeps_its_dtype_and_its_keys() -> None:
    buffer = zoo.worked(TOKENS.make, 5)
    appended = buffer.get_stats().appended
    buffer.clear()
    twin = zoo.worked(TOKENS.make, 4, 10)
    twin.load_state_dict(buffer.state_dict())
    steps = [step_of([1], [2], logprobs=np.array([-0.1]))]
    with pytest.raises(errors.SchemaError, match="^logprobs must fit float32"):
        twin.add_episode(steps, agent_id="a")
    fitting = step_of([1], [2], logprobs=np.array([-0.1], np.float32))
    assert twin.add_episode([fitting], agent_id="a").tolist() == [appended]


def changed(path: str, value: Any) -> Any:
    def change(state: dict[str, Any]) -> None:
        *parts, name = path.split("/")
        for part in parts:
            state = state[part]
        state[name] = value(state[name]) if callable(value) else value

    return change


def array(name: str, value: Any) -> Any:
    def change(state: dict[str, Any]) -> None:
        state["arrays"][name] = value(state["arrays"][name])

    return change


def entry(place: int, value: Any) -> Any:
    def put(given: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        given = given.copy()
        given[place] = value
        return given

    return put


def described(value: Any) -> Any:
    """Put other names in the place of those of the first episode."""

    def change(state: dict[str, Any]) -> None:
        content = relive.PlainCodec().encode(value)
        ends = state["arrays"]["episode_end"]
        old = state["arrays"]["episodes"].tobytes()
        state["arrays"]["episodes"] = np.frombuffer(content + old[ends[0] :], np.uint8)
        state["arrays"]["episode_end"] = ends - ends[0] + len(content)

    return change


def named(*changes: Any) -> Any:
    """Change names of the first episode, given by their places."""
    value = ["e", "a", None, "COMPLETED", b"", (None,)]
    for place, name in changes:
        value[place] = name
    return described(tuple(value))


EPISODE = "an episode is one, which cannot be with .*"
COUNTERS = "sequences cannot be: counters must be of a buffer that holds 3 sequences"
SEQUENCES = "sequences cannot be: .*"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (changed("policy_version", -1), r"policy_version must be an integer in \[0, .*"),
        (changed("counters/appended", lambda x: x + 1), COUNTERS),
        (changed("counters/appended", 2), COUNTERS),
        (changed("counters/evicted", lambda x: x + 1), "sequences cannot be: episodes must have the 2 sequences .*"),
        (changed("counters/inexact_episodes", 3), COUNTERS),
        (changed("counters/inexact_episodes", 2), COUNTERS),
        (changed("counters/episodes", 0), COUNTERS),
        (changed("counters/episodes", 3), COUNTERS),
        (changed("counters", {}), "counters/episodes is missing"),
        (changed("sequences", {}), "sequences/log_probability_dtype is missing"),
        (
            changed("sequences/log_probability_dtype", None),
            "sequences cannot be: episodes must have the 0 sequences that are stored",
        ),
        (changed("sequences/log_probability_dtype", "<i4"), "sequences/log_probability_dtype must be one of floats.*"),
        (changed("sequences/log_probability_dtype", ">f8"), "sequences/log_probability_dtype must be one of floats.*"),
        (changed("sequences/log_probability_dtype", "<f8"), "array sequences/values/logprobs must be of .*"),
        (array("sequences/lengths", entry(0, 0)), r"array sequences/lengths must hold integers in \[1, 100\], got 0"),
        (array("sequences/lengths", entry(0, 100)), "sequences/lengths must be .* that sum to at most 100, .*"),
        (array("sequences/lengths", entry(0, 5)), "array sequences/values/tokens must be of .* shape .*"),
        (array("sequences/values/tokens", entry(0, -1)), "sequences cannot be: tokens must be at least 0"),
        (array("sequences/values/loss_mask", lambda x: (x.view(np.uint8) * 2).view(bool)), "sequences cannot be: .*"),
        (array("sequences/values/rewards", entry(0, np.nan)), "sequences cannot be: rewards must be finite"),
        (array("sequences/rows/trained", entry(0, 7)), "sequences cannot be: trained of sequences must be .*"),
        (array("sequences/rows/returns", entry(0, np.nan)), SEQUENCES),
        (
            array("sequences/rows/is_exact", lambda x: (x.view(np.uint8) + 2).view(bool)),
            "array sequences/rows/is_exact must hold the bytes 0 and 1 alone",
        ),
        (array("episode_end", entry(0, 9999)), "array episodes must .*"),
        (array("episode_end", entry(0, 0)), "plain-1 content ends in the middle of a value"),
        (array("episode_end", entry(0, -1)), r"array episode_end must hold integers in \[0, .*"),
        (array("episode_drawn", lambda x: (x.view(np.uint8) + 2).view(bool)), "array episode_drawn must hold .*"),
        (described(None), EPISODE),
        (described(["e", "a", None, "COMPLETED", b"", (None,)]), EPISODE),
        (described(("e", "a", None, "COMPLETED", (None,))), EPISODE),
        (named((0, 3)), EPISODE),
        (named((1, None)), EPISODE),
        (named((2, 3)), EPISODE),
        (named((3, "IN_PROGRESS")), EPISODE),
        (named((3, [])), EPISODE),
        (named((4, None)), EPISODE),
        (named((4, b"N")), "metadata cannot be None"),
        (named((5, ())), EPISODE),
        (named((5, [None])), EPISODE),
        (named((5, ((1, 2, 3, 4),))), EPISODE),
        (named((5, (None, None))), EPISODE),
        (named((5, (None, (1, 2, 3)))), EPISODE),
        (named((5, (None, (1, -2, 3, 4)))), EPISODE),
        (named((5, (None, (1, 2, True, 4)))), EPISODE),
        (named((5, (None, (1, 2, 3, -4)))), EPISODE),
        (named((5, (None, (1, 2, 3, "x")))), EPISODE),
        (named((5, (None, [1, 2, 3, 4]))), EPISODE),
        (named((5, (None, (1, 2, 3, 4)))), "sequences cannot be: episodes must have the 3 sequences that are stored"),
        (array("sequences/rows/returns", entry(0, 7.0)), "sequences cannot be: returns of sequences must be .*"),
        (array("sequences/rows/is_exact", entry(0, False)), "sequences cannot be: is_exact of sequences must be .*"),
        (changed("settings/token_extras", None), "settings/token_extras must be .*"),
        (changed("settings/token_extras", [["x", "<f4"]]), "settings/token_extras must be .*"),
        (changed("settings/token_extras", [["x", "<f4", []]]), "(array|settings/token_extras) .*"),
        (changed("settings/token_extras", [["x", "<f4", [-1]]]), "settings/token_extras .*"),
        (changed("settings/token_extras", [["x", "nothing", []]]), "settings/token_extras .*"),
    ],
)
def test_forged_states_of_tokens_are_refused(change: Any, text: str) -> None:
    buffer = token_buffer_test.filled()
    buffer.set_policy_version(4)
    state = buffer.state_dict()
    change(state)
    with pytest.raises(errors.CheckpointError, match=f"^({text})$"):
        relive.TokenReplayBuffer.from_state(state)
    before = token_buffer_test.snapshot(buffer)
    with pytest.raises(errors.CheckpointError, match=f"^({text})$"):
        buffer.load_state_dict(state)
    assert token_buffer_test.snapshot(buffer) == before


def test_the_largest_version_of_the_learner_is_loaded() -> None:
    buffer = token_buffer_test.filled()
    buffer.set_policy_version(2**62)
    assert relive.TokenReplayBuffer.from_state(buffer.state_dict()).policy_version == 2**62


def test_keys_are_not_used_again_because_a_dtype_is_gone() -> None:
    state = token_buffer_test.filled().state_dict()
    state["sequences"]["log_probability_dtype"] = None
    state["counters"]["evicted"] = 3
    for name in ("episodes", "episode_end", "episode_drawn"):
        state["arrays"][name] = state["arrays"][name][:0]
    with pytest.raises(
        errors.CheckpointError, match="^sequences cannot be: counters must be of a buffer that holds 0 sequences$"
    ):
        relive.TokenReplayBuffer.from_state(state)


@pytest.mark.parametrize(
    "value", [("e", "a", None, "ABORTED", b"", (None,)), ("\ud800", "", "g", "TRUNCATED", b"d\0", (None,))]
)
def test_possible_names_of_episodes_are_taken(value: Any) -> None:
    buffer = token_buffer_test.filled()
    state = buffer.state_dict()
    described(value)(state)
    buffer.load_state_dict(state)
    batch = buffer.read([0])
    found = (
        batch.episode_ids[0],
        batch.agent_ids[0],
        batch.group_ids[0],
        buffer._store.owners[0].status,
        buffer._store.owners[0].encoded_metadata,
        (batch.mismatches[0],),
    )
    assert found == value


def test_extras_are_saved_with_their_fields(tmp_path: pathlib.Path) -> None:
    buffer = token_buffer_test.with_extras()
    buffer.save(tmp_path / "tokens")
    loaded = relive.TokenReplayBuffer.load(tmp_path / "tokens")
    assert (loaded.token_extras, loaded.sequence_extras) == (buffer.token_extras, buffer.sequence_extras)
    assert plain(loaded.state_dict()) == plain(buffer.state_dict())
    with pytest.raises(errors.CheckpointError, match="^settings/token_extras must be .*, as in this object, got "):
        relive.TokenReplayBuffer(100).load_state_dict(buffer.state_dict())
    state = buffer.state_dict()
    state["arrays"]["extras/values/advantages"] = state["arrays"]["extras/values/advantages"][1:]
    with pytest.raises(errors.CheckpointError, match="^array extras/values/advantages must be of dtype float32 and "):
        loaded.load_state_dict(state)


def test_two_episodes_of_one_id_are_refused() -> None:
    buffer = token_buffer_test.filled()
    state = buffer.state_dict()
    named((0, buffer.read([1]).episode_ids[0]))(state)
    with pytest.raises(errors.CheckpointError, match="^sequences cannot be: episodes must have ids of their own$"):
        buffer.load_state_dict(state)


def test_a_bool_extra_must_be_true_or_false() -> None:
    buffer = relive.TokenReplayBuffer(100, token_extras={"flag": FLAG}, sequence_extras={"other": FLAG}, seed=0)
    buffer.add_episode([step_of([1], [2])], agent_id="a", flag=[[True]], other=True)
    for name in ("extras/values/flag", "sequences/rows/other"):
        state = buffer.state_dict()
        assert state["arrays"][name].any()
        state["arrays"][name].view(np.uint8)[...] = 2
        with pytest.raises(errors.CheckpointError, match=f"^array {name} must hold the bytes 0 and 1 alone$"):
            buffer.load_state_dict(state)


def test_a_buffer_that_does_not_fit_in_memory_is_refused() -> None:
    state = token_buffer_test.filled().state_dict()
    state["settings"]["max_tokens"] = 2**60
    rule = "^a TokenReplayBuffer cannot be made of its settings: max_tokens must fit in memory, got "
    with pytest.raises(errors.CheckpointError, match=rule):
        relive.TokenReplayBuffer.from_state(state)


def test_tokens_are_read_from_the_page_of_the_format(tmp_path: pathlib.Path) -> None:
    """As `docs/format.md` has it."""
    buffer = zoo.worked(TOKENS.make, 5)
    buffer.save(tmp_path / "tokens")
    with np.load(tmp_path / "tokens") as members:
        state = json.loads(members["manifest.json"])
        arrays = {name: members[each["file"]] for name, each in state["arrays"].items()}
    stats = buffer.get_stats()
    assert state["class"] == "TokenReplayBuffer"
    assert state["counters"]["appended"] == stats.appended
    assert state["sequences"] == {"log_probability_dtype": "<f4"}
    lengths = arrays["sequences/lengths"]
    first_key = state["counters"]["evicted"] + state["counters"]["cleared"]
    batch = buffer.read(first_key + np.arange(len(lengths)))
    packed = batch.packed()
    assert packed["cu_seqlens"][1:].tolist() == np.cumsum(lengths).tolist()
    for name in tokens.FIELDS:
        assert arrays[f"sequences/values/{name}"].tolist() == packed[name].tolist()
    assert arrays["sequences/rows/returns"].tolist() == batch.returns.tolist()
    assert arrays["sequences/rows/is_exact"].tolist() == batch.is_exact.tolist()
    assert arrays["sequences/rows/trained"].tolist() == batch.loss_mask.sum(axis=1).tolist()
    content, begin, row = arrays["episodes"].tobytes(), 0, 0
    for end in arrays["episode_end"].tolist():
        episode_id, agent_id, group_id, status, known, mismatches = relive.PlainCodec().decode(content[begin:end])
        begin = end
        for mismatch in mismatches:
            names = batch.episode_ids[row], batch.agent_ids[row], batch.group_ids[row]
            assert (*names, buffer._store.find(episode_id).status) == (episode_id, agent_id, group_id, status)
            found = batch.mismatches[row]
            assert mismatch == (found and (found.step, found.position, found.expected, found.found))
            assert metadata.encoded(batch.metadata[row]) == known
            row += 1
    assert row == len(lengths)
