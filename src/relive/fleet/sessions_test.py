"""Sessions: batches in order, leases, and names that nothing more is stored under."""

import asyncio
import random

from relive.fleet import local_test
from relive.fleet import sessions

W, V = b"w" * 16, b"v" * 16


async def come(session: sessions.Session, number: int, stored: list[int], answered: int = 0) -> None:
    if await session.turn(number, answered):
        session.begin(number)
        stored.append(number)
    else:
        stored.append(-1)


def test_batches_have_their_turns_in_order_however_they_come() -> None:
    async def main() -> None:
        rng = random.Random(0)
        for _ in range(20):
            session, stored = sessions.Session(0.0), list[int]()
            numbers = list(range(10))
            rng.shuffle(numbers)
            for number in numbers:
                task = asyncio.create_task(come(session, number, stored))
                await local_test.settle()
                del task
            assert stored == list(range(10))

    local_test.run(main())


def test_a_session_that_the_shard_does_not_know_goes_on_after_what_was_answered() -> None:
    async def main() -> None:
        session, stored = sessions.Session(0.0), list[int]()
        late = asyncio.create_task(come(session, 58, stored, answered=57))
        await local_test.settle()
        assert stored == []
        await come(session, 57, stored, answered=57)
        await late
        assert (stored, session.next) == ([57, 58], 59)

    local_test.run(main())


def test_refusals_are_known_until_they_were_heard_of() -> None:
    async def main() -> None:
        session = sessions.Session(0.0)
        session.refusals = {3: (1, None), 4: (2, None)}
        assert await session.turn(4, 4)
        assert session.refusals == {4: (2, None)}

    local_test.run(main())


def test_a_closed_session_has_no_more_turns() -> None:
    async def main() -> None:
        session, stored = sessions.Session(0.0), list[int]()
        waiting = asyncio.create_task(come(session, 3, stored))
        await local_test.settle()
        session.close()
        await waiting
        await come(session, 0, stored)
        assert stored == [-1, -1]

    local_test.run(main())


def test_a_lease_runs_out_and_comes_back_and_is_no_more_once_closed() -> None:
    async def main() -> None:
        found = sessions.Sessions(lease=10.0, memory=100.0, names=[])
        now = asyncio.get_running_loop().time
        session = found.hear(W)
        found.hear(V)
        assert found.num_leases == 2
        await asyncio.sleep(10.0)
        assert found.silent(now()) == {}
        found.hear(V)
        await asyncio.sleep(0.5)
        assert found.silent(now()) == {W: session}
        session.has_lease = False
        assert found.silent(now()) == {}
        assert found.num_leases == 1
        assert found.hear(W) is session
        assert session.has_lease
        session.close()
        assert not found.hear(W).has_lease
        assert found.num_leases == 1
        found.close()
        assert found.num_leases == 0

    local_test.run(main())


def test_what_a_writer_has_sent_is_known_longer_than_its_lease() -> None:
    async def main() -> None:
        found = sessions.Sessions(lease=10.0, memory=100.0, names=[W])
        now = asyncio.get_running_loop().time
        session = found.hear(V)
        session.next = 7
        await asyncio.sleep(50.0)
        # Those of an earlier life were heard of before this one began, and it begins with the first look.
        assert found.forget(now()) == []
        await asyncio.sleep(60.0)
        assert found.forget(now()) == []
        assert found.hear(V).next == 7
        await asyncio.sleep(55.0)
        assert found.forget(now()) == [W]
        await asyncio.sleep(60.0)
        waiting = asyncio.create_task(session.turn(9, 0))
        await local_test.settle()
        assert found.forget(now()) == [V]
        assert not await waiting
        assert found.hear(V).next == 0
        assert found.forget(now()) == []

    local_test.run(main())
