#!/usr/bin/env bash
# tensordict 0.15.3: half(), float() and to(dtype) of a TensorDict convert integers and bools too, as those of a tensor
# do, and unlike those of a torch module, which leave them alone. A token id above 2048 becomes another one in float16.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 tensordict==0.15.3
"$work/venv/bin/python" - <<'PY'
import tensordict
import torch

td = tensordict.TensorDict({"ids": torch.tensor([50257]), "mask": torch.tensor([True]), "logprobs": torch.tensor([-0.5])}, [1])
half = td.half()
seen = {name: (str(each.dtype), each.item()) for name, each in half.items()}
print("tensordict", tensordict.__version__, seen)
assert seen == {"ids": ("torch.float16", 50272.0), "mask": ("torch.float16", 1.0), "logprobs": ("torch.float16", -0.5)}
PY
