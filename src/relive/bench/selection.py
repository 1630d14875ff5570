"""What the names on the command line stand for."""

from collections.abc import Sequence

from relive import errors
from relive.bench import catalogue
from relive.bench import curve
from relive.bench import workload
from relive.bench.workloads import adding
from relive.bench.workloads import episodes
from relive.bench.workloads import growth
from relive.bench.workloads import memory
from relive.bench.workloads import prioritized
from relive.bench.workloads import saving
from relive.bench.workloads import sequences
from relive.bench.workloads import transitions

WORKLOADS = {
    one.name: one
    for module in (transitions, prioritized, sequences, episodes, adding, saving, memory)
    for one in module.WORKLOADS
}
CURVES = {one.name: one for one in growth.CURVES}


def check(names: Sequence[str] | None) -> None:
    """Raise ArgumentError if one of the names is neither of a workload or a curve, nor of a family of them."""
    known = {name for one in (*WORKLOADS.values(), *CURVES.values()) for name in (one.name, one.family)}
    for name in names or ():
        if name not in known:
            raise errors.ArgumentError(f"--workload must be one of {', '.join(sorted(known))}, got {name}")


def workloads(names: Sequence[str] | None) -> list[workload.Workload]:
    """Return the workloads of those names or families, all of them if None, in the order of the tables."""
    return [one for one in WORKLOADS.values() if not names or one.name in names or one.family in names]


def curves(names: Sequence[str] | None) -> list[curve.Curve]:
    """Return the curves of those names or families, all of them if None, in the order of the tables."""
    return [one for one in CURVES.values() if not names or one.name in names or one.family in names]


def peers(names: Sequence[str] | None) -> dict[str, catalogue.Peer]:
    """Return the peers of those names, all of them if None, in the order of the tables."""
    for name in names or ():
        if name not in catalogue.PEERS:
            raise errors.ArgumentError(f"--peers must be some of {', '.join(catalogue.PEERS)}, got {name}")
    return {name: peer for name, peer in catalogue.PEERS.items() if not names or name in names}


def listing() -> str:
    """Return every name there is and what it stands for."""
    width = max(map(len, [*WORKLOADS, *CURVES, *catalogue.PEERS]))
    lines = ["workloads (a family stands for all of its own):"]
    family = ""
    for one in (*WORKLOADS.values(), *CURVES.values()):
        label = f"{one.family}:" if one.family != family else ""
        family = one.family
        lines.append(f"  {label:13}{one.name:{width}}  {one.title}")
    lines.append("peers:")
    lines += [f"  {'':13}{peer.name:{width}}  {peer.what}" for peer in catalogue.PEERS.values()]
    return "\n".join(lines) + "\n"
