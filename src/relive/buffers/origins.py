"""RowOrigin: where a row came from, for debugging."""

import dataclasses
from typing import Literal, TypeAlias, get_args

from relive.buffers import draws as draws_lib
from relive.common import arrays as arrays_lib
from relive.kernels import append
from relive.samplers import prioritized
from relive.storage import steps as steps_lib

EpisodeEnd: TypeAlias = Literal["OPEN", "TERMINATED", "TRUNCATED"]
"""How an episode of a buffer of columns ended, if it did: in the order of the numbers of `kernels.append`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowOrigin:
    """The origin and the current state of a stored step.

    Attributes:
        key: Its key.
        slot: Its slot in the storage.
        stream: The environment or actor that it came from.
        episode_start_key: The key of step 0 of its episode, which may have been evicted.
        step: Its position in the episode, from 0.
        episode_length: Number of steps of the episode so far, including evicted ones.
        episode_end: How the episode ended.
        age: Number of steps added after it, in all streams.
        is_readable: Whether a window can start from it.
        is_barred: Whether it was excluded with `set_eligible`.
        is_eligible: Whether it may be drawn: readable, not barred, and not drawn max_times_sampled times.
        times_sampled: How many times it was drawn; None without max_times_sampled.
        priority: Its raw priority, or the one it would get if it has none yet; None without priorities.
        probability: Its probability in a single draw now; None if unknown.
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
        why_not = "barred" if self.is_barred else "spent"
        why_not = why_not if self.is_readable else "no window can start there"
        parts = [
            f"key {self.key}: step {self.step} of {self.episode_length}{so_far}",
            f"episode from key {self.episode_start_key}",
            f"stream {self.stream}",
            self.episode_end,
            f"slot {self.slot}",
            f"age {self.age}",
            "eligible" if self.is_eligible else f"not eligible ({why_not})",
        ]
        if self.times_sampled is not None:
            parts.append(f"drawn {self.times_sampled} times")
        if self.priority is not None:
            parts.append(f"priority {self.priority:.6g}")
        if self.probability is not None:
            parts.append(f"probability {self.probability:.6g}")
        return ", ".join(parts)


def of(store: steps_lib.StepStore, draws: draws_lib.Draws, slots: arrays_lib.Ints) -> RowOrigin:
    """Return the origin of the row in `slots` [1]."""
    episodes, key, sampler = store.episodes_of(slots), store.keys(slots).item(), draws.sampler
    limited, probability = draws.limited, sampler.probabilities(slots).item()
    priority = sampler.priorities(slots).item() if isinstance(sampler, prioritized.PrioritizedSampler) else None
    return RowOrigin(
        key=key,
        slot=slots.item(),
        stream=store.episodes[append.STREAM][episodes].item(),
        episode_start_key=store.episodes[append.FIRST_KEY][episodes].item(),
        step=store.steps_of(slots).item(),
        episode_length=store.lengths_of(episodes).item(),
        episode_end=get_args(EpisodeEnd)[store.episodes[append.END][episodes].item()],
        age=store.next_key - 1 - key,
        is_readable=draws.anchors.has(append.READABLE, slots).item(),
        is_barred=draws.anchors.has(append.BARRED, slots).item(),
        is_eligible=draws.anchors.is_eligible(slots).item(),
        times_sampled=None if limited is None else limited.times(slots).item(),
        priority=priority,
        probability=None if probability != probability else probability,
    )
