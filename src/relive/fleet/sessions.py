"""Who writes to a shard: in which order the batches of a writer come, and for how long it is waited for.

    session    batches 0 1 2 3    stored in that order, though 3 may come before 2
               lease              until it has run out, the writer's open episodes wait for their next steps
               closed             no batch is stored under its name any more: the writer goes on under another one

A session is remembered longer than its lease: what it has stored is not stored again when the writer asks late.
"""

import asyncio
from collections.abc import Iterable
import dataclasses


@dataclasses.dataclass(slots=True)
class Session:
    """One name of a writer.

    Attributes:
        heard: When it was heard of, by the event loop's clock.
        has_lease: Whether it is waited for.
        is_closed: Whether nothing more is stored under its name.
        next: The number of the batch that comes next.
        refusals: Of the batches with refused steps that the writer may still ask for: how many, and why.
    """

    heard: float
    has_lease: bool = False
    is_closed: bool = False
    next: int = 0
    refusals: dict[int, tuple[int, Exception | None]] = dataclasses.field(default_factory=dict)
    _moved: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    async def turn(self, number: int, answered: int) -> bool:
        """Return True once all batches before that number have come; False if the session was closed.

        Args:
            number: Of a batch.
            answered: The writer has heard of all batches before this one, perhaps from an earlier life of the shard.
        """
        self.next = max(self.next, answered)
        self.refusals = {known: refusal for known, refusal in self.refusals.items() if known >= answered}
        while self.next < number and not self.is_closed:
            self._moved.clear()
            await self._moved.wait()
        return not self.is_closed

    def begin(self, number: int) -> None:
        """Record that the batch of that number is stored now: the next one waits for the end of this call alone."""
        self.next = number + 1
        self._moved.set()

    def close(self) -> None:
        """End it: who waits for a turn gets none."""
        self.has_lease, self.is_closed = False, True
        self._moved.set()


class Sessions:
    """The sessions of all writers of a shard.

    Args:
        lease: For how many seconds a writer that gives no sign of life is waited for.
        memory: For how many seconds more it is known what it has stored.
        names: Those of an earlier life of the shard.
    """

    def __init__(self, lease: float, memory: float, names: Iterable[bytes]) -> None:
        self._lease, self._memory = lease, memory
        self._sessions: dict[bytes, Session] = {}
        self._of_before = list(names)

    def hear(self, name: bytes) -> Session:
        """Return the session of that name, and renew its lease."""
        now = asyncio.get_running_loop().time()
        session = self._sessions.setdefault(name, Session(now))
        session.heard = now
        session.has_lease = not session.is_closed
        return session

    def silent(self, now: float) -> dict[bytes, Session]:
        """Return the sessions whose leases have run out, by name."""
        return {
            name: session
            for name, session in self._sessions.items()
            if session.has_lease and now - session.heard > self._lease
        }

    def forget(self, now: float) -> list[bytes]:
        """Forget the sessions that were not heard of for long, and return their names."""
        # Of those of an earlier life nobody knows when they were heard of: not before this one began.
        for name in self._of_before:
            self._sessions.setdefault(name, Session(now))
        self._of_before.clear()
        names = [name for name, session in self._sessions.items() if now - session.heard > self._lease + self._memory]
        for name in names:
            self._sessions.pop(name).close()
        return names

    def close(self) -> None:
        """End all of them."""
        for session in self._sessions.values():
            session.close()

    @property
    def num_leases(self) -> int:
        """How many writers are waited for."""
        return sum([session.has_lease for session in self._sessions.values()])
