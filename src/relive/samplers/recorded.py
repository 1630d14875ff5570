"""Recorded: a buffer with a sampler, whose journal may record priorities too."""

import abc
from typing import TYPE_CHECKING

from relive.common import validation
from relive.persistence import checkpointable
from relive.samplers import prioritized
from relive.samplers import sampler as sampler_lib

if TYPE_CHECKING:
    from relive.persistence import journal as journal_lib


class Recorded(checkpointable.Journalable):
    """A buffer with a sampler, which can write its changes to a journal."""

    @property
    @abc.abstractmethod
    def sampler(self) -> sampler_lib.Sampler | None:
        """The sampler; None if draws are uniform without one."""

    def attach(self, journal: "journal_lib.Journal", *, priorities: bool = False) -> None:
        """Write every change to a journal from now on, in the call that makes it, so that none is lost.

        An empty journal begins with everything stored now: as one record, or, above 16 MiB, as a checkpoint in its
        directory. A journal with contents is continued: the buffer must be the one that `recover` returned. Draws are
        not written.

        Args:
            journal: An open journal that no other buffer writes to. While it is attached, a call that cannot be
                journaled raises CheckpointError and changes nothing.
            priorities: Whether to journal `update_priorities` too, 16 bytes per priority.

        Raises:
            ArgumentError: A journal is already attached, this one does not match the buffer, or `priorities` is set and
                the buffer has none.
            CheckpointError: The journal could not be written.
        """
        if validation.boolean("priorities", priorities):
            prioritized.required(self.sampler, "attach with priorities=True")
        self._attach(journal, priorities=priorities)
