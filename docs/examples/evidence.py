"""Evidence that agents learn as well from relive: each algorithm with its library's own buffer and with relive's.

    python evidence.py --out docs       ten seeds of everything: writes evidence.md and learning.png
    python evidence.py --quick          one seed and a few hundred steps of each, to see that it runs

Both buffers get the same learner, hyperparameters and seeds, one thread of torch, and a process for each run. R2D2 and
the team have no library to compare with: they stand beside random play. The page is written after each seed, from what
has been measured, so that every figure of it is made here.
"""

import argparse
from collections.abc import Sequence
import copy
import dataclasses
import datetime
import functools
import gc
import math
import multiprocessing
import os
import pathlib
import platform
import subprocess
import time
import types
from typing import Any

import curves
import gymnasium
from matplotlib import figure
import numpy as np
import numpy.typing as npt
from PIL import Image
import r2d2
import stable_baselines3
from stable_baselines3.common import buffers
from stable_baselines3.common import envs
from stable_baselines3.common import noise
import torch
from torch import nn

import relive
from relive.integrations import gymnasium as relive_gymnasium
from relive.integrations import stable_baselines3 as relive_sb3
from relive.integrations import torch as relive_torch

Run = tuple[curves.Run, Any]  # The returns of episodes at the steps where they ended, and the buffer.

BATCH_SIZE, GAMMA, WARM_UP, STEPS_PER_TARGET = 64, 0.99, 500, 250
ATOMS = torch.linspace(0, 100, 51)
"""The returns that C51 gives probabilities to [51]."""
STREAMS, PLACES, LIMIT = 16, 6, 10
"""Of the team: games side by side, places on the line, and steps of the longest episode."""
CONTAINERS = (np.ndarray, dict, list, tuple)
PARTS = ("relive", "stable_baselines3.common.buffers", "stable_baselines3.her")
LIBRARIES = (np, torch, stable_baselines3, gymnasium)
T_QUANTILES = (math.nan, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5 % quantiles of Student's t distribution, by one less than the number of seeds."""


def footprint(buffer: Any) -> int:
    """Return the bytes of all arrays that a buffer holds, however deep in its parts, each once."""
    found, left = dict[int, Any](), [buffer]
    while left:
        thing = left.pop()
        if id(thing) not in found and (isinstance(thing, CONTAINERS) or type(thing).__module__.startswith(PARTS)):
            found[id(thing)] = thing
            left += [thing.base] if isinstance(thing, np.ndarray) else gc.get_referents(thing)
    arrays = [each for each in found.values() if isinstance(each, np.ndarray)]
    return sum(each.nbytes for each in arrays if not isinstance(each.base, np.ndarray))


def train_sb3(steps: int, seed: int, buffer: str, *, algorithm: Any, env: Any, **settings: Any) -> Run:
    """Train an algorithm of Stable-Baselines3 with its own buffer or with the drop-in; a goal environment with HER."""
    library = stable_baselines3 if buffer == "SB3" else relive_sb3
    if isinstance(env, str):
        policy, kind = "MlpPolicy", None if buffer == "SB3" else relive_sb3.ReplayBuffer
    else:
        policy, kind, env = "MultiInputPolicy", library.HerReplayBuffer, env()
    settings = copy.deepcopy(settings)  # The algorithms add to the dicts in it.
    model = algorithm(policy, env, replay_buffer_class=kind, seed=seed, device="cpu", **settings).learn(steps)
    returns, lengths = (model.get_env().env_method(f"get_episode_{name}")[0] for name in ("rewards", "lengths"))
    return (np.cumsum(lengths).tolist(), returns), model.replay_buffer


def new_store(buffer: str, env: Any, seed: int) -> Any:
    """Return a buffer of SB3, as CleanRL uses it, or one of relive."""
    if buffer == "SB3":
        spaces = env.observation_space, env.action_space
        return buffers.ReplayBuffer(10_000, *spaces, "cpu", handle_timeout_termination=False)
    schema = relive_gymnasium.from_env(env)
    if buffer == "relive":
        return relive.RingReplayBuffer(10_000, schema, gamma=GAMMA, seed=seed)
    return relive.PrioritizedReplayBuffer(10_000, schema, n_step=3, gamma=GAMMA, seed=seed)


def draw(store: Any) -> Any:
    """Return a batch of tensors with the names of relive's, from either buffer."""
    if not isinstance(store, buffers.ReplayBuffer):
        return relive_torch.as_tensors(store.sample(BATCH_SIZE))
    batch = store.sample(BATCH_SIZE)
    return types.SimpleNamespace(
        observation=batch.observations,
        action=batch.actions.flatten(),
        reward=batch.rewards.flatten(),
        next_observation=batch.next_observations,
        next_discount=GAMMA * (1 - batch.dones.flatten()),
        weights=torch.ones(BATCH_SIZE),
    )


def dqn_losses(network: Any, target_network: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the Huber loss of each row [B], and its priority [B]."""
    with torch.no_grad():
        next_value = target_network(batch.next_observation)[..., 0].amax(dim=1)
        target = batch.reward + batch.next_discount * next_value
    value = network(batch.observation)[torch.arange(BATCH_SIZE), batch.action, 0]
    return nn.functional.huber_loss(value, target, reduction="none"), (target - value).detach().abs()


def c51_losses(network: Any, target_network: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cross-entropy of each row's distribution of returns with its target [B], twice."""
    rows, gap = torch.arange(BATCH_SIZE), ATOMS[1] - ATOMS[0]
    with torch.no_grad():
        following = target_network(batch.next_observation).softmax(dim=2)
        following = following[rows, (following @ ATOMS).argmax(dim=1)]
        moved = (batch.reward[:, None] + batch.next_discount[:, None] * ATOMS).clamp(ATOMS[0], ATOMS[-1])
        shares = (1 - (moved[:, :, None] - ATOMS).abs() / gap).clamp(min=0)
        target = (following[:, :, None] * shares).sum(dim=1)
    losses = -(target * network(batch.observation)[rows, batch.action].log_softmax(dim=1)).sum(dim=1)
    return losses, losses.detach()


def train_cleanrl(steps: int, seed: int, buffer: str, *, losses_of: Any, width: int) -> Run:
    """Train DQN, or C51 with that many returns, on CartPole, in one loop for all buffers."""
    rng, env = np.random.default_rng(seed), gymnasium.make("CartPole-v1")
    store = new_store(buffer, env, seed)
    layers = nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2 * width)
    network = nn.Sequential(*layers, nn.Unflatten(1, (2, width)))
    target_network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, fused=True)
    scale = torch.ones(1) if width == 1 else ATOMS
    exploration = relive.LinearSchedule(1.0, 0.05, steps=max(1, steps // 4))
    at, returns, total = list[int](), list[float](), 0.0
    observation, _ = env.reset(seed=seed)
    for step in range(1, steps + 1):
        if rng.random() < exploration.value(step):
            action = int(rng.integers(2))
        else:
            with torch.no_grad():
                values = network(torch.from_numpy(observation)[None])[0]
                action = int(((values if width == 1 else values.softmax(dim=1)) @ scale).argmax())
        following, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        if buffer == "SB3":
            rows = (np.array([each]) for each in (observation, following, action, reward, terminated))
            store.add(*rows, [{}])
        else:
            store.add(observation, action, reward, following, terminated=terminated, truncated=truncated)
        observation = following
        if terminated or truncated:
            at.append(step)
            returns.append(total)
            total, (observation, _) = 0.0, env.reset()
        if step > WARM_UP and step % 2 == 0:
            batch = draw(store)
            losses, priorities = losses_of(network, target_network, batch)
            optimizer.zero_grad()
            (batch.weights * losses).mean().backward()
            optimizer.step()
            if isinstance(store, relive.PrioritizedReplayBuffer):
                store.update_priorities(batch.keys, priorities)
        if step % STEPS_PER_TARGET == 0:
            target_network.load_state_dict(network.state_dict())
    return (at, returns), store


def train_r2d2(steps: int, seed: int, buffer: str) -> Run:
    """Run the example of R2D2, or choose doors at random; returns are percent of right doors."""
    store = r2d2.new_buffer(seed)
    blank = np.zeros((r2d2.STREAMS, r2d2.DOORS + 1), np.float32)
    state = np.zeros((r2d2.STREAMS, r2d2.STATE_WIDTH), np.float32)
    store.extend(blank, blank[:, 0].astype(np.int64), blank[:, 0], blank, state=state)
    if buffer == "relive":
        return r2d2.train(steps, seed, memory=True), store
    rng = np.random.default_rng(seed)
    corridors, at, shares = r2d2.Corridors(r2d2.STREAMS, rng), list[int](), list[float]()
    for turn in range(1, steps // r2d2.STREAMS + 1):
        _, rewards, terminated = corridors.step(rng.integers(r2d2.DOORS, size=r2d2.STREAMS))
        at += [turn * r2d2.STREAMS] * int(terminated.sum())
        shares += (100 * rewards[terminated]).tolist()
    return (at, shares), None


def train_team(steps: int, seed: int, buffer: str) -> Run:
    """Train a team by value decomposition (Sunehag et al. 2018), or play at random; returns are % of successes.

    Two agents on a line stay or move by a place, and see both places and the goal. The episode ends when they meet
    there. The team's value is the sum of theirs, and learns from joint steps.
    """
    rng, names = np.random.default_rng(seed), ("left", "right")
    store = relive.JointReplayBuffer(20_000, agents=names, gamma=0.9, streams=STREAMS, seed=seed)
    network = nn.Sequential(nn.Linear(3 * PLACES, 64), nn.ReLU(), nn.Linear(64, 3))
    target_network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3, fused=True)
    at, shares, age = list[int](), list[float](), np.zeros(STREAMS, np.int64)
    places = rng.integers(PLACES, size=(3, STREAMS))  # Of both agents, and of the goal.

    def seen() -> dict[str, npt.NDArray[np.float32]]:
        """Return what each agent observes [S, 3 * PLACES]: its place, that of the other, and the goal."""
        left, right, goal = np.eye(PLACES, dtype=np.float32)[places]
        return {"left": np.hstack([left, right, goal]), "right": np.hstack([right, left, goal])}

    for turn in range(1, steps // STREAMS + 1):
        observations = seen()
        with torch.no_grad():
            best = network(torch.from_numpy(np.stack(list(observations.values())))).argmax(dim=2).numpy()
        explores = rng.random((2, STREAMS)) < (0.1 if buffer == "relive" else 1.0)
        actions = np.where(explores, rng.integers(3, size=(2, STREAMS)), best)
        places[:2], age = np.clip(places[:2] + actions - 1, 0, PLACES - 1), age + 1
        met = (places[:2] == places[2]).all(axis=0)
        over = met | (age == LIMIT)
        ends = {"terminations": dict.fromkeys(names, met), "truncations": dict.fromkeys(names, over & ~met)}
        rewards = dict.fromkeys(names, met.astype(np.float32))
        store.extend(observations, dict(zip(names, actions, strict=True)), rewards, seen(), **ends)
        at += [turn * STREAMS] * int(over.sum())
        shares += (100.0 * met[over]).tolist()
        age[over], places[:, over] = 0, rng.integers(PLACES, size=(3, over.sum()))
        batch = relive_torch.as_tensors(store.sample(BATCH_SIZE).stacked())
        with torch.no_grad():
            following = target_network(batch.next_observation).amax(dim=2).sum(dim=1)
        value = network(batch.observation).gather(2, batch.action[:, :, None]).sum(dim=(1, 2))
        optimizer.zero_grad()
        nn.functional.mse_loss(value, batch.reward[:, 0] + batch.next_discount[:, 0] * following).backward()
        optimizer.step()
        if turn % 50 == 0:
            target_network.load_state_dict(network.state_dict())
    return (at, shares), store


@dataclasses.dataclass(frozen=True)
class Method:
    """An algorithm: its task, the steps of a run, `train(steps, seed, buffer)`, and the buffers in the table."""

    task: str
    steps: int
    train: Any
    buffers: tuple[str, ...] = ("SB3", "relive")


SIZES = {"learning_rate": 1e-3, "buffer_size": 50_000, "batch_size": 64, "learning_starts": 500}
DQN = {"target_update_interval": 250, "train_freq": 4, "gradient_steps": 2, "exploration_fraction": 0.2} | SIZES
SWINGS = SIZES | {"batch_size": 128, "gamma": 0.98, "learning_starts": 100, "policy_kwargs": {"net_arch": [256, 256]}}
NOISE = {"action_noise": noise.NormalActionNoise(np.zeros(1), np.full(1, 0.2)), "learning_starts": 500}
GOALS = functools.partial(envs.BitFlippingEnv, n_bits=8, continuous=False)
CARTPOLE, PENDULUM, FLIPS = "CartPole-v1", "Pendulum-v1", "flipping 8 bits"
sb3, cleanrl = (functools.partial(functools.partial, train) for train in (train_sb3, train_cleanrl))
SB3_DQN, SB3_SAC, SB3_TD3 = stable_baselines3.DQN, stable_baselines3.SAC, stable_baselines3.TD3
LABELS = {
    "SB3": ("uniform, 1-step", "Stable-Baselines3's buffer"),
    "relive": ("uniform, 1-step", "relive"),
    "relive, prioritized 3-step": ("prioritized, 3-step", "relive"),
}
"""Panel and name in the picture, by the buffer: a panel compares like with like."""
ALONE = ("random play", "relive")
METHODS = {
    "SB3 DQN": Method(CARTPOLE, 6_000, sb3(algorithm=SB3_DQN, env=CARTPOLE, **DQN)),
    "SB3 SAC": Method(PENDULUM, 4_000, sb3(algorithm=SB3_SAC, env=PENDULUM, **SWINGS)),
    "SB3 TD3": Method(PENDULUM, 6_000, sb3(algorithm=SB3_TD3, env=PENDULUM, **SWINGS | NOISE)),
    "SB3 HER with DQN": Method(FLIPS, 5_000, sb3(algorithm=SB3_DQN, env=GOALS, **DQN)),
    "CleanRL-style DQN": Method(CARTPOLE, 12_000, cleanrl(losses_of=dqn_losses, width=1), tuple(LABELS)),
    "CleanRL-style C51": Method(CARTPOLE, 6_000, cleanrl(losses_of=c51_losses, width=51)),
    "R2D2": Method("remembering a sign, % right", 24_000, train_r2d2, ALONE),
    "a team, joint draws": Method("meeting at a goal, % met", 12_000, train_team, ALONE),
}

PROSE = """# Evidence that agents learn as well

Each algorithm learns from the buffer of its library and from relive's: the same learner, hyperparameters and seeds. The
buffers draw different transitions, so the runs differ, but both should learn as much.

Every figure of this page is made by `python docs/examples/evidence.py --out docs` ([source](examples/evidence.py)),
here on {date} at commit `{commit}`: {seeds} seeds in {minutes:.0f} minutes, one thread a run, {jobs} at a time,
on {processors} CPUs ({machine}); Python {python}, {versions}.

![Returns of DQN on CartPole: uniform replay of relive and SB3, and prioritized 3-step replay by itself](learning.png)

## Returns at the end

The mean return of the episodes that ended in the last fifth of a run, exploration included. Brackets: 95 % t-intervals
over the seeds. Differences are paired by seed; the ends of their interval are the largest loss and the largest gain
that the runs do not rule out.

| method | task | seeds x steps | SB3's buffer | relive | difference |
|---|---|---|---|---|---|
{returns}

- SB3: only `replay_buffer_class` differs, which is relive's [drop-in](guides/stable_baselines3.md).
- CleanRL-style: one loop with SB3's `ReplayBuffer`, which CleanRL copies, or with `RingReplayBuffer`. Prioritized
  3-step replay changes the algorithm, too: that row shows what it brings, and does not compare equals.

[R2D2](examples/r2d2.py) and a team with a `JointReplayBuffer` learn in loops of relive's own. There is no library to
compare with, so these rows show only that they learn:

| method | task | seeds x steps | random play | relive | difference |
|---|---|---|---|---|---|
{alone}

## Steps and memory

Environment steps in a second of processor time (play, learning and replay), and megabytes of all arrays of the buffer.

| method | buffer | steps a second | MB |
|---|---|---|---|
{costs}

## What this does not show

- **Large tasks.** Runs take seconds, and networks are small. These are no benchmark scores.
- **Equality.** An interval that contains 0 shows no difference, and rules out only those outside. With few seeds it is
  wide, and returns are not normal: some runs learn, some collapse. By chance one in twenty excludes 0, on either side.
- **The speed of replay.** Most of a step is the network, and others may use the machine. See
  [Benchmarks](benchmarks.md).
- **Images.** The larger the observations, the nearer relive's memory comes to half of theirs.
"""


@dataclasses.dataclass(frozen=True)
class Measured:
    """A run: which it was, its curve, the steps in a second of the processor, and the bytes of its buffer."""

    method: str
    buffer: str
    seed: int
    steps: int
    curve: curves.Run
    speed: float
    nbytes: int

    @property
    def final(self) -> float:
        """The mean return of the episodes that ended in the last fifth of the steps, or of the last that ended."""
        at, returns = (np.array(each) for each in self.curve)
        return float(returns[min(np.searchsorted(at, 0.8 * self.steps), len(at) - 1) :].mean())


def measure(job: tuple[str, str, int, int]) -> Measured:
    """Run a method with a buffer, a seed and that many steps."""
    name, buffer, seed, steps = job
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # The buffers of Stable-Baselines3 draw from it.
    weight = nn.Parameter(torch.ones(1))  # The first step of an optimizer imports much, and is not timed.
    weight.sum().backward()
    torch.optim.Adam([weight]).step()
    start = time.process_time()
    curve, store = METHODS[name].train(steps, seed, buffer)
    speed = steps / (time.process_time() - start)
    return Measured(name, buffer, seed, steps, curve, speed, footprint(store))


def half_width(values: npt.NDArray[np.float64]) -> float:
    """Return half the width of the 95 % interval of the mean; NaN for one value."""
    return T_QUANTILES[len(values) - 1] * float(np.std(values, ddof=min(1, len(values) - 1))) / math.sqrt(len(values))


def interval(values: npt.NDArray[np.float64], digits: int = 1) -> str:
    """Return the mean and its 95 % interval as text."""
    mean, half = values.mean(), half_width(values)
    return f"{mean:.{digits}f} [{mean - half:.{digits}f}, {mean + half:.{digits}f}]"


def page(runs: Sequence[Measured], minutes: float, jobs: int) -> str:
    """Return the page of what was measured in that many minutes, with that many runs at a time."""
    returns, alone, costs = list[str](), list[str](), list[str]()
    for name, method in METHODS.items():
        groups = {each: [run for run in runs if (run.method, run.buffer) == (name, each)] for each in method.buffers}
        base, *others = (np.array([run.final for run in group]) for group in groups.values())
        for buffer, values in zip(method.buffers[1:], others, strict=True):
            difference, size = values - base, f"{len(base)} x {groups[buffer][0].steps:,}"
            cells = method.task, size, interval(base), interval(values), interval(difference)
            row = f"| {name}{buffer.removeprefix('relive')} | {' | '.join(cells)} |"
            (alone if method.buffers == ALONE else returns).append(row)
        for buffer in [each for each in groups if each != "random play"]:
            speed = interval(np.array([run.speed for run in groups[buffer]]), digits=0)
            costs.append(f"| {name} | {buffer} | {speed} | {groups[buffer][0].nbytes / 1e6:.2f} |")
    return PROSE.format(
        returns="\n".join(returns),
        alone="\n".join(alone),
        costs="\n".join(costs),
        date=datetime.datetime.now(datetime.UTC).date(),
        commit=subprocess.run(["git", "rev-parse", "--short", "HEAD"], stdout=-1, text=True).stdout.strip(),
        seeds=len({run.seed for run in runs}),
        minutes=minutes,
        jobs=jobs,
        processors=os.cpu_count(),
        machine=platform.machine(),
        python=platform.python_version(),
        versions=", ".join(f"{module.__name__} {module.__version__}" for module in LIBRARIES),
    )


def picture(path: str, runs: Sequence[Measured]) -> None:
    """Plot the returns of DQN over all seeds: uniform draws of both libraries in one panel, prioritized in another."""
    dqn = [run for run in runs if run.method == "CleanRL-style DQN"]
    shown: dict[str, curves.Runs] = {panel: {} for panel, _ in LABELS.values()}
    for run in dqn:
        panel, label = LABELS[run.buffer]
        curve = run.curve[0], curves.running_mean(run.curve[1], window=20)
        shown[panel].setdefault(label, []).append(curve)
    drawn = figure.Figure(figsize=(7, 4), layout="constrained")
    panels = drawn.subplots(1, len(shown), sharey=True)
    for number, (axes, (title, lines)) in enumerate(zip(panels, shown.items(), strict=True)):
        curves.draw(axes, lines, first_color=2 * number)
        axes.set(title=title, xlabel="environment steps")
        axes.locator_params(axis="x", nbins=4)
    panels[0].set_ylabel("return, mean of 20 episodes")
    drawn.suptitle(f"DQN on CartPole-v1: mean and range of {len(dqn) // len(LABELS)} seeds")
    drawn.savefig(path, format="png", dpi=140)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run everything, each run in a process of its own, and write the page and the picture after each seed."""
    parser = argparse.ArgumentParser(description="Whether agents learn as well from relive's buffers.")
    parser.add_argument("--seeds", type=int, choices=range(2, 11), default=10, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="one seed and a tenth of the steps")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time (default: %(default)s)")
    parser.add_argument("--out", type=pathlib.Path, metavar="PATH", help="where to write evidence.md and learning.png")
    options = parser.parse_args(arguments)
    seeds, share = (1, 10) if options.quick else (options.seeds, 1)
    start, runs = time.monotonic(), list[Measured]()
    is_unix = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if is_unix else "spawn")
    context.set_forkserver_preload(["stable_baselines3", "torch._dynamo"])
    for seed in range(seeds):
        jobs = [(name, buffer, seed, each.steps // share) for name, each in METHODS.items() for buffer in each.buffers]
        with context.Pool(options.jobs, maxtasksperchild=1) as pool:
            for run in pool.imap(measure, jobs, chunksize=1):
                print(f"{run.method}, {run.buffer}, seed {seed}: {run.final:.1f}, {run.speed:.0f} steps/s", flush=True)
                runs.append(run)
        if options.out:
            text = page(runs, (time.monotonic() - start) / 60, options.jobs)
            (options.out / "evidence.md").write_text(text, encoding="utf-8")
            picture(str(options.out / "learning.png"), runs)
            with Image.open(options.out / "learning.png") as drawn:  # Fewer colours: half the bytes.
                drawn.convert("RGB").quantize(64).save(options.out / "learning.png", optimize=True)


if __name__ == "__main__":
    main()
