"""What was handed out, dropped, admitted and gathered comes back: other rules, long journals, forged states.

`handing_out_machine_test` has crashes at any moment.
"""

import itertools
import math
import pathlib
import random
import time
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.agents import queue
from relive.episodes import helpers_test
from relive.persistence import checkpointable
from relive.persistence import state as state_lib
from relive.testing import zoo

Buffer = helpers_test.Buffer
live = helpers_test.live
ids = helpers_test.ids


# Other rules.


def test_other_rules_take_over_what_episodes_say(tmp_path: pathlib.Path) -> None:
    buffer = Buffer(groups=relive.Groups(2), admission=relive.Admission(5, 5))
    handed = [live(buffer, group_id="handed", ticket=buffer.admit_nowait()) for _ in range(2)]
    assert len(buffer.next_groups_nowait(1)[0]) == 2
    for group_id in ("large", "large", "small"):
        live(buffer, group_id=group_id, ticket=buffer.admit_nowait())
    live(buffer, group_id="small", status="ABORTED", ticket=buffer.admit_nowait())
    buffer.save(tmp_path / "saved")
    rules: dict[str, Any] = {"groups": relive.Groups(1), "admission": relive.Admission(0, 1)}
    other: Buffer = Buffer.load(tmp_path / "saved", **rules)
    other.check()
    assert [group[0].group_id for group in other.next_groups_nowait(2)] == ["large", "small"]
    assert other.get_drops() == {"aborted": {"a": 1}, "straggler": {"a": 1}}
    with pytest.raises(relive.NotReadyError, match="with 1 episodes admitted"):
        other.admit_nowait()
    with pytest.raises(relive.ArgumentError, match="was handed out or given up$"):
        Buffer.load(tmp_path / "saved", **rules | {"admission": None}).start_episode_nowait("a", group_id="handed")
    assert other.reject(handed) == 2


# Journals.


@pytest.mark.parametrize("segment_bytes", [2_000, 2**26])
@pytest.mark.parametrize("name", ["episodes within limits", "episodes in groups"])
def test_deliveries_are_not_repeated_after_a_crash(name: str, segment_bytes: int, tmp_path: pathlib.Path) -> None:
    for seed in range(12):
        rng, path = random.Random(seed), tmp_path / f"{seed}"
        buffer = zoo.KINDS[name].make()
        with relive.Journal(path, fsync="never", segment_bytes=segment_bytes) as log:
            buffer.attach(log)
            zoo.work(buffer, rng, 200)
            buffer.detach()
        other: Any = relive.recover(path)
        other.check()
        if segment_bytes > 10_000:
            assert other.get_drops() == buffer.get_drops()
            assert other.get_training_bias().produced == buffer.get_training_bias().produced
        assert helpers_test.delivered(other) == helpers_test.delivered(buffer)
        # All that can be given back was delivered, now or before.
        everything = ids(helpers_test.stored(buffer))
        assert other.reject(everything) == buffer.reject(everything)


def test_a_delivery_that_cannot_be_journaled_is_refused(tmp_path: pathlib.Path) -> None:
    buffer = Buffer()
    with relive.Journal(tmp_path / "log", fsync="never") as log:
        buffer.attach(log)
        lived = [live(buffer), live(buffer)]
        log.close()
        calls: list[Any] = [
            lambda: buffer.next_episodes_nowait(1),
            lambda: buffer.next_episodes_nowait(1, accept=lambda episode: False),
            lambda: buffer.reject(lived),
        ]
        for call in calls:
            with pytest.raises(relive.ClosedError, match="cannot be written: it was closed"):
                call()
    buffer.detach()
    assert (ids(buffer.next_episodes_nowait(2)), buffer.get_drops()) == (lived, {})


def test_later_segments_begin_with_all_sums(tmp_path: pathlib.Path) -> None:
    buffer = Buffer(max_episodes=2, groups=relive.Groups(1))
    with relive.Journal(tmp_path / "log", fsync="never", segment_bytes=1000) as log:
        buffer.attach(log)
        for number in range(100):
            live(buffer, group_id=f"{number}")
            buffer.next_groups_nowait(1)
    other: Any = relive.recover(tmp_path / "log")
    known = other.get_training_bias()
    # One may have been open when the oldest segment began: the end of its story is all there is.
    assert known.produced.episodes in (99, 100)
    assert known.trained.episodes in (99, 100)


# Forged ones.

NO_UNITS = "^hand_outs/unacked must be a list of units"
BOTH = "^arrays .* cannot be: what was handed out and what was dropped cannot both have been so$"
NO_DROPS = "^hand_outs/drops must be a list of a reason, a source and a count"
NO_GROUPS = "^hand_outs/groups must be a list of an id and a phase"


def forged(change: Any) -> state_lib.State:
    """The state of a buffer with something of everything, changed."""
    buffer = Buffer(**zoo.GROUPED)
    buffer.set_policy_version(1)
    with pytest.raises(relive.NotReadyError):
        buffer.next_episodes_nowait(1)
    for group_id in ("g", "g", "h", None, None):
        live(buffer, group_id=group_id, ticket=buffer.admit_nowait())
    live(buffer, ticket=buffer.admit_nowait(), status="ABORTED")
    buffer.next_episodes_nowait(1)
    live(buffer, steps=2, ticket=buffer.admit_nowait(), status=None)
    state = buffer.state_dict()
    rest = relive.PlainCodec().decode(state["arrays"]["hand_outs"].tobytes())
    change(state["arrays"], rest)
    if "hand_outs" in state["arrays"] and len(state["arrays"]["hand_outs"]) > 5:
        state["arrays"]["hand_outs"] = np.frombuffer(relive.PlainCodec().encode(rest), np.uint8)
    return state


def setting(path: str, value: Any) -> Any:
    """A change of what is at a path."""

    def change(arrays: Any, rest: Any) -> None:
        *parts, last = path.split("/")
        for part in parts:
            rest = rest[part]
        rest[last] = value

    return change


def turn(place: int, value: int) -> Any:
    def change(arrays: Any, rest: Any) -> None:
        arrays["episode_turn"][place] = value
        arrays["episode_deliveries"][place] = value in (queue.DELIVERED, queue.DELIVERED_UNCOUNTED)

    return change


def array(name: str, value: Any) -> Any:
    def change(arrays: Any, rest: Any) -> None:
        arrays[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (array("hand_outs", np.zeros(3, np.uint8)), "^array hand_outs cannot be decoded: "),
        (array("group_age", np.array([-1.0, 0.0])), "^array group_age must hold finite numbers of at least 0$"),
        (array("group_age", np.array([np.nan, 0.0])), "^array group_age must hold finite numbers of at least 0$"),
        (turn(0, 5), "^array episode_turn must hold numbers up to 4$"),
        (turn(0, 1), "^arrays episode_turn and hand_outs cannot be: episode .* was handed out before its group$"),
        (turn(3, 2), None),
        (turn(3, 3), None),
        (turn(4, 1), BOTH),
        (turn(5, 0), BOTH),
        (turn(5, 1), "^arrays episode_turn and hand_outs cannot be: .* is ABORTED with 1 transitions: it can neither"),
        (array("episode_deliveries", np.full(7, -1)), "^array episode_deliveries must hold integers in .* got -1$"),
        (array("line", np.array([7])), r"^array line must hold integers in \[0, 6\], got 7$"),
        (array("line", np.array([5])), BOTH),
        (array("line", np.array([4, 4])), "^arrays .* cannot be: "),
        (setting("passes", [0]), "hand_outs/passes must be a list of two counts"),
        (setting("passes", [0, -1]), "hand_outs/passes must be a list of two counts"),
        (setting("unacked", [[False, "x", [], [1]]]), NO_UNITS),
        (setting("unacked", [[False, "x", [9], [1]]]), NO_UNITS),
        (setting("unacked", [[False, "x", [0, 0], [1]]]), NO_UNITS),
        (setting("unacked", [[False, "x", [0], [-2]]]), NO_UNITS),
        (setting("unacked", [[False, "x", [0], [1]]]), "x cannot have been handed out without being acknowledged"),
        (setting("unacked", [[False, "x", [3], [1]]]), "x cannot have been handed out without being acknowledged"),
        (setting("unacked", [[True, "g", [0, 1], [1]]]), "g cannot have been handed out without being acknowledged"),
        (
            turn(6, 1),
            "^arrays episode_turn and hand_outs cannot be: .* is IN_PROGRESS with 1 transitions: it can neither",
        ),
        (turn(6, 2), BOTH),
        (setting("has_line", False), BOTH),
        (setting("has_line", 1), "^hand_outs/has_line must be true or false, got 1$"),
        (setting("admitted", -1), "^hand_outs/admitted must be an integer in"),
        (setting("versions", -1), "^hand_outs/versions must be an integer in"),
        (setting("versions", None), None),
        (setting("versions", 1), None),
        (setting("versions", 2), "^hand_outs/versions must be at most the learner's policy version, 1, got 2$"),
        (setting("groups", [["g", "WHOLE"]]), "^array group_age must be of dtype float64 and shape"),
        (setting("groups", [["g", "WHOLE"], ["h", "WHOLE"]]), None),
        (setting("groups", [["g", "WHOLE"], [3, "WHOLE"]]), NO_GROUPS),
        (setting("groups", [["g", "WHOLE"], ["h", "OPEN"]]), NO_GROUPS),
        (setting("groups", [["g", "WHOLE"], ["h", ["WHOLE"]]]), NO_GROUPS),
        (setting("groups", [["g"], ["h"]]), "^hand_outs/groups must be a list of lists of 2, got"),
        (setting("groups", 3), "^hand_outs/groups must be a list of lists of 2, got 3$"),
        (setting("drops", [["", "a", 1]]), NO_DROPS),
        (setting("drops", [[["late"], "a", 1]]), NO_DROPS),
        (setting("drops", [["stale", 3, 1]]), NO_DROPS),
        (setting("drops", [["stale", "a", 0]]), NO_DROPS),
        (setting("drops", [["stale", "a", True]]), NO_DROPS),
        (setting("drops", [["stale", "a", 2**62]]), NO_DROPS),
        (setting("produced/episodes", -1), "^hand_outs/produced/episodes must be an integer in"),
        *[
            (setting("produced/returns", ratio), "^hand_outs/produced/returns must be a list of a numerator and a deno")
            for ratio in (3.0, [3], [math.inf, 1], [1.0, 2], [1, 0], [1, -1], [True, 1], [1 << 4096, 1], [1, 1 << 4096])
        ],
        (setting("produced/returns", [-3, 2]), None),
        (setting("trained/episodes", 1), "^hand_outs/trained must be a part of hand_outs/produced$"),
        (setting("produced/versions", 2**100), None),
        (setting("produced", 3), "^hand_outs/produced must be a mapping, got 3$"),
    ],
)
def test_forged_deliveries_are_refused_or_work(change: Any, message: str | None) -> None:
    state = forged(change)
    buffer = Buffer(**zoo.GROUPED)
    live(buffer, ticket=buffer.admit_nowait())
    before = zoo.plain(buffer.state_dict())
    if message is None:
        buffer.load_state_dict(state)
        zoo.work(buffer, random.Random(0), 100)
        buffer.check()
    else:
        with pytest.raises(errors.CheckpointError, match=message):
            buffer.load_state_dict(state)
        with pytest.raises(errors.CheckpointError, match=message):
            Buffer.from_state(state)
        assert zoo.plain(buffer.state_dict()) == before
        buffer.check()


def test_a_setting_without_default_must_be_there() -> None:
    state = Buffer().state_dict()
    del state["settings"]["max_episodes"]
    with pytest.raises(errors.CheckpointError, match="^settings/max_episodes is missing$"):
        Buffer.from_state(state)
    with pytest.raises(errors.CheckpointError, match="^settings/max_episodes is missing$"):
        Buffer().load_state_dict(state)
    assert isinstance(Buffer(), checkpointable.Journalable)


def test_groups_do_not_age_during_a_recovery(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = Buffer(groups=relive.Groups(2, timeout=60.0))
    with relive.Journal(tmp_path / "log", fsync="never") as log:
        buffer.attach(log)
        for group_id in ("g", "h", "g"):
            live(buffer, group_id=group_id)
    clock = itertools.count(time.monotonic(), 100.0)
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: next(clock))
        other: Any = relive.recover(tmp_path / "log")
    assert other.get_drops() == {}
    assert [len(group) for group in other.next_groups_nowait(1)] == [2]


def test_recovered_groups_have_all_their_time_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = Buffer(groups=relive.Groups(2, timeout=60.0))
    with relive.Journal(tmp_path / "log", fsync="never") as log:
        buffer.attach(log)
        live(buffer, group_id="g")
        buffer.save(tmp_path / "saved")
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 100)
    state = relive.EpisodeReplayBuffer.load(tmp_path / "saved").state_dict()
    assert state["arrays"]["group_age"] < 60
    monkeypatch.setattr(time, "monotonic", lambda: now + 200)
    for checkpoint in (None, tmp_path / "saved"):
        other: Any = relive.recover(tmp_path / "log", checkpoint=checkpoint)
        live(other, group_id="g")
        assert [len(group) for group in other.next_groups_nowait(1)] == [2]
