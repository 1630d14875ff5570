"""What a joint write brings, checked as a whole before anything moves: a step of each agent that acts.

Whoever has a key in `actions` is there; what the other mappings hold of others does not matter. So the dicts of a
PettingZoo environment can be given as they are, which may still hold who has just ended, and already who comes next.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from relive import errors
from relive.common import validation
from relive.kernels import history as history_lib
from relive.schema import step_checks

Steps: TypeAlias = dict[int, step_checks.OneStep]
"""A step of each agent that is there, by the number of the agent."""


def checked(
    numbers: Mapping[str, int],
    histories: Sequence[history_lib.History],
    stream: int,
    observations: Any,
    actions: Any,
    rewards: Any,
    next_observations: Any,
    terminations: Any,
    truncations: Any,
    extras: Mapping[str, Any],
) -> Steps:
    """Answers the steps that the arguments of `JointReplayBuffer.add` describe, and changes nothing.

    Args:
        numbers: The numbers of the agents by name.
        histories: What each agent has lived.
        stream: Which environment they are in.
        observations: Mappings with at least the agents in `actions`, as the next two.
        actions: Who is there, and does what.
        rewards: What they got.
        next_observations: What came after; who terminated may be left out.
        terminations: Whether they terminated; None for nobody.
        truncations: Whether they were truncated; None for nobody.
        extras: A mapping for each extra; whose schema has not that extra may be left out.

    Raises:
        SchemaError: A value does not fit its field; the message says of which agent.
        ArgumentError: An agent is unknown or missing somewhere, nobody is there, or another argument breaks its rule.
    """
    flags = (("terminations", terminations), ("truncations", truncations))
    required = {"observations": observations, "rewards": rewards} | {
        name: each for name, each in flags if each is not None
    }
    for name, value in {"actions": actions, "next_observations": next_observations, **required, **extras}.items():
        if not isinstance(value, Mapping):
            raise errors.ArgumentTypeError(f"{name} must be a mapping by agent, got {validation.shown(value)}")
    if not actions:
        raise errors.ArgumentError("actions must be of at least one agent, got none")
    for agent in actions:
        if agent not in numbers:
            raise errors.ArgumentError(f"actions must be of {', '.join(numbers)}, got one of {validation.shown(agent)}")
    steps: Steps = {}
    for agent, action in actions.items():
        for name, values in required.items():
            if agent not in values:
                raise errors.ArgumentError(f"{name} must have every agent in actions, got none of {agent!r}")
        number, next_observation = numbers[agent], next_observations.get(agent)
        try:
            step = step_checks.one_step(
                histories[number].rows,
                histories[number].timeline.streams,
                stream,
                observations[agent],
                action,
                rewards[agent],
                next_observation,
                _flag(terminations, agent),
                _flag(truncations, agent),
                {name: values[agent] for name, values in extras.items() if agent in values},
            )
        except errors.ArgumentError as error:
            raise type(error)(f"agent {agent!r}: {error}") from None
        *_, is_terminated, _ = step
        if next_observation is None and not is_terminated:
            raise errors.ArgumentError(
                f"next_observations must have every agent in actions that has not terminated, got none of {agent!r}"
            )
        steps[number] = step
    return steps


def _flag(flags: Mapping[str, Any] | None, agent: str) -> Any:
    return False if flags is None else flags[agent]
