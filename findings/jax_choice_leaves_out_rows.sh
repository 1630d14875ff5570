#!/usr/bin/env bash
# jax 0.10.2: jax.random.choice with p= cannot draw every one of ten million equally likely rows.
#
# Expected: after 30 million draws of 10 million rows with equal p, 95 % of the rows were drawn, as without p.
# Seen: 81 %. Each draw is one float32 in [0, 1), of which there are 2^23: more rows than that cannot be drawn, whatever
# the keys. Without p, integers are drawn.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet jax==0.10.2 numpy==2.4.6
"$work/venv/bin/python" - <<'PROGRAM'
import jax
from jax import numpy as jnp
import numpy as np

rows, shares = 10_000_000, {}
for name, p in (("with p", jnp.full(rows, 1 / rows)), ("without p", None)):
    is_drawn = np.zeros(rows, bool)
    for seed in range(3):
        is_drawn[np.asarray(jax.random.choice(jax.random.key(seed), rows, (rows,), p=p))] = True
    shares[name] = float(is_drawn.mean())
print("jax", jax.__version__, "share of rows drawn, expected", round(1 - np.exp(-3), 3), shares)
assert shares["with p"] < 2**23 / rows < 0.94 < shares["without p"]
PROGRAM
