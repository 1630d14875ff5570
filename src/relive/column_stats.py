"""What a column buffer holds, and what has happened to it."""

import dataclasses

from relive import eligibility
from relive import states

_COUNTS = ("inserted", "sampled", "spliced_episodes", "stale_keys")


@dataclasses.dataclass(kw_only=True)
class Counters:
    """What a buffer counts since it was made; `len` is how many anchors may be drawn now.

    Attributes:
        eligible: Which ones.
        inserted: Steps added.
        sampled: Anchors drawn.
        spliced_episodes: Episodes that were closed since the next step did not follow.
        stale_keys: Keys whose step was gone.
    """

    eligible: eligibility.Eligibility
    inserted: int = 0
    sampled: int = 0
    spliced_episodes: int = 0
    stale_keys: int = 0

    def __len__(self) -> int:
        """Answers how many anchors may be drawn now."""
        return len(self.eligible)

    def values(self) -> dict[str, int]:
        """Answers the counts by name."""
        return {name: getattr(self, name) for name in _COUNTS}

    def check_values(self, given: states.Given) -> None:
        """Raises CheckpointError if those are no counts."""
        for name in _COUNTS:
            given.integer(name)

    def restore(self, given: states.Given) -> None:
        """Goes on from those counts."""
        for name in _COUNTS:
            setattr(self, name, given.integer(name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnBufferStats:
    """Numbers about a buffer of columns; the last seven count since it was made.

    Attributes:
        size: Steps stored.
        capacity: Steps stored at most.
        num_eligible: Anchors that may be drawn now.
        open_episodes: Episodes that are going on.
        terminated_episodes: Episodes stored, in whole or in part, that terminated.
        truncated_episodes: The same that were truncated.
        appended: Steps added.
        sampled: Anchors drawn.
        evicted: Steps overwritten.
        spliced_episodes: Episodes closed as truncated since the next step began with another observation than was
            announced: a reset that nobody reported.
        stale_keys: Keys whose step was gone when priorities or eligibility for it arrived.
        spent: Anchors retired since they were drawn max_times_sampled times.
        nbytes: Bytes of the columns as their schema counts them, of the observations beside them and of the timeline.
    """

    size: int
    capacity: int
    num_eligible: int
    open_episodes: int
    terminated_episodes: int
    truncated_episodes: int
    appended: int
    sampled: int
    evicted: int
    spliced_episodes: int
    stale_keys: int
    spent: int
    nbytes: int
