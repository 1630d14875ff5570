#!/usr/bin/env bash
# Gymnasium 1.4.0: vector environments in jax stand still while others are reset.
#
# Expected of NEXT_STEP: the call after an end resets the environments that ended, and steps the others.
# Seen: the others keep their state, and get the reward and the flags of a step that was not made.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet 'gymnasium[jax]==1.4.0'
"$work/venv/bin/python" - <<'PROGRAM'
import gymnasium
import numpy as np

envs = gymnasium.make_vec("phys2d/CartPole-v1", 64, vectorization_mode="vector_entry_point")
print("gymnasium", gymnasium.__version__, "declares", envs.metadata["autoreset_mode"])
observations, _ = envs.reset(seed=1)
ended, rng = np.zeros(64, bool), np.random.default_rng(0)
going_on = still = rewarded = false_ends = 0
for _ in range(200):
    before = np.asarray(observations)
    observations, rewards, terminated, truncated, _ = envs.step(rng.integers(0, 2, 64))
    after = np.asarray(observations)
    if ended.any():
        stood = ~ended & (after == before).all(axis=1)
        inside = (abs(after[:, 0]) < 2.4) & (abs(after[:, 2]) < 0.2)
        going_on, still = going_on + (~ended).sum(), still + stood.sum()
        rewarded += (stood & (np.asarray(rewards) == 1)).sum()
        false_ends += (stood & inside & np.asarray(terminated)).sum()
    ended = np.asarray(terminated) | np.asarray(truncated)
print(f"expected: 0 of {going_on} environments that go on beside a reset keep their observation")
print(f"seen: {still} do, {rewarded} of them with a reward; {false_ends} are said to end inside the limits")
raise SystemExit(not still == rewarded == going_on > false_ends > 0)
PROGRAM
