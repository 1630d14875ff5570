"""Every error that relive raises on purpose.

    ReplayError
    ├── ArgumentError (ValueError)                an argument breaks a rule
    │   ├── ArgumentTypeError (TypeError)         an argument is of the wrong type
    │   ├── UnknownEpisodeError (KeyError)        no such episode is stored
    │   ├── UnknownKeyError (KeyError)            no row of that key is stored
    │   ├── OutOfRangeError (IndexError)          an index names nothing there is
    │   └── SchemaError                           a value does not fit its field
    ├── NotReadyError (ValueError, RuntimeError)  what was asked for is not there yet
    ├── ClosedError (RuntimeError)                the buffer was closed
    ├── EventLoopError (RuntimeError)             one buffer, two event loops
    ├── ShardLostError (ConnectionError)          a shard of a fleet does not return
    ├── SamplerError (RuntimeError)               a custom sampler drew what cannot be read
    ├── CorruptionError                           an invariant of a buffer does not hold
    ├── CheckpointError                           a saved buffer cannot be read back
    └── MissingExtraError (ImportError)           an optional library is not installed

and MisuseWarning (UserWarning), which tells of what no single call shows.

A message is one line that names the thing, the rule and the value. A call that raised has changed nothing.
"""


class ReplayError(Exception):
    """The base of every error that relive raises on purpose."""

    def __str__(self) -> str:
        """Return the message as it was written, also where KeyError would quote it."""
        return Exception.__str__(self)


class ArgumentError(ReplayError, ValueError):
    """An argument breaks a rule, or the call does not fit the state of what it names."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument is of the wrong type.

    It is a TypeError, as Python has it, and a ValueError, as every refused argument is: one `except` catches both.
    """


class UnknownEpisodeError(ArgumentError, KeyError):
    """No episode of that name is stored: it never was, or it was evicted or cleared."""


class UnknownKeyError(ArgumentError, KeyError):
    """No row of that key is stored: it never was, or it was overwritten or cleared."""


class OutOfRangeError(ArgumentError, IndexError):
    """An index names nothing there is."""


class SchemaError(ArgumentError):
    """A value does not fit the field that it was meant for."""


class NotReadyError(ReplayError, ValueError, RuntimeError):
    """What was asked for is not there yet; the awaited form of the same call waits for it."""


class ClosedError(ReplayError, RuntimeError):
    """The buffer was closed: nobody can write to it or wait for it any more."""


class EventLoopError(ReplayError, RuntimeError):
    """A buffer that belongs to one event loop was awaited from another."""


class ShardLostError(ReplayError, ConnectionError):
    """A shard of a fleet does not return: its process has died or hangs, or its machine cannot be reached."""


class SamplerError(ReplayError, RuntimeError):
    """A custom sampler drew something that cannot be read."""


class CorruptionError(ReplayError):
    """An invariant of a buffer does not hold."""


class CheckpointError(ReplayError):
    """A saved buffer cannot be read back."""


class MissingExtraError(ReplayError, ImportError):
    """An optional library is not installed."""


class MisuseWarning(UserWarning):
    """A buffer is used in a way that looks wrong: its steps do not follow each other, or resets are stored as steps."""
