"""Uniform draws of transitions: small vectors, stacks of images, and several steps at once."""

from relive.bench import tasks
from relive.bench import workload
from relive.testing import synthetic

SMALL = synthetic.Kind((4,), "float32")
IMAGE = synthetic.Kind((84, 84), "uint8")
IMAGES = 20_000
"""Steps of images that are stored: more than any cache holds, and room for those who store a stack twice a step."""


def _images(batch_size: int) -> workload.Workload:
    return workload.Workload(
        name=f"images-{batch_size}",
        family="images",
        title=f"a draw of {batch_size} stacks of four 84x84 images",
        task=tasks.Task(capacity=IMAGES, observation=IMAGE, frame_stack=4, batch_size=batch_size),
        timed=workload.sampling,
        why="Numpy gathers the stacks, and those that follow them, by a take each, beside finding where the frames of "
        "each are; cpprb does all of it in one loop in C++.",
    )


WORKLOADS = (
    workload.Workload(
        name="uniform",
        family="uniform",
        title="a draw of 256, observation f32[4]",
        task=tasks.Task(capacity=1_000_000, observation=SMALL),
        timed=workload.sampling,
    ),
    workload.Workload(
        name="uniform-17",
        family="uniform",
        title="a draw of 256, observation f32[17], action f32[6]",
        task=tasks.Task(
            capacity=1_000_000,
            observation=synthetic.Kind((17,), "float32"),
            action=synthetic.Kind((6,), "float32"),
        ),
        timed=workload.sampling,
    ),
    _images(32),
    _images(256),
    workload.Workload(
        name="n-step",
        family="n-step",
        title="a 5-step draw of 256, observation f32[4]",
        task=tasks.Task(capacity=1_000_000, observation=SMALL, n_step=5),
        timed=workload.sampling,
        why="cpprb works out its returns when steps are added, for one n and one gamma, so that a draw only gathers. "
        "relive works them out when they are drawn: adding costs nothing more, and every draw may have its own n.",
    ),
)
