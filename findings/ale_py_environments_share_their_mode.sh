#!/usr/bin/env bash
# ale-py 0.12.1 beside Gymnasium 1.4.0: an AtariVectorEnv changes what others say of their resets.
#
# Expected: env.metadata['autoreset_mode'] is the mode that this environment was made with.
# Seen: all share the dict of gymnasium.vector.VectorEnv. The last one made speaks for all, also for vector environments
# of other classes that declare no mode. env.autoreset_mode is right.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet ale-py==0.12.1 gymnasium==1.4.0
"$work/venv/bin/python" - <<'PROGRAM'
import ale_py
import gymnasium
from gymnasium.vector import AutoresetMode, VectorEnv


class Other(VectorEnv):
    num_envs = 1


print("ale-py", ale_py.__version__, "gymnasium", gymnasium.__version__)
other = Other()
before = other.metadata.get("autoreset_mode")
first = ale_py.AtariVectorEnv("pong", 1, autoreset_mode=AutoresetMode.SAME_STEP)
ale_py.AtariVectorEnv("pong", 1, autoreset_mode=AutoresetMode.NEXT_STEP)
found = [before, other.metadata.get("autoreset_mode"), first.metadata["autoreset_mode"], first.autoreset_mode]
print("expected: None before, None after; the metadata of the first one say SAME_STEP, as its attribute")
print("seen:", *found)
raise SystemExit(found != [None, AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
PROGRAM
