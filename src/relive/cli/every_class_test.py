"""`relive inspect` and `relive verify` accept the files of every class."""

import asyncio
from collections.abc import Callable
import json
import pathlib
from typing import Any

import numpy as np
import pytest

import relive
from relive.cli import command_line
from relive.cli import saved_examples_test as examples
from relive.persistence import inspect_test
from relive.persistence import journal as journal_lib


def mixed() -> relive.RingReplayBuffer:
    """Return a buffer that a mixture draws from."""
    buffers = [inspect_test.fill(relive.RingReplayBuffer(100, seed=seed)) for seed in (0, 1)]
    relive.MixtureSampler(buffers, [0.5, 0.5]).sample(8)
    first: relive.RingReplayBuffer = buffers[0]
    return first


def hindsight() -> relive.RingReplayBuffer:
    """Return a buffer of steps with goals, of which some were missed."""
    buffer = relive.RingReplayBuffer(100, seed=0)
    for t in range(12):
        observation, following = ({"achieved_goal": [t + k], "desired_goal": [3]} for k in (0, 1))
        buffer.add(observation, 0, -1.0, following, truncated=t % 4 == 3)
    relive.relabel(buffer, buffer.sample(8), compute=lambda achieved, goals: (np.zeros(len(goals)), goals[:, 0] > 3))
    return buffer


SHELLS: dict[str, Callable[[Any], Any]] = {
    "AsyncReplayBuffer": relive.AsyncReplayBuffer,
    "ThreadSafeReplayBuffer": relive.ThreadSafeReplayBuffer,
}
MAKERS: dict[str, Callable[[], Any]] = inspect_test.MAKERS | {
    "learner's queue": examples.queued,
    "mixture": mixed,
    "hindsight": hindsight,
}


def test_no_class_is_left_out() -> None:
    public = [name for name in relive.__all__ if hasattr(getattr(relive, name), "save")]
    assert {*MAKERS, *SHELLS} >= set(public)


def check_is_known(path: pathlib.Path, kind: str, name: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that both commands describe what is at a path, as text and as JSON."""
    assert command_line.main(["inspect", str(path)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"kind {kind}" in lines
    assert f"class {name or 'unknown'}" in lines
    assert "health nothing is broken" in lines
    assert "Statistics" in lines
    assert command_line.main(["verify", str(path)]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{path} is whole: a {kind}")
    assert name is None or f", which loads <{name} " in said
    for command in ("inspect", "verify"):
        assert command_line.main([command, str(path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["kind"] == kind


@pytest.mark.parametrize("name", MAKERS)
def test_a_checkpoint_of_every_class_is_known(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    buffer = MAKERS[name]()
    buffer.save(tmp_path / "buffer")
    check_is_known(tmp_path / "buffer", "checkpoint", type(buffer).__name__, capsys)
    page = tmp_path / "page.html"
    assert command_line.main(["inspect", str(tmp_path / "buffer"), "--report", str(page)]) == 0
    assert type(buffer).__name__ in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SHELLS)
def test_a_shell_saves_the_buffer_in_it(name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell = SHELLS[name](relive.RingReplayBuffer(100, seed=0))
    saved = shell.save(tmp_path / "buffer")
    if saved is not None:
        asyncio.run(saved)
    check_is_known(tmp_path / "buffer", "checkpoint", "RingReplayBuffer", capsys)


@pytest.mark.parametrize("name", [name for name, make in MAKERS.items() if hasattr(make(), "attach")])
def test_a_journal_of_every_class_that_has_one_is_known(
    name: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    buffer = MAKERS[name]()
    with journal_lib.Journal(tmp_path / "journal", fsync="never") as journal:
        buffer.attach(journal)
        buffer.detach()
    check_is_known(tmp_path / "journal", "journal", type(buffer).__name__, capsys)


def test_a_memory_map_and_a_parquet_file_are_known(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = relive.Schema(relive.Field((), "int64"), relive.Field((), "int64"))
    relive.MemmapStorage(tmp_path / "map", schema, 10).close()
    check_is_known(tmp_path / "map", "memory map", None, capsys)
    arrow = pytest.importorskip("relive.integrations.arrow", exc_type=ImportError)
    arrow.write_parquet(mixed(), tmp_path / "steps.parquet")
    check_is_known(tmp_path / "steps.parquet", "Parquet file", None, capsys)
