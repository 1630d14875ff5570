"""Power is lost between any two writes of a shard: nothing acknowledged is lost, and nothing is stored twice.

One writer sends batches, each until it is acknowledged; after a crash, it also sends the last ones again. The model of
the disk is that of the journal's own tests.
"""

import contextlib
import pathlib
import random
from typing import Any

import numpy as np
import pytest

import relive
from relive.fleet import adapter_test
from relive.fleet import local_test
from relive.fleet import shard as shard_lib
from relive.persistence import journal_crash_test
from relive.persistence import posix_test
from relive.persistence import seed_blocks_test

W, V = b"w" * 16, b"v" * 16
_WINDOW = 4
"""The writer waits for so many batches before the newest."""


def ring() -> Any:
    return relive.RingReplayBuffer(10_000, streams=4, seed=0)


def small_ring() -> Any:
    return relive.RingReplayBuffer(40, streams=4, seed=0)


def episodes() -> Any:
    return relive.EpisodeReplayBuffer[Any, Any](seed=0)


def steps_of(buffer: Any) -> list[int]:
    """Return the numbers of the steps in a buffer, in order."""
    buffer.check()
    if isinstance(buffer, relive.EpisodeReplayBuffer):
        return [action for episode in buffer._store for action in episode.actions]
    return [] if not len(buffer) else buffer.read(buffer.eligible_keys()).observation.ravel().astype(int).tolist()


class Life:
    """A shard whose process dies again and again, and what was sent to it."""

    def __init__(self, make: Any, path: pathlib.Path, rng: random.Random) -> None:
        self.make, self.path, self.rng = make, path, rng
        self.batches: list[tuple[Any, ...]] = []
        self.sent: list[int] = []
        self.num_acknowledged = 0
        self.firsts, self.was_pruned = set[int](), False
        self.has_other = False
        self.shard: Any = None

    def batch(self) -> tuple[Any, ...]:
        """Return a new batch of whole episodes, and of the next steps of a long one."""
        chunks, rng = [], self.rng
        for _ in range(rng.randrange(1, 4)):
            start, count = len(self.sent), rng.randrange(1, 6)
            steps = range(start, start + count)
            self.sent += steps
            if self.make is episodes:
                taken = tuple([(step, step, 1.0, None) for step in steps])
                chunks.append(adapter_test.steps_of(start, 0, steps=taken, final=(-1, "COMPLETED"), is_start=True))
            else:
                chunks.append(adapter_test.columns(start, count, "TERMINATED", is_start=True))
        return tuple(chunks)

    def run(self) -> None:
        """Start the process, and send what was not acknowledged, and more."""
        durability = shard_lib.Durability(directory=str(self.path.parent), fsync="always")
        self.shard = None
        self.shard = shard_lib.Shard(self.make, 0, 30.0, durability)
        self.shard.insert(adapter_test.batch_of(V, 0))
        self.has_other = True
        for number in range(max(self.num_acknowledged - _WINDOW, 0), 1000):
            if number == len(self.batches):
                self.batches.append(self.batch())
            oldest = max(number - _WINDOW, 0)
            receipt = self.shard.insert(adapter_test.batch_of(W, number, *self.batches[number], oldest=oldest))
            assert receipt.outcome == "STORED"
            self.num_acknowledged = max(self.num_acknowledged, number + 1)
            self.firsts |= set(self.shard._files._journal._firsts)
            self.was_pruned |= 0 not in self.shard._files._journal._firsts

    def check(self) -> None:
        """Check that what was acknowledged is there, once; and the batch after it whole, or not at all."""
        durability = shard_lib.Durability(directory=str(self.path.parent), fsync="always")
        shard: Any = shard_lib.Shard(self.make, 0, 30.0, durability)
        found = steps_of(shard._adapter.buffer)
        sizes = np.cumsum([0, *[sum([chunk.rows for chunk in batch]) for batch in self.batches]]).tolist()
        least = sizes[self.num_acknowledged]
        most = sizes[self.num_acknowledged + 1] if self.num_acknowledged < len(self.batches) else least
        ends = found[-1] + 1 if found else 0
        assert ends in (least, most)
        assert found == self.sent[:ends][-40 if self.make is small_ring else 0 :]
        for number in range(max(self.num_acknowledged - _WINDOW, 0), len(self.batches)):
            is_there = sizes[number + 1] <= ends
            assert shard._sessions.renew(W, 0.0).has(number) == is_there
        # Also where the record of the batch was pruned.
        assert shard._sessions.renew(V, 0.0).has(0) or not self.has_other
        shard.close()


@posix_test.DIRECTORIES
@pytest.mark.parametrize("make", [ring, small_ring, episodes])
@pytest.mark.parametrize("seeds", seed_blocks_test.seed_blocks(3, 150, 5))
def test_power_lost_between_two_writes_of_a_shard(
    make: Any, seeds: range, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults: Any = relive.Journal.__init__.__kwdefaults__
    monkeypatch.setitem(defaults, "segment_bytes", 1500)
    lives: list[Life] = []
    for seed in seeds:
        rng = random.Random(seed)
        path = tmp_path / f"{seed}" / "journal"
        path.mkdir(parents=True)
        disk, life = journal_crash_test.Disk(path), Life(make, path, rng)
        for _ in range(3):
            disk.restart()
            crashing = disk.crashing(rng.randrange(150), is_late=rng.random() < 0.5)
            with contextlib.suppress(journal_crash_test.Crash), crashing:
                life.run()
            if life.shard is not None:
                local_test.kill(life.shard)
            disk.lose_power(rng)
            life.check()
        lives.append(life)
    assert max(len(life.firsts) for life in lives) >= 3
    assert any(life.was_pruned for life in lives) == (make is small_ring)
