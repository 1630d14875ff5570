#!/usr/bin/env bash
# ray 2.60.0: EpisodeReplayBuffer.sample returns fewer n-step windows than were asked for.
# Expected: a batch of 32 has 32 windows, for any n.
# Seen: it has 32 for n_step=1 and fewer for n_step=5: one window counts as several.
set -euo pipefail

python3 -m venv "${WORK:=$(mktemp -d)}"
"$WORK/bin/pip" install --quiet 'ray[rllib]==2.60.0' numpy==2.4.6
"$WORK/bin/python" -W ignore - <<'PY'
import numpy as np
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.replay_buffers import EpisodeReplayBuffer

episode = SingleAgentEpisode(observations=[np.array(0)])
for t in range(50):
    episode.add_env_step(np.array(t + 1), 0, 1.0, terminated=t == 49)
buffer = EpisodeReplayBuffer()
buffer.add(episode)
found = {n: len(buffer.sample(32, n_step=n, gamma=0.5, sample_episodes=True)) for n in (1, 2, 5)}
print("n_step: windows in a batch of 32", found)
assert found[1] == 32
assert found[5] < 32
PY
