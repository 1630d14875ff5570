"""The learning curve of a demo, as a PNG."""

import numpy as np

from relive import errors
from relive.cli import learning_record
from relive.common import imports

with imports.optional_dependency("demo"):
    from matplotlib import figure

_RECENT = 20


def save(record: learning_record.LearningRecord, title: str, solved_at: float | None, path: str) -> None:
    """Write the returns of all episodes, their running mean, and the greedy checks, over steps."""
    picture = figure.Figure(figsize=(9, 5), layout="constrained")
    axes = picture.add_subplot()
    ends, returns = np.array(record.episode_ends), np.array(record.episode_returns)
    axes.plot(ends, returns, ".", color="tab:blue", alpha=0.3, label="an episode, exploring")
    if len(returns) >= _RECENT:
        means = np.convolve(returns, np.full(_RECENT, 1 / _RECENT), mode="valid")
        axes.plot(ends[_RECENT - 1 :], means, color="tab:blue", label=f"mean of the last {_RECENT} episodes")
    axes.plot(record.check_steps, record.check_means, "o-", color="tab:orange", label="greedy check, mean return")
    if solved_at is not None:
        axes.axhline(solved_at, color="tab:gray", linestyle="--", label=f"solved at {solved_at:g}")
    axes.set(title=title, xlabel="environment steps", ylabel="return")
    axes.legend(loc="best")
    axes.grid(alpha=0.3)
    try:
        picture.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise errors.ArgumentError(f"--plot could not be written to {path}: {error.strerror}") from error
