"""The adapter of each kind of buffer."""

from typing import Any, TypeAlias

from relive import errors
from relive.buffers import column
from relive.episodes import buffer as buffer_lib
from relive.fleet import adapter
from relive.fleet import column_adapter
from relive.fleet import episode_adapter
from relive.waiting import rate_limiters

Buffer: TypeAlias = column.ColumnReplayBuffer[Any] | buffer_lib.EpisodeReplayBuffer[Any, Any]


def adapter_of(buffer: Any) -> adapter.Adapter:
    """Return the adapter of a buffer.

    Raises:
        ArgumentTypeError: It is not a supported buffer.
        ArgumentError: The buffer has a rate limiter, an admission or groups, which would not cover the other shards.
    """
    found: adapter.Adapter
    if isinstance(buffer, column.ColumnReplayBuffer):
        found, limiter = column_adapter.ColumnAdapter(buffer), buffer.limiter
    elif isinstance(buffer, buffer_lib.EpisodeReplayBuffer):
        found, limiter = episode_adapter.EpisodeAdapter(buffer), buffer.limiter
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
    return found
