"""Files: the journal of a shard's buffer, a checkpoint, and a ledger, in one directory.

directory/journal      every step and every end, before it is stored
directory/checkpoint   the whole buffer, saved periodically, including priorities and draws
directory/ledger       which batch of each writer was begun
"""

from concurrent import futures
import contextlib
import os
import shutil
from typing import Any

from relive import errors
from relive.fleet import ledger as ledger_lib
from relive.persistence import checkpoint as checkpoint_lib
from relive.persistence import codec as codec_lib
from relive.persistence import files
from relive.persistence import journal as journal_lib
from relive.persistence import journal_reader
from relive.persistence import recover


class Files:
    """The files of one shard.

    Args:
        directory: The directory; None for no files.
        fsync: When stored steps are synced to disk; see Journal.
        codec: Encodes observations and actions of an episode buffer; None for a PlainCodec.

    Raises:
        CheckpointError: The directory could not be created.
    """

    def __init__(self, directory: str | None, fsync: journal_lib.Policy, codec: codec_lib.Codec | None) -> None:
        self._directory = directory
        self._fsync: journal_lib.Policy = fsync
        self._options: dict[str, Any] = {} if codec is None else {"codec": codec}
        self._journal: journal_lib.Journal | None = None
        self._thread = futures.ThreadPoolExecutor(1)
        if directory is not None:
            try:
                os.makedirs(directory, exist_ok=True)
            except OSError as error:
                reason = files.reason(error)
                raise errors.CheckpointError(f"{files.named(directory)} cannot be made: {reason}") from error
        self.ledger = ledger_lib.Ledger(None if directory is None else os.path.join(directory, "ledger"))

    def attached(self, buffer: Any) -> Any:
        """Return the saved buffer, or the given one if there is none, attached to the journal.

        Raises:
            CheckpointError: The files cannot be read back.
        """
        if self._directory is None:
            return buffer
        path = os.path.join(self._directory, "journal")
        if _has_begun(path):
            buffer = self._recovered(path, type(buffer))
        self._journal = journal_lib.Journal(path, fsync=self._fsync)
        buffer.attach(self._journal, **self._options)
        return buffer

    def save(self, buffer: Any) -> futures.Future[None]:
        """Start saving the buffer as it is now, in a thread; the buffer may change meanwhile.

        The future raises CheckpointError if the checkpoint could not be written.

        Raises:
            ArgumentError: There is no directory.
        """
        if self._directory is None:
            raise errors.ArgumentError("save needs a fleet with a directory: give start(directory=...)")
        state = buffer.state_dict(**self._options)
        return self._thread.submit(checkpoint_lib.save, state, os.path.join(self._directory, "checkpoint"))

    def close(self) -> None:
        """Close the files, once the checkpoints under way are written."""
        self._thread.shutdown()
        if self._journal is not None:
            self._journal.close()
        self.ledger.close()

    def delete(self) -> None:
        """Delete the closed files."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _recovered(self, journal: str, kind: type[Any]) -> Any:
        assert self._directory is not None
        checkpoint = os.path.join(self._directory, "checkpoint")
        if os.path.isdir(checkpoint):
            # The checkpoint may be older than the journal, or damaged; the journal has all steps.
            with contextlib.suppress(errors.CheckpointError):
                return recover.recover(journal, checkpoint=checkpoint, buffer_class=kind, **self._options)
        return recover.recover(journal, buffer_class=kind, **self._options)


def _has_begun(path: str) -> bool:
    """Return whether there is a journal; a process may have died before creating its first segment."""
    if not os.path.isdir(path):
        return False
    return bool(journal_reader.Reading(path).firsts)
