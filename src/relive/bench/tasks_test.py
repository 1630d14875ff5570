"""What adapters have in common."""

import types

import numpy as np

import relive
from relive.bench import tasks

STACKED = tasks.Task(capacity=100, observation=relive.Field((8, 8), "uint8"), frame_stack=4, sequence_length=2)


def test_a_task_knows_the_features_it_asks_for() -> None:
    assert STACKED.asks("frame_stack")
    assert STACKED.asks("sequence_length")
    assert not STACKED.asks("n_step")
    assert STACKED.stacked_shape == (4, 8, 8)
    assert tasks.Task(capacity=100, observation=relive.Field((8, 8), "uint8")).stacked_shape == (8, 8)


def test_columns_are_joined_in_their_order() -> None:
    joined = tasks.joined({"a": np.array(part), "b": np.ones((len(part), 3))} for part in ([1, 2], [3]))
    assert joined["a"].tolist() == [1, 2, 3]
    assert joined["b"].shape == (3, 3)


def test_answers_are_found_by_name_and_flat_rows_stay_flat() -> None:
    class Named(tasks.Buffer):
        names = types.MappingProxyType({"observation": "obs", "action": "act", "reward": "rew", "discount": "gamma"})

    buffer = Named(tasks.Task(capacity=100, observation=relive.Field((1,), "float32")))
    batch = {"obs": np.zeros((5, 1)), "act": np.zeros((5, 1)), "rew": np.zeros(5)}
    for sample in (batch, types.SimpleNamespace(**batch)):
        shapes = {name: column.shape for name, column in buffer.answer(sample).items()}
        assert shapes == {"observation": (5, 1), "action": (5,), "reward": (5,)}
