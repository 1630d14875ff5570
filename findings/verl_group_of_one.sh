#!/usr/bin/env bash
# verl 0.9.1: the GRPO advantage of a response that is alone in its group is its reward (less the epsilon in the
# divisor), not 0: its mean is taken as 0 and its deviation as 1. A group of two equal rewards gets zeros.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 tensordict==0.15.3 ray==2.60.0 omegaconf transformers codetiming orjson
"$work/venv/bin/pip" install --quiet --no-deps verl==0.9.1
"$work/venv/bin/python" -W ignore - <<'PY'
import importlib.metadata

import numpy as np
import torch
from verl.trainer.ppo import core_algos

rewards, mask = torch.tensor([[0.5], [0.5], [0.5]]), torch.ones(3, 1)
found, _ = core_algos.compute_grpo_outcome_advantage(rewards, mask, np.array(["pair", "pair", "alone"]))
print("verl", importlib.metadata.version("verl"), found[:, 0].tolist())
assert found[:2, 0].tolist() == [0.0, 0.0]
assert abs(found[2, 0].item() - 0.5) < 1e-5
PY
