"""Writers, shards and a learner on machines: what a fleet does, simulated from what its parts cost."""

import dataclasses
from typing import Literal, TypeAlias

import numpy as np

from relive.bench import fleet_machines

Mode: TypeAlias = Literal["insert", "sample", "both"]

_WARM_UP = 0.2
"""The share of the time that nothing is counted in."""

SMALL = 500.0
"""Bytes of a request or an acknowledgement, headers and all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of a core for a call: `fixed + row * rows`."""

    fixed: float
    row: float = 0.0

    def of(self, rows: float) -> float:
        """Return the seconds for so many rows."""
        return self.fixed + self.row * rows

    @classmethod
    def through(cls, few: tuple[float, float], many: tuple[float, float]) -> "Cost":
        """Return the cost that goes through two points of (rows, seconds), neither part of it below zero.

        >>> Cost.through((1, 3.0), (5, 5.0))
        Cost(fixed=2.5, row=0.5)
        """
        row = max(0.0, (many[1] - few[1]) / (many[0] - few[0]))
        return cls(fixed=max(0.0, many[1] - row * many[0]), row=row)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """What the parts of a fleet take of a core, and of the network.

    Attributes:
        write: A writer's, for a message of so many steps.
        insert: A shard's, for such a message.
        ask: The learner's, for a request to a shard and its reply.
        look: A shard's, for saying how much it has.
        draw: A shard's, for so many transitions.
        join: The learner's, for a batch of so many transitions, beside its requests.
        step_bytes, transition_bytes: In a message, and in a reply.
    """

    write: Cost
    insert: Cost
    ask: float
    look: float
    draw: Cost
    join: Cost
    step_bytes: float
    transition_bytes: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Where a fleet runs, and what it is asked for.

    On one machine all are together, and nothing goes over a network. Of several, each has its part of the shards and of
    the writers, and the learner has one more, of its own. A writer sends its messages to all shards in turn.

    Attributes:
        shards, writers: How many processes.
        machines: How many machines the shards and the writers share.
        cores: Of each machine: those that are free for the fleet.
        bytes_a_second: Of each machine's network, in each direction.
        latency: Seconds from one machine to another; also from one process to another on one machine.
        message_rows: Steps in a message of a writer.
        in_flight: Messages of one writer that are on their way at most.
        batch_size: Transitions in a batch.
        prefetch: Batches that are under way to the learner at a time.
        spread: The standard deviation of a service time as a share of its mean, gamma distributed; 0 for none.
    """

    shards: int
    writers: int
    machines: int = 1
    cores: float = 2.0
    bytes_a_second: float = 1.25e9
    latency: float = 0.0
    message_rows: int = 100
    in_flight: int = 4
    batch_size: int = 256
    prefetch: int = 3
    spread: float = 0.0

    @property
    def is_distributed(self) -> bool:
        """Whether there is a network between its parts."""
        return self.machines > 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a fleet did in the time that was counted.

    Attributes:
        inserted, drawn: Steps and transitions a second.
        batch_seconds: From asking for a batch to having it, on average; 0 if none came.
        busy: The share of the time that each part was at work, by its name: the busiest of its kind.
        messages: That were sent and that arrived, from the very start on: no more than may be in flight are between.
    """

    inserted: float
    drawn: float
    batch_seconds: float
    busy: dict[str, float]
    messages: tuple[int, int]


class _Machine:
    """A machine: its cores and its two links."""

    def __init__(self, simulation: fleet_machines.Simulation, plan: Plan) -> None:
        self.cores = fleet_machines.Cores(simulation, plan.cores)
        self.outward = fleet_machines.Link(simulation, plan.bytes_a_second, plan.latency)
        self.inward = fleet_machines.Link(simulation, plan.bytes_a_second, 0.0)


class _Fleet:
    """A fleet in the making: its processes, where they are, and what came of them so far."""

    def __init__(self, costs: Costs, plan: Plan, seed: int) -> None:
        self.simulation = fleet_machines.Simulation()
        self._costs, self._plan = costs, plan
        self._rng = np.random.default_rng(seed)
        self.machines = [_Machine(self.simulation, plan) for _ in range(plan.machines + plan.is_distributed)]
        self.homes = {
            **{f"shard {i}": self.machines[i % plan.machines] for i in range(plan.shards)},
            **{f"writer {i}": self.machines[i % plan.machines] for i in range(plan.writers)},
            "learner": self.machines[-1],
        }
        self.processes = {
            name: fleet_machines.Process(self.simulation, home.cores) for name, home in self.homes.items()
        }
        self.sent = self.arrived = self.drawn = self.batches = 0
        self.batch_seconds = 0.0

    def write(self, number: int) -> fleet_machines.Path:
        """The way of a writer, which ever sends the next message, as soon as there is a place in flight for it."""
        places = fleet_machines.Places(self.simulation, self._plan.in_flight)
        writer, turn = f"writer {number}", number
        while True:
            yield places.take()
            yield self._work(writer, self._costs.write.of(self._plan.message_rows))
            self.sent += 1
            self.simulation.start(self._message(writer, f"shard {turn % self._plan.shards}", places))
            turn += 1

    def _message(self, writer: str, shard: str, places: fleet_machines.Places) -> fleet_machines.Path:
        """The way of a message to a shard, and of its acknowledgement."""
        rows = self._plan.message_rows
        size, seconds = SMALL + rows * self._costs.step_bytes, self._costs.insert.of(rows)
        yield from self._round(writer, shard, size, seconds, SMALL)
        self.arrived += 1
        places.give()

    def learn(self) -> fleet_machines.Path:
        """The way of one of the batches that are drawn ahead: whenever it is there, the next is asked for.

        All shards are asked how much they have, and then those that have a part of the batch for it.
        """
        plan = self._plan
        share = np.full(plan.shards, 1 / plan.shards)
        while True:
            start = self.simulation.now
            yield self.simulation.all_of([self._look(i) for i in range(plan.shards)])
            rows = self._rng.multinomial(plan.batch_size, share)
            yield self.simulation.all_of([self._draw(i, part) for i, part in enumerate(rows.tolist()) if part])
            yield self._work("learner", self._costs.join.of(plan.batch_size))
            self.batches += 1
            self.drawn += plan.batch_size
            self.batch_seconds += self.simulation.now - start

    def _look(self, shard: int) -> fleet_machines.Path:
        """The way of a question to a shard how much it has."""
        yield self._work("learner", self._costs.ask)
        yield from self._round("learner", f"shard {shard}", SMALL, self._costs.look, SMALL)

    def _draw(self, shard: int, rows: int) -> fleet_machines.Path:
        """The way of a request to a shard for a part of a batch."""
        yield self._work("learner", self._costs.ask)
        size = SMALL + rows * self._costs.transition_bytes
        yield from self._round("learner", f"shard {shard}", SMALL, self._costs.draw.of(rows), size)

    def _round(self, source: str, shard: str, there: float, seconds: float, back: float) -> fleet_machines.Path:
        """The way of so many bytes to a shard, its work for them, and the way of what it returns."""
        yield from self._send(source, shard, there)
        yield self._work(shard, seconds)
        yield from self._send(shard, source, back)

    def _send(self, source: str, target: str, size: float) -> fleet_machines.Path:
        """The way over the network, if there is one between them."""
        if self._plan.is_distributed:
            yield self.homes[source].outward.send(size)
            yield self.homes[target].inward.send(size)
        else:
            yield self.simulation.sleep(self._plan.latency)

    def _work(self, name: str, seconds: float) -> fleet_machines.Wait:
        return self.processes[name].use(self._varied(seconds))

    def _varied(self, seconds: float) -> float:
        """Return a service time of that mean."""
        spread = self._plan.spread**2
        return float(self._rng.gamma(1 / spread, spread * seconds)) if spread else seconds

    def busy(self) -> dict[str, float]:
        """Return the seconds of work that the busiest part of each kind has finished so far."""
        kinds: dict[str, list[float]] = {}
        for name, process in self.processes.items():
            kinds.setdefault(name.split()[0], []).append(process.tally.busy)
        for machine in self.machines:
            kinds.setdefault("cores", []).append(machine.cores.tally.busy / self._plan.cores)
            kinds.setdefault("network", []).extend((machine.outward.tally.busy, machine.inward.tally.busy))
        return {kind: max(values) for kind, values in kinds.items()}


def simulate(costs: Costs, plan: Plan, mode: Mode, *, seconds: float = 4.0, seed: int = 0) -> Outcome:
    """Return what a fleet does whose writers, whose learner or both never rest.

    Args:
        costs: Of its parts.
        plan: Where they are.
        mode: Who does something.
        seconds: For how long; the first fifth of it is not counted.
        seed: Of what is drawn: how many transitions come of which shard, and service times if they vary.

    >>> cost = Cost(fixed=0.001)
    >>> costs = Costs(
    ...     write=cost, insert=cost, ask=0.0, look=0.0, draw=cost, join=cost, step_bytes=80, transition_bytes=150
    ... )
    >>> outcome = simulate(costs, Plan(shards=1, writers=1, cores=8), "insert", seconds=10.0)
    >>> round(outcome.inserted), round(outcome.busy["shard"], 2)
    (100000, 1.0)
    """
    fleet = _Fleet(costs, plan, seed)
    if mode != "sample":
        for number in range(plan.writers):
            fleet.simulation.start(fleet.write(number))
    if mode != "insert":
        for _ in range(plan.prefetch):
            fleet.simulation.start(fleet.learn())
    fleet.simulation.run(until=seconds * _WARM_UP)
    before = (fleet.arrived, fleet.drawn, fleet.batches, fleet.batch_seconds, fleet.busy())
    fleet.simulation.run(until=seconds)
    counted = seconds * (1 - _WARM_UP)
    batches = fleet.batches - before[2]
    return Outcome(
        inserted=(fleet.arrived - before[0]) * plan.message_rows / counted,
        drawn=(fleet.drawn - before[1]) / counted,
        batch_seconds=(fleet.batch_seconds - before[3]) / batches if batches else 0.0,
        busy={kind: (value - before[4][kind]) / counted for kind, value in fleet.busy().items()},
        messages=(fleet.sent, fleet.arrived),
    )
