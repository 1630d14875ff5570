"""When what a journal has appended is on the disk: "always" at once, every n records, every t seconds, or "never"."""

import dataclasses
import threading
from typing import Literal, TypeAlias

from relive import errors
from relive.common import validation


@dataclasses.dataclass(frozen=True)
class EveryRecords:
    """Syncs after so many records, in the call that appends the last of them."""

    count: int

    def __post_init__(self) -> None:
        """Checks the count, which is at least 1."""
        validation.integer_of_at_least_one("count", self.count)


@dataclasses.dataclass(frozen=True)
class EverySeconds:
    """Syncs after so many seconds while there is something to sync, in a thread of its own: no append waits for it."""

    seconds: float

    def __post_init__(self) -> None:
        """Checks the seconds, which are above 0 and no longer than a thread can wait."""
        if not 0 < validation.finite_number("seconds", self.seconds) <= threading.TIMEOUT_MAX:
            raise errors.ArgumentError(
                f"seconds must be above 0 and at most {threading.TIMEOUT_MAX:.0f}, got {validation.shown(self.seconds)}"
            )


Policy: TypeAlias = Literal["always", "never"] | EveryRecords | EverySeconds


def check(fsync: object) -> None:
    """Raises ArgumentError if `fsync` is no policy."""
    is_word = isinstance(fsync, str) and fsync in ("always", "never")
    if not is_word and not isinstance(fsync, EveryRecords | EverySeconds):
        raise errors.ArgumentError(
            f"fsync must be 'always', 'never', EveryRecords(n) or EverySeconds(t), got {validation.shown(fsync)}"
        )


def most_unsynced(fsync: Policy) -> int:
    """Answers how many records a policy leaves unsynced, plus one: with so many, an append syncs."""
    if isinstance(fsync, EveryRecords):
        return int(fsync.count)
    return 1 if fsync == "always" else validation.LARGEST
