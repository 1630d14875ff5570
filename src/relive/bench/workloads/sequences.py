"""Draws of sequences of images."""

from relive.bench import tasks
from relive.bench import workload
from relive.testing import synthetic

WORKLOADS = (
    workload.Workload(
        name="sequences",
        family="sequences",
        title="a draw of 16 sequences of 64 steps, observation u8[64, 64, 3]",
        task=tasks.Task(
            capacity=20_000,
            observation=synthetic.Kind((64, 64, 3), "uint8"),
            sequence_length=64,
            batch_size=16,
            episode_lengths=(100, 300),
        ),
        timed=workload.sampling,
    ),
)
