#!/usr/bin/env bash
# d3rlpy 2.8.1: an episode that did not terminate has one transition less than it has actions and rewards.
#
# Expected: each row of observations, actions and rewards is a transition, as in an episode that terminated.
# Seen: of six rows that end with a timeout five are counted, and the reward of the last one is never drawn, since what
# followed it is not stored. Of six rows that end with a terminal all six are.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 d3rlpy==2.8.1
"$work/venv/bin/python" - <<'PROGRAM'
import logging

import d3rlpy
import numpy as np

counts, rewards = {}, {}
for end in ("terminals", "timeouts"):
    flags = {name: np.zeros(6, np.float32) for name in ("terminals", "timeouts")}
    flags[end][-1] = 1
    observations = np.arange(6, dtype=np.float32).reshape(-1, 1)
    dataset = d3rlpy.dataset.MDPDataset(
        observations, np.zeros((6, 1), np.float32), np.arange(6, dtype=np.float32), **flags
    )
    counts[end] = dataset.transition_count
    batch = dataset.sample_transition_batch(1000)
    rewards[end] = sorted({float(reward) for reward in np.ravel(batch.rewards)})
print("d3rlpy", d3rlpy.__version__)
print("transitions of six rows that end with a terminal:", counts["terminals"], " rewards drawn:", rewards["terminals"])
print("transitions of six rows that end with a timeout: ", counts["timeouts"], " rewards drawn:", rewards["timeouts"])
raise SystemExit(not (counts == {"terminals": 6, "timeouts": 5} and rewards["timeouts"] == [0.0, 1.0, 2.0, 3.0, 4.0]))
PROGRAM
