"""What a checkpoint keeps of the versions of the policy, in an array each, where somebody has said a version at all."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.episodes import episode as episode_lib
from relive.episodes import versions
from relive.persistence import state

Episode: TypeAlias = episode_lib.Episode[Any, Any]

_NO_VERSION = -1


def taken(episodes: Sequence[Episode], counts: versions.VersionCounts[Any, Any]) -> dict[str, arrays_lib.Ints]:
    """Answers the versions of starts and of steps, and in which order open episodes stand; no array without a value."""
    arrays: dict[str, arrays_lib.Ints] = {}
    if any(episode.policy_version is not None for episode in episodes):
        arrays["episode_policy_version"] = _integers(episode.policy_version for episode in episodes)
    if any(episode.version_changes for episode in episodes):
        arrays["policy_version"] = _integers(version for episode in episodes for version in episode.policy_versions)
    growing_episodes = [episode for _, episode in counts.growing()]
    if growing_episodes:
        places = {episode: place for place, episode in enumerate(episodes)}
        arrays["version_growing"] = np.array([places[episode] for episode in growing_episodes], np.int64)
    if counts.last_lags:
        arrays["draw_lag"] = np.array(counts.last_lags, np.int64)
    return arrays


def _integers(some_versions: Iterable[int | None]) -> arrays_lib.Ints:
    return np.fromiter((_NO_VERSION if version is None else version for version in some_versions), np.int64)


def load_versions(given: state.Given, steps: arrays_lib.Ints) -> tuple[list[int | None], list[list[tuple[int, int]]]]:
    """Answers with which version each episode of so many steps started [E], and its changes [E].

    Raises:
        CheckpointError: No episodes can be of such versions.
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


def growing(
    given: state.Given, episodes: Sequence[Episode], growing_places: Sequence[int]
) -> list[tuple[int, Episode]]:
    """Answers the open episodes that have transitions of each version, as VersionCounts.growing gives them.

    Args:
        given: The state.
        episodes: All of them.
        growing_places: The places of the open ones that have a transition.

    Raises:
        CheckpointError: Others are named.
    """
    expected = sorted((version, place) for place in growing_places for version, _ in versions.runs(episodes[place]))
    if not (expected or given.has_array("version_growing")):
        return []
    places = given.integers("version_growing", len(expected), 0, len(episodes)).tolist()
    found = [(version, place) for (version, _), place in zip(expected, places, strict=True)]
    if sorted(found) != expected:
        raise errors.CheckpointError("array version_growing must hold the places of those episodes, once a version")
    return [(version, episodes[place]) for version, place in found]


def last_lags(given: state.Given) -> list[int]:
    """Answers the lags of the last draws, the newest last.

    Raises:
        CheckpointError: There are more than are kept.
    """
    if not given.has_array("draw_lag"):
        return []
    lags: list[int] = given.integers("draw_lag", None, -validation.LARGEST, validation.LARGEST).tolist()
    if len(lags) > versions.LAST:
        raise errors.CheckpointError(f"array draw_lag must hold at most {versions.LAST} lags, got {len(lags)}")
    return lags
