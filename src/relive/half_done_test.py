"""A public call that raises has changed nothing, whatever it was that failed in it: semantics of every kind of buffer.

A call of the zoo is made to fail at each point in turn, and then made without a failure. Calls that are done by then, as
when memory runs out in the look for misuse at their end, count as made.
"""

from collections.abc import Callable
import contextlib
import copy
import os
import pathlib
import random
import subprocess
import sys
from typing import Any
from unittest import mock

import numpy as np
import pytest

import relive
from relive import errors
from relive.persistence import journal as journal_lib
from relive.testing import allocations
from relive.testing import zoo

BY_DAY = (
    "ring of 3 streams, n_step",
    "ring with its own sampler",
    "ring with its own storage",
    "prioritized with frame_stack",
    "prioritized sequences",
    "joint with priorities",
    "episodes in groups",
    "tokens with extras",
    "tokens in groups",
    "items, episodes",
)
Failing = Callable[[int], contextlib.AbstractContextManager[Any]]
"""Lets what has that number fail within a block, counted from 1."""


class FailingError(Exception):
    """What a hook or a file call raises here."""


def kinds(names: Any) -> list[Any]:
    """Return names of kinds as parameters; those that are not run by day are long."""
    return [pytest.param(name, marks=() if name in BY_DAY else pytest.mark.long) for name in names]


def count_failures(buffer: Any, failing: Failing, state_of: Callable[[Any], Any], seeds: int) -> int:
    """Make one call of each seed fail at each point; return how many calls failed, and have changed nothing."""
    num_failed = 0
    for seed in range(seeds):
        before = state_of(buffer)
        for number in range(1, 10_000):
            try:
                with failing(number):
                    zoo.work(buffer, random.Random(seed), 1)
                break
            except (MemoryError, FailingError, errors.CheckpointError):
                num_failed += 1
                assert state_of(buffer) == before, (seed, number)
                zoo.check(buffer)
            except errors.ArgumentError as error:
                assert isinstance(error.__cause__, MemoryError)
                num_failed += 1
                assert state_of(buffer) == before, (seed, number)
    return num_failed


@pytest.mark.parametrize("name", kinds(zoo.KINDS))
def test_a_call_that_runs_out_of_memory_has_changed_nothing(name: str) -> None:
    """Every array that numpy allocates in it is the one that does not fit."""
    buffer = zoo.worked(zoo.KINDS[name].make, count=40)
    assert count_failures(buffer, allocations.failing, zoo.state_of, seeds=12) > 30
    zoo.work(buffer, random.Random("after"), 20)
    zoo.check(buffer)


@pytest.mark.parametrize("name", kinds(zoo.STORED))
def test_a_load_that_runs_out_of_memory_has_changed_nothing(name: str) -> None:
    state = zoo.worked(zoo.KINDS[name].make, seed=1, count=40).state_dict()
    buffer, number, num_failed = zoo.worked(zoo.KINDS[name].make, count=40), 0, 0
    before = zoo.state_of(buffer)
    while True:
        number += 1 + number // 16
        try:
            with allocations.failing(number):
                buffer.load_state_dict(state)
            break
        except (MemoryError, errors.ReplayError):
            num_failed += 1
            assert zoo.state_of(buffer) == before, number
    assert num_failed > 10
    zoo.check(buffer)


# Files.


@contextlib.contextmanager
def failing_file_call(number: int) -> Any:
    """Let the file call of that number fail: each that a journal makes while it is written."""
    count = 0

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == number:
                raise OSError(28, "No space left on device")
            return call(*arguments, **options)

        return made

    names = ("open", "write", "rename", "replace", "mkdir", "unlink")
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(os, name, failing(getattr(os, name))))
        yield


def journaled_state(buffer: Any, path: pathlib.Path) -> Any:
    """Return the state of a buffer and what a reader finds in its journal."""
    files = {file.name: file.read_bytes() for file in path.glob("segment*")}
    newest = max(files)
    return zoo.state_of(buffer), newest, files[newest]


@pytest.mark.parametrize("name", kinds(zoo.JOURNALED))
@pytest.mark.parametrize("failing", [failing_file_call, allocations.failing], ids=["disk", "memory"])
def test_a_call_that_cannot_be_journaled_has_changed_nothing(name: str, failing: Any, tmp_path: pathlib.Path) -> None:
    buffer = zoo.worked(zoo.JOURNALED[name].make, count=40)
    with relive.Journal(tmp_path / "log", fsync="never") as journal:
        buffer.attach(journal)
        state_of = lambda buffer: journaled_state(buffer, tmp_path / "log")  # noqa: E731
        assert count_failures(buffer, failing, state_of, seeds=8) > 3
        state = zoo.plain(buffer.state_dict())
        buffer.detach()
    if name not in ("ring with its own storage",):
        recovered: Any = relive.recover(tmp_path / "log")
        zoo.check(recovered)
