"""The port of each kind of buffer."""

from typing import Any, TypeAlias

from relive import errors
from relive.buffers import column
from relive.episodes import buffer as buffer_lib
from relive.fleet import column_port
from relive.fleet import episode_port
from relive.fleet import port
from relive.waiting import rate_limiters

Buffer: TypeAlias = column.ColumnReplayBuffer[Any] | buffer_lib.EpisodeReplayBuffer[Any, Any]


def port_of(buffer: Any) -> port.Port:
    """Return the port of a buffer.

    Raises:
        ArgumentTypeError: It is not a supported buffer.
        ArgumentError: The buffer has a rate limiter, an admission or groups, which would not cover the other shards.
    """
    answer: port.Port
    if isinstance(buffer, column.ColumnReplayBuffer):
        answer, limiter = column_port.ColumnPort(buffer), buffer.limiter
    elif isinstance(buffer, buffer_lib.EpisodeReplayBuffer):
        answer, limiter = episode_port.EpisodePort(buffer), buffer.limiter
        for name, setting in (("admission", buffer.admission), ("groups", buffer.groups)):
            if setting is not None:
                raise errors.ArgumentError(
                    f"make_buffer must return a buffer without {name}, which are for one process, got {setting!r}"
                )
    else:
        raise errors.ArgumentTypeError(
            f"make_buffer must return a buffer of columns or of episodes, got {type(buffer).__name__}"
        )
    if type(limiter) is not rate_limiters.MinSize or limiter.min_size > 1:
        raise errors.ArgumentError(
            f"make_buffer must return a buffer without a limiter, which ShardedReplay.start takes, got {limiter!r}"
        )
    return answer
