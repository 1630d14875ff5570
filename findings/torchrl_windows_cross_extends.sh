#!/usr/bin/env bash
# torchrl 0.14.1: MultiStepTransform joins what two calls of `extend` brought.
# Expected: an n-step window ends where the rollout ends that was added.
# Seen: the last n steps wait for the next `extend`, and their windows run on into it: next observation 101 after 3.
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


def rollout(first, steps=5):
    """Return steps of an environment that was reset to `first`, and was not done when the rollout was cut."""
    now = torch.arange(first, first + steps)[:, None]
    no = torch.zeros(steps, 1, dtype=torch.bool)
    ends = {"done": no, "terminated": no, "truncated": no}
    following = {"observation": now + 1, "reward": torch.ones(steps, 1), **ends}
    return TensorDict({"observation": now, **ends, "next": following}, [steps])


transform = MultiStepTransform(n_steps=3, gamma=0.5)
buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(100), transform=transform, batch_size=4)
buffer.extend(rollout(0))
print("rows after 5 steps:", len(buffer))
assert len(buffer) == 2
buffer.extend(rollout(100))
rows = {int(row["observation"]): int(row["next", "observation"]) for row in (buffer[i] for i in range(len(buffer)))}
print("observation -> next observation of three steps:", rows)
assert rows == {0: 3, 1: 4, 2: 5, 3: 101, 4: 102, 100: 103, 101: 104}
PY
