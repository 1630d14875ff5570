"""ShardQueue: what a shard delivers once, and takes back.

    take      ──►  episodes or groups, all that were asked for or none, and how many more are ready
    put_back  ──►  those that did not reach a learner are delivered to the next one, before all others

A learner numbers its requests, and says with each which reply it kept last. What it did not keep, since its call was
cancelled or the reply was lost, is put back. After a restart of the shard, its buffer alone says what comes again.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, TypeAlias

from relive.agents import groups as groups_lib
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
    """What was delivered to a learner with one request, and when."""

    request: Request
    units: list[Unit]
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
        self._returned: dict[bool, list[Unit]] = {False: [], True: []}
        self._used: dict[chunks.Use, float] = {}
        self._delivered: tuple[int | None, int] = (None, 0)

    def take(self, request: Request, now: float) -> Reply:
        """Return what a request asks for, if all of it is ready; raises as `next_episodes` does."""
        buffer, is_group = self._buffer, request.is_group
        self.put_back(request.learner, request.kept)
        if is_group:
            wanted = buffer._group_request("next_groups", 1, request.max_lag, request.accept)
        else:
            wanted = buffer._episode_request(1, request.max_lag, request.accept, None)
        wanted.count = request.count
        returned = self._fresh(is_group, buffer._least_version(wanted), wanted.accept)
        ready = len(returned) + min(buffer._num_ready(wanted), request.count)
        units: list[Unit] = []
        if 0 < request.take <= ready:
            units, self._returned[is_group] = returned[: request.take], returned[request.take :]
            wanted.count = request.take - len(units)
            if wanted.count:
                units += [[self._described(each) for each in unit] for unit in buffer._take(wanted)]
            self._sent[request.learner] = _Sent(request, units, now)
            self._deliver(sum(map(len, units)))
        return Reply(units=units, ready=ready - len(units), policy_version=buffer.policy_version)

    def put_back(self, learner: bytes, kept: int) -> None:
        """Take back what a learner was sent after the request of that number."""
        sent = self._sent.pop(learner, None)
        if sent is not None and sent.request.number > kept:
            returned = self._returned[sent.request.is_group]
            returned[:0] = sent.units
            self._deliver(-sum(map(len, sent.units)))

    def forget(self, before: float) -> None:
        """Forget what was sent before that time, so that it cannot be put back."""
        for learner, sent in list(self._sent.items()):
            if sent.time < before:
                del self._sent[learner]
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
        waiting += sum([len(unit) for units in self._returned.values() for unit in units])
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
        """Drop episodes as `reject` of the buffer does; one that was put back drops its group."""
        ids, rejected = dict.fromkeys(episode_ids), list[Unit]()
        for is_group, units in self._returned.items():
            for unit in units:
                own = dict.fromkeys(each.episode_id for each in unit)
                ids |= own if own.keys() & ids.keys() else {}
            rejected += [unit for unit in units if unit[0].episode_id in ids]
            self._returned[is_group] = [unit for unit in units if unit[0].episode_id not in ids]
        stored = [self._buffer._store[each] for each in ids if self._buffer._store.has(each)]
        turns = self._buffer._hand_outs.turns(stored)
        num_returned = sum(map(len, rejected))
        self._deliver(num_returned - sum([turn in (queue.DELIVERED, queue.DELIVERED_UNCOUNTED) for turn in turns]))
        dropped: int = self._buffer.reject(list(ids), reason=reason)
        return dropped

    def _deliver(self, episodes: int) -> None:
        """Count episodes that are delivered at the learner's version, or put back."""
        version = self._buffer.policy_version
        before = self._delivered[1] if self._delivered[0] == version else 0
        self._delivered = version, max(before + episodes, 0)

    def _fresh(self, is_group: bool, least: int | None, accept: Callable[[Unit], object] | None) -> list[Unit]:
        """Return what was put back and is wanted; drop the rest."""
        for unit in list(self._returned[is_group]):
            oldest = groups_lib.oldest_version(unit)
            if least is not None and (oldest is None or oldest < least):
                self.reject([unit[0].episode_id], "stale")
            elif accept is not None and not accept(unit):
                self.reject([unit[0].episode_id], "rejected")
        has = self._buffer._store.has
        fresh = self._returned[is_group]
        self._returned[is_group] = [unit for unit in fresh if all(has(each.episode_id) for each in unit)]
        return self._returned[is_group]

    def _described(self, episode: Any) -> Any:
        """Return an episode, with the keys of the shard if it has any."""
        if not isinstance(episode, token_store.EpisodeFacts):
            return episode
        return dataclasses.replace(episode, first_key=episode.first_key + self._first_key)
