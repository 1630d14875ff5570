"""Storms over every kind of buffer: many tasks, a third of them cancelled at once while the others go on, and `close`.

The calls that returned are written down in the order in which they did. A twin that makes the same calls one after the
other, as plain calls and with nobody else around, is the same buffer to the last bit: so a cancelled call has left no
trace, no call that returned is lost, and no limiter was passed by. Nothing here depends on time: a seed is a storm.
"""

import asyncio
import collections
from collections.abc import Awaitable, Callable, Coroutine
import contextlib
import dataclasses
import functools
import gc
import itertools
import random
from typing import Any, get_args
from unittest import mock
import uuid

import hypothesis
from hypothesis import strategies as st
import pytest

import relive
from relive.testing import zoo
from relive.waiting import waiting_test

Episodes = relive.EpisodeReplayBuffer[Any, int]


Call = tuple[str, Any, Any]
"""A verb, what it was given, by place and by name, and what it answered."""


Make = Callable[[], Coroutine[Any, Any, None]]

# What is written begins and ends anywhere, in every stream.
pytestmark = pytest.mark.filterwarnings("ignore:more than half of the last 200 steps:relive.errors.MisuseWarning")

PATIENCE = 60.0
"""Seconds after which a storm hangs."""

MANY = [100, pytest.param(1_000, marks=pytest.mark.long)]
"""How many tasks there are in a storm."""


class Storm:
    """Tasks that are cancelled, and what their calls have done.

    Attributes:
        rng: Decides about everything.
        calls: Those that returned, in the order in which they did.
        cancelled: How often a call of each verb was cancelled while it waited, or gave way.
        refused: How many tasks ended because the buffer was closed.
        is_closed: Whether it was.
    """

    def __init__(self, seed: int, buffer: Any) -> None:
        self.rng = random.Random(seed)
        self.calls: list[Call] = []
        self.cancelled: collections.Counter[str] = collections.Counter()
        self.refused = 0
        self.is_closed = False
        self.buffer, self.inside = buffer, getattr(buffer, "buffer", buffer)
        self._tasks: dict[asyncio.Task[None], Make] = {}
        self._actors: set[Make] = set()
        self._names = itertools.count()
        self._complaints: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: self._complaints.append(context))

    async def call(self, verb: str, given: Any, awaitable: Awaitable[Any]) -> Any:
        """Await a call, and write it down when it has returned; nothing runs in between."""
        try:
            answer = await awaitable
        except asyncio.CancelledError:
            self.cancelled[verb] += 1
            raise
        self.note(verb, given, answer)
        return answer

    def note(self, verb: str, given: Any, answer: Any) -> None:
        """Write down a call that has returned just now."""
        values, fields = given
        if fields.get("ticket"):
            fields = {**fields, "ticket": True}  # Nobody keeps the ticket itself.
        self.calls.append((verb, (values, fields), zoo.plain(answer)))

    def begin(self, make: Make, *, is_actor: bool = True) -> None:
        """Start the task of an actor or a learner."""
        self._tasks[asyncio.create_task(make())] = make
        if is_actor:
            self._actors.add(make)

    async def rage(self, waves: int, most: int, closes: bool) -> None:
        """Cancel one, some or `most` at once, wave after wave; learners start again, and half of the actors."""
        for wave in range(waves):
            await zoo.settle(self.rng.randint(0, 4))
            self._strike(most)
            if closes and wave == waves // 4:
                self.is_closed = True
                for each in (self.buffer, self.inside):
                    if hasattr(each, "close"):
                        each.close()
            if wave % 8 == 0:
                self.buffer.check()

    def _strike(self, most: int) -> None:
        alive = [task for task in self._tasks if not task.done()]
        victims = self.rng.sample(alive, min(len(alive), self.rng.choice([1, most // 10, most])))
        for task in victims:
            task.cancel()
            if self.rng.random() < 0.1:
                task.cancel()
            make = self._tasks[task]
            is_actor = make in self._actors
            if not is_actor or self.rng.random() < 0.5:
                self.begin(make, is_actor=is_actor)

    async def calm(self) -> None:
        """Return when the actors are through, as many of them as are left; the learners are cancelled then."""
        async with asyncio.timeout(PATIENCE):
            acting = [task for task, make in self._tasks.items() if make in self._actors]
            await asyncio.gather(*acting, return_exceptions=True)
            for task in self._tasks:
                task.cancel()
            ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        self.refused = sum(isinstance(end, relive.ClosedError) for end in ends)
        expected = (asyncio.CancelledError, relive.ClosedError, type(None))
        assert [end for end in ends if not isinstance(end, expected)] == []
        self._tasks.clear()

    def assert_nothing_is_left(self) -> None:
        """Nobody waits, no task is pending, and none was destroyed while it was, or failed unheard."""
        gc.collect()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert self._complaints == []
        assert waiting_test.num_waiting(self.buffer) == (0, 0)

    def new_name(self) -> str:
        """Return a name that nobody has."""
        return str(next(self._names))

    def total(self, *verbs: str) -> int:
        """Return how many calls of those verbs have returned."""
        return sum(verb in verbs for verb, _, _ in self.calls)


def sometimes_in_no_time(rng: random.Random) -> Any:
    """Return a block whose calls are cancelled as soon as they wait, now and then; else one that does nothing."""
    if rng.random() < 0.1:
        return asyncio.timeout(0)
    return contextlib.nullcontext()


# Who writes and draws.

EPISODES = {name: zoo.KINDS[name] for name in zoo.EPISODES}
OTHERS = {name: kind for name, kind in (zoo.KINDS.items() - EPISODES.items()) if hasattr(kind.make(), "can_sample")}
INSERTS = frozenset({"add", "extend", "add_episode", "add_episodes", "add_steps"})
DRAWS = frozenset({"sample", "sample_keys", "sample_n_step"})
READS = frozenset({"eligible_keys", "lengths", "get_stats"})


async def ticket_for(buffer: Any) -> Any:
    """Return a ticket, where one is needed."""
    return None if buffer.admission is None else await buffer.admit()


async def live(storm: Storm, buffer: Any) -> None:
    """Live three episodes, in a block or without one; observation = (agent, t)."""
    for _ in range(3):
        agent = storm.new_name()
        if storm.rng.random() < 0.5:
            await live_in_a_block(storm, buffer, agent)
        else:
            with contextlib.suppress(TimeoutError):
                async with sometimes_in_no_time(storm.rng):
                    episode_id = await start(storm, buffer, agent)
                await act(storm, buffer, agent, episode_id)


async def start(storm: Storm, buffer: Any, agent: str) -> Any:
    ticket = await ticket_for(buffer)
    given = (agent,), {"ticket": ticket}
    return await storm.call("start_episode", given, buffer.start_episode(agent, ticket=ticket))


async def live_in_a_block(storm: Storm, buffer: Any, agent: str) -> None:
    episode_id, has_ended = "", False
    try:
        ticket = await ticket_for(buffer)
        async with buffer.episode(agent, ticket=ticket) as writer:
            episode_id = writer.episode_id
            storm.note("start_episode", ((agent,), {"ticket": ticket}), episode_id)
            await act(storm, buffer, agent, episode_id)
            has_ended = True
    except asyncio.CancelledError:
        storm.cancelled["block"] += not episode_id
        raise
    finally:
        if episode_id and not has_ended:
            storm.note("abort_episode", ((episode_id,), {}), True)


async def act(storm: Storm, buffer: Any, agent: str, episode_id: str) -> None:
    rng = storm.rng
    steps = 0
    for _ in range(rng.randint(0, 12)):
        with contextlib.suppress(TimeoutError):
            async with sometimes_in_no_time(rng):
                step = (episode_id, (agent, steps), steps, float(steps))
                append = buffer.append_observation_action_reward(*step)
                await storm.call("append_observation_action_reward", (step, {}), append)
                steps += 1
        if rng.random() < 0.6:
            await asyncio.sleep(0)
    end = (episode_id, (agent, steps), rng.choice(get_args(relive.FinalStatus)))
    await storm.call("end_episode", (end, {}), buffer.end_episode(*end))


class Asked(Exception):  # noqa: N818
    """A call that a task awaits."""


class Planned:
    """Stands in for a buffer that is used: makes the plain calls at once, and raises the first one that may wait."""

    def __init__(self, storm: Storm, buffer: Any) -> None:
        self._storm, self._buffer = storm, buffer

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return type(self._buffer.buffer)

    def __len__(self) -> int:
        return len(self._buffer.buffer)

    def can_insert(self) -> bool:
        return True

    def admit_nowait(self) -> Any:
        return contextlib.nullcontext()

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._buffer.buffer, name)
        if not callable(value) or name in READS:
            return value

        def call(*values: Any, **fields: Any) -> Any:
            given = values, fields
            if name in INSERTS | DRAWS:
                raise Asked(name, given)
            answer = outcome(lambda: getattr(self._buffer, name)(*values, **fields))
            self._storm.note(name, given, answer)
            if isinstance(answer, relive.ReplayError):
                raise answer
            return answer

        return call


def outcome(call: Callable[[], Any]) -> Any:
    """Return what a call returns or raises."""
    try:
        return call()
    except relive.ReplayError as error:
        return error


async def write(storm: Storm, buffer: Any) -> None:
    """Make calls of the zoo; none that waits for a batch, which may never come."""
    refused = [relive.ArgumentError] if getattr(buffer.buffer, "groups", None) else []
    for _ in range(storm.rng.randint(1, 20)):
        try:
            zoo.work(Planned(storm, buffer), storm.rng, 1)
        except Asked as asked:
            with contextlib.suppress(TimeoutError, *refused):  # A group may be full, or given up.
                async with sometimes_in_no_time(storm.rng):
                    await insert(storm, buffer, *asked.args)
        if storm.rng.random() < 0.6:
            await asyncio.sleep(0)


async def insert(storm: Storm, buffer: Any, verb: str, given: Any) -> None:
    values, fields = given
    if "ticket" in fields:
        fields = {**fields, "ticket": await ticket_for(buffer.buffer)}
    if verb not in DRAWS:
        await storm.call(verb, (values, fields), getattr(buffer, verb)(*values, **fields))


async def learn(storm: Storm, buffer: Any) -> None:
    """Draw, and let others go on who wait for another version."""
    rng, inside = storm.rng, getattr(buffer, "buffer", buffer)
    most = getattr(getattr(inside, "limiter", None), "max_batch_size", None) or 6
    while True:
        if getattr(inside, "admission", None) is not None:
            version = (inside.policy_version or 0) + 9
            storm.note("set_policy_version", ((version,), {}), buffer.set_policy_version(version))
        verb, size = rng.choice(sorted(DRAWS & {*dir(inside)})), rng.randint(1, most)
        given = (size, 3, 0.9) if verb == "sample_n_step" else (size,)
        with contextlib.suppress(TimeoutError):
            async with sometimes_in_no_time(rng):
                await storm.call(verb, (given, {}), getattr(buffer, verb)(*given))
        await zoo.settle(rng.randint(0, 2))


# Storms.


def begun(seed: int, kind: str, actors: int) -> Storm:
    """Return a storm that begins."""
    inside = zoo.KINDS[kind].make()
    storm = Storm(seed, inside if kind in EPISODES else relive.AsyncReplayBuffer(inside))
    for _ in range(actors):
        storm.begin(functools.partial(live if kind in EPISODES else write, storm, storm.buffer))
    for _ in range(max(actors // 25, 2)):
        storm.begin(functools.partial(learn, storm, storm.buffer), is_actor=False)
    return storm


async def storm_of(seed: int, kind: str, actors: int, most: int, *, closes: bool = False) -> Storm:
    """Return a storm that is over."""
    storm = begun(seed, kind, actors)
    with names_of(storm.inside):
        await storm.rage(waves=12, most=most, closes=closes)
        await storm.calm()
    storm.assert_nothing_is_left()
    assert_repeats(storm, kind)
    return storm


def names_of(buffer: Any) -> Any:
    """Give each episode of a buffer an id by its number."""

    def next_id() -> uuid.UUID:
        stats = dataclasses.asdict(buffer.get_stats())
        names = ["episodes"] if "episodes" in stats else ["total_episodes", "evicted_episodes"]
        return uuid.UUID(int=sum(stats[name] for name in names))

    return mock.patch("uuid.uuid4", next_id)


def assert_repeats(storm: Storm, kind: str) -> None:
    """Check that a twin on which the calls are made one after the other is the same, and returns the same."""
    storm.inside.check()
    twin = zoo.KINDS[kind].make()
    with names_of(twin):
        for verb, (values, fields), answer in storm.calls:
            if fields.get("ticket"):
                fields = {**fields, "ticket": twin.admit_nowait()}
            call = getattr(twin, f"{verb}_nowait", None) or getattr(twin, verb)
            assert zoo.plain(outcome(lambda: call(*values, **fields))) == answer  # noqa: B023
    if storm.is_closed and hasattr(twin, "close"):
        twin.close()
    assert zoo.state_of(storm.inside) == zoo.state_of(twin)
    assert zoo.drawn(storm.inside) == zoo.drawn(twin)


async def assert_alive(buffer: Any) -> None:
    """Who comes after the storm gets on, actor and learner."""
    learner = asyncio.create_task(until_cancelled(lambda: buffer.sample_n_step(8, 2, 0.9)))
    before = buffer.get_stats()
    async with asyncio.timeout(PATIENCE):
        for version in range(20):
            if buffer.admission is not None:
                buffer.set_policy_version(buffer.policy_version + version)
            async with buffer.episode("late", ticket=await ticket_for(buffer)) as writer:
                for t in range(30):
                    await writer.append(("late", t), t, 0.0)
                await writer.end(("late", 30))
    learner.cancel()
    await asyncio.gather(learner, return_exceptions=True)
    after = buffer.get_stats()
    assert after.appended == before.appended + 600
    assert after.sampled > before.sampled
    buffer.check()


async def until_cancelled(call: Callable[[], Awaitable[Any]]) -> None:
    while True:
        await call()


@pytest.mark.parametrize("kind", EPISODES)
@pytest.mark.parametrize("actors", MANY)
async def test_closing_in_a_storm_over_episodes_loses_nothing(actors: int, kind: str) -> None:
    storm = await storm_of(2, kind, actors, most=actors // 3, closes=True)
    assert storm.total("append_observation_action_reward") > 5
    assert storm.refused > actors // 100


def every_other(first: int) -> list[Any]:
    """Return the other kinds, where only every second one is of the tests that are not long."""
    kinds = enumerate(sorted(OTHERS))
    return [pytest.param(kind, marks=[pytest.mark.long] * ((place - first) % 2)) for place, kind in kinds]


@pytest.mark.parametrize("kind", EPISODES)
@pytest.mark.parametrize("actors", MANY)
async def test_storms_over_episodes_repeat_on_a_twin(actors: int, kind: str) -> None:
    storm = await storm_of(2, kind, actors, most=actors // 3)
    assert storm.total("append_observation_action_reward") > actors
    assert storm.total("abort_episode") > actors // 20
    waits = {"start_episode", "block", "append_observation_action_reward", "sample_n_step"}
    assert waits - {"start_episode"} <= storm.cancelled.keys() <= waits, "calls that may wait, and no other"
    assert storm.cancelled.total() > actors // 10
    await assert_alive(storm.buffer)


@pytest.mark.parametrize("kind", every_other(1))
@pytest.mark.parametrize("actors", [40, *MANY[1:]])
async def test_closing_in_a_storm_over_any_kind_loses_nothing(actors: int, kind: str) -> None:
    storm = await storm_of(2, kind, actors, most=actors // 3, closes=True)
    assert storm.refused > actors // 100


@pytest.mark.parametrize("kind", every_other(0))
@pytest.mark.parametrize("actors", [40, *MANY[1:]])
async def test_storms_over_any_kind_repeat_on_a_twin(actors: int, kind: str) -> None:
    storm = await storm_of(2, kind, actors, most=actors // 3)
    assert storm.total(*INSERTS) > 30
    assert storm.total(*DRAWS) > 1
    assert storm.cancelled.keys() & (INSERTS if "ratio" in kind else INSERTS | DRAWS)


@hypothesis.settings(max_examples=hypothesis.settings().max_examples // 3)
@hypothesis.given(seed=st.integers(0, 10**6), kind=st.sampled_from([*EPISODES, *sorted(OTHERS)]), closes=st.booleans())
def test_small_storms_over_any_kind(seed: int, kind: str, closes: bool) -> None:
    asyncio.run(storm_of(seed, kind, actors=12, most=8, closes=closes))


# When nobody else does anything: a turn that is not passed on is lost.


@dataclasses.dataclass(frozen=True)
class Line:
    """A queue in which many tasks wait.

    Attributes:
        buffer: What they wait for.
        wait: The call that waits.
        make_room: The call that lets some of them pass.
        room: How many that are, at most.
    """

    buffer: Any
    wait: Callable[[], Awaitable[Any]]
    make_room: Callable[[], Awaitable[Any]]
    room: int


def held_back() -> relive.RateLimiter:
    """Return a limiter that holds inserts back after 101 of them, until samples are drawn."""
    return relive.SampleToInsertRatio(1.0, min_size=1, error_buffer=100.0)


async def append_while_it_waits() -> Line:
    buffer = Episodes(limiter=held_back(), seed=0)
    episode_id = await buffer.start_episode("agent")
    for t in range(101):
        await buffer.append_observation_action_reward(episode_id, t, t, 0.0)
    return Line(
        buffer,
        lambda: buffer.append_observation_action_reward(episode_id, 0, 0, 0.0),
        lambda: buffer.sample_n_step(90, 1, 0.9),
        room=90,
    )


async def sample_while_it_waits() -> Line:
    buffer = Episodes(seed=0)
    episode_id = await buffer.start_episode("agent")
    await buffer.append_observation_action_reward(episode_id, 0, 0, 0.0)
    return Line(buffer, lambda: buffer.sample_n_step(1, 1, 0.9), lambda: buffer.end_episode(episode_id, 1), room=10_000)


async def add_while_it_waits() -> Line:
    buffer = relive.AsyncReplayBuffer(relive.RingReplayBuffer(2_000, limiter=held_back(), seed=0))
    for t in range(101):
        await buffer.add(t, 0, 0.0, t + 1)
    return Line(buffer, lambda: buffer.add(0, 0, 0.0, 1), lambda: buffer.sample(90), room=90)


async def draw_while_it_waits() -> Line:
    buffer = relive.AsyncReplayBuffer(relive.PrioritizedReplayBuffer(200, max_times_sampled=90, seed=0))
    return Line(buffer, lambda: buffer.sample(1), lambda: buffer.add(0, 0, 0.0, 1), room=90)


LINES = [append_while_it_waits, sample_while_it_waits, add_while_it_waits, draw_while_it_waits]


async def wait_in(line: Line, number: int, served: list[int]) -> None:
    await line.wait()
    served.append(number)


async def many_in(line: Line, many: int, served: list[int]) -> list[asyncio.Task[None]]:
    """Return tasks that wait, and append their number when they need not wait any more."""
    tasks = [asyncio.create_task(wait_in(line, number, served)) for number in range(many)]
    await zoo.settle(5)
    assert served == []
    return tasks


@pytest.mark.parametrize("make", LINES)
@pytest.mark.parametrize("many", [200, *MANY[1:]])
@pytest.mark.parametrize("pass_", [0, 1, 2])
async def test_waiters_cancelled_at_once_pass_their_turns_on(
    make: Callable[[], Awaitable[Line]], many: int, pass_: int
) -> None:
    """The first ones, who have just been told to ask again, are among them. Only some come, who wait behind."""
    line = await make()
    served: list[int] = []
    tasks = await many_in(line, many, served)
    await line.make_room()
    await zoo.settle(pass_)
    already = len(served)
    victims = {*range(already, already + 40), *random.Random(pass_).sample(range(already, many), many // 3)}
    for victim in victims:
        tasks[victim].cancel()
    tasks += [asyncio.create_task(wait_in(line, number, served)) for number in range(many, many + 10)]
    left = [number for number in range(many + 10) if number not in victims]
    await zoo.settle(2 * many + 100)
    assert served == left[: line.room]
    line.buffer.check()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert served == left[: line.room]
