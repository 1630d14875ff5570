"""Sessions: the writers of a shard, the order of their batches, and their leases.

    session    batches 0 1 2 3    stored in that order
               lease              until it has run out, the writer's open episodes wait for their next steps
               closed             no more batches are stored under its name: the writer continues under a new one

A session is remembered longer than its lease, so that late resends are not stored twice.
"""

from collections.abc import Iterable
import dataclasses


@dataclasses.dataclass(slots=True)
class Session:
    """One name of a writer.

    Attributes:
        last_call: Time of the last call.
        has_lease: Whether it holds a lease.
        is_closed: Whether nothing more is stored under its name.
        next: The number of the next batch.
        passed: How many steps of that batch were stored or refused before the disk was full.
        refusals: Refused steps by batch: how many, and the error, while the writer may still ask.
    """

    last_call: float
    has_lease: bool = False
    is_closed: bool = False
    next: int = 0
    passed: int = 0
    refusals: dict[int, tuple[int, Exception | None]] = dataclasses.field(default_factory=dict)

    def acknowledge(self, acknowledged: int) -> None:
        """Record that the writer has replies for all batches before that number, maybe of an earlier incarnation."""
        self.next = max(self.next, acknowledged)
        self.refusals = {number: refusal for number, refusal in self.refusals.items() if number >= acknowledged}

    def close(self) -> None:
        """Close the session."""
        self.has_lease, self.is_closed = False, True


class Sessions:
    """The sessions of all writers of a shard.

    Args:
        lease: Seconds after which a silent writer counts as gone.
        memory: Seconds after that for which its session is remembered.
        names: The names from an earlier incarnation of the shard.
    """

    def __init__(self, lease: float, memory: float, names: Iterable[bytes]) -> None:
        self._lease, self._memory = lease, memory
        self._sessions: dict[bytes, Session] = {}
        self._earlier = list(names)

    def renew(self, name: bytes, now: float) -> Session:
        """Return the session of that name, with its lease renewed."""
        session = self._sessions.setdefault(name, Session(now))
        session.last_call = now
        session.has_lease = not session.is_closed
        return session

    def silent(self, now: float) -> dict[bytes, Session]:
        """Return the sessions whose leases have run out, by name."""
        return {
            name: session
            for name, session in self._sessions.items()
            if session.has_lease and now - session.last_call > self._lease
        }

    def forget(self, now: float) -> list[bytes]:
        """Forget the sessions that were silent for too long, and return their names."""
        # For those of an earlier incarnation, the time of the last call is unknown; count from the start of this one.
        for name in self._earlier:
            self._sessions.setdefault(name, Session(now))
        self._earlier.clear()
        names = [
            name for name, session in self._sessions.items() if now - session.last_call > self._lease + self._memory
        ]
        for name in names:
            del self._sessions[name]
        return names

    @property
    def num_leases(self) -> int:
        """Number of writers that hold a lease."""
        return sum([session.has_lease for session in self._sessions.values()])
