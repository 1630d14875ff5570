#!/usr/bin/env bash
# SuperSuit 3.11.0: black_death_v3 turns a time limit into a termination, one step late.
#
# Expected: dead agents stay with zeros, and the ends of the environment are passed on as they are.
# Seen: the truncation is not passed on. One more step follows, from the last observation to zeros with reward 0, which
# says that all agents both terminated and were truncated.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet supersuit==3.11.0 pettingzoo==1.27.0 gymnasium==1.4.0
"$work/venv/bin/python" - <<'PROGRAM'
import gymnasium
import numpy as np
import pettingzoo
import supersuit


class Limited(pettingzoo.ParallelEnv):
    """Two agents that observe the time; none dies, and time is up after three steps."""

    metadata, possible_agents = {}, ["a", "b"]

    def observation_space(self, agent):
        return gymnasium.spaces.Box(0, 100, (1,), np.float32)

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)

    def all(self, value):
        return dict.fromkeys(self.agents, value)

    def seen(self):
        return {agent: np.full(1, self.time, np.float32) for agent in self.agents}

    def reset(self, seed=None, options=None):
        self.agents, self.time = list(self.possible_agents), 1
        return self.seen(), self.all({})

    def step(self, actions):
        self.time += 1
        answer = self.seen(), self.all(1.0), self.all(False), self.all(self.time > 3), self.all({})
        if self.time > 3:
            self.agents = []
        return answer


def episode(env):
    env.reset()
    steps = []
    while env.agents:
        observations, rewards, terminated, truncated, _ = env.step(dict.fromkeys(env.agents, 0))
        steps.append((observations["a"].item(), rewards["a"], bool(terminated["a"]), bool(truncated["a"])))
    return steps


print("supersuit", supersuit.__version__, "pettingzoo", pettingzoo.__version__)
expected, seen = episode(Limited()), episode(supersuit.black_death_v3(Limited()))
print("observation, reward, terminated, truncated of an agent")
print("expected:", *expected)
print("seen:    ", *seen)
unended = [(time, 1.0, False, False) for time in (2.0, 3.0, 4.0)]
raise SystemExit(not (expected == [*unended[:2], (4.0, 1.0, False, True)] and seen == [*unended, (0.0, 0.0, True, True)]))
PROGRAM
