"""Checkpoints: states saved as directories, atomically, and validated when read.

    buffer/manifest.json          everything but arrays, and the dtype, shape and CRC-32 of each array
    buffer/rows.reward.npy        the array "rows/reward"

See `manifest` for the manifest, `npy` for the array files, and `files` for crash safety.
"""

from collections.abc import Callable, Iterator
from concurrent import futures
import contextlib
import io
import os
from typing import Any, TypeAlias

from relive import errors
from relive.common import validation
from relive.persistence import dtypes
from relive.persistence import files as files_lib
from relive.persistence import manifest
from relive.persistence import npy
from relive.persistence import state as state_lib

Path: TypeAlias = str | os.PathLike[str]

_ATTEMPTS = 100
"""So often in a row may a writer replace a directory while it is being opened."""
_OF_FILES = frozenset((".npz", ".npy", ".pkl", ".pickle", ".pt", ".pth", ".h5", ".hdf5", ".parquet", ".zip", ".json"))
"""Endings that suggest a single file."""


def save(state: state_lib.State, path: Path, *, keep: int = 1, progress: state_lib.Progress | None = None) -> None:
    """Save a state as the directory `path`, and keep the `keep` - 1 before it as `path`.1, `path`.2 and so on.

    The old directory is kept until the new one is complete and on disk; a crash leaves either. Memory use beyond the
    state, in which arrays and columns have at least one axis, is one chunk of `state.CHUNK` bytes.

    >>> import os, tempfile
    >>> import numpy as np
    >>> from relive.persistence import checkpoint
    >>> with tempfile.TemporaryDirectory() as parent:
    ...     path = os.path.join(parent, "numbers")
    ...     checkpoint.save({"count": 3, "arrays": {"primes": np.array([2, 3, 5])}}, path)
    ...     with checkpoint.opened(path) as state:
    ...         state["count"], state["arrays"]["primes"].read(0, 3)
    (3, array([2, 3, 5]))
    """
    path = files_lib.absolute("path", path)
    ending = os.path.splitext(path)[1].lower()
    if ending in _OF_FILES:
        said = validation.short_repr(os.path.basename(path))
        raise errors.ArgumentError(f"path must be a directory, got {said}: a checkpoint is one, so leave {ending} out")
    keep = validation.positive_int("keep", keep)
    state_lib.check_progress(progress)
    values = {name: value for name, value in state.items() if name != "arrays"}
    arrays: dict[str, Any] = state["arrays"]
    manifest.check_values(values)
    for name, column in arrays.items():
        npy.check_dtype(f"array {name!r}", column.dtype)
        if len(column.shape) > dtypes.MOST_AXES:
            raise errors.ArgumentError(
                f"array {name!r} must have at most {dtypes.MOST_AXES} axes, got {len(column.shape)}"
            )
    total = sum(npy.size_of(column.dtype, npy.shape_of(column)) for column in arrays.values())
    with files_lib.raising(path, "cannot be saved"), files_lib.locked(path):
        new = files_lib.new_directory(path)
        try:
            _write(new, values, arrays, _Report(total, progress))
            files_lib.replace_directory(new, path, keep)
        except BaseException:
            with contextlib.suppress(OSError, errors.CheckpointError):
                files_lib.remove_directory(new)
            raise
    if progress is not None:
        progress(total, total)


@contextlib.contextmanager
def opened(path: Path, *, progress: state_lib.Progress | None = None) -> Iterator[state_lib.State]:
    """Yield the state in the directory `path`; its arrays are lazy columns, open until the end of the `with` block.

    A concurrent save to the same path does not affect it. After a crash between two renames, which left only `path`.1,
    it reads that. Opening reads only the manifest; a column raises at its end if it is read in order and its checksum
    differs.
    """
    path = files_lib.absolute("path", path)
    state_lib.check_progress(progress)
    with contextlib.ExitStack() as files:
        state, broken = _opened(path, files, progress)
        if broken:
            raise errors.CheckpointError("; ".join(broken))
        yield state


def faults(path: str, progress: state_lib.Progress | None = None) -> list[str]:
    """Read all files of the checkpoint at an absolute path, and return a line for each that is broken."""
    with contextlib.ExitStack() as files:
        state, broken = _opened(path, files, progress)
        for column in state["arrays"].values():
            try:
                column.verify()
            except errors.CheckpointError as error:
                broken.append(str(error))
    return broken


class _Report:
    """Adds up bytes, and reports the sum."""

    def __init__(self, total: int, progress: state_lib.Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def __call__(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done, self._total)


def _write(new: str, values: dict[str, Any], arrays: dict[str, Any], report: Callable[[int], None]) -> None:
    """Write all files into the directory `new`, and sync them and it."""
    entries = {}
    with files_lib.Directory(new) as directory:
        # One file is synced while the next one is written.
        with contextlib.ExitStack() as opened, futures.ThreadPoolExecutor(1) as executor:
            synced = []
            for name, column in arrays.items():
                file_name = manifest.file_name(name)
                file = opened.enter_context(open(directory.create(file_name), "wb", buffering=0))
                crc32 = npy.write(file.fileno(), f"array {name!r}", column, report)
                entries[name] = manifest.Entry(file_name, column.dtype, npy.shape_of(column), crc32)
                synced.append(executor.submit(_sync, file))
            for each in synced:
                each.result()
        files_lib.write_file(directory.create(files_lib.MANIFEST), manifest.encoded(values, entries))
    files_lib.fsync_directory(new)


def _sync(file: io.FileIO) -> None:
    with file:
        files_lib.fsync_file(file.fileno())


def _opened(
    path: str, files: contextlib.ExitStack, progress: state_lib.Progress | None
) -> tuple[state_lib.State, list[str]]:
    """Return the state of a directory and a line for each broken file, and leave the others open on `files`."""
    for _ in range(_ATTEMPTS):
        place = files_lib.newest(path)
        before = _identity(place)
        with contextlib.ExitStack() as attempt:
            state, broken = _state(place, attempt, progress)
            if not broken or before == _identity(files_lib.newest(path)):  # Otherwise it was replaced meanwhile.
                files.push(attempt.pop_all())
                return state, broken
    raise errors.CheckpointError(f"{files_lib.named(path)} is replaced again and again: stop its writer")


def _identity(path: str) -> tuple[int, int, int] | None:
    """Return the identity of a directory, which differs from others of its name even if the inode is reused."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _state(
    path: str, files: contextlib.ExitStack, progress: state_lib.Progress | None
) -> tuple[state_lib.State, list[str]]:
    arrays: dict[str, npy.Reader] = {}
    try:
        directory, values, entries = read_manifest(path, files)
    except errors.CheckpointError as error:
        return {"arrays": arrays}, [str(error)]
    report, broken = _Report(sum(entry.row_bytes for entry in entries.values()), progress), []
    for name, entry in entries.items():
        label = f"{files_lib.named(path)}/{entry.file}"
        try:
            reader = npy.Reader(directory.open(entry.file), label, entry.dtype, entry.shape, entry.crc32, report)
        except errors.CheckpointError as error:
            broken.append(str(error))
        else:
            arrays[name] = files.enter_context(contextlib.closing(reader))
    return {**values, "arrays": arrays}, broken


def read_manifest(
    path: str, files: contextlib.ExitStack
) -> tuple[files_lib.Directory, dict[str, Any], dict[str, manifest.Entry]]:
    """Return the directory of a checkpoint, open on `files`, and the values and entries of its manifest.

    CheckpointError says that there is none, or that the manifest is not valid.
    """
    label = files_lib.named(path)
    with files_lib.raising(path, "cannot be read"):
        try:
            directory = files.enter_context(files_lib.Directory(path, follow=True))
        except FileNotFoundError:
            raise errors.CheckpointError(f"{label} does not exist") from None
        if not directory.has(files_lib.MANIFEST):
            raise errors.CheckpointError(f"{label} is not a checkpoint: it has no {files_lib.MANIFEST}")
        with open(directory.open(files_lib.MANIFEST), "rb") as file:
            raw = file.read(manifest.MOST_BYTES + 1)
    if len(raw) > manifest.MOST_BYTES:
        raise errors.CheckpointError(f"{label}/{files_lib.MANIFEST} must have at most {manifest.MOST_BYTES} bytes")
    return directory, *manifest.decoded(raw, f"{label}/{files_lib.MANIFEST}")
