"""How draws grow with what is stored, up to 10^8: from mapped files, of the sum tree alone, and by priority."""

import functools

from relive.bench import catalogue
from relive.bench import contestants
from relive.bench import curve
from relive.bench import tasks
from relive.bench import workload
from relive.bench.peers import mapped
from relive.bench.peers import own_tree
from relive.bench.workloads import transitions

_SIZES = tuple(10**digits for digits in range(4, 9))
_LENGTHS = (1_000, 3_000)
"""Of episodes: long ones are stored fast, and a draw does not know the difference."""


def _mapped(
    size: int, peer: str, make: catalogue.Make, timed: workload.Timed, prioritized: bool
) -> contestants.Contestant:
    """Return a peer with that many steps in mapped files."""
    task = tasks.Task(capacity=size, observation=transitions.SMALL, prioritized=prioritized, episode_lengths=_LENGTHS)
    contestant = contestants.of_buffer(catalogue.PEERS[peer], make, task, timed)
    mapped.settle()
    return contestant


def _line(peer: str, make: catalogue.Make, timed: workload.Timed, prioritized: bool = False) -> curve.Line:
    return functools.partial(_mapped, peer=peer, make=make, timed=timed, prioritized=prioritized)


CURVES = (
    curve.Curve(
        name="growth-uniform",
        family="growth",
        title="a uniform draw of 256 from steps of f32[4] in mapped files",
        part="steps",
        lines={
            "relive": _line("relive", mapped.make, workload.sampling),
            "take": _line("take", mapped.make_take, workload.sampling),
        },
        sizes=_SIZES,
    ),
    curve.Curve(
        name="growth-tree",
        family="growth",
        title="a stratified draw of 256 from the sum tree alone, and their weights set",
        part="leaves",
        lines={"relive": own_tree.contestant},
        sizes=_SIZES,
    ),
    curve.Curve(
        name="growth-prioritized",
        family="growth",
        title="a prioritized draw of 256 and its update, steps of f32[4] in mapped files",
        part="steps",
        lines={"relive": _line("relive", mapped.make, workload.updating, prioritized=True)},
        sizes=_SIZES,
    ),
)
