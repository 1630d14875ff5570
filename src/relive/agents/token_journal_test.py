"""Tests of the journal of a token buffer: what is recovered after a crash, and records that are refused."""

import copy
import pathlib
import random
import shutil
from typing import Any

import numpy as np
import pytest

import relive
from relive import errors
from relive.agents import queue_journal
from relive.agents import token_episode_test
from relive.agents import token_journal
from relive.persistence import journal_reader
from relive.persistence import recover_test
from relive.testing import zoo

step_of = token_episode_test.step_of
NUMBER = relive.Field((), float)


def new() -> relive.TokenReplayBuffer:
    return relive.TokenReplayBuffer(
        150, token_extras={"advantages": NUMBER}, sequence_extras={"weight": NUMBER}, seed=0
    )


def test_segments_are_deleted_with_their_tokens(tmp_path: pathlib.Path) -> None:
    rng, buffer = random.Random(1), zoo.KINDS["tokens with extras"].make()
    with relive.Journal(tmp_path / "log", fsync="never", segment_bytes=4000) as journal:
        buffer.attach(journal)
        for number in range(60):
            zoo.work(buffer, rng, 10)
            assert len(recover_test.segments(tmp_path / "log")) < 9
            if number % 12 == 0:
                recovered: Any = relive.recover(shutil.copytree(tmp_path / "log", tmp_path / f"copy {number}"))
                recovered.check()
                assert recover_test.content(recovered) == recover_test.content(buffer)
    assert not (tmp_path / "log" / journal_reader.segment_name(0)).exists()


def test_a_segment_may_begin_before_the_first_episode(tmp_path: pathlib.Path) -> None:
    buffer = new()
    with relive.Journal(tmp_path / "log", segment_bytes=1) as journal:
        buffer.attach(journal)
        for version in range(200):
            buffer.set_policy_version(version)
        buffer.add_episode([step_of([1], [2])], agent_id="a")
        with pytest.raises(errors.ArgumentError, match="^a buffer that writes to a journal cannot be cop"):
            copy.copy(buffer)
    assert not (tmp_path / "log" / journal_reader.segment_name(0)).exists()
    assert recover_test.content(relive.recover(tmp_path / "log")) == recover_test.content(buffer)


def _ask(buffer: Any) -> None:
    buffer.next_episodes_nowait(1)


def _reject(buffer: Any) -> None:
    assert buffer.reject([next(iter(buffer._store.finished)).episode_id]) == 1


@pytest.mark.parametrize(("ask", "kind"), [(_ask, queue_journal.DELIVER), (_reject, queue_journal.REJECT)])
def test_the_line_begins_though_what_was_asked_for_first_is_gone(ask: Any, kind: int, tmp_path: pathlib.Path) -> None:
    buffer: Any = zoo.KINDS["tokens"].make()
    with relive.Journal(tmp_path / "log", segment_bytes=2000) as journal:
        buffer.attach(journal)
        while len(recover_test.segments(tmp_path / "log")) < 2:
            buffer.add_episode([step_of([1], [2])], agent_id="a")
        ask(buffer)
        while (tmp_path / "log" / journal_reader.segment_name(0)).exists():
            buffer.add_episode([step_of([1], [2])], agent_id="a")
    assert kind in {record.kind for record in journal_reader.records(tmp_path / "log")}
    recovered: Any = relive.recover(tmp_path / "log")
    assert recover_test.content(recovered) == recover_test.content(buffer)
    assert [len(each._queue.ledger().line) for each in (recovered, buffer)] == [buffer._queue.ledger().num_waiting] * 2


ONE = np.ones(1, np.int64)
NAMES = ("e", "a", None, "COMPLETED", b"", (None,))


def added(
    names: Any = NAMES,
    lengths: Any = ONE + 1,
    weight: Any = (0.0,),
    advantages: Any = (0.0, 0.0),
    shared: tuple[int, int] = (-1, 0),
    first_key: int = 0,
    **changes: Any,
) -> tuple[int, Any]:
    """Return the record of an episode of two tokens."""
    columns: dict[str, Any] = {
        "tokens": np.array([1, 2], np.int32),
        "loss_mask": np.array([False, True]),
        "logprobs": np.array([0.0, -0.5]),
        "policy_versions": np.array([-1, 0]),
        "rewards": np.array([0.0, 1.0]),
        "steps": np.zeros(2, np.int32),
    }
    sizes = np.array([lengths, *[np.full_like(lengths, each) for each in shared]])
    extras = {"advantages": np.array(advantages)}, {"weight": np.array(weight)}
    return token_journal.ADD, (names, sizes, columns | changes, *extras, first_key)


def of_zeros(episode_id: str, count: int) -> tuple[int, Any]:
    """Return the record of an episode of so many tokens."""
    columns: Any = {name: np.zeros(count, each.dtype) for name, each in added()[1][2].items()}
    return added(names=(episode_id, *NAMES[1:]), lengths=ONE * count, advantages=np.zeros(count), **columns)


def updated(keys: Any = ONE - 1, lengths: Any = ONE + 1, stale: Any = 0, **values: Any) -> tuple[int, Any]:
    return token_journal.UPDATE, (keys, lengths, values, stale)


def written(path: pathlib.Path, *records: tuple[int, Any]) -> Any:
    """Return what is recovered from a journal of an empty buffer, and those records."""
    buffer = new()
    with relive.Journal(path, fsync="never") as journal:
        buffer.attach(journal)
        for kind, value in records:
            journal._append(kind, value if isinstance(value, bytes) else relive.PlainCodec().encode(value))
    return relive.recover(path)


def test_records_of_tokens_are_as_documented(tmp_path: pathlib.Path) -> None:
    """As `docs/format.md` has them."""
    values = {"weight": np.array([3.0]), "advantages": np.array([1.0, 2.0])}
    buffer = written(
        tmp_path,
        added(),
        updated(stale=4, **values),
        (queue_journal.LEARN, (7,)),
        (queue_journal.DELIVER, (True, ["e"], [], "")),
    )
    batch = buffer.read([0])
    assert (batch.tokens.tolist(), batch.extras["advantages"].tolist()) == ([[1, 2]], [[1.0, 2.0]])
    assert (batch.extras["weight"].tolist(), buffer.get_stats().stale_keys, buffer.policy_version) == ([3.0], 4, 7)
    assert [unit.is_delivered for unit in buffer._queue.ledger().all_units()] == [True]
    kinds = [record.kind for record in journal_reader.records(tmp_path)]
    assert kinds == [0, 1, 2, 9, 11]


CANNOT = "which cannot be with "


@pytest.mark.parametrize(
    ("records", "text"),
    [
        ([(4, None)], "record 1 is of kind 4 with 1 bytes, which is not valid here$"),
        ([(1, None)], f"calls add, {CANNOT}None$"),
        ([(1, (1, 2, 3, 4, 5, 6))], f"calls add, {CANNOT}1$"),
        ([(2, (ONE, ONE, {}, True))], f"calls update, {CANNOT}True$"),
        ([(3, (-1,))], f"calls clear, {CANNOT}-1$"),
        ([(3, 1)], f"calls clear, {CANNOT}1$"),
        ([(3, (1,))], "counts 1 sequences as evicted, which cannot be$"),
        ([(9, b"")], "ends in the middle of a value$"),
        ([(9, 3)], f"calls learn, {CANNOT}3$"),
        ([(9, (2**62 + 1,))], f"calls learn, {CANNOT}{2**62 + 1}$"),
        ([(9, (3,)), (9, (2,))], "sets the learner's policy version to 2, which is"),
        ([(11, ([], []))], rf"calls deliver, {CANNOT}\(\[\], \[\]\)$"),
        ([(12, (-1, []))], f"calls acknowledge, {CANNOT}-1$"),
        ([(12, (1, ["e", 1]))], f"calls acknowledge, {CANNOT}"),
        ([(14, ([["e"]], [["f"]]))], f"calls put_back, {CANNOT}"),
        ([(14, (["e"],))], rf"calls put_back, {CANNOT}\['e'\]$"),
        ([added(), (11, (True, ["e"], [], "")), (14, ([["e", "e"]],))], r"puts \['e', 'e'\] back, which cannot be$"),
        ([added(), (11, (True, ["e"], [], "")), (14, ([["e", "f"]],))], r"puts \['e', 'f'\] back, which cannot be$"),
        ([(11, (1, ["e"], [], ""))], f"calls deliver, {CANNOT}1$"),
        ([(15, (["e"],))], f"calls reject, {CANNOT}"),
        ([(15, (True, ["e"], ""))], "rejects no episodes, or without a reason$"),
        ([(15, (True, [], "ugly"))], "rejects no episodes, or without a reason$"),
        ([(13, ("x",))], f"calls restart, {CANNOT}"),
        ([added(names=None)], f"calls add, {CANNOT}None$"),
        ([added(names=("e",))], rf"an episode is one, {CANNOT}\('e',\)$"),
        ([added(), added()], "adds an invalid episode$"),
        ([added(lengths=ONE - 1)], "adds an invalid episode$"),
        ([added(lengths=np.array([1, 1]))], "adds an invalid episode$"),
        ([added(lengths=np.array([2.0]))], "adds an invalid episode$"),
        ([added(logprobs=None)], "adds an invalid episode$"),
        ([added(logprobs=np.zeros(2, int))], "adds an invalid episode$"),
        ([added(logprobs=np.zeros(2, ">f8"))], "adds an invalid episode$"),
        ([added(logprobs=np.array([0.0, 0.5]))], "adds an invalid episode: logprobs must be finite"),
        ([added(), added(names=("f", *NAMES[1:]), logprobs=np.array([0.0, -0.5], np.longdouble))], "adds an invalid"),
        ([added(tokens=np.zeros(2, int))], "has other columns than the buffer$"),
        ([added(tokens=np.zeros(3, np.int32))], "has other columns than the buffer$"),
        ([added(tokens=3)], "has other columns than the buffer$"),
        ([added(more=np.zeros(2))], "has other columns than the buffer$"),
        ([added(weight=(0.0, 1.0))], "has other columns than the buffer$"),
        ([of_zeros("e", 200)], "adds an invalid episode: lengths must sum to at most max_values = 150, got 200$"),
        ([of_zeros("e", 100), of_zeros("f", 51)], "adds an invalid episode: there is no room for it$"),
        ([added(advantages=np.zeros(3))], "has other columns than the buffer$"),
        ([added(first_key=1)], "adds an invalid episode: there is no room for it$"),
        ([added(first_key=-1)], f"calls add, {CANNOT}-1$"),
        ([added(shared=(-1, -1))], "adds an invalid episode$"),
        ([added(shared=(-2, 0))], "each sequence must begin like an earlier one, or like none$"),
        ([added(shared=(0, 1), advantages=np.zeros(3))], "each sequence must begin like an earlier one, or like none$"),
        ([added(shared=(5, 1), advantages=np.zeros(3))], "each sequence must begin like an earlier one, or like none$"),
        (
            [added(), added(names=("f", *NAMES[1:]), shared=(0, 3), advantages=np.zeros(5))],
            "each sequence must begin like an earlier one, or like none$",
        ),
        (
            [added(), added(names=("f", *NAMES[1:]), shared=(-1, 1), advantages=np.zeros(3))],
            "each sequence must begin like an earlier one, or like none$",
        ),
        (
            [
                added(),
                *[
                    added(names=(name, *NAMES[1:]), shared=(parent, 1), advantages=np.zeros(3))
                    for parent, name in enumerate("fg")
                ],
            ],
            "an episode must begin like one other, which begins like none$",
        ),
        ([added(), updated(keys=np.zeros(1))], "updates something that is not a sequence$"),
        ([added(), updated(lengths=np.array([1, 1]))], "updates something that is not a sequence$"),
        ([added(), updated(lengths=-ONE)], "updates something that is not a sequence$"),
        ([added(), updated(stale=-1)], f"calls update, {CANNOT}-1$"),
        ([added(), updated(tokens=np.zeros(2, np.int32))], "updates something that is not an extra$"),
        ([added(), updated(advantages=np.zeros(1))], "has other columns than the buffer$"),
        ([added(), updated(weight=np.zeros(1, np.float32))], "has other columns than the buffer$"),
        ([added(), updated(lengths=ONE, advantages=np.zeros(1))], "is an invalid update: lengths must be"),
        ([(11, (True, ["e"], 3, ""))], f"calls deliver, {CANNOT}3$"),
        ([(11, (True, [3], [], ""))], rf"calls deliver, {CANNOT}\[3\]$"),
        ([(11, (True, [], ["e"], ""))], "drops episodes without a reason"),
        ([(11, (True, [], [], "why"))], "has a reason and drops none$"),
        (
            [added(names=("e", "a", None, "ABORTED", b"", (None,))), (11, (True, ["e"], [], ""))],
            "hands out episode e, which",
        ),
    ],
)
def test_forged_records_of_tokens_are_refused(records: Any, text: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.CheckpointError, match=text):
        written(tmp_path, *records)
