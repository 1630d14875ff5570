"""Base class of the dataclasses that `get_stats` returns."""

from collections.abc import Mapping
import dataclasses
import math
from typing import Any, ClassVar


class Statistics:
    """A dataclass of numbers, with derived properties.

    Like all statistics it can be pickled and copied, and `dataclasses.asdict` makes of it what JSON can express.
    """

    __slots__ = ()

    _BY_EPISODE: ClassVar[tuple[str, ...]] = ()
    """Fields with a number for each episode: as scalars they would be a new name for each."""

    def scalars(self) -> dict[str, float]:
        """Return the finite numbers by name, properties included, for logging and plotting.

        None values are omitted. A mapping becomes one name for each of its numbers, after a slash; mappings by episode
        are omitted.

        >>> import relive
        >>> buffer = relive.RingReplayBuffer(100, seed=0)
        >>> key = buffer.add(0.0, 1, 0.5, 0.1)
        >>> numbers = buffer.get_stats().scalars()
        >>> numbers["size"], numbers["mean_draws"], numbers["dropped/evicted"], "max_policy_lag" in numbers
        (1, 0.0, 0, False)
        """
        own: Any = self
        names = [field.name for field in dataclasses.fields(own) if field.name not in self._BY_EPISODE]
        kinds = reversed(type(self).__mro__)
        names += [name for kind in kinds for name, value in vars(kind).items() if isinstance(value, property)]
        found: dict[str, float] = {}
        for name in names:
            value = getattr(self, name)
            if isinstance(value, Mapping):
                found |= {f"{name}/{part}": number for part, number in value.items()}
            elif value is not None:
                found[name] = value
        return {name: number for name, number in found.items() if math.isfinite(number)}
