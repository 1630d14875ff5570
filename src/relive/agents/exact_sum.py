"""A running sum of floats without rounding: what is added, in any order, gives what `math.fsum` gives of all at once.

    terms     [2^-60, 1.0, 2^70]     floats whose exact sum is the sum, none of which overlap: a few, however many came

Each new number is added to the terms one after the other, and what was rounded off stays as a term of its own
(Shewchuk 1997, "Adaptive precision floating-point arithmetic and fast robust geometric predicates").
"""

from collections.abc import Iterable
import math


class ExactSum:
    """The sum of the floats that were added.

    Args:
        terms: Those of another one, to go on from.

    >>> from relive.agents import exact_sum
    >>> total = exact_sum.ExactSum()
    >>> for number in (1e16, 1.0, -1e16):
    ...     total.add(number)
    >>> total.value
    1.0
    """

    def __init__(self, terms: Iterable[float] = ()) -> None:
        self.terms = list(terms)
        """Floats whose sum it is, and that a twin can be made of."""

    def add(self, number: float) -> None:
        """Adds a number. What is too large for a float makes the sum infinite for good. O(terms), of which few are."""
        kept = 0
        for term in self.terms:
            larger, smaller = (number, term) if abs(number) >= abs(term) else (term, number)
            number = larger + smaller
            rest = smaller - (number - larger)
            if not math.isfinite(number):
                break
            if rest:
                self.terms[kept] = rest
                kept += 1
        if not math.isfinite(number):
            kept = 0
        self.terms[kept:] = [number]

    @property
    def value(self) -> float:
        """The sum, rounded once."""
        return math.fsum(self.terms)
