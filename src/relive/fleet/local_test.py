"""A fleet in one event loop, for the tests beside this one: shards are killed, hang, and come back, in virtual time.

    run(work)           an event loop whose clock jumps to the next thing to do: an hour of waiting takes no time
    virtual             makes a test of a coroutine function by it
    LocalFleet          a transport; calls and returns are delayed, and overtake each other, as a seed says
      kill, start       a process is gone, with what was on its way; a new one begins, from the files if there are any
      hang, go_on       a process is stopped, and goes on
      replay            a client, in a process of its own
      kill_client       that process is gone: nothing that it had not sent is ever sent

What a process had not begun when it was killed never happens; what it had begun has happened, and the answer is gone.
The files are as they were: nothing is written, synced or marked as closed, and a batch that was held is lost.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent import futures
import contextlib
import copy
import dataclasses
import functools
import pathlib
import random
import selectors
from typing import Any, ParamSpec, TypeVar

import pytest

import relive
from relive import errors
from relive.fleet import coordinator
from relive.fleet import limiter_service
from relive.fleet import membership
from relive.fleet import replay
from relive.fleet import replies
from relive.fleet import shard as shard_lib
from relive.persistence import journal_crash_test

SAVING = 0.05
"""A checkpoint takes so many seconds."""
Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


_FLEETS: list["LocalFleet"] = []


class JumpingSelector(selectors.DefaultSelector):
    """A selector that never sleeps: its clock jumps by as much as it was told to wait.

    Attributes:
        now: What the clock shows, in seconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(timeout if timeout is None else 0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock does not run while there is something to do, and jumps when there is not."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(work: Coroutine[Any, Any, Answer], seconds: float = 3600.0) -> Answer:
    """Return what a coroutine returns; it may wait for an hour of the virtual clock."""

    async def in_time() -> Answer:
        try:
            async with asyncio.timeout(seconds):
                return await work
        finally:
            while _FLEETS:
                _FLEETS.pop().close()
            # Those that are cancelled may start others while they clean up.
            for _ in range(9):
                others = asyncio.all_tasks() - {asyncio.current_task()}
                for task in others:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(in_time())


def virtual(test: Callable[Arguments, Coroutine[Any, Any, None]]) -> Callable[Arguments, None]:
    """Make a test of a coroutine function: each call runs in a virtual loop."""

    @functools.wraps(test)
    def run_test(*arguments: Arguments.args, **options: Arguments.kwargs) -> None:
        run(test(*arguments, **options))

    return run_test


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Dead:
    """What died with the process of a shard.

    Attributes:
        rows: How many were in memory alone: all of a shard without files, else those of the batch that it held.
        held: The writer of that batch, and its number.
        calls: The methods that were called, whose answers have not arrived.
        saves: How many checkpoints were under way.
    """

    rows: int = 0
    held: tuple[bytes, int] | None = None
    calls: tuple[str, ...] = ()
    saves: int = 0


class Thread(futures.Executor):
    """The thread of a process that saves checkpoints: each is saved a moment later, unless the process is gone."""

    def __init__(self) -> None:
        self.waiting: dict[asyncio.TimerHandle, None] = {}

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **named: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()

        def work() -> None:
            del self.waiting[timer]
            try:
                future.set_result(call(*arguments, **named))
            except Exception as error:
                future.set_exception(error)

        timer = asyncio.get_running_loop().call_later(SAVING, work)
        self.waiting[timer] = None
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for timer in list(self.waiting):
            timer.cancel()
            if not cancel_futures:
                timer._run()


def kill(shard: Any) -> Dead:
    """Do with a shard what the system does when its process is killed, and return what died with it."""
    log, directory, memory = shard._files._journal, shard._files._directory, shard._adapter.rows
    before = contents(directory)
    held = shard._newest if shard._files.is_behind else None
    rows = memory if log is None else 0 if held is None else shard._adapter.inserted - shard._before
    saves = len(getattr(shard._files._thread, "waiting", ()))
    shard._files._thread.shutdown(cancel_futures=True)
    if log is not None:
        journal_crash_test.kill(log)
    assert contents(directory) == before
    return Dead(rows=rows, held=held, saves=saves)


def contents(directory: str | None) -> dict[str, tuple[int, int]]:
    """Return the size of each file, and when it was changed."""
    found = [] if directory is None else [path for path in pathlib.Path(directory).rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


class Process:
    """One life of a shard."""

    def __init__(self, make: Callable[[], shard_lib.Shard]) -> None:
        self.shard = make()
        there: Any = self.shard
        there._files._thread = Thread()
        self.is_running = asyncio.Event()
        self.is_running.set()
        self.arrival = 0.0
        """When the newest call arrives."""
        self.tasks: dict[asyncio.Task[Any], str] = {}
        """The calls under way, in order: a seed is one course of events."""
        self.is_dead = asyncio.get_running_loop().create_future()

    def kill(self) -> Dead:
        """As SIGKILL does; return what died."""
        for task in self.tasks:
            task.cancel()
        self.is_dead.set_result(None)
        return dataclasses.replace(kill(self.shard), calls=tuple(self.tasks.values()))


class Line:
    """The transport of one client's process, until that is killed: then no call is made, and no answer arrives."""

    def __init__(self, fleet: "LocalFleet") -> None:
        self.fleet, self.is_dead = fleet, False

    async def call(self, shard: int, method: str, *arguments: Any, seconds: float | None) -> Any:
        return await self._alive(self.fleet.call, shard, method, *arguments, seconds=seconds)

    async def coordinator(self, method: str, *arguments: Any) -> Any:
        return await self._alive(self.fleet.coordinator, method, *arguments)

    async def launch(self, shard: int) -> None:
        await self._alive(self.fleet.launch, shard)

    def end(self, shard: int) -> None:
        self.fleet.end(shard)

    async def _alive(self, call: Callable[..., Awaitable[Any]], *arguments: Any, **named: Any) -> Any:
        await self._unless_dead()
        try:
            return await call(*arguments, **named)
        finally:
            await self._unless_dead()

    async def _unless_dead(self) -> None:
        if self.is_dead:
            await asyncio.Event().wait()


class LocalFleet:
    """A transport to shards of this event loop, and to their Coordinator.

    Args:
        make_buffer: As for a shard.
        shards: How many.
        directory: Where they keep their files, if anywhere.
        seed: Of the delays; None for none at all.
        delay: How long a call or an answer is on its way at most, in seconds.
    """

    def __init__(
        self,
        make_buffer: Callable[[], Any],
        shards: int = 2,
        *,
        directory: pathlib.Path | None = None,
        limiter: relive.RateLimiter | None = None,
        admission: relive.Admission | None = None,
        seed: int | None = None,
        delay: float = 0.01,
        lease: float = 30.0,
        timeout: float = 5.0,
        recovery: float = 60.0,
        checkpoint_seconds: float | None = None,
        codec: Any = None,
    ) -> None:
        self._make_buffer, self._directory, self._lease, self._recovery = make_buffer, directory, lease, recovery
        self._checkpoint_seconds, self._codec = checkpoint_seconds, codec
        self._rng = None if seed is None else random.Random(seed)
        self._delay = delay
        self.processes: dict[int, Process | None] = {}
        _FLEETS.append(self)
        for shard in range(shards):
            self.start(shard)
        self.rate_limiter = limiter
        self.settings = membership.Settings(
            timeout=timeout, recovery=recovery, lease=lease, has_limiter=limiter is not None, admission=admission
        )
        self.coordinator_process: coordinator.Coordinator | None = None
        self._coordinator_calls: set[asyncio.Task[Any]] = set()
        self.calls: list[tuple[int, str, tuple[Any, ...]]] = []
        self.gone: set[int] = set()
        """Shards that will never be there again."""
        self.answered: Callable[[int, str], Awaitable[None]] | None = None
        """What happens before an answer is sent, if anything."""
        self.start_coordinator()

    def close(self) -> None:
        """Kill what is left."""
        self.kill_coordinator()
        for shard in self.processes:
            self.kill(shard)

    @property
    def num_shards(self) -> int:
        return len(self.processes)

    def start_coordinator(self) -> None:
        """Begin a new process for the coordinator, which has none."""
        assert self.coordinator_process is None
        self.coordinator_process = coordinator.Coordinator(
            self, [shard for shard in self.processes if shard not in self.gone], self.settings, self.rate_limiter
        )

    def kill_coordinator(self) -> None:
        if self.coordinator_process is not None:
            for task in [*self.coordinator_process._tasks.values(), *self._coordinator_calls]:
                task.cancel()
            self.coordinator_process = None

    @property
    def limiter_process(self) -> limiter_service.LimiterService:
        assert self.coordinator_process is not None
        service = self.coordinator_process._limiter
        assert service is not None
        return service

    def shard(self, number: int) -> shard_lib.Shard:
        process = self.processes[number]
        assert process is not None
        return process.shard

    def buffer(self, number: int) -> Any:
        shard: Any = self.shard(number)
        return shard._adapter.buffer

    def buffers(self) -> list[Any]:
        return [self.buffer(number) for number in self.processes if number not in self.gone]

    def start(self, number: int) -> None:
        """Begin a new process for a shard that has none."""
        assert self.processes.get(number) is None
        place = None if self._directory is None else str(self._directory / f"shard-{number}")
        durability = shard_lib.Durability(
            directory=place, fsync="never", checkpoint_seconds=self._checkpoint_seconds, codec=self._codec
        )
        self.processes[number] = Process(
            lambda: shard_lib.Shard(
                self._make_buffer, number, self._lease, durability, self._recovery, asyncio.get_running_loop().time
            )
        )

    def kill(self, number: int) -> Dead:
        """Kill the process of a shard, if it has one, and return what died with it."""
        process, self.processes[number] = self.processes[number], None
        return Dead() if process is None else process.kill()

    def hang(self, number: int) -> None:
        process = self.processes[number]
        if process is not None:
            process.is_running.clear()

    def go_on(self, number: int) -> None:
        process = self.processes[number]
        if process is not None:
            process.is_running.set()

    def kill_client(self, client: Any) -> None:
        """Kill the process of a client and its writers."""
        client._transport.is_dead = True

    def replay(self, seed: int | None = 0) -> "replay.Replay[Any]":
        """Return a client, in a process of its own."""
        shard: Any = self.shard(0)
        members = replies.Members(version=1, active=tuple(self.processes))
        return replay.Replay[Any](Line(self), self.settings, shard._adapter.describe(), members, seed)

    async def call(self, shard: int, method: str, *arguments: Any, seconds: float | None) -> Any:
        """See membership.Transport."""
        self.calls.append((shard, method, arguments))
        process = self.processes[shard]
        if shard in self.gone:
            raise errors.ClosedError("it was closed")
        if process is None:
            raise errors.ShardLostError(f"shard {shard} is not there")
        task = asyncio.get_running_loop().create_task(self._serve(process, shard, method, copy.deepcopy(arguments)))
        process.tasks[task] = method
        task.add_done_callback(lambda task: process.tasks.pop(task, None))
        await asyncio.wait([task, process.is_dead], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() or task.cancelled():
            task.add_done_callback(_seen)
            raise errors.ShardLostError(f"shard {shard} does not respond to {method}")
        return task.result()

    async def coordinator(self, method: str, *arguments: Any) -> Any:
        """See membership.Transport."""
        while True:
            await self._on_its_way()
            process = self.coordinator_process
            if process is not None:
                # As in Ray, a call goes on if the caller is cancelled, and ends with the process.
                task = asyncio.get_running_loop().create_task(getattr(process, method)(*arguments))
                self._coordinator_calls.add(task)
                task.add_done_callback(self._coordinator_calls.discard)
                await asyncio.wait([task])
                await self._on_its_way()
                if process is self.coordinator_process:
                    return task.result()
            elif self.gone.issuperset(self.processes):
                raise errors.ClosedError("the fleet was closed: start a new one")
            await asyncio.sleep(0.1)

    async def launch(self, shard: int) -> None:
        """See membership.Transport."""
        self.start(shard)

    def end(self, shard: int) -> None:
        """See membership.Transport."""
        self.kill(shard)
        self.gone.add(shard)

    async def _serve(self, process: Process, shard: int, method: str, arguments: tuple[Any, ...]) -> Any:
        await self._arrives(process)
        while not process.is_running.is_set():  # Calls that waited with it go first, in the order in which they came.
            await process.is_running.wait()
        answer = getattr(process.shard, method)(*arguments)
        if self.answered is not None:
            await self.answered(shard, method)
        await self._on_its_way()
        await process.is_running.wait()
        return copy.deepcopy(answer) if method != "stats" else answer

    async def _arrives(self, process: Process) -> None:
        """Wait until a call is there: in the order in which calls were made."""
        if self._rng is not None:
            now = asyncio.get_running_loop().time()
            process.arrival = max(process.arrival + 1e-9, now + self._rng.random() * self._delay)
            await asyncio.sleep(process.arrival - now)

    async def _on_its_way(self) -> None:
        if self._rng is not None:
            await asyncio.sleep(self._rng.random() * self._delay)


def _seen(task: asyncio.Task[Any]) -> None:
    """The one that waited for it has gone: what it raised does not matter."""
    if not task.cancelled():
        task.exception()


@dataclasses.dataclass
class Trouble:
    """Kills and stops shards of a fleet, and starts them again, as a seed says.

    Attributes:
        fleet: Whose shards.
        rng: Decides.
        stays_dead: For how many seconds a shard is gone at most.
        kills, hangs: How many there were.
    """

    fleet: LocalFleet
    rng: random.Random
    stays_dead: float = 1.0
    kills: int = 0
    hangs: int = 0

    async def make(self) -> None:
        """Do so for ever."""
        while True:
            await asyncio.sleep(self.rng.random() * 0.2)
            shard = self.rng.choice([shard for shard in self.fleet.processes if shard not in self.fleet.gone])
            if self.rng.random() < 0.5:
                self.kills += 1
                self.fleet.kill(shard)
                await asyncio.sleep(self.rng.random() * self.stays_dead)
                if self.fleet.processes[shard] is None:
                    self.fleet.start(shard)
            else:
                self.hangs += 1
                self.fleet.hang(shard)
                await asyncio.sleep(self.rng.random() * 2 * self.fleet.settings.timeout)
                self.fleet.go_on(shard)

    @contextlib.asynccontextmanager
    async def around(self) -> AsyncIterator[None]:
        """Make trouble while the block runs; then all shards are there."""
        task = asyncio.create_task(self.make())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for shard in self.fleet.processes.keys() - self.fleet.gone:
                self.fleet.go_on(shard)
                if self.fleet.processes[shard] is None:
                    self.fleet.start(shard)


def episodes_in(buffer: Any, *, finished: bool = False) -> list[Any]:
    """Return the episodes that a buffer holds, or those that have ended; checks the buffer."""
    buffer.check()
    return list(buffer._store.finished if finished else buffer._store)


async def never(call: Awaitable[Any], seconds: float = 5.0) -> None:
    """Check that a call does not return within so many seconds."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(seconds):
            await call


async def settle(seconds: float = 0.0) -> None:
    """Let everything happen that can happen within so many seconds."""
    await asyncio.sleep(seconds)
    for _ in range(50):
        await asyncio.sleep(0)


def test_the_clock_of_a_virtual_loop_jumps() -> None:
    async def wait() -> float:
        start = asyncio.get_running_loop().time()
        await asyncio.sleep(1000.0)
        return asyncio.get_running_loop().time() - start

    assert run(wait()) == 1000.0
    with pytest.raises(TimeoutError):
        run(asyncio.sleep(10.0), seconds=1.0)


def test_a_local_fleet_is_a_transport() -> None:
    transport: type[membership.Transport] = LocalFleet
    assert transport is LocalFleet
