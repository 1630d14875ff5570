#!/usr/bin/env bash
# torchrl 0.14.1: the flag `terminated` of an n-step window is that of its first step.
# Expected: ("next", "terminated") belongs to the step that leads to ("next", "observation"), as in a batch of one step.
# Seen: of an episode that terminates, the windows of three steps whose last one or two terminate have False, so that
# reward + gamma^n * ~terminated * value bootstraps after the end.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 torchrl==0.14.1 tensordict==0.14.3 numpy==2.4.6
"$work/venv/bin/python" -W ignore - <<'PY'
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs.transforms import MultiStepTransform


def episode(first):
    """Return five steps from the observation `first` on, the last of which terminates."""
    now = torch.arange(first, first + 5)[:, None]
    no, is_last = torch.zeros(5, 1, dtype=torch.bool), now == first + 4
    ends = {"done": is_last, "terminated": is_last, "truncated": no}
    following = {"observation": now + 1, "reward": torch.ones(5, 1), **ends}
    return TensorDict({"observation": now, "done": no, "terminated": no, "truncated": no, "next": following}, [5])


transform = MultiStepTransform(n_steps=3, gamma=0.5)
buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), transform=transform, batch_size=4)
buffer.extend(episode(0))
buffer.extend(episode(100))  # The last steps of the first episode are stored now.
found = {}
for row in (buffer[i] for i in range(len(buffer))):
    after = row["next"]
    found[int(row["observation"])] = int(after["observation"]), float(after["reward"]), bool(after["terminated"])
print("observation: (next observation, reward, terminated)", found)
assert found[2] == (5, 1.75, False)
assert found[3] == (5, 1.5, False)
assert found[4] == (5, 1.0, True)
PY
