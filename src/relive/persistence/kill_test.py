"""Processes that are killed, disks that are full, directories that cannot be written, and two processes on one path.

A child makes calls on a buffer of the zoo, journals them, saves it now and then, and says what was written and what was
synced; it is killed at any instant. A twin that is not killed makes the same calls: what comes back is what the twin
held after as many records, and all that had returned, for the system still has what the process wrote. Now and then the
power fails too: of what was not reported synced, any part is lost.
"""

from collections.abc import Callable, Iterator
import contextlib
import errno
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from typing import Any
from unittest import mock
import warnings

import numpy as np
import pytest

import relive
from relive import errors
from relive.episodes import episode_journal
from relive.persistence import checkpoint
from relive.persistence import journal_reader
from relive.persistence import posix_test
from relive.persistence import recover_test
from relive.persistence import seed_blocks_test
from relive.testing import zoo

pytestmark = pytest.mark.filterwarnings("ignore::relive.errors.MisuseWarning")

PATIENCE = 120
SMALL = 12_000
"""Bytes beyond which a file may not grow."""
POLICIES: list[Any] = ["always", relive.EveryRecords(7), relive.EverySeconds(0.005), "never"]
FAMILIES = ("ring", "episodes", "tokens")
MAKERS = [
    pytest.param(name, marks=() if name in (*FAMILIES, "episodes in groups", "joint") else pytest.mark.long)
    for name in recover_test.MAKERS
]
"""What a kill does to a journal is the same for those that share one."""
SCHEMA = relive.Schema(relive.Field(2, int), relive.Field((), int))


def content(buffer: Any) -> Any:
    """All that a journal holds of a buffer, whatever segments are gone."""
    return recover_test.content(buffer, (*recover_test.NOT_HELD, *recover_test.LOOKS_WRONG))


def begun(log: pathlib.Path) -> bool:
    return any(log.glob("segment-*.relive"))


@contextlib.contextmanager
def opened(log: pathlib.Path, kind: str, seed: int) -> Iterator[tuple[Any, relive.Journal]]:
    """Return a buffer of that kind, which goes on where its journal ends, and the journal."""
    rng = random.Random(f"{kind} {seed}")
    size, policy = rng.choice([2000, 20_000]), rng.choice(POLICIES)
    buffer: Any = relive.recover(log, seed=seed) if begun(log) else zoo.KINDS[kind].make()
    with relive.Journal(log, fsync=policy, segment_bytes=size) as journal:
        buffer.attach(journal)
        yield buffer, journal


def call(buffer: Any, seed: int, number: int) -> None:
    zoo.work(buffer, random.Random(f"{seed} {number}"), 1)


def live(directory: str, kind: str, seed: int) -> None:
    """Make calls until the process is killed."""
    note_syncs(f"{directory}/synced")
    rng, saved = random.Random(seed), 0
    with opened(pathlib.Path(directory, "log"), kind, seed) as (buffer, journal):
        for number in itertools.count():
            call(buffer, seed, number)
            if number % 5 == 4:
                buffer.save(f"{directory}/saved", keep=2)
                saved = journal.num_records
            say(journal.num_records, journal.num_synced, saved)
            if rng.random() < 0.02:
                time.sleep(0.001)


def contents(log: pathlib.Path, kind: str, seed: int, last: int) -> dict[int, Any]:
    """Return what a twin of the child holds, by the number of its records, up to that number."""
    found: dict[int, Any] = {}
    with opened(log, kind, seed) as (buffer, journal):
        for number in itertools.count():
            found[journal.num_records] = content(buffer)
            if journal.num_records >= last:
                break
            call(buffer, seed, number)
    return found


def say(*words: object) -> None:
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


def nurse() -> None:
    """Fork a child for each line that is read, and say its number; wait for its end when another line says so.

    To import what a child needs takes longer than it lives. This process has done so and nothing else.
    """
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # By numpy's BLAS.
    warnings.filterwarnings("ignore", category=errors.MisuseWarning)
    for line in sys.stdin:
        directory, kind, seed = json.loads(line)
        child = os.fork()
        if not child:
            for name, descriptor in (("said", 1), ("complaints", 2)):
                os.dup2(os.open(f"{directory}/{name}", os.O_WRONLY), descriptor)
            try:
                live(directory, kind, seed)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            os._exit(1)
        say(child)
        sys.stdin.readline()
        os.waitpid(child, 0)
        say("dead")


@pytest.fixture(scope="module")
def nursery() -> Iterator[subprocess.Popen[str]]:
    """A process that forks children."""
    command = [sys.executable, "-W", "error", "-c", "from relive.persistence import kill_test; kill_test.nurse()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        try:
            yield process
        finally:
            process.kill()


def killed(nursery: subprocess.Popen[str], directory: pathlib.Path, kind: str, seed: int) -> tuple[int, ...]:
    """Let a child make calls, kill it, and return how many records were written, synced, and part of a checkpoint."""
    rng = random.Random(f"killed {kind} {seed}")
    said, complaints = directory / "said", directory / "complaints"
    said.write_bytes(b"")
    complaints.write_bytes(b"")
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    nursery.stdin.write(f"{json.dumps([str(directory), kind, seed])}\n")
    child = int(nursery.stdout.readline())
    try:
        if rng.random() < 0.9:  # It has begun, or it has saved a checkpoint.
            begins = rng.choice([r"\d", r"\d", r"\d+ \d+ [1-9]"])
            while not re.search(begins, said.read_text()) and not complaints.stat().st_size:
                time.sleep(0.001)
        time.sleep(rng.random() * rng.choice([0.001, 0.01, 0.1]))
    finally:
        os.kill(child, signal.SIGKILL)
    nursery.stdin.write("\n")
    assert nursery.stdout.readline() == "dead\n"
    assert not complaints.read_text(), complaints.read_text()
    *_, last = ["0 0 0\n", *(line for line in said.read_text().splitlines(keepends=True) if line.endswith("\n"))]
    return tuple(map(int, last.split()))


def lose_power(directory: pathlib.Path, rng: random.Random) -> None:
    """Cut the last segment somewhere after the synced bytes, or in its last record."""
    place = max((directory / "log").glob("segment-*.relive"))
    name, noted = (directory / "synced").read_text().split()
    size, end = int(noted), place.stat().st_size
    if name != place.name:
        # The base of a segment, and what is carried over, are on the disk before there is a segment.
        size, first = journal_reader.SEGMENT_HEADER_BYTES, int(place.stem[-20:])
        for number, kind, payload in journal_reader.records(directory / "log"):
            if number == first or (number > first and kind in episode_journal.CARRIED.values()):
                size += journal_reader.RECORD_HEADER_BYTES + len(payload)
    os.truncate(place, rng.choice([max(size, end - 1), rng.randrange(size, end + 1)]))


def note_syncs(path: str) -> None:
    """Keep in a file which segment was synced last, and how many of its bytes."""
    sync, descriptor = relive.Journal._sync, os.open(path, os.O_WRONLY | os.O_CREAT)

    def noting(journal: relive.Journal) -> None:
        segment = journal._segment
        size = 0 if segment is None else segment.end
        sync(journal)
        if segment is not None:
            os.pwrite(descriptor, f"{os.path.basename(segment.path)} {size:20}".encode(), 0)

    mock.patch.object(relive.Journal, "_sync", noting).start()


@posix_test.FORKS
@pytest.mark.parametrize("seeds", seed_blocks_test.seed_blocks(6, 10, 5))
@pytest.mark.parametrize("kind", MAKERS)
def test_a_killed_process_loses_no_reported_call(
    kind: str, seeds: range, nursery: subprocess.Popen[str], tmp_path: pathlib.Path
) -> None:
    log, twin, synced, saved = (tmp_path / name for name in ("log", "twin", "synced", "saved"))
    seen = dict.fromkeys(("lives", "power failures", "torn tails", "checkpoints"), 0)
    rounds = itertools.count(seeds.start)
    while (seed := next(rounds)) < seeds.stop or not all(seen.values()):
        assert seed < seeds.start + 50, seen  # Long before, all of it has happened.
        shutil.rmtree(twin, ignore_errors=True)
        if begun(log):
            shutil.copytree(log, twin)
        expected, num_synced, num_saved = killed(nursery, tmp_path, kind, seed)
        if not begun(log):
            assert not expected
            continue
        seen["lives"] += 1
        rng = random.Random(f"power {kind} {seed}")
        if synced.exists() and synced.stat().st_size > 0 and rng.random() < 0.5:
            lose_power(tmp_path, rng)
            expected = num_synced
            seen["power failures"] += 1
        synced.unlink(missing_ok=True)
        seen["torn tails"] += journal_reader.examine(log).num_torn_bytes > 0
        recovered: Any = relive.recover(log)
        recovered.check()
        *_, last = journal_reader.records(log)
        found = contents(twin, kind, seed, last.number + 1)
        assert last.number + 1 >= expected
        if last.number + 1 in found:  # Not the first of two records of one call.
            assert content(recovered) == found[last.number + 1]
        if saved.exists():
            seen["checkpoints"] += 1
            place = checkpoint.read_manifest(str(saved))[0]["journal"]["num_records"]
            assert place >= num_saved
            assert content(type(recovered).load(saved)) == found.get(place, content(type(recovered).load(saved)))
            with contextlib.suppress(errors.CheckpointError):  # It may be older than the journal.
                assert content(relive.recover(log, checkpoint=saved)) == content(recovered)


# The disk is full.


def until_full(place: pathlib.Path, kind: str) -> None:
    """Make calls until the disk is full; refused calls have stored nothing."""
    buffer, before = zoo.KINDS[kind].make(), None
    with relive.Journal(place / "log", fsync=relive.EveryRecords(5), segment_bytes=1 << 30) as log:
        buffer.attach(log)
        call(buffer, 0, 0)
        buffer.save(place / "saved")
        for seed in range(2):
            with pytest.raises(errors.CheckpointError, match=r"log could not be written: [^\n]*$"):
                for number in itertools.count(1):
                    before = content(buffer)
                    call(buffer, seed, number)
            assert content(buffer) == before
        assert log.num_records > 20
        with pytest.raises(errors.CheckpointError, match=r"saved[ 0-9]* cannot be saved: [^\n]*$"):
            save_more(buffer, place)
    type(buffer).load(place / "saved").check()
    assert content(relive.recover(place / "log")) == before


def save_more(buffer: Any, place: pathlib.Path) -> None:
    """Save the buffer again and again, and then a large one."""
    for _ in range(20):
        buffer.save(place / "saved", keep=100)
    large = relive.RingReplayBuffer(10_000)
    large.add_episode(np.zeros(10_001), np.zeros(10_000), np.zeros(10_000), terminated=True)
    large.save(place / "saved 2")


def with_small_files(directory: str) -> None:
    """The same where no file may have more than 12,000 bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    posix_test.resource.setrlimit(posix_test.resource.RLIMIT_FSIZE, (SMALL, SMALL))
    for kind in FAMILIES:
        os.mkdir(f"{directory}/{kind}")
        until_full(pathlib.Path(directory, kind), kind)


@posix_test.LIMITS
def test_a_file_size_limit_loses_nothing(tmp_path: pathlib.Path) -> None:
    program = f"from relive.persistence import kill_test; kill_test.with_small_files({str(tmp_path)!r})"
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert answer.returncode == 0, answer.stderr[-3000:]


def test_a_read_only_file_system_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    relive.RingReplayBuffer(9).save(tmp_path / "saved")
    relive.Journal(tmp_path / "log").close()
    system, refuse = os.open, posix_test.failing(errno.EROFS)

    def open_to_read(path: Any, flags: int, *arguments: Any, **named: Any) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            refuse()
        return system(path, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", open_to_read)
    monkeypatch.setattr(os, "mkdir", refuse)
    calls: dict[str, Callable[[], object]] = {
        "new": lambda: relive.Journal(tmp_path / "new"),
        "log": lambda: relive.Journal(tmp_path / "log"),
        "other": lambda: relive.RingReplayBuffer(9).save(tmp_path / "other"),
        "map": lambda: relive.MemmapStorage(tmp_path / "map", SCHEMA, 5),
    }
    for name, call in calls.items():
        with pytest.raises(errors.CheckpointError, match=f"{name}.*: Read-only file system"):
            call()
    assert len(relive.RingReplayBuffer.load(tmp_path / "saved")) == 0


# Two processes on one path.

HOLDER = """
import sys, time
import relive

def wait(*_):
    print("ready", flush=True)
    time.sleep(1000)

path = sys.argv[1]
journal = relive.Journal(f"{path}/journal")
storage = relive.MemmapStorage(f"{path}/map", relive.Schema(relive.Field(2, int), relive.Field((), int)), 5)
relive.RingReplayBuffer(5, storage=storage).add([0, 0], 7, 0.0, [0, 1])
buffer = relive.RingReplayBuffer(5, seed=0)
buffer.add([0, 0], 0, 0.0, [0, 1])
buffer.save(f"{path}/checkpoint", progress=wait)
"""


def test_a_second_process_learns_the_pid_of_the_first(tmp_path: pathlib.Path) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "journal": lambda: relive.Journal(tmp_path / "journal"),
        "map": lambda: relive.MemmapStorage(tmp_path / "map", SCHEMA, 5),
        "checkpoint": lambda: relive.RingReplayBuffer(9).save(tmp_path / "checkpoint"),
    }
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        for name, call in calls.items():
            message = rf"^{tmp_path}/{name} is in use by another process \(pid {process.pid}\): [^\n]*$"
            with pytest.raises(errors.CheckpointError, match=message):
                call()
    finally:
        process.kill()
        process.communicate()
    for name, call in calls.items():  # Its locks died with it.
        opened = call()
        if name == "map":
            assert (opened.was_dirty, opened.generation, opened.read(0)["action"]) == (True, 0, 7)
        if opened is not None:
            opened.close()
