"""Atari frames and MuJoCo states, recorded here: what was stored is read back bit for bit, and takes no more memory."""

import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("ale_py")
pytest.importorskip("mujoco")

import ale_py
import gymnasium

import relive
from relive.buffers import column_oracle_test as oracle_lib

Array = npt.NDArray[Any]
ROWS, COLUMNS = np.arange(84) * 210 // 84, np.arange(84) * 160 // 84


class Recording:
    """A stream of steps and its naive twin, which stores indices into `observations`."""

    def __init__(self, capacity: int, first: Array) -> None:
        self.oracle = oracle_lib.Oracle(capacity)
        self.observations = [np.zeros_like(first)]
        self.actions: list[Any] = []

    def kept(self, observation: Array) -> int:
        self.observations.append(observation.copy())
        return len(self.observations) - 1

    def expected(self, name: str, windows: list[dict[str, Any]]) -> Array:
        """Return a field of naive windows, with what its numbers stand for."""
        places: Array = np.array([fields[name] for fields in windows])
        if name in ("observation", "next_observation"):
            places = np.stack(self.observations)[places]
        if name == "action":
            places = np.stack(self.actions)[places]
        return places


def frame_of(screen: Array) -> Array:
    """Return a frame of 84 by 84 from a grey screen of 210 by 160: the nearest pixels."""
    return screen[ROWS[:, None], COLUMNS]


def record(
    env: Any, buffers: list[Any], recording: Recording, lengths: list[int], *, eager: bool, frame: Any = np.asarray
) -> None:
    """Play episodes with random actions into the buffers, cut as truncated after that many steps at the latest."""
    env.action_space.seed(1)
    for number, length in enumerate(lengths):
        observation = frame(env.reset(seed=number)[0])
        place = recording.kept(observation)
        for t in range(length):
            action = env.action_space.sample()
            following, reward, terminated, truncated, _ = env.step(action)
            following = frame(following)
            truncated = truncated or (t == length - 1 and not terminated)
            next_place = recording.kept(following)
            knows_next = eager or truncated
            given = following if knows_next else None
            for buffer in buffers:
                buffer.add(
                    observation, action, reward, given, terminated=terminated, truncated=truncated, extra=next_place
                )
            recording.actions.append(np.asarray(action))
            recording.oracle.add(
                place,
                len(recording.actions) - 1,
                float(reward),
                next_place if knows_next else None,
                terminated=terminated,
                truncated=truncated,
                extra=next_place,
            )
            observation, place = following, next_place
            if terminated or truncated:
                break


def assert_transitions_equal(buffer: Any, recording: Recording, n_step: int, stack: int) -> None:
    keys = recording.oracle.transition_keys(stack)
    assert buffer.eligible_keys().tolist() == keys
    for part in np.array_split(keys, 4):
        batch = buffer.read(part, n_step=n_step)
        windows = [recording.oracle.transition(int(key), n_step, 0.5, stack) for key in part]
        for name in ("observation", "action", "reward", "next_observation", "next_discount", "is_terminal", "steps"):
            assert np.array_equal(getattr(batch, name), recording.expected(name, windows)), name


def assert_sequences_equal(buffer: Any, recording: Recording, length: int) -> None:
    keys = recording.oracle.sequence_keys(length)
    assert buffer.eligible_keys().tolist() == keys
    batch = buffer.read(keys)
    windows = [recording.oracle.sequence(key, length) for key in keys]
    for name in ("observation", "action", "reward", "terminated", "truncated", "mask", "start_step"):
        assert np.array_equal(getattr(batch, name), recording.expected(name, windows)), name


@pytest.fixture
def pong() -> Any:
    gymnasium.register_envs(ale_py)
    env = gymnasium.make("ALE/Pong-v5", obs_type="grayscale")
    yield env
    env.close()


@pytest.fixture
def cheetah(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)  # where MuJoCo may leave its log
    env = gymnasium.make("HalfCheetah-v5", max_episode_steps=70)
    yield env
    env.close()


def test_atari_frames_are_read_back_as_they_were_recorded(pong: Any) -> None:
    """A game to its end and two that were cut, in a ring that has room for a part of them; 4 frames stacked."""
    recording = Recording(400, np.zeros((84, 84), np.uint8))
    buffer = relive.RingReplayBuffer(400, n_step=3, gamma=0.5, frame_stack=4, seed=0)
    record(pong, [buffer], recording, [5000, 120, 90], eager=True, frame=frame_of)
    assert buffer.get_stats().evicted > 400
    assert (buffer.get_stats().terminated_episodes, buffer.get_stats().truncated_episodes) == (1, 2)
    assert_transitions_equal(buffer, recording, 3, 4)
    batch = buffer.sample(32)
    assert (batch.observation.shape, batch.observation.dtype) == ((32, 4, 84, 84), np.uint8)
    assert np.array_equal(buffer.read(batch.keys).next_observation, batch.next_observation)
    assert len({frame.tobytes() for frame in recording.observations}) > 500
    buffer.check()


@pytest.mark.parametrize("eager", [True, False])
def test_mujoco_steps_are_read_back_as_they_were_recorded(cheetah: Any, eager: bool) -> None:
    """Observations of float64, actions of float32; episodes truncated by the environment or by the test."""
    recording = Recording(150, np.zeros(17))
    ring = relive.PrioritizedReplayBuffer(150, n_step=5, gamma=0.5, seed=0)
    sequences = relive.SequenceReplayBuffer(150, length=8, seed=0)
    record(cheetah, [ring, sequences], recording, [100, 40, 3, 100, 100, 25], eager=eager)
    assert len(ring) == 150
    for n_step in (1, 5):
        assert_transitions_equal(ring, recording, n_step, 1)
    assert_sequences_equal(sequences, recording, 8)
    batch = ring.sample(64)
    dtypes = [column.dtype.name for column in (batch.observation, batch.action, batch.reward)]
    assert dtypes == ["float64", "float32", "float64"]
    assert np.array_equal(ring.read(batch.keys).observation, batch.observation)
    assert ring.get_stats().spliced_episodes == 0
    for buffer in (ring, sequences):
        buffer.check()
