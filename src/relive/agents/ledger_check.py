"""The audit of a ledger: everything is recounted from the episodes."""

import collections
from collections.abc import Iterable

from relive import errors
from relive.agents import ledger as ledger_lib
from relive.agents import units

_DELIVERED = units.DeliveryState.DELIVERED
_ACKNOWLEDGEABLE = (_DELIVERED, units.TRANSITIONS[_DELIVERED, units.Event.RETURNED])
"""Where a unit has the version of its delivery, until that is acknowledged."""


def check(ledger: ledger_lib.Ledger, episodes: Iterable[ledger_lib.Episode]) -> None:
    """Raise CorruptionError if the units are inconsistent, given all stored episodes."""
    stored, found = list(episodes), list(ledger.all_units())
    is_stored, held = set(stored), units.episodes_of(found)
    for episode in held:
        if episode not in is_stored or episode.status == "IN_PROGRESS" or ledger_lib.drop_reason(episode) is not None:
            raise errors.CorruptionError(
                f"episode {episode.episode_id} is {episode.status} with {len(episode)} transitions: it can neither "
                "wait for the learner nor have been handed out"
            )
    are_own = all(ledger.unit_of(episode) is unit for unit in found for episode in unit.episodes)
    if len(set(held)) < len(held) or not are_own:
        raise errors.CorruptionError("an episode must wait, or have been handed out, in its own unit, and once")
    for unit in found:
        if unit.is_delivered != (unit in ledger.delivered) or unit.is_delivered > bool(unit.episodes):
            raise errors.CorruptionError(f"{unit.key} is {unit.state.name}, but cannot have been handed out")
        if unit.version is not None and unit.state not in _ACKNOWLEDGEABLE:
            raise errors.CorruptionError(f"{unit.key} cannot wait to be acknowledged, as it is {unit.state.name}")
    if {unit.key: unit for unit in found if not unit.is_group} != ledger.singles:
        raise errors.CorruptionError("single episodes must wait, or have been handed out, by their ids")
    if ledger.line is not None:
        ledger.line.check()
    is_open = [episode for episode in stored if episode.status == "IN_PROGRESS"]
    if ledger.places.running != len(is_open):
        raise errors.CorruptionError(f"{len(is_open)} episodes are open, but {ledger.places.running} are counted")
    waiting = ledger.count_waiting(is_stored.difference(is_open))
    if ledger.num_waiting != waiting:
        raise errors.CorruptionError(f"{waiting} episodes wait, but {ledger.num_waiting} are counted")
    if ledger.groups is not None:
        ledger.groups.check()
        for name, some in (("stored", stored), ("running", is_open)):
            counts = collections.Counter(episode.group_id for episode in some if episode.group_id is not None)
            counted = {key: getattr(group, name) for key, group in ledger.groups.groups.items()}
            if +collections.Counter(counted) != counts:
                raise errors.CorruptionError(f"groups must have {dict(counts)} episodes {name}, found {counted}")
