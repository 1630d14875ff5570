"""What a step of a replay buffer costs beside the rest of a training step, in five usual set-ups, on one core.

    DQN on a vector     CartPole, two layers of 128
    SAC on a vector     Pendulum, two layers of 256, two critics
    DQN on images       Pong from ale-py, the network of Mnih et al. 2015, stacks of four
    R2D2                CartPole, an LSTM of 128, sequences of 40 steps with 20 to warm up
    tokens              no environment: rows of 512 tokens, a transformer of two layers of 256

What to look at: the share of the buffer, `add` and `sample` with its update, in a training step that acts once and
learns once. The environment, the policy and the gradient step are those of such a program, in plain torch.

    python step_costs.py             two minutes; needs pip install '.[gymnasium,torch]' ale-py
    python step_costs.py --short     a few seconds
"""

import argparse
from collections.abc import Callable, Sequence
import itertools
import statistics
import time
from typing import Any

import ale_py
import gymnasium
import numpy as np
import torch

import relive
from relive.integrations import gymnasium as relive_gymnasium
from relive.integrations import torch as relive_torch

PARTS = ("environment", "policy", "add", "sample", "gradient")
Steps = dict[str, Callable[[], Any]]


def mlp(*sizes: int) -> torch.nn.Module:
    """Return linear layers with ReLU between them."""
    layers: list[torch.nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


def convolutions() -> torch.nn.Module:
    """Return the network of DQN on Atari, for 6 actions."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(4, 32, 8, 4), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 4, 2), torch.nn.ReLU(),
        torch.nn.Conv2d(64, 64, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(3136, 512), torch.nn.ReLU(),
        torch.nn.Linear(512, 6),
    )  # fmt: skip


class Pong:
    """One game of Pong in the frames that DQN sees: stacks of four grey images of 84 by 84."""

    def __init__(self) -> None:
        gymnasium.register_envs(ale_py)
        self._envs = gymnasium.make_vec("ALE/Pong-v5", 1, num_threads=1)
        self.observation_space, self.action_space = self._envs.single_observation_space, self._envs.single_action_space

    def reset(self, seed: int | None = None) -> Any:
        """Begin again."""
        observations, info = self._envs.reset(seed=seed)
        return observations[0], info

    def step(self, action: Any) -> Any:
        """Play one step; a game that is over begins again by itself."""
        observations, *_ = self._envs.step(np.array([action]))
        return observations[0], 0.0, False, False, {}


def loop(
    env: Any,
    buffer: Any,
    network: torch.nn.Module,
    size: int,
    as_input: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.float,
    newest: Callable[[Any], Any] = lambda observation: observation,
) -> Steps:
    """Return the parts of a training step in an environment; the loss is the mean square of all outputs.

    `as_input` makes the input of the network of observations, and `newest` what is stored of one.
    """
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    action = env.action_space.sample()
    stored = newest(observation)
    for step in range(2_000):
        buffer.add(stored, action, 0.0, stored, truncated=step % 100 == 99)
    optimizer = torch.optim.Adam(network.parameters())
    batch = relive_torch.as_tensors(buffer.sample(size))

    def act() -> None:
        with torch.no_grad():
            network(as_input(torch.from_numpy(observation)[None]))

    def play() -> None:
        _, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            env.reset()

    def sample() -> None:
        drawn = buffer.sample(size)
        if isinstance(buffer, relive.PrioritizedReplayBuffer):
            buffer.update_priorities(drawn.keys, np.ones(size))

    def learn() -> None:
        optimizer.zero_grad()
        network(as_input(batch.observation)).square().mean().backward()
        optimizer.step()

    def add() -> None:
        buffer.add(stored, action, 0.0, stored)

    return {"environment": play, "policy": act, "add": add, "sample": sample, "gradient": learn}


class Recurrent(torch.nn.Module):
    """An LSTM with two outputs a step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = torch.nn.LSTM(4, 128, batch_first=True), torch.nn.Linear(128, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs of sequences."""
        outputs: torch.Tensor = self.head(self.lstm(inputs)[0])
        return outputs


def tokens() -> Steps:
    """Return the parts of a training step on tokens: no environment, and a policy that generates one token."""
    buffer = relive.TokenReplayBuffer(1_000_000, seed=0)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    network = torch.nn.Sequential(
        torch.nn.Embedding(1_000, 256), torch.nn.TransformerEncoder(layer, 2), torch.nn.Linear(256, 1_000)
    )
    optimizer, rng = torch.optim.Adam(network.parameters()), np.random.default_rng(0)
    prompt, response = rng.integers(0, 1_000, 256), rng.integers(0, 1_000, 256)
    logprobs = np.full(256, -1.0, np.float32)

    def add() -> None:
        step = relive.TokenStep(prompt=prompt, response=response, logprobs=logprobs, policy_version=0)
        buffer.add_episode([step], agent_id="agent")

    for _ in range(16):
        add()
    batch = torch.from_numpy(buffer.sample(8).tokens)

    def act() -> None:
        with torch.no_grad():
            network(batch[:1])

    def learn() -> None:
        optimizer.zero_grad()
        network(batch).square().mean().backward()
        optimizer.step()

    return {"policy": act, "add": add, "sample": lambda: buffer.sample(8), "gradient": learn}


def set_ups() -> dict[str, Callable[[], Steps]]:
    """Return the set-ups, each as a function that returns its parts."""
    cartpole, pendulum, pong = gymnasium.make("CartPole-v1"), gymnasium.make("Pendulum-v1"), Pong()
    frame = relive.Schema(relive.Field((84, 84), np.uint8), relive.Field((), np.int64))
    schemas = [relive_gymnasium.from_env(env) for env in (cartpole, pendulum)]
    critics = torch.nn.Sequential(mlp(3, 256, 256, 256), mlp(256, 256, 256, 1), mlp(1, 256, 256, 1))
    return {
        "DQN on a vector, by priority, batches of 64": lambda: loop(
            cartpole,
            relive.PrioritizedReplayBuffer(100_000, schemas[0], n_step=3, seed=0),
            mlp(4, 128, 128, 2),
            64,
        ),
        "SAC on a vector, batches of 256": lambda: loop(
            pendulum, relive.RingReplayBuffer(100_000, schemas[1], seed=0), critics, 256
        ),
        "DQN on stacks of four images, batches of 32": lambda: loop(
            pong,
            relive.RingReplayBuffer(100_000, frame, n_step=3, frame_stack=4, seed=0),
            convolutions(),
            32,
            lambda inputs: inputs / 255,
            lambda stack: stack[-1],
        ),
        "R2D2 on a vector, 16 sequences of 40": lambda: loop(
            cartpole,
            relive.SequenceReplayBuffer(100_000, schemas[0], length=40, burn_in=20, seed=0),
            Recurrent(),
            16,
            lambda inputs: inputs if inputs.ndim == 3 else inputs[:, None],
        ),
        "tokens, batches of 8 rows of 512": tokens,
    }


def microseconds(call: Callable[[], Any], seconds: float) -> float:
    """Return the median time of a call, in microseconds, over that many seconds."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < until:
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1e6


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every part of every set-up, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description="What a replay step costs beside the rest of a training step.")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each part (default: %(default)s)")
    parser.add_argument("--short", dest="seconds", action="store_const", const=0.01, help="the same as --seconds 0.01")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"| microseconds | {' | '.join(PARTS)} | the buffer's share |")
    print(f"|---|{'--:|' * (len(PARTS) + 1)}")
    for name, make in set_ups().items():
        found = {part: microseconds(call, options.seconds) for part, call in make().items()}
        share = (found["add"] + found["sample"]) / sum(found.values())
        cells = [f"{found[part]:,.0f}" if part in found else "" for part in PARTS]
        print(f"| {name} | {' | '.join(cells)} | {share:.1%} |")


if __name__ == "__main__":
    main()
