#!/usr/bin/env bash
# tianshou 2.0.1: the parts of a VectorReplayBuffer draw the same places.
# Expected: the steps drawn from one environment are independent of those drawn from another.
# Seen: every part has seed 42, and a batch holds the same places of each part.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 tianshou==2.0.1 numpy==2.4.6
"$work/venv/bin/python" -W ignore - <<'PY'
import numpy as np
from tianshou.data import Batch, VectorReplayBuffer

buffer = VectorReplayBuffer(4_000, 4)
for t in range(1_000):
    flags = {"terminated": False, "truncated": False, "done": False}
    step = Batch(obs=np.array([t]), act=0, rew=0.0, obs_next=np.array([t + 1]), info={}, **flags)
    buffer.add(Batch.stack([step] * 4), buffer_ids=np.arange(4))
_, indices = buffer.sample(64)
places = [(indices[indices // 1_000 == part] % 1_000).tolist() for part in range(4)]
shortest = min(map(len, places))
for part, drawn in enumerate(places):
    print("environment", part, "places", drawn[:6], "...")
assert shortest > 4
assert all(drawn[:shortest] == places[0][:shortest] for drawn in places)
PY
