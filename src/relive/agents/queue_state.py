"""The checkpointed state of a Ledger, and of the sums over episodes: columns of units, and one plain-1 value.

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
from relive.agents import ledger as ledger_lib
from relive.agents import ledger_check
from relive.agents import units as units_lib
from relive.common import arrays as arrays_lib
from relive.common import validation
from relive.episodes import sums as sums_lib
from relive.persistence import codec
from relive.persistence import settings
from relive.persistence import state

Episode: TypeAlias = ledger_lib.Episode
Ledger: TypeAlias = ledger_lib.Ledger

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

    def state_dict(self, episodes: Iterable[Episode]) -> dict[str, arrays_lib.Array]:
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


def snapshot(ledger: Ledger | None, sums: sums_lib.Sums, *, is_empty: bool = False) -> Snapshot:
    """Return a snapshot of a ledger, if there is one, and sums; `is_empty` if everything stored counts as evicted."""
    content: dict[str, Any] = {"produced": _sums(sums.produced), "trained": _sums(sums.trained), "queue": None}
    if ledger is None:
        return Snapshot(content=content)
    listed = [] if is_empty else sorted(ledger.all_units(), key=lambda unit: not unit.is_group)
    now = ledger.now()
    counts = ledger.drops.view()
    content["queue"] = {
        "keys": [unit.key for unit in listed if unit.is_group],
        "has_line": ledger.line is not None,
        "admitted": ledger.places.admitted,
        "versions": ledger.places.versions,
        "drops": [[reason, source, count] for reason in counts for source, count in counts[reason].items()],
    }
    rows = [
        (
            unit.state.value,
            _ACKNOWLEDGED if unit.version is None else unit.version,
            now - unit.since if isinstance(unit, units_lib.GroupUnit) else 0.0,
            unit.episodes.copy(),
        )
        for unit in listed
    ]
    return Snapshot(content=content, rows=rows, unplaced=set() if is_empty else ledger.unplaced.copy())


def load(
    given: state.StateReader, store: Any, make_ledger: Callable[[], Ledger], rules: Mapping[str, Any]
) -> Ledger | None:
    """Return the ledger of a state, if there must be one, and restore the sums of a store.

    If the rules are others than those of the state, its units tell no more than which episodes were delivered or
    dropped.

    Args:
        given: The state.
        store: The episodes, with new sums.
        make_ledger: Returns a new ledger.
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
    ledger, before = make_ledger(), given.part("settings")
    is_same_rule = all(settings.are_same(settings.encoded(rule), before.value(name)) for name, rule in rules.items())
    try:
        if rest.value("queue") is None:
            _rebuild(ledger, [], store, episodes, was_grouped=False)
        else:
            saved = rest.part("queue")
            _put_drops(saved, ledger)
            found = _units(given, saved, episodes)
            ledger.line = units_lib.Line() if saved.boolean("has_line") else None
            if is_same_rule:
                _fill(ledger, found, episodes)
                ledger.num_waiting = ledger.count_waiting(store.finished)
                ledger.unplaced = {episodes[place].episode_id for place in unplaced.nonzero()[0].tolist()}
                _put_counts(saved, ledger, store.policy_version)
            else:
                _rebuild(ledger, found, store, episodes, was_grouped=before.value("groups") is not None)
        ledger_check.check(ledger, episodes)
    except errors.CorruptionError as error:
        raise errors.CheckpointError(f"arrays of units and learner cannot be: {error}") from error
    return ledger


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
    found: list[units_lib.Unit] = []
    for number in range(count):
        own = [episodes[place] for place in itertools.islice(places, sizes[number])]
        is_group = number < len(keys)
        if not is_group and len(own) != 1:
            raise errors.CheckpointError(f"array unit_size must be 1 for a single episode, got {len(own)}")
        state_of, version = kinds_known[kinds[number]], None if versions[number] == _ACKNOWLEDGED else versions[number]
        if is_group:
            since = now - float(ages[number])
            found.append(units_lib.GroupUnit(keys[number], state_of, own, version, since))
        else:
            found.append(units_lib.Unit(own[0].episode_id, state_of, own, version))
    return found


def _fill(ledger: Ledger, found: Sequence[units_lib.Unit], episodes: Sequence[Episode]) -> None:
    """Put units into a new ledger, whose `check` judges them."""
    for unit in found:
        line = ledger.line
        if isinstance(unit, units_lib.GroupUnit):
            if ledger.groups is None:
                raise errors.CorruptionError(f"group {validation.short_repr(unit.key)} is there without a rule")
            ledger.groups.groups[unit.key], line = unit, ledger.groups.complete
            if unit.state is units_lib.DeliveryState.GATHERING:
                ledger.groups.gathering[unit.key] = unit
        else:
            ledger.singles[unit.key] = unit
        if unit.is_delivered:
            ledger.delivered[unit] = None
        elif unit.state is units_lib.DeliveryState.COMPLETE and line is not None:
            line.add(unit)
    for episode in episodes:
        ledger.places.running += episode.status == "IN_PROGRESS"
        if ledger.groups is not None and episode.group_id is not None:
            group = ledger.groups.groups.get(episode.group_id)
            if group is None:
                raise errors.CorruptionError(
                    f"group {validation.short_repr(episode.group_id)} of a stored episode is missing"
                )
            group.stored += 1
            group.running += episode.status == "IN_PROGRESS"


def _rebuild(
    ledger: Ledger, found: Sequence[units_lib.Unit], store: Any, episodes: Sequence[Episode], *, was_grouped: bool
) -> None:
    """Fill a new ledger by other rules than those of the units found, and count places.

    Group timeouts restart. What was delivered counts as acknowledged.
    """
    ended = list(store.finished)
    trainable = {each for each in ended if ledger_lib.drop_reason(each) is None}
    delivered = trainable.intersection(units_lib.episodes_of(unit for unit in found if unit.is_delivered))
    pending = set(units_lib.episodes_of(unit for unit in found if unit.is_pending))
    if ledger.line is None:
        pending |= {each for each in ended if each.group_id is None or not was_grouped}
    pending = pending & trainable - delivered
    for episode in episodes:
        ledger.started(store, episode)
    if ledger.groups is None and any(each not in pending for each in ended):
        ledger.line = units_lib.Line()  # What was delivered in groups must not be delivered again.
    for episode in ended:
        if episode in delivered:
            unit = ledger.unit_of(episode)
            if unit is None:
                unit = units_lib.Unit(episode.episode_id, units_lib.DeliveryState.DELIVERED)
                ledger.singles[episode.episode_id] = unit
            elif ledger.groups is not None and isinstance(unit, units_lib.GroupUnit) and unit.is_pending:
                ledger.groups.close(unit, units_lib.Event.TAKEN)
            unit.episodes.append(episode)
            ledger.delivered[unit] = None
    for episode in ended:
        if episode in pending:
            ledger.ended(store, episode)
        elif ledger.groups is not None and episode.group_id is not None:
            ledger.groups.groups[episode.group_id].running -= 1
    ledger.places.running = sum(episode.status == "IN_PROGRESS" for episode in episodes)
    ledger.num_waiting = ledger.count_waiting(ended)
    ledger.count_places(store, None)


def _put_drops(saved: state.StateReader, ledger: Ledger) -> None:
    rows = saved.value("drops")
    for row in rows if type(rows) is list else [rows]:
        is_row = type(row) is list and len(row) == 3
        reason, source, count = row if is_row else ("", "", 0)
        is_drop = type(reason) is str and reason and type(source) is str and type(count) is int
        if not is_drop or not 1 <= count <= state.MOST:
            raise saved.refused("drops", "a list of a reason, a source and a count each", row)
        ledger.drops.count(reason, source, count)


def _put_counts(saved: state.StateReader, ledger: Ledger, policy_version: int | None) -> None:
    versions = None if saved.value("versions") is None else saved.integer("versions")
    if versions is not None and (policy_version is None or versions > policy_version):
        raise saved.refused("versions", f"at most the learner's policy version, {policy_version}", versions)
    ledger.places.begin(versions, saved.integer("admitted"))


def _sums(tally: sums_lib.Tally) -> dict[str, Any]:
    return {**{name: getattr(tally, name) for name in _COUNTS}, "returns": list(tally.returns.as_integer_ratio())}


def _tally(given: state.StateReader) -> sums_lib.Tally:
    counts = {name: given.integer(name, 0, _MOST_SUM) for name in _COUNTS}
    ratio = given.value("returns")
    is_ratio = type(ratio) is list and len(ratio) == 2 and all(type(each) is int for each in ratio)
    if not is_ratio or ratio[1] < 1 or max(each.bit_length() for each in ratio) > _MOST_BITS:
        raise given.refused("returns", "a list of a numerator and a denominator", ratio)
    return sums_lib.Tally(**counts, returns=fractions.Fraction(*ratio))
