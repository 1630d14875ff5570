"""Chunks of actions: Q-learning of whole chunks, beside Q-learning of single actions (Q-chunking).

    python chunks.py                        both learners with each of four seeds, two minutes on one core
    python chunks.py --plot chunks.png      the same, and the learning curves
    python chunks.py --short                one seed and too few steps to learn much, in seconds

A walker starts in one quarter of a room of 9 by 9 places, and is paid 1 in the far corner, 10 to 16 steps away. The
policy of chunks chooses three moves at a time, out of 64, and plays them to their end. With `n_step=3` and
`action_chunks=True` a buffer draws three actions with their three-step return, from any step, so the target

    reward + next_discount * max Q(next_observation)

is that of the chunk, without bias, and the reward at the corner comes back three steps at a time (Li, Zhou and Levine
2025, "Reinforcement Learning with Action Chunking"). The other learner has single actions and one-step returns.
"""

from collections.abc import Sequence
import copy

import curves
import numpy as np
import numpy.typing as npt
import torch

import relive
from relive.integrations import torch as relive_torch

Ints = npt.NDArray[np.int64]

SIZE, LIMIT, STREAMS, BATCH_SIZE, GAMMA = 9, 60, 8, 128, 0.97
MOVES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]])


def move(places: Ints, actions: Ints) -> Ints:
    """Return the places [k, 2] after these actions [k]."""
    following: Ints = np.clip(places + MOVES[actions], 0, SIZE - 1)
    return following


def observe(places: Ints) -> npt.NDArray[np.float32]:
    """Return the places [k, 2] as one-hot coordinates [k, 2 * SIZE]."""
    return np.eye(SIZE, dtype=np.float32)[places].reshape(len(places), -1)


def number_of(chunks: torch.Tensor) -> torch.Tensor:
    """Return the number of each chunk [B, n] among all of them [B]."""
    digits: torch.Tensor = chunks * len(MOVES) ** torch.arange(chunks.shape[1])
    return digits.sum(dim=1)


def chunk_of(numbers: Ints, n: int) -> Ints:
    """Return the chunks [k, n] of those numbers [k]."""
    return numbers[:, np.newaxis] // len(MOVES) ** np.arange(n) % len(MOVES)


def q_loss(
    network: torch.nn.Module, target_network: torch.nn.Module, batch: relive.TransitionBatch[torch.Tensor]
) -> torch.Tensor:
    """Return the mean squared error of the values of the chunks in a batch of tensors."""
    with torch.no_grad():
        targets = batch.reward + batch.next_discount * target_network(batch.next_observation).max(dim=1).values
    values = network(batch.observation).gather(1, number_of(batch.action)[:, None]).squeeze(1)
    return torch.nn.functional.mse_loss(values, targets)


def play(
    network: torch.nn.Module, n: int, epsilon: float, rng: np.random.Generator, buffer: relive.RingReplayBuffer | None
) -> float:
    """Play an episode in each stream in chunks of n, record it if there is a buffer; return the success rate."""
    running, places = np.arange(STREAMS), rng.integers(SIZE // 2, size=(STREAMS, 2))
    for t in range(LIMIT):
        if t % n == 0:
            with torch.no_grad():
                chosen = network(torch.from_numpy(observe(places))).argmax(dim=1).numpy()
            explores = rng.random(STREAMS) < epsilon
            chunks = chunk_of(np.where(explores, rng.integers(len(MOVES) ** n, size=STREAMS), chosen), n)
        actions, before = chunks[running, t % n], observe(places[running])
        places[running] = move(places[running], actions)
        reached = (places[running] == SIZE - 1).all(axis=1)
        if buffer is not None:
            ends = {"terminated": reached, "truncated": np.full(len(running), t == LIMIT - 1)}
            buffer.extend(
                before, actions, reached.astype(np.float32), observe(places[running]), **ends, streams=running
            )
        running = running[~reached]
        if not len(running):
            break
    return 1 - len(running) / STREAMS


def train(steps: int, seed: int, *, n: int) -> curves.Run:
    """Return the steps at which the greedy policy was tried, and its success rate in percent."""
    torch.manual_seed(seed)
    rng, buffer_rng = np.random.default_rng(seed).spawn(2)
    network = torch.nn.Sequential(
        torch.nn.Linear(2 * SIZE, 128), torch.nn.ReLU(), torch.nn.Linear(128, len(MOVES) ** n)
    )
    target_network, optimizer = copy.deepcopy(network), torch.optim.Adam(network.parameters(), lr=1e-3)
    settings = {"n_step": n, "gamma": GAMMA, "action_chunks": True, "streams": STREAMS}
    buffer = relive.RingReplayBuffer(50_000, seed=buffer_rng, **settings)  # type: ignore[arg-type]
    at, rates = list[int](), list[float]()
    while buffer.appended < steps:
        play(network, n, max(0.1, 1 - buffer.appended / 8_000), rng, buffer)
        for _ in range(40):
            optimizer.zero_grad()
            q_loss(network, target_network, relive_torch.as_tensors(buffer.sample(BATCH_SIZE))).backward()
            optimizer.step()
        for target, parameter in zip(target_network.parameters(), network.parameters(), strict=True):
            target.data.lerp_(parameter.data, 0.2)
        at.append(buffer.appended)
        rates.append(100 * float(np.mean([play(network, n, 0.0, rng, None) for _ in range(5)])))
    return at, rates


def main(arguments: Sequence[str] | None = None) -> None:
    """Train in chunks and in single actions with several seeds, and print how each run ended."""
    torch.set_num_threads(1)
    cases = {"relive, chunks of 3": {"n": 3}, "relive, single actions": {"n": 1}}
    title = "The far corner of a room"
    curves.main(train, cases, arguments, steps=16_000, title=title, ylabel="success rate in percent")


if __name__ == "__main__":
    main()
