#!/usr/bin/env bash
# ray 2.60.0: EpisodeReplayBuffer.sample returns more n-step windows than were asked for.
# Expected: a batch of 32 has 32 windows, for any n.
# Seen: it has 32 for n_step=1 and more for n_step=5, since windows near the end of an episode lower the count.
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
for t in range(20):
    episode.add_env_step(np.array(t + 1), 0, 1.0, terminated=t == 19)
buffer = EpisodeReplayBuffer()
buffer.add(episode)
settings = {"gamma": 0.5, "sample_episodes": True}
found = {n: [len(buffer.sample(256, n_step=n, **settings)) for _ in range(20)] for n in (1, 2, 5)}
for n, sizes in found.items():
    print(f"n_step={n}: {min(sizes)} to {max(sizes)} windows in a batch of 256")
assert set(found[1]) == {256}
assert min(found[5]) > 256
PY
