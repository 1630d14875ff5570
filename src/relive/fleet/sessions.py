"""Sessions: the writers of a shard, which of their batches it has, and their leases.

    batches    oldest = 4, seen = {5, 6, 8}    the writer waits for 4 and later ones; it has no use for earlier ones
    lease      until it runs out, the writer's open episodes wait for their next steps

Numbers that were seen are kept, and not the newest alone: batches that are sent again come after newer ones. With each
batch they are written to the journal, as a note.
"""

from collections.abc import Collection
import dataclasses

from relive import errors
from relive.persistence import codec

_MOST = 10_000
"""So many sessions are remembered, so that what comes again late is not stored twice."""


@dataclasses.dataclass(slots=True)
class Session:
    """One writer."""

    last_call: float
    has_lease: bool = False
    oldest: int = 0
    # Of each batch from there on that is stored, how many steps were refused, and the first error in this process.
    seen: dict[int, int] = dataclasses.field(default_factory=dict)
    refusals: dict[int, Exception] = dataclasses.field(default_factory=dict)

    def acknowledge(self, oldest: int) -> None:
        """Forget the batches before a number, for which the writer does not wait."""
        self.oldest = max(self.oldest, oldest)
        for kept in (self.seen, self.refusals):
            for number in [number for number in kept if number < self.oldest]:
                del kept[number]

    def has(self, number: int) -> bool:
        """Return whether a batch is stored, or was given up by the writer."""
        return number < self.oldest or number in self.seen


class Sessions:
    """The sessions of all writers of a shard; the newest ones are remembered, however long they are silent."""

    def __init__(self, lease: float) -> None:
        self._lease = lease
        # In the order of their last calls.
        self._sessions: dict[bytes, Session] = {}
        self.lost = 0
        """Number of rows that were lost with earlier processes, as far as clients have seen them."""
        self.resumed: tuple[int, ...] = ()
        """The versions from which learners have resumed; see replies.Policy."""

    def renew(self, name: bytes, now: float) -> Session:
        """Return the session of that name, with its lease renewed."""
        session = self._sessions.pop(name) if name in self._sessions else Session(now)
        self._sessions[name] = session
        session.last_call, session.has_lease = now, True
        if len(self._sessions) > _MOST:
            oldest = next(iter(self._sessions))
            if not self._sessions[oldest].has_lease:
                del self._sessions[oldest]
        return session

    def silent(self, now: float) -> dict[bytes, Session]:
        """Return the sessions whose leases have run out, by name."""
        return {
            name: session
            for name, session in self._sessions.items()
            if session.has_lease and now - session.last_call > self._lease
        }

    @property
    def num_leases(self) -> int:
        """Number of writers that hold a lease."""
        return sum([session.has_lease for session in self._sessions.values()])

    # Notes in the journal.

    def note(self, names: Collection[bytes] | None = None, number: int | None = None) -> bytes:
        """Return what a new process must know, of all writers; or of one of them, and of one batch of it."""
        told = self._sessions if names is None else {name: self._sessions[name] for name in names}
        found = [
            (name, each.oldest, each.seen if number is None else {number: each.seen[number]})
            for name, each in told.items()
        ]
        return codec.PlainCodec().encode((self.lost, self.resumed, found))

    def learn(self, note: bytes, now: float) -> None:
        """Learn from a note of an earlier process."""
        try:
            lost, resumed, found = codec.PlainCodec().decode(note)
            self.lost, self.resumed = max(self.lost, lost), max(self.resumed, tuple(resumed), key=len)
            for name, oldest, seen in found:
                session = self._sessions.setdefault(name, Session(now))
                session.seen.update(seen)
                session.acknowledge(oldest)
        except (TypeError, ValueError, AttributeError) as error:
            raise errors.CheckpointError(f"has a note that is not of a shard: {error}") from error
