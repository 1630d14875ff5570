"""The example of GRPO: what it stores is what the tool and the model said."""

import asyncio

import numpy as np
import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("torch")

import grpo
import torch

import relive


@pytest.mark.long
def test_the_model_learns_to_use_the_tool() -> None:
    _, scores = grpo.train(150, seed=0, is_grouped=True)
    assert scores[-1] > 0.5


def test_an_actor_stores_complete_groups_of_token_steps() -> None:
    async def main() -> None:
        torch.manual_seed(0)
        buffer = relive.TokenReplayBuffer(10_000, groups=relive.Groups(grpo.GROUP))
        buffer.set_policy_version(3)
        scores: list[float] = []
        actor = asyncio.create_task(grpo.act(buffer, [grpo.Model()], np.random.default_rng(0), "a", scores))
        groups = await buffer.next_groups(20)
        actor.cancel()
        keys = np.concatenate([facts.keys for group in groups for facts in group])
        batch = buffer.read(keys)
        assert batch.is_exact.all()
        assert (batch.policy_versions[batch.loss_mask] == 3).all()
        for row, answer in zip(batch.tokens, scores, strict=False):
            ask, key, called, asked, tool, value, said = row.tolist()
            assert (ask, key in grpo.KEYS) == (grpo.ASK, True)
            is_valid = called == grpo.CALL and asked in grpo.KEYS
            assert (tool, value) == (grpo.TOOL, value if is_valid else grpo.PAD)
            assert value in (grpo.VALUES if is_valid else [grpo.PAD])
            if is_valid and asked == key:
                assert answer == (said == value)
        assert [len(group) for group in groups] == [grpo.GROUP] * 20

    asyncio.run(main())


def test_only_groups_whose_returns_differ_are_accepted() -> None:
    buffer = relive.TokenReplayBuffer(100, groups=relive.Groups(2))
    for number, rewards in enumerate([(0.5, 0.5), (0.0, 1.0)], start=1):
        for reward in rewards:
            step = relive.TokenStep(prompt=[1], response=[2], logprobs=[-1.0], policy_version=0, reward=reward)
            buffer.add_episode([step], agent_id="a", group_id=f"a/{number}")
    ((first, second),) = buffer.next_groups_nowait(1, accept=grpo.differ)
    assert (first.group_id, first.total_reward, second.total_reward) == ("a/2", 0.0, 1.0)
