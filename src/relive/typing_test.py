"""The public types, as a type checker sees them; running it shows that the values agree."""

import contextlib
import dataclasses
import pathlib
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import pytest

import relive


@dataclasses.dataclass(frozen=True)
class Message:
    """An observation of an LLM agent."""

    text: str


class Talk(relive.EpisodeReplayBuffer[Message, str]):
    """A subclass that fixes the types."""

    def _draw(self, batch_size: int) -> list[tuple[relive.Episode[Message, str], int]]:
        draws = super()._draw(batch_size)
        assert_type(draws, list[tuple[relive.Episode[Message, str], int]])
        assert_type(self._rng, np.random.Generator)
        assert_type(self._store.finished[0], relive.Episode[Message, str])
        assert_type(self._store.open, dict[str, relive.Episode[Message, str]])
        return draws


async def test_types_survive_from_append_to_sample() -> None:
    buffer = relive.EpisodeReplayBuffer[Message, str](max_transitions=10, limiter=relive.MinSize(1), seed=0)
    assert_type(buffer, relive.EpisodeReplayBuffer[Message, str])
    episode_id = await buffer.start_episode("agent", group_id="group", policy_version=1)
    assert_type(episode_id, str)
    assert_type(buffer.start_episode_nowait("agent"), str)
    await buffer.append_observation_action_reward(episode_id, Message("hello"), "hi", 0.0, policy_version=2)
    await buffer.end_episode(episode_id, Message("bye"), "TRUNCATED")

    context = buffer.episode("agent", group_id="group", policy_version=1)
    assert_type(context, contextlib.AbstractAsyncContextManager[relive.EpisodeWriter[Message, str]])
    async with context as writer:
        assert_type(writer, relive.EpisodeWriter[Message, str])
        assert_type(writer.episode_id, str)
        await writer.append(Message("hello"), "hi", 1.0, policy_version=2)
        await writer.end(Message("bye"), status="ABORTED")
    with buffer.episode_nowait("agent-0", group_id="group", policy_version=2) as plain:
        assert_type(plain, relive.PlainEpisodeWriter[Message, str])
        plain.append(Message("hello"), "hi", 1.0)
        plain.end(Message("bye"))

    samples = await buffer.sample_n_step(2, 3, 0.9)
    assert_type(samples, list[relive.ReplaySample[Message, str]])
    assert_type(buffer.sample_n_step_nowait(2, 3, 0.9), list[relive.ReplaySample[Message, str]])
    sample = samples[0]
    assert_type(sample.episode_id, str)
    assert_type(sample.agent_id, str)
    assert_type(sample.group_id, str | None)
    assert_type(sample.policy_version, int | None)
    assert_type(sample.observation, Message)
    assert_type(sample.action, str)
    assert_type(sample.next_observation, Message)
    assert_type(sample.next_discount, float)
    assert_type(sample.is_terminal, bool)
    assert_type(sample.reward, float)
    assert_type(sample.rewards_seq, list[float])
    assert_type(sample.discount_powers, list[float])
    assert_type(sample.start_step, int)
    assert_type(sample.actual_n, int)
    assert_type(sample.gamma, float)
    assert_type(sample.window_end, relive.WindowEnd)
    assert_type(buffer.get_stats(), relive.EpisodeBufferStats)
    assert_type(buffer.get_stats().open_ages, dict[str, float])
    assert_type(len(buffer), int)
    for field in dataclasses.fields(sample):
        assert getattr(sample, field.name) is not None


def test_arrays_and_unions_are_types_too() -> None:
    buffer: relive.EpisodeReplayBuffer[npt.NDArray[np.float32], int | None] = relive.EpisodeReplayBuffer()
    episode_id = buffer.start_episode_nowait("agent")
    buffer.append_observation_action_reward_nowait(episode_id, np.zeros(2, np.float32), None, 0.0)
    buffer.end_episode_nowait(episode_id, np.ones(2, np.float32))
    (sample,) = buffer.sample_n_step_nowait(1, 1, 0.9)
    assert_type(sample.next_observation, npt.NDArray[np.float32])
    assert_type(sample.action, int | None)
    assert sample.next_observation.dtype == np.float32


async def test_deliveries_to_a_learner_are_typed() -> None:
    rules = relive.Admission(max_lag=1, episodes_per_version=4), relive.Groups(1, timeout=60.0)
    buffer = relive.EpisodeReplayBuffer[Message, str](admission=rules[0], groups=rules[1])
    for group_id in ("group", None):
        ticket = await buffer.admit()
        assert_type(ticket, relive.Ticket)
        assert_type(buffer.admit_nowait(2), relive.Ticket)
        async with buffer.episode("agent", group_id=group_id, ticket=ticket) as writer:
            await writer.append(Message("hello"), "hi", 1.0)
            await writer.end(Message("bye"))
    groups = await buffer.next_groups(1)
    assert_type(groups, list[list[relive.Episode[Message, str]]])
    episodes = await buffer.next_episodes(1)
    assert_type(episodes, list[relive.Episode[Message, str]])
    assert_type(buffer.get_training_bias(), relive.TrainingBias)
    assert [len(groups), len(groups[0]), len(episodes)] == [1, 1, 1]


def test_batches_of_tokens_and_of_several_agents_are_typed() -> None:
    tokens = relive.TokenReplayBuffer(max_tokens=10)
    step = relive.TokenStep(prompt=[1], response=[2], logprobs=[-0.5], policy_version=0)
    keys = tokens.add_episode([step], agent_id="agent")
    assert_type(keys, npt.NDArray[np.int64])
    assert_type(tokens.read(keys), relive.TokenBatch)
    assert_type(tokens.sample(2), relive.TokenBatch)
    to_go = relive.returns_to_go([[0.0, 1.0]], gamma=1.0)
    assert_type(to_go, list[npt.NDArray[np.float64]])
    assert_type(relive.group_advantages([1.0], ["g"]), npt.NDArray[np.float64])
    assert_type(relive.group_advantages(to_go, ["g"], by="turn"), list[npt.NDArray[np.float64]])
    assert len(tokens.sample(2)) == 2

    joint = relive.JointReplayBuffer(10, agents=["left", "right"])
    at, act, reward, then = {"left": 0.0}, {"left": 1}, {"left": 1.0}, {"left": 1.0}
    assert_type(joint.add(at, act, reward, then), int)
    assert_type(joint.sample(2), relive.JointBatch)
    assert_type(joint.sample(2).agents, dict[str, relive.AgentBatch])
    assert len(joint.sample(2).agents["left"]) == 2


def draws() -> tuple[
    relive.TransitionBatch,
    relive.SequenceBatch,
    list[relive.ReplaySample[list[float], int]],
    dict[str, npt.NDArray[Any]],
    tuple[npt.NDArray[Any], npt.NDArray[Any]],
]:
    """Return what each kind of buffer draws."""
    ring, sequences = relive.RingReplayBuffer(9), relive.SequenceReplayBuffer(9, length=1)
    items, rollout = relive.ItemReplayBuffer(9), relive.RolloutBuffer(9)
    episodes: relive.EpisodeReplayBuffer[list[float], int] = relive.EpisodeReplayBuffer()
    ring.add(0.0, 1, 1.0, 1.0)
    sequences.add(0.0, 1, 1.0, 1.0)
    items.add({"reward": [1.0]})
    rollout.add(0.0, 1, 1.0)
    prioritized = relive.PrioritizedReplayBuffer(9)
    prioritized.sampler.alpha = 0.5
    assert_type(prioritized.sampler.beta, float)
    episode_id = episodes.start_episode_nowait("agent")
    episodes.append_observation_action_reward_nowait(episode_id, [0.0], 1, 1.0)
    episodes.end_episode_nowait(episode_id, [1.0])
    samples = episodes.sample_n_step_nowait(2, 1, 0.9)
    assert_type(relive.TransitionBatch.from_samples(samples), relive.TransitionBatch)
    return ring.sample(2), sequences.sample(2), samples, items.sample(2), rollout.advantages(0.9, 0.9)


def test_batches_of_torch_are_typed() -> None:
    pytest.importorskip("torch")
    import torch

    from relive.integrations import torch as relive_torch

    transitions, sequences, samples, items, advantages = draws()
    assert_type(relive_torch.as_tensors(transitions), relive.TransitionBatch[torch.Tensor])
    assert_type(relive_torch.as_tensors(transitions, dtype=None).to("cpu").reward, torch.Tensor)
    assert_type(relive_torch.as_tensors(sequences), relive.SequenceBatch[torch.Tensor])
    assert_type(relive_torch.as_tensors(samples), relive.TransitionBatch[torch.Tensor])
    assert_type(relive_torch.as_tensors(items), dict[str, torch.Tensor])
    assert_type(relive_torch.as_tensors(advantages), tuple[torch.Tensor, torch.Tensor])
    wrong: int = relive_torch.as_tensors(transitions).reward  # type: ignore[assignment]
    assert isinstance(wrong, torch.Tensor)  # type: ignore[unreachable]


def test_batches_of_jax_are_typed() -> None:
    pytest.importorskip("jax")
    import jax

    from relive.integrations import jax as relive_jax

    transitions, sequences, samples, items, advantages = draws()
    assert_type(relive_jax.as_jax(transitions), relive.TransitionBatch[jax.Array])
    assert_type(relive_jax.as_jax(sequences), relive.SequenceBatch[jax.Array])
    assert_type(relive_jax.as_jax(samples), relive.TransitionBatch[jax.Array])
    assert_type(relive_jax.as_jax(items), dict[str, jax.Array])
    assert_type(relive_jax.as_jax(advantages), tuple[jax.Array, jax.Array])
    wrong: int = relive_jax.as_jax(transitions).reward  # type: ignore[assignment]
    assert isinstance(wrong, jax.Array)  # type: ignore[unreachable]


def test_the_type_checker_finds_wrong_types() -> None:
    """Each ignored error must be a real one: the type checker reports unused ignores."""
    buffer = Talk()
    episode_id = buffer.start_episode_nowait("agent")
    buffer.append_observation_action_reward_nowait(episode_id, "text", "hi", 0.0)  # type: ignore[arg-type]
    buffer.append_observation_action_reward_nowait(episode_id, Message("hello"), 3, 0.0)  # type: ignore[arg-type]
    buffer.end_episode_nowait(episode_id, 5)  # type: ignore[arg-type]
    (sample,) = buffer.sample_n_step_nowait(1, 1, 0.9)
    wrong: int = sample.action  # type: ignore[assignment]
    assert wrong in ("hi", 3)


def test_episodes_and_limiters_are_typed() -> None:
    episode = relive.Episode[int, str](episode_id="e", agent_id="a")
    assert_type(episode.observations, list[int])
    assert_type(episode.actions, list[str])
    assert_type(episode.rewards, list[float])
    assert_type(episode.status, relive.EpisodeStatus)
    assert_type(episode.start_time, float)
    assert_type(episode.append_observation_action_reward(0, "a", 0.0), int)
    assert_type(episode.append_final_observation(1), int)
    limiter: relive.RateLimiter = relive.SampleToInsertRatio(1.0, min_size=1, error_buffer=2.0)
    assert_type(limiter.can_insert(size=0, inserted=0, sampled=0), bool)
    assert_type(limiter.can_sample(1, size=0, inserted=0, sampled=0), bool)
    assert_type(relive.compute_discounted_return([1.0], 0.9), float)
    untyped: relive.EpisodeReplayBuffer[Any, Any] = relive.EpisodeReplayBuffer()
    assert len(untyped) == 0


def test_functions_for_saved_files_are_typed(tmp_path: pathlib.Path) -> None:
    relive.RingReplayBuffer(10).save(tmp_path / "buffer")
    assert_type(relive.summary(tmp_path / "buffer"), dict[str, Any])
    with relive.Journal(tmp_path / "journal") as journal:
        relive.RingReplayBuffer(10).attach(journal)
    repair = relive.repair(str(tmp_path / "journal"), drop_damaged=True)
    assert_type(repair.set_aside, tuple[str, ...])
    assert_type(repair.num_records, int)
