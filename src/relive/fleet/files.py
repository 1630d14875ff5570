"""Files: the journal of a shard's buffer and a checkpoint, in one directory.

directory/journal      every batch as one record, with which of its writer it is, and every other change
directory/checkpoint   the whole buffer, saved periodically, including priorities and draws
"""

from collections.abc import Callable
from concurrent import futures
import contextlib
import math
import os
import shutil
import time
from typing import Any

from relive import errors
from relive.persistence import checkpoint as checkpoint_lib
from relive.persistence import codec as codec_lib
from relive.persistence import files
from relive.persistence import journal as journal_lib
from relive.persistence import journal_reader
from relive.persistence import recover

_LEAST_ROOM = 2**16
"""Bytes that a disk must have left, besides those of two large records."""


class Files:
    """The files of one shard, if it has a directory; with the `fsync` of a Journal, and the codec of a buffer."""

    def __init__(self, directory: str | None, fsync: journal_lib.Policy, codec: codec_lib.Codec | None) -> None:
        self._directory = directory
        self._fsync: journal_lib.Policy = fsync
        self._options: dict[str, Any] = {} if codec is None else {"codec": codec}
        self._journal: journal_lib.Journal | None = None
        self._thread = futures.ThreadPoolExecutor(1)
        self._looked = -math.inf
        if directory is not None:
            try:
                os.makedirs(directory, exist_ok=True)
            except OSError as error:
                reason = files.reason(error)
                raise errors.CheckpointError(f"{files.named(directory)} cannot be made: {reason}") from error

    def attached(self, buffer: Any, heard: Callable[[bytes], None], note: Callable[[], bytes]) -> Any:
        """Return the saved buffer, or the given one if there is none, attached to the journal.

        `heard` is called with each note in the journal, and `note` returns one for the beginning of a segment.
        """
        if self._directory is None:
            return buffer
        path = os.path.join(self._directory, "journal")
        # A process may have died before creating the first segment.
        if os.path.isdir(path) and journal_reader.Reading(path).firsts:
            arguments: Any = type(buffer), self._options.get("codec"), None, {}, heard
            with journal_reader.locked(path):
                try:
                    buffer = recover.played_back(path, os.path.join(self._directory, "checkpoint"), *arguments)
                except errors.CheckpointError:  # None, or one that is damaged or too old; the journal has all steps.
                    buffer = recover.played_back(path, None, *arguments)
        self._journal = journal_lib.Journal(path, fsync=self._fsync)
        self._journal._set_note(note)
        is_restart = self._journal.num_records and getattr(buffer, "redeliver", False)
        try:
            with self._journal._group(bytes) if is_restart else contextlib.nullcontext():
                buffer.attach(self._journal, **self._options)
        except errors.CheckpointError:
            if not self._journal._is_behind:  # Otherwise it is attached: the disk is full, for now.
                self._journal.close()
                raise
        return buffer

    def together(self, note: Callable[[], bytes]) -> contextlib.AbstractContextManager[None]:
        """Write the changes of a block as one record, with a note; see Journal."""
        if self._journal is None:
            return contextlib.nullcontext()
        self._check_room(self._journal)
        return self._journal._group(note)

    def _check_room(self, journal: journal_lib.Journal) -> None:
        """Raise CheckpointError if there is no room for a large record; looks once a second while there is."""
        if time.monotonic() - self._looked < 1.0:
            return
        left, least = shutil.disk_usage(journal.path).free, 2 * journal._largest_together + _LEAST_ROOM
        if left < least:
            raise errors.CheckpointError(
                f"{files.named(journal.path)} needs {least} bytes on its disk, which has {left}"
            )
        self._looked = time.monotonic()

    @property
    def has_gathered(self) -> bool:
        """Whether something was changed in the block of `_together`."""
        return self._journal is not None and self._journal._has_gathered

    @property
    def is_behind(self) -> bool:
        """Whether the changes of the last block of `together` could not be written so far."""
        return self._journal is not None and self._journal._is_behind

    def catch_up(self) -> None:
        """Write what could not be written before; see Journal."""
        assert self._journal is not None
        self._journal._catch_up()

    def save(self, buffer: Any) -> futures.Future[None]:
        """Start saving the buffer as it is now, in a thread; the buffer may change meanwhile."""
        if self._directory is None:
            raise errors.ArgumentError("save needs a fleet with a directory: give start(directory=...)")
        state = buffer.state_dict(**self._options)
        return self._thread.submit(checkpoint_lib.save, state, os.path.join(self._directory, "checkpoint"))

    def close(self) -> None:
        """Close the files, once the checkpoints under way are written."""
        self._thread.shutdown()
        if self._journal is not None:
            self._journal.close()

    def delete(self) -> None:
        """Delete the closed files."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
