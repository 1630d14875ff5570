"""What the tests of episodes and of deliveries share: how to write episodes, and what a learner would be handed."""

from collections.abc import Sequence
import contextlib
from typing import Any

import relive
from relive.agents import token_episode_test

Buffer = relive.EpisodeReplayBuffer[Any, Any]
PATIENCE = 60.0
"""Seconds after which a test has hung."""


def live(
    buffer: Any,
    agent_id: str = "a",
    steps: int | Sequence[int | None] = 1,
    status: relive.FinalStatus | None = "COMPLETED",
    **described: Any,
) -> str:
    """Write an episode of so many steps, or of a step for each policy version, and return its id.

    Observation = (agent, t), action = t, reward 1. The episode stays open where `status` is None.
    """
    versions = [None] * steps if isinstance(steps, int) else steps
    episode_id: str = buffer.start_episode_nowait(agent_id, **described)
    for t, version in enumerate(versions):
        buffer.append_observation_action_reward_nowait(episode_id, (agent_id, t), t, 1.0, policy_version=version)
    if status is not None:
        buffer.end_episode_nowait(episode_id, (agent_id, len(versions)), status)
    return episode_id


def lived(buffer: Any, versions: Sequence[int | None], status: Any = "COMPLETED", **described: Any) -> str:
    """Write an episode with a step for each policy version."""
    return live(buffer, "a", versions, status, **described)


def make_tokens(**settings: Any) -> relive.TokenReplayBuffer:
    return relive.TokenReplayBuffer(100_000, seed=0, **settings)


def add(buffer: Any, **described: Any) -> None:
    """Add an episode of one step to a buffer of episodes or of tokens."""
    if isinstance(buffer, relive.TokenReplayBuffer):
        buffer.add_episode([token_episode_test.step_of([1], [2])], **{"agent_id": "a", **described})
    else:
        live(buffer, **described)


def ids(episodes: Any) -> list[str]:
    return [episode.episode_id for episode in episodes]


def stored(buffer: Any) -> list[Any]:
    """Return the episodes that a buffer holds, in the order of their starts."""
    return list(buffer._store)


def has_line(buffer: Any) -> bool:
    """Return whether a learner has asked for episodes."""
    queue = queue_of(buffer)
    return queue is not None and bool(queue["has_line"])


def queue_of(buffer: Any) -> Any:
    """Return what a state says of deliveries."""
    return relive.PlainCodec().decode(buffer.state_dict()["arrays"]["learner"].tobytes())["queue"]


def num_waiting(buffer: Any) -> int:
    """Return how many episodes wait for a learner."""
    return sum(len(unit.episodes) for unit in buffer._queue.ledger().all_units() if unit.is_pending)


def num_reserved(buffer: Any) -> int:
    """Return how many places the unused tickets hold, those that were lost not counted."""
    places = buffer._queue.ledger().places
    places.can_admit(1)  # It looks for lost ones.
    return int(places.reserved)


def delivered(buffer: Any) -> list[list[str]]:
    """Deliver all that waits, and return the ids of each unit: single episodes first, then groups."""
    units: list[list[str]] = []
    with contextlib.suppress(relive.NotReadyError):
        while True:
            units.append(ids(buffer.next_episodes_nowait(1)))
    with contextlib.suppress(relive.NotReadyError):
        while buffer.groups is not None:
            units.append(ids(buffer.next_groups_nowait(1)[0]))
    return units
