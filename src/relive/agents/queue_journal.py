"""The journal records of a learner's queue, which buffers of episodes and of tokens have in common.

    LEARNED   the learner's policy version u64
    HANDED    which episodes the learner was given and which not: a list, as a PlainCodec writes it, of the ids of the
              episodes that were delivered, of those that were dropped, and of the reason for these; with neither,
              that the learner asks for single episodes for the first time
    ACKED     the version u64 before which all deliveries are acknowledged
    RESTART   nothing: what is not acknowledged waits again
    RETURNED  which episodes and groups wait again, since they did not reach the learner: a list, as a PlainCodec writes
              it, of a list of ids for each of them

No call waits for HANDED, RESTART and RETURNED to be on disk: they are synced with the next record.
"""

from collections.abc import Callable, Iterable, Sequence
import struct
from typing import Any

from relive import errors
from relive.agents import queue
from relive.common import validation
from relive.persistence import codec as codec_lib
from relive.persistence import journal as journal_lib

LEARNED, HANDED, ACKED, RESTART, RETURNED = 9, 11, 12, 13, 14
_VERSION = struct.Struct("<Q")


class QueueJournal:
    """Writes the changes of a queue to a journal, before they are applied."""

    _journal: journal_lib.Journal

    def learn(self, policy_version: int) -> None:
        """Journal the learner's policy version."""
        self._journal.append(LEARNED, _VERSION.pack(policy_version))

    def hand_out(self, delivered: Iterable[queue.Episode], dropped: Iterable[queue.Episode], reason: str) -> None:
        """Journal which episodes are delivered to the learner, and which are dropped for that reason."""
        ids = [[episode.episode_id for episode in episodes] for episodes in (delivered, dropped)]
        self._journal.append(HANDED, codec_lib.PlainCodec().encode([*ids, reason]), sync=False)

    def acknowledge(self, version: int) -> None:
        """Journal that all deliveries before a version are acknowledged."""
        self._journal.append(ACKED, _VERSION.pack(version))

    def restart(self) -> None:
        """Journal that what is not acknowledged waits again."""
        self._journal.append(RESTART, b"", sync=False)

    def put_back(self, units: Sequence[Sequence[str]]) -> None:
        """Journal which episodes and groups, each a list of ids, wait again."""
        self._journal.append(RETURNED, codec_lib.PlainCodec().encode([list(ids) for ids in units]), sync=False)


class QueueReplay:
    """Replays the records of a queue.

    Args:
        store: The episodes, with the learner's policy version.
        handed: Called with the ids of delivered episodes, the ids of dropped ones, and the reason.
        acknowledged: Called with a version before which all deliveries are acknowledged.
        restarted: Called when what is not acknowledged waits again.
        returned: Called with the ids of each episode or group that waits again.
        ended: Called at the end.
    """

    def __init__(
        self,
        store: Any,
        *,
        handed: Callable[[list[str], list[str], str], None],
        acknowledged: Callable[[int], None],
        restarted: Callable[[], None],
        returned: Callable[[list[list[str]]], object],
        ended: Callable[[], None],
    ) -> None:
        self._store = store
        self._handed, self._acknowledged, self._restarted = handed, acknowledged, restarted
        self._returned, self._ended = returned, ended

    def apply(self, kind: int, payload: bytes) -> None:
        """Apply a record.

        Raises:
            CheckpointError: The record is unknown or malformed.
        """
        if kind in (LEARNED, ACKED) and len(payload) == _VERSION.size:
            (version,) = _VERSION.unpack(payload)
            if kind == ACKED:
                self._acknowledged(version)
            elif (self._store.policy_version or 0) <= version <= validation.LARGEST:
                self._store.policy_version = version
            else:
                raise errors.CheckpointError(f"sets the learner's policy version to {version}, which is not valid")
        elif kind == HANDED:
            self._hand_out(codec_lib.PlainCodec().decode(payload))
        elif kind == RESTART and not payload:
            self._restarted()
        elif kind == RETURNED:
            self._put_back(codec_lib.PlainCodec().decode(payload))
        else:
            raise errors.CheckpointError(f"is of kind {kind} with {len(payload)} bytes, which is not valid here")

    def end(self) -> None:
        """Finish the replay: there are no more records."""
        self._ended()

    def _put_back(self, value: Any) -> None:
        if type(value) is not list or not all(map(_are_ids, value)):
            raise errors.CheckpointError("puts back something that is not a list of lists of episodes")
        self._returned(value)

    def _hand_out(self, value: Any) -> None:
        is_list = type(value) is list and len(value) == 3 and _are_ids(value[0]) and _are_ids(value[1])
        if not is_list or type(value[2]) is not str:
            raise errors.CheckpointError("hands out something that is not a list of episodes")
        delivered, dropped, reason = value
        if bool(dropped) != bool(reason):
            raise errors.CheckpointError("drops episodes without a reason, or has a reason and drops none")
        self._handed(delivered, dropped, reason)


def _are_ids(value: Any) -> bool:
    return type(value) is list and all(type(each) is str for each in value)
