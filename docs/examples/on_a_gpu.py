"""TD3 on 1,024 pendulums that live on one device, with the buffer: a simulator in torch, and a TensorStorage.

    1,024 pendulums ── extend ──> PrioritizedReplayBuffer(storage=TensorStorage(...)) ── sample ──> actor, critics

No observation leaves the device. The learner is TD3 (Fujimoto et al. 2018) with many environments, large batches and
noise of its own for each environment, as in FastTD3 (Seo et al. 2025); episodes are cut off, which is not their end.

    python on_a_gpu.py --plot on_a_gpu.png                 two seeds on the CPU, or on the GPU if there is one
    python on_a_gpu.py --short                             a few steps, in seconds
"""

from collections.abc import Iterable, Sequence
import copy
import math

import curves
import torch
from torch import nn

import relive
from relive.integrations import torch as relive_torch

Batch = relive.TransitionBatch[torch.Tensor]
NUM_ENVS, CAPACITY, GAMMA = 1_024, 200 * 1_024, 0.95
BATCH_SIZE, UPDATES, LEARNING_RATE, TARGET_RATE, WARM_UP = 512, 8, 2e-3, 0.02, 8
TIME_LIMIT, MAX_TORQUE, STEPS_PER_EVALUATION = 200, 2.0, 10


class Pendulums:
    """Pendulums to be swung up, as in Gymnasium's Pendulum-v1, all in tensors on one device."""

    def __init__(self, count: int, device: str, seed: int) -> None:
        self.rng = torch.Generator(device).manual_seed(seed)
        self.angle, self.speed = self.drawn(count)
        # They are cut off at different times.
        self.age = torch.randint(TIME_LIMIT, (count,), generator=self.rng, device=device)

    def drawn(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return angles and speeds to begin with [count]."""
        uniform = 2 * torch.rand(2, count, generator=self.rng, device=self.rng.device) - 1
        return math.pi * uniform[0], uniform[1]

    def observation(self) -> torch.Tensor:
        """Return what is seen of each pendulum [count, 3]."""
        return torch.stack([self.angle.cos(), self.angle.sin(), self.speed], dim=1)

    def step(self, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return observations, rewards and whether episodes are cut off, after actions [count, 1] from -1 to 1."""
        torque = MAX_TORQUE * action[:, 0].clamp(-1, 1)
        angle = (self.angle + math.pi) % (2 * math.pi) - math.pi
        reward = -(angle**2 + 0.1 * self.speed**2 + 0.001 * torque**2)
        self.speed = (self.speed + (15 * self.angle.sin() + 3 * torque) * 0.05).clamp(-8, 8)
        self.angle = self.angle + 0.05 * self.speed
        self.age += 1
        return self.observation(), reward, self.age == TIME_LIMIT

    def reset(self, which: torch.Tensor) -> torch.Tensor:
        """Begin anew where `which` [count] says so, and return the observations [count, 3]."""
        angle, speed = self.drawn(len(which))
        self.angle, self.speed = torch.where(which, angle, self.angle), torch.where(which, speed, self.speed)
        self.age = torch.where(which, 0, self.age)
        return self.observation()


def new_network(num_inputs: int, num_outputs: int, width: int = 128) -> nn.Sequential:
    """Return a network of two hidden layers, [B, num_inputs] to [B, num_outputs]."""
    hidden = nn.Sequential(nn.Linear(num_inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return hidden.append(nn.Linear(width, num_outputs))


class Learner:
    """The networks of TD3, and how they learn from a batch."""

    def __init__(self, device: str) -> None:
        self.actor = new_network(3, 1).append(nn.Tanh()).to(device)
        self.critics = nn.ModuleList(new_network(4, 1) for _ in range(2)).to(device)
        self.targets = copy.deepcopy(nn.ModuleList([self.actor, *self.critics]))
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), LEARNING_RATE)
        self.critic_optimizer = torch.optim.Adam(self.critics.parameters(), LEARNING_RATE)

    def learn(self, batch: Batch) -> torch.Tensor:
        """Take one step with both optimizers; return the error of each transition [B]."""
        actor, *critics = self.targets
        with torch.no_grad():
            noise = (0.2 * torch.randn_like(batch.action)).clamp(-0.5, 0.5)
            action = (actor(batch.next_observation) + noise).clamp(-1, 1)
            value = values_of(critics, batch.next_observation, action).amin(dim=0)
            target = batch.reward + batch.next_discount * value
        errors = values_of(self.critics, batch.observation, batch.action) - target
        descend(self.critic_optimizer, (batch.weights * errors.square()).mean(dim=1).sum())
        action = self.actor(batch.observation)
        descend(self.actor_optimizer, -values_of(self.critics[:1], batch.observation, action).mean())
        for slow, fast in zip(self.targets, [self.actor, *self.critics], strict=True):
            for old, new in zip(slow.parameters(), fast.parameters(), strict=True):
                old.data.lerp_(new.data, TARGET_RATE)
        return errors.detach().abs().mean(dim=0)


def values_of(critics: Iterable[nn.Module], observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Return the value of each action by each critic [critics, B]."""
    return torch.stack([critic(torch.cat([observation, action], dim=1))[:, 0] for critic in critics])


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """Take one step down the gradient of a loss."""
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@torch.no_grad()
def mean_return(learner: Learner, device: str) -> float:
    """Return the mean return of 64 episodes without exploration."""
    envs, total = Pendulums(64, device, seed=1_000_000), torch.zeros(64, device=device)
    for _ in range(TIME_LIMIT):
        _, reward, _ = envs.step(learner.actor(envs.observation()))
        total += reward
    return total.mean().item()


def train(steps: int, seed: int, *, n_step: int, device: str) -> curves.Run:
    """Return the steps at which the policy was evaluated, and its mean return at each."""
    torch.manual_seed(seed)
    schema = relive.Schema(relive.Field(3, "float32"), relive.Field(1, "float32"), reward=relive.Field((), "float32"))
    buffer = relive.PrioritizedReplayBuffer(
        CAPACITY,
        storage=relive_torch.TensorStorage(schema, CAPACITY, device),
        streams=NUM_ENVS,
        n_step=n_step,
        gamma=GAMMA,
        seed=seed,
    )
    envs, learner, returns = Pendulums(NUM_ENVS, device, seed), Learner(device), dict[int, float]()
    noise = torch.linspace(0.05, 0.5, NUM_ENVS, device=device)[:, None]
    observation = envs.observation()
    for number in range(steps // NUM_ENVS):
        if number % STEPS_PER_EVALUATION == 0:
            returns[number * NUM_ENVS] = mean_return(learner, device)
        with torch.no_grad():
            action = (learner.actor(observation) + noise * torch.randn_like(noise)).clamp(-1, 1)
        if number < WARM_UP:
            action = 2 * torch.rand_like(action) - 1
        next_observation, reward, is_cut = envs.step(action)
        buffer.extend(observation, action, reward, next_observation, truncated=is_cut)
        observation = envs.reset(is_cut)
        for _ in range(UPDATES if number >= WARM_UP else 0):
            batch = relive_torch.as_tensors(buffer.sample(BATCH_SIZE))  # The batch itself, which is of tensors.
            buffer.update_priorities(batch.keys, learner.learn(batch))
    return list(returns), list(returns.values())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train from one-step and from three-step returns, and print how each run ended."""
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    cases = {f"relive, {n}-step": {"n_step": n, "device": device} for n in (3, 1)}
    title = f"TD3 on 1,024 pendulums in torch ({device})"
    curves.main(train, cases, arguments, steps=160 * NUM_ENVS, title=title, ylabel="return without exploration")


if __name__ == "__main__":
    main()
