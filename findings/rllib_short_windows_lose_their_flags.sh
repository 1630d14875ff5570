#!/usr/bin/env bash
# ray 2.60.0: n-step windows of EpisodeReplayBuffer near the end of an episode lose its flags.
# Expected: a window that is shorter because its episode terminated says so, and says how many steps it has.
# Seen: `is_terminated` is False and `n_step` is 3, though one or two rewards were summed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet 'ray[rllib]==2.60.0' numpy==2.4.6
"$work/venv/bin/python" -W ignore - <<'PY'
import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers import EpisodeReplayBuffer

episode = SingleAgentEpisode(observations=[np.array(0)])
for t in range(6):
    episode.add_env_step(np.array(t + 1), 0, 1.0, terminated=t == 5)
buffer = EpisodeReplayBuffer()
buffer.add(episode)
rows = {}
for row in buffer.sample(500, n_step=3, gamma=0.5, sample_episodes=True):
    steps = int(np.asarray(row.get_extra_model_outputs("n_step")).ravel()[0])
    rows[int(row.get_observations(0))] = (float(row.get_rewards(0)), row.is_terminated, steps)
for start, row in sorted(rows.items()):
    print("start", start, "(reward, is_terminated, n_step)", row)
assert rows[3] == (1.75, True, 3)
assert rows[4] == (1.5, False, 3)
assert rows[5] == (1.0, False, 3)
PY
