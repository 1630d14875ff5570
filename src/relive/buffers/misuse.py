"""Detection of misuse that no single call shows; each cause is warned of once, at the very end of a call.

spliced steps     a step that does not begin where the one before it ended: a shuffled stream, a wrong stream=
isolated splices  a few of them, where no end was ever reported: flags that were forgotten
repeated steps    a spliced step that equals the one before it: stored by a recorder, and by the program once more
reset steps       a step from the final observation of an episode to the first of the next one: a vector environment
                  that resets in a separate step, which is not a transition
stacks            observations that are stacks of frames, in a buffer that stacks them once more

A warning must not fire on a program whose learner reads right numbers: `misuse_test` has those that were tried.
"""

import collections
import math
import operator
import sys
from typing import Any
import warnings

import numpy as np

from relive import errors
from relive.common import arrays as arrays_lib
from relive.common import trees
from relive.kernels import append
from relive.persistence import state
from relive.schema import encoding
from relive.storage import next_round
from relive.storage import splices
from relive.storage import steps as steps_lib
from relive.windows import transitions

_LAST_STEPS = 200
_FEWEST = 10
"""So many resets, isolated splices or stacks in a row are no accident."""
_MOST_ENVIRONMENTS = 64
_FRAMES = range(2, 17)
"""How many frames a stack may have."""
_COUNTS = ("spliced_episodes", "suspected_resets", "continued_truncations", "ends")


class Watch:
    """Counts what looks like misuse of one buffer.

    Attributes:
        spliced_episodes: Episodes closed because the next step did not follow.
        suspected_resets: Steps that look like resets.
        continued_truncations: Steps that begin with the final observation of an episode that was truncated.
        ends: Ends of episodes that were reported.
    """

    def __init__(self) -> None:
        self.spliced_episodes = self.suspected_resets = self.continued_truncations = self.ends = 0
        self._resets_looked_at = _FEWEST - 1
        self._num_isolated = self._isolated_from = 0
        self._num_stacks = self._num_frames = 0
        self._splices: collections.deque[int] = collections.deque(maxlen=_LAST_STEPS // 2 + 1)
        self._repeats: collections.deque[int] = collections.deque(maxlen=_LAST_STEPS // 4 + 1)
        self._last_repeat = -1
        self._warned: set[str] = set()

    def counts(self) -> dict[str, int]:
        """Return the counts by name."""
        return {name: getattr(self, name) for name in _COUNTS}

    def load_state_dict(self, given: state.StateReader, next_key: int) -> None:
        """Continue from those counts, given the key of the next step; raise CheckpointError if they are impossible."""
        given.integer("inserted", next_key, next_key)
        for name in _COUNTS:
            setattr(self, name, given.integer(name, 0, next_key))  # Each step has a key, counted from 0.

    def record(self, steps: encoding.Steps, written: next_round.Written) -> None:
        """Count steps that were stored."""
        self.spliced_episodes += written.num_spliced
        self.ends += written.num_ends
        self.continued_truncations += len(written.after_truncation)
        for place in (*written.after_termination, *written.after_truncation):
            self.suspected_resets += _is_reset(steps, place)

    def record_ends(self, count: int) -> None:
        """Count ends of episodes, in or after steps that show nothing else."""
        self.ends += count

    def look(self, store: steps_lib.StepStore, steps: encoding.Steps, written: next_round.Written) -> None:
        """Count steps that were stored, and warn of what they show; the MisuseWarning may be raised.

        It is the last thing that a write does.
        """
        self.record(steps, written)
        self._warn_of(len(steps.streams), steps.is_run, written, store)

    def look_at_episodes(self, store: steps_lib.StepStore, count: int, num_closed: int, num_spliced: int) -> None:
        """Do the same for `count` steps of whole episodes.

        Args:
            store: The store.
            count: How many steps there are.
            num_closed: How many episodes were ended.
            num_spliced: How many of them were ended since the next row did not follow.
        """
        self.spliced_episodes += num_spliced
        self.ends += num_closed - num_spliced
        self._warn_of(count, True, next_round.CONTINUED, store)

    def _warn_of(self, count: int, is_run: bool, written: next_round.Written, store: steps_lib.StepStore) -> None:
        """Warn of what the `count` steps that were stored just now show."""
        try:
            if written.num_spliced:
                self._look_at_splices(count, is_run, written.num_spliced, store)
            if written.after_termination or written.after_truncation:
                self._look_at_resets(store)
            # To look costs more than to add an image, so it ends once enough of them were none. Where values are on a
            # device, it would make the host wait.
            can_look = len(store.back) and store.remote is None
            if can_look and self._num_frames < _LAST_STEPS and "stacks" not in self._warned:
                self._look_at_stacks(count, store)
        except errors.MisuseWarning:
            raise
        except Exception:
            pass  # The steps are stored: a look at them is all that is left out, if memory or the storage fails.

    def _look_at_splices(self, added: int, is_run: bool, count: int, store: steps_lib.StepStore) -> None:
        inserted = store.next_key
        if not self._warned & {"splices", "repeats"} and _is_repeated(store, added):
            if self._last_repeat != inserted - added:  # Twice, and not over and over.
                self._repeats.extend([inserted] * count)
            self._last_repeat = inserted
            if _is_often(self._repeats, inserted):
                self._warn(
                    "repeats",
                    f"more than a quarter of the last {_LAST_STEPS} steps equal the one before them: each step is "
                    "stored twice, as by a recorder and by add, so leave one of them out",
                )
        self._splices.extend([inserted] * count)
        if _is_often(self._splices, inserted) and "splices" not in self._warned:
            self._warn(
                "splices",
                f"more than half of the last {_LAST_STEPS} steps did not begin where the one before them ended: "
                + _cause_of_splices(store),
            )
        if not is_run:
            if not self._num_isolated:
                self._isolated_from = inserted  # Steps before it may have been added otherwise, or loaded.
            self._num_isolated += count
            num_steps = inserted - self._isolated_from
            if self._num_isolated >= _FEWEST and 5 * self._num_isolated < num_steps and not self.ends:
                self._warn(
                    "ends",
                    f"{self._num_isolated} of {inserted} steps did not begin where the one before them ended, and no "
                    "end of an episode was ever reported: say it with terminated= and truncated= (terminations= and "
                    "truncations= of joint steps), or with end_episode",
                )

    def _look_at_resets(self, store: steps_lib.StepStore) -> None:
        count = self.suspected_resets
        if count <= self._resets_looked_at or 2 * count <= self.ends or "resets" in self._warned:
            return
        # Where most rewards are 0, so are those of right steps. All are read: the less often, the more there are.
        rewards = store.reader.rewards.take(store.alive_slots())
        num_stored = min(count, len(rewards))
        if 2 * int(np.count_nonzero(rewards)) > len(rewards) - num_stored:
            self._warn(
                "resets",
                f"{count} steps go from the final observation of an episode to another observation, with a reward of "
                "0: the environment resets by a step, which must not be stored (VectorRecorder leaves it out), or "
                "what was given as the final observation was the first of the next episode (give that of "
                "infos['final_obs'])",
            )
        self._resets_looked_at = count + count // 8

    def _look_at_stacks(self, count: int, store: steps_lib.StepStore) -> None:
        fields = {path: store.schema.fields[path] for path in store.reader.observation_paths}
        axes = {path: _axes_of_frames(field.shape) for path, field in fields.items()}
        if not any(axes.values()):
            return
        slots = append.slots_from(store.next_key - count, count, store.capacity)
        slots = slots[store.back.take(slots) >= 0]
        newer, older = (
            store.reader.observations(slots),
            store.reader.observations(store.back.take(slots).astype(np.int64)),
        )
        are_shifted = [_are_shifted(older[path], newer[path], axis) for path, some in axes.items() for axis in some]
        is_stack = np.logical_or.reduce(are_shifted)
        self._num_stacks = self._num_stacks + len(is_stack) if is_stack.all() else 0
        self._num_frames += int(np.count_nonzero(~is_stack))
        if self._num_stacks >= _FEWEST:
            self._warn(
                "stacks",
                f"each of the last {self._num_stacks} observations holds the newer frames of the one before it and one "
                "more: they are stacks of frames already, so store the newest frame of each alone, or leave "
                "frame_stack out",
            )

    def forget_steps(self) -> None:
        """Forget the steps; counts and warnings are kept."""
        self._splices.clear()
        self._repeats.clear()

    def _warn(self, cause: str, message: str) -> None:
        """Warn once per cause, at the line that called relive."""
        if cause in self._warned:
            return
        self._warned.add(cause)
        level, frame = 1, sys._getframe()
        while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
            level, frame = level + 1, frame.f_back
        warnings.warn(message, errors.MisuseWarning, stacklevel=level)


def _is_often(events: collections.deque[int], now: int) -> bool:
    """Return whether as many as a deque holds happened in the last steps."""
    return len(events) == events.maxlen and now - events[0] < _LAST_STEPS


def _is_repeated(store: steps_lib.StepStore, count: int) -> bool:
    """Return whether the newest step equals the one that is `count` steps older."""
    if len(store) <= count:
        return False
    slots = store.slots(np.array([store.next_key - 1 - count, store.next_key - 1]))
    # They differ in nearly all spliced steps, of which nothing else is read.
    observations = store.reader.observations(slots).values()
    if any(before.tobytes() != after.tobytes() for before, after in observations):
        return False
    if not store.is_readable(slots).all():
        return False
    batch = transitions.TransitionWindow()._read(store, slots, np.ones(2), np.ones(2))
    parts = (batch.action, batch.reward, batch.next_observation)
    return all(before == after for before, after in map(_bytes, parts))


def _cause_of_splices(store: steps_lib.StepStore) -> str:
    """Return the likely cause of steps that do not follow each other, and the remedy."""
    slots = store.alive_slots()[-_LAST_STEPS:]
    slots = slots[store.is_readable(slots)]
    batch = transitions.TransitionWindow()._read(store, slots, np.ones(len(slots)), np.ones(len(slots)))
    observations, following = _bytes(batch.observation), _bytes(batch.next_observation)
    if _are_mostly_equal(observations, following):
        return (
            "most have the same observation and next_observation, so copy what the environment returns if it writes "
            "every observation into one array"
        )
    for count in range(2, _MOST_ENVIRONMENTS + 1):
        if _are_mostly_equal(observations[count:], following[:-count]):
            return (
                f"they look like those of {count} environments in turn, so give each a stream of its own "
                f"(streams={count}, and stream= or extend)"
            )
    return (
        "add the steps of each environment in order, to a stream of its own, and normalise or wrap observation and "
        "next_observation alike"
    )


def _bytes(tree: Any) -> list[bytes]:
    """Return the bytes of each row of some columns [B, ...]."""
    columns = [
        column.reshape(len(column), math.prod(column.shape[1:])) for column in trees.flat("observation", tree).values()
    ]
    return [b"".join(part.tobytes() for part in row) for row in zip(*columns, strict=True)]


def _are_mostly_equal(these: list[bytes], those: list[bytes]) -> bool:
    return bool(2 * sum(map(operator.eq, these, those)) > len(these) > 0)


def _is_reset(steps: encoding.Steps, place: int) -> bool:
    """Return whether a step that begins with a final observation leads elsewhere, goes on, and has a reward of 0."""
    rows, next_rows = steps.rows, steps.next_rows
    if next_rows is None or steps.events[place]:
        return False
    reward = _part(steps, rows, [*steps.schema.fields].index("reward"), place)
    if np.frombuffer(reward, steps.schema.reward.dtype).item():
        return False
    return any(
        _part(steps, next_rows, field, place) != _part(steps, rows, field, place) for field in range(len(next_rows))
    )


def _part(steps: encoding.Steps, rows: encoding.Row, field: int, place: int) -> bytes:
    """Return the bytes of a field of one of some steps."""
    size = len(rows[field]) // len(steps.streams)
    return bytes(rows[field][place * size : (place + 1) * size])


def _axes_of_frames(shape: tuple[int, ...]) -> list[int]:
    """Return the axes of an observation that may be those of a stack of frames."""
    return [axis for axis in (0, -1) if len(shape) > 1 and shape[axis] in _FRAMES]


def _are_shifted(older: arrays_lib.Array, newer: arrays_lib.Array, axis: int) -> arrays_lib.Bools:
    """Return whether the newer frames of an observation are the older ones of the next, whose newest is another [k]."""
    before, after = np.moveaxis(older, axis + (axis >= 0), 1), np.moveaxis(newer, axis + (axis >= 0), 1)
    is_shifted = np.logical_not(splices.differ(before[:, 1:], after[:, :-1]))
    return np.asarray(is_shifted & splices.differ(before[:, -1:], after[:, -1:]))


def _is_ours(name: str) -> bool:
    return name.startswith("relive.") and not name.endswith("_test")
