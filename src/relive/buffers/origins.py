"""Where a row or a sample came from, for somebody who looks at a wrong one."""

import dataclasses
from typing import Any, Literal, TypeAlias, get_args

from relive.buffers import anchors as anchors_lib
from relive.common import arrays
from relive.kernels import eligibility
from relive.kernels import timeline as timeline_lib
from relive.samplers import prioritized

EpisodeEnd: TypeAlias = Literal["OPEN", "TERMINATED", "TRUNCATED"]
"""How an episode of a buffer of columns ended, if it did: in the order of the numbers of episode_table."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowOrigin:
    """Where a stored step came from, and what has become of it.

    Attributes:
        key: Its name.
        slot: Where it is in the storage.
        stream: Which environment or actor it is of.
        episode_start_key: The key of step 0 of its episode, which may have been evicted.
        step: How many steps of the episode came before it.
        episode_length: How many steps the episode has so far, evicted ones too.
        episode_end: How the episode ended.
        age: How many steps were added after it, of all streams.
        is_readable: Whether a window can start from it.
        is_barred: Whether `set_eligible` has said that it may not be drawn.
        is_eligible: Whether it may be drawn: readable, not barred, and not drawn max_times_sampled times.
        times_sampled: How often it was drawn; None without max_times_sampled, which alone has draws counted.
        priority: Its raw priority, or what it would get if it had none yet; None without priorities.
        probability: How likely it is at one draw now; None if the sampler does not say.
    """

    key: int
    slot: int
    stream: int
    episode_start_key: int
    step: int
    episode_length: int
    episode_end: EpisodeEnd
    age: int
    is_readable: bool
    is_barred: bool
    is_eligible: bool
    times_sampled: int | None
    priority: float | None
    probability: float | None

    def __str__(self) -> str:
        """Return all of it as one line."""
        so_far = " so far" if self.episode_end == "OPEN" else ""
        parts = [
            f"key {self.key}: step {self.step} of {self.episode_length}{so_far}",
            f"episode from key {self.episode_start_key}",
            f"stream {self.stream}",
            self.episode_end,
            f"slot {self.slot}",
            f"age {self.age}",
            "eligible" if self.is_eligible else f"not eligible ({self._why_not()})",
        ]
        if self.times_sampled is not None:
            parts.append(f"drawn {self.times_sampled} times")
        if self.priority is not None:
            parts.append(f"priority {self.priority:.6g}")
        if self.probability is not None:
            parts.append(f"probability {self.probability:.6g}")
        return ", ".join(parts)

    def _why_not(self) -> str:
        if not self.is_readable:
            return "no window can start there"
        return "barred" if self.is_barred else "spent"


def rows(
    timeline: timeline_lib.Timeline, anchors: anchors_lib.Anchors, keys: arrays.Ints
) -> tuple[RowOrigin | None, ...]:
    """Return where the rows of those keys [k] came from; None for what is not stored."""
    is_alive = timeline.is_alive(keys)
    found = iter(_stored_rows(timeline, anchors, timeline.slots(keys[is_alive])))
    return tuple(next(found) if is_there else None for is_there in is_alive.tolist())


def _stored_rows(timeline: timeline_lib.Timeline, anchors: anchors_lib.Anchors, slots: arrays.Ints) -> list[RowOrigin]:
    """Return where the rows in `slots` came from."""
    of_rows, episodes, sampler = timeline.rows(slots), timeline.episodes, anchors.sampler
    handles = of_rows.handles
    times = anchors.times_sampled(slots)
    priorities = None
    if isinstance(sampler, prioritized.PrioritizedSampler):
        priorities = sampler.priorities(slots)
    unknown = [None] * len(slots)
    columns: dict[str, list[Any]] = {
        "key": of_rows.keys.tolist(),
        "slot": slots.tolist(),
        "stream": episodes.stream[handles].tolist(),
        "episode_start_key": episodes.first_key[handles].tolist(),
        "step": of_rows.steps.tolist(),
        "episode_length": episodes.length[handles].tolist(),
        "episode_end": [get_args(EpisodeEnd)[end] for end in episodes.end[handles].tolist()],
        "age": (timeline.next_key - 1 - of_rows.keys).tolist(),
        "is_readable": anchors.is_readable(slots).tolist(),
        "is_barred": anchors.eligibility.has(eligibility.BARRED, slots).tolist(),
        "is_eligible": anchors.eligibility.is_eligible(slots).tolist(),
        "times_sampled": unknown if times is None else times.tolist(),
        "priority": unknown if priorities is None else priorities.tolist(),
        "probability": [None if p != p else p for p in sampler.probabilities(slots).tolist()],
    }
    return [RowOrigin(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]
