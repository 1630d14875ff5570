"""What an episode buffer says of itself."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeBufferStats:
    """What an episode buffer holds, what is drawn, and what has happened to it.

    Steps that are no transition any more, and will be none, are in `dropped`.

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
        waiting_steps: Steps of open episodes that wait for the observation after them: the newest of each.
        never_drawn: Episodes stored now, open ones included, that no sample came from.
        policy_version: Which version the learner's policy is of; None as long as it has not said.
        policy_lag: By how much, on average, the learner's version was ahead of that of a step when it was drawn; of the
            last 256 draws, where both versions were known. None if there are none.
        max_policy_lag: By how much it is ahead of the oldest version of which a transition is stored; None if there
            is none, or the learner's is not known.
        appended: Steps appended, ever.
        sampled: Samples drawn, ever.
        aborted_steps: Last steps of aborted episodes: nobody knows what followed them. Ever.
        cleared_steps: Steps that `clear` forgot, ever.
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
    waiting_steps: int
    never_drawn: int
    policy_version: int | None
    policy_lag: float | None
    max_policy_lag: int | None
    appended: int
    sampled: int
    aborted_steps: int
    cleared_steps: int

    @property
    def never_drawn_share(self) -> float:
        """Which share of the episodes no sample came from, in [0, 1]; 0 where there are none."""
        return self.never_drawn / max(self.total_episodes, 1)

    @property
    def mean_draws(self) -> float:
        """How many samples there were for each step appended: the replay ratio in samples a step."""
        return self.sampled / max(self.appended, 1)

    @property
    def oldest_open_age(self) -> float:
        """For how many seconds the oldest open episode has been open; 0 where there is none."""
        return max(self.open_ages.values(), default=0.0)

    @property
    def dropped(self) -> dict[str, int]:
        """How many steps are not stored as transitions and never will be, by reason.

        `appended == total_transitions + waiting_steps + sum(dropped.values())`.
        """
        return {"evicted": self.evicted_transitions, "aborted": self.aborted_steps, "cleared": self.cleared_steps}
