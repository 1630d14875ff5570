"""Each example with a learning curve runs in its short form, and alike with the same seed."""

import gc
import pathlib
import re
from typing import Any

import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")
pytest.importorskip("minari")
pytest.importorskip("torch")

import agents
import c51
import chunks
import dqn
import grpo
import her
import offline
import ppo
import r2d2
import sac
import world_model

EPISODES = r"return, mean of 20 episodes at the end: -?\d+\.\d"
LAST_LINES = {
    dqn: rf"relive, uniform 1-step, seed 0: {EPISODES}",
    c51: rf"relive, uniform 1-step, seed 0: {EPISODES}",
    ppo: rf"relive, one-step errors, seed 0: {EPISODES}",
    sac: r"relive, one flag for both, seed 0: return without exploration at the end: -?\d+\.\d",
    world_model: r"relive, no burn-in, seed 0: error of ten imagined steps in percent at the end: \d+\.\d",
    r2d2: r"relive, without, seed 0: right doors in percent at the end: \d+\.\d",
    her: r"relive, without, seed 0: success rate in percent at the end: \d+\.\d",
    chunks: r"relive, single actions, seed 0: success rate in percent at the end: \d+\.\d",
    agents: r"relive, the last reply alone, seed 0: right answers in percent at the end: \d+\.\d",
    grpo: r".*, seed 0: right answers at the end: 0\.\d",
    offline: r"seed 0: mean return: recorded \d+\.\d, clone \d+\.\d",
}
STEPS = {
    dqn: 300,
    c51: 140,
    ppo: 800,
    sac: 140,
    world_model: 700,
    r2d2: 800,
    her: 300,
    chunks: 300,
    agents: 300,
    grpo: 2,
}
CASES: dict[Any, dict[str, Any]] = {
    dqn: {"n_step": 3},
    c51: {"n_step": 3},
    ppo: {"lambda_": 0.95},
    sac: {"wrappers": []},
    world_model: {"burn_in": 6},
    r2d2: {"memory": True},
    her: {"hindsight": True},
    chunks: {"n": 3},
    agents: {"first": 0},
}
TINY = {module: ["--steps", str(steps), "--seeds", "1"] for module, steps in STEPS.items()} | {offline: ["--short"]}


@pytest.fixture(autouse=True)
def _early_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin to learn after 100 steps."""
    for module in (dqn, c51, sac):
        monkeypatch.setattr(module, "WARM_UP", 100)
    monkeypatch.setattr(ppo, "ROLLOUT", 16)


@pytest.mark.filterwarnings("ignore:Implicitly cleaning up:ResourceWarning")
@pytest.mark.parametrize(
    ("module", "size"),
    [
        *[pytest.param(module, size, id=module.__name__) for module, size in TINY.items()],
        *[pytest.param(module, ["--short"], id=f"{module.__name__}-short", marks=pytest.mark.long) for module in TINY],
    ],
)
def test_a_run_ends_with_its_figures_and_a_picture(
    module: Any,
    size: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", "restored after the test")
    module.main([*size, "--plot", str(tmp_path / "curve.png")])
    assert re.fullmatch(LAST_LINES[module], capsys.readouterr().out.splitlines()[-1])
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    gc.collect()  # Minari leaves it to the garbage collector to remove its directories, with a warning.


@pytest.mark.parametrize(("module", "case"), CASES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_the_same_seed_gives_the_same_curve(module: Any, case: dict[str, Any]) -> None:
    steps = 140 if module is dqn else STEPS[module]  # Its first episode need not have ended.
    first, again, other = (module.train(steps, seed, **case) for seed in (0, 0, 1))
    assert first == again != other
