"""R2D2: recurrent Q-learning from sequences that start in a stored state, in a corridor that one has to remember.

    pip install 'relive[torch]' matplotlib
    python r2d2.py                      both curves, under a minute
    python r2d2.py --plot r2d2.png      ... and a picture of them
    python r2d2.py --short              2,000 steps, in seconds

    t               0    1    2    3    4  |  5    6   ...        T-1
    observation    sign sign sign sign sign  dark dark ...  "choose a door"
    action          -    -    -    -    -     -    -   ...  0 to 3: reward 1 for the door on the sign

Each episode takes 8 to 24 steps, and sequences have 16: in the longest ones the sign and the door are never in one
sequence, so that the state must bring along what the sign was. The actor stores its state before each step as an extra.
The learner starts from that of the first step, runs the network over the burn-in without gradients, since the state is
stale, and learns from the rest (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed Reinforcement
Learning"). Sequences with large errors are drawn more often. Expect a mean return of 1 with memory; a network that
looks at the observation alone can only guess, 1/4.
"""

import argparse
from collections.abc import Sequence
import copy
import time

import numpy as np
import numpy.typing as npt
import torch

import relive
from relive.integrations import torch as relive_torch

Floats = npt.NDArray[np.float32]
Curve = list[tuple[int, float]]

GAMMA = 0.97
DOORS = 4
LIT_STEPS = 5
STREAMS = 16
STATE_WIDTH = 64
LENGTH, BURN_IN = 16, 4
BATCH_SIZE = 32
ETA = 0.9  # How much of a priority is the largest error of the sequence; the rest is the mean.


class Corridors:
    """Corridors side by side, with a sign at the entrance and four doors at the end; each starts anew by itself."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._rng = rng
        self._door, self._length, self._steps = np.zeros((3, count), np.int64)
        self.observation = self._enter(np.ones(count, np.bool_))

    def step(self, actions: npt.NDArray[np.int64]) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
        """Return the observations after the step [S, 5], the rewards [S], and which have terminated [S]."""
        self._steps += 1
        terminated = self._steps == self._length
        rewards = (terminated & (actions == self._door)).astype(np.float32)
        next_observation = self._observe()
        self.observation = self._enter(terminated)
        return next_observation, rewards, terminated

    def _enter(self, where: npt.NDArray[np.bool_]) -> Floats:
        count = np.count_nonzero(where)
        self._door[where] = self._rng.integers(DOORS, size=count)
        self._length[where] = self._rng.integers(8, 25, size=count)
        self._steps[where] = 0
        return self._observe()

    def _observe(self) -> Floats:
        sign = np.eye(DOORS, DOORS + 1, dtype=np.float32)[self._door] * (self._steps < LIT_STEPS)[:, np.newaxis]
        sign[:, DOORS] = self._steps == self._length - 1
        return sign.astype(np.float32)


def new_network(memory: bool) -> torch.nn.ModuleDict:
    """Return a network that remembers, or one that looks at the observation alone."""
    width = DOORS + 1
    body = torch.nn.GRU(width, STATE_WIDTH, batch_first=True) if memory else torch.nn.Linear(width, STATE_WIDTH)
    return torch.nn.ModuleDict({"memory" if memory else "layer": body, "head": torch.nn.Linear(STATE_WIDTH, DOORS)})


def unroll(
    network: torch.nn.ModuleDict, observations: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return action values [B, T, doors] of observations [B, T, ...] from the state [B, H] on, and the state then."""
    if "memory" not in network:
        return network["head"](torch.relu(network["layer"](observations))), state
    outputs, last = network["memory"](observations, state[None].contiguous())
    return network["head"](outputs), last[0]


def sequence_loss(
    network: torch.nn.ModuleDict, target_network: torch.nn.ModuleDict, batch: relive.SequenceBatch[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean loss of double Q-learning on a batch of sequences as tensors, and their priorities [B]."""
    early, late = slice(BURN_IN), slice(BURN_IN, None)
    state = batch.extras["state"][:, 0]
    with torch.no_grad():
        _, warm = unroll(network, batch.observation[:, early], state)
        _, target_warm = unroll(target_network, batch.observation[:, early], state)
        target_values, _ = unroll(target_network, batch.observation[:, late], target_warm)
    all_values, _ = unroll(network, batch.observation[:, late], warm)  # One more than there are actions.

    best = all_values[:, 1:].argmax(dim=2, keepdim=True)
    next_values = target_values[:, 1:].gather(2, best).squeeze(2)
    targets = batch.reward[:, late] + GAMMA * ~batch.terminated[:, late] * next_values
    values = all_values[:, :-1].gather(2, batch.action[:, late, None]).squeeze(2)

    counts = batch.mask[:, late].float()
    errors = (targets - values).abs() * counts
    steps = counts.sum(dim=1).clamp(min=1)
    losses = (errors**2).sum(dim=1) / steps
    priorities = ETA * errors.max(dim=1).values + (1 - ETA) * errors.sum(dim=1) / steps
    return (batch.weights * losses).mean(), priorities.detach()


def advance(
    network: torch.nn.ModuleDict, observation: Floats, state: torch.Tensor
) -> tuple[npt.NDArray[np.int64], torch.Tensor]:
    """Return the best action of each stream [S], and the states after it [S, H]."""
    with torch.no_grad():
        values, state = unroll(network, torch.from_numpy(observation)[:, None], state)
    return values[:, 0].argmax(dim=1).numpy(), state


def check(network: torch.nn.ModuleDict, rng: np.random.Generator) -> float:
    """Return the mean return of the greedy policy over the first episodes of 256 corridors."""
    corridors, state = Corridors(256, rng), torch.zeros(256, STATE_WIDTH)
    returns, running = np.zeros(256), np.ones(256, np.bool_)
    while running.any():
        actions, state = advance(network, corridors.observation, state)
        _, rewards, terminated = corridors.step(actions)
        returns += rewards * running
        running &= ~terminated
    return float(returns.mean())


def train(steps: int, seed: int, *, memory: bool) -> Curve:
    """Return pairs of environment steps and the mean return of the greedy policy after them."""
    torch.manual_seed(seed)
    rng, corridors_rng, check_rng, buffer_rng = np.random.default_rng(seed).spawn(4)
    corridors = Corridors(STREAMS, corridors_rng)
    network = new_network(memory)
    target_network = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    buffer = relive.SequenceReplayBuffer(
        50_000,
        length=LENGTH,
        burn_in=BURN_IN,
        stride=LENGTH // 4,
        pad=True,
        prioritized=True,
        alpha=0.9,
        beta=0.6,
        epsilon=0.01,  # A floor: a sequence that had no step to learn from yet is drawn again when it has grown.
        streams=STREAMS,
        limiter=relive.MinSize(200),
        seed=buffer_rng,
    )
    epsilons = 0.4 ** np.linspace(1, 8, STREAMS)  # From one that explores a lot to one that hardly does.
    state = torch.zeros(STREAMS, STATE_WIDTH)
    curve = [(0, check(network, check_rng))]
    last_line = time.monotonic()
    for turn in range(1, steps // STREAMS + 1):
        observation = corridors.observation
        actions, next_state = advance(network, observation, state)
        actions = np.where(rng.random(STREAMS) < epsilons, rng.integers(DOORS, size=STREAMS), actions)
        next_observation, rewards, terminated = corridors.step(actions)
        buffer.extend(observation, actions, rewards, next_observation, terminated=terminated, state=state.numpy())
        state = next_state * torch.from_numpy(~terminated)[:, None]
        if turn % 2 == 0 and buffer.can_sample(BATCH_SIZE):
            batch = relive_torch.as_tensors(buffer.sample(BATCH_SIZE))
            loss, priorities = sequence_loss(network, target_network, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            buffer.update_priorities(batch.keys, priorities)
        if turn % 100 == 0:
            target_network.load_state_dict(network.state_dict())
            curve.append((turn * STREAMS, check(network, check_rng)))
            if time.monotonic() > last_line + 2:
                last_line = time.monotonic()
                name = "with" if memory else "without"
                print(f"{name} memory: step {curve[-1][0]}, mean return {curve[-1][1]:.2f}")
    return curve


def plot(curves: dict[str, Curve], path: str) -> None:
    """Write a picture of the curves."""
    from matplotlib import figure

    picture = figure.Figure(figsize=(7, 4), layout="constrained")
    axes = picture.add_subplot()
    for label, curve in curves.items():
        axes.plot(*np.transpose(curve), label=label)
    axes.axhline(1 / DOORS, color="tab:gray", linestyle="--", label="guessing")
    axes.set(title="Remembering a sign", xlabel="environment steps", ylabel="mean return of the greedy policy")
    axes.set_ylim(0, 1.02)
    axes.legend(loc="center right")
    axes.grid(alpha=0.3)
    picture.savefig(path, dpi=100)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with and without memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=80_000, help="environment steps of each of the two runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="2,000 steps: to see that it runs")
    parser.add_argument("--plot", metavar="PATH", help="write both learning curves to this PNG")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    steps = 2_000 if options.short else options.steps

    curves = {
        "with memory": train(steps, options.seed, memory=True),
        "without": train(steps, options.seed, memory=False),
    }
    if options.plot:
        plot(curves, options.plot)
    finals = {label: np.mean([value for _, value in curve[-5:]]) for label, curve in curves.items()}
    print("mean return: " + ", ".join(f"{value:.2f} {label}" for label, value in finals.items()))


if __name__ == "__main__":
    main()
