"""A fleet of language-model agents in asyncio tasks, one buffer, and a learner that teaches them which tools to use.

    pip install relive matplotlib
    python agents.py                        five seconds; matplotlib is for the picture alone
    python agents.py --plot agents.png      ... and a picture of the learning curve
    python agents.py --short                2,000 replies, in a second

Agents answer questions with tools. What they observe is a conversation, what they do is a reply: frozen dataclasses, in
an `EpisodeReplayBuffer[Conversation, Reply]`. The one reward comes at the end: 1 if the answer was right.

    16 agents     reply = await model.reply(conversation)           each reply takes a while of its own
                  await writer.append(conversation, reply, reward)  waits while the learner is behind
    1 learner     samples = await buffer.sample_n_step(...)         waits while the agents are behind
                  model.learn(samples)                              a new version of the policy

The model is a stand-in: a table where a language model would be, and turns of the event loop where seconds would pass.
Each reply carries the version of the policy that gave it, and how likely it was then. The policy has changed by the
time a reply is learned from, which an importance weight makes up for. When the learner is through, the agents are
cancelled wherever they are, and their conversations end as ABORTED. Expect about one right answer in five at first, and
nearly all in the end. The same seed gives the same figures: nothing that is learned depends on the clock.
"""

import argparse
import asyncio
from collections.abc import Sequence
import dataclasses
import time

import numpy as np
import numpy.typing as npt

import relive

AGENTS = 16
BATCH_SIZE = 64
GAMMA = 0.95
MAX_REPLIES = 8

NO_RESULT = "no result"
TOOLS = ("search", "calendar", "calculator", "answer")
TOPICS = {  # The tools that a question needs, in this order.
    "capital": ("search", "answer"),
    "sum": ("calculator", "answer"),
    "deadline": ("calendar", "calculator", "answer"),
    "age": ("search", "calendar", "calculator", "answer"),
}


@dataclasses.dataclass(frozen=True)
class Message:
    """What the user, the assistant or a tool said."""

    role: str
    text: str


@dataclasses.dataclass(frozen=True)
class Reply:
    """Which tool the model chose, how likely that was, and which version of the policy it was."""

    tool: str
    probability: float
    policy_version: int


Conversation = tuple[Message, ...]
Buffer = relive.EpisodeReplayBuffer[Conversation, Reply]
Sample = relive.ReplaySample[Conversation, Reply]
Curve = list[tuple[int, float]]


class Model:
    """The stand-in: a policy and a value for each topic and number of results, in tables."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.version = 0
        self._rng = rng
        self._logits = np.zeros((len(TOPICS), len(TOOLS), len(TOOLS)))
        self._values = np.zeros((len(TOPICS), len(TOOLS)))

    async def reply(self, conversation: Conversation) -> Reply:
        """Return a reply, after a while."""
        for _ in range(self._rng.integers(1, 10)):
            await asyncio.sleep(0)
        probabilities = self.probabilities(conversation)
        tool = int(self._rng.choice(len(TOOLS), p=probabilities))
        return Reply(TOOLS[tool], float(probabilities[tool]), self.version)

    def probabilities(self, conversation: Conversation) -> npt.NDArray[np.float64]:
        """Return how likely each tool is now."""
        likely = np.exp(self._logits[state_of(conversation)])
        return np.asarray(likely / likely.sum())

    def learn(self, samples: Sequence[Sample], rate: float = 0.05) -> None:
        """Make replies likelier after which more came than expected, and others less likely (an actor-critic).

        The weight is that of one reply; the replies after it in the window count as they were given.
        """
        for sample in samples:
            state, tool = state_of(sample.observation), TOOLS.index(sample.action.tool)
            probabilities = self.probabilities(sample.observation)
            weight = min(probabilities[tool] / sample.action.probability, 1.0)
            target = sample.reward + sample.next_discount * self._values[state_of(sample.next_observation)]
            advantage = target - self._values[state]
            self._values[state] += rate * weight * advantage
            self._logits[state] += rate * weight * advantage * (np.eye(len(TOOLS))[tool] - probabilities)
        self.version += 1


def state_of(conversation: Conversation) -> tuple[int, int]:
    """Return what the model reads in a conversation: the topic, and how many tools had a result."""
    topic = conversation[0].text.split()[-1]
    results = sum(message.role == "tool" and message.text != NO_RESULT for message in conversation)
    return list(TOPICS).index(topic), results


def carry_out(conversation: Conversation, reply: Reply) -> tuple[Conversation, float, bool]:
    """Return the conversation after a reply, the reward, and whether it is over: the environment."""
    topic, results = state_of(conversation)
    is_right = reply.tool == list(TOPICS.values())[topic][results]
    is_answer = reply.tool == "answer"
    role, text = ("user", "thanks" if is_right else "wrong") if is_answer else ("tool", "42" if is_right else NO_RESULT)
    conversation += (Message("assistant", reply.tool), Message(role, text))
    return conversation, float(is_answer and is_right), is_answer or len(conversation) > 2 * MAX_REPLIES


async def work(agent_id: str, model: Model, buffer: Buffer, outcomes: list[float], rng: np.random.Generator) -> None:
    """Return question after question, until cancelled."""
    while True:
        conversation: Conversation = (Message("user", f"a question about a {rng.choice(list(TOPICS))}"),)
        reward, is_over = 0.0, False
        async with buffer.episode(agent_id) as writer:
            while not is_over:
                reply = await model.reply(conversation)
                next_conversation, reward, is_over = carry_out(conversation, reply)
                await writer.append(conversation, reply, reward)
                conversation = next_conversation
            await writer.end(conversation)
        outcomes.append(reward)


async def learn(model: Model, buffer: Buffer, outcomes: list[float], steps: int) -> Curve:
    """Learn until so many replies were given, and return pairs of replies and the share of right returns by then."""
    curve: Curve = []
    last_line = time.monotonic()
    while buffer.get_stats().appended < steps:
        samples = await buffer.sample_n_step(BATCH_SIZE, n=3, gamma=GAMMA)
        model.learn(samples)
        if model.version % 25 == 1:
            curve.append((buffer.get_stats().appended, float(np.mean(outcomes[-500:]))))
        if time.monotonic() > last_line + 2:
            last_line = time.monotonic()
            lag = np.mean([model.version - sample.action.policy_version for sample in samples])
            print(f"{curve[-1][0]} replies, right answers {curve[-1][1]:.2f}, policy lag {lag:.0f} versions")
    return curve


async def train(steps: int, seed: int) -> tuple[Curve, Buffer]:
    """Run the fleet and the learner side by side; returns the curve of `learn`, and the buffer."""
    model_rng, buffer_rng, *rngs = np.random.default_rng(seed).spawn(2 + AGENTS)
    model, outcomes = Model(model_rng), list[float]()
    buffer = Buffer(
        max_transitions=5_000,
        limiter=relive.SampleToInsertRatio(ratio=4.0, min_size=500, error_buffer=2.0 * BATCH_SIZE),
        seed=buffer_rng,
    )
    async with asyncio.TaskGroup() as group:
        agents = [
            group.create_task(work(f"agent-{number}", model, buffer, outcomes, rng)) for number, rng in enumerate(rngs)
        ]
        curve = await learn(model, buffer, outcomes, steps)
        for agent in agents:
            agent.cancel()
    return curve, buffer


def plot(curve: Curve, path: str) -> None:
    """Write a picture of the curve."""
    from matplotlib import figure

    picture = figure.Figure(figsize=(7, 4), layout="constrained")
    axes = picture.add_subplot()
    axes.plot(*np.transpose(curve))
    axes.set(title="16 agents learn which tools to use", xlabel="replies", ylabel="right answers among the last 500")
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    picture.savefig(path, dpi=100)


def main(arguments: Sequence[str] | None = None) -> None:
    """Let agents answer questions, and a learner learn from it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15_000, help="replies of all agents together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--short", action="store_true", help="2,000 replies: to see that it runs")
    parser.add_argument("--plot", metavar="PATH", help="write the learning curve to this PNG")
    options = parser.parse_args(arguments)

    curve, buffer = asyncio.run(train(2_000 if options.short else options.steps, options.seed))
    if options.plot:
        plot(curve, options.plot)
    aborted = buffer.get_stats().aborted
    print(f"right answers: {curve[0][1]:.2f} at first, {curve[-1][1]:.2f} in the end; {aborted} conversations aborted")


if __name__ == "__main__":
    main()
