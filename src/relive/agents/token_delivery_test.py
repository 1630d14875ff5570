"""Deliveries of token episodes, with groups, admission, rejections, evictions, a journal and crashes.

The naive twin is that of the hand-outs of an episode buffer: token episodes start and end in one call.
"""

import asyncio
import random
import threading
from typing import Any, ClassVar

import numpy as np
import pytest

import relive
from relive import errors
from relive.agents import handing_out_machine_test
from relive.agents import token_episode_test
from relive.testing import walks

step_of = token_episode_test.step_of


def add(buffer: relive.TokenReplayBuffer, number: int = 0, **options: Any) -> str:
    """Add an episode of one step, and return its id."""
    described: dict[str, Any] = {"agent_id": "a", **options}
    keys = buffer.add_episode([step_of([number], [1, 2], reward=float(number))], **described)
    return buffer.read(keys).episode_ids[0]


def test_each_episode_is_delivered_once_with_its_facts() -> None:
    buffer = relive.TokenReplayBuffer(100, seed=0)
    steps = [step_of([1], [2], reward=1.5, policy_version=4), step_of([3], [4, 5], reward=-1.0, policy_version=3)]
    keys = buffer.add_episode(steps, agent_id="a", status="TRUNCATED")
    add(buffer, 7)
    first, second = buffer.next_episodes_nowait(2)
    assert isinstance(first, relive.EpisodeFacts)
    assert (first.agent_id, first.group_id, first.status, first.policy_version) == ("a", None, "TRUNCATED", 3)
    assert (first.num_steps, first.num_tokens, first.total_reward, first.keys.tolist()) == (2, 5, 0.5, keys.tolist())
    assert buffer.read(first.keys).episode_ids == [first.episode_id] * 2
    assert (second.rewards, second.policy_version, second.num_tokens) == ((7.0,), 0, 3)
    with pytest.raises(errors.NotReadyError, match="^next_episodes_nowait found 0 of 1 episodes"):
        buffer.next_episodes_nowait(1)
    with pytest.raises(AttributeError):
        first.status = "COMPLETED"  # type: ignore[misc]


def test_learners_and_actors_wait_until_the_buffer_is_closed() -> None:
    async def main() -> tuple[int, ...]:
        admission = relive.Admission(max_lag=1, episodes_per_version=4)
        buffer = relive.TokenReplayBuffer(300, groups=relive.Groups(2), admission=admission, seed=0)
        buffer.set_policy_version(0)
        counts: list[int] = []

        async def actor(number: int) -> None:
            for task in range(1000):
                ticket = await buffer.admit(2)
                for _ in range(2):
                    await asyncio.sleep(0)
                    version = buffer.policy_version or 0
                    step = step_of([number], [task], policy_version=version, reward=float(task % 3))
                    buffer.add_episode([step], agent_id="a", group_id=f"{number} {task}", ticket=ticket)

        async def learner() -> None:
            for version in range(1, 30):
                groups = await buffer.next_groups(2, accept=lambda found: found[0].total_reward > 0)
                keys = np.concatenate([each.keys for group in groups for each in group])
                lags = [version - 1 - (each.policy_version or 0) for group in groups for each in group]
                assert max(lags) <= 1
                counts.append(len(buffer.read(keys)))
                buffer.update(keys)
                buffer.set_policy_version(version)

        actors = [asyncio.create_task(actor(number)) for number in range(5)]
        await asyncio.wait_for(learner(), 60)
        waits = asyncio.create_task(buffer.next_groups(2, accept=lambda found: False))
        await asyncio.sleep(0)
        buffer.close()
        tasks: list[asyncio.Task[Any]] = [*actors, waits]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in results} == {errors.ClosedError}
        with pytest.raises(errors.ClosedError):
            buffer.add_episode([step_of([1], [2])], agent_id="a")
        buffer.sample(1)
        buffer.check()
        return tuple(counts)

    assert asyncio.run(main()) == (4,) * 29


def test_threads_and_tasks_share_a_buffer_of_tokens() -> None:
    shell: Any = relive.ThreadSafeReplayBuffer(relive.TokenReplayBuffer(1000, groups=relive.Groups(2)), timeout=20.0)
    found: list[Any] = []
    learner = threading.Thread(target=lambda: found.append((shell.sample(3), shell.next_groups(1))))
    learner.start()
    for number in range(2):
        shell.add_episode([step_of([number], [1])], agent_id="a", group_id="g")
    learner.join()
    ((batch, (group,)),) = found
    assert (len(batch), [each.first_key for each in group]) == (3, [0, 1])

    async def main() -> Any:
        wrapped = relive.AsyncReplayBuffer(relive.TokenReplayBuffer(1000, seed=0))
        waits = asyncio.create_task(wrapped.sample(3))
        await asyncio.sleep(0)
        await wrapped.add_episode([step_of([1], [2])], agent_id="a")
        return await waits

    assert asyncio.run(main()).tokens.tolist() == [[1, 2]] * 3
    with pytest.raises(errors.ArgumentError, match="^batch_size must be at least 1, got 0$"):
        relive.TokenReplayBuffer(10).can_sample(0)


class TokenDeliveryMachine(handing_out_machine_test.HandingOutMachine):
    """A token buffer whose process crashes now and then, and the twin."""

    least: ClassVar = {"evicted": 10, "rejected": 20, "aborted": 20, "put back": 10, "waits again after a restart": 5}

    @walks.initialize(
        size=walks.sampled_from([1, 2, 3, 3]),
        admission=handing_out_machine_test.some_admission,
        max_tokens=walks.sampled_from([12, 30, 1000]),
        has_groups=walks.BOOLEANS,
        redeliver=walks.BOOLEANS,
    )
    def begin(  # type: ignore[override]
        self,
        size: int,
        admission: relive.Admission | None,
        max_tokens: int,
        has_groups: bool,
        redeliver: bool,
    ) -> None:
        size = size if admission is None else min(size, admission._most_at_once)
        self.start_twins(relive.Groups(size) if has_groups else None, admission)
        self.max_episodes = None
        self.tokens: dict[int, list[int]] = {}
        self.weights: dict[int, float] = {}
        extras = {"weight": relive.Field((), float)}
        settings: dict[str, Any] = {"groups": self.naive.rule, "redeliver": redeliver, "sequence_extras": extras}
        buffer = relive.TokenReplayBuffer(max_tokens, admission=admission, seed=0, **settings)
        self.use(buffer, has_journal=True)

    def start_one(self, agent: str, group: str | None, version: int | None, number: int) -> None:
        naive = self.naive
        ticket = self.tickets[number % len(self.tickets)] if self.tickets else None
        can_start = naive.can_start(group) and not (ticket is None and naive.admission is not None)
        count, status = 1 + number % 2, ["COMPLETED", "TRUNCATED", "ABORTED", "COMPLETED"][number % 4]
        prompt: list[int] = []
        steps = []
        for t in range(count):
            has_version = version is not None
            steps.append(
                step_of([*prompt, 8], [number, t], reward=0.1, policy_version=version or 0, loss_mask=[has_version] * 2)
            )
            prompt = [*prompt, 8, number, t] if number % 3 else [9]
        try:
            keys = self.buffer.add_episode(
                steps, agent_id=agent, group_id=group, status=status, ticket=ticket, weight=number
            )
        except relive.ArgumentError:
            assert not can_start
            return
        assert can_start
        naive.admitted += 1
        self.settle()
        if ticket is not None:
            naive.reserved -= 1
            if not ticket.left:
                self.tickets.remove(ticket)
        batch = self.buffer.read(keys)
        record = handing_out_machine_test.Record(batch.episode_ids[0], agent, group, version, count, count, status)
        self.records[record.episode_id] = record
        for key, length, row in zip(keys.tolist(), batch.lengths.tolist(), batch.tokens.tolist(), strict=True):
            self.tokens[key], self.weights[key] = row[:length], float(number)
        naive.started(record)
        naive.ended(record)
        if ticket is not None and record.why_not is not None:
            naive.reserved += 1  # Its place is its ticket's again.

    def end(self, ends: Any) -> None:
        """Nothing: an episode is stored when it has ended."""

    @walks.rule(data=walks.generator)
    def update(self, data: random.Random) -> None:
        keys = [data.randint(-1, len(self.tokens)) for _ in range(data.randint(0, 4))]
        weights = [data.randint(0, 99) for _ in keys]
        stored = self.buffer._store.owners
        assert self.buffer.update(keys, weight=weights) == sum(key in stored for key in keys)
        self.weights.update((key, float(weight)) for key, weight in zip(keys, weights, strict=True) if key in stored)

    @walks.invariant(every=10)
    def the_tokens_are_alike(self) -> None:
        keys = list(self.buffer._store.owners)
        stored = [record for record in self.naive.records if record.is_stored]
        assert [each.episode_id for each in self.buffer._store] == [record.episode_id for record in stored]
        if keys:
            batch = self.buffer.read(keys)
            rows = zip(keys, batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
            assert all(row[:length] == self.tokens[key] for key, row, length in rows)
            assert batch.extras["weight"].tolist() == [self.weights[key] for key in keys]


TestTokenDelivery = walks.tests_of(TokenDeliveryMachine)
