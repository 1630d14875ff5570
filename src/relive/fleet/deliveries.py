"""ShardQueue: what a shard delivers once, and takes back.

    take      ──►  episodes or groups, all that were asked for or none, and how many more are ready
    put_back  ──►  those that did not reach a learner wait in the buffer again, before all others

A learner numbers its requests, and says with each which reply it kept last. What it did not keep, since its call was
cancelled or the reply was lost, is put back. After a restart of the shard, its buffer alone says what comes again.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, TypeAlias

from relive.agents import queue
from relive.agents import token_store
from relive.fleet import chunks

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
        max_lag: As in `next_groups`, like the next one.
        accept: Decides whether an item is wanted.
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
    """The reply to a request.

    Attributes:
        units: What is delivered.
        ready: How many more are ready, at most as many as the learner needs.
        policy_version: The learner's policy version, as far as the shard knows.
    """

    units: list[Unit]
    ready: int
    policy_version: int | None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """What an admission must know of a shard.

    Attributes:
        incarnation: Its incarnation.
        policy_version: The learner's policy version, as far as the shard knows.
        delivered: Number of episodes delivered at that version, by this incarnation.
        outstanding: Number of episodes that run, or wait to be delivered.
        running: Number of those that run.
        used: Which episodes of each ticket have reached the shard.
    """

    incarnation: int
    policy_version: int | None
    delivered: int
    outstanding: int
    running: int
    used: dict[bytes, list[int]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Sent:
    """What was delivered to a learner with one request: the ids of each unit, and when."""

    number: int
    units: list[list[str]]
    time: float


class ShardQueue:
    """What a shard delivers once.

    Args:
        buffer: Its buffer.
        first_key: The key of the fleet's shard for key 0 of the buffer.
    """

    def __init__(self, buffer: Any, first_key: int) -> None:
        self._buffer, self._first_key = buffer, first_key
        self._sent: dict[bytes, _Sent] = {}
        self._used: dict[chunks.Use, float] = {}
        self._delivered: tuple[int | None, int] = (None, 0)

    def take(self, request: Request, now: float) -> Reply:
        """Return what a request asks for, if all of it is ready; raises as `next_episodes` does."""
        buffer = self._buffer
        self.put_back(request.learner, request.kept)
        if request.is_group:
            wanted = buffer._group_request("next_groups", 1, request.max_lag, request.accept)
        else:
            wanted = buffer._episode_request(1, request.max_lag, request.accept, None)
        wanted.count = request.count
        ready = min(buffer._num_ready(wanted), request.count)
        units: list[Unit] = []
        if 0 < request.take <= ready:
            wanted.count = request.take
            units = [[self._described(each) for each in unit] for unit in buffer._take(wanted)]
            ids = [[each.episode_id for each in unit] for unit in units]
            self._sent[request.learner] = _Sent(request.number, ids, now)
            self._deliver(sum(map(len, units)))
        return Reply(units=units, ready=ready - len(units), policy_version=buffer.policy_version)

    def put_back(self, learner: bytes, kept: int) -> None:
        """Take back what a learner was sent after the request of that number."""
        sent = self._sent.pop(learner, None)
        if sent is not None and sent.number > kept:
            self._buffer._put_back(sent.units)
            self._deliver(-sum(map(len, sent.units)))

    def ack(self, version: int, kept: Mapping[bytes, int]) -> None:
        """Acknowledge what was delivered before the learner had a version; raises as `ack` of the buffer does.

        What other learners were sent may not have reached them: it counts as delivered only now.

        Args:
            version: The version.
            kept: By the names of the learner, the number of the newest request whose reply it kept.
        """
        for learner, number in kept.items():
            self.put_back(learner, number)
        for sent in self._sent.values():
            self._buffer._deliver_again(sent.units)
        self._buffer.ack(version)

    def forget(self, before: float) -> None:
        """Forget what was sent before that time, so that it cannot be put back."""
        self._sent = {learner: sent for learner, sent in self._sent.items() if sent.time >= before}
        self._used = {use: time for use, time in self._used.items() if time >= before}

    def use(self, ticket: chunks.Use, now: float) -> None:
        """Record that an episode with a ticket has arrived."""
        self._used[ticket] = now

    def places(self, incarnation: int) -> Places:
        """Return what an admission must know."""
        buffer, hand_outs = self._buffer, self._buffer._hand_outs
        hand_outs.pass_time()
        self._deliver(0)
        ended = [each for each in buffer._store.finished if each.status != "ABORTED" and len(each)]
        waiting = sum([turn in (queue.PENDING, queue.PENDING_UNCOUNTED) for turn in hand_outs.turns(ended)])
        used: dict[bytes, list[int]] = {}
        for name, number in self._used:
            used.setdefault(name, []).append(number)
        running = len(buffer._store.open)
        return Places(
            incarnation=incarnation,
            policy_version=buffer.policy_version,
            delivered=self._delivered[1],
            outstanding=waiting + running,
            running=running,
            used=used,
        )

    def reject(self, episode_ids: Sequence[str], reason: str) -> int:
        """Drop episodes as `reject` of the buffer does."""
        buffer = self._buffer
        stored = [buffer._store[each] for each in dict.fromkeys(episode_ids) if buffer._store.has(each)]
        turns = buffer._hand_outs.turns(stored)
        self._deliver(-sum([turn in (queue.DELIVERED, queue.DELIVERED_UNCOUNTED) for turn in turns]))
        dropped: int = buffer.reject(episode_ids, reason=reason)
        return dropped

    def _deliver(self, episodes: int) -> None:
        """Count episodes that are delivered at the learner's version, or put back."""
        version = self._buffer.policy_version
        before = self._delivered[1] if self._delivered[0] == version else 0
        self._delivered = version, max(before + episodes, 0)

    def _described(self, episode: Any) -> Any:
        """Return an episode, with the keys of the shard if it has any."""
        if not isinstance(episode, token_store.EpisodeFacts):
            return episode
        return dataclasses.replace(episode, first_key=episode.first_key + self._first_key)
