#!/usr/bin/env bash
# tianshou 2.0.1: PrioritizedVectorReplayBuffer drops `weight_norm=False`.
# Expected: the weights of a vector buffer with one part are those of the plain buffer with the same arguments.
# Seen: the plain buffer returns them as they are; the vector buffer divides them by the largest of the batch.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 tianshou==2.0.1 numpy==2.4.6
"$work/venv/bin/python" -W ignore - <<'PY'
import numpy as np
from tianshou.data import Batch, PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer

settings = {"alpha": 1.0, "beta": 1.0, "weight_norm": False}
plain, vector = PrioritizedReplayBuffer(4, **settings), PrioritizedVectorReplayBuffer(4, 1, **settings)
for t in range(4):
    flags = {"terminated": False, "truncated": False, "done": False}
    step = Batch(obs=np.array([t]), act=0, rew=0.0, obs_next=np.array([t + 1]), info={}, **flags)
    plain.add(step)
    vector.add(Batch.stack([step]), buffer_ids=[0])
largest = []
for buffer in (plain, vector):
    buffer.update_weight(np.arange(4), np.array([1e-6, 1.0, 2.0, 4.0]))
    batch, indices = buffer.sample(64)
    assert 0 not in indices  # It has a priority of almost 0, and by far the largest weight.
    largest.append(float(batch.weight.max()))
print("largest weight of a batch: plain", largest[0], "vector", largest[1])
assert largest[0] < 1e-5
assert largest[1] == 1.0
PY
