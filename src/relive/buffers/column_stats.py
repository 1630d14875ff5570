"""What a column buffer holds, and what has happened to it."""

import dataclasses

import numpy as np

from relive import errors
from relive.buffers import draws as draws_lib
from relive.buffers import misuse
from relive.common import arrays
from relive.common import statistics
from relive.kernels import append
from relive.persistence import state
from relive.samplers import anchors as anchors_lib
from relive.storage import steps as steps_lib

_POLICY_VERSION = "extras/policy_version"
"""The field that says by which version of the policy a step was made."""
_COUNTS = ("inserted", "sampled", "spliced_episodes", "suspected_resets", "stale_keys")


@dataclasses.dataclass(kw_only=True)
class Counters:
    """What a buffer counts since it was made; `len` is how many anchors may be drawn now.

    Attributes:
        anchors: Which ones.
        inserted: Steps added.
        sampled: Anchors drawn.
        spliced_episodes: Episodes that were closed since the next step did not follow.
        stale_keys: Keys whose step was gone.
        watch: What looks like misuse, with its own count.
    """

    anchors: anchors_lib.Anchors
    inserted: int = 0
    sampled: int = 0
    spliced_episodes: int = 0
    stale_keys: int = 0
    watch: misuse.Watch = dataclasses.field(default_factory=misuse.Watch)

    @property
    def suspected_resets(self) -> int:
        """How many steps of `extend` look like resets."""
        return self.watch.suspected_resets

    @suspected_resets.setter
    def suspected_resets(self, count: int) -> None:
        self.watch.suspected_resets = count

    def __len__(self) -> int:
        """Return how many anchors may be drawn now."""
        return len(self.anchors)

    def values(self) -> dict[str, int]:
        """Return the counts by name."""
        return {name: getattr(self, name) for name in _COUNTS}

    def check_values(self, given: state.StateReader, next_key: int) -> None:
        """Raise CheckpointError if those cannot be the counts of a buffer whose next step has that key."""
        for name in _COUNTS:
            given.integer(name)
        # Each step has a key, counted from 0.
        given.integer("inserted", next_key, next_key)
        for name in ("spliced_episodes", "suspected_resets"):
            given.integer(name, 0, next_key)

    def restore(self, given: state.StateReader) -> None:
        """Go on from those counts."""
        for name in _COUNTS:
            setattr(self, name, given.integer(name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnBufferStats(statistics.Statistics):
    """Numbers about a buffer of columns: what it holds now, what is drawn, and counts since it was made.

    Steps that are not stored any more are in `dropped`: `appended == size + sum(dropped.values())`.

    Attributes:
        size: Steps stored.
        capacity: Steps stored at most.
        num_eligible: Anchors that may be drawn now.
        open_episodes: Episodes that are going on.
        terminated_episodes: Episodes stored, in whole or in part, that terminated.
        truncated_episodes: The same that were truncated.
        nbytes: Bytes of the columns as their schema counts them, of the observations beside them and of the timeline.
        never_drawn: Anchors that may be drawn now and never were.
        effective_sample_size: Of how many anchors, drawn alike, draws would be as diverse as they are (Kish 1965):
            1 / sum_i P_i^2, which is num_eligible without priorities. 0 if nothing can be drawn, None if the sampler
            does not tell.
        mean_drawn_age: How many steps had been added, on average, behind an anchor that was drawn; of the last 256
            draws. None before the first one.
        policy_lag: By how much, on average, the policy_version of the newest step is ahead of that of an anchor that
            was drawn; of the last 256 draws, where they are still stored. None if there are none, if the schema has no
            integer extra `policy_version` of shape (), or if the storage is closed.
        max_policy_lag: The same of the oldest step stored.
        appended: Steps added, ever.
        sampled: Anchors drawn, ever.
        evicted: Steps overwritten, ever.
        cleared: Steps that `clear` forgot, ever.
        spliced_episodes: Episodes closed as truncated since the next step began with another observation than was
            announced: a reset that nobody reported. Ever, as the next three.
        suspected_resets: Steps of `extend` that go from the final observation of an episode that terminated to another:
            a reset of the environment that was stored as a step.
        stale_keys: Keys whose step was gone when priorities or eligibility for it arrived.
        spent: Anchors retired since they were drawn max_times_sampled times.
    """

    size: int
    capacity: int
    num_eligible: int
    open_episodes: int
    terminated_episodes: int
    truncated_episodes: int
    nbytes: int
    never_drawn: int
    effective_sample_size: float | None
    mean_drawn_age: float | None
    policy_lag: float | None
    max_policy_lag: int | None
    appended: int
    sampled: int
    evicted: int
    cleared: int
    spliced_episodes: int
    suspected_resets: int
    stale_keys: int
    spent: int

    @property
    def never_drawn_share(self) -> float:
        """Which share of the anchors that may be drawn never was, in [0, 1]; 0 where there are none."""
        return self.never_drawn / max(self.num_eligible, 1)

    @property
    def mean_draws(self) -> float:
        """How many draws there were for each step added: the replay ratio in samples a step."""
        return self.sampled / max(self.appended, 1)

    @property
    def oldest_age(self) -> int:
        """How many steps were added behind the oldest one stored."""
        return max(self.size - 1, 0)

    @property
    def dropped(self) -> dict[str, int]:
        """How many steps are not stored any more, by reason."""
        return {"evicted": self.evicted, "cleared": self.cleared}


def of(store: steps_lib.StepStore, draws: draws_lib.Draws, counters: Counters) -> ColumnBufferStats:
    """Return the numbers about a buffer of those parts. O(capacity), a few bytes of each slot."""
    numbers = store.rows_state().numbers
    ends = np.bincount(store.episodes[append.END][numbers], minlength=3).tolist()
    last_keys, last_ages = draws.last_draws()
    policy_lag, max_policy_lag = _policy_lags(store, last_keys)
    return ColumnBufferStats(
        size=len(store),
        capacity=store.capacity,
        num_eligible=len(draws),
        open_episodes=ends[append.OPEN],
        terminated_episodes=ends[append.TERMINATED],
        truncated_episodes=ends[append.TRUNCATED],
        nbytes=store.nbytes,
        never_drawn=draws.num_never_drawn(),
        effective_sample_size=draws.sampler.effective_sample_size(),
        mean_drawn_age=float(last_ages.mean()) if len(last_ages) else None,
        policy_lag=policy_lag,
        max_policy_lag=max_policy_lag,
        appended=counters.inserted,
        sampled=counters.sampled,
        evicted=store.num_evicted,
        cleared=store.oldest_key - store.num_evicted,
        spliced_episodes=counters.spliced_episodes,
        suspected_resets=counters.suspected_resets,
        stale_keys=counters.stale_keys,
        spent=draws.num_spent,
    )


def _policy_lags(store: steps_lib.StepStore, drawn: arrays.Ints) -> tuple[float | None, int | None]:
    """Return how far the policy of the newest step is ahead of that of the `drawn` keys, and of that of the oldest.

    It reads those rows alone, and returns None where the storage is closed.
    """
    field = store.schema.fields.get(_POLICY_VERSION) if len(store) else None
    if field is None or field.shape or field.dtype.kind not in "iu":
        return None, None
    keys = np.append(drawn[store.is_alive(drawn)], [store.oldest_key, store.next_key - 1])
    try:
        read = store.storage.read(store.slots(keys), (_POLICY_VERSION,))[_POLICY_VERSION]
    except errors.ClosedError:
        return None, None
    # Python's integers: the difference of two versions may need a bit more than either.
    *of_drawn, oldest, newest = read.tolist()
    mean = sum(newest - version for version in of_drawn) / len(of_drawn) if of_drawn else None
    return mean, newest - oldest
