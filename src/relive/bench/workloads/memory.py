"""What a stored step takes in memory."""

import dataclasses

from relive.bench import tasks
from relive.bench import workload
from relive.bench.workloads import transitions

_PLAIN = tasks.Task(capacity=1_000_000, observation=transitions.SMALL)

WORKLOADS = (
    workload.Workload(
        name="memory",
        family="memory",
        title="memory of a step of f32[4]",
        task=_PLAIN,
        timed=None,
        part="step",
    ),
    workload.Workload(
        name="memory-prioritized",
        family="memory",
        title="memory of a step of f32[4] with a priority",
        task=dataclasses.replace(_PLAIN, prioritized=True),
        timed=None,
        part="step",
    ),
)
