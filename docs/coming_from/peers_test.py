"""Each sentence of these pages and of `comparison.md` about another library, run with the version that they name.

A test skips where that version is missing. relive is not imported, so that the module also runs beside libraries that
need an older numpy: `pytest --noconftest -c /dev/null peers_test.py`.
"""

import asyncio
import importlib.metadata
import inspect
import pathlib
import re
import types
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.filterwarnings("ignore")

PAGES = [*pathlib.Path(__file__).parent.glob("*.md"), pathlib.Path(__file__).parent.parent / "comparison.md"]
PAGES += [pathlib.Path(__file__).parent.parent / "guides" / "stable_baselines3.md"]


def versions_of(name: str) -> set[str]:
    """Return the versions of a library that the pages name."""
    found = re.compile(rf"\b{name}(?: \(SB3\))? (\d+(?:\.\d+)+)", re.IGNORECASE)
    return {version for page in PAGES for version in found.findall(page.read_text(encoding="utf-8"))}


def peer(distribution: str, module: str) -> Any:
    """Return a module of another library, or skip where the version of the pages is not installed."""
    [version] = versions_of(distribution)
    found = pytest.importorskip(module, reason=f"{module} is not installed", exc_type=ImportError)
    if importlib.metadata.version(distribution) != version:
        pytest.skip(f"the pages are about {distribution} {version}")
    return found


def is_drawn_globally(draw: Any) -> bool:
    """Return whether a call takes numbers from the global generator of numpy."""
    before = np.random.get_state()[2]  # type: ignore[index]  # noqa: NPY002
    draw()
    return bool(before != np.random.get_state()[2])  # type: ignore[index]  # noqa: NPY002


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_what_it_was_checked_against(page: pathlib.Path) -> None:
    text = page.read_text(encoding="utf-8")
    if page.name not in {"index.md", "stable_baselines3.md"} or "Coming from Stable" in text:
        assert len(re.findall(r"[Cc]hecked\s+against\s+.*?\d", text)) >= 1


# TorchRL


def torchrl_step(first: int, end: int | None = None, *, is_truncated: bool = False, steps: int = 5) -> Any:
    tensordict, torch = pytest.importorskip("tensordict"), pytest.importorskip("torch")
    numbers = torch.arange(first, first + steps)[:, None]
    ends = numbers == -1 if end is None else numbers == first + end
    no = torch.zeros(steps, 1, dtype=torch.bool)
    following = {"observation": numbers + 1, "reward": torch.ones(steps, 1), "done": ends}
    following |= {"terminated": no if is_truncated else ends, "truncated": ends if is_truncated else no}
    return tensordict.TensorDict({"observation": numbers, "done": no, "terminated": no, "next": following}, [steps])


def torchrl_windows(*parts: Any) -> tuple[Any, dict[int, tuple[Any, ...]]]:
    """Return a buffer of windows of three steps with gamma 0.5, and what each of its rows says."""
    data = peer("torchrl", "torchrl.data")
    transforms = peer("torchrl", "torchrl.envs.transforms")
    steps = transforms.MultiStepTransform(n_steps=3, gamma=0.5)
    buffer = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(100), transform=steps, batch_size=50)
    for part in parts:
        buffer.extend(part)
    rows = [buffer[number] for number in range(len(buffer))]
    names = ("next", "observation"), "gamma", ("next", "terminated"), "steps_to_next_obs", ("next", "reward")
    return buffer, {int(row["observation"]): tuple(row[name].item() for name in names) for row in rows}


def test_torchrl_continues_windows_into_the_next_extend() -> None:
    assert list(torchrl_windows(torchrl_step(0))[1]) == [0, 1]
    rows = torchrl_windows(torchrl_step(0), torchrl_step(100))[1]
    assert list(rows) == [0, 1, 2, 3, 4, 100, 101]
    assert (rows[3][0], rows[4][0]) == (101, 102)
    assert rows[3][4] == 1.75  # The sum is stored.


def test_torchrl_flags_are_those_of_the_first_step() -> None:
    rows = torchrl_windows(torchrl_step(0, end=4, steps=8))[1]
    assert {first: row[:4] for first, row in rows.items() if first > 1} == {
        2: (5, 0.125, False, 3),
        3: (5, 0.25, False, 2),
        4: (5, 0.5, True, 1),
    }


def test_torchrl_draws_slices_of_equally_likely_trajectories() -> None:
    data, tensordict, torch = peer("torchrl", "torchrl.data"), *map(pytest.importorskip, ("tensordict", "torch"))
    sampler = data.SliceSampler(slice_len=5, traj_key="episode")
    buffer = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(100), sampler=sampler, batch_size=5_000)
    buffer.extend(tensordict.TensorDict({"episode": torch.tensor([0] * 90 + [1] * 10)}, [100]))
    batch = buffer.sample()
    slices = batch["episode"].view(-1, 5)
    assert bool((slices == slices[:, :1]).all())
    assert len(slices) == 1_000  # The batch size counts steps.
    assert 400 < int(slices[:, 0].sum()) < 600
    assert "index" in batch.keys()  # noqa: SIM118  # A TensorDict.
    shorter = data.SliceSampler(slice_len=20, traj_key="episode", strict_length=False, pad_output=True)
    buffer.set_sampler(shorter)
    assert ("collector", "mask") in list(buffer.sample(100).keys(include_nested=True))


def test_torchrl_saves_its_generator_and_a_pickle(tmp_path: pathlib.Path) -> None:
    data, torch = peer("torchrl", "torchrl.data"), pytest.importorskip("torch")
    generators = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    one, other = (
        data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(100), batch_size=50, generator=generator)
        for generator in generators
    )
    one.extend(torchrl_step(0, steps=100))
    one.dumps(tmp_path)
    other.loads(tmp_path)
    assert bool((one.sample()["observation"] == other.sample()["observation"]).all())
    assert (tmp_path / "prefetch.pkl").exists()


def test_torchrl_divides_weights_by_the_largest_of_the_buffer() -> None:
    data, torch = peer("torchrl", "torchrl.data"), pytest.importorskip("torch")
    try:
        sampler = data.PrioritizedSampler(4, alpha=1.0, beta=1.0, eps=0.0)
    except RuntimeError as error:  # Its compiled part was built for another torch.
        pytest.skip(str(error))
    buffer = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(4), sampler=sampler, batch_size=50)
    buffer.extend(torchrl_step(0, steps=4))
    buffer.update_priority(torch.arange(4), torch.tensor([1e-9, 1.0, 2.0, 4.0]))
    batch, info = buffer.sample(return_info=True)
    assert float(info["priority_weight"].max()) < 1e-6
    assert set(batch["index"].tolist()) <= {1, 2, 3}


def test_torchrl_numbers_what_a_slot_held() -> None:
    data = peer("torchrl", "torchrl.data")
    writer = data.TensorDictRoundRobinWriter(track_generations=True)
    buffer = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(4), writer=writer, batch_size=4)
    buffer.extend(torchrl_step(0, steps=4))
    before = buffer.sample()["index_generation"]
    buffer.extend(torchrl_step(4, steps=4))
    assert int(buffer.sample()["index_generation"].min()) > int(before.max())


# cpprb


def cpprb_rows(*, is_terminated: bool) -> Any:
    cpprb = peer("cpprb", "cpprb")
    fields: dict[str, Any] = {"obs": {}, "rew": {}, "next_obs": {}, "done": {}}
    buffer = cpprb.ReplayBuffer(100, fields, Nstep={"size": 3, "gamma": 0.5, "rew": "rew", "next": "next_obs"})
    for number in range(5):
        buffer.add(obs=number, rew=1.0, next_obs=number + 1, done=is_terminated and number == 4)
    buffer.on_episode_end()
    return {name: column.ravel().tolist() for name, column in buffer.get_all_transitions().items()}


def test_cpprb_windows_near_ends() -> None:
    rows = cpprb_rows(is_terminated=True)
    assert rows["rew"] == [1.75, 1.75, 1.75, 1.5, 1]
    assert rows["next_obs"][:3] == [3, 4, 5]
    assert rows["done"] == [0, 0, 0, 1, 1]  # The third window ends with the last step, too.
    rows = cpprb_rows(is_terminated=False)
    assert rows["next_obs"] == [3, 4, 5, 1, 1]
    assert rows["done"] == [0] * 5


def test_cpprb_casts_and_stacks_on_the_last_axis() -> None:
    cpprb = peer("cpprb", "cpprb")
    buffer = cpprb.ReplayBuffer(10, {"x": {"dtype": np.uint8}})
    buffer.add(x=0.9)
    assert buffer.get_all_transitions()["x"].tolist() == [[0]]
    buffer = cpprb.ReplayBuffer(10, {"x": {"shape": (2, 4)}}, stack_compress="x")
    for number in range(3):
        buffer.add(x=np.tile(np.arange(number, number + 4), (2, 1)))
    assert buffer.get_all_transitions()["x"][1, 0].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("alpha", [0.6, 1.0])
def test_cpprb_priorities(alpha: float) -> None:
    cpprb = peer("cpprb", "cpprb")
    buffer = cpprb.PrioritizedReplayBuffer(4, {"x": {}}, alpha=alpha, check_for_update=True)
    for number in range(4):
        buffer.add(x=number)
    buffer.sample(4)
    buffer.update_priorities(range(4), [1e-6, 1, 2, 4])
    weights = buffer.sample(100, beta=1.0)["weights"]
    assert weights.shape == (100,)
    assert weights.max() < 0.1  # Divided by the largest of the buffer, which was hardly drawn.
    for number in range(4):
        buffer.add(x=number)
    assert buffer.get_max_priority() == 4  # Of new rows, too.
    buffer.update_priorities(range(4), [9] * 4)
    assert buffer.get_max_priority() == 4  # Dropped: written since the last sample.
    buffer.sample(4)
    buffer.update_priorities(range(4), [9] * 4)
    assert buffer.get_max_priority() == 9  # Not dropped any more.
    buffer.update_priorities([0], [-1])
    assert not (buffer.sample(4, beta=1.0)["weights"] >= 0).any()
    buffer.update_priorities([0], [np.nan])
    assert np.isnan(buffer.sample(4)["weights"]).all()


def test_cpprb_stores_each_episode_of_hindsight_several_times() -> None:
    cpprb = peer("cpprb", "cpprb")
    fields: dict[str, Any] = {"obs": {}, "act": {}, "next_obs": {}}
    settings = {"max_episode_len": 5, "additional_goals": 4, "prioritized": False}
    buffer = cpprb.HindsightReplayBuffer(100, fields, reward_func=lambda *_: np.zeros((1, 1)), **settings)
    for number in range(5):
        buffer.add(obs=number, act=0, next_obs=number + 1)
    buffer.on_episode_end(0)
    assert buffer.get_stored_size() > 2 * 5
    assert "pickle" in cpprb.ReplayBuffer.load_transitions.__doc__


# Tianshou


def tianshou_filled(buffer: Any, *, steps: int = 10, end: int = -1) -> Any:
    data = peer("tianshou", "tianshou.data")
    for number in range(steps):
        flags = {"terminated": number == end, "truncated": False, "done": number == end}
        row = data.Batch(obs=np.array([number]), act=0, rew=1.0, obs_next=np.array([number + 1]), info={}, **flags)
        buffer.add(row) if not hasattr(buffer, "buffers") else buffer.add(
            data.Batch.stack([row] * buffer.buffer_num), buffer_ids=np.arange(buffer.buffer_num)
        )
    return buffer


def test_tianshou_seeds_with_42_and_the_parts_of_a_vector_alike() -> None:
    data = peer("tianshou", "tianshou.data")
    one, other = tianshou_filled(data.ReplayBuffer(10)), tianshou_filled(data.ReplayBuffer(10))
    assert one.sample(50)[1].tolist() == other.sample(50)[1].tolist()
    vector = tianshou_filled(data.VectorReplayBuffer(40, 4))
    assert [part.maxsize for part in vector.buffers] == [10] * 4
    indices = vector.sample(40)[1]
    places = [(indices[indices // 10 == part] % 10).tolist() for part in range(4)]
    shortest = min(map(len, places))
    assert shortest > 0
    assert all(part[:shortest] == places[0][:shortest] for part in places)


def test_tianshou_weights() -> None:
    data = peer("tianshou", "tianshou.data")
    settings = {"alpha": 1.0, "beta": 1.0}
    buffer = tianshou_filled(data.PrioritizedReplayBuffer(4, weight_norm=False, **settings), steps=4)
    buffer.update_weight(np.arange(4), np.array([0.01, 1, 1, 1]))
    buffer.update_weight(np.arange(4), np.array([1, 2, 4, 8]))
    assert buffer.get_weight(np.arange(4)) == pytest.approx(0.01 / np.array([1, 2, 4, 8]), rel=1e-4)
    for settings["weight_norm"] in (True, False):
        vector = tianshou_filled(data.PrioritizedVectorReplayBuffer(4, 1, **settings), steps=4)
        assert vector.sample(4)[0].weight.max() == 1  # Of the batch, for either.
        vector.update_weight(np.arange(4), np.array([1e-9, 1, 1, 1]))
        assert vector.sample(4)[0].weight.max() == 1
    assert is_drawn_globally(lambda: buffer.sample(4))
    tianshou_filled(buffer, steps=4)
    buffer.update_weight(np.array([0]), np.array([8.0]))
    assert buffer.weight[0] == pytest.approx(8)  # By slot: the row was overwritten.


def test_tianshou_stacks_and_next_observations() -> None:
    data = peer("tianshou", "tianshou.data")
    buffer = tianshou_filled(data.ReplayBuffer(10, ignore_obs_next=True), steps=4, end=3)
    assert buffer[np.arange(4)].obs_next.ravel().tolist() == [1, 2, 3, 3]
    assert buffer.sample(0)[1].tolist() == [0, 1, 2, 3]
    buffer = tianshou_filled(data.ReplayBuffer(10, stack_num=3), steps=2)
    assert buffer[np.arange(2)].obs[..., 0].tolist() == [[0, 0, 0], [0, 0, 1]]


def test_tianshou_returns_and_hdf5(tmp_path: pathlib.Path) -> None:
    data = peer("tianshou", "tianshou.data")
    algorithms, torch, h5py = (
        peer("tianshou", "tianshou.algorithm.algorithm_base"),
        *map(pytest.importorskip, ("torch", "h5py")),
    )
    buffer = tianshou_filled(data.ReplayBuffer(20), steps=8, end=4)
    indices = np.arange(8)
    returns = algorithms.Algorithm.compute_nstep_return(
        buffer[indices],
        buffer,
        indices,
        lambda rows, at: torch.as_tensor(rows[at].obs_next).float(),
        gamma=0.5,
        n_step=3,
    ).returns.ravel()
    assert returns.tolist() == [2.125, 2.25, 1.75, 1.5, 1, 2.75, 3.5, 5]
    buffer.save_hdf5(tmp_path / "buffer.hdf5")
    with h5py.File(tmp_path / "buffer.hdf5") as file:
        assert b"numpy" in bytes(np.asarray(file["_random_state"]).view(np.uint8))  # A pickle.


# Stable-Baselines3 and SBX


def sb3_steps(buffer: Any, *ends: str, first: int = 0) -> Any:
    for number, end in enumerate(ends):
        rows = [np.array([[first + number + more]], np.float32) for more in (0, 1)]
        infos = [{"TimeLimit.truncated": end == "truncated"}]
        buffer.add(*rows, np.array([[0]]), np.array([1.0]), np.array([bool(end)]), infos)
    return buffer


def sb3_buffer(kind: str, size: int = 100, **settings: Any) -> Any:
    buffers, spaces = (
        peer("stable-baselines3", "stable_baselines3.common.buffers"),
        pytest.importorskip("gymnasium").spaces,
    )
    return getattr(buffers, kind)(size, spaces.Box(-1e6, 1e6, (1,), np.float32), spaces.Discrete(2), **settings)


def sb3_windows(buffer: Any, rows: int) -> Any:
    data = buffer._get_samples(np.arange(rows))
    columns = data.next_observations, data.dones, data.rewards, data.discounts
    return [tuple(float(value) for value in row) for row in zip(*columns, strict=True)]


def test_sb3_windows_are_right_at_ends_and_reach_over_a_reset() -> None:
    settings: dict[str, Any] = {"n_steps": 3, "gamma": 0.5}
    buffer = sb3_steps(sb3_buffer("NStepReplayBuffer", **settings), "", "", "terminated", "", "", "truncated", "", "")
    full, shorter = (1.75, 0.125), (1.5, 0.25)
    ends = [(3, 1, *full), (3, 1, *shorter), (3, 1, 1, 0.5), (6, 0, *full), (6, 0, *shorter), (6, 0, 1, 0.5)]
    assert sb3_windows(buffer, 8) == [*ends, (8, 0, *shorter), (8, 0, 1, 0.5)]
    cut = sb3_steps(sb3_steps(sb3_buffer("NStepReplayBuffer", **settings), "", ""), "", "", first=100)
    assert sb3_windows(cut, 2) == [(101, 0, *full), (102, 0, *full)]


def test_sb3_multiplies_float32_discounts() -> None:
    buffer = sb3_steps(sb3_buffer("NStepReplayBuffer", n_steps=3, gamma=0.9), *[""] * 5)
    [(*_, discount)] = sb3_windows(buffer, 1)
    assert np.float32(discount) == np.float32(0.7289999) != np.float32(0.9**3)


def test_sb3_rows_casts_and_draws() -> None:
    buffers = peer("stable-baselines3", "stable_baselines3.common.buffers")
    spaces = pytest.importorskip("gymnasium").spaces
    assert sb3_buffer("ReplayBuffer", 10, n_envs=4).buffer_size == 2
    buffer = buffers.ReplayBuffer(10, spaces.Box(0, 255, (1,), np.uint8), spaces.Discrete(2))
    buffer.add(*[np.array([[300]])] * 2, np.array([[0]]), np.array([1.0]), np.array([False]), [{}])
    assert (buffer.observations[0], buffer.next_observations[0]) == (44, 44)  # Each is stored twice, and cast.
    filled = sb3_steps(sb3_buffer("ReplayBuffer"), *[""] * 9)
    assert is_drawn_globally(lambda: filled.sample(4))
    assert filled.sample(4).rewards.shape == (4, 1)
    for kind in ("ReplayBuffer", "NStepReplayBuffer"):
        with pytest.raises(ValueError, match="handle_timeout_termination"):
            sb3_buffer(kind, optimize_memory_usage=True)
    box = spaces.Dict({"x": spaces.Box(-1e6, 1e6, (1,), np.float32)})
    with pytest.raises(AssertionError, match="optimize_memory_usage"):
        buffers.DictReplayBuffer(10, box, spaces.Discrete(2), optimize_memory_usage=True)
    with pytest.raises(TypeError):
        buffers.NStepReplayBuffer(10, box, spaces.Discrete(2))


def test_sb3_warns_of_ignored_n_steps_and_sbx_does_not(recwarn: pytest.WarningsRecorder) -> None:
    sb3, buffers = (peer("stable-baselines3", f"stable_baselines3{name}") for name in ("", ".common.buffers"))
    settings = {"n_steps": 3, "replay_buffer_class": buffers.ReplayBuffer, "buffer_size": 10}
    sb3.DQN("MlpPolicy", "CartPole-v1", **settings)
    assert [each for each in recwarn if "`n_steps=3` is ignored" in str(each.message)]
    recwarn.clear()
    model = peer("sbx-rl", "sbx").DQN("MlpPolicy", "CartPole-v1", **settings)
    assert not [each for each in recwarn if "n_steps" in str(each.message)]
    assert type(model.replay_buffer) is buffers.ReplayBuffer


# RLlib


def rllib_filled(kind: str, *, steps: int = 6, **settings: Any) -> Any:
    episodes = peer("ray", "ray.rllib.env.single_agent_episode")
    buffer = getattr(peer("ray", "ray.rllib.utils.replay_buffers"), kind)(**settings)
    for first in (0, 100):
        episode = episodes.SingleAgentEpisode(observations=[np.array(first)])
        for number in range(first, first + steps):
            ends = {"terminated": not first and number == steps - 1, "truncated": number == 100 + steps - 1}
            episode.add_env_step(np.array(number + 1), number, 1.0, **ends)
        buffer.add(episode)
    return buffer


@pytest.mark.parametrize("kind", ["PrioritizedEpisodeReplayBuffer", "EpisodeReplayBuffer"])
def test_rllib_windows_near_the_end_of_an_episode(kind: str) -> None:
    buffer = rllib_filled(kind)
    is_uniform = kind == "EpisodeReplayBuffer"
    rows = {
        int(one.get_observations(0)): (int(one.get_observations(-1)), one.is_terminated, one.is_truncated)
        for one in buffer.sample(1_000, n_step=3, gamma=0.5, **{"sample_episodes": True} if is_uniform else {})
    }
    assert rows[3] == (6, True, False)
    assert rows[103] == (106, False, True)
    assert [rows.get(first) for first in (4, 5)] == [(6, False, False) if is_uniform else None] * 2


def test_rllib_updates_the_last_sample() -> None:
    buffer = rllib_filled("PrioritizedEpisodeReplayBuffer", alpha=1.0, steps=100)
    _, last = (buffer.sample(4, n_step=1) for _ in range(2))
    buffer.update_priorities(np.full(4, 1e9))
    drawn = {int(one.get_observations(0)) for one in buffer.sample(100, n_step=1)}
    assert drawn <= {int(one.get_observations(0)) for one in last}


def test_rllib_evicts_episodes_and_continues_rows() -> None:
    buffer = rllib_filled("EpisodeReplayBuffer", capacity=11)
    assert buffer.get_num_timesteps() == 6
    batch = rllib_filled("EpisodeReplayBuffer").sample(batch_size_B=4, batch_length_T=20)
    assert batch["is_first"][:, 1:].any()
    assert not {"rng", "_rng", "generator"} & set(buffer.get_state())


def test_rllib_weights_and_slots() -> None:
    buffers, batches = peer("ray", "ray.rllib.utils.replay_buffers"), peer("ray", "ray.rllib.policy.sample_batch")
    buffer = buffers.PrioritizedReplayBuffer(4, alpha=1.0)
    for number in range(6):
        buffer.add(batches.SampleBatch({"obs": np.array([number])}))
    buffer.update_priorities(np.arange(4), np.array([1e-6, 1, 2, 4]))  # Of steps 4, 5, 2 and 3.
    batch = buffer.sample(50, beta=1.0)
    assert batch["weights"].max() < 0.1
    assert 4 not in batch["obs"]


# Flashbax


@pytest.mark.parametrize(("every", "written"), [(7, 28), (8, 0), (9, 4)])
def test_flashbax_vault_loses_what_fills_its_buffer(tmp_path: pathlib.Path, every: int, written: int) -> None:
    fbx, vaults, jnp = (
        peer("flashbax", "flashbax"),
        peer("flashbax", "flashbax.vault"),
        pytest.importorskip("jax.numpy"),
    )
    buffer = fbx.make_flat_buffer(max_length=8, min_length=2, sample_batch_size=4)
    state = buffer.init({"x": jnp.zeros(1)})
    vault = vaults.Vault("vault", state.experience, rel_dir=str(tmp_path), vault_uid="a")
    for number in range(4 * every):
        state = buffer.add(state, {"x": jnp.full(1, number, float)})
        if number % every == every - 1:
            vault.write(state)
    assert vault.vault_index == written


# Reverb and Dopamine


def test_reverb_tables_count_items_and_drop_late_priorities() -> None:
    reverb = peer("dm-reverb", "reverb")
    fifo, limiter = reverb.selectors.Fifo, reverb.rate_limiters.MinSize
    tables = [
        reverb.Table(name, reverb.selectors.Prioritized(1.0), fifo(), 3, limiter(1), max_times_sampled=times)
        for name, times in [("replay", 0), ("once", 1)]
    ]
    server = reverb.Server(tables)
    client = reverb.Client(f"localhost:{server.port}")
    for number in range(5):
        client.insert([np.float32(number)], {"replay": 1.0, "once": 1.0})
    drawn = {float(sample[0].data[0]): sample[0].info for sample in client.sample("replay", 200)}
    assert sorted(drawn) == [2, 3, 4]  # The oldest items have left.
    assert drawn[2.0].table_size == 3
    assert drawn[2.0].probability == pytest.approx(1 / 3)
    client.mutate_priorities("replay", updates={drawn[4.0].key: 0.0, 12_345: 9.0})
    assert {float(sample[0].data[0]) for sample in client.sample("replay", 200)} == {2, 3}
    assert len(list(client.sample("once", 3))) == 3
    assert client.server_info()["once"].current_size == 0  # Deleted.
    with client.trajectory_writer(num_keep_alive_refs=3) as writer:
        writer.append({"x": np.float32(0)})
        writer.end_episode()
        writer.append({"x": np.float32(1)})
        with pytest.raises(ValueError, match="None"):  # The steps before the end cannot be referred to.
            writer.create_item("replay", 1.0, {"x": writer.history["x"][-2:]})


@pytest.mark.parametrize("is_terminal", [False, True])
def test_dopamine_draws_the_padding_behind_a_truncated_episode(*, is_terminal: bool) -> None:
    replay = peer("dopamine-rl", "dopamine.tf.replay_memory.circular_replay_buffer")
    buffer = replay.OutOfGraphReplayBuffer((), 2, replay_capacity=50, batch_size=4, observation_dtype=np.float32)
    for number in range(1, 9):
        ends = {"terminal": int(is_terminal)} if number == 4 else {"terminal": 0}
        buffer.add(float(number), 7, 1.0, **ends, **{"episode_end": True} if number == 4 else {})
    rows = [number for number in range(10) if buffer.is_valid_transition(number)]
    states, actions = buffer.sample_transition_batch(len(rows), indices=rows)[:2]
    invented = [state.tolist() for state, action in zip(states, actions, strict=True) if action == 0]
    assert invented == ([] if is_terminal else [[4, 0]])


# Trainers of language models


def test_verl_deviation() -> None:
    algorithms, torch = peer("verl", "verl.trainer.ppo.core_algos"), pytest.importorskip("torch")
    rewards, groups = torch.tensor([[1.0], [0], [0], [0], [5]]), np.array([0, 0, 0, 0, 1], dtype=object)
    advantages, _ = algorithms.compute_grpo_outcome_advantage(rewards, torch.ones(5, 1), groups)
    assert advantages.ravel().tolist() == pytest.approx([1.5, -0.5, -0.5, -0.5, 5], abs=1e-4)


def test_trl_deviations() -> None:
    trl, torch = peer("trl", "trl.trainer.grpo_trainer"), pytest.importorskip("torch")
    rewards = torch.tensor([[1.0, 0, 0, 0]])
    assert float(trl.nanstd(rewards, dim=1)) == 0.5
    assert "advantages / (std_rewards + 1e-4)" in inspect.getsource(trl)
    pytest.importorskip("accelerate").PartialState()  # For its logger.
    workers = peer("trl", "trl.experimental.async_grpo.async_rollout_worker")
    sequence = types.SimpleNamespace(input_ids=[1], completion_mask=[1], old_log_probs=[0.0])
    none, loop = [None] * 4, types.SimpleNamespace(reward_func_names=["f"], _env_reward_types=[])
    loop.reward_funcs, loop._provides_rollout_reward = [lambda **_: [1.0, 0.0, 0.0, 0.0]], False
    counts, rows = [0] * 4, [[sequence]] * 4
    group = workers.RolloutGroup(none, {}, none, none, rows, counts, counts, 3, 0, none, none)
    samples = asyncio.run(workers._AsyncRolloutLoop._score_group(loop, group))
    assert [sample.advantage for sample in samples] == pytest.approx([3**0.5, *[-(3**-0.5)] * 3])
    assert not list(pathlib.Path(trl.__file__).parent.parent.rglob("*replay_buffer*"))


def test_names_of_trainers_of_language_models_are_there() -> None:
    loops, queues = (
        peer("verl", f"verl.experimental.{name}")
        for name in ("agent_loop.agent_loop", "fully_async_policy.message_queue")
    )
    assert {"prompt_ids", "response_ids", "response_mask"} <= set(loops.AgentLoopOutput.model_fields)
    assert hasattr(queues, "MessageQueue")
    skyrl = peer("skyrl", "skyrl.train.generators.base").GeneratorOutput.__annotations__
    assert {"prompt_token_ids", "response_ids", "rollout_logprobs", "loss_masks", "rewards", "stop_reasons"} <= set(
        skyrl
    )


# All


def test_no_buffer_of_theirs_is_awaited() -> None:
    modules = [("torchrl", "torchrl.data"), ("cpprb", "cpprb"), ("tianshou", "tianshou.data"), ("flashbax", "flashbax")]
    modules += [("stable-baselines3", "stable_baselines3.common.buffers"), ("ray", "ray.rllib.utils.replay_buffers")]
    for found in [peer(*names) for names in modules]:
        classes = [getattr(found, name) for name in dir(found) if "Buffer" in name]
        methods = [value for each in classes if inspect.isclass(each) for _, value in inspect.getmembers(each)]
        assert not [method for method in methods if inspect.iscoroutinefunction(method)]
