"""The journal records of a learner's queue, which buffers of episodes and of tokens have in common.

    LEARNED   the learner's policy version u64
    HANDED    the ids of the episodes that the learner was given, of those that were passed over, and the reason for
              these; with neither, that the learner asks for single episodes for the first time
    ACKED     the version before which all deliveries are acknowledged, and the ids of excepted episodes
    RESTART   nothing: what is not acknowledged waits again
    RETURNED  the ids of an episode, or of those of a group, that did not reach the learner: they wait again
    REJECTED  the ids of rejected episodes, and the reason
    ABANDONED the ids of groups that are given up; all open episodes end as ABORTED

Those with ids are lists, as a PlainCodec writes them. No call waits until HANDED, RESTART, RETURNED and REJECTED are on
disk: they are synced with the next record.
"""

from collections.abc import Callable, Iterable, Sequence
import struct
from typing import Any

from relive import errors
from relive.agents import queue
from relive.common import validation
from relive.persistence import checkpointable
from relive.persistence import codec as codec_lib

LEARNED, HANDED, ACKED, RESTART, RETURNED, REJECTED, ABANDONED = 9, 11, 12, 13, 14, 15, 16
_VERSION = struct.Struct("<Q")


class QueueJournal(checkpointable.Bound):
    """Writes the changes of a queue to a journal, before they are applied."""

    def learn(self, policy_version: int) -> None:
        """Journal the learner's policy version."""
        self._journal.append(LEARNED, _VERSION.pack(policy_version))

    def hand_out(self, delivered: Iterable[queue.Episode], dropped: Iterable[queue.Episode], reason: str) -> None:
        """Journal which episodes are delivered to the learner, and which are passed over for that reason."""
        with self.syncing_later():
            self._write(HANDED, [_ids(delivered), _ids(dropped), reason])

    def reject(self, rejected: Iterable[queue.Episode], reason: str) -> None:
        """Journal which episodes are rejected."""
        with self.syncing_later():
            self._write(REJECTED, [_ids(rejected), reason])

    def acknowledge(self, version: int, but: Iterable[str]) -> None:
        """Journal that all deliveries before a version are acknowledged, except for some episodes."""
        self._write(ACKED, [version, list(but)])

    def restart(self) -> None:
        """Journal that what is not acknowledged waits again."""
        with self.syncing_later():
            self._journal.append(RESTART, b"")

    def put_back(self, episode_ids: Sequence[str]) -> None:
        """Journal which episode, or which episodes of a group, wait again."""
        with self.syncing_later():
            self._write(RETURNED, [list(episode_ids)])

    def abandon(self, group_ids: Iterable[str]) -> None:
        """Journal that all open episodes end as ABORTED, and which groups are given up."""
        self._write(ABANDONED, [list(group_ids)])

    def _write(self, kind: int, value: Any) -> None:
        self._journal.append(kind, codec_lib.PlainCodec().encode(value))


class QueueReplay:
    """Replays the records of a queue.

    Args:
        store: The episodes, with the learner's policy version.
        hand_outs: The queue.
        ended: Called at the end.
    """

    def __init__(self, store: Any, hand_outs: queue.LearnerQueue, ended: Callable[[], None]) -> None:
        self._store, self._hand_outs, self._ended = store, hand_outs, ended

    def apply(self, kind: int, payload: bytes) -> None:
        """Apply a record.

        Raises:
            CheckpointError: The record is unknown or malformed.
        """
        if kind == LEARNED and len(payload) == _VERSION.size:
            (version,) = _VERSION.unpack(payload)
            if not (self._store.policy_version or 0) <= version <= validation.LARGEST:
                raise errors.CheckpointError(f"sets the learner's policy version to {version}, which is not valid")
            self._store.policy_version = version
        elif kind == RESTART and not payload:
            self._hand_outs.restart()
        elif kind in _KINDS:
            value = codec_lib.PlainCodec().decode(payload)
            is_list = type(value) is list and len(value) == len(_KINDS[kind])
            if not is_list or not all(map(_is_of, value, _KINDS[kind])):
                raise errors.CheckpointError(f"is of kind {kind}, which cannot hold {validation.short_repr(value)}")
            self._replay(kind, *value)
        else:
            raise errors.CheckpointError(f"is of kind {kind} with {len(payload)} bytes, which is not valid here")

    def end(self) -> None:
        """Finish the replay: there are no more records."""
        self._ended()

    def _replay(self, kind: int, first: Any, *others: Any) -> None:
        store, hand_outs = self._store, self._hand_outs
        if kind == HANDED:
            dropped, reason = others
            if bool(dropped) != bool(reason):
                raise errors.CheckpointError("drops episodes without a reason, or has a reason and drops none")
            if not first and not dropped:
                hand_outs.begin_line(store)
            hand_outs.deliver(store, first)
            hand_outs.pass_over(store, dropped, reason)
        elif kind == REJECTED:
            if not first or not others[0]:
                raise errors.CheckpointError("rejects no episodes, or without a reason")
            hand_outs.reject(store, first, *others)
        elif kind == ACKED:
            hand_outs.acknowledge(first, *others)
        elif kind == ABANDONED:
            hand_outs.abandon(store, first)
        else:
            hand_outs.put_back(store, first)


_KINDS: dict[int, str] = {HANDED: "iis", ACKED: "vi", RETURNED: "i", REJECTED: "is", ABANDONED: "i"}
"""What the list in a record of each kind holds: ids, a string, a version."""


def _is_of(value: Any, kind: str) -> bool:
    if kind == "i":
        return type(value) is list and all(type(each) is str for each in value)
    return type(value) is str if kind == "s" else type(value) is int and value >= 0


def _ids(episodes: Iterable[queue.Episode]) -> list[str]:
    return [episode.episode_id for episode in episodes]
