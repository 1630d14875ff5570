"""What binds a fleet of shards, in closed form: the asymptotic bounds of Lazowska et al. 1984, chapter 5.

    python docs/examples/fleet_bounds.py --shards 64 --batch 256 2048

A resource that has c seconds of work to give in a second, D of which a transition takes, lets c / D of them pass in a
second. Seconds of work are those of the table in the guide to the fleet, for small steps on one machine.

>>> asked(shards=2, batch=1)
1.0
>>> bounds(shards=64, batch=256, cores=16)
{'shards': 84114, 'learner': 2544}
>>> bounds(shards=1, batch=256, cores=1)
{'shards': 75294, 'learner': 79075, 'cores': 38569}
"""

import argparse

ASK = 0.00078
"""Seconds of the learner that a request takes."""
LOOK = 0.00074
"""Seconds of a shard that saying how much it has takes."""
DRAW, DRAW_ROW = 0.00234, 1.25e-6
"""Seconds of a shard that a part of a batch takes, and each of its transitions."""
JOIN, JOIN_ROW = 0.00136, 1.24e-6
"""Seconds of the learner that joining a batch takes, and each of its transitions."""


def asked(shards: int, batch: int) -> float:
    """Return of how many shards a batch asks for transitions: each row falls on each shard alike."""
    return shards * (1 - (1 - 1 / shards) ** batch)


def bounds(shards: int, batch: int, cores: int) -> dict[str, int]:
    """Return the transitions a second that each resource lets pass.

    Args:
        shards: How many there are; each has a machine of its own, as the learner has, if there are several.
        batch: Transitions in a batch.
        cores: Of a machine.
    """
    parts = asked(shards, batch)
    shard = shards * LOOK + parts * DRAW + batch * DRAW_ROW
    learner = (shards + parts) * ASK + JOIN + batch * JOIN_ROW
    seconds = {"shards": shard / shards, "learner": learner}
    if shards == 1:
        seconds["cores"] = (shard + learner) / cores
    return {name: round(batch / taken) for name, taken in seconds.items()}


def main() -> None:
    """Print the bounds for each size of a batch."""
    parser = argparse.ArgumentParser(description="What binds the draws from a fleet of shards.")
    parser.add_argument("--shards", type=int, default=64, help="default: 64")
    parser.add_argument("--batch", type=int, nargs="+", default=[256, 2_048, 16_384], help="default: 256 2048 16384")
    parser.add_argument("--cores", type=int, default=16, help="of a machine; default: 16")
    options = parser.parse_args()
    for batch in options.batch:
        found = bounds(options.shards, batch, options.cores)
        print(f"batches of {batch:,}: {', '.join(f'{rate:,} ({name})' for name, rate in found.items())} a second")


if __name__ == "__main__":
    main()
