#!/usr/bin/env bash
# torch 2.13.0: torch.multinomial with replacement never draws small float32 weights that stand behind large ones.
#
# Expected: a million weights of 0.03 behind a million weights of 1 are drawn in 2.9 % of the draws, in any order.
# Seen: never. On the CPU the weights are summed in float32, one after the other: 1000000 + 0.03 is 1000000 again. In
# front of the large weights they are drawn as expected; float64 weights are drawn as expected in both orders.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 numpy==2.4.6
"$work/venv/bin/python" - <<'PROGRAM'
import torch

torch.manual_seed(0)
large, small = torch.ones(1_000_000), torch.full((1_000_000,), 0.03)
shares = {}
for name, weights, start in (
    ("behind", torch.cat([large, small]), 1_000_000),
    ("in front", torch.cat([small, large]), 0),
    ("behind, float64", torch.cat([large, small]).double(), 1_000_000),
):
    drawn = torch.multinomial(weights, 200_000, replacement=True)
    shares[name] = ((drawn >= start) & (drawn < start + 1_000_000)).float().mean().item()
print("torch", torch.__version__, "share of the small weights, expected", round(0.03 / 1.03, 4), shares)
assert shares["behind"] == 0
assert all(abs(shares[name] - 0.03 / 1.03) < 0.002 for name in ("in front", "behind, float64"))
PROGRAM
