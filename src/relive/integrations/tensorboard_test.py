import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tensorboard")

from tensorboard import summary
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util

import relive
from relive import errors
from relive.integrations import tensorboard


def read(folder: pathlib.Path) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and values of each tag, as TensorBoard reads them."""
    events: Any = event_accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, float(tensor_util.make_ndarray(event.tensor_proto))) for event in events.Tensors(tag)]
        for tag in events.Tags()["tensors"]
    }


def ring(steps: int) -> relive.RingReplayBuffer:
    buffer = relive.RingReplayBuffer(10, seed=0)
    for t in range(steps):
        buffer.add(t, 0, 0.0, t + 1)
    return buffer


def test_what_get_stats_says_is_read_back(tmp_path: pathlib.Path) -> None:
    buffer = ring(5)
    expected: dict[str, list[tuple[int, float]]] = {}
    with tensorboard.StatsWriter(buffer, tmp_path / "run") as stats:
        for step in (0, 7, 9):
            if step:
                buffer.sample(3)
                buffer.add(0, 0, 0.0, 1)
            stats.write(step)
            for name, value in tensorboard.scalars(buffer.get_stats()).items():
                expected.setdefault(f"replay/{name}", []).append((step, float(np.float32(value))))
    found = read(tmp_path / "run")
    assert found == expected
    assert found["replay/size"] == [(0, 5), (7, 6), (9, 7)]
    assert found["replay/dropped/evicted"] == [(0, 0), (7, 0), (9, 0)]
    assert [step for step, _ in found["replay/mean_drawn_age"]] == [7, 9]


def test_what_is_none_and_what_is_no_number_is_left_out() -> None:
    buffer = relive.EpisodeReplayBuffer[int, int](seed=0)
    buffer.start_episode_nowait("a")
    numbers = tensorboard.scalars(buffer.get_stats())
    assert "open_ages" not in numbers
    assert not any(name.startswith("open_ages/") for name in numbers)
    assert {"oldest_open_age", "never_drawn_share", "dropped/aborted", "dropped/cleared"} <= numbers.keys()
    assert {"mean_drawn_age", "policy_lag"}.isdisjoint(tensorboard.scalars(ring(1).get_stats()))
    assert all(isinstance(value, int | float) for value in numbers.values())


@pytest.mark.parametrize(
    "buffer",
    [
        ring(3),
        relive.AsyncReplayBuffer(ring(3)),
        relive.ThreadSafeReplayBuffer(ring(3)),
        relive.EpisodeReplayBuffer(),
        relive.ItemReplayBuffer(10),
    ],
    ids=lambda buffer: type(buffer).__name__,
)
def test_every_buffer_that_has_statistics_is_written(buffer: Any, tmp_path: pathlib.Path) -> None:
    with tensorboard.StatsWriter(buffer, str(tmp_path), prefix="memory/of actor") as stats:
        stats.write(1)
    assert "memory/of actor/sampled" in read(tmp_path)


def test_a_writer_that_was_given_is_shared_and_stays_open(tmp_path: pathlib.Path) -> None:
    writer: Any = summary.Writer(str(tmp_path))
    with (
        tensorboard.StatsWriter(ring(2), writer, prefix="first") as first,
        tensorboard.StatsWriter(ring(4), writer, prefix="second") as second,
    ):
        first.write(1)
        second.write(1)
    writer.add_scalar("loss", 0.5, 1)
    writer.close()
    found = read(tmp_path)
    assert (found["first/size"], found["second/size"], found["loss"]) == ([(1, 2)], [(1, 4)], [(1, 0.5)])


def test_the_writer_of_pytorch_will_do(tmp_path: pathlib.Path) -> None:
    torch_tensorboard = pytest.importorskip("torch.utils.tensorboard")
    writer = torch_tensorboard.SummaryWriter(str(tmp_path))
    tensorboard.StatsWriter(ring(2), writer).write(3)
    writer.close()
    events: Any = event_accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("replay/size")] == [(3, 2.0)]


def test_closing_twice_is_closing_once(tmp_path: pathlib.Path) -> None:
    stats = tensorboard.StatsWriter(ring(2), tmp_path)
    stats.write(1)
    stats.close()
    stats.close()
    assert read(tmp_path)["replay/size"] == [(1, 2.0)]


@pytest.mark.parametrize("step", [-1, 1.5, None, True])
def test_a_wrong_step_is_refused(step: Any, tmp_path: pathlib.Path) -> None:
    with (
        tensorboard.StatsWriter(ring(2), tmp_path) as stats,
        pytest.raises(errors.ArgumentError, match="^step must be "),
    ):
        stats.write(step)
    assert read(tmp_path) == {}


def test_wrong_arguments_are_refused(tmp_path: pathlib.Path) -> None:
    wrong: Any = 3
    with pytest.raises(errors.ArgumentTypeError, match="^buffer must have get_stats, got 3$"):
        tensorboard.StatsWriter(wrong, tmp_path)
    with pytest.raises(errors.ArgumentTypeError, match="^writer must be a directory or have add_scalar, got 3$"):
        tensorboard.StatsWriter(ring(1), wrong)
    with pytest.raises(errors.ArgumentTypeError, match="^prefix must be "):
        tensorboard.StatsWriter(ring(1), tmp_path, prefix=wrong)
    assert list(tmp_path.iterdir()) == []


def test_neither_tensorflow_nor_torch_is_imported() -> None:
    program = "import sys; from relive.integrations import tensorboard; print({'tensorflow', 'torch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_without_tensorboard_the_extra_is_named() -> None:
    program = "import sys; sys.modules['tensorboard'] = None; import relive.integrations.tensorboard"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "tensorboard is not installed: run pip install 'relive[tensorboard]'" in done.stderr


@pytest.mark.parametrize("is_own", [True, False])
def test_what_is_closed_writes_no_more(is_own: bool, tmp_path: pathlib.Path) -> None:
    written: list[Any] = []
    stats = tensorboard.StatsWriter(relive.RingReplayBuffer(9), tmp_path if is_own else Listed(written))
    stats.close()
    with pytest.raises(errors.ClosedError, match="^write found the StatsWriter closed: make another one$"):
        stats.write(1)
    assert not written


def test_a_directory_that_cannot_be_made_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(errors.ArgumentError, match="^writer must be a directory that can be made, got PosixPath"):
            tensorboard.StatsWriter(relive.RingReplayBuffer(9), path)


class Listed:
    """Writes into a list."""

    def __init__(self, written: list[Any]) -> None:
        self.written = written

    def add_scalar(self, tag: str, value: float, step: int, /) -> None:
        self.written.append((tag, value, step))
