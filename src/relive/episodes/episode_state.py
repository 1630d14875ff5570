"""The checkpointed state of an episode store: all episodes, which are open, and the order in which they finished.

    episodes    e0           e1               e2        tuples, in the order in which the episodes started [E]
    steps       0 1 2        0 1              0 1 2     those of one episode after those of another [S]
    bytes       0 1 2 3      0 1              0 1 2 3   observations, one more where an episode has its final one [O]

Tuples, observations and actions are concatenated as encoded by a codec, with the position where each ends.
"""

from collections.abc import Callable, Iterator, Sequence
import io
import itertools
import math
import time
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.episodes import metadata as metadata_lib
from relive.episodes import store as store_lib
from relive.episodes import versions
from relive.persistence import codec as codec_lib
from relive.persistence import commands
from relive.persistence import state

Episode: TypeAlias = episode_lib.Episode[Any, Any]
Store: TypeAlias = store_lib.EpisodeStore[Any, Any]

_AT_ONCE = 1024
"""So many values are encoded before they are copied to the others."""
_PLAIN = codec_lib.PlainCodec()
HEAD: tuple[commands.Check, ...] = (
    episode_lib.is_id,
    commands.is_text,
    commands.or_none(commands.is_text),
    commands.or_none(commands.is_count),
    commands.is_bytes,
)
"""What the values of `head_of` may be."""


def head_of(episode: Episode) -> tuple[Any, ...]:
    """Return what is known of an episode when it starts."""
    metadata = metadata_lib.encoded(episode.metadata)
    return episode.episode_id, episode.agent_id, episode.group_id, episode.policy_version, metadata


def _is_change(value: Any) -> bool:
    return type(value) is tuple and len(value) == 2 and all(map(commands.is_count, value))


_EPISODE = (
    *HEAD,
    commands.one_of("IN_PROGRESS", *episode_lib.FINAL_STATUSES),
    commands.list_of(_is_change),
    commands.is_count,
    commands.is_count,
)


def _described(episode: Episode) -> tuple[Any, ...]:
    """Return what is known of an episode but its steps, and how many observations and actions it has."""
    sizes = len(episode.observations), len(episode.actions)
    return *head_of(episode), episode.status, episode.version_changes, *sizes


class _Encoded:
    """A column of concatenated encoded values, which are encoded when it is read.

    Encoding runs twice, but no memory is needed except for the end positions.

    Args:
        rows: The values, by episode [E][...].
        codec: Encodes the values.
        name: Returns the name of a value in errors, given its row and its position in the row.
    """

    def __init__(self, rows: Sequence[Sequence[Any]], codec: codec_lib.Codec, name: Callable[[int, int], str]) -> None:
        self._rows, self._codec, self._name = rows, codec, name
        self._begins = np.cumsum([0, *map(len, rows)])
        count = int(self._begins[-1])
        self.ends = np.fromiter(map(len, self._encoded(0, count)), np.int64, count)
        np.cumsum(self.ends, out=self.ends)
        self.shape, self.dtype = (int(self.ends[-1]) if count else 0,), np.dtype(np.uint8)

    def read(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return the bytes [start, stop)."""
        first, last = np.searchsorted(self.ends, (start, stop - 1), side="right").tolist()
        begin = int(self.ends[first - 1]) if first else 0
        content, encoded = io.BytesIO(), self._encoded(first, last + 1)
        for number in range(first, last + 1, _AT_ONCE):
            values = list(itertools.islice(encoded, _AT_ONCE))
            ends = np.fromiter(map(len, values), np.int64, len(values)).cumsum() + begin + content.tell()
            changed = np.flatnonzero(ends != self.ends[number : number + len(values)])
            if len(changed):
                raise errors.CheckpointError(f"{self._named(number + int(changed[0]))} changed while it was saved")
            content.write(b"".join(values))
        return np.frombuffer(content.getbuffer(), np.uint8)[start - begin : stop - begin]

    def read_into(self, rows: npt.NDArray[Any], start: int) -> None:
        """Write the bytes from `start` on into an array."""
        rows[...] = self.read(start, start + len(rows))

    def _encoded(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the values from number `start` to `stop`, encoded."""
        row, place = self._place_of(start)
        values = itertools.islice(itertools.chain.from_iterable(self._rows[row:]), place, place + stop - start)
        for number, value in enumerate(values, start):
            try:
                yield self._codec.encode(value)
            except errors.ReplayError as error:
                raise errors.CheckpointError(f"{self._named(number)} cannot be saved: {error}") from error

    def _place_of(self, number: int) -> tuple[int, int]:
        row = int(self._begins.searchsorted(number, side="right")) - 1
        return row, number - int(self._begins[row])

    def _named(self, number: int) -> str:
        return self._name(*self._place_of(number))


class Snapshot:
    """The contents of a store at one moment; it may change afterwards. O(open episodes), and a pointer per episode.

    Attributes:
        episodes: All episodes, in the order in which they started.
    """

    def __init__(self, store: Store) -> None:
        copies = {episode_id: episode.snapshot() for episode_id, episode in store.open.items()}
        self.episodes = list((store.by_id | copies).values())
        self._finished = list(store.finished)
        pools = [store.versions.pools[version] for version in (versions.ALL, *store.versions.known)]
        self._growing = [episode.episode_id for pool in pools for episode in pool.growing]
        now = time.monotonic()
        self._ages = [now - started for started in store.started.values()]
        self._drawn, self._counters, self._policy_version = store.drawn.copy(), store.counters(), store.policy_version

    def state_dict(self, codec: codec_lib.Codec) -> state.State:
        """Return the state of the store.

        Raises:
            CheckpointError: The codec cannot encode something.
        """
        episodes = self.episodes
        ids = [episode.episode_id for episode in episodes]
        places = {episode_id: place for place, episode_id in enumerate(ids)}

        def named(what: str) -> Callable[[int, int], str]:
            return lambda row, place: f"{what} {place} of episode {ids[row]}"

        described = _Encoded([[_described(each)] for each in episodes], _PLAIN, named("name"))
        observations = _Encoded([episode.observations for episode in episodes], codec, named("observation"))
        actions = _Encoded([episode.actions for episode in episodes], codec, named("action"))
        rewards = itertools.chain.from_iterable(episode.rewards for episode in episodes)
        return {
            "codec": codec.name,
            "counters": self._counters,
            "policy_version": self._policy_version,
            "arrays": {
                "episodes": described,
                "episode_end": described.ends,
                "episode_start_time": np.array([episode.start_time for episode in episodes], np.float64),
                "observations": observations,
                "observation_end": observations.ends,
                "actions": actions,
                "action_end": actions.ends,
                "rewards": np.fromiter(rewards, np.float64),
                "finished": np.array([places[episode.episode_id] for episode in self._finished], np.int64),
                "growing": np.array([places[episode_id] for episode_id in self._growing], np.int64),
                "open_age": np.array(self._ages, np.float64),
                "episode_drawn": np.array([episode_id in self._drawn for episode_id in ids], np.bool_),
            },
        }


def base_state_dict(store: Store, codec: codec_lib.Codec) -> state.State:
    """Return the state as if everything stored had just been evicted."""
    empty = Snapshot(store_lib.EpisodeStore(None, None)).state_dict(codec)
    return {**empty, "counters": store.counters(), "policy_version": store.policy_version}


def load(given: state.StateReader, store: Store, codec: codec_lib.Codec) -> None:
    """Restore an empty store.

    Raises:
        CheckpointError: The state is invalid.
    """
    if given.text("codec") != codec.name:
        raise errors.CheckpointError(
            f"codec must be the one of the checkpoint, {given.text('codec')}, got {codec.name}"
        )
    counters = given.part("counters")
    for name in store_lib.COUNTERS:
        setattr(store, name, counters.integer(name))
    if given.value("policy_version") is not None:
        store.policy_version = given.integer("policy_version", most=validation.LARGEST)
    episodes = _episodes(given, codec)
    num_open = sum(episode.status == "IN_PROGRESS" for episode in episodes)
    started = iter((time.monotonic() - _times(given, "open_age", num_open, 0)).tolist())
    for episode in episodes:
        store.put(episode, next(started) if episode.status == "IN_PROGRESS" else 0.0)
    drawn = given.booleans("episode_drawn", len(episodes)).tolist()
    store.drawn.update(itertools.compress(store.by_id, drawn))
    for place in given.integers("finished", len(episodes) - num_open, 0, len(episodes) - 1).tolist():
        for version, count in versions.runs(episodes[place]):
            store.versions.pool(version).finished.append(episodes[place], count)
    _load_growing(given, store, episodes)
    try:
        store.check()
    except errors.CorruptionError as error:
        raise errors.CheckpointError(f"episodes cannot be: {error}") from error


def _times(given: state.StateReader, name: str, count: int, least: float) -> arrays_lib.Array:
    times = given.array(name, np.float64, (count,))
    if not (np.isfinite(times) & (times >= least)).all():
        raise errors.CheckpointError(f"array {name} must hold finite numbers of at least {least}")
    return times


def _load_growing(given: state.StateReader, store: Store, episodes: Sequence[Episode]) -> None:
    """Enter the transitions of the open episodes, of all and of each version in the order that decides draws."""
    counts = {
        (version, place): count
        for place, episode in enumerate(episodes)
        if episode.status == "IN_PROGRESS" and len(episode)
        for version, count in versions.runs(episode)
    }
    places = given.integers("growing", len(counts), 0, len(episodes) - 1).tolist()
    found = list(zip([version for version, _ in sorted(counts)], places, strict=True))
    if sorted(found) != sorted(counts):
        raise errors.CheckpointError("array growing must hold the places of those episodes, once a version")
    for version, place in found:
        store.versions.pool(version).growing.put(episodes[place], counts[version, place])


def _episodes(given: state.StateReader, codec: codec_lib.Codec) -> list[Episode]:
    ends = given.array("episode_end", np.int64, (None,))
    described = [
        commands.checked("array episodes has one", _EPISODE, each)
        for each in _decoded(given, "episodes", "episode_end", len(ends), _PLAIN)
    ]
    num_observations, num_actions = (sum(each[place] for each in described) for place in (-2, -1))
    observations = _decoded(given, "observations", "observation_end", num_observations, codec)
    actions = _decoded(given, "actions", "action_end", num_actions, codec)
    rewards = iter(given.array("rewards", np.float64, (num_actions,)).tolist())
    times = iter(_times(given, "episode_start_time", len(described), -math.inf).tolist())
    episodes = [
        episode_lib.Episode(
            episode_id=episode_id,
            agent_id=agent_id,
            observations=list(itertools.islice(observations, size)),
            actions=list(itertools.islice(actions, steps)),
            rewards=list(itertools.islice(rewards, steps)),
            status=status,
            start_time=next(times),
            group_id=group_id,
            policy_version=policy_version,
            version_changes=changes,
            metadata=metadata_lib.decoded(metadata),
        )
        for episode_id, agent_id, group_id, policy_version, metadata, status, changes, size, steps in described
    ]
    if len({episode.episode_id for episode in episodes}) < len(episodes):
        raise errors.CheckpointError("array episodes must hold each id once")
    return episodes


def _decoded(given: state.StateReader, name: str, ends_name: str, count: int, codec: codec_lib.Codec) -> Iterator[Any]:
    """Return that many decoded values, whose bytes are read in chunks."""
    ends = given.integers(ends_name, count, 0, validation.LARGEST)
    if (np.diff(ends, prepend=0) < 0).any():
        raise errors.CheckpointError(f"array {ends_name} must not fall")
    column = given.column(name, np.uint8, (int(ends[-1]) if count else 0,))
    values: list[Any] = []
    begin = 0
    while len(values) < count:
        first = len(values)
        last = max(first + 1, int(np.searchsorted(ends, begin + state.CHUNK, side="right")))
        places = [0, *(ends[first:last] - begin).tolist()]
        content, begin = column.read(begin, int(ends[last - 1])).tobytes(), int(ends[last - 1])
        values += [decoded(f"array {name}", codec, content[i:j]) for i, j in itertools.pairwise(places)]
    return iter(values)


def decoded(what: str, codec: codec_lib.Codec, content: bytes) -> Any:
    """Return the value of bytes, which are untrusted, by a codec that may be the user's own.

    Raises:
        CheckpointError: There is none; the error begins with `what`.
    """
    try:
        return codec.decode(content)
    except Exception as error:
        reason = str(error) if isinstance(error, errors.ReplayError) else f"{type(error).__name__}: {error}"
        raise errors.CheckpointError(f"{what} cannot be decoded: {reason}") from error
