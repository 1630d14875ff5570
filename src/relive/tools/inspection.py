"""What is in a checkpoint or a journal: the facts, as they are printed, written as JSON, or drawn."""

from collections.abc import Iterator
import dataclasses
import os
from typing import Any

from relive import errors
from relive.persistence import checkpoint
from relive.persistence import files as files_lib
from relive.persistence import inspect
from relive.persistence import journal_reader
from relive.persistence import manifest
from relive.persistence import npy
from relive.persistence import state as state_lib
from relive.tools import frames as frames_lib
from relive.tools import state_facts
from relive.tools import wording


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
    """A file of what was saved.

    Attributes:
        name: In its directory.
        nbytes: How many bytes it has, or should have.
        dtype: Of the array in it; None if it is no array.
        shape: Of the array in it; None if it is no array.
    """

    name: str
    nbytes: int
    dtype: str | None = None
    shape: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inspection:
    """The facts of a checkpoint or a journal.

    Attributes:
        path: As it is shown.
        kind: Which of the two.
        class_name: Of the buffer; None if nothing says it.
        settings: What the buffer's constructor was given, as JSON values.
        generator: The kind of its generator; None if nothing says it.
        facts: Its rows and episodes; None if something is broken, or nothing says them.
        files: On the disk.
        records: The numbers of a journal; None for a checkpoint.
        faults: What is broken, a line each.
        notes: What else to know, a line each.
        frames: Observations that are images, if some were asked for.
    """

    path: str
    kind: inspect.Kind
    class_name: str | None = None
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    generator: str | None = None
    facts: state_facts.Facts | None = None
    files: list[File] = dataclasses.field(default_factory=list)
    records: dict[str, int] | None = None
    faults: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    frames: list[frames_lib.Frame] = dataclasses.field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """The bytes of all files."""
        return sum(file.nbytes for file in self.files)

    def as_json(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        facts = self.facts
        return {
            "path": self.path,
            "kind": self.kind.value,
            "class": self.class_name,
            "settings": self.settings,
            "generator": self.generator,
            "sizes": {} if facts is None else facts.sizes,
            "bytes": self.nbytes,
            "files": [dataclasses.asdict(file) for file in self.files],
            "records": self.records,
            "episodes": {} if facts is None else facts.episodes,
            "distributions": {}
            if facts is None
            else {name: spread.as_json() for name, spread in facts.distributions.items()},
            "counters": {} if facts is None else facts.counters,
            "faults": self.faults,
            "notes": self.notes,
        }


def of(path: str, *, num_frames: int = 0, progress: state_lib.Progress | None = None) -> Inspection:
    """Return what is at a path; reads every byte once or twice, a part at a time, and change nothing.

    Args:
        path: Of a checkpoint or a journal.
        num_frames: How many frames of each field to take, where observations are images.
        progress: Called with how many bytes of a checkpoint were read so far, and how many there are.

    Raises:
        CheckpointError: Nothing is there, something else, or a checkpoint whose manifest cannot be read.
    """
    path = files_lib.absolute("PATH", path)
    if inspect.kind_of(path) is inspect.Kind.JOURNAL:
        return _of_journal(path, num_frames)
    return _of_checkpoint(path, num_frames, progress)


def _of_checkpoint(path: str, num_frames: int, progress: state_lib.Progress | None) -> Inspection:
    """Return what is in a checkpoint: all of it if it is whole, else what its manifest says."""
    try:
        with checkpoint.opened(path, verify=True, progress=progress) as state:
            entries = {name: (array.dtype, array.shape) for name, array in state["arrays"].items()}
            found = _described(path, inspect.Kind.CHECKPOINT, state, num_frames)
    except errors.CheckpointError as error:
        said = inspect.read_manifest(path)
        entries = {name: (entry.dtype, entry.shape) for name, entry in said.entries.items()}
        found = _described(path, inspect.Kind.CHECKPOINT, said.values, num_frames)
        found = dataclasses.replace(found, faults=inspect.faults(path) or [str(error)])
    files = [
        File(
            name=manifest.file_name(name),
            nbytes=npy.size_of(dtype, shape),
            dtype=str(dtype) if dtype.names is None else "structured",
            shape=shape,
        )
        for name, (dtype, shape) in entries.items()
    ]
    return dataclasses.replace(found, files=files, notes=_notes_on(path))


def _notes_on(path: str) -> list[str]:
    """Return what a reader of a checkpoint should know of its neighbours."""
    notes = [] if os.path.lexists(path) else [f"read from {files_lib.named(path)}.1, as a crash left it"]
    kept = inspect.older(path) if not notes else inspect.older(path)[1:]
    if kept:
        notes.append(f"older ones: {', '.join(map(files_lib.named, kept))}")
    return notes


def _described(path: str, kind: inspect.Kind, state: state_lib.State, num_frames: int) -> Inspection:
    """Return what a state says, or its values alone if it is without its arrays."""
    name, settings, generator = state.get("class"), state.get("settings"), state.get("generator")
    bit_generator = generator.get("bit_generator") if isinstance(generator, dict) else None
    facts, frames, faults = None, [], []
    if "arrays" in state:
        try:
            facts = state_facts.of(state)
            frames = frames_lib.of(state, num_frames)
        except errors.ReplayError as error:
            faults = [f"{files_lib.named(path)}: {error}"]
    return Inspection(
        path=files_lib.named(path),
        kind=kind,
        class_name=name if isinstance(name, str) else None,
        settings=settings if isinstance(settings, dict) else {},
        generator=bit_generator if isinstance(bit_generator, str) else None,
        facts=facts,
        faults=faults,
        frames=frames,
    )


def _of_journal(path: str, num_frames: int) -> Inspection:
    """Return what is in a journal, and in the buffer that it rebuilds."""
    examined = inspect.examine(path)
    findings = examined.findings
    assert findings is not None
    state = None if examined.buffer is None else examined.buffer.state_dict()
    notes = [f"its buffer is not rebuilt here: {examined.reason}"] if examined.reason else []
    if findings.num_torn_bytes:
        torn = f"it ends with a torn record of {wording.counted(findings.num_torn_bytes, 'byte')}"
        notes.append(f"{torn}: relive repair cuts it off, and then the buffer can be shown")
    found = (
        Inspection(path=files_lib.named(path), kind=inspect.Kind.JOURNAL)
        if state is None
        else _described(path, inspect.Kind.JOURNAL, state, num_frames)
    )
    files = list(_files(path))
    aside = sum(file.name.endswith(journal_reader.DAMAGED) for file in files)
    if aside:
        verb = "is" if aside == 1 else "are"
        notes.append(f"{wording.counted(aside, 'file')} that a repair set aside {verb} no part of it")
    return dataclasses.replace(
        found,
        files=files,
        records={
            "segments": findings.num_segments,
            "records": findings.num_records,
            "torn_bytes": findings.num_torn_bytes,
        },
        faults=[*found.faults, *examined.faults],
        notes=notes,
    )


def _files(path: str) -> Iterator[File]:
    """Yield the files of a journal, in which nothing else is."""
    with os.scandir(path) as found:
        for entry in sorted(found, key=lambda entry: entry.name):
            yield File(name=entry.name, nbytes=entry.stat(follow_symlinks=False).st_size)
