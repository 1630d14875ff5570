"""The journal records of an episode buffer, and their replay.

    START     the episode's id, its start_time f64, and the agent's id as a PlainCodec writes it
    APPEND    the episode's id, the reward f64, the length of the observation u32, observation and action
    END       the episode's id, the status u8 (1 COMPLETED, 2 TRUNCATED, 3 ABORTED), and the final observation
    ABORT     the episode's id
    CLEAR     nothing
    EVICT     how many episodes and how many transitions were evicted so far, u64 each; the ids of those that went now
    STARTED   as START, but in the place of the agent's id a list: that id, the group's id, and the policy's version
    STEPPED   as APPEND, but with the policy's version u64 before the observation, where it is another than before
    CARRIED   the kind u8 of a record above and its payload: START, then APPEND for each step so far

The records of the learner's queue are in `agents.queue_journal`.

All numbers are little endian, an id is 36 ASCII characters, and values are as the codec writes them. Each record is
written before its change is applied, except EVICT, which is written after. If EVICT is lost, the episode is back, and
is evicted again when its place is needed. No call waits for EVICT to be on disk: it is synced with the next record.

Episodes that are open when a segment begins are carried over: they are written again after its base. So no open episode
needs an earlier segment, and old segments can be deleted with the finished episodes.
"""

from collections.abc import Callable, Iterator
import contextlib
import itertools
import math
import re
import struct
from typing import Any, TypeAlias

from relive import errors
from relive.agents import queue_journal
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.episodes import store as store_lib
from relive.persistence import codec as codec_lib
from relive.persistence import commands
from relive.persistence import journal as journal_lib

Episode: TypeAlias = episode_lib.Episode[Any, Any]
Store: TypeAlias = store_lib.EpisodeStore[Any, Any]

START, APPEND, END, ABORT, CLEAR, EVICT, STARTED, STEPPED = range(1, 9)
CARRIED = 10
_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ID_SIZE = 36
_APPEND = struct.Struct("<36sdI")
_STEPPED = struct.Struct("<36sdIQ")
_START = struct.Struct("<36sd")
_END = struct.Struct("<36sB")
_EVICT = struct.Struct("<QQ")


class EpisodeJournal(commands.Writer):
    """Writes the changes of a buffer to a journal, before they are applied."""

    def __init__(
        self, journal: journal_lib.Journal, store: Store, replay: "Replay | None", codec: codec_lib.Codec
    ) -> None:
        self._journal, self._store, self._codec = journal, store, codec
        self._evicted: list[Episode] = []
        # For each segment after the oldest: its first record, and the episode that finished last before it. Once that
        # episode is evicted, no earlier segment is needed.
        self._begun: list[tuple[int, str | None]] = []
        if replay is not None:
            if replay.codec_name != codec.name:
                raise errors.ArgumentError(
                    f"codec must be the one of the journal, {replay.codec_name}, got {codec.name}"
                )
            self._begun = replay.begun[1:]

    def begin(self, base: Callable[[], bytes]) -> None:
        """Prepare the journal; `base` returns the contents that its next segment begins with."""

        def based() -> bytes:
            payload = base()
            if self._journal.num_records:
                self._begun.append((self._journal.num_records, _finished_last(self._store)))
            return payload

        self._journal.begin(based, self._carried)
        self._store.listeners.append(self)

    def start(self, episode: Episode) -> None:
        """Journal the start of an episode."""
        self._journal.append(*_started(episode))

    def append(self, episode_id: str, observation: Any, action: Any, reward: float, policy_version: int | None) -> None:
        """Journal a step of an episode."""
        if policy_version is not None and policy_version == self._store[episode_id].newest_version:
            policy_version = None
        self._journal.append(*self._stepped(episode_id.encode(), observation, action, reward, policy_version))

    def end(self, episode_id: str, final_observation: Any, status: episode_lib.FinalStatus) -> None:
        """Journal the end of an episode."""
        head = _END.pack(episode_id.encode(), 1 + episode_lib.FINAL_STATUSES.index(status))
        self._journal.append(END, head + self._codec.encode(final_observation))

    def abort(self, episode_id: str) -> None:
        """Journal that an episode ends without a final observation."""
        self._journal.append(ABORT, episode_id.encode())

    def clear(self) -> None:
        """Journal that every episode is removed."""
        self._journal.append(CLEAR, b"")
        self._begun = [(first, None) for first, _ in self._begun]
        with contextlib.suppress(errors.ReplayError):  # The record is written; deleting old segments is retried later.
            self._prune()

    # Listener of the store.

    def started(self, store: Store, episode: Episode) -> None:
        """Journal the evictions that made room for an episode."""
        self.settle()

    def ended(self, store: Store, episode: Episode) -> None:
        """Journal the evictions that made room for the last transition of an episode."""
        self.settle()

    def evicted(self, store: Store, episode: Episode) -> None:
        """Record an eviction for `settle`."""
        self._evicted.append(episode)

    def cleared(self, store: Store) -> None:
        """Do nothing: `clear` has journaled it."""

    def settle(self) -> None:
        """Journal recent evictions and delete old segments.

        On failure, as with a full disk, it is retried the next time: the call that evicted them has succeeded.
        """
        with contextlib.suppress(errors.ReplayError):
            if self._evicted:
                counts = self._store.counts()
                parts = [_EVICT.pack(counts["evicted_episodes"], counts["evicted_transitions"])]
                parts += [episode.episode_id.encode() for episode in self._evicted]
                with self.syncing_later():
                    self._journal.append(EVICT, b"".join(parts))
                self._evicted.clear()
            self._prune()

    def _prune(self) -> None:
        """Delete segments that no episode needs, after syncing the evictions."""
        gone = list(itertools.takewhile(lambda begun: begun[1] is None or not self._store.has(begun[1]), self._begun))
        if gone:
            self._journal.sync()
            self._journal.prune(gone[-1][0])
            del self._begun[: len(gone)]

    def _carried(self) -> Iterator[tuple[int, bytes]]:
        """Yield the records of the open episodes; none if the base already has them."""
        if not self._journal.num_records:
            return
        for episode in self._store.open.values():
            kind, payload = _started(episode)
            yield CARRIED, bytes([kind]) + payload
            encoded, versions = episode.episode_id.encode(), dict(episode.version_changes)
            steps = zip(episode.observations, episode.actions, episode.rewards, strict=True)
            for t, (observation, action, reward) in enumerate(steps):
                kind, payload = self._stepped(encoded, observation, action, reward, versions.get(t))
                yield CARRIED, bytes([kind]) + payload

    def _stepped(
        self, episode_id: bytes, observation: Any, action: Any, reward: float, new_version: int | None
    ) -> tuple[int, bytes]:
        """Return the record of a step, and of the version of the policy if it is another than before."""
        encoded = self._codec.encode(observation)
        if new_version is None:
            kind, head = APPEND, _APPEND.pack(episode_id, reward, len(encoded))
        else:
            kind, head = STEPPED, _STEPPED.pack(episode_id, reward, len(encoded), new_version)
        return kind, b"".join([head, encoded, self._codec.encode(action)])


def _started(episode: Episode) -> tuple[int, bytes]:
    """Return the record of the start of an episode."""
    head = _START.pack(episode.episode_id.encode(), episode.start_time)
    if episode.group_id is None and episode.policy_version is None:
        return START, head + codec_lib.PlainCodec().encode(episode.agent_id)
    described = [episode.agent_id, episode.group_id, episode.policy_version]
    return STARTED, head + codec_lib.PlainCodec().encode(described)


def _finished_last(store: Store) -> str | None:
    """Return the id of the stored episode that finished last; None if there is none."""
    return store.finished[-1].episode_id if len(store.finished) else None


class Replay:
    """Replays the records of a journal.

    Args:
        store: The episodes.
        queue: Replays the records of the queue.
        codec: The codec the journal was written with.
    """

    def __init__(self, store: Store, queue: queue_journal.QueueReplay, codec: codec_lib.Codec) -> None:
        self._store, self._queue, self._codec = store, queue, codec
        self.codec_name = codec.name
        """The name of the codec that the journal was written with."""
        self._limits = store.max_transitions, store.max_episodes
        # Evictions are in the journal, so the limits are not applied.
        store.set_limits(None, None)
        self.begun: list[tuple[int, str | None]] = []
        """The first record of each segment, and the episode that had finished last before it."""
        self._takes_carried = False
        # Evictions for a start happened before it but are recorded after it.
        self._starting: Episode | None = None

    def base(self, number: int) -> None:
        """Record that a segment begins with the record of that number."""
        self._begin_episode()
        self.begun.append((number, _finished_last(self._store)))

    def apply(self, kind: int, payload: bytes) -> None:
        """Apply a record. Records of episodes that began before the first segment are ignored.

        Raises:
            CheckpointError: The record is unknown or malformed.
        """
        if kind != EVICT:
            self._begin_episode()
        if kind == CARRIED and payload[:1] and payload[0] in (START, STARTED, APPEND, STEPPED):
            self._carry(payload[0], payload[1:])
        elif kind == CLEAR and not payload:
            self._store.clear()
        elif kind == EVICT and len(payload) % _ID_SIZE == _EVICT.size:
            counts = _EVICT.unpack_from(payload)
            if max(counts) > validation.LARGEST:
                raise errors.CheckpointError(f"counts {max(counts)} evictions, more than {validation.LARGEST}")
            for start in range(_EVICT.size, len(payload), _ID_SIZE):
                self._store.forget_oldest(_id(payload[start : start + _ID_SIZE]))
            self._store.set_evicted(*counts)
            self._begin_episode()
        elif kind in (START, STARTED) and len(payload) >= _ID_SIZE:
            self._start(payload, is_described=kind == STARTED)
        elif kind in (APPEND, STEPPED) and len(payload) >= _ID_SIZE:
            self._append(payload, _APPEND if kind == APPEND else _STEPPED)
        elif kind in (END, ABORT) and len(payload) >= _ID_SIZE:
            {END: self._end, ABORT: self._abort}[kind](payload)
        else:
            commands.replay(queue_journal.COMMANDS, self._queue, kind, payload)

    def end(self) -> None:
        """Finish the replay: there are no more records.

        Raises:
            CheckpointError: More steps are stored or evicted than were ever appended.
        """
        self._begin_episode()
        stats = self._store.stats()
        least = stats.total_transitions + stats.waiting_steps + stats.evicted_transitions + stats.dropped["aborted"]
        if stats.appended < least:
            raise errors.CheckpointError(
                f"counts {stats.appended} steps as appended, fewer than the {least} that are stored, evicted or aborted"
            )
        self._store.set_limits(*self._limits)
        self._queue.end()

    def _carry(self, kind: int, payload: bytes) -> None:
        """Apply a record that was carried over, unless the episode is known; the base has counted its steps."""
        if kind in (START, STARTED):
            self._takes_carried = not self._store.has(_id(payload[:_ID_SIZE]))
        if self._takes_carried:
            inserted = self._store.inserted
            self.apply(kind, payload)
            self._store.inserted = inserted

    def _start(self, payload: bytes, is_described: bool) -> None:
        encoded, start_time = _head(_START, payload)
        described = codec_lib.PlainCodec().decode(payload[_START.size :])
        if not is_described:
            described = [described, None, None]
        episode_id = _id(encoded)
        if not _is_description(described) or not math.isfinite(start_time) or self._store.has(episode_id):
            raise errors.CheckpointError("starts an invalid episode")
        agent_id, group_id, policy_version = described
        self._starting = episode_lib.Episode(
            episode_id=episode_id,
            agent_id=agent_id,
            start_time=start_time,
            group_id=group_id,
            policy_version=policy_version,
        )

    def _begin_episode(self) -> None:
        """Start the episode of the last record, if that was a start."""
        if self._starting is not None:
            self._store.start(self._starting)
            self._starting = None

    def _append(self, payload: bytes, form: struct.Struct) -> None:
        encoded, reward, length, *version = _head(form, payload)
        place = form.size + length
        if place > len(payload) or not math.isfinite(reward):
            raise errors.CheckpointError("appends an invalid step")
        episode_id = _id(encoded)
        if episode_id in self._store.open:
            step = _decoded(self._codec, payload[form.size : place]), _decoded(self._codec, payload[place:])
            try:
                self._store.append(episode_id, *step, reward, *version)
            except errors.ArgumentError as error:
                raise errors.CheckpointError(f"appends an invalid step: {error}") from error
        else:
            self._store.inserted += 1

    def _end(self, payload: bytes) -> None:
        encoded, status = _head(_END, payload)
        if not 1 <= status <= len(episode_lib.FINAL_STATUSES):
            raise errors.CheckpointError(f"ends an episode with status {status}")
        episode_id = _id(encoded)
        if episode_id in self._store.open:
            final_observation = _decoded(self._codec, payload[_END.size :])
            self._store.end(episode_id, final_observation, episode_lib.FINAL_STATUSES[status - 1])

    def _abort(self, payload: bytes) -> None:
        episode_id = _id(payload)  # The payload ends here.
        if episode_id in self._store.open:
            self._store.abort(episode_id)


def _head(form: struct.Struct, payload: bytes) -> tuple[Any, ...]:
    """Return the numbers that a payload begins with."""
    if len(payload) < form.size:
        raise errors.CheckpointError("ends in the middle of a value")
    return form.unpack_from(payload)


def _is_description(value: Any) -> bool:
    """Return whether that is an agent's id, a group's id or None, and a version or None."""
    if type(value) is not list or len(value) != 3:
        return False
    agent_id, group_id, version = value
    is_version = version is None or (type(version) is int and 0 <= version <= validation.LARGEST)
    return type(agent_id) is str and (group_id is None or type(group_id) is str) and is_version


def _id(encoded: bytes) -> str:
    if not _ID.fullmatch(encoded):
        raise errors.CheckpointError("names an episode by something that is not a UUID")
    return encoded.decode("ascii")


def _decoded(codec: codec_lib.Codec, content: bytes) -> Any:
    try:
        return codec.decode(content)
    except errors.ReplayError:
        raise
    except Exception as error:  # Raised by a custom codec.
        raise errors.CheckpointError(f"cannot be decoded: {type(error).__name__}: {error}") from error
