"""Use what one extra brings: `python .ci/smoke.py EXTRA`, in an environment with the wheel and that extra alone.

The extra `none` runs what README shows of numpy alone.
"""

import asyncio
import contextlib
import importlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

import relive


def filled() -> relive.RingReplayBuffer:
    """Return a buffer of 40 steps of one episode."""
    buffer = relive.RingReplayBuffer(100, seed=0)
    buffer.add_episode(np.arange(41, dtype=np.float32)[:, np.newaxis], [0] * 40, [1.0] * 40, terminated=True)
    return buffer


def command(*arguments: str) -> str:
    """Return what `relive ARGUMENTS` prints."""
    ended = subprocess.run([sys.executable, "-m", "relive", *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return ended.stdout


def extra_none(integration: Any) -> None:
    """Run the blocks of README that need numpy alone."""
    run = 0
    for block in re.findall(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        try:
            exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
            run += 1
        except ImportError as error:
            print(f"a block needs more: {error}")
    assert run == 1


def extra_cli(integration: Any) -> None:
    filled().save("steps")
    assert "RingReplayBuffer" in command("inspect", "steps")


def extra_demo(integration: Any) -> None:
    assert "CartPole-v1" in command("demo", "--steps", "2000", "--quiet")
    assert pathlib.Path("relive-demo.png").exists()


def extra_bench(integration: Any) -> None:
    command("bench", "--quick", "--workload", "uniform", "--plot", "bench.png")
    assert pathlib.Path("bench.png").exists()


def extra_numba(integration: Any) -> None:
    relive.use_kernels("numba")
    assert len(filled().sample(8)) == 8


def extra_gymnasium(integration: Any) -> None:
    gymnasium = importlib.import_module("gymnasium")
    env = gymnasium.make("CartPole-v1")
    buffer = relive.RingReplayBuffer(100, integration.from_env(env), seed=0)
    env = integration.Recorder(env, buffer)
    env.reset(seed=0)
    env.step(0)
    assert len(buffer.sample(4)) == 4


def extra_torch(integration: Any) -> None:
    batch = integration.as_tensors(filled().sample(8))
    assert (batch.reward + batch.next_discount).shape == (8,)


def extra_tensordict(integration: Any) -> None:
    step = relive.TokenStep(prompt=[1], response=[2], logprobs=[-0.5], policy_version=0)
    buffer = relive.TokenReplayBuffer(max_tokens=9, seed=0)
    batch = buffer.read(buffer.add_episode([step], agent_id="a"))
    assert integration.from_tensordict(integration.as_tensordict(batch, nested=True)).tokens.tolist() == [[1, 2]]


def extra_jax(integration: Any) -> None:
    jax = importlib.import_module("jax")
    assert jax.jit(lambda batch: batch.reward.sum())(integration.as_jax(filled().sample(8))).shape == ()


def extra_arrow(integration: Any) -> None:
    integration.write_parquet(filled(), "steps.parquet")
    assert relive.summary("steps.parquet")["faults"] == []
    assert integration.to_table(filled()).num_rows == 40


def extra_minari(integration: Any) -> None:
    os.environ["MINARI_DATASETS_PATH"] = os.getcwd()
    filled().save("steps")
    command("convert", "steps", "minari:smoke/test-v0")
    command("convert", "minari:smoke/test-v0", "again")
    assert len(relive.load("again")) == 40


def extra_sb3(integration: Any) -> None:
    dqn = importlib.import_module("stable_baselines3").DQN
    model = dqn("MlpPolicy", "CartPole-v1", replay_buffer_class=integration.ReplayBuffer, learning_starts=50)
    model.learn(200)


def extra_ray(integration: Any) -> None:
    importlib.import_module("ray").init(num_cpus=1, include_dashboard=False, log_to_driver=False)

    async def run() -> None:
        replay = integration.ShardedReplay.start(lambda: relive.RingReplayBuffer(100, seed=0))
        async with replay.writer() as writer:
            await writer.add([0.0], 0, 1.0, [1.0], terminated=True)
        assert len(await replay.sample(4)) == 4

    asyncio.run(run())


README = pathlib.Path("README.md").absolute()
MODULES = {"sb3": "stable_baselines3", "tensordict": "torch"}
"""Where the integration of an extra is, if not in the module of that name."""


def main(extra: str) -> None:
    """Use an extra in a directory of its own."""
    module = f"relive.integrations.{MODULES.get(extra, extra)}"
    integration = None if extra in ("none", "cli", "demo", "bench", "numba") else importlib.import_module(module)
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        globals()[f"extra_{extra}"](integration)


if __name__ == "__main__":
    main(sys.argv[1])
