"""Drop-in: Stable-Baselines3's DQN and SAC learn the same from relive's buffer as from their own.

    pip install 'relive[sb3]' matplotlib
    python drop_in.py                       five runs of each of the four, about twenty minutes
    python drop_in.py --plot drop_in.png    ... and a picture of the learning curves
    python drop_in.py --short               one short run of each, in seconds: to see that it runs

DQN on CartPole-v1 has the hyperparameters of RL Baselines3 Zoo, and SAC on Pendulum-v1 has its learning rate. The two
buffers draw other transitions, so no two runs are the same; what they reach should be. For each buffer it prints the
mean over runs of two returns, with a 95 % bootstrap interval: that of the final policy, over 20 episodes, and that of
the episodes in training, over all its steps, which also tells how fast it learned. Expect that the intervals of
"ours - theirs" hold 0.
"""

import argparse
from collections.abc import Callable, Sequence
import dataclasses
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import stable_baselines3
from stable_baselines3.common import env_util
from stable_baselines3.common import evaluation
import torch

from relive.integrations import stable_baselines3 as relive_sb3

Floats = npt.NDArray[np.float64]

BUFFERS: dict[str, Any] = {"theirs": None, "ours": relive_sb3.ReplayBuffer}
GRID = 100


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained where, for how many steps, and with which settings."""

    algorithm: type[Any]
    env_id: str
    steps: int
    short_steps: int
    settings: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.algorithm.__name__} on {self.env_id}"


TASKS = (
    Task(
        stable_baselines3.DQN,
        "CartPole-v1",
        50_000,
        1_500,
        {
            "learning_rate": 2.3e-3,
            "batch_size": 64,
            "buffer_size": 100_000,
            "learning_starts": 1_000,
            "gamma": 0.99,
            "target_update_interval": 10,
            "train_freq": 256,
            "gradient_steps": 128,
            "exploration_fraction": 0.16,
            "exploration_final_eps": 0.04,
            "policy_kwargs": {"net_arch": [256, 256]},
        },
    ),
    Task(stable_baselines3.SAC, "Pendulum-v1", 5_000, 300, {"learning_rate": 1e-3}),
)


@dataclasses.dataclass(frozen=True)
class Run:
    """What came of a training: the returns along its steps [GRID], that of the final policy, and seconds of the CPU."""

    curve: Floats
    final: float
    seconds: float


Results = dict[str, dict[str, list[Run]]]
"""Runs by task and buffer."""


def progress(name: str) -> Callable[..., bool]:
    """Return what an algorithm calls at each step: it prints a line every ten seconds."""
    last_line = time.monotonic()

    def tell(local_names: dict[str, Any], _: dict[str, Any]) -> bool:
        nonlocal last_line
        if time.monotonic() > last_line + 10:
            last_line = time.monotonic()
            print(f"{name}: step {local_names['self'].num_timesteps}", flush=True)
        return True

    return tell


def train(task: Task, label: str, steps: int, seed: int, num_checks: int) -> Run:
    """Train once: the buffer is all that differs."""
    name = f"{task}, {label}, seed {seed}"
    started = time.process_time()
    model = task.algorithm(
        "MlpPolicy", task.env_id, replay_buffer_class=BUFFERS[label], seed=seed, device="cpu", **task.settings
    )
    model.learn(steps, callback=progress(name))
    seconds = time.process_time() - started
    trained_in: Any = model.get_env()
    returns, lengths = (trained_in.env_method(f"get_episode_{what}")[0] for what in ("rewards", "lengths"))
    check_env = env_util.make_vec_env(task.env_id, seed=seed + 1_000)
    final, _ = evaluation.evaluate_policy(model, check_env, n_eval_episodes=num_checks)
    print(f"{name}: final return {final:.1f}, {seconds:.0f} CPU s", flush=True)
    return Run(along_the_steps(np.array(returns), np.cumsum(lengths), steps), float(np.mean(final)), seconds)


def along_the_steps(returns: Floats, ends: npt.NDArray[np.int64], steps: int) -> Floats:
    """Return the mean return of the ten episodes that ended last, at GRID steps side by side [GRID]."""
    at = np.linspace(0, steps, GRID + 1)[1:]
    ended = np.searchsorted(ends, at, side="right")
    return np.array([returns[max(last - 10, 0) : max(last, 1)].mean() for last in ended])


def interval(values: Floats, minus: Floats | None = None) -> str:
    """Return the mean, or a difference of means, with the 95 % interval of 10,000 bootstrap samples."""
    rng = np.random.default_rng(0)
    resampled = rng.choice(values, (10_000, len(values))).mean(axis=1)
    mean = values.mean()
    if minus is not None:
        resampled -= rng.choice(minus, (10_000, len(minus))).mean(axis=1)
        mean -= minus.mean()
    low, high = np.percentile(resampled, [2.5, 97.5])
    return f"{mean:8.1f} [{low:.1f}, {high:.1f}]"


def report(name: str, runs: dict[str, list[Run]]) -> list[str]:
    """Return a line for each buffer, and one for the difference."""
    training = {label: np.array([run.curve.mean() for run in some]) for label, some in runs.items()}
    final = {label: np.array([run.final for run in some]) for label, some in runs.items()}
    lines = [
        f"{name}, {label:13}: final{interval(final[label])}, in training{interval(training[label])}, "
        f"{np.median([run.seconds for run in runs[label]]):.0f} CPU s a run"
        for label in runs
    ]
    difference = (interval(of["ours"], of["theirs"]) for of in (final, training))
    return [*lines, f"{name}, ours - theirs: " + "final{}, in training{}".format(*difference)]


def plot(results: Results, steps: dict[str, int], path: str) -> None:
    """Write a picture of the learning curves: mean, and all runs."""
    from matplotlib import figure

    picture = figure.Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (name, runs) in zip(np.ravel(picture.subplots(1, len(results))), results.items(), strict=True):
        at = np.linspace(0, steps[name], GRID + 1)[1:]
        for (label, some), colour in zip(runs.items(), ("#d9792b", "#2f6fb0"), strict=True):
            curves = np.array([run.curve for run in some])
            axes.plot(at, curves.T, color=colour, alpha=0.25, linewidth=0.8)
            axes.plot(at, curves.mean(axis=0), color=colour, linewidth=2, label=f"{label}, mean of {len(some)}")
        axes.set(title=name, xlabel="environment steps")
        axes.set_ylabel("return, last ten episodes")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    picture.savefig(path, dpi=100)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train both with both buffers, in turns, and compares."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, help="of each run; by default 50,000 of DQN and 5,000 of SAC")
    parser.add_argument("--runs", type=int, default=5, help="of each task with each buffer")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the others follow")
    parser.add_argument("--short", action="store_true", help="one run of 1,500 steps of DQN and 300 of SAC")
    parser.add_argument("--plot", metavar="PATH", help="write the learning curves to this PNG")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    num_runs, num_checks = (1, 2) if options.short else (options.runs, 20)
    steps = {str(task): task.short_steps if options.short else options.steps or task.steps for task in TASKS}

    results: Results = {str(task): {label: [] for label in BUFFERS} for task in TASKS}
    for seed in range(options.seed, options.seed + num_runs):
        for task in TASKS:
            for label in BUFFERS:
                results[str(task)][label].append(train(task, label, steps[str(task)], seed, num_checks))
    if options.plot:
        plot(results, steps, options.plot)
    for name, runs in results.items():
        print("\n".join(report(name, runs)))


if __name__ == "__main__":
    main()
