#!/usr/bin/env bash
# verl 0.9.1: the GRPO advantage of a group of one is its reward.
# Expected: a response without others to compare it with has the advantage 0, as in TRL, or is refused.
# Seen: its mean is taken as 0 and its deviation as 1, so that the reward itself is the advantage.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 verl==0.9.1 numpy==2.4.6
"$work/venv/bin/python" -W ignore - <<'PY'
import numpy as np
import torch
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

rewards = torch.tensor([[1.0], [0.0], [0.0], [0.0], [5.0]])
groups = np.array(["a", "a", "a", "a", "b"], dtype=object)
advantages, _ = compute_grpo_outcome_advantage(rewards, torch.ones(5, 1), groups)
found = [round(value, 3) for value in advantages.ravel().tolist()]
print("rewards", rewards.ravel().tolist(), "advantages", found)
assert found == [1.5, -0.5, -0.5, -0.5, 5.0]
PY
