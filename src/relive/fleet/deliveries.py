"""ShardQueue: what a shard delivers once, and takes back.

    take      ──►  episodes or groups, all that were asked for or none, and how many more are ready
    put_back  ──►  those that did not reach a learner wait in the buffer again, before all others

A learner numbers its requests, and says with each which reply it kept last. What it did not keep, since its call was
cancelled or the reply was lost, is put back. After a restart of the shard, its buffer alone says what comes again.
"""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import math
import os
from typing import Any, TypeAlias

from relive.agents import delivery
from relive.agents import token_store
from relive.fleet import replies

Unit: TypeAlias = list[Any]
"""An episode, or those of a group."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request for the next episodes or groups of a shard.

    Attributes:
        learner: The name of the client, 16 bytes, another one for groups.
        number: The number of the request.
        kept: The number of the newest request to this shard whose reply was kept; 0 if none.
        is_group: Whether groups are asked for.
        take: How many to deliver; 0 only to tell how many are ready.
        count: How many the learner needs.
        max_lag, accept: As in `next_groups`.
        policy_version: The learner's policy version, if known.
    """

    learner: bytes
    number: int
    kept: int
    is_group: bool
    take: int
    count: int
    max_lag: int | None
    accept: Callable[[Any], bool] | None
    policy_version: int | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What is delivered, how many more are ready, and what the shard knows."""

    units: list[Unit]
    ready: int
    policy_version: int | None
    progress: replies.Progress


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """What an admission must know of a shard.

    Attributes:
        incarnation: Its incarnation.
        policy_version: The learner's policy version, as far as the shard knows.
        delivered: Number of episodes delivered at that version, by this incarnation.
        outstanding: Number of episodes that run, or wait to be delivered.
        running: Number of those that run.
        uses: By ticket, which of its episodes have reached the shard, and whether they returned their places to it.
    """

    incarnation: int
    policy_version: int | None
    delivered: int
    outstanding: int
    running: int
    uses: dict[bytes, dict[int, bool]]


@dataclasses.dataclass(slots=True)
class _Sent:
    """What was delivered to a learner with the request of that number: the ids of each unit, and when."""

    number: int
    units: list[list[str]]
    time: float


class ShardQueue:
    """What a shard delivers once; a buffer of columns delivers nothing.

    Args:
        buffer: Its buffer.
        first_key: The key of the fleet's shard for key 0 of the buffer.
    """

    def __init__(self, buffer: Any, first_key: int) -> None:
        self._buffer, self._first_key = buffer, first_key
        self._queue = delivery.Deliveries(buffer) if isinstance(buffer, delivery.Delivering) else None
        self._first_number = int.from_bytes(os.urandom(6))
        self._sent: dict[bytes, _Sent] = {}
        # By ticket, when an episode came last, and which have come.
        self._uses: dict[bytes, tuple[float, dict[int, bool]]] = {}
        self._asked = -math.inf
        # The episodes delivered at the learner's version.
        self._version: int | None = None
        self._delivered: set[str] = set()

    @property
    def number(self) -> int:
        """A number that changes whenever one who waits for this queue should look again; 0 without a queue."""
        changes = 0 if self._queue is None else self._queue.changes
        return self._first_number + changes if changes else 0

    def take(self, request: Request, now: float) -> tuple[list[Unit], int]:
        """Return what a request asks for, if all of it is ready, and how many more are; raises as `next_episodes`."""
        assert self._queue is not None
        sent, self._asked = self._sent.get(request.learner), now
        if sent is not None and sent.number > request.kept:
            self.put_back(request.learner, sent.number)
        self._sent.pop(request.learner, None)
        units, ready = self._queue.take(
            request.take, request.count, groups=request.is_group, max_lag=request.max_lag, accept=request.accept
        )
        if units:
            ids = [[episode.episode_id for episode in unit] for unit in units]
            self._sent[request.learner] = _Sent(request.number, ids, now)
            self._now_delivered().update(*ids)
        return [[self._described(each) for each in unit] for unit in units], ready

    def put_back(self, learner: bytes, number: int) -> None:
        """Take back what a learner was sent with the request of that number."""
        sent = self._sent.get(learner)
        if sent is not None and sent.number == number:
            assert self._queue is not None
            self._queue.put_back(sent.units)
            del self._sent[learner]
            self._now_delivered().difference_update(*sent.units)

    def ack(self, version: int, kept: Mapping[bytes, int]) -> None:
        """Acknowledge what was delivered before the learner had a version; raises as `ack` of the buffer does.

        Except for what was sent and may not have reached a learner.

        Args:
            version: The version.
            kept: By the names of the learner, the number of the newest request whose reply it kept.
        """
        assert self._queue is not None
        in_doubt = [sent for learner, sent in self._sent.items() if sent.number > kept.get(learner, 0)]
        self._queue.ack(version, [each for sent in in_doubt for unit in sent.units for each in unit])

    def forget(self, before: float) -> None:
        """Forget what was sent before that time, so that it cannot be put back."""
        self._sent = {learner: sent for learner, sent in self._sent.items() if sent.time >= before}
        self._uses = {name: (time, uses) for name, (time, uses) in self._uses.items() if time >= before}

    def note(self, chunk: Any, now: float) -> None:
        """Record that an episode with a ticket has arrived, or has returned its place to it."""
        for what in ("ticket", "returned"):
            use = getattr(chunk, what, None)
            if use is not None:
                _, uses = self._uses.get(use[0], (now, {}))
                uses[use[1]] = uses.get(use[1], False) or what == "returned"
                self._uses[use[0]] = now, uses

    def places(self, incarnation: int, tickets: Iterable[bytes]) -> Places:
        """Return what an admission must know, which costs nothing that grows with what is stored."""
        assert self._queue is not None
        outstanding, running = self._queue.places()
        return Places(
            incarnation=incarnation,
            policy_version=self._buffer.policy_version,
            delivered=len(self._now_delivered()),
            outstanding=outstanding,
            running=running,
            uses={name: self._uses[name][1] for name in tickets if name in self._uses},
        )

    def reject(self, episode_ids: list[str], reason: str) -> int:
        """Drop episodes as `reject` of the buffer does."""
        dropped: int = self._buffer.reject(episode_ids, reason=reason)
        self._now_delivered().difference_update(episode_ids)
        return dropped

    def abandon(self, group_ids: Iterable[str]) -> int:
        """Give up those of the groups that are not complete and hold places, and return how many there were."""
        return 0 if self._queue is None else self._queue.give_up(group_ids)

    def groups(self) -> list[str]:
        """Return the ids of the groups that are not complete."""
        return [] if self._queue is None else self._queue.gathering()

    def is_needed(self, group_ids: Iterable[str], since: float) -> bool:
        """Return whether one of those groups is not complete, or anything waits and a learner has asked since then."""
        if self._queue is None:
            return False
        outstanding, running = self._queue.places() if self._asked >= since else (0, 0)
        return outstanding > running or not all(map(self._queue.is_past, group_ids))

    def _now_delivered(self) -> set[str]:
        """Return the ids of the episodes that were delivered at the learner's version."""
        if self._version != self._buffer.policy_version:
            self._version = self._buffer.policy_version
            self._delivered.clear()
        return self._delivered

    def _described(self, episode: Any) -> Any:
        """Return an episode, with the keys of the shard if it has any."""
        if not isinstance(episode, token_store.EpisodeFacts):
            return episode
        return dataclasses.replace(episode, first_key=episode.first_key + self._first_key)
