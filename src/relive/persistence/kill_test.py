"""Processes that are killed, disks that are full, directories that cannot be written, and two processes on one path.

A child adds to a buffer, journals it, saves it now and then, and says what has returned and what was reported synced;
it is killed at any instant. Its data describe themselves: what comes back is a beginning of what the child did, and
holds all that had returned, for the system still has what the process wrote. Now and then the power fails too: of what
was not reported synced, any part is lost.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import textwrap
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
from relive.persistence import journal as journal_lib
from relive.persistence import journal_reader
from relive.persistence import posix_test
from relive.persistence import recover_test
from relive.persistence import seed_blocks_test

PATIENCE = 120
SMALL = 30_000
"""Bytes beyond which a file may not grow."""
NEXT = np.array([0, 1])
POLICIES: list[Any] = ["always", relive.EveryRecords(7), relive.EverySeconds(0.005), "never"]


def live(directory: str, family: str, seed: int, first: int) -> None:
    """Make calls until the process is killed."""
    note_syncs(f"{directory}/synced")
    log, policy = f"{directory}/log", POLICIES[seed % len(POLICIES)]
    buffer: Any = relive.recover(log) if os.path.exists(log) and os.listdir(log) else MAKERS[family]()
    with relive.Journal(log, fsync=policy, segment_bytes=random.Random(seed).choice([2000, 20_000])) as journal:
        buffer.attach(journal)
        for t in doing(buffer, family, first, random.Random(seed)):
            if t % 50 == 0:
                buffer.save(f"{directory}/saved", keep=2)
                say("saved", t)
            say(t, journal.num_records, journal.num_synced)


def say(*words: object) -> None:
    os.write(1, f"{' '.join(map(str, words))}\n".encode())


def nurse() -> None:
    """Fork a child for each line that is read, and say its number; wait for its end when another line says so.

    To import what a child needs takes longer than it lives. This process has done so and nothing else.
    """
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # By numpy's BLAS.
    for line in sys.stdin:
        directory, family, seed, first = json.loads(line)
        child = os.fork()
        if not child:
            for name, descriptor in (("said", 1), ("complaints", 2)):
                os.dup2(os.open(f"{directory}/{name}", os.O_WRONLY), descriptor)
            try:
                live(directory, family, seed, first)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            os._exit(1)
        say(child)
        sys.stdin.readline()
        os.waitpid(child, 0)
        say("dead")


# What the child does: thing t, for t = first, first + 1, ... without end.


def ring() -> Any:
    return relive.RingReplayBuffer(200, seed=0)


def episodes() -> Any:
    return relive.EpisodeReplayBuffer(max_transitions=150, max_episodes=20, seed=0)


def tokens() -> Any:
    extra = relive.Field((), int)
    return relive.TokenReplayBuffer(200, token_extras={"copy": extra}, sequence_extras={"seen": extra}, seed=0)


MAKERS = {"columns": ring, "episodes": episodes, "tokens": tokens}


def doing(buffer: Any, family: str, first: int, rng: random.Random) -> Iterator[int]:
    """Add step t, and yield t once that has returned."""
    t = first
    while True:
        {"columns": add_row, "episodes": add_step, "tokens": add_tokens}[family](buffer, t)
        yield t
        t += 1
        if rng.random() < 0.02:
            time.sleep(0.001)


def add_row(buffer: Any, t: int) -> None:
    """Episodes are of 9 steps."""
    episode, step = divmod(t, 9)
    now = np.array([episode, step])
    buffer.add(now, t, float(t), now + NEXT, terminated=step == 8)


def add_step(buffer: Any, t: int) -> None:
    """An episode is of 9 things: a start, seven steps and an end."""
    episode, step = divmod(t, 9)
    agent = f"agent {episode}"
    ids = {each.agent_id: each.episode_id for each in recover_test.episodes_of(buffer).values()}
    if step == 0:
        buffer.start_episode_nowait(agent)
    elif step < 8:
        buffer.append_observation_action_reward_nowait(ids[agent], [episode, step], step, float(t))
    else:
        buffer.end_episode_nowait(ids[agent], [episode, step], "COMPLETED" if episode % 2 else "TRUNCATED")


def add_tokens(buffer: Any, t: int) -> None:
    """Every third thing is an update of the newest episode; the others are episodes of a few tokens."""
    if t % 3 == 2:
        assert buffer.update([2 * (t // 3) + 1], seen=[t], copy=[[t] * 9]) == 1
        return
    step = relive.TokenStep(prompt=[t] * (t % 5 + 1), response=[t], logprobs=[-0.5], policy_version=t)
    buffer.add_episode([step], agent_id=f"agent {t}", seen=-1)


def tokens_done(buffer: Any) -> int:
    stats = buffer.get_stats()
    batch: Any = buffer.read(buffer.eligible_keys()) if stats.sequences else None
    newest = -1
    for row in range(stats.sequences):
        key = int(batch.keys[row])
        t = 3 * (key // 2) + key % 2
        tokens = batch.tokens[row][batch.attention_mask[row]].tolist()
        assert tokens == [t] * (t % 5 + 2)
        assert batch.agent_ids[row] == f"agent {t}"
        seen, copies = int(batch.extras["seen"][row]), batch.extras["copy"][row][batch.attention_mask[row]].tolist()
        is_updated = seen == t + 1
        assert (seen, copies) == ((t + 1, [t + 1] * len(tokens)) if is_updated else (-1, [0] * len(tokens)))
        assert is_updated == (key % 2 == 1 and (row < stats.sequences - 1 or is_updated))
        newest = t + is_updated
    assert batch is None or stats.appended == int(batch.keys[-1]) + 1
    return newest + 1


def things_done(buffer: Any, family: str) -> int:
    """Return the number of calls after which a buffer equals this one; raise if there is none."""
    buffer.check()
    if family != "episodes":
        return {"columns": rows_done, "tokens": tokens_done}[family](buffer)
    stored = recover_test.episodes_of(buffer).values()
    newest = max((episode_of(each) for each in stored), default=-1)
    count = 0
    for each in stored:
        episode, steps = episode_of(each), len(each.actions)
        is_open = each.status == "IN_PROGRESS"
        assert is_open == (episode == newest and steps < 8 and is_open)
        assert each.actions == list(range(1, steps + 1))
        assert each.rewards == [float(9 * episode + step) for step in range(1, steps + 1)]
        last = steps + 1 if is_open else 9
        assert each.observations == [[episode, step] for step in range(1, last)]
        assert is_open or (steps == 7 and each.status == ("COMPLETED" if episode % 2 else "TRUNCATED"))
        count = max(count, 9 * episode + last)
    numbers = [episode_of(each) for each in stored]
    assert numbers == list(range(numbers[0], newest + 1)) if numbers else count == 0
    assert buffer.get_stats().appended == sum(min(max(count - 9 * each - 1, 0), 7) for each in range(newest + 1))
    return count


def episode_of(episode: Any) -> int:
    return int(episode.agent_id.removeprefix("agent "))


def rows_done(buffer: Any) -> int:
    count = int(buffer.get_stats().appended)
    assert len(buffer) == min(count, buffer.capacity)
    if not count:
        return 0
    keys = buffer.eligible_keys()
    assert keys.tolist() == list(range(count - len(buffer), count))
    batch = buffer.read(keys)
    places = np.array(np.divmod(keys, 9)).T
    assert np.array_equal(batch.observation, places)
    assert np.array_equal(batch.next_observation, places + NEXT)
    assert np.array_equal(batch.action, keys)
    assert np.array_equal(batch.reward, keys.astype(float))
    assert np.array_equal(batch.is_terminal, keys % 9 == 8)
    return count


@dataclasses.dataclass
class Reported:
    """What a child has said before it died.

    Attributes:
        returned: How many things had been done.
        saved: How many were saved; 0 if none.
        records: How many records there were after each thing.
        synced: How many of them were synced.
    """

    returned: int = 0
    saved: int = 0
    records: dict[int, int] = dataclasses.field(default_factory=dict)
    synced: int = 0

    def hear(self, line: str) -> None:
        words = line.split()
        if words[0] == "saved":
            self.saved = int(words[1]) + 1
        else:
            t, num_records, self.synced = map(int, words)
            self.returned = t + 1
            self.records[t + 1] = num_records

    @property
    def durable(self) -> int:
        """The number of calls that were certainly on the disk."""
        return max((count for count, number in self.records.items() if number <= self.synced), default=0)


@pytest.fixture
def nursery() -> Iterator[subprocess.Popen[str]]:
    """A process that forks children."""
    command = [sys.executable, "-W", "error", "-c", "from relive.persistence import kill_test; kill_test.nurse()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        try:
            yield process
        finally:
            process.kill()


def killed(nursery: subprocess.Popen[str], directory: pathlib.Path, family: str, seed: int, first: int) -> Reported:
    """Let a child make calls, kill it, and return what it reported."""
    rng = random.Random(seed)
    said, complaints = directory / "said", directory / "complaints"
    said.write_bytes(b"")
    complaints.write_bytes(b"")
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    nursery.stdin.write(f"{json.dumps([str(directory), family, seed, first])}\n")
    child = int(nursery.stdout.readline())
    try:
        if rng.random() < 0.9:
            while not said.stat().st_size and not complaints.stat().st_size:
                time.sleep(0.001)
        time.sleep(rng.random() * rng.choice([0.001, 0.01, 0.1]))
    finally:
        os.kill(child, signal.SIGKILL)
    nursery.stdin.write("\n")
    assert nursery.stdout.readline() == "dead\n"
    assert not complaints.read_text(), complaints.read_text()
    reported = Reported()
    for line in said.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            reported.hear(line)
    return reported


def lose_power(directory: pathlib.Path, rng: random.Random) -> None:
    """Cut the last segment somewhere after the synced bytes."""
    place = max((directory / "log").glob("segment-*.relive"))
    name, noted = (directory / "synced").read_text().split()
    if name == place.name:
        size = int(noted)
    else:
        # The base of a segment, and what is carried over, are on the disk before there is a segment.
        size, first = journal_reader.SEGMENT_HEADER_BYTES, journal_reader.first_of(place.name)
        for number, kind, payload in journal_reader.records(directory / "log"):
            if number == first or (number > (first or 0) and kind == episode_journal.CARRIED):
                size += journal_reader.RECORD_HEADER_BYTES + len(payload)
    os.truncate(place, rng.randrange(size, place.stat().st_size + 1))


def note_syncs(path: str) -> None:
    """Keep in a file which segment was synced last, and how many of its bytes."""
    sync, descriptor = journal_lib.SegmentFile.sync, os.open(path, os.O_WRONLY | os.O_CREAT)

    def noting(segment: journal_lib.SegmentFile) -> None:
        size = segment.size
        sync(segment)
        os.pwrite(descriptor, f"{os.path.basename(segment.path)} {size:20}".encode(), 0)

    mock.patch.object(journal_lib.SegmentFile, "sync", noting).start()


@posix_test.FORKS
@pytest.mark.parametrize("seeds", seed_blocks_test.seed_blocks(4, 15, 10))
@pytest.mark.parametrize("family", MAKERS)
def test_a_killed_process_loses_no_reported_call(
    family: str, seeds: range, nursery: subprocess.Popen[str], tmp_path: pathlib.Path
) -> None:
    log, synced, count, num_saved = tmp_path / "log", tmp_path / "synced", 0, 0
    for seed in seeds:
        rng, there = random.Random(-seed), count
        reported = killed(nursery, tmp_path, family, seed, count)
        if not list(log.glob("segment-*.relive")):
            assert not reported.returned
            continue
        expected = max(there, reported.returned)
        is_lost = synced.exists() and synced.stat().st_size > 0 and rng.random() < 0.5
        if is_lost:
            lose_power(tmp_path, rng)
            expected = max(there, reported.durable)
        recovered: Any = relive.recover(log)
        count = things_done(recovered, family)
        assert count >= expected, f"kill {seed}: {count} things are there of {expected}"
        num_saved += checked_save(tmp_path, family, recovered, reported.saved, is_lost=is_lost)
        count = goes_on(log, family, recovered, count)
        synced.unlink(missing_ok=True)
    assert count
    assert num_saved or len(seeds) < 10


def checked_save(directory: pathlib.Path, family: str, recovered: Any, saved: int, *, is_lost: bool) -> bool:
    """Check the checkpoint, and what is recovered from it; return whether there is one."""
    path, log = directory / "saved", directory / "log"
    if not path.exists():
        assert not saved
        return False
    there = things_done(type(recovered).load(path), family)
    assert there >= saved
    try:
        again = relive.recover(log, checkpoint=path)
    except errors.CheckpointError as error:
        message = str(error)
        assert "is older than the journal" in message or (is_lost and "is newer than the journal" in message)
        if "is newer" in message:  # The power was lost here and not there: what comes now, it does not know.
            shutil.rmtree(path)
            shutil.rmtree(directory / "saved.1", ignore_errors=True)
    else:
        assert things_done(again, family) == things_done(recovered, family) >= there
    return True


def goes_on(log: pathlib.Path, family: str, buffer: Any, count: int) -> int:
    """Make a few more calls, which can be recovered too, and return how many there are now."""
    with relive.Journal(log) as journal:
        buffer.attach(journal)
        for _, _ in zip(range(5), doing(buffer, family, count, random.Random(0)), strict=False):
            pass
        buffer.detach()
    done = things_done(relive.recover(log), family)
    assert done >= count + 5
    return done


# The disk is full.


def until_full(directory: str, family: str) -> None:
    """Make calls until the disk is full; refused calls have stored nothing."""
    place = pathlib.Path(directory)
    buffer = MAKERS[family]()
    with relive.Journal(place / "log", fsync=relive.EveryRecords(5), segment_bytes=1 << 30) as log:
        buffer.attach(log)
        next(doing(buffer, family, 0, random.Random(0)))
        buffer.save(place / "saved")
        done = 1
        with contextlib.suppress(errors.CheckpointError):
            for t in doing(buffer, family, done, random.Random(0)):
                done = t + 1
        assert things_done(buffer, family) == done > 80
        for _ in range(3):
            with pytest.raises(errors.CheckpointError, match=r"log could not be written: [^\n]*$"):
                next(doing(buffer, family, done, random.Random(0)))
        assert things_done(buffer, family) == done
        with pytest.raises(errors.CheckpointError, match=r"saved[ 0-9]* cannot be saved: [^\n]*$"):
            save_more(buffer, place)
    assert things_done(type(buffer).load(place / "saved"), family) >= 1
    assert things_done(relive.recover(place / "log"), family) == done


def save_more(buffer: Any, place: pathlib.Path) -> None:
    """Save the buffer again and again, and then a large one."""
    for _ in range(20):
        buffer.save(place / "saved", keep=100)
    large = relive.RingReplayBuffer(10_000)
    large.add_episode(np.zeros(10_001), np.zeros(10_000), np.zeros(10_000), terminated=True)
    large.save(place / "saved 2")


def with_small_files(directory: str) -> None:
    """The same where no file may have more than 30,000 bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    posix_test.resource.setrlimit(posix_test.resource.RLIMIT_FSIZE, (SMALL, SMALL))
    for family in MAKERS:
        os.mkdir(f"{directory}/{family}")
        until_full(f"{directory}/{family}", family)


@posix_test.LIMITS
def test_a_file_size_limit_loses_nothing(tmp_path: pathlib.Path) -> None:
    program = f"from relive.persistence import kill_test; kill_test.with_small_files({str(tmp_path)!r})"
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert answer.returncode == 0, answer.stderr[-3000:]


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system of a quarter of a MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("family", MAKERS)
def test_a_full_file_system_loses_nothing(family: str, small_disk: pathlib.Path) -> None:
    until_full(str(small_disk), family)


def test_a_disk_with_room_again_is_written_to(small_disk: pathlib.Path) -> None:
    filler = small_disk / "filler"
    buffer = ring()
    with relive.Journal(small_disk / "log", fsync="always") as log:
        buffer.attach(log)
        for t in range(10):
            add_row(buffer, t)
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 512)
        count = 10
        with contextlib.suppress(errors.CheckpointError):
            for count in range(10, 1000):
                add_row(buffer, count)
        filler.unlink()
        for t in range(count, count + 10):
            add_row(buffer, t)
    assert things_done(relive.recover(small_disk / "log"), "columns") == count + 10


@pytest.fixture
def read_only(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A read-only directory with a journal and a checkpoint."""
    place = tmp_path / "disk"
    place.mkdir()
    buffer = ring()
    with relive.Journal(place / "log", fsync="never") as log:
        buffer.attach(log)
        add_row(buffer, 0)
        buffer.save(place / "saved")
    bind = ["mount", "--bind", "-o", "ro", str(place), str(place)]
    if shutil.which("mount") is None or subprocess.run(bind, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], capture_output=True, check=False)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_read_only_file_system_is_an_error(read_only: pathlib.Path) -> None:
    buffer = ring()
    schema = relive.Schema(relive.Field(2, int), relive.Field((), int))
    calls: dict[str, Callable[[], object]] = {
        "new": lambda: relive.Journal(read_only / "new"),
        "log": lambda: relive.Journal(read_only / "log"),
        "other": lambda: buffer.save(read_only / "other"),
        "map": lambda: relive.MemmapStorage(read_only / "map", schema, 5),
    }
    for name, call in calls.items():
        with pytest.raises(errors.CheckpointError, match=f"{name}.*: Read-only file system"):
            call()
    assert things_done(relive.RingReplayBuffer.load(read_only / "saved"), "columns") == 1


# Two processes on one path.

HOLDER = """
    import sys, time
    import relive

    kind, path = sys.argv[1:]
    schema = relive.Schema(relive.Field(2, int), relive.Field((), int))

    def wait(*_):
        print("ready", flush=True)
        time.sleep(1000)

    if kind == "journal":
        journal = relive.Journal(path)
        wait()
    elif kind == "map":
        storage = relive.MemmapStorage(path, schema, 5)
        wait()
    else:
        buffer = relive.RingReplayBuffer(5, seed=0)
        buffer.add([0, 0], 0, 0.0, [0, 1])
        buffer.save(path, progress=wait)
"""


@pytest.mark.parametrize("kind", ["journal", "map", "checkpoint"])
def test_a_second_process_learns_the_pid_of_the_first(kind: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "place"
    schema = relive.Schema(relive.Field(2, int), relive.Field((), int))
    calls: dict[str, Any] = {
        "journal": lambda: relive.Journal(path),
        "map": lambda: relive.MemmapStorage(path, schema, 5),
        "checkpoint": lambda: ring().save(path),
    }
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(HOLDER), kind, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        message = rf"^{path} is in use by another process \(pid {process.pid}\): [^\n]*$"
        with pytest.raises(errors.CheckpointError, match=message):
            calls[kind]()
    finally:
        process.kill()
        process.communicate()
    # Its lock died with it.
    opened = calls[kind]()
    if opened is not None:
        opened.close()


def test_things_done_detects_missing_calls() -> None:
    for family, make in MAKERS.items():
        buffer = make()
        for t in doing(buffer, family, 0, random.Random(0)):
            if t < 30 or t % 7 == 0:
                assert things_done(buffer, family) == t + 1
            if t == 400:
                break
    buffer = ring()
    add_row(buffer, 0)
    add_row(buffer, 2)
    with pytest.raises(AssertionError):
        things_done(buffer, "columns")
    for family, add in (("episodes", add_step), ("tokens", add_tokens)):
        buffer = MAKERS[family]()
        for t in (0, 1, 3):
            add(buffer, t)
        with pytest.raises(AssertionError):
            things_done(buffer, family)
