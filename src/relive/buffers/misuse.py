"""Detection of misuse that no single call shows; each cause is warned of once.

spliced steps     a step that does not begin where the one before it ended: a shuffled stream, a wrong stream=
steps twice       each step is stored by a Recorder and by hand
missing ends      episodes that end only because the next one begins elsewhere
reset steps       a step from the final observation of an episode that terminated to the first of the next one:
a vector environment that resets in a separate step, which is not a transition
stacked frames    observations that a wrapper has stacked, in a buffer that stacks them again
"""

import collections
from collections.abc import Sequence
import itertools
import math
import operator
import sys
from typing import Any
import warnings

import numpy as np

from relive import errors
from relive.common import arrays
from relive.common import trees
from relive.kernels import append
from relive.schema import encoding
from relive.storage import steps as steps_lib
from relive.windows import batches
from relive.windows import transitions

_LAST_STEPS = 200
_FEWEST_SPLICES = 20
_FEWEST_STEPS = 1000
"""So many steps are needed to tell what few splices mean."""
_FEWEST_RESETS = 10
_MOST_ENVIRONMENTS = 64


class Watch:
    """Counts what looks like misuse of one buffer.

    Attributes:
        suspected_resets: Steps of `extend` that look like resets.
        has_ends: Whether the end of an episode was ever reported.
    """

    def __init__(self) -> None:
        self.suspected_resets = 0
        self.has_ends = False
        self._num_spliced = 0
        self._has_compared = False
        self._ends = 0
        self.finals: dict[int, list[bytes]] = {}
        """The final observations of the episodes that terminated with the newest step of their streams."""
        self._splices: collections.deque[int] = collections.deque(maxlen=_LAST_STEPS // 2 + 1)
        self._warned: set[str] = set()

    def record_splices(self, count: int, inserted: int, store: steps_lib.StepStore) -> None:
        """Record that `count` of the newest steps were spliced, with `inserted` steps added so far."""
        if "splices" in self._warned:
            return
        self._num_spliced += count
        is_telling = inserted >= _FEWEST_STEPS and self._num_spliced >= _FEWEST_SPLICES
        is_new, self._has_compared = is_telling and not self._has_compared, self._has_compared or is_telling
        if is_new and _are_stored_twice(store):
            self._warn(
                "splices",
                "steps are stored twice, each followed by the same observation, action, reward and next_observation: "
                "a Recorder adds the steps of its environment, so do not add them as well",
            )
            return
        # Where most steps are spliced, it is not for want of an end.
        if not self.has_ends and is_telling and self._num_spliced <= inserted // 2:
            self._warn(
                "ends",
                f"no step was ever added with terminated= or truncated=, and {self._num_spliced} steps did not begin "
                "where the one before them ended: report the end of each episode, or targets bootstrap beyond it",
            )
        self._splices.extend([inserted] * count)
        if len(self._splices) == self._splices.maxlen and inserted - self._splices[0] < _LAST_STEPS:
            self._warn(
                "splices",
                f"more than half of the last {_LAST_STEPS} steps did not begin where the one before them ended: "
                + _cause_of_splices(store),
            )

    def record_round(self, steps: encoding.Steps) -> None:
        """Record a step for each of some streams, as `extend` adds them."""
        next_rows, events = steps.next_rows, bytes(steps.events)
        if events.strip(b"\0"):
            self.has_ends = True
        elif not self.finals:
            return
        streams = np.asarray(steps.streams).tolist()
        for stream in self.finals.keys() & streams:
            place, final = streams.index(stream), self.finals.pop(stream)
            if next_rows is not None and _observation(steps, steps.rows, place) == final:
                self.suspected_resets += _observation(steps, next_rows, place) != final
        for place in np.flatnonzero(steps.events).tolist():
            self._ends += 1
            if next_rows is not None and events[place] & encoding.TERMINATED:
                self.finals[streams[place]] = _observation(steps, next_rows, place)
        if self.suspected_resets >= _FEWEST_RESETS and 2 * self.suspected_resets > self._ends:
            self._warn(
                "resets",
                f"{self.suspected_resets} steps go from the final observation of a terminated episode to another "
                "observation: the environment resets by a step, which must not be stored "
                "(VectorRecorder leaves it out), or what was given as the final observation was the first of the next "
                "episode (give that of infos['final_obs'])",
            )

    def record_first(self, store: steps_lib.StepStore) -> None:
        """Check the shape of the observations, once known."""
        if store.older <= 0:
            return
        stack = store.older + 1
        for path in store.observation_paths:
            shape = store.schema.fields[path].shape
            # Three leading channels are usually colours.
            if len(shape) == 3 and shape[0] == stack != 3:
                self._warn(
                    "stacks",
                    f"frame_stack={stack} stacks {path} of shape {shape}, which looks stacked already: add the newest "
                    f"frame alone, as Recorder(env, buffer, frame_stack={stack}) does",
                )

    def record_other(self, stream: int) -> None:
        """Record that a stream was written to other than by `extend`."""
        self.finals.pop(stream, None)

    def clear(self) -> None:
        """Forget the steps; counts and warnings are kept."""
        self.finals.clear()
        self._splices.clear()

    def _warn(self, cause: str, message: str) -> None:
        """Warn once per cause, at the line that called relive."""
        if cause in self._warned:
            return
        self._warned.add(cause)
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
            level, frame = level + 1, frame.f_back
        warnings.warn(message, errors.MisuseWarning, stacklevel=level)


def _newest_steps(store: steps_lib.StepStore, count: int) -> tuple[batches.TransitionBatch, arrays.Ints]:
    """Return those of the newest steps whose next observation is known, and the stream of each."""
    window = transitions.TransitionWindow()
    slots = store.alive_slots()[-count:]
    slots = slots[store.is_readable(slots)]
    batch = window.read(store, slots, np.ones(len(slots)), np.ones(len(slots)))
    return batch, store.episodes[append.STREAM][store.episodes_of(slots)]


def _are_stored_twice(store: steps_lib.StepStore) -> bool:
    """Return whether most of the newest steps are the same as the one before or after it in their stream."""
    batch, streams = _newest_steps(store, 2 * _FEWEST_SPLICES)
    columns = {"observation": batch.observation, "action": batch.action, "next": batch.next_observation}
    rows = _bytes({**columns, "reward": batch.reward, "stream": streams})
    order = np.argsort(streams, kind="stable").tolist()
    num_same = sum(rows[one] == rows[other] for one, other in itertools.pairwise(order))
    return bool(3 * num_same > len(rows))


def _cause_of_splices(store: steps_lib.StepStore) -> str:
    """Return the likely cause of steps that do not follow each other, and the remedy."""
    batch, _ = _newest_steps(store, _LAST_STEPS)
    observations, following = _bytes(batch.observation), _bytes(batch.next_observation)
    if _are_mostly_equal(observations, following):
        return (
            "most have the same observation and next_observation, so copy what the environment returns if it writes "
            "every observation into one array"
        )
    for count in range(2, _MOST_ENVIRONMENTS + 1):
        if _are_mostly_equal(observations[count:], following[:-count]):
            return (
                f"they look like those of {count} environments in turn, so give each a stream of its own "
                f"(streams={count}, and stream= or extend)"
            )
    return (
        "add the steps of each environment in order, to a stream of its own, and normalise or wrap observation and "
        "next_observation alike"
    )


def _bytes(tree: Any) -> list[bytes]:
    """Return the bytes of each row of some columns [B, ...]."""
    columns = [
        column.reshape(len(column), math.prod(column.shape[1:])) for column in trees.flat("observation", tree).values()
    ]
    return [b"".join(part.tobytes() for part in row) for row in zip(*columns, strict=True)]


def _are_mostly_equal(these: list[bytes], those: list[bytes]) -> bool:
    return bool(2 * sum(map(operator.eq, these, those)) > len(these) > 0)


def _observation(steps: encoding.Steps, rows: Sequence[bytes], place: int) -> list[bytes]:
    """Return the bytes of the observation at a place among those of some steps, by block."""
    sizes = [len(block) // len(steps.streams) for block in rows[: len(steps.schema.observation_paths)]]
    return [rows[block][place * size : (place + 1) * size] for block, size in enumerate(sizes)]


def _is_ours(name: str) -> bool:
    return name.startswith("relive.") and not name.endswith("_test")
