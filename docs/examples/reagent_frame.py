"""ReAgent: the steps of a buffer as the "pre-timeline" table that its offline pipelines read.

    python docs/examples/reagent_frame.py

One row is one stored step, episode by episode:

    mdp_id                   the episode: the key of its first stored step, as a text
    sequence_number          the step within the episode
    state_features           {0: float, 1: float, ...}: all numbers of the observation, field by field
    action                   a text, such as "2"
    reward                   a float
    action_probability       of the action, by the policy that took it; None for a deterministic policy
    possible_actions         texts; empty in the row of a step that terminated, as in ReAgent's own conversion
    possible_actions_mask    1 or 0 for each action; empty there too
    metrics                  {"reward": float}
    ds                       the text that names the data set

ReAgent's timeline operator takes a step for terminal if no action is possible in the next row, or if there is no such
row: the last step of a truncated episode too. One more row, with its final observation and all actions, prevents that.

Sources: Gauci et al., "Horizon: Facebook's Open Source Applied Reinforcement Learning Platform", 2018; and
`replay_buffer_to_pre_timeline_df` of ReAgent.

>>> buffer = relive.RingReplayBuffer(10)
>>> keys = buffer.add_episode([0, 1, 2], [1, 0], [0.0, 1.0], terminated=True, mu=[0.9, 0.25])
>>> frame = pre_timeline_frame(buffer, range(2), action_probability="mu")
>>> print(frame[["mdp_id", "sequence_number", "state_features", "action", "possible_actions"]])
  mdp_id  sequence_number state_features action possible_actions
0      0                0       {0: 0.0}      1           [0, 1]
1      0                1       {0: 1.0}      0               []
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas

import relive
from relive.integrations import stored_episodes


def pre_timeline_frame(
    buffer: Any, possible_actions: Iterable[Any] | str, *, action_probability: str | None = None, ds: str = "2019-01-01"
) -> pandas.DataFrame:
    """Return the table of a buffer whose actions are single integers, bools or texts.

    Args:
        buffer: A buffer of columns.
        possible_actions: All actions, such as `range(4)`; or the name of an extra with a mask [A] for each step.
        action_probability: The name of an extra with the probability of each action, not its logarithm; None for a
            deterministic policy.
        ds: The name of the data set.

    Raises:
        ValueError: A probability is not in [0, 1], or an action was taken that is not possible.
    """
    rows = [
        row | {"ds": ds}
        for episode in stored_episodes.stored_episodes(buffer)
        for row in _rows(episode, possible_actions, action_probability)
    ]
    return pandas.DataFrame(rows)


def _rows(
    episode: stored_episodes.StoredEpisode, possible_actions: Iterable[Any] | str, action_probability: str | None
) -> list[dict[str, Any]]:
    steps = len(episode)
    features = np.concatenate(_columns(episode.observations, steps), axis=1)
    probabilities = episode.extras[action_probability].tolist() if action_probability else [None] * steps
    if isinstance(possible_actions, str):
        masks = episode.extras[possible_actions].astype(int).tolist()
        names = [str(action) for action in range(len(masks[0]))]
    else:
        names = [_name(action) for action in possible_actions]
        masks = [[1] * len(names)] * steps
    rows = []
    for step, action in enumerate(map(_name, episode.actions.tolist())):
        possible = [name for name, flag in zip(names, masks[step], strict=True) if flag]
        reward, probability = float(episode.rewards[step]), probabilities[step]
        if action not in possible:
            raise ValueError(f"action {action} of key {episode.keys[step]} must be possible, got {possible}")
        if probability is not None and not 0 <= probability <= 1:
            raise ValueError(f"{action_probability} of key {episode.keys[step]} must be in [0, 1], got {probability}")
        is_terminal = episode.status == "COMPLETED" and step == steps - 1
        rows.append(
            {
                "mdp_id": str(episode.keys[0]),
                "sequence_number": episode.start_step + step,
                "state_features": dict(enumerate(features[step].tolist())),
                "action": action,
                "reward": reward,
                "action_probability": probability,
                "possible_actions": [] if is_terminal else possible,
                "possible_actions_mask": [] if is_terminal else masks[step],
                "metrics": {"reward": reward},
            }
        )
    return rows


def _columns(tree: Any, steps: int) -> list[Any]:
    """Return the numbers of each field of an observation [T, ...], without the final observation."""
    if isinstance(tree, dict):
        return [column for part in tree.values() for column in _columns(part, steps)]
    return [tree[:steps].reshape(steps, -1).astype(float)]


def _name(action: Any) -> str:
    return action if isinstance(action, str) else str(int(action))


if __name__ == "__main__":
    replay = relive.RingReplayBuffer(10)
    replay.add_episode([[0, 1], [2, 3], [4, 5]], [1, 0], [0.0, 1.0], terminated=True, mu=[0.9, 0.25])
    print(pre_timeline_frame(replay, range(2), action_probability="mu").to_string())
