"""Buffers made of what was saved, to look at them: which can be made here, and why others cannot."""

from typing import Any, TypeAlias

import relive
from relive import errors
from relive.common import validation
from relive.persistence import checkpointable
from relive.persistence import codec as codec_lib
from relive.persistence import files
from relive.persistence import journal_reader
from relive.persistence import recover
from relive.persistence import registry
from relive.persistence import state as state_lib
from relive.tools import wording

Buffer: TypeAlias = checkpointable.Checkpointable

_CLASSES = (
    "EpisodeReplayBuffer",
    "ItemReplayBuffer",
    "JointReplayBuffer",
    "PrioritizedReplayBuffer",
    "RingReplayBuffer",
    "SequenceReplayBuffer",
    "TokenReplayBuffer",
)


def why_not(values: dict[str, Any]) -> str:
    """Return why no buffer can be made of a state here, given its JSON values; nothing if one can."""
    name, settings = values.get("class"), values.get("settings")
    if name == "RolloutBuffer":
        return "its class, RolloutBuffer, has a rollout, and no steps in columns"
    if name not in _CLASSES or not hasattr(getattr(relive, name), "load"):
        return f"its class, {wording.plain(str(name))}, is none of those that relive brings"
    kinds = {
        each: str(value.get("kind"))
        for each, value in (settings.items() if isinstance(settings, dict) else ())
        if isinstance(value, dict)
    }
    unknown = [f"{each} is a {kind}" for each, kind in kinds.items() if registry.PARTS.find(kind) is None]
    if unknown:
        return f"{wording.plain(', '.join(unknown))}, a class that is not defined here"
    codec = values.get("codec")
    if name == "EpisodeReplayBuffer" and codec != codec_lib.PlainCodec().name:
        return f"its codec is {wording.plain(str(codec))}, of which the code is not in it"
    return ""


def loaded(path: str, name: str) -> Buffer:
    """Return the buffer of a checkpoint, of a class of that name, after it has checked all of itself.

    Raises:
        ReplayError: It cannot be made, or does not agree with itself.
    """
    buffer: Any = getattr(relive, name).load(path)
    buffer.check()
    answer: Buffer = buffer
    return answer


def rebuilt(path: str) -> tuple[Buffer | None, str]:
    """Return the buffer that a journal without a torn tail rebuilds, or None and why it is not rebuilt here.

    This is where a journal's buffer comes from, for every command. A torn tail `recover` would cut off.

    Raises:
        ReplayError: It cannot be made, or does not agree with itself.
    """
    first = next(journal_reader.records(path), None)
    if first is None:
        return None, "it holds no record"
    state = codec_lib.PlainCodec().decode(first.payload)
    if not isinstance(state, dict):
        raise errors.CheckpointError(f"a base must hold a state, got {validation.short_repr(state)}")
    reason = why_not(state)
    if reason:
        return None, reason
    try:
        with files.locked(path):
            pass
    except errors.CheckpointError as error:
        return None, str(error)
    buffer: Any = recover.recover(path)
    buffer.check()
    return buffer, ""


def state_of(buffer: Buffer) -> state_lib.State:
    """Return the state of a buffer that was rebuilt."""
    return buffer.state_dict()
