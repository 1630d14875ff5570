"""`relive demo`: sets a training up, shows it, and says how it ended."""

import argparse
from collections.abc import Callable, Iterator
import contextlib
import os
import pathlib
import signal
import sys
import time
import types
import warnings

from relive import errors
from relive.cli import curve
from relive.cli import display
from relive.cli import environments
from relive.cli import episode_training
from relive.cli import memory_task
from relive.cli import prioritized_training
from relive.cli import sequence_training
from relive.cli import tasks
from relive.cli import watch


def run(options: argparse.Namespace) -> int:
    """Train and evaluate; return 0, or 130 after an interrupt."""
    check_plot_path(options.plot)
    with (
        warnings.catch_warnings(action="ignore"),  # Gymnasium's would come across the bar.
        contextlib.ExitStack() as opened,
    ):
        return _run(options, lambda: opened.enter_context(contextlib.closing(_new_task(options))))


def _run(options: argparse.Namespace, new_task: Callable[[], tasks.Task]) -> int:
    """Do what `run` does, with warnings out of the way and somebody to close the tasks."""
    training = _new_training(options, new_task)
    evaluation_task = new_task()
    started = time.monotonic()
    with watch.choose(training) if options.watch else display.choose(training, options.quiet) as show:
        with _stopped_by_ctrl_c(training):
            training.run(show)
        if training.was_stopped and not options.quiet:
            _write_line("stopping: what was learned so far is evaluated (Ctrl-C again to leave at once)")
    mean_return = training.evaluate(evaluation_task)
    record, solved_at = training.record, evaluation_task.solved_at
    line = (
        f"{_verdict(evaluation_task, mean_return, training.was_stopped)}: mean return "
        f"{display.mean_return(training, mean_return)} over {training.settings.evaluation_episodes} greedy episodes of "
        f"the {'best' if record.check_means else 'latest'} network, {record.steps:,} steps, "
        f"{len(record.episode_returns):,} episodes, {time.monotonic() - started:.0f} s"
    )
    actors = "" if options.actors is None else f", {options.actors} actors"
    title = f"relive demo: {evaluation_task.name}, {options.buffer} buffer{actors}, seed {options.seed}"
    try:
        curve.save(record, title, solved_at, options.plot)
    except errors.ArgumentError:
        _write_line(f"{line}, no curve")
        raise
    _write_line(f"{line}, curve in {options.plot}")
    return 130 if training.was_stopped else 0


def _new_task(options: argparse.Namespace) -> tasks.Task:
    """Return one more of what is to be learned."""
    if options.buffer == "sequence":
        return memory_task.MemoryTask()
    return environments.Environment(options.env)


def _new_training(options: argparse.Namespace, new_task: Callable[[], tasks.Task]) -> display.Training:
    """Return the training with the buffer that the user chose."""
    seed, steps = options.seed, options.steps
    if options.buffer == "prioritized":
        return prioritized_training.PrioritizedTraining(new_task, prioritized_training.Settings(seed=seed, steps=steps))
    if options.buffer == "sequence":
        return sequence_training.SequenceTraining(new_task, sequence_training.Settings(seed=seed, steps=steps))
    return episode_training.EpisodeTraining(
        new_task, episode_training.Settings(seed=seed, steps=steps, actors=options.actors)
    )


@contextlib.contextmanager
def _stopped_by_ctrl_c(training: display.Training) -> Iterator[None]:
    """Let a first Ctrl-C end the training early; a second one is a KeyboardInterrupt again, and end the command.

    In asyncio too, which takes over Ctrl-C only where nobody else has. Where Ctrl-C is ignored, it stays so.
    """

    def stop(number: int, frame: types.FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        training.stop()

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _write_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def check_plot_path(plot: str) -> None:
    """Raise ArgumentError if a file cannot be written there; before the training, not after it."""
    path = pathlib.Path(plot)
    if path.is_dir() or not path.parent.is_dir():
        raise errors.ArgumentError(f"--plot must be a file in a directory that exists, got {plot}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise errors.ArgumentError(f"--plot must be a file that can be written, got {plot}")


def _verdict(task: tasks.Task, mean_return: float, was_interrupted: bool) -> str:
    """Return the first words of the last line."""
    stop = "interrupted, " if was_interrupted else ""
    if task.solved_at is None:
        return f"{stop}learned {task.name} (it has no threshold)"
    success = "solved" if mean_return >= task.solved_at else "not solved"
    return f"{stop}{success} {task.name} (threshold {task.solved_at:g})"
