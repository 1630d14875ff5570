#!/usr/bin/env bash
# verl 0.9.1: DataProto.from_tensordict drops nested TensorDicts.
# Expected: an entry that is a TensorDict itself is kept, or refused.
# Seen: it is left out, without an error or a warning. Tensors arrive, also under flat names such as "extras/values".
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 tensordict==0.15.3 ray==2.60.0 omegaconf transformers codetiming orjson
"$work/venv/bin/pip" install --quiet --no-deps verl==0.9.1
"$work/venv/bin/python" -W error::UserWarning:__main__ - <<'PY'
import importlib.metadata

import tensordict
import torch
from verl import protocol

nested = tensordict.TensorDict({"advantages": torch.zeros(2)}, [2])
td = tensordict.TensorDict({"tokens": torch.ones(2, 3), "extras": nested, "extras/values": torch.zeros(2)}, [2])
proto = protocol.DataProto.from_tensordict(td)
seen = sorted([*proto.batch.keys(), *proto.non_tensor_batch, *proto.meta_info])
print("verl", importlib.metadata.version("verl"), seen)
assert seen == ["extras/values", "tokens"]
PY
