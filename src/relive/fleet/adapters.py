"""The adapter of each kind of buffer."""

from typing import Any, TypeAlias

from relive import errors
from relive.agents import token_buffer
from relive.buffers import column
from relive.episodes import buffer as buffer_lib
from relive.fleet import adapter
from relive.fleet import column_adapter
from relive.fleet import episode_adapter
from relive.fleet import token_adapter
from relive.waiting import rate_limiters

Buffer: TypeAlias = (
    column.ColumnReplayBuffer[Any] | buffer_lib.EpisodeReplayBuffer[Any, Any] | token_buffer.TokenReplayBuffer
)


def adapter_of(buffer: Any) -> adapter.Adapter:
    """Return the adapter of a buffer.

    Raises:
        ArgumentTypeError: It is not a supported buffer.
        ArgumentError: The buffer has a rate limiter or an admission, which would not cover the other shards.
    """
    found: adapter.Adapter
    if isinstance(buffer, column.ColumnReplayBuffer):
        found = column_adapter.ColumnAdapter(buffer)
    elif isinstance(buffer, buffer_lib.EpisodeReplayBuffer):
        found = episode_adapter.EpisodeAdapter(buffer)
    elif isinstance(buffer, token_buffer.TokenReplayBuffer):
        found = token_adapter.TokenAdapter(buffer)
    else:
        raise errors.ArgumentTypeError(
            f"make_buffer must return a buffer of columns, episodes or tokens, got {type(buffer).__name__}"
        )
    limiter = getattr(buffer, "limiter", None)
    if limiter is not None and (type(limiter) is not rate_limiters.MinSize or limiter.min_size > 1):
        raise errors.ArgumentError(
            f"make_buffer must return a buffer without a limiter, which ShardedReplay.start takes, got {limiter!r}"
        )
    admission = getattr(buffer, "admission", None)
    if admission is not None:
        raise errors.ArgumentError(
            f"make_buffer must return a buffer without admission, which ShardedReplay.start takes, got {admission!r}"
        )
    return found
