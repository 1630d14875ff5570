"""`relive demo`: sets the training up, shows it, and says how it ended."""

import argparse
import asyncio
import os
import pathlib
import sys
import time
from typing import Any
import warnings

import numpy as np

from relive import errors
from relive.tools import curve
from relive.tools import demo
from relive.tools import display
from relive.tools import environments


def run(options: argparse.Namespace) -> int:
    """Trains and evaluates; answers 0, or 130 after an interrupt."""
    check_plot_path(options.plot)
    with warnings.catch_warnings(action="ignore"):  # Gymnasium's would come across the bar.
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    """Does what `run` does, with warnings out of the way."""
    settings = demo.Settings(seed=options.seed, steps=options.steps)
    made = [environments.Environment(options.env) for _ in range(options.actors + 2)]
    check_environment, evaluation_environment, *actor_environments = made
    training = demo.Training(actor_environments, check_environment, settings)
    started = time.monotonic()
    with display.choose(options.quiet) as show:
        was_interrupted = asyncio.run(_train(training, show, options.quiet))
        show(training)
    mean_return = evaluate(training, evaluation_environment)
    for environment in made:
        environment.close()
    verdict = _verdict(options.env, mean_return, check_environment.solved_at, was_interrupted)
    line = (
        f"{verdict}: mean return {mean_return:.1f} over {settings.evaluation_episodes} greedy episodes of the "
        f"{'best' if training.record.check_means else 'latest'} network, {training.record.steps:,} steps, "
        f"{len(training.record.episode_returns):,} episodes, {time.monotonic() - started:.0f} s"
    )
    title = f"relive demo: {options.env}, seed {options.seed}, {options.actors} actors"
    try:
        curve.save(training.record, title, check_environment.solved_at, options.plot)
    except errors.ArgumentError:
        _write_line(f"{line}, no curve")
        raise
    _write_line(f"{line}, curve in {options.plot}")
    return 130 if was_interrupted else 0


def _write_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _train(training: demo.Training, show: display.Show, is_quiet: bool) -> bool:
    """Trains while somebody watches, and answers whether it was interrupted: Ctrl-C cancels this coroutine."""
    asyncio.get_running_loop().set_exception_handler(_report_unless_interrupted)
    watcher = asyncio.create_task(display.watch(training, show))
    try:
        await training.run()
    except asyncio.CancelledError:
        if not is_quiet:
            sys.stdout.write("stopping: what was learned so far is evaluated (Ctrl-C again to leave at once)\n")
        return True
    finally:
        watcher.cancel()
    return False


def _report_unless_interrupted(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Keeps asyncio from logging the second Ctrl-C, which stops a task wherever it happens to be."""
    if not isinstance(context.get("exception"), KeyboardInterrupt):
        loop.default_exception_handler(context)


def evaluate(training: demo.Training, environment: environments.Environment) -> float:
    """Answers the mean return of the best network over fresh episodes, from a seed that training did not use."""
    episodes = training.settings.evaluation_episodes
    environment.reset(int(np.random.SeedSequence([training.settings.seed, episodes]).generate_state(1)[0] >> 1))
    network = training.best_network if training.record.check_means else training.network
    return float(environments.greedy_returns(environment, network, episodes).mean())


def check_plot_path(plot: str) -> None:
    """Raises ArgumentError if a file cannot be written there; before the training, not after it."""
    path = pathlib.Path(plot)
    if path.is_dir() or not path.parent.is_dir():
        raise errors.ArgumentError(f"--plot must be a file in a directory that exists, got {plot}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise errors.ArgumentError(f"--plot must be a file that can be written, got {plot}")


def _verdict(name: str, mean_return: float, solved_at: float | None, was_interrupted: bool) -> str:
    """Answers the first words of the last line."""
    stop = "interrupted, " if was_interrupted else ""
    if solved_at is None:
        return f"{stop}learned {name} (it has no threshold)"
    return f"{stop}{'solved' if mean_return >= solved_at else 'not solved'} {name} (threshold {solved_at:g})"
