"""Draws from whole episodes, with a step added before each, as the number of episodes grows."""

from relive.bench import tasks
from relive.bench import workload
from relive.bench.workloads import transitions

_SIZES = {"1k": 10**3, "10k": 10**4, "100k": 10**5}
_LENGTHS = (5, 15)

WORKLOADS = tuple(
    workload.Workload(
        name=f"episodes-{name}",
        family="episodes",
        title=f"an added step and a 5-step draw of 256 from {episodes:,} episodes of about 10 steps of f32[4]",
        task=tasks.Task(
            capacity=episodes * sum(_LENGTHS) // 2,
            observation=transitions.SMALL,
            n_step=5,
            by_episode=True,
            episode_lengths=_LENGTHS,
        ),
        timed=workload.adding_and_sampling,
    )
    for name, episodes in _SIZES.items()
)
