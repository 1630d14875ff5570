"""Statistics of a column buffer."""

import dataclasses

import numpy as np

from relive import errors
from relive.buffers import draws as draws_lib
from relive.buffers import misuse
from relive.common import statistics
from relive.kernels import append
from relive.storage import steps as steps_lib

_POLICY_VERSION = "extras/policy_version"
"""The field that says by which version of the policy a step was made."""


def counts(draws: draws_lib.Draws, watch: misuse.Watch) -> dict[str, int]:
    """Return what was counted since a buffer was created, by name."""
    return {name: getattr(draws, name) for name in ("inserted", "sampled", "stale_keys")} | watch.counts()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnBufferStats(statistics.Statistics):
    """Statistics of a column buffer: its current contents, its draws, and counts since it was created.

    Steps that are no longer stored are in `dropped`: `appended == size + sum(dropped.values())`.

    Attributes:
        size: Steps stored.
        capacity: Steps stored at most.
        num_eligible: Anchors that may be drawn now.
        open_episodes: Episodes in progress.
        terminated_episodes: Episodes stored, in whole or in part, that terminated.
        truncated_episodes: Likewise, that were truncated.
        nbytes: Bytes of the columns as their schema counts them, of the observations beside them, of the timeline,
            and of priorities with the tree of their sums.
        effective_sample_size: Number of uniformly drawn anchors that would give the same diversity of draws (Kish
            1965): 1 / sum_i P_i^2, which is num_eligible without priorities. 0 if nothing can be drawn, None if
            unknown.
        max_policy_lag: How far the policy_version of the newest step is ahead of that of the oldest stored one. None if
            there is none, if the schema has no integer extra `policy_version` of shape (), or if the storage is closed.
        appended: Steps added so far.
        sampled: Anchors drawn so far.
        evicted: Steps overwritten so far.
        cleared: Steps that `clear` forgot so far.
        spliced_episodes: Episodes closed as truncated because the next step began with a different observation than
            expected: an unreported reset. Counted since the start, as are the next four.
        suspected_resets: Steps of `add` and `extend` that lead from the final observation of an episode to another
            one, with a reward of exactly 0, and go on: an environment reset that was stored as a step, if most other
            steps have other rewards.
        continued_truncations: Steps of `add` and `extend` that begin with the final observation of an episode that was
            truncated: a task that goes on, or the first observation of an episode given as the final one of the last.
        stale_keys: Keys whose step was no longer stored when its priority or eligibility was set.
        spent: Anchors retired after max_times_sampled draws.
    """

    size: int
    capacity: int
    num_eligible: int
    open_episodes: int
    terminated_episodes: int
    truncated_episodes: int
    nbytes: int
    effective_sample_size: float | None
    max_policy_lag: int | None
    appended: int
    sampled: int
    evicted: int
    cleared: int
    spliced_episodes: int
    suspected_resets: int
    continued_truncations: int
    stale_keys: int
    spent: int

    @property
    def mean_draws(self) -> float:
        """Draws per step added: the replay ratio."""
        return self.sampled / max(self.appended, 1)

    @property
    def oldest_age(self) -> int:
        """Number of steps added after the oldest stored one."""
        return max(self.size - 1, 0)

    @property
    def dropped(self) -> dict[str, int]:
        """Number of steps that are no longer stored, by reason."""
        return {"evicted": self.evicted, "cleared": self.cleared}


def of(store: steps_lib.StepStore, draws: draws_lib.Draws, watch: misuse.Watch) -> ColumnBufferStats:
    """Return the statistics of a buffer with those parts. O(capacity), a few bytes per slot."""
    numbers = store.rows_state().numbers
    ends = np.bincount(store.episodes[append.END][numbers], minlength=3).tolist()
    counted = counts(draws, watch)
    del counted["ends"]
    return ColumnBufferStats(
        size=len(store),
        capacity=store.capacity,
        num_eligible=len(draws),
        open_episodes=ends[append.OPEN],
        terminated_episodes=ends[append.TERMINATED],
        truncated_episodes=ends[append.TRUNCATED],
        nbytes=store.nbytes + draws.nbytes,
        effective_sample_size=draws.sampler.effective_sample_size(),
        max_policy_lag=_max_policy_lag(store),
        appended=counted.pop("inserted"),
        evicted=store.num_evicted,
        cleared=store.oldest_key - store.num_evicted,
        spent=draws.num_spent,
        **counted,
    )


def _max_policy_lag(store: steps_lib.StepStore) -> int | None:
    """Return how far the policy of the newest step is ahead of that of the oldest; None if the storage is closed."""
    field = store.schema.fields.get(_POLICY_VERSION) if len(store) else None
    if field is None or field.shape or field.dtype.kind not in "iu":
        return None
    keys = np.array([store.oldest_key, store.next_key - 1])
    try:
        read = store.read_rows(store.slots(keys), (_POLICY_VERSION,))[_POLICY_VERSION]
    except errors.ClosedError:
        return None
    # Python's integers: the difference of two versions may need a bit more than either.
    oldest, newest = read.tolist()
    lag: int = newest - oldest
    return lag
