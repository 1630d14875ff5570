#!/usr/bin/env bash
# dopamine-rl 4.1.2: the padding behind a truncated episode is drawn as a step of the agent.
# Expected: only steps that were added can be drawn.
# Seen: behind `episode_end=True` without `terminal`, a row of padding (action 0, reward 0) is valid.
# Its stack begins with the last frame of one episode, and its next frame is the first of another.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet tensorflow-cpu==2.15.1 gin-config==0.5.0 'numpy<2'
"$work/venv/bin/pip" install --quiet --no-deps dopamine-rl==4.1.2
"$work/venv/bin/python" -W ignore - <<'PY'
import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
from dopamine.tf.replay_memory.circular_replay_buffer import OutOfGraphReplayBuffer
import numpy as np

found = {}
for is_terminal in (True, False):
    buffer = OutOfGraphReplayBuffer((), 2, replay_capacity=50, batch_size=4, observation_dtype=np.float32)
    for t in range(1, 9):
        is_end = t == 4
        buffer.add(float(t), 7, 1.0, terminal=int(is_end and is_terminal), episode_end=is_end)
    rows = [number for number in range(10) if buffer.is_valid_transition(number)]
    states, actions, rewards, following = buffer.sample_transition_batch(len(rows), indices=rows)[:4]
    found[is_terminal] = [
        (states[i].tolist(), int(actions[i]), float(rewards[i]), following[i].tolist())
        for i in range(len(rows))
        if actions[i] != 7  # The only action that was added.
    ]
print("invented steps behind a termination:", found[True])
print("invented steps behind a truncation:", found[False])
assert found == {True: [], False: [([4.0, 0.0], 0, 0.0, [0.0, 5.0])]}
PY
