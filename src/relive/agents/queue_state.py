"""The checkpointed state of a LearnerQueue, and of the sums over episodes: columns of units, and one plain-1 value.

    unit_state     |u1 [U]      the DeliveryState of each unit: first groups, by `keys`, then single episodes
    unit_version   <i8 [U]      the learner's version when it was delivered, -1 for none; -2 if it need not come again
    unit_age       <f8 [U]      seconds since the first episode of a group started; 0 for single ones
    unit_size      <i8 [U]      its number of episodes
    unit_episode   <i8 [...]    their places among the stored episodes, unit by unit
    unit_unplaced  |b1 [E]      for each stored episode, whether it holds no place of an Admission
    learner        |u1 [...]    a dict: produced, trained; and queue, None or a dict of keys, has_line, admitted,
                                versions and drops

Units that gather, wait or were delivered are in that order, each among its kind. The dict is not JSON, since a group
may have any name, and a sum of versions may exceed 64 bits.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
import dataclasses
import fractions
import itertools
import time
from typing import Any, TypeAlias

import numpy as np

from relive import errors
from relive.agents import queue as queue_lib
from relive.agents import units as units_lib
from relive.common import arrays
from relive.common import validation
from relive.episodes import sums as sums_lib
from relive.persistence import codec
from relive.persistence import settings
from relive.persistence import state

Episode: TypeAlias = queue_lib.Episode
LearnerQueue: TypeAlias = queue_lib.LearnerQueue

_COUNTS = tuple(field.name for field in dataclasses.fields(sums_lib.Tally) if field.name != "returns")
_MOST_SUM = validation.LARGEST**2
"""No sum of versions is larger."""
_MOST_BITS = 4096
"""More than sums of floats ever have."""
_ACKNOWLEDGED = -2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a state is made of; the queue may change afterwards.

    Attributes:
        content: The dict.
        rows: For each unit: its state, version and age, and its episodes.
        unplaced: The ids of the episodes that hold no place.
    """

    content: dict[str, Any]
    rows: Sequence[tuple[int, int, float, list[Episode]]] = ()
    unplaced: Collection[str] = ()

    def state_dict(self, episodes: Iterable[Episode]) -> dict[str, arrays.Array]:
        """Return the arrays of the state, given all stored episodes; the open ones may be copies."""
        places = {episode.episode_id: place for place, episode in enumerate(episodes)}
        kinds, versions, ages, held = zip(*self.rows, strict=True) if self.rows else ((), (), (), ())
        found = [places[episode.episode_id] for episode in itertools.chain.from_iterable(held)]
        return {
            "unit_state": np.array(kinds, np.uint8),
            "unit_version": np.array(versions, np.int64),
            "unit_age": np.array(ages, np.float64),
            "unit_size": np.array(list(map(len, held)), np.int64),
            "unit_episode": np.array(found, np.int64),
            "unit_unplaced": np.array([episode_id in self.unplaced for episode_id in places], np.bool_),
            "learner": np.frombuffer(codec.PlainCodec().encode(self.content), np.uint8).copy(),
        }


def snapshot(queue: LearnerQueue | None, sums: sums_lib.Sums, *, is_empty: bool = False) -> Snapshot:
    """Return a snapshot of a queue, if there is one, and of sums; `is_empty` if everything stored counts as evicted."""
    content: dict[str, Any] = {"produced": _sums(sums.produced), "trained": _sums(sums.trained), "queue": None}
    if queue is None:
        return Snapshot(content=content)
    listed = [] if is_empty else sorted(queue.all_units(), key=lambda unit: not unit.is_group)
    now = queue.now()
    counts = queue.drops.view()
    content["queue"] = {
        "keys": [unit.key for unit in listed if unit.is_group],
        "has_line": queue.line is not None,
        "admitted": queue.places.admitted,
        "versions": queue.places.versions,
        "drops": [[reason, source, count] for reason in counts for source, count in counts[reason].items()],
    }
    rows = [
        (
            unit.state.value,
            _ACKNOWLEDGED if unit.version is None else unit.version,
            now - unit.since if unit.is_group else 0.0,
            unit.episodes.copy(),
        )
        for unit in listed
    ]
    return Snapshot(content=content, rows=rows, unplaced=set() if is_empty else queue.unplaced.copy())


def load(
    given: state.StateReader, store: Any, make_queue: Callable[[], LearnerQueue], rules: Mapping[str, Any]
) -> LearnerQueue | None:
    """Return the queue of a state, if there must be one, and restore the sums of a store.

    If the rules are others than those of the state, its units tell no more than which episodes were delivered or
    dropped.

    Args:
        given: The state.
        store: The episodes, with new sums.
        make_queue: Returns a new queue.
        rules: The rules for admission and groups, by name.

    Raises:
        CheckpointError: The state is inconsistent.
    """
    content = given.array("learner", np.uint8, (None,)).tobytes()
    try:
        rest = state.StateReader(codec.PlainCodec().decode(content), {}, "learner/")
    except errors.CheckpointError as error:
        raise errors.CheckpointError(f"array learner cannot be decoded: {error}") from error
    sums: sums_lib.Sums = store.sums
    sums.produced, sums.trained = _tally(rest.part("produced")), _tally(rest.part("trained"))
    if any(getattr(sums.trained, name) > getattr(sums.produced, name) for name in _COUNTS):
        raise errors.CheckpointError("learner/trained must be a part of learner/produced")
    episodes = list(store)
    unplaced = given.booleans("unit_unplaced", len(episodes))
    if rest.value("queue") is None:
        given.array("unit_state", np.uint8, (0,))
        if all(rule is None for rule in rules.values()):
            return None
    queue, before = make_queue(), given.part("settings")
    is_same_rule = all(settings.are_same(settings.encoded(rule), before.value(name)) for name, rule in rules.items())
    try:
        if rest.value("queue") is None:
            queue.rebuild(store, episodes, [], {each for each in store.finished if queue_lib.why_not(each) is None})
        else:
            saved = rest.part("queue")
            _put_drops(saved, queue)
            found = _units(given, saved, episodes)
            queue.line = units_lib.Line() if saved.boolean("has_line") else None
            if is_same_rule:
                _fill(queue, found, episodes)
                queue.num_waiting = queue.count_waiting(store.finished)
                queue.unplaced = {episodes[place].episode_id for place in unplaced.nonzero()[0].tolist()}
                _put_counts(saved, queue, store.policy_version)
            else:
                _rebuild(queue, found, store, episodes, was_grouped=before.value("groups") is not None)
        queue.check(episodes)
    except errors.CorruptionError as error:
        raise errors.CheckpointError(f"arrays of units and learner cannot be: {error}") from error
    return queue


def _units(given: state.StateReader, saved: state.StateReader, episodes: Sequence[Episode]) -> list[units_lib.Unit]:
    """Return the units of a state."""
    kinds = given.array("unit_state", np.uint8, (None,)).tolist()
    count, kinds_known = len(kinds), list(units_lib.DeliveryState)
    if max(kinds, default=0) >= len(kinds_known):
        raise errors.CheckpointError(f"array unit_state must hold numbers below {len(kinds_known)}")
    versions = given.integers("unit_version", count, _ACKNOWLEDGED, validation.LARGEST).tolist()
    ages = given.array("unit_age", np.float64, (count,))
    if not (np.isfinite(ages) & (ages >= 0)).all():
        raise errors.CheckpointError("array unit_age must hold finite numbers of at least 0")
    sizes = given.integers("unit_size", count, 0, len(episodes)).tolist()
    places = iter(given.integers("unit_episode", sum(sizes), 0, len(episodes) - 1).tolist())
    keys = saved.value("keys")
    if (
        type(keys) is not list
        or not all(type(key) is str for key in keys)
        or len({*keys}) < len(keys)
        or len(keys) > count
    ):
        raise saved.refused("keys", "a list of the ids of groups, each once", keys)
    now = time.monotonic()
    found = []
    for number in range(count):
        own = [episodes[place] for place in itertools.islice(places, sizes[number])]
        is_group = number < len(keys)
        if not is_group and len(own) != 1:
            raise errors.CheckpointError(f"array unit_size must be 1 for a single episode, got {len(own)}")
        unit = units_lib.Unit(
            key=keys[number] if is_group else own[0].episode_id,
            is_group=is_group,
            state=kinds_known[kinds[number]],
            episodes=own,
            version=None if versions[number] == _ACKNOWLEDGED else versions[number],
            since=now - float(ages[number]),
        )
        found.append(unit)
    return found


def _fill(queue: LearnerQueue, found: Sequence[units_lib.Unit], episodes: Sequence[Episode]) -> None:
    """Put units into a new queue, whose `check` judges them."""
    for unit in found:
        line = queue.line
        if unit.is_group:
            if queue.groups is None:
                raise errors.CorruptionError(f"group {validation.short_repr(unit.key)} is there without a rule")
            queue.groups.groups[unit.key], line = unit, queue.groups.complete
            if unit.state is units_lib.DeliveryState.GATHERING:
                queue.groups.gathering[unit.key] = unit
        else:
            queue.singles[unit.key] = unit
        if unit.is_delivered:
            queue.delivered[unit] = None
        elif unit.state is units_lib.DeliveryState.COMPLETE and line is not None:
            line.add(unit)
    for episode in episodes:
        queue.places.running += episode.status == "IN_PROGRESS"
        if queue.groups is not None and episode.group_id is not None:
            group = queue.groups.groups.get(episode.group_id)
            if group is None:
                raise errors.CorruptionError(
                    f"group {validation.short_repr(episode.group_id)} of a stored episode is missing"
                )
            group.stored += 1
            group.running += episode.status == "IN_PROGRESS"


def _rebuild(
    queue: LearnerQueue,
    found: Sequence[units_lib.Unit],
    store: queue_lib.Store,
    episodes: Sequence[Episode],
    *,
    was_grouped: bool,
) -> None:
    """Fill a new queue by other rules than those of the state."""
    delivered = {each for unit in found if unit.is_delivered for each in unit.episodes}
    pending = {each for unit in found if unit.is_pending for each in unit.episodes}
    if queue.line is None:
        pending |= {each for each in store.finished if each.group_id is None or not was_grouped}
    trainable = {each for each in store.finished if queue_lib.why_not(each) is None}
    queue.rebuild(store, episodes, delivered & trainable, (pending & trainable) - delivered)


def _put_drops(saved: state.StateReader, queue: LearnerQueue) -> None:
    rows = saved.value("drops")
    for row in rows if type(rows) is list else [rows]:
        is_row = type(row) is list and len(row) == 3
        reason, source, count = row if is_row else ("", "", 0)
        is_drop = type(reason) is str and reason and type(source) is str and type(count) is int
        if not is_drop or not 1 <= count <= state.MOST:
            raise saved.refused("drops", "a list of a reason, a source and a count each", row)
        queue.drops.count(reason, source, count)


def _put_counts(saved: state.StateReader, queue: LearnerQueue, policy_version: int | None) -> None:
    versions = None if saved.value("versions") is None else saved.integer("versions")
    if versions is not None and (policy_version is None or versions > policy_version):
        raise saved.refused("versions", f"at most the learner's policy version, {policy_version}", versions)
    queue.places.begin(versions, saved.integer("admitted"))


def _sums(tally: sums_lib.Tally) -> dict[str, Any]:
    return {**{name: getattr(tally, name) for name in _COUNTS}, "returns": list(tally.returns.as_integer_ratio())}


def _tally(given: state.StateReader) -> sums_lib.Tally:
    counts = {name: given.integer(name, 0, _MOST_SUM) for name in _COUNTS}
    ratio = given.value("returns")
    is_ratio = type(ratio) is list and len(ratio) == 2 and all(type(each) is int for each in ratio)
    if not is_ratio or ratio[1] < 1 or max(each.bit_length() for each in ratio) > _MOST_BITS:
        raise given.refused("returns", "a list of a numerator and a denominator", ratio)
    return sums_lib.Tally(**counts, returns=fractions.Fraction(*ratio))
