"""Games in turns: what is stored of them is what the environment has written into its own log."""

import copy
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from gymnasium import spaces

import relive
from relive import errors
from relive.integrations import pettingzoo as relive_pettingzoo
from relive.integrations import stored_episodes

Row = tuple[Any, ...]
STATUSES = {(False, False): "IN_PROGRESS", (True, False): "COMPLETED", (False, True): "TRUNCATED"}


class Table:
    """A game by chance: turns in any order, rewards for all at any time, agents that die alone or all at once.

    An observation is the game, the agent's number and the time, so that a mix-up would show. `log` has what happened:
    the turns of each agent, what it was paid between them, and the resets.
    """

    def __init__(self, num_agents: int, seed: int, *, deads_first: bool = True) -> None:
        self.possible_agents = [f"agent {number}" for number in range(num_agents)]
        self.rng, self.deads_first = np.random.default_rng(seed), deads_first
        self.game, self.time, self.log = -1, 0, list[Row]()

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 2**31, (3,), np.int64)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(1000)

    def reset(self, seed: Any = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.game, self.time, self.given = self.game + 1, 0, (seed, options)
        self.paid = dict.fromkeys(self.agents, 0.0)
        self.ends = dict.fromkeys(self.agents, (False, False))
        self.log.append(("reset",))
        self.pay()  # Some are paid before their first turn.
        self.select()

    def pay(self) -> None:
        for agent in self.agents:
            reward = float(self.rng.integers(-2, 3))
            self.paid[agent] += reward
            self.log.append(("pay", agent, reward))

    def select(self) -> None:
        done = [agent for agent in self.agents if any(self.ends[agent])]
        group = done if done and self.deads_first else self.agents
        if group:
            self.agent_selection = group[self.rng.integers(len(group))]

    def agent_iter(self) -> Any:
        while self.agents:
            yield self.agent_selection

    def observe(self) -> Any:
        return np.array([self.game, self.possible_agents.index(self.agent_selection), self.time])

    def last(self, observe: bool = True) -> Any:
        agent = self.agent_selection
        return self.observe() if observe else None, self.paid[agent], *self.ends[agent], {}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        self.log.append(("turn", agent, self.observe().tolist(), self.ends[agent], action))
        if any(self.ends[agent]):
            assert action is None
            self.agents.remove(agent)
            self.select()
            return
        self.paid[agent] = 0.0
        self.time += 1
        self.pay()
        self.end_some()
        self.select()

    def end_some(self) -> None:
        """End all, as in a draw; or some, each in its own way."""
        share = 1.0 if self.rng.random() < 0.1 else 0.05
        for agent in self.agents:
            if not any(self.ends[agent]) and self.rng.random() < share:
                self.ends[agent] = [(True, False), (False, True), (True, True)][self.rng.integers(3)]


def steps_in(log: list[Row], agent: str) -> tuple[list[Row], int]:
    """Return the steps of an agent by the log, and how many rewards belong to none."""
    steps, dropped, move, paid = list[Row](), 0, None, 0.0
    for kind, *rest in log:
        if kind == "reset":
            if steps and steps[-1][-1] == (False, False):
                steps[-1] = *steps[-1][:-1], (False, True)
            move, paid = None, 0.0
        elif rest[0] != agent:
            continue
        elif kind == "pay":
            paid += rest[1]
        else:
            _, observation, (terminated, truncated), action = rest
            if move is None:
                dropped += paid != 0
            else:
                steps.append((*move, paid, observation, (terminated, truncated and not terminated)))
            move, paid = None if action is None else (observation, action), 0.0
    return steps, dropped


def steps_stored(buffer: relive.RingReplayBuffer, stream: int) -> list[Row]:
    """Return the steps of a stream, in order."""
    steps = list[Row]()
    for episode in stored_episodes.stored_episodes(buffer):
        if episode.stream == stream:
            observations, count = episode.observations.tolist(), len(episode)
            ends = [(False, False)] * (count - 1)
            ends += [flags for flags, status in STATUSES.items() if status == episode.status]
            columns = observations[:-1], episode.actions.tolist(), episode.rewards.tolist(), observations[1:], ends
            steps += zip(*columns, strict=True)
    return steps


def play(recorder: Any, rng: np.random.Generator, stop: str = "") -> None:
    """Play a game; `stop` says whether it may be left in the middle, or at the first end that is seen."""
    recorder.reset()
    for _ in recorder.agent_iter():
        for _ in range(rng.integers(3)):
            recorder.last(observe=bool(rng.integers(2)))
        _, _, terminated, truncated, _ = recorder.last()
        if ((terminated or truncated) and stop == "at an end") or (stop == "anywhere" and rng.random() < 0.05):
            return
        recorder.step(None if terminated or truncated else int(rng.integers(1000)))


@pytest.mark.parametrize("num_agents", [2, 3, 4])
def test_a_thousand_random_games_are_stored_as_in_the_log(num_agents: int) -> None:
    rng = np.random.default_rng(num_agents)
    for deads_first in (True, False):
        env = Table(num_agents, num_agents, deads_first=deads_first)
        buffer = relive.RingReplayBuffer(100_000, streams=num_agents, seed=0)
        recorder = relive_pettingzoo.TurnRecorder(env, buffer)
        for _ in range(170):
            play(recorder, rng, ("", "at an end", "anywhere")[rng.integers(3)])
        recorder.reset()
        logged = [steps_in(env.log, agent) for agent in env.possible_agents]
        assert [steps_stored(buffer, stream) for stream in range(num_agents)] == [steps for steps, _ in logged]
        assert recorder.dropped_rewards == sum(dropped for _, dropped in logged) > 0
        stats = buffer.get_stats()
        assert (stats.spliced_episodes, stats.open_episodes) == (0, 0)
        assert min(stats.terminated_episodes, stats.truncated_episodes) > 50
        buffer.check()


class Duel(Table):
    """x and o in turn; x wins with its third move."""

    def __init__(self) -> None:
        super().__init__(2, 0)
        self.possible_agents = ["x", "o"]

    def pay(self) -> None:
        if self.time == 5:
            self.paid = {"x": 1.0, "o": -1.0}
            self.log += [("pay", *each) for each in self.paid.items()]

    def end_some(self) -> None:
        if self.time == 5:
            self.ends = dict.fromkeys(self.ends, (True, False))

    def select(self) -> None:
        if self.agents:
            self.agent_selection = self.agents[self.time % len(self.agents)]


def duel(capacity: int = 100, **settings: Any) -> Any:
    return relive_pettingzoo.TurnRecorder(Duel(), relive.RingReplayBuffer(capacity, streams=2, **settings))


@pytest.mark.parametrize("stops_early", [False, True])
def test_the_end_reaches_the_winner_and_the_loser(stops_early: bool) -> None:
    recorder = duel()
    recorder.reset(seed=3, options={"a": 1})
    assert recorder.env.given == (3, {"a": 1})
    for _ in recorder.agent_iter():
        *_, terminated, _, _ = recorder.last()
        if terminated and stops_early:  # `reset` takes the turns that are left.
            break
        recorder.step(None if terminated else 0)
    recorder.reset()
    x, o = (steps_stored(recorder.buffer, stream) for stream in range(2))
    assert [step[2] for step in x] == [0.0, 0.0, 1.0]
    assert [step[2] for step in o] == [0.0, -1.0]
    assert [[step[4] for step in steps][-1] for steps in (x, o)] == [(True, False)] * 2


def test_arguments_are_checked_before_the_game_goes_on() -> None:
    recorder = duel(limiter=relive.SampleToInsertRatio(1.0, min_size=1, error_buffer=1.0))
    with pytest.raises(errors.NotReadyError, match="step needs a game that is running: call reset first"):
        recorder.step(0)
    recorder.reset()
    for action in (0.5, None):
        with pytest.raises(errors.SchemaError, match="action"):
            recorder.step(action)
    with pytest.raises(errors.ArgumentError, match="stream must not be given"):
        recorder.step(0, stream=1)
    for action in range(4):
        recorder.step(action)
    with pytest.raises(errors.NotReadyError, match="step held back by SampleToInsertRatio"):
        recorder.step(4)
    assert (recorder.env.time, len(recorder.buffer)) == (4, 2)
    recorder.buffer.sample(1)
    recorder.step(4)
    with pytest.raises(errors.ArgumentError, match="action must be None, as agent 'o' is done, got 7"):
        recorder.step(7)
    with pytest.raises(errors.NotReadyError, match="step held back by SampleToInsertRatio"):
        recorder.step(None)
    for _ in range(2):
        recorder.buffer.sample(1)
        recorder.step(None)
    with pytest.raises(errors.NotReadyError, match="call reset first"):
        recorder.step(None)
    assert len(recorder.buffer) == 5


def test_a_buffer_for_threads_waits_for_its_limiter() -> None:
    limiter = relive.SampleToInsertRatio(1.0, min_size=1, error_buffer=1.0)
    ring = relive.RingReplayBuffer(100, streams=2, limiter=limiter, seed=0)
    recorder = relive_pettingzoo.TurnRecorder(Duel(), relive.ThreadSafeReplayBuffer(ring, timeout=60.0))
    recorder.reset()
    for action in range(4):
        recorder.step(action)
    learner = threading.Timer(0.01, recorder.buffer.sample, [1])
    learner.start()
    recorder.step(4)
    learner.join()
    assert len(ring) == 3


def test_a_failed_step_needs_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = duel()
    recorder.reset()
    with monkeypatch.context() as patched, pytest.raises(ZeroDivisionError):
        patched.setattr(recorder.env, "step", lambda action: 1 / 0)
        recorder.step(0)
    with pytest.raises(errors.NotReadyError, match="call reset first"):
        recorder.step(0)
    recorder.reset()
    recorder.step(0)
    recorder.env.agent_selection = "z"
    with pytest.raises(errors.ArgumentError, match=r"agent_selection must be one of \['x', 'o'\], got 'z'"):
        recorder.step(0)


def test_extras_stay_with_the_action() -> None:
    recorder = duel()
    recorder.reset()
    for number in range(5):
        recorder.step(0, number=number)
    recorder.reset()
    assert recorder.buffer.read(recorder.buffer.eligible_keys()).extras["number"].tolist() == [0, 1, 2, 3, 4]


class Unequal(Duel):
    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(1000 if agent == "x" else 999)


def test_agents_whose_spaces_differ_need_a_ring_each() -> None:
    env, rings = Unequal(), [relive.RingReplayBuffer(100) for _ in range(2)]
    rule = r"action_space must be the same for all agents of one buffer, got Discrete\(1000\) for 'x' and Discrete\(999"
    with pytest.raises(errors.ArgumentError, match=rule):
        relive_pettingzoo.TurnRecorder(env, relive.RingReplayBuffer(100, streams=2))
    recorder = relive_pettingzoo.TurnRecorder(env, rings[0], agents=["x"])
    recorder = relive_pettingzoo.TurnRecorder(recorder, rings[1], agents=["o"])
    for stop in ("", "at an end", ""):
        play(recorder, np.random.default_rng(0), stop)
    assert [steps_stored(ring, 0) for ring in rings] == [steps_in(env.log, agent)[0] for agent in "xo"]
    assert [len(ring) for ring in rings] == [9, 6]


def test_what_cannot_be_recorded_is_refused() -> None:
    ring = relive.RingReplayBuffer(10, streams=2)
    for env, message in (
        (ring, "env must be an environment, got .*: the order is env, buffer"),
        (3, "env must be an AEC environment, which has possible_agents, got 3: a JointReplayBuffer"),
    ):
        with pytest.raises(errors.ArgumentTypeError, match=message):
            relive_pettingzoo.TurnRecorder(env, ring)
    for agents in ([], ["x", "x"], ["y"]):
        with pytest.raises(errors.ArgumentError, match=r"agents must be different ones of \['x', 'o'\], got"):
            relive_pettingzoo.TurnRecorder(Duel(), ring, agents=agents)
    with pytest.raises(errors.ArgumentError, match=r"buffer must have streams=2, one for each of the agents .*, got 3"):
        relive_pettingzoo.TurnRecorder(Duel(), relive.RingReplayBuffer(10, streams=3))
    with pytest.raises(errors.ArgumentTypeError, match="buffer must be a ColumnReplayBuffer"):
        relive_pettingzoo.TurnRecorder(Duel(), [])  # type: ignore[arg-type]


def test_other_attributes_are_those_of_the_environment() -> None:
    recorder = duel()
    assert recorder.action_space("x") == spaces.Discrete(1000)
    with pytest.raises(AttributeError, match="TurnRecorder has no attribute '_private'"):
        recorder._private  # noqa: B018
    assert copy.deepcopy(recorder).possible_agents == ["x", "o"]


@pytest.mark.parametrize("name", ["tictactoe_v3", "connect_four_v3"])
def test_games_of_pettingzoo_are_stored_as_in_their_log(name: str) -> None:
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed")
    game: Any = pytest.importorskip(f"pettingzoo.classic.{name}", reason="pettingzoo[classic] is not installed")
    env, rng = game.env(), np.random.default_rng(0)
    buffer = relive.RingReplayBuffer(10_000, streams=2, seed=0)
    recorder = relive_pettingzoo.TurnRecorder(env, buffer)
    log: list[list[Row]] = [[], []]
    for _ in range(50):
        recorder.reset()
        moves: list[list[Any]] = [[], []]
        for agent in recorder.agent_iter():
            observation, _, terminated, truncated, _ = recorder.last()
            if terminated or truncated:
                break
            action = int(rng.choice(np.flatnonzero(observation["action_mask"])))
            moves[env.possible_agents.index(agent)].append((observation["observation"].tolist(), action))
            recorder.step(action)
        won = env.rewards
        for number, agent in enumerate(env.possible_agents):
            last = len(moves[number]) - 1
            log[number] += [(*move, float(won[agent] * (t == last)), t == last) for t, move in enumerate(moves[number])]
    recorder.reset()
    assert buffer.get_stats().terminated_episodes == 100
    for number in range(2):
        stored = list[Row]()
        for episode in stored_episodes.stored_episodes(buffer):
            if episode.stream == number:
                seen, rewards = episode.observations["observation"][:-1].tolist(), episode.rewards.tolist()
                stored += zip(seen, episode.actions.tolist(), rewards, episode.terminated.tolist(), strict=True)
        assert stored == log[number]
    batch = buffer.read(buffer.eligible_keys())
    assert {-1.0, 1.0} <= set(batch.reward.tolist()) <= {-1.0, 0.0, 1.0}


@pytest.mark.parametrize(
    ("name", "count", "settings"),
    [("butterfly.knights_archers_zombies_v11", 1, {"max_cycles": 250}), ("classic.leduc_holdem_v4", 20, {})],
)
def test_agents_of_pettingzoo_that_die_or_never_act(name: str, count: int, settings: dict[str, Any]) -> None:
    """Knights die one by one; who folds first in Leduc pays an agent that has not acted yet."""
    pytest.importorskip("pettingzoo", reason="pettingzoo is not installed")
    game: Any = pytest.importorskip(f"pettingzoo.{name}", reason="games of pettingzoo are not installed")
    env, rng, dropped = game.env(**settings), np.random.default_rng(0), 0
    buffer = relive.RingReplayBuffer(10_000, streams=len(env.possible_agents), seed=0)
    recorder = relive_pettingzoo.TurnRecorder(env, buffer)
    log: dict[str, list[Row]] = {agent: [] for agent in env.possible_agents}
    for seed in range(count):
        recorder.reset(seed=seed)
        moves = dict[str, int]()
        for agent in recorder.agent_iter():
            observation, reward, terminated, truncated, info = recorder.last()
            if agent in moves:
                log[agent].append((moves.pop(agent), float(reward), bool(terminated)))
            else:
                dropped += reward != 0
            if not (terminated or truncated):
                masks = [part["action_mask"] for part in (observation, info) if "action_mask" in part]
                legal = np.flatnonzero(masks[0]) if masks else np.arange(env.action_space(agent).n)
                moves[agent] = int(rng.choice(legal))
            recorder.step(moves.get(agent))
    for number, agent in enumerate(env.possible_agents):
        stored = list[Row]()
        for episode in stored_episodes.stored_episodes(buffer):
            if episode.stream == number:
                columns = (episode.actions, episode.rewards, episode.terminated)
                stored += zip(*(column.tolist() for column in columns), strict=True)
        assert stored == log[agent]
    assert recorder.dropped_rewards == dropped
    assert (dropped > 0) == name.startswith("classic")


def test_tic_tac_toe_in_five_moves() -> None:
    game: Any = pytest.importorskip("pettingzoo.classic.tictactoe_v3", reason="pettingzoo is not installed")
    recorder = relive_pettingzoo.TurnRecorder(game.env(), relive.RingReplayBuffer(100, streams=2))
    recorder.reset()
    for action in (0, 1, 3, 4, 6, None, None):
        recorder.step(action)
    (x, o) = stored_episodes.stored_episodes(recorder.buffer)  # type: ignore[arg-type]
    assert (x.actions.tolist(), x.rewards.tolist(), x.status) == ([0, 3, 6], [0.0, 0.0, 1.0], "COMPLETED")
    assert (o.actions.tolist(), o.rewards.tolist(), o.status) == ([1, 4], [0.0, -1.0], "COMPLETED")
