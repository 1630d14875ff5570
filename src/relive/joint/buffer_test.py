"""Tests of joint draws, with a naive twin that keeps a dict for every joint step and looks for what follows."""

import asyncio
from collections.abc import Iterator, Sequence
import dataclasses
import json
import random
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pytest

import relive
from relive import errors
from relive import testing
from relive.storage import memory
from relive.testing import walks
from relive.testing import zoo

Buffer: TypeAlias = relive.JointReplayBuffer
Rows: TypeAlias = dict[str, Any]
"""The arguments of `add` by name."""
plain = zoo.plain

AGENTS = zoo.AGENTS
GAMMA = 0.5
"""Of rewards that are small integers, all sums are exact."""
_FIELDS = (
    "observation",
    "action",
    "reward",
    "next_observation",
    "next_discount",
    "is_terminal",
    "steps",
    "mask",
    "extras",
)
_ZEROS: dict[str, dict[str, Any]] = {
    "left": {"observation": [0, 0, 0], "action": 0, "extras": {}},
    "right": {"observation": [0, 0, 0], "action": 0, "extras": {}},
    "tall": {"observation": {"eye": [0, 0, 0], "foot": 0.0}, "action": [0.0, 0.0], "extras": {"log_probability": 0.0}},
}
SCHEMAS = zoo.SCHEMAS


def observation_of(agent: str, world: int, t: int) -> Any:
    """What an agent sees at time t of a world: whose it is and when says the observation itself."""
    seen = [AGENTS.index(agent) + 1, world + 1, t]
    return {"eye": seen, "foot": world + t / 4} if agent == "tall" else seen


def rows_of(
    world: int, t: int, present: Sequence[str], terminated: Sequence[str] = (), truncated: Sequence[str] = ()
) -> Rows:
    """The arguments of `add` for a step of a world."""
    return {
        "observations": {agent: observation_of(agent, world, t) for agent in present},
        "actions": {agent: np.array([t, world], "f4") if agent == "tall" else 10 * world + t for agent in present},
        "rewards": {agent: float(1 + (t * 3 + AGENTS.index(agent)) % 5) for agent in present},
        "next_observations": {agent: observation_of(agent, world, t + 1) for agent in present},
        "terminations": {agent: agent in terminated for agent in present},
        "truncations": {agent: agent in truncated for agent in present},
        "log_probability": {agent: np.float32(-t) for agent in present if agent == "tall"},
    }


@dataclasses.dataclass
class Row:
    """What one agent lived in one joint step."""

    observation: Any
    action: Any
    reward: float
    next_observation: Any
    is_terminated: bool
    is_truncated: bool
    extras: dict[str, float]


@dataclasses.dataclass
class Step:
    """A joint step of the twin."""

    stream: int
    episode: int
    step: int
    rows: dict[str, Row]


class Twin:
    """Every joint step ever added; nothing is evicted, the oldest are only not drawn any more."""

    def __init__(self, capacity: int, streams: int) -> None:
        self.capacity, self.first = capacity, 0
        self.steps: list[Step] = []
        self.episode: list[int | None] = [None] * streams
        self.length = [0] * streams
        self.announced: list[dict[str, Any]] = [{} for _ in range(streams)]
        self.next_episode = self.spliced = self.cleared = 0

    def add(self, stream: int, rows: Rows) -> int:
        present = rows["actions"]
        seen, announced = rows["observations"], self.announced[stream]
        if any(agent in announced and announced[agent] != seen[agent] for agent in present):
            self.end(stream)
            self.spliced += 1
        if self.episode[stream] is None:
            self.episode[stream], self.length[stream] = self.next_episode, 0
            self.next_episode += 1
        step = Step(stream, self.episode[stream] or 0, self.length[stream], {})
        for agent in present:
            action = rows["actions"][agent]
            step.rows[agent] = Row(
                seen[agent],
                action.tolist() if isinstance(action, np.ndarray) else action,
                rows["rewards"][agent],
                rows["next_observations"].get(agent, _ZEROS[agent]["observation"]),
                rows["terminations"][agent],
                rows["truncations"][agent],
                {"log_probability": float(rows["log_probability"][agent])} if agent == "tall" else {},
            )
        self.steps.append(step)
        self.length[stream] += 1
        self.announced[stream] = {agent: row.next_observation for agent, row in step.rows.items()}
        if all(row.is_terminated or row.is_truncated for row in step.rows.values()):
            self.end(stream)
        self.first = max(self.first, len(self.steps) - self.capacity)
        return len(self.steps) - 1

    def end(self, stream: int) -> bool:
        was_open = self.episode[stream] is not None
        self.episode[stream], self.announced[stream] = None, {}
        return was_open

    def clear(self) -> None:
        self.cleared += len(self.steps) - self.first
        self.first = len(self.steps)
        for stream in range(len(self.episode)):
            self.end(stream)

    def keys(self) -> list[int]:
        return list(range(self.first, len(self.steps)))

    def _run(self, key: int, agent: str) -> Iterator[Row]:
        """The rows of the agent from a joint step on, until it ends or is not in the next step."""
        place: int | None = key
        while place is not None and agent in self.steps[place].rows:
            row = self.steps[place].rows[agent]
            yield row
            if row.is_terminated or row.is_truncated:
                return
            here = self.steps[place]
            later = range(place + 1, len(self.steps))
            place = next((other for other in later if self.steps[other].stream == here.stream), None)
            if place is not None and self.steps[place].episode != here.episode:
                return

    def read(self, key: int, agent: str, n: int) -> dict[str, Any]:
        """What a batch holds of an agent at a place."""
        if agent not in self.steps[key].rows:
            zeros = _ZEROS[agent]
            nothing = {"reward": 0.0, "next_discount": 0.0, "is_terminal": False, "steps": 0, "mask": False}
            return {**zeros, "next_observation": zeros["observation"], **nothing}
        window = [row for row, _ in zip(self._run(key, agent), range(n), strict=False)]
        last, m = window[-1], len(window)
        return {
            "observation": window[0].observation,
            "action": window[0].action,
            "reward": sum(GAMMA**k * row.reward for k, row in enumerate(window)),
            "next_observation": last.next_observation,
            "next_discount": 0.0 if last.is_terminated else GAMMA**m,
            "is_terminal": last.is_terminated,
            "steps": m,
            "mask": True,
            "extras": window[0].extras,
        }


def stacked(values: list[Any]) -> Any:
    """Values of several streams as arrays [S, ...]."""
    if isinstance(values[0], dict):
        return {name: stacked([value[name] for value in values]) for name in values[0]}
    return np.array(values)


def at(tree: Any, place: int) -> Any:
    """What a tree of arrays holds at a place."""
    if isinstance(tree, dict):
        return {name: at(child, place) for name, child in tree.items()}
    return tree[place].tolist()


def assert_like(buffer: Buffer, twin: Twin, n: int) -> None:
    """Every joint step is as the twin has it."""
    keys = twin.keys()
    batch = buffer.read(keys, n_step=n)
    assert batch.keys.tolist() == buffer.eligible_keys().tolist() == keys
    assert batch.episodes.tolist() == [twin.steps[key].episode for key in keys]
    assert batch.start_step.tolist() == [twin.steps[key].step for key in keys]
    for agent in AGENTS:
        part = batch.agents[agent]
        found = [{name: at(getattr(part, name), place) for name in _FIELDS} for place in range(len(keys))]
        assert found == [twin.read(key, agent, n) for key in keys]


class JointMachine(walks.Machine):
    """A buffer and its twin, in which anything happens."""

    often: ClassVar = {"step": 9, "step_of_each": 4, "end_episode": 2}
    least: ClassVar = {"full with an open episode": 300, "spliced": 50}

    @walks.initialize(capacity=walks.integers(1, 7), streams=walks.integers(1, 3), n=walks.integers(1, 4))
    def begin(self, capacity: int, streams: int, n: int) -> None:
        self.settings: dict[str, Any] = {"n_step": n, "gamma": GAMMA, "streams": streams}
        capacity = max(capacity, streams)
        self.buffer = Buffer(capacity, SCHEMAS, agents=AGENTS, seed=0, **self.settings)
        self.twin = Twin(capacity, streams)
        self.clock = [(world, 0) for world in range(streams)]
        self.worlds = streams

    def _another_world(self, stream: int) -> None:
        self.clock[stream] = (self.worlds, 0)
        self.worlds += 1

    @walks.rule(
        stream=walks.integers(0, 2),
        present=walks.subsets(AGENTS, 1, len(AGENTS)),
        terminated=walks.subsets(AGENTS, 0, len(AGENTS)),
        truncated=walks.subsets(AGENTS, 0, len(AGENTS)),
        mercy=walks.BOOLEANS,
        is_final_known=walks.BOOLEANS,
    )
    def step(
        self,
        stream: int,
        present: set[str],
        terminated: set[str],
        truncated: set[str],
        mercy: bool,
        is_final_known: bool,
    ) -> None:
        stream %= self.settings["streams"]
        terminated, truncated = (set(), set()) if mercy else (terminated, truncated)
        rows = rows_of(*self.clock[stream], sorted(present), sorted(terminated), sorted(truncated))
        if not is_final_known:
            for agent in terminated & present:
                del rows["next_observations"][agent]
        assert self.buffer.add(**rows, stream=stream) == self.twin.add(stream, rows)
        self.clock[stream] = (self.clock[stream][0], self.clock[stream][1] + 1)
        if self.twin.episode[stream] is None:
            self._another_world(stream)

    @walks.rule(present=walks.lists(walks.subsets(AGENTS, 1, len(AGENTS)), 3, 3))
    def step_of_each(self, present: list[set[str]]) -> None:
        """As `add` of each stream; where an agent is absent, anything is given."""
        streams = list(range(self.settings["streams"]))
        rows = [rows_of(*self.clock[stream], sorted(present[stream]), ["left"]) for stream in streams]
        full = [rows_of(*self.clock[stream], AGENTS, ["left"]) for stream in streams]
        arrays = {
            name: {agent: stacked([row[name][agent] for row in full]) for agent in full[0][name]} for name in full[0]
        }
        masks = {agent: [agent in present[stream] for stream in streams] for agent in AGENTS}
        keys = self.buffer.extend(**arrays, present=masks, streams=streams)
        assert keys.tolist() == [self.twin.add(stream, rows[stream]) for stream in streams]
        for stream in streams:
            self.clock[stream] = (self.clock[stream][0], self.clock[stream][1] + 1)
            if self.twin.episode[stream] is None:
                self._another_world(stream)

    @walks.rule(stream=walks.integers(0, 2))
    def reset_without_a_word(self, stream: int) -> None:
        self._another_world(stream % self.settings["streams"])

    @walks.rule(stream=walks.integers(0, 2))
    def end_episode(self, stream: int) -> None:
        stream %= self.settings["streams"]
        assert self.buffer.end_episode(stream=stream) == self.twin.end(stream)
        self._another_world(stream)

    @walks.rule(chance=walks.integers(0, 9))
    def clear(self, chance: int) -> None:
        if not chance:
            self.buffer.clear()
            self.twin.clear()

    @walks.rule(is_new=walks.BOOLEANS)
    def save_and_load(self, is_new: bool) -> None:
        state = self.buffer.state_dict()
        assert json.loads(json.dumps({name: value for name, value in state.items() if name != "arrays"}))
        if is_new:
            self.buffer = Buffer.from_state(state)
        else:
            self.buffer.load_state_dict(state)
        assert plain(self.buffer.state_dict()) == plain(state)

    @walks.rule(stream=walks.integers(0, 2), broken=walks.sampled_from(AGENTS))
    def refused(self, stream: int, broken: str) -> None:
        stream %= self.settings["streams"]
        before = plain(self.buffer.state_dict())
        rows = rows_of(*self.clock[stream], AGENTS)
        rows["actions"][broken] = "run"
        with pytest.raises(errors.SchemaError, match=f"^agent '{broken}': action must be"):
            self.buffer.add(**rows, stream=stream)
        assert plain(self.buffer.state_dict()) == before

    @walks.invariant()
    def all_is_as_the_twin_has_it(self) -> None:
        buffer, twin = self.buffer, self.twin
        stored = twin.steps[twin.first :]
        assert len(buffer) == buffer.num_eligible == len(stored)
        assert buffer.is_full == (len(stored) == buffer.capacity)
        stats = buffer.get_stats()
        self.reached["full with an open episode"] += buffer.is_full and stats.open_episodes > 0
        assert stats.agent_steps == {agent: sum(agent in step.rows for step in stored) for agent in AGENTS}
        assert (stats.appended, stats.size) == (len(twin.steps), len(stored))
        assert (stats.evicted, stats.cleared) == (twin.first - twin.cleared, twin.cleared)
        assert stats.spliced_episodes == twin.spliced
        assert stats.open_episodes == sum(episode is not None for episode in twin.episode)

    def teardown(self) -> None:
        self.reached["spliced"] += self.twin.spliced

    @walks.invariant(every=10)
    def rows_are_as_the_twin_has_them(self) -> None:
        self.buffer.check()
        assert_like(self.buffer, self.twin, self.settings["n_step"])


TestJointMachine = walks.tests_of(JointMachine)


def filled(capacity: int = 20, count: int = 20, **settings: Any) -> Buffer:
    """A buffer of steps of episodes of six, of which `tall` is in the first three and `right` in every other."""
    buffer = Buffer(capacity, SCHEMAS, agents=AGENTS, gamma=GAMMA, **{"seed": 0, **settings})
    fill(buffer, count)
    return buffer


def fill(buffer: Buffer, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        world, t = divmod(number, 6)
        present = ["left"] + ["right"] * (t % 2 == 0) + ["tall"] * (t < 3)
        ends = present if t == 5 else ["tall"] if t == 2 else []
        buffer.add(**rows_of(world, t, present, ends, ()))


class TestDraws:
    def test_all_agents_at_a_place_are_of_one_joint_step(self) -> None:
        batch = filled(capacity=15, count=50, n_step=3).sample(500)
        assert len(batch) == 500
        for agent, part in batch.agents.items():
            observation = part.observation["eye"] if agent == "tall" else part.observation
            seen = np.stack([np.full(500, AGENTS.index(agent) + 1), batch.episodes + 1, batch.start_step], axis=1)
            assert len(part) == 500
            assert (observation == np.where(part.mask[:, np.newaxis], seen, 0)).all()
        assert batch.agents["left"].mask.all()
        assert (batch.agents["right"].mask == (batch.start_step % 2 == 0)).all()
        assert (batch.agents["tall"].mask == (batch.start_step < 3)).all()
        assert (batch.keys == batch.episodes * 6 + batch.start_step).all()
        assert (batch.probabilities == 1 / 15).all()
        assert (batch.weights == 1).all()

    @pytest.mark.parametrize(("capacity", "count"), [(15, 7), (15, 50), (1, 3)])
    def test_each_joint_step_is_drawn_as_often_as_any_other(self, capacity: int, count: int) -> None:
        buffer = filled(capacity, count)
        keys = buffer.eligible_keys()
        assert keys.tolist() == list(range(count))[-capacity:]
        drawn = buffer.sample_keys(2_000 * len(keys))
        assert drawn.dtype == np.int64
        testing.assert_frequencies(np.bincount(drawn - keys[0]).tolist(), [1 / len(keys)] * len(keys))

    def test_joint_sample_equals_read_of_its_keys(self) -> None:
        buffer, other = filled(n_step=2), filled(n_step=2)
        calls: list[dict[str, Any]] = [{}, {"n_step": 4}, {"gamma": 0.25}, {"n_step": 1, "gamma": 1.0}]
        for options in calls:
            batch = buffer.sample(32, **options)
            assert plain(batch) == plain(other.read(other.sample_keys(32), **options))

    def test_n_step_and_gamma_may_be_given_per_call(self) -> None:
        part = filled(n_step=1).read([0], n_step=3, gamma=1.0).agents["left"]
        assert (part.reward.tolist(), part.steps.tolist(), part.next_discount.tolist()) == ([1.0 + 4.0 + 2.0], [3], [1])
        part = filled(n_step=3).read([0], n_step=1).agents["left"]
        assert (part.reward.tolist(), part.steps.tolist(), part.next_discount.tolist()) == ([1.0], [1], [GAMMA])
        part = filled(n_step=3).read([0], gamma=0.25).agents["left"]
        assert (part.reward.tolist(), part.steps.tolist()) == ([1.0 + 4.0 / 4 + 2.0 / 16], [3])

    def test_no_keys_give_a_batch_of_nothing(self) -> None:
        for buffer in (filled(), Buffer(5, SCHEMAS, agents=AGENTS)):
            batch = buffer.read([])
            assert len(batch) == 0
            assert batch.agents["tall"].observation["eye"].shape == (0, 3)

    def test_joint_batches_own_their_memory(self) -> None:
        buffer = filled()
        keys = np.arange(20)
        before = plain(buffer.read(keys))
        batch = buffer.read(keys)
        batch.keys[:] = 99
        for part in batch.agents.values():
            part.reward[:] = 99
            part.mask[:] = False
        assert keys.tolist() == list(range(20))
        assert plain(buffer.read(keys)) == before

    def test_an_empty_joint_buffer_refuses_to_draw(self) -> None:
        buffer = Buffer(5, SCHEMAS, agents=AGENTS)
        assert not buffer.can_sample(1)
        for draw in (buffer.sample, buffer.sample_keys):
            with pytest.raises(errors.NotReadyError, match="^sample has nothing to draw: no step is stored$"):
                draw(1)
        fill(buffer, 3)
        assert buffer.can_sample(1)
        buffer.clear()
        assert not buffer.can_sample(1)

    def test_evicted_joint_steps_cannot_be_read(self) -> None:
        buffer = filled(capacity=5, count=12)
        assert buffer.read([7]).keys.tolist() == [7]
        for key in (6, 12, -1):
            with pytest.raises(errors.UnknownKeyError, match=f"^key {key} not found: its step was evicted, or"):
                buffer.read([7, key])

    @pytest.mark.parametrize(
        ("options", "text"),
        [({"n_step": 0}, "n_step must be at least 1, got 0"), ({"gamma": 0.0}, "gamma must be in \\(0, 1\\], got 0.0")],
    )
    def test_a_refused_draw_has_drawn_nothing(self, options: dict[str, Any], text: str) -> None:
        buffer = filled()
        before = plain(buffer.state_dict())
        with pytest.raises(errors.ArgumentError, match=f"^{text}$"):
            buffer.sample(3, **options)
        with pytest.raises(errors.ArgumentError, match=f"^{text}$"):
            buffer.read([3], **options)
        for size in (0, 1.5):
            with pytest.raises(errors.ArgumentError, match="^batch_size must be"):
                buffer.sample(size)  # type: ignore[arg-type]
        assert plain(buffer.state_dict()) == before

    def test_an_unseen_agent_is_in_no_batch(self) -> None:
        buffer = Buffer(5, {"left": SCHEMAS["left"]}, agents=AGENTS, seed=0)
        assert buffer.schemas == {"left": SCHEMAS["left"]}
        buffer.add(**rows_of(0, 0, ["right"]))
        assert buffer.schemas == {"left": SCHEMAS["left"], "right": SCHEMAS["right"]}
        batch = buffer.sample(2)
        assert [*batch.agents] == ["left", "right"]
        assert batch.agents["left"].mask.tolist() == [False, False]
        buffer.add(**rows_of(0, 1, ["tall"]))
        assert [*buffer.sample(2).agents] == [*AGENTS]


class TestEnds:
    """What each of the agents may be bootstrapped from; JointMachine has all that needs no odd observation."""

    def test_an_agent_away_for_a_step_is_not_spliced(self) -> None:
        """Not even where it finds everything as it was told."""
        buffer = Buffer(9, SCHEMAS, agents=AGENTS, gamma=GAMMA, n_step=4)
        for t, present in enumerate((["left", "right"], ["left"], ["left", "right"])):
            rows = rows_of(0, t, present)
            if t == 2:
                rows["observations"]["right"] = observation_of("right", 0, 1)
            buffer.add(**rows)
        right = buffer.read(range(3)).agents["right"]
        assert right.steps.tolist() == [1, 0, 1]
        assert right.next_discount.tolist() == [0.5, 0.0, 0.5]
        assert right.next_observation[:, 2].tolist() == [1, 0, 3]
        assert buffer.get_stats().spliced_episodes == 0
        assert buffer.get_stats().open_episodes == 1

    @pytest.mark.parametrize("ends", [{}, {"terminated": ["right"]}, {"truncated": ["right"]}])
    def test_a_reset_of_one_agent_ends_the_episode_for_all(self, ends: dict[str, list[str]]) -> None:
        """The others may see just what they were told: what is drawn must not go on over the reset."""
        buffer = Buffer(9, SCHEMAS, agents=AGENTS, gamma=GAMMA, n_step=2)
        buffer.add(**rows_of(0, 0, ["left", "right"], **ends))
        rows = rows_of(0, 1, ["left", "right"])
        rows["observations"]["right"] = observation_of("right", 7, 0)
        buffer.add(**rows)
        batch = buffer.read([0, 1])
        assert batch.episodes.tolist() == [0, 1]
        assert batch.start_step.tolist() == [0, 0]
        assert batch.agents["left"].steps.tolist() == [1, 1]
        assert batch.agents["left"].next_observation[:, 2].tolist() == [1, 2]
        assert batch.agents["right"].next_observation.tolist()[0] == observation_of("right", 0, 1)
        assert buffer.get_stats().spliced_episodes == 1

    def test_dicts_may_hold_agents_that_are_absent(self) -> None:
        """As in PettingZoo: observations still hold who has just ended, next observations hold who comes."""
        buffer = Buffer(9, SCHEMAS, agents=AGENTS, gamma=GAMMA)
        rows = rows_of(0, 0, AGENTS)
        rows["actions"] = {"left": 0}
        rows["rewards"] = {"left": 1.0, "right": 0, "tall": None, "__all__": np.float32(-0.0)}
        rows["terminations"]["__all__"] = np.False_
        buffer.add(**rows)
        assert buffer.get_stats().agent_steps == {"left": 1, "right": 0, "tall": 0}

    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("rewards", 1.0, "rewards must be 0 .*, got 1.0"),
            ("rewards", np.float32(np.nan), r"rewards must be 0 .*, got np.float32\(nan\)"),
            ("rewards", "1", "rewards must be 0 .*, got '1'"),
            ("terminations", True, "terminations must be False .*, got True"),
            ("truncations", np.True_, r"truncations must be False .*, got np.True_"),
        ],
    )
    @pytest.mark.parametrize("agent", ["right", "__all__"])
    def test_a_reward_or_an_end_of_an_absent_agent_is_refused(
        self, name: str, value: Any, text: str, agent: str
    ) -> None:
        """In turns, the reward and the end of an agent come while another one acts."""
        text = rf"^{text} of '{agent}'$".replace(".*", "for an agent that is not in actions")
        buffer = Buffer(9, SCHEMAS, agents=AGENTS, streams=2)
        before = plain(buffer.state_dict())
        rows = rows_of(9, 0, ["left", "tall"])
        with pytest.raises(errors.ArgumentError, match=text):
            buffer.add(**{**rows, name: {**rows[name], agent: value}}, stream=1)
        together = {key: {one: side_by_side([x, x]) for one, x in part.items()} for key, part in rows.items()}
        with pytest.raises(errors.ArgumentError, match=f"^{name} must be .*, got .* of '{agent}'$"):
            buffer.extend(**{**together, name: {**together[name], agent: [0, value]}})
        assert plain(buffer.state_dict()) == before
        buffer.extend(**{**together, name: {**together[name], agent: [0, 0]}})
        assert len(buffer) == 2

    def test_flags_may_be_left_out(self) -> None:
        buffer = Buffer(9, SCHEMAS, agents=AGENTS, gamma=GAMMA)
        rows = rows_of(0, 0, ["left"])
        del rows["terminations"], rows["truncations"]
        buffer.add(**rows)
        assert buffer.read([0]).agents["left"].next_discount.tolist() == [GAMMA]
        assert buffer.get_stats().open_episodes == 1


def changed(part: str, agent: str, value: Any) -> dict[str, Any]:
    rows = rows_of(1, 2, AGENTS)
    rows[part][agent] = value
    return rows


def without(part: str, agent: str, terminated: Sequence[str] = (), truncated: Sequence[str] = ()) -> dict[str, Any]:
    rows = rows_of(1, 2, AGENTS, terminated, truncated)
    del rows[part][agent]
    return rows


REFUSED: list[tuple[dict[str, Any], str]] = [
    (changed("observations", "right", [1, 2]), r"agent 'right': observation must be of shape \(3,\), got \(2,\)"),
    (changed("next_observations", "right", [0.5, 1, 2]), "agent 'right': next_observation must"),
    (changed("actions", "left", 0.5), "agent 'left': action must"),
    (changed("rewards", "tall", "much"), "agent 'tall': reward must"),
    (changed("terminations", "left", 2), "agent 'left': terminated must be True, False, 0 or 1, got 2"),
    (changed("truncations", "left", None), "agent 'left': truncated must be True, False, 0 or 1, got None"),
    (changed("log_probability", "left", 0.5), "agent 'left': unknown extra 'log_probability'"),
    (without("log_probability", "tall"), "agent 'tall': extra 'log_probability' is missing"),
    (without("observations", "right"), "observations must have every agent in actions, got none of 'right'"),
    (without("rewards", "right"), "rewards must have every agent in actions, got none of 'right'"),
    (without("terminations", "tall"), "terminations must have every agent in actions, got none of 'tall'"),
    (without("truncations", "tall"), "truncations must have every agent in actions, got none of 'tall'"),
    (
        without("next_observations", "tall"),
        "next_observations must have every agent in actions that has not terminated, got none of 'tall'",
    ),
    (
        without("next_observations", "tall", truncated=["tall"]),
        "agent 'tall': next_observation must be given with a truncated step, got None",
    ),
    (changed("actions", "nobody", 1), "actions must be of left, right, tall, got one of 'nobody'"),
    (rows_of(1, 2, []), "actions must be of at least one agent, got none"),
    ({**rows_of(1, 2, AGENTS), "stream": 1}, "stream must be below streams = 1, got 1"),
    ({**rows_of(1, 2, AGENTS), "stream": "x"}, "stream must be an integer of at least 0, got 'x'"),
    *(
        ({**rows_of(1, 2, AGENTS), name: [1]}, f"{name} must be a mapping by agent, got \\[1\\]")
        for name in rows_of(0, 0, [])
    ),
]


class TestRefusedCalls:
    @pytest.mark.parametrize(("rows", "text"), REFUSED, ids=[text for _, text in REFUSED])
    def test_a_refused_step_has_changed_nothing_of_any_agent(self, rows: dict[str, Any], text: str) -> None:
        """Although every call would end the episode that goes on, and evict."""
        for buffer in (Buffer(8, SCHEMAS, agents=AGENTS), filled(capacity=8, count=9)):
            before, stats = plain(buffer.state_dict()), buffer.get_stats()
            with pytest.raises(errors.ArgumentError, match=f"^{text}"):
                buffer.add(**rows)
            assert plain(buffer.state_dict()) == before
            assert buffer.get_stats() == stats
            buffer.check()

    def test_a_refused_first_joint_step_fixes_no_schema(self) -> None:
        buffer = Buffer(8, agents=AGENTS)
        with pytest.raises(errors.SchemaError, match="^agent 'tall': reward must be a real number, got 'much'$"):
            buffer.add(**changed("rewards", "tall", "much"))
        assert buffer.schemas == {}
        fill(buffer, 1)
        assert buffer.schemas.keys() == set(AGENTS)

    def test_no_agent_begins_without_memory_for_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def allocate(schema: relive.Schema, capacity: int) -> relive.ColumnStorage:
            if schema.extras:
                raise MemoryError
            return real(schema, capacity)

        buffer, real = Buffer(8, agents=AGENTS), relive.ColumnStorage
        monkeypatch.setattr(memory, "ColumnStorage", allocate)
        with pytest.raises(MemoryError):
            buffer.add(**rows_of(0, 0, AGENTS))
        assert buffer.schemas == {}
        assert len(buffer) == 0

    @pytest.mark.parametrize(
        ("settings", "text"),
        [
            ({"capacity": 0}, "capacity must be at least 1, got 0"),
            ({"streams": 0}, "streams must be at least 1, got 0"),
            ({"streams": 9}, "streams must be at most capacity = 8, got 9"),
            ({"n_step": 0}, "n_step must be at least 1, got 0"),
            ({"gamma": 2}, "gamma must be in .*, got 2"),
            ({"seed": -1}, "seed must be at least 0, got -1"),
            (
                {"limiter": relive.MinSize(9)},
                "limiter must ask for at most capacity = 8 transitions, got MinSize.9.",
            ),
            ({"limiter": 3}, "limiter must be a RateLimiter, got 3"),
            ({"agents": "left"}, "agents must be a sequence of distinct names, at least one, got 'left'"),
            ({"agents": 3}, "agents must be a sequence of distinct names, at least one, got 3"),
            ({"agents": [1]}, r"agents must be a sequence of distinct names, at least one, got \[1\]"),
            ({"agents": []}, r"agents must be a sequence of distinct names, at least one, got \[\]"),
            ({"agents": ["a", "b", "a"]}, "agents must be a sequence of distinct names, at least one, got"),
            ({"schemas": [SCHEMAS["left"]]}, "schemas must be an instance of Mapping, got"),
            ({"schemas": {"nobody": SCHEMAS["left"]}}, "schemas must be of left, right, tall, got one of 'nobody'"),
            ({"schemas": {"left": 3}}, "schema of 'left' must be an instance of Schema, got 3"),
        ],
    )
    def test_wrong_settings_of_joint_buffers_are_refused(self, settings: dict[str, Any], text: str) -> None:
        with pytest.raises(errors.ArgumentError, match=f"^{text}"):
            Buffer(**{"capacity": 8, "agents": AGENTS, **settings})


class TestLimiters:
    def test_joint_steps_are_counted(self) -> None:
        limiter = relive.SampleToInsertRatio(ratio=2.0, min_size=3, error_buffer=4.0)
        buffer = Buffer(50, SCHEMAS, agents=AGENTS, limiter=limiter)
        assert buffer.limiter is limiter
        fill(buffer, 2)
        assert not buffer.can_sample(1)
        with pytest.raises(errors.NotReadyError, match="^sample held back by SampleToInsertRatio.*: add steps first$"):
            buffer.sample(1)
        fill(buffer, 3, 2)
        assert not buffer.can_insert()
        before = plain(buffer.state_dict())
        with pytest.raises(errors.NotReadyError, match="^add held back by SampleToInsertRatio.*: draw samples first$"):
            fill(buffer, 1, 5)
        assert plain(buffer.state_dict()) == before
        buffer.sample(2)
        fill(buffer, 1, 5)
        assert (buffer.get_stats().appended, buffer.get_stats().sampled) == (6, 2)
        with pytest.raises(errors.ArgumentError, match="^batch_size must be at most 6 with"):
            buffer.can_sample(7)


class TestStacked:
    def test_agents_that_hold_the_same_make_one_array(self) -> None:
        schemas = {name: SCHEMAS[name] for name in ("left", "right")}
        buffer = Buffer(9, schemas, agents=["left", "right"], n_step=2)
        for t in range(4):
            buffer.add(**rows_of(0, t, ["left", "right"] if t < 2 else ["left"], ["right"] * (t == 1), ()))
        batch = buffer.read(range(4))
        stacked = batch.stacked()
        assert len(stacked) == 4
        assert stacked.observation.shape == (4, 2, 3)
        assert stacked.mask.tolist() == [[True, True], [True, True], [True, False], [True, False]]
        for number, part in enumerate(batch.agents.values()):
            for field in dataclasses.fields(part):
                if field.name != "extras":
                    assert plain(getattr(stacked, field.name)[:, number].copy()) == plain(getattr(part, field.name))
        assert stacked.extras == {}

    def test_trees_are_stacked_leaf_by_leaf(self) -> None:
        schema = SCHEMAS["tall"]
        buffer = Buffer(9, {"tall": schema, "taller": schema}, agents=["tall", "taller"])
        rows = rows_of(0, 0, ["tall"])
        twins: Rows = {name: {**part, "taller": part["tall"]} for name, part in rows.items()}
        buffer.add(**twins)
        stacked = buffer.read([0, 0]).stacked()
        assert stacked.observation["eye"].shape == (2, 2, 3)
        assert stacked.extras["log_probability"].dtype == np.float32

    def test_agents_that_differ_are_refused(self) -> None:
        with pytest.raises(
            errors.ArgumentError,
            match=r"^stacked needs agents whose steps hold the same, got observation of dtype int64 and shape \[3\] of "
            "agent 'left' and of a mapping with eye, foot of agent 'tall'$",
        ):
            filled().sample(2).stacked()
        schemas = {
            "a": relive.Schema(relive.Field(3, "f4"), relive.Field((), "i8")),
            "b": relive.Schema(relive.Field(3, "f4"), relive.Field((), "i8"), extras={"c": relive.Field((), "i8")}),
        }
        buffer = Buffer(9, schemas, agents=["a", "b"])
        buffer.add({"a": [0.0] * 3}, {"a": 1}, {"a": 0.0}, {"a": [0.0] * 3})
        with pytest.raises(errors.ArgumentError, match="got extras of a mapping with nothing of agent 'a' and of a"):
            buffer.sample(2).stacked()


def test_repr_of_a_joint_buffer() -> None:
    buffer = Buffer(9, SCHEMAS, agents=list(AGENTS), n_step=2, gamma=0.5, streams=2, seed=np.random.default_rng(3))
    assert buffer.agents == AGENTS
    assert (buffer.capacity, buffer.streams, buffer.n_step, buffer.gamma) == (9, 2, 2, 0.5)
    assert (
        repr(buffer) == "<JointReplayBuffer of 0 joint steps of 3 agents, capacity=9, streams=2, n_step=2, gamma=0.5>"
    )
    assert not buffer.is_full
    assert buffer.rng.random() == np.random.default_rng(3).random()


def test_arrays_that_were_added_are_copied() -> None:
    buffer = Buffer(9, agents=["a"])
    seen, after = np.zeros(3), np.ones(3)
    buffer.add({"a": seen}, {"a": 1}, {"a": 0.0}, {"a": after})
    before = plain(buffer.read([0]))
    seen[:], after[:] = 7, 8
    assert plain(buffer.read([0])) == before


def test_memory_of_joint_steps_is_that_of_capacity() -> None:
    buffer = filled(capacity=9, count=9)
    full = buffer.get_stats().nbytes
    assert full > 9 * sum(schema.nbytes for schema in SCHEMAS.values()) + 9 * 8 * 5
    fill(buffer, 6 * 20 - 9, 9)
    room = len(buffer._store.free)
    fill(buffer, 6 * 100, 6 * 20)
    assert len(buffer._store.free) == room
    assert buffer.get_stats().nbytes <= full


# Rows.

KINDS: dict[str, list[Any]] = {
    "float32": [np.zeros(3, "f4"), np.array([1, np.nan, -0.0], "f4")],
    "float64 lists": [[0.5, 1.0], [1.0, np.inf]],
    "integers": [3, np.int64(2**40), 7],
    "bytes": [np.uint8(3), 255, 0],
    "bools": [True, np.False_, False],
    "other byte order": [np.arange(4, dtype=">f2"), np.ones(4, ">f2")],
    "dates": [np.datetime64("2026-01-01"), np.datetime64("2027-01-01")],
    "text": ["abc", "d", np.str_("ef")],
    "not contiguous": [np.arange(6.0)[::2], np.zeros(3)],
    "mappings": [{"a": 1.0, "b": {"c": np.zeros(2)}}, {"a": 2.0, "b": {"c": np.ones(2)}}],
    "nothing": [np.zeros((0, 2)), np.zeros((0, 2))],
}


def side_by_side(values: Sequence[Any]) -> Any:
    """Values of several streams with a leading axis, as lists."""
    if isinstance(values[0], dict):
        return {name: side_by_side([value[name] for value in values]) for name in values[0]}
    return [*values]


@pytest.mark.parametrize("kind", KINDS)
def test_extend_stores_the_bytes_that_add_stores(kind: str) -> None:
    """Whichever agents are there, and whatever is observed, done and added."""
    values, rng = KINDS[kind], random.Random(0)
    agents = ["a", "b", "c", "d", "e"]
    schema = relive.Schema.from_example(values[0], values[0], extras={"x": values[0], "y": 0.0})
    other = relive.Schema(relive.Field((), float), relive.Field((), float))
    schemas = {agent: other if agent == "c" else schema for agent in agents}
    one_by_one, together = (Buffer(7, schemas, agents=agents, streams=2, seed=0) for _ in range(2))
    for _ in range(60):
        rounds: list[Rows] = []
        present = [rng.sample(agents, rng.choice([1, 3, 5, 5])) for _ in range(2)]
        for _ in range(2):
            steps = [{agent: 0.5 if agent == "c" else rng.choice(values) for agent in agents} for _ in range(4)]
            extras = {agent: value for agent, value in steps[3].items() if agent != "c"}
            flags = [{agent: rng.random() < 0.2 for agent in agents} for _ in range(2)]
            rewards = {agent: rng.choice([1, 0.5, np.float64(2), np.float32(0.25)]) for agent in agents}
            given: Rows = {"observations": steps[0], "actions": steps[1], "rewards": rewards}
            given |= {"next_observations": steps[2], "terminations": flags[0], "truncations": flags[1]}
            rounds.append({**given, "x": extras, "y": dict.fromkeys(extras, 1.0)})
        where = {agent: [agent in there for there in present] for agent in agents}
        together.extend(**side_by_side(rounds), present=where)
        for stream, (step, there) in enumerate(zip(rounds, present, strict=True)):
            for name in ("actions", "rewards", "terminations", "truncations"):
                step[name] = {agent: step[name][agent] for agent in there}
            one_by_one.add(**step, stream=stream)
        assert plain(together.state_dict()) == plain(one_by_one.state_dict())


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("rewards", np.inf, "reward must be finite, got inf"),
        ("rewards", 1e308, ""),
        ("actions", 300, "action must fit uint8, got 300"),
        ("actions", 1.0, ""),
        ("observations", np.zeros(2), "observation must be of dtype float32, got float64"),
        ("observations", [0.5, 0.5], ""),
        ("next_observations", {"x": 1}, "next_observation must be an array of numbers"),
    ],
)
def test_an_unusual_value_of_one_agent_is_judged_as_in_a_ring(name: str, value: Any, text: str) -> None:
    schema = relive.Schema(relive.Field(2, "f4"), relive.Field((), "u1"))
    buffer = Buffer(9, {"a": schema, "b": schema}, agents=["a", "b"])
    rows: Rows = {
        "observations": {agent: np.zeros(2, "f4") for agent in "ab"},
        "actions": {"a": 1, "b": 2},
        "rewards": {"a": 1e308, "b": 1.0},
        "next_observations": {agent: np.ones(2, "f4") for agent in "ab"},
    }
    rows[name]["b"] = value
    if text:
        with pytest.raises(errors.ArgumentError, match=f"^agent 'b': {text}"):
            buffer.add(**rows)
        assert len(buffer) == 0
    else:
        buffer.add(**rows)
        stored = getattr(buffer.read([0]).agents["b"], name.removeprefix("next_").removesuffix("s"))
        assert stored.tolist() == [value]


class TestExtend:
    ROWS: ClassVar[Rows] = {
        "observations": {"a": np.zeros((2, 3)), "b": np.zeros((2, 1))},
        "actions": {"a": np.zeros(2, int), "b": np.zeros(2, int)},
        "rewards": {"a": np.ones(2), "b": np.ones(2)},
        "next_observations": {"a": np.ones((2, 3)), "b": np.ones((2, 1))},
    }

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"present": [1]}, r"present must be a mapping by agent, got \[1\]"),
            ({"present": {"a": [1]}}, r"agent 'a': present must be of shape \(2,\), got \(1,\)"),
            ({"present": {"a": [1, 0], "b": [0, 0]}}, "present must have an agent in each stream, got none in 1"),
            (
                {"rewards": {"a": np.ones(2), "b": np.ones(3)}},
                "agent 'b': extend must have a step of each of 2 streams",
            ),
            (
                {"next_observations": {"a": np.ones((2, 3))}},
                "next_observations must have every agent in actions that has",
            ),
            ({"streams": [0, 2]}, "streams must be 0 to 1, got 2"),
            ({"terminations": {"a": [1, 1]}}, "terminations must have every agent in actions, got none of 'b'"),
            ({"extra": 3}, "extra must be a mapping by agent, got 3"),
        ],
    )
    def test_a_refused_extend_of_joint_steps_changes_nothing(self, changes: dict[str, Any], text: str) -> None:
        buffer = Buffer(9, agents=["a", "b"], streams=2)
        with pytest.raises(errors.ArgumentError, match=f"^{text}"):
            buffer.extend(**self.ROWS | changes)
        assert (len(buffer), buffer.schemas) == (0, {})

    def test_the_limiter_is_asked_once_by_joint_extend(self) -> None:
        buffer = Buffer(9, agents=["a", "b"], streams=2, limiter=relive.SampleToInsertRatio(1.0, 1, 1.0))
        assert buffer.extend(**self.ROWS).tolist() == [0, 1]
        with pytest.raises(errors.NotReadyError, match="^extend held back by"):
            buffer.extend(**self.ROWS)

    def test_joint_extend_of_no_stream_stores_nothing(self) -> None:
        buffer = Buffer(9, SCHEMAS, agents=AGENTS)
        nothing = {"left": np.zeros((0, 3), int)}
        numbers = {"left": np.zeros(0, int)}
        assert buffer.extend(nothing, numbers, numbers, nothing, streams=[]).tolist() == []
        assert len(buffer) == 0

    def test_an_agent_that_is_absent_needs_no_next_observation(self) -> None:
        buffer = Buffer(9, agents=["a", "b"], streams=2)
        rows = self.ROWS | {"next_observations": {"a": np.ones((2, 3))}}
        ends = {"a": [0, 0], "b": [1, 0]}
        buffer.extend(**rows, terminations=ends, present={"b": [1, 0]})
        assert buffer.read(range(2)).agents["b"].mask.tolist() == [True, False]
        buffer.check()

    def test_add_steps_and_add_episode_refuse_joint_steps(self) -> None:
        buffer = Buffer(9, agents=AGENTS)
        with pytest.raises(errors.ArgumentError, match="^add_steps cannot add joint steps: use add or extend$"):
            buffer.add_steps([0], [1], [2])
        with pytest.raises(errors.ArgumentError, match="^add_episode cannot add joint steps: use add or extend$"):
            buffer.add_episode([0], [1], [2], terminated=True)


# What column buffers do.


class TestAsColumns:
    def test_draws_follow_the_priorities_of_joint_steps(self) -> None:
        buffer = filled(count=4, sampler=relive.PrioritizedSampler(alpha=1.0, epsilon=0.0))
        with pytest.raises(errors.ArgumentError, match="never given out"):
            buffer.update_priorities([0, 1, 2, 9], [1.0, 0.0, 3.0, 5.0])
        assert buffer.update_priorities([0, 1, 2], [1.0, 0.0, 3.0]) == 3
        assert buffer.get_priorities([0, 1, 2, 3]).tolist() == [1.0, 0.0, 3.0, 1.0]
        batch = buffer.sample(5000, beta=1.0)
        assert batch.probabilities.tolist() == [{0: 0.2, 2: 0.6, 3: 0.2}[key] for key in batch.keys.tolist()]
        assert batch.weights.tolist() == pytest.approx([{0: 1, 2: 1 / 3, 3: 1}[key] for key in batch.keys.tolist()])
        testing.assert_frequencies(np.bincount(batch.keys).tolist(), [0.2, 0.0, 0.6, 0.2])
        assert batch.agents["left"].observation[:, 2].tolist() == batch.keys.tolist()

    def test_a_joint_step_is_drawn_as_often_as_it_may_be(self) -> None:
        buffer = filled(count=4, max_times_sampled=2)
        assert sorted(buffer.sample(8).keys.tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert not buffer.can_sample(1)

    def test_an_origin_is_that_of_the_joint_step(self) -> None:
        buffer = filled(count=7)
        assert (buffer.explain(5).episode_end, buffer.explain(5).step) == ("TERMINATED", 5)

    def test_batches_are_those_of_sample(self) -> None:
        one, other = filled(seed=3), filled(seed=3)
        drawn = one.batches(4, n_step=2, gamma=0.25)
        for _ in range(3):
            assert plain(next(drawn)) == plain(other.sample(4, n_step=2, gamma=0.25))
        drawn.close()

    def test_shells_of_joint_buffers_draw_the_same(self) -> None:
        rows = rows_of(0, 0, AGENTS)
        threads_shell: Any = relive.ThreadSafeReplayBuffer(filled(count=6))
        loop_shell: Any = relive.AsyncReplayBuffer(filled(count=6))

        async def use() -> Any:
            assert await loop_shell.add(**rows) == 6
            return await loop_shell.sample(5)

        assert threads_shell.add(**rows) == 6
        assert plain(threads_shell.sample(5)) == plain(asyncio.run(use()))

    def test_most_steps_that_do_not_follow_are_warned_of(self) -> None:
        buffer = Buffer(300, SCHEMAS, agents=AGENTS)

        def fill_apart(steps: range) -> list[int]:
            return [buffer.add(**rows_of(t, 0, ["left"])) for t in steps]

        with pytest.warns(errors.MisuseWarning, match="^more than half of the last 200 steps did not begin where"):
            assert len(fill_apart(range(300))) == 300


# Sequences.


@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_sequences_hold_what_each_agent_lived(seed: int, pad: bool) -> None:
    rng = random.Random(seed)
    length = rng.randint(1, 5)
    buffer = relive.JointSequenceReplayBuffer(
        15, SCHEMAS, agents=AGENTS, length=length, pad=pad, burn_in=length // 2, streams=2, seed=seed
    )
    twin = Twin(15, 2)
    clock = [(0, 0), (1, 0)]
    for number in range(60):
        stream = rng.randrange(2)
        present = [agent for agent in AGENTS if rng.random() < 0.7] or ["left"]
        ends = [[agent for agent in present if rng.random() < 0.15] for _ in range(2)]
        rows = rows_of(*clock[stream], present, *ends)
        buffer.add(**rows, stream=stream)
        twin.add(stream, rows)
        clock[stream] = (clock[stream][0], clock[stream][1] + 1)
        if rng.random() < 0.1:
            assert buffer.end_episode(stream) == twin.end(stream)
        if twin.episode[stream] is None:
            clock[stream] = (number + 2, 0)
    keys = buffer.eligible_keys()
    batch = buffer.read(keys)
    assert len(keys)
    for place, key in enumerate(keys.tolist()):
        path = [key]
        followers = [
            later for later in range(key + 1, len(twin.steps)) if twin.steps[later].stream == twin.steps[key].stream
        ]
        followers = followers[: length - 1]
        path += [later for later in followers if twin.steps[later].episode == twin.steps[key].episode]
        assert batch.mask[place].tolist() == [True] * len(path) + [False] * (length - len(path))
        assert batch.start_step[place] == twin.steps[key].step
        for agent in AGENTS:
            lived = [twin.steps[step].rows.get(agent) for step in path]
            part = {name: at(getattr(batch.agents[agent], name), place) for name in SEQUENCE_FIELDS}
            assert part == expected_sequence(agent, lived, length, has_left(twin, path, agent))


SEQUENCE_FIELDS = ("observation", "action", "reward", "terminated", "truncated", "mask", "is_burn_in", "extras")


def has_left(twin: Twin, path: list[int], agent: str) -> bool:
    """Whether the episode has ended after the last of these steps, or goes on without the agent."""
    last = twin.steps[path[-1]]
    later = [step for step in twin.steps[path[-1] + 1 :] if step.stream == last.stream]
    if later:
        return later[0].episode != last.episode or agent not in later[0].rows
    return twin.episode[last.stream] != last.episode


def expected_sequence(agent: str, lived: list[Row | None], length: int, has_left: bool) -> dict[str, Any]:
    """What a batch holds of an agent, in which `lived` are its steps, given whether it has left after them."""
    zeros = _ZEROS[agent]
    padded: list[Row | None] = lived + [None] * (length - len(lived))
    seen = [zeros["observation"]] * (length + 1)
    truncated = []
    for t, row in enumerate(padded):
        if row is not None:
            seen[t], seen[t + 1] = row.observation, row.next_observation
        is_last = lived[t + 1] is None if t + 1 < len(lived) else has_left
        truncated.append(row is not None and not row.is_terminated and (row.is_truncated or is_last))
    return {
        "observation": at_once(seen),
        "action": [zeros["action"] if row is None else row.action for row in padded],
        "reward": [0.0 if row is None else row.reward for row in padded],
        "terminated": [row is not None and row.is_terminated for row in padded],
        "truncated": truncated,
        "mask": [row is not None for row in padded],
        "is_burn_in": [row is not None and t < length // 2 for t, row in enumerate(padded)],
        "extras": at_once([zeros["extras"] if row is None else row.extras for row in padded]),
    }


def at_once(values: list[Any]) -> Any:
    """Values by time, as a tree of lists."""
    if isinstance(values[0], dict):
        return {name: at_once([value[name] for value in values]) for name in values[0]}
    return values


def test_settings_of_sequences_are_those_of_a_sequence_buffer() -> None:
    with pytest.raises(errors.ArgumentError, match="^length must be at most capacity = 3, got 4$"):
        relive.JointSequenceReplayBuffer(3, agents=AGENTS, length=4)
    with pytest.raises(errors.ArgumentError, match="^burn_in must be below length = 2, got 2$"):
        relive.JointSequenceReplayBuffer(3, agents=AGENTS, length=2, burn_in=2)
    buffer = relive.JointSequenceReplayBuffer(9, agents=AGENTS, length=2, stride=2)
    assert {name: buffer.settings()[name] for name in ("length", "burn_in", "stride", "pad")} == {
        "length": 2,
        "burn_in": 0,
        "stride": 2,
        "pad": False,
    }


def test_a_schema_may_have_an_extra_of_another_librarys_name() -> None:
    schema = relive.Schema(relive.Field((), int), relive.Field((), int), extras={"info": relive.Field((), float)})
    buffer = Buffer(9, {"a": schema}, agents=["a"])
    buffer.add({"a": 0}, {"a": 0}, {"a": 0.0}, {"a": 1}, info={"a": 0.5})
    assert buffer.read([0]).agents["a"].extras["info"].tolist() == [0.5]
