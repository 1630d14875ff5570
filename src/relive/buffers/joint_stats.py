"""What a joint buffer holds, and what has happened to it."""

from collections.abc import Mapping
import dataclasses

from relive.buffers import joint_table
from relive.kernels import history as history_lib
from relive.persistence import state

_COUNTS = ("inserted", "sampled", "spliced_episodes")


@dataclasses.dataclass(kw_only=True)
class Counters:
    """What a joint buffer counts since it was made; `len` is how many joint steps may be drawn now.

    Attributes:
        table: The joint steps.
        inserted: Joint steps added.
        sampled: Joint steps drawn.
        spliced_episodes: Episodes that were ended since the next step did not follow.
    """

    table: joint_table.JointTable
    inserted: int = 0
    sampled: int = 0
    spliced_episodes: int = 0

    def __len__(self) -> int:
        """Answers how many joint steps may be drawn now: all."""
        return len(self.table)

    def values(self) -> dict[str, int]:
        """Answers the counts by name."""
        return {name: getattr(self, name) for name in _COUNTS}

    @staticmethod
    def checked(given: state.Given) -> dict[str, int]:
        """Answers counts by name that somebody gave, or raises CheckpointError."""
        return {name: given.integer(name) for name in _COUNTS}

    def restore(self, counts: Mapping[str, int]) -> None:
        """Goes on from those counts."""
        for name, count in counts.items():
            setattr(self, name, count)


@dataclasses.dataclass(frozen=True, kw_only=True)
class JointBufferStats:
    """Numbers about a joint buffer: what it holds now, and counts since it was made.

    Joint steps that are not stored any more were evicted or cleared: `appended == size + evicted + cleared`.

    Attributes:
        size: Joint steps stored, each of which may be drawn.
        capacity: Joint steps stored at most.
        agent_steps: In how many of those stored each agent is, by name.
        open_episodes: Episodes of environments that are going on.
        nbytes: Bytes of the agents' columns as their schemas count them, of the observations beside them, of their
            timelines, and of what says which rows belong together.
        appended: Joint steps added, ever.
        sampled: Joint steps drawn, ever.
        evicted: Joint steps overwritten, ever.
        cleared: Joint steps that `clear` forgot, ever.
        spliced_episodes: Episodes that were ended since an agent went on from another observation than was announced: a
            reset that nobody reported. Ever.
    """

    size: int
    capacity: int
    agent_steps: dict[str, int]
    open_episodes: int
    nbytes: int
    appended: int
    sampled: int
    evicted: int
    cleared: int
    spliced_episodes: int


def of(
    table: joint_table.JointTable, histories: Mapping[str, history_lib.History], counters: Counters
) -> JointBufferStats:
    """Answers the numbers about a buffer of those parts. O(agents + streams)."""
    return JointBufferStats(
        size=len(table),
        capacity=table.capacity,
        agent_steps={agent: len(history.timeline) for agent, history in histories.items()},
        open_episodes=table.num_open,
        nbytes=table.nbytes + sum(history.nbytes for history in histories.values()),
        appended=counters.inserted,
        sampled=counters.sampled,
        evicted=table.num_evicted,
        cleared=table.oldest_key - table.num_evicted,
        spliced_episodes=counters.spliced_episodes,
    )
