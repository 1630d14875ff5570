import numpy as np
import pytest

from relive.cli import q_learning


@pytest.mark.parametrize("shape", [(7,), (7, 4)])
def test_targets_are_those_written_out(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    rewards, next_discounts = rng.normal(size=shape), rng.random(shape)
    next_values, target_next_values = rng.normal(size=(*shape, 3)), rng.normal(size=(*shape, 3))
    targets = q_learning.double_q_targets(rewards, next_discounts, next_values, target_next_values)
    assert targets.shape == shape
    for place in np.ndindex(shape):
        best = next_values[place].argmax()
        assert targets[place] == rewards[place] + next_discounts[place] * target_next_values[place][best]


def test_nothing_comes_after_termination() -> None:
    values = np.array([[1e300, -1e300]])
    assert q_learning.double_q_targets(np.ones(1), np.zeros(1), values, values).tolist() == [1.0]
