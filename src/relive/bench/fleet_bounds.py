"""What binds a fleet: the bounds of its resources, in closed form.

A resource that has c seconds of work to give in a second, and of which a step (or a transition) takes D seconds, lets
no more than c / D of them pass in a second: the utilisation law. With N requests in flight at most, each of which takes
R seconds when it is alone, no more than N / R pass: Little's law. The least of all these is the asymptotic bound of
Lazowska, Zahorjan, Graham and Sevcik, Quantitative System Performance, 1984, chapters 3 and 5.
"""

import dataclasses

from relive.bench import fleet_simulation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resource:
    """Something that all who use it share.

    Attributes:
        supply: Seconds of work that it has to give in a second.
        step: Seconds of its work that an inserted step takes.
        transition: Seconds of its work that a drawn transition takes.
    """

    supply: float
    step: float
    transition: float

    def busy(self, inserted: float, drawn: float) -> float:
        """Return the share of it that so many steps and transitions a second take; above 1 they cannot be."""
        return (inserted * self.step + drawn * self.transition) / self.supply


def asked(plan: fleet_simulation.Plan) -> float:
    """Return of how many shards a batch asks for transitions, on average: those that have a part of it.

    Of k shards that are as full as each other a batch of B leaves one out with probability (1 - 1/k)^B.

    >>> asked(fleet_simulation.Plan(shards=2, writers=1, batch_size=1))
    1.0
    """
    return plan.shards * (1 - (1 - 1 / plan.shards) ** plan.batch_size)


def resources(costs: fleet_simulation.Costs, plan: fleet_simulation.Plan) -> dict[str, Resource]:
    """Return the resources of a fleet by name."""
    rows, size = plan.message_rows, plan.batch_size
    requests, looks = asked(plan) / size, plan.shards / size
    write, insert = costs.write.of(rows) / rows, costs.insert.of(rows) / rows
    draw = costs.look * looks + costs.draw.fixed * requests + costs.draw.row
    learner = costs.ask * (looks + requests) + costs.join.of(size) / size
    beside = 0.0 if plan.is_distributed else learner
    found = {
        "writers": Resource(supply=plan.writers, step=write, transition=0.0),
        "shards": Resource(supply=plan.shards, step=insert, transition=draw),
        "learner": Resource(supply=1.0, step=0.0, transition=learner),
        "cores": Resource(supply=plan.machines * plan.cores, step=write + insert, transition=draw + beside),
    }
    if plan.is_distributed:
        message = (costs.step_bytes + fleet_simulation.SMALL / rows) / plan.bytes_a_second
        reply = (costs.transition_bytes + fleet_simulation.SMALL * (looks + requests)) / plan.bytes_a_second
        found["learner's network"] = Resource(supply=1.0, step=0.0, transition=reply)
        found["shards' network"] = Resource(supply=min(plan.machines, plan.shards), step=message, transition=reply)
    return found


def alone(costs: fleet_simulation.Costs, plan: fleet_simulation.Plan) -> tuple[float, float]:
    """Return the seconds that a message and a batch take when nothing else is in the way.

    The learner asks one shard after the other; the answer of the last one, an average part of the batch, is counted.
    """
    rows, size, shards = plan.message_rows, plan.batch_size, asked(plan)

    def both_ways(there: float, back: float) -> float:
        sent = 2 * (there + back) / plan.bytes_a_second if plan.is_distributed else 0.0
        return 2 * plan.latency + sent

    small = fleet_simulation.SMALL
    message = costs.write.of(rows) + both_ways(small + rows * costs.step_bytes, small) + costs.insert.of(rows)
    look = plan.shards * costs.ask + both_ways(small, small) + costs.look
    part = size / shards
    draw = shards * costs.ask + both_ways(small, small + part * costs.transition_bytes) + costs.draw.of(part)
    return message, look + draw + costs.join.of(size)


def inserting(costs: fleet_simulation.Costs, plan: fleet_simulation.Plan) -> dict[str, float]:
    """Return the steps a second that each resource allows to be inserted, and the requests in flight."""
    bounds = {name: one.supply / one.step for name, one in resources(costs, plan).items() if one.step}
    in_flight = plan.writers * plan.in_flight * plan.message_rows / alone(costs, plan)[0]
    return {**bounds, "in flight": in_flight}


def drawing(costs: fleet_simulation.Costs, plan: fleet_simulation.Plan) -> dict[str, float]:
    """Return the transitions a second that each resource allows to be drawn, and the batches ahead."""
    bounds = {name: one.supply / one.transition for name, one in resources(costs, plan).items() if one.transition}
    return {**bounds, "in flight": plan.prefetch * plan.batch_size / alone(costs, plan)[1]}


def inserting_beside(costs: fleet_simulation.Costs, plan: fleet_simulation.Plan, drawn: float) -> float:
    """Return the steps a second that can be inserted while so many transitions a second are drawn; 0 if none can."""
    left = [(one.supply - drawn * one.transition) / one.step for one in resources(costs, plan).values() if one.step]
    return max(0.0, min(left))


def least(bounds: dict[str, float]) -> tuple[str, float]:
    """Return what binds first, and at how many a second.

    >>> least({"shards": 300.0, "learner": 200.0})
    ('learner', 200.0)
    """
    return min(bounds.items(), key=lambda item: item[1])
