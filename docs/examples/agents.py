"""LLM agents: sixteen asyncio agents try each question four times, and a learner compares the four attempts (GRPO).

    python agents.py --plot agents.png      two learners with each of four seeds, in half a minute on one core
    python agents.py --short                one seed and too few replies to learn much, in a second

Agents answer questions with tools. An observation is a conversation, an action is the tool that the model chose in its
reply, and the one reward comes at the end of an episode: 1 for a right answer.

    16 agents     ticket = await buffer.admit(GROUP_SIZE)           waits while the learner is behind
                  tool = await model.reply(conversation)            four conversations at a time
                  await writer.append(conversation, tool, reward)
    1 learner     groups = await buffer.next_groups(GROUPS)         waits while the agents are behind
                  model.learn(groups)                               a new version of the policy

The model is a stand-in: a table where a language model would be, and turns of the event loop where seconds would pass.
All replies of an attempt that did better than the others at the same question become more likely (Shao et al. 2024,
"DeepSeekMath"). The baseline learns from the last reply of each attempt alone: when to answer, but not which tools to
use before. Now and then the model does not reply: the buffer ends that episode as ABORTED, and the attempt is made
again with the same ticket. When the learner has finished, the agents are cancelled, which ends their episodes likewise.
"""

import asyncio
from collections.abc import Sequence
import contextlib
import itertools
from typing import Any, NamedTuple

import curves
import numpy as np
import numpy.typing as npt

import relive

AGENTS, GROUP_SIZE, GROUPS, MAX_REPLIES, LEARNING_RATE, FAILURES = 16, 4, 8, 8, 0.5, 0.01
TOOLS = ("search", "calendar", "calculator", "answer")
TOPICS = {  # The tools that a question needs, in this order.
    "capital": ("search", "answer"),
    "sum": ("calculator", "answer"),
    "deadline": ("calendar", "calculator", "answer"),
    "age": ("search", "calendar", "calculator", "answer"),
}


class Message(NamedTuple):
    """A message of the user, the assistant or a tool."""

    role: str
    text: str


Conversation = tuple[Message, ...]
Buffer = relive.EpisodeReplayBuffer[Conversation, str]


class NoReplyError(Exception):
    """The server of the model did not reply."""


class Model:
    """The stand-in: a softmax policy for each topic and number of right tools so far."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        (self._server_rng,) = rng.spawn(1)
        self._logits = np.zeros((len(TOPICS), len(TOOLS), len(TOOLS)))

    async def reply(self, conversation: Conversation) -> str:
        """Return the tool to call next, after a while.

        Raises:
            NoReplyError: The server failed.
        """
        for _ in range(self._rng.integers(1, 10)):
            await asyncio.sleep(0)
        if self._server_rng.random() < FAILURES:
            raise NoReplyError
        return TOOLS[self._rng.choice(len(TOOLS), p=self.probabilities(conversation))]

    def probabilities(self, conversation: Conversation) -> npt.NDArray[np.float64]:
        """Return the probability of each tool."""
        weights = np.exp(self._logits[state_of(conversation)])
        return np.asarray(weights / weights.sum())

    def learn(self, groups: Sequence[Sequence[relive.Episode[Conversation, str]]], first: int) -> None:
        """Make the replies of an attempt more likely, from this one on, by how far it was better than its group."""
        for group in groups:
            returns = np.array([sum(episode.rewards) for episode in group])
            for episode, advantage in zip(group, returns - returns.mean(), strict=True):
                for conversation, tool in list(zip(episode.observations, episode.actions, strict=False))[first:]:
                    direction = np.eye(len(TOOLS))[TOOLS.index(tool)] - self.probabilities(conversation)
                    self._logits[state_of(conversation)] += LEARNING_RATE * advantage * direction


def state_of(conversation: Conversation) -> tuple[int, int]:
    """Return the topic of a conversation, and how many tools were right so far."""
    topic = conversation[0].text.split()[-1]
    results = sum(message.text == "ok" for message in conversation)
    return list(TOPICS).index(topic), results


def carry_out(conversation: Conversation, tool: str) -> tuple[Conversation, float, bool]:
    """Return the conversation after a reply, the reward, and whether it is over: the environment."""
    topic, results = state_of(conversation)
    is_right, is_answer = tool == list(TOPICS.values())[topic][results], tool == "answer"
    conversation += (Message("assistant", tool), Message("user" if is_answer else "tool", "ok" if is_right else "no"))
    return conversation, float(is_answer and is_right), is_answer or len(conversation) > 2 * MAX_REPLIES


async def attempt(model: Model, buffer: Buffer, question: Conversation, **settings: Any) -> float:
    """Return the reward of one attempt at a question, which is made again until the model has replied each time."""
    while True:
        conversation, is_over = question, False
        with contextlib.suppress(NoReplyError):  # The place of the episode is its ticket's again.
            async with buffer.episode(policy_version=buffer.policy_version, **settings) as writer:
                while not is_over:
                    tool = await model.reply(conversation)
                    next_conversation, reward, is_over = carry_out(conversation, tool)
                    await writer.append(conversation, tool, reward)
                    conversation = next_conversation
                await writer.end(conversation)
            return reward


async def act(agent_id: str, model: Model, buffer: Buffer, outcomes: list[float], rng: np.random.Generator) -> None:
    """Try question after question four times, until cancelled."""
    for number in itertools.count():
        question = (Message("user", f"a question about a {rng.choice(list(TOPICS))}"),)
        with await buffer.admit(GROUP_SIZE) as ticket:
            settings = {"agent_id": agent_id, "group_id": f"{agent_id}, question {number}", "ticket": ticket}
            outcomes += await asyncio.gather(*(attempt(model, buffer, question, **settings) for _ in range(GROUP_SIZE)))


async def run(steps: int, seed: int, first: int) -> tuple[curves.Run, Buffer]:
    """Run agents and learner side by side until there are so many replies; return the curve and the buffer."""
    model_rng, *rngs = np.random.default_rng(seed).spawn(1 + AGENTS)
    model, outcomes, at, shares = Model(model_rng), list[float](), list[int](), list[float]()
    admission = relive.Admission(max_lag=1, episodes_per_version=GROUPS * GROUP_SIZE)
    buffer = Buffer(max_episodes=1_000, admission=admission, groups=relive.Groups(GROUP_SIZE))
    async with asyncio.TaskGroup() as group:
        agents = [group.create_task(act(f"agent {n}", model, buffer, outcomes, rng)) for n, rng in enumerate(rngs)]
        while buffer.get_stats().appended < steps:
            model.learn(await buffer.next_groups(GROUPS), first)
            at.append(buffer.get_stats().appended)
            shares.append(100 * float(np.mean(outcomes[-500:])))
            buffer.set_policy_version(len(at))
        for agent in agents:
            agent.cancel()
    return (at, shares), buffer


def train(steps: int, seed: int, *, first: int) -> curves.Run:
    """Return the numbers of replies after each update, and the share of right answers among the last 500 attempts."""
    return asyncio.run(run(steps, seed, first))[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Train on all replies and on the last ones with several seeds, and print how each run ended."""
    cases = {"relive, all replies of an attempt": {"first": 0}, "relive, the last reply alone": {"first": -1}}
    curves.main(train, cases, arguments, steps=8_000, title="16 agents use tools", ylabel="right answers in percent")


if __name__ == "__main__":
    main()
