"""The drop-in comparison runs in its short form, and its figures are those on paper."""

import dataclasses
import pathlib
import re

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("stable_baselines3")

import drop_in

FIGURES = r"in training -?\d+\.\d \[-?\d+\.\d, -?\d+\.\d\], final -?\d+\.\d \[-?\d+\.\d, -?\d+\.\d\]"
TINY = [(300, {"learning_starts": 200, "train_freq": 64, "gradient_steps": 4}), (210, {"learning_starts": 200})]


@pytest.mark.parametrize("is_tiny", [True, pytest.param(False, marks=pytest.mark.long)], ids=["tiny", "short"])
def test_the_short_form_ends_with_the_figures_of_both(
    is_tiny: bool, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_tiny:
        tasks = [
            dataclasses.replace(task, steps=16 * steps, settings=task.settings | settings)
            for task, (steps, settings) in zip(drop_in.TASKS, TINY, strict=True)
        ]
        monkeypatch.setattr(drop_in, "TASKS", tasks)
        monkeypatch.setattr(drop_in, "NUM_CHECKS", 2)
    drop_in.main(["--short", "--plot", str(tmp_path / "curves.png")])
    lines = capsys.readouterr().out.splitlines()
    names = [
        f"{task}, {name}"
        for task in ("DQN on CartPole-v1", "SAC on Pendulum-v1")
        for name in ("Stable-Baselines3", "relive", "difference")
    ]
    for name, line in zip(names, lines, strict=True):
        assert re.fullmatch(f"{name}: {FIGURES}", line)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_difference_is_that_of_relive_to_stable_baselines3(capsys: pytest.CaptureFixture[str]) -> None:
    curves = {"Stable-Baselines3": np.full((2, drop_in.GRID), 3.0), "relive": np.full((2, drop_in.GRID), 5.0)}
    drop_in.report(drop_in.TASKS[1], {name: (curve, curve[:, 0] * 10) for name, curve in curves.items()})
    assert capsys.readouterr().out.splitlines() == [
        "SAC on Pendulum-v1, Stable-Baselines3: in training 3.0 [3.0, 3.0], final 30.0 [30.0, 30.0]",
        "SAC on Pendulum-v1, relive: in training 5.0 [5.0, 5.0], final 50.0 [50.0, 50.0]",
        "SAC on Pendulum-v1, difference: in training 2.0 [2.0, 2.0], final 20.0 [20.0, 20.0]",
    ]


def test_a_curve_is_the_mean_of_the_ten_episodes_that_ended_last() -> None:
    rng = np.random.default_rng(0)
    lengths, returns = rng.integers(1, 9, 200), rng.random(200)
    ends = np.cumsum(lengths)
    curve = drop_in.along_the_steps(returns, ends, 500)
    assert len(curve) == drop_in.GRID
    for place, at in enumerate(range(5, 505, 5)):
        ended = [returns[episode] for episode in range(200) if ends[episode] <= at] or [returns[0]]
        assert curve[place] == np.mean(ended[-10:])


def test_an_interval_narrows_with_the_number_of_runs() -> None:
    assert drop_in.interval(np.full(5, 2.0)) == "2.0 [2.0, 2.0]"
    assert drop_in.interval(np.full(5, 2.0), np.full(4, 3.0)) == "-1.0 [-1.0, -1.0]"
    rng = np.random.default_rng(0)
    widths = []
    for count in (4, 400):
        mean, low, high = map(float, re.findall(r"-?\d+\.\d", drop_in.interval(rng.normal(0, 100, count))))
        assert low < mean < high
        widths.append(high - low)
    # Of a mean of 400 it is 2 * 1.96 standard errors.
    assert widths[1] == pytest.approx(2 * 1.96 * 100 / 20, rel=0.15)
    assert widths[0] > 2 * widths[1]
