#!/usr/bin/env bash
# torch 2.13.0 and numpy: a float64 that becomes a float16 is rounded once by numpy and twice by torch.
#
# Expected: both round to nearest, ties to even, so the bits are the same.
# Seen: torch rounds to float32 first. A number just above the middle between two halves becomes that middle, and then
# the even one below it: 76 of a million random numbers differ in the last bit.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PROGRAM'
import numpy as np
import torch

middle = 1 + 2**-11  # Between the halves 1 and 1 + 2**-10.
above = np.array([middle + 2**-40])
by_numpy, by_torch = above.astype(np.float16).item(), torch.from_numpy(above).to(torch.float16).item()
print("torch", torch.__version__, "numpy", np.__version__)
print("1 + 2**-11 + 2**-40 by numpy:", by_numpy, " by torch:", by_torch)
many = np.random.default_rng(0).random(10**6)
once, twice = many.astype(np.float16), torch.from_numpy(many).to(torch.float16).numpy()
differ, in_two = np.count_nonzero(once != twice), many.astype(np.float32).astype(np.float16)
print("of a million random numbers differ:", differ, " of those rounded to float32 first:", np.count_nonzero(in_two != twice))
raise SystemExit(not (by_numpy == 1 + 2**-10 and by_torch == 1.0 and 0 < differ < 1000 and (in_two == twice).all()))
PROGRAM
