#!/usr/bin/env bash
# PettingZoo 1.27.0: after a won game of tic-tac-toe, the mask of the agent that is selected still lists free squares.
#
# Expected: an agent that is terminated may do nothing but None, so its action mask is all zeros.
# Seen: the mask of the agent whose turn it is lists every free square; that of the other agent is all zeros. The same
# observation is the next observation of the loser's last move, where a masked maximum of a learner goes over it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pettingzoo==1.27.0 pygame
"$work/venv/bin/python" - <<'PROGRAM'
import pettingzoo
from pettingzoo.classic import tictactoe_v3

env = tictactoe_v3.env()
env.reset(seed=0)
for move in (0, 3, 1, 4, 2):  # The first player has a column; 5, 6, 7 and 8 are free.
    env.step(move)
observation, _, terminated, _, _ = env.last()
other = next(agent for agent in env.possible_agents if agent != env.agent_selection)
masks = [env.observe(agent)["action_mask"].tolist() for agent in (env.agent_selection, other)]
print("pettingzoo", pettingzoo.__version__)
print("the selected agent is terminated:", terminated)
print("its action mask: ", masks[0])
print("that of the other:", masks[1])
raise SystemExit(not (terminated and masks == [[0, 0, 0, 0, 0, 1, 1, 1, 1], [0] * 9]))
PROGRAM
