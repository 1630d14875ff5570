"""Misuse that no single call shows: recorded while steps are written, and warned of once.

spliced steps     a step that does not begin where the one before it ended: a shuffled stream, a wrong stream=
reset steps       a step from the final observation of an episode that terminated to the first of the next one:
a vector environment resets by a step of its own, which is no experience
"""

import collections
from collections.abc import Sequence
import sys
import warnings

import numpy as np

from relive import errors
from relive.schema import encoding

_LAST_STEPS = 200
_FEWEST_RESETS = 10


class Watch:
    """Counts what looks like misuse of one buffer.

    Attributes:
        suspected_resets: Steps of `extend` that look like resets.
    """

    def __init__(self) -> None:
        self.suspected_resets = 0
        self._ends = 0
        self.finals: dict[int, list[bytes]] = {}
        """The final observations of the episodes that terminated with the newest step of their streams."""
        self._splices: collections.deque[int] = collections.deque(maxlen=_LAST_STEPS // 2 + 1)
        self._warned: set[str] = set()

    def record_splices(self, count: int, inserted: int) -> None:
        """Record that so many of the newest steps were spliced, with so many steps inserted so far."""
        self._splices.extend([inserted] * count)
        if len(self._splices) == self._splices.maxlen and inserted - self._splices[0] < _LAST_STEPS:
            self._warn(
                f"more than half of the last {_LAST_STEPS} steps did not begin where the one before them ended: "
                "add the steps of each environment in order, to a stream of its own"
            )

    def record_round(self, steps: encoding.Steps) -> None:
        """Record a step for each of some streams, as `extend` adds them."""
        next_rows, events = steps.next_rows, bytes(steps.events)
        if not self.finals and not events.strip(b"\0"):
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
                f"{self.suspected_resets} steps go from the final observation of a terminated episode to another "
                "observation: the environment resets by a step, which must not be stored (VectorRecorder leaves it out)"
            )

    def record_other(self, stream: int) -> None:
        """Record that something else than a round was written to a stream."""
        self.finals.pop(stream, None)

    def clear(self) -> None:
        """Forget the steps; what was counted and warned of stays."""
        self.finals.clear()
        self._splices.clear()

    def _warn(self, message: str) -> None:
        """Warn once a cause, where relive was called."""
        cause = message.lstrip("0123456789 ")
        if cause in self._warned:
            return
        self._warned.add(cause)
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
            level, frame = level + 1, frame.f_back
        warnings.warn(message, errors.MisuseWarning, stacklevel=level)


def _observation(steps: encoding.Steps, rows: Sequence[bytes], place: int) -> list[bytes]:
    """Return the bytes of the observation at a place among those of some steps, by block."""
    sizes = [len(block) // len(steps.streams) for block in rows[: len(steps.encoder.observation_blocks)]]
    return [rows[block][place * size : (place + 1) * size] for block, size in enumerate(sizes)]


def _is_ours(name: str) -> bool:
    return name.startswith("relive.") and not name.endswith("_test")
