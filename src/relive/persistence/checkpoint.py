"""Checkpoints: states saved as archives, atomically, and validated when read.

    manifest.json       everything but arrays, and the dtype and shape of each array
    rows.reward.npy     the array "rows/reward"

See `archive` for the file, `manifest` and `npy` for its members. An archive NAME is replaced by one that was written
beside it, and is whole at every instant:

    .NAME.lock    locked by the writer; stays, empty
    .NAME.new     being written; a crash leaves it, and the next save deletes it
    NAME          the newest
    NAME.1 ...    the ones before, the newest first; after a crash, two numbers may be one file

    NAME.1 becomes NAME.2, too,   NAME becomes NAME.1, too,   .NAME.new -> NAME,   NAME.3 goes

Only our own archives are replaced or deleted. A NAME.1 with its own lock file was saved under that name and is not an
older NAME.
"""

from collections.abc import Iterator
import contextlib
import io
import itertools
import os
import stat
from typing import Any, TypeAlias

from relive import errors
from relive.common import validation
from relive.persistence import archive
from relive.persistence import files as files_lib
from relive.persistence import manifest
from relive.persistence import npy
from relive.persistence import state as state_lib

Path: TypeAlias = str | os.PathLike[str]

MANIFEST = "manifest.json"
HEAD_BYTES = 256
"""So many bytes tell whether a file is a checkpoint, and of which version."""
_OLDER = "read it with an older relive"
FOREIGN = "docs/guides/my_file.md tells how to read files of other libraries"
_BEGINNINGS = {b"\x89HDF": "an HDF5 file", b"PK": "a zip file, such as .npz", b"\x93NUMPY": ".npy", b"\x80": "a pickle"}
"""How files of others begin, which hold steps often."""


# Saving.
def save(state: state_lib.State, path: Path, *, keep: int = 1, progress: state_lib.Progress | None = None) -> None:
    """Save a state as the file `path`, and keep the `keep` - 1 before it as `path`.1, `path`.2 and so on.

    The old file is kept until the new one is complete and on disk; a crash leaves either. Memory use beyond the state,
    in which arrays and columns have at least one axis, is one chunk of `state.CHUNK` bytes.

    >>> import os, tempfile
    >>> import numpy as np
    >>> from relive.persistence import checkpoint
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     path = os.path.join(parent, "numbers")
    ...     checkpoint.save({"count": 3, "arrays": {"primes": np.array([2, 3, 5])}}, path)
    ...     with checkpoint.opened(path) as state:
    ...         state["count"], state["arrays"]["primes"].read(0, 3)
    ...     np.load(path)["primes"]
    (3, array([2, 3, 5]))
    array([2, 3, 5])
    """
    path = files_lib.absolute("path", path, "file")
    keep = validation.positive_int("keep", keep)
    state_lib.check_progress(progress)
    columns: dict[str, Any] = state["arrays"]
    members = [npy.member_of(name, column) for name, column in columns.items()]
    if len({member.file for member in members}) < len(members):
        raise errors.ArgumentError("arrays must have names whose checksums differ: rename one")
    raw = manifest.encoded({name: value for name, value in state.items() if name != "arrays"}, members)
    report = _Report(len(raw) + sum(member.size for member in members), progress)
    with files_lib.raising(path, "cannot be saved"), files_lib.locked(path):
        is_ours(path)
        list(older(path))
        for place in (path, f"{path}.1"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(files_lib.beside(place, "new"))
        with files_lib.replacing(path, files_lib.beside(path, "new"), lambda: _keep_older(path, keep)) as file:
            writer = archive.Writer(file.fileno(), report)
            writer.add(MANIFEST, len(raw), [memoryview(raw)])
            for member in members:
                writer.add(member.file, member.size, npy.parts_of(member, columns[member.name]))
            writer.end()
        for place in reversed(kept(path, keep)):
            with contextlib.suppress(OSError):
                os.unlink(place)


def _keep_older(path: str, keep: int) -> None:
    """Give each of the newest `keep` - 1 files the next number besides its own, by hard links, the oldest first.

    Numbers that a crash has given to two files already are not moved again.
    """
    places = [path, *older(path)] if keep > 1 and is_ours(path) else []
    pairs = list(itertools.takewhile(lambda pair: not os.path.samefile(*pair), itertools.pairwise(places)))
    if len(pairs) == len(places) - 1:  # No number is there twice.
        pairs.append((places[-1], f"{path}.{len(places)}"))
    for source, target in reversed(pairs[: keep - 1]):
        new = files_lib.beside(f"{path}.1", "new")
        try:
            os.link(source, new)
        except OSError:  # The file system has no hard links.
            files_lib.copy_file(source, new)
        os.replace(new, target)
        files_lib.fsync_directory(os.path.dirname(path))


def older(path: str, number: int = 1) -> Iterator[str]:
    """Yield the older archives of that name, from that number on, up to something foreign: CheckpointError."""
    while is_ours(place := f"{path}.{number}"):
        if os.path.lexists(files_lib.beside(place, "lock")):
            raise errors.CheckpointError(f"{files_lib.named(place)} was saved by that name: name another path")
        yield place
        number += 1


def kept(path: str, number: int = 1) -> list[str]:
    """Return the older archives of that name, newest first, from that number on, up to something foreign."""
    found: list[str] = []
    with contextlib.suppress(errors.CheckpointError, OSError):
        found.extend(older(path, number))
    return found


def is_ours(path: str) -> bool:
    """Return whether an archive of ours is there; False if none or an empty file is, CheckpointError for all else."""
    label = files_lib.named(path)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(status.st_mode):
        raise errors.CheckpointError(f"{label} is a link: name the file itself")
    if not stat.S_ISREG(status.st_mode):
        kind = "directory" if stat.S_ISDIR(status.st_mode) else "special file"
        raise errors.CheckpointError(f"{label} is a {kind}, and a checkpoint is a file: name another path")
    name, content = archive.first_of(files_lib.head_of(path, HEAD_BYTES))
    if status.st_size and not (name == MANIFEST and content.startswith(manifest.MARKER)):
        raise errors.CheckpointError(f"{label} is not a checkpoint: name another path")
    return status.st_size > 0


def begins(head: bytes) -> bool:
    """Return whether a file that begins with those bytes is a checkpoint, of whatever version, as far as they say."""
    return archive.first_of(head)[0] == MANIFEST


def refuse_foreign(label: str, head: bytes) -> None:
    """Raise CheckpointError, which names the page, for a file in a format in which other libraries keep steps."""
    form = next((form for start, form in _BEGINNINGS.items() if head.startswith(start)), None)
    if form is not None and not begins(head):
        raise errors.CheckpointError(f"{label} is {form} and not of relive: {FOREIGN}")


def rule_of_directory(path: str) -> str:
    """Return why a directory is no checkpoint, to say behind that it is one."""
    with contextlib.suppress(OSError):
        if files_lib.head_of(os.path.join(path, MANIFEST), len(manifest.MARKER)) == manifest.MARKER:
            return f"as checkpoints of format version 1 were, and this relive reads {manifest.VERSION}: " + _OLDER
    return "and a checkpoint is a file"


class _Report:
    """Adds up bytes, and reports the sum."""

    def __init__(self, total: int, progress: state_lib.Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def __call__(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)


# Loading.
@contextlib.contextmanager
def opened(path: Path, *, progress: state_lib.Progress | None = None) -> Iterator[state_lib.State]:
    """Yield the state in the file `path`; its arrays are lazy columns, open until the end of the `with` block.

    A concurrent save to the same path does not affect it. Opening reads only the manifest and the headers; a column
    raises at its end if it is read in order and its checksum differs.
    """
    path = files_lib.absolute("path", path, "file")
    state_lib.check_progress(progress)
    label = files_lib.named(path)
    if os.path.isdir(path):
        raise errors.CheckpointError(f"{label} is a directory, {rule_of_directory(path)}")
    with files_lib.opened(path) as file:
        with files_lib.raising(path, "cannot be read"):
            values, members, found = _read(file, label)
            report, columns = _Report(sum(member.nbytes for member in members), progress), {}
            for member in members:
                place, named = found[member.file], f"{label}/{member.file}"
                columns[member.name] = npy.Column(member, file, place.start, named, place.crc32, report)
        yield {**values, "arrays": columns}


def _read(file: io.FileIO, label: str) -> tuple[dict[str, Any], list[npy.Member], dict[str, archive.Found]]:
    """Return the values of the state in a file, its arrays, and its members."""
    named = f"{label}/{MANIFEST}"
    head = file.read(HEAD_BYTES)
    if not begins(head):
        refuse_foreign(label, head)
        raise errors.CheckpointError(f"{label} is not a checkpoint")
    _, content = archive.first_of(head)
    if content.startswith(manifest.MARKER):  # Before what another version may do otherwise.
        manifest.require_version(label, content, manifest.FORMAT, manifest.VERSION)
    found = archive.members_of(file, label)
    size = found[MANIFEST].size
    if size > manifest.MOST_BYTES:
        raise errors.CheckpointError(f"{named} must have at most {manifest.MOST_BYTES} bytes, got {size}")
    values, members = manifest.decoded(archive.contents(file, found[MANIFEST], named), named)
    for member in members:
        if member.file not in found:
            raise errors.CheckpointError(f"{label}/{member.file} is missing")
        if found[member.file].size != member.size:
            rule = f"must have {member.size} bytes, got {found[member.file].size}"
            raise errors.CheckpointError(f"{label}/{member.file} {rule}")
    for name in found.keys() - {MANIFEST, *(member.file for member in members)}:
        raise errors.CheckpointError(f"{archive.label_of(label, name)} is not in {MANIFEST}")
    return values, members, found


def faults(path: str, progress: state_lib.Progress | None = None) -> list[str]:
    """Read all of the checkpoint at an absolute path, and return a line for each member that is damaged."""
    broken = []
    try:
        with opened(path, progress=progress) as state:
            for column in state["arrays"].values():
                try:
                    column.verify()
                except errors.CheckpointError as error:
                    broken.append(str(error))
    except errors.CheckpointError as error:
        broken.append(str(error))
    return broken


def read_manifest(path: str) -> tuple[dict[str, Any], list[npy.Member]]:
    """Return the state in a file without its arrays, and what these are; raise CheckpointError as `opened` does."""
    with opened(path) as state:
        columns = state.pop("arrays")
        return state, [column.member for column in columns.values()]
