import gc
from typing import Any
import weakref

import numpy as np
import pytest

import relive


def episode_of(steps: int) -> relive.Episode[int, int]:
    episode: relive.Episode[int, int] = relive.Episode(episode_id="e", agent_id="a")
    for t in range(steps):
        episode.append_observation_action_reward(t, t, float(t + 1))
    return episode


def test_appending_answers_how_many_transitions_it_completed() -> None:
    episode: relive.Episode[str, str] = relive.Episode(episode_id="e", agent_id="a")
    assert [episode.append_observation_action_reward("o", "a", 1.0) for _ in range(3)] == [0, 1, 1]
    assert episode.append_final_observation("o") == 1
    assert episode.status == "COMPLETED"


def test_nothing_can_be_appended_after_the_end() -> None:
    episode = episode_of(2)
    episode.append_final_observation(2)
    with pytest.raises(ValueError, match="cannot append to finished episode e: it is COMPLETED"):
        episode.append_observation_action_reward(3, 3, 0.0)
    with pytest.raises(ValueError, match="episode e is already finished: it is COMPLETED"):
        episode.append_final_observation(3)
    with pytest.raises(ValueError, match="episode e is already finished: it is COMPLETED"):
        episode.abort()
    assert (episode.observations, episode.actions, episode.rewards) == ([0, 1, 2], [0, 1], [1.0, 2.0])


@pytest.mark.parametrize(
    "status", ["IN_PROGRESS", "BOGUS", "", None, "completed", np.array(["COMPLETED"]), ["COMPLETED"]], ids=repr
)
def test_a_status_that_does_not_end_an_episode_is_refused(status: Any) -> None:
    episode = episode_of(1)
    with pytest.raises(
        ValueError, match=r"^status must be one of COMPLETED, TRUNCATED, ABORTED to end an episode, got "
    ):
        episode.append_final_observation(1, status)
    assert episode.status == "IN_PROGRESS"
    assert episode.observations == [0]


def test_episodes_are_keyword_only_and_equal_by_identity() -> None:
    with pytest.raises(TypeError, match="positional"):
        relive.Episode("e", "a")  # type: ignore[call-arg]
    assert episode_of(1) != episode_of(1)


def test_an_episode_can_key_a_weak_dictionary() -> None:
    """A custom sampler can keep data about an episode for as long as the episode is stored."""
    priorities: weakref.WeakKeyDictionary[relive.Episode[int, int], float] = weakref.WeakKeyDictionary()
    episode = episode_of(1)
    priorities[episode] = 1.0
    assert priorities[episode] == 1.0
    del episode
    gc.collect()
    assert not priorities
    with pytest.raises(AttributeError, match="reward"):
        episode_of(1).reward = 1.0  # type: ignore[attr-defined]
