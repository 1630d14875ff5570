"""Membership: which shards of a fleet respond, as seen by one client.

    ask(shard, call)  ──►  returns                             it is live
                      ──►  ShardLostError, at once from then   it is lost; it is asked again and again in the background
                                                               until it responds, and is told what was seen of it
                                                               or it is gone for good

A client continues with the live shards; if all are gone, the fleet was closed. Shards say with their replies whether
there is a new list of shards, which the client gets from the coordinator, and whether anything happened in their
queues, of which it tells the coordinator: others wait for it.
"""

import asyncio
from collections.abc import Callable, Coroutine
import contextlib
import dataclasses
from typing import Any, Protocol

from relive import errors
from relive.agents import admission as admission_lib
from relive.fleet import replies
from relive.fleet import timing


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of the clients of a fleet, as in ShardedReplay.start."""

    timeout: float
    recovery: float
    lease: float
    has_limiter: bool
    admission: admission_lib.Admission | None = None


class NotAskedError(errors.ShardLostError):
    """A shard is known to be lost, and was not asked."""


class Transport(Protocol):
    """How a client reaches shards; implement it to use another runtime than Ray."""

    async def call(self, shard: int, method: str, *arguments: Any, seconds: float | None) -> Any:
        """Call a method of a shard; return its result or raise its exception.

        Calls to a shard that are made in one process happen one at a time, in that order. Raises ShardLostError if
        there is no reply for so many seconds (None: as long as the shard lives); then the call may have happened, or
        may still happen, or never. Raises ClosedError if the shard will never respond again.
        """
        ...

    async def coordinator(self, method: str, *arguments: Any) -> Any:
        """Call a method of the fleet's Coordinator; waits for a lost one, and calls again if its process dies.

        Raises ClosedError if the fleet was closed.
        """
        ...

    async def launch(self, shard: int) -> None:
        """Start the process of a shard to be added."""
        ...

    def end(self, shard: int) -> None:
        """End the process of a shard for good."""
        ...


class Membership:
    """The shards of a client, live and lost."""

    def __init__(self, transport: Transport, members: replies.Members, settings: Settings) -> None:
        self.transport, self.members, self.settings = transport, members, settings
        # What is done in the background, and by key what is done once at a time, such as to look for a shard.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._only: dict[object, asyncio.Task[Any]] = {}
        self._lost, self._gone = set[int](), set[int]()
        self._progress: dict[int, replies.Progress] = {}
        self._full_since: dict[int, float] = {}
        # The newest number of each queue, and those of which the coordinator was not told.
        self._queues, self._untold = dict[int, int](), dict[int, int]()

    def live(self) -> list[int]:
        """Return the live shards, and look for the others; raise ClosedError if all are gone for good."""
        shards = self.members.shards
        if self._gone.issuperset(shards):
            raise errors.ClosedError("the fleet was closed: start a new one")
        for shard in self._lost - self._gone:
            self._search(shard)
        return [shard for shard in shards if shard not in self._lost]

    def preferred(self, writer: int) -> list[int]:
        """Return the live shards that can be written to, the best one for that writer first.

        That is its home, which follows from its number, or one to which few others of a lost shard go.
        """
        live, active = self.live(), self.members.active
        turn, home = divmod(writer, len(active))
        others = [*active[home + 1 :], *active[:home]]
        first = turn % max(len(others), 1)
        there = [shard for shard in (active[home], *others[first:], *others[:first]) if shard in live]
        return [shard for shard in there if not self.is_avoided(shard)] or there

    def is_full(self, shard: int) -> bool:
        """Return whether the disk of a shard was full at the last attempt to write there."""
        return shard in self._full_since

    def is_avoided(self, shard: int) -> bool:
        """Return whether writers avoid a shard: its disk is full for longer than `recovery`. They try now and then."""
        seconds = asyncio.get_running_loop().time() - self._full_since.get(shard, float("inf"))
        recovery = self.settings.recovery
        return seconds > recovery and seconds % recovery > timing.TRIAL * recovery

    def learn(self, members: replies.Members) -> None:
        """Use a list of shards, if it is newer."""
        if members.version > self.members.version:
            self.members = members

    def note_version(self, version: int) -> None:
        """Get the newest list of shards in the background if there is one of that version."""
        if version > self.members.version:
            self.run_once("refresh", self.refresh)

    def _note_queue(self, shard: int, number: int) -> None:
        """Tell the coordinator in the background if anything happened in the queue of a shard."""
        if number and self._queues.get(shard) != number:
            self._queues[shard] = self._untold[shard] = number
            self.run_once("tell", self._tell)

    async def _tell(self) -> None:
        with contextlib.suppress(errors.ClosedError):
            while self._untold:
                numbers, self._untold = self._untold, {}
                await self.transport.coordinator("told", numbers)
                await asyncio.sleep(timing.PAUSE)

    async def refresh(self) -> None:
        """Get the newest list of shards from the coordinator, if the fleet is still there."""
        with contextlib.suppress(errors.ClosedError):
            self.learn(await self.transport.coordinator("members"))

    async def ask(self, shard: int, method: str, *arguments: Any) -> Any:
        """Call a method of a shard, and return its result; raise ShardLostError, or NotAskedError, if it is lost."""
        if shard in self._gone:
            raise NotAskedError(f"shard {shard} is gone")
        if shard in self._lost:
            self._search(shard)
            raise NotAskedError(f"shard {shard} does not respond: its process is being restarted")
        try:
            reply = await self.transport.call(shard, method, *arguments, seconds=self.settings.timeout)
            if isinstance(reply, replies.Progress):
                self._note_queue(shard, reply.queue)
            return reply
        except errors.ShardLostError:
            self._lost.add(shard)
            self._search(shard)
            raise
        except errors.ClosedError as error:
            self._lost.add(shard)
            await self.refresh()  # Perhaps others have come for it.
            self._gone.add(shard)
            raise errors.ShardLostError(f"shard {shard} is gone: {error}") from error

    async def ask_or_none(self, shard: int, method: str, *arguments: Any) -> Any:
        """Call a method of a shard; return None if the shard is lost."""
        try:
            return await self.ask(shard, method, *arguments)
        except errors.ShardLostError:
            return None

    async def is_back(self, shard: int, seconds: float) -> bool:
        """Wait until a lost shard is back, and return whether it was within that many seconds."""
        if shard in self._lost - self._gone:
            await asyncio.wait([self._search(shard)], timeout=seconds)
        return shard not in self._lost

    async def was_drained(self, shard: int) -> bool:
        """Return whether a shard is gone since it was drained and closed; its files are deleted then."""
        await self.refresh()
        return shard in self._gone and shard not in self.members.active

    async def note(self, shard: int, progress: replies.Progress | None) -> bool:
        """Remember the newest state of a shard, if it has replied; tell a new incarnation what was seen of the old one.

        Return whether there was anything to tell.
        """
        if progress is None:
            return False
        self.note_version(progress.members)
        self._note_queue(shard, progress.queue)
        if progress.disk is None:
            self._full_since.pop(shard, None)
        else:
            self._full_since.setdefault(shard, asyncio.get_running_loop().time())
        before = self._progress.get(shard)
        is_new = before is not None and before.incarnation != progress.incarnation
        if before is None or is_new or before.inserted <= progress.inserted:
            self._progress[shard] = progress
        if is_new:
            await self.ask_or_none(shard, "report", before, self.members)
        return is_new

    def run(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task in the background, and return it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """Stop what is done in the background, such as looking for lost shards."""
        for task in self._tasks:
            task.cancel()

    def run_once(
        self, key: object, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any
    ) -> asyncio.Task[Any]:
        """Return the task of that key, which is started unless it is under way; each event loop has its own."""
        task = self._only.get(key)
        if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
            task = self._only[key] = self.run(work(*arguments))
        return task

    def _search(self, shard: int) -> asyncio.Task[Any]:
        return self.run_once(shard, self._find, shard)

    async def _find(self, shard: int) -> None:
        while shard in self._lost - self._gone:
            try:
                progress = self._progress.get(shard)
                await self.transport.call(shard, "report", progress, self.members, seconds=self.settings.timeout)
                self._lost.discard(shard)
            except errors.ShardLostError:
                await asyncio.sleep(timing.RETRY)
            except errors.ClosedError:
                await self.refresh()  # Perhaps others have come for it.
                self._gone.add(shard)
