"""An admission for a whole fleet: never more episodes ahead of the learner than it allows, and places come back."""

import asyncio
import contextlib
import gc
import pathlib
import random
from typing import Any

import pytest

import relive
from relive import errors
from relive.fleet import consumption_test
from relive.fleet import episode_writers
from relive.fleet import local_test
from relive.fleet import replay
from relive.fleet import tickets

SIZE = consumption_test.SIZE


def fleet_of(make: Any = consumption_test.singles, shards: int = 2, **more: Any) -> local_test.LocalFleet:
    return local_test.LocalFleet(make(), shards, **more)


async def play(writer: Any, ticket: Any, number: int = 0, *, ends: bool = True) -> None:
    async with writer.episode("agent", ticket=ticket) as episode:
        await episode.append((number, 0), 0, 1.0)
        if ends:
            await episode.end("over")


async def is_held(client: replay.Replay[Any], count: int = 1, seconds: float = 5.0) -> bool:
    """Return whether no ticket comes in so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            (await client.admit(count)).release()
    except TimeoutError:
        return True
    await asyncio.sleep(0.1)
    return False


class Model:
    """How many episodes were admitted, and which were trained on at which version."""

    def __init__(self, rule: relive.Admission) -> None:
        self.rule, self.admitted = rule, 0
        self.version, self.trained = 0, dict[int, int]()

    def admit(self, count: int) -> None:
        self.admitted += count
        earlier = SIZE * sum([version < self.version for version in self.trained.values()])
        assert self.admitted - earlier <= self.rule._most_admitted(0)


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 40))])
async def test_admission_holds_whatever_dies_or_hangs(seed: int, tmp_path: pathlib.Path) -> None:
    rng, rule = random.Random(seed), relive.Admission(max_lag=seed % 3, episodes_per_version=2 * SIZE)
    model, num_groups = Model(rule), 40
    fleet = local_test.LocalFleet(
        consumption_test.grouped(redeliver=True),
        3,
        directory=tmp_path,
        admission=rule,
        seed=seed,
        lease=5.0,
        timeout=0.5,
        recovery=600.0,
    )
    groups = iter(range(num_groups))

    async def act(client: replay.Replay[Any]) -> None:
        async with client.episodes_writer() as writer:
            for group in groups:
                ticket = await client.admit(SIZE)
                model.admit(SIZE)
                for member in range(SIZE):
                    while rng.random() < 0.1:
                        await attempt(writer, group, member, ticket, ends=False)
                    await attempt(writer, group, member, ticket, ends=True)
                ticket.release()

    async def attempt(writer: Any, group: int, member: int, ticket: Any, *, ends: bool) -> None:
        async with writer.episode("agent", group_id=f"group-{group}", ticket=ticket) as episode:
            for t in range(1 + (group + member) % 4):
                await episode.append((group, member, 0, t), t, 1.0)
                await asyncio.sleep(rng.random() * 0.02)
            if ends:
                await episode.end("over")

    async def learn(client: replay.Replay[Any]) -> None:
        while len(model.trained) < num_groups:
            await client.set_policy_version(model.version)
            for group in await client.next_groups(min(2, num_groups - len(model.trained))):
                model.trained.setdefault(consumption_test.check_group(group), model.version)
            await client.ack(model.version)
            model.version += 1

    trouble = local_test.Trouble(fleet, rng)
    async with trouble.around():
        await asyncio.gather(learn(fleet.replay()), *[act(fleet.replay()) for _ in range(3)])
    assert trouble.kills > 1


@pytest.mark.parametrize("make", [consumption_test.singles, consumption_test.tokens])
async def test_tickets_are_shared_by_all_clients_of_a_fleet(make: Any) -> None:
    fleet = fleet_of(make, admission=relive.Admission(max_lag=1, episodes_per_version=2))
    client, other = fleet.replay(), fleet.replay()
    is_tokens = make is consumption_test.tokens
    writers: list[Any] = [each.tokens_writer() if is_tokens else each.episodes_writer() for each in (client, other)]

    async def write(writer: Any, ticket: Any) -> None:
        if is_tokens:
            step = relive.TokenStep(prompt=[1], response=[2], logprobs=[0.0], policy_version=0)
            await writer.add_episode([step], agent_id="agent", ticket=ticket)
        else:
            await play(writer, ticket)

    await client.set_policy_version(7)
    ticket = await client.admit(3)
    assert not await is_held(other)
    assert await is_held(other, 2)
    for _ in range(3):
        await write(writers[0], ticket)
    with pytest.raises(errors.ArgumentError, match="ticket must admit another episode, got one that is used up"):
        await write(writers[0], ticket)
    await write(writers[1], await other.admit())
    assert await is_held(client)
    assert len(await client.next_episodes(2)) == 2
    assert await is_held(client)
    await client.set_policy_version(8)
    assert not await is_held(client, 2)
    assert await is_held(client, 3)
    # What is rejected gives its place back, whether it waited or not.
    (episode,) = await client.next_episodes(1)
    assert await is_held(client, 3)
    assert await client.reject([episode.episode_id]) == 1
    assert not await is_held(client, 3)
    for writer in writers:
        await writer.close()


async def test_deliveries_of_a_dead_shard_count_for_their_version(tmp_path: pathlib.Path) -> None:
    fleet = fleet_of(shards=1, directory=tmp_path, admission=relive.Admission(max_lag=0, episodes_per_version=2))
    client = fleet.replay()
    await client.set_policy_version(0)
    async with client.episodes_writer() as writer:
        with await client.admit(2) as ticket:
            await play(writer, ticket, 1)
            await play(writer, ticket, 2)
        await writer.flush()
        await client.next_episodes(2)
        assert await is_held(client)
        fleet.kill(0)
        fleet.start(0)
        assert await is_held(client)
        await client.set_policy_version(1)
        assert not await is_held(client, 2)


async def test_episodes_put_back_do_not_count_as_delivered() -> None:
    fleet = fleet_of(shards=1, admission=relive.Admission(max_lag=0, episodes_per_version=3))
    client = fleet.replay()
    async with client.episodes_writer() as writer:
        ticket = await client.admit(2)
        await play(writer, ticket, 1)
        await play(writer, ticket, 2)
        await writer.flush()

        async def answered(shard: int, method: str) -> None:
            if method == "take":
                await asyncio.sleep(1.0)

        fleet.answered = answered
        await local_test.never(client.next_episodes(2), 0.5)
        await asyncio.sleep(2.0)
        fleet.answered = None
        assert not await is_held(client, 1)
        assert await is_held(client, 2)
        (episode,) = await client.next_episodes(1)
        assert await is_held(client, 2)
        waiting = {each.episode_id for each in local_test.episodes_in(fleet.buffer(0))} - {episode.episode_id}
        assert await client.reject(waiting) == 1
        assert not await is_held(client, 2)
        assert await is_held(client, 3)


async def test_concurrent_episodes_are_limited_by_admission() -> None:
    fleet = fleet_of(admission=relive.Admission(max_lag=9, episodes_per_version=9, max_running=2))
    client = fleet.replay()
    with pytest.raises(errors.ArgumentError, match="count must be at most 2 with Admission"):
        await client.admit(3)
    async with client.episodes_writer(batch_steps=1) as writer:
        ticket = await client.admit(2)
        async with writer.episode("agent", ticket=ticket) as episode:
            await episode.append(0, 0, 1.0)
            await writer.flush()
            assert await is_held(client)
            ticket.release()
            assert not await is_held(client)
            await episode.end(1)
        await writer.flush()
        assert not await is_held(client, 2)


async def test_tickets_of_an_actor_that_died_are_given_back() -> None:
    fleet = fleet_of(admission=relive.Admission(max_lag=0, episodes_per_version=2), lease=10.0)
    client, other = fleet.replay(), fleet.replay()
    ticket = await client.admit(2)
    assert await is_held(other, seconds=100.0)  # It is renewed.
    del ticket
    gc.collect()
    assert await is_held(other, seconds=25.0)
    assert not await is_held(other, seconds=20.0)
    assert client._shards._only["tickets"].done()


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_lost_ticket_keeps_the_places_of_episodes_that_run(left: int) -> None:
    async def main() -> None:
        fleet = fleet_of(admission=relive.Admission(max_lag=0, episodes_per_version=3), lease=10.0)
        client, other = fleet.replay(), fleet.replay()
        async with client.episodes_writer() as writer, contextlib.AsyncExitStack() as stack:
            ticket = await client.admit(3)
            for _ in range(3 - left):
                await stack.enter_async_context(writer.episode("agent", ticket=ticket))
            assert await is_held(other, seconds=100.0)
            del ticket
            gc.collect()
            assert left == 0 or not await is_held(other, left)
            assert await is_held(other, left + 1, seconds=100.0)

    local_test.run(main())


def test_a_ticket_can_be_released_when_its_event_loop_is_gone() -> None:
    async def main() -> tickets.FleetTicket:
        return await fleet_of(admission=relive.Admission(max_lag=0, episodes_per_version=2)).replay().admit()

    ticket = local_test.run(main())
    ticket.release()
    assert ticket.left == 0


async def test_a_long_episode_keeps_its_place() -> None:
    fleet = fleet_of(
        consumption_test.grouped, admission=relive.Admission(max_lag=0, episodes_per_version=1), lease=10.0
    )
    client, other = fleet.replay(), fleet.replay()
    async with client.episodes_writer() as writer:
        async with writer.episode("agent", group_id="group-0", ticket=await client.admit()) as episode:
            await episode.append(0, 0, 1.0)
            assert await is_held(other, seconds=200.0)
            await episode.end(1)
        assert await is_held(other, seconds=200.0)


async def test_a_new_coordinator_learns_of_the_tickets_that_were_given() -> None:
    fleet = fleet_of(admission=relive.Admission(max_lag=0, episodes_per_version=3), lease=10.0)
    client, other = fleet.replay(), fleet.replay()
    async with client.episodes_writer() as writer:
        ticket = await client.admit(3)
        await play(writer, ticket)
        await writer.flush()
        await asyncio.sleep(1.0)
        fleet.kill_coordinator()
        fleet.start_coordinator()
        assert await is_held(other, seconds=50.0)
        ticket.release()
        await asyncio.sleep(0.1)
        assert not await is_held(other, 2)
        assert await is_held(other, 3)
        await client._transport.coordinator("admission", "renew", {b"unknown": 0})


async def test_a_cancelled_call_takes_no_ticket() -> None:
    fleet = fleet_of(admission=relive.Admission(max_lag=0, episodes_per_version=1), seed=0)
    client = fleet.replay()
    for steps in range(60):
        call = asyncio.create_task(client.admit())
        for _ in range(steps):
            await asyncio.sleep(0.001)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        if not call.cancelled():
            call.result().release()
        await asyncio.sleep(1.0)
    assert not await is_held(client)


async def test_tickets_of_the_same_fleet_are_required() -> None:
    rule = relive.Admission(max_lag=0, episodes_per_version=9)
    client = fleet_of(admission=rule).replay()
    async with client.episodes_writer() as writer:
        with pytest.raises(errors.ArgumentError, match="episode needs a ticket with Admission.*await replay.admit"):
            await play(writer, None)
        with pytest.raises(errors.ArgumentTypeError, match="ticket must be an instance of FleetTicket, got 1"):
            await play(writer, 1)
        with pytest.raises(errors.ArgumentError, match="count must be at least 1, got 0"):
            await client.admit(0)
        assert not writer._episodes
    columns = local_test.LocalFleet(lambda: relive.RingReplayBuffer(9), 1).replay()
    with pytest.raises(errors.ArgumentError, match="admit needs buffers of episodes or tokens, got Ring"):
        await columns.admit()


async def test_a_fleet_without_admission_always_gives_tickets() -> None:
    client = fleet_of().replay()
    async with client.episodes_writer() as writer:
        with await client.admit(1000) as ticket:
            await play(writer, ticket)
            assert ticket.left == 999
        assert ticket.left == 0
        await play(writer, None)
    assert len(await client.next_episodes(2)) == 2


async def test_admission_waits_only_for_shards_that_may_return() -> None:
    fleet = fleet_of(admission=relive.Admission(max_lag=0, episodes_per_version=2))
    client = fleet.replay()
    assert not await is_held(client)
    fleet.kill(1)
    assert await is_held(client)
    fleet.start(1)
    assert not await is_held(client)
    fleet.end(1)
    assert not await is_held(client)


async def test_shards_forget_places_of_tickets_in_time() -> None:
    rule = relive.Admission(max_lag=0, episodes_per_version=2)
    fleet = fleet_of(shards=1, admission=rule, lease=10.0, recovery=20.0)
    client = fleet.replay()
    async with client.episodes_writer() as writer:
        await play(writer, await client.admit())
    shard: Any = fleet.shard(0)
    names = list(shard._queue._uses)
    assert shard.places(names).uses == {names[0]: {1: False}}
    await asyncio.sleep(55.0)
    assert not shard.places(names).uses


async def test_a_cancelled_waiting_call_takes_no_places() -> None:
    fleet = local_test.LocalFleet(consumption_test.singles(), 1, admission=relive.Admission(0, 4))
    first, second = fleet.replay(), fleet.replay()
    await first.set_policy_version(0)
    ticket = await second.admit(4)
    await local_test.never(first.admit(4), 0.5)
    await local_test.settle(0.1)
    ticket.release()
    assert not await is_held(second, 4)


@pytest.mark.parametrize("is_rejected", [True, False])
async def test_returned_deliveries_of_older_versions_free_no_places(is_rejected: bool) -> None:
    lag = 0 if is_rejected else 1
    fleet = local_test.LocalFleet(consumption_test.singles(), 1, admission=relive.Admission(lag, 4))
    first, second = fleet.replay(), fleet.replay()
    await first.set_policy_version(0)
    async with first.episodes_writer() as writer:
        ticket = await first.admit(4)
        for number in range(4):
            await play(writer, ticket, number)
        await writer.flush()

        async def answered(shard: int, method: str) -> None:
            if method == "take":
                await asyncio.sleep(4.0)

        fleet.answered = None if is_rejected else answered
        taking = asyncio.create_task(second.next_episodes(2))
        await asyncio.sleep(0.1)
        fleet.answered = None
        old = await first.next_episodes(2)
        await first.set_policy_version(1)
        ticket = await first.admit(4)
        for number in range(4, 8):
            await play(writer, ticket, number)
        await writer.flush()
        assert len(await first.next_episodes(4)) == 4
        if is_rejected:
            assert await first.reject([each.episode_id for each in old]) == 2
        else:
            taking.cancel()
        await local_test.settle(0.1)
        assert fleet.shard(0).places([]).delivered == 4
        assert await is_held(first, 1 if is_rejected else 3)


# Attempts that fail and are made again.


@pytest.mark.parametrize("way", ["aborted", "left", "empty"])
@pytest.mark.parametrize(("make", "batch_steps"), [(consumption_test.singles, 1), (consumption_test.grouped, 100)])
def test_a_failed_attempt_in_a_fleet_returns_its_place(make: Any, batch_steps: int, way: str) -> None:
    async def fail(writer: Any, ticket: Any) -> None:
        async with writer.episode("agent", group_id="g", ticket=ticket) as episode:
            if way != "empty":
                await episode.append(0, 0, 1.0)
            await asyncio.sleep(1.0)
            if way != "left":
                await episode.end(1, "ABORTED" if way == "aborted" else "COMPLETED")

    async def main() -> None:
        fleet = fleet_of(make, admission=relive.Admission(max_lag=0, episodes_per_version=SIZE), seed=0)
        client, other = fleet.replay(), fleet.replay()
        await client.set_policy_version(0)
        async with client.episodes_writer(batch_steps=batch_steps) as writer:
            with await client.admit(SIZE) as ticket:
                for number in range(SIZE):
                    for _ in range(3):
                        await fail(writer, ticket)
                        assert ticket.left == SIZE - number
                        assert await is_held(other, 1, seconds=2.0)
                    async with writer.episode("agent", group_id="g", ticket=ticket) as episode:
                        await episode.append(number, 0, 1.0)
                        await episode.end(1)
                    await writer.flush()
                    assert await is_held(other, 1, seconds=2.0)
                with pytest.raises(errors.ArgumentError, match="got one that is used up"):
                    await fail(writer, ticket)
            assert (
                len(
                    await client.next_episodes(SIZE)
                    if make is consumption_test.singles
                    else (await client.next_groups(1))[0]
                )
                == SIZE
            )

    local_test.run(main())


@pytest.mark.parametrize("way", ["with", "release", "lost"])
@pytest.mark.parametrize("make", [consumption_test.singles, consumption_test.grouped])
async def test_a_closed_ticket_of_a_fleet_takes_no_place_back(make: Any, way: str) -> None:
    fleet = fleet_of(make, admission=relive.Admission(max_lag=0, episodes_per_version=1))
    client, other = fleet.replay(), fleet.replay()
    async with client.episodes_writer(batch_steps=1) as writer:
        ticket: Any = await client.admit()
        block = writer.episode("agent", group_id="g", ticket=ticket)
        episode = await block.__aenter__()
        await episode.append(0, 0, 1.0)
        await asyncio.sleep(1.0)
        if way == "with":
            with ticket:
                pass
        elif way == "release":
            ticket.release()
        if way == "lost":
            del ticket
        else:
            assert ticket.left == 0
        assert await is_held(other)
        await block.__aexit__(None, None, None)
        assert not await is_held(other)


async def test_aborted_episodes_of_tokens_return_their_place() -> None:
    fleet = fleet_of(consumption_test.tokens, admission=relive.Admission(max_lag=0, episodes_per_version=1))
    client, other = fleet.replay(), fleet.replay()
    step = relive.TokenStep(prompt=[1], response=[2], logprobs=[0.0], policy_version=0)
    async with client.tokens_writer() as writer:
        ticket = await client.admit()
        ends: list[tuple[int, relive.FinalStatus]] = [(1, "ABORTED"), (1, "ABORTED"), (0, "COMPLETED")]
        for left, status in ends:
            await writer.add_episode([step], agent_id="agent", status=status, ticket=ticket)
            await writer.flush()
            assert ticket.left == left
            assert await is_held(other)
        assert len(await client.next_episodes(1)) == 1


async def test_a_task_that_blocks_its_own_ticket_is_warned_once() -> None:
    client = fleet_of(admission=relive.Admission(max_lag=0, episodes_per_version=2)).replay()
    async with client.episodes_writer() as writer:
        with await client.admit(2) as ticket:
            await play(writer, ticket, ends=False)
            with pytest.warns(errors.MisuseWarning, match="start with it, or release it"):
                await is_held(client)
            assert await is_held(client)


def seconds_to_train(make: Any, share: float, actors: int) -> float:
    """Return how long a learner takes for all versions if attempts fail in that share of their turns.

    By a virtual clock, where a turn takes a second, and an update of the learner as long as an episode.
    """
    rng, turns, size, versions, per_version = random.Random(0), 5, 4, 6, 4 * (actors // 3)
    rule = relive.Admission(max_lag=4, episodes_per_version=per_version)

    async def play_on(writer: Any, **described: Any) -> None:
        if isinstance(writer, episode_writers.TokensWriter):
            for _ in range(turns):
                await asyncio.sleep(1.0)
                if rng.random() < share:
                    raise ConnectionError
            step = relive.TokenStep(prompt=[1], response=[2], logprobs=[0.0], policy_version=0)
            await writer.add_episode([step], **described)
            return
        async with writer.episode(**described) as episode:
            for t in range(turns):
                await asyncio.sleep(1.0)
                if rng.random() < share:
                    raise ConnectionError
                await episode.append(t, 0, 1.0)
            await episode.end(turns)

    async def attempt(writer: Any, **described: Any) -> None:
        while True:
            with contextlib.suppress(ConnectionError):
                await play_on(writer, agent_id="agent", **described)
                return

    async def act(client: replay.Replay[Any], writer: Any, name: str) -> None:
        for number in range(1_000):
            with await client.admit(size) as ticket:
                group = {"group_id": f"{name}/{number}", "ticket": ticket}
                await asyncio.gather(*[attempt(writer, **group) for _ in range(size)])

    async def main() -> float:
        fleet = fleet_of(lambda: make, admission=rule, seed=0)
        client = fleet.replay()
        start = asyncio.get_running_loop().time()
        is_tokens = isinstance(make(), relive.TokenReplayBuffer)
        async with client.tokens_writer() if is_tokens else client.episodes_writer() as writer:
            tasks = [asyncio.create_task(act(client, writer, f"{number}")) for number in range(actors)]
            for version in range(versions):
                await client.set_policy_version(version)
                await client.next_groups(per_version // size)
                await asyncio.sleep(turns)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        return asyncio.get_running_loop().time() - start

    return local_test.run(main())


@pytest.mark.parametrize("actors", [9, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "make",
    [
        lambda: relive.EpisodeReplayBuffer[Any, Any](groups=relive.Groups(4)),
        lambda: relive.TokenReplayBuffer(100_000, groups=relive.Groups(4), seed=0),
    ],
)
def test_retrying_actors_of_a_fleet_reach_all_versions(make: Any, actors: int) -> None:
    without, *others = (seconds_to_train(make, share, actors) for share in (0.0, 0.02, 0.2))
    assert max(others) <= 1.5 * without


async def test_one_who_asks_no_more_is_given_no_ticket() -> None:
    fleet = fleet_of(shards=1, admission=relive.Admission(0, 1), timeout=60.0)
    await fleet.coordinator("members")
    fleet.hang(0)
    assert not await fleet.coordinator("admission", "admit", b"first", 1)
    await asyncio.sleep(2.0)
    fleet.go_on(0)
    await asyncio.sleep(2.0)
    assert await fleet.coordinator("admission", "admit", b"second", 1)


async def test_closing_the_fleet_ends_the_wait_for_a_ticket(caplog: pytest.LogCaptureFixture) -> None:
    fleet = fleet_of(admission=relive.Admission(max_lag=0, episodes_per_version=2))
    client = fleet.replay()
    ticket = await client.admit(2)
    waiting = asyncio.create_task(client.admit(1))
    await local_test.settle(1.0)
    fleet.kill_coordinator()
    for shard in fleet.processes:
        fleet.end(shard)
    with pytest.raises(errors.ClosedError, match="the fleet was closed"):
        await waiting
    ticket.release()
    await local_test.settle(100.0)  # Tickets are renewed now and then.
    gc.collect()
    assert caplog.records == []
