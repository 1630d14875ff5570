#!/usr/bin/env bash
# Gymnasium 1.4.0: the discounted return behind NormalizeReward does not begin anew with an episode.
#
# Expected: with rewards of 1 and gamma 0.5, each episode of three steps has the sums 1, 1.5, 1.75.
# Seen: a time limit and the reset after it change nothing: 1, 1.5, 1.75, 1.875, ... A termination clears the sum one step
# early: the last reward is left out of its own episode and is the first of the next one: 1, 1.5, 1, 1.5, 1.75, 1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet gymnasium==1.4.0
"$work/venv/bin/python" - <<'PROGRAM'
import gymnasium


class Three(gymnasium.Env):
    """Episodes of three steps, each with reward 1."""

    observation_space, action_space = gymnasium.spaces.Discrete(4), gymnasium.spaces.Discrete(1)

    def __init__(self, end):
        self.end = end

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return 0, {}

    def step(self, action):
        self.time += 1
        is_end = self.time == 3
        return self.time, 1.0, is_end and self.end == "terminated", is_end and self.end == "truncated", {}


sums = {}
for end in ("terminated", "truncated"):
    env = gymnasium.wrappers.NormalizeReward(Three(end), gamma=0.5)
    sums[end] = []
    for _ in range(2):
        env.reset()
        for _ in range(3):
            env.step(0)
            sums[end].append(float(env.discounted_reward[0]))
print("gymnasium", gymnasium.__version__, sums)
assert sums == {"terminated": [1, 1.5, 1, 1.5, 1.75, 1], "truncated": [1, 1.5, 1.75, 1.875, 1.9375, 1.96875]}
PROGRAM
