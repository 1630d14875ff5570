#!/usr/bin/env bash
# flashbax 0.1.3: a Vault that is written each time the buffer was filled once stays empty.
# Expected: steps that still are in the buffer, and were added since the last write, are written.
# Seen: after exactly as many steps as the buffer holds, `write` returns 0 and writes nothing; only a line that the
# constructor prints speaks of it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet 'flashbax[vault]==0.1.3' jax==0.10.2 numpy==2.4.6
"$work/venv/bin/python" -W ignore - <<'PY'
import tempfile

import flashbax
from flashbax.vault import Vault
import jax.numpy as jnp

written = {}
for every in (7, 8, 9):
    buffer = flashbax.make_flat_buffer(max_length=8, min_length=2, sample_batch_size=4)
    state = buffer.init({"x": jnp.zeros(1)})
    vault = Vault("vault", state.experience, rel_dir=tempfile.mkdtemp(), vault_uid="a")
    for t in range(4 * every):
        state = buffer.add(state, {"x": jnp.full(1, float(t))})
        if t % every == every - 1:
            vault.write(state)
    written[every] = int(vault.vault_index)
print("steps between writes -> steps in the vault, after four writes:", written)
assert written == {7: 28, 8: 0, 9: 4}
PY
