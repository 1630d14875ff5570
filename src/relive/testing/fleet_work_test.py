import pathlib

import numpy as np

import relive
from relive.testing import fleet_work

_WORK = fleet_work.Work(shape=(3, 2), dtype="uint8", steps=5, batch_size=64)


def _batch(work: fleet_work.Work) -> dict[str, fleet_work.Array]:
    buffer = relive.RingReplayBuffer(1_000, seed=0)
    for observations, actions, rewards in zip(*work.episodes().values(), strict=True):
        buffer.add_episode(observations, actions, rewards, terminated=True)
    batch = buffer.sample(work.batch_size)
    return {
        "observation": np.array(batch.observation),
        "action": batch.action,
        "reward": batch.reward,
        "next_observation": np.array(batch.next_observation),
        "terminal": batch.is_terminal,
    }


def test_an_episode_has_an_observation_more_than_steps() -> None:
    episodes = _WORK.episodes()
    assert {name: (column.shape[1:], str(column.dtype)) for name, column in episodes.items()} == {
        "observations": ((6, 3, 2), "uint8"),
        "actions": ((5,), "int64"),
        "rewards": ((5,), "float32"),
    }


def test_what_a_buffer_answers_is_right() -> None:
    for work in (_WORK, fleet_work.Work()):
        assert fleet_work.wrong(**_batch(work), steps=work.steps) == 0


def test_each_part_of_a_transition_is_looked_at() -> None:
    for name in ("observation", "action", "reward", "next_observation", "terminal"):
        batch = _batch(_WORK)
        batch[name] = np.array(batch[name])
        batch[name][3] = ~batch[name][3] if name == "terminal" else batch[name][3] + 1
        assert fleet_work.wrong(**batch, steps=_WORK.steps) == 1, name


def test_a_next_observation_of_another_episode_is_wrong() -> None:
    batch = _batch(_WORK)
    batch["next_observation"] = np.array(batch["next_observation"])
    batch["next_observation"][:, 0, 0] = 255
    assert fleet_work.wrong(**batch, steps=_WORK.steps) == _WORK.batch_size


def test_a_next_observation_that_is_not_the_next_is_wrong() -> None:
    for apart in (-1, 2):
        batch = _batch(_WORK)
        before, after = np.array(batch["observation"], np.int64), np.array(batch["next_observation"], np.int64)
        after[:, 0, 1] = before[:, 0, 1] + apart
        batch["next_observation"] = after
        assert fleet_work.wrong(**batch, steps=_WORK.steps) == _WORK.batch_size


def test_the_episodes_of_a_file_are_those_that_were_saved(tmp_path: pathlib.Path) -> None:
    _WORK.save(tmp_path / "episodes.npz")
    with np.load(tmp_path / "episodes.npz") as saved:
        assert all(np.array_equal(saved[name], column) for name, column in _WORK.episodes().items())


def test_sizes_are_those_of_the_arrays() -> None:
    sizes = _WORK.sizes()
    assert sizes["step"] == 6 * 6 / 5 + 8 + 4
    assert sizes["transition"] >= 2 * 6 + 8 + 4
    assert sizes["stored"] >= 6 + 8 + 4
