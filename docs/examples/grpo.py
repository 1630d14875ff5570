"""GRPO of a small language model that learns to use a tool, in PyTorch, with actors as coroutines.

A prompt names a key. The model may call a tool with a key, in two tokens; the tool gives the value of that key, which
is drawn anew for each prompt; then the model says one token, which should be the value. Eight episodes of a prompt are
a group, and a group whose returns are all equal teaches nothing, so the learner refuses it. Now and then the tool
fails; then the attempt is made again, with the place that its ticket still has. Actors run at most two updates ahead.
The baseline has no groups: its advantages are relative to the mean of all returns.
"""

import asyncio
from collections.abc import Sequence
import copy
import itertools

import curves
import numpy as np
import torch
from torch import nn

import relive

KEYS, VALUES = range(4), range(4, 8)
CALL, TOOL, ASK, PAD, VOCABULARY = 8, 9, 10, 11, 12
GROUP, GROUPS, MAX_LAG, MAX_TOKENS, FAILURES = 8, 8, 2, 256, 0.01


class Model(nn.Module):
    """A recurrent language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.recurrent = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(32 + 64, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities of the token after each of [B, L]: [B, L, VOCABULARY]."""
        inputs = self.embed(tokens)
        outputs = torch.cat([inputs, self.recurrent(inputs)[0]], dim=-1)
        return nn.functional.log_softmax(self.head(outputs), dim=-1)


@torch.no_grad()
def generate(model: Model, prompts: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Continue each prompt [B, P] by `count` tokens, and return these and their log-probabilities [B, count]."""
    tokens, chosen = torch.as_tensor(prompts), []
    for _ in range(count):
        logprobs = model(tokens)[:, -1]
        token = torch.multinomial(logprobs.exp(), 1)
        chosen.append(logprobs.gather(1, token))
        tokens = torch.cat([tokens, token], dim=1)
    return tokens[:, -count:].numpy(), torch.cat(chosen, dim=1).numpy()


async def act(
    buffer: relive.TokenReplayBuffer, policy: list[Model], rng: np.random.Generator, agent_id: str, scores: list[float]
) -> None:
    """Play groups of episodes, each with the newest policy, and record whether the answers are right."""
    for number in itertools.count():
        key, table = rng.choice(KEYS), rng.choice(VALUES, len(KEYS))
        with await buffer.admit(GROUP) as ticket:
            while ticket.left:
                version, model = buffer.policy_version or 0, policy[0]
                prompts = np.tile(np.array([ASK, key]), (ticket.left, 1))
                calls, call_logprobs = generate(model, prompts, 2)
                results = np.array([[TOOL, table[k] if c == CALL and k in KEYS else PAD] for c, k in calls])
                contexts = np.hstack([prompts, calls, results])
                answers, answer_logprobs = generate(model, contexts, 1)
                await asyncio.sleep(0)  # A model on a server, and a tool, would be awaited.
                for i in np.flatnonzero(rng.random(ticket.left) >= FAILURES).tolist():
                    called, asked = calls[i].tolist()
                    rewards = 0.2 * (called == CALL) + 0.3 * (asked == key), float(answers[i, 0] == table[key])
                    turns = (
                        (prompts[i], calls[i], call_logprobs[i], rewards[0]),
                        (contexts[i], answers[i], answer_logprobs[i], rewards[1]),
                    )
                    steps = [
                        relive.TokenStep(prompt=p, response=r, logprobs=logs, policy_version=version, reward=reward)
                        for p, r, logs, reward in turns
                    ]
                    scores.append(rewards[1])
                    buffer.add_episode(steps, agent_id=agent_id, group_id=f"{agent_id}/{number}", ticket=ticket)


def differ(group: list[relive.EpisodeFacts]) -> bool:
    """Accept groups with something to learn from (dynamic sampling, as in DAPO), and one in four of the others."""
    return len({facts.total_reward for facts in group}) > 1 or int(str(group[0].group_id).split("/")[1]) % 4 == 0


async def learn(buffer: relive.TokenReplayBuffer, policy: list[Model], updates: int, is_grouped: bool) -> None:
    """Update the policy from groups that were generated at most MAX_LAG updates ago."""
    model = copy.deepcopy(policy[0])
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for version in range(updates):
        buffer.set_policy_version(version)
        groups = await buffer.next_groups(GROUPS, max_lag=MAX_LAG, accept=differ if is_grouped else None)
        units = [facts for group in groups for facts in group]
        keys = np.concatenate([facts.keys for facts in units])
        rewards = [facts.total_reward for facts in units for _ in facts.keys]
        names = [facts.group_id if is_grouped else "all" for facts in units for _ in facts.keys]
        buffer.update(keys, advantages=relive.group_advantages(rewards, names, normalize="mean_std"))
        optimizer.zero_grad()
        for part in buffer.micro_batches(keys, max_tokens=MAX_TOKENS)[0]:
            batch = buffer.read(part)
            tokens = torch.as_tensor(batch.tokens)
            logprobs, mask = model(tokens[:, :-1]), batch.loss_mask[:, 1:]
            logprobs = logprobs.gather(2, tokens[:, 1:, None])[..., 0]
            now, then = logprobs.detach().numpy(), batch.logprobs[:, 1:]
            weights = relive.truncated_importance_weights(now, then, limit=2.0, mask=mask)
            advantages = torch.as_tensor(batch.extras["advantages"][:, None] * weights, dtype=torch.float32)
            (-(advantages * logprobs).sum() / (3 * len(keys))).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        policy[0] = copy.deepcopy(model)


async def run(updates: int, seed: int, is_grouped: bool) -> curves.Run:
    """Return the numbers of episodes, and the share of right answers among the last 200 at each."""
    torch.manual_seed(seed)
    buffer = relive.TokenReplayBuffer(
        100_000,
        sequence_extras={"advantages": relive.Field((), np.float64)},
        pad_token_id=PAD,
        admission=relive.Admission(MAX_LAG, GROUPS * GROUP, max_running=4 * GROUP),
        groups=relive.Groups(GROUP),
        seed=seed,
    )
    policy, rng, scores = [Model()], np.random.default_rng(seed), list[float]()
    async with asyncio.TaskGroup() as tasks:
        actors = [tasks.create_task(act(buffer, policy, rng, f"actor {number}", scores)) for number in range(4)]
        await learn(buffer, policy, updates, is_grouped)
        for actor in actors:
            actor.cancel()
    return range(len(scores)), curves.running_mean(scores, window=200)


def train(updates: int, seed: int, *, is_grouped: bool) -> curves.Run:
    """Run actors and learner in an event loop."""
    return asyncio.run(run(updates, seed, is_grouped))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train with and without groups, with several seeds, and print how each run ended."""
    torch.set_num_threads(1)
    cases = {"groups, refused if all returns are equal": {"is_grouped": True}, "no groups": {"is_grouped": False}}
    curves.main(train, cases, arguments, steps=150, title="GRPO with a tool", ylabel="right answers")


if __name__ == "__main__":
    main()
