#!/usr/bin/env bash
# skrl 2.1.1: sequences of a full RandomMemory join the newest rows to the oldest ones.
# Expected: `sample(..., sequence_length=3)` returns three steps that followed each other.
# Seen: a memory of 20 rows that was given 0 to 30 also returns sequences such as 30, 11, 12, in one of nine draws.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 skrl==2.1.1 numpy==2.4.6 gymnasium==1.4.0
"$work/venv/bin/python" -W ignore - <<'PY'
from skrl.memories.torch import RandomMemory
import torch

memory = RandomMemory(memory_size=20, num_envs=1, device="cpu")
memory.create_tensor("time", size=1, dtype=torch.float32)
for time in range(31):
    memory.add_samples(time=torch.tensor([[float(time)]]))
torch.manual_seed(0)
draws = memory.sample(["time"], batch_size=1000, sequence_length=3)[0][0].reshape(-1, 3).int().tolist()
joined = sorted({tuple(times) for times in draws if times[2] != times[0] + 2})
share = sum(tuple(times) in joined for times in draws) / len(draws)
print(f"sequences that are not three steps in a row: {joined}, {share:.1%} of the draws")
assert joined == [(29, 30, 11), (30, 11, 12)]
PY
