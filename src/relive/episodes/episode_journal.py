"""The journal records of an episode buffer, and their replay.

    START     an episode: its id, the agent's id, the group's id or None, the policy's version or None, the bytes of its
              metadata, the start time
    APPEND    the episode's id, observation, action, reward, the policy's version or None if it is that before
    END       the episode's id, the final observation, the status
    ABORT     the episode's id
    CLEAR     nothing
    EVICT     how many episodes and how many transitions were evicted so far; the ids of those that went now
    CARRIED   kinds of their own for START, and for APPEND for each step so far: as those

Each is the call of a method of Replay, see `commands`; observations and actions are the bytes that the codec of
the buffer makes of them. The records of the learner's queue are in `agents.queue_journal`. Each record is written
before its change is applied, except EVICT, which is written after. If EVICT is lost, the episode is back, and is
evicted again when its place is needed. No call waits for EVICT to be on disk: it is synced with the next record.

Episodes that are open when a segment begins are carried over: they are written again after its base. So no open episode
needs an earlier segment, and old segments can be deleted with the finished episodes.
"""

from collections.abc import Iterator
import contextlib
from typing import Any, TypeAlias

from relive import errors
from relive.agents import queue_journal
from relive.episodes import episode as episode_lib
from relive.episodes import episode_state
from relive.episodes import metadata as metadata_lib
from relive.episodes import store as store_lib
from relive.persistence import codec as codec_lib
from relive.persistence import commands
from relive.persistence import journal as journal_lib

Episode: TypeAlias = episode_lib.Episode[Any, Any]
Store: TypeAlias = store_lib.EpisodeStore[Any, Any]

START, APPEND, END, ABORT, CLEAR, EVICT = range(1, 7)
CARRIED = {START: 7, APPEND: 8}
_START = (*episode_state.HEAD, commands.is_finite)
_STEP = (
    episode_lib.is_id,
    commands.is_bytes,
    commands.is_bytes,
    commands.is_finite,
    commands.or_none(commands.is_count),
)
COMMANDS: commands.Table = {
    **queue_journal.COMMANDS,
    START: ("_start_episode", _START),
    APPEND: ("_append_step", _STEP),
    END: ("_end_episode", (episode_lib.is_id, commands.is_bytes, commands.one_of(*episode_lib.FINAL_STATUSES))),
    ABORT: ("_abort_episode", (episode_lib.is_id,)),
    CLEAR: ("_clear", ()),
    EVICT: ("_evict", (commands.is_count, commands.is_count, commands.list_of(episode_lib.is_id))),
    CARRIED[START]: ("_carry_start", _START),
    CARRIED[APPEND]: ("_carry_step", _STEP),
}


class EpisodeJournal(commands.Writer):
    """Writes the changes of a buffer to a journal, before they are applied."""

    def __init__(
        self, journal: journal_lib.Journal, store: Store, replay: "Replay | None", codec: codec_lib.Codec
    ) -> None:
        super().__init__(journal, [] if replay is None else replay.begun)
        self._store, self._codec = store, codec
        self._evicted: list[Episode] = []
        if replay is not None and replay.codec_name != codec.name:
            raise errors.ArgumentError(f"codec must be the one of the journal, {replay.codec_name}, got {codec.name}")

    def start(self, episode: Episode) -> None:
        """Journal the start of an episode."""
        self.write(START, *_start_of(episode))

    def append(self, episode: Episode, observation: Any, action: Any, reward: float, version: int | None) -> None:
        """Journal a step of an episode."""
        if version is not None and version == episode_lib.newest_version(episode):
            version = None
        self.write(APPEND, *self._step(episode, observation, action, reward, version))

    def end(self, episode: Episode, final_observation: Any, status: episode_lib.FinalStatus) -> None:
        """Journal the end of an episode."""
        self.write(END, episode.episode_id, self._codec.encode(final_observation), status)

    def abort(self, episode: Episode) -> None:
        """Journal that an episode ends without a final observation."""
        self.write(ABORT, episode.episode_id)

    def clear(self) -> None:
        """Journal that every episode is removed."""
        self.write(CLEAR)
        with contextlib.suppress(errors.ReplayError):  # The record is written; deleting old segments is retried later.
            self.release_all()

    # Listener of the store.

    def started(self, store: Store, episode: Episode) -> None:
        """Journal the evictions that made room for an episode, or its last transition."""
        self.settle()

    ended = started

    def evicted(self, store: Store, episode: Episode) -> None:
        """Record an eviction for `settle`."""
        self._evicted.append(episode)

    def cleared(self, store: Store) -> None:
        """Do nothing: `clear` has journaled it."""

    def is_delivered(self, episode: Episode) -> bool:
        """Return False: the queue knows."""
        return False

    def settle(self) -> None:
        """Journal recent evictions and delete old segments.

        On failure, as with a full disk, it is retried the next time: the call that evicted them has succeeded.
        """
        with contextlib.suppress(errors.ReplayError):
            if self._evicted:
                ids = [episode.episode_id for episode in self._evicted]
                with self.delayed_syncs():
                    self.write(EVICT, self._store.evicted_episodes, self._store.evicted_transitions, ids)
                self._evicted.clear()
            self.release()

    def _newest(self) -> str | None:
        return _finished_last(self._store)

    def _is_gone(self, newest: str | None) -> bool:
        return newest not in self._store.by_id

    def _carried(self) -> Iterator[tuple[int, bytes]]:
        """Yield the records of the open episodes; none if the base already has them."""
        if not self._journal.num_records:
            return
        for episode in self._store.open.values():
            yield CARRIED[START], commands.encoded(*_start_of(episode))
            versions = dict(episode.version_changes)
            steps = zip(episode.observations, episode.actions, episode.rewards, strict=True)
            for t, step in enumerate(steps):
                yield CARRIED[APPEND], commands.encoded(*self._step(episode, *step, versions.get(t)))

    def _step(self, episode: Episode, observation: Any, action: Any, reward: float, new_version: int | None) -> Any:
        """Return the record of a step, and of the version of the policy if it is another than before."""
        encode = self._codec.encode
        return episode.episode_id, encode(observation), encode(action), reward, new_version


def _start_of(episode: Episode) -> tuple[Any, ...]:
    """Return the record of the start of an episode."""
    return *episode_state.head_of(episode), episode.start_time


def _finished_last(store: Store) -> str | None:
    """Return the id of the stored episode that finished last; None if there is none."""
    return store.finished[-1].episode_id if len(store.finished) else None


class Replay(queue_journal.QueueReplay):
    """Replays the records of a journal into an EpisodeReplayBuffer.

    Args:
        buffer: The buffer.
        codec: The codec the journal was written with.
    """

    def __init__(self, buffer: Any, codec: codec_lib.Codec) -> None:
        super().__init__(buffer)
        self._codec = codec
        self.codec_name = codec.name
        """The name of the codec that the journal was written with."""
        self._limits = self._store.max_transitions, self._store.max_episodes
        # Evictions are in the journal, so the limits are not applied.
        self._store.set_limits(None, None)
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
        commands.replay(COMMANDS, self, kind, payload)

    def end(self) -> None:
        """Finish the replay: there are no more records.

        Raises:
            CheckpointError: More steps are stored or evicted than were ever appended.
        """
        self._begin_episode()
        try:
            self._store.check_counters()
        except errors.CorruptionError as error:
            raise errors.CheckpointError(str(error)) from error
        self._store.set_limits(*self._limits)
        super().end()

    # The calls of the records; those for an episode that is gone are ignored.

    def _start_episode(
        self,
        episode_id: str,
        agent_id: str,
        group_id: str | None,
        policy_version: int | None,
        metadata: bytes,
        start_time: float,
    ) -> None:
        """Start an episode at the next record but EVICT."""
        if episode_id in self._store.by_id:
            raise errors.CheckpointError(f"starts episode {episode_id}, which is stored")
        self._starting = episode_lib.Episode(
            episode_id=episode_id,
            agent_id=agent_id,
            start_time=start_time,
            group_id=group_id,
            policy_version=policy_version,
            metadata=metadata_lib.decoded(metadata),
        )

    def _append_step(
        self, episode_id: str, observation: bytes, action: bytes, reward: float, policy_version: int | None
    ) -> None:
        """Append a step; of an episode that is gone, it is counted alone."""
        episode = self._store.open.get(episode_id)
        if episode is None:
            self._store.inserted += 1
            return
        step = self._decoded(observation), self._decoded(action)
        try:
            self._store.append(episode, *step, reward, policy_version)
        except errors.ArgumentError as error:
            raise errors.CheckpointError(f"appends an invalid step: {error}") from error

    def _end_episode(self, episode_id: str, final_observation: bytes, status: episode_lib.FinalStatus) -> None:
        episode = self._store.open.get(episode_id)
        if episode is not None:
            self._store.end(episode, self._decoded(final_observation), status)

    def _abort_episode(self, episode_id: str) -> None:
        episode = self._store.open.get(episode_id)
        if episode is not None:
            self._store.abort(episode)

    def _clear(self) -> None:
        self._store.clear()

    def _evict(self, episodes: int, transitions: int, episode_ids: list[str]) -> None:
        """Evict episodes, and set how many were evicted so far."""
        for episode_id in episode_ids:
            self._store.forget_oldest(episode_id)
        self._store.evicted_episodes, self._store.evicted_transitions = episodes, transitions
        self._begin_episode()

    def _carry_start(self, episode_id: str, *described: Any) -> None:
        """Start an episode that is carried over, unless it is known."""
        self._takes_carried = episode_id not in self._store.by_id
        if self._takes_carried:
            self._start_episode(episode_id, *described)

    def _carry_step(self, *step: Any) -> None:
        """Append a step of the last of them; the base has counted it."""
        if self._takes_carried:
            self._append_step(*step)
            self._store.inserted -= 1

    def _begin_episode(self) -> None:
        """Start the episode of the last record, if that was a start."""
        if self._starting is not None:
            self._store.start(self._starting)
            self._starting = None

    def _decoded(self, content: bytes) -> Any:
        return episode_state.decoded("holds a value that", self._codec, content)
