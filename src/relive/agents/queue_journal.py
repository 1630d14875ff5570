"""The journal records of a learner's queue, which buffers of episodes and of tokens have in common.

    LEARN        the learner's policy version
    DELIVER      whether the learner asks for single episodes; the ids of the episodes that it was given, of those that
                 were passed over, and the reason for these
    ACKNOWLEDGE  the version before which all deliveries are acknowledged, and the ids of excepted episodes
    RESTART      nothing: what is not acknowledged waits again
    PUT_BACK     the ids of each episode or group that did not reach the learner: they wait again
    REJECT       whether any is a single episode, the ids of rejected episodes, and the reason
    ABANDON      the ids of groups that are given up; all open episodes end as ABORTED
    RESUME       the version that the learner goes on from; whether what was delivered since, and not acknowledged,
                 waits again, or is dropped

The line of single episodes begins with the first record that speaks of one, whether or not that is still stored.

No call waits until DELIVER, PUT_BACK and REJECT are on disk: they are synced with the next record.
"""

from typing import Any

from relive import errors
from relive.persistence import commands

LEARN, DELIVER, ACKNOWLEDGE, RESTART, PUT_BACK, REJECT, ABANDON, RESUME = 9, 11, 12, 13, 14, 15, 16, 17
COMMANDS: commands.Table = {
    LEARN: ("learn", (commands.is_count,)),
    DELIVER: ("deliver", (commands.is_bool, commands.is_texts, commands.is_texts, commands.is_text)),
    ACKNOWLEDGE: ("acknowledge", (commands.is_count, commands.is_texts)),
    RESTART: ("restart", ()),
    PUT_BACK: ("put_back", (commands.list_of(commands.is_texts),)),
    REJECT: ("reject", (commands.is_bool, commands.is_texts, commands.is_text)),
    ABANDON: ("abandon", (commands.is_texts,)),
    RESUME: ("resume", (commands.is_count, commands.is_bool)),
}


class QueueReplay:
    """Replays the records of a queue.

    Args:
        buffer: The buffer.
    """

    def __init__(self, buffer: Any) -> None:
        self._buffer, self._store, self._queue = buffer, buffer._store, buffer._queue
        self._written = buffer._written()
        if self._queue.known is not None:
            self._queue.known.stop_clock()

    def end(self) -> None:
        """Finish the replay: there are no more records."""
        ledger = self._queue.known
        if ledger is not None:
            ledger.start_clock()
            if self._buffer._written() != self._written:
                ledger.count_places(self._store, self._store.policy_version)

    def learn(self, version: int) -> None:
        """Set the learner's policy version."""
        if version < (self._store.policy_version or 0):
            raise errors.CheckpointError(f"sets the learner's policy version to {version}, which is not valid")
        self._store.policy_version = version

    def resume(self, version: int, waits: bool) -> None:
        """Go on from a version."""
        self._store.policy_version = version
        if self._queue.known is not None:
            self._queue.known.resume(self._store, version, waits=waits)

    def deliver(self, are_single: bool, episode_ids: list[str], dropped: list[str], reason: str) -> None:
        """Deliver episodes, and drop those that were passed over."""
        if bool(dropped) != bool(reason):
            raise errors.CheckpointError("drops episodes without a reason, or has a reason and drops none")
        ledger = self._queue.ledger()
        if are_single:
            ledger.singles_line(self._store)
        ledger.deliver(ledger.waiting(self._store, episode_ids), self._store.policy_version)
        ledger.pass_over(self._store, dropped, reason)

    def acknowledge(self, version: int, but: list[str]) -> None:
        """Acknowledge what was delivered before a version, except for some episodes."""
        self._queue.ledger().acknowledge(version, but)

    def restart(self) -> None:
        """Let what is not acknowledged wait again."""
        self._queue.ledger().restart(waits=True)

    def put_back(self, ids_of_units: list[list[str]]) -> None:
        """Let what did not reach the learner wait again."""
        self._queue.ledger().put_back(self._store, ids_of_units)

    def reject(self, has_single: bool, episode_ids: list[str], reason: str) -> None:
        """Drop episodes."""
        if not episode_ids or not reason:
            raise errors.CheckpointError("rejects no episodes, or without a reason")
        self._queue.ledger().reject(self._store, episode_ids, reason, has_single=has_single)

    def abandon(self, group_ids: list[str]) -> None:
        """End all open episodes as ABORTED, and give up groups."""
        self._buffer._abandon(group_ids)
