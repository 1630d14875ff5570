"""Joint steps and tokens in a fleet: draws are those of one buffer, and each row is what was written."""

import asyncio
import collections
import pathlib
import pickle
from typing import Any, cast

import numpy as np
import pytest

import relive
from relive import errors
from relive import testing
from relive.fleet import local_test
from relive.fleet import trouble_test

SIZES = (3, 1, 0, 8)
"""Steps, or sequences, in each shard: uneven, and one is empty."""
ALL = [(shard, t) for shard, rows in enumerate(SIZES) for t in range(rows)]


def joint(**settings: Any) -> Any:
    return relive.JointReplayBuffer(1000, agents=["walker", "runner", "flyer"], seed=0, **settings)


def prioritized() -> Any:
    return joint(sampler=relive.PrioritizedSampler(alpha=1.0, beta=0.5, epsilon=0.0))


def sequences() -> Any:
    return relive.JointSequenceReplayBuffer(1000, agents=["walker", "runner"], length=3, pad=True, seed=0)


def joint_fleet(make: Any = joint, **more: Any) -> local_test.LocalFleet:
    """Return a fleet with an episode in each shard; the runner is in shard 3 alone, the flyer nowhere."""
    fleet = local_test.LocalFleet(make, len(SIZES), **more)
    for shard, rows in enumerate(SIZES):
        agents = ["walker", "runner"] if shard == 3 else ["walker"]
        for t in range(rows):
            said = [dict.fromkeys(agents, np.array([shard, at])) for at in (t, t + 1)]
            fleet.buffer(shard).add(said[0], dict.fromkeys(agents, t), dict.fromkeys(agents, 1.0), said[1])
    return fleet


def places(batch: Any) -> list[tuple[int, int]]:
    return [(shard, t) for shard, t in batch.agents["walker"].observation.tolist()]


async def test_joint_steps_are_drawn_as_from_one_buffer(tmp_path: pathlib.Path) -> None:
    fleet = joint_fleet(directory=tmp_path)
    client, counts = fleet.replay(), collections.Counter[tuple[int, int]]()
    for _ in range(60):
        batch = await client.sample(64)
        assert list(batch.agents) == ["walker", "runner"]
        walker, runner = batch.agents["walker"], batch.agents["runner"]
        assert walker.mask.all()
        is_last = walker.observation[:, 0] == 3
        assert (runner.mask == is_last).all()
        assert (runner.observation == np.where(is_last[:, None], walker.observation, 0)).all()
        assert (walker.next_observation == walker.observation + np.array([0, 1])).all()
        assert (batch.start_step == walker.observation[:, 1]).all()
        assert (batch.keys % 512 == walker.observation[:, 0]).all()
        assert (batch.keys // 512 == walker.action).all()
        assert (batch.episodes == walker.observation[:, 0]).all()
        np.testing.assert_allclose(batch.probabilities, 1 / len(ALL))
        assert len(batch.stacked().mask) == 64
        counts.update(places(batch))
    testing.assert_frequencies([counts[place] for place in ALL], [1 / len(ALL)] * len(ALL))


async def test_priorities_of_joint_steps_reach_their_shards(tmp_path: pathlib.Path) -> None:
    fleet = joint_fleet(prioritized, directory=tmp_path)
    client, counts = fleet.replay(), collections.Counter[int]()
    keys = np.array([t * 512 + shard for shard, t in ALL])
    weights = np.arange(1.0, 1 + len(ALL))
    assert await client.update_priorities(keys, weights) == len(ALL)
    one = prioritized()
    for _, t in ALL:
        one.add({"walker": t}, {"walker": t}, {"walker": 1.0}, {"walker": t + 1})
    one.update_priorities(np.arange(len(ALL)), weights)
    for _ in range(60):
        batch = await client.sample(64)
        rows = [ALL.index(place) for place in places(batch)]
        expected = one.read(rows)
        np.testing.assert_allclose(batch.probabilities, expected.probabilities)
        np.testing.assert_allclose(batch.weights, expected.weights)
        counts.update(rows)
    testing.assert_frequencies([counts[row] for row in range(len(ALL))], (weights / weights.sum()).tolist())


async def test_sequences_of_joint_steps_are_drawn_too() -> None:
    batch = await joint_fleet(sequences).replay().sample(200)
    assert batch.mask.shape == (200, 3)
    walker, runner = batch.agents["walker"], batch.agents["runner"]
    assert (walker.mask == batch.mask).all()
    assert (runner.mask == batch.mask & (walker.observation[:, 0, 0] == 3)[:, None]).all()


def test_a_refused_joint_step_costs_no_other_step() -> None:
    async def main() -> None:
        fleet = local_test.LocalFleet(lambda: joint(streams=2), 1)
        client = fleet.replay()

        async def add(writer: Any, t: int, reward: Any = 1.0, *, is_last: bool = False) -> None:
            values = [{"walker": each} for each in (float(t), 0, reward, float(t + 1))]
            await writer.add(*values, truncations={"walker": is_last})

        for batch_steps in (2, 10):  # In pieces, and as a whole.
            writer = client.joint_writer(batch_steps=batch_steps)
            for t in range(3):
                await add(writer, t, "much" if t == 1 else 1.0, is_last=t == 2)
            await add(writer, 5)
            with pytest.raises(
                errors.SchemaError, match="^step 1 of episode 0 of the writer: agent 'walker': reward must be"
            ):
                await writer.close()
            assert (writer.stored, writer.refused) == ((3, 1) if batch_steps == 2 else (2, 2))
            assert not await is_open(writer)
        buffer = fleet.buffer(0)
        buffer.check()
        assert buffer.get_stats().open_episodes == 0
        observed = buffer.read(buffer.eligible_keys()).agents["walker"].observation.tolist()
        assert observed == [0.0, 2.0, 5.0, 0.0, 5.0]

    async def is_open(writer: Any) -> bool:
        with pytest.raises(errors.ClosedError):
            await writer.end_episode()
        return bool(writer._runs)

    local_test.run(main())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (([], {"a": 0}, {"a": 0}, {"a": 0}), "observations must be a mapping by agent"),
        (({}, [], {}, {}), "actions must be a mapping by agent"),
        (({"a": 0}, {}, {}, {}), "actions must be of at least one agent"),
        (({"a": 0}, {"a": 0}, {}, {}), "rewards must have every agent in actions, got none of 'a'"),
    ],
)
async def test_invalid_joint_steps_are_refused_at_once(arguments: Any, text: str) -> None:
    writer = joint_fleet().replay().joint_writer()
    with pytest.raises(errors.ArgumentError, match=text):
        await writer.add(*arguments)
    assert not writer._runs
    assert not await writer.end_episode()
    await writer.close()


async def test_extras_of_agents_arrive() -> None:
    fleet = local_test.LocalFleet(joint, 1)
    async with fleet.replay().joint_writer() as writer:
        said = {"walker": np.array([1.5])}
        await writer.add({"walker": 0.0}, {"walker": 0}, {"walker": 1.0}, {"walker": 1.0}, logits=said)
        said["walker"] += 1.0  # The writer has a copy.
    assert fleet.buffer(0).read([0]).agents["walker"].extras["logits"].tolist() == [[1.5]]


# Tokens.


def tokens(**settings: Any) -> Any:
    extras = {"advantage": relive.Field((), "float32")}
    return relive.TokenReplayBuffer(
        1000, token_extras=extras, seed=0, pad_token_id=99, pad_to_multiple_of=4, **settings
    )


def token_fleet(make: Any = tokens, **more: Any) -> local_test.LocalFleet:
    """Return a fleet whose sequences say their shard, their number and their length."""
    fleet = local_test.LocalFleet(make, len(SIZES), **more)
    for shard, rows in enumerate(SIZES):
        for number in range(rows):
            fleet.buffer(shard).add_episode([token_step(shard, number)], agent_id=f"{shard} {number}")
    return fleet


def token_step(shard: int, number: int) -> relive.TokenStep:
    count = 1 + (shard + number) % 6
    return relive.TokenStep(
        prompt=[shard, number], response=[count] * count, logprobs=[-count] * count, policy_version=number, reward=count
    )


def check_tokens(batch: Any) -> list[tuple[int, int]]:
    """Check that each row is what it says it is, and return what it says."""
    said: list[tuple[int, int]] = [(shard, number) for shard, number in batch.tokens[:, :2].tolist()]
    for row, (shard, number) in enumerate(said):
        count = 1 + (shard + number) % 6
        padding = batch.tokens.shape[1] - 2 - count
        assert batch.tokens[row].tolist() == [shard, number, *[count] * count, *[99] * padding]
        assert batch.logprobs[row].tolist() == [0, 0, *[-count] * count, *[0] * padding]
        assert batch.policy_versions[row].tolist() == [-1, -1, *[number] * count, *[-1] * padding]
        assert (batch.lengths[row], batch.returns[row], batch.is_exact[row]) == (2 + count, count, True)
        assert (batch.agent_ids[row], batch.group_ids[row]) == (f"{shard} {number}", None)
        assert batch.keys[row] == number * 512 + shard
    longest = max(batch.lengths.tolist())
    assert batch.tokens.shape[1] == -(-longest // 4) * 4
    return said


async def test_tokens_are_drawn_as_from_one_buffer(tmp_path: pathlib.Path) -> None:
    client, counts = token_fleet(directory=tmp_path).replay(), collections.Counter[tuple[int, int]]()
    for _ in range(60):
        counts.update(check_tokens(await client.sample(32)))
    testing.assert_frequencies([counts[place] for place in ALL], [1 / len(ALL)] * len(ALL))


async def test_tokens_are_drawn_while_they_are_fresh(tmp_path: pathlib.Path) -> None:
    client = token_fleet(directory=tmp_path).replay()
    with pytest.raises(errors.ArgumentError, match="call set_policy_version first"):
        await client.sample(4, max_lag=1)
    with pytest.raises(errors.ArgumentError, match="max_lag must be"):
        await client.sample(4, max_lag=-1)
    with pytest.raises(TypeError):
        await client.sample(4, n=1)
    await client.set_policy_version(3)
    fresh = [place for place in ALL if place[1] >= 2]
    counts = collections.Counter[tuple[int, int]]()
    for _ in range(60):
        counts.update(check_tokens(await client.sample(32, max_lag=1)))
    testing.assert_frequencies([counts[place] for place in fresh], [1 / len(fresh)] * len(fresh))
    assert set(counts) == set(fresh)


def rated_tokens(**settings: Any) -> Any:
    defaults: dict[str, Any] = {"alpha": 1.0, "beta": 0.5, "epsilon": 0.0}
    return tokens(sampler=relive.PrioritizedSampler(**(defaults | settings)))


@pytest.mark.parametrize("max_lag", [None, 2])
async def test_priorities_of_tokens_are_those_of_one_buffer(tmp_path: pathlib.Path, max_lag: int | None) -> None:
    client, counts = token_fleet(rated_tokens, directory=tmp_path).replay(), collections.Counter[int]()
    await client.set_policy_version(4)
    drawable = [place for place in ALL if max_lag is None or place[1] >= 4 - max_lag]
    keys, weights = np.array([t * 512 + shard for shard, t in drawable]), np.arange(1.0, 1 + len(drawable))
    assert await client.update_priorities(keys, weights) == len(drawable)
    assert await client.update_priorities([99 * 512], [1.0]) == 0
    for _ in range(60):
        batch = await client.sample(64, max_lag=max_lag)
        rows = [drawable.index(place) for place in check_tokens(batch)]
        np.testing.assert_allclose(batch.probabilities, weights[rows] / weights.sum())
        np.testing.assert_allclose(batch.weights, (weights[rows] / weights[rows].min()) ** -0.5)
        counts.update(rows)
    testing.assert_frequencies([counts[row] for row in range(len(drawable))], (weights / weights.sum()).tolist())
    read = await client.read(keys)
    assert np.isnan(read.probabilities).all()
    assert (await client.sample(9, beta=0.0)).weights.tolist() == [1.0] * 9


async def test_weights_by_no_largest_and_a_lag_are_refused(tmp_path: pathlib.Path) -> None:
    fleet = token_fleet(lambda: rated_tokens(weight_normalization="none"), directory=tmp_path)
    client = fleet.replay()
    await client.set_policy_version(4)
    assert len(await client.sample(4)) == 4
    with pytest.raises(errors.ArgumentError, match="^max_lag needs weight_normalization"):
        await client.sample(4, max_lag=1)
    with pytest.raises(errors.ArgumentError, match="^beta must be left out without priorities, got 0.5$"):
        await token_fleet(directory=tmp_path / "other").replay().sample(4, beta=0.5)


async def test_sequences_are_read_and_updated_by_key(tmp_path: pathlib.Path) -> None:
    extras = {"temperature": relive.Field((), "float32")}
    fleet = token_fleet(lambda: tokens(sequence_extras=extras), directory=tmp_path)
    client = fleet.replay()
    rng = np.random.default_rng(0)
    wanted = [ALL[place] for place in rng.integers(len(ALL), size=30)]
    keys = [number * 512 + shard for shard, number in wanted]
    assert check_tokens(await client.read(keys)) == wanted
    gone = 100 * 512
    values = [[float(key)] * 8 for key in [*keys, gone]]
    assert await client.update([*keys, gone], advantage=values, temperature=[*keys, gone]) == 30
    batch = await client.read(keys)
    assert batch.extras["temperature"].tolist() == keys
    expected = np.where(batch.attention_mask, batch.keys[:, None], 0)
    assert (batch.extras["advantage"] == expected).all()
    with pytest.raises(errors.UnknownKeyError, match="key 51200 not found"):
        await client.read([gone])
    with pytest.raises(errors.ArgumentError, match="keys must have at least 1 key, got 0"):
        await client.read([])
    with pytest.raises(errors.SchemaError, match="temperature must be one for each of 2 keys, got 1"):
        await client.update(keys[:2], temperature=[1.0])
    fleet.kill(0)
    with pytest.raises(errors.ShardLostError):
        await client.read([0])
    assert await client.update([0], temperature=[1.0]) == 0
    with pytest.raises(errors.ArgumentError, match="read needs buffers of tokens, got JointReplayBuffer"):
        await joint_fleet().replay().read([0])


async def test_keys_of_an_emptied_shard_are_dropped() -> None:
    fleet = local_test.LocalFleet(tokens, 1)
    client = fleet.replay()
    async with client.tokens_writer() as writer:
        await writer.add_episode([token_step(0, 1)], agent_id="0 1")
        await writer.flush()
        keys = (await client.sample(1)).keys
        (facts,) = await client.next_episodes(1)
        assert facts.keys.tolist() == keys.tolist()
        fleet.kill(0)
        fleet.start(0)
        await writer.add_episode([token_step(0, 2)], agent_id="0 2")
        await writer.flush()
        assert (await client.sample(1)).keys.tolist() != keys.tolist()
        with pytest.raises(errors.UnknownKeyError):
            await client.read(keys)


async def test_a_writer_of_tokens_refuses_the_same_as_the_buffer() -> None:
    fleet = token_fleet()
    writer = fleet.replay().tokens_writer()
    step = token_step(0, 0)
    wrong: list[tuple[str, Any, Any]] = [
        ("steps must have at least 1 step, got 0", [], {"agent_id": "a"}),
        ("step 0 must be an instance of TokenStep, got 1", [1], {"agent_id": "a"}),
        ("agent_id must be a string, got 1", [step], {"agent_id": 1}),
        ("group_id must be a string, got 1", [step], {"agent_id": "a", "group_id": 1}),
        ("status must be .* got 'DONE'", [step], {"agent_id": "a", "status": "DONE"}),
    ]
    for text, steps, options in wrong:
        with pytest.raises(errors.ArgumentError, match=text):
            await writer.add_episode(steps, **options)
    # What the writer cannot know, a later call says.
    await writer.add_episode([step], agent_id="a", height=1.0)
    with pytest.raises(errors.SchemaError, match="unknown extra 'height'"):
        await writer.flush()
    assert (writer.stored, writer.refused, writer.lost) == (0, 1, 0)
    await writer.close()
    with pytest.raises(errors.ClosedError, match="writer is closed"):
        await writer.add_episode([step], agent_id="a")


async def test_metadata_comes_back_with_tokens_of_a_fleet() -> None:
    client = local_test.LocalFleet(tokens, 2).replay()
    async with client.tokens_writer() as writer:
        for number in range(6):
            known: dict[str, Any] = {"agent": f"0 {number}", "image": np.full((1, number), number)}
            await writer.add_episode([token_step(0, number)], agent_id=f"0 {number}", metadata=known)
            known["image"][:] = 99
        with pytest.raises(errors.ArgumentTypeError, match="metadata must be a mapping from strings to values, got 1"):
            await writer.add_episode([token_step(0, 1)], agent_id="a", metadata=cast(Any, 1))
    delivered = {facts.agent_id: facts.metadata for facts in await client.next_episodes(6)}
    batch = await client.sample(50)
    for agent_id, known in [*delivered.items(), *zip(batch.agent_ids, batch.metadata, strict=True)]:
        number = int(agent_id.split()[1])
        assert (known["agent"], known["image"].tolist()) == (agent_id, [[number] * number])


async def test_branches_in_a_fleet_begin_like_one_of_their_shard() -> None:
    fleet = local_test.LocalFleet(lambda: relive.TokenReplayBuffer(5_000, groups=relive.Groups(4), seed=0), 2)
    client = fleet.replay()
    async with client.tokens_writer() as writer:
        for group in range(6):
            for branch in range(4):
                step = relive.TokenStep(
                    prompt=[group] * 500, response=[branch], logprobs=[-1.0], policy_version=0, reward=group
                )
                await writer.add_episode([step], agent_id="a", group_id=f"{group}")
    assert sum(len(fleet.buffer(shard)) for shard in range(2)) == 6 * (500 + 4)
    by_group: dict[float, set[int]] = {}
    drawn = await client.sample(200)
    for batch in (drawn, await client.read(drawn.keys)):
        for row, prefix in enumerate(batch.prefix_ids.tolist()):
            by_group.setdefault(float(batch.returns[row]), set()).add(prefix)
            assert batch.prefix_lengths[row] == (501 if prefix == batch.keys[row] else 500)
    assert sorted(by_group) == list(range(6))
    assert all(len(prefixes) == 1 for prefixes in by_group.values())
    assert {*drawn.keys.tolist()} >= set().union(*by_group.values())


async def test_a_conversation_is_sent_with_each_token_once() -> None:
    fleet = local_test.LocalFleet(lambda: relive.TokenReplayBuffer(20_000, logprobs_dtype=np.float16), 1)
    prompt, steps = [0], []
    for turn in range(40):
        response = [turn] * 30
        steps.append(relive.TokenStep(prompt=prompt, response=response, logprobs=[-0.1] * 30, policy_version=turn))
        prompt = [*prompt, *response, *[turn + 100] * 30]
    client = fleet.replay()
    async with client.tokens_writer() as writer:
        await writer.add_episode(steps, agent_id="a")
    sent = [arguments for _, method, arguments in fleet.calls if method == "insert"]
    own = relive.TokenReplayBuffer(20_000, logprobs_dtype=np.float16)
    expected = own.read(own.add_episode(steps, agent_id="a"))
    batch = await client.sample(1)
    assert batch.tokens.tolist() == expected.tokens.tolist()
    assert batch.logprobs.tobytes() == expected.logprobs.tobytes()
    assert len(pickle.dumps(sent)) < 40 * len(own)  # Of a step: its 25 bytes a token, and log-probabilities.


async def test_episodes_in_parts_have_the_keys_of_their_sequences() -> None:
    fleet = local_test.LocalFleet(trouble_test.tokens, 3)
    client = fleet.replay()
    writers = [client.tokens_writer() for _ in range(3)]
    for number, writer in enumerate(writers):
        await writer.add_episode(trouble_test.token_steps(number, 5, 7), agent_id="a", number=number)
        await writer.flush()
    for facts in await client.next_episodes(3):
        assert len(facts.keys) == 3
        batch = await client.read(facts.keys)
        assert batch.episode_ids == [facts.episode_id] * 3
        assert batch.steps[:, 0].tolist() == [0, 2, 5]
    await asyncio.gather(*[writer.close() for writer in writers])
