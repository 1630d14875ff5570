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
    limiter, admission = getattr(buffer, "limiter", None), getattr(buffer, "admission", None)
    if type(limiter) is rate_limiters.MinSize and limiter.min_size <= 1:
        limiter = None
    for name, rule in (("a limiter", limiter), ("admission", admission)):
        if rule is not None:
            raise errors.ArgumentError(
                f"make_buffer must return a buffer without {name}, which ShardedReplay.start takes, got {rule!r}"
            )
    if isinstance(buffer, column.ColumnReplayBuffer):
        return column_adapter.ColumnAdapter(buffer)
    if isinstance(buffer, buffer_lib.EpisodeReplayBuffer):
        return episode_adapter.EpisodeAdapter(buffer)
    if isinstance(buffer, token_buffer.TokenReplayBuffer):
        return token_adapter.TokenAdapter(buffer)
    raise errors.ArgumentTypeError(
        f"make_buffer must return a buffer of columns, episodes or tokens, got {type(buffer).__name__}"
    )
