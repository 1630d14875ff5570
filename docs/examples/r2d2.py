"""R2D2: recurrent Q-learning from sequences, in corridors where a sign has to be remembered.

    python r2d2.py --plot r2d2.png      with and without memory, four seeds each, three and a half minutes on one core
    python r2d2.py --short              one seed and too few steps to learn much, in seconds

    t               0    1    2    3    4  |  5    6   ...        T-1
    observation    sign sign sign sign sign  dark dark ...  "choose a door"
    action          -    -    -    -    -     -    -   ...  0 to 3: reward 1 for the door on the sign

Episodes take 8 to 24 steps and sequences have 16: in the longest episodes no sequence holds both the sign and the door.
The actor therefore stores the state of the network before each step as an extra. The learner starts from that of the
first step, runs over the burn-in without gradients, since the stored state is stale, and learns from the rest
(Kapturowski et al. 2019). The baseline is the same network, but forgets after each step: it can only guess.
"""

from collections.abc import Sequence

import curves
import numpy as np
import numpy.typing as npt
import torch

import relive
from relive.integrations import torch as relive_torch

Floats = npt.NDArray[np.float32]

DOORS, LIT_STEPS, STREAMS = 4, 5, 16
GAMMA, STATE_WIDTH, LENGTH, BURN_IN, BATCH_SIZE = 0.97, 64, 16, 4, 32


class Corridors:
    """Corridors side by side, with a sign at the entrance and four doors at the end; each starts again by itself."""

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self._rng, self._length = rng, np.ones(count, np.int64)
        self._door, self._steps = np.zeros((2, count), np.int64)
        self.step(self._door)  # Ends an episode of one step in each, so that all corridors are drawn.

    def observe(self) -> Floats:
        """Return the observations [S, 5]: the sign, one-hot, and whether a door is to be chosen."""
        sign = np.eye(DOORS, DOORS + 1, dtype=np.float32)[self._door] * (self._steps < LIT_STEPS)[:, np.newaxis]
        sign[:, DOORS] = self._steps == self._length - 1
        return sign

    def step(self, actions: npt.NDArray[np.int64]) -> tuple[Floats, Floats, npt.NDArray[np.bool_]]:
        """Return the next observations [S, 5], the rewards [S], and which episodes have terminated [S]."""
        self._steps += 1
        terminated = self._steps == self._length
        rewards = (terminated & (actions == self._door)).astype(np.float32)
        next_observation = self.observe()
        self._door = np.where(terminated, self._rng.integers(DOORS, size=len(actions)), self._door)
        self._length = np.where(terminated, self._rng.integers(8, 25, size=len(actions)), self._length)
        self._steps[terminated] = 0
        return next_observation, rewards, terminated


class Network(torch.nn.Module):
    """A recurrent network with a value for each door, or the same network without its memory."""

    def __init__(self, memory: bool) -> None:
        super().__init__()
        self.has_memory = memory
        self.recurrent = torch.nn.GRU(DOORS + 1, STATE_WIDTH, batch_first=True)
        self.head = torch.nn.Linear(STATE_WIDTH, DOORS)

    def forward(self, observations: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the action values [B, T, doors] of observations [B, T, 5] from a state [B, H], and the last state."""
        if not self.has_memory:
            outputs, _ = self.recurrent(observations.flatten(0, 1)[:, None])
            return self.head(outputs).view(*observations.shape[:2], DOORS), state
        outputs, last = self.recurrent(observations, state[None].contiguous())
        return self.head(outputs), last[0]


def sequence_loss(
    network: Network, target_network: Network, batch: relive.SequenceBatch[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean loss of double Q-learning on a batch of sequences, and their priorities [B]."""
    early, late, state = slice(BURN_IN), slice(BURN_IN, None), batch.extras["state"][:, 0]
    with torch.no_grad():
        _, warm = network(batch.observation[:, early], state)
        _, target_warm = target_network(batch.observation[:, early], state)
        target_values, _ = target_network(batch.observation[:, late], target_warm)
    all_values, _ = network(batch.observation[:, late], warm)  # One step more than there are actions.
    next_values = target_values[:, 1:].gather(2, all_values[:, 1:].argmax(dim=2, keepdim=True)).squeeze(2)
    targets = batch.reward[:, late] + GAMMA * ~batch.terminated[:, late] * next_values
    values = all_values[:, :-1].gather(2, batch.action[:, late, None]).squeeze(2)
    mask = batch.mask[:, late].float()
    errors = (targets - values).abs() * mask
    steps = mask.sum(dim=1).clamp(min=1)
    priorities = 0.9 * errors.max(dim=1).values + 0.1 * errors.sum(dim=1) / steps
    return (batch.weights * (errors**2).sum(dim=1) / steps).mean(), priorities.detach()


def new_buffer(seed: int | np.random.Generator) -> relive.SequenceReplayBuffer:
    """Return the buffer of a run."""
    return relive.SequenceReplayBuffer(
        50_000,
        length=LENGTH,
        burn_in=BURN_IN,
        stride=LENGTH // 4,
        pad=True,
        prioritized=True,
        epsilon=0.01,  # A sequence that has no step to learn from yet is drawn again when it has grown.
        streams=STREAMS,
        seed=seed,
    )


def train(steps: int, seed: int, *, memory: bool) -> curves.Run:
    """Return steps, and the share of right doors that the eight streams with little exploration chose by then."""
    torch.manual_seed(seed)
    rng, corridors_rng, buffer_rng = np.random.default_rng(seed).spawn(3)
    corridors, network = Corridors(STREAMS, corridors_rng), Network(memory)
    target_network = Network(memory)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    buffer = new_buffer(buffer_rng)
    epsilons = 0.4 ** np.linspace(1, 8, STREAMS)  # From a stream that explores a lot to one that hardly does.
    state = torch.zeros(STREAMS, STATE_WIDTH)
    at, shares, returns = list[int](), list[float](), list[float]()
    for turn in range(1, steps // STREAMS + 1):
        observation = corridors.observe()
        with torch.no_grad():
            values, next_state = network(torch.from_numpy(observation)[:, None], state)
        explores = rng.random(STREAMS) < epsilons
        actions = np.where(explores, rng.integers(DOORS, size=STREAMS), values[:, 0].argmax(dim=1).numpy())
        next_observation, rewards, terminated = corridors.step(actions)
        buffer.extend(observation, actions, rewards, next_observation, terminated=terminated, state=state.numpy())
        state = next_state * torch.from_numpy(~terminated)[:, None]
        returns += rewards[8:][terminated[8:]].tolist()
        if turn % 2 == 0 and buffer.can_sample(BATCH_SIZE):
            batch = relive_torch.as_tensors(buffer.sample(BATCH_SIZE))
            loss, priorities = sequence_loss(network, target_network, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            buffer.update_priorities(batch.keys, priorities)
        if turn % 50 == 0:
            target_network.load_state_dict(network.state_dict())
            at.append(turn * STREAMS)
            shares.append(100 * float(np.mean(returns[-200:])))
    return at, shares


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with and without memory and several seeds, and print how each run ended."""
    torch.set_num_threads(1)
    cases = {"relive, with memory": {"memory": True}, "relive, without": {"memory": False}}
    curves.main(train, cases, arguments, steps=60_000, title="Remembering a sign", ylabel="right doors in percent")


if __name__ == "__main__":
    main()
