"""What a draw returns: arrays of the batch, which own their memory. B is the batch size, T the length of a sequence."""

import dataclasses
from typing import Any, TypeAlias

from relive.common import arrays

Tree: TypeAlias = Any
"""An array, or a dict of trees: an observation or an action of a schema with names."""


@dataclasses.dataclass(kw_only=True, slots=True, eq=False)
class TransitionBatch:
    """n-step transitions: `target = reward + next_discount * V(next_observation)` holds for each of them.

    Attributes:
        observation: o_t [B, ...]; with a frame stack [B, stack, ...], newest frame last.
        action: a_t [B, ...].
        reward: The sum over k < m of gamma^k r_{t+k} [B], added up as float64, in the reward's dtype.
        next_observation: o_{t+m} [B, ...], stacked as `observation`; zeros where the episode terminated there and the
            observation was not given.
        next_discount: gamma^m, or 0 if the window reached termination [B], in the reward's dtype.
        is_terminal: Whether it did [B].
        steps: m [B], at least 1 and at most n; less where the episode, or what is known of it, ends earlier.
        keys: The names of the rows o_t is in [B]; for update_priorities and read.
        probabilities: How likely each of them was to be drawn [B].
        weights: Importance weights [B]; 1 without priorities.
        extras: Each extra of step t [B, ...].
    """

    observation: Tree
    action: Tree
    reward: arrays.Array
    next_observation: Tree
    next_discount: arrays.Array
    is_terminal: arrays.Bools
    steps: arrays.Ints
    keys: arrays.Ints
    probabilities: arrays.Floats
    weights: arrays.Floats
    extras: dict[str, Tree]

    def __len__(self) -> int:
        """Return B."""
        return len(self.keys)


@dataclasses.dataclass(kw_only=True, slots=True, eq=False)
class SequenceBatch:
    """Runs of consecutive steps, each of one episode. Where `mask` is False everything else holds zeros.

    Attributes:
        observation: o_t to o_{t+T} [B, T + 1, ...]; the last one is what came after the last step.
        action: a_t to a_{t+T-1} [B, T, ...].
        reward: r_t to r_{t+T-1} [B, T].
        terminated: Whether the episode terminated with the step [B, T].
        truncated: Whether it was truncated with the step [B, T]. A sequence that stops in mid-episode has neither.
        mask: Whether the step is real; False is padding, behind the real ones, and not to be learned from [B, T].
        is_burn_in: Whether the step is real and one of the first `burn_in`, which warm up a recurrent state and are not
            for the loss [B, T].
        start_step: How many steps of the episode came before the sequence [B].
        keys: The names of the first rows [B]; for update_priorities and read.
        probabilities: How likely each of them was to be drawn [B].
        weights: Importance weights [B]; 1 without priorities.
        extras: Each extra of each step [B, T, ...].
    """

    observation: Tree
    action: Tree
    reward: arrays.Array
    terminated: arrays.Bools
    truncated: arrays.Bools
    mask: arrays.Bools
    is_burn_in: arrays.Bools
    start_step: arrays.Ints
    keys: arrays.Ints
    probabilities: arrays.Floats
    weights: arrays.Floats
    extras: dict[str, Tree]

    def __len__(self) -> int:
        """Return B."""
        return len(self.keys)
