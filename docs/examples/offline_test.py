"""The example of offline data: its loss is that on paper, and its buffer holds what was recorded."""

import gc
import math
import pathlib

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("minari")
pytest.importorskip("torch")

import networks_test
import offline

import relive
from relive.integrations import torch as relive_torch


def test_cloning_loss_is_the_mean_of_minus_log_p() -> None:
    network = networks_test.constant([0.0, math.log(3.0)], 4)
    buffer = relive.RingReplayBuffer(3)
    keys = buffer.add_episode(np.zeros((4, 4), np.float32), [0, 1, 1], np.ones(3, np.float32), terminated=True)
    batch = relive_torch.as_tensors(buffer.read(keys))
    assert offline.cloning_loss(network, batch).item() == pytest.approx(-(math.log(1 / 4) + 2 * math.log(3 / 4)) / 3)


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
def test_the_buffer_holds_the_recorded_episodes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    dataset = offline.record(3, seed=0)
    buffer = offline.load(dataset)
    assert len(buffer) == buffer.capacity == buffer.num_eligible == dataset.total_steps
    batch = buffer.read(buffer.eligible_keys())
    episodes = list(dataset.iterate_episodes())
    assert np.array_equal(batch.observation, np.concatenate([episode.observations[:-1] for episode in episodes]))
    assert np.array_equal(batch.next_observation, np.concatenate([episode.observations[1:] for episode in episodes]))
    assert np.array_equal(batch.action, np.concatenate([episode.actions for episode in episodes]))
    assert np.array_equal(batch.is_terminal, np.concatenate([episode.terminations for episode in episodes]))
    del dataset, episodes
    gc.collect()
