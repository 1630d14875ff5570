"""What the examples share: runs with several seeds, their command line, and a picture of the learning curves."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Run = tuple[Sequence[Any], Sequence[Any]]  # Increasing numbers of environment steps, and what was measured at each.
Runs = dict[str, list[Run]]  # By the name in the legend, one for each seed.


def running_mean(values: Sequence[Any], window: int) -> list[float]:
    """Return the mean of each value and those before it, `window` values at most."""
    return [float(np.mean(values[max(0, end - window) : end])) for end in range(1, len(values) + 1)]


def plot(path: str, runs: Runs, *, ylabel: str, title: str = "", xlabel: str = "environment steps") -> None:
    """Write a PNG with the mean of the runs of each name, in a band from the lowest to the highest."""
    from matplotlib import figure

    picture = figure.Figure(figsize=(7, 4), layout="constrained")
    draw(picture.add_subplot(title=title, xlabel=xlabel, ylabel=ylabel), runs)
    picture.savefig(path, format="png", dpi=100)


def draw(axes: Any, runs: Runs, first_color: int = 0) -> None:
    """Draw the runs of each name, in the colours from that number of the cycle on."""
    for number, (name, group) in enumerate(runs.items(), first_color):
        # Each line is drawn where all of its runs have values.
        grid = np.linspace(max(steps[0] for steps, _ in group), min(steps[-1] for steps, _ in group), 200)
        values = np.array([np.interp(grid, *run) for run in group])
        axes.plot(grid, values.mean(axis=0), label=name, color=f"C{number}")
        axes.fill_between(grid, values.min(axis=0), values.max(axis=0), color=f"C{number}", alpha=0.2, linewidth=0)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")


def main(train: Callable[..., Run], cases: Any, arguments: Any, *, steps: int, title: str, ylabel: str) -> None:
    """Run `train(steps, seed, **cases[name])` for each name and seed, as the command line says, and plot the runs."""
    parser = argparse.ArgumentParser(description=f"{title}: {', '.join(cases)}.")
    parser.add_argument("--steps", type=int, default=steps, help="environment steps of a run (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=4, help="number of seeds (default: %(default)s)")
    parser.add_argument("--short", action="store_true", help="the same as --steps 1200 --seeds 1")
    parser.add_argument("--plot", metavar="PATH", help="where to write the learning curves, as a PNG")
    options = parser.parse_args(arguments)
    steps, seeds = (1_200, 1) if options.short else (options.steps, options.seeds)
    runs: Runs = {name: [] for name in cases}
    for seed in range(seeds):
        for name, case in cases.items():
            runs[name].append(train(steps, seed, **case))
            values = runs[name][-1][1]
            if not len(values):
                parser.error(f"--steps must be more than {steps}: nothing could be measured in so few")
            print(f"{name}, seed {seed}: {ylabel} at the end: {values[-1]:.1f}")
    if options.plot:
        plot(options.plot, runs, ylabel=ylabel, title=title)
