"""Who can be measured: name, adapter and requirement of every peer, and the limits beside them."""

import dataclasses
from importlib import metadata
import pkgutil
import re

from relive.bench import machine
from relive.bench import tasks

MISSING = "not installed"
"""Why a peer is not measured whose library can be installed."""


@dataclasses.dataclass(frozen=True)
class Peer:
    """A library, or a limit, to measure.

    Attributes:
        name: What the tables call it.
        adapter: Module and class of the adapter, in relive.bench.peers.
        requirement: What pip installs for it, with the extra that it needs; nothing where there is nothing to install.
        what: One line about it.
        differs: Why rows of it differ from the definition of a right row, and whether it promises such rows.
        returns: What a batch of it may be made of: "arrays", of numpy or JAX, or "tensors" of torch.
        is_limit: Whether it only says what numpy takes for the same bytes, and returns nothing that could be right.
    """

    name: str
    adapter: str
    requirement: str
    what: str
    differs: str = ""
    returns: tuple[str, ...] = ("arrays",)
    is_limit: bool = False

    def require(self, returns: str) -> None:
        """Raise CannotError if a batch is to be made of something else than it returns; anything goes for nothing."""
        if returns and returns not in self.returns:
            raise tasks.CannotError(f"returns {' or '.join(self.returns)} alone")

    def load(self) -> tasks.Make:
        """Import the adapter, and its library with it.

        Raises:
            CannotError: The library is not installed, or does not load.
        """
        try:
            with machine.silence():
                make: tasks.Make = pkgutil.resolve_name(f"relive.bench.peers.{self.adapter}")
        except ModuleNotFoundError as error:
            raise tasks.CannotError(MISSING) from error
        except Exception as error:  # A library that is broken, in whatever way, must not end the others' run.
            raise tasks.CannotError(f"does not load: {in_one_line(error)}") from error
        return make

    def version(self) -> str:
        """Return the installed version of the library; nothing where there is none."""
        return metadata.version(re.split(r"[\[>]", self.requirement)[0]) if self.requirement else ""


def in_one_line(error: BaseException) -> str:
    """Return the type and the first line of what an error says."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


_BOTH = ("arrays", "tensors")
_CPPRB = (
    "It promises n-step sums. A window whose last step terminates has the flag 0, and the last rows of a truncated "
    "episode have a next observation of ones. `load_transitions` does not restore where episodes were truncated: the "
    "next observation there is the first one of the next episode."
)
_TIANSHOU = (
    "It promises stacks within one episode. With `ignore_obs_next=True`, as in its Atari examples, the last "
    "observation of an episode is not stored; the one before it is returned in its place. Stacks at the oldest rows of "
    "the ring repeat a frame that is not the first of its episode."
)
_TORCHRL = (
    "It promises n-step rewards and next observations, which are right. The flag `terminated` is that of the window's "
    "first step, so a target bootstraps after termination."
)
_RLLIB = (
    "Uniform n-step draws have no flag of termination, and miscount windows near the end of an episode, so a batch "
    "holds more rows than were asked for. It does not promise that a sequence stays in one episode: `is_first` marks "
    "where another one starts."
)
_FLASHBAX = (
    "It does not promise such rows: it returns neighbours in time, and its README leaves the step from the end of an "
    "episode to the next one to its user. There the next observation is the first one of the next episode, and "
    "sequences run on."
)

PEERS = {
    peer.name: peer
    for peer in (
        Peer("relive", "own:_Columns", "", "the ring, prioritized and sequence buffers of columns", returns=_BOTH),
        Peer(
            "relive-numba", "own:_CompiledColumns", "numba", "the same, with kernels compiled by numba", returns=_BOTH
        ),
        Peer("relive-episodes", "own:_Episodes", "", "EpisodeReplayBuffer"),
        Peer("cpprb", "with_cpprb:_Buffer", "cpprb", "C++", _CPPRB),
        Peer(
            "tianshou",
            "with_tianshou:_Buffer",
            "tianshou>=2",
            "numpy, and a sum tree in numba",
            _TIANSHOU,
            returns=_BOTH,
        ),
        Peer("sb3", "with_sb3:_Buffer", "stable-baselines3", "numpy, and tensors of torch", returns=("tensors",)),
        Peer("torchrl", "with_torchrl:_Buffer", "torchrl", "torch, sum trees in C++", _TORCHRL, returns=("tensors",)),
        Peer("rllib", "with_rllib:_Buffer", "ray[rllib]", "episodes in Python", _RLLIB),
        Peer("flashbax", "with_flashbax:_Buffer", "flashbax", "jax, jitted on the CPU", _FLASHBAX),
        Peer("naive", "limits:_Naive", "", "a deque of episodes and numpy's choice with weights"),
        Peer("take", "limits:_Take", "", "a limit: one ndarray.take a column of the same bytes", is_limit=True),
        Peer("copy", "limits:_Copy", "", "a limit: a plain copy of the same bytes", is_limit=True),
    )
}
