"""Steps into a full ring: one, one of images, and one of each of 64 streams."""

from relive.bench import tasks
from relive.bench import workload
from relive.bench.workloads import transitions
from relive.testing import synthetic

_WHY = (
    "relive checks every field for its shape and dtype, and that each episode goes on where it was; it keeps where "
    "episodes begin and end and what may be drawn. sb3 assigns to arrays unchecked. pfrl and d3rlpy copy nothing: they "
    "keep references to arrays that are the caller's, and pay when they draw."
)

WORKLOADS = (
    workload.Workload(
        name="add",
        family="add",
        title="adding a step of f32[4]",
        task=tasks.Task(capacity=1_000_000, observation=transitions.SMALL),
        timed=workload.adding,
        part="step",
        why=_WHY,
    ),
    workload.Workload(
        name="add-images",
        family="add",
        title="adding a step of four stacked 84x84 images, one of them new",
        task=tasks.Task(capacity=transitions.IMAGES, observation=transitions.IMAGE, frame_stack=4),
        timed=workload.adding,
        part="step",
        why=_WHY,
    ),
    workload.Workload(
        name="extend",
        family="extend",
        title="adding a step of f32[4] of each of 64 streams",
        task=tasks.Task(
            capacity=64 * 15_625,
            observation=synthetic.Kind((4,), "float32"),
            streams=64,
            episode_lengths=(100, 100),
        ),
        timed=workload.extending,
        steps=64,
        part="step",
        why="In most calls some of the 64 episodes end, and relive keeps books of where each begins and ends, and how. "
        "sb3 keeps a flag a step and knows no episodes; its draws have to do without.",
    ),
)
