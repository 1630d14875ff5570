import dataclasses
import io
import re
import sys
import time
from typing import Any

import pytest
from rich import cells
from rich import console as rich_console

import relive
from relive.cli import display
from relive.cli import environments
from relive.cli import episode_training
from relive.cli import memory_task
from relive.cli import prioritized_training
from relive.cli import sequence_training
from relive.cli import watch


def environment() -> environments.Environment:
    return environments.Environment("CartPole-v1")


def prioritized(steps: int = 400) -> display.Training:
    settings = prioritized_training.Settings(seed=0, steps=steps, warm_up=50, check_episodes=1, evaluation_episodes=1)
    return prioritized_training.PrioritizedTraining(environment, settings)


class Clock:
    """A clock that a test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(time, "monotonic", found)
    return found


def terminal(width: int = 120, height: int = 40, encoding: str = "utf-8") -> rich_console.Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding, write_through=True)
    return rich_console.Console(file=file, force_terminal=True, width=width, height=height, color_system=None)


def shown(console: rich_console.Console) -> str:
    file: Any = console.file
    return str(file.buffer.getvalue().decode(file.encoding))


def pictures(console: rich_console.Console) -> list[list[str]]:
    """Return the lines of each picture, as a terminal has them."""
    moves = re.compile(r"\r|\x1b\[2K|\x1b\[1A|\x1b\[\?25[lh]")
    frames = re.split(r"(?:\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*)", shown(console))
    return [moves.sub("", frame).rstrip("\n").split("\n") for frame in frames]


def test_the_view_says_what_is_learned_stored_drawn_and_dropped(clock: Clock) -> None:
    training, console = prioritized(), terminal()
    with watch.view(training, console) as show:
        training.run(show)
        clock.now = 107.0
    last, stats = "\n".join(pictures(console)[-1]), training.buffer.get_stats()
    effective = stats.effective_sample_size / stats.num_eligible
    for fact in (
        *(r"learning", r"steps +400 ", r"last 20 +\d+\.\d", r"best check +\d+\.\d", r"time +7 s"),
        *(r"stored", r"of capacity +1%", f"eligible +{stats.num_eligible}", r"oldest age +399 steps"),
        *(r"drawn", f"samples +{stats.sampled:,}", f"draws a step +{stats.mean_draws:.1f}"),
        *(
            f"never drawn +{stats.never_drawn_share:.1%}",
            f"effective +{effective:.0%}",
        ),
        *(f"mean age +{stats.mean_drawn_age:.0f} steps", r"dropped", r"evicted +0", r"stale keys +0"),
        r"[▁▂▃▄▅▆▇█]{5}",
    ):
        assert re.search(fact, last), fact
    assert "…" not in last


def test_numbers_of_a_large_buffer_fit() -> None:
    buffer = relive.RingReplayBuffer(10, seed=0)
    buffer.add_episode([0.0] * 11, [0] * 10, [0.0] * 10, terminated=True)
    buffer.sample(10)
    stats = dataclasses.replace(
        buffer.get_stats(), size=100_000, appended=10_000_000, sampled=10_000_000, evicted=9_900_000, mean_drawn_age=5e4
    )
    console = terminal()
    for title, facts in watch.boxes(stats).items():
        console.print(watch.box(title, facts))
    assert "10,000,000" in shown(console)
    assert "…" not in shown(console)


def test_of_episodes_it_says_which_are_open_and_never_drawn() -> None:
    settings = episode_training.Settings(seed=0, steps=300, warm_up=50, actors=2, check_episodes=1)
    training, console = episode_training.EpisodeTraining(environment, settings), terminal()
    with watch.view(training, console) as show:
        training.run(show)
    last, stats = "\n".join(pictures(console)[-1]), training.buffer.get_stats()
    for fact in (
        *(f"transitions +{stats.total_transitions}", f"episodes +{stats.total_episodes}", r"of them open +0"),
        *(r"oldest open +0\.0 s", r"agents +2", f"never drawn +{stats.never_drawn_share:.1%}", r"aborted +0"),
    ):
        assert re.search(fact, last), fact


def test_sequences_are_watched_too() -> None:
    settings = sequence_training.Settings(seed=0, steps=100, warm_up=20, check_episodes=1)
    training, console = sequence_training.SequenceTraining(memory_task.MemoryTask, settings), terminal()
    with watch.view(training, console) as show:
        training.run(show)
    assert re.search(r"effective +100%", "\n".join(pictures(console)[-1]))


def test_it_looks_four_times_a_second_and_at_the_end(clock: Clock) -> None:
    training, console = prioritized(), terminal()
    with watch.view(training, console) as show:
        for steps in range(1, 101):
            training.record.steps, clock.now = steps, 100.0 + steps / 100
            show()
    found = [int(steps) for steps in re.findall(r"learning.*\n. steps +(\d+) ", shown(console))]
    assert found == [0, 25, 50, 75, 100, 100]


WIDTHS = (1, 10, 28, 29, 30, 58, 59, 60, 80, 119, 120, 300)
HEIGHTS = (2, 5, 12, 50)


@pytest.mark.parametrize(
    ("width", "height"),
    [
        pytest.param(width, height, marks=[] if m % 4 == k else pytest.mark.long)
        for m, width in enumerate(WIDTHS)
        for k, height in enumerate(HEIGHTS)
    ],
)
def test_it_fits_any_terminal(width: int, height: int, clock: Clock) -> None:
    training, console = prioritized(), terminal(width, height)
    training.record.episode_returns += [float(number) for number in range(50)]
    with watch.view(training, console) as show:
        for _ in range(3):
            clock.now += 1
            show()
    *earlier, last = pictures(console)
    assert all(cells.cell_len(line) <= width for picture in (*earlier, last) for line in picture)
    assert all(len(picture) <= height for picture in earlier)


def test_boxes_stand_side_by_side_where_they_fit() -> None:
    for width, expected in ((58, 1), (59, 2), (80, 2), (119, 4)):
        console = terminal(width)
        with watch.view(prioritized(), console):
            pass
        assert max(line.count("╭") for line in pictures(console)[-1]) == expected


def test_a_terminal_of_ascii_alone_gets_no_other_character(clock: Clock) -> None:
    training, console = prioritized(), terminal(encoding="ascii")
    training.record.episode_returns += [1.0, 5.0, 8.0]
    with watch.view(training, console) as show:
        clock.now += 1
        show()
    assert shown(console).isascii()
    assert "_+#" in shown(console)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interrupt_leaves_the_terminal_in_order(error: type[BaseException]) -> None:
    console = terminal()
    with pytest.raises(error), watch.view(prioritized(), console):
        raise error
    text = shown(console)
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    assert text.endswith("\x1b[?25h")


def test_a_line_of_bars_shows_means_of_neighbours() -> None:
    console = terminal(width=4)
    for values in ([0.0, 7.0], [3.0, 3.0, 3.0], [0.0, 2.0, 4.0, 6.0, 6.0, 8.0, 20.0, 8.0], []):
        console.print(watch.Sparkline(values))
    assert shown(console).split("\n")[:3] == ["▁█", "▁▁▁", "▁▃▄█"]


def chosen(training: display.Training) -> str:
    found: Any = watch.choose(training)
    return str(found.func.__name__)


def test_a_terminal_gets_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert chosen(prioritized()) == "view"


def test_a_pipe_gets_lines_whatever_the_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert chosen(prioritized()) == "lines"


def test_what_is_not_known_yet_is_said_so() -> None:
    facts = dict(watch.boxes(relive.RingReplayBuffer(10).get_stats())["drawn"])
    assert (facts["mean age"], facts["effective"]) == ("none yet", "0%")
