"""Misuse that no single call shows: recorded while steps are written, and warned of once.

spliced steps     a step that does not begin where the one before it ended: a shuffled stream, a wrong stream=
reset steps       a step from the final observation of an episode that terminated to the first of the next one:
a vector environment resets by a step of its own, which is no experience
"""

import collections
from collections.abc import Callable, Iterator
import contextlib
import sys
import warnings

import numpy as np

from relive import errors
from relive.common import arrays

_LAST_STEPS = 200
_FEWEST_RESETS = 10

Bytes = Callable[[int], bytes]
"""The bytes of the observation at a place of a call."""


class Watch:
    """Counts what looks like misuse of one buffer.

    Attributes:
        suspected_resets: Steps of `extend` that look like resets.
    """

    def __init__(self) -> None:
        self.suspected_resets = 0
        self._ends = 0
        self.finals: dict[int, bytes] = {}
        """The final observations of the episodes that terminated with the newest step of their streams."""
        self._splices: collections.deque[int] = collections.deque(maxlen=_LAST_STEPS // 2 + 1)
        self._warned: set[str] = set()
        self._held: list[str] | None = None

    def record_splices(self, count: int, inserted: int) -> None:
        """Record that so many of the newest steps were spliced, with so many steps inserted so far."""
        self._splices.extend([inserted] * count)
        if len(self._splices) == self._splices.maxlen and inserted - self._splices[0] < _LAST_STEPS:
            self._warn(
                f"more than half of the last {_LAST_STEPS} steps did not begin where the one before them ended: "
                "add the steps of each environment in order, to a stream of its own"
            )

    def record_round(
        self,
        streams: arrays.Ints,
        observation: Bytes,
        next_observation: Bytes | None,
        terminated: arrays.Bools,
        ended: arrays.Bools,
    ) -> None:
        """Record a step for each of some streams [k], as `extend` adds them.

        Args:
            streams: Where they went [k].
            observation: What they begin with.
            next_observation: What came after them; None if that is not known.
            terminated: Whether an episode terminated with the step [k].
            ended: Whether an episode ended with it [k].
        """
        if self.finals:
            for place in np.flatnonzero(np.isin(streams, list(self.finals))).tolist():
                final = self.finals.pop(int(streams[place]))
                if next_observation is not None and observation(place) == final != next_observation(place):
                    self.suspected_resets += 1
        if next_observation is not None:
            for place in np.flatnonzero(terminated).tolist():
                self.finals[int(streams[place])] = next_observation(place)
        self._ends += int(np.count_nonzero(ended))
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

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Warn at the end of the block, when all steps of a call are stored."""
        self._held = []
        try:
            yield
        finally:
            messages, self._held = self._held, None
        for message in messages:
            self._emit(message)

    def _warn(self, message: str) -> None:
        """Warn once a cause."""
        cause = message.lstrip("0123456789 ")
        if cause in self._warned:
            return
        self._warned.add(cause)
        if self._held is None:
            self._emit(message)
        else:
            self._held.append(message)

    def _emit(self, message: str) -> None:
        """Warn where relive was called."""
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
            level, frame = level + 1, frame.f_back
        warnings.warn(message, errors.MisuseWarning, stacklevel=level)


def _is_ours(name: str) -> bool:
    return (name.startswith("relive.") and not name.endswith("_test")) or name == "contextlib"
