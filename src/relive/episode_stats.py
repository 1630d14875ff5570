"""What an episode buffer says of itself."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeBufferStats:
    """What an episode buffer holds, and what has happened to it.

    Attributes:
        total_episodes: Episodes stored now, open ones included; the next four are its parts.
        in_progress: Open ones.
        completed: Those that ended as COMPLETED.
        truncated: Those that ended as TRUNCATED.
        aborted: Those that ended as ABORTED.
        total_transitions: Complete transitions stored now.
        num_agents: Different agents among the episodes stored now.
        evicted_episodes: Episodes that made room for others, ever.
        evicted_transitions: Their transitions.
        overflow_transitions: Transitions above max_transitions now, 0 without such a limit.
        open_ages: Seconds since the start of each open episode, by episode id, the oldest first.
        appended: Steps appended, ever.
        sampled: Samples drawn, ever.
    """

    total_episodes: int
    in_progress: int
    completed: int
    truncated: int
    aborted: int
    total_transitions: int
    num_agents: int
    evicted_episodes: int
    evicted_transitions: int
    overflow_transitions: int
    open_ages: dict[str, float]
    appended: int
    sampled: int
