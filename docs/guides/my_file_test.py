"""Each block of "My file is ..." reads a small file in the layout that it is about.

    seen      0  1  2 (3)  |  5  6  7 (8)      the first episode terminated, the second ended by a time limit
    reward    1  2  3      |  1  2  3
    action    0  1  2      |  5  6  7

Those whose library is installed are written or read back by it.
"""

from collections.abc import Mapping
import json
import pathlib
import re
from typing import Any

import numpy as np
import pytest

import relive

BLOCK = re.compile(r"^<!-- file: (\w+) -->\n```py\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = dict(BLOCK.findall(pathlib.Path(__file__).with_name("my_file.md").read_text(encoding="utf-8")))
NUMBERS = np.array([0, 1, 2, 5, 6, 7])
SEEN, NEXT = (np.stack([column, np.zeros(6)], axis=1).astype(np.float32) for column in (NUMBERS, NUMBERS + 1))
ACTIONS, REWARDS = NUMBERS[:, np.newaxis].astype(np.float32), np.tile(np.array([1, 2, 3], np.float32), 2)
ENDS = np.array([[0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1]], np.bool_)
EPISODES = np.repeat([0, 1], 3)
WITH_FINALS = np.array([0, 1, 2, 3, 5, 6, 7, 8])
Transition = tuple[float, float, float, float, bool]


def transitions(last: bool | None = False) -> list[Transition]:
    """Return what must be stored; `last`: whether the second episode terminated, None if its last step is left out."""
    rows = [(n, n, r, n + 1, n == 2 or (n == 7 and bool(last))) for n, r in zip(NUMBERS, REWARDS, strict=True)]
    return [tuple(map(float, row[:4])) + row[4:] for row in rows if last is not None or row[0] != 7]


def stored(buffer: Any) -> list[Transition]:
    """Return what can be drawn, oldest first; what follows a termination does not matter."""
    batch = buffer.read(buffer.eligible_keys())
    seen, following = (
        tree["x"] if isinstance(tree, Mapping) else tree for tree in (batch.observation, batch.next_observation)
    )
    is_terminal = batch.is_terminal.tolist()
    after = np.where(is_terminal, seen[:, 0] + 1, following[:, 0])
    columns = seen[:, 0], batch.action[:, 0], batch.reward, after
    return sorted(zip(*(np.asarray(column, float).tolist() for column in columns), is_terminal, strict=True))


def load(name: str, **given: Any) -> Any:
    """Run a block, and return the buffer that it fills."""
    names = {"np": np, "relive": relive, "buffer": relive.RingReplayBuffer(100, seed=0), **given}
    exec(compile(BLOCKS[name], name, "exec"), names)
    names["buffer"].check()
    return names["buffer"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def hdf5(path: str, **arrays: Any) -> Any:
    """Write a file of arrays, and return h5py."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            file[name] = array
    return h5py


def owner(module: str) -> Any:
    """Return a module of a library that no extra brings."""
    return pytest.importorskip(module, reason=f"{module.partition('.')[0]} is not installed")


FLAT = {"observations": SEEN, "actions": ACTIONS, "rewards": REWARDS, "terminals": ENDS[0]}


def test_the_four_keys_of_d4rl_are_read() -> None:
    h5py = hdf5("hopper.hdf5", **FLAT, timeouts=ENDS[1])
    with h5py.File("hopper.hdf5") as data:
        assert stored(load("d4rl", data=data)) == transitions(None)


def test_time_limits_that_agilerl_does_not_write_are_found() -> None:
    h5py = hdf5("data.h5", **FLAT, next_observations=NEXT)
    buffer = load("agilerl", h5py=h5py)
    assert stored(buffer) == transitions()
    assert buffer.get_stats().terminated_episodes == buffer.get_stats().truncated_episodes == 1


def test_minari_keeps_final_observations() -> None:
    """With eleven episodes: their names are not in the order of their numbers."""
    h5py = pytest.importorskip("h5py")
    with h5py.File("main_data.hdf5", "w") as file:
        for i, (start, stop) in enumerate([(0, 3), (3, 6)] * 6):
            group = file.create_group(f"episode_{i}")
            group.attrs["id"] = i
            group["observations"] = np.append(SEEN[start:stop], NEXT[stop - 1 : stop], axis=0)
            group["actions"], group["rewards"] = ACTIONS[start:stop], REWARDS[start:stop]
            group["terminations"], group["truncations"] = ENDS[:, start:stop]
    buffer = load("minari", h5py=h5py)
    assert buffer.read(np.arange(36)).observation[:, 0].tolist() == NUMBERS.tolist() * 6
    assert stored(buffer)[::6] == transitions()


def test_minari_itself_writes_such_a_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari, h5py = pytest.importorskip("minari"), pytest.importorskip("h5py")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    from relive.integrations import minari as relive_minari

    buffer = relive.RingReplayBuffer(10)
    for part, terminated in ((slice(0, 3), True), (slice(3, 6), False)):
        seen = np.append(SEEN[part], NEXT[part][-1:], axis=0)
        buffer.add_episode(seen, ACTIONS[part], REWARDS[part], terminated=terminated)
    relive_minari.to_dataset(buffer, "test/mine-v0")
    monkeypatch.chdir(next(tmp_path.rglob("main_data.hdf5")).parent)
    assert stored(load("minari", h5py=h5py)) == transitions()
    assert minari.load_dataset("test/mine-v0").total_steps == 6


def d3rlpy_file() -> Any:
    parts: dict[str, Any] = {}
    for i, part in enumerate((slice(0, 3), slice(3, 6))):
        parts |= {f"observations_{i}": SEEN[part], f"actions_{i}": ACTIONS[part], f"terminated_{i}": i == 0}
        parts[f"rewards_{i}"] = REWARDS[part, np.newaxis]
    names = ["observations", "actions", "rewards", "terminated"]
    return hdf5("d3rlpy.h5", columns=names, num_episodes=2, version="2.1", **parts)


def test_d3rlpy_leaves_the_last_step_out_where_nothing_follows() -> None:
    assert stored(load("d3rlpy", h5py=d3rlpy_file())) == transitions(None)


def test_d3rlpy_itself_counts_as_many_transitions() -> None:
    d3rlpy = owner("d3rlpy")
    d3rlpy_file()
    with open("d3rlpy.h5", "rb") as file:
        there = d3rlpy.dataset.ReplayBuffer.load(file, d3rlpy.dataset.InfiniteBuffer())
    assert there.transition_count == len(transitions(None))
    assert [episode.terminated for episode in there.episodes] == [True, False]


def test_files_of_the_first_d3rlpy_are_flat() -> None:
    h5py = hdf5("d3rlpy_v1.h5", **FLAT, episode_terminals=ENDS.any(axis=0))
    assert stored(load("d3rlpy_v1", h5py=h5py)) == transitions(None)


def imitation_file() -> None:
    observations = np.stack([WITH_FINALS, np.zeros(8)], axis=1).astype(np.float32)
    columns: Any = {"obs": observations, "acts": ACTIONS, "rews": REWARDS, "infos": np.array([{}] * 6)}
    np.savez("trajectories.npz", **columns, indices=np.array([3]), terminal=np.array([True, True]))


def test_imitation_calls_time_limits_terminal() -> None:
    imitation_file()
    assert stored(load("imitation")) == transitions(last=True)


def test_imitation_itself_reads_such_a_file() -> None:
    serialize = owner("imitation.data.serialize")
    imitation_file()
    with pytest.warns(DeprecationWarning, match="old npz version"):
        there = serialize.load("trajectories.npz")
    assert [each.obs[:, 0].tolist() for each in there] == [[0, 1, 2, 3], [5, 6, 7, 8]]
    assert [each.acts[:, 0].tolist() for each in there] == [[0, 1, 2], [5, 6, 7]]
    assert [each.terminal for each in there] == [True, True]


def test_expert_files_of_stable_baselines_tell_no_ends() -> None:
    starts = np.array([True, False, False, True, False, False])
    np.savez("expert.npz", obs=SEEN, actions=ACTIONS, rewards=REWARDS, episode_starts=starts)
    assert stored(load("stable_baselines")) == [each for each in transitions(None) if each[0] != 2]


@pytest.mark.parametrize("is_full", [False, True])
def test_buffers_of_stable_baselines3_are_read_oldest_first(is_full: bool) -> None:
    buffers = pytest.importorskip("stable_baselines3.common.buffers")
    save_util = pytest.importorskip("stable_baselines3.common.save_util")
    spaces = pytest.importorskip("gymnasium").spaces
    box = spaces.Box(-9, 9, (2,)), spaces.Box(-9, 9, (1,))
    there = buffers.ReplayBuffer(6 if is_full else 8, *box, handle_timeout_termination=True)
    for _ in range(2 if is_full else 0):
        there.add(SEEN[:1] + 50, NEXT[:1], ACTIONS[:1], REWARDS[:1], np.array([False]), [{}])
    for t in range(6):
        is_end = ENDS[:, t].any()
        infos = [{"TimeLimit.truncated": bool(ENDS[1, t])}]
        there.add(SEEN[t : t + 1], NEXT[t : t + 1], ACTIONS[t : t + 1], REWARDS[t : t + 1], np.array([is_end]), infos)
    save_util.save_to_pkl("replay_buffer.pkl", there)
    buffer = load("stable_baselines3", save_util=save_util)
    assert stored(buffer) == transitions()
    assert buffer.read(buffer.eligible_keys()).observation[:, 0].tolist() == NUMBERS.tolist()


def test_frames_of_lerobot_are_episodes_by_number() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    columns = {"observation.state": list(SEEN), "action": list(ACTIONS), "episode_index": EPISODES}
    pathlib.Path("data/chunk-000").mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.table(columns), "data/chunk-000/file-000.parquet")
    found = stored(load("lerobot", pyarrow=pyarrow))
    assert [each[:2] + each[3:] for each in found] == [
        (n, n, n + 1, False) for n in NUMBERS.tolist() if n not in (2, 7)
    ]


def ogbench_arrays() -> dict[str, Any]:
    is_final = np.isin(WITH_FINALS, [3, 8])
    seen = np.stack([WITH_FINALS, np.zeros(8)], axis=1).astype(np.float32)
    return {"observations": seen, "actions": seen[:, :1], "terminals": is_final.astype(np.float32)}


NO_REWARDS = [(each[0], each[1], 0.0, each[3], False) for each in transitions()]


def test_the_last_row_of_a_trajectory_of_ogbench_is_no_step() -> None:
    np.savez("antmaze.npz", **ogbench_arrays())
    assert stored(load("ogbench")) == NO_REWARDS


def test_what_ogbench_returns_is_read_in_both_forms() -> None:
    utils = owner("ogbench.utils")
    np.savez("antmaze.npz", **ogbench_arrays())
    for name, is_compact in (("ogbench_regular", False), ("ogbench_compact", True)):
        data = utils.load_dataset("antmaze.npz", compact_dataset=is_compact)
        assert stored(load(name, data=data)) == NO_REWARDS


def test_demonstrations_of_robomimic_have_next_observations() -> None:
    parts: dict[str, Any] = {}
    for i, part in enumerate((slice(0, 3), slice(3, 6))):
        demo = f"data/demo_{i}"
        parts |= {f"{demo}/obs/x": SEEN[part], f"{demo}/next_obs/x": NEXT[part]}
        parts |= {f"{demo}/actions": ACTIONS[part], f"{demo}/rewards": REWARDS[part], f"{demo}/dones": [0, 0, 1]}
    h5py = hdf5("demo.hdf5", **parts)
    assert stored(load("robomimic", h5py=h5py)) == [(*each[:4], False) for each in transitions()]


def test_a_full_ring_of_tianshou_is_unrolled() -> None:
    columns = {
        "obs": SEEN,
        "act": ACTIONS,
        "rew": REWARDS,
        "terminated": ENDS[0],
        "truncated": ENDS[1],
        "obs_next": NEXT,
    }
    h5py = hdf5("tianshou.hdf5", **{f"_meta/{name}": np.roll(column, 2, axis=0) for name, column in columns.items()})
    with h5py.File("tianshou.hdf5", "r+") as file:
        file.attrs.update(_size=6, _insertion_idx=2)
    assert stored(load("tianshou", h5py=h5py)) == transitions()


def test_tianshou_itself_writes_such_a_file() -> None:
    data, h5py = owner("tianshou.data"), pytest.importorskip("h5py")
    there = data.ReplayBuffer(size=6)
    for t in (0, 1, *range(6)):
        there.add(
            data.Batch(
                obs=SEEN[t],
                act=ACTIONS[t],
                rew=float(REWARDS[t]),
                terminated=bool(ENDS[0, t]),
                truncated=bool(ENDS[1, t]),
                obs_next=NEXT[t],
                info={},
            )
        )
    there.save_hdf5("tianshou.hdf5")
    assert stored(load("tianshou", h5py=h5py)) == transitions()


def test_torchrl_itself_writes_such_files() -> None:
    torchrl, tensordict = owner("torchrl.data"), owner("tensordict")
    torch = pytest.importorskip("torch")
    there = torchrl.TensorDictReplayBuffer(storage=torchrl.LazyMemmapStorage(6))
    for t in (0, 1, *range(6)):
        ends = {"terminated": torch.tensor([bool(ENDS[0, t])]), "truncated": torch.tensor([bool(ENDS[1, t])])}
        following = {"observation": torch.tensor(NEXT[t]), "reward": torch.tensor([REWARDS[t]]), **ends}
        step = {"observation": torch.tensor(SEEN[t]), "action": torch.tensor(ACTIONS[t]), "next": following}
        there.add(tensordict.TensorDict(step, []))
    there.dumps("torchrl")
    buffer = load("torchrl", tensordict=tensordict, torch=torch, json=json, pathlib=pathlib)
    assert stored(buffer) == transitions()
    assert buffer.read(buffer.eligible_keys()).observation[:, 0].tolist() == NUMBERS.tolist()


def cpprb_steps() -> dict[str, Any]:
    return {
        "obs": SEEN,
        "act": ACTIONS,
        "rew": REWARDS[:, np.newaxis],
        "next_obs": NEXT,
        "done": ENDS[0][:, np.newaxis],
    }


def test_rows_of_cpprb_follow_by_their_next_observations() -> None:
    rolled: Any = {name: np.roll(column, 2, axis=0) for name, column in cpprb_steps().items()}
    np.savez("cpprb.npz", data=rolled)
    assert stored(load("cpprb")) == transitions()


def test_cpprb_itself_writes_such_a_file() -> None:
    cpprb = owner("cpprb")
    fields = {"obs": {"shape": 2}, "act": {}, "rew": {}, "next_obs": {"shape": 2}, "done": {}}
    there = cpprb.ReplayBuffer(6, fields)
    for t in (0, 1, *range(6)):
        there.add(**{name: column[t] for name, column in cpprb_steps().items()})
    there.save_transitions("cpprb.npz")
    assert stored(load("cpprb")) == transitions()


@pytest.mark.full
def test_rllib_itself_writes_such_files() -> None:
    json_writer, json_reader, sample_batch = (
        pytest.importorskip(f"ray.rllib.{name}", reason="RLlib is not installed", exc_type=ImportError)
        for name in ("offline.json_writer", "offline.json_reader", "policy.sample_batch")
    )
    columns = {"obs": SEEN, "new_obs": NEXT, "actions": ACTIONS, "rewards": REWARDS, "eps_id": EPISODES}
    json_writer.JsonWriter("rllib").write(
        sample_batch.SampleBatch(columns | {"terminateds": ENDS[0], "truncateds": ENDS[1]})
    )
    assert stored(load("rllib", json_reader=json_reader)) == transitions()


def test_flashbax_itself_writes_such_a_vault() -> None:
    flashbax, vault = owner("flashbax"), owner("flashbax.vault")
    there = flashbax.make_flat_buffer(max_length=8, min_length=1, sample_batch_size=1, add_sequences=True)
    columns = {"obs": SEEN, "action": ACTIONS, "reward": REWARDS, "done": ENDS[0]}
    state = there.init({name: column[0] for name, column in columns.items()})
    state = there.add(state, columns)
    vault.Vault("vault", state.experience, rel_dir=".", vault_uid="mine").write(state)
    found = stored(load("flashbax", vault=vault))
    assert found == [each for each in transitions(None) if each[0] != 7]


@pytest.mark.parametrize("as_numpy", [False, True])
def test_the_last_step_of_rlds_is_a_final_observation(as_numpy: bool) -> None:
    def step(t: int, number: int, final: int) -> dict[str, Any]:
        is_last = number == final
        known = NUMBERS.tolist().index(number) if not is_last else 0
        seen, action = np.array([number, 0], np.float32), ACTIONS[known] * (not is_last)
        reward = np.float32(REWARDS[known] * (not is_last))
        ends = {
            "is_first": t == 0,
            "is_last": is_last,
            "is_terminal": is_last and final == 3,
            "discount": np.float32(1),
        }
        return {"observation": seen, "action": action, "reward": reward, **ends}

    dataset: Any = [{"steps": [step(t, n + t, n + 3) for t in range(4)]} for n in (0, 5)]
    if as_numpy:
        tensorflow = owner("tensorflow")
        tfds = owner("tensorflow_datasets")
        steps = [
            {key: np.stack([each[key] for each in one["steps"]]) for key in dataset[0]["steps"][0]} for one in dataset
        ]
        made = [{"steps": tensorflow.data.Dataset.from_tensor_slices(columns)} for columns in steps]
        dataset = [{"steps": tfds.as_numpy(one["steps"])} for one in made]
    assert stored(load("rlds", dataset=dataset)) == transitions()


def test_every_block_is_read(request: pytest.FixtureRequest) -> None:
    source = pathlib.Path(__file__).read_text(encoding="utf-8")
    assert {name for name in BLOCKS if f'"{name}"' not in source} == set()
    assert isinstance(request.node, pytest.Item)
