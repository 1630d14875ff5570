"""What `get_stats` of a buffer says, as curves in TensorBoard.

    with StatsWriter(buffer, "runs/cartpole") as stats:
        for step in range(steps):
            ...
            if step % 1_000 == 0:
                stats.write(step)

It needs the package tensorboard alone, neither TensorFlow nor PyTorch.
"""

from collections.abc import Mapping
import dataclasses
import os
import types
from typing import Any, Protocol, Self

from relive import errors
from relive.common import duplicates
from relive.common import imports
from relive.common import validation
from relive.persistence import files

with imports.optional_dependency("tensorboard"):
    from tensorboard import summary


class Observed(Protocol):
    """What has statistics: every buffer of relive, and the shells around them."""

    def get_stats(self) -> Any:
        """Return a dataclass of numbers."""
        ...


class ScalarWriter(Protocol):
    """What writes a number: `tensorboard.summary.Writer`, `torch.utils.tensorboard.SummaryWriter`, or your own."""

    def add_scalar(self, tag: str, value: float, step: int, /) -> object:
        """Write the value that a tag has at a step."""
        ...


def scalars(stats: Any) -> dict[str, float]:
    """Return the numbers among what `get_stats` says, its properties too, by name; what is None is left out.

    `open_ages` is left out: it has a name for each open episode.

    >>> import relive
    >>> from relive.integrations import tensorboard
    >>> buffer = relive.RingReplayBuffer(100, seed=0)
    >>> key = buffer.add(0.0, 1, 0.5, 0.1)
    >>> numbers = tensorboard.scalars(buffer.get_stats())
    >>> numbers["size"], numbers["never_drawn_share"], numbers["dropped/evicted"], "mean_drawn_age" in numbers
    (1, 1.0, 0, False)
    """
    names = [field.name for field in dataclasses.fields(stats)]
    names += [name for name, value in vars(type(stats)).items() if isinstance(value, property)]
    found: dict[str, float] = {}
    for name in names:
        value = getattr(stats, name)
        if isinstance(value, Mapping):
            found |= {} if name == "open_ages" else {f"{name}/{part}": number for part, number in value.items()}
        elif value is not None:
            found[name] = value
    return found


class StatsWriter(duplicates.NeverCopied):
    """Writes the statistics of one buffer, a curve for each number: `replay/size`, `replay/dropped/evicted`.

    TensorBoard keeps floats of 32 bits: counts above 16,777,216 are rounded there.

    Args:
        buffer: What has `get_stats`.
        writer: A directory for a file of its own; or a writer that you have already, which stays open.
        prefix: What the names begin with; another one for each buffer.

    Raises:
        ArgumentTypeError: An argument is of the wrong type.
        ArgumentError: The directory cannot be made.

    >>> import pathlib, tempfile
    >>> import relive
    >>> from relive.integrations import tensorboard
    >>> buffer = relive.RingReplayBuffer(100, seed=0)
    >>> key = buffer.add(0.0, 1, 0.5, 0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with tensorboard.StatsWriter(buffer, folder) as stats:
    ...         stats.write(step=1)
    ...     len(list(pathlib.Path(folder).glob("events.out.tfevents.*")))
    1
    """

    _INSTEAD = "make one where it is needed, with a directory of its own"

    def __init__(
        self, buffer: Observed, writer: str | os.PathLike[str] | ScalarWriter, *, prefix: str = "replay"
    ) -> None:
        if not callable(getattr(buffer, "get_stats", None)):
            raise errors.ArgumentTypeError(f"buffer must have get_stats, got {validation.short_repr(buffer)}")
        validation.require_instance("prefix", prefix, str)
        self._buffer = buffer
        self._prefix = prefix
        self._own: Any = None
        """The writer, if it is nobody else's."""
        if isinstance(writer, str | os.PathLike):
            try:
                os.makedirs(writer, exist_ok=True)
            except OSError as error:
                raise errors.ArgumentError(
                    f"writer must be a directory that can be made, got {validation.short_repr(writer)}: "
                    f"{files.reason(error)}"
                ) from error
            self._own = summary.Writer(os.fspath(writer))
        elif not callable(getattr(writer, "add_scalar", None)):
            raise errors.ArgumentTypeError(
                f"writer must be a directory or have add_scalar, got {validation.short_repr(writer)}"
            )
        self._writer: Any = self._own or writer

    def write(self, step: int) -> None:
        """Write what `get_stats` says now; the cost is that of `get_stats`, and of some 20 numbers in a file.

        Args:
            step: Where on the horizontal axis; at least 0.

        Raises:
            ArgumentError: `step` is no integer of at least 0.
            ClosedError: It was closed.
        """
        step = validation.non_negative_int("step", step)
        if self._writer is None:
            raise errors.ClosedError("write found the StatsWriter closed: make another one")
        for name, value in scalars(self._buffer.get_stats()).items():
            self._writer.add_scalar(f"{self._prefix}/{name}", value, step)

    def close(self) -> None:
        """Close the file of its own, if there is one, and write no more; closing twice is closing once."""
        if self._own is not None:
            self._own.close()
        self._own = self._writer = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        """Close."""
        self.close()
