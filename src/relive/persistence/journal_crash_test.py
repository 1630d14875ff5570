"""Crashes and power failures at any call of the file system: every synced record is there, and nothing looks damaged.

A model of the disk watches the calls. What was synced is on it; of a name that changed since, the old or the new file
may be there; of a file, any part that is longer than what was synced.
"""

from collections.abc import Callable, Iterator
import contextlib
import os
import pathlib
import random
import shutil
from typing import Any

import pytest

import relive
from relive.persistence import files
from relive.persistence import journal_reader
from relive.persistence import posix_test
from relive.persistence import seed_blocks_test

CALLS = ("fsync", "fdatasync", "ftruncate", "link", "lseek", "open", "rename", "replace", "unlink", "write")


class Crash(BaseException):
    """Stands for the end of the process."""


class Disk:
    """Knows what is on the disk, and crashes at a call."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        # By inode: what is in each file, and what of it was synced; by name: the inodes that are there after a crash.
        self.files: dict[int, bytes] = {}
        self.synced: dict[int, bytes] = {}
        self.names: dict[str, int] = {}
        self.left = 0

    @contextlib.contextmanager
    def crashing(self, passing: int, *, is_late: bool) -> Iterator[None]:
        """Let so many calls pass; the next one, and all that follow, crash, that one perhaps once it is done."""
        self.left = passing
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                if hasattr(os, name):
                    patch.setattr(os, name, self.around(name, getattr(os, name), is_late))
            yield

    def around(self, name: str, real: Callable[..., Any], is_late: bool) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left < -1 or (self.left == -1 and not is_late):
                raise Crash
            answer = real(*arguments, **named)
            if name in ("fsync", "fdatasync"):
                self.sync(os.fstat(arguments[0]).st_ino)
            if self.left == -1:
                if name == "open":
                    os.close(answer)
                raise Crash
            return answer

        return call

    def found(self) -> dict[str, int]:
        """Return the inodes of the files, and note what is in them."""
        names = {entry.name: entry.inode() for entry in os.scandir(self.path) if entry.is_file()}
        self.files |= {inode: (self.path / name).read_bytes() for name, inode in names.items()}
        return names

    def sync(self, inode: int) -> None:
        """Note that a file was synced, or the directory."""
        if self.path.exists():
            names = self.found()
            if inode == self.path.stat().st_ino:
                self.names = names
            elif inode in names.values():
                self.synced[inode] = self.files[inode]

    def lose_power(self, rng: random.Random) -> None:
        """Leave of each name the old file or the new one, and of each file what was synced and any part of the rest."""
        found = self.found()
        for name in sorted(found.keys() | self.names.keys()):
            inode = rng.choice([self.names.get(name), found.get(name)])
            (self.path / name).unlink(missing_ok=True)
            if inode is not None:
                synced, content = self.synced.get(inode, b""), self.files[inode]
                if content.startswith(synced):
                    content = content[: rng.randint(len(synced), len(content))]
                (self.path / name).write_bytes(rng.choice([content, synced]))

    def restart(self) -> None:
        """Take all that is there as synced."""
        self.names = self.found()
        self.synced = {inode: self.files[inode] for inode in self.names.values()}


def kill(log: relive.Journal) -> None:
    """Do with a journal what the system does when its process is killed: free the files, write nothing.

    Whatever of the process is still there, such as its buffer, cannot write any more.
    """
    log._closing.set()
    if log._syncer is not None:
        log._syncer.join()
    log._refuse("its process was killed")
    if log._segment is not None:
        log._segment.close()
    with pytest.MonkeyPatch.context() as patch:  # The lock file still names the process.
        patch.setattr(files, "_note", lambda *_: None)
        log._held.close()


class Writer:
    """Writes to a journal, and knows what must be in it."""

    def __init__(self, path: pathlib.Path, rng: random.Random) -> None:
        self.path, self.rng = path, rng
        self.known: dict[int, bytes] = {}
        self.num_records = self.num_synced = 0
        self.log: relive.Journal | None = None

    def run(self) -> None:
        """Open the journal, write to it, and perhaps close it, a few times."""
        rng = self.rng
        for _ in range(3):
            policies: list[Any] = ["always", "never", relive.EveryRecords(3)]
            self.log = log = relive.Journal(self.path, fsync=rng.choice(policies), segment_bytes=200)
            log._begin(lambda: b"base")
            self.note(log)
            for number in range(rng.randrange(12)):
                if rng.random() < 0.2:
                    log._prune(rng.randrange(log.num_records))
                payload = b"%d" % number * rng.randrange(1, 60)
                self.known[log._append(1, payload)] = payload
                self.note(log)
            log.close()
            self.note(log)
            self.log = None

    def note(self, log: relive.Journal) -> None:
        self.num_records, self.num_synced = log.num_records, log.num_synced

    def die(self) -> None:
        """Free what the system frees when a process ends."""
        if self.log is not None:
            kill(self.log)
            self.log = None

    def check(self, least: int) -> None:
        """Check that the journal has at least so many records, and go on from there."""
        found = list(journal_reader.records(self.path))
        numbers = [record.number for record in found]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else not least
        self.num_records = numbers[-1] + 1 if numbers else 0
        assert self.num_records >= least
        for number, kind, payload in found:
            if kind and number in self.known:
                assert payload == self.known[number]
        self.known = {number: payload for number, kind, payload in found if kind}


@posix_test.DIRECTORIES
@pytest.mark.parametrize("seeds", seed_blocks_test.seed_blocks(60, 1_000, 5))
def test_no_crash_of_a_writer_looks_like_damage(seeds: range, tmp_path: pathlib.Path) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        path = tmp_path / "log"
        path.mkdir()
        disk, writer = Disk(path), Writer(path, rng)
        for _ in range(3):
            disk.restart()
            with contextlib.suppress(Crash), disk.crashing(rng.randrange(200), is_late=rng.random() < 0.5):
                writer.run()
            least = writer.num_records
            writer.die()
            if rng.random() < 0.5:
                disk.lose_power(rng)
                least = writer.num_synced
            writer.check(least)
        shutil.rmtree(path)
