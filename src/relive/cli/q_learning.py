"""The targets of Q-learning: what the value of an action should have been, judging by what came of it."""

import numpy as np

from relive.common import arrays


def double_q_targets(
    rewards: arrays.Floats, next_discounts: arrays.Floats, next_values: arrays.Floats, target_next_values: arrays.Floats
) -> arrays.Floats:
    """Return the targets of double Q-learning (van Hasselt et al. 2016).

        target = reward + next_discount * Q_target(next_observation, argmax_a Q(next_observation, a))

    The one network chooses, the other judges, so that a value which is too high by chance is not chosen for it.

    Args:
        rewards: What the action brought, over one step or n [...], such as [B] or [B, T].
        next_discounts: The factor on what is yet to come, 0 after termination [...].
        next_values: Of all actions then, by the network that learns [..., A].
        target_next_values: The same by the target network [..., A].

    Example:
        >>> import numpy as np
        >>> from relive.cli import q_learning
        >>> next_values, target_next_values = np.array([[1.0, 2.0]]), np.array([[9.0, 4.0]])
        >>> q_learning.double_q_targets(np.ones(1), np.full(1, 0.5), next_values, target_next_values)
        array([3.])
    """
    next_actions = next_values.argmax(axis=-1)[..., np.newaxis]
    return rewards + next_discounts * np.take_along_axis(target_next_values, next_actions, axis=-1)[..., 0]
