"""Who can be measured: name, module and requirement of every peer, and the limits beside them."""

import dataclasses
import importlib
from importlib import metadata
import shlex

from relive.bench import machine
from relive.bench import tasks


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library, or a limit, to measure.

    Attributes:
        name: What the tables call it.
        module: The adapter, in relive.bench.peers.
        requirement: What pip installs for it, with the extra that it needs; None where there is nothing to install.
        what: One line about it.
        make: What the adapter calls what makes its buffer.
        is_limit: Whether it only says what numpy takes for the same bytes, and returns nothing that could be right.
    """

    name: str
    module: str
    requirement: str | None
    what: str
    make: str = "make"
    is_limit: bool = False

    def load(self) -> tasks.Make:
        """Import the adapter, and its library with it.

        Raises:
            CannotError: The library is not installed, or does not load.
        """
        try:
            with machine.silence():
                adapter = importlib.import_module(f"relive.bench.peers.{self.module}")
        except ModuleNotFoundError as error:
            package = shlex.quote(self.requirement or str(error.name))
            raise tasks.CannotError(f"{error.name} is not installed: run pip install {package}") from error
        except Exception as error:  # A library that is broken, in whatever way, must not end the others' run.
            raise tasks.CannotError(f"does not load: {tasks.in_one_line(error)}") from error
        make: tasks.Make = getattr(adapter, self.make)
        return make

    def version(self) -> str:
        """Return the installed version of the library; nothing where there is none."""
        return metadata.version(self.requirement.partition("[")[0]) if self.requirement else ""


PEERS = {
    peer.name: peer
    for peer in (
        Peer("relive", "own", None, "the ring, prioritized and sequence buffers of columns"),
        Peer("relive-numba", "own", "numba", "the same, with kernels compiled by numba", "make_compiled"),
        Peer("relive-episodes", "own", None, "EpisodeReplayBuffer", "make_episodes"),
        Peer("cpprb", "with_cpprb", "cpprb", "C++"),
        Peer("tianshou", "with_tianshou", "tianshou", "numpy, and a sum tree in numba"),
        Peer("sb3", "with_sb3", "stable-baselines3", "numpy, and tensors of torch"),
        Peer("torchrl", "with_torchrl", "torchrl", "tensors of torch, and sum trees in C++"),
        Peer("rllib", "with_rllib", "ray[rllib]", "episodes in Python"),
        Peer("flashbax", "with_flashbax", "flashbax", "jax, jitted on the CPU"),
        Peer("naive", "limits", None, "a deque of episodes and numpy's choice with weights", "make_naive"),
        Peer("take", "limits", None, "a limit: one ndarray.take a column of the same bytes", "make_take", True),
        Peer("copy", "limits", None, "a limit: a plain copy of the same bytes", "make_copy", True),
    )
}
