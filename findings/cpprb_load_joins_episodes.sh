#!/usr/bin/env bash
# cpprb 11.0.0: a buffer that was saved and loaded again has other next observations, where `next_of` is set.
# Expected: `load_transitions` restores what `save_transitions` saved.
# Seen: at the end of an episode that did not terminate, the next observation is the first of the next episode.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet cpprb==11.0.0 numpy==2.4.6
cd "$work"
"$work/venv/bin/python" -W ignore - <<'PY'
from cpprb import ReplayBuffer


def new():
    return ReplayBuffer(100, {"obs": {}, "rew": {}, "done": {}}, next_of="obs")


def following(buffer):
    return buffer.get_all_transitions()["next_obs"].ravel().astype(int).tolist()


saved, loaded = new(), new()
for episode in range(3):
    for t in range(3):
        saved.add(obs=10 * episode + t, next_obs=10 * episode + t + 1, rew=0.0, done=0.0)
    saved.on_episode_end()
saved.save_transitions("saved")
loaded.load_transitions("saved.npz")
print("saved ", following(saved))
print("loaded", following(loaded))
assert following(saved) == [1, 2, 3, 11, 12, 13, 21, 22, 23]
assert following(loaded) == [1, 2, 10, 11, 12, 20, 21, 22, 23]
PY
