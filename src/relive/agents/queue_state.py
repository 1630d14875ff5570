"""The checkpointed state of a LearnerQueue: the state of each episode, and one plain-1 value with the rest.

    episode_turn    |u1 [E]      0 neither delivered nor dropped, 1 delivered, 2 dropped, 3 and 4 as 1 and
                                 0, but trained on before the places of an Admission began to be counted
    episode_deliveries  <i8 [E]  how often each was delivered, if it was
    line            <i8 [W]      which episodes wait in the line of single ones, in their order
    group_age       <f8 [G]      seconds since the first episode of each group started
    hand_outs       |u1 [...]    a dict: admitted, versions, has_line, passes, unacked, drops, groups, produced,
                                 trained

It is not JSON, since a group may have any name, and a sum of versions may exceed 64 bits.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import fractions
import time
from typing import Any, TypeAlias, get_args

import numpy as np

from relive import errors
from relive.agents import bias
from relive.agents import groups as groups_lib
from relive.agents import queue as queue_lib
from relive.common import arrays
from relive.common import validation
from relive.persistence import codec
from relive.persistence import state

Episode: TypeAlias = queue_lib.Episode
LearnerQueue: TypeAlias = queue_lib.LearnerQueue
Store: TypeAlias = queue_lib.Store
Phases: TypeAlias = list[tuple[str, groups_lib.Phase, float]]

_COUNTS = tuple(field.name for field in dataclasses.fields(bias.Tally) if field.name != "returns")
_PHASES = get_args(groups_lib.Phase)
_MOST_SUM = validation.LARGEST**2
_MOST_BITS = 4096
"""More than sums of floats ever have."""
"""No sum of versions is larger."""


def state_dict(queue: LearnerQueue, episodes: Iterable[Episode]) -> state.State:
    """Return the checkpoint arrays of a queue, given the stored episodes in the order of their starts."""
    episodes = list(episodes)
    numbers = {episode.episode_id: number for number, episode in enumerate(episodes)}
    phases = [] if queue.book is None else queue.book.phases()
    unacked = [
        [is_group, key, [numbers[each.episode_id] for each in unit], versions]
        for (is_group, key), (unit, versions) in queue.unacked().items()
    ]
    now = queue.now()
    return {
        "episode_turn": np.array(queue.turns(episodes), np.uint8),
        "episode_deliveries": np.array(queue.deliveries(episodes), np.int64),
        "line": np.array([numbers[unit[0].episode_id] for unit in queue.line or ()], np.int64),
        "group_age": np.array([now - since for _, _, since in phases], np.float64),
        "hand_outs": _described(queue, queue.produced, queue.trained, phases, unacked),
    }


def base_state_dict(queue: LearnerQueue, store: Store) -> state.State:
    """Return the state as if everything stored had just been evicted."""
    produced, trained = queue.sums(store)
    nothing = np.zeros(0, np.int64)
    return {
        "episode_turn": np.zeros(0, np.uint8),
        "episode_deliveries": nothing,
        "line": nothing,
        "group_age": np.zeros(0, np.float64),
        "hand_outs": _described(queue, produced, trained, [], [], is_empty=True),
    }


def load(given: state.StateReader, store: Store, hand_outs: LearnerQueue, *, is_same_rule: bool) -> None:
    """Restore a new queue.

    Args:
        given: The state.
        store: The episodes.
        hand_outs: The queue.
        is_same_rule: Whether admission and groups are unchanged. If not, their saved state is ignored.

    Raises:
        CheckpointError: The state is inconsistent.
    """
    episodes = list(store)
    turns = given.array("episode_turn", np.uint8, (len(episodes),)).tolist()
    deliveries = given.integers("episode_deliveries", len(episodes), 0, state.MOST).tolist()
    if max(turns, default=0) > queue_lib.PENDING_UNCOUNTED:
        raise errors.CheckpointError(f"array episode_turn must hold numbers up to {queue_lib.PENDING_UNCOUNTED}")
    content = given.array("hand_outs", np.uint8, (None,)).tobytes()
    try:
        rest = state.StateReader(codec.PlainCodec().decode(content), {}, "hand_outs/")
    except errors.CheckpointError as error:
        raise errors.CheckpointError(f"array hand_outs cannot be decoded: {error}") from error
    _put_sums(rest, hand_outs)
    try:
        if not is_same_rule:
            hand_outs.rebuild(store, turns, deliveries)
        else:
            line = given.integers("line", None, 0, len(episodes) - 1).tolist()
            hand_outs.resume(
                store,
                turns,
                deliveries,
                _phases(given, rest),
                [episodes[number] for number in line],
                _passes(rest),
                _unacked(rest, episodes),
            )
            versions = None if rest.value("versions") is None else rest.integer("versions")
            learner = store.policy_version
            if versions is not None and (learner is None or versions > learner):
                raise errors.CheckpointError(
                    f"hand_outs/versions must be at most the learner's policy version, {learner}, got {versions}"
                )
            hand_outs.desk.begin(versions, rest.integer("admitted"))
    except errors.CorruptionError as error:
        raise errors.CheckpointError(f"arrays episode_turn and hand_outs cannot be: {error}") from error


def _described(
    hand_outs: LearnerQueue,
    produced: bias.Tally,
    trained: bias.Tally,
    phases: Phases,
    unacked: list[list[Any]],
    *,
    is_empty: bool = False,
) -> arrays.Array:
    counts = hand_outs.drops.view()
    lines = [] if is_empty else [hand_outs.line, None if hand_outs.book is None else hand_outs.book.whole]
    content = {
        "admitted": hand_outs.desk.admitted,
        "versions": hand_outs.desk.versions,
        "has_line": hand_outs.line is not None,
        "passes": [0 if line is None else line.num_in_pass for line in lines] or [0, 0],
        "unacked": unacked,
        "drops": [[reason, source, count] for reason in counts for source, count in counts[reason].items()],
        "groups": [[group_id, phase] for group_id, phase, _ in phases],
        "produced": _sums(produced),
        "trained": _sums(trained),
    }
    return np.frombuffer(codec.PlainCodec().encode(content), np.uint8).copy()


def _sums(tally: bias.Tally) -> dict[str, Any]:
    return {**{name: getattr(tally, name) for name in _COUNTS}, "returns": list(tally.returns.as_integer_ratio())}


def _put_sums(rest: state.StateReader, hand_outs: LearnerQueue) -> None:
    """Restore the counts, and whether there is a line."""
    hand_outs.produced, hand_outs.trained = _tally(rest.part("produced")), _tally(rest.part("trained"))
    if any(getattr(hand_outs.trained, name) > getattr(hand_outs.produced, name) for name in _COUNTS):
        raise errors.CheckpointError("hand_outs/trained must be a part of hand_outs/produced")
    for row in _rows(rest, "drops", 3):
        reason, source, count = row
        is_drop = type(reason) is str and reason and type(source) is str and type(count) is int
        if not is_drop or not 1 <= count <= state.MOST:
            raise rest.refused("drops", "a list of a reason, a source and a count each", row)
        hand_outs.drops.count(reason, source, count)
    if rest.boolean("has_line"):
        hand_outs.line = hand_outs.new_line()


def _passes(rest: state.StateReader) -> list[int]:
    passes = rest.value("passes")
    if type(passes) is not list or len(passes) != 2 or not all(type(each) is int and each >= 0 for each in passes):
        raise rest.refused("passes", "a list of two counts", passes)
    return passes


def _unacked(rest: state.StateReader, episodes: Sequence[Episode]) -> queue_lib.Unacked:
    unacked: queue_lib.Unacked = {}
    for row in _rows(rest, "unacked", 4):
        is_group, key, numbers, versions = row
        lists = [numbers, versions]
        is_sound = type(is_group) is bool and type(key) is str and all(type(each) is list and each for each in lists)
        if is_sound:
            is_sound = all(type(each) is int for each in (*numbers, *versions)) and min(versions) >= -1
        if not is_sound or not 0 <= min(numbers) <= max(numbers) < len(episodes) or len({*numbers}) < len(numbers):
            raise rest.refused("unacked", "a list of units, their episodes and versions each", row)
        unacked[is_group, key] = [episodes[number] for number in numbers], versions
    return unacked


def _tally(given: state.StateReader) -> bias.Tally:
    counts = {name: given.integer(name, 0, _MOST_SUM) for name in _COUNTS}
    ratio = given.value("returns")
    is_ratio = type(ratio) is list and len(ratio) == 2 and all(type(each) is int for each in ratio)
    if not is_ratio or ratio[1] < 1 or max(each.bit_length() for each in ratio) > _MOST_BITS:
        raise given.refused("returns", "a list of a numerator and a denominator", ratio)
    return bias.Tally(**counts, returns=fractions.Fraction(*ratio))


def _phases(given: state.StateReader, rest: state.StateReader) -> Phases:
    rows = _rows(rest, "groups", 2)
    ages = given.array("group_age", np.float64, (len(rows),))
    if not (np.isfinite(ages) & (ages >= 0)).all():
        raise errors.CheckpointError("array group_age must hold finite numbers of at least 0")
    for row in rows:
        if type(row[0]) is not str or row[1] not in _PHASES:
            raise rest.refused("groups", "a list of an id and a phase each", row)
    now = time.monotonic()
    return [(group_id, phase, now - age) for (group_id, phase), age in zip(rows, ages.tolist(), strict=True)]


def _rows(rest: state.StateReader, name: str, length: int) -> list[list[Any]]:
    rows = rest.value(name)
    if type(rows) is not list or not all(type(row) is list and len(row) == length for row in rows):
        raise rest.refused(name, f"a list of lists of {length}", rows)
    return rows
