"""What happens to a random generator when a draw fails."""

import types

import numpy as np


class Unmoved:
    """A block that leaves a generator where it was before, if it raises.

    Args:
        rng: The generator.
    """

    __slots__ = ("_bits", "_state")

    def __init__(self, rng: np.random.Generator) -> None:
        self._bits = rng.bit_generator

    def __enter__(self) -> None:
        self._state = self._bits.state

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: types.TracebackType | None
    ) -> None:
        if kind is not None:
            self._bits.state = self._state
