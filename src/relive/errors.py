"""Every error that relive raises on purpose.

::

    ReplayError
    ├── ArgumentError (ValueError)                an argument is invalid
    │   ├── ArgumentTypeError (TypeError)         an argument is of the wrong type
    │   ├── UnknownEpisodeError (KeyError)        no such episode is stored
    │   ├── UnknownKeyError (KeyError)            no row of that key is stored
    │   ├── OutOfRangeError (IndexError)          an index is out of range
    │   └── SchemaError                           a value does not fit its field
    ├── NotReadyError (ValueError, RuntimeError)  nothing can be returned yet
    ├── ClosedError (RuntimeError)                the buffer or journal is closed
    ├── EventLoopError (RuntimeError)             one buffer, two event loops
    ├── ShardLostError (ConnectionError)          a shard of a fleet does not return
    ├── SamplerError (RuntimeError)               a custom sampler drew what cannot be read
    ├── CorruptionError                           an invariant of a buffer does not hold
    ├── CheckpointError                           a save, load or journal failed
    └── MissingExtraError (ImportError)           an optional library is not installed

and MisuseWarning (UserWarning), for misuse that no single call shows.

A message is one line that names the thing, the rule and the value. A call that raised has changed nothing,
unless its docstring says otherwise. If a filter turns a MisuseWarning into an error, the call has taken effect.
"""


class ReplayError(Exception):
    """The base of every error that relive raises on purpose, but for those of Python itself, such as AttributeError."""

    def __str__(self) -> str:
        """Return the message, on one line whatever it quotes, and unquoted, which KeyError would quote."""
        return " ".join(Exception.__str__(self).splitlines())


class ArgumentError(ReplayError, ValueError):
    """An argument is invalid, or the call does not fit the current state."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument is of the wrong type.

    It is both a TypeError and, like every ArgumentError, a ValueError.
    """


class UnknownEpisodeError(ArgumentError, KeyError):
    """No episode of that name is stored: it never was, or it was evicted or cleared."""


class UnknownKeyError(ArgumentError, KeyError):
    """No row of that key is stored: it never was, or it was overwritten or cleared; or a batch has no such field."""


class OutOfRangeError(ArgumentError, IndexError):
    """An index is out of range."""


class SchemaError(ArgumentError):
    """A value does not fit its field."""


class NotReadyError(ReplayError, ValueError, RuntimeError):
    """The data that was requested is not available yet; the awaited form of the call, if there is one, waits for it."""


class ClosedError(ReplayError, RuntimeError):
    """The buffer, journal or memory map is closed: it can no longer be written to or waited for."""


class EventLoopError(ReplayError, RuntimeError):
    """A buffer that belongs to one event loop was awaited in another."""


class ShardLostError(ReplayError, ConnectionError):
    """A shard of a fleet does not respond: its process has died or hangs, or its machine is unreachable."""


class SamplerError(ReplayError, RuntimeError):
    """A custom sampler returned an invalid draw."""


class CorruptionError(ReplayError):
    """An invariant of a buffer does not hold."""


class CheckpointError(ReplayError):
    """A buffer cannot be saved, journaled or read back."""


class MissingExtraError(ReplayError, ImportError):
    """An optional library is not installed."""


class MisuseWarning(UserWarning):
    """A buffer appears to be misused, as where steps do not follow each other, or resets are stored as steps."""
