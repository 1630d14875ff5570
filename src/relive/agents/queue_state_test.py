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
from relive.episodes import helpers_test
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
    with pytest.raises(relive.NotReadyError, match="with 2 episodes admitted"):
        other.admit_nowait()
    with pytest.raises(relive.ArgumentError, match="was handed out or given up$"):
        Buffer.load(tmp_path / "saved", **rules | {"admission": None}).start_episode_nowait("a", group_id="handed")
    assert other.reject(handed) == 2


def test_rules_are_given_to_a_state_without_a_queue() -> None:
    buffer = Buffer()
    lived = [live(buffer, group_id=group_id) for group_id in "ggh"]
    live(buffer, status="ABORTED")
    other = Buffer.from_state(buffer.state_dict(), groups=relive.Groups(2))
    other.check()
    assert ids(other.next_groups_nowait(1)[0]) == lived[:2]
    assert other.get_drops() == {}


@pytest.mark.parametrize("size", [1, 2, 3, None])
def test_a_journal_is_replayed_by_its_own_rule_for_groups(tmp_path: pathlib.Path, size: int | None) -> None:
    """What comes of it is loaded by the other one, and the journal is not continued by that."""
    buffer = Buffer(groups=relive.Groups(2), redeliver=True)
    with relive.Journal(tmp_path / "log") as log:
        buffer.attach(log)
        lived = [live(buffer, group_id=group_id) for group_id in "gghhikk"]
        buffer.next_groups_nowait(1)
        buffer.reject(lived[3:4])
        buffer.detach()
    groups = None if size is None else relive.Groups(size)
    expected = Buffer.from_state(buffer.state_dict(), groups=groups)
    recovered = relive.recover(tmp_path / "log", groups=groups)
    recovered.check()
    assert ids(helpers_test.stored(recovered)) == lived
    assert recovered.get_drops() == expected.get_drops()
    for name in ("unit_state", "unit_version", "unit_size", "unit_episode"):
        assert recovered.state_dict()["arrays"][name].tolist() == expected.state_dict()["arrays"][name].tolist()
    with relive.Journal(tmp_path / "log") as log:
        if size == 2:
            recovered.attach(log)
        else:
            with pytest.raises(
                relive.ArgumentError, match=r"^journal must hold what the buffer does, got one of \d+ rec"
            ):
                recovered.attach(log)
            with relive.Journal(tmp_path / "other") as other:
                recovered.attach(other)
            assert repr(relive.recover(tmp_path / "other").groups) == repr(groups)


def test_a_line_of_single_episodes_goes_on_by_other_rules() -> None:
    buffer = Buffer()
    lived = [live(buffer) for _ in range(3)]
    assert ids(buffer.next_episodes_nowait(1)) == lived[:1]
    buffer.reject(lived[1:2])
    other = Buffer.from_state(buffer.state_dict(), groups=relive.Groups(2))
    other.check()
    assert ids(other.next_episodes_nowait(1)) == lived[2:]
    assert other.reject(lived) == 2


# Journals.


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

CANNOT = "^arrays of units and learner cannot be: "
NO_DROPS = "^learner/queue/drops must be a list of a reason, a source and a count"
NO_KEYS = "^learner/queue/keys must be a list of the ids of groups, each once"
NOT_SOUND = CANNOT + "group 'g' cannot be {} with 2 episodes, of which 0 run and {} wait$"
NOT_OUT = CANNOT + ".* is IN_PROGRESS with 1 transitions: it can neither"
GATHERING, COMPLETE, DELIVERED, CLOSED, EVICTED = range(5)


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
    rest = relive.PlainCodec().decode(state["arrays"]["learner"].tobytes())
    change(state["arrays"], rest)
    if len(state["arrays"]["learner"]) > 5:
        state["arrays"]["learner"] = np.frombuffer(relive.PlainCodec().encode(rest), np.uint8)
    return state


def setting(path: str, value: Any) -> Any:
    """A change of what is at a path."""

    def change(arrays: Any, rest: Any) -> None:
        *parts, last = path.split("/")
        for part in parts:
            rest = rest[part]
        rest[last] = value

    return change


def unit(place: int, name: str, value: int) -> Any:
    """A change of a unit: h gathers, g is complete, then come a single one that waits and one that was delivered."""

    def change(arrays: Any, rest: Any) -> None:
        arrays[f"unit_{name}"][place] = value

    return change


def array(name: str, value: Any) -> Any:
    def change(arrays: Any, rest: Any) -> None:
        arrays[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (array("learner", np.zeros(3, np.uint8)), "^array learner cannot be decoded: "),
        (unit(0, "age", -1), "^array unit_age must hold finite numbers of at least 0$"),
        (array("unit_age", np.array([np.nan, 0.0, 0.0, 0.0])), "^array unit_age must hold finite numbers of at least"),
        (array("unit_age", np.zeros(3)), r"^array unit_age must be of dtype float64 and shape \(4\)"),
        (unit(0, "state", 5), "^array unit_state must hold numbers below 5$"),
        (unit(1, "state", GATHERING), NOT_SOUND.format("GATHERING", 2)),
        (unit(1, "state", DELIVERED), None),
        (unit(1, "state", CLOSED), NOT_SOUND.format("CLOSED", 2)),
        (unit(1, "state", EVICTED), NOT_SOUND.format("EVICTED", 2)),
        (unit(0, "state", COMPLETE), None),
        (unit(2, "state", GATHERING), CANNOT + "single episodes must wait, or have been handed out, by their ids$"),
        (unit(2, "state", CLOSED), CANNOT + "single episodes must wait, or have been handed out, by their ids$"),
        (unit(2, "state", DELIVERED), None),
        (unit(3, "state", COMPLETE), None),
        (array("unit_unplaced", np.ones(7, bool)), None),
        (array("unit_unplaced", np.ones(6, bool)), r"^array unit_unplaced must be of dtype bool and shape \(7\)"),
        (unit(0, "version", 1), CANNOT + ".* cannot wait to be acknowledged, as it is GATHERING$"),
        (unit(2, "version", 1), None),
        (unit(3, "version", 1), None),
        (unit(3, "version", -3), r"^array unit_version must hold integers in \[-2, "),
        (unit(0, "size", -1), "^array unit_size must hold integers in"),
        (unit(0, "size", 8), "^array unit_size must hold integers in"),
        (unit(1, "size", 1), r"^array unit_episode must be of dtype int64 and shape \(4\)"),
        (unit(0, "episode", 7), r"^array unit_episode must hold integers in \[0, 6\], got 7$"),
        (unit(0, "episode", 6), NOT_OUT),
        (unit(0, "episode", 5), CANNOT + ".* is ABORTED with 1 transitions: it can neither"),
        (unit(0, "episode", 1), CANNOT + "an episode must wait, or have been handed out, in its own unit, and once$"),
        (unit(0, "episode", 3), CANNOT + "an episode must wait, or have been handed out, in its own unit, and once$"),
        (unit(4, "episode", 6), NOT_OUT),
        (array("unit_size", np.array([1, 1, 2, 1])), "^array unit_size must be 1 for a single episode, got 2$"),
        (
            setting("queue/has_line", False),
            CANNOT + "single episodes must wait, or have been handed out, by their ids$",
        ),
        (setting("queue/has_line", 1), "^learner/queue/has_line must be true or false, got 1$"),
        (setting("queue/admitted", -1), "^learner/queue/admitted must be an integer in"),
        (setting("queue/versions", -1), "^learner/queue/versions must be an integer in"),
        (setting("queue/versions", None), None),
        (setting("queue/versions", 1), None),
        (
            setting("queue/versions", 2),
            "^learner/queue/versions must be at most the learner's policy version, 1, got 2$",
        ),
        (setting("queue/keys", ["g", "g"]), NO_KEYS),
        (setting("queue/keys", ["g", 3]), NO_KEYS),
        (setting("queue/keys", 3), NO_KEYS),
        (setting("queue/keys", list("ghijk")), NO_KEYS),
        (setting("queue/keys", ["h", "x"]), CANNOT + "group 'g' of a stored episode is missing$"),
        (setting("queue/keys", ["h"]), "^array unit_size must be 1 for a single episode, got 2$"),
        (setting("queue", None), r"^array unit_state must be of dtype uint8 and shape \(0\), got"),
        (setting("queue", 3), "^learner/queue must be a mapping, got 3$"),
        (setting("queue/drops", 3), NO_DROPS),
        (setting("queue/drops", [3]), NO_DROPS),
        (setting("queue/drops", [["", "a", 1]]), NO_DROPS),
        (setting("queue/drops", [[["late"], "a", 1]]), NO_DROPS),
        (setting("queue/drops", [["stale", 3, 1]]), NO_DROPS),
        (setting("queue/drops", [["stale", "a", 0]]), NO_DROPS),
        (setting("queue/drops", [["stale", "a", True]]), NO_DROPS),
        (setting("queue/drops", [["stale", "a", 2**62]]), NO_DROPS),
        (setting("produced/episodes", -1), "^learner/produced/episodes must be an integer in"),
        *[
            (setting("produced/returns", ratio), "^learner/produced/returns must be a list of a numerator and a deno")
            for ratio in (3.0, [3], [math.inf, 1], [1.0, 2], [1, 0], [1, -1], [True, 1], [1 << 4096, 1], [1, 1 << 4096])
        ],
        (setting("produced/returns", [-3, 2]), None),
        (setting("trained/episodes", 1), "^learner/trained must be a part of learner/produced$"),
        (setting("produced/versions", 2**100), None),
        (setting("produced", 3), "^learner/produced must be a mapping, got 3$"),
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


def test_groups_without_a_rule_are_refused() -> None:
    buffer = Buffer()
    with pytest.raises(relive.NotReadyError):
        buffer.next_episodes_nowait(1)
    state = buffer.state_dict()
    rest = relive.PlainCodec().decode(state["arrays"]["learner"].tobytes())
    rest["queue"]["keys"] = ["g"]
    state["arrays"]["learner"] = np.frombuffer(relive.PlainCodec().encode(rest), np.uint8)
    for name, array in (("state", np.uint8), ("version", np.int64), ("age", np.float64), ("size", np.int64)):
        state["arrays"][f"unit_{name}"] = np.zeros(1, array)
    with pytest.raises(errors.CheckpointError, match="^arrays of .* cannot be: group 'g' is there without a rule$"):
        Buffer.from_state(state)


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
    assert state["arrays"]["unit_age"] < 60
    monkeypatch.setattr(time, "monotonic", lambda: now + 200)
    for checkpoint in (None, tmp_path / "saved"):
        other: Any = relive.recover(tmp_path / "log", checkpoint=checkpoint)
        live(other, group_id="g")
        assert [len(group) for group in other.next_groups_nowait(1)] == [2]
