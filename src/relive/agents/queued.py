"""Queued: a buffer with a learner's queue: what its learner says and asks without waiting, and its state.

    actor                                             learner
    ticket = await buffer.admit()                     await buffer.next_episodes(count)
    await buffer.start_episode(..., ticket=ticket)    buffer.reject(episode_ids)
                                                      buffer.set_policy_version(version)
                                                      buffer.ack(version)
                                                      buffer.resume_policy_version(version)

A queue without a learner is empty, and is told nothing: its ledger begins at once with rules for admission or for
groups, else once one of these calls was made. What waits is in `delivery`.
"""

from collections.abc import Collection, Iterable, Sequence
import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from relive.agents import admission as admission_lib
from relive.agents import bias
from relive.agents import groups as groups_lib
from relive.agents import ledger as ledger_lib
from relive.agents import queue as queue_lib
from relive.agents import waiters
from relive.common import imports
from relive.common import validation
from relive.episodes import sums as sums_lib
from relive.limits import gate as gate_lib
from relive.limits import rate_limiters
from relive.persistence import checkpointable
from relive.persistence import state as state_lib

if TYPE_CHECKING:
    from relive.agents import queue_journal
    from relive.agents import queue_state
    from relive.persistence import commands
else:
    commands = imports.lazy_module("relive.persistence.commands")
    queue_journal = imports.lazy_module("relive.agents.queue_journal")
    queue_state = imports.lazy_module("relive.agents.queue_state")


class Queued(checkpointable.Journalable):
    """A buffer that can admit episodes, and deliver each of them to the learner.

    Args:
        store: The episodes.
        limiter: The limiter with the counts of the buffer.
        still_there: The calls that still work after `close`; for error messages.
        rules: The rules for its actors and its learner.
    """

    _RULES = frozenset({"groups"})
    _HAS_WHOLE_EPISODES: ClassVar[bool] = False
    """Whether episodes are stored when they have ended, so that none is ever open."""

    def __init__(
        self, store: Any, limiter: rate_limiters.LimiterState, still_there: str, rules: queue_lib.Rules
    ) -> None:
        self._store, self._limited, self._rules = store, limiter, rules
        self._gate = gate_lib.Gate(limiter, still_there)
        self._waiters = waiters.DeliveryWaiters()
        self._queue = self._new_queue()

    def _new_queue(self, ledger: ledger_lib.Ledger | None = None) -> queue_lib.LearnerQueue:
        return queue_lib.LearnerQueue(self._store, self._waiters, self._rules, type(self).__name__, ledger)

    @property
    def admission(self) -> admission_lib.Admission | None:
        """The admission rule for starting episodes; None to admit all."""
        return self._rules.admission

    @property
    def groups(self) -> groups_lib.Groups | None:
        """The rule for groups of episodes; None for no groups."""
        return self._rules.groups

    @property
    def redeliver(self) -> bool:
        """Whether what was delivered and not acknowledged is delivered again after a restart."""
        return self._rules.redeliver

    @property
    def rng(self) -> np.random.Generator:
        """The random generator used for sampling."""
        return self._rng

    def close(self) -> None:
        """Close the buffer: calls that wait now, and later calls that write or wait, raise ClosedError.

        What is stored can still be read and drawn, and delivered, by the calls that do not wait. An open episode can no
        longer be ended; leaving its block makes it ABORTED. Any thread may close the buffer. Closing twice has no
        effect.
        """
        self._gate.close()
        self._gate.call_soon(self._waiters.wake)

    def reject(self, episode_ids: Iterable[str], *, reason: str = "rejected") -> int:
        """Drop episodes that were delivered or wait for delivery, and return how many were dropped.

        They are counted under `reason` and give their places back, but stay stored and can be sampled. If an episode
        waits in a group, the whole group is given up. Other ids are ignored: episodes that are open, already dropped or
        rejected, or no longer stored.

        Args:
            episode_ids: Ids of the episodes.
            reason: The reason in `get_drops`; the first hundred reasons are listed by name.

        Raises:
            ArgumentTypeError: episode_ids is one string, or holds something other than strings, or reason is not a
                string.
            ArgumentError: reason is empty.
        """
        ids = validation.items("episode_ids", episode_ids, "strings")
        checked = [validation.string("each of episode_ids", episode_id) for episode_id in ids]
        reason = validation.non_empty_string("reason", reason)
        return self._queue.reject(checked, reason)

    def abort_open_episodes(self) -> int:
        """End what a crash left unfinished, and return how much it was: call it after `recover`, or `load`.

        Every open episode ends as ABORTED, and every group that is not complete is given up: the episodes that wait in
        it are dropped as "straggler", and no other can start in it. All their places come back, and all tickets are
        released. Works on a closed buffer too.

        Returns:
            The number of episodes that were open; in a buffer of tokens, where none is, that of the groups given up.

        Raises:
            CheckpointError: The journal could not be written or synced. Nothing has changed.
        """
        group_ids = self._queue.gathering()
        num_open = len(self._open_ids())
        if num_open or group_ids:
            position = self._position
            is_as_recovered = position is not None and position.written == self._written()
            if self._journal is not None:
                self._journal.write(queue_journal.ABANDON, group_ids)
            self._abandon(group_ids)
            if position is not None and is_as_recovered:
                abandoned = (*position.abandoned, group_ids)
                self._position = dataclasses.replace(position, written=self._written(), abandoned=abandoned)
            self._gate.wake()
            self._wake_ended()
        if self._queue.known is not None:
            self._queue.known.places.release_all()
        return len(group_ids) if self._HAS_WHOLE_EPISODES else num_open

    def _open_ids(self) -> Collection[str]:
        """Return the ids of the open episodes."""
        return ()

    def _abandon(self, group_ids: Sequence[str]) -> None:
        """End all open episodes as ABORTED, and give up those of the groups that are not complete."""
        self._queue.abandon(group_ids)

    def ack(self, version: int) -> None:
        """Acknowledge all that was delivered before the learner had that policy version.

        Call it when the learner has saved the weights of that version, and again after a restart from them: it may have
        been killed in between. What was delivered and not acknowledged is delivered again after `load`,
        `load_state_dict` or `recover`, before all others and in the order of delivery; nothing else is. A group of
        which an episode was evicted or rejected meanwhile is not.

        Args:
            version: At most the learner's policy version.

        Raises:
            ArgumentError: The buffer was made without `redeliver=True`, no policy version was set, or `version` is not
                an integer from 0 to the learner's.
            CheckpointError: The journal could not be written.
        """
        self._queue.ack(version)

    def set_policy_version(self, version: int) -> None:
        """Set the learner's policy version, from which the lag of what is stored is counted.

        The first call after `load`, `load_state_dict` or `recover` counts the places of an Admission anew: what is
        open, or stored, undelivered and not too old for that version, holds one.

        Raises:
            ArgumentTypeError: `version` is not an integer.
            ArgumentError: It is below 0, or below the previous version: `resume_policy_version` goes back.
            CheckpointError: The journal could not be written or synced.
        """
        self._queue.set_version(version)
        self._gate.wake()

    def resume_policy_version(self, version: int) -> None:
        """Let the learner go on from weights of that policy version, newer or older than its own.

        Call it instead of `set_policy_version` if the weights of later versions are lost, after a crash or to go back.
        What was delivered at that version or later, and is not acknowledged, trained weights that are gone. With
        `redeliver` it is delivered again, before all others and in the order of delivery; a group of which an episode
        was evicted or rejected meanwhile is not. Otherwise it is dropped as "resumed". The places of an Admission are
        counted anew, as after a restart. What was generated by later versions has a lag of 0.

        Raises:
            ArgumentTypeError: `version` is not an integer.
            ArgumentError: It is below 0.
            CheckpointError: The journal could not be written or synced.
        """
        self._queue.resume(version)
        self._gate.wake()

    def get_drops(self) -> dict[str, dict[str, int]]:
        """Return the number of episodes dropped before training: reason -> agent_id -> episodes.

        The reasons are "aborted", "cleared", "empty", "evicted", "rejected", "resumed", "stale" and "straggler", and
        those given to `reject`. The first thousand agents are listed by name, the others as "(others)". A buffer that
        is only sampled from drops nothing.
        """
        if self._queue.known is None:
            return {}
        self._queue.known.pass_time()
        return self._queue.known.drops.view()

    def get_training_bias(self) -> bias.TrainingBias:
        """Return statistics of all ended episodes, and of those that the learner trained on.

        The latter are those that were sampled, or delivered and not rejected. O(stored steps).
        """
        sums = sums_of(self)
        return bias.TrainingBias(produced=sums.produced.totals(), trained=sums.trained.totals())

    # State.

    def _queue_snapshot(self) -> "queue_state.Snapshot":
        return queue_state.snapshot(self._queue.known, self._store.sums)

    def _base_queue_state(self) -> dict[str, Any]:
        """Return the state of the queue as if everything stored had just been evicted."""
        return queue_state.snapshot(self._queue.known, sums_of(self), is_empty=True).state_dict([])

    def _load_queue(self, given: state_lib.StateReader) -> None:
        """Restore the queue of a state, given the episodes of that state in the store."""
        self._queue.refuse_while_asking("load_state_dict")
        rules = {"admission": self.admission, "groups": self.groups}
        ledger = queue_state.load(given, self._store, self._queue.new_ledger, rules)
        if ledger is not None and self.redeliver and not given.part("settings").boolean("redeliver"):
            ledger.acknowledge(validation.LARGEST + 1)  # Nobody could.
        self._queue = self._new_queue(ledger)

    def _swap(self, twin: Any) -> None:
        super()._swap(twin)
        self._limited.counts = self._store
        self._gate.wake()
        self._waiters.wake()

    def _restarted(self) -> Self:
        """Let what was not acknowledged wait again, and return the buffer."""
        self._queue.restart()
        return self

    def _since_recovery(self, position: checkpointable.Position) -> list[tuple[int, bytes]]:
        restarts = [(queue_journal.RESTART, commands.encoded())] if self.redeliver else []
        return restarts + [(queue_journal.ABANDON, commands.encoded(ids)) for ids in position.abandoned]

    def _attach(self, *arguments: Any, **options: Any) -> None:
        super()._attach(*arguments, **options)
        self._queue.write_to(self._journal)

    def detach(self) -> None:
        """Stop writing to the journal, which stays open; does nothing if there is none."""
        super().detach()
        self._queue.write_to(None)

    def _wake_ended(self) -> None:
        """Wake the callers that wait for the end of an episode."""
        self._waiters.wake_learner()
        if self.admission is not None and self.admission.max_running is not None:
            self._waiters.wake_starts()


def sums_of(buffer: Queued) -> sums_lib.Sums:
    """Return the sums over all ended episodes of a buffer, stored or not. O(stored steps)."""
    of_store: sums_lib.Sums = buffer._store.sums
    return of_store.with_stored(buffer._store)


_NONE = queue_lib.LearnerQueue(None, waiters.DeliveryWaiters(), queue_lib.Rules(None, None, False, {}), "nothing")


def queue_of(buffer: Any) -> queue_lib.LearnerQueue:
    """Return the queue of a buffer, for those who serve learners and actors elsewhere; an empty one of columns."""
    return buffer._queue if isinstance(buffer, Queued) else _NONE
