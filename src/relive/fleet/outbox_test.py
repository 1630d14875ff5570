"""The outbox as the table of its states: what a shard does with a batch, and what becomes of the batch."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import relive
from relive import errors
from relive.fleet import adapter_test
from relive.fleet import local_test
from relive.fleet import membership
from relive.fleet import outbox as outbox_lib
from relive.fleet import replies

QUEUED, SENT, IN_DOUBT, STORED, REFUSED, LOST = outbox_lib.State

Answer = replies.Receipt | Exception


def receipt(outcome: Any, refused: int = 0) -> replies.Receipt:
    return replies.Receipt(outcome=outcome, refused=refused, error=errors.SchemaError("no") if refused else None)


def drained() -> errors.ShardLostError:
    error = errors.ShardLostError("shard 9 is gone")
    error.__cause__ = errors.ClosedError("closed")
    return error


class Shards:
    """What an outbox sees of its shards: 0 and 1 are active, 9 was drained; 0 may be lost."""

    def __init__(self, answers: Sequence[Answer], *, is_back: bool = True) -> None:
        self.settings = membership.Settings(timeout=1.0, recovery=5.0, lease=30.0, has_limiter=False)
        self.members = replies.Members(version=1, active=(0, 1), gone=(9,))
        self.transport: Any = self
        self.answers, self.comes_back = list(answers), is_back
        self.asked: list[tuple[int, int, bool]] = []
        self.full: set[int] = set()

    async def coordinator(self, method: str, *_: Any) -> int:
        return 0

    def live(self) -> list[int]:
        return [0, 1]

    def preferred(self, writer: int) -> list[int]:
        return [0, 1]

    def is_full(self, shard: int) -> bool:
        return shard in self.full

    def is_avoided(self, shard: int) -> bool:
        return False

    async def ask(self, shard: int, method: str, batch: Any) -> Any:
        self.asked.append((shard, batch["oldest"], batch["stays"]))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def is_back(self, shard: int, seconds: float) -> bool:
        await asyncio.sleep(0 if self.comes_back else seconds)
        return self.comes_back

    async def was_drained(self, shard: int) -> bool:
        return shard == 9

    async def note(self, shard: int, progress: Any) -> None:
        pass


def outbox_of(shards: Shards) -> Any:
    return outbox_lib.Outbox(shards, batch_steps=5, max_in_flight=2)  # type: ignore[arg-type]


# The state before, the shard, the batch's own marks, what the shard does, and the state after it.
TABLE: list[tuple[Any, int | None, dict[str, Any], Answer | bool | None, Any]] = [
    (QUEUED, None, {}, None, SENT),
    (QUEUED, None, {"pinned": 1}, True, SENT),
    (QUEUED, None, {"pinned": 1}, False, LOST),
    (SENT, 0, {}, receipt("STORED"), STORED),
    (SENT, 0, {}, receipt("STORED", refused=2), STORED),
    (SENT, 0, {}, receipt("FULL"), QUEUED),
    (SENT, 0, {"may_be_stored": True}, receipt("FULL"), QUEUED),
    (SENT, 0, {}, receipt("HELD"), IN_DOUBT),
    (SENT, 0, {}, errors.ShardLostError("no answer"), IN_DOUBT),
    (SENT, 0, {}, membership.NotAskedError("lost before"), QUEUED),
    (SENT, 0, {"may_be_stored": True}, membership.NotAskedError("lost before"), IN_DOUBT),
    (SENT, 0, {"is_held": True}, membership.NotAskedError("lost before"), IN_DOUBT),
    (SENT, 9, {}, drained(), QUEUED),
    (SENT, 9, {"may_be_stored": True}, drained(), QUEUED),
    (SENT, 0, {}, drained(), IN_DOUBT),
    (SENT, 0, {}, TypeError("cannot be sent"), REFUSED),
    (IN_DOUBT, 0, {"may_be_stored": True}, True, SENT),
    (IN_DOUBT, 0, {"is_held": True}, False, SENT),
    (IN_DOUBT, 9, {"may_be_stored": True}, False, QUEUED),
    (IN_DOUBT, 0, {"may_be_stored": True}, False, LOST),
]


@pytest.mark.parametrize(("before", "shard", "marks", "event", "after"), TABLE)
async def test_a_batch_goes_from_state_to_state(before: Any, shard: Any, marks: Any, event: Any, after: Any) -> None:
    is_answer = isinstance(event, replies.Receipt | Exception)
    shards = Shards([event] if is_answer else [], is_back=event is not False)
    outbox = outbox_of(shards)
    batch = outbox_lib.Batch(0, (adapter_test.columns(0, 3),), state=before, shard=shard, **marks)
    outbox._batches[0] = batch
    assert await outbox._next[before](batch) is after
    refused = 3 if after is REFUSED else event.refused if isinstance(event, replies.Receipt) else 0
    assert (outbox.stored, outbox.refused, outbox.lost) == (
        3 - refused if after is STORED else 0,
        refused,
        3 if after is LOST else 0,
    )
    assert batch.may_be_stored == (after is IN_DOUBT and not batch.is_held) or before is IN_DOUBT
    assert batch.is_held == ((before is IN_DOUBT and marks.get("is_held", False)) or event == receipt("HELD"))
    # Those in doubt do not keep their writer from going on, but those that a disk has no room for do.
    assert batch.takes_room == (after is not IN_DOUBT or batch.is_held or before is IN_DOUBT)


def test_every_state_that_is_not_settled_has_a_next_one() -> None:
    assert {row[0] for row in TABLE} == set(outbox_lib.State) - outbox_lib.SETTLED
    assert {row[-1] for row in TABLE} == set(outbox_lib.State)


def written(answers: Sequence[Answer], count: int, *, pinned: int | None = None, **more: Any) -> Shards:
    """Return the shards to which so many batches were written, once all are settled."""
    shards = Shards(answers, **more)

    async def write() -> None:
        outbox = outbox_of(shards)
        for number in range(count):
            await outbox.room(pinned)
            outbox.take(adapter_test.columns(10 * number, 5), pinned)
        await outbox.flush()
        assert outbox.stored + outbox.lost == 5 * count
        assert not outbox._batches

    local_test.run(write())
    return shards


LOSS = errors.ShardLostError("no answer")
PATHS: list[tuple[Sequence[Answer], list[tuple[int, int, bool]]]] = [
    ([receipt("STORED")], [(0, 0, True)]),
    ([LOSS, LOSS, receipt("STORED")], [(0, 0, True)] * 3),
    ([LOSS, receipt("HELD"), receipt("HELD"), receipt("STORED")], [(0, 0, True)] * 4),
    ([receipt("FULL"), LOSS, receipt("FULL"), receipt("STORED")], [(0, 0, True)] * 4),
]


@pytest.mark.parametrize(("answers", "asked"), PATHS)
def test_a_batch_is_sent_until_it_is_settled(answers: Sequence[Answer], asked: Any) -> None:
    assert written(answers, 1).asked == asked


def test_a_writer_says_which_batch_is_the_oldest_it_waits_for() -> None:
    # The first is in doubt, while the others go on; then it comes again, after newer ones.
    shards = written([LOSS, receipt("STORED"), receipt("STORED"), receipt("STORED")], 3)
    assert [oldest for _, oldest, _ in shards.asked].count(0) >= 2
    assert written([receipt("STORED")] * 3, 3).asked[-1][1] > 0


def test_batches_of_groups_are_pinned_and_leave_no_lease() -> None:
    assert written([receipt("STORED"), receipt("FULL"), receipt("STORED")], 2, pinned=1).asked[0] == (1, 0, False)


async def test_a_full_shard_leaves_room_at_the_others() -> None:
    shards = Shards([receipt("HELD")] * 1000)
    outbox = outbox_of(shards)
    for number in range(2):
        await outbox.room(0)
        outbox.take(adapter_test.columns(number, 5), 0)
    await local_test.never(outbox.room(0))
    await outbox.room(1)
    await outbox.room()
    shards.answers[:] = [receipt("STORED")] * 2
    await outbox.flush()
    await outbox.room(0)


async def test_a_refusal_is_raised_once_and_counted_by_step() -> None:
    outbox = outbox_of(Shards([receipt("STORED", refused=2), receipt("STORED")]))
    outbox.take(adapter_test.columns(0, 5))
    with pytest.raises(relive.SchemaError, match="^no$"):
        await outbox.flush()
    outbox.take(adapter_test.columns(0, 5))
    await outbox.flush()
    assert (outbox.stored, outbox.refused, outbox.lost) == (8, 2, 0)
