#!/usr/bin/env bash
# Gymnasium 1.4.0: AsyncVectorEnv(shared_memory=False) resets twice after an end and a reset.
#
# Expected: reset() after an end starts an episode, and the next step is its first one, as with shared_memory=True.
# Seen: the next step resets again, ignores its action and returns reward 0, at the start of another episode.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet gymnasium==1.4.0
"$work/venv/bin/python" - <<'PROGRAM'
import gymnasium
import numpy as np


class Counting(gymnasium.Env):
    """Observes its episode and its step, of two in an episode; each step has reward 1."""

    observation_space = gymnasium.spaces.MultiDiscrete([100, 100])
    action_space = gymnasium.spaces.Discrete(2)
    episode = -1

    def reset(self, *, seed=None, options=None):
        self.episode, self.time = self.episode + 1, 0
        return np.array([self.episode, self.time]), {}

    def step(self, action):
        self.time += 1
        return np.array([self.episode, self.time]), 1.0, self.time == 2, False, {}


def after_reset(shared_memory):
    envs = gymnasium.vector.AsyncVectorEnv([Counting], shared_memory=shared_memory, context="fork")
    envs.reset()
    for _ in range(2):
        envs.step(np.zeros(1, int))
    first, _ = envs.reset()
    second, rewards, *_ = envs.step(np.zeros(1, int))
    envs.close()
    return first[0].tolist(), second[0].tolist(), rewards.tolist()


print("gymnasium", gymnasium.__version__)
expected, seen = after_reset(True), after_reset(False)
print("expected:", *expected)
print("seen:", *seen)
raise SystemExit((expected, seen) != (([1, 0], [1, 1], [1.0]), ([1, 0], [2, 0], [0.0])))
PROGRAM
