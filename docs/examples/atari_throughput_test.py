"""The example of Atari frames: its short form runs, and its figures are what its text says."""

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ale_py")

import atari_throughput

import relive

FIGURE = r"-?\d+\.\d"


@pytest.mark.parametrize(
    ("size", "steps"),
    [
        pytest.param(["--steps", "400"], 400, id="tiny"),
        pytest.param(["--short"], 1_000, marks=pytest.mark.long, id="short"),
    ],
)
def test_frames_are_stored_once_and_a_seed_repeats_the_game(
    size: list[str], steps: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    buffers: list[relive.RingReplayBuffer] = []

    class Spied(relive.RingReplayBuffer):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            buffers.append(self)

    monkeypatch.setattr(relive, "RingReplayBuffer", Spied)
    monkeypatch.setattr(atari_throughput, "SECONDS_BETWEEN_LINES", 0)
    atari_throughput.main([*size, "--seed", "3"])
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"step 8: \d+ steps a second", lines[0])
    assert re.fullmatch(rf"{FIGURE} MB for {steps} steps; two stacks a transition take {FIGURE} MB", lines[-1])
    stored, stacked = (float(figure) for figure in re.findall(rf"{FIGURE}(?= MB)", lines[-1]))
    assert stacked == pytest.approx(8 * 84 * 84 * steps / 1e6, abs=0.05)
    assert 7 < stacked / stored < 8
    shares = [int(share) for share in re.findall(r"(\d+)%", "\n".join(lines))]
    assert len(shares) == 3
    assert 0 < sum(shares) <= 101
    atari_throughput.main(["--steps", "80", "--seed", "3"])
    first, again = (buffer.read(range(80)).observation for buffer in buffers)
    assert np.array_equal(first, again)
