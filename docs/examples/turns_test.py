"""The example of games in turns: it plays by the rules, learns from masked values, and is repeatable."""

import pathlib
import re

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("torch")
pytest.importorskip("pettingzoo", reason="pettingzoo is not installed")
pytest.importorskip("pygame", reason="pygame is not installed")

import networks_test
import turns

import relive
from relive.integrations import torch as relive_torch


def test_illegal_moves_are_masked_and_an_end_has_no_value() -> None:
    buffer = relive.RingReplayBuffer(9, gamma=0.5)
    board = np.zeros((3, 2, 1), np.int8)
    masks = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0]], np.int8)
    observations = {"observation": board, "action_mask": masks}
    buffer.add_episode(observations, [2, 1], np.array([0.0, 1.0], np.float32), terminated=True)
    network, target_network = networks_test.constant([1.0, 2.0, 3.0], 2), networks_test.constant([9.0, 4.0, 8.0], 2)
    batch = relive_torch.as_tensors(buffer.read([0, 1]))
    loss = turns.q_loss(network, target_network, batch)
    assert loss.item() == pytest.approx(((0.5 * 4 - 3) ** 2 + (1 - 2) ** 2) / 2)


def test_a_run_plays_both_games_and_draws_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    turns.main(["--steps", "60", "--seeds", "1", "--plot", str(tmp_path / "curve.png")])
    line = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"relive, connect four, seed 0: points a game at the end: -?\d\.\d", line)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert turns.train(20, 0, game="tictactoe_v3") == turns.train(20, 0, game="tictactoe_v3")
