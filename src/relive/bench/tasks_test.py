"""What adapters have in common."""

import types

import numpy as np

import relive
from relive.bench import tasks


def test_answers_are_found_by_name_and_flat_rows_stay_flat() -> None:
    class Named(tasks.Buffer):
        names = types.MappingProxyType({"observation": "obs", "action": "act", "reward": "rew", "discount": "gamma"})

    buffer = Named(tasks.Task(capacity=100, observation=relive.Field((1,), "float32")))
    batch = {"obs": np.zeros((5, 1)), "act": np.zeros((5, 1)), "rew": np.zeros(5)}
    for sample in (batch, types.SimpleNamespace(**batch)):
        shapes = {name: column.shape for name, column in buffer.answer(sample).items()}
        assert shapes == {"observation": (5, 1), "action": (5,), "reward": (5,)}
