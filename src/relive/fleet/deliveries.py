"""ShardQueue: what a shard delivers once, and takes back.

    take      ──►  episodes or groups, all that were asked for or none, and how many more are ready
    put_back  ──►  those that did not reach a learner wait in the buffer again, before all others

A learner numbers its requests, and says with each which reply it kept last. What it did not keep, since its call was
cancelled or the reply was lost, is put back. After a restart of the shard, its buffer alone says what comes again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
from typing import Any, TypeAlias

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
        returned: Which of them failed and have returned their places to the ticket.
    """

    incarnation: int
    policy_version: int | None
    delivered: int
    outstanding: int
    running: int
    used: dict[bytes, list[int]]
    returned: dict[bytes, list[int]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Sent:
    """What was delivered to a learner with the request of that number: the ids of each unit, and when."""

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
        self._returned: dict[chunks.Use, float] = {}
        # The episodes delivered at the learner's version.
        self._version: int | None = None
        self._delivered: set[str] = set()

    def take(self, request: Request, now: float) -> Reply:
        """Return what a request asks for, if all of it is ready; raises as `next_episodes` does."""
        buffer, sent = self._buffer, self._sent.get(request.learner)
        if sent is not None and sent.number > request.kept:
            self.put_back(request.learner, sent.number)
        self._sent.pop(request.learner, None)
        if request.is_group:
            wanted = buffer._group_request("next_groups", 1, request.max_lag, request.accept)
        else:
            wanted = buffer._episode_request(1, request.max_lag, request.accept)
        wanted.count = request.count
        ready = min(buffer._num_ready(wanted), request.count)
        units: list[Unit] = []
        if 0 < request.take <= ready:
            wanted.count = request.take
            units = [[self._described(each) for each in unit] for unit in buffer._take(wanted)]
            sent = self._sent[request.learner] = _Sent(request.number, [_ids(unit) for unit in units], now)
            self._now_delivered().update(*sent.units)
        return Reply(units=units, ready=ready - len(units), policy_version=buffer.policy_version)

    def put_back(self, learner: bytes, number: int) -> None:
        """Take back what a learner was sent with the request of that number."""
        sent = self._sent.get(learner)
        if sent is not None and sent.number == number:
            self._buffer._put_back(sent.units)
            del self._sent[learner]
            self._now_delivered().difference_update(*sent.units)

    def ack(self, version: int, kept: Mapping[bytes, int]) -> None:
        """Acknowledge what was delivered before the learner had a version; raises as `ack` of the buffer does.

        Except for what was sent and may not have reached a learner.

        Args:
            version: The version.
            kept: By the names of the learner, the number of the newest request whose reply it kept.
        """
        in_doubt = [sent for learner, sent in self._sent.items() if sent.number > kept.get(learner, 0)]
        self._buffer._ack(version, [each for sent in in_doubt for unit in sent.units for each in unit])

    def forget(self, before: float) -> None:
        """Forget what was sent before that time, so that it cannot be put back."""
        self._sent = {learner: sent for learner, sent in self._sent.items() if sent.time >= before}
        self._used = {use: time for use, time in self._used.items() if time >= before}
        self._returned = {use: time for use, time in self._returned.items() if time >= before}

    def note(self, chunk: chunks.Chunk, now: float) -> None:
        """Record that an episode with a ticket has arrived, or has returned its place to it."""
        if isinstance(chunk, chunks.EpisodeChunk | chunks.TokenChunk) and chunk.ticket is not None:
            self._used[chunk.ticket] = now
        if isinstance(chunk, chunks.EpisodeChunk) and chunk.returned is not None:
            self._returned[chunk.returned] = now

    def places(self, incarnation: int) -> Places:
        """Return what an admission must know."""
        buffer, queue = self._buffer, self._buffer._learner()
        queue.pass_time()
        return Places(
            incarnation=incarnation,
            policy_version=buffer.policy_version,
            delivered=len(self._now_delivered()),
            outstanding=queue.num_outstanding(buffer._store),
            running=queue.places.running,
            used=_by_ticket(self._used),
            returned=_by_ticket(self._returned),
        )

    def reject(self, episode_ids: Sequence[str], reason: str) -> int:
        """Drop episodes as `reject` of the buffer does."""
        dropped: int = self._buffer.reject(episode_ids, reason=reason)
        self._now_delivered().difference_update(episode_ids)
        return dropped

    def abandon(self, group_ids: Iterable[str]) -> int:
        """Give up those of the groups that are not complete and hold places, and return how many there were."""
        tracker = self._buffer._learner().groups
        torn = [tracker.gathering[group_id] for group_id in set(self.groups()).intersection(group_ids)]
        waiting = [group.episodes[0].episode_id for group in torn if group.episodes]
        if waiting:
            self._buffer.reject(waiting, reason="straggler")
        return len(waiting)

    def groups(self) -> list[str]:
        """Return the ids of the groups that are not complete."""
        tracker = self._buffer._learner().groups
        return [] if tracker is None else list(tracker.gathering)

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


def _by_ticket(uses: Iterable[chunks.Use]) -> dict[bytes, list[int]]:
    numbers: dict[bytes, list[int]] = {}
    for name, number in uses:
        numbers.setdefault(name, []).append(number)
    return numbers


def _ids(unit: Unit) -> list[str]:
    return [episode.episode_id for episode in unit]
