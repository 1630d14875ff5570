"""The evidence: every method runs with both buffers, and the page shows what was measured, as on paper."""

import math
import multiprocessing
import pathlib
import re
import types
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")
pytest.importorskip("matplotlib")
pytest.importorskip("stable_baselines3")

import evidence
import gymnasium
from matplotlib import figure
import torch

import relive

CASES = [(name, buffer) for name, method in evidence.METHODS.items() for buffer in method.buffers]
STEPS = {"SB3 SAC": 210, "SB3 TD3": 210, "SB3 DQN": 530, "SB3 HER with DQN": 530}


@pytest.mark.parametrize(("name", "buffer"), CASES)
def test_each_method_runs_with_each_of_its_buffers(name: str, buffer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "WARM_UP", 100)
    steps = STEPS.get(name, 800 if evidence.METHODS[name].buffers == evidence.ALONE else 130)
    run = evidence.measure((name, buffer, 3, steps))
    assert (run.method, run.buffer, run.seed, run.steps) == (name, buffer, 3, steps)
    at, returns = run.curve
    assert len(at) == len(returns) > 0
    assert 0 < at[0] <= at[-1] < steps + 4  # SB3 ends a run after `train_freq` steps.
    assert all(np.diff(at) >= 0)
    assert math.isfinite(run.final)
    assert run.speed > 0
    assert (run.nbytes > 0) == (run.buffer != "random play" or name != "R2D2")


@pytest.mark.parametrize("name", ["SB3 DQN", "SB3 HER with DQN", "CleanRL-style DQN"])
def test_the_buffers_are_those_that_the_table_names(name: str) -> None:
    kinds = {buffer: type(evidence.METHODS[name].train(120, 0, buffer)[1]) for buffer in ("SB3", "relive")}
    assert kinds["SB3"].__module__.startswith("stable_baselines3.")
    assert kinds["relive"].__module__.startswith("relive.")


def test_random_play_finds_one_door_in_four_and_rarely_meets() -> None:
    doors = evidence.measure(("R2D2", "random play", 0, 80_000))
    assert doors.final == pytest.approx(25, abs=5)
    alone, team = (evidence.measure(("a team, joint draws", each, 0, 8_000)).final for each in evidence.ALONE)
    assert alone < 30 < 60 < team


@pytest.mark.parametrize("terminated", [True, False])
def test_both_buffers_give_a_loop_the_same_tensors(*, terminated: bool) -> None:
    env = gymnasium.make("CartPole-v1")
    observation, following = np.arange(8, dtype=np.float32).reshape(2, 4)
    own, ours = (evidence.new_store(buffer, env, 0) for buffer in ("SB3", "relive"))
    own.add(observation[None], following[None], np.array([1]), np.array([2.0]), np.array([terminated]), [{}])
    ours.add(observation, 1, 2.0, following, terminated=terminated)
    theirs, drawn = evidence.draw(own), evidence.draw(ours)
    for name, tensor in vars(theirs).items():
        assert getattr(drawn, name).tolist() == tensor.tolist(), name
        assert getattr(drawn, name).dtype == tensor.dtype, name


def batch_of(reward: list[float], next_discount: list[float]) -> Any:
    """Return transitions from the observations 0, 1, ..., each to the following one, with the action 1."""
    eye = torch.eye(len(reward) + 1)
    return types.SimpleNamespace(
        observation=eye[:-1],
        action=torch.ones(len(reward), dtype=torch.int64),
        reward=torch.tensor(reward),
        next_observation=eye[1:],
        next_discount=torch.tensor(next_discount),
    )


def test_dqn_losses_are_huber_losses_of_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "BATCH_SIZE", 2)
    values, target_values = torch.arange(6.0).reshape(3, 2), torch.tensor([[0.0, 9.0], [4.0, 2.0], [8.0, 6.0]])
    networks: Any = [lambda rows, table=table: (rows @ table)[:, :, None] for table in (values, target_values)]
    losses, priorities = evidence.dqn_losses(networks[0], networks[1], batch_of([1.0, 2.5], [0.5, 0.0]))
    assert priorities.tolist() == [1 + 0.5 * 4 - 1, 3 - 2.5]
    assert losses.tolist() == [2 - 0.5, 0.5 * 0.5**2]


def test_c51_losses_are_cross_entropies_with_moved_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each probability of the best next action is shared by the two returns nearest to where it moves."""
    monkeypatch.setattr(evidence, "BATCH_SIZE", 2)
    rng, atoms = np.random.default_rng(0), evidence.ATOMS.tolist()
    tables = torch.from_numpy(rng.normal(size=(2, 3, 2, 51)).astype(np.float32))
    networks: Any = [lambda rows, table=table: torch.einsum("br,raz->baz", rows, table) for table in tables]
    batch = batch_of([3.0, 98.0], [0.7, 0.9])
    losses, priorities = evidence.c51_losses(networks[0], networks[1], batch)
    assert priorities.tolist() == losses.tolist()
    for row in range(2):
        following = tables[1][row + 1].double().softmax(dim=1)
        best = following[int((following @ evidence.ATOMS.double()).argmax())]
        target = [0.0] * 51
        for z, probability in zip(atoms, best.tolist(), strict=True):
            place = min(max(float(batch.reward[row] + batch.next_discount[row] * z), 0.0), 100.0) / 2
            low = min(int(place), 49)
            target[low] += probability * (low + 1 - place)
            target[low + 1] += probability * (place - low)
        expected = -sum(np.array(target) * tables[0][row, 1].double().log_softmax(dim=0).numpy())
        assert losses[row].item() == pytest.approx(expected, rel=1e-4)


def test_a_footprint_counts_each_array_once() -> None:
    own, ours = (evidence.new_store(each, gymnasium.make("CartPole-v1"), 0) for each in ("SB3", "relive"))
    assert evidence.footprint(own) == sum(each.nbytes for each in vars(own).values() if isinstance(each, np.ndarray))
    assert evidence.footprint(ours) == pytest.approx(ours.get_stats().nbytes, rel=0.05)
    array = np.zeros(10)
    assert evidence.footprint([array, array, array[2:], {"a": (array[:3][1:],)}]) == 80
    ring, prioritized = (kind(1_000, ours.schema) for kind in (relive.RingReplayBuffer, relive.PrioritizedReplayBuffer))
    assert evidence.footprint(prioritized) >= evidence.footprint(ring) + 8 * 1_000


@pytest.mark.parametrize(
    ("at", "final"),
    [([10, 79, 80, 99], 6.0), ([10, 20, 30, 80], 8.0), ([10, 20, 30, 79], 8.0), ([85, 90, 95, 100], 4.25)],
)
def test_a_final_return_is_that_of_the_last_fifth(at: list[int], final: float) -> None:
    assert evidence.Measured("", "", 0, 100, (at, [2.0, 3.0, 4.0, 8.0]), 1.0, 1).final == final


def test_intervals_are_those_of_students_t_distribution() -> None:
    x = np.linspace(0, 13, 200_001)
    for freedom, quantile in enumerate(evidence.T_QUANTILES[1:], 1):
        scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
        density = scale * (1 + x**2 / freedom) ** (-(freedom + 1) / 2)
        assert np.interp(quantile, x, np.cumsum(density) * x[1]) == pytest.approx(0.475, abs=1e-4)
    values = np.array([1.0, 2.0, 6.0])
    assert evidence.half_width(values) == pytest.approx(4.303 * math.sqrt(7) / math.sqrt(3))
    assert evidence.interval(values) == "3.0 [-3.6, 9.6]"
    assert evidence.interval(np.array([1.0])) == "1.0 [nan, nan]"


def made_up(changes: dict[str, list[float]], seeds: int) -> list[evidence.Measured]:
    """Return runs that return 10 * seed, and more by a list of changes by seed with relive."""
    return [
        evidence.Measured(name, buffer, seed, 100, ([50, 100], [0.0, 10.0 * seed + change]), 10.0 * seed, 1_500_000)
        for name, buffer in CASES
        for seed in range(seeds)
        for change in [changes.get(name, [0.0] * seeds)[seed] if buffer == "relive" else 0.0]
    ]


def test_differences_are_paired_by_seed() -> None:
    text = evidence.page(made_up({"SB3 DQN": [4.0, 5.0, 6.0], "SB3 SAC": [-4.0, 5.0, 6.0]}, 3), minutes=7.4, jobs=2)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    base = "10.0 [-14.8, 34.8]"
    assert ["SB3 DQN", "CartPole-v1", "3 x 100", base, "15.0 [-12.3, 42.3]", "5.0 [2.5, 7.5]"] in rows
    assert ["SB3 SAC", "Pendulum-v1", "3 x 100", base, "12.3 [-25.4, 50.0]", "2.3 [-11.3, 16.0]"] in rows
    assert ["SB3 TD3", "Pendulum-v1", "3 x 100", base, base, "0.0 [0.0, 0.0]"] in rows
    tables = re.findall(r"^\| method \| task \| seeds x steps \| (.+?) \|.*\n(?:\|.*\n)+", text, re.MULTILINE)
    assert tables == ["SB3's buffer", "random play"]
    measured = [row for row in rows if row[2:3] == ["3 x 100"]]
    assert [row[0] for row in measured[-2:]] == ["R2D2", "a team, joint draws"]
    assert len(measured) == len(evidence.METHODS) + 1
    assert ["CleanRL-style DQN", "relive, prioritized 3-step", "10 [-15, 35]", "1.50"] in rows
    assert sum(row[-1] == "1.50" for row in rows) == len(CASES) - 2
    assert re.search(r"commit `\w+`: 3 seeds in 7 minutes, one thread a run, 2 at a time", text)


@pytest.mark.parametrize(("arguments", "seeds"), [(["--quick"], [0]), (["--seeds", "3"], [0, 1, 2])])
def test_all_is_run_with_each_seed_and_then_shown(
    arguments: list[str],
    seeds: list[int],
    capsys: pytest.CaptureFixture[str],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[tuple[str, str, int, int]] = []

    class Serial:
        """Stands for a context, and for its pool."""

        def set_forkserver_preload(self, names: list[str]) -> None: ...
        def Pool(self, jobs: int, maxtasksperchild: int) -> "Serial":  # noqa: N802
            assert (jobs, maxtasksperchild) == (1, 1)
            return self

        def __enter__(self) -> "Serial":
            return self

        def __exit__(self, *_: object) -> None: ...
        def imap(self, _: object, jobs: list[tuple[str, str, int, int]], chunksize: int) -> list[evidence.Measured]:
            done.extend(jobs)
            return [
                evidence.Measured(*job, ([1, job[3] // 2, job[3]], [1.0, 2.0, 3.0 + job[2]]), 9.0, 10) for job in jobs
            ]

    monkeypatch.setattr(multiprocessing, "get_context", lambda _: Serial())
    evidence.main([*arguments, "--out", str(tmp_path)])
    share = 10 if arguments == ["--quick"] else 1
    assert done == [(name, each, seed, evidence.METHODS[name].steps // share) for seed in seeds for name, each in CASES]
    last = f"{', '.join(CASES[-1])}, seed {seeds[-1]}: {seeds[-1] + 3}.0, 9 steps/s"
    assert capsys.readouterr().out.splitlines()[-1] == last
    assert f": {len(seeds)} seeds in 0 minutes" in (tmp_path / "evidence.md").read_text()
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")


def test_a_panel_of_the_picture_compares_like_with_like(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(figure.Figure, "savefig", lambda self, *arguments, **options: drawn.append(self))
    evidence.picture("path", made_up({"CleanRL-style DQN": [2.0] * 5}, 5))
    assert drawn[0].get_suptitle() == "DQN on CartPole-v1: mean and range of 5 seeds"
    shown = {axes.get_title(): axes.get_lines() for axes in drawn[0].axes}
    assert {title: [line.get_label() for line in lines] for title, lines in shown.items()} == {
        "uniform, 1-step": ["Stable-Baselines3's buffer", "relive"],
        "prioritized, 3-step": ["relive"],
    }
    ends = [line.get_ydata()[-1] for lines in shown.values() for line in lines]
    assert ends == [10.0, 11.0, 10.0]  # The mean of five seeds, 5 times each.


def test_the_page_is_as_the_script_writes_it() -> None:
    text = (pathlib.Path(evidence.__file__).parents[1] / "evidence.md").read_text(encoding="utf-8")
    parts = [re.escape(part) for part in re.split(r"\{[^}]*\}", evidence.PROSE)]
    assert re.fullmatch(".+?".join(parts), text, re.DOTALL)
    for name, method in evidence.METHODS.items():
        rows = re.findall(rf"^\| {name}.* \| {re.escape(method.task)} \| \d+ x {method.steps:,} \|", text, re.MULTILINE)
        assert len(rows) == len(method.buffers) - 1


@pytest.mark.long
def test_the_quick_form_runs_in_processes(tmp_path: pathlib.Path) -> None:
    evidence.main(["--quick", "--jobs", "2", "--out", str(tmp_path)])
    assert {"evidence.md", "learning.png"} <= {path.name for path in tmp_path.iterdir()}
