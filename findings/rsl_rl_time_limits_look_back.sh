#!/usr/bin/env bash
# rsl-rl-lib 5.5.1: PPO bootstraps an episode that reached its time limit from the observation before the last step.
# Expected: the return of that step is its reward plus the discounted value of the observation that it led to.
# Seen: with the value 10 before the step and 100 after it, a reward of 1 and gamma 0.5, the return is 6 and not 51; the
# next observation that PPO is given belongs to the next episode, so that it could not be otherwise.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0 rsl-rl-lib==5.5.1 numpy==2.4.6
"$work/venv/bin/python" -W ignore - <<'PY'
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
import tensordict
import torch


def observed(value):
    return tensordict.TensorDict({"policy": torch.tensor([[value]])}, batch_size=[1])


obs, groups = observed(10.0), {"actor": ["policy"], "critic": ["policy"]}
gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0}
actor = MLPModel(obs, groups, "actor", 1, hidden_dims=[1], distribution_cfg=gaussian)
critic = MLPModel(obs, groups, "critic", 1, hidden_dims=[1], activation="relu")
for parameter in critic.parameters():  # The value of an observation is the observation.
    torch.nn.init.constant_(parameter, float(parameter.ndim == 2))
storage = RolloutStorage("rl", 1, 1, obs, [1])
ppo = PPO(actor, critic, storage, gamma=0.5, lam=1.0)
assert critic(observed(100.0)).item() == 100

ppo.act(obs)
ppo.process_env_step(observed(100.0), torch.ones(1), torch.ones(1), {"time_outs": torch.ones(1)})
ppo.compute_returns(observed(100.0))
print("the return of a step that reached its time limit:", storage.returns.item())
assert storage.returns.item() == 1 + 0.5 * 10
PY
