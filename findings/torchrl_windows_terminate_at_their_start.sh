#!/usr/bin/env bash
# torchrl 0.14.1: the flag `terminated` of an n-step window is that of its first step.
# Expected: ("next", "terminated") belongs to the step that leads to ("next", "observation"), as in a batch of one step.
# Seen: of an episode that terminates, the windows of three steps whose last one or two terminate have False, so that
# reward + gamma^n * ~terminated * value bootstraps after the end.
set -euo pipefail

python3 -m venv "${WORK:=$(mktemp -d)}"
"$WORK/bin/pip" install --quiet torch==2.13.0 torchrl==0.14.1 tensordict==0.14.3 numpy==2.4.6
"$WORK/bin/python" -W ignore - <<'PY'
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs.transforms import MultiStepTransform

now = torch.arange(5)[:, None]
no, is_last = torch.zeros(5, 1, dtype=torch.bool), now == 4
ends = {"done": is_last, "terminated": is_last, "truncated": no}
following = {"observation": now + 1, "reward": torch.ones(5, 1), **ends}
episode = TensorDict({"observation": now, "done": no, "terminated": no, "truncated": no, "next": following}, [5])
transform = MultiStepTransform(n_steps=3, gamma=0.5)
buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), transform=transform, batch_size=4)
buffer.extend(episode)
rows = [buffer[i] for i in range(len(buffer))]
found = {
    int(row["observation"]): (int(row["next", "observation"]), float(row["next", "reward"]), bool(row["next", "terminated"]))
    for row in rows
}
print("observation: (next observation, reward, terminated)", found)
assert found[2] == (5, 1.75, False)
assert found[3] == (5, 1.5, False)
assert found[4] == (5, 1.0, True)
PY
