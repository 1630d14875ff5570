from collections.abc import Callable
import itertools
from typing import Any

import pytest

import relive
from relive.agents import units
from relive.episodes import helpers_test

State, Event = units.DeliveryState, units.Event
CHANGES: dict[tuple[units.DeliveryState, units.Event], Callable[[Any, units.Unit, list[str]], Any]] = {
    (State.GATHERING, Event.FILLED): lambda buffer, unit, ids: helpers_test.live(buffer, group_id="g"),
    (State.GATHERING, Event.TAKEN): lambda buffer, unit, ids: buffer._queue.ledger().deliver({unit: unit.episodes}, 0),
    (State.GATHERING, Event.DROPPED): lambda buffer, unit, ids: buffer.reject(ids),
    (State.GATHERING, Event.EVICTED): lambda buffer, unit, ids: evict(buffer),
    (State.COMPLETE, Event.TAKEN): lambda buffer, unit, ids: buffer.next_groups_nowait(1),
    (State.COMPLETE, Event.DROPPED): lambda buffer, unit, ids: buffer.reject(ids),
    (State.COMPLETE, Event.EVICTED): lambda buffer, unit, ids: evict(buffer),
    (State.DELIVERED, Event.RETURNED): lambda buffer, unit, ids: buffer._queue.put_back([ids]),
    (State.DELIVERED, Event.EMPTIED): lambda buffer, unit, ids: buffer.reject(ids),
}
"""A call for each change of a group, given its unit and the ids of its episodes."""


def evict(buffer: Any) -> None:
    while not buffer.get_stats().evicted_episodes:
        helpers_test.live(buffer)


@pytest.mark.parametrize(("state", "event"), units.TRANSITIONS, ids=lambda each: each.name)
def test_each_change_of_the_table_happens(state: units.DeliveryState, event: units.Event) -> None:
    buffer: Any = relive.EpisodeReplayBuffer(groups=relive.Groups(2), max_episodes=3)
    ids = [helpers_test.live(buffer, group_id="g") for _ in range(2 - (state is State.GATHERING))]
    if state is State.DELIVERED:
        buffer.next_groups_nowait(1)
    unit = buffer._queue.ledger().groups.groups["g"]
    assert unit.state is state
    CHANGES[state, event](buffer, unit, ids)
    assert unit.state is units.TRANSITIONS[state, event]
    buffer.check()


def test_nothing_else_can_happen() -> None:
    others = set(itertools.product(State, Event)) - units.TRANSITIONS.keys()
    for state, event in others:
        unit = units.Unit("e", state)
        with pytest.raises(KeyError):
            unit.note(event)
        assert unit.state is state


def test_what_the_states_are_follows_from_the_table() -> None:
    assert {state for state in State if units.Unit("e", state).is_pending} == {State.GATHERING, State.COMPLETE}
    assert {State.CLOSED, State.EVICTED} == units.FINAL
