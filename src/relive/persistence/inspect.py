"""Tells what relive has saved at a path, and loads, verifies, repairs and summarizes it.

Memory maps and Parquet files hold no buffer.
"""

from collections.abc import Callable
import dataclasses
import enum
import math
import os
from typing import Any

from relive import errors
from relive.common import imports
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
from relive.persistence import repair as repair_lib
from relive.persistence import settings as settings_lib
from relive.persistence import state as state_lib

# Imports only go down; these look up.
memmap: Any = imports.lazy_module("relive.storage.memmap")
tokens: Any = imports.lazy_module("relive.agents.tokens")
_REMEDY = "import its module"
_MAP_MANIFEST = "storage.json"
_PARQUET = b"PAR1"
"""How a Parquet file begins and ends."""
_STEPS_ALONE = "holds steps and no buffer: relive.integrations.arrow.add_parquet adds them to one"
_MOST_NAMED = 3


class Kind(enum.Enum):
    """The kinds of things that relive writes."""

    CHECKPOINT = "checkpoint"
    JOURNAL = "journal"
    MAP = "memory map"
    PARQUET = "Parquet file"


def kind_of(path: str) -> Kind:
    """Return the kind of what is at an absolute path, by how files begin and how those in a directory are named.

    CheckpointError says what is there, and what to do, if relive did not write it.
    """
    label = files.named(path)
    if not os.path.isdir(path):
        with files.opened(path) as file, files.raising(path, "cannot be read"):
            head = file.read(checkpoint.HEAD_BYTES)
        if checkpoint.begins(head):
            return Kind.CHECKPOINT
        if head.startswith(_PARQUET):
            return Kind.PARQUET
        if is_of_journal(os.path.basename(path)):
            raise errors.CheckpointError(f"{label} is a part of a journal: name the directory that it is in")
        checkpoint.refuse_foreign(label, head)
        raise errors.CheckpointError(f"{label} is not a checkpoint")
    with files.raising(path, "cannot be read"), files.Directory(path, follow=True) as directory:
        names = sorted(directory.names())
    if names == [journal_reader.CHECKPOINT] or any(is_of_journal(name) for name in names):
        return Kind.JOURNAL
    if _MAP_MANIFEST in names:
        return Kind.MAP
    if not names:
        raise errors.CheckpointError(f"{label} is empty: neither a checkpoint nor a journal")
    if checkpoint.MANIFEST in names:
        raise errors.CheckpointError(f"{label} is a directory, {checkpoint.rule_of_directory(path)}")
    held = ", ".join(f"{name!a}" for name in names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
    raise errors.CheckpointError(f"{label} is neither a checkpoint nor a journal: it holds {held}")


def kind_of_buffer(path: str) -> Kind:
    """Return the `kind_of` what is at a path; raise CheckpointError unless it is a checkpoint or a journal."""
    kind, label = kind_of(path), files.named(path)
    if kind is Kind.MAP:
        remedy = f"load its checkpoint with storage=relive.MemmapStorage({path!r})"
        raise errors.CheckpointError(f"{label} is a memory map, which holds rows and no buffer: {remedy}")
    if kind is Kind.PARQUET:
        raise errors.CheckpointError(f"{label} is a Parquet file, which {_STEPS_ALONE}")
    return kind


def is_of_journal(name: str) -> bool:
    """Return whether a file of that name is part of a journal, or was set aside."""
    return journal_reader.NAME.fullmatch(name) is not None


@dataclasses.dataclass(kw_only=True)
class Examination:
    """The result of examining a path."""

    path: str
    kind: Kind
    version: int = 1
    """The version of its format."""
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The description of its buffer: `class`, `settings`, `generator` and more."""
    members: list[npy.Member] = dataclasses.field(default_factory=list)
    """The arrays of a checkpoint."""
    findings: journal_reader.Reading | None = None
    """The reading of a journal."""
    buffer: Any = None
    """The loaded buffer; None if none could be loaded."""
    reason: str = ""
    """Why no buffer was loaded, although nothing is broken."""
    faults: list[str] = dataclasses.field(default_factory=list)
    """The faults, one line each."""
    stats: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Statistics of the contents if they are not a buffer."""

    @property
    def notes(self) -> list[str]:
        """Further notes, one line each."""
        lines = [f"not loaded: {self.reason}"] if self.reason else []
        older = [files.named(each) for each in checkpoint.kept(self.path)]
        if older:
            lines.append(f"older ones: {', '.join(older)}")
        if self.findings is not None:
            aside = sorted(name for name in os.listdir(self.path) if name.endswith(journal_reader.DAMAGED))
            lines += [f"{name} was set aside by a repair, and is not part of it" for name in aside]
        return lines

    def summary(self) -> dict[str, Any]:
        """Return everything as JSON values; see `summary`."""
        said = self.values if self.buffer is None else self.values | {"settings": self.buffer._encoded_settings()}
        settings, generator, name = (said.get(key) for key in ("settings", "generator", "class"))
        settings = dict(settings) if isinstance(settings, dict) else {}
        schema = settings.pop("schema", said.get("schema"))
        schemas = getattr(self.buffer, "schemas", None)
        if schemas is not None:
            schema = {agent: settings_lib.encoded(each) for agent, each in schemas.items()}
        bit_generator = generator.get("bit_generator") if isinstance(generator, dict) else None
        return {
            "path": files.named(self.path),
            "kind": self.kind.value,
            "version": self.version,
            "class": name if isinstance(name, str) else None,
            "bytes": files.num_bytes(self.path),
            "schema": schema,
            "settings": settings,
            "generator": bit_generator if isinstance(bit_generator, str) else None,
            "stats": self.stats if self.buffer is None else _stats(self.buffer),
            "arrays": {
                member.name: {
                    "file": member.file,
                    "dtype": str(member.dtype) if member.dtype.names is None else "structured",
                    "shape": list(member.shape),
                    "bytes": member.size,
                }
                for member in self.members
            },
            "records": self.findings
            and {
                "segments": self.findings.num_segments,
                "records": self.findings.num_records,
                "torn_bytes": self.findings.num_torn_bytes,
            },
            "faults": self.faults,
            "notes": self.notes,
        }


def load(
    path: str | os.PathLike[str],
    *,
    codec: codec_lib.Codec | None = None,
    progress: state_lib.Progress | None = None,
    **instead: Any,
) -> Any:
    """Load the buffer from a checkpoint or a journal, whatever its class.

    Equivalent to `load` of its class, or to `recover`. Custom classes must be imported before.

    Args:
        path: The file of a checkpoint, or the directory of a journal.
        codec: The codec it was written with, for buffers of objects; a PlainCodec if None.
        progress: Called periodically with the number of bytes read so far and the total.
        instead: Constructor arguments that override the saved ones.

    Raises:
        ArgumentError: An argument is invalid, or a codec is given for a buffer without objects.
        CheckpointError: The path is neither a checkpoint nor a journal, or it is damaged, of an undefined class, of
            another codec, or of a newer version. For a memory map or a Parquet file, the message says what to call.

    >>> import tempfile
    >>> import relive
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     relive.SequenceReplayBuffer(100, length=4).save(f"{directory}/steps")
    ...     relive.load(f"{directory}/steps")
    <SequenceReplayBuffer of 0 steps, capacity=100, streams=1, length=4>
    """
    path = files.absolute("path", path, files.ANY)
    given: dict[str, Any] = {"codec": codec, "progress": progress, **instead}
    if kind_of_buffer(path) is Kind.JOURNAL:
        return recover.recover(path, **given)
    values, _ = checkpoint.read_manifest(path)
    kind: Any = checkpointable.class_of(values, _REMEDY)
    return kind.load(path, **given)


def verify(path: str | os.PathLike[str], *, progress: state_lib.Progress | None = None) -> None:
    """Verify anything that relive saved at a path, by reading it completely and checking its buffer.

    Checkpoints and journals are checked byte by byte against checksums. Of a memory map only the manifest and the file
    sizes are checked, since its rows have no checksums; of a Parquet file only that it has an end.

    Args:
        path: A checkpoint, a journal, a memory map or a Parquet file.
        progress: Called periodically with the number of bytes read so far and the total.

    Raises:
        ArgumentError: An argument is invalid.
        CheckpointError: It is damaged, or none of the four.
    """
    faults = examine(files.absolute("path", path, files.ANY), progress).faults
    if faults:
        raise errors.CheckpointError("; ".join(faults))


def repair(
    path: str | os.PathLike[str], *, drop_damaged: bool = False, progress: state_lib.Progress | None = None
) -> repair_lib.Repair:
    """Repair a journal after a crash: cut a torn record off its end. A second call finds nothing to do.

    A checkpoint needs no repair: a crash leaves the old one or the new one, complete.

    Args:
        path: A journal.
        drop_damaged: Whether to end a damaged journal with the last record before the damage. Files with the damaged
            part and what followed stay in the directory, with names that end in ".damaged".
        progress: Called periodically with the number of bytes read so far of the checkpoint that the journal begins
            with, if it does, and the total.

    Returns:
        A Repair with `num_records`, `num_bytes_cut`, `damage` and `set_aside`; `str` of it describes it in words.

    Raises:
        ArgumentError: An argument is invalid.
        CheckpointError: It is no journal, in use, or damaged, and `drop_damaged` is False. Nothing has changed.

    >>> import tempfile
    >>> import relive
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with relive.Journal(f"{directory}/steps") as journal:
    ...         relive.RingReplayBuffer(100).attach(journal)
    ...     print(relive.repair(f"{directory}/steps"))
    1 whole records: nothing to repair
    """
    drop_damaged = validation.boolean("drop_damaged", drop_damaged)
    state_lib.check_progress(progress)
    path = files.absolute("path", path, files.ANY)
    if kind_of_buffer(path) is Kind.CHECKPOINT:
        rule = "a crash leaves the old one or the new one, and relive verify tells whether it is whole"
        raise errors.CheckpointError(f"{files.named(path)} is a checkpoint, which needs no repair: {rule}")
    broken = _base_faults(path, progress)
    if broken:
        raise errors.CheckpointError(f"{'; '.join(broken)}: recover with an older checkpoint=, or not at all")
    return repair_lib.repair_journal(path, drop_damaged=drop_damaged)


def summary(path: str | os.PathLike[str], *, progress: state_lib.Progress | None = None) -> dict[str, Any]:
    """Return a summary of anything that relive saved at a path, as JSON values, like `relive inspect --json`.

    It verifies everything and loads the buffer, so it takes as much time and memory as `load`. If the buffer cannot be
    loaded, as with an undefined class, `stats` is empty and the rest is read from the files.

    Args:
        path: A checkpoint, a journal, a memory map or a Parquet file.
        progress: Called periodically with the number of bytes read so far and the total.

    Returns:
        `path`; `kind`, which of the four; `version` of its format; `class` of the buffer; `bytes` of the files;
        `schema`, as rows of path, dtype and shape, by agent if there are agents; `settings` of the constructor; kind of
        the `generator`; `stats`, as from `get_stats`; `arrays` of a checkpoint by name, each with `file`, `dtype`,
        `shape` and `bytes`; `records` of a journal with `segments`, `records` and `torn_bytes`, else None; `faults`,
        one line each; `notes`, further notes.

    Raises:
        ArgumentError: An argument is invalid.
        CheckpointError: It is none of the four, or its manifest cannot be read.

    >>> import tempfile
    >>> import relive
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     relive.SequenceReplayBuffer(100, length=4).save(f"{directory}/steps")
    ...     said = relive.summary(f"{directory}/steps")
    >>> said["kind"], said["class"], said["settings"]["length"], said["stats"]["size"], said["faults"]
    ('checkpoint', 'SequenceReplayBuffer', 4, 0, [])
    """
    return examine(files.absolute("path", path, files.ANY), progress).summary()


def examine(path: str, progress: state_lib.Progress | None = None) -> Examination:
    """Read everything at an absolute path, and return the result; raise errors as `summary` does."""
    state_lib.check_progress(progress)
    found = Examination(path=path, kind=kind_of(path))
    _EXAMINERS[found.kind](found, progress)
    return found


def _read_checkpoint(found: Examination, progress: state_lib.Progress | None) -> None:
    found.values, found.members = checkpoint.read_manifest(found.path)
    found.version = manifest.VERSION
    found.faults = checkpoint.faults(found.path, progress)
    if not found.faults:
        found.reason = why_not(found.values) or _why_too_large(found)
    if not found.faults and not found.reason:
        try:
            buffer = load(found.path, codec=_codec(found.values))
            if hasattr(buffer, "check"):  # A rollout has no invariants to check.
                buffer.check()
            found.buffer = buffer
        except errors.ReplayError as error:
            found.faults = [f"{files.named(found.path)} cannot be loaded: {error}"]


def _read_journal(found: Examination, progress: state_lib.Progress | None) -> None:
    path = found.path
    found.version = int(journal_reader.MAGIC.split()[-1])
    found.findings = findings = journal_reader.examine(path)
    try:
        base = _base(path) if findings.num_records else {}
        found.values = {name: base[name] for name in base if name != "arrays"}
        if findings.damage is not None:
            found.faults = [str(findings.damage)]
            return
        found.reason = _why_not_rebuilt(path, findings) or why_not(base)
        if found.reason:
            found.faults = _base_faults(path)
        else:
            found.buffer = recover.recover(path, codec=_codec(base), progress=progress)
    except errors.ReplayError as error:
        found.faults = [f"{files.named(path)} cannot be recovered: {error}"]


def _read_map(found: Examination, progress: state_lib.Progress | None) -> None:
    with memmap.reader(found.path) as storage:
        found.version = memmap.VERSION
        found.values = {"settings": {"schema": settings_lib.encoded(storage.schema), "capacity": storage.capacity}}
        found.stats = {"generation": storage.generation, "is_dirty": storage.is_dirty}


def _read_parquet(found: Examination, progress: state_lib.Progress | None) -> None:
    found.reason = f"it {_STEPS_ALONE}"
    with files.raising(found.path, "cannot be read"), open(found.path, "rb") as file:
        file.seek(-len(_PARQUET), os.SEEK_END)
        if file.read() != _PARQUET:
            found.faults = [f"{files.named(found.path)} was cut: it does not end like a Parquet file"]


_EXAMINERS: dict[Kind, Callable[[Examination, state_lib.Progress | None], None]] = {
    Kind.CHECKPOINT: _read_checkpoint,
    Kind.JOURNAL: _read_journal,
    Kind.MAP: _read_map,
    Kind.PARQUET: _read_parquet,
}


def _base(path: str) -> dict[str, Any]:
    """Return the state that a journal begins with."""
    return recover.base_state(next(journal_reader.records(path)).payload)


def _base_faults(path: str, progress: state_lib.Progress | None = None) -> list[str]:
    """Return the faults of the checkpoint that a journal begins with, if any."""
    try:
        has_checkpoint = _base(path).get("has_checkpoint") is True
    except (errors.ReplayError, StopIteration):
        return []  # Reported elsewhere.
    return checkpoint.faults(journal_reader.checkpoint_of(path), progress) if has_checkpoint else []


def _why_not_rebuilt(path: str, findings: journal_reader.Reading) -> str:
    """Return why a journal is not replayed, as that would modify it or block its writer; empty if it can be."""
    if findings.num_torn_bytes:
        return f"it ends with a torn record of {findings.num_torn_bytes} B: relive repair cuts it off"
    if not findings.num_records:
        return "it holds no record"
    try:
        with journal_reader.locked(path):
            return ""
    except errors.CheckpointError as error:
        return str(error)


def _stats(buffer: Any) -> dict[str, Any]:
    """Return the statistics of a buffer; a rollout has none."""
    if hasattr(buffer, "get_stats"):
        return dataclasses.asdict(buffer.get_stats())
    return {"size": len(buffer), "capacity": buffer.capacity}


def _codec(values: dict[str, Any]) -> codec_lib.Codec | None:
    """Return the codec of a state of objects, if built-in; None also for a state without objects."""
    if "codec" not in values:
        return None
    ours: list[codec_lib.Codec] = [codec_lib.PlainCodec(), tokens.TokenStepCodec()]
    return next((codec for codec in ours if codec.name == values["codec"]), None)


def why_not(values: dict[str, Any]) -> str:
    """Return why a buffer cannot be loaded from a state, given its JSON values; empty if it can."""
    try:
        checkpointable.class_of(values, _REMEDY)
    except errors.CheckpointError as error:
        return str(error)
    left, unknown = [("settings", values.get("settings"))], []
    while left:
        name, value = left.pop()
        if isinstance(value, dict):
            left += value.items()
            if "kind" in value and registry.PARTS.find(str(value["kind"])) is None:
                unknown.append(f"{name} is a {value['kind']}")
    if unknown:
        return f"{validation.short_repr(', '.join(unknown))}, a class that is not defined here"
    if "codec" in values and _codec(values) is None:
        return f"its codec is {validation.short_repr(values['codec'])}, whose code is not in it"
    if "rows_in" in values:
        return "its rows are in a memory map: load it with storage=relive.MemmapStorage(...)"
    return ""


def _why_too_large(found: Examination) -> str:
    """Return why there is not enough memory for a buffer's arrays and all rows of its capacity; empty if unknown."""
    rows = [member for member in found.members if member.name.startswith("rows/")]
    per_row = sum(member.dtype.itemsize * math.prod(member.shape[1:]) for member in rows)
    settings = found.values.get("settings")
    capacity = settings.get("capacity") if isinstance(settings, dict) else 0
    needed = sum(member.nbytes for member in found.members)
    needed += (capacity if type(capacity) is int else 0) * per_row
    there = _memory_bytes()
    if there is None or needed <= there // 2:
        return ""
    return f"it takes {needed / 2**30:,.1f} GiB of memory, and this machine has {there / 2**30:,.1f} GiB"


def _memory_bytes() -> int | None:
    """Return the memory of the machine in bytes; None if unknown."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
