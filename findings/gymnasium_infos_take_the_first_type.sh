#!/usr/bin/env bash
# Gymnasium 1.4.0: infos of vector environments take the type of the first environment.
#
# Expected: an info of 2.5 is 2.5, whatever the environment before it said; None is told from a number.
# Seen: after 1 it is 2, after True it is True; after 1.0, None is NaN. No warning.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet gymnasium==1.4.0
"$work/venv/bin/python" - <<'PROGRAM'
import functools

import gymnasium
import numpy as np


class Informing(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, info):
        self.info = info

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 0.0, False, False, {"x": self.info}


def seen(*infos):
    envs = gymnasium.vector.SyncVectorEnv([functools.partial(Informing, info) for info in infos])
    envs.reset()
    return envs.step(np.zeros(2, int))[-1]["x"].tolist()


print("gymnasium", gymnasium.__version__)
found = [seen(1, 2.5), seen(True, 2.5), seen(1.0, None), seen(2.5, 1)]
print("expected: [1, 2.5], [True, 2.5], [1.0, None], [2.5, 1]")
print("seen:", *found)
raise SystemExit(str(found) != "[[1, 2], [True, True], [1.0, nan], [2.5, 1.0]]")
PROGRAM
