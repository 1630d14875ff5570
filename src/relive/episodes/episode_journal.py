"""What an episode buffer writes to a journal, and how that is played back.

    START     the episode's id, its start_time f64, and the agent's id as a PlainCodec writes it
    APPEND    the episode's id, the reward f64, the length of the observation u32, observation and action
    END       the episode's id, the status u8 (1 COMPLETED, 2 TRUNCATED, 3 ABORTED), and the final observation
    ABORT     the episode's id
    CLEAR     nothing
    EVICT     how many episodes and how many transitions were evicted so far, u64 each; the ids of those that went now
    STARTED   as START, but in the place of the agent's id a list: that id, the group's id, and the policy's version
    STEPPED   as APPEND, but with the policy's version u64 before the observation, where it is another than before
    LEARNED   the learner's version u64

All numbers are little endian, an id is 36 ASCII characters, and values are as the codec writes them. Each is written
before what it tells of happens; but EVICT after it. If it never comes, the episode is back, and is evicted again by the
next one who needs its place.
"""

from collections.abc import Callable
import contextlib
import itertools
import math
import re
import struct
from typing import Any, TypeAlias

from relive import errors
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.episodes import store as store_lib
from relive.persistence import codec as codec_lib
from relive.persistence import journal as journal_lib

Episode: TypeAlias = episode_lib.Episode[Any, Any]
Store: TypeAlias = store_lib.EpisodeStore[Any, Any]

START, APPEND, END, ABORT, CLEAR, EVICT, STARTED, STEPPED, LEARNED = range(1, 10)
_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ID_SIZE = 36
_APPEND = struct.Struct("<36sdI")
_STEPPED = struct.Struct("<36sdIQ")
_START = struct.Struct("<36sd")
_END = struct.Struct("<36sB")
_EVICT = struct.Struct("<QQ")
_LEARNED = struct.Struct("<Q")


class EpisodeJournal:
    """Writes to a journal what happens to a buffer, just before it does."""

    def __init__(
        self, journal: journal_lib.Journal, store: Store, replay: "Replay | None", codec: codec_lib.Codec
    ) -> None:
        self._journal, self._store, self._codec = journal, store, codec
        self.evicted: list[Episode] = []
        """The episodes that have gone to make room since `settle`."""
        # The first record of each segment, and how many episodes that are stored have begun in it.
        self._segments: list[list[int]] = []
        self._segment_of: dict[str, list[int]] = {}
        if replay is not None:
            if replay.codec_name != codec.name:
                raise errors.ArgumentError(
                    f"codec must be the one of the journal, {replay.codec_name}, got {codec.name}"
                )
            self._segments = [[first, 0] for first in replay.firsts]
            for episode in store:
                segment = self._segments[replay.segment_of.get(episode.episode_id, 0)]
                segment[1] += 1
                self._segment_of[episode.episode_id] = segment

    def begin(self, base: Callable[[], bytes]) -> None:
        """Make the journal ready; `base` returns what its next segment begins with."""

        def based() -> bytes:
            payload = base()
            self._segments.append([self._journal.num_records, 0])
            return payload

        self._journal.begin(based)
        self._store.evicted = self._hear
        for episode in self._store:
            if episode.episode_id not in self._segment_of:
                self._count(episode.episode_id)

    def start(self, episode: Episode) -> None:
        """Write that an episode starts."""
        head = _START.pack(episode.episode_id.encode(), episode.start_time)
        if episode.group_id is None and episode.policy_version is None:
            self._journal.append(START, head + codec_lib.PlainCodec().encode(episode.agent_id))
        else:
            described = [episode.agent_id, episode.group_id, episode.policy_version]
            self._journal.append(STARTED, head + codec_lib.PlainCodec().encode(described))
        self._count(episode.episode_id)

    def append(self, episode_id: str, observation: Any, action: Any, reward: float, policy_version: int | None) -> None:
        """Write that an episode gets a step."""
        encode = self._codec.encode
        encoded = encode(observation)
        kind, head = APPEND, _APPEND.pack(episode_id.encode(), reward, len(encoded))
        if policy_version is not None and policy_version != self._store[episode_id].newest_version:
            kind, head = STEPPED, _STEPPED.pack(episode_id.encode(), reward, len(encoded), policy_version)
        self._journal.append(kind, b"".join([head, encoded, encode(action)]))

    def end(self, episode_id: str, final_observation: Any, status: episode_lib.FinalStatus) -> None:
        """Write that an episode ends."""
        head = _END.pack(episode_id.encode(), 1 + episode_lib.FINAL_STATUSES.index(status))
        self._journal.append(END, head + self._codec.encode(final_observation))

    def abort(self, episode_id: str) -> None:
        """Write that an episode ends without a final observation."""
        self._journal.append(ABORT, episode_id.encode())

    def learn(self, policy_version: int) -> None:
        """Write which version the learner is of."""
        self._journal.append(LEARNED, _LEARNED.pack(policy_version))

    def clear(self) -> None:
        """Write that every episode goes."""
        self._journal.append(CLEAR, b"")
        self._segment_of.clear()
        for segment in self._segments:
            segment[1] = 0
        with contextlib.suppress(errors.ReplayError):  # Written it is: what could not be deleted is, the next time.
            self._prune()

    def _hear(self, episode: Episode) -> None:
        """Record that an episode has gone to make room."""
        self.evicted.append(episode)
        self._segment_of.pop(episode.episode_id, [0, 0])[1] -= 1

    def _count(self, episode_id: str) -> None:
        segment = self._segment_of[episode_id] = self._segments[-1]
        segment[1] += 1

    def settle(self) -> None:
        """Write which episodes have gone to make room, just after they did.

        If that fails, as on a full disk, it is written the next time: the call that made them go has happened.
        """
        if not self.evicted:
            return
        counts = self._store.counts()
        parts = [_EVICT.pack(counts["evicted_episodes"], counts["evicted_transitions"])]
        parts += [episode.episode_id.encode() for episode in self.evicted]
        with contextlib.suppress(errors.ReplayError):
            self._journal.append(EVICT, b"".join(parts))
            self.evicted.clear()
            self._prune()

    def _prune(self) -> None:
        """Let go of segments that no episode is left of; what made the last one go is on the disk first."""
        gone = len(list(itertools.takewhile(lambda segment: not segment[1], self._segments[:-1])))
        if gone:
            self._journal.sync()
            self._journal.prune(self._segments[gone][0])
            del self._segments[:gone]


class Replay:
    """Plays back what a journal holds."""

    def __init__(self, store: Store, codec: codec_lib.Codec, ended: Callable[[], None] = lambda: None) -> None:
        self._store, self._codec, self._ended = store, codec, ended
        self.codec_name = codec.name
        """The name of the codec that the journal was written with."""
        self._limits = store.max_transitions, store.max_episodes
        # What goes to make room is in the journal, and limits would only repeat it.
        store.set_limits(None, None)
        self.firsts: list[int] = []
        """The first record of each segment."""
        self.segment_of: dict[str, int] = {}
        """Which of them each episode that has started since has begun in."""

    def base(self, number: int) -> None:
        """Record that a segment begins with the record of that number."""
        self.firsts.append(number)

    def apply(self, kind: int, payload: bytes) -> None:
        """Do what a record tells of. What it tells of an episode that began before the first segment is past.

        Raises:
            CheckpointError: There is no such record.
        """
        if kind == CLEAR and not payload:
            self._store.clear()
        elif kind == EVICT and len(payload) % _ID_SIZE == _EVICT.size:
            counts = _EVICT.unpack_from(payload)
            if max(counts) > validation.LARGEST:
                raise errors.CheckpointError(f"says that {max(counts)} were evicted, more than there can be")
            for start in range(_EVICT.size, len(payload), _ID_SIZE):
                self._store.forget_oldest(_id(payload[start : start + _ID_SIZE]))
            self._store.set_evicted(*counts)
        elif kind == LEARNED and len(payload) == _LEARNED.size:
            (version,) = _LEARNED.unpack(payload)
            if not (self._store.policy_version or 0) <= version <= validation.LARGEST:
                raise errors.CheckpointError(f"says that the learner is of version {version}, which cannot be")
            self._store.policy_version = version
        elif kind in (START, STARTED) and len(payload) >= _ID_SIZE:
            self._start(payload, is_described=kind == STARTED)
        elif kind in (APPEND, STEPPED) and len(payload) >= _ID_SIZE:
            self._append(payload, _APPEND if kind == APPEND else _STEPPED)
        elif kind in (END, ABORT) and len(payload) >= _ID_SIZE:
            {END: self._end, ABORT: self._abort}[kind](payload)
        else:
            raise errors.CheckpointError(f"is of kind {kind} with {len(payload)} bytes, which cannot be here")

    def end(self) -> None:
        """Record that there is no more."""
        self._store.set_limits(*self._limits)
        self._ended()

    def _start(self, payload: bytes, is_described: bool) -> None:
        encoded, start_time = _head(_START, payload)
        described = codec_lib.PlainCodec().decode(payload[_START.size :])
        if not is_described:
            described = [described, None, None]
        episode_id = _id(encoded)
        if not _is_description(described) or not math.isfinite(start_time) or self._store.has(episode_id):
            raise errors.CheckpointError("starts an episode that cannot be")
        agent_id, group_id, policy_version = described
        self._store.start(
            episode_lib.Episode(
                episode_id=episode_id,
                agent_id=agent_id,
                start_time=start_time,
                group_id=group_id,
                policy_version=policy_version,
            )
        )
        self.segment_of[episode_id] = len(self.firsts) - 1

    def _append(self, payload: bytes, form: struct.Struct) -> None:
        encoded, reward, length, *version = _head(form, payload)
        place = form.size + length
        if place > len(payload) or not math.isfinite(reward):
            raise errors.CheckpointError("appends a step that cannot be")
        episode_id = _id(encoded)
        if episode_id in self._store.open:
            step = _decoded(self._codec, payload[form.size : place]), _decoded(self._codec, payload[place:])
            try:
                self._store.append(episode_id, *step, reward, *version)
            except errors.ArgumentError as error:
                raise errors.CheckpointError(f"appends a step that cannot be: {error}") from error
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
        episode_id = _id(payload)  # Nothing follows it.
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
        raise errors.CheckpointError("names an episode by what is no UUID")
    return encoded.decode("ascii")


def _decoded(codec: codec_lib.Codec, content: bytes) -> Any:
    try:
        return codec.decode(content)
    except errors.ReplayError:
        raise
    except Exception as error:  # Of a codec that is the user's own.
        raise errors.CheckpointError(f"cannot be decoded: {type(error).__name__}: {error}") from error
