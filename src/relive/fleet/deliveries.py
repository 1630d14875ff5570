"""ShardQueue: what a shard delivers once, and takes back.

    take      ──►  episodes or groups, all that were asked for or none, and how many more are ready
    put_back  ──►  those that did not reach a learner wait in the buffer again, before all others

A learner numbers its requests, and says with each which reply it kept last. What it did not keep, since its call was
cancelled or the reply was lost, is put back. After a restart of the shard, its buffer alone says what comes again.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import math
import os
from typing import Any, NamedTuple, TypeAlias

from relive.agents import facts
from relive.agents import queue as queue_lib
from relive.agents import queued
from relive.fleet import replies

Unit: TypeAlias = list[Any]
"""An episode, or those of a group."""


class Request(NamedTuple):
    """The name of a learner, the number of its request, and that of the newest one whose reply it kept; 0 if none."""

    learner: bytes
    number: int
    kept: int


class Wanted(NamedTuple):
    """What a client wants of all shards together; its shards check it, and raise as the call of a buffer does."""

    kind: queue_lib.Kind
    most: int
    max_lag: int | None = None
    accept: Any = None


class Places(NamedTuple):
    """What an admission must know of a shard: how many episodes it has delivered at that version, and how many run.

    Those that run, or wait to be delivered and are not too old for the learner that asked last, are outstanding. The
    uses are, by ticket, which of its episodes have reached the shard, and whether they returned their places to it.
    """

    incarnation: int
    policy: replies.Policy
    delivered: int
    outstanding: int
    running: int
    uses: dict[bytes, dict[int, bool]]


class ShardQueue:
    """What a shard delivers once of its buffer, given the key of the shard for key 0."""

    def __init__(self, buffer: Any, first_key: int) -> None:
        self._buffer, self._first_key = buffer, first_key
        self._first_number = int.from_bytes(os.urandom(6))
        # By learner: the number of its newest request, the ids of each unit that it was sent, and when.
        self._sent: dict[bytes, tuple[int, list[list[str]], float]] = {}
        # By ticket: which of its episodes have come, whether they failed, and when the newest came.
        self._uses: dict[bytes, tuple[dict[int, bool], float]] = {}
        self._asked = -math.inf
        self._max_lag: int | None = None
        # The episodes delivered at the learner's version.
        self._version: int | None = None
        self._delivered: set[str] = set()

    @property
    def own(self) -> queue_lib.LearnerQueue:
        """The queue of the buffer."""
        return queued.queue_of(self._buffer)

    @property
    def number(self) -> int:
        """A number that changes whenever one who waits for this queue should look again; 0 without a queue."""
        changes = self.own.changes
        return self._first_number + changes if changes else 0

    def take(self, request: Request, now: float, number: int, wanted: Wanted) -> tuple[list[Unit], int]:
        """Return that many episodes or groups, if they are ready, and how many more are; see LearnerQueue.take."""
        newest, *_ = self._sent.get(request.learner, (0,))
        if newest > request.kept:
            self.put_back(request.learner, newest)
        self._sent.pop(request.learner, None)
        self._asked = now
        # Of one shard nothing is refused for being too many.
        asked = self.own.request(wanted.kind, f"next_{wanted.kind}", 1, wanted.max_lag, wanted.accept)
        units, ready = self.own.take(dataclasses.replace(asked, count=wanted.most), number)
        self._max_lag = wanted.max_lag
        if units:
            ids = [[episode.episode_id for episode in unit] for unit in units]
            self._sent[request.learner] = request.number, ids, now
            self._now_delivered().update(*ids)
        return [[self._with_key(each) for each in unit] for unit in units], ready

    def put_back(self, learner: bytes, number: int) -> None:
        """Take back what a learner was sent with the request of that number."""
        newest, ids, _ = self._sent.get(learner, (0, [], 0.0))
        if newest == number:
            self.own.put_back(ids)
            self._sent.pop(learner, None)
            self._now_delivered().difference_update(*ids)

    def ack(self, version: int, kept: Mapping[bytes, int]) -> None:
        """Acknowledge what was delivered before a version, but for requests newer than the last that a learner kept."""
        in_doubt = [ids for learner, (number, ids, _) in self._sent.items() if number > kept.get(learner, 0)]
        self.own.ack(version, [each for ids in in_doubt for unit in ids for each in unit])

    def forget(self, before: float) -> None:
        """Forget what was sent before that time, so that it cannot be put back."""
        self._sent = {learner: sent for learner, sent in self._sent.items() if sent[-1] >= before}
        self._uses = {ticket: uses for ticket, uses in self._uses.items() if uses[-1] >= before}

    def note(self, chunk: Any, now: float) -> None:
        """Record that an episode with a ticket has arrived, or has returned its place to it."""
        for what in ("ticket", "returned"):
            use = getattr(chunk, what, None)
            if use is not None:
                uses, _ = self._uses.get(use[0], ({}, now))
                uses[use[1]] = uses.get(use[1], False) or what == "returned"
                self._uses[use[0]] = uses, now

    def resumed(self) -> None:
        """Record that a learner resumed: what was sent and waits again, or was dropped, cannot be put back."""
        self._delivered.clear()
        for learner, (number, ids, sent) in self._sent.items():
            self._sent[learner] = number, [unit for unit in ids if self.own.are_delivered(unit)], sent

    def places(self, incarnation: int, policy: replies.Policy, tickets: Iterable[bytes]) -> Places:
        """Return what an admission must know. The costs do not grow with what is stored."""
        uses = {name: self._uses[name][0].copy() for name in tickets if name in self._uses}
        delivered = len(self._now_delivered())
        return Places(incarnation, policy, delivered, *self.own.num_outstanding(self._max_lag), uses)

    def reject(self, episode_ids: list[str], reason: str) -> int:
        """Drop episodes as `reject` of the buffer does."""
        dropped: int = self._buffer.reject(episode_ids, reason=reason)
        self._now_delivered().difference_update(episode_ids)
        return dropped

    def is_needed(self, group_ids: Iterable[str], since: float) -> bool:
        """Return whether one of those groups is not complete, or anything waits and a learner has asked since then."""
        outstanding, running = self.own.num_outstanding() if self._asked >= since else (0, 0)
        is_in_doubt = any(sent[-1] >= since for sent in self._sent.values())  # It may have to be taken back.
        return is_in_doubt or outstanding > running or not all(map(self.own.is_past, group_ids))

    def _now_delivered(self) -> set[str]:
        """Return the ids of the episodes that were delivered at the learner's version."""
        if self._version != self._buffer.policy_version:
            self._version = self._buffer.policy_version
            self._delivered.clear()
        return self._delivered

    def _with_key(self, episode: Any) -> Any:
        if not isinstance(episode, facts.EpisodeFacts):
            return episode
        return dataclasses.replace(episode, first_key=episode.first_key + self._first_key)
