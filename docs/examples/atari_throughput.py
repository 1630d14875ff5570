"""Atari frames at full speed: how fast Pong is stepped, stored and drawn, and in how many bytes. It trains nothing.

    AtariVectorEnv (stacks of 4) ── VectorRecorder(frame_stack=4) ──> RingReplayBuffer(frame_stack=4, streams=8)

What to look at: the environment returns stacks of four grey frames of 84 by 84 bytes, made by ALE itself as DQN has
them (Mnih et al. 2015). The recorder stores the newest frame of each, once; the buffer stacks them again when it draws,
for the observation and for the one behind 3 steps. Actions are random; batches are drawn as often as DQN draws them.

    python atari_throughput.py             a minute; needs pip install ale-py, which brings the game
    python atari_throughput.py --short     a second or two
"""

import argparse
from collections.abc import Iterator, Sequence
import contextlib
import time
from typing import Any

import ale_py
import gymnasium

import relive
from relive.integrations import gymnasium as relive_gymnasium

NUM_ENVS, FRAME_STACK, BATCH_SIZE, STEPS_PER_BATCH = 8, 4, 32, 4
SECONDS_BETWEEN_LINES = 5


class Stopwatch:
    """Adds up the seconds that pass in its blocks."""

    seconds = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Count one block."""
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started


class Timed(gymnasium.vector.VectorWrapper):
    """Knows how long the environments have taken for their steps."""

    def __init__(self, envs: "gymnasium.vector.VectorEnv[Any, Any, Any]") -> None:
        super().__init__(envs)
        self.stopwatch = Stopwatch()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Do what the environments do."""
        with self.stopwatch.running():
            return self.env.step(actions)


def main(arguments: Sequence[str] | None = None) -> None:
    """Play, stores and draws, and set what it took."""
    parser = argparse.ArgumentParser(description="Throughput of Atari Pong into a buffer of frames.")
    parser.add_argument("--steps", type=int, default=50_000, help="environment steps (default: %(default)s)")
    parser.add_argument("--short", dest="steps", action="store_const", const=1_000, help="the same as --steps 1000")
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same frames (default: %(default)s)")
    options = parser.parse_args(arguments)

    gymnasium.register_envs(ale_py)
    timed = Timed(gymnasium.make_vec("ALE/Pong-v5", NUM_ENVS, num_threads=1))
    buffer = relive.RingReplayBuffer(
        options.steps,
        relive_gymnasium.from_env(timed, frame_stack=FRAME_STACK),
        n_step=3,
        frame_stack=FRAME_STACK,
        streams=NUM_ENVS,
        seed=options.seed,
    )
    envs = relive_gymnasium.VectorRecorder(timed, buffer, frame_stack=FRAME_STACK)
    recorded, sampled = Stopwatch(), Stopwatch()

    envs.action_space.seed(options.seed)
    observations, _ = envs.reset(seed=options.seed)
    started = said = time.perf_counter()
    for step in range(0, options.steps, NUM_ENVS):
        actions = envs.action_space.sample()
        with recorded.running():
            observations, *_ = envs.step(actions)
        for _ in range(NUM_ENVS // STEPS_PER_BATCH):
            with sampled.running():
                buffer.sample(BATCH_SIZE)
        if time.perf_counter() - said > SECONDS_BETWEEN_LINES:
            said = time.perf_counter()
            print(f"step {step + NUM_ENVS}: {(step + NUM_ENVS) / (said - started):.0f} steps a second")

    seconds = time.perf_counter() - started
    print(f"{len(buffer) / seconds:.0f} steps a second with {len(buffer) / seconds / STEPS_PER_BATCH:.0f} batches")
    parts = {
        "the game": timed.stopwatch.seconds,
        "recording": recorded.seconds - timed.stopwatch.seconds,
        "drawing": sampled.seconds,
    }
    for name, part in parts.items():
        print(f"{name:>12} {part:7.2f} s {part / seconds:5.0%} {part / len(buffer) * 1e6:6.0f} microseconds a step")
    stored, stacked = buffer.get_stats().nbytes, 2 * observations[0].nbytes * buffer.capacity
    print(f"{stored / 1e6:.1f} MB for {buffer.capacity} steps; two stacks a transition take {stacked / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
