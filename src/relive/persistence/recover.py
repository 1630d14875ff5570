"""Rebuilds a buffer from its journal.

segment 0   base  record  record  record      loaded from the base; each record is replayed
segment 4   base  record  record              the base is skipped: its contents are known
"""

from collections.abc import Callable, Iterator
import itertools
import os
import typing
from typing import Any, TypeVar, overload

from relive import errors
from relive.common import claims
from relive.common import validation
from relive.persistence import checkpoint as checkpoint_lib
from relive.persistence import checkpointable
from relive.persistence import codec as codec_lib
from relive.persistence import files
from relive.persistence import journal_reader
from relive.persistence import repair
from relive.persistence import settings
from relive.persistence import state as state_lib

BufferT = TypeVar("BufferT", bound=checkpointable.Journalable)


@overload
def recover(
    path: str | os.PathLike[str],
    *,
    buffer_class: type[BufferT],
    checkpoint: str | os.PathLike[str] | None = None,
    codec: codec_lib.Codec | None = None,
    progress: state_lib.Progress | None = None,
    **instead: Any,
) -> BufferT: ...


@overload
def recover(
    path: str | os.PathLike[str],
    *,
    buffer_class: None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    codec: codec_lib.Codec | None = None,
    progress: state_lib.Progress | None = None,
    **instead: Any,
) -> Any: ...


def recover(
    path: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    buffer_class: type[Any] | None = None,
    codec: codec_lib.Codec | None = None,
    progress: state_lib.Progress | None = None,
    **instead: Any,
) -> Any:
    """Rebuild the buffer from the journal at `path`, as of its last complete record.

    A torn tail, left by a process that died while writing, is cut off; a second call returns the same buffer. To
    continue writing: `buffer.attach(Journal(path))`.

    Steps, episodes and deliveries are restored exactly. Draws, the random generator and, unless they were journaled,
    priorities are as of the start of the oldest segment, or of the checkpoint. If steps were added since and the
    limiter would hold inserts back, enough samples are counted as drawn for inserts to proceed.

    Args:
        path: The journal's directory.
        checkpoint: A checkpoint saved while the journal was attached: only later records are replayed.
        buffer_class: The class of the buffer, with the name in the journal; None to look it up by name.
        codec: The codec that the journal of an EpisodeReplayBuffer was written with; a PlainCodec if None.
        progress: Called periodically with the number of bytes read so far and the total.
        instead: As in `load`. With other `groups`, the buffer is the recovered one, loaded with these, and continues no
            journal: attach a new one.

    Raises:
        ArgumentError: `buffer_class` is not a class of buffers, or another argument is invalid.
        CheckpointError: There is no journal, it is damaged, or it is open elsewhere; or the checkpoint does not belong
            to it.

    >>> import tempfile
    >>> import relive
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     buffer = relive.RingReplayBuffer(100)
    ...     with relive.Journal(f"{directory}/steps") as journal:
    ...         buffer.attach(journal)
    ...         key = buffer.add([0.1, 0.2], 1, 0.5, [0.3, 0.4])
    ...     del buffer  # As if the process had been killed.
    ...     relive.recover(f"{directory}/steps")
    <RingReplayBuffer of 1 steps, capacity=100, streams=1>
    """
    path = files.absolute("path", path)
    buffer_class = _checked_class(buffer_class)
    state_lib.check_progress(progress)
    with journal_reader.locked(path), claims.kept_on_success():
        return played_back(path, checkpoint, buffer_class, codec, progress, instead, lambda note: None)


def played_back(
    path: str,
    checkpoint: str | os.PathLike[str] | None,
    buffer_class: type[Any] | None,
    codec: codec_lib.Codec | None,
    progress: state_lib.Progress | None,
    instead: dict[str, Any],
    heard: Callable[[bytes], object],
) -> Any:
    """Do what `recover` does, with the lock of the journal held; pass every note in it to `heard`."""
    label, total, read = files.named(path), files.num_bytes(path), 0
    journal = journal_reader.Reading(path)
    records = _undamaged(journal)
    start = next(records, None)
    if start is None:
        raise errors.CheckpointError(f"{label} holds no record")
    first, _, base = start
    try:
        state = base_state(base)
        given = state_lib.StateReader(state, state.get("arrays"))
        journal_id = given.text("journal_id")
        kind: Any = buffer_class or checkpointable.class_of(state, "give buffer_class=")
        if not issubclass(kind, checkpointable.Journalable):
            raise errors.CheckpointError(f"it is of {kind.__name__}, which has no journal")
        options = checkpointable.coded(kind, codec)
        is_base = given.boolean("has_checkpoint") and checkpoint is None
        if is_base:
            checkpoint = journal_reader.checkpoint_of(path)
        of_replay = {name: value for name, value in instead.items() if name not in kind._RULES}
        buffer: Any = kind._loaded(state, of_replay, **options) if checkpoint is None else None
    except errors.CheckpointError as error:
        raise errors.CheckpointError(f"{label} begins with an invalid record: {error}") from error
    skipped = first + 1
    if buffer is None:
        assert checkpoint is not None
        with checkpoint_lib.opened(checkpoint) as saved:
            skipped = _place_of(saved, os.fspath(checkpoint), journal_id, first)
            if is_base and skipped != first + 1:
                raise errors.CheckpointError(f"{checkpoint} is not what the journal begins with")
            buffer = kind._loaded(saved, of_replay, **options)
    replay = buffer._replay(**options)
    for number, record_kind, payload in itertools.chain([start], records):
        try:
            if record_kind == journal_reader.BASE:
                replay.base(number)
            elif record_kind == journal_reader.TOGETHER:
                note, parts = journal_reader.unpacked(payload)
                if note:
                    heard(note)
                for part in parts if number >= skipped else ():
                    replay.apply(*part)
            elif number >= skipped:
                replay.apply(record_kind, payload)
        except errors.CheckpointError as error:
            raise errors.CheckpointError(f"{label}: record {number} {error}") from error
        except (MemoryError, OverflowError, ValueError) as error:  # Raised for impossible settings.
            raise errors.CheckpointError(f"{label}: record {number} cannot be played back: {error}") from error
        read += len(payload)
        if progress is not None and number % 1024 == 0:
            progress(read, total)
    assert journal.segment is not None
    num_records = journal.segment.number
    if skipped > num_records:
        raise errors.CheckpointError(
            f"{checkpoint} is newer than the journal, which ends before record {num_records}: "
            "load it, and attach a new journal"
        )
    try:
        replay.end()
        buffer.check()  # Records may contradict each other although each is whole.
    except errors.CheckpointError as error:
        raise errors.CheckpointError(f"{label} {error}") from error
    except errors.CorruptionError as error:
        raise errors.CheckpointError(f"{label}: {error}") from error
    known = buffer._encoded_settings()
    others = [name for name in instead.keys() & kind._RULES if known[name] != settings.encoded(instead[name], name)]
    if others:  # The records were made by the rules of the journal, and what comes now is not.
        state, journal_id = buffer._full_state(**options), ""
        claims.give_up()  # By this buffer, for the one of which that is the state.
        buffer = kind._loaded(state, instead, **options)
    repair.cut_tail(journal)
    buffer._recovered(journal_id, num_records, replay)
    if num_records > skipped:
        buffer._limited.forgive()
    if progress is not None:
        progress(total, total)
    return buffer


def _undamaged(journal: journal_reader.Reading) -> Iterator[tuple[int, int, bytes]]:
    """Yield the records of a journal; if it is damaged, the error says how it can be repaired."""
    try:
        yield from journal.records()
    except journal_reader.DamageError as damage:
        raise repair.refusal(damage, journal.num_records) from damage


def _checked_class(buffer_class: Any) -> Any:
    """Return a checked class that supports journals, or None; accepts EpisodeReplayBuffer[str, int] and the like."""
    buffer_class = typing.get_origin(buffer_class) or buffer_class
    is_class = isinstance(buffer_class, type) and issubclass(buffer_class, checkpointable.Journalable)
    if buffer_class is not None and not is_class:
        raise errors.ArgumentTypeError(
            f"buffer_class must be a class of buffers, got {validation.short_repr(buffer_class)}"
        )
    return buffer_class


def base_state(payload: bytes) -> state_lib.State:
    """Return the state that a journal begins with, from the payload of its first record."""
    state = codec_lib.PlainCodec().decode(payload)
    if not isinstance(state, dict):
        raise errors.CheckpointError(f"a base must hold a state, got {validation.short_repr(state)}")
    return state


def _place_of(saved: state_lib.State, checkpoint: str, journal_id: str, first: int) -> int:
    """Return the number of the first record that comes after a checkpoint."""
    noted = saved.get("journal")
    if not isinstance(noted, dict) or noted.get("id") != journal_id:
        raise errors.CheckpointError(f"{checkpoint} was saved without this journal: leave it out")
    number = state_lib.StateReader(noted, {}, "journal/").integer("num_records")
    if number < first:
        raise errors.CheckpointError(
            f"{checkpoint} is older than the journal, which begins with record {first}: leave it out"
        )
    return number
