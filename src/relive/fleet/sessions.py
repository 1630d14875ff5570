"""Sessions: the writers of a shard, the order of their batches, and their leases.

    session    batches 0 1 2 3    stored in that order, though 3 may come before 2
               lease              until it has run out, the writer's open episodes wait for their next steps
               closed             no more batches are stored under its name: the writer continues under a new one

A session is remembered longer than its lease, so that late resends are not stored twice.
"""

import asyncio
from collections.abc import Iterable
import dataclasses


@dataclasses.dataclass(slots=True)
class Session:
    """One name of a writer.

    Attributes:
        heard: Time of the last call, by the event loop's clock.
        has_lease: Whether it holds a lease.
        is_closed: Whether nothing more is stored under its name.
        next: The number of the next batch.
        refusals: Refused steps by batch: how many, and the error, while the writer may still ask.
    """

    heard: float
    has_lease: bool = False
    is_closed: bool = False
    next: int = 0
    refusals: dict[int, tuple[int, Exception | None]] = dataclasses.field(default_factory=dict)
    _moved: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    async def turn(self, number: int, answered: int) -> bool:
        """Wait until all batches before that number have come, and return True; False if the session was closed.

        Args:
            number: The number of a batch.
            answered: The writer has replies for all batches before this one, perhaps from an earlier life of the shard.
        """
        self.next = max(self.next, answered)
        self.refusals = {known: refusal for known, refusal in self.refusals.items() if known >= answered}
        while self.next < number and not self.is_closed:
            self._moved.clear()
            await self._moved.wait()
        return not self.is_closed

    def begin(self, number: int) -> None:
        """Record that the batch with that number is being stored in this call."""
        self.next = number + 1
        self._moved.set()

    def close(self) -> None:
        """Close the session: waiting turns return False."""
        self.has_lease, self.is_closed = False, True
        self._moved.set()


class Sessions:
    """The sessions of all writers of a shard.

    Args:
        lease: Seconds after which a silent writer counts as gone.
        memory: Seconds after that for which its session is remembered.
        names: The names from an earlier life of the shard.
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
        """Forget the sessions that were silent for too long, and return their names."""
        # For those of an earlier life, the time of the last call is unknown; count from the start of this one.
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
        """Number of writers that hold a lease."""
        return sum([session.has_lease for session in self._sessions.values()])
