import asyncio
import dataclasses
import pathlib
import re
import sys
from typing import Any

import pytest

import relive
from relive import errors
from relive.bench import soak
from relive.bench import soaked

MIB = 2**20
FIRST = soak.Memory(100 * MIB, 1_000_000)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer storms; the buffer is full and evicts all the same."""
    monkeypatch.setattr(soak, "_STORMS", 20)
    monkeypatch.setattr(soak, "_MEASURE_EVERY", 2)


@pytest.mark.parametrize("name", soak.BUFFERS)
def test_a_small_soak_ends_well(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--steps", "5000", "--buffer", name]) == 0
    line = capsys.readouterr().out
    assert re.fullmatch(
        rf"{name}: 5,\d\d\d steps, \d+,\d\d\d samples, \d+ actors cancelled, \d+ seconds; memory .* blocks after a "
        r"tenth, .* blocks at the end: flat; counters add up\n",
        line,
    )


def test_a_seed_is_a_soak() -> None:
    outcomes = [asyncio.run(soak.soaked("episodes", 5_000, seed)) for seed in (1, 1, 2)]
    done = [(outcome.steps, outcome.samples, outcome.cancelled) for outcome in outcomes]
    assert done[0] == done[1] != done[2]


def test_too_few_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        soak.main(["--steps", "4999"])
    assert "--steps must be at least 5,000, got 4999" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("last", "is_flat"),
    [
        (FIRST, True),
        (soak.Memory(50 * MIB, 500_000), True),
        (soak.Memory(106 * MIB, 1_030_000), True),
        (soak.Memory(106 * MIB + 1, 1_000_000), False),
        (soak.Memory(100 * MIB, 1_030_001), False),
        (soak.Memory(None, 1_030_000), True),
        (soak.Memory(None, 1_030_001), False),
    ],
)
def test_memory_is_flat_up_to_two_percent_and_what_comes_and_goes(last: soak.Memory, is_flat: bool) -> None:
    assert last.is_flat_since(FIRST) == is_flat


def test_a_system_that_does_not_say_how_large_a_process_is_counts_blocks_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(soak, "_STATM", tmp_path / "nowhere")
    memory = soak.Memory.now()
    assert memory.nbytes is None
    assert memory.blocks > 10_000
    assert str(dataclasses.replace(memory, blocks=12_345)) == "unknown, 12,345 blocks"
    assert soak.Memory(memory.nbytes, 10**9).is_flat_since(FIRST) is False
    assert memory.is_flat_since(memory)


class Leaky(soaked.Episodes):
    """Keeps what it need not keep."""

    def __init__(self, *arguments: int) -> None:
        super().__init__(*arguments)
        self.kept: list[Any] = []
        # Of the size of the process that the test runs in.
        self.kept_a_step = max(5, sys.getallocatedblocks() // 5000)

    def count_step(self) -> None:
        super().count_step()
        self.kept += [object() for _ in range(self.kept_a_step)]


class Forgetful(soaked.Episodes):
    """Has heard of a step less than there are, and of a sample more."""

    def complaint(self, path: pathlib.Path) -> str:
        self.appended -= 1
        self.sampled += 1
        return super().complaint(path)


class Spliced(soaked.Columns):
    """Has heard of a step less than there are."""

    def __init__(self, *arguments: int) -> None:
        super().__init__(relive.RingReplayBuffer, *arguments)

    def complaint(self, path: pathlib.Path) -> str:
        self.appended -= 1
        return super().complaint(path)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Leaky, "at the end: NOT FLAT; counters add up"),
        (
            Forgetful,
            r"at the end: flat; counters do NOT add up: appended: 5,\d+, not 5,\d+; sampled: [\d,]+, not [\d,]+; "
            r"stored and gone: 5,\d+, not 5,\d+",
        ),
        (Spliced, r"do NOT add up: appended: 5,\d+, not 5,\d+; stored and evicted: 5,\d+, not 5,\d+"),
    ],
)
def test_a_soak_that_goes_wrong_says_how(
    make: soak.Make, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(soak.BUFFERS, "ring", make)
    assert soak.main(["--steps", "5000", "--buffer", "ring"]) == 1
    assert re.search(f"{says}\n$", capsys.readouterr().out)


def test_one_soak_that_goes_wrong_is_enough(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(soak.BUFFERS, "ring", Leaky)
    assert soak.main(["--steps", "5000", "--buffer", "ring", "episodes"]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert "NOT FLAT" in first
    assert "flat" in second


class Failing(soaked.Episodes):
    """One of its actors fails."""

    async def act(self, place: int) -> None:
        if place == 3:
            raise ConnectionError("the environment went away")
        await super().act(place)


def test_an_actor_that_fails_ends_the_soak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(soak.BUFFERS, "ring", Failing)
    with pytest.raises(errors.CorruptionError, match=r"^a task ended by itself: ConnectionError\("):
        soak.main(["--steps", "5000", "--buffer", "ring"])


async def test_the_marks_of_a_soak_may_have_been_passed() -> None:
    buffer = soaked.Episodes(400, 8, 0)
    waiter = asyncio.create_task(buffer.until(2))
    for _ in range(2):
        await asyncio.sleep(0)
        assert not waiter.done()
        buffer.count_step()
    await asyncio.wait_for(waiter, 10)
    await asyncio.wait_for(buffer.until(1), 10)
