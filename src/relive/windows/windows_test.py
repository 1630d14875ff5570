"""What the windows answer beyond the grid: nested and odd dtypes, whole episodes, rules of their settings."""

from typing import Any

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest

import relive
from relive import errors
from relive.buffers import column_grid_test
from relive.buffers import column_oracle_test as oracle_lib
from relive.kernels import append
from relive.windows import returns
from relive.windows import window as window_lib


def test_padded_sequences_can_be_each_episode_once() -> None:
    """Running ones too, once they have a complete step, and while their first step is stored."""
    num_running = 0
    for seed, longest, streams in [(0, 15, 1), (1, 18, 2), (2, 24, 3)]:
        storage = column_grid_test.poisoned_storage(longest)
        buffer = relive.SequenceReplayBuffer(
            longest, length=longest, stride=longest, pad=True, streams=streams, storage=storage
        )
        oracle = oracle_lib.Oracle(longest, streams)
        writer = column_grid_test.Writer(buffer, oracle, np.random.default_rng(seed))
        for _ in range(100):
            writer.write()
            first = [(key, episode) for key, episode, step in oracle.alive() if step == 0 and episode.complete]
            assert all(len(episode.actions) <= longest for _, episode in first)
            keys = [key for key, _ in first]
            assert buffer.eligible_keys().tolist() == keys
            batch = buffer.read(keys)
            oracle_lib.assert_windows(batch, [oracle.sequence(key, longest) for key in keys])
            assert batch.mask.sum(axis=1).tolist() == [episode.complete for _, episode in first]
            num_running += sum(episode.end == "open" for _, episode in first)
    assert num_running > 50


def nested_buffer(make: Any, **settings: Any) -> Any:
    """Return a buffer with nested and odd fields, and one episode of four steps in it, which terminated."""
    half = np.dtype([("a", np.float32), ("b", np.int8)])
    schema = relive.Schema(
        {"image": relive.Field((2, 2), np.uint8), "body": {"speed": relive.Field((), np.float16)}},
        {"turn": relive.Field((), np.int8), "push": relive.Field(3, np.float32)},
        reward=relive.Field((), np.float32),
        extras={"logp": relive.Field((), np.float32), "state": relive.Field(2, half), "name": relive.Field((), "U4")},
    )
    buffer = make(16, schema, seed=0, **settings)
    steps = np.arange(5)
    buffer.add_episode(
        {
            "image": np.broadcast_to(steps[:, None, None] + 1, (5, 2, 2)).astype(np.uint8),
            "body": {"speed": (steps / 4).astype(np.float16)},
        },
        {"turn": steps[:4].astype(np.int8), "push": np.ones((4, 3), np.float32)},
        [0.1, 0.2, 0.3, 0.4],
        terminated=True,
        logp=-steps[:4].astype(np.float32),
        state=np.array([[(t, 2 * t)] * 2 for t in range(4)], half),
        name=np.array(["a", "bb", "ccc", "dddd"]),
    )
    return buffer


def test_nested_observations_actions_and_extras_come_back_nested() -> None:
    batch = nested_buffer(relive.RingReplayBuffer, n_step=2, gamma=0.5).read([0, 2, 3])
    assert batch.observation["image"][:, 0, 1].tolist() == [1, 3, 4]
    assert batch.observation["body"]["speed"].tolist() == [0.0, 0.5, 0.75]
    assert batch.next_observation["body"]["speed"].tolist() == [0.5, 1.0, 1.0]
    assert batch.next_observation["body"]["speed"].dtype == np.float16
    assert batch.action["turn"].dtype == np.int8
    assert batch.action["push"].shape == (3, 3)
    assert batch.extras["name"].tolist() == ["a", "ccc", "dddd"]
    assert batch.extras["state"]["b"].tolist() == [[0, 0], [4, 4], [6, 6]]
    assert set(batch.extras) == {"logp", "state", "name"}
    assert len(batch) == 3


def test_rewards_are_summed_in_float64_and_keep_their_dtype() -> None:
    batch = nested_buffer(relive.RingReplayBuffer).read([0], n_step=3, gamma=0.9)
    rewards = np.array([0.1, 0.2, 0.3], np.float32).astype(np.float64).tolist()
    expected = np.float32(rewards[0] + 0.9 * rewards[1] + 0.9**2 * rewards[2])
    assert batch.reward.tolist() == [float(expected)]
    assert batch.reward.dtype == batch.next_discount.dtype == np.float32
    assert batch.next_discount.tolist() == [float(np.float32(0.9**3))]


def test_stacks_of_nested_frames_are_padded_in_every_leaf() -> None:
    for padding, first in (("zeros", 0), ("first", 1)):
        batch = nested_buffer(relive.RingReplayBuffer, frame_stack=3, stack_padding=padding).read([0, 3])
        assert batch.observation["image"].shape == (2, 3, 2, 2)
        assert batch.observation["image"][:, :, 0, 0].tolist() == [[first, first, 1], [2, 3, 4]]
        assert batch.next_observation["image"][:, :, 0, 0].tolist() == [[first, 1, 2], [3, 4, 5]]
        assert batch.next_observation["body"]["speed"].tolist() == [[0.0, 0.0, 0.25], [0.5, 0.75, 1.0]]


def test_padding_of_a_sequence_is_zeros_in_every_leaf() -> None:
    batch = nested_buffer(relive.SequenceReplayBuffer, length=6, burn_in=2, pad=True).sample(2)
    assert len(batch) == 2
    assert batch.observation["image"][0, :, 0, 0].tolist() == [1, 2, 3, 4, 5, 0, 0]
    assert batch.action["turn"][0].tolist() == [0, 1, 2, 3, 0, 0]
    assert batch.extras["name"][0].tolist() == ["a", "bb", "ccc", "dddd", "", ""]
    assert batch.extras["state"]["b"][0, :, 1].tolist() == [0, 2, 4, 6, 0, 0]
    assert batch.mask[0].tolist() == [True] * 4 + [False] * 2
    assert batch.is_burn_in.tolist() == [[True] * 2 + [False] * 4] * 2
    assert nested_buffer(relive.SequenceReplayBuffer, length=6, burn_in=5, pad=True).read([0]).is_burn_in.tolist() == [
        [True] * 4 + [False] * 2
    ]
    assert batch.terminated[0].tolist() == [False] * 3 + [True] + [False] * 2
    assert not batch.truncated.any()
    assert batch.start_step.tolist() == [0, 0]


@hypothesis.given(
    strategies.integers(1, 12), strategies.integers(1, 9), strategies.integers(0, 2**32), strategies.floats(0.01, 1)
)
def test_discounted_sums_of_any_length_are_added_up_in_order(n: int, count: int, seed: int, gamma: float) -> None:
    rng = np.random.default_rng(seed)
    rewards = np.exp(rng.normal(scale=20, size=(n, count))) * rng.choice([-1.0, 1.0], (n, count))
    span = rng.integers(1, n + 1, count)
    expected = []
    for row, m in zip(rewards.T.tolist(), span.tolist(), strict=True):
        total = 0.0
        for k in range(m):
            total += gamma**k * row[k]
        expected.append(total)
    for layout in (rewards, np.asfortranarray(rewards)):
        assert returns.discounted_sums(layout, span, gamma).tolist() == expected


def test_powers_are_computed_once_and_cannot_be_spoilt() -> None:
    powers = returns.powers(0.5, 3, np.dtype(np.float32))
    assert powers.tolist() == [1.0, 0.5, 0.25, 0.125]
    assert powers.dtype == np.float32
    assert returns.powers(0.5, 3, np.dtype(np.float32)) is powers
    with pytest.raises(ValueError, match="read-only"):
        powers[0] = 2.0


@pytest.mark.parametrize("frames", [1, 2])
@pytest.mark.parametrize("n", [1, 3])
def test_no_two_arrays_of_a_batch_share_memory(frames: int, n: int) -> None:
    batch = nested_buffer(relive.RingReplayBuffer, frame_stack=frames, n_step=n).sample(4)
    arrays = [*batch.observation["body"].values(), *batch.next_observation["body"].values(), *batch.action.values()]
    arrays += [batch.observation["image"], batch.next_observation["image"], batch.reward, batch.next_discount]
    arrays += [batch.is_terminal, batch.steps, batch.keys, batch.probabilities, batch.weights, *batch.extras.values()]
    for number, array in enumerate(arrays):
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert not any(np.may_share_memory(array, other) for other in arrays[:number])


def test_errors_say_why_nothing_can_be_drawn() -> None:
    def short(buffer: Any, message: str) -> None:
        with pytest.raises(errors.NotReadyError, match=message):
            buffer.sample(1)

    ring = relive.RingReplayBuffer(8)
    short(ring, "^sample has nothing to draw: no step is stored$")
    ring.add(0, 0, 0.0)
    short(ring, "^sample has nothing to draw: no step with a known next observation is stored$")
    for frames in (2, 3):
        stacked = relive.RingReplayBuffer(frames - 1, frame_stack=frames)
        for t in range(4):
            stacked.add(t, 0, 0.0, next_observation=t + 1)
        short(stacked, f"no step with a known next observation and all its {frames} frames is stored$")
    sequence = relive.SequenceReplayBuffer(16, length=8)
    for _ in range(2):
        sequence.add_episode([0] * 5, [0] * 4, [0.0] * 4, terminated=True)
    short(sequence, "^sample has nothing to draw: a sequence has 8 steps and the longest episode is 4$")
    strided = relive.SequenceReplayBuffer(4, length=3, stride=5)
    for t in range(10):
        strided.add(t, 0, 0.0, next_observation=t + 1)
    short(strided, "^sample has nothing to draw: no sequence of 3 steps starts at a multiple of stride = 5$")
    lazy = relive.SequenceReplayBuffer(16, length=8)
    lazy.add(0, 0, 0.0)
    short(lazy, "^sample has nothing to draw: a sequence has 8 steps and the longest episode is 0$")
    padded = relive.SequenceReplayBuffer(16, length=8, pad=True)
    padded.add(0, 0, 0.0)
    short(padded, "^sample has nothing to draw: no step with a known next observation is stored at the start of an ep")


class Spy(relive.ColumnStorage):
    """A storage that knows what it was asked for."""

    def __init__(self, schema: relive.Schema, capacity: int) -> None:
        super().__init__(schema, capacity)
        self.asked: list[tuple[str, int]] = []

    def read(self, slots: Any, fields: Any = None) -> dict[str, Any]:
        self.asked += [(path, np.size(slots)) for path in (self.schema.fields if fields is None else fields)]
        return super().read(slots, fields)


def test_only_fields_of_the_batch_are_read() -> None:
    schema = relive.Schema(relive.Field((), int), relive.Field((), int))
    spy = Spy(schema, 8)
    ring = relive.RingReplayBuffer(8, n_step=3, storage=spy)
    ring.add_episode(range(8), range(7), np.zeros(7), terminated=True)
    ring.read([0, 1])
    assert sorted(spy.asked) == [("action", 2), ("observation", 2), ("observation", 2), ("reward", 6)]
    spy = Spy(schema, 8)
    sequences = relive.SequenceReplayBuffer(8, length=3, storage=spy)
    sequences.add_episode(range(8), range(7), np.zeros(7), terminated=True)
    sequences.read([0, 1])
    assert sorted(spy.asked) == [("action", 6), ("observation", 8), ("reward", 6)]


ALL_WINDOWS: list[window_lib.Window[Any]] = [
    relive.TransitionWindow(),
    *(relive.TransitionWindow(frame_stack=frames) for frames in (2, 4)),
    *(relive.SequenceWindow(length, 0, stride, pad) for length in (1, 3) for stride in (1, 2) for pad in (False, True)),
    relive.SequenceWindow(2, 0, 5, pad=True),
]


def readable(buffer: Any) -> dict[int, bool]:
    """Return of each key that is stored whether the window's rule says that it may start there."""
    store = buffer._store
    slots = store.alive_slots()
    is_readable = store.is_readable(slots)
    return dict(zip(store.keys(slots).tolist(), is_readable.tolist(), strict=True))


def kept_frames(buffer: Any, key: int) -> int:
    """Return how many of the older frames of a row's stack are stored, of those that it has."""
    store, slot = buffer._store, np.array([key % buffer.capacity])
    episode = store.episodes_of(slot)
    oldest = store.steps_of(store.episodes[append.OLDEST][episode])
    return int(np.minimum(store.steps_of(slot) - oldest, buffer.window.rule[0])[0])


@pytest.mark.filterwarnings("ignore::relive.errors.MisuseWarning")
@hypothesis.given(
    strategies.sampled_from(ALL_WINDOWS),
    strategies.integers(1, 3),
    strategies.integers(3, 9),
    strategies.integers(0, 2**32),
)
def test_eligible_rows_are_those_the_window_can_read(window: Any, streams: int, capacity: int, seed: int) -> None:
    """However steps come, and nothing that comes makes up for a row that is gone."""
    rng = np.random.default_rng(seed)
    buffer: Any = relive.ColumnReplayBuffer(capacity, window=window, streams=streams)
    before: dict[int, bool] = {}
    for t in range(18):
        knows, terminated = rng.random() < 0.7, rng.random(streams) < 0.15
        truncated = (rng.random(streams) < 0.15) & knows
        now = np.where(rng.random(streams) < 0.1, -t, t)
        if rng.random() < 0.5:
            ends = {"terminated": terminated, "truncated": truncated}
            buffer.extend(now, now, np.zeros(streams), now + 1 if knows else None, **ends)
        elif rng.random() < 0.1:
            length = int(rng.integers(1, capacity + 1))
            buffer.add_episode(
                range(length + 1), range(length), np.zeros(length), terminated=bool(t % 2), stream=t % streams
            )
        else:
            stream = t % streams if seed % 2 else int(rng.integers(streams))
            terminates, truncates = bool(terminated[stream]), bool(truncated[stream])
            following = now[stream] + 1 if knows else None
            buffer.add(now[stream], 0, 0.0, following, terminated=terminates, truncated=truncates, stream=stream)
        after = readable(buffer)
        assert buffer.eligible_keys().tolist() == [key for key, is_readable in after.items() if is_readable]
        buffer.check()
        for key, was_readable in before.items():
            if was_readable and key in after:
                assert after[key] or kept_frames(buffer, key) < window.rule[0]
            if not was_readable and after.get(key) and window.rule[0] > 0:
                steps = buffer._store.steps_of(np.array([key % capacity]))
                assert kept_frames(buffer, key) == min(window.rule[0], int(steps[0]))
        before = after
