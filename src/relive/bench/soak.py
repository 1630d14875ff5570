"""A soak: many steps through a buffer under cancellation storms; memory must stay flat, and every counter add up.

    python -m relive.bench.soak [--steps 10000000] [--buffer episodes] [--seed 0]

1,000 actors append, a learner draws, a limiter holds both together, and the buffer is full and evicts all the time.
A hundred times some hundreds of the actors are cancelled at once, wherever they wait, and others take their places.
Each time the buffer is saved while they wait. At the end `check()` recounts what is stored, the last checkpoint
is loaded, and one line says what came of it. The exit code is 0 if memory was flat and the counters add up.

Memory is what the system says is resident, and how many blocks the interpreter has allocated. It is flat if the end of
the soak takes at most 2 % more of both than the end of its first tenth, and 4 MiB and 10,000 blocks for what comes and
goes. By then all that happens has happened some times: the first few checkpoints leave the interpreter with memory that
is free, and that it cannot give back. Nothing is traced: tracing would take memory itself.
"""

import argparse
import asyncio
from collections.abc import Callable, Sequence
import ctypes
import dataclasses
import functools
import gc
import os
import pathlib
import random
import sys
import tempfile
import time
from typing import TypeAlias

import relive
from relive import errors
from relive.bench import soaked as buffers

Make: TypeAlias = Callable[[int, int, int], buffers.Soaked]
"""Returns a buffer for so many stored steps and so many actors, with a seed."""

BUFFERS: dict[str, Make] = {
    "episodes": buffers.Episodes,
    "ring": functools.partial(buffers.Columns, relive.RingReplayBuffer),
    "prioritized": functools.partial(buffers.Columns, relive.PrioritizedReplayBuffer),
}

_STATM = pathlib.Path("/proc/self/statm")
_MIB = 2**20
_STORMS, _MEASURE_EVERY = 100, 10
_SHARE, _BYTES, _BLOCKS = 0.02, 4 * _MIB, 10_000
_LEAST_STEPS = 5_000


@dataclasses.dataclass(frozen=True)
class Memory:
    """What a process holds.

    Attributes:
        nbytes: Resident, in bytes; None where the system does not say.
        blocks: Allocated by the interpreter.
    """

    nbytes: int | None
    blocks: int

    @classmethod
    def now(cls) -> "Memory":
        """Measure, after what is free was given back."""
        gc.collect()
        nbytes = None
        if _STATM.exists():
            getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: 0)(0)
            nbytes = int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return cls(nbytes, sys.getallocatedblocks())

    def is_flat_since(self, first: "Memory") -> bool:
        """Return whether this is no more than `first` and what may come and go."""
        is_flat = self.blocks <= first.blocks * (1 + _SHARE) + _BLOCKS
        if self.nbytes is None or first.nbytes is None:
            return is_flat
        return is_flat and self.nbytes <= first.nbytes * (1 + _SHARE) + _BYTES

    def __str__(self) -> str:
        resident = "unknown" if self.nbytes is None else f"{self.nbytes / _MIB:.1f} MiB"
        return f"{resident}, {self.blocks:,} blocks"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a soak.

    Attributes:
        steps: Appended.
        samples: Drawn.
        cancelled: Actors, by the storms.
        seconds: From the first step to the last.
        first: Memory at the end of the first tenth.
        last: Memory at the end.
        complaint: Which counter does not add up; nothing if all do.
    """

    steps: int
    samples: int
    cancelled: int
    seconds: float
    first: Memory
    last: Memory
    complaint: str

    @property
    def is_good(self) -> bool:
        """Whether memory was flat and every counter adds up."""
        return self.last.is_flat_since(self.first) and not self.complaint

    def __str__(self) -> str:
        memory = f"memory {self.first} after a tenth, {self.last} at the end"
        flat = "flat" if self.last.is_flat_since(self.first) else "NOT FLAT"
        counters = f"counters do NOT add up: {self.complaint}" if self.complaint else "counters add up"
        drawn = f"{self.samples:,} samples, {self.cancelled:,} actors cancelled"
        return f"{self.steps:,} steps, {drawn}, {self.seconds:.0f} seconds; {memory}: {flat}; {counters}"


async def soak(buffer: buffers.Soaked, actors: int, steps: int, seed: int, path: pathlib.Path) -> Outcome:
    """Return what came of a buffer after at least that many steps.

    Args:
        buffer: What is soaked, new.
        actors: How many write to it at once.
        steps: How many are to be appended.
        seed: Of the storms.
        path: Where its checkpoints go.
    """
    rng = random.Random(seed)
    acting = [asyncio.create_task(buffer.act(place)) for place in range(actors)]
    learner = asyncio.create_task(buffer.learn())
    memories: list[Memory] = []
    cancelled = 0
    start = time.perf_counter()
    for storm in range(1, _STORMS + 1):
        mark = asyncio.create_task(buffer.until(steps * storm // _STORMS))
        ended, _ = await asyncio.wait([mark, learner, *acting], return_when=asyncio.FIRST_COMPLETED)
        await _cancelled(*ended - {mark})  # Who ends by himself has failed.
        places = rng.sample(range(actors), rng.randint(1, actors // 2))
        buffer.save(path)
        await _cancelled(learner, *(acting[place] for place in places))
        cancelled += len(places)
        for place in places:
            acting[place] = asyncio.create_task(buffer.act(place))
        learner = asyncio.create_task(buffer.learn())
        if storm % _MEASURE_EVERY == 0:
            memories.append(Memory.now())
    seconds = time.perf_counter() - start
    await _cancelled(learner, *acting)
    complaint = buffer.complaint(path)
    buffer.close()
    return Outcome(
        steps=buffer.appended,
        samples=buffer.sampled,
        cancelled=cancelled,
        seconds=seconds,
        first=memories[0],
        last=memories[-1],
        complaint=complaint,
    )


async def _cancelled(*tasks: "asyncio.Task[None]") -> None:
    """Return when the tasks that it cancels have ended.

    Raises:
        CorruptionError: One of them has failed.
    """
    for task in tasks:
        task.cancel()
    for end in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(end, asyncio.CancelledError):
            raise errors.CorruptionError(f"a task ended by itself: {end!r}")


async def soaked(name: str, steps: int, seed: int) -> Outcome:
    """Return what came of a soak of the buffer of that name, which is smaller, as is the crowd, for fewer steps."""
    capacity = min(100_000, max(400, steps // 100))
    actors = min(1_000, capacity // 50)
    with tempfile.TemporaryDirectory() as directory:
        path = pathlib.Path(directory) / "saved"
        return await soak(BUFFERS[name](capacity, actors, seed), actors, steps, seed, path)


def main(arguments: Sequence[str]) -> int:
    """Print a line for each buffer, and return 0 if all is well."""
    parser = argparse.ArgumentParser(prog="python -m relive.bench.soak", description="Many steps, and flat memory.")
    parser.add_argument("--steps", type=int, default=10_000_000, help="to be appended; default: 10,000,000")
    parser.add_argument("--buffer", nargs="+", choices=list(BUFFERS), default=list(BUFFERS), help="default: all")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    options = parser.parse_args(arguments)
    if options.steps < _LEAST_STEPS:
        parser.error(f"--steps must be at least {_LEAST_STEPS:,}, got {options.steps}")
    is_good = True
    for name in options.buffer:
        outcome = asyncio.run(soaked(name, options.steps, options.seed))
        print(f"{name}: {outcome}", flush=True)
        is_good &= outcome.is_good
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
