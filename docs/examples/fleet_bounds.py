"""What limits draws from a fleet of shards, in closed form: the asymptotic bounds of Lazowska et al. 1984, chapter 5.

    python docs/examples/fleet_bounds.py --shards 64 --batch 256 2048

A resource with c seconds of work a second, of which a transition needs D, handles at most c / D transitions a second.
Seconds of work were measured with small steps, float32[16], on one machine.

>>> bounds(shards=64, batch=256, batches=4, cores=16)
{'shards': 566873, 'learner': 15433}
>>> bounds(shards=1, batch=256, batches=1, cores=1)
{'shards': 134567, 'learner': 161209, 'cores': 73344}
"""

import argparse

ASK = 0.001
"""Seconds of the learner for a request."""
DRAW, DRAW_ROW = 0.0018, 4e-7
"""Seconds of a shard for a request, and for each of its transitions."""
JOIN, JOIN_ROW = 0.00046, 5e-7
"""Seconds of the learner for joining a batch, and for each of its transitions."""


def bounds(shards: int, batch: int, batches: int, cores: int) -> dict[str, int]:
    """Return the transitions a second that each resource can handle.

    Args:
        shards: Number of shards, all of which a request is sent to. If there are several, each has a machine of its
            own, and so has the learner.
        batch: Number of transitions in a batch.
        batches: Number of batches in a request.
        cores: Number of cores of a machine.
    """
    shard = shards * DRAW / batches + batch * DRAW_ROW
    learner = shards * ASK / batches + JOIN + batch * JOIN_ROW
    seconds = {"shards": shard / shards, "learner": learner}
    if shards == 1:
        seconds["cores"] = (shard + learner) / cores
    return {name: round(batch / taken) for name, taken in seconds.items()}


def main() -> None:
    """Print the bounds for each batch size."""
    parser = argparse.ArgumentParser(description="What limits draws from a fleet of shards.")
    parser.add_argument("--shards", type=int, default=64, help="default: 64")
    parser.add_argument("--batch", type=int, nargs="+", default=[256, 2_048, 16_384], help="default: 256 2048 16384")
    parser.add_argument("--batches", type=int, default=4, help="in a request; default: 4, as with prefetch=7")
    parser.add_argument("--cores", type=int, default=16, help="of a machine; default: 16")
    options = parser.parse_args()
    for batch in options.batch:
        found = bounds(options.shards, batch, options.batches, options.cores)
        print(f"batches of {batch:,}: {', '.join(f'{rate:,} ({name})' for name, rate in found.items())} a second")


if __name__ == "__main__":
    main()
