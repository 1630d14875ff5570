"""A curve: what a call costs at one size after the other, all of which take turns in one run."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import TypeAlias

from relive.bench import contestants

Line: TypeAlias = Callable[[int], contestants.Contestant]
"""Returns a contestant of that size; raise CannotError where it does not fit."""

_QUICK_SIZES = (1_000, 3_000, 10_000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curve:
    """One picture of growth.

    Attributes:
        name: What the command calls it.
        family: A name for this and its like.
        title: What the tables call it.
        part: What the sizes count.
        lines: Who is measured, by the name of the peer.
        sizes: From the smallest on.
    """

    name: str
    family: str
    title: str
    part: str
    lines: Mapping[str, Line]
    sizes: Sequence[int]

    @property
    def unit(self) -> str:
        """What the values of the table are."""
        return "microseconds a batch"

    def quick(self) -> "Curve":
        """Return the same at small sizes."""
        return dataclasses.replace(self, sizes=_QUICK_SIZES)
