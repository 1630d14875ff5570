"""Detection of misuse that no single call shows; each cause is warned of once.

spliced steps     a step that does not begin where the one before it ended: a shuffled stream, a wrong stream=
repeated steps    a spliced step that equals the one before it: stored by a recorder, and by the program once more
reset steps       a step from the final observation of an episode that terminated to the first of the next one:
a vector environment that resets in a separate step, which is not a transition
"""

import collections
import math
import operator
import sys
from typing import Any
import warnings

import numpy as np

from relive import errors
from relive.common import trees
from relive.schema import encoding
from relive.storage import steps as steps_lib
from relive.windows import transitions

_LAST_STEPS = 200
_FEWEST_RESETS = 10
_MOST_ENVIRONMENTS = 64


class Watch:
    """Counts what looks like misuse of one buffer.

    Attributes:
        suspected_resets: Steps of `extend` that look like resets.
        finals: The final observations, field by field, of the streams whose newest step `extend` added and terminated.
    """

    def __init__(self) -> None:
        self.suspected_resets = 0
        self.finals: dict[int, list[bytes]] = {}
        self._num_ends = 0
        self._splices: collections.deque[int] = collections.deque(maxlen=_LAST_STEPS // 2 + 1)
        self._repeats: collections.deque[int] = collections.deque(maxlen=_LAST_STEPS // 4 + 1)
        self._last_repeat = -1
        self._warned: set[str] = set()

    def record(self, steps: encoding.Steps, num_spliced: int, store: steps_lib.StepStore) -> None:
        """Record steps that were stored, of which some were spliced; it may raise a MisuseWarning."""
        try:
            if type(steps.streams) is not tuple and not steps.is_run:
                self.record_round(steps)
            elif self.finals:
                self.finals.pop(steps.streams[0], None)  # It was written to other than by `extend`.
            if num_spliced:
                self.record_splices(num_spliced, len(steps.streams), store)
        except MemoryError:
            pass  # The steps are stored: a look at them is all that is left out.

    def record_splices(self, count: int, added: int, store: steps_lib.StepStore) -> None:
        """Record that `count` of the `added` newest steps were spliced."""
        inserted = store.next_key
        if not self._warned & {"splices", "repeats"} and _is_repeated(store, added):
            if self._last_repeat != inserted - added:  # Twice, and not over and over.
                self._repeats.extend([inserted] * count)
            self._last_repeat = inserted
            if _is_often(self._repeats, inserted):
                self._warn(
                    "repeats",
                    f"more than a quarter of the last {_LAST_STEPS} steps equal the one before them: each step is "
                    "stored twice, as by a recorder and by add, so leave one of them out",
                )
        self._splices.extend([inserted] * count)
        if _is_often(self._splices, inserted) and "splices" not in self._warned:
            self._warn(
                "splices",
                f"more than half of the last {_LAST_STEPS} steps did not begin where the one before them ended: "
                + _cause_of_splices(store),
            )

    def record_round(self, steps: encoding.Steps) -> None:
        """Record a step for each of some streams, as `extend` adds them."""
        next_rows, events = steps.next_rows, bytes(steps.events)
        if not self.finals and not events.strip(b"\0"):
            return
        streams = np.asarray(steps.streams).tolist()
        places = {stream: place for place, stream in enumerate(streams)} if self.finals else {}
        for stream in self.finals.keys() & places:
            place, final = places[stream], self.finals.pop(stream)
            if next_rows is not None and _observation(steps, steps.rows, place) == final:
                self.suspected_resets += _observation(steps, next_rows, place) != final
        for place in np.flatnonzero(steps.events).tolist():
            self._num_ends += 1
            if next_rows is not None and events[place] & encoding.TERMINATED:
                self.finals[streams[place]] = _observation(steps, next_rows, place)
        if self.suspected_resets >= _FEWEST_RESETS and 2 * self.suspected_resets > self._num_ends:
            self._warn(
                "resets",
                f"{self.suspected_resets} steps go from the final observation of a terminated episode to another "
                "observation: the environment resets by a step, which must not be stored "
                "(VectorRecorder leaves it out), or what was given as the final observation was the first of the next "
                "episode (give that of infos['final_obs'])",
            )

    def forget_steps(self) -> None:
        """Forget the steps; counts and warnings are kept."""
        self.finals.clear()
        self._splices.clear()
        self._repeats.clear()

    def _warn(self, cause: str, message: str) -> None:
        """Warn once per cause, at the line that called relive."""
        if cause in self._warned:
            return
        self._warned.add(cause)
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
            level, frame = level + 1, frame.f_back
        warnings.warn(message, errors.MisuseWarning, stacklevel=level)


def _is_often(events: collections.deque[int], now: int) -> bool:
    """Return whether as many as a deque holds happened in the last steps."""
    return len(events) == events.maxlen and now - events[0] < _LAST_STEPS


def _is_repeated(store: steps_lib.StepStore, count: int) -> bool:
    """Return whether the newest step equals the one that is `count` steps older."""
    if len(store) <= count:
        return False
    slots = store.slots(np.array([store.next_key - 1 - count, store.next_key - 1]))
    # They differ in nearly all spliced steps, of which nothing else is read.
    observations = store.observations(slots).values()
    if any(before.tobytes() != after.tobytes() for before, after in observations):
        return False
    if not store.is_readable(slots).all():
        return False
    batch = transitions.TransitionWindow()._read(store, slots, np.ones(2), np.ones(2))
    parts = (batch.action, batch.reward, batch.next_observation)
    return all(before == after for before, after in map(_bytes, parts))


def _cause_of_splices(store: steps_lib.StepStore) -> str:
    """Return the likely cause of steps that do not follow each other, and the remedy."""
    slots = store.alive_slots()[-_LAST_STEPS:]
    slots = slots[store.is_readable(slots)]
    batch = transitions.TransitionWindow()._read(store, slots, np.ones(len(slots)), np.ones(len(slots)))
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


def _observation(steps: encoding.Steps, rows: encoding.Row, place: int) -> list[bytes]:
    """Return the bytes of the observation at a place among those of some steps, field by field."""
    sizes = [len(field) // len(steps.streams) for field in rows[: len(steps.schema._observation_paths)]]
    return [rows[field][place * size : (place + 1) * size] for field, size in enumerate(sizes)]


def _is_ours(name: str) -> bool:
    return name.startswith("relive.") and not name.endswith("_test")
