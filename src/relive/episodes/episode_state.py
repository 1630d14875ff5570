"""The checkpointed state of an episode store: all episodes, which are open, and the order in which they finished.

    episodes    e0           e1               e2        in the order in which they started [E]
    steps       0 1 2        0 1              0 1 2     those of one episode after those of another [S]
    bytes       0 1 2 3      0 1              0 1 2 3   observations, one more where an episode has its final one [O]

Observations and actions are concatenated as encoded by a codec, with the position where each ends.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import io
import itertools
import re
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.common import arrays
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.episodes import store as store_lib
from relive.episodes import versions
from relive.persistence import codec as codec_lib
from relive.persistence import commands
from relive.persistence import state

Episode: TypeAlias = episode_lib.Episode[Any, Any]
Snapshot: TypeAlias = store_lib.Snapshot[Any, Any]

_STATUSES: tuple[episode_lib.EpisodeStatus, ...] = ("IN_PROGRESS", *episode_lib.FINAL_STATUSES)
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_COUNTS = ("inserted", "sampled", "evicted_episodes", "evicted_transitions", "aborted_steps")
_NO_VERSION = -1
_AT_ONCE = 1024
"""So many values are encoded before they are copied to the others."""
HEAD: tuple[commands.Check, ...] = (
    episode_lib.is_id,
    commands.is_text,
    commands.or_none(commands.is_text),
    commands.is_finite,
    commands.or_none(commands.is_count),
)
"""What the values of `head_of` may be."""


def head_of(episode: Episode) -> tuple[Any, ...]:
    """Return what is known of an episode when it starts."""
    return episode.episode_id, episode.agent_id, episode.group_id, episode.start_time, episode.policy_version


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
        self._begins = np.concatenate([[0], np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)))])
        lengths = (len(content) for content in self._encoded(0, int(self._begins[-1])))
        self.ends = np.fromiter(lengths, np.int64, int(self._begins[-1]))
        np.cumsum(self.ends, out=self.ends)
        self.shape = (int(self.ends[-1]) if len(self.ends) else 0,)
        self.dtype = np.dtype(np.uint8)

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
                value = number + int(changed[0])
                row = int(self._begins.searchsorted(value, side="right")) - 1
                raise errors.CheckpointError(
                    f"{self._name(row, value - int(self._begins[row]))} changed while it was saved"
                )
            content.write(b"".join(values))
        return np.frombuffer(content.getbuffer(), np.uint8)[start - begin : stop - begin]

    def _encoded(self, start: int, stop: int) -> Iterator[bytes]:
        """Yield the encoded values that contain the bytes [start, stop)."""
        row = int(self._begins.searchsorted(start, side="right")) - 1
        while start < stop:
            begin, end = int(self._begins[row]), min(int(self._begins[row + 1]), stop)
            for place in range(start - begin, end - begin):
                try:
                    yield self._codec.encode(self._rows[row][place])
                except errors.ReplayError as error:
                    raise errors.CheckpointError(f"{self._name(row, place)} cannot be saved: {error}") from error
            start, row = end, row + 1


def state_dict(snapshot: Snapshot, codec: codec_lib.Codec) -> state.State:
    """Return the state of a store.

    Raises:
        CheckpointError: The codec cannot encode something.
    """
    episodes = list(snapshot.episodes.values())
    places = {episode: place for place, episode in enumerate(episodes)}

    def named(what: str) -> Callable[[int, int], str]:
        return lambda row, place: f"{what} {place} of episode {episodes[row].episode_id}"

    def places_of(some: Iterable[Episode]) -> arrays.Ints:
        return np.array([places[episode] for episode in some], np.int64)

    agents = _Encoded([[episode.agent_id] for episode in episodes], codec_lib.PlainCodec(), lambda *_: "an agent_id")
    observations = _Encoded([episode.observations for episode in episodes], codec, named("observation"))
    actions = _Encoded([episode.actions for episode in episodes], codec, named("action"))
    steps = np.array([len(episode.actions) for episode in episodes], np.int64)
    return {
        "codec": codec.name,
        "counters": dict(snapshot.counts),
        "arrays": {
            "episode_id": np.array([episode.episode_id for episode in episodes], "S36"),
            "episode_agent": agents,
            "episode_agent_end": agents.ends,
            "episode_status": np.array([_STATUSES.index(episode.status) for episode in episodes], np.uint8),
            "episode_steps": steps,
            "episode_has_final": np.array([len(e.observations) > len(e.actions) for e in episodes], np.bool_),
            "episode_start_time": np.array([episode.start_time for episode in episodes], np.float64),
            "open_age": np.array(snapshot.open_ages, np.float64),
            "episode_drawn": np.array([episode in snapshot.drawn for episode in episodes], np.bool_),
            "finished": places_of(snapshot.finished),
            "growing": places_of(snapshot.growing),
            "rewards": _of_steps(episodes, steps, np.dtype(np.float64), lambda episode: episode.rewards),
            "observations": observations,
            "observation_end": observations.ends,
            "actions": actions,
            "action_end": actions.ends,
            **_groups_of(episodes),
            **_versions_of(episodes, steps),
            "version_growing": places_of(episode for _, episode in snapshot.growing_by_version),
        },
    }


def _of_steps(
    episodes: Sequence[Episode], steps: arrays.Ints, dtype: np.dtype[Any], values: Callable[[Episode], Sequence[Any]]
) -> state.LazyArray:
    """Return the values of all steps, episode by episode, as a lazy column."""
    ends = steps.cumsum()

    def read(start: int, stop: int) -> arrays.Array:
        first, last = np.searchsorted(ends, (start, stop - 1), side="right").tolist()
        found = itertools.chain.from_iterable(map(values, episodes[first : last + 1]))
        before = start - int(ends[first] - steps[first])
        return np.fromiter(itertools.islice(found, before, before + stop - start), dtype, stop - start)

    return state.LazyArray((int(ends[-1]) if len(ends) else 0,), dtype, read)


def _groups_of(episodes: Sequence[Episode]) -> dict[str, Any]:
    if all(episode.group_id is None for episode in episodes):
        return {}
    groups = _Encoded([[episode.group_id] for episode in episodes], codec_lib.PlainCodec(), lambda *_: "a group_id")
    return {"episode_group": groups, "episode_group_end": groups.ends}


def _versions_of(episodes: Sequence[Episode], steps: arrays.Ints) -> dict[str, Any]:
    """Return the policy versions of starts and steps, if any."""
    answer: dict[str, Any] = {}
    if any(episode.policy_version is not None for episode in episodes):
        answer["episode_policy_version"] = np.array([_number(episode.policy_version) for episode in episodes])
    if any(episode.version_changes for episode in episodes):

        def versions(episode: Episode) -> list[int]:
            return [_number(version) for version in episode.policy_versions]

        answer["policy_version"] = _of_steps(episodes, steps, np.dtype(np.int64), versions)
    return answer


def _number(version: int | None) -> int:
    return _NO_VERSION if version is None else version


def load(given: state.StateReader, codec: codec_lib.Codec) -> Snapshot:
    """Return the snapshot described by a state.

    Raises:
        CheckpointError: The state is invalid.
    """
    if given.text("codec") != codec.name:
        raise errors.CheckpointError(
            f"codec must be the one of the checkpoint, {given.text('codec')}, got {codec.name}"
        )
    counters = given.part("counters")
    episodes = _episodes(given, codec)
    is_open = np.array([episode.status == "IN_PROGRESS" for episode in episodes], np.bool_)
    finished = _places(given, "finished", np.flatnonzero(~is_open))
    is_growing = is_open & np.array([len(episode) > 0 for episode in episodes], np.bool_)
    growing = _places(given, "growing", np.flatnonzero(is_growing)).tolist()
    ages = given.array("open_age", np.float64, (int(is_open.sum()),))
    if not (np.isfinite(ages) & (ages >= 0)).all():
        raise errors.CheckpointError("array open_age must hold finite numbers of at least 0")
    drawn = np.flatnonzero(given.booleans("episode_drawn", len(episodes))).tolist()
    counts = {name: counters.integer(name) for name in _COUNTS}
    if counters.has("policy_version"):
        counts["policy_version"] = counters.integer("policy_version", most=validation.LARGEST)
    _check_counts(counts, episodes, len(drawn))
    return store_lib.Snapshot(
        episodes={episode.episode_id: episode for episode in episodes},
        finished=[episodes[place] for place in finished.tolist()],
        growing=[episodes[place] for place in growing],
        open_ages=ages.tolist(),
        drawn=[episodes[place] for place in drawn],
        counts=counts,
        growing_by_version=_growing_by_version(given, episodes, growing),
    )


def _check_counts(counts: dict[str, int], episodes: Sequence[Episode], num_drawn: int) -> None:
    """Raise CheckpointError if the counters cannot be those of a store with these episodes."""
    waiting = sum(episode.status == "IN_PROGRESS" and bool(episode.actions) for episode in episodes)
    least = sum(map(len, episodes)) + waiting + counts["evicted_transitions"] + counts["aborted_steps"]
    if counts["inserted"] < least:
        raise errors.CheckpointError(
            f"counters/inserted must be at least {least}, the steps that are stored, evicted or aborted, "
            f"got {counts['inserted']}"
        )
    if counts["sampled"] < num_drawn:
        raise errors.CheckpointError(
            f"counters/sampled must be at least {num_drawn}, the episodes that were drawn, got {counts['sampled']}"
        )


def _places(given: state.StateReader, name: str, expected: arrays.Ints) -> arrays.Ints:
    """Return the positions of exactly the expected episodes, in any order."""
    places = given.integers(name, len(expected), 0, max(len(expected), int(expected.max(initial=0))))
    if not np.array_equal(np.sort(places), expected):
        raise errors.CheckpointError(f"array {name} must hold the places of those episodes, once each")
    return places


def _episodes(given: state.StateReader, codec: codec_lib.Codec) -> list[Episode]:
    ids = given.array("episode_id", "S36", (None,))
    count = len(ids)
    names = [name.decode("latin-1") for name in ids.tolist()]
    if len(set(names)) != count or not all(map(_ID.fullmatch, names)):
        raise errors.CheckpointError("array episode_id must hold UUIDs, each once")
    statuses = given.array("episode_status", np.uint8, (count,))
    steps = given.integers("episode_steps", count, 0, validation.LARGEST)
    has_final = given.booleans("episode_has_final", count)
    if (statuses >= len(_STATUSES)).any():
        raise errors.CheckpointError(f"array episode_status must hold numbers below {len(_STATUSES)}")
    is_possible = np.array([[True, False, False, True], [False, True, True, True]])[has_final.astype(int), statuses]
    if not is_possible.all():
        raise errors.CheckpointError("array episode_has_final must be true where an episode ended, and nowhere else")
    start_times = given.array("episode_start_time", np.float64, (count,))
    total = sum(steps.tolist())
    rewards = given.array("rewards", np.float64, (total,))
    if not (np.isfinite(start_times).all() and np.isfinite(rewards).all()):
        raise errors.CheckpointError("arrays rewards and episode_start_time must hold finite numbers")
    agents = _decoded(given, "episode_agent", "episode_agent_end", count, codec_lib.PlainCodec())
    observations = _decoded(given, "observations", "observation_end", total + int(has_final.sum()), codec)
    actions = _decoded(given, "actions", "action_end", total, codec)
    reward_list = iter(rewards.tolist())
    groups = _groups(given, count)
    starts, changes = _load_versions(given, steps)
    episodes = []
    for place in range(count):
        length = int(steps[place])
        agent = next(agents)
        if type(agent) is not str:
            raise errors.CheckpointError("array episode_agent must hold strings")
        group = next(groups)
        if group is not None and type(group) is not str:
            raise errors.CheckpointError("array episode_group must hold strings, and None")
        episodes.append(
            episode_lib.Episode(
                episode_id=names[place],
                agent_id=agent,
                observations=list(itertools.islice(observations, length + int(has_final[place]))),
                actions=list(itertools.islice(actions, length)),
                rewards=list(itertools.islice(reward_list, length)),
                status=_STATUSES[int(statuses[place])],
                start_time=float(start_times[place]),
                group_id=group,
                policy_version=starts[place],
                version_changes=changes[place],
            )
        )
    return episodes


def _groups(given: state.StateReader, count: int) -> Iterator[Any]:
    """Yield the group of each episode; None for all if the arrays are missing."""
    if not (given.has_array("episode_group") or given.has_array("episode_group_end")):
        return itertools.repeat(None, count)
    return _decoded(given, "episode_group", "episode_group_end", count, codec_lib.PlainCodec())


def _decoded(given: state.StateReader, name: str, ends_name: str, count: int, codec: codec_lib.Codec) -> Iterator[Any]:
    """Yield that many decoded values, reading their bytes in chunks."""
    ends = given.integers(ends_name, count, 0, validation.LARGEST)
    if (np.diff(ends, prepend=0) < 0).any():
        raise errors.CheckpointError(f"array {ends_name} must not fall")
    column = given.column(name, np.uint8, (int(ends[-1]) if count else 0,))
    return _read(name, column, ends, codec)


def _read(name: str, column: state.ChunkedArray, ends: arrays.Ints, codec: codec_lib.Codec) -> Iterator[Any]:
    first = begin = 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, begin + state.CHUNK, side="right")))
        content = column.read(begin, int(ends[last - 1])).tobytes()
        start = 0
        for end in (ends[first:last] - begin).tolist():
            try:
                yield codec.decode(content[start:end])
            except errors.CheckpointError as error:
                raise errors.CheckpointError(f"array {name} cannot be decoded: {error}") from error
            except Exception as error:  # Of a codec that is the user's own.
                raise errors.CheckpointError(
                    f"array {name} cannot be decoded: {type(error).__name__}: {error}"
                ) from error
            start = end
        first, begin = last, int(ends[last - 1])


def _load_versions(
    given: state.StateReader, steps: arrays.Ints
) -> tuple[list[int | None], list[list[tuple[int, int]]]]:
    """Return the version each episode started with [E], and its version changes [E].

    Raises:
        CheckpointError: The versions are invalid.
    """
    of_starts = np.full(len(steps), _NO_VERSION, np.int64)
    if given.has_array("episode_policy_version"):
        of_starts = given.integers("episode_policy_version", len(steps), _NO_VERSION, validation.LARGEST)
    of_steps = np.repeat(of_starts, steps)
    if given.has_array("policy_version"):
        of_steps = given.integers("policy_version", len(of_steps), _NO_VERSION, validation.LARGEST)
    starts = steps.cumsum() - steps
    before = np.concatenate([of_steps[:1], of_steps[:-1]])
    before[starts[steps > 0]] = of_starts[steps > 0]
    if (of_steps < before).any():
        raise errors.CheckpointError("array policy_version must not fall within an episode")
    changes: list[list[tuple[int, int]]] = [[] for _ in steps]
    (places,) = (of_steps > before).nonzero()
    episodes = starts.searchsorted(places, side="right") - 1
    for episode, step, version in zip(
        episodes.tolist(), (places - starts[episodes]).tolist(), of_steps[places].tolist(), strict=True
    ):
        changes[episode].append((step, version))
    return [None if version == _NO_VERSION else version for version in of_starts.tolist()], changes


def _growing_by_version(
    given: state.StateReader, episodes: Sequence[Episode], growing_places: Sequence[int]
) -> list[tuple[int, Episode]]:
    """Return the open episodes with transitions of each version, as VersionCounts.growing yields them.

    Args:
        given: The state.
        episodes: All of them.
        growing_places: The positions of the open ones that have a transition.

    Raises:
        CheckpointError: Other episodes are listed.
    """
    expected = sorted((version, place) for place in growing_places for version, _ in versions.runs(episodes[place]))
    places = given.integers("version_growing", len(expected), 0, len(episodes)).tolist()
    found = [(version, place) for (version, _), place in zip(expected, places, strict=True)]
    if sorted(found) != expected:
        raise errors.CheckpointError("array version_growing must hold the places of those episodes, once a version")
    return [(version, episodes[place]) for version, place in found]
