"""How numbers are spread that may be too many for memory: least, quartiles, mean and most."""

from collections.abc import Iterable
import dataclasses
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from relive.common import arrays

MOST_KEPT = 1 << 20
"""So many values are kept, about; of more the quartiles are those of a fair share."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distribution:
    """How finite numbers are spread; the numbers are None where there is none.

    Attributes:
        count: How many finite numbers there are.
        num_not_finite: How many are infinite or NaN; nothing else here knows of them.
        least: The least of all.
        mean: Of all.
        most: The most of all.
        kept: All numbers if they are not more than about a million, else a share of them, in their order [kept].
    """

    count: int
    num_not_finite: int
    least: float | None
    mean: float | None
    most: float | None
    kept: arrays.Floats = dataclasses.field(repr=False)

    @functools.cached_property
    def quartiles(self) -> tuple[float, float, float] | None:
        """A quarter, half and three quarters of the numbers kept are at most that much."""
        if not len(self.kept):
            return None
        lower, median, upper = np.quantile(self.kept, (0.25, 0.5, 0.75), method="inverted_cdf").tolist()
        return lower, median, upper

    def as_json(self) -> dict[str, Any]:
        """Return all of it but for the numbers kept."""
        lower, median, upper = self.quartiles or (None, None, None)
        return {
            "count": self.count,
            "not_finite": self.num_not_finite,
            "min": self.least,
            "q1": lower,
            "median": median,
            "q3": upper,
            "max": self.most,
            "mean": self.mean,
        }


def of(parts: Iterable[npt.NDArray[Any]], total: int) -> Distribution:
    """Return how the numbers in `parts` are spread, of which there are `total`; memory is for a part and those kept.

    Of more than `MOST_KEPT` each is kept with the same chance, drawn from a generator with a fixed seed: the same
    numbers give the same answer.

    >>> import numpy as np
    >>> from relive.cli import distribution
    >>> distribution.of([np.array([3, 1]), np.array([2])], 3).as_json()["median"]
    2.0
    """
    rng = np.random.default_rng(0)
    share = min(1.0, MOST_KEPT / max(total, 1))
    count = num_not_finite = 0
    least, most, mean = np.inf, -np.inf, 0.0
    kept: list[arrays.Floats] = [np.zeros(0)]
    for part in parts:
        numbers: arrays.Floats = part.astype(np.float64).reshape(-1)
        finite = numbers[np.isfinite(numbers)]
        num_not_finite += len(numbers) - len(finite)
        if not len(finite):
            continue
        count += len(finite)
        least, most = min(least, float(finite.min())), max(most, float(finite.max()))
        mean += float(np.sum((finite - mean) / count))
        kept.append(finite if share == 1.0 else finite[rng.random(len(finite)) < share])
    if not count:
        least_most_mean: tuple[float | None, ...] = (None, None, None)
    else:
        least_most_mean = (least, most, min(max(mean, least), most))
    least_found, most_found, mean_found = least_most_mean
    return Distribution(
        count=count,
        num_not_finite=num_not_finite,
        least=least_found,
        mean=mean_found,
        most=most_found,
        kept=np.concatenate(kept),
    )
