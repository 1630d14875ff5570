"""What is at a path: a checkpoint or a journal, of which class, whether it is whole, and its buffer.

load        the buffer, of whatever class
verify      raises CheckpointError if something is broken
examine     what is broken, and what was looked at
"""

import contextlib
import dataclasses
import enum
import math
import os
from typing import Any

from relive import errors
from relive.common import validation
from relive.persistence import checkpoint
from relive.persistence import checkpointable
from relive.persistence import codec as codec_lib
from relive.persistence import files
from relive.persistence import journal_reader
from relive.persistence import manifest
from relive.persistence import npy
from relive.persistence import recover
from relive.persistence import registry
from relive.persistence import state as state_lib

_MAP_MANIFEST = "storage.json"
_MOST_NAMED = 3
_REMEDY = "import its module"


class Kind(enum.Enum):
    """What a path can be that was saved."""

    CHECKPOINT = "checkpoint"
    JOURNAL = "journal"


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What the manifest of a checkpoint says.

    Attributes:
        place: Where it was read: at the path itself, or at the one that a crash left.
        values: The state, without its arrays.
        entries: What it says of the file of each array.
    """

    place: str
    values: dict[str, Any]
    entries: dict[str, manifest.Entry]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Examination:
    """What was found at a path.

    Attributes:
        kind: Whether a checkpoint is there, or a journal.
        place: Where it was read: at the path itself, or at the one that a crash left.
        faults: What is broken, a line each.
        num_arrays: Of a checkpoint.
        findings: What was found in a journal; None for a checkpoint.
        buffer: What was made of it; None if none was.
        reason: Why none was made, although nothing is broken.
    """

    kind: Kind
    place: str
    faults: list[str]
    num_arrays: int = 0
    findings: journal_reader.Findings | None = None
    buffer: Any = None
    reason: str = ""


def load(
    path: str | os.PathLike[str],
    *,
    codec: codec_lib.Codec | None = None,
    progress: state_lib.Progress | None = None,
    **instead: Any,
) -> Any:
    """Return the buffer that was saved at a path, of whatever class: of a checkpoint, or of a journal.

    It does what `load` of that class does, or `recover`. A class of your own must be imported before.

    Args:
        path: The directory.
        codec: The one that it was written with, where there are objects; a PlainCodec if None.
        progress: Called now and then with the bytes read so far and the bytes there are.
        instead: Arguments of the constructor in the place of the saved ones.

    Raises:
        ArgumentError: An argument breaks its rule, or there is a codec, but no object.
        CheckpointError: Neither a checkpoint nor a journal is there, or it is damaged, of a class that is not defined
            here, of another codec, or of a newer version.

    >>> import tempfile
    >>> import relive
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     relive.SequenceReplayBuffer(100, length=4).save(f"{directory}/steps")
    ...     relive.load(f"{directory}/steps")
    <SequenceReplayBuffer of 0 steps, capacity=100, streams=1>
    """
    path = files.absolute("path", path)
    given: dict[str, Any] = {"progress": progress, **instead}
    if codec is not None:
        given["codec"] = codec
    if kind_of(path) is Kind.JOURNAL:
        return recover.recover(path, **given)
    kind: Any = checkpointable.class_of(read_manifest(path).values, _REMEDY)
    if codec is not None and not getattr(kind, "_HAS_OBJECTS", False):
        raise errors.ArgumentError(f"codec must be left out for a {kind.__name__}, which holds no objects")
    return kind.load(path, **given)


def verify(path: str | os.PathLike[str], *, progress: state_lib.Progress | None = None) -> None:
    """Read all that was saved at a path, and make its buffer where that can be done here, which checks itself.

    Args:
        path: Of a checkpoint or a journal.
        progress: Called now and then with the bytes read so far and the bytes there are.

    Raises:
        ArgumentError: An argument breaks its rule.
        CheckpointError: It is not whole, or neither of the two is there.
    """
    state_lib.check_progress(progress)
    faults = examine(files.absolute("path", path), progress).faults
    if faults:
        raise errors.CheckpointError("; ".join(faults))


def examine(path: str, progress: state_lib.Progress | None = None) -> Examination:
    """Return what is at an absolute path, after all of it was read.

    Raises:
        CheckpointError: Neither a checkpoint nor a journal is there.
    """
    return _of_journal(path) if kind_of(path) is Kind.JOURNAL else _of_checkpoint(path, progress)


def _of_checkpoint(path: str, progress: state_lib.Progress | None) -> Examination:
    broken = faults(path, progress)
    if broken:
        return Examination(kind=Kind.CHECKPOINT, place=path, faults=broken)
    said = read_manifest(path)
    buffer, reason = None, why_not(said.values)
    try:
        reason = reason or _why_too_large(said)
        if not reason:
            kind: Any = checkpointable.class_of(said.values, _REMEDY)
            buffer = kind.load(path)
            if hasattr(buffer, "check"):  # A rollout has nothing that could disagree.
                buffer.check()
    except errors.ReplayError as error:
        broken = [f"{files.named(path)} cannot be loaded: {error}"]
    return Examination(
        kind=Kind.CHECKPOINT,
        place=said.place,
        faults=broken,
        num_arrays=len(said.entries),
        buffer=buffer,
        reason=reason,
    )


def _of_journal(path: str) -> Examination:
    findings = journal_reader.examine(path)
    broken = [] if findings.damage is None else [str(findings.damage)]
    buffer, reason = None, ""
    if not broken and not findings.num_torn_bytes:  # `recover` would cut that off.
        try:
            buffer, reason = _rebuilt(path)
        except errors.ReplayError as error:
            broken = [f"{files.named(path)} rebuilds no buffer: {error}"]
    return Examination(kind=Kind.JOURNAL, place=path, faults=broken, findings=findings, buffer=buffer, reason=reason)


def _rebuilt(path: str) -> tuple[Any, str]:
    """Return the buffer that a journal without a torn tail rebuilds, or None and why it is not rebuilt here.

    Raises:
        ReplayError: It cannot be made, or does not agree with itself.
    """
    first = next(journal_reader.records(path), None)
    if first is None:
        return None, "it holds no record"
    values = codec_lib.PlainCodec().decode(first.payload)
    if not isinstance(values, dict):
        raise errors.CheckpointError(f"a base must hold a state, got {validation.short_repr(values)}")
    reason = why_not(values)
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


def why_not(values: dict[str, Any]) -> str:
    """Return why no buffer can be made of a state here, given its JSON values; nothing if one can."""
    try:
        checkpointable.class_of(values, _REMEDY)
    except errors.CheckpointError as error:
        return str(error)
    settings = values.get("settings")
    kinds = {
        name: str(value.get("kind"))
        for name, value in (settings.items() if isinstance(settings, dict) else ())
        if isinstance(value, dict)
    }
    unknown = [f"{name} is a {part}" for name, part in kinds.items() if registry.PARTS.find(part) is None]
    if unknown:
        return f"{validation.short_repr(', '.join(unknown))}, a class that is not defined here"
    codec = values.get("codec")
    if codec is not None and codec != codec_lib.PlainCodec().name:
        return f"its codec is {validation.short_repr(codec)}, of which the code is not in it"
    return ""


def _why_too_large(said: Manifest) -> str:
    """Return why there is no memory for a buffer; nothing if there is, or if the machine does not say."""
    needed, there = _needed_bytes(said), _memory_bytes()
    if there is None or needed <= there // 2:
        return ""
    return f"it takes {needed / 2**30:,.1f} GiB of memory, and this machine has {there / 2**30:,.1f} GiB"


def _needed_bytes(said: Manifest) -> int:
    """Return about how many bytes a loaded buffer takes: those of its files, and of all rows it has room for."""
    nbytes = sum(entry.nbytes for entry in said.entries.values())
    rows = [entry for name, entry in said.entries.items() if name.startswith("rows/")]
    per_row = sum(entry.dtype.itemsize * math.prod(entry.shape[1:]) for entry in rows)
    settings = said.values.get("settings")
    capacity = settings.get("capacity") if isinstance(settings, dict) else 0
    return nbytes + (capacity if type(capacity) is int else 0) * per_row


def _memory_bytes() -> int | None:
    """Return how much memory the machine has; None where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def kind_of(path: str) -> Kind:
    """Return what is at an absolute path, or at the one that a crash between two renames left of it.

    Raises:
        CheckpointError: Neither a checkpoint nor a journal is there; the message says what is, and what to do.
    """
    label = files.named(path)
    place = files.newest(path)
    if not os.path.lexists(place):
        raise errors.CheckpointError(f"{label} does not exist")
    if not os.path.isdir(place):
        name = os.path.basename(path)
        is_part = name == files.MANIFEST or name.endswith(".npy") or journal_reader.first_of(name) is not None
        remedy = "name the directory that it is in" if is_part else "a checkpoint or a journal is a directory"
        raise errors.CheckpointError(f"{label} is not a directory: {remedy}")
    try:
        with files.Directory(place, follow=True) as directory:
            names = sorted(directory.names())
    except OSError as error:
        raise errors.CheckpointError(f"{label} cannot be opened: {files.reason(error)}") from error
    if files.MANIFEST in names:
        return Kind.CHECKPOINT
    if any(is_of_journal(name) for name in names):
        return Kind.JOURNAL
    if _MAP_MANIFEST in names:
        raise errors.CheckpointError(f"{label} is the memory map of a MemmapStorage: open it with that")
    if not names:
        raise errors.CheckpointError(f"{label} is empty: neither a checkpoint nor a journal")
    held = ", ".join(f"{name!a}" for name in names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
    raise errors.CheckpointError(f"{label} is neither a checkpoint nor a journal: it holds {held}")


def is_of_journal(name: str) -> bool:
    """Return whether a file of that name is a segment of a journal, or was one."""
    segment = name.removesuffix(journal_reader.NEW)
    if name.endswith(journal_reader.DAMAGED):
        segment = name[: len(journal_reader.segment_name(0))]
    return journal_reader.first_of(segment) is not None


def read_manifest(path: str) -> Manifest:
    """Return what the manifest of the checkpoint at `path` says; looks at no other file.

    Raises:
        CheckpointError: It is missing, of another version, or damaged.
    """
    place = files.newest(path)
    label = f"{files.named(place)}/{files.MANIFEST}"
    try:
        with files.Directory(place, follow=True) as directory:
            raw = checkpoint.read_manifest(directory)
    except OSError as error:
        raise errors.CheckpointError(f"{label} cannot be read: {files.reason(error)}") from error
    return Manifest(place, *manifest.decoded(raw, label))


def faults(path: str, progress: state_lib.Progress | None = None) -> list[str]:
    """Read all files of the checkpoint at `path`, and return a line for each that is broken.

    A checkpoint that is whole is opened as a reader opens it; the files of a broken one are read one by one.
    """
    try:
        with checkpoint.opened(path, verify=True, progress=progress):
            return []
    except errors.CheckpointError as error:
        return _faults_of_each(path, progress) or [str(error)]


def _faults_of_each(path: str, progress: state_lib.Progress | None) -> list[str]:
    """Return what is wrong with the manifest, or else with each file."""
    try:
        found = read_manifest(path)
    except errors.CheckpointError as error:
        return [str(error)]
    lines = []
    label, done = files.named(found.place), 0
    total = sum(entry.dtype.itemsize * math.prod(entry.shape) for entry in found.entries.values())
    with files.Directory(found.place, follow=True) as directory:
        for entry in found.entries.values():
            place = f"{label}/{entry.file}"
            try:
                with contextlib.closing(
                    npy.Reader(
                        directory.open(entry.file),
                        place,
                        entry.dtype,
                        entry.shape,
                        entry.crc32,
                        report=lambda count: None,
                    )
                ) as reader:
                    reader.verify()
            except errors.CheckpointError as error:
                lines.append(str(error))
            done += entry.dtype.itemsize * math.prod(entry.shape)
            if progress is not None:
                progress(done, total)
    return lines


def older(path: str) -> list[str]:
    """Return the checkpoints that `save` kept as older ones of that name, the newest first."""
    found: list[str] = []
    while True:
        each = f"{path}.{len(found) + 1}"
        is_own = os.path.lexists(files.beside(each, "lock"))  # It was saved by that name.
        if is_own or not os.path.isfile(os.path.join(each, files.MANIFEST)):
            return found
        found.append(each)
