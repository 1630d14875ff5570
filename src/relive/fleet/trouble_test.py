"""What writers count as stored is in one shard, once, whatever dies meanwhile; and nothing is spliced.

Observations say what they are: (writer, episode, t).
"""

import asyncio
from collections.abc import Callable
import itertools
import pathlib
import random
from typing import Any

import numpy as np
import pytest

import relive
from relive.fleet import local_test
from relive.fleet import replay

SCHEMA = relive.Schema(relive.Field(3, "int64"), relive.Field((), "int64"), reward=relive.Field((), "float32"))

Step = tuple[int, int, int]


def ring() -> Any:
    return relive.RingReplayBuffer(100_000, SCHEMA, n_step=3, streams=6, seed=0)


def episodes() -> Any:
    return relive.EpisodeReplayBuffer[Any, Any](seed=0)


def stored_in_ring(buffer: Any) -> list[Step]:
    """Return the steps of a buffer, none of whose windows mixes episodes."""
    buffer.check()
    if not len(buffer):
        return []
    batch = buffer.read(buffer.eligible_keys())
    follows = batch.observation + batch.steps[:, None] * np.array([0, 0, 1])
    assert (batch.next_observation == follows).all()
    assert (batch.action == batch.observation[:, 2]).all()
    return [tuple(observation) for observation in batch.observation.tolist()]


def stored_in_episodes(buffer: Any) -> list[Step]:
    """The same of a buffer of episodes."""
    answer: list[Step] = []
    for episode in local_test.episodes_in(buffer):
        steps = episode.observations[: len(episode.actions)]
        for observation, after in itertools.pairwise(episode.observations):
            assert after == (*observation[:2], observation[2] + 1)
        assert [t for _, _, t in steps] == episode.actions
        answer += steps
    return answer


def joint() -> Any:
    return relive.JointReplayBuffer(100_000, agents=["a", "b"], n_step=3, streams=6, seed=0)


def stored_in_joint(buffer: Any) -> list[Step]:
    """The same of a joint buffer, whose agents agree."""
    buffer.check()
    if not len(buffer):
        return []
    batch = buffer.read(buffer.eligible_keys())
    found = np.full((len(batch.keys), 3), -1)
    for agent in batch.agents.values():
        here = agent.mask
        assert ((found[here] == -1).all(axis=1) | (found[here] == agent.observation[here]).all(axis=1)).all()
        found[here] = agent.observation[here]
        follows = agent.observation + agent.steps[:, None] * np.array([0, 0, 1])
        assert (agent.next_observation == follows)[here].all()
        assert (agent.action == agent.observation[:, 2])[here].all()
    assert (found >= 0).all()
    return [tuple(observation) for observation in found.tolist()]


def tokens() -> Any:
    return relive.TokenReplayBuffer(100_000, sequence_extras={"number": relive.Field((), np.int64)}, seed=0)


def token_steps(number: int, episode: int, count: int) -> list[relive.TokenStep]:
    """Return steps that say what they are; of every third one, the prompt does not begin with what came before."""
    steps, prompt = [], [number, episode]
    for t in range(count):
        prompt = [number, episode, t] if t % 3 == 2 else [*prompt, t]
        step = relive.TokenStep(prompt=prompt, response=[t, t], logprobs=[-t, -t], policy_version=t, reward=t)
        steps.append(step)
        prompt = [*prompt, t, t]
    return steps


def stored_in_tokens(buffer: Any) -> list[Step]:
    """The same of a buffer of tokens: the writer, the episode, and how many steps it has."""
    answer: list[Step] = []
    for facts in local_test.episodes_in(buffer, finished=True):
        batch = buffer.read(facts.keys)
        number, episode = batch.tokens[0, :2].tolist()
        assert facts.agent_id == f"agent-{number}"
        assert batch.extras["number"].tolist() == [number] * len(batch.keys)
        twin = tokens()
        of_twin = twin.read(twin.add_episode(token_steps(number, episode, len(facts)), agent_id="", number=number))
        for name in ("tokens", "logprobs", "policy_versions", "rewards", "steps", "lengths", "returns", "mismatches"):
            assert np.array_equal(getattr(batch, name), getattr(of_twin, name)), name
        answer.append((number, episode, len(facts)))
    return answer


class ColumnActor:
    """Writes episodes to a fleet, and knows what it has given."""

    def __init__(self, client: replay.Replay[Any], number: int, rng: random.Random) -> None:
        self.client, self.number, self.rng = client, number, rng
        self.writer = client.writer(batch_steps=rng.choice([1, 5, 20]), max_in_flight=rng.choice([1, 2, 4]))
        self.given: list[Step] = []

    async def act(self, count: int) -> None:
        for episode in range(count):
            steps = self.rng.randrange(1, 30)
            if self.rng.random() < 0.5:
                await self.whole(episode, steps)
            else:
                await self.step_by_step(episode, steps)

    async def whole(self, episode: int, steps: int) -> None:
        observations = [(self.number, episode, t) for t in range(steps + 1)]
        is_terminated = self.rng.random() < 0.5
        await self.writer.add_episode(observations, range(steps), np.ones(steps), terminated=is_terminated)
        self.given += observations[:-1]

    async def step_by_step(self, episode: int, steps: int) -> None:
        stream = self.rng.randrange(2)
        for t in range(steps):
            here, there = (self.number, episode, t), (self.number, episode, t + 1)
            is_over = t == steps - 1 and self.rng.random() < 0.7
            await self.writer.add(here, t, 1.0, there, terminated=is_over, stream=stream)
            self.given.append(here)
            if self.rng.random() < 0.1:
                await asyncio.sleep(self.rng.random() * 0.1)
        await self.writer.end_episode(stream=stream)


class EpisodeActor:
    """The same for a fleet of buffers of episodes."""

    def __init__(self, client: replay.Replay[Any], number: int, rng: random.Random) -> None:
        self.client, self.number, self.rng = client, number, rng
        self.writer = client.episodes_writer(batch_steps=rng.choice([1, 5, 20]), max_in_flight=rng.choice([1, 2, 4]))
        self.given: list[Step] = []

    async def act(self, count: int) -> None:
        for number in range(count):
            steps = self.rng.randrange(1, 30)
            async with self.writer.episode(f"agent-{self.number}") as episode:
                for t in range(steps):
                    await episode.append((self.number, number, t), t, 1.0)
                    self.given.append((self.number, number, t))
                    if self.rng.random() < 0.1:
                        await asyncio.sleep(self.rng.random() * 0.1)
                if self.rng.random() < 0.8:
                    await episode.end((self.number, number, steps))


class JointActor:
    """The same for a fleet of joint buffers, whose agents come and go."""

    def __init__(self, client: replay.Replay[Any], number: int, rng: random.Random) -> None:
        self.client, self.number, self.rng = client, number, rng
        self.writer = client.joint_writer(batch_steps=rng.choice([1, 5, 20]), max_in_flight=rng.choice([1, 2, 4]))
        self.given: list[Step] = []

    async def act(self, count: int) -> None:
        for episode in range(count):
            steps, stream = self.rng.randrange(1, 30), self.rng.randrange(2)
            ends = self.rng.random() < 0.7
            for t in range(steps):
                present = self.rng.sample(["a", "b"], self.rng.randrange(1, 3))
                here, there = (self.number, episode, t), (self.number, episode, t + 1)
                flags = dict.fromkeys(present, ends and t == steps - 1)
                await self.writer.add(
                    dict.fromkeys(present, np.array(here)),
                    dict.fromkeys(present, t),
                    dict.fromkeys(present, 1.0),
                    dict.fromkeys(present, np.array(there)),
                    stream=stream,
                    **{self.rng.choice(["terminations", "truncations"]): flags},
                )
                self.given.append(here)
                if self.rng.random() < 0.05:
                    await self.writer.flush()
            assert await self.writer.end_episode(stream) == (not ends)


class TokenActor:
    """The same for a fleet of buffers of tokens."""

    def __init__(self, client: replay.Replay[Any], number: int, rng: random.Random) -> None:
        self.client, self.number, self.rng = client, number, rng
        self.writer = client.tokens_writer(batch_episodes=rng.choice([1, 3]), max_in_flight=rng.choice([1, 2, 4]))
        self.given: list[Step] = []

    async def act(self, count: int) -> None:
        for episode in range(3 * count):
            steps = token_steps(self.number, episode, self.rng.randrange(1, 6))
            await self.writer.add_episode(steps, agent_id=f"agent-{self.number}", number=self.number)
            self.given.append((self.number, episode, len(steps)))
            await asyncio.sleep(self.rng.random() * 0.1)


KINDS: dict[str, tuple[Callable[[], Any], type[Any], Callable[[Any], list[Step]]]] = {
    "columns": (ring, ColumnActor, stored_in_ring),
    "episodes": (episodes, EpisodeActor, stored_in_episodes),
    "joint": (joint, JointActor, stored_in_joint),
    "tokens": (tokens, TokenActor, stored_in_tokens),
}


async def lived(fleet: local_test.LocalFleet, kind: str, seed: int) -> list[Any]:
    """Let actors write while there is trouble, and return them once all that they wrote is flushed."""
    rng = random.Random(seed)
    client = fleet.replay()
    actors = [KINDS[kind][1](client, number, rng) for number in range(3)]
    trouble = local_test.Trouble(fleet, rng)
    async with trouble.around():
        await asyncio.gather(*[actor.act(15 if seed > 1 else 6) for actor in actors])
    for actor in actors:
        await actor.writer.close()
        assert actor.writer.stored + actor.writer.refused + actor.writer.lost == len(actor.given)
        assert actor.writer.refused == 0
    return actors


def stored_in(fleet: local_test.LocalFleet, kind: str) -> list[Step]:
    """Return the steps of all shards, in order."""
    return sorted(step for buffer in fleet.buffers() for step in KINDS[kind][2](buffer))


def given_by(actors: list[Any]) -> list[Step]:
    return sorted(step for actor in actors for step in actor.given)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 60))])
@pytest.mark.parametrize("kind", KINDS)
async def test_steps_with_files_are_stored_once_whatever_dies(kind: str, seed: int, tmp_path: pathlib.Path) -> None:
    # With the longer delays calls come late that their writer has given up.
    more: dict[str, Any] = {"timeout": 0.5, "delay": 0.35 if seed % 2 else 0.01, "recovery": 600.0}
    fleet = local_test.LocalFleet(KINDS[kind][0], 3, directory=tmp_path, seed=seed, **more)
    actors = await lived(fleet, kind, seed)
    assert [actor.writer.lost for actor in actors] == [0, 0, 0]
    stored = stored_in(fleet, kind)
    assert stored == given_by(actors)
    stats = [fleet.shard(shard).stats() for shard in range(3)]
    assert sum(each.inserted for each in stats) == len(stored)
    assert [(each.lost, each.refused) for each in stats] == [(0, 0)] * 3
    # And once more, from the files alone.
    for shard in range(3):
        fleet.kill(shard)
        fleet.start(shard)
    assert stored_in(fleet, kind) == stored


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 60))])
@pytest.mark.parametrize("kind", KINDS)
async def test_steps_without_files_are_stored_once_or_counted_as_lost(kind: str, seed: int) -> None:
    fleet = local_test.LocalFleet(KINDS[kind][0], 3, seed=seed, timeout=0.5)
    actors = await lived(fleet, kind, seed)
    stored, given = stored_in(fleet, kind), set(given_by(actors))
    assert len(set(stored)) == len(stored)
    assert set(stored) <= given
    gone = sum(actor.writer.stored for actor in actors) - len(stored)
    counted = (await actors[0].client.stats()).lost
    # Rows that were there; some of them had no answer, and were sent again. A step whose episode was cut is none.
    assert counted >= (gone / 3 if kind == "episodes" else gone)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_shard_that_never_returns_costs_its_pending_steps(kind: str) -> None:
    fleet = local_test.LocalFleet(KINDS[kind][0], 2, seed=1, timeout=0.5, recovery=2.0)
    actors = [KINDS[kind][1](fleet.replay(), number, random.Random(number)) for number in range(4)]
    acting = [asyncio.create_task(actor.act(8)) for actor in actors]
    await asyncio.sleep(0.3)
    before = set(stored_in(fleet, kind))
    fleet.hang(1)
    await asyncio.gather(*acting)
    for actor in actors:
        await actor.writer.close()
        assert actor.writer.stored + actor.writer.lost == len(actor.given)
    lost = sum(actor.writer.lost for actor in actors)
    assert 0 < lost <= 4 * 4 * 20
    stored = stored_in(fleet, kind)
    assert len(set(stored)) == len(stored)
    # Of what counts as lost some is there: the shard had it, and never said so.
    assert 0 <= len(stored) - sum(actor.writer.stored for actor in actors) <= lost
    assert before <= set(stored) <= set(given_by(actors))
