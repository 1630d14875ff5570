"""A simulation of machines: cores that are shared, queues before processes and links, and what came of each.

Events are kept in a heap by time; those of the same moment happen in the order in which they were asked for, so that a
simulation is the same whenever it is run. What takes its way through the machines is written as a generator that
yields what it waits for:

    >>> from relive.bench import fleet_machines
    >>> simulation = fleet_machines.Simulation()
    >>> cores = fleet_machines.Cores(simulation, count=2)
    >>> process = fleet_machines.Process(simulation, cores)
    >>> ends = []
    >>> def call(seconds):
    ...     yield process.use(seconds)
    ...     ends.append(simulation.now)
    >>> for seconds in (1.0, 2.0):
    ...     simulation.start(call(seconds))
    >>> simulation.run(until=10.0)
    >>> ends
    [1.0, 3.0]
"""

import collections
from collections.abc import Callable, Generator, Sequence
import dataclasses
import heapq
import itertools
from typing import TypeAlias

Resume: TypeAlias = Callable[[], None]
Wait: TypeAlias = Callable[[Resume], None]
"""What a path waits for: it is given the call that goes on."""

Path: TypeAlias = Generator[Wait, None, None]


class Simulation:
    """A clock and what is still to happen."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Resume]] = []
        self._serial = itertools.count()

    def after(self, seconds: float, resume: Resume) -> None:
        """Have a call made that many seconds from now; O(log n) of the n that are to happen."""
        heapq.heappush(self._events, (self.now + seconds, next(self._serial), resume))

    def sleep(self, seconds: float) -> Wait:
        """Return a wait of that many seconds."""
        return lambda resume: self.after(seconds, resume)

    def start(self, path: Path) -> None:
        """Let a path take its way from now on."""
        self._follow(path, lambda: None)

    def all_of(self, paths: Sequence[Path]) -> Wait:
        """Return a wait for the ends of all those paths, which start when it is waited for; there must be one."""

        def wait(resume: Resume) -> None:
            left = len(paths)

            def ended() -> None:
                nonlocal left
                left -= 1
                if not left:
                    resume()

            for path in paths:
                self._follow(path, ended)

        return wait

    def run(self, until: float) -> None:
        """Make everything happen that is to happen up to that moment, and put the clock there."""
        while self._events and self._events[0][0] <= until:
            self.now, _, resume = heapq.heappop(self._events)
            resume()
        self.now = until

    def _follow(self, path: Path, ended: Resume) -> None:
        """Take a path as far as what it waits for next, and go on from there when that has come."""
        wait = next(path, None)
        if wait is None:
            ended()
        else:
            wait(lambda: self._follow(path, ended))


@dataclasses.dataclass(kw_only=True)
class Tally:
    """What came to a station, and what it did; a station is whatever has a queue.

    Attributes:
        arrived, left: How many came and went.
        busy: Seconds of work that were finished: of one server, its utilisation times the time.
        sojourn: Seconds between coming and going, summed over those who went.
        area: The integral over time of how many are there: by Little's law what `sojourn` is, once all have gone.
    """

    arrived: int = 0
    left: int = 0
    busy: float = 0.0
    sojourn: float = 0.0
    area: float = 0.0
    _since: float = 0.0

    def come(self, now: float) -> None:
        """Count one that came."""
        self._advance(now)
        self.arrived += 1

    def go(self, now: float, came: float, work: float) -> None:
        """Count one that goes, with when it had come and what work it was."""
        self._advance(now)
        self.left += 1
        self.busy += work
        self.sojourn += now - came

    def _advance(self, now: float) -> None:
        self.area += (self.arrived - self.left) * (now - self._since)
        self._since = now


class Cores:
    """The cores of a machine, shared by all that runs on it: of n jobs each goes at the speed min(1, count / n).

    That is egalitarian processor sharing, with one core a job at most. As all jobs go at one speed they end in the
    order of what the clock of a job that had been there for ever would show: a change costs O(log n).
    """

    def __init__(self, simulation: Simulation, count: float) -> None:
        self.tally = Tally()
        self._simulation = simulation
        self._count = count
        self._jobs: list[tuple[float, int, float, float, Resume]] = []
        self._serial = itertools.count()
        self._clock = 0.0
        self._since = 0.0
        self._version = 0

    def use(self, seconds: float) -> Wait:
        """Return a wait for a job of that many seconds on a core of its own."""

        def wait(resume: Resume) -> None:
            now = self._simulation.now
            self._advance()
            self.tally.come(now)
            heapq.heappush(self._jobs, (self._clock + seconds, next(self._serial), now, seconds, resume))
            self._plan()

        return wait

    def _speed(self) -> float:
        return min(1.0, self._count / len(self._jobs)) if self._jobs else 1.0

    def _advance(self) -> None:
        """Put the clock of the jobs to this moment."""
        self._clock += (self._simulation.now - self._since) * self._speed()
        self._since = self._simulation.now

    def _plan(self) -> None:
        """Have the next end happen; whatever was planned before counts no more."""
        self._version += 1
        version = self._version
        if self._jobs:
            left = max(self._jobs[0][0] - self._clock, 0.0) / self._speed()
            self._simulation.after(left, lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        self._clock = max(self._clock, self._jobs[0][0])
        _, _, came, work, resume = heapq.heappop(self._jobs)
        self.tally.go(self._simulation.now, came, work)
        self._plan()
        resume()


class Process:
    """A process of one thread: what comes waits in line, and then runs on the cores of a machine."""

    def __init__(self, simulation: Simulation, cores: Cores) -> None:
        self.tally = Tally()
        self._simulation = simulation
        self._cores = cores
        self._line: collections.deque[tuple[float, float, Resume]] = collections.deque()

    def use(self, seconds: float) -> Wait:
        """Return a wait for that many seconds of its work, in the order of asking."""

        def wait(resume: Resume) -> None:
            self.tally.come(self._simulation.now)
            self._line.append((self._simulation.now, seconds, resume))
            if len(self._line) == 1:
                self._next()

        return wait

    def _next(self) -> None:
        self._cores.use(self._line[0][1])(self._ended)

    def _ended(self) -> None:
        came, seconds, resume = self._line.popleft()
        self.tally.go(self._simulation.now, came, seconds)
        if self._line:
            self._next()
        resume()


class Link:
    """One direction of a machine's network: messages go one after the other, and then are under way for a while."""

    def __init__(self, simulation: Simulation, bytes_a_second: float, latency: float) -> None:
        self.tally = Tally()
        self._simulation = simulation
        self._bytes_a_second = bytes_a_second
        self._latency = latency
        self._free = 0.0

    def send(self, size: float) -> Wait:
        """Return a wait until a message of that many bytes has arrived."""

        def wait(resume: Resume) -> None:
            now, work = self._simulation.now, size / self._bytes_a_second
            self.tally.come(now)
            self._free = max(self._free, now) + work

            def sent() -> None:
                self.tally.go(self._simulation.now, now, work)
                self._simulation.after(self._latency, resume)

            self._simulation.after(self._free - now, sent)

        return wait


class Places:
    """So many places: who finds none waits for one, in the order of coming."""

    def __init__(self, simulation: Simulation, count: int) -> None:
        self._simulation = simulation
        self._free = count
        self._line: collections.deque[Resume] = collections.deque()

    def take(self) -> Wait:
        """Return a wait for a place."""

        def wait(resume: Resume) -> None:
            if self._free:
                self._free -= 1
                self._simulation.after(0.0, resume)
            else:
                self._line.append(resume)

        return wait

    def give(self) -> None:
        """Give a place back: the first in line has it."""
        if self._line:
            self._simulation.after(0.0, self._line.popleft())
        else:
            self._free += 1
