"""PettingZoo: a wrapper that records games whose agents act in turn, each agent into a stream of its own.

    turn of x            turn of o            turn of x            ...   end
    last    o0           last    o0'          last    o1, r            last    o2, r, True
    step    a0           step    a0'          step    a1               step    None
            │                                         ▲ │                      ▲
            └── the first step of x: o0, a0, r, o1 ───┘ └── its last one ──────┘

All the reward that an agent is given between two of its turns belongs to the step from the one to the other, and so
does an end, whichever agent brought it about.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

from relive import errors
from relive.common import validation
from relive.integrations.gymnasium import recording

Turn: TypeAlias = tuple[Any, Any, bool, bool]
"""What an agent finds at its turn: observation, reward since its last turn, and whether it is terminated, truncated."""

_MEMBERS = ("possible_agents", "agent_iter", "last", "observation_space", "action_space")
"""What an AEC environment has before its first reset, and a parallel one has not all of."""


class TurnRecorder:
    """A wrapper that records the turns of an AEC environment, each agent into a stream of one buffer.

    Every other attribute is that of the environment, and what it returns is passed on unchanged. A step of an agent is
    stored at its next turn, so an agent must be given its turn after its end, as `agent_iter` does; `reset` takes
    those turns that are left. If `reset` is called in mid-game, episodes still open are truncated at each agent's last
    turn, and what it did there is forgotten.

    Nothing of PettingZoo itself is needed: an environment with the same methods will do.

    Args:
        env: The environment, in all its other wrappers.
        buffer: The buffer to record into, with a stream for each agent, in the order of `agents`. If its limiter holds
            inserts back, `step` raises before the environment is stepped; a ThreadSafeReplayBuffer waits.
        agents: The agents to record, None for all `possible_agents`. They must have the same spaces: record others by
            another TurnRecorder around this one, into another buffer.

    Attributes:
        env: The environment.
        buffer: The buffer.
        dropped_rewards: How many rewards other than 0 were given to an agent that had not acted in the game yet, and so
            belong to no step.

    Raises:
        ArgumentError: An argument is invalid.
    """

    def __init__(self, env: Any, buffer: recording.Buffer, *, agents: Iterable[Any] | None = None) -> None:
        recording.require_order(env)
        if missing := [name for name in _MEMBERS if not hasattr(env, name)]:
            rule = f"env must be an AEC environment, which has {missing[0]}, got {validation.short_repr(env)}"
            raise errors.ArgumentTypeError(f"{rule}: a JointReplayBuffer takes the steps of a parallel one")
        self._possible = list(env.possible_agents)
        recorded = self._possible if agents is None else validation.items("agents", agents, "agents")
        if not recorded or len(set(recorded)) < len(recorded) or not set(recorded) <= set(self._possible):
            raise errors.ArgumentError(f"agents must be different ones of {self._possible}, got {recorded}")
        self._streams = {agent: stream for stream, agent in enumerate(recorded)}
        seen, acted = (_common_space(env, name, recorded) for name in ("observation_space", "action_space"))
        self._recording = recording.Recording(buffer, seen, acted, (), 1, None)
        if self._recording.streams != len(recorded):
            rule = f"buffer must have streams={len(recorded)}, one for each of the agents {recorded}"
            raise errors.ArgumentError(f"{rule}, got {self._recording.streams}")
        self.env, self.buffer, self._action_space = env, buffer, acted
        self.dropped_rewards = 0
        self._is_running = False
        # What each agent saw and did at its last turn, and the extras of that.
        self._moves: dict[Any, tuple[Any, Any, Any]] = {}
        self._seen: Turn | None = None

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the environment."""
        if name == "env" or name.startswith("_"):  # While a copy is made, there is no environment yet.
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.env, name)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """Reset the environment; the episodes of agents that are not done end as truncated.

        Raises:
            NotReadyError: The limiter holds back the last step of an agent that is done; nothing was reset.
        """
        while self._is_running and self.env.agents and any(self.last()[2:4]):
            self.step(None)
        self._is_running, self._seen = False, None
        self._moves.clear()
        self.env.reset(seed=seed, options=options)
        for stream in self._streams.values():
            self.buffer.end_episode(stream=stream)
        self._is_running = True

    def last(self, observe: bool = True) -> Any:
        """Return observation, reward, termination, truncation and info of the agent whose turn it is."""
        if not observe:
            return self.env.last(observe=False)
        answer = self.env.last()
        if self.env.agent_selection in self._streams:
            observation, reward, terminated, truncated, _ = answer
            self._seen = self._recording.observed(observation), reward, bool(terminated), bool(truncated)
        return answer

    def step(self, action: Any, **extras: Any) -> None:
        """Store the step that ends at this turn, if there is one, and step the environment.

        What is given is checked before anything is stored; after any later error, `reset` must follow.

        Args:
            action: The action of the agent whose turn it is; None if it is done.
            extras: The other fields of the schema, such as the log-probability of the action.

        Raises:
            NotReadyError: No game is running, or the limiter holds inserts back.
            ArgumentError: An agent that is done acts, or it is unknown.
            SchemaError: A value does not fit its field.
        """
        if not self._is_running or not self.env.agents:
            raise errors.NotReadyError("step needs a game that is running: call reset first")
        agent = self.env.agent_selection
        if agent not in self._possible:
            raise errors.ArgumentError(f"agent_selection must be one of {self._possible}, got {agent!r}")
        if agent not in self._streams:
            self.env.step(action, **extras)
            return
        turn, move = self._turn(), None
        if not any(turn[2:]):
            taken, extras = self._recording.given(action, extras)
            recording.check_discrete(self._action_space, action, takes_tensors=False)
            move = turn[0], taken, extras
        elif action is None:
            self._recording.check_limiter()
        else:
            rule = f"action must be None, as agent {agent!r} is done"
            raise errors.ArgumentError(f"{rule}, got {validation.short_repr(action)}")
        self._is_running, self._seen = False, None
        self._store(agent, *turn)
        if move is not None:
            self._moves[agent] = move
        self.env.step(action)
        self._is_running = True

    def _turn(self) -> Turn:
        """Return what the agent whose turn it is finds; `last` may have been asked already."""
        if self._seen is None:
            self.last()
        assert self._seen is not None
        return self._seen

    def _store(self, agent: Any, after: Any, reward: Any, terminated: bool, truncated: bool) -> None:
        """Store the step of an agent that lasts from its last turn to this one; the first turn ends none."""
        if (move := self._moves.pop(agent, None)) is None:
            self.dropped_rewards += reward != 0
            return
        before, action, extras = move
        ends = {"terminated": terminated, "truncated": truncated}
        stream = self._streams[agent]
        self._recording.write(self.buffer.add, before, action, reward, after, stream=stream, **ends, **extras)


def _common_space(env: Any, name: str, agents: list[Any]) -> Any:
    """Return the space of all these agents; raise ArgumentError if they differ."""
    first = agents[0]
    space = getattr(env, name)(first)
    for agent in agents[1:]:
        if (other := getattr(env, name)(agent)) != space:
            rule = f"{name} must be the same for all agents of one buffer, got {space} for {first!r}"
            raise errors.ArgumentError(f"{rule} and {other} for {agent!r}: agents= names those to record")
    return space
