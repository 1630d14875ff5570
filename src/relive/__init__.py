"""relive: the replay memory of reinforcement learning, in pure Python on numpy alone."""

from relive.episode import Episode as Episode
from relive.episode import EpisodeStatus as EpisodeStatus
from relive.episode import FinalStatus as FinalStatus
from relive.episode_buffer import EpisodeReplayBuffer as EpisodeReplayBuffer
from relive.episode_buffer import EpisodeWriter as EpisodeWriter
from relive.episode_stats import EpisodeBufferStats as EpisodeBufferStats
from relive.errors import ArgumentError as ArgumentError
from relive.errors import ArgumentTypeError as ArgumentTypeError
from relive.errors import CheckpointError as CheckpointError
from relive.errors import ClosedError as ClosedError
from relive.errors import CorruptionError as CorruptionError
from relive.errors import EventLoopError as EventLoopError
from relive.errors import MissingExtraError as MissingExtraError
from relive.errors import NotReadyError as NotReadyError
from relive.errors import ReplayError as ReplayError
from relive.errors import SamplerError as SamplerError
from relive.errors import SchemaError as SchemaError
from relive.errors import UnknownEpisodeError as UnknownEpisodeError
from relive.limiters import MinSize as MinSize
from relive.limiters import RateLimiter as RateLimiter
from relive.limiters import SampleToInsertRatio as SampleToInsertRatio
from relive.n_step import ReplaySample as ReplaySample
from relive.n_step import WindowEnd as WindowEnd
from relive.returns import compute_discounted_return as compute_discounted_return

__version__ = "0.1.0"

__all__ = [
    "ArgumentError",
    "ArgumentTypeError",
    "CheckpointError",
    "ClosedError",
    "CorruptionError",
    "Episode",
    "EpisodeBufferStats",
    "EpisodeReplayBuffer",
    "EpisodeStatus",
    "EpisodeWriter",
    "EventLoopError",
    "FinalStatus",
    "MinSize",
    "MissingExtraError",
    "NotReadyError",
    "RateLimiter",
    "ReplayError",
    "ReplaySample",
    "SampleToInsertRatio",
    "SamplerError",
    "SchemaError",
    "UnknownEpisodeError",
    "WindowEnd",
    "compute_discounted_return",
]
