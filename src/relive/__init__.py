"""relive: the replay memory of reinforcement learning, in pure Python on numpy alone.

A name is imported when it is first used: who only trains does not wait for asyncio, nor who only acts for the columns.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from relive.aio import AsyncReplayBuffer as AsyncReplayBuffer
    from relive.batches import SequenceBatch as SequenceBatch
    from relive.batches import TransitionBatch as TransitionBatch
    from relive.codecs import Codec as Codec
    from relive.codecs import PlainCodec as PlainCodec
    from relive.column_buffer import ColumnReplayBuffer as ColumnReplayBuffer
    from relive.column_stats import ColumnBufferStats as ColumnBufferStats
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
    from relive.errors import OutOfRangeError as OutOfRangeError
    from relive.errors import ReplayError as ReplayError
    from relive.errors import SamplerError as SamplerError
    from relive.errors import SchemaError as SchemaError
    from relive.errors import ShardLostError as ShardLostError
    from relive.errors import UnknownEpisodeError as UnknownEpisodeError
    from relive.errors import UnknownKeyError as UnknownKeyError
    from relive.explain import RowOrigin as RowOrigin
    from relive.explain import SampleOrigin as SampleOrigin
    from relive.fsync_policy import EveryRecords as EveryRecords
    from relive.fsync_policy import EverySeconds as EverySeconds
    from relive.hindsight import relabel as relabel
    from relive.item_buffer import ItemBufferStats as ItemBufferStats
    from relive.item_buffer import ItemReplayBuffer as ItemReplayBuffer
    from relive.joint.joint_batch import AgentBatch as AgentBatch
    from relive.joint.joint_batch import JointBatch as JointBatch
    from relive.joint.joint_buffer import JointReplayBuffer as JointReplayBuffer
    from relive.joint.joint_stats import JointBufferStats as JointBufferStats
    from relive.journal import Journal as Journal
    from relive.learner.admission import Admission as Admission
    from relive.learner.admission import Ticket as Ticket
    from relive.learner.groups import Groups as Groups
    from relive.learner.training_bias import EpisodeTotals as EpisodeTotals
    from relive.learner.training_bias import TrainingBias as TrainingBias
    from relive.limiters import MinSize as MinSize
    from relive.limiters import RateLimiter as RateLimiter
    from relive.limiters import SampleToInsertRatio as SampleToInsertRatio
    from relive.mapped_storage import MemmapStorage as MemmapStorage
    from relive.mixture import MixtureSampler as MixtureSampler
    from relive.n_step import ReplaySample as ReplaySample
    from relive.n_step import WindowEnd as WindowEnd
    from relive.prioritized_buffer import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from relive.prioritized_sampler import PrioritizedSampler as PrioritizedSampler
    from relive.recovery import recover as recover
    from relive.returns import compute_discounted_return as compute_discounted_return
    from relive.ring_buffer import RingReplayBuffer as RingReplayBuffer
    from relive.rollout_buffer import RolloutBuffer as RolloutBuffer
    from relive.samplers import Draw as Draw
    from relive.samplers import Sampler as Sampler
    from relive.samplers import UniformSampler as UniformSampler
    from relive.schedules import LinearSchedule as LinearSchedule
    from relive.schedules import Schedule as Schedule
    from relive.schema import Field as Field
    from relive.schema import Schema as Schema
    from relive.sequence_buffer import SequenceReplayBuffer as SequenceReplayBuffer
    from relive.storage import ColumnStorage as ColumnStorage
    from relive.storage import Storage as Storage
    from relive.sum_tree import SumTree as SumTree
    from relive.threads import ThreadSafeReplayBuffer as ThreadSafeReplayBuffer
    from relive.tokens.token_batch import TokenBatch as TokenBatch
    from relive.tokens.token_buffer import TokenReplayBuffer as TokenReplayBuffer
    from relive.tokens.token_codec import TokenStepCodec as TokenStepCodec
    from relive.tokens.token_episode import TokenMismatch as TokenMismatch
    from relive.tokens.token_stats import TokenBufferStats as TokenBufferStats
    from relive.tokens.token_step import TokenStep as TokenStep
    from relive.windows import EpisodeWindow as EpisodeWindow
    from relive.windows import SequenceWindow as SequenceWindow
    from relive.windows import TransitionWindow as TransitionWindow
else:  # A type checker that saw this would take any name for one of ours.

    def __getattr__(name: str) -> object:
        """Answers a public name, or a module that has some (PEP 562)."""
        if name in _MODULES:
            value = getattr(importlib.import_module(f"relive.{_MODULES[name]}"), name)
            globals()[name] = value
            return value
        if name in _MODULES.values():
            return importlib.import_module(f"relive.{name}")
        raise AttributeError(f"module 'relive' has no attribute {name!r}")


__version__ = "0.1.0"

__all__ = [
    "Admission",
    "AgentBatch",
    "ArgumentError",
    "ArgumentTypeError",
    "AsyncReplayBuffer",
    "CheckpointError",
    "ClosedError",
    "Codec",
    "ColumnBufferStats",
    "ColumnReplayBuffer",
    "ColumnStorage",
    "CorruptionError",
    "Draw",
    "Episode",
    "EpisodeBufferStats",
    "EpisodeReplayBuffer",
    "EpisodeStatus",
    "EpisodeTotals",
    "EpisodeWindow",
    "EpisodeWriter",
    "EventLoopError",
    "EveryRecords",
    "EverySeconds",
    "Field",
    "FinalStatus",
    "Groups",
    "ItemBufferStats",
    "ItemReplayBuffer",
    "JointBatch",
    "JointBufferStats",
    "JointReplayBuffer",
    "Journal",
    "LinearSchedule",
    "MemmapStorage",
    "MinSize",
    "MissingExtraError",
    "MixtureSampler",
    "NotReadyError",
    "OutOfRangeError",
    "PlainCodec",
    "PrioritizedReplayBuffer",
    "PrioritizedSampler",
    "RateLimiter",
    "ReplayError",
    "ReplaySample",
    "RingReplayBuffer",
    "RolloutBuffer",
    "RowOrigin",
    "SampleOrigin",
    "SampleToInsertRatio",
    "Sampler",
    "SamplerError",
    "Schedule",
    "Schema",
    "SchemaError",
    "SequenceBatch",
    "SequenceReplayBuffer",
    "SequenceWindow",
    "ShardLostError",
    "Storage",
    "SumTree",
    "ThreadSafeReplayBuffer",
    "Ticket",
    "TokenBatch",
    "TokenBufferStats",
    "TokenMismatch",
    "TokenReplayBuffer",
    "TokenStep",
    "TokenStepCodec",
    "TrainingBias",
    "TransitionBatch",
    "TransitionWindow",
    "UniformSampler",
    "UnknownEpisodeError",
    "UnknownKeyError",
    "WindowEnd",
    "compute_discounted_return",
    "recover",
    "relabel",
]

_MODULES = {
    "Admission": "learner.admission",
    "AgentBatch": "joint.joint_batch",
    "ArgumentError": "errors",
    "ArgumentTypeError": "errors",
    "AsyncReplayBuffer": "aio",
    "CheckpointError": "errors",
    "ClosedError": "errors",
    "Codec": "codecs",
    "ColumnBufferStats": "column_stats",
    "ColumnReplayBuffer": "column_buffer",
    "ColumnStorage": "storage",
    "CorruptionError": "errors",
    "Draw": "samplers",
    "Episode": "episode",
    "EpisodeBufferStats": "episode_stats",
    "EpisodeReplayBuffer": "episode_buffer",
    "EpisodeStatus": "episode",
    "EpisodeTotals": "learner.training_bias",
    "EpisodeWindow": "windows",
    "EpisodeWriter": "episode_buffer",
    "EventLoopError": "errors",
    "EveryRecords": "fsync_policy",
    "EverySeconds": "fsync_policy",
    "Field": "schema",
    "FinalStatus": "episode",
    "Groups": "learner.groups",
    "ItemBufferStats": "item_buffer",
    "ItemReplayBuffer": "item_buffer",
    "JointBatch": "joint.joint_batch",
    "JointBufferStats": "joint.joint_stats",
    "JointReplayBuffer": "joint.joint_buffer",
    "Journal": "journal",
    "LinearSchedule": "schedules",
    "MemmapStorage": "mapped_storage",
    "MinSize": "limiters",
    "MissingExtraError": "errors",
    "MixtureSampler": "mixture",
    "NotReadyError": "errors",
    "OutOfRangeError": "errors",
    "PlainCodec": "codecs",
    "PrioritizedReplayBuffer": "prioritized_buffer",
    "PrioritizedSampler": "prioritized_sampler",
    "RateLimiter": "limiters",
    "ReplayError": "errors",
    "ReplaySample": "n_step",
    "RingReplayBuffer": "ring_buffer",
    "RolloutBuffer": "rollout_buffer",
    "RowOrigin": "explain",
    "SampleOrigin": "explain",
    "SampleToInsertRatio": "limiters",
    "Sampler": "samplers",
    "SamplerError": "errors",
    "Schedule": "schedules",
    "Schema": "schema",
    "SchemaError": "errors",
    "SequenceBatch": "batches",
    "SequenceReplayBuffer": "sequence_buffer",
    "SequenceWindow": "windows",
    "ShardLostError": "errors",
    "Storage": "storage",
    "SumTree": "sum_tree",
    "ThreadSafeReplayBuffer": "threads",
    "Ticket": "learner.admission",
    "TokenBatch": "tokens.token_batch",
    "TokenBufferStats": "tokens.token_stats",
    "TokenMismatch": "tokens.token_episode",
    "TokenReplayBuffer": "tokens.token_buffer",
    "TokenStep": "tokens.token_step",
    "TokenStepCodec": "tokens.token_codec",
    "TrainingBias": "learner.training_bias",
    "TransitionBatch": "batches",
    "TransitionWindow": "windows",
    "UniformSampler": "samplers",
    "UnknownEpisodeError": "errors",
    "UnknownKeyError": "errors",
    "WindowEnd": "n_step",
    "compute_discounted_return": "returns",
    "recover": "recovery",
    "relabel": "hindsight",
}


def __dir__() -> list[str]:
    """Answers what is there, imported or not."""
    return sorted({*globals(), *__all__})
