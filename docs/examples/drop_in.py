"""Drop-in: DQN and SAC of Stable-Baselines3 learn the same from relive's buffer as from their own.

    python drop_in.py                       five seeds with each buffer, about twenty minutes
    python drop_in.py --plot drop_in.png    the same, and the learning curves
    python drop_in.py --short               one seed and a sixteenth of the steps, in seconds

`replay_buffer_class` is the only setting that differs. DQN has the hyperparameters of RL Baselines3 Zoo, SAC their
learning rate. The two buffers draw different transitions, so no two runs are the same, but both should learn as much:
for each buffer the program prints the mean over the seeds of two returns, with a 95 % bootstrap interval: that of the
episodes in training, over all steps, and that of the final policy. The intervals of the difference should contain 0.
"""

import argparse
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import stable_baselines3
from stable_baselines3.common import env_util
from stable_baselines3.common import evaluation
import torch

from relive.integrations import stable_baselines3 as relive_sb3

Floats = npt.NDArray[np.float64]
Results = dict[str, tuple[Floats, Floats]]
"""For each buffer the learning curves of its runs [seeds, GRID], and the returns of their final policies [seeds]."""

BUFFERS: dict[str, Any] = {"Stable-Baselines3": None, "relive": relive_sb3.ReplayBuffer}
GRID, NUM_CHECKS = 100, 20


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """An algorithm, its environment, the steps of a run, and the settings of the algorithm."""

    algorithm: type[Any]
    env_id: str
    steps: int
    settings: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.algorithm.__name__} on {self.env_id}"


DQN_SETTINGS = {
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
}
TASKS = (
    Task(stable_baselines3.DQN, "CartPole-v1", 50_000, DQN_SETTINGS),
    Task(stable_baselines3.SAC, "Pendulum-v1", 5_000, {"learning_rate": 1e-3}),
)


def train(task: Task, buffer_class: Any, seed: int) -> tuple[Floats, float]:
    """Return the learning curve of a run [GRID], and the mean return of the final policy."""
    settings = {"replay_buffer_class": buffer_class, "seed": seed, "device": "cpu", **task.settings}
    model = task.algorithm("MlpPolicy", task.env_id, **settings).learn(task.steps)
    env = model.get_env()
    returns, lengths = (env.env_method(f"get_episode_{name}")[0] for name in ("rewards", "lengths"))
    check_env = env_util.make_vec_env(task.env_id, seed=seed + 1_000)
    final, _ = evaluation.evaluate_policy(model, check_env, n_eval_episodes=NUM_CHECKS)
    return along_the_steps(np.array(returns), np.cumsum(lengths), task.steps), float(np.mean(final))


def along_the_steps(returns: Floats, ends: npt.NDArray[np.int64], steps: int) -> Floats:
    """Return the mean return of the last ten episodes at GRID evenly spaced steps [GRID]."""
    ended = np.searchsorted(ends, np.linspace(0, steps, GRID + 1)[1:], side="right")
    return np.array([returns[max(last - 10, 0) : max(last, 1)].mean() for last in ended])


def interval(values: Floats, baseline: Floats | None = None) -> str:
    """Return the mean, or how far it is above that of a baseline, with the 95 % interval of 10,000 resamples."""
    rng = np.random.default_rng(0)
    resampled = rng.choice(values, (10_000, len(values))).mean(axis=1)
    mean = values.mean()
    if baseline is not None:
        resampled -= rng.choice(baseline, (10_000, len(baseline))).mean(axis=1)
        mean -= baseline.mean()
    low, high = np.percentile(resampled, [2.5, 97.5])
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def report(task: Task, results: Results) -> None:
    """Print a line for each buffer, and one for the difference."""
    training = {name: curves.mean(axis=1) for name, (curves, _) in results.items()}
    final = {name: returns for name, (_, returns) in results.items()}
    for name in results:
        print(f"{task}, {name}: in training {interval(training[name])}, final {interval(final[name])}")
    in_training, at_the_end = (interval(of["relive"], of["Stable-Baselines3"]) for of in (training, final))
    print(f"{task}, difference: in training {in_training}, final {at_the_end}")


def plot(path: str, results: dict[Task, Results]) -> None:
    """Write a PNG with a panel for each task: the mean over the seeds in a band from the lowest to the highest."""
    from matplotlib import figure

    picture = figure.Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (task, of_task) in zip(picture.subplots(1, len(results)), results.items(), strict=True):
        grid = np.linspace(0, task.steps, GRID + 1)[1:]
        for name, (curves, _) in of_task.items():
            (line,) = axes.plot(grid, curves.mean(axis=0), label=name)
            axes.fill_between(grid, curves.min(axis=0), curves.max(axis=0), color=line.get_color(), alpha=0.2)
        axes.set(title=str(task), xlabel="environment steps", ylabel="return of the last ten episodes")
        axes.grid(alpha=0.3)
        axes.legend()
    picture.savefig(path, format="png", dpi=100)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train both algorithms with both buffers and several seeds, and compare the returns."""
    parser = argparse.ArgumentParser(description="Stable-Baselines3 with its own buffer and with relive's.")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default: %(default)s)")
    parser.add_argument("--short", action="store_true", help="one seed and a sixteenth of the steps")
    parser.add_argument("--plot", metavar="PATH", help="where to write the learning curves, as a PNG")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    seeds = 1 if options.short else options.seeds
    tasks = [dataclasses.replace(task, steps=task.steps // 16) for task in TASKS] if options.short else TASKS
    results: dict[Task, Results] = {}
    for task in tasks:
        results[task] = {}
        for name, buffer_class in BUFFERS.items():
            runs = [train(task, buffer_class, seed) for seed in range(seeds)]
            results[task][name] = np.array([curve for curve, _ in runs]), np.array([final for _, final in runs])
        report(task, results[task])
    if options.plot:
        plot(options.plot, results)


if __name__ == "__main__":
    main()
