"""The drop-in comparison runs in its short form, and its figures are what its text says."""

from collections.abc import Iterator
import dataclasses
import importlib.util
import pathlib
import random
import re

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import torch

_SPEC = importlib.util.spec_from_file_location("example_drop_in", pathlib.Path(__file__).with_name("drop_in.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
drop_in = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(drop_in)

FIGURES = r" +-?\d+\.\d \[-?\d+\.\d, -?\d+\.\d\]"


@pytest.fixture(autouse=True)
def _what_others_may_rely_on() -> Iterator[None]:
    threads, states = torch.get_num_threads(), (torch.get_rng_state(), np.random.get_state(), random.getstate())  # noqa: NPY002
    yield
    torch.set_num_threads(threads)
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    random.setstate(states[2])


TINY = [(300, {"learning_starts": 200, "train_freq": 64, "gradient_steps": 4}), (210, {"learning_starts": 200})]


@pytest.mark.parametrize("is_tiny", [True, pytest.param(False, marks=pytest.mark.long)], ids=["tiny", "short"])
def test_the_short_form_ends_with_the_figures_of_both(
    is_tiny: bool, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_tiny:
        tasks = [
            dataclasses.replace(task, short_steps=steps, settings=task.settings | settings)
            for task, (steps, settings) in zip(drop_in.TASKS, TINY, strict=True)
        ]
        monkeypatch.setattr(drop_in, "TASKS", tasks)
    drop_in.main(["--short", "--seed", "3", "--plot", str(tmp_path / "curves.png")])
    lines = capsys.readouterr().out.splitlines()[-6:]
    for task, of_task in [("DQN on CartPole-v1", lines[:3]), ("SAC on Pendulum-v1", lines[3:])]:
        for label, line in zip(["theirs", "ours", "ours - theirs"], of_task, strict=True):
            figures = f"final{FIGURES}, in training{FIGURES}"
            assert re.fullmatch(f"{task}, {label} *: {figures}(, \\d+ CPU s a run)?", line)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_curve_is_the_mean_of_the_ten_episodes_that_ended_last() -> None:
    rng = np.random.default_rng(0)
    lengths, returns = rng.integers(1, 9, 200), rng.random(200)
    ends = np.cumsum(lengths)
    curve = drop_in.along_the_steps(returns, ends, 500)
    assert len(curve) == drop_in.GRID
    for place, at in enumerate(range(5, 505, 5)):
        ended = [returns[episode] for episode in range(200) if ends[episode] <= at] or [returns[0]]
        assert curve[place] == np.mean(ended[-10:])


def test_an_interval_holds_the_mean_and_narrows_with_the_number_of_runs() -> None:
    assert drop_in.interval(np.full(5, 2.0)) == "     2.0 [2.0, 2.0]"
    assert drop_in.interval(np.full(5, 2.0), np.full(4, 3.0)) == "    -1.0 [-1.0, -1.0]"
    rng = np.random.default_rng(0)
    widths = []
    for count in (4, 400):
        mean, low, high = map(float, re.findall(r"-?\d+\.\d", drop_in.interval(rng.normal(0, 100, count))))
        assert low < mean < high
        widths.append(high - low)
    # Of a mean of 400 it is 2 * 1.96 standard errors.
    assert widths[1] == pytest.approx(2 * 1.96 * 100 / 20, rel=0.15)
    assert widths[0] > 2 * widths[1]
