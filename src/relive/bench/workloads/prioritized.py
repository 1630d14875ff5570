"""Draws by priority: with an update of what was drawn, at four sizes, and in the loop of a learner."""

from relive.bench import tasks
from relive.bench import workload
from relive.bench.workloads import transitions

_SIZES = {"10k": 10**4, "100k": 10**5, "1m": 10**6, "10m": 10**7}
_WHY = (
    "A call of numpy costs half a microsecond to two whatever it does, and relive makes more than fifty of them in a "
    "draw and its update: that is most of the time while the tree fits in a cache. Compiled trees make none."
)

WORKLOADS = (
    *(
        workload.Workload(
            name=f"prioritized-{name}",
            family="prioritized",
            title=f"a prioritized draw of 256 and its update, {size:,} steps of f32[4]",
            task=tasks.Task(capacity=size, observation=transitions.SMALL, prioritized=True),
            timed=workload.updating,
            why=_WHY,
        )
        for name, size in _SIZES.items()
    ),
    workload.Workload(
        name="loop",
        family="loop",
        title="a loop of 4 adds, a prioritized draw of 32 and its update",
        task=tasks.Task(capacity=1_000_000, observation=transitions.SMALL, prioritized=True, batch_size=32),
        timed=workload.looping,
        steps=4,
        part="step",
        why=_WHY,
    ),
)
