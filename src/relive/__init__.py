"""relive: the replay memory of reinforcement learning, in pure Python on numpy alone.

Public names are imported lazily, on first use: `import relive` loads neither asyncio nor numpy before they are needed.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from relive import errors as errors
    from relive import integrations as integrations
    from relive import testing as testing
    from relive.agents.admission import Admission as Admission
    from relive.agents.admission import Ticket as Ticket
    from relive.agents.advantages import group_advantages as group_advantages
    from relive.agents.advantages import truncated_importance_weights as truncated_importance_weights
    from relive.agents.bias import EpisodeTotals as EpisodeTotals
    from relive.agents.bias import TrainingBias as TrainingBias
    from relive.agents.groups import Groups as Groups
    from relive.agents.packing import TokenBatch as TokenBatch
    from relive.agents.packing import micro_batches as micro_batches
    from relive.agents.token_buffer import TokenBufferStats as TokenBufferStats
    from relive.agents.token_buffer import TokenReplayBuffer as TokenReplayBuffer
    from relive.agents.token_store import EpisodeFacts as EpisodeFacts
    from relive.agents.tokens import TokenMismatch as TokenMismatch
    from relive.agents.tokens import TokenStep as TokenStep
    from relive.agents.tokens import TokenStepCodec as TokenStepCodec
    from relive.buffers.column import ColumnReplayBuffer as ColumnReplayBuffer
    from relive.buffers.column_stats import ColumnBufferStats as ColumnBufferStats
    from relive.buffers.hindsight import relabel as relabel
    from relive.buffers.item import ItemBufferStats as ItemBufferStats
    from relive.buffers.item import ItemReplayBuffer as ItemReplayBuffer
    from relive.buffers.mixture import MixtureSampler as MixtureSampler
    from relive.buffers.origins import RowOrigin as RowOrigin
    from relive.buffers.prioritized import PrioritizedReplayBuffer as PrioritizedReplayBuffer
    from relive.buffers.ring import RingReplayBuffer as RingReplayBuffer
    from relive.buffers.rollout import RolloutBuffer as RolloutBuffer
    from relive.buffers.sequence import SequenceReplayBuffer as SequenceReplayBuffer
    from relive.common.copies import copiers as copiers
    from relive.episodes.buffer import EpisodeReplayBuffer as EpisodeReplayBuffer
    from relive.episodes.buffer import EpisodeWriter as EpisodeWriter
    from relive.episodes.episode import Episode as Episode
    from relive.episodes.episode import EpisodeStatus as EpisodeStatus
    from relive.episodes.episode import FinalStatus as FinalStatus
    from relive.episodes.origins import SampleOrigin as SampleOrigin
    from relive.episodes.samplers import EpisodeSampler as EpisodeSampler
    from relive.episodes.samples import ReplaySample as ReplaySample
    from relive.episodes.samples import WindowEnd as WindowEnd
    from relive.episodes.store import EpisodeBufferStats as EpisodeBufferStats
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
    from relive.joint.batch import AgentBatch as AgentBatch
    from relive.joint.batch import JointBatch as JointBatch
    from relive.joint.batch import JointBufferStats as JointBufferStats
    from relive.joint.batch import JointSequenceBatch as JointSequenceBatch
    from relive.joint.buffer import JointReplayBuffer as JointReplayBuffer
    from relive.joint.buffer import JointSequenceReplayBuffer as JointSequenceReplayBuffer
    from relive.kernels.choice import use_kernels as use_kernels
    from relive.persistence.codec import Codec as Codec
    from relive.persistence.codec import PlainCodec as PlainCodec
    from relive.persistence.inspect import load as load
    from relive.persistence.inspect import repair as repair
    from relive.persistence.inspect import summary as summary
    from relive.persistence.inspect import verify as verify
    from relive.persistence.journal import EveryRecords as EveryRecords
    from relive.persistence.journal import EverySeconds as EverySeconds
    from relive.persistence.journal import Journal as Journal
    from relive.persistence.recover import recover as recover
    from relive.samplers.prioritized import PrioritizedSampler as PrioritizedSampler
    from relive.samplers.sampler import Draw as Draw
    from relive.samplers.sampler import Sampler as Sampler
    from relive.samplers.schedules import LinearSchedule as LinearSchedule
    from relive.samplers.schedules import Schedule as Schedule
    from relive.samplers.sum_tree import SumTree as SumTree
    from relive.samplers.uniform import UniformSampler as UniformSampler
    from relive.schema.schema import Field as Field
    from relive.schema.schema import Schema as Schema
    from relive.storage.memmap import MemmapStorage as MemmapStorage
    from relive.storage.memory import ColumnStorage as ColumnStorage
    from relive.storage.memory import Storage as Storage
    from relive.waiting.asynchronous import AsyncReplayBuffer as AsyncReplayBuffer
    from relive.waiting.rate_limiters import MinSize as MinSize
    from relive.waiting.rate_limiters import RateLimiter as RateLimiter
    from relive.waiting.rate_limiters import SampleToInsertRatio as SampleToInsertRatio
    from relive.waiting.threads import ThreadSafeReplayBuffer as ThreadSafeReplayBuffer
    from relive.windows.batches import SequenceBatch as SequenceBatch
    from relive.windows.batches import TransitionBatch as TransitionBatch
    from relive.windows.returns import compute_discounted_return as compute_discounted_return
    from relive.windows.sequences import EpisodeWindow as EpisodeWindow
    from relive.windows.sequences import SequenceWindow as SequenceWindow
    from relive.windows.transitions import TransitionWindow as TransitionWindow
else:  # Hidden from type checkers, which would otherwise accept any name.

    def __getattr__(name: str) -> object:
        """Import and return a public name or module (PEP 562)."""
        if name in _MODULES:
            value = getattr(importlib.import_module(f"relive.{_MODULES[name]}"), name)
            globals()[name] = value
            return value
        if name in _PUBLIC_MODULES:
            return importlib.import_module(f"relive.{name}")
        raise AttributeError(f"module 'relive' has no attribute {name!r}")


__version__ = "0.2.0"

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
    "EpisodeFacts",
    "EpisodeReplayBuffer",
    "EpisodeSampler",
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
    "JointSequenceBatch",
    "JointSequenceReplayBuffer",
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
    "copiers",
    "group_advantages",
    "load",
    "micro_batches",
    "recover",
    "relabel",
    "repair",
    "summary",
    "truncated_importance_weights",
    "use_kernels",
    "verify",
]

_MODULES = {
    "Admission": "agents.admission",
    "AgentBatch": "joint.batch",
    "ArgumentError": "errors",
    "ArgumentTypeError": "errors",
    "AsyncReplayBuffer": "waiting.asynchronous",
    "CheckpointError": "errors",
    "ClosedError": "errors",
    "Codec": "persistence.codec",
    "ColumnBufferStats": "buffers.column_stats",
    "ColumnReplayBuffer": "buffers.column",
    "ColumnStorage": "storage.memory",
    "CorruptionError": "errors",
    "Draw": "samplers.sampler",
    "Episode": "episodes.episode",
    "EpisodeBufferStats": "episodes.store",
    "EpisodeFacts": "agents.token_store",
    "EpisodeReplayBuffer": "episodes.buffer",
    "EpisodeSampler": "episodes.samplers",
    "EpisodeStatus": "episodes.episode",
    "EpisodeTotals": "agents.bias",
    "EpisodeWindow": "windows.sequences",
    "EpisodeWriter": "episodes.buffer",
    "EventLoopError": "errors",
    "EveryRecords": "persistence.journal",
    "EverySeconds": "persistence.journal",
    "Field": "schema.schema",
    "FinalStatus": "episodes.episode",
    "Groups": "agents.groups",
    "ItemBufferStats": "buffers.item",
    "ItemReplayBuffer": "buffers.item",
    "JointBatch": "joint.batch",
    "JointBufferStats": "joint.batch",
    "JointReplayBuffer": "joint.buffer",
    "JointSequenceBatch": "joint.batch",
    "JointSequenceReplayBuffer": "joint.buffer",
    "Journal": "persistence.journal",
    "LinearSchedule": "samplers.schedules",
    "MemmapStorage": "storage.memmap",
    "MinSize": "waiting.rate_limiters",
    "MissingExtraError": "errors",
    "MixtureSampler": "buffers.mixture",
    "NotReadyError": "errors",
    "OutOfRangeError": "errors",
    "PlainCodec": "persistence.codec",
    "PrioritizedReplayBuffer": "buffers.prioritized",
    "PrioritizedSampler": "samplers.prioritized",
    "RateLimiter": "waiting.rate_limiters",
    "ReplayError": "errors",
    "ReplaySample": "episodes.samples",
    "RingReplayBuffer": "buffers.ring",
    "RolloutBuffer": "buffers.rollout",
    "RowOrigin": "buffers.origins",
    "SampleOrigin": "episodes.origins",
    "SampleToInsertRatio": "waiting.rate_limiters",
    "Sampler": "samplers.sampler",
    "SamplerError": "errors",
    "Schedule": "samplers.schedules",
    "Schema": "schema.schema",
    "SchemaError": "errors",
    "SequenceBatch": "windows.batches",
    "SequenceReplayBuffer": "buffers.sequence",
    "SequenceWindow": "windows.sequences",
    "ShardLostError": "errors",
    "Storage": "storage.memory",
    "SumTree": "samplers.sum_tree",
    "ThreadSafeReplayBuffer": "waiting.threads",
    "Ticket": "agents.admission",
    "TokenBatch": "agents.packing",
    "TokenBufferStats": "agents.token_buffer",
    "TokenMismatch": "agents.tokens",
    "TokenReplayBuffer": "agents.token_buffer",
    "TokenStep": "agents.tokens",
    "TokenStepCodec": "agents.tokens",
    "TrainingBias": "agents.bias",
    "TransitionBatch": "windows.batches",
    "TransitionWindow": "windows.transitions",
    "UniformSampler": "samplers.uniform",
    "UnknownEpisodeError": "errors",
    "UnknownKeyError": "errors",
    "WindowEnd": "episodes.samples",
    "compute_discounted_return": "windows.returns",
    "copiers": "common.copies",
    "group_advantages": "agents.advantages",
    "load": "persistence.inspect",
    "micro_batches": "agents.packing",
    "recover": "persistence.recover",
    "relabel": "buffers.hindsight",
    "repair": "persistence.inspect",
    "summary": "persistence.inspect",
    "truncated_importance_weights": "agents.advantages",
    "use_kernels": "kernels.choice",
    "verify": "persistence.inspect",
}

_PUBLIC_MODULES = ("errors", "integrations", "testing")


def __dir__() -> list[str]:
    """Return the public names and modules, imported or not, and what every module has."""
    return sorted([*__all__, *_PUBLIC_MODULES, *(name for name in globals() if name.startswith("__"))])
