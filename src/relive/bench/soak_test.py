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
SHORT = 2_000
"""Steps: the buffer is full after 400, and evicts from then on."""
PATIENCE = 60.0


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have fewer storms, and fewer looks at the memory."""
    monkeypatch.setattr(soak, "_STORMS", 6)
    monkeypatch.setattr(soak, "_MEASURE_EVERY", 3)


@pytest.mark.usefixtures("_few")
def test_a_small_soak_of_all_buffers_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--steps", "5000"]) == 0
    for name, line in zip(soak.BUFFERS, capsys.readouterr().out.splitlines(), strict=True):
        check_line(name, "5", line)


@pytest.mark.long
@pytest.mark.parametrize("name", soak.BUFFERS)
def test_a_large_soak_ends_well(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert soak.main(["--steps", "500000", "--buffer", name]) == 0
    check_line(name, "500", capsys.readouterr().out.rstrip("\n"))


def check_line(name: str, thousands: str, line: str) -> None:
    """Check what is said of a soak that ended well."""
    assert re.fullmatch(
        rf"{name}: {thousands},\d\d\d steps, \d+,\d\d\d samples, [\d,]+ actors cancelled, \d+ seconds; "
        r"memory .* blocks after a tenth, .* blocks at the end: flat; counters add up",
        line,
    ), line


@pytest.mark.usefixtures("_few")
def test_a_seed_is_a_soak(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[int, ...]] = []

    class Noting(soaked.Episodes):
        def complaint(self, path: pathlib.Path) -> str:
            stats = self._episodes.get_stats()
            done.append((stats.appended, stats.sampled, stats.evicted_transitions, stats.completed, stats.truncated))
            return super().complaint(path)

    monkeypatch.setitem(soak.BUFFERS, "episodes", Noting)
    cancelled = [asyncio.run(soak.soaked("episodes", SHORT, seed)).cancelled for seed in (1, 1, 2)]
    assert cancelled[0] == cancelled[1] != cancelled[2]
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
        self.kept_a_step = max(20, sys.getallocatedblocks() // SHORT)

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
            r"at the end: flat; counters do NOT add up: appended: [\d,]+, not [\d,]+; sampled: [\d,]+, not [\d,]+; "
            r"stored and gone: [\d,]+, not [\d,]+",
        ),
        (Spliced, r"do NOT add up: appended: [\d,]+, not [\d,]+; stored and evicted: [\d,]+, not [\d,]+"),
    ],
)
@pytest.mark.usefixtures("_few")
def test_a_soak_that_goes_wrong_says_how(make: soak.Make, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(soak.BUFFERS, "ring", make)
    outcome = asyncio.run(soak.soaked("ring", SHORT, 0))
    assert not outcome.is_good
    assert re.search(f"{says}$", str(outcome)), outcome


@pytest.mark.parametrize(
    ("complaints", "code"), [(["", "", ""], 0), (["lost a step", "", ""], 1), (["", "", "lost a step"], 1)]
)
def test_one_soak_that_goes_wrong_is_enough(
    complaints: list[str], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = iter(complaints)

    async def soaked(name: str, steps: int, seed: int) -> soak.Outcome:
        facts: dict[str, Any] = {"samples": 0, "cancelled": 0, "seconds": 0.0, "first": FIRST, "last": FIRST}
        return soak.Outcome(steps=steps, complaint=next(left), **facts)

    monkeypatch.setattr(soak, "soaked", soaked)
    assert soak.main(["--steps", "5000"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert ["lost a step" in line for line in lines] == [bool(complaint) for complaint in complaints]


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
    await asyncio.wait_for(waiter, PATIENCE)
    await asyncio.wait_for(buffer.until(1), PATIENCE)
