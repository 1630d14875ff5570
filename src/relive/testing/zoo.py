"""One of every kind of buffer: how to make it, use it, draw from it and compare it.

    KINDS["prioritized"].make()     a new buffer
    work(buffer, rng, 30)           30 calls chosen by `rng`, and what they returned
    drawn(buffer)                   the next batch, or why there is none
    plain(value)                    the same as something that == compares to the last bit

A new kind of buffer is one entry here: it is then copied, saved, forged, journaled, killed, and compared with the
answers of older versions by the suites that go over KINDS. Two buffers of a kind that work with equal generators stay
equal to the last bit, ids of episodes included.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import functools
import random
from typing import Any, get_args
from unittest import mock
import uuid

import numpy as np

import relive
from relive import errors
from relive.buffers import item_cuts
from relive.common import arrays as arrays_lib
from relive.persistence import registry

Make = Callable[[], Any]
Call = Callable[[Any, random.Random], Any]
LATEST = 2**62
"""The largest version of a policy."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of buffer.

    Attributes:
        make: Returns a new one.
        has_journal: Whether it can write to a journal.
        is_stored: Whether it can be saved.
    """

    make: Make
    has_journal: bool = True
    is_stored: bool = True


# Columns.

SCHEMA = relive.Schema(
    {"image": relive.Field((2, 2), "uint8"), "speed": relive.Field((), ">f2")},
    relive.Field(2, "float32"),
    reward=relive.Field((), "float32"),
    extras={"big": relive.Field((), "int64"), "flag": relive.Field((), bool), "pose": relive.Field((), [("x", "<f8")])},
)


class AmongNewest(relive.Sampler):
    """A custom sampler with both hooks: it draws among the anchors that were added last."""

    def _attached(self, capacity: int) -> None:
        self._newest: list[int] = []

    def _added(self, slots: arrays_lib.Slots) -> None:
        self._newest = self._newest + slots.tolist()

    def _removed(self, slots: arrays_lib.Slots) -> None:
        gone = {*slots.tolist()}
        self._newest = [slot for slot in self._newest if slot not in gone]

    def _draw(self, size: int, rng: np.random.Generator) -> relive.Draw:
        newest = sorted(self._newest[-20:])  # Of all that were not removed: the newest 20 may go first.
        return relive.Draw(rng.choice(newest, size), np.full(size, 1 / len(newest)))


class OwnStorage:
    """A custom storage, which has the four members of the protocol and nothing else."""

    def __init__(self, schema: relive.Schema, capacity: int) -> None:
        self.capacity, self.schema = capacity, schema
        self._rows = relive.ColumnStorage(schema, capacity)

    def write(self, slots: Any, rows: Any) -> None:
        """Store rows at slots."""
        self._rows.write(slots, rows)

    def read(self, slots: Any, fields: Any = None) -> dict[str, arrays_lib.Array]:
        """Return the rows at slots."""
        return self._rows.read(slots, fields)


def column_call(buffer: Any, rng: random.Random) -> Any:
    """Make one call on a buffer of columns: it is written to in every way, drawn from, rated, barred and cleared.

    Half of the steps go on from the one before, since observations are one of two.
    """
    action, streams = rng.randrange(14) if buffer.can_insert() else 9, buffer.streams
    schema = buffer.schema or SCHEMA
    stream, count = rng.randrange(streams), 1
    if action in (3, 4, 5):
        count = streams
    elif action == 6:
        count = rng.randrange(1, streams + 1)
    elif action in (7, 8):
        count = min(rng.randrange(1, 6), buffer.capacity)
    rows = _rows(schema, rng, count + 2) if action < 9 else {}

    def tree(name: str, skipped: int = 0, length: int = count) -> Any:
        flat = {path: column[skipped : skipped + length] for path, column in rows.items()}
        return _nested(getattr(schema, name), name, flat)

    def flags(chance: float) -> arrays_lib.Bools:
        return np.array([rng.random() < chance for _ in range(count)])

    if action < 3:
        known = rng.random() < 0.7
        return buffer.add(
            _first(tree("observation")),
            _first(tree("action")),
            rows["reward"][0],
            _first(tree("observation", 1)) if known else None,
            terminated=rng.random() < 0.2,
            truncated=known and rng.random() < 0.1,
            stream=stream,
            **_first(tree("extras")),
        )
    if action < 7:
        some = {"streams": rng.sample(range(streams), count)} if action == 6 else {}
        known = rng.random() < 0.8
        step = tree("observation"), tree("action"), rows["reward"][:count], tree("observation", 2) if known else None
        ends = {"terminated": flags(0.1), "truncated": flags(0.1) & known}
        return buffer.extend(*step, **ends, **some, **tree("extras"))
    if action < 9:
        steps = tree("observation", 0, count + 1), tree("action"), rows["reward"][:count]
        if action == 7:
            return buffer.add_episode(*steps, terminated=rng.random() < 0.5, stream=stream, **tree("extras"))
        return buffer.add_steps(*steps, terminated=rng.random() < 0.3, stream=stream, **tree("extras"))
    first, end = buffer.appended - len(buffer), buffer.appended
    if action == 9:
        return buffer.sample(2)
    if action == 10 and buffer.has_priorities and len(buffer):
        keys = rng.choices(range(first, end), k=3)
        return buffer.update_priorities(keys, [3 * rng.random() for _ in keys])
    if action == 11 and len(buffer):
        keys = [max(0, end - rng.randrange(1, 20)) for _ in range(3)]
        return buffer.set_eligible(keys, rng.random() < 0.6)
    if action == 12:
        return buffer.end_episode(stream=stream)
    if action == 13 and rng.random() < 0.05:
        buffer.clear()
    elif action == 13:
        return _add_episodes(buffer, schema, stream, rng)
    return buffer.num_eligible


def _add_episodes(buffer: Any, schema: relive.Schema, stream: int, rng: random.Random) -> Any:
    """Add a few episodes in flat arrays."""
    count = min(rng.randrange(1, 6), buffer.capacity)
    rows = _rows(schema, rng, count)
    observations, actions = (_nested(getattr(schema, name), name, rows) for name in ("observation", "action"))
    return buffer.add_episodes(
        observations,
        actions,
        rows["reward"],
        terminated=[rng.random() < 0.3 for _ in range(count)],
        unknown_end=rng.choice(["drop", "keep"]),
        stream=stream,
        **_nested(schema.extras, "extras", rows),
    )


def _rows(schema: relive.Schema, rng: random.Random, count: int) -> dict[str, Any]:
    """Return that many rows of each field, of small numbers; those of an observation have the same number, 0 or 1."""
    numbers = np.frombuffer(rng.randbytes(2 * count), np.uint8).reshape(2, count)
    rows = {path: np.zeros((count, *field.shape), field.dtype) for path, field in schema.fields.items()}
    for path, column in rows.items():
        if column.dtype.kind in "iuf":
            # The last axis of a transposed column is that of the rows.
            column.T[...] = numbers[0] % 2 if path.startswith("observation") else numbers[1] % 3
    return rows


def _nested(tree: Any, path: str, columns: dict[str, Any]) -> Any:
    if isinstance(tree, relive.Field):
        return columns[path]
    return {name: _nested(part, f"{path}/{name}", columns) for name, part in tree.items()}


def _first(tree: Any) -> Any:
    return {name: _first(part) for name, part in tree.items()} if isinstance(tree, dict) else tree[0, ...]


def sample(buffer: Any) -> Any:
    """Return the next three windows, items or sequences."""
    return buffer.sample(3)


_ring = functools.partial(relive.RingReplayBuffer, schema=SCHEMA)
_prioritized = functools.partial(relive.PrioritizedReplayBuffer, schema=SCHEMA)
_sequence = functools.partial(relive.SequenceReplayBuffer, schema=SCHEMA)

COLUMNS: dict[str, Make] = {
    "ring": lambda: _ring(17, seed=1),
    "ring of 3 streams, n_step": lambda: _ring(20, n_step=3, gamma=0.9, streams=3, seed=2),
    "ring with frame_stack": lambda: _ring(20, frame_stack=3, n_step=2, seed=3),
    "ring of 3 streams with frame_stack": lambda: _ring(20, frame_stack=2, stack_padding="first", streams=3, seed=4),
    "ring with max_times_sampled": lambda: _ring(20, max_times_sampled=3, seed=5),
    "ring, schema inferred": lambda: relive.RingReplayBuffer(17, seed=12),
    "ring with min_size": lambda: _ring(17, limiter=relive.MinSize(5), seed=13),
    "ring with a ratio": lambda: _ring(17, limiter=relive.SampleToInsertRatio(2.0, 4, error_buffer=8.0), seed=14),
    "ring with its own sampler": lambda: _ring(17, sampler=AmongNewest(), seed=15),
    "ring with its own storage": lambda: relive.RingReplayBuffer(17, storage=OwnStorage(SCHEMA, 17), seed=16),
    "prioritized": lambda: _prioritized(17, seed=6),
    "prioritized of 3 streams, n_step": lambda: _prioritized(
        21, streams=3, n_step=2, beta=relive.LinearSchedule(0.4, 1.0, 100), weight_normalization="buffer", seed=7
    ),
    "prioritized, not stratified": lambda: _prioritized(
        17, stratified=False, max_times_sampled=4, weight_normalization="none", epsilon=0.0, seed=8
    ),
    "prioritized with frame_stack": lambda: _prioritized(17, frame_stack=2, n_step=3, alpha=1.0, seed=17),
    "sequences": lambda: _sequence(20, length=3, seed=9),
    "sequences of 3 streams, padded": lambda: _sequence(
        20, length=3, burn_in=1, stride=2, pad=True, streams=3, seed=10
    ),
    "prioritized sequences": lambda: _sequence(20, length=2, prioritized=True, max_times_sampled=3, seed=11),
    "columns with a window": lambda: relive.ColumnReplayBuffer(
        17, SCHEMA, window=relive.SequenceWindow(17, stride=17, pad=True), sampler=relive.UniformSampler(), seed=18
    ),
}


# Joint steps.

AGENTS = ("left", "right", "tall")
_SHORT = relive.Schema(relive.Field(3, "int64"), relive.Field((), "int64"))
SCHEMAS = {
    "left": _SHORT,
    "right": _SHORT,
    "tall": relive.Schema(
        {"eye": relive.Field(3, "int64"), "foot": relive.Field((), "float64")},
        relive.Field(2, "float32"),
        reward=relive.Field((), "float32"),
        extras={"log_probability": relive.Field((), "float32")},
    ),
}


def joint_call(buffer: Any, rng: random.Random) -> Any:
    """Make one call on a buffer of joint steps: agents come and go, and half of their steps go on from the last."""
    action, stream = rng.randrange(20), rng.randrange(buffer.streams)
    if action < 14 and buffer.can_insert():
        present = rng.choice([AGENTS, AGENTS, ("left", "right"), ("left",), ("tall",)])
        ends = {agent for agent in present if rng.random() < 0.2}
        cut = {agent for agent in present if rng.random() < 0.05}
        seen, following = rng.randrange(2), rng.randrange(2)
        return buffer.add(
            {agent: _seen_by(agent, seen) for agent in present},
            {agent: np.full(2, seen, np.float32) if agent == "tall" else seen for agent in present},
            {agent: float(rng.randrange(3)) for agent in present},
            {agent: _seen_by(agent, following) for agent in present},
            terminations={agent: agent in ends for agent in present},
            truncations={agent: agent in cut for agent in present},
            stream=stream,
            log_probability={agent: np.float32(-seen) for agent in present if agent == "tall"},
        )
    if action < 17:
        return buffer.sample(3)
    if action == 17 and buffer.has_priorities and len(buffer):
        keys = rng.choices(range(buffer.appended - len(buffer), buffer.appended), k=3)
        return buffer.update_priorities(keys, [rng.random() for _ in keys])
    if action == 18:
        return buffer.end_episode(stream=stream)
    if action == 19 and rng.random() < 0.1:
        buffer.clear()
    return buffer.num_eligible


def _seen_by(agent: str, number: int) -> Any:
    """Return what an agent observes."""
    place = [AGENTS.index(agent) + 1, number, 1]
    return {"eye": place, "foot": number / 4} if agent == "tall" else place


_joint = functools.partial(relive.JointReplayBuffer, schemas=SCHEMAS, agents=AGENTS)

JOINT: dict[str, Make] = {
    "joint": lambda: relive.JointReplayBuffer(9, agents=AGENTS, n_step=3, gamma=0.9, seed=1),
    "joint of 3 streams": lambda: _joint(12, streams=3, limiter=relive.SampleToInsertRatio(3.0, 2, 50.0), seed=2),
    "joint with priorities": lambda: _joint(3, streams=2, n_step=2, sampler=relive.PrioritizedSampler(), seed=3),
    "joint sequences": lambda: relive.JointSequenceReplayBuffer(
        12, SCHEMAS, agents=AGENTS, length=2, pad=True, max_times_sampled=3, seed=4
    ),
}


# Items.


def item_call(buffer: Any, rng: random.Random) -> Any:
    """Make one call on a buffer of items, whose columns are of many dtypes."""
    action = rng.randrange(8)
    if action < 5:
        return buffer.add(items_of(buffer.storage_unit, rng, rng.randrange(1, 4)))
    if action < 7:
        return buffer.sample(3)
    if rng.random() < 0.1:
        buffer.clear()
    return len(buffer)


def items_of(unit: str, rng: random.Random, count: int) -> dict[str, Any]:
    """Return a batch of `count` items of at most 3 rows."""
    lengths = [rng.randrange(1, 4) for _ in range(count)]
    rows = len(lengths) if unit == "timesteps" else sum(lengths)
    numbers = np.array([rng.randrange(100) for _ in range(rows)], np.int64)
    batch: dict[str, Any] = {
        "image/left": np.repeat(numbers, 4).reshape(-1, 2, 2).astype(np.uint8),
        "speed": (numbers / 7).astype(np.float16),
        "name": np.array([f"row {number}" for number in numbers], "<U8"),
        "pose": np.array([(number,) for number in numbers], [("x", "<f4")]),
        "flag": numbers % 2 == 0,
    }
    if unit == "sequences":
        batch["seq_lens"] = np.array(lengths, np.int16)
    if unit == "episodes":
        batch["eps_id"] = np.repeat(np.arange(count), lengths)
        batch["t"] = np.concatenate([np.arange(length) for length in lengths])
        batch["terminated"] = np.concatenate([np.arange(length) == length - 1 for length in lengths])
        batch["terminated"] &= batch["eps_id"] != rng.randrange(count)
    if unit == "fragments":
        batch["ragged"] = numbers[: rng.randrange(rows)]
    return batch


# Episodes.

METADATA: tuple[Any, ...] = (
    None,
    {},
    {"answer": "4 \ud800", "images": [np.arange(6, dtype=np.uint8).reshape(1, 2, 3), np.zeros((0, 2))]},
)


def episode_call(buffer: Any, rng: random.Random) -> Any:
    """Make one call on a buffer of episodes; groups, admission and versions are used where there are any."""
    open_ids = list(buffer.get_stats().open_ages)
    action, version = rng.randrange(12), buffer.policy_version
    if action < 2:
        group_id = rng.choice([None, "ends in \ud800", *"ghijk"]) if buffer.groups else None
        # A group may be full, or given up.
        with buffer.admit_nowait() as ticket, _refusable():
            return buffer.start_episode_nowait(
                rng.choice("abc"),
                group_id=group_id,
                policy_version=rng.choice([None, version]),
                ticket=ticket,
                metadata=rng.choice(METADATA),
            )
    elif action < 7 and open_ids:
        number = rng.randrange(5)
        step = {"x": np.arange(number % 3, dtype=np.int16), "t": number}, (number, b"a"), 0.1 * number
        # An episode never goes back to an older version.
        with _refusable():
            return buffer.append_observation_action_reward_nowait(
                rng.choice(open_ids), *step, policy_version=rng.choice([None, None, version])
            )
    elif action == 7 and open_ids:
        status = rng.choice(get_args(relive.FinalStatus))
        return buffer.end_episode_nowait(rng.choice(open_ids), None, status)
    elif action == 8 and open_ids:
        return buffer.abort_episode_nowait(rng.choice(open_ids)) if rng.random() < 0.3 else None
    elif action == 9 and rng.random() < 0.4:
        buffer.set_policy_version(min((version or 0) + rng.randrange(3), LATEST))
    elif action == 10:
        return _delivered(buffer, rng)
    elif action == 11 and rng.random() < 0.05:
        buffer.clear()
    elif action == 11:
        return buffer.sample_n_step_nowait(2, 3, 0.9, lag_decay=0.7 if _has_lags(buffer) else 1.0)
    return len(buffer)


@contextlib.contextmanager
def _refusable() -> Iterator[None]:
    """Leave a block whose argument is refused, unless memory does not hold it."""
    try:
        yield
    except errors.ArgumentError as error:
        if "memory" in str(error):
            raise


def _delivered(buffer: Any, rng: random.Random) -> Any:
    """Ask for whole episodes or groups, reject some, or acknowledge what was trained on."""
    action, version = rng.randrange(4), buffer.policy_version
    lag = rng.choice([None, 1]) if version is not None else None
    if action == 0 and buffer.groups:
        return buffer.next_groups_nowait(1, max_lag=lag)
    if action < 2:
        return buffer.next_episodes_nowait(1, max_lag=lag)
    if action == 2 and version is not None and buffer.redeliver:
        return buffer.ack(version)
    units: list[Any] = buffer.next_episodes_nowait(1)
    return buffer.reject([each.episode_id for each in units], reason=rng.choice(["rejected", "too long"]))


def episode_samples(buffer: Any) -> Any:
    """Return the next samples, of all episodes and of those that are not too old."""
    batch = buffer.sample_n_step_nowait(3, 2, 0.9)
    if _has_lags(buffer):
        batch += buffer.sample_n_step_nowait(9, 2, 0.9, max_lag=buffer.policy_version, lag_decay=0.9)
    return batch


def _has_lags(buffer: Any) -> bool:
    """Return whether draws may depend on how old a transition is."""
    return buffer.policy_version is not None and buffer.sampler is None


class EachAlike(relive.EpisodeSampler[Any, Any]):
    """A custom sampler of episodes."""

    def _draw(self, episodes: Any, size: int, rng: np.random.Generator) -> Any:
        drawn_ = [episodes[place] for place in rng.integers(len(episodes), size=size)]
        return [(episode, int(rng.integers(len(episode)))) for episode in drawn_]


_episodes: Any = relive.EpisodeReplayBuffer
GROUPED: Mapping[str, Any] = {
    "admission": relive.Admission(1, 8),
    "groups": relive.Groups(2, timeout=1000.0, min_size=1),
}

EPISODES: dict[str, Make] = {
    "episodes": lambda: _episodes(seed=1),
    "episodes within limits": lambda: _episodes(max_transitions=20, max_episodes=6, seed=2),
    "episodes with a ratio": lambda: _episodes(
        max_transitions=30, limiter=relive.SampleToInsertRatio(2.0, 4, error_buffer=8.0), seed=3
    ),
    "episodes with their own sampler": lambda: _episodes(max_episodes=9, sampler=EachAlike(), seed=5),
    "episodes in groups": lambda: _episodes(max_episodes=9, **GROUPED, seed=4),
    "episodes delivered again": lambda: _episodes(max_episodes=12, redeliver=True, seed=6),
}


# Tokens.


def token_call(buffer: Any, rng: random.Random) -> Any:
    """Make one call on a buffer of tokens; prompts of half of the steps go on from what came before."""
    action, version = rng.randrange(14), buffer.policy_version
    if action == 0:
        return buffer.set_policy_version(min((version or 0) + rng.randrange(3), LATEST))
    if action == 1:
        return buffer.clear() if rng.random() < 0.2 else len(buffer)
    if action < 4:
        return buffer.sample(rng.randrange(1, 5), max_lag=None if version is None else rng.choice([None, 1]))
    if action == 4:
        return _delivered(buffer, rng)
    stored = buffer.eligible_keys()
    if action == 5 and len(stored) and isinstance(buffer.sampler, relive.PrioritizedSampler):
        keys = rng.choices([*stored.tolist(), 0], k=3)
        return buffer.update_priorities(keys, [3 * rng.random() for _ in keys])
    if action == 5 and len(stored) and buffer.sequence_extras:
        keys = [rng.choice([*stored.tolist(), -1]) for _ in range(3)]
        width = int(buffer.lengths(stored).max())
        return buffer.update(keys, advantages=np.full((3, width), rng.random()), weight=[rng.random()] * 3)
    steps: list[Any] = []
    group_id = rng.choice([None, "ends in \ud800", "\N{SNOWMAN}"]) if buffer.groups else None
    # Long enough for others of the group to share it, and for a prompt that drops the end of the one before.
    question = [] if group_id is None else list(range(rng.choice([0, 70])))
    for _ in range(rng.randrange(1, 4)):
        before = [*steps[-1].prompt.tolist(), *steps[-1].response.tolist()] if steps else question
        if rng.random() < 0.2:
            del before[-1:]
        response = [rng.randrange(50) for _ in range(rng.randrange(1, 4))]
        steps.append(
            relive.TokenStep(
                prompt=[*before[rng.random() < 0.3 :], rng.randrange(50)],
                response=response,
                logprobs=np.array([-rng.random() for _ in response], np.float32),
                loss_mask=[rng.random() < 0.8 for _ in response],
                policy_version=version or 0,
                reward=rng.choice([0.0, 0.0, 1.0, -0.5]),
            )
        )
    extras = {"weight": rng.random()} if buffer.sequence_extras else {}
    # A group may be full, or given up.
    with buffer.admit_nowait() as ticket, _refusable():
        known = {"group_id": group_id, "metadata": rng.choice(METADATA)}
        return buffer.add_episode(steps, agent_id=rng.choice("ab"), ticket=ticket, **known, **extras)


_NUMBER = relive.Field((), float)

TOKENS: dict[str, Make] = {
    "tokens": lambda: relive.TokenReplayBuffer(150, pad_token_id=3, pad_to_multiple_of=4, seed=1),
    "tokens with extras": lambda: relive.TokenReplayBuffer(
        150, token_extras={"advantages": _NUMBER}, sequence_extras={"weight": _NUMBER}, seed=2
    ),
    "tokens in groups": lambda: relive.TokenReplayBuffer(150, **GROUPED, seed=3),
    "tokens with priorities": lambda: relive.TokenReplayBuffer(150, sampler=relive.PrioritizedSampler(), seed=4),
    "tokens with their own sampler": lambda: relive.TokenReplayBuffer(150, sampler=AmongNewest(), seed=5),
}


# Rollouts and mixtures.


def rollout_call(buffer: Any, rng: random.Random) -> Any:
    """Add a step of many dtypes, or read and clear the rollout when it is full.

    Those of an even capacity have 3 environments.
    """
    if buffer.is_full:
        answer = buffer.advantages(0.9, 0.9)
        buffer.clear()
        return answer
    lead, number = () if buffer.capacity % 2 else (3,), rng.randrange(50)
    return buffer.add(
        {"image": np.full((*lead, 2, 2), number, np.uint8), "speed": {"x": np.full(lead, number / 7, np.float16)}},
        np.full((*lead, 3), number, np.int16),
        np.full(lead, number / 3, np.float32),
        np.full(lead, number / 9, np.float32),
        terminated=np.full(lead, number % 3 == 0),
        truncated=np.full(lead, number % 2 == 0),
        next_value=np.full(lead, 2.0, np.float32),
        name=np.full(lead, f"row {number}", "<U6"),
    )


def rollout_so_far(buffer: Any) -> Any:
    """Return all that a rollout holds."""
    if not len(buffer):
        raise errors.NotReadyError("the rollout is empty")
    return buffer.arrays(), buffer.advantages(0.9, 0.5)


def mixture_call(mixture: Any, rng: random.Random) -> Any:
    """Draw from a mixture, or rate some of its rows."""
    if rng.random() < 0.5:
        return mixture.sample(7)
    number = len(mixture._buffers)
    rows = [
        key * number + place for place, each in enumerate(mixture._buffers) for key in each.eligible_keys().tolist()
    ]
    keys = rng.choices(rows, k=5)
    return mixture.update_priorities(keys, [rng.random() for _ in keys])


def mixture() -> Any:
    """Return a mixture of two buffers that hold some steps."""
    return relive.MixtureSampler([worked(COLUMNS["ring"]), worked(COLUMNS["prioritized"])], [1, 2])


# All of them.

KINDS: dict[str, Kind] = {
    **{name: Kind(make) for name, make in (COLUMNS | JOINT | EPISODES | TOKENS).items()},
    **{
        f"items, {unit}": Kind(functools.partial(relive.ItemReplayBuffer, 20, unit, seed=1), has_journal=False)
        for unit in get_args(item_cuts.StorageUnit)
    },
    "rollout": Kind(lambda: relive.RolloutBuffer(9), has_journal=False),
    "rollout of 3 environments": Kind(lambda: relive.RolloutBuffer(8), has_journal=False),
    "mixture": Kind(mixture, has_journal=False, is_stored=False),
}
BY_DAY = frozenset(
    {
        "ring of 3 streams, n_step",
        "prioritized with frame_stack",
        "prioritized sequences",
        "joint with priorities",
        "episodes in groups",
        "tokens with extras",
        "tokens in groups",
        "items, episodes",
    }
)
"""Kinds that span every part of the library: by day, tests of others do not run."""
STORED = {name: kind for name, kind in KINDS.items() if kind.is_stored}
JOURNALED = {name: kind for name, kind in STORED.items() if kind.has_journal}

_FAMILIES: tuple[tuple[type, Call, Callable[[Any], Any]], ...] = (
    (relive.JointReplayBuffer, joint_call, sample),
    (relive.JointSequenceReplayBuffer, joint_call, sample),
    (relive.ColumnReplayBuffer, column_call, sample),
    (relive.EpisodeReplayBuffer, episode_call, episode_samples),
    (relive.TokenReplayBuffer, token_call, sample),
    (relive.ItemReplayBuffer, item_call, sample),
    (relive.RolloutBuffer, rollout_call, rollout_so_far),
    (relive.MixtureSampler, mixture_call, sample),
)
"""How buffers of a class, and of those that extend it, are used and drawn from; the first that fits counts."""


def _family(buffer: Any) -> tuple[Call, Callable[[Any], Any]]:
    return next((call, draw) for kind, call, draw in _FAMILIES if isinstance(buffer, kind))


def work(buffer: Any, rng: random.Random, count: int) -> list[Any]:
    """Make `count` calls on a buffer, and return what they returned; calls that are held back do nothing.

    Ids of episodes come from `rng`, too: each stretch of work on one buffer needs a seed of its own.
    """
    answers, (call, _) = [], _family(buffer)
    with mock.patch("uuid.uuid4", functools.partial(_id_of, rng)):
        for _ in range(count):
            try:
                answers.append(plain(call(buffer, rng)))
            except errors.NotReadyError as error:
                answers.append(str(error))
    return answers


def _id_of(rng: random.Random) -> uuid.UUID:
    return uuid.UUID(int=rng.getrandbits(128), version=4)


def worked(make: Make, seed: int = 0, count: int = 60) -> Any:
    """Return a buffer that has been in use."""
    buffer = make()
    work(buffer, random.Random(seed), count)
    return buffer


def drawn(buffer: Any) -> Any:
    """Return the next batch, or why there is none."""
    _, draw = _family(buffer)
    try:
        return plain(draw(buffer))
    except errors.NotReadyError as error:
        return str(error)


TIMES = frozenset({"open_ages", "open_age", "unit_age", "start_time", "episode_start_time"})
"""What is read from a clock."""


def plain(value: Any) -> Any:
    """Return the same as something that == compares to the last bit, without what is read from a clock."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value).__name__, plain({each.name: getattr(value, each.name) for each in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items() if name not in TIMES}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.str, value.shape, value.tobytes()
    detach = getattr(value, "detach", None)
    if detach is not None:  # A tensor.
        return plain(detach().numpy())
    if isinstance(value, registry.Configurable):
        return type(value).__name__, plain(value.settings())
    if isinstance(value, Exception):
        return type(value).__name__, str(value)
    return repr(value) if isinstance(value, float) else value


def assert_same(buffer: Any, other: Any, count: int = 30) -> None:
    """Check that two buffers are equal, and stay so: their next batches, what is called in between, all counts."""
    rngs = random.Random(f"same {count}"), random.Random(f"same {count}")
    for number in range(count):
        if number % 8 == 0:
            assert state_of(buffer) == state_of(other)
        assert drawn(buffer) == drawn(other)
        if number % 3 == 0:
            assert work(buffer, rngs[0], 2) == work(other, rngs[1], 2)
    assert state_of(buffer) == state_of(other)
    for each in (buffer, other):
        check(each)


def state_of(buffer: Any) -> Any:
    """Return the state and the statistics of a buffer, as far as it has them, for comparison."""
    if isinstance(buffer, relive.MixtureSampler):
        return [state_of(each) for each in buffer._buffers]
    calls = [getattr(buffer, name, None) for name in ("state_dict", "get_stats")]
    return [plain(call()) for call in calls if call is not None]


def check(buffer: Any) -> None:
    """Verify all invariants of a buffer that can."""
    if hasattr(buffer, "check"):
        buffer.check()


async def settle(rounds: int = 20) -> None:
    """Let the other tasks of the event loop go on until they wait."""
    for _ in range(rounds):
        await asyncio.sleep(0)
