#!/usr/bin/env bash
# cpprb 11.0.0: an n-step window whose last step terminates is stored with `done` 0.
# Expected: the window whose last step terminates has done 1, so its target does not bootstrap.
# Seen: only the shorter windows after it have done 1.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet cpprb==11.0.0 numpy==2.4.6
"$work/venv/bin/python" -W ignore - <<'PY'
from cpprb import ReplayBuffer

fields = {"obs": {}, "rew": {}, "next_obs": {}, "done": {}}
buffer = ReplayBuffer(100, fields, Nstep={"size": 3, "gamma": 0.5, "rew": "rew", "next": "next_obs"})
for t in range(5):
    buffer.add(obs=t, rew=1.0, next_obs=t + 1, done=t == 4)
buffer.on_episode_end()
rows = {name: column.ravel().tolist() for name, column in buffer.get_all_transitions().items()}
print(rows)
assert rows["next_obs"][2] == 5  # The window of steps 2, 3 and 4: the last one terminates,
assert rows["done"] == [0, 0, 0, 1, 1]  # and done is 0.
PY
